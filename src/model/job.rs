//! Jobs: the same change made to many deliveries, chosen by a filter.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::delivery::{DeadCause, Delivery, DeliveryState, ReplayRefusal};
use super::id::{DeliveryId, EndpointId, JobId, TenantId};
use super::span::Span;

pub use super::job_filter::{IDS_MAX, JobFilter};
pub use super::job_kind::JobKind;
pub use super::purge::PurgeProgress;

/// Most jobs of a tenant that are not over.
pub const UNFINISHED_MAX: u32 = 100;

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
    /// The job is running.
    Running = 0,
    /// A person paused the job.
    Paused = 1,
    /// Every part of the job is done.
    Finished = 2,
    /// A person cancelled the job.
    Cancelled = 3,
    /// The job starts when another one of its tenant has ended.
    Queued = 4,
    /// The job met a record that this version cannot read; `error` names it.
    Failed = 5,
}

impl JobState {
    /// Whether the job has ended, for whatever reason.
    pub fn is_over(self) -> bool {
        match self {
            Self::Finished | Self::Cancelled | Self::Failed => true,
            Self::Running | Self::Paused | Self::Queued => false,
        }
    }
}

/// What a person may do to a job; the names are those of the routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum JobChange {
    /// Stops the job until it is resumed.
    Pause,
    /// Continues a paused job.
    Resume,
    /// Ends the job; what it has changed stays changed.
    Cancel,
}

impl JobChange {
    /// Returns the state that the job has then, or nothing if its present state does not
    /// allow it. `has_room` says whether its tenant may have another one that runs.
    pub fn apply(self, state: JobState, has_room: bool) -> Option<JobState> {
        match (self, state) {
            (_, JobState::Finished | JobState::Cancelled | JobState::Failed) => None,
            (Self::Pause, JobState::Running | JobState::Paused | JobState::Queued) => Some(JobState::Paused),
            (Self::Resume, JobState::Running) => Some(JobState::Running),
            (Self::Resume, JobState::Paused | JobState::Queued) if has_room => Some(JobState::Running),
            (Self::Resume, JobState::Paused | JobState::Queued) => Some(JobState::Queued),
            (Self::Cancel, JobState::Running | JobState::Paused | JobState::Queued) => Some(JobState::Cancelled),
        }
    }
}

/// What a person asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
    pub fn delivery_state(&self) -> DeliveryState {
        self.filter.state.unwrap_or(self.kind.delivery_state())
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
        if !filter.matches(delivery) {
            return JobDecision::Pass;
        }
        if delivery.state != self.delivery_state() || is_later {
            // Whoever names a delivery is told that it stays.
            let is_named = !filter.ids.is_empty();
            return if is_named { JobDecision::LeaveOut(LeftOut::WrongState) } else { JobDecision::Pass };
        }
        let age = now.as_millisecond().saturating_sub(delivery.created_at.as_millisecond());
        if self.not_older_than.is_some_and(|most| age > i64::try_from(most.as_millis()).unwrap_or(i64::MAX)) {
            return JobDecision::LeaveOut(LeftOut::TooOld);
        }
        // It would not go, and would keep the job waiting for as long as its lane does.
        if self.kind.tries_now() && delivery.is_behind {
            return JobDecision::LeaveOut(LeftOut::WrongState);
        }
        if self.kind.sends_again() {
            match delivery.cause.and_then(DeadCause::replay_refusal) {
                Some(ReplayRefusal::Damaged) => return JobDecision::LeaveOut(LeftOut::Damaged),
                None => {}
            }
            if candidate.is_expunged {
                return JobDecision::LeaveOut(LeftOut::Expunged);
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
    /// Whether the data of its event was removed.
    pub is_expunged: bool,
}

/// What a job does about a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobDecision {
    /// The delivery does not match the filter.
    Pass,
    /// The delivery matches, and stays as it is for this reason.
    LeaveOut(LeftOut),
    /// The delivery matches and is changed.
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
    /// It is older than was asked for, or a past event is too old to be sent.
    TooOld,
    /// The endpoint has had a delivery of the event.
    AlreadyGot,
    /// Its state changed meanwhile, or a request for it is open; or it was named by its id, and is in another state or not there.
    WrongState,
}

impl LeftOut {
    /// Returns why a job leaves such deliveries as they are, in words.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Overtaken => "their lane has moved past them, so that later events may have arrived",
            Self::Expunged => "the event's data was expunged",
            Self::Damaged => "what is stored of them is damaged",
            Self::EndpointDeleted => "their endpoint was deleted",
            Self::TooOld => "they are older than asked for",
            Self::AlreadyGot => "the endpoint has had the event",
            Self::WrongState => "they are in another state, a request is open, or no delivery has the id",
        }
    }
}

/// What a number of deliveries says about those that a job would take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MatchBound {
    /// The job would take exactly this many.
    #[default]
    Exact,
    /// The job would take this many, and perhaps more.
    AtLeast,
    /// This many match, and the job may leave some of them out.
    AtMost,
    /// More may match, and the job may leave some of them out.
    Estimate,
}

