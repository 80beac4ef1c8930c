//! Keeps jobs: each step of one is a single commit.

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::history::deliveries::{DeliveryListColumns, delivery_tables};
use super::operational_events::accept_operational_event;
use super::rows::{delivery_id, delivery_no, millis, state_of};
use super::writer::WriteTransaction;
use super::{EmbeddedStore, change};
use crate::model::audit::{AuditAction, AuditedAction, Initiator};
use crate::model::delivery::DeliveryState;
use crate::model::id::{DeliveryId, EndpointId, JobId, TenantId};
use crate::model::job::{Job, JobCandidate, JobChange, JobPart, JobState};
use crate::model::limits::OverLimit;
use crate::model::operational_event::OperationalEvent;
use crate::model::shard::Lease;
use crate::store::job_columns::{JobColumns, JobPartColumns, job_state};
use crate::store::jobs::{action_of, refusal, with_parts};
use crate::store::row::SqliteColumns;
use crate::store::stored_json::to_json;
use crate::store::{
    CandidatePage, Error, JobAdvanced, JobStarted, JobStep, JobStore, ListPage, MissingResource, ONLY_EPOCH,
    PageRequest, Result, WaitingInJob,
};

const JOBS: &str = "FROM jobs j JOIN tenants t ON t.no = j.tenant AND t.deleted_at IS NULL";

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

    async fn change_job(
        &self,
        by: &Initiator,
        tenant: &TenantId,
        id: JobId,
        change: JobChange,
        now: Timestamp,
    ) -> Result<()> {
        let (by, tenant) = (by.clone(), tenant.clone());
        self.writer.write(move |transaction| change_job(transaction, &by, &tenant, id, change, now)).await?
    }

    async fn open_job_parts(&self) -> Result<Vec<Job>> {
        self.read(|db| {
            let sql = format!("SELECT {} {JOBS} WHERE j.state = 0 AND j.state < 2 ORDER BY j.id", JobColumns::COLUMNS);
            let mut statement = db.prepare_cached(&sql)?;
            let rows = statement.query_map([], JobColumns::read)?;
            let mut jobs = rows.map(|row| Ok(row?.job()?)).collect::<rusqlite::Result<Vec<Job>>>()?;
            for job in &mut jobs {
                job.parts =
                    parts(db, "w.job = ? AND w.is_done = 0", job.id)?.into_iter().map(|(_, part)| part).collect();
            }
            Ok(jobs)
        })
        .await
    }

    async fn job_candidates(
        &self,
        _: &TenantId,
        endpoint: EndpointId,
        state: DeliveryState,
        after: Option<DeliveryId>,
        look: usize,
    ) -> Result<CandidatePage> {
        self.read(move |db| candidates(db, endpoint, state, after, look)).await
    }

    async fn job_waiting(&self, _: &TenantId, job: JobId, endpoint: EndpointId) -> Result<Vec<WaitingInJob>> {
        self.read(move |db| waiting(db, job, endpoint)).await
    }

    async fn advance_job(&self, lease: Lease, step: JobStep, now: Timestamp) -> Result<JobAdvanced> {
        if lease.epoch != ONLY_EPOCH {
            return Err(Error::Stale(lease.shard));
        }
        self.writer.write_later(move |transaction| advance(transaction, &step, now)).await?
    }

    async fn forget_jobs(&self, before: Timestamp) -> Result<()> {
        self.writer
            .write(move |transaction| {
                let old = "(SELECT id FROM jobs WHERE finished_at < ?
                            OR tenant NOT IN (SELECT no FROM tenants WHERE deleted_at IS NULL))";
                for table in ["job_parts", "job_waiting"] {
                    let sql = format!("DELETE FROM {table} WHERE job IN {old}");
                    transaction.db.execute(&sql, [millis(before)])?;
                }
                let sql = format!("DELETE FROM jobs WHERE id IN {old}");
                transaction.db.execute(&sql, [millis(before)]).map(|_| ())
            })
            .await
    }
}

fn parts(db: &Connection, condition: &str, job: JobId) -> rusqlite::Result<Vec<(JobId, JobPart)>> {
    let sql = format!("SELECT {} FROM job_parts w WHERE {condition} ORDER BY w.endpoint", JobPartColumns::COLUMNS);
    let mut statement = db.prepare_cached(&sql)?;
    let rows = statement.query_map([job], JobPartColumns::read)?;
    rows.map(|row| Ok(row?.part()?)).collect()
}

