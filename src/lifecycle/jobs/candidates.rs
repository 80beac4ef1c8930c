//! Reads the deliveries that a part of a job may take.

use crate::lifecycle::Gateway;
use crate::model::id::DeliveryId;
use crate::model::job::{JobFilter, JobPart, JobSpec};
use crate::store::{CandidatePage, CandidateWalk, Result, delivery_no};

/// Deliveries that one step reads.
pub const LOOK: usize = 500;

/// Reads deliveries of a part: those that the filter names, whatever their state, oldest
/// first, or all of its endpoint.
pub async fn candidates_of(
    gateway: &Gateway,
    spec: &JobSpec,
    filter: &JobFilter,
    part: &JobPart,
    walk: CandidateWalk,
    look: usize,
) -> Result<CandidatePage> {
    if filter.ids.is_empty() {
        return gateway.store.job_candidates(part.endpoint, spec.delivery_state(), walk, look).await;
    }
    let after = match walk {
        CandidateWalk::OldestFirst(after) | CandidateWalk::NewestFirst(after) => after,
    };
    // In the order of the page: what a step leaves of it lies behind the last one that the
    // step decided about. The time in an id is from before the commit that numbers it, so
    // that ids of producers who send at once have another order.
    let place = |id: DeliveryId| (delivery_no(id), id);
    let mut ids = filter.ids.clone();
    ids.retain(|id| after.is_none_or(|after| place(*id) > place(after)));
    ids.sort_by_key(|id| place(*id));
    ids.truncate(look);
    let (read, is_end, looked_to) = (ids.len(), ids.len() < look, ids.last().copied());
    let mut candidates = gateway.store.job_candidates_by_id(&part.tenant, ids).await?;
    candidates.retain(|one| one.delivery.endpoint_id == part.endpoint);
    Ok(CandidatePage { candidates, looked_to, read, is_end })
}
