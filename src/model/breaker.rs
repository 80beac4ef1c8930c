//! The settings of an endpoint's breaker, and the window that counts failures.
//!
//! [`super::health`] has the states of the breaker and decides when it opens.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::span::Span;

/// When an endpoint's breaker opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BreakerSettings {
    /// Whether the endpoint has a breaker.
    pub enabled: bool,
    /// The number of failures in a row that opens it, 1 to 10,000.
    #[schema(minimum = 1, maximum = 10_000)]
    pub consecutive_failures: u32,
    /// The share of failures that opens it, above 0, at most 1, among at least `min_requests` requests within `window`. 429 is not counted.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub failure_ratio: f64,
    /// The least number of requests within `window` for which the share counts, 1 to 100,000.
    #[schema(minimum = 1, maximum = 100_000)]
    pub min_requests: u32,
    /// How long a request counts for the share, 1s to 1h.
    #[schema(value_type = String, example = "60s")]
    pub window: Span,
    /// How long it stays open the first time, 100ms to 24h.
    #[schema(value_type = String, example = "10s")]
    pub cooldown: Span,
    /// How long it stays open at most; each failed probe doubles the time. `cooldown` to 24h.
    #[schema(value_type = String, example = "10m")]
    pub cooldown_max: Span,
    /// Whether deliveries do not age while it is open: `max_age` then leaves out the time of an outage, as it leaves out a pause.
    pub pauses_age: bool,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            consecutive_failures: 10,
            failure_ratio: 0.8,
            min_requests: 20,
            window: Span::secs(60),
            cooldown: Span::secs(10),
            cooldown_max: Span::secs(600),
            pauses_age: false,
        }
    }
}

impl BreakerSettings {
    /// Refuses values out of range; each refusal names the field and what to use.
    pub fn check(&self, mut refuse: impl FnMut(&'static str, String)) {
        let day = Span::secs(86_400);
        if !(1..=10_000).contains(&self.consecutive_failures) {
            let failures = self.consecutive_failures;
            refuse("/consecutive_failures", format!("consecutive_failures is {failures}; use 1 to 10,000"));
        }
        if !(self.failure_ratio > 0.0 && self.failure_ratio <= 1.0) {
            let ratio = self.failure_ratio;
            refuse(
                "/failure_ratio",
                format!("failure_ratio is {ratio}; use a share above 0 and at most 1, such as 0.8"),
            );
        }
        if !(1..=100_000).contains(&self.min_requests) {
            refuse("/min_requests", format!("min_requests is {}; use 1 to 100,000", self.min_requests));
        }
        if !(Span::secs(1)..=Span::secs(3_600)).contains(&self.window) {
            refuse("/window", format!("window is {}; use 1s to 1h", self.window));
        }
        if !(Span::millis(100)..=day).contains(&self.cooldown) {
            refuse("/cooldown", format!("cooldown is {}; use 100ms to 24h", self.cooldown));
        }
        if !(self.cooldown..=day).contains(&self.cooldown_max) {
            let (most, least) = (self.cooldown_max, self.cooldown);
            refuse("/cooldown_max", format!("cooldown_max is {most}; use cooldown ({least}) to 24h"));
        }
    }
}

/// Number of buckets that a window is counted in.
const BUCKETS: usize = 12;

/// Counts the requests and failures of a sliding window, in buckets, so that
/// the cost does not grow with the number of requests.
#[derive(Debug, Clone, Default)]
pub struct FailureWindow {
    buckets: [WindowBucket; BUCKETS],
    bucket_ms: i64,
}

#[derive(Debug, Clone, Copy, Default)]
struct WindowBucket {
    /// Number of the interval that this bucket counts, since 1970.
    number: i64,
    failed: u32,
    total: u32,
}

impl FailureWindow {
    /// Counts a request. A window length other than before starts from zero.
    pub fn record(&mut self, length: Span, now: Timestamp, is_failure: bool) {
        let bucket_ms = i64::try_from(length.as_millis()).unwrap_or(i64::MAX) / BUCKETS as i64;
        if bucket_ms != self.bucket_ms {
            *self = Self { bucket_ms, ..Self::default() };
        }
        let number = self.interval_number(now);
        let bucket = &mut self.buckets[number.rem_euclid(BUCKETS as i64) as usize];
        if bucket.number != number {
            *bucket = WindowBucket { number, ..WindowBucket::default() };
        }
        bucket.failed += u32::from(is_failure);
        bucket.total += 1;
    }

    /// Returns the failures and the requests within the window.
    pub fn count(&self, now: Timestamp) -> (u32, u32) {
        let newest = self.interval_number(now);
        let window = newest - BUCKETS as i64 + 1..=newest;
        let counted = self.buckets.iter().filter(|bucket| window.contains(&bucket.number));
        counted.fold((0, 0), |(failed, total), bucket| (failed + bucket.failed, total + bucket.total))
    }

    /// Returns the number of the bucket interval at this time.
    fn interval_number(&self, now: Timestamp) -> i64 {
        now.as_millisecond().div_euclid(self.bucket_ms.max(1))
    }
}
