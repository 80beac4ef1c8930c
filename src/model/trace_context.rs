//! The trace that a producer gives with an event, as W3C Trace Context has it.

use std::fmt;
use std::sync::Arc;

/// Length of a `traceparent` of version 00.
const TRACEPARENT_BYTES: usize = 55;
/// Longest `tracestate` that is kept; the standard asks for no more.
const TRACESTATE_BYTES_MAX: usize = 512;
/// Most members of a `tracestate`.
const TRACESTATE_MEMBERS_MAX: usize = 32;
/// The flag that says that a trace is recorded.
const SAMPLED: u8 = 1;

/// What a producer gave with an event: a `traceparent`, and perhaps a
/// `tracestate`. It is valid, and the version of the `traceparent` is 00.
#[derive(Clone, PartialEq, Eq)]
pub struct TraceContext(Arc<str>);

/// Prints the `traceparent` alone.
impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.traceparent())
    }
}

impl TraceContext {
    /// Reads both values; nothing, if the `traceparent` is not valid. A
    /// `tracestate` that is not valid is left out.
    pub fn read(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let traceparent = checked_traceparent(traceparent)?;
        Some(Self(match tracestate.filter(|state| is_tracestate(state)) {
            None => traceparent.into(),
            Some(state) => format!("{traceparent} {state}").into(),
        }))
    }

    /// Reads a text from the store; nothing, if it was damaged.
    pub fn from_stored(text: &str) -> Option<Self> {
        match text.split_once(' ') {
            None => Self::read(text, None),
            Some((traceparent, state)) => Self::read(traceparent, Some(state)),
        }
    }

    /// Returns the text to store.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the `traceparent`.
    pub fn traceparent(&self) -> &str {
        &self.0[..TRACEPARENT_BYTES]
    }

    /// Returns the `tracestate`, if one was given.
    pub fn tracestate(&self) -> Option<&str> {
        self.0.get(TRACEPARENT_BYTES + 1..)
    }

    /// Returns the `traceparent` with another span in place of the given one.
    pub fn traceparent_of(&self, span: SpanId) -> String {
        format!("{}{span}{}", &self.0[..36], &self.0[52..TRACEPARENT_BYTES])
    }

    /// Whether the producer records the trace.
    pub fn is_sampled(&self) -> bool {
        u8::from_str_radix(&self.0[53..TRACEPARENT_BYTES], 16).is_ok_and(|flags| flags & SAMPLED != 0)
    }

    /// Returns the id of the trace.
    pub fn trace_id(&self) -> TraceId {
        TraceId(u128::from_str_radix(&self.0[3..35], 16).expect("it was checked"))
    }

    /// Returns the span of the producer.
    pub fn parent(&self) -> SpanId {
        SpanId(u64::from_str_radix(&self.0[36..52], 16).expect("it was checked"))
    }
}

/// Returns the `traceparent` in version 00, if it is valid.
fn checked_traceparent(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let is_hex = |part: &[u8]| part.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_id = |part: &[u8]| is_hex(part) && part.iter().any(|byte| *byte != b'0');
    let (head, after) = bytes.split_at_checked(TRACEPARENT_BYTES)?;
    let is_valid = is_hex(&head[..2])
        && &head[..2] != b"ff"
        && [2, 35, 52].iter().all(|at| head[*at] == b'-')
        && is_id(&head[3..35])
        && is_id(&head[36..52])
        && is_hex(&head[53..]);
    if !is_valid {
        return None;
    }
    match (&head[..2], after.first()) {
        (b"00", None) => Some(text.to_owned()),
        (b"00", Some(_)) => None,
        // What a later version means by its other flags and parts is not known.
        (_, None | Some(b'-')) => {
            let flags = u8::from_str_radix(&text[53..TRACEPARENT_BYTES], 16).unwrap_or(0) & SAMPLED;
            Some(format!("00{}{flags:02x}", &text[2..53]))
        }
        (_, Some(_)) => None,
    }
}

fn is_tracestate(text: &str) -> bool {
    let is_member = |member: &str| member.trim().find('=').is_some_and(|at| at > 0);
    (1..=TRACESTATE_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        && text.split(',').count() <= TRACESTATE_MEMBERS_MAX
        && text.split(',').all(is_member)
}

/// The id of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(pub u128);

/// The id of a span of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(pub u64);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_valid_context_is_kept_byte_for_byte() {
        let given = TraceContext::read(GIVEN, Some("congo=t61rcWkgMzE, rojo=1")).unwrap();
        assert_eq!((given.traceparent(), given.tracestate()), (GIVEN, Some("congo=t61rcWkgMzE, rojo=1")));
        assert_eq!(TraceContext::from_stored(given.as_str()), Some(given.clone()));
        assert_eq!(given.traceparent_of(SpanId(0xab)), "00-4bf92f3577b34da6a3ce929d0e0e4736-00000000000000ab-01");
        assert!(given.is_sampled());
        let other = GIVEN.replace("-01", "-02");
        let other = TraceContext::read(&other, None).unwrap();
        assert!(!other.is_sampled() && other.traceparent().ends_with("-02") && other.tracestate().is_none());
    }

    #[test]
    fn a_later_version_is_read_as_far_as_it_is_known() {
        let later = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-07-what-comes";
        assert_eq!(TraceContext::read(later, None).unwrap().traceparent(), GIVEN);
        assert_eq!(TraceContext::read(&later[..55], None).unwrap().traceparent(), GIVEN);
        assert_eq!(TraceContext::read(&format!("{}0", &later[..55]), None), None, "its flags are longer");
    }

    #[test]
    fn whatever_is_not_valid_is_no_context() {
        for wrong in [
            "",
            "00",
            &GIVEN[..54],
            &format!("{GIVEN}-01"),
            &format!("{GIVEN} "),
            &GIVEN.to_uppercase(),
            &GIVEN.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &GIVEN.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &GIVEN.replacen("00", "ff", 1),
            &GIVEN.replace('-', "_"),
            &GIVEN.replace("4bf9", "4bf\u{e9}"),
        ] {
            assert_eq!(TraceContext::read(wrong, None), None, "{wrong}");
        }
        for wrong in ["", "a", "=b", "a=1,", "a=\u{7f}", &format!("a={}", "x".repeat(511)), &["a=1"; 33].join(",")] {
            let read = TraceContext::read(GIVEN, Some(wrong)).unwrap();
            assert_eq!(read.as_str(), GIVEN, "{wrong}");
        }
    }
}
