//! Fairness: who hangs holds what it may, and never what others need.

use serde_json::{Value, json};

use crate::support::{Gateway, Options, Receiver, Reply, unlimited};

/// Hangs for longer than any story.
fn patient() -> Value {
    json!({"connect": "5s", "total": "60s"})
}

#[tokio::test]
async fn a_tenant_whose_receivers_hang_does_not_keep_another_waiting() {
    let gateway = Gateway::start_with(Options::flags(&["--max-in-flight", "64"])).await;
    let stuck = Receiver::answering(|_| Reply::Hold(200)).await;
    let well = Receiver::start().await;
    for tenant in ["noisy", "quiet"] {
        gateway.client.send("PUT", &format!("/v1/tenants/{tenant}"), &[], "{}").await.unwrap().expect(201);
    }
    for n in 0..20 {
        let settings =
            json!({"url": format!("http://{}/{n}", stuck.address), "timeout": patient(), "rate": unlimited()});
        gateway.client.post_json("/v1/tenants/noisy/endpoints", &settings).await.expect(201);
    }
    let settings = json!({"url": well.url(), "rate": unlimited()});
    gateway.client.post_json("/v1/tenants/quiet/endpoints", &settings).await.expect(201);
    let batch = |name: &str, count: usize| -> Value {
        (0..count).map(|n| json!({"id": format!("{name}-{n}"), "type": "t", "data": n})).collect()
    };
    // 2,000 deliveries that hang.
    gateway.client.post_json("/v1/tenants/noisy/events/batch", &batch("noisy", 100)).await.expect(202);
    stuck.wait_for(20).await;
    gateway.client.post_json("/v1/tenants/quiet/events/batch", &batch("quiet", 100)).await.expect(202);
    well.wait_for(100).await;
    let hanging = stuck.count();
    assert!(stuck.seen().iter().all(|seen| seen.ended.get().is_none()), "the others still hang");
    assert!((20..64).contains(&hanging), "{hanging} hang, and some room is left");
    // One at a time, too: each finds a slot at once.
    for n in 0..30 {
        let event = json!({"id": format!("single-{n}"), "type": "t", "data": n});
        gateway.client.post_json("/v1/tenants/quiet/events", &event).await.expect(202);
        well.wait_for(101 + n).await;
    }
    assert!(stuck.count() < 64 && stuck.seen().iter().all(|seen| seen.ended.get().is_none()));
}

#[tokio::test]
async fn a_hundred_endpoints_that_hang_do_not_keep_a_hundred_others_waiting() {
    let gateway = Gateway::start_with(Options::flags(&["--max-in-flight", "256"])).await;
    let stuck = Receiver::answering(|_| Reply::Hold(200)).await;
    let well = Receiver::start().await;
    for n in 0..100 {
        for receiver in [&stuck, &well] {
            let url = format!("http://{}/{n}", receiver.address);
            gateway.create_endpoint(json!({"url": url, "timeout": patient(), "rate": unlimited()})).await;
        }
    }
    gateway.send_many("f", "t", 20, |_| None).await;
    let seen = well.wait_for(2_000).await;
    for n in 0..100 {
        let path = format!("/{n}");
        assert_eq!(seen.iter().filter(|seen| seen.path == path).count(), 20, "all of endpoint {n}");
    }
    assert!(stuck.seen().iter().all(|seen| seen.ended.get().is_none()), "the others still hang");
    assert!((100..256).contains(&stuck.count()), "{} hang: each was tried, and room is left", stuck.count());
}
