//! Purges a tenant: deletes all its rows, overwrites the space that they had, and
//! empties the log, a step at a time.
//!
//! From the first commit on the tenant is deleted for everybody. Its row keeps the id
//! from being used anew until the last step, which writes the audit entry.

use rusqlite::{Connection, params};

use super::EmbeddedStore;
use super::deleted_tenant::{delete_content, keep_pages_if_unpurged, open_purge};
use super::job_rows;
use super::overwrite::OverwriteProgress;
use super::purge_figures::{delete_figures, forget_in_sums};
use super::purge_rows::{delete_operational_events, delete_rows};
use super::rows::{id_bytes, millis};
use super::writer::WriteTransaction;
use crate::model::audit::{AuditAction, AuditEntry, AuditedAction, Initiator};
use crate::model::id::{JobId, TenantId};
use crate::model::job::{Job, JobPart, JobState};
use crate::model::purge::PurgeStage;
use crate::store::access::draw_id_bits;
use crate::store::jobs::{no_purge_of, still_purged};
use crate::store::stored_json::to_json;
use crate::store::{Error, JobAdvanced, MissingResource, PurgeStep, Result};

/// Deletes a tenant for everybody, and creates the job that deletes its rows.
pub fn begin(
    transaction: &mut WriteTransaction<'_>,
    by: &Initiator,
    tenant: &TenantId,
    job: &Job,
) -> rusqlite::Result<Result<()>> {
    if tenant.as_str() == TenantId::DEFAULT || tenant.is_system() {
        return Ok(Err(no_purge_of(tenant)));
    }
    let db = transaction.db;
    if let Some(open) = open_purge(db, tenant)? {
        let sql = "SELECT 1 FROM jobs WHERE id = ? AND state IN (0, 1, 4)";
        if db.prepare(sql)?.exists([open])? {
            return Ok(Err(still_purged(tenant, open)));
        }
    }
    let mut statement = db.prepare("SELECT no FROM tenants WHERE id = ?")?;
    let numbers: Vec<i64> =
        statement.query_map([tenant.as_str()], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let system = transaction.tenant_no(&TenantId::system())?;
    let (Some(system), false) = (system, numbers.is_empty()) else {
        return Ok(Err(Error::NotFound(MissingResource::Tenant)));
    };
    let now = job.created_at;
    let sql = "UPDATE tenants SET purge_job = ?, deleted_at = coalesce(deleted_at, ?) WHERE id = ?";
    db.execute(sql, params![job.id, millis(now), tenant.as_str()])?;
    db.execute_batch("PRAGMA secure_delete = ON")?;
    for no in numbers {
        delete_content(db, no, now)?;
    }
    let sql = "INSERT INTO jobs (id, tenant, state, spec, created_at) VALUES (?, ?, ?, ?, ?)";
    db.execute(sql, params![job.id, system, JobState::Running as i64, to_json(&job.spec), millis(now)])?;
    for part in &job.parts {
        let sql = "INSERT INTO job_parts (job, tenant, endpoint, after, is_all_read, is_done, counts)
                   VALUES (?, ?, ?, NULL, 0, 0, ?)";
        db.execute(sql, params![job.id, part.tenant, part.endpoint, to_json(&part.counts)])?;
    }
    let audited = AuditedAction::new(AuditAction::TenantPurgeStarted, &TenantId::system(), tenant);
    transaction.record(by, system, &audited)?;
    let id = tenant.clone();
    transaction.after_commit(move |index| index.remove_tenant(&id));
    Ok(Ok(()))
}

/// Whether a purge still runs, and its part is as it was read.
fn is_current(db: &Connection, job: JobId, before: &JobPart) -> rusqlite::Result<bool> {
    let sql = "SELECT 1 FROM jobs j JOIN job_parts w ON w.job = j.id
               WHERE j.id = ? AND j.state = 0 AND w.endpoint = ? AND w.is_done = 0 AND w.counts = ?";
    db.prepare_cached(sql)?.exists(params![job, before.endpoint, to_json(&before.counts)])
}

fn write_part(db: &Connection, job: JobId, part: &JobPart) -> rusqlite::Result<()> {
    let sql = "UPDATE job_parts SET is_all_read = ?, is_done = ?, counts = ? WHERE job = ? AND endpoint = ?";
    let bound = params![part.is_read, part.is_done, to_json(&part.counts), job, part.endpoint];
    db.prepare_cached(sql)?.execute(bound).map(drop)
}

/// Deletes some rows, and stores how far the purge has come.
fn delete_some(transaction: &mut WriteTransaction<'_>, step: &PurgeStep) -> rusqlite::Result<Result<JobAdvanced>> {
    let (db, PurgeStep { job, before, now, .. }) = (transaction.db, step);
    let (job, now) = (*job, *now);
    if !is_current(db, job, before)? {
        return Ok(Err(Error::Changed));
    }
    db.execute_batch("PRAGMA secure_delete = ON")?;
    let numbers = numbers_of(db, job)?;
    let (mut part, mut advanced) = (before.clone(), JobAdvanced::default());
    let progress = part.counts.purge.get_or_insert_default();
    match progress.stage {
        PurgeStage::Rows => {
            let mut is_end = true;
            for no in &numbers {
                is_end = is_end && delete_rows(db, (*no, &before.tenant), job, now, progress)?;
            }
            if is_end && forget_in_sums(db, &numbers, &before.tenant, progress)? {
                progress.enter(PurgeStage::Figures);
            }
        }
        PurgeStage::Figures => {
            if delete_figures(db, &numbers, progress)? {
                progress.enter(PurgeStage::OperationalEvents);
            }
        }
        PurgeStage::OperationalEvents => {
            let deleted = delete_operational_events(transaction, &before.tenant, now, progress, &mut advanced)?;
            match deleted {
                Ok(true) => progress.enter(PurgeStage::Overwrite),
                Ok(false) => {}
                Err(problem) => return Ok(Err(problem)),
            }
        }
        PurgeStage::Overwrite => {}
    }
    (part.counts.matched, part.counts.done) = (progress.total(), progress.total());
    part.is_read = progress.stage == PurgeStage::Overwrite;
    write_part(db, job, &part)?;
    Ok(Ok(advanced))
}

fn numbers_of(db: &Connection, job: JobId) -> rusqlite::Result<Vec<i64>> {
    db.prepare_cached("SELECT no FROM tenants WHERE purge_job = ? ORDER BY no")?
        .query_map([job], |row| row.get(0))?
        .collect()
}

/// Ends a purge whose space is overwritten. If anything was written for the tenant
/// meanwhile, it begins anew instead.
fn finish(transaction: &mut WriteTransaction<'_>, step: &PurgeStep) -> rusqlite::Result<Result<JobAdvanced>> {
    let (db, PurgeStep { job, before, now, wall }) = (transaction.db, step);
    let (job, now) = (*job, *now);
    if !is_current(db, job, before)? {
        return Ok(Err(Error::Changed));
    }
    let (mut part, mut advanced) = (before.clone(), JobAdvanced::default());
    let progress = part.counts.purge.get_or_insert_default();
    let known = progress.clone();
    for no in numbers_of(db, job)? {
        delete_rows(db, (no, &before.tenant), job, now, progress)?;
    }
    if *progress != known {
        progress.enter(PurgeStage::Rows);
        part.is_read = false;
        write_part(db, job, &part)?;
        return Ok(Ok(advanced));
    }
    part.is_done = true;
    write_part(db, job, &part)?;
    db.execute("DELETE FROM tenants WHERE purge_job = ?", [job])?;
    keep_pages_if_unpurged(db)?;
    let sql = "UPDATE jobs SET state = 2, finished_at = ? WHERE id = ?";
    db.execute(sql, params![millis(now), job])?;
    if let Some(purge) = job_rows::find(db, job)? {
        let entry = AuditEntry::of_purge(&purge, &before.tenant, *wall, draw_id_bits());
        let sql = "INSERT INTO audit (id, tenant, tenant_id, record)
                   SELECT ?, no, id, ? FROM tenants WHERE id = ? AND deleted_at IS NULL";
        let bound = params![id_bytes(entry.id.0), to_json(&entry.record), TenantId::SYSTEM];
        db.execute(sql, bound)?;
    }
    advanced.is_finished = true;
    job_rows::report_job_end(transaction, job, &mut advanced, now)?;
    Ok(Ok(advanced))
}

impl EmbeddedStore {
    /// Makes one step of a purge.
    pub(super) async fn step_purge(&self, step: PurgeStep) -> Result<JobAdvanced> {
        let stage = step.before.counts.purge.as_ref().map(|progress| progress.stage).unwrap_or_default();
        if stage != PurgeStage::Overwrite {
            self.overwriting.lock().remove(&step.job);
            return self.writer.write_later(move |transaction| delete_some(transaction, &step)).await?;
        }
        match self.overwrite_some(step.job).await? {
            OverwriteProgress::Unfinished => Ok(JobAdvanced::default()),
            OverwriteProgress::Finished => self.writer.write(move |transaction| finish(transaction, &step)).await?,
        }
    }
}
