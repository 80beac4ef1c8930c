//! Cancels the deliveries that wait for a deleted endpoint.
//!
//! Deleting only marks the endpoint. From then on its waiting deliveries count
//! as cancelled, and none is attempted. The sweep writes this into their rows,
//! a thousand at a time, so that deleting an endpoint with a million deliveries
//! delays nobody. Several nodes may sweep at once.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tracing::warn;

use super::PostgresState;
use super::read_query::read_rows;
use super::transaction::bind;
use crate::store::Result;

const ROWS_PER_STEP: i64 = 1_000;

/// Time after which no transaction that began before the deletion is still
/// open. Until then an accept may still add deliveries for the endpoint.
const ACCEPTS_END_WITHIN: Duration = Duration::from_secs(60);

impl PostgresState {
    /// Starts a sweep in the background. It ends when the store is closed.
    pub(super) fn start_sweep(self: &Arc<Self>) {
        let shared = Arc::downgrade(self);
        tokio::spawn(async move {
            if let Err(problem) = sweep(&shared).await {
                warn!("deliveries to a deleted endpoint could not all be cancelled; the rest follows later: {problem}");
            }
        });
    }
}

/// Sweeps all deleted endpoints, and once more when nothing can be added to
/// them.
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

/// Cancels the waiting deliveries of all deleted endpoints. Returns those
/// endpoints, or nothing if the store is closed.
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
