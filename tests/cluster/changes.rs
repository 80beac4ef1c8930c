//! Changes through any node are in force at the owner when the call answers.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::ledger::{Entry, Ledger, Reply};
use crate::nodes::{CAP, Cluster, ENDPOINTS, LEASE};
use crate::servers::proxy::NetworkState;
use crate::support::{Client, PageClient, eager_retry, eventually};

const TENANT: &str = "/v1/tenants/default";

/// Two nodes: an endpoint of the second with a full cap of held requests and a
/// backlog, and a second endpoint there.
struct BusyCluster {
    cluster: Cluster,
    ledger: Ledger,
    name: String,
    other: String,
}

impl BusyCluster {
    async fn new() -> Self {
        let ledger = Ledger::start(|_| Reply::Hold(200)).await;
        let cluster = Cluster::started(2, &ledger).await;
        let owned = cluster.owned_by(1).await;
        let (name, other) = (owned[0].clone(), owned[1].clone());
        let busy = Self { cluster, ledger, name, other };
        // It is held for as long as the story takes.
        let patient = json!({"timeout": {"connect": "1s", "total": "30s"}});
        busy.other_node().patch_json(&busy.path(), &patient).await.expect(200);
        busy.send_event("evt", 30).await;
        let is_full = |entries: &[Entry]| entries.len() == CAP;
        busy.ledger.wait_until("it to have all open that it may", is_full).await;
        busy
    }

    /// Returns the node that is not the owner.
    fn other_node(&self) -> &Client {
        self.cluster.nodes[0].client()
    }

    fn path(&self) -> String {
        self.cluster.path(&self.name)
    }

    async fn send_event(&self, prefix: &str, count: usize) {
        let event = |n| json!({"id": format!("{prefix}-{n}"), "type": self.name, "data": n});
        let events: Vec<Value> = (0..count).map(event).collect();
        self.other_node().post_json(&format!("{TENANT}/events/batch"), &json!(events)).await.expect(202);
    }

    fn count(&self) -> usize {
        self.ledger.entries().iter().filter(|entry| entry.endpoint == self.name).count()
    }

    /// Answers the open requests; returns when the owner has had time to start
    /// more.
    async fn release(&self) {
        self.ledger.release_answers();
        self.ledger.wait_until("what is open to end", |entries| entries.iter().all(|e| e.ended.is_some())).await;
        eventually("what was open to be settled", || async {
            let open: Vec<String> = self.ledger.entries().iter().map(|entry| entry.id.clone()).collect();
            for id in open {
                let delivery = self.delivery(&id).await;
                if delivery["state"] == "waiting" {
                    return Err(delivery.to_string());
                }
            }
            Ok(())
        })
        .await;
        self.another_arrives("witness").await;
    }

    /// Waits until the owner has delivered an event to the other endpoint.
    async fn another_arrives(&self, id: &str) {
        let event = json!({"id": id, "type": self.other, "data": 1});
        self.other_node().post_json(&format!("{TENANT}/events"), &event).await.expect(202);
        self.ledger.wait_until("another to arrive", |entries| entries.iter().any(|entry| entry.id == id)).await;
    }

    async fn delivery(&self, event: &str) -> Value {
        let page = self.other_node().get(&format!("{TENANT}/events/{event}/deliveries")).await.expect(200);
        page["data"][0].clone()
    }

    /// Returns one of its deliveries that no request was made for.
    async fn untouched(&self) -> Value {
        let begun: Vec<String> = self.ledger.entries().iter().map(|entry| entry.id.clone()).collect();
        let id = (0..30).map(|n| format!("evt-{n}")).find(|id| !begun.contains(id)).expect("30 are more than may go");
        self.delivery(&id).await
    }

