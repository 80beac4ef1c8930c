//! Copies of a store that is in use.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;

use super::Result;
use crate::clock::Clock;
use crate::model::backup::BackupManifest;

/// Error text for what only an embedded store can do.
pub const BACK_UP_POSTGRES: &str = "everything is in PostgreSQL, which is backed up with its own tools: pg_dump, or a \
                                    base backup with the archive of its log; docs/backup.md has both, step by step";

/// A store that can copy itself while it is in use.
#[async_trait]
pub trait StoreCopier: Send + Sync {
    /// Returns the size of the store's file in bytes.
    async fn size(&self) -> Result<u64>;

    /// Makes a backup: a new folder of this name with a checked copy of the store
    /// and its manifest. The folder has its name only once it is complete.
    async fn back_up(
        &self,
        folder: &Path,
        clock: Arc<dyn Clock>,
        progress: Arc<CopyProgress>,
    ) -> anyhow::Result<BackupManifest>;
}

/// Progress of a running backup.
#[derive(Debug, Default)]
pub struct CopyProgress {
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
    is_checking: AtomicBool,
    is_given_up: AtomicBool,
}

impl CopyProgress {
    /// Notes how many bytes are copied, and how many there are.
    pub fn copied(&self, done: u64, total: u64) {
        self.done_bytes.store(done, Ordering::Relaxed);
        self.total_bytes.store(total, Ordering::Relaxed);
    }

    /// Notes that everything is copied and is being checked.
    pub fn check(&self) {
        self.is_checking.store(true, Ordering::Relaxed);
    }

    /// Returns how many bytes are copied, and how many there are.
    pub fn bytes(&self) -> (u64, u64) {
        (self.done_bytes.load(Ordering::Relaxed), self.total_bytes.load(Ordering::Relaxed))
    }

    /// Asks for the backup to be given up, because the gateway stops.
    pub fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }

    /// Whether the backup is to be given up.
    pub fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
    }

    /// Whether everything is copied and is being checked.
    pub fn is_checking(&self) -> bool {
        self.is_checking.load(Ordering::Relaxed)
    }
}
