//! A store that an older version has written opens with everything in it, and
//! goes on.
//!
//! The stores are kept in `tests/fixtures`, in a folder for each version, with
//! what the API of that version told of it; `tests/fixtures/make` writes them.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use posthaste::clock::{Clock, SystemClock};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_postgres::NoTls;

use crate::backup::said;
use crate::on_postgres::PendingStart;
use crate::servers::postgres::{Database, Server};
use crate::support::{CapturedOutput, Client, Gateway, Options, ReceivedRequest, Receiver, eventually, is_on_postgres};

for_every_store! {
    a_start_that_changes_the_schema_says_so_before_and_after,
    a_store_of_an_older_version_opens_with_everything_in_it,
    what_waits_in_a_store_of_an_older_version_is_delivered_and_its_dead_letters_are_replayed,
    who_could_use_a_store_of_an_older_version_still_can,
}

const TENANT: &str = "/v1/tenants/default";
/// What the fixture's `retrying` endpoint was given to sign with.
const SECRET: &str = "whsec_cG9zdGhhc3RlIGZpeHR1cmUgc2VjcmV0IG5vIDE=";
/// Nothing in the store is over, however long ago it was written; the same as
/// in `tests/fixtures/make`.
const PATIENT: [&str; 12] = [
    "--retention",
    "36500d",
    "--dead-letter-retention",
    "36500d",
    "--audit-retention",
    "36500d",
    "--hold-max",
    "365d",
    "--pause-failing",
    "36500d",
    "--public-url",
    "http://127.0.0.1:1",
];
/// What has had no attempt may wait for a year at most. So that the fixture
/// never gets too old, that year begins when the test does.
const BEGIN_THE_YEAR: &str = "SET replayed_at = $now WHERE age_from IS NULL";

/// What the trace of the fixture's traced events begins with.
const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-";
/// Jobs are kept for 90 days after their end, which would be over, too.
const END_NOW: &str = "SET finished_at = $now WHERE finished_at IS NOT NULL";

/// A gateway on a copy of a store that an older version has written.
struct OlderStore {
    gateway: Gateway,
    /// What that version told of it, and what only its maker knew.
    recorded: Value,
    printed: CapturedOutput,
    // Dropped after the gateway.
    database: Option<Database>,
}

impl OlderStore {
    /// Opens a store of each version, one after the other.
    async fn for_each(check: impl AsyncFn(Self)) {
        let entries = std::fs::read_dir(fixture("")).unwrap().map(|entry| entry.unwrap());
        let mut versions: Vec<_> = entries.filter(|entry| entry.path().is_dir()).map(|entry| entry.path()).collect();
        versions.sort();
        assert!(!versions.is_empty(), "there are stores of older versions");
        for version in versions {
            println!("a store of {}", version.display());
            check(Self::open(&version).await).await;
        }
    }

    async fn open(version: &Path) -> Self {
        let folder = Arc::new(private_folder());
        let mut flags: Vec<String> = PATIENT.map(str::to_owned).into();
        let now = SystemClock.now().as_millisecond();
        let begin_the_year = BEGIN_THE_YEAR.replace("$now", &now.to_string());
        let mut database = None;
        if is_on_postgres() {
            unpack(&version.join("postgres.tar.gz"), folder.path());
            let restored = restore(&folder, &begin_the_year).await;
            let has_jobs = "SELECT count(*) FROM pg_tables WHERE schemaname = 'posthaste' AND tablename = 'jobs'";
            if restored.number(has_jobs).await > 0 {
                let end_now = END_NOW.replace("$now", &now.to_string());
                restored.execute(&format!("UPDATE posthaste.jobs {end_now}")).await;
            }
            flags.extend(["--database-url".to_owned(), restored.url().to_owned()]);
            database = Some(restored);
        } else {
            unpack(&version.join("embedded.tar.gz"), folder.path());
            let store = rusqlite::Connection::open(folder.path().join("posthaste.db")).unwrap();
            let changed = store.execute(&format!("UPDATE deliveries {begin_the_year} AND state = 0"), []).unwrap();
            assert!(changed > 0, "something in it has had no attempt");
            if store.table_exists(None, "jobs").unwrap() {
                store.execute(&format!("UPDATE jobs {}", END_NOW.replace("$now", &now.to_string())), []).unwrap();
            }
        }
        let recorded = serde_json::from_slice(&std::fs::read(folder.path().join("told.json")).unwrap()).unwrap();
        flags.extend(["--log", "warn,posthaste::store=info"].map(str::to_owned));
        let printed = CapturedOutput::default();
        let options = Options { flags, output: Some(printed.clone()), ..Options::default() };
        let gateway = Gateway::start_in(folder, options).await;
        Self { gateway, recorded, printed, database }
    }

