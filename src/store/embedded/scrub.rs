//! Compares events with their checksums, and fills in missing checksums, which
//! older versions did not write.

use bytes::Bytes;
use rusqlite::{Connection, Row, params};

use super::claim::stored_tenant;
use super::rows::{RequestColumns, at};
use crate::model::event::{Event, EventKey, EventType};
use crate::model::id::EventId;
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

/// Compares the next events with their checksums. Served by the primary key.
pub fn compare(db: &Connection, step: ScrubStep) -> rusqlite::Result<ChecksumComparison> {
    let sql = "SELECT e.no, t.id, e.id, e.type, e.key, e.timestamp, e.schema_version, e.accepted_at, e.data,
                      e.checksum, e.first_delivery, e.deliveries
               FROM events e JOIN tenants t ON t.no = e.tenant WHERE e.no > ? ORDER BY e.no LIMIT ?";
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query(params![step.after.cast_signed(), step.limit as i64])?;
    let mut comparison = ChecksumComparison::default();
    let mut last = None;
    while let Some(row) = rows.next()? {
        let no: i64 = row.get(0)?;
        last = u64::try_from(no).ok();
        comparison.scrubbed.checked += 1;
        let event = event_from(row)?;
        match row.get::<_, Option<i64>>(9)? {
            None if !event.is_expunged() => {
                let first: i64 = row.get(10)?;
                let deliveries = first..first.saturating_add(row.get(11)?);
                comparison.unfilled.push(MissingChecksum { no, checksum: event.checksum(), deliveries });
            }
            stored if event.is_damaged(stored) => comparison.scrubbed.damaged.push((event.tenant, event.id)),
            _ => {}
        }
    }
    comparison.scrubbed.filled = comparison.unfilled.len();
    comparison.scrubbed.next = last.filter(|_| comparison.scrubbed.checked == step.limit);
    Ok(comparison)
}

/// Writes the missing checksums of events and of their deliveries.
pub fn fill(db: &Connection, events: &[MissingChecksum]) -> rusqlite::Result<()> {
    for event in events {
        db.prepare_cached("UPDATE events SET checksum = ? WHERE no = ? AND checksum IS NULL AND length(data) > 0")?
            .execute([event.checksum, event.no])?;
        let sql = "SELECT no, created_at, format, seq FROM deliveries WHERE no >= ? AND no < ? AND event = ?";
        let mut statement = db.prepare_cached(sql)?;
        let rows = statement.query_map([event.deliveries.start, event.deliveries.end, event.no], |row| {
            Ok(RequestColumns { no: row.get(0)?, created_at: row.get(1)?, format: row.get(2)?, seq: row.get(3)? })
        })?;
        for sent in rows.collect::<rusqlite::Result<Vec<_>>>()? {
            db.prepare_cached("UPDATE deliveries SET checksum = ? WHERE no = ?")?
                .execute([sent.checksum(event.checksum), sent.no])?;
        }
    }
    Ok(())
}

fn event_from(row: &Row<'_>) -> rusqlite::Result<Event> {
    Ok(Event {
        tenant: stored_tenant(&row.get::<_, String>(1)?),
        id: EventId::from_stored(&row.get::<_, String>(2)?),
        event_type: EventType::from_stored(&row.get::<_, String>(3)?),
        key: row.get::<_, Option<String>>(4)?.map(|key| EventKey::from_stored(&key)),
        timestamp: row.get(5)?,
        schema_version: row.get(6)?,
        expires_at: None,
        endpoints: None,
        accepted_at: at(row.get(7)?),
        data: Bytes::from(row.get::<_, Vec<u8>>(8)?),
    })
}
