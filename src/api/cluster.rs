//! Shows the nodes that share the store, and the shards that each of them owns.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::SharedApiState;
use super::problem::{Problem, Problems};
use crate::lifecycle::dispatch::lag::BlockedMs;
use crate::lifecycle::node_questions::shard_lags;
use crate::store::{NodeState, ShardState};

/// The nodes and the shards at this moment.
#[derive(Serialize, ToSchema)]
pub struct ClusterView {
    /// The nodes, by id.
    nodes: Vec<NodeView>,
    /// The 256 shards that endpoints are divided into, in order.
    shards: Vec<ShardView>,
}

/// A node: one process of the gateway.
#[derive(Serialize, ToSchema)]
pub struct NodeView {
    /// Its id; a process that starts again, or comes back after its lease ended, has another.
    id: String,
    /// Name of the node, for people.
    name: String,
    /// How many shards it owns.
    shards: usize,
    /// How long its lease still lasts, in milliseconds; below zero, it has ended. Null where there are no leases.
    lease_ms: Option<i64>,
    /// Whether it is the node that answers this.
    #[serde(rename = "self")]
    is_self: bool,
}

/// One of the parts that endpoints are divided into.
#[derive(Serialize, ToSchema)]
pub struct ShardView {
    /// Its number, 0 to 255.
    #[schema(value_type = u8)]
    shard: u8,
    /// The id of the node that owns it; null while nobody does.
    node: Option<String>,
    /// How many owners it has had.
    epoch: u64,
    /// How long the oldest delivery that could start has waited, in milliseconds.
    lag_ms: u64,
    /// For how long the oldest delivery that is held back has been due, by what holds it; null where its owner did not answer in time, and `lag_ms` then counts what only its owner knows to be held.
    held_ms: Option<BlockedMs>,
}

/// Show the nodes and the shards
///
/// Every endpoint belongs to one shard, and whichever node owns that alone delivers to it.
#[utoipa::path(
    get, path = "/v1/cluster", operation_id = "get_cluster", tag = "status",
    responses((status = 200, body = ClusterView), Problems),
    security(("token" = ["admin"])),
)]
pub async fn show(State(api): State<SharedApiState>) -> Result<Json<ClusterView>, Problem> {
    let view = api.gateway.store.view().await?;
    let lags = shard_lags(&api.gateway).await;
    let owner = |shard: &ShardState| shard.node.and_then(|index| view.nodes.get(index)).map(|node| node.id.clone());
    let shards = view.shards.iter().map(|state| ShardView {
        shard: state.shard.0,
        node: owner(state),
        epoch: state.epoch.0,
        lag_ms: lags.get(&state.shard).map_or(state.lag_ms, |lag| lag.lag_ms),
        held_ms: lags.get(&state.shard).map(|lag| lag.held_ms),
    });
    let shards = shards.collect();
    let nodes = view.nodes.into_iter().map(|NodeState { id, name, shards, lease_ms, is_self }| NodeView {
        id,
        name,
        shards,
        lease_ms,
        is_self,
    });
    Ok(Json(ClusterView { nodes: nodes.collect(), shards }))
}
