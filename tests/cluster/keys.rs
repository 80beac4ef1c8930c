//! The master key and the admin token of many nodes are replaced while they run.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::nodes::{Cluster, LEASE};
use crate::support::{Client, Gateway, Options, Receiver, eventually, unlimited};

/// Ids of the keys that anything in the database is sealed under.
async fn sealed_ids(cluster: &Cluster) -> BTreeSet<String> {
    let sql = "SELECT DISTINCT encode(substr(x, 1, 4), 'hex') FROM (
                   SELECT settings AS x FROM posthaste.endpoints UNION ALL
                   SELECT urls FROM posthaste.endpoints WHERE urls IS NOT NULL UNION ALL
                   SELECT sealed FROM posthaste.secrets) all_sealed";
    cluster.database().rows(sql).await.into_iter().map(|row| row[0].clone().unwrap()).collect()
}

/// Creates endpoints through all nodes; each wants its own type.
async fn endpoints(clients: &[&Client], receiver: &Receiver) -> Vec<Value> {
    let mut all = Vec::new();
    for n in 0..12 {
        let settings = json!({"url": receiver.url(), "event_types": [format!("t{n}")], "rate": unlimited()});
        all.push(clients[n % clients.len()].post_json("/v1/tenants/default/endpoints", &settings).await.expect(201));
    }
    all
}

