//! Keeps jobs: each step of one is a single transaction of the node that owns
//! the endpoint.
//!
//! Two nodes at once: a step shares the row of its job, so that a person's change
//! waits for it, and no step is made of a job that is paused. A step that may be
//! the last of its part has the row to itself: of two last parts one sees the
//! other done.

use std::collections::HashMap;

use async_trait::async_trait;
use jiff::Timestamp;

use super::access::record;
use super::change_many::change_many;
use super::history::{candidates, candidates_by_id};
use super::job_rows::{JOBS, parts_of, parts_sql, report_job_end};
use super::read_query::{read_both, read_one, read_rows};
use super::rows::{at, delivery_no, millis, state_of};
use super::transaction::{PgTransaction, bind};
use super::unit_of_work::{UnitOfWork, in_transaction};
use super::{PostgresState, PostgresStore, backfill, purge};
use crate::model::audit::{AuditAction, AuditedAction, Initiator};
use crate::model::delivery::DeliveryState;
use crate::model::id::{DeliveryId, EndpointId, JobId, TenantId};
use crate::model::job::{Job, JobCandidate, JobChange, JobPart, JobState};
use crate::model::named_enum::NamedEnum;
use crate::model::operational_event::OperationalEvent;
use crate::model::shard::{Lease, Shard};
use crate::store::job_columns::{JobColumns, JobPartColumns, job_state};
use crate::store::jobs::{action_of, first_of_lanes, first_state, refusal, with_parts};
use crate::store::row::PostgresColumns;
use crate::store::stored_json::to_json;
use crate::store::{
    BackfillPage, BackfillQuery, CandidatePage, CandidateWalk, Error, FollowedDeliveries, JobAdvanced, JobStarted,
    JobStep, JobStore, ListPage, MissingResource, OpenJobCounts, OpenJobs, PageRequest, PurgeStep, Result,
    WaitingInJob,
};

