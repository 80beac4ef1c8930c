//! What is counted and measured, for `/metrics`.
//!
//! Every figure has a method named after what happened. Names and labels are
//! part of the API: `docs/metrics.md` lists them, and a test compares.
//!
//! Invariant: every label has a few values known beforehand. No tenant,
//! endpoint, URL or event type is ever a label, so the number of series does
//! not grow with the work.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Unit;

use self::families::{CounterFamily, GaugeFamily, Histogram, LabelledFamily, MetricsRegistry};
use self::labels::{
    DeliveryEnd, attempt_place, attempt_sets, each, early_place, early_sets, refusal_place, refusal_sets,
};
use crate::model::attempt::Attempt;
use crate::model::delivery::DeadCause;
use crate::model::next_state::NextState;
use crate::model::verdict::Verdict;

mod families;
mod gauges;
mod labels;

pub use gauges::{BreakerCounts, EndpointCounts, Gauges};
pub use labels::{AuthFailureKind, BreakerMove, FetchResult, LimitOwner, MailResult, PauseReason, WaitReason};

#[cfg(test)]
mod tests;

/// What [`Metrics::encode`] writes.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// From a quick commit to one that hangs.
const COMMIT_SECONDS: &[f64] =
    &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];
const COMMIT_JOBS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];
/// From an answer out of memory to the longest timeout there is.
const REQUEST_SECONDS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// From at once to the end of a patient policy. The goal of ten minutes is
/// read from 600.
const JOURNEY_SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0,
    3600.0, 10800.0, 21600.0, 43200.0, 86400.0, 172800.0, 259200.0,
];
const ATTEMPTS: &[f64] = &[1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 20.0, 50.0, 120.0];

/// Everything that is counted and measured. Shared, and cheap to move.
#[derive(Debug)]
pub struct Metrics {
    events_accepted: Counter,
    event_data: Counter,
    events_duplicate: Counter,
    ingest_refused: CounterFamily,
    ingest_limited: CounterFamily,
    storage_refused: Counter,
    fetches: CounterFamily,
    auth_failures: CounterFamily,
    accept_duration: Histogram,
    attempts: CounterFamily,
    attempt_duration: Histogram,
    early_attempts: CounterFamily,
    first_attempt_delay: Histogram,
    put_back: Counter,
    internal_errors: Counter,
    damaged_events: Counter,
    stale_writes: Counter,
    deliveries_finished: CounterFamily,
    delivery_attempts: LabelledFamily<Histogram>,
    time_to_deliver: Histogram,
    breaker_transitions: CounterFamily,
    endpoint_pauses: CounterFamily,
    lane_blocks: Counter,
    lane_unblocks: Counter,
    waits: CounterFamily,
    operational_events: Counter,
    mails: CounterFamily,
    commits: Arc<CommitMetrics>,
    registry: MetricsRegistry,
}

