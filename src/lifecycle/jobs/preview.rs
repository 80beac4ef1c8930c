//! Previews a job: how many it would take, where, at which pace, and what stays.
//!
//! The tally of dead letters knows how many there are; only a look at each knows
//! which of them stay. So a preview looks at a bounded number, and counts the rest
//! by the tally where the filter allows it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use tracing::warn;

use super::backfill::EventPicker;
use super::candidates::{LOOK, candidates_of};
use super::held::HeldEndpoints;
use super::pace::{expected_time, reached_per_second};
use super::pick::PartPicker;
use super::tally::{MatchTally, TallyCount};
use crate::lifecycle::{Gateway, figure_series};
use crate::model::dead_letter_group::DAY_MS;
use crate::model::delivery::{WaitingFor, time_after};
use crate::model::endpoint::{Endpoint, Ordering};
use crate::model::figure_time::{FigureSpan, millis_later};
use crate::model::id::{DeliveryId, EndpointId, TenantId};
use crate::model::job::{Job, JobDecision, JobFilter, JobPart, JobSpec, JobState, LeftOut, MatchBound};
use crate::store::figures::FigureScope;
use crate::store::{CandidateWalk, PageRequest, Result};

/// Most deliveries that a preview reads.
const PREVIEW_LOOK: usize = 10_000;
/// Deliveries that a read counts for at least, so that many endpoints with few of them do
/// not take long.
const READ_MIN: usize = 50;
/// Most endpoints whose figures a preview reads.
const FIGURES_MAX: usize = 100;
/// Lanes of an endpoint that one read returns.
const LANES_PAGE: usize = 500;

/// What a job would do.
#[derive(Debug, Default)]
pub struct JobPreview {
    /// What it would do at each endpoint, the most deliveries first.
    pub endpoints: Vec<EndpointPreview>,
    /// What it would leave out, and how many, as far as it has looked.
    pub left_out: BTreeMap<LeftOut, u64>,
    /// What the number of all deliveries says.
    pub bound: MatchBound,
    /// Number of deliveries that were looked at, if these were not all.
    pub looked_at: Option<u64>,
    /// Deliveries that wait behind those that it would replay.
    pub unblocked: u64,
    /// Lanes in which they wait.
    pub unblocked_lanes: u64,
    /// Whether there may be more of them, because not all lanes were looked at.
    pub is_unblocked_cut: bool,
}

/// What a job would do at one endpoint.
#[derive(Debug)]
pub struct EndpointPreview {
    /// Tenant of the endpoint.
    pub tenant: TenantId,
    /// The endpoint itself.
    pub endpoint: EndpointId,
    /// Deliveries that it would change.
    pub matches: u64,
    /// What the number of deliveries says.
    pub bound: MatchBound,
    /// Number of deliveries that were looked at, if these were not all.
    pub looked_at: Option<u64>,
    /// Lanes that those are in that were looked at.
    pub lanes: u64,
    /// Deliveries per second, if it sends any.
    pub per_second: Option<f64>,
    /// Time that it takes to send them, if it sends any.
    pub takes: Option<Duration>,
    /// What keeps everything from being sent there.
    pub held_by: Option<WaitingFor>,
}

/// How much more a preview may read.
struct PreviewBudget {
    /// Deliveries to look at.
    looks: usize,
    /// Blocked lanes to look at.
    lanes: usize,
    /// Endpoints whose figures are read.
    figures: usize,
}

