//! Answers questions about events, deliveries, attempts and lanes.
//!
//! Every list walks one index from its newest row and stops after a bounded
//! number of rows, whether they match or not. So a page may be short and still
//! have a next page. Each question is one statement, and so sees one snapshot.

use std::collections::BTreeMap;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio_postgres::Row;

use super::due::OLDEST_DUE;
use super::read_query::{read_one, read_rows};
use super::rows::{at, delivery_id, delivery_no, delivery_no_of_attempt, millis, stored_tenant};
use super::transaction::bind;
use super::{PostgresState, PostgresStore};
use crate::model::attempt::Attempt;
use crate::model::dead_letter_group::{DeadLetterGroups, DeadLetterSpan, GroupFilter};
use crate::model::delivery::Delivery;
use crate::model::delivery_filter::DeliveryFilter;
use crate::model::endpoint_event::EndpointEventRecord;
use crate::model::id::{AttemptId, DeliveryId, EndpointId, EventId, TenantId};
use crate::store::row::{PostgresColumns, joined, row};
use crate::store::stored_json::from_json;
use crate::store::{Error, EventQuery, EventRecord, History, Lane, ListPage, LongRetries, PageRequest, Result};

pub use deliveries::{candidates, candidates_by_id};
pub use events::PostgresEventRecordColumns;
use walk::number_at;

mod blocked_lanes;
mod by_finish;
mod dead_groups;
mod deliveries;
mod events;
mod long_retries;
pub mod walk;

/// Largest number of rows that one page reads.
const ROWS_PER_PAGE_MAX: usize = 10_000;

/// How much later than the time in its id the number of an event may be. When
/// the numbers of a millisecond are used up, those of the next are taken.
const LENT_MS_MAX: i64 = 1_000;

#[async_trait]
impl History for PostgresStore {
    async fn event(&self, tenant: &TenantId, id: &EventId) -> Result<Option<EventRecord>> {
        let found = find_event(&self.shared, tenant, id, PostgresEventRecordColumns::COLUMNS).await?;
        found.map(|row| PostgresEventRecordColumns::read(&row).record(tenant.clone())).transpose()
    }

    async fn events(&self, tenant: &TenantId, query: EventQuery, page: PageRequest) -> Result<ListPage<EventRecord>> {
        events::list(&self.shared, tenant, &query, &page).await
    }

    async fn event_deliveries(&self, tenant: &TenantId, id: &EventId) -> Result<Option<Vec<Delivery>>> {
        let found = find_event(&self.shared, tenant, id, "e.first_delivery, e.deliveries, e.no").await?;
        let Some(row) = found else { return Ok(None) };
        let (first, count): (i64, i32) = (row.get(0), row.get(1));
        let numbers = first..first + i64::from(count);
        deliveries::of_event(&self.shared, tenant, numbers, row.get(2)).await.map(Some)
    }

    async fn delivery(&self, tenant: &TenantId, id: DeliveryId) -> Result<Option<Delivery>> {
        deliveries::find(&self.shared, tenant, id).await
    }

    async fn tenant_of_delivery(&self, id: DeliveryId) -> Result<Option<TenantId>> {
        let found = delivery_of_number(&self.shared, delivery_no(id)).await?;
        Ok(found.filter(|(_, found)| *found == id).map(|(tenant, _)| tenant))
    }

    async fn delivery_of_attempt(&self, id: AttemptId) -> Result<Option<(TenantId, DeliveryId)>> {
        delivery_of_number(&self.shared, delivery_no_of_attempt(id)).await
    }

    async fn deleted_endpoint(&self, id: EndpointId) -> Result<Option<(TenantId, Timestamp)>> {
        let found = read_one(&self.shared, include_str!("sql/deleted_endpoint.sql"), bind![id]).await?;
        Ok(found.map(|row| (row.get(0), at(row.get(1)))))
    }

    async fn tenants_of_event(&self, id: &EventId, limit: usize) -> Result<Vec<TenantId>> {
        let (from, below) = made_numbers(id);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let sql = include_str!("sql/tenants_of_event.sql");
        let rows = read_rows(&self.shared, sql, bind![id.as_str(), from, below, limit]).await?;
        Ok(rows.iter().map(|row| stored_tenant(row.get(0))).collect())
    }

    async fn deliveries(
        &self,
        tenant: &TenantId,
        query: DeliveryFilter,
        page: PageRequest,
    ) -> Result<ListPage<Delivery>> {
        scanned_deliveries(&self.shared, Some(tenant), &query, &page).await
    }

    async fn all_deliveries(&self, query: DeliveryFilter, page: PageRequest) -> Result<ListPage<Delivery>> {
        scanned_deliveries(&self.shared, None, &query, &page).await
    }

    async fn dead_letter_groups(
        &self,
        tenant: Option<&TenantId>,
        ask: GroupFilter,
        limit: usize,
    ) -> Result<DeadLetterGroups> {
        dead_groups::groups(&self.shared, tenant, &ask, limit).await
    }

