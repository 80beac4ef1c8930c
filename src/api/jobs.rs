//! Starts, previews, lists, pauses and cancels jobs.

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::SharedApiState;
use super::endpoints::check_note;
use super::input::{DOCUMENT_BYTES_MAX, TenantPath, document_from_json, path_part, read_body};
use super::page::{Page, PageParams, ask};
use super::problem::{InputProblems, LimitProblems, Problem, ProblemCode, Problems, StateProblems};
use super::query_params::ListParams;
use crate::lifecycle::jobs::{JobPreview, parts_of, preview};
use crate::model::audit::Initiator;
use crate::model::delivery::after;
use crate::model::id::{EndpointId, JobId, TenantId};
use crate::model::job::{IDS_MAX, Job, JobChange, JobCounts, JobFilter, JobKind, JobSpec, JobState, LeftOut};
use crate::model::named_enum::NamedEnum;
use crate::model::span::Span;
use crate::store::MissingResource;

/// Most parts that a job shows.
const ENDPOINTS_SHOWN: usize = 100;

/// The job a route names.
pub struct NamedJob(pub JobId);

impl<S: Send + Sync> FromRequestParts<S> for NamedJob {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        path_part(parts, MissingResource::Job).await.map(Self)
    }
}

/// A job to be started.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewJob {
    /// What is done to each delivery.
    kind: JobKind,
    /// Which deliveries are taken. An empty filter is refused, unless it has `"all": true`.
    #[serde(default)]
    filter: JobFilter,
    /// How many deliveries are sent per second and endpoint, above 0; a quarter of the endpoint's rate, if it is left out.
    per_second: Option<f64>,
    /// Deliveries that were created longer ago are left out.
    #[schema(value_type = Option<String>, example = "24h")]
    not_older_than: Option<Span>,
    /// Whether deliveries that their lane has passed are replayed, too. Their receivers get an older state after a newer one.
    #[serde(default)]
    even_overtaken: bool,
    /// Whether nothing is done, and the answer says what would be.
    #[serde(default)]
    dry_run: bool,
    /// What others should know, at most 500 bytes.
    note: Option<String>,
}

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
    /// How many deliveries match there, as far as it has looked.
    matched: u64,
    /// How many it has changed.
    done: u64,
    /// What became of those it has sent.
    outcome: JobOutcome,
    /// Whether it has nothing more to do there.
    is_done: bool,
}

/// A job as it is shown.
#[derive(Debug, Serialize, ToSchema)]
pub struct JobView {
    /// The job's id.
    #[schema(value_type = String)]
    id: JobId,
    /// Whose deliveries they are.
    #[schema(value_type = String)]
    tenant: TenantId,
    /// What is done to each delivery.
    kind: JobKind,
    /// Where it stands.
    state: JobState,
    /// Which deliveries are taken.
    filter: JobFilter,
    /// How many deliveries match, as far as it has looked.
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
    /// How many are sent per second and endpoint; null for a quarter of the endpoint's rate.
    per_second: Option<f64>,
    /// Deliveries that were created longer ago are left out; null for no such limit.
    #[schema(value_type = Option<String>)]
    not_older_than: Option<Span>,
    /// Whether deliveries that their lane has passed are replayed, too.
    even_overtaken: bool,
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
    fn of(api: &SharedApiState, job: Job) -> Self {
        let (offset, counts) = (api.gateway.clock.wall_offset(), job.counts());
        let is_exact = job.parts.iter().all(|part| part.is_read);
        let mut parts = job.parts;
        parts.sort_by_key(|part| std::cmp::Reverse(part.counts.matched));
        let endpoints = parts.into_iter().take(ENDPOINTS_SHOWN).map(|part| JobEndpointView {
            endpoint: part.endpoint,
            matched: part.counts.matched,
            done: part.counts.done,
            outcome: outcome(&part.counts),
            is_done: part.is_done,
        });
        Self {
            id: job.id,
            tenant: job.tenant,
            kind: job.spec.kind,
            state: job.state,
            filter: job.spec.filter,
            matched: counts.matched,
            is_exact,
            done: counts.done,
            left_out: left_out(counts.left_out.clone()),
            outcome: outcome(&counts),
            endpoints: endpoints.collect(),
            per_second: job.spec.per_second,
            not_older_than: job.spec.not_older_than,
            even_overtaken: job.spec.even_overtaken,
            by: job.spec.by,
            note: job.spec.note,
            started_at: offset.wall(job.created_at),
            finished_at: job.finished_at.map(|at| offset.wall(at)),
        }
    }
}

