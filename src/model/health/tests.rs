//! The breaker's whole life, and when an endpoint is paused.

use super::*;

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(1_700_000_000_000 + millis).unwrap()
}

fn heard(verdict: Verdict, started: i64) -> BreakerInput {
    BreakerInput { verdict, is_limited: false, is_asked: false, started_at: at(started), answer: "answered so".into() }
}

/// An endpoint under these settings, told answers one after the other.
struct Patient {
    pulse: CircuitBreaker,
    breaker: BreakerSettings,
    cap: usize,
    now: i64,
}

impl Patient {
    fn new() -> Self {
        Self { pulse: CircuitBreaker::default(), breaker: BreakerSettings::default(), cap: 10, now: 0 }
    }

    fn hear(&mut self, heard: &BreakerInput) -> Vec<BreakerEvent> {
        let by = BreakerThresholds { breaker: &self.breaker, cap: self.cap, quarantine: Quarantine::default() };
        self.pulse.observe(heard, by, at(self.now), 0.5)
    }

    /// Answers this now, to a request that began now.
    fn says(&mut self, verdict: Verdict) -> Vec<BreakerEvent> {
        self.hear(&heard(verdict, self.now))
    }

    fn opened() -> Self {
        let mut patient = Self::new();
        for _ in 0..9 {
            assert!(patient.says(Verdict::Retry).is_empty());
        }
        assert!(matches!(patient.says(Verdict::Retry)[..], [BreakerEvent::Opened { is_again: false, .. }]));
        patient
    }

    fn state(&self) -> BreakerState {
        self.pulse.health.breaker(at(self.now))
    }

    fn width(&self) -> usize {
        self.pulse.health.width(self.cap, at(self.now))
    }

    fn probe_in(&self) -> i64 {
        self.pulse.health.open_until().unwrap().as_millisecond() - at(self.now).as_millisecond()
    }
}

#[test]
fn ten_failures_in_a_row_open_it_and_anything_else_between_does_not() {
    for other in [Verdict::Delivered, Verdict::Refused, Verdict::Gone] {
        let mut patient = Patient::new();
        for n in 0..18 {
            let turns = patient.says(if n == 9 { other } else { Verdict::Retry });
            assert!(turns.is_empty(), "{other:?} {n}");
        }
        assert_eq!(patient.state(), BreakerState::Closed);
    }
    let patient = Patient::opened();
    assert_eq!((patient.state(), patient.width()), (BreakerState::Open, 1));
    assert_eq!(patient.probe_in(), 10_500, "the cool-down, and a little by chance");
}

#[test]
fn asking_for_less_is_no_failure() {
    let mut patient = Patient::new();
    for _ in 0..100 {
        assert!(patient.hear(&BreakerInput { is_limited: true, ..heard(Verdict::Retry, 0) }).is_empty());
    }
    assert_eq!((patient.state(), patient.pulse.health.failures), (BreakerState::Closed, 0));
}

#[test]
fn a_share_of_failures_opens_it_within_the_window_only() {
    // Four of five fail, never ten in a row.
    let mut patient = Patient::new();
    let turns: Vec<BreakerEvent> =
        (0..20).flat_map(|n| patient.says(if n % 5 == 0 { Verdict::Delivered } else { Verdict::Retry })).collect();
    assert!(
        matches!(&turns[..], [BreakerEvent::Opened { reason, .. }] if reason.starts_with("16 of 20 requests within 1m failed")),
        "{turns:?}"
    );
    // The same over more than the window.
    let mut patient = Patient::new();
    for n in 0..40 {
        patient.now = n * 6_000;
        assert!(patient.says(if n % 5 == 0 { Verdict::Delivered } else { Verdict::Retry }).is_empty(), "{n}");
    }
    // Three of five are not enough.
    let mut patient = Patient::new();
    for n in 0..200 {
        assert!(patient.says(if n % 5 < 2 { Verdict::Delivered } else { Verdict::Retry }).is_empty());
    }
}

#[test]
fn a_failed_probe_doubles_the_wait_up_to_its_limit() {
    let mut patient = Patient::opened();
    let mut waits = Vec::new();
    for _ in 0..9 {
        patient.now += patient.probe_in();
        assert_eq!(patient.state(), BreakerState::HalfOpen);
        assert!(matches!(patient.says(Verdict::Retry)[..], [BreakerEvent::Opened { is_again: true, .. }]));
        waits.push(patient.probe_in());
    }
    assert_eq!(waits[..4], [21_000, 42_000, 84_000, 168_000]);
    assert_eq!(waits[8], 630_000, "ten minutes, and a little by chance");
    assert_eq!(patient.pulse.health.since, Some(at(0)), "one outage");
}

