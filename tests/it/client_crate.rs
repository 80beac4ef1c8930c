//! The crate `posthaste-client` against a real gateway.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use posthaste_client::{Client, ListQuery, NewEvent, RetryPolicy};
use serde_json::json;

use crate::servers::guard::free_port;
use crate::support::{Gateway, Options, Receiver, Reply, eager_retry};

fn client(gateway: &Gateway) -> Client {
    let quick = RetryPolicy { delay_first: Duration::from_millis(10), ..RetryPolicy::default() };
    Client::new(&format!("http://{}", gateway.address), gateway.token()).expect("a client").retry(quick)
}

fn event(n: u32) -> NewEvent {
    NewEvent::new("order.paid", &json!({"n": n})).expect("JSON").id(format!("order-{n}")).key("orders")
}

#[tokio::test]
async fn events_and_batches_are_handed_in_listed_and_replayed() {
    let gateway = Gateway::start().await;
    let receiver =
        Receiver::answering(|request| Reply::Status(if request.id() == "order-2" { 400 } else { 200 })).await;
    let tenant = client(&gateway).tenant("default");
    let settings = json!({"url": receiver.url(), "retry": eager_retry(3), "on_dead": "skip"});
    let endpoint = tenant.create_endpoint(&settings).await.expect("an endpoint");
    assert!(endpoint.secret.is_some_and(|secret| secret.starts_with("whsec_")));

    let receipt = tenant.send(&event(1)).await.expect("accepted");
    assert_eq!((receipt.id.as_str(), receipt.deliveries, receipt.duplicate), ("order-1", 1, false));
    assert!(tenant.send(&event(1)).await.expect("accepted").duplicate);
    let other = NewEvent::new("order.lost", &1).expect("JSON").id("order-1");
    let refused = tenant.send(&other).await.expect_err("another event has this id");
    assert_eq!(refused.problem().map(|problem| (problem.status, problem.code.as_str())), Some((409, "id_conflict")));

    let batch = tenant.send_batch(&[event(2), event(3)]).await.expect("accepted");
    assert_eq!(batch.iter().map(|item| item.status).collect::<Vec<_>>(), [202, 202]);
    let partial = tenant.send_batch_partial(&[other, event(4)]).await.expect("an answer");
    assert_eq!(partial[0].error.as_ref().map(|error| error.code.as_str()), Some("id_conflict"));
    assert_eq!(partial[1].id.as_deref(), Some("order-4"));

    gateway.wait_for_state("order-4", "delivered").await;
    let dead = tenant.dead_letters(&ListQuery::new().filter("cause", "refused")).await.expect("a page").data;
    assert_eq!(
        dead.iter().map(|one| (one.event_id.as_str(), one.last_status)).collect::<Vec<_>>(),
        [("order-2", Some(400))]
    );
    receiver.answer_with(|_| Reply::Status(200));
    tenant.replay(&dead[0].id).await.expect("replayed");
    gateway.wait_for_state("order-2", "delivered").await;
    assert_eq!(tenant.delivery(&dead[0].id).await.expect("a delivery").state, "delivered");
    assert_eq!(tenant.event("order-3").await.expect("an event").data.expect("data").get(), r#"{"n":3}"#);
}

#[tokio::test]
async fn a_gateway_that_is_killed_meanwhile_gets_each_event_once() {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let mut gateway = Gateway::start_with(Options { listen: Some(listen), ..Options::default() }).await;
    let receiver = Receiver::start().await;
    gateway.create_endpoint(json!({"url": receiver.url(), "retry": eager_retry(50)})).await;
    let tenant = client(&gateway).tenant("default");
    let sending = tokio::spawn(async move {
        for n in 1..=200 {
            tenant.send(&event(n)).await.expect("accepted in the end");
        }
    });
    for _ in 0..3 {
        receiver.wait_for(receiver.count() + 10).await;
        gateway.kill().await;
        gateway = gateway.restart().await;
    }
    sending.await.expect("everything was handed in");
    gateway.wait_for_state("order-200", "delivered").await;
    let page = gateway.client.get("/v1/tenants/default/events?limit=500").await.expect(200);
    assert_eq!(page["data"].as_array().map(Vec::len), Some(200), "each once");
    assert_eq!(receiver.times_by_id().len(), 200);
}
