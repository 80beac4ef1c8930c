//! The trace of an event over several nodes is one trace.

use serde_json::json;

use crate::nodes::Cluster;
use crate::support::{Collector, Receiver, Reply};

const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_two_nodes_attempt_is_one_trace() {
    let collector = Collector::start().await;
    let receiver = Receiver::scripted(vec![Reply::Status(503), Reply::Status(200)]).await;
    let mut cluster = Cluster::new().await;
    let exporting = [("POSTHASTE_OTLP_ENDPOINT".to_owned(), collector.url())].to_vec();
    cluster.start_in(vec![exporting.clone(), exporting], "2s").await;
    cluster.settled().await;
    // An endpoint of each node; the events go in at the first.
    let hourly = json!({"schedule": ["1h"], "jitter": "none", "max_attempts": 9});
    let settings = json!({"url": receiver.url(), "retry": hourly, "event_types": ["none"]});
    let endpoint = loop {
        let made = cluster.nodes[0].client().post_json("/v1/tenants/default/endpoints", &settings).await.expect(201);
        let name = format!("e{}", cluster.endpoints.len());
        cluster.endpoints.push(made.clone());
        if cluster.owned_by(1).await.contains(&name) {
            break made;
        }
    };
    let event = json!({"id": "traced", "type": "t", "data": 1, "endpoints": [endpoint["id"]]}).to_string();
    let (path, headers) = ("/v1/tenants/default/events", [("traceparent", GIVEN)]);
    cluster.nodes[0].client().send("POST", path, &headers, event).await.unwrap().expect(202);
    let first = collector.wait_for("traced", 4).await;
    // The first attempt was made by the other node, which now ends without a word.
    cluster.kill(1).await;
    let gateway = cluster.nodes[0].gateway();
    let delivery = gateway.delivery_of("traced").await;
    gateway.post_to_delivery(&delivery, "retry").await.expect(202);
    let seen = receiver.wait_for(2).await;
    let spans = collector.wait_for("traced", 7).await;
    assert!(spans.iter().all(|span| span.trace == first[0].trace && span.trace == GIVEN[3..35]), "{spans:?}");
    let one = |name: &str, number: &str| {
        let found = spans.iter().filter(|span| span.name == name && span.attribute("posthaste.attempt") == number);
        let [one] = found.collect::<Vec<_>>()[..] else { panic!("not one {name} {number:?}: {spans:?}") };
        one
    };
    let (accept, before, after) = (one("accept", ""), one("attempt", "1"), one("attempt", "2"));
    assert_eq!(accept.instance, after.instance, "it was accepted where it was delivered in the end");
    assert_ne!(before.instance, after.instance, "two nodes attempted it");
    assert_eq!(after.links, [(before.trace.clone(), before.id.clone())]);
    assert_eq!(one("dispatch", "2").parent.as_ref(), Some(&accept.id));
    let passed_on: Vec<String> = [before, after].map(|span| format!("{}-{}-01", &GIVEN[..35], span.id)).into();
    assert_eq!(seen.iter().map(|seen| seen.header("traceparent")).collect::<Vec<_>>(), passed_on);
}
