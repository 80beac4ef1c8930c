//! Tracks what tenants use over all nodes: the bytes of their events, and the
//! number of their waiting deliveries.
//!
//! Accepted bytes are added in the accept commit, under the node's own row;
//! deleted bytes are subtracted under node 0. So no two nodes write the same
//! row. Once a second each node publishes how many deliveries wait on it, and
//! reads what the others have published and stored. What it knows of them is
//! up to two seconds old.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tracing::debug;

use super::PostgresState;
use super::history::walk::MOVED_BELOW;
use super::read_query::read_rows;
use super::snowflake::ms_of;
use super::transaction::{PgTransaction, bind};
use crate::store::Result;

/// Interval at which a node publishes and reads.
const EVERY: Duration = Duration::from_secs(1);
/// Number of rounds after which everything is published again: the server may
/// have lost it.
const ROUNDS_PER_WHOLE: u32 = 30;
const DAY_MS: i64 = 86_400_000;

/// Usage that accepted events add to a tenant's day.
#[derive(Debug, Clone, Copy, Default)]
pub struct AcceptedDay {
    /// Bytes that they take up.
    pub bytes: i64,
    /// Number of events.
    pub events: i64,
    /// Number of their deliveries.
    pub deliveries: i64,
    /// Size of their data.
    pub data_bytes: i64,
}

/// Usage that accepted events add, by tenant and day.
pub type UsageByDay = BTreeMap<(i64, i32), AcceptedDay>;

/// Bytes by tenant and day.
pub type BytesByDay = BTreeMap<(i64, i32), i64>;

/// Returns the day that an event of this number is counted under. Numbers of
/// events that were moved here hold no time; they count under day 0.
pub fn day_of(no: i64) -> i32 {
    if no < MOVED_BELOW { 0 } else { i32::try_from(ms_of(no) / DAY_MS).unwrap_or(i32::MAX) }
}

/// Subtracts the bytes of deleted events.
pub async fn subtract(tx: &PgTransaction, freed: BytesByDay) -> Result<()> {
    if freed.is_empty() {
        return Ok(());
    }
    let tenants: Vec<i64> = freed.keys().map(|(tenant, _)| *tenant).collect();
    let days: Vec<i32> = freed.keys().map(|(_, day)| *day).collect();
    let bytes: Vec<i64> = freed.values().map(|bytes| -bytes).collect();
    let sql = "INSERT INTO posthaste.stored_bytes AS s (tenant, day, node, bytes)
               SELECT n.tenant, n.day, 0, n.bytes FROM unnest($1, $2, $3) AS n (tenant, day, bytes)
               ORDER BY n.tenant, n.day
               ON CONFLICT (tenant, day, node) DO UPDATE SET bytes = s.bytes + excluded.bytes";
    tx.execute(sql, bind![tenants, days, bytes]).await.map(|_| ())
}

/// Deletes the rows of days and tenants of which nothing is stored any more. A row
/// that counts what a producer handed over is kept for the bill, without its bytes.
pub async fn delete_empty(tx: &PgTransaction, before_ms: i64) -> Result<()> {
    let before = i32::try_from(before_ms.div_euclid(DAY_MS)).unwrap_or(i32::MAX);
    let sql = "UPDATE posthaste.stored_bytes s SET bytes = 0 WHERE s.day < $1 AND s.events > 0 AND s.bytes <> 0
                   AND (SELECT sum(o.bytes) FROM posthaste.stored_bytes o WHERE o.tenant = s.tenant AND o.day = s.day) <= 0";
    tx.execute(sql, bind![before]).await?;
    let sql = "DELETE FROM posthaste.stored_bytes s WHERE s.day < $1 AND s.events = 0 AND (
                   (SELECT sum(o.bytes) FROM posthaste.stored_bytes o WHERE o.tenant = s.tenant AND o.day = s.day) <= 0
                   OR NOT EXISTS (SELECT FROM posthaste.tenants t WHERE t.no = s.tenant))";
    tx.execute(sql, bind![before]).await.map(|_| ())
}