fn outcome(counts: &JobCounts) -> JobOutcome {
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
    /// How many deliveries it would change.
    matches: u64,
    /// In how many lanes they are.
    lanes: u64,
    /// How many would be sent per second; null where nothing is sent.
    per_second: Option<f64>,
    /// About how long that takes; null where nothing is sent.
    #[schema(value_type = Option<String>, example = "25s")]
    takes: Option<Span>,
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
    /// Whether all deliveries were looked at. A preview looks at 10,000 of them at most.
    is_exact: bool,
    /// About when it would be done; null where nothing is sent.
    #[schema(value_type = Option<String>, format = DateTime)]
    done_at: Option<Timestamp>,
}

impl JobPreviewView {
    fn of(preview: JobPreview, now: Timestamp) -> Self {
        let takes = |matches: u64, per_second: Option<f64>| {
            per_second.map(|per_second| Span::secs((matches as f64 / per_second).ceil() as u64))
        };
        let endpoints: Vec<EndpointPreviewView> = preview
            .endpoints
            .into_iter()
            .map(|one| EndpointPreviewView {
                endpoint: one.endpoint,
                matches: one.matches,
                lanes: one.lanes,
                per_second: one.per_second,
                takes: takes(one.matches, one.per_second),
            })
            .collect();
        let longest = endpoints.iter().filter_map(|endpoint| endpoint.takes).max();
        let left_out = left_out(preview.left_out);
        Self {
            matches: endpoints.iter().map(|endpoint| endpoint.matches).sum(),
            done_at: longest.map(|span| after(now, span.0)),
            endpoints,
            left_out,
            is_exact: preview.is_exact,
        }
    }
}

/// Start a job: one change of many deliveries
///
/// With `dry_run` nothing is done, and the answer is 200 with what would be. Otherwise the job goes on by itself, also over restarts.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/jobs", operation_id = "create_job", tag = "jobs",
    params(("tenant" = String, Path, description = "Whose deliveries they are")),
    request_body = NewJob,
    responses(
        (status = 200, body = JobPreviewView), (status = 202, body = JobView), Problems, InputProblems, LimitProblems
    ),
    security(("token" = ["manage"])),
)]
pub async fn create(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let body = read_body(&headers, body, DOCUMENT_BYTES_MAX).await?;
    let new: NewJob = document_from_json(&body)?;
    let is_dry = new.dry_run;
    let spec = checked(new, &by)?;
    let (gateway, now) = (&api.gateway, api.gateway.clock.now());
    let parts = parts_of(gateway, &tenant, &spec).await?;
    let id = JobId::mint(now, rand::random());
    let (state, finished_at) = (JobState::Running, None);
    let job = Job { id, tenant, spec, state, created_at: now, finished_at, parts };
    if is_dry {
        let preview = preview(gateway, &job).await?;
        return Ok(Json(JobPreviewView::of(preview, gateway.clock.wall())).into_response());
    }
    let running_max = gateway.store.tenant(&job.tenant).map_or(0, |tenant| tenant.limits.jobs_running);
    let started = gateway.store.create_job(&by, job.clone(), running_max).await?;
    gateway.dispatcher.admit(started.freed);
    gateway.notifier.operational_events_written(&started.operational_events);
    let job = gateway.store.job(&job.tenant, job.id).await?.unwrap_or(job);
    Ok((StatusCode::ACCEPTED, Json(JobView::of(&api, job))).into_response())
}

/// Returns what was asked for, or what is wrong with it.
fn checked(new: NewJob, by: &Initiator) -> Result<JobSpec, Problem> {
    let invalid = |pointer: &str, detail: String| Problem::field(ProblemCode::InvalidField, pointer, detail);
    let NewJob { kind, filter, per_second, not_older_than, even_overtaken, note, .. } = new;
    if let Some(state) = filter.state.filter(|state| !kind.takes(*state)) {
        let detail = format!("state is {}, and {} does not take such deliveries", state.as_str(), kind.as_str());
        return Err(invalid("/filter/state", detail));
    }
    if filter.is_empty() && !filter.all {
        let detail = "filter is empty; choose deliveries, or write {\"all\": true} to take every one";
        return Err(invalid("/filter", detail.into()));
    }
    let times = [
        ("accepted", filter.accepted_since, filter.accepted_until),
        ("finished", filter.finished_since, filter.finished_until),
    ];
    for (what, since, until) in times {
        if let Some((since, until)) = since.zip(until).filter(|(since, until)| since > until) {
            let detail =
                format!("{what}_since ({since}) is after {what}_until ({until}), so nothing can match; swap them");
            return Err(invalid(&format!("/filter/{what}_since"), detail));
        }
    }
    if filter.ids.len() > IDS_MAX {
        let detail = format!("ids has {} ids; use at most 5,000, and several jobs for more", filter.ids.len());
        return Err(invalid("/filter/ids", detail));
    }
    if let Some(wrong) = per_second.filter(|per_second| !(*per_second > 0.0 && *per_second <= 1e6)) {
        return Err(invalid("/per_second", format!("per_second is {wrong}; use a number above 0, up to 1,000,000")));
    }
    let note = check_note(note)?;
    let by = by.caller().map_or_else(|| "unknown".to_owned(), |caller| caller.by.to_string());
    Ok(JobSpec { kind, filter, per_second, not_older_than, even_overtaken, note, by })
}

