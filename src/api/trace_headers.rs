//! Reads the trace that a producer gives with its events, from the headers
//! `traceparent` and `tracestate`.
//!
//! Nothing is refused for a trace: one that is not valid is as good as none.

use http::{HeaderMap, HeaderName};

use crate::model::trace_context::TraceContext;

/// The header with the trace and the span that a request belongs to.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// The header with what tracing systems add to it.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Returns the trace of a request, if it has a valid one.
pub fn given_trace(headers: &HeaderMap) -> Option<TraceContext> {
    let mut given = headers.get_all(TRACEPARENT).iter();
    let traceparent = given.next()?.to_str().ok()?;
    if given.next().is_some() {
        return None;
    }
    // A list may be spread over several headers.
    let states: Vec<&str> = headers.get_all(TRACESTATE).iter().filter_map(|value| value.to_str().ok()).collect();
    let state = (!states.is_empty()).then(|| states.join(","));
    TraceContext::read(traceparent, state.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn read(headers: &[(HeaderName, &str)]) -> Option<String> {
        let mut map = HeaderMap::new();
        map.extend(headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())));
        given_trace(&map).map(|trace| trace.as_str().to_owned())
    }

    #[test]
    fn a_trace_is_read_from_one_traceparent_and_any_number_of_states() {
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[(TRACESTATE, "a=1")]), None, "a state alone is no trace");
        assert_eq!(read(&[(TRACEPARENT, GIVEN)]).unwrap(), GIVEN);
        let several = [(TRACEPARENT, GIVEN), (TRACESTATE, "a=1"), (TRACESTATE, "b=2")];
        assert_eq!(read(&several).unwrap(), format!("{GIVEN} a=1,b=2"));
        assert_eq!(read(&[(TRACEPARENT, GIVEN), (TRACEPARENT, GIVEN)]), None, "it is not clear which counts");
        assert_eq!(read(&[(TRACEPARENT, "odd"), (TRACESTATE, "a=1")]), None);
    }
}
