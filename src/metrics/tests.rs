//! Tests that the metrics add up, stay few, and keep their names.

use super::*;
use crate::model::answer::{AttemptFailure, FailureKind, Timings};
use crate::model::attempt::Decision;
use crate::model::endpoint_event::{CloseCause, DisableCause, OpenCause, PauseCause};
use crate::model::named_enum::NamedEnum;
use crate::model::span::Span;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn fresh() -> Metrics {
    Metrics::new(at(0))
}

/// Gauges of which every one is known.
fn known() -> Gauges {
    Gauges {
        in_flight: 3,
        slots: 1_000,
        slo_target: Some(0.999),
        waiting: Some(12),
        oldest_due: Some(Duration::from_millis(1_500)),
        held: vec![("breaker", Duration::from_secs(60)), ("rate", Duration::ZERO)],
        disk_free: Some(1_000_000),
        disk_reserve: Some(500_000),
        dead_letters: Some(40),
        oldest_dead_letter: Some(Duration::from_secs(3_600)),
        in_retry_over_24h: Some(2),
        jobs: vec![("running", 1), ("paused", 0), ("queued", 2)],
        certificate_end: Some(Duration::from_secs(86_400)),
        server_certificate_end: Some(Duration::from_secs(7_200)),
        secret_end: Some(Duration::from_secs(3_600)),
        endpoints: EndpointCounts { active: 5, paused: 1, disabled: 2 },
        breakers: Some(BreakerCounts { closed: 6, open: 1, half_open: 1, ramp: 0 }),
        shards_owned: 86,
        lease_remaining: Some(Duration::from_millis(12_500)),
        self_test_age: Some(Duration::from_secs(7)),
        clock_jumps: 1,
        clock_off: Duration::from_millis(250),
    }
}

fn attempt(number: u32, verdict: Verdict, result: Result<u16, FailureKind>) -> Attempt {
    Attempt {
        number,
        started_at: at(10),
        timings: Timings { total: 40.0, ..Timings::default() },
        url: String::new(),
        url_version: 1,
        status: result.ok(),
        error: result.err().map(|kind| AttemptFailure::new(kind, "")),
        refused_target: None,
        custom_headers: Vec::new(),
        signatures: Vec::new(),
        secret_id: None,
        traceparent: None,
        response_headers: Vec::new(),
        response_body: String::new(),
        truncated: false,
        body_sha256: String::new(),
        decision: Decision::of(verdict, "a rule"),
    }
}