/// Previews a job that has not begun.
pub async fn preview(gateway: &Gateway, job: &Job) -> Result<JobPreview> {
    let filter = job.spec.filter.clone().to_engine_time(gateway.clock.wall_offset());
    let tally = MatchTally::read(gateway, job, &filter).await?;
    let held = HeldEndpoints::of(gateway, std::slice::from_ref(job)).await;
    let mut preview = JobPreview { left_out: job.counts().left_out, ..JobPreview::default() };
    let mut looked = 0;
    let mut budget = PreviewBudget { looks: PREVIEW_LOOK, lanes: PREVIEW_LOOK, figures: FIGURES_MAX };
    for (n, part) in job.parts.iter().enumerate() {
        // Every endpoint has its share, and those with few leave more to others.
        let mut share = budget.looks / (job.parts.len() - n);
        budget.looks -= share;
        let endpoint = gateway.store.endpoint(&part.tenant, part.endpoint);
        let known = tally.count(gateway, part.endpoint);
        let look = PartScan::of(gateway, (job, &filter), (part, endpoint.as_deref()), known, &mut share).await?;
        budget.looks += share;
        looked += look.read;
        for (why, count) in &look.left_out {
            *preview.left_out.entry(*why).or_default() += count;
        }
        if !look.is_whole {
            preview.looked_at = Some(0);
        }
        let is_ordered = endpoint.as_ref().is_some_and(|endpoint| endpoint.settings.ordering != Ordering::None);
        if job.spec.kind.sends_again() && is_ordered {
            count_unblocked(gateway, (job, &filter), part, &mut budget.lanes, &mut preview).await?;
        }
        let (matches, bound) = look.matches(&job.spec, known);
        let sending = endpoint.as_deref().filter(|_| job.spec.kind.is_sending());
        let answers_in = match sending.filter(|_| matches > 0) {
            Some(endpoint) => mean_answer(gateway, endpoint, &mut budget.figures).await?,
            None => Duration::ZERO,
        };
        preview.bound = preview.bound.combined_with(bound);
        preview.endpoints.push(EndpointPreview {
            tenant: part.tenant.clone(),
            endpoint: part.endpoint,
            matches,
            bound,
            looked_at: (!look.is_whole).then_some(look.read),
            lanes: look.lanes.len() as u64,
            per_second: sending.map(|endpoint| reached_per_second(&job.spec, endpoint, answers_in)),
            takes: sending
                .map(|endpoint| expected_time(&job.spec, endpoint, (matches, look.fullest_lane()), answers_in)),
            held_by: held.blocker(job.spec.kind, part.endpoint),
        });
    }
    preview.looked_at = preview.looked_at.map(|_| looked);
    // What is not known to be nothing is shown.
    preview.endpoints.retain(|endpoint| endpoint.matches > 0 || endpoint.bound != MatchBound::Exact);
    preview.endpoints.sort_by_key(|endpoint| std::cmp::Reverse(endpoint.matches));
    Ok(preview)
}

/// Notes how many deliveries each part of a job is going to take, where that is known.
pub async fn expect(gateway: &Gateway, job: &mut Job) -> Result<()> {
    let filter = job.spec.filter.clone().to_engine_time(gateway.clock.wall_offset());
    let tally = MatchTally::read(gateway, job, &filter).await?;
    for part in &mut job.parts {
        part.counts.expected = tally.count(gateway, part.endpoint).map(|known| known.count);
    }
    Ok(())
}

/// Returns the times at which jobs are done that go on as they do, as far as that is
/// known. Figures that cannot be read are no reason to hide a job.
pub async fn etas(gateway: &Gateway, jobs: &[Job], held: &HeldEndpoints) -> Vec<Option<Timestamp>> {
    let (mut etas, mut figures) = (Vec::with_capacity(jobs.len()), FIGURES_MAX);
    for job in jobs {
        let eta = eta(gateway, job, held, &mut figures).await.unwrap_or_else(|problem| {
            warn!(job.id = %job.id, "when the job will be done is not known: {problem}");
            None
        });
        etas.push(eta);
    }
    etas
}