    /// An endpoint of the fixture, by the name it has there.
    fn endpoint(&self, name: &str) -> Value {
        let tenant = if name == "watcher" { "_system" } else { "default" };
        json!({"tenant": tenant, "id": self.recorded["endpoints"][name]})
    }

    /// The jobs in it, if its version had jobs.
    fn jobs(&self) -> Option<&Vec<Value>> {
        self.recorded["answers"][format!("{TENANT}/jobs?limit=500")]["data"].as_array()
    }

    /// Leads an endpoint to this receiver and lets go what waits for it.
    async fn redirect(&self, name: &str, receiver: &Receiver) {
        let endpoint = self.endpoint(name);
        self.gateway.patch(&endpoint, json!({"url": format!("{}/{name}", receiver.url())})).await;
        self.gateway.post_to_endpoint(&endpoint, "resume", "").await;
    }
}

/// The fixture of this version.
fn fixture(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(version)
}

/// A folder as a data directory has to be.
fn private_folder() -> TempDir {
    let private = std::fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().permissions(private).tempdir().unwrap()
}

/// Takes a fixture out of the file it is kept in.
fn unpack(file: &Path, folder: &Path) {
    let unpacked = Command::new("tar").arg("-xzf").arg(file).arg("-C").arg(folder).status().expect("there is tar");
    assert!(unpacked.success(), "{} cannot be unpacked", file.display());
}

