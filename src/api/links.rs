//! Serves the data of thin events to receivers, who have a signed link instead
//! of a token.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use tracing::info;
use url::form_urlencoded;
use utoipa::ToSchema;

use super::auth_failures::{self, AuthFailure};
use super::connection_slots::ConnectionStatus;
use super::problem::{LinkProblems, Problem};
use super::{SharedApiState, origin};
use crate::lifecycle::linked_data::{LinkRefusal, LinkedData, follow};
use crate::metrics::{AuthFailureKind, FetchResult};
use crate::store::Error;

/// An event as the format `envelope` sends it.
#[derive(ToSchema)]
pub struct Envelope {
    /// The event's id.
    pub id: String,
    /// The event's type.
    #[schema(rename = "type")]
    pub event_type: String,
    /// When it happened.
    pub timestamp: String,
    /// What it happened to.
    pub key: Option<String>,
    /// Its place in its lane.
    pub seq: Option<u64>,
    /// The producer's name for the shape of `data`.
    pub schema_version: Option<String>,
    /// The tenant that it belongs to.
    pub tenant: String,
    /// The producer's data, byte for byte.
    pub data: serde_json::Value,
}

/// Fetch the event that a thin delivery links to
///
/// The `data_url` of a thin event leads here; its signature stands for a token. The answer is the event as the format `envelope` has it. A link is good as long as its delivery is kept, and may be followed once a second, twenty times at once.
#[utoipa::path(
    get, path = "/data/{tenant}/{delivery}", operation_id = "fetch_event_data", tag = "receivers",
    params(
        ("tenant" = String, Path, description = "The tenant's id"),
        ("delivery" = String, Path, description = "The delivery's id"),
        ("signature" = String, Query, description = "What the gateway signed the link with"),
    ),
    responses((status = 200, body = Envelope), LinkProblems),
    security(()),
)]
pub async fn fetch(
    State(api): State<SharedApiState>,
    path: Result<Path<(String, String)>, PathRejection>,
    request: Request,
) -> Result<Response, Problem> {
    let from = origin::of(&request, &api.trusted_proxies).map(|address| address.to_string()).unwrap_or_default();
    let signature = signature_parameter(request.uri().query().unwrap_or_default());
    // The gateway made no link whose path cannot be parsed.
    let (tenant, delivery) = path.map(|Path(parts)| parts).unwrap_or_default();
    let followed = match (tenant.parse(), delivery.parse()) {
        (Ok(tenant), Ok(delivery)) => follow(&api.gateway, &tenant, delivery, &signature).await,
        _ => Err(LinkRefusal::Foreign),
    };
    api.gateway.metrics.count_fetched(fetch_result(&followed));
    match followed {
        Ok(LinkedData { body, event, endpoint }) => {
            // A valid link proves as much as a token.
            if let Some(connection) = request.extensions().get::<ConnectionStatus>() {
                connection.mark_authenticated();
            }
            info!(tenant.id = tenant, event.id = %event, delivery.id = delivery, endpoint.id = %endpoint, from,
                  "the data of event {event} was fetched by its link");
            let headers = [
                (CONTENT_TYPE, "application/json"),
                (CACHE_CONTROL, "private, no-store"),
                (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            ];
            Ok((headers, body).into_response())
        }
        Err(why) => {
            // An invalid link counts as a failed authentication; the ids that it names are not logged.
            if let LinkRefusal::Foreign = why {
                let failure = AuthFailure { kind: AuthFailureKind::Link, problem: why.into(), token: None };
                return Err(auth_failures::refuse(&api, &request, failure));
            }
            info!(tenant.id = tenant, delivery.id = delivery, from, "data link refused: {why}");
            Err(why.into())
        }
    }
}

fn signature_parameter(query: &str) -> String {
    let mut fields = form_urlencoded::parse(query.as_bytes());
    fields.find(|(name, _)| name == "signature").map(|(_, value)| value.into_owned()).unwrap_or_default()
}

fn fetch_result(followed: &Result<LinkedData, LinkRefusal>) -> FetchResult {
    match followed {
        Ok(_) => FetchResult::Served,
        Err(LinkRefusal::Foreign) => FetchResult::Invalid,
        Err(LinkRefusal::Over) => FetchResult::Expired,
        Err(LinkRefusal::TooOften(_)) => FetchResult::Limited,
        Err(LinkRefusal::Store(Error::Expunged(_))) => FetchResult::Expunged,
        Err(LinkRefusal::Store(_)) => FetchResult::Failed,
    }
}
