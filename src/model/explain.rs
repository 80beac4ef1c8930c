//! Explains in sentences why a delivery is in its present state.
//!
//! The sentences come from what was stored: the decision after each attempt,
//! the delivery's own row, and the present state of its endpoint. Nothing is
//! decided here. The API, the command line and the log use these words.
//!
//! `summary` is the first sentence, `attempts` explains single attempts, and
//! `next_steps` says what a person can do.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::answer::AttemptFailure;
use super::attempt::Attempt;
use super::delivery::{
    DeadCause, DeadlineSource, Delivery, DeliveryDeadline, DeliveryOutlook, DeliveryState, WaitingFor, time_after,
};
use super::endpoint::Endpoint;
use super::id::{DeliveryId, EndpointId, EventId, TenantId};
use super::named_enum::NamedEnum;
use super::signing::Secret;
use super::span::{Span, words};
use super::url_versions::mask_url;
use super::verdict::Verdict;

mod attempts;
mod next_steps;
mod summary;

/// Why a delivery is in its present state.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Explanation {
    /// Tenant of the delivery.
    #[schema(value_type = String)]
    pub tenant: TenantId,
    /// Id of the delivery that is explained.
    #[schema(value_type = String)]
    pub delivery_id: DeliveryId,
    /// Id of its event.
    #[schema(value_type = String)]
    pub event_id: EventId,
    /// Id of its endpoint.
    #[schema(value_type = String)]
    pub endpoint_id: EndpointId,
    /// State of the delivery, in one sentence.
    #[schema(example = "Waiting: attempt 3 starts at 2026-11-15T10:41:15Z, in 1m 25s.")]
    pub summary: String,
    /// How it came to this state, when its next attempt is due, and what could change that.
    pub sentences: Vec<String>,
    /// Each attempt: what was answered, which rule judged it, and what was decided.
    pub attempts: Vec<ExplainedAttempt>,
}

/// One attempt, explained in sentences.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ExplainedAttempt {
    /// Number of the attempt: 1, 2, … over the delivery's whole life.
    pub number: u32,
    /// When it began.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// The status, when there was an answer.
    pub status: Option<u16>,
    /// The failure, when there was no answer.
    pub error: Option<AttemptFailure>,
    /// What the answer means.
    pub verdict: Verdict,
    /// What came of it, and why.
    pub sentences: Vec<String>,
}

/// The facts that an explanation is made of.
#[derive(Debug, Clone, Copy)]
pub struct ExplanationFacts<'a> {
    /// The delivery to explain.
    pub delivery: &'a Delivery,
    /// Attempts of the delivery, oldest first.
    pub attempts: &'a [Attempt],
    /// Endpoint of the delivery, unless it was deleted.
    pub endpoint: Option<&'a Endpoint>,
    /// Head of its lane, if that is another delivery, and whether the head is dead.
    pub head: Option<(DeliveryId, bool)>,
    /// What the delivery waits for, and its next attempt.
    pub outlook: DeliveryOutlook,
    /// Longest wait for the first attempt (`--hold-max`).
    pub hold_max: Span,
    /// The present time.
    pub now: Timestamp,
    /// What its reader may be told.
    pub reader: ExplanationReader,
}

/// What the reader of an explanation may be told.
#[derive(Debug, Clone, Copy)]
pub struct ExplanationReader {
    /// Whether they learn which address was refused, as the operator alone does.
    pub is_operator: bool,
    /// Whether they read what people noted. A tenant's readers do not: the note may be the
    /// operator's.
    pub sees_notes: bool,
}

/// Explains why the delivery is in its present state.
pub fn explain(facts: &ExplanationFacts<'_>) -> Explanation {
    let mut sentences = vec![facts.origin()];
    sentences.extend(facts.replayed());
    if let Some(last) = facts.attempts.last() {
        sentences.extend(facts.attempt_sentences(last));
    }
    sentences.extend(facts.internal_error());
    sentences.extend(facts.later_backpressure());
    sentences.extend(facts.ended_without_attempt());
    sentences.extend(facts.deadline());
    sentences.extend(facts.policy_changed());
    sentences.extend(facts.next_step());
    sentences.extend(facts.discard_step());
    let Delivery { tenant, id, event_id, endpoint_id, .. } = facts.delivery;
    Explanation {
        tenant: tenant.clone(),
        delivery_id: *id,
        event_id: event_id.clone(),
        endpoint_id: *endpoint_id,
        summary: facts.summary(),
        sentences,
        attempts: facts.attempts.iter().map(|attempt| facts.explain_attempt(attempt)).collect(),
    }
}

