//! Lists every value that a label can have; there are no others.

use strum::{IntoStaticStr, VariantArray, VariantNames};

use super::families::Label;
use crate::model::attempt::Attempt;
use crate::model::delivery::DeadCause;
use crate::model::endpoint_event::{DisableCause, EndpointEvent, PauseCause};
use crate::model::named_enum::NamedEnum;
use crate::model::result_class::ResultClass;
use crate::model::verdict::Verdict;

/// The owner of the limit that a request reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum LimitOwner {
    /// The limit of its tenant.
    Tenant,
    /// The limit of the whole gateway.
    Gateway,
}

/// The outcome of a request for the data of a thin event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum FetchResult {
    /// The data was returned.
    Served,
    /// The link was not made by this gateway.
    Invalid,
    /// The data is no longer stored.
    Expired,
    /// The data was expunged on request.
    Expunged,
    /// The link was followed too often.
    Limited,
    /// The store could not be read.
    Failed,
}

/// Why a request failed authentication or authorisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantNames, VariantArray, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum AuthFailureKind {
    /// The request had no token.
    Missing,
    /// The token is unknown, revoked or malformed.
    Wrong,
    /// The token has expired.
    Expired,
    /// The token does not have the required right.
    MissingRight,
    /// The token belongs to another tenant.
    OtherTenant,
    /// The signature of the link to an event's data is wrong.
    Link,
}

/// The state that a breaker moved to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub(super) enum BreakerMove {
    /// The breaker opened.
    Open,
    /// The breaker stays open, because a probe failed.
    OpenAgain,
    /// The breaker closed into a ramp.
    Ramp,
}

impl BreakerMove {
    pub fn of(event: &EndpointEvent) -> Option<Self> {
        match event {
            EndpointEvent::BreakerOpened { .. } => Some(Self::Open),
            EndpointEvent::ProbeFailed { .. } => Some(Self::OpenAgain),
            EndpointEvent::BreakerClosed(_) => Some(Self::Ramp),
            EndpointEvent::Paused(_)
            | EndpointEvent::Resumed { .. }
            | EndpointEvent::Disabled(_)
            | EndpointEvent::Recovered => None,
        }
    }
}

/// Why an endpoint was paused or disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub(super) enum PauseReason {
    /// A person paused or disabled it.
    Person,
    /// It gave too many permanent answers without a success between them.
    Refusals,
    /// It failed for too long without a success.
    Failing,
    /// Its receiver asked never to be called again.
    Gone,
}

impl PauseReason {
    pub fn of(event: &EndpointEvent) -> Option<Self> {
        match event {
            EndpointEvent::Paused(PauseCause::Person { .. }) | EndpointEvent::Disabled(DisableCause::Person { .. }) => {
                Some(Self::Person)
            }
            EndpointEvent::Paused(PauseCause::Refusals { .. }) => Some(Self::Refusals),
            EndpointEvent::Paused(PauseCause::Failing { .. }) => Some(Self::Failing),
            EndpointEvent::Disabled(DisableCause::Gone | DisableCause::Rule { .. } | DisableCause::Directive) => {
                Some(Self::Gone)
            }
            EndpointEvent::Resumed { .. }
            | EndpointEvent::BreakerOpened { .. }
            | EndpointEvent::ProbeFailed { .. }
            | EndpointEvent::BreakerClosed(_)
            | EndpointEvent::Recovered => None,
        }
    }
}

/// The limit that a due delivery had to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum WaitReason {
    /// The rate of its endpoint or its tenant.
    Rate,
    /// The tenant's share of the send slots.
    Share,
}

/// The outcome of sending a mail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum MailResult {
    /// The mail server accepted the mail.
    Sent,
    /// The mail could not be sent.
    Failed,
}

/// What became of a span of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum SpanResult {
    /// The collector took it.
    Sent,
    /// There was no room for it, or the collector did not take it.
    Dropped,
}

/// The end of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeliveryEnd {
    Delivered,
    Cancelled,
    Dead(DeadCause),
}

