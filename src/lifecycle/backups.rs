//! Makes backups of the running gateway's store, one at a time, into the folder
//! that the operator chose.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tracing::{error, info};

use crate::clock::Clock;
use crate::model::backup::{BackupManifest, MANIFEST_FILE, PARTIAL_SUFFIX, backup_name, is_backup_name};
use crate::model::size::RoundedSize;
use crate::store::backup::{BACK_UP_POSTGRES, CopyProgress, StoreCopier};

/// Why a backup was not begun.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackupRefusal {
    /// The store is in PostgreSQL.
    #[error("{BACK_UP_POSTGRES}")]
    Shared,
    /// The operator has chosen no folder.
    #[error("this gateway has no folder for backups; start it with --backup-dir DIR, on another disk than the data")]
    NoFolder,
    /// Another backup is being made.
    #[error("backup {0} is being made; wait for its end")]
    Running(String),
    /// The name cannot be that of a folder.
    #[error("{0:?} cannot be the name of a backup; use up to 100 letters, digits, dots, dashes and underscores")]
    Name(String),
    /// A backup or another file of that name exists.
    #[error("there is a backup {0} already; choose another name")]
    Exists(String),
    /// Nothing can be written to the folder.
    #[error(
        "backups cannot be written to {folder} ({why}); let the gateway's user write there (under systemd with \
         ReadWritePaths=, see docs/backup.md), or choose another --backup-dir"
    )]
    Unwritable {
        /// Folder of the backups.
        folder: String,
        /// What the system says.
        why: String,
    },
    /// The disk is too full for the copy.
    #[error(
        "the disk of {folder} has {free} left, and the backup needs {needed}; make room, or choose another --backup-dir"
    )]
    NoSpace {
        /// Folder of the backups.
        folder: String,
        /// Free space there.
        free: RoundedSize,
        /// Space that the copy and the reserve need.
        needed: RoundedSize,
    },
    /// The store cannot be read.
    #[error("{0}")]
    Unavailable(String),
}

/// State of a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackupState {
    /// Pages are being copied.
    Copying,
    /// The copy is being checked.
    Checking,
    /// The backup is complete.
    Finished,
    /// The backup was given up; nothing of it is left.
    Failed,
}

/// A backup that this process makes or has made, or that is in the folder.
#[derive(Debug, Clone)]
pub struct BackupRecord {
    /// Name of the backup, which is that of its folder.
    pub name: String,
    /// Folder of the backup.
    pub folder: PathBuf,
    /// Its state now.
    pub state: BackupState,
    /// When it was begun, wall time.
    pub began_at: Timestamp,
    /// Bytes that are copied, and bytes that there are.
    pub bytes: (u64, u64),
    /// Its manifest, once it is complete.
    pub manifest: Option<BackupManifest>,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

/// The last backup that this process began.
struct LatestBackup {
    name: String,
    began_at: Timestamp,
    progress: Arc<CopyProgress>,
    outcome: Option<Result<BackupManifest, String>>,
    task: Option<JoinHandle<()>>,
}

/// The backups of a gateway.
pub struct Backups {
    store: Option<Arc<dyn StoreCopier>>,
    folder: Option<PathBuf>,
    /// Disk space that a backup leaves free, and the folder whose disk needs it.
    reserve: (u64, PathBuf),
    clock: Arc<dyn Clock>,
    latest: Mutex<Option<LatestBackup>>,
}

impl Backups {
    /// Creates the backups of a store that can copy itself, if it can. A backup
    /// on the disk of `data` leaves `reserve_bytes` free there.
    pub fn new(
        store: Option<Arc<dyn StoreCopier>>,
        folder: Option<PathBuf>,
        (reserve_bytes, data): (u64, PathBuf),
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { store, folder, reserve: (reserve_bytes, data), clock, latest: Mutex::default() }
    }

    /// Returns the folder of the backups, if backups can be made here.
    pub fn folder(&self) -> Result<&Path, BackupRefusal> {
        if self.store.is_none() {
            return Err(BackupRefusal::Shared);
        }
        self.folder.as_deref().ok_or(BackupRefusal::NoFolder)
    }

    /// Checks whether a backup of this name can be made now, or one named after the
    /// time; returns its name.
    pub async fn check(&self, name: Option<String>) -> Result<String, BackupRefusal> {
        let folder = self.folder()?.to_owned();
        let name = name.unwrap_or_else(|| backup_name(self.clock.wall()));
        if !is_backup_name(&name) {
            return Err(BackupRefusal::Name(name));
        }
        self.refuse_if_running()?;
        if folder.join(&name).symlink_metadata().is_ok() {
            return Err(BackupRefusal::Exists(name));
        }
        let store = self.store.as_ref().ok_or(BackupRefusal::Shared)?;
        let size = store.size().await.map_err(|problem| BackupRefusal::Unavailable(problem.to_string()))?;
        self.refuse_unfit(&folder, size)?;
        Ok(name)
    }

    /// Begins a backup whose name was checked.
    pub fn begin(self: &Arc<Self>, name: String) -> Result<BackupRecord, BackupRefusal> {
        let folder = self.folder()?.join(&name);
        let store = self.store.clone().ok_or(BackupRefusal::Shared)?;
        let mut latest = self.latest.lock();
        if let Some(running) = latest.as_ref().filter(|backup| backup.outcome.is_none()) {
            return Err(BackupRefusal::Running(running.name.clone()));
        }
        let (progress, backups) = (Arc::new(CopyProgress::default()), self.clone());
        let (clock, copied) = (self.clock.clone(), progress.clone());
        let path = folder.clone();
        let task = tokio::spawn(async move {
            let outcome = store.back_up(&path, clock, copied).await;
            backups.finish(outcome);
        });
        let began_at = self.clock.wall();
        let begun = LatestBackup { name, began_at, progress, outcome: None, task: Some(task) };
        let record = begun.record(folder);
        *latest = Some(begun);
        Ok(record)
    }

