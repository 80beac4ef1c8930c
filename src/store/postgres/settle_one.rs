//! Settles one delivery by its plan: deaths, pauses, and whatever a person
//! changed while the request was open.
//!
//! What a settlement means is planned in [`crate::store::plan::settle`]; this
//! reads the row and writes the plan.

use jiff::Timestamp;
use tracing::error;

use super::claims::{self, ClaimKey};
use super::column_values::ColumnValues;
use super::endpoint::apply_endpoint_update;
use super::lane::{plan_step, take_step};
use super::locked_delivery::{DeliveryTable, LockedDelivery};
use super::rows::{cause_code, delivery_no, millis};
use super::transaction::bind;
use super::unit_of_work::UnitOfWork;
use crate::model::delivery::DeliveryState;
use crate::model::shard::Lease;
use crate::store::plan::Transition;
use crate::store::plan::endpoint::is_only_health;
use crate::store::plan::lane::{LaneEffects, LaneStep};
use crate::store::plan::settle::{BudgetChange, PlannedUpdate, SettlePlan, plan};
use crate::store::progress_columns::ProgressColumns;
use crate::store::{Claim, Error, Result, SettleEffects, Settlement};

/// Writes what became of a claim.
pub async fn settle(work: &mut UnitOfWork<'_>, lease: Lease, settlement: &Settlement) -> Result<Result<SettleEffects>> {
    if !is_ours(work, lease).await? {
        return Ok(Err(Error::Stale(lease.shard)));
    }
    let no = delivery_no(settlement.id);
    let found = match LockedDelivery::find(work.tx, no).await {
        Err(Error::UnknownCode(code)) => {
            error!(delivery.id = %settlement.id, endpoint.id = %settlement.endpoint,
                   "the outcome of an attempt is not recorded, and its delivery stays as it is: {code}");
            return Ok(Ok(SettleEffects { is_void: true, ..SettleEffects::default() }));
        }
        found => found?,
    };
    let Some(mut delivery) = found.filter(|found| found.id() == settlement.id) else {
        // Forgotten or never there: nothing is left to write about.
        return Ok(Ok(SettleEffects::default()));
    };
    delivery.row.is_data_removed = is_data_removed(work, &delivery).await?;
    let plan = plan(&delivery.row, settlement);
    if plan.effects.is_repeat {
        // What the lost answer made due is in the store, and not known here.
        work.shared.watermarks.clear();
    }
    write(work, &delivery, &plan, settlement.now).await?;
    if plan.waiting != 0 {
        work.count_waiting(delivery.endpoint, delivery.shard, plan.waiting);
    }
    let mut effects = plan.effects;
    effects.freed = advance_lane(work, &delivery, plan.lane, settlement.now).await?;
    if let Some(report) = plan.report {
        effects.freed.extend(work.report(no, report, settlement.now).await?);
    }
    // Health alone is written for all settlements of the transaction together.
    if let Some(PlannedUpdate { url_version, update }) = plan.update
        && !is_only_health(&update)
    {
        let (applied, claims) =
            apply_endpoint_update(work, settlement.endpoint, url_version, &update, settlement.now).await?;
        effects.update = applied;
        effects.freed.extend(claims);
    }
    effects.operational_events = std::mem::take(&mut work.operational_events);
    Ok(Ok(effects))
}

/// Whether the shard is still this node's, under the epoch it had then.
async fn is_ours(work: &UnitOfWork<'_>, lease: Lease) -> Result<bool> {
    let sql = "SELECT 1 FROM posthaste.shards WHERE shard = $1 AND node = $2 AND epoch = $3";
    let (shard, node) = (i16::from(lease.shard.0), work.shared.shard_leases.node());
    Ok(work.tx.query_opt(sql, bind![shard, node, lease.epoch.0 as i64]).await?.is_some())
}

/// Whether the data of its event was removed while the request was open. That
/// happens to nothing that waits.
async fn is_data_removed(work: &UnitOfWork<'_>, delivery: &LockedDelivery) -> Result<bool> {
    if delivery.row.state == DeliveryState::Waiting {
        return Ok(false);
    }
    let sql = format!(
        "SELECT 1 FROM {} d JOIN posthaste.events e ON e.no = d.event WHERE d.no = $1 AND e.data = ''",
        delivery.table.name()
    );
    Ok(work.tx.query_opt(&sql, bind![delivery.no]).await?.is_some())
}

