//! The request for one step of scrubbing, and its result.

use crate::model::id::{EventId, TenantId};

/// One step of comparing events with their checksums.
#[derive(Debug, Clone, Copy)]
pub struct ScrubStep {
    /// Only events with a higher number than this.
    pub after: u64,
    /// Largest number of events to compare.
    pub limit: usize,
}

/// Result of comparing some events with their checksums.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Number of events that were read.
    pub checked: usize,
    /// Number of these events that had no checksum and got one.
    pub filled: usize,
    /// Events that differ from their checksum.
    pub damaged: Vec<(TenantId, EventId)>,
    /// Number after which the next step continues; `None` at the end.
    pub next: Option<u64>,
}
