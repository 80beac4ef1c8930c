//! Tests the lag that the queues report, and its cause.

use std::time::Duration;

use super::*;
use crate::lifecycle::deliver::tests::claim as any_claim;
use crate::lifecycle::dispatch::lag::{BlockedMs, Lag};
use crate::model::breaker::BreakerSettings;
use crate::model::health::AutoPauseLimits;
use crate::model::health::EndpointHealth;
use crate::model::rate::Rate;
use crate::model::shard::{Lease, Shard};
use crate::store::{DuePage, ONLY_EPOCH};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn endpoint(n: u128) -> EndpointId {
    EndpointId::mint(at(0), n)
}

fn node() -> EndpointQueues {
    EndpointQueues::new(NodeLimits { slots: 100, per_host: None, quarantine: AutoPauseLimits::default() }, at(-1_000))
}

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
        created_at: at(-1_000),
        lease_terms: LeaseTerms {
            lease: Lease { shard: Shard(1), epoch: ONLY_EPOCH },
            since: None,
            needed: Duration::ZERO,
        },
    }
}

fn claim(of: EndpointId, n: u128, due_at: Timestamp) -> Claim {
    Claim { id: DeliveryId::mint(at(0), n), endpoint: of, lane: None, due_at, ..any_claim(b"{}") }
}

fn page(claims: Vec<Claim>, next_due: Option<Timestamp>) -> Option<DuePage> {
    Some(DuePage { claims, next_due, next_urgent: None })
}

fn lag(queues: &EndpointQueues, now: Timestamp) -> Lag {
    let (lag, by_shard) = (queues.oldest(now).lag(now), queues.oldest_by_shard(now));
    let of_shard = by_shard.get(&Shard(1)).map_or(Lag::default(), |oldest| oldest.lag(now));
    assert_eq!(lag, of_shard, "everything here is of one shard");
    lag
}

/// Returns the lag of a delivery that could have started this many seconds ago,
/// with nothing held back.
fn free(seconds: u64) -> Lag {
    Lag { lag_ms: seconds * 1_000, ..Lag::default() }
}

#[test]
fn what_lies_in_the_store_alone_counts_from_when_it_was_due_also_while_it_is_read() {
    let (mut queues, a) = (node(), endpoint(1));
    queues.due_in_store(a, at(-50), at(0), || Some(open()));
    assert_eq!(lag(&queues, at(0)), free(50));
    assert_eq!(queues.poll_due(at(0)).len(), 1);
    assert_eq!(lag(&queues, at(5)), free(55), "it is being read");
    // A delivery that comes meanwhile is younger, and changes nothing.
    queues.admit(claim(a, 9, at(4)), Timestamp::MAX, at(4), || unreachable!("it is known"));
    assert_eq!(lag(&queues, at(5)), free(55));
    queues.read_done(a, page(vec![claim(a, 1, at(-50))], Some(at(-40))), at(6), at(9));
    assert_eq!(lag(&queues, at(6)), free(56), "read, and not started");
    assert!(queues.take_next(at(6), None, || 1).is_some());
    assert_eq!(lag(&queues, at(6)), free(46), "the next one lies in the store");
    assert_eq!(queues.poll_due(at(6)).len(), 1);
    assert_eq!(lag(&queues, at(7)), free(47), "and is being read");
    queues.read_done(a, page(vec![claim(a, 9, at(4))], None), at(8), at(9));
    assert_eq!(lag(&queues, at(8)), free(4), "what came during the first read");
}

#[test]
fn a_store_that_cannot_be_read_makes_everything_older_and_not_younger() {
    let (mut queues, a) = (node(), endpoint(1));
    queues.due_in_store(a, at(-50), at(0), || Some(open()));
    assert_eq!(queues.poll_due(at(0)).len(), 1);
    queues.read_done(a, None, at(1), at(20));
    assert_eq!(lag(&queues, at(2)), free(52));
    assert!(queues.poll_due(at(19)).is_empty(), "it is tried again in its time");
    assert_eq!(queues.next_wake(), Some(at(20)));
    assert_eq!(queues.poll_due(at(20)).len(), 1);
    assert_eq!(lag(&queues, at(20)), free(70));
    // Meanwhile new deliveries start, as they would with nothing in the store.
    queues.read_done(a, None, at(21), at(40));
    queues.admit(claim(a, 9, at(22)), Timestamp::MAX, at(22), || unreachable!("it is known"));
    assert!(queues.take_next(at(22), None, || 1).is_some());
}

#[test]
fn what_is_not_due_or_on_its_way_is_not_late() {
    let (mut queues, a) = (node(), endpoint(1));
    queues.due_in_store(a, at(100), at(0), || Some(open()));
    assert_eq!(lag(&queues, at(0)), Lag::default());
    queues.admit(claim(a, 1, at(0)), Timestamp::MAX, at(0), || unreachable!("it is known"));
    assert_eq!(lag(&queues, at(3)), free(3));
    let (taken, _) = queues.take_next(at(3), None, || 1).unwrap();
    assert_eq!(lag(&queues, at(9)), Lag::default(), "it is on its way");
    queues.apply_attempt_result(a, taken.id, None, at(9));
    queues.settled(&taken, Some(at(60)), at(9));
    assert_eq!(lag(&queues, at(9)), Lag::default(), "it is tried again later");
    assert_eq!(lag(&queues, at(61)), free(1));
}

