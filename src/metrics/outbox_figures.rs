//! Counts and measures what the relays of outboxes do, one set of series per
//! outbox.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Unit;

use super::families::{CounterFamily, GaugeFamily, Label, MetricsRegistry};

/// Values of the label of an outbox: its number in the settings. There are no
/// more, so the number of series is bounded.
const NUMBERS: [&str; 16] = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16"];

/// Most outboxes of one process.
pub const OUTBOXES_MAX: usize = NUMBERS.len();

/// The figures of one outbox.
#[derive(Debug, Default)]
pub struct OutboxFigures {
    relayed: Counter,
    errors: Counter,
    state: Mutex<Option<OutboxGauges>>,
}

/// What was last measured, while this process is the relay.
#[derive(Debug, Clone, Copy)]
struct OutboxGauges {
    oldest: Option<Duration>,
    refused: u64,
    measured_at: Instant,
}

impl OutboxFigures {
    /// Counts rows whose events were accepted and which were deleted.
    pub fn relayed(&self, rows: usize) {
        self.relayed.inc_by(rows as u64);
    }

    /// Counts a step of the relay that failed, or that the gateway put off.
    pub fn failed(&self) {
        self.errors.inc();
    }

    /// Records the age of the oldest row and the number of refused rows.
    pub fn measured(&self, oldest: Option<Duration>, refused: u64) {
        *self.state.lock() = Some(OutboxGauges { oldest, refused, measured_at: Instant::now() });
    }

    /// Records that no row waits.
    pub fn caught_up(&self) {
        if let Some(state) = self.state.lock().as_mut() {
            state.oldest = None;
        }
    }

    /// Records that another process is the relay.
    pub fn stands_by(&self) {
        *self.state.lock() = None;
    }
}

/// The figures of all outboxes of this process.
#[derive(Debug, Default)]
pub(super) struct AllOutboxFigures(Mutex<Vec<Arc<OutboxFigures>>>);

impl AllOutboxFigures {
    /// Creates the figures of this many outboxes.
    pub fn create(&self, count: usize) -> Vec<Arc<OutboxFigures>> {
        let figures: Vec<Arc<OutboxFigures>> =
            (0..count.min(OUTBOXES_MAX)).map(|_| Arc::new(OutboxFigures::default())).collect();
        *self.0.lock() = figures.clone();
        figures
    }

    /// Appends all figures to the text, if there is an outbox.
    pub fn write(&self, text: &mut String) {
        let figures = self.0.lock().clone();
        if figures.is_empty() {
            return;
        }
        let label = |n: usize| -> Vec<Label> { vec![("outbox", NUMBERS[n])] };
        let counters = |counter: &dyn Fn(&OutboxFigures) -> Counter| {
            CounterFamily::of(figures.iter().enumerate().map(|(n, one)| (label(n), counter(one))))
        };
        let gauges = |value: &dyn Fn(OutboxGauges) -> f64| {
            let known = figures.iter().enumerate().filter_map(|(n, one)| Some((label(n), value((*one.state.lock())?))));
            GaugeFamily(known.collect())
        };
        let mut registry = MetricsRegistry::default();
        registry.register(
            "outbox_rows_relayed",
            "Rows of an outbox that were handed in and deleted",
            counters(&|one| one.relayed.clone()),
        );
        registry.register(
            "outbox_errors",
            "Times that relaying an outbox failed or was put off",
            counters(&|one| one.errors.clone()),
        );
        registry.register_with_unit(
            Unit::Seconds,
            "outbox_lag",
            "How long the oldest row of an outbox that could be relayed has waited, if this node is its relay",
            gauges(&|state| match state.oldest {
                // It goes on growing while the outbox cannot be asked.
                Some(age) => (age + state.measured_at.elapsed()).as_secs_f64(),
                None => 0.0,
            }),
        );
        registry.register(
            "outbox_refused_rows",
            "Rows of an outbox that were refused and wait for a person, if this node is its relay",
            gauges(&|state| state.refused as f64),
        );
        registry.write(text);
    }
}
