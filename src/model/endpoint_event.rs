//! What happens to an endpoint, why, and who caused it.
//!
//! The breaker and the changes of people return an [`EndpointEvent`]. History,
//! operational events, mails, metrics and logs are all made from it, and so are
//! the sentences that people read: nothing depends on a sentence.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use strum::{EnumDiscriminants, IntoStaticStr, VariantArray};

use super::span::Span;

/// Something that happened to an endpoint, with its cause.
#[derive(Debug, Clone, PartialEq, Eq, EnumDiscriminants)]
#[strum_discriminants(
    name(EndpointEventKind),
    doc = "What may happen to an endpoint.",
    derive(Serialize, Deserialize, IntoStaticStr, VariantArray, utoipa::ToSchema),
    serde(rename_all = "snake_case"),
    strum(serialize_all = "snake_case")
)]
pub enum EndpointEvent {
    /// The endpoint was paused.
    Paused(PauseCause),
    /// A person resumed the endpoint.
    Resumed {
        /// What the person noted.
        note: Option<String>,
    },
    /// The endpoint was disabled.
    Disabled(DisableCause),
    /// Its breaker opened.
    BreakerOpened {
        /// Time from which the next probe may start. Without one, a person closes it.
        until: Option<Timestamp>,
        /// Why it opened.
        cause: OpenCause,
    },
    /// A probe failed, and its breaker stays open.
    ProbeFailed {
        /// Time from which the next probe may start.
        until: Timestamp,
        /// The answer to the probe in words.
        answer: String,
    },
    /// Its breaker closed, into a ramp.
    BreakerClosed(CloseCause),
    /// It delivers again after trouble.
    Recovered,
}

/// Why an endpoint is paused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PauseCause {
    /// A person paused it.
    Person {
        /// What the person noted.
        note: Option<String>,
    },
    /// It gave too many permanent answers without a success between them.
    Refusals {
        /// Number of those answers.
        count: u32,
        /// The last answer in words.
        answer: String,
    },
    /// It failed for too long without a success.
    Failing {
        /// How long it may fail.
        span: Span,
        /// Number of failures.
        count: u32,
        /// The last answer in words.
        answer: String,
    },
}

/// Why an endpoint is disabled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DisableCause {
    /// A person disabled it.
    Person {
        /// What the person noted.
        note: Option<String>,
    },
    /// The receiver answered 410.
    Gone,
    /// The receiver answered with a status that the endpoint's rules disable it for.
    Rule {
        /// The status of the answer.
        status: u16,
        /// The rule that says so.
        rule: String,
    },
    /// The receiver asked for it in the header `webhook-delivery`.
    Directive,
}

/// Why a breaker opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenCause {
    /// A person opened it.
    Person {
        /// What the person noted.
        note: Option<String>,
    },
    /// Too many requests in a row failed.
    FailuresInARow {
        /// Number of those failures.
        count: u32,
        /// The last answer in words.
        answer: String,
    },
    /// Too large a share of the last requests failed.
    FailureRatio {
        /// Number of failed requests.
        failed: u32,
        /// Number of all requests.
        total: u32,
        /// The span that they were counted in.
        window: Span,
        /// The last answer in words.
        answer: String,
    },
    /// Too many requests in a row failed in the ramp after an outage.
    FailuresInRamp {
        /// Number of those failures.
        count: u32,
        /// The last answer in words.
        answer: String,
    },
}

/// Why a breaker closes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CloseCause {
    /// A person closed it.
    Person {
        /// What the person noted.
        note: Option<String>,
    },
    /// A person resumed the endpoint, which was not held otherwise.
    Resumed {
        /// What the person noted.
        note: Option<String>,
    },
    /// The endpoint has another URL.
    UrlChanged,
    /// The breaker was switched off in the endpoint's settings.
    SwitchedOff,
    /// The receiver answered a probe.
    Probe {
        /// The answer in words.
        answer: String,
    },
}

