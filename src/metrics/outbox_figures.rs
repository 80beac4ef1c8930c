//! Counts and measures what the relays of outboxes do, one set of series per
//! outbox.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Unit;

use super::families::{CounterFamily, GaugeFamily, Label, MetricsRegistry};
use crate::model::attention::OutboxFacts;

/// The figures of one outbox.
#[derive(Debug, Default)]
pub struct OutboxFigures {
    relayed: Counter,
    errors: Counter,
    /// Database that the outbox is in, in words.
    description: OnceLock<String>,
    state: Mutex<Option<OutboxGauges>>,
    /// Since when the outbox could not be relayed, and why; none while it can.
    failure: Mutex<Option<(Instant, String)>>,
}

/// What was last measured.
#[derive(Debug, Clone, Copy)]
struct OutboxGauges {
    /// Whether this process is the relay; only the relay's gauges are shown.
    is_relay: bool,
    oldest: Option<Duration>,
    refused: u64,
    measured_at: Instant,
}

impl OutboxGauges {
    /// Returns how long the oldest row has waited by now. It goes on growing
    /// while the outbox cannot be asked.
    fn oldest_age(self) -> Duration {
        self.oldest.map_or(Duration::ZERO, |age| age + self.measured_at.elapsed())
    }
}

impl OutboxFigures {
    /// Counts rows whose events were accepted and which were deleted.
    pub fn count_relayed(&self, rows: usize) {
        self.relayed.inc_by(rows as u64);
    }

    /// Counts a step of the relay that failed, or that the gateway put off.
    pub fn count_failed(&self) {
        self.errors.inc();
    }

    /// Says in words which database the outbox is in.
    pub fn set_description(&self, description: &str) {
        let _ = self.description.set(description.to_owned());
    }

    /// Records why the outbox itself could not be read or changed.
    pub fn record_unreached(&self, reason: &str) {
        let mut failure = self.failure.lock();
        let since = failure.as_ref().map_or_else(Instant::now, |(since, _)| *since);
        *failure = Some((since, reason.to_owned()));
    }

    /// Records that the outbox could be read and changed.
    pub fn record_reached(&self) {
        *self.failure.lock() = None;
    }

    /// Records the age of the oldest row and the number of refused rows.
    pub fn record_measurement(&self, is_relay: bool, oldest: Option<Duration>, refused: u64) {
        *self.state.lock() = Some(OutboxGauges { is_relay, oldest, refused, measured_at: Instant::now() });
    }

    /// Records that no row waits.
    pub fn record_caught_up(&self) {
        if let Some(state) = self.state.lock().as_mut() {
            state.oldest = None;
        }
    }

    /// Returns the outbox's figures; none before its first measurement or failure.
    fn facts(&self) -> Option<OutboxFacts> {
        let (state, failure) = (*self.state.lock(), self.failure.lock().clone());
        if state.is_none() && failure.is_none() {
            return None;
        }
        Some(OutboxFacts {
            description: self.description.get().cloned().unwrap_or_default(),
            oldest: state.map_or(Duration::ZERO, OutboxGauges::oldest_age),
            refused: state.map_or(0, |state| state.refused),
            failing_for: failure.as_ref().map_or(Duration::ZERO, |(since, _)| since.elapsed()),
            failure: failure.map(|(_, reason)| reason),
        })
    }
}

/// The figures of all outboxes of this process.
#[derive(Debug, Default)]
pub(super) struct AllOutboxFigures(Mutex<Vec<Arc<OutboxFigures>>>);

impl AllOutboxFigures {
    /// Creates the figures of this many outboxes.
    pub fn create(&self, count: usize) -> Vec<Arc<OutboxFigures>> {
        let figures: Vec<Arc<OutboxFigures>> = (0..count).map(|_| Arc::new(OutboxFigures::default())).collect();
        *self.0.lock() = figures.clone();
        figures
    }

    /// Returns what is known of each outbox that was measured, or could not be.
    pub fn facts(&self) -> Vec<OutboxFacts> {
        self.0.lock().iter().filter_map(|one| one.facts()).collect()
    }

    /// Appends all figures to the text, if there is an outbox.
    pub fn write(&self, text: &mut String) {
        let figures = self.0.lock().clone();
        if figures.is_empty() {
            return;
        }
        // The number in the settings, which bound how many series there are.
        let label = |n: usize| -> Vec<Label<usize>> { vec![("outbox", n + 1)] };
        let counters = |counter: &dyn Fn(&OutboxFigures) -> Counter| {
            CounterFamily::of(figures.iter().enumerate().map(|(n, one)| (label(n), counter(one))))
        };
        let gauges = |value: &dyn Fn(OutboxGauges) -> f64| {
            let state = |one: &OutboxFigures| (*one.state.lock()).filter(|state| state.is_relay);
            let known = figures.iter().enumerate().filter_map(|(n, one)| Some((label(n), value(state(one)?))));
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
            gauges(&|state| state.oldest_age().as_secs_f64()),
        );
        registry.register(
            "outbox_refused_rows",
            "Rows of an outbox that were refused and wait for a person, if this node is its relay",
            gauges(&|state| state.refused as f64),
        );
        registry.write(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outbox_is_known_once_it_was_measured_or_could_not_be() {
        let all = AllOutboxFigures::default();
        let one = all.create(1).remove(0);
        one.set_description("shop at db");
        assert_eq!(all.facts(), [], "nothing is known yet");
        one.record_unreached("it is away");
        let facts = all.facts().remove(0);
        assert_eq!((facts.description.as_str(), facts.failure.as_deref()), ("shop at db", Some("it is away")));
        one.record_measurement(true, None, 0);
        one.record_reached();
        let facts = all.facts().remove(0);
        assert_eq!((facts.failure, facts.failing_for), (None, Duration::ZERO));
    }
}
