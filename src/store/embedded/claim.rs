//! Reads due deliveries, with everything that an attempt needs.

use std::sync::Arc;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::rows::{
    PROGRESS, RequestColumns, at, delivery_id, format_of, id_bytes, known, millis, progress_from, unknown_code, uuid_of,
};
use crate::model::delivery::{BodyFormat, Progress};
use crate::model::event::{Event, EventKey, EventType};
use crate::model::id::{EndpointId, EventId, TenantId};
use crate::store::{Claim, DuePage, DueQuery};

/// Reads an endpoint's due deliveries, oldest first.
///
/// The index `deliveries_due` serves it. The deliveries that the caller holds
/// are at the front of the index and have to be skipped, so `except` must stay
/// small.
pub fn read_due(db: &Connection, ask: &DueQuery) -> rusqlite::Result<DuePage> {
    let endpoint: Option<i64> = db
        .prepare_cached("SELECT no FROM endpoints WHERE id = ? AND deleted_at IS NULL")?
        .query_row([id_bytes(ask.endpoint.0)], |row| row.get(0))
        .optional()?;
    let Some(endpoint) = endpoint else { return Ok(DuePage::default()) };
    let mut statement = db.prepare_cached(if ask.urgent_only {
        "SELECT no, due_at, created_at FROM deliveries INDEXED BY deliveries_urgent
         WHERE endpoint = ? AND state = 0 AND urgent = 1 AND behind = 0 ORDER BY due_at"
    } else {
        "SELECT no, due_at, created_at FROM deliveries INDEXED BY deliveries_due
         WHERE endpoint = ? AND state = 0 AND behind = 0 ORDER BY due_at"
    })?;
    let mut rows = statement.query([endpoint])?;
    let mut page = DuePage::default();
    let mut bytes = 0;
    while let Some(row) = rows.next()? {
        let (no, due_at): (i64, i64) = (row.get(0)?, row.get(1)?);
        if ask.except.contains(&delivery_id(no, row.get(2)?)) {
            continue;
        }
        let is_enough = page.claims.len() >= ask.limit || bytes >= ask.bytes_max;
        if due_at > millis(ask.until) || is_enough {
            page.next_due = Some(at(due_at));
            break;
        }
        // A delivery that only a newer version can send waits for that version.
        let Ok(claim) = known(claim(db, no))? else { continue };
        bytes += claim.event.data.len();
        page.claims.push(claim);
    }
    if ask.urgent_only {
        page.next_urgent = page.next_due.take();
        let sql = "SELECT min(due_at) FROM deliveries INDEXED BY deliveries_due
                   WHERE endpoint = ? AND state = 0 AND behind = 0";
        page.next_due = db.prepare_cached(sql)?.query_row([endpoint], |row| row.get::<_, Option<i64>>(0))?.map(at);
    }
    Ok(page)
}

/// Reads one delivery as a claim.
pub fn claim(db: &Connection, no: i64) -> rusqlite::Result<Claim> {
    let sql = format!(
        "SELECT d.no, d.created_at, p.id, d.format, d.lane, d.seq, d.due_at, t.id,
                e.id, e.type, e.key, e.timestamp, e.schema_version, e.accepted_at, e.data,
                d.urgent, d.expires_at, {PROGRESS}, e.checksum, d.checksum
         FROM deliveries d JOIN events e ON e.no = d.event
              JOIN endpoints p ON p.no = d.endpoint JOIN tenants t ON t.no = d.tenant
         WHERE d.no = ?"
    );
    match db.prepare_cached(&sql)?.query_row(params![no], claim_from) {
        Err(problem) if is_unreadable(&problem) => unreadable(db, no),
        claim => claim,
    }
}

/// Returns whether a row exists but holds values of the wrong kind.
fn is_unreadable(problem: &rusqlite::Error) -> bool {
    use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, Utf8Error};
    unknown_code(problem).is_none()
        && matches!(
            problem,
            FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..) | Utf8Error(..)
        )
}

/// Returns a claim on a delivery whose rows cannot be read. Such a delivery can
/// only be ended.
fn unreadable(db: &Connection, no: i64) -> rusqlite::Result<Claim> {
    let sql = "SELECT d.created_at, p.id, t.id, d.due_at FROM deliveries d
               JOIN endpoints p ON p.no = d.endpoint JOIN tenants t ON t.no = d.tenant WHERE d.no = ?";
    db.query_row(sql, [no], |row| {
        let event = Event {
            id: EventId::from_stored("unreadable"),
            tenant: stored_tenant(&row.get::<_, String>(2)?),
            event_type: EventType::from_stored("unreadable"),
            key: None,
            timestamp: None,
            schema_version: None,
            expires_at: None,
            endpoints: None,
            accepted_at: at(row.get(0)?),
            data: Bytes::new(),
        };
        Ok(Claim {
            id: delivery_id(no, row.get(0)?),
            endpoint: EndpointId(uuid_of(row.get(1)?)),
            event: Arc::new(event),
            format: BodyFormat::Envelope,
            lane: None,
            seq: None,
            due_at: at(row.get(3)?),
            is_urgent: false,
            expires_at: None,
            progress: Progress::default(),
            is_damaged: true,
        })
    })
}

fn claim_from(row: &Row<'_>) -> rusqlite::Result<Claim> {
    let event = Event {
        id: EventId::from_stored(&row.get::<_, String>(8)?),
        tenant: stored_tenant(&row.get::<_, String>(7)?),
        event_type: EventType::from_stored(&row.get::<_, String>(9)?),
        key: row.get::<_, Option<String>>(10)?.map(|key| EventKey::from_stored(&key)),
        timestamp: row.get(11)?,
        schema_version: row.get(12)?,
        // The expiry of the delivery counts, not that of the event.
        expires_at: None,
        endpoints: None,
        accepted_at: at(row.get(13)?),
        data: Bytes::from(row.get::<_, Vec<u8>>(14)?),
    };
    let sent = RequestColumns { no: row.get(0)?, created_at: row.get(1)?, format: row.get(3)?, seq: row.get(5)? };
    let (of_event, of_delivery): (Option<i64>, Option<i64>) = (row.get(27)?, row.get(28)?);
    let is_row_damaged = of_event.zip(of_delivery).is_some_and(|(event, row)| sent.checksum(event) != row);
    let is_damaged = is_row_damaged || event.is_damaged(of_event);
    // An unknown format in a damaged row is damage, not a newer version's.
    let format = match format_of(row.get(3)?) {
        Err(_) if is_damaged => BodyFormat::Envelope,
        format => format?,
    };
    Ok(Claim {
        id: delivery_id(row.get(0)?, row.get(1)?),
        endpoint: EndpointId(uuid_of(row.get(2)?)),
        event: Arc::new(event),
        format,
        lane: row.get::<_, Option<String>>(4)?.map(Arc::from),
        seq: row.get::<_, Option<i64>>(5)?.map(|seq| seq as u64),
        due_at: at(row.get(6)?),
        is_urgent: row.get(15)?,
        expires_at: row.get::<_, Option<i64>>(16)?.map(at),
        progress: progress_from(row, 17)?,
        is_damaged,
    })
}

/// Parses the id of a tenant from a row.
pub fn stored_tenant(text: &str) -> TenantId {
    text.parse().expect("stored tenant ids were checked")
}
