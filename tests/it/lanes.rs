//! Order: one in flight per key, never overtaken, and others never held up.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::support::{Gateway, ReceivedRequest, Receiver, Reply, eager_retry, eventually};

for_every_store! {
    a_timeout_holds_its_key_while_another_goes_and_the_repeat_is_a_no_op,
    keys_never_overtake_or_overlap_under_random_failures,
    a_dead_head_blocks_its_lane_until_it_is_replayed_and_then_drains_in_order,
    discarding_a_dead_head_lets_the_lane_move_on_and_keeps_the_cause,
    a_lane_that_skips_its_dead_moves_on_by_itself,
    an_endpoint_can_be_one_lane_or_ignore_keys,
    cancelling_a_lane_member_in_flight_does_not_let_the_next_overlap,
}

async fn waiting_for(gateway: &Gateway, event: &str) -> Value {
    gateway.delivery_of(event).await["waiting_for"].clone()
}

async fn a_timeout_holds_its_key_while_another_goes_and_the_repeat_is_a_no_op() {
    let gateway = Gateway::start().await;
    // The receiver applies A:1 and then hangs, so its answer never comes.
    let mut first = true;
    let receiver = Receiver::answering(move |seen| {
        if seen.id() == "A-1" && std::mem::take(&mut first) { Reply::Hold(200) } else { Reply::Status(200) }
    })
    .await;
    let settings = json!({"url": receiver.url(), "retry": {"schedule": ["300ms"], "jitter": "none"}, "timeout": {"connect": "3s", "total": "3s"}});
    gateway.create_endpoint(settings).await;
    for (id, key) in [("A-1", "A"), ("A-2", "A"), ("B-1", "B")] {
        gateway.send(json!({"id": id, "type":"step","key": key,"data":1})).await;
    }
    gateway.wait_for_state("B-1", "delivered").await;
    assert_eq!(waiting_for(&gateway, "A-2").await, "key");
    gateway.wait_for_state("A-2", "delivered").await;
    let seen = receiver.seen();
    let order: Vec<_> = seen
        .iter()
        .filter(|seen| seen.header("x-key") == "A")
        .map(|seen| (seen.id(), seen.header("x-seq"), seen.header("webhook-attempt")))
        .collect();
    assert_eq!(order, [("A-1", "1", "1"), ("A-1", "1", "2"), ("A-2", "2", "1")]);
    let delivery = gateway.delivery_of("A-1").await;
    assert_eq!(gateway.attempts_of(&delivery).await[0]["error"]["kind"], "timeout");
}

async fn keys_never_overtake_or_overlap_under_random_failures() {
    let gateway = Gateway::start().await;
    let mut n = 0u32;
    let receiver = Receiver::answering(move |_| {
        // Every third request fails, in a pattern that shifts over the keys.
        n = n.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        Reply::Status(if n >> 16 & 0b11 == 0 { 503 } else { 200 })
    })
    .await;
    gateway.create_endpoint(json!({"url": receiver.url(), "max_in_flight": 50, "retry": eager_retry(100)})).await;
    let (keys, per_key) = (20, 25);
    for n in 0..per_key {
        let events: Vec<Value> = (0..keys)
            .map(|key| json!({"id": format!("{key}-{n}"), "type":"t", "key": format!("k{key}"), "data": n}))
            .collect();
        gateway.client.post_json("/v1/tenants/default/events/batch", &Value::from(events)).await.expect(202);
    }
    eventually("everything to be delivered", || async {
        let waiting = gateway.list("/v1/tenants/default/deliveries?state=waiting").await.len();
        if waiting == 0 { Ok(()) } else { Err(format!("{waiting} waiting")) }
    })
    .await;
    assert_eq!(receiver.most_open_of_any_key(), 1, "one in flight per key");
    let mut last: HashMap<String, u64> = HashMap::new();
    for seen in receiver.seen() {
        let (key, seq) = (seen.header("x-key").to_owned(), seen.header("x-seq").parse().unwrap());
        let known = last.entry(key).or_insert(0);
        assert!(seq == *known || seq == *known + 1, "seq {seq} after {known}");
        *known = seq;
    }
    assert!(last.len() == keys && last.values().all(|seq| *seq == per_key));
}

fn fail_once_per_boot(bad: &'static str) -> impl FnMut(&ReceivedRequest) -> Reply + Send {
    move |seen| Reply::Status(if seen.id() == bad { 400 } else { 200 })
}

async fn a_dead_head_blocks_its_lane_until_it_is_replayed_and_then_drains_in_order() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::answering(fail_once_per_boot("b-2")).await;
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url()})).await;
    for n in 1..=5 {
        gateway.send(json!({"id": format!("b-{n}"), "type":"t","key":"k","data":n})).await;
    }
    let dead = gateway.wait_for_state("b-2", "dead").await;
    assert_eq!(waiting_for(&gateway, "b-3").await, "key");
    let lanes = format!("/v1/tenants/default/endpoints/{}/lanes", endpoint["id"].as_str().unwrap());
    let blocked = gateway.list(&format!("{lanes}?blocked=true")).await;
    assert_eq!(
        (blocked.len(), &blocked[0]["key"], &blocked[0]["head"], &blocked[0]["waiting"]),
        (1, &json!("k"), &dead["id"], &json!(3))
    );
    gateway.send(json!({"id":"other","type":"t","key":"j","data":0})).await;
    gateway.wait_for_state("other", "delivered").await;

    receiver.answer_with(|_| Reply::Status(200));
    let path = format!("/v1/tenants/default/dead-letters/{}/replay", dead["id"].as_str().unwrap());
    gateway.client.post(&path, "").await.expect(202);
    gateway.wait_for_state("b-5", "delivered").await;
    let seen = receiver.seen();
    let order: Vec<_> = seen.iter().filter(|seen| seen.header("x-key") == "k").map(|seen| seen.id()).collect();
    assert_eq!(order, ["b-1", "b-2", "b-2", "b-3", "b-4", "b-5"]);
    assert_eq!(gateway.list(&lanes).await.len(), 0, "an empty lane is not listed");
    gateway.client.post(&path, "").await.problem(409, "wrong_state");
}

