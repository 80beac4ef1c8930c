//! What settling, changing, cancelling, replaying, expiring and the advance of
//! a lane mean, decided on plain rows.
//!
//! Every store does the same three steps: it reads rows, asks here for a plan,
//! and writes what the plan says in the same transaction. So the meaning of a
//! transition stands once, and a store holds SQL alone. Only the walk along a lane
//! is in each store (`lane.rs`), beside the rules of [`lane`] that it asks: between
//! its steps PostgreSQL locks the endpoint, then the lane, then looks for members of
//! two tables, and awaits each, while the embedded store has one writer and no lock.
//! Three fast paths never
//! come here: PostgreSQL settles plain deliveries and retries with set-based
//! statements (`postgres/settle.rs`), the embedded store the success of a first
//! attempt with one update (`embedded/settle/first_success.rs`), and each sweeps
//! what waited for a deleted endpoint (`sweep.rs`).
//! `tests/contract/differential.rs` holds them to these plans.

use jiff::Timestamp;

use super::codes::millis;
use crate::model::delivery::{DeadCause, DeliveryState, Progress};
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use crate::model::next_state::NextState;
use crate::model::operational_event::{DeliverySubject, OperationalEvent};

pub mod accept;
pub mod backfill;
pub mod change;
pub mod endpoint;
pub mod figures;
pub mod lane;
pub mod settle;

/// How many endpoint events of one endpoint are kept.
pub const ENDPOINT_EVENTS_KEPT: i64 = 500;

/// The row of a delivery, as far as plans depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryRow {
    /// State of the delivery.
    pub state: DeliveryState,
    /// Cause of its death, if it is dead or was discarded.
    pub cause: Option<DeadCause>,
    /// Due time in milliseconds, also of one that no longer waits.
    pub due_at: i64,
    /// Time at which its present budget began, in milliseconds.
    pub begun_at: i64,
    /// Attempts made in its whole life.
    pub attempts: u32,
    /// Failures inside the gateway in its present budget.
    pub internal_errors: u32,
    /// Whether it is a member of a lane that has not moved past it yet.
    pub is_in_lane: bool,
    /// Whether the data of its event was removed. Nothing that waits has lost
    /// its data, so stores need not look for a waiting one.
    pub is_data_removed: bool,
}

impl DeliveryRow {
    /// Returns what an attempt may still do to the delivery. A person may have ended
    /// it meanwhile, or replayed it after that: then only a success counts.
    pub fn allowed_transition(&self, next: NextState, begun_at: Option<Timestamp>) -> Option<NextState> {
        match (self.state, next) {
            (DeliveryState::Waiting, next) if self.is_current_budget(begun_at) => Some(next),
            (DeliveryState::Waiting | DeliveryState::Cancelled | DeliveryState::Dead, NextState::Delivered) => {
                Some(NextState::Delivered)
            }
            (DeliveryState::Waiting | DeliveryState::Cancelled | DeliveryState::Dead | DeliveryState::Delivered, _) => {
                None
            }
        }
    }

    /// Whether the budget that began at this time is the present one.
    pub fn is_current_budget(&self, begun_at: Option<Timestamp>) -> bool {
        begun_at.is_none_or(|begun_at| millis(begun_at) == self.begun_at)
    }

    /// Whether the delivery waits, and nothing was tried or changed since it
    /// had this progress.
    pub fn is_unchanged_since(&self, progress: &Progress) -> bool {
        self.state == DeliveryState::Waiting
            && self.is_current_budget(progress.begun_at)
            && self.attempts == progress.attempts
    }
}

/// Transition of a delivery's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// The row stays as it is.
    Stay,
    /// The delivery waits until this time.
    Wait {
        /// The new due time.
        due_at: Timestamp,
    },
    /// The delivery ends in this state.
    End {
        /// The final state.
        state: DeliveryState,
        /// The cause of a death.
        cause: Option<DeadCause>,
    },
}

impl Transition {
    /// The change of the number of deliveries that wait, for a delivery that
    /// was in this state.
    pub fn waiting_delta(self, from: DeliveryState) -> i64 {
        match (from, self) {
            (DeliveryState::Waiting, Self::End { .. }) => -1,
            (DeliveryState::Waiting, Self::Stay | Self::Wait { .. }) => 0,
            (_, Self::Wait { .. }) => 1,
            (_, Self::Stay | Self::End { .. }) => 0,
        }
    }
}

/// A fact about a delivery that an operational event reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryReport {
    /// The delivery died of this cause.
    Dead(DeadCause),
    /// The delivery's lane waits behind it from now on.
    LaneBlocked,
    /// The delivery's lane no longer waits behind it.
    LaneUnblocked,
}

/// A delivery as operational events about it describe it.
#[derive(Debug, Clone)]
pub struct EventSubject {
    /// Tenant of the delivery.
    pub tenant: TenantId,
    /// Endpoint of the delivery.
    pub endpoint: EndpointId,
    /// The delivery itself.
    pub delivery: DeliveryId,
    /// Key of its event.
    pub key: Option<String>,
    /// Id of its event.
    pub event: EventId,
    /// Type of its event.
    pub event_type: String,
    /// Attempts made in its whole life.
    pub attempts: u32,
}

impl EventSubject {
    fn subject(&self) -> DeliverySubject<'_> {
        DeliverySubject {
            tenant: &self.tenant,
            endpoint: self.endpoint,
            delivery: self.delivery,
            key: self.key.as_deref(),
        }
    }

    /// The operational event that tells this about it.
    pub fn operational_event(&self, report: DeliveryReport, now: Timestamp) -> OperationalEvent {
        let subject = self.subject();
        match report {
            DeliveryReport::Dead(cause) => {
                OperationalEvent::of_death(subject, &self.event, &self.event_type, cause, self.attempts, now)
            }
            DeliveryReport::LaneBlocked => OperationalEvent::of_blocked_lane(subject, now),
            DeliveryReport::LaneUnblocked => OperationalEvent::of_unblocked_lane(subject, now),
        }
    }
}
