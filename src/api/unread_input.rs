//! Refuses what a route does not read: query parameters and bodies, because
//! they are most likely a mistake.

use axum::body::HttpBody;
use axum::extract::Request;
use serde_json::Value;
use url::form_urlencoded;

use super::input::{DOCUMENT_BYTES_MAX, read_body};
use super::problem::{Problem, ProblemCode};
use super::route_rights::RouteRights;
use crate::model::pointer::child;

/// Refuses query parameters and bodies on a route that takes none.
pub async fn refuse(rights: &RouteRights, route: &str, request: &mut Request) -> Option<Problem> {
    if !rights.takes_query(route, request.method())
        && let Some(problem) = refuse_query(request)
    {
        return Some(problem);
    }
    if rights.takes_body(route, request.method()) || request.body().is_end_stream() {
        return None;
    }
    refuse_body(request).await
}

fn refuse_query(request: &Request) -> Option<Problem> {
    let (name, _) = form_urlencoded::parse(request.uri().query()?.as_bytes()).next()?;
    let detail = format!("unknown field `{name}`, there are no query parameters here");
    Some(Problem::field(ProblemCode::UnknownField, format!("?{name}"), detail))
}

/// Refuses a body. An empty object says nothing, as some clients send it with
/// every request, and passes.
async fn refuse_body(request: &mut Request) -> Option<Problem> {
    let body = std::mem::take(request.body_mut());
    let body = read_body(request.headers(), body, DOCUMENT_BYTES_MAX).await.ok();
    if body.as_ref().is_some_and(|body| body.trim_ascii().is_empty()) {
        return None;
    }
    let document = body.and_then(|body| serde_json::from_slice(&body).ok());
    let Some(Value::Object(fields)) = document else {
        let detail = "this route takes no body; send the request without one";
        return Some(Problem::field(ProblemCode::InvalidField, "", detail));
    };
    let name = fields.keys().next()?;
    let detail = format!("unknown field `{name}`, this route takes no body; send the request without one");
    Some(Problem::field(ProblemCode::UnknownField, child("", name), detail))
}
