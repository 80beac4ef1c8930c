//! Tests which claim the queues start next, without a store and without a clock.

use std::collections::HashMap;
use std::time::Duration;

use super::*;
use crate::lifecycle::deliver::tests::claim as any_claim;
use crate::model::blocker::{Capacity, DeliveryConditions, EndpointConditions};
use crate::model::breaker::BreakerSettings;
use crate::model::endpoint_event::{DisableCause, EndpointEvent};
use crate::model::health::{AutoPauseLimits, BreakerInput, BreakerPhase, BreakerState, EndpointHealth};
use crate::model::rate::Rate;
use crate::model::shard::{Lease, Shard};
use crate::model::verdict::Verdict;
use crate::store::{DuePage, DueQuery, ONLY_EPOCH};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn at_ms(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(millis).unwrap()
}

const CREATED_AT: Timestamp = Timestamp::UNIX_EPOCH;

/// Returns the gate of an active endpoint with a cap of two.
fn open() -> EndpointGate {
    EndpointGate {
        tenant: "default".parse().unwrap(),
        quota: TenantQuota::default(),
        host: None,
        state: EndpointState::Active,
        cap: 2,
        rate: Rate { per_second: 1_000_000.0, burst: 100_000 },
        backpressure_until: None,
        breaker: BreakerSettings::default(),
        health: EndpointHealth::default(),
        created_at: CREATED_AT,
        lease_terms: LeaseTerms {
            lease: Lease { shard: Shard(1), epoch: ONLY_EPOCH },
            since: None,
            needed: Duration::ZERO,
        },
    }
}

fn closed() -> EndpointGate {
    EndpointGate { state: EndpointState::Paused, ..open() }
}

/// Queues, and the time of the last call.
struct Node {
    queues: EndpointQueues,
    now: Timestamp,
}

fn node(slots: usize) -> Node {
    let limits = NodeLimits { slots, per_host: None, quarantine: AutoPauseLimits::default() };
    Node { queues: EndpointQueues::new(limits, at(0)), now: at(0) }
}

impl std::ops::Deref for Node {
    type Target = EndpointQueues;
    fn deref(&self) -> &EndpointQueues {
        &self.queues
    }
}

impl std::ops::DerefMut for Node {
    fn deref_mut(&mut self) -> &mut EndpointQueues {
        &mut self.queues
    }
}

impl Node {
    fn admit(&mut self, claim: Claim, gate: EndpointGate, now: Timestamp) {
        self.now = now;
        self.queues.admit(claim, Timestamp::MAX, now, || Some(gate));
    }

    fn take_next(&mut self) -> Option<Claim> {
        self.queues.take_next(self.now, None, || 4).map(|(claim, _)| claim)
    }

    fn take_all(&mut self) -> Vec<Claim> {
        std::iter::from_fn(|| self.take_next()).collect()
    }

    fn take_reads(&mut self, now: Timestamp) -> Vec<DueQuery> {
        self.now = now;
        self.queues.poll_due(now)
    }

    fn answered(&mut self, endpoint: EndpointId) {
        let now = self.now;
        self.queues.apply_attempt_result(endpoint, DeliveryId::mint(at(0), 0), None, now);
    }

    /// Applies an answer with this verdict, to a request that began now.
    fn answered_with(&mut self, endpoint: EndpointId, verdict: Verdict) -> EndpointUpdate {
        let now = self.now;
        self.queues.apply_attempt_result(endpoint, DeliveryId::mint(at(0), 0), Some(answer(verdict, now)), now)
    }

    fn settled(&mut self, claim: &Claim, due_again_at: Option<Timestamp>) {
        let now = self.now;
        self.queues.settled(claim, due_again_at, now);
    }

    fn changed(&mut self, endpoint: EndpointId, id: DeliveryId, due_at: Option<Timestamp>, gate: EndpointGate) {
        let now = self.now;
        self.queues.changed(endpoint, id, due_at, now, || Some(gate));
    }

    fn stored(&mut self, endpoint: EndpointId, due_at: Timestamp, gate: EndpointGate) {
        let now = self.now;
        self.queues.due_in_store(endpoint, due_at, now, || Some(gate));
    }
}

fn answer(verdict: Verdict, started_at: Timestamp) -> AttemptResult {
    let breaker_input =
        BreakerInput { verdict, is_limited: false, is_asked: false, started_at, answer: "was answered".into() };
    AttemptResult { breaker_input, is_answer: true, backpressure_until: None, disables: None, draw: 0.0 }
}

fn endpoint(n: u128) -> EndpointId {
    EndpointId::mint(at(0), n)
}

