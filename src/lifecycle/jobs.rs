//! Runs jobs: each node does the parts of running jobs at its own endpoints.
//!
//! A step changes a few deliveries and moves the job's position in one commit of
//! the store. What a sending job has put back to waiting is followed to its end:
//! at most `max_in_flight` of them wait per endpoint, one per lane, and the next
//! are released when some have ended. So a million dead letters are never due at
//! once, and new events go first.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tracing::{debug, info, warn};

use super::Gateway;
use crate::model::dead_letter_group::{GroupBy, GroupField, GroupFilter};
use crate::model::delivery::{DeliveryState, after};
use crate::model::endpoint::Endpoint;
use crate::model::id::{DeliveryId, EndpointId, JobId, TenantId};
use crate::model::job::{Job, JobCandidate, JobDecision, JobFilter, JobKind, JobPart, JobSpec, LeftOut};
use crate::model::rate::roughly;
use crate::store::plan::change::ChangeCondition;
use crate::store::{CandidatePage, Error, JobAdvanced, JobStep, Result, WaitingInJob};

/// Rest between looks while a job runs here.
const BUSY_REST: Duration = Duration::from_millis(100);
/// Rest between looks while none does.
const IDLE_REST: Duration = Duration::from_secs(1);
/// Rest after a job was read that this version does not know.
const UNREADABLE_REST: Duration = Duration::from_secs(60);
/// Rest after a step that waits for nothing: it only looked, or it calls nobody.
const STEP_REST: Duration = Duration::from_millis(5);
/// Deliveries that one step reads.
const LOOK: usize = 500;
/// Most deliveries that one step changes, so that no commit is long.
const STEP_MAX: usize = 100;

/// Runs the jobs of this node's endpoints; never returns.
pub async fn run(gateway: Arc<Gateway>) {
    let mut runner = JobRunner::default();
    loop {
        let rest = match runner.step(&gateway).await {
            Ok(rest) => rest,
            Err(problem @ Error::Unavailable(_)) => {
                debug!("jobs could not be read; they are read again soon: {problem}");
                IDLE_REST
            }
            Err(problem) => {
                warn!("no job goes on, because one cannot be read; it is read again in a minute: {problem}");
                UNREADABLE_REST
            }
        };
        gateway.clock.sleep_until(after(gateway.clock.now(), roughly(rest, rand::random()))).await;
    }
}

/// The pace of each part that runs here: how many it may take, and since when.
#[derive(Debug, Default)]
pub struct JobRunner {
    paces: HashMap<(JobId, EndpointId), PartPace>,
}

#[derive(Debug, Clone, Copy)]
struct PartPace {
    allowance: f64,
    at: Timestamp,
}

impl JobRunner {
    /// Makes one step of every part that runs here. Returns how long to rest then.
    pub async fn step(&mut self, gateway: &Gateway) -> Result<Duration> {
        let jobs = gateway.store.open_job_parts().await?;
        let running: HashSet<(JobId, EndpointId)> =
            jobs.iter().flat_map(|job| job.parts.iter().map(|part| (job.id, part.endpoint))).collect();
        self.paces.retain(|part, _| running.contains(part));
        let mut rest = if running.is_empty() { IDLE_REST } else { BUSY_REST };
        for job in &jobs {
            for part in &job.parts {
                match self.step_part(gateway, job, part).await {
                    Ok(true) => rest = STEP_REST,
                    Ok(false) | Err(Error::Stale(_) | Error::Changed) => {}
                    Err(problem) => {
                        // It is not known whether anything was written: the store is asked what is due.
                        gateway.dispatcher.due_in_store(part.endpoint, gateway.clock.now());
                        warn!(job.id = %job.id, endpoint.id = %part.endpoint, "job {} rests at endpoint {} and goes on soon: {problem}", job.id, part.endpoint);
                    }
                }
            }
        }
        Ok(rest)
    }

