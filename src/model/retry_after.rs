//! Parses the `Retry-After` header, with which a receiver asks not to be called.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;

/// Returns the wait that a header asks for: seconds, or one of the three HTTP date
/// formats. A date in the past and an invalid value ask for nothing; of several
/// values, joined by commas, the longest counts.
pub fn requested_delay(header: &str, now: Timestamp) -> Option<Duration> {
    match parse_value(header.trim(), now) {
        Some(wait) => Some(wait),
        // A date contains a comma itself, so each piece is tried alone and joined
        // with the next.
        None => {
            let pieces: Vec<&str> = header.split(',').map(str::trim).collect();
            let pairs = pieces.windows(2).map(|pair| pair.join(", "));
            let candidates = pieces.iter().map(|piece| (*piece).to_owned()).chain(pairs);
            candidates.filter_map(|text| parse_value(&text, now)).max()
        }
    }
}

fn parse_value(text: &str, now: Timestamp) -> Option<Duration> {
    parse_seconds(text).or_else(|| {
        let date = httpdate::parse_http_date(text).ok()?;
        // A date that is exactly now asks for no wait.
        date.duration_since(SystemTime::from(now)).ok().filter(|wait| !wait.is_zero())
    })
}

/// Parses a number of seconds. HTTP allows whole seconds only; fractions are
/// accepted all the same, and rounded up so that no request comes too early.
fn parse_seconds(text: &str) -> Option<Duration> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) {
        return None;
    }
    // A number that does not fit into 64 bits still asks for a long wait.
    let whole: u64 = whole.parse().unwrap_or(LONG_SECONDS).min(LONG_SECONDS);
    let rounded_up = u64::from(fraction.bytes().any(|digit| digit != b'0'));
    Some(Duration::from_secs(whole + rounded_up))
}

/// More than a century in seconds: every limit is shorter.
const LONG_SECONDS: u64 = u32::MAX as u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_the_header_is_understood() {
        let now: Timestamp = "1994-11-06T08:49:37Z".parse().unwrap();
        for (header, expected) in [
            ("120", Some(120)),
            (" 7 ", Some(7)),
            ("007", Some(7)),
            ("0", Some(0)),
            ("1.5", Some(2)),
            ("2.0", Some(2)),
            ("99999999999999999999", Some(LONG_SECONDS)),
            ("99999999999999999999.5", Some(LONG_SECONDS + 1)),
            ("Sun, 06 Nov 1994 08:54:37 GMT", Some(300)),
            ("Sunday, 06-Nov-94 08:54:37 GMT", Some(300)),
            ("Sun Nov  6 08:54:37 1994", Some(300)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(252_618_189_022)),
            // Past, present, and what is no time at all.
            ("Sun, 06 Nov 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08:49:36 GMT", None),
            ("Thu, 01 Jan 1970 00:00:00 GMT", None),
            ("-5", None),
            ("+5", None),
            ("1e3", None),
            ("1.", None),
            (".5", None),
            ("1.5.2", None),
            ("0x10", None),
            ("soon", None),
            ("", None),
            ("Sun, 06 Nov 1994 08:54:37 CET", None),
            ("Sun, 32 Nov 1994 08:54:37 GMT", None),
            ("1994-11-06T08:54:37Z", None),
            ("120, 240", Some(240)),
            ("soon, 60", Some(60)),
            ("60, Sun, 06 Nov 1994 08:54:37 GMT", Some(300)),
            ("soon, later", None),
            ("١٢", None),
        ] {
            let asked = requested_delay(header, now).map(|asked| asked.as_secs());
            assert_eq!(asked, expected, "{header:?}");
        }
    }
}
