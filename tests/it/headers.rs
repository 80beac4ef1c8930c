//! Headers that endpoints add: which are refused, and what becomes of those
//! that were stored before their names were reserved.

use posthaste::model::audit::Initiator;
use posthaste::model::id::{EndpointId, TenantId};
use posthaste::store::embedded::{Durability, EmbeddedStore};
use posthaste::store::{Catalog, EndpointChange};
use serde_json::{Value, json};

use crate::support::{Gateway, Receiver, path_of};

/// Stores a header with the endpoint as an earlier version may have done.
async fn store_header(gateway: &Gateway, endpoint: &Value, name: &str, value: &str) {
    let store = EmbeddedStore::open(&gateway.folder(), Durability::Synced).unwrap();
    let tenant: TenantId = "default".parse().unwrap();
    let id: EndpointId = endpoint["id"].as_str().unwrap().parse().unwrap();
    let current = store.endpoint(&tenant, id).unwrap();
    let mut settings = current.settings.clone();
    settings.headers.insert(name.to_owned(), value.into());
    let change = EndpointChange::Settings {
        settings: Box::new(settings),
        policy: current.policy.clone(),
        if_updated_at: current.updated_at,
    };
    store.change_endpoint(&Initiator::Gateway, &tenant, id, change, current.updated_at).await.unwrap();
    store.close().await;
}

#[tokio::test]
async fn a_reserved_header_is_refused_and_one_stored_before_stays_and_is_not_sent() {
    let receiver = Receiver::start().await;
    let gateway = Gateway::start().await;
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url(), "headers": {"X-Mine": "yes"}})).await;
    for name in ["X-Real-IP", "X-Tenant", "X-Original-URL", "X-HTTP-Method-Override", "Metadata-Flavor", "x_aws_token"]
    {
        let patch = json!({"headers": {name: "evil"}});
        let refused = gateway.client.patch_json(&path_of(&endpoint), &patch).await.problem(422, "invalid_field");
        assert_eq!(refused["errors"][0]["pointer"], format!("/headers/{name}"), "{refused}");
    }
    let mut gateway = gateway;
    assert!(gateway.terminate().await.success());
    store_header(&gateway, &endpoint, "X-Tenant", "somebody else").await;
    store_header(&gateway, &endpoint, "X-Real-IP", "10.0.0.1").await;
    let gateway = gateway.restart().await;
    let kept = gateway.patch(&endpoint, json!({"description": "changed", "headers": {"X-Mine": "still"}})).await;
    assert_eq!(kept["headers"], json!({"X-Mine": "***", "X-Real-IP": "***", "X-Tenant": "***"}));
    let touched = json!({"headers": {"X-Real-IP": "10.0.0.2"}});
    gateway.client.patch_json(&path_of(&endpoint), &touched).await.problem(422, "invalid_field");

    gateway.send(json!({"id": "one", "type": "t", "data": 1})).await;
    let seen = receiver.wait_for(1).await.remove(0);
    assert_eq!((seen.header("x-tenant"), seen.header("x-mine")), ("default", "still"));
    assert!(seen.headers.get("x-real-ip").is_none(), "{:?}", seen.headers);
    let delivery = gateway.wait_for_state("one", "delivered").await;
    let shown = gateway.attempts_of(&delivery).await[0]["request_headers"].to_string();
    assert!(!shown.contains("x-real-ip") && shown.contains("x-mine"), "{shown}");
    gateway.patch(&endpoint, json!({"headers": {"X-Real-IP": null}})).await;
}
