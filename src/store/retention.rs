//! What a store may forget, and how much of it one step forgot.

use jiff::Timestamp;

/// The times before which records may be forgotten.
#[derive(Debug, Clone, Copy)]
pub struct RetentionHorizon {
    /// Delivered and cancelled deliveries finished before this time may go, as
    /// may events accepted and lanes last used before it.
    pub finished_before: Timestamp,
    /// Dead letters that died before this time may go.
    pub dead_before: Timestamp,
    /// The data of events that no endpoint wanted may go, if they were
    /// accepted before this time.
    pub unmatched_before: Timestamp,
    /// Position at which the last step stopped.
    pub after: u64,
    /// Number of events to check in one step.
    pub step: usize,
}

/// The result of one step of forgetting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ForgottenCounts {
    /// Number of forgotten events.
    pub events: usize,
    /// Number of forgotten deliveries; their attempts went with them.
    pub deliveries: usize,
    /// Position at which the next step begins, or nothing at the end.
    pub next: Option<u64>,
}
