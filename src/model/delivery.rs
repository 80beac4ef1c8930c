//! A delivery: one event on its way to one endpoint, with its state, its budget
//! and its deadline. [`super::next_state`] decides how it changes state.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::id::{DeliveryId, EndpointId, EventId, TenantId};
use super::policy::RetryPolicy;
use super::span::Span;
use super::status_rules::ShortBudget;
use super::wall_offset::WallOffset;

/// State of a delivery. "In flight" is a claim on a waiting one, and
/// "ready" is `due_at <= now`; neither is a state. The numbers are the stored
/// codes, here and below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr, strum::VariantArray, strum::FromRepr)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum DeliveryState {
    /// An attempt is still to come.
    Waiting = 0,
    /// The receiver accepted it.
    Delivered = 1,
    /// It is a dead letter, with a cause.
    Dead = 2,
    /// A person cancelled or discarded it.
    Cancelled = 3,
}

/// Why a delivery died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr, strum::VariantArray, strum::FromRepr)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum DeadCause {
    /// Its attempts were used up.
    Exhausted = 0,
    /// Its deadline passed.
    Expired = 1,
    /// The receiver answered with a permanent status.
    Refused = 2,
    /// The receiver asked never to be called again; its endpoint is disabled.
    Gone = 3,
    /// Its processing failed inside the gateway, again and again.
    Poisoned = 4,
    /// Its stored event no longer matches its checksum, so it is never sent.
    Damaged = 5,
}

impl DeadCause {
    /// Whether the owner of the endpoint is mailed. A refused delivery is no
    /// outage, and an endpoint that is gone gets a mail of its own.
    pub fn is_mailed(self) -> bool {
        match self {
            Self::Exhausted | Self::Expired | Self::Poisoned | Self::Damaged => true,
            Self::Refused | Self::Gone => false,
        }
    }

    /// Whether the receiver turned the delivery away for good. The service-level
    /// goal leaves such deaths out.
    pub fn is_refused_by_receiver(self) -> bool {
        match self {
            Self::Refused | Self::Gone => true,
            Self::Exhausted | Self::Expired | Self::Poisoned | Self::Damaged => false,
        }
    }

    /// Whether its owner is mailed where many deliveries die of it in a short time.
    pub fn is_mailed_in_bursts(self) -> bool {
        match self {
            Self::Refused => true,
            Self::Exhausted | Self::Expired | Self::Gone | Self::Poisoned | Self::Damaged => false,
        }
    }

    /// Returns why nobody may send it again, if that is so.
    pub fn replay_refusal(self) -> Option<ReplayRefusal> {
        match self {
            Self::Exhausted | Self::Expired | Self::Refused | Self::Gone | Self::Poisoned => None,
            Self::Damaged => Some(ReplayRefusal::Damaged),
        }
    }

    /// Whether a limit of time ended it, with or without an attempt.
    pub fn is_by_time(self) -> bool {
        match self {
            Self::Expired => true,
            Self::Exhausted | Self::Refused | Self::Gone | Self::Poisoned | Self::Damaged => false,
        }
    }

    /// Whether failures inside the gateway ended it.
    pub fn is_by_internal_errors(self) -> bool {
        match self {
            Self::Poisoned => true,
            Self::Exhausted | Self::Expired | Self::Refused | Self::Gone | Self::Damaged => false,
        }
    }

    /// Returns what the cause means, for people.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Exhausted => "all attempts were used up",
            Self::Expired => "too old: the deadline passed",
            Self::Refused => "the receiver refused it for good",
            Self::Gone => "the receiver asked never to be called again",
            Self::Poisoned => "its processing failed inside the gateway",
            Self::Damaged => "what is stored of it is damaged, so it is never sent",
        }
    }
}

/// Why a dead letter cannot be replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayRefusal {
    /// The stored event no longer matches its checksum.
    Damaged,
}

impl ReplayRefusal {
    /// Returns the reason and the way out, for people.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Damaged => {
                "what is stored of it is damaged; have its producer hand the event in again under another id"
            }
        }
    }
}

/// Number of internal errors after which a delivery is dead.
pub const INTERNAL_ERRORS_MAX: u32 = 3;

/// What the body of a delivery looks like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr, strum::VariantArray, strum::FromRepr)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum BodyFormat {
    /// The event with its id, type and time around the producer's data.
    #[default]
    Envelope = 0,
    /// The producer's data alone.
    Raw = 1,
    /// The event's id, type and time, and a link from which the receiver fetches the rest; needs `--public-url`.
    Thin = 2,
    /// A CloudEvent 1.0, structured.
    Cloudevents = 3,
    /// A sentence for Slack. These four are for operational events alone.
    Slack = 4,
    /// A sentence for Microsoft Teams.
    Teams = 5,
    /// A sentence for Discord.
    Discord = 6,
    /// A sentence for Mattermost.
    Mattermost = 7,
}

impl BodyFormat {
    /// Whether it is a message for a chat, as operational events alone can be.
    pub fn is_chat(self) -> bool {
        match self {
            Self::Slack | Self::Teams | Self::Discord | Self::Mattermost => true,
            Self::Envelope | Self::Raw | Self::Thin | Self::Cloudevents => false,
        }
    }
}

