//! Finds things by their id alone, whichever tenant they belong to.

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::SharedApiState;
use super::page::Page;
use super::problem::{InputProblems, Problem, ProblemCode, Problems};
use super::query_params::QueryParams;
use crate::model::attempt::Attempt;
use crate::model::id::{AttemptId, AuditId, DeliveryId, EndpointId, EventId, JobId, SecretId, TenantId, TokenId};
use crate::store::{self, AuditQuery, PageRequest, Store};

/// Most events that one id finds.
const EVENTS_MAX: usize = 500;

/// The kind of thing that has an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FoundKind {
    /// A tenant itself.
    Tenant,
    /// An endpoint; one that was deleted has `deleted_at`.
    Endpoint,
    /// An event; several tenants may have one with the same id.
    Event,
    /// A delivery to any endpoint.
    Delivery,
    /// An attempt of a delivery.
    Attempt,
    /// A signing secret of an endpoint.
    Secret,
    /// A token that is not revoked.
    Token,
    /// An entry of the audit log.
    AuditEntry,
    /// A job that is kept.
    Job,
}

/// Something that has the id.
#[derive(Debug, Serialize, ToSchema)]
pub struct FoundView {
    /// What it is.
    kind: FoundKind,
    /// The id it was found by.
    id: String,
    /// The tenant that it belongs to; null for a token of the gateway itself.
    #[schema(value_type = Option<String>)]
    tenant: Option<TenantId>,
    /// The delivery of an attempt, or the endpoint of a secret; null for all else.
    of: Option<String>,
    /// When it was deleted, RFC 3339; null unless it is a deleted endpoint.
    #[schema(value_type = Option<String>)]
    deleted_at: Option<Timestamp>,
    /// Path of the API that shows it; null for a token, which is only listed, and for what was deleted.
    path: Option<String>,
}

/// Which id to find.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FindParams {
    /// The id of a delivery, an attempt, an event, an endpoint, a secret, a tenant, a token, a job or an audit entry.
    #[param(example = "dlv_01m7fwhwg2e008000000000002")]
    id: String,
}

/// Find something by its id, in every tenant
///
/// Ids of events are unique within their tenant alone, so there may be several; at most 500 events are found.
#[utoipa::path(
    get, path = "/v1/find", operation_id = "find_by_id", tag = "status",
    params(FindParams),
    responses((status = 200, body = Page<FoundView>), Problems, InputProblems),
    security(("token" = ["admin"])),
)]
pub async fn find(
    State(api): State<SharedApiState>,
    QueryParams(FindParams { id }): QueryParams<FindParams>,
) -> Result<Json<Page<FoundView>>, Problem> {
    // Every other id has the form of an event's.
    let event: EventId =
        id.parse().map_err(|invalid| Problem::field(ProblemCode::InvalidField, "?id", format!("{invalid}")))?;
    let store = api.gateway.store.as_ref();
    let mut found: Vec<FoundView> = in_catalog(store, &id).into_iter().collect();
    found.extend(in_history(store, &id).await?);
    let tenants = store.tenants_of_event(&event, EVENTS_MAX).await?;
    found.extend(tenants.iter().map(|tenant| {
        FoundView::of(FoundKind::Event, &id, tenant).with_path(format!("/v1/tenants/{tenant}/events/{id}"))
    }));
    Ok(Json(Page::whole(found)))
}

/// Finds a tenant, an endpoint, a secret or a token. All of them are in memory.
fn in_catalog(store: &dyn Store, id: &str) -> Option<FoundView> {
    if let Some(tenant) = id.parse().ok().and_then(|id: TenantId| store.tenant(&id)) {
        let path = format!("/v1/tenants/{}", tenant.id);
        return Some(FoundView::of(FoundKind::Tenant, id, &tenant.id).with_path(path));
    }
    if let Some(endpoint) = id.parse().ok().and_then(|id: EndpointId| store.any_endpoint(id)) {
        let path = format!("/v1/tenants/{}/endpoints/{id}", endpoint.tenant);
        return Some(FoundView::of(FoundKind::Endpoint, id, &endpoint.tenant).with_path(path));
    }
    if let Ok(secret) = id.parse::<SecretId>() {
        let tenants = store.tenants();
        let mut endpoints = tenants.iter().flat_map(|tenant| store.endpoints(&tenant.id));
        let endpoint = endpoints.find(|endpoint| endpoint.secrets.iter().any(|known| known.id == secret))?;
        let path = format!("/v1/tenants/{}/endpoints/{}/secrets", endpoint.tenant, endpoint.id);
        let found = FoundView::of(FoundKind::Secret, id, &endpoint.tenant).with_path(path);
        return Some(FoundView { of: Some(endpoint.id.to_string()), ..found });
    }
    let token = id.parse().ok().and_then(|id: TokenId| store.token(id))?;
    Some(FoundView { tenant: token.tenant.clone(), ..FoundView::of(FoundKind::Token, id, &TenantId::system()) })
}

