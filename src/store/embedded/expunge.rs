//! Expunges events: deletes an event's data and leaves its record.

use rusqlite::{OptionalExtension, params};

use super::deleted_tenant::keep_pages_if_unpurged;
use super::forget::backfilled;
use super::writer::WriteTransaction;
use crate::model::audit::{AuditAction, AuditedAction, Initiator};
use crate::model::id::{EventId, TenantId};
use crate::store::codes::EXPUNGED;
use crate::store::row::{SqliteColumns, row};
use crate::store::{Error, MissingResource, Result};

row! {
    /// An event that is expunged.
    sqlite struct ExpungedRow from "FROM events e JOIN tenants t ON t.no = e.tenant
               WHERE t.id = ? AND t.deleted_at IS NULL AND e.id = ?" {
        no: i64 = "e.no",
        first: i64 = "e.first_delivery",
        below: i64 = "e.first_delivery + e.deliveries",
        tenant_no: i64 = "t.no",
        accepted_at: i64 = "e.accepted_at",
        bytes: i64 = "length(e.data)",
    }
}

/// Deletes an event's data, and what receivers answered to it. Returns whether
/// it was done: not while a delivery of the event waits. The bytes are
/// overwritten in their pages.
pub fn expunge(
    transaction: &mut WriteTransaction<'_>,
    by: &Initiator,
    tenant: &TenantId,
    id: &EventId,
) -> rusqlite::Result<Result<bool>> {
    let db = transaction.db;
    let row = db.query_row(ExpungedRow::SQL, params![tenant.as_str(), id.as_str()], ExpungedRow::read).optional()?;
    let Some(ExpungedRow { no, first, below, tenant_no, accepted_at, bytes }) = row else {
        return Ok(Err(Error::NotFound(MissingResource::Event)));
    };
    // Deliveries that wait for a deleted endpoint count as cancelled, even
    // before the sweep has changed their rows.
    let sql = "SELECT EXISTS (SELECT 1 FROM deliveries d JOIN endpoints p ON p.no = d.endpoint
               WHERE d.no >= ? AND d.no < ? AND d.state = 0 AND p.deleted_at IS NULL)";
    let others = backfilled(db, no)?.into_iter().map(|delivery| (delivery, delivery + 1));
    let ranges: Vec<(i64, i64)> = others.chain([(first, below)]).collect();
    for (first, below) in &ranges {
        if db.query_row(sql, [first, below], |row| row.get(0))? {
            return Ok(Ok(false));
        }
    }
    transaction.record(by, tenant_no, &AuditedAction::new(AuditAction::EventExpunged, tenant, id))?;
    // Freed pages are overwritten with zeros until this is switched off again.
    db.execute_batch("PRAGMA secure_delete = ON")?;
    let wiped = wipe(transaction, no, &ranges);
    keep_pages_if_unpurged(db)?;
    transaction.count_stored(tenant_no, accepted_at, -bytes);
    wiped.map(|()| Ok(true))
}

fn wipe(transaction: &WriteTransaction<'_>, no: i64, ranges: &[(i64, i64)]) -> rusqlite::Result<()> {
    transaction.db.execute("UPDATE events SET data = x'', data_withheld = ? WHERE no = ?", [EXPUNGED, no])?;
    let sql = "UPDATE attempts SET record = json_remove(record, '$.response_body') WHERE no >= ? AND no < ?";
    for (first, below) in ranges {
        transaction.db.execute(sql, [first << 20, below << 20])?;
    }
    Ok(())
}
