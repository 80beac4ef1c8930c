//! What answers mean: every status over the wire, an endpoint's own rules,
//! the receiver's own word, and every form of `Retry-After`.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use posthaste::clock::{Clock, SystemClock};
use serde_json::{Value, json};

use crate::support::{Gateway, Options, RawReceiver, ReceivedRequest, Receiver, Reply, eager_retry, eventually};

for_every_store! {
    a_receiver_that_asks_for_quiet_is_left_alone_over_kill_9_but_for_whom_a_person_sends,
    rules_can_be_changed_taken_back_and_given_to_a_whole_tenant,
    whoever_resumes_an_endpoint_that_is_left_alone_has_it_called_at_once,
}

/// Answers with the status that the event asks for.
fn as_asked(seen: &ReceivedRequest) -> Reply {
    Reply::Status(seen.json()["data"]["status"].as_u64().unwrap() as u16)
}

/// How a delivery with one attempt ends after this status.
fn published(table: &str, status: u16) -> &'static str {
    match (table, status) {
        ("odd", 404) => "exhausted",
        ("odd", 418) => "delivered",
        ("odd", 429 | 500..=599) => "refused",
        ("odd", other) => published("strict", other),
        (_, 200..=299) => "delivered",
        ("lenient", _) => "exhausted",
        (_, 410) => "gone",
        (_, 408 | 429) | ("default", 404 | 409 | 425) => "exhausted",
        ("default", 501) => "refused",
        (_, 500..=599) => "exhausted",
        _ => "refused",
    }
}

#[tokio::test]
async fn every_status_ends_as_the_published_tables_say_with_and_without_overrides() {
    // Nobody who only refuses is paused here, nor left alone for failing.
    let flags = vec!["--pause-refusals=1000".into()];
    let gateway = Gateway::start_with(Options { flags, ..Options::default() }).await;
    let receiver = Receiver::answering(as_asked).await;
    let tables = [
        ("default", json!({})),
        ("strict", json!({"preset": "strict"})),
        ("lenient", json!({"preset": "lenient"})),
        (
            "odd",
            json!({"preset":"strict","404":"retry","5xx":"refuse","418":"deliver","4xx":"refuse","408":"retry","429":"refuse","410":"disable"}),
        ),
    ];
    let mut names = HashMap::new();
    for (table, rules) in &tables {
        let settings = json!({"url": receiver.url(), "status_rules": rules, "retry": {"max_attempts": 1},
                              "breaker": {"enabled": false}});
        let endpoint = gateway.create_endpoint(settings).await;
        names.insert(endpoint["id"].as_str().unwrap().to_owned(), *table);
    }
    // 410 comes last: it ends the endpoint.
    let statuses = (200..=599).filter(|status| *status != 410).chain([410]);
    let events: Vec<Value> =
        statuses.map(|status| json!({"id": format!("s-{status}"), "type":"a", "data": {"status": status}})).collect();
    let (last, others) = events.split_last().unwrap();
    for batch in [others, std::slice::from_ref(last)] {
        gateway.client.post_json("/v1/tenants/default/events/batch", &json!(batch)).await.expect(202);
        eventually("all to have ended", || async {
            let waiting = gateway.list("/v1/tenants/default/deliveries?state=waiting").await;
            if waiting.is_empty() { Ok(()) } else { Err(format!("{} wait", waiting.len())) }
        })
        .await;
    }
    let deliveries = gateway.list("/v1/tenants/default/deliveries").await;
    assert_eq!(deliveries.len(), 400 * tables.len());
    for delivery in deliveries {
        let table = names[delivery["endpoint_id"].as_str().unwrap()];
        let status: u16 = delivery["event_id"].as_str().unwrap()[2..].parse().unwrap();
        let ended = delivery["cause"].as_str().unwrap_or(delivery["state"].as_str().unwrap());
        assert_eq!(ended, published(table, status), "{status} by {table}");
        assert_eq!((&delivery["attempts"], &delivery["last_status"]), (&json!(1), &json!(status)));
    }
}

