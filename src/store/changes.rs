//! Changes that people and receivers make, and their effects.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::claim::Claim;
use crate::model::audit::AuditAction;
use crate::model::delivery::DeliveryState;
use crate::model::endpoint::{Endpoint, EndpointSettings, EndpointState, Secret};
use crate::model::endpoint_event::EndpointEvent;
use crate::model::health::EndpointHealth;
use crate::model::id::EndpointId;
use crate::model::operational_event::OperationalEventType;
use crate::model::policy::RetryPolicy;

/// What an answer means for the whole endpoint.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EndpointUpdate {
    /// Time until which the receiver asked for a break.
    pub backpressure_until: Option<Timestamp>,
    /// The new health of the endpoint, if it changed.
    pub health: Option<Box<EndpointHealth>>,
    /// What happens to the endpoint because of the answer.
    pub endpoint_events: Vec<EndpointEvent>,
}

impl EndpointUpdate {
    /// Returns whether the answer changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether the endpoint is paused or disabled from now on.
    pub fn is_stop(&self) -> bool {
        self.endpoint_events.iter().any(|event| EndpointState::stopped_by(event).is_some())
    }
}

/// What a person may do to a delivery. Its name is the verb of the route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum DeliveryChange {
    /// A waiting delivery becomes due now.
    #[strum(serialize = "retry")]
    RetryNow,
    /// A waiting delivery is cancelled.
    Cancel,
    /// A finished delivery waits again, with a fresh budget.
    Replay,
    /// A dead delivery is cancelled and keeps its cause; its lane moves on.
    Discard,
}

impl DeliveryChange {
    /// Returns the change that ends a delivery in this state; none if it has ended.
    pub fn that_ends(state: DeliveryState) -> Option<Self> {
        match state {
            DeliveryState::Waiting => Some(Self::Cancel),
            DeliveryState::Dead => Some(Self::Discard),
            DeliveryState::Delivered | DeliveryState::Cancelled => None,
        }
    }

    /// Returns the action that the audit log records.
    pub fn action(self) -> AuditAction {
        match self {
            Self::RetryNow => AuditAction::DeliveryRetried,
            Self::Cancel => AuditAction::DeliveryCancelled,
            Self::Replay => AuditAction::DeliveryReplayed,
            Self::Discard => AuditAction::DeliveryDiscarded,
        }
    }

    /// Returns whether a delivery in this state may be changed so.
    pub fn allows(self, state: DeliveryState) -> bool {
        match self {
            Self::RetryNow | Self::Cancel => state == DeliveryState::Waiting,
            Self::Replay => state != DeliveryState::Waiting,
            Self::Discard => state == DeliveryState::Dead,
        }
    }
}

/// The effects of a change of a delivery.
#[derive(Debug, Clone)]
pub struct DeliveryChanged {
    /// Endpoint of the delivery.
    pub endpoint: EndpointId,
    /// Time at which a delivery of that endpoint is due because of the change.
    pub due_at: Option<Timestamp>,
    /// Claims on the operational events about the change.
    pub freed: Vec<Claim>,
    /// Types of those operational events.
    pub operational_events: Vec<OperationalEventType>,
}

/// The effects of a change of an endpoint.
#[derive(Debug, Clone)]
pub struct EndpointChanged {
    /// The endpoint after the change.
    pub endpoint: Arc<Endpoint>,
    /// What happened to the endpoint because of the change.
    pub endpoint_events: Vec<EndpointEvent>,
    /// Claims on the operational events about the change.
    pub freed: Vec<Claim>,
    /// Types of those operational events.
    pub operational_events: Vec<OperationalEventType>,
}

/// A change of an endpoint.
#[derive(Debug, Clone)]
pub enum EndpointChange {
    /// The settings change.
    Settings {
        /// The new settings.
        settings: Box<EndpointSettings>,
        /// The retry policy that the settings spell out.
        policy: RetryPolicy,
        /// Time of the last change that the caller knows. If there was another
        /// change since, this one is refused.
        if_updated_at: Timestamp,
    },
    /// A person resumes, pauses or disables the endpoint.
    State {
        /// The new state.
        state: EndpointState,
        /// What the person noted.
        note: Option<String>,
    },
    /// A person opens or closes the breaker.
    Breaker {
        /// Whether the breaker is open from now on.
        is_open: bool,
        /// Time until which it is open; without one, until a person closes it.
        until: Option<Timestamp>,
        /// What the person noted.
        note: Option<String>,
    },
    /// A mail was sent to the endpoint's owner.
    Mailed,
    /// A new secret is added; the others go on signing for a while.
    Rotate {
        /// The new secret.
        secret: Secret,
        /// How long the other secrets go on signing.
        overlap: Duration,
    },
}

impl EndpointChange {
    /// Returns the action that the audit log records, if a person made the
    /// change.
    pub fn action(&self) -> Option<AuditAction> {
        match self {
            Self::Settings { .. } => Some(AuditAction::EndpointChanged),
            Self::State { state: EndpointState::Active, .. } => Some(AuditAction::EndpointResumed),
            Self::State { state: EndpointState::Paused, .. } => Some(AuditAction::EndpointPaused),
            Self::State { state: EndpointState::Disabled, .. } => Some(AuditAction::EndpointDisabled),
            Self::Breaker { is_open: true, .. } => Some(AuditAction::BreakerOpened),
            Self::Breaker { is_open: false, .. } => Some(AuditAction::BreakerClosed),
            Self::Rotate { .. } => Some(AuditAction::SecretRotated),
            Self::Mailed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::named_enum::NamedEnum;

    #[test]
    fn what_ends_a_delivery_is_allowed_in_its_state_and_an_ended_one_has_nothing_to_end() {
        for state in DeliveryState::ALL {
            let has_ended = matches!(state, DeliveryState::Delivered | DeliveryState::Cancelled);
            let change = DeliveryChange::that_ends(*state);
            assert_eq!(change.is_none(), has_ended, "{state:?}");
            assert!(change.is_none_or(|change| change.allows(*state)), "{state:?}");
        }
    }
}
