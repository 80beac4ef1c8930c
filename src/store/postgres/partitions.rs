//! Creates the daily partitions ahead of time, and drops old ones whole.
//!
//! Events, finished deliveries and attempts have a partition for each day of
//! acceptance, by the database's clock. Rows without a day of their own, and
//! rows that outlive their day, are in the default partition (`_rest`).

use std::sync::{Arc, Weak};

use anyhow::Context;
use jiff::Timestamp;
use tracing::{debug, info, warn};

use super::PostgresState;
use super::history::walk::number_at;
use super::read_query::read_rows;
use super::rows::millis;
use super::stored_bytes::{self, day_of};
use super::transaction::{PgTransaction, bind, with_timeout};
use crate::model::named_enum::NamedEnum;
use crate::store::{ForgottenCounts, Result};

/// Number of days whose partitions are created ahead: a cluster that creates
/// none for so long still has room for today.
const DAYS_AHEAD: i32 = 3;
const DAY_MS: i64 = 86_400_000;

/// Takes the advisory lock of whoever creates or drops a day.
const LOCK: &str = "SELECT pg_advisory_xact_lock(7306086967354368001)";

/// A day with more rows than this in the default partition gets no partition of
/// its own: moving the rows would take too long. They are deleted one by one.
const MOVED_MAX: i64 = 50_000;

/// Margin in milliseconds after the retention before a day is dropped. Finished
/// deliveries that must then still be retained all took longer than this, so
/// the index `finished_late` holds every one of them.
const LATE_MS: i64 = 3_600_000;

/// Largest delay in milliseconds between the number of an event and those of
/// its deliveries.
const SLACK_MS: i64 = 60_000;

/// Largest number of retained rows that are moved into the default partition
/// when their day is dropped. More rows get a smaller partition instead.
const PUT_BACK_MAX: usize = 5_000;
/// A day with more retained rows than this stays as it is until there are fewer.
const RETAINED_MAX: usize = 200_000;

/// Creates the missing partitions of today and the next days. Many nodes may
/// do so at once.
pub async fn ensure(shared: &Arc<PostgresState>) -> anyhow::Result<()> {
    let missing = read_rows(shared, include_str!("sql/missing_days.sql"), bind![DAYS_AHEAD]).await;
    if missing.context("cannot read which days have partitions")?.is_empty() {
        return Ok(());
    }
    let made = create_missing(shared).await.context("cannot make the partitions of the next days")?;
    if made > 0 {
        let shared = Arc::downgrade(shared);
        tokio::spawn(async move { analyze(&shared).await });
    }
    Ok(())
}

/// Creates the missing partitions. Returns how many.
async fn create_missing(shared: &PostgresState) -> Result<usize> {
    let tx = shared.begin().await?;
    run_sql(&tx, LOCK).await?;
    // Another node may hold a needed lock for long; then this fails soon.
    run_sql(&tx, "SET LOCAL lock_timeout = '1s'").await?;
    let mut made = 0;
    for row in tx.query(include_str!("sql/missing_days.sql"), bind![DAYS_AHEAD]).await? {
        let table = PartitionedTable::named(row.get("parent"));
        let day = PartitionDay {
            name: row.get("day"),
            from: number_at(row.get("from_ms")),
            to: number_at(row.get::<_, i64>("from_ms") + DAY_MS),
        };
        let key = table.key();
        let sql = format!(
            "SELECT count(*) FROM (SELECT 1 FROM posthaste.{}_rest WHERE {key} >= $1 AND {key} < $2 LIMIT $3) r",
            table.as_str()
        );
        let rows_in_rest = tx.query(&sql, bind![day.from, day.to, MOVED_MAX + 1]).await?;
        if rows_in_rest.first().is_some_and(|row| row.get::<_, i64>(0) > MOVED_MAX) {
            debug!(
                "no partition of {} for {}: its default partition has too many rows to move",
                table.as_str(),
                day.name
            );
            continue;
        }
        run_sql(&tx, &day.fill(include_str!("sql/add_day.sql"), &table)).await?;
        made += 1;
    }
    tx.commit().await?;
    Ok(made)
}

/// Analyzes the partitioned tables, which the server does not do by itself.
/// Without it plans are the same and estimates are worse. It may take a while,
/// and nobody waits for it.
async fn analyze(shared: &Weak<PostgresState>) {
    for table in PartitionedTable::ALL {
        let Some(shared) = shared.upgrade() else { return };
        let analyzed = async {
            let tx = shared.begin().await?;
            run_sql(&tx, &format!("ANALYZE posthaste.{}", table.as_str())).await?;
            tx.commit().await
        };
        if let Err(problem) = analyzed.await {
            debug!("ANALYZE of the table {} failed: {problem}", table.as_str());
        }
    }
}

