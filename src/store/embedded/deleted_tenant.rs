//! What a deleted tenant leaves until its records are forgotten, or purged.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::rows::millis;
use crate::model::id::{JobId, TenantId};

/// Returns the job that purges a tenant with this id, if there is one.
pub fn open_purge(db: &Connection, tenant: &TenantId) -> rusqlite::Result<Option<JobId>> {
    let sql = "SELECT purge_job FROM tenants WHERE purge_job IS NOT NULL AND id = ? LIMIT 1";
    db.prepare_cached(sql)?.query_row([tenant.as_str()], |row| row.get(0)).optional()
}

/// Whether any tenant is being purged.
pub fn is_purging(db: &Connection) -> rusqlite::Result<bool> {
    db.prepare_cached("SELECT 1 FROM tenants WHERE purge_job IS NOT NULL")?.exists([])
}

/// Lets SQLite keep freed bytes again, unless a tenant is being purged.
pub fn keep_pages_if_unpurged(db: &Connection) -> rusqlite::Result<()> {
    db.execute_batch(if is_purging(db)? { "PRAGMA secure_delete = ON" } else { "PRAGMA secure_delete = OFF" })
}

/// Deletes what belongs to a deleted tenant, but for events, deliveries and endpoints:
/// these are marked, and forgotten later.
pub fn delete_content(db: &Connection, tenant: i64, now: Timestamp) -> rusqlite::Result<()> {
    let sql = "DELETE FROM secrets WHERE endpoint IN (SELECT no FROM endpoints WHERE tenant = ?)";
    db.execute(sql, [tenant])?;
    let sql = "DELETE FROM endpoint_events WHERE endpoint IN (SELECT no FROM endpoints WHERE tenant = ?)";
    db.execute(sql, [tenant])?;
    let sql = "UPDATE endpoints SET deleted_at = ? WHERE tenant = ? AND deleted_at IS NULL";
    db.execute(sql, params![millis(now), tenant])?;
    db.execute("DELETE FROM tokens WHERE tenant = ?", [tenant])?;
    db.execute("DELETE FROM portals WHERE tenant = ?", [tenant]).map(drop)
}
