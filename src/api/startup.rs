//! Answers requests while the gateway has no store yet, such as while it waits
//! for its database: it is alive, not ready, and serves no other route.

use axum::extract::Request;
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use http::StatusCode;

use super::problem::{Problem, ProblemCode};
use super::status::{self, LeasesView, ReadyView, StoreView};
use crate::lifecycle::dispatch::lag::BlockedMs;

/// Returns the routes of a gateway without a store.
pub fn router() -> Router {
    Router::new().route("/healthz", get(status::healthz)).route("/readyz", get(readyz)).fallback(unavailable)
}

/// Answers that the gateway is not ready.
pub(super) async fn readyz() -> (StatusCode, Json<ReadyView>) {
    let view = ReadyView {
        status: "starting: the store is not open yet",
        store: StoreView { answering: false },
        leases: LeasesView { shards: 0, lease_ms: None },
        lag_ms: 0,
        held_ms: BlockedMs::default(),
    };
    (StatusCode::SERVICE_UNAVAILABLE, Json(view))
}

/// Answers any other request with 503.
pub(super) async fn unavailable(request: Request) -> Response {
    let problem =
        Problem::new(ProblemCode::Unavailable, "the gateway is starting and waits for its database; try again soon");
    problem.answer(request.headers())
}
