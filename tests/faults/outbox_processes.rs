//! The producer and the receiver of the scenario `outbox`, each as a process of
//! its own, so that they can be killed wherever they are.
//!
//! Each is an ignored test of this binary, which the scenario starts: so there
//! is no other program to build. It ends with the test that started it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use axum::Router;
use axum::routing::post_service;
use posthaste_receiver::deadpool_postgres::{Manager, Pool, Runtime};
use posthaste_receiver::tokio_postgres::{self, NoTls};
use posthaste_receiver::{
    Event, HandlerError, InboxSettings, Place, PostgresHandler, PostgresInbox, Profile, Receiver, RequestReader,
    SqliteInbox, Verifier,
};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, Transaction, params};
use tokio::net::TcpSocket;
use tokio::process::{Child, Command};

use crate::servers::postgres::Database;
use crate::support::outbox::write_until_killed;

const PRODUCER_DATABASE: &str = "POSTHASTE_FAULTS_PRODUCER_DATABASE";
const RECEIVER_DATABASE: &str = "POSTHASTE_FAULTS_RECEIVER_DATABASE";
const RECEIVER_ADDRESS: &str = "POSTHASTE_FAULTS_RECEIVER_ADDRESS";
const RECEIVER_SECRET: &str = "POSTHASTE_FAULTS_RECEIVER_SECRET";

/// The effects, with nothing that would keep a second one out.
const EFFECTS: &str = "CREATE TABLE effect (place INTEGER PRIMARY KEY, id TEXT, key TEXT, n INTEGER, part INTEGER)";

/// An effect that the receiver has applied: id and key of the event, and its
/// number among those of its key.
pub struct Effect {
    pub id: String,
    pub key: Option<String>,
    pub place: (u64, u64),
}

/// A process that does the work of one of the tests below.
pub struct ChildProcess(Child);

impl ChildProcess {
    /// Starts a producer that commits rows in this database.
    pub fn producer(url: &str) -> Self {
        Self::start("producer_process", &[(PRODUCER_DATABASE, url)])
    }

    /// Starts a receiver that applies events in this database.
    pub fn receiver(database: &EffectDatabase, address: SocketAddr, secret: &str) -> Self {
        let (database, address) = (database.name(), address.to_string());
        let settings = [(RECEIVER_DATABASE, database), (RECEIVER_ADDRESS, address.as_str()), (RECEIVER_SECRET, secret)];
        Self::start("receiver_process", &settings)
    }

    fn start(test: &str, settings: &[(&str, &str)]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([&format!("outbox_processes::{test}"), "--exact", "--ignored", "--nocapture"]);
        command.envs(settings.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::null()).kill_on_drop(true);
        Self(command.spawn().unwrap())
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.0.id().expect("it runs until it is killed")
    }

    /// Kills it with SIGKILL.
    pub async fn kill(mut self) {
        self.0.kill().await.unwrap();
    }
}

/// The database in which the receiver has its inbox and its effects.
pub enum EffectDatabase {
    /// A file of SQLite.
    Sqlite(PathBuf),
    /// A database of PostgreSQL.
    Postgres(Database),
}

impl EffectDatabase {
    /// Creates the table of effects, so that it can be read before the first one.
    pub async fn create_effects(&self) {
        match self {
            Self::Sqlite(file) => {
                let database = Connection::open(file).unwrap();
                database.pragma_update(None, "journal_mode", "wal").unwrap();
                database.execute_batch(EFFECTS).unwrap();
            }
            Self::Postgres(database) => {
                let effects = EFFECTS.replace("INTEGER PRIMARY KEY", "BIGSERIAL PRIMARY KEY");
                database.execute(&effects).await;
                let grants = "GRANT ALL ON effect TO PUBLIC; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO PUBLIC;
                              GRANT ALL ON SCHEMA public TO PUBLIC";
                database.execute(grants).await;
            }
        }
    }

    /// Returns the effects behind this place, in the order in which they were
    /// applied, and the last place.
    pub async fn effects_after(&self, place: i64) -> (Vec<Effect>, i64) {
        let query = format!("SELECT place, id, key, n, part FROM effect WHERE place > {place} ORDER BY place");
        let rows = match self {
            Self::Sqlite(file) => sqlite_rows(file, &query),
            Self::Postgres(database) => database.rows(&query).await,
        };
        let number = |value: &Option<String>| value.as_ref().unwrap().parse::<i64>().unwrap();
        let last = rows.last().map_or(place, |row| number(&row[0]));
        let effect = |row: Vec<Option<String>>| Effect {
            id: row[1].clone().unwrap(),
            key: row[2].clone(),
            place: (number(&row[3]) as u64, number(&row[4]) as u64),
        };
        (rows.into_iter().map(effect).collect(), last)
    }