fn claim(of: EndpointId, n: u128, lane: Option<&str>) -> Claim {
    let id = DeliveryId::mint(at(0), n);
    Claim { id, endpoint: of, lane: lane.map(Arc::from), due_at: at(0), ..any_claim(b"{}") }
}

fn page(claims: Vec<Claim>, next_due: Option<Timestamp>) -> Option<DuePage> {
    Some(DuePage { claims, next_due, next_urgent: None })
}

#[test]
fn the_cap_holds_and_frees_with_the_answer() {
    let (mut queues, a) = (node(100), endpoint(1));
    for n in 0..3 {
        queues.admit(claim(a, n, None), open(), at(0));
    }
    let first = queues.take_next().unwrap();
    assert!(queues.take_next().is_some());
    assert!(queues.take_next().is_none(), "the cap is 2");
    queues.answered(a);
    assert!(queues.take_next().is_some());
    assert!(queues.is_in_flight(a, first.id), "answered, but not settled yet");
    queues.settled(&first, None);
    assert!(!queues.is_in_flight(a, first.id));
}

#[test]
fn a_stuck_endpoint_is_in_nobodys_way() {
    let (mut queues, stuck, free) = (node(100), endpoint(1), endpoint(2));
    for n in 0..50 {
        queues.admit(claim(stuck, n, None), open(), at(0));
    }
    queues.admit(claim(free, 100, None), open(), at(0));
    let started: Vec<EndpointId> = std::iter::from_fn(|| queues.take_next()).map(|claim| claim.endpoint).collect();
    assert_eq!(started.iter().filter(|id| **id == stuck).count(), 2);
    assert!(started.contains(&free));
}

#[test]
fn a_lane_has_one_in_flight_and_others_park_behind_it() {
    let (mut queues, a) = (node(100), endpoint(1));
    queues.admit(claim(a, 1, Some("k")), open(), at(0));
    queues.admit(claim(a, 2, Some("k")), open(), at(0));
    queues.admit(claim(a, 3, Some("j")), open(), at(0));
    let first = queues.take_next().unwrap();
    assert_eq!(queues.take_next().unwrap().lane.as_deref(), Some("j"));
    queues.answered(a);
    assert!(queues.take_next().is_none(), "answered is not settled: the lane is still taken");
    queues.settled(&first, None);
    assert_eq!(queues.take_next().unwrap().id, DeliveryId::mint(at(0), 2));
}

#[test]
fn what_does_not_fit_in_memory_is_read_from_the_store_later() {
    let (mut queues, a) = (node(10_000), endpoint(1));
    for n in 0..READY_MAX as u128 + 10 {
        queues.admit(claim(a, n, None), open(), at(0));
    }
    assert!(queues.take_reads(at(0)).is_empty(), "there is enough in memory");
    let mut started = Vec::new();
    while let Some(claim) = queues.take_next() {
        queues.answered(a);
        queues.settled(&claim, None);
        started.push(claim.id);
    }
    assert_eq!(started.len(), READY_MAX);
    let queries = queues.take_reads(at(0));
    assert_eq!(queries.len(), 1);
    let rest = (0..10).map(|n| claim(a, READY_MAX as u128 + n, None)).collect();
    queues.read_done(a, page(rest, None), at(0), at(1));
    assert!(queues.take_next().is_some());
    assert!(queues.take_reads(at(0)).is_empty());
}

#[test]
fn pages_are_large_and_read_early_while_what_is_due_starts_as_fast_as_it_is_read() {
    let (mut queues, a) = (node(10_000), endpoint(1));
    queues.stored(a, at(0), EndpointGate { cap: 64, ..open() });
    let mut sizes = Vec::new();
    let mut read = |queues: &mut Node, millis: i64| {
        let Some(query) = queues.take_reads(at_ms(millis)).pop() else { return };
        let first = 1_000 * millis as u128;
        let claims = (0..query.limit as u128).map(|n| claim(a, first + n, None)).collect();
        sizes.push(query.limit);
        queues.read_done(a, page(claims, Some(at(0))), at_ms(millis), at(9));
    };
    let start = |queues: &mut Node, count: usize| {
        for _ in 0..count {
            let claim = queues.take_next().unwrap();
            queues.answered(a);
            queues.settled(&claim, None);
        }
    };
    read(&mut queues, 10_000);
    start(&mut queues, 128);
    read(&mut queues, 10_100);
    start(&mut queues, 128);
    read(&mut queues, 10_200);
    start(&mut queues, 257);
    read(&mut queues, 10_300);
    // The receiver became slow.
    start(&mut queues, 767);
    read(&mut queues, 12_000);
    start(&mut queues, 512);
    read(&mut queues, 14_000);
    assert_eq!(sizes, [128, 128, 512, 512, 512, 128]);
}

