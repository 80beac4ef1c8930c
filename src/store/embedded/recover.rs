//! Opens the store's file after a clean stop, a crash, a disk failure or a
//! power cut.
//!
//! Invariant: nothing is acknowledged before everything that this start found
//! in the write-ahead log is in the file, and synced.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, bail};
use rusqlite::{Connection, OptionalExtension};
use tracing::{error, info};

use super::wal::{self, WalState};
use super::{Durability, notes, prepare, scrub};
use crate::store::ScrubStep;

/// Small tables that are checked whole at every start.
const SMALL_TABLES: [&str; 5] = ["notes", "tenants", "endpoints", "secrets", "tokens"];
/// Size in bytes up to which a store is checked whole at every start, its
/// indexes against its rows included. Larger ones would take too long.
const WHOLE_BYTES_MAX: i64 = 32 * 1_024 * 1_024;
/// Number of the newest events that are compared with their checksums at a start.
const NEWEST: usize = 1_000;

/// Opens the file, with the whole write-ahead log checkpointed into it.
pub fn open(path: &Path, durability: Durability) -> anyhow::Result<Connection> {
    let (began, log) = (Instant::now(), with_suffix(path, "-wal"));
    let state =
        wal::rewrite_and_sync(&log).with_context(|| format!("cannot make the log {} durable", log.display()))?;
    if let WalState::Damaged { usable, unusable } = state {
        let copy = with_suffix(path, "-wal.damaged");
        let is_copied = std::fs::copy(&log, &copy).is_ok();
        error!(
            usable,
            unusable,
            "the write-ahead log {} is damaged behind its first {usable} frames: {unusable} frames cannot be used. \
             After a power cut these were never acknowledged; otherwise the newest acknowledged events may be lost, \
             so compare with what producers handed in{}",
            log.display(),
            if is_copied { format!(". The log as it was is kept as {}", copy.display()) } else { String::new() }
        );
    }
    let db = Connection::open(path).with_context(|| format!("cannot open the store {}", path.display()))?;
    prepare(&db, durability).with_context(|| format!("cannot prepare the store {}", path.display()))?;
    if state == WalState::Empty {
        return Ok(db);
    }
    checkpoint_log(&db, &log).with_context(|| format!("cannot fold the log {} into the store", log.display()))?;
    if matches!(state, WalState::Damaged { .. }) {
        // The file may hold pages that are newer than what is left of the log.
        check_integrity(&db, path, "quick_check", None)?;
    }
    let millis = began.elapsed().as_millis();
    info!(millis, "the last run did not close the store; its write-ahead log was recovered in {millis} ms");
    Ok(db)
}

/// Checkpoints the whole log into the file, and empties it for good.
fn checkpoint_log(db: &Connection, log: &Path) -> anyhow::Result<()> {
    let is_busy: bool = db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    if is_busy {
        bail!("something else reads it; end what has the store open");
    }
    // SQLite does not sync the emptied log, and an old log must not come back.
    match std::fs::File::options().write(true).open(log) {
        Ok(file) => Ok(file.sync_all()?),
        Err(problem) if problem.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(problem) => Err(problem.into()),
    }
}

/// Refuses a store whose damage would be noticed too late, and logs single
/// events that are damaged. The time it takes does not depend on the size.
pub fn check_damage(db: &Connection, path: &Path) -> anyhow::Result<()> {
    let sql = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size";
    if db.query_row(sql, [], |row| row.get::<_, i64>(0))? <= WHOLE_BYTES_MAX {
        check_integrity(db, path, "integrity_check", None)?;
    }
    for table in SMALL_TABLES {
        check_integrity(db, path, "quick_check", Some(table))?;
    }
    if let Some(name) = notes::find_damaged_note(db)? {
        bail!("{}", damage_message(path, &format!("its note {name} is not what was written")));
    }
    let newest: Option<i64> = db.query_row("SELECT max(no) FROM events", [], |row| row.get(0)).optional()?.flatten();
    let after = newest.unwrap_or(0).saturating_sub_unsigned(NEWEST as u64).max(0);
    let step = ScrubStep { after: after.cast_unsigned(), limit: NEWEST };
    let comparison =
        scrub::compare(db, step).with_context(|| damage_message(path, "its newest events cannot be read"))?;
    for (tenant, event) in &comparison.scrubbed.damaged {
        error!(event.id = %event, tenant.id = %tenant, "what is stored of event {event} is damaged; it is never sent");
    }
    Ok(())
}