    async fn count_dead_letters(&self, of: DeadLetterSpan, most: usize) -> Result<u64> {
        dead_groups::count(&self.shared, &of, most).await
    }

    async fn attempts(&self, tenant: &TenantId, id: DeliveryId) -> Result<Option<Vec<Attempt>>> {
        let Some(tenant) = self.shared.index().tenant_no(tenant) else { return Ok(None) };
        let no = delivery_no(id);
        let rows = read_rows(&self.shared, include_str!("sql/attempts.sql"), bind![no, tenant]).await?;
        let is_it = rows.first().is_some_and(|row| delivery_id(no, row.get("created_at")) == id);
        if !is_it {
            return Ok(None);
        }
        attempts_from(rows.iter().filter_map(|row| row.get::<_, Option<&str>>("record"))).map(Some)
    }

    async fn long_retries(
        &self,
        tenant: Option<&TenantId>,
        endpoint: Option<EndpointId>,
        began_before: Timestamp,
    ) -> Result<LongRetries> {
        long_retries::count(&self.shared, tenant, endpoint, began_before).await
    }

    async fn endpoint_events(&self, endpoint: EndpointId, page: PageRequest) -> Result<ListPage<EndpointEventRecord>> {
        let below = cursor_no(&page)?;
        let Some(endpoint) = endpoint_no(&self.shared, endpoint) else {
            return Ok(ListPage::empty());
        };
        let limit = i64::try_from(page.limit).unwrap_or(i64::MAX).saturating_add(1);
        let mut rows =
            read_rows(&self.shared, include_str!("sql/endpoint_events.sql"), bind![endpoint, below, limit]).await?;
        let has_more = rows.len() > page.limit;
        rows.truncate(page.limit);
        let next = rows.last().filter(|_| has_more).map(|row| row.get::<_, i64>(0).to_string());
        let data = rows.iter().map(|row| from_json("endpoint_events.record", row.get(1)));
        Ok(ListPage::of(data.collect::<std::result::Result<_, _>>()?, next))
    }

    async fn oldest_due(&self, endpoints: Vec<EndpointId>) -> Result<Vec<Option<Timestamp>>> {
        // No endpoint has the number 0, so nothing is due for an unknown one.
        let numbers: Vec<i64> = endpoints.iter().map(|id| endpoint_no(&self.shared, *id).unwrap_or_default()).collect();
        let rows = read_rows(&self.shared, OLDEST_DUE.call(), bind![numbers]).await?;
        Ok(rows.iter().map(|row| row.get::<_, Option<i64>>(0).map(at)).collect())
    }

    async fn lane_head(&self, endpoint: EndpointId, lane: &str) -> Result<Option<(DeliveryId, bool)>> {
        let Some(endpoint) = endpoint_no(&self.shared, endpoint) else { return Ok(None) };
        let head = read_one(&self.shared, include_str!("sql/lane_head.sql"), bind![endpoint, lane]).await?;
        Ok(head.map(|row| (delivery_id(row.get(0), row.get(1)), row.get(2))))
    }

    async fn blocked_lanes(&self, endpoints: Vec<EndpointId>, look: usize) -> Result<Vec<(EndpointId, Lane)>> {
        blocked_lanes::first_of_each(&self.shared, &endpoints, look).await
    }

    async fn lanes(
        &self,
        tenant: &TenantId,
        endpoint: EndpointId,
        blocked_only: bool,
        page: PageRequest,
    ) -> Result<ListPage<Lane>> {
        lanes(&self.shared, tenant, endpoint, blocked_only, &page).await
    }
}

/// Returns a page of the deliveries of a tenant, or of all.
async fn scanned_deliveries(
    shared: &PostgresState,
    tenant: Option<&TenantId>,
    query: &DeliveryFilter,
    page: &PageRequest,
) -> Result<ListPage<Delivery>> {
    if query.is_by_finish() {
        by_finish::list_by_finish(shared, tenant, query, page).await
    } else {
        deliveries::list(shared, tenant, query, page).await
    }
}

/// Returns the delivery with this number, and its tenant.
async fn delivery_of_number(shared: &PostgresState, no: i64) -> Result<Option<(TenantId, DeliveryId)>> {
    let found = read_one(shared, include_str!("sql/tenant_of_delivery.sql"), bind![no]).await?;
    Ok(found.map(|row| (row.get(0), delivery_id(no, row.get(1)))))
}

/// Returns the number of an endpoint that is not deleted.
fn endpoint_no(shared: &PostgresState, id: EndpointId) -> Option<i64> {
    shared.index().endpoint_entry(id).map(|(no, _)| no)
}

fn cursor_no(page: &PageRequest) -> Result<i64> {
    match &page.cursor {
        None => Ok(i64::MAX),
        Some(text) => text.parse().map_err(|_| Error::InvalidCursor),
    }
}

/// Finds an event by its id, and reads these columns.
pub async fn find_event(shared: &PostgresState, tenant: &TenantId, id: &EventId, columns: &str) -> Result<Option<Row>> {
    let Some(tenant) = shared.index().tenant_no(tenant) else { return Ok(None) };
    let (from, below) = made_numbers(id);
    let sql = include_str!("sql/event.sql").replace("{columns}", columns);
    read_one(shared, &sql, bind![tenant, id.as_str(), from, below]).await
}

