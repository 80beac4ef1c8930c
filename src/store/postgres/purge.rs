//! Purges a tenant: deletes all its rows, a step at a time.
//!
//! From the first commit on the tenant is deleted for every node. Its row keeps the id
//! from being used anew until the last step, which writes the audit entry. What the
//! server's log, its dead rows and its backups keep is the server's: see
//! docs/forgetting.md.
//!
//! Two nodes at once: a step locks the row of its job and shares the row of the shard
//! that the job's part is in, so only the owner of that shard makes one.

use super::access::record;
use super::change::make;
use super::deleted_tenant::{delete_content, open_purge};
use super::job_rows::{find, report_job_end};
use super::purge_figures::{delete_figures, forget_in_sums};
use super::purge_rows::{delete_deliveries, delete_event, delete_rows, deliveries_of};
use super::rows::{delivery_id, millis, state_of};
use super::stored_bytes::{self, BytesByDay, day_of};
use super::transaction::{PgTransaction, bind};
use super::unit_of_work::UnitOfWork;
use crate::model::audit::{AuditAction, AuditEntry, AuditedAction, Initiator};
use crate::model::id::{JobId, TenantId};
use crate::model::job::{Job, JobPart, JobState};
use crate::model::limits::stored_bytes;
use crate::model::purge::{PurgeProgress, PurgeStage};
use crate::model::shard::{Lease, Shard};
use crate::store::access::draw_id_bits;
use crate::store::jobs::{is_about, no_purge_of, refusal, still_purged};
use crate::store::plan::change::ChangeCondition;
use crate::store::stored_json::to_json;
use crate::store::{DeliveryChange, Error, JobAdvanced, MissingResource, PurgeStep, Result};

/// Events of the system tenant that one step looks at.
const SYSTEM_EVENTS: i64 = 100;

/// Deletes a tenant for everybody, and creates the job that deletes its rows. The
/// catalog is locked.
pub async fn begin(work: &mut UnitOfWork<'_>, by: &Initiator, tenant: &TenantId, job: &Job) -> Result<()> {
    if tenant.as_str() == TenantId::DEFAULT || tenant.is_system() {
        return Err(no_purge_of(tenant));
    }
    if let Some(open) = open_purge(work.tx, tenant).await? {
        if open == job.id {
            // The answer to the try before this one got lost.
            return Ok(());
        }
        let sql = "SELECT 1 FROM posthaste.jobs WHERE id = $1 AND state IN (0, 1, 4)";
        if work.tx.query_opt(sql, bind![open]).await?.is_some() {
            return Err(still_purged(tenant, open));
        }
    }
    let (version, now) = (work.bump_catalog_version().await?, millis(job.created_at));
    let sql = "UPDATE posthaste.tenants SET purge_job = $2, deleted_at = coalesce(deleted_at, $3), version = $4
               WHERE id = $1 AND purged_at IS NULL RETURNING no";
    let rows = work.tx.query(sql, bind![tenant.as_str(), job.id, now, version]).await?;
    if rows.is_empty() {
        return Err(Error::NotFound(MissingResource::Tenant));
    }
    for row in rows {
        delete_content(work.tx, row.get(0), now, version).await?;
    }
    let system = system_no(work)?;
    let sql = "INSERT INTO posthaste.jobs (id, tenant, state, spec, created_at) VALUES ($1, $2, $3, $4, $5)";
    work.tx.execute(sql, bind![job.id, system, JobState::Running as i16, to_json(&job.spec), now]).await?;
    for part in &job.parts {
        let shard = i16::from(Shard::of(&part.tenant, part.endpoint).0);
        let sql = "INSERT INTO posthaste.job_parts (job, tenant, endpoint, shard, is_all_read, is_done, counts)
                   VALUES ($1, $2, $3, $4, false, false, $5)";
        let counts = to_json(&part.counts);
        work.tx.execute(sql, bind![job.id, part.tenant.as_str(), part.endpoint, shard, counts]).await?;
    }
    let audited = AuditedAction::new(AuditAction::TenantPurgeStarted, &TenantId::system(), tenant);
    record(work.tx, by, system, &audited).await?;
    let id = tenant.clone();
    work.after_commit(move |index| index.remove_tenant(&id));
    Ok(())
}

