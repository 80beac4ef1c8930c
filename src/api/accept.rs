//! Accepts events: one per request, or a batch that is accepted in one commit.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method, StatusCode};
use jiff::Timestamp;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::SharedApiState;
use super::direct_routes::PlainAnswer;
use super::event_refusal::EventRefusal;
use super::idempotency_key::{choose_id, refuse_key_of_batch};
use super::input::{
    DEPTH_MAX, DOCUMENT_BYTES_MAX, EventBody, ProducerTenant, event_from_json, from_json, line_fault, read_events,
    too_large,
};
use super::page::Page;
use super::problem::{
    AcceptProblems, FieldError, InputProblems, Problem, ProblemCode, Problems, SpaceProblems, StateProblems,
};
use super::query_params::QueryParams;
use super::rate_limit_headers::{self, RateLimitHeaders};
use super::trace_headers::given_trace;
use crate::lifecycle::accept::{Receipt, Submission, accept, accept_spread};
use crate::model::event::{EventKey, EventType, deeper_than};
use crate::model::id::{EndpointId, EventId, TenantId};
use crate::model::named_enum::NamedEnum;
use crate::model::parse_fault::time_fault;
use crate::model::plain_head::add_field;
use crate::model::rfc3339::{is_rfc3339, parse_moment};
use crate::model::span::Span;
use crate::model::tenant::Tenant;
use crate::store::BatchMode;

/// Most events in one batch.
pub const BATCH_EVENTS_MAX: usize = 1_000;
const BATCH_BYTES_MAX: usize = 8 * 1_024 * 1_024;
const SPREAD_MIN: Span = Span::secs(1);
const SPREAD_MAX: Span = Span::secs(24 * 3_600);
const SCHEMA_VERSION_BYTES_MAX: usize = 64;

/// Returns the largest request body of any route, in bytes.
pub fn body_bytes_max(event_bytes_max: usize) -> u64 {
    event_bytes_max.max(BATCH_BYTES_MAX).max(DOCUMENT_BYTES_MAX) as u64
}

/// An event to be accepted.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewEvent<'a> {
    /// Names the event within its tenant: 1 to 128 of `A-Z a-z 0-9 _ -`. Without it, the request header `Idempotency-Key` is used, or the gateway makes an id; with it, the header must be the same. Sending the same id and content again is safe.
    #[schema(value_type = Option<String>, pattern = "^[A-Za-z0-9_-]{1,128}$", example = "evt_order_1001_paid")]
    id: Option<EventId>,
    /// What kind of thing happened, such as `invoice.paid`: words of `A-Z a-z 0-9 _` joined by dots, at most 256 bytes.
    #[serde(rename = "type")]
    #[schema(value_type = String, pattern = r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$", max_length = 256, example = "invoice.paid")]
    event_type: EventType,
    /// What it happened to: at most 256 bytes, no control characters. Events that share a key arrive [in order](ordering.md).
    #[schema(value_type = Option<String>, min_length = 1, max_length = 256, example = "invoice_1001")]
    key: Option<EventKey>,
    /// What happened: any JSON value, at most 64 levels deep. Its bytes are delivered unchanged.
    #[serde(borrow)]
    #[schema(value_type = Value)]
    data: &'a RawValue,
    /// When it happened, RFC 3339 with an offset. Left out: when it was accepted.
    #[schema(format = DateTime)]
    timestamp: Option<String>,
    /// Your name for the shape of `data`: 1 to 64 printable ASCII characters without spaces.
    schema_version: Option<String>,
    /// When it is over, RFC 3339 with an offset: what is not delivered by then is [not attempted any more](retries.md#events-that-are-over), and is a dead letter (`expired`).
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    /// Deliver to these endpoints of the tenant only, each named once, whatever types and filters they have.
    #[schema(value_type = Option<Vec<String>>, min_items = 1)]
    endpoints: Option<Vec<EndpointId>>,
}

