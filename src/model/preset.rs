//! Defines the named retry policies, and shows any policy in one line.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::named_enum::NamedEnum;
use super::policy::{Backoff, Delays, Jitter, RetryPolicy};
use super::span::Span;

/// The policies that have a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Preset {
    /// 5s, 30s, 2m, then doubling from 5m up to 1h, equal jitter; 120 attempts or 72h.
    Standard,
    /// Doubling from 1s up to 60s, full jitter; 5 attempts or 1h.
    Quick,
    /// Doubling from 1m up to 1h, equal jitter; 16 attempts or 72h.
    Hourly,
    /// 30s, 2m, 10m, 1h, each 20 % less or more; 5 attempts or 24h.
    Stepped,
    /// Doubling from 2s up to 5m, full jitter; 100 attempts or 72h.
    Patient,
    /// From 1m over hours to once a day, each 10 % less or more; 40 attempts or 7d.
    Long,
}

impl Preset {
    /// Returns the preset whose policy a line shows that was made by `Display` of
    /// [`RetryPolicy`], if it has one.
    pub fn shown_in(line: &str) -> Option<Self> {
        let (name, _) = line.split_once(" (")?;
        Self::ALL.iter().copied().find(|preset| preset.as_str() == name)
    }

    /// Returns the policy that the preset stands for.
    pub fn policy(self) -> RetryPolicy {
        const MINUTE: u64 = 60;
        const HOUR: u64 = 3_600;
        let doubling = |base, max| Some(Backoff { base: Span::secs(base), factor: 2.0, max: Span::secs(max) });
        let (steps, backoff): (&[u64], _) = match self {
            Self::Standard => (&[5, 30, 2 * MINUTE], doubling(5 * MINUTE, HOUR)),
            Self::Quick => (&[], doubling(1, MINUTE)),
            Self::Hourly => (&[], doubling(MINUTE, HOUR)),
            Self::Stepped => (&[30, 2 * MINUTE, 10 * MINUTE, HOUR], None),
            Self::Patient => (&[], doubling(2, 5 * MINUTE)),
            Self::Long => {
                const STEPS: [u64; 12] = [60, 120, 240, 480, 900, 1_800, 3_600, 7_200, 14_400, 28_800, 57_600, 86_400];
                (&STEPS, None)
            }
        };
        let (jitter, max_attempts, hours) = match self {
            Self::Standard => (Jitter::Equal, 120, 72),
            Self::Quick => (Jitter::Full, 5, 1),
            Self::Hourly => (Jitter::Equal, 16, 72),
            Self::Stepped => (Jitter::Percent(20.0), 5, 24),
            Self::Patient => (Jitter::Full, 100, 72),
            Self::Long => (Jitter::Percent(10.0), 40, 7 * 24),
        };
        RetryPolicy {
            delays: Delays { steps: steps.iter().copied().map(Span::secs).collect(), backoff },
            jitter,
            max_attempts,
            max_age: Span::secs(hours * HOUR),
            retry_after_max: Span::secs(24 * HOUR),
        }
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Preset::Standard.policy()
    }
}

impl RetryPolicy {
    /// Returns the preset that this policy equals, if there is one.
    pub fn preset(&self) -> Option<Preset> {
        Preset::ALL.iter().copied().find(|preset| preset.policy() == *self)
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
        write!(f, "; {} or {}", attempts_words(self.max_attempts), self.max_age)?;
        if self.retry_after_max != Preset::Standard.policy().retry_after_max {
            write!(f, "; Retry-After up to {}", self.retry_after_max)?;
        }
        f.write_str(if preset.is_some() { ")" } else { "" })
    }
}

fn attempts_words(count: u32) -> String {
    match count {
        1 => "1 attempt".to_owned(),
        count => format!("{count} attempts"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn delays(policy: &RetryPolicy, count: u32) -> Vec<u64> {
        (0..count).map(|n| policy.delays.at(n).as_secs()).collect()
    }

    #[test]
    fn the_line_of_a_policy_tells_its_preset() {
        for preset in Preset::ALL {
            assert_eq!(Preset::shown_in(&preset.policy().to_string()), Some(*preset));
        }
        let own = RetryPolicy { max_attempts: 3, ..Preset::Standard.policy() };
        assert_eq!(Preset::shown_in(&own.to_string()), None);
    }

    #[test]
    fn presets_are_what_the_documentation_says() {
        let texts: Vec<String> = Preset::ALL.iter().map(|preset| preset.policy().to_string()).collect();
        assert_eq!(
            texts,
            [
                "standard (5s, 30s, 2m, then doubling from 5m up to 1h, equal jitter; 120 attempts or 72h)",
                "quick (doubling from 1s up to 1m, full jitter; 5 attempts or 1h)",
                "hourly (doubling from 1m up to 1h, equal jitter; 16 attempts or 72h)",
                "stepped (30s, 2m, 10m, 1h, repeating the last, ±20 % jitter; 5 attempts or 24h)",
                "patient (doubling from 2s up to 5m, full jitter; 100 attempts or 72h)",
                "long (1m, 2m, 4m, 8m, 15m, 30m, 1h, 2h, 4h, 8h, 16h, 24h, repeating the last, ±10 % jitter; 40 attempts or 7d)",
            ]
        );
        let policy = Preset::Standard.policy();
        assert_eq!(delays(&policy, 9), [5, 30, 120, 300, 600, 1200, 2400, 3600, 3600]);
        assert_eq!(policy.window(1, None).lo, Duration::from_millis(2_500));
        assert_eq!(delays(&Preset::Quick.policy(), 8), [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(delays(&Preset::Patient.policy(), 9), [2, 4, 8, 16, 32, 64, 128, 256, 300]);
        assert_eq!(delays(&Preset::Long.policy(), 14)[10..], [57_600, 86_400, 86_400, 86_400]);
    }
}