/// How often the beginning of a purge is tried.
const PURGE_TRIES: usize = 5;

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
        Ok(ListPage::of(with_parts(page.data, parts_of(&parts)?), page.next))
    }

    async fn tenant_of_job(&self, id: JobId) -> Result<Option<TenantId>> {
        let found = read_one(&self.shared, &format!("SELECT t.id {JOBS} WHERE j.id = $1"), bind![id]).await?;
        Ok(found.map(|row| row.get(0)))
    }

    async fn change_job(
        &self,
        by: &Initiator,
        job: (&TenantId, JobId),
        change: JobChange,
        running_max: u32,
        now: Timestamp,
    ) -> Result<()> {
        let change = (change, running_max);
        in_transaction(&self.shared, async |work| change_job(work, by, job, change, now).await).await
    }

    async fn open_job_counts(&self) -> Result<OpenJobCounts> {
        let sql = format!(
            "SELECT count(*) FILTER (WHERE j.state = 0), count(*) FILTER (WHERE j.state = 1),
                    count(*) FILTER (WHERE j.state = 4) {JOBS} WHERE j.state < 2 OR j.state = 4"
        );
        let row = read_one(&self.shared, &sql, &[]).await?;
        let count = |at: usize| row.as_ref().map_or(0, |row| row.get::<_, i64>(at).cast_unsigned());
        Ok(OpenJobCounts { running: count(0), paused: count(1), queued: count(2) })
    }

    async fn start_queued_jobs(&self, tenant: &TenantId, running_max: u32) -> Result<()> {
        in_transaction(&self.shared, async |work| {
            let Some(tenant) = lock_tenant(work.tx, tenant).await? else { return Ok(()) };
            let (running, _) = count_jobs_of_tenant(work.tx, tenant).await?;
            let sql = "UPDATE posthaste.jobs SET state = 0 WHERE id IN (
                           SELECT id FROM posthaste.jobs WHERE tenant = $1 AND state = 4 ORDER BY id LIMIT $2)";
            work.tx.execute(sql, bind![tenant, i64::from(running_max.saturating_sub(running))]).await.map(|_| ())
        })
        .await
    }

    async fn fail_job(&self, id: JobId, error: String, now: Timestamp) -> Result<JobStarted> {
        in_transaction(&self.shared, async |work| {
            let mut ended = JobAdvanced::default();
            let sql = "UPDATE posthaste.jobs SET state = 5, finished_at = $2, error = $3 WHERE id = $1 AND state = 0";
            if work.tx.execute(sql, bind![id, millis(now), error]).await? > 0 {
                forget_followed(work.tx, id).await?;
                report_job_end(work, id, &mut ended, now).await?;
            }
            Ok(JobStarted { freed: ended.freed, operational_events: ended.operational_events })
        })
        .await
    }

    async fn open_jobs(&self) -> Result<OpenJobs> {
        let sql = format!("SELECT {} {JOBS} WHERE j.state = 0 AND j.state < 2 ORDER BY j.id", JobColumns::COLUMNS);
        let queued = format!("SELECT DISTINCT t.id {JOBS} WHERE j.state = 4");
        let (jobs, queued) = read_both(&self.shared, (&sql, &[]), (&queued, &[])).await?;
        let jobs: Vec<JobColumns> = jobs.iter().map(JobColumns::read).collect();
        let queued = queued.iter().map(|row| row.get(0)).collect();
        if jobs.is_empty() {
            return Ok(OpenJobs::of(jobs, Vec::new(), queued));
        }
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        let sql = parts_sql("w.job = ANY ($1) AND NOT w.is_done AND w.shard = ANY ($2)");
        let parts = read_rows(&self.shared, &sql, bind![ids, self.shared.shard_leases.numbers()]).await?;
        Ok(OpenJobs::of(jobs, parts.iter().map(JobPartColumns::read).collect(), queued))
    }

    async fn job_candidates(
        &self,
        endpoint: EndpointId,
        state: DeliveryState,
        walk: CandidateWalk,
        look: usize,
    ) -> Result<CandidatePage> {
        candidates(&self.shared, endpoint, state, walk, look).await
    }

    async fn job_candidates_by_id(&self, tenant: &TenantId, ids: Vec<DeliveryId>) -> Result<Vec<JobCandidate>> {
        candidates_by_id(&self.shared, tenant, &ids).await
    }

    async fn backfill_candidates(&self, endpoint: EndpointId, query: BackfillQuery) -> Result<BackfillPage> {
        let found = {
            let index = self.shared.index();
            let entry = index.endpoint_entry(endpoint).map(|(no, endpoint)| (no, endpoint.clone()));
            entry.and_then(|(no, endpoint)| Some((index.tenant_no(&endpoint.tenant)?, no, endpoint)))
        };
        match found {
            Some((tenant, no, endpoint)) => backfill::candidates(&self.shared, (tenant, no, &endpoint), &query).await,
            None => Ok(BackfillPage { is_end: true, ..BackfillPage::default() }),
        }
    }

    async fn job_followed(&self, job: JobId, endpoint: EndpointId) -> Result<FollowedDeliveries> {
        followed(&self.shared, job, endpoint).await
    }

    async fn advance_job(&self, lease: Lease, step: JobStep, now: Timestamp) -> Result<JobAdvanced> {
        in_transaction(&self.shared, async |work| advance(work, lease, &step, now).await).await
    }

    async fn purge_tenant(&self, by: &Initiator, tenant: &TenantId, job: Job) -> Result<()> {
        // Settlements of the tenant may hold rows that this waits for while they wait for
        // the catalog; the server then ends one of the two.
        let mut tries = 1;
        loop {
            let (tenant, job) = (tenant.clone(), job.clone());
            match self.change_catalog(async move |work| purge::begin(work, by, &tenant, &job).await).await {
                Err(Error::Unavailable(_)) if tries < PURGE_TRIES => tries += 1,
                Err(problem) => return Err(problem),
                Ok(()) => break,
            }
        }
        self.shared.start_sweep();
        Ok(())
    }

    async fn advance_purge(&self, lease: Lease, step: PurgeStep) -> Result<JobAdvanced> {
        in_transaction(&self.shared, async |work| purge::step(work, lease, &step).await).await
    }

    async fn forget_jobs(&self, before: Timestamp) -> Result<()> {
        // Only the node that owns the first shard does this.
        if !self.shared.shard_leases.holds(Shard(0)) {
            return Ok(());
        }
        let tx = self.shared.begin().await?;
        let sql = "WITH old AS (DELETE FROM posthaste.jobs WHERE finished_at < $1
                            OR tenant NOT IN (SELECT no FROM posthaste.tenants WHERE deleted_at IS NULL) RETURNING id),
                        waiting AS (DELETE FROM posthaste.job_waiting WHERE job IN (SELECT id FROM old)),
                        held AS (DELETE FROM posthaste.job_held WHERE job IN (SELECT id FROM old))
                   DELETE FROM posthaste.job_parts WHERE job IN (SELECT id FROM old)";
        tx.execute(sql, bind![millis(before)]).await?;
        tx.commit().await
    }
}

