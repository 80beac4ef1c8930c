//! Leases shards: renews the node's lease, claims its share of the shards, and
//! hands over what is more than that.

use std::time::Instant;

use tokio::sync::oneshot;
use tracing::{info, warn};

use super::MembershipTask;
use super::registration::register;
use crate::model::shard::{Epoch, Lease, SHARDS, Shard};
use crate::store::postgres::due::{self, log_uncounted, recount};
use crate::store::postgres::figures::end_lost_writer;
use crate::store::postgres::transaction::{bind, with_timeout};
use crate::store::{ClusterEvent, Result};

impl MembershipTask {
    /// Renews the lease, removes nodes whose lease has ended, and claims or hands
    /// over shards.
    pub(super) async fn renew_and_balance(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        let began = Instant::now();
        let node = shared.shard_leases.node();
        let lease = shared.options.lease;
        let leased_until = shared.shard_leases.leased_until();
        let tx = shared.begin().await?;
        if tx.query_opt(include_str!("../sql/renew.sql"), bind![node, lease.as_secs_f64()]).await?.is_none() {
            tx.roll_back().await;
            return self.rejoin().await;
        }
        for row in tx.query(include_str!("../sql/remove_expired_nodes.sql"), bind![node]).await? {
            let (id, name): (i64, &str) = (row.get(0), row.get(1));
            warn!(node = id, "the lease of node {id} ({name}) ended without renewal; its shards are free");
            end_lost_writer(&tx, id).await?;
        }
        let nodes = tx.query("SELECT id FROM posthaste.nodes ORDER BY id", bind![]).await?;
        let nodes: Vec<i64> = nodes.iter().map(|row| row.get(0)).collect();
        let held = tx.query("SELECT shard, epoch FROM posthaste.shards WHERE node = $1", bind![node]).await?;
        let share = if shared.status.is_retiring() { 0 } else { shards_for_node(&nodes, node) };
        let mut gained = Vec::new();
        if held.len() < share {
            let most = (share - held.len()) as i64;
            let claimed = tx.query(include_str!("../sql/claim_shards.sql"), bind![node, most]).await?;
            gained.extend(claimed.iter().map(lease_from));
        }
        tx.commit().await?;
        match leased_until {
            // Other nodes saw the old lease until the commit, and it ended
            // meanwhile: they may have changed something without waiting for
            // this node.
            Some(until) if until <= Instant::now() => return self.rejoin().await,
            Some(_) => {}
            // Joining was interrupted before the catalog was read.
            None => shared.refresh_catalog().await?,
        }
        // Counted from before the renewal was sent, with a margin for clocks
        // that run at different speeds.
        shared.shard_leases.renew(began + lease - lease / 20);
        self.renewed_at = began;
        // A claim counts even if the answer to its commit got lost.
        gained.extend(held.iter().map(lease_from).filter(|lease| shared.shard_leases.lease(lease.shard) != *lease));
        if !gained.is_empty() {
            self.take_over(gained).await?;
        }
        let surplus = shared.shard_leases.shards().len().saturating_sub(self.leaving.len()).saturating_sub(share);
        self.hand_over(surplus);
        Ok(())
    }

    /// Takes over shards that this node has just claimed.
    async fn take_over(&mut self, leases: Vec<Lease>) -> Result<()> {
        let shared = self.shared.clone();
        let shards: Vec<Shard> = leases.iter().map(|lease| lease.shard).collect();
        let numbers: Vec<i16> = shards.iter().map(|shard| i16::from(shard.0)).collect();
        let were_owned = leases.iter().any(|lease| lease.epoch > Epoch(1));
        // Own the shards first and read then, so that an event accepted here
        // meanwhile is either dispatched from memory or found by the read.
        shared.index_mut().mark_uncounted(&shards);
        leases.into_iter().for_each(|lease| shared.shard_leases.gain(lease));
        shared.watermarks.clear();
        // Read what the last owner changed a moment ago, too.
        let known = match shared.refresh_catalog().await {
            Ok(()) => shared.refresh_health(&numbers).await,
            Err(problem) => Err(problem),
        };
        if let Err(problem) = known {
            shards.iter().for_each(|shard| shared.shard_leases.lose(*shard));
            return Err(problem);
        }
        let due = match due::earliest_due(&shared, numbers.clone()).await {
            Ok(due) => due,
            Err(problem) => {
                // The lifecycle was not told, so do not own them: the next step
                // tries again.
                shards.iter().for_each(|shard| shared.shard_leases.lose(*shard));
                return Err(problem);
            }
        };
        info!(shards = shards.len(), owned = shared.shard_leases.shards().len(), "gained {} shards", shards.len());
        shared.notifier.send(ClusterEvent::Gained { shards, due, were_owned });
        shared.start_sweep();
        self.counting = Some(tokio::spawn(async move { log_uncounted(recount(&shared, numbers, None).await) }));
        Ok(())
    }

