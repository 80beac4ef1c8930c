//! Lists the deliveries that finished in a span of time, the latest first.

use rusqlite::{Connection, params};

use super::ROWS_PER_PAGE_MAX;
use super::deliveries::{delivery_sql, matching_delivery_from, numbers_of_any};
use crate::model::delivery::{Delivery, DeliveryState};
use crate::model::delivery_filter::DeliveryFilter;
use crate::model::id::TenantId;
use crate::store::embedded::rows::{at, millis, state_code};
use crate::store::{FinishPosition, ListPage};

/// Returns a page of the deliveries that finished in a span of time, the latest
/// first.
pub fn finished_deliveries(
    db: &Connection,
    tenant: Option<&TenantId>,
    ask: &DeliveryFilter,
    position: FinishPosition,
    limit: usize,
) -> rusqlite::Result<ListPage<Delivery>> {
    let mut page = ListPage::empty();
    let Some((tenant_no, _)) = numbers_of_any(db, tenant, ask.endpoint)? else {
        return Ok(page);
    };
    let from = ask.finished_since.map_or(i64::MIN, millis);
    let sql = if tenant.is_some() { finished_sql(ask.state) } else { all_dead_sql(ask.state) };
    let Some(sql) = sql else { return Ok(page) };
    let mut statement = db.prepare_cached(&sql)?;
    let mut finished = statement.query(params![tenant_no, from, position.finished_at, position.no])?;
    let mut one = db.prepare_cached(&delivery_sql("", "WHERE d.no = ?"))?;
    let mut last = None;
    for looked_at in 0.. {
        if page.data.len() == limit || looked_at == ROWS_PER_PAGE_MAX {
            page.next = last.map(FinishPosition::cursor);
            page.looked_back_to = last.filter(|_| page.data.len() < limit).map(|position| at(position.finished_at));
            break;
        }
        let Some(row) = finished.next()? else { break };
        let position = FinishPosition { finished_at: row.get(1)?, no: row.get(0)? };
        last = Some(position);
        page.data
            .extend(one.query_row([position.no], |row| matching_delivery_from(row, |listed| listed.is_match(ask)))?);
    }
    Ok(page)
}

/// Returns the statement that walks down the deliveries of the tenant `?1` that
/// finished since `?2`, behind the time `?3` and the number `?4`. The stretches of
/// the states are merged, each in its order, so nothing is sorted. Waiting
/// deliveries have not finished.
fn finished_sql(state: Option<DeliveryState>) -> Option<String> {
    let states = match state {
        None => vec![DeliveryState::Delivered, DeliveryState::Dead, DeliveryState::Cancelled],
        Some(DeliveryState::Waiting) => return None,
        Some(state) => vec![state],
    };
    let stretch = |state: &DeliveryState| {
        format!(
            "SELECT no, finished_at FROM deliveries INDEXED BY deliveries_by_finish
             WHERE tenant = ?1 AND state = {} AND finished_at >= ?2 AND finished_at <= ?3
               AND (finished_at < ?3 OR no < ?4)",
            state_code(*state)
        )
    };
    let stretches: Vec<String> = states.iter().map(stretch).collect();
    Some(format!("{} ORDER BY finished_at DESC, no DESC", stretches.join(" UNION ALL ")))
}

/// Returns the same statement for the dead letters of all tenants, but for
/// deleted ones. What finished otherwise is found only tenant by tenant.
fn all_dead_sql(state: Option<DeliveryState>) -> Option<String> {
    let sql = "SELECT x.no, x.finished_at FROM dead_letters x INDEXED BY dead_letters_by_finish
                   CROSS JOIN tenants t ON t.no = x.tenant AND t.deleted_at IS NULL
               WHERE ?1 IS ?1 AND x.finished_at >= ?2 AND x.finished_at <= ?3 AND (x.finished_at < ?3 OR x.no < ?4)
               ORDER BY x.finished_at DESC, x.no DESC";
    (state == Some(DeliveryState::Dead)).then(|| sql.to_owned())
}
