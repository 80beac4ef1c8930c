//! Lists deliveries: one walk down an index, newest first.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{ORDER_SLACK_MS, ROWS_PER_PAGE_MAX, is_same, is_within, tenant_no, walk};
use crate::model::delivery::{Delivery, DeliveryState};
use crate::model::delivery_filter::DeliveryFilter;
use crate::model::id::{DeliveryId, EndpointId, TenantId};
use crate::store::ListPage;
use crate::store::delivery_columns::{ShownColumns, ShownEvent};
use crate::store::embedded::rows::{at, cause_code, delivery_no, id_bytes, millis, state_code};
use crate::store::row::{SqliteColumns, row};
use crate::store::stored_value::StoredCode;

row! {
    /// The columns that a list of deliveries filters by and shows, except the attempt.
    pub sqlite struct DeliveryListColumns {
        /// What is shown of the delivery.
        delivery: ShownColumns = ShownColumns::COLUMNS,
        /// Id of its tenant.
        tenant: TenantId = "t.id",
        /// Its event, as it is shown.
        event: ShownEvent = ShownEvent::COLUMNS,
    }
}

impl DeliveryListColumns {
    /// Whether it passes a filter, apart from the time of its finish.
    pub fn is_match(&self, ask: &DeliveryFilter) -> bool {
        let (delivery, state) = (&self.delivery, self.delivery.shown_state());
        ask.state.is_none_or(|wanted| state.is_ok_and(|(state, _)| state == wanted))
            && ask.cause.is_none_or(|wanted| delivery.cause == Some(StoredCode(cause_code(wanted))))
            && ask.endpoint.is_none_or(|wanted| delivery.endpoint == wanted)
            && is_within(delivery.created_at, ask.since, ask.until)
            && is_same(Some(&self.event.event_type), ask.event_type.as_deref())
            && is_same(self.event.key.as_deref(), ask.key.as_deref())
    }

    /// Returns the delivery with the record of its last attempt.
    pub fn delivery(self, last: Option<String>) -> rusqlite::Result<Delivery> {
        Ok(self.delivery.delivery(self.tenant, self.event, last.as_deref())?)
    }
}

/// Returns the statement that reads deliveries with their events and last
/// attempts.
pub fn delivery_sql(index: &str, condition: &str) -> String {
    format!("SELECT {}, a.record {} {condition}", DeliveryListColumns::COLUMNS, delivery_tables(index))
}

/// Returns the tables that deliveries are read from, with their events and last
/// attempts, through this index or join.
pub fn delivery_tables(index: &str) -> String {
    format!(
        "FROM deliveries d {index} JOIN events e ON e.no = d.event
              JOIN endpoints p ON p.no = d.endpoint JOIN tenants t ON t.no = d.tenant
              LEFT JOIN attempts a ON a.no = (d.no << 20) + d.attempts"
    )
}

/// Reads a row of [`delivery_sql`], if it passes the filter.
pub fn matching_delivery_from(
    row: &Row<'_>,
    is_match: impl Fn(&DeliveryListColumns) -> bool,
) -> rusqlite::Result<Option<Delivery>> {
    let mut column = 0;
    let listed = DeliveryListColumns::read_next(row, &mut column)?;
    is_match(&listed).then(|| listed.delivery(SqliteColumns::read_next(row, &mut column)?)).transpose()
}

/// Reads a row of [`delivery_sql`].
pub fn delivery_from(row: &Row<'_>) -> rusqlite::Result<Delivery> {
    let mut column = 0;
    let listed = DeliveryListColumns::read_next(row, &mut column)?;
    listed.delivery(SqliteColumns::read_next(row, &mut column)?)
}

/// Returns the delivery of a tenant with this id.
pub fn find(db: &Connection, tenant: &TenantId, id: DeliveryId) -> rusqlite::Result<Option<Delivery>> {
    let sql = delivery_sql("", "WHERE d.no = ? AND t.id = ? AND t.deleted_at IS NULL");
    let found =
        db.prepare_cached(&sql)?.query_row(params![delivery_no(id), tenant.as_str()], delivery_from).optional()?;
    Ok(found.filter(|delivery| delivery.id == id))
}

/// Returns a page of the deliveries of a tenant, or of all, newest first.
pub fn list(
    db: &Connection,
    tenant: Option<&TenantId>,
    ask: &DeliveryFilter,
    cursor: i64,
    limit: usize,
) -> rusqlite::Result<ListPage<Delivery>> {
    let mut page = ListPage::empty();
    let Some((tenant_no, endpoint_no)) = numbers_of_any(db, tenant, ask.endpoint)? else {
        return Ok(page);
    };
    let below = walk::number_bound_of_time(db, "deliveries", "created_at", ask.until, cursor)?;
    let sql = if tenant.is_some() { delivery_list_sql(ask) } else { all_deliveries_sql(ask) };
    let mut statement = db.prepare_cached(&sql)?;
    let mut rows = statement.query(params![tenant_no, ask.state.map(state_code), endpoint_no, below])?;
    let (mut last, mut created_at) = (None, 0);
    for looked_at in 0.. {
        if page.data.len() == limit || looked_at == ROWS_PER_PAGE_MAX {
            page.next = last.map(|no: i64| no.to_string());
            page.looked_back_to = (page.data.len() < limit).then(|| at(created_at));
            break;
        }
        let Some(row) = rows.next()? else { break };
        let mut column = 0;
        let listed = DeliveryListColumns::read_next(row, &mut column)?;
        created_at = listed.delivery.created_at;
        if ask.since.is_some_and(|since| created_at < millis(since) - ORDER_SLACK_MS) {
            break;
        }
        last = Some(listed.delivery.no);
        if listed.is_match(ask) {
            page.data.push(listed.delivery(SqliteColumns::read_next(row, &mut column)?)?);
        }
    }
    Ok(page)
}

/// Returns the numbers of the tenant and of the endpoint, as far as they are
/// asked for, or nothing if one of them does not exist.
pub fn numbers_of_any(
    db: &Connection,
    tenant: Option<&TenantId>,
    endpoint: Option<EndpointId>,
) -> rusqlite::Result<Option<(Option<i64>, Option<i64>)>> {
    let tenant_no = match tenant {
        None => None,
        Some(tenant) => match tenant_no(db, tenant)? {
            Some(no) => Some(no),
            None => return Ok(None),
        },
    };
    let Some(id) = endpoint else { return Ok(Some((tenant_no, None))) };
    let sql = "SELECT no FROM endpoints WHERE id = ?1 AND (?2 IS NULL OR tenant = ?2)";
    let endpoint_no = db.query_row(sql, params![id_bytes(id.0), tenant_no], |row| row.get(0)).optional()?;
    Ok(endpoint_no.map(|no| (tenant_no, Some(no))))
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

/// Returns the same statement for the deliveries of all tenants, but for
/// deleted ones. The dead are found in their own table; any other walk reads
/// rows in all states.
fn all_deliveries_sql(ask: &DeliveryFilter) -> String {
    let of_all = "?1 IS ?1 AND ?2 IS ?2 AND ?3 IS ?3 AND t.deleted_at IS NULL";
    match ask.state {
        Some(DeliveryState::Dead) => delivery_sql(
            "JOIN dead_letters x ON x.no = d.no",
            &format!("WHERE x.no < ?4 AND {of_all} ORDER BY x.no DESC"),
        ),
        _ => delivery_sql("", &format!("WHERE d.no < ?4 AND {of_all} ORDER BY d.no DESC")),
    }
}
