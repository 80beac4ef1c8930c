//! Finds waiting deliveries that may have expired.

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use super::PostgresState;
use super::history::walk::{MOVED_BELOW, SLACK_MS, number_at};
use super::read_query::read_rows;
use super::rows::{FORMAT_CODE_MAX, at, delivery_id, delivery_no, millis, progress_from};
use super::transaction::bind;
use crate::model::id::{EndpointId, TenantId};
use crate::store::{OverdueDelivery, OverduePage, Result, UntriedPage, UntriedQuery};

/// Reads the deliveries of these shards whose expiry is to be checked, the
/// longest overdue first.
pub async fn read_overdue(
    shared: &PostgresState,
    now: Timestamp,
    limit: usize,
    shards: Vec<i16>,
) -> Result<OverduePage> {
    let one_more = limit as i64 + 1;
    let rows = read_rows(shared, include_str!("sql/overdue.sql"), bind![shards, one_more, FORMAT_CODE_MAX]).await?;
    let mut page = OverduePage::default();
    for row in &rows {
        let expiry_check_at: i64 = row.get(14);
        if expiry_check_at > millis(now) || page.found.len() == limit {
            page.next_at = Some(at(expiry_check_at));
            break;
        }
        page.found.push(overdue_from(row, 0));
    }
    Ok(page)
}

/// Largest number of rows that one page of untried deliveries reads.
const ROWS_MAX: i64 = 10_000;

/// Reads waiting deliveries of these shards that have had no attempt, oldest
/// first.
pub async fn read_untried(
    shared: &PostgresState,
    tenant: &TenantId,
    query: UntriedQuery,
    shards: Vec<i16>,
) -> Result<UntriedPage> {
    let mut page = UntriedPage::default();
    let Some(tenant) = shared.index().tenant_no(tenant) else { return Ok(page) };
    let after = query.after.map_or(0, delivery_no);
    // Younger deliveries cannot have waited long enough.
    let before = millis(query.before);
    let below = number_at(before.saturating_add(SLACK_MS)).max(MOVED_BELOW);
    let limit = query.limit as i64;
    let sql = include_str!("sql/untried.sql");
    let rows =
        read_rows(shared, sql, bind![tenant, after, below, ROWS_MAX, limit, shards, before, FORMAT_CODE_MAX]).await?;
    let Some(first) = rows.first() else { return Ok(page) };
    let (looked, last): (i64, _) = (first.get(0), delivery_id(first.get(1), first.get(2)));
    page.found = rows.iter().filter(|row| is_found(row)).map(|row| overdue_from(row, 3)).collect();
    page.next = match page.found.last() {
        Some(last) if page.found.len() == query.limit => Some(last.id),
        _ => (looked == ROWS_MAX).then_some(last),
    };
    Ok(page)
}

/// Whether a row holds a delivery, and not only the position of the scan.
fn is_found(row: &Row) -> bool {
    row.get::<_, Option<i64>>(3).is_some()
}

fn overdue_from(row: &Row, first: usize) -> OverdueDelivery {
    OverdueDelivery {
        id: delivery_id(row.get(first), row.get(first + 1)),
        endpoint: EndpointId(row.get::<_, Uuid>(first + 2)),
        expires_at: row.get::<_, Option<i64>>(first + 3).map(at),
        progress: progress_from(row, first + 4),
    }
}
