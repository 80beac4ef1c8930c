//! The nodes that share the store, and which shards each of them owns.

use std::collections::HashMap;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::Api;
use super::problem::{Problem, Problems};
use crate::model::shard::Shard;
use crate::store::{Node, ShardView as Known};

/// The nodes and the shards at this moment.
#[derive(Serialize, ToSchema)]
pub struct ClusterView {
    /// The nodes, by id.
    nodes: Vec<NodeView>,
    /// The 256 shards that endpoints are divided into, in order.
    shards: Vec<ShardView>,
}

/// One process.
#[derive(Serialize, ToSchema)]
pub struct NodeView {
    /// Its id; a process that starts again, or comes back after its lease ended, has another.
    id: String,
    /// What it calls itself.
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
    /// For how long the oldest of what could go has been due, in milliseconds.
    lag_ms: u64,
}

/// Show the nodes and the shards
///
/// Every endpoint belongs to one shard, and whichever node owns that alone delivers to it.
#[utoipa::path(
    get, path = "/v1/cluster", operation_id = "show_cluster", tag = "status",
    responses((status = 200, body = ClusterView), Problems),
    security(("token" = ["admin"])),
)]
pub async fn show(State(api): State<Api>) -> Result<Json<ClusterView>, Problem> {
    let view = api.gateway.store.view().await?;
    // A store of one process leaves it to the process to say how far behind it is.
    let felt = match api.gateway.store.lease_length() {
        None => lags(&api),
        Some(_) => HashMap::new(),
    };
    let lag = |known: &Known| felt.get(&known.shard).copied().unwrap_or(known.lag_ms);
    let node = |known: &Known| known.node.and_then(|place| view.nodes.get(place)).map(|node| node.id.clone());
    let shards = view.shards.iter().map(|known| ShardView {
        shard: known.shard.0,
        node: node(known),
        epoch: known.epoch.0,
        lag_ms: lag(known),
    });
    let shards = shards.collect();
    let nodes = view.nodes.into_iter().map(|Node { id, name, shards, lease_ms, is_self }| NodeView {
        id,
        name,
        shards,
        lease_ms,
        is_self,
    });
    Ok(Json(ClusterView { nodes: nodes.collect(), shards }))
}

fn lags(api: &Api) -> HashMap<Shard, u64> {
    let now = api.gateway.clock.now().as_millisecond();
    let due = api.gateway.dispatcher.oldest_due_by_shard();
    due.into_iter().map(|(shard, at)| (shard, u64::try_from(now - at.as_millisecond()).unwrap_or(0))).collect()
}
