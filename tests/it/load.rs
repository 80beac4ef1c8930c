//! Sixty-four producers at once: with a healthy receiver nothing is repeated;
//! with one that fails, dies and comes back nothing is lost.

use std::collections::HashMap;

use serde_json::json;

use crate::support::{Gateway, ReceivedRequest, Receiver, Reply, eventually, unlimited};

for_every_store! {
    a_fault_free_run_has_no_duplicates_and_no_losses,
    a_receiver_that_fails_dies_and_returns_misses_nothing,
}

const PRODUCERS: usize = 64;
const EACH: usize = 40;

/// Every producer hands in its events one by one; all are acknowledged.
async fn produce(gateway: &Gateway) -> Vec<String> {
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|producer| {
            let client = gateway.another_client();
            tokio::spawn(async move {
                let mut acknowledged = Vec::new();
                for n in 0..EACH {
                    let id = format!("p{producer}-{n}");
                    let event =
                        json!({"id": id, "type":"load.event","key": format!("k{}", producer % 16),"data":{"n": n}});
                    client.post_json("/v1/tenants/default/events", &event).await.expect(202);
                    acknowledged.push(id);
                }
                acknowledged
            })
        })
        .collect();
    let mut acknowledged = Vec::new();
    for producer in producers {
        acknowledged.extend(producer.await.unwrap());
    }
    acknowledged
}

async fn drained(gateway: &Gateway) {
    eventually("everything to end", || async {
        let page = gateway.client.get("/v1/tenants/default/deliveries?state=waiting&limit=1").await.expect(200);
        if page["data"].as_array().unwrap().is_empty() { Ok(()) } else { Err(page.to_string()) }
    })
    .await;
}

fn check_lanes(seen: &[ReceivedRequest]) {
    let mut last: HashMap<&str, u64> = HashMap::new();
    for seen in seen {
        let seq: u64 = seen.header("x-seq").parse().unwrap();
        let known = last.entry(seen.header("x-key")).or_insert(0);
        assert!(seq == *known || seq == *known + 1, "{} has place {seq} after {known}", seen.id());
        *known = seq;
    }
}

async fn a_fault_free_run_has_no_duplicates_and_no_losses() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    gateway.create_endpoint(json!({"url": receiver.url(), "max_in_flight": 100, "rate": unlimited()})).await;
    let acknowledged = produce(&gateway).await;
    receiver.wait_for(acknowledged.len()).await;
    drained(&gateway).await;
    let times = receiver.times_by_id();
    assert_eq!(times.len(), PRODUCERS * EACH);
    assert!(times.values().all(|times| *times == 1), "nothing arrives twice");
    check_lanes(&receiver.seen());
    assert_eq!(receiver.most_open_of_any_key(), 1);
}

async fn a_receiver_that_fails_dies_and_returns_misses_nothing() {
    let gateway = Gateway::start().await;
    let fails_a_fifth = || {
        let mut n = 7u32;
        move |_: &ReceivedRequest| {
            n = n.wrapping_mul(1_103_515_245).wrapping_add(12_345);
            Reply::Status(if (n >> 16).is_multiple_of(5) { 503 } else { 200 })
        }
    };
    let receiver = Receiver::answering(fails_a_fifth()).await;
    let retry = json!({"backoff": {"base": "20ms", "max": "200ms"}, "jitter": "full", "max_attempts": 1_000});
    gateway
        .create_endpoint(json!({"url": receiver.url(), "max_in_flight": 100, "retry": retry, "rate": unlimited(),
                                   "breaker": {"enabled": false}}))
        .await;
    let producing = produce(&gateway);
    let dying = async {
        receiver.wait_for(500).await;
        let address = receiver.address;
        let seen = receiver.stop().await;
        // It stays away until the gateway has met a closed door in every lane.
        eventually("refused connections", || async {
            let waiting = gateway.list("/v1/tenants/default/deliveries?state=waiting").await;
            let refused =
                waiting.iter().filter(|delivery| delivery["last_error"]["kind"] == "connection_refused").count();
            if refused >= 16 { Ok(()) } else { Err(format!("{refused} refused")) }
        })
        .await;
        let receiver = Receiver::listening(address, fails_a_fifth()).await;
        (receiver, seen)
    };
    let (acknowledged, (receiver, mut seen)) = tokio::join!(producing, dying);
    drained(&gateway).await;
    seen.extend(receiver.seen());
    let arrived: std::collections::HashSet<&str> = seen.iter().map(|seen| seen.id()).collect();
    let lost = acknowledged.iter().filter(|id| !arrived.contains(id.as_str())).count();
    assert_eq!(lost, 0, "of {}", acknowledged.len());
    assert!(gateway.list("/v1/tenants/default/dead-letters").await.is_empty());
    assert_eq!(receiver.most_open_of_any_key(), 1);
}
