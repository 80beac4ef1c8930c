//! Traces: what a producer gives is passed on with every attempt, and the spans of an
//! event are one trace, whatever happens to the gateway.

use std::time::Instant;

use serde_json::{Value, json};

use crate::servers::guard::free_port;
use crate::support::{
    CollectedSpan, Collector, Gateway, Options, ReceivedRequest, Receiver, Reply, eager_retry, eventually,
};

for_every_store! {
    an_event_that_fails_twice_is_one_connected_trace,
    a_given_trace_is_kept_over_a_kill_and_a_replay,
    a_given_trace_is_passed_on_byte_for_byte_and_nothing_else_changes,
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const STATE: &str = "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7";

/// Starts a gateway that exports this share of its traces.
async fn exporting(url: &str, share: &str) -> Gateway {
    Gateway::start_with(Options::flags(&["--otlp-endpoint", url, "--trace-sampling", share])).await
}

/// Submits an event with these headers; returns its receipt.
async fn send_with(gateway: &Gateway, headers: &[(&str, &str)], event: Value) -> Value {
    let path = "/v1/tenants/default/events";
    gateway.client.send("POST", path, headers, event.to_string()).await.unwrap().expect(202)
}

/// Returns the spans of this name, in their order.
fn named<'a>(spans: &'a [CollectedSpan], name: &str) -> Vec<&'a CollectedSpan> {
    spans.iter().filter(|span| span.name == name).collect()
}

/// Checks that these spans are one trace of one delivery with so many attempts, and
/// that each has its place in it. Returns the attempts.
fn check_one_trace<'a>(spans: &'a [CollectedSpan], attempts: usize, parent: Option<&str>) -> Vec<&'a CollectedSpan> {
    assert_eq!(spans.len(), 1 + 3 * attempts, "{spans:?}");
    assert!(spans.iter().all(|span| span.trace == spans[0].trace), "{spans:?}");
    let ids: std::collections::BTreeSet<&str> = spans.iter().map(|span| span.id.as_str()).collect();
    assert_eq!(ids.len(), spans.len(), "every span has an id of its own");
    let [accept] = named(spans, "accept")[..] else { panic!("not one acceptance: {spans:?}") };
    assert_eq!((accept.kind, accept.parent.as_deref()), (2, parent));
    let of_number = |name: &str, number: usize| {
        let number = number.to_string();
        let found = spans.iter().filter(|span| span.name == name && span.attribute("posthaste.attempt") == number);
        let [one] = found.collect::<Vec<_>>()[..] else { panic!("not one {name} of attempt {number}: {spans:?}") };
        one
    };
    let mut made: Vec<&CollectedSpan> = Vec::new();
    for number in 1..=attempts {
        let [dispatch, attempt, settle] = ["dispatch", "attempt", "settle"].map(|name| of_number(name, number));
        assert_eq!((dispatch.kind, attempt.kind, settle.kind), (1, 3, 1));
        assert_eq!(dispatch.parent.as_ref(), Some(&accept.id));
        assert_eq!(attempt.parent.as_ref(), Some(&dispatch.id));
        assert_eq!(settle.parent.as_ref(), Some(&attempt.id));
        let before = made.last().map(|before| (before.trace.clone(), before.id.clone()));
        assert_eq!(attempt.links, before.into_iter().collect::<Vec<_>>(), "it links to the attempt before");
        assert!(dispatch.began <= attempt.began && attempt.began <= settle.began, "{spans:?}");
        made.push(attempt);
    }
    made
}

fn traceparents(seen: &[ReceivedRequest]) -> Vec<&str> {
    seen.iter().map(|seen| seen.header("traceparent")).collect()
}

async fn an_event_that_fails_twice_is_one_connected_trace() {
    let collector = Collector::start().await;
    let gateway = exporting(&collector.url(), "100%").await;
    let receiver = Receiver::scripted(vec![Reply::Status(503), Reply::Status(503), Reply::Status(200)]).await;
    gateway.create_endpoint(json!({"url": receiver.url(), "retry": eager_retry(5)})).await;
    gateway.send(json!({"id": "traced", "type": "order.paid", "data": 1})).await;
    let spans = collector.wait_for("traced", 10).await;
    let attempts = check_one_trace(&spans, 3, None);
    let told: Vec<_> =
        attempts.iter().map(|span| (span.is_failed, span.attribute("http.response.status_code"))).collect();
    assert_eq!(told, [(true, "503"), (true, "503"), (false, "200")]);
    assert!(attempts.iter().all(|span| span.attribute("server.port") == receiver.address.port().to_string()));
    let states: Vec<&str> = named(&spans, "settle").iter().map(|span| span.attribute("posthaste.state")).collect();
    assert_eq!(states, ["waiting", "waiting", "delivered"]);
    assert_eq!(named(&spans, "accept")[0].attribute("posthaste.deliveries"), "1");
    assert_eq!(traceparents(&receiver.seen()), ["", "", ""], "nobody gave a trace, so none is passed on");
}