async fn discarding_a_dead_head_lets_the_lane_move_on_and_keeps_the_cause() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::answering(fail_once_per_boot("d-1")).await;
    gateway.create_endpoint(json!({"url": receiver.url()})).await;
    for n in 1..=3 {
        gateway.send(json!({"id": format!("d-{n}"), "type":"t","key":"k","data":n})).await;
    }
    let dead = gateway.wait_for_state("d-1", "dead").await;
    let path = format!("/v1/tenants/default/dead-letters/{}/discard", dead["id"].as_str().unwrap());
    let discarded = gateway.client.post(&path, "").await.expect(202);
    assert_eq!((&discarded["state"], &discarded["cause"]), (&json!("cancelled"), &json!("refused")));
    gateway.wait_for_state("d-3", "delivered").await;
    // Replaying a passed member keeps its place and holds no one up.
    receiver.answer_with(|_| Reply::Status(200));
    gateway.post_to_delivery(&dead, "replay").await.expect(202);
    gateway.wait_for_state("d-1", "delivered").await;
    assert_eq!(receiver.seen().last().unwrap().header("x-seq"), "1");
}

async fn a_lane_that_skips_its_dead_moves_on_by_itself() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::answering(|seen| Reply::Status(if seen.id().ends_with("-bad") { 400 } else { 200 })).await;
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url(), "on_dead": "skip"})).await;
    for id in ["s-1-bad", "s-2"] {
        gateway.send(json!({"id": id, "type":"t","key":"k","data":1})).await;
    }
    gateway.wait_for_state("s-2", "delivered").await;
    gateway.wait_for_state("s-1-bad", "dead").await;

    let path = format!("/v1/tenants/default/endpoints/{}", endpoint["id"].as_str().unwrap());
    gateway.client.send("PATCH", &path, &[], r#"{"on_dead":"block"}"#).await.unwrap().expect(200);
    for id in ["s-3-bad", "s-4"] {
        gateway.send(json!({"id": id, "type":"t","key":"k","data":1})).await;
    }
    gateway.wait_for_state("s-3-bad", "dead").await;
    assert_eq!(waiting_for(&gateway, "s-4").await, "key");
    gateway.client.send("PATCH", &path, &[], r#"{"on_dead":"skip"}"#).await.unwrap().expect(200);
    gateway.wait_for_state("s-4", "delivered").await;
}

async fn an_endpoint_can_be_one_lane_or_ignore_keys() {
    let gateway = Gateway::start().await;
    let held = Receiver::answering(|_| Reply::Hold(200)).await;
    let ordered = gateway.create_endpoint(json!({"url": held.url(), "ordering": "endpoint"})).await;
    for n in 1..=3 {
        gateway.send(json!({"id": format!("o-{n}"), "type":"t","endpoints":[ordered["id"]],"data":n})).await;
    }
    held.wait_for(1).await;
    assert_eq!(waiting_for(&gateway, "o-2").await, "key");
    held.release();
    let seen = held.wait_for(3).await;
    let places: Vec<_> = seen.iter().map(|seen| (seen.id(), seen.header("x-seq"), seen.header("x-key"))).collect();
    assert_eq!(places, [("o-1", "1", ""), ("o-2", "2", ""), ("o-3", "3", "")]);

    let free = Receiver::answering(|_| Reply::Hold(200)).await;
    let unordered = gateway.create_endpoint(json!({"url": free.url(), "ordering": "none"})).await;
    for n in 1..=3 {
        gateway
            .send(json!({"id": format!("u-{n}"), "type":"t","key":"k","endpoints":[unordered["id"]],"data":n}))
            .await;
    }
    let seen = free.wait_for(3).await;
    assert!(seen.iter().all(|seen| seen.header("x-seq").is_empty()), "all three are open at once, without a place");
    free.release();
}

async fn cancelling_a_lane_member_in_flight_does_not_let_the_next_overlap() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::answering(|_| Reply::Hold(503)).await;
    gateway.create_endpoint(json!({"url": receiver.url(), "retry": eager_retry(9)})).await;
    for n in 1..=2 {
        gateway.send(json!({"id": format!("c-{n}"), "type":"t","key":"k","data":n})).await;
    }
    receiver.wait_for(1).await;
    let head = gateway.delivery_of("c-1").await;
    gateway.post_to_delivery(&head, "cancel").await.expect(202);
    assert_eq!(waiting_for(&gateway, "c-2").await, "key", "the cancelled one is still on the wire");
    receiver.answer_with(|_| Reply::Status(200));
    receiver.release();
    gateway.wait_for_state("c-2", "delivered").await;
    assert_eq!(receiver.most_open("k"), 1);
    assert_eq!(gateway.delivery_of("c-1").await["state"], "cancelled");
}