/// A database with what was dumped.
async fn restore(folder: &TempDir, begin_the_year: &str) -> Database {
    let database = Server::shared(&[]).await.database().await;
    let (client, connection) = tokio_postgres::connect(database.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let dump = std::fs::read_to_string(folder.path().join("dump.sql")).unwrap();
    client.batch_execute(&dump).await.unwrap();
    // The server that it was dumped from had done more than this one.
    client.batch_execute("UPDATE posthaste.queue SET xid = '9000000000'").await.unwrap();
    let changed = client.execute(&format!("UPDATE posthaste.queue {begin_the_year}"), &[]).await.unwrap();
    assert!(changed > 0, "something in it has had no attempt");
    database
}

/// Where an answer is not what it was. What a later version tells besides is
/// no difference.
fn differences(before: &Value, now: &Value, at: &str, found: &mut Vec<String>) {
    match (before, now) {
        (Value::Object(before), Value::Object(fields)) => {
            for (name, value) in before.iter().filter(|(name, _)| !is_not_compared(name, before)) {
                differences(value, fields.get(name).unwrap_or(&Value::Null), &format!("{at}/{name}"), found);
            }
        }
        (Value::Array(before), Value::Array(now)) if before.len() == now.len() => {
            for (n, (before, now)) in before.iter().zip(now).enumerate() {
                differences(before, now, &format!("{at}/{n}"), found);
            }
        }
        // Whoever wrote down what was told wrote 3.0 as 3.
        (Value::Number(before), Value::Number(now)) if before.as_f64() == now.as_f64() => {}
        _ if before == now => {}
        _ => found.push(format!("{at} is {now} and was {before}")),
    }
}

fn is_not_compared(name: &str, of: &serde_json::Map<String, Value>) -> bool {
    // Settings that an older version did not know take up space, too. 0.1.0 showed the
    // `User-Agent` of its own version with every attempt.
    ["settings_bytes", "oldest_due_age", "user-agent"].contains(&name)
        || (name == "finished_at" && of.contains_key("even_overtaken"))
        || (name == "give_up_at" && of.get("state") == Some(&json!("waiting")))
}

/// A secret that was replaced may have ended since.
fn without_replaced(path: &str, mut answer: Value) -> Value {
    if path.ends_with("/secrets") {
        answer["data"].as_array_mut().unwrap().retain(|secret| secret["expires_at"].is_null());
    }
    answer
}

async fn a_store_of_an_older_version_opens_with_everything_in_it() {
    OlderStore::for_each(everything_is_told).await;
}

async fn everything_is_told(older: OlderStore) {
    let answers = older.recorded["answers"].as_object().unwrap();
    for what in ["waiting", "delivered", "dead", "cancelled"] {
        let deliveries = &answers[&format!("{TENANT}/deliveries?limit=500")]["data"];
        assert!(deliveries.as_array().unwrap().iter().any(|one| one["state"] == what), "something in it is {what}");
    }
    // That secrets are shown is in the audit log, so they come last.
    let (secrets, others): (Vec<_>, Vec<_>) = answers.iter().partition(|(path, _)| path.ends_with("/secrets"));
    for (path, before) in others.into_iter().chain(secrets) {
        let before = without_replaced(path, before.clone());
        // Of PostgreSQL it is counted after the start what waits.
        eventually(&format!("{path} to be as it was"), || async {
            let now = without_replaced(path, older.gateway.client.get(path).await.json());
            let mut found = Vec::new();
            differences(&before, &now, "", &mut found);
            if found.is_empty() { Ok(()) } else { Err(found.join("; ")) }
        })
        .await;
    }
    if let Some(jobs) = older.jobs() {
        for state in ["paused", "finished"] {
            assert!(jobs.iter().any(|job| job["state"] == state), "a job in it is {state}");
        }
    }
    let groups = older.gateway.client.get(&format!("{TENANT}/dead-letters/groups")).await.expect(200);
    let dead = answers[&format!("{TENANT}/dead-letters?limit=500")]["data"].as_array().unwrap().len();
    assert_eq!(groups["total"]["count"], dead, "the dead letters of older versions are counted: {groups}");
}

/// Such rows would be counted as new with every look, until the server gets
/// there.
#[tokio::test]
async fn a_restored_database_has_no_rows_of_transactions_that_are_yet_to_come() {
    crate::support::on_postgres(async {
        OlderStore::for_each(async |older| {
            let to_come = "SELECT count(*) FROM posthaste.queue WHERE xid >= pg_snapshot_xmax(pg_current_snapshot())";
            assert_eq!(older.database.as_ref().unwrap().number(to_come).await, 0);
        })
        .await;
    })
    .await;
}

/// A node of the older version would fail with every statement from then on.
#[tokio::test]
async fn columns_are_not_renamed_while_a_node_of_the_older_version_runs() {
    let folder = private_folder();
    unpack(&fixture("0.1.0").join("postgres.tar.gz"), folder.path());
    let database = restore(&folder, "SET urgent = urgent").await;
    let running = "INSERT INTO posthaste.nodes (id, name, version, joined_at, lease_until)
                   VALUES (999, 'node-of-0.1.0', 0, now(), now() + interval '1 hour')";
    database.execute(running).await;
    let schema = "SELECT max(version)::bigint FROM posthaste.migrations";
    let before = database.number(schema).await;
    let start = PendingStart::new(folder.path(), database.url(), "60s");
    start.answers().await;
    eventually("it to say what it waits for", || async {
        let said = start.printed.text();
        if said.contains("nodes of an older version still run (node-of-0.1.0)") { Ok(()) } else { Err(said) }
    })
    .await;
    assert_eq!(database.number(schema).await, before, "nothing was changed");
    database.execute("DELETE FROM posthaste.nodes WHERE id = 999").await;
    // It goes on with the step at once; thin endpoints of the fixture then ask it for --public-url.
    eventually("the step to be made", || async {
        let now = database.number(schema).await;
        if now > before { Ok(()) } else { Err(start.printed.text()) }
    })
    .await;
}

async fn a_start_that_changes_the_schema_says_so_before_and_after() {
    let older = OlderStore::open(&fixture("0.1.0")).await;
    let (before, after) = if is_on_postgres() {
        ("the database has the schema 3 and is brought to", "database migrated from version 3 to")
    } else {
        ("has the schema 5 and is brought to", "the store has the schema")
    };
    eventually("both lines of the log", || async {
        let said = older.printed.text();
        let are_there = said.find(before).zip(said.find(after)).is_some_and(|(before, after)| before < after);
        if are_there { Ok(()) } else { Err(said) }
    })
    .await;
}

/// The way back after an upgrade is a backup with the schema of the older version, which
/// this one makes, too, as long as it has not been started.
#[tokio::test]
async fn a_stopped_store_of_an_older_version_is_backed_up_as_it_is() {
    let (folder, backups) = (private_folder(), private_folder());
    unpack(&fixture("0.1.0").join("embedded.tar.gz"), folder.path());
    let schema = || {
        let store = rusqlite::Connection::open(folder.path().join("posthaste.db")).unwrap();
        store.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0)).unwrap()
    };
    let before = schema();
    let (data, copy) = (folder.path().to_str().unwrap(), backups.path().join("before"));
    let copy = copy.to_str().unwrap();
    let other_key = backups.path().join("other-key");
    std::fs::write(&other_key, "ab".repeat(32)).unwrap();
    std::fs::set_permissions(&other_key, std::fs::Permissions::from_mode(0o600)).unwrap();
    let with_other_key = ["backup", copy, "--data", data, "--master-key-file", other_key.to_str().unwrap()];
    let (is_done, told) = said(&with_other_key).await;
    assert!(!is_done && told.contains("sealed under another master key"), "{told}");
    let (is_done, told) = said(&["backup", copy, "--data", data]).await;
    assert!(is_done, "{told}");
    let manifest = std::fs::read(Path::new(copy).join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    assert_eq!((&manifest["schema"], &manifest["problems"]), (&json!(before), &json!([])), "{manifest:#}");
    assert_eq!(manifest["checked"], json!(["pages and indexes", "master key"]), "no more is known of that schema");
    assert_eq!(schema(), before, "the older version can still open the store");
    // This version restores it, too, and brings it to its own schema.
    let (is_done, told) = said(&["restore", copy, "--data", data]).await;
    assert!(is_done && !told.contains("not in order"), "{told}");
    assert!(schema() > before);
}