/// The answer to an accepted event.
#[derive(Serialize, ToSchema)]
pub struct ReceiptView {
    /// The event's id.
    #[schema(value_type = String)]
    id: EventId,
    /// The event's type.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    event_type: EventType,
    /// When it was accepted, the first time.
    #[schema(value_type = String, format = DateTime)]
    accepted_at: Timestamp,
    /// How many endpoints want it. Zero is no error: the event is kept, and `…/events/{event}/matches` says for each endpoint why it does not want it.
    deliveries: u32,
    /// Whether the same event had been accepted before, so that nothing was created.
    duplicate: bool,
    /// What is unusual about the event, though it was accepted. Left out where nothing is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    warnings: Vec<String>,
}

impl ReceiptView {
    /// Shows a receipt, with what is unusual about the event.
    pub fn of(receipt: Receipt, warnings: Vec<String>) -> Self {
        Self {
            // A repeat changes nothing, whatever it would have meant alone.
            warnings: if receipt.is_duplicate { Vec::new() } else { warnings },
            id: receipt.id,
            event_type: receipt.event_type,
            accepted_at: receipt.accepted_at,
            deliveries: receipt.deliveries,
            duplicate: receipt.is_duplicate,
        }
    }
}

/// What became of one event of a batch.
#[derive(Serialize, ToSchema)]
pub struct BatchItem {
    /// Its place in the batch, from 0.
    index: usize,
    /// 202, or the status it would have had alone.
    status: u16,
    /// Id of the event, if it was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    id: Option<EventId>,
    /// How many endpoints it goes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    deliveries: Option<u32>,
    /// Whether the event had been accepted before.
    #[serde(skip_serializing_if = "Option::is_none")]
    duplicate: Option<bool>,
    /// What is unusual about the event, though it was accepted. Left out where nothing is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    warnings: Vec<String>,
    /// Why it was not accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<BatchError>,
}

/// Why one event of a batch was not accepted.
#[derive(Serialize, ToSchema)]
pub struct BatchError {
    /// The code, as in a problem.
    code: ProblemCode,
    /// The fields at fault.
    errors: Vec<FieldError>,
}

/// Route that takes one event per request.
pub const ONE_ROUTE: &str = "/v1/tenants/{tenant}/events";

/// Whether a route accepts events.
pub fn takes_events(method: &Method, route: &str) -> bool {
    method == Method::POST && matches!(route, ONE_ROUTE | "/v1/tenants/{tenant}/events/batch")
}

/// Send an event
///
/// Answered once the event and all its deliveries are durable.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/events", operation_id = "accept_event", tag = "events",
    params(("tenant" = String, Path, description = "The tenant's id"),
           ("Idempotency-Key" = Option<String>, Header, description = "Stands in for a missing `id`"),
           ("traceparent" = Option<String>, Header, description = "The trace of the event, passed on with every attempt"),
           ("tracestate" = Option<String>, Header, description = "Passed on beside `traceparent`")),
    request_body = NewEvent,
    responses((status = 202, body = ReceiptView), Problems, InputProblems, StateProblems, AcceptProblems, SpaceProblems),
    security(("token" = ["publish"])),
)]
pub async fn accept_one(
    State(api): State<SharedApiState>,
    ProducerTenant(tenant): ProducerTenant,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    Ok(take_one(&api, &tenant, &headers, body).await?.into_response())
}

/// An event that was accepted, as the answer shows it.
pub struct AcceptedEvent {
    receipt: ReceiptView,
    limits: Option<RateLimitHeaders>,
}

impl AcceptedEvent {
    /// Returns the answer to a request with this id.
    pub fn plain_answer(&self, request_id: &str) -> PlainAnswer {
        let mut head = Vec::with_capacity(512);
        head.extend_from_slice(b"HTTP/1.1 202 Accepted\r\ncontent-type: application/json\r\n");
        for (name, value) in self.limits.iter().flatten() {
            add_field(&mut head, name.as_str(), value.as_bytes());
        }
        add_field(&mut head, "x-request-id", request_id.as_bytes());
        let body = serde_json::to_vec(&self.receipt).expect("a receipt is plain data");
        PlainAnswer { head, body: body.into(), is_last: false }
    }
}

impl IntoResponse for AcceptedEvent {
    fn into_response(self) -> Response {
        (StatusCode::ACCEPTED, self.limits, Json(self.receipt)).into_response()
    }
}