    /// Asks the lifecycle to give up some shards.
    fn hand_over(&mut self, surplus: usize) {
        if surplus == 0 {
            return;
        }
        let shards = self.shared.shard_leases.shards().into_iter().filter(|shard| !self.leaving.contains(shard));
        // One by one, so that a request that hangs delays only its own shard.
        for shard in shards.take(surplus).collect::<Vec<_>>() {
            self.leaving.insert(shard);
            let (done, is_done) = oneshot::channel();
            self.shared.notifier.send(ClusterEvent::HandOver { shards: vec![shard], done });
            let hand_over = self.hand_over.clone();
            let shared = self.shared.clone();
            tokio::spawn(async move {
                let is_done = is_done.await.is_ok();
                // Before the lifecycle listens there is nothing in flight.
                let _ = hand_over.send((shard, is_done || !shared.notifier.has_listener()));
            });
        }
    }

    /// Gives shards back when nothing of them is in flight any more.
    pub(super) async fn finish_hand_over(&mut self, shards: Vec<Shard>) -> Result<()> {
        let numbers: Vec<i16> = shards.iter().map(|shard| i16::from(shard.0)).collect();
        for shard in &shards {
            self.shared.shard_leases.lose(*shard);
            self.leaving.remove(shard);
        }
        self.shared.notifier.send(ClusterEvent::Lost { shards });
        recount(&self.shared, Vec::new(), None).await?;
        let client = self.shared.connection().await?;
        let sql = "UPDATE posthaste.shards SET node = NULL WHERE shard = ANY($1) AND node = $2";
        with_timeout(client.execute_typed(sql, bind![numbers, self.shared.shard_leases.node()])).await?;
        Ok(())
    }

    /// Joins again as a new node, because the lease has ended. All shards are
    /// lost.
    async fn rejoin(&mut self) -> Result<()> {
        let shards = self.shared.shard_leases.shards();
        warn!(
            shards = shards.len(),
            "this node could not renew its lease in time and has lost its {} shards; it joins the cluster again",
            shards.len()
        );
        shards.iter().for_each(|shard| self.shared.shard_leases.lose(*shard));
        self.leaving.clear();
        self.shared.notifier.send(ClusterEvent::Lost { shards });
        self.shared.index_mut().recount(&[], None, |_| Some(false));
        self.seen = register(&self.shared).await?;
        self.renewed_at = Instant::now().checked_sub(self.shared.options.lease).unwrap_or_else(Instant::now);
        Ok(())
    }
}

fn lease_from(row: &tokio_postgres::Row) -> Lease {
    Lease { shard: Shard(row.get::<_, i16>(0) as u8), epoch: Epoch(row.get::<_, i64>(1).max(0) as u64) }
}

/// Returns how many shards a node should have. All nodes have the same number,
/// except that the first ones may have one more.
fn shards_for_node(nodes: &[i64], node: i64) -> usize {
    let Some(rank) = nodes.iter().position(|id| *id == node) else { return 0 };
    SHARDS / nodes.len() + usize::from(rank < SHARDS % nodes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shard_is_in_somebodys_share_and_shares_differ_by_one_at_most() {
        for count in 1..=300 {
            let nodes: Vec<i64> = (0..count).map(|n| n * 7).collect();
            let shares: Vec<usize> = nodes.iter().map(|node| shards_for_node(&nodes, *node)).collect();
            assert_eq!(shares.iter().sum::<usize>(), SHARDS);
            let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
            assert!(most - least <= 1, "{shares:?}");
        }
        assert_eq!(shards_for_node(&[1, 2], 3), 0, "whoever is not in the list has none");
    }
}
