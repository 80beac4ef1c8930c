//! Answers questions about events, deliveries, attempts and lanes.
//!
//! Every list walks one index from its newest row and stops after a bounded
//! number of rows, whether they match or not. So a page may be short and still
//! have a next page.

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::EmbeddedStore;
use super::claim::stored_tenant;
use super::rows::{
    PROGRESS, UnknownCode, at, cause_code, cause_of, delivery_id, delivery_no, format_of, id_bytes, millis,
    progress_from, state_code, state_of, uuid_of, withheld_from,
};
use crate::model::attempt::Attempt;
use crate::model::delivery::{Delivery, DeliveryState};
use crate::model::delivery_filter::DeliveryFilter;
use crate::model::endpoint_event::EndpointEventRecord;
use crate::model::event::{Event, EventKey, EventType};
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use crate::store::catalog_json::from_json;
use crate::store::{Error, EventQuery, EventRecord, FinishPosition, History, Lane, ListPage, PageRequest, Result};

/// Number of bytes of data after which a page of events ends. The last event is
/// never cut.
const BYTES_PER_PAGE_MAX: usize = 4 * 1_024 * 1_024;
/// Largest number of rows that one page reads.
const ROWS_PER_PAGE_MAX: usize = 10_000;
/// How far the times of rows may be out of the order of their numbers.
const ORDER_SLACK_MS: i64 = 60_000;

mod by_finish;
mod walk;

#[async_trait]
impl History for EmbeddedStore {
    async fn event(&self, tenant: &TenantId, id: &EventId) -> Result<Option<EventRecord>> {
        let (tenant, id) = (tenant.clone(), id.clone());
        self.read(move |db| {
            let Some(no) = tenant_no(db, &tenant)? else { return Ok(None) };
            stored_event(db, no, &tenant, &id)
        })
        .await
    }

    async fn events(&self, tenant: &TenantId, ask: EventQuery, page: PageRequest) -> Result<ListPage<EventRecord>> {
        let tenant = tenant.clone();
        let cursor = cursor_no(&page)?;
        self.read(move |db| events(db, &tenant, &ask, cursor, page.limit)).await
    }

