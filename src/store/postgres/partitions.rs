//! Days of history: made ahead, and dropped whole.
//!
//! Events, what is finished, and attempts have a partition for each day of
//! acceptance, by the database's clock. What has no day of its own, and what
//! outlives its day, stands in the rest.

use std::sync::{Arc, Weak};

use anyhow::Context;
use tracing::{debug, info, warn};

use super::PostgresState;
use super::history::walk::number_at;
use super::read_query::read_rows;
use super::rows::millis;
use super::stored_bytes::{self, day_of};
use super::transaction::{PgTransaction, bind, with_timeout};
use crate::store::{ForgottenCounts, Result, RetentionHorizon};

/// How many days are made ahead: a cluster that makes none for so long still
/// has room for today.
const DAYS_AHEAD: i32 = 3;
const DAY_MS: i64 = 86_400_000;

/// Whoever makes or drops a day holds this.
const LOCK: &str = "SELECT pg_advisory_xact_lock(7306086967354368001)";

/// A day with more rows than this in the rest stays there: moving them would
/// take too long. They are forgotten one by one.
const MOVED_MAX: i64 = 50_000;

/// A day is dropped once everything of it that is still kept finished this
/// much later than it was accepted. An index knows those.
const LATE_MS: i64 = 3_600_000;

/// How far after its event a delivery may be numbered.
const SLACK_MS: i64 = 60_000;

/// So many rows are put back into the rest when their day is dropped. More
/// get a smaller partition instead, and a day with more than the latter is
/// left as it is until less of it is kept.
const PUT_BACK_MAX: usize = 5_000;
const KEPT_MAX: usize = 200_000;

/// Makes today's partitions and those of the next days, where they are
/// missing. Many nodes may do so at once.
pub async fn ensure(shared: &Arc<PostgresState>) -> anyhow::Result<()> {
    let missing = read_rows(shared, include_str!("sql/missing_days.sql"), bind![DAYS_AHEAD]).await;
    if missing.context("cannot read which days have partitions")?.is_empty() {
        return Ok(());
    }
    let made = make(shared).await.context("cannot make the partitions of the next days")?;
    if made > 0 {
        let shared = Arc::downgrade(shared);
        tokio::spawn(async move { analyze(&shared).await });
    }
    Ok(())
}

/// Makes what is missing; returns how many.
async fn make(shared: &PostgresState) -> Result<usize> {
    let tx = shared.begin().await?;
    run(&tx, LOCK).await?;
    // Others may have been faster, or hold what is needed for long.
    run(&tx, "SET LOCAL lock_timeout = '1s'").await?;
    let mut made = 0;
    for row in tx.query(include_str!("sql/missing_days.sql"), bind![DAYS_AHEAD]).await? {
        let table = PartitionedTable::named(row.get(0));
        let day = PartitionDay {
            name: row.get(1),
            from: number_at(row.get(2)),
            to: number_at(row.get::<_, i64>(2) + DAY_MS),
        };
        let key = table.key;
        let sql = format!(
            "SELECT count(*) FROM (SELECT 1 FROM posthaste.{}_rest WHERE {key} >= $1 AND {key} < $2 LIMIT $3) r",
            table.parent
        );
        let standing = tx.query(&sql, bind![day.from, day.to, MOVED_MAX + 1]).await?;
        if standing.first().is_some_and(|row| row.get::<_, i64>(0) > MOVED_MAX) {
            debug!("{} of {} stay in the rest: there are too many to move", table.parent, day.name);
            continue;
        }
        run(&tx, &day.fill(include_str!("sql/add_day.sql"), &table)).await?;
        made += 1;
    }
    tx.commit().await?;
    Ok(made)
}

/// Tables divided into partitions are not analysed by the server on its own
/// account. Without it the plans are still the same; estimates are worse. It
/// may take a while, and nobody waits for it.
async fn analyze(shared: &Weak<PostgresState>) {
    for table in TABLES {
        let Some(shared) = shared.upgrade() else { return };
        let analyzed = async {
            let tx = shared.begin().await?;
            run(&tx, &format!("ANALYZE posthaste.{}", table.parent)).await?;
            tx.commit().await
        };
        if let Err(problem) = analyzed.await {
            debug!("{} could not be analysed: {problem}", table.parent);
        }
    }
}

