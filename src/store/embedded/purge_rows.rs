//! Deletes the rows of a tenant that is purged, a bounded number at a time.
//!
//! Tables that name the tenant, one of its endpoints, events or deliveries are all
//! here; a test compares them with the schema.

use std::collections::BTreeSet;

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::change;
use super::rows::{delivery_id, millis, state_of};
use super::writer::WriteTransaction;
use crate::model::audit::Initiator;
use crate::model::id::{EndpointId, JobId, TenantId};
use crate::model::limits::stored_bytes;
use crate::model::purge::PurgeProgress;
use crate::store::jobs::{is_about, refusal, spec_without_names};
use crate::store::plan::change::ChangeCondition;
use crate::store::row::{SqliteColumns, row};
use crate::store::{DeliveryChange, JobAdvanced, Result};

/// Most rows of a table that one step deletes: a few milliseconds of the writer.
const ROWS: usize = 200;
/// Most bytes of events that one step deletes: they are overwritten on the way.
const BYTES: i64 = 2 * 1_024 * 1_024;
/// Events of the system tenant that one step looks at.
const SYSTEM_EVENTS: usize = 100;

/// Tables whose rows name a tenant and are deleted as they are, with the column.
pub const BY_TENANT: &[&str] = &["dead_letters", "dead_letter_counts", "stored_bytes", "tokens", "portals"];
/// Tables whose rows name an endpoint by its number.
pub const BY_ENDPOINT: &[&str] = &["secrets", "endpoint_events", "lanes", "seq_floors", "forgotten_dead"];
/// Tables with what a job has at an endpoint, which they name by its id.
pub const OF_JOB_PART: &[&str] = &["job_parts", "job_waiting", "job_held"];

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
    if delete_jobs(db, tenant, progress)? || forget_in_jobs(db, id, (purge, now), progress)? {
        return Ok(false);
    }
    if delete_endpoints(db, tenant, progress)? {
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
        "dead_letter_counts" | "stored_bytes" | "forgotten_dead" => {
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
    for table in OF_JOB_PART {
        db.execute(&format!("DELETE FROM {table} WHERE job = ?"), [job])?;
    }
    progress.count("jobs", db.execute("DELETE FROM jobs WHERE id = ?", [job])?);
    Ok(true)
}

/// Deletes what jobs over all tenants have at endpoints of this one, and takes what may name
/// it out of those that have ended. Returns whether there were any.
fn forget_in_jobs(
    db: &Connection,
    tenant: &TenantId,
    (purge, now): (JobId, Timestamp),
    progress: &mut PurgeProgress,
) -> rusqlite::Result<bool> {
    // Purges of older tenants with this id name nothing but the id.
    let sql = "SELECT w.job, w.endpoint FROM job_parts w JOIN jobs j ON j.id = w.job
               WHERE w.tenant = ? AND j.spec ->> '$.kind' <> 'purge' LIMIT ?";
    let parts: Vec<(JobId, EndpointId)> = db
        .prepare_cached(sql)?
        .query_map(params![tenant, ROWS as i64], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (job, endpoint) in &parts {
        for table in OF_JOB_PART {
            let sql = format!("DELETE FROM {table} WHERE job = ? AND endpoint = ?");
            progress.count(table, db.prepare_cached(&sql)?.execute(params![job, endpoint])?);
        }
    }
    if parts.is_empty() {
        return Ok(false);
    }
    // Jobs whose last part it was.
    let sql = "UPDATE jobs SET state = 2, finished_at = ? WHERE state IN (0, 1, 4) AND id <> ?
               AND NOT EXISTS (SELECT 1 FROM job_parts WHERE job = jobs.id AND is_done = 0)";
    db.execute(sql, params![millis(now), purge])?;
    for job in parts.into_iter().map(|(job, _)| job).collect::<BTreeSet<_>>() {
        let sql = "SELECT spec FROM jobs WHERE id = ? AND state IN (2, 3, 5)";
        let spec: Option<String> = db.prepare_cached(sql)?.query_row([job], |row| row.get(0)).optional()?;
        if let Some(spec) = spec.as_deref().and_then(spec_without_names) {
            db.execute("UPDATE jobs SET spec = ?, error = NULL WHERE id = ?", params![spec, job])?;
        }
    }
    Ok(true)
}

/// Deletes one endpoint, or some rows of it. Returns whether there was one.
fn delete_endpoints(db: &Connection, tenant: i64, progress: &mut PurgeProgress) -> rusqlite::Result<bool> {
    let sql = "SELECT no FROM endpoints WHERE tenant = ? LIMIT 1";
    let found: Option<i64> = db.prepare_cached(sql)?.query_row([tenant], |row| row.get(0)).optional()?;
    let Some(no) = found else { return Ok(false) };
    for table in BY_ENDPOINT {
        if delete_some(db, table, "endpoint = ?1", params![no], progress)? {
            return Ok(true);
        }
    }
    progress.count("endpoints", db.execute("DELETE FROM endpoints WHERE no = ?", [no])?);
    Ok(true)
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
        let Some(change) = state_of(state).ok().and_then(DeliveryChange::that_ends) else { continue };
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
