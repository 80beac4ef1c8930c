//! Reads due deliveries with everything that an attempt needs.

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use super::PostgresState;
use super::claims::{self, ClaimKey};
use super::rows::{FORMAT_CODE_MAX, at, delivery_id, millis};
use super::stored_function::{IN_ORDER, NamedSql, StoredFunction};
use super::transaction::{bind, with_timeout};
use crate::model::id::EndpointId;
use crate::model::id_map::IdMap;
use crate::store::row::{PostgresColumns, row};
use crate::store::{DuePage, DueQuery, Result};
use jiff::Timestamp;
use tokio_postgres::types::Type;
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

    fn read_start(&self, endpoint: i64) -> ReadStart {
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
        (READ_URGENT.call(), ReadStart { due_at: i64::MIN, lowered: 0 })
    } else {
        (READ_DUE.call(), shared.watermarks.read_start(endpoint))
    };
    let limit = i64::try_from(query.limit.saturating_add(query.except.len()).saturating_add(1)).unwrap_or(i64::MAX);
    let rows = with_timeout(client.query_typed(sql, bind![endpoint, start.due_at, limit, FORMAT_CODE_MAX])).await?;
    let mut page = DuePage::default();
    let mut chosen: Vec<(ClaimKey, i64)> = Vec::new();
    let rows: Vec<PostgresDueRow> = rows.iter().map(PostgresDueRow::read).collect();
    for PostgresDueRow { no, due_at, created_at, event } in &rows {
        let (no, due_at) = (*no, *due_at);
        if query.except.contains(&delivery_id(no, *created_at)) {
            continue;
        }
        if due_at > millis(query.until) || chosen.len() >= query.limit {
            page.next_due = Some(at(due_at));
            break;
        }
        chosen.push((ClaimKey { no, event: *event }, due_at));
    }
    if !query.urgent_only {
        let first = rows.first().map_or(millis(query.until), |row| row.due_at);
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
        let from = shared.watermarks.read_start(endpoint).due_at;
        let first = bind![endpoint, from, 1_i64, FORMAT_CODE_MAX];
        let rows = with_timeout(client.query_typed(READ_DUE.call(), first)).await?;
        page.next_due = rows.first().map(|row| at(PostgresDueRow::read(row).due_at));
    }
    Ok(page)
}

/// Returns the earliest due time of each endpoint of these shards that has
/// waiting deliveries.
pub async fn earliest_due(shared: &PostgresState, shards: Vec<i16>) -> Result<Vec<(EndpointId, Timestamp)>> {
    let client = shared.connection().await?;
    let rows = with_timeout(client.query_typed(EARLIEST_DUE.call(), bind![shards, FORMAT_CODE_MAX])).await?;
    Ok(rows.iter().map(EarliestDueRow::read).map(|row| (row.endpoint, at(row.due_at))).collect())
}

row! {
    /// A due delivery, with what is needed to choose among them.
    postgres struct PostgresDueRow {
        no: i64 = "d.no",
        due_at: i64 = "d.due_at",
        created_at: i64 = "d.created_at",
        event: i64 = "d.event",
    }
}

row! {
    /// The earliest due time of an endpoint.
    postgres struct EarliestDueRow {
        endpoint: EndpointId = "p.id",
        due_at: i64 = "f.due_at",
    }
}

/// Reads what is due for an endpoint: `sql/read_due.sql`.
pub static READ_DUE: LazyLock<StoredFunction> =
    LazyLock::new(|| due_function("read_due", include_str!("sql/read_due.sql")));

/// Reads what is due for an endpoint and a person asked for: `sql/read_urgent.sql`.
pub static READ_URGENT: LazyLock<StoredFunction> =
    LazyLock::new(|| due_function("read_urgent", include_str!("sql/read_urgent.sql")));

fn due_function(name: &str, sql: &str) -> StoredFunction {
    let sql = NamedSql::new(sql).parameter("endpoint", Type::INT8).parameter("from", Type::INT8);
    let sql = sql.parameter("limit", Type::INT8).parameter("format_max", Type::INT2);
    StoredFunction::query::<PostgresDueRow>(name, IN_ORDER, sql.replace("columns", PostgresDueRow::COLUMNS))
}

/// Reads the earliest due time of each endpoint: `sql/earliest_due.sql`.
pub static EARLIEST_DUE: LazyLock<StoredFunction> = LazyLock::new(|| {
    let sql = NamedSql::new(include_str!("sql/earliest_due.sql")).parameter("shards", Type::INT2_ARRAY);
    let sql = sql.parameter("format_max", Type::INT2).replace("columns", EarliestDueRow::COLUMNS);
    StoredFunction::query::<EarliestDueRow>("earliest_due", IN_ORDER, sql)
});

/// Reads the earliest due time of the endpoints asked for: `sql/oldest_due.sql`.
pub static OLDEST_DUE: LazyLock<StoredFunction> = LazyLock::new(|| {
    let sql = NamedSql::new(include_str!("sql/oldest_due.sql")).parameter("endpoints", Type::INT8_ARRAY);
    StoredFunction::query::<Option<i64>>("oldest_due", IN_ORDER, sql)
});

/// Counts the waiting deliveries of these shards' endpoints, and sets the
/// counts of endpoints that are not this node's to 0. It runs beside the
/// membership loop: with millions waiting it takes longer than a lease may go
/// without being renewed.
pub async fn recount(shared: &PostgresState, shards: Vec<i16>, before: Option<IdMap<i64, u64>>) -> Result<()> {
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
        let floor = watermarks.read_start(1);
        assert_eq!(floor.due_at, i64::MIN);
        watermarks.raise(1, floor, 500);
        let floor = watermarks.read_start(1);
        assert_eq!(floor.due_at, 500);
        watermarks.lower(1, 300);
        watermarks.raise(1, floor, 900);
        assert_eq!(watermarks.read_start(1).due_at, 300, "the read may not have seen it");
        watermarks.clear();
        assert_eq!(watermarks.read_start(1).due_at, i64::MIN);
    }

    #[test]
    fn what_becomes_due_after_the_floor_during_a_read_is_below_no_later_floor() {
        let watermarks = DueWatermarks::default();
        let floor = watermarks.read_start(1);
        watermarks.raise(1, floor, 500);
        let read = watermarks.read_start(1);
        // Accepted at 600, committed while the read was under way.
        watermarks.lower(1, 600);
        watermarks.raise(1, read, 900);
        assert_eq!(watermarks.read_start(1).due_at, 500, "the read may not have seen it");
        let read = watermarks.read_start(1);
        watermarks.raise(1, read, 600);
        assert_eq!(watermarks.read_start(1).due_at, 600, "the next one has");
    }

    #[test]
    fn a_read_from_before_everything_was_forgotten_raises_nothing() {
        let watermarks = DueWatermarks::default();
        let read = watermarks.read_start(1);
        watermarks.clear();
        watermarks.read_start(1);
        watermarks.raise(1, read, 900);
        assert_eq!(watermarks.read_start(1).due_at, i64::MIN);
    }
}