/// Drops whole days that are past their retention. What must outlive them is
/// kept. What cannot be locked at once is left for the next time.
pub async fn drop_old(shared: &PostgresState, horizon: &RetentionHorizon) -> Result<ForgottenCounts> {
    let mut total = ForgottenCounts::default();
    let ended_before = millis(horizon.finished_before).saturating_sub(LATE_MS);
    for row in read_rows(shared, include_str!("sql/old_days.sql"), bind![ended_before]).await? {
        let from_ms: i64 = row.get(1);
        let day = PartitionDay { name: row.get(0), from: number_at(from_ms), to: number_at(from_ms + DAY_MS) };
        let tables: Vec<PartitionedTable> =
            row.get::<_, Vec<&str>>(2).into_iter().map(PartitionedTable::named).collect();
        match drop_day(shared, &day, &tables, horizon).await {
            Ok(Some(gone)) => {
                total.events += gone.events;
                total.deliveries += gone.deliveries;
            }
            Ok(None) => debug!("of {} so much is kept that the day stays", day.name),
            Err(problem) => {
                // Others wait behind a lock that this one waits for: not
                // another try before the next sweep.
                warn!("the day {} could not be dropped; the next sweep tries again: {problem}", day.name);
                break;
            }
        }
    }
    Ok(total)
}

/// Drops one day; nothing, if too much of it is kept.
async fn drop_day(
    shared: &PostgresState,
    day: &PartitionDay,
    tables: &[PartitionedTable],
    horizon: &RetentionHorizon,
) -> Result<Option<ForgottenCounts>> {
    let tx = shared.begin().await?;
    // Shorter than the server's deadlock_timeout: of two that wait for each
    // other, this one gives way.
    run(&tx, "SET LOCAL lock_timeout = '800ms'; SET LOCAL statement_timeout = '14s'").await?;
    run(&tx, LOCK).await?;
    let names: Vec<String> = tables.iter().map(|table| day.partition(table)).collect();
    // From here on nothing is added to the day, and nothing replayed out of it.
    run(&tx, &format!("LOCK TABLE {} IN EXCLUSIVE MODE", names.join(", "))).await?;
    let kept = RetainedRows::find(&tx, day, horizon).await?;
    let (mut events, mut finished) = (0, 0);
    for table in tables {
        match table.parent {
            "events" => events = count(&tx, &day.partition(table)).await?,
            "finished" => finished = count(&tx, &day.partition(table)).await?,
            _ => {}
        }
    }
    let is_much = kept.rows > PUT_BACK_MAX;
    if kept.rows > KEPT_MAX || (is_much && kept.events.len() * 2 > events) {
        tx.roll_back().await;
        return Ok(None);
    }
    if is_much {
        for table in tables {
            copy(&tx, day, table, &kept).await?;
        }
    }
    for table in tables {
        let partition = day.partition(table);
        run(&tx, &format!("ALTER TABLE posthaste.{} DETACH PARTITION {partition}", table.parent)).await?;
        if !is_much {
            put_back(&tx, day, table, &kept).await?;
        }
        run(&tx, &format!("DROP TABLE {partition}")).await?;
        if is_much {
            run(&tx, &day.fill(include_str!("sql/shrink_day.sql"), table)).await?;
        }
    }
    stored_bytes::set_day(&tx, day_of(day.from), &kept.events).await?;
    tx.commit().await?;
    let gone = ForgottenCounts {
        events: events.saturating_sub(kept.events.len()),
        deliveries: finished.saturating_sub(kept.finished.len()),
        next: None,
    };
    info!(
        "forgot the day {}: {} events and {} deliveries; {} events are kept",
        day.name,
        gone.events,
        gone.deliveries,
        kept.events.len()
    );
    Ok(Some(gone))
}

/// Copies what is kept into a table beside the day's, while others still read
/// that one.
async fn copy(tx: &PgTransaction, day: &PartitionDay, table: &PartitionedTable, kept: &RetainedRows) -> Result<()> {
    let beside = format!("posthaste.{}_kept_{}", table.parent, day.name);
    run(tx, &format!("CREATE TABLE {beside} (LIKE posthaste.{} INCLUDING ALL)", table.parent)).await?;
    let sql = format!("INSERT INTO {beside} SELECT * FROM {} WHERE {} = ANY ($1)", day.partition(table), table.key);
    tx.execute(&sql, bind![*kept.of(table)]).await?;
    Ok(())
}

