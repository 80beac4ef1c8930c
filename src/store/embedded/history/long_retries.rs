//! Counts deliveries that have been in retry for long.

use jiff::Timestamp;
use rusqlite::{Connection, params};

use crate::model::id::{EndpointId, TenantId};
use crate::store::LongRetries;
use crate::store::embedded::rows::millis;

/// Counts the deliveries of an endpoint, a tenant or all that still wait though
/// their first attempt began before this time.
pub fn count(
    db: &Connection,
    tenant: Option<&TenantId>,
    endpoint: Option<EndpointId>,
    began_before: Timestamp,
) -> rusqlite::Result<LongRetries> {
    // Those of all are found in the order in which they end, the oldest first.
    let waiting = match (tenant, endpoint) {
        (_, Some(_)) => {
            "INDEXED BY deliveries_due WHERE endpoint = (SELECT no FROM endpoints WHERE id = ?2) AND state = 0"
        }
        (Some(_), None) => {
            "INDEXED BY deliveries_undelivered
             WHERE tenant = (SELECT no FROM tenants WHERE id = ?1 AND deleted_at IS NULL) AND state = 0 AND state <> 1
             ORDER BY no"
        }
        (None, None) => {
            "INDEXED BY deliveries_overdue WHERE expiry_check_at IS NOT NULL AND state = 0 ORDER BY expiry_check_at"
        }
    };
    let sql = format!(
        "SELECT count(CASE WHEN age_from < ?3 THEN 1 END), count(*)
         FROM (SELECT age_from FROM deliveries {waiting} LIMIT ?4) WHERE ?1 IS ?1 AND ?2 IS ?2"
    );
    let bound = params![tenant, endpoint, millis(began_before), LongRetries::LOOK_MAX];
    db.prepare_cached(&sql)?.query_row(bound, |row| Ok(LongRetries::found(row.get(0)?, row.get(1)?)))
}
