//! Malformed requests of every sort: each a problem that names the field,
//! none a 500.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Gateway, Options, path_of};

const EVENTS: &str = "/v1/tenants/default/events";
const ENDPOINTS: &str = "/v1/tenants/default/endpoints";

for_every_store! {
    what_no_store_can_hold_is_not_asked_for,
}

/// Also where the store cannot even be asked for it.
async fn what_no_store_can_hold_is_not_asked_for() {
    let gateway = Gateway::start().await;
    let client = &gateway.client;
    for (list, name) in [
        ("events", "key"),
        ("events", "type"),
        ("deliveries", "key"),
        ("deliveries", "event_type"),
        ("dead-letters", "key"),
        ("dead-letters", "event_type"),
    ] {
        let path = format!("/v1/tenants/default/{list}?{name}=a%00");
        let problem = client.get(&path).await.problem(422, "invalid_field");
        assert_eq!(problem["errors"][0]["pointer"], format!("?{name}"));
    }
    let endpoint = gateway.create_endpoint(json!({"url": "https://example.com/"})).await;
    let lanes = format!("{}/lanes", path_of(&endpoint));
    // `lanes:~` and a NUL.
    client.get(&format!("{lanes}?cursor=bGFuZXM6fgA")).await.problem(400, "invalid_cursor");
    // Nor is a query looked over where none is read.
    for path in [path_of(&endpoint), format!("{}/secrets", path_of(&endpoint)), "/v1/tenants/default".to_owned()] {
        let problem = client.get(&format!("{path}?colour=red&limit=1")).await.problem(422, "unknown_field");
        assert_eq!(problem["errors"][0]["pointer"], "?colour");
        client.get(&format!("{path}?")).await.expect(200);
    }
}

