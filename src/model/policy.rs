//! How long to wait before the next attempt, and when to stop trying.
//!
//! Pure: a policy, how often it failed and a random draw give a delay. The
//! window the delay was drawn from is kept, so that it can be explained.

use serde::{Deserialize, Serialize};
use std::time::Duration;

use super::span::Span;

/// A retry policy with nothing left open.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryPolicy {
    /// The delays before jitter.
    pub delays: Delays,
    /// How chance is added to them.
    pub jitter: Jitter,
    /// How many attempts in all, the first included.
    pub max_attempts: u32,
    /// How long after the first attempt the last may start.
    pub max_age: Span,
}

/// The delays of a policy, before jitter.
#[derive(Debug, Clone, PartialEq)]
pub enum Delays {
    /// 5s, 30s, 2m, then doubling from 5m up to 1h.
    Standard,
    /// `base × factor^n`, never above `max`.
    Backoff(Backoff),
    /// These, and the last one again until the budget ends.
    Schedule(Vec<Span>),
}

/// Exponential delays.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Backoff {
    /// The first delay.
    #[schema(value_type = String, example = "1m")]
    pub base: Span,
    /// What each delay is multiplied by to give the next.
    #[serde(default = "two")]
    pub factor: f64,
    /// The longest delay.
    #[schema(value_type = String, example = "1h")]
    pub max: Span,
}

fn two() -> f64 {
    2.0
}

/// How chance is added to a delay `d`, so that deliveries that failed
/// together do not come back together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Jitter {
    /// Between half of it and all of it.
    Equal,
    /// Between nothing and all of it.
    Full,
    /// Exactly it.
    None,
}

/// A retry policy as written: `{"preset":"standard"}`, or any field that
/// differs from it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetrySpec {
    /// The policy whose fields stand in for those left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,
    /// Exponential delays. Not together with `schedule`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
    /// The delays one by one; the last repeats until the budget ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>, example = json!(["30s", "2m", "10m", "1h"]))]
    pub schedule: Option<Vec<Span>>,
    /// How chance is added to a delay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Jitter>,
    /// How many attempts in all, the first included: 1 to 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000)]
    pub max_attempts: Option<u32>,
    /// How long after the first attempt the last may start: 1s to 30d.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "72h")]
    pub max_age: Option<Span>,
}

/// The policies that have a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// 5s, 30s, 2m, then doubling from 5m up to 1h; 120 attempts or 72h.
    Standard,
}

/// Why a policy is refused: where, and what would be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidPolicy {
    /// The place inside the policy, as a JSON pointer.
    pub pointer: &'static str,
    /// The sentence.
    pub message: String,
}

const DELAY_MAX: Span = Span::secs(7 * 86_400);
const AGE_MAX: Span = Span::secs(30 * 86_400);
const ATTEMPTS_MAX: u32 = 1_000;
const STEPS_MAX: usize = 100;

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { delays: Delays::Standard, jitter: Jitter::Equal, max_attempts: 120, max_age: Span::secs(72 * 3_600) }
    }
}

impl RetrySpec {
    /// The spec people get who write none.
    pub fn standard() -> Self {
        Self { preset: Some(Preset::Standard), ..Self::default() }
    }

    /// Fills in what was left out and refuses what makes no sense.
    pub fn resolve(&self) -> Result<RetryPolicy, InvalidPolicy> {
        let standard = RetryPolicy::default();
        let delays = match (&self.backoff, &self.schedule) {
            (Some(_), Some(_)) => {
                return refuse("/schedule", "backoff and schedule are both given; use one of them".into());
            }
            (Some(backoff), None) => Delays::Backoff(backoff.checked()?),
            (None, Some(steps)) => Delays::Schedule(checked_steps(steps)?),
            (None, None) => standard.delays,
        };
        let max_attempts = self.max_attempts.unwrap_or(standard.max_attempts);
        if !(1..=ATTEMPTS_MAX).contains(&max_attempts) {
            return refuse("/max_attempts", format!("max_attempts is {max_attempts}; use 1 to {ATTEMPTS_MAX}"));
        }
        let max_age = self.max_age.unwrap_or(standard.max_age);
        if max_age < Span::secs(1) || max_age > AGE_MAX {
            return refuse("/max_age", format!("max_age is {max_age}; use 1s to {AGE_MAX}"));
        }
        Ok(RetryPolicy { delays, jitter: self.jitter.unwrap_or(standard.jitter), max_attempts, max_age })
    }
}

impl Backoff {
    fn checked(self) -> Result<Self, InvalidPolicy> {
        if self.base.as_millis() == 0 || self.base > DELAY_MAX {
            return refuse("/backoff/base", format!("backoff base is {}; use 1ms to {DELAY_MAX}", self.base));
        }
        if self.max < self.base || self.max > DELAY_MAX {
            return refuse(
                "/backoff/max",
                format!("backoff max is {}; use a span from base ({}) to {DELAY_MAX}", self.max, self.base),
            );
        }
        if !(1.0..=100.0).contains(&self.factor) {
            return refuse("/backoff/factor", format!("backoff factor is {}; use 1 to 100", self.factor));
        }
        Ok(self)
    }

    fn delay(&self, n: u32) -> Duration {
        let exponent = i32::try_from(n).unwrap_or(i32::MAX);
        let seconds = self.base.0.as_secs_f64() * self.factor.powi(exponent);
        // Past the cap the power may be infinite, which only `min` survives;
        // the second one takes back what rounding added.
        Duration::from_secs_f64(seconds.min(self.max.0.as_secs_f64())).min(self.max.0)
    }
}

