//! Figures: what the gateway says happened is what the receiver saw.

use std::collections::BTreeSet;

use posthaste::clock::{Clock, SystemClock};
use serde_json::{Value, json};

use crate::support::{Gateway, Receiver, Reply, eager_retry, eventually};

for_every_store! {
    figures_say_what_the_receiver_saw_also_after_a_restart,
    figures_are_refused_where_there_can_be_none,
    a_tenant_that_hands_over_nothing_is_billed_for_its_attempts,
}

const TENANT: &str = "/v1/tenants/default";
const EVENTS: usize = 20;

/// The sum of a number over all points, by its JSON pointer.
fn sum(figures: &Value, pointer: &str) -> u64 {
    let points = figures["data"].as_array().expect("points");
    points.iter().filter_map(|point| point.pointer(pointer)?.as_u64()).sum()
}

async fn figures_say_what_the_receiver_saw_also_after_a_restart() {
    let mut gateway = Gateway::start().await;
    // Every third event is refused, every other third fails once.
    let receiver = Receiver::answering(|seen| {
        let n: usize = seen.id().trim_start_matches('e').parse().expect("a number");
        match (n % 3, seen.header("webhook-attempt")) {
            (0, _) => Reply::Status(400),
            (1, "1") => Reply::Status(503),
            _ => Reply::Status(200),
        }
    })
    .await;
    let settings = json!({"url": receiver.url(), "event_types": ["kind.*"], "retry": eager_retry(5), "breaker": {"enabled": false}});
    let endpoint = gateway.create_endpoint(settings).await;
    let path = format!("{TENANT}/endpoints/{}", endpoint["id"].as_str().unwrap());
    for n in 0..EVENTS {
        gateway.send(json!({"id": format!("e{n}"), "type": format!("kind.k{}", n % 2), "data": n})).await;
    }
    gateway.send(json!({"id": "unwanted", "type": "unwanted", "data": 1})).await;
    gateway.drained(&endpoint).await;
    let replayed = gateway.delivery_of("e0").await;
    receiver.answer_with(|_| Reply::Status(200));
    gateway.post_to_delivery(&replayed, "replay").await.expect(202);
    gateway.wait_for_state("e0", "delivered").await;
    let requests = receiver.count() as u64;
    // What is settled is counted in the next moment.
    eventually("the last attempt to be counted", || async {
        let figures = gateway.client.get(&format!("{path}/figures")).await.expect(200);
        let counted = sum(&figures, "/first/n") + sum(&figures, "/second/n");
        if counted == requests { Ok(()) } else { Err(figures.to_string()) }
    })
    .await;
    let open = check_figures(&gateway, &path, requests).await;
    // What is counted of an open window is written at a stop.
    assert!(gateway.terminate().await.success());
    let gateway = gateway.restart().await;
    let figures = check_figures(&gateway, &path, requests).await;
    assert_eq!(open["data"], figures["data"], "the same as before it was written");

    let lines = usage_on_days_of(&gateway, &figures).await;
    let total = |name: &str| lines.iter().map(|line| line[name].as_u64().expect("a number")).sum::<u64>();
    assert!(lines.iter().all(|line| line["tenant"] == "default"), "{lines:?}");
    let events = EVENTS as u64;
    assert_eq!((total("events"), total("deliveries"), total("attempts")), (events + 1, events, requests), "{lines:?}");
    let bytes: usize = (0..EVENTS).map(|n| n.to_string().len()).sum();
    assert_eq!(total("bytes"), bytes as u64 + 1);
}

/// The usage of all tenants on the days of these figures: midnight, UTC, may come between
/// two events. A day that goes on is never final.
async fn usage_on_days_of(gateway: &Gateway, figures: &Value) -> Vec<Value> {
    let points = figures["data"].as_array().expect("points");
    let days: BTreeSet<&str> = points.iter().map(|point| &point["at"].as_str().expect("a time")[..10]).collect();
    let mut used = Vec::new();
    for day in days {
        let answer = gateway.client.get(&format!("/v1/usage?day={day}")).await;
        let goes_on = SystemClock.now().to_string().starts_with(day);
        for line in String::from_utf8_lossy(&answer.body).lines() {
            let line: Value = line.parse().unwrap();
            assert!(line["day"] == day && line["is_final"].is_boolean(), "{line}");
            assert!(line["is_final"] == false || !goes_on, "{line}");
            used.push(line);
        }
    }
    used
}

