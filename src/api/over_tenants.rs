//! Lists over all tenants, for the operator.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::SharedApiState;
use super::auth::Principal;
use super::deliveries::{DeliveryView, dead_only};
use super::endpoint_view::EndpointView;
use super::page::{Page, PageParams, ask};
use super::problem::{InputProblems, Problem, ProblemCode, Problems};
use super::query_params::{ListParams, QueryParams};
use crate::lifecycle::live_status::{LiveStatus, LiveStatusQuery, live_statuses};
use crate::model::delivery::DeliveryState;
use crate::model::delivery_filter::DeliveryFilter;
use crate::model::endpoint::{Endpoint, EndpointState};
use crate::model::health::{BreakerState, EndpointHealth};
use crate::model::id::TenantId;
use crate::model::url_versions::masked;
use crate::store::{ListPage, ScannedPage};

/// One page of a list over all tenants. It may be short and still have a next one.
#[derive(Debug, Serialize, ToSchema)]
pub struct PageOfAll<T> {
    /// What was found, in the order of the list.
    data: Vec<T>,
    /// Give this as `cursor` for the next page; null on the last.
    next: Option<String>,
    /// The time back to which this page looked, if it is short because it has looked at as many as a page may; null otherwise. The next page goes on from there.
    #[schema(value_type = Option<String>, format = DateTime)]
    looked_back_to: Option<Timestamp>,
}

/// List the deliveries of all tenants, newest first
///
/// Bounds on the finish are for dead letters: give `state=dead` with them, or name a tenant.
#[utoipa::path(
    get, path = "/v1/deliveries", operation_id = "list_all_deliveries", tag = "deliveries",
    params(DeliveryFilter, PageParams),
    responses((status = 200, body = PageOfAll<DeliveryView>), Problems, InputProblems),
    security(("token" = ["admin"])),
)]
pub async fn deliveries(
    State(api): State<SharedApiState>,
    params: ListParams<DeliveryFilter>,
) -> Result<Json<PageOfAll<DeliveryView>>, Problem> {
    page_of(&api, "all-deliveries", params.filter, params.page).await
}

/// List the dead letters of all tenants, newest first
///
/// With `finished_since` or `finished_until`, times of death, the latest dead come first.
#[utoipa::path(
    get, path = "/v1/dead-letters", operation_id = "list_all_dead_letters", tag = "dead letters",
    params(DeliveryFilter, PageParams),
    responses((status = 200, body = PageOfAll<DeliveryView>), Problems, InputProblems),
    security(("token" = ["admin"])),
)]
pub async fn dead_letters(
    State(api): State<SharedApiState>,
    params: ListParams<DeliveryFilter>,
) -> Result<Json<PageOfAll<DeliveryView>>, Problem> {
    page_of(&api, "all-dead-letters", dead_only(params.filter)?, params.page).await
}

async fn page_of(
    api: &SharedApiState,
    list: &'static str,
    filter: DeliveryFilter,
    page: PageParams,
) -> Result<Json<PageOfAll<DeliveryView>>, Problem> {
    let page_request = ask(list, page.limit, page.cursor.as_deref())?;
    let (store, offset) = (&api.gateway.store, api.gateway.clock.wall_offset());
    let filter = filter.on_engine(offset);
    let scanned = match filter.endpoint {
        // An endpoint has one tenant.
        Some(id) => {
            let known = store.any_endpoint(id).map(|endpoint| endpoint.tenant.clone());
            let tenant: Option<TenantId> = match known {
                Some(tenant) => Some(tenant),
                None => store.deleted_endpoint(id).await?.map(|(tenant, _)| tenant),
            };
            let page = match tenant {
                Some(tenant) => store.deliveries(&tenant, filter, page_request).await?,
                None => ListPage { data: Vec::new(), next: None },
            };
            ScannedPage { page, looked_back_to: None }
        }
        None if filter.is_by_finish() && filter.state != Some(DeliveryState::Dead) => {
            let detail = "over all tenants only dead letters are found by their finish; add state=dead, or list the \
                          deliveries of one tenant";
            return Err(Problem::field(ProblemCode::InvalidField, "?finished_since", detail));
        }
        None => store.all_deliveries(filter, page_request).await?,
    };
    let data = DeliveryView::all(&api.gateway, scanned.page.data).await;
    let Page { data, next } = Page::of(list, ListPage { data, next: scanned.page.next }, |view| view);
    Ok(Json(PageOfAll { data, next, looked_back_to: scanned.looked_back_to.map(|at| offset.wall(at)) }))
}

/// How endpoints are ordered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndpointSort {
    /// The newest first.
    #[default]
    Newest,
    /// Those with the most failures in a row first.
    Failures,
    /// Those that the most deliveries wait for first.
    Waiting,
}