/// Finds a delivery, an attempt, an audit entry, a job or a deleted endpoint, each by the
/// key of its row.
async fn in_history(store: &dyn Store, id: &str) -> store::Result<Option<FoundView>> {
    if let Ok(delivery) = id.parse::<DeliveryId>() {
        let tenant = store.tenant_of_delivery(delivery).await?;
        return Ok(tenant.map(|tenant| {
            FoundView::of(FoundKind::Delivery, id, &tenant).with_path(format!("/v1/tenants/{tenant}/deliveries/{id}"))
        }));
    }
    if let Ok(attempt) = id.parse::<AttemptId>() {
        return found_attempt(store, id, attempt).await;
    }
    if let Ok(entry) = id.parse::<AuditId>() {
        return found_audit_entry(store, id, entry).await;
    }
    if let Ok(job) = id.parse::<JobId>() {
        let tenant = store.tenant_of_job(job).await?;
        return Ok(tenant.map(|tenant| {
            FoundView::of(FoundKind::Job, id, &tenant).with_path(format!("/v1/tenants/{tenant}/jobs/{id}"))
        }));
    }
    let Ok(endpoint) = id.parse::<EndpointId>() else { return Ok(None) };
    if store.any_endpoint(endpoint).is_some() {
        return Ok(None);
    }
    let deleted = store.deleted_endpoint(endpoint).await?;
    Ok(deleted.map(|(tenant, deleted_at)| FoundView {
        deleted_at: Some(deleted_at),
        ..FoundView::of(FoundKind::Endpoint, id, &tenant)
    }))
}

/// Finds an attempt through its delivery.
async fn found_attempt(store: &dyn Store, id: &str, attempt: AttemptId) -> store::Result<Option<FoundView>> {
    let Some((tenant, delivery)) = store.delivery_of_attempt(attempt).await? else { return Ok(None) };
    let attempts = store.attempts(&tenant, delivery).await?.unwrap_or_default();
    let is_it = |known: &Attempt| AttemptId::of(delivery, known.number, known.started_at) == attempt;
    Ok(attempts.iter().any(is_it).then(|| {
        let path = format!("/v1/tenants/{tenant}/deliveries/{delivery}/attempts");
        FoundView { of: Some(delivery.to_string()), ..FoundView::of(FoundKind::Attempt, id, &tenant).with_path(path) }
    }))
}

/// Finds an entry of the audit log as the first of the page that ends with it.
async fn found_audit_entry(store: &dyn Store, id: &str, entry: AuditId) -> store::Result<Option<FoundView>> {
    let after = AuditId(Uuid::from_u128(entry.0.as_u128().saturating_add(1)));
    let page = PageRequest { cursor: Some(after.to_string()), limit: 1 };
    let found = store.audit(AuditQuery::default(), page).await?.data.into_iter().next();
    Ok(found.filter(|found| found.id == entry).map(|found| {
        // The list of the one millisecond that the id contains.
        let millis = i64::try_from(entry.0.as_u128() >> 80).unwrap_or(0);
        let at = |millis| Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MAX);
        let path = format!("/v1/audit?since={:.3}&until={:.3}", at(millis), at(millis + 1));
        FoundView::of(FoundKind::AuditEntry, id, &found.record.tenant).with_path(path)
    }))
}

impl FoundView {
    fn of(kind: FoundKind, id: &str, tenant: &TenantId) -> Self {
        Self { kind, id: id.to_owned(), tenant: Some(tenant.clone()), of: None, deleted_at: None, path: None }
    }

    fn with_path(self, path: String) -> Self {
        Self { path: Some(path), ..self }
    }
}
