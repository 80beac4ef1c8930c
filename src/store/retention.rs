//! What a store may forget, and how much of it one step forgot.

use jiff::Timestamp;

use super::Claim;
use crate::model::id::TenantId;
use crate::model::operational_event::OperationalEventType;

/// The times before which records may be forgotten.
#[derive(Debug, Clone)]
pub struct RetentionHorizon {
    /// Tenants whose records may go.
    pub scope: RetentionScope,
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

/// The tenants that a pass of forgetting is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetentionScope {
    /// All tenants but those that have a retention of their own, deleted ones included.
    All {
        /// Tenants that have a retention of their own.
        except: Vec<TenantId>,
        /// Whole days may be dropped if they ended before this time: nobody keeps
        /// records for longer.
        days_before: Timestamp,
    },
    /// One tenant that has a retention of its own.
    Only(TenantId),
}

impl RetentionHorizon {
    /// Whether some tenants keep records for longer than the rest, so that days cannot
    /// be dropped whole when those of the rest may go.
    pub fn is_longer_for_some(&self) -> bool {
        match &self.scope {
            RetentionScope::All { days_before, .. } => *days_before < self.finished_before,
            RetentionScope::Only(_) => false,
        }
    }
}

/// The result of one step of forgetting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ForgottenCounts {
    /// Number of forgotten events.
    pub events: usize,
    /// Number of forgotten deliveries; their attempts went with them.
    pub deliveries: usize,
    /// Number of dead letters among them.
    pub dead: usize,
    /// Position at which the next step begins, or nothing at the end.
    pub next: Option<u64>,
}

/// Operational events about forgotten dead letters.
#[derive(Debug, Default)]
pub struct ForgottenReport {
    /// Claims on deliveries of these events.
    pub freed: Vec<Claim>,
    /// Types of the operational events that were written.
    pub operational_events: Vec<OperationalEventType>,
    /// Whether nothing is left to report.
    pub is_complete: bool,
}
