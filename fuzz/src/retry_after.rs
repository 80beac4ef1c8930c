//! `Retry-After`: any text asks for nothing, or for a time that is no longer
//! than what it says.

use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::strtime;
use posthaste::model::retry_after::requested_delay;

/// Moments at which a header is read: the last of a century, some time in the
/// middle of a second, and the first of all.
const NOWS: [(i64, i32); 3] = [(946_684_799, 0), (784_111_777, 500_000_000), (0, 0)];
/// The last second that an HTTP date can name.
const LAST_SECOND: u64 = 253_402_300_799;
/// The most that a number of seconds can ask for, before it is rounded up.
const LONG_SECONDS: u64 = u32::MAX as u64;

/// The bytes are the header.
pub fn retry_after(bytes: &[u8]) {
    dates(bytes);
    let Ok(header) = std::str::from_utf8(bytes) else { return };
    let answers = NOWS.map(|(second, nanos)| {
        let now = Timestamp::new(second, nanos).expect("a moment");
        (now, requested_delay(header, now))
    });
    for (now, answer) in answers {
        let longest = Duration::from_secs(LAST_SECOND) - since_epoch(now);
        assert!(answer.is_none_or(|asked| asked <= longest), "{answer:?} is past the end of time");
        let joined = requested_delay(&format!("{header}, 120"), now);
        assert_eq!(joined, answer.max(Some(Duration::from_secs(120))), "of several the longest counts");
    }
    if !header.bytes().any(|byte| byte.is_ascii_digit()) {
        assert!(answers.iter().all(|(_, answer)| answer.is_none()), "nothing without a digit is a time");
    }
    if !header.contains([',', ':']) {
        let expected = number(header.trim());
        for (_, answer) in answers {
            assert_eq!(answer.map(|asked| asked.as_secs()), expected, "{header:?} is a number or nothing");
        }
    } else if !header.contains(',') {
        // A date means the same moment whenever it is read; a list may hold
        // several, of which some have passed.
        let moments = answers.iter().filter_map(|(now, answer)| Some(since_epoch(*now) + (*answer)?));
        let moments: Vec<Duration> = moments.collect();
        assert!(moments.windows(2).all(|pair| pair[0] == pair[1]), "{header:?} means {moments:?}");
    }
}

/// The second that the bytes name, written in all three ways, is read as that.
fn dates(bytes: &[u8]) {
    let mut head = [0; 8];
    head.iter_mut().zip(bytes).for_each(|(slot, byte)| *slot = *byte);
    // The last day of all is past what can be counted.
    let second = u64::from_le_bytes(head) % (LAST_SECOND - 86_400 * 2);
    let at = Timestamp::from_second(second.cast_signed()).expect("a moment");
    let written = |format| strtime::format(format, at).expect("a date can be written");
    let mut forms = vec![written("%a, %d %b %Y %H:%M:%S GMT"), written("%a %b %e %H:%M:%S %Y")];
    // Two digits stand for a year from 1970 on.
    if second < 3_155_760_000 {
        forms.push(written("%A, %d-%b-%y %H:%M:%S GMT"));
    }
    for (seconds, nanos) in NOWS {
        let now = Timestamp::new(seconds, nanos).expect("a moment");
        let expected = Duration::from_secs(second).checked_sub(since_epoch(now)).filter(|asked| !asked.is_zero());
        for form in &forms {
            assert_eq!(requested_delay(form, now), expected, "{form:?} at {now}");
        }
    }
}

fn since_epoch(at: Timestamp) -> Duration {
    Duration::try_from(at.as_duration()).expect("a moment since 1970")
}

/// What a text asks for that is a number, with a fraction or without.
fn number(text: &str) -> Option<u64> {
    let mut parts = text.splitn(2, '.');
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let whole = parts.next().filter(is_number)?;
    // What is too long for 64 bits is too long for 32.
    let whole = whole.parse::<u64>().map_or(LONG_SECONDS, |seconds| seconds.min(LONG_SECONDS));
    match parts.next() {
        None => Some(whole),
        Some(fraction) if is_number(&fraction) => Some(whole + u64::from(fraction.chars().any(|c| c != '0'))),
        Some(_) => None,
    }
}
