//! Finds whose an id is, among all tenants. Each lookup is a seek in an index.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use crate::store::embedded::rows::{at, delivery_id, delivery_no};

/// Returns the tenant of a delivery.
pub fn tenant_of_delivery(db: &Connection, id: DeliveryId) -> rusqlite::Result<Option<TenantId>> {
    let found = delivery_of_number(db, delivery_no(id))?;
    Ok(found.filter(|(_, found)| *found == id).map(|(tenant, _)| tenant))
}

/// Returns the delivery with this number, and its tenant.
pub fn delivery_of_number(db: &Connection, no: i64) -> rusqlite::Result<Option<(TenantId, DeliveryId)>> {
    let sql = "SELECT t.id, d.created_at FROM deliveries d JOIN tenants t ON t.no = d.tenant
               WHERE d.no = ? AND t.deleted_at IS NULL";
    let found = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, delivery_id(no, row.get(1)?)));
    db.prepare_cached(sql)?.query_row([no], found).optional()
}

/// Returns the tenants that have an event with this id. It is one seek per tenant,
/// because the index on ids begins with the tenant.
pub fn tenants_of_event(db: &Connection, id: &EventId, limit: usize) -> rusqlite::Result<Vec<TenantId>> {
    let sql = "SELECT t.id FROM tenants t CROSS JOIN events e INDEXED BY events_by_id
               ON e.tenant = t.no AND e.id = ? WHERE t.deleted_at IS NULL ORDER BY t.id LIMIT ?";
    let mut statement = db.prepare_cached(sql)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    statement.query_map(params![id, limit], |row| row.get(0))?.collect()
}

/// Returns whose endpoint it was, and when it was deleted.
pub fn deleted_endpoint(db: &Connection, id: EndpointId) -> rusqlite::Result<Option<(TenantId, Timestamp)>> {
    let sql = "SELECT t.id, coalesce(p.deleted_at, t.deleted_at) FROM endpoints p JOIN tenants t ON t.no = p.tenant
               WHERE p.id = ? AND coalesce(p.deleted_at, t.deleted_at) IS NOT NULL";
    let found = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, at(row.get(1)?)));
    db.prepare_cached(sql)?.query_row([id], found).optional()
}
