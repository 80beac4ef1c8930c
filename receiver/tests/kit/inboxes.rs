//! The three inboxes with a handler whose effects can be read and whose
//! failures can be chosen.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use deadpool_postgres::{Manager, Pool};
use http::HeaderMap;
use posthaste_receiver::{
    Event, Format, Handler, HandlerError, Inbox, InboxSettings, MemoryInbox, Place, PostgresHandler, PostgresInbox,
    SqliteHandler, SqliteInbox,
};
use tokio::sync::{Notify, OnceCell};
use tokio_postgres::NoTls;

use crate::servers::postgres::{Database, Server};
use crate::signed::envelope;

pub const GAP_TIMEOUT: Duration = Duration::from_secs(30);

/// What the handler does with its next event, after it has written its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Apply,
    Fail,
    Refuse,
    Panic,
    /// It returns `Ok`, and its transaction cannot be committed; in memory it fails.
    Uncommittable,
    /// It waits, not in SQLite, until the test lets it go on, and then applies.
    Hold,
    /// The machine stops before the commit. SQLite's files show what that leaves
    /// behind, and PostgreSQL ends the session; in memory the handler fails.
    Crash,
}

/// What the handler of one inbox has done, and what it will do.
#[derive(Clone, Default)]
pub struct Script {
    outcomes: Arc<Mutex<VecDeque<Outcome>>>,
    /// Effects of the inbox in memory.
    effects: Arc<Mutex<Vec<Effect>>>,
    /// Ids of the events that it has refused, stored or not.
    refused: Arc<Mutex<BTreeSet<String>>>,
    /// Where SQLite's files are copied to in a crash.
    crash: Arc<Mutex<Option<(PathBuf, PathBuf)>>>,
    pub is_held: Arc<Notify>,
    pub go_on: Arc<Notify>,
}

/// One effect, in the order in which they were made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    pub id: String,
    pub place: String,
}

impl Script {
    pub fn push(&self, outcome: Outcome) {
        self.outcomes.lock().unwrap().push_back(outcome);
    }

    pub fn clear(&self) {
        self.outcomes.lock().unwrap().clear();
    }

    /// Returns the ids of the events that it has refused.
    pub fn refused(&self) -> BTreeSet<String> {
        self.refused.lock().unwrap().clone()
    }

    fn next(&self, event: &Event) -> Outcome {
        let outcome = self.outcomes.lock().unwrap().pop_front().unwrap_or(Outcome::Apply);
        if outcome == Outcome::Refuse {
            self.refused.lock().unwrap().insert(event.id.clone());
        }
        outcome
    }

    async fn end(&self, outcome: Outcome) -> Result<(), HandlerError> {
        if outcome == Outcome::Hold {
            self.is_held.notify_one();
            self.go_on.notified().await;
        }
        self.end_with(outcome)
    }

    fn end_with(&self, outcome: Outcome) -> Result<(), HandlerError> {
        match outcome {
            Outcome::Apply | Outcome::Hold | Outcome::Uncommittable => Ok(()),
            Outcome::Fail => Err("it fails".into()),
            Outcome::Refuse => Err(HandlerError::Refuse("it is refused".into())),
            // A panic that prints nothing: there are hundreds of them.
            Outcome::Panic => std::panic::resume_unwind(Box::new("it panics, as the test wants")),
            Outcome::Crash => {
                if let Some((from, to)) = &*self.crash.lock().unwrap() {
                    copy_database(from, to);
                }
                Err("the machine stops".into())
            }
        }
    }
}

/// Copies the files as they are at this moment, which is what a crash leaves.
fn copy_database(from: &Path, to: &Path) {
    for ending in ["", "-wal"] {
        let (from, to) = (format!("{}{ending}", from.display()), format!("{}{ending}", to.display()));
        let _ = std::fs::remove_file(&to);
        if Path::new(&from).exists() {
            std::fs::copy(from, to).unwrap();
        }
    }
}

/// A place in words that are easily compared.
pub fn shown(place: &Place) -> String {
    match place {
        Place::Unordered => "unordered".to_owned(),
        Place::Next => "next".to_owned(),
        Place::AfterGap { missing } => format!("after {}-{}", missing.start(), missing.end()),
        Place::Late { applied } => format!("late {applied}"),
    }
}

