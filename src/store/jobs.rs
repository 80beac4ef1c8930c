//! What a store promises about jobs.
//!
//! A job has a part for each endpoint. The owner of the endpoint does it, a step
//! at a time: a step changes some deliveries and moves the part's position past
//! them in one commit, so that a crash can neither skip nor repeat one.

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use jiff::Timestamp;

use super::changes::DeliveryChanged;
use super::claim::Claim;
use super::error::{Error, Result};
use super::job_columns::{JobColumns, JobPartColumns};
use super::plan::change::ChangeCondition;
use super::queries::{ListPage, PageRequest};
use super::stored_json::{from_json, to_json};
use crate::model::audit::{AuditAction, Initiator};
use crate::model::backfill::BackfillCandidate;
use crate::model::delivery::DeliveryState;
use crate::model::id::{DeliveryId, EndpointId, JobId, TenantId};
use crate::model::job::{
    Job, JobCandidate, JobChange, JobCounts, JobKind, JobPart, JobSpec, JobState, LeftOut, MeasuredPace, UNFINISHED_MAX,
};
use crate::model::limits::OverLimit;
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
    /// The deliveries in the order of the walk.
    pub candidates: Vec<JobCandidate>,
    /// The last one that was read, whatever its state.
    pub looked_to: Option<DeliveryId>,
    /// Number of deliveries that were read, whatever their state.
    pub read: usize,
    /// Whether there are no more.
    pub is_end: bool,
}

/// The way of a walk through the deliveries of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CandidateWalk {
    /// In the order of their creation, behind this delivery if there is one.
    OldestFirst(Option<DeliveryId>),
    /// Against it, before this delivery if there is one.
    NewestFirst(Option<DeliveryId>),
}

/// A delivery that a job changed, and where it stands now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingInJob {
    /// Id of the delivery.
    pub id: DeliveryId,
    /// State of the delivery; none if it was forgotten.
    pub state: Option<DeliveryState>,
    /// Lane of the delivery, if it has one.
    pub lane: Option<String>,
    /// Whether a predecessor in its lane holds it back.
    pub is_behind: bool,
    /// Time of its next attempt, if it waits.
    pub due_at: Option<Timestamp>,
    /// The first delivery of its lane that the job holds back until this one has ended.
    pub next: Option<DeliveryId>,
}

impl WaitingInJob {
    /// Whether no attempt may be made now, because its lane or its retry policy holds it
    /// back.
    pub fn waits_longer(&self, now: Timestamp) -> bool {
        self.is_behind || self.due_at.is_some_and(|due_at| due_at > now)
    }
}

/// The deliveries that a part of a job follows.
#[derive(Debug, Clone, Default)]
pub struct FollowedDeliveries {
    /// Deliveries that it has changed and not seen end yet.
    pub waiting: Vec<WaitingInJob>,
    /// If there are none: deliveries that it holds back, the first of each lane, with the
    /// lane. What they waited for was forgotten, or refused the change.
    pub held: Vec<(DeliveryId, String)>,
}

/// The jobs that run, and what else a node has to know of.
#[derive(Debug, Default)]
pub struct OpenJobs {
    /// Running jobs, each with those of its open parts whose endpoints this node owns.
    pub jobs: Vec<Job>,
    /// Tenants that have queued jobs.
    pub queued: Vec<TenantId>,
    /// Running jobs that this version cannot read, and why.
    pub unreadable: Vec<(JobId, String)>,
}

impl OpenJobs {
    /// Puts parts to their jobs, and sets aside jobs that this version cannot read.
    pub(super) fn of(jobs: Vec<JobColumns>, parts: Vec<JobPartColumns>, queued: Vec<TenantId>) -> Self {
        let (mut open, mut by_job) = (Self { queued, ..Self::default() }, HashMap::<JobId, Vec<JobPart>>::new());
        let mut unreadable = HashMap::new();
        for columns in parts {
            let job = columns.job;
            match columns.part() {
                Ok((_, part)) => by_job.entry(job).or_default().push(part),
                Err(problem) => drop(unreadable.insert(job, problem.to_string())),
            }
        }
        for columns in jobs {
            let id = columns.id;
            match (columns.job(), unreadable.remove(&id)) {
                (Ok(job), None) => open.jobs.push(Job { parts: by_job.remove(&id).unwrap_or_default(), ..job }),
                (Ok(_), Some(problem)) => open.unreadable.push((id, problem)),
                (Err(problem), _) => open.unreadable.push((id, problem.to_string())),
            }
        }
        open
    }
}

