//! Applies what an answer says about its endpoint as a whole.
//!
//! The answer goes to the endpoint's breaker; what it changes there (health,
//! endpoint events, a stop) is written with the attempt.

use jiff::Timestamp;

use super::queue::EndpointQueue;
use crate::lifecycle::deliver::attempt::AttemptResult;
use crate::model::endpoint::EndpointState;
use crate::model::health::{BreakerEvent, BreakerThresholds, Quarantine};
use crate::model::operational_event::{Actor, EndpointEvent, EndpointEventKind};
use crate::store::{EndpointStop, EndpointUpdate};

/// Whether a notice is one that [`super::queues::EndpointQueues::backpressure_written`] has to follow.
pub fn is_backpressure(update: &EndpointUpdate) -> bool {
    update.quiet_until.is_some() || update.stop.is_some()
}

/// Hears an answer: changes how the endpoint is doing, and returns what is to
/// be written of it.
pub fn observe(
    queue: &mut EndpointQueue,
    answer: AttemptResult,
    quarantine: Quarantine,
    now: Timestamp,
) -> EndpointUpdate {
    let serial = queue.breaker.health.version;
    let by = BreakerThresholds { breaker: &queue.gate.breaker, cap: queue.gate.cap, quarantine };
    let turns = queue.breaker.observe(&answer.breaker_input, by, now, answer.draw);
    let mut update = EndpointUpdate { quiet_until: answer.quiet_until, ..EndpointUpdate::default() };
    let mut happened =
        |what, reason, by, until| update.endpoint_events.push(EndpointEvent { at: now, what, reason, by, until });
    for turn in turns {
        match turn {
            BreakerEvent::Opened { until, reason, is_again } => {
                let what = if is_again { EndpointEventKind::ProbeFailed } else { EndpointEventKind::BreakerOpened };
                happened(what, Some(reason), Actor::Gateway, Some(until));
            }
            BreakerEvent::Closed { reason } => {
                happened(EndpointEventKind::BreakerClosed, Some(reason), Actor::Gateway, None)
            }
            BreakerEvent::Recovered => happened(EndpointEventKind::Recovered, None, Actor::Receiver, None),
            BreakerEvent::Quarantined { reason } => {
                update.stop = Some(EndpointStop { state: EndpointState::Paused, reason, by: Actor::Gateway });
            }
        }
    }
    if let Some(reason) = answer.disables {
        update.stop = Some(EndpointStop { state: EndpointState::Disabled, reason, by: Actor::Receiver });
    }
    if update.stop.is_some() {
        queue.breaker.note_trouble(now);
    }
    if queue.breaker.health.version != serial {
        update.health = Some(Box::new(queue.breaker.health.clone()));
    }
    update
}
