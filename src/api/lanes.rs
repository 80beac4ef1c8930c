//! Lists the lanes of an endpoint: the head of each, and how many deliveries wait
//! behind it.

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::SharedApiState;
use super::endpoints::find;
use super::input::{NamedEndpoint, TenantPath};
use super::page::{Page, page_request};
use super::problem::{InputProblems, Problem, Problems};
use super::query_params::QueryParams;
use crate::model::id::DeliveryId;

/// A lane with members to deliver.
#[derive(Serialize, ToSchema)]
pub struct LaneView {
    /// The key; null for the one lane of a fully ordered endpoint.
    key: Option<String>,
    /// The delivery everyone waits for.
    #[schema(value_type = String)]
    head: DeliveryId,
    /// Whether that one is dead.
    blocked: bool,
    /// Since when it has been the head.
    #[schema(value_type = String, format = DateTime)]
    since: Timestamp,
    /// How many wait behind it.
    waiting: u64,
}

/// Which lanes to list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LaneParams {
    /// Only those behind a dead letter.
    #[serde(default)]
    blocked: bool,
    /// Page size, 1 to 500; 50 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// The `next` of the page before.
    cursor: Option<String>,
}

/// List the lanes of an endpoint that have members to deliver, by key
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/endpoints/{endpoint}/lanes", operation_id = "list_endpoint_lanes", tag = "endpoints",
    params(("tenant" = String, Path, description = "The tenant's id"), ("endpoint" = String, Path, description = "The endpoint's id"), LaneParams),
    responses((status = 200, body = Page<LaneView>), Problems, InputProblems),
    security(("token" = ["read"])),
)]
pub async fn list(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
    NamedEndpoint(id): NamedEndpoint,
    QueryParams(params): QueryParams<LaneParams>,
) -> Result<Json<Page<LaneView>>, Problem> {
    find(&api, &tenant, id)?;
    let page_request = page_request("lanes", params.limit, params.cursor.as_deref())?;
    let page = api.gateway.store.lanes(&tenant, id, params.blocked, page_request).await?;
    let offset = api.gateway.clock.wall_offset();
    Ok(Json(Page::of("lanes", page, |lane| LaneView {
        key: lane.key,
        head: lane.head,
        blocked: lane.is_blocked,
        since: offset.wall(lane.since),
        waiting: lane.waiting,
    })))
}
