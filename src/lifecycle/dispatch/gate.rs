//! What an endpoint allows: whether it is called, how often, how many times
//! at once, and from when on.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::breaker::BreakerSettings;
use crate::model::endpoint::{Endpoint, EndpointState};
use crate::model::health::Health;
use crate::model::id::TenantId;
use crate::model::pace::Rate;
use crate::model::shard::Lease;
use crate::model::tenant::Quota;
use crate::store::Claim;

/// What an endpoint allows at the moment, and all that is known of how it is
/// doing.
#[derive(Debug, Clone, PartialEq)]
pub struct Gate {
    /// Whose it is.
    pub tenant: TenantId,
    /// How much of the gateway that one may use.
    pub quota: Quota,
    /// The host it stands on, where that matters.
    pub host: Option<Arc<str>>,
    /// Whether it is being called at all.
    pub is_open: bool,
    /// Whether it is disabled, and not merely paused.
    pub is_disabled: bool,
    /// How many requests may be open at once.
    pub cap: usize,
    /// How often it may be called.
    pub rate: Rate,
    /// Until when the receiver asked to be left alone. Only what a person
    /// asks for goes before that.
    pub quiet_until: Option<Timestamp>,
    /// When its breaker opens.
    pub breaker: BreakerSettings,
    /// How it is doing, as far as that is written down.
    pub health: Health,
    /// When it was created: before that it was never called.
    pub created_at: Timestamp,
    /// What it is dispatched under.
    pub tenure: Tenure,
}

/// What a node dispatches an endpoint under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenure {
    /// The right to.
    pub lease: Lease,
    /// Since when, if others may have called it until then.
    pub since: Option<Timestamp>,
    /// How long an attempt needs to have ahead of it under that lease.
    pub needed: Duration,
}

impl Gate {
    /// What this endpoint allows.
    pub fn of(endpoint: &Endpoint, quota: Quota, host: Option<Arc<str>>, tenure: Tenure) -> Self {
        Self {
            tenant: endpoint.tenant.clone(),
            quota,
            host,
            is_open: endpoint.standing.state == EndpointState::Active,
            is_disabled: endpoint.standing.state == EndpointState::Disabled,
            cap: endpoint.max_in_flight() as usize,
            rate: endpoint.rate(),
            quiet_until: endpoint.quiet_until,
            breaker: endpoint.settings.breaker,
            health: endpoint.health.clone(),
            created_at: endpoint.created_at,
            tenure,
        }
    }
}

/// Whether this claim may still go, by what is written down: an endpoint may
/// have been closed between its turn and now.
pub fn admits(endpoint: &Endpoint, claim: &Claim, now: Timestamp) -> bool {
    let is_quiet = endpoint.quiet_until.is_some_and(|until| until > now);
    endpoint.standing.state == EndpointState::Active && (claim.is_urgent || !is_quiet)
}
