//! What the queues do as shards move between nodes: which endpoints they own, and
//! under which lease.

use std::collections::HashMap;

use jiff::Timestamp;

use super::{EndpointQueues, cost};
use crate::lifecycle::dispatch::gate::EndpointGate;
use crate::lifecycle::dispatch::lag::OldestDue;
use crate::lifecycle::dispatch::queue::QueueOwner;
use crate::model::id::EndpointId;
use crate::model::shard::{Lease, Shard};

impl EndpointQueues {
    /// Takes over shards. A queue that still exists for claims in flight is
    /// used again as if it were new. Other nodes may have used up the tenants'
    /// rates, so what was sent before now counts as unknown.
    pub fn regain_queues(
        &mut self,
        shards: &[Shard],
        now: Timestamp,
        gate: impl Fn(EndpointId) -> Option<EndpointGate>,
    ) {
        self.scheduler.set_unknown_before(now);
        for endpoint in self.endpoints_in(shards) {
            let (Some(queue), Some(gate)) = (self.endpoints.get_mut(&endpoint), gate(endpoint)) else { continue };
            queue.regain(gate, self.began_at);
            self.apply_gate(endpoint, now);
            self.reschedule(endpoint, now);
        }
    }

    /// Forgets what is known of shards that leave or have left, except claims
    /// in flight. Returns the endpoints that have claims in flight.
    pub fn forget_shards(&mut self, shards: &[Shard], now: Timestamp) -> Vec<EndpointId> {
        let mut in_flight = Vec::new();
        for endpoint in self.endpoints_in(shards) {
            let Some(queue) = self.endpoints.get_mut(&endpoint) else { continue };
            queue.owner = QueueOwner::AnotherNode;
            queue.stored_due = None;
            queue.reading_due = None;
            queue.urgent_due = None;
            queue.known = queue.in_flight.clone();
            let waiting = queue.busy_lanes.values_mut().chain([&mut queue.ready]).flat_map(|list| list.drain(..));
            self.ready_bytes -= waiting.map(|claim| cost(&claim)).sum::<usize>();
            if !queue.in_flight.is_empty() {
                in_flight.push(endpoint);
            }
            self.reschedule(endpoint, now);
        }
        in_flight
    }

    /// Whether a claim of this endpoint is in flight.
    pub fn has_in_flight(&self, endpoint: EndpointId) -> bool {
        self.endpoints.get(&endpoint).is_some_and(|queue| !queue.in_flight.is_empty())
    }

    /// Returns the lease that an endpoint is dispatched under, if this node does.
    pub fn lease(&self, endpoint: EndpointId) -> Option<Lease> {
        self.endpoints
            .get(&endpoint)
            .filter(|queue| queue.owner != QueueOwner::AnotherNode)
            .map(|queue| queue.gate.lease_terms.lease)
    }

    /// Discards the result of a read that was made under another lease. If this
    /// node owns the endpoint again, the read is repeated.
    pub fn discard_read(&mut self, endpoint: EndpointId, now: Timestamp) {
        let Some(queue) = self.endpoints.get_mut(&endpoint) else { return };
        queue.is_reading = false;
        queue.changed_during_read.clear();
        if queue.owner == QueueOwner::ThisNode {
            queue.stored_due_at(now.min(queue.reading_due.unwrap_or(now)));
            queue.is_stored_due_unsure = true;
            queue.urgent_due_at(now);
        }
        queue.reading_due = None;
        self.reschedule(endpoint, now);
    }

    /// Returns the oldest waits of each shard in which something waits.
    pub fn oldest_by_shard(&self, now: Timestamp) -> HashMap<Shard, OldestDue> {
        let mut oldest: HashMap<Shard, OldestDue> = HashMap::new();
        for queue in self.endpoints.values() {
            if let Some((since, blocker)) = self.oldest_of(queue, now) {
                oldest.entry(queue.gate.lease_terms.lease.shard).or_default().record(since, blocker);
            }
        }
        oldest
    }

    /// Whether a claim waits only for the lease to be renewed.
    pub fn waits_for_lease(&self) -> bool {
        self.waits_for_lease
    }

    /// Offers the claims that wait for the lease to the scheduler again.
    pub fn offer_waiting_for_lease(&mut self, now: Timestamp) {
        self.waits_for_lease = false;
        let ready = self.endpoints.iter().filter(|(_, queue)| !queue.ready.is_empty());
        for endpoint in ready.map(|(endpoint, _)| *endpoint).collect::<Vec<_>>() {
            self.reschedule(endpoint, now);
        }
    }

