//! The embedded store: one SQLite file, one writer, many readers.
//!
//! Opening locks the data directory, checks the version, runs the missing
//! migrations and loads the catalog. The log mode is WAL with
//! `synchronous=FULL`, so a commit is on disk before anyone is answered.

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, bail};
use jiff::Timestamp;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension};
use tokio::sync::Semaphore;
use tracing::{debug, info};

use super::catalog_index::CatalogIndex;
use super::durable_file::give_to_owner_of;
use super::seal::{CHECK_NOTE, MASTER_KEY_FILE, Seal};
use super::{Error, Result, migrations};
use crate::metrics::CommitMetrics;
use crate::model::id::JobId;
use checkpoint::{CheckpointTrigger, Checkpointer};
use failure::failure_of;
use overwrite::Overwriting;
use writer::Writer;

mod accept;
mod access;
mod attempt_record;
mod backfill;
pub mod backup_folder;
mod catalog;
mod change;
pub mod check;
pub mod check_files;
mod check_rules;
mod checkpoint;
mod claim;
mod cluster;
pub mod copy;
mod copy_steps;
mod count_changes;
mod dead_letters;
mod deleted_tenant;
mod endpoint;
mod expunge;
mod failure;
mod figures;
mod forget;
mod history;
pub mod inspect;
mod job_candidates;
mod job_rows;
mod jobs;
mod lane;
mod notes;
mod operational_events;
mod overdue;
mod overwrite;
mod pages;
mod purge;
mod purge_figures;
mod purge_rows;
mod queue;
mod recover;
mod resealing;
pub mod restore;
pub mod rewrap;
mod rows;
mod scrub;
mod settle;
mod sign_ins;
pub mod store_source;
mod sweep;
mod wal;
mod write_queue;
mod writer;

/// Name of the store's file in a data directory.
pub const STORE_FILE: &str = "posthaste.db";

/// Size in bytes to which the write-ahead log is cut after a checkpoint. It
/// grows beyond that while somebody reads what is in it.
pub const LOG_BYTES_MAX: u64 = 128 * 1_024 * 1_024;

/// Number of read-only connections, for lists, lookups and due reads. A read
/// takes a second or two at worst, since none reads an unbounded number of rows.
const READERS: usize = 4;

/// Size of the writer's page cache. Nearly every commit makes SQLite look at each
/// page in it, so a larger one costs more than it saves.
const CACHE_KIB: usize = 8 * 1_024;

/// The embedded store.
pub struct EmbeddedStore {
    shared: Arc<EmbeddedState>,
    writer: Writer,
    writer_thread: Mutex<Option<JoinHandle<()>>>,
    checkpointer: Checkpointer,
    /// Progress of overwriting, by the purge that does it.
    overwriting: Mutex<HashMap<JobId, Overwriting>>,
}

struct EmbeddedState {
    index: Arc<RwLock<CatalogIndex>>,
    /// Seal of the writer, which shares its keys.
    seal: Seal,
    readers: Mutex<Vec<Connection>>,
    readers_free: Semaphore,
    _lock: FolderLock,
}

/// Whether commits are synced to disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Every commit is synced to disk before it is answered.
    Synced,
    /// Commits may stay in the system's memory: for simulations in temporary
    /// folders.
    Unsynced,
}

impl EmbeddedStore {
    /// Opens the store in a data directory with the master key there. Creates
    /// whatever is missing.
    pub fn open(folder: &Path, durability: Durability) -> anyhow::Result<Self> {
        create_folder(folder)?;
        let (seal, _) = Seal::load_or_create(&folder.join(MASTER_KEY_FILE))?;
        Self::open_with(folder, durability, seal, Arc::default())
    }

