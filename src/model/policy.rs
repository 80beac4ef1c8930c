//! How long to wait before the next attempt, and when to stop trying.
//!
//! Pure: a policy, how often it failed and a random draw give a delay. The
//! window the delay was drawn from is kept, so that it can be explained.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::preset::Preset;
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
    /// The longest wait a receiver may ask for.
    pub retry_after_max: Span,
}

/// The delays of a policy, before jitter: first the steps one by one, then
/// the backoff from its base on, or, without one, the last step again.
#[derive(Debug, Clone, PartialEq)]
pub struct Delays {
    /// The first delays, one by one.
    pub steps: Vec<Span>,
    /// How they go on.
    pub then: Option<Backoff>,
}

/// Exponential delays: `base × factor^n`, never above `max`.
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
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Jitter {
    /// Between half of it and all of it.
    Equal,
    /// Between nothing and all of it.
    Full,
    /// Between the base and three times the wait before, never above the max.
    Decorrelated,
    /// Exactly it.
    None,
    /// So many percent less or more: above 0, at most 100.
    Percent(f64),
    /// Up to so much more.
    #[schema(value_type = String)]
    Add(Span),
}

/// A retry policy as written: `{"preset":"standard"}`, or any field that
/// differs from it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetrySpec {
    /// The policy whose fields stand in for those left out; `standard` if not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,
    /// Exponential delays. Not together with `schedule`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
    /// The delays one by one; the last repeats until the budget ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>, example = json!(["30s", "2m", "10m", "1h"]))]
    pub schedule: Option<Vec<Span>>,
    /// How chance is added to a delay: `equal`, `full`, `decorrelated`, `none`, `{"percent":20}` or `{"add":"1s"}`.
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
    /// The longest wait a `Retry-After` header may ask for, up to 30d; 0s ignores the header.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "24h")]
    pub retry_after_max: Option<Span>,
}

/// Why a policy is refused: where, and what would be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidPolicy {
    /// The place inside the policy, as a JSON pointer.
    pub pointer: String,
    /// The sentence.
    pub message: String,
}

const DELAY_MAX: Span = Span::secs(7 * 86_400);
const AGE_MAX: Span = Span::secs(30 * 86_400);
const ATTEMPTS_MAX: u32 = 1_000;
const STEPS_MAX: usize = 100;

impl Default for RetryPolicy {
    fn default() -> Self {
        Preset::Standard.policy()
    }
}

impl RetrySpec {
    /// The spec people get who write none.
    pub fn standard() -> Self {
        Self::of(Preset::Standard)
    }

    /// A spec that is a preset and nothing else.
    pub fn of(preset: Preset) -> Self {
        Self { preset: Some(preset), ..Self::default() }
    }

    /// Fills in what was left out and refuses what makes no sense.
    pub fn resolve(&self) -> Result<RetryPolicy, InvalidPolicy> {
        let preset = self.preset.unwrap_or(Preset::Standard).policy();
        let delays = match (&self.backoff, &self.schedule) {
            (Some(_), Some(_)) => {
                return refuse("/schedule", "backoff and schedule are both given; use one of them".into());
            }
            (Some(backoff), None) => Delays { steps: Vec::new(), then: Some(backoff.checked()?) },
            (None, Some(steps)) => Delays { steps: checked_steps(steps)?, then: None },
            (None, None) => preset.delays,
        };
        let policy = RetryPolicy {
            jitter: self.jitter.unwrap_or(preset.jitter).checked(&delays)?,
            delays,
            max_attempts: self.max_attempts.unwrap_or(preset.max_attempts),
            max_age: self.max_age.unwrap_or(preset.max_age),
            retry_after_max: self.retry_after_max.unwrap_or(preset.retry_after_max),
        };
        policy.check_limits()?;
        Ok(policy)
    }
}

impl RetryPolicy {
    fn check_limits(&self) -> Result<(), InvalidPolicy> {
        if !(1..=ATTEMPTS_MAX).contains(&self.max_attempts) {
            return refuse("/max_attempts", format!("max_attempts is {}; use 1 to {ATTEMPTS_MAX}", self.max_attempts));
        }
        if self.max_age < Span::secs(1) || self.max_age > AGE_MAX {
            return refuse("/max_age", format!("max_age is {}; use 1s to {AGE_MAX}", self.max_age));
        }
        if self.retry_after_max > AGE_MAX {
            return refuse(
                "/retry_after_max",
                format!("retry_after_max is {}; use 0s to {AGE_MAX}", self.retry_after_max),
            );
        }
        let earliest = Span(self.window(1, None).lo);
        if self.max_attempts > 1 && earliest > self.max_age {
            return refuse(
                "/max_age",
                format!(
                    "max_age is {}, and the second attempt starts {earliest} after the first at the earliest, so there would never be one; raise max_age, shorten the delays, or set max_attempts to 1",
                    self.max_age
                ),
            );
        }
        Ok(())
    }
}

