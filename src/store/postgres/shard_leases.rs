//! What this node owns at this moment.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use crate::model::shard::{Epoch, Lease, SHARDS, Shard};

/// The node's id, its shards with their epochs, and until when that holds.
#[derive(Debug)]
pub struct ShardLeases {
    node: AtomicI64,
    /// Zero for a shard of someone else's.
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
    /// This node's id.
    pub fn node(&self) -> i64 {
        self.node.load(Ordering::Acquire)
    }

    /// The node has joined under this id, and owns nothing yet.
    pub fn join(&self, node: i64) {
        self.node.store(node, Ordering::Release);
        *self.until() = None;
    }

    /// The lease this node has on a shard.
    pub fn lease(&self, shard: Shard) -> Lease {
        Lease { shard, epoch: Epoch(self.epochs[usize::from(shard.0)].load(Ordering::Acquire)) }
    }

    /// Whether a shard is this node's.
    pub fn holds(&self, shard: Shard) -> bool {
        self.lease(shard).is_held()
    }

    /// A shard is this node's, under this epoch.
    pub fn gain(&self, lease: Lease) {
        self.epochs[usize::from(lease.shard.0)].store(lease.epoch.0, Ordering::Release);
    }

    /// A shard is no longer this node's.
    pub fn lose(&self, shard: Shard) {
        self.epochs[usize::from(shard.0)].store(0, Ordering::Release);
    }

    /// All shards that are this node's.
    pub fn shards(&self) -> Vec<Shard> {
        Shard::all().filter(|shard| self.holds(*shard)).collect()
    }

    /// The same, as the tables have them.
    pub fn numbers(&self) -> Vec<i16> {
        self.shards().iter().map(|shard| i16::from(shard.0)).collect()
    }

    /// Until when all of it is surely this node's.
    pub fn leased_until(&self) -> Option<Instant> {
        *self.until()
    }

    /// The lease was renewed.
    pub fn renew(&self, until: Instant) {
        let mut known = self.until();
        *known = Some(known.map_or(until, |known| known.max(until)));
    }

    fn until(&self) -> parking_lot::MutexGuard<'_, Option<Instant>> {
        self.leased_until.lock()
    }
}
