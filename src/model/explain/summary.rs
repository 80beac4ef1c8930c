//! Composes the summary of an explanation: the delivery's state in one sentence.

use jiff::Timestamp;

use super::{ExplanationFacts, answer_words, words_between};
use crate::model::delivery::{Delivery, DeliveryState, WaitingFor};
use crate::model::endpoint_event::Actor;
use crate::model::named_enum::NamedEnum;

impl ExplanationFacts<'_> {
    /// Returns the delivery's state in one sentence.
    pub(super) fn summary(&self) -> String {
        let Delivery { state, cause, .. } = self.delivery;
        let finished_at = self.delivery.finished_at.unwrap_or(self.now);
        match (state, cause) {
            (DeliveryState::Waiting, _) => self.waiting_summary(),
            (DeliveryState::Delivered, _) => format!(
                "Delivered on attempt {} at {finished_at:.0}, {} after it was accepted.",
                self.delivery.progress.attempts,
                words_between(self.delivery.created_at, finished_at),
            ),
            (DeliveryState::Dead, Some(cause)) => {
                format!(
                    "Dead ({}) since {finished_at:.0}, after {}{}.",
                    cause.as_str(),
                    self.attempt_count(),
                    self.last_answer()
                )
            }
            (DeliveryState::Dead, None) => format!("Dead since {finished_at:.0}, after {}.", self.attempt_count()),
            (DeliveryState::Cancelled, Some(cause)) => format!(
                "Discarded at {finished_at:.0}; it had died ({}) after {}.",
                cause.as_str(),
                self.attempt_count()
            ),
            (DeliveryState::Cancelled, None) if self.endpoint.is_none() => {
                format!("Cancelled at {finished_at:.0} with its endpoint, after {}.", self.attempt_count())
            }
            (DeliveryState::Cancelled, None) => {
                format!("Cancelled at {finished_at:.0}, after {}.", self.attempt_count())
            }
        }
    }

    fn attempt_count(&self) -> String {
        match self.delivery.progress.attempts {
            0 => "no attempt at all".to_owned(),
            1 => "1 attempt".to_owned(),
            count => format!("{count} attempts"),
        }
    }

    fn last_answer(&self) -> String {
        match self.attempts {
            [] => String::new(),
            [only] => format!(", which {}", answer_words(only)),
            [.., last] => format!("; the last {}", answer_words(last)),
        }
    }

    fn waiting_summary(&self) -> String {
        let next = self.next_number();
        if self.outlook.is_in_flight {
            return format!("In flight: attempt {next} is being made, and its answer is awaited.");
        }
        let Some(waiting_for) = self.outlook.waiting_for else {
            return "Waiting.".to_owned();
        };
        let status = self.endpoint.map(|endpoint| &endpoint.status);
        let since = status.map(|status| format!(" since {:.0}", status.since)).unwrap_or_default();
        let reason = status.and_then(|status| status.reason.as_deref()).unwrap_or("no reason was given");
        let is_told =
            self.reader.sees_notes || status.is_some_and(|status| status.by.is_some_and(|by| by != Actor::Person));
        let reason = if is_told { reason } else { "by a person" };
        match waiting_for {
            WaitingFor::Due => self.waiting_until_due(),
            WaitingFor::Backpressure => self.waiting_for_backpressure(),
            WaitingFor::Breaker => self.waiting_for_breaker(),
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

    fn waiting_until_due(&self) -> String {
        let next = self.next_number();
        match (self.next_start(), self.gives_up_first()) {
            (Some(at), _) => format!("Waiting: attempt {next} starts at {at:.0}, in {}.", words_between(self.now, at)),
            (None, Some(gives_up)) => format!("Waiting: attempt {next} would start too late; {gives_up}."),
            (None, None) => format!("Waiting: attempt {next} is due and starts at any moment."),
        }
    }

    fn waiting_for_backpressure(&self) -> String {
        match self.next_start() {
            Some(at) => format!(
                "Waiting: the receiver asked to be left alone (Retry-After); attempt {} starts at {at:.0}, in {}.",
                self.next_number(),
                words_between(self.now, at)
            ),
            None => {
                let gives_up = self.gives_up_first().map(|gives_up| format!("; {gives_up}")).unwrap_or_default();
                format!("Waiting: the receiver asked to be left alone (Retry-After){gives_up}.")
            }
        }
    }

    fn waiting_for_breaker(&self) -> String {
        let by_person = self.endpoint.is_some_and(|endpoint| endpoint.health.is_opened_by_person());
        let reason = self.endpoint.and_then(|endpoint| endpoint.health.reason.as_deref());
        let is_noted = self.endpoint.is_some_and(|endpoint| endpoint.health.is_reason_of_person());
        let reason = reason.filter(|_| self.reader.sees_notes || !is_noted);
        // Without a note the reason says only what the sentence says already.
        let is_without_note = self.endpoint.is_some_and(|endpoint| endpoint.health.is_opened_without_note);
        let reason = reason.filter(|_| !(by_person && is_without_note));
        let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
        match (self.next_start(), self.gives_up_first()) {
            (Some(at), _) if by_person => format!(
                "Waiting: a person opened its endpoint's breaker{reason}; the next probe starts at {at:.0}, in {}.",
                words_between(self.now, at)
            ),
            (Some(at), _) => format!(
                "Waiting: its endpoint keeps failing, so the breaker is open{reason}; the next probe starts at {at:.0}, in {}.",
                words_between(self.now, at)
            ),
            (None, _) if self.is_breaker_forced() => {
                format!("Waiting: a person opened its endpoint's breaker{reason}.")
            }
            (None, Some(gives_up)) => format!("Waiting: its endpoint's breaker is open{reason}; {gives_up}."),
            (None, None) => {
                format!("Waiting: its endpoint's breaker is half-open{reason}; one delivery at a time is tried.")
            }
        }
    }

    /// Returns the number of the next attempt.
    fn next_number(&self) -> u32 {
        self.delivery.progress.attempts + 1
    }

    /// Returns the planned start of the next attempt, if it lies in the future.
    fn next_start(&self) -> Option<Timestamp> {
        self.outlook.next_attempt_at.filter(|at| *at > self.now)
    }

    /// Says that the delivery is given up before its next attempt, if it is.
    fn gives_up_first(&self) -> Option<String> {
        match (self.outlook.next_attempt_at, self.outlook.end) {
            (None, Some(end)) => Some(format!("it is given up before that, at {:.0}", end.at)),
            _ => None,
        }
    }
}
