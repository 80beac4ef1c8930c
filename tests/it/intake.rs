//! How much may come in: a tenant keeps to its rate, all together to what the
//! gateway can hold, and a batch can be spread over time.

use std::time::{Duration, Instant};

use posthaste::clock::{Clock, SystemClock};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Answer, Gateway, Options, Receiver, eventually, time};

for_every_store! {
    what_is_spread_waits_in_the_store_and_an_event_that_is_over_ends,
    a_changed_limit_counts_at_once,
}

const EVENTS: &str = "/v1/tenants/default/events";
const BATCH: &str = "/v1/tenants/default/events/batch";

/// A tenant that may hand in this much.
async fn tenant(gateway: &Gateway, id: &str, per_second: f64, burst: u32) {
    let body = json!({"ingest": {"per_second": per_second, "burst": burst}}).to_string();
    gateway.client.send("PUT", &format!("/v1/tenants/{id}"), &[], body).await.unwrap().expect(201);
}

async fn send_event(gateway: &Gateway, tenant: &str, id: &str) -> Answer {
    let event = json!({"id": id, "type": "a", "data": 1});
    gateway.client.post_json(&format!("/v1/tenants/{tenant}/events"), &event).await
}

fn batch(tenant: &str, ids: std::ops::Range<u32>) -> (String, Value) {
    let events: Vec<Value> = ids.map(|n| json!({"id": format!("b{n}"), "type": "a", "data": n})).collect();
    (format!("/v1/tenants/{tenant}/events/batch"), events.into())
}

