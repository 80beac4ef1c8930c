//! Counts and measures what the gateway does, for `/metrics`.
//!
//! Every metric has a method named after what happened. Names and labels are
//! part of the API: `docs/metrics.md` lists them, and a test compares.
//!
//! Invariant: every label has a few values known beforehand. No tenant,
//! endpoint, URL or event type is ever a label, so the number of series does
//! not grow with the work.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Unit;
use strum::VariantNames;

use self::families::{CounterFamily, GaugeFamily, Histogram, LabelledFamily, MetricsRegistry};
use self::labels::{
    BreakerMove, DeliveryEnd, PauseReason, answer_index, answer_label_sets, attempt_index, attempt_label_sets,
    early_index, early_label_sets, label_sets, refusal_index, refusal_label_sets,
};
use self::outbox_figures::AllOutboxFigures;
use crate::model::attempt::Attempt;
use crate::model::attention::OutboxFacts;
use crate::model::delivery::DeadCause;
use crate::model::endpoint_event::EndpointEvent;
use crate::model::next_state::NextState;
use crate::model::operational_event::OperationalEventType;
use crate::model::verdict::Verdict;

mod commit_metrics;
mod families;
mod gauges;
mod labels;
mod outbox_figures;

pub use commit_metrics::CommitMetrics;
pub use gauges::{BreakerCounts, EndpointCounts, Gauges};
pub use labels::{AuthFailureKind, FetchResult, LimitOwner, MailResult, SpanResult, WaitReason};
pub use outbox_figures::OutboxFigures;

#[cfg(test)]
mod tests;

/// Media type of the text that [`Metrics::encode`] returns.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Histogram bounds from an answer out of memory to the longest timeout.
const REQUEST_SECONDS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Histogram bounds from an immediate delivery to the end of a 72-hour retry
/// policy. The service-level goal of ten minutes is read from the bound 600.
const DELIVERY_SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0,
    3600.0, 10800.0, 21600.0, 43200.0, 86400.0, 172800.0, 259200.0,
];
/// Time within which a delivery must succeed to meet the service-level goal.
const SLO_SECONDS: f64 = 600.0;
const ATTEMPTS: &[f64] = &[1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 20.0, 50.0, 120.0];

/// All counters and histograms. Shared between tasks, and cheap to update.
#[derive(Debug)]
pub struct Metrics {
    events_accepted: Counter,
    event_data: Counter,
    events_duplicate: Counter,
    ingest_refused: CounterFamily,
    ingest_limited: CounterFamily,
    storage_refused: Counter,
    accepts_slowed: Counter,
    fetches: CounterFamily,
    auth_failures: CounterFamily,
    accept_duration: Histogram,
    attempts: CounterFamily,
    attempt_duration: Histogram,
    answers: CounterFamily,
    early_attempts: CounterFamily,
    first_attempt_delay: Histogram,
    put_back: Counter,
    internal_errors: Counter,
    damaged_events: Counter,
    dead_letters_forgotten: Counter,
    stale_writes: Counter,
    deliveries_finished: CounterFamily,
    delivery_attempts: LabelledFamily<Histogram>,
    time_to_deliver: Histogram,
    slo_deliveries: CounterFamily,
    breaker_transitions: CounterFamily,
    endpoint_pauses: CounterFamily,
    lane_blocks: Counter,
    lane_unblocks: Counter,
    waits: CounterFamily,
    operational_events: Counter,
    mails: CounterFamily,
    figures_dropped: Counter,
    trace_spans: CounterFamily,
    commits: Arc<CommitMetrics>,
    /// Engine time at which the last self-test that arrived was sent.
    self_test_since: Mutex<Option<Timestamp>>,
    server_certificate_end: Mutex<Option<Timestamp>>,
    outboxes: AllOutboxFigures,
    registry: MetricsRegistry,
}

