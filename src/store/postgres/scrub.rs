//! Compares events with their checksums, and fills in missing checksums, which
//! older versions did not write.

use super::PostgresState;
use super::read_query::read_rows;
use super::transaction::{bind, with_timeout};
use crate::model::id::TenantId;
use crate::store::event_row::EventRow;
use crate::store::row::{PostgresColumns, row};
use crate::store::{Result, ScrubStep, Scrubbed};

row! {
    /// An event that is compared with its checksum.
    postgres struct PostgresScrubRow {
        no: i64 = "e.no",
        tenant: TenantId = "t.id",
        event: EventRow = EventRow::COLUMNS,
    }
}

/// Compares the next events with their checksums.
pub async fn scrub(shared: &PostgresState, step: ScrubStep) -> Result<Scrubbed> {
    let (after, limit) = (step.after.cast_signed(), step.limit as i64);
    let sql = include_str!("sql/scrub.sql").replace("{columns}", PostgresScrubRow::COLUMNS);
    let rows = read_rows(shared, &sql, bind![after, limit]).await?;
    let (mut nos, mut checksums) = (Vec::new(), Vec::new());
    let mut scrubbed = Scrubbed { checked: rows.len(), ..Scrubbed::default() };
    let mut last = None;
    for row in rows.iter().map(PostgresScrubRow::read) {
        last = Some(row.no.cast_unsigned());
        let has_checksum = row.event.checksum.is_some();
        let (event, is_damaged) = row.event.event(row.tenant);
        if !has_checksum && !event.is_expunged() {
            nos.push(row.no);
            checksums.push(event.checksum());
        } else if is_damaged {
            scrubbed.damaged.push((event.tenant, event.id));
        }
    }
    scrubbed.filled = nos.len();
    if !nos.is_empty() {
        let client = shared.connection().await?;
        with_timeout(client.execute_typed(include_str!("sql/fill_checksums.sql"), bind![nos, checksums])).await?;
    }
    scrubbed.next = last.filter(|_| rows.len() == step.limit);
    Ok(scrubbed)
}
