//! Lists, creates, changes and deletes tenants.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

use super::SharedApiState;
use super::auth::Principal;
use super::endpoints::apply_merge_patch;
use super::input::{
    DOCUMENT_BYTES_MAX, NamedTenant, TenantPath, document_from_json, fields_from_json, from_value, read_body,
};
use super::job_view::JobView;
use super::page::{Page, page_request};
use super::problem::{FieldError, InputProblems, Problem, ProblemCode, Problems, StateProblems};
use super::query_params::QueryParams;
use crate::lifecycle::{change, purge};
use crate::model::audit::Initiator;
use crate::model::endpoint::EndpointCeiling;
use crate::model::endpoint::EndpointDefaults;
use crate::model::id::{EndpointId, TenantId};
use crate::model::limits::{TenantLimits, TenantUsage};
use crate::model::rate::Rate;
use crate::model::span::Span;
use crate::model::tenant::{Tenant, TenantQuota, TenantRetention};
use crate::store::MissingResource;

const NAME_BYTES_MAX: usize = 256;

/// Settings of a tenant.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantSettings {
    /// Name for people, at most 256 bytes.
    #[serde(default)]
    name: String,
    /// Its [share](gentle.md#fairness) of the gateway's send slots, against those of the others, 1 to 1,000.
    #[serde(default = "default_weight")]
    #[schema(minimum = 1, maximum = 1000)]
    weight: u32,
    /// How often its receivers may be called, over all its endpoints; `null` for as often as theirs allow.
    #[serde(default)]
    rate: Option<Rate>,
    /// How many events it may hand in; see [too many events](#too-many-events).
    #[serde(default = "default_ingest")]
    ingest: Rate,
    /// The most it may use of what all tenants share; see below. Only an admin changes it; left out by another caller, it stays.
    #[serde(default)]
    limits: TenantLimits,
    /// What its new endpoints get where they say nothing themselves: `retry`, `status_rules`, `max_in_flight` and `timeout`, each as a whole.
    #[serde(default)]
    defaults: EndpointDefaults,
    /// How long its delivered and cancelled deliveries are kept, and events without any: `1m` to `3650d`; `null` for as long as [`--retention`](settings.md) says.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "7d")]
    retention: Option<Span>,
    /// How long its dead letters are kept, `1m` to `3650d`; `null` for as long as [`--dead-letter-retention`](settings.md) says.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "30d")]
    dead_letter_retention: Option<Span>,
}

fn default_weight() -> u32 {
    TenantQuota::default().weight
}

fn default_ingest() -> Rate {
    TenantQuota::default().ingest
}

impl TenantSettings {
    fn of(tenant: &Tenant) -> Self {
        let TenantQuota { weight, rate, ingest } = tenant.quota;
        let (limits, defaults) = (tenant.limits.clone(), tenant.defaults.clone());
        let TenantRetention { finished: retention, dead: dead_letter_retention } = tenant.retention;
        let name = tenant.name.clone();
        Self { name, weight, rate, ingest, limits, defaults, retention, dead_letter_retention }
    }

    /// Returns the limits to save. A caller without the right `admin` cannot change
    /// them.
    fn limits_for(&self, principal: &Principal, before: TenantLimits) -> Result<TenantLimits, Problem> {
        match principal.must_be_admin() {
            Ok(()) => Ok(self.limits.clone()),
            Err(refusal) if self.limits != before && self.limits != TenantLimits::default() => Err(refusal),
            Err(_) => Ok(before),
        }
    }

    fn new() -> Self {
        let TenantQuota { weight, rate, ingest } = TenantQuota::default();
        Self {
            name: String::new(),
            weight,
            rate,
            ingest,
            limits: TenantLimits::default(),
            defaults: EndpointDefaults::default(),
            retention: None,
            dead_letter_retention: None,
        }
    }
}