    async fn act(&self, delivery: &Value, verb: &str) {
        let id = delivery["id"].as_str().expect("an id");
        self.other_node().post(&format!("{TENANT}/deliveries/{id}/{verb}"), "").await.expect(202);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_through_another_node_holds_everything_but_what_is_in_flight() {
    let busy = BusyCluster::new().await;
    busy.other_node().post(&format!("{}/pause", busy.path()), "").await.expect(200);
    busy.release().await;
    assert_eq!(busy.count(), CAP, "nothing was begun after the pause");
    busy.other_node().post(&format!("{}/resume", busy.path()), "").await.expect(200);
    busy.cluster.drained().await;
    assert_eq!(busy.count(), 30);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delete_through_another_node_cancels_everything_but_what_is_in_flight() {
    let busy = BusyCluster::new().await;
    let answer = busy.other_node().send("DELETE", &busy.path(), &[], "").await.unwrap();
    assert!((200..300).contains(&answer.status), "{answer:?}");
    let untouched = busy.untouched().await;
    assert_eq!(untouched["state"], "cancelled", "with the answer, whatever is still to be written: {untouched}");
    busy.release().await;
    assert_eq!(busy.count(), CAP, "nothing was begun after the end");
    busy.cluster.drained().await;
    let begun: Vec<String> = busy.ledger.entries().into_iter().map(|entry| entry.id).collect();
    for id in (0..30).map(|n| format!("evt-{n}")) {
        let (state, attempts) = if begun.contains(&id) { ("delivered", 1) } else { ("cancelled", 0) };
        // What was in flight reads cancelled until its outcome is written.
        eventually(&format!("{id} to be {state} after {attempts} attempts"), || async {
            let delivery = busy.delivery(&id).await;
            let is_so = (&delivery["state"], &delivery["attempts"]) == (&json!(state), &json!(attempts));
            if is_so { Ok(()) } else { Err(delivery.to_string()) }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_through_another_node_keeps_a_delivery_from_going() {
    let busy = BusyCluster::new().await;
    let cancelled = busy.untouched().await;
    busy.act(&cancelled, "cancel").await;
    busy.ledger.release_answers();
    busy.cluster.drained().await;
    assert_eq!(busy.count(), 29);
    let id = cancelled["event_id"].as_str().unwrap();
    assert!(busy.ledger.entries().iter().all(|entry| entry.id != id));
    assert_eq!(busy.delivery(id).await["state"], "cancelled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cap_changed_through_another_node_is_kept_from_then_on() {
    let busy = BusyCluster::new().await;
    busy.other_node().patch_json(&busy.path(), &json!({"max_in_flight": 1})).await.expect(200);
    busy.ledger.answer_with(|_| Reply::Status(200));
    busy.ledger.release_answers();
    busy.cluster.drained().await;
    let entries = busy.ledger.entries();
    for entry in &entries[CAP..] {
        let open = entries.iter().filter(|other| other.began <= entry.began && other.ended.unwrap() > entry.began);
        assert_eq!(open.count(), 1, "{entry:?}");
    }

    let busy = BusyCluster { ledger: Ledger::start(|_| Reply::Hold(200)).await, ..busy };
    let wider = json!({"max_in_flight": 2 * CAP, "url": busy.ledger.url(&busy.name)});
    busy.other_node().patch_json(&busy.path(), &wider).await.expect(200);
    busy.send_event("more", 30).await;
    busy.ledger.wait_until("more to be open", |entries| entries.len() == 2 * CAP).await;
    busy.ledger.release_answers();
    busy.cluster.drained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_and_a_replay_through_another_node_go_at_once() {
    let busy = BusyCluster::new().await;
    busy.ledger.release_answers();
    busy.cluster.drained().await;
    // One that would wait for an hour, and one that is dead.
    let slow = json!({"retry": {"schedule": ["1h"], "jitter": "none", "max_attempts": 5}});
    busy.other_node().patch_json(&busy.path(), &slow).await.expect(200);
    for (id, status) in [("late", 503), ("dead", 400)] {
        busy.ledger.answer_with(move |_| Reply::Status(status));
        let event = json!({"id": id, "type": busy.name, "data": 1});
        busy.other_node().post_json(&format!("{TENANT}/events"), &event).await.expect(202);
        let verb = eventually("its first attempt to be settled", || async {
            let found = busy.delivery(id).await;
            match (&found["state"], &found["attempts"]) {
                (state, attempts) if *state == "waiting" && *attempts == 1 => Ok("retry"),
                (state, _) if *state == "dead" => Ok("replay"),
                _ => Err(found.to_string()),
            }
        })
        .await;
        busy.ledger.answer_with(|_| Reply::Status(200));
        busy.act(&busy.delivery(id).await, verb).await;
        let again = |entries: &[Entry]| entries.iter().filter(|entry| entry.id == id).count() == 2;
        busy.ledger.wait_until("it to go again", again).await;
    }
    busy.other_node().patch_json(&busy.path(), &json!({"retry": eager_retry(5)})).await.expect(200);
    busy.cluster.drained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whichever_node_is_asked_a_delivery_in_flight_is_shown_as_such() {
    let busy = BusyCluster::new().await;
    let open = busy.ledger.entries().remove(0).id;
    for node in &busy.cluster.nodes {
        let found = node.client().get(&format!("{TENANT}/events/{open}/deliveries")).await.expect(200);
        let id = found["data"][0]["id"].as_str().unwrap().to_owned();
        // Of another node's, a second later at most.
        eventually("it to be shown as in flight", || async {
            let delivery = node.client().get(&format!("{TENANT}/deliveries/{id}")).await.expect(200);
            if delivery["in_flight"] == true { Ok(()) } else { Err(format!("{}: {delivery}", node.name)) }
        })
        .await;
    }
    busy.ledger.release_answers();
    busy.cluster.drained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_good_everywhere_when_it_is_made_and_nowhere_when_it_is_revoked() {
    let ledger = Ledger::start(|_| Reply::Status(200)).await;
    let cluster = Cluster::started(2, &ledger).await;
    let nodes = [&cluster.nodes[0], &cluster.nodes[1]];
    for round in 0..20 {
        let (here, there) = (nodes[round % 2], nodes[(round + 1) % 2]);
        let new = match round % 4 {
            0 => json!({"name": "the dashboard", "rights": ["admin_read"]}),
            _ => json!({"tenant": "default", "rights": ["read"]}),
        };
        let made = here.client().post_json("/v1/tokens", &new).await.expect(201);
        let (id, token) = (made["id"].as_str().unwrap(), made["token"].as_str().unwrap());
        let user = Client::new(there.gateway().address, token);
        user.get(&format!("{TENANT}/endpoints")).await.expect(200);
        here.client().send("DELETE", &format!("/v1/tokens/{id}"), &[], "").await.unwrap().expect(204);
        user.get(&format!("{TENANT}/endpoints")).await.problem(401, "unauthenticated");
    }
    // One that has slept through a revocation trusts nobody's word until it knows.
    let made = nodes[0].client().post_json("/v1/tokens", &json!({"tenant": "default", "rights": ["read"]})).await;
    let made = made.expect(201);
    let user = Client::new(nodes[1].gateway().address, made["token"].as_str().unwrap());
    user.get(&format!("{TENANT}/endpoints")).await.expect(200);
    nodes[1].freeze();
    let path = format!("/v1/tokens/{}", made["id"].as_str().unwrap());
    nodes[0].client().send("DELETE", &path, &[], "").await.unwrap().expect(204);
    nodes[1].thaw();
    let answer = user.get(&format!("{TENANT}/endpoints")).await;
    assert!(matches!(answer.status, 401 | 503), "{}", answer.status);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sign_in_is_good_at_every_node_and_ends_at_all_of_them() {
    let ledger = Ledger::start(|_| Reply::Status(200)).await;
    let cluster = Cluster::started(2, &ledger).await;
    let nodes = [&cluster.nodes[0], &cluster.nodes[1]];
    let opened = async |node: usize, cookie: &str| {
        let address = nodes[node].gateway().address;
        // Without TLS the name of the cookie ends in the port, which nodes behind one address share.
        let (name, secret) = cookie.split_once('=').expect("a name and a value");
        let (name, _) = name.rsplit_once('-').expect("a port");
        let cookie = format!("{name}-{}={secret}", address.port());
        let headers = [("cookie", cookie.as_str()), ("authorization", "")];
        let stranger = Client::new(address, "none");
        stranger.send("GET", "/tenants", &headers, "").await.unwrap().status
    };
    for here in [0, 1] {
        let there = 1 - here;
        let revoked = PageClient::operator(nodes[here].gateway()).await;
        assert_eq!((opened(here, revoked.cookie()).await, opened(there, revoked.cookie()).await), (200, 200));
        nodes[there].client().send("DELETE", "/v1/sessions", &[], "").await.unwrap();
        assert_eq!((opened(here, revoked.cookie()).await, opened(there, revoked.cookie()).await), (401, 401));
        // A person who leaves at one node has left at the other, too.
        let left = PageClient::operator(nodes[here].gateway()).await;
        assert_eq!(opened(there, left.cookie()).await, 200);
        left.post("/sign-out", &[]).await;
        assert_eq!((opened(here, left.cookie()).await, opened(there, left.cookie()).await), (401, 401));
    }
}

/// A change does not wait for a node whose lease has ended. So that node must
/// not go on with what it knows when it is heard of again, but join anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_holds_at_a_node_that_comes_back_after_its_lease_has_ended() {
    let ledger = Ledger::start(|_| Reply::Hold(200)).await;
    let mut cluster = Cluster::new().await;
    cluster.start_behind_proxies(2).await;
    cluster.create_endpoints(&ledger, ENDPOINTS).await;
    let other_node = cluster.nodes[0].gateway().another_client();
    let mut is_begun = false;
    for _ in 0..2 {
        cluster.settled().await;
        let paused = cluster.owned_by(1).await;
        // Each is tried again and again: there is always something to begin with.
        for name in paused.iter().filter(|_| !is_begun) {
            let events: Vec<Value> = (0..40).map(|n| json!({"type": name, "data": n})).collect();
            other_node.post_json(&format!("{TENANT}/events/batch"), &json!(events)).await.expect(202);
        }
        is_begun = true;
        ledger.wait_for_more(3 * CAP).await;
        let answered = paused_while_away(&cluster, &other_node, &paused).await;
        let late = |entry: &Entry| answered.get(&entry.endpoint).is_some_and(|at| entry.began > *at);
        let late: Vec<Entry> = ledger.entries().into_iter().filter(late).collect();
        assert!(late.is_empty(), "{} were begun after their pause was answered: {:?}", late.len(), late[0]);
        for name in &paused {
            other_node.post(&format!("{}/resume", cluster.path(name)), "").await.expect(200);
        }
    }
    ledger.answer_with(|_| Reply::Status(200));
    ledger.release_answers();
    cluster.drained().await;
}

/// Pauses endpoints of the second node while that is cut off and its lease has
/// ended; returns when each pause was answered, once the node is back.
async fn paused_while_away(
    cluster: &Cluster,
    other_node: &Client,
    paused: &[String],
) -> std::collections::HashMap<String, Instant> {
    let nodes = cluster.nodes[1].client().get("/v1/cluster").await.expect(200)["nodes"].clone();
    let owner = nodes.as_array().unwrap().iter().find(|node| node["self"] == true).unwrap()["id"].clone();
    let owner = owner.as_str().unwrap();
    // Nobody takes it out meanwhile, as when all come back at once after an outage of the database.
    let (lock, connection) = tokio_postgres::connect(cluster.database().url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    lock.batch_execute(&format!("BEGIN; SELECT FROM posthaste.nodes WHERE id = {owner} FOR KEY SHARE")).await.unwrap();
    cluster.nodes[1].proxy().set(NetworkState::Silent);
    let leased = format!("SELECT count(*) FROM posthaste.nodes WHERE id = {owner} AND lease_until > clock_timestamp()");
    eventually("its lease to end", || async {
        if cluster.database().number(&leased).await == 0 { Ok(()) } else { Err("it has not".to_owned()) }
    })
    .await;
    let mut answered = std::collections::HashMap::new();
    for name in paused {
        other_node.post(&format!("{}/pause", cluster.path(name)), "").await.expect(200);
        answered.insert(name.clone(), Instant::now());
    }
    // What was changed cannot be read for a while, whatever else it does.
    let (reads, connection) = tokio_postgres::connect(cluster.database().url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    reads.batch_execute("BEGIN; LOCK TABLE posthaste.secrets IN ACCESS EXCLUSIVE MODE").await.unwrap();
    cluster.nodes[1].proxy().set(NetworkState::Working);
    tokio::time::sleep(2 * LEASE).await;
    lock.batch_execute("COMMIT").await.unwrap();
    reads.batch_execute("COMMIT").await.unwrap();
    cluster.settled().await;
    answered
}

/// The number of waiting deliveries is what the owner counts; until it has counted,
/// the number is unknown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_is_right_or_unknown_while_an_endpoint_is_taken_over() {
    let ledger = Ledger::start(|_| Reply::Status(200)).await;
    let cluster = Cluster::started(2, &ledger).await;
    let name = cluster.owned_by(1).await.remove(0);
    let other_node = cluster.nodes[0].gateway().another_client();
    other_node.post(&format!("{}/pause", cluster.path(&name)), "").await.expect(200);
    let events: Vec<Value> = (0..100).map(|n| json!({"type": name, "data": n})).collect();
    for _ in 0..50 {
        other_node.post_json(&format!("{TENANT}/events/batch"), &json!(events)).await.expect(202);
    }
    let waiting = async || other_node.get(&cluster.path(&name)).await.expect(200)["health"]["waiting"].clone();
    eventually("all of them to be counted", || async {
        let waiting = waiting().await;
        if waiting == 5_000 { Ok(()) } else { Err(waiting.to_string()) }
    })
    .await;
    let owned = async || cluster.view().await.is_ok_and(|owned| owned.len() == 1);
    let (mut seen, mut is_over) = (Vec::new(), false);
    let killed = cluster.nodes[1].gateway().process_id();
    kill(killed);
    let until = Instant::now() + Duration::from_secs(60);
    while !(is_over && seen.last() == Some(&json!(5_000))) {
        assert!(Instant::now() < until, "nobody has taken it over; {:?}", seen.last());
        let now = waiting().await;
        if seen.last() != Some(&now) {
            seen.push(now);
        }
        is_over = is_over || owned().await;
    }
    println!("seen: {seen:?}");
    assert!(seen.iter().all(|waiting| waiting.is_null() || *waiting == 5_000), "{seen:?}");
}

fn kill(process: u32) {
    let id = rustix::process::Pid::from_raw(process as i32).expect("a process id");
    rustix::process::kill_process(id, rustix::process::Signal::KILL).expect("it can be killed");
}
