//! Says which endpoints of jobs are held: nothing is sent to them until somebody, or
//! their breaker, lets it.

use std::collections::HashMap;

use crate::lifecycle::Gateway;
use crate::lifecycle::live_status::{LiveStatusQuery, live_statuses};
use crate::model::blocker::{Capacity, EndpointConditions};
use crate::model::delivery::WaitingFor;
use crate::model::id::EndpointId;
use crate::model::job::{Job, JobKind, JobPart};

/// What holds each of some endpoints.
#[derive(Debug, Default)]
pub struct HeldEndpoints(HashMap<EndpointId, WaitingFor>);

impl HeldEndpoints {
    /// Finds out what holds the endpoints of jobs at which something is left to send.
    pub async fn of(gateway: &Gateway, jobs: &[Job]) -> Self {
        let is_open = |part: &&JobPart| !part.is_done;
        let sending = jobs.iter().filter(|job| job.spec.kind.is_sending() && !job.state.is_over());
        let parts: Vec<&JobPart> = sending.flat_map(|job| job.parts.iter().filter(is_open)).collect();
        let about = parts.iter().map(|part| LiveStatusQuery::endpoint(&part.tenant, part.endpoint)).collect();
        let statuses = live_statuses(gateway, about).await;
        let mut held = HashMap::new();
        for part in parts {
            let Some(endpoint) = gateway.store.endpoint(&part.tenant, part.endpoint) else { continue };
            let status = statuses.get(&part.endpoint);
            let health = status.and_then(|status| status.health.as_ref()).unwrap_or(&endpoint.health);
            let (state, capacity) = (endpoint.status.state, Capacity::Free);
            let conditions = EndpointConditions { state, backpressure_until: None, health, capacity };
            if let Some(by) = conditions.blocker_of_lag(false, gateway.clock.now()) {
                held.insert(part.endpoint, by);
            }
        }
        Self(held)
    }

    /// Returns what keeps a job of this kind from sending to an endpoint. What a person
    /// asked to be tried now waits for no breaker.
    pub fn blocker(&self, kind: JobKind, endpoint: EndpointId) -> Option<WaitingFor> {
        let by = self.0.get(&endpoint).copied().filter(|_| kind.is_sending())?;
        (!kind.tries_now() || by != WaitingFor::Breaker).then_some(by)
    }
}