/// Drops whole days that are past their retention, and retains the rows that
/// must outlive them. A day that cannot be locked at once is left for the next
/// pass.
pub async fn drop_old(shared: &PostgresState, finished_before: Timestamp) -> Result<ForgottenCounts> {
    let mut total = ForgottenCounts::default();
    let ended_before = millis(finished_before).saturating_sub(LATE_MS);
    for row in read_rows(shared, include_str!("sql/old_days.sql"), bind![ended_before]).await? {
        let from_ms: i64 = row.get("from_ms");
        let day = PartitionDay { name: row.get("day"), from: number_at(from_ms), to: number_at(from_ms + DAY_MS) };
        let tables: Vec<PartitionedTable> =
            row.get::<_, Vec<&str>>("parents").into_iter().map(PartitionedTable::named).collect();
        match drop_day(shared, &day, &tables, finished_before).await {
            Ok(Some(deleted)) => {
                total.events += deleted.events;
                total.deliveries += deleted.deliveries;
            }
            Ok(None) => debug!("partitions of {} stay: too many of their rows are still needed", day.name),
            Err(problem) => {
                // Others queue behind a lock that this transaction waits for,
                // so there is no other try before the next pass.
                warn!(
                    "partitions of {} could not be dropped; the next retention pass tries again: {problem}",
                    day.name
                );
                break;
            }
        }
    }
    Ok(total)
}

/// Drops one day. Returns `None` if too many of its rows are retained.
async fn drop_day(
    shared: &PostgresState,
    day: &PartitionDay,
    tables: &[PartitionedTable],
    finished_before: Timestamp,
) -> Result<Option<ForgottenCounts>> {
    let tx = shared.begin().await?;
    // The timeout is shorter than the server's deadlock_timeout: of two that
    // wait for each other, this one gives way.
    run_sql(&tx, "SET LOCAL lock_timeout = '800ms'; SET LOCAL statement_timeout = '14s'").await?;
    run_sql(&tx, LOCK).await?;
    let names: Vec<String> = tables.iter().map(|table| day.partition(table)).collect();
    // From here on nothing is added to the day or replayed out of it.
    run_sql(&tx, &format!("LOCK TABLE {} IN EXCLUSIVE MODE", names.join(", "))).await?;
    let retained = RetainedRows::find(&tx, day, finished_before).await?;
    let (mut events, mut finished) = (0, 0);
    for table in tables {
        match table {
            PartitionedTable::Events => events = count(&tx, &day.partition(table)).await?,
            PartitionedTable::Finished => finished = count(&tx, &day.partition(table)).await?,
            PartitionedTable::Attempts => {}
        }
    }
    let needs_partition = retained.rows > PUT_BACK_MAX;
    if retained.rows > RETAINED_MAX || (needs_partition && retained.events.len() * 2 > events) {
        tx.roll_back().await;
        return Ok(None);
    }
    replace_partitions(&tx, day, tables, &retained, needs_partition).await?;
    stored_bytes::set_day(&tx, day_of(day.from), &retained.events).await?;
    tx.commit().await?;
    let deleted = ForgottenCounts {
        events: events.saturating_sub(retained.events.len()),
        deliveries: finished.saturating_sub(retained.finished.len()),
        dead: 0,
        next: None,
    };
    info!(
        "dropped the partitions of {}: {} events and {} deliveries deleted, {} events retained",
        day.name,
        deleted.events,
        deleted.deliveries,
        retained.events.len()
    );
    Ok(Some(deleted))
}

/// Drops the day's partitions. Its retained rows go into smaller ones, or back
/// among the rows that have no partition of their own.
async fn replace_partitions(
    tx: &PgTransaction,
    day: &PartitionDay,
    tables: &[PartitionedTable],
    retained: &RetainedRows,
    needs_partition: bool,
) -> Result<()> {
    if needs_partition {
        for table in tables {
            copy(tx, day, table, retained).await?;
        }
    }
    for table in tables {
        let partition = day.partition(table);
        run_sql(tx, &format!("ALTER TABLE posthaste.{} DETACH PARTITION {partition}", table.as_str())).await?;
        if !needs_partition {
            put_back(tx, day, table, retained).await?;
        }
        run_sql(tx, &format!("DROP TABLE {partition}")).await?;
        if needs_partition {
            run_sql(tx, &day.fill(include_str!("sql/shrink_day.sql"), table)).await?;
        }
    }
    Ok(())
}

