//! Serves requests that hand in events, without the router.
//!
//! Nearly all requests of a busy gateway hand in events, and the router, its
//! layers and a span cost as much as reading and matching an event. So a request
//! whose route, token and tenant are in order goes straight to its handler. Any
//! other request, also one whose token is refused, goes through the router: there
//! is one place that refuses.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body_util::Full;
use hyper::body::Incoming;
use tracing::error_span;

use super::accept::AcceptedEvent;
use super::auth;
use super::connection_slots::ConnectionStatus;
use super::direct_routes::{DirectRoutes, PlainAnswer};
use super::event_refusal::EventRefusal;
use super::input::EventBody;
use super::origin::RequestId;
use super::problem::Problem;
use super::route_rights::{RouteAccess, RouteRights};
use super::{RunToCompletion, SharedApiState, accept, finish_response};
use crate::model::tenant::Tenant;

/// The routes that accept events.
#[derive(Clone)]
pub struct EventRoutes {
    api: SharedApiState,
    access: RouteAccess,
}

impl EventRoutes {
    /// Returns the routes; `rights` has the right that they need.
    pub fn new(api: SharedApiState, rights: &RouteRights) -> Self {
        let access = rights.access_of(accept::ONE_ROUTE, &Method::POST).expect("events can be handed in");
        Self { api, access }
    }
}

/// A request that hands in one event, from a caller who may.
pub struct EventRequest {
    api: SharedApiState,
    tenant: Arc<Tenant>,
}

impl DirectRoutes for EventRoutes {
    type Taken = EventRequest;

    fn take(&self, path: &str, headers: &HeaderMap, connection: &ConnectionStatus) -> Option<EventRequest> {
        // A tenant's id has no character that a path would have to encode.
        let named = path.strip_prefix("/v1/tenants/")?.strip_suffix("/events")?;
        // On the portal's own host there is no API; what stands before the router says so.
        if self.api.portal_url.as_ref().is_some_and(|portal| portal.is_asked(headers, None)) {
            return None;
        }
        let tenant = self.api.gateway.store.tenant(&named.parse().ok()?)?;
        let principal = auth::known_caller(&self.api, headers)?;
        let may = principal.has_access(self.access, tenant.id.as_str());
        (may && connection.mark_authenticated()).then(|| EventRequest { api: self.api.clone(), tenant })
    }

    async fn answer(taken: EventRequest, request: http::Request<Incoming>) -> Response {
        let (head, body) = request.into_parts();
        let (handled, id) = taken.accept_event(head.headers, body).await;
        let mut response = handled.map_or_else(Problem::into_response, AcceptedEvent::into_response);
        finish_response(&taken.api, &mut response, id, true, Some(&taken.tenant.id));
        response
    }

    async fn answer_plain(taken: EventRequest, headers: HeaderMap, body: Bytes) -> PlainAnswer {
        let (handled, id) = taken.accept_event(headers, Full::new(body)).await;
        match handled {
            Ok(accepted) => accepted.plain_answer(&id),
            Err(problem) => {
                let mut response = problem.into_response();
                finish_response(&taken.api, &mut response, id, true, Some(&taken.tenant.id));
                PlainAnswer::of(response).await
            }
        }
    }
}

impl EventRequest {
    /// Accepts the event. Returns also the id of the request, with which a refusal is
    /// logged.
    async fn accept_event(
        &self,
        headers: HeaderMap,
        body: impl EventBody + 'static,
    ) -> (Result<AcceptedEvent, Problem>, String) {
        let RequestId(id) = RequestId::of(&headers, rand::random());
        let (api, tenant, request_id) = (self.api.clone(), self.tenant.clone(), id.clone());
        let accepted = async move {
            let accepted = accept::take_one(&api, &tenant, &headers, body).await;
            let in_span =
                |refusal: EventRefusal| error_span!("request", request.id = %request_id).in_scope(|| refusal.into());
            accepted.map_err(in_span)
        };
        (RunToCompletion::of(accepted).await, id)
    }
}
