//! What a store reports to a node about its shards and about other nodes.
//!
//! The store of a single process owns everything for ever and has nothing to
//! tell. A store that many nodes share leases shards to nodes, and moves them.
//! It reports this to the lifecycle as [`ClusterEvent`]s, in order, and waits
//! for the answer to those that have one.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};

use super::{ArrivedDelivery, Result};
use crate::model::id::{EndpointId, TenantId};
use crate::model::shard::{Epoch, Lease, Shard};

/// Knows the nodes of the cluster and their shards.
#[async_trait]
pub trait Cluster: Send + Sync {
    /// Returns the channel of this node's cluster events. There is one listener:
    /// a second call gets an empty channel.
    fn cluster_events(&self) -> mpsc::UnboundedReceiver<ClusterEvent>;

    /// Returns the time until which this node surely owns its shards, by the
    /// monotonic clock; without one, it owns them for ever. A request that may
    /// last longer must not be started, and one that is still open then must be
    /// dropped.
    fn leased_until(&self) -> Option<Instant>;

    /// Returns how long a fresh lease lasts, or nothing if there are no leases.
    /// What takes longer than that never fits into a lease.
    fn lease_length(&self) -> Option<Duration>;

    /// Asks the node that owns an endpoint. Returns nothing if no other node
    /// owns it at the moment, or if that node ends before it answers. The
    /// lifecycle decides what questions and answers mean; the store only
    /// carries them.
    async fn ask_owner(&self, tenant: &TenantId, endpoint: EndpointId, question: String) -> Result<Option<String>>;

    /// Asks every other node whose lease has not ended. Returns the answers as
    /// soon as all have answered, or when this time has passed.
    async fn ask_nodes(&self, _question: String, _wait: Duration) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Whether this node has the master key of this check text, if need be after a
    /// look into its key file.
    fn holds_key(&self, _check: &str) -> bool {
        true
    }

    /// Takes the old master key out of this node's key file, if its first key is that
    /// of this check text. Returns whether no old key is left.
    fn drop_old_key(&self, _check: &str) -> bool {
        true
    }

    /// Publishes the live status of this node's endpoints, in the place of what
    /// it published of them before, and marks the shards of some leases as
    /// published completely. The lifecycle decides what the status means.
    async fn publish_status(&self, _statuses: Vec<PublishedStatus>, _complete: Vec<Lease>) -> Result<()> {
        Ok(())
    }

    /// Returns what the present owners of these endpoints have published. An
    /// endpoint of which there is nothing to tell has no status. Endpoints
    /// whose shard is not published completely are left out.
    async fn published_status(&self, _endpoints: Vec<EndpointId>) -> Result<HashMap<EndpointId, Option<String>>> {
        Ok(HashMap::new())
    }

    /// Deletes everything that this node has published.
    async fn withdraw_status(&self) -> Result<()> {
        Ok(())
    }

    /// Publishes for how long all nodes are to hold the accepts of some tenants, in
    /// the place of what this node published before. It holds for a moment, so it is
    /// published again for as long as it is meant.
    async fn publish_accept_delays(&self, _delays: Vec<(TenantId, Duration)>) -> Result<()> {
        Ok(())
    }

    /// Returns a number that changes when what was published may be lost, so
    /// that everything has to be published anew.
    fn publication(&self) -> u64 {
        0
    }

    /// Returns the leases that this node holds, if there are leases.
    fn leases(&self) -> Vec<Lease> {
        Vec::new()
    }

    /// Returns the number of nodes, with this one.
    fn nodes(&self) -> usize {
        1
    }

    /// Reads all nodes and shards.
    async fn view(&self) -> Result<ClusterState>;

    /// Returns the status of the store, as far as this node knows it.
    fn status(&self) -> StoreStatus;

    /// Prepares to leave: from now on this node hands over each shard as soon as
    /// nothing of it is in flight, and claims none.
    fn retire(&self) {}

    /// Leaves the cluster, so that other nodes can claim its shards at once.
    /// Nothing may be in flight any more.
    async fn leave(&self) -> Result<()>;
}

