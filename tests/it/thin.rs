//! Thin events: the receiver is sent a link and fetches the rest with it; and
//! the other shapes that a body can have.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};

use crate::servers::guard::free_port;
use crate::support::{
    Answer, CapturedOutput, Client, Gateway, Options, Receiver, Reply, eager_retry, eventually, path_of,
};

for_every_store! {
    a_thin_event_is_fetched_with_the_link_it_carries,
    the_body_of_a_thin_event_stays_the_same_under_another_public_url,
    a_past_event_is_a_link_too_and_stays_the_same,
    a_link_that_was_changed_is_nobodys,
    a_link_ends_with_the_data_and_with_the_endpoint,
    a_link_is_the_same_after_the_master_key_was_replaced,
    only_what_is_large_is_sent_thin,
    a_link_is_followed_so_often_and_no_more_and_every_time_is_logged,
}

/// A gateway that receivers can reach, and what it logs.
async fn reachable() -> (Gateway, CapturedOutput) {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let printed = CapturedOutput::default();
    let flags = ["--public-url", &format!("http://{listen}/"), "--log", "info"].map(str::to_owned).to_vec();
    let options = Options { flags, listen: Some(listen), output: Some(printed.clone()), ..Options::default() };
    (Gateway::start_with(options).await, printed)
}

/// A client without a token.
fn receivers_client(gateway: &Gateway) -> Client {
    Client::new(gateway.address, "")
}

/// The path of a thin event's link.
fn link(gateway: &Gateway, body: &Value) -> String {
    let url = body["data_url"].as_str().unwrap_or_else(|| panic!("{body} has no data_url"));
    let path = url.strip_prefix(&format!("http://{}", gateway.address));
    path.unwrap_or_else(|| panic!("{url} does not lead to {}", gateway.address)).to_owned()
}

async fn follow(gateway: &Gateway, path: &str) -> Answer {
    receivers_client(gateway).get(path).await
}

/// Sends one event to a thin endpoint: the link it was sent, and the delivery.
async fn sent_thin(gateway: &Gateway, receiver: &Receiver, id: &str) -> (String, Value) {
    let before = receiver.count();
    gateway.send(json!({"id": id, "type": "t", "data": {"for": id}})).await;
    let seen = receiver.wait_for(before + 1).await.pop().unwrap();
    assert_eq!(seen.id(), id);
    (link(gateway, &seen.json()), gateway.wait_for_state(id, "delivered").await)
}

