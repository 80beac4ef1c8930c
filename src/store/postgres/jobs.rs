//! Keeps jobs: each step of one is a single transaction of the node that owns
//! the endpoint.
//!
//! Two nodes at once: whoever writes a part locks the row of its job first, so
//! that of two last parts one sees the other done. A person's change locks it,
//! too, so no step is made of a job that is paused.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;

use super::access::record;
use super::change;
use super::history::candidates;
use super::read_query::{read_both, read_rows};
use super::rows::{delivery_no, millis, state_of};
use super::transaction::{PgTransaction, bind};
use super::unit_of_work::{CommitEffects, UnitOfWork};
use super::{PostgresState, PostgresStore};
use crate::model::audit::{AuditAction, AuditedAction, Initiator};
use crate::model::delivery::DeliveryState;
use crate::model::id::{DeliveryId, EndpointId, JobId, TenantId};
use crate::model::job::{Job, JobChange, JobPart, JobState};
use crate::model::limits::OverLimit;
use crate::model::operational_event::OperationalEvent;
use crate::model::shard::{Lease, Shard};
use crate::store::job_columns::{JobColumns, JobPartColumns, job_state};
use crate::store::jobs::{action_of, refusal, with_parts};
use crate::store::row::PostgresColumns;
use crate::store::stored_json::to_json;
use crate::store::{
    CandidatePage, Error, JobAdvanced, JobStarted, JobStep, JobStore, ListPage, MissingResource, PageRequest, Result,
    WaitingInJob,
};

const JOBS: &str = "FROM posthaste.jobs j JOIN posthaste.tenants t ON t.no = j.tenant AND t.deleted_at IS NULL";

#[async_trait]
impl JobStore for PostgresStore {
    async fn create_job(&self, by: &Initiator, job: Job, running_max: u32) -> Result<JobStarted> {
        in_transaction(&self.shared, async |work| create(work, by, &job, running_max).await).await
    }

    async fn job(&self, tenant: &TenantId, id: JobId) -> Result<Option<Job>> {
        let sql = format!("SELECT {} {JOBS} WHERE j.id = $1 AND t.id = $2", JobColumns::COLUMNS);
        let (jobs, parts) =
            read_both(&self.shared, (&sql, bind![id, tenant.as_str()]), (&parts_sql("w.job = $1"), bind![id])).await?;
        let jobs = jobs.iter().map(|row| Ok(JobColumns::read(row).job()?)).collect::<Result<Vec<Job>>>()?;
        Ok(with_parts(jobs, parts_of(&parts)?).pop())
    }

    async fn jobs(&self, tenant: Option<&TenantId>, page: PageRequest) -> Result<ListPage<Job>> {
        let below: Option<JobId> =
            page.cursor.as_deref().map(str::parse).transpose().map_err(|_| Error::InvalidCursor)?;
        let sql = format!(
            "SELECT {} {JOBS} WHERE ($1::text IS NULL OR t.id = $1) AND ($2::uuid IS NULL OR j.id < $2)
             ORDER BY j.id DESC LIMIT $3",
            JobColumns::COLUMNS
        );
        let limit = i64::try_from(page.limit).unwrap_or(i64::MAX).saturating_add(1);
        let rows = read_rows(&self.shared, &sql, bind![tenant.cloned(), below, limit]).await?;
        let jobs = rows.iter().map(|row| Ok(JobColumns::read(row).job()?)).collect::<Result<Vec<Job>>>()?;
        let page = ListPage::truncate(jobs, page.limit, |job| job.id.to_string());
        let ids: Vec<JobId> = page.data.iter().map(|job| job.id).collect();
        let parts = read_rows(&self.shared, &parts_sql("w.job = ANY ($1)"), bind![ids]).await?;
        Ok(ListPage { data: with_parts(page.data, parts_of(&parts)?), next: page.next })
    }

    async fn change_job(
        &self,
        by: &Initiator,
        tenant: &TenantId,
        id: JobId,
        change: JobChange,
        now: Timestamp,
    ) -> Result<()> {
        in_transaction(&self.shared, async |work| change_job(work, by, tenant, id, change, now).await).await
    }

    async fn open_job_parts(&self) -> Result<Vec<Job>> {
        let sql = format!("SELECT {} {JOBS} WHERE j.state = 0 AND j.state < 2 ORDER BY j.id", JobColumns::COLUMNS);
        let rows = read_rows(&self.shared, &sql, &[]).await?;
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let jobs = rows.iter().map(|row| Ok(JobColumns::read(row).job()?)).collect::<Result<Vec<Job>>>()?;
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        let sql = parts_sql("w.job = ANY ($1) AND NOT w.is_done AND w.shard = ANY ($2)");
        let parts = read_rows(&self.shared, &sql, bind![ids, self.shared.shard_leases.numbers()]).await?;
        Ok(with_parts(jobs, parts_of(&parts)?))
    }

