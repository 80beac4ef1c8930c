//! Answers the lifecycle's questions about the cluster, and carries questions to
//! other nodes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::mpsc;

use super::transaction::{bind, with_timeout};
use super::{PostgresStore, live_status};
use crate::model::id::{EndpointId, TenantId};
use crate::model::shard::{Epoch, Lease, Shard};
use crate::store::seal::Seal;
use crate::store::{Cluster, ClusterEvent, ClusterState, NodeState, PublishedStatus, Result, ShardState, StoreStatus};

/// Interval at which a node looks for the answer to its question.
const ASK_EVERY: Duration = Duration::from_millis(5);
/// How long a published delay of accepts holds unless it is published again.
const DELAY_HOLDS: Duration = Duration::from_secs(1);

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[async_trait]
impl Cluster for PostgresStore {
    fn cluster_events(&self) -> mpsc::UnboundedReceiver<ClusterEvent> {
        self.shared.notifier.listen()
    }

    fn leased_until(&self) -> Option<Instant> {
        // Before the first lease nothing may be started.
        Some(self.shared.shard_leases.leased_until().unwrap_or_else(Instant::now))
    }

    fn lease_length(&self) -> Option<Duration> {
        Some(self.shared.options.lease)
    }

    async fn ask_owner(&self, tenant: &TenantId, endpoint: EndpointId, question: String) -> Result<Option<String>> {
        let client = self.shared.connection().await?;
        let shard = i16::from(Shard::of(tenant, endpoint).0);
        let sql = "INSERT INTO posthaste.node_questions (node, question)
                   SELECT node, $2 FROM posthaste.shards WHERE shard = $1 AND node IS NOT NULL AND node <> $3
                   RETURNING no, node";
        let asked =
            with_timeout(client.query_typed_opt(sql, bind![shard, question, self.shared.shard_leases.node()])).await?;
        let Some(asked) = asked else { return Ok(None) };
        let (no, node): (i64, i64) = (asked.get(0), asked.get(1));
        let sql = "SELECT c.answer, EXISTS (SELECT FROM posthaste.nodes n JOIN posthaste.shards s ON s.node = n.id
                                            WHERE n.id = $2 AND s.shard = $3 AND n.lease_until > clock_timestamp())
                   FROM posthaste.node_questions c WHERE c.no = $1";
        let answer = loop {
            let row = with_timeout(client.query_typed_opt(sql, bind![no, node, shard])).await?;
            let Some(row) = row else { break None };
            if let Some(answer) = row.get::<_, Option<String>>(0) {
                break Some(answer);
            }
            // The node that was asked no longer owns the shard, so its answer
            // would mean nothing.
            if !row.get::<_, bool>(1) {
                break None;
            }
            tokio::time::sleep(ASK_EVERY).await;
        };
        with_timeout(client.execute_typed("DELETE FROM posthaste.node_questions WHERE no = $1", bind![no])).await?;
        Ok(answer)
    }

    async fn ask_nodes(&self, question: String, wait: Duration) -> Result<Vec<String>> {
        // No connection is held while others think: they need one of their own to answer.
        let sql = "INSERT INTO posthaste.node_questions (node, question)
                   SELECT id, $1 FROM posthaste.nodes WHERE id <> $2 AND lease_until > clock_timestamp() RETURNING no";
        let node = self.shared.shard_leases.node();
        let client = self.shared.connection().await?;
        let asked = with_timeout(client.query_typed(sql, bind![question, node])).await?;
        drop(client);
        let asked: Vec<i64> = asked.iter().map(|row| row.get(0)).collect();
        let until = Instant::now() + wait;
        let sql = "SELECT answer FROM posthaste.node_questions WHERE no = ANY($1) AND answer IS NOT NULL";
        let answers = loop {
            let client = self.shared.connection().await?;
            let rows = with_timeout(client.query_typed(sql, bind![asked.clone()])).await?;
            drop(client);
            if rows.len() == asked.len() || Instant::now() >= until {
                break rows.iter().map(|row| row.get("answer")).collect();
            }
            tokio::time::sleep(ASK_EVERY).await;
        };
        let client = self.shared.connection().await?;
        let sql = "DELETE FROM posthaste.node_questions WHERE no = ANY($1)";
        with_timeout(client.execute_typed(sql, bind![asked])).await?;
        Ok(answers)
    }

    fn holds_key(&self, check: &str) -> bool {
        self.shared.options.seal.learn(check)
    }

    fn drop_old_key(&self, check: &str) -> bool {
        let seal = &self.shared.options.seal;
        let used = seal.use_key(check).is_ok();
        used && seal.file().is_none_or(|file| Seal::end_rotation_to(file, check).is_ok())
    }

    async fn publish_status(&self, statuses: Vec<PublishedStatus>, complete: Vec<Lease>) -> Result<()> {
        live_status::publish(&self.shared, statuses, complete).await
    }

    async fn published_status(&self, endpoints: Vec<EndpointId>) -> Result<HashMap<EndpointId, Option<String>>> {
        live_status::read_published(&self.shared, &endpoints).await
    }

    async fn withdraw_status(&self) -> Result<()> {
        live_status::withdraw(&self.shared).await
    }

    async fn publish_accept_delays(&self, delays: Vec<(TenantId, Duration)>) -> Result<()> {
        let numbered: Vec<(i64, Duration)> = {
            let index = self.shared.index();
            delays.into_iter().filter_map(|(tenant, delay)| Some((index.tenant_no(&tenant)?, delay))).collect()
        };
        let tenants: Vec<i64> = numbered.iter().map(|(tenant, _)| *tenant).collect();
        let delays_ms: Vec<i64> = numbered.iter().map(|(_, delay)| millis(*delay)).collect();
        let (node, holds_ms) = (self.shared.shard_leases.node(), millis(DELAY_HOLDS));
        let client = self.shared.connection().await?;
        let sql = include_str!("sql/publish_accept_delays.sql");
        with_timeout(client.execute_typed(sql, bind![node, tenants, delays_ms, holds_ms])).await.map(|_| ())
    }

    fn publication(&self) -> u64 {
        self.shared.status.server_changes()
    }

    fn leases(&self) -> Vec<Lease> {
        let leases = &self.shared.shard_leases;
        leases.shards().into_iter().map(|shard| leases.lease(shard)).filter(|lease| lease.is_held()).collect()
    }

    fn nodes(&self) -> usize {
        self.shared.status.nodes()
    }

    async fn view(&self) -> Result<ClusterState> {
        let tx = self.shared.connections.begin_reading().await?;
        let sql =
            "SELECT n.id, n.name, (extract(epoch FROM n.lease_until - clock_timestamp()) * 1000)::bigint AS lease_ms,
                          (SELECT count(*) FROM posthaste.shards s WHERE s.node = n.id) AS shards
                   FROM posthaste.nodes n ORDER BY n.id";
        let me = self.shared.shard_leases.node();
        let rows = tx.query(sql, bind![]).await?;
        let ids: Vec<i64> = rows.iter().map(|row| row.get("id")).collect();
        let nodes = rows.iter().map(|row| NodeState {
            id: row.get::<_, i64>("id").to_string(),
            name: row.get("name"),
            lease_ms: Some(row.get("lease_ms")),
            shards: row.get::<_, i64>("shards").max(0) as usize,
            is_self: row.get::<_, i64>("id") == me,
        });
        let nodes: Vec<NodeState> = nodes.collect();
        let shards = tx.query(include_str!("sql/shards.sql"), bind![]).await?;
        let shards = shards.iter().map(|row| ShardState {
            shard: Shard(row.get::<_, i16>("shard") as u8),
            node: row.get::<_, Option<i64>>("node").and_then(|node| ids.iter().position(|id| *id == node)),
            epoch: Epoch(row.get::<_, i64>("epoch").max(0) as u64),
            lag_ms: row.get::<_, i64>("lag_ms").max(0) as u64,
        });
        let shards = shards.collect();
        tx.commit().await?;
        Ok(ClusterState { nodes, shards })
    }

    fn status(&self) -> StoreStatus {
        let owned = &self.shared.shard_leases;
        let left = owned.leased_until().map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        StoreStatus {
            is_answering: self.shared.status.is_answering(),
            shards: owned.shards().len(),
            lease_ms: Some(left.as_millis() as u64),
            stale_writes: self.shared.status.stale_writes(),
        }
    }

    fn retire(&self) {
        self.shared.status.retire();
    }

    async fn leave(&self) -> Result<()> {
        self.stop_background_tasks().await;
        let node = self.shared.shard_leases.node();
        self.shared.shard_leases.shards().iter().for_each(|shard| self.shared.shard_leases.lose(*shard));
        let tx = self.shared.begin().await?;
        tx.execute("UPDATE posthaste.shards SET node = NULL WHERE node = $1", bind![node]).await?;
        tx.execute("DELETE FROM posthaste.nodes WHERE id = $1", bind![node]).await?;
        tx.commit().await
    }
}