/// What a waiting delivery waits for: the first of these that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum WaitingFor {
    /// Its endpoint is disabled.
    Disabled,
    /// Its endpoint is paused.
    Pause,
    /// A predecessor in its lane is not finished.
    Key,
    /// Its due time has not come.
    Due,
    /// The receiver asked not to be called for a while (`Retry-After`).
    Backpressure,
    /// The endpoint's breaker is open or half-open.
    Breaker,
    /// The rate of the endpoint or its tenant is used up.
    Rate,
    /// No slot is free under the cap of the endpoint or the gateway.
    Slot,
}

/// The present situation of a delivery, beyond what is stored of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeliveryOutlook {
    /// Whether a request for the delivery is open.
    pub is_in_flight: bool,
    /// What the delivery waits for, if it waits.
    pub waiting_for: Option<WaitingFor>,
    /// Planned time of the next attempt, if it is known.
    pub next_attempt_at: Option<Timestamp>,
    /// Deadline of the delivery, if it has one.
    pub end: Option<DeliveryDeadline>,
}

impl DeliveryOutlook {
    /// Returns the same value with its times converted to wall time.
    pub fn to_wall_time(self, offset: WallOffset) -> Self {
        Self {
            next_attempt_at: self.next_attempt_at.map(|at| offset.wall(at)),
            end: self.end.map(|end| DeliveryDeadline { at: offset.wall(end.at), ..end }),
            ..self
        }
    }
}

/// Number of answers that a delivery has had against each short budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShortBudgetCounts {
    /// Number of 404 answers.
    pub not_found: u32,
    /// Number of lookups whose name does not exist.
    pub no_such_name: u32,
    /// Number of addresses that may not be called.
    pub forbidden_target: u32,
}

impl ShortBudgetCounts {
    /// Counts one more answer and returns the new number.
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

/// How much of its budget a delivery has used. A replay starts a fresh budget;
/// attempt numbers continue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of attempts in the delivery's whole life.
    pub attempts: u32,
    /// Number of those attempts that belong to earlier budgets.
    pub attempts_before: u32,
    /// Time at which this budget began: the acceptance or the replay.
    pub begun_at: Option<Timestamp>,
    /// Start of the first attempt of this budget.
    pub age_from: Option<Timestamp>,
    /// How long the endpoint had been held in all at `age_from`.
    pub held_before: Duration,
    /// `max_age` of the policy at the last verdict.
    pub max_age: Option<Span>,
    /// Delay drawn after the last attempt of this budget.
    pub last_delay: Option<Duration>,
    /// Answers counted against short budgets.
    pub short_budget_counts: ShortBudgetCounts,
}

/// The limits that the deadline of a delivery follows from.
#[derive(Debug, Clone, Copy)]
pub struct DeliveryTimeLimits<'a> {
    /// Present policy of the endpoint.
    pub policy: &'a RetryPolicy,
    /// How long the endpoint has been held in all, until now.
    pub held: Duration,
    /// Longest wait for the first attempt (`--hold-max`).
    pub hold_max: Span,
    /// Expiry of the event, if its producer set one.
    pub expires_at: Option<Timestamp>,
}

/// The deadline of a waiting delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryDeadline {
    /// Time after which no attempt starts.
    pub at: Timestamp,
    /// What sets the deadline.
    pub by: DeadlineSource,
}

/// What sets a delivery's deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadlineSource {
    /// The policy's `max_age`, counted from the first attempt.
    Age,
    /// `--hold-max`, for a delivery without a first attempt.
    Hold,
    /// The event's own `expires_at`.
    Expiry,
}

impl Progress {
    /// Returns the delivery's deadline. Time during which the endpoint was held
    /// does not count against its age. A longer `max_age` counts at once, a
    /// shorter one from the next verdict on: no change of a setting ends waiting
    /// deliveries.
    pub fn deadline(&self, limits: &DeliveryTimeLimits<'_>) -> Option<DeliveryDeadline> {
        let own = match (self.age_from, self.begun_at) {
            (Some(first), _) => {
                let held_since = limits.held.saturating_sub(self.held_before);
                let max_age =
                    self.max_age.map_or(limits.policy.max_age, |judged_by| judged_by.max(limits.policy.max_age));
                Some(DeliveryDeadline { at: time_after(first, max_age.0 + held_since), by: DeadlineSource::Age })
            }
            (None, Some(begun)) => {
                Some(DeliveryDeadline { at: time_after(begun, limits.hold_max.0), by: DeadlineSource::Hold })
            }
            (None, None) => None,
        };
        let expiry = limits.expires_at.map(|at| DeliveryDeadline { at, by: DeadlineSource::Expiry });
        match (own, expiry) {
            (Some(own), Some(expiry)) if own.at < expiry.at => Some(own),
            (own, expiry) => expiry.or(own),
        }
    }

    /// Returns how many attempts of this budget are used.
    pub fn used_attempts(&self) -> u32 {
        self.attempts - self.attempts_before
    }
}

