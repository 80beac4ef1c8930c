//! What a person does to a delivery: retry now, cancel, replay, discard.

use std::sync::Arc;

use jiff::Timestamp;

use super::PostgresState;
use super::access::record;
use super::lane::{PgLaneHead, PgLaneMember, is_head, pass};
use super::locked_delivery::LockedDelivery;
use super::rows::{at, cause_of, delivery_no, millis};
use super::transaction::bind;
use super::unit_of_work::{CommitEffects, UnitOfWork};
use crate::model::audit::AuditedAction;
use crate::model::delivery::{DeadCause, DeliveryState};
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use crate::store::changes::damaged_replay;
use crate::store::{DeliveryChange, DeliveryChanged, Error, Result};

/// Makes the change, or says why the delivery's state does not allow it.
pub async fn change(
    shared: &Arc<PostgresState>,
    tenant: &TenantId,
    id: DeliveryId,
    change: DeliveryChange,
    now: Timestamp,
) -> Result<DeliveryChanged> {
    let tx = shared.begin().await?;
    let mut work = UnitOfWork::new(shared, &tx);
    let changed = make(&mut work, tenant, id, change, now).await;
    let done: CommitEffects = work.end();
    match changed {
        Ok(changed) => {
            tx.commit().await?;
            shared.adopt(done).await;
            Ok(changed)
        }
        Err(refused) => {
            tx.roll_back().await;
            Err(refused)
        }
    }
}

async fn make(
    work: &mut UnitOfWork<'_>,
    tenant: &TenantId,
    id: DeliveryId,
    change: DeliveryChange,
    now: Timestamp,
) -> Result<DeliveryChanged> {
    let missing = || Error::NotFound("delivery");
    let tenant_no = work.shared.index().tenant_no(tenant).ok_or_else(missing)?;
    let place = LockedDelivery::find(work.tx, delivery_no(id)).await?;
    let place = place.filter(|place| place.id() == id && place.tenant == tenant_no).ok_or_else(missing)?;
    let sql = "SELECT id, deleted_at IS NOT NULL FROM posthaste.endpoints WHERE no = $1";
    let row = work.tx.query_opt(sql, bind![place.endpoint]).await?.ok_or_else(missing)?;
    let (endpoint, is_deleted) = (EndpointId(row.get(0)), row.get::<_, bool>(1));
    let state = match place.snapshot.state {
        // Not swept yet, and cancelled all the same.
        DeliveryState::Waiting if is_deleted => DeliveryState::Cancelled,
        state => state,
    };
    if !change.allows(state) {
        let (state, verb) = (state.as_str(), change.verb());
        return Err(Error::WrongState(format!("delivery {id} is {state}, and cannot be changed by {verb}")));
    }
    if change == DeliveryChange::Replay && is_deleted {
        return Err(Error::WrongState(format!("delivery {id} cannot be replayed, because its endpoint was deleted")));
    }
    if change == DeliveryChange::Replay {
        refuse_expunged(work, place.no).await?;
        refuse_damaged(work, place.no, id).await?;
    }
    let member = place.lane.as_deref().filter(|_| !place.is_passed).map(|lane| PgLaneMember {
        endpoint: place.endpoint,
        lane,
        no: place.no,
    });
    // Whatever is done to a dead letter that a lane stands behind frees it.
    let unblocks = match member {
        Some(member) if state == DeliveryState::Dead => is_head(work.tx, member).await?,
        _ => false,
    };
    let mut head = PgLaneHead::Same;
    let now_ms = millis(now);
    let due_at = match change {
        DeliveryChange::RetryNow => {
            // Age and attempts stay; only the wait is cut short.
            let sql = "UPDATE posthaste.queue SET due_at = least(due_at, $2), urgent = true WHERE no = $1";
            work.tx.execute(sql, bind![place.no, now_ms]).await?;
            work.becomes_due(place.endpoint, now_ms.min(place.due_at));
            Some(now)
        }
        DeliveryChange::Replay => {
            place.replay(work.tx, now_ms, work.shared.shard_leases.node()).await?;
            work.becomes_due(place.endpoint, now_ms);
            work.count_waiting(place.endpoint, place.shard, 1);
            Some(now)
        }
        DeliveryChange::Cancel | DeliveryChange::Discard => {
            // A discarded one keeps its cause: it is why it ended here.
            let sql = "SELECT cause FROM posthaste.dead WHERE no = $1";
            let cause = work.tx.query_opt(sql, bind![place.no]).await?.and_then(|row| row.get(0));
            place.end(work.tx, DeliveryState::Cancelled, cause, now_ms, None).await?;
            if change == DeliveryChange::Cancel {
                work.count_waiting(place.endpoint, place.shard, -1);
            }
            if let Some(member) = member {
                head = pass(work, member, now).await?;
            }
            match head {
                PgLaneHead::Free(next) => {
                    let sql = "SELECT due_at FROM posthaste.queue WHERE no = $1";
                    work.tx.query_opt(sql, bind![next]).await?.map(|row| at(row.get(0)))
                }
                PgLaneHead::Same | PgLaneHead::Dead(_) => None,
            }
        }
    };
    let mut freed = Vec::new();
    if unblocks {
        freed.extend(work.lane_event(place.no, false, now).await?);
    }
    if let PgLaneHead::Dead(next) = head {
        freed.extend(work.lane_event(next, true, now).await?);
    }
    record(work.tx, tenant_no, &AuditedAction::new(change.action(), tenant, id)).await?;
    let told = std::mem::take(&mut work.operational_events);
    Ok(DeliveryChanged { endpoint, due_at, freed, operational_events: told })
}

/// What is damaged cannot be replayed.
async fn refuse_damaged(work: &UnitOfWork<'_>, no: i64, id: DeliveryId) -> Result<()> {
    let row = work.tx.query_opt("SELECT cause FROM posthaste.deliveries WHERE no = $1", bind![no]).await?;
    let cause = row.and_then(|row| row.get::<_, Option<i16>>(0)).map(|code| cause_of(code.into())).transpose()?;
    if cause == Some(DeadCause::Damaged) { Err(damaged_replay(id)) } else { Ok(()) }
}

/// What has no data any more cannot be replayed. The event stays as it is
/// until the transaction ends.
async fn refuse_expunged(work: &UnitOfWork<'_>, no: i64) -> Result<()> {
    let sql = "SELECT id, octet_length(data) = 0 FROM posthaste.events
               WHERE no = (SELECT event FROM posthaste.deliveries WHERE no = $1) FOR SHARE";
    match work.tx.query_opt(sql, bind![no]).await? {
        Some(row) if row.get(1) => Err(Error::Expunged(EventId::from_stored(row.get(0)))),
        _ => Ok(()),
    }
}