    /// Opens the store like [`EmbeddedStore::open`], with a key from elsewhere
    /// and metrics of its commits.
    pub fn open_with(
        folder: &Path,
        durability: Durability,
        seal: Seal,
        commits: Arc<CommitMetrics>,
    ) -> anyhow::Result<Self> {
        create_folder(folder)?;
        let lock = lock(folder)?;
        let path = folder.join(STORE_FILE);
        // The file holds secrets and payloads. SQLite gives its log the same mode.
        let file = File::options()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("cannot write the store {}", path.display()))?;
        give_to_owner_of(folder, file)?;
        sync_folder(folder);
        let db = recover::open(&path, durability)?;
        migrate(&db, &path)?;
        recover::check_damage(&db, &path)?;
        let seal = check_master_key(&db, &seal)?;
        let index = Arc::new(RwLock::new(catalog::load(&db, &seal)?));
        let next_delivery = next_delivery(&db)?;
        let readers = (0..READERS).map(|_| reader(&path)).collect::<rusqlite::Result<Vec<_>>>()?;
        let checkpoint_db = Connection::open(&path)?;
        prepare(&checkpoint_db, durability)?;
        let checkpoint_trigger = CheckpointTrigger::default();
        let checkpointer = Checkpointer::start(checkpoint_trigger.clone(), checkpoint_db);
        let (writer, thread) =
            Writer::start(db, seal.clone(), index.clone(), next_delivery, commits, checkpoint_trigger);
        let shared = EmbeddedState {
            index,
            seal,
            readers_free: Semaphore::new(readers.len()),
            readers: Mutex::new(readers),
            _lock: lock,
        };
        Ok(Self {
            shared: Arc::new(shared),
            writer,
            writer_thread: Mutex::new(Some(thread)),
            checkpointer,
            overwriting: Mutex::default(),
        })
    }

    /// Finishes the queued jobs, checkpoints the log and closes the file.
    pub async fn close(self) {
        let _ = tokio::task::spawn_blocking(move || self.checkpointer.stop()).await;
        let thread = self.writer_thread.lock().take();
        // The writer's connection must be closed last: it then removes the log.
        self.shared.readers.lock().clear();
        drop(self.writer);
        if let Some(thread) = thread {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }

    /// Returns what tells how many bytes of events are in the log alone. It does not keep
    /// the store open.
    pub fn event_bytes_in_log(&self) -> impl Fn() -> u64 + Send + Sync + use<> {
        let trigger = self.checkpointer.trigger().clone();
        move || trigger.event_bytes()
    }

    /// Returns the time at which the last event was accepted.
    pub async fn latest_accepted(&self) -> Result<Option<Timestamp>> {
        let sql = "SELECT accepted_at FROM events ORDER BY no DESC LIMIT 1";
        self.read(|db| db.query_row(sql, [], |row| row.get(0)).optional()).await.map(|latest| latest.map(rows::at))
    }

    fn index(&self) -> RwLockReadGuard<'_, CatalogIndex> {
        self.shared.index.read()
    }

    /// Runs a query on a read-only connection, away from the async threads.
    async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let shared = self.shared.clone();
        let permit = self.shared.readers_free.acquire().await.expect("it is never closed");
        let answer = tokio::task::spawn_blocking(move || {
            // Each permit stands for one connection, until the store is closed.
            let db = shared.readers.lock().pop()?;
            let answer = query(&db);
            shared.readers.lock().push(db);
            Some(answer)
        })
        .await;
        drop(permit);
        match answer {
            Ok(Some(Ok(value))) => Ok(value),
            Ok(Some(Err(problem))) => Err(failure_of(&problem)),
            Ok(None) => Err(Error::Unavailable("it has been closed".into())),
            Err(_) => Err(Error::Unavailable("a read panicked; see the log".into())),
        }
    }
}

/// Creates a data directory that only its owner may read.
pub fn create_folder(folder: &Path) -> anyhow::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("cannot create the data directory {}", folder.display()))
}

/// Refuses a key other than the one that the store is sealed under. The first
/// key that a store is opened with becomes its key.
fn check_master_key(db: &Connection, seal: &Seal) -> anyhow::Result<Seal> {
    let check = notes::write_once(db, CHECK_NOTE, &seal.check_text())?;
    Ok(seal.for_store(&check)?)
}

