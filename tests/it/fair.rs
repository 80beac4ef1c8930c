//! Fairness: who hangs holds what it may, and never what others need.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Gateway, Options, Receiver, Reply, unlimited};

for_every_store! {
    cap_and_rate_hold_and_a_quiet_tenant_is_served_while_producers_saturate_the_gateway,
}

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

async fn cap_and_rate_hold_and_a_quiet_tenant_is_served_while_producers_saturate_the_gateway() {
    const CAP: usize = 3;
    const PER_SECOND: u32 = 20;
    const BURST: u32 = 5;
    let gateway = Gateway::start().await;
    let (flooded, rated, well) = (Receiver::start().await, Receiver::start().await, Receiver::start().await);
    let capped = Receiver::answering(|_| Reply::After(Duration::from_millis(50), 200)).await;
    for (receiver, cap, rate) in [
        (&flooded, 64, unlimited()),
        (&capped, CAP, unlimited()),
        (&rated, 64, json!({"per_second": PER_SECOND, "burst": BURST})),
    ] {
        let settings = json!({"url": receiver.url(), "max_in_flight": cap, "rate": rate});
        gateway.create_endpoint(settings).await;
    }
    gateway.client.send("PUT", "/v1/tenants/quiet", &[], "{}").await.unwrap().expect(201);
    gateway.client.post_json("/v1/tenants/quiet/endpoints", &json!({"url": well.url()})).await.expect(201);
    let (began, is_over) = (Instant::now(), AtomicBool::new(false));
    let producer = async |_: usize| {
        let client = gateway.another_client();
        let mut accepted = 0_usize;
        while !is_over.load(Ordering::Relaxed) {
            let answer = client.post_json("/v1/tenants/default/events", &json!({"type": "flood", "data": 1})).await;
            // Whoever is asked to slow down asks again.
            assert!([202, 429, 503].contains(&answer.status), "{answer:?}");
            accepted += usize::from(answer.status == 202);
        }
        accepted
    };
    let quiet = async {
        flooded.wait_for(500).await;
        for n in 0..30 {
            let event = json!({"id": format!("quiet-{n}"), "type": "t", "data": n});
            gateway.client.post_json("/v1/tenants/quiet/events", &event).await.expect(202);
            well.wait_for(1 + n).await;
        }
        is_over.store(true, Ordering::Relaxed);
    };
    let (accepted, ()) = tokio::join!(futures_util::future::join_all((0..32).map(producer)), quiet);
    let accepted: usize = accepted.into_iter().sum();
    // Counted before the time is taken: what is counted began within it.
    let (at_cap, at_rate) = (capped.count(), rated.count());
    let within = began.elapsed().as_secs_f64();
    assert!(at_cap < accepted && at_rate < accepted, "both had more than they may: {at_cap}, {at_rate} of {accepted}");
    assert_eq!(capped.most_open(""), CAP);
    let allowed = f64::from(BURST) + f64::from(PER_SECOND) * within;
    assert!(
        at_rate >= BURST as usize && at_rate as f64 <= allowed,
        "{at_rate} within {within:.3} s, and {allowed:.1} are allowed"
    );
    for receiver in [&flooded, &capped, &rated, &well] {
        assert!(receiver.times_by_id().values().all(|times| *times == 1), "nothing arrives twice");
    }
}
