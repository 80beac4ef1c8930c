//! Deletes the rows of a tenant that is purged, a bounded number at a time.
//!
//! Tables that name the tenant, one of its endpoints, events or deliveries are all
//! here; a test compares them with the schema.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::change;
use super::rows::{delivery_id, millis};
use super::writer::WriteTransaction;
use crate::model::audit::Initiator;
use crate::model::delivery::DeliveryState;
use crate::model::id::{JobId, TenantId};
use crate::model::limits::stored_bytes;
use crate::model::purge::PurgeProgress;
use crate::store::jobs::{is_about, refusal};
use crate::store::plan::change::ChangeCondition;
use crate::store::row::{SqliteColumns, row};
use crate::store::{DeliveryChange, JobAdvanced, Result};

/// Most rows of a table that one step deletes: a few milliseconds of the writer.
const ROWS: usize = 200;
/// Most bytes of events that one step deletes: they are overwritten on the way.
const BYTES: i64 = 2 * 1_024 * 1_024;
/// Parts of the figures that one step looks through, of twice 256.
const FIGURE_PARTS: i64 = 16;
/// Number of parts of the figures, by window and by hour.
const FIGURE_PARTS_ALL: i64 = 512;
/// Events of the system tenant that one step looks at.
const SYSTEM_EVENTS: usize = 100;

/// Tables whose rows name a tenant and are deleted as they are, with the column.
pub const BY_TENANT: &[&str] = &["dead_letters", "dead_letter_counts", "stored_bytes", "tokens", "portals"];
/// Tables whose rows name an endpoint by its number.
pub const BY_ENDPOINT: &[&str] = &["secrets", "endpoint_events", "lanes", "seq_floors", "forgotten_dead"];
/// Tables whose rows name an endpoint by its id.
pub const BY_ENDPOINT_ID: &[&str] = &["job_parts", "job_waiting", "job_held"];

/// Deletes some rows of a tenant. Returns whether none was left.
pub fn delete_rows(
    db: &Connection,
    (tenant, id): (i64, &TenantId),
    purge: JobId,
    now: Timestamp,
    progress: &mut PurgeProgress,
) -> rusqlite::Result<bool> {
    if delete_deliveries(db, tenant, progress)? || delete_events(db, tenant, progress)? {
        return Ok(false);
    }
    for table in BY_TENANT {
        if delete_some(db, table, "tenant = ?1", params![tenant], progress)? {
            return Ok(false);
        }
    }
    if delete_some(db, "audit", "tenant_id = ?1", params![id.as_str()], progress)? {
        return Ok(false);
    }
    if delete_jobs(db, tenant, progress)? || delete_endpoints(db, tenant, (purge, now), progress)? {
        return Ok(false);
    }
    // The id stays until the end of the purge, and nothing else.
    let blank = "UPDATE tenants SET name = '', defaults = '{}', quota = '{}', limits = '{}', retention = '{}'
                 WHERE no = ?";
    db.execute(blank, [tenant])?;
    Ok(true)
}

/// Deletes some rows of a table. Returns whether there were any.
fn delete_some(
    db: &Connection,
    table: &str,
    condition: &str,
    bound: &[&dyn rusqlite::ToSql],
    progress: &mut PurgeProgress,
) -> rusqlite::Result<bool> {
    // Tables without row numbers have no more than a few rows of a tenant, or go by
    // their key.
    let sql = match table {
        "audit" => format!("DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE {condition} LIMIT {ROWS})"),
        "lanes" => format!(
            "DELETE FROM lanes WHERE (endpoint, lane) IN (SELECT endpoint, lane FROM lanes WHERE {condition} LIMIT {ROWS})"
        ),
        "dead_letter_counts" | "stored_bytes" | "forgotten_dead" | "job_parts" | "job_waiting" | "job_held" => {
            format!("DELETE FROM {table} WHERE {condition}")
        }
        _ => format!("DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE {condition} LIMIT {ROWS})"),
    };
    let deleted = db.prepare_cached(&sql)?.execute(bound)?;
    progress.count(table, deleted);
    Ok(deleted > 0)
}

