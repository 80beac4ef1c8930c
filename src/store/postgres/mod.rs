//! The shared store: one PostgreSQL, any number of nodes.
//!
//! Any node accepts events; only the owner of a shard dispatches its
//! endpoints. [`accept`] and [`settle`] each have a group commit;
//! [`membership`] leases this node's shards and learns what other nodes do.

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use deadpool_postgres::{Object, Pool};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::catalog_index::CatalogIndex;
use super::seal::{CHECK_NOTE, Seal};
use super::{ClusterEvent, Result};
use crate::clock::EngineClock;
use crate::metrics::CommitMetrics;
pub use connect::is_unavailable;
use database_time::DatabaseTime;
use shard_leases::ShardLeases;
use snowflake::Snowflake;
use transaction::{PgTransaction, connection};

mod accept;
mod accept_batch;
mod access;
mod catalog;
mod change;
mod claims;
mod cluster;
mod connect;
mod database_time;
mod due;
mod endpoint;
mod expunge;
mod forget;
mod group_commit;
mod history;
pub mod import;
mod import_tables;
mod lane;
mod live_status;
mod locked_delivery;
mod membership;
mod migrate;
mod overdue;
mod partitions;
mod queue;
mod read_query;
pub mod rewrap;
mod rows;
mod scrub;
mod settle;
mod settle_batch;
mod settle_one;
mod shard_leases;
mod snowflake;
mod stored_bytes;
mod stored_function;
mod stored_functions;
mod sweep;
mod tenant_limits;
mod transaction;
mod unit_of_work;

/// Options of a shared store. They have no `Debug`: the URL may hold a
/// password.
pub struct PostgresOptions {
    /// URL of the database.
    pub url: String,
    /// Length of a lease: a node that does not renew it loses its shards.
    pub lease: Duration,
    /// Name of this node, for people.
    pub name: String,
    /// Seal for secrets.
    pub seal: Seal,
    /// Metrics of the commits.
    pub commits: Arc<CommitMetrics>,
    /// Largest number of connections.
    pub connections: usize,
    /// Engine clock that is to follow the database's time, if any.
    pub clock: Option<Arc<EngineClock>>,
}

impl PostgresOptions {
    /// Returns options with the default values.
    pub fn new(url: &str, seal: Seal) -> Self {
        Self {
            url: url.into(),
            lease: Duration::from_secs(15),
            name: format!("process {}", std::process::id()),
            seal,
            commits: Arc::default(),
            connections: 16,
            clock: None,
        }
    }
}

/// The shared store, as one node uses it.
pub struct PostgresStore {
    shared: Arc<PostgresState>,
    accepting: group_commit::GroupCommit<accept::AcceptJob>,
    settling: group_commit::GroupCommit<settle::SettleJob>,
    chores: Mutex<Vec<JoinHandle<()>>>,
}

/// State that all parts of the store share.
struct PostgresState {
    pool: Pool,
    options: PostgresOptions,
    index: RwLock<CatalogIndex>,
    /// Version of the catalog that the index shows.
    version: AtomicI64,
    /// Shards that this node owns.
    shard_leases: ShardLeases,
    snowflake: RwLock<Arc<Snowflake>>,
    /// Sends cluster events to the lifecycle.
    told: mpsc::UnboundedSender<ClusterEvent>,
    listener: Mutex<Option<mpsc::UnboundedReceiver<ClusterEvent>>>,
    is_answering: AtomicBool,
    /// Whether this node is about to leave and gives away its shards.
    is_retiring: AtomicBool,
    /// Number of nodes at the last poll.
    nodes: AtomicUsize,
    stale_writes: AtomicU64,
    /// Whether a commit of this node failed without an answer, so that events
    /// may have been accepted that it does not know of.
    is_unsure: AtomicBool,
    /// Number of times that another server was found, or the same one started
    /// again.
    server_changes: AtomicU64,
    /// Due times from which reads may begin, by endpoint.
    watermarks: due::DueWatermarks,
    /// SQL that begins every transaction.
    begin: String,
    /// Lock of whoever changes the index by the catalog.
    catalog_lock: tokio::sync::Mutex<()>,
    /// Version of the catalog that this node has acknowledged to the others.
    acknowledged_version: AtomicI64,
    /// Receivers that are notified once other nodes' changes are in force here.
    in_force: Mutex<Vec<oneshot::Receiver<()>>>,
    /// Calls of other nodes that are being answered.
    asked: Mutex<HashSet<i64>>,
    /// Keeps engine time in step with the database's clock.
    time: DatabaseTime,
}

