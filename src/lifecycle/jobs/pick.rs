//! Decides which deliveries a step of a job takes.

use std::collections::HashSet;

use jiff::Timestamp;

use super::pace::{LATER_MAX, STEP_MAX};
use crate::model::id::DeliveryId;
use crate::model::job::{Job, JobCandidate, JobDecision, JobFilter, LeftOut};
use crate::store::{BackfillTake, CandidatePage, WaitingInJob};

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

/// Returns the deliveries that a part need not follow any longer although they wait: all
/// if nothing comes of them, else those without which there is room for a step. One whose
/// lane has moved past it is followed: the next of its lane must not overtake it.
pub fn left_waiting(still: &[WaitingInJob], is_stuck: bool, now: Timestamp) -> impl Iterator<Item = &WaitingInJob> {
    let need_not_end = move |one: &WaitingInJob| one.waits_longer(now) && (one.is_behind || one.lane.is_none());
    let may_be_left = still.iter().filter(move |one| is_stuck || need_not_end(one));
    may_be_left.skip(if is_stuck { 0 } else { LATER_MAX - STEP_MAX })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::delivery::{DeliveryState, time_after};

    #[test]
    fn beyond_what_a_part_can_follow_it_leaves_what_it_need_not_see_end() {
        let now = Timestamp::UNIX_EPOCH;
        let later = time_after(now, std::time::Duration::from_secs(60));
        let waiting = |n: u128, lane: Option<&str>, is_behind, due_at| WaitingInJob {
            id: DeliveryId::mint(now, n),
            state: Some(DeliveryState::Waiting),
            lane: lane.map(str::to_owned),
            is_behind,
            due_at: Some(due_at),
            next: None,
        };
        let failed = |n| waiting(n, None, false, later);
        let mut still: Vec<WaitingInJob> = (0..900).map(failed).collect();
        let left = |still: &[WaitingInJob], is_stuck| left_waiting(still, is_stuck, now).count();
        assert_eq!((left(&still, false), left(&still, true)), (0, 900));
        still.extend((900..950).map(failed));
        still.push(waiting(950, Some("k"), true, now));
        assert_eq!(left(&still, false), 51);
        still.push(waiting(951, None, false, now));
        still.push(waiting(952, Some("passed"), false, later));
        assert_eq!(left(&still, false), 51, "one may go now, and one keeps its lane");
    }
}
