//! Decides which attempts have a line in the log.
//!
//! Invariant: an attempt that did not deliver always has one.

use std::fmt;
use std::str::FromStr;

/// Which attempts have a line in the log.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LoggedAttempts {
    /// Every attempt has a line.
    All,
    /// Attempts that did not deliver have a line.
    Failures,
    /// Attempts that did not deliver have a line, and so has this share of the
    /// others, in percent.
    Sample(f64),
}

impl LoggedAttempts {
    /// Whether an attempt has a line. `draw` returns a random number in `[0, 1)`;
    /// it is called only if the answer depends on it.
    pub fn includes(self, is_delivered: bool, draw: impl FnOnce() -> f64) -> bool {
        match self {
            Self::All => true,
            Self::Failures => !is_delivered,
            Self::Sample(percent) => !is_delivered || draw() * 100.0 < percent,
        }
    }
}

impl FromStr for LoggedAttempts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let percent = text.strip_suffix('%').and_then(|number| number.trim_end().parse::<f64>().ok());
        match (text, percent) {
            ("" | "all", _) => Ok(Self::All),
            ("failures", _) => Ok(Self::Failures),
            (_, Some(percent)) if (0.0..=100.0).contains(&percent) => Ok(Self::Sample(percent)),
            _ => Err(format!("{text:?} does not say which attempts are logged; use all, failures, or 0% to 100%")),
        }
    }
}

impl fmt::Display for LoggedAttempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Failures => f.write_str("failures"),
            Self::Sample(percent) => write!(f, "{percent}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_logged_whatever_is_set() {
        let unneeded = || -> f64 { panic!("nothing is drawn for it") };
        for text in ["all", "failures", "0%", "10%", "100%"] {
            assert!(text.parse::<LoggedAttempts>().unwrap().includes(false, unneeded), "{text}");
        }
        assert!(LoggedAttempts::All.includes(true, unneeded));
        assert!(!LoggedAttempts::Failures.includes(true, unneeded));
    }

    #[test]
    fn a_share_of_the_successes_is_logged() {
        let shown = |text: &str| {
            let logged: LoggedAttempts = text.parse().unwrap();
            (0..1_000).filter(|n| logged.includes(true, || f64::from(*n) / 1_000.0)).count()
        };
        assert_eq!(["0%", "0.1%", "10%", "100%"].map(shown), [0, 1, 100, 1_000]);
    }

    #[test]
    fn a_share_is_read_as_it_is_written() {
        for text in ["all", "failures", "0%", "0.1%", "25%", "100%"] {
            assert_eq!(text.parse::<LoggedAttempts>().unwrap().to_string(), text);
        }
        assert_eq!("".parse(), Ok(LoggedAttempts::All), "an empty variable is none");
        for text in ["none", "10", "-1%", "101%", "NaN%", "inf%", "%", "failure"] {
            let why = text.parse::<LoggedAttempts>().unwrap_err();
            assert!(why.contains(text) && why.contains("failures, or 0% to 100%"), "{why}");
        }
    }
}
