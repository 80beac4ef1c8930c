//! The cluster of an embedded store: one process that owns every shard.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::mpsc;

use super::EmbeddedStore;
use crate::model::id::{EndpointId, TenantId};
use crate::model::shard::{SHARDS, Shard};
use crate::store::{Cluster, ClusterEvent, ClusterState, NodeState, ONLY_EPOCH, Result, ShardState, StoreStatus};

#[async_trait]
impl Cluster for EmbeddedStore {
    fn cluster_events(&self) -> mpsc::UnboundedReceiver<ClusterEvent> {
        // There is no other node, so nothing is ever sent.
        mpsc::unbounded_channel().1
    }

    fn leased_until(&self) -> Option<Instant> {
        None
    }

    fn lease_length(&self) -> Option<Duration> {
        None
    }

    async fn ask_owner(&self, _: &TenantId, _: EndpointId, _: String) -> Result<Option<String>> {
        Ok(None)
    }

    async fn view(&self) -> Result<ClusterState> {
        let node = NodeState { id: "1".into(), name: "embedded".into(), shards: SHARDS, lease_ms: None, is_self: true };
        let shards = Shard::all().map(|shard| ShardState { shard, node: Some(0), epoch: ONLY_EPOCH, lag_ms: 0 });
        Ok(ClusterState { nodes: vec![node], shards: shards.collect() })
    }

    fn status(&self) -> StoreStatus {
        StoreStatus { is_answering: true, shards: SHARDS, lease_ms: None, stale_writes: 0 }
    }

    async fn leave(&self) -> Result<()> {
        Ok(())
    }
}
