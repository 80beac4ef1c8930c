//! Jobs and their previews as they are shown.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::problem::Problem;
use crate::lifecycle::Gateway;
use crate::lifecycle::jobs::held::HeldEndpoints;
use crate::lifecycle::jobs::preview::{JobPreview, etas};
use crate::model::delivery::{WaitingFor, time_after};
use crate::model::id::{EndpointId, JobId, TenantId};
use crate::model::job::{Job, JobCounts, JobFilter, JobKind, JobState, LeftOut, MatchBound};
use crate::model::purge::PurgeStage;
use crate::model::span::Span;

/// Most parts that a job shows.
const ENDPOINTS_SHOWN: usize = 100;

/// How many deliveries a job leaves as they are, and why.
#[derive(Debug, Serialize, ToSchema)]
pub struct LeftOutCount {
    /// Why they are left as they are.
    why: LeftOut,
    /// How many they are.
    count: u64,
}

/// What became of the deliveries that a job has sent.
#[derive(Debug, Serialize, ToSchema)]
pub struct JobOutcome {
    /// How many were delivered.
    delivered: u64,
    /// How many died again.
    dead: u64,
    /// How many still wait.
    waiting: u64,
}

/// What a job has done at one endpoint.
#[derive(Debug, Serialize, ToSchema)]
pub struct JobEndpointView {
    /// The endpoint's id.
    #[schema(value_type = String)]
    endpoint: EndpointId,
    /// The tenant that it belongs to.
    #[schema(value_type = String)]
    tenant: TenantId,
    /// How many deliveries match there: those that it has found, and until it has looked at all no fewer than were expected.
    matched: u64,
    /// How many it has changed.
    done: u64,
    /// What became of those it has sent.
    outcome: JobOutcome,
    /// How many match there and stay as they are, by reason.
    left_out: Vec<LeftOutCount>,
    /// Whether it has nothing more to do there.
    is_done: bool,
    /// Why nothing can be sent there now: `pause`, `disabled` or `breaker`; null if something can, or nothing is left to send.
    held_by: Option<WaitingFor>,
}

/// How far the purge of a tenant has come.
#[derive(Debug, Serialize, ToSchema)]
pub struct PurgeView {
    /// The tenant that is purged.
    #[schema(value_type = String)]
    tenant: TenantId,
    /// What it does now: delete `rows`, `figures` or `operational_events`, or `overwrite` the space that they had.
    stage: PurgeStage,
    /// How many rows it has deleted, by kind.
    rows: BTreeMap<String, u64>,
}

/// A job as it is shown.
#[derive(Debug, Serialize, ToSchema)]
pub struct JobView {
    /// The job's id.
    #[schema(value_type = String)]
    id: JobId,
    /// Whose deliveries they are; `_system` for those of all tenants.
    #[schema(value_type = String)]
    tenant: TenantId,
    /// What is done to each delivery.
    kind: JobKind,
    /// Where it stands.
    state: JobState,
    /// Which deliveries are taken.
    filter: JobFilter,
    /// How many deliveries match: those that it has found, and until it has looked at all no fewer than were expected when it began.
    matched: u64,
    /// Whether all deliveries were looked at, so that `matched` is final.
    is_exact: bool,
    /// How many it has changed.
    done: u64,
    /// How many match and stay as they are, by reason.
    left_out: Vec<LeftOutCount>,
    /// What became of those that it has sent.
    outcome: JobOutcome,
    /// What it has done at each endpoint, the most first and at most 100 of them.
    endpoints: Vec<JobEndpointView>,
    /// What a purge has deleted so far; null for every other job.
    purge: Option<PurgeView>,
    /// How many are sent per second and endpoint; null for a quarter of the endpoint's rate.
    per_second: Option<f64>,
    /// Deliveries that were created longer ago are left out; null for no such limit.
    #[schema(value_type = Option<String>)]
    not_older_than: Option<Span>,
    /// Whether deliveries that their lane has passed are replayed, too.
    even_overtaken: bool,
    /// About when it will be done: by the pace of the last seconds, and before that is known by how fast its endpoints answered during the last day; null if neither is known, nothing is sent, or an endpoint is held.
    #[schema(value_type = Option<String>, format = DateTime)]
    eta_at: Option<Timestamp>,
    /// Why it failed; null if it did not.
    error: Option<String>,
    /// Who started it, as in the audit log.
    by: String,
    /// What others should know.
    note: Option<String>,
    /// When it was started.
    #[schema(value_type = String, format = DateTime)]
    started_at: Timestamp,
    /// When it ended; null while it has not.
    #[schema(value_type = Option<String>, format = DateTime)]
    finished_at: Option<Timestamp>,
}