#[test]
fn a_read_never_brings_back_what_was_settled_meanwhile() {
    let (mut queues, a) = (node(100), endpoint(1));
    queues.stored(a, at(0), open());
    assert_eq!(queues.take_reads(at(0)).len(), 1);
    queues.read_done(a, page(vec![claim(a, 1, None)], Some(at(0))), at(0), at(1));
    let first = queues.take_next().unwrap();
    // A second read begins while the first claim is in flight, and its
    // answer was put together before that claim was settled.
    let queries = queues.take_reads(at(0));
    assert!(queries[0].except.contains(&first.id));
    queues.answered(a);
    queues.settled(&first, None);
    queues.read_done(a, page(vec![claim(a, 1, None)], None), at(0), at(1));
    assert!(queues.take_next().is_none());
}

#[test]
fn a_delivery_that_a_read_may_have_brought_is_for_the_store_to_say() {
    let (mut queues, a) = (node(100), endpoint(1));
    queues.stored(a, at(5), open());
    queues.take_reads(at(5));
    // It was written at 5 and read at once, and is delivered before its acceptance is told here.
    queues.read_done(a, page(vec![claim(a, 1, None)], None), at(5), at(6));
    let read = queues.take_next().unwrap();
    queues.answered(a);
    queues.settled(&read, None);
    for _ in 0..2 {
        queues.queues.admit(claim(a, 1, None), at(5), at(5), || Some(open()));
        assert!(queues.take_next().is_none(), "it is not sent twice");
        assert_eq!(queues.take_reads(at(5)).len(), 1, "the store is asked");
        queues.read_done(a, page(vec![], None), at(5), at(6));
        // It is the same for a queue that was forgotten meanwhile.
        queues.endpoints.clear();
    }
    queues.queues.admit(claim(a, 2, None), at(6), at(6), || Some(open()));
    assert!(queues.take_next().is_some(), "what was written later starts at once");
}

#[test]
fn a_cancelled_delivery_is_not_started() {
    let (mut queues, a) = (node(100), endpoint(1));
    let waiting = claim(a, 1, None);
    queues.admit(waiting.clone(), open(), at(0));
    queues.changed(a, waiting.id, None, open());
    assert!(queues.take_next().is_none());
    assert!(queues.endpoints.is_empty(), "nothing is left behind");
    assert_eq!(queues.ready_bytes, 0);
}

#[test]
fn a_pause_holds_and_a_resume_reads_again() {
    let (mut queues, a) = (node(100), endpoint(1));
    queues.admit(claim(a, 1, None), open(), at(0));
    queues.update_gate(a, closed(), at(0));
    queues.admit(claim(a, 2, None), closed(), at(0));
    assert!(queues.take_next().is_none());
    assert!(queues.take_reads(at(9)).is_empty());
    queues.update_gate(a, open(), at(9));
    assert_eq!(queues.take_reads(at(9)).len(), 1);
}

#[test]
fn a_retry_wakes_at_its_time_and_not_before() {
    let (mut queues, a) = (node(100), endpoint(1));
    queues.admit(claim(a, 1, None), open(), at(0));
    let claim = queues.take_next().unwrap();
    queues.answered(a);
    queues.settled(&claim, Some(at(30)));
    assert_eq!(queues.next_wake(), Some(at(30)));
    assert!(queues.set_timer(), "the timer was not set at all");
    assert!(!queues.set_timer(), "nothing is earlier than what is waited for already");
    assert!(queues.take_reads(at(29)).is_empty());
    assert_eq!(queues.take_reads(at(30)).len(), 1);
}

#[test]
fn once_stopped_nothing_starts_and_nothing_wakes() {
    let (mut queues, a) = (node(100), endpoint(1));
    queues.admit(claim(a, 1, None), open(), at(0));
    queues.stored(endpoint(2), at(0), open());
    queues.stop();
    assert!(queues.take_next().is_none());
    assert!(queues.take_reads(at(9)).is_empty());
    assert_eq!(queues.next_wake(), None, "a wake in the past would be waited for in a circle");
}

#[test]
fn slots_bound_everything_in_flight() {
    let mut queues = node(3);
    for n in 0..10 {
        queues.admit(claim(endpoint(n), n, None), open(), at(0));
    }
    let started: Vec<Claim> = std::iter::from_fn(|| queues.take_next()).collect();
    assert_eq!((started.len(), queues.in_flight()), (3, 3));
    queues.answered(started[0].endpoint);
    assert!(queues.take_next().is_none(), "a slot is held until the claim is settled");
    queues.settled(&started[0], None);
    assert!(queues.take_next().is_some());
}

