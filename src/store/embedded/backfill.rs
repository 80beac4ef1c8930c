//! Gives past events to an endpoint: deliveries beside their event's one run of
//! numbers. The table `backfilled` tells which event such a delivery belongs to.

use std::sync::Arc;

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::accept::DeliveryToInsert;
use super::history::walk::below_until;
use super::rows::{delivery_id, delivery_no, millis};
use super::writer::WriteTransaction;
use crate::model::backfill::BackfillCandidate;
use crate::model::delivery::before;
use crate::model::endpoint::Endpoint;
use crate::model::id::{DeliveryId, TenantId};
use crate::model::job::LeftOut;
use crate::store::event_row::EventRow;
use crate::store::jobs::{BackfillPage, BackfillQuery, BackfillTake};
use crate::store::plan::backfill::LaneTail;
use crate::store::row::{SqliteColumns, row};
use crate::store::{DeliveryChanged, JobStep, RoutedEvent};

/// Bytes of data after which a page ends.
const PAGE_BYTES: usize = 8 << 20;
/// How much earlier than asked for a walk begins: times are only nearly in order.
const SLACK: std::time::Duration = std::time::Duration::from_secs(120);

row! {
    /// An event, and whether the endpoint `?1` has had a delivery of it.
    sqlite struct EmbeddedBackfillRow {
        no: i64 = "e.no",
        event: EventRow = EventRow::COLUMNS,
        is_got: bool = "EXISTS (SELECT 1 FROM deliveries d WHERE d.no >= e.first_delivery
                            AND d.no < e.first_delivery + e.deliveries AND d.endpoint = ?1)
                        OR EXISTS (SELECT 1 FROM backfilled b WHERE b.event = e.no AND b.endpoint = ?1)",
    }
}

/// Reads the next events of a tenant, oldest first.
pub fn candidates(
    db: &Connection,
    (endpoint_no, endpoint): (i64, &Endpoint),
    query: &BackfillQuery,
) -> rusqlite::Result<BackfillPage> {
    let after = match query.after {
        Some(after) => delivery_no(after),
        None => {
            let since = query.since.map(|since| before(since, SLACK));
            since.map_or(Ok(1), |since| below_until(db, "events", "accepted_at", Some(since), i64::MAX))? - 1
        }
    };
    let sql = format!(
        "SELECT {} FROM events e INDEXED BY events_by_tenant
         WHERE e.tenant = (SELECT no FROM tenants WHERE id = ?2 AND deleted_at IS NULL) AND e.no > ?3
         ORDER BY e.no LIMIT ?4",
        EmbeddedBackfillRow::COLUMNS
    );
    let mut statement = db.prepare_cached(&sql)?;
    let mut rows = statement.query(params![endpoint_no, endpoint.tenant, after, query.look as i64])?;
    let (mut page, mut bytes) = (BackfillPage { is_end: true, ..BackfillPage::default() }, 0);
    while let Some(row) = rows.next()? {
        let EmbeddedBackfillRow { no, event, is_got } = EmbeddedBackfillRow::read(row)?;
        let position = delivery_id(no, event.accepted_at);
        let (event, is_damaged) = event.event(endpoint.tenant.clone());
        bytes += event.data.len();
        let is_overtaken = !may_join(db, endpoint_no, endpoint, &event.key, (no, millis(event.accepted_at)))?;
        page.events.push(BackfillCandidate { position, event, is_damaged, is_got, is_overtaken });
        if bytes >= PAGE_BYTES {
            page.is_end = false;
            break;
        }
    }
    page.is_end &= page.events.len() < query.look;
    Ok(page)
}

