//! Merges the changes of the number of dead letters into the counts.
//!
//! Triggers of the table `dead` write the changes, in the transaction that
//! changes it (migration 6). The owner of the first shard merges them, so
//! that what a read adds up stays small.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tracing::debug;

use super::PostgresState;
use super::read_query::read_one;
use super::transaction::bind;
use crate::model::shard::Shard;
use crate::store::Result;

/// Interval at which changes are merged.
const EVERY: Duration = Duration::from_secs(5);
/// Number of changes that one transaction merges.
const STEP: i64 = 10_000;

/// Starts to merge changes in the background.
pub fn start_merging_counts(shared: &Arc<PostgresState>) -> JoinHandle<()> {
    let shared = shared.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(EVERY).await;
            if shared.shard_leases.holds(Shard(0))
                && let Err(problem) = merge_all(&shared).await
            {
                debug!(
                    "changes of the number of dead letters were not merged into the counts; trying again soon: {problem}"
                );
            }
        }
    })
}

/// Merges all changes that are there.
pub async fn merge_all(shared: &PostgresState) -> Result<()> {
    let has_changes = "SELECT 1 FROM posthaste.dead_letter_count_changes LIMIT 1";
    if read_one(shared, has_changes, &[]).await?.is_none() {
        return Ok(());
    }
    loop {
        let tx = shared.begin().await?;
        let merged: i64 = tx.query(include_str!("sql/merge_dead_letter_counts.sql"), bind![STEP]).await?[0].get(0);
        if merged < STEP {
            tx.execute("DELETE FROM posthaste.dead_letter_counts WHERE count = 0", &[]).await?;
        }
        tx.commit().await?;
        if merged < STEP {
            return Ok(());
        }
    }
}
