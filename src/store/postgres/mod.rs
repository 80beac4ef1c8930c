//! The shared store: one PostgreSQL, any number of nodes.
//!
//! Any node accepts events; only the owner of a shard dispatches its
//! endpoints. [`accept`] and [`settle`] each have a group commit;
//! [`membership`] leases this node's shards and learns what other nodes do.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Object;
use parking_lot::{Mutex, RwLockReadGuard, RwLockWriteGuard};
use tokio::task::JoinHandle;

use super::Result;
use super::catalog_index::CatalogIndex;
use super::seal::{CHECK_NOTE, Seal};
use crate::clock::EngineClock;
use crate::metrics::CommitMetrics;
use catalog_cache::CatalogCache;
use cluster_notifier::ClusterNotifier;
pub use connect::is_unavailable;
use connections::Connections;
use database_time::DatabaseTime;
use node_status::NodeStatus;
use shard_leases::ShardLeases;
use snowflake::Snowflake;
use transaction::PgTransaction;

mod accept;
mod accept_batch;
mod access;
mod backfill;
mod catalog;
mod catalog_cache;
mod change;
mod change_many;
mod changed_rows;
pub mod check;
mod check_rules;
mod claims;
mod cluster;
mod cluster_notifier;
mod column_values;
pub(in crate::store) mod connect;
mod connections;
mod database_time;
mod dead_letters;
mod deleted_tenant;
mod due;
mod endpoint;
mod expunge;
mod figures;
mod forget;
mod group_commit;
mod history;
pub mod import;
mod import_checks;
mod import_tables;
pub mod inspect;
mod job_rows;
mod jobs;
mod lane;
mod live_status;
mod locked_delivery;
mod membership;
mod migrate;
mod node_status;
mod overdue;
mod partitions;
mod purge;
mod purge_figures;
mod purge_rows;
mod queue;
mod read_query;
mod replay;
mod resealing;
pub mod restored;
pub mod rewrap;
mod rows;
mod scrub;
mod settle;
mod settle_batch;
mod settle_one;
mod shard_leases;
mod sign_ins;
mod snowflake;
mod stored_bytes;
mod stored_function;
mod stored_functions;
mod sweep;
mod tenant_limits;
pub(in crate::store) mod transaction;
mod unit_of_work;
mod write_changes;

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
    background_tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// The parts that the verbs of the store share. Each guards what it owns.
struct PostgresState {
    options: PostgresOptions,
    connections: Connections,
    /// The catalog in memory.
    catalog: CatalogCache,
    /// Shards that this node owns.
    shard_leases: ShardLeases,
    /// Numbers for new events and deliveries.
    snowflake: Snowflake,
    /// Reports cluster events to the lifecycle.
    notifier: ClusterNotifier,
    status: NodeStatus,
    /// Due times from which reads may begin, by endpoint.
    watermarks: due::DueWatermarks,
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
            let mut client = connect::take_connection(&pool, &options.url).await?;
            migrate::migrate(&mut client).await?;
            options.seal = matching_key(&client, &options.seal).await?;
            time.begin(&client).await?;
        }
        let shared = Arc::new(PostgresState {
            connections: Connections::new(pool, options.lease),
            options,
            catalog: CatalogCache::default(),
            shard_leases: ShardLeases::default(),
            snowflake: Snowflake::default(),
            notifier: ClusterNotifier::default(),
            status: NodeStatus::default(),
            watermarks: due::DueWatermarks::default(),
            time,
        });
        partitions::ensure(&shared).await?;
        let membership = membership::join(&shared).await?;
        let usage = stored_bytes::start(&shared);
        let dead_letter_counts = dead_letters::start_merging_counts(&shared);
        let accepting = group_commit::GroupCommit::start(shared.clone());
        let settling = group_commit::GroupCommit::start(shared.clone());
        let tasks = Mutex::new(vec![membership, usage, dead_letter_counts]);
        Ok(Self { shared, accepting, settling, background_tasks: tasks })
    }

    /// Leaves the cluster, unless that was done before, and closes the
    /// connections.
    pub async fn close(self) {
        let _ = super::Cluster::leave(&self).await;
        self.shared.connections.close();
    }
}

impl PostgresStore {
    /// Ends the background tasks.
    async fn stop_background_tasks(&self) {
        let background_tasks = std::mem::take(&mut *self.background_tasks.lock());
        for chore in background_tasks {
            chore.abort();
            let _ = chore.await;
        }
    }
}

/// Returns the seal with the key that the database's secrets are sealed under.
/// The first node's key becomes the database's.
async fn matching_key(client: &Object, seal: &Seal) -> anyhow::Result<Seal> {
    let sql = "INSERT INTO posthaste.notes (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    transaction::with_timeout(client.execute_typed(sql, transaction::bind![CHECK_NOTE, seal.check_text()])).await?;
    let sql = "SELECT value FROM posthaste.notes WHERE name = $1";
    let rows = transaction::with_timeout(client.query_typed(sql, transaction::bind![CHECK_NOTE])).await?;
    Ok(seal.for_store(rows[0].get(0))?)
}

impl PostgresState {
    fn index(&self) -> RwLockReadGuard<'_, CatalogIndex> {
        self.catalog.index()
    }

    fn index_mut(&self) -> RwLockWriteGuard<'_, CatalogIndex> {
        self.catalog.index_mut()
    }

    /// Returns a connection for single statements.
    async fn connection(&self) -> Result<Object> {
        self.connections.connection().await
    }

    /// Begins a transaction.
    async fn begin(&self) -> Result<PgTransaction> {
        self.connections.begin().await
    }
}
