//! Reads the moments that people write into filters.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;

use crate::model::span::Span;

/// Reads a moment: `2h` for two hours ago, a day, or a time, which is UTC unless it
/// says otherwise; none if nothing was written.
pub fn past_moment(text: &str, now: Timestamp) -> Result<Option<Timestamp>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let utc = |at: DateTime| at.to_zoned(TimeZone::UTC).ok().map(|at| at.timestamp());
    let ago = |span: Span| now.checked_sub(jiff::SignedDuration::from_millis(span.as_millis() as i64)).ok();
    let found = text
        .parse::<Timestamp>()
        .ok()
        .or_else(|| text.parse::<Span>().ok().and_then(ago))
        .or_else(|| if text.contains(['T', ' ']) { text.parse::<DateTime>().ok().and_then(utc) } else { None })
        .or_else(|| text.parse::<Date>().ok().and_then(|day| utc(day.at(0, 0, 0, 0))));
    match found {
        Some(at) => Ok(Some(at)),
        None => Err(format!("{text:?} is no time; write 2h for two hours ago, 2026-11-18, or 2026-11-18T01:30 in UTC")),
    }
}

/// Writes a moment as filters have it.
pub fn written(at: Timestamp) -> String {
    at.to_string()
}

/// Writes a moment as the beginning of a filter that takes what happened at it:
/// filters have whole seconds.
pub fn written_since(at: Timestamp) -> String {
    written(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_write_moments_in_several_ways() {
        let now: Timestamp = "2026-11-18T10:00:00Z".parse().unwrap();
        for (text, at) in [
            ("2h", "2026-11-18T08:00:00Z"),
            ("2026-11-17", "2026-11-17T00:00:00Z"),
            ("2026-11-17T08:30", "2026-11-17T08:30:00Z"),
            ("2026-11-17 08:30:15", "2026-11-17T08:30:15Z"),
            ("2026-11-17T08:30:00+02:00", "2026-11-17T06:30:00Z"),
        ] {
            assert_eq!(past_moment(text, now), Ok(Some(at.parse().unwrap())), "{text}");
        }
        assert_eq!(past_moment("  ", now), Ok(None));
        for text in ["yesterday", "25:00", "2026-13-01", "<b>"] {
            assert!(past_moment(text, now).is_err_and(|problem| problem.contains("write 2h")), "{text}");
        }
    }
}
