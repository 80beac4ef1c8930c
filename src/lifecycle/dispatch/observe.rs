//! Reports the result of an attempt to its endpoint's breaker.
//!
//! What the result changes there (health, endpoint events, a stop) is stored
//! with the attempt.

use jiff::Timestamp;

use super::queue::EndpointQueue;
use crate::lifecycle::deliver::attempt::AttemptResult;
use crate::model::endpoint::EndpointState;
use crate::model::endpoint_event::{Actor, EndpointEvent, EndpointEventKind};
use crate::model::health::{BreakerEvent, BreakerThresholds, Quarantine};
use crate::store::{EndpointStop, EndpointUpdate};

/// Whether an update holds deliveries back. Then
/// [`super::queues::EndpointQueues::backpressure_written`] has to follow it.
pub fn is_backpressure(update: &EndpointUpdate) -> bool {
    update.quiet_until.is_some() || update.stop.is_some()
}

/// Applies the result of an attempt to the endpoint's breaker; returns what is
/// to be stored of it.
pub fn observe(
    queue: &mut EndpointQueue,
    result: AttemptResult,
    quarantine: Quarantine,
    now: Timestamp,
) -> EndpointUpdate {
    let version = queue.breaker.health.version;
    let thresholds = BreakerThresholds { breaker: &queue.gate.breaker, cap: queue.gate.cap, quarantine };
    let breaker_events = queue.breaker.observe(&result.breaker_input, thresholds, now, result.draw);
    let mut update = EndpointUpdate { quiet_until: result.quiet_until, ..EndpointUpdate::default() };
    let mut record =
        |what, reason, by, until| update.endpoint_events.push(EndpointEvent { at: now, what, reason, by, until });
    for breaker_event in breaker_events {
        match breaker_event {
            BreakerEvent::Opened { until, reason, is_again } => {
                let kind = if is_again { EndpointEventKind::ProbeFailed } else { EndpointEventKind::BreakerOpened };
                record(kind, Some(reason), Actor::Gateway, Some(until));
            }
            BreakerEvent::Closed { reason } => {
                record(EndpointEventKind::BreakerClosed, Some(reason), Actor::Gateway, None)
            }
            BreakerEvent::Recovered => record(EndpointEventKind::Recovered, None, Actor::Receiver, None),
            BreakerEvent::Quarantined { reason } => {
                update.stop = Some(EndpointStop { state: EndpointState::Paused, reason, by: Actor::Gateway });
            }
        }
    }
    if let Some(reason) = result.disables {
        update.stop = Some(EndpointStop { state: EndpointState::Disabled, reason, by: Actor::Receiver });
    }
    if update.stop.is_some() {
        queue.breaker.note_trouble(now);
    }
    if queue.breaker.health.version != version {
        update.health = Some(Box::new(queue.breaker.health.clone()));
    }
    update
}
