//! Seals everything in an embedded store again, under a new master key.
//!
//! This is one transaction, and nobody may have the store open. Texts sealed
//! under the old key are overwritten in place and the log is checkpointed, so
//! that the old key opens nothing in the files afterwards.

use std::path::Path;

use anyhow::{Context, bail};
use rusqlite::Connection;

use super::{Durability, check_master_key, lock, migrate, notes, prepare};
use crate::model::id::EndpointId;
use crate::store::seal::{CHECK_NOTE, LINK_KEY_NOTE, Seal, SealError, about_secret, about_settings, about_urls};

/// Puts a new key into this key file, before the old one, and seals everything
/// under it. Returns the number of sealed texts.
pub fn rewrap(folder: &Path, file: &Path) -> anyhow::Result<usize> {
    let path = folder.join("posthaste.db");
    if !path.exists() {
        bail!("there is no store in {}; name the data directory that holds posthaste.db", folder.display());
    }
    let _lock = lock(folder).context("the gateway must be stopped while its master key is replaced")?;
    let mut db = Connection::open(&path).with_context(|| format!("cannot open the store {}", path.display()))?;
    prepare(&db, Durability::Synced).with_context(|| format!("cannot prepare the store {}", path.display()))?;
    migrate(&db, &path)?;
    check_master_key(&db, &Seal::read(file)?)?;
    let seal = &Seal::begin_rotation(file)?;
    db.execute_batch("PRAGMA secure_delete = ON")?;
    let transaction = db.transaction()?;
    let sql = "SELECT no, id AS endpoint, settings AS sealed FROM endpoints";
    let settings = reseal_each(&transaction, seal, sql, about_settings)?;
    let secrets = reseal_each(
        &transaction,
        seal,
        "SELECT s.rowid AS no, p.id AS endpoint, s.sealed AS sealed FROM secrets s JOIN endpoints p ON p.no = s.endpoint",
        about_secret,
    )?;
    let sql = "SELECT no, id AS endpoint, urls AS sealed FROM endpoints WHERE urls IS NOT NULL";
    let urls = reseal_each(&transaction, seal, sql, about_urls)?;
    let count = settings.len() + secrets.len() + urls.len();
    for (sql, rows) in [
        ("UPDATE endpoints SET settings = ? WHERE no = ?", settings),
        ("UPDATE endpoints SET urls = ? WHERE no = ?", urls),
        ("UPDATE secrets SET sealed = ? WHERE rowid = ?", secrets),
    ] {
        let mut update = transaction.prepare(sql)?;
        for (no, sealed) in rows {
            update.execute((sealed, no))?;
        }
    }
    if let Some(links) = notes::read(&transaction, LINK_KEY_NOTE)? {
        notes::write(&transaction, LINK_KEY_NOTE, &seal.reseal_link_key(&links)?)?;
    }
    notes::write(&transaction, CHECK_NOTE, &seal.check_text())?;
    transaction.commit()?;
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    Ok(count)
}

/// Seals each sealed text of a query again. Returns the row numbers and the
/// new texts.
fn reseal_each(
    db: &Connection,
    seal: &Seal,
    sql: &str,
    about: fn(EndpointId) -> Vec<u8>,
) -> anyhow::Result<Vec<(i64, Vec<u8>)>> {
    let mut statement = db.prepare(sql)?;
    let mut rows = statement.query([])?;
    let mut resealed = Vec::new();
    while let Some(row) = rows.next()? {
        let endpoint: EndpointId = row.get("endpoint")?;
        let sealed = seal.reseal(&about(endpoint), &row.get::<_, Vec<u8>>("sealed")?);
        let sealed = sealed.ok_or_else(|| SealError(format!("what is kept of endpoint {endpoint}")))?;
        resealed.push((row.get("no")?, sealed));
    }
    Ok(resealed)
}
