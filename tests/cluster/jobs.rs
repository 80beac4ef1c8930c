//! Jobs over many nodes: each does its own endpoints, and a part moves with its
//! shard.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::ledger::{Ledger, Reply};
use crate::nodes::Cluster;
use crate::support::eventually;

const TENANT: &str = "/v1/tenants/default";
const EVENTS: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_goes_on_when_the_owner_of_an_endpoint_is_killed() {
    let is_repaired = Arc::new(AtomicBool::new(false));
    let seen = is_repaired.clone();
    let ledger = Ledger::start(move |_| Reply::Status(if seen.load(Ordering::Relaxed) { 200 } else { 400 })).await;
    let mut cluster = Cluster::started(2, &ledger).await;
    let (one, two) = (cluster.owned_by(0).await[0].clone(), cluster.owned_by(1).await[0].clone());
    for name in [&one, &two] {
        let events: Vec<Value> =
            (0..EVENTS).map(|n| json!({"id": format!("{name}-{n}"), "type": name, "data": n})).collect();
        cluster.nodes[0].client().post_json(&format!("{TENANT}/events/batch"), &json!(events)).await.expect(202);
    }
    eventually("all to be dead", || async {
        let groups = cluster.nodes[0].client().get(&format!("{TENANT}/dead-letters/groups")).await.expect(200);
        if groups["total"]["count"] == 2 * EVENTS { Ok(()) } else { Err(groups["total"].to_string()) }
    })
    .await;
    is_repaired.store(true, Ordering::Relaxed);
    let job = json!({"kind": "replay", "filter": {"all": true}, "per_second": 10});
    let job = cluster.nodes[0].client().post_json(&format!("{TENANT}/jobs"), &job).await.expect(202);
    let replayed =
        |entries: &[crate::ledger::Entry]| entries.iter().filter(|entry| entry.endpoint == two).count() > EVENTS + 5;
    ledger.wait_until("the second node to have begun", replayed).await;
    cluster.kill(1).await;
    let path = format!("{TENANT}/jobs/{}", job["id"].as_str().expect("an id"));
    let job = eventually("the job to be finished", || async {
        let job = cluster.nodes[0].client().get(&path).await.expect(200);
        if job["state"] == "finished" { Ok(job) } else { Err(job.to_string()) }
    })
    .await;
    assert_eq!((&job["done"], &job["outcome"]["delivered"]), (&json!(2 * EVENTS), &json!(2 * EVENTS)));
    let mut times: HashMap<String, usize> = HashMap::new();
    for entry in ledger.entries() {
        *times.entry(entry.id.clone()).or_default() += 1;
    }
    // Only what was on the wire when the node was killed may have come once more.
    assert!(times.len() == 2 * EVENTS && times.values().all(|times| (2..=3).contains(times)), "{times:?}");
    assert!(times.iter().all(|(id, times)| *times == 2 || id.starts_with(&two)), "{times:?}");
}
