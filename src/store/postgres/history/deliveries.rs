//! Lists deliveries from the tables of waiting, dead and finished ones.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use tokio_postgres::Row;

use super::walk::{ListWalk, ScanColumns, ScannedRows, WalkStep};
use super::{ROWS_PER_PAGE_MAX, bound_of, cursor_no};
use crate::model::delivery::{Delivery, DeliveryState};
use crate::model::delivery_filter::DeliveryFilter;
use crate::model::id::{DeliveryId, EndpointId, TenantId};
use crate::model::job::JobCandidate;
use crate::store::delivery_columns::{ShownColumns, ShownEvent};
use crate::store::postgres::PostgresState;
use crate::store::postgres::read_query::{read_both, read_one, read_rows};
use crate::store::postgres::rows::{at, cause_code, delivery_id, delivery_no, state_code};
use crate::store::postgres::stored_function::by_name;
use crate::store::postgres::transaction::bind;
use crate::store::row::{PostgresColumns, row};
use crate::store::{CandidatePage, CandidateWalk, Error, ListPage, PageRequest, Result};

/// A walk down one index, through the tables that may hold the deliveries. The
/// planner knows the state of a table's rows, and skips the other tables.
///
/// `= ANY` of one value and the order by two columns force the walk through the
/// index on (tenant, number), or (endpoint, number). With a plain `=` the
/// planner may walk down all numbers and filter by tenant. That is quick for a
/// tenant with many recent deliveries, and endless for one that has had none
/// for some time.
const BY_TENANT: &str = "posthaste.deliveries d \
    WHERE d.tenant = ANY (ARRAY[{tenant}]) AND d.no >= {from} AND d.no < {below}:states ORDER BY d.tenant DESC, d.no DESC";
const BY_ENDPOINT: &str = "posthaste.deliveries d WHERE d.endpoint = ANY (ARRAY[{endpoint}]) AND d.tenant = {tenant} \
    AND d.no >= {from} AND d.no < {below}:states ORDER BY d.endpoint DESC, d.no DESC";

/// A walk down the numbers of all tenants. With a state it reads the table of
/// that state alone, so that every row it reads is one that it was asked for;
/// delivered and cancelled ones share a table.
const OF_ALL: &str = "posthaste.deliveries d WHERE d.no >= {from} AND d.no < {below}:states ORDER BY d.no DESC";

/// Cancelled deliveries, and those that wait for a deleted endpoint that is not
/// swept yet.
const CANCELLED: &str = "(\
    (SELECT d.* FROM posthaste.deliveries d \
     WHERE d.state = 3 AND d.tenant = ANY (ARRAY[{tenant}]) AND d.no >= {from} AND d.no < {below} \
     ORDER BY d.tenant DESC, d.no DESC LIMIT {look}) \
    UNION ALL \
    SELECT d.* FROM posthaste.endpoints p CROSS JOIN LATERAL (\
        SELECT d.* FROM posthaste.deliveries d \
        WHERE d.state = 0 AND d.endpoint = p.no AND d.no >= {from} AND d.no < {below} ORDER BY d.no DESC LIMIT {look}) d \
    WHERE p.tenant = {tenant} AND p.deleted_at IS NOT NULL AND p.swept_at IS NULL) d ORDER BY d.no DESC";

/// A walk up the numbers of an endpoint.
const UPWARDS: &str = "posthaste.deliveries d WHERE d.endpoint = ANY (ARRAY[{endpoint}]) \
    AND d.no >= {from} AND d.no < {below}:states ORDER BY d.endpoint, d.no";

/// A walk down the numbers of an endpoint.
const DOWNWARDS: &str = "posthaste.deliveries d WHERE d.endpoint = ANY (ARRAY[{endpoint}]) \
    AND d.no >= {from} AND d.no < {below}:states ORDER BY d.endpoint DESC, d.no DESC";

