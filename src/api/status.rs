//! Serves `/healthz`, `/readyz`, `/metrics` and `/openapi.json`.
//!
//! Counters are kept by [`metrics`](crate::metrics); the gauges are read here, at
//! the moment of the scrape.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use http::header::CONTENT_TYPE;
use http::{HeaderName, StatusCode};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::problem::{OverloadProblems, Problem, PublicProblems};
use super::{ApiState, SharedApiState};
use crate::lifecycle::dispatch::lag::{BlockedMs, Lag};
use crate::lifecycle::store_gauges::StoreGauges;
use crate::metrics::{self, Gauges};
use crate::model::endpoint::EndpointState;
use crate::model::health::BreakerState;
use crate::model::named_enum::NamedEnum;

/// Status of a gateway that still delivers but refuses new events.
const DISK_RESERVE_REACHED: &str = "disk reserve reached: new events are refused, deliveries go on";

/// A one-word answer.
#[derive(Serialize, ToSchema)]
pub struct StatusView {
    /// `ok`, or why not.
    status: &'static str,
}

/// Is the process alive?
#[utoipa::path(
    get, path = "/healthz", operation_id = "get_health", tag = "status", security(()),
    responses((status = 200, body = StatusView), PublicProblems),
)]
pub async fn healthz() -> Json<StatusView> {
    Json(StatusView { status: "ok" })
}

/// Whether it should be sent work, and what that depends on.
#[derive(Serialize, ToSchema)]
pub struct ReadyView {
    /// `ok`, or why not.
    pub(super) status: &'static str,
    /// The state of the store.
    pub(super) store: StoreView,
    /// What this node owns.
    pub(super) leases: LeasesView,
    /// How long the oldest delivery that this node could make has waited, in milliseconds.
    pub(super) lag_ms: u64,
    /// For how long the oldest delivery that is held back has been due, by what holds it.
    pub(super) held_ms: BlockedMs,
}

/// The state of the store, as a probe sees it.
#[derive(Serialize, ToSchema)]
pub struct StoreView {
    /// Whether it answers.
    pub(super) answering: bool,
}

/// What a node owns.
#[derive(Serialize, ToSchema)]
pub struct LeasesView {
    /// Number of the 256 shards that the node owns.
    pub(super) shards: usize,
    /// How long the lease on them still lasts, in milliseconds; null where there are no leases.
    pub(super) lease_ms: Option<u64>,
}

/// Should it be sent work?
///
/// 503 while the gateway waits for its database at start, stops, its store does not answer, the lease on its shards has ended, or the disk's reserve is reached.
#[utoipa::path(
    get, path = "/readyz", operation_id = "get_readiness", tag = "status", security(()),
    responses((status = 200, body = ReadyView), (status = 503, body = ReadyView), PublicProblems),
)]
pub async fn readyz(State(api): State<SharedApiState>) -> (StatusCode, Json<ReadyView>) {
    let gateway = &api.gateway;
    let store_status = gateway.store.status();
    let is_stopping = api.is_stopping();
    let answering =
        if is_stopping { store_status.is_answering } else { gateway.store.setting("admin_token_sha256").await.is_ok() };
    let (code, status) = if is_stopping {
        (StatusCode::SERVICE_UNAVAILABLE, "stopping")
    } else if !answering {
        (StatusCode::SERVICE_UNAVAILABLE, "the store does not answer")
    } else if store_status.lease_ms == Some(0) {
        (StatusCode::SERVICE_UNAVAILABLE, "the lease on this node's shards has ended")
    } else if gateway.space.is_low(gateway.clock.now()) {
        (StatusCode::SERVICE_UNAVAILABLE, DISK_RESERVE_REACHED)
    } else {
        (StatusCode::OK, "ok")
    };
    let leases = LeasesView { shards: store_status.shards, lease_ms: store_status.lease_ms };
    let Lag { lag_ms, held_ms } = gateway.dispatcher.lag();
    (code, Json(ReadyView { status, store: StoreView { answering }, leases, lag_ms, held_ms }))
}

