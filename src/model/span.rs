//! Parses and displays durations as people write them: `250ms`, `30s`, `72h`, `7d`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration, written as a whole number and one unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub Duration);

/// A text that is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a duration; write a whole number and a unit (ms, s, m, h or d), such as 30s or 72h")]
pub struct InvalidSpan(pub String);

impl Span {
    /// Returns a span of this many milliseconds.
    pub const fn millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// Returns a span of this many seconds.
    pub const fn secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    /// Returns the span in words, such as `4m 30s`.
    pub fn words(self) -> String {
        words(self.0)
    }

    /// Returns the span in whole milliseconds.
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
        if millis == 0 {
            return f.write_str("0s");
        }
        // Days are used from four on: people write 72h, and they write 7d.
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

/// Returns a duration in words: `750ms`, `2.5s`, `4m 30s`, `71h 40m`, `6d 9h`.
pub fn words(duration: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    let millis = Span(duration).as_millis();
    let (large, small) = match millis {
        0 => return "0s".to_owned(),
        1..1_000 => return format!("{millis}ms"),
        1_000..10_000 => return format!("{}s", (millis as f64 / 10.0).round() / 100.0),
        10_000..59_950 => return format!("{}s", (millis as f64 / 100.0).round() / 10.0),
        59_950..3_599_500 => (2, 3),
        // As in `Display`, days are used from four on.
        3_599_500..345_570_000 => (1, 2),
        _ => (0, 1),
    };
    let ((unit, name), (part, part_name)) = (UNITS[large], UNITS[small]);
    let parts = (millis + part / 2) / part;
    let (whole, rest) = (parts / (unit / part), parts % (unit / part));
    match rest {
        0 => format!("{whole}{name}"),
        rest => format!("{whole}{name} {rest}{part_name}"),
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
        assert_eq!("0ms".parse::<Span>().unwrap().to_string(), "0s");
    }

    #[test]
    fn times_are_told_in_two_units_that_say_something() {
        for (millis, expected) in [
            (0, "0s"),
            (750, "750ms"),
            (2_500, "2.5s"),
            (9_999, "10s"),
            (17_500, "17.5s"),
            (59_949, "59.9s"),
            (59_950, "1m"),
            (270_000, "4m 30s"),
            (3_599_499, "59m 59s"),
            (3_599_500, "1h"),
            (8_100_000, "2h 15m"),
            (258_000_000, "71h 40m"),
            (259_200_000, "72h"),
            (345_569_999, "95h 59m"),
            (345_570_000, "4d"),
            (550_800_000, "6d 9h"),
        ] {
            assert_eq!(words(Duration::from_millis(millis)), expected, "{millis}");
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
