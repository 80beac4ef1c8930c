//! The breaker: an endpoint that keeps failing is left alone, probed with
//! care, and comes back step by step. Nothing is lost or charged meanwhile.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cli::{asked, cli_output};
use crate::support::{Gateway, ReceivedRequest, Receiver, Reply, eager_retry, overlaps, unlimited};

for_every_store! {
    it_opens_after_failures_in_a_row_and_holds_without_using_attempts,
    it_probes_with_patience_and_recovers_step_by_step,
    a_share_of_failures_opens_it_too,
    a_person_opens_and_closes_it_by_hand,
    every_state_of_it_survives_kill_nine,
}

/// How long a receiver that is well works on a request.
const WORK: Duration = Duration::from_millis(5);

/// A breaker that opens after so many failures, for so long.
fn breaker(failures: u32, cooldown: &str) -> Value {
    json!({"consecutive_failures": failures, "cooldown": cooldown, "cooldown_max": "24h"})
}

/// Fails so many times, and is well from then on.
fn failing(times: usize) -> impl FnMut(&ReceivedRequest) -> Reply + Send {
    let mut left = times;
    move |_| match left {
        0 => Reply::After(WORK, 200),
        _ => {
            left -= 1;
            Reply::Status(503)
        }
    }
}

async fn whats(gateway: &Gateway, endpoint: &Value) -> Vec<String> {
    gateway.history(endpoint).await.iter().rev().map(|row| row["what"].as_str().unwrap().to_owned()).collect()
}

fn time(value: &Value) -> jiff::Timestamp {
    value.as_str().unwrap_or_else(|| panic!("{value} is no time")).parse().unwrap()
}

/// Others are served while an endpoint is left alone; whatever was to go out
/// before that has gone out.
async fn others_are_served(gateway: &Gateway, round: &str) {
    let witness = Receiver::start().await;
    let kind = format!("witness.{round}");
    let endpoint = gateway.create_endpoint(json!({"url": witness.url(), "event_types": [kind]})).await;
    for n in 0..10 {
        let id = format!("{round}-{n}");
        gateway.send(json!({"id": id, "type": kind, "data": n})).await;
        gateway.wait_for_state(&id, "delivered").await;
    }
    gateway.drained(&endpoint).await;
}

async fn it_opens_after_failures_in_a_row_and_holds_without_using_attempts() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::answering(|_| Reply::Status(503)).await;
    let settings = json!({
        "url": receiver.url(), "max_in_flight": 1, "retry": eager_retry(50), "event_types": ["t"],
        "breaker": breaker(3, "1h"),
    });
    let endpoint = gateway.create_endpoint(settings).await;
    assert_eq!(endpoint["health"]["breaker"], "closed");
    gateway.send_many("o", "t", 8, |_| None).await;
    let open = gateway.wait_for_breaker(&endpoint, "open").await;
    let health = &open["health"];
    assert_eq!((&health["consecutive_failures"], &health["waiting"]), (&json!(3), &json!(8)));
    assert_eq!(health["reason"], "3 failures in a row; the last was answered 503 Service Unavailable");
    let held_for = time(&health["next_probe_at"]).as_second() - time(&health["since"]).as_second();
    assert!((3_600..=3_961).contains(&held_for), "an hour and up to a tenth: {held_for} s");
    assert!(health["oldest_due_age"].is_string() && !health["oldest_due_at"].is_null(), "{health}");
    assert_eq!(health["max_in_flight_now"], 1);
    assert_eq!(open["state"], "active", "it is left alone, not paused");
    others_are_served(&gateway, "held").await;
    // New ones are held as well.
    gateway.send(json!({"id": "late", "type": "t", "data": 1})).await;
    assert_eq!(gateway.delivery_of("late").await["waiting_for"], "breaker");
    others_are_served(&gateway, "later").await;
    assert_eq!(receiver.count(), 3, "nothing goes out");
    let waiting = gateway.list("/v1/tenants/default/deliveries?state=waiting").await;
    let attempts: u64 = waiting.iter().map(|delivery| delivery["attempts"].as_u64().unwrap()).sum();
    assert_eq!((waiting.len(), attempts), (9, 3), "and no attempt is used");
    assert!(waiting.iter().all(|delivery| delivery["waiting_for"] == "breaker"), "{waiting:?}");
    // A person's word is the probe.
    receiver.answer_with(|_| Reply::Status(200));
    gateway.post_to_delivery(&gateway.delivery_of("late").await, "retry").await.expect(202);
    gateway.wait_for_state("late", "delivered").await;
    gateway.drained(&endpoint).await;
    assert_eq!(receiver.seen()[3].id(), "late");
    assert_eq!(receiver.count(), 12, "its success lets the others go");
    assert_eq!(whats(&gateway, &endpoint).await, ["breaker_opened", "recovered", "breaker_closed"]);
}

