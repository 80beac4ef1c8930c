//! Reads the deliveries that a job may take.

use rusqlite::{Connection, OptionalExtension, params};

use super::history::deliveries::{DeliveryListColumns, delivery_tables};
use super::rows::{delivery_id, delivery_no};
use crate::model::delivery::DeliveryState;
use crate::model::id::{DeliveryId, EndpointId, TenantId};
use crate::model::job::JobCandidate;
use crate::store::CandidatePage;
use crate::store::row::SqliteColumns;

/// Reads an endpoint's deliveries in the order of their numbers. Dead ones have a
/// table of their own; to find others, rows in other states are read, too.
pub fn candidates(
    db: &Connection,
    endpoint: EndpointId,
    state: DeliveryState,
    after: Option<DeliveryId>,
    look: usize,
) -> rusqlite::Result<CandidatePage> {
    let (source, order) = match state {
        DeliveryState::Dead => ("JOIN dead_letters x ON x.no = d.no", "x"),
        DeliveryState::Waiting | DeliveryState::Delivered | DeliveryState::Cancelled => {
            ("INDEXED BY deliveries_by_endpoint", "d")
        }
    };
    let sql = format!(
        "SELECT {}, a.record, d.passed, length(e.data) = 0 {} WHERE {order}.endpoint = (SELECT no FROM endpoints WHERE id = ?)
             AND {order}.no > ? ORDER BY {order}.no LIMIT ?",
        DeliveryListColumns::COLUMNS,
        delivery_tables(source),
    );
    let mut statement = db.prepare_cached(&sql)?;
    let from = after.map_or(0, delivery_no);
    let mut rows = statement.query(params![endpoint, from, look as i64])?;
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

/// What is read of a delivery that a job may take.
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
