//! Why is it not going? What a waiting delivery waits for, at this moment.

use super::Gateway;
use super::dispatch::limits::Hold;
use crate::model::delivery::{Delivery, Outlook, State, WaitingFor};
use crate::model::endpoint::EndpointState;

/// Tells a delivery's outlook.
pub fn outlook(gateway: &Gateway, delivery: &Delivery) -> Outlook {
    // A cancelled one may still be on the wire.
    let is_in_flight = gateway.dispatcher.is_in_flight(delivery.endpoint_id, delivery.id);
    if delivery.state != State::Waiting {
        return Outlook { is_in_flight, ..Outlook::default() };
    }
    let now = gateway.clock.now();
    let Some(endpoint) = gateway.store.any_endpoint(delivery.endpoint_id) else {
        return Outlook::default();
    };
    let limits = gateway.expiry.limits(&endpoint, delivery.expires_at, now);
    let end = delivery.progress.end(&limits);
    let quiet_until = endpoint.quiet_until.filter(|until| *until > now && !delivery.is_urgent);
    if is_in_flight {
        return Outlook { is_in_flight: true, end, ..Outlook::default() };
    }
    let health = gateway.dispatcher.health(&endpoint);
    let open_until = health.open_until().filter(|until| *until > now && !delivery.is_urgent);
    let is_open = health.open_until().is_some();
    let hold = gateway.dispatcher.hold(endpoint.id);
    let lane = delivery.lane.as_deref();
    let is_lane_busy = lane.is_some_and(|lane| gateway.dispatcher.is_lane_busy(endpoint.id, lane));
    let waiting_for = match endpoint.standing.state {
        EndpointState::Disabled => WaitingFor::Disabled,
        EndpointState::Paused => WaitingFor::Pause,
        EndpointState::Active if delivery.is_behind || is_lane_busy => WaitingFor::Key,
        EndpointState::Active if delivery.due_at > now => WaitingFor::Due,
        EndpointState::Active if quiet_until.is_some() => WaitingFor::Backpressure,
        // Half-open, one after the other is tried.
        EndpointState::Active if is_open && (open_until.is_some() || hold != Hold::Free) => WaitingFor::Breaker,
        EndpointState::Active => match hold {
            // Due, and nothing in its way: it starts this very moment.
            Hold::Free => WaitingFor::Due,
            Hold::Rate(_) => WaitingFor::Rate,
            Hold::Slot => WaitingFor::Slot,
        },
    };
    let soonest = delivery.due_at.max(now).max(quiet_until.unwrap_or(now));
    let next_attempt_at = match (waiting_for, hold) {
        (WaitingFor::Disabled | WaitingFor::Pause | WaitingFor::Key, _) => None,
        // Only a person knows.
        (WaitingFor::Breaker, _) if health.is_forced() => None,
        (WaitingFor::Breaker | WaitingFor::Backpressure | WaitingFor::Due, _) => {
            Some(soonest.max(open_until.unwrap_or(now)))
        }
        (WaitingFor::Rate, Hold::Rate(until)) => Some(soonest.max(until)),
        (WaitingFor::Rate | WaitingFor::Slot, _) => Some(soonest),
    };
    // What would come too late does not come.
    let next_attempt_at = next_attempt_at.filter(|at| end.is_none_or(|end| *at <= end.at));
    Outlook { is_in_flight: false, waiting_for: Some(waiting_for), next_attempt_at, end }
}
