//! One event on its way to one endpoint: its states, its budget, and when
//! its time is over. How it moves between them is in [`super::next`].

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::endpoint::BodyFormat;
use super::id::{DeliveryId, EndpointId, EventId, TenantId};
use super::next_state::NextState;
use super::policy::RetryPolicy;
use super::span::Span;
use super::verdict::ShortBudget;
use super::wall_offset::WallOffset;

/// Where a delivery stands. "In flight" is a claim on a waiting one, and
/// "ready" is `due_at <= now`; neither is a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    /// An attempt is still to come.
    Waiting,
    /// The receiver has it.
    Delivered,
    /// Parked as a dead letter, with its cause.
    Dead,
    /// Ended by a person.
    Cancelled,
}

impl DeliveryState {
    /// The state as it is written everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Why a delivery died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeadCause {
    /// Its attempts were used up.
    Exhausted,
    /// It grew too old.
    Expired,
    /// The receiver answered with a permanent status.
    Refused,
    /// The receiver asked never to be called again; its endpoint is disabled.
    Gone,
    /// Its processing failed inside the gateway, again and again.
    Poisoned,
    /// What is stored of it is no longer what was accepted, so it is never sent.
    Damaged,
}

impl DeadCause {
    /// The cause as it is written everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exhausted => "exhausted",
            Self::Expired => "expired",
            Self::Refused => "refused",
            Self::Gone => "gone",
            Self::Poisoned => "poisoned",
            Self::Damaged => "damaged",
        }
    }
}

/// How often a delivery may fail inside the gateway before it is dead.
pub const INTERNAL_ERRORS_MAX: u32 = 3;

/// What a waiting delivery waits for: the first of these that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitingFor {
    /// Its endpoint is disabled.
    Disabled,
    /// Its endpoint is paused.
    Pause,
    /// A predecessor in its lane.
    Key,
    /// Its time.
    Due,
    /// The time that the receiver asked to be left alone.
    Backpressure,
    /// The endpoint's breaker: it kept failing.
    Breaker,
    /// The endpoint's rate, or its tenant's.
    Rate,
    /// A free slot under the endpoint's cap.
    Slot,
}

/// Where a delivery stands right now, beyond what is stored of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outlook {
    /// Whether a request for it is open.
    pub is_in_flight: bool,
    /// What it waits for, when it waits.
    pub waiting_for: Option<WaitingFor>,
    /// When its next attempt is planned, as far as that is known.
    pub next_attempt_at: Option<Timestamp>,
    /// When its time is over.
    pub end: Option<DeliveryDeadline>,
}

impl Outlook {
    /// The same with its times as people read them.
    pub fn on_wall(self, offset: WallOffset) -> Self {
        Self {
            next_attempt_at: self.next_attempt_at.map(|at| offset.wall(at)),
            end: self.end.map(|end| DeliveryDeadline { at: offset.wall(end.at), ..end }),
            ..self
        }
    }
}

/// How many answers of each short-budget kind a delivery has had.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShortBudgetCounts {
    /// 404s.
    pub not_found: u32,
    /// "No such name"s.
    pub no_such_name: u32,
    /// Forbidden addresses.
    pub forbidden_target: u32,
}

impl ShortBudgetCounts {
    /// Counts one more; returns how many there are.
    pub fn count(&mut self, budget: ShortBudget) -> u32 {
        let counter = match budget {
            ShortBudget::NotFound => &mut self.not_found,
            ShortBudget::NoSuchName => &mut self.no_such_name,
            ShortBudget::ForbiddenTarget => &mut self.forbidden_target,
        };
        *counter += 1;
        *counter
    }
}

/// How much of its budget a delivery has used. A replay starts a fresh one;
/// attempt numbers go on counting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Attempts made in the delivery's whole life.
    pub attempts: u32,
    /// Those of them that belong to earlier budgets.
    pub attempts_before: u32,
    /// When this budget began: with the acceptance, or with the replay.
    pub begun_at: Option<Timestamp>,
    /// When this budget's first attempt began.
    pub age_from: Option<Timestamp>,
    /// How long the endpoint had been held in all when it did.
    pub held_before: Duration,
    /// The policy's `max_age` when it was last judged.
    pub max_age: Option<Span>,
    /// The delay drawn after the last attempt of this budget.
    pub last_delay: Option<Duration>,
    /// Answers counted against shorter budgets.
    pub short_budget_counts: ShortBudgetCounts,
}

/// What limits the time of a delivery.
#[derive(Debug, Clone, Copy)]
pub struct DeliveryTimeLimits<'a> {
    /// The endpoint's policy at this moment.
    pub policy: &'a RetryPolicy,
    /// How long the endpoint has been held in all, until this moment.
    pub held: Duration,
    /// How long a delivery may wait for its first attempt.
    pub hold_max: Span,
    /// When the event itself is over, if its producer said so.
    pub expires_at: Option<Timestamp>,
}

/// When a waiting delivery's time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryDeadline {
    /// After this no attempt starts.
    pub at: Timestamp,
    /// What sets it.
    pub by: DeadlineSource,
}

/// What ends a delivery's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadlineSource {
    /// The policy's `max_age`, counted from the first attempt.
    Age,
    /// `--hold-max`: it never got its first attempt.
    Hold,
    /// The event's own `expires_at`.
    Expiry,
}

impl DeliveryDeadline {
    /// Where a delivery goes whose time is over.
    pub fn next(self) -> NextState {
        match self.by {
            DeadlineSource::Age | DeadlineSource::Hold => NextState::Dead(DeadCause::Expired),
            DeadlineSource::Expiry => NextState::ExpiredByProducer,
        }
    }
}

