//! Secrets: brought along or made, shown when they may be, replaced with an
//! overlap; and the headers they sign.

use serde_json::{Value, json};

use crate::support::{Gateway, Options, Receiver, Reply, path_of};

for_every_store! {
    a_secret_may_be_brought_along_and_survives_a_restart,
    secrets_that_cannot_be_used_are_refused_without_being_repeated,
    at_most_ten_old_secrets_go_on_signing,
    an_attempt_shows_how_it_was_signed_and_no_signature,
    a_refusal_after_a_rotation_names_the_rotation_and_the_secret_that_signed,
}

const OWN: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

async fn secrets(gateway: &Gateway, endpoint: &Value) -> Vec<Value> {
    let listed = gateway.client.get(&format!("{}/secrets", path_of(endpoint))).await.expect(200);
    listed["data"].as_array().expect("a list").clone()
}

async fn a_secret_may_be_brought_along_and_survives_a_restart() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    let settings = json!({"url": receiver.url(), "secret": OWN, "signatures": ["sha256"]});
    let endpoint = gateway.create_endpoint(settings).await;
    assert_eq!(endpoint["secret"], OWN);
    assert!(gateway.endpoint(&endpoint).await.get("secret").is_none(), "it is shown once");
    let made = gateway.create_endpoint(json!({"url": receiver.url(), "event_types": ["never"]})).await;
    assert_ne!(made["secret"], OWN);
    let before = secrets(&gateway, &endpoint).await;
    let gateway = gateway.killed_and_restarted().await;
    assert_eq!(secrets(&gateway, &endpoint).await, before);
    assert_eq!(before[0]["secret"], OWN);
    assert_eq!(gateway.endpoint(&endpoint).await["signatures"], json!(["sha256"]));
    gateway.send(json!({"id": "one", "type": "t", "data": 1})).await;
    let seen = receiver.wait_for(1).await.remove(0);
    assert!(seen.header("x-signature").starts_with("sha256="), "{:?}", seen.headers);
    assert!(seen.header("webhook-signature").starts_with("v1,"), "the standard one is always there");
    assert!(seen.headers.get("stripe-signature").is_none());
}

async fn secrets_that_cannot_be_used_are_refused_without_being_repeated() {
    let gateway = Gateway::start().await;
    let path = "/v1/tenants/default/endpoints";
    let create = async |more: Value| {
        let mut settings = json!({"url": "https://example.com/"});
        settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        gateway.client.post_json(path, &settings).await
    };
    for bad in ["whsec_dG9vc2hvcnQ=", "hush-hush-hush", "whsec_hush%", ""] {
        let problem = create(json!({"secret": bad})).await.problem(422, "invalid_field");
        assert_eq!(problem["errors"][0]["pointer"], "/secret");
        assert!(bad.is_empty() || !problem.to_string().contains(bad), "{problem}");
    }
    for (field, value) in [("private_key", json!("whsk_hush")), ("secret", json!(5)), ("private_key", json!([OWN]))] {
        let problem = create(json!({field: value})).await.problem(422, "invalid_field");
        assert_eq!(problem["errors"][0]["pointer"], format!("/{field}"));
        assert!(!problem.to_string().contains("hush") && !problem.to_string().contains(OWN), "{problem}");
    }
    let clash = create(json!({"signatures": ["sha256", "timestamped"]})).await.problem(422, "invalid_field");
    assert_eq!(clash["errors"][0]["pointer"], "/signatures/1");
    create(json!({"signatures": ["md5"]})).await.problem(422, "invalid_field");
    create(json!({"signing": "rsa"})).await.problem(422, "invalid_field");
    let endpoint = create(json!({})).await.expect(201);
    let patch = gateway.client.patch_json(&path_of(&endpoint), &json!({"secret": OWN})).await;
    patch.problem(422, "unknown_field");
    let rotate = format!("{}/secrets/rotate", path_of(&endpoint));
    for (body, pointer) in [
        (json!({"secret": "whsec_hush"}), "/secret"),
        (json!({"private_key": "whsk_hush"}), "/private_key"),
        (json!({"overlap": "8d"}), "/overlap"),
    ] {
        let problem = gateway.client.post_json(&rotate, &body).await.problem(422, "invalid_field");
        assert_eq!(problem["errors"][0]["pointer"], pointer);
        assert!(!problem.to_string().contains("hush"), "{problem}");
    }
    assert_eq!(secrets(&gateway, &endpoint).await.len(), 1, "nothing of it was kept");
}

