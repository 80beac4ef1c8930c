//! A delivery as lists and pages show it: its state as a mark, its last answer in
//! words.

use jiff::Timestamp;
use serde::Deserialize;

use super::words;
use crate::model::delivery::{DeadCause, DeliveryState, WaitingFor};
use crate::model::named_enum::NamedEnum;

/// A delivery, as the API answers it.
#[derive(Debug, Clone, Deserialize)]
pub struct ShownDelivery {
    /// Id of the delivery.
    pub id: String,
    /// Tenant that it belongs to.
    pub tenant: String,
    /// Event that it carries.
    pub event_id: String,
    /// Type of that event.
    pub event_type: String,
    /// Endpoint that it goes to.
    pub endpoint_id: String,
    /// What that endpoint is called; empty if it is not known, as of one that was deleted.
    #[serde(skip)]
    pub endpoint_name: String,
    /// Key of the event.
    pub key: Option<String>,
    /// Place in its lane.
    pub seq: Option<u64>,
    /// Format of its body.
    pub format: String,
    /// State of the delivery.
    pub state: DeliveryState,
    /// What it waits for.
    pub waiting_for: Option<WaitingFor>,
    /// Whether a request for it is open.
    pub in_flight: bool,
    /// Number of attempts that were made.
    pub attempts: u32,
    /// Time of its creation.
    pub created_at: Timestamp,
    /// Time at which its event is over.
    pub expires_at: Option<Timestamp>,
    /// Time of its next attempt.
    pub next_attempt_at: Option<Timestamp>,
    /// Time after which no attempt starts.
    pub give_up_at: Option<Timestamp>,
    /// Time at which it was delivered, died or was cancelled.
    pub finished_at: Option<Timestamp>,
    /// Status of the last answer.
    pub last_status: Option<u16>,
    /// Failure of the last attempt, if it had no answer.
    pub last_error: Option<ShownFailure>,
    /// Why it is dead.
    pub cause: Option<DeadCause>,
    /// SHA-256 of its body.
    pub body_sha256: Option<String>,
}

/// Why an attempt had no answer.
#[derive(Debug, Clone, Deserialize)]
pub struct ShownFailure {
    /// Kind of the failure.
    pub kind: String,
    /// Sentence about it.
    pub message: String,
}

/// A page of a list of the API.
#[derive(Debug, Deserialize)]
pub struct ListedPage<T> {
    /// What was found.
    pub data: Vec<T>,
    /// Cursor of the next page.
    pub next: Option<String>,
    /// Time back to which was looked, if that is less than all.
    pub looked_back_to: Option<Timestamp>,
}

impl ShownDelivery {
    /// Returns the class of its mark.
    pub fn mark(&self) -> &'static str {
        if self.is_held_up() { "mark-watch" } else { state_mark(self.state) }
    }

    /// Whether it waits because something is wrong, and not only for its turn.
    pub fn is_held_up(&self) -> bool {
        self.state == DeliveryState::Waiting
            && self.waiting_for.is_some_and(|waiting_for| match waiting_for {
                WaitingFor::Disabled | WaitingFor::Pause | WaitingFor::Breaker | WaitingFor::Backpressure => true,
                WaitingFor::Due => self.attempts > 0,
                WaitingFor::Key | WaitingFor::Rate | WaitingFor::Slot => false,
            })
    }

    /// Returns its state in words: `waiting for pause`, `dead (refused)`.
    pub fn state_words(&self) -> String {
        match (self.state, self.cause, self.waiting_for) {
            (DeliveryState::Dead, Some(cause), _) => format!("dead ({})", cause.as_str()),
            (DeliveryState::Cancelled, Some(_), _) => "cancelled (discarded)".to_owned(),
            (DeliveryState::Waiting, _, _) if self.in_flight => "in flight".to_owned(),
            (DeliveryState::Waiting, _, Some(waiting_for)) => format!("waiting for {}", waiting_for.as_str()),
            (state, _, _) => state.as_str().to_owned(),
        }
    }

    /// Returns the last answer: a status, or the kind of a failure.
    pub fn answer(&self) -> String {
        match (self.last_status, &self.last_error) {
            (Some(status), _) => status.to_string(),
            (None, Some(failure)) => failure.kind.clone(),
            (None, None) => "–".to_owned(),
        }
    }

    /// Returns what its endpoint is called, or else the endpoint's id.
    pub fn endpoint_words(&self) -> &str {
        if self.endpoint_name.is_empty() { &self.endpoint_id } else { &self.endpoint_name }
    }

    /// Returns its key, cut so that a row stays a row.
    pub fn short_key(&self) -> Option<String> {
        self.key.as_deref().map(words::short_key)
    }

    /// Whether it still waits.
    pub fn is_waiting(&self) -> bool {
        self.state == DeliveryState::Waiting
    }

    /// Whether it is a dead letter.
    pub fn is_dead(&self) -> bool {
        self.state == DeliveryState::Dead
    }
}

