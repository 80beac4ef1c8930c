//! An embedded installation moves to PostgreSQL: everything is there
//! afterwards, under the same ids, and what waited goes on.

use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;
use tokio_postgres::NoTls;

use crate::servers::postgres::{Database, Server};
use crate::support::{Gateway, Options, Receiver, Reply, eager_retry, eventually, path_of, unlimited};

/// Trace of one event that is moved.
const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// `posthaste migrate-store`, ready to run.
fn migrate_store(folder: &Path, database: &str, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
    command.args(["migrate-store", "--from"]).arg(folder).args(["--to", database]).args(flags).kill_on_drop(true);
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// A start that is expected to fail: what it said.
async fn refused(folder: &Path, flags: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(folder).args(flags).kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_secs(60), command.output()).await.expect("it ends").unwrap();
    assert!(!output.status.success(), "{}", said(&output));
    said(&output)
}

/// Everything the API tells of an installation.
async fn told(gateway: &Gateway, endpoints: &[&Value]) -> Value {
    let mut all = serde_json::Map::new();
    for list in [
        "tenants",
        "tokens",
        "tenants/default/endpoints",
        "tenants/default/events",
        "tenants/default/jobs",
        "tenants/acme/endpoints",
        "tenants/acme/audit",
    ] {
        all.insert(list.into(), gateway.list(&format!("/v1/{list}")).await.into());
    }
    for state in ["waiting", "delivered", "dead", "cancelled"] {
        let found = gateway.list(&format!("/v1/tenants/default/deliveries?state={state}")).await;
        assert!(!found.is_empty(), "there is something {state} to be moved");
        for delivery in &found {
            let attempts = gateway.attempts_of(delivery).await;
            all.insert(format!("attempts of {}", delivery["id"]), attempts.into());
            let one = format!("/v1/tenants/default/deliveries/{}", delivery["id"].as_str().unwrap());
            assert_eq!(gateway.client.get(&one).await.expect(200)["id"], delivery["id"], "it is found by its id");
        }
        all.insert(format!("deliveries {state}"), found.into());
    }
    for endpoint in endpoints {
        for list in ["secrets", "lanes", "history"] {
            let path = format!("{}/{list}", path_of(endpoint));
            all.insert(path.clone(), gateway.client.get(&path).await.expect(200));
        }
    }
    let mut all = all.into();
    forget_ages(&mut all);
    all
}

/// Takes out what changes by itself.
fn forget_ages(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("oldest_due_age");
            fields.values_mut().for_each(forget_ages);
        }
        Value::Array(values) => values.iter_mut().for_each(forget_ages),
        _ => {}
    }
}

/// The endpoints of the story.
struct MovedEndpoints {
    receiver: Receiver,
    lanes: Value,
    slow: Value,
    paused: Value,
}

