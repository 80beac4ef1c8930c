//! The columns of jobs and their parts, as both stores read them.

use super::codes::{UnknownCode, at};
use super::row::row;
use super::row_error::RowError;
use super::stored_json::from_json;
use super::stored_value::StoredCode;
use crate::model::id::{DeliveryId, EndpointId, JobId, TenantId};
use crate::model::job::{Job, JobPart, JobState};

row! {
    /// A job without its parts. Its table is called `j` in every query, and that of
    /// tenants `t`.
    pub both struct JobColumns {
        /// Id of the job.
        id: JobId = "j.id",
        /// Id of its tenant.
        tenant: TenantId = "t.id",
        /// Code of its state.
        state: StoredCode = "j.state",
        /// Spec of the job, as JSON.
        spec: String = "j.spec",
        /// Time at which it began.
        created_at: i64 = "j.created_at",
        /// Time at which it ended.
        finished_at: Option<i64> = "j.finished_at",
        /// Why the job failed, if it did.
        error: Option<String> = "j.error",
    }
}

impl JobColumns {
    /// Returns the job without its parts.
    pub fn job(self) -> Result<Job, RowError> {
        Ok(Job {
            id: self.id,
            tenant: self.tenant,
            spec: from_json("jobs.spec", &self.spec)?,
            state: job_state(self.state.0)?,
            created_at: at(self.created_at),
            finished_at: self.finished_at.map(at),
            error: self.error,
            parts: Vec::new(),
        })
    }
}

/// Returns the state with this code.
pub fn job_state(code: i64) -> Result<JobState, UnknownCode> {
    let state = u8::try_from(code).ok().and_then(JobState::from_repr);
    state.ok_or(UnknownCode { column: "jobs.state", value: code })
}

row! {
    /// A part of a job. Its table is called `w` in every query, and those of its job and
    /// of the job's tenant `j` and `t`.
    pub both struct JobPartColumns {
        /// Id of the job.
        job: JobId = "w.job",
        /// Id of the endpoint's tenant.
        tenant: TenantId = "coalesce(w.tenant, t.id)",
        /// Id of the endpoint.
        endpoint: EndpointId = "w.endpoint",
        /// The last delivery that was looked at.
        after: Option<DeliveryId> = "w.after",
        /// Whether all deliveries were looked at.
        is_read: bool = "w.is_all_read",
        /// Whether nothing more comes of it.
        is_done: bool = "w.is_done",
        /// Counts of the part, as JSON.
        counts: String = "w.counts",
    }
}

impl JobPartColumns {
    /// Returns the job's id and the part.
    pub fn part(self) -> Result<(JobId, JobPart), RowError> {
        let counts = from_json("job_parts.counts", &self.counts)?;
        let Self { job, tenant, endpoint, after, is_read, is_done, .. } = self;
        Ok((job, JobPart { tenant, endpoint, after, is_read, is_done, counts }))
    }
}
