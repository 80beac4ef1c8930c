//! Parses times as producers write them, RFC 3339 to the letter.

use jiff::Timestamp;

/// Parses an RFC 3339 time. The last hours of the year 9999 are beyond the
/// range of [`Timestamp`] and become its maximum, which stands for never.
pub fn parse_moment(text: &str) -> Option<Timestamp> {
    let is_date = text.get(..19).is_some_and(|text| text.parse::<jiff::civil::DateTime>().is_ok());
    let is_last = ["9999-12-29", "9999-12-30", "9999-12-31"].iter().any(|day| text.starts_with(day));
    let is_never = is_last && is_date;
    // The parser takes at most nine digits of a second; further digits are cut off.
    let digits = text.get(20..).map_or(0, |rest| rest.bytes().take_while(u8::is_ascii_digit).count());
    let nanos_text = match text.get(19..20) {
        Some(".") if digits > 9 => format!("{}{}", &text[..29], &text[20 + digits..]),
        _ => text.to_owned(),
    };
    nanos_text.parse().ok().or(is_never.then_some(Timestamp::MAX))
}

/// Whether a text is RFC 3339 to the letter, because receivers may parse it strictly.
pub fn is_rfc3339(text: &str) -> bool {
    let has_shape = |shape: &str, text: &str| {
        text.len() == shape.len()
            && text.bytes().zip(shape.bytes()).all(|(byte, wanted)| match wanted {
                b'0' => byte.is_ascii_digit(),
                wanted => byte.eq_ignore_ascii_case(&wanted),
            })
    };
    let Some((moment, rest)) = text.split_at_checked(19) else { return false };
    let zone = match rest.strip_prefix('.') {
        None => rest,
        Some(fraction) => fraction.trim_start_matches(|c: char| c.is_ascii_digit()),
    };
    let is_zone = ["Z", "+00:00", "-00:00"].iter().any(|shape| has_shape(shape, zone));
    let is_zone = is_zone && zone.get(1..3).is_none_or(|hours| hours < "24");
    let is_zone = is_zone && zone.get(4..6).is_none_or(|minutes| minutes < "60");
    let is_fraction_empty = rest.starts_with('.') && rest.len() == zone.len() + 1;
    has_shape("0000-00-00T00:00:00", moment) && is_zone && !is_fraction_empty && parse_moment(text).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_times_that_can_be_written_are_times() {
        for text in ["9999-12-31T23:59:59Z", "9999-12-29T23:59:59-23:59", "9999-12-30T22:00:01Z"] {
            assert!(is_rfc3339(text) && parse_moment(text) == Some(Timestamp::MAX), "{text}");
        }
        for text in ["9999-12-32T00:00:00Z", "9999-12-31T00:00:00+00:60", "9999-12-31T00:00:00+24:00"] {
            assert!(!is_rfc3339(text), "{text}");
        }
    }
}