/// Deliveries with these numbers.
const BY_NUMBERS: &str = "unnest({numbers}::bigint[]) AS k (no) \
    CROSS JOIN LATERAL (SELECT * FROM posthaste.deliveries d WHERE d.no = k.no LIMIT 1) d ORDER BY d.no";

/// A walk through a range of numbers.
const BY_NUMBER: &str =
    "posthaste.deliveries d WHERE d.no >= {from} AND d.no < {below} AND d.tenant = {tenant} ORDER BY d.no DESC";

fn source(query: &DeliveryFilter, is_of_all: bool) -> String {
    let walk = match query.endpoint {
        Some(_) => BY_ENDPOINT,
        None if is_of_all => OF_ALL,
        None => BY_TENANT,
    };
    match query.state {
        None => walk.replace(":states", ""),
        Some(DeliveryState::Waiting) => walk.replace(":states", " AND d.state = 0"),
        Some(DeliveryState::Dead) => walk.replace(":states", " AND d.state = 2"),
        // Few deliveries are cancelled, so skipping them costs little.
        Some(DeliveryState::Delivered) => walk.replace(":states", " AND d.state IN (1, 3)"),
        Some(DeliveryState::Cancelled) if is_of_all => walk.replace(":states", " AND d.state IN (1, 3)"),
        Some(DeliveryState::Cancelled) => CANCELLED.into(),
    }
}

row! {
    /// A delivery as it is listed, before its event and last attempt are read.
    pub postgres struct ListedDelivery {
        /// Columns of the delivery that are shown.
        delivery: ShownColumns = ShownColumns::COLUMNS,
        /// Number of its tenant.
        tenant: i64 = "d.tenant",
        /// Whether its lane has moved past it.
        is_passed: bool = "d.passed",
        /// Number of its event.
        event: i64 = "d.event",
        /// Record of the last attempt, if the delivery's row holds it.
        last_attempt: Option<String> = "d.last_attempt",
    }
}

/// Fills in the columns that are read of a delivery, and those that say how far
/// a list has come.
pub fn columns_of(sql: &str) -> String {
    sql.replace("{columns}", ListedDelivery::COLUMNS).replace("{scan}", ScanColumns::COLUMNS)
}

/// Reads the rows of a statement of which each says how far the list has come,
/// also if nothing was found.
pub fn read_found(read: &[Row], found: &mut Vec<ListedDelivery>) -> ScannedRows {
    let mut scanned = ScannedRows::default();
    for row in read {
        let mut column = 0;
        scanned = ScanColumns::read_next(row, &mut column).into();
        if Option::<i64>::read_next(row, &mut column).is_some() {
            found.push(ListedDelivery::read_next(row, &mut column));
        }
    }
    scanned
}

fn statement(sql: &str, source: &str) -> String {
    columns_of(sql).replace("{source}", source)
}

/// Returns a page of the deliveries of a tenant, or of all, newest first.
pub async fn list(
    shared: &PostgresState,
    tenant: Option<&TenantId>,
    query: &DeliveryFilter,
    page: &PageRequest,
) -> Result<ListPage<Delivery>> {
    let mut found = ListPage::empty();
    let cursor = cursor_no(page)?;
    let Some((tenant_no, endpoint)) = numbers_of(shared, tenant, query.endpoint).await? else { return Ok(found) };
    if page.limit == 0 {
        return Ok(found);
    }
    let list = DeliveryListKind { tenant: tenant_no, endpoint, query };
    let mut rows: Vec<ListedDelivery> = Vec::new();
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
            found.next = rows.last().map(|row| row.delivery.no.to_string());
            break;
        }
        match walk.step(look, looked) {
            WalkStep::On => {}
            WalkStep::Pause(below) => {
                found.next = Some(below.to_string());
                found.looked_back_to = looked.oldest.map(at);
                break;
            }
            WalkStep::End => break,
        }
    }
    found.data = complete(shared, rows).await?;
    Ok(found)
}

