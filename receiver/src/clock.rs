//! Reads the time, and turns it into what is stored. Only the parts that serve
//! requests ask; whatever decides is given the time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the time of this machine.
#[expect(clippy::disallowed_methods, reason = "this is the one place that asks")]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

/// Returns a time in milliseconds since 1970.
pub(crate) fn millis(at: SystemTime) -> i64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Returns a duration in whole milliseconds.
pub(crate) fn span_millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// Returns the time at these milliseconds since 1970.
pub(crate) fn at_millis(millis: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// Returns a time in whole seconds since 1970.
pub(crate) fn seconds(at: SystemTime) -> i64 {
    millis(at) / 1_000
}