fn quiet() -> EndpointGate {
    EndpointGate { backpressure_until: Some(at(100)), ..open() }
}

fn urgent(of: EndpointId, n: u128) -> Claim {
    Claim { is_urgent: true, ..claim(of, n, None) }
}

#[test]
fn a_receiver_that_is_left_alone_is_read_for_at_the_end_of_it() {
    let (mut queues, a) = (node(100), endpoint(1));
    queues.admit(claim(a, 1, None), open(), at(0));
    let asked = AttemptResult { backpressure_until: Some(at(100)), ..answer(Verdict::Retry, at(0)) };
    queues.queues.apply_attempt_result(a, DeliveryId::mint(at(0), 0), Some(asked), at(0));
    queues.admit(claim(a, 2, None), quiet(), at(1));
    assert!(queues.take_next().is_none());
    // One read for urgent deliveries, and then no more.
    assert!(queues.take_reads(at(1))[0].urgent_only);
    queues.read_done(a, page(Vec::new(), Some(at(0))), at(1), at(9));
    assert_eq!(queues.next_wake(), Some(at(100)));
    assert!(!queues.take_reads(at(100))[0].urgent_only);
}

#[test]
fn what_a_person_asked_for_goes_all_the_same_page_by_page_and_put_back() {
    let (mut queues, a) = (node(100), endpoint(1));
    queues.changed(a, DeliveryId::mint(at(0), 1), Some(at(5)), quiet());
    assert!(queues.take_reads(at(5))[0].urgent_only);
    let first = DuePage { claims: vec![urgent(a, 1)], next_due: Some(at(0)), next_urgent: Some(at(5)) };
    queues.read_done(a, Some(first), at(5), at(9));
    let claim = queues.take_next().unwrap();
    assert!(queues.take_reads(at(5))[0].urgent_only, "there is a second page");
    queues.read_done(a, None, at(5), at(9));
    assert_eq!(queues.next_wake(), Some(at(9)), "a read that failed is made again, and not at the end");
    // Put back after an internal error, the delivery is still urgent.
    queues.answered(a);
    queues.settled(&claim, Some(at(7)));
    assert_eq!(queues.next_wake(), Some(at(7)));
    // A pause removes it from memory, and a resume reads it again.
    assert_eq!(queues.take_reads(at(7)).len(), 1);
    queues.read_done(a, page(vec![urgent(a, 1)], None), at(7), at(9));
    queues.update_gate(a, EndpointGate { state: EndpointState::Paused, ..quiet() }, at(8));
    assert!(queues.take_next().is_none());
    queues.update_gate(a, quiet(), at(8));
    assert!(queues.take_reads(at(8))[0].urgent_only);
}

#[test]
fn what_a_receiver_asked_for_is_in_force_at_once_and_spares_the_urgent() {
    let (mut queues, a) = (node(100), endpoint(1));
    for n in 0..3 {
        queues.admit(claim(a, n, None), open(), at(0));
    }
    queues.admit(urgent(a, 9), open(), at(0));
    let first = queues.take_next().unwrap();
    let asked = AttemptResult { backpressure_until: Some(at(100)), ..answer(Verdict::Retry, at(0)) };
    queues.queues.apply_attempt_result(a, DeliveryId::mint(at(0), 0), Some(asked), at(0));
    // An update of the gate that does not know of the break yet does not undo it.
    queues.update_gate(a, open(), at(0));
    let next = queues.take_next().unwrap();
    assert!(next.is_urgent);
    queues.backpressure_written(a);
    let gone = AttemptResult { disables: Some(DisableCause::Gone), ..answer(Verdict::Gone, at(0)) };
    let update = queues.queues.apply_attempt_result(a, DeliveryId::mint(at(0), 0), Some(gone), at(0));
    assert_eq!(update.endpoint_events, [EndpointEvent::Disabled(DisableCause::Gone)]);
    queues.update_gate(a, open(), at(0));
    assert!(queues.take_next().is_none());
    queues.settled(&first, None);
    queues.settled(&next, None);
    queues.backpressure_written(a);
    queues.update_gate(a, open(), at(0));
    assert!(queues.take_reads(at(0)).len() == 1, "what is written down counts");
}

