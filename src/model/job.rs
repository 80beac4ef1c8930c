//! Jobs: the same change made to many deliveries, chosen by a filter.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::delivery::{DeadCause, Delivery, DeliveryState};
use super::filter::glob_matches;
use super::id::{DeliveryId, EndpointId, JobId, TenantId};
use super::named_enum::NamedEnum;
use super::span::Span;
use super::wall_offset::WallOffset;

/// Most deliveries that a filter may name by their ids.
pub const IDS_MAX: usize = 5_000;

/// What a job does to each delivery.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::VariantArray,
    utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum JobKind {
    /// Finished ones wait again, with a fresh budget.
    Replay,
    /// Waiting ones are due now.
    Retry,
    /// Dead letters are given up; their lanes move on.
    Discard,
    /// Waiting ones are cancelled.
    Cancel,
}

impl JobKind {
    /// Returns the state of the deliveries that it takes, unless the filter says
    /// otherwise.
    pub fn state(self) -> DeliveryState {
        match self {
            Self::Replay | Self::Discard => DeliveryState::Dead,
            Self::Retry | Self::Cancel => DeliveryState::Waiting,
        }
    }

    /// Whether it may take deliveries in this state.
    pub fn takes(self, state: DeliveryState) -> bool {
        match self {
            Self::Replay => state != DeliveryState::Waiting,
            Self::Discard => state == DeliveryState::Dead,
            Self::Retry | Self::Cancel => state == DeliveryState::Waiting,
        }
    }

    /// Whether receivers are called because of it, so that it goes at a pace and
    /// follows each delivery to its end.
    pub fn is_sending(self) -> bool {
        match self {
            Self::Replay | Self::Retry => true,
            Self::Discard | Self::Cancel => false,
        }
    }
}

/// Where a job stands.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::VariantArray,
    strum::FromRepr,
    utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum JobState {
    /// It goes on.
    Running = 0,
    /// A person paused it.
    Paused = 1,
    /// It has done all.
    Finished = 2,
    /// A person ended it.
    Cancelled = 3,
}

impl JobState {
    /// Whether nothing more comes of it.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Finished | Self::Cancelled)
    }
}

/// What a person may do to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobChange {
    /// It rests until it is resumed.
    Pause,
    /// It goes on.
    Resume,
    /// It ends; what it has done stays done.
    Cancel,
}

impl JobChange {
    /// Returns the state that the job has then, or nothing if its present state does not
    /// allow it.
    pub fn apply(self, state: JobState) -> Option<JobState> {
        match (self, state) {
            (Self::Pause, JobState::Running | JobState::Paused) => Some(JobState::Paused),
            (Self::Resume, JobState::Running | JobState::Paused) => Some(JobState::Running),
            (Self::Cancel, JobState::Running | JobState::Paused) => Some(JobState::Cancelled),
            (_, JobState::Finished | JobState::Cancelled) => None,
        }
    }

    /// Returns the verb, as the route has it.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Cancel => "cancel",
        }
    }
}

/// Which deliveries a job takes. Every field that is set must match; of a list, one
/// value.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct JobFilter {
    /// Whether an empty filter is meant: every delivery in the state.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// In this state: `dead` for replay and discard, `waiting` for retry and cancel, if not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<DeliveryState>,
    /// To one of these endpoints.
    #[schema(value_type = Vec<String>)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<EndpointId>,
    /// Of one of these event types; `*` stands for any text, also with dots.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub event_types: Vec<String>,
    /// With this key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Dead for this cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<DeadCause>,
    /// With one of these last answers: a status such as `503`, a class such as `4xx`, or the kind of a failure such as `timeout`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<String>,
    /// Created at this time or later, RFC 3339.
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_since: Option<Timestamp>,
    /// Created before this time.
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_until: Option<Timestamp>,
    /// Delivered, dead or cancelled at this time or later.
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_since: Option<Timestamp>,
    /// Delivered, dead or cancelled before this time.
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_until: Option<Timestamp>,
    /// With one of these ids, at most 5,000.
    #[schema(value_type = Vec<String>)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<DeliveryId>,
}

impl JobFilter {
    /// Whether it chooses nothing but the state.
    pub fn is_empty(&self) -> bool {
        *self == Self { all: self.all, state: self.state, ..Self::default() }
    }

