//! Deletes what is past its retention, a little at a time.
//!
//! A reader finds the candidates; the writer checks them again and deletes
//! them, in transactions small enough that no event waits noticeably for one.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, params};

use super::dead_letters;
use super::operational_events::accept_operational_event;
use super::rows::millis;
use super::writer::WriteTransaction;
use crate::model::id::{EventId, TenantId};
use crate::model::limits::stored_bytes;
use crate::store::codes::UNMATCHED;
use crate::store::forgotten_row::{self, ForgottenColumns, REPORT_STEP};
use crate::store::row::{SqliteColumns, joined, row};
use crate::store::{ForgottenCounts, ForgottenReport, RetentionHorizon};
use jiff::Timestamp;

/// Events that one step of retention may delete.
#[derive(Debug, Default)]
pub struct ForgetCandidates {
    events: Vec<CandidateEvent>,
    next: Option<u64>,
}

row! {
    /// An event with the range of its deliveries.
    sqlite struct CandidateEvent from "FROM events WHERE no > ? ORDER BY no LIMIT ?" {
        no: i64 = "no",
        first_delivery: i64 = "first_delivery",
        deliveries: i64 = "deliveries",
        accepted_at: i64 = "accepted_at",
        tenant: i64 = "tenant",
    }
}

/// Numbers of the tenants that a pass is about.
#[derive(Debug, Clone)]
pub enum ScopeNumbers {
    /// All but these.
    Except(Vec<i64>),
    /// This one; none if it was deleted meanwhile.
    Only(Option<i64>),
}

/// Reads the next events, oldest first, and picks those that are old enough. The events
/// of one tenant are found by their index, and those of all in the order of numbers.
pub fn find_candidates(
    db: &Connection,
    horizon: &RetentionHorizon,
    scope: &ScopeNumbers,
) -> rusqlite::Result<ForgetCandidates> {
    let (except, only) = match scope {
        ScopeNumbers::Except(tenants) => (tenants.as_slice(), None),
        ScopeNumbers::Only(Some(tenant)) => (&[][..], Some(*tenant)),
        ScopeNumbers::Only(None) => return Ok(ForgetCandidates::default()),
    };
    let of_one = joined!(
        " ";
        "SELECT", CandidateEvent::COLUMNS,
        "FROM events INDEXED BY events_by_tenant WHERE tenant = ?3 AND no > ?1 ORDER BY no LIMIT ?2",
    );
    let mut statement = db.prepare_cached(if only.is_some() { of_one } else { CandidateEvent::SQL })?;
    let (after, step) = (horizon.after as i64, horizon.step as i64);
    let mut rows = match only {
        Some(tenant) => statement.query(params![after, step, tenant])?,
        None => statement.query(params![after, step])?,
    };
    let mut candidates = ForgetCandidates::default();
    let mut seen = 0;
    // Dead letters may be kept for a shorter time than the rest.
    let accepted_before = millis(horizon.finished_before.max(horizon.dead_before));
    while let Some(row) = rows.next()? {
        let event = CandidateEvent::read(row)?;
        if event.accepted_at >= accepted_before {
            return Ok(last_page(candidates));
        }
        seen += 1;
        candidates.next = Some(event.no as u64);
        if !except.contains(&event.tenant) {
            candidates.events.push(event);
        }
    }
    if seen < horizon.step {
        return Ok(last_page(candidates));
    }
    Ok(candidates)
}

fn last_page(candidates: ForgetCandidates) -> ForgetCandidates {
    ForgetCandidates { next: None, ..candidates }
}

/// Deletes deliveries that are finished and old enough. An event is deleted
/// with its last delivery.
pub fn forget(
    transaction: &mut WriteTransaction<'_>,
    candidates: &ForgetCandidates,
    horizon: &RetentionHorizon,
) -> rusqlite::Result<ForgottenCounts> {
    let db = transaction.db;
    let mut forgotten = ForgottenCounts { next: candidates.next, ..ForgottenCounts::default() };
    for event in &candidates.events {
        let range = (event.first_delivery, event.first_delivery + event.deliveries);
        let (deliveries, dead) = forget_deliveries(db, range, horizon)?;
        forgotten.deliveries += deliveries;
        forgotten.dead += dead;
        for no in backfilled(db, event.no)? {
            let (deliveries, dead) = forget_deliveries(db, (no, no + 1), horizon)?;
            forgotten.deliveries += deliveries;
            forgotten.dead += dead;
        }
        let deleted: Option<(i64, i64, u32, u32)> = db
            .prepare_cached(
                "DELETE FROM events WHERE no = ?1 AND accepted_at < ?2
                 AND NOT EXISTS (SELECT 1 FROM deliveries WHERE no >= ?3 AND no < ?4)
                 AND NOT EXISTS (SELECT 1 FROM backfilled b JOIN deliveries d ON d.no = b.delivery WHERE b.event = ?1)
                 RETURNING tenant, accepted_at, length(data) AS bytes, deliveries",
            )?
            .query_row(params![event.no, millis(horizon.finished_before), range.0, range.1], |row| {
                Ok((row.get("tenant")?, row.get("accepted_at")?, row.get("bytes")?, row.get("deliveries")?))
            })
            .optional()?;
        if let Some((tenant, accepted_at, data, deliveries)) = deleted {
            forgotten.events += 1;
            db.prepare_cached("DELETE FROM backfilled WHERE event = ?")?.execute([event.no])?;
            transaction.count_stored(
                tenant,
                accepted_at,
                -stored_bytes(data as usize, deliveries as usize).cast_signed(),
            );
        }
    }
    Ok(forgotten)
}

