//! Keeps jobs: each step of one is a single commit.

use std::collections::HashMap;

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::job_candidates::{candidates, candidates_by_id};
use super::job_rows::{JOBS, part_columns, parts, report_job_end};
use super::operational_events::accept_operational_event;
use super::rows::{at, delivery_no, millis, state_of};
use super::writer::WriteTransaction;
use super::{EmbeddedStore, backfill, change, purge};
use crate::model::audit::{AuditAction, AuditedAction, Initiator};
use crate::model::delivery::DeliveryState;
use crate::model::id::{DeliveryId, EndpointId, JobId, TenantId};
use crate::model::job::{Job, JobCandidate, JobChange, JobPart, JobState};
use crate::model::named_enum::NamedEnum;
use crate::model::operational_event::OperationalEvent;
use crate::model::shard::Lease;
use crate::store::job_columns::{JobColumns, job_state};
use crate::store::jobs::{action_of, first_of_lanes, first_state, refusal, with_parts};
use crate::store::row::SqliteColumns;
use crate::store::stored_json::to_json;
use crate::store::{
    BackfillPage, BackfillQuery, CandidatePage, CandidateWalk, Error, FollowedDeliveries, JobAdvanced, JobStarted,
    JobStep, JobStore, ListPage, MissingResource, ONLY_EPOCH, OpenJobCounts, OpenJobs, PageRequest, PurgeStep, Result,
    WaitingInJob,
};

#[async_trait]
impl JobStore for EmbeddedStore {
    async fn create_job(&self, by: &Initiator, job: Job, running_max: u32) -> Result<JobStarted> {
        let by = by.clone();
        self.writer.write(move |transaction| create(transaction, &by, &job, running_max)).await?
    }

    async fn job(&self, tenant: &TenantId, id: JobId) -> Result<Option<Job>> {
        let tenant = tenant.clone();
        self.read(move |db| {
            let sql = format!("SELECT {} {JOBS} WHERE j.id = ? AND t.id = ?", JobColumns::COLUMNS);
            let found = db.prepare_cached(&sql)?.query_row(params![id, tenant], JobColumns::read).optional()?;
            let jobs = found.map(JobColumns::job).transpose()?.into_iter().collect();
            Ok(with_parts(jobs, parts(db, "w.job = ?", id)?).pop())
        })
        .await
    }

    async fn jobs(&self, tenant: Option<&TenantId>, page: PageRequest) -> Result<ListPage<Job>> {
        let tenant = tenant.cloned();
        let below: Option<JobId> =
            page.cursor.as_deref().map(str::parse).transpose().map_err(|_| Error::InvalidCursor)?;
        self.read(move |db| {
            let sql = format!(
                "SELECT {} {JOBS} WHERE (?1 IS NULL OR t.id = ?1) AND (?2 IS NULL OR j.id < ?2) ORDER BY j.id DESC LIMIT ?3",
                JobColumns::COLUMNS
            );
            let limit = i64::try_from(page.limit).unwrap_or(i64::MAX).saturating_add(1);
            let mut statement = db.prepare_cached(&sql)?;
            let rows = statement.query_map(params![tenant, below, limit], JobColumns::read)?;
            let jobs = rows.map(|row| Ok(row?.job()?)).collect::<rusqlite::Result<Vec<Job>>>()?;
            let mut page = ListPage::truncate(jobs, page.limit, |job| job.id.to_string());
            for job in &mut page.data {
                job.parts = parts(db, "w.job = ?", job.id)?.into_iter().map(|(_, part)| part).collect();
            }
            Ok(page)
        })
        .await
    }

