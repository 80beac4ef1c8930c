//! Previews what a retry policy will do.

use axum::Json;
use axum::body::Body;
use http::HeaderMap;
use serde::Deserialize;
use utoipa::IntoParams;

use super::input::{DOCUMENT_BYTES_MAX, document_from_json, read_body};
use super::problem::{InputProblems, Problem, ProblemCode, Problems};
use super::query_params::QueryParams;
use crate::model::preview::{Preview, preview as preview_of};
use crate::model::retry_spec::RetrySpec;
use crate::model::span::Span;

/// Which outage to preview.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PreviewParams {
    /// Length of the outage, such as `6h`; several usual lengths if it is left out.
    #[param(value_type = Option<String>)]
    outage: Option<Span>,
}

/// Preview a retry policy
///
/// A policy in, the plan out: when each attempt is made, which outages deliveries get over, and how gently they come back.
#[utoipa::path(
    post, path = "/v1/policies/preview", operation_id = "preview_retry_policy", tag = "policies",
    params(PreviewParams),
    request_body = RetrySpec,
    responses((status = 200, body = Preview), Problems, InputProblems),
    security(("token" = ["read"])),
)]
pub async fn preview(
    QueryParams(params): QueryParams<PreviewParams>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Preview>, Problem> {
    let body = read_body(&headers, body, DOCUMENT_BYTES_MAX).await?;
    let spec: RetrySpec = document_from_json(&body)?;
    let policy = spec
        .resolve()
        .map_err(|invalid| Problem::field(ProblemCode::InvalidField, invalid.pointer, invalid.message))?;
    // Simulating a policy of a thousand attempts takes more than 100 ms, too long for an async thread.
    let plan = tokio::task::spawn_blocking(move || preview_of(&policy, params.outage)).await;
    plan.map(Json).map_err(|_| Problem::new(ProblemCode::Unavailable, "the preview could not be made; see the log"))
}
