//! Reports of an endpoint what its queue knows: its health, what is in flight,
//! and the room for one more request.

use std::collections::HashSet;

use jiff::Timestamp;

use super::EndpointQueues;
use crate::lifecycle::dispatch::queue::{QueueOwner, QueuePosition};
use crate::model::blocker::Capacity;
use crate::model::health::EndpointHealth;
use crate::model::id::{DeliveryId, EndpointId};

impl EndpointQueues {
    /// Whether a request for this delivery is open or being settled.
    pub fn is_in_flight(&self, endpoint: EndpointId, id: DeliveryId) -> bool {
        self.endpoints.get(&endpoint).is_some_and(|queue| queue.in_flight.contains(&id))
    }

    /// Returns the deliveries and lanes of an endpoint that are open or being
    /// settled.
    pub fn in_flight_of(&self, endpoint: EndpointId) -> (Vec<DeliveryId>, Vec<String>) {
        let Some(queue) = self.endpoints.get(&endpoint) else { return Default::default() };
        let mut deliveries: Vec<DeliveryId> = queue.in_flight.iter().copied().collect();
        let mut lanes: Vec<String> = queue.busy_lanes.keys().map(|lane| lane.to_string()).collect();
        // In one order, so that what is the same is equal.
        deliveries.sort_unstable();
        lanes.sort_unstable();
        (deliveries, lanes)
    }

    /// Returns the endpoints whose live status may have changed since the last
    /// call.
    pub fn take_touched(&mut self) -> HashSet<EndpointId> {
        self.touched.replace(HashSet::new()).unwrap_or_default()
    }

    /// Returns what this node could start for an endpoint now.
    pub fn capacity(&self, endpoint: EndpointId, now: Timestamp) -> Capacity {
        let Some(queue) = self.endpoints.get(&endpoint) else {
            return if self.has_room() { Capacity::Free } else { Capacity::Slot };
        };
        let own = queue.own_capacity(now);
        let own_rate = if let Capacity::Rate(until) = own { Some(until) } else { None };
        let tenants = self.scheduler.rate_ready_at(&queue.gate.tenant, now);
        match own_rate.max(tenants) {
            Some(until) => Capacity::Rate(until),
            None if own == Capacity::Slot || !self.has_room() || !queue.ready.is_empty() => Capacity::Slot,
            None if queue.position == QueuePosition::AtHost || self.scheduler.is_over_share(&queue.gate.tenant) => {
                Capacity::Slot
            }
            None => Capacity::Free,
        }
    }

    /// Returns the live health of an endpoint that this node owns.
    pub fn health(&self, endpoint: EndpointId) -> Option<&EndpointHealth> {
        self.endpoints
            .get(&endpoint)
            .filter(|queue| queue.owner != QueueOwner::AnotherNode)
            .map(|queue| &queue.breaker.health)
    }

    /// Whether a lane's one slot is taken.
    pub fn is_lane_busy(&self, endpoint: EndpointId, lane: &str) -> bool {
        self.endpoints.get(&endpoint).is_some_and(|queue| queue.busy_lanes.contains_key(lane))
    }
}
