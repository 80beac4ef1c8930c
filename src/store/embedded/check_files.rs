//! Checks the files of a store: those of a stopped gateway, or a backup.

use std::path::Path;

use anyhow::{Context, bail};
use rusqlite::Connection;

use super::backup_folder::{compare_with_manifest, open_copy, read_manifest};
use super::check::{check, check_pages_alone};
use super::{Durability, STORE_FILE, lock, recover};
use crate::model::store_check::CheckedPart;
use crate::store::migrations;
use crate::store::seal::Seal;

/// Checks the store of a stopped gateway. Its log is checkpointed first, as a start
/// would.
pub fn check_stopped(data: &Path, seal: Option<&Seal>) -> anyhow::Result<Vec<CheckedPart>> {
    let path = data.join(STORE_FILE);
    if !path.exists() {
        bail!("there is no store in {}; name the data directory that holds {STORE_FILE}", data.display());
    }
    let _lock = lock(data).context(
        "a running gateway cannot be checked as a whole; make a backup and check that: `posthaste backup NAME`, then \
         `posthaste check-store FOLDER`",
    )?;
    let db = recover::open(&path, Durability::Synced)?;
    checked_if_current(&db, seal)
}

/// Checks a backup: that it is what was written, and what is in it.
pub fn check_backup(folder: &Path, seal: Option<&Seal>) -> anyhow::Result<Vec<CheckedPart>> {
    let manifest = read_manifest(folder)?;
    let mut file = CheckedPart::new("manifest", "the copy is what its manifest describes");
    if let Err(problem) = compare_with_manifest(folder, &manifest) {
        file.add_finding(format!("{problem:#}"));
    }
    let db = match open_copy(&folder.join(&manifest.file)) {
        Ok(db) => db,
        Err(problem) => {
            file.add_finding(format!("{problem:#}"));
            return Ok(vec![file]);
        }
    };
    let mut parts = checked_if_current(&db, seal)?;
    parts.insert(0, file);
    Ok(parts)
}

/// Checks everything, or of a schema of another version the pages alone.
fn checked_if_current(db: &Connection, seal: Option<&Seal>) -> anyhow::Result<Vec<CheckedPart>> {
    let known = migrations::EMBEDDED.len() as i64;
    let version = db.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0));
    if let Ok(version) = version
        && version != known
    {
        let why = format!("its schema is {version}, and this posthaste checks {known}; run the version that wrote it");
        let rest = CheckedPart::new("everything else", "checksums fit, and tables agree").not_checked(why);
        return Ok(vec![check_pages_alone(db), rest]);
    }
    Ok(check(db, seal))
}