impl JobView {
    /// Returns jobs as they are shown.
    pub async fn of_all(gateway: &Gateway, jobs: Vec<Job>) -> Result<Vec<Self>, Problem> {
        let held = HeldEndpoints::of(gateway, &jobs).await;
        let etas = etas(gateway, &jobs, &held).await;
        Ok(jobs.into_iter().zip(etas).map(|(job, eta_at)| Self::of(gateway, job, &held, eta_at)).collect())
    }

    fn of(gateway: &Gateway, job: Job, held: &HeldEndpoints, eta_at: Option<Timestamp>) -> Self {
        let (offset, counts, matched) = (gateway.clock.wall_offset(), job.counts(), job.matched());
        let (kind, is_going) = (job.spec.kind, !job.state.is_over());
        let is_exact = job.parts.iter().all(|part| part.is_read);
        let mut parts = job.parts;
        let is_purge = job.spec.kind.deletes_tenant();
        let purge = parts.first().filter(|_| is_purge).map(|part| {
            let progress = part.counts.purge.clone().unwrap_or_default();
            PurgeView { tenant: part.tenant.clone(), stage: progress.stage, rows: progress.rows }
        });
        // The only part of a purge is at no endpoint.
        parts.retain(|_| !is_purge);
        parts.sort_by_key(|part| std::cmp::Reverse(part.matched()));
        let endpoints = parts.into_iter().take(ENDPOINTS_SHOWN).map(|part| JobEndpointView {
            endpoint: part.endpoint,
            matched: part.matched(),
            done: part.counts.done,
            outcome: job_outcome(&part.counts),
            left_out: left_out(part.counts.left_out),
            is_done: part.is_done,
            held_by: held.blocker(kind, part.endpoint).filter(|_| is_going && !part.is_done),
            tenant: part.tenant,
        });
        Self {
            id: job.id,
            tenant: job.tenant,
            kind: job.spec.kind,
            state: job.state,
            filter: job.spec.filter,
            matched,
            is_exact,
            done: counts.done,
            left_out: left_out(counts.left_out.clone()),
            outcome: job_outcome(&counts),
            endpoints: endpoints.collect(),
            purge,
            per_second: job.spec.per_second,
            not_older_than: job.spec.not_older_than,
            even_overtaken: job.spec.even_overtaken,
            eta_at,
            error: job.error,
            by: job.spec.by,
            note: job.spec.note,
            started_at: offset.wall(job.created_at),
            finished_at: job.finished_at.map(|at| offset.wall(at)),
        }
    }
}

fn job_outcome(counts: &JobCounts) -> JobOutcome {
    JobOutcome { delivered: counts.delivered, dead: counts.dead, waiting: counts.waiting }
}

fn left_out(counts: impl IntoIterator<Item = (LeftOut, u64)>) -> Vec<LeftOutCount> {
    counts.into_iter().map(|(why, count)| LeftOutCount { why, count }).collect()
}

