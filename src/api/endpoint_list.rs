//! Lists endpoints of one tenant or of all: which ones, and in which order.

use std::cmp::Reverse;
use std::sync::Arc;

use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::SharedApiState;
use super::auth::Principal;
use super::endpoint_view::EndpointView;
use super::page::{Page, page_request};
use super::problem::{Problem, ProblemCode};
use crate::lifecycle::live_status::{LiveStatus, LiveStatusQuery, endpoints_to_look_at, live_statuses};
use crate::model::endpoint::{Endpoint, EndpointState};
use crate::model::endpoint_event::Actor;
use crate::model::health::BreakerState;
use crate::model::id::{EndpointId, TenantId};
use crate::model::id_map::IdMap;
use crate::model::url_versions::mask_url;
use crate::store::{Error, ListPage};

/// How endpoints are ordered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum EndpointSort {
    /// The newest first.
    #[default]
    Newest,
    /// Those that need attention first: stopped by their receiver or the gateway, with an open breaker, failing, paused by a person, then all others; the newest first among equals.
    Attention,
    /// Those with the most failures in a row first.
    Failures,
    /// Those that the most deliveries wait for first.
    Waiting,
}

/// Which endpoints to list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EndpointListParams {
    /// In this state.
    state: Option<EndpointState>,
    /// With the breaker in this state.
    breaker: Option<BreakerState>,
    /// Whether their last answer was a failure.
    failing: Option<bool>,
    /// With this text in their id, tenant, URL, description, metadata or owner's address.
    q: Option<String>,
    /// In this order.
    #[param(inline)]
    sort: Option<EndpointSort>,
    /// Page size, 1 to 500; 50 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// The `next` of the page before.
    cursor: Option<String>,
}

/// Returns the page that was asked for of the endpoints of a tenant, or of all tenants.
pub(super) async fn page_of(
    api: &SharedApiState,
    list: &'static str,
    tenant: Option<&TenantId>,
    params: EndpointListParams,
    principal: &Principal,
) -> Result<Page<EndpointView>, Problem> {
    let page_request = page_request(list, params.limit, params.cursor.as_deref())?;
    let listed = matching_endpoints(api, tenant, &params, principal.sees_urls()).await?;
    let is_newest = params.sort.unwrap_or_default() == EndpointSort::Newest;
    let invalid = || Problem::from(Error::InvalidCursor);
    // The newest go on below an id, so that new ones move nothing. An order by what
    // changes all the time has no such place.
    let skipped = match &page_request.cursor {
        None => 0,
        Some(text) if is_newest => {
            let below: EndpointId = text.parse().map_err(|_| invalid())?;
            listed.partition_point(|id| *id >= below)
        }
        Some(text) => text.parse::<usize>().map_err(|_| invalid())?,
    };
    let ids: Vec<EndpointId> = listed.iter().skip(skipped).take(page_request.limit).copied().collect();
    let end = skipped.saturating_add(ids.len());
    let last = ids.last().filter(|_| end < listed.len());
    let next = last.map(|last| if is_newest { last.to_string() } else { end.to_string() });
    // One that was deleted this moment is left out.
    let page: Vec<Arc<Endpoint>> = ids.into_iter().filter_map(|id| api.gateway.store.any_endpoint(id)).collect();
    let data = EndpointView::of_all(api, &page.iter().map(Arc::as_ref).collect::<Vec<_>>()).await?;
    Ok(Page::of(list, ListPage::of(data, next), |view| view.seen_by(principal)))
}

/// Returns the endpoints that match, in their order. All of them are in memory. There may
/// be very many, so only those that may need attention are looked at for what their
/// owners know; all others are plainly well.
async fn matching_endpoints(
    api: &SharedApiState,
    tenant: Option<&TenantId>,
    params: &EndpointListParams,
    sees_urls: bool,
) -> Result<Vec<EndpointId>, Problem> {
    let gateway = &api.gateway;
    let ids = with_text_and_state(api, tenant, params, sees_urls).await?;
    let sort = params.sort.unwrap_or_default();
    if params.breaker.is_none() && params.failing.is_none() && sort == EndpointSort::Newest {
        return Ok(ids);
    }
    let looked_at = endpoints_to_look_at(gateway, tenant);
    let about = looked_at.iter().map(|endpoint| LiveStatusQuery::endpoint(&endpoint.tenant, endpoint.id)).collect();
    let statuses = live_statuses(gateway, about).await;
    let now = gateway.clock.now();
    let facts = |endpoint: Arc<Endpoint>| {
        let live = statuses.get(&endpoint.id).and_then(|status: &LiveStatus| status.health.clone());
        let health = live.unwrap_or_else(|| endpoint.health.clone());
        let breaker = health.breaker(now);
        let facts = KnownHealth {
            breaker,
            is_failing: health.failing_since.is_some(),
            failures: health.failures.max(health.refusals),
            need: attention_rank(endpoint.status.state, endpoint.status.by, breaker, health.failing_since.is_some()),
        };
        (endpoint.id, facts)
    };
    let known: IdMap<EndpointId, KnownHealth> = looked_at.into_iter().map(facts).collect();
    let health = |id: &EndpointId| known.get(id).copied().unwrap_or(KnownHealth::WELL);
    let mut listed = ids;
    listed.retain(|id| {
        let health = health(id);
        params.breaker.is_none_or(|breaker| health.breaker == breaker)
            && params.failing.is_none_or(|failing| health.is_failing == failing)
    });
    match sort {
        EndpointSort::Newest => {}
        EndpointSort::Attention => listed.sort_by_key(|id| health(id).need),
        EndpointSort::Failures => listed.sort_by_key(|id| Reverse(health(id).failures)),
        EndpointSort::Waiting => {
            let elsewhere = |id: &EndpointId| statuses.get(id).and_then(|status| status.waiting);
            listed.sort_by_cached_key(|id| Reverse(gateway.store.waiting(Some(*id)).or_else(|| elsewhere(id))));
        }
    }
    Ok(listed)
}

