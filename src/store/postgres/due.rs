//! Reads due deliveries with everything that an attempt needs.

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};

use super::PostgresState;
use super::claims::{self, ClaimKey};
use super::rows::{FORMAT_CODE_MAX, at, delivery_id, millis};
use super::transaction::{bind, with_timeout};
use crate::model::id::EndpointId;
use crate::store::{DuePage, DueQuery, Result};
use jiff::Timestamp;
use tracing::warn;

/// A time for each endpoint before which nothing in its queue is due.
///
/// Settled deliveries leave dead entries at the front of the index, and while
/// anyone holds an old snapshot they cannot be cleaned away. A read from the
/// beginning would step over all of them, every time. The owner is told of
/// everything that becomes due, so a read can begin where the last one found
/// its first row.
///
/// Invariant: everything that becomes due is reported to [`Self::lower`] after
/// its commit. A read that was under way then may not have seen it, however
/// late it is due, so such a read raises no watermark.
#[derive(Default)]
pub struct DueWatermarks(Mutex<Watermarks>);

#[derive(Default)]
struct Watermarks {
    starts: HashMap<i64, ReadStart>,
    /// Counter of reports and reads, over all endpoints.
    lowered: u64,
}

/// The due time at which a read of an endpoint may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ReadStart {
    due_at: i64,
    /// Value of the counter when this start was last set or lowered.
    lowered: u64,
}

impl DueWatermarks {
    /// Reports that something of this endpoint is due at this time and
    /// committed.
    pub fn lower(&self, endpoint: i64, due_at: i64) {
        let mut known = self.known();
        known.lowered += 1;
        let lowered = known.lowered;
        if let Some(start) = known.starts.get_mut(&endpoint) {
            *start = ReadStart { due_at: due_at.min(start.due_at), lowered };
        }
    }

    /// Forgets all watermarks, because other nodes may have made anything due.
    pub fn clear(&self) {
        self.known().starts.clear();
    }

    fn of(&self, endpoint: i64) -> ReadStart {
        let mut known = self.known();
        known.lowered += 1;
        let lowered = known.lowered;
        // The entry exists from now on, so reports during the read change it.
        *known.starts.entry(endpoint).or_insert(ReadStart { due_at: i64::MIN, lowered })
    }

    /// Raises the watermark after a read from `from` found nothing before `to`.
    fn raise(&self, endpoint: i64, from: ReadStart, to: i64) {
        if let Some(start) = self.known().starts.get_mut(&endpoint)
            && start.lowered == from.lowered
        {
            start.due_at = start.due_at.max(to);
        }
    }

    fn known(&self) -> parking_lot::MutexGuard<'_, Watermarks> {
        self.0.lock()
    }
}

/// Reads an endpoint's due deliveries, oldest first. The dispatcher's own
/// deliveries (`except`) are at the front and are skipped, which is why
/// `except` must stay small.
pub async fn read_due(shared: &PostgresState, query: &DueQuery) -> Result<DuePage> {
    let Some(endpoint) = shared.index().endpoint_entry(query.endpoint).map(|(no, _)| no) else {
        return Ok(DuePage::default());
    };
    let client = shared.connection().await?;
    let (sql, start) = if query.urgent_only {
        (include_str!("sql/read_urgent.sql"), ReadStart { due_at: i64::MIN, lowered: 0 })
    } else {
        (include_str!("sql/read_due.sql"), shared.watermarks.of(endpoint))
    };
    let limit = i64::try_from(query.limit.saturating_add(query.except.len()).saturating_add(1)).unwrap_or(i64::MAX);
    let rows = with_timeout(client.query_typed(sql, bind![endpoint, start.due_at, limit, FORMAT_CODE_MAX])).await?;
    let mut page = DuePage::default();
    let mut chosen: Vec<(ClaimKey, i64)> = Vec::new();
    for row in &rows {
        let (no, due_at): (i64, i64) = (row.get("no"), row.get("due_at"));
        if query.except.contains(&delivery_id(no, row.get("created_at"))) {
            continue;
        }
        if due_at > millis(query.until) || chosen.len() >= query.limit {
            page.next_due = Some(at(due_at));
            break;
        }
        chosen.push((ClaimKey { no, event: row.get("event") }, due_at));
    }
    if !query.urgent_only {
        let first = rows.first().map_or(millis(query.until), |row| row.get("due_at"));
        shared.watermarks.raise(endpoint, start, first);
    }
    let keys: Vec<ClaimKey> = chosen.iter().map(|(key, _)| *key).collect();
    let read = claims::read(&client, &keys, query.bytes_max).await?;
    page.claims = read.claims;
    if let Some((_, due_at)) = chosen.get(read.reached) {
        page.next_due = Some(at(*due_at));
    }
    if query.urgent_only {
        page.next_urgent = page.next_due.take();
        let from = shared.watermarks.of(endpoint).due_at;
        let row = with_timeout(
            client.query_typed(include_str!("sql/read_due.sql"), bind![endpoint, from, 1_i64, FORMAT_CODE_MAX]),
        )
        .await?;
        page.next_due = row.first().map(|row| at(row.get("due_at")));
    }
    Ok(page)
}

