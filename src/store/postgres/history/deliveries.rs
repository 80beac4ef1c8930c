//! Lists deliveries, wherever they are.

use std::ops::Range;

use tokio_postgres::Row;
use uuid::Uuid;

use super::events::looked;
use super::walk::{Step, Walk};
use super::{ROWS_PER_PAGE_MAX, bound_of, cursor_no, parse};
use crate::model::attempt::Attempt;
use crate::model::delivery::{Delivery, State};
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use crate::store::postgres::Shared;
use crate::store::postgres::reading::{ask, ask_one};
use crate::store::postgres::rows::{
    at, cause_code, cause_of, count, delivery_id, delivery_no, progress_from, state_code, state_of,
};
use crate::store::postgres::tx::bind;
use crate::store::{DeliveryQuery, Page, PageAsk, Result};

/// One walk down one index, through the tables that may hold what is asked
/// for; the state of a table's rows is known to the planner.
///
/// `= ANY` of one and the order by two columns say that the walk goes through
/// the index on (tenant, number), or (endpoint, number). With a plain `=` the
/// planner may walk down all numbers instead, waiting to meet the tenant's:
/// quick for a tenant that is met often, and without end for one that was met
/// often until noon.
const BY_TENANT: &str = "posthaste.deliveries d \
    WHERE d.tenant = ANY (ARRAY[$1]) AND d.no >= $2 AND d.no < $3:states ORDER BY d.tenant DESC, d.no DESC";
const BY_ENDPOINT: &str = "posthaste.deliveries d WHERE d.endpoint = ANY (ARRAY[$6]) AND d.tenant = $1 \
    AND d.no >= $2 AND d.no < $3:states ORDER BY d.endpoint DESC, d.no DESC";

/// What was cancelled, and what waited for an endpoint that is deleted and
/// not swept yet.
const CANCELLED: &str = "(\
    (SELECT d.* FROM posthaste.deliveries d \
     WHERE d.state = 3 AND d.tenant = ANY (ARRAY[$1]) AND d.no >= $2 AND d.no < $3 \
     ORDER BY d.tenant DESC, d.no DESC LIMIT $4) \
    UNION ALL \
    SELECT d.* FROM posthaste.endpoints p CROSS JOIN LATERAL (\
        SELECT d.* FROM posthaste.deliveries d \
        WHERE d.state = 0 AND d.endpoint = p.no AND d.no >= $2 AND d.no < $3 ORDER BY d.no DESC LIMIT $4) d \
    WHERE p.tenant = $1 AND p.deleted_at IS NOT NULL AND p.swept_at IS NULL) d ORDER BY d.no DESC";

/// By number alone.
const BY_NUMBER: &str = "posthaste.deliveries d WHERE d.no >= $2 AND d.no < $3 AND d.tenant = $1 ORDER BY d.no DESC";

fn source(query: &DeliveryQuery) -> String {
    let walk = match query.endpoint {
        Some(_) => BY_ENDPOINT,
        None => BY_TENANT,
    };
    match query.state {
        None => walk.replace(":states", ""),
        Some(State::Waiting) => walk.replace(":states", " AND d.state = 0"),
        Some(State::Dead) => walk.replace(":states", " AND d.state = 2"),
        // Few are cancelled: stepping over them costs nothing.
        Some(State::Delivered) => walk.replace(":states", " AND d.state IN (1, 3)"),
        Some(State::Cancelled) => CANCELLED.into(),
    }
}

fn statement(source: &str) -> String {
    include_str!("../sql/deliveries.sql").replace("FROM :source", &format!("FROM {source}"))
}

/// A page of a tenant's deliveries, newest first.
pub async fn list(shared: &Shared, tenant: &TenantId, query: &DeliveryQuery, page: &PageAsk) -> Result<Page<Delivery>> {
    let mut found = Page { data: Vec::new(), next: None };
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
    let filter = Filter {
        endpoint,
        state: query.state.map(|state| state_code(state) as i16),
        cause: query.cause.map(|cause| cause_code(cause) as i16),
        event_type: query.event_type.as_deref(),
        key: query.key.as_deref(),
        since: bound_of(query.since),
        until: bound_of(query.until),
    };
    let sql = statement(&source(query));
    let is_filtered = query.cause.is_some()
        || query.event_type.is_some()
        || query.key.is_some()
        || (query.state == Some(State::Cancelled) && query.endpoint.is_some());
    let mut walk = Walk::begin(cursor, query.since, query.until, ROWS_PER_PAGE_MAX);
    loop {
        let wanted = page.limit - found.data.len();
        let look = walk.look(wanted, is_filtered);
        let rows = read(shared, &sql, tenant_no, (walk.from, walk.below), (look, wanted), &filter).await?;
        found.data.extend(rows.iter().filter_map(|row| delivery_from(row, tenant)));
        if found.data.len() == page.limit {
            found.next = rows.last().and_then(|row| row.get::<_, Option<i64>>(3)).map(|no| no.to_string());
            return Ok(found);
        }
        match walk.step(look, looked(&rows)) {
            Step::On => {}
            Step::Pause(below) => {
                found.next = Some(below.to_string());
                return Ok(found);
            }
            Step::End => return Ok(found),
        }
    }
}

