//! kill -9 and SIGTERM under load: nothing acknowledged is lost, order holds,
//! and only what was on the wire may be seen twice.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::support::{
    Client, Gateway, ReceivedRequest, Receiver, Reply, eager_retry, eventually, is_on_postgres, unlimited,
};

for_every_store! {
    kill_nine_in_a_loop_loses_nothing_and_keeps_order,
    sigterm_in_a_loop_loses_nothing_and_repeats_nothing,
}

/// Hands in keyed events until told to stop; returns the acknowledged ids.
pub async fn produce(client: Client, producer: usize, stop: Arc<AtomicBool>) -> Vec<String> {
    let mut acknowledged = Vec::new();
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let id = format!("p{producer}-{n}");
        let body = json!({"id": id, "type":"load","key": format!("k{}", n % 7),"data":n}).to_string();
        // No answer means unknown: the same event is handed in again.
        loop {
            match client.send("POST", "/v1/tenants/default/events", &[], body.clone()).await {
                Ok(answer) if answer.status == 202 => {
                    acknowledged.push(id);
                    break;
                }
                // It starts, and waits for its database.
                Ok(answer) if answer.status == 503 => tokio::task::yield_now().await,
                Ok(answer) => panic!("{answer:?}"),
                Err(_) if stop.load(Ordering::Relaxed) => break,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }
    acknowledged
}

async fn drained(gateway: &Gateway) {
    eventually("the backlog to drain", || async {
        let page = gateway.client.get("/v1/tenants/default/deliveries?state=waiting&limit=1").await.expect(200);
        if page["data"].as_array().unwrap().is_empty() { Ok(()) } else { Err(page.to_string()) }
    })
    .await;
}

fn check_order(seen: &[ReceivedRequest]) {
    let mut highest: HashMap<&str, u64> = HashMap::new();
    for seen in seen {
        let seq: u64 = seen.header("x-seq").parse().unwrap();
        let known = highest.entry(seen.header("x-key")).or_insert(0);
        assert!(seq <= *known + 1, "{} overtook: seq {seq} after {known}", seen.id());
        // A repeat of the last one is the attempt that a crash cut off.
        assert!(seq >= *known, "{} came again after its successor", seen.id());
        *known = seq;
    }
}

async fn under_load(kills: usize, mut stop_it: impl AsyncFnMut(&mut Gateway)) -> (Vec<String>, Receiver) {
    let mut gateway = Gateway::start().await;
    let mut n = 0u32;
    let receiver = Receiver::answering(move |_| {
        n = n.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        Reply::Status(if n >> 16 & 0b111 == 0 { 503 } else { 200 })
    })
    .await;
    gateway
        .create_endpoint(
            json!({"url": receiver.url(), "max_in_flight": 20, "retry": eager_retry(1_000), "rate": unlimited()}),
        )
        .await;
    let stop = Arc::new(AtomicBool::new(false));
    let producers: Vec<_> =
        (0..8).map(|producer| tokio::spawn(produce(gateway.another_client(), producer, stop.clone()))).collect();
    for kill in 0..kills {
        receiver.wait_for(receiver.count() + 100 + 37 * kill).await;
        stop_it(&mut gateway).await;
        gateway = gateway.restart().await;
    }
    receiver.wait_for(receiver.count() + 100).await;
    stop.store(true, Ordering::Relaxed);
    let mut acknowledged = Vec::new();
    for producer in producers {
        acknowledged.extend(producer.await.unwrap());
    }
    drained(&gateway).await;
    let dead = gateway.list("/v1/tenants/default/dead-letters").await;
    assert!(dead.is_empty(), "a crash uses no attempts: {dead:?}");
    (acknowledged, receiver)
}

async fn kill_nine_in_a_loop_loses_nothing_and_keeps_order() {
    // A start takes longer there.
    let kills = if is_on_postgres() { 4 } else { 12 };
    let (acknowledged, receiver) = under_load(kills, async |gateway: &mut Gateway| gateway.kill().await).await;
    let seen = receiver.seen();
    let arrived: HashSet<&str> = seen.iter().map(|seen| seen.id()).collect();
    let lost: Vec<_> = acknowledged.iter().filter(|id| !arrived.contains(id.as_str())).collect();
    assert!(lost.is_empty(), "{} of {} lost: {lost:?}", lost.len(), acknowledged.len());
    check_order(&seen);
    println!("{kills} kills, {} acknowledged, 0 lost, {} requests", acknowledged.len(), seen.len());
}

async fn sigterm_in_a_loop_loses_nothing_and_repeats_nothing() {
    let (acknowledged, receiver) = under_load(8, async |gateway: &mut Gateway| {
        assert!(gateway.terminate().await.success());
    })
    .await;
    let seen = receiver.seen();
    check_order(&seen);
    let arrived: HashSet<&str> = seen.iter().map(|seen| seen.id()).collect();
    assert!(acknowledged.iter().all(|id| arrived.contains(id.as_str())));
    // Every request has its own attempt number: none was made twice.
    let mut attempts = HashSet::new();
    for seen in &seen {
        assert!(attempts.insert((seen.id(), seen.header("webhook-attempt"))), "{} was repeated", seen.id());
    }
}