/// Writes the delivery's row, its budget and its attempt.
async fn write(
    work: &mut UnitOfWork<'_>,
    delivery: &LockedDelivery,
    plan: &SettlePlan<'_>,
    now: Timestamp,
) -> Result<()> {
    let tx = work.tx;
    if plan.attempt.is_some() {
        delivery.archive_last_attempt(tx).await?;
    }
    if let Some((error, count)) = plan.internal_error {
        let sql = "UPDATE posthaste.queue SET internal_errors = $2, internal_error = $3 WHERE no = $1";
        tx.execute(sql, bind![delivery.no, count as i32, error]).await?;
    }
    if let Some(at) = plan.recheck_at {
        let sql = "UPDATE posthaste.queue SET expiry_check_at = $2 WHERE no = $1";
        tx.execute(sql, bind![delivery.no, millis(at)]).await?;
    }
    write_budget(work, delivery, &plan.budget).await?;
    let record = plan.attempt.as_ref().map(|attempt| {
        let record = serde_json::to_string(attempt).expect("an attempt is plain data");
        (attempt.number, record)
    });
    if let Transition::Wait { due_at } = plan.transition {
        let sql = "UPDATE posthaste.queue SET due_at = $2 WHERE no = $1";
        tx.execute(sql, bind![delivery.no, millis(due_at)]).await?;
        work.becomes_due(delivery.endpoint, millis(due_at));
    }
    match (plan.transition, record) {
        (Transition::End { state, cause }, record) => {
            let cause = cause.map(|cause| cause_code(cause) as i16);
            delivery.finish(tx, state, cause, millis(now), record.map(|(_, record)| record)).await
        }
        (Transition::Stay | Transition::Wait { .. }, Some((number, record))) => {
            delivery.keep_record(tx, number, &record).await
        }
        (Transition::Stay | Transition::Wait { .. }, None) => Ok(()),
    }
}

async fn write_budget(work: &UnitOfWork<'_>, delivery: &LockedDelivery, change: &BudgetChange<'_>) -> Result<()> {
    match change {
        BudgetChange::None => Ok(()),
        BudgetChange::Charge { progress, started_at, expiry_check_at } => {
            write_progress(work, delivery, &ProgressColumns::from(*progress), millis(*started_at)).await?;
            if delivery.table == DeliveryTable::Queue {
                let sql = "UPDATE posthaste.queue SET expiry_check_at = $2, urgent = false WHERE no = $1";
                work.tx.execute(sql, bind![delivery.no, expiry_check_at.map(millis)]).await?;
            }
            Ok(())
        }
        BudgetChange::CountOnly { attempts } => {
            let table = delivery.table.name();
            let sql = format!("UPDATE {table} SET attempts = $2, attempts_before = $2 WHERE no = $1");
            work.tx.execute(&sql, bind![delivery.no, *attempts as i32]).await.map(|_| ())
        }
    }
}

async fn write_progress(
    work: &UnitOfWork<'_>,
    delivery: &LockedDelivery,
    budget: &ProgressColumns,
    started_at: i64,
) -> Result<()> {
    let columns = ColumnValues::default()
        .set("attempts", budget.attempts)
        .set("attempts_before", budget.attempts_before)
        .set("age_from", budget.age_from)
        .set("held_before", budget.held_before)
        .set("not_found", budget.not_found)
        .set("no_such_name", budget.no_such_name)
        .set("forbidden_target", budget.forbidden_target)
        .set("last_delay", budget.last_delay)
        .set("max_age", budget.max_age);
    let sql = format!(
        "UPDATE {} SET {}, first_attempt_at = coalesce(first_attempt_at, {}) WHERE no = {}",
        delivery.table.name(),
        columns.assignments(),
        columns.mark(1),
        columns.mark(2),
    );
    work.tx.execute(&sql, &columns.parameters(bind![started_at, delivery.no])).await.map(|_| ())
}

/// Lets the lane take its step; returns what may be dispatched then.
async fn advance_lane(
    work: &mut UnitOfWork<'_>,
    delivery: &LockedDelivery,
    step: LaneStep,
    now: Timestamp,
) -> Result<Vec<Claim>> {
    let Some(member) = delivery.member() else { return Ok(Vec::new()) };
    let plan = plan_step(work.tx, member, step).await?;
    let effects = take_step(work, member, plan, now).await?;
    lane_moved(work, effects, now).await
}

/// Reports a step of a lane; returns the claims that may be dispatched then.
pub async fn lane_moved(work: &mut UnitOfWork<'_>, effects: LaneEffects, now: Timestamp) -> Result<Vec<Claim>> {
    let mut freed = work.report_lane(effects, now).await?;
    let Some(no) = effects.free else { return Ok(freed) };
    let sql = "SELECT event FROM posthaste.queue WHERE no = $1";
    let Some(row) = work.tx.query_opt(sql, bind![no]).await? else { return Ok(freed) };
    let key = ClaimKey { no, event: row.get("event") };
    freed.extend(claims::read(work.tx.client(), &[key], usize::MAX).await?.claims);
    Ok(freed)
}