/// Reads an endpoint's deliveries in a state, in the order of their numbers or against
/// it.
pub async fn candidates(
    shared: &PostgresState,
    endpoint: EndpointId,
    state: DeliveryState,
    walk: CandidateWalk,
    look: usize,
) -> Result<CandidatePage> {
    let none = CandidatePage { is_end: true, ..CandidatePage::default() };
    let Some(endpoint) = any_endpoint_no(shared, None, endpoint).await? else { return Ok(none) };
    let states = match state {
        DeliveryState::Waiting => " AND d.state = 0",
        DeliveryState::Dead => " AND d.state = 2",
        DeliveryState::Delivered | DeliveryState::Cancelled => " AND d.state IN (1, 3)",
    };
    let (source, from, below) = match walk {
        CandidateWalk::OldestFirst(after) => (UPWARDS, after.map_or(0, delivery_no).saturating_add(1), i64::MAX),
        CandidateWalk::NewestFirst(before) => (DOWNWARDS, 0, before.map_or(i64::MAX, delivery_no)),
    };
    let sql = statement(include_str!("../sql/deliveries.sql"), &source.replace(":states", states));
    let rows_max = look as i64;
    let (sql, bound) = by_name![&sql; endpoint = endpoint, from = from, below = below, look = rows_max];
    let found = read_rows(shared, &sql, &bound).await?;
    let mut rows: Vec<ListedDelivery> = found.iter().map(ListedDelivery::read).collect();
    if matches!(walk, CandidateWalk::OldestFirst(_)) {
        rows.reverse();
    }
    let (read, is_end) = (rows.len(), rows.len() < look);
    let looked_to = rows.last().map(|row| delivery_id(row.delivery.no, row.delivery.created_at));
    let mut candidates = completed_candidates(shared, rows).await?;
    candidates.retain(|candidate| candidate.delivery.state == state);
    Ok(CandidatePage { candidates, looked_to, read, is_end })
}

/// Reads deliveries of a tenant by their ids, in the order of their numbers.
pub async fn candidates_by_id(
    shared: &PostgresState,
    tenant: &TenantId,
    ids: &[DeliveryId],
) -> Result<Vec<JobCandidate>> {
    let rows = with_numbers(shared, ids.iter().map(|id| delivery_no(*id)).collect()).await?;
    let wanted: HashSet<&DeliveryId> = ids.iter().collect();
    let mut candidates = completed_candidates(shared, rows).await?;
    candidates.retain(|one| one.delivery.tenant == *tenant && wanted.contains(&one.delivery.id));
    Ok(candidates)
}

async fn completed_candidates(shared: &PostgresState, rows: Vec<ListedDelivery>) -> Result<Vec<JobCandidate>> {
    let passed: HashSet<i64> = rows.iter().filter(|row| row.is_passed).map(|row| row.delivery.no).collect();
    let events: Vec<i64> = rows.iter().map(|row| row.event).collect();
    let sql = "SELECT no FROM posthaste.events WHERE no = ANY ($1) AND octet_length(data) = 0";
    let removed = if rows.is_empty() { Vec::new() } else { read_rows(shared, sql, bind![events]).await? };
    let removed: HashSet<i64> = removed.iter().map(|row| row.get(0)).collect();
    let of_removed = rows.iter().filter(|row| removed.contains(&row.event)).map(|row| row.delivery.no);
    let expunged: HashSet<i64> = of_removed.collect();
    let candidate = |delivery: Delivery| {
        let no = delivery_no(delivery.id);
        JobCandidate { delivery, is_passed: passed.contains(&no), is_expunged: expunged.contains(&no) }
    };
    Ok(complete(shared, rows).await?.into_iter().map(candidate).collect())
}