async fn a_given_trace_is_kept_over_a_kill_and_a_replay() {
    let collector = Collector::start().await;
    let gateway = exporting(&collector.url(), "0%").await;
    let receiver = Receiver::scripted(vec![Reply::Status(503), Reply::Status(200)]).await;
    let hourly = json!({"schedule": ["1h"], "jitter": "none", "max_attempts": 9});
    gateway.create_endpoint(json!({"url": receiver.url(), "retry": hourly})).await;
    let headers = [("traceparent", GIVEN), ("tracestate", STATE)];
    send_with(&gateway, &headers, json!({"id": "given", "type": "t", "data": 1})).await;
    collector.wait_for("given", 4).await;
    let gateway = gateway.killed_and_restarted().await;
    let delivery = gateway.delivery_of("given").await;
    gateway.post_to_delivery(&delivery, "retry").await.expect(202);
    receiver.wait_for(2).await;
    let delivery = gateway.wait_for_state("given", "delivered").await;
    gateway.post_to_delivery(&delivery, "replay").await.expect(202);
    let seen = receiver.wait_for(3).await;
    let spans = collector.wait_for("given", 10).await;
    let attempts = check_one_trace(&spans, 3, Some("00f067aa0ba902b7"));
    let expected: Vec<String> = attempts.iter().map(|span| format!("00-{TRACE}-{}-01", span.id)).collect();
    assert_eq!(traceparents(&seen), expected, "each attempt names its own span");
    assert!(seen.iter().all(|seen| seen.header("tracestate") == STATE));
    assert!(spans.iter().all(|span| span.trace == TRACE));
    // The share is 0 %, so of an event without a trace there is nothing.
    gateway.send(json!({"id": "untraced", "type": "t", "data": 1})).await;
    let refused = GIVEN.replace("-01", "-00");
    send_with(&gateway, &[("traceparent", &refused)], json!({"id": "refused", "type": "t", "data": 1})).await;
    let seen = receiver.wait_for(5).await;
    let of = |id: &str| seen.iter().find(|seen| seen.id() == id).unwrap().header("traceparent").to_owned();
    assert_eq!(
        (of("untraced"), of("refused")),
        (String::new(), refused),
        "what is not sampled is passed on as it came"
    );
    send_with(&gateway, &headers, json!({"id": "last", "type": "t", "data": 1})).await;
    collector.wait_for("last", 4).await;
    assert_eq!(collector.spans().len(), 14, "nothing of the two others was exported");
}

async fn a_given_trace_is_passed_on_byte_for_byte_and_nothing_else_changes() {
    let gateway = Gateway::start_with(Options::flags(&["--public-url", "http://127.0.0.1:1"])).await;
    let receiver = Receiver::answering(|seen| Reply::Status(if seen.path.ends_with("late") { 503 } else { 200 })).await;
    let url = |path: &str| format!("http://{}/{path}", receiver.address);
    for format in ["envelope", "thin", "raw"] {
        let own = json!({"traceparent": "own", "x-own": "1"});
        let settings =
            json!({"url": url(format), "format": format, "headers": own, "retry": eager_retry(5), "ordering": "none"});
        gateway.create_endpoint(settings).await;
    }
    let given: &[(&str, &str)] = &[("traceparent", GIVEN), ("tracestate", STATE)];
    let event = |id: &str| json!({"id": id, "type": "t", "data": {"n": 1}});
    assert_eq!(send_with(&gateway, given, event("plain")).await["duplicate"], false);
    // This header is read by the HTTP library alone.
    let library: Vec<_> = given.iter().copied().chain([("te", "trailers")]).collect();
    send_with(&gateway, &library, event("library")).await;
    send_with(&gateway, &[("traceparent", "00-odd")], event("invalid")).await;
    send_with(&gateway, &[], event("nothing")).await;
    let batch = json!([event("batch-1"), event("batch-2")]).to_string();
    gateway.client.send("POST", "/v1/tenants/default/events/batch", given, batch).await.unwrap().expect(202);
    for seen in receiver.wait_for(18).await {
        let got = (seen.header("traceparent"), seen.header("tracestate"), seen.header("x-own"));
        let is_given = !matches!(seen.id(), "invalid" | "nothing");
        assert_eq!(got, if is_given { (GIVEN, STATE, "1") } else { ("own", "", "1") }, "{}", seen.id());
    }
    // The trace is no part of the content: a repeat may have another one, and changes nothing.
    let other = GIVEN.replace("4bf9", "aaaa");
    for headers in [vec![("traceparent", other.as_str())], vec![], vec![("traceparent", "odd")]] {
        assert_eq!(send_with(&gateway, &headers, event("plain")).await["duplicate"], true);
    }
    // An endpoint that comes later gets the trace with the event.
    let late = gateway.create_endpoint(json!({"url": url("late"), "retry": eager_retry(2)})).await;
    let backfill =
        json!({"kind": "backfill", "filter": {"endpoints": [late["id"]], "accepted_since": "2020-01-01T00:00:00Z"}});
    gateway.client.post_json("/v1/tenants/default/jobs", &backfill).await.expect(202);
    let is_late = |seen: &ReceivedRequest| seen.path.ends_with("late") && seen.id() == "plain";
    let seen = eventually("the backfill", || async {
        let seen: Vec<_> = receiver.seen().into_iter().filter(is_late).collect();
        if seen.len() == 2 { Ok(seen) } else { Err(format!("{seen:?}")) }
    })
    .await;
    assert_eq!(traceparents(&seen), [GIVEN, GIVEN], "the first trace stays, on each attempt");
    let deliveries = gateway.client.get("/v1/tenants/default/events/plain/deliveries").await.expect(200);
    let attempt = &gateway.attempts_of(&deliveries["data"][0]).await[0];
    assert_eq!(attempt["request_headers"]["traceparent"], GIVEN, "{attempt}");
    assert_eq!(attempt["request_headers"]["tracestate"], STATE, "{attempt}");
}

