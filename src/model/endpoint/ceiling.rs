//! The ceiling that a tenant's limits put over the settings of its endpoints.

use serde::{Deserialize, Serialize};

use super::settings::{AttemptTimeouts, EndpointSettings};
use crate::model::policy::RetryPolicy;
use crate::model::rate::Rate;
use crate::model::span::Span;

/// The most that an endpoint may be set to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EndpointCeiling {
    /// Ceiling of `max_in_flight`: 1 to 1,000.
    #[schema(minimum = 1, maximum = 1000)]
    pub max_in_flight: u32,
    /// Ceiling of `rate.per_second`; null for no ceiling.
    pub per_second: Option<f64>,
    /// Ceiling of `timeout.total`: 100ms to 1m.
    #[schema(value_type = String, example = "1m")]
    pub timeout: Span,
    /// Ceiling of `retry.max_attempts`; null for no ceiling.
    pub max_attempts: Option<u32>,
    /// Ceiling of `retry.max_age`; null for no ceiling.
    #[schema(value_type = Option<String>, example = "72h")]
    pub max_age: Option<Span>,
}

impl Default for EndpointCeiling {
    fn default() -> Self {
        Self { max_in_flight: 1_000, per_second: None, timeout: Span::secs(60), max_attempts: None, max_age: None }
    }
}

/// A setting of an endpoint that has a ceiling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CappedSetting {
    /// Requests that may be open at once.
    MaxInFlight,
    /// Requests per second.
    PerSecond,
    /// Deadline of an attempt.
    Timeout,
    /// Attempts of a delivery.
    MaxAttempts,
    /// Time for all attempts of a delivery.
    MaxAge,
}

impl CappedSetting {
    /// Returns the JSON pointer to the setting.
    pub fn pointer(self) -> &'static str {
        match self {
            Self::MaxInFlight => "/max_in_flight",
            Self::PerSecond => "/rate/per_second",
            Self::Timeout => "/timeout/total",
            Self::MaxAttempts => "/retry/max_attempts",
            Self::MaxAge => "/retry/max_age",
        }
    }

    /// Returns the name of its ceiling in the tenant's `limits`.
    pub fn limit(self) -> &'static str {
        match self {
            Self::MaxInFlight => "endpoint.max_in_flight",
            Self::PerSecond => "endpoint.per_second",
            Self::Timeout => "endpoint.timeout",
            Self::MaxAttempts => "endpoint.max_attempts",
            Self::MaxAge => "endpoint.max_age",
        }
    }

    /// Whether an owner who changes these settings from the present ones sets
    /// this one anew. A retry policy that does not name it does not.
    pub fn is_set(self, settings: &EndpointSettings, current: Option<&EndpointSettings>) -> bool {
        let differs = |is_same: fn(&EndpointSettings, &EndpointSettings) -> bool| {
            current.is_none_or(|current| !is_same(current, settings))
        };
        match self {
            Self::MaxInFlight => differs(|one, other| one.max_in_flight == other.max_in_flight),
            Self::PerSecond => differs(|one, other| one.rate == other.rate),
            Self::Timeout => differs(|one, other| one.timeout == other.timeout),
            Self::MaxAttempts => {
                settings.retry.max_attempts.is_some() && differs(|one, other| one.retry == other.retry)
            }
            Self::MaxAge => settings.retry.max_age.is_some() && differs(|one, other| one.retry == other.retry),
        }
    }
}

/// A setting above its ceiling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AboveCeiling {
    /// The setting that is above.
    pub setting: CappedSetting,
    /// Value of the setting.
    pub is: String,
    /// Largest value allowed.
    pub most: String,
}

impl EndpointCeiling {
    /// Refuses values out of range, with a JSON pointer and the reason.
    pub fn check(&self, mut refuse: impl FnMut(&str, String)) {
        if !(1..=1_000).contains(&self.max_in_flight) {
            refuse("/max_in_flight", format!("max_in_flight is {}; use 1 to 1,000", self.max_in_flight));
        }
        if let Some(per_second) = self.per_second.filter(|rate| !(0.001..=1_000_000.0).contains(rate)) {
            refuse(
                "/per_second",
                format!("per_second is {per_second}; use 0.001 to 1,000,000, or null for no ceiling"),
            );
        }
        if !(Span::millis(100)..=Span::secs(60)).contains(&self.timeout) {
            refuse("/timeout", format!("timeout is {}; use 100ms to 1m", self.timeout));
        }
        if self.max_attempts == Some(0) {
            refuse("/max_attempts", "max_attempts is 0; use 1 or more, or null for no ceiling".into());
        }
        if let Some(age) = self.max_age.filter(|age| *age < Span::secs(1)) {
            refuse("/max_age", format!("max_age is {age}; use 1s or more, or null for no ceiling"));
        }
    }