/// Returns the answer in words, such as `was answered 503 Service Unavailable`.
pub fn answer_words(attempt: &Attempt) -> String {
    match (attempt.status, &attempt.error) {
        (Some(status), _) => {
            let reason = http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
            match reason {
                Some(reason) => format!("was answered {status} {reason}"),
                None => format!("was answered {status}"),
            }
        }
        (None, Some(failure)) => format!("had no answer ({}: {})", failure.kind.as_str(), failure.message),
        (None, None) => "had no answer".to_owned(),
    }
}

/// Statuses with which receivers refuse a request that they cannot verify.
const UNVERIFIED: [u16; 3] = [400, 401, 403];
/// Time for which a change of secrets is named as a likely reason.
const SECRET_CHANGE_AGE_MAX: Duration = Duration::from_secs(86_400);

/// Returns that the secrets of an endpoint changed shortly before a request
/// that its receiver may have refused for its signature, in words.
///
/// The secrets are those of the endpoint, and `created_at` is its own time.
pub fn secret_change(secrets: &[Secret], created_at: Timestamp, attempt: &Attempt) -> Option<String> {
    let is_refusal = attempt.decision.verdict == Verdict::Refused;
    attempt.status.filter(|status| is_refusal && UNVERIFIED.contains(status))?;
    let at = attempt.started_at;
    // The first secret is made with the endpoint, a moment apart.
    let first_at = time_after(created_at, Duration::from_secs(1));
    let made = || secrets.iter().map(|secret| secret.created_at);
    let oldest = made().min()?;
    let rotated_at = made().filter(|made_at| *made_at > oldest.min(first_at) && *made_at <= at).max();
    // While an older secret signs as well, a receiver that has either can verify, unless
    // there is room for one signature only.
    let is_older = |secret: &&Secret| rotated_at.is_some_and(|rotated_at| secret.created_at < rotated_at);
    let signs = |secret: &Secret| secret.expires_at.is_none_or(|ends_at| ends_at > at);
    let is_one = attempt.signatures.iter().any(|profile| profile.carries_one());
    let rotated_at = rotated_at.filter(|_| is_one || !secrets.iter().filter(is_older).any(signs));
    let ended_at = secrets.iter().filter_map(|secret| secret.expires_at).filter(|ended_at| *ended_at <= at).max();
    let changed_at =
        rotated_at.max(ended_at).filter(|changed_at| time_after(*changed_at, SECRET_CHANGE_AGE_MAX) > at)?;
    let seconds = u64::try_from(at.as_second() - changed_at.as_second()).unwrap_or(0);
    let before = if seconds == 0 { "a moment".to_owned() } else { words(Duration::from_secs(seconds)) };
    Some(if rotated_at == Some(changed_at) {
        format!("a secret of this endpoint was rotated {before} before")
    } else {
        format!("an old secret of this endpoint stopped signing {before} before")
    })
}

