//! Finds waiting deliveries that may have expired.

use std::sync::LazyLock;

use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::PostgresState;
use super::history::walk::{MOVED_BELOW, SLACK_MS, number_at};
use super::read_query::read_rows;
use super::rows::{FORMAT_CODE_MAX, at, delivery_id, delivery_no, millis};
use super::stored_function::{IN_ORDER, NamedSql, StoredFunction};
use super::transaction::bind;
use crate::model::id::TenantId;
use crate::store::delivery_columns::OverdueColumns;
use crate::store::row::{PostgresColumns, joined, row};
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
    let rows = read_rows(shared, OVERDUE.call(), bind![shards, one_more, FORMAT_CODE_MAX]).await?;
    let mut page = OverduePage::default();
    for row in rows.iter().map(PostgresOverdueRow::read) {
        if row.expiry_check_at > millis(now) || page.found.len() == limit {
            page.next_at = Some(at(row.expiry_check_at));
            break;
        }
        page.found.push(row.delivery.into());
    }
    Ok(page)
}

row! {
    /// A delivery whose expiry is to be checked.
    postgres struct PostgresOverdueRow {
        delivery: OverdueColumns = OverdueColumns::COLUMNS,
        expiry_check_at: i64 = "d.expiry_check_at",
    }
}

row! {
    /// How far a scan has come: every row says it, also one without a delivery.
    postgres struct UntriedScan {
        looked: i64 = "w.looked",
        last_no: i64 = "w.no",
        last_created_at: i64 = "w.created_at",
        found: Option<i64> = "d.no",
    }
}

/// Reads what may have expired: `sql/overdue.sql`.
pub static OVERDUE: LazyLock<StoredFunction> = LazyLock::new(|| {
    let sql = NamedSql::new(include_str!("sql/overdue.sql")).parameter("shards", Type::INT2_ARRAY);
    let sql = sql.parameter("limit", Type::INT8).parameter("format_max", Type::INT2);
    StoredFunction::query::<PostgresOverdueRow>(
        "overdue",
        IN_ORDER,
        sql.replace("columns", PostgresOverdueRow::COLUMNS),
    )
});

/// Reads waiting deliveries that have had no attempt: `sql/untried.sql`.
pub static UNTRIED: LazyLock<StoredFunction> = LazyLock::new(|| {
    let numbers = ["tenant", "after", "below", "rows_max", "limit"];
    let sql = NamedSql::new(include_str!("sql/untried.sql"));
    let sql = numbers.into_iter().fold(sql, |sql, name| sql.parameter(name, Type::INT8));
    let sql = sql.parameter("shards", Type::INT2_ARRAY).parameter("before", Type::INT8);
    let sql = sql.parameter("format_max", Type::INT2);
    let columns = joined!(", "; UntriedScan::COLUMNS, OverdueColumns::COLUMNS);
    let sql = sql.replace("columns", columns);
    StoredFunction::query::<(UntriedScan, OverdueColumns)>("untried", IN_ORDER, sql)
});

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
    let parameters = bind![tenant, after, below, ROWS_MAX, limit, shards, before, FORMAT_CODE_MAX];
    let rows = read_rows(shared, UNTRIED.call(), parameters).await?;
    let Some(scan) = rows.first().map(UntriedScan::read) else { return Ok(page) };
    page.found = rows.iter().filter_map(untried_delivery).collect();
    page.next = match page.found.last() {
        Some(last) if page.found.len() == query.limit => Some(last.id),
        _ => (scan.looked == ROWS_MAX).then(|| delivery_id(scan.last_no, scan.last_created_at)),
    };
    Ok(page)
}

/// Returns the delivery of a row, if it holds one.
fn untried_delivery(row: &Row) -> Option<OverdueDelivery> {
    let mut column = 0;
    UntriedScan::read_next(row, &mut column).found?;
    Some(OverdueColumns::read_next(row, &mut column).into())
}
