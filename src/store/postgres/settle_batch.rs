//! Writes many settlements with one statement each: what was delivered, what
//! is tried again, and when to check the expiry of others.

use std::sync::LazyLock;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::stored_function::{LOOKUPS, NamedSql, StoredFunction};
use super::transaction::{PgTransaction, bound};
use crate::model::attempt::Attempt;
use crate::model::delivery::Progress;
use crate::store::Result;
use crate::store::codes::millis;
use crate::store::progress_columns::ProgressColumns;
use crate::store::row::{Batch, PostgresColumns, batch, row};

/// Locks this node's own row: `sql/hold_node.sql`.
pub static HOLD_NODE: LazyLock<StoredFunction> = LazyLock::new(|| {
    let sql = NamedSql::new(include_str!("sql/hold_node.sql")).parameter("node", Type::INT8);
    StoredFunction::query::<i64>("hold_node", LOOKUPS, sql)
});

/// Locks the lanes of deliveries: `sql/lock_lanes.sql`.
pub static LOCK_LANES: LazyLock<StoredFunction> = LazyLock::new(|| {
    let sql = NamedSql::new(include_str!("sql/lock_lanes.sql")).parameter("deliveries", Type::INT8_ARRAY);
    StoredFunction::query::<i64>("lock_lanes", LOOKUPS, sql)
});

/// Settles deliveries that were delivered: `sql/settle_delivered.sql`.
pub static SETTLE_DELIVERED: LazyLock<StoredFunction> = LazyLock::new(|| {
    let sql = NamedSql::new(include_str!("sql/settle_delivered.sql")).parameter("node", Type::INT8);
    let sql = sql.batch::<SettleBatch>("settled").replace("columns", EndedRow::COLUMNS);
    StoredFunction::query::<EndedRow>("settle_delivered", LOOKUPS, sql)
});

/// Settles deliveries that wait for a retry: `sql/settle_retry.sql`.
pub static SETTLE_RETRY: LazyLock<StoredFunction> = LazyLock::new(|| {
    let sql = NamedSql::new(include_str!("sql/settle_retry.sql")).parameter("node", Type::INT8);
    let sql = sql.batch::<SettleBatch>("settled").batch::<RetryBatch>("retried");
    StoredFunction::query::<WaitingRow>("settle_retry", LOOKUPS, sql.replace("columns", WaitingRow::COLUMNS))
});

static RECHECK_EXPIRY: LazyLock<String> = LazyLock::new(|| {
    let sql = NamedSql::new(include_str!("sql/recheck_expiry.sql")).parameter("node", Type::INT8);
    sql.batch::<RecheckBatch>("rechecked").text()
});

row! {
    /// A delivery that left the queue, and the next of its lane.
    pub postgres struct EndedRow {
        /// Number of the delivery.
        no: i64 = "n.no",
        /// Number of its endpoint.
        endpoint: i64 = "n.endpoint",
        /// Lane of the delivery, if it has one.
        lane: Option<String> = "n.lane",
        /// Number of the next member of the lane, if the delivery was its head.
        next: Option<i64> = "n.next",
        /// Whether the next member is dead.
        is_next_dead: Option<bool> = "n.is_dead",
        /// Number of the next member's event.
        next_event: Option<i64> = "n.event",
    }
}

row! {
    /// A delivery that waits again.
    pub postgres struct WaitingRow {
        /// Number of the delivery.
        no: i64 = "k.no",
        /// Number of its endpoint.
        endpoint: i64 = "k.endpoint",
    }
}

