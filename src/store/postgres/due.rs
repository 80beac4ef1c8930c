//! Reads what is due, with everything an attempt needs.

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

/// For each endpoint, a time before which nothing of its queue is due.
///
/// What was settled leaves dead entries at the front of the index, and while
/// anyone holds an old snapshot they cannot be cleaned away. A read that began
/// there would step over all of them, every time. The owner hears of whatever
/// becomes due, so it can begin where the last read found the first row.
///
/// Invariant: whatever becomes due is told here after its commit. A read that
/// was under way then may not have seen it, however late it is due, so such a
/// read raises nothing.
#[derive(Default)]
pub struct DueWatermarks(Mutex<EndpointWatermark>);

#[derive(Default)]
struct EndpointWatermark {
    starts: HashMap<i64, ReadStart>,
    /// Counts what was told, over all endpoints.
    lowered: u64,
}

/// Where a read of an endpoint may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ReadStart {
    due_at: i64,
    /// Which of all that was told it was told by.
    lowered: u64,
}

impl DueWatermarks {
    /// Something of this endpoint is due at this time, and can be read.
    pub fn lower(&self, endpoint: i64, due_at: i64) {
        let mut known = self.known();
        known.lowered += 1;
        let told = known.lowered;
        if let Some(floor) = known.starts.get_mut(&endpoint) {
            *floor = ReadStart { due_at: due_at.min(floor.due_at), lowered: told };
        }
    }

    /// Others may have made anything due.
    pub fn clear(&self) {
        self.known().starts.clear();
    }

    fn of(&self, endpoint: i64) -> ReadStart {
        let mut known = self.known();
        known.lowered += 1;
        let told = known.lowered;
        // From now on it is known, so that what is told meanwhile counts.
        *known.starts.entry(endpoint).or_insert(ReadStart { due_at: i64::MIN, lowered: told })
    }

    /// A read that began at this floor found nothing before this time.
    fn raise(&self, endpoint: i64, from: ReadStart, to: i64) {
        if let Some(floor) = self.known().starts.get_mut(&endpoint)
            && floor.lowered == from.lowered
        {
            floor.due_at = floor.due_at.max(to);
        }
    }

    fn known(&self) -> parking_lot::MutexGuard<'_, EndpointWatermark> {
        self.0.lock()
    }
}

/// Reads an endpoint's due deliveries, oldest first. What the asker has in
/// hand stands at the front of it and is stepped over, which is why `except`
/// must stay small.
pub async fn read_due(shared: &PostgresState, ask: &DueQuery) -> Result<DuePage> {
    let Some(endpoint) = shared.index().endpoint_entry(ask.endpoint).map(|(no, _)| no) else {
        return Ok(DuePage::default());
    };
    let client = shared.connection().await?;
    let (sql, floor) = match ask.urgent_only {
        false => (include_str!("sql/read_due.sql"), shared.watermarks.of(endpoint)),
        true => (include_str!("sql/read_urgent.sql"), ReadStart { due_at: i64::MIN, lowered: 0 }),
    };
    let limit = i64::try_from(ask.limit.saturating_add(ask.except.len()).saturating_add(1)).unwrap_or(i64::MAX);
    let rows = with_timeout(client.query_typed(sql, bind![endpoint, floor.due_at, limit, FORMAT_CODE_MAX])).await?;
    let mut page = DuePage::default();
    let mut chosen: Vec<(ClaimKey, i64)> = Vec::new();
    for row in &rows {
        let (no, due_at): (i64, i64) = (row.get(0), row.get(1));
        if ask.except.contains(&delivery_id(no, row.get(2))) {
            continue;
        }
        if due_at > millis(ask.until) || chosen.len() >= ask.limit {
            page.next_due = Some(at(due_at));
            break;
        }
        chosen.push((ClaimKey { no, event: row.get(3) }, due_at));
    }
    if !ask.urgent_only {
        let first = rows.first().map_or(millis(ask.until), |row| row.get(1));
        shared.watermarks.raise(endpoint, floor, first);
    }
    let wanted: Vec<ClaimKey> = chosen.iter().map(|(wanted, _)| *wanted).collect();
    let found = claims::read(&client, &wanted, ask.bytes_max).await?;
    page.claims = found.claims;
    if let Some((_, due_at)) = chosen.get(found.reached) {
        page.next_due = Some(at(*due_at));
    }
    if ask.urgent_only {
        page.next_urgent = page.next_due.take();
        let floor = shared.watermarks.of(endpoint).due_at;
        let row = with_timeout(
            client.query_typed(include_str!("sql/read_due.sql"), bind![endpoint, floor, 1_i64, FORMAT_CODE_MAX]),
        )
        .await?;
        page.next_due = row.first().map(|row| at(row.get(1)));
    }
    Ok(page)
}

/// For each endpoint of these shards with something to do, when the first of
/// it is due.
pub async fn earliest_due(shared: &PostgresState, shards: Vec<i16>) -> Result<Vec<(EndpointId, Timestamp)>> {
    let client = shared.connection().await?;
    let rows =
        with_timeout(client.query_typed(include_str!("sql/earliest_due.sql"), bind![shards, FORMAT_CODE_MAX])).await?;
    Ok(rows.iter().map(|row| (EndpointId(row.get(0)), at(row.get(1)))).collect())
}

/// Counts anew what waits for the endpoints of these shards, and forgets the
/// counts of those that are not this node's. Beside the loop: with millions
/// waiting it takes longer than a lease may go without being renewed.
pub async fn recount(shared: &PostgresState, shards: Vec<i16>, before: Option<HashMap<i64, u64>>) -> Result<()> {
    let counted = count_waiting(shared, shards.clone()).await?;
    let shards: HashSet<i16> = shards.into_iter().collect();
    shared.index_mut().recount(&counted, before.as_ref(), |shard| match shards.contains(&i16::from(shard.0)) {
        true => Some(true),
        false if shared.shard_leases.holds(shard) => None,
        false => Some(false),
    });
    Ok(())
}

/// Says that counting failed.
pub fn log_uncounted(outcome: Result<()>) {
    if let Err(problem) = outcome {
        warn!("what waits could not be counted anew, and is counted later: {problem}");
    }
}

/// Counts what waits for the endpoints of these shards, by their numbers.
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
