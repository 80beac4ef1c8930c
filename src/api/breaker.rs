//! Opens and closes an endpoint's breaker by hand, and lists the endpoint's
//! history.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use http::HeaderMap;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::SharedApiState;
use super::endpoint_view::EndpointView;
use super::endpoints::{check_note, find, read_note};
use super::input::{DOCUMENT_BYTES_MAX, NamedEndpoint, TenantPath, document_from_json, read_body};
use super::page::{Page, page_request};
use super::problem::{InputProblems, Problem, ProblemCode, Problems};
use super::query_params::QueryParams;
use crate::lifecycle::change;
use crate::model::audit::Initiator;
use crate::model::endpoint_event::{Actor, EndpointEventKind, EndpointEventRecord};
use crate::model::span::Span;
use crate::model::wall_offset::WallOffset;

const OPEN_MAX: Span = Span::secs(30 * 86_400);

/// Options of opening a breaker.
#[derive(Deserialize, Default, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenBreaker {
    /// What others should know, at most 500 bytes.
    note: Option<String>,
    /// How long the breaker stays open, 1s to 30d; then it is probed. If left out, until it is closed.
    #[serde(rename = "for")]
    #[schema(value_type = Option<String>, example = "10m")]
    span: Option<Span>,
}

/// Open an endpoint's breaker
///
/// What waits for it is held, and ages on: to hold it without ageing, pause the endpoint. A `retry` of one delivery still goes.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/endpoints/{endpoint}/breaker/open", operation_id = "open_endpoint_breaker", tag = "endpoints",
    params(("tenant" = String, Path, description = "The tenant's id"), ("endpoint" = String, Path, description = "The endpoint's id")),
    request_body = Option<OpenBreaker>,
    responses((status = 200, body = EndpointView), Problems, InputProblems),
    security(("token" = ["manage"])),
)]
pub async fn open(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    NamedEndpoint(id): NamedEndpoint,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<EndpointView>, Problem> {
    let body = read_body(&headers, body, DOCUMENT_BYTES_MAX).await?;
    let options: OpenBreaker =
        if body.trim_ascii().is_empty() { OpenBreaker::default() } else { document_from_json(&body)? };
    if let Some(span) = options.span.filter(|span| !(Span::secs(1)..=OPEN_MAX).contains(span)) {
        return Err(Problem::field(ProblemCode::InvalidField, "/for", format!("for is {span}; use 1s to 30d")));
    }
    let note = check_note(options.note)?;
    let endpoint = change::open_breaker(&api.gateway, &by, &tenant, id, options.span, note).await?;
    Ok(Json(EndpointView::read(&api, &endpoint).await?))
}

/// Close an endpoint's breaker
///
/// What was held goes on with a ramp: one request at a time first, then twice as many, up to the cap. One that is not open is left as it is.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/endpoints/{endpoint}/breaker/close", operation_id = "close_endpoint_breaker", tag = "endpoints",
    params(("tenant" = String, Path, description = "The tenant's id"), ("endpoint" = String, Path, description = "The endpoint's id")),
    request_body = Option<super::endpoints::ChangeNote>,
    responses((status = 200, body = EndpointView), Problems, InputProblems),
    security(("token" = ["manage"])),
)]
pub async fn close(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    NamedEndpoint(id): NamedEndpoint,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<EndpointView>, Problem> {
    let note = read_note(&headers, body).await?;
    let endpoint = change::close_breaker(&api.gateway, &by, &tenant, id, note).await?;
    Ok(Json(EndpointView::read(&api, &endpoint).await?))
}

/// Something that happened to an endpoint.
#[derive(Serialize, ToSchema)]
pub struct EndpointEventView {
    /// Time of the event.
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// Kind of event.
    what: EndpointEventKind,
    /// Why, or the note that was left.
    reason: Option<String>,
    /// Who caused it: a person, the receiver or the gateway.
    by: Actor,
    /// When it is probed next, where its breaker opened.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_probe_at: Option<Timestamp>,
}

impl EndpointEventView {
    fn of(record: EndpointEventRecord, offset: WallOffset) -> Self {
        let EndpointEventRecord { at, what, reason, by, until } = record;
        Self { at: offset.wall(at), what, reason, by, next_probe_at: until.map(|at| offset.wall(at)) }
    }
}

/// Which part of the list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct HistoryParams {
    /// Page size, 1 to 500; 50 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// The `next` of the page before.
    cursor: Option<String>,
}

/// List what has happened to an endpoint, newest first
///
/// Pauses, resumes, and every move of its breaker; the last 500 are kept.
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/endpoints/{endpoint}/history", operation_id = "list_endpoint_history", tag = "endpoints",
    params(("tenant" = String, Path, description = "The tenant's id"), ("endpoint" = String, Path, description = "The endpoint's id"), HistoryParams),
    responses((status = 200, body = Page<EndpointEventView>), Problems, InputProblems),
    security(("token" = ["read"])),
)]
pub async fn history(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
    NamedEndpoint(id): NamedEndpoint,
    QueryParams(params): QueryParams<HistoryParams>,
) -> Result<Json<Page<EndpointEventView>>, Problem> {
    let page_request = page_request("history", params.limit, params.cursor.as_deref())?;
    find(&api, &tenant, id)?;
    let page = api.gateway.store.endpoint_events(id, page_request).await?;
    let offset = api.gateway.clock.wall_offset();
    Ok(Json(Page::of("history", page, |record| EndpointEventView::of(record, offset))))
}