    /// Returns the same filter with its times converted to engine time.
    pub fn on_engine(self, offset: WallOffset) -> Self {
        let engine = |at: Option<Timestamp>| at.map(|at| offset.engine(at));
        Self {
            accepted_since: engine(self.accepted_since),
            accepted_until: engine(self.accepted_until),
            finished_since: engine(self.finished_since),
            finished_until: engine(self.finished_until),
            ..self
        }
    }

    /// Whether a delivery passes, apart from its state.
    pub fn matches(&self, delivery: &Delivery) -> bool {
        let within = |at: Option<Timestamp>, since: Option<Timestamp>, until: Option<Timestamp>| {
            since.is_none_or(|since| at.is_some_and(|at| at >= since))
                && until.is_none_or(|until| at.is_some_and(|at| at < until))
        };
        (self.endpoints.is_empty() || self.endpoints.contains(&delivery.endpoint_id))
            && (self.event_types.is_empty()
                || self.event_types.iter().any(|pattern| glob_matches(pattern, &delivery.event_type)))
            && (self.key.is_none() || self.key == delivery.key)
            && (self.cause.is_none() || self.cause == delivery.cause)
            && (self.answers.is_empty() || self.answers.iter().any(|answer| is_answer(answer, delivery)))
            && within(Some(delivery.created_at), self.accepted_since, self.accepted_until)
            && within(delivery.finished_at, self.finished_since, self.finished_until)
            && (self.ids.is_empty() || self.ids.contains(&delivery.id))
    }
}

/// Whether a delivery's last answer is this status, class or kind of failure.
fn is_answer(answer: &str, delivery: &Delivery) -> bool {
    match (delivery.last_status, &delivery.last_error) {
        (Some(status), _) => {
            let class = answer.strip_suffix("xx").and_then(|class| class.parse::<u16>().ok());
            class.map_or_else(|| answer == status.to_string(), |class| status / 100 == class)
        }
        (None, Some(error)) => answer == error.kind.as_str(),
        (None, None) => false,
    }
}

/// What a person asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// What is done to each delivery.
    pub kind: JobKind,
    /// Which deliveries are taken, with times as the person gave them.
    pub filter: JobFilter,
    /// Deliveries per second and endpoint; a quarter of the endpoint's rate, if not said.
    #[serde(default)]
    pub per_second: Option<f64>,
    /// Age beyond which deliveries are left out.
    #[serde(default)]
    pub not_older_than: Option<Span>,
    /// Whether deliveries that their lane has passed are replayed, too.
    #[serde(default)]
    pub even_overtaken: bool,
    /// What others should know.
    #[serde(default)]
    pub note: Option<String>,
    /// Who asked for it, as in the audit log.
    pub by: String,
}

impl JobSpec {
    /// Returns the state of the deliveries that it takes.
    pub fn state(&self) -> DeliveryState {
        self.filter.state.unwrap_or(self.kind.state())
    }

    /// Decides about a delivery, at this time, for a job that began at `began_at`. The
    /// filter's times are engine time here.
    pub fn decide(
        &self,
        filter: &JobFilter,
        candidate: &JobCandidate,
        began_at: Timestamp,
        now: Timestamp,
    ) -> JobDecision {
        let delivery = &candidate.delivery;
        // What finished since is not part of it: least of all what it replayed itself.
        let is_later = delivery.finished_at.is_some_and(|at| at >= began_at) || delivery.created_at >= began_at;
        if delivery.state != self.state() || is_later || !filter.matches(delivery) {
            return JobDecision::Pass;
        }
        let age = now.as_millisecond().saturating_sub(delivery.created_at.as_millisecond());
        if self.not_older_than.is_some_and(|most| age > i64::try_from(most.as_millis()).unwrap_or(i64::MAX)) {
            return JobDecision::LeaveOut(LeftOut::TooOld);
        }
        // It would not go, and would keep the job waiting for as long as its lane does.
        if self.kind == JobKind::Retry && delivery.is_behind {
            return JobDecision::LeaveOut(LeftOut::WrongState);
        }
        if self.kind == JobKind::Replay {
            if delivery.cause == Some(DeadCause::Damaged) {
                return JobDecision::LeaveOut(LeftOut::Damaged);
            }
            if delivery.lane.is_some() && candidate.is_passed && !self.even_overtaken {
                return JobDecision::LeaveOut(LeftOut::Overtaken);
            }
        }
        JobDecision::Take
    }
}

