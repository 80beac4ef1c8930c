//! The folder of a backup: a copy of the store and its manifest.
//!
//! Invariant: a folder has its final name only when the copy in it is complete,
//! checked and on disk, and so is its manifest. Until then its name ends in
//! `.partial`.

use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use aws_lc_rs::digest;
use rusqlite::{Connection, OpenFlags};

use super::{STORE_FILE, check};
use crate::model::backup::{BackupManifest, MANIFEST_FILE, MANIFEST_FORMAT, PARTIAL_SUFFIX, StoreCounts};
use crate::model::store_check::{CheckResult, CheckedPart};
use crate::store::durable_file::{
    create_private_folder, folder_of, give_to_owner_of, put_in_place, rename, write_unnamed,
};
use crate::store::seal::Seal;

/// Number of bytes that are read at a time.
const CHUNK_BYTES: usize = 1_024 * 1_024;
/// Start of the name that a manifest has until it is whole.
const UNFINISHED_MANIFEST_PREFIX: &str = ".manifest-";
/// Name of a file that partial folders had before the folder itself was locked.
const OLD_LOCK_FILE: &str = "lock";

/// A folder in which a backup is being made. It is removed when this is dropped
/// before the backup is complete.
pub struct PartialBackup {
    partial: PathBuf,
    folder: PathBuf,
    is_complete: bool,
    // The folder, locked: tells a backup that is being made from what a killed process left.
    _locked: File,
}

impl PartialBackup {
    /// Creates the partial folder of a backup, and its folder's parents. What a
    /// killed process left of a backup is removed.
    pub fn create(folder: &Path) -> anyhow::Result<Self> {
        if folder.symlink_metadata().is_ok() {
            bail!("{} is there already; choose another name", folder.display());
        }
        let parent = folder_of(folder);
        let unwritable = |path: &Path, problem: std::io::Error| {
            anyhow!("cannot create {} ({problem}); choose a folder that this user can write to", path.display())
        };
        DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(|problem| unwritable(parent, problem))?;
        remove_abandoned(parent);
        let mut partial = folder.as_os_str().to_owned();
        partial.push(PARTIAL_SUFFIX);
        let partial = PathBuf::from(partial);
        match create_private_folder(&partial) {
            Ok(()) => {}
            Err(problem) if problem.kind() == ErrorKind::AlreadyExists => {
                bail!("{} is there already: another process is making this backup", partial.display())
            }
            Err(problem) => return Err(unwritable(&partial, problem)),
        }
        let locked = File::open(&partial)?;
        locked.lock()?;
        Ok(Self { partial, folder: folder.to_owned(), is_complete: false, _locked: locked })
    }

    /// Returns the path of the copy's file.
    pub fn file(&self) -> PathBuf {
        self.partial.join(STORE_FILE)
    }

    /// Creates an empty database for the copy. Nothing of it is synced; that
    /// is done from another thread.
    pub fn open_target(&self) -> anyhow::Result<Connection> {
        let path = self.file();
        let file = File::options().create_new(true).write(true).mode(0o600).open(&path)?;
        give_to_owner_of(&self.partial, &file)?;
        let db = Connection::open(&path)?;
        db.execute_batch(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA locking_mode = EXCLUSIVE;
             PRAGMA cache_size = -4096; PRAGMA temp_store = MEMORY;",
        )?;
        Ok(db)
    }

    /// Writes the manifest, and gives the folder its name.
    pub fn complete(mut self, manifest: &BackupManifest) -> anyhow::Result<()> {
        let mut text = serde_json::to_string_pretty(manifest).expect("a manifest is plain data");
        text.push('\n');
        let file = write_unnamed(&self.partial, UNFINISHED_MANIFEST_PREFIX, &text)?;
        put_in_place(file, &self.partial.join(MANIFEST_FILE))?;
        File::open(&self.partial)?.sync_all()?;
        rename(&self.partial, &self.folder)
            .with_context(|| format!("cannot give {} its name", self.folder.display()))?;
        self.is_complete = true;
        Ok(())
    }
}

impl Drop for PartialBackup {
    fn drop(&mut self) {
        if !self.is_complete {
            let _ = std::fs::remove_dir_all(&self.partial);
        }
    }
}

/// Removes the partial folders that killed processes left: nobody has them locked,
/// and nothing is in them but what a backup writes.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    for path in entries.flatten().map(|entry| entry.path()).filter(|path| is_partial(path)) {
        let Ok(folder) = File::open(&path) else { continue };
        if folder.try_lock().is_ok() && has_only_parts_of_a_backup(&path) {
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

fn is_partial(folder: &Path) -> bool {
    folder.file_name().is_some_and(|name| name.to_string_lossy().ends_with(PARTIAL_SUFFIX))
}

fn has_only_parts_of_a_backup(folder: &Path) -> bool {
    let Ok(mut entries) = std::fs::read_dir(folder) else { return false };
    entries.all(|entry| {
        entry.is_ok_and(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            [STORE_FILE, MANIFEST_FILE, OLD_LOCK_FILE].contains(&&*name) || name.starts_with(UNFINISHED_MANIFEST_PREFIX)
        })
    })
}

