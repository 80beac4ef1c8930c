//! The defaults of a tenant's endpoints, and what an endpoint inherits from them.

use serde::{Deserialize, Serialize};

use super::inherited_setting::InheritedSetting;
use super::settings::{AttemptTimeouts, EndpointSettings, default_max_in_flight};
use crate::model::retry_spec::RetrySpec;
use crate::model::status_rules::StatusRules;

/// What a tenant's new endpoints get where they say nothing themselves, and what its endpoints follow that name it in `inherits`.
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

impl EndpointSettings {
    /// Takes the settings that it inherits from these defaults; where they say
    /// nothing, the gateway's own.
    pub fn inherit(&mut self, defaults: &EndpointDefaults) {
        for setting in &self.inherits {
            match setting {
                InheritedSetting::Retry => {
                    self.retry = defaults.retry.clone().unwrap_or_else(RetrySpec::standard);
                }
                InheritedSetting::StatusRules => {
                    self.status_rules = defaults.status_rules.clone().unwrap_or_default();
                }
                InheritedSetting::MaxInFlight => {
                    self.max_in_flight = defaults.max_in_flight.unwrap_or_else(default_max_in_flight);
                }
                InheritedSetting::Timeout => self.timeout = defaults.timeout.unwrap_or_default(),
            }
        }
    }
}
