//! Answers questions about the dispatcher's state at this moment.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::Dispatcher;
use super::lag::Lag;
use crate::model::blocker::Capacity;
use crate::model::endpoint::Endpoint;
use crate::model::health::EndpointHealth;
use crate::model::id::{DeliveryId, EndpointId, TenantId};

impl Dispatcher {
    /// Returns how many deliveries all jobs may release per second on this node, if its
    /// processors are overloaded.
    pub fn jobs_per_second(&self) -> Option<f64> {
        self.queues().jobs_per_second()
    }

    /// Whether a request for this delivery is open.
    pub fn is_in_flight(&self, endpoint: EndpointId, id: DeliveryId) -> bool {
        self.queues().is_in_flight(endpoint, id)
    }

    /// Returns the deliveries and lanes of an endpoint that are open or being
    /// settled.
    pub fn in_flight_of(&self, endpoint: EndpointId) -> (Vec<DeliveryId>, Vec<String>) {
        self.queues().in_flight_of(endpoint)
    }

    /// Returns the endpoints whose live status may have changed since the last
    /// call.
    pub fn take_touched(&self) -> HashSet<EndpointId> {
        self.queues().take_touched()
    }

    /// Returns what this node could start for an endpoint now.
    pub fn capacity(&self, endpoint: EndpointId) -> Capacity {
        self.queues().capacity(endpoint, self.now())
    }

    /// Returns the health of an endpoint at this moment.
    pub fn health(&self, endpoint: &Endpoint) -> EndpointHealth {
        let live = self.queues().health(endpoint.id).cloned();
        // What a person just wrote may be newer than what the breaker has observed.
        live.filter(|live| !endpoint.health.is_after(live)).unwrap_or_else(|| endpoint.health.clone())
    }

    /// Returns for how long an accept of a tenant is to be held, because its
    /// deliveries lag for want of speed of this node or another one.
    pub fn accept_delay(&self, tenant: &TenantId) -> Duration {
        self.queues().accept_delay(tenant, self.now())
    }

    /// Returns for how long this node holds accepts, by tenant.
    pub fn accept_delays(&self) -> Vec<(TenantId, Duration)> {
        self.queues().accept_delays(self.now())
    }

    /// Other nodes hold accepts for so long, by tenant, and so does this one.
    pub fn delay_accepts(&self, delays: HashMap<TenantId, Duration>) {
        self.queues().delay_accepts(delays);
    }

    /// Counts deliveries of a tenant that other nodes accepted for endpoints of this one.
    pub fn accepted_elsewhere(&self, tenant: &TenantId, count: u64) {
        self.queues().accepted_elsewhere(tenant, count, self.now());
    }

    /// Returns how far behind this node is.
    pub fn lag(&self) -> Lag {
        let now = self.now();
        self.queues().oldest(now).lag(now)
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> usize {
        self.shared.limits.slots
    }

    /// Returns the number of claims in flight.
    pub fn in_flight(&self) -> usize {
        self.queues().in_flight()
    }

    /// Whether a lane's one slot is taken.
    pub fn is_lane_busy(&self, endpoint: EndpointId, lane: &str) -> bool {
        self.queues().is_lane_busy(endpoint, lane)
    }
}
