//! The shared store: one PostgreSQL, any number of nodes.
//!
//! Any node accepts; the owner of a shard alone dispatches its endpoints.
//! [`accept`] and [`settle`] each have a line of their own that commits
//! whatever waits together; [`membership`] holds this node's shards and hears
//! what others do.

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
mod settle_one;
mod shard_leases;
mod snowflake;
mod stored_bytes;
mod stored_functions;
mod sweep;
mod transaction;
mod unit_of_work;

/// How to open a shared store. It cannot be printed: the URL may hold a
/// password.
pub struct PostgresOptions {
    /// Where the database is.
    pub url: String,
    /// How long a node that is not heard of keeps its shards.
    pub lease: Duration,
    /// What this node calls itself.
    pub name: String,
    /// What secrets are sealed with.
    pub seal: Seal,
    /// What counts the commits.
    pub commits: Arc<CommitMetrics>,
    /// How many connections it may use.
    pub connections: usize,
    /// What follows the database's time, if anything does.
    pub clock: Option<Arc<EngineClock>>,
}

impl PostgresOptions {
    /// The usual ones.
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

/// The shared store, as one node has it.
pub struct PostgresStore {
    shared: Arc<PostgresState>,
    accepting: group_commit::GroupCommit<accept::AcceptJob>,
    settling: group_commit::GroupCommit<settle::SettleJob>,
    chores: Mutex<Vec<JoinHandle<()>>>,
}

/// What every part of the store works with.
struct PostgresState {
    pool: Pool,
    options: PostgresOptions,
    index: RwLock<CatalogIndex>,
    /// The catalog's version that the index has.
    version: AtomicI64,
    /// What this node owns.
    shard_leases: ShardLeases,
    snowflake: RwLock<Arc<Snowflake>>,
    /// What the lifecycle is told.
    told: mpsc::UnboundedSender<ClusterEvent>,
    listener: Mutex<Option<mpsc::UnboundedReceiver<ClusterEvent>>>,
    is_answering: AtomicBool,
    /// Whether this node is about to leave: it keeps nothing that it can give away.
    is_retiring: AtomicBool,
    /// How many nodes there were at the last look.
    nodes: AtomicUsize,
    stale_writes: AtomicU64,
    /// Something may have been accepted here without anyone's knowing.
    is_unsure: AtomicBool,
    /// How often another server was found, or the same one started again.
    server_changes: AtomicU64,
    /// Where reads of what is due may begin, by endpoint.
    watermarks: due::DueWatermarks,
    /// How every transaction begins.
    begin: String,
    /// The catalog in memory is changed by one at a time.
    catalog_lock: tokio::sync::Mutex<()>,
    /// The catalog's version that the others know this node has heard of.
    acknowledged_version: AtomicI64,
    /// Told once what others changed is in force here.
    in_force: Mutex<Vec<oneshot::Receiver<()>>>,
    /// Questions of other nodes that are being answered.
    asked: Mutex<HashSet<i64>>,
    /// What keeps engine time with the database's.
    time: DatabaseTime,
}

impl PostgresStore {
    /// Connects, brings the tables up to date, joins the cluster and takes
    /// its share of the shards.
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

    /// Gives up what is owned, if that has not been done, and lets go of the
    /// connections.
    pub async fn close(self) {
        let _ = super::Cluster::leave(&self).await;
        self.shared.pool.close();
    }
}

impl PostgresStore {
    /// Ends what goes on in the background.
    async fn stop_background_tasks(&self) {
        let chores = std::mem::take(&mut *self.chores.lock());
        for chore in chores {
            chore.abort();
            let _ = chore.await;
        }
    }
}

/// The key that secrets here are sealed with, if it is among these. The
/// first node's key is the one.
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

    /// A connection for single statements.
    async fn connection(&self) -> Result<Object> {
        connection(&self.pool).await
    }

    /// A transaction.
    async fn begin(&self) -> Result<PgTransaction> {
        PgTransaction::begin(&self.pool, &self.begin).await
    }

    fn numbers(&self) -> Arc<Snowflake> {
        self.snowflake.read().clone()
    }

    /// A write came too late: its shard has another owner.
    fn count_stale(&self, writes: u64) {
        self.stale_writes.fetch_add(writes, Ordering::Relaxed);
    }
}