fn system_no(work: &UnitOfWork<'_>) -> Result<i64> {
    work.shared.index().tenant_no(&TenantId::system()).ok_or(Error::NotFound(MissingResource::Tenant))
}

/// Makes one step of a purge.
pub async fn step(work: &mut UnitOfWork<'_>, lease: Lease, step: &PurgeStep) -> Result<JobAdvanced> {
    check(work.tx, work.shared.shard_leases.node(), lease, step).await?;
    let numbers = numbers_of(work.tx, step.job).await?;
    let (mut part, mut advanced) = (step.before.clone(), JobAdvanced::default());
    let progress = part.counts.purge.get_or_insert_default();
    match progress.stage {
        PurgeStage::Rows => {
            if delete_rows(work.tx, &numbers, step, progress).await?
                && forget_in_sums(work.tx, &numbers, &step.before.tenant, progress).await?
            {
                progress.enter(PurgeStage::Figures);
            }
        }
        PurgeStage::Figures => {
            if delete_figures(work.tx, &numbers, progress).await? {
                progress.enter(PurgeStage::OperationalEvents);
            }
        }
        PurgeStage::OperationalEvents => {
            if delete_operational_events(work, step, progress, &mut advanced).await? {
                progress.enter(PurgeStage::Overwrite);
            }
        }
        PurgeStage::Overwrite => return finish(work, step, &numbers).await,
    }
    (part.counts.matched, part.counts.done) = (progress.total(), progress.total());
    part.is_read = progress.stage == PurgeStage::Overwrite;
    write_part(work.tx, step.job, &part).await?;
    Ok(advanced)
}

/// Refuses a step of a purge that does not run or has moved on, and one of a node that
/// does not own its shard.
async fn check(tx: &PgTransaction, node: i64, lease: Lease, step: &PurgeStep) -> Result<()> {
    let sql = "SELECT 1 FROM posthaste.jobs WHERE id = $1 AND state = 0 FOR UPDATE";
    tx.query_opt(sql, bind![step.job]).await?.ok_or(Error::Changed)?;
    let sql = "SELECT 1 FROM posthaste.shards WHERE shard = $1 AND node = $2 AND epoch = $3 FOR SHARE";
    let (shard, epoch) = (i16::from(lease.shard.0), lease.epoch.0 as i64);
    tx.query_opt(sql, bind![shard, node, epoch]).await?.ok_or(Error::Stale(lease.shard))?;
    let sql = "SELECT 1 FROM posthaste.job_parts WHERE job = $1 AND endpoint = $2 AND NOT is_done AND counts = $3";
    let counts = to_json(&step.before.counts);
    tx.query_opt(sql, bind![step.job, step.before.endpoint, counts]).await?.ok_or(Error::Changed)?;
    Ok(())
}