/// A question for the past events that a backfill may give to an endpoint.
#[derive(Debug, Clone)]
pub struct BackfillQuery {
    /// Position of the last event that was looked at.
    pub after: Option<DeliveryId>,
    /// Time before which no event is wanted, if there is one.
    pub since: Option<Timestamp>,
    /// Most events to read.
    pub look: usize,
}

/// Some past events, oldest first.
#[derive(Debug, Clone, Default)]
pub struct BackfillPage {
    /// The events themselves.
    pub events: Vec<BackfillCandidate>,
    /// Whether there are no more.
    pub is_end: bool,
}

/// A past event that an endpoint gets.
#[derive(Debug, Clone)]
pub struct BackfillTake {
    /// Position of the event.
    pub position: DeliveryId,
    /// Time at which it expires, in engine time.
    pub expires_at: Option<Timestamp>,
    /// Public URL with which the link to its data begins, if the endpoint may get a link
    /// and the event has none.
    pub link_base: Option<String>,
}

/// One step of a part of a job.
#[derive(Debug, Clone)]
pub struct JobStep {
    /// Id of the job.
    pub job: JobId,
    /// The change that the job makes to each delivery.
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
    /// Past events of which the endpoint gets a delivery.
    pub backfill: Vec<BackfillTake>,
    /// Deliveries that match and come later, each with its lane, which is busy.
    pub hold: Vec<(DeliveryId, String)>,
    /// Deliveries that were held back and are decided about in this step, each with the
    /// lane by which it is found among the others.
    pub unhold: Vec<(DeliveryId, String)>,
    /// Reasons for which the step left deliveries out, one for each.
    pub left_out: Vec<LeftOut>,
    /// Changed deliveries that are no longer followed, and how they stand: they have ended,
    /// or they wait for something that the part does not wait for.
    pub ended: Vec<(DeliveryId, Option<DeliveryState>)>,
    /// How fast deliveries end, if it was measured anew.
    pub pace: Option<MeasuredPace>,
}

/// One step of a purge.
#[derive(Debug, Clone)]
pub struct PurgeStep {
    /// Id of the job.
    pub job: JobId,
    /// The job's only part before the step. If it is another by now, nothing is written.
    pub before: JobPart,
    /// Engine time of the step.
    pub now: Timestamp,
    /// Wall time of the step, for the audit log.
    pub wall: Timestamp,
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
    /// Returns the change that it makes of deliveries; a backfill makes new ones.
    pub fn change(&self) -> Option<DeliveryChange> {
        match self.kind {
            JobKind::Replay => Some(DeliveryChange::Replay),
            JobKind::Retry => Some(DeliveryChange::RetryNow),
            JobKind::Discard => Some(DeliveryChange::Discard),
            JobKind::Cancel => Some(DeliveryChange::Cancel),
            JobKind::Backfill | JobKind::Purge => None,
        }
    }

    /// Whether the step changes neither a delivery nor the part.
    pub fn is_empty(&self) -> bool {
        let is_same_place = self.after == self.before.after && self.is_read == self.before.is_read;
        let has_changes = !self.take.is_empty() || !self.backfill.is_empty() || !self.ended.is_empty();
        is_same_place && !has_changes && self.hold.is_empty() && self.unhold.is_empty()
    }

