//! Reads the times that people type into filters: a time in UTC, or a span that
//! means so long ago.

use jiff::{SignedDuration, Timestamp};

use crate::model::span::Span;

/// Returns the time that a person means, as the API reads it: `2h` is two hours ago,
/// to the minute, so that a page which is asked for again stays the same for a
/// while; a time without an offset is UTC. What is neither is left to the API, which
/// says what it expects.
pub fn instant(text: &str, now: Timestamp) -> String {
    if let Ok(ago) = text.parse::<Span>() {
        let ago = SignedDuration::try_from(ago.0).unwrap_or(SignedDuration::MAX);
        let at = now.checked_sub(ago).unwrap_or(Timestamp::MIN);
        let minute = Timestamp::from_second(at.as_second().div_euclid(60) * 60).unwrap_or(at);
        return format!("{minute:.0}");
    }
    let text = text.trim().replacen(' ', "T", 1);
    let with_seconds = [text.clone(), format!("{text}Z"), format!("{text}:00Z"), format!("{text}T00:00:00Z")];
    with_seconds.into_iter().find(|text| text.parse::<Timestamp>().is_ok()).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_so_long_ago_and_a_time_is_utc() {
        let now: Timestamp = "2026-11-15T10:41:15.25Z".parse().unwrap();
        for (typed, meant) in [
            ("2h", "2026-11-15T08:41:00Z"),
            ("2026-11-15T08:00:00Z", "2026-11-15T08:00:00Z"),
            ("2026-11-15T08:00:00+01:00", "2026-11-15T08:00:00+01:00"),
            ("2026-11-15 08:00", "2026-11-15T08:00Z"),
            ("2026-11-15T08:00:01", "2026-11-15T08:00:01Z"),
            ("2026-11-15", "2026-11-15T00:00:00Z"),
            ("yesterday", "yesterday"),
            ("", ""),
        ] {
            assert_eq!(instant(typed, now), meant, "{typed}");
        }
        assert_eq!(instant("99999999999d", now).len(), "-009999-01-02T01:59:00Z".len(), "an age beyond time");
    }
}