impl Metrics {
    /// Everything at zero, for a process that started then.
    pub fn new(started_at: Timestamp) -> Self {
        let mut book = MetricsRegistry::default();
        book.enter("build", "The version that runs", Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]));
        let started = GaugeFamily::of(Some(started_at.as_millisecond() as f64 / 1e3));
        book.enter_in(Unit::Seconds, "start_time", "When the process started, in seconds since 1970", started);
        Self {
            events_accepted: book.counter("events_accepted", "Events accepted, duplicates left out"),
            event_data: book.bytes("event_data", "Size of the data of accepted events"),
            events_duplicate: book.counter("events_duplicate", "Events that were handed in again and recognised"),
            ingest_refused: book.counters(
                "ingest_refused",
                "Requests to take events that were refused, and events refused alone in a partial batch",
                refusal_sets(),
            ),
            ingest_limited: book.counters(
                "ingest_limited",
                "Requests to take events that came up against a limit",
                each("by", LimitOwner::TEXTS),
            ),
            storage_refused: book.counter("storage_refused", "Times that events were turned away for want of space"),
            fetches: book.counters(
                "data_fetches",
                "Requests for the data of thin events, by what became of them",
                each("outcome", FetchResult::TEXTS),
            ),
            auth_failures: book.counters(
                "auth_failures",
                "Requests refused for who asks, on every route",
                each("kind", AuthFailureKind::TEXTS),
            ),
            accept_duration: book.seconds(
                "accept_duration",
                "From the events of a request being read to their being durable",
                REQUEST_SECONDS,
            ),
            attempts: book.counters("attempts", "Attempts by what came back and what it meant", attempt_sets()),
            attempt_duration: book.seconds("attempt_duration", "How long attempts took", REQUEST_SECONDS),
            early_attempts: book.counters(
                "early_attempts",
                "First and second attempts by whether they delivered, counted anew after a replay",
                early_sets(),
            ),
            first_attempt_delay: book.seconds(
                "first_attempt_delay",
                "From acceptance to the beginning of the first attempt",
                JOURNEY_SECONDS,
            ),
            put_back: book.counter("put_back", "Attempts not made, and not counted, through trouble of our own"),
            internal_errors: book.counter("stumbles", "Attempts that ended in a fault inside the gateway"),
            damaged_events: book
                .counter("damaged_events", "Events found to be no longer what was accepted, each time they were read"),
            stale_writes: book
                .counter("stale_writes", "Outcomes refused, because their shard had another owner by then"),
            deliveries_finished: book.counters(
                "deliveries_finished",
                "Deliveries that reached an end, once more after a replay",
                DeliveryEnd::sets(),
            ),
            delivery_attempts: book.numbers_by_set(
                "delivery_attempts",
                "Attempts that a delivery had had when it was delivered or dead, counted anew after a replay",
                each("state", &["delivered", "dead"]),
                ATTEMPTS,
            ),
            time_to_deliver: book.seconds(
                "time_to_deliver",
                "From acceptance to the answer that made a delivery delivered, replays left out",
                JOURNEY_SECONDS,
            ),
            breaker_transitions: book.counters(
                "breaker_transitions",
                "Moves of breakers by where they went",
                each("to", BreakerMove::TEXTS),
            ),
            endpoint_pauses: book.counters(
                "endpoint_pauses",
                "Times that an endpoint was paused or disabled, by why",
                each("reason", PauseReason::TEXTS),
            ),
            lane_blocks: book.counter("lane_blocks", "Times that a lane came to stand behind a dead letter"),
            lane_unblocks: book.counter("lane_unblocks", "Times that a blocked lane could go on"),
            waits: book.counters(
                "waits",
                "Times that what was due had to wait for a limit of ours",
                each("for", WaitReason::TEXTS),
            ),
            operational_events: book.counter("operational_events", "Operational events told"),
            mails: book.counters("mails", "Mails to owners by how they ended", each("outcome", MailResult::TEXTS)),
            commits: Arc::new(CommitMetrics::entered_in(&mut book)),
            registry: book,
        }
    }

    /// Everything as OpenMetrics text, with what stands at this moment.
    pub fn encode(&self, gauges: &Gauges) -> String {
        let mut text = String::with_capacity(32 * 1_024);
        self.registry.write(&mut text);
        gauges.write(&mut text);
        text.push_str("# EOF\n");
        text
    }

    /// What the store's writer counts in.
    pub fn commits(&self) -> Arc<CommitMetrics> {
        self.commits.clone()
    }
}

/// Handing events in.
impl Metrics {
    /// An event is durable, with this much data.
    pub fn accepted(&self, data_bytes: usize) {
        self.events_accepted.inc();
        self.event_data.inc_by(data_bytes as u64);
    }

    /// An event was known already.
    pub fn duplicate(&self) {
        self.events_duplicate.inc();
    }

    /// The events of one request took this long to become durable.
    pub fn accept_took(&self, span: Duration) {
        self.accept_duration.observe_duration(span);
    }

    /// A request to take events was refused with this code of the API, or an
    /// event alone in a partial batch.
    pub fn refused(&self, code: &str) {
        self.ingest_refused.at(refusal_place(code)).inc();
    }

    /// A request to take events came up against a limit.
    pub fn limited(&self, by: LimitOwner) {
        self.ingest_limited.at(by as usize).inc();
    }

    /// Events were turned away for want of space.
    pub fn storage_refused(&self) {
        self.storage_refused.inc();
    }

    /// Somebody asked for the data of a thin event.
    pub fn fetched(&self, outcome: FetchResult) {
        self.fetches.at(outcome as usize).inc();
    }

    /// A request was refused for who asks.
    pub fn auth_failed(&self, kind: AuthFailureKind) {
        self.auth_failures.at(kind as usize).inc();
    }
}

