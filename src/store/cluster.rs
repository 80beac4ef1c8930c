//! Who owns what: what a node hears of its shards and of other nodes.
//!
//! A store of one process owns everything for ever and has nothing to tell.
//! One that many nodes share leases shards, and moves them: the lifecycle
//! hears of it as [`ClusterEvent`]s, in order, and answers those that ask for it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};

use super::Result;
use crate::model::id::{EndpointId, TenantId};
use crate::model::shard::{Epoch, Lease, Shard};

/// Knows the other nodes.
#[async_trait]
pub trait Cluster: Send + Sync {
    /// What this node hears from now on. There is one listener: a second call
    /// gets nothing.
    fn cluster_events(&self) -> mpsc::UnboundedReceiver<ClusterEvent>;

    /// Until when what this node owns is surely still its own, by the
    /// monotonic clock; for ever, without. Whatever is not over by then must
    /// not be begun, and what is still going on then must be dropped.
    fn leased_until(&self) -> Option<Instant>;

    /// How long a fresh lease lasts; nothing, where there are no leases. What
    /// takes longer than that can never lie inside one, so this says what
    /// must.
    fn lease_length(&self) -> Option<Duration>;

    /// Asks whichever node owns an endpoint. Nothing, if that is nobody at
    /// the moment, or the node ends before it answers. Words and answers are
    /// the lifecycle's own; the store only carries them.
    async fn ask_owner(&self, tenant: &TenantId, endpoint: EndpointId, question: String) -> Result<Option<String>>;

    /// Asks every other node whose lease has not ended; returns what has been
    /// answered once all have, or when this long has passed.
    async fn ask_nodes(&self, _question: String, _wait: Duration) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Publishes what this node knows of its endpoints and nobody has stored,
    /// in the place of what it published of them before; and that everything
    /// of some shards is published with it. The words are the lifecycle's own.
    async fn publish_status(&self, _statuses: Vec<PublishedStatus>, _complete: Vec<Lease>) -> Result<()> {
        Ok(())
    }

    /// What the present owners of these endpoints have published of them;
    /// nothing of one that there is nothing to tell of. Those whose shard is
    /// not published completely are left out.
    async fn published_status(&self, _endpoints: Vec<EndpointId>) -> Result<HashMap<EndpointId, Option<String>>> {
        Ok(HashMap::new())
    }

    /// Takes back everything that is published.
    async fn withdraw_status(&self) -> Result<()> {
        Ok(())
    }

    /// Changes when what was published may be lost, so that everything has to
    /// be published anew.
    fn publication(&self) -> u64 {
        0
    }

    /// The leases that this node holds, where there are leases.
    fn leases(&self) -> Vec<Lease> {
        Vec::new()
    }

    /// How many nodes there are, this one among them.
    fn nodes(&self) -> usize {
        1
    }

    /// All nodes and shards, as the store has them.
    async fn view(&self) -> Result<ClusterState>;

    /// How the store is doing, without asking it anything.
    fn status(&self) -> StoreStatus;

    /// This node is about to leave: from now on it gives its shards to others
    /// as soon as nothing of them is in flight, and takes none.
    fn retire(&self) {}

    /// Gives everything back, so that others may take it at once. Nothing is
    /// in flight any more.
    async fn leave(&self) -> Result<()>;
}

/// What an owner publishes of one of its endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedStatus {
    /// The endpoint.
    pub endpoint: EndpointId,
    /// The lease under which the owner dispatches it.
    pub lease: Lease,
    /// The owner's words.
    pub status: String,
}

/// What a node hears. Each is to be dealt with before the next.
#[derive(Debug)]
pub enum ClusterEvent {
    /// These shards are this node's from now on.
    Gained {
        /// Which.
        shards: Vec<Shard>,
        /// Their endpoints with something to do, and when the first of it is due.
        due: Vec<(EndpointId, Timestamp)>,
        /// Whether others may have called their endpoints a moment ago: then
        /// no burst may follow at once.
        were_owned: bool,
    },
    /// These are to go to another node: nothing more of them is started, and
    /// `done` is told once nothing of them is in flight.
    Wanted {
        /// Which.
        shards: Vec<Shard>,
        /// To be told.
        done: oneshot::Sender<()>,
    },
    /// These are no longer this node's. Whatever it holds of them is void.
    Lost {
        /// Which.
        shards: Vec<Shard>,
    },
    /// Another node accepted something for an endpoint of ours.
    Arrived {
        /// Which.
        endpoint: EndpointId,
        /// When it is due.
        due_at: Timestamp,
        /// When the first of it should be looked at, whatever it waits for.
        expiry_check_at: Option<Timestamp>,
    },
    /// Another node changed these; they are in the catalog already. `done`
    /// is told once that is in force here.
    Changed {
        /// Endpoints changed or deleted.
        endpoints: Vec<EndpointId>,
        /// Tenants changed or deleted.
        tenants: Vec<TenantId>,
        /// To be told.
        done: oneshot::Sender<()>,
    },
    /// Another node asks.
    Asked {
        /// What.
        question: String,
        /// Where the answer goes.
        answer: oneshot::Sender<String>,
    },
}

/// The cluster at one moment.
#[derive(Debug, Clone, Default)]
pub struct ClusterState {
    /// Its nodes.
    pub nodes: Vec<NodeState>,
    /// Its shards, in order.
    pub shards: Vec<ShardState>,
}

/// One process of the cluster.
#[derive(Debug, Clone)]
pub struct NodeState {
    /// Its id.
    pub id: String,
    /// What it calls itself: its host and process.
    pub name: String,
    /// How many shards it owns.
    pub shards: usize,
    /// How long its lease still lasts, in milliseconds; below zero, it has
    /// ended. Nothing, where there are no leases.
    pub lease_ms: Option<i64>,
    /// Whether it is the one that tells this.
    pub is_self: bool,
}

/// One shard.
#[derive(Debug, Clone, Copy)]
pub struct ShardState {
    /// Which.
    pub shard: Shard,
    /// Its owner's place in the list of nodes, if it has one.
    pub node: Option<usize>,
    /// How many owners it has had.
    pub epoch: Epoch,
    /// For how long the oldest of what could go has been due.
    pub lag_ms: u64,
}

/// How a store is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreStatus {
    /// Whether it answered when it was last asked.
    pub is_answering: bool,
    /// How many shards this node owns.
    pub shards: usize,
    /// How long its lease still lasts, if there are leases.
    pub lease_ms: Option<u64>,
    /// How many writes were refused because a shard had another owner.
    pub stale_writes: u64,
}