impl MatchBound {
    /// Returns the words before the number, for people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Exact => "",
            Self::AtLeast => "at least ",
            Self::AtMost => "at most ",
            Self::Estimate => "about ",
        }
    }

    /// Whether there may be more than the number says.
    pub fn is_open(self) -> bool {
        match self {
            Self::AtLeast | Self::Estimate => true,
            Self::Exact | Self::AtMost => false,
        }
    }

    /// Returns what the sum of this number and another one says.
    pub fn combined_with(self, other: Self) -> Self {
        match (self, other) {
            (Self::Exact, bound) | (bound, Self::Exact) => bound,
            (Self::AtLeast, Self::AtLeast) => Self::AtLeast,
            (Self::AtMost, Self::AtMost) => Self::AtMost,
            _ => Self::Estimate,
        }
    }
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
    /// Those of them that are no longer followed: nothing is known to come of them soon.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_waiting: u64,
    /// Deliveries that match and come later, because another one of their lane is under
    /// way.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub held: u64,
    /// Deliveries that were thought to match when the job began, if that was known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<u64>,
    /// How fast deliveries ended that it has sent, when that was measured last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace: Option<MeasuredPace>,
    /// How far a purge has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purge: Option<PurgeProgress>,
}

/// The pace of a job: how many deliveries ended in a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredPace {
    /// Number of deliveries, above 0.
    pub ended: u64,
    /// Time in milliseconds, while the job was running.
    pub in_ms: u64,
}

impl MeasuredPace {
    /// Returns how long this number of deliveries takes at this pace.
    pub fn time_for(self, count: u64) -> Duration {
        Duration::from_millis(self.in_ms).mul_f64(count as f64 / self.ended.max(1) as f64)
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl JobCounts {
    /// Counts one that is left out.
    pub fn leave_out(&mut self, why: LeftOut) {
        *self.left_out.entry(why).or_default() += 1;
    }

    /// Counts deliveries that the filter names and that are not there.
    pub fn leave_out_unknown(&mut self, count: u64) {
        if count > 0 {
            self.matched += count;
            *self.left_out.entry(LeftOut::WrongState).or_default() += count;
        }
    }

    /// Adds the counts of another part.
    pub fn add(&mut self, other: &Self) {
        self.matched += other.matched;
        self.done += other.done;
        self.delivered += other.delivered;
        self.dead += other.dead;
        self.waiting += other.waiting;
        self.left_waiting += other.left_waiting;
        self.held += other.held;
        for (why, count) in &other.left_out {
            *self.left_out.entry(*why).or_default() += count;
        }
        if let Some(purge) = &other.purge {
            self.purge.get_or_insert_default().add(&purge.rows);
        }
    }
}

/// The part of a job at one endpoint. The owner of the endpoint does it.
#[derive(Debug, Clone, PartialEq)]
pub struct JobPart {
    /// Tenant of the endpoint.
    pub tenant: TenantId,
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
    pub fn new(tenant: TenantId, endpoint: EndpointId) -> Self {
        Self { tenant, endpoint, after: None, is_read: false, is_done: false, counts: JobCounts::default() }
    }

    /// Returns how many deliveries match. Until all were looked at, these are no fewer
    /// than were thought to match when the job began.
    pub fn matched(&self) -> u64 {
        let seen = self.counts.matched + self.counts.held;
        if self.is_read { seen } else { seen.max(self.counts.expected.unwrap_or(0)) }
    }
}

/// A job, with its parts as far as they were read.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Id of the job.
    pub id: JobId,
    /// Tenant that the deliveries belong to; `_system` for those of all tenants.
    pub tenant: TenantId,
    /// What was asked for.
    pub spec: JobSpec,
    /// Where it stands.
    pub state: JobState,
    /// Time at which it began.
    pub created_at: Timestamp,
    /// Time at which it ended.
    pub finished_at: Option<Timestamp>,
    /// Why it failed, if it did.
    pub error: Option<String>,
    /// Parts of the job, one per endpoint.
    pub parts: Vec<JobPart>,
}

impl Job {
    /// Returns the sum of its parts.
    pub fn counts(&self) -> JobCounts {
        let mut sum = JobCounts::default();
        self.parts.iter().for_each(|part| sum.add(&part.counts));
        sum.leave_out_unknown(self.unknown_ids());
        sum
    }

    /// Returns how many deliveries match at all its endpoints.
    pub fn matched(&self) -> u64 {
        self.parts.iter().map(JobPart::matched).sum::<u64>() + self.unknown_ids()
    }

