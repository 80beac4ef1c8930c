//! A producer with an outbox in a database of its own, and the relays of it.

use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use posthaste::model::database::DatabaseUrl;
use posthaste::store::outbox::install::{self, OutboxRoles};
use serde_json::Value;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

use super::{CapturedOutput, Gateway, eventually};
use crate::servers::postgres::{Database, Server};

/// A producer's database with an outbox.
pub struct Producer {
    pub database: Database,
}

impl Producer {
    /// Creates a database on the server that all tests share, with an outbox.
    pub async fn new() -> Self {
        Self::on(Server::shared(&[]).await).await
    }

    /// Creates a database with an outbox on this server.
    pub async fn on(server: &Server) -> Self {
        let producer = Self { database: server.database().await };
        install::install(&producer.address(), &OutboxRoles::default()).await.unwrap();
        producer
    }

    pub fn url(&self) -> &str {
        self.database.url()
    }

    pub fn address(&self) -> DatabaseUrl {
        self.url().parse().unwrap()
    }

    /// Opens a connection of the producer's own.
    pub async fn connect(&self) -> Client {
        connect(self.url()).await
    }

    /// Writes an event in a transaction of its own; returns its id.
    pub async fn send(&self, event_type: &str, key: Option<&str>, data: &str) -> String {
        send(&self.connect().await, event_type, key, data).await.unwrap()
    }

    /// Returns how many rows are in the outbox.
    pub async fn rows(&self) -> i64 {
        self.database.number("SELECT count(*) FROM posthaste_outbox.outbox").await
    }

    /// Waits until the outbox has this many rows.
    pub async fn wait_for_rows(&self, count: i64) {
        eventually(&format!("{count} rows in the outbox"), || async {
            let rows = self.rows().await;
            if rows == count { Ok(()) } else { Err(format!("{rows} rows; {:?}", self.refusals().await)) }
        })
        .await;
    }

    /// Returns the number, the code and the reason of every refused row.
    pub async fn refusals(&self) -> Vec<(i64, String, String)> {
        let sql =
            "SELECT id, refusal_code, refusal FROM posthaste_outbox.outbox WHERE refusal_code IS NOT NULL ORDER BY id";
        let text = |row: &[Option<String>], n: usize| row[n].clone().unwrap();
        let rows = self.database.rows(sql).await;
        rows.iter().map(|row| (text(row, 0).parse().unwrap(), text(row, 1), text(row, 2))).collect()
    }

    /// Runs `posthaste outbox` with these words and the database's URL.
    pub async fn outbox(&self, words: &[&str]) -> Output {
        posthaste_outbox(words, self.url()).await
    }

