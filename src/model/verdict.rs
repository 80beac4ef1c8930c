//! Decides what an endpoint's answer means.
//!
//! Turns a status or a failure into a [`Verdict`] and names the row of the
//! table that matched. It schedules nothing; [`super::delivery::next_state`]
//! does.
//!
//! Invariant: every status and every failure has exactly one verdict.

use serde::{Deserialize, Serialize};

use super::attempt::{Answer, FailureKind};

/// What an attempt's answer means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The receiver has it.
    Delivered,
    /// It may work later.
    Retry,
    /// It will not work, however often it is tried.
    Refused,
    /// The receiver asked never to be called again.
    Gone,
}

impl Verdict {
    /// The verdict as it is written everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Retry => "retry",
            Self::Refused => "refused",
            Self::Gone => "gone",
        }
    }
}

/// A verdict, and the row of the table it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judgement {
    /// What the answer means.
    pub verdict: Verdict,
    /// The row that matched, such as `404` or `timeout`.
    pub rule: &'static str,
    /// The shorter budget this answer is counted against, if any.
    pub short_budget: Option<ShortBudget>,
}

/// Answers that are retried, but not for long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShortBudget {
    /// 404: misconfigured or removed, nobody can tell.
    NotFound,
    /// The receiver's name does not exist.
    NoSuchName,
    /// The name points at an address that may not be called.
    ForbiddenTarget,
}

impl ShortBudget {
    /// How many such answers end the delivery.
    pub fn answers_max(self) -> u32 {
        match self {
            Self::NotFound | Self::NoSuchName => 10,
            Self::ForbiddenTarget => 5,
        }
    }
}

/// Judges an answer by the published table.
pub fn judge(answer: &Answer) -> Judgement {
    match &answer.result {
        Ok(response) => judge_status(response.status),
        Err(failure) => judge_failure(failure.kind),
    }
}

fn judge_status(status: u16) -> Judgement {
    use Verdict::{Delivered, Gone, Refused, Retry};
    let (verdict, rule) = match status {
        200..=299 => (Delivered, "2xx"),
        300..=399 => (Refused, "3xx"),
        404 => {
            return Judgement { verdict: Retry, rule: "404", short_budget: Some(ShortBudget::NotFound) };
        }
        408 => (Retry, "408"),
        409 => (Retry, "409"),
        410 => (Gone, "410"),
        425 => (Retry, "425"),
        429 => (Retry, "429"),
        400..=499 => (Refused, "4xx"),
        501 => (Refused, "501"),
        500..=599 => (Retry, "5xx"),
        0..=199 => (Retry, "1xx as final"),
        600.. => (Retry, "600 and above"),
    };
    Judgement { verdict, rule, short_budget: None }
}

fn judge_failure(kind: FailureKind) -> Judgement {
    let short_budget = match kind {
        FailureKind::NoSuchName => Some(ShortBudget::NoSuchName),
        FailureKind::ForbiddenTarget => Some(ShortBudget::ForbiddenTarget),
        FailureKind::Dns
        | FailureKind::ConnectionRefused
        | FailureKind::Unreachable
        | FailureKind::Tls
        | FailureKind::Timeout
        | FailureKind::ConnectionReset
        | FailureKind::MalformedAnswer
        | FailureKind::Ours => None,
    };
    Judgement { verdict: Verdict::Retry, rule: kind.as_str(), short_budget }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published table, written a second time from the documentation.
    fn published(status: u16) -> Verdict {
        match status {
            200..=299 => Verdict::Delivered,
            404 | 408 | 409 | 425 | 429 => Verdict::Retry,
            410 => Verdict::Gone,
            501 => Verdict::Refused,
            500..=599 => Verdict::Retry,
            300..=499 => Verdict::Refused,
            _ => Verdict::Retry,
        }
    }

    #[test]
    fn every_status_has_the_published_verdict() {
        for status in 0..=999 {
            assert_eq!(judge_status(status).verdict, published(status), "{status}");
        }
    }

    #[test]
    fn only_ambiguous_answers_have_a_short_budget() {
        assert_eq!(judge_status(404).short_budget, Some(ShortBudget::NotFound));
        assert_eq!(judge_failure(FailureKind::NoSuchName).short_budget, Some(ShortBudget::NoSuchName));
        assert_eq!(judge_failure(FailureKind::ForbiddenTarget).short_budget, Some(ShortBudget::ForbiddenTarget));
        assert_eq!(judge_failure(FailureKind::Timeout).short_budget, None);
        assert_eq!(judge_status(500).short_budget, None);
    }
}
