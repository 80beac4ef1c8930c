//! What one caller can take up: connections, bodies, depth; and the name that
//! every request has.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Client, Gateway, Options, eventually};

#[tokio::test]
async fn a_gateway_that_is_full_is_seen_to_be_alive() {
    let gateway = Gateway::start_with(Options::flags(&["--max-connections", "3"])).await;
    let mut open = Vec::new();
    for _ in 0..3 {
        let client = gateway.another_client();
        client.get("/v1/tenants").await.expect(200);
        open.push(client);
    }
    // Others are told to come back, and health checks are answered.
    for n in 0..100 {
        // Those who hold a connection notice nothing.
        open[n % 3].get("/v1/tenants").await.expect(200);
        let turned_away = gateway.another_client().get("/v1/tenants").await;
        assert!(turned_away.headers.contains_key("retry-after") && turned_away.headers["connection"] == "close");
        let detail = turned_away.problem(503, "unavailable")["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("--max-connections"), "{detail}");
        gateway.another_client().get("/healthz").await.expect(200);
    }
    let nobody = Client::new(gateway.address, "");
    nobody.get("/readyz").await.expect(200);
    drop(open.pop());
    eventually("room for one more", || async {
        let answer = gateway.another_client().get("/v1/tenants").await;
        if answer.status == 200 { Ok(()) } else { Err(answer.status.to_string()) }
    })
    .await;
}

#[tokio::test]
async fn connections_that_say_nothing_do_not_shut_others_out() {
    let gateway = Gateway::start_with(Options::flags(&["--max-connections", "2"])).await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(gateway.address).await.unwrap());
    }
    // Between them or after them, it is answered.
    let client = Client::new(gateway.address, "");
    client.get("/healthz").await.expect(200);
    // They are closed in time, without a word.
    for mut stream in silent {
        let mut heard = Vec::new();
        let closed = tokio::time::timeout(std::time::Duration::from_secs(60), stream.read_to_end(&mut heard)).await;
        let _ = closed.expect("it is closed");
        assert!(heard.is_empty(), "{}", String::from_utf8_lossy(&heard));
    }
}

#[tokio::test]
async fn an_oversized_or_unfinished_body_holds_nobody_up() {
    let gateway = Gateway::start().await;
    let address = gateway.address;
    let say = async |text: String| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut heard = vec![0; 4_096];
        let read = tokio::time::timeout(std::time::Duration::from_secs(20), stream.read(&mut heard)).await;
        String::from_utf8_lossy(&heard[..read.expect("an answer").unwrap()]).into_owned()
    };
    let head = |more: &str| format!("POST /v1/tenants/default/endpoints HTTP/1.1\r\nhost: a\r\n{more}\r\n");
    // Whoever may not ask is told so without his body being waited for.
    let heard = say(head("content-length: 100000\r\n")).await;
    assert!(heard.starts_with("HTTP/1.1 401 ") && heard.contains("x-request-id: req_"), "{heard}");
    let token = format!("authorization: Bearer {}\r\n", gateway.token());
    let deep = format!("{{\"metadata\":{}{}}}", "[".repeat(5_000), "]".repeat(5_000));
    let heard = say(head(&format!("{token}content-length: {}\r\n", deep.len())) + &deep).await;
    assert!(heard.starts_with("HTTP/1.1 422 ") && heard.contains("levels deep"), "{heard}");
    let heard = say(head(&format!("{token}transfer-encoding: chunked\r\n")) + "zz\r\n").await;
    assert!(heard.starts_with("HTTP/1.1 400 "), "{heard}");
    // Which of the two lengths counts must never be a question.
    let twice = "content-length: 2\r\ncontent-length: 3\r\n";
    let heard = say(head(&format!("{token}{twice}")) + "{}").await;
    assert!(heard.starts_with("HTTP/1.1 400 "), "{heard}");
}

#[tokio::test]
async fn a_request_has_one_name_in_its_answer_its_problem_and_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let options = Options { log: Some(log.clone()), ..Options::flags(&["--log", "info", "--log-format", "json"]) };
    let gateway = Gateway::start_with(options).await;
    let mine = [("x-request-id", "req_trace.7:a-b")];
    let answer = gateway.client.send("GET", "/v1/tenants/nobody", &mine, "").await.unwrap();
    assert_eq!(answer.headers["x-request-id"], mine[0].1);
    assert_eq!(answer.problem(404, "not_found")["request_id"], mine[0].1);
    for odd in ["a b", "\"quoted\"", &"x".repeat(129), ""] {
        let answer = gateway.client.send("GET", "/nowhere", &[("x-request-id", odd)], "").await.unwrap();
        let named = answer.headers["x-request-id"].to_str().unwrap().to_owned();
        assert!(named.starts_with("req_") && named != odd, "{named}");
        assert_eq!(answer.json()["request_id"], named.as_str());
    }
    let put = gateway.client.send("PUT", "/v1/tenants/acme", &mine, json!({}).to_string()).await.unwrap();
    put.expect(201);
    let line = eventually("its line in the log", || async {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let line = text.lines().find(|line| line.contains("PUT /v1/tenants/acme")).map(str::to_owned);
        line.ok_or(text)
    })
    .await;
    assert!(line.contains(mine[0].1) && line.contains("\"admin\""), "{line}");
}