#[test]
fn a_rate_is_waited_for_until_its_next_slot() {
    let (mut queues, a) = (node(100), endpoint(1));
    let slow = EndpointGate { rate: Rate { per_second: 10.0, burst: 1 }, cap: 100, ..open() };
    for n in 0..5 {
        queues.admit(claim(a, n, None), slow.clone(), at(0));
    }
    assert_eq!(queues.take_all().len(), 1);
    let slot = at_ms(101);
    assert_eq!(queues.next_wake(), Some(slot));
    assert!(queues.take_reads(at_ms(100)).is_empty());
    assert_eq!(queues.take_all().len(), 0, "not before its slot");
    queues.take_reads(slot);
    assert_eq!(queues.take_all().len(), 1);
    // The rate is raised.
    queues.update_gate(a, EndpointGate { rate: Rate { per_second: 100.0, burst: 1 }, ..slow }, slot);
    assert_eq!(queues.next_wake(), Some(at_ms(112)));
}

#[test]
fn a_claim_starts_exactly_when_the_rule_of_blockers_names_none() {
    let opened_until = |until| BreakerPhase::Open { until };
    let phases = [
        BreakerPhase::Closed,
        BreakerPhase::Ramp { width: 1 },
        opened_until(Some(at(5))),
        opened_until(Some(at(50))),
        opened_until(None),
    ];
    let mut started = 0;
    for state in [EndpointState::Active, EndpointState::Paused, EndpointState::Disabled] {
        for (phase, backpressure_until) in phases.iter().flat_map(|phase| [(phase, None), (phase, Some(at(50)))]) {
            // Whether a request is open, and whether the rate has room for one only.
            for (is_open, is_slow, is_urgent) in (0..8).map(|n| (n & 1 > 0, n & 2 > 0, n & 4 > 0)) {
                let (mut queues, a) = (node(100), endpoint(1));
                queues.now = at(10);
                let rate = Rate { per_second: if is_slow { 0.1 } else { 1_000.0 }, burst: 1 };
                queues.admit(claim(a, 1, None), EndpointGate { cap: 1, rate, ..open() }, at(10));
                let first = queues.take_next().expect("nothing holds the first back");
                if !is_open {
                    queues.answered(a);
                    queues.settled(&first, None);
                }
                let health = EndpointHealth { generation: 1, phase: *phase, ..EndpointHealth::default() };
                let gate = EndpointGate { cap: 1, rate, state, backpressure_until, health, ..open() };
                // Time for one more at the fast rate, and not at the slow one.
                let now = at_ms(10_500);
                queues.queues.update_gate(a, gate.clone(), now);
                let second = Claim { is_urgent, ..claim(a, 2, None) };
                queues.admit(second, gate.clone(), now);
                let capacity = match (is_slow, is_open) {
                    (true, _) => Capacity::Rate(at(20)),
                    (false, true) => Capacity::Slot,
                    (false, false) => Capacity::Free,
                };
                let conditions = EndpointConditions { state, backpressure_until, health: &gate.health, capacity };
                let delivery = DeliveryConditions { due_at: at(0), is_urgent, is_behind: false };
                let blocker = conditions.blocker(delivery, now);
                let has_started = queues.take_next().is_some();
                started += usize::from(has_started);
                assert_eq!(
                    has_started,
                    blocker.is_none(),
                    "{state:?} {phase:?} {backpressure_until:?} {is_open} {is_slow} {is_urgent}: {blocker:?}"
                );
            }
        }
    }
    assert_eq!(started, 13, "ten urgent and three others");
}

#[test]
fn a_rate_is_remembered_while_nothing_waits() {
    let (mut queues, a) = (node(100), endpoint(1));
    let slow = EndpointGate { rate: Rate { per_second: 1.0, burst: 1 }, ..open() };
    queues.admit(claim(a, 1, None), slow.clone(), at(0));
    let first = queues.take_next().unwrap();
    queues.answered(a);
    queues.settled(&first, None);
    queues.admit(claim(a, 2, None), slow.clone(), at_ms(500));
    assert!(queues.take_next().is_none());
    queues.take_reads(at_ms(1_001));
    assert!(queues.take_next().is_some());
    // A node that has just begun does not know what was sent before.
    let mut later = Node { queues: EndpointQueues::new(queues.limits, at(50)), now: at(50) };
    later.admit(claim(a, 3, None), slow.clone(), at(50));
    assert!(later.take_next().is_none());
    later.admit(claim(endpoint(2), 4, None), EndpointGate { created_at: at(50), ..slow }, at(50));
    assert!(later.take_next().is_some(), "an endpoint that was not there before was never called");
}

