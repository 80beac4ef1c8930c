//! Gives past events to an endpoint: deliveries beside their event's one run of
//! numbers. The table `backfilled` tells which event such a delivery belongs to.

use std::sync::Arc;

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::accept::DeliveryToInsert;
use super::history::walk::number_bound_of_time;
use super::rows::{RequestColumns, delivery_id, delivery_no, millis};
use super::writer::WriteTransaction;
use crate::model::backfill::BackfillCandidate;
use crate::model::delivery::time_before;
use crate::model::endpoint::Endpoint;
use crate::model::event::{Event, EventKey};
use crate::model::id::{DeliveryId, TenantId};
use crate::model::job::LeftOut;
use crate::store::event_row::EventRow;
use crate::store::jobs::{BackfillPage, BackfillQuery, BackfillTake};
use crate::store::plan::backfill::{BackfillEvent, LaneTail, with_link_base};
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
            let since = query.since.map(|since| time_before(since, SLACK));
            since.map_or(Ok(1), |since| number_bound_of_time(db, "events", "accepted_at", Some(since), i64::MAX))? - 1
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
        let accepted_at = event.accepted_at;
        let position = delivery_id(no, accepted_at);
        let (event, is_damaged) = event.event(endpoint.tenant.clone());
        bytes += event.data.len();
        let tail = lane_tail(db, endpoint_no, endpoint, event.key.as_ref())?;
        let past = BackfillEvent { no, accepted_at, is_got, is_expunged: event.is_expunged(), tail };
        page.events.push(BackfillCandidate { position, event, is_damaged, is_got, is_overtaken: past.is_overtaken() });
        if bytes >= PAGE_BYTES {
            page.is_end = false;
            break;
        }
    }
    page.is_end &= page.events.len() < query.look;
    Ok(page)
}

/// Reads the end of the lane that an event would join at the endpoint.
fn lane_tail(
    db: &Connection,
    endpoint_no: i64,
    endpoint: &Endpoint,
    key: Option<&EventKey>,
) -> rusqlite::Result<Option<LaneTail>> {
    let Some(lane) = endpoint.lane(key) else { return Ok(None) };
    let sql = "SELECT last_event, touched_at FROM lane_heads WHERE endpoint = ? AND lane = ?";
    db.prepare_cached(sql)?
        .query_row(params![endpoint_no, &*lane], |row| {
            Ok(LaneTail { last_event: row.get(0)?, touched_at: row.get(1)? })
        })
        .optional()
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
    step.backfill.iter().map(|take| create_one(transaction, (endpoint_no, &endpoint), take, now)).collect()
}

fn create_one(
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
    let (accepted_at, known_sum) = (event.accepted_at, event.checksum);
    let (mut stored, _) = event.event(tenant_id);
    let tail = lane_tail(db, endpoint_no, endpoint, stored.key.as_ref())?;
    let past = BackfillEvent { no: event_no, accepted_at, is_got, is_expunged: stored.is_expunged(), tail };
    if let Err(why) = past.check() {
        return Ok(Err(why));
    }
    let before = stored.checksum();
    if let Some(linked) = with_link_base(&stored, known_sum, endpoint, take.link_base.as_deref()) {
        fix_link_base(db, event_no, before, &linked)?;
        stored = linked;
    }
    let checksum = stored.checksum();
    // Its budget begins now, not when the event was accepted.
    let event = Arc::new(Event { accepted_at: now, ..stored });
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

row! {
    /// A delivery of the event `?3`, which has the numbers from `?1` to `?2` or was
    /// backfilled.
    sqlite struct SentRow from "FROM deliveries d
         WHERE (d.no >= ?1 AND d.no < ?2 OR d.no IN (SELECT delivery FROM backfilled WHERE event = ?3)) AND d.event = ?3" {
        request: RequestColumns = RequestColumns::COLUMNS,
        checksum: Option<i64> = "d.checksum",
    }
}

/// Writes with which public URL links to an event's data begin. The checksum of the event
/// changes with it, and so do those of its deliveries, unless they did not fit `before`.
fn fix_link_base(db: &Connection, no: i64, before: i64, event: &Event) -> rusqlite::Result<()> {
    let sum = event.checksum();
    let sql = "UPDATE events SET link_base = ?, checksum = ? WHERE no = ? RETURNING first_delivery, deliveries";
    let (first, count): (i64, i64) =
        db.prepare_cached(sql)?.query_row(params![event.link_base, sum, no], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut statement = db.prepare_cached(SentRow::SQL)?;
    let rows = statement.query_map([first, first + count, no], SentRow::read)?;
    for SentRow { request, checksum } in rows.collect::<rusqlite::Result<Vec<_>>>()? {
        if checksum == Some(request.checksum(before)) {
            db.prepare_cached("UPDATE deliveries SET checksum = ? WHERE no = ?")?
                .execute([request.checksum(sum), request.no])?;
        }
    }
    Ok(())
}
