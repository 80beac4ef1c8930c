//! Questions to [`History`](super::History), and its answers.

use jiff::Timestamp;

use crate::model::delivery::{DeadCause, DeliveryState};
use crate::model::event::{DataRemoval, Event};
use crate::model::id::{DeliveryId, EndpointId};

/// An event and the number of its deliveries.
#[derive(Debug, Clone)]
pub struct EventRecord {
    /// The stored event.
    pub event: Event,
    /// Why the event's data was removed, if it was.
    pub withheld: Option<DataRemoval>,
    /// Number of deliveries that were created for it.
    pub deliveries: u32,
    /// Whether the stored event differs from its checksum.
    pub is_damaged: bool,
}

/// Filter for listing events.
#[derive(Debug, Clone, Default)]
pub struct EventQuery {
    /// Only events of this type.
    pub event_type: Option<String>,
    /// Only events with this key.
    pub key: Option<String>,
    /// Only events accepted at this time or later.
    pub since: Option<Timestamp>,
    /// Only events accepted before this time.
    pub until: Option<Timestamp>,
}

/// Filter for listing deliveries.
#[derive(Debug, Clone, Default)]
pub struct DeliveryQuery {
    /// Only deliveries in this state.
    pub state: Option<DeliveryState>,
    /// Only dead deliveries with this cause.
    pub cause: Option<DeadCause>,
    /// Only deliveries to this endpoint.
    pub endpoint: Option<EndpointId>,
    /// Only deliveries of events of this type.
    pub event_type: Option<String>,
    /// Only deliveries of events with this key.
    pub key: Option<String>,
    /// Only deliveries created at this time or later.
    pub since: Option<Timestamp>,
    /// Only deliveries created before this time.
    pub until: Option<Timestamp>,
}

/// Request for one page of a list.
#[derive(Debug, Clone)]
pub struct PageRequest {
    /// End of the last page, in the store's own encoding.
    pub cursor: Option<String>,
    /// Largest number of items on the page.
    pub limit: usize,
}

/// One page of a list. It may hold fewer items than asked for and still have
/// a next page: a store reads a bounded number of rows per page, so that no
/// query can block the others for long.
#[derive(Debug, Clone)]
pub struct ListPage<T> {
    /// Items of this page.
    pub data: Vec<T>,
    /// Cursor of the next page, if there is one.
    pub next: Option<String>,
}

impl<T> ListPage<T> {
    /// Cuts items to a page of `limit`, with a cursor for the next page if there
    /// were more.
    pub(super) fn truncate(mut items: Vec<T>, limit: usize, cursor_of: impl Fn(&T) -> String) -> Self {
        let has_more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| has_more).map(cursor_of);
        Self { data: items, next }
    }
}

/// A lane that has undelivered members.
#[derive(Debug, Clone)]
pub struct Lane {
    /// Ordering key; `None` for the one lane of a fully ordered endpoint.
    pub key: Option<String>,
    /// First undelivered delivery of the lane; all others wait for it.
    pub head: DeliveryId,
    /// Whether the head is dead and so blocks the lane.
    pub is_blocked: bool,
    /// Time at which the head became the head.
    pub since: Timestamp,
    /// Number of deliveries that wait behind the head.
    pub waiting: u64,
}