    /// Returns the cap in force.
    pub fn max_in_flight(&self, set: u32) -> u32 {
        set.min(self.max_in_flight)
    }

    /// Returns the rate in force. A capped rate has a burst of at most one second's
    /// worth, so that large bursts cannot exceed a low ceiling again and again.
    pub fn rate(&self, set: Rate) -> Rate {
        match self.per_second.filter(|most| *most < set.per_second) {
            None => set,
            Some(per_second) => Rate { per_second, burst: set.burst.min((per_second as u32).max(1)) },
        }
    }

    /// Returns the deadlines in force.
    pub fn timeout(&self, set: AttemptTimeouts) -> AttemptTimeouts {
        AttemptTimeouts { total: set.total.min(self.timeout), ..set }
    }

    /// Returns the retry policy in force.
    pub fn policy(&self, set: RetryPolicy) -> RetryPolicy {
        RetryPolicy {
            max_attempts: self.max_attempts.map_or(set.max_attempts, |most| set.max_attempts.min(most)),
            max_age: self.max_age.map_or(set.max_age, |most| set.max_age.min(most)),
            ..set
        }
    }

    /// Returns the settings that lie above the ceiling.
    pub fn settings_above(&self, settings: &EndpointSettings) -> Vec<AboveCeiling> {
        let mut violations = Vec::new();
        let policy = settings.retry.fill_defaults();
        let mut compare = |is_above: bool, setting, is: &dyn ToString, most: &dyn ToString| {
            if is_above {
                violations.push(AboveCeiling { setting, is: is.to_string(), most: most.to_string() });
            }
        };
        compare(
            settings.max_in_flight > self.max_in_flight,
            CappedSetting::MaxInFlight,
            &settings.max_in_flight,
            &self.max_in_flight,
        );
        let (is, most) = (settings.rate.per_second, self.per_second.unwrap_or(f64::INFINITY));
        compare(is > most, CappedSetting::PerSecond, &is, &most);
        let (is, most) = (settings.timeout.total, self.timeout);
        compare(is > most, CappedSetting::Timeout, &is, &most);
        let (is, most) = (policy.max_attempts, self.max_attempts.unwrap_or(u32::MAX));
        compare(is > most, CappedSetting::MaxAttempts, &is, &most);
        if let Some(most) = self.max_age {
            compare(policy.max_age > most, CappedSetting::MaxAge, &policy.max_age, &most);
        }
        violations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(json: serde_json::Value) -> EndpointSettings {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_ceiling_is_in_force_whatever_is_set_and_names_what_lies_above_it() {
        let ceiling = EndpointCeiling {
            max_in_flight: 20,
            per_second: Some(5.0),
            timeout: Span::secs(2),
            max_attempts: Some(3),
            max_age: Some(Span::secs(3_600)),
        };
        let high = settings(serde_json::json!({
            "url": "https://a", "max_in_flight": 100, "rate": {"per_second": 1000, "burst": 500},
            "timeout": {"connect": "5s", "total": "30s"}, "retry": {"preset": "standard"}
        }));
        assert_eq!(ceiling.max_in_flight(high.max_in_flight), 20);
        assert_eq!(ceiling.rate(high.rate), Rate { per_second: 5.0, burst: 5 });
        assert_eq!(ceiling.timeout(high.timeout).total, Span::secs(2));
        let policy = ceiling.policy(high.retry.fill_defaults());
        assert_eq!((policy.max_attempts, policy.max_age), (3, Span::secs(3_600)));
        let above: Vec<&str> = ceiling.settings_above(&high).iter().map(|above| above.setting.limit()).collect();
        let names = ["max_in_flight", "per_second", "timeout", "max_attempts", "max_age"];
        assert_eq!(above, names.map(|name| format!("endpoint.{name}")));
        let low = settings(serde_json::json!({
            "url": "https://a", "max_in_flight": 20, "rate": {"per_second": 5, "burst": 50},
            "timeout": {"total": "2s"}, "retry": {"preset": "standard", "max_attempts": 3, "max_age": "1h"}
        }));
        assert_eq!(ceiling.settings_above(&low), []);
        assert_eq!(ceiling.rate(low.rate), low.rate, "what lies below is left as it is");
        assert_eq!(EndpointCeiling::default().policy(high.retry.fill_defaults()), high.retry.fill_defaults());
    }
}
