//! Starts claims: takes the endpoint whose turn it is and checks every limit.

use std::time::Duration;

use jiff::Timestamp;

use super::{EndpointQueues, QueuePosition, cost};
use crate::model::id::EndpointId;
use crate::model::shard::Lease;
use crate::store::Claim;

/// Most bytes of data in flight; one delivery may always start.
const FLIGHT_BYTES_MAX: usize = 64 * 1_024 * 1_024;
/// Number of slots below which a node keeps none free for endpoints that answer.
const SPARE_SLOTS: usize = 64;

impl EndpointQueues {
    /// Returns the next claim to start and the lease to start it under, or
    /// nothing if none can start. `lease_left` is the time left of the lease, if
    /// it ends; `weight_in_use` the sum of the weights of all tenants.
    pub fn take_next(
        &mut self,
        now: Timestamp,
        lease_left: Option<Duration>,
        weight_in_use: impl Fn() -> u64,
    ) -> Option<(Claim, Lease)> {
        while !self.is_stopped && self.has_room() {
            let throttle = self.cpu_throttle.rate();
            let Some(endpoint) = self.scheduler.next(self.slots_free, throttle, now, &weight_in_use) else {
                if self.are_slots_scarce() || !self.readmit_one_awaiting_answer(now) {
                    return None;
                }
                continue;
            };
            if let Some(started) = self.start_claim_of(endpoint, now, lease_left) {
                return Some(started);
            }
        }
        None
    }

    /// Starts the first claim of the endpoint whose turn it is. If a limit
    /// forbids it, the endpoint waits for that limit and nothing is returned.
    fn start_claim_of(
        &mut self,
        endpoint: EndpointId,
        now: Timestamp,
        lease_left: Option<Duration>,
    ) -> Option<(Claim, Lease)> {
        let are_slots_scarce = self.are_slots_scarce();
        let queue = self.endpoints.get_mut(&endpoint)?;
        queue.position = QueuePosition::Out;
        let host = queue.gate.host.clone().filter(|_| self.limits.per_host.is_some());
        if !queue.can_start(now) {
            self.reschedule(endpoint, now);
            self.start_next_at_host(host, now);
            return None;
        }
        if lease_left.is_some_and(|left| queue.gate.lease_terms.needed > left) {
            self.waits_for_lease = true;
            self.start_next_at_host(host, now);
            return None;
        }
        if are_slots_scarce && queue.unanswered > 0 {
            queue.position = QueuePosition::AwaitingAnswer;
            if !std::mem::replace(&mut queue.is_listed, true) {
                self.awaiting_answer.push_back(endpoint);
            }
            self.start_next_at_host(host, now);
            return None;
        }
        if let (Some(most), Some(host)) = (self.limits.per_host, host.clone()) {
            let load = self.hosts.entry(host).or_default();
            if load.open >= most {
                queue.position = QueuePosition::AtHost;
                load.parked.push_back(endpoint);
                return None;
            }
            load.open += 1;
        }
        let lease = queue.gate.lease_terms.lease;
        let started = queue.start();
        match &started {
            Some(claim) => {
                queue.hosts.extend(host.map(|host| (claim.id, host)));
                queue.rate.take(now);
                self.ready_bytes -= cost(claim);
                self.flight_bytes += cost(claim);
                self.slots_free -= 1;
                self.cpu_throttle.count_start();
                let tenant = queue.gate.tenant.clone();
                let own_lag = if self.is_short_of_cpu { queue.own_lag(claim, now) } else { Duration::ZERO };
                self.scheduler.record_start(&tenant, now);
                if !own_lag.is_zero() {
                    self.pacing(&tenant, now).record_start(own_lag, now);
                }
            }
            // All ready claims were parked behind busy lanes.
            None => self.leave_host(host, now),
        }
        self.reschedule(endpoint, now);
        started.map(|claim| (claim, lease))
    }

    /// Whether the node has a free slot and room for more bytes in flight.
    pub(super) fn has_room(&self) -> bool {
        self.slots_free > 0 && self.flight_bytes < FLIGHT_BYTES_MAX
    }

    /// Whether fewer than half of the slots are free. Then an endpoint gets
    /// another one only if it has answered since its last request, so that
    /// endpoints that hang cannot take all slots.
    fn are_slots_scarce(&self) -> bool {
        self.limits.slots >= SPARE_SLOTS && self.slots_free < self.limits.slots / 2
    }

    /// Reschedules one endpoint that waited while slots were scarce; returns
    /// whether there was one.
    fn readmit_one_awaiting_answer(&mut self, now: Timestamp) -> bool {
        while let Some(endpoint) = self.awaiting_answer.pop_front() {
            let Some(queue) = self.endpoints.get_mut(&endpoint) else { continue };
            queue.is_listed = false;
            // Endpoints that answered meanwhile are in line already.
            let was_waiting = queue.position == QueuePosition::AwaitingAnswer;
            if was_waiting {
                queue.position = QueuePosition::Out;
            }
            self.reschedule(endpoint, now);
            if was_waiting {
                return true;
            }
        }
        false
    }
}
