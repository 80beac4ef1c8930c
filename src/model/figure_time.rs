//! The times that figures are counted by: windows of five minutes, and hours.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Length of a window, in milliseconds.
pub const WINDOW_MS: i64 = 300_000;
/// Length of an hour, in milliseconds.
pub const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 86_400_000;

/// What stored figures span. The numbers are the stored codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum FigureSpan {
    /// A window of five minutes.
    Window = 0,
    /// A whole hour.
    Hour = 1,
}

/// The distance between two points of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum, utoipa::ToSchema)]
pub enum FigureStep {
    /// A window of five minutes.
    #[serde(rename = "5m")]
    #[value(name = "5m")]
    Window,
    /// A whole hour.
    #[serde(rename = "1h")]
    #[value(name = "1h")]
    Hour,
    /// A whole UTC day.
    #[serde(rename = "1d")]
    #[value(name = "1d")]
    Day,
}

impl FigureStep {
    /// Returns the distance in milliseconds.
    pub fn millis(self) -> i64 {
        match self {
            Self::Window => WINDOW_MS,
            Self::Hour => HOUR_MS,
            Self::Day => DAY_MS,
        }
    }
}

/// Returns the beginning of the span of this length that a moment is in.
pub fn span_beginning(at: Timestamp, span_ms: i64) -> Timestamp {
    let millis = at.as_millisecond();
    timestamp_of(millis - millis.rem_euclid(span_ms))
}

/// Returns the moment this many milliseconds later.
pub fn millis_later(at: Timestamp, millis: i64) -> Timestamp {
    timestamp_of(at.as_millisecond().saturating_add(millis))
}

fn timestamp_of(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(millis).unwrap_or(if millis < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

/// A time of which figures may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FigureGap {
    /// Beginning of the gap.
    pub from: Timestamp,
    /// End of the gap.
    pub to: Timestamp,
}

impl FigureGap {
    /// Returns what is missing of a counter that ended without a word, when all
    /// before this time was written: the window that was being written, and the
    /// one that was open.
    pub fn of_crash(written_until: Timestamp, now: Timestamp) -> Self {
        Self { from: written_until, to: millis_later(written_until, 2 * WINDOW_MS).min(now.max(written_until)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_in_the_window_that_begins_at_or_before_it() {
        let at = |millis| Timestamp::from_millisecond(millis).unwrap();
        assert_eq!(span_beginning(at(299_999), WINDOW_MS), at(0));
        assert_eq!(span_beginning(at(300_000), WINDOW_MS), at(300_000));
        assert_eq!(span_beginning(at(-1), WINDOW_MS), at(-300_000));
    }
}
