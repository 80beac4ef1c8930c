//! Shows the health table of the gateway, a tenant or an endpoint.

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::SharedApiState;
use super::endpoints::find;
use super::input::{NamedEndpoint, TenantPath};
use super::problem::{Problem, Problems};
use crate::lifecycle::health_table::measure;
use crate::model::health_table::{
    FailureCount, HealthRow, SloStatus, TypeHealth, rows, slo_status, top_failures, top_types,
};
use crate::model::id::{EndpointId, TenantId};
use crate::store::figures::FigureScope;

/// The health table.
#[derive(Debug, Serialize, ToSchema)]
pub struct HealthTableView {
    /// The end of the hour of which nothing is missing: figures are written in windows of five minutes. What happened since is counted as well, as far as nodes answer in time.
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// The time over which rates are measured.
    #[schema(example = "1h")]
    window: &'static str,
    /// The rows, each with its thresholds.
    rows: Vec<HealthRow>,
    /// The service-level goal.
    slo: SloStatus,
    /// What failed attempts of the hour came back with, the most frequent first and at most ten: exact statuses, and kinds of failure as in `/metrics`.
    top_failures: Vec<FailureCount>,
    /// Endpoints at which the most attempts of the hour failed, the worst first and at most ten; empty for one endpoint.
    top_endpoints: Vec<FailingEndpointView>,
    /// Event types with the most attempts of the hour, the busiest first and at most ten; empty for one endpoint. A delivery whose time passed before an attempt could start is in the rows, and not here.
    top_types: Vec<TypeHealth>,
}

/// An endpoint at which attempts failed.
#[derive(Debug, Serialize, ToSchema)]
pub struct FailingEndpointView {
    /// The tenant that it belongs to.
    #[schema(value_type = String)]
    tenant: TenantId,
    /// The id of the endpoint.
    #[schema(value_type = String)]
    endpoint: EndpointId,
    /// How many of its attempts failed.
    failed_attempts: u64,
}

async fn table(api: &SharedApiState, scope: FigureScope) -> Result<Json<HealthTableView>, Problem> {
    let measured = measure(&api.gateway, &scope).await?;
    let at = api.gateway.clock.wall_offset().wall(measured.until);
    let (rows, slo) = (rows(&measured.measures), slo_status(&measured.measures, api.slo_target));
    let top_failures = top_failures(&measured.measures.hour);
    let shown = |(tenant, endpoint, failed_attempts)| FailingEndpointView { tenant, endpoint, failed_attempts };
    let top_endpoints = measured.failing.into_iter().map(shown).collect();
    let top_types = top_types(&measured.types);
    Ok(Json(HealthTableView { at, window: "1h", rows, slo, top_failures, top_endpoints, top_types }))
}

/// Show the health of the gateway
///
/// Rates over the last hour, of the deliveries that were finished in it, each with what is healthy and from where on somebody should look, and the service-level goal: 99.9 % of the deliveries within ten minutes, or the part that `--slo-target` says.
#[utoipa::path(
    get, path = "/v1/health-table", operation_id = "get_health_table", tag = "status",
    responses((status = 200, body = HealthTableView), Problems),
    security(("token" = ["admin"])),
)]
pub async fn of_gateway(State(api): State<SharedApiState>) -> Result<Json<HealthTableView>, Problem> {
    table(&api, FigureScope::Gateway).await
}

/// Show the health of a tenant
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/health-table", operation_id = "get_tenant_health_table", tag = "status",
    params(("tenant" = String, Path, description = "Whose deliveries they are")),
    responses((status = 200, body = HealthTableView), Problems),
    security(("token" = ["read"])),
)]
pub async fn of_tenant(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
) -> Result<Json<HealthTableView>, Problem> {
    table(&api, FigureScope::Tenant(tenant)).await
}

/// Show the health of an endpoint
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/endpoints/{endpoint}/health-table", operation_id = "get_endpoint_health_table", tag = "endpoints",
    params(("tenant" = String, Path, description = "Whose endpoint it is"), ("endpoint" = String, Path, description = "The endpoint's id")),
    responses((status = 200, body = HealthTableView), Problems),
    security(("token" = ["read"])),
)]
pub async fn of_endpoint(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
    NamedEndpoint(id): NamedEndpoint,
) -> Result<Json<HealthTableView>, Problem> {
    let endpoint = find(&api, &tenant, id)?;
    table(&api, FigureScope::Endpoint(tenant, endpoint.id)).await
}