impl Backoff {
    fn checked(self) -> Result<Self, InvalidPolicy> {
        if self.base.as_millis() == 0 || self.base > DELAY_MAX {
            return refuse("/backoff/base", format!("backoff base is {}; use 1ms to {DELAY_MAX}", self.base));
        }
        if self.max < self.base {
            return refuse(
                "/backoff/max",
                format!("backoff max is {}, below base ({}); use a longer max or a shorter base", self.max, self.base),
            );
        }
        if self.max > DELAY_MAX {
            return refuse("/backoff/max", format!("backoff max is {}; use at most {DELAY_MAX}", self.max));
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
    let range = Span::millis(1)..=DELAY_MAX;
    match steps.iter().enumerate().find(|(_, step)| !range.contains(step)) {
        Some((n, step)) => {
            refuse(&format!("/schedule/{n}"), format!("schedule step {step} is out of range; use 1ms to {DELAY_MAX}"))
        }
        None => Ok(steps.to_vec()),
    }
}

impl Jitter {
    fn checked(self, delays: &Delays) -> Result<Self, InvalidPolicy> {
        match self {
            Self::Percent(percent) if !(percent > 0.0 && percent <= 100.0) => {
                refuse("/jitter/percent", format!("jitter percent is {percent}; use more than 0 and at most 100"))
            }
            Self::Add(span) if span.as_millis() == 0 || span > DELAY_MAX => {
                refuse("/jitter/add", format!("jitter add is {span}; use 1ms to {DELAY_MAX}"))
            }
            Self::Decorrelated if !delays.steps.is_empty() => refuse(
                "/jitter",
                "jitter decorrelated draws between the base and three times the last wait, so it needs a backoff and no steps; give backoff, or use another jitter".into(),
            ),
            jitter => Ok(jitter),
        }
    }
}

fn refuse<T>(pointer: &str, message: String) -> Result<T, InvalidPolicy> {
    Err(InvalidPolicy { pointer: pointer.into(), message })
}

impl Delays {
    /// The delay after this many earlier failures, from 0.
    pub fn at(&self, n: u32) -> Duration {
        match (self.steps.get(n as usize), &self.then) {
            (Some(step), _) => step.0,
            (None, Some(backoff)) => backoff.delay(n - self.steps.len() as u32),
            (None, None) => self.steps.last().expect("a checked schedule has at least one step").0,
        }
    }
}

/// The window a delay is drawn from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The shortest delay that can come out.
    pub lo: Duration,
    /// The longest.
    pub hi: Duration,
    /// Where the draw itself ends: past `hi` it is cut to it.
    drawn_to: Duration,
}

impl Window {
    fn between(lo: Duration, hi: Duration) -> Self {
        Self { lo, hi, drawn_to: hi }
    }

    /// The delay for a draw in `[0, 1)`.
    pub fn at(self, draw: f64) -> Duration {
        (self.lo + (self.drawn_to - self.lo).mul_f64(draw.clamp(0.0, 1.0))).min(self.hi)
    }
}

impl RetryPolicy {
    /// The window for the wait after the `failures`-th failure, from 1.
    /// `last` is what was drawn the time before, if there was one.
    pub fn window(&self, failures: u32, last: Option<Duration>) -> Window {
        let delay = self.delays.at(failures.saturating_sub(1));
        match self.jitter {
            Jitter::Equal => Window::between(delay / 2, delay),
            Jitter::Full => Window::between(Duration::ZERO, delay),
            Jitter::None => Window::between(delay, delay),
            Jitter::Percent(percent) => {
                let part = delay.mul_f64(percent / 100.0);
                Window::between(delay.saturating_sub(part), delay + part)
            }
            Jitter::Add(span) => Window::between(delay, delay + span.0),
            Jitter::Decorrelated => {
                let backoff = self.delays.then.expect("a checked decorrelated policy has a backoff");
                let drawn_to = last.unwrap_or(backoff.base.0).max(backoff.base.0) * 3;
                Window { lo: backoff.base.0, hi: drawn_to.min(backoff.max.0), drawn_to }
            }
        }
    }

