//! The service-level goal's target: which part of the deliveries is to arrive within
//! ten minutes.

use std::fmt;
use std::str::FromStr;

/// The part of the deliveries that is to meet the goal, in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SloTarget(f64);

impl SloTarget {
    /// Smallest and largest target, in percent. Nothing may be missed by one of 100 %,
    /// so nothing could be measured against it.
    const BOUNDS: std::ops::RangeInclusive<f64> = 50.0..=99.999;

    /// Returns the target as a part of one.
    pub fn ratio(self) -> f64 {
        // Rounded, so that 99.9 % is 0.999 and not a little more.
        (self.0 * 1e4).round() / 1e6
    }

    /// Returns the part that may miss the goal.
    pub fn allowance(self) -> f64 {
        ((100.0 - self.0) * 1e4).round() / 1e6
    }
}

impl Default for SloTarget {
    fn default() -> Self {
        Self(99.9)
    }
}

impl FromStr for SloTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let percent = text.strip_suffix('%').unwrap_or(text).trim_end().parse().ok();
        let percent = percent.filter(|percent| Self::BOUNDS.contains(percent));
        percent.map(Self).ok_or_else(|| format!("{text:?} is not a target of the goal; use 50% to 99.999%"))
    }
}

impl fmt::Display for SloTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_percentage_that_leaves_something_to_miss() {
        let target = |text: &str| text.parse::<SloTarget>();
        assert_eq!((target("99.9"), target("")), (Ok(SloTarget::default()), Ok(SloTarget::default())));
        let strict = target("99.95 %").unwrap();
        assert_eq!((strict.ratio(), strict.allowance(), strict.to_string().as_str()), (0.9995, 0.0005, "99.95%"));
        assert_eq!((SloTarget::default().ratio(), SloTarget::default().allowance()), (0.999, 0.001));
        for wrong in ["100", "0.999", "49%", "often", "NaN"] {
            assert!(target(wrong).unwrap_err().contains("use 50% to 99.999%"), "{wrong}");
        }
    }
}
