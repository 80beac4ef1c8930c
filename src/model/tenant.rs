//! Whose events these are.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::endpoint::Timeout;
use super::id::TenantId;
use super::policy::RetrySpec;
use super::rules::StatusRules;

/// A tenant: events, endpoints and deliveries of one never meet another's.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    /// The caller's name for it.
    pub id: TenantId,
    /// What people call it.
    pub name: String,
    /// What its new endpoints get where they say nothing.
    pub defaults: Defaults,
    /// When it was created.
    pub created_at: Timestamp,
}

/// What a tenant's new endpoints get where they say nothing themselves.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Defaults {
    /// The retry policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetrySpec>,
    /// What answers mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_rules: Option<StatusRules>,
    /// The cap on requests in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<u32>,
    /// The deadlines of an attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Timeout>,
}