impl Progress {
    /// When this delivery's time is over. Time that the endpoint was held by
    /// a person does not count against its age. A `max_age` that was made
    /// longer counts at once; one that was made shorter, from the next verdict
    /// on: no change of a setting kills what waits.
    pub fn end(&self, limits: &DeliveryTimeLimits<'_>) -> Option<DeliveryDeadline> {
        let own = match (self.age_from, self.begun_at) {
            (Some(first), _) => {
                let held_since = limits.held.saturating_sub(self.held_before);
                let max_age = self.max_age.map_or(limits.policy.max_age, |judged| judged.max(limits.policy.max_age));
                Some(DeliveryDeadline { at: after(first, max_age.0 + held_since), by: DeadlineSource::Age })
            }
            (None, Some(begun)) => {
                Some(DeliveryDeadline { at: after(begun, limits.hold_max.0), by: DeadlineSource::Hold })
            }
            (None, None) => None,
        };
        let expiry = limits.expires_at.map(|at| DeliveryDeadline { at, by: DeadlineSource::Expiry });
        match (own, expiry) {
            (Some(own), Some(expiry)) if own.at < expiry.at => Some(own),
            (own, expiry) => expiry.or(own),
        }
    }

    /// The attempts used of this budget.
    pub fn used(&self) -> u32 {
        self.attempts - self.attempts_before
    }
}

/// A time some span later, to the millisecond, rounded up so that nothing is
/// due early.
pub fn after(now: Timestamp, delay: Duration) -> Timestamp {
    let millis = delay.as_nanos().div_ceil(1_000_000);
    let millis = i64::try_from(millis).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(now.as_millisecond().saturating_add(millis)).unwrap_or(Timestamp::MAX)
}

/// A delivery as it is shown: what a person asks about it.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Its name.
    pub id: DeliveryId,
    /// Whose it is.
    pub tenant: TenantId,
    /// The event it carries.
    pub event_id: EventId,
    /// That event's type.
    pub event_type: String,
    /// Where it goes.
    pub endpoint_id: EndpointId,
    /// The event's key.
    pub key: Option<String>,
    /// The lane it is in: a key, or the empty text for an endpoint in order.
    pub lane: Option<String>,
    /// Its place in its lane.
    pub seq: Option<u64>,
    /// What its body looks like.
    pub format: BodyFormat,
    /// Where it stands.
    pub state: DeliveryState,
    /// Why it died, also after it was discarded.
    pub cause: Option<DeadCause>,
    /// Whether a predecessor in its lane holds it back.
    pub is_behind: bool,
    /// When the next attempt is due, while it waits.
    pub due_at: Timestamp,
    /// Whether a person asked for that attempt at once.
    pub is_urgent: bool,
    /// When the event is over, where its producer said so and nobody has
    /// replayed it since.
    pub expires_at: Option<Timestamp>,
    /// How much of its budget is used.
    pub progress: Progress,
    /// When it was created.
    pub created_at: Timestamp,
    /// When its very first attempt began, in wall time.
    pub first_attempt_at: Option<Timestamp>,
    /// When it reached its present state, if finished.
    pub finished_at: Option<Timestamp>,
    /// The last attempt's status.
    pub last_status: Option<u16>,
    /// The last attempt's failure.
    pub last_error: Option<super::attempt::AttemptFailure>,
    /// How often its processing failed inside the gateway.
    pub internal_errors: u32,
    /// How, the last time.
    pub internal_error: Option<String>,
    /// SHA-256 of the body, known from the first attempt on.
    pub body_sha256: Option<String>,
}

impl Delivery {
    /// The same with its times as people read them.
    pub fn on_wall(self, offset: WallOffset) -> Self {
        let wall = |at: Timestamp| offset.wall(at);
        Self {
            due_at: wall(self.due_at),
            expires_at: self.expires_at.map(wall),
            created_at: wall(self.created_at),
            finished_at: self.finished_at.map(wall),
            progress: Progress {
                begun_at: self.progress.begun_at.map(wall),
                age_from: self.progress.age_from.map(wall),
                ..self.progress
            },
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    #[test]
    fn a_delivery_has_its_end_before_its_first_attempt_too() {
        let policy = RetryPolicy { max_age: Span::secs(100), ..RetryPolicy::default() };
        let limits =
            DeliveryTimeLimits { policy: &policy, held: Duration::ZERO, hold_max: Span::secs(50), expires_at: None };
        let waiting = Progress { begun_at: Some(at(0)), ..Progress::default() };
        assert_eq!(waiting.end(&limits), Some(DeliveryDeadline { at: at(50), by: DeadlineSource::Hold }));
        let tried = Progress { age_from: Some(at(40)), ..waiting };
        assert_eq!(tried.end(&limits), Some(DeliveryDeadline { at: at(140), by: DeadlineSource::Age }));
        let expiring = |seconds| DeliveryTimeLimits { expires_at: Some(at(seconds)), ..limits };
        assert_eq!(waiting.end(&expiring(60)), Some(DeliveryDeadline { at: at(50), by: DeadlineSource::Hold }));
        assert_eq!(waiting.end(&expiring(50)), Some(DeliveryDeadline { at: at(50), by: DeadlineSource::Expiry }));
        assert_eq!(tried.end(&expiring(60)), Some(DeliveryDeadline { at: at(60), by: DeadlineSource::Expiry }));
        assert_eq!(Progress::default().end(&limits), None);
        // A longer age counts at once, a shorter one from the next verdict on.
        let judged = |seconds| Progress { max_age: Some(Span::secs(seconds)), ..tried };
        assert_eq!(judged(30).end(&limits), Some(DeliveryDeadline { at: at(140), by: DeadlineSource::Age }));
        assert_eq!(judged(300).end(&limits), Some(DeliveryDeadline { at: at(340), by: DeadlineSource::Age }));
    }
}
