//! A node that is frozen for longer than its lease, and wakes.

use std::collections::BTreeSet;
use std::time::Instant;

use serde_json::json;

use crate::ledger::{Entry, Ledger, Reply};
use crate::nodes::Cluster;
use crate::support::eventually;

const EVENTS: &str = "/v1/tenants/default/events";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_was_frozen_beyond_its_lease_settles_nothing_and_starts_nothing() {
    let ledger = Ledger::start(|entry| if entry.is_of("n1") { Reply::Hold(200) } else { Reply::Status(200) }).await;
    let cluster = Cluster::started(3, &ledger).await;
    let its_own = cluster.owned_by(1).await;
    // It has all it may have open, and a lane and a queue behind that.
    let event = |n: usize, m: usize| {
        let key = if m < 5 { Some("k") } else { None };
        json!({"id": format!("evt-{n}-{m}"), "type": its_own[n], "key": key, "data": m})
    };
    let events: Vec<_> =
        (0..its_own.len()).flat_map(|n| (0..10).map(move |m| (n, m))).map(|(n, m)| event(n, m)).collect();
    cluster.nodes[0].client().post_json(&format!("{EVENTS}/batch"), &json!(events)).await.expect(202);
    let held = |entries: &[Entry]| entries.iter().filter(|entry| entry.is_of("n1")).count();
    ledger.wait_until("it to be busy", |entries| held(entries) >= its_own.len()).await;
    cluster.nodes[1].freeze();
    let frozen = Instant::now();

    // The others take over and deliver everything.
    let all: BTreeSet<String> = (0..its_own.len()).flat_map(|n| (0..10).map(move |m| format!("evt-{n}-{m}"))).collect();
    let arrived = |entries: &[Entry]| -> BTreeSet<String> {
        entries.iter().filter(|entry| entry.is_delivered()).map(|entry| entry.id.clone()).collect()
    };
    ledger.wait_until("the others to deliver", |entries| arrived(entries) == all).await;
    println!("delivered by others {:?} after it was frozen", frozen.elapsed());
    cluster.drained().await;

    // Its requests are answered, as if nothing had happened, and it wakes.
    let before = ledger.entries();
    ledger.release_answers();
    ledger.wait_until("its requests to be answered", |entries| entries.iter().all(|entry| entry.ended.is_some())).await;
    let thawed = Instant::now();
    cluster.nodes[1].thaw();
    cluster.settled().await;
    for (n, node) in cluster.nodes.iter().enumerate() {
        let event = json!({"id": format!("after-{n}"), "type": its_own[0], "data": n});
        eventually("it to take events again", || async {
            let answer = node.client().post_json(EVENTS, &event).await;
            if answer.status == 202 { Ok(()) } else { Err(answer.status.to_string()) }
        })
        .await;
    }
    ledger.wait_until("new events to arrive", |entries| arrived(entries).contains("after-2")).await;
    cluster.drained().await;

    let late: Vec<Entry> =
        ledger.entries()[before.len()..].iter().filter(|entry| !entry.id.starts_with("after-")).cloned().collect();
    assert!(late.is_empty(), "nothing of what was delivered is sent again: {late:#?}");
    // What is written down of each is what others did, and nothing else.
    for id in all {
        let found = cluster.nodes[0].client().get(&format!("{EVENTS}/{id}/deliveries")).await.expect(200);
        let delivery = &found["data"][0];
        assert_eq!((&delivery["state"], &delivery["attempts"]), (&json!("delivered"), &json!(1)), "{delivery}");
    }
    ledger.check(&Default::default(), crate::nodes::CAP, |entry| entry.is_of("n1") && entry.began < thawed);
}
