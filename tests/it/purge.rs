//! Forgetting a customer: everything of a tenant goes, while others go on, whatever ends
//! the process meanwhile; and nothing of it is left in the files of the embedded store.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::cli::{cli_output, to_gateway};
use crate::support::{Client, Gateway, Receiver, Reply, eager_retry, eventually, is_on_postgres, unlimited};

for_every_store! {
    a_tenant_is_purged_beside_a_neighbour_over_a_kill_and_its_id_is_used_anew,
    a_purge_can_be_paused_and_not_cancelled_and_only_an_admin_starts_one,
    a_tenant_has_a_retention_of_its_own,
}

/// Text that nobody else writes, in every place where a tenant can write.
const MARKER: &str = "qxzvPurgeMarkerkwj";

async fn put_tenant(gateway: &Gateway, id: &str, settings: Value) {
    gateway.client.send("PUT", &format!("/v1/tenants/{id}"), &[], settings.to_string()).await.unwrap().expect(201);
}

/// Hands in events of the neighbour until told to stop. Returns the acknowledged ids.
async fn produce(client: Client, stop: Arc<AtomicBool>) -> Vec<String> {
    let mut acknowledged = Vec::new();
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        let id = format!("neighbour-{n}");
        let body = json!({"id": id, "type": "load", "key": format!("k{}", n % 3), "data": "x".repeat(n % 900)});
        match client.send("POST", "/v1/tenants/neighbour/events", &[], body.to_string()).await {
            Ok(answer) if answer.status == 202 => {
                acknowledged.push(id);
                n += 1;
            }
            Ok(answer) if answer.status == 503 => {}
            Ok(answer) => panic!("{answer:?}"),
            // The gateway was killed; the same is handed in again.
            Err(_) => tokio::task::yield_now().await,
        }
    }
    acknowledged
}

/// Gives a tenant events that arrive, that die and that wait, of all sizes, whose
/// receivers answer with what they got.
async fn fill(gateway: &Gateway, receiver: &Receiver) -> Value {
    put_tenant(gateway, "acme", json!({"name": format!("{MARKER} Ltd")})).await;
    let url = format!("{}/{MARKER}", receiver.url());
    // The lengths of bodies are much alike, so all may fail in a row.
    let settings = json!({"url": url, "description": MARKER, "rate": unlimited(), "retry": eager_retry(2),
                          "on_dead": "skip", "breaker": {"enabled": false}});
    let endpoint = gateway.client.post_json("/v1/tenants/acme/endpoints", &settings).await.expect(201);
    let settings = json!({"url": "http://127.0.0.1:9/", "rate": unlimited(), "event_types": ["late"]});
    gateway.client.post_json("/v1/tenants/acme/endpoints", &settings).await.expect(201);
    for batch in 0..8 {
        let event = |n: usize| {
            let data = format!("{MARKER}-{n}-").repeat(1 + (n * n) % 500);
            let kind = if n.is_multiple_of(10) { "late".to_owned() } else { format!("{MARKER}.usual") };
            json!({"id": format!("{MARKER}-{batch}-{n}"), "type": kind, "key": format!("{MARKER}-{}", n % 5), "data": data})
        };
        let events: Vec<Value> = (0..50).map(event).collect();
        gateway.client.post_json("/v1/tenants/acme/events/batch", &json!(events)).await.expect(202);
    }
    receiver.wait_for(100).await;
    endpoint
}

async fn purge_state(gateway: &Gateway, job: &str) -> Value {
    gateway.client.get(&format!("/v1/tenants/_system/jobs/{job}")).await.expect(200)
}

/// Whether any file below a folder has these bytes, and which.
fn files_with(folder: &Path, wanted: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with(&path, wanted));
        } else if std::fs::read(&path).unwrap().windows(wanted.len()).any(|bytes| bytes == wanted) {
            found.push(path.display().to_string());
        }
    }
    found
}

/// The files, or on PostgreSQL the tables, in which these bytes are.
async fn places_with(gateway: &Gateway, wanted: &[u8]) -> Vec<String> {
    let Some(database) = gateway.database() else { return files_with(&gateway.folder(), wanted) };
    let tables = "SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                  WHERE n.nspname = 'posthaste' AND c.relkind IN ('r', 'p')";
    let mut found = Vec::new();
    for table in database.rows(tables).await {
        let table = table[0].clone().unwrap();
        let bytes = hex::encode(wanted);
        let text = if wanted.is_ascii() { String::from_utf8_lossy(wanted).into_owned() } else { bytes.clone() };
        let sql = format!(
            "SELECT count(*) FROM {table} t WHERE strpos(t::text, '{text}') > 0 OR strpos(t::text, '{bytes}') > 0"
        );
        if database.number(&sql).await > 0 {
            found.push(table);
        }
    }
    found
}