    fn refuse_if_running(&self) -> Result<(), BackupRefusal> {
        match self.latest.lock().as_ref().filter(|backup| backup.outcome.is_none()) {
            Some(running) => Err(BackupRefusal::Running(running.name.clone())),
            None => Ok(()),
        }
    }

    fn refuse_unfit(&self, folder: &Path, size: u64) -> Result<(), BackupRefusal> {
        let unwritable = |problem: std::io::Error| BackupRefusal::Unwritable {
            folder: folder.display().to_string(),
            why: problem.to_string(),
        };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(unwritable)?;
        tempfile::tempfile_in(folder).map_err(unwritable)?;
        let disk = rustix::fs::statvfs(folder).map_err(|problem| unwritable(problem.into()))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let device = |path: &Path| rustix::fs::stat(path).map(|stat| stat.st_dev).ok();
        let reserve = if device(folder) == device(&self.reserve.1) { self.reserve.0 } else { 0 };
        // It may grow while it is copied.
        let needed = (size + size / 10).saturating_add(reserve);
        if free < needed {
            return Err(BackupRefusal::NoSpace {
                folder: folder.display().to_string(),
                free: RoundedSize(free),
                needed: RoundedSize(needed),
            });
        }
        Ok(())
    }

    fn finish(&self, outcome: anyhow::Result<BackupManifest>) {
        let mut latest = self.latest.lock();
        let Some(backup) = latest.as_mut() else { return };
        match &outcome {
            Ok(manifest) => {
                let seconds = manifest.finished_at.duration_since(manifest.began_at).as_secs();
                info!(
                    backup = backup.name,
                    "backup {} is complete: {}, in {seconds} s",
                    backup.name,
                    RoundedSize(manifest.bytes)
                );
                for problem in &manifest.problems {
                    error!(
                        backup = backup.name,
                        "backup {} shows that the store is not in order: {problem}", backup.name
                    );
                }
            }
            Err(problem) => {
                error!(backup = backup.name, "backup {} failed, and nothing of it is left: {problem:#}", backup.name);
            }
        }
        backup.outcome = Some(outcome.map_err(|problem| format!("{problem:#}")));
    }

    /// Returns all backups, newest first: those in the folder, and the last one of
    /// this process if it is under way or has failed.
    pub fn list(&self) -> Result<Vec<BackupRecord>, BackupRefusal> {
        let folder = self.folder()?;
        let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let names = names.filter_map(|name| name.into_string().ok()).filter(|name| !name.ends_with(PARTIAL_SUFFIX));
        let mut records: Vec<BackupRecord> = names.filter_map(|name| finished(folder, &name)).collect();
        let latest = self.latest.lock().as_ref().map(|latest| latest.record(folder.join(&latest.name)));
        records.extend(latest.filter(|latest| latest.state != BackupState::Finished));
        records.sort_by(|a, b| (b.began_at, &b.name).cmp(&(a.began_at, &a.name)));
        Ok(records)
    }

    /// Returns one backup, if it is there.
    pub fn find(&self, name: &str) -> Result<Option<BackupRecord>, BackupRefusal> {
        let folder = self.folder()?;
        let latest = self.latest.lock();
        if let Some(latest) = latest.as_ref().filter(|latest| latest.name == name) {
            return Ok(Some(latest.record(folder.join(name))));
        }
        Ok(if is_backup_name(name) { finished(folder, name) } else { None })
    }

    /// Gives up the backup that is being made, if there is one, and lets go of the
    /// store.
    pub async fn stop(&self) {
        let task = self.latest.lock().as_mut().and_then(|latest| {
            latest.progress.give_up();
            latest.task.take()
        });
        if let Some(task) = task {
            task.abort();
            let _ = task.await;
        }
    }
}

/// Reads a complete backup of this name, if it is one.
fn finished(folder: &Path, name: &str) -> Option<BackupRecord> {
    let folder = folder.join(name);
    let text = std::fs::read_to_string(folder.join(MANIFEST_FILE)).ok()?;
    let manifest: BackupManifest = serde_json::from_str(&text).ok()?;
    Some(BackupRecord {
        name: name.to_owned(),
        folder,
        state: BackupState::Finished,
        began_at: manifest.began_at,
        bytes: (manifest.bytes, manifest.bytes),
        manifest: Some(manifest),
        error: None,
    })
}

impl LatestBackup {
    fn record(&self, folder: PathBuf) -> BackupRecord {
        let state = match &self.outcome {
            None if self.progress.is_checking() => BackupState::Checking,
            None => BackupState::Copying,
            Some(Ok(_)) => BackupState::Finished,
            Some(Err(_)) => BackupState::Failed,
        };
        let manifest = self.outcome.as_ref().and_then(|outcome| outcome.as_ref().ok()).cloned();
        BackupRecord {
            name: self.name.clone(),
            folder,
            state,
            began_at: self.began_at,
            bytes: manifest.as_ref().map_or_else(|| self.progress.bytes(), |manifest| (manifest.bytes, manifest.bytes)),
            error: self.outcome.as_ref().and_then(|outcome| outcome.as_ref().err()).cloned(),
            manifest,
        }
    }
}
