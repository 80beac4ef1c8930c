//! Purges tenants: deletes everything that is stored of one.
//!
//! A purge is a job of the system tenant with one part, which is at no endpoint: an id
//! of its own decides which node does it. The store makes each step.

use tracing::info;

use super::Gateway;
use crate::model::audit::Initiator;
use crate::model::id::{EndpointId, JobId, TenantId};
use crate::model::job::{Job, JobFilter, JobKind, JobPart, JobSpec, JobState};
use crate::store::{PurgeStep, Result};

/// Deletes a tenant for everybody, and starts the job that deletes what is stored of it.
pub async fn start(gateway: &Gateway, by: &Initiator, tenant: &TenantId) -> Result<Job> {
    let now = gateway.clock.now();
    let spec = JobSpec {
        kind: JobKind::Purge,
        filter: JobFilter::default(),
        per_second: None,
        not_older_than: None,
        even_overtaken: false,
        note: None,
        by: by.caller().map_or_else(|| "unknown".to_owned(), |caller| caller.by.to_string()),
    };
    let job = Job {
        id: JobId::mint(now, rand::random()),
        tenant: TenantId::system(),
        spec,
        state: JobState::Running,
        created_at: now,
        finished_at: None,
        error: None,
        parts: vec![JobPart::new(tenant.clone(), EndpointId::mint(now, rand::random()))],
    };
    let endpoints = gateway.store.endpoints(tenant);
    gateway.store.purge_tenant(by, tenant, job.clone()).await?;
    gateway.dispatcher.forget_figures(tenant);
    for endpoint in endpoints {
        gateway.dispatcher.endpoint_changed(endpoint.id);
    }
    info!(job.id = %job.id, tenant.id = %tenant, "job {} purges tenant {tenant}", job.id);
    Ok(job)
}

/// Makes one step of a purge. Returns whether the next need not wait for anything.
pub async fn step(gateway: &Gateway, job: &Job, part: &JobPart) -> Result<bool> {
    let lease = gateway.store.lease(&part.tenant, part.endpoint);
    if !lease.is_held() {
        return Ok(false);
    }
    let (now, wall) = (gateway.clock.now(), gateway.clock.wall());
    let step = PurgeStep { job: job.id, before: part.clone(), now, wall };
    let advanced = gateway.store.advance_purge(lease, step).await?;
    for (id, changed) in advanced.changed {
        gateway.dispatcher.delivery_changed(changed.endpoint, id, changed.due_at);
        gateway.dispatcher.admit(changed.freed);
        gateway.notifier.operational_events_written(&changed.operational_events);
    }
    gateway.dispatcher.admit(advanced.freed);
    gateway.notifier.operational_events_written(&advanced.operational_events);
    if advanced.is_finished {
        // Once more: what was in flight at the beginning may have ended since.
        gateway.dispatcher.forget_figures(&part.tenant);
        info!(job.id = %job.id, tenant.id = %part.tenant, "tenant {} is purged", part.tenant);
    }
    Ok(!advanced.is_finished)
}
