//! What a person does to a delivery: retry now, cancel, replay, discard.
//!
//! What a change means is planned in [`crate::store::plan::change`]; this
//! reads the row, and has the plan written.

use std::sync::Arc;

use jiff::Timestamp;

use super::PostgresState;
use super::access::record;
use super::lane::{plan_step, take_step};
use super::locked_delivery::LockedDelivery;
use super::rows::{at, delivery_no};
use super::transaction::bind;
use super::unit_of_work::{UnitOfWork, in_transaction};
use super::write_changes::{PlannedChange, write};
use crate::model::audit::{AuditedAction, Initiator};
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use crate::store::plan::change::{ChangeCondition, ChangedRow, NextDue, plan};
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
    let planned = PlannedChange { plan: plan(id, &row, change, now)?, endpoint, delivery };
    let (plan, member) = (&planned.plan, planned.delivery.member());
    // Locks the lane of a dead letter before the row says that it waits: who
    // moves the lane in between would find it dead and wait behind it.
    let lane_plan = match member {
        Some(member) => plan_step(work.tx, member, plan.lane).await?,
        None => LanePlan::default(),
    };
    write(work, std::slice::from_ref(&planned), now).await?;
    let lane = match member {
        Some(member) => take_step(work, member, lane_plan, now).await?,
        None => LaneEffects::default(),
    };
    let freed = work.report_lane(lane, now).await?;
    let due_at = match plan.next_due(lane.free, now) {
        NextDue::At(at) => Some(at),
        NextDue::Stored(no) => due_at(work, no).await?,
        NextDue::Nothing => None,
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

async fn due_at(work: &UnitOfWork<'_>, no: i64) -> Result<Option<Timestamp>> {
    let sql = "SELECT due_at FROM posthaste.queue WHERE no = $1";
    Ok(work.tx.query_opt(sql, bind![no]).await?.map(|row| at(row.get("due_at"))))
}