impl Metrics {
    /// Returns all metrics at zero, for a process that started at this time.
    pub fn new(started_at: Timestamp) -> Self {
        let mut registry = MetricsRegistry::default();
        registry.register("build", "The version that runs", Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]));
        let started = GaugeFamily::of(Some(started_at.as_millisecond() as f64 / 1e3));
        registry.register_with_unit(
            Unit::Seconds,
            "start_time",
            "When the process started, in seconds since 1970",
            started,
        );
        Self {
            events_accepted: registry.register_counter("events_accepted", "Events accepted, duplicates left out"),
            event_data: registry.register_byte_counter("event_data", "Size of the data of accepted events"),
            events_duplicate: registry.register_counter("events_duplicate", "Events that were handed in again and recognised"),
            ingest_refused: registry.register_counters(
                "ingest_refused",
                "Requests to take events that were refused, and events refused alone in a partial batch",
                refusal_label_sets(),
            ),
            ingest_limited: registry.register_counters(
                "ingest_limited",
                "Requests to take events that came up against a limit",
                label_sets("by", LimitOwner::VARIANTS),
            ),
            storage_refused: registry
                .register_counter("storage_refused", "Times that events were turned away for want of space"),
            accepts_slowed: registry.register_counter(
                "accepts_slowed",
                "Requests to take events that were held or refused because deliveries lag for want of the gateway's own speed",
            ),
            fetches: registry.register_counters(
                "data_fetches",
                "Requests for the data of thin events, by what became of them",
                label_sets("outcome", FetchResult::VARIANTS),
            ),
            auth_failures: registry.register_counters(
                "auth_failures",
                "Requests refused for who asks, on every route",
                label_sets("kind", AuthFailureKind::VARIANTS),
            ),
            accept_duration: registry.register_seconds(
                "accept_duration",
                "From the events of a request being read to their being durable",
                REQUEST_SECONDS,
            ),
            attempts: registry.register_counters(
                "attempts",
                "Attempts by what came back and what it meant",
                attempt_label_sets(),
            ),
            attempt_duration: registry.register_seconds("attempt_duration", "How long attempts took", REQUEST_SECONDS),
            answers: registry.register_counters("answers", "Answers of receivers by their exact status", answer_label_sets()),
            early_attempts: registry.register_counters(
                "early_attempts",
                "First and second attempts by whether they delivered, counted anew after a replay",
                early_label_sets(),
            ),
            first_attempt_delay: registry.register_seconds(
                "first_attempt_delay",
                "From acceptance to the beginning of the first attempt, replays and backfills left out",
                DELIVERY_SECONDS,
            ),
            put_back: registry.register_counter("put_back", "Attempts not made, and not counted, through trouble of our own"),
            internal_errors: registry.register_counter("stumbles", "Attempts that ended in a fault inside the gateway"),
            damaged_events: registry
                .register_counter("damaged_events", "Events found to be no longer what was accepted, each time they were read"),
            dead_letters_forgotten: registry
                .register_counter("dead_letters_forgotten", "Dead letters deleted after --dead-letter-retention, undelivered"),
            stale_writes: registry
                .register_counter("stale_writes", "Outcomes refused, because their shard had another owner by then"),
            deliveries_finished: registry.register_counters(
                "deliveries_finished",
                "Deliveries that reached an end, once more after a replay",
                DeliveryEnd::label_sets(),
            ),
            delivery_attempts: registry.numbers_by_set(
                "delivery_attempts",
                "Attempts that a delivery had had when it was delivered or dead, counted anew after a replay",
                label_sets("state", &["delivered", "dead"]),
                ATTEMPTS,
            ),
            time_to_deliver: registry.register_seconds(
                "time_to_deliver",
                "From acceptance to the answer that made a delivery delivered, replays and backfills left out",
                DELIVERY_SECONDS,
            ),
            slo_deliveries: registry.register_counters(
                "slo_deliveries",
                "Deliveries that ended, by whether they were delivered within ten minutes, without those refused, replayed or backfilled",
                label_sets("met", &["yes", "no"]),
            ),
            breaker_transitions: registry.register_counters(
                "breaker_transitions",
                "Moves of breakers by where they went",
                label_sets("to", BreakerMove::VARIANTS),
            ),
            endpoint_pauses: registry.register_counters(
                "endpoint_pauses",
                "Times that an endpoint was paused or disabled, by why",
                label_sets("reason", PauseReason::VARIANTS),
            ),
            lane_blocks: registry.register_counter("lane_blocks", "Times that a lane came to stand behind a dead letter"),
            lane_unblocks: registry.register_counter("lane_unblocks", "Times that a blocked lane could go on"),
            waits: registry.register_counters(
                "waits",
                "Times that what was due had to wait for a limit of ours",
                label_sets("for", WaitReason::VARIANTS),
            ),
            operational_events: registry.register_counter("operational_events", "Operational events told"),
            mails: registry.register_counters(
                "mails",
                "Mails to owners by how they ended",
                label_sets("outcome", MailResult::VARIANTS),
            ),
            figures_dropped: registry
                .register_counter("figures_dropped", "Windows of figures that could not be written in time and are lost"),
            trace_spans: registry.register_counters(
                "trace_spans",
                "Spans of traces by whether the collector took them",
                label_sets("outcome", SpanResult::VARIANTS),
            ),
            commits: Arc::new(CommitMetrics::registered_in(&mut registry)),
            self_test_since: Mutex::default(),
            server_certificate_end: Mutex::default(),
            outboxes: AllOutboxFigures::default(),
            registry,
        }
    }

    /// Returns all metrics and these gauges as OpenMetrics text.
    pub fn encode(&self, gauges: &Gauges) -> String {
        let mut text = String::with_capacity(32 * 1_024);
        self.registry.write(&mut text);
        gauges.write(&mut text);
        self.outboxes.write(&mut text);
        text.push_str("# EOF\n");
        text
    }

    /// Returns the figures of outboxes alone, as OpenMetrics text.
    pub fn encode_outboxes(&self) -> String {
        let mut text = String::new();
        self.outboxes.write(&mut text);
        text + "# EOF\n"
    }

    /// Creates the figures of this many outboxes, which are shown from now on.
    pub fn create_outbox_figures(&self, count: usize) -> Vec<Arc<OutboxFigures>> {
        self.outboxes.create(count)
    }

    /// Returns what is known of each outbox that was measured.
    pub fn outbox_facts(&self) -> Vec<OutboxFacts> {
        self.outboxes.facts()
    }

    /// Sets the time at which the last self-test that arrived was sent; nothing, if
    /// this node makes none.
    pub fn set_self_test_since(&self, at: Option<Timestamp>) {
        *self.self_test_since.lock() = at;
    }

    /// Counts the age from this time on, until a first self-test has arrived.
    pub fn record_self_test_begin(&self, at: Timestamp) {
        self.self_test_since.lock().get_or_insert(at);
    }

    /// Returns how long ago the last self-test that arrived was sent.
    pub fn self_test_age(&self, now: Timestamp) -> Option<Duration> {
        let since = (*self.self_test_since.lock())?;
        Some(Duration::try_from(now.duration_since(since)).unwrap_or_default())
    }

    /// Sets the wall time at which the certificate of this node's API ends.
    pub fn set_server_certificate_end(&self, at: Option<Timestamp>) {
        *self.server_certificate_end.lock() = at;
    }

    /// Returns the wall time at which the certificate of this node's API ends, if it
    /// has one.
    pub fn server_certificate_end(&self) -> Option<Timestamp> {
        *self.server_certificate_end.lock()
    }

    /// Returns the metrics of the store's writer.
    pub fn commit_metrics(&self) -> Arc<CommitMetrics> {
        self.commits.clone()
    }
}

