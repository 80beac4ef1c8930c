//! Answers probes on an address of their own: whether the gateway is alive and
//! ready, and what it measures. Nothing else is there, whoever asks.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::problem::{Problem, ProblemCode};
use super::{SharedApiState, startup, status};

/// Enough for probes and whoever collects metrics.
pub const CONNECTIONS: usize = 32;

/// The gateway, once there is one to ask.
#[derive(Clone, Default)]
pub struct GatewayCell(Arc<OnceLock<SharedApiState>>);

impl GatewayCell {
    /// From now on, this one is asked.
    pub fn set(&self, api: SharedApiState) {
        let _ = self.0.set(api);
    }
}

/// The routes, which answer for a gateway that is still starting as well.
pub fn router(asked: GatewayCell) -> Router {
    Router::new()
        .route("/healthz", get(status::healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .method_not_allowed_fallback(nothing_else)
        .fallback(nothing_else)
        .with_state(asked)
}

async fn readyz(State(asked): State<GatewayCell>) -> Response {
    match asked.0.get() {
        Some(api) => status::readyz(State(api.clone())).await.into_response(),
        None => startup::readyz().await.into_response(),
    }
}

async fn metrics(State(asked): State<GatewayCell>, request: Request) -> Response {
    match asked.0.get() {
        Some(api) => status::metrics(State(api.clone())).await.into_response(),
        None => startup::unavailable(request).await,
    }
}

async fn nothing_else(request: Request) -> Response {
    let detail = format!(
        "{} {} is not answered here; this address has GET /healthz, /readyz and /metrics alone, and the API is at --listen",
        request.method(),
        request.uri().path()
    );
    Problem::new(ProblemCode::NotFound, detail).answer(request.headers())
}
