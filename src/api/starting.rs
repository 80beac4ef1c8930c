//! Answers while the gateway waits for its database: it is alive, and nothing
//! else can be done yet.

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use http::{HeaderValue, StatusCode};

use super::REQUEST_ID;
use super::origin::RequestId;
use super::problem::{Code, Problem};
use super::status::{self, LeasesView, ReadyView, StoreView};
use crate::lifecycle::dispatch::lag::HeldMs;

/// The routes of a gateway without a store.
pub fn router() -> Router {
    Router::new().route("/healthz", get(status::healthz)).route("/readyz", get(readyz)).fallback(unavailable)
}

async fn readyz() -> (StatusCode, Json<ReadyView>) {
    let view = ReadyView {
        status: "waiting for the database",
        store: StoreView { answering: false },
        leases: LeasesView { shards: 0, lease_ms: None },
        lag_ms: 0,
        held_ms: HeldMs::default(),
    };
    (StatusCode::SERVICE_UNAVAILABLE, Json(view))
}

async fn unavailable(request: Request) -> Response {
    let RequestId(id) = RequestId::of(request.headers(), rand::random());
    let problem = Problem::new(Code::Unavailable, "the gateway is starting and waits for its database; try again soon");
    let mut response = StatusCode::SERVICE_UNAVAILABLE.into_response();
    problem.render(&mut response, &id);
    response.headers_mut().insert(REQUEST_ID, HeaderValue::try_from(id).expect("a sane id is a header value"));
    response
}
