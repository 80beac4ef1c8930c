//! Nodes that end and come back: killed, asked to stop, one after the other,
//! and again and again.

use std::time::{Duration, Instant};

use crate::ledger::{Entry, Ledger, flaky};
use crate::nodes::{Cluster, LEASE, called_again};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_nine_of_one_of_three_loses_nothing_and_others_take_over() {
    let ledger = Ledger::start(flaky).await;
    let mut cluster = Cluster::started(3, &ledger).await;
    let load = cluster.load("a");
    ledger.wait_for_more(300).await;
    let orphans = cluster.owned_by(1).await;
    cluster.kill(1).await;
    let killed = Instant::now();
    ledger
        .wait_until("its endpoints to be called again", |entries| called_again(entries, &orphans, killed).is_some())
        .await;
    let took = called_again(&ledger.entries(), &orphans, killed).unwrap();
    println!("taken over {took:?} after kill -9; the lease is {LEASE:?}");
    let restarted = Instant::now();
    cluster.restart(1).await;
    cluster.settled().await;
    ledger.wait_for_more(300).await;
    let acknowledged = load.finish().await;
    // What it had just heard when it was killed may not have been written down.
    let since = killed - Duration::from_secs(1);
    let is_its_own = |entry: &Entry| entry.node.is_none() || entry.is_of("n1");
    cluster
        .check(&ledger, &acknowledged, |entry| is_its_own(entry) && entry.began > since && entry.began < restarted)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_hands_over_at_once_and_repeats_nothing() {
    let ledger = Ledger::start(flaky).await;
    let mut cluster = Cluster::started(3, &ledger).await;
    let load = cluster.load("a");
    ledger.wait_for_more(300).await;
    let orphans = cluster.owned_by(2).await;
    cluster.terminate(2).await;
    let ended = Instant::now();
    ledger
        .wait_until("its endpoints to be called again", |entries| called_again(entries, &orphans, ended).is_some())
        .await;
    let took = called_again(&ledger.entries(), &orphans, ended).unwrap();
    println!("taken over {took:?} after the end");
    assert!(took < LEASE, "nobody waits for a lease that was given back: {took:?}");
    cluster.restart(2).await;
    let acknowledged = load.finish().await;
    cluster.check(&ledger, &acknowledged, |_| false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_under_load_loses_nothing_and_repeats_nothing() {
    let ledger = Ledger::start(flaky).await;
    let mut cluster = Cluster::started(3, &ledger).await;
    let load = cluster.load("a");
    for node in 0..3 {
        ledger.wait_for_more(200).await;
        cluster.terminate(node).await;
        ledger.wait_for_more(100).await;
        cluster.restart(node).await;
    }
    ledger.wait_for_more(200).await;
    let acknowledged = load.finish().await;
    cluster.check(&ledger, &acknowledged, |_| false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_join_and_leave_all_the_time_lose_nothing_and_repeat_nothing() {
    let ledger = Ledger::start(flaky).await;
    let mut cluster = Cluster::started(2, &ledger).await;
    let load = cluster.load("a");
    for round in 0..6 {
        cluster.start(1).await;
        ledger.wait_for_more(150).await;
        // Now the oldest, now the one that has just come.
        let leaver = if round % 2 == 0 { 0 } else { cluster.nodes.len() - 1 };
        cluster.leave(leaver).await;
        ledger.wait_for_more(50).await;
    }
    let acknowledged = load.finish().await;
    cluster.check(&ledger, &acknowledged, |_| false).await;
}