#[test]
fn what_was_on_its_way_when_it_opened_is_no_probe() {
    for verdict in [Verdict::Delivered, Verdict::Refused, Verdict::Retry] {
        let mut patient = Patient::opened();
        let probe_in = patient.probe_in();
        // Begun before it opened, in the same tick, or just after: its turn had come before.
        for started in [patient.now - 1, patient.now, patient.now + 1] {
            let turns = patient.hear(&heard(verdict, started));
            assert!(turns.is_empty(), "{verdict:?}: {turns:?}");
            assert_eq!((patient.state(), patient.probe_in()), (BreakerState::Open, probe_in));
        }
        let asked = BreakerInput { is_asked: true, ..heard(Verdict::Delivered, patient.now + 1) };
        let turns = patient.hear(&asked);
        assert!(turns.contains(&BreakerEvent::Recovered), "what a person asks for is a probe: {turns:?}");
        assert_eq!(patient.state(), BreakerState::Ramp);
    }
}

#[test]
fn any_other_answer_to_a_probe_closes_it_into_a_ramp() {
    for verdict in [Verdict::Delivered, Verdict::Refused, Verdict::Gone] {
        let mut patient = Patient::opened();
        patient.now += patient.probe_in();
        let turns = patient.says(verdict);
        assert!(turns.contains(&BreakerEvent::Closed { reason: "the probe answered so".into() }), "{turns:?}");
        assert_eq!(turns.contains(&BreakerEvent::Recovered), verdict == Verdict::Delivered);
        assert_eq!((patient.state(), patient.width()), (BreakerState::Ramp, 1));
    }
    // One that only asks for less: the same wait again.
    let mut patient = Patient::opened();
    patient.now += patient.probe_in();
    let limited = BreakerInput { is_limited: true, ..heard(Verdict::Retry, patient.now) };
    assert!(patient.hear(&limited).is_empty());
    assert_eq!(patient.probe_in(), 10_500);
    // One that a person asked for before its time.
    let mut patient = Patient::opened();
    patient.now = 1_000;
    let failed = BreakerInput { is_asked: true, ..heard(Verdict::Retry, 1_000) };
    assert!(matches!(patient.hear(&failed)[..], [BreakerEvent::Opened { is_again: true, .. }]));
    assert_eq!(patient.probe_in(), 21_000);
    let arrived = BreakerInput { is_asked: true, ..heard(Verdict::Delivered, 1_000) };
    assert!(patient.hear(&arrived).contains(&BreakerEvent::Recovered));
}

#[test]
fn what_was_on_its_way_when_it_opened_neither_closes_nor_prolongs_it() {
    let mut patient = Patient::new();
    patient.now = 1_000;
    for _ in 0..10 {
        patient.says(Verdict::Retry);
    }
    let until = patient.pulse.health.open_until();
    patient.now = 2_000;
    for (verdict, started) in [(Verdict::Delivered, 999), (Verdict::Retry, 1_000), (Verdict::Refused, 1_001)] {
        assert!(patient.hear(&heard(verdict, started)).is_empty(), "{verdict:?}");
        assert_eq!((patient.state(), patient.pulse.health.open_until()), (BreakerState::Open, until));
    }
}

#[test]
fn the_ramp_doubles_with_answers_and_time_and_ends_at_the_cap() {
    let mut patient = Patient::opened();
    patient.now += patient.probe_in();
    patient.says(Verdict::Delivered);
    let began = patient.now;
    let mut widths = vec![(0, patient.width())];
    while patient.state() == BreakerState::Ramp {
        patient.now += 10;
        patient.says(Verdict::Delivered);
        if widths.last().unwrap().1 != patient.width() {
            widths.push((patient.now - began, patient.width()));
        }
    }
    assert_eq!(widths, [(0, 1), (500, 2), (1_000, 4), (1_500, 8), (2_000, 10)]);
    assert_eq!(patient.pulse.health.trips, 0);
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
    let mut patient = Patient::opened();
    patient.now += patient.probe_in();
    patient.says(Verdict::Delivered);
    for _ in 0..150 {
        patient.now += 10;
        patient.says(Verdict::Delivered);
    }
    assert_eq!(patient.width(), 8);
    assert!(patient.says(Verdict::Retry).is_empty());
    assert_eq!(patient.width(), 4);
    assert!(patient.says(Verdict::Retry).is_empty());
    assert!(matches!(patient.says(Verdict::Retry)[..], [BreakerEvent::Opened { is_again: false, .. }]));
    assert_eq!(patient.probe_in(), 21_000, "it had not recovered for good");
}

#[test]
fn a_breaker_that_is_switched_off_hears_nothing() {
    let mut patient = Patient::new();
    patient.breaker.enabled = false;
    for _ in 0..100 {
        assert!(patient.says(Verdict::Retry).is_empty());
    }
    assert_eq!(patient.state(), BreakerState::Closed);
}

#[test]
fn a_ramp_goes_on_also_where_the_breaker_is_switched_off() {
    let mut patient = Patient::new();
    patient.breaker.enabled = false;
    patient.pulse.adopt(&EndpointHealth::default().forced_open(Some(at(1_000)), "a moment".into(), at(0)));
    patient.now = 1_000;
    assert_eq!(patient.state(), BreakerState::HalfOpen);
    patient.says(Verdict::Retry);
    assert_eq!((patient.state(), patient.width()), (BreakerState::Closed, 10), "nothing keeps it open");
    patient.pulse.adopt(&patient.pulse.health.reset(at(2_000)));
    for n in 0..210 {
        patient.now = 2_000 + 10 * n;
        patient.says(if n % 7 == 6 { Verdict::Retry } else { Verdict::Delivered });
        assert_ne!(patient.state(), BreakerState::Open);
    }
    patient.now += 60_000;
    assert_eq!(patient.width(), 10);
}

