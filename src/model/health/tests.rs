//! Tests of every phase of the breaker, and of when an endpoint is paused.

use super::*;
use crate::model::breaker::BreakerSettings;
use crate::model::endpoint_event::{CloseCause, EndpointEvent, OpenCause, PauseCause};
use crate::model::span::Span;
use crate::model::verdict::Verdict;

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(1_700_000_000_000 + millis).unwrap()
}

fn answer(verdict: Verdict, started: i64) -> BreakerInput {
    BreakerInput { verdict, is_limited: false, is_asked: false, started_at: at(started), answer: "answered so".into() }
}

/// A breaker with its settings, which observes answers one after the other.
struct Subject {
    circuit: CircuitBreaker,
    breaker: BreakerSettings,
    cap: usize,
    now: i64,
}

impl Subject {
    fn new() -> Self {
        Self { circuit: CircuitBreaker::default(), breaker: BreakerSettings::default(), cap: 10, now: 0 }
    }

    fn observe(&mut self, input: &BreakerInput) -> Vec<EndpointEvent> {
        let thresholds =
            BreakerThresholds { breaker: &self.breaker, cap: self.cap, quarantine: AutoPauseLimits::default() };
        self.circuit.observe(input, thresholds, at(self.now), 0.5)
    }

    /// Observes this verdict now, for a request that started now.
    fn record_verdict(&mut self, verdict: Verdict) -> Vec<EndpointEvent> {
        self.observe(&answer(verdict, self.now))
    }

    fn opened() -> Self {
        let mut subject = Self::new();
        for _ in 0..9 {
            assert!(subject.record_verdict(Verdict::Retry).is_empty());
        }
        assert!(matches!(subject.record_verdict(Verdict::Retry)[..], [EndpointEvent::BreakerOpened { .. }]));
        subject
    }

    fn state(&self) -> BreakerState {
        self.circuit.health.breaker(at(self.now))
    }

    fn width(&self) -> usize {
        self.circuit.health.open_requests_limit(self.cap, at(self.now))
    }

    fn probe_in(&self) -> i64 {
        self.circuit.health.open_until().unwrap().as_millisecond() - at(self.now).as_millisecond()
    }
}

#[test]
fn ten_failures_in_a_row_open_it_and_anything_else_between_does_not() {
    for other in [Verdict::Delivered, Verdict::Refused, Verdict::Gone] {
        let mut subject = Subject::new();
        for n in 0..18 {
            let events = subject.record_verdict(if n == 9 { other } else { Verdict::Retry });
            assert!(events.is_empty(), "{other:?} {n}");
        }
        assert_eq!(subject.state(), BreakerState::Closed);
    }
    let subject = Subject::opened();
    assert_eq!((subject.state(), subject.width()), (BreakerState::Open, 1));
    assert_eq!(subject.probe_in(), 10_500, "the cool-down, and a little by chance");
}

#[test]
fn asking_for_less_is_no_failure() {
    let mut subject = Subject::new();
    for _ in 0..100 {
        assert!(subject.observe(&BreakerInput { is_limited: true, ..answer(Verdict::Retry, 0) }).is_empty());
    }
    assert_eq!((subject.state(), subject.circuit.health.failures), (BreakerState::Closed, 0));
}

#[test]
fn a_share_of_failures_opens_it_within_the_window_only() {
    // Four of five fail, never ten in a row.
    let mut subject = Subject::new();
    let events: Vec<EndpointEvent> = (0..20)
        .flat_map(|n| subject.record_verdict(if n % 5 == 0 { Verdict::Delivered } else { Verdict::Retry }))
        .collect();
    let [EndpointEvent::BreakerOpened { cause, .. }] = &events[..] else { panic!("{events:?}") };
    let (window, answer) = (Span::secs(60), "answered so".to_owned());
    assert_eq!(*cause, OpenCause::FailureRatio { failed: 16, total: 20, window, answer });
    let sentence = "16 of 20 requests within 1m failed; the last answered so";
    assert_eq!(subject.circuit.health.reason.as_deref(), Some(sentence));
    // The same over more than the window.
    let mut subject = Subject::new();
    for n in 0..40 {
        subject.now = n * 6_000;
        assert!(subject.record_verdict(if n % 5 == 0 { Verdict::Delivered } else { Verdict::Retry }).is_empty(), "{n}");
    }
    // Three of five are not enough.
    let mut subject = Subject::new();
    for n in 0..200 {
        assert!(subject.record_verdict(if n % 5 < 2 { Verdict::Delivered } else { Verdict::Retry }).is_empty());
    }
}