    async fn open_job_counts(&self) -> Result<OpenJobCounts> {
        self.read(|db| {
            // Each part has an index of its own.
            let sql = format!(
                "SELECT total(state = 0), total(state = 1), total(state = 4) FROM (
                     SELECT j.state {JOBS} WHERE j.state < 2 UNION ALL SELECT j.state {JOBS} WHERE j.state = 4)"
            );
            let count = |row: &rusqlite::Row<'_>, at| row.get::<_, f64>(at).map(|count| count as u64);
            db.prepare_cached(&sql)?.query_row([], |row| {
                Ok(OpenJobCounts { running: count(row, 0)?, paused: count(row, 1)?, queued: count(row, 2)? })
            })
        })
        .await
    }

    async fn tenant_of_job(&self, id: JobId) -> Result<Option<TenantId>> {
        self.read(move |db| {
            let sql = format!("SELECT t.id {JOBS} WHERE j.id = ?");
            db.prepare_cached(&sql)?.query_row([id], |row| row.get(0)).optional()
        })
        .await
    }

    async fn change_job(
        &self,
        by: &Initiator,
        (tenant, id): (&TenantId, JobId),
        change: JobChange,
        running_max: u32,
        now: Timestamp,
    ) -> Result<()> {
        let (by, tenant) = (by.clone(), tenant.clone());
        let write = move |transaction: &mut WriteTransaction<'_>| {
            change_job(transaction, &by, (&tenant, id), (change, running_max), now)
        };
        self.writer.write(write).await?
    }

    async fn start_queued_jobs(&self, tenant: &TenantId, running_max: u32) -> Result<()> {
        let tenant = tenant.clone();
        self.writer
            .write_later(move |transaction| {
                let sql = "UPDATE jobs SET state = 0 WHERE id IN (
                               SELECT j.id FROM jobs j JOIN tenants t ON t.no = j.tenant
                               WHERE t.id = ?1 AND t.deleted_at IS NULL AND j.state = 4 ORDER BY j.id
                               LIMIT max(0, ?2 - (SELECT count(*) FROM jobs r JOIN tenants o ON o.no = r.tenant
                                   WHERE o.id = ?1 AND o.deleted_at IS NULL AND r.state = 0 AND r.state < 2)))";
                transaction.db.execute(sql, params![tenant, running_max]).map(|_| ())
            })
            .await
    }

    async fn fail_job(&self, id: JobId, error: String, now: Timestamp) -> Result<JobStarted> {
        self.writer
            .write(move |transaction| {
                let mut ended = JobAdvanced::default();
                let sql = "UPDATE jobs SET state = 5, finished_at = ?, error = ? WHERE id = ? AND state = 0";
                if transaction.db.execute(sql, params![millis(now), error, id])? > 0 {
                    forget_followed(transaction.db, id)?;
                    report_job_end(transaction, id, &mut ended, now)?;
                }
                Ok(JobStarted { freed: ended.freed, operational_events: ended.operational_events })
            })
            .await
    }

    async fn open_jobs(&self) -> Result<OpenJobs> {
        self.read(open_jobs).await
    }

    async fn job_candidates(
        &self,
        endpoint: EndpointId,
        state: DeliveryState,
        walk: CandidateWalk,
        look: usize,
    ) -> Result<CandidatePage> {
        self.read(move |db| candidates(db, endpoint, state, walk, look)).await
    }

    async fn job_candidates_by_id(&self, tenant: &TenantId, ids: Vec<DeliveryId>) -> Result<Vec<JobCandidate>> {
        let tenant = tenant.clone();
        self.read(move |db| candidates_by_id(db, &tenant, ids)).await
    }

    async fn backfill_candidates(&self, endpoint: EndpointId, query: BackfillQuery) -> Result<BackfillPage> {
        let found = self.index().endpoint_entry(endpoint).map(|(no, endpoint)| (no, endpoint.clone()));
        let Some((no, endpoint)) = found else { return Ok(BackfillPage { is_end: true, ..BackfillPage::default() }) };
        self.read(move |db| backfill::candidates(db, (no, &endpoint), &query)).await
    }

    async fn job_followed(&self, job: JobId, endpoint: EndpointId) -> Result<FollowedDeliveries> {
        self.read(move |db| followed(db, job, endpoint)).await
    }

    async fn advance_job(&self, lease: Lease, step: JobStep, now: Timestamp) -> Result<JobAdvanced> {
        if lease.epoch != ONLY_EPOCH {
            return Err(Error::Stale(lease.shard));
        }
        self.writer.write_later(move |transaction| advance(transaction, &step, now)).await?
    }

    async fn purge_tenant(&self, by: &Initiator, tenant: &TenantId, job: Job) -> Result<()> {
        let (by, tenant) = (by.clone(), tenant.clone());
        self.writer.write(move |transaction| purge::begin(transaction, &by, &tenant, &job)).await??;
        self.start_sweep();
        Ok(())
    }

    async fn advance_purge(&self, lease: Lease, step: PurgeStep) -> Result<JobAdvanced> {
        if lease.epoch != ONLY_EPOCH {
            return Err(Error::Stale(lease.shard));
        }
        self.step_purge(step).await
    }

    async fn forget_jobs(&self, before: Timestamp) -> Result<()> {
        self.writer
            .write(move |transaction| {
                let old = "(SELECT id FROM jobs WHERE finished_at < ?
                            OR tenant NOT IN (SELECT no FROM tenants WHERE deleted_at IS NULL))";
                for table in ["job_parts", "job_waiting", "job_held"] {
                    let sql = format!("DELETE FROM {table} WHERE job IN {old}");
                    transaction.db.execute(&sql, [millis(before)])?;
                }
                let sql = format!("DELETE FROM jobs WHERE id IN {old}");
                transaction.db.execute(&sql, [millis(before)]).map(|_| ())
            })
            .await
    }
}

