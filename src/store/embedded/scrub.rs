//! Compares events with their checksums, and fills in missing checksums, which
//! older versions did not write.

use rusqlite::{Connection, params};

use super::rows::RequestColumns;
use crate::model::id::TenantId;
use crate::store::event_row::EventRow;
use crate::store::row::{SqliteColumns, row};
use crate::store::{ScrubStep, Scrubbed};

/// Result of comparing some events with their checksums.
#[derive(Default)]
pub struct ChecksumComparison {
    /// Counts and damaged events, for the caller.
    pub scrubbed: Scrubbed,
    /// Events without a checksum, with the one that they should have.
    pub unfilled: Vec<MissingChecksum>,
}

/// An event without a checksum, and the range of its deliveries.
pub struct MissingChecksum {
    no: i64,
    checksum: i64,
    deliveries: std::ops::Range<i64>,
}

row! {
    /// An event that is compared with its checksum.
    sqlite struct EmbeddedScrubRow from "FROM events e JOIN tenants t ON t.no = e.tenant WHERE e.no > ? ORDER BY e.no LIMIT ?" {
        no: i64 = "e.no",
        tenant: TenantId = "t.id",
        first_delivery: i64 = "e.first_delivery",
        event: EventRow = EventRow::COLUMNS,
    }
}

/// Compares the next events with their checksums. Served by the primary key.
pub fn compare(db: &Connection, step: ScrubStep) -> rusqlite::Result<ChecksumComparison> {
    let mut statement = db.prepare_cached(EmbeddedScrubRow::SQL)?;
    let rows = statement.query_map(params![step.after.cast_signed(), step.limit as i64], EmbeddedScrubRow::read)?;
    let mut comparison = ChecksumComparison::default();
    let mut last = None;
    for row in rows {
        let EmbeddedScrubRow { no, tenant, first_delivery: first, event } = row?;
        last = u64::try_from(no).ok();
        comparison.scrubbed.checked += 1;
        let deliveries = first..first.saturating_add(event.deliveries.into());
        let has_checksum = event.checksum.is_some();
        let (event, is_damaged) = event.event(tenant);
        if !has_checksum && !event.is_expunged() {
            comparison.unfilled.push(MissingChecksum { no, checksum: event.checksum(), deliveries });
        } else if is_damaged {
            comparison.scrubbed.damaged.push((event.tenant, event.id));
        }
    }
    comparison.scrubbed.filled = comparison.unfilled.len();
    comparison.scrubbed.next = last.filter(|_| comparison.scrubbed.checked == step.limit);
    Ok(comparison)
}

row! {
    /// A delivery of an event without a checksum.
    sqlite struct RequestRow from "FROM deliveries d WHERE d.no >= ? AND d.no < ? AND d.event = ?" {
        request: RequestColumns = RequestColumns::COLUMNS,
    }
}

/// Writes the missing checksums of events and of their deliveries.
pub fn fill(db: &Connection, events: &[MissingChecksum]) -> rusqlite::Result<()> {
    for event in events {
        db.prepare_cached("UPDATE events SET checksum = ? WHERE no = ? AND checksum IS NULL AND length(data) > 0")?
            .execute([event.checksum, event.no])?;
        let mut statement = db.prepare_cached(RequestRow::SQL)?;
        let of_event = [event.deliveries.start, event.deliveries.end, event.no];
        let rows = statement.query_map(of_event, |row| Ok(RequestRow::read(row)?.request))?;
        for sent in rows.collect::<rusqlite::Result<Vec<_>>>()? {
            db.prepare_cached("UPDATE deliveries SET checksum = ? WHERE no = ?")?
                .execute([sent.checksum(event.checksum), sent.no])?;
        }
    }
    Ok(())
}
