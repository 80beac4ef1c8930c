//! Being told: operational events to whoever subscribes, mails to owners; one
//! outage is one mail, and no alarm makes alarms.

use std::collections::BTreeMap;

use posthaste::clock::{Clock, SystemClock};
use posthaste_receiver::{Profile, Verifier};
use serde_json::{Value, json};

use crate::support::{
    Gateway, MailServer, MailServerBehaviour, Options, Receiver, Reply, SmtpFault, eager_retry, eventually, path_of,
    time,
};

for_every_store! {
    whoever_subscribes_hears_of_everything_once_and_signed,
    a_listener_that_is_broken_itself_makes_no_further_alarms,
    an_endpoint_that_only_refuses_is_paused_by_the_gateway_and_can_be_resumed,
    one_outage_is_one_mail_however_long_it_lasts,
    a_burst_of_refused_deliveries_is_one_mail_and_few_are_none,
    a_mail_that_could_not_be_sent_before_a_crash_is_sent_after_it,
    a_tenant_reads_of_its_own_trouble_in_its_chat,
    a_producer_cannot_hand_events_to_those_who_listen_to_operations,
}

async fn listener(gateway: &Gateway, settings: Value) -> Value {
    gateway.client.post_json("/v1/tenants/_system/endpoints", &settings).await.expect(201)
}