async fn who_could_use_a_store_of_an_older_version_still_can() {
    OlderStore::for_each(tokens_still_open).await;
}

async fn tokens_still_open(older: OlderStore) {
    let user = |name: &str| Client::new(older.gateway.address, older.recorded["tokens"][name].as_str().unwrap());
    user("reader").get("/v1/tenants").await.expect(200);
    user("reader")
        .post_json(&format!("{TENANT}/events"), &json!({"type": "a", "data": 1}))
        .await
        .problem(403, "missing_right");
    let event = json!({"id": "new", "type": "plain", "data": 1});
    user("producer").post_json("/v1/tenants/acme/events", &event).await.expect(202);
    user("producer").get(&format!("{TENANT}/endpoints")).await.problem(404, "not_found");
    user("revoked").get("/v1/tenants/acme/endpoints").await.problem(401, "unauthenticated");
}

async fn what_waits_in_a_store_of_an_older_version_is_delivered_and_its_dead_letters_are_replayed() {
    OlderStore::for_each(everything_goes_on).await;
}

async fn everything_goes_on(older: OlderStore) {
    let receiver = Receiver::start().await;
    for name in ["rich", "retrying", "paused", "thin", "watcher"] {
        older.redirect(name, &receiver).await;
    }
    older.gateway.patch(&older.endpoint("lanes"), json!({"url": format!("{}/lanes", receiver.url())})).await;
    retried(&older, &receiver).await;
    in_order(&older, &receiver).await;
    dead_head_replayed(&older, &receiver).await;
    thin_data_fetched(&older, &receiver).await;
    let paused =
        seen_at(&receiver, "watcher").iter().filter(|seen| seen.header("x-event-type") == "endpoint.paused").count();
    assert!(paused >= 2, "what the watcher had not seen arrives: {paused}");
    ids_known(&older.gateway).await;
    if older.jobs().is_some() {
        job_resumed(&older, &receiver).await;
        older.gateway.wait_for_state("traced-1", "delivered").await;
        let seen = seen_at(&receiver, "paused");
        let traced = seen.iter().find(|seen| seen.id() == "traced-1").expect("it is delivered");
        assert!(traced.header("traceparent").starts_with(TRACE), "{:?}", traced.headers);
    }
}