/// Metrics of accepting events.
impl Metrics {
    /// Counts an event that became durable, and the bytes of its data.
    pub fn count_accepted(&self, data_bytes: usize) {
        self.events_accepted.inc();
        self.event_data.inc_by(data_bytes as u64);
    }

    /// Counts an event whose id was known already.
    pub fn count_duplicate(&self) {
        self.events_duplicate.inc();
    }

    /// Records how long the events of one request took to become durable.
    pub fn record_accept_time(&self, duration: Duration) {
        self.accept_duration.observe_duration(duration);
    }

    /// Counts a request with events that was refused with this API error code,
    /// or a single event refused in a partial batch.
    pub fn count_refused(&self, code: &str) {
        self.ingest_refused.at(refusal_index(code)).inc();
    }

    /// Counts a request with events that reached a limit.
    pub fn count_limited(&self, by: LimitOwner) {
        self.ingest_limited.at(by as usize).inc();
    }

    /// Counts a refusal of events for lack of storage space.
    pub fn count_storage_refused(&self) {
        self.storage_refused.inc();
    }

    /// Counts a request that was held or refused because deliveries lag for want
    /// of the gateway's own speed.
    pub fn count_accept_slowed(&self) {
        self.accepts_slowed.inc();
    }

    /// Counts a request for the data of a thin event.
    pub fn count_fetched(&self, outcome: FetchResult) {
        self.fetches.at(outcome as usize).inc();
    }

    /// Counts a request that failed authentication or authorisation.
    pub fn count_auth_failure(&self, kind: AuthFailureKind) {
        self.auth_failures.at(kind as usize).inc();
    }
}

/// Metrics of attempts and of the ends of deliveries.
impl Metrics {
    /// Counts an attempt that was judged and recorded. `used` is how many
    /// attempts of its present budget the delivery has used, this one included;
    /// `in_slo_since` is when its event was accepted, if the service-level goal
    /// speaks of the delivery; `now` is the time at which the answer was complete.
    pub fn count_attempt(
        &self,
        attempt: &Attempt,
        next: NextState,
        used: u32,
        in_slo_since: Option<Timestamp>,
        now: Timestamp,
    ) {
        self.attempts.at(attempt_index(attempt)).inc();
        self.attempt_duration.observe(attempt.timings.total / 1e3);
        if let Some(status) = attempt.status {
            self.answers.at(answer_index(status)).inc();
        }
        let is_delivered = attempt.decision.verdict == Verdict::Delivered;
        if let Some(index) = early_index(used, is_delivered) {
            self.early_attempts.at(index).inc();
        }
        // Replays and backfills are left out: one after a month says nothing about
        // how fast the gateway delivers.
        if let Some(accepted_at) = in_slo_since.filter(|_| used == 1) {
            self.first_attempt_delay.observe(seconds_between(accepted_at, attempt.started_at));
        }
        match next {
            NextState::Waiting { .. } => {}
            NextState::Delivered => {
                self.deliveries_finished.at(DeliveryEnd::Delivered.index()).inc();
                self.delivery_attempts.at(0).observe(f64::from(used));
                if let Some(accepted_at) = in_slo_since {
                    let took = seconds_between(accepted_at, now);
                    self.time_to_deliver.observe(took);
                    self.count_in_slo(took <= SLO_SECONDS);
                }
            }
            NextState::Dead(_) | NextState::ExpiredByProducer => {}
        }
        if let Some(cause) = next.cause() {
            self.count_dead(cause, used, in_slo_since.is_some());
        }
    }