/// Returns a node and an endpoint whose breaker has opened, with deliveries
/// waiting in the store.
fn broken() -> (Node, EndpointId) {
    let (mut queues, a) = (node(100), endpoint(1));
    let gate = EndpointGate { cap: 10, rate: Rate { per_second: 10_000.0, burst: 1_000 }, ..open() };
    for n in 0..30 {
        queues.admit(claim(a, n, None), gate.clone(), at(0));
    }
    let started = queues.take_all();
    assert_eq!(started.len(), 10);
    for (n, claim) in started.iter().enumerate() {
        let update = queues.answered_with(a, Verdict::Retry);
        assert_eq!(update.endpoint_events.len(), usize::from(n == 9));
        assert_eq!(update.health.unwrap().failures, n as u32 + 1);
        queues.settled(claim, Some(at(5)));
        // Claims that could start meanwhile do not matter here.
        while n < 9
            && let Some(more) = queues.take_next()
        {
            queues.answered(a);
            queues.settled(&more, Some(at(0)));
        }
    }
    (queues, a)
}

#[test]
fn an_open_breaker_holds_all_but_what_a_person_asks_for() {
    let (mut queues, a) = broken();
    assert!(queues.take_next().is_none());
    assert_eq!(queues.health(a).unwrap().open_until(), Some(at(10)));
    // Only urgent deliveries are read before the breaker's time.
    let queries = queues.take_reads(at(1));
    assert!(queries.len() == 1 && queries[0].urgent_only);
    let both = DuePage { claims: vec![urgent(a, 50), urgent(a, 51)], next_due: Some(at(0)), next_urgent: None };
    queues.read_done(a, Some(both), at(1), at(9));
    assert_eq!(queues.take_all().len(), 1, "one probe at a time");
    let mut arrived = answer(Verdict::Delivered, at(1));
    arrived.breaker_input.is_asked = true;
    queues.queues.apply_attempt_result(a, DeliveryId::mint(at(0), 0), Some(arrived), at(1));
    assert_eq!(queues.health(a).unwrap().breaker(at(1)), BreakerState::Ramp);
}

#[test]
fn probes_go_one_at_a_time_and_a_failed_one_holds_the_rest_again() {
    let (mut queues, a) = broken();
    queues.take_reads(at(1));
    queues.read_done(a, page(Vec::new(), Some(at(0))), at(1), at(2));
    assert_eq!(queues.next_wake(), Some(at(10)));
    assert!(!queues.take_reads(at(10))[0].urgent_only);
    queues.read_done(a, page((40..60).map(|n| claim(a, n, None)).collect(), None), at(10), at(11));
    let probe = queues.take_all();
    assert_eq!(probe.len(), 1);
    assert_eq!(probe[0].id, DeliveryId::mint(at(0), 40), "the oldest");
    queues.answered_with(a, Verdict::Retry);
    queues.settled(&probe[0], Some(at(70)));
    assert!(queues.take_next().is_none());
    assert_eq!(queues.ready_bytes, 0, "the others rest in the store again");
    queues.take_reads(at(10));
    queues.read_done(a, page(Vec::new(), Some(at(0))), at(10), at(11));
    assert_eq!(queues.next_wake(), Some(at(30)), "twice the wait");
}

#[test]
fn a_recovered_endpoint_is_called_more_and_more() {
    let (mut queues, a) = broken();
    queues.take_reads(at(10));
    queues.read_done(a, page((40..400).map(|n| claim(a, n, None)).collect(), None), at(10), at(11));
    // Each request takes 50 ms; counts the most open requests per half second.
    let mut open: VecDeque<(i64, Claim)> = queues.take_all().into_iter().map(|claim| (10_050, claim)).collect();
    let mut most = [0; 6];
    for millis in 10_000..13_000 {
        queues.take_reads(at_ms(millis));
        while let Some((_, claim)) = open.pop_front_if(|(ends_at, _)| *ends_at == millis) {
            queues.answered_with(a, Verdict::Delivered);
            queues.settled(&claim, None);
        }
        open.extend(queues.take_all().into_iter().map(|claim| (millis + 50, claim)));
        let slot = &mut most[(millis as usize - 10_000) / 500];
        *slot = open.len().max(*slot);
    }
    assert_eq!(most, [1, 2, 4, 8, 10, 10], "it doubles, from one to the cap");
}

#[test]
fn many_that_hang_leave_room_for_those_that_answer() {
    let mut queues = node(200);
    let gate = EndpointGate { cap: 10, ..open() };
    for n in 0..60 {
        for m in 0..10 {
            queues.admit(claim(endpoint(n), n * 100 + m, None), gate.clone(), at(0));
        }
    }
    let hanging = queues.take_all();
    let mut by_endpoint: HashMap<EndpointId, usize> = HashMap::new();
    for claim in &hanging {
        *by_endpoint.entry(claim.endpoint).or_default() += 1;
    }
    assert!(hanging.len() < 170, "{} slots are taken", hanging.len());
    assert_eq!(by_endpoint.len(), 60, "each has at least one");
    // An endpoint that answers gets its next request at once, each time.
    let healthy = endpoint(1_000);
    for m in 0..50 {
        queues.admit(claim(healthy, 100_000 + m, None), gate.clone(), at(0));
        let started = queues.take_all();
        assert_eq!(started.len(), 1);
        queues.answered_with(healthy, Verdict::Delivered);
        queues.settled(&started[0], None);
    }
    // Endpoints that hang get another request once there is room.
    for claim in hanging {
        queues.answered(claim.endpoint);
        queues.settled(&claim, None);
    }
    assert!(queues.take_all().len() > 100);
}

