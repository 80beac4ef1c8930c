//! The figures of one row.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The result of one row.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BenchResult {
    /// Name of the row.
    pub name: String,
    /// Deliveries that arrived per second, from the first hand-in to the last arrival.
    pub delivered_per_second: f64,
    /// The same as a share of the bare client's requests, in percent.
    pub percent_of_bare: f64,
    /// Events that were accepted.
    pub accepted: u64,
    /// Deliveries that arrived.
    pub deliveries: u64,
    /// Deliveries that had not arrived yet when the load ended.
    pub waiting: u64,
    /// Attempts that the receiver answered 503.
    pub failed_attempts: u64,
    /// Requests of producers that were answered 429 or 503, and were made again.
    pub refused: u64,
    /// From request to answer of the producer. None where a backlog drains.
    pub accept_ms: Option<Quantiles>,
    /// From hand-in to arrival. None where a backlog drains.
    pub arrival_ms: Option<Quantiles>,
    /// CPU time of the gateways for each delivery, in microseconds.
    pub cpu_micros: f64,
    /// Largest resident memory of the gateways.
    pub resident_bytes: u64,
    /// Durable commits for each delivery.
    pub commits: f64,
    /// Bytes written to disk by the gateways for each delivery, their log included; on
    /// PostgreSQL also those of its write-ahead log.
    pub written_bytes: f64,
    /// What was seen in each second.
    pub seconds: Vec<Sample>,
}

/// Three quantiles, in milliseconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Quantiles {
    /// The median, or 50th percentile.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
}

impl Quantiles {
    /// Returns the quantiles of microseconds, if there are any.
    pub fn of(micros: &Histogram<u64>) -> Option<Self> {
        let at = |quantile| micros.value_at_quantile(quantile) as f64 / 1e3;
        (!micros.is_empty()).then(|| Self { p50: at(0.5), p99: at(0.99), p999: at(0.999) })
    }
}

/// What was seen in one second of a run.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Sample {
    /// Events that were accepted.
    pub accepted: u64,
    /// Deliveries that arrived.
    pub delivered: u64,
    /// Deliveries that had not arrived yet.
    pub waiting: u64,
    /// 99th percentile from hand-in to arrival, in milliseconds.
    pub arrival_p99_ms: f64,
    /// Resident memory of the gateways.
    pub resident_bytes: u64,
    /// Size of the data directory, or of the database.
    pub store_bytes: u64,
}

/// Returns the middle one of these ratios, the upper one of two; `None` if there are none.
pub fn median(ratios: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut ratios: Vec<f64> = ratios.into_iter().collect();
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied()
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_the_times_that_so_many_stay_within() {
        let mut micros = Histogram::new(3).unwrap();
        assert!(Quantiles::of(&micros).is_none(), "nothing was measured");
        for n in 1..=1_000_u64 {
            micros.record(n * 1_000).unwrap();
        }
        let Quantiles { p50, p99, p999 } = Quantiles::of(&micros).unwrap();
        for (is, should) in [(p50, 500.0), (p99, 990.0), (p999, 999.0)] {
            assert!((is - should).abs() <= should / 1_000.0, "{is} is not {should}");
        }
    }
}