/// Reads what a part follows. The rows of deliveries are found by their numbers, and
/// what is held back by its lane.
async fn followed(shared: &PostgresState, job: JobId, endpoint: EndpointId) -> Result<FollowedDeliveries> {
    let sql = "SELECT delivery FROM posthaste.job_waiting WHERE job = $1 AND endpoint = $2";
    let rows = read_rows(shared, sql, bind![job, endpoint]).await?;
    let ids: Vec<DeliveryId> = rows.iter().map(|row| row.get(0)).collect();
    let numbers: Vec<i64> = ids.iter().map(|id| delivery_no(*id)).collect();
    let sql = "SELECT k.delivery, d.state, d.lane, d.behind, d.due_at, (
                   SELECT h.delivery FROM posthaste.job_held h
                   WHERE h.job = $1 AND h.endpoint = $2 AND h.lane = d.lane ORDER BY h.delivery LIMIT 1) AS next
               FROM unnest($3, $4) AS k (delivery, no)
               LEFT JOIN LATERAL (SELECT * FROM posthaste.deliveries d WHERE d.no = k.no LIMIT 1) d ON true";
    let bound = bind![job, endpoint, ids, numbers];
    let rows = if ids.is_empty() { Vec::new() } else { read_rows(shared, sql, bound).await? };
    let waiting = rows.iter().map(|row| WaitingInJob {
        id: row.get("delivery"),
        state: row.get::<_, Option<i16>>("state").and_then(|code| state_of(i64::from(code)).ok()),
        lane: row.get("lane"),
        is_behind: row.get::<_, Option<bool>>("behind").unwrap_or(false),
        due_at: row.get::<_, Option<i64>>("due_at").map(at),
        next: row.get("next"),
    });
    let mut followed = FollowedDeliveries { waiting: waiting.collect(), held: Vec::new() };
    if followed.waiting.is_empty() {
        let sql = "SELECT delivery, lane FROM posthaste.job_held WHERE job = $1 AND endpoint = $2
                   ORDER BY lane, delivery LIMIT 500";
        let rows = read_rows(shared, sql, bind![job, endpoint]).await?;
        followed.held = first_of_lanes(rows.iter().map(|row| (row.get(0), row.get(1))).collect());
    }
    Ok(followed)
}

/// Locks the tenant's row, so that two that start jobs at once see each other.
async fn lock_tenant(tx: &PgTransaction, tenant: &TenantId) -> Result<Option<i64>> {
    let sql = "SELECT no FROM posthaste.tenants WHERE id = $1 AND deleted_at IS NULL FOR UPDATE";
    Ok(tx.query_opt(sql, bind![tenant.as_str()]).await?.map(|row| row.get(0)))
}

/// Returns how many jobs run, by the number of the tenant.
pub async fn count_running(shared: &PostgresState) -> Result<HashMap<i64, u64>> {
    let sql = "SELECT tenant, count(*) FROM posthaste.jobs WHERE state = 0 AND state < 2 GROUP BY tenant";
    let rows = read_rows(shared, sql, &[]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get::<_, i64>(1) as u64)).collect())
}

/// Returns how many jobs of a tenant run, and how many are not over.
async fn count_jobs_of_tenant(tx: &PgTransaction, tenant: i64) -> Result<(u32, u32)> {
    let sql = "SELECT count(*) FILTER (WHERE state = 0), count(*) FROM posthaste.jobs
               WHERE tenant = $1 AND state IN (0, 1, 4)";
    let row = &tx.query(sql, bind![tenant]).await?[0];
    Ok((row.get::<_, i64>(0) as u32, row.get::<_, i64>(1) as u32))
}

