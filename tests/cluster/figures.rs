//! Figures over many nodes: those of an endpoint add up over its owners.

use serde_json::{Value, json};

use crate::ledger::{Ledger, Reply};
use crate::nodes::Cluster;
use crate::support::eventually;

const TENANT: &str = "/v1/tenants/default";
const EVENTS: usize = 30;

/// Sends events to one endpoint, and waits until all are delivered.
async fn deliver(cluster: &Cluster, ledger: &Ledger, node: usize, endpoint: &str, round: &str) {
    let events: Vec<Value> =
        (0..EVENTS).map(|n| json!({"id": format!("{round}-{n}"), "type": endpoint, "data": n})).collect();
    cluster.nodes[node].client().post_json(&format!("{TENANT}/events/batch"), &json!(events)).await.expect(202);
    let is_delivered = |entries: &[crate::ledger::Entry]| {
        entries.iter().filter(|entry| entry.id.starts_with(round) && entry.is_delivered()).count() == EVENTS
    };
    ledger.wait_until("all to be delivered", is_delivered).await;
    cluster.drained().await;
}

fn sum(figures: &Value, pointer: &str) -> u64 {
    let points = figures["data"].as_array().expect("points");
    points.iter().filter_map(|point| point.pointer(pointer)?.as_u64()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_figures_of_an_endpoint_add_up_over_a_take_over() {
    let ledger = Ledger::start(|entry| Reply::Status(if entry.attempt == 1 { 503 } else { 200 })).await;
    let mut cluster = Cluster::started(2, &ledger).await;
    let endpoint = cluster.owned_by(1).await[0].clone();
    // Accepted at one node, delivered by the other.
    deliver(&cluster, &ledger, 0, &endpoint, "before").await;
    cluster.terminate(1).await;
    deliver(&cluster, &ledger, 0, &endpoint, "after").await;
    cluster.restart(1).await;
    cluster.terminate(0).await;
    let path = format!("{}/figures", cluster.path(&endpoint));
    let figures = cluster.nodes[1].client().get(&path).await.expect(200);
    let (events, requests) = (2 * EVENTS as u64, ledger.count() as u64);
    assert_eq!(requests, 2 * events, "of the receiver itself");
    assert_eq!(sum(&figures, "/attempts/by_result/5xx") + sum(&figures, "/attempts/by_result/2xx"), requests);
    assert_eq!((sum(&figures, "/ended/delivered"), sum(&figures, "/accepted")), (events, events), "{figures}");
    assert_eq!((sum(&figures, "/second/delivered"), &figures["gaps"]), (events, &json!([])));
    let tenant = eventually("the tenant's figures", || async {
        let tenant = cluster.nodes[1].client().get(&format!("{TENANT}/figures")).await.expect(200);
        if sum(&tenant, "/accepted") == events { Ok(tenant) } else { Err(tenant.to_string()) }
    })
    .await;
    assert_eq!(sum(&tenant, "/ended/delivered"), events);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_node_has_written_yet_is_shown_by_every_node() {
    let ledger = Ledger::start(|entry| Reply::Status(if entry.attempt == 1 { 503 } else { 200 })).await;
    let cluster = Cluster::started(2, &ledger).await;
    let (one, two) = (cluster.owned_by(0).await[0].clone(), cluster.owned_by(1).await[0].clone());
    // Each is accepted at one node, and delivered by the other.
    deliver(&cluster, &ledger, 1, &one, "one").await;
    deliver(&cluster, &ledger, 0, &two, "two").await;
    let of_endpoint = |name: &str| format!("{}/figures", cluster.path(name));
    let events = EVENTS as u64;
    let all = [(of_endpoint(&one), events), (of_endpoint(&two), events)];
    let sums = [format!("{TENANT}/figures"), "/v1/figures".to_owned()].map(|path| (path, 2 * events));
    for (node, (path, events)) in
        cluster.nodes.iter().flat_map(|node| all.iter().chain(&sums).map(move |one| (node, one)))
    {
        // A window that is over just now is written in the next moment.
        eventually("the figures of both nodes", || async {
            let figures = node.client().get(path).await.expect(200);
            let found = ["/accepted", "/ended/delivered", "/attempts/by_verdict/retry"].map(|of| sum(&figures, of));
            if found == [*events; 3] { Ok(()) } else { Err(format!("{path} of {}: {figures}", node.name)) }
        })
        .await;
    }
    eventually("the attempts of both nodes by type", || async {
        let types = cluster.nodes[0].client().get("/v1/figures/types").await.expect(200);
        let attempts: Vec<&Value> = types["data"].as_array().unwrap().iter().map(|one| &one["attempts"]).collect();
        if attempts == [&json!(2 * events), &json!(2 * events)] { Ok(()) } else { Err(types.to_string()) }
    })
    .await;
    eventually("the health table of both nodes", || async {
        let table = cluster.nodes[1].client().get("/v1/health-table").await.expect(200);
        let success = table["rows"].as_array().unwrap().iter().find(|row| row["name"] == "success_rate").unwrap();
        if success["n"] == 2 * events { Ok(()) } else { Err(table.to_string()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_node_had_not_written_is_a_gap_once_its_shards_have_another_owner() {
    let ledger = Ledger::start(|_| Reply::Status(200)).await;
    let mut cluster = Cluster::new().await;
    // One after the other, so that the first has counted for longer.
    cluster.start(1).await;
    cluster.start(1).await;
    cluster.create_endpoints(&ledger, crate::nodes::ENDPOINTS).await;
    cluster.settled().await;
    let endpoint = cluster.owned_by(0).await[0].clone();
    deliver(&cluster, &ledger, 1, &endpoint, "before").await;
    let path = format!("{}/figures", cluster.path(&endpoint));
    let before = eventually("both to count", || async {
        let figures = cluster.nodes[1].client().get(&path).await.expect(200);
        if figures["complete_until"].is_string() { Ok(figures) } else { Err(figures.to_string()) }
    })
    .await;
    assert_eq!(before["gaps"], json!([]), "{before}");

    cluster.kill(0).await;
    let after = eventually("the gap", || async {
        let figures = cluster.nodes[1].client().get(&path).await.expect(200);
        if figures["gaps"].as_array().is_some_and(|gaps| !gaps.is_empty()) {
            Ok(figures)
        } else {
            Err(figures.to_string())
        }
    })
    .await;
    let at = |value: &Value| value.as_str().expect("a time").parse::<jiff::Timestamp>().expect("a time");
    let (from, to) = (at(&after["gaps"][0]["from"]), at(&after["gaps"][0]["to"]));
    assert_eq!(after["gaps"].as_array().unwrap().len(), 1, "{after}");
    assert_eq!(from, at(&before["complete_until"]), "from where the lost node had written all: {after}");
    assert!(from < to, "{after}");
    assert!(at(&after["complete_until"]) > from, "the lost node holds nothing up: {after}");
}
