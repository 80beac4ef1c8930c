//! Describes what an endpoint allows: whether it is called, how often, how many
//! times at once, and from when on.

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

/// The limits and the stored health of an endpoint at this moment.
#[derive(Debug, Clone, PartialEq)]
pub struct EndpointGate {
    /// Tenant of the endpoint.
    pub tenant: TenantId,
    /// Quota of the tenant on this node.
    pub quota: TenantQuota,
    /// Host of the endpoint's URL, if hosts have a limit.
    pub host: Option<Arc<str>>,
    /// Whether the endpoint is active, paused or disabled.
    pub state: EndpointState,
    /// Most requests that may be open at once.
    pub cap: usize,
    /// Rate of calls to the endpoint.
    pub rate: Rate,
    /// End of the break that the receiver asked for. Only urgent deliveries
    /// start before it.
    pub backpressure_until: Option<Timestamp>,
    /// Settings of the endpoint's breaker.
    pub breaker: BreakerSettings,
    /// Health of the endpoint as it is stored.
    pub health: EndpointHealth,
    /// Time of creation; the endpoint was never called before it.
    pub created_at: Timestamp,
    /// Terms of the lease under which the endpoint is dispatched.
    pub lease_terms: LeaseTerms,
}

/// The terms of the lease under which a node dispatches an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTerms {
    /// Lease of the endpoint's shard.
    pub lease: Lease,
    /// Time of the lease's gain, if others may have called the endpoint before.
    pub since: Option<Timestamp>,
    /// Time that must be left of the lease when an attempt starts.
    pub needed: Duration,
}

impl EndpointGate {
    /// Returns the gate of an endpoint.
    pub fn of(endpoint: &Endpoint, quota: TenantQuota, host: Option<Arc<str>>, lease_terms: LeaseTerms) -> Self {
        Self {
            tenant: endpoint.tenant.clone(),
            quota,
            host,
            state: endpoint.status.state,
            cap: endpoint.max_in_flight() as usize,
            rate: endpoint.rate(),
            backpressure_until: endpoint.backpressure_until,
            breaker: endpoint.settings.breaker,
            health: endpoint.health.clone(),
            created_at: endpoint.created_at,
            lease_terms,
        }
    }
}
