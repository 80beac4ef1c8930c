//! The limits of a tenant on what all tenants share, and its usage.
//!
//! The operator sets the limits; a tenant's tokens can only read them. Counts of
//! endpoints and tokens are exact. Stored bytes and waiting deliveries are counted
//! after they are written, so concurrent requests may exceed a limit by what they
//! bring.

use serde::{Deserialize, Serialize};

use super::endpoint::{EndpointCeiling, EndpointSettings};
use super::rate::Rate;
use super::size::Size;

/// Bytes that an event counts besides its data, and each of its deliveries, for
/// rows and indexes.
const ROW_BYTES: u64 = 512;

/// Returns how many bytes an event counts against its tenant's `stored_bytes`.
pub fn stored_bytes(data: usize, deliveries: usize) -> u64 {
    data as u64 + ROW_BYTES * (1 + deliveries as u64)
}

/// How much a tenant may use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TenantLimits {
    /// How many endpoints it may have. One more is 422 `limit_exceeded`; the problem's `limit` names the limit.
    #[schema(maximum = 1_000_000)]
    pub endpoints: u32,
    /// How many bytes the settings of all its endpoints may have together, as JSON. More is 422 `limit_exceeded`.
    #[schema(value_type = String, example = "16MiB")]
    pub settings_bytes: Size,
    /// How many tokens it may have. One more is 422 `limit_exceeded`.
    #[schema(maximum = 1_000_000)]
    pub tokens: u32,
    /// How many of its jobs run at once. More are queued, up to 100 that are not over; one more is 422 `limit_exceeded`.
    #[schema(maximum = 1_000)]
    pub jobs_running: u32,
    /// How many calls its tokens may make, events aside; a page of the portal is one, for all who look at it within a second. More is 429 `rate_limited`. The admin token has no such rate.
    pub management: Rate,
    /// How many bytes its events may take up: their data, and 512 bytes for each event and each delivery; `null` for no limit of its own. More is 507 `quota_full`.
    #[schema(value_type = Option<String>, example = "10GiB")]
    pub stored_bytes: Option<Size>,
    /// How many of its deliveries may wait; `null` for no limit. More is 429 `backlog_full` with `Retry-After`.
    pub waiting: Option<u64>,
    /// The most that its endpoints may be set to. More is 422 `limit_exceeded`.
    pub endpoint: EndpointCeiling,
}

impl Default for TenantLimits {
    fn default() -> Self {
        Self {
            endpoints: 1_000,
            settings_bytes: Size(16 << 20),
            tokens: 100,
            jobs_running: 2,
            management: Rate { per_second: 100.0, burst: 1_000 },
            stored_bytes: None,
            waiting: None,
            endpoint: EndpointCeiling::default(),
        }
    }
}

impl TenantLimits {
    /// Refuses values out of range, with a JSON pointer and the reason.
    pub fn check(&self, mut refuse: impl FnMut(&str, String)) {
        for (field, count) in [("endpoints", self.endpoints), ("tokens", self.tokens)] {
            if count > 1_000_000 {
                refuse(&format!("/{field}"), format!("{field} is {count}; use 0 to 1,000,000"));
            }
        }
        if self.jobs_running > 1_000 {
            refuse("/jobs_running", format!("jobs_running is {}; use 0 to 1,000", self.jobs_running));
        }
        if let Err((field, detail)) = self.management.check() {
            refuse(&format!("/management{field}"), detail);
        }
        self.endpoint.check(|field, detail| refuse(&format!("/endpoint{field}"), detail));
    }
}

/// A count that would exceed its limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "tenant {tenant} has {used} {counted} of at most {most} (limits.{limit}); delete some, or ask the operator to raise the limit"
)]
pub struct OverLimit {
    /// Tenant whose limit it is.
    pub tenant: super::id::TenantId,
    /// Name of the limit in the tenant's `limits`.
    pub limit: &'static str,
    /// What is counted, in words.
    pub counted: &'static str,
    /// Number in use, with the change where that is what exceeds the limit.
    pub used: String,
    /// Largest number allowed.
    pub most: String,
}

impl OverLimit {
    /// Returns the refusal of another job of a tenant, by how many unfinished ones it has.
    pub fn of_jobs(tenant: &super::id::TenantId, unfinished: u32, most: u32) -> Self {
        Self {
            tenant: tenant.clone(),
            limit: "jobs_running",
            counted: "jobs that are not over",
            used: unfinished.to_string(),
            most: most.to_string(),
        }
    }
}

/// What a tenant uses, by the names of its limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct TenantUsage {
    /// Number of its endpoints.
    pub endpoints: u64,
    /// Bytes of the settings of its endpoints.
    pub settings_bytes: u64,
    /// Number of its tokens.
    pub tokens: u64,
    /// Number of its jobs that run.
    pub jobs_running: u64,
    /// What its events take up; on many nodes up to two seconds old.
    pub stored_bytes: u64,
    /// Its deliveries that wait; on many nodes up to two seconds old. Null while they are being counted.
    pub waiting: Option<u64>,
}

