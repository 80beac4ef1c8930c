//! Which deliveries a job takes.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::answer_choice::AnswerChoice;
use super::dead_letter_group::DeadLetterGroup;
use super::delivery::{DeadCause, Delivery, DeliveryState};
use super::filter::{check_glob, glob_matches};
use super::id::{DeliveryId, EndpointId};
use super::invalid_setting::InvalidSetting;
use super::named_enum::NamedEnum;
use super::wall_offset::WallOffset;

/// Most deliveries that a filter may name by their ids.
pub const IDS_MAX: usize = 5_000;

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

/// Which dead letters of a group a filter takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupTaken {
    /// Every one of them.
    All,
    /// None of them.
    Nothing,
    /// Some of them: those that died in the filter's time.
    Some,
    /// Known only once each was looked at.
    Unknown,
}

impl JobFilter {
    /// Whether it chooses nothing but the state.
    pub fn is_empty(&self) -> bool {
        *self == Self { all: self.all, state: self.state, ..Self::default() }
    }

    /// Returns the same filter without the ids, keys and names that are somebody's.
    pub fn without_names(self) -> Self {
        Self { endpoints: Vec::new(), event_types: Vec::new(), key: None, ids: Vec::new(), ..self }
    }

    /// Returns what could never match, each with its place in the filter.
    pub fn faults(&self) -> Vec<InvalidSetting> {
        let fault = |pointer: String, message: String| InvalidSetting { pointer, message };
        let types = self.event_types.iter().enumerate().filter_map(|(n, pattern)| {
            let problem = check_glob(pattern).err()?;
            Some(fault(format!("/event_types/{n}"), problem.to_string()))
        });
        let answers = self.answers.iter().enumerate().filter_map(|(n, answer)| {
            let problem = answer.parse::<AnswerChoice>().err()?;
            Some(fault(format!("/answers/{n}"), problem.to_string()))
        });
        types.chain(answers).collect()
    }

    /// Returns the same filter with its times converted to engine time, and its ids in
    /// order, as [`JobFilter::matches`] needs them.
    pub fn to_engine_time(mut self, offset: WallOffset) -> Self {
        let engine = |at: Option<Timestamp>| at.map(|at| offset.engine(at));
        self.ids.sort();
        Self {
            accepted_since: engine(self.accepted_since),
            accepted_until: engine(self.accepted_until),
            finished_since: engine(self.finished_since),
            finished_until: engine(self.finished_until),
            ..self
        }
    }

    /// Returns which dead letters of a group pass. The group has one endpoint, cause,
    /// answer and day.
    pub fn takes_group(&self, group: &DeadLetterGroup) -> GroupTaken {
        let by_row = Self {
            all: self.all,
            state: self.state,
            endpoints: self.endpoints.clone(),
            cause: self.cause,
            answers: self.answers.clone(),
            finished_since: self.finished_since,
            finished_until: self.finished_until,
            ..Self::default()
        };
        let is_one_of = |answer: &String| match group.answer.as_deref().map(|text| (text, text.parse())) {
            Some((_, Ok(status))) => is_status(answer, status),
            Some((kind, Err(_))) => answer == kind,
            None => false,
        };
        let is_out = group.endpoint.is_some_and(|id| !self.endpoints.is_empty() && !self.endpoints.contains(&id))
            || self.cause.is_some() && self.cause != group.cause
            || !self.answers.is_empty() && !self.answers.iter().any(is_one_of)
            || self.finished_since.is_some_and(|since| group.newest_at < since)
            || self.finished_until.is_some_and(|until| group.oldest_at >= until);
        let is_cut = self.finished_since.is_some_and(|since| group.oldest_at < since)
            || self.finished_until.is_some_and(|until| group.newest_at >= until);
        match (is_out, by_row == *self, is_cut) {
            (true, _, _) => GroupTaken::Nothing,
            (false, false, _) => GroupTaken::Unknown,
            (false, true, true) => GroupTaken::Some,
            (false, true, false) => GroupTaken::All,
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
            && (self.ids.is_empty() || self.ids.binary_search(&delivery.id).is_ok())
    }
}

/// Whether a delivery's last answer is this status, class or kind of failure.
fn is_answer(answer: &str, delivery: &Delivery) -> bool {
    match (delivery.last_status, &delivery.last_error) {
        (Some(status), _) => is_status(answer, status),
        (None, Some(error)) => answer == error.kind.as_str(),
        (None, None) => false,
    }
}

/// Whether a status is this one, or in this class such as `4xx`.
pub fn is_status(answer: &str, status: u16) -> bool {
    let class = answer.strip_suffix("xx").and_then(|class| class.parse::<u16>().ok());
    class.map_or_else(|| answer == status.to_string(), |class| status / 100 == class)
}