    /// Runs `posthaste outbox` and expects success; returns what it printed.
    pub async fn outbox_says(&self, words: &[&str]) -> String {
        let output = self.outbox(words).await;
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Opens a connection with this URL.
pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Writes an event in the transaction that is open, or in one of its own.
pub async fn send(
    client: &Client,
    event_type: &str,
    key: Option<&str>,
    data: &str,
) -> Result<String, tokio_postgres::Error> {
    let sql = "SELECT posthaste_outbox.send($1, $2::text::json, key => $3)";
    Ok(client.query_one(sql, &[&event_type, &data, &key]).await?.get(0))
}

/// Runs `posthaste outbox` with these words and this URL.
pub async fn posthaste_outbox(words: &[&str], url: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
    command.arg("outbox").args(words).env("POSTHASTE_OUTBOX", url).stdin(Stdio::null());
    command.output().await.unwrap()
}

/// Returns everything that a command printed.
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// A relay in a process of its own.
pub struct RelayChild {
    pub process: Child,
    pub printed: CapturedOutput,
}

impl RelayChild {
    /// Starts a relay from a database to a gateway.
    pub fn start(url: &str, gateway: &Gateway, flags: &[&str]) -> Self {
        Self::start_to(&format!("http://{}", gateway.address), url, gateway, flags)
    }

    /// Starts a relay from a database to a gateway at this address.
    pub fn start_to(server: &str, url: &str, gateway: &Gateway, flags: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
        command.args(["outbox", "relay", "--server", server]);
        command.args(["--token", gateway.token()]).args(flags).env("POSTHASTE_OUTBOX", url);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().unwrap();
        let printed = CapturedOutput::default();
        printed.clone().listen(process.stderr.take().unwrap());
        Self { process, printed }
    }

    /// Kills it with SIGKILL.
    pub async fn kill(mut self) {
        self.process.kill().await.unwrap();
    }
}

/// Returns the ids of all events of a tenant, oldest first.
pub async fn event_ids(gateway: &Gateway, tenant: &str) -> Vec<String> {
    let events = gateway.list(&format!("/v1/tenants/{tenant}/events")).await;
    let mut ids: Vec<String> = events.iter().map(|event: &Value| event["id"].as_str().unwrap().to_owned()).collect();
    ids.reverse();
    ids
}

/// Returns the ids in an order in which they can be compared.
pub fn sorted(mut ids: Vec<String>) -> Vec<String> {
    ids.sort();
    ids
}

/// Starts a gateway that relays from this database.
pub async fn relaying_gateway(producer: &Producer, flags: &[&str]) -> Gateway {
    let flags = [&["--outbox", producer.url()], flags].concat();
    Gateway::start_with(super::Options::flags(&flags)).await
}

/// A producer that commits rows, one transaction after the other, until it is
/// stopped. Some transactions are rolled back, some have several rows, some
/// commit late. Each notes its rows in a table of its own, so that a commit
/// whose answer was lost is known all the same.
pub struct BusyProducer {
    stop: Arc<AtomicBool>,
    writers: Vec<(i64, JoinHandle<()>)>,
}

/// Name of the writers' sessions.
const WRITERS: &str = "busy_producer";

impl BusyProducer {
    /// Starts three writers.
    pub async fn start(producer: &Producer) -> Self {
        create_table_of_sent(producer).await;
        let stop = Arc::new(AtomicBool::new(false));
        let url = format!("{}?application_name={WRITERS}", producer.url());
        let start = |_| {
            let writer = i64::from(rand::random::<u32>());
            (writer, tokio::spawn(write_rows(url.clone(), stop.clone(), writer, Duration::ZERO)))
        };
        Self { writers: (0..3).map(start).collect(), stop }
    }

    /// Returns the numbers of the writers; their keys are `w` and the number.
    pub fn writers(&self) -> Vec<i64> {
        self.writers.iter().map(|(writer, _)| *writer).collect()
    }

    /// Stops it; returns the ids of the events whose rows were committed.
    pub async fn stop(mut self, producer: &Producer) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        for (_, writing) in &mut self.writers {
            writing.await.unwrap();
        }
        self.committed(producer).await
    }

    async fn committed(&self, producer: &Producer) -> Vec<String> {
        wait_for_writers_to_end(producer).await;
        let sql = "SELECT id FROM public.sent WHERE writer = ANY ($1)";
        let rows = producer.connect().await.query(sql, &[&self.writers()]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }
}

/// Creates the table in which writers note what they send, in the transaction
/// that sends it.
pub async fn create_table_of_sent(producer: &Producer) {
    producer.database.execute("CREATE TABLE IF NOT EXISTS public.sent (id text, writer bigint)").await;
    producer.database.execute("GRANT ALL ON public.sent TO PUBLIC").await;
}

/// Waits until no writer is connected. A commit that was on its way is made, or
/// is not, before its session ends.
pub async fn wait_for_writers_to_end(producer: &Producer) {
    eventually("the writers' sessions to end", || async {
        let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{WRITERS}' AND datname = current_database()");
        let count = producer.database.number(&sql).await;
        if count == 0 { Ok(()) } else { Err(count.to_string()) }
    })
    .await;
}

/// Commits rows with three writers until this process is killed. Each rests
/// between its transactions, so that what is sent in an hour can be compared.
pub async fn write_until_killed(url: &str) {
    let url = format!("{url}?application_name={WRITERS}");
    let stop = Arc::new(AtomicBool::new(false));
    let rest = Duration::from_millis(20);
    let write = || write_rows(url.clone(), stop.clone(), i64::from(rand::random::<u32>()), rest);
    tokio::join!(write(), write(), write());
}

/// Commits rows until it is stopped, over as many connections as that takes.
async fn write_rows(url: String, stop: Arc<AtomicBool>, writer: i64, rest: Duration) {
    let mut n = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let Ok((mut client, connection)) = tokio_postgres::connect(&url, NoTls).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        tokio::spawn(connection);
        while !stop.load(Ordering::Relaxed) {
            n += 1;
            if write_transaction(&mut client, writer, n).await.is_err() {
                break;
            }
            tokio::time::sleep(rest).await;
        }
    }
}

/// Writes one transaction of one to three rows, or rolls it back.
async fn write_transaction(client: &mut Client, writer: i64, n: u64) -> Result<(), tokio_postgres::Error> {
    let transaction = client.transaction().await?;
    let key = Some(format!("w{writer}")).filter(|_| !n.is_multiple_of(5));
    for part in 0..=(n % 3) {
        let data = format!("{{\"n\": {n}, \"part\": {part}}}");
        let id = send(transaction.client(), "a.b", key.as_deref(), &data).await?;
        transaction.execute("INSERT INTO public.sent VALUES ($1, $2)", &[&id, &writer]).await?;
    }
    if n % 7 == 3 {
        return transaction.rollback().await;
    }
    if n % 11 == 5 {
        // A slow commit: later rows are visible first.
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
    transaction.commit().await
}
