//! Puts a backup in the place of a store.
//!
//! The copy is checked before anything is replaced. The store that was there is
//! kept beside it, in a folder of its own. A mark in the data directory keeps
//! everything else from opening the store while files are being exchanged, so that
//! a killed restore leaves either the old store, the new one, or the mark.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension};
use serde::Serialize;
use tempfile::NamedTempFile;
use tracing::{info, warn};

use super::backup_folder::{check_copy, compare_with_manifest, counts, open_copy, read_manifest};
use super::{Durability, STORE_FILE, create_folder, lock_folder, notes, recover};
use crate::model::backup::BackupManifest;
use crate::model::id::EndpointId;
use crate::model::size::RoundedSize;
use crate::store::durable_file::{create_private_folder, give_to_owner_of, put_in_place, rename, write_unnamed};
use crate::store::seal::{MissingKey, Seal};
use crate::store::{ADMIN_TOKEN_NOTE, migrations, move_mark};

/// Name of the mark of a restore that has begun and not ended.
const MARK: &str = "restoring";
/// Start of the names of files that a restore makes and nothing else reads.
const COPY_PREFIX: &str = ".restoring-";
/// Files of a store: the store itself, its log, and the index of that.
const FILES: [&str; 3] = ["posthaste.db", "posthaste.db-wal", "posthaste.db-shm"];
/// How far the numbers of all lanes are raised. Events that were accepted after the
/// backup have numbers that receivers may have seen; none of them comes again.
pub const SEQ_JUMP: i64 = 1_000_000_000;
/// Most endpoints that a report lists.
const ENDPOINTS_SHOWN: usize = 20;

/// Report of a restore: what it did, and what follows from it.
#[derive(Debug, Clone, Serialize)]
pub struct RestoreReport {
    /// Folder of the backup.
    pub from: PathBuf,
    /// Data directory that has the restored store.
    pub data: PathBuf,
    /// The moment that the store shows again.
    pub taken_at: Timestamp,
    /// Folder in which the replaced store is kept, if there was one.
    pub kept_aside: Option<PathBuf>,
    /// Deliveries that wait in the backup. Those that were delivered since will be
    /// delivered again.
    pub waiting: u64,
    /// How many of them the replaced store knows as delivered; none if it cannot be read.
    pub delivered_since: Option<u64>,
    /// Events that only the replaced store has; none if it cannot be read.
    pub events_accepted_since: Option<u64>,
    /// Endpoints with the most waiting deliveries.
    pub endpoints: Vec<WaitingEndpoint>,
    /// How far the numbers of lanes were raised.
    pub seq_raised_by: i64,
    /// What was wrong in the store when it was backed up, in words.
    pub problems: Vec<String>,
    /// What to know before the next start, in words.
    pub before_start: Vec<String>,
    /// Hash of the admin token that the restored store knows, in hexadecimal digits.
    #[serde(skip)]
    pub admin_token: Option<String>,
}

/// An endpoint, and how many deliveries of a backup wait for it.
#[derive(Debug, Clone, Serialize)]
pub struct WaitingEndpoint {
    /// Id of the tenant.
    pub tenant: String,
    /// Id of the endpoint.
    pub endpoint: EndpointId,
    /// Number of waiting deliveries.
    pub waiting: u64,
}

/// Restores a backup into a data directory whose master key is in this file.
pub fn restore(from: &Path, data: &Path, key_file: &Path, now: Timestamp) -> anyhow::Result<RestoreReport> {
    let manifest = read_manifest(from)?;
    refuse_newer(from, &manifest)?;
    create_folder(data)?;
    let _lock = lock_folder(data).context("the gateway must be stopped while its store is replaced")?;
    move_mark::refuse_if_moved(data)?;
    if !key_file.exists() {
        bail!(MissingKey { file: key_file.to_owned() });
    }
    let seal = Seal::read(key_file)?;
    refuse_without_space(data, manifest.bytes)?;
    let file = compare_with_manifest(from, &manifest)?;
    let copy = copy_into(&file, data)?;
    // First, since this also brings a backup of an older version to the present schema.
    raise_sequences(copy.path())?;
    let (waiting, endpoints, problems) = checked(copy.path(), &manifest, &seal)?;
    let admin_token = notes::read(&open_copy(copy.path())?, ADMIN_TOKEN_NOTE)?;
    let since = compare_with_replaced(data, copy.path());
    let kept_aside = exchange(data, copy, now)?;
    Ok(RestoreReport {
        from: from.to_owned(),
        data: data.to_owned(),
        taken_at: manifest.taken_at,
        kept_aside,
        waiting,
        delivered_since: since.map(|(delivered, _)| delivered),
        events_accepted_since: since.map(|(_, accepted)| accepted),
        endpoints,
        seq_raised_by: SEQ_JUMP,
        problems,
        before_start: Vec::new(),
        admin_token,
    })
}

