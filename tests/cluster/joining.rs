//! Starting many nodes: the tables are made once, there is one token for all,
//! and a node with another key stays outside.

use std::sync::Arc;

use serde_json::json;

use crate::nodes::{Cluster, LEASE};
use crate::support::{Client, Gateway, Options};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_nodes_started_at_once_migrate_once_and_share_the_work() {
    let mut cluster = Cluster::new().await;
    cluster.start(5).await;
    cluster.settled().await;
    let steps = cluster.database().number("SELECT count(*) FROM posthaste.migrations").await;
    let versions = cluster.database().number("SELECT count(DISTINCT version) FROM posthaste.migrations").await;
    assert!(steps == versions && steps > 0, "{steps} steps to {versions} versions");
    let admins = cluster.database().number("SELECT count(*) FROM posthaste.tenants WHERE id = 'default'").await;
    assert_eq!(admins, 1);
    for node in &cluster.nodes {
        node.client().get("/v1/tenants").await.expect(200);
        node.client().get("/readyz").await.expect(200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_elsewhere_needs_the_key_and_takes_the_token_that_is_there() {
    let mut cluster = Cluster::new().await;
    cluster.start(1).await;
    let folder = tempfile::tempdir().unwrap();
    let refused = cluster.refused(&folder).await;
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("the master key is missing") && said.contains("--master-key-file"), "{said}");

    let key = cluster.folder().path().join("master-key");
    let flags = ["--database-url", cluster.database().url(), "--master-key-file", key.to_str().unwrap()];
    let lease = format!("{}s", LEASE.as_secs());
    let options = Options::flags(&[&flags[..], &["--lease", &lease]].concat());
    // The token is in the folder of the node that made it, and nowhere else.
    let elsewhere = Arc::new(tempfile::tempdir().unwrap());
    std::fs::copy(cluster.folder().path().join("admin-token"), elsewhere.path().join("admin-token")).unwrap();
    let second = Gateway::start_in(elsewhere, options).await;
    let client = Client::new(second.address, cluster.nodes[0].gateway().token());
    client.get("/v1/tenants").await.expect(200);
    assert_eq!(client.get("/v1/cluster").await.expect(200)["nodes"].as_array().map(Vec::len), Some(2));
    let created = client.post_json("/v1/tenants/default/endpoints", &json!({"url": "https://example.com/"})).await;
    let created = created.expect(201);
    let secrets = format!("/v1/tenants/default/endpoints/{}/secrets", created["id"].as_str().unwrap());
    let seen = cluster.nodes[0].client().get(&secrets).await.expect(200);
    assert_eq!(seen["data"][0]["secret"], created["secret"], "what one node sealed, the other opens");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_tells_where_all_of_them_call_from() {
    let mut cluster = Cluster::new().await;
    let from = |address: &str| vec![("POSTHASTE_EGRESS_BIND".to_owned(), address.to_owned())];
    cluster.start_in(vec![from("127.0.0.7"), from("127.0.0.8")], "2s").await;
    cluster.settled().await;
    let both = json!({"networks": ["127.0.0.7/32", "127.0.0.8/32"], "complete": true});
    for node in &cluster.nodes {
        assert_eq!(node.client().get("/v1/egress").await.expect(200), both);
    }
    // A node that does not know its own addresses makes the list incomplete.
    cluster.start(1).await;
    cluster.settled().await;
    for node in &cluster.nodes {
        let told = node.client().get("/v1/egress").await.expect(200);
        assert_eq!((&told["complete"], &told["networks"]), (&json!(false), &both["networks"]));
    }
}
