//! A retry policy as an endpoint's owner writes it: a preset and what differs from it.
//!
//! Checks what was written, and fills in the rest from the preset.

use serde::{Deserialize, Serialize};

use super::policy::{Backoff, Delays, Jitter, RetryPolicy};
use super::preset::Preset;
use super::span::Span;

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
        let policy = self.fill_defaults();
        policy.jitter.check(&policy.delays)?;
        policy.check_limits()?;
        Ok(policy)
    }

    /// Fills in absent fields without checks. Stored specs are read with it: a rule
    /// that was added later must not make them unreadable.
    pub fn fill_defaults(&self) -> RetryPolicy {
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