/// What the order of a list needs to know of an endpoint.
#[derive(Clone, Copy)]
struct KnownHealth {
    breaker: BreakerState,
    is_failing: bool,
    failures: u32,
    need: u8,
}

impl KnownHealth {
    /// What holds for an endpoint that is plainly well.
    const WELL: Self = Self { breaker: BreakerState::Closed, is_failing: false, failures: 0, need: NEEDS_NOTHING };
}

/// Returns the endpoints that are in the state that was asked for and mention the text,
/// newest first.
async fn with_text_and_state(
    api: &SharedApiState,
    tenant: Option<&TenantId>,
    params: &EndpointListParams,
    sees_urls: bool,
) -> Result<Vec<EndpointId>, Problem> {
    let store = api.gateway.store.clone();
    if params.q.is_none() && params.state.is_none() {
        return Ok(store.endpoint_ids(tenant));
    }
    let (text, state, tenant) = (params.q.as_ref().map(|text| text.to_lowercase()), params.state, tenant.cloned());
    let search = move || {
        let mut ids = store.endpoint_ids(tenant.as_ref());
        ids.retain(|id| {
            let Some(endpoint) = store.any_endpoint(*id) else { return false };
            state.is_none_or(|state| endpoint.status.state == state)
                && text.as_ref().is_none_or(|text| contains_text(&endpoint, text, sees_urls))
        });
        ids
    };
    // Texts of very many take a while, in which others go on.
    let found = tokio::task::spawn_blocking(search).await;
    found.map_err(|_| Problem::new(ProblemCode::Unavailable, "the search ended early; see the log"))
}

/// Returns the place of an endpoint among those that need attention; the smaller,
/// the more it does.
fn attention_rank(state: EndpointState, by: Option<Actor>, breaker: BreakerState, is_failing: bool) -> u8 {
    match (state, breaker) {
        (EndpointState::Disabled, _) => 0,
        (EndpointState::Paused, _) if by != Some(Actor::Person) => 1,
        (EndpointState::Paused, _) => 5,
        (EndpointState::Active, BreakerState::Open | BreakerState::HalfOpen) => 2,
        (EndpointState::Active, _) if is_failing => 3,
        (EndpointState::Active, BreakerState::Ramp) => 4,
        (EndpointState::Active, BreakerState::Closed) => NEEDS_NOTHING,
    }
}

/// Place of an endpoint that needs no attention.
const NEEDS_NOTHING: u8 = 6;

/// Whether this text, in lower case, is in what names an endpoint. A caller who sees
/// URLs masked must not learn the rest of them by searching.
fn contains_text(endpoint: &Endpoint, text: &str, sees_urls: bool) -> bool {
    let settings = &endpoint.settings;
    let url = if sees_urls { settings.url.clone() } else { mask_url(&settings.url) };
    let names = [endpoint.id.to_string(), endpoint.tenant.to_string()];
    let texts = [Some(&url), Some(&settings.description), settings.owner_email.as_ref()];
    let metadata = settings.metadata.iter().flat_map(|(name, value)| [name, value]);
    names.iter().chain(texts.into_iter().flatten()).chain(metadata).any(|part| part.to_lowercase().contains(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stopped_comes_before_what_fails_and_that_before_what_is_well() {
        let (active, paused) = (EndpointState::Active, EndpointState::Paused);
        let closed = BreakerState::Closed;
        let places = [
            attention_rank(EndpointState::Disabled, Some(Actor::Receiver), closed, false),
            attention_rank(paused, Some(Actor::Gateway), closed, true),
            attention_rank(active, None, BreakerState::Open, true),
            attention_rank(active, None, closed, true),
            attention_rank(active, None, BreakerState::Ramp, false),
            attention_rank(paused, Some(Actor::Person), closed, true),
            attention_rank(active, Some(Actor::Person), closed, false),
        ];
        assert!(places.is_sorted_by(|one, next| one < next), "{places:?}");
    }
}