fn checked_steps(steps: &[Span]) -> Result<Vec<Span>, InvalidPolicy> {
    if steps.is_empty() || steps.len() > STEPS_MAX {
        return refuse("/schedule", format!("schedule has {} steps; use 1 to {STEPS_MAX}", steps.len()));
    }
    match steps.iter().find(|step| **step > DELAY_MAX) {
        Some(step) => refuse("/schedule", format!("schedule step {step} is too long; use at most {DELAY_MAX}")),
        None => Ok(steps.to_vec()),
    }
}

fn refuse<T>(pointer: &'static str, message: String) -> Result<T, InvalidPolicy> {
    Err(InvalidPolicy { pointer, message })
}

/// The window a delay is drawn from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The shortest delay that can come out.
    pub lo: Duration,
    /// The longest.
    pub hi: Duration,
}

impl Window {
    /// The delay for a draw in `[0, 1)`.
    pub fn at(self, draw: f64) -> Duration {
        self.lo + (self.hi - self.lo).mul_f64(draw.clamp(0.0, 1.0))
    }
}

impl RetryPolicy {
    /// The window for the wait after the `failures`-th failure, from 1.
    pub fn window(&self, failures: u32) -> Window {
        let n = failures.saturating_sub(1);
        let delay = match &self.delays {
            Delays::Standard => standard_delay(n),
            Delays::Backoff(backoff) => backoff.delay(n),
            Delays::Schedule(steps) => {
                let step = steps.get(n as usize).or(steps.last());
                step.expect("a checked schedule has at least one step").0
            }
        };
        let lo = match self.jitter {
            Jitter::Equal => delay / 2,
            Jitter::Full => Duration::ZERO,
            Jitter::None => delay,
        };
        Window { lo, hi: delay }
    }
}

fn standard_delay(n: u32) -> Duration {
    const FIRST: [u64; 3] = [5, 30, 120];
    let doubling = Backoff { base: Span::secs(300), factor: 2.0, max: Span::secs(3_600) };
    match FIRST.get(n as usize) {
        Some(seconds) => Duration::from_secs(*seconds),
        None => doubling.delay(n - FIRST.len() as u32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spec(json: serde_json::Value) -> RetrySpec {
        serde_json::from_value(json).unwrap()
    }

    fn delays(policy: &RetryPolicy, count: u32) -> Vec<u64> {
        (1..=count).map(|n| policy.window(n).hi.as_secs()).collect()
    }

    #[test]
    fn standard_is_what_the_documentation_says() {
        let policy = RetryPolicy::default();
        assert_eq!(delays(&policy, 9), [5, 30, 120, 300, 600, 1200, 2400, 3600, 3600]);
        assert_eq!(policy.window(1).lo, Duration::from_millis(2_500));
        assert_eq!((policy.max_attempts, policy.max_age.to_string()), (120, "72h".into()));
    }

    #[test]
    fn what_is_left_out_comes_from_standard() {
        let policy = spec(serde_json::json!({"schedule":["1s","2s"],"jitter":"none"})).resolve().unwrap();
        assert_eq!(delays(&policy, 4), [1, 2, 2, 2]);
        assert_eq!(policy.max_attempts, 120);
        let policy = spec(serde_json::json!({"max_attempts":3})).resolve().unwrap();
        assert_eq!(policy.delays, Delays::Standard);
        assert_eq!(policy.jitter, Jitter::Equal);
    }

    #[test]
    fn policies_that_make_no_sense_are_refused_at_their_place() {
        for (json, pointer) in [
            (serde_json::json!({"backoff":{"base":"2h","max":"1h"}}), "/backoff/max"),
            (serde_json::json!({"backoff":{"base":"0s","max":"1h"}}), "/backoff/base"),
            (serde_json::json!({"backoff":{"base":"1s","max":"1h","factor":0.5}}), "/backoff/factor"),
            (serde_json::json!({"backoff":{"base":"1s","max":"8d"}}), "/backoff/max"),
            (serde_json::json!({"backoff":{"base":"1s","max":"1h"},"schedule":["1s"]}), "/schedule"),
            (serde_json::json!({"schedule":[]}), "/schedule"),
            (serde_json::json!({"max_attempts":0}), "/max_attempts"),
            (serde_json::json!({"max_age":"0s"}), "/max_age"),
            (serde_json::json!({"max_age":"31d"}), "/max_age"),
        ] {
            assert_eq!(spec(json.clone()).resolve().unwrap_err().pointer, pointer, "{json}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn every_draw_lies_in_its_window(
            base in 1u64..86_400_000, times in 1u64..1_000, factor in 1.0f64..100.0,
            failures in 1u32..10_000, draw in 0.0f64..1.0, jitter in 0..3,
        ) {
            let backoff = Backoff { base: Span::millis(base), factor, max: Span::millis(base * times) };
            let jitter = [Jitter::Equal, Jitter::Full, Jitter::None][jitter as usize];
            let policy = RetryPolicy { delays: Delays::Backoff(backoff), jitter, ..RetryPolicy::default() };
            let window = policy.window(failures);
            let delay = window.at(draw);
            prop_assert!(window.lo <= delay && delay <= window.hi);
            prop_assert!(window.hi <= backoff.max.0);
        }
    }
}