    async fn event_deliveries(&self, tenant: &TenantId, id: &EventId) -> Result<Option<Vec<Delivery>>> {
        let (tenant, id) = (tenant.clone(), id.clone());
        self.read(move |db| {
            let Some(no) = tenant_no(db, &tenant)? else { return Ok(None) };
            let range: Option<(i64, i64)> = db
                .prepare_cached("SELECT first_delivery, deliveries FROM events WHERE tenant = ? AND id = ?")?
                .query_row(params![no, id.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?;
            let Some((first, count)) = range else { return Ok(None) };
            let sql = delivery_sql("", "WHERE d.no >= ? AND d.no < ? ORDER BY d.no");
            let mut statement = db.prepare_cached(&sql)?;
            let rows = statement.query_map([first, first + count], delivery_from)?;
            rows.collect::<rusqlite::Result<Vec<_>>>().map(Some)
        })
        .await
    }

    async fn delivery(&self, tenant: &TenantId, id: DeliveryId) -> Result<Option<Delivery>> {
        let tenant = tenant.clone();
        self.read(move |db| find(db, &tenant, id)).await
    }

    async fn tenant_of_delivery(&self, id: DeliveryId) -> Result<Option<TenantId>> {
        self.read(move |db| {
            let sql = "SELECT t.id, d.created_at FROM deliveries d JOIN tenants t ON t.no = d.tenant
                       WHERE d.no = ? AND t.deleted_at IS NULL";
            let no = delivery_no(id);
            let found: Option<(String, i64)> =
                db.prepare_cached(sql)?.query_row([no], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
            Ok(found.filter(|(_, at)| delivery_id(no, *at) == id).map(|(tenant, _)| stored_tenant(&tenant)))
        })
        .await
    }

    async fn tenants_of_event(&self, id: &EventId, limit: usize) -> Result<Vec<TenantId>> {
        let id = id.clone();
        self.read(move |db| {
            // One seek per tenant: the index on ids begins with the tenant.
            let sql = "SELECT t.id FROM tenants t CROSS JOIN events e INDEXED BY events_by_id
                       ON e.tenant = t.no AND e.id = ? WHERE t.deleted_at IS NULL ORDER BY t.id LIMIT ?";
            let mut statement = db.prepare_cached(sql)?;
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let rows = statement.query_map(params![id.as_str(), limit], |row| row.get::<_, String>(0))?;
            rows.map(|tenant| tenant.map(|tenant| stored_tenant(&tenant))).collect()
        })
        .await
    }

    async fn deliveries(
        &self,
        tenant: &TenantId,
        ask: DeliveryFilter,
        page: PageRequest,
    ) -> Result<ListPage<Delivery>> {
        let tenant = tenant.clone();
        if ask.is_by_finish() {
            let position = FinishPosition::begin(&ask, &page)?;
            return self.read(move |db| by_finish::finished_deliveries(db, &tenant, &ask, position, page.limit)).await;
        }
        let cursor = cursor_no(&page)?;
        self.read(move |db| deliveries(db, &tenant, &ask, cursor, page.limit)).await
    }

    async fn attempts(&self, tenant: &TenantId, id: DeliveryId) -> Result<Option<Vec<Attempt>>> {
        let tenant = tenant.clone();
        self.read(move |db| {
            if find(db, &tenant, id)?.is_none() {
                return Ok(None);
            }
            let no = delivery_no(id);
            let mut statement =
                db.prepare_cached("SELECT record FROM attempts WHERE no >= ? AND no < ? ORDER BY no")?;
            let rows = statement.query_map([no << 20, (no + 1) << 20], |row| row.get::<_, String>(0))?;
            rows.map(|record| record.map(|text| parse_attempt(&text))).collect::<rusqlite::Result<_>>().map(Some)
        })
        .await
    }

    async fn endpoint_events(&self, endpoint: EndpointId, page: PageRequest) -> Result<ListPage<EndpointEventRecord>> {
        let cursor = cursor_no(&page)?;
        self.read(move |db| {
            let sql = "SELECT m.no, m.record FROM milestones m JOIN endpoints p ON p.no = m.endpoint
                       WHERE p.id = ? AND p.deleted_at IS NULL AND m.no < ? ORDER BY m.no DESC LIMIT ?";
            let mut statement = db.prepare_cached(sql)?;
            let limit = i64::try_from(page.limit).unwrap_or(i64::MAX).saturating_add(1);
            let rows = statement.query_map(params![id_bytes(endpoint.0), cursor, limit], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
            })?;
            let mut found: Vec<(i64, String)> = rows.collect::<rusqlite::Result<_>>()?;
            let has_more = found.len() > page.limit;
            found.truncate(page.limit);
            let next = found.last().filter(|_| has_more).map(|(no, _)| no.to_string());
            let data = found.iter().map(|(_, record)| from_json(record)).collect();
            Ok(ListPage { data, next })
        })
        .await
    }

    async fn oldest_due(&self, endpoints: Vec<EndpointId>) -> Result<Vec<Option<Timestamp>>> {
        self.read(move |db| {
            let sql = "SELECT min(due_at) FROM deliveries INDEXED BY deliveries_due
                       WHERE endpoint = (SELECT no FROM endpoints WHERE id = ?) AND state = 0 AND behind = 0";
            let mut statement = db.prepare_cached(sql)?;
            let mut oldest = |id: &EndpointId| -> rusqlite::Result<Option<Timestamp>> {
                let due_at: Option<i64> = statement.query_row([id_bytes(id.0)], |row| row.get(0))?;
                Ok(due_at.map(at))
            };
            endpoints.iter().map(&mut oldest).collect()
        })
        .await
    }

    async fn lane_head(&self, endpoint: EndpointId, lane: &str) -> Result<Option<(DeliveryId, bool)>> {
        let lane = lane.to_owned();
        self.read(move |db| {
            let sql = "SELECT h.no, h.created_at, h.state = 2 FROM lanes l
                       JOIN endpoints p ON p.no = l.endpoint JOIN deliveries h ON h.no = l.head
                       WHERE p.id = ? AND p.deleted_at IS NULL AND l.lane = ?";
            db.prepare_cached(sql)?
                .query_row(params![id_bytes(endpoint.0), lane], |row| {
                    Ok((delivery_id(row.get(0)?, row.get(1)?), row.get(2)?))
                })
                .optional()
        })
        .await
    }

    async fn lanes(
        &self,
        tenant: &TenantId,
        endpoint: EndpointId,
        blocked_only: bool,
        page: PageRequest,
    ) -> Result<ListPage<Lane>> {
        let tenant = tenant.clone();
        self.read(move |db| lanes(db, &tenant, endpoint, blocked_only, &page)).await
    }
}

fn tenant_no(db: &Connection, tenant: &TenantId) -> rusqlite::Result<Option<i64>> {
    db.prepare_cached("SELECT no FROM tenants WHERE id = ? AND deleted_at IS NULL")?
        .query_row([tenant.as_str()], |row| row.get(0))
        .optional()
}

fn cursor_no(page: &PageRequest) -> Result<i64> {
    match &page.cursor {
        None => Ok(i64::MAX),
        Some(text) => text.parse().map_err(|_| Error::NotFound("cursor")),
    }
}

const EVENT: &str = "e.no, e.id, e.type, e.key, e.timestamp, e.schema_version, e.endpoints, e.accepted_at, e.deliveries, e.data, e.expires_at, e.checksum, e.withheld";

fn event_from(row: &Row<'_>, tenant: &TenantId) -> rusqlite::Result<EventRecord> {
    let endpoints: Option<String> = row.get(6)?;
    let event = Event {
        id: EventId::from_stored(&row.get::<_, String>(1)?),
        tenant: tenant.clone(),
        event_type: EventType::from_stored(&row.get::<_, String>(2)?),
        key: row.get::<_, Option<String>>(3)?.map(|key| EventKey::from_stored(&key)),
        timestamp: row.get(4)?,
        schema_version: row.get(5)?,
        endpoints: endpoints.and_then(|ids| serde_json::from_str(&ids).ok()),
        accepted_at: at(row.get(7)?),
        data: Bytes::from(row.get::<_, Vec<u8>>(9)?),
        expires_at: row.get::<_, Option<i64>>(10)?.map(at),
    };
    let is_damaged = event.is_damaged(row.get(11)?);
    let withheld = withheld_from(event.is_expunged(), row.get(12)?)?;
    Ok(EventRecord { event, withheld, deliveries: row.get(8)?, is_damaged })
}

/// Reads an event of the tenant with this number.
pub fn stored_event(
    db: &Connection,
    tenant_no: i64,
    tenant: &TenantId,
    id: &EventId,
) -> rusqlite::Result<Option<EventRecord>> {
    let sql = format!("SELECT {EVENT} FROM events e WHERE e.tenant = ? AND e.id = ?");
    db.prepare_cached(&sql)?.query_row(params![tenant_no, id.as_str()], |row| event_from(row, tenant)).optional()
}

fn events(
    db: &Connection,
    tenant: &TenantId,
    ask: &EventQuery,
    cursor: i64,
    limit: usize,
) -> rusqlite::Result<ListPage<EventRecord>> {
    let mut page = ListPage { data: Vec::new(), next: None };
    let Some(no) = tenant_no(db, tenant)? else { return Ok(page) };
    let below = walk::below_until(db, "events", "accepted_at", ask.until, cursor)?;
    let sql = format!(
        "SELECT {EVENT} FROM events e INDEXED BY events_by_tenant
         WHERE e.tenant = ? AND e.no < ? ORDER BY e.no DESC"
    );
    let mut statement = db.prepare_cached(&sql)?;
    let mut rows = statement.query([no, below])?;
    let (mut last, mut bytes) = (None, 0);
    for looked_at in 0.. {
        if page.data.len() == limit || looked_at == ROWS_PER_PAGE_MAX || bytes >= BYTES_PER_PAGE_MAX {
            page.next = last.map(|no: i64| no.to_string());
            break;
        }
        let Some(row) = rows.next()? else { break };
        let accepted_at: i64 = row.get(7)?;
        if ask.since.is_some_and(|since| accepted_at < millis(since) - ORDER_SLACK_MS) {
            break;
        }
        last = Some(row.get(0)?);
        let matches = is_within(accepted_at, ask.since, ask.until)
            && is_same(row, 2, ask.event_type.as_deref())?
            && is_same(row, 3, ask.key.as_deref())?;
        if matches {
            let record = event_from(row, tenant)?;
            bytes += record.event.data.len();
            page.data.push(record);
        }
    }
    Ok(page)
}

fn is_within(at: i64, since: Option<Timestamp>, until: Option<Timestamp>) -> bool {
    since.is_none_or(|since| at >= millis(since)) && until.is_none_or(|until| at < millis(until))
}

fn is_same(row: &Row<'_>, column: usize, wanted: Option<&str>) -> rusqlite::Result<bool> {
    let Some(wanted) = wanted else { return Ok(true) };
    Ok(row.get_ref(column)?.as_str_or_null()? == Some(wanted))
}

/// Returns the statement that reads deliveries with their events and last
/// attempts.
fn delivery_sql(index: &str, condition: &str) -> String {
    format!(
        "SELECT d.no, d.created_at, t.id, e.id, e.type, p.id, e.key, d.seq, d.state, d.cause, d.behind, d.due_at,
                d.first_attempt_at, d.finished_at, p.deleted_at, a.record, d.lane, d.urgent, d.expires_at, d.stumbles, d.stumble,
                d.format, {PROGRESS}
         FROM deliveries d {index} JOIN events e ON e.no = d.event
              JOIN endpoints p ON p.no = d.endpoint JOIN tenants t ON t.no = d.tenant
              LEFT JOIN attempts a ON a.no = (d.no << 20) + d.attempts
         {condition}"
    )
}

fn delivery_from(row: &Row<'_>) -> rusqlite::Result<Delivery> {
    let last: Option<Attempt> = row.get::<_, Option<String>>(15)?.map(|text| parse_attempt(&text));
    let (last_status, last_error, body_sha256) = match last {
        Some(attempt) => (attempt.status, attempt.error, Some(attempt.body_sha256)),
        None => (None, None, None),
    };
    let deleted_at: Option<i64> = row.get(14)?;
    let (state, finished_at) = shown_state(row.get(8)?, row.get(13)?, deleted_at)?;
    Ok(Delivery {
        id: delivery_id(row.get(0)?, row.get(1)?),
        tenant: stored_tenant(&row.get::<_, String>(2)?),
        event_id: EventId::from_stored(&row.get::<_, String>(3)?),
        event_type: row.get(4)?,
        endpoint_id: EndpointId(uuid_of(row.get(5)?)),
        key: row.get(6)?,
        lane: row.get(16)?,
        seq: row.get::<_, Option<i64>>(7)?.map(|seq| seq as u64),
        state,
        cause: row.get::<_, Option<i64>>(9)?.map(cause_of).transpose()?,
        is_behind: row.get(10)?,
        due_at: at(row.get(11)?),
        is_urgent: row.get(17)?,
        expires_at: row.get::<_, Option<i64>>(18)?.map(at),
        internal_errors: row.get(19)?,
        internal_error: row.get(20)?,
        format: format_of(row.get(21)?)?,
        progress: progress_from(row, 22)?,
        created_at: at(row.get(1)?),
        first_attempt_at: row.get::<_, Option<i64>>(12)?.map(at),
        finished_at: finished_at.map(at),
        last_status,
        last_error,
        body_sha256,
    })
}

/// Returns the state that is shown, and when it was reached. A delivery that
/// waits for a deleted endpoint counts as cancelled, swept yet or not.
fn shown_state(
    state: i64,
    finished_at: Option<i64>,
    deleted_at: Option<i64>,
) -> std::result::Result<(DeliveryState, Option<i64>), UnknownCode> {
    Ok(match (state_of(state)?, deleted_at) {
        (DeliveryState::Waiting, Some(deleted_at)) => (DeliveryState::Cancelled, Some(deleted_at)),
        (state, _) => (state, finished_at),
    })
}

fn parse_attempt(record: &str) -> Attempt {
    serde_json::from_str(record).expect("the store holds what was written into it")
}

fn find(db: &Connection, tenant: &TenantId, id: DeliveryId) -> rusqlite::Result<Option<Delivery>> {
    let sql = delivery_sql("", "WHERE d.no = ? AND t.id = ? AND t.deleted_at IS NULL");
    let found =
        db.prepare_cached(&sql)?.query_row(params![delivery_no(id), tenant.as_str()], delivery_from).optional()?;
    Ok(found.filter(|delivery| delivery.id == id))
}

fn deliveries(
    db: &Connection,
    tenant: &TenantId,
    ask: &DeliveryFilter,
    cursor: i64,
    limit: usize,
) -> rusqlite::Result<ListPage<Delivery>> {
    let mut page = ListPage { data: Vec::new(), next: None };
    let Some((tenant_no, endpoint_no)) = numbers_of(db, tenant, ask.endpoint)? else { return Ok(page) };
    let below = walk::below_until(db, "deliveries", "created_at", ask.until, cursor)?;
    let mut statement = db.prepare_cached(&delivery_list_sql(ask))?;
    let mut rows = statement.query(params![tenant_no, ask.state.map(state_code), endpoint_no, below])?;
    let mut last = None;
    for looked_at in 0.. {
        if page.data.len() == limit || looked_at == ROWS_PER_PAGE_MAX {
            page.next = last.map(|no: i64| no.to_string());
            break;
        }
        let Some(row) = rows.next()? else { break };
        let created_at: i64 = row.get(1)?;
        if ask.since.is_some_and(|since| created_at < millis(since) - ORDER_SLACK_MS) {
            break;
        }
        last = Some(row.get(0)?);
        if is_match(row, ask)? {
            page.data.push(delivery_from(row)?);
        }
    }
    Ok(page)
}

/// Returns the numbers of the tenant, and of its endpoint if one is asked for, or
/// nothing if one of them does not exist.
fn numbers_of(
    db: &Connection,
    tenant: &TenantId,
    endpoint: Option<EndpointId>,
) -> rusqlite::Result<Option<(i64, Option<i64>)>> {
    let Some(tenant_no) = tenant_no(db, tenant)? else { return Ok(None) };
    let Some(id) = endpoint else { return Ok(Some((tenant_no, None))) };
    let sql = "SELECT no FROM endpoints WHERE id = ? AND tenant = ?";
    let endpoint_no = db.query_row(sql, params![id_bytes(id.0), tenant_no], |row| row.get(0)).optional()?;
    Ok(endpoint_no.map(|no| (tenant_no, Some(no))))
}

/// Whether a row of [`delivery_sql`] passes a filter, apart from the time of its
/// finish.
fn is_match(row: &Row<'_>, ask: &DeliveryFilter) -> rusqlite::Result<bool> {
    let state = shown_state(row.get(8)?, row.get(13)?, row.get(14)?);
    let cause: Option<i64> = row.get(9)?;
    let endpoint = ask.endpoint.map(|id| id_bytes(id.0));
    Ok(ask.state.is_none_or(|wanted| state.is_ok_and(|(state, _)| state == wanted))
        && ask.cause.is_none_or(|wanted| cause == Some(cause_code(wanted)))
        && endpoint.is_none_or(|wanted| row.get(5).is_ok_and(|id: [u8; 16]| id == wanted))
        && is_within(row.get(1)?, ask.since, ask.until)
        && is_same(row, 4, ask.event_type.as_deref())?
        && is_same(row, 6, ask.key.as_deref())?)
}

/// Returns the statement that walks down the deliveries of the tenant `?1`
/// below the number `?4`, through the index that fits the question. Where it
/// has no use for the state `?2` or the endpoint `?3`, it names them all the
/// same, so that every statement has four parameters.
fn delivery_list_sql(ask: &DeliveryFilter) -> String {
    match (ask.state, ask.endpoint) {
        (Some(DeliveryState::Waiting | DeliveryState::Dead | DeliveryState::Cancelled), _) => delivery_sql(
            "INDEXED BY deliveries_undelivered",
            "WHERE d.tenant = ?1 AND d.state = ?2 AND d.state <> 1 AND d.no < ?4 AND ?3 IS ?3 ORDER BY d.no DESC",
        ),
        (_, Some(_)) => delivery_sql(
            "INDEXED BY deliveries_by_endpoint",
            "WHERE d.endpoint = ?3 AND d.tenant = ?1 AND d.no < ?4 AND ?2 IS ?2 ORDER BY d.no DESC",
        ),
        (_, None) => delivery_sql(
            "INDEXED BY deliveries_by_tenant",
            "WHERE d.tenant = ?1 AND d.no < ?4 AND ?2 IS ?2 AND ?3 IS ?3 ORDER BY d.no DESC",
        ),
    }
}

/// Returns a page of an endpoint's lanes. The cursor is the key of a lane with
/// a mark before it, so that the empty key makes a cursor too.
fn lanes(
    db: &Connection,
    tenant: &TenantId,
    endpoint: EndpointId,
    blocked_only: bool,
    ask: &PageRequest,
) -> rusqlite::Result<ListPage<Lane>> {
    let mut page = ListPage { data: Vec::new(), next: None };
    let after = ask.cursor.as_deref().and_then(|cursor| cursor.strip_prefix('~'));
    let sql = "SELECT l.lane, l.head, h.created_at, h.state = 2, l.head_since, l.endpoint
               FROM lanes l JOIN endpoints p ON p.no = l.endpoint JOIN tenants t ON t.no = p.tenant
                    JOIN deliveries h ON h.no = l.head
               WHERE p.id = ?1 AND t.id = ?2 AND p.deleted_at IS NULL AND t.deleted_at IS NULL
                 AND (?3 IS NULL OR l.lane > ?3) ORDER BY l.lane";
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query(params![id_bytes(endpoint.0), tenant.as_str(), after])?;
    let mut last = None;
    for looked_at in 0.. {
        if page.data.len() == ask.limit || looked_at == ROWS_PER_PAGE_MAX {
            page.next = last.map(|lane: String| format!("~{lane}"));
            break;
        }
        let Some(row) = rows.next()? else { break };
        let lane: String = row.get(0)?;
        last = Some(lane.clone());
        let is_blocked: bool = row.get(3)?;
        if is_blocked || !blocked_only {
            page.data.push(lane_from(db, row)?);
        }
    }
    Ok(page)
}

fn lane_from(db: &Connection, row: &Row<'_>) -> rusqlite::Result<Lane> {
    let lane: String = row.get(0)?;
    let members: i64 = db
        .prepare_cached(
            "SELECT count(*) FROM deliveries INDEXED BY deliveries_by_lane
             WHERE endpoint = ? AND lane = ? AND passed = 0",
        )?
        .query_row(params![row.get::<_, i64>(5)?, lane], |row| row.get(0))?;
    Ok(Lane {
        key: Some(lane).filter(|lane| !lane.is_empty()),
        head: delivery_id(row.get(1)?, row.get(2)?),
        is_blocked: row.get(3)?,
        since: at(row.get(4)?),
        waiting: (members - 1).max(0) as u64,
    })
}
