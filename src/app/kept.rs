//! Which store holds everything, opened as the settings say: the data
//! directory's own, or a PostgreSQL that many nodes share.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::bail;
use jiff::Timestamp;
use tracing::warn;

use crate::clock::EngineClock;
use crate::config::Settings;
use crate::metrics::Commits;
use crate::model::database::DatabaseUrl;
use crate::store::embedded::{Durability, Embedded, create_folder};
use crate::store::postgres::{self, Postgres};
use crate::store::seal::{LINK_KEY_NOTE, MASTER_KEY_FILE, Seal, WrongKey};
use crate::store::{Catalog, Cluster, Store, moved};

/// The store, as the one who has to close it holds it.
pub struct Kept {
    store: Which,
    place: String,
    seal: Seal,
    new_key: Option<PathBuf>,
}

enum Which {
    Embedded(Arc<Embedded>),
    Postgres(Arc<Postgres>),
}

impl Kept {
    /// Opens the store that the settings name.
    pub async fn open(settings: &Settings, commits: Arc<Commits>, clock: Arc<EngineClock>) -> anyhow::Result<Self> {
        let folder = &settings.data.0;
        match settings.database()? {
            None => {
                moved::refuse_if_moved(folder)?;
                create_folder(folder)?;
                let (seal, new_key) = master_key(settings)?;
                let store = Embedded::open_with(folder, Durability::Synced, seal.clone(), commits)
                    .inspect_err(|problem| take_back(new_key.as_deref(), problem))?;
                let store = Which::Embedded(Arc::new(store));
                Ok(Self { store, place: settings.data.to_string(), seal, new_key })
            }
            Some(url) => {
                create_folder(folder)?;
                let (seal, new_key) = master_key(settings)?;
                let store = open_shared(&url, settings, seal.clone(), commits, clock)
                    .await
                    .inspect_err(|problem| take_back(new_key.as_deref(), problem))?;
                let place = format!("PostgreSQL at {}", url.place());
                Ok(Self { store: Which::Postgres(Arc::new(store)), place, seal, new_key })
            }
        }
    }

    /// The store, as everyone else holds it.
    pub fn store(&self) -> Arc<dyn Store> {
        match &self.store {
            Which::Embedded(store) => store.clone(),
            Which::Postgres(store) => store.clone(),
        }
    }

    /// Whether other nodes may work on it, too.
    pub fn is_shared(&self) -> bool {
        matches!(self.store, Which::Postgres(_))
    }

    /// The key that links are signed with: the first start makes it, and
    /// whoever shares the store has the same.
    pub async fn link_key(&self) -> anyhow::Result<[u8; 32]> {
        let kept = self.store().note_once(LINK_KEY_NOTE, self.seal.new_link_key()).await?;
        Ok(self.seal.link_key(&kept)?)
    }

    /// The engine time of the last event that was accepted, where this store
    /// is the only one to know it.
    pub async fn latest_accepted(&self) -> anyhow::Result<Option<Timestamp>> {
        match &self.store {
            Which::Embedded(store) => Ok(store.latest_accepted().await?),
            Which::Postgres(_) => Ok(None),
        }
    }

    /// Where the master key is, when this start made it.
    pub fn new_key(&self) -> Option<&Path> {
        self.new_key.as_deref()
    }

    /// Where it is, in words.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Gives back what this node owns. Nothing may be in flight any more.
    pub async fn leave(&self) {
        let left = match &self.store {
            Which::Embedded(store) => store.leave().await,
            Which::Postgres(store) => store.leave().await,
        };
        if let Err(problem) = left {
            warn!("this node could not sign off, so others take over only when its lease ends: {problem}");
        }
    }

    /// Finishes what is queued and closes it.
    pub async fn close(self) {
        let is_closed = match self.store {
            Which::Embedded(store) => match Arc::try_unwrap(store) {
                Ok(store) => {
                    store.close().await;
                    true
                }
                Err(_) => false,
            },
            Which::Postgres(store) => match Arc::try_unwrap(store) {
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

async fn open_shared(
    url: &DatabaseUrl,
    settings: &Settings,
    seal: Seal,
    commits: Arc<Commits>,
    clock: Arc<EngineClock>,
) -> anyhow::Result<Postgres> {
    let folder = &settings.data.0;
    if moved::is_unmoved(folder) {
        warn!(
            "{} holds a store of its own, which is not looked at with --database-url; `posthaste migrate-store` moves it over",
            folder.display()
        );
    }
    let options = postgres::Options {
        lease: settings.lease.0,
        name: node_name(),
        commits,
        clock: Some(clock),
        ..postgres::Options::new(url.reveal(), seal)
    };
    let store = Postgres::open(options).await?;
    // Asked once more: a move may have begun before this node was seen.
    match store.note(moved::MOVING_NOTE).await {
        Ok(None) => Ok(store),
        Ok(Some(_)) => {
            store.close().await;
            bail!("{}", moved::HALF_MOVED)
        }
        Err(problem) => {
            store.close().await;
            Err(problem.into())
        }
    }
}

/// A key that was made for nothing would only lead astray.
fn take_back(made_key: Option<&Path>, problem: &anyhow::Error) {
    if let (Some(file), true) = (made_key, problem.is::<WrongKey>()) {
        let _ = std::fs::remove_file(file);
    }
}

/// The key under which secrets are sealed, and its file if it was made now.
pub fn master_key(settings: &Settings) -> anyhow::Result<(Seal, Option<PathBuf>)> {
    match &settings.master_key_file.0 {
        Some(file) if !file.exists() => bail!(
            "there is no master key file {}; copy it from the first node, or make one with `openssl rand -hex 32`",
            file.display()
        ),
        Some(file) => Ok((warned(Seal::read(file)?), None)),
        None => {
            let file = settings.data.0.join(MASTER_KEY_FILE);
            let (seal, is_made) = Seal::load_or_create(&file)?;
            Ok((warned(seal), is_made.then_some(file)))
        }
    }
}

/// A replacement of the key that was not finished is said aloud.
fn warned(seal: Seal) -> Seal {
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
