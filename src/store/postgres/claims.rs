//! Reads waiting deliveries and their events, as attempts need them.
//!
//! Events are asked for by their numbers alone, so that the server reads only
//! the partitions that hold them.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::rows::format_of;
use super::stored_function::{LOOKUPS, NamedSql, StoredFunction};
use super::transaction::{bound, with_timeout};
use crate::store::delivery_columns::ClaimColumns;
use crate::store::event_row::EventRow;
use crate::store::row::{PostgresColumns, row};
use crate::store::{ReadClaims, Result};

/// A waiting delivery and its event, by their numbers.
#[derive(Debug, Clone, Copy)]
pub struct ClaimKey {
    /// Number of the delivery.
    pub no: i64,
    /// Number of its event.
    pub event: i64,
}

/// Reads these deliveries in one round trip, until their data reaches this
/// size.
pub async fn read(client: &Client, wanted: &[ClaimKey], bytes_max: usize) -> Result<ReadClaims> {
    if wanted.is_empty() {
        return Ok(ReadClaims::default());
    }
    let nos: Vec<i64> = wanted.iter().map(|one| one.no).collect();
    let mut seen = HashSet::new();
    let events: Vec<i64> = wanted.iter().map(|one| one.event).filter(|event| seen.insert(*event)).collect();
    let bytes_max = i64::try_from(bytes_max).unwrap_or(i64::MAX);
    let (these, those) = ([bound(&nos)], [bound(&events), bound(&bytes_max)]);
    let (waiting, events) = tokio::join!(
        biased;
        with_timeout(client.query_typed(READ_CLAIMS.call(), &these)),
        with_timeout(client.query_typed(&READ_EVENTS, &those)),
    );
    let (waiting, events) = (waiting?, events?);
    // Deliveries of one event share its data.
    let events = events.iter().map(EventOfClaim::read);
    let events: HashMap<i64, EventRow> = events.map(|row| (row.no, row.event)).collect();
    let reached = wanted.iter().position(|one| !events.contains_key(&one.event)).unwrap_or(wanted.len());
    // A delivery that only a newer version can send waits for a node of it.
    let claims = waiting.iter().map(PostgresClaimRow::read).filter_map(|row| {
        let event = events.get(&row.event)?.clone();
        let (event, is_damaged) = event.event(row.delivery.tenant.clone());
        let format = format_of(row.delivery.format.0).ok()?;
        Some(row.delivery.claim(event, format, is_damaged))
    });
    Ok(ReadClaims { claims: claims.collect(), reached })
}

row! {
    /// What an attempt needs of a delivery, and the number of its event.
    postgres struct PostgresClaimRow {
        event: i64 = "d.event",
        delivery: ClaimColumns = ClaimColumns::COLUMNS,
    }
}

row! {
    /// An event with its number.
    postgres struct EventOfClaim {
        no: i64 = "e.no",
        event: EventRow = EventRow::COLUMNS,
    }
}

/// Reads what an attempt needs, except the event: `sql/read_claims.sql`.
pub static READ_CLAIMS: LazyLock<StoredFunction> = LazyLock::new(|| {
    let sql = NamedSql::new(include_str!("sql/read_claims.sql")).parameter("deliveries", Type::INT8_ARRAY);
    StoredFunction::query::<PostgresClaimRow>("read_claims", LOOKUPS, sql.replace("columns", PostgresClaimRow::COLUMNS))
});

static READ_EVENTS: LazyLock<String> = LazyLock::new(|| {
    NamedSql::new(include_str!("sql/read_events.sql")).replace("columns", EventOfClaim::COLUMNS).text()
});