/// A tenant as it is shown.
#[derive(Serialize, ToSchema)]
pub struct TenantView {
    /// Its id, chosen by the caller.
    #[schema(value_type = String)]
    id: TenantId,
    /// Settings of the tenant.
    #[serde(flatten)]
    settings: TenantSettings,
    /// What it uses, by the names of its limits.
    usage: TenantUsage,
    /// The endpoints that are set to more than `limits.endpoint`, which is in force for them all the same; at most 20 of them, newest first.
    #[schema(value_type = Vec<String>)]
    above_ceiling: Vec<EndpointId>,
    /// When it was created.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
}

/// Most endpoints above a ceiling that are listed.
const ABOVE_MAX: usize = 20;

impl TenantView {
    async fn read(api: &SharedApiState, tenant: &Tenant) -> Result<Self, Problem> {
        Ok(Self::of_all(api, &[tenant]).await?.remove(0))
    }

    async fn of_all(api: &SharedApiState, tenants: &[&Tenant]) -> Result<Vec<Self>, Problem> {
        let ids: Vec<TenantId> = tenants.iter().map(|tenant| tenant.id.clone()).collect();
        let usage = api.gateway.store.usage(&ids).await?;
        Ok(tenants.iter().zip(usage).map(|(tenant, usage)| Self::of(api, tenant, usage)).collect())
    }

    fn of(api: &SharedApiState, tenant: &Tenant, usage: TenantUsage) -> Self {
        let created_at = api.gateway.clock.wall_offset().wall(tenant.created_at);
        let ceiling = tenant.limits.endpoint;
        let above_ceiling = if ceiling == EndpointCeiling::default() {
            Vec::new()
        } else {
            let endpoints = api.gateway.store.endpoints(&tenant.id).into_iter();
            let above = endpoints.filter(|endpoint| !ceiling.settings_above(&endpoint.settings).is_empty());
            above.map(|endpoint| endpoint.id).take(ABOVE_MAX).collect()
        };
        Self { id: tenant.id.clone(), settings: TenantSettings::of(tenant), usage, above_ceiling, created_at }
    }
}

/// List tenants, by id
#[utoipa::path(
    get, path = "/v1/tenants", operation_id = "list_tenants", tag = "tenants",
    params(TenantParams),
    responses((status = 200, body = Page<TenantView>), Problems, InputProblems),
    security(("token" = ["tenants"])),
)]
pub async fn list(
    State(api): State<SharedApiState>,
    QueryParams(params): QueryParams<TenantParams>,
) -> Result<Json<Page<TenantView>>, Problem> {
    let page_request = page_request("tenants", params.limit, params.cursor.as_deref())?;
    let after = page_request.cursor.unwrap_or_default();
    let mut rest = api.gateway.store.tenants().into_iter().filter(|tenant| tenant.id.as_str() > after.as_str());
    let data: Vec<_> = rest.by_ref().take(page_request.limit).collect();
    let next = rest.next().and(data.last()).map(|tenant| tenant.id.to_string());
    let data = TenantView::of_all(&api, &data.iter().map(Arc::as_ref).collect::<Vec<_>>()).await?;
    Ok(Json(Page::of("tenants", crate::store::ListPage::of(data, next), |view| view)))
}

/// Which part of the list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TenantParams {
    /// Page size, 1 to 500; 50 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// The `next` of the page before.
    cursor: Option<String>,
}

/// Show a tenant
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}", operation_id = "get_tenant", tag = "tenants",
    params(("tenant" = String, Path, description = "The tenant's id")),
    responses((status = 200, body = TenantView), Problems),
    security(("token" = ["read"])),
)]
pub async fn show(State(api): State<SharedApiState>, TenantPath(id): TenantPath) -> Result<Json<TenantView>, Problem> {
    let tenant = api.gateway.store.tenant(&id).ok_or_else(|| Problem::not_found(MissingResource::Tenant))?;
    Ok(Json(TenantView::read(&api, &tenant).await?))
}