    async fn job_candidates(
        &self,
        _: &TenantId,
        endpoint: EndpointId,
        state: DeliveryState,
        after: Option<DeliveryId>,
        look: usize,
    ) -> Result<CandidatePage> {
        candidates(&self.shared, endpoint, state, after.map_or(0, delivery_no), look).await
    }

    async fn job_waiting(&self, _: &TenantId, job: JobId, endpoint: EndpointId) -> Result<Vec<WaitingInJob>> {
        let sql = "SELECT delivery FROM posthaste.job_waiting WHERE job = $1 AND endpoint = $2";
        let rows = read_rows(&self.shared, sql, bind![job, endpoint]).await?;
        let ids: Vec<DeliveryId> = rows.iter().map(|row| row.get(0)).collect();
        let numbers: Vec<i64> = ids.iter().map(|id| delivery_no(*id)).collect();
        let sql = "SELECT d.no, d.state, d.lane FROM unnest($1) AS k (no)
                   CROSS JOIN LATERAL (SELECT * FROM posthaste.deliveries d WHERE d.no = k.no LIMIT 1) d";
        let rows = if ids.is_empty() { Vec::new() } else { read_rows(&self.shared, sql, bind![numbers]).await? };
        let found = |id: DeliveryId| {
            let row = rows.iter().find(|row| row.get::<_, i64>(0) == delivery_no(id));
            let state = row.and_then(|row| state_of(i64::from(row.get::<_, i16>(1))).ok());
            WaitingInJob { id, state, lane: row.and_then(|row| row.get(2)) }
        };
        Ok(ids.into_iter().map(found).collect())
    }

    async fn advance_job(&self, lease: Lease, step: JobStep, now: Timestamp) -> Result<JobAdvanced> {
        in_transaction(&self.shared, async |work| advance(work, lease, &step, now).await).await
    }

    async fn forget_jobs(&self, before: Timestamp) -> Result<()> {
        // Only the node that owns the first shard does this.
        if !self.shared.shard_leases.holds(Shard(0)) {
            return Ok(());
        }
        let tx = self.shared.begin().await?;
        let sql = "WITH old AS (DELETE FROM posthaste.jobs WHERE finished_at < $1
                            OR tenant NOT IN (SELECT no FROM posthaste.tenants WHERE deleted_at IS NULL) RETURNING id),
                        waiting AS (DELETE FROM posthaste.job_waiting WHERE job IN (SELECT id FROM old))
                   DELETE FROM posthaste.job_parts WHERE job IN (SELECT id FROM old)";
        tx.execute(sql, bind![millis(before)]).await?;
        tx.commit().await
    }
}