fn delete_deliveries(db: &Connection, tenant: i64, progress: &mut PurgeProgress) -> rusqlite::Result<bool> {
    let sql = "SELECT no FROM deliveries INDEXED BY deliveries_by_tenant WHERE tenant = ? LIMIT ?";
    let numbers: Vec<i64> = db
        .prepare_cached(sql)?
        .query_map(params![tenant, ROWS as i64], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for no in &numbers {
        delete_delivery(db, *no, progress)?;
    }
    Ok(!numbers.is_empty())
}

fn delete_delivery(db: &Connection, no: i64, progress: &mut PurgeProgress) -> rusqlite::Result<()> {
    let attempts = db
        .prepare_cached("DELETE FROM attempts WHERE no >= ? AND no < ?")?
        .execute(params![no << 20, (no + 1) << 20])?;
    progress.count("attempts", attempts);
    let dead = db.prepare_cached("DELETE FROM dead_letters WHERE no = ?")?.execute([no])?;
    progress.count("dead_letters", dead);
    let deliveries = db.prepare_cached("DELETE FROM deliveries WHERE no = ?")?.execute([no])?;
    progress.count("deliveries", deliveries);
    Ok(())
}

fn delete_events(db: &Connection, tenant: i64, progress: &mut PurgeProgress) -> rusqlite::Result<bool> {
    let sql = "SELECT no, length(data) FROM events INDEXED BY events_by_tenant WHERE tenant = ? LIMIT ?";
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query(params![tenant, ROWS as i64])?;
    let (mut events, mut bytes) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        events.push(row.get::<_, i64>(0)?);
        bytes += row.get::<_, i64>(1)?;
        if bytes >= BYTES {
            break;
        }
    }
    for no in &events {
        progress.count("events", delete_event(db, *no)?);
    }
    Ok(!events.is_empty())
}

fn delete_event(db: &Connection, no: i64) -> rusqlite::Result<usize> {
    db.prepare_cached("DELETE FROM backfilled WHERE event = ?")?.execute([no])?;
    db.prepare_cached("DELETE FROM events WHERE no = ?")?.execute([no])
}

fn delete_jobs(db: &Connection, tenant: i64, progress: &mut PurgeProgress) -> rusqlite::Result<bool> {
    let job: Option<JobId> =
        db.query_row("SELECT id FROM jobs WHERE tenant = ? LIMIT 1", [tenant], |row| row.get(0)).optional()?;
    let Some(job) = job else { return Ok(false) };
    for table in BY_ENDPOINT_ID {
        db.execute(&format!("DELETE FROM {table} WHERE job = ?"), [job])?;
    }
    progress.count("jobs", db.execute("DELETE FROM jobs WHERE id = ?", [job])?);
    Ok(true)
}