#[test]
fn endpoints_of_one_host_share_its_limit() {
    let limits = NodeLimits { slots: 100, per_host: Some(3), quarantine: AutoPauseLimits::default() };
    let mut queues = Node { queues: EndpointQueues::new(limits, at(0)), now: at(0) };
    let on = |host: &str| EndpointGate { host: Some(host.into()), ..open() };
    for n in 0..4 {
        for m in 0..2 {
            queues.admit(claim(endpoint(n), 10 * n + m, None), on("a:443"), at(0));
        }
    }
    queues.admit(claim(endpoint(9), 90, None), on("b:443"), at(0));
    let mut open = queues.take_all();
    assert_eq!(open.len(), 4, "three there and one elsewhere");
    let mut seen = open.len();
    let mut moved = false;
    while let Some(claim) = open.pop() {
        // One endpoint moves to another host while it is being called.
        if !std::mem::replace(&mut moved, true) {
            queues.update_gate(claim.endpoint, on("c:443"), at(0));
        }
        queues.queues.apply_attempt_result(claim.endpoint, claim.id, None, at(0));
        queues.settled(&claim, None);
        let more = queues.take_all();
        seen += more.len();
        open.extend(more);
        assert!(queues.hosts.values().all(|host| host.open <= 3));
    }
    assert_eq!(seen, 9, "all have had their turn");
    assert!(queues.hosts.is_empty());
}

#[test]
fn a_tenant_with_much_waiting_does_not_hold_up_another() {
    let mut queues = node(40);
    let of = |name: &str| EndpointGate { tenant: name.parse().unwrap(), cap: 100, ..open() };
    for n in 0..200 {
        let mut claim = claim(endpoint(n % 5), n, None);
        Arc::make_mut(&mut claim.event).tenant = "loud".parse().unwrap();
        queues.admit(claim, of("loud"), at(0));
    }
    assert_eq!(queues.take_all().len(), 30, "the last quarter is for others");
    queues.admit(claim(endpoint(9), 900, None), of("default"), at(0));
    assert_eq!(queues.take_all().len(), 1);
    assert_eq!(queues.capacity(endpoint(0), at(0)), Capacity::Slot);
}

#[test]
fn idle_queues_are_let_go_of_once_their_rate_is_forgotten() {
    let mut queues = node(10_000);
    let slow = EndpointGate { rate: Rate { per_second: 1.0, burst: 1 }, ..open() };
    for n in 0..2_000 {
        queues.admit(claim(endpoint(n), n, None), slow.clone(), at(n as i64));
        let started = queues.take_next().unwrap();
        queues.answered(started.endpoint);
        queues.settled(&started, None);
    }
    assert!(queues.endpoints.len() <= TIDY_AT + 1, "{}", queues.endpoints.len());
}

#[test]
fn a_place_at_a_host_goes_to_the_next_that_can_use_it() {
    let limits = NodeLimits { slots: 100, per_host: Some(1), quarantine: AutoPauseLimits::default() };
    let mut queues = Node { queues: EndpointQueues::new(limits, at(0)), now: at(0) };
    let here = || EndpointGate { host: Some("a:443".into()), ..open() };
    for n in 0..3 {
        queues.admit(claim(endpoint(n), n, None), here(), at(0));
    }
    let first = queues.take_all();
    assert_eq!(first.len(), 1);
    // The next endpoint in line is paused meanwhile.
    queues.update_gate(endpoint(1), EndpointGate { state: EndpointState::Paused, ..here() }, at(0));
    queues.queues.apply_attempt_result(first[0].endpoint, first[0].id, None, at(0));
    queues.settled(&first[0], None);
    assert_eq!(queues.take_all().iter().map(|claim| claim.endpoint).collect::<Vec<_>>(), [endpoint(2)]);
}