/// Which endpoints of all tenants to list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EndpointOfAllParams {
    /// In this state.
    state: Option<EndpointState>,
    /// With the breaker in this state.
    breaker: Option<BreakerState>,
    /// Whether their last answer was a failure.
    failing: Option<bool>,
    /// With this text in their id, tenant, URL, description or owner's address.
    q: Option<String>,
    /// In this order.
    #[param(inline)]
    sort: Option<EndpointSort>,
    /// How many: 1 to 500, 50 if not said.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// Where the last page ended.
    cursor: Option<String>,
}

/// List the endpoints of all tenants
///
/// The newest first, unless `sort` says otherwise.
#[utoipa::path(
    get, path = "/v1/endpoints", operation_id = "list_all_endpoints", tag = "endpoints",
    params(EndpointOfAllParams),
    responses((status = 200, body = Page<EndpointView>), Problems, InputProblems),
    security(("token" = ["admin"])),
)]
pub async fn endpoints(
    State(api): State<SharedApiState>,
    principal: Principal,
    QueryParams(params): QueryParams<EndpointOfAllParams>,
) -> Result<Json<Page<EndpointView>>, Problem> {
    let page_request = ask("all-endpoints", params.limit, params.cursor.as_deref())?;
    let skipped: usize = match &page_request.cursor {
        None => 0,
        Some(text) => text.parse().map_err(|_| Problem::from(crate::store::Error::InvalidCursor))?,
    };
    let listed = matching_endpoints(&api, &params, principal.sees_urls()).await;
    let page: Vec<&Endpoint> = listed.iter().skip(skipped).take(page_request.limit).map(Arc::as_ref).collect();
    let end = skipped + page.len();
    let next = (end < listed.len()).then(|| end.to_string());
    let data = EndpointView::all(&api, &page).await?;
    Ok(Json(Page::of("all-endpoints", ListPage { data, next }, |view| view.seen_by(&principal))))
}

/// Returns the endpoints that match, in their order. All of them are in memory; what
/// only their owners know is read where it matters.
async fn matching_endpoints(api: &SharedApiState, params: &EndpointOfAllParams, sees_urls: bool) -> Vec<Arc<Endpoint>> {
    let store = &api.gateway.store;
    let mut listed: Vec<Arc<Endpoint>> =
        store.tenants().iter().flat_map(|tenant| store.endpoints(&tenant.id)).collect();
    let text = params.q.as_ref().map(|text| text.to_lowercase());
    listed.retain(|endpoint| {
        params.state.is_none_or(|state| endpoint.status.state == state)
            && text.as_ref().is_none_or(|text| mentions(endpoint, text, sees_urls))
    });
    listed.sort_by_key(|endpoint| std::cmp::Reverse(endpoint.id));
    let sort = params.sort.unwrap_or_default();
    if params.breaker.is_none() && params.failing.is_none() && sort == EndpointSort::Newest {
        return listed;
    }
    let about = listed.iter().map(|endpoint| LiveStatusQuery::endpoint(&endpoint.tenant, endpoint.id)).collect();
    let statuses = live_statuses(&api.gateway, about).await;
    let now = api.gateway.clock.now();
    let health = |endpoint: &Endpoint| -> EndpointHealth {
        let live = statuses.get(&endpoint.id).and_then(|status: &LiveStatus| status.health.clone());
        live.unwrap_or_else(|| endpoint.health.clone())
    };
    listed.retain(|endpoint| {
        let health = health(endpoint);
        params.breaker.is_none_or(|breaker| health.breaker(now) == breaker)
            && params.failing.is_none_or(|failing| health.failing_since.is_some() == failing)
    });
    match sort {
        EndpointSort::Newest => {}
        EndpointSort::Failures => listed.sort_by_cached_key(|endpoint| {
            let health = health(endpoint);
            std::cmp::Reverse(health.failures.max(health.refusals))
        }),
        EndpointSort::Waiting => listed.sort_by_cached_key(|endpoint| {
            std::cmp::Reverse(statuses.get(&endpoint.id).and_then(|status| status.waiting))
        }),
    }
    listed
}

/// Whether this text, in lower case, is in what names an endpoint. A caller who sees
/// URLs masked must not learn the rest of them by searching.
fn mentions(endpoint: &Endpoint, text: &str, sees_urls: bool) -> bool {
    let settings = &endpoint.settings;
    let url = if sees_urls { settings.url.clone() } else { masked(&settings.url) };
    let names = [endpoint.id.to_string(), endpoint.tenant.to_string()];
    let texts = [Some(&url), Some(&settings.description), settings.owner_email.as_ref()];
    names.iter().chain(texts.into_iter().flatten()).any(|part| part.to_lowercase().contains(text))
}
