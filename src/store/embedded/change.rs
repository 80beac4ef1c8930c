//! What a person does to a delivery: retry now, cancel, replay, discard.
//!
//! What a change means is planned in [`crate::store::plan::change`]; this
//! reads the row and writes the plan.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::dead_letters;
use super::lane::{plan_step, take_step, write_passed_head};
use super::operational_events::report_lane;
use super::rows::{at, cause_code, delivery_no, format_of, millis, separate_unknown_codes, state_code};
use super::writer::WriteTransaction;
use crate::model::audit::{AuditedAction, Initiator};
use crate::model::delivery::DeliveryState;
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use crate::store::delivery_columns::PlanColumns;
use crate::store::plan::change::{ChangeCondition, ChangedRow, NextDue, ReplayedRow, RowChange, plan};
use crate::store::plan::lane::{LaneEffects, LaneMember};
use crate::store::plan::settle::DeadLetterChange;
use crate::store::progress_columns::ProgressColumns;
use crate::store::row::{SqliteColumns, row, update};
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
    let found = match separate_unknown_codes(find(transaction.db, tenant, id))? {
        Ok(Some(found)) => found,
        Ok(None) => return Ok(Err(Error::NotFound(MissingResource::Delivery))),
        Err(code) => return Ok(Err(Error::UnknownCode(code))),
    };
    let checked = condition.check(id, &found.row.delivery, found.stored.plan.lane.is_some());
    let plan = match checked.and_then(|()| plan(id, &found.row, change, now)) {
        Ok(plan) => plan,
        Err(refused) => return Ok(Err(refused)),
    };
    if let (RowChange::Replay(_), Some(member), false) = (&plan.row, found.member(), found.row.delivery.is_in_lane) {
        write_passed_head(transaction.db, &member)?;
    }
    write(transaction.db, found.no, &plan.row, now)?;
    match plan.dead_letter {
        DeadLetterChange::None => {}
        DeadLetterChange::Write => dead_letters::write(transaction.db, found.no)?,
        DeadLetterChange::Delete => dead_letters::delete(transaction.db, found.no)?,
    }
    transaction.count_waiting(found.stored.plan.endpoint, plan.waiting);
    let lane = match found.member() {
        Some(member) => take_step(transaction.db, &member, plan_step(transaction.db, &member, plan.lane)?, now)?,
        None => LaneEffects::default(),
    };
    let freed = report_lane(transaction, lane, now)?;
    let due_at = match plan.next_due(lane.free, now) {
        NextDue::At(at) => Some(at),
        NextDue::Stored(no) => Some(due_at(transaction.db, no)?),
        NextDue::Nothing => None,
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
    let stored = db
        .prepare_cached(StoredDelivery::SQL)?
        .query_row(params![no, tenant.as_str()], StoredDelivery::read)
        .optional()?;
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
            db.prepare_cached(sql)?.execute(params![millis(*due_at), no])?;
        }
        RowChange::Replay(replayed) => {
            ReplayedDelivery::from(replayed).update(db, no)?;
        }
        RowChange::Cancel { cause } => {
            let sql = "UPDATE deliveries SET state = ?, cause = ?, finished_at = ?, expiry_check_at = NULL, urgent = 0 WHERE no = ?";
            let state = state_code(DeliveryState::Cancelled);
            db.prepare_cached(sql)?.execute(params![state, cause.map(cause_code), millis(now), no])?;
        }
    }
    Ok(())
}

update! {
    /// A finished delivery that waits again.
    struct ReplayedDelivery of "deliveries" by "no" {
        state: i64 = "cause = NULL, finished_at = NULL, urgent = 0, state = ?",
        due_at: i64 = "due_at = ?",
        expires_at: Option<i64> = "expires_at = ?",
        expiry_check_at: Option<i64> = "expiry_check_at = ?",
        replayed_at: i64 = "replayed_at = ?",
        attempts: i32 = "attempts = ?",
        attempts_before: i32 = "attempts_before = ?",
        age_from: Option<i64> = "age_from = ?",
        held_before: i64 = "held_before = ?",
        not_found: i32 = "not_found = ?",
        no_such_name: i32 = "no_such_name = ?",
        forbidden_target: i32 = "forbidden_target = ?",
        last_delay: Option<i64> = "last_delay = ?",
        max_age: Option<i64> = "max_age = ?",
        internal_errors: i32 = "internal_error = NULL, internal_errors = ?",
    }
}

impl From<&ReplayedRow> for ReplayedDelivery {
    fn from(row: &ReplayedRow) -> Self {
        let budget = ProgressColumns::from(&row.budget);
        Self {
            state: state_code(DeliveryState::Waiting),
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

fn due_at(db: &Connection, no: i64) -> rusqlite::Result<Timestamp> {
    db.prepare_cached("SELECT due_at FROM deliveries WHERE no = ?")?.query_row([no], |row| row.get(0)).map(at)
}
