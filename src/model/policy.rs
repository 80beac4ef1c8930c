//! Retry policies: how long to wait before the next attempt, and when to give up.
//!
//! Pure: a delay follows from a policy, the number of failures and a random draw.
//! The window it was drawn from is returned as well, so that it can be explained.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::preset::Preset;
use super::span::Span;

/// A complete retry policy.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryPolicy {
    /// Delays before jitter.
    pub delays: Delays,
    /// Random part of the delays.
    pub jitter: Jitter,
    /// Most attempts, the first included.
    pub max_attempts: u32,
    /// Longest time from the start of the first attempt to that of the last.
    pub max_age: Span,
    /// Longest wait that a receiver may ask for.
    pub retry_after_max: Span,
}

/// The delays of a policy, before jitter: first the steps one by one, then
/// the backoff from its base on, or, without one, the last step again.
#[derive(Debug, Clone, PartialEq)]
pub struct Delays {
    /// First delays, one by one.
    pub steps: Vec<Span>,
    /// Backoff that follows the steps.
    pub backoff: Option<Backoff>,
}

/// Exponential delays: `base × factor^n`, never above `max`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Backoff {
    /// The first delay.
    #[schema(value_type = String, example = "1m")]
    pub base: Span,
    /// What each delay is multiplied by to give the next.
    #[serde(default = "default_factor")]
    pub factor: f64,
    /// The longest delay.
    #[schema(value_type = String, example = "1h")]
    pub max: Span,
}

fn default_factor() -> f64 {
    2.0
}

/// How chance is added to a delay `d`, so that deliveries that failed
/// together do not come back together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Jitter {
    /// Between half of `d` and `d`.
    Equal,
    /// Between nothing and `d`.
    Full,
    /// Between the base and three times the wait before, never above the max.
    Decorrelated,
    /// Exactly `d`, without chance.
    None,
    /// This many percent less or more: above 0, at most 100.
    Percent(f64),
    /// Up to this much more.
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

/// The reason why a policy is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidPolicy {
    /// JSON pointer to the refused field.
    pub pointer: String,
    /// The reason, with what would be accepted.
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
    /// Returns the spec of endpoints that give none.
    pub fn standard() -> Self {
        Self::of(Preset::Standard)
    }

    /// Returns a spec that is a preset and nothing else.
    pub fn of(preset: Preset) -> Self {
        Self { preset: Some(preset), ..Self::default() }
    }

    /// Fills in absent fields, and refuses policies that make no sense.
    pub fn resolve(&self) -> Result<RetryPolicy, InvalidPolicy> {
        if self.backoff.is_some() && self.schedule.is_some() {
            return refuse("/schedule", "backoff and schedule are both given; use one of them".into());
        }
        if let Some(backoff) = &self.backoff {
            backoff.check()?;
        }
        if let Some(steps) = &self.schedule {
            check_steps(steps)?;
        }
        let policy = self.filled();
        policy.jitter.check(&policy.delays)?;
        policy.check_limits()?;
        Ok(policy)
    }

    /// Fills in absent fields without checks. Stored specs are read with it: a rule
    /// that was added later must not make them unreadable.
    pub fn filled(&self) -> RetryPolicy {
        let preset = self.preset.unwrap_or(Preset::Standard).policy();
        let delays = match (&self.backoff, &self.schedule) {
            (Some(backoff), _) => Delays { steps: Vec::new(), backoff: Some(*backoff) },
            (None, Some(steps)) if !steps.is_empty() => Delays { steps: steps.clone(), backoff: None },
            (None, _) => preset.delays,
        };
        RetryPolicy {
            delays,
            jitter: self.jitter.unwrap_or(preset.jitter),
            max_attempts: self.max_attempts.unwrap_or(preset.max_attempts),
            max_age: self.max_age.unwrap_or(preset.max_age),
            retry_after_max: self.retry_after_max.unwrap_or(preset.retry_after_max),
        }
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
    fn check(&self) -> Result<(), InvalidPolicy> {
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
        Ok(())
    }

    fn delay(&self, n: u32) -> Duration {
        let exponent = i32::try_from(n).unwrap_or(i32::MAX);
        let seconds = self.base.0.as_secs_f64() * self.factor.powi(exponent);
        // The power may be infinite, so `min` comes before the conversion; the
        // second `min` removes what rounding added.
        Duration::from_secs_f64(seconds.min(self.max.0.as_secs_f64())).min(self.max.0)
    }
}