async fn numbers_of(tx: &PgTransaction, job: JobId) -> Result<Vec<i64>> {
    let rows = tx.query("SELECT no FROM posthaste.tenants WHERE purge_job = $1 ORDER BY no", bind![job]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

async fn write_part(tx: &PgTransaction, job: JobId, part: &JobPart) -> Result<()> {
    let sql =
        "UPDATE posthaste.job_parts SET is_all_read = $3, is_done = $4, counts = $5 WHERE job = $1 AND endpoint = $2";
    let counts = to_json(&part.counts);
    tx.execute(sql, bind![job, part.endpoint, part.is_read, part.is_done, counts]).await.map(|_| ())
}

/// Deletes operational events about the tenant among the next events of the system
/// tenant. What still waits of them is cancelled first, so that lanes go on. Returns
/// whether there were no more.
async fn delete_operational_events(
    work: &mut UnitOfWork<'_>,
    step: &PurgeStep,
    progress: &mut PurgeProgress,
    advanced: &mut JobAdvanced,
) -> Result<bool> {
    let sql = "SELECT no, data, deliveries FROM posthaste.events WHERE tenant = $1 AND no > $2 ORDER BY no LIMIT $3";
    let (system, mut freed) = (system_no(work)?, BytesByDay::new());
    let events = work.tx.query(sql, bind![system, progress.after, SYSTEM_EVENTS]).await?;
    for row in &events {
        progress.after = row.get(0);
        if !is_about(row.get(1), &step.before.tenant) {
            continue;
        }
        for (no, created_at, state) in deliveries_of(work.tx, row.get(0)).await? {
            let Some(change) = state_of(i64::from(state)).ok().and_then(DeliveryChange::that_ends) else { continue };
            let (id, change) = (delivery_id(no, created_at), (change, ChangeCondition::default()));
            match make(work, &Initiator::Gateway, &TenantId::system(), id, change, step.now).await {
                Ok(changed) => advanced.changed.push((id, changed)),
                Err(problem) => drop(refusal(problem)?),
            }
        }
        let deliveries = deliveries_of(work.tx, row.get(0)).await?.into_iter().map(|(no, ..)| no).collect();
        delete_deliveries(work.tx, deliveries, progress).await?;
        progress.count("operational_events", delete_event(work.tx, row.get(0)).await?);
        let (data, deliveries): (&[u8], i32) = (row.get(1), row.get(2));
        *freed.entry((system, day_of(row.get(0)))).or_insert(0) +=
            stored_bytes(data.len(), deliveries as usize).cast_signed();
    }
    stored_bytes::subtract(work.tx, freed).await?;
    Ok(events.len() < SYSTEM_EVENTS as usize)
}

/// Ends a purge. If anything was written for the tenant meanwhile, it begins anew
/// instead; and it waits for nodes that have not heard of the deletion.
async fn finish(work: &mut UnitOfWork<'_>, step: &PurgeStep, numbers: &[i64]) -> Result<JobAdvanced> {
    let (mut part, mut advanced) = (step.before.clone(), JobAdvanced::default());
    let progress = part.counts.purge.get_or_insert_default();
    let known = progress.clone();
    let is_gone = delete_rows(work.tx, numbers, step, progress).await?;
    if !is_gone || *progress != known {
        progress.enter(PurgeStage::Rows);
        part.is_read = false;
        write_part(work.tx, step.job, &part).await?;
        return Ok(advanced);
    }
    part.is_done = true;
    write_part(work.tx, step.job, &part).await?;
    // Nodes that were cut off meanwhile hear of the deletion by this row.
    let sql = "UPDATE posthaste.tenants SET purge_job = NULL, purged_at = $2 WHERE purge_job = $1";
    work.tx.execute(sql, bind![step.job, millis(step.now)]).await?;
    let sql = "UPDATE posthaste.jobs SET state = 2, finished_at = $2 WHERE id = $1";
    work.tx.execute(sql, bind![step.job, millis(step.now)]).await?;
    if let Some(purge) = find(work.tx, step.job).await? {
        let entry = AuditEntry::of_purge(&purge, &step.before.tenant, step.wall, draw_id_bits());
        let sql = "INSERT INTO posthaste.audit (id, tenant, tenant_id, record) VALUES ($1, $2, $3, $4)";
        let (system, record) = (system_no(work)?, to_json(&entry.record));
        work.tx.execute(sql, bind![entry.id.0, system, TenantId::SYSTEM, record]).await?;
    }
    advanced.is_finished = true;
    report_job_end(work, step.job, &mut advanced, step.now).await?;
    Ok(advanced)
}