/// How often each type arrived.
fn by_type(receiver: &Receiver) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for seen in receiver.seen() {
        *found.entry(seen.json()["type"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    found
}

async fn whoever_subscribes_hears_of_everything_once_and_signed() {
    let gateway = Gateway::start().await;
    let ear = Receiver::start().await;
    let listener = listener(&gateway, json!({"url": ear.url(), "event_types": ["*"]})).await;
    let make = async |kind: &str, receiver: &Receiver, breaker: Value| {
        let settings =
            json!({"url": receiver.url(), "event_types": [kind], "retry": eager_retry(50), "breaker": breaker});
        gateway.create_endpoint(settings).await
    };
    // An outage: two failures, a probe that fails, and one that does not.
    let flaky =
        Receiver::scripted(vec![Reply::Status(503), Reply::Status(503), Reply::Status(503), Reply::Status(200)]).await;
    let outage = make("outage", &flaky, json!({"consecutive_failures": 2, "cooldown": "100ms"})).await;
    gateway.send(json!({"id": "outage", "type": "outage", "data": 1})).await;
    gateway.wait_for_state("outage", "delivered").await;
    // A dead letter that blocks its lane, replayed.
    let picky = Receiver::scripted(vec![Reply::Status(400), Reply::Status(200)]).await;
    let blocked = make("blocked", &picky, json!({})).await;
    gateway.send(json!({"id": "head", "type": "blocked", "key": "k", "data": 1})).await;
    let dead = gateway.wait_for_state("head", "dead").await;
    gateway.post_to_delivery(&dead, "replay").await.expect(202);
    gateway.wait_for_state("head", "delivered").await;
    // One that asks never to be called again, and one that is paused.
    let gone = Receiver::answering(|_| Reply::Status(410)).await;
    let disabled = make("gone", &gone, json!({})).await;
    gateway.send(json!({"id": "gone", "type": "gone", "data": 1})).await;
    gateway.wait_for_state("gone", "dead").await;
    let disabled = gateway.endpoint(&disabled).await;
    assert_eq!((&disabled["state"], &disabled["state_by"]), (&json!("disabled"), &json!("receiver")));
    assert!(disabled["state_reason"].as_str().unwrap().contains("410"), "{disabled}");
    gateway.post_to_endpoint(&outage, "pause", r#"{"note":"for the night"}"#).await;

    let expected = BTreeMap::from(
        [
            ("breaker.opened", 1),
            ("breaker.closed", 1),
            ("endpoint.recovered", 1),
            ("delivery.dead", 2),
            ("lane.blocked", 1),
            ("lane.unblocked", 1),
            ("endpoint.disabled", 1),
            ("endpoint.paused", 1),
        ]
        .map(|(kind, times)| (kind.to_owned(), times)),
    );
    let seen = ear.wait_for(9).await;
    gateway.drained(&listener).await;
    // One more, after all of them: there was nothing else on its way.
    gateway.client.post(&format!("{}/test", path_of(&listener)), "").await.expect(202);
    assert_eq!(ear.wait_for(10).await[9].json()["type"], "posthaste.test");
    let mut found = by_type(&ear);
    found.remove("posthaste.test");
    assert_eq!(found, expected);
    assert!(ear.times_by_id().values().all(|times| *times == 1));
    let secret = listener["secret"].as_str().unwrap();
    for seen in &seen {
        let is_signed_with = |secret: &str| {
            let verifier = Verifier::new(Profile::Standard, [secret]).expect("a secret");
            verifier.verify(&seen.headers, &seen.body, SystemClock.now().into()).is_ok()
        };
        assert!(is_signed_with(secret), "signed like any other");
        assert!(!is_signed_with(outage["secret"].as_str().unwrap()));
    }
    let of = |kind: &str| {
        let found = seen.iter().map(|seen| seen.json()).find(|event| event["type"] == kind);
        found.unwrap_or_else(|| panic!("no {kind}"))["data"].clone()
    };
    assert_eq!(
        (&of("breaker.opened")["endpoint"], &of("breaker.opened")["tenant"]),
        (&outage["id"], &json!("default"))
    );
    assert_eq!(of("breaker.opened")["reason"], "2 failures in a row; the last was answered 503 Service Unavailable");
    assert_eq!((&of("lane.blocked")["key"], &of("lane.blocked")["delivery"]), (&json!("k"), &dead["id"]));
    assert_eq!(of("lane.unblocked")["endpoint"], blocked["id"]);
    assert_eq!(
        (&of("endpoint.paused")["reason"], &of("endpoint.paused")["by"]),
        (&json!("for the night"), &json!("person"))
    );
}

async fn a_listener_that_is_broken_itself_makes_no_further_alarms() {
    let gateway = Gateway::start_with(Options::flags(&["--pause-refusals", "30"])).await;
    let deaf =
        Receiver::answering(|seen| Reply::Status(if seen.json()["type"] == "delivery.dead" { 503 } else { 400 })).await;
    let settings = json!({
        "url": deaf.url(), "retry": eager_retry(2), "breaker": {"consecutive_failures": 3, "cooldown": "100ms", "cooldown_max": "100ms"},
    });
    let listener = listener(&gateway, settings).await;
    let picky = Receiver::answering(|_| Reply::Status(400)).await;
    let endpoint = gateway.create_endpoint(json!({"url": picky.url(), "on_dead": "block"})).await;
    gateway.send_many("d", "t", 10, |n| Some(format!("k{n}"))).await;
    gateway.drained(&endpoint).await;
    gateway.drained(&listener).await;
    let dead = gateway.list("/v1/tenants/_system/dead-letters").await;
    assert_eq!(dead.len(), 20, "every one of them died");
    assert!(gateway.history(&listener).await.iter().any(|row| row["what"] == "breaker_opened"));
    gateway.post_to_endpoint(&endpoint, "pause", "").await;
    let mut kinds = BTreeMap::new();
    for event in gateway.list("/v1/tenants/_system/events").await {
        *kinds.entry(event["type"].as_str().unwrap().to_owned()).or_insert(0) += 1;
    }
    let expected = [("delivery.dead", 10), ("lane.blocked", 10), ("endpoint.paused", 1)];
    assert_eq!(kinds, expected.map(|(kind, times)| (kind.to_owned(), times)).into());
}

#[tokio::test]
async fn producers_cannot_speak_for_the_gateway() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let listener = listener(&gateway, json!({"url": receiver.url()})).await;
    let event = json!({"type": "endpoint.paused", "data": 1});
    let refused = gateway.client.post_json("/v1/tenants/_system/events", &event).await.problem(409, "wrong_state");
    assert!(refused["detail"].as_str().unwrap().contains("fed by the gateway itself"), "{refused}");
    for query in ["", "?partial=true"] {
        let path = format!("/v1/tenants/_system/events/batch{query}");
        gateway.client.post_json(&path, &json!([event])).await.problem(409, "wrong_state");
    }
    gateway.client.post(&format!("{}/test", path_of(&listener)), "").await.expect(202);
    assert_eq!(receiver.wait_for(1).await[0].json()["type"], "posthaste.test");
    assert_eq!(gateway.list("/v1/tenants/_system/events").await.len(), 1);
    gateway.client.send("DELETE", "/v1/tenants/_system", &[], "").await.unwrap().problem(409, "wrong_state");
}

async fn an_endpoint_that_only_refuses_is_paused_by_the_gateway_and_can_be_resumed() {
    let gateway = Gateway::start_with(Options::flags(&["--pause-refusals", "3"])).await;
    // Three refusals and a success do not count; four in a row do.
    let mut answers = [400, 400, 422, 200, 400, 401, 400, 422].into_iter();
    let receiver = Receiver::answering(move |_| Reply::Status(answers.next().unwrap_or(400))).await;
    let settings = json!({"url": receiver.url(), "max_in_flight": 1, "retry": eager_retry(1)});
    let endpoint = gateway.create_endpoint(settings).await;
    gateway.send_many("q", "t", 20, |_| None).await;
    let paused = gateway.wait_for_endpoint(&endpoint, "it to be paused", |found| found["state"] == "paused").await;
    assert_eq!(paused["state_by"], "gateway");
    let reason = paused["state_reason"].as_str().unwrap();
    assert!(
        reason.starts_with("4 permanent answers without a success between them; the last was answered 4"),
        "{reason}"
    );
    assert!(time(&paused["state_since"]) > time(&paused["created_at"]));
    // The outcome before the last may still be on its way to the store.
    let held = eventually("what is left to be held", || async {
        let waiting = gateway.list("/v1/tenants/default/deliveries?state=waiting").await;
        if waiting.len() == 12 { Ok(waiting) } else { Err(format!("{} wait", waiting.len())) }
    })
    .await;
    assert_eq!(receiver.count(), 8);
    assert!(held.iter().all(|delivery| delivery["waiting_for"] == "pause" && delivery["attempts"] == 0), "{held:?}");
    let gateway = gateway.killed_and_restarted().await;
    let again = gateway.endpoint(&endpoint).await;
    for part in ["state", "state_reason", "state_since", "state_by"] {
        assert_eq!(again[part], paused[part], "{part}");
    }
    receiver.answer_with(|_| Reply::Status(200));
    gateway.post_to_endpoint(&endpoint, "resume", "").await;
    gateway.drained(&endpoint).await;
    assert_eq!(receiver.count(), 20);
    let history: Vec<Value> = gateway.history(&endpoint).await.iter().map(|row| row["what"].clone()).collect();
    assert_eq!(history, ["recovered", "resumed", "paused"]);
}

/// A gateway that mails through this server.
async fn mailing(server: &MailServer) -> Gateway {
    Gateway::start_with(Options::flags(&["--smtp", &server.url(""), "--pause-refusals", "3"])).await
}

async fn mails_to(server: &MailServer, address: &str, count: usize) {
    eventually(&format!("{count} mails to {address}"), || async {
        let found = server.mails().iter().filter(|mail| mail.to == [address]).count();
        if found == count { Ok(()) } else { Err(format!("{found} came")) }
    })
    .await;
}

/// The owner of another endpoint is told of a pause: whatever was to be
/// mailed before has been mailed.
async fn another_is_told(gateway: &Gateway, server: &MailServer, name: &str) {
    let address = format!("{name}@example.com");
    let receiver = Receiver::answering(|_| Reply::Status(400)).await;
    let settings =
        json!({"url": receiver.url(), "event_types": [name], "owner_email": address, "retry": eager_retry(1)});
    let endpoint = gateway.create_endpoint(settings).await;
    gateway.send_many(name, name, 8, |_| None).await;
    gateway.wait_for_endpoint(&endpoint, "it to be paused", |found| found["state"] == "paused").await;
    mails_to(server, &address, 1).await;
    let told = gateway.wait_for_endpoint(&endpoint, "its mail", |found| !found["mailed_at"].is_null()).await;
    assert_eq!(told["state_by"], "gateway");
    let mails = server.mails();
    let mail = mails.iter().find(|mail| mail.to == [address.as_str()]).unwrap();
    assert!(mail.body().contains("paused your webhook endpoint"), "{}", mail.body());
}

async fn one_outage_is_one_mail_however_long_it_lasts() {
    let server = MailServer::start(MailServerBehaviour::default()).await;
    let gateway = mailing(&server).await;
    let receiver = Receiver::answering(|_| Reply::Status(503)).await;
    let settings = json!({
        "url": receiver.url(), "event_types": ["outage"], "owner_email": "owner@example.com", "retry": eager_retry(3),
        "breaker": {"consecutive_failures": 2, "cooldown": "100ms", "cooldown_max": "100ms"},
    });
    let endpoint = gateway.create_endpoint(settings).await;
    let in_trouble = async |gateway: &Gateway, prefix: &str, opened: usize, probes: usize| {
        gateway.send_many(prefix, "outage", 4, |_| None).await;
        eventually("an outage with probes and dead letters", || async {
            let history = gateway.history(&endpoint).await;
            let count = |what: &str| history.iter().filter(|row| row["what"] == what).count();
            let dead = gateway.list("/v1/tenants/default/dead-letters").await.len();
            let is_so = count("breaker_opened") >= opened && count("probe_failed") >= probes && dead >= 2;
            if is_so { Ok(()) } else { Err(format!("{dead} are dead, {history:?}")) }
        })
        .await;
    };
    in_trouble(&gateway, "first", 1, 4).await;
    let told = gateway.wait_for_endpoint(&endpoint, "its mail", |found| !found["mailed_at"].is_null()).await;
    another_is_told(&gateway, &server, "second").await;
    mails_to(&server, "owner@example.com", 1).await;
    let mails = server.mails();
    let mail = mails.iter().find(|mail| mail.to == ["owner@example.com"]).unwrap();
    assert!(mail.body().contains("keeps failing") && mail.body().contains("2 failures in a row"), "{}", mail.body());

    // It goes on over a restart, and that is no news.
    let gateway = gateway.killed_and_restarted().await;
    in_trouble(&gateway, "third", 1, 6).await;
    another_is_told(&gateway, &server, "fourth").await;
    mails_to(&server, "owner@example.com", 1).await;

    // Well again, and the next outage within the hour.
    receiver.answer_with(|_| Reply::Status(200));
    gateway.send(json!({"id": "well", "type": "outage", "data": 1})).await;
    gateway.drained(&endpoint).await;
    assert!(gateway.history(&endpoint).await[..2].iter().any(|row| row["what"] == "recovered"));
    receiver.answer_with(|_| Reply::Status(503));
    in_trouble(&gateway, "fifth", 2, 8).await;
    another_is_told(&gateway, &server, "sixth").await;
    mails_to(&server, "owner@example.com", 1).await;
    // Nor does a restart in the middle of that one write.
    let gateway = gateway.killed_and_restarted().await;
    another_is_told(&gateway, &server, "seventh").await;
    mails_to(&server, "owner@example.com", 1).await;
    assert_eq!(gateway.endpoint(&endpoint).await["mailed_at"], told["mailed_at"]);
    assert_eq!(server.mails().len(), 5, "one for each who is in trouble");
}

async fn a_burst_of_refused_deliveries_is_one_mail_and_few_are_none() {
    let server = MailServer::start(MailServerBehaviour::default()).await;
    let gateway = mailing(&server).await;
    // What is well comes between the refusals, so that the endpoint is not paused.
    let receiver =
        Receiver::answering(|seen| Reply::Status(if seen.id().starts_with("bad") { 422 } else { 200 })).await;
    let settings = json!({
        "url": receiver.url(), "event_types": ["order.*"], "owner_email": "owner@example.com", "description": "orders",
    });
    let endpoint = gateway.create_endpoint(settings).await;
    let refused = async |numbers: std::ops::Range<usize>| {
        for n in numbers {
            gateway.send(json!({"id": format!("bad-{n}"), "type": "order.paid", "data": n})).await;
            gateway.wait_for_state(&format!("bad-{n}"), "dead").await;
            gateway.send(json!({"id": format!("good-{n}"), "type": "order.paid", "data": n})).await;
            gateway.wait_for_state(&format!("good-{n}"), "delivered").await;
        }
    };
    refused(0..9).await;
    another_is_told(&gateway, &server, "second").await;
    mails_to(&server, "owner@example.com", 0).await;
    refused(9..10).await;
    mails_to(&server, "owner@example.com", 1).await;
    gateway.wait_for_endpoint(&endpoint, "its mail", |found| !found["mailed_at"].is_null()).await;
    let mails = server.mails();
    let mail = mails.iter().find(|mail| mail.to == ["owner@example.com"]).unwrap();
    assert!(mail.head().contains("Subject: Webhooks are refused: orders"), "{}", mail.head());
    for said in [
        "Your webhook endpoint refuses many of the events that it is sent.",
        "10 deliveries were refused",
        "these events are not sent again by themselves",
        &format!("posthaste dead-letters list --endpoint {} --tenant default", endpoint["id"].as_str().unwrap()),
        "at most one such mail a day",
    ] {
        // Lines that were too long for a mail are joined again.
        let body = mail.body().replace("=\r\n", "");
        assert!(body.contains(said), "{said:?} is not in\n{body}");
    }

    // A second burst on the same day is not told.
    refused(10..22).await;
    another_is_told(&gateway, &server, "third").await;
    mails_to(&server, "owner@example.com", 1).await;
}

async fn a_mail_that_could_not_be_sent_before_a_crash_is_sent_after_it() {
    let server = MailServer::start(MailServerBehaviour::failing_at("HELLO", &[SmtpFault::Hang])).await;
    let gateway = mailing(&server).await;
    let receiver = Receiver::answering(|_| Reply::Status(410)).await;
    let settings = json!({"url": receiver.url(), "owner_email": "owner@example.com"});
    let endpoint = gateway.create_endpoint(settings).await;
    gateway.send(json!({"id": "gone", "type": "t", "data": 1})).await;
    gateway.wait_for_state("gone", "dead").await;
    eventually("the mail server to be asked", || async {
        if server.commands_starting_with("HELLO").is_empty() { Err("nobody asked".to_owned()) } else { Ok(()) }
    })
    .await;
    assert_eq!(gateway.endpoint(&endpoint).await["mailed_at"], Value::Null);
    let gateway = gateway.killed_and_restarted().await;
    mails_to(&server, "owner@example.com", 1).await;
    gateway.wait_for_endpoint(&endpoint, "its mail", |found| !found["mailed_at"].is_null()).await;
    assert!(server.mails()[0].body().contains("answered that it is gone"), "{}", server.mails()[0].body());
    let gateway = gateway.killed_and_restarted().await;
    another_is_told(&gateway, &server, "other").await;
    mails_to(&server, "owner@example.com", 1).await;
}

async fn a_tenant_reads_of_its_own_trouble_in_its_chat() {
    let gateway = Gateway::start().await;
    let (chat, broken) = (Receiver::start().await, Receiver::scripted(vec![Reply::Status(400)]).await);
    let refused = json!({"url": chat.url(), "format": "slack"});
    let problem = gateway.client.post_json("/v1/tenants/default/endpoints", &refused).await;
    let problem = problem.problem(422, "invalid_field");
    assert_eq!(problem["errors"][0]["pointer"], "/format", "{problem}");
    gateway
        .create_endpoint(json!({"url": chat.url(), "format": "slack", "listens_to": "operations",
                                "event_types": ["delivery.dead"]}))
        .await;
    let endpoint = gateway.create_endpoint(json!({"url": broken.url()})).await;
    gateway.send(json!({"id": "one", "type": "invoice.paid", "data": 1})).await;
    let dead = gateway.wait_for_state("one", "dead").await;
    let seen = chat.wait_for(1).await;
    let (delivery, endpoint) = (dead["id"].as_str().unwrap(), endpoint["id"].as_str().unwrap());
    let text = format!(
        "Posthaste: delivery {delivery} of event one (invoice.paid) to endpoint {endpoint} of tenant default is dead \
         (refused) after 1 attempt."
    );
    assert_eq!(seen[0].json(), json!({"text": text}));
    assert_eq!(seen[0].header("x-tenant"), "default");
}

async fn a_producer_cannot_hand_events_to_those_who_listen_to_operations() {
    let gateway = Gateway::start().await;
    let (chat, shop) = (Receiver::start().await, Receiver::start().await);
    let listener = json!({"url": chat.url(), "format": "slack", "listens_to": "operations"});
    let listener = gateway.create_endpoint(listener).await;
    let ordinary = gateway.create_endpoint(json!({"url": shop.url()})).await;
    let events = "/v1/tenants/default/events";
    let forged =
        json!({"id": "forged", "type": "delivery.dead", "endpoints": [listener["id"]], "data": {"cause": "gone"}});
    let pair =
        json!({"id": "pair", "type": "posthaste.test", "endpoints": [ordinary["id"], listener["id"]], "data": 1});
    for event in [&forged, &pair] {
        let problem = gateway.client.post_json(events, event).await.problem(422, "invalid_field");
        assert_eq!(problem["errors"][0]["pointer"], "/endpoints", "{problem}");
    }
    let fine = json!({"id": "fine", "type": "a", "endpoints": [ordinary["id"]], "data": 1});
    let batch = json!([&fine, &forged]);
    gateway.client.post_json(&format!("{events}/batch"), &batch).await.problem(422, "invalid_field");
    let partial = gateway.client.post_json(&format!("{events}/batch?partial=true"), &batch).await.expect(202);
    assert_eq!(
        (&partial["data"][0]["id"], &partial["data"][1]["error"]["code"]),
        (&json!("fine"), &json!("invalid_field"))
    );
    shop.wait_for(1).await;
    // The gateway's own test goes there.
    let tested = format!("{}/test", path_of(&listener));
    gateway.client.post(&tested, "").await.expect(202);
    chat.wait_for(1).await;
    assert!(chat.seen()[0].json()["text"].as_str().unwrap().contains("a test event from Posthaste"));
    assert_eq!((chat.count(), shop.count()), (1, 1));
}
