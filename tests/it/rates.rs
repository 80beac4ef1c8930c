//! Rates: smooth, never exceeded in any window, and no attempt is used by
//! waiting.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Gateway, ReceivedRequest, Receiver, eventually, path_of};

for_every_store! {
    a_rate_holds_in_every_window_also_while_it_is_changed_and_waiting_uses_no_attempt,
    a_tenants_rate_is_shared_by_its_endpoints,
    a_restart_is_no_fresh_burst,
    a_change_is_no_fresh_burst,
}

/// What the way to the receiver may shift on a busy machine. `model/rate.rs` tests the rate itself.
const ON_THE_WAY: f64 = 0.200;

/// Checks every window from 100 ms on: at most the burst, and the rate's worth.
#[track_caller]
fn check_windows(what: &str, arrivals: &[Instant], per_second: f64, burst: f64) {
    for (n, first) in arrivals.iter().enumerate() {
        for (m, last) in arrivals.iter().enumerate().skip(n) {
            let window = last.duration_since(*first).as_secs_f64().max(0.1);
            let (found, allowed) = ((m - n + 1) as f64, burst + per_second * (window + ON_THE_WAY));
            assert!(found <= allowed, "{what}: {found} within {window:.3} s, and {allowed:.1} are allowed");
        }
    }
}

fn arrivals(seen: &[ReceivedRequest]) -> Vec<Instant> {
    let mut arrivals: Vec<Instant> = seen.iter().map(|seen| seen.began).collect();
    arrivals.sort();
    arrivals
}

fn rate(per_second: u32, burst: u32) -> Value {
    json!({"per_second": per_second, "burst": burst})
}

async fn a_rate_holds_in_every_window_also_while_it_is_changed_and_waiting_uses_no_attempt() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let settings = json!({"url": receiver.url(), "rate": rate(50, 5), "max_in_flight": 100});
    let endpoint = gateway.create_endpoint(settings).await;
    gateway.send_many("r", "t", 330, |_| None).await;
    receiver.wait_for(50).await;
    // One or two may be on their way this very moment, and for an instant the
    // next may go: what is told is looked at until it is not that instant.
    eventually("all that wait to wait for the rate", || async {
        let page = gateway.client.get("/v1/tenants/default/deliveries?state=waiting&limit=500").await.expect(200);
        let waiting = page["data"].as_array().unwrap();
        assert!(waiting.len() > 200, "{} wait", waiting.len());
        let idle: Vec<&Value> = waiting.iter().filter(|delivery| delivery["in_flight"] != true).collect();
        assert!(idle.iter().all(|delivery| delivery["attempts"] == 0), "{idle:?}");
        match idle.iter().find(|delivery| delivery["waiting_for"] != "rate") {
            None => Ok(()),
            Some(other) => Err(other.to_string()),
        }
    })
    .await;

    let slow = receiver.wait_for(75).await;
    check_windows("at 50/s", &arrivals(&slow), 50.0, 5.0);
    gateway.patch(&endpoint, json!({"rate": rate(200, 10)})).await;
    let fast = receiver.wait_for(255).await;
    check_windows("faster", &arrivals(&fast), 200.0, 10.0);
    gateway.patch(&endpoint, json!({"rate": rate(25, 1)})).await;
    // What had begun at the rate before has arrived, or is on its way.
    let waiting = gateway.list("/v1/tenants/default/deliveries?state=waiting").await;
    let begun: HashSet<&str> =
        waiting.iter().filter(|one| one["in_flight"] == true).map(|one| one["event_id"].as_str().unwrap()).collect();
    let changed = Instant::now();
    let all = receiver.wait_for(330).await;
    gateway.drained(&endpoint).await;
    check_windows("all of it", &arrivals(&all), 200.0, 10.0);
    let slowest: Vec<ReceivedRequest> =
        all.iter().filter(|seen| seen.began > changed && !begun.contains(seen.id())).cloned().collect();
    let slowest = arrivals(&slowest);
    assert!(slowest.len() >= 40, "{} came after the last change", slowest.len());
    check_windows("slower", &slowest, 25.0, 1.0);
    // Smooth: at a burst of one, they come one by one. On its way one may be held up until the next.
    let mut gaps: Vec<Duration> = slowest.windows(2).skip(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort();
    let gap = gaps[gaps.len() / 2];
    assert!(gap > Duration::from_millis(15), "{gap:?} between most at 25/s");
    assert!(receiver.times_by_id().values().all(|times| *times == 1));
    let span = slowest[slowest.len() - 1] - slowest[0];
    let least = (slowest.len() - 1) as f64 / 25.0;
    assert!(span.as_secs_f64() < 10.0 * least, "it is used, too: {span:?} for {} requests", slowest.len());
}

async fn a_tenants_rate_is_shared_by_its_endpoints() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let tenant = json!({"name": "Acme", "rate": rate(40, 4)}).to_string();
    gateway.client.send("PUT", "/v1/tenants/acme", &[], tenant).await.unwrap();
    let mut endpoint = Value::Null;
    for path in ["one", "two"] {
        let settings = json!({"url": format!("http://{}/{path}", receiver.address), "max_in_flight": 100});
        endpoint = gateway.client.post_json("/v1/tenants/acme/endpoints", &settings).await.expect(201);
    }
    let events: Vec<Value> = (0..50).map(|n| json!({"id": format!("t-{n}"), "type": "t", "data": n})).collect();
    gateway.client.post_json("/v1/tenants/acme/events/batch", &json!(events)).await.expect(202);
    let half = receiver.wait_for(40).await;
    check_windows("at 40/s", &arrivals(&half), 40.0, 4.0);
    for path in ["/one", "/two"] {
        let theirs = half.iter().filter(|seen| seen.path == path).count();
        assert!((15..=25).contains(&theirs), "{theirs} of {} went to {path}", half.len());
    }
    // Faster from now on.
    let tenant = json!({"name": "Acme", "rate": rate(200, 4)}).to_string();
    gateway.client.send("PUT", "/v1/tenants/acme", &[], tenant).await.unwrap();
    let all = receiver.wait_for(100).await;
    check_windows("at 200/s", &arrivals(&all), 200.0, 4.0);
    gateway.drained(&endpoint).await;
    assert_eq!(gateway.client.get(&path_of(&endpoint)).await.expect(200)["health"]["waiting"], 0);
}

async fn a_restart_is_no_fresh_burst() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let settings = json!({"url": receiver.url(), "rate": rate(20, 20), "max_in_flight": 100});
    let endpoint = gateway.create_endpoint(settings).await;
    gateway.send_many("b", "t", 80, |_| None).await;
    let mut gateway = gateway;
    for _ in 0..3 {
        receiver.wait_for(receiver.count() + 8).await;
        gateway = gateway.killed_and_restarted().await;
    }
    eventually("all to arrive", || async {
        let found = receiver.times_by_id().len();
        if found == 80 { Ok(()) } else { Err(format!("{found} came")) }
    })
    .await;
    gateway.drained(&endpoint).await;
    check_windows("over three restarts", &arrivals(&receiver.seen()), 20.0, 20.0);
}

async fn a_change_is_no_fresh_burst() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let settings = json!({"url": receiver.url(), "rate": rate(20, 10), "max_in_flight": 100});
    let endpoint = gateway.create_endpoint(settings).await;
    gateway.send_many("n", "t", 50, |_| None).await;
    for n in 0..10 {
        gateway.patch(&endpoint, json!({"rate": rate(20 + n % 2, 10)})).await;
    }
    gateway.drained(&endpoint).await;
    check_windows("over ten changes", &arrivals(&receiver.seen()), 21.0, 11.0);
}
