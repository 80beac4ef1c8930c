//! What opens an endpoint's breaker, and the counting for it. How it moves is
//! in [`super::health`].

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::span::Span;

/// When an endpoint's breaker opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BreakerSettings {
    /// Whether there is one at all.
    pub enabled: bool,
    /// How many failures in a row open it: 1 to 10,000.
    #[schema(minimum = 1, maximum = 10_000)]
    pub consecutive_failures: u32,
    /// Which share of failures opens it, once there were enough requests: above 0, at most 1.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub failure_ratio: f64,
    /// How many requests within `window` are enough to speak of a share: 1 to 100,000.
    #[schema(minimum = 1, maximum = 100_000)]
    pub min_requests: u32,
    /// How long a request counts for that share: 1s to 1h.
    #[schema(value_type = String, example = "60s")]
    pub window: Span,
    /// How long it stays open the first time: 100ms to 24h.
    #[schema(value_type = String, example = "10s")]
    pub cooldown: Span,
    /// How long at most, after doubling again and again: `cooldown` to 24h.
    #[schema(value_type = String, example = "10m")]
    pub cooldown_max: Span,
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
        }
    }
}

impl BreakerSettings {
    /// Refuses what cannot work, naming the field and the way out.
    pub fn check(&self, mut refuse: impl FnMut(&'static str, String)) {
        let day = Span::secs(86_400);
        if !(1..=10_000).contains(&self.consecutive_failures) {
            let found = self.consecutive_failures;
            refuse("/consecutive_failures", format!("consecutive_failures is {found}; use 1 to 10,000"));
        }
        if !(self.failure_ratio > 0.0 && self.failure_ratio <= 1.0) {
            let found = self.failure_ratio;
            refuse(
                "/failure_ratio",
                format!("failure_ratio is {found}; use a share above 0 and at most 1, such as 0.8"),
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
            let (found, least) = (self.cooldown_max, self.cooldown);
            refuse("/cooldown_max", format!("cooldown_max is {found}; use cooldown ({least}) to 24h"));
        }
    }
}

/// In how many parts a window is counted.
const PARTS: usize = 12;

/// How many requests failed lately, of how many; counted in parts of the
/// window, so that it costs the same however many there are.
#[derive(Debug, Clone, Default)]
pub struct FailureWindow {
    parts: [WindowBucket; PARTS],
    part_ms: i64,
}

#[derive(Debug, Clone, Copy, Default)]
struct WindowBucket {
    /// Which stretch of time this counts.
    number: i64,
    failed: u32,
    total: u32,
}

impl FailureWindow {
    /// Counts a request. Another length than before starts counting anew.
    pub fn record(&mut self, length: Span, now: Timestamp, is_failure: bool) {
        let part_ms = i64::try_from(length.as_millis()).unwrap_or(i64::MAX) / PARTS as i64;
        if part_ms != self.part_ms {
            *self = Self { part_ms, ..Self::default() };
        }
        let number = self.number(now);
        let part = &mut self.parts[number.rem_euclid(PARTS as i64) as usize];
        if part.number != number {
            *part = WindowBucket { number, ..WindowBucket::default() };
        }
        part.failed += u32::from(is_failure);
        part.total += 1;
    }

    /// How many failed lately, of how many.
    pub fn count(&self, now: Timestamp) -> (u32, u32) {
        let newest = self.number(now);
        let lately = newest - PARTS as i64 + 1..=newest;
        let counted = self.parts.iter().filter(|part| lately.contains(&part.number));
        counted.fold((0, 0), |(failed, total), part| (failed + part.failed, total + part.total))
    }

    fn number(&self, now: Timestamp) -> i64 {
        now.as_millisecond().div_euclid(self.part_ms.max(1))
    }
}