#[tokio::test]
async fn nothing_of_payloads_secrets_headers_or_queries_is_exported() {
    let collector = Collector::start().await;
    let mut gateway = exporting(&collector.url(), "100%").await;
    let answers = [500, 200].map(|status| Reply::Body(status, "hushed-answer".into()));
    let receiver = Receiver::scripted(answers.to_vec()).await;
    let settings = json!({"url": format!("{}/hushed-path?token=hushed-query", receiver.url()), "retry": eager_retry(5),
        "headers": {"authorization": "hushed-header"}, "description": "hushed-description"});
    let endpoint = gateway.create_endpoint(settings).await;
    let headers = [("traceparent", GIVEN), ("tracestate", "own=hushed-state"), ("x-request-id", "hushed-request")];
    let event = json!({"id": "quiet", "type": "t", "key": "hushed-key", "data": {"name": "hushed-data"}, "schema_version": "hushed-1"});
    send_with(&gateway, &headers, event).await;
    let spans = collector.wait_for("quiet", 7).await;
    check_one_trace(&spans, 2, Some("00f067aa0ba902b7"));
    assert!(gateway.terminate().await.success());
    let exported = collector.exported_text();
    assert!(exported.contains("127.0.0.1") && exported.contains("quiet"));
    let secret = endpoint["secret"].as_str().unwrap();
    for word in ["hushed", secret, gateway.token()] {
        assert!(!exported.contains(word), "{word} was exported: {exported}");
    }
}

#[tokio::test]
async fn a_stop_sends_the_last_spans() {
    let collector = Collector::start().await;
    let mut gateway = exporting(&collector.url(), "100%").await;
    let receiver = Receiver::start().await;
    gateway.create_endpoint(json!({"url": receiver.url()})).await;
    gateway.send(json!({"id": "last", "type": "t", "data": 1})).await;
    gateway.wait_for_state("last", "delivered").await;
    assert!(gateway.terminate().await.success());
    check_one_trace(&collector.wait_for("last", 4).await, 1, None);
}

/// Returns how many spans a gateway has sent and dropped.
async fn counted_spans(gateway: &Gateway) -> (u64, u64) {
    let scraped = gateway.client.get("/metrics").await;
    let text = String::from_utf8_lossy(&scraped.body).into_owned();
    let value = |outcome: &str| {
        let series = format!("posthaste_trace_spans_total{{outcome=\"{outcome}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok()).expect("a count")
    };
    (value("sent"), value("dropped"))
}

/// Delivers events while traces go to this collector, which takes none.
async fn delivers_without_traces(collector: &str) {
    let mut gateway = exporting(collector, "100%").await;
    let receiver = Receiver::start().await;
    gateway.create_endpoint(json!({"url": receiver.url(), "ordering": "none"})).await;
    gateway.send_many("e", "t", 20, |_| None).await;
    receiver.wait_for(20).await;
    for n in 0..20 {
        gateway.wait_for_state(&format!("e-{n}"), "delivered").await;
    }
    eventually("its spans to be dropped", || async {
        let counts = counted_spans(&gateway).await;
        if counts == (0, 80) { Ok(()) } else { Err(format!("{counts:?}")) }
    })
    .await;
    let began = Instant::now();
    assert!(gateway.terminate().await.success());
    assert!(began.elapsed().as_secs() < 20, "a stop does not wait for a collector");
}

#[tokio::test]
async fn a_collector_that_is_away_harms_nothing_and_dropped_spans_are_counted() {
    delivers_without_traces(&format!("http://127.0.0.1:{}", free_port())).await;
}

#[tokio::test]
async fn a_collector_that_refuses_harms_nothing_and_dropped_spans_are_counted() {
    let refusing = Receiver::scripted(vec![Reply::Status(400)]).await;
    delivers_without_traces(&format!("http://{}", refusing.address)).await;
}

#[tokio::test]
async fn a_collector_that_cannot_be_meant_is_refused_without_its_password() {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_posthaste"));
    command.args(["serve", "--otlp-endpoint", "http://ops:hushed@otel.example.com"]).kill_on_drop(true);
    let output = command.output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("otlp-endpoint is wrong"), "{said}");
    assert!(!said.contains("hushed") && said.contains("http://127.0.0.1:4318"), "{said}");
}
