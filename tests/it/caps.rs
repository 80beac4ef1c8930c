//! Caps: never more requests open at once than an endpoint, a host or the
//! gateway allows, also while that is being changed.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Gateway, Options, Receiver, Reply, eager_retry, eventually, overlaps, unlimited};

for_every_store! {
    a_cap_is_kept_while_it_is_changed_again_and_again,
    pausing_and_resuming_under_load_in_a_loop_loses_nothing_and_keeps_cap_and_order,
    the_gateway_never_has_more_open_than_it_may,
    after_a_delete_nothing_more_is_asked_of_the_receiver,
}

/// How long a receiver works on a request.
const WORK: Duration = Duration::from_millis(15);

/// A stretch of time under one cap: how many requests had come when the
/// change was in force, and when the next change was asked for.
struct CapPeriod {
    before: usize,
    cap: usize,
    from: usize,
    until: usize,
}

async fn a_cap_is_kept_while_it_is_changed_again_and_again() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::answering(|_| Reply::After(WORK, 200)).await;
    let settings = json!({"url": receiver.url(), "max_in_flight": 10, "rate": unlimited()});
    let endpoint = gateway.create_endpoint(settings).await;
    gateway.send_many("c", "t", 700, |_| None).await;
    let mut stretches = Vec::new();
    let (mut before, mut from) = (10, 0);
    for cap in [10, 3, 7, 1, 20] {
        gateway.patch(&endpoint, json!({"max_in_flight": cap})).await;
        from = receiver.count().max(from);
        let until = receiver.wait_for(from + before + 40).await.len();
        stretches.push(CapPeriod { before, cap, from, until });
        before = cap;
    }
    receiver.wait_for(700).await;
    gateway.drained(&endpoint).await;
    let seen = receiver.seen();
    let overlaps = overlaps(&seen);
    for CapPeriod { before, cap, from, until } in stretches {
        // What was on its way when the cap changed is not called back.
        let most = *overlaps[from + before..until].iter().max().unwrap();
        assert!(most <= cap, "{most} open under a cap of {cap}: {:?}", &overlaps[from..until]);
        assert!(most == cap || before > cap, "a cap of {cap} is used: {:?}", &overlaps[from..until]);
    }
    assert_eq!(receiver.most_open(""), 20, "and never more than the largest");
    assert!(receiver.times_by_id().values().all(|times| *times == 1));
}

async fn pausing_and_resuming_under_load_in_a_loop_loses_nothing_and_keeps_cap_and_order() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::answering(|_| Reply::After(Duration::from_millis(3), 200)).await;
    let other = Receiver::start().await;
    let settings = json!({"url": receiver.url(), "max_in_flight": 4, "rate": unlimited(), "event_types": ["load"]});
    let endpoint = gateway.create_endpoint(settings).await;
    gateway.create_endpoint(json!({"url": other.url(), "event_types": ["other"]})).await;
    // A lane keeps its order, and some have none.
    gateway.send_many("l", "load", 1_000, |n| (n % 3 > 0).then(|| format!("k{}", n % 20))).await;
    for round in 0..5 {
        receiver.wait_for(receiver.count() + 40).await;
        let paused = gateway.post_to_endpoint(&endpoint, "pause", r#"{"note":"a moment"}"#).await;
        let at_pause = receiver.count();
        assert_eq!((&paused["state"], &paused["state_by"]), (&json!("paused"), &json!("person")));
        eventually("what was on its way to be over", || async {
            let held = gateway.list("/v1/tenants/default/deliveries?state=waiting").await;
            let is_held = held.iter().all(|delivery| delivery["waiting_for"] == "pause");
            if is_held { Ok(()) } else { Err(format!("{} wait", held.len())) }
        })
        .await;
        let at_rest = receiver.count();
        assert!(at_rest <= at_pause + 4, "{at_rest} came, {at_pause} before the pause");
        let id = format!("other-{round}");
        gateway.send(json!({"id": id, "type": "other", "data": 1})).await;
        gateway.wait_for_state(&id, "delivered").await;
        assert_eq!(receiver.count(), at_rest, "nothing starts while it is paused");
        let asked = Instant::now();
        let resumed = gateway.post_to_endpoint(&endpoint, "resume", "").await;
        assert_eq!((&resumed["state"], &resumed["health"]["breaker"]), (&json!("active"), &json!("ramp")));
        let seen = receiver.wait_for(at_rest + 10).await;
        let first: Vec<usize> = overlaps(&seen)[at_rest..]
            .iter()
            .zip(&seen[at_rest..])
            .filter(|(_, seen)| seen.began < asked + Duration::from_millis(500))
            .map(|(open, _)| *open)
            .collect();
        assert!(first.iter().all(|open| *open == 1), "it goes on gently, one at a time first: {first:?}");
    }
    gateway.drained(&endpoint).await;
    let seen = receiver.seen();
    assert_eq!((seen.len(), receiver.times_by_id().len()), (1_000, 1_000), "nothing is lost, nothing sent twice");
    assert!(overlaps(&seen).into_iter().all(|open| open <= 4));
    assert_eq!(receiver.most_open_of_any_key(), 1);
    for key in 0..20 {
        let key = format!("k{key}");
        let places: Vec<u64> = seen
            .iter()
            .filter(|seen| seen.header("x-key") == key)
            .map(|seen| seen.header("x-seq").parse().unwrap())
            .collect();
        assert!(places.iter().copied().eq(1..=places.len() as u64), "{key}: {places:?}");
    }
}

