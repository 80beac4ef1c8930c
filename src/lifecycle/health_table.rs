//! Reads what the health table is made of: the figures of the last hours, and
//! what is so at this moment.

use std::time::Duration;

use jiff::Timestamp;

use super::Gateway;
use super::figure_series;
use super::live_status::{LiveStatusQuery, live_statuses};
use super::node_questions::shard_lags;
use super::store_gauges::{LONG_RETRY, time_before};
use crate::model::dead_letter_group::{GroupBy, GroupFilter};
use crate::model::figure_time::{FigureSpan, HOUR_MS, WINDOW_MS, millis_later, span_beginning};
use crate::model::health_table::HealthMeasures;
use crate::model::id::{EndpointId, TenantId};
use crate::model::type_figures::TypeFigures;
use crate::store::Result;
use crate::store::figures::{FigureScope, StoredFigures};
use crate::store::plan::figures::{failing_endpoints, sum};

/// Hours over which the slowest burn is measured.
const BURN_HOURS: i64 = 6;

/// What was measured, and the time up to which figures were written.
#[derive(Debug)]
pub struct MeasuredHealth {
    /// End of the last hour that was measured, in engine time.
    pub until: Timestamp,
    /// Measures of the table's rows.
    pub measures: HealthMeasures,
    /// What happened in the last hour by event type. Of an endpoint it is empty.
    pub types: TypeFigures,
    /// Endpoints at which the most attempts failed in the last hour, the worst
    /// first, with their tenants. Of an endpoint there are none.
    pub failing: Vec<(TenantId, EndpointId, u64)>,
}

/// Most failing endpoints that are named.
const FAILING_SHOWN: usize = 10;

/// Measures the health of the gateway, a tenant or an endpoint.
pub async fn measure(gateway: &Gateway, scope: &FigureScope) -> Result<MeasuredHealth> {
    let now = gateway.clock.now();
    let from = millis_later(span_beginning(now, WINDOW_MS), -(BURN_HOURS * HOUR_MS + 3 * WINDOW_MS));
    let coverage = gateway.store.figure_coverage(from, now).await?;
    let until = span_beginning(coverage.written_until.unwrap_or(now).min(now), WINDOW_MS);
    // What is written of later windows is shown already.
    let (span, range) = (FigureSpan::Window, (from, millis_later(now, 1)));
    let rows = figure_series::rows_of_all_nodes(gateway, scope, span, range, coverage.written_until).await?;
    let last = |span_ms: i64| -> Vec<StoredFigures> {
        rows.iter().filter(|row| row.at >= millis_later(until, -span_ms)).cloned().collect()
    };
    let last_hour = last(HOUR_MS);
    let ((hour, types), failing) = (sum(&last_hour), failing_endpoints(&last_hour).worst(2 * FAILING_SHOWN));
    let (tenant, endpoint) = ids_of_scope(scope);
    let whole = GroupFilter { by: Some(GroupBy::of(&[])), endpoint, ..GroupFilter::default() };
    let dead = gateway.store.dead_letter_groups(tenant, whole, 1).await?;
    let long_retries = gateway.store.long_retries(tenant, endpoint, time_before(now, LONG_RETRY)).await?;
    let since = |at: Timestamp| Duration::try_from(now.duration_since(at)).unwrap_or_default();
    let oldest_due = match scope {
        FigureScope::Gateway => shard_lags(gateway).await.values().map(|lag| lag.lag_ms).max().unwrap_or(0),
        FigureScope::Tenant(_) | FigureScope::Endpoint(..) => hour.oldest_due_ms,
    };
    let measures = HealthMeasures {
        slo_5m: sum(&last(WINDOW_MS)).0.slo,
        slo_6h: sum(&last(BURN_HOURS * HOUR_MS)).0.slo,
        hour,
        waiting: count_waiting(gateway, scope).await,
        oldest_due: Some(Duration::from_millis(oldest_due)),
        in_retry_over_24h: Some(long_retries.count),
        dead_letters: Some(dead.count),
        oldest_dead_letter: dead.oldest_at.map(since),
    };
    // One that was deleted since is left out.
    let known = |id: EndpointId| gateway.store.any_endpoint(id).map(|endpoint| endpoint.tenant.clone());
    let failing = failing.into_iter().filter_map(|(id, failed)| Some((known(id)?, id, failed)));
    Ok(MeasuredHealth { until, measures, types, failing: failing.take(FAILING_SHOWN).collect() })
}

fn ids_of_scope(scope: &FigureScope) -> (Option<&TenantId>, Option<EndpointId>) {
    match scope {
        FigureScope::Gateway => (None, None),
        FigureScope::Tenant(tenant) => (Some(tenant), None),
        FigureScope::Endpoint(tenant, endpoint) => (Some(tenant), Some(*endpoint)),
    }
}

/// Returns how many deliveries wait, on all nodes.
async fn count_waiting(gateway: &Gateway, scope: &FigureScope) -> Option<u64> {
    let of_tenant = |tenant: &TenantId| gateway.store.usage_here(tenant)?.waiting;
    match scope {
        FigureScope::Gateway => gateway.store.tenants().iter().map(|tenant| of_tenant(&tenant.id)).sum(),
        FigureScope::Tenant(tenant) => of_tenant(tenant),
        FigureScope::Endpoint(tenant, endpoint) => {
            let about = vec![LiveStatusQuery::endpoint(tenant, *endpoint)];
            live_statuses(gateway, about).await.get(endpoint)?.waiting
        }
    }
}
