//! Answers while the gateway has no store yet, as while it waits for its
//! database: it is alive, and nothing else can be done.

use axum::extract::Request;
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use http::StatusCode;

use super::problem::{Problem, ProblemCode};
use super::status::{self, LeasesView, ReadyView, StoreView};
use crate::lifecycle::dispatch::lag::BlockedMs;

/// The routes of a gateway without a store.
pub fn router() -> Router {
    Router::new().route("/healthz", get(status::healthz)).route("/readyz", get(readyz)).fallback(unavailable)
}

/// That it is not ready.
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

/// That nothing else can be done.
pub(super) async fn unavailable(request: Request) -> Response {
    let problem =
        Problem::new(ProblemCode::Unavailable, "the gateway is starting and waits for its database; try again soon");
    problem.answer(request.headers())
}
