//! Which store holds everything, opened as the settings say: the data
//! directory's own, or a PostgreSQL that many nodes share.

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
use crate::model::rate::roughly;
use crate::store::embedded::{Durability, EmbeddedStore, STORE_FILE, create_folder};
use crate::store::postgres::{self, PostgresStore};
use crate::store::seal::{LINK_KEY_NOTE, MASTER_KEY_FILE, MissingKey, Seal, WrongKey};
use crate::store::{Catalog, Cluster, Store, move_mark};

/// How long a start waits before it tries the database again.
const OPEN_AGAIN_MIN: Duration = Duration::from_millis(250);
const OPEN_AGAIN_MAX: Duration = Duration::from_secs(2);

/// The store, as the one who has to close it holds it.
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
    /// Opens the store of the data directory.
    pub fn open_embedded(settings: &Settings, commits: Arc<CommitMetrics>, is_new_meant: bool) -> anyhow::Result<Self> {
        let folder = &settings.data.0;
        move_mark::refuse_if_moved(folder)?;
        if !is_new_meant {
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

    /// Opens the PostgreSQL at this URL, and waits for it while it is away or
    /// takes no writes.
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
        let place = format!("PostgreSQL at {}", url.place());
        Ok(Self { store: StoreKind::Postgres(Arc::new(store)), description: place, seal, new_key })
    }

    /// The store, as everyone else holds it.
    pub fn store(&self) -> Arc<dyn Store> {
        match &self.store {
            StoreKind::Embedded(store) => store.clone(),
            StoreKind::Postgres(store) => store.clone(),
        }
    }

    /// Whether other nodes may work on it, too.
    pub fn is_shared(&self) -> bool {
        matches!(self.store, StoreKind::Postgres(_))
    }

    /// The key that links are signed with: the first start makes it, and
    /// whoever shares the store has the same.
    pub async fn link_key(&self) -> anyhow::Result<[u8; 32]> {
        let kept = self.store().put_setting_once(LINK_KEY_NOTE, self.seal.new_link_key()).await?;
        Ok(self.seal.link_key(&kept)?)
    }

    /// The engine time of the last event that was accepted, where this store
    /// is the only one to know it.
    pub async fn latest_accepted(&self) -> anyhow::Result<Option<Timestamp>> {
        match &self.store {
            StoreKind::Embedded(store) => Ok(store.latest_accepted().await?),
            StoreKind::Postgres(_) => Ok(None),
        }
    }

    /// Where the master key is, when this start made it.
    pub fn new_key(&self) -> Option<&Path> {
        self.new_key.as_deref()
    }

    /// Where it is, in words.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Gives back what this node owns. Nothing may be in flight any more.
    pub async fn leave(&self) {
        let left = match &self.store {
            StoreKind::Embedded(store) => store.leave().await,
            StoreKind::Postgres(store) => store.leave().await,
        };
        if let Err(problem) = left {
            warn!("this node could not sign off, so others take over only when its lease ends: {problem}");
        }
    }

    /// Finishes what is queued and closes it.
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
            // Cut-off attempts still hold it; every commit is on disk anyway.
            warn!("the store is left to be tidied up at the next start");
        }
    }
}

/// A data directory whose admin token is there had a store once. Without one
/// it would start as a new installation and forget everything it accepted.
fn refuse_if_store_is_gone(folder: &Path) -> anyhow::Result<()> {
    let store = folder.join(STORE_FILE);
    let is_empty =
        std::fs::metadata(&store).map_or_else(|why| why.kind() == ErrorKind::NotFound, |file| file.len() == 0);
    if !is_empty || !folder.join(super::ADMIN_TOKEN_FILE).exists() {
        return Ok(());
    }
    bail!(
        "the store {} is missing or empty, though {} holds the admin token of one; restore the store, name its database \
         with --database-url, or start once with --new-store if a new one is meant",
        store.display(),
        folder.display()
    )
}

/// Opens the database, again and again while it is away or takes no writes.
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
            "{} holds a store of its own, which is not looked at with --database-url; `posthaste migrate-store` moves it over",
            folder.display()
        );
    }
    let until = Instant::now() + settings.database_wait.0;
    let mut pause = OPEN_AGAIN_MIN;
    let mut has_failed = false;
    loop {
        let problem = match open_once(url, settings, seal, commits, clock).await {
            Ok(store) => {
                if has_failed {
                    info!("the database at {} answers", url.place());
                }
                return Ok(store);
            }
            Err(problem) if !postgres::is_unavailable(&problem) => return Err(problem),
            Err(problem) => problem,
        };
        if Instant::now() >= until {
            return Err(problem.context(format!("gave up after waiting {} (--database-wait)", settings.database_wait)));
        }
        if !std::mem::replace(&mut has_failed, true) {
            warn!("{problem:#}; trying again for {} (--database-wait)", settings.database_wait);
        }
        tokio::select! {
            () = tokio::time::sleep_until(until.min(Instant::now() + roughly(pause, rand::random()))) => {}
            () = stop.notified() => bail!("stopped while waiting for the database: {problem:#}"),
        }
        pause = (pause * 2).min(OPEN_AGAIN_MAX);
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
    // Asked once more: a move may have begun before this node was seen.
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

/// A key that was made for nothing would only lead astray: it is removed, and
/// what is said is that the right one is missing.
fn remove_unused_key(made_key: Option<&Path>, problem: anyhow::Error) -> anyhow::Error {
    match made_key {
        Some(file) if problem.is::<WrongKey>() => {
            let _ = std::fs::remove_file(file);
            MissingKey { file: file.to_owned() }.into()
        }
        _ => problem,
    }
}

/// The key under which secrets are sealed, and its file if it was made now.
pub fn master_key(settings: &Settings) -> anyhow::Result<(Seal, Option<PathBuf>)> {
    match &settings.master_key_file.0 {
        Some(file) if !file.exists() => bail!(
            "there is no master key file {}; copy it from the first node, or make one with `openssl rand -hex 32`",
            file.display()
        ),
        Some(file) => Ok((warn_if_shared_key(Seal::read(file)?), None)),
        None => {
            let file = settings.data.0.join(MASTER_KEY_FILE);
            let (seal, is_made) = Seal::load_or_create(&file)?;
            Ok((warn_if_shared_key(seal), is_made.then_some(file)))
        }
    }
}

/// A replacement of the key that was not finished is said aloud.
fn warn_if_shared_key(seal: Seal) -> Seal {
    if seal.is_rotating() {
        warn!("the master key was being replaced when that was stopped; `posthaste keys rotate` finishes it");
    }
    seal
}

/// What this node calls itself: its host and process.
fn node_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = Some(host.trim()).filter(|host| !host.is_empty()).map(str::to_owned);
    let host = host.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_else(|| "node".into());
    format!("{host}/{}", std::process::id())
}
