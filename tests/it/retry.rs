//! Trying again: what is retried, when, and what the record says about it.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::servers::guard::free_port;
use crate::support::{Gateway, Receiver, Reply, eager_retry, eventually};

for_every_store! {
    a_receiver_that_recovers_gets_the_same_event_with_a_fresh_signature,
    permanent_answers_are_parked_after_one_attempt,
    a_410_disables_the_endpoint_and_holds_what_comes_after,
    a_receiver_that_said_410_is_asked_nothing_more,
    a_410_for_a_cancelled_delivery_disables_the_endpoint_all_the_same,
    attempts_run_out_and_the_dead_letter_tells_the_story,
    retry_now_skips_the_wait_and_cancel_ends_it,
    cancelling_what_is_in_flight_sends_nothing_more_and_an_arrival_still_counts,
    a_cap_is_never_exceeded,
    secrets_rotate_with_an_overlap,
}

async fn a_receiver_that_recovers_gets_the_same_event_with_a_fresh_signature() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::scripted(vec![
        Reply::Status(503),
        Reply::Status(500),
        Reply::With(429, "retry-after", "1".into()),
        Reply::Status(200),
    ])
    .await;
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url(), "retry": eager_retry(10)})).await;
    gateway.send(json!({"id":"pay-1","type":"invoice.paid","data":{"n":1}})).await;
    let seen = receiver.wait_for(4).await;
    assert!(seen[3].began - seen[2].began >= Duration::from_millis(900), "Retry-After is a floor");
    let verifier = standardwebhooks::Webhook::new(endpoint["secret"].as_str().unwrap()).unwrap();
    for (n, seen) in seen.iter().enumerate() {
        assert_eq!((seen.id(), seen.header("webhook-attempt")), ("pay-1", (n + 1).to_string().as_str()));
        verifier.verify(&seen.body, &seen.headers).expect("every attempt verifies");
    }
    let delivery = gateway.wait_for_state("pay-1", "delivered").await;
    let attempts = gateway.attempts_of(&delivery).await;
    let statuses: Vec<_> = attempts.iter().map(|attempt| attempt["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [503, 500, 429, 200]);
    let decision = &attempts[2]["decision"];
    assert_eq!(
        (&decision["verdict"], &decision["rule"], &decision["retry_after"]),
        (&json!("retry"), &json!("429"), &json!("1"))
    );
    assert_eq!(decision["caps"], json!(["Retry-After counts: 1s is more than the 10ms drawn"]));
    assert_eq!(attempts[0]["decision"]["window_ms"], json!([10, 10]));
    assert_eq!(attempts[3]["decision"], json!({"verdict":"delivered","rule":"2xx"}));
}

async fn permanent_answers_are_parked_after_one_attempt() {
    let gateway = Gateway::start().await;
    for (status, cause) in [(400, "refused"), (301, "refused"), (501, "refused"), (422, "refused")] {
        let receiver = Receiver::scripted(vec![Reply::With(status, "location", "http://127.0.0.1:1/".into())]).await;
        let endpoint = gateway.create_endpoint(json!({"url": receiver.url(), "retry": eager_retry(10)})).await;
        let id = format!("perm-{status}");
        gateway.send(json!({"id": id, "type":"a","endpoints":[endpoint["id"]],"data":1})).await;
        let delivery = gateway.wait_for_state(&id, "dead").await;
        assert_eq!((&delivery["cause"], &delivery["attempts"]), (&json!(cause), &json!(1)));
        assert_eq!(receiver.count(), 1);
    }
}

async fn a_410_disables_the_endpoint_and_holds_what_comes_after() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::scripted(vec![Reply::Status(410), Reply::Status(200)]).await;
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url()})).await;
    gateway.send(json!({"id":"gone-1","type":"a","data":1})).await;
    assert_eq!(gateway.wait_for_state("gone-1", "dead").await["cause"], "gone");
    let path = format!("/v1/tenants/default/endpoints/{}", endpoint["id"].as_str().unwrap());
    let shown = gateway.client.get(&path).await.expect(200);
    assert_eq!(
        (&shown["state"], &shown["state_reason"]),
        (&json!("disabled"), &json!("the receiver answered 410 Gone"))
    );
    gateway.send(json!({"id":"gone-2","type":"a","data":1})).await;
    assert_eq!(gateway.delivery_of("gone-2").await["waiting_for"], "disabled");
    gateway.client.post(&format!("{path}/resume"), "").await.expect(200);
    gateway.wait_for_state("gone-2", "delivered").await;
}

async fn a_receiver_that_said_410_is_asked_nothing_more() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::scripted(vec![Reply::Status(410)]).await;
    gateway.create_endpoint(json!({"url": receiver.url(), "max_in_flight": 1})).await;
    let events: Vec<Value> = (0..50).map(|n| json!({"id": format!("left-{n}"), "type":"a","data":n})).collect();
    gateway.client.post_json("/v1/tenants/default/events/batch", &Value::from(events)).await.expect(202);
    gateway.wait_for_state("left-0", "dead").await;
    let held = gateway.list("/v1/tenants/default/deliveries?state=waiting").await;
    assert!(held.len() == 49 && held.iter().all(|delivery| delivery["waiting_for"] == "disabled"), "{}", held.len());
    assert_eq!(receiver.count(), 1);
}