/// Reads a request with one event and accepts it. Of the headers it reads those that
/// a [`PlainRequest`](super::plain_request::PlainRequest) keeps, and those that it must not have.
pub async fn take_one(
    api: &SharedApiState,
    tenant: &Tenant,
    headers: &HeaderMap,
    body: impl EventBody,
) -> Result<AcceptedEvent, EventRefusal> {
    refuse_system(&tenant.id)?;
    let permit = api.gateway.intake.permit(&tenant.id);
    let (body, _permit) = read_events(headers, body, api.event_bytes_max, permit).await?;
    let mut submission = read_event(&body, &body)?;
    submission.id = choose_id(submission.id, headers)?;
    submission.trace = given_trace(headers);
    let warnings = warnings_of(api, &submission);
    let outcomes = accept(&api.gateway, &tenant.id, vec![submission], BatchMode::All).await?;
    let outcome = outcomes.into_iter().next().expect("one event in, one outcome out");
    let receipt = ReceiptView::of(outcome?, warnings);
    Ok(AcceptedEvent { receipt, limits: rate_limit_headers::rate_limit_headers(api, tenant) })
}

/// How a batch is taken.
#[derive(Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct BatchParams {
    /// Accept what can be accepted, and answer for each event. Otherwise one refusal refuses all.
    #[serde(default)]
    partial: bool,
    /// Draw the first attempt of each event without a key over this time, 1s to 24h, instead of making all at once.
    #[param(value_type = Option<String>, example = "10m")]
    spread: Option<Span>,
}

/// Send up to 1,000 events
///
/// A JSON array, or one JSON object per line (NDJSON) sent as `application/x-ndjson`. One commit, in order.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/events/batch", operation_id = "accept_event_batch", tag = "events",
    params(("tenant" = String, Path, description = "The tenant's id"), BatchParams,
           ("traceparent" = Option<String>, Header, description = "The trace of all events of the batch, passed on with every attempt"),
           ("tracestate" = Option<String>, Header, description = "Passed on beside `traceparent`")),
    request_body = Vec<NewEvent>,
    responses((status = 202, body = Page<BatchItem>), Problems, InputProblems, StateProblems, AcceptProblems, SpaceProblems),
    security(("token" = ["publish"])),
)]
pub async fn accept_batch(
    State(api): State<SharedApiState>,
    ProducerTenant(tenant): ProducerTenant,
    QueryParams(params): QueryParams<BatchParams>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Option<RateLimitHeaders>, Json<Page<BatchItem>>), Problem> {
    refuse_system(&tenant.id)?;
    check_spread(&api, params.spread)?;
    let permit = api.gateway.intake.permit(&tenant.id);
    let (body, _permit) = read_events(&headers, body, BATCH_BYTES_MAX, permit).await?;
    refuse_single(&headers, &body)?;
    refuse_key_of_batch(&headers)?;
    let (items, trace) = (split_batch(&body)?, given_trace(&headers));
    if items.is_empty() || items.len() > BATCH_EVENTS_MAX {
        return Err(Problem::new(
            ProblemCode::InvalidField,
            format!("the batch has {} events; send 1 to {BATCH_EVENTS_MAX}", items.len()),
        ));
    }
    let parsed: Vec<Result<Submission, Problem>> = items.iter().map(|item| read_item(&api, &body, item)).collect();
    let mode = if params.partial { BatchMode::Each } else { BatchMode::All };
    let (mut refused, mut submissions) = (Vec::<Option<Problem>>::new(), Vec::with_capacity(parsed.len()));
    let (mut positions, mut warnings) = (Vec::with_capacity(parsed.len()), Vec::with_capacity(parsed.len()));
    for (position, item) in parsed.into_iter().enumerate() {
        match item {
            Ok(submission) => {
                warnings.push(warnings_of(&api, &submission));
                submissions.push(Submission { trace: trace.clone(), ..submission });
                positions.push(position);
                refused.push(None);
            }
            Err(problem) => refused.push(Some(problem)),
        }
    }
    if mode == BatchMode::All && refused.iter().any(Option::is_some) {
        return Err(refuse_batch(refused));
    }
    let accepted = accept_spread(&api.gateway, &tenant.id, submissions, mode, params.spread).await?;
    let mut outcomes = accepted.into_iter().zip(warnings);
    let outcomes: Vec<Result<ReceiptView, Problem>> = refused
        .into_iter()
        .map(|refused| match refused {
            Some(problem) => Err(problem),
            None => {
                let (outcome, warnings) = outcomes.next().expect("one outcome per event handed over");
                let shown = outcome.map(|receipt| ReceiptView::of(receipt, warnings));
                shown.map_err(|refusal| refusal.at_positions(&positions).into())
            }
        })
        .collect();
    if mode == BatchMode::All && outcomes.iter().any(Result::is_err) {
        return Err(refuse_batch(outcomes.into_iter().map(Result::err).collect()));
    }
    for problem in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
        api.gateway.metrics.count_refused(problem.code().as_str());
    }
    let data = outcomes.into_iter().enumerate().map(|(index, outcome)| show_item(index, outcome)).collect();
    Ok((StatusCode::ACCEPTED, rate_limit_headers::rate_limit_headers(&api, &tenant), Json(Page::whole(data))))
}

