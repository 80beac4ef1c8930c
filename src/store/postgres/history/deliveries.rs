//! Lists deliveries from the tables of waiting, dead and finished ones.

use std::collections::HashMap;
use std::ops::Range;

use tokio_postgres::Row;
use uuid::Uuid;

use super::walk::{ListWalk, ScannedRows, WalkStep};
use super::{ROWS_PER_PAGE_MAX, bound_of, cursor_no, parse};
use crate::model::attempt::Attempt;
use crate::model::delivery::{Delivery, DeliveryState};
use crate::model::delivery_filter::DeliveryFilter;
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use crate::store::postgres::PostgresState;
use crate::store::postgres::read_query::{read_both, read_one, read_rows};
use crate::store::postgres::rows::{
    at, cause_code, cause_of, count, delivery_id, delivery_no, format_of, progress_from, state_code, state_of,
};
use crate::store::postgres::transaction::bind;
use crate::store::{ListPage, PageRequest, Result};

/// A walk down one index, through the tables that may hold the deliveries. The
/// planner knows the state of a table's rows, and skips the other tables.
///
/// `= ANY` of one value and the order by two columns force the walk through the
/// index on (tenant, number), or (endpoint, number). With a plain `=` the
/// planner may walk down all numbers and filter by tenant. That is quick for a
/// tenant with many recent deliveries, and endless for one that has had none
/// for some time.
const BY_TENANT: &str = "posthaste.deliveries d \
    WHERE d.tenant = ANY (ARRAY[$1]) AND d.no >= $2 AND d.no < $3:states ORDER BY d.tenant DESC, d.no DESC";
const BY_ENDPOINT: &str = "posthaste.deliveries d WHERE d.endpoint = ANY (ARRAY[$5]) AND d.tenant = $1 \
    AND d.no >= $2 AND d.no < $3:states ORDER BY d.endpoint DESC, d.no DESC";

/// Cancelled deliveries, and those that wait for a deleted endpoint that is not
/// swept yet.
const CANCELLED: &str = "(\
    (SELECT d.* FROM posthaste.deliveries d \
     WHERE d.state = 3 AND d.tenant = ANY (ARRAY[$1]) AND d.no >= $2 AND d.no < $3 \
     ORDER BY d.tenant DESC, d.no DESC LIMIT $4) \
    UNION ALL \
    SELECT d.* FROM posthaste.endpoints p CROSS JOIN LATERAL (\
        SELECT d.* FROM posthaste.deliveries d \
        WHERE d.state = 0 AND d.endpoint = p.no AND d.no >= $2 AND d.no < $3 ORDER BY d.no DESC LIMIT $4) d \
    WHERE p.tenant = $1 AND p.deleted_at IS NOT NULL AND p.swept_at IS NULL) d ORDER BY d.no DESC";

/// A walk through a range of numbers.
const BY_NUMBER: &str = "posthaste.deliveries d WHERE d.no >= $2 AND d.no < $3 AND d.tenant = $1 ORDER BY d.no DESC";

fn source(query: &DeliveryFilter) -> String {
    let walk = match query.endpoint {
        Some(_) => BY_ENDPOINT,
        None => BY_TENANT,
    };
    match query.state {
        None => walk.replace(":states", ""),
        Some(DeliveryState::Waiting) => walk.replace(":states", " AND d.state = 0"),
        Some(DeliveryState::Dead) => walk.replace(":states", " AND d.state = 2"),
        // Few deliveries are cancelled, so skipping them costs little.
        Some(DeliveryState::Delivered) => walk.replace(":states", " AND d.state IN (1, 3)"),
        Some(DeliveryState::Cancelled) => CANCELLED.into(),
    }
}

/// The columns that are read of a delivery `d` and its endpoint `p`.
const COLUMNS: &str = "d.no, d.created_at, d.event, p.id, d.seq, d.state, d.cause, d.behind, d.due_at, \
    d.first_attempt_at, d.finished_at, p.deleted_at, d.last, d.lane, d.urgent, d.expires_at, d.stumbles, d.stumble, \
    d.attempts, d.attempts_before, d.age_from, d.held_before, d.not_found, d.no_such_name, d.forbidden_target, \
    coalesce(d.replayed_at, d.created_at), d.last_delay, d.max_age, d.format";
/// Position of `finished_at` among those columns.
pub const FINISHED_AT: usize = 10;
/// Number of those columns; the columns of [`ScannedRows`] follow them.
pub const LOOKED: usize = 29;

/// Fills in the columns that are read of a delivery.
pub fn columns_of(sql: &str) -> String {
    sql.replace(":columns", COLUMNS)
}

fn statement(sql: &str, source: &str) -> String {
    columns_of(sql).replace("FROM :source", &format!("FROM {source}"))
}

