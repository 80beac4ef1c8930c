//! Records which shards this node owns at this moment.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use crate::model::shard::{Epoch, Lease, SHARDS, Shard};

/// This node's id, its shards with their epochs, and the end of its lease.
#[derive(Debug)]
pub struct ShardLeases {
    node: AtomicI64,
    /// Epoch of each shard; 0 for a shard that is not this node's.
    epochs: [AtomicU64; SHARDS],
    leased_until: Mutex<Option<Instant>>,
}

impl Default for ShardLeases {
    fn default() -> Self {
        let epochs = std::array::from_fn(|_| AtomicU64::new(0));
        Self { node: AtomicI64::new(0), epochs, leased_until: Mutex::new(None) }
    }
}

impl ShardLeases {
    /// Returns this node's id.
    pub fn node(&self) -> i64 {
        self.node.load(Ordering::Acquire)
    }

    /// Records that the node has joined under this id. It has no lease yet.
    pub fn join(&self, node: i64) {
        self.node.store(node, Ordering::Release);
        *self.lock_leased_until() = None;
    }

    /// Returns this node's lease of a shard.
    pub fn lease(&self, shard: Shard) -> Lease {
        Lease { shard, epoch: Epoch(self.epochs[usize::from(shard.0)].load(Ordering::Acquire)) }
    }

    /// Whether this node owns a shard.
    pub fn holds(&self, shard: Shard) -> bool {
        self.lease(shard).is_held()
    }

    /// Records that this node owns a shard, under this epoch.
    pub fn gain(&self, lease: Lease) {
        self.epochs[usize::from(lease.shard.0)].store(lease.epoch.0, Ordering::Release);
    }

    /// Records that this node no longer owns a shard.
    pub fn lose(&self, shard: Shard) {
        self.epochs[usize::from(shard.0)].store(0, Ordering::Release);
    }

    /// Returns all shards that this node owns.
    pub fn shards(&self) -> Vec<Shard> {
        Shard::all().filter(|shard| self.holds(*shard)).collect()
    }

    /// Returns the numbers of these shards, as the tables hold them.
    pub fn numbers(&self) -> Vec<i16> {
        self.shards().iter().map(|shard| i16::from(shard.0)).collect()
    }

    /// Returns the time until which this node surely owns its shards.
    pub fn leased_until(&self) -> Option<Instant> {
        *self.lock_leased_until()
    }

    /// Records that the lease was renewed until this time.
    pub fn renew(&self, until: Instant) {
        let mut known = self.lock_leased_until();
        *known = Some(known.map_or(until, |known| known.max(until)));
    }

    fn lock_leased_until(&self) -> parking_lot::MutexGuard<'_, Option<Instant>> {
        self.leased_until.lock()
    }
}
