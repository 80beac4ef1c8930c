//! Finds waiting deliveries that may have expired.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::rows::{FORMAT_CODE_MAX, at, delivery_no, millis};
use crate::model::id::TenantId;
use crate::store::delivery_columns::OverdueColumns;
use crate::store::row::{SqliteColumns, row};
use crate::store::{OverdueDelivery, OverduePage, UntriedPage, UntriedQuery};

row! {
    /// A delivery whose expiry is to be checked.
    sqlite struct EmbeddedOverdueRow from "FROM deliveries d INDEXED BY deliveries_overdue JOIN endpoints p ON p.no = d.endpoint
              LEFT JOIN backfilled b ON b.event = d.event AND b.endpoint = d.endpoint
         WHERE d.state = 0 AND d.expiry_check_at IS NOT NULL AND p.deleted_at IS NULL AND d.format <= ?
         ORDER BY d.expiry_check_at LIMIT ?" {
        delivery: OverdueColumns = OverdueColumns::COLUMNS,
        expiry_check_at: i64 = "d.expiry_check_at",
    }
}

row! {
    /// A waiting delivery of a tenant.
    sqlite struct UntriedRow from "FROM deliveries d INDEXED BY deliveries_undelivered
              JOIN endpoints p ON p.no = d.endpoint
              LEFT JOIN backfilled b ON b.event = d.event AND b.endpoint = d.endpoint
         WHERE d.tenant = ? AND d.state = 0 AND d.state <> 1 AND d.no > ? AND p.deleted_at IS NULL
               AND d.format <= ? ORDER BY d.no" {
        delivery: OverdueColumns = OverdueColumns::COLUMNS,
    }
}

/// Reads the deliveries whose expiry is to be checked, the longest overdue
/// first. Served by `deliveries_overdue`. Deliveries of a deleted endpoint are
/// skipped: they are about to be cancelled.
pub fn read(db: &Connection, now: Timestamp, limit: usize) -> rusqlite::Result<OverduePage> {
    let mut statement = db.prepare_cached(EmbeddedOverdueRow::SQL)?;
    let rows = statement.query_map(params![FORMAT_CODE_MAX, limit as i64 + 1], EmbeddedOverdueRow::read)?;
    let mut page = OverduePage::default();
    for row in rows {
        let row = row?;
        if row.expiry_check_at > millis(now) || page.found.len() == limit {
            page.next_at = Some(at(row.expiry_check_at));
            break;
        }
        page.found.push(row.delivery.into());
    }
    Ok(page)
}

/// Largest number of rows that one page of untried deliveries reads.
const ROWS_MAX: usize = 10_000;

/// Reads waiting deliveries that have had no attempt, oldest first. Served by
/// `deliveries_undelivered`, whose rows are in order of creation.
pub fn read_untried(db: &Connection, tenant: &TenantId, query: &UntriedQuery) -> rusqlite::Result<UntriedPage> {
    let sql = "SELECT no FROM tenants WHERE id = ? AND deleted_at IS NULL";
    let tenant: Option<i64> = db.prepare_cached(sql)?.query_row([tenant.as_str()], |row| row.get(0)).optional()?;
    let mut statement = db.prepare_cached(UntriedRow::SQL)?;
    let after = query.after.map_or(0, delivery_no);
    let rows = statement.query_map(params![tenant, after, FORMAT_CODE_MAX], UntriedRow::read)?;
    let mut page = UntriedPage::default();
    for (looked_at, row) in (1..).zip(rows) {
        let UntriedRow { delivery } = row?;
        // Younger deliveries cannot have waited long enough.
        if delivery.created_at >= millis(query.before) {
            break;
        }
        let overdue = OverdueDelivery::from(delivery);
        let id = overdue.id;
        let is_old = overdue.progress.begun_at.is_some_and(|begun| begun < query.before);
        if is_old && overdue.progress.age_from.is_none() {
            page.found.push(overdue);
        }
        if page.found.len() == query.limit || looked_at == ROWS_MAX {
            page.next = Some(id);
            break;
        }
    }
    Ok(page)
}