/// Copies the retained rows into a new table, while others still read the
/// day's partition.
async fn copy(tx: &PgTransaction, day: &PartitionDay, table: &PartitionedTable, retained: &RetainedRows) -> Result<()> {
    let beside = format!("posthaste.{}_kept_{}", table.as_str(), day.name);
    run_sql(tx, &format!("CREATE TABLE {beside} (LIKE posthaste.{} INCLUDING ALL)", table.as_str())).await?;
    let sql = format!("INSERT INTO {beside} SELECT * FROM {} WHERE {} = ANY ($1)", day.partition(table), table.key());
    tx.execute(&sql, bind![*retained.numbers_in(table)]).await?;
    Ok(())
}

/// Moves the retained rows into the default partition.
async fn put_back(
    tx: &PgTransaction,
    day: &PartitionDay,
    table: &PartitionedTable,
    retained: &RetainedRows,
) -> Result<()> {
    let numbers = retained.numbers_in(table);
    if numbers.is_empty() {
        return Ok(());
    }
    let (parent, key) = (table.as_str(), table.key());
    let partition = day.partition(table);
    let sql = format!("INSERT INTO posthaste.{parent} SELECT * FROM {partition} WHERE {key} = ANY ($1)");
    tx.execute(&sql, bind![*numbers]).await?;
    Ok(())
}

/// Numbers of the rows that must outlive their day.
#[derive(Default)]
struct RetainedRows {
    events: Vec<i64>,
    /// Deliveries that were delivered or cancelled within the retention.
    finished: Vec<i64>,
    /// Deliveries whose attempts are retained.
    deliveries: Vec<i64>,
    rows: usize,
}

impl RetainedRows {
    async fn find(tx: &PgTransaction, day: &PartitionDay, finished_before: Timestamp) -> Result<Self> {
        let slack = number_at(SLACK_MS + millis_of_epoch());
        let limit = RETAINED_MAX as i64 + 1;
        let since = millis(finished_before);
        let sql = include_str!("sql/rows_to_keep.sql");
        let mut retained = Self::default();
        for row in tx.query(sql, bind![day.from, day.to, slack, since, limit]).await? {
            let no: i64 = row.get("no");
            retained.rows += 1;
            match (row.get::<_, bool>("is_finished"), row.get::<_, bool>("is_delivery")) {
                (_, false) => retained.events.push(no),
                (is_finished, true) => {
                    retained.deliveries.push(no);
                    if is_finished {
                        retained.finished.push(no);
                    }
                }
            }
        }
        Ok(retained)
    }

    fn numbers_in(&self, table: &PartitionedTable) -> &Vec<i64> {
        match table {
            PartitionedTable::Events => &self.events,
            PartitionedTable::Finished => &self.finished,
            PartitionedTable::Attempts => &self.deliveries,
        }
    }
}

/// Returns the time at which numbers begin, in milliseconds.
fn millis_of_epoch() -> i64 {
    super::snowflake::ms_of(0)
}

/// Returns the number of rows of a table: counted if it is small, else as the
/// server last estimated it.
async fn count(tx: &PgTransaction, table: &str) -> Result<usize> {
    let sql = format!(
        "SELECT CASE WHEN pg_relation_size('{table}') < 67108864 THEN (SELECT count(*) FROM {table})
                     ELSE (SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = '{table}'::regclass) END"
    );
    let counted = tx.query_opt(&sql, &[]).await?;
    Ok(counted.map_or(0, |row| row.get::<_, i64>(0).max(0) as usize))
}

async fn run_sql(tx: &PgTransaction, sql: &str) -> Result<()> {
    with_timeout(tx.client().batch_execute(sql)).await
}

/// A table that is partitioned by day.
#[derive(Clone, Copy, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
enum PartitionedTable {
    Events,
    Finished,
    Attempts,
}

impl PartitionedTable {
    fn named(name: &str) -> Self {
        let table = Self::ALL.iter().find(|table| table.as_str() == name);
        *table.expect("only these are asked for")
    }

    /// Returns the column that holds the number by which a row belongs to a day.
    fn key(self) -> &'static str {
        match self {
            Self::Events | Self::Finished => "no",
            Self::Attempts => "delivery",
        }
    }
}

/// A day, and the range of numbers given on it.
struct PartitionDay {
    name: String,
    from: i64,
    to: i64,
}

impl PartitionDay {
    fn partition(&self, table: &PartitionedTable) -> String {
        format!("posthaste.{}_{}", table.as_str(), self.name)
    }

    /// Fills in a statement. Table names cannot be parameters; all values here
    /// are numbers and names of our own.
    fn fill(&self, sql: &str, table: &PartitionedTable) -> String {
        sql.replace(":parent", table.as_str())
            .replace(":day", &self.name)
            .replace(":key", table.key())
            .replace(":from", &self.from.to_string())
            .replace(":to", &self.to.to_string())
    }
}