async fn it_probes_with_patience_and_recovers_step_by_step() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::answering(failing(5)).await;
    let settings = json!({
        "url": receiver.url(), "max_in_flight": 16, "rate": unlimited(), "retry": eager_retry(50),
        "ordering": "endpoint", "breaker": breaker(3, "200ms"),
    });
    let endpoint = gateway.create_endpoint(settings).await;
    let free = Receiver::answering(failing(5)).await;
    let settings = json!({
        "url": free.url(), "max_in_flight": 16, "rate": unlimited(), "retry": eager_retry(50),
        "ordering": "key", "breaker": breaker(3, "200ms"),
    });
    let keyed = gateway.create_endpoint(settings).await;
    gateway.send_many("p", "t", 200, |n| Some(format!("k{}", n % 50))).await;
    gateway.wait_for_breaker(&endpoint, "open").await;
    gateway.drained(&keyed).await;
    let cli = cli_output(&gateway, &["endpoints", "history", keyed["id"].as_str().unwrap()]).await;
    gateway.drained(&endpoint).await;

    // In a lane its head is the probe, so nothing else was asked until it was well.
    let seen = receiver.seen();
    let ids: Vec<&str> = seen.iter().map(|seen| seen.id()).collect();
    assert!(ids[..6].iter().all(|id| *id == "p-0"), "{:?}", &ids[..6]);
    assert!(ids[5..].iter().map(|id| (*id).to_owned()).eq((0..200).map(|n| format!("p-{n}"))), "in order: {ids:?}");
    // Three failures; then a probe after the cool-down, and twice as long each time.
    for (n, least) in [(3, 200), (4, 400), (5, 800)] {
        let gap = seen[n].began - *seen[n - 1].ended.get().unwrap();
        assert!(gap >= Duration::from_millis(least - 2), "probe {n} came after {gap:?}");
    }
    for (endpoint, receiver) in [(&endpoint, &receiver), (&keyed, &free)] {
        let turns = whats(&gateway, endpoint).await;
        let first: Vec<&str> = turns.iter().map(String::as_str).take_while(|turn| *turn != "recovered").collect();
        assert_eq!(first[0], "breaker_opened");
        assert!(first[1..].iter().all(|turn| *turn == "probe_failed"), "{turns:?}");
        assert_eq!(&turns[first.len()..], ["recovered", "breaker_closed"]);
        assert!(receiver.times_by_id().len() == 200, "nothing is lost");
    }
    assert!(cli.contains("breaker_opened") && cli.contains("failures in a row; the last was answered 503"), "{cli}");
    // No wave: the width doubles no sooner than every half second.
    let seen = free.seen();
    let open = overlaps(&seen);
    // What was on its way when it opened says nothing; the probe came after the cool-down.
    let opened = seen[0].began + Duration::from_millis(150);
    let well = seen.iter().position(|seen| seen.began > opened && is_well(seen)).unwrap();
    let closed = *seen[well].ended.get().unwrap();
    for (n, seen) in seen.iter().enumerate().skip(well + 1) {
        let steps = seen.began.saturating_duration_since(closed).as_millis() / 500;
        let width = 1_usize << steps.min(4);
        assert!(open[n] <= width, "{} open {steps} steps after it closed", open[n]);
    }
    assert!(seen.len() > well + 150 && open.iter().skip(well).max() > Some(&1), "it does widen");
}

/// Whether this took as long as an answer of somebody who is well.
fn is_well(seen: &ReceivedRequest) -> bool {
    seen.ended.get().is_some_and(|ended| *ended - seen.began >= WORK)
}

