//! Lists a tenant's events.

use super::walk::{ListWalk, ScanColumns, ScannedRows, WalkStep};
use super::{ROWS_PER_PAGE_MAX, bound_of, cursor_no};
use crate::model::id::TenantId;
use crate::store::event_row::EventRow;
use crate::store::postgres::PostgresState;
use crate::store::postgres::read_query::read_rows;
use crate::store::postgres::rows::at;
use crate::store::postgres::rows::withheld_from;
use crate::store::postgres::stored_function::by_name;
use crate::store::row::{PostgresColumns, joined, row};
use crate::store::stored_value::StoredCode;
use crate::store::{EventQuery, EventRecord, ListPage, PageRequest, Result};

/// Number of bytes of data after which a page of events ends. The last event is
/// never cut.
const BYTES_PER_PAGE_MAX: usize = 4 * 1_024 * 1_024;

row! {
    /// Columns of an event that are shown.
    #[derive(Clone)]
    pub postgres struct PostgresEventRecordColumns {
        event: EventRow = EventRow::COLUMNS,
        data_withheld: Option<StoredCode> = "e.data_withheld",
    }
}

impl PostgresEventRecordColumns {
    /// Returns the event of this tenant.
    pub fn record(self, tenant: TenantId) -> Result<EventRecord> {
        let deliveries = self.event.deliveries.max(0) as u32;
        let (event, is_damaged) = self.event.event(tenant);
        let withheld = withheld_from(event.is_expunged(), self.data_withheld.map(|code| code.0))?;
        Ok(EventRecord { event, withheld, deliveries, is_damaged })
    }
}

/// The columns of a list: how far it has come, which event was found, if one
/// was, and the event.
const LIST: &str = joined!(", "; ScanColumns::COLUMNS, "f.no", PostgresEventRecordColumns::COLUMNS);

/// Returns a page of a tenant's events, newest first.
pub async fn list(
    shared: &PostgresState,
    tenant: &TenantId,
    query: &EventQuery,
    page: &PageRequest,
) -> Result<ListPage<EventRecord>> {
    let mut found = ListPage::empty();
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
        let (sql, bound) = by_name![&include_str!("../sql/events.sql").replace("{columns}", LIST);
            tenant = tenant_no,
            from = walk.from,
            below = walk.below,
            look = look_no,
            wanted = wanted,
            bytes = bytes_left,
            event_type = query.event_type,
            key = query.key,
            since = since,
            until = until,
        ];
        let rows = read_rows(shared, &sql, &bound).await?;
        let (mut last, mut scanned) = (None, ScannedRows::default());
        for row in &rows {
            let mut column = 0;
            scanned = ScanColumns::read_next(row, &mut column).into();
            let Some(no) = Option::<i64>::read_next(row, &mut column) else { continue };
            let record = PostgresEventRecordColumns::read_next(row, &mut column).record(tenant.clone())?;
            bytes += record.event.data.len();
            last = Some(no);
            found.data.push(record);
        }
        if found.data.len() == page.limit || bytes >= BYTES_PER_PAGE_MAX {
            found.next = last.map(|no| no.to_string());
            return Ok(found);
        }
        match walk.step(look, scanned) {
            WalkStep::On => {}
            WalkStep::Pause(below) => {
                found.next = Some(below.to_string());
                found.looked_back_to = scanned.oldest.map(at);
                return Ok(found);
            }
            WalkStep::End => return Ok(found),
        }
    }
}