/// The filter of a list of jobs, which has none.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoFilter {}

/// List the jobs of a tenant, newest first
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/jobs", operation_id = "list_jobs", tag = "jobs",
    params(("tenant" = String, Path, description = "Whose jobs they are"), PageParams),
    responses((status = 200, body = Page<JobView>), Problems, InputProblems),
    security(("token" = ["read"])),
)]
pub async fn list(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
    params: ListParams<NoFilter>,
) -> Result<Json<Page<JobView>>, Problem> {
    let page_request = ask("jobs", params.page.limit, params.page.cursor.as_deref())?;
    let page = api.gateway.store.jobs(Some(&tenant), page_request).await?;
    Ok(Json(Page::of("jobs", page, |job| JobView::of(&api, job))))
}

/// List the jobs of all tenants, newest first
#[utoipa::path(
    get, path = "/v1/jobs", operation_id = "list_all_jobs", tag = "jobs",
    params(PageParams),
    responses((status = 200, body = Page<JobView>), Problems, InputProblems),
    security(("token" = ["admin"])),
)]
pub async fn list_all(
    State(api): State<SharedApiState>,
    params: ListParams<NoFilter>,
) -> Result<Json<Page<JobView>>, Problem> {
    let page_request = ask("all-jobs", params.page.limit, params.page.cursor.as_deref())?;
    let page = api.gateway.store.jobs(None, page_request).await?;
    Ok(Json(Page::of("all-jobs", page, |job| JobView::of(&api, job))))
}

async fn find(api: &SharedApiState, tenant: &TenantId, id: JobId) -> Result<Json<JobView>, Problem> {
    let job = api.gateway.store.job(tenant, id).await?.ok_or_else(|| Problem::not_found(MissingResource::Job))?;
    Ok(Json(JobView::of(api, job)))
}

/// Show a job
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/jobs/{job}", operation_id = "get_job", tag = "jobs",
    params(("tenant" = String, Path, description = "Whose job it is"), ("job" = String, Path, description = "The job's id")),
    responses((status = 200, body = JobView), Problems),
    security(("token" = ["read"])),
)]
pub async fn show(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
    NamedJob(id): NamedJob,
) -> Result<Json<JobView>, Problem> {
    find(&api, &tenant, id).await
}

async fn change(
    api: &SharedApiState,
    by: &Initiator,
    tenant: &TenantId,
    id: JobId,
    change: JobChange,
) -> Result<Json<JobView>, Problem> {
    api.gateway.store.change_job(by, tenant, id, change, api.gateway.clock.now()).await?;
    find(api, tenant, id).await
}

/// Pause a job
///
/// It releases nothing more until it is resumed; what it has released goes on.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/jobs/{job}/pause", operation_id = "pause_job", tag = "jobs",
    params(("tenant" = String, Path, description = "Whose job it is"), ("job" = String, Path, description = "The job's id")),
    responses((status = 200, body = JobView), Problems, StateProblems),
    security(("token" = ["manage"])),
)]
pub async fn pause(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    NamedJob(id): NamedJob,
) -> Result<Json<JobView>, Problem> {
    change(&api, &by, &tenant, id, JobChange::Pause).await
}

/// Resume a paused job
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/jobs/{job}/resume", operation_id = "resume_job", tag = "jobs",
    params(("tenant" = String, Path, description = "Whose job it is"), ("job" = String, Path, description = "The job's id")),
    responses((status = 200, body = JobView), Problems, StateProblems),
    security(("token" = ["manage"])),
)]
pub async fn resume(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    NamedJob(id): NamedJob,
) -> Result<Json<JobView>, Problem> {
    change(&api, &by, &tenant, id, JobChange::Resume).await
}

/// Cancel a job
///
/// What it has done stays done.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/jobs/{job}/cancel", operation_id = "cancel_job", tag = "jobs",
    params(("tenant" = String, Path, description = "Whose job it is"), ("job" = String, Path, description = "The job's id")),
    responses((status = 200, body = JobView), Problems, StateProblems),
    security(("token" = ["manage"])),
)]
pub async fn cancel(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    NamedJob(id): NamedJob,
) -> Result<Json<JobView>, Problem> {
    change(&api, &by, &tenant, id, JobChange::Cancel).await
}
