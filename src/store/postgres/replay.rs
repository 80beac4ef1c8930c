//! Moves finished deliveries back into the queue, as a replay plans it.

use super::locked_delivery::{DeliveryTable, LockedDelivery};
use super::rows::millis;
use super::stored_function::NamedSql;
use super::transaction::{PgTransaction, bind, bound};
use super::unit_of_work::UnitOfWork;
use crate::store::Result;
use crate::store::plan::change::ReplayedRow;
use crate::store::progress_columns::ProgressColumns;
use crate::store::row::{Batch, batch};
use tokio_postgres::types::Type;

batch! {
    /// What replays write, as columns of the queue.
    struct ReplayBatch of new ReplayRow {
        no: i64 = "no",
        due_at: i64 = "due_at",
        expires_at: Option<i64> = "expires_at",
        expiry_check_at: Option<i64> = "expiry_check_at",
        replayed_at: i64 = "replayed_at",
        attempts: i32 = "attempts",
        attempts_before: i32 = "attempts_before",
        age_from: Option<i64> = "age_from",
        held_before: i64 = "held_before",
        not_found: i32 = "not_found",
        no_such_name: i32 = "no_such_name",
        forbidden_target: i32 = "forbidden_target",
        last_delay: Option<i64> = "last_delay",
        max_age: Option<i64> = "max_age",
        internal_errors: i32 = "internal_errors",
    }
}

impl ReplayRow {
    fn of(no: i64, row: &ReplayedRow) -> Self {
        let budget = ProgressColumns::from(&row.budget);
        Self {
            no,
            due_at: millis(row.due_at),
            expires_at: row.expires_at.map(millis),
            expiry_check_at: row.expiry_check_at.map(millis),
            replayed_at: budget.begun_at,
            attempts: budget.attempts,
            attempts_before: budget.attempts_before,
            age_from: budget.age_from,
            held_before: budget.held_before,
            not_found: budget.not_found,
            no_such_name: budget.no_such_name,
            forbidden_target: budget.forbidden_target,
            last_delay: budget.last_delay,
            max_age: budget.max_age,
            internal_errors: row.internal_errors as i32,
        }
    }
}

/// The heads of the lanes are read in the statement: the lanes are locked.
const REPLAY: &str = "WITH removed AS (DELETE FROM {table} WHERE no = ANY ({replayed.no}) RETURNING *)
    INSERT INTO posthaste.queue ({replayed.columns}, tenant, endpoint, shard, event, created_at, format, lane, seq,
        passed, first_attempt_at, behind, accepting_node)
    SELECT k.*, g.tenant, g.endpoint, g.shard, g.event, g.created_at, g.format, g.lane, g.seq,
        g.passed, g.first_attempt_at,
        g.lane IS NOT NULL AND NOT g.passed AND g.no IS DISTINCT FROM (
            SELECT head FROM posthaste.lanes l WHERE l.endpoint = g.endpoint AND l.lane = g.lane),
        {node}
    FROM removed g JOIN unnest({replayed}) AS k ({replayed.columns}) ON k.no = g.no";

/// Puts finished deliveries of one table back into the queue, and their last attempts
/// to the other attempts.
pub async fn replay(work: &UnitOfWork<'_>, deliveries: &[(&LockedDelivery, &ReplayedRow)]) -> Result<()> {
    let Some((first, _)) = deliveries.first() else { return Ok(()) };
    archive_last_attempts(work.tx, deliveries.iter().map(|(delivery, _)| *delivery)).await?;
    let rows: ReplayBatch = deliveries.iter().map(|(delivery, row)| ReplayRow::of(delivery.no, row)).collect();
    write(work, first.table, &rows).await?;
    for (delivery, row) in deliveries {
        work.becomes_due(delivery.endpoint, millis(row.due_at));
    }
    Ok(())
}

async fn write(work: &UnitOfWork<'_>, table: DeliveryTable, rows: &ReplayBatch) -> Result<()> {
    let sql = NamedSql::new(REPLAY).replace("table", table.name()).parameter("node", Type::INT8);
    let node = work.shared.shard_leases.node();
    let parameters = [vec![bound(&node)], rows.parameters()].concat();
    work.tx.execute(&sql.batch::<ReplayBatch>("replayed").text(), &parameters).await.map(|_| ())
}

async fn archive_last_attempts(tx: &PgTransaction, deliveries: impl Iterator<Item = &LockedDelivery>) -> Result<()> {
    let (mut tried, mut numbers, mut records) = (Vec::new(), Vec::new(), Vec::new());
    for delivery in deliveries {
        if let Some((number, record)) = delivery.last_attempt()? {
            tried.push(delivery.no);
            numbers.push(number as i32);
            records.push(record);
        }
    }
    if tried.is_empty() {
        return Ok(());
    }
    let sql = "INSERT INTO posthaste.attempts (delivery, number, record) SELECT * FROM unnest($1, $2, $3)
               ON CONFLICT (delivery, number) DO UPDATE SET record = excluded.record";
    tx.execute(sql, bind![tried, numbers, records]).await.map(|_| ())
}