/// Runs one of SQLite's integrity checks on a table, or on the whole store.
fn check_integrity(db: &Connection, path: &Path, check: &str, table: Option<&str>) -> anyhow::Result<()> {
    let argument = table.map_or(String::from("(1)"), |table| format!("({table})"));
    let answer: String = db
        .query_row(&format!("PRAGMA {check}{argument}"), [], |row| row.get(0))
        .with_context(|| damage_message(path, "SQLite cannot read it"))?;
    if answer == "ok" { Ok(()) } else { bail!("{}", damage_message(path, &answer)) }
}

fn damage_message(path: &Path, how: &str) -> String {
    format!("the store {} is damaged ({how}); restore a backup, and check the disk", path.display())
}

fn with_suffix(path: &Path, suffix: &str) -> std::path::PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a store and closes it. A store that is only dropped would still
    /// be closing its log on another thread.
    async fn store(folder: &Path) -> std::path::PathBuf {
        let path = folder.join("posthaste.db");
        super::super::EmbeddedStore::open(folder, Durability::Unsynced).unwrap().close().await;
        path
    }

    #[tokio::test]
    async fn what_a_crash_left_in_the_log_is_in_the_file_before_anything_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = store(folder.path()).await;
        let db = open(&path, Durability::Synced).unwrap();
        db.execute("INSERT INTO notes (name, value) VALUES ('a', 'b')", []).unwrap();
        let log = with_suffix(&path, "-wal");
        let bytes = std::fs::read(&log).unwrap();
        drop(db);
        std::fs::write(&log, bytes).unwrap();
        let db = open(&path, Durability::Synced).unwrap();
        assert_eq!(std::fs::metadata(&log).map_or(0, |log| log.len()), 0, "the log is empty");
        let known: String = db.query_row("SELECT value FROM notes WHERE name = 'a'", [], |row| row.get(0)).unwrap();
        assert_eq!(known, "b");
    }

    #[tokio::test]
    async fn a_row_that_differs_from_its_index_is_noticed_before_it_is_parked_in_silence() {
        let folder = tempfile::tempdir().unwrap();
        let path = store(folder.path()).await;
        let db = open(&path, Durability::Unsynced).unwrap();
        db.execute_batch(
            "INSERT INTO deliveries (no, tenant, endpoint, event, created_at, format, state, behind, due_at)
                 VALUES (1, 1, 1, 1, 1000, 0, 0, 0, 1000);
             PRAGMA writable_schema = ON;
             UPDATE sqlite_schema SET sql = 'CREATE INDEX deliveries_due ON deliveries (endpoint, behind, created_at) WHERE state = 0'
                 WHERE name = 'deliveries_due';
             PRAGMA writable_schema = RESET;
             UPDATE deliveries SET due_at = 9000;
             PRAGMA writable_schema = ON;
             UPDATE sqlite_schema SET sql = 'CREATE INDEX deliveries_due ON deliveries (endpoint, behind, due_at) WHERE state = 0'
                 WHERE name = 'deliveries_due';
             PRAGMA writable_schema = RESET;",
        )
        .unwrap();
        let refused = format!("{:#}", check_damage(&db, &path).unwrap_err());
        assert!(refused.contains("deliveries_due"), "{refused}");
    }

    #[tokio::test]
    async fn a_note_that_is_not_what_was_written_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = store(folder.path()).await;
        let db = open(&path, Durability::Unsynced).unwrap();
        notes::write(&db, "clock", r#"{"base_ms":1794818184629}"#).unwrap();
        check_damage(&db, &path).unwrap();
        db.execute(r#"UPDATE notes SET value = '{"base_ms":1790818184629}' WHERE name = 'clock'"#, []).unwrap();
        let refused = format!("{:#}", check_damage(&db, &path).unwrap_err());
        assert!(refused.contains("is damaged (its note clock is not what was written)"), "{refused}");
    }

    #[tokio::test]
    async fn a_store_whose_settings_are_damaged_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = store(folder.path()).await;
        let db = Connection::open(&path).unwrap();
        let root: i64 =
            db.query_row("SELECT rootpage FROM sqlite_schema WHERE name = 'tenants'", [], |row| row.get(0)).unwrap();
        drop(db);
        let mut bytes = std::fs::read(&path).unwrap();
        let at = usize::try_from(root - 1).unwrap() * 4_096;
        bytes[at..at + 8].fill(0xff);
        std::fs::write(&path, bytes).unwrap();
        let db = open(&path, Durability::Unsynced).unwrap();
        let refused = format!("{:#}", check_damage(&db, &path).unwrap_err());
        assert!(refused.contains("is damaged") && refused.contains("restore a backup"), "{refused}");
    }
}