impl Handler for Script {
    async fn apply(&self, event: &Event, place: &Place) -> Result<(), HandlerError> {
        // Points at which a request can be abandoned.
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        let outcome = self.next(event);
        if outcome == Outcome::Uncommittable {
            return Err("there is no transaction".into());
        }
        self.end(outcome).await?;
        // There is no transaction, so the effect comes last.
        self.effects.lock().unwrap().push(Effect { id: event.id.clone(), place: shown(place) });
        Ok(())
    }
}

impl SqliteHandler for Script {
    fn apply(&self, transaction: &rusqlite::Transaction<'_>, event: &Event, place: &Place) -> Result<(), HandlerError> {
        transaction.execute("INSERT INTO effect (id, place) VALUES (?1, ?2)", [&event.id, &shown(place)])?;
        let outcome = self.next(event);
        if outcome == Outcome::Uncommittable {
            // The reference is checked when the transaction is committed.
            transaction.execute("INSERT INTO debt (effect) VALUES (-1)", [])?;
        }
        self.end_with(outcome)
    }
}

/// The handler on PostgreSQL, where many tests share a database.
pub struct PostgresScript {
    name: String,
    script: Script,
}

impl PostgresHandler for PostgresScript {
    async fn apply(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
        event: &Event,
        place: &Place,
    ) -> Result<(), HandlerError> {
        let insert = "INSERT INTO effect (test, id, place) VALUES ($1, $2, $3)";
        transaction.execute(insert, &[&self.name, &event.id, &shown(place)]).await?;
        let outcome = self.script.next(event);
        if outcome == Outcome::Uncommittable {
            // A handler that takes an error of SQL for a success.
            let _ = transaction.batch_execute("SELECT 1 / 0").await;
        }
        if outcome == Outcome::Crash {
            transaction.batch_execute("SELECT pg_terminate_backend(pg_backend_pid())").await?;
        }
        self.script.end(outcome).await
    }
}

/// The kinds of inboxes that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Memory,
    Sqlite,
    Postgres,
}

pub const KINDS: [Kind; 3] = [Kind::Memory, Kind::Sqlite, Kind::Postgres];

/// An inbox under test.
pub struct TestInbox {
    pub inbox: Arc<dyn Inbox>,
    pub script: Script,
    place: Storage,
    settings: InboxSettings,
}

enum Storage {
    Memory,
    Sqlite { folder: tempfile::TempDir, file: PathBuf, crashes: u32 },
    Postgres { pool: Pool },
}

impl TestInbox {
    pub async fn open(kind: Kind) -> Self {
        Self::open_with(kind, InboxSettings { gap_timeout: GAP_TIMEOUT, ..InboxSettings::default() }).await
    }

    pub async fn open_with(kind: Kind, settings: InboxSettings) -> Self {
        let script = Script::default();
        match kind {
            Kind::Memory => {
                let inbox = Arc::new(MemoryInbox::new(script.clone(), settings.clone()));
                Self { inbox, script, place: Storage::Memory, settings }
            }
            Kind::Sqlite => {
                let folder = tempfile::tempdir().unwrap();
                let file = folder.path().join("inbox-0");
                let inbox = open_sqlite(&file, &script, &settings);
                Self { inbox, script, place: Storage::Sqlite { folder, file, crashes: 0 }, settings }
            }
            Kind::Postgres => Self::open_postgres(pool().await, settings),
        }
    }

    /// Opens an inbox in a database of its own.
    pub async fn open_alone() -> (Database, Pool, Self) {
        let database = database().await;
        let pool = connect(&database);
        let test = Self::open_postgres(pool.clone(), InboxSettings::default());
        (database, pool, test)
    }

    fn open_postgres(pool: Pool, settings: InboxSettings) -> Self {
        let (script, name) = (Script::default(), format!("{:016x}", rand::random::<u64>()));
        let settings = InboxSettings { name, ..settings };
        let handler = PostgresScript { name: settings.name.clone(), script: script.clone() };
        let inbox = Arc::new(PostgresInbox::new(pool.clone(), handler, settings.clone()));
        Self { inbox, script, place: Storage::Postgres { pool }, settings }
    }

    /// Lets the next crash copy the files.
    pub fn prepare_crash(&mut self) {
        if let Storage::Sqlite { folder, file, crashes } = &mut self.place {
            *crashes += 1;
            let copy = folder.path().join(format!("inbox-{crashes}"));
            *self.script.crash.lock().unwrap() = Some((file.clone(), copy));
        }
    }

    /// Goes on with what the crash left behind, if one happened.
    pub fn restart_after_crash(&mut self) {
        let Storage::Sqlite { file, .. } = &mut self.place else { return };
        let Some((_, copy)) = self.script.crash.lock().unwrap().take() else { return };
        if copy.exists() {
            *file = copy;
            self.inbox = open_sqlite(file, &self.script, &self.settings);
        }
    }

