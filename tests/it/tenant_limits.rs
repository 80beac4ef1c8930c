//! One tenant against what all share: its endpoints, settings, tokens and
//! calls, what it stores and what waits are bounded, and nobody else is told.

use serde_json::{Value, json};

use crate::support::{Client, Gateway, Options, PageClient, Receiver, Reply, eager_retry, eventually, path_of};

for_every_store! {
    counts_are_bounded_and_told_with_the_limit,
    a_ceiling_holds_for_what_is_asked_and_for_what_is_there,
    a_tenant_whose_deliveries_wait_is_told_to_wait_and_others_are_not,
    a_tenant_whose_events_take_up_too_much_is_told_and_others_are_not,
    calls_of_a_tenants_tokens_have_a_rate_and_the_admins_have_none,
    a_page_of_the_portal_is_one_call_whatever_it_asks,
    a_url_is_shown_whole_to_whoever_manages_and_masked_to_whoever_reads,
}

/// Two tenants; a client of the first with these rights.
async fn two_tenants(rights: Value) -> (Gateway, Client) {
    let gateway = Gateway::start().await;
    for tenant in ["noisy", "quiet"] {
        gateway.client.send("PUT", &format!("/v1/tenants/{tenant}"), &[], "{}").await.unwrap().expect(201);
    }
    let client = client(&gateway, rights).await;
    (gateway, client)
}

async fn client(gateway: &Gateway, rights: Value) -> Client {
    let made = gateway.client.post_json("/v1/tokens", &json!({"tenant": "noisy", "rights": rights})).await.expect(201);
    Client::new(gateway.address, made["token"].as_str().unwrap())
}

async fn limit(gateway: &Gateway, limits: Value) -> Value {
    gateway.client.patch_json("/v1/tenants/noisy", &json!({"limits": limits})).await.expect(200)
}

const ENDPOINTS: &str = "/v1/tenants/noisy/endpoints";
const EVENTS: &str = "/v1/tenants/noisy/events";

fn endpoint() -> Value {
    json!({"url": "http://127.0.0.1:9/"})
}

async fn counts_are_bounded_and_told_with_the_limit() {
    let (gateway, client) = two_tenants(json!(["manage"])).await;
    let shown = client.get("/v1/tenants/noisy").await.expect(200);
    assert_eq!(shown["limits"]["endpoints"], 1_000);
    assert_eq!(shown["limits"]["settings_bytes"], "16MiB");
    assert_eq!(shown["limits"]["endpoint"]["max_in_flight"], 1_000);
    assert_eq!((&shown["limits"]["waiting"], &shown["limits"]["stored_bytes"]), (&Value::Null, &Value::Null));
    assert_eq!((&shown["usage"]["endpoints"], &shown["usage"]["tokens"]), (&json!(0), &json!(1)));
    // A tenant does not raise its own.
    client.patch_json("/v1/tenants/noisy", &json!({"limits": {"endpoints": 9}})).await.problem(403, "missing_right");
    limit(&gateway, json!({"endpoints": 2, "tokens": 1})).await;
    let first = client.post_json(ENDPOINTS, &endpoint()).await.expect(201);
    client.post_json(ENDPOINTS, &endpoint()).await.expect(201);
    for whoever in [&client, &gateway.client] {
        let refused = whoever.post_json(ENDPOINTS, &endpoint()).await.problem(422, "limit_exceeded");
        assert_eq!(refused["limit"], "endpoints");
        let detail = refused["detail"].as_str().unwrap();
        assert!(detail.contains("tenant noisy has 2 endpoints of at most 2"), "{detail}");
    }
    gateway.client.post_json("/v1/tenants/quiet/endpoints", &endpoint()).await.expect(201);
    let token = json!({"tenant": "noisy", "rights": ["read"]});
    let refused = gateway.client.post_json("/v1/tokens", &token).await.problem(422, "limit_exceeded");
    assert_eq!(refused["limit"], "tokens");
    let path = format!("{ENDPOINTS}/{}", first["id"].as_str().unwrap());
    let used = client.get("/v1/tenants/noisy").await.expect(200)["usage"]["settings_bytes"].as_u64().unwrap();
    limit(&gateway, json!({"settings_bytes": used + 100})).await;
    let long = json!({"description": "x".repeat(200)});
    let refused = client.patch_json(&path, &long).await.problem(422, "limit_exceeded");
    assert_eq!(refused["limit"], "settings_bytes");
    client.patch_json(&path, &json!({"description": "short"})).await.expect(200);
    client.send("DELETE", &path, &[], "").await.unwrap().expect(204);
    client.post_json(ENDPOINTS, &endpoint()).await.expect(201);
    for (wrong, pointer) in [
        (json!({"endpoints": 1_000_001}), "/limits/endpoints"),
        (json!({"endpoint": {"timeout": "2m"}}), "/limits/endpoint/timeout"),
        (json!({"management": {"per_second": 0}}), "/limits/management/per_second"),
    ] {
        let answer = gateway.client.patch_json("/v1/tenants/noisy", &json!({"limits": wrong})).await;
        assert_eq!(answer.problem(422, "invalid_field")["errors"][0]["pointer"], pointer);
    }
    // Null is the default again.
    let shown = limit(&gateway, json!({"endpoints": null, "settings_bytes": null})).await;
    assert_eq!((&shown["limits"]["endpoints"], &shown["limits"]["tokens"]), (&json!(1_000), &json!(1)));
}

