//! The outcome of a claim, and the effects of writing it.

use std::sync::Arc;

use jiff::Timestamp;

use super::changes::EndpointUpdate;
use super::claim::Claim;
use crate::model::attempt::Attempt;
use crate::model::delivery::{DeadCause, DeadlineSource, Progress};
use crate::model::id::{DeliveryId, EndpointId};
use crate::model::next_state::NextState;
use crate::model::operational_event::OperationalEventType;

/// The outcome of a claim, as it is handed to the store.
#[derive(Debug, Clone)]
pub struct Settlement {
    /// Id of the delivery.
    pub id: DeliveryId,
    /// Endpoint that the delivery goes to.
    pub endpoint: EndpointId,
    /// Time at which the outcome was decided.
    pub now: Timestamp,
    /// The outcome itself.
    pub outcome: ClaimOutcome,
}

/// Outcome of a claim.
#[derive(Debug, Clone)]
pub enum ClaimOutcome {
    /// A request was made.
    Attempted {
        /// Record of the attempt.
        attempt: Arc<Attempt>,
        /// State that the delivery goes to.
        next: NextState,
        /// The delivery's budget after this attempt.
        progress: Progress,
        /// Time at which to check whether the delivery's time is over, if it
        /// still waits then.
        expiry_check_at: Option<Timestamp>,
        /// What the answer means for the whole endpoint.
        update: EndpointUpdate,
    },
    /// No request was made, and none is charged to the budget.
    PutBack {
        /// The new due time.
        due_at: Timestamp,
    },
    /// The gateway itself failed before there was an answer. Nothing is charged
    /// to the budget, but after too many such failures the delivery dies.
    InternalError {
        /// The new due time.
        due_at: Timestamp,
        /// Description of the failure.
        error: String,
    },
    /// The stored data is damaged, so it was not sent.
    Damaged,
    /// The delivery's time was over before an attempt could be made.
    Expired {
        /// The limit that ended it.
        by: DeadlineSource,
        /// Progress that this was decided on. If the delivery's progress has
        /// changed, nothing is written.
        progress: Progress,
    },
    /// The delivery's time is not over yet; it has to be checked again.
    RecheckExpiry {
        /// Time of the next check.
        at: Timestamp,
        /// Progress that this was decided on. If the delivery's progress has
        /// changed, nothing is written.
        progress: Progress,
    },
}

/// The effects of a settlement.
#[derive(Debug, Clone, Default)]
pub struct SettleEffects {
    /// Time at which this delivery is due again, if it is.
    pub due_again_at: Option<Timestamp>,
    /// Claims that may be dispatched now: the next delivery of the lane, and
    /// deliveries of operational events about the settlement.
    pub freed: Vec<Claim>,
    /// Changes that the answer made to the endpoint.
    pub update: EndpointUpdate,
    /// Types of those operational events.
    pub operational_events: Vec<OperationalEventType>,
    /// Cause of the delivery's death, if it died.
    pub died: Option<DeadCause>,
    /// Whether nothing was written, because the delivery had changed meanwhile.
    pub is_void: bool,
    /// Whether the same settlement was written before, by a call whose answer
    /// got lost. The caller has to look up what that call freed.
    pub is_repeat: bool,
}