fn open_jobs(db: &Connection) -> rusqlite::Result<OpenJobs> {
    let sql = format!("SELECT {} {JOBS} WHERE j.state = 0 AND j.state < 2 ORDER BY j.id", JobColumns::COLUMNS);
    let mut statement = db.prepare_cached(&sql)?;
    let jobs = statement.query_map([], JobColumns::read)?.collect::<rusqlite::Result<Vec<JobColumns>>>()?;
    let mut parts = Vec::new();
    for job in &jobs {
        parts.extend(part_columns(db, "w.job = ? AND w.is_done = 0", job.id)?);
    }
    let sql = format!("SELECT DISTINCT t.id {JOBS} WHERE j.state = 4");
    let queued = db.prepare_cached(&sql)?.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    Ok(OpenJobs::of(jobs, parts, queued))
}

fn create(
    transaction: &mut WriteTransaction<'_>,
    by: &Initiator,
    job: &Job,
    running_max: u32,
) -> rusqlite::Result<Result<JobStarted>> {
    let db = transaction.db;
    let sql = "SELECT no FROM tenants WHERE id = ? AND deleted_at IS NULL";
    let found: Option<i64> = db.query_row(sql, [&job.tenant], |row| row.get(0)).optional()?;
    let Some(tenant) = found else { return Ok(Err(Error::NotFound(MissingResource::Tenant))) };
    let (running, unfinished) = count_jobs_of_tenant(db, tenant)?;
    let state = match first_state(job, (running, unfinished), running_max) {
        Ok(state) => state,
        Err(over) => return Ok(Err(over)),
    };
    let is_finished = state == JobState::Finished;
    let finished_at = is_finished.then(|| millis(job.created_at));
    let sql = "INSERT INTO jobs (id, tenant, state, spec, created_at, finished_at) VALUES (?, ?, ?, ?, ?, ?)";
    db.execute(sql, params![job.id, tenant, state as i64, to_json(&job.spec), millis(job.created_at), finished_at])?;
    for part in &job.parts {
        let sql = "INSERT INTO job_parts (job, tenant, endpoint, after, is_all_read, is_done, counts)
                   VALUES (?, ?, ?, NULL, 0, 0, ?)";
        db.prepare_cached(sql)?.execute(params![job.id, part.tenant, part.endpoint, to_json(&part.counts)])?;
    }
    transaction.record(by, tenant, &AuditedAction::new(AuditAction::JobStarted, &job.tenant, job.id))?;
    if !is_finished {
        return Ok(Ok(JobStarted::default()));
    }
    let job = &Job { state, ..job.clone() };
    let event = OperationalEvent::of_finished_job(job, &job.counts(), job.created_at);
    let freed = accept_operational_event(transaction, event, job.created_at)?;
    let operational_events = std::mem::take(&mut transaction.operational_events);
    Ok(Ok(JobStarted { freed, operational_events }))
}

