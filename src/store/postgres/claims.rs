//! Reads what attempts need: waiting deliveries, and their events.
//!
//! Events are asked for by their numbers alone, so that the server looks into
//! the days that hold them and plans for no others.

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
    /// The delivery.
    pub no: i64,
    /// The event.
    pub event: i64,
}

/// What was read.
pub struct ReadClaims {
    /// In the order in which they are due. What was settled or cancelled
    /// since is not among them.
    pub claims: Vec<Claim>,
    /// How many of those wanted were looked at, before their data became too
    /// much.
    pub reached: usize,
}

/// Reads these, in one round trip, until their data is as much as this.
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
    // What only a newer version knows how to send waits for a node of that.
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
        // What counts is whether it is over for this delivery.
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
