//! Opens and closes the store that the settings name: the embedded one in the data
//! directory, or a PostgreSQL that many nodes share.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{info, warn};

use super::permissions;
use crate::clock::EngineClock;
use crate::config::Settings;
use crate::metrics::CommitMetrics;
use crate::model::database::DatabaseUrl;
use crate::model::rate::vary_by_tenth;
use crate::store::backup::StoreCopier;
use crate::store::embedded::restore::refuse_if_half_restored;
use crate::store::embedded::{Durability, EmbeddedStore, STORE_FILE, create_folder};
use crate::store::postgres::{self, PostgresStore};
use crate::store::resealing::ResealingStore;
use crate::store::seal::{LINK_KEY_NOTE, MASTER_KEY_FILE, MissingKey, NEXT_CHECK_NOTE, Seal, WrongKey};
use crate::store::{Catalog, Cluster, Store, move_mark};

/// Shortest wait of a start before it tries the database again.
const OPEN_RETRY_MIN: Duration = Duration::from_millis(250);
/// Longest wait of a start before it tries the database again.
const OPEN_RETRY_MAX: Duration = Duration::from_secs(2);

/// The open store and its master key. The owner of the handle closes the store.
pub struct StoreHandle {
    store: StoreKind,
    description: String,
    seal: Seal,
    new_key: Option<PathBuf>,
}

enum StoreKind {
    Embedded(Arc<EmbeddedStore>),
    Postgres(Arc<PostgresStore>),
}

impl StoreHandle {
    /// Opens the store of the data directory. Unless `may_be_new`, a data directory
    /// that has lost its store is refused.
    pub fn open_embedded(settings: &Settings, commits: Arc<CommitMetrics>, may_be_new: bool) -> anyhow::Result<Self> {
        let folder = &settings.data.0;
        refuse_if_elsewhere(folder)?;
        if !may_be_new {
            refuse_if_store_is_gone(folder)?;
        }
        create_folder(folder)?;
        permissions::check(settings)?;
        let (seal, new_key) = master_key(settings)?;
        let store = EmbeddedStore::open_with(folder, Durability::Synced, seal.clone(), commits)
            .map_err(|problem| remove_unused_key(new_key.as_deref(), problem))?;
        let store = StoreKind::Embedded(Arc::new(store));
        Ok(Self { store, description: settings.data.to_string(), seal, new_key })
    }

    /// Opens the PostgreSQL at this URL, and waits while it is unreachable or
    /// read-only.
    pub async fn open_shared(
        settings: &Settings,
        url: &DatabaseUrl,
        commits: Arc<CommitMetrics>,
        clock: &Arc<EngineClock>,
        stop: &Notify,
    ) -> anyhow::Result<Self> {
        create_folder(&settings.data.0)?;
        permissions::check(settings)?;
        let (seal, new_key) = master_key(settings)?;
        let store = open_with_retries(url, settings, &seal, &commits, clock, stop)
            .await
            .map_err(|problem| remove_unused_key(new_key.as_deref(), problem))?;
        let description = format!("PostgreSQL at {}", url.description());
        Ok(Self { store: StoreKind::Postgres(Arc::new(store)), description, seal, new_key })
    }

    /// Returns the store as the rest of the gateway uses it.
    pub fn store(&self) -> Arc<dyn Store> {
        match &self.store {
            StoreKind::Embedded(store) => store.clone(),
            StoreKind::Postgres(store) => store.clone(),
        }
    }

    /// Returns the store as one that can copy itself, if it can.
    pub fn copier(&self) -> Option<Arc<dyn StoreCopier>> {
        match &self.store {
            StoreKind::Embedded(store) => Some(store.clone()),
            StoreKind::Postgres(_) => None,
        }
    }

    /// Returns the store as whoever replaces its key uses it.
    pub fn resealing(&self) -> Arc<dyn ResealingStore> {
        match &self.store {
            StoreKind::Embedded(store) => store.clone(),
            StoreKind::Postgres(store) => store.clone(),
        }
    }