/// Syncs a new folder and its parent, so that file names are as durable as the
/// files. Where folders cannot be synced there is nothing more to do.
fn sync_folder(folder: &Path) {
    let parent = folder.canonicalize().ok().and_then(|path| path.parent().map(Path::to_owned));
    for folder in [Some(folder.to_owned()), parent].into_iter().flatten() {
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
    }
}

/// The lock of a data directory, released when this is dropped; the system releases
/// it when the process dies.
pub struct FolderLock(File);

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Closing the file is not enough: a process that is being started by this one
        // has a copy of it for a moment, and the lock with it.
        let _ = self.0.unlock();
    }
}

/// Locks a data directory, unless it is in use or half restored.
fn lock(folder: &Path) -> anyhow::Result<FolderLock> {
    let lock = lock_folder(folder)?;
    restore::refuse_if_half_restored(folder)?;
    Ok(lock)
}

fn lock_folder(folder: &Path) -> anyhow::Result<FolderLock> {
    let path = folder.join("lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    give_to_owner_of(folder, &file)?;
    match file.try_lock() {
        Ok(()) => {
            restore::remove_abandoned_copies(folder);
            Ok(FolderLock(file))
        }
        Err(TryLockError::WouldBlock) => bail!(
            "the data directory {} is in use by another posthaste; stop that one, or choose another directory with --data",
            folder.display()
        ),
        Err(TryLockError::Error(problem)) => Err(problem).with_context(|| format!("cannot lock {}", path.display())),
    }
}

/// Returns the number for the next delivery. It is above the numbers of all
/// deliveries, and above those that an event still refers to although they are
/// deleted.
fn next_delivery(db: &Connection) -> rusqlite::Result<i64> {
    db.query_row(
        "SELECT max(coalesce((SELECT max(no) + 1 FROM deliveries), 1),
                    coalesce((SELECT first_delivery + deliveries FROM events ORDER BY no DESC LIMIT 1), 1),
                    coalesce((SELECT max(delivery) + 1 FROM backfilled), 1))",
        [],
        |row| row.get(0),
    )
}

fn prepare(db: &Connection, durability: Durability) -> rusqlite::Result<()> {
    let synchronous = match durability {
        Durability::Synced => "FULL",
        Durability::Unsynced => "OFF",
    };
    db.execute_batch(&format!(
        "PRAGMA journal_mode = WAL;
         PRAGMA synchronous = {synchronous};
         PRAGMA busy_timeout = 5000;
         PRAGMA cache_size = -{CACHE_KIB};
         PRAGMA temp_store = MEMORY;
         PRAGMA wal_autocheckpoint = 16000;
         PRAGMA journal_size_limit = {LOG_BYTES_MAX};"
    ))?;
    plan_statements_once(db)?;
    db.set_prepared_statement_cache_capacity(128);
    Ok(())
}

/// Makes SQLite plan a statement once. Otherwise it plans anew at every
/// execution of a statement whose bound values might make another partial
/// index fit, which took 15 % of all CPU time with a backlog.
fn plan_statements_once(db: &Connection) -> rusqlite::Result<()> {
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

fn reader(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags)?;
    db.execute_batch("PRAGMA busy_timeout = 5000; PRAGMA cache_size = -4096;")?;
    plan_statements_once(&db)?;
    db.set_prepared_statement_cache_capacity(64);
    Ok(db)
}

