//! Lists over all tenants, for the operator.

use axum::Json;
use axum::extract::State;

use super::SharedApiState;
use super::auth::Principal;
use super::deliveries::{DeliveryView, dead_only, page_of_views};
use super::endpoint_list::{self, EndpointListParams};
use super::endpoint_view::EndpointView;
use super::page::{Page, PageParams, page_request};
use super::problem::{InputProblems, Problem, ProblemCode, Problems};
use super::query_params::{ListParams, QueryParams};
use crate::model::delivery::DeliveryState;
use crate::model::delivery_filter::DeliveryFilter;
use crate::model::id::TenantId;
use crate::store::ListPage;

/// List the deliveries of all tenants, newest first
///
/// Bounds on the finish are for dead letters: give `state=dead` with them, or name a tenant.
#[utoipa::path(
    get, path = "/v1/deliveries", operation_id = "list_all_deliveries", tag = "deliveries",
    params(DeliveryFilter, PageParams),
    responses((status = 200, body = Page<DeliveryView>), Problems, InputProblems),
    security(("token" = ["admin"])),
)]
pub async fn deliveries(
    State(api): State<SharedApiState>,
    params: ListParams<DeliveryFilter>,
) -> Result<Json<Page<DeliveryView>>, Problem> {
    page_of(&api, "all-deliveries", params.filter, params.page).await
}

/// List the dead letters of all tenants, newest first
///
/// With `finished_since` or `finished_until`, times of death, the latest dead come first.
#[utoipa::path(
    get, path = "/v1/dead-letters", operation_id = "list_all_dead_letters", tag = "dead letters",
    params(DeliveryFilter, PageParams),
    responses((status = 200, body = Page<DeliveryView>), Problems, InputProblems),
    security(("token" = ["admin"])),
)]
pub async fn dead_letters(
    State(api): State<SharedApiState>,
    params: ListParams<DeliveryFilter>,
) -> Result<Json<Page<DeliveryView>>, Problem> {
    page_of(&api, "all-dead-letters", dead_only(params.filter)?, params.page).await
}

async fn page_of(
    api: &SharedApiState,
    list: &'static str,
    filter: DeliveryFilter,
    page: PageParams,
) -> Result<Json<Page<DeliveryView>>, Problem> {
    let page_request = page_request(list, page.limit, page.cursor.as_deref())?;
    let (store, offset) = (&api.gateway.store, api.gateway.clock.wall_offset());
    let filter = filter.to_engine_time(offset);
    let page = match filter.endpoint {
        // An endpoint has one tenant.
        Some(id) => {
            let known = store.any_endpoint(id).map(|endpoint| endpoint.tenant.clone());
            let tenant: Option<TenantId> = match known {
                Some(tenant) => Some(tenant),
                None => store.deleted_endpoint(id).await?.map(|(tenant, _)| tenant),
            };
            match tenant {
                Some(tenant) => store.deliveries(&tenant, filter, page_request).await?,
                None => ListPage::empty(),
            }
        }
        None if filter.is_by_finish() && filter.state != Some(DeliveryState::Dead) => {
            let detail = "over all tenants only dead letters are found by their finish; add state=dead, or list the \
                          deliveries of one tenant";
            return Err(Problem::field(ProblemCode::InvalidField, "?finished_since", detail));
        }
        None => store.all_deliveries(filter, page_request).await?,
    };
    Ok(Json(page_of_views(api, list, page.to_wall_time(offset)).await))
}

/// List the endpoints of all tenants
///
/// The newest first, unless `sort` says otherwise.
#[utoipa::path(
    get, path = "/v1/endpoints", operation_id = "list_all_endpoints", tag = "endpoints",
    params(EndpointListParams),
    responses((status = 200, body = Page<EndpointView>), Problems, InputProblems),
    security(("token" = ["admin"])),
)]
pub async fn endpoints(
    State(api): State<SharedApiState>,
    principal: Principal,
    QueryParams(params): QueryParams<EndpointListParams>,
) -> Result<Json<Page<EndpointView>>, Problem> {
    endpoint_list::page_of(&api, "all-endpoints", None, params, &principal).await.map(Json)
}