async fn at_most_ten_old_secrets_go_on_signing() {
    let gateway = Gateway::start().await;
    let endpoint = gateway.create_endpoint(json!({"url": "https://example.com/"})).await;
    let rotate = format!("{}/secrets/rotate", path_of(&endpoint));
    for _ in 0..10 {
        gateway.client.post(&rotate, "").await.expect(201);
    }
    assert_eq!(secrets(&gateway, &endpoint).await.len(), 11);
    let problem = gateway.client.post(&rotate, "").await.problem(409, "wrong_state");
    assert!(problem["detail"].as_str().unwrap().contains("overlap of 0s"), "{problem}");
    let last = gateway.client.post_json(&rotate, &json!({"overlap": "0s"})).await.expect(201);
    let left = secrets(&gateway, &endpoint).await;
    assert_eq!((left.len(), &left[0]["secret"]), (1, &last["secret"]));
}

async fn an_attempt_shows_how_it_was_signed_and_no_signature() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    let signatures = ["timestamped", "svix", "stripe", "github"];
    gateway.create_endpoint(json!({"url": receiver.url(), "signatures": signatures})).await;
    gateway.send(json!({"id": "one", "type": "t", "data": 1})).await;
    let delivery = gateway.wait_for_state("one", "delivered").await;
    let seen = receiver.wait_for(1).await.remove(0);
    let shown = gateway.attempts_of(&delivery).await.remove(0)["request_headers"].to_string();
    for name in ["x-signature", "svix-signature", "stripe-signature", "x-hub-signature-256", "webhook-signature"] {
        assert!(shown.contains(&format!("\"{name}\"")), "{name} is not in {shown}");
        let signature = seen.header(name).rsplit(['=', ',']).find(|part| part.len() > 20).unwrap();
        assert!(!shown.contains(signature), "{name} is shown in {shown}");
    }
    assert!(shown.contains("\"x-signature-timestamp\"") && shown.contains("\"svix-id\""), "{shown}");
    for (name, value) in [("x-github-event", "t"), ("x-github-delivery", "one")] {
        assert_eq!(seen.header(name), value);
        assert!(shown.contains(&format!("\"{name}\":\"{value}\"")), "{name} is not in {shown}");
    }
}

async fn a_refusal_after_a_rotation_names_the_rotation_and_the_secret_that_signed() {
    let gateway = Gateway::start_with(Options::flags(&["--pause-refusals", "2"])).await;
    let receiver = Receiver::scripted(vec![Reply::Status(401)]).await;
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url(), "ordering": "none"})).await;
    let first = secrets(&gateway, &endpoint).await.remove(0);
    const ROTATED: &str = "a secret of this endpoint was rotated";

    gateway.send(json!({"id": "before", "type": "t", "data": 1})).await;
    let before = gateway.wait_for_state("before", "dead").await;
    assert_eq!(gateway.attempts_of(&before).await[0]["secret_id"], first["id"]);
    let path =
        |delivery: &Value| format!("/v1/tenants/default/deliveries/{}/explain", delivery["id"].as_str().unwrap());
    let explained = gateway.client.get(&path(&before)).await.expect(200).to_string();
    assert!(!explained.to_lowercase().contains(ROTATED), "{explained}");

    let rotate = format!("{}/secrets/rotate", path_of(&endpoint));
    let second = gateway.client.post_json(&rotate, &json!({"overlap": "0s"})).await.expect(201);
    gateway.send(json!({"id": "after", "type": "t", "data": 1})).await;
    let after = gateway.wait_for_state("after", "dead").await;
    assert_eq!(gateway.attempts_of(&after).await[0]["secret_id"], second["id"]);
    let explained = gateway.client.get(&path(&after)).await.expect(200).to_string();
    assert!(explained.to_lowercase().contains(ROTATED), "{explained}");

    gateway.send(json!({"id": "last", "type": "t", "data": 1})).await;
    let paused = gateway.wait_for_endpoint(&endpoint, "to be paused", |endpoint| endpoint["state"] == "paused").await;
    let reason = paused["state_reason"].as_str().unwrap();
    assert!(reason.contains("was answered 401 Unauthorized, and a secret of this endpoint was rotated"), "{reason}");
}
