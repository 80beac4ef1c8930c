//! Every value a label can have. There are no others.

use super::families::Label;
use crate::model::attempt::{Attempt, FailureKind};
use crate::model::delivery::DeadCause;
use crate::model::verdict::Verdict;

macro_rules! label_values {
    ($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$value_doc])* $value,)* }

        impl $name {
            /// The values as they are written, in the order of the variants.
            pub(super) const TEXTS: &'static [&'static str] = &[$($text,)*];
        }
    };
}

label_values! {
    /// Whose limit a request came up against.
    LimitOwner {
        /// Its tenant's.
        Tenant = "tenant",
        /// That of the whole gateway.
        Gateway = "gateway",
    }
}

label_values! {
    /// What became of a request for the data of a thin event.
    FetchResult {
        /// It was handed out.
        Served = "served",
        /// The link was not one of ours.
        Invalid = "invalid",
        /// It is no longer kept.
        Expired = "expired",
        /// It was forgotten on request.
        Expunged = "expunged",
        /// The link was followed too often.
        Limited = "limited",
        /// The store could not be read.
        Failed = "failed",
    }
}

label_values! {
    /// Why a request was refused for who asks.
    AuthFailureKind {
        /// It had no token.
        Missing = "missing",
        /// Its token is not one of ours, was revoked, or cannot be read.
        Wrong = "wrong",
        /// Its token is over.
        Expired = "expired",
        /// Its token does not have the right.
        MissingRight = "missing_right",
        /// Its token is another tenant's.
        OtherTenant = "other_tenant",
        /// The link it follows was not made here.
        Link = "link",
    }
}

impl AuthFailureKind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Missing, Self::Wrong, Self::Expired, Self::MissingRight, Self::OtherTenant, Self::Link];

    /// The value as it is written.
    pub fn as_str(self) -> &'static str {
        Self::TEXTS[self as usize]
    }
}

label_values! {
    /// Where a breaker moved to.
    BreakerMove {
        /// Nothing may go.
        Open = "open",
        /// Nothing may go still, after a probe failed.
        OpenAgain = "open_again",
        /// It closed, and more and more may go.
        Ramp = "ramp",
    }
}

label_values! {
    /// Why an endpoint was paused or disabled.
    PauseReason {
        /// A person asked for it.
        Person = "person",
        /// It refused too many in a row.
        Refusals = "refusals",
        /// It has done nothing but fail for too long.
        Failing = "failing",
        /// It asked never to be called again.
        Gone = "gone",
    }
}

label_values! {
    /// What something that was due had to wait for.
    WaitReason {
        /// A rate.
        Rate = "rate",
        /// The tenant's share of the slots.
        Share = "share",
    }
}

label_values! {
    /// How a mail ended.
    MailResult {
        /// The mail server took it.
        Sent = "sent",
        /// It did not.
        Failed = "failed",
    }
}

/// How a delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeliveryEnd {
    Delivered,
    Cancelled,
    Dead(DeadCause),
}

impl DeliveryEnd {
    /// The state and the cause of each end, by [`DeliveryEnd::place`].
    const ALL: [(&'static str, &'static str); 8] = [
        ("delivered", "none"),
        ("cancelled", "none"),
        ("dead", "exhausted"),
        ("dead", "expired"),
        ("dead", "refused"),
        ("dead", "gone"),
        ("dead", "poisoned"),
        ("dead", "damaged"),
    ];

    pub fn place(self) -> usize {
        match self {
            Self::Delivered => 0,
            Self::Cancelled => 1,
            Self::Dead(DeadCause::Exhausted) => 2,
            Self::Dead(DeadCause::Expired) => 3,
            Self::Dead(DeadCause::Refused) => 4,
            Self::Dead(DeadCause::Gone) => 5,
            Self::Dead(DeadCause::Poisoned) => 6,
            Self::Dead(DeadCause::Damaged) => 7,
        }
    }

    pub fn sets() -> Vec<Vec<Label>> {
        Self::ALL.iter().map(|(state, cause)| vec![("state", *state), ("cause", *cause)]).collect()
    }
}

/// The codes a request that hands events in can be refused with; the last
/// stands for all others.
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

pub(super) fn refusal_place(code: &str) -> usize {
    REFUSALS.iter().position(|known| *known == code).unwrap_or(REFUSALS.len() - 1)
}

pub(super) fn refusal_sets() -> Vec<Vec<Label>> {
    each("code", &REFUSALS)
}

const VERDICTS: [Verdict; 4] = [Verdict::Delivered, Verdict::Retry, Verdict::Refused, Verdict::Gone];
/// The classes of statuses; the ways to have no answer follow them.
const STATUSES: [&str; 6] = ["2xx", "3xx", "4xx", "429", "5xx", "other"];
const RESULTS: usize = STATUSES.len() + FailureKind::ALL.len();

pub(super) fn attempt_place(attempt: &Attempt) -> usize {
    let verdict = match attempt.decision.verdict {
        Verdict::Delivered => 0,
        Verdict::Retry => 1,
        Verdict::Refused => 2,
        Verdict::Gone => 3,
    };
    verdict * RESULTS + result_place(attempt)
}

fn result_place(attempt: &Attempt) -> usize {
    match (attempt.status, &attempt.error) {
        (Some(200..=299), _) => 0,
        (Some(300..=399), _) => 1,
        (Some(429), _) => 3,
        (Some(400..=499), _) => 2,
        (Some(500..=599), _) => 4,
        (None, Some(failure)) => {
            let known = FailureKind::ALL.iter().position(|kind| *kind == failure.kind);
            known.map_or(5, |place| STATUSES.len() + place)
        }
        (Some(_), _) | (None, None) => 5,
    }
}

pub(super) fn attempt_sets() -> Vec<Vec<Label>> {
    let results: Vec<&str> = STATUSES.into_iter().chain(FailureKind::ALL.map(FailureKind::as_str)).collect();
    let set = |verdict: Verdict, result: &&'static str| vec![("verdict", verdict.as_str()), ("result", *result)];
    VERDICTS.iter().flat_map(|verdict| results.iter().map(|result| set(*verdict, result))).collect()
}

/// First and second attempts, by whether they delivered; later ones are not
/// told apart.
pub(super) fn early_place(used: u32, is_delivered: bool) -> Option<usize> {
    let is_other = usize::from(!is_delivered);
    match used {
        1 => Some(is_other),
        2 => Some(2 + is_other),
        _ => None,
    }
}

pub(super) fn early_sets() -> Vec<Vec<Label>> {
    let set = |number, delivered| vec![("number", number), ("delivered", delivered)];
    vec![set("first", "yes"), set("first", "no"), set("second", "yes"), set("second", "no")]
}

pub(super) fn each(label: &'static str, values: &[&'static str]) -> Vec<Vec<Label>> {
    values.iter().map(|value| vec![(label, *value)]).collect()
}
