//! Hands rows of outboxes to the gateway of this process, as the routes that
//! accept events do: with the same checks, limits and answers.

use async_trait::async_trait;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use std::time::Duration;

use super::SharedApiState;
use super::accept::{BatchParams, accept_batch, accept_one};
use super::input::ProducerTenant;
use super::problem::Problem;
use super::query_params::QueryParams;
use crate::lifecycle::outbox::{EventRoute, EventSink, SinkResponse};
use crate::model::id::TenantId;
use crate::store::MissingResource;

/// The gateway of this process, as outboxes see it.
pub struct GatewaySink {
    api: SharedApiState,
}

impl GatewaySink {
    /// Returns the sink of the gateway with this state.
    pub fn new(api: SharedApiState) -> Self {
        Self { api }
    }

    async fn accept(&self, tenant: &TenantId, route: EventRoute, body: Bytes) -> Result<(), Problem> {
        let Some(found) = self.api.gateway.store.tenant(tenant) else {
            return Err(Problem::not_found(MissingResource::Tenant).naming_tenant(tenant));
        };
        let (api, named) = (State(self.api.clone()), ProducerTenant(found));
        match route {
            EventRoute::One => accept_one(api, named, HeaderMap::new(), Body::from(body)).await.map(drop),
            EventRoute::Batch => {
                let params = QueryParams(BatchParams::default());
                accept_batch(api, named, params, HeaderMap::new(), Body::from(body)).await.map(drop)
            }
        }
    }
}

#[async_trait]
impl EventSink for GatewaySink {
    async fn post(&self, tenant: &TenantId, route: EventRoute, body: Bytes) -> Result<SinkResponse, String> {
        match self.accept(tenant, route, body).await {
            Ok(()) => Ok(SinkResponse { status: StatusCode::ACCEPTED.as_u16(), ..SinkResponse::default() }),
            Err(problem) => read_problem(problem.answer(&HeaderMap::new())).await,
        }
    }
}

/// Reads a problem as a client would.
async fn read_problem(response: Response) -> Result<SinkResponse, String> {
    let (head, body) = response.into_parts();
    let seconds = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let body = to_bytes(body, usize::MAX).await.map_err(|problem| problem.to_string())?;
    Ok(SinkResponse { status: head.status.as_u16(), retry_after: seconds.map(Duration::from_secs), body })
}
