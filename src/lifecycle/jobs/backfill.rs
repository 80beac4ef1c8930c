//! Picks the past events that a backfill gives to an endpoint.

use std::time::Duration;

use jiff::Timestamp;

use super::candidates::LOOK;
use super::pick::PickedDeliveries;
use crate::lifecycle::Gateway;
use crate::model::backfill::{BackfillCandidate, BackfillTimes};
use crate::model::delivery::time_before;
use crate::model::endpoint::Endpoint;
use crate::model::id::DeliveryId;
use crate::model::job::{Job, JobDecision, JobFilter};
use crate::store::{BackfillPage, BackfillQuery, BackfillTake, Result};

/// Longest time before the end of retention at which events are no longer given to
/// anybody: retention may be about to forget who got them.
const MARGIN_MAX: Duration = Duration::from_secs(3_600);

/// A backfill at one endpoint.
pub struct EventPicker<'a> {
    /// Job of the part.
    pub job: &'a Job,
    /// Filter of the job, in engine time.
    pub filter: &'a JobFilter,
    /// Endpoint that gets the events.
    pub endpoint: &'a Endpoint,
    times: BackfillTimes,
}

impl<'a> EventPicker<'a> {
    /// Returns a picker at this time.
    pub fn new(gateway: &Gateway, job: &'a Job, filter: &'a JobFilter, endpoint: &'a Endpoint) -> Self {
        let own = gateway.store.tenant(&endpoint.tenant).map(|tenant| tenant.retention).unwrap_or_default();
        let (now, kept) = (gateway.clock.now(), gateway.links.receivers_known_for(own));
        let kept_since = time_before(now, kept.saturating_sub(MARGIN_MAX.min(kept / 24)));
        let times = BackfillTimes { began_at: job.created_at, kept_since, now, wall: gateway.clock.wall() };
        Self { job, filter, endpoint, times }
    }

    /// Reads the next events behind this position.
    pub async fn read(&self, gateway: &Gateway, after: Option<DeliveryId>) -> Result<BackfillPage> {
        let query = BackfillQuery { after, since: self.filter.accepted_since, look: LOOK };
        gateway.store.backfill_candidates(self.endpoint.id, query).await
    }

    /// Takes events in their order, at most this many.
    pub fn pick(&self, gateway: &Gateway, picked: &mut PickedDeliveries, page: &BackfillPage, most: usize) {
        let offset = gateway.clock.wall_offset();
        let engine = |at: Timestamp| offset.engine(at);
        let link_base = gateway.links.base().filter(|_| self.endpoint.settings.may_be_thin());
        for candidate in &page.events {
            match self.decide(candidate) {
                JobDecision::Pass => {}
                JobDecision::LeaveOut(why) => picked.left_out.push(why),
                JobDecision::Take if picked.backfill.len() >= most => return,
                JobDecision::Take => {
                    let expires_at = candidate.event.expires_at.map(engine);
                    let link_base = link_base.map(str::to_owned);
                    picked.backfill.push(BackfillTake { position: candidate.position, expires_at, link_base });
                }
            }
            picked.after = Some(candidate.position);
        }
        picked.is_whole = true;
    }

    /// Decides about one event.
    pub fn decide(&self, candidate: &BackfillCandidate) -> JobDecision {
        self.job.spec.decide_event(self.filter, self.endpoint, candidate, &self.times)
    }
}