/// The value of one series, by its name and labels as written.
#[track_caller]
fn value(metrics: &Metrics, series: &str) -> f64 {
    let text = metrics.encode(&known());
    let line = text.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
    let line = line.unwrap_or_else(|| panic!("there is no {series} in\n{text}"));
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

#[test]
fn the_names_helps_types_and_labels_are_those_that_were_agreed_on() {
    let text = fresh().encode(&known());
    insta::assert_snapshot!(text.replace(env!("CARGO_PKG_VERSION"), "VERSION"));
}

#[test]
fn no_amount_of_work_makes_more_series() {
    let series = |metrics: &Metrics| -> Vec<String> {
        let text = metrics.encode(&known());
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        samples.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
    };
    let metrics = fresh();
    let before = series(&metrics);
    assert!(before.len() <= 400, "{} series are many", before.len());
    let distinct: std::collections::BTreeSet<_> = before.iter().collect();
    assert_eq!(distinct.len(), before.len(), "no series is there twice");
    for code in ["id_conflict", "something_new", ""] {
        metrics.count_refused(code);
    }
    for status in 100..=999 {
        for verdict in [Verdict::Delivered, Verdict::Retry, Verdict::Refused, Verdict::Gone] {
            metrics.count_attempt(&attempt(1, verdict, Ok(status)), NextState::Delivered, 1, Some(at(0)), at(11));
        }
    }
    metrics.count_dead(DeadCause::Gone, 1_000_000, true);
    metrics.commit_metrics().record_commit(1_000_000, Duration::from_secs(1_000_000));
    assert_eq!(series(&metrics), before);
}

#[test]
fn what_is_not_known_is_not_shown() {
    let text = fresh().encode(&Gauges::default());
    for name in ["deliveries_waiting", "oldest_due_age", "breakers"] {
        assert!(!text.contains(&format!("posthaste_{name}")), "{name}");
    }
    assert!(text.contains("\nposthaste_in_flight 0\n"), "{text}");
}

#[test]
fn an_attempt_counts_by_its_verdict_and_by_what_came_back() {
    let metrics = fresh();
    let series =
        |verdict: &str, result: &str| format!("posthaste_attempts_total{{verdict=\"{verdict}\",result=\"{result}\"}}");
    let cases = [
        (Verdict::Delivered, Ok(204), "delivered", "2xx"),
        (Verdict::Retry, Ok(302), "retry", "3xx"),
        (Verdict::Refused, Ok(400), "refused", "4xx"),
        (Verdict::Retry, Ok(429), "retry", "429"),
        (Verdict::Retry, Ok(503), "retry", "5xx"),
        (Verdict::Gone, Ok(410), "gone", "4xx"),
        (Verdict::Retry, Ok(700), "retry", "other"),
        (Verdict::Retry, Ok(199), "retry", "other"),
    ];
    for (verdict, result, verdict_text, result_text) in cases {
        let before = value(&metrics, &series(verdict_text, result_text));
        metrics.count_attempt(
            &attempt(3, verdict, result),
            NextState::Waiting { due_at: at(60) },
            3,
            Some(at(0)),
            at(11),
        );
        assert_eq!(value(&metrics, &series(verdict_text, result_text)), before + 1.0, "{result:?}");
    }
    for &kind in FailureKind::ALL {
        metrics.count_attempt(
            &attempt(3, Verdict::Retry, Err(kind)),
            NextState::Waiting { due_at: at(60) },
            3,
            Some(at(0)),
            at(11),
        );
        assert_eq!(value(&metrics, &series("retry", kind.as_str())), 1.0, "{kind:?}");
    }
    let attempts = (cases.len() + FailureKind::ALL.len()) as f64;
    assert_eq!(value(&metrics, "posthaste_attempt_duration_seconds_count"), attempts);
    let sum = value(&metrics, "posthaste_attempt_duration_seconds_sum");
    assert!((sum - 0.04 * attempts).abs() < 1e-9, "milliseconds became seconds: {sum}");
    assert_eq!(value(&metrics, "posthaste_delivery_attempts_count{state=\"dead\"}"), 0.0, "none is finished");
}

#[test]
fn every_end_of_a_delivery_has_its_own_figure() {
    let metrics = fresh();
    let finished = |state: &str, cause: &str| {
        value(&metrics, &format!("posthaste_deliveries_finished_total{{state=\"{state}\",cause=\"{cause}\"}}"))
    };
    let ended = |next| metrics.count_attempt(&attempt(2, Verdict::Retry, Ok(500)), next, 2, Some(at(0)), at(11));
    ended(NextState::Dead(DeadCause::Exhausted));
    ended(NextState::Dead(DeadCause::Refused));
    ended(NextState::Dead(DeadCause::Gone));
    ended(NextState::Delivered);
    assert_eq!(finished("dead", "expired"), 0.0);
    ended(NextState::ExpiredByProducer);
    metrics.count_dead(DeadCause::Expired, 0, true);
    metrics.count_cancelled(7);
    for cause in [DeadCause::Exhausted, DeadCause::Refused, DeadCause::Gone] {
        assert_eq!(finished("dead", cause.as_str()), 1.0, "{cause:?}");
    }
    assert_eq!((finished("dead", "expired"), finished("delivered", "none")), (2.0, 1.0));
    assert_eq!((finished("cancelled", "none"), finished("dead", "poisoned")), (7.0, 0.0));
    let attempts =
        |what: &str, state: &str| value(&metrics, &format!("posthaste_delivery_attempts_{what}{{state=\"{state}\"}}"));
    assert_eq!((attempts("count", "dead"), attempts("sum", "dead")), (5.0, 8.0));
    assert_eq!((attempts("count", "delivered"), attempts("sum", "delivered")), (1.0, 2.0));
}

#[test]
fn second_attempts_are_told_from_first_ones_and_a_replay_begins_anew() {
    let metrics = fresh();
    let early = |number: &str, delivered: &str| {
        value(&metrics, &format!("posthaste_early_attempts_total{{number=\"{number}\",delivered=\"{delivered}\"}}"))
    };
    let waiting = NextState::Waiting { due_at: at(60) };
    metrics.count_attempt(&attempt(1, Verdict::Retry, Ok(503)), waiting, 1, Some(at(0)), at(11));
    metrics.count_attempt(&attempt(2, Verdict::Delivered, Ok(200)), NextState::Delivered, 2, Some(at(0)), at(20));
    assert_eq!((early("first", "no"), early("second", "yes")), (1.0, 1.0));
    assert_eq!(value(&metrics, "posthaste_time_to_deliver_seconds_sum"), 20.0);
    // A month later a person replays it.
    metrics.count_attempt(&attempt(3, Verdict::Delivered, Ok(200)), NextState::Delivered, 1, None, at(2_600_000));
    assert_eq!((early("first", "yes"), early("second", "no")), (1.0, 0.0));
    assert_eq!(value(&metrics, "posthaste_time_to_deliver_seconds_count"), 1.0);
    assert_eq!(value(&metrics, "posthaste_first_attempt_delay_seconds_count"), 1.0);
    assert_eq!(value(&metrics, "posthaste_first_attempt_delay_seconds_sum"), 10.0);
}

#[test]
fn a_bucket_holds_what_is_not_above_its_bound() {
    let histogram = Histogram::new(&[1.0, 2.0]);
    let mut registry = MetricsRegistry::default();
    registry.register("h", "A histogram", histogram.clone());
    // A clock that was set back makes spans that are below zero.
    for observed in [-5.0, 1.0, 1.5, 2.0, 2.000001, 1e9] {
        histogram.observe(observed);
    }
    let mut text = String::new();
    registry.write(&mut text);
    for line in
        ["bucket{le=\"1.0\"} 2", "bucket{le=\"2.0\"} 4", "bucket{le=\"+Inf\"} 6", "count 6", "sum 1000000006.500001"]
    {
        assert!(text.contains(&format!("posthaste_h_{line}\n")), "{line} in {text}");
    }
}

#[test]
fn every_other_event_changes_its_own_metric() {
    let metrics = fresh();
    type CountedEvent = (&'static str, fn(&Metrics));
    let events: [CountedEvent; 34] = [
        ("events_accepted_total", |metrics| metrics.count_accepted(1)),
        ("event_data_bytes_total", |metrics| metrics.count_accepted(1)),
        ("events_duplicate_total", |metrics| metrics.count_duplicate()),
        ("ingest_refused_total{code=\"id_conflict\"}", |metrics| metrics.count_refused("id_conflict")),
        ("ingest_refused_total{code=\"other\"}", |metrics| metrics.count_refused("never_heard_of")),
        ("ingest_limited_total{by=\"tenant\"}", |metrics| metrics.count_limited(LimitOwner::Tenant)),
        ("ingest_limited_total{by=\"gateway\"}", |metrics| metrics.count_limited(LimitOwner::Gateway)),
        ("storage_refused_total", |metrics| metrics.count_storage_refused()),
        ("accepts_slowed_total", |metrics| metrics.count_accept_slowed()),
        ("data_fetches_total{outcome=\"served\"}", |metrics| metrics.count_fetched(FetchResult::Served)),
        ("data_fetches_total{outcome=\"failed\"}", |metrics| metrics.count_fetched(FetchResult::Failed)),
        ("accept_duration_seconds_count", |metrics| metrics.record_accept_time(Duration::ZERO)),
        ("put_back_total", |metrics| metrics.count_put_back()),
        ("stumbles_total", |metrics| metrics.count_internal_error()),
        ("stale_writes_total", |metrics| metrics.count_stale_write()),
        ("breaker_transitions_total{to=\"open\"}", |metrics| {
            metrics.count_endpoint_event(&EndpointEvent::BreakerOpened {
                until: None,
                cause: OpenCause::Person { note: None },
            });
        }),
        ("breaker_transitions_total{to=\"open_again\"}", |metrics| {
            metrics.count_endpoint_event(&EndpointEvent::ProbeFailed { until: at(9), answer: "answered 503".into() });
        }),
        ("breaker_transitions_total{to=\"ramp\"}", |metrics| {
            metrics.count_endpoint_event(&EndpointEvent::BreakerClosed(CloseCause::UrlChanged));
        }),
        ("endpoint_pauses_total{reason=\"person\"}", |metrics| {
            metrics.count_endpoint_event(&EndpointEvent::Paused(PauseCause::Person { note: None }));
        }),
        ("endpoint_pauses_total{reason=\"refusals\"}", |metrics| {
            let cause = PauseCause::Refusals { count: 101, answer: "answered 403".into() };
            metrics.count_endpoint_event(&EndpointEvent::Paused(cause));
        }),
        ("endpoint_pauses_total{reason=\"failing\"}", |metrics| {
            let cause = PauseCause::Failing { span: Span::secs(60), count: 10, answer: "answered 503".into() };
            metrics.count_endpoint_event(&EndpointEvent::Paused(cause));
        }),
        ("endpoint_pauses_total{reason=\"gone\"}", |metrics| {
            metrics.count_endpoint_event(&EndpointEvent::Disabled(DisableCause::Gone));
        }),
        ("lane_blocks_total", |metrics| metrics.count_operational_event(OperationalEventType::LaneBlocked)),
        ("lane_unblocks_total", |metrics| metrics.count_operational_event(OperationalEventType::LaneUnblocked)),
        ("waits_total{for=\"rate\"}", |metrics| metrics.count_waits(WaitReason::Rate, 1)),
        ("waits_total{for=\"share\"}", |metrics| metrics.count_waits(WaitReason::Share, 1)),
        ("dead_letters_forgotten_total", |metrics| metrics.count_forgotten_dead_letters(1)),
        ("operational_events_total", |metrics| metrics.count_operational_event(OperationalEventType::DeliveryDead)),
        ("mails_total{outcome=\"sent\"}", |metrics| metrics.count_mail(MailResult::Sent)),
        ("mails_total{outcome=\"failed\"}", |metrics| metrics.count_mail(MailResult::Failed)),
        ("figures_dropped_total", |metrics| metrics.count_dropped_figures(1)),
        ("trace_spans_total{outcome=\"sent\"}", |metrics| metrics.count_spans(SpanResult::Sent, 1)),
        ("trace_spans_total{outcome=\"dropped\"}", |metrics| metrics.count_spans(SpanResult::Dropped, 1)),
        ("store_writes_failed_total", |metrics| metrics.commit_metrics().count_rolled_back(1)),
    ];
    for (series, count) in events {
        let series = format!("posthaste_{series}");
        let before = value(&metrics, &series);
        count(&metrics);
        assert_eq!(value(&metrics, &series), before + 1.0, "{series}");
    }
    metrics.commit_metrics().record_commit(16, Duration::from_millis(3));
    assert_eq!(value(&metrics, "posthaste_store_commit_jobs_sum"), 16.0);
    assert_eq!(value(&metrics, "posthaste_store_commit_duration_seconds_bucket{le=\"0.0025\"}"), 0.0);
    assert_eq!(value(&metrics, "posthaste_store_commit_duration_seconds_bucket{le=\"0.005\"}"), 1.0);
}