/// Returns how many jobs of each tenant run, of those that have any.
pub fn count_running(db: &Connection) -> rusqlite::Result<HashMap<TenantId, u64>> {
    let sql = format!("SELECT t.id, count(*) {JOBS} WHERE j.state = 0 AND j.state < 2 GROUP BY t.id");
    db.prepare_cached(&sql)?.query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64)))?.collect()
}

/// Returns how many jobs of a tenant run, and how many are not over.
fn count_jobs_of_tenant(db: &Connection, tenant: i64) -> rusqlite::Result<(u32, u32)> {
    let sql = "SELECT count(*) FILTER (WHERE state = 0), count(*) FROM jobs WHERE tenant = ? AND state IN (0, 1, 4)";
    db.query_row(sql, [tenant], |row| Ok((row.get(0)?, row.get(1)?)))
}

fn forget_followed(db: &Connection, job: JobId) -> rusqlite::Result<()> {
    db.execute("DELETE FROM job_waiting WHERE job = ?", [job])?;
    db.execute("DELETE FROM job_held WHERE job = ?", [job]).map(|_| ())
}

fn change_job(
    transaction: &mut WriteTransaction<'_>,
    by: &Initiator,
    (tenant, id): (&TenantId, JobId),
    (change, running_max): (JobChange, u32),
    now: Timestamp,
) -> rusqlite::Result<Result<()>> {
    let db = transaction.db;
    let sql = format!("SELECT j.tenant, j.state {JOBS} WHERE j.id = ? AND t.id = ?");
    let found: Option<(i64, i64)> =
        db.query_row(&sql, params![id, tenant], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let Some((tenant_no, code)) = found else { return Ok(Err(Error::NotFound(MissingResource::Job))) };
    let has_room = count_jobs_of_tenant(db, tenant_no)?.0 < running_max;
    let next = match job_state(code) {
        Ok(state) => change.apply(state, has_room),
        Err(code) => return Ok(Err(Error::UnknownCode(code))),
    };
    let Some(next) = next else {
        return Ok(Err(Error::WrongState(format!("job {id} is over, and cannot be changed by {}", change.as_str()))));
    };
    let finished_at = next.is_over().then(|| millis(now));
    db.execute("UPDATE jobs SET state = ?, finished_at = ? WHERE id = ?", params![next as i64, finished_at, id])?;
    if next.is_over() {
        forget_followed(db, id)?;
    }
    transaction.record(by, tenant_no, &AuditedAction::new(action_of(change), tenant, id))?;
    Ok(Ok(()))
}

fn followed(db: &Connection, job: JobId, endpoint: EndpointId) -> rusqlite::Result<FollowedDeliveries> {
    let sql = "SELECT delivery FROM job_waiting WHERE job = ? AND endpoint = ?";
    let mut statement = db.prepare_cached(sql)?;
    let ids = statement.query_map(params![job, endpoint], |row| row.get(0))?;
    let ids = ids.collect::<rusqlite::Result<Vec<DeliveryId>>>()?;
    let mut one = db.prepare_cached("SELECT state, lane, behind, due_at FROM deliveries WHERE no = ?")?;
    let mut next = db.prepare_cached(
        "SELECT delivery FROM job_held WHERE job = ? AND endpoint = ? AND lane = ? ORDER BY delivery LIMIT 1",
    )?;
    let mut followed = FollowedDeliveries::default();
    for id in ids {
        let row: Option<(i64, Option<String>, bool, i64)> = one
            .query_row([delivery_no(id)], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get("due_at")?)))
            .optional()?;
        let state = row.as_ref().and_then(|(state, ..)| state_of(*state).ok());
        let is_behind = row.as_ref().is_some_and(|(_, _, is_behind, _)| *is_behind);
        let due_at = row.as_ref().map(|(.., due_at)| at(*due_at));
        let lane = row.and_then(|(_, lane, ..)| lane);
        let next = match &lane {
            Some(lane) => next.query_row(params![job, endpoint, lane], |row| row.get(0)).optional()?,
            None => None,
        };
        followed.waiting.push(WaitingInJob { id, state, lane, is_behind, due_at, next });
    }
    if followed.waiting.is_empty() {
        let sql =
            "SELECT delivery, lane FROM job_held WHERE job = ? AND endpoint = ? ORDER BY lane, delivery LIMIT 500";
        let mut statement = db.prepare_cached(sql)?;
        let held = statement.query_map(params![job, endpoint], |row| Ok((row.get(0)?, row.get(1)?)))?;
        followed.held = first_of_lanes(held.collect::<rusqlite::Result<_>>()?);
    }
    Ok(followed)
}

