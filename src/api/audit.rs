//! Lists the audit log: who changed what, when, and from where.

use std::collections::BTreeMap;
use std::net::IpAddr;

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::SharedApiState;
use super::input::TenantPath;
use super::page::{Page, page_request};
use super::problem::{InputProblems, Problem, ProblemCode, Problems};
use super::query_params::QueryParams;
use crate::model::audit::{AuditAction, AuditEntry, AuditRecord};
use crate::model::id::{AuditId, TenantId};
use crate::store::AuditQuery;

/// Something that was done through the API.
#[derive(Serialize, ToSchema)]
pub struct AuditView {
    /// The entry's id.
    #[schema(value_type = String)]
    id: AuditId,
    /// When it was done.
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// Who did it: `admin` for the admin token, or a token's id, with its name in brackets where it has one, or `unknown`.
    by: String,
    /// The address of the connection, or the one that a proxy in [`--trusted-proxies`](settings.md) gives in `X-Forwarded-For`; null when it is not known.
    #[schema(value_type = Option<String>)]
    from: Option<IpAddr>,
    /// The request that did it, as in its answer's `x-request-id`.
    request_id: String,
    /// What was done.
    action: AuditAction,
    /// The tenant of the resource. Changes of the gateway's own tokens are entries of the tenant `_system`.
    #[schema(value_type = String)]
    tenant: TenantId,
    /// The id of what it was done to.
    resource: String,
    /// The names of the changed settings, and never a value; for a new token its rights.
    fields: Vec<String>,
    /// How many rows a [purge](forgetting.md) deleted, by kind; left out for everything else.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    counts: BTreeMap<String, u64>,
}

impl From<AuditEntry> for AuditView {
    fn from(entry: AuditEntry) -> Self {
        let AuditRecord { at, by, from, request_id, action, tenant, resource, fields, counts } = entry.record;
        Self { id: entry.id, at, by, from, request_id, action, tenant, resource, fields, counts }
    }
}

/// Which entries to list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditParams {
    /// Done to what has this id.
    resource: Option<String>,
    /// Done at this time or later, RFC 3339.
    #[param(value_type = Option<String>)]
    since: Option<Timestamp>,
    /// Done before this time, RFC 3339.
    #[param(value_type = Option<String>)]
    until: Option<Timestamp>,
    /// Page size, 1 to 500; 50 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// The `next` of the page before.
    cursor: Option<String>,
}

/// List what was done to a tenant and its things, newest first
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/audit", operation_id = "list_tenant_audit_entries", tag = "audit",
    params(("tenant" = String, Path, description = "The tenant's id"), AuditParams),
    responses((status = 200, body = Page<AuditView>), Problems, InputProblems),
    security(("token" = ["read"])),
)]
pub async fn of_tenant(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
    QueryParams(params): QueryParams<AuditParams>,
) -> Result<Json<Page<AuditView>>, Problem> {
    let page_request = page_request("audit", params.limit, params.cursor.as_deref())?;
    let AuditParams { resource, since, until, .. } = params;
    let query = AuditQuery { tenant: Some(tenant), is_present_only: true, resource, since, until };
    let page = api.gateway.store.audit(query, page_request).await?;
    Ok(Json(Page::of("audit", page, AuditView::from)))
}

/// Which entries of all to list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditOfAllParams {
    /// Done to what has this id.
    resource: Option<String>,
    /// Entries of tenants with this id, deleted tenants included.
    tenant: Option<String>,
    /// Done at this time or later, RFC 3339.
    #[param(value_type = Option<String>)]
    since: Option<Timestamp>,
    /// Done before this time, RFC 3339.
    #[param(value_type = Option<String>)]
    until: Option<Timestamp>,
    /// Page size, 1 to 500; 50 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// The `next` of the page before.
    cursor: Option<String>,
}

/// List what was done through the API, newest first
#[utoipa::path(
    get, path = "/v1/audit", operation_id = "list_audit_entries", tag = "audit",
    params(AuditOfAllParams),
    responses((status = 200, body = Page<AuditView>), Problems, InputProblems),
    security(("token" = ["admin"])),
)]
pub async fn list(
    State(api): State<SharedApiState>,
    QueryParams(params): QueryParams<AuditOfAllParams>,
) -> Result<Json<Page<AuditView>>, Problem> {
    let page_request = page_request("audit", params.limit, params.cursor.as_deref())?;
    let tenant = params.tenant.map(|text| text.parse::<TenantId>()).transpose();
    let tenant = tenant.map_err(|invalid| Problem::field(ProblemCode::InvalidField, "?tenant", invalid.to_string()))?;
    let AuditOfAllParams { resource, since, until, .. } = params;
    let query = AuditQuery { tenant, is_present_only: false, resource, since, until };
    let page = api.gateway.store.audit(query, page_request).await?;
    Ok(Json(Page::of("audit", page, AuditView::from)))
}
