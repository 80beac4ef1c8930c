//! One attempt on the page of its delivery: request, answer, phases, decision.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use crate::dashboard::chart::phases::{PhaseTimes, phase_span};
use crate::dashboard::chart::{ChartTone, Svg};
use crate::dashboard::json_layout::{escaped_len, fitting, with_hidden_named};
use crate::dashboard::linked_sentence::LinkedSentence;
use crate::dashboard::shown_delivery::ShownFailure;
use crate::dashboard::words;
use crate::model::verdict::Verdict;

/// Most bytes of answers on one page, escaped; what is beyond can be downloaded.
const BODY_BYTES_MAX: usize = 12 * 1024;

/// An attempt, as the API answers it.
#[derive(Debug, Clone, Deserialize)]
pub struct ShownAttempt {
    /// Number of the attempt, from 1.
    pub number: u32,
    /// Time at which it began.
    pub started_at: Timestamp,
    /// How long it took, in milliseconds.
    pub duration_ms: f64,
    /// How long each phase took.
    pub timings: PhaseTimes,
    /// Where it went.
    pub url: Option<String>,
    /// Status of the answer.
    pub status: Option<u16>,
    /// Why there was no answer.
    pub error: Option<ShownFailure>,
    /// Secret that signed it.
    pub secret_id: Option<String>,
    /// Headers that were sent, masked.
    pub request_headers: BTreeMap<String, String>,
    /// Headers that were received.
    pub response_headers: BTreeMap<String, String>,
    /// Beginning of the body that was received.
    pub response_body: Option<String>,
    /// Whether that body went on.
    pub truncated: bool,
    /// What the answer means.
    pub verdict: Verdict,
    /// What was considered for what happened next.
    pub decision: ShownDecision,
}

/// A decision, as the API answers it.
#[derive(Debug, Clone, Deserialize)]
pub struct ShownDecision {
    /// Row of the table that matched.
    pub rule: String,
    /// Whose rule it is.
    pub rule_of: Option<String>,
    /// Window that the wait was drawn from, in milliseconds.
    pub window_ms: Option<Vec<u64>>,
    /// Random draw, from 0 to 1.
    pub draw: Option<f64>,
    /// Wait that the draw gave, in milliseconds.
    pub drawn_ms: Option<u64>,
    /// What lengthened, shortened or ended the wait.
    #[serde(default)]
    pub caps: Vec<String>,
    /// The `Retry-After` header as received.
    pub retry_after: Option<String>,
    /// Retry policy in force.
    pub policy: Option<String>,
    /// How much of the budget was used.
    pub budget: Option<ShownBudget>,
    /// Time of the next attempt, if there is one.
    pub next_attempt_at: Option<Timestamp>,
}

/// A budget of attempts, as the API answers it.
#[derive(Debug, Clone, Deserialize)]
pub struct ShownBudget {
    /// Attempts used, this one included.
    pub used: u32,
    /// Most attempts of the budget.
    pub max_attempts: u32,
    /// Time after which no attempt may start.
    pub give_up_at: Timestamp,
}

impl ShownAttempt {
    /// Returns when it ended.
    pub fn ended_at(&self) -> Timestamp {
        let lasted = SignedDuration::from_micros((self.duration_ms.max(0.0) * 1_000.0) as i64);
        self.started_at.checked_add(lasted).unwrap_or(self.started_at)
    }

    /// Whether anything was received behind the headers of its answer.
    pub fn has_body(&self) -> bool {
        self.response_body.as_deref().is_some_and(|body| !body.is_empty())
    }

    /// Returns what its colour means.
    pub fn tone(&self) -> ChartTone {
        match self.verdict {
            Verdict::Delivered => ChartTone::Good,
            Verdict::Retry => ChartTone::Watch,
            Verdict::Refused | Verdict::Gone => ChartTone::Bad,
        }
    }

    /// Returns the answer in a few words: `503 Service Unavailable`, `timeout`.
    pub fn answer(&self) -> String {
        match (self.status, &self.error) {
            (Some(status), _) => {
                let reason = http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
                reason.map_or_else(|| status.to_string(), |reason| format!("{status} {reason}"))
            }
            (None, Some(failure)) => failure.kind.clone(),
            (None, None) => "no answer".to_owned(),
        }
    }

    /// Returns the answer as short as it can be: `503`, `timeout`.
    pub fn short_answer(&self) -> String {
        match (self.status, &self.error) {
            (Some(status), _) => status.to_string(),
            (None, Some(failure)) => failure.kind.clone(),
            (None, None) => "no answer".to_owned(),
        }
    }
}

/// An attempt as the page shows it.
pub struct AttemptCard {
    /// The attempt itself.
    pub attempt: ShownAttempt,
    /// What came of it, and why.
    pub sentences: Vec<LinkedSentence>,
    /// Beginning of the body that was received, as far as the page has room.
    pub body: String,
    /// What is to be said about the rest of the body; empty for nothing.
    pub body_note: &'static str,
}

