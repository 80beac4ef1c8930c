//! Dead letters: found by filters, inspected, replayed, discarded.

use posthaste::lifecycle::deliver::sign::sha256_hex;
use serde_json::{Value, json};

use crate::cli::asked;
use crate::support::{Gateway, Receiver, Reply, eager_retry, eventually};

for_every_store! {
    dead_letters_are_listed_by_cause_endpoint_type_and_key_and_replayed,
    a_replay_of_what_is_waiting_or_of_a_deleted_endpoint_is_refused,
    dead_letters_are_found_by_the_time_of_their_death,
}

const DEAD: &str = "/v1/tenants/default/dead-letters";

async fn dead_letters_are_listed_by_cause_endpoint_type_and_key_and_replayed() {
    let gateway = Gateway::start().await;
    let refusing = Receiver::scripted(vec![Reply::Status(400)]).await;
    let failing = Receiver::scripted(vec![Reply::Status(500)]).await;
    let first = gateway.create_endpoint(json!({"url": refusing.url(), "event_types": ["a.*"]})).await;
    gateway.create_endpoint(json!({"url": failing.url(), "event_types": ["b.*"], "retry": eager_retry(2)})).await;
    gateway.send(json!({"id":"e1","type":"a.x","data":1})).await;
    gateway.send(json!({"id":"e2","type":"a.y","key":"k","data":1})).await;
    gateway.send(json!({"id":"e3","type":"b.x","data":1})).await;
    eventually("three dead letters", || async {
        let found = gateway.list(DEAD).await.len();
        if found == 3 { Ok(()) } else { Err(found.to_string()) }
    })
    .await;
    let ids = |found: Vec<Value>| {
        found.iter().map(|letter| letter["event_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids(gateway.list(&format!("{DEAD}?cause=exhausted")).await), ["e3"]);
    assert_eq!(ids(gateway.list(&format!("{DEAD}?cause=refused")).await), ["e2", "e1"], "newest first");
    assert_eq!(
        ids(gateway.list(&format!("{DEAD}?endpoint={}&event_type=a.y", first["id"].as_str().unwrap())).await),
        ["e2"]
    );
    assert_eq!(ids(gateway.list(&format!("{DEAD}?key=k")).await), ["e2"]);
    assert_eq!(ids(gateway.list(&format!("{DEAD}?until=2020-01-01T00:00:00Z")).await), Vec::<String>::new());
    assert_eq!(ids(gateway.list(&format!("{DEAD}?since=2020-01-01T00:00:00Z")).await).len(), 3);

    let letter = gateway.delivery_of("e3").await;
    assert_eq!(letter["body_sha256"], sha256_hex(&failing.seen()[0].body), "of what was sent");
    let path = format!("{DEAD}/{}", letter["id"].as_str().unwrap());
    failing.answer_with(|_| Reply::Status(200));
    let replayed = gateway.client.post(&format!("{path}/replay"), "").await.expect(202);
    assert_eq!(replayed["event_id"], "e3");
    let delivered = gateway.wait_for_state("e3", "delivered").await;
    assert_eq!((&delivered["attempts"], &delivered["cause"]), (&json!(3), &Value::Null));
    let seen = failing.seen();
    assert!(seen.iter().all(|one| one.id() == "e3" && one.body == seen[0].body));
    assert_eq!(seen[2].header("webhook-attempt"), "3", "numbers go on counting");
    gateway.client.post(&format!("{path}/discard"), "").await.problem(409, "wrong_state");

    // A delivered one can be replayed again and again, with a fresh budget.
    for n in 4..=6 {
        gateway.post_to_delivery(&letter, "replay").await.expect(202);
        failing.wait_for(n).await;
        gateway.wait_for_state("e3", "delivered").await;
    }
    assert_eq!(gateway.attempts_of(&letter).await.len(), 6);
}

async fn a_replay_of_what_is_waiting_or_of_a_deleted_endpoint_is_refused() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::scripted(vec![Reply::Status(503)]).await;
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url()})).await;
    gateway.send(json!({"id":"w","type":"a","data":1})).await;
    let delivery = gateway.delivery_of("w").await;
    gateway.post_to_delivery(&delivery, "replay").await.problem(409, "wrong_state");
    let path = format!("/v1/tenants/default/endpoints/{}", endpoint["id"].as_str().unwrap());
    gateway.client.send("DELETE", &path, &[], "").await.unwrap().expect(204);
    assert_eq!(gateway.delivery_of("w").await["state"], "cancelled", "deleting cancels at once");
    gateway.post_to_delivery(&delivery, "replay").await.problem(409, "wrong_state");
    assert_eq!(gateway.list("/v1/tenants/default/deliveries?state=waiting").await.len(), 0);
}

async fn dead_letters_are_found_by_the_time_of_their_death() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::scripted(vec![Reply::Status(400)]).await;
    let paused = gateway.create_endpoint(json!({"url": receiver.url(), "event_types": ["old"]})).await;
    let path = format!("/v1/tenants/default/endpoints/{}", paused["id"].as_str().unwrap());
    gateway.client.post(&format!("{path}/pause"), "").await.expect(200);
    gateway.create_endpoint(json!({"url": receiver.url(), "event_types": ["new"]})).await;
    gateway.send(json!({"id":"old","type":"old","data":1})).await;
    gateway.send(json!({"id":"new","type":"new","data":1})).await;
    gateway.wait_for_state("new", "dead").await;
    gateway.client.post(&format!("{path}/resume"), "").await.expect(200);
    let last = gateway.wait_for_state("old", "dead").await;
    let death = last["finished_at"].as_str().unwrap();
    let ids = |found: &[Value]| {
        found.iter().map(|letter| letter["event_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let list = async |query: &str| ids(&gateway.list(&format!("{DEAD}?{query}")).await);
    assert_eq!(list("").await, ["new", "old"], "newest first");
    assert_eq!(list("finished_since=2020-01-01T00:00:00Z").await, ["old", "new"], "the latest dead first");
    assert_eq!(list(&format!("finished_since={death}")).await, ["old"]);
    assert_eq!(list(&format!("finished_until={death}")).await, ["new"]);
    let page = gateway.client.get(&format!("{DEAD}?finished_until=2100-01-01T00:00:00Z&limit=1")).await.expect(200);
    let next = page["next"].as_str().unwrap();
    assert_eq!(list(&format!("finished_until=2100-01-01T00:00:00Z&cursor={next}")).await, ["new"]);
    gateway.client.get(&format!("{DEAD}?cursor={next}")).await.problem(400, "invalid_cursor");
    let printed = async |args: &[&str]| ids(asked(&gateway, args).await["data"].as_array().unwrap());
    assert_eq!(printed(&["dead-letters", "list", "--since", death]).await, ["old"], "people mean death");
    assert_eq!(printed(&["dead-letters", "list", "--until", death]).await, ["new"]);
    assert_eq!(printed(&["deliveries", "list", "--finished-since", death]).await, ["old"]);
    assert_eq!(printed(&["deliveries", "list", "--finished-until", death, "--state", "dead"]).await, ["new"]);
}
