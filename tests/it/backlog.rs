//! What is large: a million waiting deliveries, two hundred thousand dead letters,
//! a hundred thousand endpoints. Memory, restarts and lists do not notice.

use std::time::{Duration, Instant};

use posthaste::store::embedded::LOG_BYTES_MAX;
use serde_json::{Value, json};

use crate::support::{Gateway, Receiver, path_of, unlimited};

const WAITING: usize = 1_000_000;
const PER_BATCH: usize = 1_000;

/// The most memory the process has ever held, in MiB.
fn peak_memory(gateway: &Gateway) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.process_id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() / 1_024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_waiting_deliveries_cost_neither_memory_nor_restart_nor_lists() {
    let receiver = Receiver::start().await;
    let gateway = Gateway::start().await;
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url()})).await;
    let path = path_of(&endpoint);
    gateway.client.post(&format!("{path}/pause"), "").await.expect(200);
    fill(&gateway, WAITING, |n| match n % 2 {
        // Half of them in lanes, ten thousand of those.
        0 => json!({"type": "backlog.event", "key": format!("k{}", n % 20_000), "data": {"n": n}}),
        _ => json!({"type": "backlog.event", "data": {"n": n}}),
    })
    .await;
    let filled = peak_memory(&gateway);
    let (reader, log_bytes) = fill_log(&gateway).await;

    let mut gateway = gateway;
    gateway.kill().await;
    drop(reader);
    let log = gateway.folder().join("posthaste.db-wal");
    assert!(std::fs::metadata(&log).unwrap().len() >= LOG_BYTES_MAX, "the start finds the log as it was");
    let began = Instant::now();
    let gateway = gateway.restart().await;
    let restarted = began.elapsed();
    gateway.client.post(&format!("{path}/resume"), "").await.expect(200);
    receiver.wait_for(1).await;
    let first = began.elapsed();
    gateway.client.post(&format!("{path}/pause"), "").await.expect(200);

    let mut slowest = Duration::ZERO;
    for query in [
        "state=waiting",
        "state=delivered",
        "state=dead",
        "key=k7",
        "event_type=none.such",
        "until=2020-01-01T00:00:00Z",
        "",
    ] {
        let asked = Instant::now();
        gateway.client.get(&format!("/v1/tenants/default/deliveries?{query}")).await.expect(200);
        slowest = slowest.max(asked.elapsed());
    }
    let peak = peak_memory(&gateway);
    println!(
        "{WAITING} waiting: {filled} MiB while filling, {peak} MiB after a restart; after a kill with a log of {} MiB served after {restarted:?}, delivered after {first:?}; slowest page {slowest:?}",
        log_bytes >> 20
    );
    // Two seconds on two quiet cores; reading what waits would take far longer than this.
    assert!(first < Duration::from_secs(20), "the first delivery took {first:?}");
    assert!(filled <= 150 && peak <= 150, "memory is {filled} MiB while filling and {peak} MiB after a restart");
    assert_eq!(
        gateway.client.get(&format!("{path}/lanes?limit=1")).await.expect(200)["data"].as_array().map(Vec::len),
        Some(1)
    );

    gateway.client.send("DELETE", &path, &[], "").await.unwrap().expect(204);
    let waiting = gateway.client.get("/v1/tenants/default/deliveries?state=waiting").await.expect(200);
    assert_eq!(waiting["data"], json!([]), "deleting cancels a million at once");
}

/// Hands in events until the log has the size that it may keep. The connection that is
/// returned reads the store as it was before, so that the log is not emptied.
async fn fill_log(gateway: &Gateway) -> (rusqlite::Connection, u64) {
    let store = gateway.folder().join("posthaste.db");
    let reader = rusqlite::Connection::open(&store).unwrap();
    // The last to close a store empties its log otherwise.
    reader.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).unwrap();
    reader.execute_batch("BEGIN; SELECT * FROM notes;").unwrap();
    let log_bytes = || std::fs::metadata(store.with_extension("db-wal")).unwrap().len();
    while log_bytes() < LOG_BYTES_MAX {
        fill(gateway, 20 * PER_BATCH, |n| json!({"type": "backlog.event", "data": {"n": n}})).await;
    }
    (reader, log_bytes())
}

/// Eight producers hand in batches until there are so many events.
async fn fill(gateway: &Gateway, count: usize, event: fn(usize) -> Value) {
    let next = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let producers: Vec<_> = (0..8)
        .map(|_| {
            let (client, next) = (gateway.another_client(), next.clone());
            tokio::spawn(async move {
                loop {
                    let batch = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if batch >= count / PER_BATCH {
                        return;
                    }
                    let events: Vec<Value> = (batch * PER_BATCH..(batch + 1) * PER_BATCH).map(event).collect();
                    let events = Value::from(events);
                    // A fast machine hands in more than a tenant's usual rate, and asks again.
                    let answer = loop {
                        let answer = client.post_json("/v1/tenants/default/events/batch", &events).await;
                        if answer.status != 429 {
                            break answer;
                        }
                    };
                    answer.expect(202);
                }
            })
        })
        .collect();
    for producer in producers {
        producer.await.unwrap();
    }
}

