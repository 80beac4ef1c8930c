//! Any node accepts an event: once over all nodes, in one order, and it arrives
//! whichever node owns the endpoint.

use std::time::Instant;

use futures_util::future::join_all;
use serde_json::json;

use crate::ledger::{Ledger, Reply, flaky};
use crate::nodes::{Cluster, ENDPOINTS};

const EVENTS: &str = "/v1/tenants/default/events";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_is_one_event_through_whichever_nodes_it_comes() {
    let ledger = Ledger::start(|_| Reply::Status(200)).await;
    let cluster = Cluster::started(3, &ledger).await;
    for round in 0..20 {
        let event = json!({"id": format!("evt-{round}"), "type": "e0", "key": "k", "data": round});
        let clients: Vec<_> = cluster.nodes.iter().map(|node| node.gateway().another_client()).collect();
        let more: Vec<_> = cluster.nodes.iter().map(|node| node.gateway().another_client()).collect();
        let handing_in = clients.iter().chain(&more).map(|client| client.post_json(EVENTS, &event));
        let receipts: Vec<_> = join_all(handing_in).await.iter().map(|answer| answer.expect(202)).collect();
        let new = receipts.iter().filter(|receipt| receipt["duplicate"] == false).count();
        assert_eq!(new, 1, "{receipts:?}");
        assert!(receipts.iter().all(|receipt| receipt["accepted_at"] == receipts[0]["accepted_at"]), "{receipts:?}");
        let other = json!({"id": format!("evt-{round}"), "type": "e0", "data": "another"});
        cluster.nodes[round % 3].client().post_json(EVENTS, &other).await.problem(409, "id_conflict");
    }
    ledger.wait_until("all to arrive", |entries| entries.len() >= 20).await;
    cluster.drained().await;
    let places: Vec<u64> = ledger.entries().iter().map(|entry| entry.seq).collect();
    assert_eq!(places, (1..=20).collect::<Vec<_>>(), "once each, in the order they were handed in");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_are_one_order_over_all_nodes_and_a_calm_run_repeats_nothing() {
    let ledger = Ledger::start(flaky).await;
    let cluster = Cluster::started(3, &ledger).await;
    let load = cluster.load("a");
    ledger.wait_for_more(2_000).await;
    let acknowledged = load.finish().await;
    let findings = cluster.check(&ledger, &acknowledged, |_| false).await;
    assert_eq!(findings.repeats.len(), 0, "{:#?}", findings.repeats);
    let askers: std::collections::BTreeSet<_> = ledger.entries().into_iter().filter_map(|entry| entry.node).collect();
    assert_eq!(askers.len(), 3, "every node delivers: {askers:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_accepted_on_a_node_that_does_not_own_its_endpoint_arrives() {
    let ledger = Ledger::start(|_| Reply::Status(200)).await;
    let cluster = Cluster::started(3, &ledger).await;
    let mut owner = [0; ENDPOINTS];
    for node in 0..3 {
        for name in cluster.owned_by(node).await {
            owner[name[1..].parse::<usize>().unwrap()] = node;
        }
    }
    let mut waits = Vec::new();
    for n in 0..300 {
        let to = n % ENDPOINTS;
        let stranger = &cluster.nodes[(owner[to] + 1 + n % 2) % 3];
        let id = format!("evt-{n}");
        let event = json!({"id": id, "type": format!("e{to}"), "data": n});
        stranger.client().post_json(EVENTS, &event).await.expect(202);
        let accepted = Instant::now();
        ledger.wait_until("it to arrive", |entries| entries.last().is_some_and(|entry| entry.id == id)).await;
        let entry = ledger.entries().pop().unwrap();
        assert!(entry.is_of(&cluster.nodes[owner[to]].name), "its owner calls it, and nobody else: {entry:?}");
        waits.push(entry.began.saturating_duration_since(accepted));
    }
    waits.sort();
    println!("from receipt to arrival by way of another node: p50 {:?}, p99 {:?}", waits[150], waits[297]);
    cluster.drained().await;
    assert_eq!(ledger.count(), 300);
}