/// Returns the earliest due time of each endpoint of these shards that has
/// waiting deliveries.
pub async fn earliest_due(shared: &PostgresState, shards: Vec<i16>) -> Result<Vec<(EndpointId, Timestamp)>> {
    let client = shared.connection().await?;
    let rows =
        with_timeout(client.query_typed(include_str!("sql/earliest_due.sql"), bind![shards, FORMAT_CODE_MAX])).await?;
    Ok(rows.iter().map(|row| (EndpointId(row.get(0)), at(row.get(1)))).collect())
}

/// Counts the waiting deliveries of these shards' endpoints, and sets the
/// counts of endpoints that are not this node's to 0. It runs beside the
/// membership loop: with millions waiting it takes longer than a lease may go
/// without being renewed.
pub async fn recount(shared: &PostgresState, shards: Vec<i16>, before: Option<HashMap<i64, u64>>) -> Result<()> {
    let counted = count_waiting(shared, shards.clone()).await?;
    let shards: HashSet<i16> = shards.into_iter().collect();
    shared.index_mut().recount(&counted, before.as_ref(), |shard| {
        if shards.contains(&i16::from(shard.0)) {
            Some(true)
        } else if shared.shard_leases.holds(shard) {
            None
        } else {
            Some(false)
        }
    });
    Ok(())
}

/// Logs that counting failed.
pub fn log_uncounted(outcome: Result<()>) {
    if let Err(problem) = outcome {
        warn!("waiting deliveries could not be counted; they are counted again later: {problem}");
    }
}

/// Counts the waiting deliveries of these shards' endpoints, by the number of
/// the endpoint.
async fn count_waiting(shared: &PostgresState, shards: Vec<i16>) -> Result<Vec<(i64, u64)>> {
    let client = shared.connection().await?;
    let rows = with_timeout(client.query_typed(include_str!("sql/count_waiting.sql"), bind![shards])).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get::<_, i64>(1).max(0) as u64)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_becomes_due_during_a_read_keeps_the_floor_down() {
        let watermarks = DueWatermarks::default();
        let floor = watermarks.of(1);
        assert_eq!(floor.due_at, i64::MIN);
        watermarks.raise(1, floor, 500);
        let floor = watermarks.of(1);
        assert_eq!(floor.due_at, 500);
        watermarks.lower(1, 300);
        watermarks.raise(1, floor, 900);
        assert_eq!(watermarks.of(1).due_at, 300, "the read may not have seen it");
        watermarks.clear();
        assert_eq!(watermarks.of(1).due_at, i64::MIN);
    }

    #[test]
    fn what_becomes_due_after_the_floor_during_a_read_is_below_no_later_floor() {
        let watermarks = DueWatermarks::default();
        let floor = watermarks.of(1);
        watermarks.raise(1, floor, 500);
        let read = watermarks.of(1);
        // Accepted at 600, committed while the read was under way.
        watermarks.lower(1, 600);
        watermarks.raise(1, read, 900);
        assert_eq!(watermarks.of(1).due_at, 500, "the read may not have seen it");
        let read = watermarks.of(1);
        watermarks.raise(1, read, 600);
        assert_eq!(watermarks.of(1).due_at, 600, "the next one has");
    }

    #[test]
    fn a_read_from_before_everything_was_forgotten_raises_nothing() {
        let watermarks = DueWatermarks::default();
        let read = watermarks.of(1);
        watermarks.clear();
        watermarks.of(1);
        watermarks.raise(1, read, 900);
        assert_eq!(watermarks.of(1).due_at, i64::MIN);
    }
}
