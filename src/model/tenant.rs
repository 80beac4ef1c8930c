//! A tenant: the owner of events, endpoints and deliveries, with its quota.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::endpoint::EndpointDefaults;
use super::id::TenantId;
use super::limits::TenantLimits;
use super::rate::Rate;
use super::span::Span;

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
    /// How long its records are kept, where that is not as long as all others.
    pub retention: TenantRetention,
    /// Time at which it was created.
    pub created_at: Timestamp,
}

impl Tenant {
    /// Returns the fields that can be changed, as JSON.
    pub fn fields(&self) -> serde_json::Value {
        let TenantQuota { weight, rate, ingest } = self.quota;
        serde_json::json!({
            "name": self.name, "weight": weight, "rate": rate, "ingest": ingest, "limits": self.limits,
            "defaults": self.defaults, "retention": self.retention.finished,
            "dead_letter_retention": self.retention.dead
        })
    }
}

/// How long the records of a tenant are kept; nothing for as long as those of all
/// others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantRetention {
    /// Time that delivered and cancelled deliveries are kept, and events without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<Span>,
    /// Time that dead letters are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead: Option<Span>,
}

impl TenantRetention {
    /// Shortest time that records can be kept.
    pub const MIN: Span = Span::secs(60);
    /// Longest time that records can be kept.
    pub const MAX: Span = Span::secs(3_650 * 86_400);

    /// Whether the tenant has nothing of its own.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
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