/// Live status of an endpoint, as its owner publishes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedStatus {
    /// Id of the endpoint.
    pub endpoint: EndpointId,
    /// The lease under which the owner dispatches it.
    pub lease: Lease,
    /// The status, as the lifecycle wrote it.
    pub status: String,
}

/// An event that the store reports to its node. Each is applied before the next.
#[derive(Debug)]
pub enum ClusterEvent {
    /// This node owns more shards from now on.
    Gained {
        /// The gained shards.
        shards: Vec<Shard>,
        /// Their endpoints with waiting deliveries, and the first due time of
        /// each.
        due: Vec<(EndpointId, Timestamp)>,
        /// Whether another node may have called the endpoints a moment ago. If
        /// so, no burst may follow at once.
        were_owned: bool,
    },
    /// Shards are to go to another node. This node starts no more of their
    /// deliveries, and answers once none of them is in flight.
    HandOver {
        /// The shards to hand over.
        shards: Vec<Shard>,
        /// Channel for the answer.
        done: oneshot::Sender<()>,
    },
    /// This node no longer owns these shards. Whatever it holds of them is void.
    Lost {
        /// The lost shards.
        shards: Vec<Shard>,
    },
    /// Another node accepted deliveries for an endpoint of this node.
    Arrived {
        /// Id of the endpoint.
        endpoint: EndpointId,
        /// The first due time of the deliveries.
        due_at: Timestamp,
        /// Time at which to check whether the first of them has expired.
        expiry_check_at: Option<Timestamp>,
        /// How many were accepted.
        count: u64,
        /// The deliveries, unless they are too many to name, or may not start.
        deliveries: Vec<ArrivedDelivery>,
    },
    /// Other nodes ask for the accepts of these tenants to be held for so long, and
    /// for those of no other tenant.
    AcceptsDelayed {
        /// Longest delay of each tenant.
        delays: HashMap<TenantId, Duration>,
    },
    /// Another node changed the catalog, and this node's catalog shows the
    /// change already. This node answers once it is in force.
    Changed {
        /// Endpoints changed or deleted.
        endpoints: Vec<EndpointId>,
        /// Tenants changed or deleted.
        tenants: Vec<TenantId>,
        /// Channel for the answer.
        done: oneshot::Sender<()>,
    },
    /// Another node asks a question.
    Asked {
        /// The question, as the other node's lifecycle wrote it.
        question: String,
        /// Channel for the answer.
        answer: oneshot::Sender<String>,
    },
}

/// The cluster at one moment.
#[derive(Debug, Clone, Default)]
pub struct ClusterState {
    /// The nodes of the cluster.
    pub nodes: Vec<NodeState>,
    /// The shards, in order of their numbers.
    pub shards: Vec<ShardState>,
}

/// One process of the cluster.
#[derive(Debug, Clone)]
pub struct NodeState {
    /// Id of the node.
    pub id: String,
    /// Name of the node: its host and process.
    pub name: String,
    /// Number of shards that the node owns.
    pub shards: usize,
    /// How long its lease still lasts, in milliseconds; below zero if it has
    /// ended, and nothing if there are no leases.
    pub lease_ms: Option<i64>,
    /// Whether this is the node that was asked.
    pub is_self: bool,
}

/// One shard of the cluster.
#[derive(Debug, Clone, Copy)]
pub struct ShardState {
    /// Number of the shard.
    pub shard: Shard,
    /// Position of its owner in the list of nodes, if it has one.
    pub node: Option<usize>,
    /// Number of owners it has had.
    pub epoch: Epoch,
    /// Age of the oldest due delivery that nothing holds back, in milliseconds.
    pub lag_ms: u64,
}

/// The status of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreStatus {
    /// Whether the store answered the last call.
    pub is_answering: bool,
    /// Number of shards that this node owns.
    pub shards: usize,
    /// How long the node's lease still lasts, if there are leases.
    pub lease_ms: Option<u64>,
    /// Number of writes refused because a shard had another owner.
    pub stale_writes: u64,
}