/// Returns the time at which a job is done that goes on as it does, if that is known: by
/// the pace that was measured, and before that by how fast its endpoints answer.
async fn eta(gateway: &Gateway, job: &Job, held: &HeldEndpoints, figures: &mut usize) -> Result<Option<Timestamp>> {
    if job.state != JobState::Running || !job.spec.kind.is_sending() {
        return Ok(None);
    }
    let mut longest = Duration::ZERO;
    for part in job.parts.iter().filter(|part| !part.is_done) {
        let counts = &part.counts;
        let seen = counts.done + counts.left_out.values().sum::<u64>();
        // Until all was looked at, it is known only if it was expected.
        if held.blocker(job.spec.kind, part.endpoint).is_some() || !part.is_read && counts.expected.is_none() {
            return Ok(None);
        }
        let left = part.matched().saturating_sub(seen) + counts.waiting.saturating_sub(counts.left_waiting);
        let Some(endpoint) = gateway.store.endpoint(&part.tenant, part.endpoint) else { return Ok(None) };
        let takes = match counts.pace {
            Some(pace) => pace.time_for(left),
            None => expected_time(&job.spec, &endpoint, (left, 0), mean_answer(gateway, &endpoint, figures).await?),
        };
        longest = longest.max(takes);
    }
    Ok(Some(time_after(gateway.clock.wall(), longest)))
}

/// Returns how long an endpoint takes to answer, from the windows of the last day in
/// which it took a delivery; nothing if it took none, or too many were asked about.
async fn mean_answer(gateway: &Gateway, endpoint: &Endpoint, left: &mut usize) -> Result<Duration> {
    if *left == 0 {
        return Ok(Duration::ZERO);
    }
    *left -= 1;
    let now = gateway.clock.now();
    let scope = FigureScope::Endpoint(endpoint.tenant.clone(), endpoint.id);
    let rows =
        figure_series::read_rows(gateway, &scope, FigureSpan::Window, millis_later(now, -DAY_MS), millis_later(now, 1))
            .await?;
    // While it only fails, what it takes is often our own timeout.
    let taken = rows.iter().map(|row| &row.figures).filter(|figures| figures.delivered > 0);
    let (sum_ms, count) = taken.fold((0, 0), |(sum_ms, count), figures| {
        (sum_ms + figures.latency_sum_ms, count + figures.latency.iter().sum::<u64>())
    });
    Ok(Duration::from_millis(sum_ms).checked_div(u32::try_from(count).unwrap_or(u32::MAX)).unwrap_or_default())
}

/// What a look at the deliveries of one endpoint found.
#[derive(Default)]
struct PartScan {
    taken: HashSet<DeliveryId>,
    lanes: HashMap<String, u64>,
    left_out: BTreeMap<LeftOut, u64>,
    read: u64,
    is_whole: bool,
}

impl PartScan {
    /// Looks at deliveries of a part, or at past events, as long as there are `left` to
    /// look at and not all that match are found.
    async fn of(
        gateway: &Gateway,
        (job, filter): (&Job, &JobFilter),
        (part, endpoint): (&JobPart, Option<&Endpoint>),
        known: Option<TallyCount>,
        left: &mut usize,
    ) -> Result<Self> {
        match endpoint.filter(|_| job.spec.kind.creates_deliveries()) {
            Some(endpoint) => Self::scan_events(gateway, (job, filter), endpoint, left).await,
            None => Self::scan(gateway, (job, filter), (part, known), left).await,
        }
    }

    /// Returns how many of the matching deliveries a job takes, and how exact that number
    /// is. `known` is how many match, if that was counted.
    fn matches(&self, spec: &JobSpec, known: Option<TallyCount>) -> (u64, MatchBound) {
        let taken = self.taken.len() as u64;
        if self.is_whole {
            return (taken, MatchBound::Exact);
        }
        let Some(known) = known else { return (taken, MatchBound::AtLeast) };
        let stay = self.found() - taken;
        let matches = known.count.saturating_sub(stay).max(taken);
        // Of what is discarded nothing stays, so that no look is needed.
        let is_sure = spec.kind.takes_whatever_matches() && spec.not_older_than.is_none();
        let bound = match (known.is_whole, is_sure) {
            (true, _) if known.count == 0 => MatchBound::Exact,
            (true, true) => MatchBound::Exact,
            (true, false) => MatchBound::AtMost,
            (false, true) => MatchBound::AtLeast,
            (false, false) => MatchBound::Estimate,
        };
        (matches, bound)
    }