/// What came to the receiver in the name of one endpoint.
fn seen_at(receiver: &Receiver, name: &str) -> Vec<ReceivedRequest> {
    receiver.seen().into_iter().filter(|seen| seen.path.ends_with(name)).collect()
}

fn verify(seen: &ReceivedRequest, secret: &str) {
    let verifier = standardwebhooks::Webhook::new(secret).unwrap();
    verifier.verify(&seen.body, &seen.headers).unwrap_or_else(|problem| panic!("{}: {problem}", seen.id()));
}

/// Does not wait for its next attempt, which may be due since long ago.
async fn delivered_now(gateway: &Gateway, event: &str) -> Value {
    let answer = gateway.post_to_delivery(&gateway.delivery_of(event).await, "retry").await;
    assert!(matches!(answer.status, 202 | 409), "{answer:?}");
    gateway.wait_for_state(event, "delivered").await
}

/// What had failed once goes again as its second attempt, signed as before.
async fn retried(older: &OlderStore, receiver: &Receiver) {
    for n in 0..3 {
        let event = format!("slow-{n}");
        let delivery = delivered_now(&older.gateway, &event).await;
        assert_eq!(delivery["attempts"], 2, "{delivery}");
        let numbers: Vec<Value> =
            older.gateway.attempts_of(&delivery).await.iter().map(|attempt| attempt["number"].clone()).collect();
        assert!(numbers.contains(&json!(1)) && numbers.contains(&json!(2)), "{numbers:?}");
    }
    for seen in seen_at(receiver, "retrying") {
        verify(&seen, SECRET);
        assert_eq!(seen.header("webhook-attempt"), "2");
    }
    assert_eq!(seen_at(receiver, "retrying").len(), 3);
}

/// Lanes go on where they stood, and count on.
async fn in_order(older: &OlderStore, receiver: &Receiver) {
    let gateway = &older.gateway;
    delivered_now(gateway, "rich-0").await;
    for event in ["rich-1", "paused-0", "paused-1", "paused-2", "expiring"] {
        gateway.wait_for_state(event, "delivered").await;
    }
    gateway.send(json!({"id": "paused-new", "type": "paused", "key": "p", "data": 9})).await;
    let new = gateway.wait_for_state("paused-new", "delivered").await;
    assert_eq!(new["seq"], 4, "{new}");
    let seen = seen_at(receiver, "paused");
    let lane: Vec<&str> = seen.iter().filter(|seen| seen.header("x-key") == "p").map(ReceivedRequest::id).collect();
    assert_eq!(lane, ["paused-0", "paused-1", "paused-2", "paused-new"]);

    let secrets = format!("{TENANT}/endpoints/{}/secrets", older.recorded["endpoints"]["rich"].as_str().unwrap());
    let secret = older.recorded["answers"][&secrets]["data"][0]["secret"].as_str().expect("the maker was shown it");
    let rich = seen_at(receiver, "rich");
    assert_eq!(rich.iter().map(ReceivedRequest::id).collect::<Vec<_>>(), ["rich-0", "rich-1"]);
    for seen in &rich {
        verify(seen, secret);
        assert!(seen.header("webhook-signature").contains("v1a,"), "{:?}", seen.headers);
        assert_eq!((seen.header("x-team"), seen.header("content-type")), ("billing", "application/cloudevents+json"));
    }
}

/// A job that was paused goes on with what it held back, in order.
async fn job_resumed(older: &OlderStore, receiver: &Receiver) {
    older.redirect("recovering", receiver).await;
    let paused = older.jobs().unwrap().iter().find(|job| job["state"] == "paused").expect("one is paused");
    let job = format!("{TENANT}/jobs/{}", paused["id"].as_str().unwrap());
    older.gateway.client.post(&format!("{job}/resume"), "").await.expect(200);
    eventually("the job to be finished", || async {
        let job = older.gateway.client.get(&job).await.expect(200);
        if job["state"] == "finished" { Ok(()) } else { Err(job.to_string()) }
    })
    .await;
    let seen = seen_at(receiver, "recovering");
    assert_eq!(seen.iter().map(ReceivedRequest::id).collect::<Vec<_>>(), ["recover-0", "recover-1", "recover-2"]);
}

