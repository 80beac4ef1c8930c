//! Streams the outcomes of attempts to people who watch, as server-sent events.
//!
//! A stream shows what settles on this node. It ends when the gateway stops, within
//! a second after its caller's token or session is no longer valid, and when the
//! caller hangs up.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior};
use utoipa::IntoParams;

use super::SharedApiState;
use super::auth::Principal;
use super::input::TenantPath;
use super::problem::{InputProblems, Problem, ProblemCode, Problems};
use super::query_params::QueryParams;
use super::sign_in::SignIns;
use crate::lifecycle::tail::{TailFilter, TailRefusal, TailRow, TailRows};
use crate::model::id::{EndpointId, TenantId};
use crate::model::sign_in::SignInMaker;
use crate::model::span::Span;
use crate::model::verdict::Verdict;

/// Interval at which a stream looks whether its caller may still watch.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// Interval of comments, which keep a quiet stream open.
const COMMENT_EVERY: Duration = Duration::from_secs(10);
const LONGEST: Span = Span::secs(24 * 3_600);

/// What to watch of all tenants.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TailParams {
    /// Only outcomes of this tenant.
    tenant: Option<String>,
    /// Only outcomes of this endpoint.
    endpoint: Option<String>,
    /// Only outcomes of event types that fit this pattern, such as `order.*`.
    event_type: Option<String>,
    /// With this verdict alone.
    verdict: Option<Verdict>,
    /// How long to watch, 0s to 24h; until you hang up, if left out.
    #[serde(rename = "for")]
    #[param(value_type = Option<String>, example = "10m")]
    span: Option<Span>,
}

/// What to watch of one tenant.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TenantTailParams {
    /// Only outcomes of this endpoint.
    endpoint: Option<String>,
    /// Only outcomes of event types that fit this pattern, such as `order.*`.
    event_type: Option<String>,
    /// With this verdict alone.
    verdict: Option<Verdict>,
    /// How long to watch, 0s to 24h; until you hang up, if left out.
    #[serde(rename = "for")]
    #[param(value_type = Option<String>, example = "10m")]
    span: Option<Span>,
}

/// Watch attempts of all tenants as they settle
///
/// A stream of server-sent events: `node` first, with the node that it shows; `attempt` for each outcome; `skipped` with a count, where there were more than 20 a second. It is this node's alone: on many nodes, watch each. It ends when the gateway stops or the token is revoked.
#[utoipa::path(
    get, path = "/v1/tail", operation_id = "tail_attempts", tag = "deliveries",
    params(TailParams),
    responses((status = 200, body = TailRow, content_type = "text/event-stream"), Problems, InputProblems),
    security(("token" = ["admin"])),
)]
pub async fn of_all(
    State(api): State<SharedApiState>,
    principal: Principal,
    QueryParams(params): QueryParams<TailParams>,
) -> Result<Response, Problem> {
    let tenant = params.tenant.as_deref().map(|named| known_tenant(&api, named)).transpose()?;
    let filter = parse_filter(tenant, params.endpoint.as_deref(), params.event_type, params.verdict)?;
    start_stream(api, principal, filter, params.span).await
}

/// Watch a tenant's attempts as they settle
///
/// As [the stream of all tenants](#operation/tail_attempts), for one.
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/tail", operation_id = "tail_tenant_attempts", tag = "deliveries",
    params(("tenant" = String, Path, description = "The tenant's id"), TenantTailParams),
    responses((status = 200, body = TailRow, content_type = "text/event-stream"), Problems, InputProblems),
    security(("token" = ["read"])),
)]
pub async fn of_tenant(
    State(api): State<SharedApiState>,
    principal: Principal,
    TenantPath(tenant): TenantPath,
    QueryParams(params): QueryParams<TenantTailParams>,
) -> Result<Response, Problem> {
    let filter = parse_filter(Some(tenant), params.endpoint.as_deref(), params.event_type, params.verdict)?;
    start_stream(api, principal, filter, params.span).await
}

