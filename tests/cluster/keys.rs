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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_killed_while_it_makes_a_new_admin_token_leaves_one_that_every_node_takes() {
    let receiver = Receiver::start().await;
    let mut cluster = Cluster::new().await;
    cluster.start(3).await;
    cluster.settled().await;
    let clients: Vec<&Client> = cluster.nodes.iter().map(|node| node.client()).collect();
    endpoints(&clients, &receiver).await;
    let made = json!({"tenant": "default", "rights": ["publish"]});
    let made = clients[1].post_json("/v1/tokens", &made).await.expect(201);
    let (is_over, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let load = [1, 2].map(|node| {
        let client = Client::new(cluster.nodes[node].gateway().address, made["token"].as_str().unwrap());
        let (is_over, sent) = (is_over.clone(), sent.clone());
        tokio::spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                let event = json!({"type": "t1", "data": 1});
                client.post_json("/v1/tenants/default/events", &event).await.expect(202);
                sent.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    let folder = cluster.folder().path().to_owned();
    let (file, next) = (folder.join("admin-token"), folder.join("admin-token.next"));
    let in_file = || std::fs::read_to_string(&file).unwrap().trim().to_owned();
    let mut renewed = 0;
    for round in 0..4_u32 {
        let (before, is_last) = (in_file(), round == 3);
        let client = Client::new(cluster.nodes[0].gateway().address, &before);
        let renewing = tokio::spawn(async move { client.send("POST", "/v1/admin-token", &[], "").await.map(|_| ()) });
        while in_file() == before && (is_last || !next.exists()) && !renewing.is_finished() {
            tokio::time::sleep(std::time::Duration::from_micros(100)).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(u64::from(round))).await;
        cluster.kill(0).await;
        let _ = renewing.await;
        cluster.restart(0).await;
        let token = in_file();
        renewed += usize::from(token != before);
        for node in &cluster.nodes {
            let address = node.gateway().address;
            eventually("every node to take the token of the file, and no other", || async {
                let answered = Client::new(address, &token).get("/v1/tenants").await.status;
                let old = Client::new(address, &before).get("/v1/tenants").await.status;
                // One that is wrong is 401, and 429 once it was tried a hundred times.
                let is_alone = token == before || old != 200;
                if answered == 200 && is_alone { Ok(()) } else { Err(format!("{answered} and {old}")) }
            })
            .await;
        }
    }
    assert!(renewed > 0, "every kill came before the new token was stored");
    is_over.store(true, Ordering::Relaxed);
    for worker in load {
        worker.await.expect("no event is refused");
    }
    receiver.wait_for(sent.load(Ordering::Relaxed)).await;
}
