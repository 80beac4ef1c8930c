//! Rotates the master key of a stopped installation; a running one does it itself
//! (`live_keys.rs`).
//!
//! The new key is on disk beside the old one before anything is sealed under it,
//! and the old key is removed when nothing is sealed under it any more. If the
//! rotation is stopped or killed at any moment, the store opens with the file as it
//! is, and the same command finishes the rotation.

use std::path::PathBuf;

use anyhow::bail;

use crate::config::Settings;
use crate::store::embedded::{inspect, rewrap as embedded};
use crate::store::postgres::{inspect as database, rewrap as postgres};
use crate::store::seal::{MASTER_KEY_FILE, Seal};

/// The result of a rotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RotatedMasterKey {
    /// File of the new key.
    pub file: PathBuf,
    /// Number of texts sealed under the new key.
    pub count: usize,
}

/// Whether a gateway has the store open, so that it must replace the key itself.
pub async fn is_running(settings: &Settings) -> anyhow::Result<bool> {
    match settings.database()? {
        None => Ok(inspect::is_in_use(&settings.data.0)),
        Some(url) => Ok(database::inspect(&url).await?.nodes > 0),
    }
}

/// Returns the file of the master key.
pub fn key_file(settings: &Settings) -> PathBuf {
    settings.master_key_file.0.clone().unwrap_or_else(|| settings.data.0.join(MASTER_KEY_FILE))
}

/// Makes a new master key and seals everything under it.
pub async fn rotate(settings: &Settings) -> anyhow::Result<RotatedMasterKey> {
    let file = key_file(settings);
    if !file.exists() {
        bail!(
            "there is no master key file {}; name it with --master-key-file, or its folder with --data, or a running \
             gateway with --server or `posthaste context`",
            file.display()
        );
    }
    let count = match settings.database()? {
        None => {
            let (folder, file) = (settings.data.0.clone(), file.clone());
            tokio::task::spawn_blocking(move || embedded::rewrap(&folder, &file)).await??
        }
        Some(url) => postgres::rewrap(&url, &file).await?,
    };
    Seal::end_rotation(&file)?;
    Ok(RotatedMasterKey { file, count })
}
