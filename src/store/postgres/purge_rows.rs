//! Deletes the rows of tenants that are purged, a bounded number at a time.
//!
//! Tables that name a tenant, one of its endpoints, events or deliveries are all here;
//! a test compares them with the schema.
//!
//! Two nodes at once: only the owner of the purge's shard calls this. Others may settle
//! what was in flight; a settlement that finds no row writes nothing, and one that came
//! first is deleted with the rest.

use super::rows::millis;
use super::transaction::{PgTransaction, bind};
use crate::model::id::{EndpointId, JobId};
use crate::model::purge::PurgeProgress;
use crate::store::jobs::spec_without_names;
use crate::store::{PurgeStep, Result};

/// Most rows of a table that one step deletes.
const ROWS: i64 = 500;
/// Most events that one step deletes: they may be large.
const EVENTS: i64 = 50;

/// Tables whose rows name a tenant.
pub const BY_TENANT: &[&str] = &[
    "producer_ids",
    "stored_bytes",
    "backlog",
    "accept_delays",
    "dead_letter_count_changes",
    "dead_letter_counts",
    "portals",
];
/// Tables whose rows name an endpoint by its number.
pub const BY_ENDPOINT: &[&str] =
    &["secrets", "endpoint_events", "health", "lanes", "seq_floors", "forgotten_dead", "live_status"];
/// Tables with what a job has at an endpoint, which they name by its id.
pub const OF_JOB_PART: &[&str] = &["job_parts", "job_waiting", "job_held"];
/// Tables of deliveries.
pub const DELIVERIES: &[&str] = &["queue", "dead", "finished"];

/// Deletes some rows of tenants. Returns whether none was left; endpoints and tokens
/// stay until every node has heard that they are deleted.
pub async fn delete_rows(
    tx: &PgTransaction,
    tenants: &[i64],
    step: &PurgeStep,
    progress: &mut PurgeProgress,
) -> Result<bool> {
    let tenants = tenants.to_vec();
    for table in DELIVERIES {
        let sql = format!("SELECT no FROM posthaste.{table} WHERE tenant = ANY ($1) LIMIT $2");
        let numbers: Vec<i64> = tx.query(&sql, bind![tenants, ROWS]).await?.iter().map(|row| row.get(0)).collect();
        if !numbers.is_empty() {
            delete_deliveries(tx, numbers, progress).await?;
            return Ok(false);
        }
    }
    let sql = "SELECT no FROM posthaste.events WHERE tenant = ANY ($1) LIMIT $2";
    let events = tx.query(sql, bind![tenants, EVENTS]).await?;
    for row in &events {
        progress.count("events", delete_event(tx, row.get(0)).await?);
    }
    if !events.is_empty() {
        return Ok(false);
    }
    for table in BY_TENANT {
        let sql = format!(
            "DELETE FROM posthaste.{table} WHERE ctid = ANY (ARRAY(
                 SELECT ctid FROM posthaste.{table} WHERE tenant = ANY ($1) LIMIT $2))"
        );
        if delete(tx, table, &sql, bind![tenants, ROWS], progress).await? {
            return Ok(false);
        }
    }
    let sql = "DELETE FROM posthaste.audit WHERE id = ANY (ARRAY(
                   SELECT id FROM posthaste.audit WHERE tenant_id = $1 LIMIT $2))";
    if delete(tx, "audit", sql, bind![step.before.tenant.as_str(), ROWS], progress).await? {
        return Ok(false);
    }
    if delete_jobs(tx, &tenants, progress).await? {
        return Ok(false);
    }
    delete_catalog(tx, &tenants, step, progress).await
}

