//! A bad night at a cluster, sent again by one job, though one node is killed for good and
//! the other once. `tests/it/night.rs` has the same with one gateway on each store.

use crate::ledger::{Ledger, Reply};
use crate::nodes::Cluster;
use crate::support::night::{ENDPOINTS, Night, ORDERED, PAUSE_REFUSALS};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_night_is_sent_again_though_each_node_is_killed_on_the_way() {
    let night = Night::default();
    let answering = night.clone();
    let ledger =
        Ledger::start(move |one| Reply::Status(answering.answer(&one.endpoint, &one.id, &one.key, one.seq))).await;
    let mut cluster = Cluster::new().await;
    let env = vec![("POSTHASTE_PAUSE_REFUSALS".to_owned(), PAUSE_REFUSALS.to_owned())];
    cluster.start_in(vec![env.clone(), env], "2s").await;
    for (n, name) in ENDPOINTS.into_iter().enumerate() {
        let settings = Night::settings(name, &ledger.url(name));
        let client = cluster.nodes[n % 2].client();
        let created = client.post_json("/v1/tenants/default/endpoints", &settings).await.expect(201);
        cluster.endpoints.push(created);
    }
    cluster.settled().await;
    night.begin(cluster.nodes[0].client()).await;
    for node in &cluster.nodes {
        night.check_found(node.client(), &cluster.endpoints).await;
    }
    let job = night.replay(cluster.nodes[1].client(), 100).await;
    night.wait_for_replayed(cluster.nodes[1].client(), &job, 300).await;
    // The other takes over its endpoints, also the one that is ordered.
    let owner = usize::from(cluster.owned_by(1).await.iter().any(|name| name == ORDERED));
    cluster.kill(owner).await;
    let left = 1 - owner;
    night.wait_for_replayed(cluster.nodes[left].client(), &job, 700).await;
    cluster.kill(left).await;
    cluster.restart(left).await;
    night.check_recovered(cluster.nodes[left].client(), &job, 2).await;
}