/// What is counted and measured
///
/// OpenMetrics text (`application/openmetrics-text`), for Prometheus and the like. No label names a tenant, an endpoint or a type of event.
#[utoipa::path(
    get, path = "/metrics", operation_id = "get_metrics", tag = "status", security(()),
    responses((status = 200), PublicProblems, OverloadProblems),
)]
pub async fn metrics(State(api): State<SharedApiState>) -> ([(HeaderName, &'static str); 1], String) {
    let gateway = &api.gateway;
    (
        [(CONTENT_TYPE, metrics::CONTENT_TYPE)],
        gateway.metrics.encode(&read_gauges(&api, api.store_gauges.get(gateway).await)),
    )
}

/// Reads the gauges from memory; those of the store were read a moment ago.
fn read_gauges(api: &ApiState, stored: Option<StoreGauges>) -> Gauges {
    let gateway = &api.gateway;
    let (now, wall) = (gateway.clock.now(), gateway.clock.wall());
    let since = |at: Timestamp| Duration::try_from(now.duration_since(at)).unwrap_or_default();
    let until = |at: Timestamp| Duration::try_from(at.duration_since(wall)).unwrap_or_default();
    let mut endpoints = metrics::EndpointCounts::default();
    let mut breakers = metrics::BreakerCounts::default();
    for tenant in gateway.store.tenants() {
        for endpoint in gateway.store.endpoints(&tenant.id) {
            match endpoint.status.state {
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
    let store_status = gateway.store.status();
    let lag = dispatcher.lag();
    Gauges {
        in_flight: dispatcher.in_flight(),
        slots: dispatcher.slots(),
        slo_target: Some(api.slo_target.ratio()),
        waiting: gateway.store.waiting(None),
        oldest_due: Some(Duration::from_millis(lag.lag_ms)),
        held: lag.held_ms.by_blocker().map(|(by, age)| (by.as_str(), Duration::from_millis(age))).to_vec(),
        disk_free: gateway.space.free_bytes(now),
        disk_reserve: gateway.space.reserve_bytes(),
        dead_letters: stored.map(|stored| stored.dead_letters),
        oldest_dead_letter: stored.map(|stored| stored.oldest_dead_at.map_or(Duration::ZERO, since)),
        in_retry_over_24h: stored.map(|stored| stored.long_retries.count),
        jobs: stored.map_or(Vec::new(), |StoreGauges { jobs, .. }| {
            vec![("running", jobs.running), ("paused", jobs.paused), ("queued", jobs.queued)]
        }),
        certificate_end: stored.and_then(|stored| stored.certificate_ends_at).map(until),
        server_certificate_end: gateway.metrics.server_certificate_end().map(until),
        secret_end: stored.and_then(|stored| stored.secret_ends_at).map(until),
        endpoints,
        breakers: Some(breakers),
        shards_owned: store_status.shards,
        lease_remaining: store_status.lease_ms.map(Duration::from_millis),
        self_test_age: gateway.metrics.self_test_age(now),
        clock_jumps: gateway.clock.jumps(),
        clock_off: Duration::from_millis(gateway.clock.machine_ahead_ms().unsigned_abs()),
    }
}

/// Answers that there is no such route.
pub async fn no_such_route(uri: http::Uri) -> Problem {
    Problem::new(
        super::problem::ProblemCode::NotFound,
        format!("there is nothing at {}; the API is described at /openapi.json", uri.path()),
    )
}

/// Answers that the route has no such method.
pub async fn wrong_method(method: http::Method, uri: http::Uri) -> Problem {
    unknown_method(&method, &uri)
}

/// Returns the problem that a route has no such method.
pub fn unknown_method(method: &http::Method, uri: &http::Uri) -> Problem {
    let detail = format!("{method} is not known at {}; the API is described at /openapi.json", uri.path());
    Problem::new(super::problem::ProblemCode::MethodNotAllowed, detail)
}