async fn forget_followed(tx: &PgTransaction, job: JobId) -> Result<()> {
    tx.execute("DELETE FROM posthaste.job_waiting WHERE job = $1", bind![job]).await?;
    tx.execute("DELETE FROM posthaste.job_held WHERE job = $1", bind![job]).await.map(|_| ())
}

async fn create(work: &mut UnitOfWork<'_>, by: &Initiator, job: &Job, running_max: u32) -> Result<JobStarted> {
    let tenant = lock_tenant(work.tx, &job.tenant).await?.ok_or(Error::NotFound(MissingResource::Tenant))?;
    let state = first_state(job, count_jobs_of_tenant(work.tx, tenant).await?, running_max)?;
    let is_finished = state == JobState::Finished;
    let finished_at = is_finished.then(|| millis(job.created_at));
    let sql = "INSERT INTO posthaste.jobs (id, tenant, state, spec, created_at, finished_at)
               VALUES ($1, $2, $3, $4, $5, $6)";
    let (spec, created_at) = (to_json(&job.spec), millis(job.created_at));
    work.tx.execute(sql, bind![job.id, tenant, state as i16, spec, created_at, finished_at]).await?;
    let endpoints: Vec<EndpointId> = job.parts.iter().map(|part| part.endpoint).collect();
    let tenants: Vec<TenantId> = job.parts.iter().map(|part| part.tenant.clone()).collect();
    let shards: Vec<i16> = job.parts.iter().map(|part| i16::from(Shard::of(&part.tenant, part.endpoint).0)).collect();
    let counts: Vec<String> = job.parts.iter().map(|part| to_json(&part.counts)).collect();
    let sql = "INSERT INTO posthaste.job_parts (job, tenant, endpoint, shard, is_all_read, is_done, counts)
               SELECT $1, p.tenant, p.endpoint, p.shard, false, false, p.counts
               FROM unnest($2, $3, $4, $5) AS p (tenant, endpoint, shard, counts)";
    work.tx.execute(sql, bind![job.id, tenants, endpoints, shards, counts]).await?;
    record(work.tx, by, tenant, &AuditedAction::new(AuditAction::JobStarted, &job.tenant, job.id)).await?;
    if !is_finished {
        return Ok(JobStarted::default());
    }
    let job = &Job { state, ..job.clone() };
    let event = OperationalEvent::of_finished_job(job, &job.counts(), job.created_at);
    let freed = work.accept_operational_event(event, job.created_at).await?;
    Ok(JobStarted { freed, operational_events: std::mem::take(&mut work.operational_events) })
}

async fn change_job(
    work: &mut UnitOfWork<'_>,
    by: &Initiator,
    (tenant, id): (&TenantId, JobId),
    (change, running_max): (JobChange, u32),
    now: Timestamp,
) -> Result<()> {
    let tenant_no = lock_tenant(work.tx, tenant).await?.ok_or(Error::NotFound(MissingResource::Tenant))?;
    let sql = "SELECT state FROM posthaste.jobs WHERE id = $1 AND tenant = $2 FOR UPDATE";
    let row = work.tx.query_opt(sql, bind![id, tenant_no]).await?.ok_or(Error::NotFound(MissingResource::Job))?;
    let code: i16 = row.get(0);
    let has_room = count_jobs_of_tenant(work.tx, tenant_no).await?.0 < running_max;
    let refused = || Error::WrongState(format!("job {id} is over, and cannot be changed by {}", change.as_str()));
    let next = change.apply(job_state(i64::from(code))?, has_room).ok_or_else(refused)?;
    let finished_at = next.is_over().then(|| millis(now));
    let sql = "UPDATE posthaste.jobs SET state = $2, finished_at = $3 WHERE id = $1";
    work.tx.execute(sql, bind![id, next as i16, finished_at]).await?;
    if next.is_over() {
        forget_followed(work.tx, id).await?;
    }
    record(work.tx, by, tenant_no, &AuditedAction::new(action_of(change), tenant, id)).await
}