/// Attempts and how deliveries end.
impl Metrics {
    /// An attempt was made, judged and recorded. `used` is how many attempts
    /// its delivery has had of its present budget, this one included; `now`
    /// is when the answer was complete.
    pub fn attempted(&self, attempt: &Attempt, next: NextState, used: u32, accepted_at: Timestamp, now: Timestamp) {
        self.attempts.at(attempt_place(attempt)).inc();
        self.attempt_duration.observe(attempt.timings.total / 1e3);
        let is_delivered = attempt.decision.verdict == Verdict::Delivered;
        if let Some(place) = early_place(used, is_delivered) {
            self.early_attempts.at(place).inc();
        }
        if attempt.number == 1 {
            self.first_attempt_delay.observe(seconds_between(accepted_at, attempt.started_at));
        }
        match next {
            NextState::Waiting { .. } => {}
            NextState::Delivered => {
                self.deliveries_finished.at(DeliveryEnd::Delivered.place()).inc();
                self.delivery_attempts.at(0).observe(f64::from(used));
                // A person who replays after a month has not made us slow.
                if used == attempt.number {
                    self.time_to_deliver.observe(seconds_between(accepted_at, now));
                }
            }
            NextState::Dead(cause) => self.died(cause, used),
            NextState::ExpiredByProducer => self.died(DeadCause::Expired, used),
        }
    }

    /// A delivery died, having used this many attempts of its budget.
    /// [`Metrics::attempted`] says so itself where an attempt led to it.
    pub fn died(&self, cause: DeadCause, used: u32) {
        self.deliveries_finished.at(DeliveryEnd::Dead(cause).place()).inc();
        self.delivery_attempts.at(1).observe(f64::from(used));
    }

    /// So many deliveries were cancelled.
    pub fn cancelled(&self, deliveries: u64) {
        self.deliveries_finished.at(DeliveryEnd::Cancelled.place()).inc_by(deliveries);
    }

    /// An attempt was not made through trouble of our own.
    pub fn put_back(&self) {
        self.put_back.inc();
    }

    /// An attempt ended in a fault inside the gateway.
    pub fn internal_error(&self) {
        self.internal_errors.inc();
    }

    /// So many events were read that are no longer what was accepted.
    pub fn damaged(&self, events: usize) {
        self.damaged_events.inc_by(events as u64);
    }

    /// An outcome was refused, because its shard had another owner by then.
    pub fn stale_write(&self) {
        self.stale_writes.inc();
    }
}

/// Being gentle, and telling people.
impl Metrics {
    /// A breaker moved.
    pub fn breaker_moved(&self, to: BreakerMove) {
        self.breaker_transitions.at(to as usize).inc();
    }

    /// An endpoint was paused or disabled.
    pub fn endpoint_paused(&self, reason: PauseReason) {
        self.endpoint_pauses.at(reason as usize).inc();
    }

    /// A lane came to stand behind a dead letter.
    pub fn lane_blocked(&self) {
        self.lane_blocks.inc();
    }

    /// A blocked lane could go on.
    pub fn lane_unblocked(&self) {
        self.lane_unblocks.inc();
    }

    /// Something due had to wait for a limit of ours.
    pub fn waited(&self, for_what: WaitReason, times: u64) {
        self.waits.at(for_what as usize).inc_by(times);
    }

    /// An operational event was told.
    pub fn operational_event_written(&self) {
        self.operational_events.inc();
    }

    /// A mail to an owner was sent, or could not be.
    pub fn mailed(&self, outcome: MailResult) {
        self.mails.at(outcome as usize).inc();
    }
}

/// What the store's writer counts.
#[derive(Debug)]
pub struct CommitMetrics {
    duration: Histogram,
    jobs: Histogram,
    writes_failed: Counter,
}

impl CommitMetrics {
    fn entered_in(book: &mut MetricsRegistry) -> Self {
        Self {
            duration: book.seconds(
                "store_commit_duration",
                "How long commits took, from the beginning of the transaction until it was on disk",
                COMMIT_SECONDS,
            ),
            jobs: book.numbers("store_commit_jobs", "Writes that shared one commit", COMMIT_JOBS),
            writes_failed: book.counter("store_writes_failed", "Writes of which nothing was kept"),
        }
    }

    /// A commit of so many writes was made.
    pub fn committed(&self, jobs: usize, span: Duration) {
        self.duration.observe_duration(span);
        self.jobs.observe(jobs as f64);
    }

    /// So many writes were rolled back.
    pub fn failed(&self, jobs: usize) {
        self.writes_failed.inc_by(jobs as u64);
    }
}

/// Counts for nobody.
impl Default for CommitMetrics {
    fn default() -> Self {
        Self::entered_in(&mut MetricsRegistry::default())
    }
}

fn seconds_between(from: Timestamp, until: Timestamp) -> f64 {
    until.duration_since(from).as_secs_f64()
}