#[tokio::test]
async fn an_odd_partner_gets_rules_of_its_own() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::answering(as_asked).await;
    let mut ends = Vec::new();
    for (id, rules) in [("table", json!({})), ("retries", json!({"404":"retry"})), ("refuses", json!({"404":"refuse"}))]
    {
        let settings = json!({"url": receiver.url(), "status_rules": rules, "retry": eager_retry(15),
                              "breaker": {"enabled": false}});
        let endpoint = gateway.create_endpoint(settings).await;
        gateway.send(json!({"id": id, "type":"a", "endpoints":[endpoint["id"]], "data": {"status": 404}})).await;
        let delivery = gateway.wait_for_state(id, "dead").await;
        let attempts = gateway.attempts_of(&delivery).await;
        let decision = &attempts[0]["decision"];
        ends.push((delivery["cause"].clone(), delivery["attempts"].clone(), decision["rule_of"].clone()));
    }
    assert_eq!(ends[0], (json!("exhausted"), json!(10), Value::Null), "the table has a shorter budget for it");
    assert_eq!(
        ends[1],
        (json!("exhausted"), json!(15), json!("endpoint")),
        "whoever says retry means the whole budget"
    );
    assert_eq!(ends[2], (json!("refused"), json!(1), json!("endpoint")));
}

async fn rules_can_be_changed_taken_back_and_given_to_a_whole_tenant() {
    let gateway = Gateway::start().await;
    let client = &gateway.client;
    let defaults = json!({"defaults": {"status_rules": {"preset": "lenient", "418": "refuse"}}});
    client.patch_json("/v1/tenants/default", &defaults).await.expect(200);
    let endpoint = gateway.create_endpoint(json!({"url": "http://127.0.0.1:9/"})).await;
    assert_eq!(endpoint["status_rules"], json!({"preset": "lenient", "418": "refuse"}));
    let path = format!("/v1/tenants/default/endpoints/{}", endpoint["id"].as_str().unwrap());
    let patch = json!({"status_rules": {"preset": "strict", "418": null, "5xx": "refuse", "503": "retry"}});
    let patched = client.patch_json(&path, &patch).await.expect(200);
    assert_eq!(patched["status_rules"], json!({"preset": "strict", "503": "retry", "5xx": "refuse"}));
    let patched = client.patch_json(&path, &json!({"status_rules": null})).await.expect(200);
    assert_eq!(patched["status_rules"], json!({"preset": "default"}));
    for (rules, pointer, says) in [
        (json!({"40": "retry"}), "/status_rules/40", "is not a status; use an exact code such as 404"),
        (json!({"6xx": "retry"}), "/status_rules/6xx", "1xx to 5xx"),
        (json!({"404": "ignore"}), "/status_rules/404", "`ignore` is not known here; use one of `deliver`"),
        (json!({"404": 1}), "/status_rules/404", "must be a text"),
        (json!({"preset": "loose"}), "/status_rules/preset", "use one of `default`"),
        (json!(["strict"]), "/status_rules", "status_rules must be an object, such as {\"preset\": \"default\"}"),
    ] {
        let settings = json!({"url": "http://127.0.0.1:9/", "status_rules": rules});
        let refused = client.post_json("/v1/tenants/default/endpoints", &settings).await;
        let problem = refused.problem(422, "invalid_field");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(says), "{problem}");
    }
    let twice = br#"{"status_rules":{"404":"retry","404":"refuse"}}"#;
    let problem = client.send("PATCH", &path, &[], &twice[..]).await.unwrap().problem(422, "invalid_field");
    assert_eq!(problem["errors"][0]["pointer"], "/status_rules/404", "{problem}");
}

