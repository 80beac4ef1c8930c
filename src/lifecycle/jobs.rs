//! Runs jobs: each node does the parts of running jobs at its own endpoints.
//!
//! A step changes a few deliveries and moves the job's position in one commit of
//! the store. What a sending job has put back to waiting is followed to its end:
//! at most `max_in_flight` of them may go per endpoint, one per lane, and the next
//! are released when some have ended or failed again, which is looked at more often
//! the faster they end. So a million dead letters are never due at once, and new
//! events go first.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, info, warn};

use self::backfill::EventPicker;
use self::candidates::{LOOK, candidates_of};
use self::pace::{BUSY_REST, NodePace, PartPace, STEP_REST};
use self::pick::{PartPicker, PickedDeliveries, left_waiting};
use super::{Gateway, purge};
use crate::model::dead_letter_group::{GroupBy, GroupField, GroupFilter};
use crate::model::delivery::{DeliveryState, time_after};
use crate::model::id::{DeliveryId, EndpointId, JobId, TenantId};
use crate::model::job::{Job, JobFilter, JobKind, JobPart, JobSpec};
use crate::model::rate::vary_by_tenth;
use crate::store::plan::change::ChangeCondition;
use crate::store::{CandidateWalk, Error, FollowedDeliveries, JobAdvanced, JobStep, Result, WaitingInJob};

mod backfill;
mod candidates;
pub mod held;
pub mod pace;
mod pick;
pub mod preview;
mod tally;

/// Rest between looks while none does.
const IDLE_REST: Duration = Duration::from_secs(1);

/// Runs the jobs of this node's endpoints; never returns.
pub async fn run(gateway: Arc<Gateway>) {
    let mut runner = JobRunner::default();
    loop {
        let rest = match runner.step(&gateway).await {
            Ok(rest) => rest,
            Err(problem) => {
                debug!("jobs could not be read; they are read again soon: {problem}");
                IDLE_REST
            }
        };
        gateway.clock.sleep_until(time_after(gateway.clock.now(), vary_by_tenth(rest, rand::random()))).await;
    }
}

/// The parts of jobs that run here.
#[derive(Debug, Default)]
pub struct JobRunner {
    paces: HashMap<(JobId, EndpointId), PartPace>,
    /// What all of them together may release.
    node: NodePace,
    /// Number of the part that has the first turn.
    turn: usize,
    /// Jobs that this version cannot read, which were logged.
    unreadable: HashSet<JobId>,
}

impl JobRunner {
    /// Makes one step of every part that runs here. Returns how long to rest then.
    pub async fn step(&mut self, gateway: &Gateway) -> Result<Duration> {
        let open = gateway.store.open_jobs().await?;
        for tenant in &open.queued {
            let most = running_max(gateway, tenant);
            if open.jobs.iter().filter(|job| job.tenant == *tenant).count() < most as usize {
                gateway.store.start_queued_jobs(tenant, most).await?;
            }
        }
        self.unreadable.retain(|known| open.unreadable.iter().any(|(id, _)| id == known));
        for (id, problem) in &open.unreadable {
            if self.unreadable.insert(*id) {
                warn!(job.id = %id, "job {id} does not go on at this node, which cannot read it: {problem}");
            }
        }
        let running: HashSet<(JobId, EndpointId)> =
            open.jobs.iter().flat_map(|job| job.parts.iter().map(|part| (job.id, part.endpoint))).collect();
        self.paces.retain(|part, _| running.contains(part));
        let mut rest = if running.is_empty() { IDLE_REST } else { BUSY_REST };
        let mut parts: Vec<(&Job, &JobPart)> =
            open.jobs.iter().flat_map(|job| job.parts.iter().map(move |part| (job, part))).collect();
        // Where there is not enough for all, each has the first turn once.
        let first = self.turn.checked_rem(parts.len()).unwrap_or(0);
        parts.rotate_left(first);
        self.node.limit(gateway.dispatcher.jobs_per_second(), gateway.clock.now());
        let mut had_room = 0;
        for (job, part) in parts {
            had_room += usize::from(self.node.room() > 0);
            let stepped = match job.spec.kind {
                JobKind::Purge => self.step_purge(gateway, job, part).await,
                JobKind::Replay | JobKind::Retry | JobKind::Discard | JobKind::Cancel | JobKind::Backfill => {
                    self.step_part(gateway, job, part).await
                }
            };
            match stepped {
                Ok(of_part) => rest = rest.min(of_part),
                Err(Error::Stale(_) | Error::Changed) => {}
                Err(problem) => {
                    let now = gateway.clock.now();
                    let pace = self.paces.entry((job.id, part.endpoint)).or_insert(PartPace::new(now));
                    part_failed(gateway, job, part, problem, pace.interrupt(now)).await;
                }
            }
        }
        self.turn = self.turn.wrapping_add(had_room);
        Ok(rest)
    }

