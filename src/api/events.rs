//! Lists and shows events and their deliveries, and expunges their data.

use std::collections::HashSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::SharedApiState;
use super::deliveries::DeliveryView;
use super::input::{NamedEvent, TenantPath};
use super::page::{Page, page_request};
use super::problem::{GoneProblems, InputProblems, Problem, Problems};
use super::query_params::QueryParams;
use crate::lifecycle::change::expunge_event;
use crate::model::audit::Initiator;
use crate::model::endpoint::{Endpoint, ParsedData};
use crate::model::event::{self, Event};
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use crate::store::{Error, EventQuery, EventRecord, MissingResource, Store};

/// An event as it is shown.
#[derive(Serialize, ToSchema)]
pub struct EventView {
    /// The event's id.
    #[schema(value_type = String)]
    id: EventId,
    /// The event's type.
    #[serde(rename = "type")]
    event_type: String,
    /// What it happened to.
    key: Option<String>,
    /// When it happened.
    timestamp: String,
    /// The producer's name for the shape of `data`.
    schema_version: Option<String>,
    /// When it is over; null where its producer did not say so.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    /// The endpoints that its producer named; null where it named none.
    #[schema(value_type = Option<Vec<String>>)]
    endpoints: Option<Vec<EndpointId>>,
    /// When it was accepted.
    #[schema(value_type = String, format = DateTime)]
    accepted_at: Timestamp,
    /// How many deliveries were made for it.
    deliveries: u32,
    /// The producer's data, byte for byte; null where it is [withheld](#what-an-event-carried).
    #[schema(value_type = Value)]
    data: Option<Box<RawValue>>,
    /// Why `data` is not shown; null where it is.
    data_withheld: Option<DataWithheld>,
}

/// Why an event's data is not shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DataWithheld {
    /// It was forgotten on request.
    Expunged,
    /// No endpoint wanted it, and it was kept long enough (`--unmatched-retention`).
    Unmatched,
    /// The gateway shows none (`--redact-payloads`).
    Redacted,
    /// What is stored is no longer what was accepted.
    Damaged,
}

impl EventView {
    fn of(api: &SharedApiState, record: EventRecord) -> Self {
        let (offset, is_redacted) = (api.gateway.clock.wall_offset(), api.redacts_payloads);
        let EventRecord { event, withheld, deliveries, is_damaged } = record;
        // Accepted data is JSON. Data that is not was damaged before events had checksums.
        let stored = || RawValue::from_string(String::from_utf8_lossy(&event.data).into_owned()).ok();
        let (data, data_withheld) = match (withheld, is_redacted) {
            (Some(event::DataRemoval::Expunged), _) => (None, Some(DataWithheld::Expunged)),
            (Some(event::DataRemoval::Unmatched), _) => (None, Some(DataWithheld::Unmatched)),
            (None, true) => (None, Some(DataWithheld::Redacted)),
            (None, false) => match stored().filter(|_| !is_damaged) {
                Some(data) => (Some(data), None),
                None => (None, Some(DataWithheld::Damaged)),
            },
        };
        let timestamp = event.timestamp_text();
        // Every field has its name here, so that the compiler asks of a new one whether
        // it is shown. The link base and the trace are not.
        let Event {
            id,
            tenant: _,
            event_type,
            key,
            timestamp: _,
            schema_version,
            expires_at,
            endpoints,
            link_base: _,
            trace: _,
            accepted_at,
            data: _,
        } = event;
        Self {
            id,
            event_type: event_type.to_string(),
            key: key.map(|key| key.to_string()),
            timestamp,
            schema_version,
            expires_at,
            endpoints,
            accepted_at: offset.wall(accepted_at),
            deliveries,
            data,
            data_withheld,
        }
    }
}

/// Whether an endpoint gets an event, and why.
#[derive(Serialize, ToSchema)]
pub struct MatchView {
    /// The endpoint's id.
    #[schema(value_type = String)]
    endpoint_id: EndpointId,
    /// Whether its rules, as they are now, want this event.
    matched: bool,
    /// Sentence that says why the endpoint gets the event or not.
    reason: String,
    /// The delivery that was made for it when the event was accepted.
    #[schema(value_type = Option<String>)]
    delivery_id: Option<DeliveryId>,
}

/// Which events to list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventParams {
    /// Only events of this type.
    #[serde(rename = "type")]
    event_type: Option<String>,
    /// With this key.
    key: Option<String>,
    /// Accepted at this time or later, RFC 3339.
    #[param(value_type = Option<String>)]
    since: Option<Timestamp>,
    /// Accepted before this time.
    #[param(value_type = Option<String>)]
    until: Option<Timestamp>,
    /// Page size, 1 to 500; 50 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// The `next` of the page before.
    cursor: Option<String>,
}

/// List events, newest first
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/events", operation_id = "list_events", tag = "events",
    params(("tenant" = String, Path, description = "The tenant's id"), EventParams),
    responses((status = 200, body = Page<EventView>), Problems, InputProblems),
    security(("token" = ["read"])),
)]
pub async fn list(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
    QueryParams(params): QueryParams<EventParams>,
) -> Result<Json<Page<EventView>>, Problem> {
    let page_request = page_request("events", params.limit, params.cursor.as_deref())?;
    let offset = api.gateway.clock.wall_offset();
    let query = EventQuery {
        event_type: params.event_type,
        key: params.key,
        since: params.since.map(|at| offset.engine(at)),
        until: params.until.map(|at| offset.engine(at)),
    };
    let page = api.gateway.store.events(&tenant, query, page_request).await?.to_wall_time(offset);
    Ok(Json(Page::of("events", page, |record| EventView::of(&api, record))))
}

