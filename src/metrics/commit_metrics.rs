//! Measures the commits of the store's writer.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;

use super::families::{Histogram, MetricsRegistry};

/// Histogram bounds from a quick commit to one that hangs.
const COMMIT_SECONDS: &[f64] =
    &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];
/// Histogram bounds from a write of its own to a full batch.
const COMMIT_JOBS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

/// The metrics of the store's writer.
#[derive(Debug)]
pub struct CommitMetrics {
    duration: Histogram,
    jobs: Histogram,
    writes_failed: Counter,
}

impl CommitMetrics {
    /// Registers the metrics under their names.
    pub(super) fn registered_in(registry: &mut MetricsRegistry) -> Self {
        Self {
            duration: registry.register_seconds(
                "store_commit_duration",
                "How long commits took, from the beginning of the transaction until it was on disk",
                COMMIT_SECONDS,
            ),
            jobs: registry.register_numbers("store_commit_jobs", "Writes that shared one commit", COMMIT_JOBS),
            writes_failed: registry.register_counter("store_writes_failed", "Writes of which nothing was kept"),
        }
    }

    /// Records a commit of this many writes and how long it took.
    pub fn record_commit(&self, jobs: usize, duration: Duration) {
        self.duration.observe_duration(duration);
        self.jobs.observe(jobs as f64);
    }

    /// Counts this many writes that were rolled back.
    pub fn count_rolled_back(&self, jobs: usize) {
        self.writes_failed.inc_by(jobs as u64);
    }
}

/// The default counts into a registry that nobody reads.
impl Default for CommitMetrics {
    fn default() -> Self {
        Self::registered_in(&mut MetricsRegistry::default())
    }
}
