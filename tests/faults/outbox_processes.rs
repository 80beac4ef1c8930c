//! The producer and the receiver of the scenario `outbox`, each as a process of
//! its own, so that they can be killed wherever they are.
//!
//! Each is an ignored test of this binary, which the scenario starts: so there
//! is no other program to build. It ends with the test that started it.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use axum::Router;
use axum::routing::post_service;
use posthaste_receiver::{
    Event, HandlerError, InboxSettings, Place, Profile, Receiver, RequestReader, SqliteInbox, Verifier,
};
use rusqlite::{Connection, OpenFlags, Transaction, params};
use tokio::net::TcpSocket;
use tokio::process::{Child, Command};

use crate::support::outbox::write_until_killed;

const PRODUCER_DATABASE: &str = "POSTHASTE_FAULTS_PRODUCER_DATABASE";
const RECEIVER_DATABASE: &str = "POSTHASTE_FAULTS_RECEIVER_DATABASE";
const RECEIVER_ADDRESS: &str = "POSTHASTE_FAULTS_RECEIVER_ADDRESS";
const RECEIVER_SECRET: &str = "POSTHASTE_FAULTS_RECEIVER_SECRET";

/// The effects, with nothing that would keep a second one out.
const EFFECTS: &str = "CREATE TABLE IF NOT EXISTS effect (id TEXT, key TEXT, n INTEGER, part INTEGER)";

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
    pub fn receiver(database: &Path, address: SocketAddr, secret: &str) -> Self {
        let (database, address) = (database.to_str().unwrap(), address.to_string());
        let settings = [(RECEIVER_DATABASE, database), (RECEIVER_ADDRESS, address.as_str()), (RECEIVER_SECRET, secret)];
        Self::start("receiver_process", &settings)
    }

    fn start(test: &str, settings: &[(&str, &str)]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([&format!("outbox_processes::{test}"), "--exact", "--ignored", "--nocapture"]);
        command.envs(settings.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::null()).kill_on_drop(true);
        Self(command.spawn().unwrap())
    }

    /// Kills it with SIGKILL.
    pub async fn kill(mut self) {
        self.0.kill().await.unwrap();
    }
}

/// Returns the effects from the row after this one on, in the order in which
/// they were applied, and the last row.
pub fn effects_after(database: &Path, row: i64) -> (Vec<Effect>, i64) {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let database = Connection::open_with_flags(database, flags).unwrap();
    let mut rows =
        database.prepare("SELECT id, key, n, part, rowid FROM effect WHERE rowid > ?1 ORDER BY rowid").unwrap();
    let effect = |row: &rusqlite::Row<'_>| {
        let place = (row.get::<_, i64>(2)? as u64, row.get::<_, i64>(3)? as u64);
        Ok((Effect { id: row.get(0)?, key: row.get(1)?, place }, row.get::<_, i64>(4)?))
    };
    let found: Vec<(Effect, i64)> = rows.query_map([row], effect).unwrap().collect::<Result<_, _>>().unwrap();
    let last = found.last().map_or(row, |(_, row)| *row);
    (found.into_iter().map(|(effect, _)| effect).collect(), last)
}

/// Creates the table of effects, so that it can be read before the first one.
pub fn create_effects(database: &Path) {
    let database = Connection::open(database).unwrap();
    database.pragma_update(None, "journal_mode", "wal").unwrap();
    database.execute_batch(EFFECTS).unwrap();
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
    let verifier = Verifier::new(Profile::Standard, [secret]).unwrap();
    let inbox = SqliteInbox::open(Connection::open(database).unwrap(), apply, InboxSettings::default()).unwrap();
    let receiver = Receiver::new(RequestReader::new(verifier), inbox);
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
    transaction.execute("INSERT INTO effect VALUES (?1, ?2, ?3, ?4)", params![event.id, event.key, n, part])?;
    Ok(())
}

/// Ends this process when the one that started it has ended.
fn end_with_the_parent() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
}