/// Show an event
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/events/{event}", operation_id = "get_event", tag = "events",
    params(("tenant" = String, Path, description = "The tenant's id"), ("event" = String, Path, description = "The event's id")),
    responses((status = 200, body = EventView), Problems, GoneProblems),
    security(("token" = ["read"])),
)]
pub async fn show(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
    NamedEvent(id): NamedEvent,
) -> Result<Json<EventView>, Problem> {
    let record =
        api.gateway.store.event(&tenant, &id).await?.ok_or_else(|| Problem::not_found(MissingResource::Event))?;
    match record.withheld {
        Some(event::DataRemoval::Expunged) => Err(Error::Expunged(id).into()),
        Some(event::DataRemoval::Unmatched) | None => Ok(Json(EventView::of(&api, record))),
    }
}

/// Returns an event that still has its data, or the problem.
async fn find(api: &SharedApiState, tenant: &TenantId, id: &EventId) -> Result<EventRecord, Problem> {
    let record =
        api.gateway.store.event(tenant, id).await?.ok_or_else(|| Problem::not_found(MissingResource::Event))?;
    match record.withheld {
        Some(event::DataRemoval::Expunged) => Err(Error::Expunged(id.clone()).into()),
        Some(event::DataRemoval::Unmatched) => Err(Error::Unmatched(id.clone()).into()),
        None => Ok(record),
    }
}

/// Forget an event's data
///
/// What waits of it is cancelled, and nothing of it can be sent again. All else that is known of it stays: its id is still recognised when it is handed in once more.
#[utoipa::path(
    delete, path = "/v1/tenants/{tenant}/events/{event}/data", operation_id = "expunge_event_data", tag = "events",
    params(("tenant" = String, Path, description = "The tenant's id"), ("event" = String, Path, description = "The event's id")),
    responses((status = 204), Problems),
    security(("token" = ["manage"])),
)]
pub async fn expunge(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    NamedEvent(id): NamedEvent,
) -> Result<StatusCode, Problem> {
    expunge_event(&api.gateway, &by, &tenant, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List the deliveries of an event
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/events/{event}/deliveries", operation_id = "list_event_deliveries", tag = "events",
    params(("tenant" = String, Path, description = "The tenant's id"), ("event" = String, Path, description = "The event's id")),
    responses((status = 200, body = Page<DeliveryView>), Problems),
    security(("token" = ["read"])),
)]
pub async fn deliveries(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
    NamedEvent(id): NamedEvent,
) -> Result<Json<Page<DeliveryView>>, Problem> {
    let deliveries = api.gateway.store.event_deliveries(&tenant, &id).await?;
    let deliveries = deliveries.ok_or_else(|| Problem::not_found(MissingResource::Event))?;
    Ok(Json(Page::whole(DeliveryView::of_all(&api.gateway, deliveries).await)))
}

/// How many endpoints to explain.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct MatchParams {
    /// At most this many endpoints, 1 to 500: those that got the event or want it now come first, then the newest others. All endpoints, newest first, when left out.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
}

/// Explain why each endpoint got an event, or did not
///
/// Rules are applied as they are now; `delivery_id` shows what was decided when the event was accepted.
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/events/{event}/matches", operation_id = "list_event_matches", tag = "events",
    params(("tenant" = String, Path, description = "The tenant's id"), ("event" = String, Path, description = "The event's id"), MatchParams),
    responses((status = 200, body = Page<MatchView>), Problems, InputProblems, GoneProblems),
    security(("token" = ["read"])),
)]
pub async fn matches(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
    NamedEvent(id): NamedEvent,
    QueryParams(params): QueryParams<MatchParams>,
) -> Result<Json<Page<MatchView>>, Problem> {
    let store = &api.gateway.store;
    let limit =
        params.limit.map(|limit| page_request("matches", Some(limit), None)).transpose()?.map(|asked| asked.limit);
    let record = find(&api, &tenant, &id).await?;
    let deliveries = store.event_deliveries(&tenant, &id).await?.unwrap_or_default();
    let mut data = ParsedData::new(&record.event.data);
    let show = |endpoint: Arc<Endpoint>| {
        let result = endpoint.matches(&record.event, &mut data);
        let delivery = deliveries.iter().find(|delivery| delivery.endpoint_id == endpoint.id);
        let note = match (delivery, result.matched) {
            (None, true) if endpoint.created_at > record.event.accepted_at => {
                "; it was created after the event was accepted"
            }
            (None, true) => "; its rules were others when the event was accepted",
            (Some(_), false) => "; its rules were others when the event was accepted",
            (Some(_), true) | (None, false) => "",
        };
        MatchView {
            endpoint_id: endpoint.id,
            matched: result.matched,
            reason: format!("{}{note}", result.reason),
            delivery_id: delivery.map(|delivery| delivery.id),
        }
    };
    let endpoints = match limit {
        None => store.endpoints(&tenant),
        Some(limit) => {
            let got = deliveries.iter().map(|delivery| delivery.endpoint_id);
            first_concerned(store.as_ref(), &record.event, got, limit)
        }
    };
    Ok(Json(Page::whole(endpoints.into_iter().map(show).collect())))
}

/// Returns some endpoints of an event's tenant: those that got it, those that want it
/// now, and then the newest others.
fn first_concerned(
    store: &dyn Store,
    event: &Event,
    got: impl Iterator<Item = EndpointId>,
    limit: usize,
) -> Vec<Arc<Endpoint>> {
    let wanting = store.matching(event).unwrap_or_default().into_iter().map(|endpoint| endpoint.id);
    let mut seen = HashSet::new();
    got.chain(wanting)
        .chain(store.endpoint_ids(Some(&event.tenant)))
        .filter(|id| seen.insert(*id))
        .filter_map(|id| store.endpoint(&event.tenant, id))
        .take(limit)
        .collect()
}
