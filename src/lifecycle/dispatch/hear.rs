//! Hears what an answer says about its endpoint as a whole.
//!
//! The answer goes to the endpoint's breaker; what it changes there (health,
//! milestones, a stop) is written with the attempt.

use jiff::Timestamp;

use super::queue::Queue;
use crate::model::endpoint::EndpointState;
use crate::model::health::{Heard, Quarantine, Thresholds, Turn};
use crate::model::news::{Author, Milestone, What};
use crate::store::{Notice, Stop};

/// What an answer says about its endpoint.
#[derive(Debug, Clone)]
pub struct Answered {
    /// How it sounds.
    pub heard: Heard,
    /// Whether the receiver answered at all, and did not just hold the line.
    pub is_answer: bool,
    /// Until when the receiver asks to be left alone.
    pub quiet_until: Option<Timestamp>,
    /// Why it asks never to be called again, if it does.
    pub disables: Option<String>,
    /// A random number in `[0, 1)`.
    pub draw: f64,
}

/// Whether a notice is one that [`super::queues::Queues::hush_over`] has to follow.
pub fn is_hush(notice: &Notice) -> bool {
    notice.quiet_until.is_some() || notice.stop.is_some()
}

/// Hears an answer: changes how the endpoint is doing, and returns what is to
/// be written of it.
pub fn hear(queue: &mut Queue, answer: Answered, quarantine: Quarantine, now: Timestamp) -> Notice {
    let serial = queue.pulse.health.serial;
    let by = Thresholds { breaker: &queue.gate.breaker, cap: queue.gate.cap, quarantine };
    let turns = queue.pulse.hear(&answer.heard, by, now, answer.draw);
    let mut notice = Notice { quiet_until: answer.quiet_until, ..Notice::default() };
    let mut happened = |what, reason, by, until| notice.milestones.push(Milestone { at: now, what, reason, by, until });
    for turn in turns {
        match turn {
            Turn::Opened { until, reason, is_again } => {
                let what = if is_again { What::ProbeFailed } else { What::BreakerOpened };
                happened(what, Some(reason), Author::Gateway, Some(until));
            }
            Turn::Closed { reason } => happened(What::BreakerClosed, Some(reason), Author::Gateway, None),
            Turn::Recovered => happened(What::Recovered, None, Author::Receiver, None),
            Turn::Quarantined { reason } => {
                notice.stop = Some(Stop { state: EndpointState::Paused, reason, by: Author::Gateway });
            }
        }
    }
    if let Some(reason) = answer.disables {
        notice.stop = Some(Stop { state: EndpointState::Disabled, reason, by: Author::Receiver });
    }
    if notice.stop.is_some() {
        queue.pulse.note_trouble(now);
    }
    if queue.pulse.health.serial != serial {
        notice.health = Some(Box::new(queue.pulse.health.clone()));
    }
    notice
}
