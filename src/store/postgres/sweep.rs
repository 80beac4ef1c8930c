//! Cancels what waited for a deleted endpoint.
//!
//! Deleting marks the endpoint; from that moment its waiting deliveries are
//! read as cancelled and none is attempted. This makes the rows say so, a
//! thousand at a time, so that deleting an endpoint with a million of them
//! holds no one up. Any number of nodes may do it at once.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tracing::warn;

use super::PostgresState;
use super::read_query::read_rows;
use super::transaction::bind;
use crate::store::Result;

const ROWS_PER_STEP: i64 = 1_000;

/// An accept that was under way when the endpoint was deleted may still add
/// to what waits. No transaction of ours lasts as long as this, so what is
/// not there then will never be.
const ACCEPTS_END_WITHIN: Duration = Duration::from_secs(60);

impl PostgresState {
    /// Starts a sweep in the background. It keeps no store open that is being
    /// closed.
    pub(super) fn start_sweep(self: &Arc<Self>) {
        let shared = Arc::downgrade(self);
        tokio::spawn(async move {
            if let Err(problem) = sweep(&shared).await {
                warn!("cancelling the deliveries of a deleted endpoint stopped, and goes on later: {problem}");
            }
        });
    }
}

/// Sweeps all that is deleted, and once more when nothing can be added to it.
async fn sweep(shared: &Weak<PostgresState>) -> Result<()> {
    let Some(endpoints) = cancel_all(shared).await? else { return Ok(()) };
    if endpoints.is_empty() {
        return Ok(());
    }
    tokio::time::sleep(ACCEPTS_END_WITHIN).await;
    cancel_all(shared).await?;
    let Some(shared) = shared.upgrade() else { return Ok(()) };
    let tx = shared.begin().await?;
    tx.execute(include_str!("sql/swept.sql"), bind![endpoints]).await?;
    tx.commit().await
}

/// Cancels what waits for any deleted endpoint; returns those endpoints, or
/// nothing when the store is closed.
async fn cancel_all(shared: &Weak<PostgresState>) -> Result<Option<Vec<i64>>> {
    let Some(store) = shared.upgrade() else { return Ok(None) };
    let found = read_rows(&store, include_str!("sql/unswept.sql"), &[]).await?;
    let endpoints: Vec<i64> = found.iter().map(|row| row.get(0)).collect();
    drop(store);
    for endpoint in &endpoints {
        loop {
            let Some(store) = shared.upgrade() else { return Ok(None) };
            let tx = store.begin().await?;
            let moved = tx.execute(include_str!("sql/sweep.sql"), bind![*endpoint, ROWS_PER_STEP]).await?;
            tx.commit().await?;
            if moved == 0 {
                break;
            }
        }
    }
    Ok(Some(endpoints))
}