#[test]
fn a_failed_probe_doubles_the_wait_up_to_its_limit() {
    let mut subject = Subject::opened();
    let mut waits = Vec::new();
    for _ in 0..9 {
        subject.now += subject.probe_in();
        assert_eq!(subject.state(), BreakerState::HalfOpen);
        assert!(matches!(subject.record_verdict(Verdict::Retry)[..], [EndpointEvent::ProbeFailed { .. }]));
        waits.push(subject.probe_in());
    }
    assert_eq!(waits[..4], [21_000, 42_000, 84_000, 168_000]);
    assert_eq!(waits[8], 630_000, "ten minutes, and a little by chance");
    assert_eq!(subject.circuit.health.since, Some(at(0)), "one outage");
}

#[test]
fn what_was_on_its_way_when_it_opened_is_no_probe() {
    for verdict in [Verdict::Delivered, Verdict::Refused, Verdict::Retry] {
        let mut subject = Subject::opened();
        let probe_in = subject.probe_in();
        // Begun before it opened, in the same tick, or just after: its turn had come before.
        for started in [subject.now - 1, subject.now, subject.now + 1] {
            let events = subject.observe(&answer(verdict, started));
            assert!(events.is_empty(), "{verdict:?}: {events:?}");
            assert_eq!((subject.state(), subject.probe_in()), (BreakerState::Open, probe_in));
        }
        let asked = BreakerInput { is_asked: true, ..answer(Verdict::Delivered, subject.now + 1) };
        let events = subject.observe(&asked);
        assert!(events.contains(&EndpointEvent::Recovered), "what a person asks for is a probe: {events:?}");
        assert_eq!(subject.state(), BreakerState::Ramp);
    }
}

#[test]
fn any_other_answer_to_a_probe_closes_it_into_a_ramp() {
    for verdict in [Verdict::Delivered, Verdict::Refused, Verdict::Gone] {
        let mut subject = Subject::opened();
        subject.now += subject.probe_in();
        let events = subject.record_verdict(verdict);
        let closed = EndpointEvent::BreakerClosed(CloseCause::Probe { answer: "answered so".into() });
        let reason = "the probe answered so; it ramps up from one request at a time";
        assert_eq!(closed.reason().as_deref(), Some(reason));
        assert!(events.contains(&closed), "{events:?}");
        assert_eq!(events.contains(&EndpointEvent::Recovered), verdict == Verdict::Delivered);
        assert_eq!((subject.state(), subject.width()), (BreakerState::Ramp, 1));
    }
    // One that only asks for less: the same wait again.
    let mut subject = Subject::opened();
    subject.now += subject.probe_in();
    let limited = BreakerInput { is_limited: true, ..answer(Verdict::Retry, subject.now) };
    assert!(subject.observe(&limited).is_empty());
    assert_eq!(subject.probe_in(), 10_500);
    // One that a person asked for before its time.
    let mut subject = Subject::opened();
    subject.now = 1_000;
    let failed = BreakerInput { is_asked: true, ..answer(Verdict::Retry, 1_000) };
    assert!(matches!(subject.observe(&failed)[..], [EndpointEvent::ProbeFailed { .. }]));
    assert_eq!(subject.probe_in(), 21_000);
    let arrived = BreakerInput { is_asked: true, ..answer(Verdict::Delivered, 1_000) };
    assert!(subject.observe(&arrived).contains(&EndpointEvent::Recovered));
}

