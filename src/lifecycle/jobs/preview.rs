//! Previews a job: how many it would take, where, at which pace, and what stays.
//!
//! The tally of dead letters knows how many there are; only a look at each knows
//! which of them stay. So a preview looks at a bounded number, and counts the rest
//! by the tally where the filter allows it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;

use super::backfill::EventPicker;
use super::candidates::{LOOK, candidates_of};
use super::pace::{BUSY_REST, reached_per_second};
use super::pick::PartPicker;
use crate::lifecycle::Gateway;
use crate::model::dead_letter_group::{GroupBy, GroupField, GroupFilter};
use crate::model::delivery::{DeadCause, DeliveryState, after};
use crate::model::endpoint::{Endpoint, Ordering};
use crate::model::id::{DeliveryId, EndpointId, TenantId};
use crate::model::job::{Job, JobDecision, JobFilter, JobKind, JobPart, JobSpec, JobState, LeftOut};
use crate::store::{PageRequest, Result};

/// Most deliveries that a preview reads.
const PREVIEW_LOOK: usize = 10_000;
/// Deliveries that a read counts for at least, so that many endpoints with few of them do
/// not take long.
const READ_MIN: usize = 50;
/// Lanes of an endpoint that one read returns.
const LANES_PAGE: usize = 500;

/// What a job would do.
#[derive(Debug, Default)]
pub struct JobPreview {
    /// What it would do at each endpoint, the most deliveries first.
    pub endpoints: Vec<EndpointPreview>,
    /// What it would leave out, and how many, as far as it has looked.
    pub left_out: BTreeMap<LeftOut, u64>,
    /// Whether the number of deliveries is exact.
    pub is_exact: bool,
    /// Number of deliveries that were looked at, if these were not all.
    pub looked_at: Option<u64>,
    /// Deliveries that wait behind those that it would replay.
    pub unblocked: u64,
    /// Lanes in which they wait.
    pub unblocked_lanes: u64,
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
    /// Deliveries per second, if it sends any.
    pub per_second: Option<f64>,
    /// Time that it takes to send them, if it sends any.
    pub takes: Option<Duration>,
}

/// Previews a job that has not begun.
pub async fn preview(gateway: &Gateway, job: &Job) -> Result<JobPreview> {
    let filter = job.spec.filter.clone().on_engine(gateway.clock.wall_offset());
    let tally = DeadTally::read(gateway, &job.spec, &filter, only_tenant(job)).await?;
    let (mut preview, mut looked) = (JobPreview { is_exact: true, ..JobPreview::default() }, 0);
    let (mut left, mut lanes_left) = (PREVIEW_LOOK, PREVIEW_LOOK);
    for (n, part) in job.parts.iter().enumerate() {
        // Every endpoint has its share, and those with few leave more to others.
        let mut share = left / (job.parts.len() - n);
        left -= share;
        let endpoint = gateway.store.endpoint(&part.tenant, part.endpoint);
        let look = match (job.spec.kind, &endpoint) {
            (JobKind::Backfill, Some(endpoint)) => {
                PartLook::look_at_events(gateway, (job, &filter), endpoint, &mut share).await?
            }
            _ => PartLook::look(gateway, (job, &filter), part, &mut share).await?,
        };
        left += share;
        looked += look.read;
        let mut matches = look.taken.len() as u64;
        let stays: u64 = look.left_out.values().sum();
        for (why, count) in &look.left_out {
            *preview.left_out.entry(*why).or_default() += count;
        }
        if !look.is_whole {
            preview.looked_at = Some(0);
            match tally.as_ref().and_then(|tally| tally.count(part.endpoint)) {
                Some(count) => matches = count.saturating_sub(stays).max(matches),
                None => preview.is_exact = false,
            }
        }
        let is_ordered = endpoint.as_ref().is_some_and(|endpoint| endpoint.settings.ordering != Ordering::None);
        if job.spec.kind == JobKind::Replay && is_ordered {
            count_unblocked(gateway, (job, &filter), part, &mut lanes_left, &mut preview).await?;
        }
        let sending = endpoint.as_deref().filter(|_| job.spec.kind.is_sending());
        preview.endpoints.push(EndpointPreview {
            endpoint: part.endpoint,
            matches,
            lanes: look.lanes.len() as u64,
            per_second: sending.map(|endpoint| reached_per_second(&job.spec, endpoint)),
            takes: sending.map(|endpoint| takes(&job.spec, endpoint, matches, look.fullest_lane())),
        });
    }
    preview.looked_at = preview.looked_at.map(|_| looked);
    preview.endpoints.retain(|endpoint| endpoint.matches > 0);
    preview.endpoints.sort_by_key(|endpoint| std::cmp::Reverse(endpoint.matches));
    Ok(preview)
}