row! {
    /// An event to delete before its retention is over.
    sqlite struct DeliveredEventRow from "FROM events e JOIN tenants t ON t.no = e.tenant
               WHERE t.id = ? AND t.deleted_at IS NULL AND e.id = ?" {
        no: i64 = "e.no",
        first_delivery: i64 = "e.first_delivery",
        deliveries: i64 = "e.deliveries",
        tenant: i64 = "e.tenant",
        accepted_at: i64 = "e.accepted_at",
        bytes: i64 = "length(e.data)",
    }
}

/// Deletes an event and everything about it if all its deliveries are delivered.
/// Returns whether nothing is left of it.
pub fn forget_delivered(
    transaction: &mut WriteTransaction<'_>,
    tenant: &TenantId,
    id: &EventId,
) -> rusqlite::Result<bool> {
    let db = transaction.db;
    let found = db.query_row(DeliveredEventRow::SQL, params![tenant.as_str(), id.as_str()], DeliveredEventRow::read);
    let Some(event) = found.optional()? else { return Ok(true) };
    let (first, end) = (event.first_delivery, event.first_delivery + event.deliveries);
    let sql = "SELECT EXISTS (SELECT 1 FROM deliveries WHERE no >= ? AND no < ? AND state <> 1)";
    if db.query_row(sql, [first, end], |row| row.get(0))? {
        return Ok(false);
    }
    db.execute("DELETE FROM attempts WHERE no >= ? AND no < ?", [first << 20, end << 20])?;
    db.execute("DELETE FROM deliveries WHERE no >= ? AND no < ?", [first, end])?;
    db.execute("DELETE FROM events WHERE no = ?", [event.no])?;
    let bytes = stored_bytes(event.bytes as usize, event.deliveries as usize);
    transaction.count_stored(event.tenant, event.accepted_at, -bytes.cast_signed());
    Ok(true)
}

/// Returns the deliveries of an event that a backfill made.
pub fn backfilled(db: &Connection, event: i64) -> rusqlite::Result<Vec<i64>> {
    db.prepare_cached("SELECT delivery FROM backfilled WHERE event = ?")?
        .query_map([event], |row| row.get(0))?
        .collect()
}

/// Numbers of events that no endpoint matched.
pub type UnmatchedEvents = Vec<i64>;

/// Finds unmatched events whose data is past its retention, oldest first.
pub fn find_unmatched(db: &Connection, horizon: &RetentionHorizon, after: i64) -> rusqlite::Result<UnmatchedEvents> {
    let mut statement = db.prepare_cached(
        "SELECT no, accepted_at FROM events INDEXED BY events_unmatched
         WHERE deliveries = 0 AND data_withheld IS NULL AND no > ? ORDER BY no LIMIT ?",
    )?;
    let mut rows = statement.query(params![after, STEP as i64])?;
    let mut unmatched = UnmatchedEvents::new();
    while let Some(row) = rows.next()? {
        if row.get::<_, i64>(1)? >= millis(horizon.unmatched_before) {
            break;
        }
        unmatched.push(row.get(0)?);
    }
    Ok(unmatched)
}