async fn a_thin_event_is_fetched_with_the_link_it_carries() {
    let (gateway, _) = reachable().await;
    let receiver = Receiver::scripted(vec![Reply::Status(503), Reply::Status(200)]).await;
    let settings = json!({"url": receiver.url(), "format": "thin", "retry": eager_retry(5)});
    gateway.create_endpoint(settings).await;
    let data = r#"{ "größe":1.10, "a":1,"a":2}"#;
    let event =
        format!(r#"{{"id":"one","type":"invoice.paid","key":"k","timestamp":"2024-01-02T03:04:05Z","data":{data}}}"#);
    gateway.client.post("/v1/tenants/default/events", event).await.expect(202);
    let delivery = gateway.wait_for_state("one", "delivered").await;
    assert_eq!(delivery["format"], "thin");
    let seen = receiver.wait_for(2).await;
    assert_eq!(seen[0].body, seen[1].body, "the body is the same on every attempt");
    let body = seen[0].json();
    let names: Vec<&String> = body.as_object().unwrap().keys().collect();
    assert_eq!(names, ["data_url", "id", "timestamp", "type"]);
    assert_eq!(
        (&body["id"], &body["type"], &body["timestamp"]),
        (&json!("one"), &json!("invoice.paid"), &json!("2024-01-02T03:04:05Z"))
    );
    assert_eq!((seen[0].header("content-type"), seen[0].header("x-seq")), ("application/json", "1"));

    let path = link(&gateway, &body);
    let fetched = follow(&gateway, &path).await;
    assert_eq!(fetched.status, 200);
    assert_eq!(fetched.headers["content-type"], "application/json");
    assert_eq!(fetched.headers["cache-control"], "private, no-store");
    let whole = format!(
        r#"{{"id":"one","type":"invoice.paid","timestamp":"2024-01-02T03:04:05Z","key":"k","seq":1,"tenant":"default","data":{data}}}"#
    );
    assert_eq!(fetched.body, whole, "the event as an envelope, byte for byte");
    let head = receivers_client(&gateway).send("HEAD", &path, &[], "").await.unwrap();
    assert_eq!((head.status, head.body.len()), (200, 0));
    receivers_client(&gateway).send("POST", &path, &[], "").await.unwrap().problem(405, "method_not_allowed");

    // The link outlives a crash, and a replay sends the same.
    let gateway = gateway.killed_and_restarted().await;
    assert_eq!(follow(&gateway, &path).await.body, whole);
    gateway.post_to_delivery(&delivery, "replay").await.expect(202);
    assert_eq!(receiver.wait_for(3).await[2].body, seen[0].body);
}

async fn the_body_of_a_thin_event_stays_the_same_under_another_public_url() {
    let (gateway, _) = reachable().await;
    let receiver = Receiver::scripted(vec![Reply::Status(503), Reply::Status(200)]).await;
    let settings = json!({"url": receiver.url(), "format": "thin", "retry": {"schedule": ["1h"]}});
    gateway.create_endpoint(settings).await;
    gateway.send(json!({"id": "one", "type": "t", "data": 1})).await;
    receiver.wait_for(1).await;
    eventually("the first attempt to be recorded", || async {
        let delivery = gateway.delivery_of("one").await;
        if delivery["attempts"] == 1 { Ok(()) } else { Err(delivery.to_string()) }
    })
    .await;
    let gateway = gateway.restart_with_flag("--public-url", "http://elsewhere.example:8400/hooks/").await;
    let delivery = gateway.delivery_of("one").await;
    gateway.post_to_delivery(&delivery, "retry").await.expect(202);
    let seen = receiver.wait_for(2).await;
    assert_eq!(seen[0].body, seen[1].body, "what was promised once is sent again byte for byte");
    let delivery = gateway.wait_for_state("one", "delivered").await;
    follow(&gateway, &link(&gateway, &seen[1].json())).await.expect(200);
    gateway.post_to_delivery(&delivery, "replay").await.expect(202);
    assert_eq!(receiver.wait_for(3).await[2].body, seen[0].body);

    // What is accepted from now on has the new address.
    gateway.send(json!({"id": "two", "type": "t", "data": 2})).await;
    let later = receiver.wait_for(4).await[3].json();
    let url = later["data_url"].as_str().unwrap();
    assert!(url.starts_with("http://elsewhere.example:8400/hooks/"), "{url}");
}

async fn a_past_event_is_a_link_too_and_stays_the_same() {
    let (gateway, _) = reachable().await;
    let (whole, receiver) =
        (Receiver::start().await, Receiver::scripted(vec![Reply::Status(503), Reply::Status(200)]).await);
    let first = gateway.create_endpoint(json!({"url": whole.url()})).await;
    gateway.send(json!({"id": "one", "type": "t", "data": {"private": 1}})).await;
    gateway.wait_for_state("one", "delivered").await;
    let settings = json!({"url": receiver.url(), "format": "thin", "retry": eager_retry(5)});
    let thin = gateway.create_endpoint(settings).await;
    let backfill = json!({"kind": "backfill", "filter": {"endpoints": [thin["id"]]}});
    gateway.client.post_json("/v1/tenants/default/jobs", &backfill).await.expect(202);
    let seen = receiver.wait_for(2).await;
    assert!(!seen[0].json().to_string().contains("private"), "{}", seen[0].json());
    assert_eq!(seen[0].body, seen[1].body, "on every attempt");
    let delivered_to = async |gateway: &Gateway, endpoint: &Value| {
        let path = format!("/v1/tenants/default/deliveries?endpoint={}", endpoint["id"].as_str().unwrap());
        let found = gateway.client.get(&path).await.expect(200)["data"][0].clone();
        if found["state"] == "delivered" { Ok(found) } else { Err(found.to_string()) }
    };
    eventually("the past event to be delivered", || delivered_to(&gateway, &thin)).await;
    follow(&gateway, &link(&gateway, &seen[0].json())).await.expect(200);

    let gateway = gateway.restart_with_flag("--public-url", "http://elsewhere.example:8400/").await;
    let delivery = delivered_to(&gateway, &thin).await.unwrap();
    gateway.post_to_delivery(&delivery, "replay").await.expect(202);
    assert_eq!(receiver.wait_for(3).await[2].body, seen[0].body, "under another public URL");
    let delivery = delivered_to(&gateway, &first).await.unwrap();
    gateway.post_to_delivery(&delivery, "replay").await.expect(202);
    let again = whole.wait_for(2).await;
    assert_eq!(again[0].body, again[1].body, "those who got it before get the same as before");
}

async fn a_link_that_was_changed_is_nobodys() {
    let (gateway, printed) = reachable().await;
    let receiver = Receiver::start().await;
    gateway.create_endpoint(json!({"url": receiver.url(), "format": "thin"})).await;
    let (one, first) = sent_thin(&gateway, &receiver, "one").await;
    let (two, second) = sent_thin(&gateway, &receiver, "two").await;
    gateway.client.send("PUT", "/v1/tenants/other", &[], "{}").await.unwrap().expect(201);
    let (id_of_one, id_of_two) = (first["id"].as_str().unwrap(), second["id"].as_str().unwrap());
    let (path, signature) = one.split_once("?signature=").unwrap();
    let foreign = [
        path.to_owned(),
        format!("{path}?signature="),
        format!("{path}?signature={signature}x"),
        format!("{path}?signature={}", &signature[1..]),
        format!("{path}?signature={}", two.split_once('=').unwrap().1),
        format!("{path}?Signature={signature}"),
        one.replace(id_of_one, id_of_two),
        one.replace(id_of_one, "dlv_01k9zzzzzzzzzzzzzzzzzzzzzz"),
        one.replace(id_of_one, "nonsense"),
        one.replace("/default/", "/other/"),
        one.replace("/default/", "/nobody/"),
        one.replace("/default/", "/%00/"),
        one.replace("/default/", "/%ff/"),
    ];
    let mut told: Vec<Value> = Vec::new();
    for path in &foreign {
        let mut problem = follow(&gateway, path).await.problem(403, "link_invalid");
        problem["request_id"].take();
        told.push(problem);
        // A token is no help here: what is signed is what counts.
        gateway.client.get(path).await.problem(403, "link_invalid");
    }
    assert!(told.iter().all(|problem| *problem == told[0]), "one sentence for all of them: {told:?}");
    follow(&gateway, &format!("{one}&utm_source=mail")).await.expect(200);
    let figure = r#"posthaste_data_fetches_total{outcome="invalid"} 26"#;
    let metrics = gateway.client.get("/metrics").await;
    assert!(String::from_utf8_lossy(&metrics.body).contains(figure), "{figure}");
    assert!(!printed.text().contains(signature), "a link is not logged");
}

async fn a_link_ends_with_the_data_and_with_the_endpoint() {
    let (gateway, _) = reachable().await;
    let receiver = Receiver::start().await;
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url(), "format": "thin"})).await;
    let (one, delivery) = sent_thin(&gateway, &receiver, "one").await;
    let (two, _) = sent_thin(&gateway, &receiver, "two").await;
    follow(&gateway, &one).await.expect(200);
    gateway.client.send("DELETE", "/v1/tenants/default/events/one/data", &[], "").await.unwrap().expect(204);
    follow(&gateway, &one).await.problem(410, "data_expunged");
    gateway.post_to_delivery(&delivery, "replay").await.problem(410, "data_expunged");
    follow(&gateway, &two).await.expect(200);
    gateway.client.send("DELETE", &path_of(&endpoint), &[], "").await.unwrap().expect(204);
    follow(&gateway, &two).await.problem(410, "link_expired");
}

