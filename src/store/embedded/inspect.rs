//! Looks at an embedded store without changing it: also at one that runs, or that an
//! older or newer version has written.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension};

use super::rows::at;
use super::{STORE_FILE, catalog, notes, reader};
use crate::model::endpoint::Endpoint;
use crate::model::tenant::TenantRetention;
use crate::model::token::Token;
use crate::store::migrations;
use crate::store::seal::{CHECK_NOTE, Seal};
use crate::store::stored_json::from_json;

/// Name of the setting with the checkpoint of engine time.
pub const CLOCK_SETTING: &str = "clock";

/// Facts about a store, read without opening it.
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
    /// Checkpoint of its engine time, as the gateway wrote it.
    pub clock: Option<String>,
    /// Bytes of its files.
    pub bytes: u64,
    /// What is stored of each tenant.
    pub stored: Vec<StoredOfTenant>,
}

/// What is stored of a tenant, as the store counts it.
#[derive(Debug, Clone)]
pub struct StoredOfTenant {
    /// Bytes of its events.
    pub bytes: u64,
    /// Deliveries that were made for it.
    pub deliveries: u64,
    /// Dead letters among them.
    pub dead_letters: u64,
    /// How long its records are kept.
    pub retention: TenantRetention,
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
    // Every version up to this one has the check text at the same place.
    let check = notes::read(&db, CHECK_NOTE);
    let key_check =
        if (1..=known_version).contains(&version) { check.with_context(failed)? } else { check.ok().flatten() };
    let seen = StoreInspection { key_check, ..seen };
    if version != known_version {
        return Ok(Some(seen));
    }
    let oldest = "SELECT accepted_at FROM events ORDER BY no LIMIT 1";
    let oldest: Option<i64> = db.query_row(oldest, [], |row| row.get(0)).optional().with_context(failed)?;
    let clock = notes::read(&db, CLOCK_SETTING).with_context(failed)?;
    let stored = stored_by_tenant(&db).with_context(failed)?;
    Ok(Some(StoreInspection { oldest_event_at: oldest.map(at), clock, stored, ..seen }))
}

fn stored_by_tenant(db: &Connection) -> rusqlite::Result<Vec<StoredOfTenant>> {
    let sql = "SELECT sum(s.bytes) AS bytes, sum(s.deliveries) AS deliveries, t.retention AS retention,
                      (SELECT coalesce(sum(c.count), 0) FROM dead_letter_counts c WHERE c.tenant = t.no) AS dead_letters
               FROM stored_bytes s JOIN tenants t ON t.no = s.tenant GROUP BY t.no";
    let read = |row: &rusqlite::Row<'_>| {
        Ok(StoredOfTenant {
            bytes: row.get::<_, i64>("bytes")?.try_into().unwrap_or(0),
            deliveries: row.get::<_, i64>("deliveries")?.try_into().unwrap_or(0),
            dead_letters: row.get::<_, i64>("dead_letters")?.try_into().unwrap_or(0),
            retention: from_json("tenants.retention", &row.get::<_, String>("retention")?).unwrap_or_default(),
        })
    };
    db.prepare(sql)?.query_map([], read)?.collect()
}

/// Reads the endpoints and tokens of a store of this version that nobody has open.
pub fn catalog_of(folder: &Path, seal: &Seal) -> anyhow::Result<(Vec<Arc<Endpoint>>, Vec<Arc<Token>>)> {
    let db = reader(&folder.join(STORE_FILE))?;
    let index = catalog::load(&db, seal)?;
    let endpoints = index.tenants().iter().flat_map(|tenant| index.endpoints(&tenant.id)).collect();
    Ok((endpoints, index.tokens()))
}