impl DeliveryEnd {
    /// Returns the index in [`DeliveryEnd::label_sets`].
    pub fn index(self) -> usize {
        match self {
            Self::Delivered => 0,
            Self::Cancelled => 1,
            Self::Dead(cause) => 2 + cause as usize,
        }
    }

    pub fn label_sets() -> Vec<Vec<Label>> {
        let ends = [("delivered", "none"), ("cancelled", "none")];
        let dead = DeadCause::ALL.iter().map(|cause| ("dead", cause.as_str()));
        ends.into_iter().chain(dead).map(|(state, cause)| vec![("state", state), ("cause", cause)]).collect()
    }
}

/// API error codes that a request with events can be refused with; the last one
/// counts all other codes.
const REFUSALS: [&str; 17] = [
    "invalid_json",
    "unknown_field",
    "invalid_field",
    "id_conflict",
    "not_found",
    "unauthenticated",
    "missing_right",
    "payload_too_large",
    "unsupported_media_type",
    "fanout_limit",
    "request_timeout",
    "rate_limited",
    "backlog_full",
    "unavailable",
    "storage_full",
    "quota_full",
    "other",
];

pub(super) fn refusal_index(code: &str) -> usize {
    REFUSALS.iter().position(|known| *known == code).unwrap_or(REFUSALS.len() - 1)
}

pub(super) fn refusal_label_sets() -> Vec<Vec<Label>> {
    label_sets("code", &REFUSALS)
}

pub(super) fn attempt_index(attempt: &Attempt) -> usize {
    attempt.decision.verdict as usize * ResultClass::COUNT + ResultClass::of(attempt).index()
}

pub(super) fn attempt_label_sets() -> Vec<Vec<Label>> {
    let labels = |verdict: Verdict, result: ResultClass| vec![("verdict", verdict.as_str()), ("result", result.name())];
    Verdict::ALL.iter().flat_map(|verdict| ResultClass::all().map(|result| labels(*verdict, result))).collect()
}

/// Statuses that are counted one by one; all others are counted together.
const EXACT_STATUSES: [&str; 64] = [
    "200", "201", "202", "203", "204", "205", "206", "207", "208", "226", "300", "301", "302", "303", "304", "305",
    "307", "308", "400", "401", "402", "403", "404", "405", "406", "407", "408", "409", "410", "411", "412", "413",
    "414", "415", "416", "417", "418", "421", "422", "423", "424", "425", "426", "428", "429", "431", "451", "499",
    "500", "501", "502", "503", "504", "505", "506", "507", "508", "510", "511", "520", "521", "522", "523", "524",
];

/// Returns the index of a status in [`answer_label_sets`].
pub(super) fn answer_index(status: u16) -> usize {
    let digits = [status / 100, status / 10 % 10, status % 10].map(|digit| b'0' + (digit % 10) as u8);
    EXACT_STATUSES.binary_search_by(|known| known.as_bytes().cmp(&digits)).unwrap_or(EXACT_STATUSES.len())
}

pub(super) fn answer_label_sets() -> Vec<Vec<Label>> {
    EXACT_STATUSES.iter().chain(&["other"]).map(|status| vec![("status", *status)]).collect()
}

/// Returns the index of a first or second attempt in [`early_label_sets`]; later
/// attempts have none.
pub(super) fn early_index(used: u32, is_delivered: bool) -> Option<usize> {
    let offset = usize::from(!is_delivered);
    match used {
        1 => Some(offset),
        2 => Some(2 + offset),
        _ => None,
    }
}

pub(super) fn early_label_sets() -> Vec<Vec<Label>> {
    let labels = |number, delivered| vec![("number", number), ("delivered", delivered)];
    vec![labels("first", "yes"), labels("first", "no"), labels("second", "yes"), labels("second", "no")]
}

/// Returns one set of labels for each value of a single label.
pub(super) fn label_sets(label: &'static str, values: &[&'static str]) -> Vec<Vec<Label>> {
    values.iter().map(|value| vec![(label, *value)]).collect()
}
