//! The shared store: one PostgreSQL, any number of nodes.
//!
//! Any node accepts; the owner of a shard alone dispatches its endpoints.
//! [`accept`] and [`settle`] each have a line of their own that commits
//! whatever waits together; [`membership`] holds this node's shards and hears
//! what others do.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use deadpool_postgres::{Object, Pool};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::index::Index;
use super::seal::{CHECK_NOTE, Seal};
use super::{Result, Tiding};
use crate::clock::EngineClock;
use crate::metrics::Commits;
pub use connect::is_away;
use database_time::DatabaseTime;
use numbers::Numbers;
use owned::Owned;
use tx::{Tx, connection};

mod accept;
mod access;
mod act;
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
mod history;
pub mod import;
mod lane;
mod line;
mod membership;
mod migrate;
mod numbers;
mod overdue;
mod owned;
mod partitions;
mod parts;
mod place;
mod queue;
mod reading;
pub mod rewrap;
mod routine;
mod rows;
mod scrub;
mod settle;
mod settle_one;
mod stored;
mod sweep;
mod tx;
mod writing;

/// How to open a shared store. It cannot be printed: the URL may hold a
/// password.
pub struct Options {
    /// Where the database is.
    pub url: String,
    /// How long a node that is not heard of keeps its shards.
    pub lease: Duration,
    /// What this node calls itself.
    pub name: String,
    /// What secrets are sealed with.
    pub seal: Seal,
    /// What counts the commits.
    pub commits: Arc<Commits>,
    /// How many connections it may use.
    pub connections: usize,
    /// What follows the database's time, if anything does.
    pub clock: Option<Arc<EngineClock>>,
}

impl Options {
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
pub struct Postgres {
    shared: Arc<Shared>,
    accepting: line::Line<accept::Job>,
    settling: line::Line<settle::Job>,
    chores: Mutex<Vec<JoinHandle<()>>>,
}

/// What every part of the store works with.
struct Shared {
    pool: Pool,
    options: Options,
    index: RwLock<Index>,
    /// The catalogue's version that the index has.
    version: AtomicI64,
    /// What this node owns.
    owned: Owned,
    numbers: RwLock<Arc<Numbers>>,
    /// What the lifecycle is told.
    told: mpsc::UnboundedSender<Tiding>,
    listener: Mutex<Option<mpsc::UnboundedReceiver<Tiding>>>,
    is_answering: AtomicBool,
    /// Whether this node is about to leave: it keeps nothing that it can give away.
    is_retiring: AtomicBool,
    /// How many nodes there were at the last look.
    nodes: AtomicUsize,
    stale_writes: AtomicU64,
    /// Something may have been accepted here without anyone's knowing.
    is_unsure: AtomicBool,
    /// Where reads of what is due may begin, by endpoint.
    floors: due::Floors,
    /// How every transaction begins.
    begin: String,
    /// The catalogue in memory is changed by one at a time.
    catalogue_turn: tokio::sync::Mutex<()>,
    /// The catalogue's version that the others know this node has heard of.
    heard: AtomicI64,
    /// Told once what others changed is in force here.
    in_force: Mutex<Vec<oneshot::Receiver<()>>>,
    /// Questions of other nodes that are being answered.
    asked: Mutex<HashSet<i64>>,
    /// What keeps engine time with the database's.
    time: DatabaseTime,
}

impl Postgres {
    /// Connects, brings the tables up to date, joins the cluster and takes
    /// its share of the shards.
    pub async fn open(mut options: Options) -> anyhow::Result<Self> {
        let pool = connect::pool(&options.url, options.connections)?;
        let time = DatabaseTime::new(options.clock.take());
        {
            let mut client = connect::get(&pool, &options.url).await?;
            migrate::migrate(&mut client).await?;
            options.seal = fit_key(&client, &options.seal).await?;
            time.begin(&client).await?;
        }
        let (told, listener) = mpsc::unbounded_channel();
        let begin = tx::begin(options.lease);
        let shared = Arc::new(Shared {
            pool,
            options,
            index: RwLock::default(),
            version: AtomicI64::new(0),
            owned: Owned::default(),
            numbers: RwLock::new(Arc::new(Numbers::of(0))),
            told,
            listener: Mutex::new(Some(listener)),
            is_answering: AtomicBool::new(true),
            is_retiring: AtomicBool::new(false),
            nodes: AtomicUsize::new(1),
            stale_writes: AtomicU64::new(0),
            is_unsure: AtomicBool::new(false),
            floors: due::Floors::default(),
            begin,
            catalogue_turn: tokio::sync::Mutex::default(),
            heard: AtomicI64::new(0),
            in_force: Mutex::default(),
            asked: Mutex::default(),
            time,
        });
        partitions::ensure(&shared).await?;
        let membership = membership::join(&shared).await?;
        let usage = stored::start(&shared);
        let accepting = line::Line::start(shared.clone());
        let settling = line::Line::start(shared.clone());
        Ok(Self { shared, accepting, settling, chores: Mutex::new(vec![membership, usage]) })
    }

    /// Gives up what is owned, if that has not been done, and lets go of the
    /// connections.
    pub async fn close(self) {
        let _ = super::Cluster::leave(&self).await;
        self.shared.pool.close();
    }
}

impl Postgres {
    /// Ends what goes on in the background.
    async fn end_chores(&self) {
        let chores = std::mem::take(&mut *self.chores.lock().expect("nothing panics while it is held"));
        for chore in chores {
            chore.abort();
            let _ = chore.await;
        }
    }
}

/// The key that secrets here are sealed with, if it is among these. The
/// first node's key is the one.
async fn fit_key(client: &Object, seal: &Seal) -> anyhow::Result<Seal> {
    let sql = "INSERT INTO posthaste.notes (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    tx::patiently(client.execute_typed(sql, tx::bind![CHECK_NOTE, seal.check()])).await?;
    let sql = "SELECT value FROM posthaste.notes WHERE name = $1";
    let rows = tx::patiently(client.query_typed(sql, tx::bind![CHECK_NOTE])).await?;
    Ok(seal.fitted(rows[0].get(0))?)
}

impl Shared {
    fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().expect("no writer of the catalogue panics")
    }

    fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().expect("no writer of the catalogue panics")
    }

    /// A connection for single statements.
    async fn connection(&self) -> Result<Object> {
        connection(&self.pool).await
    }

    /// A transaction.
    async fn begin(&self) -> Result<Tx> {
        Tx::begin(&self.pool, &self.begin).await
    }

    fn numbers(&self) -> Arc<Numbers> {
        self.numbers.read().expect("nothing panics while it is held").clone()
    }

    /// A write came too late: its shard has another owner.
    fn count_stale(&self, writes: u64) {
        self.stale_writes.fetch_add(writes, Ordering::Relaxed);
    }
}
