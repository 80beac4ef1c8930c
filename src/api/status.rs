//! Is it alive, is it ready, and what can it do?

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::Api;
use super::problem::Problem;

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