/// An installation with something of everything.
async fn live(gateway: &Gateway) -> MovedEndpoints {
    let receiver = Receiver::answering(|seen| match seen.header("x-key") {
        "poison" => Reply::Status(400),
        _ if seen.path.contains("slow") => Reply::Status(503),
        _ => Reply::Status(200),
    })
    .await;
    gateway.client.send("PUT", "/v1/tenants/acme", &[], r#"{"name":"Acme"}"#).await.unwrap().expect(201);
    let reader = json!({"tenant": "acme", "rights": ["read"], "expires_at": "2100-01-01T00:00:00Z"});
    gateway.client.post_json("/v1/tokens", &reader).await.expect(201);
    let watcher = json!({"name": "the dashboard", "rights": ["admin_read"]});
    gateway.client.post_json("/v1/tokens", &watcher).await.expect(201);
    let theirs = json!({"url": receiver.url(), "description": "theirs"});
    gateway.client.post_json("/v1/tenants/acme/endpoints", &theirs).await.expect(201);
    let url = |part: &str| format!("{}/{part}", receiver.url());
    let lanes = gateway
        .create_endpoint(
            json!({"url": url("lanes"), "event_types": ["lane"], "retry": eager_retry(3), "rate": unlimited()}),
        )
        .await;
    let hourly = json!({"schedule": ["1h"], "jitter": "none", "max_attempts": 9});
    let slow = gateway.create_endpoint(json!({"url": url("slow"), "event_types": ["slow"], "retry": hourly})).await;
    let paused = gateway.create_endpoint(json!({"url": url("paused"), "event_types": ["paused"]})).await;
    let gone = gateway.create_endpoint(json!({"url": url("gone"), "event_types": ["gone"]})).await;
    gateway.post_to_endpoint(&paused, "pause", "").await;

    // Ten lanes go through, and one is blocked by its dead first member.
    gateway.send_many("lane", "lane", 100, |n| Some(format!("k{}", n % 10))).await;
    gateway.send_many("poison", "lane", 5, |_| Some("poison".into())).await;
    gateway.send_many("slow", "slow", 5, |_| None).await;
    gateway.send_many("paused", "paused", 40, |n| (n % 2 == 0).then(|| "p".into())).await;
    gateway.send_many("gone", "gone", 3, |_| None).await;
    let minted = json!({"type": "slow", "data": {"minted": true}}).to_string();
    gateway
        .client
        .send("POST", "/v1/tenants/default/events", &[("traceparent", TRACE)], minted)
        .await
        .unwrap()
        .expect(202);
    gateway.wait_for_state("poison-0", "dead").await;
    for event in ["lane-99", "lane-95", "gone-0", "gone-2"] {
        gateway.wait_for_state(event, "delivered").await;
    }
    for n in 0..100 {
        gateway.wait_for_state(&format!("lane-{n}"), "delivered").await;
    }
    for n in 0..5 {
        eventually("the first attempt", || async {
            let delivery = gateway.delivery_of(&format!("slow-{n}")).await;
            if delivery["attempts"] == 1 { Ok(()) } else { Err(delivery.to_string()) }
        })
        .await;
    }
    gateway.send_many("tardy", "tardy", 3, |_| None).await;
    let late = gateway.create_endpoint(json!({"url": url("late"), "event_types": ["tardy"]})).await;
    let job = json!({"kind": "backfill", "filter": {"endpoints": [late["id"]]}, "note": "it came late"});
    let job = gateway.client.post_json("/v1/tenants/default/jobs", &job).await.expect(202);
    eventually("the backfill", || async {
        let job =
            gateway.client.get(&format!("/v1/tenants/default/jobs/{}", job["id"].as_str().unwrap())).await.expect(200);
        if job["outcome"]["delivered"] == 3 && job["state"] == "finished" { Ok(()) } else { Err(job.to_string()) }
    })
    .await;
    // Replayed, cancelled, and deleted with what was delivered and what waited.
    gateway.post_to_delivery(&gateway.delivery_of("lane-7").await, "replay").await.expect(202);
    gateway.wait_for_state("lane-7", "delivered").await;
    gateway.post_to_delivery(&gateway.delivery_of("paused-39").await, "cancel").await.expect(202);
    gateway.client.post(&format!("{}/secrets/rotate", path_of(&lanes)), "{}").await.expect(201);
    gateway.post_to_endpoint(&gone, "pause", "").await;
    gateway.send_many("late", "gone", 2, |_| None).await;
    gateway.client.send("DELETE", &path_of(&gone), &[], "").await.unwrap();
    eventually("what waited for the deleted endpoint to be listed as cancelled", || async {
        let cancelled = gateway.list("/v1/tenants/default/deliveries?state=cancelled").await;
        if cancelled.len() == 3 { Ok(()) } else { Err(json!(cancelled).to_string()) }
    })
    .await;
    MovedEndpoints { receiver, lanes, slow, paused }
}

/// Kills a move in the middle: where it meets the dead letter, which comes
/// after a hundred deliveries and before the rest.
async fn kill_half_way(folder: &Path, database: &Database) {
    let mut moving = migrate_store(folder, database.url(), &["--batch", "1"]).spawn().unwrap();
    let is_made = "SELECT count(*) FROM pg_tables WHERE schemaname = 'posthaste' AND tablename = 'node_questions'";
    while database.number(is_made).await == 0 {
        assert!(moving.try_wait().unwrap().is_none(), "it ended before it began");
    }
    let (client, connection) = tokio_postgres::connect(database.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    // It may still read the table, to see that there is nothing in it.
    client.batch_execute("BEGIN; LOCK TABLE posthaste.dead IN SHARE MODE").await.unwrap();
    let is_stuck = "SELECT count(*) FROM pg_locks WHERE relation = 'posthaste.dead'::regclass AND NOT granted";
    while database.number(is_stuck).await == 0 {
        assert!(moving.try_wait().unwrap().is_none(), "it ended before it could be killed");
    }
    moving.kill().await.unwrap();
    client.batch_execute("ROLLBACK").await.unwrap();
    assert!(database.number("SELECT count(*) FROM posthaste.finished").await >= 100);
    assert_eq!(database.number("SELECT count(*) FROM posthaste.queue").await, 0);
}

#[tokio::test]
async fn an_installation_moves_with_everything_and_goes_on() {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let mut gateway = Gateway::start_in(folder.clone(), Options::default()).await;
    let story = live(&gateway).await;
    let endpoints = [&story.lanes, &story.slow, &story.paused];
    let before = told(&gateway, &endpoints).await;
    let gone_before = gateway.delivery_of("gone-0").await;
    let late_before = gateway.delivery_of("late-0").await;

    let database = Server::shared(&[]).await.database().await;
    let to = ["--database-url", database.url()];
    let running = migrate_store(folder.path(), database.url(), &[]).output().await.unwrap();
    assert!(!running.status.success() && said(&running).contains("must be stopped"), "{}", said(&running));
    assert!(gateway.terminate().await.success());

    // Killed in the middle, neither end may be used, and it goes on from there.
    kill_half_way(folder.path(), &database).await;
    let half = refused(folder.path(), &to).await;
    assert!(half.contains("is not complete") && half.contains("posthaste migrate-store"), "{half}");
    let source = refused(folder.path(), &[]).await;
    assert!(source.contains("is being moved to PostgreSQL at"), "{source}");
    let moved = migrate_store(folder.path(), database.url(), &["--batch", "7"]).output().await.unwrap();
    assert!(moved.status.success(), "{}", said(&moved));
    let words = said(&moved);
    assert!(words.contains("3 tenants, 6 endpoints") && words.contains("1 dead letters"), "{words}");
    assert!(words.contains("master-key") && !words.contains(database.role_and_password().1), "{words}");
    let again = migrate_store(folder.path(), database.url(), &[]).output().await.unwrap();
    assert!(again.status.success() && said(&again).contains("nothing was left to do"), "{}", said(&again));
    let source = refused(folder.path(), &[]).await;
    assert!(source.contains("was moved to PostgreSQL at") && source.contains("--database-url"), "{source}");

    let sent = story.receiver.count();
    let gateway = Gateway::start_in(folder.clone(), Options::flags(&to)).await;
    gateway.client.get("/v1/tenants").await.expect(200);
    let after = told(&gateway, &endpoints).await;
    for (what, before) in before.as_object().unwrap() {
        assert_eq!(&after[what], before, "{what}");
    }
    assert_eq!(gateway.delivery_of("gone-0").await, gone_before);
    assert_eq!(gateway.delivery_of("late-0").await, late_before);
    assert_eq!(story.receiver.count(), sent, "nothing was sent by moving");

    goes_on(&gateway, &story).await;
}

/// What waited is delivered, in order; ids are still known.
async fn goes_on(gateway: &Gateway, story: &MovedEndpoints) {
    let repeat = json!({"id": "lane-5", "type": "lane", "key": "k5", "data": 5});
    let again = gateway.client.post_json("/v1/tenants/default/events", &repeat).await.expect(202);
    assert_eq!(again["duplicate"], true, "{again}");
    let other = json!({"id": "lane-5", "type": "lane", "key": "k5", "data": 6});
    gateway.client.post_json("/v1/tenants/default/events", &other).await.problem(409, "id_conflict");
    let events = gateway.list("/v1/tenants/default/events?type=slow").await;
    let minted = events.iter().find(|event| event["data"]["minted"] == true).expect("it was moved");
    let claimed = json!({"id": minted["id"], "type": "slow", "data": {"minted": true}});
    gateway.client.post_json("/v1/tenants/default/events", &claimed).await.problem(409, "id_conflict");

    story.receiver.answer_with(|_| Reply::Status(200));
    let seen = story.receiver.count();
    gateway.post_to_endpoint(&story.paused, "resume", "").await;
    gateway.drained(&story.paused).await;
    for n in 0..5 {
        gateway.post_to_delivery(&gateway.delivery_of(&format!("slow-{n}")).await, "retry").await.expect(202);
        gateway.wait_for_state(&format!("slow-{n}"), "delivered").await;
    }
    let minted = minted["id"].as_str().unwrap();
    gateway.post_to_delivery(&gateway.delivery_of(minted).await, "retry").await.expect(202);
    gateway.wait_for_state(minted, "delivered").await;
    let traced = story.receiver.seen().into_iter().rfind(|seen| seen.id() == minted).expect("it was sent again");
    assert_eq!(traced.header("traceparent"), TRACE, "its trace was moved with it");
    gateway.post_to_delivery(&gateway.delivery_of("poison-0").await, "replay").await.expect(202);
    gateway.drained(&story.lanes).await;
    gateway.send(json!({"id": "new", "type": "lane", "key": "poison", "data": 1})).await;
    let new = gateway.wait_for_state("new", "delivered").await;
    assert_eq!(new["seq"], 6, "its lane counts on: {new}");
    let seen = story.receiver.seen().split_off(seen);
    let order = |prefix: &str, key: &str| -> Vec<String> {
        let of_lane = seen.iter().filter(|seen| seen.id().starts_with(prefix) && seen.header("x-key") == key);
        of_lane.map(|seen| seen.id().to_owned()).collect()
    };
    let poison: Vec<String> = (0..5).map(|n| format!("poison-{n}")).collect();
    assert_eq!(order("poison", "poison"), poison);
    let paused: Vec<String> = (0..40).step_by(2).map(|n| format!("paused-{n}")).collect();
    assert_eq!(order("paused", "p"), paused);
    let secrets = gateway.client.get(&format!("{}/secrets", path_of(&story.lanes))).await.expect(200);
    let verifier = standardwebhooks::Webhook::new(secrets["data"][0]["secret"].as_str().unwrap()).unwrap();
    let signed = seen.iter().find(|seen| seen.id() == "new").unwrap();
    verifier.verify(&signed.body, &signed.headers).expect("it is signed with the secret that was moved");
}

/// An embedded installation with one event, stopped.
async fn small() -> (Arc<TempDir>, Receiver) {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let mut gateway = Gateway::start_in(folder.clone(), Options::default()).await;
    let receiver = Receiver::start().await;
    gateway.create_endpoint(json!({"url": receiver.url()})).await;
    gateway.send(json!({"id": "one", "type": "a", "data": 1})).await;
    gateway.wait_for_state("one", "delivered").await;
    assert!(gateway.terminate().await.success());
    (folder, receiver)
}

#[tokio::test]
async fn nothing_is_moved_onto_what_is_there_and_nothing_over_what_has_changed() {
    let server = Server::shared(&[]).await;
    let (folder, receiver) = small().await;
    let used = server.database().await;
    let other = Arc::new(tempfile::tempdir().unwrap());
    let to = ["--database-url", used.url()];
    let mut node = Gateway::start_in(other.clone(), Options::flags(&to)).await;
    let onto = |flags: &'static [&'static str]| migrate_store(folder.path(), used.url(), flags).output();
    let running = onto(&[]).await.unwrap();
    assert!(!running.status.success(), "{}", said(&running));
    node.create_endpoint(json!({"url": receiver.url()})).await;
    assert!(node.terminate().await.success());
    let filled = onto(&[]).await.unwrap();
    assert!(!filled.status.success() && said(&filled).contains("already; name an empty one"), "{}", said(&filled));
    // What was refused leaves the source as it was.
    let mut gateway = Gateway::start_in(folder.clone(), Options::default()).await;
    assert!(gateway.terminate().await.success());

    // Given up in the middle and used again, the source no longer fits.
    let database = server.database().await;
    let moved = migrate_store(folder.path(), database.url(), &[]).output().await.unwrap();
    assert!(moved.status.success(), "{}", said(&moved));
    database
        .execute(
            "UPDATE posthaste.notes SET name = 'moving', value = '{\"id\":\"' || value || '\",\"part\":\"lanes\",\
                      \"after\":[0,\"\"],\"done\":3}' WHERE name = 'moved_from'",
        )
        .await;
    std::fs::remove_file(folder.path().join("moved")).unwrap();
    let mut gateway = Gateway::start_in(folder.clone(), Options::default()).await;
    gateway.send(json!({"id": "two", "type": "a", "data": 1})).await;
    assert!(gateway.terminate().await.success());
    let changed = migrate_store(folder.path(), database.url(), &[]).output().await.unwrap();
    assert!(!changed.status.success() && said(&changed).contains("before it was used again"), "{}", said(&changed));
}