async fn a_link_is_the_same_after_the_master_key_was_replaced() {
    let (mut gateway, _) = reachable().await;
    let receiver = Receiver::start().await;
    gateway.create_endpoint(json!({"url": receiver.url(), "format": "thin"})).await;
    let (one, delivery) = sent_thin(&gateway, &receiver, "one").await;
    assert!(gateway.terminate().await.success());
    let (is_done, said) = crate::at_rest::rotate(&gateway).await;
    assert!(is_done, "{said}");
    let gateway = gateway.restart().await;
    assert_eq!(follow(&gateway, &one).await.expect(200)["data"]["for"], "one");
    gateway.post_to_delivery(&delivery, "replay").await.expect(202);
    assert_eq!(link(&gateway, &receiver.wait_for(2).await[1].json()), one);
}

async fn only_what_is_large_is_sent_thin() {
    let (gateway, _) = reachable().await;
    let receiver = Receiver::start().await;
    let at = |path: &str| format!("http://{}/{path}", receiver.address);
    // A limit of ten bytes, and what is sent below it.
    for format in ["envelope", "thin", "raw", "cloudevents"] {
        gateway.create_endpoint(json!({"url": at(format), "format": format, "thin_above": "10"})).await;
    }
    let (small, large) = (json!("12345678"), json!("123456789"));
    gateway.send(json!({"id": "small", "type": "t", "data": small})).await;
    gateway.send(json!({"id": "large", "type": "t", "data": large})).await;
    let seen = receiver.wait_for(8).await;
    let body = |format: &str, id: &str| {
        let found = seen.iter().find(|seen| seen.path == format!("/{format}") && seen.id() == id);
        found.unwrap_or_else(|| panic!("{id} was not sent to {format}"))
    };
    for format in ["envelope", "thin", "raw", "cloudevents"] {
        let path = link(&gateway, &body(format, "large").json());
        assert_eq!(follow(&gateway, &path).await.expect(200)["data"], large);
        assert_eq!(body(format, "large").header("content-type"), "application/json");
    }
    assert_eq!(body("envelope", "small").json()["data"], small);
    assert_eq!(body("thin", "small").json()["data"], small);
    assert_eq!(body("raw", "small").json(), small);
    let cloud = body("cloudevents", "small");
    assert_eq!(cloud.header("content-type"), "application/cloudevents+json");
    assert_eq!((&cloud.json()["specversion"], &cloud.json()["data"]), (&json!("1.0"), &small));
    let deliveries = eventually("all to be recorded", || async {
        let found = gateway.list("/v1/tenants/default/deliveries?state=delivered").await;
        if found.len() == 8 { Ok(found) } else { Err(format!("{} are", found.len())) }
    })
    .await;
    let of = |format: &str| deliveries.iter().filter(|delivery| delivery["format"] == format).count();
    assert_eq!((of("thin"), of("envelope"), of("raw"), of("cloudevents")), (4, 2, 1, 1));
    // What an attempt is shown with is what was sent.
    let cloud = deliveries.iter().find(|delivery| delivery["format"] == "cloudevents").unwrap();
    let attempt = gateway.attempts_of(cloud).await.remove(0);
    assert_eq!(attempt["request_headers"]["content-type"], "application/cloudevents+json");
}