    /// Returns what tells how many bytes of events are in the log of the store alone, if
    /// its files are on a disk of this machine.
    pub fn event_bytes_in_log(&self) -> Option<impl Fn() -> u64 + Send + Sync + use<>> {
        match &self.store {
            StoreKind::Embedded(store) => Some(store.event_bytes_in_log()),
            StoreKind::Postgres(_) => None,
        }
    }

    /// Whether other nodes may share the store.
    pub fn is_shared(&self) -> bool {
        matches!(self.store, StoreKind::Postgres(_))
    }

    /// Returns the key that data links are signed with. The first start makes it, and
    /// all nodes that share the store use it.
    pub async fn link_key(&self) -> anyhow::Result<[u8; 32]> {
        let stored = self.store().put_setting_once(LINK_KEY_NOTE, self.seal.new_link_key()).await?;
        Ok(self.seal.link_key(&stored)?)
    }

    /// Returns the engine time of the last accepted event; none on a shared store,
    /// where engine time follows the database.
    pub async fn latest_accepted(&self) -> anyhow::Result<Option<Timestamp>> {
        match &self.store {
            StoreKind::Embedded(store) => Ok(store.latest_accepted().await?),
            StoreKind::Postgres(_) => Ok(None),
        }
    }

    /// Returns the file of the master key, if this start made it.
    pub fn new_key(&self) -> Option<&Path> {
        self.new_key.as_deref()
    }

    /// Returns the location of the store, for people.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Gives up the leases of this node. No attempt may be in flight any more.
    pub async fn leave(&self) {
        let left = match &self.store {
            StoreKind::Embedded(store) => store.leave().await,
            StoreKind::Postgres(store) => store.leave().await,
        };
        if let Err(problem) = left {
            warn!("this node could not give up its leases, so other nodes take over only when they end: {problem}");
        }
    }

    /// Finishes queued writes and closes the store.
    pub async fn close(self) {
        let is_closed = match self.store {
            StoreKind::Embedded(store) => match Arc::try_unwrap(store) {
                Ok(store) => {
                    store.close().await;
                    true
                }
                Err(_) => false,
            },
            StoreKind::Postgres(store) => match Arc::try_unwrap(store) {
                Ok(store) => {
                    store.close().await;
                    true
                }
                Err(_) => false,
            },
        };
        if !is_closed {
            // Attempts that were cut off still use the store. Every commit is on disk anyway.
            warn!(
                "the store could not be closed cleanly because attempts still use it; the next start recovers it, and no commit is lost"
            );
        }
    }
}

/// Refuses a data directory from which no start takes its store.
pub fn refuse_unusable(folder: &Path) -> anyhow::Result<()> {
    refuse_if_elsewhere(folder)?;
    refuse_if_store_is_gone(folder)
}

/// Refuses a data directory whose store was moved to a database, or half restored.
fn refuse_if_elsewhere(folder: &Path) -> anyhow::Result<()> {
    move_mark::refuse_if_moved(folder)?;
    refuse_if_half_restored(folder)
}

/// Refuses a data directory that has an admin token but no store: it had a store
/// once, and the gateway would start as a new installation without its events.
fn refuse_if_store_is_gone(folder: &Path) -> anyhow::Result<()> {
    let store = folder.join(STORE_FILE);
    let is_empty =
        std::fs::metadata(&store).map_or_else(|problem| problem.kind() == ErrorKind::NotFound, |file| file.len() == 0);
    if !is_empty || !folder.join(super::admin_token::ADMIN_TOKEN_FILE).exists() {
        return Ok(());
    }
    bail!(
        "the store {} is missing or empty, though {} holds the admin token of one; restore the store, name its database \
         with --database-url, or start once with --new-store if a new one is meant",
        store.display(),
        folder.display()
    )
}

