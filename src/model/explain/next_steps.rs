//! Says what a person can do about a delivery: retry, resume, replay or discard.

use std::fmt::Display;

use super::ExplanationFacts;
use crate::model::delivery::{DeadCause, DeliveryState, WaitingFor};
use crate::model::status_rules::RuleSource;
use crate::model::suggested_command::suggested_command;

impl ExplanationFacts<'_> {
    /// Says what a person can do to get it delivered.
    pub(super) fn next_step(&self) -> Option<String> {
        let id = self.delivery.id;
        match self.delivery.state {
            DeliveryState::Waiting => self.step_while_waiting(),
            DeliveryState::Dead => Some(self.step_after_death()),
            DeliveryState::Delivered | DeliveryState::Cancelled if self.endpoint.is_none() => None,
            DeliveryState::Delivered => Some(format!("{} sends it once more.", self.command("deliveries replay", id))),
            DeliveryState::Cancelled => Some(format!("{} tries it after all.", self.command("deliveries replay", id))),
        }
    }

    fn step_while_waiting(&self) -> Option<String> {
        if self.outlook.is_in_flight {
            return None;
        }
        let endpoint = self.delivery.endpoint_id;
        let retry = self.command("deliveries retry", self.delivery.id);
        let close_breaker = || self.command("endpoints close-breaker", endpoint);
        match self.outlook.waiting_for? {
            WaitingFor::Due if self.outlook.next_attempt_at > Some(self.now) => Some(format!(
                "{retry} tries it now; a pause of the endpoint, or a Retry-After answered to another of its deliveries, would hold it longer."
            )),
            WaitingFor::Due => None,
            WaitingFor::Backpressure => Some(format!("{retry} tries this one now, without waiting for that.")),
            WaitingFor::Breaker if self.is_breaker_forced() => {
                Some(format!("{} lets all go on; {retry} sends this one alone.", close_breaker()))
            }
            WaitingFor::Breaker => {
                Some(format!("{retry} makes it the next probe; {} lets all go on.", close_breaker()))
            }
            WaitingFor::Rate => Some("It starts in its turn; a larger rate lets more go per second.".to_owned()),
            WaitingFor::Slot => Some(
                "It starts in its turn, as requests are answered; a larger max_in_flight lets more go at once."
                    .to_owned(),
            ),
            WaitingFor::Pause | WaitingFor::Disabled => {
                Some(format!("{} lets it go on.", self.command("endpoints resume", endpoint)))
            }
            WaitingFor::Key => self.head.map(|(head, is_dead)| {
                if is_dead {
                    format!(
                        "{} tries that one again, and {} lets the lane go on without it.",
                        self.command("dead-letters replay", head),
                        self.command("dead-letters discard", head)
                    )
                } else {
                    format!("{} explains that one.", self.command("explain", head))
                }
            }),
        }
    }

    fn step_after_death(&self) -> String {
        let endpoint = self.delivery.endpoint_id;
        let replay = self.command("dead-letters replay", self.delivery.id);
        match self.delivery.cause {
            _ if self.endpoint.is_none() => "Its endpoint was deleted, so it cannot be replayed.".to_owned(),
            Some(DeadCause::Damaged) => {
                "It cannot be replayed: have its producer hand it in again under another id, and check the disk."
                    .to_owned()
            }
            Some(DeadCause::Poisoned) => {
                format!("That is a fault of the gateway; once it is mended, {replay} tries it again.")
            }
            Some(DeadCause::Gone) => format!(
                "If the receiver is to be called again, {}, then {replay}.",
                self.command("endpoints resume", endpoint)
            ),
            Some(DeadCause::Refused) if self.is_receivers_decision() => {
                format!("Once the receiver wants it after all, {replay}.")
            }
            Some(DeadCause::Refused) if self.is_without_answer() => {
                // The attempt's own sentences say what opens its target, if anything does.
                format!("Once it may be called, or the endpoint has another URL, {replay}.")
            }
            Some(DeadCause::Refused) => format!(
                "Once the receiver takes it, {replay}; if its answer means something else there, change the endpoint's status_rules first."
            ),
            Some(DeadCause::Expired) if self.delivery.expires_at.is_some() => {
                format!("If it matters all the same, {replay} sends it, also after its event is over.")
            }
            Some(DeadCause::Expired) if self.delivery.progress.age_from.is_none() => {
                format!("Once its endpoint is called again, {replay} tries it with a fresh budget.")
            }
            Some(DeadCause::Expired | DeadCause::Exhausted) | None => {
                format!("Once the receiver is well again, {replay} tries it with a fresh budget.")
            }
        }
    }

    /// Says how a dead letter is given up, which lets its lane go on.
    pub(super) fn discard_step(&self) -> Option<String> {
        if self.delivery.state != DeliveryState::Dead || self.endpoint.is_none() {
            return None;
        }
        let lane = if self.delivery.seq.is_some() { ", and its lane goes on without it" } else { "" };
        Some(format!("{} gives it up{lane}.", self.command("dead-letters discard", self.delivery.id)))
    }

    /// Returns a command about something of the delivery's tenant, in backticks.
    fn command(&self, verb: &str, id: impl Display) -> String {
        format!("`{}`", suggested_command(self.delivery.tenant.as_str(), verb, &id.to_string()))
    }

    /// Whether a person opened the endpoint's breaker.
    pub(super) fn is_breaker_forced(&self) -> bool {
        self.endpoint.is_some_and(|endpoint| endpoint.health.is_forced())
    }

    /// Whether the last attempt had no answer.
    fn is_without_answer(&self) -> bool {
        self.attempts.last().is_some_and(|last| last.error.is_some())
    }

    /// Whether the receiver itself asked for the last verdict, in a response header.
    fn is_receivers_decision(&self) -> bool {
        self.attempts.last().is_some_and(|last| last.decision.rule_of == RuleSource::Receiver)
    }
}