/// An endpoint's id, as people and as the tables write it.
fn as_stored(endpoint: &Value) -> [Vec<u8>; 3] {
    let id = endpoint["id"].as_str().expect("an id");
    let number = id.parse::<posthaste::model::id::EndpointId>().expect("an endpoint's id").0;
    [id.as_bytes().to_vec(), number.to_string().into_bytes(), number.as_bytes().to_vec()]
}

/// Ends the gateway, which then writes the figures of the last minutes, and starts it again.
async fn with_figures_written(mut gateway: Gateway) -> Gateway {
    assert!(gateway.terminate().await.success());
    gateway.restart().await
}

/// The event types in the figures of the whole gateway.
async fn types_of_gateway(gateway: &Gateway) -> String {
    gateway.client.get("/v1/figures/types").await.expect(200).to_string()
}

async fn a_tenant_is_purged_beside_a_neighbour_over_a_kill_and_its_id_is_used_anew() {
    let mut gateway = Gateway::start().await;
    let receiver = Receiver::answering(|request| {
        let status = if request.body.len().is_multiple_of(7) { 500 } else { 200 };
        Reply::Body(status, Bytes::from(format!("{MARKER} says: {}", request.body.len())))
    })
    .await;
    let neighbours = Receiver::start().await;
    put_tenant(&gateway, "neighbour", json!({})).await;
    let settings = json!({"url": neighbours.url(), "rate": unlimited(), "retry": eager_retry(1_000)});
    gateway.client.post_json("/v1/tenants/neighbour/endpoints", &settings).await.expect(201);
    let endpoint = fill(&gateway, &receiver).await;
    let secret = endpoint["secret"].as_str().expect("a new endpoint's secret is shown once").to_owned();
    gateway.client.post_json("/v1/tenants/neighbour/events", &json!({"type": "shared", "data": 1})).await.expect(202);
    neighbours.wait_for(1).await;
    gateway = with_figures_written(gateway).await;
    assert!(types_of_gateway(&gateway).await.contains(MARKER), "the figures of the gateway name the type");
    let before = places_with(&gateway, MARKER.as_bytes()).await;
    assert!(before.len() >= if is_on_postgres() { 5 } else { 1 }, "it is there before: {before:?}");
    let stop = Arc::new(AtomicBool::new(false));
    let producer = tokio::spawn(produce(gateway.another_client(), stop.clone()));
    let started = gateway.client.post("/v1/tenants/acme/purge", "").await.expect(202);
    assert_eq!((&started["kind"], &started["purge"]["tenant"]), (&json!("purge"), &json!("acme")));
    let job = started["id"].as_str().unwrap().to_owned();
    gateway
        .client
        .post_json("/v1/tenants/acme/events", &json!({"type": "a", "data": 1}))
        .await
        .problem(404, "not_found");
    eventually("the purge to begin", || async {
        let job = purge_state(&gateway, &job).await;
        if job["done"].as_u64() > Some(0) { Ok(()) } else { Err(job.to_string()) }
    })
    .await;
    gateway.kill().await;
    gateway = gateway.restart().await;
    eventually("the purge to end", || async {
        let job = purge_state(&gateway, &job).await;
        if job["state"] == "finished" { Ok(()) } else { Err(job.to_string()) }
    })
    .await;
    let wanted = [MARKER.as_bytes().to_vec(), secret.into_bytes()].into_iter().chain(as_stored(&endpoint));
    for wanted in wanted {
        let shown = String::from_utf8_lossy(&wanted).into_owned();
        assert_eq!(places_with(&gateway, &wanted).await, Vec::<String>::new(), "{shown} is left");
    }
    let types = types_of_gateway(&gateway).await;
    assert!(types.contains("shared") && !types.contains(MARKER), "{types}");
    stop.store(true, Ordering::Relaxed);
    let acknowledged = producer.await.unwrap();
    eventually("the neighbour's events to arrive", || async {
        let seen = neighbours.times_by_id();
        let missing: Vec<&String> = acknowledged.iter().filter(|id| !seen.contains_key(*id)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?}")) }
    })
    .await;
    assert!(!acknowledged.is_empty());
    let kept = gateway.client.get("/v1/audit?resource=acme").await.expect(200);
    let actions: Vec<&Value> = kept["data"].as_array().unwrap().iter().map(|entry| &entry["action"]).collect();
    assert_eq!(actions, ["tenant.purged", "tenant.purge_started"]);
    assert_eq!(kept["data"][0]["counts"]["events"], 400);
    put_tenant(&gateway, "acme", json!({})).await;
    for list in ["events", "deliveries", "endpoints", "dead-letters", "jobs"] {
        let page = gateway.client.get(&format!("/v1/tenants/acme/{list}")).await.expect(200);
        assert_eq!(page["data"], json!([]), "{list}");
    }
    let again = json!({"id": format!("{MARKER}-0-1"), "type": "usual", "data": 1});
    let answer = gateway.client.post_json("/v1/tenants/acme/events", &again).await.expect(202);
    assert_eq!(answer["duplicate"], false);
}