/// What a job would do at one endpoint.
#[derive(Debug, Serialize, ToSchema)]
pub struct EndpointPreviewView {
    /// The endpoint's id.
    #[schema(value_type = String)]
    endpoint: EndpointId,
    /// The tenant that it belongs to.
    #[schema(value_type = String)]
    tenant: TenantId,
    /// How many deliveries it would change.
    matches: u64,
    /// What `matches` says: `exact`; `at_least`, and perhaps more; `at_most`, because some may stay that were not looked at; or `estimate`, if both.
    bound: MatchBound,
    /// How many deliveries were looked at one by one; null if all of them.
    looked_at: Option<u64>,
    /// In how many lanes those are that were looked at. There may be more lanes, if these are not all.
    lanes: u64,
    /// How many would be sent per second; null where nothing is sent.
    per_second: Option<f64>,
    /// About how long that takes; null where nothing is sent.
    #[schema(value_type = Option<String>, example = "25s")]
    takes: Option<Span>,
    /// Why nothing can be sent there now: `pause`, `disabled` or `breaker`; null if something can.
    held_by: Option<WaitingFor>,
}

/// What a replay would let go on.
#[derive(Debug, Serialize, ToSchema)]
pub struct UnblockedView {
    /// How many deliveries wait.
    waiting: u64,
    /// In how many lanes they wait.
    lanes: u64,
    /// Whether these are all. If not, there are at least so many: some 10,000 blocked lanes are looked at.
    is_exact: bool,
}

/// What a job would do.
#[derive(Debug, Serialize, ToSchema)]
pub struct JobPreviewView {
    /// How many deliveries it would change.
    matches: u64,
    /// Where they are, the most first.
    endpoints: Vec<EndpointPreviewView>,
    /// How many match and would stay as they are, by reason.
    left_out: Vec<LeftOutCount>,
    /// Whether the number of deliveries is exact. It is if all of them were looked at, which are at most 10,000; for a discard also if the tally of dead letters can answer the filter, which has endpoints, a cause, answers and times of death.
    is_exact: bool,
    /// What `matches` says: `exact`; `at_least`, and perhaps more; `at_most`, because some may stay that were not looked at; or `estimate`, if both.
    bound: MatchBound,
    /// How many deliveries were looked at one by one, to find those that stay; null if all of them. Among the others more may stay.
    looked_at: Option<u64>,
    /// What waits behind deliveries that it would replay, and goes on after them.
    unblocks: UnblockedView,
    /// About when it would be done; null where nothing is sent, or an endpoint is held.
    #[schema(value_type = Option<String>, format = DateTime)]
    done_at: Option<Timestamp>,
}

impl JobPreviewView {
    /// Shows a preview.
    pub fn of(preview: JobPreview, now: Timestamp) -> Self {
        let whole_seconds = |span: Duration| Span::secs(span.as_secs() + u64::from(span.subsec_nanos() > 0));
        let endpoints: Vec<EndpointPreviewView> = preview
            .endpoints
            .into_iter()
            .map(|one| EndpointPreviewView {
                endpoint: one.endpoint,
                tenant: one.tenant,
                matches: one.matches,
                bound: one.bound,
                looked_at: one.looked_at,
                lanes: one.lanes,
                per_second: one.per_second,
                takes: one.takes.map(whole_seconds),
                held_by: one.held_by,
            })
            .collect();
        let is_held = endpoints.iter().any(|endpoint| endpoint.held_by.is_some());
        let longest = endpoints.iter().filter_map(|endpoint| endpoint.takes).max().filter(|_| !is_held);
        Self {
            matches: endpoints.iter().map(|endpoint| endpoint.matches).sum(),
            done_at: longest.map(|span| time_after(now, span.0)),
            endpoints,
            left_out: left_out(preview.left_out),
            is_exact: preview.bound == MatchBound::Exact,
            bound: preview.bound,
            looked_at: preview.looked_at,
            unblocks: UnblockedView {
                waiting: preview.unblocked,
                lanes: preview.unblocked_lanes,
                is_exact: !preview.is_unblocked_cut,
            },
        }
    }
}
