//! Whose events these are.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::endpoint::AttemptTimeouts;
use super::id::TenantId;
use super::limits::TenantLimits;
use super::policy::RetrySpec;
use super::rate::Rate;
use super::status_rules::StatusRules;

/// A tenant: events, endpoints and deliveries of one never meet another's.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    /// The caller's name for it.
    pub id: TenantId,
    /// What people call it.
    pub name: String,
    /// How much of the gateway it may use.
    pub quota: TenantQuota,
    /// The most it may use of what all tenants share.
    pub limits: TenantLimits,
    /// What its new endpoints get where they say nothing.
    pub defaults: EndpointDefaults,
    /// When it was created.
    pub created_at: Timestamp,
}

impl Tenant {
    /// What may be said of it, by field.
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
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 1000)]
    pub weight: u32,
    /// How often its receivers may be called, over all its endpoints; null for as often as theirs allow.
    #[serde(default)]
    pub rate: Option<Rate>,
    /// How often it may hand events in.
    #[serde(default = "ingest")]
    pub ingest: Rate,
}

fn one() -> u32 {
    1
}

/// More than one node takes in, so nobody meets it who has not set it.
fn ingest() -> Rate {
    Rate { per_second: 100_000.0, burst: 100_000 }
}

impl Default for TenantQuota {
    fn default() -> Self {
        Self { weight: one(), rate: None, ingest: ingest() }
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