/// A dead letter that holds up its lane is replayed, and the lane drains.
async fn dead_head_replayed(older: &OlderStore, receiver: &Receiver) {
    let gateway = &older.gateway;
    let head = gateway.delivery_of("lane-0").await;
    let replay = format!("{TENANT}/dead-letters/{}/replay", head["id"].as_str().unwrap());
    gateway.client.post(&replay, "").await.expect(202);
    gateway.wait_for_state("lane-3", "delivered").await;
    let seen = seen_at(receiver, "lanes");
    assert_eq!(seen.iter().map(ReceivedRequest::id).collect::<Vec<_>>(), ["lane-0", "lane-1", "lane-2", "lane-3"]);
    assert_eq!(seen[0].header("webhook-attempt"), "2");
    assert_eq!(seen[3].json()["seq"], 4);
}

/// A link that is made now finds what was accepted then.
async fn thin_data_fetched(older: &OlderStore, receiver: &Receiver) {
    older.gateway.wait_for_state("thin-0", "delivered").await;
    let link = seen_at(receiver, "thin")[0].json()["data_url"].as_str().unwrap().to_owned();
    let path = link.strip_prefix("http://127.0.0.1:1").expect("it begins with --public-url").to_owned();
    assert_eq!(older.gateway.client.get(&path).await.expect(200)["data"], json!({"fetched": true}));
}

/// Ids are known, and what was expunged stays so.
async fn ids_known(gateway: &Gateway) {
    let events = format!("{TENANT}/events");
    let again = gateway.client.post_json(&events, &json!({"id": "plain-0", "type": "plain", "data": {"n": 0}})).await;
    assert_eq!(again.expect(202)["duplicate"], true);
    let other = json!({"id": "plain-0", "type": "plain", "data": {"n": 1}});
    gateway.client.post_json(&events, &other).await.problem(409, "id_conflict");
    gateway.post_to_delivery(&gateway.delivery_of("plain-3").await, "replay").await.problem(410, "data_expunged");
}

/// Events that the measured store has, with a delivery each; 100,000 if nothing is said.
const MEASURED_ROWS: &str = "MIGRATED_ROWS";
/// Version whose fixture is measured; 0.1.0 if nothing is said.
const MEASURED_VERSION: &str = "MIGRATED_FROM";
/// Where the numbers of the rows begin that the measurement adds to the embedded store.
const FIRST_ADDED: i64 = 1_000_000;

#[tokio::test]
#[ignore = "measures: MIGRATED_ROWS=1000000 cargo test --test it measure_a_migration -- --ignored --nocapture"]
async fn measure_a_migration_of_the_embedded_store() {
    measure_a_migration().await;
}

#[tokio::test]
#[ignore = "measures: MIGRATED_ROWS=1000000 cargo test --test it measure_a_migration -- --ignored --nocapture"]
async fn measure_a_migration_on_postgres() {
    crate::support::on_postgres(measure_a_migration()).await;
}

/// Fills the store of an older version, and compares the start that migrates it with
/// the next one, which has nothing to migrate.
async fn measure_a_migration() {
    let rows = std::env::var(MEASURED_ROWS).map_or(100_000, |rows| rows.parse().expect("a number of rows"));
    let version = fixture(&std::env::var(MEASURED_VERSION).unwrap_or_else(|_| "0.1.0".into()));
    let folder = Arc::new(private_folder());
    let mut flags: Vec<String> = PATIENT.map(str::to_owned).into();
    flags.extend(["--log", "info,posthaste::store=debug"].map(str::to_owned));
    let now = SystemClock.now().as_millisecond();
    let mut database = None;
    if is_on_postgres() {
        unpack(&version.join("postgres.tar.gz"), folder.path());
        let restored = restore(&folder, &BEGIN_THE_YEAR.replace("$now", &now.to_string())).await;
        fill_database(&restored, rows).await;
        flags.extend(["--database-url".to_owned(), restored.url().to_owned()]);
        database = Some(restored);
    } else {
        unpack(&version.join("embedded.tar.gz"), folder.path());
        fill_embedded(&folder.path().join("posthaste.db"), rows);
    }
    let (mut starts, printed) = (Vec::new(), CapturedOutput::default());
    for _ in 0..2 {
        let began = std::time::Instant::now();
        let options = Options { flags: flags.clone(), output: Some(printed.clone()), ..Options::default() };
        let mut gateway = Gateway::start_in(folder.clone(), options).await;
        starts.push(began.elapsed().as_secs_f64());
        assert!(gateway.terminate().await.success());
    }
    let store = if database.is_some() { "PostgreSQL" } else { "embedded" };
    let waiting = if database.is_some() { ", and as many that wait" } else { "" };
    println!(
        "{store}, {rows} events with a delivery each{waiting}: {:.2} s to the start with the migration, {:.2} s without",
        starts[0], starts[1]
    );
    let said = printed.text();
    let steps = said.lines().filter(|line| line.contains("of the schema took"));
    for step in steps.filter_map(|line| line[line.find("step ")?..].split('"').next()) {
        println!("  {step}");
    }
}