#[test]
fn what_was_on_its_way_when_it_opened_neither_closes_nor_prolongs_it() {
    let mut subject = Subject::new();
    subject.now = 1_000;
    for _ in 0..10 {
        subject.record_verdict(Verdict::Retry);
    }
    let until = subject.circuit.health.open_until();
    subject.now = 2_000;
    for (verdict, started) in [(Verdict::Delivered, 999), (Verdict::Retry, 1_000), (Verdict::Refused, 1_001)] {
        assert!(subject.observe(&answer(verdict, started)).is_empty(), "{verdict:?}");
        assert_eq!((subject.state(), subject.circuit.health.open_until()), (BreakerState::Open, until));
    }
}

#[test]
fn the_ramp_doubles_with_answers_and_time_and_ends_at_the_cap() {
    let mut subject = Subject::opened();
    subject.now += subject.probe_in();
    subject.record_verdict(Verdict::Delivered);
    let began = subject.now;
    let mut widths = vec![(0, subject.width())];
    while subject.state() == BreakerState::Ramp {
        subject.now += 10;
        subject.record_verdict(Verdict::Delivered);
        if widths.last().unwrap().1 != subject.width() {
            widths.push((subject.now - began, subject.width()));
        }
    }
    assert_eq!(widths, [(0, 1), (500, 2), (1_000, 4), (1_500, 8), (2_000, 10)]);
    assert_eq!(subject.circuit.health.trips, 0);
}

#[test]
fn the_ramp_is_one_in_requests_per_second_too() {
    let health =
        |width| EndpointHealth { phase: BreakerPhase::Ramp { width }, since: Some(at(0)), ..EndpointHealth::default() };
    let full = Rate { per_second: 500.0, burst: 50 };
    assert_eq!(health(1).rate(full, 10, at(0)), Rate { per_second: 50.0, burst: 1 });
    assert_eq!(health(8).rate(full, 10, at(0)), Rate { per_second: 400.0, burst: 8 });
    assert_eq!(health(1).rate(full, 10, at(60_000)), full, "nothing came for it");
    let slow = Rate { per_second: 2.0, burst: 5 };
    assert_eq!(health(1).rate(slow, 10, at(0)), Rate { per_second: 2.0, burst: 1 });
    assert_eq!(EndpointHealth::default().rate(full, 10, at(0)), full);
}

#[test]
fn failing_again_while_recovering_narrows_the_ramp_and_then_opens_it_for_longer() {
    let mut subject = Subject::opened();
    subject.now += subject.probe_in();
    subject.record_verdict(Verdict::Delivered);
    for _ in 0..150 {
        subject.now += 10;
        subject.record_verdict(Verdict::Delivered);
    }
    assert_eq!(subject.width(), 8);
    assert!(subject.record_verdict(Verdict::Retry).is_empty());
    assert_eq!(subject.width(), 4);
    assert!(subject.record_verdict(Verdict::Retry).is_empty());
    assert!(matches!(subject.record_verdict(Verdict::Retry)[..], [EndpointEvent::BreakerOpened { .. }]));
    assert_eq!(subject.probe_in(), 21_000, "it had not recovered for good");
}

#[test]
fn a_breaker_that_is_switched_off_hears_nothing() {
    let mut subject = Subject::new();
    subject.breaker.enabled = false;
    for _ in 0..100 {
        assert!(subject.record_verdict(Verdict::Retry).is_empty());
    }
    assert_eq!(subject.state(), BreakerState::Closed);
}