    /// The preset this policy is, if it is one.
    pub fn preset(&self) -> Option<Preset> {
        Preset::ALL.into_iter().find(|preset| preset.policy() == *self)
    }
}

/// The policy in one line: `standard (5s, 30s, 2m, then doubling …)`.
impl fmt::Display for RetryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let preset = self.preset();
        if let Some(preset) = preset {
            write!(f, "{} (", preset.as_str())?;
        }
        match (self.jitter, &self.delays.then) {
            // The factor plays no part in it.
            (Jitter::Decorrelated, Some(Backoff { base, max, .. })) => {
                write!(f, "from {base} up to {max}, {}", self.jitter)?;
            }
            _ => write!(f, "{}, {}", self.delays, self.jitter)?,
        }
        write!(f, "; {} or {}", attempts(self.max_attempts), self.max_age)?;
        if self.retry_after_max != Preset::Standard.policy().retry_after_max {
            write!(f, "; Retry-After up to {}", self.retry_after_max)?;
        }
        f.write_str(if preset.is_some() { ")" } else { "" })
    }
}

fn attempts(count: u32) -> String {
    match count {
        1 => "1 attempt".to_owned(),
        count => format!("{count} attempts"),
    }
}

impl fmt::Display for Delays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<String> = self.steps.iter().map(Span::to_string).collect();
        f.write_str(&steps.join(", "))?;
        match &self.then {
            None => f.write_str(", repeating the last"),
            Some(backoff) => {
                f.write_str(if steps.is_empty() { "" } else { ", then " })?;
                match backoff.factor {
                    2.0 => f.write_str("doubling")?,
                    1.0 => return write!(f, "{} each time", backoff.base),
                    factor => write!(f, "× {factor}")?,
                }
                write!(f, " from {} up to {}", backoff.base, backoff.max)
            }
        }
    }
}