/// Runs a statement that deletes rows of a kind. Returns whether there were any.
pub async fn delete(
    tx: &PgTransaction,
    kind: &str,
    sql: &str,
    bound: &[super::transaction::SqlParameter<'_>],
    progress: &mut PurgeProgress,
) -> Result<bool> {
    let deleted = tx.execute(sql, bound).await?;
    progress.count(kind, deleted as usize);
    Ok(deleted > 0)
}

/// Deletes deliveries with their attempts.
pub async fn delete_deliveries(tx: &PgTransaction, numbers: Vec<i64>, progress: &mut PurgeProgress) -> Result<()> {
    delete(tx, "attempts", include_str!("sql/forget_attempts.sql"), bind![numbers], progress).await?;
    for table in DELIVERIES {
        let sql = format!("DELETE FROM posthaste.{table} WHERE no = ANY ($1)");
        let deleted = tx.execute(&sql, bind![numbers]).await? as usize;
        progress.count("deliveries", deleted);
        if *table == "dead" {
            progress.count("dead_letters", deleted);
        }
    }
    Ok(())
}

/// Deletes an event, and the id that its producer gave it. Returns how many it were.
pub async fn delete_event(tx: &PgTransaction, no: i64) -> Result<usize> {
    tx.execute("DELETE FROM posthaste.backfilled WHERE event = $1", bind![no]).await?;
    tx.execute("DELETE FROM posthaste.producer_ids WHERE event = $1", bind![no]).await?;
    Ok(tx.execute("DELETE FROM posthaste.events WHERE no = $1", bind![no]).await? as usize)
}

/// Returns number, time of creation and state of the deliveries of an event.
pub async fn deliveries_of(tx: &PgTransaction, event: i64) -> Result<Vec<(i64, i64, i16)>> {
    let sql = "SELECT d.no, d.created_at, d.state FROM posthaste.events e
               CROSS JOIN LATERAL (SELECT * FROM posthaste.deliveries d
                   WHERE d.no >= e.first_delivery AND d.no < e.first_delivery + e.deliveries) d WHERE e.no = $1
               UNION ALL SELECT d.no, d.created_at, d.state FROM posthaste.backfilled b
               CROSS JOIN LATERAL (SELECT * FROM posthaste.deliveries d WHERE d.no = b.delivery LIMIT 1) d
               WHERE b.event = $1";
    Ok(tx.query(sql, bind![event]).await?.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect())
}

async fn delete_jobs(tx: &PgTransaction, tenants: &[i64], progress: &mut PurgeProgress) -> Result<bool> {
    let tenants = tenants.to_vec();
    let sql = "WITH old AS (DELETE FROM posthaste.jobs WHERE id = ANY (ARRAY(
                        SELECT id FROM posthaste.jobs WHERE tenant = ANY ($1) LIMIT 10)) RETURNING id),
                    waiting AS (DELETE FROM posthaste.job_waiting WHERE job IN (SELECT id FROM old)),
                    held AS (DELETE FROM posthaste.job_held WHERE job IN (SELECT id FROM old)),
                    parts AS (DELETE FROM posthaste.job_parts WHERE job IN (SELECT id FROM old))
               SELECT count(*) FROM old";
    let deleted: i64 = tx.query(sql, bind![tenants]).await?[0].get(0);
    progress.count("jobs", deleted as usize);
    Ok(deleted > 0)
}

