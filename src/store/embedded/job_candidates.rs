//! Reads the deliveries that a job may take.

use rusqlite::{Connection, OptionalExtension, params};

use super::history::deliveries::{DeliveryListColumns, delivery_tables};
use super::rows::{delivery_id, delivery_no};
use crate::model::delivery::DeliveryState;
use crate::model::id::{DeliveryId, EndpointId, TenantId};
use crate::model::job::JobCandidate;
use crate::store::row::SqliteColumns;
use crate::store::{CandidatePage, CandidateWalk};

/// Most waiting deliveries of an endpoint that are put into the order of their numbers
/// for each page: the index of those that wait is in the order of their due times.
const SORTED_MAX: i64 = 10_000;

/// The rows of an endpoint in all states.
const ALL_OF_ENDPOINT: &str = "INDEXED BY deliveries_by_endpoint";
/// The rows of an endpoint that wait, put in order.
const FEW_WAITING: &str = "d.no IN (SELECT no FROM deliveries INDEXED BY deliveries_due
                                    WHERE endpoint = ? AND state = 0 AND no > ? AND no < ? ORDER BY no :order LIMIT ?)
                           ORDER BY d.no :order";

/// Reads an endpoint's deliveries in the order of their numbers, or against it. Dead ones
/// have a table of their own, and waiting ones an index, unless there are many; to find
/// others, rows in other states are read, too.
pub fn candidates(
    db: &Connection,
    endpoint: EndpointId,
    state: DeliveryState,
    walk: CandidateWalk,
    look: usize,
) -> rusqlite::Result<CandidatePage> {
    let sql = "SELECT no FROM endpoints WHERE id = ?";
    let endpoint: Option<i64> = db.prepare_cached(sql)?.query_row([endpoint], |row| row.get(0)).optional()?;
    let Some(endpoint) = endpoint else { return Ok(CandidatePage { is_end: true, ..CandidatePage::default() }) };
    let (from, below, order) = match walk {
        CandidateWalk::OldestFirst(after) => (after.map_or(0, delivery_no), i64::MAX, "ASC"),
        CandidateWalk::NewestFirst(before) => (0, before.map_or(i64::MAX, delivery_no), "DESC"),
    };
    let by_number = |rows: &str| {
        format!("{rows}.endpoint = ? AND {rows}.no > ? AND {rows}.no < ? ORDER BY {rows}.no {order} LIMIT ?")
    };
    let (from, source, chosen) = match state {
        DeliveryState::Dead => (from, "JOIN dead_letters x ON x.no = d.no", by_number("x")),
        DeliveryState::Waiting => match waiting_rows(db, endpoint)? {
            WaitingRows::Few => (from, "", FEW_WAITING.replace(":order", order)),
            WaitingRows::Many { first } => (from.max(first - 1), ALL_OF_ENDPOINT, by_number("d")),
        },
        DeliveryState::Delivered | DeliveryState::Cancelled => (from, ALL_OF_ENDPOINT, by_number("d")),
    };
    let sql = format!(
        "SELECT {}, a.record, d.passed, length(e.data) = 0 {} WHERE {chosen}",
        DeliveryListColumns::COLUMNS,
        delivery_tables(source),
    );
    let mut statement = db.prepare_cached(&sql)?;
    let mut rows = statement.query(params![endpoint, from, below, look as i64])?;
    let mut page = CandidatePage::default();
    while let Some(row) = rows.next()? {
        page.read += 1;
        let columns = CandidateColumns::read(row)?;
        let delivery = &columns.listed.delivery;
        page.looked_to = Some(delivery_id(delivery.no, delivery.created_at));
        if delivery.shown_state().is_ok_and(|(shown, _)| shown == state) {
            page.candidates.push(columns.candidate()?);
        }
    }
    page.is_end = page.read < look;
    Ok(page)
}

/// How many deliveries wait for an endpoint.
enum WaitingRows {
    /// Few enough to be put in order for each page.
    Few,
    /// Too many for that. The first of them has this number.
    Many { first: i64 },
}

/// Returns whether few or many deliveries wait for an endpoint.
fn waiting_rows(db: &Connection, endpoint: i64) -> rusqlite::Result<WaitingRows> {
    let sql = "SELECT count(*) FROM (
                   SELECT 1 FROM deliveries INDEXED BY deliveries_due WHERE endpoint = ? AND state = 0 LIMIT ?)";
    let count: i64 = db.prepare_cached(sql)?.query_row(params![endpoint, SORTED_MAX + 1], |row| row.get(0))?;
    if count <= SORTED_MAX {
        return Ok(WaitingRows::Few);
    }
    let sql = "SELECT min(no) FROM deliveries INDEXED BY deliveries_due WHERE endpoint = ? AND state = 0";
    let first: Option<i64> = db.prepare_cached(sql)?.query_row([endpoint], |row| row.get(0))?;
    Ok(WaitingRows::Many { first: first.unwrap_or(1) })
}

/// Columns of a delivery that a job may take.
struct CandidateColumns {
    listed: DeliveryListColumns,
    record: Option<String>,
    is_passed: bool,
    is_expunged: bool,
}

impl CandidateColumns {
    fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        let mut column = 0;
        Ok(Self {
            listed: DeliveryListColumns::read_next(row, &mut column)?,
            record: SqliteColumns::read_next(row, &mut column)?,
            is_passed: SqliteColumns::read_next(row, &mut column)?,
            is_expunged: SqliteColumns::read_next(row, &mut column)?,
        })
    }

    fn candidate(self) -> rusqlite::Result<JobCandidate> {
        let Self { listed, record, is_passed, is_expunged } = self;
        Ok(JobCandidate { delivery: listed.delivery(record)?, is_passed, is_expunged })
    }
}

/// Reads deliveries of a tenant by their ids, in the order of their numbers.
pub fn candidates_by_id(
    db: &Connection,
    tenant: &TenantId,
    mut ids: Vec<DeliveryId>,
) -> rusqlite::Result<Vec<JobCandidate>> {
    let sql = format!(
        "SELECT {}, a.record, d.passed, length(e.data) = 0 {} WHERE d.no = ? AND t.id = ? AND t.deleted_at IS NULL",
        DeliveryListColumns::COLUMNS,
        delivery_tables(""),
    );
    let mut statement = db.prepare_cached(&sql)?;
    ids.sort_by_key(|id| delivery_no(*id));
    let mut found = Vec::new();
    for id in ids {
        let row = statement.query_row(params![delivery_no(id), tenant], CandidateColumns::read).optional()?;
        let candidate = row.map(CandidateColumns::candidate).transpose()?;
        found.extend(candidate.filter(|candidate| candidate.delivery.id == id));
    }
    Ok(found)
}