    /// Makes one step of a purge, if it is time for one. Returns how long to rest then.
    async fn step_purge(&mut self, gateway: &Gateway, job: &Job, part: &JobPart) -> Result<Duration> {
        let now = gateway.clock.now();
        let pace = self.paces.entry((job.id, part.endpoint)).or_insert(PartPace::new(now));
        if let Some(rest) = pace.resting(now) {
            return Ok(rest);
        }
        let has_more = purge::step(gateway, job, part).await?;
        pace.succeed();
        Ok(if has_more { STEP_REST } else { BUSY_REST })
    }

    /// Makes one step of a part, if it is time for one. Returns how long to rest then.
    async fn step_part(&mut self, gateway: &Gateway, job: &Job, part: &JobPart) -> Result<Duration> {
        let lease = gateway.store.lease(&part.tenant, part.endpoint);
        // Even to look costs something, so what may not be released waits for its turn.
        let is_sending = job.spec.kind.is_sending();
        if !lease.is_held() || is_sending && self.node.room() == 0 {
            return Ok(BUSY_REST);
        }
        let now = gateway.clock.now();
        let pace = self.paces.entry((job.id, part.endpoint)).or_insert(PartPace::new(now));
        if let Some(rest) = pace.resting(now) {
            return Ok(rest);
        }
        let endpoint = gateway.store.endpoint(&part.tenant, part.endpoint);
        let (still, ended, held) = followed(gateway, job, part, endpoint.is_some()).await?;
        // What has failed again keeps nothing else from being sent.
        let later = still.iter().filter(|one| one.waits_longer(now)).count();
        let may_go = still.len() - later;
        let mut room = pace.room(&job.spec, endpoint.as_deref(), (may_go, later), now);
        let rest = pace.rest(room.is_at_cap && !self.node.is_limited(), (ended.len(), may_go), now);
        room.most = room.most.min(if is_sending { self.node.room() } else { usize::MAX });
        let filter = job.spec.filter.clone().to_engine_time(gateway.clock.wall_offset());
        let picker = PartPicker { job, filter: &filter, is_deleted: endpoint.is_none(), now };
        let is_in_flight = |id: DeliveryId| gateway.dispatcher.is_in_flight(part.endpoint, id);
        let is_stuck = part.is_read && ended.is_empty() && is_stuck(gateway, part, &still).await?;
        let busy = still.iter().chain(ended.iter().filter(|one| one.next.is_some()));
        let lanes = busy.filter_map(|one| one.lane.clone()).collect();
        let mut picked = PickedDeliveries { lanes, ..PickedDeliveries::default() };
        let next = ended.iter().filter_map(|one| Some((one.next?, one.lane.clone()?)));
        let next: Vec<(DeliveryId, String)> = next.chain(held).take(room.most).collect();
        pick_held(gateway, part, &picker, &mut picked, &next).await?;
        let can_read = !part.is_read && room.most > picked.take.len();
        let mut is_end = false;
        if job.spec.kind.creates_deliveries() {
            is_end = pick_events(gateway, (job, &filter), part, &mut picked, room.most).await?;
        } else if can_read {
            let page =
                candidates_of(gateway, &job.spec, &filter, part, CandidateWalk::OldestFirst(part.after), pace.look())
                    .await?;
            picker.pick(&mut picked, &page, room.most, is_in_flight);
            pace.adapt_look(picked.is_whole, room.most);
            is_end = picked.is_whole && page.is_end;
        }
        // One whose lane has another to come stays listed until that one is taken.
        let is_over = |one: &WaitingInJob| one.next.is_none_or(|next| picked.take.contains(&next));
        let over = ended.iter().filter(|one| is_over(one)).chain(left_waiting(&still, is_stuck, now));
        let ended = over.map(|one| (one.id, one.state)).collect();
        let mut step = job_step(job, part, picked, is_end, ended);
        step.pace = pace.measure(step.ended.len(), now);
        let taken = step.take.len() + step.backfill.len();
        if step.is_empty() {
            return Ok(rest);
        }
        let has_more = !step.is_read && (taken == 0 || !is_sending || room.has_more);
        pace.take(taken);
        self.node.take(if is_sending { taken } else { 0 });
        let advanced = gateway.store.advance_job(lease, step, now).await?;
        pace.succeed();
        put_in_force(gateway, job, part, advanced);
        Ok(if has_more { pace.go_on(now) } else { rest })
    }
}