fn check_steps(steps: &[Span]) -> Result<(), InvalidPolicy> {
    if steps.is_empty() || steps.len() > STEPS_MAX {
        return refuse("/schedule", format!("schedule has {} steps; use 1 to {STEPS_MAX}", steps.len()));
    }
    let range = Span::millis(1)..=DELAY_MAX;
    match steps.iter().enumerate().find(|(_, step)| !range.contains(step)) {
        Some((n, step)) => {
            refuse(&format!("/schedule/{n}"), format!("schedule step {step} is out of range; use 1ms to {DELAY_MAX}"))
        }
        None => Ok(()),
    }
}

impl Jitter {
    fn check(self, delays: &Delays) -> Result<(), InvalidPolicy> {
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
            _ => Ok(()),
        }
    }
}

fn refuse<T>(pointer: &str, message: String) -> Result<T, InvalidPolicy> {
    Err(InvalidPolicy { pointer: pointer.into(), message })
}

impl Delays {
    /// Returns the delay after this many earlier failures, from 0.
    pub fn at(&self, n: u32) -> Duration {
        match (self.steps.get(n as usize), &self.backoff) {
            (Some(step), _) => step.0,
            (None, Some(backoff)) => backoff.delay(n - self.steps.len() as u32),
            (None, None) => self.steps.last().expect("a checked schedule has at least one step").0,
        }
    }
}

/// The window that a delay is drawn from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DelayWindow {
    /// Shortest possible delay.
    pub lo: Duration,
    /// Longest possible delay.
    pub hi: Duration,
    /// Upper end of the draw; a draw above `hi` is cut to `hi`.
    drawn_to: Duration,
}

impl DelayWindow {
    fn between(lo: Duration, hi: Duration) -> Self {
        Self { lo, hi, drawn_to: hi }
    }

    /// Returns the delay for a draw in `[0, 1)`.
    pub fn at(self, draw: f64) -> Duration {
        (self.lo + (self.drawn_to - self.lo).mul_f64(draw.clamp(0.0, 1.0))).min(self.hi)
    }
}

impl RetryPolicy {
    /// Returns the window for the delay after the `failures`-th failure, from 1.
    /// `last` is the delay drawn the time before, if there was one.
    pub fn window(&self, failures: u32, last: Option<Duration>) -> DelayWindow {
        let delay = self.delays.at(failures.saturating_sub(1));
        match self.jitter {
            Jitter::Equal => DelayWindow::between(delay / 2, delay),
            Jitter::Full => DelayWindow::between(Duration::ZERO, delay),
            Jitter::None => DelayWindow::between(delay, delay),
            Jitter::Percent(percent) => {
                let part = delay.mul_f64(percent / 100.0);
                DelayWindow::between(delay.saturating_sub(part), delay + part)
            }
            Jitter::Add(span) => DelayWindow::between(delay, delay + span.0),
            Jitter::Decorrelated => {
                let (base, max) = self.delays.backoff.map_or((delay, delay), |backoff| (backoff.base.0, backoff.max.0));
                let drawn_to = last.unwrap_or(base).max(base) * 3;
                DelayWindow { lo: base, hi: drawn_to.min(max), drawn_to }
            }
        }
    }

    /// Returns the preset that this policy equals, if there is one.
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
        match (self.jitter, &self.delays.backoff) {
            // Decorrelated jitter does not use the factor.
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
        match &self.backoff {
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
pub mod tests;
