//! Reports the result of an attempt to its endpoint's breaker.
//!
//! What the result changes there (health, endpoint events, a stop) is stored
//! with the attempt.

use jiff::Timestamp;
use tracing::{info, warn};

use super::queue::EndpointQueue;
use crate::lifecycle::deliver::attempt::AttemptResult;
use crate::model::endpoint::EndpointState;
use crate::model::endpoint_event::EndpointEvent;
use crate::model::health::{AutoPauseLimits, BreakerThresholds};
use crate::model::named_enum::NamedEnum;
use crate::store::{Claim, EndpointUpdate};

/// Whether an update holds deliveries back. Then
/// [`super::queues::EndpointQueues::backpressure_written`] has to follow it.
pub fn is_backpressure(update: &EndpointUpdate) -> bool {
    update.backpressure_until.is_some() || update.is_stop()
}

/// Applies the result of an attempt to the endpoint's breaker; returns what is
/// to be stored of it.
pub fn observe(
    queue: &mut EndpointQueue,
    result: AttemptResult,
    quarantine: AutoPauseLimits,
    now: Timestamp,
) -> EndpointUpdate {
    let version = queue.breaker.health.version;
    let thresholds = BreakerThresholds { breaker: &queue.gate.breaker, cap: queue.gate.cap, quarantine };
    let mut endpoint_events = queue.breaker.observe(&result.breaker_input, thresholds, now, result.draw);
    if let Some(cause) = result.disables {
        // What is disabled need not be paused.
        endpoint_events.retain(|event| EndpointState::stopped_by(event).is_none());
        endpoint_events.push(EndpointEvent::Disabled(cause));
    }
    let mut update = EndpointUpdate { backpressure_until: result.backpressure_until, health: None, endpoint_events };
    if update.is_stop() {
        queue.breaker.note_trouble(now);
    }
    if queue.breaker.health.version != version {
        update.health = Some(Box::new(queue.breaker.health.clone()));
    }
    update
}

/// Logs what an attempt changed about its endpoint.
pub fn log_endpoint_update(claim: &Claim, update: &EndpointUpdate) {
    let (endpoint, tenant) = (claim.endpoint, &claim.event.tenant);
    for endpoint_event in &update.endpoint_events {
        let (what, by) = (endpoint_event.kind().as_str(), endpoint_event.by().as_str());
        let (happened, is_held) = describe_event(endpoint_event);
        let reason = endpoint_event.reason().map(|reason| format!(": {reason}")).unwrap_or_default();
        if is_held {
            warn!(endpoint.id = %endpoint, tenant.id = %tenant, what, by, "endpoint {endpoint}: {happened}{reason}; its deliveries are held");
        } else {
            info!(endpoint.id = %endpoint, tenant.id = %tenant, what, by, "endpoint {endpoint}: {happened}{reason}");
        }
    }
    if let Some(at) = update.backpressure_until {
        info!(endpoint.id = %endpoint, tenant.id = %tenant, "endpoint {endpoint}: its deliveries wait until {at}, as its receiver asked with Retry-After");
    }
}

/// Says what happened to an endpoint, and whether its deliveries are held from now on.
fn describe_event(event: &EndpointEvent) -> (&'static str, bool) {
    match event {
        EndpointEvent::Paused(_) => ("it is paused", true),
        EndpointEvent::Disabled(_) => ("it is disabled", true),
        EndpointEvent::BreakerOpened { .. } => ("its breaker opened", true),
        EndpointEvent::Resumed { .. } => ("it is resumed", false),
        EndpointEvent::ProbeFailed { .. } => ("a probe failed", false),
        EndpointEvent::BreakerClosed(_) => ("its breaker closed", false),
        EndpointEvent::Recovered => ("it delivers again", false),
    }
}