/// One delivery.
pub async fn find(shared: &Shared, tenant: &TenantId, id: DeliveryId) -> Result<Option<Delivery>> {
    let no = delivery_no(id);
    let found = in_range(shared, tenant, no..no.saturating_add(1)).await?;
    Ok(found.into_iter().find(|delivery| delivery.id == id))
}

/// The deliveries of an event, in the order of its endpoints.
pub async fn of_event(shared: &Shared, tenant: &TenantId, numbers: Range<i64>) -> Result<Vec<Delivery>> {
    let mut found = in_range(shared, tenant, numbers).await?;
    found.reverse();
    Ok(found)
}

async fn in_range(shared: &Shared, tenant: &TenantId, numbers: Range<i64>) -> Result<Vec<Delivery>> {
    let Some(tenant_no) = shared.index().tenant_no(tenant) else { return Ok(Vec::new()) };
    let all = usize::try_from(numbers.end - numbers.start).unwrap_or(0);
    let sql = statement(BY_NUMBER);
    let rows = read(shared, &sql, tenant_no, (numbers.start, numbers.end), (all, all), &Filter::default()).await?;
    Ok(rows.iter().filter_map(|row| delivery_from(row, tenant)).collect())
}

/// What a delivery must be to be found.
#[derive(Default)]
struct Filter<'a> {
    endpoint: Option<i64>,
    state: Option<i16>,
    cause: Option<i16>,
    event_type: Option<&'a str>,
    key: Option<&'a str>,
    since: Option<i64>,
    until: Option<i64>,
}

async fn read(
    shared: &Shared,
    sql: &str,
    tenant: i64,
    (from, below): (i64, i64),
    (look, wanted): (usize, usize),
    filter: &Filter<'_>,
) -> Result<Vec<Row>> {
    let (look, wanted) = (look as i64, wanted as i64);
    let bound = bind![
        tenant,
        from,
        below,
        look,
        wanted,
        filter.endpoint,
        filter.state,
        filter.cause,
        filter.event_type,
        filter.key,
        filter.since,
        filter.until
    ];
    ask(shared, sql, bound).await
}

/// The number of an endpoint of this tenant's, deleted or not.
async fn any_endpoint_no(shared: &Shared, tenant: i64, id: EndpointId) -> Result<Option<i64>> {
    let sql = "SELECT no FROM posthaste.endpoints WHERE id = $1 AND tenant = $2";
    Ok(ask_one(shared, sql, bind![id.0, tenant]).await?.map(|row| row.get(0)))
}

/// A delivery; nothing, from a row that only says how far the list has come.
fn delivery_from(row: &Row, tenant: &TenantId) -> Option<Delivery> {
    let no: i64 = row.get::<_, Option<i64>>(3)?;
    let created_at: i64 = row.get(4);
    let last: Option<Attempt> = row.get::<_, Option<&str>>(17).map(parse);
    let (last_status, last_error, body_sha256) = match last {
        Some(attempt) => (attempt.status, attempt.error, Some(attempt.body_sha256)),
        None => (None, None, None),
    };
    let (state, finished_at) = shown_state(row.get(10), row.get(15), row.get(16));
    Some(Delivery {
        id: delivery_id(no, created_at),
        tenant: tenant.clone(),
        event_id: EventId::from_stored(row.get(5)),
        event_type: row.get(6),
        endpoint_id: EndpointId(row.get::<_, Uuid>(7)),
        key: row.get(8),
        lane: row.get(18),
        seq: row.get::<_, Option<i64>>(9).map(|seq| seq as u64),
        state,
        cause: row.get::<_, Option<i16>>(11).map(|code| cause_of(code.into())),
        is_behind: row.get(12),
        due_at: at(row.get(13)),
        is_urgent: row.get(19),
        expires_at: row.get::<_, Option<i64>>(20).map(at),
        stumbles: count(row, 21),
        stumble: row.get(22),
        progress: progress_from(row, 23),
        created_at: at(created_at),
        first_attempt_at: row.get::<_, Option<i64>>(14).map(at),
        finished_at: finished_at.map(at),
        last_status,
        last_error,
        body_sha256,
    })
}

/// What waits for a deleted endpoint is cancelled, swept yet or not.
fn shown_state(state: i16, finished_at: Option<i64>, deleted_at: Option<i64>) -> (State, Option<i64>) {
    match (state_of(state.into()), deleted_at) {
        (State::Waiting, Some(deleted_at)) => (State::Cancelled, Some(deleted_at)),
        (state, _) => (state, finished_at),
    }
}