#[tokio::test]
async fn the_receiver_can_stop_a_delivery_or_itself() {
    let gateway = Gateway::start().await;
    for (id, status, word, ended, state) in [
        ("abort", 503, "abort", "refused", "active"),
        ("disable", 503, "disable", "gone", "disabled"),
        ("arrived", 200, "disable", "delivered", "disabled"),
        ("no-use", 204, "abort", "delivered", "active"),
    ] {
        let receiver = Receiver::scripted(vec![Reply::With(status, "webhook-delivery", word.into())]).await;
        let endpoint = gateway.create_endpoint(json!({"url": receiver.url()})).await;
        gateway.send(json!({"id": id, "type":"a", "endpoints":[endpoint["id"]], "data": 1})).await;
        let delivery = gateway.wait_for_state(id, if ended == "delivered" { ended } else { "dead" }).await;
        assert_eq!(delivery["cause"].as_str().unwrap_or("delivered"), ended);
        assert_eq!(delivery["attempts"], 1);
        let path = format!("/v1/tenants/default/endpoints/{}", endpoint["id"].as_str().unwrap());
        let shown = gateway.client.get(&path).await.expect(200);
        assert_eq!(shown["state"], state, "{id}");
        if state == "disabled" {
            assert_eq!(shown["state_reason"], "the receiver answered with webhook-delivery: disable");
        }
    }
}

fn at(value: &Value) -> Timestamp {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a time")).parse().unwrap()
}

#[tokio::test]
async fn every_form_of_retry_after_is_honoured_or_ignored_as_published() {
    let gateway = Gateway::start().await;
    let in_five_minutes = SystemClock.now() + Duration::from_secs(300);
    let date: jiff::Zoned = in_five_minutes.to_zoned(jiff::tz::TimeZone::UTC);
    let imf = date.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let rfc850 = date.strftime("%A, %d-%b-%y %H:%M:%S GMT").to_string();
    let asctime = date.strftime("%a %b %e %H:%M:%S %Y").to_string();
    // The policy waits 10s, or 20s for a 429 that says nothing usable.
    let forms: [(u16, &str, i64); 17] = [
        (503, "120", 120),
        (429, "120", 120),
        (500, "90", 90),
        (408, "90", 90),
        (404, "90", 90),
        (503, "5", 10),
        (429, "0", 10),
        (503, &imf, 300),
        (503, &rfc850, 300),
        (503, &asctime, 300),
        (429, "Wed, 21 Oct 2015 07:28:00 GMT", 20),
        (503, "999999999999999999999", 3_600),
        (429, "-30", 20),
        (429, "30.5", 31),
        (429, "soon", 20),
        (503, "soon", 10),
        (429, "", 20),
    ];
    for (n, (status, header, seconds)) in forms.iter().enumerate() {
        let receiver = Receiver::scripted(vec![Reply::With(*status, "retry-after", (*header).to_owned())]).await;
        let retry = json!({"schedule": ["10s"], "jitter": "none", "retry_after_max": "1h"});
        let endpoint = gateway.create_endpoint(json!({"url": receiver.url(), "retry": retry})).await;
        let id = format!("form-{n}");
        gateway.send(json!({"id": id, "type":"a", "endpoints":[endpoint["id"]], "data": 1})).await;
        receiver.wait_for(1).await;
        let delivery = eventually("the answer to be recorded", || async {
            let delivery = gateway.delivery_of(&id).await;
            // It is in flight until its dispatcher has heard that the answer is recorded.
            let is_recorded = delivery["attempts"] == 1 && delivery["next_attempt_at"].is_string();
            if is_recorded { Ok(delivery) } else { Err(delivery.to_string()) }
        })
        .await;
        let attempt = gateway.attempts_of(&delivery).await.remove(0);
        let waits = at(&delivery["next_attempt_at"]).duration_since(at(&attempt["started_at"])).as_secs();
        // A date is whole seconds, and the answer takes a moment.
        assert!((seconds - 3..=seconds + 3).contains(&waits), "{status} {header:?}: waits {waits}s, not {seconds}s");
        assert_eq!(attempt["decision"]["retry_after"], *header);
    }
}