/// Returns the numbers of the tenant and of the endpoint, as far as they are
/// asked for, or nothing if one of them does not exist.
pub async fn numbers_of(
    shared: &PostgresState,
    tenant: Option<&TenantId>,
    endpoint: Option<EndpointId>,
) -> Result<Option<(Option<i64>, Option<i64>)>> {
    let tenant_no = match tenant.map(|tenant| shared.index().tenant_no(tenant)) {
        Some(None) => return Ok(None),
        known => known.flatten(),
    };
    let Some(id) = endpoint else { return Ok(Some((tenant_no, None))) };
    Ok(any_endpoint_no(shared, tenant_no, id).await?.map(|no| (tenant_no, Some(no))))
}

/// The filter of a list, with numbers instead of ids.
struct DeliveryListKind<'a> {
    /// Number of the tenant, or nothing for all.
    tenant: Option<i64>,
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
            || (query.state == Some(DeliveryState::Cancelled) && (query.endpoint.is_some() || self.tenant.is_none()))
            || (query.state == Some(DeliveryState::Delivered) && self.tenant.is_none())
    }

    /// Reads a part of the walk of which nearly all deliveries match.
    async fn all(
        &self,
        shared: &PostgresState,
        walk: &ListWalk,
        look: usize,
        wanted: usize,
        rows: &mut Vec<ListedDelivery>,
    ) -> Result<ScannedRows> {
        let sql = statement(include_str!("../sql/deliveries.sql"), &source(self.query, self.tenant.is_none()));
        let look = look as i64;
        let (sql, bound) = by_name![&sql;
            tenant = self.tenant,
            endpoint = self.endpoint,
            from = walk.from,
            below = walk.below,
            look = look,
        ];
        let read = read_rows(shared, &sql, &bound).await?;
        let read: Vec<ListedDelivery> = read.iter().map(ListedDelivery::read).collect();
        let looked = ScannedRows {
            rows: read.len(),
            lowest: read.last().map(|row| row.delivery.no),
            oldest: read.iter().map(|row| row.delivery.created_at).min(),
        };
        let matches = |row: &ListedDelivery| {
            let created_at = row.delivery.created_at;
            self.query.state.is_none_or(|state| row.delivery.shown_state().is_ok_and(|(shown, _)| shown == state))
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
        rows: &mut Vec<ListedDelivery>,
    ) -> Result<ScannedRows> {
        let query = self.query;
        let sql = statement(include_str!("../sql/matching_deliveries.sql"), &source(query, self.tenant.is_none()));
        let (look, wanted) = (look as i64, wanted as i64);
        let state = query.state.map(|state| state_code(state) as i16);
        let cause = query.cause.map(|cause| cause_code(cause) as i16);
        let (since, until) = (bound_of(query.since), bound_of(query.until));
        let (sql, bound) = by_name![&sql;
            tenant = self.tenant,
            endpoint = self.endpoint,
            from = walk.from,
            below = walk.below,
            look = look,
            wanted = wanted,
            state = state,
            cause = cause,
            event_type = query.event_type,
            key = query.key,
            since = since,
            until = until,
        ];
        let read = read_rows(shared, &sql, &bound).await?;
        Ok(read_found(&read, rows))
    }
}

/// Returns the delivery with this id.
pub async fn find(shared: &PostgresState, tenant: &TenantId, id: DeliveryId) -> Result<Option<Delivery>> {
    let no = delivery_no(id);
    let found = in_range(shared, tenant, no..no.saturating_add(1)).await?;
    Ok(found.into_iter().find(|delivery| delivery.id == id))
}

/// Returns the deliveries of an event, in the order of its endpoints, and behind them
/// those that backfills made.
pub async fn of_event(
    shared: &PostgresState,
    tenant: &TenantId,
    numbers: Range<i64>,
    event: i64,
) -> Result<Vec<Delivery>> {
    let mut found = in_range(shared, tenant, numbers).await?;
    found.reverse();
    let sql = "SELECT delivery FROM posthaste.backfilled WHERE event = $1";
    let others: Vec<i64> = read_rows(shared, sql, bind![event]).await?.iter().map(|row| row.get(0)).collect();
    if !others.is_empty() {
        found.extend(complete(shared, with_numbers(shared, others).await?).await?);
    }
    Ok(found)
}

