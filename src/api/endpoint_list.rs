//! Lists endpoints of one tenant or of all: which ones, and in which order.

use std::cmp::Reverse;
use std::sync::Arc;

use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::SharedApiState;
use super::auth::Principal;
use super::endpoint_view::EndpointView;
use super::page::{Page, ask};
use super::problem::Problem;
use crate::lifecycle::live_status::{LiveStatus, LiveStatusQuery, live_statuses};
use crate::model::endpoint::{Endpoint, EndpointState};
use crate::model::endpoint_event::Actor;
use crate::model::health::{BreakerState, EndpointHealth};
use crate::model::id::EndpointId;
use crate::model::url_versions::masked;
use crate::store::{Error, ListPage};

/// How endpoints are ordered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
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
    /// With this text in their id, tenant, URL, description or owner's address.
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

/// Returns the page of these endpoints that was asked for.
pub(super) async fn page_of(
    api: &SharedApiState,
    list: &'static str,
    endpoints: Vec<Arc<Endpoint>>,
    params: EndpointListParams,
    principal: &Principal,
) -> Result<Page<EndpointView>, Problem> {
    let page_request = ask(list, params.limit, params.cursor.as_deref())?;
    let listed = matching(api, endpoints, &params, principal.sees_urls()).await;
    let is_newest = params.sort.unwrap_or_default() == EndpointSort::Newest;
    let invalid = || Problem::from(Error::InvalidCursor);
    // The newest go on below an id, so that new ones move nothing. An order by what
    // changes all the time has no such place.
    let skipped = match &page_request.cursor {
        None => 0,
        Some(text) if is_newest => {
            let below: EndpointId = text.parse().map_err(|_| invalid())?;
            listed.partition_point(|endpoint| endpoint.id >= below)
        }
        Some(text) => text.parse::<usize>().map_err(|_| invalid())?,
    };
    let page: Vec<&Endpoint> = listed.iter().skip(skipped).take(page_request.limit).map(Arc::as_ref).collect();
    let end = skipped.saturating_add(page.len());
    let last = page.last().filter(|_| end < listed.len());
    let next = last.map(|last| if is_newest { last.id.to_string() } else { end.to_string() });
    let data = EndpointView::all(api, &page).await?;
    Ok(Page::of(list, ListPage::of(data, next), |view| view.seen_by(principal)))
}

/// Returns the endpoints that match, in their order. All of them are in memory; what
/// only their owners know is read where it matters.
async fn matching(
    api: &SharedApiState,
    mut listed: Vec<Arc<Endpoint>>,
    params: &EndpointListParams,
    sees_urls: bool,
) -> Vec<Arc<Endpoint>> {
    let text = params.q.as_ref().map(|text| text.to_lowercase());
    listed.retain(|endpoint| {
        params.state.is_none_or(|state| endpoint.status.state == state)
            && text.as_ref().is_none_or(|text| mentions(endpoint, text, sees_urls))
    });
    listed.sort_by_key(|endpoint| Reverse(endpoint.id));
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
        EndpointSort::Attention => listed.sort_by_cached_key(|endpoint| {
            let health = health(endpoint);
            need(endpoint.status.state, endpoint.status.by, health.breaker(now), health.failing_since.is_some())
        }),
        EndpointSort::Failures => listed.sort_by_cached_key(|endpoint| {
            let health = health(endpoint);
            Reverse(health.failures.max(health.refusals))
        }),
        EndpointSort::Waiting => {
            listed.sort_by_cached_key(|endpoint| Reverse(statuses.get(&endpoint.id).and_then(|status| status.waiting)))
        }
    }
    listed
}

/// Returns the place of an endpoint among those that need attention; the smaller,
/// the more it does.
fn need(state: EndpointState, by: Option<Actor>, breaker: BreakerState, is_failing: bool) -> u8 {
    match (state, breaker) {
        (EndpointState::Disabled, _) => 0,
        (EndpointState::Paused, _) if by != Some(Actor::Person) => 1,
        (EndpointState::Paused, _) => 5,
        (EndpointState::Active, BreakerState::Open | BreakerState::HalfOpen) => 2,
        (EndpointState::Active, _) if is_failing => 3,
        (EndpointState::Active, BreakerState::Ramp) => 4,
        (EndpointState::Active, BreakerState::Closed) => 6,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stopped_comes_before_what_fails_and_that_before_what_is_well() {
        let (active, paused) = (EndpointState::Active, EndpointState::Paused);
        let closed = BreakerState::Closed;
        let places = [
            need(EndpointState::Disabled, Some(Actor::Receiver), closed, false),
            need(paused, Some(Actor::Gateway), closed, true),
            need(active, None, BreakerState::Open, true),
            need(active, None, closed, true),
            need(active, None, BreakerState::Ramp, false),
            need(paused, Some(Actor::Person), closed, true),
            need(active, Some(Actor::Person), closed, false),
        ];
        assert!(places.is_sorted_by(|one, next| one < next), "{places:?}");
    }
}
