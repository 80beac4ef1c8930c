//! What goes next, asked without a store and without a clock.

use super::*;
use crate::lifecycle::deliver::tests::claim as any_claim;

const OPEN: Gate = Gate { is_open: true, cap: 2, quiet_until: None };
const CLOSED: Gate = Gate { is_open: false, cap: 2, quiet_until: None };

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
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
    let (mut queues, a) = (Queues::new(100), endpoint(1));
    for n in 0..3 {
        queues.admit(claim(a, n, None), OPEN, at(0));
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
    let (mut queues, stuck, free) = (Queues::new(100), endpoint(1), endpoint(2));
    for n in 0..50 {
        queues.admit(claim(stuck, n, None), OPEN, at(0));
    }
    queues.admit(claim(free, 100, None), OPEN, at(0));
    let started: Vec<EndpointId> = std::iter::from_fn(|| queues.take_next()).map(|claim| claim.endpoint).collect();
    assert_eq!(started.iter().filter(|id| **id == stuck).count(), 2);
    assert!(started.contains(&free));
}

#[test]
fn a_lane_has_one_in_flight_and_others_park_behind_it() {
    let (mut queues, a) = (Queues::new(100), endpoint(1));
    queues.admit(claim(a, 1, Some("k")), OPEN, at(0));
    queues.admit(claim(a, 2, Some("k")), OPEN, at(0));
    queues.admit(claim(a, 3, Some("j")), OPEN, at(0));
    let first = queues.take_next().unwrap();
    assert_eq!(queues.take_next().unwrap().lane.as_deref(), Some("j"));
    queues.answered(a);
    assert!(queues.take_next().is_none(), "answered is not settled: the lane is still taken");
    queues.settled(&first, None);
    assert_eq!(queues.take_next().unwrap().id, DeliveryId::mint(at(0), 2));
}

#[test]
fn what_does_not_fit_in_memory_is_read_from_the_store_later() {
    let (mut queues, a) = (Queues::new(10_000), endpoint(1));
    for n in 0..READY_MAX as u128 + 10 {
        queues.admit(claim(a, n, None), OPEN, at(0));
    }
    assert!(queues.take_reads(at(0)).is_empty(), "there is enough in memory");
    let mut started = Vec::new();
    while let Some(claim) = queues.take_next() {
        queues.answered(a);
        queues.settled(&claim, None);
        started.push(claim.id);
    }
    assert_eq!(started.len(), READY_MAX);
    let asks = queues.take_reads(at(0));
    assert_eq!(asks.len(), 1);
    let rest = (0..10).map(|n| claim(a, READY_MAX as u128 + n, None)).collect();
    queues.read_done(a, page(rest, None), at(0), at(1));
    assert!(queues.take_next().is_some());
    assert!(queues.take_reads(at(0)).is_empty());
}

#[test]
fn a_read_never_brings_back_what_was_settled_meanwhile() {
    let (mut queues, a) = (Queues::new(100), endpoint(1));
    queues.stored(a, at(0), OPEN);
    assert_eq!(queues.take_reads(at(0)).len(), 1);
    queues.read_done(a, page(vec![claim(a, 1, None)], Some(at(0))), at(0), at(1));
    let first = queues.take_next().unwrap();
    // A second read begins while the first claim is in flight, and its
    // answer was put together before that claim was settled.
    let asks = queues.take_reads(at(0));
    assert!(asks[0].except.contains(&first.id));
    queues.answered(a);
    queues.settled(&first, None);
    queues.read_done(a, page(vec![claim(a, 1, None)], None), at(0), at(1));
    assert!(queues.take_next().is_none());
}

#[test]
fn a_cancelled_delivery_is_not_started() {
    let (mut queues, a) = (Queues::new(100), endpoint(1));
    let waiting = claim(a, 1, None);
    queues.admit(waiting.clone(), OPEN, at(0));
    queues.changed(a, waiting.id, None, OPEN);
    assert!(queues.take_next().is_none());
    assert!(queues.endpoints.is_empty(), "nothing is left behind");
    assert_eq!(queues.ready_bytes, 0);
}

#[test]
fn a_pause_holds_and_a_resume_reads_again() {
    let (mut queues, a) = (Queues::new(100), endpoint(1));
    queues.admit(claim(a, 1, None), OPEN, at(0));
    queues.regate(a, CLOSED, at(0));
    queues.admit(claim(a, 2, None), CLOSED, at(0));
    assert!(queues.take_next().is_none());
    assert!(queues.take_reads(at(9)).is_empty());
    queues.regate(a, OPEN, at(9));
    assert_eq!(queues.take_reads(at(9)).len(), 1);
}

