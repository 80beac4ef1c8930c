//! What a person does to a delivery: retry now, cancel, replay, discard.
//!
//! What a change means is planned in [`crate::store::plan::change`]; this
//! reads the row and writes the plan.

use std::sync::Arc;

use jiff::Timestamp;

use super::PostgresState;
use super::access::record;
use super::lane::{plan_step, take_step};
use super::locked_delivery::LockedDelivery;
use super::rows::{at, cause_code, delivery_no, millis};
use super::transaction::bind;
use super::unit_of_work::{UnitOfWork, in_transaction};
use crate::model::audit::{AuditedAction, Initiator};
use crate::model::delivery::DeliveryState;
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use crate::store::plan::change::{ChangeCondition, ChangedRow, RowChange, plan};
use crate::store::plan::lane::{LaneEffects, LanePlan};
use crate::store::{DeliveryChange, DeliveryChanged, Error, MissingResource, Result};

/// Makes the change, or says why the delivery's state does not allow it.
pub async fn change(
    shared: &Arc<PostgresState>,
    by: &Initiator,
    tenant: &TenantId,
    id: DeliveryId,
    change: DeliveryChange,
    now: Timestamp,
) -> Result<DeliveryChanged> {
    in_transaction(shared, async |work| make(work, by, tenant, id, (change, ChangeCondition::default()), now).await)
        .await
}

/// Makes the change in an open transaction. A refusal has written nothing.
pub async fn make(
    work: &mut UnitOfWork<'_>,
    by: &Initiator,
    tenant: &TenantId,
    id: DeliveryId,
    (change, condition): (DeliveryChange, ChangeCondition),
    now: Timestamp,
) -> Result<DeliveryChanged> {
    let missing = || Error::NotFound(MissingResource::Delivery);
    let tenant_no = work.shared.index().tenant_no(tenant).ok_or_else(missing)?;
    let found = LockedDelivery::find(work.tx, delivery_no(id)).await?;
    let delivery = found.filter(|found| found.id() == id && found.tenant == tenant_no).ok_or_else(missing)?;
    condition.check(id, &delivery.row, delivery.lane.is_some())?;
    let (endpoint, row) = read(work, &delivery, change).await?.ok_or_else(missing)?;
    let plan = plan(id, &row, change, now)?;
    // Locks the lane of a dead letter before the row says that it waits: who
    // moves the lane in between would find it dead and wait behind it.
    let lane_plan = match delivery.member() {
        Some(member) => plan_step(work.tx, member, plan.lane).await?,
        None => LanePlan::default(),
    };
    write(work, &delivery, &plan.row, now).await?;
    if plan.waiting != 0 {
        work.count_waiting(delivery.endpoint, delivery.shard, plan.waiting);
    }
    let lane = match delivery.member() {
        Some(member) => take_step(work, member, lane_plan, now).await?,
        None => LaneEffects::default(),
    };
    let freed = work.report_lane(lane, now).await?;
    let due_at = match (&plan.row, lane.free) {
        (RowChange::RetryNow { .. } | RowChange::Replay { .. }, _) => Some(now),
        (RowChange::Cancel { .. }, Some(next)) => due_at(work, next).await?,
        (RowChange::Cancel { .. }, None) => None,
    };
    record(work.tx, by, tenant_no, &AuditedAction::new(change.action(), tenant, id)).await?;
    let operational_events = std::mem::take(&mut work.operational_events);
    Ok(DeliveryChanged { endpoint, due_at, freed, operational_events })
}

/// Reads what the change depends on beside the delivery's own row, and locks no
/// more than it depends on. The event of a replay stays as it is until the
/// transaction ends.
async fn read(
    work: &UnitOfWork<'_>,
    delivery: &LockedDelivery,
    change: DeliveryChange,
) -> Result<Option<(EndpointId, ChangedRow)>> {
    let sql = "SELECT id, deleted_at IS NOT NULL AS is_deleted FROM posthaste.endpoints WHERE no = $1";
    let Some(endpoint) = work.tx.query_opt(sql, bind![delivery.endpoint]).await? else { return Ok(None) };
    let event = if change == DeliveryChange::Replay {
        let sql = "SELECT id, octet_length(data) = 0 AS is_removed FROM posthaste.events
                   WHERE no = (SELECT event FROM posthaste.deliveries WHERE no = $1) FOR SHARE";
        work.tx.query_opt(sql, bind![delivery.no]).await?.filter(|row| row.get("is_removed"))
    } else {
        None
    };
    let row = ChangedRow {
        delivery: delivery.row,
        expires_at: delivery.expires_at,
        is_endpoint_deleted: endpoint.get("is_deleted"),
        expunged: event.map(|row| EventId::from_stored(row.get("id"))),
    };
    Ok(Some((EndpointId(endpoint.get("id")), row)))
}

async fn write(work: &mut UnitOfWork<'_>, delivery: &LockedDelivery, change: &RowChange, now: Timestamp) -> Result<()> {
    match change {
        RowChange::RetryNow { due_at } => {
            let sql = "UPDATE posthaste.queue SET due_at = $2, urgent = true WHERE no = $1";
            work.tx.execute(sql, bind![delivery.no, millis(*due_at)]).await?;
            work.becomes_due(delivery.endpoint, millis(*due_at));
            Ok(())
        }
        RowChange::Replay { due_at, expires_at, expiry_check_at } => {
            let node = work.shared.shard_leases.node();
            let expiry = (expires_at.map(millis), expiry_check_at.map(millis));
            delivery.replay(work.tx, millis(*due_at), expiry, node).await?;
            work.becomes_due(delivery.endpoint, millis(*due_at));
            Ok(())
        }
        RowChange::Cancel { cause } => {
            let cause = cause.map(|cause| cause_code(cause) as i16);
            delivery.end(work.tx, DeliveryState::Cancelled, cause, millis(now), None).await
        }
    }
}

async fn due_at(work: &UnitOfWork<'_>, no: i64) -> Result<Option<Timestamp>> {
    let sql = "SELECT due_at FROM posthaste.queue WHERE no = $1";
    Ok(work.tx.query_opt(sql, bind![no]).await?.map(|row| at(row.get("due_at"))))
}