/// Reads the manifest of a complete backup.
pub fn read_manifest(folder: &Path) -> anyhow::Result<BackupManifest> {
    if is_partial(folder) {
        bail!("{} is not a complete backup: it was cut off before it had its name; use another one", folder.display());
    }
    let path = folder.join(MANIFEST_FILE);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(problem) if matches!(problem.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => bail!(
            "{} is not a complete backup: it has no {MANIFEST_FILE}; name the folder that `posthaste backup` made",
            folder.display()
        ),
        Err(problem) => return Err(problem).with_context(|| format!("cannot read {}", path.display())),
    };
    let format = serde_json::from_str::<serde_json::Value>(&text).ok().and_then(|manifest| manifest["format"].as_u64());
    if format.is_some_and(|format| format > u64::from(MANIFEST_FORMAT)) {
        bail!("{} was written by a newer posthaste; run that one", path.display());
    }
    serde_json::from_str(&text)
        .with_context(|| format!("the manifest {} is damaged; use another backup", path.display()))
}

/// Opens a copy to be read alone: nothing is written beside it.
pub fn open_copy(file: &Path) -> anyhow::Result<Connection> {
    let path = percent_encoding::utf8_percent_encode(
        file.to_str().context("its path is not UTF-8")?,
        percent_encoding::NON_ALPHANUMERIC,
    );
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let db = Connection::open_with_flags(format!("file:{path}?immutable=1"), flags)
        .with_context(|| format!("cannot open the copy {}", file.display()))?;
    db.execute_batch("PRAGMA temp_store = MEMORY; PRAGMA cache_size = -16384;")?;
    Ok(db)
}

/// Returns the SHA-256 of a file and its size. `go_on` is called now and then, and
/// tells whether to go on.
pub fn hash_file(file: &Path, mut go_on: impl FnMut() -> bool) -> anyhow::Result<(String, u64)> {
    let mut from = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    let (mut hash, mut bytes) = (digest::Context::new(&digest::SHA256), 0);
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let count = from.read(&mut chunk).with_context(|| format!("cannot read {}", file.display()))?;
        if count == 0 {
            return Ok((hex::encode(hash.finish()), bytes));
        }
        hash.update(&chunk[..count]);
        bytes += count as u64;
        if !go_on() {
            bail!("reading {} was given up", file.display());
        }
    }
}

/// Counts what a store has.
pub fn counts(db: &Connection) -> rusqlite::Result<StoreCounts> {
    let count = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0)).map(|count| count.max(0) as u64);
    Ok(StoreCounts {
        tenants: count("SELECT count(*) FROM tenants WHERE deleted_at IS NULL")?,
        endpoints: count("SELECT count(*) FROM endpoints WHERE deleted_at IS NULL")?,
        events: count("SELECT count(*) FROM events")?,
        deliveries: count("SELECT count(*) FROM deliveries")?,
        waiting: count("SELECT count(*) FROM deliveries WHERE state = 0")?,
        dead_letters: count("SELECT count(*) FROM deliveries WHERE state = 2")?,
        attempts: count("SELECT count(*) FROM attempts")?,
    })
}

/// Compares the file of a backup with its manifest.
pub fn compare_with_manifest(folder: &Path, manifest: &BackupManifest) -> anyhow::Result<PathBuf> {
    let file = folder.join(&manifest.file);
    let (sha256, bytes) = hash_file(&file, || true)?;
    if (&sha256, bytes) != (&manifest.sha256, manifest.bytes) {
        bail!(
            "{} differs from its manifest ({bytes} bytes with the SHA-256 {sha256}, {} with {} were written): it was \
             damaged or changed since; use another backup",
            file.display(),
            manifest.bytes,
            manifest.sha256
        );
    }
    Ok(file)
}

/// Checks a copy whole, or if it has the schema of another version, as far as that is
/// known. A copy that cannot be used is an error; what was wrong in the store itself is
/// returned in words.
pub fn check_copy(db: &Connection, seal: &Seal) -> anyhow::Result<(Vec<CheckedPart>, Vec<String>)> {
    let parts = check::check_what_is_known(db, Some(seal));
    let broken = || parts.iter().filter(|part| part.result == CheckResult::Broken);
    let described =
        |part: &CheckedPart| format!("{} ({} findings): {}", part.name, part.findings_count, part.findings.join("; "));
    if let Some(part) = broken().find(|part| [check::PAGES, check::SEALED].contains(&part.name)) {
        bail!("the copy cannot be used: {}", described(part));
    }
    let problems = broken().map(described).collect();
    Ok((parts, problems))
}