    /// Returns what the receiver is told: a path, or a URL.
    fn name(&self) -> &str {
        match self {
            Self::Sqlite(file) => file.to_str().unwrap(),
            Self::Postgres(database) => database.url(),
        }
    }
}

fn sqlite_rows(file: &Path, query: &str) -> Vec<Vec<Option<String>>> {
    let database = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let mut rows = database.prepare(query).unwrap();
    let columns = rows.column_count();
    let text = |row: &rusqlite::Row<'_>, n: usize| -> rusqlite::Result<Option<String>> {
        Ok(match row.get_ref(n)? {
            ValueRef::Integer(number) => Some(number.to_string()),
            ValueRef::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
            ValueRef::Null | ValueRef::Real(_) | ValueRef::Blob(_) => None,
        })
    };
    let row = |row: &rusqlite::Row<'_>| (0..columns).map(|n| text(row, n)).collect::<rusqlite::Result<Vec<_>>>();
    rows.query_map([], row).unwrap().collect::<Result<_, _>>().unwrap()
}

#[tokio::test]
#[ignore = "the scenario starts it as a process of its own"]
async fn producer_process() {
    let Ok(url) = std::env::var(PRODUCER_DATABASE) else { return };
    end_with_the_parent();
    write_until_killed(&url).await;
}

#[tokio::test]
#[ignore = "the scenario starts it as a process of its own"]
async fn receiver_process() {
    let settings = [RECEIVER_DATABASE, RECEIVER_ADDRESS, RECEIVER_SECRET].map(std::env::var);
    let [Ok(database), Ok(address), Ok(secret)] = settings else { return };
    end_with_the_parent();
    let reader = RequestReader::new(Verifier::new(Profile::Standard, [secret]).unwrap());
    let receiver = if database.starts_with("postgres") {
        Receiver::new(reader, postgres_inbox(&database).await)
    } else {
        let database = Connection::open(database).unwrap();
        Receiver::new(reader, SqliteInbox::open(database, apply, InboxSettings::default()).unwrap())
    };
    let background = receiver.clone();
    tokio::spawn(async move { background.run().await });
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address.parse().unwrap()).unwrap();
    let router = Router::new().route("/hook", post_service(receiver));
    axum::serve(socket.listen(1_024).unwrap(), router).await.unwrap();
}

/// Applies an event, as often as it is told to.
fn apply(transaction: &Transaction<'_>, event: &Event, _: &Place) -> Result<(), HandlerError> {
    let data: serde_json::Value = event.json()?;
    let (n, part) = (data["n"].as_i64(), data["part"].as_i64());
    transaction.execute(
        "INSERT INTO effect (id, key, n, part) VALUES (?1, ?2, ?3, ?4)",
        params![event.id, event.key, n, part],
    )?;
    Ok(())
}

/// The same on PostgreSQL.
struct EffectHandler;

impl PostgresHandler for EffectHandler {
    async fn apply(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
        event: &Event,
        _: &Place,
    ) -> Result<(), HandlerError> {
        let data: serde_json::Value = event.json()?;
        let number = |name: &str| data[name].as_i64().and_then(|n| i32::try_from(n).ok());
        let insert = "INSERT INTO effect (id, key, n, part) VALUES ($1, $2, $3, $4)";
        transaction.execute(insert, &[&event.id, &event.key, &number("n"), &number("part")]).await?;
        Ok(())
    }
}

/// Opens the inbox, and its tables as soon as the database takes them: it may be
/// restarting.
async fn postgres_inbox(url: &str) -> PostgresInbox<EffectHandler> {
    let manager = Manager::new(url.parse().unwrap(), NoTls);
    let pool = Pool::builder(manager).max_size(8).runtime(Runtime::Tokio1).build().unwrap();
    let inbox = PostgresInbox::new(pool, EffectHandler, InboxSettings::default());
    while inbox.create_tables().await.is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    inbox
}

/// Ends this process when the one that started it has ended.
fn end_with_the_parent() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
}
