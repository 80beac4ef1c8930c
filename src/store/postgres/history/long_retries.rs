//! Counts deliveries that have been in retry for long.

use jiff::Timestamp;

use crate::model::id::{EndpointId, TenantId};
use crate::store::postgres::PostgresState;
use crate::store::postgres::read_query::read_rows;
use crate::store::postgres::rows::millis;
use crate::store::postgres::transaction::bind;
use crate::store::{LongRetries, Result};

/// Counts the deliveries of an endpoint, a tenant or all that still wait though
/// their first attempt began before this time. Those of all are found in the
/// order in which they end, the oldest first. It only reads; served by
/// `queue_by_endpoint`, `queue_by_tenant` or `queue_overdue`.
pub async fn count(
    shared: &PostgresState,
    tenant: Option<&TenantId>,
    endpoint: Option<EndpointId>,
    began_before: Timestamp,
) -> Result<LongRetries> {
    let numbers = (tenant.map(|id| shared.index().tenant_no(id)), endpoint.map(|id| endpoint_no(shared, id)));
    let (waiting, of) = match numbers {
        (_, Some(endpoint)) => ("q.endpoint = $3 ORDER BY q.no", endpoint),
        (Some(tenant), None) => ("q.tenant = $3 ORDER BY q.no", tenant),
        (None, None) => {
            ("q.expiry_check_at IS NOT NULL AND $3::bigint IS NOT NULL ORDER BY q.expiry_check_at", Some(0))
        }
    };
    let Some(of) = of else { return Ok(LongRetries::found(0, 0)) };
    let sql = format!(
        "SELECT count(*) FILTER (WHERE w.age_from < $1), count(*)
         FROM (SELECT q.age_from FROM posthaste.queue q WHERE {waiting} LIMIT $2) w"
    );
    let rows = read_rows(shared, &sql, bind![millis(began_before), LongRetries::LOOK_MAX, of]).await?;
    Ok(rows.first().map_or(LongRetries::found(0, 0), |row| LongRetries::found(row.get(0), row.get(1))))
}

fn endpoint_no(shared: &PostgresState, id: EndpointId) -> Option<i64> {
    shared.index().endpoint_entry(id).map(|(no, _)| no)
}