/// Compares the figures with what the receiver saw. Returns those of the endpoint.
async fn check_figures(gateway: &Gateway, path: &str, requests: u64) -> Value {
    let figures = gateway.client.get(&format!("{path}/figures")).await.expect(200);
    let refused = (0..EVENTS).filter(|n| n % 3 == 0).count() as u64;
    let failed = (0..EVENTS).filter(|n| n % 3 == 1).count() as u64;
    let events = EVENTS as u64;
    assert_eq!(requests, events + failed + 1, "of the receiver itself");
    let by_result = |class: &str| sum(&figures, &format!("/attempts/by_result/{class}"));
    assert_eq!((by_result("4xx"), by_result("5xx")), (refused, failed), "{figures}");
    assert_eq!(by_result("2xx"), requests - refused - failed);
    assert_eq!(sum(&figures, "/attempts/by_verdict/refused"), refused);
    assert_eq!((sum(&figures, "/first/n"), sum(&figures, "/second/n")), (events + 1, failed));
    assert_eq!(sum(&figures, "/second/delivered"), failed);
    assert_eq!(sum(&figures, "/ended/dead/refused"), refused);
    assert_eq!(sum(&figures, "/ended/delivered"), events - refused + 1, "the replay once more");
    assert_eq!(sum(&figures, "/slo/total"), events - refused, "neither refused ones nor replays");
    assert_eq!((sum(&figures, "/accepted"), sum(&figures, "/waiting")), (events, 0));
    assert_eq!(figures["gaps"], json!([]));

    let tenant = gateway.client.get(&format!("{TENANT}/figures?step=1h")).await.expect(200);
    assert_eq!(sum(&tenant, "/ended/delivered"), events - refused + 1);
    assert_eq!(sum(&tenant, "/accepted"), events + 1, "also what nobody wanted");
    let all = gateway.client.get("/v1/figures?step=1d").await.expect(200);
    assert_eq!(sum(&all, "/accepted"), events + 1);
    let types = gateway.client.get(&format!("{TENANT}/figures/types")).await.expect(200);
    let attempts: u64 = types["data"].as_array().unwrap().iter().map(|one| one["attempts"].as_u64().unwrap()).sum();
    assert_eq!((types["data"].as_array().unwrap().len(), attempts), (2, requests), "{types}");
    figures
}

async fn figures_are_refused_where_there_can_be_none() {
    let gateway = Gateway::start().await;
    let get = async |query: &str| gateway.client.get(&format!("/v1/figures?{query}")).await;
    get("from=2026-01-01T00:00:00Z&to=2026-02-01T00:00:00Z&step=5m").await.problem(422, "invalid_field");
    get("from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z").await.problem(422, "invalid_field");
    get("to=2026-01-01T00:00:00Z&step=5m").await.problem(422, "invalid_field");
    get("step=1w").await.problem(422, "invalid_field");
    get("from=yesterday").await.problem(422, "invalid_field");
    get("until=2026-01-01T00:00:00Z").await.problem(422, "unknown_field");
    let none = get("from=2026-01-01T00:00:00Z&to=2026-02-01T00:00:00Z&step=1d").await.expect(200);
    assert_eq!((&none["data"], &none["step"]), (&json!([]), &json!("1d")));
    gateway.client.get("/v1/tenants/nobody/figures").await.problem(404, "not_found");
    gateway.client.get("/v1/usage").await.problem(422, "invalid_field");
    gateway.client.get("/v1/usage?day=today").await.problem(422, "invalid_field");
}

async fn a_tenant_that_hands_over_nothing_is_billed_for_its_attempts() {
    let gateway = Gateway::start().await;
    for tenant in ["quiet", "silent"] {
        gateway.client.send("PUT", &format!("/v1/tenants/{tenant}"), &[], "{}").await.unwrap().expect(201);
    }
    let receiver = Receiver::start().await;
    let listener = json!({"url": receiver.url(), "listens_to": "operations"});
    gateway.client.post_json("/v1/tenants/quiet/endpoints", &listener).await.expect(201);
    let job = json!({"kind": "retry", "filter": {"all": true}});
    gateway.client.post_json("/v1/tenants/quiet/jobs", &job).await.expect(202);
    assert_eq!(receiver.wait_for(1).await[0].json()["type"], "job.finished");
    let figures = eventually("the attempt to be counted", || async {
        let figures = gateway.client.get("/v1/tenants/quiet/figures").await.expect(200);
        if sum(&figures, "/first/n") == 1 { Ok(figures) } else { Err(figures.to_string()) }
    })
    .await;
    let lines = usage_on_days_of(&gateway, &figures).await;
    let used = |line: &Value| {
        let counts = ["events", "deliveries", "bytes", "attempts"].map(|name| line[name].as_u64().expect("a number"));
        (line["tenant"].as_str().expect("a tenant").to_owned(), counts)
    };
    assert_eq!(lines.iter().map(used).collect::<Vec<_>>(), [("quiet".to_owned(), [0, 0, 0, 1])]);
}
