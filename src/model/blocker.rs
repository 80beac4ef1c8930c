//! Decides what holds a delivery back: the one answer that the dispatcher,
//! `waiting_for`, lists, `explain` and the lag of a node all use.
//!
//! The dispatcher starts a claim exactly when nothing here holds it back and it is
//! its turn. Whose turn it is, between tenants and at a host, is decided in
//! `lifecycle::dispatch`; who asks elsewhere learns of it as [`Capacity`].

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::delivery::WaitingFor;
use super::endpoint::EndpointState;
use super::health::{BreakerState, EndpointHealth};

/// What a node could start for an endpoint at this moment, apart from the
/// endpoint's own state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capacity {
    /// One more request may start.
    Free,
    /// The rate of the endpoint or its tenant is used up until this time.
    Rate(Timestamp),
    /// No slot is free, of the endpoint, its host, its tenant or the node.
    Slot,
}

/// What decides whether an endpoint can be called.
#[derive(Debug, Clone, Copy)]
pub struct EndpointConditions<'a> {
    /// Whether the endpoint is active, paused or disabled.
    pub state: EndpointState,
    /// Time until which the receiver asked for no further requests.
    pub backpressure_until: Option<Timestamp>,
    /// State of the endpoint's circuit breaker.
    pub health: &'a EndpointHealth,
    /// Room for one more request.
    pub capacity: Capacity,
}

/// What decides whether one delivery can be attempted, if its endpoint can be
/// called.
#[derive(Debug, Clone, Copy)]
pub struct DeliveryConditions {
    /// Due time of the delivery.
    pub due_at: Timestamp,
    /// Whether a person asked for the attempt: it waits for no backpressure
    /// and for no open breaker.
    pub is_urgent: bool,
    /// Whether a predecessor in its lane is not finished.
    pub is_behind: bool,
}

