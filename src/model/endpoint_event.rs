//! The history of an endpoint: what happened to it, and who caused it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Who did something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Actor {
    /// A person, through the API.
    Person,
    /// The receiver, with its answer.
    Receiver,
    /// The gateway, by its rules.
    Gateway,
}

impl Actor {
    /// Returns the actor as it is written everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Person => "person",
            Self::Receiver => "receiver",
            Self::Gateway => "gateway",
        }
    }
}

/// An event in the history of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointEvent {
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

/// What may happen to an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndpointEventKind {
    /// The endpoint was paused.
    Paused,
    /// The endpoint was resumed.
    Resumed,
    /// The endpoint was disabled.
    Disabled,
    /// Its breaker opened.
    BreakerOpened,
    /// A probe failed, and its breaker stays open.
    ProbeFailed,
    /// Its breaker closed, into a ramp.
    BreakerClosed,
    /// It delivers again after trouble.
    Recovered,
}

impl EndpointEventKind {
    /// Returns the kind as it is written everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::Resumed => "resumed",
            Self::Disabled => "disabled",
            Self::BreakerOpened => "breaker_opened",
            Self::ProbeFailed => "probe_failed",
            Self::BreakerClosed => "breaker_closed",
            Self::Recovered => "recovered",
        }
    }

    /// Returns the type of the operational event that reports it, if there is one.
    pub fn event_type(self) -> Option<&'static str> {
        match self {
            Self::Paused => Some("endpoint.paused"),
            Self::Disabled => Some("endpoint.disabled"),
            Self::Recovered => Some("endpoint.recovered"),
            Self::BreakerOpened => Some("breaker.opened"),
            Self::BreakerClosed => Some("breaker.closed"),
            Self::Resumed | Self::ProbeFailed => None,
        }
    }
}
