//! What a deleted tenant leaves until its records are forgotten, or purged.

use super::transaction::{PgTransaction, bind};
use crate::model::id::{JobId, TenantId};
use crate::store::Result;

/// Returns the job that purges a tenant with this id, if there is one.
pub async fn open_purge(tx: &PgTransaction, tenant: &TenantId) -> Result<Option<JobId>> {
    let sql = "SELECT purge_job FROM posthaste.tenants WHERE purge_job IS NOT NULL AND id = $1 LIMIT 1";
    Ok(tx.query_opt(sql, bind![tenant.as_str()]).await?.map(|row| row.get(0)))
}

/// Deletes what belongs to a deleted tenant, but for events, deliveries, endpoints and
/// tokens: these are marked, and forgotten later.
pub async fn delete_content(tx: &PgTransaction, tenant: i64, now: i64, version: i64) -> Result<()> {
    for table in ["secrets", "endpoint_events", "health"] {
        let sql = format!(
            "DELETE FROM posthaste.{table} WHERE endpoint IN (SELECT no FROM posthaste.endpoints WHERE tenant = $1)"
        );
        tx.execute(&sql, bind![tenant]).await?;
    }
    let sql = "UPDATE posthaste.endpoints SET deleted_at = $2, version = $3 WHERE tenant = $1 AND deleted_at IS NULL";
    tx.execute(sql, bind![tenant, now, version]).await?;
    let sql = "UPDATE posthaste.tokens SET deleted_at = $2, version = $3 WHERE tenant = $1 AND deleted_at IS NULL";
    tx.execute(sql, bind![tenant, now, version]).await?;
    tx.execute("DELETE FROM posthaste.portals WHERE tenant = $1", bind![tenant]).await.map(|_| ())
}
