//! The settings that an endpoint can inherit.

use serde::{Deserialize, Serialize};

/// A setting that an endpoint can take from its tenant's defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum InheritedSetting {
    /// The retry policy.
    Retry,
    /// What answers mean.
    StatusRules,
    /// The cap on requests in flight.
    MaxInFlight,
    /// The deadlines of an attempt.
    Timeout,
}
