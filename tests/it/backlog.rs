//! A million waiting deliveries: memory, restart and lists do not notice.

use std::time::Instant;

use serde_json::{Value, json};

use crate::support::{Gateway, Receiver};

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
    let path = format!("/v1/tenants/default/endpoints/{}", endpoint["id"].as_str().unwrap());
    gateway.client.post(&format!("{path}/pause"), "").await.expect(200);
    fill(&gateway).await;
    let filled = peak_memory(&gateway);

    let mut gateway = gateway;
    gateway.kill().await;
    let began = Instant::now();
    let gateway = gateway.restart().await;
    let restarted = began.elapsed();
    gateway.client.post(&format!("{path}/resume"), "").await.expect(200);
    receiver.wait_for(1).await;
    let first = began.elapsed();
    gateway.client.post(&format!("{path}/pause"), "").await.expect(200);

    let mut slowest = std::time::Duration::ZERO;
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
        "{WAITING} waiting: {filled} MiB while filling, {peak} MiB after a restart; served after {restarted:?}, delivered after {first:?}; slowest page {slowest:?}"
    );
    assert!(filled <= 150 && peak <= 150, "memory is {filled} MiB while filling and {peak} MiB after a restart");
    assert_eq!(
        gateway.client.get(&format!("{path}/lanes?limit=1")).await.expect(200)["data"].as_array().map(Vec::len),
        Some(1)
    );

    gateway.client.send("DELETE", &path, &[], "").await.unwrap().expect(204);
    let waiting = gateway.client.get("/v1/tenants/default/deliveries?state=waiting").await.expect(200);
    assert_eq!(waiting["data"], json!([]), "deleting cancels a million at once");
}

/// Eight producers hand in batches until a million wait.
async fn fill(gateway: &Gateway) {
    let next = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let producers: Vec<_> = (0..8)
        .map(|_| {
            let (client, next) = (gateway.another_client(), next.clone());
            tokio::spawn(async move {
                loop {
                    let batch = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if batch >= WAITING / PER_BATCH {
                        return;
                    }
                    let events: Vec<Value> = (0..PER_BATCH)
                        // Half of them in lanes, ten thousand of those.
                        .map(|n| match n % 2 {
                            0 => json!({"type":"backlog.event","key": format!("k{}", (batch * PER_BATCH + n) % 20_000),"data":{"n": n}}),
                            _ => json!({"type":"backlog.event","data":{"n": n}}),
                        })
                        .collect();
                    client.post_json("/v1/tenants/default/events/batch", &Value::from(events)).await.expect(202);
                }
            })
        })
        .collect();
    for producer in producers {
        producer.await.unwrap();
    }
}