/// Removes what a killed restore has left of its copy. The folder is locked, so no restore
/// is under way.
pub fn remove_abandoned_copies(data: &Path) {
    let Ok(entries) = std::fs::read_dir(data) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(COPY_PREFIX) {
            continue;
        }
        match std::fs::remove_file(entry.path()) {
            Ok(()) => info!("removed {}, which a restore that was cut off has left", entry.path().display()),
            Err(problem) => {
                warn!(
                    "{} is left of a restore that was cut off, and cannot be removed ({problem}); remove it: it may hold a whole store",
                    entry.path().display()
                );
            }
        }
    }
}

/// Refuses to open a data directory in which a restore was interrupted.
pub fn refuse_if_half_restored(data: &Path) -> anyhow::Result<()> {
    if !data.join(MARK).exists() {
        return Ok(());
    }
    bail!(
        "a restore into {} was interrupted; run `posthaste restore` again, or, to go back to what was there, move the \
         files from the newest folder replaced-… back and remove the file {}",
        data.display(),
        data.join(MARK).display()
    )
}

fn refuse_newer(from: &Path, manifest: &BackupManifest) -> anyhow::Result<()> {
    if manifest.schema as usize > migrations::EMBEDDED.len() {
        bail!(
            "{} is of a newer posthaste ({}, schema {}; this one knows {}); run that one",
            from.display(),
            manifest.version,
            manifest.schema,
            migrations::EMBEDDED.len()
        );
    }
    Ok(())
}

fn refuse_without_space(data: &Path, bytes: u64) -> anyhow::Result<()> {
    let disk = rustix::fs::statvfs(data)?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free < bytes {
        bail!(
            "the disk of {} has {} left and the backup takes {}; the store that is there is replaced only when the copy \
             is checked, so make room, or move that store away first",
            data.display(),
            RoundedSize(free),
            RoundedSize(bytes)
        );
    }
    Ok(())
}

/// Copies the file into the data directory, under a temporary name.
fn copy_into(file: &Path, data: &Path) -> anyhow::Result<NamedTempFile> {
    let mut copy = tempfile::Builder::new().prefix(COPY_PREFIX).suffix(".db").tempfile_in(data)?;
    give_to_owner_of(data, copy.as_file())?;
    let mut from = File::open(file)?;
    std::io::copy(&mut from, copy.as_file_mut()).with_context(|| format!("cannot copy {}", file.display()))?;
    copy.as_file().sync_all()?;
    Ok(copy)
}

/// Checks the copy whole, and counts what waits in it.
fn checked(
    copy: &Path,
    manifest: &BackupManifest,
    seal: &Seal,
) -> anyhow::Result<(u64, Vec<WaitingEndpoint>, Vec<String>)> {
    let db = open_copy(copy)?;
    let (_, problems) = check_copy(&db, seal)?;
    let counted = counts(&db)?;
    if counted != manifest.counts {
        bail!("the backup has {counted:?}, and its manifest says {:?}; use another backup", manifest.counts);
    }
    let mut statement = db.prepare(
        "SELECT t.id, p.id, count(*) AS waiting FROM deliveries d JOIN endpoints p ON p.no = d.endpoint
             JOIN tenants t ON t.no = d.tenant
         WHERE d.state = 0 AND p.deleted_at IS NULL GROUP BY d.endpoint ORDER BY waiting DESC LIMIT ?",
    )?;
    let rows = statement.query_map([ENDPOINTS_SHOWN as i64], |row| {
        let waiting: i64 = row.get(2)?;
        Ok(WaitingEndpoint { tenant: row.get(0)?, endpoint: row.get(1)?, waiting: waiting.cast_unsigned() })
    })?;
    let endpoints = rows.collect::<rusqlite::Result<_>>()?;
    Ok((counted.waiting, endpoints, problems))
}

