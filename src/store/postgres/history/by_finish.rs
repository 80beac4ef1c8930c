//! Lists the deliveries that finished in a span of time, the latest first.

use super::deliveries::{ListedDelivery, columns_of, complete, numbers_of, read_found};
use super::walk::ScannedRows;
use super::{ROWS_PER_PAGE_MAX, bound_of};
use crate::model::delivery::{Delivery, DeliveryState};
use crate::model::delivery_filter::DeliveryFilter;
use crate::model::id::TenantId;
use crate::store::postgres::PostgresState;
use crate::store::postgres::read_query::read_rows;
use crate::store::postgres::rows::{at, cause_code};
use crate::store::postgres::stored_function::by_name;
use crate::store::{FinishPosition, ListPage, PageRequest, Result};

/// Number of rows that a statement scans at least.
const LOOK_MIN: usize = 500;

/// Returns a page of the deliveries of a tenant that finished in a span of time.
pub async fn list_by_finish(
    shared: &PostgresState,
    tenant: Option<&TenantId>,
    filter: &DeliveryFilter,
    page: &PageRequest,
) -> Result<ListPage<Delivery>> {
    let position = FinishPosition::begin(filter, page)?;
    let nothing = ListPage::empty();
    let Some((tenant_no, endpoint)) = numbers_of(shared, tenant, filter.endpoint).await? else { return Ok(nothing) };
    // What finished otherwise is found only tenant by tenant: its index begins
    // with the tenant.
    let is_found = page.limit > 0 && (tenant.is_some() || filter.state == Some(DeliveryState::Dead));
    let Some(states) = states_of(filter).filter(|_| is_found) else { return Ok(nothing) };
    let list = FinishedList { tenant: tenant_no, endpoint, filter, states };
    let (rows, next) = list.page(shared, position, page.limit).await?;
    let looked_back_to = next.filter(|_| rows.len() < page.limit).map(|position| at(position.finished_at));
    Ok(ListPage { data: complete(shared, rows).await?, next: next.map(FinishPosition::cursor), looked_back_to })
}

/// The filter of a list, with numbers instead of ids.
struct FinishedList<'a> {
    tenant: Option<i64>,
    endpoint: Option<i64>,
    filter: &'a DeliveryFilter,
    states: &'static str,
}

impl FinishedList<'_> {
    /// Returns the rows of a page, and the position at which the next page begins.
    async fn page(
        &self,
        shared: &PostgresState,
        mut position: FinishPosition,
        limit: usize,
    ) -> Result<(Vec<ListedDelivery>, Option<FinishPosition>)> {
        let mut rows: Vec<ListedDelivery> = Vec::new();
        let mut left = ROWS_PER_PAGE_MAX;
        loop {
            let wanted = limit - rows.len();
            let look = wanted.max(LOOK_MIN).min(left);
            let scanned = self.read(shared, position, look, wanted, &mut rows).await?;
            if rows.len() == limit {
                let last = rows.last().map(|row| &row.delivery);
                let last = last.and_then(|row| Some(FinishPosition { finished_at: row.finished_at?, no: row.no }));
                return Ok((rows, last));
            }
            match scanned.lowest.zip(scanned.oldest) {
                Some((no, finished_at)) if scanned.rows == look => position = FinishPosition { finished_at, no },
                _ => return Ok((rows, None)),
            }
            left -= scanned.rows;
            if left == 0 {
                return Ok((rows, Some(position)));
            }
        }
    }

    /// Reads the matching deliveries among the next `look` behind a position.
    /// Returns how far the list has come.
    async fn read(
        &self,
        shared: &PostgresState,
        position: FinishPosition,
        look: usize,
        wanted: usize,
        rows: &mut Vec<ListedDelivery>,
    ) -> Result<ScannedRows> {
        let filter = self.filter;
        let mut sql = columns_of(include_str!("../sql/finished_deliveries.sql")).replace("{states}", self.states);
        if self.tenant.is_none() {
            sql = sql.replace("d.tenant = ANY (ARRAY[{tenant}]) AND ", "").replace("d.tenant DESC, ", "");
        }
        let from = bound_of(filter.finished_since).unwrap_or(i64::MIN);
        let (look, wanted) = (look as i64, wanted as i64);
        let cause = filter.cause.map(|cause| cause_code(cause) as i16);
        let (since, until) = (bound_of(filter.since), bound_of(filter.until));
        let (sql, bound) = by_name![&sql;
            tenant = self.tenant,
            endpoint = self.endpoint,
            from = from,
            finished_at = position.finished_at,
            no = position.no,
            look = look,
            wanted = wanted,
            cause = cause,
            event_type = filter.event_type,
            key = filter.key,
            since = since,
            until = until,
        ];
        Ok(read_found(&read_rows(shared, &sql, &bound).await?, rows))
    }
}

/// Returns the condition on the state. The planner knows the states of each
/// table's rows, and skips the other tables.
fn states_of(filter: &DeliveryFilter) -> Option<&'static str> {
    match filter.state {
        None => Some("d.state IN (1, 2, 3)"),
        Some(DeliveryState::Delivered) => Some("d.state = 1"),
        Some(DeliveryState::Dead) => Some("d.state = 2"),
        Some(DeliveryState::Cancelled) => Some("d.state = 3"),
        // What waits has not finished.
        Some(DeliveryState::Waiting) => None,
    }
}