impl AttemptCard {
    /// Returns the class of its mark.
    pub fn mark(&self) -> &'static str {
        match self.attempt.tone() {
            ChartTone::Good => "mark-good",
            ChartTone::Watch => "mark-watch",
            _ => "mark-bad",
        }
    }

    /// Draws its phases.
    pub fn phase_bar(&self) -> Svg {
        self.attempt.timings.bar()
    }

    /// Returns its phases with their lengths in words.
    pub fn phases(&self) -> Vec<(&'static str, String)> {
        let phases = self.attempt.timings.phases();
        phases.into_iter().map(|phase| (phase.name, phase_span(phase.millis))).collect()
    }

    /// Returns how long it took.
    pub fn lasted(&self) -> String {
        words::span(self.attempt.duration_ms / 1_000.0)
    }

    /// Returns the rule that matched, and whose it is.
    pub fn rule(&self) -> String {
        let decision = &self.attempt.decision;
        match decision.rule_of.as_deref() {
            None | Some("default") => format!("{} of the default table", decision.rule),
            Some("endpoint") => format!("{} of the endpoint's own rules", decision.rule),
            Some("receiver") => format!("{}, the receiver's word", decision.rule),
            Some(table) => format!("{} of the table {table}", decision.rule),
        }
    }

    /// Returns the window of the wait, if one was drawn.
    pub fn window(&self) -> Option<String> {
        let [lo, hi] = self.attempt.decision.window_ms.as_deref()? else { return None };
        let span = |millis: &u64| words::span(*millis as f64 / 1_000.0);
        Some(format!("[{}, {}]", span(lo), span(hi)))
    }

    /// Returns the draw, and the wait that it gave.
    pub fn draw(&self) -> Option<String> {
        let draw = self.attempt.decision.draw?;
        let drawn = self.attempt.decision.drawn_ms.map(|millis| words::span(millis as f64 / 1_000.0));
        Some(drawn.map_or_else(|| format!("{draw:.3}"), |drawn| format!("{draw:.3} gave {drawn}")))
    }
}

/// Builds cards of attempts. `sentences` explains attempts by their number.
pub fn cards(attempts: Vec<ShownAttempt>, mut sentences: impl FnMut(u32) -> Vec<LinkedSentence>) -> Vec<AttemptCard> {
    let mut room = BODY_BYTES_MAX;
    let mut cards = Vec::new();
    for attempt in attempts {
        let received = attempt.response_body.as_deref().unwrap_or_default();
        let (body, is_cut) = fitting(&with_hidden_named(received), room);
        room = room.saturating_sub(escaped_len(&body));
        let body_note = match (attempt.response_body.is_some(), is_cut, attempt.truncated) {
            (false, _, _) if attempt.status.is_some() => "This gateway shows no answers (--redact-payloads).",
            (_, true, _) => "The page has no room for the rest; download it.",
            (_, _, true) => "The body went on; only its first 4 KiB are kept.",
            _ => "",
        };
        let sentences = sentences(attempt.number);
        cards.push(AttemptCard { attempt, sentences, body, body_note });
    }
    cards
}

#[cfg(test)]
pub mod tests {
    //! What the tests of the delivery's page share.

    use super::*;
    use serde_json::{Value, json};

    /// An attempt at this second that took 100 ms, with some fields changed.
    pub fn attempt(number: u32, second: i64, changes: Value) -> ShownAttempt {
        let at = Timestamp::from_second(1_700_000_000 + second).unwrap();
        let mut attempt = json!({"number": number, "started_at": at, "duration_ms": 100.0,
            "timings": {"total": 100.0, "first_byte": 90.0}, "status": 503, "request_headers": {},
            "response_headers": {}, "response_body": "", "truncated": false, "verdict": "retry",
            "decision": {"rule": "503"}});
        attempt.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        serde_json::from_value(attempt).unwrap()
    }

    #[test]
    fn answers_of_any_size_leave_the_page_small() {
        let huge = json!({"response_body": "<".repeat(4096)});
        let cards = cards((1..=4).map(|number| attempt(number, 0, huge.clone())).collect(), |_| Vec::new());
        let shown: usize = cards.iter().map(|card| escaped_len(&card.body)).sum();
        assert!(shown <= BODY_BYTES_MAX, "{shown}");
        assert!(cards.iter().all(|card| card.body_note.contains("download")));
    }

    #[test]
    fn an_answer_that_is_empty_has_no_body_to_download() {
        assert!(!attempt(1, 0, json!({})).has_body());
        assert!(!attempt(1, 0, json!({"response_body": null})).has_body());
        assert!(attempt(1, 0, json!({"response_body": " "})).has_body());
    }

    #[test]
    fn a_decision_is_told_in_words() {
        let decision = json!({"decision": {"rule": "503", "rule_of": "strict", "window_ms": [15_000, 30_000],
            "draw": 0.25, "drawn_ms": 18_750, "caps": []}, "truncated": true});
        let card = cards(vec![attempt(1, 0, decision)], |_| Vec::new()).remove(0);
        assert_eq!(card.rule(), "503 of the table strict");
        assert_eq!(card.window().unwrap(), "[15 s, 30 s]");
        assert_eq!(card.draw().unwrap(), "0.250 gave 19 s");
        assert_eq!((card.attempt.answer().as_str(), card.mark()), ("503 Service Unavailable", "mark-watch"));
        assert!(card.body_note.contains("4 KiB"));
        let unreachable = json!({"status": null, "error": {"kind": "timeout", "message": "m"}});
        assert_eq!(attempt(1, 0, unreachable).answer(), "timeout");
    }
}