/// Asks again and again until it is so, for ten minutes.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> Result<(), String>) {
    let began = Instant::now();
    while let Err(last) = is_so().await {
        assert!(began.elapsed() < Duration::from_secs(600), "waited in vain for {what}: {last}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

const DEAD: usize = 200_000;

/// A bad night: everything died, and one command sends it again, through a kill.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_thousand_dead_letters_are_replayed_each_once_through_a_kill() {
    let (receiver, gateway) = (Receiver::start().await, Gateway::start().await);
    let settings = json!({"url": receiver.url(), "rate": unlimited(), "max_in_flight": 500, "ordering": "none"});
    let endpoint = gateway.create_endpoint(settings).await;
    // What is over when it comes dies without an attempt.
    fill(
        &gateway,
        DEAD,
        |n| json!({"id": format!("e{n}"), "type": "lost.event", "expires_at": "2020-01-01T00:00:00Z", "data": n}),
    )
    .await;
    let dead = async |gateway: &Gateway| {
        let groups = gateway.client.get("/v1/tenants/default/dead-letters/groups").await.expect(200);
        groups["total"]["count"].as_u64().unwrap() as usize
    };
    until("all to be dead", async || match dead(&gateway).await {
        DEAD => Ok(()),
        count => Err(count.to_string()),
    })
    .await;
    let jobs = "/v1/tenants/default/jobs";
    let replay = json!({"kind": "replay", "filter": {"endpoints": [endpoint["id"]]}, "per_second": 100_000});
    let mut preview = replay.clone();
    preview["dry_run"] = json!(true);
    let (asked, preview) = (Instant::now(), gateway.client.post_json(jobs, &preview).await.expect(200));
    let previewed = asked.elapsed();
    // The tally knows how many there are, and not whether some were expunged.
    assert_eq!((&preview["matches"], &preview["bound"]), (&json!(DEAD), &json!("at_most")), "{preview}");
    assert!(previewed < Duration::from_secs(5), "the preview took {previewed:?}");
    let began = Instant::now();
    let job = gateway.client.post_json(jobs, &replay).await.expect(202);
    let path = format!("{jobs}/{}", job["id"].as_str().unwrap());
    until("a third of them", async || if receiver.count() > DEAD / 3 { Ok(()) } else { Err("less".into()) }).await;
    let gateway = gateway.killed_and_restarted().await;
    until("the job to be finished", async || {
        let job = gateway.client.get(&path).await.expect(200);
        if job["state"] == "finished" { Ok(()) } else { Err(job.to_string()) }
    })
    .await;
    let (took, job) = (began.elapsed(), gateway.client.get(&path).await.expect(200));
    assert_eq!((&job["done"], &job["outcome"]["delivered"]), (&json!(DEAD), &json!(DEAD)), "{job}");
    assert_eq!(dead(&gateway).await, 0);
    let (times, peak) = (receiver.times_by_id(), peak_memory(&gateway));
    let again = times.values().filter(|times| **times > 1).count();
    println!(
        "{DEAD} dead letters: previewed in {previewed:?}, replayed in {took:?} with a kill; {again} came twice; {peak} MiB"
    );
    assert_eq!(times.len(), DEAD, "every one came");
    // Only what was open, or answered and not yet written, when it was killed.
    assert!(again <= 1_000 && times.values().all(|times| *times <= 2), "{again} came twice");
    assert!(peak <= 150, "memory is {peak} MiB");
}

/// An operator may raise the limits as far as wanted; and figures of that many active
/// endpoints are written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_endpoints_are_possible_where_the_operator_says_so() {
    const COUNT: usize = 100_000;
    const TASKS: usize = 50;
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    let raised = json!({"limits": {"endpoints": COUNT, "settings_bytes": "256MiB"}});
    gateway.client.patch_json("/v1/tenants/default", &raised).await.expect(200);
    let url = receiver.url();
    let create = async |task: usize| {
        let client = gateway.another_client();
        for n in 0..COUNT / TASKS {
            let settings = json!({"url": url, "event_types": [format!("t{}", task * COUNT / TASKS + n)]});
            client.post_json("/v1/tenants/default/endpoints", &settings).await.expect(201);
        }
    };
    futures_util::future::join_all((0..TASKS).map(create)).await;
    let refused = gateway.client.post_json("/v1/tenants/default/endpoints", &json!({"url": url})).await;
    assert_eq!(refused.problem(422, "limit_exceeded")["limit"], "endpoints");
    let mut gateway = gateway.killed_and_restarted().await;
    let usage = gateway.client.get("/v1/tenants/default").await.expect(200)["usage"].clone();
    assert_eq!(usage["endpoints"], COUNT);
    let idle = peak_memory(&gateway);
    fill(&gateway, COUNT, |n| json!({"type": format!("t{n}"), "data": n})).await;
    until("all to come", async || if receiver.count() >= COUNT { Ok(()) } else { Err("fewer".into()) }).await;
    let active = peak_memory(&gateway);
    // A stop writes the window that is open: a row for each endpoint.
    let began = Instant::now();
    gateway.terminate().await;
    let written = began.elapsed();
    let gateway = gateway.restart().await;
    let figures = gateway.client.get("/v1/figures?step=1h").await.expect(200);
    let points = figures["data"].as_array().unwrap();
    let delivered: u64 = points.iter().filter_map(|point| point["ended"]["delivered"].as_u64()).sum();
    println!(
        "{COUNT} active endpoints: {idle} MiB before, {active} MiB with their counters; written and stopped in {written:?}"
    );
    assert_eq!(delivered, COUNT as u64, "{figures}");
    assert_eq!(figures["gaps"].as_array().map(Vec::len), Some(1), "the kill alone: {}", figures["gaps"]);
    assert!(written < Duration::from_secs(60), "writing the figures took {written:?}");
}
