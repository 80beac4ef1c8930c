//! What a store promises about jobs.
//!
//! A job has a part for each endpoint. The owner of the endpoint does it, a step
//! at a time: a step changes some deliveries and moves the part's position past
//! them in one commit, so that a crash can neither skip nor repeat one.

use std::collections::HashMap;

use async_trait::async_trait;
use jiff::Timestamp;

use super::changes::DeliveryChanged;
use super::claim::Claim;
use super::error::{Error, Result};
use super::plan::change::ChangeCondition;
use super::queries::{ListPage, PageRequest};
use crate::model::audit::{AuditAction, Initiator};
use crate::model::delivery::DeliveryState;
use crate::model::id::{DeliveryId, EndpointId, JobId, TenantId};
use crate::model::job::{Job, JobCandidate, JobChange, JobCounts, JobKind, JobPart, LeftOut};
use crate::model::operational_event::OperationalEventType;
use crate::model::shard::Lease;
use crate::store::DeliveryChange;

/// The effects of creating a job.
#[derive(Debug, Default)]
pub struct JobStarted {
    /// Claims on the operational event that it is finished, if it is.
    pub freed: Vec<Claim>,
    /// Types of the operational events about it.
    pub operational_events: Vec<OperationalEventType>,
}

/// Some deliveries of an endpoint.
#[derive(Debug, Clone, Default)]
pub struct CandidatePage {
    /// The deliveries in the order of their creation.
    pub candidates: Vec<JobCandidate>,
    /// The last one that was read, whatever its state.
    pub looked_to: Option<DeliveryId>,
    /// Number of deliveries that were read, whatever their state.
    pub read: usize,
    /// Whether there are no more.
    pub is_end: bool,
}

/// A delivery that a job changed, and where it stands now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingInJob {
    /// Id of the delivery.
    pub id: DeliveryId,
    /// Its state; nothing, if it was forgotten.
    pub state: Option<DeliveryState>,
    /// Its lane, if it has one.
    pub lane: Option<String>,
}

/// One step of a part of a job.
#[derive(Debug, Clone)]
pub struct JobStep {
    /// Id of the job.
    pub job: JobId,
    /// Tenant of the job.
    pub tenant: TenantId,
    /// What is done to each delivery.
    pub kind: JobKind,
    /// What must still be true of each delivery.
    pub condition: ChangeCondition,
    /// The part before the step. If it is another by now, nothing is written.
    pub before: JobPart,
    /// Position after the step.
    pub after: Option<DeliveryId>,
    /// Whether all deliveries were looked at.
    pub is_read: bool,
    /// Deliveries to change.
    pub take: Vec<DeliveryId>,
    /// What was left out on the way.
    pub left_out: Vec<LeftOut>,
    /// Changed deliveries that have ended since, and how.
    pub ended: Vec<(DeliveryId, Option<DeliveryState>)>,
}

/// The effects of a step.
#[derive(Debug, Default)]
pub struct JobAdvanced {
    /// The deliveries that were changed.
    pub changed: Vec<(DeliveryId, DeliveryChanged)>,
    /// Whether the whole job is finished with it.
    pub is_finished: bool,
    /// Claims on the operational event about that.
    pub freed: Vec<Claim>,
    /// Types of the operational events about that.
    pub operational_events: Vec<OperationalEventType>,
}

impl JobStep {
    /// Returns the change that it makes.
    pub fn change(&self) -> DeliveryChange {
        match self.kind {
            JobKind::Replay => DeliveryChange::Replay,
            JobKind::Retry => DeliveryChange::RetryNow,
            JobKind::Discard => DeliveryChange::Discard,
            JobKind::Cancel => DeliveryChange::Cancel,
        }
    }

