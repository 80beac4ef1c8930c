//! Retry policies: how long to wait before the next attempt, and when to give up.
//!
//! Pure: a delay follows from a policy, the number of failures and a random draw.
//! The window it was drawn from is returned as well, so that it can be explained.
//! [`super::preset`] names some policies; [`super::retry_spec`] reads and checks them.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

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

impl Backoff {
    fn delay(&self, n: u32) -> Duration {
        let exponent = i32::try_from(n).unwrap_or(i32::MAX);
        let seconds = self.base.0.as_secs_f64() * self.factor.powi(exponent);
        // The power may be infinite, so `min` comes before the conversion; the
        // second `min` removes what rounding added.
        Duration::from_secs_f64(seconds.min(self.max.0.as_secs_f64())).min(self.max.0)
    }
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