/// Returns the word before the time at which a delivery ended.
pub fn end_label(state: &DeliveryState) -> &'static str {
    match state {
        DeliveryState::Delivered => "Delivered",
        DeliveryState::Dead => "Died",
        DeliveryState::Cancelled => "Cancelled",
        DeliveryState::Waiting => "Waits",
    }
}

/// Returns the class of the mark of a state.
pub fn state_mark(state: DeliveryState) -> &'static str {
    match state {
        DeliveryState::Waiting => "mark-calm",
        DeliveryState::Delivered => "mark-good",
        DeliveryState::Dead => "mark-bad",
        DeliveryState::Cancelled => "mark-off",
    }
}

/// Returns a sentence about what holds a waiting delivery, in plain words.
pub fn waiting_sentence(waiting_for: &WaitingFor) -> &'static str {
    match waiting_for {
        WaitingFor::Disabled => "Its endpoint is disabled: the receiver said that it is gone.",
        WaitingFor::Pause => "Its endpoint is paused.",
        WaitingFor::Key => "Others of its lane go first.",
        WaitingFor::Due => "Its next attempt has a time.",
        WaitingFor::Backpressure => "The receiver asked to be left alone (Retry-After).",
        WaitingFor::Breaker => "The breaker of its endpoint is open: the receiver keeps failing.",
        WaitingFor::Rate => "The rate of its endpoint is used up for the moment.",
        WaitingFor::Slot => "All request slots of its endpoint are taken.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(changes: serde_json::Value) -> ShownDelivery {
        let mut delivery = json!({"id": "dlv_1", "tenant": "t", "event_id": "e", "event_type": "a", "endpoint_id": "ep_1",
            "format": "envelope", "state": "waiting", "in_flight": false, "attempts": 1, "created_at": "2026-11-15T10:00:00Z"});
        delivery.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        serde_json::from_value(delivery).unwrap()
    }

    #[test]
    fn a_mark_has_a_word_and_a_tone_for_every_state_and_wait() {
        for (changes, words, mark) in [
            (json!({"state": "delivered"}), "delivered", "mark-good"),
            (json!({"state": "dead", "cause": "gone"}), "dead (gone)", "mark-bad"),
            (json!({"state": "cancelled"}), "cancelled", "mark-off"),
            (json!({"state": "cancelled", "cause": "gone"}), "cancelled (discarded)", "mark-off"),
            (json!({"in_flight": true}), "in flight", "mark-calm"),
            (json!({"waiting_for": "due"}), "waiting for due", "mark-watch"),
            (json!({"waiting_for": "due", "attempts": 0}), "waiting for due", "mark-calm"),
            (json!({"waiting_for": "key"}), "waiting for key", "mark-calm"),
            (json!({"waiting_for": "pause"}), "waiting for pause", "mark-watch"),
        ] {
            let delivery = shown(changes);
            assert_eq!((delivery.state_words().as_str(), delivery.mark()), (words, mark));
        }
    }

    #[test]
    fn the_last_answer_is_a_status_or_a_failure() {
        assert_eq!(shown(json!({"last_status": 503})).answer(), "503");
        assert_eq!(shown(json!({"last_error": {"kind": "timeout", "message": "m"}})).answer(), "timeout");
        assert_eq!(shown(json!({})).answer(), "–");
    }
}
