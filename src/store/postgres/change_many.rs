//! Makes the same change of many deliveries of one endpoint, as a job does it.
//!
//! What the change means for each is planned as in [`super::change`]; rows are
//! read and written in sets. Only a delivery that its lane moves past is changed
//! by itself, because the next of its lane may be in the same set.

use std::collections::HashMap;

use jiff::Timestamp;

use super::change;
use super::locked_delivery::{DeliveryTable, LockedDelivery, SHARED_COLUMNS};
use super::rows::{cause_code, delivery_no, millis, state_code};
use super::transaction::bind;
use super::unit_of_work::UnitOfWork;
use crate::model::audit::Initiator;
use crate::model::delivery::DeliveryState;
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use crate::store::plan::change::{ChangeCondition, ChangePlan, ChangedRow, RowChange, plan};
use crate::store::plan::lane::{LaneHead, LaneStep};
use crate::store::{DeliveryChange, DeliveryChanged, Error, MissingResource, Result};

/// The outcome of each delivery, in the order in which they were given.
pub type ManyChanged = Vec<(DeliveryId, Result<DeliveryChanged>)>;

/// Makes the change where a delivery and the condition allow it. The lanes of the
/// deliveries are locked already. A refusal has written nothing.
pub async fn change_many(
    work: &mut UnitOfWork<'_>,
    tenant: &TenantId,
    ids: &[DeliveryId],
    (change, condition): (DeliveryChange, ChangeCondition),
    now: Timestamp,
) -> Result<ManyChanged> {
    let (Some(state), Some(tenant_no)) = (condition.state, work.shared.index().tenant_no(tenant)) else {
        return Ok(ids.iter().map(|id| (*id, Err(Error::NotFound(MissingResource::Delivery)))).collect());
    };
    let numbers: Vec<i64> = ids.iter().map(|id| delivery_no(*id)).collect();
    let mut found = LockedDelivery::find_all(work.tx, DeliveryTable::of(state), &numbers).await?;
    let read = ReadSet::read(work, found.values().filter_map(|found| found.as_ref().ok()), change).await?;
    let (mut planned, mut outcomes) = (Vec::new(), Vec::with_capacity(ids.len()));
    for id in ids {
        let row = found.remove(&delivery_no(*id));
        let row = row.unwrap_or_else(|| Err(Error::WrongState(format!("delivery {id} was changed meanwhile"))));
        let decided = row.and_then(|delivery| {
            let is_it = delivery.id() == *id && delivery.tenant == tenant_no;
            let read = read.of(&delivery).filter(|_| is_it).ok_or(Error::NotFound(MissingResource::Delivery))?;
            condition.check(*id, &delivery.row, delivery.lane.is_some())?;
            Ok((plan(*id, &read.1, change, now)?, read.0, delivery))
        });
        match decided {
            Err(refused) => outcomes.push((*id, Err(refused))),
            Ok((plan, ..)) if matches!(plan.lane, LaneStep::Pass | LaneStep::PassDead | LaneStep::Dead) => {
                let by = &Initiator::Gateway;
                let changed = change::make(work, by, tenant, *id, (change, condition), now).await;
                outcomes.push((*id, changed));
            }
            Ok((plan, endpoint, delivery)) => planned.push(PlannedChange { plan, endpoint, delivery }),
        }
    }
    write(work, &planned, now).await?;
    for PlannedChange { plan, endpoint, delivery } in planned {
        let effects = match plan.lane {
            LaneStep::Revive => LaneStep::Revive.plan(read.is_head(&delivery), false),
            _ => Default::default(),
        };
        let freed = work.report_lane(effects.effects(delivery.no, LaneHead::Unchanged), now).await?;
        let due_at = match plan.row {
            RowChange::RetryNow { .. } | RowChange::Replay { .. } => Some(now),
            RowChange::Cancel { .. } => None,
        };
        let operational_events = std::mem::take(&mut work.operational_events);
        outcomes.push((delivery.id(), Ok(DeliveryChanged { endpoint, due_at, freed, operational_events })));
    }
    outcomes.sort_by_key(|(id, _)| ids.iter().position(|given| given == id));
    Ok(outcomes)
}