    /// Returns the part after the step, if so many deliveries were changed and these
    /// refused it.
    pub fn part_after(&self, changed: usize, refused: &[LeftOut]) -> JobPart {
        let mut counts: JobCounts = self.before.counts.clone();
        let changed = changed as u64;
        counts.matched += changed + (refused.len() + self.left_out.len()) as u64;
        counts.done += changed;
        refused.iter().chain(&self.left_out).for_each(|why| counts.leave_out(*why));
        if self.kind.is_sending() {
            counts.waiting = (counts.waiting + changed).saturating_sub(self.ended.len() as u64);
            for (_, state) in &self.ended {
                match state {
                    Some(DeliveryState::Delivered) => counts.delivered += 1,
                    Some(DeliveryState::Dead) => counts.dead += 1,
                    Some(DeliveryState::Waiting | DeliveryState::Cancelled) | None => {}
                }
            }
        }
        let is_done = self.is_read && counts.waiting == 0;
        JobPart { endpoint: self.before.endpoint, after: self.after, is_read: self.is_read, is_done, counts }
    }
}

/// Returns why a delivery is left out that refused a job's change; an error that is no
/// refusal ends the step.
pub(super) fn refusal(problem: Error) -> Result<LeftOut> {
    match problem {
        Error::Expunged(_) => Ok(LeftOut::Expunged),
        Error::WrongState(_) | Error::NotFound(_) | Error::UnknownCode(_) => Ok(LeftOut::WrongState),
        other => Err(other),
    }
}

/// Returns the action that the audit log records for a change of a job.
pub(super) fn action_of(change: JobChange) -> AuditAction {
    match change {
        JobChange::Pause => AuditAction::JobPaused,
        JobChange::Resume => AuditAction::JobResumed,
        JobChange::Cancel => AuditAction::JobCancelled,
    }
}

/// Puts the parts of jobs to their jobs, which stay in their order.
pub(super) fn with_parts(mut jobs: Vec<Job>, parts: Vec<(JobId, JobPart)>) -> Vec<Job> {
    let mut by_job: HashMap<JobId, Vec<JobPart>> = HashMap::new();
    for (job, part) in parts {
        by_job.entry(job).or_default().push(part);
    }
    for job in &mut jobs {
        job.parts = by_job.remove(&job.id).unwrap_or_default();
    }
    jobs
}

/// Keeps jobs and their progress.
#[async_trait]
pub trait JobStore: Send + Sync {
    /// Creates a job with its parts, unless its tenant has `running_max` jobs that
    /// are not over. A job without parts is finished at once.
    async fn create_job(&self, by: &Initiator, job: Job, running_max: u32) -> Result<JobStarted>;

    /// Returns a job of a tenant with its parts.
    async fn job(&self, tenant: &TenantId, id: JobId) -> Result<Option<Job>>;

    /// Returns a page of the jobs of a tenant, or of all, newest first.
    async fn jobs(&self, tenant: Option<&TenantId>, page: PageRequest) -> Result<ListPage<Job>>;

    /// Pauses, resumes or cancels a job.
    async fn change_job(
        &self,
        by: &Initiator,
        tenant: &TenantId,
        id: JobId,
        change: JobChange,
        now: Timestamp,
    ) -> Result<()>;

    /// Returns the running jobs, each with those of its open parts whose endpoints
    /// this node owns.
    async fn open_job_parts(&self) -> Result<Vec<Job>>;

    /// Reads an endpoint's deliveries in a state, in the order of their creation,
    /// behind a delivery. It reads at most `look` of them.
    async fn job_candidates(
        &self,
        tenant: &TenantId,
        endpoint: EndpointId,
        state: DeliveryState,
        after: Option<DeliveryId>,
        look: usize,
    ) -> Result<CandidatePage>;

    /// Returns the deliveries that a part has changed and not seen end yet.
    async fn job_waiting(&self, tenant: &TenantId, job: JobId, endpoint: EndpointId) -> Result<Vec<WaitingInJob>>;

    /// Makes one step of a part. With a stale lease, or if the job no longer runs or
    /// has moved on meanwhile, nothing is written.
    async fn advance_job(&self, lease: Lease, step: JobStep, now: Timestamp) -> Result<JobAdvanced>;

    /// Deletes jobs that ended before this time.
    async fn forget_jobs(&self, before: Timestamp) -> Result<()>;
}