/// Runs a transaction, and applies its effects once it is durable.
async fn in_transaction<T>(
    shared: &Arc<PostgresState>,
    write: impl AsyncFnOnce(&mut UnitOfWork<'_>) -> Result<T>,
) -> Result<T> {
    let tx = shared.begin().await?;
    let mut work = UnitOfWork::new(shared, &tx);
    let written = write(&mut work).await;
    let effects: CommitEffects = work.end();
    match written {
        Ok(value) => {
            tx.commit().await?;
            shared.adopt(effects).await;
            Ok(value)
        }
        Err(refused) => {
            tx.roll_back().await;
            Err(refused)
        }
    }
}

fn parts_sql(condition: &str) -> String {
    format!("SELECT {} FROM posthaste.job_parts w WHERE {condition} ORDER BY w.endpoint", JobPartColumns::COLUMNS)
}

fn parts_of(rows: &[tokio_postgres::Row]) -> Result<Vec<(JobId, JobPart)>> {
    rows.iter().map(|row| Ok(JobPartColumns::read(row).part()?)).collect()
}

async fn create(work: &mut UnitOfWork<'_>, by: &Initiator, job: &Job, running_max: u32) -> Result<JobStarted> {
    // The tenant's row is locked, so that two creations at once see each other.
    let sql = "SELECT no FROM posthaste.tenants WHERE id = $1 AND deleted_at IS NULL FOR UPDATE";
    let row = work.tx.query_opt(sql, bind![job.tenant]).await?.ok_or(Error::NotFound(MissingResource::Tenant))?;
    let tenant: i64 = row.get(0);
    let sql = "SELECT count(*) FROM posthaste.jobs WHERE tenant = $1 AND state < 2";
    let running: i64 = work.tx.query(sql, bind![tenant]).await?[0].get(0);
    if running >= i64::from(running_max) && !job.parts.is_empty() {
        return Err(Error::OverLimit(OverLimit::of_jobs(&job.tenant, running as u32, running_max)));
    }
    let is_finished = job.parts.is_empty();
    let state = if is_finished { JobState::Finished } else { JobState::Running } as i16;
    let finished_at = is_finished.then(|| millis(job.created_at));
    let sql = "INSERT INTO posthaste.jobs (id, tenant, state, spec, created_at, finished_at)
               VALUES ($1, $2, $3, $4, $5, $6)";
    let (spec, created_at) = (to_json(&job.spec), millis(job.created_at));
    work.tx.execute(sql, bind![job.id, tenant, state, spec, created_at, finished_at]).await?;
    let endpoints: Vec<EndpointId> = job.parts.iter().map(|part| part.endpoint).collect();
    let shards: Vec<i16> = endpoints.iter().map(|endpoint| i16::from(Shard::of(&job.tenant, *endpoint).0)).collect();
    let sql = "INSERT INTO posthaste.job_parts (job, endpoint, shard, is_read, is_done, counts)
               SELECT $1, p.endpoint, p.shard, false, false, $4 FROM unnest($2, $3) AS p (endpoint, shard)";
    let none = to_json(&crate::model::job::JobCounts::default());
    work.tx.execute(sql, bind![job.id, endpoints, shards, none]).await?;
    record(work.tx, by, tenant, &AuditedAction::new(AuditAction::JobStarted, &job.tenant, job.id)).await?;
    if !is_finished {
        return Ok(JobStarted::default());
    }
    let event = OperationalEvent::of_finished_job(job, &job.counts(), job.created_at);
    let freed = work.accept_operational_event(event, job.created_at).await?;
    Ok(JobStarted { freed, operational_events: std::mem::take(&mut work.operational_events) })
}

async fn change_job(
    work: &mut UnitOfWork<'_>,
    by: &Initiator,
    tenant: &TenantId,
    id: JobId,
    change: JobChange,
    now: Timestamp,
) -> Result<()> {
    let sql = format!("SELECT j.tenant, j.state {JOBS} WHERE j.id = $1 AND t.id = $2 FOR UPDATE OF j");
    let row =
        work.tx.query_opt(&sql, bind![id, tenant.as_str()]).await?.ok_or(Error::NotFound(MissingResource::Job))?;
    let (tenant_no, code): (i64, i16) = (row.get(0), row.get(1));
    let refused = || Error::WrongState(format!("job {id} is over, and cannot be changed by {}", change.verb()));
    let next = change.apply(job_state(i64::from(code))?).ok_or_else(refused)?;
    let finished_at = next.is_over().then(|| millis(now));
    let sql = "UPDATE posthaste.jobs SET state = $2, finished_at = $3 WHERE id = $1";
    work.tx.execute(sql, bind![id, next as i16, finished_at]).await?;
    if next.is_over() {
        work.tx.execute("DELETE FROM posthaste.job_waiting WHERE job = $1", bind![id]).await?;
    }
    record(work.tx, by, tenant_no, &AuditedAction::new(action_of(change), tenant, id)).await
}

async fn advance(work: &mut UnitOfWork<'_>, lease: Lease, step: &JobStep, now: Timestamp) -> Result<JobAdvanced> {
    check(work.tx, work.shared.shard_leases.node(), lease, step).await?;
    lock_lanes(work.tx, &step.take).await?;
    let (mut advanced, mut refused) = (JobAdvanced::default(), Vec::new());
    for id in &step.take {
        match change::make(work, &Initiator::Gateway, &step.tenant, *id, (step.change(), step.condition), now).await {
            Ok(changed) => advanced.changed.push((*id, changed)),
            Err(problem) => refused.push(refusal(problem)?),
        }
    }
    let part = step.part_after(advanced.changed.len(), &refused);
    write_part(work.tx, step, &part, &advanced).await?;
    let sql = "SELECT 1 FROM posthaste.job_parts WHERE job = $1 AND NOT is_done LIMIT 1";
    if part.is_done && work.tx.query_opt(sql, bind![step.job]).await?.is_none() {
        finish(work, step, &mut advanced, now).await?;
    }
    Ok(advanced)
}

/// Refuses a step of a job that does not run or has moved on, and one of a node that
/// does not own the endpoint. Locks the job.
async fn check(tx: &PgTransaction, node: i64, lease: Lease, step: &JobStep) -> Result<()> {
    let sql = "SELECT 1 FROM posthaste.jobs WHERE id = $1 AND state = 0 FOR UPDATE";
    tx.query_opt(sql, bind![step.job]).await?.ok_or(Error::Changed)?;
    // Held until the commit, so that no other node reads what is due before it.
    let sql = "SELECT 1 FROM posthaste.shards WHERE shard = $1 AND node = $2 AND epoch = $3 FOR SHARE";
    let (shard, epoch) = (i16::from(lease.shard.0), lease.epoch.0 as i64);
    tx.query_opt(sql, bind![shard, node, epoch]).await?.ok_or(Error::Stale(lease.shard))?;
    let before = &step.before;
    let sql = "SELECT 1 FROM posthaste.job_parts WHERE job = $1 AND endpoint = $2 AND after IS NOT DISTINCT FROM $3
               AND is_read = $4 AND NOT is_done AND counts = $5";
    let counts = to_json(&before.counts);
    let bound = bind![step.job, before.endpoint, before.after, before.is_read, counts];
    tx.query_opt(sql, bound).await?.ok_or(Error::Changed)?;
    Ok(())
}

/// Locks the lanes of deliveries in the order in which everybody else locks them:
/// changing one delivery after the other would take them in the order of deliveries.
async fn lock_lanes(tx: &PgTransaction, ids: &[DeliveryId]) -> Result<()> {
    let numbers: Vec<i64> = ids.iter().map(|id| delivery_no(*id)).collect();
    let sql = "SELECT 1 FROM posthaste.lanes l WHERE (l.endpoint, l.lane) IN (
                   SELECT d.endpoint, d.lane FROM unnest($1) AS taken (no)
                   CROSS JOIN LATERAL (SELECT * FROM posthaste.deliveries d WHERE d.no = taken.no LIMIT 1) d
                   WHERE d.lane IS NOT NULL AND NOT d.passed)
               ORDER BY l.endpoint, l.lane FOR UPDATE OF l";
    tx.query(sql, bind![numbers]).await.map(|_| ())
}