async fn a_ceiling_holds_for_what_is_asked_and_for_what_is_there() {
    let (gateway, client) = two_tenants(json!(["manage"])).await;
    let receiver = Receiver::answering(|_| Reply::Hold(200)).await;
    let free = json!({"url": receiver.url(), "ordering": "none", "max_in_flight": 50});
    let there = client.post_json(ENDPOINTS, &free).await.expect(201);
    assert_eq!(there.get("capped"), None);
    let ceiling = json!({"max_in_flight": 2, "per_second": 100, "timeout": "20s", "max_attempts": 3, "max_age": "1h"});
    let shown = limit(&gateway, json!({"endpoint": ceiling})).await;
    assert_eq!(shown["above_ceiling"], json!([there["id"]]), "whoever lowers it is told whom it concerns");
    let path = path_of(&there);
    let capped = json!({"max_in_flight": "2", "per_second": "100", "max_attempts": "3", "max_age": "1h"});
    assert_eq!(client.get(&path).await.expect(200)["capped"], capped);
    // It counts at once for what is there.
    for n in 0..10 {
        client_of_admin(&gateway, n).await;
    }
    receiver.wait_for(2).await;
    receiver.release();
    receiver.wait_for(4).await;
    assert!(receiver.most_open_of_any_key() <= 2, "{} were open", receiver.most_open_of_any_key());
    // What lies above is not in question until it is changed.
    client.patch_json(&path, &json!({"description": "as before"})).await.expect(200);
    for (asked, name, pointer) in [
        (json!({"max_in_flight": 3}), "endpoint.max_in_flight", "/max_in_flight"),
        (json!({"rate": {"per_second": 101, "burst": 1}}), "endpoint.per_second", "/rate/per_second"),
        (json!({"timeout": {"total": "21s"}}), "endpoint.timeout", "/timeout/total"),
        (json!({"retry": {"max_attempts": 4}}), "endpoint.max_attempts", "/retry/max_attempts"),
        (json!({"retry": {"max_age": "2h"}}), "endpoint.max_age", "/retry/max_age"),
    ] {
        for answer in [client.patch_json(&path, &asked).await, client.post_json(ENDPOINTS, &with_url(&asked)).await] {
            let refused = answer.problem(422, "limit_exceeded");
            assert_eq!((&refused["limit"], &refused["errors"][0]["pointer"]), (&json!(name), &json!(pointer)));
        }
    }
    client.patch_json(&path, &json!({"max_in_flight": 2})).await.expect(200);
    // What is not asked for is as much as may be.
    let made = client.post_json(ENDPOINTS, &endpoint()).await.expect(201);
    assert_eq!((&made["max_in_flight"], &made["rate"]["per_second"]), (&json!(2), &json!(100)));
    gateway.client.post_json("/v1/tenants/quiet/endpoints", &with_url(&json!({"max_in_flight": 50}))).await.expect(201);
}

async fn client_of_admin(gateway: &Gateway, n: usize) {
    gateway.client.post_json(EVENTS, &json!({"type": "t", "data": n})).await.expect(202);
}

fn with_url(settings: &Value) -> Value {
    let mut settings = settings.clone();
    settings["url"] = json!("http://127.0.0.1:9/");
    settings
}

