//! What [`History`](super::History) is asked, and what it answers with.

use jiff::Timestamp;

use crate::model::delivery::{DeadCause, DeliveryState};
use crate::model::event::{DataRemoval, Event};
use crate::model::id::{DeliveryId, EndpointId};

/// An event and how many deliveries it has.
#[derive(Debug, Clone)]
pub struct EventRecord {
    /// The event.
    pub event: Event,
    /// Why its data is no longer there, if it is not.
    pub withheld: Option<DataRemoval>,
    /// How many deliveries it was given.
    pub deliveries: u32,
    /// Whether what is stored of it is no longer what was accepted.
    pub is_damaged: bool,
}

/// Which events to list.
#[derive(Debug, Clone, Default)]
pub struct EventQuery {
    /// Of this type.
    pub event_type: Option<String>,
    /// With this key.
    pub key: Option<String>,
    /// Accepted at this time or later.
    pub since: Option<Timestamp>,
    /// Accepted before this time.
    pub until: Option<Timestamp>,
}

/// Which deliveries to list.
#[derive(Debug, Clone, Default)]
pub struct DeliveryQuery {
    /// In this state.
    pub state: Option<DeliveryState>,
    /// Dead for this cause.
    pub cause: Option<DeadCause>,
    /// To this endpoint.
    pub endpoint: Option<EndpointId>,
    /// Of this event type.
    pub event_type: Option<String>,
    /// With this key.
    pub key: Option<String>,
    /// Created at this time or later.
    pub since: Option<Timestamp>,
    /// Created before this time.
    pub until: Option<Timestamp>,
}

/// Which part of a list.
#[derive(Debug, Clone)]
pub struct PageRequest {
    /// Where the last page ended, in the store's own words.
    pub cursor: Option<String>,
    /// At most so many.
    pub limit: usize,
}

/// One part of a list. It may hold fewer than asked for and still have a
/// next: a store looks at a bounded number of rows per page, so that no
/// question can hold up the house.
#[derive(Debug, Clone)]
pub struct ListPage<T> {
    /// What was found.
    pub data: Vec<T>,
    /// Where the next page begins.
    pub next: Option<String>,
}

impl<T> ListPage<T> {
    /// The first so many of what was found, with a next page if there was
    /// more.
    pub(super) fn truncate(mut found: Vec<T>, limit: usize, place: impl Fn(&T) -> String) -> Self {
        let has_more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| has_more).map(place);
        Self { data: found, next }
    }
}

/// A lane with members to deliver.
#[derive(Debug, Clone)]
pub struct Lane {
    /// The key, or nothing for the one lane of a fully ordered endpoint.
    pub key: Option<String>,
    /// The delivery everyone waits for.
    pub head: DeliveryId,
    /// Whether that one is dead.
    pub is_blocked: bool,
    /// Since when it has been the head.
    pub since: Timestamp,
    /// How many wait behind it.
    pub waiting: u64,
}