#[tokio::test]
async fn of_several_headers_the_one_that_asks_for_most_counts() {
    let gateway = Gateway::start().await;
    let padding: String = (0..40).map(|n| format!("x-pad-{n}: {}\r\n", "y".repeat(60))).collect();
    let head =
        format!("HTTP/1.1 503 Busy\r\n{padding}retry-after: soon\r\nretry-after: 200\r\nretry-after: 100\r\n\r\n");
    let busy = RawReceiver::answering(head).await;
    let endpoint = gateway.create_endpoint(json!({"url": busy.url("http"), "retry": {"schedule": ["10s"]}})).await;
    gateway.send(json!({"id":"busy","type":"a","endpoints":[endpoint["id"]],"data":1})).await;
    let delivery = eventually("the answer to be recorded", || async {
        let delivery = gateway.delivery_of("busy").await;
        let is_recorded = delivery["attempts"] == 1 && delivery["next_attempt_at"].is_string();
        if is_recorded { Ok(delivery) } else { Err(delivery.to_string()) }
    })
    .await;
    let attempt = gateway.attempts_of(&delivery).await.remove(0);
    assert_eq!(attempt["decision"]["retry_after"], "soon, 200, 100");
    let waits = at(&delivery["next_attempt_at"]).duration_since(at(&attempt["started_at"])).as_secs();
    assert!((199..=203).contains(&waits), "{waits}");
    let head = format!("HTTP/1.1 503 No\r\n{padding}webhook-delivery: later\r\nwebhook-delivery: abort\r\n\r\n");
    let done = RawReceiver::answering(head).await;
    let endpoint = gateway.create_endpoint(json!({"url": done.url("http")})).await;
    gateway.send(json!({"id":"done","type":"a","endpoints":[endpoint["id"]],"data":1})).await;
    assert_eq!(gateway.wait_for_state("done", "dead").await["cause"], "refused");
}

#[tokio::test]
async fn a_retry_after_past_the_give_up_time_ends_the_delivery_at_once() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::scripted(vec![Reply::With(503, "retry-after", "7200".into())]).await;
    let retry = json!({"schedule": ["10s"], "max_age": "1h"});
    gateway.create_endpoint(json!({"url": receiver.url(), "retry": retry})).await;
    gateway.send(json!({"id":"late","type":"a","data":1})).await;
    let delivery = gateway.wait_for_state("late", "dead").await;
    assert_eq!((&delivery["cause"], &delivery["attempts"]), (&json!("expired"), &json!(1)));
}

async fn a_receiver_that_asks_for_quiet_is_left_alone_over_kill_9_but_for_whom_a_person_sends() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::scripted(vec![Reply::With(429, "retry-after", "3600".into()), Reply::Status(200)]).await;
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url()})).await;
    let path = format!("/v1/tenants/default/endpoints/{}", endpoint["id"].as_str().unwrap());
    gateway.send(json!({"id":"told","type":"a","data":1})).await;
    let until = eventually("the endpoint to be left alone", || async {
        let shown = gateway.client.get(&path).await.expect(200);
        if shown["backpressure_until"].is_null() {
            Err(shown.to_string())
        } else {
            Ok(at(&shown["backpressure_until"]))
        }
    })
    .await;
    let held: Vec<Value> = (0..20).map(|n| json!({"id": format!("held-{n}"), "type":"a","data":n})).collect();
    gateway.client.post_json("/v1/tenants/default/events/batch", &json!(held)).await.expect(202);
    let waiting = gateway.delivery_of("held-7").await;
    assert_eq!((&waiting["waiting_for"], at(&waiting["next_attempt_at"])), (&json!("backpressure"), until));
    let mut gateway = gateway;
    gateway.kill().await;
    let gateway = gateway.restart().await;
    gateway.send(json!({"id":"new","type":"a","data":1})).await;
    for id in ["held-0", "new"] {
        assert_eq!(gateway.delivery_of(id).await["waiting_for"], "backpressure", "{id}");
    }
    let chosen = gateway.delivery_of("held-3").await;
    gateway.post_to_delivery(&chosen, "retry").await.expect(202);
    gateway.wait_for_state("held-3", "delivered").await;
    assert_eq!(receiver.count(), 2, "the one that was told, and the one a person sent");
    // Another URL is another receiver.
    let elsewhere = Receiver::start().await;
    let moved = gateway.client.patch_json(&path, &json!({"url": elsewhere.url()})).await.expect(200);
    assert_eq!(moved["backpressure_until"], Value::Null);
    gateway.wait_for_state("new", "delivered").await;
    assert_eq!(elsewhere.wait_for(20).await.len(), 20);
}

