//! Finds waiting deliveries that may have expired.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::rows::{FORMAT_CODE_MAX, PROGRESS, at, delivery_id, delivery_no, millis, progress_from, uuid_of};
use crate::model::id::{EndpointId, TenantId};
use crate::store::{OverdueDelivery, OverduePage, UntriedPage, UntriedQuery};

/// Reads the deliveries whose expiry is to be checked, the longest overdue
/// first. Served by `deliveries_overdue`. Deliveries of a deleted endpoint are
/// skipped: they are about to be cancelled.
pub fn read(db: &Connection, now: Timestamp, limit: usize) -> rusqlite::Result<OverduePage> {
    let sql = format!(
        "SELECT d.no, d.created_at, p.id, d.expires_at, {PROGRESS}, d.look_at
         FROM deliveries d INDEXED BY deliveries_overdue JOIN endpoints p ON p.no = d.endpoint
         WHERE d.state = 0 AND d.look_at IS NOT NULL AND p.deleted_at IS NULL AND d.format <= {FORMAT_CODE_MAX}
         ORDER BY d.look_at LIMIT ?"
    );
    let mut statement = db.prepare_cached(&sql)?;
    let mut rows = statement.query([limit as i64 + 1])?;
    let mut page = OverduePage::default();
    while let Some(row) = rows.next()? {
        let expiry_check_at: i64 = row.get(14)?;
        if expiry_check_at > millis(now) || page.found.len() == limit {
            page.next_at = Some(at(expiry_check_at));
            break;
        }
        page.found.push(overdue_from(row)?);
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
    let sql = format!(
        "SELECT d.no, d.created_at, p.id, d.expires_at, {PROGRESS}
         FROM deliveries d INDEXED BY deliveries_undelivered JOIN endpoints p ON p.no = d.endpoint
         WHERE d.tenant = ? AND d.state = 0 AND d.state <> 1 AND d.no > ? AND p.deleted_at IS NULL
               AND d.format <= {FORMAT_CODE_MAX} ORDER BY d.no"
    );
    let mut statement = db.prepare_cached(&sql)?;
    let mut rows = statement.query(params![tenant, query.after.map_or(0, delivery_no)])?;
    let mut page = UntriedPage::default();
    for looked_at in 1.. {
        let Some(row) = rows.next()? else { break };
        let created_at: i64 = row.get(1)?;
        // Younger deliveries cannot have waited long enough.
        if created_at >= millis(query.before) {
            break;
        }
        let overdue = overdue_from(row)?;
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

fn overdue_from(row: &Row<'_>) -> rusqlite::Result<OverdueDelivery> {
    Ok(OverdueDelivery {
        id: delivery_id(row.get(0)?, row.get(1)?),
        endpoint: EndpointId(uuid_of(row.get(2)?)),
        expires_at: row.get::<_, Option<i64>>(3)?.map(at),
        progress: progress_from(row, 4)?,
    })
}