/// Returns the time after a delay, rounded up to the millisecond so that nothing
/// is due early.
pub fn time_after(now: Timestamp, delay: Duration) -> Timestamp {
    let millis = delay.as_nanos().div_ceil(1_000_000);
    let millis = i64::try_from(millis).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(now.as_millisecond().saturating_add(millis)).unwrap_or(Timestamp::MAX)
}

/// Returns the time between two moments; nothing if the second is the earlier one.
pub fn time_between(from: Timestamp, to: Timestamp) -> Duration {
    let millis = to.as_millisecond().saturating_sub(from.as_millisecond());
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// Returns the time that is this much earlier.
pub fn time_before(now: Timestamp, span: Duration) -> Timestamp {
    let millis = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(now.as_millisecond().saturating_sub(millis)).unwrap_or(Timestamp::MIN)
}

/// A delivery as it is shown to people.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Id of the delivery.
    pub id: DeliveryId,
    /// Tenant the delivery belongs to.
    pub tenant: TenantId,
    /// Id of the event it delivers.
    pub event_id: EventId,
    /// Type of the event.
    pub event_type: String,
    /// Endpoint the delivery goes to.
    pub endpoint_id: EndpointId,
    /// Key of the event.
    pub key: Option<String>,
    /// Lane it is in: a key, or the empty text for a fully ordered endpoint.
    pub lane: Option<String>,
    /// Sequence number in its lane.
    pub seq: Option<u64>,
    /// Format of its body.
    pub format: BodyFormat,
    /// State of the delivery.
    pub state: DeliveryState,
    /// Cause of death, also after it was discarded.
    pub cause: Option<DeadCause>,
    /// Whether a predecessor in its lane holds it back.
    pub is_behind: bool,
    /// Due time of the next attempt, while it waits.
    pub due_at: Timestamp,
    /// Whether a person asked for the next attempt to start at once.
    pub is_urgent: bool,
    /// Expiry of the event, if its producer set one and nobody has replayed the
    /// delivery since.
    pub expires_at: Option<Timestamp>,
    /// Used part of its budget.
    pub progress: Progress,
    /// Time at which it was created.
    pub created_at: Timestamp,
    /// Start of its very first attempt, in wall time.
    pub first_attempt_at: Option<Timestamp>,
    /// Time at which it finished, if it has.
    pub finished_at: Option<Timestamp>,
    /// Status of the last attempt.
    pub last_status: Option<u16>,
    /// Failure of the last attempt.
    pub last_error: Option<super::answer::AttemptFailure>,
    /// Number of internal errors while it was processed.
    pub internal_errors: u32,
    /// Text of the last internal error.
    pub internal_error: Option<String>,
    /// SHA-256 of the body in hex, known from the first attempt on.
    pub body_sha256: Option<String>,
}

impl Delivery {
    /// Returns the same value with its times converted to wall time.
    pub fn to_wall_time(self, offset: WallOffset) -> Self {
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
    use crate::model::named_enum::NamedEnum;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    #[test]
    fn the_code_of_a_cause_never_changes_its_meaning() {
        let causes: Vec<_> = DeadCause::ALL.iter().map(|cause| (*cause as u8, cause.as_str())).collect();
        let stored = ["exhausted", "expired", "refused", "gone", "poisoned", "damaged"];
        assert_eq!(causes, (0..).zip(stored).collect::<Vec<_>>());
    }

    #[test]
    fn a_delivery_has_its_end_before_its_first_attempt_too() {
        let policy = RetryPolicy { max_age: Span::secs(100), ..RetryPolicy::default() };
        let limits =
            DeliveryTimeLimits { policy: &policy, held: Duration::ZERO, hold_max: Span::secs(50), expires_at: None };
        let waiting = Progress { begun_at: Some(at(0)), ..Progress::default() };
        assert_eq!(waiting.deadline(&limits), Some(DeliveryDeadline { at: at(50), by: DeadlineSource::Hold }));
        let tried = Progress { age_from: Some(at(40)), ..waiting };
        assert_eq!(tried.deadline(&limits), Some(DeliveryDeadline { at: at(140), by: DeadlineSource::Age }));
        let expiring = |seconds| DeliveryTimeLimits { expires_at: Some(at(seconds)), ..limits };
        assert_eq!(waiting.deadline(&expiring(60)), Some(DeliveryDeadline { at: at(50), by: DeadlineSource::Hold }));
        assert_eq!(waiting.deadline(&expiring(50)), Some(DeliveryDeadline { at: at(50), by: DeadlineSource::Expiry }));
        assert_eq!(tried.deadline(&expiring(60)), Some(DeliveryDeadline { at: at(60), by: DeadlineSource::Expiry }));
        assert_eq!(Progress::default().deadline(&limits), None);
        // A longer age counts at once, a shorter one from the next verdict on.
        let judged = |seconds| Progress { max_age: Some(Span::secs(seconds)), ..tried };
        assert_eq!(judged(30).deadline(&limits), Some(DeliveryDeadline { at: at(140), by: DeadlineSource::Age }));
        assert_eq!(judged(300).deadline(&limits), Some(DeliveryDeadline { at: at(340), by: DeadlineSource::Age }));
    }
}
