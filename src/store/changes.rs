//! What people and receivers change, and what such a change led to.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::Claim;
use crate::model::audit::AuditAction;
use crate::model::delivery::DeliveryState;
use crate::model::endpoint::{Endpoint, EndpointSettings, EndpointState, Secret};
use crate::model::endpoint_event::{Actor, EndpointEvent};
use crate::model::health::EndpointHealth;
use crate::model::id::EndpointId;
use crate::model::policy::RetryPolicy;

/// What an answer means for the whole endpoint.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EndpointUpdate {
    /// It asks to be left alone until then.
    pub quiet_until: Option<Timestamp>,
    /// It is to be held from now on.
    pub stop: Option<EndpointStop>,
    /// How it is doing now, if that changed.
    pub health: Option<Box<EndpointHealth>>,
    /// What turned with it.
    pub endpoint_events: Vec<EndpointEvent>,
}

impl EndpointUpdate {
    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Why an endpoint is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointStop {
    /// Paused or disabled.
    pub state: EndpointState,
    /// Why.
    pub reason: String,
    /// Through whom.
    pub by: Actor,
}

/// What a person may do to a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryChange {
    /// A waiting one is due now.
    RetryNow,
    /// A waiting one is ended.
    Cancel,
    /// A finished one waits again, with a fresh budget.
    Replay,
    /// A dead one is ended, its cause kept; its lane moves on.
    Discard,
}

impl DeliveryChange {
    /// The verb, as it stands in the route.
    pub fn verb(self) -> &'static str {
        match self {
            Self::RetryNow => "retry",
            Self::Cancel => "cancel",
            Self::Replay => "replay",
            Self::Discard => "discard",
        }
    }

    /// What is recorded of it.
    pub fn action(self) -> AuditAction {
        match self {
            Self::RetryNow => AuditAction::DeliveryRetried,
            Self::Cancel => AuditAction::DeliveryCancelled,
            Self::Replay => AuditAction::DeliveryReplayed,
            Self::Discard => AuditAction::DeliveryDiscarded,
        }
    }

    /// Whether a delivery in this state may be changed so.
    pub fn allows(self, state: DeliveryState) -> bool {
        match self {
            Self::RetryNow | Self::Cancel => state == DeliveryState::Waiting,
            Self::Replay => state != DeliveryState::Waiting,
            Self::Discard => state == DeliveryState::Dead,
        }
    }
}

/// What a change led to.
#[derive(Debug, Clone)]
pub struct DeliveryChanged {
    /// The endpoint whose queue it concerns.
    pub endpoint: EndpointId,
    /// When something there is due because of it.
    pub due_at: Option<Timestamp>,
    /// Operational events that tell of it.
    pub freed: Vec<Claim>,
    /// Their types.
    pub operational_events: Vec<&'static str>,
}

/// What a change of an endpoint led to.
#[derive(Debug, Clone)]
pub struct EndpointChanged {
    /// The endpoint, changed.
    pub endpoint: Arc<Endpoint>,
    /// What that means in its life.
    pub endpoint_events: Vec<EndpointEvent>,
    /// Operational events that tell of it.
    pub freed: Vec<Claim>,
    /// Their types.
    pub operational_events: Vec<&'static str>,
}

/// What may change about an endpoint.
#[derive(Debug, Clone)]
pub enum EndpointChange {
    /// Its owner's decisions.
    Settings {
        /// The new ones.
        settings: Box<EndpointSettings>,
        /// The retry policy they spell out.
        policy: RetryPolicy,
        /// The change they are based on; another one meanwhile refuses this.
        if_updated_at: Timestamp,
    },
    /// Whether it is called.
    Standing {
        /// Where it stands now.
        state: EndpointState,
        /// Why.
        reason: Option<String>,
        /// Through whom.
        by: Actor,
    },
    /// A person opens or closes its breaker.
    Breaker {
        /// Open, or closed.
        is_open: bool,
        /// Until when it is open; without, until it is closed.
        until: Option<Timestamp>,
        /// Why.
        reason: Option<String>,
    },
    /// Its owner was written to.
    Mailed,
    /// A new secret; the others go on signing for a while.
    Rotate {
        /// The new one.
        secret: Secret,
        /// How long the others go on.
        overlap: Duration,
    },
}

impl EndpointChange {
    /// What is recorded of it, where it is somebody's doing.
    pub fn action(&self) -> Option<AuditAction> {
        match self {
            Self::Settings { .. } => Some(AuditAction::EndpointChanged),
            Self::Standing { state: EndpointState::Active, .. } => Some(AuditAction::EndpointResumed),
            Self::Standing { state: EndpointState::Paused, .. } => Some(AuditAction::EndpointPaused),
            Self::Standing { state: EndpointState::Disabled, .. } => Some(AuditAction::EndpointDisabled),
            Self::Breaker { is_open: true, .. } => Some(AuditAction::BreakerOpened),
            Self::Breaker { is_open: false, .. } => Some(AuditAction::BreakerClosed),
            Self::Rotate { .. } => Some(AuditAction::SecretRotated),
            Self::Mailed => None,
        }
    }
}