async fn a_purge_can_be_paused_and_not_cancelled_and_only_an_admin_starts_one() {
    let mut gateway = Gateway::start().await;
    // Some fail, so that the endpoint is among those with failures; too many would open its breaker.
    let failing = |length: usize| if length.is_multiple_of(7) { 500 } else { 200 };
    let receiver = Receiver::answering(move |request| Reply::Status(failing(request.body.len()))).await;
    let endpoint = fill(&gateway, &receiver).await;
    for rights in [json!({"rights": ["tenants"], "name": "all"}), json!({"rights": ["manage"], "tenant": "acme"})] {
        let token = gateway.client.post_json("/v1/tokens", &rights).await.expect(201);
        let other = Client::new(gateway.address, token["token"].as_str().unwrap());
        other.post("/v1/tenants/acme/purge", "").await.problem(403, "missing_right");
    }
    gateway.client.post("/v1/tenants/never/purge", "").await.problem(404, "not_found");
    gateway.client.post("/v1/tenants/default/purge", "").await.problem(409, "wrong_state");
    let by_job = json!({"kind": "purge", "filter": {"all": true}});
    let refused = gateway.client.post_json("/v1/jobs", &by_job).await.problem(422, "invalid_field");
    assert!(refused["errors"][0]["detail"].as_str().unwrap().contains("/v1/tenants/{tenant}/purge"), "{refused}");
    let started = gateway.client.post("/v1/tenants/acme/purge", "").await.expect(202);
    let path = format!("/v1/tenants/_system/jobs/{}", started["id"].as_str().unwrap());
    gateway.client.post(&format!("{path}/pause"), "").await.expect(200);
    let refused = gateway.client.post(&format!("{path}/cancel"), "").await.problem(409, "wrong_state");
    assert!(refused["detail"].as_str().unwrap().contains("purges a tenant"), "{refused}");
    let answer = gateway.client.send("PUT", "/v1/tenants/acme", &[], "{}").await.unwrap().problem(409, "wrong_state");
    assert!(answer["detail"].as_str().unwrap().contains("is being purged by job"), "{answer}");
    gateway.client.post(&format!("{path}/resume"), "").await.expect(200);
    eventually("the purge to end", || async {
        let job = gateway.client.get(&path).await.expect(200);
        if job["state"] == "finished" { Ok(()) } else { Err(job.to_string()) }
    })
    .await;
    // The command waits for the end, and says how far it has come.
    put_tenant(&gateway, "acme", json!({})).await;
    let args = ["tenants", "purge", "acme", "--yes", "-o", "json"];
    let said = to_gateway(&gateway, &args).output().await.expect("it runs");
    assert!(said.status.success(), "{said:?}");
    assert!(String::from_utf8_lossy(&said.stderr).contains("purge of acme finished"), "{said:?}");
    let job: Value = serde_json::from_slice(&said.stdout).expect("JSON");
    assert_eq!((&job["state"], &job["purge"]["tenant"]), (&json!("finished"), &json!("acme")));
    // What was counted and not written when the purge began is not written later, either.
    assert!(gateway.terminate().await.success());
    for wanted in [MARKER.as_bytes().to_vec()].into_iter().chain(as_stored(&endpoint)) {
        let shown = String::from_utf8_lossy(&wanted).into_owned();
        assert_eq!(places_with(&gateway, &wanted).await, Vec::<String>::new(), "{shown} is left");
    }
}

async fn a_tenant_has_a_retention_of_its_own() {
    let gateway = Gateway::start().await;
    cli_output(&gateway, &["tenants", "create", "acme", "--retention", "7d"]).await;
    let shown = gateway.client.get("/v1/tenants/acme").await.expect(200);
    assert_eq!((&shown["retention"], &shown["dead_letter_retention"]), (&json!("7d"), &Value::Null));
    cli_output(&gateway, &["tenants", "update", "acme", "--retention", "none", "--dead-letter-retention", "400d"])
        .await;
    let shown = gateway.client.get("/v1/tenants/acme").await.expect(200);
    assert_eq!((&shown["retention"], &shown["dead_letter_retention"]), (&Value::Null, &json!("400d")));
    for wrong in ["59s", "3651d"] {
        let body = json!({"retention": wrong});
        let refused = gateway.client.patch_json("/v1/tenants/acme", &body).await.problem(422, "invalid_field");
        let detail = refused["errors"][0]["detail"].as_str().unwrap();
        assert!(detail.contains("use 1m to 3650d, or null for as long as"), "{detail}");
    }
}
