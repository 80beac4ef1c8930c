//! Upgrading a cluster node by node, under load: nodes of an older version and of
//! this one work together, and nothing is lost or doubled.
//!
//! They need a `posthaste` of the older version, so they are run by command:
//! `./check upgrade OLDER`, with a program or with a revision to build it from.

use std::path::PathBuf;

use crate::ledger::{Ledger, flaky};
use crate::load::Load;
use crate::nodes::{Cluster, ENDPOINTS};

/// Environment variable with the path of the older version.
const OLDER: &str = "OLDER_POSTHASTE";
/// Nodes of the cluster.
const NODES: usize = 3;
/// Requests that come between two steps.
const EVENTS: usize = 300;

fn older() -> PathBuf {
    let path = std::env::var_os(OLDER).unwrap_or_else(|| panic!("{OLDER} names no posthaste of an older version"));
    PathBuf::from(path).canonicalize().unwrap_or_else(|problem| panic!("{OLDER} cannot be used: {problem}"))
}

/// Starts a cluster of the older version; returns the version of its schema, too.
async fn started(ledger: &Ledger) -> (Cluster, i64) {
    let mut cluster = Cluster::new().await;
    cluster.start_version(&older(), NODES).await;
    cluster.create_endpoints(ledger, ENDPOINTS).await;
    cluster.settled().await;
    let schema = cluster.schema().await;
    (cluster, schema)
}

/// Checks that everything arrived once and in order, and that the older version
/// refuses in words what is now in the database, if this one has changed it.
async fn nothing_is_lost(cluster: Cluster, ledger: &Ledger, load: Load, schema_before: i64) {
    let acknowledged = load.finish().await;
    let findings = cluster.check(ledger, &acknowledged, |_| false).await;
    findings.expect_none();
    assert!(findings.repeats.is_empty(), "{:?}", findings.repeats);
    if cluster.schema().await == schema_before {
        println!("both versions have schema {schema_before}, so the older one may come back");
        return;
    }
    let refused = cluster.refused_version(&older(), cluster.folder()).await;
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("changed by a newer posthaste"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an older posthaste: ./check upgrade OLDER"]
async fn a_newer_node_joins_before_each_older_one_leaves() {
    let ledger = Ledger::start(flaky).await;
    let (mut cluster, schema) = started(&ledger).await;
    let load = cluster.load("joining");
    for _ in 0..NODES {
        ledger.wait_for_more(EVENTS).await;
        cluster.start(1).await;
        cluster.settled().await;
        ledger.wait_for_more(EVENTS).await;
        cluster.leave(0).await;
        cluster.settled().await;
    }
    ledger.wait_for_more(EVENTS).await;
    nothing_is_lost(cluster, &ledger, load, schema).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an older posthaste: ./check upgrade OLDER"]
async fn each_older_node_leaves_before_a_newer_one_joins() {
    let ledger = Ledger::start(flaky).await;
    let (mut cluster, schema) = started(&ledger).await;
    let load = cluster.load("leaving");
    for _ in 0..NODES {
        ledger.wait_for_more(EVENTS).await;
        cluster.leave(0).await;
        cluster.settled().await;
        ledger.wait_for_more(EVENTS).await;
        cluster.start(1).await;
        cluster.settled().await;
    }
    ledger.wait_for_more(EVENTS).await;
    nothing_is_lost(cluster, &ledger, load, schema).await;
}
