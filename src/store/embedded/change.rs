//! What a person does to a delivery: retry now, cancel, replay, discard.

use jiff::Timestamp;
use rusqlite::{OptionalExtension, params};

use super::lane::{LaneHead, LaneMember, is_head, pass};
use super::operational_events::lane_event;
use super::rows::{at, cause_of, delivery_id, delivery_no, format_of, known, millis, state_of, uuid_of};
use super::writer::WriteTransaction;
use crate::model::audit::AuditedAction;
use crate::model::delivery::{DeadCause, DeliveryState};
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use crate::store::changes::damaged_replay;
use crate::store::{DeliveryChange, DeliveryChanged, Error, Result};

/// Makes the change, or says why the delivery's state does not allow it.
pub fn change(
    transaction: &mut WriteTransaction<'_>,
    tenant: &TenantId,
    id: DeliveryId,
    change: DeliveryChange,
    now: Timestamp,
) -> rusqlite::Result<Result<DeliveryChanged>> {
    let row = match known(find(transaction, tenant, id))? {
        Ok(Some(row)) => row,
        Ok(None) => return Ok(Err(Error::NotFound("delivery"))),
        Err(code) => return Ok(Err(Error::UnknownCode(code))),
    };
    if !change.allows(row.state) {
        let state = row.state.as_str();
        let verb = change.verb();
        return Ok(Err(Error::WrongState(format!("delivery {id} is {state}, and cannot be changed by {verb}"))));
    }
    if change == DeliveryChange::Replay && row.is_endpoint_deleted {
        return Ok(Err(Error::WrongState(format!(
            "delivery {id} cannot be replayed, because its endpoint was deleted"
        ))));
    }
    if let (DeliveryChange::Replay, Some(event)) = (change, row.expunged.clone()) {
        return Ok(Err(Error::Expunged(event)));
    }
    if change == DeliveryChange::Replay && row.cause == Some(DeadCause::Damaged) {
        return Ok(Err(damaged_replay(id)));
    }
    let db = transaction.db;
    let member = row.lane.as_deref().filter(|_| !row.is_passed).map(|lane| LaneMember {
        endpoint: row.endpoint_no,
        lane,
        no: row.no,
    });
    // Whatever is done to a dead letter that a lane stands behind frees it.
    let unblocks = match &member {
        Some(member) if row.state == DeliveryState::Dead => is_head(db, member)?,
        _ => false,
    };
    let mut head = LaneHead::Same;
    let due_at = match change {
        DeliveryChange::RetryNow => {
            // Age and attempts stay; only the wait is cut short.
            let sql = "UPDATE deliveries SET due_at = min(due_at, ?), urgent = 1 WHERE no = ?";
            db.execute(sql, params![millis(now), row.no])?;
            Some(now)
        }
        DeliveryChange::Replay => {
            // A person's word goes beyond an `expires_at` that has passed.
            db.execute(
                "UPDATE deliveries SET state = 0, cause = NULL, finished_at = NULL, due_at = ?1, replayed_at = ?1,
                     attempts_before = attempts, age_from = NULL, held_before = 0, last_delay = NULL, max_age = NULL, urgent = 0,
                     stumbles = 0, stumble = NULL,
                     not_found = 0, no_such_name = 0, forbidden_target = 0,
                     expires_at = CASE WHEN expires_at > ?1 THEN expires_at END,
                     look_at = CASE WHEN expires_at > ?1 THEN expires_at + 1 END
                 WHERE no = ?2",
                params![millis(now), row.no],
            )?;
            Some(now)
        }
        DeliveryChange::Cancel | DeliveryChange::Discard => {
            // A discarded one keeps its cause: it is why it ended here.
            let sql = "UPDATE deliveries SET state = 3, finished_at = ?, look_at = NULL, urgent = 0 WHERE no = ?";
            db.execute(sql, params![millis(now), row.no])?;
            if let Some(member) = &member {
                head = pass(db, member, now)?;
            }
            let due = |no| db.query_row("SELECT due_at FROM deliveries WHERE no = ?", [no], |row| row.get(0));
            head.free().map(due).transpose()?.map(at)
        }
    };
    match change {
        DeliveryChange::RetryNow => {}
        DeliveryChange::Replay => transaction.count_waiting(row.endpoint_no, 1),
        DeliveryChange::Cancel => transaction.count_waiting(row.endpoint_no, -1),
        DeliveryChange::Discard => {}
    }
    let mut freed = Vec::new();
    if unblocks {
        freed.extend(lane_event(transaction, row.no, false, now)?);
    }
    if let LaneHead::Dead(next) = head {
        freed.extend(lane_event(transaction, next, true, now)?);
    }
    transaction.record_of_endpoint(row.endpoint_no, &AuditedAction::new(change.action(), tenant, id))?;
    let told = std::mem::take(&mut transaction.operational_events);
    Ok(Ok(DeliveryChanged { endpoint: row.endpoint, due_at, freed, operational_events: told }))
}

struct DeliveryToChange {
    no: i64,
    endpoint_no: i64,
    endpoint: EndpointId,
    is_endpoint_deleted: bool,
    state: DeliveryState,
    lane: Option<String>,
    is_passed: bool,
    cause: Option<DeadCause>,
    /// Its event, if that has no data any more.
    expunged: Option<EventId>,
}

fn find(
    transaction: &WriteTransaction<'_>,
    tenant: &TenantId,
    id: DeliveryId,
) -> rusqlite::Result<Option<DeliveryToChange>> {
    let no = delivery_no(id);
    let sql = "SELECT d.endpoint, p.id, p.deleted_at IS NOT NULL, d.state, d.lane, d.passed, d.created_at,
                      CASE WHEN length(e.data) = 0 THEN e.id END, d.cause, d.format
               FROM deliveries d JOIN endpoints p ON p.no = d.endpoint JOIN tenants t ON t.no = d.tenant
                    JOIN events e ON e.no = d.event
               WHERE d.no = ? AND t.id = ? AND t.deleted_at IS NULL";
    let found = transaction
        .db
        .query_row(sql, params![no, tenant.as_str()], |row| {
            let is_endpoint_deleted: bool = row.get(2)?;
            format_of(row.get(9)?)?;
            let state = match state_of(row.get(3)?)? {
                // Not swept yet, and cancelled all the same.
                DeliveryState::Waiting if is_endpoint_deleted => DeliveryState::Cancelled,
                state => state,
            };
            let found = DeliveryToChange {
                no,
                endpoint_no: row.get(0)?,
                endpoint: EndpointId(uuid_of(row.get(1)?)),
                is_endpoint_deleted,
                state,
                lane: row.get(4)?,
                is_passed: row.get(5)?,
                cause: row.get::<_, Option<i64>>(8)?.map(cause_of).transpose()?,
                expunged: row.get::<_, Option<String>>(7)?.map(|id| EventId::from_stored(&id)),
            };
            Ok((found, delivery_id(no, row.get(6)?)))
        })
        .optional()?;
    Ok(found.filter(|(_, found)| *found == id).map(|(found, _)| found))
}
