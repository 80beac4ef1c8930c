//! Answers probes on an address of their own: `/healthz`, `/readyz` and
//! `/metrics`, and no other route.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::CONTENT_TYPE;

use super::problem::{Problem, ProblemCode};
use super::{SharedApiState, startup, status};
use crate::metrics::{self, Metrics};

/// Most connections open at once: enough for probes and a metrics collector.
pub const CONNECTIONS: usize = 32;

/// The API state, which is empty until the gateway has started.
#[derive(Clone, Default)]
pub struct GatewayCell(Arc<OnceLock<SharedApiState>>);

impl GatewayCell {
    /// Sets the API state that answers from now on.
    pub fn set(&self, api: SharedApiState) {
        let _ = self.0.set(api);
    }
}

/// Returns the routes; they also answer while the gateway is still starting.
pub fn router(gateway: GatewayCell) -> Router {
    Router::new()
        .route("/healthz", get(status::healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .method_not_allowed_fallback(unknown_route)
        .fallback(unknown_route)
        .with_state(gateway)
}

/// Returns the routes of a relay in a process of its own.
pub fn relay_router(metrics: Arc<Metrics>) -> Router {
    Router::new()
        .route("/healthz", get(status::healthz))
        .route("/metrics", get(relay_metrics))
        .method_not_allowed_fallback(unknown_route)
        .fallback(unknown_route)
        .with_state(metrics)
}

async fn relay_metrics(State(metrics): State<Arc<Metrics>>) -> Response {
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics.encode_outboxes()).into_response()
}

async fn readyz(State(gateway): State<GatewayCell>) -> Response {
    match gateway.0.get() {
        Some(api) => status::readyz(State(api.clone())).await.into_response(),
        None => startup::readyz().await.into_response(),
    }
}

async fn metrics(State(gateway): State<GatewayCell>, request: Request) -> Response {
    match gateway.0.get() {
        Some(api) => status::metrics(State(api.clone())).await.into_response(),
        None => startup::unavailable(request).await,
    }
}

async fn unknown_route(request: Request) -> Response {
    let detail = format!(
        "{} {} is not answered here; this address has GET /healthz, /readyz and /metrics alone, and the API is at --listen",
        request.method(),
        request.uri().path()
    );
    Problem::new(ProblemCode::NotFound, detail).answer(request.headers())
}