fn create(
    transaction: &mut WriteTransaction<'_>,
    by: &Initiator,
    job: &Job,
    running_max: u32,
) -> rusqlite::Result<Result<JobStarted>> {
    let db = transaction.db;
    let sql = "SELECT no, (SELECT count(*) FROM jobs WHERE tenant = t.no AND state < 2)
               FROM tenants t WHERE id = ? AND deleted_at IS NULL";
    let found: Option<(i64, u32)> =
        db.query_row(sql, [&job.tenant], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let Some((tenant, running)) = found else { return Ok(Err(Error::NotFound(MissingResource::Tenant))) };
    if running >= running_max && !job.parts.is_empty() {
        return Ok(Err(Error::OverLimit(OverLimit::of_jobs(&job.tenant, running, running_max))));
    }
    let is_finished = job.parts.is_empty();
    let state = if is_finished { JobState::Finished } else { JobState::Running };
    let finished_at = is_finished.then(|| millis(job.created_at));
    let sql = "INSERT INTO jobs (id, tenant, state, spec, created_at, finished_at) VALUES (?, ?, ?, ?, ?, ?)";
    db.execute(sql, params![job.id, tenant, state as i64, to_json(&job.spec), millis(job.created_at), finished_at])?;
    for part in &job.parts {
        let sql = "INSERT INTO job_parts (job, endpoint, after, is_read, is_done, counts) VALUES (?, ?, NULL, 0, 0, ?)";
        db.prepare_cached(sql)?.execute(params![job.id, part.endpoint, to_json(&part.counts)])?;
    }
    transaction.record(by, tenant, &AuditedAction::new(AuditAction::JobStarted, &job.tenant, job.id))?;
    if !is_finished {
        return Ok(Ok(JobStarted::default()));
    }
    let event = OperationalEvent::of_finished_job(job, &job.counts(), job.created_at);
    let freed = accept_operational_event(transaction, event, job.created_at)?;
    let operational_events = std::mem::take(&mut transaction.operational_events);
    Ok(Ok(JobStarted { freed, operational_events }))
}

fn change_job(
    transaction: &mut WriteTransaction<'_>,
    by: &Initiator,
    tenant: &TenantId,
    id: JobId,
    change: JobChange,
    now: Timestamp,
) -> rusqlite::Result<Result<()>> {
    let db = transaction.db;
    let sql = format!("SELECT j.tenant, j.state {JOBS} WHERE j.id = ? AND t.id = ?");
    let found: Option<(i64, i64)> =
        db.query_row(&sql, params![id, tenant], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let Some((tenant_no, code)) = found else { return Ok(Err(Error::NotFound(MissingResource::Job))) };
    let next = match job_state(code) {
        Ok(state) => change.apply(state),
        Err(code) => return Ok(Err(Error::UnknownCode(code))),
    };
    let Some(next) = next else {
        return Ok(Err(Error::WrongState(format!("job {id} is over, and cannot be changed by {}", change.verb()))));
    };
    let finished_at = next.is_over().then(|| millis(now));
    db.execute("UPDATE jobs SET state = ?, finished_at = ? WHERE id = ?", params![next as i64, finished_at, id])?;
    if next.is_over() {
        db.execute("DELETE FROM job_waiting WHERE job = ?", [id])?;
    }
    transaction.record(by, tenant_no, &AuditedAction::new(action_of(change), tenant, id))?;
    Ok(Ok(()))
}

/// Reads an endpoint's deliveries in the order of their numbers. Dead ones have a
/// table of their own; to find others, rows in other states are read, too.
fn candidates(
    db: &Connection,
    endpoint: EndpointId,
    state: DeliveryState,
    after: Option<DeliveryId>,
    look: usize,
) -> rusqlite::Result<CandidatePage> {
    let (source, order) = match state {
        DeliveryState::Dead => ("JOIN dead_letters x ON x.no = d.no", "x"),
        DeliveryState::Waiting | DeliveryState::Delivered | DeliveryState::Cancelled => {
            ("INDEXED BY deliveries_by_endpoint", "d")
        }
    };
    let sql = format!(
        "SELECT {}, a.record, d.passed {} WHERE {order}.endpoint = (SELECT no FROM endpoints WHERE id = ?)
             AND {order}.no > ? ORDER BY {order}.no LIMIT ?",
        DeliveryListColumns::COLUMNS,
        delivery_tables(source),
    );
    let mut statement = db.prepare_cached(&sql)?;
    let from = after.map_or(0, delivery_no);
    let mut rows = statement.query(params![endpoint, from, look as i64])?;
    let mut page = CandidatePage::default();
    while let Some(row) = rows.next()? {
        page.read += 1;
        let mut column = 0;
        let listed = DeliveryListColumns::read_next(row, &mut column)?;
        let record: Option<String> = SqliteColumns::read_next(row, &mut column)?;
        let is_passed: bool = SqliteColumns::read_next(row, &mut column)?;
        page.looked_to = Some(delivery_id(listed.delivery.no, listed.delivery.created_at));
        if listed.delivery.shown_state().is_ok_and(|(shown, _)| shown == state) {
            page.candidates.push(JobCandidate { delivery: listed.delivery(record)?, is_passed });
        }
    }
    page.is_end = page.read < look;
    Ok(page)
}

fn waiting(db: &Connection, job: JobId, endpoint: EndpointId) -> rusqlite::Result<Vec<WaitingInJob>> {
    let sql = "SELECT delivery FROM job_waiting WHERE job = ? AND endpoint = ?";
    let mut statement = db.prepare_cached(sql)?;
    let ids = statement.query_map(params![job, endpoint], |row| row.get(0))?;
    let ids = ids.collect::<rusqlite::Result<Vec<DeliveryId>>>()?;
    let mut one = db.prepare_cached("SELECT state, lane FROM deliveries WHERE no = ?")?;
    let look = |id: DeliveryId| -> rusqlite::Result<WaitingInJob> {
        let row: Option<(i64, Option<String>)> =
            one.query_row([delivery_no(id)], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        let state = row.as_ref().and_then(|(state, _)| state_of(*state).ok());
        Ok(WaitingInJob { id, state, lane: row.and_then(|(_, lane)| lane) })
    };
    ids.into_iter().map(look).collect()
}

fn advance(
    transaction: &mut WriteTransaction<'_>,
    step: &JobStep,
    now: Timestamp,
) -> rusqlite::Result<Result<JobAdvanced>> {
    let db = transaction.db;
    let sql = "SELECT 1 FROM jobs j JOIN job_parts w ON w.job = j.id
               WHERE j.id = ? AND j.state = 0 AND w.endpoint = ? AND w.after IS ? AND w.is_read = ? AND w.is_done = 0
                   AND w.counts = ?";
    let before = &step.before;
    let bound = params![step.job, before.endpoint, before.after, before.is_read, to_json(&before.counts)];
    if !db.prepare_cached(sql)?.exists(bound)? {
        return Ok(Err(Error::Changed));
    }
    let (mut advanced, mut refused) = (JobAdvanced::default(), Vec::new());
    for id in &step.take {
        match change::change(transaction, &Initiator::Gateway, &step.tenant, *id, (step.change(), step.condition), now)?
        {
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
    if step.kind.is_sending() {
        for (id, _) in &advanced.changed {
            let sql = "INSERT INTO job_waiting (job, endpoint, delivery) VALUES (?, ?, ?)";
            db.prepare_cached(sql)?.execute(params![step.job, part.endpoint, id])?;
        }
    }
    let sql = "UPDATE job_parts SET after = ?, is_read = ?, is_done = ?, counts = ? WHERE job = ? AND endpoint = ?";
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
    let db = transaction.db;
    db.execute("UPDATE jobs SET state = 2, finished_at = ? WHERE id = ?", params![millis(now), step.job])?;
    let sql = format!("SELECT {} {JOBS} WHERE j.id = ?", JobColumns::COLUMNS);
    advanced.is_finished = true;
    let Some(found) = db.query_row(&sql, [step.job], JobColumns::read).optional()? else { return Ok(()) };
    let jobs = with_parts(vec![found.job()?], parts(db, "w.job = ?", step.job)?);
    for job in jobs {
        let event = OperationalEvent::of_finished_job(&job, &job.counts(), now);
        advanced.freed.extend(accept_operational_event(transaction, event, now)?);
    }
    advanced.operational_events = std::mem::take(&mut transaction.operational_events);
    Ok(())
}