/// Deletes the data of these events. Their ids stay known.
pub fn forget_unmatched(transaction: &mut WriteTransaction<'_>, events: &UnmatchedEvents) -> rusqlite::Result<()> {
    let db = transaction.db;
    for no in events {
        let row: Option<(i64, i64, i64)> = db
            .prepare_cached(
                "SELECT tenant, accepted_at, length(data) FROM events WHERE no = ?1 AND data_withheld IS NULL AND data <> x''
                 AND NOT EXISTS (SELECT 1 FROM backfilled WHERE event = ?1)",
            )?
            .query_row([no], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .optional()?;
        let Some((tenant, accepted_at, bytes)) = row else { continue };
        db.prepare_cached("UPDATE events SET data = x'', data_withheld = ? WHERE no = ?")?.execute([UNMATCHED, *no])?;
        transaction.count_stored(tenant, accepted_at, -bytes);
    }
    Ok(())
}

row! {
    /// A delivery that was deleted.
    sqlite struct DeletedDeliveryRow {
        no: i64 = "no",
        endpoint: i64 = "endpoint",
        lane: Option<String> = "lane",
        was_dead: bool = "state = 2",
        /// Time of its end, if its lane has moved past it.
        passed_at: Option<i64> = "CASE WHEN passed = 1 THEN finished_at END",
    }
}

/// Deletes the deliveries of an event that are finished and old enough. Returns
/// how many, and how many of them were dead.
fn forget_deliveries(
    db: &Connection,
    range: (i64, i64),
    horizon: &RetentionHorizon,
) -> rusqlite::Result<(usize, usize)> {
    // A dead letter that blocks its lane stays while others wait behind it.
    let mut statement = db.prepare_cached(joined!(
        " ";
        "DELETE FROM deliveries WHERE no >= ?1 AND no < ?2 AND (
             (state IN (1, 3) AND finished_at < ?3)
             OR (state = 2 AND finished_at < ?4 AND NOT (passed = 0 AND lane IS NOT NULL AND EXISTS (
                 SELECT 1 FROM deliveries b INDEXED BY deliveries_behind
                 WHERE b.endpoint = deliveries.endpoint AND b.lane = deliveries.lane
                   AND b.passed = 0 AND b.behind = 1 AND b.seq > deliveries.seq)))
         ) RETURNING", DeletedDeliveryRow::COLUMNS,
    ))?;
    let mut dead = 0;
    let limits = params![range.0, range.1, millis(horizon.finished_before), millis(horizon.dead_before)];
    let deleted = statement.query_map(limits, DeletedDeliveryRow::read)?.collect::<rusqlite::Result<Vec<_>>>()?;
    for DeletedDeliveryRow { no, endpoint, lane, was_dead, passed_at } in &deleted {
        if *was_dead {
            dead += 1;
            note_forgotten(db, *no)?;
            dead_letters::delete(db, *no)?;
        }
        db.prepare_cached("DELETE FROM attempts WHERE no >= ? AND no < ?")?
            .execute(params![no << 20, (no + 1) << 20])?;
        if let Some(lane) = lane {
            let sql = "UPDATE lanes SET head = NULL, touched_at = max(touched_at, coalesce(?, 0))
                       WHERE endpoint = ? AND lane = ? AND head = ?";
            db.prepare_cached(sql)?.execute(params![passed_at, endpoint, lane, no])?;
        }
    }
    Ok((deleted.len(), dead))
}

/// Notes that a dead letter is forgotten, until it is reported.
fn note_forgotten(db: &Connection, no: i64) -> rusqlite::Result<()> {
    db.prepare_cached(
        "INSERT INTO forgotten_dead (endpoint, cause, count, oldest_at, newest_at)
         SELECT endpoint, cause, 1, finished_at, finished_at FROM dead_letters WHERE no = ?
         ON CONFLICT (endpoint, cause) DO UPDATE SET count = count + 1,
             oldest_at = min(oldest_at, excluded.oldest_at), newest_at = max(newest_at, excluded.newest_at)",
    )?
    .execute([no])?;
    Ok(())
}

/// Writes the operational events about forgotten dead letters of some endpoints.
pub fn report(transaction: &mut WriteTransaction<'_>, now: Timestamp) -> rusqlite::Result<ForgottenReport> {
    let sql = format!(
        "SELECT {} FROM forgotten_dead f JOIN endpoints p ON p.no = f.endpoint JOIN tenants t ON t.no = p.tenant
         WHERE f.endpoint IN (SELECT DISTINCT endpoint FROM forgotten_dead ORDER BY endpoint LIMIT ?)
         ORDER BY f.endpoint, f.cause",
        ForgottenColumns::COLUMNS
    );
    let rows: Vec<ForgottenColumns> = transaction
        .db
        .prepare_cached(&sql)?
        .query_map([REPORT_STEP], ForgottenColumns::read)?
        .collect::<rusqlite::Result<_>>()?;
    let sql = "DELETE FROM forgotten_dead
               WHERE endpoint IN (SELECT DISTINCT endpoint FROM forgotten_dead ORDER BY endpoint LIMIT ?)";
    transaction.db.prepare_cached(sql)?.execute([REPORT_STEP])?;
    let mut report = ForgottenReport { is_complete: rows.is_empty(), ..ForgottenReport::default() };
    for event in forgotten_row::events(rows, now) {
        report.freed.extend(accept_operational_event(transaction, event, now)?);
    }
    report.operational_events = std::mem::take(&mut transaction.operational_events);
    Ok(report)
}

/// A lane: the number of its endpoint, and its key.
pub type LaneKey = (i64, String);

