//! Relays rows of producers' outboxes into the gateway.
//!
//! [`relay`] claims rows, [`hand_in`] hands them in, and the rows that were
//! accepted are deleted. The event id is made of the outbox's install id and
//! the row's number, so a row that is handed in again, after a crash between
//! the acceptance and the deletion, is the same event.
//!
//! Invariant: exactly one event per committed row, in order per key, for as
//! long as the gateway remembers ids (`--retention`).

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::model::id::TenantId;

mod event_json;
mod hand_in;
pub mod relay;

/// Where events are handed in: the gateway of this process, or one over HTTP.
#[async_trait]
pub trait EventSink: Send + Sync {
    /// Hands in the body of one event, or of a batch of which one refusal
    /// refuses all. An error means that no answer came.
    async fn post(&self, tenant: &TenantId, route: EventRoute, body: Bytes) -> Result<SinkResponse, String>;
}

/// The route of the API that a body is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventRoute {
    /// The route that takes one event.
    One,
    /// The route that takes a batch.
    Batch,
}

/// The answer of the gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SinkResponse {
    /// HTTP status of the answer.
    pub status: u16,
    /// Time after which the gateway wants to be asked again.
    pub retry_after: Option<Duration>,
    /// Body of the answer.
    pub body: Bytes,
}