/// Deletes one endpoint, or some rows of it. Returns whether there was one.
fn delete_endpoints(
    db: &Connection,
    tenant: i64,
    (purge, now): (JobId, Timestamp),
    progress: &mut PurgeProgress,
) -> rusqlite::Result<bool> {
    let sql = "SELECT no, id FROM endpoints WHERE tenant = ? LIMIT 1";
    let found: Option<(i64, Vec<u8>)> =
        db.prepare_cached(sql)?.query_row([tenant], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let Some((no, id)) = found else { return Ok(false) };
    for table in BY_ENDPOINT {
        if delete_some(db, table, "endpoint = ?1", params![no], progress)? {
            return Ok(true);
        }
    }
    let mut was_in_job = false;
    for table in BY_ENDPOINT_ID {
        was_in_job |= delete_some(db, table, "endpoint = ?1", params![id], progress)?;
    }
    if was_in_job {
        // Jobs over all tenants whose last part it was.
        let sql = "UPDATE jobs SET state = 2, finished_at = ? WHERE state IN (0, 1, 4) AND id <> ?
                   AND NOT EXISTS (SELECT 1 FROM job_parts WHERE job = jobs.id AND is_done = 0)";
        db.execute(sql, params![millis(now), purge])?;
    }
    progress.count("endpoints", db.execute("DELETE FROM endpoints WHERE no = ?", [no])?);
    Ok(true)
}

/// Deletes figures of tenants from some of the parts. Returns whether these were the
/// last.
pub fn delete_figures(db: &Connection, tenants: &[i64], progress: &mut PurgeProgress) -> rusqlite::Result<bool> {
    let sql = "DELETE FROM figures WHERE span = ? AND part = ? AND tenant = ?";
    let mut statement = db.prepare_cached(sql)?;
    for n in progress.after..(progress.after + FIGURE_PARTS).min(FIGURE_PARTS_ALL) {
        for tenant in tenants {
            let deleted = statement.execute(params![n / 256, n % 256, tenant])?;
            progress.count("figures", deleted);
        }
    }
    progress.after += FIGURE_PARTS;
    Ok(progress.after >= FIGURE_PARTS_ALL)
}

/// Deletes operational events about a tenant among the next events of the system
/// tenant. What still waits of them is cancelled first, so that lanes go on. Returns
/// whether there were no more.
pub fn delete_operational_events(
    transaction: &mut WriteTransaction<'_>,
    tenant: &TenantId,
    now: Timestamp,
    progress: &mut PurgeProgress,
    advanced: &mut JobAdvanced,
) -> rusqlite::Result<Result<bool>> {
    let db = transaction.db;
    let Some(system) = transaction.tenant_no(&TenantId::system())? else { return Ok(Ok(true)) };
    let mut statement = db.prepare_cached(SystemEventRow::SQL)?;
    let bound = params![system, progress.after, SYSTEM_EVENTS as i64];
    let events = statement.query_map(bound, SystemEventRow::read)?.collect::<rusqlite::Result<Vec<_>>>()?;
    let is_end = events.len() < SYSTEM_EVENTS;
    for event in events {
        progress.after = event.no;
        if !is_about(&event.data, tenant) {
            continue;
        }
        if let Err(problem) = end_deliveries(transaction, event.no, now, advanced)? {
            return Ok(Err(problem));
        }
        for delivery in deliveries_of(db, event.no)? {
            delete_delivery(db, delivery.0, progress)?;
        }
        progress.count("operational_events", delete_event(db, event.no)?);
        let bytes = stored_bytes(event.data.len(), event.deliveries as usize).cast_signed();
        transaction.count_stored(system, event.accepted_at, -bytes);
    }
    Ok(Ok(is_end))
}

row! {
    /// An event of the system tenant.
    sqlite struct SystemEventRow from "FROM events INDEXED BY events_by_tenant WHERE tenant = ? AND no > ?
         ORDER BY no LIMIT ?" {
        no: i64 = "no",
        data: Vec<u8> = "data",
        accepted_at: i64 = "accepted_at",
        deliveries: i64 = "deliveries",
    }
}

/// Returns number, time of creation and state of the deliveries of an event.
fn deliveries_of(db: &Connection, event: i64) -> rusqlite::Result<Vec<(i64, i64, i64)>> {
    let sql = "SELECT d.no, d.created_at, d.state FROM events e JOIN deliveries d
                   ON d.no >= e.first_delivery AND d.no < e.first_delivery + e.deliveries WHERE e.no = ?1
               UNION SELECT d.no, d.created_at, d.state FROM backfilled b JOIN deliveries d ON d.no = b.delivery
               WHERE b.event = ?1";
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    db.prepare_cached(sql)?.query_map([event], read)?.collect()
}

/// Cancels what waits of an event, and discards what is dead.
fn end_deliveries(
    transaction: &mut WriteTransaction<'_>,
    event: i64,
    now: Timestamp,
    advanced: &mut JobAdvanced,
) -> rusqlite::Result<Result<()>> {
    for (no, created_at, state) in deliveries_of(transaction.db, event)? {
        let change = match state {
            state if state == DeliveryState::Waiting as i64 => DeliveryChange::Cancel,
            state if state == DeliveryState::Dead as i64 => DeliveryChange::Discard,
            _ => continue,
        };
        let (id, by) = (delivery_id(no, created_at), Initiator::Gateway);
        let change = (change, ChangeCondition::default());
        match change::change(transaction, &by, &TenantId::system(), id, change, now)? {
            Ok(changed) => advanced.changed.push((id, changed)),
            Err(problem) => {
                if let Err(problem) = refusal(problem) {
                    return Ok(Err(problem));
                }
            }
        }
    }
    Ok(Ok(()))
}
