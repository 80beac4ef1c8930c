//! What a person does to a delivery: retry now, cancel, replay, discard.
//!
//! What a change means is planned in [`crate::store::plan::change`]; this
//! reads the row and writes the plan.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::dead_letters;
use super::lane::{plan_step, take_step};
use super::operational_events::report_lane;
use super::rows::{at, cause_code, delivery_no, format_of, known, millis, state_code};
use super::writer::WriteTransaction;
use crate::model::audit::{AuditedAction, Initiator};
use crate::model::delivery::DeliveryState;
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use crate::store::delivery_columns::PlanColumns;
use crate::store::plan::change::{ChangeCondition, ChangedRow, RowChange, plan};
use crate::store::plan::lane::{LaneEffects, LaneMember};
use crate::store::row::{SqliteColumns, row};
use crate::store::{DeliveryChange, DeliveryChanged, Error, MissingResource, Result};

/// Makes the change, or says why the delivery's state or the condition does not allow it.
pub fn change(
    transaction: &mut WriteTransaction<'_>,
    by: &Initiator,
    tenant: &TenantId,
    id: DeliveryId,
    (change, condition): (DeliveryChange, ChangeCondition),
    now: Timestamp,
) -> rusqlite::Result<Result<DeliveryChanged>> {
    let found = match known(find(transaction.db, tenant, id))? {
        Ok(Some(found)) => found,
        Ok(None) => return Ok(Err(Error::NotFound(MissingResource::Delivery))),
        Err(code) => return Ok(Err(Error::UnknownCode(code))),
    };
    let checked = condition.check(id, &found.row.delivery, found.stored.plan.lane.is_some());
    let plan = match checked.and_then(|()| plan(id, &found.row, change, now)) {
        Ok(plan) => plan,
        Err(refused) => return Ok(Err(refused)),
    };
    write(transaction.db, found.no, &plan.row, now)?;
    if found.row.delivery.state == DeliveryState::Dead {
        dead_letters::forget(transaction.db, found.no)?;
    }
    transaction.count_waiting(found.stored.plan.endpoint, plan.waiting);
    let lane = match found.member() {
        Some(member) => take_step(transaction.db, &member, plan_step(transaction.db, &member, plan.lane)?, now)?,
        None => LaneEffects::default(),
    };
    let freed = report_lane(transaction, lane, now)?;
    let due_at = match &plan.row {
        RowChange::RetryNow { .. } | RowChange::Replay { .. } => Some(now),
        RowChange::Cancel { .. } => lane.free.map(|no| due_at(transaction.db, no)).transpose()?,
    };
    let action = AuditedAction::new(change.action(), tenant, id);
    transaction.record_of_endpoint(by, found.stored.plan.endpoint, &action)?;
    let endpoint = found.stored.endpoint;
    let operational_events = std::mem::take(&mut transaction.operational_events);
    Ok(Ok(DeliveryChanged { endpoint, due_at, freed, operational_events }))
}

row! {
    /// The row of a delivery that a person changes.
    sqlite struct StoredDelivery from "FROM deliveries d JOIN endpoints p ON p.no = d.endpoint
             JOIN tenants t ON t.no = d.tenant JOIN events e ON e.no = d.event
         WHERE d.no = ? AND t.id = ? AND t.deleted_at IS NULL" {
        plan: PlanColumns = PlanColumns::COLUMNS,
        endpoint: EndpointId = "p.id",
        is_endpoint_deleted: bool = "p.deleted_at IS NOT NULL",
        format: i64 = "d.format",
        expires_at: Option<i64> = "d.expires_at",
        /// Id of the event, if its data was removed.
        expunged: Option<EventId> = "CASE WHEN length(e.data) = 0 THEN e.id END",
    }
}

/// A delivery that a person changes.
struct DeliveryToChange {
    no: i64,
    stored: StoredDelivery,
    row: ChangedRow,
}

impl DeliveryToChange {
    fn member(&self) -> Option<LaneMember<'_>> {
        let lane = self.stored.plan.lane.as_deref()?;
        Some(LaneMember { endpoint: self.stored.plan.endpoint, lane, no: self.no })
    }
}

fn find(db: &Connection, tenant: &TenantId, id: DeliveryId) -> rusqlite::Result<Option<DeliveryToChange>> {
    let no = delivery_no(id);
    let stored = db.query_row(StoredDelivery::SQL, params![no, tenant.as_str()], StoredDelivery::read).optional()?;
    let Some(stored) = stored.filter(|stored| stored.plan.id(no) == id) else { return Ok(None) };
    // A delivery whose format this version does not know is not changed.
    format_of(stored.format)?;
    let delivery = stored.plan.row(stored.expunged.is_some())?;
    let row = ChangedRow {
        delivery,
        expires_at: stored.expires_at,
        is_endpoint_deleted: stored.is_endpoint_deleted,
        expunged: stored.expunged.clone(),
    };
    Ok(Some(DeliveryToChange { no, stored, row }))
}

fn write(db: &Connection, no: i64, change: &RowChange, now: Timestamp) -> rusqlite::Result<()> {
    match change {
        RowChange::RetryNow { due_at } => {
            let sql = "UPDATE deliveries SET due_at = ?, urgent = 1 WHERE no = ?";
            db.execute(sql, params![millis(*due_at), no])?;
        }
        RowChange::Replay { due_at, expires_at, expiry_check_at } => {
            let (expires_at, expiry_check_at) = (expires_at.map(millis), expiry_check_at.map(millis));
            db.execute(
                "UPDATE deliveries SET state = ?5, cause = NULL, finished_at = NULL, due_at = ?1, replayed_at = ?1,
                     attempts_before = attempts, age_from = NULL, held_before = 0, last_delay = NULL, max_age = NULL, urgent = 0,
                     internal_errors = 0, internal_error = NULL,
                     not_found = 0, no_such_name = 0, forbidden_target = 0,
                     expires_at = ?2, expiry_check_at = ?3
                 WHERE no = ?4",
                params![millis(*due_at), expires_at, expiry_check_at, no, state_code(DeliveryState::Waiting)],
            )?;
        }
        RowChange::Cancel { cause } => {
            let sql = "UPDATE deliveries SET state = ?, cause = ?, finished_at = ?, expiry_check_at = NULL, urgent = 0 WHERE no = ?";
            let state = state_code(DeliveryState::Cancelled);
            db.execute(sql, params![state, cause.map(cause_code), millis(now), no])?;
        }
    }
    Ok(())
}

fn due_at(db: &Connection, no: i64) -> rusqlite::Result<Timestamp> {
    db.query_row("SELECT due_at FROM deliveries WHERE no = ?", [no], |row| row.get(0)).map(at)
}
