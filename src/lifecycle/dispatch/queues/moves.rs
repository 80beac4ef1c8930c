//! What moves of shards between nodes mean for the queues.

use jiff::Timestamp;

use super::{Queues, cost};
use crate::lifecycle::dispatch::gate::Gate;
use crate::model::id::EndpointId;
use crate::model::shard::{Lease, Shard};

impl Queues {
    /// These shards are this node's. A queue that is still there for what was
    /// in flight when they went goes on as if it were new; with `were_owned`,
    /// others may have used up what tenants may send.
    pub fn gained(
        &mut self,
        shards: &[Shard],
        were_owned: bool,
        now: Timestamp,
        gate: impl Fn(EndpointId) -> Option<Gate>,
    ) {
        if were_owned {
            self.shares.unknown_before(now);
        }
        for endpoint in self.of(shards) {
            let (Some(queue), Some(gate)) = (self.endpoints.get_mut(&endpoint), gate(endpoint)) else { continue };
            queue.regain(gate, self.began_at);
            self.settle_gate(endpoint, now);
            self.arrange(endpoint, now);
        }
    }

    /// These shards go, or have gone: what is held of them and not in flight
    /// is forgotten. Returns the endpoints that have something in flight.
    pub fn let_go(&mut self, shards: &[Shard], now: Timestamp) -> Vec<EndpointId> {
        let mut in_flight = Vec::new();
        for endpoint in self.of(shards) {
            let Some(queue) = self.endpoints.get_mut(&endpoint) else { continue };
            queue.is_foreign = true;
            queue.stored_due = None;
            queue.urgent_due = None;
            queue.known = queue.in_flight.clone();
            let waiting = queue.busy_lanes.values_mut().chain([&mut queue.ready]).flat_map(|list| list.drain(..));
            self.ready_bytes -= waiting.map(|claim| cost(&claim)).sum::<usize>();
            if !queue.in_flight.is_empty() {
                in_flight.push(endpoint);
            }
            self.arrange(endpoint, now);
        }
        in_flight
    }

    /// Whether a claim of this endpoint is in flight.
    pub fn has_in_flight(&self, endpoint: EndpointId) -> bool {
        self.endpoints.get(&endpoint).is_some_and(|queue| !queue.in_flight.is_empty())
    }

    /// The lease that an endpoint is dispatched under, if it is.
    pub fn lease(&self, endpoint: EndpointId) -> Option<Lease> {
        self.endpoints.get(&endpoint).filter(|queue| !queue.is_foreign).map(|queue| queue.gate.tenure.lease)
    }

    /// A read has come back that was made under another lease. What it found
    /// is void; if the endpoint is this node's again, it is read once more.
    pub fn read_void(&mut self, endpoint: EndpointId, now: Timestamp) {
        let Some(queue) = self.endpoints.get_mut(&endpoint) else { return };
        queue.is_reading = false;
        queue.touched.clear();
        if !queue.is_foreign && !queue.is_removed {
            queue.note_stored(now);
            queue.note_urgent(now);
        }
        self.arrange(endpoint, now);
    }

    /// Whether something waits only for the lease to be renewed.
    pub fn waits_for_lease(&self) -> bool {
        self.waits_for_lease
    }

    /// Gives what waits for the lease its turn again.
    pub fn try_lease(&mut self, now: Timestamp) {
        self.waits_for_lease = false;
        let ready = self.endpoints.iter().filter(|(_, queue)| !queue.ready.is_empty());
        for endpoint in ready.map(|(endpoint, _)| *endpoint).collect::<Vec<_>>() {
            self.arrange(endpoint, now);
        }
    }

    fn of(&self, shards: &[Shard]) -> Vec<EndpointId> {
        let is_theirs = |lease: Lease| shards.contains(&lease.shard);
        let theirs = self.endpoints.iter().filter(|(_, queue)| is_theirs(queue.gate.tenure.lease));
        theirs.map(|(endpoint, _)| *endpoint).collect()
    }
}