/// Number of lanes, endpoints or tenants that one transaction deletes.
const STEP: usize = 500;

/// Finds lanes that have been idle for the whole retention.
pub fn find_idle_lanes(
    db: &Connection,
    horizon: &RetentionHorizon,
    after: Option<LaneKey>,
) -> rusqlite::Result<Vec<LaneKey>> {
    let (endpoint, lane) = after.unwrap_or((i64::MIN, String::new()));
    db.prepare_cached(
        // Of lanes that were written since, the head is not looked up.
        "SELECT endpoint, lane FROM lane_heads
         WHERE (endpoint, lane) > (?1, ?2) AND written_at < ?3 AND head IS NULL AND touched_at < ?3
         ORDER BY endpoint, lane LIMIT ?4",
    )?
    .query_map(params![endpoint, lane, millis(horizon.finished_before), STEP as i64], |row| {
        Ok((row.get(0)?, row.get(1)?))
    })?
    .collect()
}

/// Deletes those of these lanes that are still idle. Their sequence numbers do
/// not come back: the floor of the endpoint is raised to them.
pub fn forget_lanes(db: &Connection, lanes: &[LaneKey], horizon: &RetentionHorizon) -> rusqlite::Result<()> {
    let sql = "DELETE FROM lanes WHERE endpoint = ?1 AND lane = ?2
                   AND (SELECT head IS NULL AND touched_at < ?3 FROM lane_heads WHERE endpoint = ?1 AND lane = ?2)
               RETURNING last_seq";
    let mut statement = db.prepare_cached(sql)?;
    let mut floors: BTreeMap<i64, i64> = BTreeMap::new();
    for (endpoint, lane) in lanes {
        let limits = params![endpoint, lane, millis(horizon.finished_before)];
        if let Some(last_seq) = statement.query_row(limits, |row| row.get(0)).optional()? {
            let floor = floors.entry(*endpoint).or_insert(last_seq);
            *floor = last_seq.max(*floor);
        }
    }
    let sql = "INSERT INTO seq_floors (endpoint, floor) VALUES (?, ?)
               ON CONFLICT (endpoint) DO UPDATE SET floor = max(floor, excluded.floor)";
    let mut statement = db.prepare_cached(sql)?;
    for (endpoint, floor) in floors {
        statement.execute([endpoint, floor])?;
    }
    Ok(())
}

/// Numbers of deleted endpoints and tenants that no row refers to any more.
#[derive(Debug, Default)]
pub struct DeletedEndpoints {
    endpoints: Vec<i64>,
    tenants: Vec<i64>,
}

/// Finds deleted endpoints without deliveries and deleted tenants without
/// endpoints and events.
pub fn find_deleted(db: &Connection, horizon: &RetentionHorizon) -> rusqlite::Result<DeletedEndpoints> {
    let find = |sql: &str| -> rusqlite::Result<Vec<i64>> {
        let limits = params![millis(horizon.finished_before), STEP as i64];
        db.prepare_cached(sql)?.query_map(limits, |row| row.get(0))?.collect()
    };
    Ok(DeletedEndpoints {
        endpoints: find(
            "SELECT no FROM endpoints p WHERE deleted_at < ? AND swept_at IS NOT NULL
             AND NOT EXISTS (SELECT 1 FROM deliveries WHERE endpoint = p.no) LIMIT ?",
        )?,
        tenants: find(
            "SELECT no FROM tenants t WHERE deleted_at < ? AND purge_job IS NULL
             AND NOT EXISTS (SELECT 1 FROM events WHERE tenant = t.no)
             AND NOT EXISTS (SELECT 1 FROM audit WHERE tenant_id = t.id AND tenant = t.no)
             AND NOT EXISTS (SELECT 1 FROM stored_bytes WHERE tenant = t.no AND events > 0)
             AND NOT EXISTS (SELECT 1 FROM endpoints WHERE tenant = t.no) LIMIT ?",
        )?,
    })
}

/// Deletes the rows of deleted endpoints and tenants. A deleted endpoint or
/// tenant gets no new deliveries, so no row can have begun to refer to it.
pub fn forget_deleted(db: &Connection, deleted: &DeletedEndpoints) -> rusqlite::Result<()> {
    for endpoint in &deleted.endpoints {
        db.execute("DELETE FROM endpoint_events WHERE endpoint = ?", [endpoint])?;
        db.execute("DELETE FROM seq_floors WHERE endpoint = ?", [endpoint])?;
        db.execute("DELETE FROM endpoints WHERE no = ?", [endpoint])?;
    }
    for tenant in &deleted.tenants {
        db.execute("DELETE FROM stored_bytes WHERE tenant = ?", [tenant])?;
        db.execute("DELETE FROM tenants WHERE no = ?", [tenant])?;
    }
    Ok(())
}