#[test]
fn a_retry_wakes_at_its_time_and_not_before() {
    let (mut queues, a) = (Queues::new(100), endpoint(1));
    queues.admit(claim(a, 1, None), OPEN, at(0));
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
    let (mut queues, a) = (Queues::new(100), endpoint(1));
    queues.admit(claim(a, 1, None), OPEN, at(0));
    queues.stored(endpoint(2), at(0), OPEN);
    queues.stop();
    assert!(queues.take_next().is_none());
    assert!(queues.take_reads(at(9)).is_empty());
    assert_eq!(queues.next_wake(), None, "a wake in the past would be waited for in a circle");
}

#[test]
fn slots_bound_everything_in_flight() {
    let mut queues = Queues::new(3);
    for n in 0..10 {
        queues.admit(claim(endpoint(n), n, None), OPEN, at(0));
    }
    let started: Vec<Claim> = std::iter::from_fn(|| queues.take_next()).collect();
    assert_eq!((started.len(), queues.in_flight()), (3, 3));
    queues.answered(started[0].endpoint);
    assert!(queues.take_next().is_none(), "a slot is held until the claim is settled");
    queues.settled(&started[0], None);
    assert!(queues.take_next().is_some());
}

const QUIET: Gate = Gate { is_open: true, cap: 2, quiet_until: Some(Timestamp::constant(100, 0)) };

fn urgent(of: EndpointId, n: u128) -> Claim {
    Claim { is_urgent: true, ..claim(of, n, None) }
}

#[test]
fn a_receiver_that_is_left_alone_is_read_for_at_the_end_of_it() {
    let (mut queues, a) = (Queues::new(100), endpoint(1));
    queues.admit(claim(a, 1, None), OPEN, at(0));
    queues.hush(a, &Notice::QuietUntil(at(100)), at(0));
    queues.admit(claim(a, 2, None), QUIET, at(1));
    assert!(queues.take_next().is_none());
    // One look for what a person may have asked for, and then no more.
    assert!(queues.take_reads(at(1))[0].urgent_only);
    queues.read_done(a, page(Vec::new(), Some(at(0))), at(1), at(9));
    assert_eq!(queues.next_wake(), Some(at(100)));
    assert!(!queues.take_reads(at(100))[0].urgent_only);
}

#[test]
fn what_a_person_asked_for_goes_all_the_same_page_by_page_and_put_back() {
    let (mut queues, a) = (Queues::new(100), endpoint(1));
    queues.changed(a, DeliveryId::mint(at(0), 1), Some(at(5)), QUIET);
    assert!(queues.take_reads(at(5))[0].urgent_only);
    let first = DuePage { claims: vec![urgent(a, 1)], next_due: Some(at(0)), next_urgent: Some(at(5)) };
    queues.read_done(a, Some(first), at(5), at(9));
    let claim = queues.take_next().unwrap();
    assert!(queues.take_reads(at(5))[0].urgent_only, "there is a second page");
    queues.read_done(a, None, at(5), at(9));
    assert_eq!(queues.next_wake(), Some(at(9)), "a read that failed is made again, and not at the end");
    // Put back through trouble of our own, it is still urgent.
    queues.answered(a);
    queues.settled(&claim, Some(at(7)));
    assert_eq!(queues.next_wake(), Some(at(7)));
    // A pause puts it out of mind, and a resume looks for it again.
    assert_eq!(queues.take_reads(at(7)).len(), 1);
    queues.read_done(a, page(vec![urgent(a, 1)], None), at(7), at(9));
    queues.regate(a, Gate { is_open: false, ..QUIET }, at(8));
    assert!(queues.take_next().is_none());
    queues.regate(a, QUIET, at(8));
    assert!(queues.take_reads(at(8))[0].urgent_only);
}

#[test]
fn what_a_receiver_asked_for_is_in_force_at_once_and_spares_the_urgent() {
    let (mut queues, a) = (Queues::new(100), endpoint(1));
    for n in 0..3 {
        queues.admit(claim(a, n, None), OPEN, at(0));
    }
    queues.admit(urgent(a, 9), OPEN, at(0));
    assert!(queues.take_next().is_some());
    queues.hush(a, &Notice::QuietUntil(at(100)), at(0));
    assert_eq!(queues.take_next().map(|claim| claim.is_urgent), Some(true));
    queues.answered(a);
    queues.hush(a, &Notice::Disable(String::new()), at(0));
    assert!(queues.take_next().is_none());
    assert_eq!(queues.next_wake(), None);
}