/// Notes how many deliveries each part of a job is going to take, where the tally knows.
pub async fn expect(gateway: &Gateway, job: &mut Job) -> Result<()> {
    let filter = job.spec.filter.clone().on_engine(gateway.clock.wall_offset());
    let tally = DeadTally::read(gateway, &job.spec, &filter, only_tenant(job)).await?;
    for part in &mut job.parts {
        part.counts.expected = tally.as_ref().and_then(|tally| tally.count(part.endpoint));
    }
    Ok(())
}

/// Returns the time at which a job is done that goes on as it does, if that is known.
pub fn eta(gateway: &Gateway, job: &Job) -> Option<Timestamp> {
    if job.state != JobState::Running || !job.spec.kind.is_sending() {
        return None;
    }
    let (mut longest, mut left, mut done) = (Duration::ZERO, 0, 0);
    for part in job.parts.iter().filter(|part| !part.is_done) {
        let counts = &part.counts;
        let seen = counts.done + counts.left_out.values().sum::<u64>();
        let unseen = if part.is_read { counts.held } else { counts.expected?.saturating_sub(seen) };
        let endpoint = gateway.store.endpoint(&part.tenant, part.endpoint)?;
        longest = longest.max(takes(&job.spec, &endpoint, unseen + counts.waiting, 0));
        left += unseen + counts.waiting;
        done += counts.done - counts.done.min(counts.waiting);
    }
    // Receivers may be slower than the pace, so what was done so far counts, too.
    let ran_ms = gateway.clock.now().as_millisecond() - job.created_at.as_millisecond();
    let seen = Duration::from_millis(u64::try_from(ran_ms).unwrap_or(0)).mul_f64(left as f64 / done.max(1) as f64);
    let longest = if done > 0 { longest.max(seen) } else { longest };
    Some(after(gateway.clock.wall(), longest))
}

/// Returns the tenant of a job, or nothing if it is over all of them.
fn only_tenant(job: &Job) -> Option<&TenantId> {
    let is_own = job.parts.iter().all(|part| part.tenant == job.tenant);
    is_own.then_some(&job.tenant)
}

/// Returns how long so many deliveries take, of which so many are in one lane and go one
/// after the other.
fn takes(spec: &JobSpec, endpoint: &Endpoint, count: u64, in_one_lane: u64) -> Duration {
    let by_pace = Duration::from_secs_f64(count as f64 / reached_per_second(spec, endpoint));
    by_pace.max(BUSY_REST.saturating_mul(u32::try_from(in_one_lane).unwrap_or(u32::MAX)))
}

/// The tally of dead letters that a job may take, if the filter can be answered by it.
pub struct DeadTally {
    /// Counts by endpoint; nothing where only a look can tell.
    counts: HashMap<EndpointId, Option<u64>>,
}

impl DeadTally {
    /// Reads the tally for a job of this tenant, or of all, that takes dead letters.
    pub async fn read(
        gateway: &Gateway,
        spec: &JobSpec,
        filter: &JobFilter,
        tenant: Option<&TenantId>,
    ) -> Result<Option<Self>> {
        if spec.state() != DeliveryState::Dead || spec.not_older_than.is_some() {
            return Ok(None);
        }
        let by = GroupBy::of(&[GroupField::Endpoint, GroupField::Cause, GroupField::Status, GroupField::Day]);
        let ask = GroupFilter { by: Some(by), cause: filter.cause, ..GroupFilter::default() };
        let groups = gateway.store.dead_letter_groups(tenant, ask, usize::MAX).await?;
        let mut tally = Self { counts: HashMap::new() };
        for group in &groups.data {
            let Some(endpoint) = group.endpoint else { continue };
            // What is stored of these is damaged, so that a replay leaves them out.
            if spec.kind == JobKind::Replay && group.cause == Some(DeadCause::Damaged) {
                continue;
            }
            let known = tally.counts.entry(endpoint).or_insert(Some(0));
            *known = match (*known, filter.takes_group(group)) {
                (Some(count), Some(true)) => Some(count + group.count),
                (known, Some(false)) => known,
                (_, None) | (None, Some(true)) => None,
            };
        }
        Ok(Some(tally))
    }