/// Puts what is kept into the rest.
async fn put_back(tx: &PgTransaction, day: &PartitionDay, table: &PartitionedTable, kept: &RetainedRows) -> Result<()> {
    let numbers = kept.of(table);
    if numbers.is_empty() {
        return Ok(());
    }
    let (parent, key) = (table.parent, table.key);
    let partition = day.partition(table);
    let sql = format!("INSERT INTO posthaste.{parent} SELECT * FROM {partition} WHERE {key} = ANY ($1)");
    tx.execute(&sql, bind![*numbers]).await?;
    Ok(())
}

/// What must outlive its day.
#[derive(Default)]
struct RetainedRows {
    events: Vec<i64>,
    /// Delivered or cancelled lately.
    finished: Vec<i64>,
    /// All whose attempts are kept.
    deliveries: Vec<i64>,
    rows: usize,
}

impl RetainedRows {
    async fn find(tx: &PgTransaction, day: &PartitionDay, horizon: &RetentionHorizon) -> Result<Self> {
        let slack = number_at(SLACK_MS + millis_of_epoch());
        let limit = KEPT_MAX as i64 + 1;
        let since = millis(horizon.finished_before);
        let sql = include_str!("sql/kept_of_day.sql");
        let mut kept = Self::default();
        for row in tx.query(sql, bind![day.from, day.to, slack, since, limit]).await? {
            let no: i64 = row.get(0);
            kept.rows += 1;
            match (row.get::<_, bool>(1), row.get::<_, bool>(2)) {
                (_, false) => kept.events.push(no),
                (is_finished, true) => {
                    kept.deliveries.push(no);
                    if is_finished {
                        kept.finished.push(no);
                    }
                }
            }
        }
        Ok(kept)
    }

    fn of(&self, table: &PartitionedTable) -> &Vec<i64> {
        match table.parent {
            "events" => &self.events,
            "finished" => &self.finished,
            _ => &self.deliveries,
        }
    }
}

/// When numbers begin.
fn millis_of_epoch() -> i64 {
    super::snowflake::ms_of(0)
}

/// How many rows a table has: counted where that is quick, else as the server
/// last estimated it.
async fn count(tx: &PgTransaction, table: &str) -> Result<usize> {
    let sql = format!(
        "SELECT CASE WHEN pg_relation_size('{table}') < 67108864 THEN (SELECT count(*) FROM {table})
                     ELSE (SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = '{table}'::regclass) END"
    );
    let counted = tx.query_opt(&sql, &[]).await?;
    Ok(counted.map_or(0, |row| row.get::<_, i64>(0).max(0) as usize))
}

async fn run(tx: &PgTransaction, sql: &str) -> Result<()> {
    with_timeout(tx.client().batch_execute(sql)).await
}

/// A table that is divided into days.
#[derive(Clone, Copy)]
struct PartitionedTable {
    parent: &'static str,
    key: &'static str,
}

const TABLES: [PartitionedTable; 3] = [
    PartitionedTable { parent: "events", key: "no" },
    PartitionedTable { parent: "finished", key: "no" },
    PartitionedTable { parent: "attempts", key: "delivery" },
];

impl PartitionedTable {
    fn named(parent: &str) -> Self {
        TABLES.into_iter().find(|table| table.parent == parent).expect("only these are asked for")
    }
}

/// A day, and the numbers given on it.
struct PartitionDay {
    name: String,
    from: i64,
    to: i64,
}

impl PartitionDay {
    fn partition(&self, table: &PartitionedTable) -> String {
        format!("posthaste.{}_{}", table.parent, self.name)
    }

    /// Tables have no parameters; these are numbers and names of our own.
    fn fill(&self, sql: &str, table: &PartitionedTable) -> String {
        sql.replace(":parent", table.parent)
            .replace(":day", &self.name)
            .replace(":key", table.key)
            .replace(":from", &self.from.to_string())
            .replace(":to", &self.to.to_string())
    }
}
