//! Pausing: the backlog and new events are held, and nothing is lost.

use serde_json::json;

use crate::support::{Gateway, Receiver, Reply, eventually};

for_every_store! {
    a_pause_holds_everything_over_a_restart_and_a_resume_lets_it_go,
    a_pause_lets_what_is_in_flight_finish_and_starts_nothing,
    a_stuck_endpoint_is_in_nobody_elses_way,
}

async fn a_pause_holds_everything_over_a_restart_and_a_resume_lets_it_go() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url()})).await;
    let path = format!("/v1/tenants/default/endpoints/{}", endpoint["id"].as_str().unwrap());
    let paused = gateway.client.post(&format!("{path}/pause"), r#"{"note":"moving house"}"#).await.expect(200);
    assert_eq!((&paused["state"], &paused["state_reason"]), (&json!("paused"), &json!("moving house")));
    for n in 0..100 {
        gateway.send(json!({"id": format!("p-{n}"), "type":"a","key": format!("k{}", n % 3),"data":n})).await;
    }
    assert_eq!(gateway.delivery_of("p-0").await["waiting_for"], "pause");
    let gateway = {
        let mut gateway = gateway;
        gateway.kill().await;
        gateway.restart().await
    };
    assert_eq!(gateway.delivery_of("p-99").await["waiting_for"], "pause");
    assert_eq!(receiver.count(), 0);
    gateway.client.post(&format!("{path}/resume"), "").await.expect(200);
    let seen = receiver.wait_for(100).await;
    for key in ["k0", "k1", "k2"] {
        let places: Vec<u64> = seen
            .iter()
            .filter(|seen| seen.header("x-key") == key)
            .map(|seen| seen.header("x-seq").parse().unwrap())
            .collect();
        assert!(places.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{key}: {places:?}");
    }
}

async fn a_pause_lets_what_is_in_flight_finish_and_starts_nothing() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::answering(|_| Reply::Hold(200)).await;
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url(), "max_in_flight": 1})).await;
    for n in 0..3 {
        gateway.send(json!({"id": format!("f-{n}"), "type":"a","data":n})).await;
    }
    receiver.wait_for(1).await;
    let path = format!("/v1/tenants/default/endpoints/{}", endpoint["id"].as_str().unwrap());
    gateway.client.post(&format!("{path}/pause"), "").await.expect(200);
    receiver.release();
    gateway.wait_for_state("f-0", "delivered").await;
    let held = gateway.list("/v1/tenants/default/deliveries?state=waiting").await;
    assert!(held.len() == 2 && held.iter().all(|delivery| delivery["waiting_for"] == "pause"), "{held:?}");
    assert_eq!(receiver.count(), 1);
    gateway.client.post(&format!("{path}/resume"), "").await.expect(200);
    receiver.wait_for(3).await;
}

async fn a_stuck_endpoint_is_in_nobody_elses_way() {
    let gateway = Gateway::start().await;
    let stuck = Receiver::answering(|_| Reply::Hold(200)).await;
    let free = Receiver::start().await;
    gateway.create_endpoint(json!({"url": stuck.url(), "event_types": ["stuck"]})).await;
    gateway.create_endpoint(json!({"url": free.url(), "event_types": ["free"]})).await;
    for n in 0..50 {
        gateway.send(json!({"id": format!("s-{n}"), "type":"stuck","data":n})).await;
    }
    for n in 0..50 {
        gateway.send(json!({"id": format!("g-{n}"), "type":"free","data":n})).await;
    }
    free.wait_for(50).await;
    assert_eq!(stuck.count(), 10, "only the cap is open at the stuck one");
    stuck.release();
    stuck.wait_for(50).await;
    eventually("the last to be recorded", || async {
        let waiting = gateway.list("/v1/tenants/default/deliveries?state=waiting").await.len();
        if waiting == 0 { Ok(()) } else { Err(waiting.to_string()) }
    })
    .await;
}