async fn advance(work: &mut UnitOfWork<'_>, lease: Lease, step: &JobStep, now: Timestamp) -> Result<JobAdvanced> {
    check(work.tx, work.shared.shard_leases.node(), lease, step).await?;
    lock_lanes(work.tx, &step.take).await?;
    let (mut advanced, mut refused) = (JobAdvanced::default(), Vec::new());
    if step.kind.creates_deliveries() {
        for created in backfill::backfill(work, step, now).await? {
            match created {
                Ok(created) => advanced.changed.push(created),
                Err(why) => refused.push(why),
            }
        }
    }
    if let Some(change) = step.change() {
        let change = (change, step.condition);
        for (id, outcome) in change_many(work, &step.before.tenant, &step.take, change, now).await? {
            match outcome {
                Ok(changed) => advanced.changed.push((id, changed)),
                Err(problem) => refused.push(refusal(problem)?),
            }
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
/// does not own the endpoint. Locks the job, for itself alone if it may be finished.
async fn check(tx: &PgTransaction, node: i64, lease: Lease, step: &JobStep) -> Result<()> {
    let lock = if step.is_read { "UPDATE" } else { "SHARE" };
    let sql = format!("SELECT 1 FROM posthaste.jobs WHERE id = $1 AND state = 0 FOR {lock}");
    tx.query_opt(&sql, bind![step.job]).await?.ok_or(Error::Changed)?;
    // Held until the commit, so that no other node reads what is due before it.
    let sql = "SELECT 1 FROM posthaste.shards WHERE shard = $1 AND node = $2 AND epoch = $3 FOR SHARE";
    let (shard, epoch) = (i16::from(lease.shard.0), lease.epoch.0 as i64);
    tx.query_opt(sql, bind![shard, node, epoch]).await?.ok_or(Error::Stale(lease.shard))?;
    let before = &step.before;
    let sql = "SELECT 1 FROM posthaste.job_parts WHERE job = $1 AND endpoint = $2 AND after IS NOT DISTINCT FROM $3
               AND is_all_read = $4 AND NOT is_done AND counts = $5 FOR UPDATE";
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
    if !step.unhold.is_empty() {
        let (held, lanes): (Vec<DeliveryId>, Vec<String>) = step.unhold.iter().cloned().unzip();
        tx.execute(include_str!("sql/unhold.sql"), bind![step.job, part.endpoint, held, lanes]).await?;
    }
    if !step.hold.is_empty() {
        let (held, lanes): (Vec<DeliveryId>, Vec<String>) = step.hold.iter().cloned().unzip();
        let sql = "INSERT INTO posthaste.job_held (job, endpoint, lane, delivery)
                   SELECT $1, $2, h.lane, h.delivery FROM unnest($3, $4) AS h (delivery, lane)";
        tx.execute(sql, bind![step.job, part.endpoint, held, lanes]).await?;
    }
    let changed: Vec<DeliveryId> = advanced.changed.iter().map(|(id, _)| *id).collect();
    if step.kind.is_sending() && !changed.is_empty() {
        let sql = "INSERT INTO posthaste.job_waiting (job, endpoint, delivery) SELECT $1, $2, unnest($3)";
        tx.execute(sql, bind![step.job, part.endpoint, changed]).await?;
    }
    let sql = "UPDATE posthaste.job_parts SET after = $3, is_all_read = $4, is_done = $5, counts = $6
               WHERE job = $1 AND endpoint = $2";
    let counts = to_json(&part.counts);
    tx.execute(sql, bind![step.job, part.endpoint, part.after, part.is_read, part.is_done, counts]).await.map(|_| ())
}

async fn finish(work: &mut UnitOfWork<'_>, step: &JobStep, advanced: &mut JobAdvanced, now: Timestamp) -> Result<()> {
    let sql = "UPDATE posthaste.jobs SET state = 2, finished_at = $2 WHERE id = $1";
    work.tx.execute(sql, bind![step.job, millis(now)]).await?;
    advanced.is_finished = true;
    report_job_end(work, step.job, advanced, now).await
}
