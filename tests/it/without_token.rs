//! What strangers without a token can do to the door, and what they cannot:
//! hold every connection, keep probes waiting, guess unseen, or send heads
//! that readers disagree about.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::servers::guard::free_port;
use crate::support::{Client, Gateway, Options, PATIENCE, eventually};

for_every_store! {
    guessing_leaves_a_trace_and_keeps_nobody_out,
    a_token_that_is_tried_again_and_again_is_on_its_tenants_record,
}

/// A connection from this address.
async fn connect(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(from)), 0)).unwrap();
    socket.connect(to).await.unwrap()
}

/// Asks once, and the head of the answer, with what came of the body.
async fn ask(stream: &mut TcpStream, head: &str) -> String {
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut heard = vec![0; 16 * 1_024];
    let read = tokio::time::timeout(PATIENCE, stream.read(&mut heard)).await.expect("an answer").unwrap_or(0);
    String::from_utf8_lossy(&heard[..read]).into_owned()
}

/// Takes as many connections as it can get, with health checks on kept-alive
/// connections; those it holds.
async fn hold(from: [u8; 4], gateway: &Gateway, tries: usize) -> Vec<TcpStream> {
    let mut held = Vec::new();
    for _ in 0..tries {
        let mut stream = connect(from, gateway.address).await;
        let heard = ask(&mut stream, "GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert!(heard.starts_with("HTTP/1.1 200 "), "{heard}");
        if !heard.contains("connection: close") {
            held.push(stream);
        }
    }
    held
}

#[tokio::test]
async fn strangers_cannot_hold_the_connections_of_those_who_have_a_token() {
    let gateway = Gateway::start_with(Options::flags(&["--max-connections", "50"])).await;
    let near = hold([127, 0, 0, 1], &gateway, 50).await;
    assert_eq!(near.len(), 25, "one address holds half of them, however often it tries");
    let first = gateway.another_client();
    first.get("/v1/tenants").await.expect(200);
    // From two addresses there is nothing left, and a token still gets in.
    let far = hold([127, 0, 0, 2], &gateway, 50).await;
    assert!(far.len() >= 24, "{}", far.len());
    let mut clients = Vec::new();
    for _ in 0..10 {
        let client = gateway.another_client();
        client.get("/v1/tenants").await.expect(200);
        clients.push(client);
    }
    for client in clients.iter().chain([&first]) {
        let kept = client.get("/v1/tenants").await;
        kept.expect(200);
        assert!(!kept.headers.contains_key("connection"), "whoever has a token keeps its connection");
    }
    // Whoever has none is answered by what needs none.
    let turned_away = Client::new(gateway.address, "wrong").get("/openapi.json").await;
    assert!(matches!(turned_away.status, 200 | 503), "{}", turned_away.status);
    drop((near, far));
}

#[tokio::test]
async fn probes_have_a_door_of_their_own_that_strangers_do_not_hold_up() {
    let health: SocketAddr = (Ipv4Addr::LOCALHOST, free_port()).into();
    let flags = ["--max-connections", "50", "--health-listen", &health.to_string()].map(str::to_owned).to_vec();
    let gateway = Gateway::start_with(Options { flags, ..Options::default() }).await;
    // Half a head on every connection, again and again.
    let mut flood = JoinSet::new();
    for _ in 0..4 {
        let address = gateway.address;
        flood.spawn(async move {
            let mut open = std::collections::VecDeque::new();
            loop {
                if let Ok(mut stream) = TcpStream::connect(address).await {
                    let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: ").await;
                    open.push_back(stream);
                }
                if open.len() > 100 {
                    open.pop_front();
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
    }
    let probes = Client::new(health, gateway.token());
    for _ in 0..50 {
        probes.get("/healthz").await.expect(200);
        assert_eq!(probes.get("/readyz").await.expect(200)["status"], "ok");
        let metrics = probes.get("/metrics").await;
        assert!(metrics.status == 200 && metrics.body.ends_with(b"# EOF\n"), "{}", metrics.status);
    }
    // Nor is anything else there, whatever token is shown.
    for path in ["/v1/tenants", "/v1/tenants/default/events", "/openapi.json", "/data/default/x", "/"] {
        probes.get(path).await.problem(404, "not_found");
    }
    probes.post("/healthz", "{}").await.problem(404, "not_found");
    // The API's own door is open all the same, to health checks and to tokens.
    for path in ["/healthz", "/v1/tenants"] {
        eventually("an answer under the flood", || async {
            let answer = gateway.another_client().send("GET", path, &[], "").await?;
            if answer.status == 200 { Ok(()) } else { Err(answer.status.to_string()) }
        })
        .await;
    }
    flood.abort_all();
    // And nobody is sent there by the gateway itself.
    let new = json!({"url": format!("http://{health}/metrics")});
    gateway.client.post_json("/v1/tenants/default/endpoints", &new).await.problem(422, "target_forbidden");
}

/// The value of a series of `/metrics`.
async fn counted(gateway: &Gateway, kind: &str) -> u64 {
    let text = String::from_utf8(gateway.client.get("/metrics").await.body.to_vec()).unwrap();
    let series = format!("posthaste_auth_failures_total{{kind=\"{kind}\"}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&series)).unwrap_or_else(|| panic!("no {series}"));
    line.parse().unwrap()
}

async fn recorded(gateway: &Gateway, tenant: &str) -> Vec<Value> {
    let all = gateway.list(&format!("/v1/audit?tenant={tenant}")).await;
    all.into_iter().filter(|entry| entry["action"] == "auth.repeated").collect()
}

async fn guessing_leaves_a_trace_and_keeps_nobody_out() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let options = Options { log: Some(log.clone()), ..Options::flags(&["--log", "info", "--log-format", "json"]) };
    let gateway = Gateway::start_with(options).await;
    let gateway = Arc::new(gateway);
    let mut guesses = JoinSet::new();
    for n in 0..8 {
        let gateway = gateway.clone();
        guesses.spawn(async move {
            let client = Client::new(gateway.address, &format!("pha_guess-{n}"));
            let mut answers = Vec::new();
            for _ in 0..50 {
                let answer = client.get("/v1/tenants").await;
                match answer.status {
                    429 => {
                        let problem = answer.problem(429, "rate_limited");
                        assert!(problem["detail"].as_str().unwrap().contains("valid token"), "{problem}");
                        let seconds: u64 = answer.headers["retry-after"].to_str().unwrap().parse().unwrap();
                        assert!((1..=60).contains(&seconds), "{seconds}");
                    }
                    _ => drop(answer.problem(401, "unauthenticated")),
                }
                answers.push(answer.status);
            }
            answers
        });
    }
    let statuses: Vec<u16> = guesses.join_all().await.into_iter().flatten().collect();
    let heard = statuses.iter().filter(|status| **status == 401).count();
    assert!((100..200).contains(&heard), "{heard} of 400 guesses were judged");
    // From the same address, whoever has a token notices nothing.
    gateway.client.get("/v1/tenants").await.expect(200);
    assert_eq!(counted(&gateway, "wrong").await, 400);
    let nobody = TcpStream::connect(gateway.address).await.unwrap();
    let heard = ask(&mut { nobody }, "GET /v1/tenants HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(heard.starts_with("HTTP/1.1 429 "), "{heard}");
    assert_eq!(counted(&gateway, "missing").await, 1);

    let entries = eventually("an entry in the audit log", || async {
        let entries = recorded(&gateway, "_system").await;
        if entries.is_empty() { Err(String::new()) } else { Ok(entries) }
    })
    .await;
    assert_eq!(entries.len(), 1, "once, and not for each: {entries:?}");
    let told = |name: &str| entries[0][name].as_str().unwrap_or_default();
    assert_eq!((told("by"), told("from"), told("resource")), ("unknown", "127.0.0.1", "127.0.0.1"));
    assert_eq!(entries[0]["fields"], json!(["wrong"]));
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(!text.contains("guess"), "a token is in the log");
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("refused")).collect();
    assert_eq!(lines.len(), 2, "the first and the repeated: {lines:?}");
    assert!(lines.iter().all(|line| line.contains("\"from\":\"127.0.0.1\"")), "{lines:?}");
}

async fn a_token_that_is_tried_again_and_again_is_on_its_tenants_record() {
    let gateway = Gateway::start_with(Options::flags(&["--trusted-proxies", "127.0.0.0/8"])).await;
    gateway.client.send("PUT", "/v1/tenants/acme", &[], "{}").await.unwrap().expect(201);
    let new = json!({"tenant": "acme", "rights": ["publish"]});
    let made = gateway.client.post_json("/v1/tokens", &new).await.expect(201);
    let (id, token) = (made["id"].as_str().unwrap(), made["token"].as_str().unwrap());
    let wrong = format!("Bearer {}", token.rsplit_once('_').unwrap().0.to_owned() + "_wrong");
    let right = format!("Bearer {token}");
    let cases = [
        ("192.0.2.1", &wrong, "/v1/tenants/acme", 401, "wrong", "unknown"),
        ("192.0.2.2", &right, "/v1/tenants/acme", 403, "missing_right", id),
        ("192.0.2.3", &right, "/v1/tenants/default", 404, "other_tenant", id),
    ];
    for (from, token, path, status, kind, by) in cases {
        let headers = [("authorization", token.as_str()), ("x-forwarded-for", from)];
        for n in 0..150 {
            let answer = gateway.client.send("GET", path, &headers, "").await.unwrap().status;
            // A valid token is told the same however often it asks.
            let is_slowed = status == 401 && answer == 429 && n >= 100;
            assert!(answer == status || is_slowed, "{kind}: {answer} to request {n}");
        }
        assert_eq!(counted(&gateway, kind).await, 150);
        let entry = eventually("its entry", || async {
            let entries = recorded(&gateway, "acme").await;
            entries.into_iter().find(|entry| entry["from"] == from).ok_or(String::new())
        })
        .await;
        assert_eq!((&entry["by"], &entry["resource"], &entry["fields"]), (&json!(by), &json!(id), &json!([kind])));
    }
    assert_eq!(recorded(&gateway, "acme").await.len(), cases.len());
    assert!(recorded(&gateway, "_system").await.is_empty() && recorded(&gateway, "default").await.is_empty());
}

#[tokio::test]
async fn a_head_that_readers_disagree_about_is_refused_with_a_reason() {
    let gateway = Gateway::start().await;
    let auth = format!("authorization: Bearer {}\r\n", gateway.token());
    let post = "POST /v1/tenants/default/events HTTP/1.1\r\n";
    for (head, status, code) in [
        (format!("{post}{auth}content-length: 2\r\n\r\n{{}}"), 400, "malformed_request"),
        (format!("{post}host: a\r\nhost: b\r\n{auth}content-length: 2\r\n\r\n{{}}"), 400, "malformed_request"),
        (format!("{post}host: a\n{auth}\r\n"), 400, "malformed_request"),
        (format!("{post}host: a\r\n{auth}transfer-encoding: gzip, chunked\r\n\r\n"), 400, "malformed_request"),
        (
            format!("{post}host: a\r\n{auth}expect: 100-continue\r\ncontent-length: 99999999999\r\n\r\n"),
            413,
            "payload_too_large",
        ),
        (format!("{post}host: a\r\n{auth}content-length: 18446744073709551615\r\n\r\n"), 413, "payload_too_large"),
        // Larger than this route takes: no leave to send it is given either.
        (
            format!("{post}host: a\r\n{auth}expect: 100-continue\r\ncontent-length: 2000000\r\n\r\n"),
            413,
            "payload_too_large",
        ),
    ] {
        let heard = ask(&mut TcpStream::connect(gateway.address).await.unwrap(), &head).await;
        assert!(heard.starts_with(&format!("HTTP/1.1 {status} ")) && heard.contains(code), "{head}: {heard}");
    }
    assert!(gateway.list("/v1/tenants/default/events").await.is_empty());
}

#[tokio::test]
async fn a_batch_that_is_called_json_is_an_array_and_lines_need_no_type() {
    let gateway = Gateway::start().await;
    let (one, two) = (r#"{"type":"a","data":1}"#, "{\"type\":\"a\",\"data\":1}\n{\"type\":\"a\",\"data\":2}\n");
    let array = r#"[{"type":"a","data":1}]"#;
    let pretty = "{\n  \"type\": \"a\",\n  \"data\": 1\n}";
    let (curl, json, lines) = ("application/x-www-form-urlencoded", "application/json", "application/x-ndjson");
    for (kind, body, taken) in [
        ("", one, Some(1)),
        ("", two, Some(2)),
        ("", array, Some(1)),
        (curl, one, Some(1)),
        (curl, two, Some(2)),
        (curl, array, Some(1)),
        (lines, one, Some(1)),
        (lines, two, Some(2)),
        (json, array, Some(1)),
        (json, two, Some(2)),
        ("application/json; charset=utf-8", one, None),
        (json, one, None),
        (json, pretty, None),
        (json, "{}", None),
        ("application/cloudevents+json", "{}", None),
    ] {
        let headers: Vec<(&str, &str)> =
            Some(("content-type", kind)).into_iter().filter(|(_, kind)| !kind.is_empty()).collect();
        let path = "/v1/tenants/default/events/batch";
        let answer = gateway.client.send("POST", path, &headers, body.to_owned()).await.unwrap();
        match taken {
            Some(taken) => {
                let data = answer.expect(202)["data"].as_array().unwrap().len();
                assert_eq!(data, taken, "{kind}: {body}");
            }
            None => {
                let problem = answer.problem(422, "invalid_field");
                assert!(problem["detail"].as_str().unwrap().contains("in an array"), "{kind}: {problem}");
            }
        }
    }
}

#[tokio::test]
async fn a_burst_of_null_is_the_default_burst() {
    let gateway = Gateway::start().await;
    let endpoints = "/v1/tenants/default/endpoints";
    let rate = json!({"per_second": 200, "burst": null});
    let new = json!({"url": "http://127.0.0.1:9/", "rate": rate});
    let made = gateway.client.post_json(endpoints, &new).await.expect(201);
    assert_eq!(made["rate"], json!({"per_second": 200, "burst": 20}));
    let path = format!("{endpoints}/{}", made["id"].as_str().unwrap());
    let changed = gateway.client.patch_json(&path, &json!({"rate": {"burst": 7}})).await.expect(200);
    assert_eq!(changed["rate"], json!({"per_second": 200, "burst": 7}));
    let changed = gateway.client.patch_json(&path, &json!({"rate": {"burst": null}})).await.expect(200);
    assert_eq!(changed["rate"], json!({"per_second": 200, "burst": 20}));
    let both = json!({"rate": rate, "ingest": {"per_second": 0.5, "burst": null}});
    let tenant = gateway.client.send("PUT", "/v1/tenants/acme", &[], both.to_string()).await.unwrap().expect(201);
    assert_eq!(tenant["rate"], json!({"per_second": 200, "burst": 20}));
    assert_eq!(tenant["ingest"], json!({"per_second": 0.5, "burst": 1}));
    let tenant = gateway.client.patch_json("/v1/tenants/default", &both).await.expect(200);
    assert_eq!(tenant["rate"], json!({"per_second": 200, "burst": 20}));
    // The description says so, too.
    let schemas = gateway.client.get("/openapi.json").await.expect(200)["components"]["schemas"].clone();
    assert_eq!(schemas["Rate"]["properties"]["burst"]["type"], json!(["integer", "null"]));
}
