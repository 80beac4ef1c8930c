//! Knows whether tenants that send little share the node with one that sends
//! much.
//!
//! Slowing a loud tenant down helps only if there is a quiet one: between loud
//! ones the turns of the [`super::fair_scheduler`] are fair, and slowing all of
//! them down would only leave processors idle.
//!
//! Pure bookkeeping.

use jiff::Timestamp;

use crate::model::id::TenantId;

/// Milliseconds for which a quiet tenant that started something counts as sharing
/// the node.
const SHARED_MS: i64 = 60_000;
/// Starts within a second from which a tenant is loud.
const LOUD_STARTS: u32 = 500;

/// The number of starts of a tenant in this second and in the one before.
#[derive(Debug, Clone, Copy, Default)]
pub struct StartCount {
    second: i64,
    starts: u32,
    starts_before: u32,
}

impl StartCount {
    fn record_start(&mut self, now: Timestamp) {
        let passed = now.as_second() - self.second;
        if passed != 0 {
            self.starts_before = if passed == 1 { self.starts } else { 0 };
            (self.second, self.starts) = (now.as_second(), 0);
        }
        self.starts = self.starts.saturating_add(1);
    }

    fn is_noisy(&self) -> bool {
        self.starts.max(self.starts_before) >= LOUD_STARTS
    }
}

/// The last two quiet tenants that started something, and when.
#[derive(Debug, Default)]
pub struct QuietTenants {
    last: [Option<(TenantId, Timestamp)>; 2],
}

impl QuietTenants {
    /// Records a start of a tenant, and counts it.
    pub fn record_start(&mut self, tenant: &TenantId, count: &mut StartCount, now: Timestamp) {
        count.record_start(now);
        // Nobody is slowed down for the gateway's own events, such as self-tests.
        if tenant.is_system() {
            return;
        }
        if count.is_noisy() {
            for quiet in &mut self.last {
                quiet.take_if(|(quiet, _)| quiet == tenant);
            }
            return;
        }
        match &mut self.last {
            [Some((recent, at)), _] | [_, Some((recent, at))] if recent == tenant => *at = now,
            last => {
                last.swap(0, 1);
                last[0] = Some((tenant.clone(), now));
            }
        }
    }

    /// Whether a quiet tenant other than this one has started something lately.
    pub fn is_another_quiet_tenant_active(&self, tenant: &TenantId, now: Timestamp) -> bool {
        let is_recent = |at: Timestamp| now.as_millisecond() - at.as_millisecond() < SHARED_MS;
        self.last.iter().flatten().any(|(other, at)| other != tenant && is_recent(*at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_700_000_000_000 + millis).unwrap()
    }

    #[test]
    fn a_tenant_is_quiet_while_it_starts_little_and_for_a_minute() {
        let (a, b): (TenantId, TenantId) = ("a".parse().unwrap(), "b".parse().unwrap());
        let (mut quiet, mut starts_a, mut starts_b) =
            (QuietTenants::default(), StartCount::default(), StartCount::default());
        quiet.record_start(&TenantId::system(), &mut StartCount::default(), at(0));
        assert!(!quiet.is_another_quiet_tenant_active(&a, at(0)), "the gateway's own tenant is not counted");
        quiet.record_start(&a, &mut starts_a, at(0));
        quiet.record_start(&b, &mut starts_b, at(0));
        assert!(
            quiet.is_another_quiet_tenant_active(&a, at(59_999))
                && quiet.is_another_quiet_tenant_active(&b, at(59_999))
        );
        assert!(!quiet.is_another_quiet_tenant_active(&a, at(60_000)));
        for _ in 1..LOUD_STARTS {
            quiet.record_start(&a, &mut starts_a, at(500));
        }
        assert!(!quiet.is_another_quiet_tenant_active(&b, at(500)), "a is loud");
        assert!(quiet.is_another_quiet_tenant_active(&a, at(500)), "b is not");
        quiet.record_start(&a, &mut starts_a, at(1_000));
        assert!(!quiet.is_another_quiet_tenant_active(&b, at(1_000)), "it was loud a second ago");
        quiet.record_start(&a, &mut starts_a, at(3_000));
        assert!(quiet.is_another_quiet_tenant_active(&b, at(3_000)), "it is quiet again");
    }
}
