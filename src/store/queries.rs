//! Questions to [`History`](super::History), and its answers.

use jiff::Timestamp;

use super::codes::millis;
use super::error::{Error, Result};
use crate::model::delivery_filter::DeliveryFilter;
use crate::model::event::{DataRemoval, Event};
use crate::model::id::DeliveryId;
use crate::model::wall_offset::WallOffset;

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

/// Request for one page of a list.
#[derive(Debug, Clone)]
pub struct PageRequest {
    /// End of the last page, in the store's own encoding.
    pub cursor: Option<String>,
    /// Largest number of items on the page.
    pub limit: usize,
}

/// Position in a list that goes by time of finish: the time and the number of a
/// delivery. What comes after it finished earlier, or then with a lower number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FinishPosition {
    /// Time of finish, in milliseconds.
    pub finished_at: i64,
    /// Number of the delivery.
    pub no: i64,
}

impl FinishPosition {
    /// Returns the position behind which a page begins.
    pub(super) fn begin(filter: &DeliveryFilter, page: &PageRequest) -> Result<Self> {
        let latest = filter.finished_until.map_or(i64::MAX, |until| millis(until).saturating_sub(1));
        let begin = Self { finished_at: latest, no: i64::MAX };
        let Some(cursor) = &page.cursor else { return Ok(begin) };
        let parts = cursor.split_once('.').and_then(|(at, no)| Some((at.parse().ok()?, no.parse().ok()?)));
        let (finished_at, no) = parts.ok_or(Error::InvalidCursor)?;
        Ok(if finished_at > latest { begin } else { Self { finished_at, no } })
    }

    /// Returns the cursor of the page that begins behind this position.
    pub(super) fn cursor(self) -> String {
        format!("{}.{}", self.finished_at, self.no)
    }
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
    /// Time back to which was looked, if the page ends because it has read as
    /// many rows as a page may, and not because it is full.
    pub looked_back_to: Option<Timestamp>,
}

impl<T> ListPage<T> {
    /// Returns a page that is whole, or ends because it is full.
    pub fn of(data: Vec<T>, next: Option<String>) -> Self {
        Self { data, next, looked_back_to: None }
    }

    /// Returns a page with nothing on it, and none after it.
    pub fn empty() -> Self {
        Self::of(Vec::new(), None)
    }

    /// Returns the same place in the list with other items.
    pub fn with<U>(self, data: Vec<U>) -> ListPage<U> {
        ListPage { data, next: self.next, looked_back_to: self.looked_back_to }
    }

    /// Returns the same page with its own time converted to wall time.
    pub fn to_wall_time(self, offset: WallOffset) -> Self {
        Self { looked_back_to: self.looked_back_to.map(|at| offset.wall(at)), ..self }
    }

    /// Cuts items to a page of `limit`, with a cursor for the next page if there
    /// were more.
    pub(super) fn truncate(mut items: Vec<T>, limit: usize, cursor_of: impl Fn(&T) -> String) -> Self {
        let has_more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| has_more).map(cursor_of);
        Self::of(items, next)
    }
}

/// How many deliveries have been in retry for long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LongRetries {
    /// Number of those that were found.
    pub count: u64,
    /// Whether all were looked at; otherwise the count is a lower bound.
    pub is_exact: bool,
}

impl LongRetries {
    /// Most waiting deliveries that are looked at.
    pub const LOOK_MAX: i64 = 10_000;

    /// Returns what was found among this many that were looked at.
    pub(super) fn found(count: i64, looked: i64) -> Self {
        Self { count: count.cast_unsigned(), is_exact: looked < Self::LOOK_MAX }
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