async fn a_share_of_failures_opens_it_too() {
    let gateway = Gateway::start().await;
    let mut n = 0;
    // Every fifth is fine, so never five failures in a row.
    let receiver = Receiver::answering(move |_| {
        n += 1;
        Reply::Status(if n % 5 == 0 { 200 } else { 500 })
    })
    .await;
    let settings = json!({
        "url": receiver.url(), "max_in_flight": 1, "retry": eager_retry(1),
        "breaker": {"consecutive_failures": 100, "failure_ratio": 0.8, "min_requests": 20},
    });
    let endpoint = gateway.create_endpoint(settings).await;
    // One after the other, and nothing is left to do in between.
    for n in 0..25 {
        gateway.send(json!({"id": format!("s-{n}"), "type": "t", "data": n})).await;
        if gateway.endpoint(&endpoint).await["health"]["breaker"] == "open" {
            break;
        }
        receiver.wait_for(n + 1).await;
    }
    let open = gateway.wait_for_breaker(&endpoint, "open").await;
    let reason = open["health"]["reason"].as_str().unwrap();
    assert!(reason.contains("requests within 60s failed") || reason.contains("requests within 1m failed"), "{reason}");
    assert!((20..=25).contains(&receiver.count()), "{} came", receiver.count());
}

async fn a_person_opens_and_closes_it_by_hand() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url(), "event_types": ["t"]})).await;
    let id = endpoint["id"].as_str().unwrap();
    let opened = asked(&gateway, &["endpoints", "open-breaker", id, "--note", "new database"]).await;
    let health = &opened["health"];
    assert_eq!((&health["breaker"], &health["reason"]), (&json!("open"), &json!("new database")));
    assert_eq!(health["next_probe_at"], Value::Null, "nobody but a person closes it");
    gateway.send_many("h", "t", 5, |_| None).await;
    others_are_served(&gateway, "forced").await;
    assert_eq!(receiver.count(), 0);
    // One that is asked for goes all the same, and its success closes nothing.
    gateway.post_to_delivery(&gateway.delivery_of("h-3").await, "retry").await.expect(202);
    gateway.wait_for_state("h-3", "delivered").await;
    others_are_served(&gateway, "still").await;
    assert_eq!((receiver.count(), receiver.seen()[0].id()), (1, "h-3"));
    let gateway = gateway.killed_and_restarted().await;
    assert_eq!(gateway.endpoint(&endpoint).await["health"]["reason"], "new database");
    others_are_served(&gateway, "again").await;
    assert_eq!(receiver.count(), 1);
    let closed = asked(&gateway, &["endpoints", "close-breaker", id]).await;
    assert_eq!(closed["health"]["breaker"], "ramp");
    gateway.drained(&endpoint).await;
    assert_eq!(receiver.count(), 5);
    let history = asked(&gateway, &["endpoints", "history", id]).await;
    let rows: Vec<_> = history["data"].as_array().unwrap().iter().map(|row| (&row["what"], &row["by"])).collect();
    let person = json!("person");
    assert_eq!(rows, [(&json!("breaker_closed"), &person), (&json!("breaker_opened"), &person)]);

    // With a time it is probed by itself. What it answers is asked with a time
    // that cannot pass meanwhile.
    let opened = gateway.post_to_endpoint(&endpoint, "breaker/open", r#"{"for":"1h"}"#).await;
    let health = &opened["health"];
    let span = time(&health["next_probe_at"]).as_millisecond() - time(&health["since"]).as_millisecond();
    assert_eq!((&health["breaker"], span), (&json!("open"), 3_600_000));
    let asked_at = Instant::now();
    gateway.post_to_endpoint(&endpoint, "breaker/open", r#"{"for":"1s"}"#).await;
    gateway.send_many("f", "t", 3, |_| None).await;
    let seen = receiver.wait_for(8).await;
    assert!(seen[5].began - asked_at >= Duration::from_millis(990), "not before its time");
    let closed = gateway.drained(&endpoint).await;
    assert_ne!(closed["health"]["breaker"], "open");
    for wrong in [r#"{"for":"31d"}"#, r#"{"for":"1ms"}"#] {
        let path = format!("{}/breaker/open", crate::support::path_of(&endpoint));
        gateway.client.post(&path, wrong).await.problem(422, "invalid_field");
    }
}

async fn every_state_of_it_survives_kill_nine() {
    let gateway = Gateway::start().await;
    let once_an_hour = json!({"schedule": ["1h"], "jitter": "none", "max_attempts": 5});
    let make = async |name: &str, receiver: &Receiver, more: Value| {
        let mut settings = json!({"url": receiver.url(), "event_types": [name], "max_in_flight": 64,
            "rate": unlimited(), "retry": once_an_hour});
        settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        gateway.create_endpoint(settings).await
    };
    let bad = Receiver::answering(|_| Reply::Status(503)).await;
    let closed = make("closed", &bad, json!({"breaker": breaker(5, "1h")})).await;
    let open = make("open", &bad, json!({"breaker": breaker(3, "1h")})).await;
    let held = Receiver::scripted(vec![Reply::Status(503), Reply::Hold(200)]).await;
    let half_open = make("half", &held, json!({"breaker": breaker(1, "100ms"), "retry": eager_retry(9)})).await;
    let slow = Receiver::answering(|_| Reply::After(Duration::from_millis(5), 200)).await;
    let ramp = make("ramp", &slow, json!({"max_in_flight": 200})).await;

    gateway.send_many("closed", "closed", 3, |_| None).await;
    gateway.wait_for_endpoint(&closed, "three failures", |found| found["health"]["consecutive_failures"] == 3).await;
    gateway.send_many("open", "open", 5, |_| None).await;
    gateway.wait_for_breaker(&open, "open").await;
    gateway.send(json!({"id": "half-0", "type": "half", "key": "k", "data": 0})).await;
    held.wait_for(2).await;
    for n in 1..20 {
        gateway.send(json!({"id": format!("half-{n}"), "type": "half", "key": "k", "data": n})).await;
    }
    assert_eq!(gateway.endpoint(&half_open).await["health"]["breaker"], "half_open", "its probe is open");
    gateway.post_to_endpoint(&ramp, "breaker/open", "").await;
    gateway.send_many("ramp", "ramp", 1_500, |n| Some(format!("k{}", n % 500))).await;
    gateway.post_to_endpoint(&ramp, "breaker/close", "").await;
    slow.wait_for(20).await;
    let before = (gateway.endpoint(&closed).await, gateway.endpoint(&open).await, gateway.endpoint(&ramp).await);
    assert_eq!(before.2["health"]["breaker"], "ramp");
    let asked_of_bad = bad.count();

    let gateway = gateway.killed_and_restarted().await;
    let after = gateway.endpoint(&closed).await;
    assert_eq!(after["health"]["consecutive_failures"], 3, "{after}");
    // What waits for shards that were taken over is counted beside everything else.
    let waiting = &before.1["health"]["waiting"];
    let is_counted = |found: &Value| found["health"]["waiting"] == *waiting;
    let after = gateway.wait_for_endpoint(&open, "what waits to be counted", is_counted).await;
    for part in ["breaker", "reason", "since", "next_probe_at", "consecutive_failures", "waiting", "failing_since"] {
        assert_eq!(after["health"][part], before.1["health"][part], "{part}");
    }
    let after = gateway.endpoint(&ramp).await;
    assert_eq!(
        (&after["health"]["breaker"], &after["health"]["since"]),
        (&json!("ramp"), &before.2["health"]["since"])
    );
    assert!(after["health"]["max_in_flight_now"].as_u64() < Some(200), "{after}");
    // The probe that was cut off is made again, before anything else.
    let seen = held.wait_for(3).await;
    assert_eq!((seen[1].id(), seen[2].id()), ("half-0", "half-0"));
    assert_eq!(gateway.endpoint(&half_open).await["health"]["breaker"], "half_open");
    held.release();
    gateway.drained(&half_open).await;
    let ids: Vec<String> = held.seen()[2..].iter().map(|seen| seen.id().to_owned()).collect();
    assert!(ids.into_iter().eq((0..20).map(|n| format!("half-{n}"))), "order is kept");
    gateway.drained(&ramp).await;
    assert_eq!(slow.times_by_id().len(), 1_500, "nothing is lost");
    assert_eq!(slow.most_open_of_any_key(), 1);
    // Two more make five.
    assert_eq!(bad.count(), asked_of_bad, "the open one stays open");
    gateway.send_many("more", "closed", 2, |_| None).await;
    gateway.wait_for_breaker(&closed, "open").await;
    assert_eq!(bad.count(), asked_of_bad + 2);
    bad.answer_with(|_| Reply::Status(200));
    gateway.post_to_delivery(&gateway.delivery_of("open-0").await, "retry").await.expect(202);
    gateway.wait_for_state("open-0", "delivered").await;
    gateway.wait_for_breaker(&open, "ramp").await;
}
