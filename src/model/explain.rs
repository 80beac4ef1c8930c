//! Tells why a delivery stands where it stands, in sentences.
//!
//! Everything is told from what was stored: each attempt's [`Decision`], the
//! delivery's own row, and how its endpoint stands now. Nothing is decided
//! here. The API, the command line and the log say it in these words.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::attempt::{Attempt, AttemptFailure, Decision};
use super::delivery::{
    DeadCause, DeadlineSource, Delivery, DeliveryDeadline, DeliveryState, Outlook, WaitingFor, after,
};
use super::endpoint::Endpoint;
use super::id::DeliveryId;
use super::span::{Span, words};
use super::status_rules::{RuleSource, StatusTable};
use super::url_versions::masked;
use super::verdict::Verdict;

/// Why a delivery stands where it stands.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Explanation {
    /// Where it stands, in one sentence.
    #[schema(example = "Waiting: attempt 3 starts at 2026-11-15T10:41:15Z, in 1m 25s.")]
    pub summary: String,
    /// How it came there, when it goes next, and what could change that.
    pub sentences: Vec<String>,
    /// Each attempt: what was answered, which rule judged it, and what was decided.
    pub attempts: Vec<ExplainedAttempt>,
}

/// One attempt, told.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ExplainedAttempt {
    /// 1, 2, … over the delivery's whole life.
    pub number: u32,
    /// When it began.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// The status, when there was an answer.
    pub status: Option<u16>,
    /// The failure, when there was none.
    pub error: Option<AttemptFailure>,
    /// What the answer means.
    pub verdict: Verdict,
    /// What came of it, and why.
    pub sentences: Vec<String>,
}

/// Everything an explanation is made of.
#[derive(Debug, Clone, Copy)]
pub struct ExplanationFacts<'a> {
    /// The delivery.
    pub delivery: &'a Delivery,
    /// Its attempts, oldest first.
    pub attempts: &'a [Attempt],
    /// Its endpoint, unless that was deleted.
    pub endpoint: Option<&'a Endpoint>,
    /// The head of its lane, when that is another one, and whether it is dead.
    pub head: Option<(DeliveryId, bool)>,
    /// What holds at this moment.
    pub outlook: Outlook,
    /// How long a delivery may wait for its first attempt.
    pub hold_max: Span,
    /// This moment.
    pub now: Timestamp,
    /// Whether the operator asks, who is told which address was refused.
    pub is_operator: bool,
}

/// An attempt that begins this much after its time was held back.
const LATE: Duration = Duration::from_secs(2);

/// Tells it.
pub fn explain(facts: &ExplanationFacts<'_>) -> Explanation {
    let mut sentences = vec![facts.origin()];
    sentences.extend(facts.replayed());
    if let Some(last) = facts.attempts.last() {
        sentences.extend(facts.attempt_sentences(last));
    }
    sentences.extend(facts.internal_error_sentence());
    sentences.extend(facts.left_alone());
    sentences.extend(facts.ended_without_attempt());
    sentences.extend(facts.limit());
    sentences.extend(facts.policy_changed());
    sentences.extend(facts.way_out());
    sentences.extend(facts.last_way_out());
    Explanation {
        summary: facts.summary(),
        sentences,
        attempts: facts.attempts.iter().map(|attempt| facts.explained(attempt)).collect(),
    }
}

/// What came back: `was answered 503 Service Unavailable`.
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