#[tokio::test]
async fn what_the_old_receiver_says_is_not_held_against_the_new_one() {
    let gateway = Gateway::start().await;
    for (n, status, word) in [(1, 503, "retry-after"), (2, 410, "x-nothing")] {
        let old = Receiver::answering(move |_| Reply::HoldWith(status, word, "3600".into())).await;
        let new = Receiver::start().await;
        let endpoint = gateway.create_endpoint(json!({"url": old.url()})).await;
        let path = format!("/v1/tenants/default/endpoints/{}", endpoint["id"].as_str().unwrap());
        let send = |id: String| gateway.send(json!({"id": id, "type":"a", "endpoints":[endpoint["id"]], "data":1}));
        send(format!("in-flight-{n}")).await;
        old.wait_for(1).await;
        gateway.client.patch_json(&path, &json!({"url": new.url()})).await.expect(200);
        old.release();
        let told = eventually("the old receiver's answer to be recorded", || async {
            let delivery = gateway.delivery_of(&format!("in-flight-{n}")).await;
            if delivery["attempts"] == 1 { Ok(delivery) } else { Err(delivery.to_string()) }
        })
        .await;
        assert_eq!(
            gateway.attempts_of(&told).await[0]["url"],
            old.url(),
            "where it was sent, and not where it would be now"
        );
        let shown = gateway.client.get(&path).await.expect(200);
        assert_eq!((&shown["state"], &shown["backpressure_until"]), (&json!("active"), &Value::Null), "{status}");
        send(format!("new-{n}")).await;
        gateway.wait_for_state(&format!("new-{n}"), "delivered").await;
    }
}

async fn whoever_resumes_an_endpoint_that_is_left_alone_has_it_called_at_once() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::scripted(vec![Reply::With(503, "retry-after", "3600".into()), Reply::Status(200)]).await;
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url()})).await;
    let path = format!("/v1/tenants/default/endpoints/{}", endpoint["id"].as_str().unwrap());
    gateway.send(json!({"id":"told","type":"a","data":1})).await;
    eventually("the endpoint to be left alone", || async {
        let shown = gateway.client.get(&path).await.expect(200);
        if shown["backpressure_until"].is_null() { Err(shown.to_string()) } else { Ok(()) }
    })
    .await;
    gateway.send(json!({"id":"held","type":"a","data":1})).await;
    assert_eq!(gateway.delivery_of("held").await["waiting_for"], "backpressure");
    let resumed = gateway.client.post(&format!("{path}/resume"), "").await.expect(200);
    assert_eq!(resumed["backpressure_until"], Value::Null);
    gateway.wait_for_state("held", "delivered").await;
    assert_eq!(gateway.delivery_of("told").await["waiting_for"], "due", "its own wait is not the endpoint's");
}

#[tokio::test]
async fn deliveries_come_back_when_the_receiver_said_they_may() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::scripted(vec![Reply::With(503, "retry-after", "1".into()), Reply::Status(200)]).await;
    gateway.create_endpoint(json!({"url": receiver.url(), "max_in_flight": 1, "retry": eager_retry(5)})).await;
    let events: Vec<Value> = (0..50).map(|n| json!({"id": format!("q-{n}"), "type":"a","data":n})).collect();
    gateway.client.post_json("/v1/tenants/default/events/batch", &json!(events)).await.expect(202);
    let seen = receiver.wait_for(51).await;
    let first = seen[0].began;
    let early = seen[1..].iter().filter(|seen| seen.began - first < Duration::from_millis(990)).count();
    assert_eq!(early, 0, "of the 50 that came after it");
    gateway.wait_for_state("q-49", "delivered").await;
}
