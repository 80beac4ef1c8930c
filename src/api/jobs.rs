//! Starts, previews, lists, pauses and cancels jobs.

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use utoipa::ToSchema;

use super::SharedApiState;
use super::endpoints::check_note;
use super::input::{DOCUMENT_BYTES_MAX, TenantPath, document_from_json, path_part, read_body};
use super::job_view::{JobPreviewView, JobView};
use super::page::{Page, PageParams, page_request};
use super::problem::{FieldError, InputProblems, LimitProblems, Problem, ProblemCode, Problems, StateProblems};
use super::query_params::ListParams;
use crate::lifecycle::Gateway;
use crate::lifecycle::jobs::preview::{expect, preview};
use crate::lifecycle::jobs::{parts_of, running_max};
use crate::model::audit::Initiator;
use crate::model::id::{EndpointId, JobId, TenantId};
use crate::model::invalid_setting::InvalidSetting;
use crate::model::job::{IDS_MAX, Job, JobChange, JobFilter, JobKind, JobPart, JobSpec, JobState};
use crate::model::named_enum::NamedEnum;
use crate::model::span::Span;
use crate::store::{ListPage, MissingResource};

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

/// Start a job: one change of many deliveries
///
/// With `dry_run` nothing is done, and the answer is 200 with what would be. Otherwise the job goes on by itself, also over restarts.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/jobs", operation_id = "create_job", tag = "jobs",
    params(("tenant" = String, Path, description = "The tenant's id")),
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
    start(&api, &by, Some(tenant), &headers, body).await
}

/// Start a job over all tenants
///
/// It belongs to the tenant `_system`, whose list has it. All else is as for a job of one tenant.
#[utoipa::path(
    post, path = "/v1/jobs", operation_id = "create_job_of_all", tag = "jobs",
    request_body = NewJob,
    responses(
        (status = 200, body = JobPreviewView), (status = 202, body = JobView), Problems, InputProblems, LimitProblems
    ),
    security(("token" = ["admin"])),
)]
pub async fn create_of_all(
    State(api): State<SharedApiState>,
    by: Initiator,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    start(&api, &by, None, &headers, body).await
}

/// Starts a job of a tenant, or of all, or previews it.
async fn start(
    api: &SharedApiState,
    by: &Initiator,
    tenant: Option<TenantId>,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let body = read_body(headers, body, DOCUMENT_BYTES_MAX).await?;
    let new: NewJob = document_from_json(&body)?;
    let is_dry = new.dry_run;
    let spec = check_new_job(new, by)?;
    let (gateway, now) = (&api.gateway, api.gateway.clock.now());
    let parts = parts_of(gateway, tenant.as_ref(), &spec).await?;
    check_endpoints(gateway, tenant.as_ref(), &spec.filter, &parts)?;
    let id = JobId::mint(now, rand::random());
    let tenant = tenant.unwrap_or_else(TenantId::system);
    let (state, finished_at, error) = (JobState::Running, None, None);
    let mut job = Job { id, tenant, spec, state, created_at: now, finished_at, error, parts };
    if is_dry {
        let preview = preview(gateway, &job).await?;
        return Ok(Json(JobPreviewView::of(preview, gateway.clock.wall())).into_response());
    }
    expect(gateway, &mut job).await?;
    let started = gateway.store.create_job(by, job.clone(), running_max(gateway, &job.tenant)).await?;
    gateway.dispatcher.admit(started.freed);
    gateway.notifier.operational_events_written(&started.operational_events);
    let job = gateway.store.job(&job.tenant, job.id).await?.unwrap_or(job);
    Ok((StatusCode::ACCEPTED, Json(view_of_job(api, job).await?)).into_response())
}