/// Who did something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantArray, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Actor {
    /// A person, through the API.
    Person,
    /// The receiver, with its answer.
    Receiver,
    /// The gateway, by its rules.
    Gateway,
}

/// An event in the history of an endpoint, as it is stored and shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointEventRecord {
    /// Time at which it happened.
    pub at: Timestamp,
    /// Kind of the event.
    pub what: EndpointEventKind,
    /// Reason in words, if one is known.
    pub reason: Option<String>,
    /// Who caused it.
    pub by: Actor,
    /// Time of the next probe, if its breaker opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl EndpointEventRecord {
    /// Returns the record of an event that happened at this time.
    pub fn of(event: &EndpointEvent, at: Timestamp) -> Self {
        Self { at, what: event.kind(), reason: event.reason(), by: event.by(), until: event.until() }
    }
}

impl EndpointEvent {
    /// Returns the kind of the event.
    pub fn kind(&self) -> EndpointEventKind {
        self.into()
    }

    /// Returns who caused it.
    pub fn by(&self) -> Actor {
        match self {
            Self::Paused(PauseCause::Person { .. })
            | Self::Disabled(DisableCause::Person { .. })
            | Self::Resumed { .. }
            | Self::BreakerOpened { cause: OpenCause::Person { .. }, .. }
            | Self::BreakerClosed(
                CloseCause::Person { .. }
                | CloseCause::Resumed { .. }
                | CloseCause::UrlChanged
                | CloseCause::SwitchedOff,
            ) => Actor::Person,
            Self::Disabled(DisableCause::Gone | DisableCause::Rule { .. } | DisableCause::Directive)
            | Self::Recovered => Actor::Receiver,
            Self::Paused(PauseCause::Refusals { .. } | PauseCause::Failing { .. })
            | Self::BreakerOpened {
                cause:
                    OpenCause::FailuresInARow { .. } | OpenCause::FailureRatio { .. } | OpenCause::FailuresInRamp { .. },
                ..
            }
            | Self::ProbeFailed { .. }
            | Self::BreakerClosed(CloseCause::Probe { .. }) => Actor::Gateway,
        }
    }

    /// Returns the time of the next probe, if the event sets one.
    pub fn until(&self) -> Option<Timestamp> {
        match self {
            Self::BreakerOpened { until, .. } => *until,
            Self::ProbeFailed { until, .. } => Some(*until),
            Self::Paused(_) | Self::Resumed { .. } | Self::Disabled(_) | Self::BreakerClosed(_) | Self::Recovered => {
                None
            }
        }
    }

    /// Returns the reason as people read it: the note of the person who did
    /// it, or a sentence made from the cause.
    pub fn reason(&self) -> Option<String> {
        match self {
            Self::Paused(cause) => Some(cause.reason()),
            Self::Resumed { note } => note.clone(),
            Self::Disabled(cause) => Some(cause.reason()),
            Self::BreakerOpened { cause, .. } => Some(cause.reason()),
            Self::ProbeFailed { answer, .. } => Some(format!("the probe failed too; it {answer}")),
            Self::BreakerClosed(cause) => Some(cause.reason()),
            Self::Recovered => None,
        }
    }
}

impl PauseCause {
    fn reason(&self) -> String {
        match self {
            Self::Person { note } => note_or(note, "paused by a person"),
            Self::Refusals { count, answer } => {
                format!("{count} permanent answers without a success between them; the last {answer}")
            }
            Self::Failing { span, count, answer } => {
                format!("nothing but failures for {}, {count} in all; the last {answer}", span.words())
            }
        }
    }
}

impl DisableCause {
    fn reason(&self) -> String {
        match self {
            Self::Person { note } => note_or(note, "disabled by a person"),
            Self::Gone => "the receiver answered 410 Gone".to_owned(),
            Self::Rule { status, rule } => format!("the receiver answered {status}, and rule {rule} says disable"),
            Self::Directive => "the receiver answered with webhook-delivery: disable".to_owned(),
        }
    }
}