/// Returns a page of a tenant's deliveries, newest first.
pub async fn list(
    shared: &PostgresState,
    tenant: &TenantId,
    query: &DeliveryFilter,
    page: &PageRequest,
) -> Result<ListPage<Delivery>> {
    let mut found = ListPage { data: Vec::new(), next: None };
    let cursor = cursor_no(page)?;
    let Some(tenant_no) = shared.index().tenant_no(tenant) else { return Ok(found) };
    let endpoint = match query.endpoint {
        None => None,
        Some(id) => match any_endpoint_no(shared, tenant_no, id).await? {
            Some(no) => Some(no),
            None => return Ok(found),
        },
    };
    if page.limit == 0 {
        return Ok(found);
    }
    let list = DeliveryListKind { tenant: tenant_no, endpoint, query };
    let mut rows = Vec::new();
    let mut walk = ListWalk::begin(cursor, query.since, query.until, ROWS_PER_PAGE_MAX);
    loop {
        let wanted = page.limit - rows.len();
        let look = walk.rows_to_scan(wanted, list.is_filtered());
        let looked = if list.is_filtered() {
            list.matching(shared, &walk, look, wanted, &mut rows).await?
        } else {
            list.all(shared, &walk, look, wanted, &mut rows).await?
        };
        if rows.len() == page.limit {
            found.next = rows.last().map(|row| row.get::<_, i64>(0).to_string());
            break;
        }
        match walk.step(look, looked) {
            WalkStep::On => {}
            WalkStep::Pause(below) => {
                found.next = Some(below.to_string());
                break;
            }
            WalkStep::End => break,
        }
    }
    found.data = complete(shared, tenant, &rows).await?;
    Ok(found)
}

/// The filter of a list, with numbers instead of ids.
struct DeliveryListKind<'a> {
    tenant: i64,
    endpoint: Option<i64>,
    query: &'a DeliveryFilter,
}

impl DeliveryListKind<'_> {
    /// Returns whether a walk may meet many deliveries that do not match.
    fn is_filtered(&self) -> bool {
        let query = self.query;
        query.cause.is_some()
            || query.event_type.is_some()
            || query.key.is_some()
            || (query.state == Some(DeliveryState::Cancelled) && query.endpoint.is_some())
    }

    /// Reads a part of the walk of which nearly all deliveries match.
    async fn all(
        &self,
        shared: &PostgresState,
        walk: &ListWalk,
        look: usize,
        wanted: usize,
        rows: &mut Vec<Row>,
    ) -> Result<ScannedRows> {
        let sql = statement(include_str!("../sql/deliveries.sql"), &source(self.query));
        let look = look as i64;
        let read = read_rows(shared, &sql, bind![self.tenant, walk.from, walk.below, look, self.endpoint]).await?;
        let looked = ScannedRows {
            rows: read.len(),
            lowest: read.last().map(|row| row.get(0)),
            oldest: read.iter().map(|row| row.get(1)).min(),
        };
        let matches = |row: &Row| {
            let created_at = row.get::<_, i64>(1);
            self.query.state.is_none_or(|state| shown_state(row).is_ok_and(|(shown, _)| shown == state))
                && bound_of(self.query.since).is_none_or(|since| created_at >= since)
                && bound_of(self.query.until).is_none_or(|until| created_at < until)
        };
        rows.extend(read.into_iter().filter(matches).take(wanted));
        Ok(looked)
    }

    /// Reads the matching deliveries of a part of the walk.
    async fn matching(
        &self,
        shared: &PostgresState,
        walk: &ListWalk,
        look: usize,
        wanted: usize,
        rows: &mut Vec<Row>,
    ) -> Result<ScannedRows> {
        let query = self.query;
        let sql = statement(include_str!("../sql/matching_deliveries.sql"), &source(query));
        let (look, wanted) = (look as i64, wanted as i64);
        let state = query.state.map(|state| state_code(state) as i16);
        let cause = query.cause.map(|cause| cause_code(cause) as i16);
        let (since, until) = (bound_of(query.since), bound_of(query.until));
        let bound = bind![
            self.tenant,
            walk.from,
            walk.below,
            look,
            self.endpoint,
            wanted,
            state,
            cause,
            query.event_type,
            query.key,
            since,
            until
        ];
        let read = read_rows(shared, &sql, bound).await?;
        let looked = match read.first() {
            None => ScannedRows { rows: 0, lowest: None, oldest: None },
            Some(row) => ScannedRows {
                rows: row.get::<_, i64>(LOOKED).max(0) as usize,
                lowest: row.get(LOOKED + 1),
                oldest: row.get(LOOKED + 2),
            },
        };
        // If nothing matched, one row still says how far the walk came.
        rows.extend(read.into_iter().filter(|row| row.get::<_, Option<i64>>(0).is_some()));
        Ok(looked)
    }
}

/// Returns the delivery with this id.
pub async fn find(shared: &PostgresState, tenant: &TenantId, id: DeliveryId) -> Result<Option<Delivery>> {
    let no = delivery_no(id);
    let found = in_range(shared, tenant, no..no.saturating_add(1)).await?;
    Ok(found.into_iter().find(|delivery| delivery.id == id))
}