    /// Every effect that is there, in order.
    pub async fn effects(&self) -> Vec<Effect> {
        match &self.place {
            Storage::Memory => self.script.effects.lock().unwrap().clone(),
            Storage::Sqlite { file, .. } => {
                let connection = rusqlite::Connection::open(file).unwrap();
                let mut query = connection.prepare("SELECT id, place FROM effect ORDER BY n").unwrap();
                let effect = |row: &rusqlite::Row<'_>| Ok(Effect { id: row.get(0)?, place: row.get(1)? });
                query.query_map([], effect).unwrap().map(Result::unwrap).collect()
            }
            Storage::Postgres { pool } => {
                let query = "SELECT id, place FROM effect WHERE test = $1 ORDER BY n";
                let rows = pool.get().await.unwrap().query(query, &[&self.settings.name]).await.unwrap();
                rows.iter().map(|row| Effect { id: row.get(0), place: row.get(1) }).collect()
            }
        }
    }

    /// Spoils a stored event so that it can never be read; returns whether there
    /// is a database in which it could be.
    pub async fn spoil(&self, id: &str) -> bool {
        match &self.place {
            Storage::Memory => return false,
            Storage::Sqlite { file, .. } => {
                let connection = rusqlite::Connection::open(file).unwrap();
                let spoilt = "UPDATE posthaste_inbox_event SET head = '{' WHERE id = ?1";
                assert_eq!(connection.execute(spoilt, [id]).unwrap(), 1);
            }
            Storage::Postgres { pool } => {
                let spoilt = "UPDATE posthaste_inbox_event SET head = '{' WHERE inbox = $1 AND id = $2";
                let changed = pool.get().await.unwrap().execute(spoilt, &[&self.settings.name, &id]).await.unwrap();
                assert_eq!(changed, 1);
            }
        }
        true
    }

    /// Effects as `id place`.
    pub async fn shown_effects(&self) -> Vec<String> {
        self.effects().await.into_iter().map(|effect| format!("{} {}", effect.id, effect.place)).collect()
    }
}

fn open_sqlite(file: &Path, script: &Script, settings: &InboxSettings) -> Arc<dyn Inbox> {
    let connection = rusqlite::Connection::open(file).unwrap();
    connection.pragma_update(None, "journal_mode", "wal").unwrap();
    // A copy is only whole while nothing moves from the log into the file.
    connection.pragma_update(None, "wal_autocheckpoint", 0).unwrap();
    connection.pragma_update(None, "synchronous", "off").unwrap();
    connection.pragma_update(None, "foreign_keys", true).unwrap();
    let tables = "CREATE TABLE IF NOT EXISTS effect (n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT, place TEXT);
        CREATE TABLE IF NOT EXISTS debt (effect INTEGER REFERENCES effect DEFERRABLE INITIALLY DEFERRED)";
    connection.execute_batch(tables).unwrap();
    Arc::new(SqliteInbox::open(connection, script.clone(), settings.clone()).unwrap())
}

/// A pool on the database that all tests share. Each test has its own runtime,
/// and connections belong to one.
async fn pool() -> Pool {
    static DATABASE: OnceCell<Database> = OnceCell::const_new();
    connect(DATABASE.get_or_init(database).await)
}

async fn database() -> Database {
    let database = Server::shared(&["fsync=off"]).await.database().await;
    let pool = connect(&database);
    let table = "CREATE TABLE effect (n BIGSERIAL PRIMARY KEY, test TEXT, id TEXT, place TEXT)";
    pool.get().await.unwrap().batch_execute(table).await.unwrap();
    let handler = PostgresScript { name: String::new(), script: Script::default() };
    PostgresInbox::new(pool, handler, InboxSettings::default()).create_tables().await.unwrap();
    database
}

fn connect(database: &Database) -> Pool {
    let manager = Manager::new(database.url().parse().unwrap(), NoTls);
    Pool::builder(manager).max_size(12).runtime(deadpool_postgres::Runtime::Tokio1).build().unwrap()
}

/// An event as a verified request brings it.
pub fn event(id: &str, place: Option<(&str, u64)>) -> Event {
    let body = Bytes::from(envelope(id, place, r#"{"n": 1}"#));
    Event::read(Format::Envelope, &HeaderMap::new(), body, Some(id)).unwrap()
}
