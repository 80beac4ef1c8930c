//! Public keys for receivers without a token, and the addresses that deliveries come
//! from.

use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::cli::{asked, cli_output};
use crate::support::{CapturedOutput, Client, Gateway, Options, PATIENCE, eventually, path_of};

/// The answer to whoever has no token.
async fn fetched(gateway: &Gateway, path: &str) -> (u16, Value) {
    let stranger = Client::new(gateway.address, "none");
    let answer = stranger.send("GET", path, &[("authorization", "")], "").await.unwrap();
    let mut body = answer.json();
    if let Some(problem) = body.as_object_mut() {
        problem.remove("request_id");
    }
    (answer.status, body)
}

fn keys_path(endpoint: &Value) -> String {
    format!("/keys/{}/{}.json", endpoint["tenant"].as_str().unwrap(), endpoint["id"].as_str().unwrap())
}

#[tokio::test]
async fn a_receiver_fetches_the_public_keys_that_sign_now_and_nothing_else() {
    let gateway = Gateway::start().await;
    let signing = gateway.create_endpoint(json!({"url": "http://127.0.0.1:1/", "signing": "ed25519"})).await;
    let secrets = format!("{}/secrets", path_of(&signing));
    let active = async || {
        let page = gateway.client.get(&secrets).await.expect(200);
        page["data"].as_array().unwrap().iter().map(|secret| secret["public_key"].clone()).collect::<Vec<_>>()
    };
    let told = async || {
        let (status, body) = fetched(&gateway, &keys_path(&signing)).await;
        assert_eq!(status, 200, "{body}");
        assert_eq!(body.as_object().unwrap().keys().collect::<Vec<_>>(), ["keys"]);
        let keys = body["keys"].as_array().unwrap().clone();
        for key in &keys {
            let fields: Vec<&String> = key.as_object().unwrap().keys().collect();
            assert_eq!(fields, ["crv", "kty", "public_key", "use", "x"], "{key}");
            assert!(key["kty"] == "OKP" && key["crv"] == "Ed25519" && key["x"].as_str().unwrap().len() == 43);
        }
        keys.iter().map(|key| key["public_key"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(told().await, active().await);
    gateway.client.post(&format!("{secrets}/rotate"), r#"{"overlap":"1h"}"#).await.expect(201);
    assert_eq!(told().await, active().await);
    assert_eq!(told().await.len(), 2, "both sign");
    gateway.client.post(&format!("{secrets}/rotate"), r#"{"overlap":"0s"}"#).await.expect(201);
    assert_eq!(told().await, active().await);
    assert_eq!(told().await.len(), 1, "the others sign no more");
}

#[tokio::test]
async fn whatever_has_no_public_keys_is_answered_alike() {
    let gateway = Gateway::start().await;
    let shared = gateway.create_endpoint(json!({"url": "http://127.0.0.1:1/"})).await;
    let deleted = gateway.create_endpoint(json!({"url": "http://127.0.0.1:1/", "signing": "ed25519"})).await;
    assert_eq!(fetched(&gateway, &keys_path(&deleted)).await.0, 200);
    gateway.client.send("DELETE", &path_of(&deleted), &[], "").await.unwrap();
    let known = deleted["id"].as_str().unwrap();
    let (status, answer) = fetched(&gateway, &keys_path(&shared)).await;
    assert_eq!((status, &answer["code"]), (404, &json!("not_found")));
    for path in [
        keys_path(&deleted),
        format!("/keys/nobody/{known}.json"),
        format!("/keys/default/{known}"),
        format!("/keys/default/{known}.json.json"),
        "/keys/default/ep_none.json".to_owned(),
        "/keys/%FF/x.json".to_owned(),
        format!("/keys/_system/{}.json", shared["id"].as_str().unwrap()),
    ] {
        assert_eq!(fetched(&gateway, &path).await, (404, answer.clone()), "{path}");
    }
}

/// Where the next connection comes from.
async fn caller(listener: &TcpListener) -> IpAddr {
    let (_, peer) = tokio::time::timeout(PATIENCE, listener.accept()).await.expect("a call").unwrap();
    peer.ip()
}

#[tokio::test]
async fn receivers_are_called_from_the_address_that_they_were_told() {
    let gateway = Gateway::start_with(Options::flags(&["--egress-bind", "127.0.0.7"])).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    gateway.create_endpoint(json!({"url": format!("http://{}/", listener.local_addr().unwrap())})).await;
    gateway.send(json!({"type": "t", "data": 1})).await;
    assert_eq!(caller(&listener).await, IpAddr::from([127, 0, 0, 7]));
    let told = asked(&gateway, &["egress"]).await;
    assert_eq!(told, json!({"networks": ["127.0.0.7/32"], "complete": true}));
    assert_eq!(cli_output(&gateway, &["egress"]).await, "127.0.0.7/32\n");
    // An address of the other kind would be called from an address that nobody was told.
    let v6 = gateway.create_endpoint(json!({"url": "https://[2001:4860:4860::8888]/"})).await;
    gateway.send(json!({"id": "six", "type": "t", "endpoints": [v6["id"]], "data": 1})).await;
    eventually("an attempt", async || {
        let delivery = gateway.delivery_of("six").await;
        let message = delivery["last_error"]["message"].as_str().unwrap_or_default().to_owned();
        if message.contains("--egress-bind") { Ok(()) } else { Err(delivery.to_string()) }
    })
    .await;
}

#[tokio::test]
async fn addresses_are_told_only_if_they_are_known() {
    let unknown = Gateway::start().await;
    assert_eq!(asked(&unknown, &["egress"]).await, json!({"networks": [], "complete": false}));
    assert!(cli_output(&unknown, &["egress"]).await.contains("--egress-bind"));
    let behind_nat = ["--egress-addresses", "203.0.113.0/29", "--egress-bind", "127.0.0.7"];
    let known = Gateway::start_with(Options::flags(&behind_nat)).await;
    assert_eq!(asked(&known, &["egress"]).await, json!({"networks": ["203.0.113.0/29"], "complete": true}));
    // Any token may ask, and nobody without one.
    let made =
        known.client.post_json("/v1/tokens", &json!({"tenant": "default", "rights": ["read"]})).await.expect(201);
    let reader = Client::new(known.address, made["token"].as_str().unwrap());
    assert_eq!(reader.get("/v1/egress").await.expect(200)["complete"], true);
    Client::new(known.address, "pht_x").get("/v1/egress").await.problem(401, "unauthenticated");

    for (flags, said) in [
        (&["--egress-bind", "203.0.113.9"][..], "no address of this machine"),
        (&["--egress-bind", "127.0.0.7", "--egress-proxy", "http://127.0.0.1:9"], "leave one of them out"),
    ] {
        let output = CapturedOutput::default();
        let options = Options { output: Some(output.clone()), ..Options::flags(flags) };
        let folder = Arc::new(tempfile::tempdir().unwrap());
        assert!(Gateway::try_start_in(folder, options).await.is_err());
        eventually("the reason", async || {
            let text = output.text();
            if text.contains(said) { Ok(()) } else { Err(text) }
        })
        .await;
    }
}
