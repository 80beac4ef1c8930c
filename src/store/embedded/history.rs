//! Answers questions about events, deliveries, attempts and lanes.
//!
//! Every list walks one index from its newest row and stops after a bounded
//! number of rows, whether they match or not. So a page may be short and still
//! have a next page.

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::EmbeddedStore;
use super::rows::{UnknownCode, at, delivery_id, delivery_no, delivery_no_of_attempt, id_bytes, millis, withheld_from};
use crate::model::attempt::Attempt;
use crate::model::dead_letter_group::{DeadLetterGroups, DeadLetterSpan, GroupFilter};
use crate::model::delivery::Delivery;
use crate::model::delivery_filter::DeliveryFilter;
use crate::model::endpoint_event::EndpointEventRecord;
use crate::model::id::{AttemptId, DeliveryId, EndpointId, EventId, TenantId};
use crate::store::event_row::EventRow;
use crate::store::row::{SqliteColumns, joined, row};
use crate::store::stored_json::from_json;
use crate::store::{
    Error, EventQuery, EventRecord, FinishPosition, History, Lane, ListPage, LongRetries, PageRequest, Result,
};

/// Number of bytes of data after which a page of events ends. The last event is
/// never cut.
const BYTES_PER_PAGE_MAX: usize = 4 * 1_024 * 1_024;
/// Largest number of rows that one page reads.
const ROWS_PER_PAGE_MAX: usize = 10_000;
/// How far the times of rows may be out of the order of their numbers.
const ORDER_SLACK_MS: i64 = 60_000;