#[tokio::test]
async fn every_bad_event_is_refused_at_its_field() {
    let gateway = Gateway::start().await;
    let deep = format!(r#"{{"type":"a","data":{}1{}}}"#, "[".repeat(65), "]".repeat(65));
    let very_deep = format!(r#"{{"type":"a","data":{}}}"#, "[".repeat(200_000));
    let cases: Vec<(Vec<u8>, u16, &str, &str)> = vec![
        (b"".to_vec(), 400, "invalid_json", ""),
        (b"{".to_vec(), 400, "invalid_json", ""),
        (b"nonsense".to_vec(), 400, "invalid_json", ""),
        (b"{\"type\":\"a\",\"data\":1} x".to_vec(), 400, "invalid_json", ""),
        (b"\xef\xbb\xbf{\"type\":\"a\",\"data\":1}".to_vec(), 400, "invalid_json", ""),
        (b"{\"type\":\"a\",\"data\":\"\xff\"}".to_vec(), 400, "invalid_json", ""),
        (b"{\"type\":\"a\",\"data\":NaN}".to_vec(), 400, "invalid_json", ""),
        (very_deep.into_bytes(), 400, "invalid_json", ""),
        (b"[]".to_vec(), 422, "invalid_field", ""),
        (b"[\"id\",\"a.b\",\"k\",1,null,null,null]".to_vec(), 422, "invalid_field", ""),
        (
            b"{\"type\":\"a\",\"data\":1,\"timestamp\":\"2020-01-01T00:00:00Z[UTC]\"}".to_vec(),
            422,
            "invalid_field",
            "/timestamp",
        ),
        (
            b"{\"type\":\"a\",\"data\":1,\"timestamp\":\"2020-01-01T00:00:00.Z\"}".to_vec(),
            422,
            "invalid_field",
            "/timestamp",
        ),
        (
            b"{\"type\":\"a\",\"data\":1,\"timestamp\":\"2020-01-01T00:00:00+25:59\"}".to_vec(),
            422,
            "invalid_field",
            "/timestamp",
        ),
        (b"{\"data\":1}".to_vec(), 422, "invalid_field", "/type"),
        (b"{\"type\":\"a\"}".to_vec(), 422, "invalid_field", "/data"),
        (b"{\"type\":\"a\",\"type\":\"b\",\"data\":1}".to_vec(), 422, "invalid_field", "/type"),
        (b"{\"type\":\"a\",\"data\":1,\"payload\":2}".to_vec(), 422, "unknown_field", "/payload"),
        (b"{\"type\":\"a b\",\"data\":1}".to_vec(), 422, "invalid_field", "/type"),
        (b"{\"type\":7,\"data\":1}".to_vec(), 422, "invalid_field", "/type"),
        (b"{\"type\":\"a\",\"data\":1,\"id\":\"a.b\"}".to_vec(), 422, "invalid_field", "/id"),
        (b"{\"type\":\"a\",\"data\":1,\"id\":\"\"}".to_vec(), 422, "invalid_field", "/id"),
        (b"{\"type\":\"a\",\"data\":1,\"key\":\"\"}".to_vec(), 422, "invalid_field", "/key"),
        (b"{\"type\":\"a\",\"data\":1,\"key\":\"\\u0000\"}".to_vec(), 422, "invalid_field", "/key"),
        (b"{\"type\":\"a\",\"data\":1,\"key\":{}}".to_vec(), 422, "invalid_field", "/key"),
        (b"{\"type\":\"a\",\"data\":1,\"timestamp\":\"yesterday\"}".to_vec(), 422, "invalid_field", "/timestamp"),
        (b"{\"type\":\"a\",\"data\":1,\"schema_version\":\"a b\"}".to_vec(), 422, "invalid_field", "/schema_version"),
        (b"{\"type\":\"a\",\"data\":1,\"endpoints\":[]}".to_vec(), 422, "invalid_field", "/endpoints"),
        (b"{\"type\":\"a\",\"data\":1,\"endpoints\":[\"ep_x\"]}".to_vec(), 422, "invalid_field", "/endpoints/0"),
        (
            b"{\"type\":\"a\",\"data\":1,\"endpoints\":[\"ep_01k00000000000000000000000\"]}".to_vec(),
            422,
            "invalid_field",
            "/endpoints",
        ),
        (deep.into_bytes(), 422, "invalid_field", "/data"),
    ];
    for (body, status, code, pointer) in cases {
        let text = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
        let answer = gateway.client.post(EVENTS, body).await;
        let problem = answer.problem(status, code);
        if !pointer.is_empty() {
            assert_eq!(problem["errors"][0]["pointer"], pointer, "{text}: {problem}");
        }
    }
    let at_the_limit = format!(r#"{{"type":"a","data":{}1{}}}"#, "[".repeat(64), "]".repeat(64));
    gateway.client.post(EVENTS, at_the_limit).await.expect(202);
    for timestamp in ["2020-01-01T00:00:00Z", "2020-01-01t00:00:00.123456789+05:30", "2020-02-29T23:59:59-00:00"] {
        let event = json!({"type":"a","data":1,"timestamp":timestamp});
        gateway.client.post_json(EVENTS, &event).await.expect(202);
    }
}

#[tokio::test]
async fn an_event_over_the_limit_is_refused_with_the_limit() {
    let gateway = Gateway::start_with(Options::flags(&["--max-event-bytes", "2KiB"])).await;
    let large = format!(r#"{{"type":"a","data":"{}"}}"#, "x".repeat(2_048));
    let problem = gateway.client.post(EVENTS, large.clone()).await.problem(413, "payload_too_large");
    assert!(problem["detail"].as_str().unwrap().contains("2048"), "{problem}");
    let batch = format!(r#"[{{"type":"a","data":1}},{large}]"#);
    let problem = gateway.client.post(&format!("{EVENTS}/batch"), batch).await.problem(413, "payload_too_large");
    assert_eq!(problem["errors"][0]["pointer"], "/1");
    // Without a length announced, the limit holds all the same.
    let mut raw = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
    let head = format!(
        "POST {EVENTS} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ntransfer-encoding: chunked\r\n\r\n",
        gateway.token()
    );
    raw.write_all(head.as_bytes()).await.unwrap();
    raw.write_all(format!("{:x}\r\n{large}\r\n0\r\n\r\n", large.len()).as_bytes()).await.unwrap();
    let mut start = [0; 64];
    let read = raw.read(&mut start).await.unwrap();
    assert!(start[..read].starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&start[..read]));
}

#[tokio::test]
async fn every_bad_endpoint_is_refused_at_its_field() {
    let gateway = Gateway::start_with(Options::flags(&["--allow-egress", "127.0.0.0/8"])).await;
    let url = "https://example.com/hook";
    for (settings, code, pointer) in [
        (json!({}), "invalid_field", "/url"),
        (json!({"url": 7}), "invalid_field", "/url"),
        (json!({"url": "example.com"}), "invalid_field", "/url"),
        (json!({"url": "ftp://example.com"}), "invalid_field", "/url"),
        (json!({"url": "https://u:p@example.com"}), "invalid_field", "/url"),
        (json!({"url": "http://10.0.0.1/"}), "target_forbidden", "/url"),
        (json!({"url": "http://169.254.169.254/latest"}), "target_forbidden", "/url"),
        (json!({"url": "http://[::1]/"}), "target_forbidden", "/url"),
        (json!({"url": "https://example.com:6379/"}), "target_forbidden", "/url"),
        (json!({"url": "https://metadata.google.internal/"}), "target_forbidden", "/url"),
        (json!({"url": "http://93.184.216.34/"}), "invalid_field", "/url"),
        (json!({"url": "https://exam\tple.com/"}), "invalid_field", "/url"),
        (json!({"url": url, "rate": {"per_second": 0}}), "invalid_field", "/rate/per_second"),
        (json!({"url": url, "rate": {"per_second": 1e7}}), "invalid_field", "/rate/per_second"),
        (json!({"url": url, "rate": {"per_second": 1, "burst": 0}}), "invalid_field", "/rate/burst"),
        (json!({"url": url, "rate": {"per_second": 1, "bursts": 1}}), "unknown_field", "/rate/bursts"),
        (json!({"url": url, "a/b~c": 1}), "unknown_field", "/a~1b~0c"),
        (json!({"url": url, "headers": {"a/b": "1"}}), "invalid_field", "/headers/a~1b"),
        (json!({"url": url, "headers": {"Webhook_Id": "1"}}), "invalid_field", "/headers/Webhook_Id"),
        (json!({"url": url, "metadata": {"a/b": "\0"}}), "invalid_field", "/metadata/a~1b"),
        (json!({"url": url, "rate": {"burst": 1}}), "invalid_field", "/rate/per_second"),
        (json!({"url": url, "breaker": {"failure_ratio": 1.5}}), "invalid_field", "/breaker/failure_ratio"),
        (
            json!({"url": url, "breaker": {"cooldown": "1m", "cooldown_max": "10s"}}),
            "invalid_field",
            "/breaker/cooldown_max",
        ),
        (json!({"url": url, "breaker": {"window": "1ms"}}), "invalid_field", "/breaker/window"),
        (json!({"url": url, "breaker": {"consecutive_failures": 0}}), "invalid_field", "/breaker/consecutive_failures"),
        (json!({"url": url, "breaker": {"min_requests": 0}}), "invalid_field", "/breaker/min_requests"),
        (json!({"url": url, "breaker": {"open": true}}), "unknown_field", "/breaker/open"),
        (json!({"url": url, "owner_email": "nobody"}), "invalid_field", "/owner_email"),
        (json!({"url": url, "owner_email": "a@b.example\nBcc: c@d.example"}), "invalid_field", "/owner_email"),
        (json!({"url": url, "event_types": []}), "invalid_field", "/event_types"),
        (json!({"url": url, "event_types": ["a b"]}), "invalid_field", "/event_types/0"),
        (json!({"url": url, "filter": {"any": [{"path": "a", "equals": 1}]}}), "invalid_field", "/filter/any/0/path"),
        (json!({"url": url, "ordering": "fifo"}), "invalid_field", "/ordering"),
        (json!({"url": url, "on_dead": "stop"}), "invalid_field", "/on_dead"),
        (json!({"url": url, "format": "thin"}), "invalid_field", "/format"),
        (json!({"url": url, "headers": {"Webhook-Id": "x"}}), "invalid_field", "/headers/Webhook-Id"),
        (json!({"url": url, "headers": {"X-A": "a\r\nb: c"}}), "invalid_field", "/headers/X-A"),
        (json!({"url": url, "headers": {"X-A": "1", "x-a": "2"}}), "invalid_field", "/headers/x-a"),
        (json!({"url": url, "headers": {"X-A": "***"}}), "invalid_field", "/headers/X-A"),
        (json!({"url": url, "timeout": []}), "invalid_field", "/timeout"),
        (json!({"url": url, "retry": [1]}), "invalid_field", "/retry"),
        (json!({"url": url, "max_in_flight": 0}), "invalid_field", "/max_in_flight"),
        (json!({"url": url, "max_in_flight": -1}), "invalid_field", "/max_in_flight"),
        (json!({"url": url, "timeout": {"total": "2m"}}), "invalid_field", "/timeout"),
        (json!({"url": url, "timeout": {"total": "soon"}}), "invalid_field", "/timeout/total"),
        (json!({"url": url, "timeout": {"read": "1s"}}), "unknown_field", "/timeout/read"),
        (json!({"url": url, "retry": {"max_attempts": 0}}), "invalid_field", "/retry/max_attempts"),
        (json!({"url": url, "retry": {"preset": "eager"}}), "invalid_field", "/retry/preset"),
        (json!({"url": url, "retry": {"jitter": "some"}}), "invalid_field", "/retry/jitter"),
        (json!({"url": url, "retry": {"schedule": ["-5s"]}}), "invalid_field", "/retry/schedule/0"),
        (json!({"url": url, "retry": {"backoff": {"base": "2h", "max": "1h"}}}), "invalid_field", "/retry/backoff/max"),
        (json!({"url": url, "metadata": {"a": 1}}), "invalid_field", "/metadata/a"),
        (json!({"url": url, "description": "a\u{7}"}), "invalid_field", "/description"),
    ] {
        let problem = gateway.client.post_json(ENDPOINTS, &settings).await.problem(422, code);
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{settings}: {problem}");
    }
    let endpoint = gateway.create_endpoint(json!({"url": url})).await;
    let path = format!("{ENDPOINTS}/{}", endpoint["id"].as_str().unwrap());
    let patch = |body: &'static str| gateway.client.send("PATCH", &path, &[], body);
    patch(r#"{"max_in_flight":0}"#).await.unwrap().problem(422, "invalid_field");
    patch(r#"{"id":"ep_x"}"#).await.unwrap().problem(422, "unknown_field");
    patch(r#"{"url":null}"#).await.unwrap().problem(422, "invalid_field");
    patch("[]").await.unwrap().problem(422, "invalid_field");
    let changed =
        patch(r#"{"max_in_flight":5,"retry":{"max_attempts":3},"description":"x"}"#).await.unwrap().expect(200);
    assert_eq!(
        (&changed["max_in_flight"], &changed["retry"]["preset"], &changed["url"]),
        (&json!(5), &json!("standard"), &json!(url))
    );
    assert_eq!(
        patch(r#"{"max_in_flight":null}"#).await.unwrap().expect(200)["max_in_flight"],
        10,
        "null is the default again"
    );
}

#[tokio::test]
async fn an_endpoint_on_loopback_needs_the_flag_and_the_refusal_names_it() {
    let gateway = Gateway::start_with(Options::flags(&["--allow-egress", "192.0.2.0/24"])).await;
    for url in ["http://127.0.0.1:9/", "http://localhost:9/", "http://2130706433/", "http://[::ffff:127.0.0.1]/"] {
        let problem = gateway.client.post_json(ENDPOINTS, &json!({"url": url})).await.problem(422, "target_forbidden");
        assert!(problem["detail"].as_str().unwrap().contains("--allow-egress"), "{problem}");
    }
}

#[tokio::test]
async fn addresses_methods_tokens_and_parameters_are_checked() {
    let gateway = Gateway::start().await;
    let client = &gateway.client;
    client.get("/v1/nothing").await.problem(404, "not_found");
    client.get("/nothing").await.problem(404, "not_found");
    client.send("PUT", EVENTS, &[], "").await.unwrap().problem(405, "method_not_allowed");
    client.get("/v1/tenants/nobody/events").await.problem(404, "not_found");
    client.get("/v1/tenants/%ff/events").await.problem(404, "not_found");
    client.get(&format!("{EVENTS}/evt.1")).await.problem(404, "not_found");
    client.get("/v1/tenants/default/deliveries/dlv_nonsense").await.problem(404, "not_found");
    client.get("/v1/tenants/default/deliveries/dlv_01k00000000000000000000001").await.problem(404, "not_found");
    for query in ["limit=0", "limit=501", "limit=many", "since=yesterday"] {
        let problem = client.get(&format!("{EVENTS}?{query}")).await.problem(422, "invalid_field");
        let name = format!("?{}", query.split('=').next().unwrap());
        assert_eq!(problem["errors"][0]["pointer"], name, "{problem}");
    }
    client.get("/v1/tenants/default/deliveries?state=lost").await.problem(422, "invalid_field");
    client.get("/v1/tenants/default/dead-letters?state=dead").await.expect(200);
    for (query, code, says) in [
        ("state=waiting", "invalid_field", "state is waiting, and dead letters are dead"),
        ("finished_since=yesterday", "invalid_field", "finished_since \"yesterday\" is not RFC 3339"),
        ("colour=red", "unknown_field", "`finished_until`, `limit`, `cursor`"),
        ("limit=many", "invalid_field", "limit is not a whole number"),
        ("key=a&key=b", "invalid_field", "key is given twice"),
    ] {
        let problem = client.get(&format!("/v1/tenants/default/dead-letters?{query}")).await.problem(422, code);
        assert_eq!(problem["errors"][0]["pointer"], format!("?{}", query.split('=').next().unwrap()));
        assert!(problem["detail"].as_str().unwrap().contains(says), "{problem}");
    }
    for (path, field) in [("/v1/tenants?colour=red", "?colour"), ("/v1/tenants?limit=0", "?limit")] {
        let problem = client.get(path).await.expect(422);
        assert_eq!(problem["errors"][0]["pointer"], field, "{problem}");
    }
    client.get("/v1/tenants?cursor=x").await.problem(400, "invalid_cursor");
    client.post(&format!("{EVENTS}?partial=true"), "{}").await.problem(422, "unknown_field");
    client.send("PUT", "/v1/tenants/listed", &[], r#"["N",{}]"#).await.unwrap().problem(422, "invalid_field");
    let problem = client.get(&format!("{EVENTS}?colour=red")).await.problem(422, "unknown_field");
    assert_eq!(problem["errors"][0]["pointer"], "?colour");
    for cursor in ["x", "ZXZlbnRzOnh5eg", "ZGVsaXZlcmllczox"] {
        client.get(&format!("{EVENTS}?cursor={cursor}")).await.problem(400, "invalid_cursor");
    }
    client
        .send("POST", EVENTS, &[("content-encoding", "gzip")], "x")
        .await
        .unwrap()
        .problem(415, "unsupported_media_type");
    for token in ["", "Bearer", "Bearer wrong", "Basic abc", "Bearer pha_"] {
        let refused = client.send("GET", "/v1/tenants", &[("authorization", token)], "").await.unwrap();
        refused.problem(401, "unauthenticated");
        assert_eq!(refused.headers["www-authenticate"], "Bearer");
    }
    for open in ["/healthz", "/readyz", "/openapi.json"] {
        client.send("GET", open, &[("authorization", "")], "").await.unwrap().expect(200);
    }
}

/// A document with a list in place of an object, and the pointer to that list.
type MisplacedList = (Value, String);

/// Returns a document for each object of a request's schema, at any depth.
fn lists_for_objects(description: &Value, schema: &Value, depth: usize) -> Vec<MisplacedList> {
    if let Some(reference) = schema["$ref"].as_str() {
        return lists_for_objects(description, description.pointer(&reference[1..]).unwrap(), depth);
    }
    let parts = ["allOf", "oneOf", "anyOf"].iter().filter_map(|word| schema[word].as_array()).flatten();
    let mut found: Vec<MisplacedList> = parts.flat_map(|part| lists_for_objects(description, part, depth)).collect();
    let is_of = |kind: &str| {
        schema["type"] == kind || schema["type"].as_array().is_some_and(|kinds| kinds.contains(&json!(kind)))
    };
    if depth == 0 {
        return found;
    }
    if is_of("object") {
        found.extend([(json!([]), String::new()), (json!([5, "a", {}]), String::new())]);
    }
    let fields = schema["properties"].as_object().into_iter().flatten();
    let any = schema.get("additionalProperties").filter(|any| any.is_object()).map(|any| ("any", any));
    for (name, field) in fields.map(|(name, field)| (name.as_str(), field)).chain(any) {
        let below = lists_for_objects(description, field, depth - 1).into_iter();
        found.extend(below.map(|(inner, pointer)| (json!({name: inner}), format!("/{name}{pointer}"))));
    }
    if is_of("array") {
        let below = lists_for_objects(description, &schema["items"], depth - 1).into_iter();
        found.extend(below.map(|(inner, pointer)| (json!([inner]), format!("/0{pointer}"))));
    }
    found
}

#[tokio::test]
async fn a_list_passes_for_no_object_of_any_request() {
    let gateway = Gateway::start().await;
    let description = gateway.client.get("/openapi.json").await.expect(200);
    let endpoint = gateway.create_endpoint(json!({"url": "http://127.0.0.1:9/"})).await;
    let mut pointers = std::collections::BTreeSet::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            let path = path.replace("{tenant}", "default").replace("{endpoint}", endpoint["id"].as_str().unwrap());
            for (document, pointer) in lists_for_objects(&description, schema, 6) {
                let answer =
                    gateway.client.send(&method.to_uppercase(), &path, &[], document.to_string()).await.unwrap();
                let problem = answer.problem(422, "invalid_field");
                let told = format!("{method} {path} {document}: {problem}");
                assert_eq!(problem["errors"][0]["pointer"], pointer, "{told}");
                let name = pointer
                    .rsplit('/')
                    .next()
                    .filter(|name| !matches!(*name, "" | "0"))
                    .unwrap_or(if pointer == "/0" { "the event" } else { "the body" });
                let detail = problem["errors"][0]["detail"].as_str().unwrap();
                assert!(
                    detail.contains(name) && detail.contains("an object") && detail.ends_with("it is a list"),
                    "{told}"
                );
                pointers.insert(format!("{method} {path}{pointer}"));
            }
        }
    }
    assert!(pointers.len() > 50, "{pointers:#?}");
    let lines = "{\"type\":\"a\",\"data\":1}\n[\"id\",\"a.b\",null,1]";
    let problem = gateway.client.post(&format!("{EVENTS}/batch"), lines).await.problem(422, "invalid_field");
    assert_eq!(problem["errors"][0]["pointer"], "/1", "{problem}");
}

/// Parsers speak of their own workings; what reaches people says what was
/// expected, with an example.
#[tokio::test]
async fn what_cannot_be_parsed_is_told_in_plain_words_with_an_example() {
    let gateway = Gateway::start().await;
    let client = &gateway.client;
    const RAW: [&str; 6] =
        ["EOF", "expected value", "four digit", "failed to parse", "at line 1 column", "relative URL"];
    let says = |problem: &Value, told: &str| {
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(told), "{detail}");
        assert!(!RAW.iter().any(|raw| detail.contains(raw)), "{detail}");
    };
    for (body, told) in [
        ("", r#"the body is not JSON: it is empty; write it like {"name": "value"}"#),
        (r#"{"type":"a","#, "the body is not JSON: it ends too early, in line 1"),
        (r#"{"type":'a'}"#, "the body is not JSON: line 1, column 9: no JSON value begins here"),
    ] {
        says(&client.post(EVENTS, body).await.problem(400, "invalid_json"), told);
    }
    const SUCH_AS: &str = "is not RFC 3339 with an offset, such as 2026-01-31T12:00:00Z";
    for query in ["since=yesterday", "until=2026-01-31", "since="] {
        let problem = client.get(&format!("{EVENTS}?{query}")).await.problem(422, "invalid_field");
        let (name, value) = query.split_once('=').unwrap();
        says(&problem, &format!("{name} {value:?} {SUCH_AS}"));
    }
    for expires_at in [json!("tomorrow"), json!(5)] {
        let token = json!({"tenant": "default", "rights": ["read"], "expires_at": expires_at});
        let problem = client.post_json("/v1/tokens", &token).await.problem(422, "invalid_field");
        says(&problem, &format!("expires_at {SUCH_AS}"));
        assert_eq!(problem["errors"][0]["pointer"], "/expires_at");
    }
    for (url, told) in [("https://a:99999/", "its port is not a number"), ("https://1.2.3.999/", "not an IP address")] {
        let problem = client.post_json(ENDPOINTS, &json!({"url": url})).await.problem(422, "invalid_field");
        says(&problem, told);
    }
}

#[tokio::test]
async fn a_parsers_own_words_reach_nobody() {
    let gateway = Gateway::start().await;
    let (endpoints, events) = ("/v1/tenants/default/endpoints", "/v1/tenants/default/events");
    let batch = "/v1/tenants/default/events/batch";
    let with = |field: &str| format!(r#"{{"url":"http://127.0.0.1:1/",{field}}}"#);
    for (path, body, pointer, words) in [
        (endpoints, with(r#""description":"\ud800""#), "/description", "description is a text with a \\u escape"),
        (endpoints, with(r#""max_in_flight":1e999"#), "/max_in_flight", "max_in_flight is a number larger than any"),
        (endpoints, with(r#""max_in_flight":-1"#), "/max_in_flight", "use a whole number from 1 to 1,000"),
        (endpoints, with(r#""max_in_flight":1.5"#), "/max_in_flight", "max_in_flight is 1.5; use a whole number"),
        (
            endpoints,
            with(r#""max_in_flight":99999999999999999999"#),
            "/max_in_flight",
            "a whole number from 1 to 1,000",
        ),
        (endpoints, with(r#""retry":{"jitter":{}}"#), "/retry/jitter", "use an object with exactly one field"),
        (endpoints, with(r#""filter":5"#), "/filter", r#"such as {"gt": 100, "path": "/amount"}"#),
        (endpoints, with(r#""filter":{"path":"/a","eq":5}"#), "/filter/eq", r#""eq" is not a test; use equals"#),
        (endpoints, with(r#""foo":5"#), "/foo", "`tls`, `secret`, `private_key`"),
        (
            endpoints,
            with(r#""tls":{"ca":"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"}"#),
            "/tls/ca",
            "the certificate cannot be read; copy it again",
        ),
        ("/v1/tokens", r#"{"rights":5}"#.into(), "/rights", r#"rights must be a list, such as ["publish"]"#),
        (events, r#"{"type":"a","type":"b","data":1}"#.into(), "/type", "type is given twice; keep one"),
        (events, r#"{"type":"a","key":"\ud800","data":1}"#.into(), "/key", "key is a text with a \\u escape"),
        (batch, r#"[{"type":"a","data":1},5]"#.into(), "/1", "the event must be an object"),
    ] {
        let code = if pointer == "/foo" { "unknown_field" } else { "invalid_field" };
        let problem = gateway.client.post(path, body.clone()).await.problem(422, code);
        let detail = problem["detail"].as_str().unwrap();
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{body}: {problem}");
        assert!(detail.contains(words), "{body}: {detail}");
    }
    let two = r#"[{"type":"a b","data":1},{"type":"a b","data":1}]"#;
    let twice = gateway.client.post(batch, two).await.problem(422, "invalid_field");
    assert_eq!(twice["detail"].as_str().unwrap().matches("is not words of").count(), 1, "said once: {twice}");
    assert_eq!(twice["errors"].as_array().map(Vec::len), Some(2), "{twice}");
    let lines = gateway.client.post(batch, "{\"type\":\"a\",\"data\":1}\n\n{\"type\":").await;
    let lines = lines.problem(400, "invalid_json");
    assert!(
        lines["detail"].as_str().unwrap().contains("the event is not JSON: it ends too early, in line 3"),
        "{lines}"
    );
    let marked = gateway.client.post(events, "\u{feff}{\"type\":\"a\",\"data\":1}").await.problem(400, "invalid_json");
    assert!(marked["detail"].as_str().unwrap().contains("byte order mark"), "{marked}");

    let missing = gateway.client.get("/v1/find").await.problem(422, "invalid_field");
    assert_eq!(
        (&missing["errors"][0]["pointer"], &missing["detail"]),
        (&json!("?id"), &json!("id is missing; add ?id= and its value to the path"))
    );
    let plus = gateway.client.get(&format!("{events}?since=2026-11-15T08:00:00+01:00")).await;
    let plus = plus.problem(422, "invalid_field")["detail"].as_str().unwrap().to_owned();
    assert!(plus.contains(r#"since "2026-11-15T08:00:00 01:00" is not RFC 3339"#) && plus.contains("%2B"), "{plus}");
}

#[tokio::test]
async fn a_body_is_refused_where_none_is_read() {
    let gateway = Gateway::start().await;
    let client = &gateway.client;
    let endpoint = path_of(&gateway.create_endpoint(json!({"url": "https://example.com/"})).await);
    for (method, path) in [
        ("POST", format!("{endpoint}/test")),
        ("DELETE", endpoint.clone()),
        ("GET", endpoint.clone()),
        ("DELETE", "/v1/tenants/default".to_owned()),
        ("POST", "/v1/tenants/default/deliveries/dlv_01k00000000000000000000001/retry".to_owned()),
    ] {
        let problem = client.send(method, &path, &[], r#"{"note":"why"}"#).await.unwrap().problem(422, "unknown_field");
        assert_eq!(problem["errors"][0]["pointer"], "/note", "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("this route takes no body"), "{problem}");
        for body in ["[1]", "nonsense"] {
            let problem = client.send(method, &path, &[], body).await.unwrap().problem(422, "invalid_field");
            assert!(problem["detail"].as_str().unwrap().contains("this route takes no body"), "{problem}");
        }
    }
    for nothing in ["", " ", "{}"] {
        client.send("GET", &endpoint, &[], nothing).await.unwrap().expect(200);
    }
    client.post(&format!("{endpoint}/pause"), r#"{"note":"why"}"#).await.expect(200);
}

#[tokio::test]
async fn what_can_only_be_a_mistake_is_told() {
    let gateway = Gateway::start().await;
    let client = &gateway.client;
    for list in ["events", "deliveries", "dead-letters", "audit"] {
        let path = format!("/v1/tenants/default/{list}?since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z");
        let problem = client.get(&path).await.problem(422, "invalid_field");
        assert!(problem["detail"].as_str().unwrap().contains("is after until"), "{problem}");
    }
    let same = "?since=2026-01-01T00:00:00Z&until=2026-01-01T00:00:00Z";
    client.get(&format!("{EVENTS}{same}")).await.expect(200);

    let problem = client.send("PUT", "/v1/tenants/a%20b", &[], "").await.unwrap().problem(422, "invalid_field");
    assert!(problem["detail"].as_str().unwrap().contains(r#""a b" contains ' '"#), "{problem}");
    client.send("PUT", "/v1/tenants/%61cme", &[], "").await.unwrap().expect(201);
    assert_eq!(client.get("/v1/tenants/acme").await.expect(200)["id"], "acme");

    let rules = |rules: Value| json!({"url": "https://example.com/", "status_rules": rules});
    for wrong in [json!({"2xx": "refuse"}), json!({"preset": "lenient", "2xx": "retry"})] {
        let problem = client.post_json(ENDPOINTS, &rules(wrong)).await.problem(422, "invalid_field");
        assert_eq!(problem["errors"][0]["pointer"], "/status_rules", "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("no answer would count as delivered"), "{problem}");
    }
    client.post_json(ENDPOINTS, &rules(json!({"2xx": "retry", "204": "deliver"}))).await.expect(201);
    let defaults = json!({"defaults": {"status_rules": {"2xx": "disable"}}});
    let problem = client.patch_json("/v1/tenants/default", &defaults).await.problem(422, "invalid_field");
    assert_eq!(problem["errors"][0]["pointer"], "/defaults/status_rules", "{problem}");

    let event = r#"{"id":"one","type":"t","data":1}"#;
    let other = client.send("POST", EVENTS, &[("idempotency-key", "two")], event).await.unwrap();
    let problem = other.problem(422, "invalid_field");
    assert_eq!(problem["errors"][0]["pointer"], "Idempotency-Key", "{problem}");
    client.send("POST", EVENTS, &[("idempotency-key", "\"one\"")], event).await.unwrap().expect(202);
    let twice = [("idempotency-key", "one"), ("idempotency-key", "two")];
    let problem = client.send("POST", EVENTS, &twice, event).await.unwrap().problem(422, "invalid_field");
    assert!(problem["detail"].as_str().unwrap().contains("with different keys"), "{problem}");
    let batch = format!("[{event}]");
    let of_batch = client.send("POST", &format!("{EVENTS}/batch"), &twice[..1], batch).await.unwrap();
    let problem = of_batch.problem(422, "invalid_field");
    assert!(problem["detail"].as_str().unwrap().contains("stands for one event"), "{problem}");
}

#[tokio::test]
async fn a_value_of_another_kind_is_told_with_an_example_of_the_right_one() {
    let gateway = Gateway::start().await;
    let client = &gateway.client;
    let endpoint = gateway.create_endpoint(json!({"url": "http://127.0.0.1:1/"})).await;
    let endpoint = format!("{ENDPOINTS}/{}", endpoint["id"].as_str().unwrap());
    let told = |problem: Value| (problem["errors"][0]["pointer"].clone(), problem["detail"].clone());
    for (answer, pointer, detail) in [
        (
            client.post_json(EVENTS, &json!({"type": ["a"], "data": 1})).await,
            "/type",
            r#"type must be a text, such as "invoice.paid"; it is a list"#,
        ),
        (
            client.post_json(&format!("{EVENTS}/batch"), &json!([{"type": "a", "data": 1, "key": 7}])).await,
            "/0/key",
            r#"key must be a text, such as "invoice_1001"; it is a number"#,
        ),
        (
            client.post_json(ENDPOINTS, &json!({"url": "https://example.com/", "timeout": {"total": 10}})).await,
            "/timeout/total",
            r#"timeout.total must be a text, such as "10s"; it is a number"#,
        ),
        (
            client.patch_json(&endpoint, &json!({"max_in_flight": "3"})).await,
            "/max_in_flight",
            "max_in_flight must be a whole number; it is a text",
        ),
        (
            client.patch_json(&endpoint, &json!({"max_in_flight": -1})).await,
            "/max_in_flight",
            "max_in_flight is -1; use a whole number from 1 to 1,000",
        ),
        (
            client.patch_json(&endpoint, &json!({"inherits": ["timeout"], "timeout": {"total": "3s"}})).await,
            "/timeout",
            "timeout is inherited from the tenant's defaults; leave it out, or take timeout out of inherits to give it a value of its own",
        ),
        (
            client.post_json("/v1/policies/preview", &json!({"preset": 1})).await,
            "/preset",
            r#"preset must be a text, such as "standard"; it is a number"#,
        ),
        (
            client.patch_json("/v1/tenants/default", &json!({"limits": {"tokens": true}})).await,
            "/limits/tokens",
            "limits.tokens must be a whole number, such as 100; it is a boolean",
        ),
        (client.get(&format!("{endpoint}/lanes?blocked=1")).await, "?blocked", "blocked: write true or false"),
    ] {
        assert_eq!(told(answer.problem(422, "invalid_field")), (json!(pointer), json!(detail)));
    }
    let problem = client.get("/v1/tenants/acm%65/events").await.problem(404, "not_found");
    assert_eq!(problem["detail"], "there is no tenant acme");
}

#[tokio::test]
async fn an_event_that_is_over_already_is_accepted_with_a_warning() {
    let gateway = Gateway::start().await;
    let over = json!({"id": "over", "type": "t", "data": 1, "expires_at": "2020-01-01T00:00:00Z"});
    let receipt = gateway.send(over.clone()).await;
    let warning = receipt["warnings"][0].as_str().unwrap_or_else(|| panic!("{receipt}")).to_owned();
    assert!(warning.starts_with("expires_at is in the past, so nothing is attempted"), "{warning}");
    let again = gateway.send(over).await;
    assert!(again["duplicate"] == true && again.get("warnings").is_none(), "{again}");
    let batch = json!([{"type": "t", "data": 1, "expires_at": "2020-01-01T00:00:00Z"}, {"type": "t", "data": 1}]);
    let answer = gateway.client.post_json(&format!("{EVENTS}/batch"), &batch).await.expect(202);
    assert_eq!(answer["data"][0]["warnings"], json!([warning]));
    assert!(answer["data"][1].get("warnings").is_none(), "{answer}");
}

#[tokio::test]
async fn a_port_or_the_gateway_itself_is_refused_without_advice_that_cannot_help() {
    let gateway = Gateway::start().await;
    let refused = async |url: String| {
        let answer = gateway.client.post_json(ENDPOINTS, &json!({ "url": url })).await;
        answer.problem(422, "target_forbidden")["detail"].as_str().unwrap().to_owned()
    };
    let port = refused("https://example.com:6379/".to_owned()).await;
    assert!(port.contains("--allow-port 6379") && !port.contains("--allow-egress"), "{port}");
    let own = refused(format!("http://{}/", gateway.address)).await;
    assert!(own.contains("this gateway itself") && !own.contains("--allow"), "{own}");
}
