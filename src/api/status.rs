//! Is it alive, is it ready, and what can it do?

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use http::header::CONTENT_TYPE;
use http::{HeaderName, StatusCode};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::Api;
use super::problem::Problem;
use crate::lifecycle::Gateway;
use crate::metrics::{self, Gauges};
use crate::model::endpoint::EndpointState;
use crate::model::health::BreakerState;

/// A one-word answer.
#[derive(Serialize, ToSchema)]
pub struct StatusView {
    /// `ok`, or why not.
    status: &'static str,
}

/// Is the process alive?
#[utoipa::path(get, path = "/healthz", tag = "status", security(()), responses((status = 200, body = StatusView)))]
pub async fn healthz() -> Json<StatusView> {
    Json(StatusView { status: "ok" })
}

/// Should it be sent work?
///
/// 503 while the gateway stops or its store does not answer.
#[utoipa::path(
    get, path = "/readyz", tag = "status", security(()),
    responses((status = 200, body = StatusView), (status = 503, body = StatusView)),
)]
pub async fn readyz(State(api): State<Api>) -> (StatusCode, Json<StatusView>) {
    if api.is_stopping() {
        return (StatusCode::SERVICE_UNAVAILABLE, Json(StatusView { status: "stopping" }));
    }
    match api.gateway.store.note("admin_token_sha256").await {
        Ok(_) => (StatusCode::OK, Json(StatusView { status: "ok" })),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, Json(StatusView { status: "the store does not answer" })),
    }
}

/// What is counted and measured
///
/// OpenMetrics text, for Prometheus and the like. No label names a tenant, an endpoint or a type of event.
#[utoipa::path(
    get, path = "/metrics", tag = "status", security(()),
    responses((status = 200, body = String, content_type = "application/openmetrics-text")),
)]
pub async fn metrics(State(api): State<Api>) -> ([(HeaderName, &'static str); 1], String) {
    let gateway = &api.gateway;
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], gateway.metrics.encode(&gauges(gateway)))
}

/// What stands at this moment, as far as memory knows it.
fn gauges(gateway: &Gateway) -> Gauges {
    let now = gateway.clock.now();
    let mut endpoints = metrics::Endpoints::default();
    let mut breakers = metrics::Breakers::default();
    for tenant in gateway.store.tenants() {
        for endpoint in gateway.store.endpoints(&tenant.id) {
            match endpoint.standing.state {
                EndpointState::Active => endpoints.active += 1,
                EndpointState::Paused => endpoints.paused += 1,
                EndpointState::Disabled => endpoints.disabled += 1,
            }
            match endpoint.health.breaker(now) {
                BreakerState::Closed => breakers.closed += 1,
                BreakerState::Open => breakers.open += 1,
                BreakerState::HalfOpen => breakers.half_open += 1,
                BreakerState::Ramp => breakers.ramp += 1,
            }
        }
    }
    let dispatcher = &gateway.dispatcher;
    let age = |due_at: Timestamp| u64::try_from(now.as_millisecond() - due_at.as_millisecond()).unwrap_or(0);
    Gauges {
        in_flight: dispatcher.in_flight(),
        slots: dispatcher.slots(),
        waiting: Some(gateway.store.waiting(None)),
        oldest_due: Some(Duration::from_millis(dispatcher.oldest_due().map_or(0, age))),
        endpoints,
        breakers: Some(breakers),
    }
}

/// This document
#[utoipa::path(get, path = "/openapi.json", tag = "status", security(()), responses((status = 200, body = Object)))]
pub async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(super::openapi::document())
}

/// Nothing is at this address.
pub async fn nothing_here(uri: http::Uri) -> Problem {
    Problem::new(
        super::problem::Code::NotFound,
        format!("there is nothing at {}; the API is described at /openapi.json", uri.path()),
    )
}

/// Something is at this address, but not for this method.
pub async fn wrong_method(method: http::Method, uri: http::Uri) -> Problem {
    let detail = format!("{method} is not known at {}; the API is described at /openapi.json", uri.path());
    Problem::new(super::problem::Code::MethodNotAllowed, detail)
}