    /// Returns the part after the step, by the number of deliveries that were changed and
    /// those that refused it.
    pub fn part_after(&self, changed: usize, refused: &[LeftOut]) -> JobPart {
        let mut counts: JobCounts = self.before.counts.clone();
        counts.pace = self.pace.or(counts.pace);
        let changed = changed as u64;
        counts.held = (counts.held + self.hold.len() as u64).saturating_sub(self.unhold.len() as u64);
        counts.matched += changed + (refused.len() + self.left_out.len()) as u64;
        counts.done += changed;
        refused.iter().chain(&self.left_out).for_each(|why| counts.leave_out(*why));
        let is_left = |(_, state): &&(DeliveryId, Option<DeliveryState>)| *state == Some(DeliveryState::Waiting);
        if self.kind.is_sending() {
            let left_waiting = self.ended.iter().filter(is_left).count() as u64;
            let ended = self.ended.len() as u64 - left_waiting;
            counts.left_waiting += left_waiting;
            counts.waiting = (counts.waiting + changed).saturating_sub(ended);
            for (_, state) in &self.ended {
                match state {
                    Some(DeliveryState::Delivered) => counts.delivered += 1,
                    Some(DeliveryState::Dead) => counts.dead += 1,
                    Some(DeliveryState::Waiting | DeliveryState::Cancelled) | None => {}
                }
            }
        }
        let is_done = self.is_read && counts.waiting == counts.left_waiting && counts.held == 0;
        JobPart { after: self.after, is_read: self.is_read, is_done, counts, ..self.before.clone() }
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

/// Returns the state in which a job begins, by how many jobs of its tenant run and how
/// many are not over.
pub(super) fn first_state(job: &Job, (running, unfinished): (u32, u32), running_max: u32) -> Result<JobState> {
    if job.parts.is_empty() {
        return Ok(JobState::Finished);
    }
    let most = if running_max == 0 { 0 } else { UNFINISHED_MAX };
    if unfinished >= most {
        return Err(Error::OverLimit(OverLimit::of_jobs(&job.tenant, unfinished, most)));
    }
    Ok(if running < running_max { JobState::Running } else { JobState::Queued })
}

/// Returns the first delivery of each lane.
pub(super) fn first_of_lanes(mut held: Vec<(DeliveryId, String)>) -> Vec<(DeliveryId, String)> {
    let mut seen = HashSet::new();
    held.retain(|(_, lane)| seen.insert(lane.clone()));
    held
}

/// Returns the refusal of what cannot be done while a tenant is purged.
pub(super) fn still_purged(tenant: &TenantId, job: JobId) -> Error {
    Error::WrongState(format!(
        "tenant {tenant} is being purged by job {job} of the tenant _system; wait until that job is finished"
    ))
}

/// Returns the refusal to purge a tenant that always exists.
pub(super) fn no_purge_of(tenant: &TenantId) -> Error {
    Error::WrongState(format!("tenant {tenant} always exists, and cannot be purged; expunge its events instead"))
}

/// Whether the data of an operational event names this tenant.
pub(super) fn is_about(data: &[u8], tenant: &TenantId) -> bool {
    serde_json::from_slice::<serde_json::Value>(data).is_ok_and(|data| data["tenant"] == tenant.as_str())
}

/// Returns what an ended job of the gateway keeps of its spec when a tenant is purged at
/// whose endpoints it had a part; nothing, if this version cannot read the spec.
pub(super) fn spec_without_names(spec: &str) -> Option<String> {
    let spec: JobSpec = from_json("jobs.spec", spec).ok()?;
    let note = spec.note.as_ref().map(|_| "removed, since a tenant of this job was purged".to_owned());
    Some(to_json(&JobSpec { filter: spec.filter.without_names(), note, ..spec }))
}

/// Returns the action that the audit log records for a change of a job.
pub(super) fn action_of(change: JobChange) -> AuditAction {
    match change {
        JobChange::Pause => AuditAction::JobPaused,
        JobChange::Resume => AuditAction::JobResumed,
        JobChange::Cancel => AuditAction::JobCancelled,
    }
}

/// Attaches each part to its job; the jobs keep their order.
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

/// How many jobs are not over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenJobCounts {
    /// Number of jobs that go on.
    pub running: u64,
    /// Number of jobs that a person paused.
    pub paused: u64,
    /// Number of jobs that wait for another one of their tenant.
    pub queued: u64,
}

/// Keeps jobs and their progress.
#[async_trait]
pub trait JobStore: Send + Sync {
    /// Creates a job with its parts. It is queued if its tenant has `running_max`
    /// jobs that run, and refused if it has too many that are not over. A job
    /// without parts is finished at once.
    async fn create_job(&self, by: &Initiator, job: Job, running_max: u32) -> Result<JobStarted>;

