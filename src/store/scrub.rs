//! What scrubbing asks of a store, and what it answers.

use crate::model::id::{EventId, TenantId};

/// Which events to compare with their checksums.
#[derive(Debug, Clone, Copy)]
pub struct ScrubStep {
    /// Those with higher numbers than this.
    pub after: u64,
    /// At most so many.
    pub limit: usize,
}

/// What comparing some events with their checksums found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// How many were looked at.
    pub checked: usize,
    /// How many of them had no checksum before.
    pub filled: usize,
    /// Those that are no longer what was accepted.
    pub damaged: Vec<(TenantId, EventId)>,
    /// Where to go on, or nothing at the end.
    pub next: Option<u64>,
}