mod blocked_lanes;
mod by_finish;
mod by_id;
mod dead_groups;
pub mod deliveries;
mod long_retries;
pub mod walk;

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
            let range: Option<(i64, i64, i64)> = db
                .prepare_cached("SELECT no, first_delivery, deliveries FROM events WHERE tenant = ? AND id = ?")?
                .query_row(params![no, id.as_str()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
                .optional()?;
            let Some((event, first, count)) = range else { return Ok(None) };
            let sql = deliveries::delivery_sql(
                "",
                "WHERE d.no >= ?1 AND d.no < ?2 OR d.no IN (SELECT delivery FROM backfilled WHERE event = ?3)
                 ORDER BY d.no",
            );
            let mut statement = db.prepare_cached(&sql)?;
            let rows = statement.query_map([first, first + count, event], deliveries::delivery_from)?;
            rows.collect::<rusqlite::Result<Vec<_>>>().map(Some)
        })
        .await
    }

    async fn delivery(&self, tenant: &TenantId, id: DeliveryId) -> Result<Option<Delivery>> {
        let tenant = tenant.clone();
        self.read(move |db| deliveries::find(db, &tenant, id)).await
    }

    async fn tenant_of_delivery(&self, id: DeliveryId) -> Result<Option<TenantId>> {
        self.read(move |db| by_id::tenant_of_delivery(db, id)).await
    }

    async fn delivery_of_attempt(&self, id: AttemptId) -> Result<Option<(TenantId, DeliveryId)>> {
        self.read(move |db| by_id::delivery_of_number(db, delivery_no_of_attempt(id))).await
    }

    async fn tenants_of_event(&self, id: &EventId, limit: usize) -> Result<Vec<TenantId>> {
        let id = id.clone();
        self.read(move |db| by_id::tenants_of_event(db, &id, limit)).await
    }

    async fn deleted_endpoint(&self, id: EndpointId) -> Result<Option<(TenantId, Timestamp)>> {
        self.read(move |db| by_id::deleted_endpoint(db, id)).await
    }

    async fn deliveries(
        &self,
        tenant: &TenantId,
        ask: DeliveryFilter,
        page: PageRequest,
    ) -> Result<ListPage<Delivery>> {
        self.scanned_deliveries(Some(tenant.clone()), ask, page).await
    }

    async fn all_deliveries(&self, ask: DeliveryFilter, page: PageRequest) -> Result<ListPage<Delivery>> {
        self.scanned_deliveries(None, ask, page).await
    }

    async fn dead_letter_groups(
        &self,
        tenant: Option<&TenantId>,
        ask: GroupFilter,
        limit: usize,
    ) -> Result<DeadLetterGroups> {
        let tenant = tenant.cloned();
        self.read(move |db| dead_groups::groups(db, tenant.as_ref(), &ask, limit)).await
    }

    async fn count_dead_letters(&self, of: DeadLetterSpan, most: usize) -> Result<u64> {
        self.read(move |db| dead_groups::count(db, &of, most)).await
    }

    async fn attempts(&self, tenant: &TenantId, id: DeliveryId) -> Result<Option<Vec<Attempt>>> {
        let tenant = tenant.clone();
        self.read(move |db| {
            if deliveries::find(db, &tenant, id)?.is_none() {
                return Ok(None);
            }
            let no = delivery_no(id);
            let mut statement =
                db.prepare_cached("SELECT record FROM attempts WHERE no >= ? AND no < ? ORDER BY no")?;
            let rows = statement.query_map([no << 20, (no + 1) << 20], |row| row.get::<_, String>(0))?;
            rows.map(|record| Ok(from_json("attempts.record", &record?)?)).collect::<rusqlite::Result<_>>().map(Some)
        })
        .await
    }

    async fn long_retries(
        &self,
        tenant: Option<&TenantId>,
        endpoint: Option<EndpointId>,
        began_before: Timestamp,
    ) -> Result<LongRetries> {
        let tenant = tenant.cloned();
        self.read(move |db| long_retries::count(db, tenant.as_ref(), endpoint, began_before)).await
    }

    async fn endpoint_events(&self, endpoint: EndpointId, page: PageRequest) -> Result<ListPage<EndpointEventRecord>> {
        let cursor = cursor_no(&page)?;
        self.read(move |db| {
            let sql = "SELECT m.no, m.record FROM endpoint_events m JOIN endpoints p ON p.no = m.endpoint
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
            let data = found.iter().map(|(_, record)| from_json("endpoint_events.record", record));
            Ok(ListPage::of(data.collect::<std::result::Result<_, _>>()?, next))
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
            let sql = "SELECT h.no, h.created_at, h.state = 2 FROM lane_heads l
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

    async fn blocked_lanes(&self, endpoints: Vec<EndpointId>, look: usize) -> Result<Vec<(EndpointId, Lane)>> {
        self.read(move |db| blocked_lanes::first_of_each(db, &endpoints, look)).await
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

impl EmbeddedStore {
    /// Returns a page of the deliveries of a tenant, or of all.
    async fn scanned_deliveries(
        &self,
        tenant: Option<TenantId>,
        ask: DeliveryFilter,
        page: PageRequest,
    ) -> Result<ListPage<Delivery>> {
        if ask.is_by_finish() {
            let position = FinishPosition::begin(&ask, &page)?;
            let list =
                move |db: &Connection| by_finish::finished_deliveries(db, tenant.as_ref(), &ask, position, page.limit);
            return self.read(list).await;
        }
        let cursor = cursor_no(&page)?;
        self.read(move |db| deliveries::list(db, tenant.as_ref(), &ask, cursor, page.limit)).await
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
        Some(text) => text.parse().map_err(|_| Error::InvalidCursor),
    }
}

row! {
    /// What is shown of an event.
    sqlite struct EmbeddedEventRecordColumns {
        event: EventRow = EventRow::COLUMNS,
        data_withheld: Option<i64> = "e.data_withheld",
    }
}

impl EmbeddedEventRecordColumns {
    fn record(self, tenant: TenantId) -> std::result::Result<EventRecord, UnknownCode> {
        let deliveries = self.event.deliveries.max(0) as u32;
        let (event, is_damaged) = self.event.event(tenant);
        let withheld = withheld_from(event.is_expunged(), self.data_withheld)?;
        Ok(EventRecord { event, withheld, deliveries, is_damaged })
    }
}

row! {
    /// One event of a tenant.
    sqlite struct EventById from "FROM events e WHERE e.tenant = ? AND e.id = ?" {
        event: EmbeddedEventRecordColumns = EmbeddedEventRecordColumns::COLUMNS,
    }
}

/// Reads an event of the tenant with this number.
pub fn stored_event(
    db: &Connection,
    tenant_no: i64,
    tenant: &TenantId,
    id: &EventId,
) -> rusqlite::Result<Option<EventRecord>> {
    let row = db.prepare_cached(EventById::SQL)?.query_row(params![tenant_no, id], EventById::read).optional()?;
    Ok(row.map(|row| row.event.record(tenant.clone())).transpose()?)
}

row! {
    /// What a list of events is filtered by.
    sqlite struct EventFilterColumns {
        no: i64 = "e.no",
        accepted_at: i64 = "e.accepted_at",
        event_type: String = "e.type",
        key: Option<String> = "e.key",
    }
}

/// Lists events. Only a row that is shown is read further than what it is
/// filtered by.
const EVENT_LIST: &str = joined!(
    ""; "SELECT ", EventFilterColumns::COLUMNS, ", ", EmbeddedEventRecordColumns::COLUMNS,
    " FROM events e INDEXED BY events_by_tenant WHERE e.tenant = ? AND e.no < ? ORDER BY e.no DESC",
);

fn events(
    db: &Connection,
    tenant: &TenantId,
    ask: &EventQuery,
    cursor: i64,
    limit: usize,
) -> rusqlite::Result<ListPage<EventRecord>> {
    let mut page = ListPage::empty();
    let Some(no) = tenant_no(db, tenant)? else { return Ok(page) };
    let below = walk::number_bound_of_time(db, "events", "accepted_at", ask.until, cursor)?;
    let mut statement = db.prepare_cached(EVENT_LIST)?;
    let mut rows = statement.query([no, below])?;
    let (mut last, mut bytes, mut accepted_at) = (None, 0, 0);
    for looked_at in 0.. {
        if page.data.len() == limit || looked_at == ROWS_PER_PAGE_MAX || bytes >= BYTES_PER_PAGE_MAX {
            page.next = last.map(|no: i64| no.to_string());
            page.looked_back_to = (looked_at == ROWS_PER_PAGE_MAX && page.data.len() < limit).then(|| at(accepted_at));
            break;
        }
        let Some(row) = rows.next()? else { break };
        let mut column = 0;
        let listed = EventFilterColumns::read_next(row, &mut column)?;
        accepted_at = listed.accepted_at;
        if ask.since.is_some_and(|since| listed.accepted_at < millis(since) - ORDER_SLACK_MS) {
            break;
        }
        last = Some(listed.no);
        let matches = is_within(listed.accepted_at, ask.since, ask.until)
            && is_same(Some(&listed.event_type), ask.event_type.as_deref())
            && is_same(listed.key.as_deref(), ask.key.as_deref());
        if matches {
            let record = EmbeddedEventRecordColumns::read_next(row, &mut column)?.record(tenant.clone())?;
            bytes += record.event.data.len();
            page.data.push(record);
        }
    }
    Ok(page)
}

fn is_within(at: i64, since: Option<Timestamp>, until: Option<Timestamp>) -> bool {
    since.is_none_or(|since| at >= millis(since)) && until.is_none_or(|until| at < millis(until))
}

fn is_same(value: Option<&str>, wanted: Option<&str>) -> bool {
    wanted.is_none() || value == wanted
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
    let mut page = ListPage::empty();
    let after = ask.cursor.as_deref().and_then(|cursor| cursor.strip_prefix('~'));
    let mut statement = db.prepare_cached(EmbeddedLaneRow::SQL)?;
    let mut rows = statement.query(params![endpoint, tenant, after])?;
    let mut last = None;
    for looked_at in 0.. {
        if page.data.len() == ask.limit || looked_at == ROWS_PER_PAGE_MAX {
            page.next = last.map(|lane: String| format!("~{lane}"));
            break;
        }
        let Some(row) = rows.next()? else { break };
        let lane = EmbeddedLaneRow::read(row)?;
        last = Some(lane.lane.clone());
        if lane.is_blocked || !blocked_only {
            page.data.push(lane.counted(db)?);
        }
    }
    Ok(page)
}

row! {
    /// A lane that has a head.
    sqlite struct EmbeddedLaneRow from "FROM lane_heads l JOIN endpoints p ON p.no = l.endpoint JOIN tenants t ON t.no = p.tenant
                    JOIN deliveries h ON h.no = l.head
               WHERE p.id = ?1 AND t.id = ?2 AND p.deleted_at IS NULL AND t.deleted_at IS NULL
                 AND (?3 IS NULL OR l.lane > ?3) ORDER BY l.lane" {
        endpoint: i64 = "l.endpoint",
        lane: String = "l.lane",
        head: i64 = "l.head",
        head_created_at: i64 = "h.created_at",
        is_blocked: bool = "h.state = 2",
        head_since: i64 = "l.head_since",
    }
}

impl EmbeddedLaneRow {
    /// Returns the lane with the number of its members.
    fn counted(self, db: &Connection) -> rusqlite::Result<Lane> {
        let behind: i64 = db
            .prepare_cached(
                "SELECT count(*) FROM deliveries INDEXED BY deliveries_behind
                 WHERE endpoint = ? AND lane = ? AND passed = 0 AND behind = 1",
            )?
            .query_row(params![self.endpoint, self.lane], |row| row.get(0))?;
        Ok(Lane {
            head: delivery_id(self.head, self.head_created_at),
            key: Some(self.lane).filter(|lane| !lane.is_empty()),
            is_blocked: self.is_blocked,
            since: at(self.head_since),
            waiting: behind as u64,
        })
    }
}