/// Create a tenant, or replace its settings
#[utoipa::path(
    put, path = "/v1/tenants/{tenant}", operation_id = "put_tenant", tag = "tenants",
    params(("tenant" = String, Path, description = "The tenant's id: 1 to 64 of `A-Z a-z 0-9 _ -`, not beginning with `_`")),
    request_body = Option<TenantSettings>,
    responses(
        (status = 200, body = TenantView), (status = 201, body = TenantView), Problems, InputProblems, StateProblems
    ),
    security(("token" = ["tenants"])),
)]
pub async fn put(
    State(api): State<SharedApiState>,
    principal: Principal,
    by: Initiator,
    path: Result<NamedTenant, Problem>,
    uri: http::Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<TenantView>), Problem> {
    let id = match path {
        Ok(NamedTenant(id)) => id,
        // The path has no valid id; the problem says what a valid id is.
        Err(_) => return Err(bad_id(&uri)),
    };
    let body = read_body(&headers, body, DOCUMENT_BYTES_MAX).await?;
    let settings: TenantSettings =
        if body.trim_ascii().is_empty() { TenantSettings::new() } else { document_from_json(&body)? };
    let current = api.gateway.store.tenant(&id);
    let is_known = current.is_some();
    let before = current.map(|tenant| tenant.limits.clone()).unwrap_or_default();
    let settings = TenantSettings { limits: settings.limits_for(&principal, before)?, ..settings };
    let tenant = save(&api, &by, id, settings).await?;
    Ok((if is_known { StatusCode::OK } else { StatusCode::CREATED }, tenant))
}

fn bad_id(uri: &http::Uri) -> Problem {
    let text = percent_encoding::percent_decode_str(uri.path().rsplit('/').next().unwrap_or_default());
    let text = text.decode_utf8_lossy();
    let detail = match text.parse::<TenantId>() {
        Err(problem) => problem.to_string(),
        Ok(_) => "the tenant's id cannot be read".to_owned(),
    };
    Problem::field(ProblemCode::InvalidField, "tenant", detail)
}

async fn save(
    api: &SharedApiState,
    by: &Initiator,
    id: TenantId,
    settings: TenantSettings,
) -> Result<Json<TenantView>, Problem> {
    check_tenant_settings(&settings)?;
    let TenantSettings { name, weight, rate, ingest, limits, defaults, retention, dead_letter_retention } = settings;
    let retention = TenantRetention { finished: retention, dead: dead_letter_retention };
    let quota = TenantQuota { weight, rate, ingest };
    let tenant = Tenant { id, name, quota, limits, defaults, retention, created_at: api.gateway.clock.now() };
    let tenant = change::put_tenant(&api.gateway, by, tenant).await?;
    Ok(Json(TenantView::read(api, &tenant).await?))
}

fn check_tenant_settings(settings: &TenantSettings) -> Result<(), Problem> {
    let mut errors = Vec::new();
    let mut refuse = |pointer: &str, detail: String| errors.push(FieldError { pointer: pointer.into(), detail });
    if settings.name.len() > NAME_BYTES_MAX || settings.name.chars().any(char::is_control) {
        refuse("/name", format!("name is longer than {NAME_BYTES_MAX} bytes or holds control characters; shorten it"));
    }
    if !(1..=1_000).contains(&settings.weight) {
        refuse("/weight", format!("weight is {}; use 1 to 1,000", settings.weight));
    }
    for (pointer, rate) in [("/rate", settings.rate), ("/ingest", Some(settings.ingest))] {
        if let Some(Err((field, detail))) = rate.map(|rate| rate.check()) {
            refuse(&format!("{pointer}{field}"), detail);
        }
    }
    settings.limits.check(|pointer, detail| refuse(&format!("/limits{pointer}"), detail));
    let retentions = [("retention", settings.retention), ("dead_letter_retention", settings.dead_letter_retention)];
    for (name, span) in retentions {
        if let Some(span) = span.filter(|span| !(TenantRetention::MIN..=TenantRetention::MAX).contains(span)) {
            let detail =
                format!("{name} is {span}; use 1m to 3650d, or null for as long as the gateway keeps all others");
            refuse(&format!("/{name}"), detail);
        }
    }
    let defaults = &settings.defaults;
    if let Some(Err(detail)) = defaults.status_rules.as_ref().map(|rules| rules.check()) {
        refuse("/defaults/status_rules", detail);
    }
    if let Some(Err(problem)) = defaults.retry.as_ref().map(|retry| retry.resolve()) {
        refuse(&format!("/defaults/retry{}", problem.pointer), problem.message);
    }
    if let Some(cap) = defaults.max_in_flight.filter(|cap| !(1..=1_000).contains(cap)) {
        refuse("/defaults/max_in_flight", format!("max_in_flight is {cap}; use 1 to 1,000"));
    }
    if let Some(Err(detail)) = defaults.timeout.as_ref().map(|timeout| timeout.check()) {
        refuse("/defaults/timeout", detail);
    }
    if errors.is_empty() { Ok(()) } else { Err(Problem::fields(ProblemCode::InvalidField, errors)) }
}