/// Sends to each endpoint through each node, and checks every signature.
async fn all_sign(clients: &[&Client], receiver: &Receiver, endpoints: &[Value]) {
    let before = receiver.count();
    for client in clients {
        for n in 0..endpoints.len() {
            let event = json!({"type": format!("t{n}"), "data": n});
            client.post_json("/v1/tenants/default/events", &event).await.expect(202);
        }
    }
    let seen = receiver.wait_for(before + clients.len() * endpoints.len()).await;
    for request in &seen[before..] {
        let n = request.json()["data"].as_u64().unwrap() as usize;
        let webhook = standardwebhooks::Webhook::new(endpoints[n]["secret"].as_str().unwrap()).unwrap();
        webhook.verify(&request.body, &request.headers).expect("the secret it was created with");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_nodes_replace_the_master_key_under_load_also_when_the_first_is_killed() {
    let receiver = Receiver::start().await;
    let mut cluster = Cluster::new().await;
    cluster.start(3).await;
    cluster.settled().await;
    let clients: Vec<&Client> = cluster.nodes.iter().map(|node| node.client()).collect();
    let created = endpoints(&clients, &receiver).await;
    let before = sealed_ids(&cluster).await;
    let (is_over, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let load = cluster.nodes.iter().skip(1).map(|node| {
        let (client, is_over, sent) = (node.gateway().another_client(), is_over.clone(), sent.clone());
        let path = format!("/v1/tenants/default/endpoints/{}", created[0]["id"].as_str().unwrap());
        tokio::spawn(async move {
            for n in 0_usize.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let event = json!({"type": format!("t{}", n % 12), "data": n % 12});
                client.post_json("/v1/tenants/default/events", &event).await.expect(202);
                sent.fetch_add(1, Ordering::Relaxed);
                if n.is_multiple_of(10) {
                    client.patch_json(&path, &json!({"description": format!("change {n}")})).await.expect(200);
                }
            }
        })
    });
    let load = load.collect::<Vec<_>>();
    for node in [0, 1, 2] {
        let (is_done, said) = cluster.rotate_key(node).await;
        assert!(is_done, "{said}");
    }
    let after = sealed_ids(&cluster).await;
    assert!(after.len() == 1 && after != before, "{before:?} {after:?}");

    // The node that replaces the key is killed in the middle; another one finishes it.
    let file = cluster.folder().path().join("master-key");
    let lines = || std::fs::read_to_string(&file).unwrap().lines().count();
    let first = cluster.nodes[0].gateway().another_client();
    let rotating = tokio::spawn(async move { first.send("POST", "/v1/master-key/rotate", &[], "").await.map(|_| ()) });
    while lines() == 1 && !rotating.is_finished() {
        tokio::time::sleep(std::time::Duration::from_micros(200)).await;
    }
    cluster.kill(0).await;
    let _ = rotating.await;
    cluster.nodes.remove(0);
    cluster.settled().await;
    let (is_done, said) = cluster.rotate_key(0).await;
    assert!(is_done, "{said}");
    is_over.store(true, Ordering::Relaxed);
    for worker in load {
        worker.await.expect("nothing is refused");
    }
    assert_eq!((sealed_ids(&cluster).await.len(), lines()), (1, 1));
    receiver.wait_for(sent.load(Ordering::Relaxed)).await;
    let clients: Vec<&Client> = cluster.nodes.iter().map(|node| node.client()).collect();
    all_sign(&clients, &receiver, &created).await;
    // Whoever starts now reads everything with the new key alone.
    cluster.start(1).await;
    cluster.settled().await;
    let clients: Vec<&Client> = cluster.nodes.iter().map(|node| node.client()).collect();
    all_sign(&clients, &receiver, &created).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sealed_under_a_key_that_a_node_elsewhere_does_not_have() {
    let receiver = Receiver::start().await;
    let mut cluster = Cluster::new().await;
    cluster.start(1).await;
    let (here, elsewhere) = (cluster.folder().path().to_owned(), Arc::new(tempfile::tempdir().unwrap()));
    for name in ["master-key", "admin-token"] {
        std::fs::copy(here.join(name), elsewhere.path().join(name)).unwrap();
    }
    let lease = format!("{}s", LEASE.as_secs());
    let options = Options::flags(&["--database-url", cluster.database().url(), "--lease", &lease]);
    let far = Gateway::start_in(elsewhere.clone(), options).await;
    eventually("two nodes", async || {
        let seen = far.client.get("/v1/cluster").await.expect(200);
        let near = cluster.nodes[0].client().get("/v1/cluster").await.expect(200);
        let are_two = |view: &Value| view["nodes"].as_array().is_some_and(|nodes| nodes.len() == 2);
        if are_two(&seen) && are_two(&near) { Ok(()) } else { Err(near["nodes"].to_string()) }
    })
    .await;
    let clients = [cluster.nodes[0].client(), &far.client];
    let created = endpoints(&clients, &receiver).await;
    let before = sealed_ids(&cluster).await;
    let (is_done, said) = cluster.rotate_key(0).await;
    assert!(!is_done && said.contains("1 of 1 other nodes did not find the new master key"), "{said}");
    assert_eq!(sealed_ids(&cluster).await, before, "nothing was changed");
    all_sign(&clients, &receiver, &created).await;
    // A third node with the old key alone would read nothing soon, and does not start.
    let late = tempfile::tempdir().unwrap();
    std::fs::copy(elsewhere.path().join("master-key"), late.path().join("master-key")).unwrap();
    let refused = cluster.refused(&late).await;
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("is being replaced"), "{words}");

    std::fs::copy(here.join("master-key"), elsewhere.path().join("master-key")).unwrap();
    // The node that did not start may be counted for a moment; the answer says to try again.
    eventually("the rotation", async || match cluster.rotate_key(0).await {
        (true, _) => Ok(()),
        (false, said) => Err(said),
    })
    .await;
    let after = sealed_ids(&cluster).await;
    assert!(after.len() == 1 && after != before);
    let key = |folder: &std::path::Path| std::fs::read_to_string(folder.join("master-key")).unwrap();
    assert_eq!(key(&here), key(elsewhere.path()), "the old key is out of both files");
    assert_eq!(key(&here).lines().count(), 1);
    all_sign(&clients, &receiver, &created).await;

    // A new admin token is in force on the other node when it is shown.
    let renewed = far.client.post("/v1/admin-token", "").await.expect(201);
    assert_eq!(renewed["unconfirmed_nodes"], 0);
    cluster.nodes[0].client().get("/v1/tenants").await.problem(401, "unauthenticated");
    let address = cluster.nodes[0].gateway().address;
    Client::new(address, renewed["token"].as_str().unwrap()).get("/v1/tenants").await.expect(200);
}