#[tokio::test]
async fn endpoints_on_one_host_share_what_the_host_may_have_open() {
    let gateway = Gateway::start_with(Options::flags(&["--max-in-flight-per-host", "3"])).await;
    let receiver = Receiver::answering(|_| Reply::After(WORK, 200)).await;
    let elsewhere = Receiver::answering(|_| Reply::Hold(200)).await;
    for path in ["one", "two"] {
        let url = format!("http://{}/{path}", receiver.address);
        gateway.create_endpoint(json!({"url": url, "rate": unlimited(), "event_types": ["t"]})).await;
    }
    let other = json!({"url": elsewhere.url(), "event_types": ["t"], "rate": unlimited()});
    gateway.create_endpoint(other).await;
    gateway.send_many("h", "t", 60, |_| None).await;
    let seen = receiver.wait_for(120).await;
    assert_eq!(overlaps(&seen).into_iter().max(), Some(3), "all that is allowed, and no more");
    for path in ["/one", "/two"] {
        assert_eq!(seen.iter().filter(|seen| seen.path == path).count(), 60, "both have their turns");
    }
    assert_eq!(elsewhere.most_open(""), 3, "another port is another host");
    elsewhere.release();
    elsewhere.wait_for(60).await;
}

async fn the_gateway_never_has_more_open_than_it_may() {
    let gateway = Gateway::start_with(Options::flags(&["--max-in-flight", "5"])).await;
    let receiver = Receiver::answering(|_| Reply::After(WORK, 200)).await;
    for n in 0..4 {
        let url = format!("http://{}/{n}", receiver.address);
        gateway.create_endpoint(json!({"url": url, "rate": unlimited()})).await;
    }
    gateway.send_many("g", "t", 30, |_| None).await;
    let seen = receiver.wait_for(120).await;
    assert_eq!(overlaps(&seen).into_iter().max(), Some(5));
}

async fn after_a_delete_nothing_more_is_asked_of_the_receiver() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::answering(|_| Reply::Hold(503)).await;
    let witness = Receiver::start().await;
    gateway.client.send("PUT", "/v1/tenants/acme", &[], r#"{"name":"Acme"}"#).await.unwrap();
    let settings = json!({"url": receiver.url(), "max_in_flight": 3, "event_types": ["t"], "retry": eager_retry(50)});
    let ours = gateway.create_endpoint(settings.clone()).await;
    let theirs = gateway.client.post_json("/v1/tenants/acme/endpoints", &settings).await.expect(201);
    gateway.create_endpoint(json!({"url": witness.url(), "event_types": ["later"]})).await;
    gateway.send_many("d", "t", 50, |_| None).await;
    let events: Vec<_> = (0..50).map(|n| json!({"id": format!("a-{n}"), "type": "t", "data": n})).collect();
    gateway.client.post_json("/v1/tenants/acme/events/batch", &json!(events)).await.expect(202);
    receiver.wait_for(6).await;
    let delete = async |path: &str| gateway.client.send("DELETE", path, &[], "").await.unwrap().expect(204);
    delete(&crate::support::path_of(&ours)).await;
    delete("/v1/tenants/acme").await;
    // The open ones end, and what waited has room and would be tried again.
    receiver.answer_with(|_| Reply::Status(200));
    receiver.release();
    for n in 0..20 {
        let id = format!("later-{n}");
        gateway.send(json!({"id": id, "type": "later", "data": n})).await;
        gateway.wait_for_state(&id, "delivered").await;
    }
    assert_eq!(receiver.count(), 6, "only what was open when they were deleted");
    eventually("what waited to be cancelled", || async {
        let found = gateway.list("/v1/tenants/default/deliveries?state=cancelled").await.len();
        if found == 50 { Ok(()) } else { Err(format!("{found} are")) }
    })
    .await;
    gateway.client.get(&crate::support::path_of(&theirs)).await.problem(404, "not_found");
}

#[tokio::test]
async fn connections_are_not_kept_beyond_a_bound_over_all_hosts() {
    let flags = vec!["--max-in-flight=4".into()];
    let gateway = Gateway::start_with(Options { flags, ..Options::default() }).await;
    let mut wishes = Vec::new();
    // One host after the other; each connection would be kept for a while.
    for n in 0..10 {
        let receiver = Receiver::start().await;
        let endpoint =
            gateway.create_endpoint(json!({"url": receiver.url(), "event_types": [format!("to.n{n}")]})).await;
        gateway.send(json!({"id": format!("s-{n}"), "type": format!("to.n{n}"), "data": n})).await;
        let seen = receiver.wait_for(1).await;
        gateway.wait_for_state(&format!("s-{n}"), "delivered").await;
        wishes.push((seen[0].header("connection").to_owned(), receiver, endpoint));
    }
    let closed: Vec<bool> = wishes.iter().map(|(wish, ..)| wish == "close").collect();
    assert_eq!(closed[..4], [false; 4], "so many are kept");
    assert_eq!(closed[4..], [true; 6], "and no more");
}