/// Returns what was asked for, or what is wrong with it.
fn check_new_job(new: NewJob, by: &Initiator) -> Result<JobSpec, Problem> {
    let invalid = |pointer: &str, detail: String| Problem::field(ProblemCode::InvalidField, pointer, detail);
    if new.kind.deletes_tenant() {
        let detail = "kind is purge; a tenant is purged by POST /v1/tenants/{tenant}/purge";
        return Err(invalid("/kind", detail.into()));
    }
    let NewJob { kind, mut filter, per_second, not_older_than, even_overtaken, note, .. } = new;
    if let Some(state) = filter.state.filter(|state| !kind.applies_to(*state)) {
        let detail = format!("state is {}, and {} does not take such deliveries", state.as_str(), kind.as_str());
        return Err(invalid("/filter/state", detail));
    }
    let faults = filter.faults();
    if !faults.is_empty() {
        let below =
            |fault: InvalidSetting| FieldError { pointer: format!("/filter{}", fault.pointer), detail: fault.message };
        return Err(Problem::fields(ProblemCode::InvalidField, faults.into_iter().map(below).collect()));
    }
    if kind.creates_deliveries() {
        check_backfill(&filter, even_overtaken)?;
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
    // Each counts once.
    filter.ids.sort();
    filter.ids.dedup();
    if let Some(wrong) = per_second.filter(|per_second| !(*per_second > 0.0 && *per_second <= 1e6)) {
        return Err(invalid("/per_second", format!("per_second is {wrong}; use a number above 0, up to 1,000,000")));
    }
    let note = check_note(note)?;
    let by = by.caller().map_or_else(|| "unknown".to_owned(), |caller| caller.by.to_string());
    Ok(JobSpec { kind, filter, per_second, not_older_than, even_overtaken, note, by })
}

/// Refuses endpoints that do not exist, unless dead letters of theirs match.
fn check_endpoints(
    gateway: &Gateway,
    tenant: Option<&TenantId>,
    filter: &JobFilter,
    parts: &[JobPart],
) -> Result<(), Problem> {
    let is_known = |id: EndpointId| match tenant {
        Some(tenant) => gateway.store.endpoint(tenant, id).is_some(),
        None => gateway.store.any_endpoint(id).is_some(),
    };
    let unknown = filter.endpoints.iter().enumerate().filter(|(_, id)| !is_known(**id));
    let fault = |(n, id): (usize, &EndpointId)| {
        let whose = tenant.map_or(String::new(), |tenant| format!(" in tenant {tenant}"));
        let detail = format!(
            "endpoint {id} does not exist{whose}, and no dead letters of it match; leave it out, or name one that \
             GET …/endpoints lists"
        );
        FieldError { pointer: format!("/filter/endpoints/{n}"), detail }
    };
    let is_gone = |(_, id): &(usize, &EndpointId)| !parts.iter().any(|part| part.endpoint == **id);
    let faults: Vec<FieldError> = unknown.filter(is_gone).map(fault).collect();
    if faults.is_empty() { Ok(()) } else { Err(Problem::fields(ProblemCode::InvalidField, faults)) }
}

/// Refuses what a backfill cannot do: it goes by events, which have no state yet.
fn check_backfill(filter: &JobFilter, even_overtaken: bool) -> Result<(), Problem> {
    let invalid = |pointer: &str, detail: &str| Err(Problem::field(ProblemCode::InvalidField, pointer, detail));
    let by_event = JobFilter {
        all: filter.all,
        endpoints: filter.endpoints.clone(),
        event_types: filter.event_types.clone(),
        key: filter.key.clone(),
        accepted_since: filter.accepted_since,
        accepted_until: filter.accepted_until,
        ..JobFilter::default()
    };
    if by_event != *filter {
        let detail = "a backfill chooses events; use endpoints, event_types, key, accepted_since and accepted_until";
        return invalid("/filter", detail);
    }
    if filter.endpoints.is_empty() {
        return invalid("/filter/endpoints", "endpoints is empty; name the endpoints that get the events");
    }
    if even_overtaken {
        let detail = "even_overtaken is true; a backfill joins a lane only behind all that is in it, so leave it out";
        return invalid("/even_overtaken", detail);
    }
    Ok(())
}

/// The filter of a list of jobs, which has none.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoFilter {}

/// List the jobs of a tenant, newest first
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/jobs", operation_id = "list_jobs", tag = "jobs",
    params(("tenant" = String, Path, description = "The tenant's id"), PageParams),
    responses((status = 200, body = Page<JobView>), Problems, InputProblems),
    security(("token" = ["read"])),
)]
pub async fn list(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
    params: ListParams<NoFilter>,
) -> Result<Json<Page<JobView>>, Problem> {
    let page_request = page_request("jobs", params.page.limit, params.page.cursor.as_deref())?;
    let page = api.gateway.store.jobs(Some(&tenant), page_request).await?;
    let shown = ListPage::of(JobView::of_all(&api.gateway, page.data).await?, page.next);
    Ok(Json(Page::of("jobs", shown, |job| job)))
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
    let page_request = page_request("all-jobs", params.page.limit, params.page.cursor.as_deref())?;
    let page = api.gateway.store.jobs(None, page_request).await?;
    let shown = ListPage::of(JobView::of_all(&api.gateway, page.data).await?, page.next);
    Ok(Json(Page::of("all-jobs", shown, |job| job)))
}

async fn find(api: &SharedApiState, tenant: &TenantId, id: JobId) -> Result<Json<JobView>, Problem> {
    let job = api.gateway.store.job(tenant, id).await?.ok_or_else(|| Problem::not_found(MissingResource::Job))?;
    Ok(Json(view_of_job(api, job).await?))
}

/// Shows one job.
async fn view_of_job(api: &SharedApiState, job: Job) -> Result<JobView, Problem> {
    Ok(JobView::of_all(&api.gateway, vec![job]).await?.remove(0))
}

/// Show a job
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/jobs/{job}", operation_id = "get_job", tag = "jobs",
    params(("tenant" = String, Path, description = "The tenant's id"), ("job" = String, Path, description = "The job's id")),
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
    let (most, now) = (running_max(&api.gateway, tenant), api.gateway.clock.now());
    let known = api.gateway.store.job(tenant, id).await?;
    if change == JobChange::Cancel && known.is_some_and(|job| job.spec.kind.deletes_tenant() && !job.state.is_over()) {
        let detail = format!("job {id} purges a tenant, and half of one is of no use; pause it, or let it finish");
        return Err(Problem::new(ProblemCode::WrongState, detail));
    }
    api.gateway.store.change_job(by, (tenant, id), change, most, now).await?;
    find(api, tenant, id).await
}

/// Pause a job
///
/// It releases nothing more until it is resumed; what it has released goes on.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/jobs/{job}/pause", operation_id = "pause_job", tag = "jobs",
    params(("tenant" = String, Path, description = "The tenant's id"), ("job" = String, Path, description = "The job's id")),
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
///
/// It is queued while its tenant has as many jobs that run as it may.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/jobs/{job}/resume", operation_id = "resume_job", tag = "jobs",
    params(("tenant" = String, Path, description = "The tenant's id"), ("job" = String, Path, description = "The job's id")),
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
    params(("tenant" = String, Path, description = "The tenant's id"), ("job" = String, Path, description = "The job's id")),
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
