//! Why an event is refused, in words.

use jiff::Timestamp;

use super::{DELIVERIES_MAX, FANOUT_MAX};
use crate::lifecycle::intake::{Overload, RateLimited};
use crate::lifecycle::storage_admission::StorageRefusal;
use crate::model::id::{EndpointId, EventId};
use crate::store::Error;

/// The reason why an event is refused.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AcceptRefusal {
    /// The id belongs to an accepted event with other content.
    #[error(
        "event {id} was accepted at {accepted_at} with other content{}; use another id, or send the same content to repeat it",
        name_differences(.differs)
    )]
    Conflict {
        /// Id of both events.
        id: EventId,
        /// Wall time at which the other event was accepted.
        accepted_at: Timestamp,
        /// Fields in which the contents differ; empty if that is not known.
        differs: Vec<&'static str>,
    },
    /// The id belongs to another event of the same batch, with other content.
    #[error(
        "item {item} of this batch has the id {id}, too, with other content{}; give each its own id, or send one of them",
        name_differences(.differs)
    )]
    ConflictInBatch {
        /// Id of both events.
        id: EventId,
        /// Position of the other event in the batch, from 0.
        item: usize,
        /// Fields in which the contents differ.
        differs: Vec<&'static str>,
    },
    /// The event names an endpoint that the tenant does not have.
    #[error("endpoints names {0}, which this tenant does not have")]
    UnknownEndpoint(EndpointId),
    /// The event names an endpoint that gets none of producers.
    #[error("endpoints names {0}, which listens to operations and gets no events of producers")]
    NotForEvents(EndpointId),
    /// Too many endpoints match the event or the request.
    #[error(
        "{0} endpoints match, and an event may have at most {FANOUT_MAX} deliveries and a request {DELIVERIES_MAX}"
    )]
    Fanout(usize),
    /// The disk's reserve is reached; it is kept for the outcomes of deliveries.
    #[error("the disk is nearly full, so no new events are accepted; deliveries go on")]
    StorageFull,
    /// The tenant may not store more or have more deliveries wait.
    #[error(transparent)]
    NoRoom(#[from] StorageRefusal),
    /// The tenant's rate is used up.
    #[error(transparent)]
    Limited(#[from] Box<RateLimited>),
    /// Deliveries lag for want of the gateway's own speed.
    #[error(transparent)]
    Overload(Overload),
    /// The store failed or refused the event.
    #[error(transparent)]
    Store(Error),
}

impl AcceptRefusal {
    /// Makes a conflict one with the event at this position of the batch, if
    /// there is one.
    pub fn with_item(self, item: Option<usize>) -> Self {
        match (self, item) {
            (Self::Conflict { id, differs, .. }, Some(item)) => Self::ConflictInBatch { id, item, differs },
            (other, _) => other,
        }
    }

    /// Returns the refusal with the position that the item has in a larger
    /// batch, of which only the events at these positions were handed over.
    pub fn at_positions(self, positions: &[usize]) -> Self {
        match self {
            Self::ConflictInBatch { id, item, differs } => Self::ConflictInBatch { id, item: positions[item], differs },
            other => other,
        }
    }
}

/// Says that a field differs. Only the name of the endpoints is a plural.
pub fn differing_sentence(field: &str) -> String {
    format!("{field} {}", if field == "endpoints" { "differ" } else { "differs" })
}

/// Returns the end of a sentence that says which fields differ.
fn name_differences(fields: &[&str]) -> String {
    match fields {
        [] => String::new(),
        [one] => format!(" ({})", differing_sentence(one)),
        [most @ .., last] => format!(" ({} and {last} differ)", most.join(", ")),
    }
}