batch! {
    /// Attempts and the states they led to, as columns.
    pub struct SettleBatch of new SettleRow {
        /// Number of the delivery.
        no: i64 = "no",
        /// Epoch of the lease under which it is settled.
        epoch: i64 = "epoch",
        /// Time at which its budget began.
        begun_at: i64 = "begun_at",
        /// Time at which it finished, or is due again.
        at: i64 = "at",
        /// The attempt, as JSON.
        record: String = "record",
        /// Attempts made in its whole life.
        attempts: i32 = "attempts",
        /// Attempts made before its budget began.
        attempts_before: i32 = "attempts_before",
        /// Time from which its age counts.
        age_from: Option<i64> = "age_from",
        /// Time that its endpoint was held before that.
        held_before: i64 = "held_before",
        /// Answers of the short budget for 404.
        not_found: i32 = "not_found",
        /// Failures of the short budget for unknown names.
        no_such_name: i32 = "no_such_name",
        /// Failures of the short budget for forbidden targets.
        forbidden_target: i32 = "forbidden_target",
        /// Start of the attempt.
        started_at: i64 = "started_at",
    }
}

impl SettleRow {
    /// Returns the row of a delivery with this progress after an attempt.
    pub fn of(no: i64, epoch: i64, at: i64, attempt: &Attempt, progress: &ProgressColumns) -> Self {
        Self {
            no,
            epoch,
            begun_at: progress.begun_at,
            at,
            record: serde_json::to_string(attempt).expect("an attempt is plain data"),
            attempts: progress.attempts,
            attempts_before: progress.attempts_before,
            age_from: progress.age_from,
            held_before: progress.held_before,
            not_found: progress.not_found,
            no_such_name: progress.no_such_name,
            forbidden_target: progress.forbidden_target,
            started_at: millis(attempt.started_at),
        }
    }
}

batch! {
    /// Columns that only retries write.
    pub struct RetryBatch of new RetryRow {
        /// The last delay drawn, in microseconds.
        last_delay: Option<i64> = "last_delay",
        /// The age limit of the last verdict, in milliseconds.
        max_age: Option<i64> = "max_age",
        /// Time at which its expiry is checked.
        expiry_check_at: Option<i64> = "expiry_check_at",
    }
}

batch! {
    /// Deliveries whose expiry is checked again later, as columns.
    pub struct RecheckBatch of new RecheckRow {
        /// Number of the delivery.
        no: i64 = "no",
        /// Epoch of the lease under which it is written.
        epoch: i64 = "epoch",
        /// Time at which its budget began.
        begun_at: i64 = "begun_at",
        /// Attempts made in its whole life.
        attempts: i32 = "attempts",
        /// Time at which its expiry is checked.
        expiry_check_at: i64 = "expiry_check_at",
    }
}

impl RecheckRow {
    /// Returns the row of a delivery with this progress.
    pub fn of(no: i64, epoch: i64, progress: &Progress, expiry_check_at: i64) -> Self {
        let ProgressColumns { begun_at, attempts, .. } = ProgressColumns::from(progress);
        Self { no, epoch, begun_at, attempts, expiry_check_at }
    }
}

/// Writes settlements that ended their deliveries. Returns those that left the
/// queue.
pub async fn write_delivered(tx: &PgTransaction, node: i64, rows: &SettleBatch) -> Result<Vec<EndedRow>> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let parameters = [vec![bound(&node)], rows.parameters()].concat();
    Ok(read_all(&tx.query(SETTLE_DELIVERED.call(), &parameters).await?))
}

/// Writes settlements after which deliveries wait again. Returns those that do.
pub async fn write_retried(
    tx: &PgTransaction,
    node: i64,
    rows: &SettleBatch,
    retries: &RetryBatch,
) -> Result<Vec<WaitingRow>> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let parameters = [vec![bound(&node)], rows.parameters(), retries.parameters()].concat();
    Ok(read_all(&tx.query(SETTLE_RETRY.call(), &parameters).await?))
}

/// Writes the new times of expiry checks. Returns the numbers of the deliveries
/// that were neither tried nor changed meanwhile.
pub async fn write_rechecks(tx: &PgTransaction, node: i64, rows: &RecheckBatch) -> Result<Vec<i64>> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let parameters = [vec![bound(&node)], rows.parameters()].concat();
    Ok(read_all(&tx.query(&RECHECK_EXPIRY, &parameters).await?))
}

fn read_all<T: PostgresColumns>(rows: &[Row]) -> Vec<T> {
    rows.iter().map(T::read).collect()
}