async fn write_part(tx: &PgTransaction, step: &JobStep, part: &JobPart, advanced: &JobAdvanced) -> Result<()> {
    let ended: Vec<DeliveryId> = step.ended.iter().map(|(id, _)| *id).collect();
    if !ended.is_empty() {
        let sql = "DELETE FROM posthaste.job_waiting WHERE job = $1 AND endpoint = $2 AND delivery = ANY ($3)";
        tx.execute(sql, bind![step.job, part.endpoint, ended]).await?;
    }
    let changed: Vec<DeliveryId> = advanced.changed.iter().map(|(id, _)| *id).collect();
    if step.kind.is_sending() && !changed.is_empty() {
        let sql = "INSERT INTO posthaste.job_waiting (job, endpoint, delivery) SELECT $1, $2, unnest($3)";
        tx.execute(sql, bind![step.job, part.endpoint, changed]).await?;
    }
    let sql = "UPDATE posthaste.job_parts SET after = $3, is_read = $4, is_done = $5, counts = $6
               WHERE job = $1 AND endpoint = $2";
    let counts = to_json(&part.counts);
    tx.execute(sql, bind![step.job, part.endpoint, part.after, part.is_read, part.is_done, counts]).await.map(|_| ())
}

async fn finish(work: &mut UnitOfWork<'_>, step: &JobStep, advanced: &mut JobAdvanced, now: Timestamp) -> Result<()> {
    let sql = "UPDATE posthaste.jobs SET state = 2, finished_at = $2 WHERE id = $1";
    work.tx.execute(sql, bind![step.job, millis(now)]).await?;
    advanced.is_finished = true;
    let sql = format!("SELECT {} {JOBS} WHERE j.id = $1", JobColumns::COLUMNS);
    let jobs = work.tx.query(&sql, bind![step.job]).await?;
    let jobs = jobs.iter().map(|row| Ok(JobColumns::read(row).job()?)).collect::<Result<Vec<Job>>>()?;
    let parts = parts_of(&work.tx.query(&parts_sql("w.job = $1"), bind![step.job]).await?)?;
    for job in with_parts(jobs, parts) {
        let event = OperationalEvent::of_finished_job(&job, &job.counts(), now);
        advanced.freed.extend(work.accept_operational_event(event, now).await?);
    }
    advanced.operational_events = std::mem::take(&mut work.operational_events);
    Ok(())
}
