//! Reads waiting deliveries and their events, as attempts need them.
//!
//! Events are asked for by their numbers alone, so that the server reads only
//! the partitions that hold them.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use super::rows::{at, delivery_id, format_of, progress_from, stored_tenant};
use super::stored_functions::READ_CLAIMS;
use super::transaction::{bound, with_timeout};
use crate::model::event::{Event, EventKey, EventType};
use crate::model::id::{EndpointId, EventId};
use crate::store::{Claim, Result};

/// A waiting delivery and its event, by their numbers.
#[derive(Debug, Clone, Copy)]
pub struct ClaimKey {
    /// Number of the delivery.
    pub no: i64,
    /// Number of its event.
    pub event: i64,
}

/// Claims that were read.
pub struct ReadClaims {
    /// The claims, in the order of their due times. Deliveries that were settled
    /// or cancelled since are left out.
    pub claims: Vec<Claim>,
    /// Number of wanted deliveries that were read before their data became too
    /// large.
    pub reached: usize,
}

/// Reads these deliveries in one round trip, until their data reaches this
/// size.
pub async fn read(client: &Client, wanted: &[ClaimKey], bytes_max: usize) -> Result<ReadClaims> {
    if wanted.is_empty() {
        return Ok(ReadClaims { claims: Vec::new(), reached: 0 });
    }
    let nos: Vec<i64> = wanted.iter().map(|one| one.no).collect();
    let events: Vec<i64> = wanted.iter().map(|one| one.event).collect();
    let bytes_max = i64::try_from(bytes_max).unwrap_or(i64::MAX);
    let (these, those) = ([bound(&nos)], [bound(&events), bound(&bytes_max)]);
    let (waiting, events) = tokio::join!(
        biased;
        with_timeout(client.query_typed(READ_CLAIMS.call(), &these)),
        with_timeout(client.query_typed(include_str!("sql/read_events.sql"), &those)),
    );
    let (waiting, events) = (waiting?, events?);
    let events: HashMap<i64, &Row> = events.iter().map(|row| (row.get(0), row)).collect();
    let reached = wanted.iter().position(|one| !events.contains_key(&one.event)).unwrap_or(wanted.len());
    // A delivery that only a newer version can send waits for a node of it.
    let claims = waiting.iter().filter_map(|row| claim_from(row, events.get(&row.get(8))?).ok()).collect();
    Ok(ReadClaims { claims, reached })
}

fn claim_from(row: &Row, event: &Row) -> Result<Claim> {
    let checksum: Option<i64> = event.get(8);
    let event = Event {
        id: EventId::from_stored(event.get(1)),
        tenant: stored_tenant(row.get(7)),
        event_type: EventType::from_stored(event.get(2)),
        key: event.get::<_, Option<&str>>(3).map(EventKey::from_stored),
        timestamp: event.get(4),
        schema_version: event.get(5),
        // The expiry of the delivery counts, not that of the event.
        expires_at: None,
        endpoints: None,
        accepted_at: at(event.get(6)),
        data: Bytes::copy_from_slice(event.get(7)),
    };
    let is_damaged = event.is_damaged(checksum);
    Ok(Claim {
        id: delivery_id(row.get(0), row.get(1)),
        endpoint: EndpointId(row.get::<_, Uuid>(2)),
        event: Arc::new(event),
        format: format_of(row.get::<_, i16>(3).into())?,
        lane: row.get::<_, Option<&str>>(4).map(Arc::from),
        seq: row.get::<_, Option<i64>>(5).map(|seq| seq as u64),
        due_at: at(row.get(6)),
        is_urgent: row.get(9),
        expires_at: row.get::<_, Option<i64>>(10).map(at),
        progress: progress_from(row, 11),
        is_damaged,
    })
}
