//! Continues engine time over restarts, from a checkpoint that is a setting in the
//! store.
//!
//! A gateway on a shared database follows the database's time and writes no
//! checkpoints.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tracing::warn;

use super::store_handle::StoreHandle;
use crate::clock::{Clock, ClockCheckpoint, EngineClock};
use crate::store::Store;
use crate::store::embedded::inspect::CLOCK_SETTING;

/// Interval at which the wall clock is checked for jumps.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Longest time between two checkpoints. After a reboot with a wall clock that is
/// behind, engine time continues from the last one.
const WRITE_INTERVAL: Duration = Duration::from_secs(600);

/// Sets the clock to continue this store's engine time; returns what writes its
/// checkpoints.
pub async fn resume_clock(handle: &StoreHandle, clock: Arc<EngineClock>) -> anyhow::Result<Option<ClockCheckpointer>> {
    if handle.is_shared() {
        return Ok(None);
    }
    let store = handle.store();
    let text = store.setting(CLOCK_SETTING).await?;
    let checkpoint: Option<ClockCheckpoint> =
        text.map(|text| serde_json::from_str(&text)).transpose().context("the note of the store's clock is damaged")?;
    clock.resume(checkpoint.as_ref(), handle.latest_accepted().await?);
    let checkpoints = ClockCheckpointer { store, clock };
    checkpoints.write().await;
    Ok(Some(checkpoints))
}

/// Writes the checkpoints that engine time continues from.
#[derive(Clone)]
pub struct ClockCheckpointer {
    store: Arc<dyn Store>,
    clock: Arc<EngineClock>,
}

impl ClockCheckpointer {
    /// Writes a checkpoint whenever the wall clock jumped, and every ten minutes.
    pub async fn run(self) {
        let (mut jumps, mut written) = (self.clock.jumps(), tokio::time::Instant::now());
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            self.clock.now();
            if self.clock.jumps() != jumps || written.elapsed() >= WRITE_INTERVAL {
                (jumps, written) = (self.clock.jumps(), tokio::time::Instant::now());
                self.write().await;
            }
        }
    }

    /// Writes a checkpoint now.
    pub async fn write(&self) {
        let text = serde_json::to_string(&self.clock.checkpoint()).expect("a checkpoint is plain data");
        if let Err(problem) = self.store.put_setting(CLOCK_SETTING, text).await {
            warn!("clock checkpoint could not be written; it is written again within 10m: {problem}");
        }
    }
}