impl ExplanationFacts<'_> {
    fn summary(&self) -> String {
        let Delivery { state, cause, .. } = self.delivery;
        let finished_at = self.delivery.finished_at.unwrap_or(self.now);
        match (state, cause) {
            (DeliveryState::Waiting, _) => self.waiting(),
            (DeliveryState::Delivered, _) => format!(
                "Delivered on attempt {} at {finished_at:.0}, {} after it was accepted.",
                self.delivery.progress.attempts,
                between(self.delivery.created_at, finished_at),
            ),
            (DeliveryState::Dead, Some(cause)) => {
                format!(
                    "Dead ({}) since {finished_at:.0}, after {}{}.",
                    cause.as_str(),
                    self.tries(),
                    self.last_words()
                )
            }
            (DeliveryState::Dead, None) => format!("Dead since {finished_at:.0}, after {}.", self.tries()),
            (DeliveryState::Cancelled, Some(cause)) => {
                format!("Discarded at {finished_at:.0}; it had died ({}) after {}.", cause.as_str(), self.tries())
            }
            (DeliveryState::Cancelled, None) if self.endpoint.is_none() => {
                format!("Cancelled at {finished_at:.0} with its endpoint, after {}.", self.tries())
            }
            (DeliveryState::Cancelled, None) => format!("Cancelled at {finished_at:.0}, after {}.", self.tries()),
        }
    }

    /// What went wrong inside the gateway.
    fn internal_error_sentence(&self) -> Option<String> {
        let error = self.delivery.internal_error.as_deref()?;
        let times = match self.delivery.internal_errors {
            1 => "once".to_owned(),
            count => format!("{count} times"),
        };
        let so_what = match self.delivery.cause {
            Some(DeadCause::Poisoned) => "so it is not tried any more",
            _ => "which is not counted as an attempt",
        };
        Some(format!("Its processing failed inside the gateway {times}, {so_what}; the last time: {error}."))
    }

    fn tries(&self) -> String {
        match self.delivery.progress.attempts {
            0 => "no attempt at all".to_owned(),
            1 => "1 attempt".to_owned(),
            count => format!("{count} attempts"),
        }
    }

    fn last_words(&self) -> String {
        match self.attempts {
            [] => String::new(),
            [only] => format!(", which {}", answer_words(only)),
            [.., last] => format!("; the last {}", answer_words(last)),
        }
    }

    fn waiting(&self) -> String {
        let next = self.delivery.progress.attempts + 1;
        if self.outlook.is_in_flight {
            return format!("In flight: attempt {next} is being made, and its answer is awaited.");
        }
        let Some(waiting_for) = self.outlook.waiting_for else {
            return "Waiting.".to_owned();
        };
        let starts = self.outlook.next_attempt_at.filter(|at| *at > self.now);
        let never = match (self.outlook.next_attempt_at, self.outlook.end) {
            (None, Some(end)) => Some(format!("it is given up before that, at {:.0}", end.at)),
            _ => None,
        };
        let standing = self.endpoint.map(|endpoint| &endpoint.status);
        let since = standing.map(|standing| format!(" since {:.0}", standing.since)).unwrap_or_default();
        let reason = standing.and_then(|standing| standing.reason.as_deref()).unwrap_or("no reason was given");
        match waiting_for {
            WaitingFor::Due => match starts {
                Some(at) => format!("Waiting: attempt {next} starts at {at:.0}, in {}.", between(self.now, at)),
                None => match never {
                    Some(never) => format!("Waiting: attempt {next} would start too late; {never}."),
                    None => format!("Waiting: attempt {next} is due and starts at any moment."),
                },
            },
            WaitingFor::Backpressure => match starts {
                Some(at) => format!(
                    "Waiting: the receiver asked to be left alone (Retry-After); attempt {next} starts at {at:.0}, in {}.",
                    between(self.now, at)
                ),
                None => {
                    let never = never.map(|never| format!("; {never}")).unwrap_or_default();
                    format!("Waiting: the receiver asked to be left alone (Retry-After){never}.")
                }
            },
            WaitingFor::Breaker => {
                let why = self.endpoint.and_then(|endpoint| endpoint.health.reason.as_deref());
                let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
                match starts {
                    Some(at) => format!(
                        "Waiting: its endpoint keeps failing, so the breaker is open{why}; the next probe starts at {at:.0}, in {}.",
                        between(self.now, at)
                    ),
                    None if self.endpoint.is_some_and(|endpoint| endpoint.health.is_forced()) => {
                        format!("Waiting: a person opened its endpoint's breaker{why}.")
                    }
                    None => match never {
                        Some(never) => format!("Waiting: its endpoint's breaker is open{why}; {never}."),
                        None => format!(
                            "Waiting: its endpoint's breaker is half-open{why}; one delivery at a time is tried."
                        ),
                    },
                }
            }
            WaitingFor::Rate => format!(
                "Waiting: attempt {next} is due, and goes when the rate allows it ({} per second here, unless its tenant has less).",
                self.endpoint.map_or(0.0, |endpoint| endpoint.rate().per_second)
            ),
            WaitingFor::Slot => format!(
                "Waiting: attempt {next} is due, and no slot is free (max_in_flight is {} here, and the gateway has a limit of its own).",
                self.endpoint.map_or(0, |endpoint| endpoint.max_in_flight())
            ),
            WaitingFor::Pause => format!("Waiting: its endpoint is paused{since} ({reason})."),
            WaitingFor::Disabled => format!("Waiting: its endpoint is disabled{since} ({reason})."),
            WaitingFor::Key => match self.head {
                Some((head, true)) => format!("Waiting: its lane stands behind the dead letter {head}."),
                Some((head, false)) => format!("Waiting: {head} goes before it in its lane."),
                None => "Waiting: another attempt in its lane is in flight.".to_owned(),
            },
        }
    }

    fn origin(&self) -> String {
        let Delivery { event_id, event_type, endpoint_id, created_at, .. } = self.delivery;
        let to = match self.endpoint {
            Some(endpoint) => format!("endpoint {endpoint_id} ({})", masked(&endpoint.settings.url)),
            None => format!("endpoint {endpoint_id}, which has been deleted"),
        };
        let place = match (&self.delivery.key, self.delivery.seq) {
            (Some(key), Some(seq)) => format!(" It is number {seq} in the lane of key {key:?}."),
            (None, Some(seq)) => format!(" It is number {seq} in the endpoint's one lane."),
            (_, None) => String::new(),
        };
        format!("Event {event_id} ({event_type}) was accepted at {created_at:.0} for {to}.{place}")
    }

    fn replayed(&self) -> Option<String> {
        let before = self.delivery.progress.attempts_before;
        let begun_at = self.delivery.progress.begun_at.filter(|at| *at > self.delivery.created_at)?;
        Some(match before {
            0 => format!("It was replayed at {begun_at:.0}."),
            before => format!("It was replayed at {begun_at:.0}, with a fresh budget after attempt {before}."),
        })
    }

    fn explained(&self, attempt: &Attempt) -> ExplainedAttempt {
        ExplainedAttempt {
            number: attempt.number,
            started_at: attempt.started_at,
            status: attempt.status,
            error: attempt.error.clone(),
            verdict: attempt.decision.verdict,
            sentences: self.attempt_sentences(attempt),
        }
    }

    /// What was answered, which rule judged it, how the wait came about.
    fn attempt_sentences(&self, attempt: &Attempt) -> Vec<String> {
        let decision = &attempt.decision;
        let mut told = vec![format!(
            "Attempt {} began at {:.0} and {} after {}.",
            attempt.number,
            attempt.started_at,
            answer_words(attempt),
            took(attempt),
        )];
        let refused = attempt.refused_target.as_ref().filter(|_| self.is_operator);
        told.extend(refused.map(|reason| format!("For the operator alone: {reason}.")));
        told.extend(self.was_late(attempt));
        told.push(judged(attempt));
        if let Some(policy) = self.new_policy(attempt) {
            told.push(format!("The endpoint's policy had been changed: it was now {policy}."));
        }
        told.extend(drawn(decision));
        told.extend(decision.caps.iter().map(|cap| sentence(cap)));
        told.push(self.consequence(attempt));
        told
    }

    /// What held an attempt back after it was due, as far as can be told.
    fn was_late(&self, attempt: &Attempt) -> Option<String> {
        // After a replay it was a person who let it wait.
        let is_replay = attempt.number == self.delivery.progress.attempts_before + 1;
        let before = self.attempts.iter().find(|other| other.number + 1 == attempt.number && !is_replay)?;
        let planned = before.decision.next_attempt_at?;
        let late = after(planned, LATE) < attempt.started_at;
        late.then(|| {
            let late = between(planned, attempt.started_at);
            format!("That was {late} after it was due: its endpoint was held, left alone or full, its lane was taken, or the gateway was down.")
        })
    }

    /// What keeps a delivery away beyond its own time.
    fn left_alone(&self) -> Option<String> {
        let until = self.endpoint?.quiet_until.filter(|until| *until > self.now && *until > self.delivery.due_at)?;
        let is_due = self.outlook.waiting_for == Some(WaitingFor::Due) && !self.delivery.is_urgent;
        is_due.then(|| {
            format!("The receiver has since asked to be left alone until {until:.0} (Retry-After, answered to another delivery), so it starts then.")
        })
    }

    /// The policy an attempt was judged by, if the one before had another.
    fn new_policy<'a>(&self, attempt: &'a Attempt) -> Option<&'a str> {
        let mine = attempt.decision.policy.as_deref()?;
        let before = self.attempts.iter().rev().filter(|other| other.number < attempt.number);
        let before = before.filter_map(|other| other.decision.policy.as_deref()).next()?;
        (mine != before).then_some(mine)
    }

    fn consequence(&self, attempt: &Attempt) -> String {
        let is_last = self.last_of_budget().is_some_and(|last| last.number == attempt.number);
        match (attempt.decision.verdict, attempt.decision.next_attempt_at, self.delivery.cause) {
            (Verdict::Delivered, ..) => "So it is delivered.".to_owned(),
            (Verdict::Refused, ..) => "So it is a dead letter (refused).".to_owned(),
            (Verdict::Gone, ..) => "So it is a dead letter (gone), and its endpoint is disabled.".to_owned(),
            (Verdict::Retry, Some(at), _) => format!("So the next attempt was planned for {at:.0}."),
            (Verdict::Retry, None, Some(cause)) if is_last => format!("So it is a dead letter ({}).", cause.as_str()),
            (Verdict::Retry, None, _) => "So it became a dead letter.".to_owned(),
        }
    }

    /// The last attempt since the delivery was accepted or replayed.
    fn last_of_budget(&self) -> Option<&Attempt> {
        self.attempts.last().filter(|last| last.number > self.delivery.progress.attempts_before)
    }

    /// Why a delivery died that no answer killed.
    fn ended_without_attempt(&self) -> Option<String> {
        let delivery = self.delivery;
        let is_by_answer = self.last_of_budget().is_some_and(|last| last.decision.next_attempt_at.is_none());
        if delivery.state != DeliveryState::Dead || delivery.cause != Some(DeadCause::Expired) || is_by_answer {
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

    /// When a waiting delivery gives up.
    fn limit(&self) -> Option<String> {
        if self.delivery.state != DeliveryState::Waiting {
            return None;
        }
        let DeliveryDeadline { at, by } = self.outlook.end?;
        if by == DeadlineSource::Hold && self.outlook.is_in_flight {
            return None;
        }
        let endpoint = self.endpoint?;
        let policy = &endpoint.policy;
        let left = policy.max_attempts.saturating_sub(self.delivery.progress.used());
        let attempts = match left {
            1 => format!("1 of {} attempts is left", policy.max_attempts),
            left => format!("{left} of {} attempts are left", policy.max_attempts),
        };
        let given_up = match by {
            DeadlineSource::Age => {
                let judged = self.delivery.progress.max_age.unwrap_or(policy.max_age);
                format!("It is given up at {at:.0}, when max_age ({}) is over", judged.max(policy.max_age))
            }
            DeadlineSource::Hold => {
                format!(
                    "It is given up at {at:.0}, should it have had no attempt by then (--hold-max is {})",
                    self.hold_max
                )
            }
            DeadlineSource::Expiry => format!("It is given up at {at:.0}, when its event is over (expires_at)"),
        };
        let is_held = matches!(self.outlook.waiting_for, Some(WaitingFor::Pause | WaitingFor::Disabled));
        let moves = match by {
            DeadlineSource::Age if is_held => " That moves on for as long as the endpoint is held.",
            _ => "",
        };
        Some(format!("{given_up}; {attempts}.{moves}"))
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

    /// What a person can do about it.
    fn way_out(&self) -> Option<String> {
        let id = self.delivery.id;
        let endpoint = self.delivery.endpoint_id;
        let retry = format!("`posthaste deliveries retry {id}`");
        let replay = format!("`posthaste dead-letters replay {id}`");
        Some(match (self.delivery.state, self.outlook.waiting_for, self.delivery.cause) {
            (DeliveryState::Waiting, _, _) if self.outlook.is_in_flight => return None,
            (DeliveryState::Waiting, Some(WaitingFor::Due), _) if self.outlook.next_attempt_at > Some(self.now) => {
                format!(
                    "{retry} tries it now; a pause of the endpoint, or a Retry-After answered to another of its deliveries, would hold it longer."
                )
            }
            (DeliveryState::Waiting, Some(WaitingFor::Due), _) => return None,
            (DeliveryState::Waiting, Some(WaitingFor::Backpressure), _) => {
                format!("{retry} tries this one now, without waiting for that.")
            }
            (DeliveryState::Waiting, Some(WaitingFor::Breaker), _)
                if self.endpoint.is_some_and(|endpoint| endpoint.health.is_forced()) =>
            {
                format!("`posthaste endpoints close-breaker {endpoint}` lets all go on; {retry} sends this one alone.")
            }
            (DeliveryState::Waiting, Some(WaitingFor::Breaker), _) => {
                format!(
                    "{retry} makes it the next probe; `posthaste endpoints close-breaker {endpoint}` lets all go on."
                )
            }
            (DeliveryState::Waiting, Some(WaitingFor::Rate), _) => {
                "It starts in its turn; a larger rate lets more go per second.".to_owned()
            }
            (DeliveryState::Waiting, Some(WaitingFor::Slot), _) => {
                "It starts in its turn, as requests are answered; a larger max_in_flight lets more go at once."
                    .to_owned()
            }
            (DeliveryState::Waiting, Some(WaitingFor::Pause | WaitingFor::Disabled), _) => {
                format!("`posthaste endpoints resume {endpoint}` lets it go on.")
            }
            (DeliveryState::Waiting, Some(WaitingFor::Key), _) => match self.head {
                Some((head, true)) => format!(
                    "`posthaste dead-letters replay {head}` tries that one again, and `posthaste dead-letters discard {head}` lets the lane go on without it."
                ),
                Some((head, false)) => format!("`posthaste explain {head}` tells about that one."),
                None => return None,
            },
            (DeliveryState::Waiting, None, _) => return None,
            (DeliveryState::Delivered, _, _) if self.endpoint.is_none() => return None,
            (DeliveryState::Delivered, _, _) => format!("`posthaste deliveries replay {id}` sends it once more."),
            (DeliveryState::Cancelled, _, _) if self.endpoint.is_none() => return None,
            (DeliveryState::Cancelled, _, _) => format!("`posthaste deliveries replay {id}` tries it after all."),
            (DeliveryState::Dead, _, _) if self.endpoint.is_none() => {
                "Its endpoint was deleted, so it cannot be replayed.".to_owned()
            }
            (DeliveryState::Dead, _, Some(DeadCause::Damaged)) => {
                "It cannot be replayed: have its producer hand it in again under another id, and check the disk."
                    .to_owned()
            }
            (DeliveryState::Dead, _, Some(DeadCause::Poisoned)) => {
                format!("That is a fault of the gateway; once it is mended, {replay} tries it again.")
            }
            (DeliveryState::Dead, _, Some(DeadCause::Gone)) => format!(
                "If the receiver is to be called again, `posthaste endpoints resume {endpoint}`, then {replay}."
            ),
            (DeliveryState::Dead, _, Some(DeadCause::Refused)) if self.is_by_receivers_word() => {
                format!("Once the receiver wants it after all, {replay}.")
            }
            (DeliveryState::Dead, _, Some(DeadCause::Refused)) if self.is_without_answer() => {
                format!("Once its address may be called (--allow-egress, or another URL of the endpoint), {replay}.")
            }
            (DeliveryState::Dead, _, Some(DeadCause::Refused)) => format!(
                "Once the receiver takes it, {replay}; if its answer means something else there, change the endpoint's status_rules first."
            ),
            (DeliveryState::Dead, _, Some(DeadCause::Expired)) if self.delivery.expires_at.is_some() => {
                format!("If it matters all the same, {replay} sends it, also after its event is over.")
            }
            (DeliveryState::Dead, _, Some(DeadCause::Expired)) if self.delivery.progress.age_from.is_none() => {
                format!("Once its endpoint is called again, {replay} tries it with a fresh budget.")
            }
            (DeliveryState::Dead, _, _) => {
                format!("Once the receiver is well again, {replay} tries it with a fresh budget.")
            }
        })
    }

    /// A dead letter need not be kept, and its lane need not wait for it.
    fn last_way_out(&self) -> Option<String> {
        let is_dead = self.delivery.state == DeliveryState::Dead && self.endpoint.is_some();
        let lane = match self.delivery.seq {
            Some(_) => ", and its lane goes on without it",
            None => "",
        };
        is_dead.then(|| format!("`posthaste dead-letters discard {}` gives it up{lane}.", self.delivery.id))
    }

    fn is_without_answer(&self) -> bool {
        self.attempts.last().is_some_and(|last| last.error.is_some())
    }

    fn is_by_receivers_word(&self) -> bool {
        self.attempts.last().is_some_and(|last| last.decision.rule_of == RuleSource::Receiver)
    }
}

fn judged(attempt: &Attempt) -> String {
    let decision = &attempt.decision;
    let says = match decision.verdict {
        Verdict::Delivered => "deliver",
        Verdict::Retry => "retry",
        Verdict::Refused => "refuse",
        Verdict::Gone => "disable",
    };
    let rule = &decision.rule;
    let by_table = |table: StatusTable| {
        let row = table.rows().find(|row| row.on.to_string() == *rule);
        let why = row.map(|row| format!(": {}", row.note)).unwrap_or_default();
        format!("Rule {rule} of the {} table says {says}{why}.", table.as_str())
    };
    match decision.rule_of {
        RuleSource::Default => by_table(StatusTable::Default),
        RuleSource::Strict => by_table(StatusTable::Strict),
        RuleSource::Lenient => by_table(StatusTable::Lenient),
        RuleSource::Endpoint => format!("Rule {rule} of the endpoint's own status_rules says {says}."),
        RuleSource::Receiver => format!("The receiver asked for it in its answer ({rule}), which says {says}."),
    }
}

/// How long an attempt took.
fn took(attempt: &Attempt) -> String {
    match Duration::from_secs_f64(attempt.timings.total.max(0.0) / 1_000.0) {
        short if short < Duration::from_millis(1) => "less than 1ms".to_owned(),
        took => words(took),
    }
}

/// How the wait came about.
fn drawn(decision: &Decision) -> Option<String> {
    let ([lo, hi], draw, budget) = (decision.window_ms?, decision.draw?, decision.budget?);
    let span = |millis: u64| Span::millis(millis).words();
    let policy = match decision.policy.as_deref().and_then(|policy| policy.split_once(" (")) {
        Some((preset, _)) => format!("policy {preset}"),
        None => "endpoint's own policy".to_owned(),
    };
    let waits = format!("After failure {} of this budget the {policy} waits", budget.used);
    Some(match lo == hi {
        true => format!("{waits} {}.", span(lo)),
        false => {
            let gave = decision.drawn_ms.map(|drawn| format!(" gave {}", span(drawn))).unwrap_or_default();
            format!("{waits} between {} and {}; the draw of {draw:.3}{gave}.", span(lo), span(hi))
        }
    })
}

/// With a capital letter and a full stop.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => format!("{}{}.", first.to_uppercase(), letters.as_str()),
        None => String::new(),
    }
}

fn between(from: Timestamp, to: Timestamp) -> String {
    let millis = to.as_millisecond().saturating_sub(from.as_millisecond());
    words(Duration::from_millis(u64::try_from(millis).unwrap_or(0)))
}

#[cfg(test)]
mod tests;