/// A change that is written with others.
struct PlannedChange {
    plan: ChangePlan,
    endpoint: EndpointId,
    delivery: LockedDelivery,
}

/// What the changes depend on beside the rows of the deliveries.
struct ReadSet {
    /// Endpoints by number, and whether each was deleted.
    endpoints: HashMap<i64, (EndpointId, bool)>,
    /// Events without data, by number.
    expunged: HashMap<i64, EventId>,
    /// Heads of the lanes, by endpoint and key.
    heads: HashMap<(i64, String), i64>,
}

impl ReadSet {
    /// Reads it. The events of a replay stay as they are until the transaction ends.
    async fn read<'a>(
        work: &UnitOfWork<'_>,
        deliveries: impl Iterator<Item = &'a LockedDelivery> + Clone,
        change: DeliveryChange,
    ) -> Result<Self> {
        let numbers: Vec<i64> = deliveries.clone().map(|delivery| delivery.endpoint).collect();
        let sql = "SELECT no, id, deleted_at IS NOT NULL FROM posthaste.endpoints WHERE no = ANY ($1)";
        let rows = work.tx.query(sql, bind![numbers]).await?;
        let endpoints = rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect();
        let mut read = Self { endpoints, expunged: HashMap::new(), heads: HashMap::new() };
        if change != DeliveryChange::Replay {
            return Ok(read);
        }
        let events: Vec<i64> = deliveries.clone().map(|delivery| delivery.event).collect();
        let sql =
            "SELECT no, id, octet_length(data) = 0 FROM posthaste.events WHERE no = ANY ($1) ORDER BY no FOR SHARE";
        for row in work.tx.query(sql, bind![events]).await?.iter().filter(|row| row.get(2)) {
            read.expunged.insert(row.get(0), EventId::from_stored(row.get(1)));
        }
        let members = deliveries.filter_map(LockedDelivery::member);
        let (of, lanes): (Vec<i64>, Vec<String>) =
            members.map(|member| (member.endpoint, member.lane.to_owned())).unzip();
        if !lanes.is_empty() {
            let sql = "SELECT l.endpoint, l.lane, l.head FROM unnest($1, $2) AS k (endpoint, lane)
                       JOIN posthaste.lanes l ON l.endpoint = k.endpoint AND l.lane = k.lane
                       WHERE l.head IS NOT NULL";
            let rows = work.tx.query(sql, bind![of, lanes]).await?;
            read.heads = rows.iter().map(|row| ((row.get(0), row.get(1)), row.get(2))).collect();
        }
        Ok(read)
    }

    /// Returns the delivery's endpoint, and what its plan depends on.
    fn of(&self, delivery: &LockedDelivery) -> Option<(EndpointId, ChangedRow)> {
        let (endpoint, is_endpoint_deleted) = *self.endpoints.get(&delivery.endpoint)?;
        let row = ChangedRow {
            delivery: delivery.row,
            expires_at: delivery.expires_at,
            is_endpoint_deleted,
            expunged: self.expunged.get(&delivery.event).cloned(),
        };
        Some((endpoint, row))
    }

    /// Whether its lane waits for this delivery. Nobody waits in the lanes of a
    /// deleted endpoint.
    fn is_head(&self, delivery: &LockedDelivery) -> bool {
        let is_deleted = self.endpoints.get(&delivery.endpoint).is_some_and(|(_, is_deleted)| *is_deleted);
        let lane = delivery.lane.clone().unwrap_or_default();
        !is_deleted && self.heads.get(&(delivery.endpoint, lane)) == Some(&delivery.no)
    }
}