    /// Counts a delivery that died after this many attempts of its budget, and
    /// whether the service-level goal speaks of it.
    /// [`Metrics::count_attempt`] calls it where an attempt led to the death.
    pub fn count_dead(&self, cause: DeadCause, used: u32, is_in_slo: bool) {
        self.deliveries_finished.at(DeliveryEnd::Dead(cause).index()).inc();
        self.delivery_attempts.at(1).observe(f64::from(used));
        if !cause.is_refused_by_receiver() && is_in_slo {
            self.count_in_slo(false);
        }
    }

    /// Counts a delivery that the service-level goal speaks of.
    fn count_in_slo(&self, is_met: bool) {
        self.slo_deliveries.at(usize::from(!is_met)).inc();
    }

    /// Counts this many cancelled deliveries.
    pub fn count_cancelled(&self, deliveries: u64) {
        self.deliveries_finished.at(DeliveryEnd::Cancelled.index()).inc_by(deliveries);
    }

    /// Counts an attempt that was not made because of a problem of the gateway.
    pub fn count_put_back(&self) {
        self.put_back.inc();
    }

    /// Counts an attempt that ended in an internal error of the gateway.
    pub fn count_internal_error(&self) {
        self.internal_errors.inc();
    }

    /// Counts this many events that no longer match their checksum.
    pub fn count_damaged(&self, events: usize) {
        self.damaged_events.inc_by(events as u64);
    }

    /// Counts this many dead letters that were deleted after their retention.
    pub fn count_forgotten_dead_letters(&self, count: usize) {
        self.dead_letters_forgotten.inc_by(count as u64);
    }

    /// Counts an outcome that was refused because its shard has another owner now.
    pub fn count_stale_write(&self) {
        self.stale_writes.inc();
    }
}

/// Metrics of breakers, pauses, lanes, waits, operational events and mails.
impl Metrics {
    /// Counts what happened to an endpoint, if it is counted.
    pub fn count_endpoint_event(&self, event: &EndpointEvent) {
        if let Some(to) = BreakerMove::of(event) {
            self.breaker_transitions.at(to as usize).inc();
        }
        if let Some(reason) = PauseReason::of(event) {
            self.endpoint_pauses.at(reason as usize).inc();
        }
    }

    /// Counts how many times a due delivery had to wait for a limit of the gateway.
    pub fn count_waits(&self, reason: WaitReason, times: u64) {
        self.waits.at(reason as usize).inc_by(times);
    }

    /// Counts an operational event that was written, and what it reports of a lane.
    pub fn count_operational_event(&self, event_type: OperationalEventType) {
        self.operational_events.inc();
        let of_lanes = match event_type {
            OperationalEventType::LaneBlocked => &self.lane_blocks,
            OperationalEventType::LaneUnblocked => &self.lane_unblocks,
            OperationalEventType::EndpointPaused
            | OperationalEventType::EndpointDisabled
            | OperationalEventType::EndpointRecovered
            | OperationalEventType::BreakerOpened
            | OperationalEventType::BreakerClosed
            | OperationalEventType::DeliveryDead
            | OperationalEventType::DeliveryForgotten
            | OperationalEventType::JobFinished => return,
        };
        of_lanes.inc();
    }

    /// Counts windows of figures that are lost.
    pub fn count_dropped_figures(&self, windows: u64) {
        self.figures_dropped.inc_by(windows);
    }

    /// Counts a number of spans of traces by what became of them.
    pub fn count_spans(&self, result: SpanResult, count: u64) {
        self.trace_spans.at(result as usize).inc_by(count);
    }

    /// Counts a mail to an owner by its outcome.
    pub fn count_mail(&self, outcome: MailResult) {
        self.mails.at(outcome as usize).inc();
    }
}

fn seconds_between(from: Timestamp, until: Timestamp) -> f64 {
    until.duration_since(from).as_secs_f64()
}