fn advance(
    transaction: &mut WriteTransaction<'_>,
    step: &JobStep,
    now: Timestamp,
) -> rusqlite::Result<Result<JobAdvanced>> {
    let db = transaction.db;
    let sql = "SELECT 1 FROM jobs j JOIN job_parts w ON w.job = j.id
               WHERE j.id = ? AND j.state = 0 AND w.endpoint = ? AND w.after IS ? AND w.is_all_read = ? AND w.is_done = 0
                   AND w.counts = ?";
    let before = &step.before;
    let bound = params![step.job, before.endpoint, before.after, before.is_read, to_json(&before.counts)];
    if !db.prepare_cached(sql)?.exists(bound)? {
        return Ok(Err(Error::Changed));
    }
    let (mut advanced, mut refused) = (JobAdvanced::default(), Vec::new());
    for created in backfill::backfill(transaction, step, now)? {
        match created {
            Ok(created) => advanced.changed.push(created),
            Err(why) => refused.push(why),
        }
    }
    for (id, change) in step.take.iter().filter_map(|id| Some((id, step.change()?))) {
        let change = (change, step.condition);
        match change::change(transaction, &Initiator::Gateway, &before.tenant, *id, change, now)? {
            Ok(changed) => advanced.changed.push((*id, changed)),
            Err(problem) => match refusal(problem) {
                Ok(why) => refused.push(why),
                Err(problem) => return Ok(Err(problem)),
            },
        }
    }
    let part = step.part_after(advanced.changed.len(), &refused);
    write_part(db, step, &part, &advanced)?;
    if part.is_done
        && !db.prepare_cached("SELECT 1 FROM job_parts WHERE job = ? AND is_done = 0")?.exists([step.job])?
    {
        finish(transaction, step, &mut advanced, now)?;
    }
    Ok(Ok(advanced))
}

fn write_part(db: &Connection, step: &JobStep, part: &JobPart, advanced: &JobAdvanced) -> rusqlite::Result<()> {
    for (id, _) in &step.ended {
        let sql = "DELETE FROM job_waiting WHERE job = ? AND endpoint = ? AND delivery = ?";
        db.prepare_cached(sql)?.execute(params![step.job, part.endpoint, id])?;
    }
    for (id, lane) in &step.unhold {
        let sql = "DELETE FROM job_held WHERE job = ? AND endpoint = ? AND lane = ? AND delivery = ?";
        db.prepare_cached(sql)?.execute(params![step.job, part.endpoint, lane, id])?;
    }
    for (id, lane) in &step.hold {
        let sql = "INSERT INTO job_held (job, endpoint, lane, delivery) VALUES (?, ?, ?, ?)";
        db.prepare_cached(sql)?.execute(params![step.job, part.endpoint, lane, id])?;
    }
    if step.kind.is_sending() {
        for (id, _) in &advanced.changed {
            let sql = "INSERT INTO job_waiting (job, endpoint, delivery) VALUES (?, ?, ?)";
            db.prepare_cached(sql)?.execute(params![step.job, part.endpoint, id])?;
        }
    }
    let sql = "UPDATE job_parts SET after = ?, is_all_read = ?, is_done = ?, counts = ? WHERE job = ? AND endpoint = ?";
    db.prepare_cached(sql)?.execute(params![
        part.after,
        part.is_read,
        part.is_done,
        to_json(&part.counts),
        step.job,
        part.endpoint
    ])?;
    Ok(())
}

fn finish(
    transaction: &mut WriteTransaction<'_>,
    step: &JobStep,
    advanced: &mut JobAdvanced,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let sql = "UPDATE jobs SET state = 2, finished_at = ? WHERE id = ?";
    transaction.db.execute(sql, params![millis(now), step.job])?;
    advanced.is_finished = true;
    report_job_end(transaction, step.job, advanced, now)
}
