//! Room: whether a tenant may store more, and have more wait.
//!
//! A tenant has limits of its own, if the operator set some. Besides, when the
//! disk runs short, those who have stored the most are refused first: what is
//! left before the reserve belongs to the others. So no tenant can use up what
//! all share.

use super::Gateway;
use super::intake::IncomingUsage;
use crate::model::id::TenantId;
use crate::model::limits::{TenantUsage, stored_bytes};
use crate::model::size::Size;
use crate::model::tenant::Tenant;
use crate::store::RoutedEvent;

/// A tenant may have stored this many times what is left before the reserve.
const PART: u64 = 8;

/// Why a tenant may not hand in more now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StorageRefusal {
    /// As many deliveries wait as may.
    #[error(
        "{waiting} deliveries of tenant {tenant} wait, these events would add {more}, and at most {most} may wait \
         (limits.waiting); wait until some are delivered, or ask the operator to raise the limit"
    )]
    Backlog {
        /// Whose they are.
        tenant: TenantId,
        /// How many wait.
        waiting: u64,
        /// How many these would add.
        more: u64,
        /// The limit.
        most: u64,
    },
    /// As much is stored as may be.
    #[error(
        "the events of tenant {tenant} take up {used} of at most {most} (limits.stored_bytes), and these {more} more; \
         wait until old ones are forgotten, or ask the operator to raise the limit"
    )]
    Stored {
        /// Whose they are.
        tenant: TenantId,
        /// What they take up.
        used: Size,
        /// What these would add.
        more: Size,
        /// The limit.
        most: Size,
    },
    /// The disk runs short, and this tenant has stored the most.
    #[error(
        "the disk runs short and the events of tenant {tenant} take up {used}, more than its part, so only smaller \
         tenants may store more; deliveries go on"
    )]
    Disk {
        /// Whose they are.
        tenant: TenantId,
        /// What they take up.
        used: Size,
    },
}

/// Takes events of a tenant in, if there is room for them. What is returned is
/// held until they are written, so that requests that come together count.
pub fn take<'a>(
    gateway: &'a Gateway,
    tenant: &Tenant,
    events: &[RoutedEvent],
) -> Result<Option<IncomingUsage<'a>>, StorageRefusal> {
    let limits = &tenant.limits;
    let left = gateway.space.left(gateway.clock.now());
    let is_short = left.is_some_and(|left| gateway.store.stored_in_all() > left.saturating_mul(PART));
    let bytes = events.iter().map(|new| stored_bytes(new.event.data.len(), new.targets.len())).sum();
    if limits.waiting.is_none() && limits.stored_bytes.is_none() && !is_short {
        gateway.space.take(bytes);
        return Ok(None);
    }
    let deliveries = events.iter().map(|new| new.targets.len() as u64).sum();
    let (coming, (deliveries_before, bytes_before)) = gateway.intake.admit_usage(&tenant.id, deliveries, bytes);
    let usage = gateway.store.usage_here(&tenant.id).unwrap_or_default();
    let usage = TenantUsage {
        waiting: usage.waiting.map(|waiting| waiting + deliveries_before),
        stored_bytes: usage.stored_bytes + bytes_before,
        ..usage
    };
    admits(tenant, usage, deliveries, bytes)?;
    let used = usage.stored_bytes;
    if is_short && is_among_largest(gateway, &tenant.id, used, left.unwrap_or(u64::MAX)) {
        return Err(StorageRefusal::Disk { tenant: tenant.id.clone(), used: Size(used) });
    }
    gateway.space.take(bytes);
    Ok(Some(coming))
}

/// Whether a tenant has stored more than its part of what is left, and more
/// than the others on average: what is left is theirs.
fn is_among_largest(gateway: &Gateway, tenant: &TenantId, used: u64, left: u64) -> bool {
    let store = &gateway.store;
    let mean = store.stored_in_all() / store.storing_tenants().max(1);
    used > left.saturating_mul(PART) && used > mean && !store.is_only_tenant(tenant)
}

/// Whether a tenant's own limits allow so much more. What is not counted yet
/// is let in.
fn admits(tenant: &Tenant, usage: TenantUsage, deliveries: u64, bytes: u64) -> Result<(), StorageRefusal> {
    let (id, limits) = (&tenant.id, &tenant.limits);
    if let Some((most, waiting)) = limits.waiting.zip(usage.waiting)
        && deliveries > 0
        && waiting + deliveries > most
    {
        return Err(StorageRefusal::Backlog { tenant: id.clone(), waiting, more: deliveries, most });
    }
    if let Some(most) = limits.stored_bytes.filter(|most| usage.stored_bytes + bytes > most.0) {
        let (used, more) = (Size(usage.stored_bytes), Size(bytes));
        return Err(StorageRefusal::Stored { tenant: id.clone(), used, more, most });
    }
    Ok(())
}
