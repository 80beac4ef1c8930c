//! What an owner knows of its endpoints is published once a second and read
//! by others, who neither ask nor write for it.

use serde_json::{Value, json};

use crate::ledger::{Ledger, Reply};
use crate::nodes::Cluster;
use crate::support::{Client, EventStream, PageClient, eventually};

const TENANT: &str = "/v1/tenants/default";
/// How many questions were ever asked from node to node.
const ASKED: &str = "SELECT coalesce(last_value, 0) FROM pg_sequences
    WHERE format('%I.%I', schemaname, sequencename) = pg_get_serial_sequence('posthaste.node_questions', 'no')";
/// Every published row, and the transaction that wrote it.
const PUBLISHED: &str =
    "SELECT shard, endpoint, epoch, status, xmin FROM posthaste.live_status ORDER BY shard, endpoint";

/// Waits until a node shows this of an endpoint.
async fn shows(client: &Client, path: &str, what: &str, is_so: impl Fn(&Value) -> bool) {
    eventually(what, || async {
        let endpoint = client.get(path).await.expect(200);
        if is_so(&endpoint["health"]) { Ok(()) } else { Err(endpoint["health"].to_string()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looking_at_another_nodes_endpoints_writes_nothing_and_neither_does_an_idle_owner() {
    let ledger = Ledger::start(|_| Reply::Status(200)).await;
    let cluster = Cluster::started(2, &ledger).await;
    let (name, idle) = (cluster.owned_by(1).await.remove(0), cluster.owned_by(1).await.remove(1));
    let stranger = cluster.nodes[0].client();
    stranger.post(&format!("{}/pause", cluster.path(&name)), "").await.expect(200);
    let events: Vec<Value> = (0..100).map(|n| json!({"type": name, "data": n})).collect();
    stranger.post_json(&format!("{TENANT}/events/batch"), &json!(events)).await.expect(202);
    shows(stranger, &cluster.path(&name), "what waits there", |health| health["waiting"] == 100).await;
    shows(stranger, &cluster.path(&idle), "that nothing waits there", |health| health["waiting"] == 0).await;

    let asked = async || cluster.database().rows(ASKED).await;
    let rows = async || cluster.database().rows(PUBLISHED).await;
    eventually("that each owner says of each of its shards that it is complete", || async {
        let published = rows().await.len();
        if published > 256 { Ok(()) } else { Err(format!("{published} rows are published")) }
    })
    .await;
    let (before, published) = (asked().await, rows().await);
    // Several times as long as an owner waits before it publishes again.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(4);
    while std::time::Instant::now() < until {
        for node in &cluster.nodes {
            for path in [format!("{TENANT}/endpoints"), cluster.path(&name), format!("{TENANT}/deliveries")] {
                node.client().get(&path).await.expect(200);
            }
        }
    }
    assert_eq!(asked().await, before, "nobody was asked");
    assert_eq!(rows().await, published, "nothing was written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_looks_at_figures_and_lag_shares_the_answers_of_a_second() {
    let ledger = Ledger::start(|_| Reply::Status(200)).await;
    let cluster = Cluster::started(2, &ledger).await;
    let endpoint = cluster.path(&cluster.owned_by(1).await.remove(0));
    let paths = [
        "/v1/cluster".to_owned(),
        "/v1/attention".to_owned(),
        "/v1/health-table".to_owned(),
        "/v1/figures".to_owned(),
        "/v1/figures?step=1h".to_owned(),
        format!("{TENANT}/figures"),
        format!("{endpoint}/figures"),
        format!("{endpoint}/health-table"),
    ];
    // How far behind the other is, and the figures of the gateway, a tenant and an endpoint.
    let questions = 4;
    let asked = async || cluster.database().number(ASKED).await;
    let (before, began) = (asked().await, std::time::Instant::now());
    let mut looks = 0;
    while began.elapsed() < std::time::Duration::from_secs(4) || looks < 100 {
        for node in &cluster.nodes {
            for path in &paths {
                node.client().get(path).await.expect(200);
                looks += 1;
            }
        }
    }
    let asked = asked().await - before;
    let seconds = i64::try_from(began.elapsed().as_secs()).unwrap();
    // A second begins where the one before ended, and each is asked anew where a window ends or is written.
    let most = questions * cluster.nodes.len() as i64 * (seconds + 1 + 3);
    assert!((1..=most).contains(&asked), "{asked} questions for {looks} looks in {seconds} s; at most {most}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_shows_what_an_owner_knows_and_after_its_end_what_the_next_one_does() {
    let ledger = Ledger::start(|_| Reply::Hold(200)).await;
    let mut cluster = Cluster::started(3, &ledger).await;
    let name = cluster.owned_by(1).await.remove(0);
    let patient = json!({"timeout": {"connect": "1s", "total": "30s"}});
    let stranger = cluster.nodes[0].gateway().another_client();
    stranger.patch_json(&cluster.path(&name), &patient).await.expect(200);
    let events: Vec<Value> = (0..5).map(|n| json!({"type": name, "data": n})).collect();
    stranger.post_json(&format!("{TENANT}/events/batch"), &json!(events)).await.expect(202);
    ledger.wait_until("some to be open", |entries| entries.len() == crate::nodes::CAP).await;
    for node in &cluster.nodes {
        eventually("the list to show what is in flight", || async {
            let list = node.client().get(&format!("{TENANT}/deliveries?state=waiting")).await.expect(200);
            let open = list["data"].as_array().unwrap().iter().filter(|one| one["in_flight"] == true).count();
            if open == crate::nodes::CAP { Ok(()) } else { Err(format!("{}: {open}", node.name)) }
        })
        .await;
        shows(node.client(), &cluster.path(&name), "what waits", |health| health["waiting"] == 5).await;
    }
    // Killed, so that it can take back nothing of what it published.
    cluster.kill(1).await;
    ledger.answer_with(|_| Reply::Status(200));
    ledger.release_answers();
    shows(&stranger, &cluster.path(&name), "that all of it went", |health| health["waiting"] == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepts_are_held_on_every_node_for_as_long_as_one_of_them_asks() {
    let ledger = Ledger::start(|_| Reply::Status(200)).await;
    let cluster = Cluster::started(2, &ledger).await;
    let asks = |span: &str| {
        format!(
            "INSERT INTO posthaste.accept_delays (tenant, node, delay_ms, held_until)
             SELECT no, -1, 1000, clock_timestamp() + interval '{span}' FROM posthaste.tenants WHERE id = 'default'
             ON CONFLICT (node, tenant) DO UPDATE SET held_until = excluded.held_until"
        )
    };
    // A second is the longest that an accept is held: then it is refused.
    for (span, status) in [("-1 s", 202), ("1 h", 503), ("-1 s", 202)] {
        cluster.database().execute(&asks(span)).await;
        for node in &cluster.nodes {
            eventually("the answer of every node", || async {
                let event = json!({"type": "some.event", "data": 1});
                let answer = node.client().post_json(&format!("{TENANT}/events"), &event).await;
                if answer.status == status { Ok(()) } else { Err(answer.status.to_string()) }
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_crash_of_the_database_took_is_published_anew() {
    let ledger = Ledger::start(|_| Reply::Status(200)).await;
    let mut cluster = Cluster::on_server_of_its_own().await;
    // Leases that outlive the crash: nobody publishes because of a takeover.
    cluster.start_in(vec![Vec::new(), Vec::new()], "60s").await;
    cluster.create_endpoints(&ledger, crate::nodes::ENDPOINTS).await;
    cluster.settled().await;
    let name = cluster.owned_by(1).await.remove(0);
    let stranger = cluster.nodes[0].gateway().another_client();
    stranger.post(&format!("{}/pause", cluster.path(&name)), "").await.expect(200);
    let event = json!({"type": name, "data": 1});
    stranger.post_json(&format!("{TENANT}/events"), &event).await.expect(202);
    shows(&stranger, &cluster.path(&name), "what waits there", |health| health["waiting"] == 1).await;
    cluster.server().kill().await;
    cluster.server().start_again().await;
    eventually("the nodes to be back", || async {
        let answer = stranger.send("GET", "/readyz", &[], "").await?;
        if answer.status == 200 { Ok(()) } else { Err(answer.status.to_string()) }
    })
    .await;
    for node in &cluster.nodes {
        shows(node.client(), &cluster.path(&name), "what waits there", |health| health["waiting"] == 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_page_says_that_the_attempts_of_other_nodes_are_missing() {
    let ledger = Ledger::start(|_| Reply::Status(200)).await;
    let cluster = Cluster::started(2, &ledger).await;
    let gateway = cluster.nodes[0].gateway();
    let token = json!({"tenant": "default", "rights": ["read"], "name": "shop"});
    let token = cluster.nodes[0].client().post_json("/v1/tokens", &token).await.expect(201);
    let portal = PageClient::portal(gateway, token["token"].as_str().unwrap()).await;
    let operator = PageClient::operator(gateway).await;
    let mut live = EventStream::open(gateway, "/live/stream", ("cookie", operator.cookie())).await;
    live.until("The attempts of the other node are not shown here.").await;
    let mut live = EventStream::open(gateway, "/portal/live/stream", ("cookie", portal.cookie())).await;
    live.until("Some attempts are missing here").await;
}
