//! Shards, epochs, and the leases that give a node the right to write.
//!
//! Every endpoint belongs to one of 256 shards. The owner of a shard alone
//! dispatches its endpoints, and every write of an owner carries the epoch it
//! was given; a store refuses an epoch that is no longer current. The embedded
//! store owns all shards at epoch 1.

use super::id::{EndpointId, TenantId};

/// One of the 256 shards that endpoints are divided into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shard(pub u8);

/// The number of owners that a shard has had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u64);

/// The right to dispatch a shard's endpoints and to write their outcomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease {
    /// Shard that the lease is for.
    pub shard: Shard,
    /// Epoch in which the lease was granted.
    pub epoch: Epoch,
}

impl Lease {
    /// Returns the placeholder for a shard that the node does not own.
    pub fn none(shard: Shard) -> Self {
        Self { shard, epoch: Epoch(0) }
    }

    /// Whether the node owns the shard.
    pub fn is_held(self) -> bool {
        self.epoch > Epoch(0)
    }
}

/// Number of shards in all.
pub const SHARDS: usize = 256;

impl Shard {
    /// Returns all shards in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).map(Self)
    }

    /// Returns the shard of an endpoint. It must never change, so it is FNV-1a over
    /// the tenant's id and the endpoint's bytes, not the standard library's hash.
    pub fn of(tenant: &TenantId, endpoint: EndpointId) -> Self {
        let bytes = tenant.as_str().bytes().chain(*endpoint.0.as_bytes());
        let hash =
            bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        // Folding the high bits into the low ones spreads endpoints evenly.
        let folded = hash ^ (hash >> 32);
        Self(((folded ^ (folded >> 16)) & 0xff) as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    #[test]
    fn endpoints_spread_over_all_shards() {
        let tenant: TenantId = "default".parse().unwrap();
        let mut counts = [0u32; 256];
        for n in 0..25_600u128 {
            let endpoint = EndpointId::mint(Timestamp::UNIX_EPOCH, n * 7919);
            counts[usize::from(Shard::of(&tenant, endpoint).0)] += 1;
        }
        // 100 expected in each; a binomial stays well inside these bounds.
        assert!(counts.iter().all(|count| (50..=160).contains(count)), "{counts:?}");
    }
}
