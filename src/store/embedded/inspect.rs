//! Looks at an embedded store without changing it: also at one that runs, or that an
//! older or newer version has written.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use jiff::Timestamp;
use rusqlite::OptionalExtension;

use super::rows::at;
use super::{STORE_FILE, catalog, notes, reader};
use crate::model::endpoint::Endpoint;
use crate::model::token::Token;
use crate::store::migrations;
use crate::store::seal::{CHECK_NOTE, Seal};

/// What is seen of a store from outside.
#[derive(Debug, Default)]
pub struct StoreInspection {
    /// Version of its schema.
    pub version: usize,
    /// Version of the schema that this program writes.
    pub known_version: usize,
    /// Check text of the master key that it is sealed under.
    pub key_check: Option<String>,
    /// Engine time at which its oldest event was accepted.
    pub oldest_event_at: Option<Timestamp>,
    /// Bytes of its files.
    pub bytes: u64,
}

/// Whether a process has this data directory open.
pub fn is_in_use(folder: &Path) -> bool {
    let Ok(file) = File::options().write(true).open(folder.join("lock")) else { return false };
    matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

/// Looks at the store in a data directory; returns nothing if there is none.
pub fn inspect(folder: &Path) -> anyhow::Result<Option<StoreInspection>> {
    let path = folder.join(STORE_FILE);
    if !path.exists() {
        return Ok(None);
    }
    let db = reader(&path).with_context(|| format!("cannot open the store {}", path.display()))?;
    let failed = || format!("cannot read the store {}", path.display());
    let version: i64 = db.query_row("PRAGMA user_version", [], |row| row.get(0)).with_context(failed)?;
    let version = usize::try_from(version).unwrap_or(usize::MAX);
    let size =
        |suffix: &str| std::fs::metadata(folder.join(format!("{STORE_FILE}{suffix}"))).map_or(0, |file| file.len());
    let known_version = migrations::EMBEDDED.len();
    let seen = StoreInspection { version, known_version, bytes: size("") + size("-wal"), ..StoreInspection::default() };
    if version != known_version {
        return Ok(Some(seen));
    }
    let oldest = "SELECT accepted_at FROM events ORDER BY no LIMIT 1";
    let oldest: Option<i64> = db.query_row(oldest, [], |row| row.get(0)).optional().with_context(failed)?;
    let key_check = notes::read(&db, CHECK_NOTE).with_context(failed)?;
    Ok(Some(StoreInspection { key_check, oldest_event_at: oldest.map(at), ..seen }))
}

/// Reads the endpoints and tokens of a store of this version that nobody has open.
pub fn catalog_of(folder: &Path, seal: &Seal) -> anyhow::Result<(Vec<Arc<Endpoint>>, Vec<Arc<Token>>)> {
    let db = reader(&folder.join(STORE_FILE))?;
    let index = catalog::load(&db, seal)?;
    let endpoints = index.tenants().iter().flat_map(|tenant| index.endpoints(&tenant.id)).collect();
    Ok((endpoints, index.tokens()))
}