impl PostgresStore {
    /// Connects, migrates the database, joins the cluster and claims this
    /// node's share of the shards.
    pub async fn open(mut options: PostgresOptions) -> anyhow::Result<Self> {
        let pool = connect::pool(&options.url, options.connections)?;
        let time = DatabaseTime::new(options.clock.take());
        {
            let mut client = connect::get(&pool, &options.url).await?;
            migrate::migrate(&mut client).await?;
            options.seal = matching_key(&client, &options.seal).await?;
            time.begin(&client).await?;
        }
        let (told, listener) = mpsc::unbounded_channel();
        let begin = transaction::begin(options.lease);
        let shared = Arc::new(PostgresState {
            pool,
            options,
            index: RwLock::default(),
            version: AtomicI64::new(0),
            shard_leases: ShardLeases::default(),
            snowflake: RwLock::new(Arc::new(Snowflake::of(0))),
            told,
            listener: Mutex::new(Some(listener)),
            is_answering: AtomicBool::new(true),
            is_retiring: AtomicBool::new(false),
            nodes: AtomicUsize::new(1),
            stale_writes: AtomicU64::new(0),
            is_unsure: AtomicBool::new(false),
            server_changes: AtomicU64::new(0),
            watermarks: due::DueWatermarks::default(),
            begin,
            catalog_lock: tokio::sync::Mutex::default(),
            acknowledged_version: AtomicI64::new(0),
            in_force: Mutex::default(),
            asked: Mutex::default(),
            time,
        });
        partitions::ensure(&shared).await?;
        let membership = membership::join(&shared).await?;
        let usage = stored_bytes::start(&shared);
        let accepting = group_commit::GroupCommit::start(shared.clone());
        let settling = group_commit::GroupCommit::start(shared.clone());
        Ok(Self { shared, accepting, settling, chores: Mutex::new(vec![membership, usage]) })
    }

    /// Leaves the cluster, unless that was done before, and closes the
    /// connections.
    pub async fn close(self) {
        let _ = super::Cluster::leave(&self).await;
        self.shared.pool.close();
    }
}

impl PostgresStore {
    /// Ends the background tasks.
    async fn stop_background_tasks(&self) {
        let chores = std::mem::take(&mut *self.chores.lock());
        for chore in chores {
            chore.abort();
            let _ = chore.await;
        }
    }
}

/// Returns the seal with the key that the database's secrets are sealed under.
/// The first node's key becomes the database's.
async fn matching_key(client: &Object, seal: &Seal) -> anyhow::Result<Seal> {
    let sql = "INSERT INTO posthaste.notes (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    transaction::with_timeout(client.execute_typed(sql, transaction::bind![CHECK_NOTE, seal.check()])).await?;
    let sql = "SELECT value FROM posthaste.notes WHERE name = $1";
    let rows = transaction::with_timeout(client.query_typed(sql, transaction::bind![CHECK_NOTE])).await?;
    Ok(seal.fitted(rows[0].get(0))?)
}

impl PostgresState {
    fn index(&self) -> RwLockReadGuard<'_, CatalogIndex> {
        self.index.read()
    }

    fn index_mut(&self) -> RwLockWriteGuard<'_, CatalogIndex> {
        self.index.write()
    }

    /// Returns a connection for single statements.
    async fn connection(&self) -> Result<Object> {
        connection(&self.pool).await
    }

    /// Begins a transaction.
    async fn begin(&self) -> Result<PgTransaction> {
        PgTransaction::begin(&self.pool, &self.begin).await
    }

    fn numbers(&self) -> Arc<Snowflake> {
        self.snowflake.read().clone()
    }

    /// Counts writes that came too late, because their shard has another owner.
    fn count_stale(&self, writes: u64) {
        self.stale_writes.fetch_add(writes, Ordering::Relaxed);
    }
}
