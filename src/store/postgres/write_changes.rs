//! Writes what people and jobs change about deliveries, as it was planned: of one
//! delivery, or of many at once.

use jiff::Timestamp;

use super::locked_delivery::{DeliveryTable, LockedDelivery, SHARED_COLUMNS};
use super::replay::replay;
use super::rows::{cause_code, millis, state_code};
use super::transaction::bind;
use super::unit_of_work::UnitOfWork;
use crate::model::delivery::DeliveryState;
use crate::model::id::EndpointId;
use crate::store::Result;
use crate::store::plan::change::{ChangePlan, RowChange};

/// A change of a delivery whose row is locked.
pub struct PlannedChange {
    /// Plan of the change.
    pub plan: ChangePlan,
    /// Endpoint of the delivery.
    pub endpoint: EndpointId,
    /// The row before the change.
    pub delivery: LockedDelivery,
}

/// Writes the rows of all changes. They are of one kind, so the others find nothing to
/// do.
pub async fn write(work: &mut UnitOfWork<'_>, planned: &[PlannedChange], now: Timestamp) -> Result<()> {
    for PlannedChange { plan, delivery, .. } in planned {
        if plan.waiting != 0 {
            work.count_waiting(delivery.endpoint, delivery.shard, plan.waiting);
        }
        if let RowChange::RetryNow { due_at } = &plan.row {
            work.becomes_due(delivery.endpoint, millis(*due_at));
        }
    }
    retry(work, planned).await?;
    let replayed = planned.iter().filter_map(|one| match &one.plan.row {
        RowChange::Replay(replayed) => Some((&one.delivery, replayed)),
        RowChange::RetryNow { .. } | RowChange::Cancel { .. } => None,
    });
    replay(work, &replayed.collect::<Vec<_>>()).await?;
    cancel(work, planned, now).await
}

async fn retry(work: &UnitOfWork<'_>, planned: &[PlannedChange]) -> Result<()> {
    let due = planned.iter().filter_map(|one| match one.plan.row {
        RowChange::RetryNow { due_at } => Some((one.delivery.no, millis(due_at))),
        RowChange::Replay(_) | RowChange::Cancel { .. } => None,
    });
    let (numbers, due): (Vec<i64>, Vec<i64>) = due.unzip();
    if numbers.is_empty() {
        return Ok(());
    }
    let sql = "UPDATE posthaste.queue q SET due_at = k.due_at, urgent = true
               FROM unnest($1, $2) AS k (no, due_at) WHERE q.no = k.no";
    work.tx.execute(sql, bind![numbers, due]).await.map(|_| ())
}

/// Moves deliveries to the cancelled ones, each with the last attempt it made.
async fn cancel(work: &UnitOfWork<'_>, planned: &[PlannedChange], now: Timestamp) -> Result<()> {
    let (mut numbers, mut causes, mut attempts) = (Vec::new(), Vec::new(), Vec::new());
    let mut table = DeliveryTable::Dead;
    for one in planned {
        let RowChange::Cancel { cause } = one.plan.row else { continue };
        table = one.delivery.table;
        numbers.push(one.delivery.no);
        causes.push(cause.map(|cause| cause_code(cause) as i16));
        attempts.push(one.delivery.row.attempts as i32);
    }
    if numbers.is_empty() {
        return Ok(());
    }
    // What waits has its last attempt among the others.
    let (last, taken) = match table {
        DeliveryTable::Queue => (
            "t.record",
            "DELETE FROM posthaste.attempts a USING k WHERE a.delivery = k.no AND a.number = k.number
                          RETURNING a.delivery, a.record",
        ),
        DeliveryTable::Dead | DeliveryTable::Finished => {
            ("g.last_attempt", "SELECT no AS delivery, NULL::text AS record FROM k WHERE false")
        }
    };
    let own = if table == DeliveryTable::Queue { "NULL::text AS last_attempt" } else { "last_attempt" };
    let shown = SHARED_COLUMNS.split(',').map(|column| match column.trim() {
        // A finished delivery never holds up its lane.
        "passed" => "true".to_owned(),
        column => format!("g.{column}"),
    });
    let sql = format!(
        "WITH k AS (SELECT * FROM unnest($1, $2, $3) AS k (no, cause, number)),
              taken AS ({taken}),
              removed AS (DELETE FROM {} WHERE no = ANY ($1) RETURNING {SHARED_COLUMNS}, due_at, {own})
         INSERT INTO posthaste.finished ({SHARED_COLUMNS}, due_at, state, cause, finished_at, last_attempt)
         SELECT {}, g.due_at, $4, k.cause, $5, {last}
         FROM removed g JOIN k ON k.no = g.no LEFT JOIN taken t ON t.delivery = g.no",
        table.name(),
        shown.collect::<Vec<_>>().join(", ")
    );
    let state = state_code(DeliveryState::Cancelled) as i16;
    work.tx.execute(&sql, bind![numbers, causes, attempts, state, millis(now)]).await.map(|_| ())
}