#[test]
fn one_that_timed_out_while_slots_are_short_may_try_again() {
    let mut queues = node(64);
    let gate = || EndpointGate { cap: 64, ..open() };
    for n in 0..64 {
        queues.admit(claim(endpoint(1), n, None), gate(), at(0));
    }
    assert_eq!(queues.take_all().len(), 33, "fewer than half are free");
    for n in 100..102 {
        queues.admit(claim(endpoint(2), n, None), gate(), at(0));
    }
    let quiet = queues.take_all();
    assert_eq!(quiet.len(), 1);
    let timeout = AttemptResult { is_answer: false, ..answer(Verdict::Retry, at(0)) };
    queues.queues.apply_attempt_result(endpoint(2), quiet[0].id, Some(timeout), at(0));
    queues.settled(&quiet[0], Some(at(5)));
    assert_eq!(queues.take_all().len(), 1, "nothing of it is open");
    assert!(queues.awaiting_answer.len() <= 2, "each is listed once");
}

/// An endpoint with a cap of 10, created before the node began at second 100.
fn gained(due: usize) -> (EndpointQueues, EndpointId) {
    let limits = NodeLimits { slots: 1_000, per_host: None, quarantine: AutoPauseLimits::default() };
    let mut queues = EndpointQueues::new(limits, at(100));
    let (a, gate) = (endpoint(1), EndpointGate { cap: 10, ..open() });
    queues.due_in_store(a, at(1), at(100), || Some(gate));
    let queries = queues.poll_due(at(100));
    assert_eq!(queries.len(), 1);
    let claims = (0..due.min(32)).map(|n| claim(a, n as u128, None)).collect();
    queues.due_at_gain(a, due, at(100));
    queues.read_done(a, page(claims, (due > 32).then_some(at(1))), at(100), at(101));
    (queues, a)
}

#[test]
fn an_endpoint_gained_with_a_large_backlog_is_ramped_and_full_within_five_seconds() {
    let (mut queues, a) = gained(41);
    let mut started = Vec::new();
    let mut take = |queues: &mut EndpointQueues, now| {
        queues.poll_due(now);
        while let Some((claim, _)) = queues.take_next(now, None, || 1) {
            started.push(claim);
        }
        started.len()
    };
    assert_eq!(take(&mut queues, at(100)), 1);
    assert_eq!(queues.health(a).unwrap().breaker(at(100)), BreakerState::Ramp);
    assert_eq!(queues.next_wake(), Some(at(105)), "also without an answer");
    assert_eq!(take(&mut queues, at(104)), 1);
    assert_eq!(take(&mut queues, at(105)), 1, "its rate has no burst");
    assert_eq!(take(&mut queues, at_ms(105_200)), 10);
    assert_eq!(queues.health(a).unwrap().breaker(at(105)), BreakerState::Closed);
}

#[test]
fn an_endpoint_gained_with_little_due_or_long_ago_is_not_ramped() {
    let (mut queues, a) = gained(40);
    queues.poll_due(at_ms(100_001));
    assert_eq!(std::iter::from_fn(|| queues.take_next(at_ms(100_001), None, || 1)).count(), 10);
    assert_eq!(queues.health(a).unwrap().breaker(at(100)), BreakerState::Closed);
    queues.due_at_gain(a, 1_000, at(100));
    assert_eq!(queues.health(a).unwrap().breaker(at(100)), BreakerState::Closed, "not its first page");
}

#[test]
fn accepts_are_held_as_long_as_the_node_that_is_furthest_behind_asks() {
    let (tenant, other) = ("default".parse().unwrap(), "other".parse().unwrap());
    let mut node = node(1);
    assert_eq!(node.accept_delay(&tenant, at(0)), Duration::ZERO);
    node.delay_accepts(HashMap::from([(tenant.clone(), Duration::from_millis(40))]));
    assert_eq!(node.accept_delay(&tenant, at(0)), Duration::from_millis(40));
    assert_eq!(node.accept_delay(&other, at(0)), Duration::ZERO, "its deliveries are not late");
    assert_eq!(node.accept_delays(at(0)), [], "what others ask for is not passed on");
    node.delay_accepts(HashMap::new());
    assert_eq!(node.accept_delay(&tenant, at(0)), Duration::ZERO);
}

#[test]
fn what_other_nodes_accept_counts_as_accepted_where_it_is_late() {
    let tenant: TenantId = "default".parse().unwrap();
    let mut node = node(1);
    for tenths in 1..20 {
        let now = at_ms(tenths * 100);
        node.accepted_elsewhere(&tenant, 1_000, now);
        node.pacing(&tenant, now).record_start(Duration::from_secs(2), now);
    }
    let delays = node.accept_delays(at_ms(2_000));
    assert!(matches!(&delays[..], [(held, delay)] if *held == tenant && !delay.is_zero()), "{delays:?}");
}