/// A delivery that a job may take.
#[derive(Debug, Clone)]
pub struct JobCandidate {
    /// The delivery itself.
    pub delivery: Delivery,
    /// Whether its lane has moved past it.
    pub is_passed: bool,
}

/// What a job does about a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobDecision {
    /// It does not match.
    Pass,
    /// It matches, and stays as it is for this reason.
    LeaveOut(LeftOut),
    /// It is changed.
    Take,
}

/// Why a delivery that matches is left as it is.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::VariantArray,
    utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum LeftOut {
    /// Its lane has moved past it, so later events may have arrived.
    Overtaken,
    /// Its event's data was expunged.
    Expunged,
    /// What is stored of it is damaged.
    Damaged,
    /// Its endpoint was deleted.
    EndpointDeleted,
    /// It is older than was asked for.
    TooOld,
    /// Its state changed meanwhile, or a request for it is open.
    WrongState,
}

/// How far a job, or its part at one endpoint, has come.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobCounts {
    /// Deliveries that match, as far as it has looked.
    pub matched: u64,
    /// Deliveries that it has changed.
    pub done: u64,
    /// Deliveries that match and were left as they are.
    pub left_out: BTreeMap<LeftOut, u64>,
    /// Changed ones that were delivered since.
    pub delivered: u64,
    /// Changed ones that died since.
    pub dead: u64,
    /// Changed ones that wait.
    pub waiting: u64,
}

impl JobCounts {
    /// Counts one that is left out.
    pub fn leave_out(&mut self, why: LeftOut) {
        *self.left_out.entry(why).or_default() += 1;
    }

    /// Adds the counts of another part.
    pub fn add(&mut self, other: &Self) {
        self.matched += other.matched;
        self.done += other.done;
        self.delivered += other.delivered;
        self.dead += other.dead;
        self.waiting += other.waiting;
        for (why, count) in &other.left_out {
            *self.left_out.entry(*why).or_default() += count;
        }
    }
}

/// The part of a job at one endpoint. The owner of the endpoint does it.
#[derive(Debug, Clone, PartialEq)]
pub struct JobPart {
    /// Endpoint of the deliveries.
    pub endpoint: EndpointId,
    /// The last delivery that was looked at; all up to it are done.
    pub after: Option<DeliveryId>,
    /// Whether all deliveries of the endpoint were looked at.
    pub is_read: bool,
    /// Whether nothing more comes of it.
    pub is_done: bool,
    /// How far it has come.
    pub counts: JobCounts,
}

impl JobPart {
    /// Returns a part that has not begun.
    pub fn new(endpoint: EndpointId) -> Self {
        Self { endpoint, after: None, is_read: false, is_done: false, counts: JobCounts::default() }
    }
}

/// A job, with its parts as far as they were read.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Id of the job.
    pub id: JobId,
    /// Tenant that the deliveries belong to.
    pub tenant: TenantId,
    /// What was asked for.
    pub spec: JobSpec,
    /// Where it stands.
    pub state: JobState,
    /// Time at which it began.
    pub created_at: Timestamp,
    /// Time at which it ended.
    pub finished_at: Option<Timestamp>,
    /// Its parts at endpoints.
    pub parts: Vec<JobPart>,
}