    fn endpoints_in(&self, shards: &[Shard]) -> Vec<EndpointId> {
        let is_in = |lease: Lease| shards.contains(&lease.shard);
        let endpoints = self.endpoints.iter().filter(|(_, queue)| is_in(queue.gate.lease_terms.lease));
        endpoints.map(|(endpoint, _)| *endpoint).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::lifecycle::deliver::tests::claim as any_claim;
    use crate::lifecycle::dispatch::gate::LeaseTerms;
    use crate::lifecycle::dispatch::limits::NodeLimits;
    use crate::model::breaker::BreakerSettings;
    use crate::model::endpoint::EndpointState;
    use crate::model::health::{AutoPauseLimits, EndpointHealth};
    use crate::model::id::DeliveryId;
    use crate::model::rate::Rate;
    use crate::model::shard::Epoch;
    use crate::model::tenant::TenantQuota;
    use crate::store::{Claim, DuePage};

    const HERE: [Shard; 1] = [Shard(7)];

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_700_000_000_000 + millis).unwrap()
    }

    fn endpoint() -> EndpointId {
        EndpointId::mint(at(0), 1)
    }

    fn gate(epoch: u64, since: Option<Timestamp>) -> EndpointGate {
        EndpointGate {
            tenant: "default".parse().unwrap(),
            quota: TenantQuota::default(),
            host: None,
            state: EndpointState::Active,
            cap: 2,
            rate: Rate { per_second: 10.0, burst: 8 },
            backpressure_until: None,
            breaker: BreakerSettings::default(),
            health: EndpointHealth::default(),
            created_at: at(-1_000_000),
            lease_terms: LeaseTerms {
                lease: Lease { shard: Shard(7), epoch: Epoch(epoch) },
                since,
                needed: Duration::from_secs(5),
            },
        }
    }

    fn claim(n: u128, lane: Option<&str>) -> Claim {
        Claim { id: DeliveryId::mint(at(0), n), endpoint: endpoint(), lane: lane.map(Arc::from), ..any_claim(b"{}") }
    }

    fn node() -> EndpointQueues {
        let limits = NodeLimits { slots: 100, per_host: None, quarantine: AutoPauseLimits::default() };
        EndpointQueues::new(limits, at(-1_000_000))
    }

    fn take(queues: &mut EndpointQueues, now: i64) -> Vec<(Claim, Lease)> {
        std::iter::from_fn(|| queues.take_next(at(now), None, || 1)).collect()
    }

    #[test]
    fn what_goes_is_forgotten_but_for_what_is_in_flight() {
        let mut queues = node();
        for (n, lane) in [(1, Some("k")), (2, Some("k")), (3, None), (4, None)] {
            queues.admit(claim(n, lane), Timestamp::MAX, at(0), || Some(gate(1, None)));
        }
        let started = take(&mut queues, 0);
        assert_eq!(started.len(), 2, "the cap");
        assert_eq!(queues.forget_shards(&[Shard(8)], at(0)), [], "others' shards are not ours");
        assert_eq!(queues.forget_shards(&HERE, at(0)), [endpoint()]);
        assert_eq!((queues.ready_bytes, queues.lease(endpoint()), queues.next_wake()), (0, None, None));
        assert!(queues.is_in_flight(endpoint(), started[0].0.id));
        // Settling a claim frees its lane, and starts nothing.
        for (claim, _) in &started {
            queues.apply_attempt_result(claim.endpoint, claim.id, None, at(1));
            queues.settled(claim, Some(at(1)), at(1));
        }
        assert!(queues.endpoints.is_empty(), "nothing is left behind");
        assert!(take(&mut queues, 9_000).is_empty() && queues.poll_due(at(9_000)).is_empty());
        assert_eq!((queues.flight_bytes, queues.in_flight()), (0, 0));
    }

    #[test]
    fn a_shard_that_comes_back_leaves_out_what_is_still_in_flight_and_keeps_its_lane() {
        let mut queues = node();
        queues.admit(claim(1, Some("k")), Timestamp::MAX, at(0), || Some(gate(1, None)));
        let (old, lease) = take(&mut queues, 0).remove(0);
        queues.forget_shards(&HERE, at(0));
        queues.regain_queues(&HERE, at(5_000), |_| Some(gate(3, Some(at(5_000)))));
        queues.due_in_store(endpoint(), at(0), at(5_000), || unreachable!("it is known"));
        let query = queues.poll_due(at(5_000)).remove(0);
        assert!(query.except.contains(&old.id));
        let page = DuePage { claims: vec![claim(2, Some("k")), claim(3, None)], ..DuePage::default() };
        queues.read_done(endpoint(), Some(page), at(5_000), at(6_000));
        queues.poll_due(at(6_000));
        let now = take(&mut queues, 6_000);
        assert_eq!(now.iter().map(|(claim, _)| claim.id).collect::<Vec<_>>(), [claim(3, None).id], "the lane is taken");
        assert_eq!((lease.epoch, now[0].1.epoch), (Epoch(1), Epoch(3)));
        queues.apply_attempt_result(endpoint(), old.id, None, at(6_000));
        queues.settled(&old, None, at(6_000));
        assert_eq!(take(&mut queues, 6_000).len(), 1);
    }

    #[test]
    fn a_read_for_a_shard_that_went_is_void_and_made_again_if_it_came_back() {
        let mut queues = node();
        queues.due_in_store(endpoint(), at(0), at(0), || Some(gate(1, None)));
        assert_eq!(queues.poll_due(at(0)).len(), 1);
        queues.forget_shards(&HERE, at(0));
        assert!(!queues.endpoints.is_empty(), "until the read is back");
        queues.regain_queues(&HERE, at(10), |_| Some(gate(3, Some(at(10)))));
        queues.due_in_store(endpoint(), at(0), at(10), || unreachable!("it is known"));
        assert!(queues.poll_due(at(10)).is_empty(), "one read at a time");
        queues.discard_read(endpoint(), at(20));
        assert_eq!(queues.poll_due(at(20)).len(), 1);
        queues.forget_shards(&HERE, at(20));
        queues.discard_read(endpoint(), at(30));
        assert!(queues.endpoints.is_empty());
    }

    #[test]
    fn what_the_lease_is_too_short_for_waits_in_its_place_and_pays_nothing() {
        let mut queues = node();
        for n in 1..4 {
            queues.admit(claim(n, None), Timestamp::MAX, at(0), || Some(gate(1, None)));
        }
        let left = |seconds| Some(Duration::from_secs(seconds));
        assert!(queues.take_next(at(0), left(4), || 1).is_none());
        assert!(queues.waits_for_lease());
        assert_eq!(queues.oldest_by_shard(at(0)).len(), 1);
        assert!(queues.take_next(at(0), left(15), || 1).is_none(), "it has its turn when it is tried again");
        queues.offer_waiting_for_lease(at(0));
        assert!(!queues.waits_for_lease());
        assert!(queues.take_next(at(0), left(5), || 1).is_some());
        assert!(queues.take_next(at(0), left(5), || 1).is_some());
    }

    proptest! {
        /// All owners of an endpoint together keep to its rate, however often
        /// and whenever it moves.
        #[test]
        fn a_rate_is_kept_over_any_moves(
            per_second in 5u32..100, burst in 1u32..30,
            moves in prop::collection::vec((1i64..900, 0usize..3), 1..12),
        ) {
            let rate = Rate { per_second: f64::from(per_second), burst };
            let gate = |since| EndpointGate { rate, cap: 1_000, ..gate(1, since) };
            let mut nodes = [node(), node(), node()];
            let (mut owner, mut now, mut n, mut taken) = (0, 0, 0, Vec::new());
            nodes[0].regain_queues(&HERE, at(0), |_| Some(gate(None)));
            let mut since = None;
            for (span, next) in moves.into_iter().chain([(2_000, 0)]) {
                for moment in now..now + span {
                    let queues = &mut nodes[owner];
                    while queues.endpoints.get(&endpoint()).is_none_or(|queue| queue.ready.len() < 40) {
                        n += 1;
                        queues.admit(claim(n, None), Timestamp::MAX, at(moment), || Some(gate(since)));
                    }
                    queues.poll_due(at(moment));
                    for (claim, _) in take(queues, moment) {
                        taken.push(moment);
                        queues.apply_attempt_result(claim.endpoint, claim.id, None, at(moment));
                        queues.settled(&claim, None, at(moment));
                    }
                }
                now += span;
                if next != owner {
                    nodes[owner].forget_shards(&HERE, at(now));
                    (owner, since) = (next, Some(at(now)));
                    nodes[owner].regain_queues(&HERE, at(now), |_| Some(gate(since)));
                }
            }
            for (first, from) in taken.iter().enumerate() {
                for (last, to) in taken.iter().enumerate().skip(first) {
                    let allowed = f64::from(burst) + f64::from(per_second) * ((to - from) as f64 / 1_000.0);
                    prop_assert!((last - first + 1) as f64 <= allowed + 1e-6, "{} in {} ms", last - first + 1, to - from);
                }
            }
        }
    }
}
