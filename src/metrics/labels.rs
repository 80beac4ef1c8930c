//! Lists every value that a label can have; there are no others.

use strum::{IntoStaticStr, VariantArray, VariantNames};

use super::families::Label;
use crate::model::answer::FailureKind;
use crate::model::attempt::Attempt;
use crate::model::delivery::DeadCause;
use crate::model::endpoint_event::{DisableCause, EndpointEvent, PauseCause};
use crate::model::named_enum::NamedEnum;
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
            Self::Dead(cause) => 2 + index_of(cause),
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

/// Classes of statuses; in the labels the kinds of failure follow them.
const STATUSES: [&str; 6] = ["2xx", "3xx", "4xx", "429", "5xx", "other"];
const RESULTS: usize = STATUSES.len() + FailureKind::ALL.len();

pub(super) fn attempt_index(attempt: &Attempt) -> usize {
    index_of(attempt.decision.verdict) * RESULTS + result_index(attempt)
}

fn result_index(attempt: &Attempt) -> usize {
    match (attempt.status, &attempt.error) {
        (Some(200..=299), _) => 0,
        (Some(300..=399), _) => 1,
        (Some(429), _) => 3,
        (Some(400..=499), _) => 2,
        (Some(500..=599), _) => 4,
        (None, Some(failure)) => STATUSES.len() + index_of(failure.kind),
        (Some(_), _) | (None, None) => 5,
    }
}

pub(super) fn attempt_label_sets() -> Vec<Vec<Label>> {
    let results: Vec<&str> = STATUSES.into_iter().chain(FailureKind::ALL.iter().map(|kind| kind.as_str())).collect();
    let labels = |verdict: Verdict, result: &&'static str| vec![("verdict", verdict.as_str()), ("result", *result)];
    Verdict::ALL.iter().flat_map(|verdict| results.iter().map(|result| labels(*verdict, result))).collect()
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

/// Returns the index of a variant among all of its enum.
fn index_of<T: NamedEnum + PartialEq>(value: T) -> usize {
    T::ALL.iter().take_while(|other| **other != value).count()
}

/// Returns one set of labels for each value of a single label.
pub(super) fn label_sets(label: &'static str, values: &[&'static str]) -> Vec<Vec<Label>> {
    values.iter().map(|value| vec![(label, *value)]).collect()
}
