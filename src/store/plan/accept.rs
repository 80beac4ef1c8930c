//! Plans the first state of a delivery: what both stores write of it when its
//! event is accepted, and the claim on it.

use std::sync::Arc;

use jiff::Timestamp;

use crate::model::delivery::{BodyFormat, Progress};
use crate::model::endpoint::Endpoint;
use crate::model::id::DeliveryId;
use crate::store::codes::{at, millis};
use crate::store::{Claim, RoutedEvent};

/// Milliseconds after `expires_at` at which a delivery is checked for its
/// expiry: an attempt may still start at that very time.
pub const EXPIRY_CHECK_DELAY_MS: i64 = 1;

/// Returns when a delivery that has made no attempt is checked for the expiry
/// of its event, in milliseconds.
pub fn first_expiry_check(expires_at: Option<i64>) -> Option<i64> {
    expires_at.map(|expires_at| expires_at + EXPIRY_CHECK_DELAY_MS)
}

/// A delivery of a new event to one endpoint.
#[derive(Debug)]
pub struct DeliveryPlan {
    /// Lane of the delivery, if it has one.
    pub lane: Option<Arc<str>>,
    /// Format of the request body.
    pub format: BodyFormat,
    /// Time at which the delivery is due.
    pub due_at: Timestamp,
    /// Time at which the event expires for the delivery.
    pub expires_at: Option<Timestamp>,
}

impl DeliveryPlan {
    /// Plans the delivery of an event to this endpoint. A member of a lane is
    /// due at once whatever the event says, because it would hold others up.
    pub fn of(new: &RoutedEvent, endpoint: &Endpoint) -> Self {
        let event = &new.event;
        let lane = endpoint.lane(event.key.as_ref());
        let due_at = new.due_at.filter(|_| lane.is_none()).unwrap_or(event.accepted_at);
        let format = match endpoint.settings.format_for(&event.data) {
            // An operational event has no link, and is small.
            BodyFormat::Thin if event.link_base.is_none() => endpoint.settings.format_without_link(),
            format => format,
        };
        Self { lane, format, due_at, expires_at: new.expires_at }
    }

    /// Returns the claim on the delivery, with its position in its lane as far
    /// as that is known.
    pub fn claim(self, id: DeliveryId, new: &RoutedEvent, endpoint: &Endpoint, seq: Option<u64>) -> Claim {
        // The budget begins at the time as it is stored.
        let begun_at = at(millis(new.event.accepted_at));
        Claim {
            id,
            endpoint: endpoint.id,
            event: new.event.clone(),
            format: self.format,
            lane: self.lane,
            seq,
            due_at: self.due_at,
            is_urgent: false,
            expires_at: self.expires_at,
            progress: Progress { begun_at: Some(begun_at), ..Progress::default() },
            is_damaged: false,
        }
    }
}