fn migrate(db: &Connection, path: &Path) -> anyhow::Result<()> {
    let version: i64 = db.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let version = usize::try_from(version).unwrap_or(usize::MAX);
    let newest = migrations::EMBEDDED.len();
    if version > newest {
        bail!(
            "the store {} was written by a newer posthaste (its version is {version}, this one knows {newest}); run that one, or restore a backup from before",
            path.display()
        );
    }
    // A store that this start creates is no older one.
    let is_older = (1..newest).contains(&version);
    if is_older {
        info!(
            "the store {} has the schema {version} and is brought to {newest}; nothing is accepted until that is done",
            path.display()
        );
    }
    let began = Instant::now();
    for (n, migration) in migrations::EMBEDDED.iter().enumerate().skip(version) {
        let (version, began) = (n + 1, Instant::now());
        db.execute_batch(&format!("BEGIN IMMEDIATE; {migration} PRAGMA user_version = {version}; COMMIT"))
            .with_context(|| format!("cannot bring the store {} to version {version}", path.display()))?;
        debug!("step {version} of the schema took {:.2} s", began.elapsed().as_secs_f64());
    }
    if is_older {
        info!("the store has the schema {newest} after {:.1} s", began.elapsed().as_secs_f64());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI64;
    use std::sync::atomic::Ordering::Relaxed;

    use rusqlite::StatementStatus;

    use super::*;
    use crate::metrics::Metrics;
    use crate::store::{Catalog, DeliveryQueue};

    #[test]
    fn a_statement_is_planned_once_whatever_values_are_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("posthaste.db");
        let writer = Connection::open(&path).unwrap();
        prepare(&writer, Durability::Unsynced).unwrap();
        migrate(&writer, &path).unwrap();
        for db in [&writer, &reader(&path).unwrap()] {
            // Index deliveries_due has the condition that the state is 0.
            let mut read =
                db.prepare("SELECT no FROM deliveries WHERE state = ? AND behind = 0 AND endpoint = 1").unwrap();
            for state in [0, 1, 0] {
                assert!(!read.exists([state]).unwrap());
            }
            assert_eq!(read.get_status(StatementStatus::RePrepare), 0);
        }
    }

    #[test]
    fn sqlite_counts_no_allocations() {
        let db = Connection::open_in_memory().unwrap();
        let options = "SELECT count(*) FROM pragma_compile_options WHERE compile_options = 'DEFAULT_MEMSTATUS=0'";
        assert_eq!(db.query_row(options, [], |row| row.get::<_, i64>(0)).unwrap(), 1);
    }

    /// CONTRIBUTING.md says how steps of the schema do it.
    #[test]
    fn a_column_is_added_to_a_strict_table_without_reading_it_where_its_text_is_changed() {
        const ROWS: i64 = 5_000;
        let mut db = Connection::open_in_memory().unwrap();
        db.execute_batch(&format!(
            "CREATE TABLE many (no INTEGER PRIMARY KEY) STRICT;
             WITH RECURSIVE counted(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < {ROWS})
                 INSERT INTO many SELECT n FROM counted"
        ))
        .unwrap();
        let operations = Arc::new(AtomicI64::new(0));
        let counted = operations.clone();
        let count = move || {
            counted.fetch_add(1, Relaxed);
            false
        };
        db.progress_handler(1, Some(count)).unwrap();
        let taken = |sql: &str| {
            operations.store(0, Relaxed);
            db.execute_batch(sql).unwrap();
            operations.load(Relaxed)
        };
        assert!(taken("BEGIN; ALTER TABLE many ADD COLUMN slow TEXT; COMMIT") > ROWS, "SQLite checks each row");
        let quick = taken(
            "BEGIN; PRAGMA writable_schema = ON;
             UPDATE sqlite_schema SET sql = replace(sql, ') STRICT', ', quick INTEGER NOT NULL DEFAULT 7) STRICT')
                 WHERE type = 'table' AND name = 'many';
             PRAGMA writable_schema = RESET; COMMIT",
        );
        assert!(quick < ROWS / 10, "{quick} operations");
        db.execute_batch("INSERT INTO many (slow, quick) VALUES ('x', 8)").unwrap();
        let sum: i64 = db.query_row("SELECT sum(quick) FROM many", [], |row| row.get(0)).unwrap();
        assert_eq!(sum, ROWS * 7 + 8);
        let check: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(check, "ok");
    }

    #[tokio::test]
    async fn a_store_of_an_older_version_is_brought_up_with_what_is_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let db = Connection::open(folder.path().join("posthaste.db")).unwrap();
        db.execute_batch(&format!("{} PRAGMA user_version = 1;", migrations::EMBEDDED[0])).unwrap();
        let (seal, _) = Seal::load_or_create(&folder.path().join(MASTER_KEY_FILE)).unwrap();
        let id = crate::model::id::EndpointId(uuid::Uuid::from_u128(0x0190_a0b0_c0d0_7000_8000_0000_0000_000a));
        let settings = r#"{"url":"https://a.example/","retry":{"schedule":["0s","1h"],"max_age":"59m"}}"#;
        let sealed = seal.seal(&crate::store::seal::about_settings(id), settings);
        db.execute_batch(
            r#"INSERT INTO tenants VALUES (1, 'default', 'Default', '{}', 0, NULL);
               INSERT INTO endpoints VALUES (1, x'0190a0b0c0d07000800000000000000a', 1, x'',
                   '{"state":"active","reason":null,"since":"2026-01-01T00:00:00Z","held_ms":0}', 0, 0, NULL, NULL, 0);
               INSERT INTO events (no, tenant, id, type, accepted_at, first_delivery, deliveries, data)
                   VALUES (1, 1, 'e', 'a.b', 1000, 1, 2, x'7b7d');
               INSERT INTO deliveries (no, tenant, endpoint, event, created_at, format, state, behind, due_at)
                   VALUES (1, 1, 1, 1, 1000, 0, 0, 0, 1000);
               INSERT INTO deliveries (no, tenant, endpoint, event, created_at, format, state, behind, due_at,
                                       attempts, first_attempt_at, age_from)
                   VALUES (2, 1, 1, 1, 1000, 0, 0, 0, 9000, 1, 2000, 2000);"#,
        )
        .unwrap();
        db.execute("UPDATE endpoints SET settings = ?", [sealed]).unwrap();
        drop(db);
        let store = EmbeddedStore::open(folder.path(), Durability::Unsynced).unwrap();
        let at = |millis| jiff::Timestamp::from_millisecond(millis).unwrap();
        let overdue = store.read_overdue(at(10_000), 10).await.unwrap();
        assert_eq!(overdue.found.len(), 1, "the one that was tried is looked at");
        assert_eq!(overdue.found[0].progress.begun_at, Some(at(1_000)));
        let (endpoint, due_at) = store.earliest_due().await.unwrap()[0];
        assert_eq!(due_at, at(1_000));
        let known = store.any_endpoint(endpoint).unwrap();
        assert_eq!(known.settings.status_rules, Default::default());
        assert_eq!(known.policy.max_age.to_string(), "59m", "also what would be refused today");
        store.close().await;
    }

    #[tokio::test]
    async fn a_commit_is_counted_as_made_or_as_failed() {
        let folder = tempfile::tempdir().unwrap();
        let metrics = Metrics::new(jiff::Timestamp::UNIX_EPOCH);
        let store = EmbeddedStore::open_with(
            folder.path(),
            Durability::Unsynced,
            Seal::from_key([1; 32]),
            metrics.commit_metrics(),
        )
        .unwrap();
        let count = |name: &str| -> u64 {
            let text = metrics.encode(&Default::default());
            let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("it is shown");
            line.trim().parse().expect("a number")
        };
        let (made, failed) = ("posthaste_store_commit_jobs_count", "posthaste_store_writes_failed_total");
        store.put_setting("a", "1".into()).await.unwrap();
        assert_eq!((count(made), count(failed)), (1, 0));
        let refused = store.writer.write(|transaction| transaction.db.execute("INSERT INTO nowhere VALUES (1)", []));
        assert!(refused.await.is_err());
        assert_eq!((count(made), count(failed)), (1, 1));
        assert_eq!(count("posthaste_store_commit_duration_seconds_count"), 1);
        store.close().await;
    }
}
