//! Decides whether a tenant may store more events and have more deliveries wait.
//!
//! The operator may set limits per tenant. Besides, when the disk runs short,
//! the tenants that have stored the most are refused first: the space left
//! before the reserve belongs to the others. So no tenant can use up the disk
//! that all share.

use super::Gateway;
use super::intake::IncomingUsage;
use crate::model::id::TenantId;
use crate::model::limits::{TenantUsage, stored_bytes};
use crate::model::size::Size;
use crate::model::tenant::Tenant;
use crate::store::RoutedEvent;

/// When the disk runs short, a tenant may have stored this many times the
/// space that is left before the reserve.
const STORED_PER_LEFT_MAX: u64 = 8;

/// The reason why a tenant may not submit more events now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StorageRefusal {
    /// The tenant's limit of waiting deliveries is reached.
    #[error(
        "{waiting} deliveries of tenant {tenant} wait, these events would add {more}, and at most {most} may wait \
         (limits.waiting); wait until some are delivered, or ask the operator to raise the limit"
    )]
    Backlog {
        /// Tenant of the deliveries.
        tenant: TenantId,
        /// Number of waiting deliveries.
        waiting: u64,
        /// Number of deliveries the refused events would add.
        more: u64,
        /// Limit of waiting deliveries.
        most: u64,
    },
    /// The tenant's limit of stored bytes is reached.
    #[error(
        "the events of tenant {tenant} take up {used} of at most {most} (limits.stored_bytes), and these {more} more; \
         wait until old ones are forgotten, or ask the operator to raise the limit"
    )]
    Stored {
        /// Tenant of the events.
        tenant: TenantId,
        /// Bytes the tenant has stored.
        used: Size,
        /// Bytes the refused events would add.
        more: Size,
        /// Limit of stored bytes.
        most: Size,
    },
    /// The disk runs short, and this tenant is among those that stored the most.
    #[error(
        "the disk runs short and the events of tenant {tenant} take up {used}, more than its part, so only smaller \
         tenants may store more; deliveries go on"
    )]
    Disk {
        /// Tenant of the events.
        tenant: TenantId,
        /// Bytes the tenant has stored.
        used: Size,
    },
}

/// Admits events of a tenant if there is room for them. The caller keeps the
/// returned guard until they are committed, so that concurrent requests count.
pub fn admit_to_storage<'a>(
    gateway: &'a Gateway,
    tenant: &Tenant,
    events: &[RoutedEvent],
) -> Result<Option<IncomingUsage<'a>>, StorageRefusal> {
    let limits = &tenant.limits;
    let left = gateway.space.bytes_left(gateway.clock.now());
    let is_short = left.is_some_and(|left| gateway.store.stored_in_all() > left.saturating_mul(STORED_PER_LEFT_MAX));
    let bytes = events.iter().map(|new| stored_bytes(new.event.data.len(), new.targets.len())).sum();
    if limits.waiting.is_none() && limits.stored_bytes.is_none() && !is_short {
        gateway.space.count_stored(bytes);
        return Ok(None);
    }
    let deliveries = events.iter().map(|new| new.targets.len() as u64).sum();
    let (incoming, (deliveries_before, bytes_before)) = gateway.intake.admit_usage(&tenant.id, deliveries, bytes);
    let usage = gateway.store.usage_here(&tenant.id).unwrap_or_default();
    let usage = TenantUsage {
        waiting: usage.waiting.map(|waiting| waiting + deliveries_before),
        stored_bytes: usage.stored_bytes + bytes_before,
        ..usage
    };
    check_limits(tenant, usage, deliveries, bytes)?;
    let used = usage.stored_bytes;
    if is_short && is_among_largest(gateway, &tenant.id, used, left.unwrap_or(u64::MAX)) {
        return Err(StorageRefusal::Disk { tenant: tenant.id.clone(), used: Size(used) });
    }
    gateway.space.count_stored(bytes);
    Ok(Some(incoming))
}

/// Whether a tenant has stored more than [`STORED_PER_LEFT_MAX`] allows and more than the
/// average tenant. The space that is left belongs to the other tenants.
fn is_among_largest(gateway: &Gateway, tenant: &TenantId, used: u64, left: u64) -> bool {
    let store = &gateway.store;
    let mean = store.stored_in_all() / store.storing_tenants().max(1);
    used > left.saturating_mul(STORED_PER_LEFT_MAX) && used > mean && !store.is_only_tenant(tenant)
}

/// Checks a tenant's own limits. Deliveries are admitted while the waiting ones
/// are not counted yet.
fn check_limits(tenant: &Tenant, usage: TenantUsage, deliveries: u64, bytes: u64) -> Result<(), StorageRefusal> {
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