/// Deletes endpoints with what belongs to them, and tokens. Returns whether none was
/// left.
async fn delete_catalog(
    tx: &PgTransaction,
    tenants: &[i64],
    step: &PurgeStep,
    progress: &mut PurgeProgress,
) -> Result<bool> {
    let tenants = tenants.to_vec();
    // A node reads what changed since the version that it knows, so that it would never
    // hear of a deletion whose row is gone.
    let sql = "SELECT 1 FROM posthaste.nodes n WHERE n.lease_until > clock_timestamp() AND n.catalog_version < (
                   SELECT max(version) FROM posthaste.tenants WHERE no = ANY ($1)) LIMIT 1";
    if tx.query_opt(sql, bind![tenants]).await?.is_some() {
        return Ok(false);
    }
    if forget_in_jobs(tx, step, progress).await? {
        return Ok(false);
    }
    let sql = "SELECT no FROM posthaste.endpoints WHERE tenant = ANY ($1) LIMIT 20";
    let numbers: Vec<i64> = tx.query(sql, bind![tenants]).await?.iter().map(|row| row.get(0)).collect();
    if !numbers.is_empty() {
        for table in BY_ENDPOINT {
            let sql = format!(
                "DELETE FROM posthaste.{table} WHERE ctid = ANY (ARRAY(
                     SELECT ctid FROM posthaste.{table} WHERE endpoint = ANY ($1) LIMIT $2))"
            );
            if delete(tx, table, &sql, bind![numbers, ROWS], progress).await? {
                return Ok(false);
            }
        }
        tx.execute("DELETE FROM posthaste.backfilled WHERE endpoint = ANY ($1)", bind![numbers]).await?;
        let sql = "DELETE FROM posthaste.endpoints WHERE no = ANY ($1)";
        delete(tx, "endpoints", sql, bind![numbers], progress).await?;
        return Ok(false);
    }
    let sql = "DELETE FROM posthaste.tokens WHERE tenant = ANY ($1)";
    if delete(tx, "tokens", sql, bind![tenants], progress).await? {
        return Ok(false);
    }
    // The id stays until the end of the purge, and nothing else.
    let sql = "UPDATE posthaste.tenants SET name = '', defaults = '{}', quota = '{}', limits = '{}', retention = '{}'
               WHERE no = ANY ($1)";
    tx.execute(sql, bind![tenants]).await?;
    Ok(true)
}

/// Deletes what jobs over all tenants have at endpoints of this one, and takes what may name
/// it out of those that have ended. Returns whether there were any.
async fn forget_in_jobs(tx: &PgTransaction, step: &PurgeStep, progress: &mut PurgeProgress) -> Result<bool> {
    // Purges of older tenants with this id name nothing but the id. Jobs are locked in one
    // order, before their parts.
    let sql = "SELECT w.job, w.endpoint FROM posthaste.job_parts w JOIN posthaste.jobs j ON j.id = w.job
               WHERE w.tenant = $1 AND j.spec::json ->> 'kind' <> 'purge' ORDER BY j.id LIMIT $2 FOR UPDATE OF j";
    let parts = tx.query(sql, bind![step.before.tenant.as_str(), ROWS]).await?;
    if parts.is_empty() {
        return Ok(false);
    }
    let jobs: Vec<JobId> = parts.iter().map(|row| row.get(0)).collect();
    let endpoints: Vec<EndpointId> = parts.iter().map(|row| row.get(1)).collect();
    for table in OF_JOB_PART {
        let sql = format!(
            "DELETE FROM posthaste.{table} d USING unnest($1, $2) AS p (job, endpoint)
             WHERE d.job = p.job AND d.endpoint = p.endpoint"
        );
        delete(tx, table, &sql, bind![jobs, endpoints], progress).await?;
    }
    // Jobs whose last part it was.
    let sql = "UPDATE posthaste.jobs j SET state = 2, finished_at = $1 WHERE state IN (0, 1, 4) AND id <> $2
               AND NOT EXISTS (SELECT FROM posthaste.job_parts w WHERE w.job = j.id AND NOT w.is_done)";
    tx.execute(sql, bind![millis(step.now), step.job]).await?;
    let sql = "SELECT id, spec FROM posthaste.jobs WHERE id = ANY ($1) AND state IN (2, 3, 5)";
    for row in tx.query(sql, bind![jobs]).await? {
        if let Some(spec) = spec_without_names(row.get(1)) {
            let (sql, job) =
                ("UPDATE posthaste.jobs SET spec = $2, error = NULL WHERE id = $1", row.get::<_, JobId>(0));
            tx.execute(sql, bind![job, spec]).await?;
        }
    }
    Ok(true)
}
