//! What a person does to a delivery: retry now, cancel, replay, discard.

use std::sync::Arc;

use jiff::Timestamp;

use super::Shared;
use super::access::record;
use super::act::{Act, Done};
use super::lane::{Head, Member, is_head, pass};
use super::place::Place;
use super::rows::{at, cause_of, delivery_no, millis};
use super::tx::bind;
use crate::model::audit::Deed;
use crate::model::delivery::{Cause, State};
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use crate::store::changes::damaged_replay;
use crate::store::{Change, Changed, Error, Result};

/// Makes the change, or says why the delivery's state does not allow it.
pub async fn change(
    shared: &Arc<Shared>,
    tenant: &TenantId,
    id: DeliveryId,
    change: Change,
    now: Timestamp,
) -> Result<Changed> {
    let tx = shared.begin().await?;
    let mut act = Act::new(shared, &tx);
    let changed = make(&mut act, tenant, id, change, now).await;
    let done: Done = act.end();
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

async fn make(act: &mut Act<'_>, tenant: &TenantId, id: DeliveryId, change: Change, now: Timestamp) -> Result<Changed> {
    let missing = || Error::NotFound("delivery");
    let tenant_no = act.shared.index().tenant_no(tenant).ok_or_else(missing)?;
    let place = Place::find(act.tx, delivery_no(id)).await?;
    let place = place.filter(|place| place.id() == id && place.tenant == tenant_no).ok_or_else(missing)?;
    let sql = "SELECT id, deleted_at IS NOT NULL FROM posthaste.endpoints WHERE no = $1";
    let row = act.tx.query_opt(sql, bind![place.endpoint]).await?.ok_or_else(missing)?;
    let (endpoint, is_deleted) = (EndpointId(row.get(0)), row.get::<_, bool>(1));
    let state = match place.stand.state {
        // Not swept yet, and cancelled all the same.
        State::Waiting if is_deleted => State::Cancelled,
        state => state,
    };
    if !change.allows(state) {
        let (state, verb) = (state.as_str(), change.verb());
        return Err(Error::WrongState(format!("delivery {id} is {state}, and cannot be changed by {verb}")));
    }
    if change == Change::Replay && is_deleted {
        return Err(Error::WrongState(format!("delivery {id} cannot be replayed, because its endpoint was deleted")));
    }
    if change == Change::Replay {
        refuse_expunged(act, place.no).await?;
        refuse_damaged(act, place.no, id).await?;
    }
    let member = place.lane.as_deref().filter(|_| !place.is_passed).map(|lane| Member {
        endpoint: place.endpoint,
        lane,
        no: place.no,
    });
    // Whatever is done to a dead letter that a lane stands behind frees it.
    let unblocks = match member {
        Some(member) if state == State::Dead => is_head(act.tx, member).await?,
        _ => false,
    };
    let mut head = Head::Same;
    let now_ms = millis(now);
    let due_at = match change {
        Change::RetryNow => {
            // Age and attempts stay; only the wait is cut short.
            let sql = "UPDATE posthaste.queue SET due_at = least(due_at, $2), urgent = true WHERE no = $1";
            act.tx.execute(sql, bind![place.no, now_ms]).await?;
            act.makes_due(place.endpoint, now_ms.min(place.due_at));
            Some(now)
        }
        Change::Replay => {
            place.replay(act.tx, now_ms, act.shared.owned.node()).await?;
            act.makes_due(place.endpoint, now_ms);
            act.count_waiting(place.endpoint, place.shard, 1);
            Some(now)
        }
        Change::Cancel | Change::Discard => {
            // A discarded one keeps its cause: it is why it ended here.
            let sql = "SELECT cause FROM posthaste.dead WHERE no = $1";
            let cause = act.tx.query_opt(sql, bind![place.no]).await?.and_then(|row| row.get(0));
            place.end(act.tx, State::Cancelled, cause, now_ms, None).await?;
            if change == Change::Cancel {
                act.count_waiting(place.endpoint, place.shard, -1);
            }
            if let Some(member) = member {
                head = pass(act, member, now).await?;
            }
            match head {
                Head::Free(next) => {
                    let sql = "SELECT due_at FROM posthaste.queue WHERE no = $1";
                    act.tx.query_opt(sql, bind![next]).await?.map(|row| at(row.get(0)))
                }
                Head::Same | Head::Dead(_) => None,
            }
        }
    };
    let mut freed = Vec::new();
    if unblocks {
        freed.extend(act.tell_of_lane(place.no, false, now).await?);
    }
    if let Head::Dead(next) = head {
        freed.extend(act.tell_of_lane(next, true, now).await?);
    }
    record(act.tx, tenant_no, &Deed::new(change.action(), tenant, id)).await?;
    let told = std::mem::take(&mut act.told);
    Ok(Changed { endpoint, due_at, freed, told })
}

/// What is damaged cannot be replayed.
async fn refuse_damaged(act: &Act<'_>, no: i64, id: DeliveryId) -> Result<()> {
    let row = act.tx.query_opt("SELECT cause FROM posthaste.deliveries WHERE no = $1", bind![no]).await?;
    let cause = row.and_then(|row| row.get::<_, Option<i16>>(0)).map(|code| cause_of(code.into()));
    if cause == Some(Cause::Damaged) { Err(damaged_replay(id)) } else { Ok(()) }
}

/// What has no data any more cannot be replayed. The event stays as it is
/// until the transaction ends.
async fn refuse_expunged(act: &Act<'_>, no: i64) -> Result<()> {
    let sql = "SELECT id, octet_length(data) = 0 FROM posthaste.events
               WHERE no = (SELECT event FROM posthaste.deliveries WHERE no = $1) FOR SHARE";
    match act.tx.query_opt(sql, bind![no]).await? {
        Some(row) if row.get(1) => Err(Error::Expunged(EventId::from_stored(row.get(0)))),
        _ => Ok(()),
    }
}