async fn a_link_is_followed_so_often_and_no_more_and_every_time_is_logged() {
    let (gateway, printed) = reachable().await;
    let receiver = Receiver::start().await;
    gateway.create_endpoint(json!({"url": receiver.url(), "format": "thin"})).await;
    let (one, delivery) = sent_thin(&gateway, &receiver, "one").await;
    let (two, _) = sent_thin(&gateway, &receiver, "two").await;
    let client = receivers_client(&gateway);
    let mut served = 0;
    let refused = loop {
        let answer = client.get(&one).await;
        match answer.status {
            200 => served += 1,
            _ => break answer,
        }
        assert!(served < 1_000, "there is an end to it");
    };
    refused.problem(429, "rate_limited");
    assert_eq!(refused.headers["retry-after"], "1");
    assert!(served >= 20, "{served} is too few");
    follow(&gateway, &two).await.expect(200);
    let line = eventually("every fetch to be logged", || async {
        let log = printed.text();
        let count = log.lines().filter(|line| line.contains("was fetched by its link")).count();
        let first = log.lines().find(|line| line.contains("was fetched by its link")).map(str::to_owned);
        first.filter(|_| count == served + 1).ok_or(format!("{count} of {}", served + 1))
    })
    .await;
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&line["delivery.id"], &line["event.id"]), (&delivery["id"], &json!("one")));
    assert_eq!((&line["tenant.id"], &line["from"]), (&json!("default"), &json!("127.0.0.1")));
    assert!(printed.text().contains("followed too often"), "so are those that were refused");
}

/// Without an address to be reached at there are no thin events, and none are
/// promised.
#[tokio::test]
async fn thin_events_need_a_public_url() {
    let gateway = Gateway::start().await;
    let create = async |settings: Value| gateway.client.post_json("/v1/tenants/default/endpoints", &settings).await;
    for (field, value) in [("format", json!("thin")), ("thin_above", json!("256KiB"))] {
        let problem = create(json!({"url": "http://127.0.0.1/", field: value})).await.problem(422, "invalid_field");
        assert_eq!(problem["errors"][0]["pointer"], format!("/{field}"));
        assert!(problem["detail"].as_str().unwrap().contains("--public-url"), "{problem}");
    }
    let problem = create(json!({"url": "http://127.0.0.1/", "thin_above": "much"})).await.problem(422, "invalid_field");
    assert_eq!(problem["errors"][0]["pointer"], "/thin_above");

    // Taken away later, the gateway does not start, and says why.
    let (mut gateway, _) = reachable().await;
    let endpoint = gateway.create_endpoint(json!({"url": "http://127.0.0.1/", "thin_above": "1MiB"})).await;
    assert_eq!(endpoint["thin_above"], "1MiB");
    assert!(gateway.terminate().await.success());
    let folder = gateway.folder().display().to_string();
    let output = crate::cli::posthaste(&["serve", "--listen", "127.0.0.1:0", "--data", &folder]).output();
    let output = tokio::time::timeout(crate::support::PATIENCE, output).await.expect("it ends").unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("--public-url"), "{said}");
    assert!(said.contains(endpoint["id"].as_str().unwrap()), "{said}");
    let gateway = gateway.restart().await;
    assert_eq!(gateway.patch(&endpoint, json!({"thin_above": null})).await["thin_above"], Value::Null);
}
