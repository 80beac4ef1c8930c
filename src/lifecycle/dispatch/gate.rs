//! What an endpoint allows: whether it is called, how often, how many times
//! at once, and from when on.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::breaker::BreakerSettings;
use crate::model::endpoint::{Endpoint, EndpointState};
use crate::model::health::EndpointHealth;
use crate::model::id::TenantId;
use crate::model::rate::Rate;
use crate::model::shard::Lease;
use crate::model::tenant::TenantQuota;

/// What an endpoint allows at the moment, and all that is known of how it is
/// doing.
#[derive(Debug, Clone, PartialEq)]
pub struct EndpointGate {
    /// Whose it is.
    pub tenant: TenantId,
    /// How much of the gateway that one may use.
    pub quota: TenantQuota,
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
    pub health: EndpointHealth,
    /// When it was created: before that it was never called.
    pub created_at: Timestamp,
    /// What it is dispatched under.
    pub lease_terms: LeaseTerms,
}

/// What a node dispatches an endpoint under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTerms {
    /// The right to.
    pub lease: Lease,
    /// Since when, if others may have called it until then.
    pub since: Option<Timestamp>,
    /// How long an attempt needs to have ahead of it under that lease.
    pub needed: Duration,
}

impl EndpointGate {
    /// What this endpoint allows.
    pub fn of(endpoint: &Endpoint, quota: TenantQuota, host: Option<Arc<str>>, lease_terms: LeaseTerms) -> Self {
        Self {
            tenant: endpoint.tenant.clone(),
            quota,
            host,
            is_open: endpoint.status.state == EndpointState::Active,
            is_disabled: endpoint.status.state == EndpointState::Disabled,
            cap: endpoint.max_in_flight() as usize,
            rate: endpoint.rate(),
            quiet_until: endpoint.quiet_until,
            breaker: endpoint.settings.breaker,
            health: endpoint.health.clone(),
            created_at: endpoint.created_at,
            lease_terms,
        }
    }
}