    /// Makes one step of a part. Returns whether the next need not wait for anything.
    async fn step_part(&mut self, gateway: &Gateway, job: &Job, part: &JobPart) -> Result<bool> {
        let lease = gateway.store.lease(&job.tenant, part.endpoint);
        if !lease.is_held() {
            return Ok(false);
        }
        let now = gateway.clock.now();
        let endpoint = gateway.store.endpoint(&job.tenant, part.endpoint);
        let waiting = if job.spec.kind.is_sending() {
            gateway.store.job_waiting(&job.tenant, job.id, part.endpoint).await?
        } else {
            Vec::new()
        };
        let (still, ended): (Vec<WaitingInJob>, Vec<WaitingInJob>) =
            waiting.into_iter().partition(|one| one.state == Some(DeliveryState::Waiting) && endpoint.is_some());
        let pace = self.paces.entry((job.id, part.endpoint)).or_insert(PartPace { allowance: 1.0, at: now });
        let most = pace.most(&job.spec, endpoint.as_deref(), still.len(), now);
        let page = if part.is_read || most == 0 {
            CandidatePage::default()
        } else {
            let state = job.spec.state();
            gateway.store.job_candidates(&job.tenant, part.endpoint, state, part.after, LOOK).await?
        };
        let lanes = still.into_iter().filter_map(|one| one.lane).collect();
        let filter = job.spec.filter.clone().on_engine(gateway.clock.wall_offset());
        let picker = PartPicker { job, filter: &filter, is_deleted: endpoint.is_none(), now };
        let is_in_flight = |id: DeliveryId| gateway.dispatcher.is_in_flight(part.endpoint, id);
        let picked = picker.pick(&page, lanes, most, is_in_flight);
        let is_read = part.is_read || picked.is_whole && page.is_end && most > 0;
        let after = picked.after.or(part.after);
        if picked.take.is_empty() && ended.is_empty() && after == part.after && is_read == part.is_read {
            return Ok(false);
        }
        let has_more = !is_read && (picked.take.is_empty() || !job.spec.kind.is_sending());
        pace.allowance -= picked.take.len() as f64;
        let step = JobStep {
            job: job.id,
            tenant: job.tenant.clone(),
            kind: job.spec.kind,
            before: part.clone(),
            after,
            is_read,
            take: picked.take,
            condition: ChangeCondition {
                state: Some(job.spec.state()),
                is_unpassed: job.spec.kind == JobKind::Replay && !job.spec.even_overtaken,
            },
            left_out: picked.left_out,
            ended: ended.into_iter().map(|one| (one.id, one.state)).collect(),
        };
        let advanced = gateway.store.advance_job(lease, step, now).await?;
        put_in_force(gateway, job, advanced, now);
        Ok(has_more)
    }
}

impl PartPace {
    /// Returns how many deliveries may be taken now, while so many of the part's wait.
    fn most(&mut self, spec: &JobSpec, endpoint: Option<&Endpoint>, waiting: usize, now: Timestamp) -> usize {
        let Some(endpoint) = endpoint.filter(|_| spec.kind.is_sending()) else { return STEP_MAX };
        let per_second = per_second(spec, endpoint);
        let seconds = (now.as_millisecond() - self.at.as_millisecond()).max(0) as f64 / 1e3;
        // At most a second's worth is saved up.
        self.allowance = (self.allowance + seconds * per_second).min(per_second.max(1.0));
        self.at = now;
        let free = (endpoint.max_in_flight() as usize).saturating_sub(waiting);
        (self.allowance.max(0.0) as usize).min(free).min(STEP_MAX)
    }
}

/// Returns how many deliveries a job releases per second at an endpoint: a quarter of
/// its rate, unless the job says otherwise.
pub fn per_second(spec: &JobSpec, endpoint: &Endpoint) -> f64 {
    spec.per_second.unwrap_or(endpoint.rate().per_second / 4.0).min(endpoint.rate().per_second)
}