/// Replaces the rows of a day that was dropped by the bytes of its retained
/// events. What producers handed over on the day is kept for the bill.
pub async fn set_day(tx: &PgTransaction, day: i32, retained: &[i64]) -> Result<()> {
    tx.execute("DELETE FROM posthaste.stored_bytes WHERE day = $1 AND events = 0", bind![day]).await?;
    tx.execute("UPDATE posthaste.stored_bytes SET bytes = 0 WHERE day = $1", bind![day]).await?;
    let retained = retained.to_vec();
    let sql = "INSERT INTO posthaste.stored_bytes (tenant, day, node, bytes)
               SELECT tenant, $1, 0, sum(octet_length(data) + 512 * (1 + deliveries::bigint))
               FROM posthaste.events WHERE no = ANY ($2) GROUP BY tenant
               ON CONFLICT (tenant, day, node) DO UPDATE SET bytes = excluded.bytes";
    tx.execute(sql, bind![day, retained]).await.map(|_| ())
}

/// Returns the bytes that the events of these tenants take up.
pub async fn bytes_of(shared: &PostgresState, tenants: Vec<i64>) -> Result<HashMap<i64, u64>> {
    let sql = "SELECT tenant, greatest(sum(bytes), 0)::bigint FROM posthaste.stored_bytes WHERE tenant = ANY ($1) GROUP BY tenant";
    let rows = read_rows(shared, sql, bind![tenants]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get::<_, i64>(1).cast_unsigned())).collect())
}

/// Starts the task that publishes and reads once a second.
pub fn start(shared: &Arc<PostgresState>) -> JoinHandle<()> {
    let shared = shared.clone();
    tokio::spawn(async move {
        let (mut published, mut round) = (HashMap::new(), 0_u32);
        loop {
            if round.is_multiple_of(ROUNDS_PER_WHOLE) {
                published.clear();
            }
            round = round.wrapping_add(1);
            if let Err(problem) = publish_waiting(&shared, &mut published).await {
                debug!("usage of tenants on other nodes could not be read; it is read again soon: {problem}");
                published.clear();
            }
            tokio::time::sleep(EVERY).await;
        }
    })
}

/// Publishes the changed counts of waiting deliveries, and reads those of other
/// nodes.
async fn publish_waiting(shared: &Arc<PostgresState>, published: &mut HashMap<i64, u64>) -> Result<()> {
    let (waiting, limited, before) = {
        let index = shared.index();
        let limited = index.with_stored_limit();
        let before: HashMap<i64, u64> =
            limited.iter().map(|tenant| (*tenant, index.stored_bytes_of(*tenant))).collect();
        (index.waiting_by_tenant(), limited, before)
    };
    let node = shared.shard_leases.node();
    let is_full = published.is_empty();
    let emptied = published.keys().filter(|tenant| !waiting.contains_key(tenant)).map(|tenant| (*tenant, 0));
    let changed = waiting.iter().filter(|(tenant, count)| published.get(tenant) != Some(count)).map(|(t, c)| (*t, *c));
    let changed: Vec<(i64, u64)> = emptied.chain(changed).collect();
    let (tenants, counts): (Vec<i64>, Vec<i64>) =
        changed.iter().map(|(tenant, count)| (*tenant, count.cast_signed())).unzip();
    if is_full || !tenants.is_empty() {
        let tx = shared.begin().await?;
        tx.execute(include_str!("sql/publish_backlog.sql"), bind![node, tenants, counts]).await?;
        let sql = "DELETE FROM posthaste.backlog b WHERE b.waiting = 0 AND b.node = $1
                   OR NOT EXISTS (SELECT FROM posthaste.nodes n WHERE n.id = b.node)";
        tx.execute(sql, bind![node]).await?;
        tx.commit().await?;
    }
    *published = waiting;
    let sql = "SELECT b.tenant, sum(b.waiting)::bigint FROM posthaste.backlog b JOIN posthaste.nodes n ON n.id = b.node
               WHERE b.node <> $1 AND n.lease_until > clock_timestamp() GROUP BY b.tenant";
    let rows = read_rows(shared, sql, bind![node]).await?;
    let elsewhere: HashMap<i64, u64> =
        rows.iter().map(|row| (row.get(0), row.get::<_, i64>(1).cast_unsigned())).collect();
    let mut stored = if limited.is_empty() { HashMap::new() } else { bytes_of(shared, limited).await? };
    let mut index = shared.index_mut();
    // Events accepted here during the read may be missing in what was read.
    for (tenant, bytes) in &mut stored {
        *bytes += index.stored_bytes_of(*tenant).saturating_sub(before.get(tenant).copied().unwrap_or(0));
    }
    index.set_remote_usage(&stored, &elsewhere);
    Ok(())
}