fn known_tenant(api: &SharedApiState, named: &str) -> Result<TenantId, Problem> {
    let known = named.parse().ok().filter(|id| api.gateway.store.tenant(id).is_some());
    known.ok_or_else(|| Problem::field(ProblemCode::InvalidField, "?tenant", format!("there is no tenant {named:?}")))
}

fn parse_filter(
    tenant: Option<TenantId>,
    endpoint: Option<&str>,
    event_type: Option<String>,
    verdict: Option<Verdict>,
) -> Result<TailFilter, Problem> {
    let endpoint: Option<EndpointId> = endpoint.map(str::parse).transpose().map_err(|_| {
        Problem::field(ProblemCode::InvalidField, "?endpoint", "endpoint is not the id of one; use ep_…")
    })?;
    Ok(TailFilter { tenant, endpoint, event_type, verdict })
}

/// Begins a stream.
async fn start_stream(
    api: SharedApiState,
    principal: Principal,
    filter: TailFilter,
    span: Option<Span>,
) -> Result<Response, Problem> {
    if let Some(span) = span.filter(|span| *span > LONGEST) {
        return Err(Problem::field(ProblemCode::InvalidField, "?for", format!("for is {span}; use 0s to 24h")));
    }
    let caller = principal.identity().to_string();
    let rows = api.gateway.notifier.tail().listen(caller, filter).map_err(|refusal| match refusal {
        TailRefusal::Stopping => Problem::new(ProblemCode::Unavailable, refusal.to_string()),
        TailRefusal::Node | TailRefusal::Caller => {
            Problem::new(ProblemCode::RateLimited, refusal.to_string()).retry_after(5)
        }
    })?;
    let nodes = api.gateway.store.view().await?.nodes;
    let node = nodes.iter().find(|node| node.is_self).map(|node| node.id.clone());
    let first = encode_server_sent_event("node", &json!({ "node": node, "nodes": nodes.len() }));
    let maker = SignIns::of(&api).maker_of(&principal);
    let now = Instant::now();
    let mut check = tokio::time::interval(CHECK_EVERY);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ends_at = span.map(|span| now + span.0);
    let state = TailStream { api, principal, maker, rows, check, ends_at, spoke_at: now, first: Some(first) };
    let chunks = futures_util::stream::unfold(state, |mut state| async move {
        let chunk = state.next().await?;
        Some((Ok::<_, std::convert::Infallible>(chunk), state))
    });
    let headers = [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "private, no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    Ok((headers, Body::from_stream(chunks)).into_response())
}

/// One open stream.
struct TailStream {
    api: SharedApiState,
    principal: Principal,
    /// The token or sign-in that the caller's rights depend on.
    maker: SignInMaker,
    rows: TailRows,
    check: tokio::time::Interval,
    ends_at: Option<Instant>,
    spoke_at: Instant,
    first: Option<Bytes>,
}

impl TailStream {
    /// Waits for the next part of the stream; none ends it.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        loop {
            if self.ends_at.is_some_and(|end| end <= Instant::now()) {
                return None;
            }
            let chunk = tokio::select! {
                row = self.rows.next() => Some(encode_server_sent_event("attempt", &row?)),
                _ = self.check.tick() => {
                    if !SignIns::of(&self.api).may_watch(&self.principal, &self.maker) {
                        return None;
                    }
                    self.between_rows()
                }
            };
            if let Some(chunk) = chunk {
                self.spoke_at = Instant::now();
                return Some(chunk);
            }
        }
    }

    /// Returns what is said without a row: how many were left out, or a comment
    /// that keeps the connection open.
    fn between_rows(&self) -> Option<Bytes> {
        match self.rows.take_skipped() {
            0 if self.spoke_at.elapsed() >= COMMENT_EVERY => Some(Bytes::from_static(b": still here\n\n")),
            0 => None,
            skipped => Some(encode_server_sent_event("skipped", &json!({ "skipped": skipped }))),
        }
    }
}

/// Writes a server-sent event. JSON has no line break in it.
fn encode_server_sent_event(name: &str, data: &impl serde::Serialize) -> Bytes {
    let data = serde_json::to_string(data).expect("a row is plain data");
    Bytes::from(format!("event: {name}\ndata: {data}\n\n"))
}