/// Returns the deliveries of an event, in the order of its endpoints.
pub async fn of_event(shared: &PostgresState, tenant: &TenantId, numbers: Range<i64>) -> Result<Vec<Delivery>> {
    let mut found = in_range(shared, tenant, numbers).await?;
    found.reverse();
    Ok(found)
}

async fn in_range(shared: &PostgresState, tenant: &TenantId, numbers: Range<i64>) -> Result<Vec<Delivery>> {
    let Some(tenant_no) = shared.index().tenant_no(tenant) else { return Ok(Vec::new()) };
    let sql = statement(include_str!("../sql/deliveries.sql"), BY_NUMBER);
    let (count, endpoint) = (numbers.end - numbers.start, None::<i64>);
    let rows = read_rows(shared, &sql, bind![tenant_no, numbers.start, numbers.end, count, endpoint]).await?;
    complete(shared, tenant, &rows).await
}

/// Returns the number of a tenant's endpoint, deleted or not.
pub async fn any_endpoint_no(shared: &PostgresState, tenant: i64, id: EndpointId) -> Result<Option<i64>> {
    let sql = "SELECT no FROM posthaste.endpoints WHERE id = $1 AND tenant = $2";
    Ok(read_one(shared, sql, bind![id.0, tenant]).await?.map(|row| row.get(0)))
}

/// Reads the events and last attempts of deliveries, and builds the deliveries
/// from all of it. Deliveries that were forgotten since are left out.
pub async fn complete(shared: &PostgresState, tenant: &TenantId, rows: &[Row]) -> Result<Vec<Delivery>> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let mut events: Vec<i64> = rows.iter().map(|row| row.get(2)).collect();
    events.dedup();
    let (tried, numbers): (Vec<i64>, Vec<i32>) = rows
        .iter()
        .filter(|row| row.get::<_, i32>(18) > 0 && row.get::<_, Option<&str>>(12).is_none())
        .map(|row| (row.get::<_, i64>(0), row.get::<_, i32>(18)))
        .unzip();
    let events_sql = include_str!("../sql/events_of.sql");
    let (events, attempts) = if tried.is_empty() {
        (read_rows(shared, events_sql, bind![events]).await?, Vec::new())
    } else {
        let attempts_sql = include_str!("../sql/last_attempts.sql");
        read_both(shared, (events_sql, bind![events]), (attempts_sql, bind![tried, numbers])).await?
    };
    let events: HashMap<i64, &Row> = events.iter().map(|row| (row.get(0), row)).collect();
    let attempts: HashMap<i64, &str> = attempts.iter().map(|row| (row.get(0), row.get(1))).collect();
    let shown = |row: &Row| {
        let event = events.get(&row.get::<_, i64>(2))?;
        let last = row.get::<_, Option<&str>>(12).or_else(|| attempts.get(&row.get::<_, i64>(0)).copied());
        Some(delivery_from(row, tenant, event, last))
    };
    rows.iter().filter_map(shown).collect()
}

fn delivery_from(row: &Row, tenant: &TenantId, event: &Row, last: Option<&str>) -> Result<Delivery> {
    let (no, created_at): (i64, i64) = (row.get(0), row.get(1));
    let (last_status, last_error, body_sha256) = match last.map(parse::<Attempt>) {
        Some(attempt) => (attempt.status, attempt.error, Some(attempt.body_sha256)),
        None => (None, None, None),
    };
    let (state, finished_at) = shown_state(row)?;
    Ok(Delivery {
        id: delivery_id(no, created_at),
        tenant: tenant.clone(),
        event_id: EventId::from_stored(event.get(1)),
        event_type: event.get(2),
        endpoint_id: EndpointId(row.get::<_, Uuid>(3)),
        key: event.get(3),
        lane: row.get(13),
        seq: row.get::<_, Option<i64>>(4).map(|seq| seq as u64),
        state,
        cause: row.get::<_, Option<i16>>(6).map(|code| cause_of(code.into())).transpose()?,
        is_behind: row.get(7),
        due_at: at(row.get(8)),
        is_urgent: row.get(14),
        expires_at: row.get::<_, Option<i64>>(15).map(at),
        internal_errors: count(row, 16),
        internal_error: row.get(17),
        format: format_of(row.get::<_, i16>(28).into())?,
        progress: progress_from(row, 18),
        created_at: at(created_at),
        first_attempt_at: row.get::<_, Option<i64>>(9).map(at),
        finished_at: finished_at.map(at),
        last_status,
        last_error,
        body_sha256,
    })
}

/// Returns the state that is shown, and when it was reached. A delivery that
/// waits for a deleted endpoint counts as cancelled, swept yet or not.
fn shown_state(row: &Row) -> Result<(DeliveryState, Option<i64>)> {
    let deleted_at: Option<i64> = row.get(11);
    Ok(match (state_of(row.get::<_, i16>(5).into())?, deleted_at) {
        (DeliveryState::Waiting, Some(deleted_at)) => (DeliveryState::Cancelled, Some(deleted_at)),
        (state, _) => (state, row.get(10)),
    })
}
