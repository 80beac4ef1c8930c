//! Says what a person can do about a delivery: retry, resume, replay or discard.

use super::ExplanationFacts;
use crate::model::delivery::{DeadCause, DeliveryState, WaitingFor};
use crate::model::status_rules::RuleSource;

impl ExplanationFacts<'_> {
    /// Says what a person can do to get it delivered.
    pub(super) fn next_step(&self) -> Option<String> {
        let id = self.delivery.id;
        match self.delivery.state {
            DeliveryState::Waiting => self.step_while_waiting(),
            DeliveryState::Dead => Some(self.step_after_death()),
            DeliveryState::Delivered | DeliveryState::Cancelled if self.endpoint.is_none() => None,
            DeliveryState::Delivered => Some(format!("`posthaste deliveries replay {id}` sends it once more.")),
            DeliveryState::Cancelled => Some(format!("`posthaste deliveries replay {id}` tries it after all.")),
        }
    }

    fn step_while_waiting(&self) -> Option<String> {
        if self.outlook.is_in_flight {
            return None;
        }
        let endpoint = self.delivery.endpoint_id;
        let retry = format!("`posthaste deliveries retry {}`", self.delivery.id);
        match self.outlook.waiting_for? {
            WaitingFor::Due if self.outlook.next_attempt_at > Some(self.now) => Some(format!(
                "{retry} tries it now; a pause of the endpoint, or a Retry-After answered to another of its deliveries, would hold it longer."
            )),
            WaitingFor::Due => None,
            WaitingFor::Backpressure => Some(format!("{retry} tries this one now, without waiting for that.")),
            WaitingFor::Breaker if self.is_breaker_forced() => Some(format!(
                "`posthaste endpoints close-breaker {endpoint}` lets all go on; {retry} sends this one alone."
            )),
            WaitingFor::Breaker => Some(format!(
                "{retry} makes it the next probe; `posthaste endpoints close-breaker {endpoint}` lets all go on."
            )),
            WaitingFor::Rate => Some("It starts in its turn; a larger rate lets more go per second.".to_owned()),
            WaitingFor::Slot => Some(
                "It starts in its turn, as requests are answered; a larger max_in_flight lets more go at once."
                    .to_owned(),
            ),
            WaitingFor::Pause | WaitingFor::Disabled => {
                Some(format!("`posthaste endpoints resume {endpoint}` lets it go on."))
            }
            WaitingFor::Key => self.head.map(|(head, is_dead)| {
                if is_dead {
                    format!(
                        "`posthaste dead-letters replay {head}` tries that one again, and `posthaste dead-letters discard {head}` lets the lane go on without it."
                    )
                } else {
                    format!("`posthaste explain {head}` tells about that one.")
                }
            }),
        }
    }

    fn step_after_death(&self) -> String {
        let endpoint = self.delivery.endpoint_id;
        let replay = format!("`posthaste dead-letters replay {}`", self.delivery.id);
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
                "If the receiver is to be called again, `posthaste endpoints resume {endpoint}`, then {replay}."
            ),
            Some(DeadCause::Refused) if self.is_receivers_decision() => {
                format!("Once the receiver wants it after all, {replay}.")
            }
            Some(DeadCause::Refused) if self.is_without_answer() => {
                format!("Once its address may be called (--allow-egress, or another URL of the endpoint), {replay}.")
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
        Some(format!("`posthaste dead-letters discard {}` gives it up{lane}.", self.delivery.id))
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