async fn a_tenant_whose_deliveries_wait_is_told_to_wait_and_others_are_not() {
    let (gateway, client) = two_tenants(json!(["publish", "manage"])).await;
    let receiver = Receiver::start().await;
    let made = client.post_json(ENDPOINTS, &json!({"url": receiver.url()})).await.expect(201);
    client.send("POST", &format!("{}/pause", path_of(&made)), &[], "").await.unwrap().expect(200);
    limit(&gateway, json!({"waiting": 3})).await;
    let event = |id: &str| json!({"id": id, "type": "t", "data": 1});
    for id in ["a", "b", "c"] {
        client.post_json(EVENTS, &event(id)).await.expect(202);
    }
    let answer = client.post_json(EVENTS, &event("d")).await;
    assert!(answer.headers.contains_key("retry-after"), "{:?}", answer.headers);
    let refused = answer.problem(429, "backlog_full");
    assert_eq!(refused["limit"], "waiting");
    let batch = json!([event("e"), event("f")]);
    client.post_json(&format!("{EVENTS}/batch"), &batch).await.problem(429, "backlog_full");
    assert_eq!(client.get("/v1/tenants/noisy").await.expect(200)["usage"]["waiting"], 3);
    // What matches nobody waits for nobody.
    gateway.client.post_json("/v1/tenants/quiet/events", &event("d")).await.expect(202);
    client.send("POST", &format!("{}/resume", path_of(&made)), &[], "").await.unwrap().expect(200);
    receiver.wait_for(3).await;
    eventually("room for the next", || async {
        let answer = client.post_json(EVENTS, &event("d")).await;
        if answer.status == 202 { Ok(()) } else { Err(answer.status.to_string()) }
    })
    .await;
    let metrics = gateway.client.get("/metrics").await;
    assert!(String::from_utf8_lossy(&metrics.body).contains(r#"code="backlog_full""#), "it is counted by its code");
}

async fn a_tenant_whose_events_take_up_too_much_is_told_and_others_are_not() {
    let (gateway, client) = two_tenants(json!(["publish"])).await;
    limit(&gateway, json!({"stored_bytes": "8KiB"})).await;
    let event = |id: String| json!({"id": id, "type": "t", "data": "x".repeat(1_498)});
    for n in 0..4 {
        client.post_json(EVENTS, &event(n.to_string())).await.expect(202);
    }
    let answer = client.post_json(EVENTS, &event("last".into())).await;
    let refused = answer.problem(507, "quota_full");
    assert_eq!(refused["limit"], "stored_bytes");
    assert!(refused["detail"].as_str().unwrap().contains("of at most 8KiB"), "{refused}");
    gateway.client.post_json("/v1/tenants/quiet/events", &event("last".into())).await.expect(202);
    let reader = self::client(&gateway, json!(["read"])).await;
    assert_eq!(reader.get("/v1/tenants/noisy").await.expect(200)["usage"]["stored_bytes"], 4 * (1_500 + 512));
    limit(&gateway, json!({"stored_bytes": null})).await;
    client.post_json(EVENTS, &event("last".into())).await.expect(202);
}

async fn calls_of_a_tenants_tokens_have_a_rate_and_the_admins_have_none() {
    let (gateway, client) = two_tenants(json!(["publish", "manage"])).await;
    limit(&gateway, json!({"management": {"per_second": 0.001, "burst": 3}})).await;
    for _ in 0..3 {
        client.get(ENDPOINTS).await.expect(200);
    }
    let answer = client.get(ENDPOINTS).await;
    assert!(answer.headers.contains_key("retry-after"), "{:?}", answer.headers);
    assert_eq!(answer.problem(429, "rate_limited")["limit"], "management");
    let other = self::client(&gateway, json!(["read"])).await;
    other.get(ENDPOINTS).await.problem(429, "rate_limited");
    client.post_json(EVENTS, &json!({"type": "t", "data": 1})).await.expect(202);
    for _ in 0..5 {
        gateway.client.get(ENDPOINTS).await.expect(200);
    }
}

async fn a_page_of_the_portal_is_one_call_whatever_it_asks() {
    let (gateway, client) = two_tenants(json!(["publish", "manage"])).await;
    let token = gateway.client.post_json("/v1/tokens", &json!({"tenant": "noisy", "rights": ["read"]})).await;
    let portal = PageClient::portal(&gateway, token.expect(201)["token"].as_str().unwrap()).await;
    limit(&gateway, json!({"management": {"per_second": 0.001, "burst": 4}})).await;
    // The first page asks for what needs attention, figures, groups and more.
    for path in ["/portal", "/portal/dead-letters", "/portal/deliveries"] {
        assert_eq!(portal.get(path).await.0, 200, "{path}");
    }
    client.get(ENDPOINTS).await.expect(200);
    let (status, html) = portal.get("/portal/endpoints").await;
    assert!(status == 429 && html.contains("limits.management"), "{status}: {html}");
    client.get(ENDPOINTS).await.problem(429, "rate_limited");
}

async fn a_url_is_shown_whole_to_whoever_manages_and_masked_to_whoever_reads() {
    let (gateway, manager) = two_tenants(json!(["manage"])).await;
    let reader = client(&gateway, json!(["read"])).await;
    let receiver = Receiver::answering(|_| Reply::Status(503)).await;
    let (old, new) = ("aBcD1234eFgH5678iJ", "zYxW9876vUtS5432rQ");
    let url = |token: &str| format!("http://{}/in/{token}?key=s3cr3t", receiver.address);
    let shown = format!("http://{}/in/***", receiver.address);
    let made = manager.post_json(ENDPOINTS, &json!({"url": url(old), "retry": eager_retry(50)})).await.expect(201);
    let path = path_of(&made);
    gateway.client.post_json(EVENTS, &json!({"id": "e", "type": "t", "data": 1})).await.expect(202);
    receiver.wait_for(1).await;
    manager.patch_json(&path, &json!({"url": url(new)})).await.expect(200);
    receiver.answer_with(|seen| if seen.path.contains("zYxW") { Reply::Status(200) } else { Reply::Status(503) });
    let found = gateway.client.get("/v1/tenants/noisy/events/e/deliveries").await.expect(200);
    let delivery = format!("/v1/tenants/noisy/deliveries/{}", found["data"][0]["id"].as_str().unwrap());
    eventually("the delivery", || async {
        let state = gateway.client.get(&delivery).await.expect(200)["state"].clone();
        if state == "delivered" { Ok(()) } else { Err(state.to_string()) }
    })
    .await;
    for (whoever, sees) in [(&manager, true), (&gateway.client, true), (&reader, false)] {
        let attempts = whoever.get(&format!("{delivery}/attempts")).await.expect(200)["data"].clone();
        let urls: Vec<&str> = attempts.as_array().unwrap().iter().map(|one| one["url"].as_str().unwrap()).collect();
        let expected = if sees { (url(old), url(new)) } else { (shown.clone(), shown.clone()) };
        assert_eq!((urls[0], urls[urls.len() - 1]), (expected.0.as_str(), expected.1.as_str()));
        assert_eq!(whoever.get(&path).await.expect(200)["url"], expected.1);
        assert_eq!(whoever.get(ENDPOINTS).await.expect(200)["data"][0]["url"], expected.1);
        let explained = whoever.get(&format!("{delivery}/explain")).await;
        let explained = String::from_utf8_lossy(&explained.body).into_owned();
        assert!(!explained.contains(new) && !explained.contains(old), "{explained}");
    }
}

/// On the embedded store, whose files can be read: no URL lies in the clear.
#[tokio::test]
async fn no_url_lies_in_the_clear_with_attempts() {
    let mut gateway = Gateway::start().await;
    let receiver = Receiver::answering(|_| Reply::Status(503)).await;
    let token = "aBcD1234eFgH5678iJ";
    let url = format!("http://{}/in/{token}", receiver.address);
    gateway.create_endpoint(json!({"url": url, "retry": eager_retry(3)})).await;
    gateway.send(json!({"id": "e", "type": "t", "data": 1})).await;
    gateway.wait_for_state("e", "dead").await;
    assert!(gateway.terminate().await.success());
    for entry in std::fs::read_dir(gateway.folder()).unwrap().flatten() {
        let bytes = std::fs::read(entry.path()).unwrap_or_default();
        let found = bytes.windows(token.len()).any(|window| window == token.as_bytes());
        assert!(!found, "{} holds the URL", entry.path().display());
    }
}

/// Where payloads are not shown, neither is what receivers answered.
#[tokio::test]
async fn redacting_takes_the_headers_of_answers_too() {
    let gateway = Gateway::start_with(Options::flags(&["--redact-payloads"])).await;
    let receiver = Receiver::start().await;
    gateway.create_endpoint(json!({"url": receiver.url()})).await;
    gateway.send(json!({"id": "e", "type": "t", "data": 1})).await;
    let delivery = gateway.wait_for_state("e", "delivered").await;
    let attempts = gateway.attempts_of(&delivery).await;
    assert_eq!((&attempts[0]["response_headers"], &attempts[0]["response_body"]), (&json!({}), &Value::Null));
}
