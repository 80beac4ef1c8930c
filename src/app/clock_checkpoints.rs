//! Keeps engine time going over restarts: what it goes on from is a note in
//! the store.
//!
//! A gateway on a shared database follows the database's time, and keeps
//! nothing of its own.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tracing::warn;

use super::store_handle::StoreHandle;
use crate::clock::{Clock, ClockCheckpoint, EngineClock};
use crate::store::Store;

const CLOCK_NOTE: &str = "clock";
/// How often a wall clock that was set is looked for.
const LOOK: Duration = Duration::from_secs(5);
/// How often the time is written down in any case: after a reboot with a wall
/// clock that is behind, engine time goes on from here.
const WRITE: Duration = Duration::from_secs(600);

/// Sets the clock to go on from where this store's engine time was.
pub async fn resume(kept: &StoreHandle, clock: Arc<EngineClock>) -> anyhow::Result<Option<ClockCheckpointer>> {
    if kept.is_shared() {
        return Ok(None);
    }
    let store = kept.store();
    let note = store.setting(CLOCK_NOTE).await?;
    let note: Option<ClockCheckpoint> =
        note.map(|text| serde_json::from_str(&text)).transpose().context("the note of the store's clock is damaged")?;
    clock.resume(note.as_ref(), kept.latest_accepted().await?);
    let checkpoints = ClockCheckpointer { store, clock };
    checkpoints.write().await;
    Ok(Some(checkpoints))
}

/// Writes down what engine time goes on from.
#[derive(Clone)]
pub struct ClockCheckpointer {
    store: Arc<dyn Store>,
    clock: Arc<EngineClock>,
}

impl ClockCheckpointer {
    /// Writes whenever the wall clock was set, and now and then.
    pub async fn run(self) {
        let (mut jumps, mut written) = (self.clock.jumps(), tokio::time::Instant::now());
        loop {
            tokio::time::sleep(LOOK).await;
            self.clock.now();
            if self.clock.jumps() != jumps || written.elapsed() >= WRITE {
                (jumps, written) = (self.clock.jumps(), tokio::time::Instant::now());
                self.write().await;
            }
        }
    }

    /// Writes now.
    pub async fn write(&self) {
        let note = serde_json::to_string(&self.clock.checkpoint()).expect("a checkpoint is plain data");
        if let Err(problem) = self.store.put_setting(CLOCK_NOTE, note).await {
            warn!("the engine's time could not be written down, and is written again later: {problem}");
        }
    }
}
