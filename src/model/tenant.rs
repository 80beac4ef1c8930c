//! A tenant: the owner of events, endpoints and deliveries, with its quota.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::endpoint::AttemptTimeouts;
use super::id::TenantId;
use super::limits::TenantLimits;
use super::rate::Rate;
use super::retry_spec::RetrySpec;
use super::status_rules::StatusRules;

/// A tenant. Its events, endpoints and deliveries are separate from those of others.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    /// Id of the tenant, chosen by the caller.
    pub id: TenantId,
    /// Display name of the tenant.
    pub name: String,
    /// Share of the send slots, and rates of sending and accepting.
    pub quota: TenantQuota,
    /// Limits on what all tenants share.
    pub limits: TenantLimits,
    /// Defaults of its new endpoints.
    pub defaults: EndpointDefaults,
    /// Time at which it was created.
    pub created_at: Timestamp,
}

impl Tenant {
    /// Returns the fields that can be changed, as JSON.
    pub fn fields(&self) -> serde_json::Value {
        let TenantQuota { weight, rate, ingest } = self.quota;
        serde_json::json!({
            "name": self.name, "weight": weight, "rate": rate, "ingest": ingest, "limits": self.limits,
            "defaults": self.defaults
        })
    }
}

/// How much of the gateway a tenant may use.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantQuota {
    /// Its share of the gateway's send slots, against those of the others: 1 to 1,000.
    #[serde(default = "default_weight")]
    #[schema(minimum = 1, maximum = 1000)]
    pub weight: u32,
    /// How often its receivers may be called, over all its endpoints; null for as often as theirs allow.
    #[serde(default)]
    pub rate: Option<Rate>,
    /// How often it may hand events in.
    #[serde(default = "default_ingest")]
    pub ingest: Rate,
}

fn default_weight() -> u32 {
    1
}

/// The default is more than one node can accept, so it limits nobody.
fn default_ingest() -> Rate {
    Rate { per_second: 100_000.0, burst: 100_000 }
}

impl Default for TenantQuota {
    fn default() -> Self {
        Self { weight: default_weight(), rate: None, ingest: default_ingest() }
    }
}

/// What a tenant's new endpoints get where they say nothing themselves.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EndpointDefaults {
    /// The retry policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetrySpec>,
    /// What answers mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_rules: Option<StatusRules>,
    /// The cap on requests in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000)]
    pub max_in_flight: Option<u32>,
    /// The deadlines of an attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<AttemptTimeouts>,
}