/// Writes the rows of all changes. They are of one kind, so the others find nothing to
/// do.
async fn write(work: &mut UnitOfWork<'_>, planned: &[PlannedChange], now: Timestamp) -> Result<()> {
    for PlannedChange { plan, delivery, .. } in planned {
        if plan.waiting != 0 {
            work.count_waiting(delivery.endpoint, delivery.shard, plan.waiting);
        }
        match &plan.row {
            RowChange::RetryNow { due_at } | RowChange::Replay { due_at, .. } => {
                work.becomes_due(delivery.endpoint, millis(*due_at));
            }
            RowChange::Cancel { .. } => {}
        }
    }
    retry(work, planned).await?;
    replay(work, planned).await?;
    cancel(work, planned, now).await
}

async fn retry(work: &UnitOfWork<'_>, planned: &[PlannedChange]) -> Result<()> {
    let due = planned.iter().filter_map(|one| match one.plan.row {
        RowChange::RetryNow { due_at } => Some((one.delivery.no, millis(due_at))),
        RowChange::Replay { .. } | RowChange::Cancel { .. } => None,
    });
    let (numbers, due): (Vec<i64>, Vec<i64>) = due.unzip();
    if numbers.is_empty() {
        return Ok(());
    }
    let sql = "UPDATE posthaste.queue q SET due_at = k.due_at, urgent = true
               FROM unnest($1, $2) AS k (no, due_at) WHERE q.no = k.no";
    work.tx.execute(sql, bind![numbers, due]).await.map(|_| ())
}

/// Moves finished deliveries into the queue, with fresh budgets, and their last
/// attempts to the other attempts.
async fn replay(work: &UnitOfWork<'_>, planned: &[PlannedChange]) -> Result<()> {
    let (mut numbers, mut due, mut expiry, mut checks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut tried, mut attempts, mut records) = (Vec::new(), Vec::new(), Vec::new());
    let mut table = DeliveryTable::Dead;
    for one in planned {
        let RowChange::Replay { due_at, expires_at, expiry_check_at } = &one.plan.row else { continue };
        table = one.delivery.table;
        numbers.push(one.delivery.no);
        due.push(millis(*due_at));
        expiry.push(expires_at.map(millis));
        checks.push(expiry_check_at.map(millis));
        if let Some((number, record)) = one.delivery.last_attempt()? {
            tried.push(one.delivery.no);
            attempts.push(number as i32);
            records.push(record);
        }
    }
    if numbers.is_empty() {
        return Ok(());
    }
    let sql = "INSERT INTO posthaste.attempts (delivery, number, record) SELECT * FROM unnest($1, $2, $3)
               ON CONFLICT (delivery, number) DO UPDATE SET record = excluded.record";
    work.tx.execute(sql, bind![tried, attempts, records]).await?;
    let sql = format!(
        "WITH removed AS (DELETE FROM {} WHERE no = ANY ($1) RETURNING *)
         INSERT INTO posthaste.queue (no, tenant, endpoint, shard, event, created_at, format, lane, seq, passed,
             expires_at, replayed_at, attempts, attempts_before, first_attempt_at, due_at, behind, expiry_check_at, origin)
         SELECT g.no, g.tenant, g.endpoint, g.shard, g.event, g.created_at, g.format, g.lane, g.seq, g.passed,
             k.expires_at, k.due_at, g.attempts, g.attempts, g.first_attempt_at, k.due_at,
             g.lane IS NOT NULL AND NOT g.passed AND g.no IS DISTINCT FROM (
                 SELECT head FROM posthaste.lanes l WHERE l.endpoint = g.endpoint AND l.lane = g.lane),
             k.expiry_check_at, $5
         FROM removed g JOIN unnest($1, $2, $3, $4) AS k (no, due_at, expires_at, expiry_check_at) ON k.no = g.no",
        table.name()
    );
    let node = work.shared.shard_leases.node();
    work.tx.execute(&sql, bind![numbers, due, expiry, checks, node]).await.map(|_| ())
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
