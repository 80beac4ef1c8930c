//! How far behind the gateway says it is: what could go and did not, apart
//! from what others hold back.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{CapturedOutput, Client, Gateway, Options, Receiver, Reply, eager_retry, eventually, unlimited};

for_every_store! {
    what_an_open_breaker_holds_is_not_our_lag,
    a_backlog_is_as_old_as_it_is_wherever_it_lies,
}

async fn metric(client: &Client, series: &str) -> f64 {
    let scraped = client.get("/metrics").await;
    let text = String::from_utf8_lossy(&scraped.body).into_owned();
    let found = text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
    found.unwrap_or_else(|| panic!("there is no {series} in {text}"))
}

/// The most that any shard says in this field.
fn most(cluster: &Value, field: &str) -> u64 {
    let shards = cluster["shards"].as_array().expect("shards").iter();
    shards.filter_map(|shard| shard.pointer(field).and_then(Value::as_u64)).max().unwrap_or(0)
}

async fn what_an_open_breaker_holds_is_not_our_lag() {
    let gateway = Gateway::start().await;
    let dead = Receiver::answering(|_| Reply::Status(503)).await;
    let settings = json!({
        "url": dead.url(), "max_in_flight": 1, "retry": eager_retry(50), "event_types": ["t"],
        "breaker": {"consecutive_failures": 3, "cooldown": "1h", "cooldown_max": "24h"},
    });
    let endpoint = gateway.create_endpoint(settings).await;
    gateway.send_many("o", "t", 8, |_| None).await;
    gateway.wait_for_breaker(&endpoint, "open").await;
    let client = &gateway.client;
    eventually("what is held to grow old", || async {
        let held = metric(client, "posthaste_held_age_seconds{by=\"breaker\"}").await;
        if held >= 2.0 { Ok(()) } else { Err(held.to_string()) }
    })
    .await;
    assert_eq!(metric(client, "posthaste_oldest_due_age_seconds").await, 0.0);
    let ready = client.get("/readyz").await.expect(200);
    assert_eq!(ready["lag_ms"], 0, "{ready}");
    assert!(ready["held_ms"]["breaker"].as_u64() >= Some(2_000) && ready["held_ms"]["pause"] == 0, "{ready}");
    let cluster = client.get("/v1/cluster").await.expect(200);
    assert_eq!(most(&cluster, "/lag_ms"), 0);
    assert!(most(&cluster, "/held_ms/breaker") >= 2_000);
    // A pause holds it instead, from then on.
    gateway.post_to_endpoint(&endpoint, "pause", "").await;
    let ready = client.get("/readyz").await.expect(200);
    assert!(ready["held_ms"]["breaker"] == 0 && ready["held_ms"]["pause"].as_u64() >= Some(2_000), "{ready}");
}

async fn a_backlog_is_as_old_as_it_is_wherever_it_lies() {
    const EVENTS: usize = 8_000;
    let (gateway, receiver) = (Gateway::start().await, Receiver::answering(|_| Reply::Hold(200)).await);
    let settings = json!({
        "url": receiver.url(), "max_in_flight": 500, "rate": unlimited(), "event_types": ["t"],
        "breaker": {"enabled": false},
    });
    gateway.create_endpoint(settings).await;
    gateway.send_many("b", "t", EVENTS, |_| None).await;
    let handed_in = Instant::now();
    receiver.wait_for(500).await;
    let client = gateway.another_client();
    let mut samples = Vec::new();
    let mut is_held = true;
    // The last page is in memory and nearly on its way.
    while receiver.count() < EVENTS - 1_500 {
        let behind = handed_in.elapsed();
        let lag = client.get("/readyz").await.expect(200)["lag_ms"].as_u64().expect("a number");
        samples.push((behind, Duration::from_millis(lag)));
        assert!(behind < Duration::from_secs(120), "{} arrived", receiver.count());
        if is_held && behind > Duration::from_secs(2) {
            is_held = false;
            receiver.release();
        }
    }
    println!("{} samples, the last {:?}", samples.len(), samples.last());
    let blind: Vec<_> = samples.iter().filter(|(behind, lag)| *lag + Duration::from_millis(100) < *behind).collect();
    assert!(blind.is_empty(), "{} of {}: {:?}", blind.len(), samples.len(), blind[0]);
}

#[tokio::test]
async fn a_disk_at_its_reserve_is_told_once_shown_and_not_ready() {
    let output = CapturedOutput::default();
    let options = Options { output: Some(output.clone()), ..Options::flags(&["--disk-reserve", "1000000GiB"]) };
    let gateway = Gateway::start_with(options).await;
    for _ in 0..3 {
        gateway
            .client
            .post("/v1/tenants/default/events", r#"{"type":"a","data":1}"#)
            .await
            .problem(507, "storage_full");
        let ready = gateway.client.get("/readyz").await.expect(503);
        assert!(ready["status"].as_str().unwrap().starts_with("disk reserve reached"), "{ready}");
    }
    let (free, reserve) = ("posthaste_disk_free_bytes", "posthaste_disk_reserve_bytes");
    assert_eq!(metric(&gateway.client, reserve).await, 1_000_000.0 * 1_073_741_824.0);
    assert!(metric(&gateway.client, free).await > 0.0);
    let said = eventually("it to be said", || async {
        let said = output.text();
        if said.contains("disk reserve reached") { Ok(said) } else { Err(said) }
    })
    .await;
    assert_eq!(said.matches("disk reserve reached").count(), 1, "{said}");
}

#[tokio::test]
async fn a_reserve_that_does_not_cover_the_log_is_refused_with_the_figure() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_posthaste"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--disk-reserve", "64MiB", "--data"]).arg(folder.path());
    let output = command.kill_on_drop(true).output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("use at least 144MiB"), "{said}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was made");
}
