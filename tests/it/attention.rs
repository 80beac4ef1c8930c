//! What needs attention: found without looking for it, and told with the command
//! that helps.

use serde_json::{Value, json};

use crate::cli::cli_output;
use crate::support::{Gateway, Receiver, Reply, eager_retry, eventually, path_of};

for_every_store! {
    whatever_is_not_well_is_told_worst_first_with_the_command_that_helps,
    endpoints_with_dead_letters_beyond_those_that_are_named_are_counted,
}

async fn whatever_is_not_well_is_told_worst_first_with_the_command_that_helps() {
    let gateway = Gateway::start().await;
    let client = &gateway.client;
    assert_eq!(client.get("/v1/attention").await.expect(200), json!({"data": [], "more": 0, "unanswered_nodes": []}));
    client.send("PUT", "/v1/tenants/acme", &[], r#"{"name":"Acme"}"#).await.unwrap().expect(201);

    let (gone, refusing) = (Receiver::scripted(vec![Reply::Status(410)]).await, Receiver::start().await);
    refusing.answer_with(|_| Reply::Status(400));
    let gone = gateway.create_endpoint(json!({"url": gone.url(), "event_types": ["a.gone"]})).await;
    let dying =
        gateway.create_endpoint(json!({"url": refusing.url(), "event_types": ["a.refused"], "ordering": "key"})).await;
    let broken = json!({"url": "http://127.0.0.1:1/", "event_types": ["a.broken"], "retry": eager_retry(20)});
    let broken = client.post_json("/v1/tenants/acme/endpoints", &broken).await.expect(201);
    client.post(&format!("{}/breaker/open", path_of(&broken)), r#"{"note":"a test"}"#).await.expect(200);
    gateway.send(json!({"type": "a.gone", "data": 1})).await;
    for n in 0..11 {
        gateway.send(json!({"type": "a.refused", "key": format!("k{n}"), "data": n})).await;
    }
    // It waits behind the first dead letter of its lane.
    eventually("all to be dead", || async {
        let total = client.get("/v1/dead-letters/groups").await.expect(200)["total"]["count"].clone();
        if total == 12 { Ok(()) } else { Err(total.to_string()) }
    })
    .await;
    gateway.send(json!({"type": "a.refused", "key": "k3", "data": 99})).await;

    let items = async |path: &str| client.get(path).await.expect(200)["data"].as_array().unwrap().clone();
    let kinds =
        |items: &[Value]| items.iter().map(|item| item["kind"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    eventually("everything to be told", || async {
        let found = kinds(&items("/v1/attention").await);
        let expected = ["disabled", "lane_blocked", "breaker_open", "dead_growing", "dead_growing"];
        if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    let found = items("/v1/attention").await;
    let of = |kind: &str| found.iter().find(|item| item["kind"] == kind).unwrap();
    let id = |endpoint: &Value| endpoint["id"].as_str().unwrap().to_owned();
    assert_eq!((&of("disabled")["severity"], &of("disabled")["endpoint"]), (&json!("critical"), &gone["id"]));
    assert_eq!(of("disabled")["command"], format!("posthaste endpoints resume {} --tenant default", id(&gone)));
    assert_eq!((&of("lane_blocked")["endpoint"], &of("lane_blocked")["waiting"]), (&dying["id"], &json!(1)));
    assert!(of("lane_blocked")["reason"].as_str().unwrap().contains("\"k3\""), "{}", of("lane_blocked"));
    assert_eq!((&of("breaker_open")["tenant"], &of("breaker_open")["severity"]), (&json!("acme"), &json!("warning")));
    assert!(of("breaker_open")["reason"].as_str().unwrap().contains("a test"), "{}", of("breaker_open"));
    let growing = |items: &[Value]| {
        let growing = items.iter().filter(|item| item["kind"] == "dead_growing");
        growing.map(|item| item["reason"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let says = |reasons: &[String], start: &str, end: &str| {
        reasons.iter().any(|reason| reason.starts_with(start) && reason.contains(end))
    };
    let told = growing(&found);
    assert!(says(&told, "11 dead letters since 20", "are neither replayed nor discarded; they grow: "), "{told:?}");
    assert!(says(&told, "1 dead letter since 20", "is neither replayed nor discarded"), "{told:?}");
    let of_refused =
        found.iter().find(|item| item["kind"] == "dead_growing" && item["endpoint"] == dying["id"]).unwrap();
    let command = of_refused["command"].as_str().unwrap();
    let helps = format!("posthaste dead-letters replay --endpoint {} --since 20", id(&dying));
    assert!(command.starts_with(&helps) && command.contains(" --dry-run --tenant default"), "{command}");

    // What was dealt with is no longer told.
    let dead = client.get(&format!("/v1/tenants/default/dead-letters?endpoint={}", id(&gone))).await.expect(200);
    let letter = dead["data"][0]["id"].as_str().unwrap();
    client.post(&format!("/v1/tenants/default/dead-letters/{letter}/discard"), "").await.expect(202);
    eventually("a discarded one to be gone from the list", || async {
        let told = growing(&items("/v1/attention").await);
        if told.len() == 1 && told[0].starts_with("11 ") { Ok(()) } else { Err(format!("{told:?}")) }
    })
    .await;

    assert_eq!(kinds(&items("/v1/tenants/acme/attention").await), ["breaker_open"], "a tenant sees its own alone");
}

async fn endpoints_with_dead_letters_beyond_those_that_are_named_are_counted() {
    let gateway = Gateway::start().await;
    let refusing = Receiver::scripted(vec![Reply::Status(400)]).await;
    for _ in 0..103 {
        gateway.create_endpoint(json!({"url": refusing.url()})).await;
    }
    gateway.send(json!({"type": "a.refused", "data": 1})).await;
    let told = eventually("all to be dead", || async {
        let told = gateway.client.get("/v1/attention").await.expect(200);
        let named = told["data"].as_array().unwrap().len() as u64;
        if named + told["more"].as_u64().unwrap() == 103 { Ok(told) } else { Err(told["more"].to_string()) }
    })
    .await;
    assert_eq!((told["data"].as_array().unwrap().len(), &told["more"]), (100, &json!(3)));
    let screen = cli_output(&gateway, &["status"]).await;
    assert!(screen.contains("3 more are not told one by one"), "{screen}");
}