impl Job {
    /// Returns the sum of its parts.
    pub fn counts(&self) -> JobCounts {
        let mut sum = JobCounts::default();
        self.parts.iter().for_each(|part| sum.add(&part.counts));
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::answer::{AttemptFailure, FailureKind};
    use crate::model::delivery::{BodyFormat, Progress};
    use crate::model::id::EventId;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn dead() -> JobCandidate {
        let delivery = Delivery {
            id: DeliveryId::mint(at(10), 1),
            tenant: "acme".parse().unwrap(),
            event_id: EventId::from_stored("e"),
            event_type: "invoice.paid".into(),
            endpoint_id: EndpointId::mint(at(1), 2),
            key: Some("k".into()),
            lane: Some("k".into()),
            seq: Some(1),
            format: BodyFormat::Envelope,
            state: DeliveryState::Dead,
            cause: Some(DeadCause::Exhausted),
            is_behind: false,
            due_at: at(10),
            is_urgent: false,
            expires_at: None,
            progress: Progress::default(),
            created_at: at(10),
            first_attempt_at: Some(at(11)),
            finished_at: Some(at(50)),
            last_status: Some(503),
            last_error: None,
            internal_errors: 0,
            internal_error: None,
            body_sha256: None,
        };
        JobCandidate { delivery, is_passed: false }
    }

    fn spec(filter: JobFilter) -> JobSpec {
        let kind = JobKind::Replay;
        JobSpec {
            kind,
            filter,
            per_second: None,
            not_older_than: None,
            even_overtaken: false,
            note: None,
            by: "admin".into(),
        }
    }

    fn decided(spec: &JobSpec, candidate: &JobCandidate) -> JobDecision {
        spec.decide(&spec.filter, candidate, at(100), at(200))
    }

    #[test]
    fn fields_must_all_match_and_of_a_list_one_value() {
        let takes = |filter: JobFilter| decided(&spec(filter), &dead()) == JobDecision::Take;
        assert!(takes(JobFilter { all: true, ..Default::default() }));
        for (answers, is_taken) in
            [(vec!["503"], true), (vec!["4xx", "5xx"], true), (vec!["4xx"], false), (vec!["timeout"], false)]
        {
            let answers = answers.into_iter().map(str::to_owned).collect();
            assert_eq!(takes(JobFilter { answers, ..Default::default() }), is_taken);
        }
        assert!(takes(JobFilter { finished_since: Some(at(50)), finished_until: Some(at(51)), ..Default::default() }));
        assert!(!takes(JobFilter { finished_until: Some(at(50)), ..Default::default() }));
        assert!(!takes(JobFilter { accepted_since: Some(at(11)), ..Default::default() }));
        assert!(!takes(JobFilter { cause: Some(DeadCause::Refused), ..Default::default() }));
        assert!(takes(JobFilter { event_types: vec!["no.*".into(), "*".into()], ..Default::default() }));
        let mut timed_out = dead();
        timed_out.delivery.last_status = None;
        timed_out.delivery.last_error = Some(AttemptFailure::new(FailureKind::Timeout, "late"));
        let timeouts = spec(JobFilter { answers: vec!["timeout".into()], ..Default::default() });
        assert_eq!(decided(&timeouts, &timed_out), JobDecision::Take);
    }

    #[test]
    fn an_older_state_is_not_sent_over_a_newer_one_unless_asked_for() {
        let passed = JobCandidate { is_passed: true, ..dead() };
        let replay = spec(JobFilter::default());
        assert_eq!(decided(&replay, &passed), JobDecision::LeaveOut(LeftOut::Overtaken));
        assert_eq!(decided(&JobSpec { even_overtaken: true, ..replay.clone() }, &passed), JobDecision::Take);
        let unordered = JobCandidate { delivery: Delivery { lane: None, ..dead().delivery }, is_passed: true };
        assert_eq!(decided(&replay, &unordered), JobDecision::Take);
    }

    #[test]
    fn what_ended_since_the_job_began_is_not_part_of_it() {
        let mut later = dead();
        later.delivery.finished_at = Some(at(100));
        assert_eq!(decided(&spec(JobFilter::default()), &later), JobDecision::Pass);
        let old = JobSpec { not_older_than: Some(Span::secs(189)), ..spec(JobFilter::default()) };
        assert_eq!(decided(&old, &dead()), JobDecision::LeaveOut(LeftOut::TooOld));
    }

    #[test]
    fn what_is_over_cannot_be_changed() {
        assert_eq!(JobChange::Pause.apply(JobState::Running), Some(JobState::Paused));
        assert_eq!(JobChange::Resume.apply(JobState::Paused), Some(JobState::Running));
        for change in [JobChange::Pause, JobChange::Resume, JobChange::Cancel] {
            assert!(change.apply(JobState::Finished).is_none() && change.apply(JobState::Cancelled).is_none());
        }
    }
}
