//! Writes the state of a tenant's ingest rate into response headers.
//!
//! The headers are those of draft-ietf-httpapi-ratelimit-headers:
//! `RateLimit-Policy` has the quota (`q` events at once, full again after `w`
//! seconds), `RateLimit` what is left of it (`r`) and the seconds until it is
//! full again (`t`).

use std::time::Duration;

use http::{HeaderName, HeaderValue};

use super::SharedApiState;
use crate::lifecycle::intake::RateStatus;
use crate::model::tenant::{Tenant, TenantQuota};

/// The headers `RateLimit-Policy` and `RateLimit`.
pub type RateLimitHeaders = [(HeaderName, HeaderValue); 2];

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATUS: HeaderName = HeaderName::from_static("ratelimit");

/// Returns the headers for a tenant with an ingest rate of its own. The default
/// rate is too high to matter, so its headers are left out.
pub fn rate_limit_headers(api: &SharedApiState, tenant: &Tenant) -> Option<RateLimitHeaders> {
    let is_default = tenant.quota.ingest == TenantQuota::default().ingest;
    let rate = api.gateway.ingest_rate(tenant);
    (!is_default).then(|| headers(&api.gateway.intake.rate_status(&tenant.id, rate, api.gateway.clock.now())))
}

/// Returns the headers for this state of a rate.
pub fn headers(status: &RateStatus) -> RateLimitHeaders {
    let RateStatus { rate, left, full_in } = *status;
    let window = whole_seconds(Duration::from_secs_f64(f64::from(rate.burst) / rate.per_second)).max(1);
    let value = |text: String| HeaderValue::try_from(text).expect("digits and letters are a header value");
    [
        (POLICY, value(format!(r#""ingest";q={};w={window}"#, rate.burst))),
        (STATUS, value(format!(r#""ingest";r={left};t={}"#, whole_seconds(full_in)))),
    ]
}

/// Returns a duration in seconds, rounded up, so that a caller who waits that
/// long does not come early.
pub fn whole_seconds(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::rate::Rate;

    #[test]
    fn the_headers_are_structured_fields_in_whole_seconds() {
        let written = |per_second, burst, left, full_in| {
            let status = RateStatus { rate: Rate { per_second, burst }, left, full_in: Duration::from_millis(full_in) };
            headers(&status).map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        };
        assert_eq!(
            written(50.0, 100, 7, 1_801),
            [r#"ratelimit-policy: "ingest";q=100;w=2"#, r#"ratelimit: "ingest";r=7;t=2"#]
        );
        assert_eq!(
            written(0.5, 1, 0, 2_000),
            [r#"ratelimit-policy: "ingest";q=1;w=2"#, r#"ratelimit: "ingest";r=0;t=2"#]
        );
        assert_eq!(
            written(1_000.0, 10, 10, 0),
            [r#"ratelimit-policy: "ingest";q=10;w=1"#, r#"ratelimit: "ingest";r=10;t=0"#]
        );
    }
}