    /// Returns how many deliveries the filter names, if none of them is there, so that no
    /// part counts them.
    fn unknown_ids(&self) -> u64 {
        let is_nowhere = self.parts.is_empty() && self.spec.filter.endpoints.is_empty();
        if is_nowhere { self.spec.filter.ids.len() as u64 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::answer::{AttemptFailure, FailureKind};
    use crate::model::dead_letter_group::DeadLetterGroup;
    use crate::model::delivery::{BodyFormat, DeadCause, Progress};
    use crate::model::id::EventId;
    use crate::model::job_filter::GroupTaken;
    use crate::model::wall_offset::WallOffset;

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
        JobCandidate { delivery, is_passed: false, is_expunged: false }
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
        let delivery = Delivery { lane: None, ..dead().delivery };
        let unordered = JobCandidate { delivery, is_passed: true, is_expunged: false };
        assert_eq!(decided(&replay, &unordered), JobDecision::Take);
        let expunged = JobCandidate { is_expunged: true, ..dead() };
        assert_eq!(decided(&replay, &expunged), JobDecision::LeaveOut(LeftOut::Expunged));
        let discard = JobSpec { kind: JobKind::Discard, ..replay };
        assert_eq!(decided(&discard, &expunged), JobDecision::Take);
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
    fn a_group_is_taken_or_not_or_needs_a_look() {
        let group = DeadLetterGroup {
            tenant: None,
            endpoint: Some(EndpointId::mint(at(1), 2)),
            cause: Some(DeadCause::Exhausted),
            answer: Some("503".into()),
            day: None,
            count: 7,
            oldest_at: at(50),
            newest_at: at(60),
        };
        let takes = |filter: JobFilter| filter.takes_group(&group);
        assert_eq!(takes(JobFilter { all: true, ..Default::default() }), GroupTaken::All);
        assert_eq!(
            takes(JobFilter { answers: vec!["timeout".into(), "5xx".into()], ..Default::default() }),
            GroupTaken::All
        );
        assert_eq!(takes(JobFilter { answers: vec!["timeout".into()], ..Default::default() }), GroupTaken::Nothing);
        assert_eq!(takes(JobFilter { cause: Some(DeadCause::Refused), ..Default::default() }), GroupTaken::Nothing);
        assert_eq!(takes(JobFilter { finished_since: Some(at(61)), ..Default::default() }), GroupTaken::Nothing);
        assert_eq!(takes(JobFilter { finished_until: Some(at(50)), ..Default::default() }), GroupTaken::Nothing);
        assert_eq!(takes(JobFilter { finished_since: Some(at(50)), ..Default::default() }), GroupTaken::All);
        // Some died before and some after, and the tally knows no more.
        assert_eq!(takes(JobFilter { finished_since: Some(at(55)), ..Default::default() }), GroupTaken::Some);
        assert_eq!(takes(JobFilter { finished_until: Some(at(60)), ..Default::default() }), GroupTaken::Some);
        let of_key = JobFilter { key: Some("k".into()), ..Default::default() };
        assert_eq!(takes(of_key.clone()), GroupTaken::Unknown);
        assert_eq!(takes(JobFilter { finished_since: Some(at(61)), ..of_key }), GroupTaken::Nothing);
    }

    #[test]
    fn ids_are_compared_in_order() {
        let wanted = dead().delivery.id;
        let ids = [3, 9, 4].map(|n| DeliveryId::mint(at(20), n)).into_iter().chain([wanted]).collect();
        let filter = JobFilter { ids, ..Default::default() }.to_engine_time(WallOffset::default());
        assert!(filter.matches(&dead().delivery));
        let other = Delivery { id: DeliveryId::mint(at(20), 5), ..dead().delivery };
        assert!(!filter.matches(&other));
    }

    #[test]
    fn a_part_that_still_looks_has_at_least_what_was_expected() {
        let mut part = JobPart::new("acme".parse().unwrap(), EndpointId::mint(at(1), 2));
        part.counts = JobCounts { matched: 10, held: 5, expected: Some(100), ..JobCounts::default() };
        assert_eq!(part.matched(), 100);
        part.counts.expected = Some(12);
        assert_eq!(part.matched(), 15, "what is held back matches, too");
        // Some of those that were expected were forgotten, or changed by others.
        part.counts.expected = Some(100);
        part.is_read = true;
        assert_eq!(part.matched(), 15);
    }

    #[test]
    fn what_is_over_cannot_be_changed() {
        assert_eq!(JobChange::Pause.apply(JobState::Running, true), Some(JobState::Paused));
        assert_eq!(JobChange::Resume.apply(JobState::Paused, true), Some(JobState::Running));
        assert_eq!(JobChange::Resume.apply(JobState::Paused, false), Some(JobState::Queued));
        for change in [JobChange::Pause, JobChange::Resume, JobChange::Cancel] {
            for over in [JobState::Finished, JobState::Cancelled, JobState::Failed] {
                assert!(over.is_over() && change.apply(over, true).is_none());
            }
        }
    }

    #[test]
    fn a_sum_says_no_more_than_its_parts() {
        use MatchBound::{AtLeast, AtMost, Estimate, Exact};
        for (one, other, both) in [
            (Exact, Exact, Exact),
            (Exact, AtMost, AtMost),
            (AtLeast, Exact, AtLeast),
            (AtLeast, AtMost, Estimate),
            (Estimate, AtMost, Estimate),
        ] {
            assert_eq!(one.combined_with(other), both);
        }
    }
}
