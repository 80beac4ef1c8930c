//! Makes the same change of many deliveries of one endpoint, as a job does it.
//!
//! What the change means for each is planned as in [`super::change`]; rows are
//! read and written in sets. Only a delivery that its lane moves past is changed
//! by itself, because the next of its lane may be in the same set.

use std::collections::HashMap;

use jiff::Timestamp;

use super::change;
use super::locked_delivery::{DeliveryTable, LockedDelivery};
use super::rows::delivery_no;
use super::transaction::bind;
use super::unit_of_work::UnitOfWork;
use super::write_changes::{PlannedChange, write};
use crate::model::audit::Initiator;
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use crate::store::plan::change::{ChangeCondition, ChangedRow, NextDue, plan};
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
            let read = read.row_of(&delivery).filter(|_| is_it).ok_or(Error::NotFound(MissingResource::Delivery))?;
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
        let due_at = match plan.next_due(None, now) {
            NextDue::At(at) => Some(at),
            NextDue::Stored(_) | NextDue::Nothing => None,
        };
        let operational_events = std::mem::take(&mut work.operational_events);
        outcomes.push((delivery.id(), Ok(DeliveryChanged { endpoint, due_at, freed, operational_events })));
    }
    outcomes.sort_by_key(|(id, _)| ids.iter().position(|given| given == id));
    Ok(outcomes)
}

/// Rows that the changes depend on, besides those of the deliveries.
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
    fn row_of(&self, delivery: &LockedDelivery) -> Option<(EndpointId, ChangedRow)> {
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
