//! Checks the files of a store: those of a stopped gateway, or a backup.

use std::path::Path;

use anyhow::{Context, bail};

use super::backup_folder::{compare_with_manifest, open_copy, read_manifest};
use super::check::check_what_is_known;
use super::{Durability, STORE_FILE, lock, recover};
use crate::model::store_check::CheckedPart;
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
    Ok(check_what_is_known(&db, seal))
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
    let mut parts = check_what_is_known(&db, seal);
    parts.insert(0, file);
    Ok(parts)
}
