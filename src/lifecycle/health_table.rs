//! Reads what the health table is made of: the figures of the last hours, and
//! what is so at this moment.

use std::time::Duration;

use jiff::Timestamp;

use super::Gateway;
use super::figure_series;
use super::live_status::{LiveStatusQuery, live_statuses};
use super::node_questions::lags;
use super::store_gauges::{LONG_RETRY, ago};
use crate::model::dead_letter_group::{GroupBy, GroupFilter};
use crate::model::figure_time::{FigureSpan, HOUR_MS, WINDOW_MS, floor, later};
use crate::model::health_table::HealthMeasures;
use crate::model::id::{EndpointId, TenantId};
use crate::store::Result;
use crate::store::figures::{FigureScope, StoredFigures};
use crate::store::plan::figures::{failing, sum};

/// Hours over which the slowest burn is measured.
const BURN_HOURS: i64 = 6;

/// What was measured, and the time up to which figures were written.
#[derive(Debug)]
pub struct MeasuredHealth {
    /// End of the last hour that was measured, in engine time.
    pub until: Timestamp,
    /// What was measured.
    pub measures: HealthMeasures,
    /// Endpoints at which the most attempts failed in the last hour, the worst
    /// first, with their tenants. Of an endpoint there are none.
    pub failing: Vec<(TenantId, EndpointId, u64)>,
}

/// Most failing endpoints that are named.
const FAILING_SHOWN: usize = 10;

/// Measures the health of the gateway, a tenant or an endpoint.
pub async fn measure(gateway: &Gateway, scope: &FigureScope) -> Result<MeasuredHealth> {
    let now = gateway.clock.now();
    let from = later(floor(now, WINDOW_MS), -(BURN_HOURS * HOUR_MS + 3 * WINDOW_MS));
    let coverage = gateway.store.figure_coverage(from, now).await?;
    let until = floor(coverage.written_until.unwrap_or(now).min(now), WINDOW_MS);
    // What is written of later windows is shown already.
    let rows = figure_series::rows(gateway, scope, FigureSpan::Window, from, later(now, 1)).await?;
    let last = |span_ms: i64| -> Vec<StoredFigures> {
        rows.iter().filter(|row| row.at >= later(until, -span_ms)).cloned().collect()
    };
    let last_hour = last(HOUR_MS);
    let (hour, failing) = (sum(&last_hour).0, failing(&last_hour).worst(2 * FAILING_SHOWN));
    let (tenant, endpoint) = named(scope);
    let whole = GroupFilter { by: Some(GroupBy::of(&[])), endpoint, ..GroupFilter::default() };
    let dead = gateway.store.dead_letter_groups(tenant, whole, 1).await?;
    let long_retries = gateway.store.long_retries(tenant, endpoint, ago(now, LONG_RETRY)).await?;
    let since = |at: Timestamp| Duration::try_from(now.duration_since(at)).unwrap_or_default();
    let oldest_due = match scope {
        FigureScope::Gateway => lags(gateway).await.values().map(|lag| lag.lag_ms).max().unwrap_or(0),
        FigureScope::Tenant(_) | FigureScope::Endpoint(..) => hour.oldest_due_ms,
    };
    let measures = HealthMeasures {
        slo_5m: sum(&last(WINDOW_MS)).0.slo,
        slo_6h: sum(&last(BURN_HOURS * HOUR_MS)).0.slo,
        hour,
        waiting: waiting(gateway, scope).await,
        oldest_due: Some(Duration::from_millis(oldest_due)),
        in_retry_over_24h: Some(long_retries.count),
        dead_letters: Some(dead.count),
        oldest_dead_letter: dead.oldest_at.map(since),
    };
    // One that was deleted since is left out.
    let known = |id: EndpointId| gateway.store.any_endpoint(id).map(|endpoint| endpoint.tenant.clone());
    let failing = failing.into_iter().filter_map(|(id, failed)| Some((known(id)?, id, failed)));
    Ok(MeasuredHealth { until, measures, failing: failing.take(FAILING_SHOWN).collect() })
}

fn named(scope: &FigureScope) -> (Option<&TenantId>, Option<EndpointId>) {
    match scope {
        FigureScope::Gateway => (None, None),
        FigureScope::Tenant(tenant) => (Some(tenant), None),
        FigureScope::Endpoint(tenant, endpoint) => (Some(tenant), Some(*endpoint)),
    }
}

/// Returns how many deliveries wait, on all nodes.
async fn waiting(gateway: &Gateway, scope: &FigureScope) -> Option<u64> {
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