/// Reads what a part has sent: what still waits, what has ended, and what the part holds
/// back. Nothing waits for an endpoint that was deleted.
async fn followed(
    gateway: &Gateway,
    job: &Job,
    part: &JobPart,
    has_endpoint: bool,
) -> Result<(Vec<WaitingInJob>, Vec<WaitingInJob>, Vec<(DeliveryId, String)>)> {
    if !job.spec.kind.is_sending() {
        return Ok((Vec::new(), Vec::new(), Vec::new()));
    }
    let FollowedDeliveries { waiting, held } = gateway.store.job_followed(job.id, part.endpoint).await?;
    let is_waiting = |one: &WaitingInJob| one.state == Some(DeliveryState::Waiting) && has_endpoint;
    let (still, ended) = waiting.into_iter().partition(is_waiting);
    Ok((still, ended, held))
}

/// Whether all that a part still follows waits behind dead letters in its lanes: nothing
/// comes of it before a person has changed those.
async fn is_stuck(gateway: &Gateway, part: &JobPart, still: &[WaitingInJob]) -> Result<bool> {
    if still.is_empty() || !still.iter().all(|one| one.is_behind) {
        return Ok(false);
    }
    for lane in still.iter().filter_map(|one| one.lane.as_deref()) {
        let head = gateway.store.lane_head(part.endpoint, lane).await?;
        if !head.is_some_and(|(_, is_dead)| is_dead) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Picks what a part held back and may come next.
async fn pick_held(
    gateway: &Gateway,
    part: &JobPart,
    picker: &PartPicker<'_>,
    picked: &mut PickedDeliveries,
    next: &[(DeliveryId, String)],
) -> Result<()> {
    if next.is_empty() {
        return Ok(());
    }
    let ids = next.iter().map(|(id, _)| *id).collect();
    let found = gateway.store.job_candidates_by_id(&part.tenant, ids).await?;
    picker.pick_held(picked, next, &found, |id| gateway.dispatcher.is_in_flight(part.endpoint, id));
    Ok(())
}

/// Picks past events for a part of a backfill. Returns whether there are no more.
async fn pick_events(
    gateway: &Gateway,
    (job, filter): (&Job, &JobFilter),
    part: &JobPart,
    picked: &mut PickedDeliveries,
    most: usize,
) -> Result<bool> {
    let Some(endpoint) = gateway.store.endpoint(&part.tenant, part.endpoint) else { return Ok(true) };
    if part.is_read || most == 0 {
        return Ok(false);
    }
    let picker = EventPicker::new(gateway, job, filter, &endpoint);
    let page = picker.read(gateway, part.after).await?;
    picker.pick(gateway, picked, &page, most);
    Ok(picked.is_whole && page.is_end)
}

/// Returns the step that does what was picked.
fn job_step(
    job: &Job,
    part: &JobPart,
    picked: PickedDeliveries,
    is_end: bool,
    ended: Vec<(DeliveryId, Option<DeliveryState>)>,
) -> JobStep {
    JobStep {
        job: job.id,
        kind: job.spec.kind,
        condition: ChangeCondition {
            state: Some(job.spec.delivery_state()),
            is_unpassed: job.spec.kind.respects_lanes() && !job.spec.even_overtaken,
        },
        before: part.clone(),
        after: picked.after.or(part.after),
        is_read: part.is_read || is_end,
        take: picked.take,
        backfill: picked.backfill,
        hold: picked.hold,
        unhold: picked.unhold,
        left_out: picked.left_out,
        ended,
        pace: None,
    }
}

/// Ends a job that cannot go on; one that meets a store in trouble goes on later, which
/// is logged if it `is_news`.
async fn part_failed(gateway: &Gateway, job: &Job, part: &JobPart, problem: Error, is_news: bool) {
    let now = gateway.clock.now();
    // It is not known whether anything was written: the store is asked what is due.
    gateway.dispatcher.due_in_store(part.endpoint, now);
    if !matches!(problem, Error::Unreadable(_) | Error::UnknownCode(_)) {
        if is_news {
            warn!(job.id = %job.id, endpoint.id = %part.endpoint, "job {} is interrupted at endpoint {} and continues soon: {problem}", job.id, part.endpoint);
        }
        return;
    }
    warn!(job.id = %job.id, endpoint.id = %part.endpoint, "job {} has failed at endpoint {}: {problem}", job.id, part.endpoint);
    let error = format!("at endpoint {}: {problem}", part.endpoint);
    match gateway.store.fail_job(job.id, error, now).await {
        Ok(ended) => {
            gateway.dispatcher.admit(ended.freed);
            gateway.notifier.operational_events_written(&ended.operational_events);
        }
        Err(problem) => {
            warn!(job.id = %job.id, "job {} has failed, and that could not be stored yet: {problem}", job.id)
        }
    }
}

/// Returns how many jobs of a tenant may run at once.
pub fn running_max(gateway: &Gateway, tenant: &TenantId) -> u32 {
    gateway.store.tenant(tenant).map_or(0, |tenant| tenant.limits.jobs_running)
}

/// Puts a step in force that is durable.
fn put_in_force(gateway: &Gateway, job: &Job, part: &JobPart, advanced: JobAdvanced) {
    let count = advanced.changed.len() as u64;
    match job.spec.kind {
        JobKind::Cancel => {
            gateway.metrics.count_cancelled(count);
            gateway.dispatcher.count_cancelled(&part.tenant, part.endpoint, count);
        }
        // Their time limits start again, and may be short.
        JobKind::Replay | JobKind::Backfill if count > 0 => gateway.expiry.schedule_check(gateway.clock.now()),
        JobKind::Replay | JobKind::Backfill | JobKind::Retry | JobKind::Discard | JobKind::Purge => {}
    }
    let changed: Vec<_> = advanced.changed.iter().map(|(id, changed)| (*id, changed.due_at)).collect();
    gateway.dispatcher.deliveries_changed(part.endpoint, &changed);
    for (_, changed) in advanced.changed {
        gateway.dispatcher.admit(changed.freed);
        gateway.notifier.operational_events_written(&changed.operational_events);
    }
    gateway.dispatcher.admit(advanced.freed);
    gateway.notifier.operational_events_written(&advanced.operational_events);
    if advanced.is_finished {
        info!(job.id = %job.id, tenant.id = %job.tenant, "job {} is finished", job.id);
    }
}

/// Returns the parts of a job of this tenant, or of all: the endpoints that may have what
/// it takes. The first part counts the deliveries that the filter names and that are not
/// there.
pub async fn parts_of(gateway: &Gateway, tenant: Option<&TenantId>, spec: &JobSpec) -> Result<Vec<JobPart>> {
    let mut unknown = 0;
    let mut endpoints: Vec<(TenantId, EndpointId)> = if !spec.filter.ids.is_empty() {
        let found = of_ids(gateway, tenant, &spec.filter.ids).await?;
        unknown = spec.filter.ids.len().saturating_sub(found.len());
        found
    } else if spec.delivery_state() == DeliveryState::Dead {
        let by = Some(GroupBy::of(&[GroupField::Tenant, GroupField::Endpoint]));
        let ask = GroupFilter { by, cause: spec.filter.cause, ..GroupFilter::default() };
        let groups = gateway.store.dead_letter_groups(tenant, ask, usize::MAX).await?;
        groups.data.into_iter().filter_map(|group| Some((group.tenant?, group.endpoint?))).collect()
    } else {
        // What waits is at endpoints that exist, and only they get past events.
        let tenants = match tenant {
            Some(tenant) => vec![tenant.clone()],
            None => gateway.store.tenants().iter().map(|tenant| tenant.id.clone()).collect(),
        };
        let of = |tenant: &TenantId| gateway.store.endpoints(tenant).into_iter();
        tenants.iter().flat_map(of).map(|endpoint| (endpoint.tenant.clone(), endpoint.id)).collect()
    };
    endpoints.retain(|(_, id)| spec.filter.endpoints.is_empty() || spec.filter.endpoints.contains(id));
    endpoints.sort_by_key(|(_, id)| *id);
    endpoints.dedup_by_key(|(_, id)| *id);
    let mut parts: Vec<JobPart> =
        endpoints.into_iter().map(|(tenant, endpoint)| JobPart::new(tenant, endpoint)).collect();
    if let Some(first) = parts.first_mut() {
        first.counts.leave_out_unknown(unknown as u64);
    }
    Ok(parts)
}

/// Returns the endpoint of each delivery that is there.
async fn of_ids(
    gateway: &Gateway,
    tenant: Option<&TenantId>,
    ids: &[DeliveryId],
) -> Result<Vec<(TenantId, EndpointId)>> {
    let mut by_tenant: HashMap<TenantId, Vec<DeliveryId>> = HashMap::new();
    for id in ids {
        let of = match tenant {
            Some(tenant) => Some(tenant.clone()),
            None => gateway.store.tenant_of_delivery(*id).await?,
        };
        by_tenant.entry(of.unwrap_or_else(TenantId::system)).or_default().push(*id);
    }
    let mut found = Vec::new();
    for (tenant, ids) in by_tenant {
        for some in ids.chunks(LOOK) {
            let candidates = gateway.store.job_candidates_by_id(&tenant, some.to_vec()).await?;
            found.extend(candidates.into_iter().map(|one| (tenant.clone(), one.delivery.endpoint_id)));
        }
    }
    Ok(found)
}