impl EndpointConditions<'_> {
    /// Returns what holds the delivery back, or nothing if it can start now. If
    /// several things do, it is the first in the order of [`WaitingFor`].
    pub fn blocker(&self, delivery: DeliveryConditions, now: Timestamp) -> Option<WaitingFor> {
        match self.state {
            EndpointState::Disabled => return Some(WaitingFor::Disabled),
            EndpointState::Paused => return Some(WaitingFor::Pause),
            EndpointState::Active => {}
        }
        if delivery.is_behind {
            return Some(WaitingFor::Key);
        }
        if delivery.due_at > now {
            return Some(WaitingFor::Due);
        }
        let is_ahead = |until: Option<Timestamp>| until.is_some_and(|until| until > now) && !delivery.is_urgent;
        if is_ahead(self.backpressure_until) {
            return Some(WaitingFor::Backpressure);
        }
        // A half-open breaker lets one probe go after the other.
        let open_until = self.health.open_until();
        if is_ahead(open_until) || (open_until.is_some() && self.capacity != Capacity::Free) {
            return Some(WaitingFor::Breaker);
        }
        match self.capacity {
            Capacity::Free => None,
            Capacity::Rate(_) => Some(WaitingFor::Rate),
            Capacity::Slot => Some(WaitingFor::Slot),
        }
    }

    /// Returns the time before which backpressure or the breaker hold back all but
    /// urgent deliveries.
    pub fn only_urgent_until(&self) -> Option<Timestamp> {
        self.backpressure_until.max(self.health.open_until())
    }

    /// Returns what explains that due deliveries of this endpoint have waited,
    /// or nothing if only the node's own speed does. It differs from
    /// [`blocker`](Self::blocker), which rules on this moment, because a lag
    /// has built up over many moments:
    ///
    /// - A breaker that is not closed explains all that it lets wait, also at
    ///   the moment in which the next probe could start.
    /// - A rate explains it where the deliveries have just waited for one
    ///   (`is_at_rate`): between two starts there is always a moment in which
    ///   the rate would allow one.
    /// - A full cap explains nothing: a faster node would have emptied it.
    pub fn blocker_of_lag(&self, is_at_rate: bool, now: Timestamp) -> Option<WaitingFor> {
        match self.blocker(DeliveryConditions { due_at: now, is_urgent: false, is_behind: false }, now) {
            None | Some(WaitingFor::Rate | WaitingFor::Slot) => {}
            blocker => return blocker,
        }
        let is_limited = match self.health.breaker(now) {
            BreakerState::Open | BreakerState::HalfOpen => true,
            BreakerState::Ramp => self.capacity != Capacity::Free,
            BreakerState::Closed => false,
        };
        if is_limited { Some(WaitingFor::Breaker) } else { is_at_rate.then_some(WaitingFor::Rate) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::health::BreakerPhase;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    #[test]
    fn of_several_things_that_hold_a_delivery_the_first_in_order_is_named() {
        let open =
            |until| EndpointHealth { phase: BreakerPhase::Open { until: Some(until) }, ..EndpointHealth::default() };
        let health = open(at(30));
        let mut endpoint = EndpointConditions {
            state: EndpointState::Disabled,
            backpressure_until: Some(at(20)),
            health: &health,
            capacity: Capacity::Rate(at(5)),
        };
        let mut delivery = DeliveryConditions { due_at: at(10), is_urgent: false, is_behind: true };
        let mut named = Vec::new();
        let mut note = |endpoint: &EndpointConditions<'_>, delivery| named.push(endpoint.blocker(delivery, at(0)));
        note(&endpoint, delivery);
        endpoint.state = EndpointState::Paused;
        note(&endpoint, delivery);
        endpoint.state = EndpointState::Active;
        note(&endpoint, delivery);
        delivery.is_behind = false;
        note(&endpoint, delivery);
        delivery.due_at = at(0);
        note(&endpoint, delivery);
        endpoint.backpressure_until = Some(at(0));
        note(&endpoint, delivery);
        let closed = EndpointHealth::default();
        endpoint.health = &closed;
        note(&endpoint, delivery);
        endpoint.capacity = Capacity::Slot;
        note(&endpoint, delivery);
        endpoint.capacity = Capacity::Free;
        note(&endpoint, delivery);
        use WaitingFor::{Backpressure, Breaker, Disabled, Due, Key, Pause, Rate, Slot};
        let expected = [Disabled, Pause, Key, Due, Backpressure, Breaker, Rate, Slot].map(Some);
        assert_eq!(named[..8], expected);
        assert_eq!(named[8], None);
    }

    #[test]
    fn an_urgent_delivery_waits_for_no_receiver_and_a_half_open_breaker_for_its_probe() {
        let health = EndpointHealth { phase: BreakerPhase::Open { until: Some(at(30)) }, ..EndpointHealth::default() };
        let quiet = EndpointConditions {
            state: EndpointState::Active,
            backpressure_until: Some(at(20)),
            health: &health,
            capacity: Capacity::Free,
        };
        let delivery = DeliveryConditions { due_at: at(0), is_urgent: true, is_behind: false };
        assert_eq!(quiet.blocker(delivery, at(0)), None);
        let usual = DeliveryConditions { is_urgent: false, ..delivery };
        assert_eq!(quiet.blocker(usual, at(0)), Some(WaitingFor::Backpressure));
        assert_eq!(quiet.blocker(usual, at(25)), Some(WaitingFor::Breaker));
        assert_eq!(quiet.blocker(usual, at(31)), None, "it is the probe");
        let probing = EndpointConditions { capacity: Capacity::Slot, ..quiet };
        assert_eq!(probing.blocker(usual, at(31)), Some(WaitingFor::Breaker), "a probe is open");
        assert_eq!(probing.blocker(delivery, at(31)), Some(WaitingFor::Breaker));
    }

    #[test]
    fn a_lag_is_explained_by_a_breaker_between_probes_by_a_rate_between_starts_and_by_no_full_cap() {
        let half_open =
            EndpointHealth { phase: BreakerPhase::Open { until: Some(at(0)) }, ..EndpointHealth::default() };
        let closed = EndpointHealth::default();
        let endpoint = EndpointConditions {
            state: EndpointState::Active,
            backpressure_until: None,
            health: &half_open,
            capacity: Capacity::Free,
        };
        let due = DeliveryConditions { due_at: at(1), is_urgent: false, is_behind: false };
        assert_eq!(endpoint.blocker(due, at(1)), None, "the next probe could start");
        assert_eq!(endpoint.blocker_of_lag(false, at(1)), Some(WaitingFor::Breaker));
        let endpoint = EndpointConditions { health: &closed, ..endpoint };
        assert_eq!(endpoint.blocker_of_lag(true, at(1)), Some(WaitingFor::Rate), "it has just waited for its rate");
        let full = EndpointConditions { capacity: Capacity::Slot, ..endpoint };
        assert_eq!(full.blocker(due, at(1)), Some(WaitingFor::Slot));
        assert_eq!(full.blocker_of_lag(false, at(1)), None);
        let at_rate = EndpointConditions { capacity: Capacity::Rate(at(2)), ..endpoint };
        assert_eq!(at_rate.blocker_of_lag(false, at(1)), None, "whoever asks for blockers but the rate says so");
        let paused = EndpointConditions { state: EndpointState::Paused, ..full };
        assert_eq!(paused.blocker_of_lag(true, at(1)), Some(WaitingFor::Pause));
    }
}