impl fmt::Display for Jitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equal => f.write_str("equal jitter"),
            Self::Full => f.write_str("full jitter"),
            Self::Decorrelated => f.write_str("decorrelated jitter"),
            Self::None => f.write_str("no jitter"),
            Self::Percent(percent) => write!(f, "±{percent} % jitter"),
            Self::Add(span) => write!(f, "up to {span} of jitter added"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use serde_json::json;

    fn spec(json: serde_json::Value) -> RetrySpec {
        serde_json::from_value(json).unwrap()
    }

    fn delays(policy: &RetryPolicy, count: u32) -> Vec<u64> {
        (0..count).map(|n| policy.delays.at(n).as_secs()).collect()
    }

    #[test]
    fn what_is_left_out_comes_from_the_preset_or_else_from_standard() {
        let policy = spec(json!({"schedule":["1s","2s"],"jitter":"none"})).resolve().unwrap();
        assert_eq!(delays(&policy, 4), [1, 2, 2, 2]);
        assert_eq!((policy.max_attempts, policy.max_age.to_string()), (120, "72h".into()));
        let policy = spec(json!({"max_attempts":3})).resolve().unwrap();
        assert_eq!(policy, RetryPolicy { max_attempts: 3, ..Preset::Standard.policy() });
        let policy = spec(json!({"preset":"stepped","retry_after_max":"1h"})).resolve().unwrap();
        assert_eq!(policy, RetryPolicy { retry_after_max: Span::secs(3_600), ..Preset::Stepped.policy() });
    }

    #[test]
    fn every_jitter_reads_as_it_is_written() {
        for text in
            [r#""equal""#, r#""full""#, r#""decorrelated""#, r#""none""#, r#"{"percent":12.5}"#, r#"{"add":"1s"}"#]
        {
            let jitter: Jitter = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&jitter).unwrap(), text);
        }
    }

    #[test]
    fn policies_that_make_no_sense_are_refused_at_their_place_with_the_reason() {
        for (json, pointer, reason) in [
            (json!({"backoff":{"base":"2h","max":"1h"}}), "/backoff/max", "max is 1h, below base (2h)"),
            (json!({"backoff":{"base":"0s","max":"1h"}}), "/backoff/base", "use 1ms to 7d"),
            (json!({"backoff":{"base":"1s","max":"1h","factor":0.5}}), "/backoff/factor", "use 1 to 100"),
            (json!({"backoff":{"base":"1s","max":"8d"}}), "/backoff/max", "use at most 7d"),
            (json!({"backoff":{"base":"1s","max":"1h"},"schedule":["1s"]}), "/schedule", "use one of them"),
            (json!({"schedule":[]}), "/schedule", "schedule has 0 steps"),
            (json!({"schedule":["1s","0s"]}), "/schedule/1", "use 1ms to 7d"),
            (json!({"schedule":["8d"]}), "/schedule/0", "use 1ms to 7d"),
            (json!({"max_attempts":0}), "/max_attempts", "use 1 to 1000"),
            (json!({"max_attempts":1001}), "/max_attempts", "use 1 to 1000"),
            (json!({"max_age":"0s"}), "/max_age", "use 1s to 30d"),
            (json!({"max_age":"31d"}), "/max_age", "use 1s to 30d"),
            (
                json!({"schedule":["1h"],"jitter":"none","max_age":"59m"}),
                "/max_age",
                "1h after the first at the earliest",
            ),
            (json!({"retry_after_max":"31d"}), "/retry_after_max", "use 0s to 30d"),
            (json!({"jitter":{"percent":0}}), "/jitter/percent", "at most 100"),
            (json!({"jitter":{"percent":101}}), "/jitter/percent", "at most 100"),
            (json!({"jitter":{"percent":-5}}), "/jitter/percent", "at most 100"),
            (json!({"jitter":{"add":"0s"}}), "/jitter/add", "use 1ms"),
            (json!({"jitter":"decorrelated"}), "/jitter", "needs a backoff"),
            (json!({"preset":"stepped","jitter":"decorrelated"}), "/jitter", "needs a backoff"),
        ] {
            let refused = spec(json.clone()).resolve().unwrap_err();
            assert_eq!(refused.pointer, pointer, "{json}");
            assert!(refused.message.contains(reason), "{json}: {}", refused.message);
        }
        // With one attempt there is no second one to reach.
        assert!(spec(json!({"schedule":["1h"],"max_age":"1s","max_attempts":1})).resolve().is_ok());
        let negative = serde_json::from_value::<RetrySpec>(json!({"schedule":["-5s"]})).unwrap_err().to_string();
        assert!(negative.contains("whole number"), "{negative}");
    }

    fn any_jitter() -> impl Strategy<Value = Jitter> {
        prop_oneof![
            Just(Jitter::Equal),
            Just(Jitter::Full),
            Just(Jitter::Decorrelated),
            Just(Jitter::None),
            (0.1f64..=100.0).prop_map(Jitter::Percent),
            (1u64..100_000).prop_map(|millis| Jitter::Add(Span::millis(millis))),
        ]
    }

    /// The window of a delay, written a second time from the documentation.
    fn published(policy: &RetryPolicy, delay: f64, last: Option<Duration>) -> (f64, f64) {
        match policy.jitter {
            Jitter::Equal => (delay / 2.0, delay),
            Jitter::Full => (0.0, delay),
            Jitter::None => (delay, delay),
            Jitter::Percent(p) => (delay * (1.0 - p / 100.0), delay * (1.0 + p / 100.0)),
            Jitter::Add(span) => (delay, delay + span.0.as_secs_f64()),
            Jitter::Decorrelated => {
                let Backoff { base, max, .. } = policy.delays.then.unwrap();
                let last = last.unwrap_or(base.0).as_secs_f64();
                (base.0.as_secs_f64(), (last * 3.0).min(max.0.as_secs_f64()))
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn every_delay_lies_in_its_published_window(
            base in 1u64..86_400_000, times in 1u64..1_000, factor in 1.0f64..100.0, jitter in any_jitter(),
            draws in proptest::collection::vec(0.0f64..1.0, 30),
        ) {
            let backoff = Backoff { base: Span::millis(base), factor, max: Span::millis(base * times) };
            let delays = Delays { steps: Vec::new(), then: Some(backoff) };
            let policy = RetryPolicy { delays, jitter, ..RetryPolicy::default() };
            let mut last = None;
            for (n, draw) in draws.into_iter().enumerate() {
                let plain = (base as f64 * factor.powi(n as i32)).min((base * times) as f64) / 1_000.0;
                let (lo, hi) = published(&policy, plain, last);
                let delay = policy.window(n as u32 + 1, last).at(draw);
                let seconds = delay.as_secs_f64();
                prop_assert!(seconds >= lo * (1.0 - 1e-6) - 1e-6 && seconds <= hi * (1.0 + 1e-6) + 1e-6, "{n}: {seconds} is not in {lo}..{hi}");
                last = Some(delay);
            }
        }
    }

    /// How far 100,000 draws are from falling evenly into 100 bins.
    fn chi_square(mut place: impl FnMut(f64) -> f64) -> f64 {
        const DRAWS: usize = 100_000;
        const BINS: usize = 100;
        let mut chance = StdRng::seed_from_u64(7);
        let mut bins = [0u32; BINS];
        for _ in 0..DRAWS {
            let place = place(chance.random());
            assert!((0.0..=1.0).contains(&place), "{place} lies outside of the window");
            bins[((place * BINS as f64) as usize).min(BINS - 1)] += 1;
        }
        let expected = DRAWS as f64 / BINS as f64;
        bins.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum()
    }

    /// With 99 degrees of freedom, one in a million even spreads is above it.
    const CHI_SQUARE_MAX: f64 = 180.0;

    #[test]
    fn draws_fall_evenly_into_the_window_of_every_jitter() {
        let policy = |jitter: serde_json::Value| {
            spec(json!({"backoff":{"base":"10s","max":"1h"},"jitter":jitter})).resolve().unwrap()
        };
        let even = [
            (json!("equal"), 5.0, 10.0),
            (json!("full"), 0.0, 10.0),
            (json!("decorrelated"), 10.0, 30.0),
            (json!({"percent":20}), 8.0, 12.0),
            (json!({"add":"4s"}), 10.0, 14.0),
        ];
        for (jitter, lo, hi) in even {
            let policy = policy(jitter.clone());
            let found = chi_square(|draw| (policy.window(1, None).at(draw).as_secs_f64() - lo) / (hi - lo));
            assert!(found < CHI_SQUARE_MAX, "{jitter}: {found}");
        }
        let policy = policy(json!("none"));
        for draw in 0..100_000 {
            assert_eq!(policy.window(1, None).at(f64::from(draw) / 100_000.0), Duration::from_secs(10));
        }
    }

    #[test]
    fn decorrelated_goes_on_from_the_last_wait_and_is_cut_at_the_max() {
        let policy = spec(json!({"backoff":{"base":"10s","max":"2m"},"jitter":"decorrelated"})).resolve().unwrap();
        let last = Some(Duration::from_secs(20));
        let found = chi_square(|draw| (policy.window(2, last).at(draw).as_secs_f64() - 10.0) / 50.0);
        assert!(found < CHI_SQUARE_MAX, "{found}");
        // Three times 80s is 240s: what is drawn past 120s, half and a bit, waits 120s.
        let last = Some(Duration::from_secs(80));
        let mut chance = StdRng::seed_from_u64(7);
        let draws: Vec<Duration> = (0..100_000).map(|_| policy.window(3, last).at(chance.random())).collect();
        let cut = draws.iter().filter(|delay| **delay == Duration::from_secs(120)).count();
        assert!((51_000..=53_400).contains(&cut), "{cut} of 100,000 waits were cut; 120/230 of them are expected");
    }

    #[test]
    fn deliveries_that_failed_together_come_back_apart() {
        // Requests per tenth of the window, for 10,000 deliveries.
        let wave = |policy: &RetryPolicy| {
            let mut chance = StdRng::seed_from_u64(11);
            let window = policy.window(4, Some(policy.window(3, None).hi));
            let mut slots = [0u32; 10];
            for _ in 0..10_000 {
                let into = window.at(chance.random()).saturating_sub(window.lo).as_secs_f64();
                let width = (window.hi - window.lo).as_secs_f64();
                slots[((into / width.max(1e-9) * 10.0) as usize).min(9)] += 1;
            }
            f64::from(slots.iter().copied().max().unwrap_or_default()) / 1_000.0
        };
        for jitter in
            [json!("equal"), json!("full"), json!({"percent":20}), json!({"add":"10s"}), json!("decorrelated")]
        {
            let policy = spec(json!({"backoff":{"base":"10s","max":"24h"},"jitter":jitter})).resolve().unwrap();
            let ratio = wave(&policy);
            println!("{}: the next wave of 10,000 has a peak-to-mean of {ratio:.3}", policy.jitter);
            assert!(ratio < 1.15, "{jitter}: {ratio}");
        }
        let ratio = wave(&spec(json!({"jitter":"none"})).resolve().unwrap());
        println!("no jitter: the next wave of 10,000 has a peak-to-mean of {ratio:.3}");
        assert!(ratio > 9.0, "without jitter all come at once, or this test shows nothing");
    }
}