impl TenantUsage {
    /// Refuses another endpoint, or larger settings, if that exceeds a limit.
    pub fn admits_settings(
        &self,
        tenant: &super::id::TenantId,
        limits: &TenantLimits,
        more_endpoints: u64,
        more_bytes: i64,
    ) -> Result<(), OverLimit> {
        let over = |limit, counted, used: String, most: String| {
            Err(OverLimit { tenant: tenant.clone(), limit, counted, used, most })
        };
        if more_endpoints > 0 && self.endpoints + more_endpoints > u64::from(limits.endpoints) {
            return over("endpoints", "endpoints", self.endpoints.to_string(), limits.endpoints.to_string());
        }
        let bytes = self.settings_bytes.saturating_add_signed(more_bytes);
        if more_bytes > 0 && bytes > limits.settings_bytes.0 {
            let counted = "bytes of endpoint settings with this change";
            return over("settings_bytes", counted, bytes.to_string(), limits.settings_bytes.to_string());
        }
        Ok(())
    }

    /// Refuses another token, if that exceeds the limit.
    pub fn admits_token(&self, tenant: &super::id::TenantId, limits: &TenantLimits) -> Result<(), OverLimit> {
        if self.tokens < u64::from(limits.tokens) {
            return Ok(());
        }
        Err(OverLimit {
            tenant: tenant.clone(),
            limit: "tokens",
            counted: "tokens",
            used: self.tokens.to_string(),
            most: limits.tokens.to_string(),
        })
    }
}

/// Returns the size of settings as JSON, in bytes.
pub fn settings_bytes(settings: &EndpointSettings) -> u64 {
    #[derive(Default)]
    struct ByteCounter(u64);
    impl std::io::Write for ByteCounter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut counter = ByteCounter::default();
    serde_json::to_writer(&mut counter, settings).expect("settings are plain data");
    counter.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::span::Span;

    #[test]
    fn what_is_left_out_of_limits_is_the_default() {
        let limits: TenantLimits = serde_json::from_str("{}").unwrap();
        assert_eq!(limits, TenantLimits::default());
        let limits: TenantLimits = serde_json::from_str(r#"{"endpoint":{"timeout":"2s"},"waiting":5}"#).unwrap();
        assert_eq!((limits.endpoint.timeout, limits.endpoint.max_in_flight), (Span::secs(2), 1_000));
        assert_eq!((limits.waiting, limits.endpoints), (Some(5), 1_000));
        assert!(serde_json::from_str::<TenantLimits>(r#"{"endpoint":{"burst":1}}"#).is_err());
    }

    #[test]
    fn limits_that_cannot_be_kept_are_named() {
        let limits: TenantLimits = serde_json::from_str(
            r#"{"endpoints":2000000,"management":{"per_second":0},"endpoint":{"max_in_flight":0,"per_second":-1,
                "timeout":"2m","max_attempts":0,"max_age":"1ms"}}"#,
        )
        .unwrap();
        let mut pointers = Vec::new();
        limits.check(|pointer, detail| {
            assert!(detail.contains("use "), "{detail}");
            pointers.push(pointer.to_owned());
        });
        assert_eq!(
            pointers,
            [
                "/endpoints",
                "/management/per_second",
                "/endpoint/max_in_flight",
                "/endpoint/per_second",
                "/endpoint/timeout",
                "/endpoint/max_attempts",
                "/endpoint/max_age"
            ]
        );
    }

    #[test]
    fn a_tenant_at_its_limit_may_shrink_and_not_grow() {
        let (tenant, limits) =
            ("a".parse().unwrap(), TenantLimits { settings_bytes: Size(100), ..TenantLimits::default() });
        let usage = TenantUsage { endpoints: 1_000, settings_bytes: 90, tokens: 100, ..TenantUsage::default() };
        let refused = usage.admits_settings(&tenant, &limits, 1, 1).unwrap_err();
        assert_eq!(refused.limit, "endpoints");
        assert!(refused.to_string().contains("tenant a has 1000 endpoints of at most 1000 (limits.endpoints)"));
        assert_eq!(usage.admits_settings(&tenant, &limits, 0, 11).unwrap_err().limit, "settings_bytes");
        assert_eq!(usage.admits_settings(&tenant, &limits, 0, 10), Ok(()));
        let over = TenantUsage { settings_bytes: 500, ..usage };
        assert_eq!(over.admits_settings(&tenant, &limits, 0, -1), Ok(()), "the limit was lowered");
        assert_eq!(usage.admits_token(&tenant, &limits).unwrap_err().limit, "tokens");
        assert_eq!(TenantUsage { tokens: 99, ..usage }.admits_token(&tenant, &limits), Ok(()));
    }
}
