//! Samples a run every second, and shows its progress on a terminal.

use std::sync::atomic::Ordering;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

use super::gateway::GatewayGroup;
use super::load::LoadCounters;
use super::receiver::BenchReceiver;
use super::result::Sample;
use super::scenario::Scenario;

/// Samples a run every second.
pub struct Sampler<'a> {
    group: &'a GatewayGroup,
    receiver: &'a BenchReceiver,
    counters: &'a LoadCounters,
    scenario: &'a Scenario,
    next_at: Instant,
    /// Deliveries that had arrived before the run.
    began_with: u64,
    /// Events accepted and deliveries arrived until the last sample.
    last: (u64, u64),
    samples: Vec<Sample>,
    progress: ProgressBar,
}

impl<'a> Sampler<'a> {
    /// Begins with the first second of the run.
    pub fn new(
        group: &'a GatewayGroup,
        receiver: &'a BenchReceiver,
        counters: &'a LoadCounters,
        scenario: &'a Scenario,
    ) -> Self {
        let style = ProgressStyle::with_template("{prefix}: {bar:20} {pos} of {len} s; {msg}");
        let progress = ProgressBar::new(scenario.duration.as_secs()).with_prefix(scenario.name.clone());
        progress.set_style(style.expect("the template is well formed"));
        let next_at = Instant::now() + Duration::from_secs(1);
        let began_with = receiver.arrived();
        let last = (0, began_with);
        Self { group, receiver, counters, scenario, next_at, began_with, last, samples: Vec::new(), progress }
    }

    /// Waits for the end of a second, and samples it.
    pub async fn next(&mut self) {
        tokio::time::sleep_until(self.next_at).await;
        self.next_at += Duration::from_secs(1);
        let now = (self.counters.accepted.load(Ordering::Relaxed), self.receiver.arrived());
        let (resident_bytes, folder_bytes) = self.group.sizes();
        let store_bytes = self.group.database_sizes().await.map_or(folder_bytes, |sizes| sizes.stored_bytes);
        let sample = Sample {
            accepted: now.0 - self.last.0,
            delivered: now.1 - self.last.1,
            waiting: self.scenario.waiting(now.0, now.1 - self.began_with),
            arrival_p99_ms: self.receiver.take_recent() as f64 / 1e3,
            resident_bytes,
            store_bytes,
        };
        self.last = now;
        self.samples.push(sample);
        let Sample { accepted, delivered, waiting, .. } = sample;
        self.progress.set_position(self.samples.len() as u64);
        self.progress.set_message(format!("{accepted}/s in, {delivered}/s out, {waiting} wait"));
    }

    /// Ends the progress; returns all samples.
    pub fn finish(self) -> Vec<Sample> {
        self.progress.finish_and_clear();
        self.samples
    }
}
