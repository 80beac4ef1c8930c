//! Reads due deliveries, with everything that an attempt needs.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension};

use super::rows::{RequestColumns, at, delivery_id, format_of, id_bytes, millis, separate_unknown_codes, unknown_code};
use crate::model::delivery::{BodyFormat, Progress};
use crate::model::event::{Event, EventType};
use crate::model::id::{EndpointId, EventId, TenantId};
use crate::store::delivery_columns::ClaimColumns;
use crate::store::event_row::EventRow;
use crate::store::row::{SqliteColumns, joined, row};
use crate::store::stored_value::StoredCode;
use crate::store::{Claim, DuePage, DueQuery};

row! {
    /// What decides whether a delivery is due.
    sqlite struct EmbeddedDueRow {
        no: i64 = "no",
        due_at: i64 = "due_at",
        created_at: i64 = "created_at",
    }
}

const DUE_SQL: &str = joined!(
    " "; "SELECT", EmbeddedDueRow::COLUMNS,
    "FROM deliveries INDEXED BY deliveries_due WHERE endpoint = ? AND state = 0 AND behind = 0 ORDER BY due_at",
);

const URGENT_SQL: &str = joined!(
    " "; "SELECT", EmbeddedDueRow::COLUMNS,
    "FROM deliveries INDEXED BY deliveries_urgent
     WHERE endpoint = ? AND state = 0 AND urgent = 1 AND behind = 0 ORDER BY due_at",
);

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
    let mut statement = db.prepare_cached(if ask.urgent_only { URGENT_SQL } else { DUE_SQL })?;
    let mut rows = statement.query([endpoint])?;
    let mut page = DuePage::default();
    let mut bytes = 0;
    while let Some(row) = rows.next()? {
        let EmbeddedDueRow { no, due_at, created_at } = EmbeddedDueRow::read(row)?;
        if ask.except.contains(&delivery_id(no, created_at)) {
            continue;
        }
        let is_enough = page.claims.len() >= ask.limit || bytes >= ask.bytes_max;
        if due_at > millis(ask.until) || is_enough {
            page.next_due = Some(at(due_at));
            break;
        }
        // A delivery that only a newer version can send waits for that version.
        let Ok(claim) = separate_unknown_codes(claim(db, no))? else { continue };
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

row! {
    /// A delivery with its event, as an attempt needs it.
    sqlite struct EmbeddedClaimRow from "FROM deliveries d JOIN events e ON e.no = d.event
              JOIN endpoints p ON p.no = d.endpoint JOIN tenants t ON t.no = d.tenant
         WHERE d.no = ?" {
        delivery: ClaimColumns = ClaimColumns::COLUMNS,
        event: EventRow = EventRow::COLUMNS,
        /// Checksum of the delivery's row; older versions wrote none.
        checksum: Option<i64> = "d.checksum",
    }
}

/// Reads one delivery as a claim.
pub fn claim(db: &Connection, no: i64) -> rusqlite::Result<Claim> {
    match db.prepare_cached(EmbeddedClaimRow::SQL)?.query_row([no], EmbeddedClaimRow::read) {
        Err(problem) if is_unreadable(&problem) => unreadable(db, no),
        row => row?.claim(),
    }
}

impl EmbeddedClaimRow {
    fn claim(self) -> rusqlite::Result<Claim> {
        let ClaimColumns { no, created_at, format: StoredCode(format), seq, .. } = self.delivery;
        let sent = RequestColumns { no, created_at, format, seq };
        let checksums = self.event.checksum.zip(self.checksum);
        let is_row_damaged = checksums.is_some_and(|(event, row)| sent.checksum(event) != row);
        let (event, is_event_damaged) = self.event.event(self.delivery.tenant.clone());
        let is_damaged = is_row_damaged || is_event_damaged;
        // An unknown format in a damaged row is damage, not a newer version's.
        let format = match format_of(format) {
            Err(_) if is_damaged => BodyFormat::Envelope,
            format => format?,
        };
        Ok(self.delivery.claim(event, format, is_damaged))
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

row! {
    /// The columns of a delivery that can be trusted even if others cannot.
    sqlite struct UnreadableRow from "FROM deliveries d
               JOIN endpoints p ON p.no = d.endpoint JOIN tenants t ON t.no = d.tenant WHERE d.no = ?" {
        created_at: i64 = "d.created_at",
        endpoint: EndpointId = "p.id",
        tenant: TenantId = "t.id",
        due_at: i64 = "d.due_at",
    }
}

/// Returns a claim on a delivery whose rows cannot be read. Such a delivery can
/// only be ended.
fn unreadable(db: &Connection, no: i64) -> rusqlite::Result<Claim> {
    let row = db.query_row(UnreadableRow::SQL, [no], UnreadableRow::read)?;
    let event_type = EventType::from_stored("unreadable");
    let event = Event::empty(row.tenant, EventId::from_stored("unreadable"), event_type, at(row.created_at));
    Ok(Claim {
        id: delivery_id(no, row.created_at),
        endpoint: row.endpoint,
        event: Arc::new(event),
        format: BodyFormat::Envelope,
        lane: None,
        seq: None,
        due_at: at(row.due_at),
        is_urgent: false,
        expires_at: None,
        progress: Progress::default(),
        is_damaged: true,
    })
}