/// Change a tenant
///
/// A JSON merge patch: what is left out stays, null goes back to its default.
#[utoipa::path(
    patch, path = "/v1/tenants/{tenant}", operation_id = "update_tenant", tag = "tenants",
    params(("tenant" = String, Path, description = "The tenant's id")),
    request_body = TenantSettings,
    responses((status = 200, body = TenantView), Problems, InputProblems, StateProblems),
    security(("token" = ["tenants"])),
)]
pub async fn update(
    State(api): State<SharedApiState>,
    principal: Principal,
    by: Initiator,
    TenantPath(id): TenantPath,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<TenantView>, Problem> {
    let body = read_body(&headers, body, DOCUMENT_BYTES_MAX).await?;
    let patch = fields_from_json::<TenantSettings>(&body)?;
    let current = api.gateway.store.tenant(&id).ok_or_else(|| Problem::not_found(MissingResource::Tenant))?;
    let mut document = serde_json::to_value(TenantSettings::of(&current)).expect("settings are plain data");
    apply_merge_patch(&mut document, Value::Object(patch));
    let settings: TenantSettings = from_value(&document)?;
    let limits = settings.limits_for(&principal, current.limits.clone())?;
    save(&api, &by, id, TenantSettings { limits, ..settings }).await
}

/// Delete a tenant
///
/// Its endpoints are deleted with it, and what waits for them is cancelled.
#[utoipa::path(
    delete, path = "/v1/tenants/{tenant}", operation_id = "delete_tenant", tag = "tenants",
    params(("tenant" = String, Path, description = "The tenant's id")),
    responses((status = 204), Problems, StateProblems),
    security(("token" = ["tenants"])),
)]
pub async fn delete(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(id): TenantPath,
) -> Result<StatusCode, Problem> {
    change::delete_tenant(&api.gateway, &by, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Purge a tenant: delete everything that is stored of it
///
/// From the answer on the tenant is gone for everybody, nothing is accepted for it and nothing of it is sent. The job, which belongs to the tenant `_system`, deletes all its rows; on the embedded store it also overwrites the space that they had. Until it is finished no tenant can be created under the id. A tenant that was deleted before can be purged, too.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/purge", operation_id = "purge_tenant", tag = "tenants",
    params(("tenant" = String, Path, description = "The tenant's id")),
    responses((status = 202, body = JobView), Problems, StateProblems),
    security(("token" = ["admin"])),
)]
pub async fn purge(
    State(api): State<SharedApiState>,
    by: Initiator,
    NamedTenant(id): NamedTenant,
) -> Result<(StatusCode, Json<JobView>), Problem> {
    let job = purge::start(&api.gateway, &by, &id).await?;
    Ok((StatusCode::ACCEPTED, Json(JobView::of_all(&api.gateway, vec![job]).await?.remove(0))))
}
