//! Reads jobs with their parts, and reports their end.

use jiff::Timestamp;

use super::transaction::{PgTransaction, bind};
use super::unit_of_work::UnitOfWork;
use crate::model::id::JobId;
use crate::model::job::{Job, JobPart};
use crate::model::operational_event::OperationalEvent;
use crate::store::job_columns::{JobColumns, JobPartColumns};
use crate::store::jobs::with_parts;
use crate::store::row::PostgresColumns;
use crate::store::{JobAdvanced, Result};

/// The tables that a job is read from.
pub const JOBS: &str = "FROM posthaste.jobs j JOIN posthaste.tenants t ON t.no = j.tenant AND t.deleted_at IS NULL";

/// Returns the query for parts of jobs.
pub fn parts_sql(condition: &str) -> String {
    format!(
        "SELECT {} FROM posthaste.job_parts w JOIN posthaste.jobs j ON j.id = w.job
             JOIN posthaste.tenants t ON t.no = j.tenant
         WHERE {condition} ORDER BY w.endpoint",
        JobPartColumns::COLUMNS
    )
}

/// Reads parts of jobs.
pub fn parts_of(rows: &[tokio_postgres::Row]) -> Result<Vec<(JobId, JobPart)>> {
    rows.iter().map(|row| Ok(JobPartColumns::read(row).part()?)).collect()
}

/// Returns a job with its parts.
pub async fn find(tx: &PgTransaction, id: JobId) -> Result<Option<Job>> {
    let sql = format!("SELECT {} {JOBS} WHERE j.id = $1", JobColumns::COLUMNS);
    let jobs = tx.query(&sql, bind![id]).await?;
    let jobs = jobs.iter().map(|row| Ok(JobColumns::read(row).job()?)).collect::<Result<Vec<Job>>>()?;
    let parts = parts_of(&tx.query(&parts_sql("w.job = $1"), bind![id]).await?)?;
    Ok(with_parts(jobs, parts).pop())
}

/// Accepts the operational event that a job has ended.
pub async fn report_job_end(
    work: &mut UnitOfWork<'_>,
    id: JobId,
    advanced: &mut JobAdvanced,
    now: Timestamp,
) -> Result<()> {
    if let Some(job) = find(work.tx, id).await? {
        let event = OperationalEvent::of_finished_job(&job, &job.counts(), now);
        advanced.freed.extend(work.accept_operational_event(event, now).await?);
    }
    advanced.operational_events = std::mem::take(&mut work.operational_events);
    Ok(())
}
