//! Backs up, restores and checks stores that no gateway of this process runs on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};

use super::admin_token;
use crate::clock::{Clock, SystemClock};
use crate::config::Settings;
use crate::model::backup::BackupManifest;
use crate::model::store_check::{CheckedPart, StoreCheck};
use crate::store::backup::BACK_UP_POSTGRES;
use crate::store::embedded;
pub use crate::store::embedded::restore::RestoreReport;
use crate::store::postgres;
use crate::store::seal::{MASTER_KEY_FILE, Seal};

/// Backs up the data directory of a stopped gateway into a new folder.
pub async fn back_up_stopped(settings: &Settings, folder: &Path) -> anyhow::Result<BackupManifest> {
    refuse_shared(settings)?;
    let (data, folder, key) = (settings.data.0.clone(), folder.to_owned(), key_file(settings));
    let copy = move || {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        embedded::copy::back_up_stopped(&data, &folder, &Seal::read(&key)?, &clock)
    };
    tokio::task::spawn_blocking(copy).await?
}

/// Restores a backup into the data directory of a stopped gateway.
pub async fn restore(settings: &Settings, from: &Path) -> anyhow::Result<RestoreReport> {
    refuse_shared(settings)?;
    let (data, from, key) = (settings.data.0.clone(), from.to_owned(), key_file(settings));
    let restore = move || embedded::restore::restore(&from, &data, &key, SystemClock.wall());
    let mut report = tokio::task::spawn_blocking(restore).await??;
    let hash = report.admin_token.as_deref().and_then(admin_token::from_hex);
    report.before_start.extend(hash.and_then(|hash| admin_token::no_valid_token(&settings.data.0, &hash)));
    report.before_start.extend(other_key(settings));
    Ok(report)
}

/// Returns what to know if the store was restored with another key than the one that its
/// data directory has.
fn other_key(settings: &Settings) -> Option<String> {
    let given = settings.master_key_file.0.as_ref()?;
    let own = settings.data.0.join(MASTER_KEY_FILE);
    let check = Seal::read(given).ok()?.check_text();
    if Seal::read(&own).is_ok_and(|seal| seal.fits(&check)) {
        return None;
    }
    Some(format!(
        "the store is sealed under the key in {}: the start needs that file, too, as --master-key-file or in the place of {}",
        given.display(),
        own.display()
    ))
}

/// Prepares a restored database for its first node; returns how many deliveries
/// wait in it, and how far the numbers of lanes were raised.
pub async fn prepare_database(settings: &Settings) -> anyhow::Result<(u64, i64)> {
    let Some(url) = settings.database()? else { bail!("there is no database to prepare; name it with --database-url") };
    let waiting = postgres::restored::prepare(&url, &Seal::read(&key_file(settings))?).await?;
    Ok((waiting, postgres::restored::SEQ_JUMP))
}

/// Checks a backup, or the store that the settings name. The master key is used if
/// it is there.
pub async fn check_store(settings: &Settings, backup: Option<&Path>) -> anyhow::Result<StoreCheck> {
    let key = key_file(settings);
    let seal = if key.exists() { Some(Seal::read(&key)?) } else { None };
    if let Some(url) = settings.database()?.filter(|_| backup.is_none()) {
        let parts = postgres::check::check(&url, seal.as_ref()).await?;
        return Ok(StoreCheck::new(format!("PostgreSQL at {}", url.description()), parts));
    }
    let (data, backup) = (settings.data.0.clone(), backup.map(Path::to_owned));
    let check = move || match backup {
        Some(backup) => {
            let parts = embedded::check_files::check_backup(&backup, seal.as_ref())?;
            Ok(StoreCheck::new(backup.display().to_string(), parts))
        }
        None => {
            let parts: Vec<CheckedPart> = embedded::check_files::check_stopped(&data, seal.as_ref())?;
            Ok(StoreCheck::new(data.display().to_string(), parts))
        }
    };
    tokio::task::spawn_blocking(check).await.context("the check panicked")?
}

fn refuse_shared(settings: &Settings) -> anyhow::Result<()> {
    match settings.database()? {
        Some(_) => bail!("{BACK_UP_POSTGRES}"),
        None => Ok(()),
    }
}

fn key_file(settings: &Settings) -> PathBuf {
    settings.master_key_file.0.clone().unwrap_or_else(|| settings.data.0.join(MASTER_KEY_FILE))
}
