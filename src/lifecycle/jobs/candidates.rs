//! Reads the deliveries that a part of a job may take.

use crate::lifecycle::Gateway;
use crate::model::id::DeliveryId;
use crate::model::job::{JobFilter, JobPart, JobSpec};
use crate::store::{CandidatePage, CandidateWalk, Result};

/// Deliveries that one step reads.
pub const LOOK: usize = 500;

/// Reads deliveries of a part: those that the filter names, oldest first, or all of its
/// endpoint.
pub async fn candidates_of(
    gateway: &Gateway,
    spec: &JobSpec,
    filter: &JobFilter,
    part: &JobPart,
    walk: CandidateWalk,
    look: usize,
) -> Result<CandidatePage> {
    if filter.ids.is_empty() {
        return gateway.store.job_candidates(part.endpoint, spec.state(), walk, look).await;
    }
    // The filter's ids are in order.
    let after = match walk {
        CandidateWalk::OldestFirst(after) | CandidateWalk::NewestFirst(after) => after,
    };
    let ids: Vec<DeliveryId> =
        filter.ids.iter().filter(|id| after.is_none_or(|after| **id > after)).take(look).copied().collect();
    let (read, is_end, looked_to) = (ids.len(), ids.len() < look, ids.last().copied());
    let mut candidates = gateway.store.job_candidates_by_id(&part.tenant, ids).await?;
    candidates.retain(|one| one.delivery.endpoint_id == part.endpoint && one.delivery.state == spec.state());
    Ok(CandidatePage { candidates, looked_to, read, is_end })
}