/// Reads the deliveries with these numbers, in order.
async fn with_numbers(shared: &PostgresState, numbers: Vec<i64>) -> Result<Vec<ListedDelivery>> {
    let sql = statement(include_str!("../sql/deliveries.sql"), BY_NUMBERS);
    let count = numbers.len() as i64;
    let (sql, bound) = by_name![&sql; numbers = numbers, look = count];
    let found = read_rows(shared, &sql, &bound).await?;
    let mut rows: Vec<ListedDelivery> = found.iter().map(ListedDelivery::read).collect();
    rows.reverse();
    Ok(rows)
}

async fn in_range(shared: &PostgresState, tenant: &TenantId, numbers: Range<i64>) -> Result<Vec<Delivery>> {
    let Some(tenant_no) = shared.index().tenant_no(tenant) else { return Ok(Vec::new()) };
    let sql = statement(include_str!("../sql/deliveries.sql"), BY_NUMBER);
    let count = numbers.end - numbers.start;
    let (sql, bound) = by_name![&sql; tenant = tenant_no, from = numbers.start, below = numbers.end, look = count];
    let rows = read_rows(shared, &sql, &bound).await?;
    complete(shared, rows.iter().map(ListedDelivery::read).collect()).await
}

/// Returns the number of an endpoint of a tenant, or of any, deleted or not.
async fn any_endpoint_no(shared: &PostgresState, tenant: Option<i64>, id: EndpointId) -> Result<Option<i64>> {
    let sql = "SELECT no FROM posthaste.endpoints WHERE id = $1 AND ($2::bigint IS NULL OR tenant = $2)";
    Ok(read_one(shared, sql, bind![id.0, tenant]).await?.map(|row| row.get(0)))
}

/// Reads the events and last attempts of deliveries, and builds the deliveries
/// from all of it. Deliveries that were forgotten since are left out, and so
/// are those of deleted tenants.
pub async fn complete(shared: &PostgresState, rows: Vec<ListedDelivery>) -> Result<Vec<Delivery>> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let mut events: Vec<i64> = rows.iter().map(|row| row.event).collect();
    events.dedup();
    let (tried, numbers): (Vec<i64>, Vec<i32>) = rows
        .iter()
        .filter(|row| row.delivery.progress.attempts > 0 && row.last_attempt.is_none())
        .map(|row| (row.delivery.no, row.delivery.progress.attempts))
        .unzip();
    let events_sql = include_str!("../sql/events_of.sql").replace("{columns}", EventOfDelivery::COLUMNS);
    let (events, attempts) = if tried.is_empty() {
        (read_rows(shared, &events_sql, bind![events]).await?, Vec::new())
    } else {
        let attempts_sql = include_str!("../sql/last_attempts.sql");
        read_both(shared, (&events_sql, bind![events]), (attempts_sql, bind![tried, numbers])).await?
    };
    let events: HashMap<i64, ShownEvent> =
        events.iter().map(EventOfDelivery::read).map(|row| (row.no, row.event)).collect();
    let attempts: HashMap<i64, &str> = attempts.iter().map(|row| (row.get(0), row.get(1))).collect();
    let tenants = shared.index().tenants_by_no();
    let shown = |row: ListedDelivery| {
        let tenant = tenants.get(&row.tenant)?.clone();
        let event = events.get(&row.event)?.clone();
        let last = row.last_attempt.as_deref().or_else(|| attempts.get(&row.delivery.no).copied());
        Some(row.delivery.delivery(tenant, event, last).map_err(Error::from))
    };
    rows.into_iter().filter_map(shown).collect()
}

row! {
    /// An event as it is shown with its deliveries, with its number.
    postgres struct EventOfDelivery {
        no: i64 = "e.no",
        event: ShownEvent = ShownEvent::COLUMNS,
    }
}