fn header<'a>(answer: &'a Answer, name: &str) -> &'a str {
    answer.headers.get(name).map_or("", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn a_tenant_over_its_rate_is_told_when_to_come_back_and_others_are_not_limited() {
    let gateway = Gateway::start().await;
    tenant(&gateway, "small", 0.001, 3).await;
    for (n, left) in [(1, 2), (2, 1)] {
        let taken = send_event(&gateway, "small", &format!("e{n}")).await;
        taken.expect(202);
        assert_eq!(header(&taken, "ratelimit-policy"), r#""ingest";q=3;w=3000"#);
        assert!(header(&taken, "ratelimit").starts_with(&format!(r#""ingest";r={left};t="#)), "{:?}", taken.headers);
    }
    // A repeat is work as well.
    assert_eq!(send_event(&gateway, "small", "e1").await.expect(202)["duplicate"], true);
    let limited = send_event(&gateway, "small", "e3").await;
    let problem = limited.problem(429, "rate_limited");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("tenant small") && detail.contains("0.001 events per second, 3 at once"), "{detail}");
    let seconds: u64 = header(&limited, "retry-after").parse().unwrap();
    assert!((900..=1_000).contains(&seconds), "{seconds}");
    assert_eq!(header(&limited, "ratelimit-policy"), r#""ingest";q=3;w=3000"#);
    assert!(header(&limited, "ratelimit").starts_with(r#""ingest";r=0;t="#), "{:?}", limited.headers);

    let other = send_event(&gateway, "default", "e3").await;
    other.expect(202);
    assert!(!other.headers.contains_key("ratelimit") && !other.headers.contains_key("ratelimit-policy"));
    assert_eq!(gateway.list("/v1/tenants/small/events").await.len(), 2, "nothing of what was limited is written");
}

#[tokio::test]
async fn a_batch_counts_each_event_and_is_limited_as_a_whole() {
    let gateway = Gateway::start().await;
    tenant(&gateway, "small", 0.001, 3).await;
    send_event(&gateway, "small", "first").await.expect(202);
    let (path, three) = batch("small", 0..3);
    for path in [path.clone(), format!("{path}?partial=true")] {
        let limited = gateway.client.post_json(&path, &three).await;
        limited.problem(429, "rate_limited");
        assert!(header(&limited, "ratelimit").starts_with(r#""ingest";r=2;"#), "{:?}", limited.headers);
    }
    assert_eq!(gateway.list("/v1/tenants/small/events").await.len(), 1);
    let (path, two) = batch("small", 0..2);
    let taken = gateway.client.post_json(&path, &two).await;
    taken.expect(202);
    assert!(header(&taken, "ratelimit").starts_with(r#""ingest";r=0;"#), "{:?}", taken.headers);

    tenant(&gateway, "tiny", 0.001, 2).await;
    let (path, many) = batch("tiny", 0..50);
    gateway.client.post_json(&path, &many).await.expect(202);
    let owing = send_event(&gateway, "tiny", "next").await;
    owing.problem(429, "rate_limited");
    let seconds: u64 = header(&owing, "retry-after").parse().unwrap();
    assert!((48_000..=49_000).contains(&seconds), "what went over the burst is owed: {seconds}");
}

#[tokio::test]
async fn a_limit_refills_with_time() {
    let gateway = Gateway::start().await;
    tenant(&gateway, "small", 0.5, 1).await;
    let began = Instant::now();
    send_event(&gateway, "small", "first").await.expect(202);
    let limited = send_event(&gateway, "small", "second").await;
    limited.problem(429, "rate_limited");
    assert!(["1", "2"].contains(&header(&limited, "retry-after")), "{:?}", limited.headers);
    eventually("the bucket to refill", || async {
        let answer = send_event(&gateway, "small", "second").await;
        if answer.status == 202 { Ok(()) } else { Err(answer.json().to_string()) }
    })
    .await;
    assert!(began.elapsed() >= Duration::from_millis(1_990), "one every two seconds: {:?}", began.elapsed());
}

async fn a_changed_limit_counts_at_once() {
    let gateway = Gateway::start().await;
    tenant(&gateway, "small", 0.001, 1).await;
    send_event(&gateway, "small", "first").await.expect(202);
    send_event(&gateway, "small", "second").await.problem(429, "rate_limited");
    let raised = json!({"ingest": {"per_second": 100_000, "burst": 1_000}});
    gateway.client.patch_json("/v1/tenants/small", &raised).await.expect(200);
    // Its bucket was empty, and fills within ticks of the clock.
    eventually("the raised limit to count", || async {
        let answer = send_event(&gateway, "small", "second").await;
        let left = header(&answer, "ratelimit").split(';').find_map(|part| part.strip_prefix("r=")?.parse().ok());
        if answer.status == 202 && left >= Some(500) { Ok(()) } else { Err(answer.json().to_string()) }
    })
    .await;
    let lowered = json!({"ingest": {"per_second": 0.001, "burst": 1}});
    gateway.client.patch_json("/v1/tenants/small", &lowered).await.expect(200);
    send_event(&gateway, "small", "third").await.expect(202);
    send_event(&gateway, "small", "fourth").await.problem(429, "rate_limited");
}

/// An upload that has begun: the head, and this much of a body of that size.
async fn upload(gateway: &Gateway, sent: usize, whole: usize) -> TcpStream {
    let start = r#"{"type":"a","data":""#;
    let head = format!(
        "POST {EVENTS} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {}\r\ncontent-length: {whole}\r\n\r\n{start}",
        gateway.token()
    );
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all("x".repeat(sent - start.len()).as_bytes()).await.unwrap();
    stream
}

fn event_of(bytes: usize) -> Value {
    json!({"type": "a", "data": "y".repeat(bytes)})
}

/// An upload that stands still and holds 50,000 bytes, and what an event that
/// is too much besides is answered. Should that one come while the upload is
/// still coming in, either may be turned away; then it is tried again.
async fn upload_that_holds(gateway: &Gateway) -> (TcpStream, Answer) {
    eventually("an upload to hold its bytes", || async {
        let upload = upload(gateway, 50_000, 60_000).await;
        gateway.list(EVENTS).await;
        let first = gateway.client.post_json(EVENTS, &event_of(20_000)).await;
        let second = gateway.client.post_json(EVENTS, &event_of(20_000)).await;
        match (first.status, second.status) {
            (503, 503) => Ok((upload, first)),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

#[tokio::test]
async fn bodies_on_their_way_in_are_bounded_together() {
    let gateway = Gateway::start_with(Options::flags(&["--ingest-memory", "64KiB"])).await;
    let (mut slow, refused) = upload_that_holds(&gateway).await;
    refused.problem(503, "unavailable");
    assert!(["1", "2", "3"].contains(&header(&refused, "retry-after")), "{:?}", refused.headers);
    let before = gateway.list(EVENTS).await.len();
    gateway.client.post_json(EVENTS, &event_of(20_000)).await.problem(503, "unavailable");
    assert_eq!(gateway.list(EVENTS).await.len(), before, "nothing of what was refused is written");
    gateway.client.post_json(EVENTS, &event_of(1_000)).await.expect(202);
    gateway.client.send("PUT", "/v1/tenants/other", &[], "{}").await.unwrap().expect(201);
    gateway.client.post_json("/v1/tenants/other/events", &event_of(10_000)).await.expect(202);
    // What manages the gateway goes on.
    gateway.client.patch_json("/v1/tenants/default", &json!({"name": "z".repeat(200)})).await.expect(200);

    slow.write_all(format!("{}\"}}", "x".repeat(9_998)).as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    slow.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 202");
    gateway.client.post_json(EVENTS, &event_of(60_000)).await.expect(202);

    let (gone, _) = upload_that_holds(&gateway).await;
    drop(gone);
    eventually("the account to be free again", || async {
        let answer = gateway.client.post_json(EVENTS, &event_of(60_000)).await;
        if answer.status == 202 { Ok(()) } else { Err(answer.json().to_string()) }
    })
    .await;
}

#[tokio::test]
async fn one_request_is_always_possible_however_little_may_be_held() {
    let gateway = Gateway::start_with(Options::flags(&["--ingest-memory", "1KiB", "--ingest-waiting", "1"])).await;
    gateway.client.post_json(EVENTS, &event_of(500_000)).await.expect(202);
    gateway.client.post_json(EVENTS, &event_of(1_000)).await.expect(202);
}

#[tokio::test]
async fn more_requests_than_may_wait_are_turned_away_at_once_and_leave_nothing() {
    let gateway = Gateway::start_with(Options::flags(&["--ingest-waiting", "1"])).await;
    let producers: Vec<_> = (0..16)
        .map(|producer| {
            let client = gateway.another_client();
            tokio::spawn(async move {
                let (mut taken, mut refused) = (0, 0);
                for n in 0..50 {
                    let event = json!({"id": format!("p{producer}-{n}"), "type": "a", "data": 1});
                    let answer = client.post_json(EVENTS, &event).await;
                    match answer.status {
                        202 => taken += 1,
                        _ => {
                            answer.problem(503, "unavailable");
                            assert!(answer.headers.contains_key("retry-after"));
                            refused += 1;
                        }
                    }
                }
                (taken, refused)
            })
        })
        .collect();
    let (mut taken, mut refused) = (0, 0);
    for producer in producers {
        let (more, less) = producer.await.unwrap();
        taken += more;
        refused += less;
    }
    assert!(taken > 0 && refused > 0, "{taken} taken, {refused} refused");
    assert_eq!(gateway.list(EVENTS).await.len(), taken);
    gateway.client.post_json(EVENTS, &event_of(1)).await.expect(202);
}

#[tokio::test]
async fn a_spread_batch_arrives_over_its_window_and_keyed_events_at_once_in_order() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    gateway.create_endpoint(json!({"url": receiver.url(), "max_in_flight": 100})).await;
    let mut events: Vec<Value> = (0..200).map(|n| json!({"id": format!("e{n}"), "type": "a", "data": n})).collect();
    events.extend((0..10).map(|n| json!({"id": format!("k{n}"), "type": "a", "key": "k", "data": n})));
    let path = format!("{BATCH}?spread=2s");
    gateway.client.post_json(&path, &events.clone().into()).await.expect(202);
    let repeat = gateway.client.post_json(&path, &events.into()).await.expect(202);
    assert!(repeat["data"].as_array().unwrap().iter().all(|item| item["duplicate"] == true));
    let seen = receiver.wait_for(210).await;
    assert!(receiver.times_by_id().values().all(|times| *times == 1), "a repeat adds nothing");

    let mut began: Vec<Instant> =
        seen.iter().filter(|seen| seen.id().starts_with('e')).map(|seen| seen.began).collect();
    began.sort();
    let crowd = began.iter().enumerate().map(|(n, from)| {
        let until = *from + Duration::from_millis(100);
        began[n..].partition_point(|at| *at < until)
    });
    let most = crowd.max().unwrap();
    // Ten, unless the machine stalls.
    assert!(most <= 120, "{most} of 200 came within 100ms");
    let over = *began.last().unwrap() - began[0];
    assert!(over >= Duration::from_millis(1_200), "all came within {over:?}");
    let keyed: Vec<&str> = seen.iter().map(|seen| seen.id()).filter(|id| id.starts_with('k')).collect();
    assert_eq!(keyed, (0..10).map(|n| format!("k{n}")).collect::<Vec<_>>());
    let last = seen.iter().filter(|seen| seen.id() == "k9").map(|seen| seen.began).next().unwrap();
    assert!(last < began[150], "keyed events do not wait for the window");
}

async fn what_is_spread_waits_in_the_store_and_an_event_that_is_over_ends() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let plain = gateway.create_endpoint(json!({"url": receiver.url()})).await;
    let lane = gateway.create_endpoint(json!({"url": receiver.url(), "ordering": "endpoint"})).await;
    let soon = (SystemClock.now() + Duration::from_millis(700)).to_string();
    let events = json!([
        {"id": "late", "type": "a", "data": 1, "endpoints": [plain["id"]]},
        {"id": "over", "type": "a", "data": 1, "endpoints": [plain["id"]], "expires_at": soon},
        {"id": "ordered", "type": "a", "data": 1, "endpoints": [lane["id"]]},
    ]);
    gateway.client.post_json(&format!("{BATCH}?spread=24h"), &events).await.expect(202);
    gateway.wait_for_state("ordered", "delivered").await;
    let over = gateway.wait_for_state("over", "dead").await;
    assert_eq!(over["cause"], "expired");
    let late = gateway.delivery_of("late").await;
    assert_eq!((&late["state"], &late["waiting_for"]), (&json!("waiting"), &json!("due")));
    assert!(time(&late["next_attempt_at"]) > time(&late["created_at"]), "{late}");
    assert_eq!(receiver.count(), 1);

    // A person may send it before its time, also after a restart.
    let gateway = gateway.restart().await;
    gateway.post_to_delivery(&late, "retry").await.expect(202);
    gateway.wait_for_state("late", "delivered").await;
}

#[tokio::test]
async fn a_spread_that_makes_no_sense_is_refused_by_name() {
    let gateway = Gateway::start_with(Options::flags(&["--hold-max", "1h"])).await;
    for (spread, words) in [("500ms", "use 1s to 1h"), ("2h", "use 1s to 1h"), ("soon", "not a duration"), ("", "")] {
        let refused = gateway.client.post(&format!("{BATCH}?spread={spread}"), r#"[{"type":"a","data":1}]"#).await;
        let problem = refused.problem(422, "invalid_field");
        assert_eq!(problem["errors"][0]["pointer"], "?spread", "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(words), "{problem}");
    }
    gateway
        .client
        .post(&format!("{EVENTS}?spread=10m"), r#"{"type":"a","data":1}"#)
        .await
        .problem(422, "unknown_field");
    assert!(gateway.list(EVENTS).await.is_empty());
}
