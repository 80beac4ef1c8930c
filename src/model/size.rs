//! Parses and displays sizes as people write them: `1000`, `256KiB`, `1MiB`.

use std::fmt;
use std::str::FromStr;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of bytes, written plain or with KiB, MiB or GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// A text that is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a size; write bytes, or a number with KiB, MiB or GiB")]
pub struct InvalidSize(pub String);

impl FromStr for Size {
    type Err = InvalidSize;

    fn from_str(text: &str) -> Result<Self, InvalidSize> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let unit = match text[digits..].trim() {
            "" | "B" => Some(1),
            "KiB" => Some(1 << 10),
            "MiB" => Some(1 << 20),
            "GiB" => Some(1 << 30),
            _ => None,
        };
        let number: Option<u64> = text[..digits].parse().ok();
        let bytes = number.zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
        bytes.map(Self).ok_or_else(|| InvalidSize(text.to_owned()))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, name) in [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
            if self.0 >= unit && self.0.is_multiple_of(unit) {
                return write!(f, "{}{name}", self.0 / unit);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// A number of bytes for people, rounded to the largest decimal unit that fits: `734 MB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundedSize(pub u64);

impl fmt::Display for RoundedSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1_000 {
            return write!(f, "{} bytes", self.0);
        }
        let units = ["kB", "MB", "GB", "TB", "PB", "EB"];
        let mut size = self.0 as f64 / 1_000.0;
        let mut unit = 0;
        // What would be rounded to 1000 of a unit is 1 of the next.
        while size >= 999.5 && unit + 1 < units.len() {
            size /= 1_000.0;
            unit += 1;
        }
        let places = usize::from(size < 9.95);
        write!(f, "{size:.places$} {}", units[unit])
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnySize)
    }
}

/// Deserializes a size from a text, or from a number of bytes.
struct AnySize;

impl Visitor<'_> for AnySize {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size such as \"256KiB\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Size, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, bytes: u64) -> Result<Size, E> {
        Ok(Size(bytes))
    }

    fn visit_i64<E: Error>(self, bytes: i64) -> Result<Size, E> {
        u64::try_from(bytes).map(Size).map_err(|_| E::custom(InvalidSize(bytes.to_string())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_are_told_two_or_three_digits_and_a_unit() {
        for (bytes, said) in [
            (0, "0 bytes"),
            (999, "999 bytes"),
            (1_000, "1.0 kB"),
            (734_003_211, "734 MB"),
            (999_499, "999 kB"),
            (999_500, "1.0 MB"),
            (9_949_999_999, "9.9 GB"),
            (9_950_000_000, "10 GB"),
            (u64::MAX, "18 EB"),
        ] {
            assert_eq!(RoundedSize(bytes).to_string(), said, "{bytes}");
        }
    }

    #[test]
    fn a_size_is_written_as_it_is_read() {
        for text in ["0", "1000", "1KiB", "256MiB", "2GiB"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
        assert_eq!("2048".parse::<Size>().unwrap().to_string(), "2KiB");
        let read = |json: &str| serde_json::from_str::<Size>(json);
        assert_eq!((read("\"1KiB\"").unwrap(), read("1024").unwrap()), (Size(1_024), Size(1_024)));
        assert!(read("-1").is_err() && read("1.5").is_err() && read("null").is_err());
        for text in ["", "KiB", "1KB", "1.5MiB", "-1", "99999999999GiB", "1 KiB x"] {
            assert!(text.parse::<Size>().unwrap_err().to_string().contains("MiB"), "{text}");
        }
    }
}