/// Returns the lowest number that an event may have whose id the gateway made,
/// and the number below which it is; an empty range for an id that a producer chose.
fn made_numbers(id: &EventId) -> (i64, i64) {
    match id.minted_ms() {
        Some(ms) => (number_at(ms), number_at(ms + LENT_MS_MAX)),
        None => (0, 0),
    }
}

/// Returns attempts in the order of their numbers. Of two records with the same
/// number the first counts; it is the one in the delivery's own row.
fn attempts_from<'a>(records: impl Iterator<Item = &'a str>) -> Result<Vec<Attempt>> {
    let mut by_number = BTreeMap::new();
    for record in records {
        let attempt: Attempt = from_json("attempts.record", record)?;
        by_number.entry(attempt.number).or_insert(attempt);
    }
    Ok(by_number.into_values().collect())
}

/// Returns a page of an endpoint's lanes. The cursor is the key of a lane with
/// a mark before it, so that the empty key makes a cursor too.
async fn lanes(
    shared: &PostgresState,
    tenant: &TenantId,
    endpoint: EndpointId,
    blocked_only: bool,
    page: &PageRequest,
) -> Result<ListPage<Lane>> {
    let mut found = ListPage::empty();
    let known = shared.index().endpoint_entry(endpoint).map(|(no, endpoint)| (no, endpoint.tenant.clone()));
    let Some((endpoint, _)) = known.filter(|(_, owner)| owner == tenant) else { return Ok(found) };
    let after = page.cursor.as_deref().and_then(|cursor| cursor.strip_prefix('~')).map(str::to_owned);
    let looked_max = ROWS_PER_PAGE_MAX as i64;
    let limit = i64::try_from(page.limit).unwrap_or(i64::MAX);
    let columns = joined!(", "; LaneScan::COLUMNS, PostgresLaneRow::COLUMNS);
    let sql = include_str!("sql/lanes.sql").replace("{columns}", columns);
    let rows = read_rows(shared, &sql, bind![endpoint, after, looked_max, limit, blocked_only]).await?;
    let mut scan = LaneScan::default();
    let mut last = None;
    for row in &rows {
        let mut column = 0;
        scan = LaneScan::read_next(row, &mut column);
        if let Some(lane) = scan.found.take() {
            found.data.push(PostgresLaneRow::read_next(row, &mut column).lane(&lane));
            last = Some(lane);
        }
    }
    if found.data.len() == page.limit {
        found.next = last.map(|lane| format!("~{lane}"));
    } else if scan.looked == looked_max {
        found.next = scan.last.map(|lane| format!("~{lane}"));
    }
    Ok(found)
}

row! {
    /// How far a list of lanes has come, and the lane of this row, if it holds
    /// one.
    #[derive(Default)]
    postgres struct LaneScan {
        looked: i64 = "w.looked",
        last: Option<String> = "w.last",
        found: Option<String> = "f.lane",
    }
}

row! {
    /// Columns of a lane that are shown.
    postgres struct PostgresLaneRow {
        head: i64 = "f.head",
        head_created_at: i64 = "f.created_at",
        is_blocked: bool = "f.is_dead",
        head_since: i64 = "f.head_since",
        members: i64 = "f.members",
    }
}

impl PostgresLaneRow {
    /// Returns the lane with this key.
    fn lane(self, key: &str) -> Lane {
        Lane {
            key: Some(key.to_owned()).filter(|lane| !lane.is_empty()),
            head: delivery_id(self.head, self.head_created_at),
            is_blocked: self.is_blocked,
            since: at(self.head_since),
            waiting: (self.members - 1).max(0) as u64,
        }
    }
}

/// Returns a time as it is compared in SQL, if there is one.
fn bound_of(time: Option<Timestamp>) -> Option<i64> {
    time.map(millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u32, body: &str) -> String {
        let attempt = Attempt {
            number,
            started_at: at(1_000),
            timings: Default::default(),
            url: String::new(),
            url_version: 1,
            status: Some(200),
            error: None,
            refused_target: None,
            custom_headers: Vec::new(),
            signatures: Vec::new(),
            secret_id: None,
            traceparent: None,
            response_headers: Vec::new(),
            response_body: body.into(),
            truncated: false,
            body_sha256: String::new(),
            decision: crate::model::attempt::Decision::of(crate::model::verdict::Verdict::Delivered, "a rule"),
        };
        serde_json::to_string(&attempt).unwrap()
    }

    #[test]
    fn an_attempt_in_both_places_counts_once_and_the_deliverys_own_counts() {
        let records = [record(2, "own"), record(1, "first"), record(2, "other")];
        let attempts = attempts_from(records.iter().map(String::as_str)).unwrap();
        let told: Vec<_> = attempts.iter().map(|a| (a.number, a.response_body.as_str())).collect();
        assert_eq!(told, [(1, "first"), (2, "own")]);
    }
}