    /// Returns how many were found that the tally counts. It leaves out damaged ones.
    fn found(&self) -> u64 {
        let stay = self.left_out.iter().filter(|(why, _)| **why != LeftOut::Damaged);
        self.taken.len() as u64 + stay.map(|(_, count)| count).sum::<u64>()
    }

    /// Looks at deliveries, as long as there are `left` to look at and not all that match
    /// are found.
    async fn scan(
        gateway: &Gateway,
        (job, filter): (&Job, &JobFilter),
        (part, known): (&JobPart, Option<TallyCount>),
        left: &mut usize,
    ) -> Result<Self> {
        let is_deleted = gateway.store.endpoint(&part.tenant, part.endpoint).is_none();
        let picker = PartPicker { job, filter, is_deleted, now: gateway.clock.now() };
        let (mut look, mut after) = (Self::default(), None);
        // What is to be found since a time is among the newest.
        let is_recent = filter.finished_since.is_some() || filter.accepted_since.is_some();
        let walk =
            if is_recent && filter.ids.is_empty() { CandidateWalk::NewestFirst } else { CandidateWalk::OldestFirst };
        while *left > 0 && !look.is_whole {
            let page = candidates_of(gateway, &job.spec, filter, part, walk(after), LOOK.min(*left)).await?;
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
            look.is_whole = page.is_end || known.is_some_and(|known| known.is_whole && look.found() >= known.count);
        }
        Ok(look)
    }

    /// Looks at past events, as long as there are `left` to look at.
    async fn scan_events(
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
    loop {
        if *left == 0 {
            preview.is_unblocked_cut = true;
            break;
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::job::JobKind;
    use crate::model::span::Span;

    fn looked(taken: u32, left_out: u64, is_whole: bool) -> PartScan {
        let id = |n| DeliveryId::mint(Timestamp::UNIX_EPOCH, n);
        PartScan {
            taken: (0..taken).map(|n| id(n.into())).collect(),
            left_out: BTreeMap::from([(LeftOut::Overtaken, left_out)]),
            is_whole,
            ..PartScan::default()
        }
    }

    fn spec(kind: JobKind) -> JobSpec {
        let (per_second, not_older_than, even_overtaken) = (None, None, false);
        let filter = JobFilter { all: true, ..JobFilter::default() };
        JobSpec { kind, filter, per_second, not_older_than, even_overtaken, note: None, by: "admin".into() }
    }

    #[test]
    fn only_what_was_looked_at_or_cannot_stay_is_exact() {
        let whole = |count| Some(TallyCount { count, is_whole: true });
        let some = |count| Some(TallyCount { count, is_whole: false });
        let (replay, discard) = (spec(JobKind::Replay), spec(JobKind::Discard));
        assert_eq!(looked(7, 2, true).matches(&replay, whole(9)), (7, MatchBound::Exact));
        // What is damaged is not in the tally.
        let mut damaged = looked(7, 2, false);
        damaged.left_out.insert(LeftOut::Damaged, 5);
        assert_eq!(damaged.matches(&replay, whole(20)), (18, MatchBound::AtMost));
        // All that were looked at stay, so perhaps the others do as well.
        assert_eq!(looked(0, 100, false).matches(&replay, whole(120)), (20, MatchBound::AtMost));
        assert_eq!(looked(100, 0, false).matches(&discard, whole(120)), (120, MatchBound::Exact));
        assert_eq!(looked(100, 0, false).matches(&discard, some(120)), (120, MatchBound::AtLeast));
        assert_eq!(looked(100, 0, false).matches(&replay, some(120)), (120, MatchBound::Estimate));
        assert_eq!(looked(100, 0, false).matches(&replay, None), (100, MatchBound::AtLeast));
        assert_eq!(
            looked(0, 0, false).matches(&replay, None),
            (0, MatchBound::AtLeast),
            "it is not known to be nothing"
        );
        assert_eq!(looked(0, 0, false).matches(&replay, whole(0)), (0, MatchBound::Exact));
        let aged = JobSpec { not_older_than: Some(Span::secs(60)), ..discard };
        assert_eq!(looked(100, 0, false).matches(&aged, whole(120)), (120, MatchBound::AtMost));
    }
}