    /// Returns a job of a tenant with its parts.
    async fn job(&self, tenant: &TenantId, id: JobId) -> Result<Option<Job>>;

    /// Returns the tenant that a job belongs to.
    async fn tenant_of_job(&self, id: JobId) -> Result<Option<TenantId>>;

    /// Returns a page of the jobs of a tenant, or of all, newest first.
    async fn jobs(&self, tenant: Option<&TenantId>, page: PageRequest) -> Result<ListPage<Job>>;

    /// Pauses, resumes or cancels a job. One that is resumed while its tenant has
    /// `running_max` jobs that run is queued.
    async fn change_job(
        &self,
        by: &Initiator,
        job: (&TenantId, JobId),
        change: JobChange,
        running_max: u32,
        now: Timestamp,
    ) -> Result<()>;

    /// Returns how many jobs are running and how many are paused.
    async fn open_job_counts(&self) -> Result<OpenJobCounts>;

    /// Starts the queued jobs of a tenant, the oldest first, as long as fewer than
    /// `running_max` run.
    async fn start_queued_jobs(&self, tenant: &TenantId, running_max: u32) -> Result<()>;

    /// Ends a running job, because it cannot go on.
    async fn fail_job(&self, id: JobId, error: String, now: Timestamp) -> Result<JobStarted>;

    /// Returns the running jobs, each with those of its open parts whose endpoints
    /// this node owns. A job of a newer version keeps no other from being read.
    async fn open_jobs(&self) -> Result<OpenJobs>;

    /// Reads an endpoint's deliveries in a state, at most `look` of them.
    async fn job_candidates(
        &self,
        endpoint: EndpointId,
        state: DeliveryState,
        walk: CandidateWalk,
        look: usize,
    ) -> Result<CandidatePage>;

    /// Reads deliveries of a tenant by their ids, in the order of their creation.
    /// Those that do not exist are left out.
    async fn job_candidates_by_id(&self, tenant: &TenantId, ids: Vec<DeliveryId>) -> Result<Vec<JobCandidate>>;

    /// Reads past events of the endpoint's tenant, oldest first, and whether the
    /// endpoint has had a delivery of each. A deleted endpoint gets none.
    async fn backfill_candidates(&self, endpoint: EndpointId, query: BackfillQuery) -> Result<BackfillPage>;

    /// Returns the deliveries that a part has changed and not seen end yet. If there
    /// are none, it returns some that the part holds back.
    async fn job_followed(&self, job: JobId, endpoint: EndpointId) -> Result<FollowedDeliveries>;

    /// Makes one step of a part. With a stale lease, or if the job no longer runs or
    /// has moved on meanwhile, nothing is written.
    async fn advance_job(&self, lease: Lease, step: JobStep, now: Timestamp) -> Result<JobAdvanced>;

    /// Deletes a tenant for everybody, whether it was deleted before or not, and
    /// creates the job that deletes all that is stored of it. It belongs to the
    /// system tenant, and no other tenant gets the id before its end.
    async fn purge_tenant(&self, by: &Initiator, tenant: &TenantId, job: Job) -> Result<()>;

    /// Makes one step of a purge: deletes some rows, or overwrites some of the space
    /// that they had, and stores how far it has come. With a stale lease, or if the
    /// job no longer runs or has moved on meanwhile, nothing is written.
    async fn advance_purge(&self, lease: Lease, step: PurgeStep) -> Result<JobAdvanced>;

    /// Deletes jobs that ended before this time.
    async fn forget_jobs(&self, before: Timestamp) -> Result<()>;
}