/// Adds copies of an event and of a delivered delivery, under numbers of their own.
fn fill_embedded(path: &Path, rows: i64) {
    let db = rusqlite::Connection::open(path).unwrap();
    db.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -500000").unwrap();
    let number = format!("{FIRST_ADDED} + n");
    // Ids ascend, as those that the gateway makes do, so that their index is filled at its end.
    let id = "printf('many-%012d', n)";
    for (table, one, changed) in [
        ("events", "true", vec![("no", number.as_str()), ("id", id), ("first_delivery", &number)]),
        ("deliveries", "state = 1", vec![("no", &number), ("event", &number), ("lane", "NULL"), ("seq", "NULL")]),
    ] {
        let mut names = db.prepare("SELECT name FROM pragma_table_info(?)").unwrap();
        let names = names.query_map([table], |row| row.get::<_, String>(0)).unwrap().map(Result::unwrap).collect();
        let (names, values) = copied_columns(names, &changed);
        let added = db.execute(
            &format!(
                "WITH RECURSIVE counted(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < {rows})
                 INSERT INTO {table} ({names}) SELECT {values} FROM counted,
                     (SELECT * FROM {table} WHERE {one} LIMIT 1) one"
            ),
            [],
        );
        assert_eq!(added.unwrap() as i64, rows, "{table}");
    }
}

async fn fill_database(database: &Database, rows: i64) {
    let (client, connection) = tokio_postgres::connect(database.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    // What waits is at paused endpoints, so that the start does not begin with deliveries.
    for (table, one, changed) in [
        ("events", "true", vec![("no", "top + n"), ("id", "'many-' || n")]),
        ("finished", "true", vec![("no", "top + n"), ("lane", "NULL"), ("seq", "NULL")]),
        // They came with this server, so the start does not have to make them its own.
        ("queue", "lane IS NULL AND attempts = 0", vec![("no", "top + n"), ("xid", "'0'::xid8")]),
    ] {
        let names = "SELECT column_name::text FROM information_schema.columns
                     WHERE table_schema = 'posthaste' AND table_name = $1 AND is_generated = 'NEVER'";
        let names = client.query(names, &[&table]).await.unwrap().iter().map(|row| row.get(0)).collect();
        let (names, values) = copied_columns(names, &changed);
        let sql = format!(
            "INSERT INTO posthaste.{table} ({names}) SELECT {values} FROM generate_series(1, {rows}) n,
                 (SELECT max(no) AS top FROM posthaste.{table}) t,
                 (SELECT * FROM posthaste.{table} WHERE {one} LIMIT 1) one"
        );
        let added = client.execute(&sql, &[]).await.unwrap();
        assert_eq!(added as i64, rows, "{table}");
    }
}

/// The names of columns, and what is put into each: that of the row which is copied, or
/// what is changed in it.
fn copied_columns(names: Vec<String>, changed: &[(&str, &str)]) -> (String, String) {
    let value = |name: &String| match changed.iter().find(|(changed, _)| changed == name) {
        Some((_, value)) => (*value).to_owned(),
        None => format!("one.\"{name}\""),
    };
    let values: Vec<String> = names.iter().map(value).collect();
    let names: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    (names.join(", "), values.join(", "))
}
