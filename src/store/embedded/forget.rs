//! Deletes what is past its retention, a little at a time.
//!
//! A reader finds the candidates; the writer checks them again and deletes
//! them, in transactions small enough that no event waits noticeably for one.

use rusqlite::{Connection, OptionalExtension, params};

use super::dead_letters;
use super::rows::millis;
use super::writer::WriteTransaction;
use crate::model::limits::stored_bytes;
use crate::store::codes::UNMATCHED;
use crate::store::row::{SqliteColumns, row};
use crate::store::{ForgottenCounts, RetentionHorizon};

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
    }
}

/// Reads the next events, oldest first, and picks those that are old enough.
pub fn find_candidates(db: &Connection, horizon: &RetentionHorizon) -> rusqlite::Result<ForgetCandidates> {
    let mut statement = db.prepare_cached(CandidateEvent::SQL)?;
    let mut rows = statement.query(params![horizon.after as i64, horizon.step as i64])?;
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
        candidates.events.push(event);
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
        forgotten.deliveries += forget_deliveries(db, range, horizon)?;
        let deleted: Option<(i64, i64, u32, u32)> = db
            .prepare_cached(
                "DELETE FROM events WHERE no = ?1 AND accepted_at < ?2
                 AND NOT EXISTS (SELECT 1 FROM deliveries WHERE no >= ?3 AND no < ?4)
                 RETURNING tenant, accepted_at, length(data) AS bytes, deliveries",
            )?
            .query_row(params![event.no, millis(horizon.finished_before), range.0, range.1], |row| {
                Ok((row.get("tenant")?, row.get("accepted_at")?, row.get("bytes")?, row.get("deliveries")?))
            })
            .optional()?;
        if let Some((tenant, accepted_at, data, deliveries)) = deleted {
            forgotten.events += 1;
            transaction.count_stored(
                tenant,
                accepted_at,
                -stored_bytes(data as usize, deliveries as usize).cast_signed(),
            );
        }
    }
    Ok(forgotten)
}

/// Numbers of events that no endpoint matched.
pub type UnmatchedEvents = Vec<i64>;

/// Finds unmatched events whose data is past its retention, oldest first.
pub fn find_unmatched(db: &Connection, horizon: &RetentionHorizon, after: i64) -> rusqlite::Result<UnmatchedEvents> {
    let mut statement = db.prepare_cached(
        "SELECT no, accepted_at FROM events INDEXED BY events_unmatched
         WHERE deliveries = 0 AND withheld IS NULL AND no > ? ORDER BY no LIMIT ?",
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
            .prepare_cached("SELECT tenant, accepted_at, length(data) FROM events WHERE no = ? AND withheld IS NULL AND data <> x''")?
            .query_row([no], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .optional()?;
        let Some((tenant, accepted_at, bytes)) = row else { continue };
        db.prepare_cached("UPDATE events SET data = x'', withheld = ? WHERE no = ?")?.execute([UNMATCHED, *no])?;
        transaction.count_stored(tenant, accepted_at, -bytes);
    }
    Ok(())
}

fn forget_deliveries(db: &Connection, range: (i64, i64), horizon: &RetentionHorizon) -> rusqlite::Result<usize> {
    // A dead letter that blocks its lane stays while others wait behind it.
    let mut statement = db.prepare_cached(
        "DELETE FROM deliveries WHERE no >= ?1 AND no < ?2 AND (
             (state IN (1, 3) AND finished_at < ?3)
             OR (state = 2 AND finished_at < ?4 AND NOT (passed = 0 AND lane IS NOT NULL AND EXISTS (
                 SELECT 1 FROM deliveries b INDEXED BY deliveries_by_lane
                 WHERE b.endpoint = deliveries.endpoint AND b.lane = deliveries.lane
                   AND b.passed = 0 AND b.seq > deliveries.seq)))
         ) RETURNING no, endpoint, lane, state = 2",
    )?;
    let deleted: Vec<(i64, i64, Option<String>, bool)> = statement
        .query_map(params![range.0, range.1, millis(horizon.finished_before), millis(horizon.dead_before)], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    for (no, endpoint, lane, was_dead) in &deleted {
        if *was_dead {
            dead_letters::forget(db, *no)?;
        }
        db.prepare_cached("DELETE FROM attempts WHERE no >= ? AND no < ?")?
            .execute(params![no << 20, (no + 1) << 20])?;
        if let Some(lane) = lane {
            db.prepare_cached("UPDATE lanes SET head = NULL WHERE endpoint = ? AND lane = ? AND head = ?")?
                .execute(params![endpoint, lane, no])?;
        }
    }
    Ok(deleted.len())
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
        "SELECT endpoint, lane FROM lanes WHERE (endpoint, lane) > (?, ?) AND head IS NULL AND touched_at < ?
         ORDER BY endpoint, lane LIMIT ?",
    )?
    .query_map(params![endpoint, lane, millis(horizon.finished_before), STEP as i64], |row| {
        Ok((row.get(0)?, row.get(1)?))
    })?
    .collect()
}

/// Deletes those of these lanes that are still idle. Their sequence numbers
/// start again at 1.
pub fn forget_lanes(db: &Connection, lanes: &[LaneKey], horizon: &RetentionHorizon) -> rusqlite::Result<()> {
    let sql = "DELETE FROM lanes WHERE endpoint = ? AND lane = ? AND head IS NULL AND touched_at < ?";
    let mut statement = db.prepare_cached(sql)?;
    for (endpoint, lane) in lanes {
        statement.execute(params![endpoint, lane, millis(horizon.finished_before)])?;
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
            "SELECT no FROM tenants t WHERE deleted_at < ?
             AND NOT EXISTS (SELECT 1 FROM events WHERE tenant = t.no)
             AND NOT EXISTS (SELECT 1 FROM audit WHERE tenant_id = t.id AND tenant = t.no)
             AND NOT EXISTS (SELECT 1 FROM endpoints WHERE tenant = t.no) LIMIT ?",
        )?,
    })
}

/// Deletes the rows of deleted endpoints and tenants. A deleted endpoint or
/// tenant gets no new deliveries, so no row can have begun to refer to it.
pub fn forget_deleted(db: &Connection, deleted: &DeletedEndpoints) -> rusqlite::Result<()> {
    for endpoint in &deleted.endpoints {
        db.execute("DELETE FROM milestones WHERE endpoint = ?", [endpoint])?;
        db.execute("DELETE FROM endpoints WHERE no = ?", [endpoint])?;
    }
    for tenant in &deleted.tenants {
        db.execute("DELETE FROM stored WHERE tenant = ?", [tenant])?;
        db.execute("DELETE FROM tenants WHERE no = ?", [tenant])?;
    }
    Ok(())
}
