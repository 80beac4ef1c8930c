//! Finds things by their id alone, whichever tenant they belong to.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::SharedApiState;
use super::input::QueryParams;
use super::page::Page;
use super::problem::{InputProblems, Problem, ProblemCode, Problems};
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId, TokenId};

/// Most events that one id finds.
const EVENTS_MAX: usize = 500;

/// The kind of thing that has an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FoundKind {
    /// A tenant itself.
    Tenant,
    /// An endpoint that is not deleted.
    Endpoint,
    /// An event; several tenants may have one with the same id.
    Event,
    /// A delivery to any endpoint.
    Delivery,
    /// A token that is not revoked.
    Token,
}

/// Something that has the id.
#[derive(Debug, Serialize, ToSchema)]
pub struct FoundView {
    /// What it is.
    kind: FoundKind,
    /// The id it was found by.
    id: String,
    /// Whose it is; null for a token of the gateway itself.
    #[schema(value_type = Option<String>)]
    tenant: Option<TenantId>,
    /// Path of the API that shows it; null for a token, which is only listed.
    path: Option<String>,
}

/// Which id to find.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FindParams {
    /// The id of a delivery, an event, an endpoint, a tenant or a token.
    #[param(example = "dlv_01m7fwhwg2e008000000000002")]
    id: String,
}

/// Find something by its id, in every tenant
///
/// Ids of events are unique within their tenant alone, so there may be several; at most 500 events are found.
#[utoipa::path(
    get, path = "/v1/find", operation_id = "find_by_id", tag = "status",
    params(FindParams),
    responses((status = 200, body = Page<FoundView>), Problems, InputProblems),
    security(("token" = ["admin"])),
)]
pub async fn find(
    State(api): State<SharedApiState>,
    QueryParams(FindParams { id }): QueryParams<FindParams>,
) -> Result<Json<Page<FoundView>>, Problem> {
    // Every other id has the form of an event's.
    let event: EventId =
        id.parse().map_err(|invalid| Problem::field(ProblemCode::InvalidField, "?id", format!("{invalid}")))?;
    let store = &api.gateway.store;
    let mut found = Vec::new();
    if let Some(tenant) = id.parse().ok().and_then(|tenant: TenantId| store.tenant(&tenant)) {
        found.push(found_in(FoundKind::Tenant, &id, &tenant.id));
    }
    if let Some(endpoint) = id.parse().ok().and_then(|id: EndpointId| store.any_endpoint(id)) {
        found.push(found_in(FoundKind::Endpoint, &id, &endpoint.tenant));
    }
    if let Ok(delivery) = id.parse::<DeliveryId>()
        && let Some(tenant) = store.tenant_of_delivery(delivery).await?
    {
        found.push(found_in(FoundKind::Delivery, &id, &tenant));
    }
    if let Some(token) = id.parse().ok().and_then(|id: TokenId| store.token(id)) {
        found.push(FoundView { kind: FoundKind::Token, id: id.clone(), tenant: token.tenant.clone(), path: None });
    }
    let tenants = store.tenants_of_event(&event, EVENTS_MAX).await?;
    found.extend(tenants.iter().map(|tenant| found_in(FoundKind::Event, &id, tenant)));
    Ok(Json(Page::whole(found)))
}

fn found_in(kind: FoundKind, id: &str, tenant: &TenantId) -> FoundView {
    let path = match kind {
        FoundKind::Tenant => Some(format!("/v1/tenants/{tenant}")),
        FoundKind::Endpoint => Some(format!("/v1/tenants/{tenant}/endpoints/{id}")),
        FoundKind::Event => Some(format!("/v1/tenants/{tenant}/events/{id}")),
        FoundKind::Delivery => Some(format!("/v1/tenants/{tenant}/deliveries/{id}")),
        FoundKind::Token => None,
    };
    FoundView { kind, id: id.to_owned(), tenant: Some(tenant.clone()), path }
}