#[test]
fn one_that_asks_for_less_while_recovering_does_not_get_more() {
    let mut patient = Patient::opened();
    patient.now += patient.probe_in();
    patient.says(Verdict::Delivered);
    for _ in 0..100 {
        patient.now += 10;
        let limited = BreakerInput { is_limited: true, ..heard(Verdict::Retry, patient.now) };
        patient.hear(&limited);
    }
    assert_eq!((patient.state(), patient.width()), (BreakerState::Ramp, 1));
}

#[test]
fn a_person_opens_it_for_good_or_for_a_time_and_closes_it_into_a_ramp() {
    let mut patient = Patient::new();
    patient.pulse.adopt(&EndpointHealth::default().forced_open(None, "maintenance".into(), at(0)));
    patient.now = 86_400_000;
    assert_eq!(patient.state(), BreakerState::Open);
    for verdict in [Verdict::Delivered, Verdict::Retry] {
        assert!(patient.says(verdict).is_empty());
        assert!(patient.pulse.health.is_forced(), "only a person closes it");
    }
    let closed = patient.pulse.health.reset(at(patient.now));
    patient.pulse.adopt(&closed);
    assert_eq!((patient.state(), patient.width()), (BreakerState::Ramp, 1));
    let for_a_while = closed.forced_open(Some(at(86_401_000)), "a moment".into(), at(86_400_000));
    patient.pulse.adopt(&for_a_while);
    patient.now += 1_000;
    assert_eq!(patient.state(), BreakerState::HalfOpen);
}

#[test]
fn what_was_heard_before_a_fresh_start_says_nothing_after_it() {
    let mut patient = Patient::opened();
    let stale = patient.pulse.health.clone();
    patient.now = 5_000;
    let fresh = patient.pulse.health.reset(at(5_000));
    assert!(fresh.is_after(&stale) && !stale.is_after(&fresh));
    patient.pulse.adopt(&fresh);
    for _ in 0..20 {
        assert!(patient.hear(&heard(Verdict::Retry, 4_999)).is_empty());
    }
    assert_eq!(patient.pulse.health, fresh);
    patient.pulse.adopt(&stale);
    assert_eq!(patient.pulse.health, fresh);
}

#[test]
fn more_than_a_hundred_permanent_answers_pause_it_and_only_a_success_starts_the_count_anew() {
    let mut patient = Patient::new();
    for n in 0..100 {
        assert!(patient.says(Verdict::Refused).is_empty(), "{n}");
        if n % 10 == 0 {
            patient.says(Verdict::Retry);
        }
    }
    let turns = patient.says(Verdict::Gone);
    assert!(
        matches!(&turns[..], [BreakerEvent::Quarantined { reason }] if reason.starts_with("101 permanent answers")),
        "{turns:?}"
    );
    let mut patient = Patient::new();
    for n in 0..1_000 {
        assert!(patient.says(if n % 101 == 100 { Verdict::Delivered } else { Verdict::Refused }).is_empty(), "{n}");
    }
}

#[test]
fn five_days_of_nothing_but_failure_pause_it() {
    let (hour, day) = (3_600_000, 86_400_000);
    let mut patient = Patient::new();
    let mut quarantined = None;
    while patient.now < 6 * day && quarantined.is_none() {
        let turns = patient.says(if patient.now % (3 * hour) == 0 { Verdict::Refused } else { Verdict::Retry });
        quarantined = turns.into_iter().find(|turn| matches!(turn, BreakerEvent::Quarantined { .. }));
        patient.now += hour;
    }
    assert_eq!(patient.now, 5 * day + hour);
    // Two failures far apart are no five days of failure.
    let mut patient = Patient::new();
    patient.says(Verdict::Retry);
    patient.now = 20 * day;
    assert!(patient.says(Verdict::Retry).is_empty());
    // Nor are many with a success in between.
    let mut patient = Patient::new();
    for n in 0..240 {
        patient.now = n * hour;
        let turns = patient.says(if n == 100 { Verdict::Delivered } else { Verdict::Refused });
        assert!(!turns.iter().any(|turn| matches!(turn, BreakerEvent::Quarantined { .. })) || n >= 200, "{n}");
    }
}

#[test]
fn health_is_kept_as_text_and_an_empty_one_is_healthy() {
    let read = |text: &str| serde_json::from_str::<EndpointHealth>(text).unwrap();
    assert_eq!(read("{}"), EndpointHealth::default());
    let patient = Patient::opened();
    let text = serde_json::to_string(&patient.pulse.health).unwrap();
    assert_eq!(read(&text), patient.pulse.health);
}