#[test]
fn a_ramp_goes_on_also_where_the_breaker_is_switched_off() {
    let mut subject = Subject::new();
    subject.breaker.enabled = false;
    subject.circuit.adopt(&EndpointHealth::default().forced_open(Some(at(1_000)), Some("a moment".into()), at(0)));
    subject.now = 1_000;
    assert_eq!(subject.state(), BreakerState::HalfOpen);
    subject.record_verdict(Verdict::Retry);
    assert_eq!((subject.state(), subject.width()), (BreakerState::Closed, 10), "nothing keeps it open");
    subject.circuit.adopt(&subject.circuit.health.reset(at(2_000)));
    for n in 0..210 {
        subject.now = 2_000 + 10 * n;
        subject.record_verdict(if n % 7 == 6 { Verdict::Retry } else { Verdict::Delivered });
        assert_ne!(subject.state(), BreakerState::Open);
    }
    subject.now += 60_000;
    assert_eq!(subject.width(), 10);
}

#[test]
fn one_that_asks_for_less_while_recovering_does_not_get_more() {
    let mut subject = Subject::opened();
    subject.now += subject.probe_in();
    subject.record_verdict(Verdict::Delivered);
    for _ in 0..100 {
        subject.now += 10;
        let limited = BreakerInput { is_limited: true, ..answer(Verdict::Retry, subject.now) };
        subject.observe(&limited);
    }
    assert_eq!((subject.state(), subject.width()), (BreakerState::Ramp, 1));
}

#[test]
fn a_person_opens_it_for_good_or_for_a_time_and_closes_it_into_a_ramp() {
    let mut subject = Subject::new();
    subject.circuit.adopt(&EndpointHealth::default().forced_open(None, Some("maintenance".into()), at(0)));
    subject.now = 86_400_000;
    assert_eq!(subject.state(), BreakerState::Open);
    for verdict in [Verdict::Delivered, Verdict::Retry] {
        assert!(subject.record_verdict(verdict).is_empty());
        assert!(subject.circuit.health.is_forced(), "only a person closes it");
    }
    let closed = subject.circuit.health.reset(at(subject.now));
    subject.circuit.adopt(&closed);
    assert_eq!((subject.state(), subject.width()), (BreakerState::Ramp, 1));
    let for_a_while = closed.forced_open(Some(at(86_401_000)), Some("a moment".into()), at(86_400_000));
    subject.circuit.adopt(&for_a_while);
    subject.now += 1_000;
    assert_eq!(subject.state(), BreakerState::HalfOpen);
}

#[test]
fn what_was_heard_before_a_fresh_start_says_nothing_after_it() {
    let mut subject = Subject::opened();
    let stale = subject.circuit.health.clone();
    subject.now = 5_000;
    let fresh = subject.circuit.health.reset(at(5_000));
    assert!(fresh.is_after(&stale) && !stale.is_after(&fresh));
    subject.circuit.adopt(&fresh);
    for _ in 0..20 {
        assert!(subject.observe(&answer(Verdict::Retry, 4_999)).is_empty());
    }
    assert_eq!(subject.circuit.health, fresh);
    subject.circuit.adopt(&stale);
    assert_eq!(subject.circuit.health, fresh);
}

#[test]
fn more_than_a_hundred_permanent_answers_pause_it_and_only_a_success_starts_the_count_anew() {
    let mut subject = Subject::new();
    for n in 0..100 {
        assert!(subject.record_verdict(Verdict::Refused).is_empty(), "{n}");
        if n % 10 == 0 {
            subject.record_verdict(Verdict::Retry);
        }
    }
    let events = subject.record_verdict(Verdict::Gone);
    let cause = PauseCause::Refusals { count: 101, answer: "answered so".into() };
    assert_eq!(events, [EndpointEvent::Paused(cause)]);
    let mut subject = Subject::new();
    for n in 0..1_000 {
        assert!(
            subject.record_verdict(if n % 101 == 100 { Verdict::Delivered } else { Verdict::Refused }).is_empty(),
            "{n}"
        );
    }
}