/// Raises the numbers of all lanes, those that are forgotten included, above
/// whatever receivers may have seen since the backup.
fn raise_sequences(copy: &Path) -> anyhow::Result<()> {
    let db = Connection::open(copy)?;
    super::prepare(&db, Durability::Synced)?;
    super::migrate(&db, copy)?;
    db.execute_batch(&format!(
        "BEGIN IMMEDIATE;
         UPDATE lanes SET last_seq = last_seq + {SEQ_JUMP};
         INSERT INTO seq_floors (endpoint, floor) SELECT no, {SEQ_JUMP} FROM endpoints WHERE true
             ON CONFLICT (endpoint) DO UPDATE SET floor = floor + {SEQ_JUMP};
         COMMIT;
         PRAGMA wal_checkpoint(TRUNCATE);
         PRAGMA journal_mode = DELETE;"
    ))?;
    Ok(())
}

/// Counts what the store that is replaced knows and the backup does not: deliveries
/// that wait in the backup and were delivered since, and events that were accepted
/// since. Returns nothing if there is no such store or it cannot be read.
fn compare_with_replaced(data: &Path, copy: &Path) -> Option<(u64, u64)> {
    let path = data.join(STORE_FILE);
    if !path.exists() || data.join(MARK).exists() {
        return None;
    }
    // This also checkpoints its log, so that the store is kept in one file.
    let db = recover::open(&path, Durability::Synced).ok()?;
    db.execute("ATTACH ? AS copy", [copy.to_str()?]).ok()?;
    let count = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0)).optional().ok().flatten();
    let delivered = count(
        "SELECT count(*) FROM copy.deliveries c JOIN main.deliveries r ON r.no = c.no AND r.created_at = c.created_at
         WHERE c.state = 0 AND r.state = 1",
    )?;
    let accepted = count(
        "SELECT count(*) FROM main.events r WHERE NOT EXISTS
             (SELECT 1 FROM copy.events c WHERE c.no = r.no AND c.id = r.id AND c.tenant = r.tenant)",
    )?;
    Some((delivered.cast_unsigned(), accepted.cast_unsigned()))
}

/// Moves the store that is there aside, and the copy into its place. Returns where
/// the old store is kept.
fn exchange(data: &Path, copy: NamedTempFile, now: Timestamp) -> anyhow::Result<Option<PathBuf>> {
    let mark = data.join(MARK);
    let text = "A restore is under way. `posthaste restore` removes this file at its end.\n";
    put_in_place(write_unnamed(data, COPY_PREFIX, text)?, &mark)?;
    let old: Vec<PathBuf> = FILES.iter().map(|name| data.join(name)).filter(|file| file.exists()).collect();
    let aside = if old.is_empty() { None } else { Some(create_aside(data, now)?) };
    for file in &old {
        let (Some(aside), Some(name)) = (&aside, file.file_name()) else { continue };
        rename(file, &aside.join(name)).with_context(|| format!("cannot move {} aside", file.display()))?;
    }
    put_in_place(copy, &data.join(STORE_FILE))?;
    std::fs::remove_file(&mark)?;
    let _ = File::open(data).and_then(|folder| folder.sync_all());
    Ok(aside)
}

/// Creates a folder for the store that is replaced.
fn create_aside(data: &Path, now: Timestamp) -> anyhow::Result<PathBuf> {
    let name = format!("replaced-{}", now.strftime("%Y%m%dT%H%M%SZ"));
    for n in 1.. {
        let path = data.join(if n == 1 { name.clone() } else { format!("{name}-{n}") });
        match create_private_folder(&path) {
            Ok(()) => return Ok(path),
            Err(problem) if problem.kind() == ErrorKind::AlreadyExists => {}
            Err(problem) => return Err(problem).with_context(|| format!("cannot create {}", path.display())),
        }
    }
    unreachable!("a free name is found")
}
