//! Says what a waiting delivery waits for at this moment, and when its next
//! attempt can be made.
//!
//! Where several things hold a delivery, the first in the order of
//! `docs/delivery.md` is the answer.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;

use super::Gateway;
use super::live_status::{LiveStatus, LiveStatusQuery, live_statuses};
use crate::model::blocker::{Capacity, DeliveryConditions, EndpointConditions};
use crate::model::delivery::{Delivery, DeliveryOutlook, DeliveryState, WaitingFor, time_after};
use crate::model::id::EndpointId;

/// Time after its end for which the request of a cancelled delivery may still
/// be open.
const ON_THE_WIRE: Duration = Duration::from_secs(120);

/// Returns the outlook of a delivery.
pub async fn outlook(gateway: &Gateway, delivery: &Delivery) -> DeliveryOutlook {
    outlooks(gateway, std::slice::from_ref(delivery)).await.remove(0)
}

/// Returns the outlook of each delivery. What other nodes published is read once
/// for all of them.
pub async fn outlooks(gateway: &Gateway, deliveries: &[Delivery]) -> Vec<DeliveryOutlook> {
    let now = gateway.clock.now();
    let mut about: HashMap<EndpointId, LiveStatusQuery> = HashMap::new();
    let may_be_open = |delivery: &&Delivery| match delivery.state {
        DeliveryState::Waiting => true,
        DeliveryState::Cancelled => delivery.finished_at.is_some_and(|at| time_after(at, ON_THE_WIRE) > now),
        DeliveryState::Delivered | DeliveryState::Dead => false,
    };
    for delivery in deliveries.iter().filter(may_be_open) {
        let endpoint = delivery.endpoint_id;
        let about = about.entry(endpoint).or_insert_with(|| LiveStatusQuery::endpoint(&delivery.tenant, endpoint));
        about.deliveries.push(delivery.id);
        about.lanes.extend(delivery.lane.clone());
    }
    let statuses = live_statuses(gateway, about.into_values().collect()).await;
    deliveries.iter().map(|delivery| outlook_of(gateway, delivery, statuses.get(&delivery.endpoint_id))).collect()
}

fn outlook_of(gateway: &Gateway, delivery: &Delivery, status: Option<&LiveStatus>) -> DeliveryOutlook {
    // A cancelled one may still be on the wire.
    let is_in_flight = status.is_some_and(|status| status.in_flight.contains(&delivery.id));
    if delivery.state != DeliveryState::Waiting {
        return DeliveryOutlook { is_in_flight, ..DeliveryOutlook::default() };
    }
    let now = gateway.clock.now();
    let Some(endpoint) = gateway.store.any_endpoint(delivery.endpoint_id) else {
        return DeliveryOutlook::default();
    };
    let limits = gateway.expiry.limits(&endpoint, delivery.expires_at, now);
    let end = delivery.progress.deadline(&limits);
    if is_in_flight {
        return DeliveryOutlook { is_in_flight: true, end, ..DeliveryOutlook::default() };
    }
    let health = status.and_then(|status| status.health.as_ref()).unwrap_or(&endpoint.health);
    let capacity = status.map_or(Capacity::Free, |status| status.capacity);
    let is_busy = |lane: &String| status.is_some_and(|status| status.busy_lanes.contains(lane));
    let is_behind = delivery.is_behind || delivery.lane.as_ref().is_some_and(is_busy);
    let (state, backpressure_until) = (endpoint.status.state, endpoint.backpressure_until);
    let conditions = EndpointConditions { state, backpressure_until, health, capacity };
    let (due_at, is_urgent) = (delivery.due_at, delivery.is_urgent);
    let blocker = conditions.blocker(DeliveryConditions { due_at, is_urgent, is_behind }, now);
    // With nothing in its way it starts this very moment.
    let waiting_for = blocker.unwrap_or(WaitingFor::Due);
    let next_attempt_at = next_attempt_at(waiting_for, &conditions, delivery, now);
    // What would come too late does not come.
    let next_attempt_at = next_attempt_at.filter(|at| end.is_none_or(|end| *at <= end.at));
    DeliveryOutlook { is_in_flight: false, waiting_for: Some(waiting_for), next_attempt_at, end }
}

/// Returns when the next attempt can be made, as far as that is known.
fn next_attempt_at(
    waiting_for: WaitingFor,
    endpoint: &EndpointConditions<'_>,
    delivery: &Delivery,
    now: Timestamp,
) -> Option<Timestamp> {
    let only_urgent_until = endpoint.only_urgent_until().filter(|_| !delivery.is_urgent);
    let soonest = delivery.due_at.max(now).max(only_urgent_until.unwrap_or(now));
    match (waiting_for, endpoint.capacity) {
        (WaitingFor::Disabled | WaitingFor::Pause | WaitingFor::Key, _) => None,
        // Only the person who opened the breaker knows.
        (WaitingFor::Breaker, _) if endpoint.health.is_forced() => None,
        (WaitingFor::Rate, Capacity::Rate(until)) => Some(soonest.max(until)),
        (WaitingFor::Breaker | WaitingFor::Backpressure | WaitingFor::Due | WaitingFor::Rate | WaitingFor::Slot, _) => {
            Some(soonest)
        }
    }
}
