//! Waiting deliveries that may have to end without an attempt: those whose
//! time may be over, and those that were never tried.

use jiff::Timestamp;

use crate::model::delivery::Progress;
use crate::model::id::{DeliveryId, EndpointId};

/// A waiting delivery whose time may be over.
#[derive(Debug, Clone)]
pub struct OverdueDelivery {
    /// Id of the delivery.
    pub id: DeliveryId,
    /// Endpoint that the delivery goes to.
    pub endpoint: EndpointId,
    /// Time at which the event expires for this delivery.
    pub expires_at: Option<Timestamp>,
    /// The part of the delivery's budget that is used up.
    pub progress: Progress,
    /// Whether it was replayed, or made by a backfill.
    pub is_replay_or_backfill: bool,
}

/// Deliveries whose time may be over, and when to check again.
#[derive(Debug, Clone, Default)]
pub struct OverduePage {
    /// Deliveries that have to be checked now.
    pub found: Vec<OverdueDelivery>,
    /// Time at which the first delivery that is not on this page has to be
    /// checked.
    pub next_at: Option<Timestamp>,
}

/// A question for deliveries without an attempt.
#[derive(Debug, Clone, Copy)]
pub struct UntriedQuery {
    /// Only deliveries whose budget began before this time.
    pub before: Timestamp,
    /// Delivery after which the page begins; without one, it begins with the
    /// first.
    pub after: Option<DeliveryId>,
    /// Largest number of deliveries to read.
    pub limit: usize,
}

/// Deliveries without an attempt. A page may hold fewer of them than asked for
/// and still have a next page, because a bounded number of rows is read.
#[derive(Debug, Clone, Default)]
pub struct UntriedPage {
    /// Deliveries that were found.
    pub found: Vec<OverdueDelivery>,
    /// Delivery after which the next page begins, if there may be one.
    pub next: Option<DeliveryId>,
}