/// Whether an event may join its lane at the endpoint, or needs none.
fn may_join(
    db: &Connection,
    endpoint_no: i64,
    endpoint: &Endpoint,
    key: &Option<crate::model::event::EventKey>,
    (event, accepted_at): (i64, i64),
) -> rusqlite::Result<bool> {
    let Some(lane) = endpoint.lane(key.as_ref()) else { return Ok(true) };
    let sql = "SELECT last_event, touched_at FROM lanes WHERE endpoint = ? AND lane = ?";
    let tail = db
        .prepare_cached(sql)?
        .query_row(params![endpoint_no, &*lane], |row| {
            Ok(LaneTail { last_event: row.get(0)?, touched_at: row.get(1)? })
        })
        .optional()?;
    Ok(tail.is_none_or(|tail| tail.is_before(event, accepted_at)))
}

/// Creates the deliveries of a step, or says why one is left out.
pub fn backfill(
    transaction: &mut WriteTransaction<'_>,
    step: &JobStep,
    now: Timestamp,
) -> rusqlite::Result<Vec<Result<(DeliveryId, DeliveryChanged), LeftOut>>> {
    let found = transaction.index.read().endpoint_entry(step.before.endpoint).map(|(no, one)| (no, one.clone()));
    let Some((endpoint_no, endpoint)) = found else {
        return Ok(step.backfill.iter().map(|_| Err(LeftOut::EndpointDeleted)).collect());
    };
    step.backfill.iter().map(|take| one(transaction, (endpoint_no, &endpoint), take, now)).collect()
}

fn one(
    transaction: &mut WriteTransaction<'_>,
    (endpoint_no, endpoint): (i64, &Arc<Endpoint>),
    take: &BackfillTake,
    now: Timestamp,
) -> rusqlite::Result<Result<(DeliveryId, DeliveryChanged), LeftOut>> {
    let db = transaction.db;
    let sql = format!(
        "SELECT e.tenant, t.id, {} FROM events e JOIN tenants t ON t.no = e.tenant WHERE e.no = ?2",
        EmbeddedBackfillRow::COLUMNS
    );
    let mut statement = db.prepare_cached(&sql)?;
    let read = |row: &rusqlite::Row<'_>| {
        let mut column = 0;
        let tenant: i64 = SqliteColumns::read_next(row, &mut column)?;
        let id: TenantId = SqliteColumns::read_next(row, &mut column)?;
        Ok((tenant, id, EmbeddedBackfillRow::read_next(row, &mut column)?))
    };
    let row = statement.query_row(params![endpoint_no, delivery_no(take.position)], read).optional()?;
    let Some((tenant, tenant_id, EmbeddedBackfillRow { no: event_no, event, is_got })) = row else {
        return Ok(Err(LeftOut::TooOld));
    };
    let accepted_at = event.accepted_at;
    let (stored, _) = event.event(tenant_id);
    if is_got {
        return Ok(Err(LeftOut::AlreadyGot));
    }
    if stored.is_expunged() {
        return Ok(Err(LeftOut::Expunged));
    }
    if !may_join(db, endpoint_no, endpoint, &stored.key, (event_no, accepted_at))? {
        return Ok(Err(LeftOut::Overtaken));
    }
    let checksum = stored.checksum();
    // Its budget begins now, not when the event was accepted.
    let event = Arc::new(crate::model::event::Event { accepted_at: now, ..stored });
    let new = RoutedEvent { event, fingerprint: None, targets: Vec::new(), due_at: None, expires_at: take.expires_at };
    let no = *transaction.next_delivery;
    *transaction.next_delivery += 1;
    transaction.count_waiting(endpoint_no, 1);
    let row = DeliveryToInsert { no, tenant, endpoint_no, event_no, endpoint, new: &new, checksum };
    row.insert(transaction.db)?;
    let sql = "INSERT INTO backfilled (event, endpoint, delivery) VALUES (?, ?, ?)";
    transaction.db.prepare_cached(sql)?.execute([event_no, endpoint_no, no])?;
    let (endpoint, due_at) = (endpoint.id, Some(now));
    let changed = DeliveryChanged { endpoint, due_at, freed: Vec::new(), operational_events: Vec::new() };
    Ok(Ok((delivery_id(no, millis(now)), changed)))
}