/// Returns the pace that a job reaches at an endpoint whose receiver answers at once: a
/// step releases at most `max_in_flight`, and the next begins after a rest.
fn reached_per_second(spec: &JobSpec, endpoint: &Endpoint) -> f64 {
    let most = f64::from(endpoint.max_in_flight()) / BUSY_REST.as_secs_f64();
    per_second(spec, endpoint).min(most)
}

/// What one step does about the deliveries it has read.
#[derive(Debug, Default)]
struct PickedDeliveries {
    take: Vec<DeliveryId>,
    left_out: Vec<LeftOut>,
    /// The last one that was decided about.
    after: Option<DeliveryId>,
    /// Whether all that were read were decided about.
    is_whole: bool,
}

/// Decides which deliveries a step takes.
struct PartPicker<'a> {
    job: &'a Job,
    filter: &'a JobFilter,
    is_deleted: bool,
    now: Timestamp,
}

impl PartPicker<'_> {
    /// Takes deliveries in their order, at most this many and one per lane. The first
    /// that has to wait ends the step.
    fn pick(
        &self,
        page: &CandidatePage,
        mut lanes: HashSet<String>,
        most: usize,
        is_in_flight: impl Fn(DeliveryId) -> bool,
    ) -> PickedDeliveries {
        let mut picked = PickedDeliveries::default();
        for candidate in &page.candidates {
            match self.decide(candidate, &is_in_flight) {
                JobDecision::Pass => {}
                JobDecision::LeaveOut(why) => picked.left_out.push(why),
                JobDecision::Take => {
                    let lane = candidate.delivery.lane.clone().filter(|_| self.job.spec.kind == JobKind::Replay);
                    let is_lane_busy = lane.as_ref().is_some_and(|lane| lanes.contains(lane));
                    if picked.take.len() >= most || is_lane_busy {
                        return picked;
                    }
                    lanes.extend(lane);
                    picked.take.push(candidate.delivery.id);
                }
            }
            picked.after = Some(candidate.delivery.id);
        }
        picked.after = page.looked_to.or(picked.after);
        picked.is_whole = true;
        picked
    }

    fn decide(&self, candidate: &JobCandidate, is_in_flight: &impl Fn(DeliveryId) -> bool) -> JobDecision {
        let spec = &self.job.spec;
        match spec.decide(self.filter, candidate, self.job.created_at, self.now) {
            JobDecision::Take if self.is_deleted && spec.kind.is_sending() => {
                JobDecision::LeaveOut(LeftOut::EndpointDeleted)
            }
            JobDecision::Take if spec.kind == JobKind::Retry && is_in_flight(candidate.delivery.id) => {
                JobDecision::LeaveOut(LeftOut::WrongState)
            }
            decision => decision,
        }
    }
}

/// Puts a step in force that is durable.
fn put_in_force(gateway: &Gateway, job: &Job, advanced: JobAdvanced, now: Timestamp) {
    if job.spec.kind == JobKind::Cancel {
        gateway.metrics.cancelled(advanced.changed.len() as u64);
    }
    if job.spec.kind == JobKind::Replay && !advanced.changed.is_empty() {
        gateway.expiry.schedule_check(now);
    }
    for (id, changed) in advanced.changed {
        gateway.dispatcher.delivery_changed(changed.endpoint, id, changed.due_at);
        gateway.dispatcher.admit(changed.freed);
        gateway.notifier.operational_events_written(&changed.operational_events);
    }
    gateway.dispatcher.admit(advanced.freed);
    gateway.notifier.operational_events_written(&advanced.operational_events);
    if advanced.is_finished {
        info!(job.id = %job.id, tenant.id = %job.tenant, "job {} is finished", job.id);
    }
}

/// Most deliveries that a preview reads.
const PREVIEW_LOOK: usize = 10_000;

