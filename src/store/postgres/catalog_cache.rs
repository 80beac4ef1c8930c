//! The catalog as this node knows it, and which version of it that is.

use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::{Mutex, MutexGuard};

use crate::store::catalog_index::CatalogIndex;

/// The index in memory, with its version.
#[derive(Default)]
pub struct CatalogCache {
    index: RwLock<CatalogIndex>,
    /// Version of the catalog that the index shows.
    version: AtomicI64,
    /// Version that this node has acknowledged to the others.
    acknowledged: AtomicI64,
    update_lock: Mutex<()>,
}

impl CatalogCache {
    /// Returns the index for reading.
    pub fn index(&self) -> RwLockReadGuard<'_, CatalogIndex> {
        self.index.read()
    }

    /// Returns the index for a change.
    pub fn index_mut(&self) -> RwLockWriteGuard<'_, CatalogIndex> {
        self.index.write()
    }

    /// Returns the version that the index shows.
    pub fn version(&self) -> i64 {
        self.version.load(Ordering::Acquire)
    }

    /// Waits until nobody else brings the index to another version.
    pub async fn lock_version(&self) -> VersionLock<'_> {
        VersionLock { cache: self, _guard: self.update_lock.lock().await }
    }

    /// Returns the version that this node has acknowledged to the others, or 0.
    pub fn acknowledged(&self) -> i64 {
        self.acknowledged.load(Ordering::Acquire)
    }

    /// Records what this node has acknowledged to the others.
    pub fn set_acknowledged(&self, version: i64) {
        self.acknowledged.store(version, Ordering::Release);
    }
}

/// The right to bring the index to another version.
pub struct VersionLock<'a> {
    cache: &'a CatalogCache,
    _guard: MutexGuard<'a, ()>,
}

impl VersionLock<'_> {
    /// Returns the version that the index shows.
    pub fn version(&self) -> i64 {
        self.cache.version()
    }

    /// Records that the index shows this version.
    pub fn set_version(&self, version: i64) {
        self.cache.version.store(version, Ordering::Release);
    }
}