#[test]
fn whoever_holds_it_back_is_named_and_what_is_let_go_counts_from_then() {
    let held = |held_ms: BlockedMs| Lag { lag_ms: 0, held_ms };
    let none = BlockedMs::default();
    let opened = EndpointHealth::default().forced_open(Some(at(60)), Some("failing".into()), at(0));
    let cases = [
        (EndpointGate { state: EndpointState::Paused, ..open() }, held(BlockedMs { pause: 50_000, ..none })),
        (EndpointGate { state: EndpointState::Disabled, ..open() }, held(BlockedMs { disabled: 50_000, ..none })),
        (EndpointGate { backpressure_until: Some(at(60)), ..open() }, held(BlockedMs { backpressure: 50_000, ..none })),
        (EndpointGate { health: opened, ..open() }, held(BlockedMs { breaker: 50_000, ..none })),
    ];
    for (gate, expected) in cases {
        let (mut queues, a) = (node(), endpoint(1));
        queues.due_in_store(a, at(-50), at(0), || Some(gate.clone()));
        assert_eq!(lag(&queues, at(0)), expected, "{gate:?}");
        let closed = gate.health.reset(at(61));
        let health = if gate.health.open_until().is_some() { closed } else { gate.health.clone() };
        queues.update_gate(a, EndpointGate { health, ..open() }, at(61));
        assert_eq!(lag(&queues, at(63)).held_ms, none, "{gate:?}");
        assert!((2_000..=3_000).contains(&lag(&queues, at(63)).lag_ms), "{:?}", lag(&queues, at(63)));
    }
}

#[test]
fn a_pause_holds_nothing_once_the_last_that_waited_is_changed() {
    let (mut queues, a) = (node(), endpoint(1));
    let paused = || EndpointGate { state: EndpointState::Paused, ..open() };
    let held = |queues: &EndpointQueues| lag(queues, at(50)).held_ms.pause;
    for n in [1, 2] {
        queues.admit(claim(a, n, at(0)), Timestamp::MAX, at(0), || Some(paused()));
    }
    assert_eq!((held(&queues), queues.poll_due(at(50)).len()), (50_000, 0), "nothing is read for its own sake");
    queues.changed(a, claim(a, 1, at(0)).id, None, at(50), || unreachable!("it is known"));
    assert_eq!(queues.poll_due(at(50)).len(), 1, "the store knows what is left");
    queues.read_done(a, page(vec![claim(a, 2, at(0))], None), at(50), at(51));
    assert_eq!((held(&queues), queues.poll_due(at(50)).len()), (50_000, 0));
    // It is changed while the store is read, and that may still find it.
    queues.changed(a, claim(a, 3, at(0)).id, None, at(50), || unreachable!("it is known"));
    assert_eq!(queues.poll_due(at(50)).len(), 1);
    queues.changed(a, claim(a, 2, at(0)).id, None, at(50), || unreachable!("it is known"));
    queues.read_done(a, page(vec![claim(a, 2, at(0))], None), at(50), at(51));
    assert_eq!(queues.poll_due(at(50)).len(), 1);
    queues.read_done(a, None, at(50), at(51));
    assert_eq!((held(&queues), queues.poll_due(at(51)).len()), (50_000, 1), "it could not be read");
    queues.read_done(a, page(vec![], None), at(51), at(52));
    assert_eq!(held(&queues), 0);
    assert!(queues.take_next(at(51), None, || 1).is_none());
}

#[test]
fn a_breaker_that_tries_its_endpoint_out_still_holds_the_rest() {
    let (mut queues, a) = (node(), endpoint(1));
    let health = EndpointHealth::default().forced_open(Some(at(10)), Some("failing".into()), at(0));
    queues.due_in_store(a, at(-50), at(0), || Some(EndpointGate { health, ..open() }));
    assert_eq!(queues.poll_due(at(10)).len(), 1, "half open: one may go");
    queues.read_done(a, page(vec![claim(a, 1, at(-50)), claim(a, 2, at(-40))], None), at(10), at(20));
    assert!(queues.take_next(at(10), None, || 1).is_some() && queues.take_next(at(10), None, || 1).is_none());
    assert_eq!(lag(&queues, at(20)), Lag { lag_ms: 0, held_ms: BlockedMs { breaker: 60_000, ..BlockedMs::default() } });
}

#[test]
fn a_rate_that_is_met_holds_its_backlog_also_between_two_starts() {
    let (mut queues, a) = (node(), endpoint(1));
    let slow = EndpointGate { rate: Rate { per_second: 1.0, burst: 1 }, ..open() };
    for n in 0..3 {
        queues.admit(claim(a, n, at(0)), Timestamp::MAX, at(0), || Some(slow.clone()));
    }
    let (taken, _) = queues.take_next(at(0), None, || 1).unwrap();
    queues.apply_attempt_result(a, taken.id, None, at(0));
    queues.settled(&taken, None, at(0));
    let rate = |millis| Lag { lag_ms: 0, held_ms: BlockedMs { rate: millis, ..BlockedMs::default() } };
    let now = Timestamp::from_millisecond(at(0).as_millisecond() + 999).unwrap();
    assert_eq!(lag(&queues, now), rate(999));
    queues.poll_due(now);
    assert_eq!(lag(&queues, at(1)), rate(1_000), "it may go this moment, and has met its rate the moment before");
    assert_eq!(lag(&queues, at(9)), free(9), "it could have gone long ago");
}