impl OpenCause {
    /// Returns the reason as people read it.
    pub fn reason(&self) -> String {
        match self {
            Self::Person { note } => note_or(note, "opened by a person"),
            Self::FailuresInARow { count, answer } => format!("{count} failures in a row; the last {answer}"),
            Self::FailureRatio { failed, total, window, answer } => {
                format!("{failed} of {total} requests within {window} failed; the last {answer}")
            }
            Self::FailuresInRamp { count, answer } => {
                format!("{count} failures in a row while it was recovering; the last {answer}")
            }
        }
    }
}

/// What follows when a breaker closes, as its health says, too.
const RAMPS_UP: &str = "it ramps up from one request at a time";

impl CloseCause {
    fn reason(&self) -> String {
        match self {
            Self::Person { note } => format!("{}; {RAMPS_UP}", note_or(note, "closed by a person")),
            Self::Resumed { note } => format!("{}; {RAMPS_UP}", note_or(note, "resumed")),
            Self::UrlChanged => format!("its URL was changed; {RAMPS_UP}"),
            Self::SwitchedOff => "its breaker was switched off".to_owned(),
            Self::Probe { answer } => format!("the probe {answer}; {RAMPS_UP}"),
        }
    }
}

fn note_or(note: &Option<String>, otherwise: &str) -> String {
    note.clone().unwrap_or_else(|| otherwise.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn history_that_is_stored_already_is_read_and_written_as_it_was() {
        let stored = json!({
            "at": "2026-11-15T10:39:50Z", "what": "breaker_opened", "reason": "10 failures in a row; the last answered 503",
            "by": "gateway", "until": "2026-11-15T10:40:00Z",
        });
        let cause = OpenCause::FailuresInARow { count: 10, answer: "answered 503".into() };
        let opened = EndpointEvent::BreakerOpened { until: Some("2026-11-15T10:40:00Z".parse().unwrap()), cause };
        let record = EndpointEventRecord::of(&opened, "2026-11-15T10:39:50Z".parse().unwrap());
        assert_eq!(serde_json::to_value(&record).unwrap(), stored);
        assert_eq!(serde_json::from_value::<EndpointEventRecord>(stored).unwrap(), record);
        let other = json!({"at": "2026-11-15T10:39:50Z", "what": "paused", "reason": "any words", "by": "person"});
        assert_eq!(
            serde_json::to_value(serde_json::from_value::<EndpointEventRecord>(other.clone()).unwrap()).unwrap(),
            other
        );
    }

    #[test]
    fn the_note_of_a_person_is_the_reason() {
        let paused = |note| EndpointEvent::Paused(PauseCause::Person { note });
        let disabled = |note| EndpointEvent::Disabled(DisableCause::Person { note });
        let opened = |note| EndpointEvent::BreakerOpened { until: None, cause: OpenCause::Person { note } };
        let closed = |note| EndpointEvent::BreakerClosed(CloseCause::Person { note });
        let closed_by_resume = |note| EndpointEvent::BreakerClosed(CloseCause::Resumed { note });
        let events: [(&dyn Fn(Option<String>) -> EndpointEvent, _); 5] = [
            (&paused, "paused by a person"),
            (&disabled, "disabled by a person"),
            (&opened, "opened by a person"),
            (&closed, "closed by a person"),
            (&closed_by_resume, "resumed"),
        ];
        for (event, without) in events {
            let noted = event(Some("moving house".into()));
            let then =
                if matches!(noted, EndpointEvent::BreakerClosed(_)) { format!("; {RAMPS_UP}") } else { String::new() };
            assert_eq!((noted.reason(), noted.by()), (Some(format!("moving house{then}")), Actor::Person));
            assert_eq!(event(None).reason(), Some(format!("{without}{then}")));
        }
    }
}