/// What a job would do.
#[derive(Debug, Default)]
pub struct JobPreview {
    /// What it would do at each endpoint, the most deliveries first.
    pub endpoints: Vec<EndpointPreview>,
    /// What it would leave out, and how many.
    pub left_out: BTreeMap<LeftOut, u64>,
    /// Whether all deliveries were looked at.
    pub is_exact: bool,
}

/// What a job would do at one endpoint.
#[derive(Debug)]
pub struct EndpointPreview {
    /// The endpoint itself.
    pub endpoint: EndpointId,
    /// Deliveries that it would change.
    pub matches: u64,
    /// Lanes that they are in.
    pub lanes: u64,
    /// Deliveries per second.
    pub per_second: Option<f64>,
}

/// Looks at the deliveries that a job would take, up to a limit.
pub async fn preview(gateway: &Gateway, job: &Job) -> Result<JobPreview> {
    let now = gateway.clock.now();
    let filter = job.spec.filter.clone().on_engine(gateway.clock.wall_offset());
    let (mut preview, mut left) = (JobPreview { is_exact: true, ..JobPreview::default() }, PREVIEW_LOOK);
    for part in &job.parts {
        let endpoint = gateway.store.endpoint(&job.tenant, part.endpoint);
        let picker = PartPicker { job, filter: &filter, is_deleted: endpoint.is_none(), now };
        let (mut matches, mut lanes, mut after) = (0, HashSet::new(), None);
        loop {
            if left == 0 {
                preview.is_exact = false;
                break;
            }
            let look = LOOK.min(left);
            let page = gateway.store.job_candidates(&job.tenant, part.endpoint, job.spec.state(), after, look).await?;
            left = left.saturating_sub(page.read.max(1));
            for candidate in &page.candidates {
                match picker.decide(candidate, &|_| false) {
                    JobDecision::Pass => {}
                    JobDecision::LeaveOut(why) => *preview.left_out.entry(why).or_default() += 1,
                    JobDecision::Take => {
                        matches += 1;
                        lanes.extend(candidate.delivery.lane.clone());
                    }
                }
            }
            after = page.looked_to.or(after);
            if page.is_end {
                break;
            }
        }
        let sending = endpoint.as_deref().filter(|_| job.spec.kind.is_sending());
        let per_second = sending.map(|endpoint| reached_per_second(&job.spec, endpoint));
        let lanes = lanes.len() as u64;
        preview.endpoints.push(EndpointPreview { endpoint: part.endpoint, matches, lanes, per_second });
    }
    preview.endpoints.retain(|endpoint| endpoint.matches > 0);
    preview.endpoints.sort_by_key(|endpoint| std::cmp::Reverse(endpoint.matches));
    Ok(preview)
}

/// Returns the parts of a job: the endpoints that may have what it takes.
pub async fn parts_of(gateway: &Gateway, tenant: &TenantId, spec: &JobSpec) -> Result<Vec<JobPart>> {
    let mut endpoints: Vec<EndpointId> = if !spec.filter.ids.is_empty() {
        let mut found = Vec::new();
        for id in &spec.filter.ids {
            found.extend(gateway.store.delivery(tenant, *id).await?.map(|delivery| delivery.endpoint_id));
        }
        found
    } else if spec.state() == DeliveryState::Dead {
        let by = Some(GroupBy::of(&[GroupField::Endpoint]));
        let ask = GroupFilter { by, cause: spec.filter.cause, ..GroupFilter::default() };
        let groups = gateway.store.dead_letter_groups(Some(tenant), ask, usize::MAX).await?;
        groups.data.into_iter().filter_map(|group| group.endpoint).collect()
    } else {
        gateway.store.endpoints(tenant).iter().map(|endpoint| endpoint.id).collect()
    };
    endpoints.retain(|endpoint| spec.filter.endpoints.is_empty() || spec.filter.endpoints.contains(endpoint));
    endpoints.sort();
    endpoints.dedup();
    Ok(endpoints.into_iter().map(JobPart::new).collect())
}