async fn a_410_for_a_cancelled_delivery_disables_the_endpoint_all_the_same() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::answering(|_| Reply::Hold(410)).await;
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url()})).await;
    gateway.send(json!({"id":"c","type":"a","data":1})).await;
    receiver.wait_for(1).await;
    let delivery = gateway.delivery_of("c").await;
    let refused = gateway.post_to_delivery(&delivery, "retry").await.problem(409, "wrong_state");
    assert!(refused["detail"].as_str().unwrap().contains("in flight"), "{refused}");
    let cancelled = gateway.post_to_delivery(&delivery, "cancel").await.expect(202);
    assert_eq!((&cancelled["state"], &cancelled["in_flight"]), (&json!("cancelled"), &json!(true)));
    receiver.release();
    let path = format!("/v1/tenants/default/endpoints/{}", endpoint["id"].as_str().unwrap());
    eventually("the endpoint to be disabled", || async {
        let shown = gateway.client.get(&path).await.expect(200);
        if shown["state"] == "disabled" { Ok(()) } else { Err(shown.to_string()) }
    })
    .await;
    assert_eq!(gateway.delivery_of("c").await["state"], "cancelled");
}

async fn attempts_run_out_and_the_dead_letter_tells_the_story() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::scripted(vec![Reply::Body(500, Bytes::from("x".repeat(10_000)))]).await;
    gateway.create_endpoint(json!({"url": receiver.url(), "retry": eager_retry(3)})).await;
    gateway.send(json!({"id":"doomed","type":"a","data":1})).await;
    let delivery = gateway.wait_for_state("doomed", "dead").await;
    assert_eq!(
        (&delivery["cause"], &delivery["attempts"], &delivery["last_status"]),
        (&json!("exhausted"), &json!(3), &json!(500))
    );
    let attempts = gateway.attempts_of(&delivery).await;
    assert_eq!(attempts.len(), 3);
    assert_eq!(attempts[0]["response_body"].as_str().unwrap().len(), 4_096, "only the beginning is kept");
    assert_eq!(attempts[0]["truncated"], true);
    assert_eq!(attempts[2]["decision"]["caps"], json!(["this was attempt 3 of at most 3"]));
}

/// Answers every connection with these bytes, then waits or closes.
async fn raw_receiver(answer: &'static [u8], stays_open: bool) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                let _ = stream.read(&mut buffer).await;
                let _ = stream.write_all(answer).await;
                if stays_open {
                    let _ = stream.read(&mut buffer).await;
                }
            });
        }
    });
    url
}

#[tokio::test]
async fn failures_without_an_answer_are_told_apart_by_name() {
    let gateway = Gateway::start().await;
    let closed = free_port();
    let cases = [
        ("refused", format!("http://127.0.0.1:{closed}/"), "connection_refused"),
        ("silent", raw_receiver(b"", true).await, "timeout"),
        ("half", raw_receiver(b"HTTP/1.1 200 OK\r\ncontent-le", true).await, "timeout"),
        ("cut", raw_receiver(b"", false).await, "connection_reset"),
        ("garbage", raw_receiver(b"hello there\r\n\r\n", false).await, "malformed_answer"),
        (
            "tls",
            format!(
                "https://{}/",
                raw_receiver(b"not tls", false).await.trim_start_matches("http://").trim_end_matches('/')
            ),
            "tls",
        ),
    ];
    for (name, url, kind) in cases {
        let endpoint = gateway
            .create_endpoint(
                json!({"url": url, "retry": {"max_attempts": 1}, "timeout": {"connect": "2s", "total": "2s"}}),
            )
            .await;
        gateway.send(json!({"id": name, "type":"a","endpoints":[endpoint["id"]],"data":1})).await;
        let delivery = gateway.wait_for_state(name, "dead").await;
        assert_eq!(delivery["last_error"]["kind"], kind, "{name}: {delivery}");
        assert!(!delivery["last_error"]["message"].as_str().unwrap().is_empty());
    }
}

