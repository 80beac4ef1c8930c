//! Reads jobs with their parts, and reports their end.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension};

use super::operational_events::accept_operational_event;
use super::writer::WriteTransaction;
use crate::model::id::JobId;
use crate::model::job::{Job, JobPart};
use crate::model::operational_event::OperationalEvent;
use crate::store::JobAdvanced;
use crate::store::job_columns::{JobColumns, JobPartColumns};
use crate::store::jobs::with_parts;
use crate::store::row::SqliteColumns;

/// The tables that a job is read from.
pub const JOBS: &str = "FROM jobs j JOIN tenants t ON t.no = j.tenant AND t.deleted_at IS NULL";

/// Returns parts of jobs.
pub fn parts(db: &Connection, condition: &str, job: JobId) -> rusqlite::Result<Vec<(JobId, JobPart)>> {
    part_columns(db, condition, job)?.into_iter().map(|part| Ok(part.part()?)).collect()
}

/// Returns the columns of parts of jobs.
pub fn part_columns(db: &Connection, condition: &str, job: JobId) -> rusqlite::Result<Vec<JobPartColumns>> {
    let sql = format!(
        "SELECT {} FROM job_parts w JOIN jobs j ON j.id = w.job JOIN tenants t ON t.no = j.tenant
         WHERE {condition} ORDER BY w.endpoint",
        JobPartColumns::COLUMNS
    );
    let mut statement = db.prepare_cached(&sql)?;
    statement.query_map([job], JobPartColumns::read)?.collect()
}

/// Returns a job with its parts.
pub fn find(db: &Connection, id: JobId) -> rusqlite::Result<Option<Job>> {
    let sql = format!("SELECT {} {JOBS} WHERE j.id = ?", JobColumns::COLUMNS);
    let Some(found) = db.query_row(&sql, [id], JobColumns::read).optional()? else { return Ok(None) };
    Ok(with_parts(vec![found.job()?], parts(db, "w.job = ?", id)?).pop())
}

/// Accepts the operational event that a job has ended.
pub fn report_job_end(
    transaction: &mut WriteTransaction<'_>,
    id: JobId,
    advanced: &mut JobAdvanced,
    now: Timestamp,
) -> rusqlite::Result<()> {
    if let Some(job) = find(transaction.db, id)? {
        let event = OperationalEvent::of_finished_job(&job, &job.counts(), now);
        advanced.freed.extend(accept_operational_event(transaction, event, now)?);
    }
    advanced.operational_events = std::mem::take(&mut transaction.operational_events);
    Ok(())
}