/// Refuses events for the tenant `_system`: its events come from the gateway
/// alone, so that its receivers can trust them.
fn refuse_system(tenant: &TenantId) -> Result<(), Problem> {
    if tenant.is_system() {
        return Err(Problem::new(
            ProblemCode::WrongState,
            "tenant _system is fed by the gateway itself; hand events in to another tenant, or try its endpoints with a test event",
        ));
    }
    Ok(())
}

/// Refuses a spread longer than `--hold-max`, after which a delivery without
/// an attempt expires.
fn check_spread(api: &SharedApiState, spread: Option<Span>) -> Result<(), Problem> {
    let Some(spread) = spread else { return Ok(()) };
    let max = SPREAD_MAX.min(api.gateway.expiry.hold_max);
    if (SPREAD_MIN..=max).contains(&spread) {
        return Ok(());
    }
    Err(Problem::field(
        ProblemCode::InvalidField,
        "?spread",
        format!("spread is {spread}; use {SPREAD_MIN} to {max}, or leave it out to send at once"),
    ))
}

fn show_item(index: usize, outcome: Result<ReceiptView, Problem>) -> BatchItem {
    match outcome {
        Ok(receipt) => BatchItem {
            index,
            status: 202,
            id: Some(receipt.id),
            deliveries: Some(receipt.deliveries),
            duplicate: Some(receipt.duplicate),
            warnings: receipt.warnings,
            error: None,
        },
        Err(problem) => {
            let (code, errors) = problem.errors_below("");
            let error = Some(BatchError { code, errors });
            let status = code.status().as_u16();
            BatchItem { index, status, id: None, deliveries: None, duplicate: None, warnings: Vec::new(), error }
        }
    }
}

/// Returns one problem for the whole batch, with a pointer to every faulty field.
fn refuse_batch(refused: Vec<Option<Problem>>) -> Problem {
    let mut codes = Vec::new();
    let mut errors = Vec::new();
    for (index, problem) in refused.into_iter().enumerate() {
        let Some(problem) = problem else { continue };
        let (code, item_errors) = problem.errors_below(&format!("/{index}"));
        codes.push(code);
        errors.extend(item_errors);
    }
    // The first code other than a conflict decides; a batch with conflicts alone is answered 409.
    let code = codes.iter().find(|code| **code != ProblemCode::IdConflict).or(codes.first());
    Problem::fields(*code.expect("a refused batch has a fault"), errors)
}

/// Refuses a body whose content type is JSON and which is one value other than
/// an array: the producer has forgotten the brackets. A body of another type,
/// such as curl's default, is read as lines, even if there is only one.
fn refuse_single(headers: &HeaderMap, body: &Bytes) -> Result<(), Problem> {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"));
    let is_array = body.trim_ascii_start().first() == Some(&b'[');
    if !is_json || is_array || from_json::<IgnoredAny>(body).is_err() {
        return Ok(());
    }
    let fault =
        format!("is {kind} and not an array; send the events in an array, or one per line as application/x-ndjson");
    Err(Problem::of_whole_document(ProblemCode::InvalidField, &fault))
}

