//! A tenant's limits hold over all nodes together.

use serde_json::{Value, json};

use crate::ledger::{Ledger, Reply};
use crate::nodes::Cluster;
use crate::support::{Client, eventually};

const TENANT: &str = "/v1/tenants/default";

async fn used(client: &Client) -> Value {
    client.get(TENANT).await.expect(200)["usage"].clone()
}

async fn limit(client: &Client, limits: Value) {
    client.patch_json(TENANT, &json!({"limits": limits})).await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_and_what_is_stored_at_another_node_counts() {
    let ledger = Ledger::start(|_| Reply::Hold(200)).await;
    let cluster = Cluster::started(2, &ledger).await;
    let owned = cluster.owned_by(1).await.remove(0);
    let (stranger, owner) = (cluster.nodes[0].client(), cluster.nodes[1].client());
    limit(stranger, json!({"waiting": 20})).await;
    let send = async |client: &Client, n: usize| {
        client.post_json(&format!("{TENANT}/events"), &json!({"id": format!("w-{n}"), "type": owned, "data": n})).await
    };
    for n in 0..20 {
        send(stranger, n).await.expect(202);
    }
    // The owner knows at once, or within a moment; the other node within two seconds.
    for (client, n) in [(owner, 1_000), (stranger, 2_000)] {
        eventually("the node to know what waits", || async {
            match used(client).await["waiting"].as_u64() {
                Some(20..) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        assert_eq!(send(client, n).await.problem(429, "backlog_full")["limit"], "waiting");
    }
    let stored = used(owner).await["stored_bytes"].as_u64().unwrap();
    assert_eq!(used(stranger).await["stored_bytes"], stored);
    limit(stranger, json!({"waiting": null, "stored_bytes": stored + 100})).await;
    eventually("the node that took nothing in to know what is stored", || async {
        let answer = send(owner, 3_000).await;
        if answer.status == 507 { Ok(()) } else { Err(answer.status.to_string()) }
    })
    .await;
    ledger.release_answers();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_made_through_two_nodes_at_once_stay_within_the_limit() {
    let ledger = Ledger::start(|_| Reply::Status(200)).await;
    let cluster = Cluster::started(2, &ledger).await;
    let there = used(cluster.nodes[0].client()).await["endpoints"].as_u64().unwrap();
    limit(cluster.nodes[0].client(), json!({"endpoints": there + 10})).await;
    let settings = json!({"url": ledger.url("more")});
    let create = async |n: usize| {
        let client = cluster.nodes[n % 2].gateway().another_client();
        client.post_json(&format!("{TENANT}/endpoints"), &settings).await
    };
    let answers = futures_util::future::join_all((0..40).map(create)).await;
    let made = answers.iter().filter(|answer| answer.status == 201).count();
    for refused in answers.iter().filter(|answer| answer.status != 201) {
        assert_eq!(refused.problem(422, "limit_exceeded")["limit"], "endpoints");
    }
    assert_eq!(made, 10);
    for node in &cluster.nodes {
        assert_eq!(used(node.client()).await["endpoints"], there + 10);
    }
}