#[tokio::test]
async fn the_head_of_the_answer_decides_however_the_body_goes_on() {
    let gateway = Gateway::start().await;
    // Promises more than it sends, and stays open.
    let url = raw_receiver(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\nbegin", true).await;
    gateway.create_endpoint(json!({"url": url, "timeout": {"connect": "2s", "total": "2s"}})).await;
    gateway.send(json!({"id":"slow-body","type":"a","data":1})).await;
    let delivery = gateway.wait_for_state("slow-body", "delivered").await;
    let attempt = gateway.attempts_of(&delivery).await.remove(0);
    assert_eq!((&attempt["response_body"], &attempt["truncated"]), (&json!("begin"), &json!(true)));
}

async fn retry_now_skips_the_wait_and_cancel_ends_it() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::scripted(vec![Reply::Status(503), Reply::Status(503), Reply::Status(200)]).await;
    gateway.create_endpoint(json!({"url": receiver.url(), "retry": {"schedule": ["1h"], "jitter": "none"}})).await;
    for id in ["impatient", "hopeless"] {
        gateway.send(json!({"id": id, "type":"a","data":1})).await;
    }
    receiver.wait_for(2).await;
    let waiting = |id: &'static str| {
        let gateway = &gateway;
        eventually("the retry to be planned", move || async move {
            let delivery = gateway.delivery_of(id).await;
            let is_planned = delivery["waiting_for"] == "due" && delivery["attempts"] == 1;
            if is_planned { Ok(delivery) } else { Err(delivery.to_string()) }
        })
    };
    let (impatient, hopeless) = (waiting("impatient").await, waiting("hopeless").await);
    assert!(impatient["next_attempt_at"].is_string() && impatient["give_up_at"].is_string());
    gateway.post_to_delivery(&impatient, "retry").await.expect(202);
    gateway.wait_for_state("impatient", "delivered").await;
    gateway.post_to_delivery(&impatient, "retry").await.problem(409, "wrong_state");

    let cancelled = gateway.post_to_delivery(&hopeless, "cancel").await.expect(202);
    assert_eq!((&cancelled["state"], &cancelled["waiting_for"]), (&json!("cancelled"), &Value::Null));
    gateway.post_to_delivery(&hopeless, "cancel").await.problem(409, "wrong_state");
    gateway.post_to_delivery(&hopeless, "replay").await.expect(202);
    gateway.wait_for_state("hopeless", "delivered").await;
    assert_eq!(receiver.count(), 4);
}

async fn cancelling_what_is_in_flight_sends_nothing_more_and_an_arrival_still_counts() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::answering(|seen| Reply::Hold(if seen.id() == "lucky" { 200 } else { 503 })).await;
    gateway.create_endpoint(json!({"url": receiver.url(), "retry": eager_retry(5)})).await;
    for id in ["lucky", "unlucky"] {
        gateway.send(json!({"id": id, "type":"a","data":1})).await;
    }
    receiver.wait_for(2).await;
    for id in ["lucky", "unlucky"] {
        let delivery = gateway.delivery_of(id).await;
        assert_eq!((&delivery["in_flight"], &delivery["waiting_for"]), (&json!(true), &Value::Null));
        gateway.post_to_delivery(&delivery, "cancel").await.expect(202);
    }
    receiver.release();
    gateway.wait_for_state("lucky", "delivered").await;
    let unlucky = eventually("the attempt to be recorded", || async {
        let delivery = gateway.delivery_of("unlucky").await;
        if delivery["attempts"] == 1 { Ok(delivery) } else { Err(delivery.to_string()) }
    })
    .await;
    assert_eq!(unlucky["state"], "cancelled");
    assert_eq!(receiver.count(), 2);
}

async fn a_cap_is_never_exceeded() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::answering(|_| Reply::Hold(200)).await;
    gateway.create_endpoint(json!({"url": receiver.url(), "max_in_flight": 3})).await;
    for n in 0..20 {
        gateway.send(json!({"id": format!("cap-{n}"), "type":"a","data":1})).await;
    }
    receiver.wait_for(3).await;
    let waiting = gateway.list("/v1/tenants/default/deliveries?state=waiting").await;
    assert_eq!(waiting.iter().filter(|delivery| delivery["in_flight"] == true).count(), 3);
    assert_eq!(waiting.iter().filter(|delivery| delivery["waiting_for"] == "slot").count(), 17);
    receiver.release();
    receiver.wait_for(20).await;
    assert_eq!(receiver.most_open(""), 3);
}

async fn secrets_rotate_with_an_overlap() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url()})).await;
    let path = format!("/v1/tenants/default/endpoints/{}/secrets", endpoint["id"].as_str().unwrap());
    let rotated = gateway.client.post(&format!("{path}/rotate"), "").await.expect(201);
    gateway.send(json!({"id":"both","type":"a","data":1})).await;
    let seen = receiver.wait_for(1).await.remove(0);
    assert_eq!(seen.header("webhook-signature").split(' ').count(), 2);
    for secret in [&endpoint["secret"], &rotated["secret"]] {
        standardwebhooks::Webhook::new(secret.as_str().unwrap())
            .unwrap()
            .verify(&seen.body, &seen.headers)
            .expect("old and new verify");
    }
    let listed = gateway.client.get(&path).await.expect(200);
    assert_eq!(listed["data"][0]["secret"], rotated["secret"], "newest first");
    assert!(listed["data"][1]["expires_at"].is_string());
    gateway.client.post(&format!("{path}/rotate"), r#"{"overlap":"0s"}"#).await.expect(201);
    gateway.send(json!({"id":"new","type":"a","data":1})).await;
    assert_eq!(receiver.wait_for(2).await[1].header("webhook-signature").split(' ').count(), 1);
    gateway.client.post(&format!("{path}/rotate"), r#"{"overlap":"8d"}"#).await.problem(422, "invalid_field");
}