/// Splits the body of a batch into its events, each as a slice of the body.
pub fn split_batch(body: &Bytes) -> Result<Vec<&[u8]>, Problem> {
    let is_array = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    if is_array {
        let items: Vec<&RawValue> = from_json(body)?;
        return Ok(items.into_iter().map(|item| item.get().as_bytes()).collect());
    }
    let lines = body.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    Ok(lines.filter(|line| !line.is_empty()).collect())
}

fn read_item(api: &SharedApiState, body: &Bytes, item: &[u8]) -> Result<Submission, Problem> {
    if item.len() > api.event_bytes_max {
        return Err(too_large(api.event_bytes_max).about_event());
    }
    read_event(body, item)
}

/// Parses one event; its data stays a slice of the body.
pub fn read_event(body: &Bytes, json: &[u8]) -> Result<Submission, Problem> {
    let new: NewEvent<'_> = event_from_json(json).map_err(|problem| in_batch(body, json, problem))?;
    let mut errors = Vec::new();
    let mut refuse = |pointer: &str, detail: String| errors.push(FieldError { pointer: pointer.into(), detail });
    let data = new.data.get().as_bytes();
    if let Some(depth) = deeper_than(data, DEPTH_MAX) {
        refuse("/data", format!("data is {depth} levels deep; use at most {DEPTH_MAX}"));
    }
    if let Some(timestamp) = &new.timestamp
        && !is_rfc3339(timestamp)
    {
        refuse("/timestamp", time_fault(&format!("timestamp {timestamp:?}")));
    }
    let expires_at = new.expires_at.as_deref().map(|text| match is_rfc3339(text).then(|| parse_moment(text)) {
        Some(Some(at)) => Some(at),
        _ => {
            refuse("/expires_at", time_fault(&format!("expires_at {text:?}")));
            None
        }
    });
    if let Some(version) = &new.schema_version
        && !is_version(version)
    {
        refuse(
            "/schema_version",
            format!(
                "schema_version {version:?} is not 1 to {SCHEMA_VERSION_BYTES_MAX} printable ASCII characters without spaces"
            ),
        );
    }
    if let Some(endpoints) = &new.endpoints {
        let distinct: std::collections::HashSet<_> = endpoints.iter().collect();
        if endpoints.is_empty() || distinct.len() < endpoints.len() {
            refuse(
                "/endpoints",
                "endpoints is empty or names one twice; name each once, or leave it out for all that match".into(),
            );
        }
    }
    if !errors.is_empty() {
        return Err(Problem::fields(ProblemCode::InvalidField, errors));
    }
    Ok(Submission {
        id: new.id,
        event_type: new.event_type,
        key: new.key,
        timestamp: new.timestamp,
        schema_version: new.schema_version,
        expires_at: expires_at.flatten(),
        endpoints: new.endpoints,
        is_test: false,
        trace: None,
        data: body.slice_ref(data),
    })
}

/// Says of a fault in one event of a batch in which line it is, and that it is not the
/// whole body that is wrong.
fn in_batch(body: &Bytes, event: &[u8], problem: Problem) -> Problem {
    if event.len() == body.len() {
        return problem;
    }
    if problem.code() != ProblemCode::InvalidJson {
        return problem.about_event();
    }
    let start = event.as_ptr() as usize - body.as_ptr() as usize;
    let lines_before = body[..start].iter().filter(|byte| **byte == b'\n').count();
    line_fault(event, lines_before).unwrap_or(problem).about_event()
}

fn is_version(text: &str) -> bool {
    (1..=SCHEMA_VERSION_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Returns what is unusual about an event that is accepted all the same.
fn warnings_of(api: &SharedApiState, submission: &Submission) -> Vec<String> {
    let is_over = submission.expires_at.is_some_and(|at| at <= api.gateway.clock.wall());
    let warning = "expires_at is in the past, so nothing is attempted; deliveries are parked as expired";
    if is_over { vec![warning.to_owned()] } else { Vec::new() }
}
