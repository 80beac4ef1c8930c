//! Trouble with the database: a node that is cut off from it, and a database
//! that is killed.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::ledger::{Entry, Ledger, flaky};
use crate::nodes::{Cluster, ENDPOINTS, LEASE, called_again};
use crate::servers::proxy::NetworkState;
use crate::support::eventually;

const EVENTS: &str = "/v1/tenants/default/events";

/// Longest time from an answer to its commit, in which an attempt may be lost; on a busy
/// machine it is not short.
const MOMENT: Duration = Duration::from_secs(3);

async fn partition(weather: NetworkState) {
    let ledger = Ledger::start(flaky).await;
    let mut cluster = Cluster::new().await;
    cluster.start_behind_proxies(3).await;
    cluster.create_endpoints(&ledger, ENDPOINTS).await;
    cluster.settled().await;
    let load = cluster.load("a");
    ledger.wait_for_more(300).await;
    let orphans = cluster.owned_by(1).await;
    cluster.nodes[1].proxy().set(weather);
    let cut_off = Instant::now();

    let prober = cluster.nodes[1].gateway().another_client();
    let event = json!({"type": "e0", "data": 1});
    eventually("the node that is cut off to say so", || async {
        let answer = prober.post_json(EVENTS, &event).await;
        if answer.status == 202 {
            return Err("it still takes events".to_owned());
        }
        answer.problem(503, "unavailable");
        assert!(answer.headers.contains_key("retry-after"), "{answer:?}");
        Ok(())
    })
    .await;
    ledger
        .wait_until("its endpoints to be called by others", |entries| {
            orphans.iter().all(|name| {
                entries.iter().any(|entry| entry.endpoint == *name && !entry.is_of("n1") && entry.began > cut_off)
            })
        })
        .await;
    let took = called_again(&ledger.entries(), &orphans, cut_off).unwrap();
    println!("{weather:?}: taken over {took:?} after the cut");
    eventually("readyz to say so", || async {
        let answer = prober.get("/readyz").await;
        if answer.status == 503 { Ok(()) } else { Err(answer.status.to_string()) }
    })
    .await;

    cluster.nodes[1].proxy().set(NetworkState::Working);
    let healed = Instant::now();
    cluster.settled().await;
    prober.post_json(EVENTS, &event).await.expect(202);
    prober.get("/readyz").await.expect(200);
    ledger.wait_for_more(300).await;
    let acknowledged = load.finish().await;
    let was_cut_off = |entry: &Entry| entry.is_of("n1") && entry.began + MOMENT > cut_off && entry.began < healed;
    cluster.check(&ledger, &acknowledged, was_cut_off).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_database_is_silent_says_so_and_others_take_over() {
    partition(NetworkState::Silent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_database_refuses_it_says_so_and_others_take_over() {
    partition(NetworkState::Reset).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_hears_no_answers_of_its_database_promises_nothing() {
    partition(NetworkState::AnswersLost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_database_that_comes_back_has_lost_nothing_and_charged_nothing() {
    let ledger = Ledger::start(flaky).await;
    let mut cluster = Cluster::on_server_of_its_own().await;
    cluster.start(3).await;
    cluster.create_endpoints(&ledger, ENDPOINTS).await;
    cluster.settled().await;
    let load = cluster.load("a");
    let mut troubles = Vec::new();
    for _ in 0..2 {
        ledger.wait_for_more(300).await;
        let killed = Instant::now();
        cluster.server().kill().await;
        let refused = load.refused();
        eventually("events to be refused", || async {
            if load.refused() > refused + 20 { Ok(()) } else { Err(load.refused().to_string()) }
        })
        .await;
        cluster.server().start_again().await;
        let acknowledged = load.acknowledged();
        eventually("events to be taken again", || async {
            if load.acknowledged() > acknowledged + 100 { Ok(()) } else { Err(load.acknowledged().to_string()) }
        })
        .await;
        troubles.push((killed, Instant::now()));
    }
    let acknowledged = load.finish().await;
    let in_trouble =
        |entry: &Entry| troubles.iter().any(|(killed, over)| entry.began + MOMENT > *killed && entry.began < *over);
    cluster.check(&ledger, &acknowledged, in_trouble).await;
}

/// Slow means late, and nothing else: events are taken, nothing is lost,
/// sent twice or overtaken, and no node is taken for dead or takes itself for
/// it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_slow_slows_everything_and_breaks_nothing() {
    let one_way = Duration::from_millis(20);
    let ledger = Ledger::start(flaky).await;
    let mut cluster = Cluster::new().await;
    cluster.start_behind_proxies(2).await;
    cluster.create_endpoints(&ledger, ENDPOINTS).await;
    cluster.settled().await;
    let owned = owners(&cluster).await;
    for node in &cluster.nodes {
        node.proxy().set(NetworkState::Slow(one_way));
    }
    let slowed = Instant::now();
    let load = cluster.load("a");
    // Leases have to be renewed again and again meanwhile.
    while slowed.elapsed() < 4 * LEASE {
        for node in &cluster.nodes {
            node.client().get("/readyz").await.expect(200);
            let (asked, event) = (Instant::now(), json!({"type": "e0", "data": 1}));
            node.client().post_json(EVENTS, &event).await.expect(202);
            assert!(asked.elapsed() >= 2 * one_way, "{} was not slowed: {:?}", node.name, asked.elapsed());
        }
    }
    ledger.wait_for_more(200).await;
    assert_eq!(load.refused(), 0, "every event is taken at its first try");
    let acknowledged = load.finish().await;
    let findings = cluster.check(&ledger, &acknowledged, |_| false).await;
    assert!(findings.repeats.is_empty(), "nothing is sent twice: {:?}", findings.repeats);
    assert_eq!(owners(&cluster).await, owned, "no lease is given up, and no shard changes hands");
    for node in 0..cluster.nodes.len() {
        assert_eq!(cluster.metric(node, "posthaste_stale_writes_total").await, 0.0, "n{node}: no owner is out of date");
    }
}

/// Who owns each shard, and how often it has changed hands.
async fn owners(cluster: &Cluster) -> Vec<Vec<Option<String>>> {
    cluster.database().rows("SELECT shard, node, epoch FROM posthaste.shards ORDER BY shard").await
}