#[test]
fn five_days_of_nothing_but_failure_pause_it() {
    let (hour, day) = (3_600_000, 86_400_000);
    let mut subject = Subject::new();
    let mut quarantined = None;
    while subject.now < 6 * day && quarantined.is_none() {
        let events =
            subject.record_verdict(if subject.now % (3 * hour) == 0 { Verdict::Refused } else { Verdict::Retry });
        quarantined =
            events.into_iter().find(|event| matches!(event, EndpointEvent::Paused(PauseCause::Failing { .. })));
        subject.now += hour;
    }
    assert_eq!(subject.now, 5 * day + hour);
    let sentence = "nothing but failures for 5d, 121 in all; the last answered so";
    assert_eq!(quarantined.unwrap().reason().as_deref(), Some(sentence));
    // Two failures far apart are no five days of failure.
    let mut subject = Subject::new();
    subject.record_verdict(Verdict::Retry);
    subject.now = 20 * day;
    assert!(subject.record_verdict(Verdict::Retry).is_empty());
    // Nor are many with a success in between.
    let mut subject = Subject::new();
    for n in 0..240 {
        subject.now = n * hour;
        let events = subject.record_verdict(if n == 100 { Verdict::Delivered } else { Verdict::Refused });
        assert!(!events.iter().any(|event| matches!(event, EndpointEvent::Paused(_))) || n >= 200, "{n}");
    }
}

#[test]
fn health_is_kept_as_text_and_an_empty_one_is_healthy() {
    let read = |text: &str| serde_json::from_str::<EndpointHealth>(text).unwrap();
    assert_eq!(read("{}"), EndpointHealth::default());
    let subject = Subject::opened();
    let text = serde_json::to_string(&subject.circuit.health).unwrap();
    assert_eq!(read(&text), subject.circuit.health);
}

#[test]
fn the_ramp_of_a_start_opens_by_the_usual_thresholds_and_that_of_a_recovery_by_three() {
    let mut started = Subject::new();
    started.circuit.adopt(&EndpointHealth { version: 1, ..EndpointHealth::default() }.after_take_over(at(0)));
    assert_eq!(started.state(), BreakerState::Ramp);
    for failure in 1..10 {
        assert!(started.record_verdict(Verdict::Retry).is_empty(), "{failure}");
        assert_eq!((started.state(), started.width()), (BreakerState::Ramp, 1));
    }
    assert!(matches!(started.record_verdict(Verdict::Retry)[..], [EndpointEvent::BreakerOpened { .. }]));
    assert_eq!(started.circuit.health.trips, 0, "it is the first cool-down of an outage");

    let mut recovering = Subject::opened();
    recovering.now += recovering.probe_in();
    recovering.record_verdict(Verdict::Delivered);
    assert_eq!(recovering.state(), BreakerState::Ramp);
    for _ in 0..2 {
        assert!(recovering.record_verdict(Verdict::Retry).is_empty());
    }
    assert!(matches!(recovering.record_verdict(Verdict::Retry)[..], [EndpointEvent::BreakerOpened { .. }]));
    assert_eq!(recovering.circuit.health.trips, 1);
}

#[test]
fn the_time_of_an_outage_adds_up_only_where_the_breaker_pauses_age() {
    for pauses_age in [false, true] {
        let mut subject = Subject::opened();
        subject.breaker.pauses_age = pauses_age;
        let time_excluded_from_age = |subject: &Subject| {
            subject.circuit.health.time_excluded_from_age(&subject.breaker, at(subject.now)).as_millis() as u64
        };
        subject.now = 3_600_000;
        subject.record_verdict(Verdict::Retry);
        assert_eq!(
            time_excluded_from_age(&subject),
            if pauses_age { 3_600_000 } else { 0 },
            "a failed probe ends no outage"
        );
        subject.now = 7_200_000;
        subject.record_verdict(Verdict::Delivered);
        subject.now = 9_000_000;
        let outage = if pauses_age { 7_200_000 } else { 0 };
        assert_eq!(time_excluded_from_age(&subject), outage, "closed, it adds nothing");
        assert_eq!(subject.circuit.health.reset(at(9_000_000)).unaged_ms, outage, "a fresh start forgets none of it");
    }
}
