//! Spans of time as people write them: `250ms`, `30s`, `2m`, `72h`, `7d`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A span of time, written as a whole number and one unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub Duration);

/// Why a text is not a span.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a duration; write a whole number and a unit (ms, s, m, h or d), such as 30s or 72h")]
pub struct InvalidSpan(pub String);

impl Span {
    /// A span of whole milliseconds.
    pub const fn millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// A span of whole seconds.
    pub const fn secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    /// The span in whole milliseconds, as stored.
    pub fn as_millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

impl FromStr for Span {
    type Err = InvalidSpan;

    fn from_str(text: &str) -> Result<Self, InvalidSpan> {
        let invalid = || InvalidSpan(text.to_owned());
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = text[..digits].parse().map_err(|_| invalid())?;
        let unit_millis = match &text[digits..] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(invalid()),
        };
        number.checked_mul(unit_millis).map(Self::millis).ok_or_else(invalid)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.as_millis();
        // Days only from four on: people say 72h, and they say 7d.
        let units = [(86_400_000, 4, "d"), (3_600_000, 1, "h"), (60_000, 1, "m"), (1_000, 1, "s")];
        for (unit, least, name) in units {
            if millis.is_multiple_of(unit) && millis / unit >= least {
                return write!(f, "{}{name}", millis / unit);
            }
        }
        write!(f, "{millis}ms")
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A duration as people say it: `750ms`, `2.5s`, `4m 30s`, `2h 15m`, `3d 4h`.
pub fn words(duration: Duration) -> String {
    let millis = duration.as_millis();
    let two = |whole: u128, unit: &str, rest: u128, part: &str| match rest {
        0 => format!("{whole}{unit}"),
        rest => format!("{whole}{unit} {rest}{part}"),
    };
    // To the nearest of what is shown, so that 59.9s past the hour is a minute.
    let (seconds, minutes, hours) =
        ((millis + 500) / 1_000, (millis + 30_000) / 60_000, (millis + 1_800_000) / 3_600_000);
    match millis {
        0..1_000 => format!("{millis}ms"),
        1_000..59_950 if millis % 1_000 >= 50 && millis % 1_000 < 950 => {
            format!("{:.1}s", millis as f64 / 1_000.0)
        }
        1_000..3_599_500 => match seconds {
            0..60 => format!("{seconds}s"),
            seconds => two(seconds / 60, "m", seconds % 60, "s"),
        },
        3_599_500..172_770_000 => two(minutes / 60, "h", minutes % 60, "m"),
        _ => two(hours / 24, "d", hours % 24, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_and_print_as_people_write_them() {
        for text in ["250ms", "1s", "30s", "2m", "90s", "1h", "72h", "7d", "30d"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        assert_eq!("60s".parse::<Span>().unwrap().to_string(), "1m");
        assert_eq!("0s".parse::<Span>().unwrap().to_string(), "0ms");
    }

    #[test]
    fn durations_are_said_with_two_units_at_most() {
        for (millis, text) in [
            (0, "0ms"),
            (750, "750ms"),
            (1_000, "1s"),
            (2_500, "2.5s"),
            (9_980, "10s"),
            (59_949, "59.9s"),
            (59_999, "1m"),
            (60_000, "1m"),
            (84_600, "1m 25s"),
            (270_000, "4m 30s"),
            (3_599_499, "59m 59s"),
            (3_599_500, "1h"),
            (8_100_000, "2h 15m"),
            (86_400_000, "24h"),
            (172_800_000, "2d"),
            (273_600_000, "3d 4h"),
            (604_800_000, "7d"),
        ] {
            assert_eq!(words(Duration::from_millis(millis)), text, "{millis}");
        }
    }

    #[test]
    fn what_is_not_a_span_is_refused_with_the_way_out() {
        for text in ["", "5", "s", "-1s", "1.5s", "5 s", "5w", "99999999999999999999s", "9999999999999999d"] {
            let error = text.parse::<Span>().unwrap_err().to_string();
            assert!(error.contains("such as 30s"), "{text}: {error}");
        }
    }
}
