//! Lists a tenant's events.

use bytes::Bytes;
use tokio_postgres::Row;

use super::walk::{ListWalk, ScannedRows, WalkStep};
use super::{ROWS_PER_PAGE_MAX, bound_of, cursor_no};
use crate::model::event::{Event, EventKey, EventType};
use crate::model::id::{EventId, TenantId};
use crate::store::postgres::PostgresState;
use crate::store::postgres::read_query::read_rows;
use crate::store::postgres::rows::{at, count, withheld_from};
use crate::store::postgres::transaction::bind;
use crate::store::{EventQuery, EventRecord, ListPage, PageRequest, Result};

/// Number of bytes of data after which a page of events ends. The last event is
/// never cut.
const BYTES_PER_PAGE_MAX: usize = 4 * 1_024 * 1_024;

/// The columns that [`event_from`] reads.
pub const COLUMNS: &str = "e.no, e.id, e.type, e.key, e.timestamp, e.schema_version, e.endpoints, e.accepted_at, \
                           e.deliveries, e.data, e.expires_at, e.checksum, e.withheld";

/// Reads an event from [`COLUMNS`], which begin at `first`.
pub fn event_from(row: &Row, first: usize, tenant: &TenantId) -> Result<EventRecord> {
    let endpoints: Option<&str> = row.get(first + 6);
    let event = Event {
        id: EventId::from_stored(row.get(first + 1)),
        tenant: tenant.clone(),
        event_type: EventType::from_stored(row.get(first + 2)),
        key: row.get::<_, Option<&str>>(first + 3).map(EventKey::from_stored),
        timestamp: row.get(first + 4),
        schema_version: row.get(first + 5),
        endpoints: endpoints.and_then(|ids| serde_json::from_str(ids).ok()),
        accepted_at: at(row.get(first + 7)),
        data: Bytes::copy_from_slice(row.get(first + 9)),
        expires_at: row.get::<_, Option<i64>>(first + 10).map(at),
    };
    let is_damaged = event.is_damaged(row.get(first + 11));
    let withheld = withheld_from(event.is_expunged(), row.get::<_, Option<i16>>(first + 12).map(i64::from))?;
    Ok(EventRecord { event, withheld, deliveries: count(row, first + 8), is_damaged })
}

/// Returns a page of a tenant's events, newest first.
pub async fn list(
    shared: &PostgresState,
    tenant: &TenantId,
    query: &EventQuery,
    page: &PageRequest,
) -> Result<ListPage<EventRecord>> {
    let mut found = ListPage { data: Vec::new(), next: None };
    let cursor = cursor_no(page)?;
    let Some(tenant_no) = shared.index().tenant_no(tenant) else { return Ok(found) };
    if page.limit == 0 {
        return Ok(found);
    }
    let is_filtered = query.event_type.is_some() || query.key.is_some();
    let (since, until) = (bound_of(query.since), bound_of(query.until));
    let mut walk = ListWalk::begin(cursor, query.since, query.until, ROWS_PER_PAGE_MAX);
    let mut bytes = 0;
    loop {
        let wanted = page.limit - found.data.len();
        let look = walk.rows_to_scan(wanted, is_filtered);
        let (look_no, wanted, bytes_left) = (look as i64, wanted as i64, (BYTES_PER_PAGE_MAX - bytes) as i64);
        let bound = bind![
            tenant_no,
            walk.from,
            walk.below,
            look_no,
            wanted,
            query.event_type,
            query.key,
            since,
            until,
            bytes_left
        ];
        let rows = read_rows(shared, include_str!("../sql/events.sql"), bound).await?;
        let mut last = None;
        for row in rows.iter().filter(|row| row.get::<_, Option<i64>>(3).is_some()) {
            let record = event_from(row, 3, tenant)?;
            bytes += record.event.data.len();
            last = Some(row.get::<_, i64>(3));
            found.data.push(record);
        }
        if found.data.len() == page.limit || bytes >= BYTES_PER_PAGE_MAX {
            found.next = last.map(|no| no.to_string());
            return Ok(found);
        }
        match walk.step(look, scanned_rows(&rows)) {
            WalkStep::On => {}
            WalkStep::Pause(below) => {
                found.next = Some(below.to_string());
                return Ok(found);
            }
            WalkStep::End => return Ok(found),
        }
    }
}

/// Reads from the first three columns which rows a statement scanned.
fn scanned_rows(rows: &[Row]) -> ScannedRows {
    match rows.first() {
        None => ScannedRows { rows: 0, lowest: None, oldest: None },
        Some(row) => ScannedRows { rows: row.get::<_, i64>(0).max(0) as usize, lowest: row.get(1), oldest: row.get(2) },
    }
}