impl ExplanationFacts<'_> {
    fn origin(&self) -> String {
        let Delivery { event_id, event_type, endpoint_id, created_at, .. } = self.delivery;
        let to = match self.endpoint {
            Some(endpoint) => format!("endpoint {endpoint_id} ({})", mask_url(&endpoint.settings.url)),
            None => format!("endpoint {endpoint_id}, which has been deleted"),
        };
        let lane = match (&self.delivery.key, self.delivery.seq) {
            (Some(key), Some(seq)) => format!(" It is number {seq} in the lane of key {key:?}."),
            (None, Some(seq)) => format!(" It is number {seq} in the endpoint's one lane."),
            (_, None) => String::new(),
        };
        format!("Event {event_id} ({event_type}) was accepted at {created_at:.0} for {to}.{lane}")
    }

    fn replayed(&self) -> Option<String> {
        let before = self.delivery.progress.attempts_before;
        let begun_at = self.delivery.progress.begun_at.filter(|at| *at > self.delivery.created_at)?;
        Some(match before {
            0 => format!("It was replayed at {begun_at:.0}."),
            before => format!("It was replayed at {begun_at:.0}, with a fresh budget after attempt {before}."),
        })
    }

    /// Says how often processing failed inside the gateway, and how the last time.
    fn internal_error(&self) -> Option<String> {
        let error = self.delivery.internal_error.as_deref()?;
        let times = match self.delivery.internal_errors {
            1 => "once".to_owned(),
            count => format!("{count} times"),
        };
        let is_end = self.delivery.cause.is_some_and(DeadCause::is_by_internal_errors);
        let consequence = if is_end { "so it is not tried any more" } else { "which is not counted as an attempt" };
        Some(format!("Its processing failed inside the gateway {times}, {consequence}; the last time: {error}."))
    }

    /// Says that a `Retry-After` answered to another delivery moves the next attempt.
    fn later_backpressure(&self) -> Option<String> {
        let until =
            self.endpoint?.backpressure_until.filter(|until| *until > self.now && *until > self.delivery.due_at)?;
        let is_due = self.outlook.waiting_for == Some(WaitingFor::Due) && !self.delivery.is_urgent;
        is_due.then(|| {
            format!("The receiver has since asked to be left alone until {until:.0} (Retry-After, answered to another delivery), so it starts then.")
        })
    }

    /// Says why a delivery expired, where no answer ended it.
    fn ended_without_attempt(&self) -> Option<String> {
        let delivery = self.delivery;
        let is_by_answer = self.last_of_budget().is_some_and(|last| last.decision.next_attempt_at.is_none());
        let is_by_time = delivery.cause.is_some_and(DeadCause::is_by_time);
        if delivery.state != DeliveryState::Dead || !is_by_time || is_by_answer {
            return None;
        }
        let finished_at = delivery.finished_at?;
        Some(match (delivery.expires_at, delivery.progress.age_from) {
            (Some(at), _) if at <= finished_at => {
                format!(
                    "Its event was over at {at:.0}, as its producer had said (expires_at), before it could be delivered."
                )
            }
            (_, None) => format!(
                "It waited for its first attempt for longer than --hold-max allows ({}), held by a pause, behind others in its lane, or for a slot.",
                self.hold_max
            ),
            (_, Some(_)) => "Its max_age passed while it was held back, so no further attempt was made.".to_owned(),
        })
    }

    /// Says when a waiting delivery is given up.
    fn deadline(&self) -> Option<String> {
        if self.delivery.state != DeliveryState::Waiting {
            return None;
        }
        let DeliveryDeadline { at, by } = self.outlook.end?;
        if by == DeadlineSource::Hold && self.outlook.is_in_flight {
            return None;
        }
        let endpoint = self.endpoint?;
        let policy = &endpoint.policy;
        let left = policy.max_attempts.saturating_sub(self.delivery.progress.used_attempts());
        let attempts = match left {
            1 => format!("1 of {} attempts is left", policy.max_attempts),
            left => format!("{left} of {} attempts are left", policy.max_attempts),
        };
        let given_up = match by {
            DeadlineSource::Age => {
                let judged_by = self.delivery.progress.max_age.unwrap_or(policy.max_age);
                format!("It is given up at {at:.0}, when max_age ({}) is over", judged_by.max(policy.max_age))
            }
            DeadlineSource::Hold => {
                format!(
                    "It is given up at {at:.0}, should it have had no attempt by then (--hold-max is {})",
                    self.hold_max
                )
            }
            DeadlineSource::Expiry => format!("It is given up at {at:.0}, when its event is over (expires_at)"),
        };
        let moves_on = if !endpoint.is_aging() && by == DeadlineSource::Age {
            " That moves on for as long as the endpoint is held."
        } else {
            ""
        };
        Some(format!("{given_up}; {attempts}.{moves_on}"))
    }

    fn policy_changed(&self) -> Option<String> {
        if self.delivery.state != DeliveryState::Waiting {
            return None;
        }
        let now = self.endpoint?.policy.to_string();
        let judged_by = self.attempts.iter().rev().find_map(|attempt| attempt.decision.policy.as_deref())?;
        (now != judged_by)
            .then(|| format!("The endpoint's policy has been changed since: the next answer is judged by {now}."))
    }
}

/// Returns the time between two moments, in words.
fn words_between(from: Timestamp, to: Timestamp) -> String {
    let millis = to.as_millisecond().saturating_sub(from.as_millisecond());
    words(Duration::from_millis(u64::try_from(millis).unwrap_or(0)))
}

#[cfg(test)]
mod tests;
