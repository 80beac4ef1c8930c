//! Decides which deliveries a step of a job takes.

use std::collections::HashSet;

use jiff::Timestamp;

use crate::model::id::DeliveryId;
use crate::model::job::{Job, JobCandidate, JobDecision, JobFilter, LeftOut};
use crate::store::{BackfillTake, CandidatePage};

/// What one step does about the deliveries it has read.
#[derive(Debug, Default)]
pub struct PickedDeliveries {
    /// Deliveries to change.
    pub take: Vec<DeliveryId>,
    /// Past events of which the endpoint gets a delivery.
    pub backfill: Vec<BackfillTake>,
    /// Deliveries that wait until another one of their lane has ended, with the lane.
    pub hold: Vec<(DeliveryId, String)>,
    /// Deliveries that were held back and are decided about, with the lane.
    pub unhold: Vec<(DeliveryId, String)>,
    /// Why deliveries are left out.
    pub left_out: Vec<LeftOut>,
    /// The last one that was decided about.
    pub after: Option<DeliveryId>,
    /// Whether all that were read were decided about.
    pub is_whole: bool,
    /// Lanes of which a delivery is under way.
    pub lanes: HashSet<String>,
}

/// Decides about deliveries at one endpoint.
pub struct PartPicker<'a> {
    /// Job of the part.
    pub job: &'a Job,
    /// Filter of the job, in engine time.
    pub filter: &'a JobFilter,
    /// Whether the endpoint was deleted.
    pub is_deleted: bool,
    /// Time of the step.
    pub now: Timestamp,
}

impl PartPicker<'_> {
    /// Takes deliveries that were held back, of lanes that are free now.
    pub fn pick_held(
        &self,
        picked: &mut PickedDeliveries,
        held: &[(DeliveryId, String)],
        found: &[JobCandidate],
        is_in_flight: impl Fn(DeliveryId) -> bool,
    ) {
        for (id, lane) in held {
            picked.unhold.push((*id, lane.clone()));
            // What was forgotten meanwhile is no longer part of the job.
            let Some(candidate) = found.iter().find(|candidate| candidate.delivery.id == *id) else { continue };
            match self.decide(candidate, &is_in_flight) {
                JobDecision::Pass => {}
                JobDecision::LeaveOut(why) => picked.left_out.push(why),
                JobDecision::Take => {
                    picked.lanes.extend(candidate.delivery.lane.clone());
                    picked.take.push(*id);
                }
            }
        }
    }

    /// Takes deliveries in their order, at most this many and one per lane. What comes
    /// later in a lane is held back, and keeps no other lane waiting.
    pub fn pick(
        &self,
        picked: &mut PickedDeliveries,
        page: &CandidatePage,
        most: usize,
        is_in_flight: impl Fn(DeliveryId) -> bool,
    ) {
        for candidate in &page.candidates {
            match self.decide(candidate, &is_in_flight) {
                JobDecision::Pass => {}
                JobDecision::LeaveOut(why) => picked.left_out.push(why),
                JobDecision::Take => {
                    let id = candidate.delivery.id;
                    let lane = candidate.delivery.lane.clone().filter(|_| self.job.spec.kind.sends_again());
                    match lane.filter(|lane| picked.lanes.contains(lane)) {
                        Some(busy) => picked.hold.push((id, busy)),
                        None if picked.take.len() >= most => return,
                        None => {
                            picked.lanes.extend(candidate.delivery.lane.clone());
                            picked.take.push(id);
                        }
                    }
                }
            }
            picked.after = Some(candidate.delivery.id);
        }
        picked.after = page.looked_to.or(picked.after);
        picked.is_whole = true;
    }

    /// Decides about one delivery.
    pub fn decide(&self, candidate: &JobCandidate, is_in_flight: &impl Fn(DeliveryId) -> bool) -> JobDecision {
        let spec = &self.job.spec;
        match spec.decide(self.filter, candidate, self.job.created_at, self.now) {
            JobDecision::Take if self.is_deleted && spec.kind.is_sending() => {
                JobDecision::LeaveOut(LeftOut::EndpointDeleted)
            }
            JobDecision::Take if spec.kind.tries_now() && is_in_flight(candidate.delivery.id) => {
                JobDecision::LeaveOut(LeftOut::WrongState)
            }
            decision => decision,
        }
    }
}