    /// Returns how many dead letters of an endpoint the job takes or leaves out because
    /// of something that only a look can find.
    pub fn count(&self, endpoint: EndpointId) -> Option<u64> {
        self.counts.get(&endpoint).copied().unwrap_or(Some(0))
    }
}

/// What a look at the deliveries of one endpoint found.
#[derive(Default)]
struct PartLook {
    taken: HashSet<DeliveryId>,
    lanes: HashMap<String, u64>,
    left_out: BTreeMap<LeftOut, u64>,
    read: u64,
    is_whole: bool,
}

impl PartLook {
    /// Looks at deliveries, as long as there are `left` to look at.
    async fn look(
        gateway: &Gateway,
        (job, filter): (&Job, &JobFilter),
        part: &JobPart,
        left: &mut usize,
    ) -> Result<Self> {
        let is_deleted = gateway.store.endpoint(&part.tenant, part.endpoint).is_none();
        let picker = PartPicker { job, filter, is_deleted, now: gateway.clock.now() };
        let (mut look, mut after) = (Self::default(), None);
        while *left > 0 && !look.is_whole {
            let page = candidates_of(gateway, &job.spec, filter, part, after, LOOK.min(*left)).await?;
            *left = left.saturating_sub(page.read.max(READ_MIN));
            look.read += page.read as u64;
            for candidate in &page.candidates {
                match picker.decide(candidate, &|_| false) {
                    JobDecision::Pass => {}
                    JobDecision::LeaveOut(why) => *look.left_out.entry(why).or_default() += 1,
                    JobDecision::Take => {
                        look.taken.insert(candidate.delivery.id);
                        if let Some(lane) = &candidate.delivery.lane {
                            *look.lanes.entry(lane.clone()).or_default() += 1;
                        }
                    }
                }
            }
            after = page.looked_to.or(after);
            look.is_whole = page.is_end;
        }
        Ok(look)
    }

    /// Looks at past events, as long as there are `left` to look at.
    async fn look_at_events(
        gateway: &Gateway,
        (job, filter): (&Job, &JobFilter),
        endpoint: &Endpoint,
        left: &mut usize,
    ) -> Result<Self> {
        let picker = EventPicker::new(gateway, job, filter, endpoint);
        let (mut look, mut after) = (Self::default(), None);
        while *left > 0 && !look.is_whole {
            let page = picker.read(gateway, after).await?;
            *left = left.saturating_sub(page.events.len().max(READ_MIN));
            look.read += page.events.len() as u64;
            for candidate in &page.events {
                match picker.decide(candidate) {
                    JobDecision::Pass => {}
                    JobDecision::LeaveOut(why) => *look.left_out.entry(why).or_default() += 1,
                    JobDecision::Take => {
                        look.taken.insert(candidate.position);
                        if let Some(lane) = endpoint.lane(candidate.event.key.as_ref()) {
                            *look.lanes.entry(lane.to_string()).or_default() += 1;
                        }
                    }
                }
            }
            after = page.events.last().map(|candidate| candidate.position).or(after);
            look.is_whole = page.is_end;
        }
        Ok(look)
    }

    fn fullest_lane(&self) -> u64 {
        self.lanes.values().copied().max().unwrap_or(0)
    }
}

/// Counts what waits behind dead letters that the job would replay, as long as there are
/// lanes `left` to look at.
async fn count_unblocked(
    gateway: &Gateway,
    (job, filter): (&Job, &JobFilter),
    part: &JobPart,
    left: &mut usize,
    preview: &mut JobPreview,
) -> Result<()> {
    let picker = PartPicker { job, filter, is_deleted: false, now: gateway.clock.now() };
    let mut cursor = None;
    while *left > 0 {
        let page = PageRequest { cursor, limit: LANES_PAGE };
        let lanes = gateway.store.lanes(&part.tenant, part.endpoint, true, page).await?;
        *left = left.saturating_sub(lanes.data.len().max(READ_MIN));
        let heads: Vec<DeliveryId> = lanes.data.iter().map(|lane| lane.head).collect();
        let found = gateway.store.job_candidates_by_id(&part.tenant, heads).await?;
        let taken = found.iter().filter(|one| picker.decide(one, &|_| false) == JobDecision::Take);
        let taken: HashSet<DeliveryId> = taken.map(|one| one.delivery.id).collect();
        for lane in lanes.data.iter().filter(|lane| taken.contains(&lane.head) && lane.waiting > 0) {
            preview.unblocked += lane.waiting;
            preview.unblocked_lanes += 1;
        }
        cursor = lanes.next;
        if cursor.is_none() {
            break;
        }
    }
    Ok(())
}