/// Opens the database, and tries again while it is unreachable or read-only.
async fn open_with_retries(
    url: &DatabaseUrl,
    settings: &Settings,
    seal: &Seal,
    commits: &Arc<CommitMetrics>,
    clock: &Arc<EngineClock>,
    stop: &Notify,
) -> anyhow::Result<PostgresStore> {
    let folder = &settings.data.0;
    if move_mark::is_unmoved(folder) {
        warn!(
            "the store in {} is not used, because --database-url is set; `posthaste migrate-store` moves it to the database",
            folder.display()
        );
    }
    let deadline = Instant::now() + settings.database_wait.0;
    let mut pause = OPEN_RETRY_MIN;
    let mut has_failed = false;
    loop {
        let problem = match open_once(url, settings, seal, commits, clock).await {
            Ok(store) => {
                if has_failed {
                    info!("connected to the database at {}", url.description());
                }
                return Ok(store);
            }
            Err(problem) if !postgres::is_unavailable(&problem) => return Err(problem),
            Err(problem) => problem,
        };
        if Instant::now() >= deadline {
            return Err(problem.context(format!("gave up after waiting {} (--database-wait)", settings.database_wait)));
        }
        if !std::mem::replace(&mut has_failed, true) {
            warn!("{problem:#}; trying again for {} (--database-wait)", settings.database_wait);
        }
        tokio::select! {
            () = tokio::time::sleep_until(deadline.min(Instant::now() + vary_by_tenth(pause, rand::random()))) => {}
            () = stop.notified() => bail!("stopped while waiting for the database: {problem:#}"),
        }
        pause = (pause * 2).min(OPEN_RETRY_MAX);
    }
}

async fn open_once(
    url: &DatabaseUrl,
    settings: &Settings,
    seal: &Seal,
    commits: &Arc<CommitMetrics>,
    clock: &Arc<EngineClock>,
) -> anyhow::Result<PostgresStore> {
    let options = postgres::PostgresOptions {
        lease: settings.lease.0,
        name: node_name(),
        commits: commits.clone(),
        clock: Some(clock.clone()),
        ..postgres::PostgresOptions::new(url.reveal(), seal.clone())
    };
    let store = PostgresStore::open(options).await?;
    // A rotation of the key may have begun before this node was registered, and asked it nothing.
    let next = store.setting(NEXT_CHECK_NOTE).await.ok().flatten().filter(|check| !check.is_empty());
    if next.is_some_and(|check| !store.holds_key(&check)) {
        store.close().await;
        bail!(
            "the master key of this database is being replaced, and this node does not have the new one; copy the key \
             file of the node on which `posthaste keys rotate` runs, and start again"
        );
    }
    // This is checked again after opening: a move may have begun before this node was registered.
    match store.setting(move_mark::MOVING_NOTE).await {
        Ok(None) => Ok(store),
        Ok(Some(_)) => {
            store.close().await;
            bail!("{}", move_mark::HALF_MOVED)
        }
        Err(problem) => {
            store.close().await;
            Err(problem.into())
        }
    }
}

/// Removes a new master key that does not fit the store, and reports the right one
/// as missing; the new file would only mislead.
fn remove_unused_key(made_key: Option<&Path>, problem: anyhow::Error) -> anyhow::Error {
    match made_key {
        Some(file) if problem.is::<WrongKey>() => {
            let _ = std::fs::remove_file(file);
            MissingKey { file: file.to_owned() }.into()
        }
        _ => problem,
    }
}

/// Reads or makes the master key; returns its file if it was made now.
pub fn master_key(settings: &Settings) -> anyhow::Result<(Seal, Option<PathBuf>)> {
    match &settings.master_key_file.0 {
        Some(file) if !file.exists() => bail!(
            "there is no master key file {}; copy it from the first node, or make one with `openssl rand -hex 32`",
            file.display()
        ),
        Some(file) => Ok((warn_if_rotating(Seal::read(file)?), None)),
        None => {
            let file = settings.data.0.join(MASTER_KEY_FILE);
            let (seal, is_made) = Seal::load_or_create(&file)?;
            Ok((warn_if_rotating(seal), is_made.then_some(file)))
        }
    }
}

/// Warns of a rotation of the master key that was not finished.
fn warn_if_rotating(seal: Seal) -> Seal {
    if seal.is_rotating() {
        warn!("a rotation of the master key is unfinished; `posthaste keys rotate` finishes it");
    }
    seal
}

/// Returns the name of this node: its host and process id.
pub fn node_name() -> String {
    format!("{}/{}", host_name(), std::process::id())
}

/// Returns the name of this machine, or of the container.
pub fn host_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = Some(host.trim()).filter(|host| !host.is_empty()).map(str::to_owned);
    host.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_else(|| "node".into())
}
