//! Receivers that mean harm: each attempt ends by its deadline, and no more
//! is read or kept than was decided beforehand.

use std::sync::atomic::Ordering;
use std::time::Duration;

use base64::Engine;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::support::{Gateway, Options, RawReceiver, RawStep, Receiver, eventually};

/// More than any of this machine's socket buffers hold, and far less than a
/// receiver without end would say.
const TAKEN_MAX: usize = 32 * 1_024 * 1_024;
const KEPT_MAX: usize = 4 * 1_024;
const TOTAL: Duration = Duration::from_millis(1_000);

/// Says the head, and then this without end.
async fn flooding(head: &'static str, without_end: &'static str) -> RawReceiver {
    let piece = Bytes::from(without_end.repeat(64 * 1_024 / without_end.len()));
    RawReceiver::running(vec![RawStep::ReadRequest, RawStep::Write(head.into()), RawStep::Flood(piece)]).await
}

/// Says the head, and then this without end, two bytes in four milliseconds.
async fn dripping(head: &'static str, without_end: &'static str) -> RawReceiver {
    RawReceiver::running(vec![RawStep::ReadRequest, RawStep::Write(head.into()), RawStep::Drip(without_end.into())])
        .await
}

/// Says this and then nothing, and stays.
async fn holding(sent: &'static str) -> RawReceiver {
    RawReceiver::running(vec![RawStep::ReadRequest, RawStep::Write(sent.into()), RawStep::Hold]).await
}

/// Makes one attempt at a receiver; its record.
async fn attempt(gateway: &Gateway, id: &str, url: &str) -> Value {
    let timeout = json!({"connect": "1s", "total": "1s"});
    let settings = json!({"url": url, "retry": {"max_attempts": 1}, "timeout": timeout});
    let endpoint = gateway.create_endpoint(settings).await;
    gateway.send(json!({"id": id, "type": "t", "endpoints": [endpoint["id"]], "data": 1})).await;
    let delivery = eventually(&format!("event {id} to end"), || async {
        let delivery = gateway.delivery_of(id).await;
        if delivery["state"] == "waiting" { Err(delivery.to_string()) } else { Ok(delivery) }
    })
    .await;
    gateway.attempts_of(&delivery).await.remove(0)
}

/// What an attempt came to: its status, or the kind of its failure.
fn came_to(attempt: &Value) -> String {
    match attempt["status"].as_u64() {
        Some(status) => status.to_string(),
        None => attempt["error"]["kind"].as_str().expect("a failure").to_owned(),
    }
}

#[tokio::test]
async fn no_receiver_holds_an_attempt_beyond_its_deadline_or_has_more_read_than_was_decided() {
    // One slot: whoever would keep it would keep everybody.
    let gateway = Gateway::start_with(Options::flags(&["--max-in-flight", "1"])).await;
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let cases = [
        ("a body without end", flooding("HTTP/1.1 200 OK\r\n\r\n", "x").await, "200"),
        ("a failure's body without end", flooding("HTTP/1.1 500 No\r\n\r\n", "x").await, "500"),
        ("ten gigabytes", flooding("HTTP/1.1 200 OK\r\ncontent-length: 10737418240\r\n\r\n", "x").await, "200"),
        ("chunks without end", flooding(chunked, "5\r\nhello\r\n").await, "200"),
        (
            "one chunk without end",
            flooding("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nFFFFFFFF\r\n", "x").await,
            "200",
        ),
        (
            "a chunk's extension without end",
            flooding("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;", "x").await,
            "200",
        ),
        ("a chunk's size without end", flooding(chunked, "0").await, "200"),
        (
            "trailers without end",
            flooding("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", "a: b\r\n").await,
            "200",
        ),
        ("headers without end", flooding("HTTP/1.1 200 OK\r\n", "a: b\r\n").await, "oversized_headers"),
        ("a header without end", flooding("HTTP/1.1 200 OK\r\na: ", "x").await, "oversized_headers"),
        ("a header's name without end", flooding("HTTP/1.1 200 OK\r\n", "x").await, "oversized_headers"),
        ("a reason without end", flooding("HTTP/1.1 200 ", "x").await, "oversized_headers"),
        ("empty lines without end", flooding("", "\r\n").await, "oversized_headers"),
        (
            "interim answers without end",
            flooding("", "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n").await,
            "malformed_answer",
        ),
        ("HTTP/0.9 without end", flooding("", "<html>").await, "malformed_answer"),
        ("nul bytes without end", flooding("", "\0").await, "malformed_answer"),
        ("a body that drips", dripping("HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n", "x").await, "200"),
        ("chunks that drip", dripping(chunked, "1\r\nx\r\n").await, "200"),
        ("headers that drip", dripping("HTTP/1.1 200 OK\r\n", "a: b\r\n").await, "timeout"),
        ("a status that drips", dripping("HTTP/1.1 200 ", "x").await, "timeout"),
        ("empty lines that drip", dripping("", "\r\n").await, "timeout"),
        ("interim answers that drip", dripping("", "HTTP/1.1 102 P\r\n\r\n").await, "timeout"),
        ("a body that never comes", holding("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n").await, "200"),
        ("a body that stops", holding("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello").await, "200"),
        ("a head that stops", holding("HTTP/1.1 200 OK\r\ncontent-le").await, "timeout"),
        ("silence", holding("").await, "timeout"),
        ("a connection that is kept", holding("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await, "200"),
    ];
    for (n, (name, receiver, expected)) in cases.iter().enumerate() {
        let attempt = attempt(&gateway, &format!("h-{n}"), &receiver.url("http")).await;
        assert_eq!(came_to(&attempt), *expected, "{name}: {attempt}");
        let took = Duration::from_secs_f64(attempt["duration_ms"].as_f64().unwrap() / 1e3);
        // All of these would go on for ever. A busy machine may notice the deadline late.
        assert!(took < 10 * TOTAL, "{name} took {took:?}");
        let body = attempt["response_body"].as_str().unwrap();
        assert!(body.len() <= KEPT_MAX, "{name}: {} bytes are kept", body.len());
        let headers = attempt["response_headers"].to_string();
        assert!(headers.len() <= 2 * 1_024, "{name}: {headers}");
        // It is hung up on, rather than left to talk.
        let sent = || receiver.bytes_sent.load(Ordering::SeqCst);
        eventually(&format!("{name} to be hung up on"), || async {
            let before = sent();
            tokio::time::sleep(Duration::from_millis(5)).await;
            if sent() == before { Ok(()) } else { Err(format!("{} bytes so far", sent())) }
        })
        .await;
        assert!(sent() < TAKEN_MAX, "{name}: {} bytes were taken", sent());
    }
}

#[tokio::test]
async fn an_answer_is_kept_as_it_came_and_never_decompressed() {
    // A mebibyte of zeros, in a thousand bytes.
    let written = format!("H4sIAAAAAAACA+3BMQEAAADCoPVPbQhfoA{}PgMc6jinAAAQAA==", "A".repeat(1354));
    let bomb = base64::engine::general_purpose::STANDARD.decode(written).expect("base64");
    assert!(bomb.len() < 2_000 && bomb.starts_with(&[0x1f, 0x8b]));
    let gateway = Gateway::start().await;
    for encoding in ["gzip", "deflate", "br", "zstd", "gzip, gzip"] {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-encoding: {encoding}\r\ncontent-length: {}\r\n\r\n", bomb.len());
        let receiver = RawReceiver::answering([head.as_bytes(), &bomb].concat()).await;
        let id = format!("bomb-{}", encoding.replace(", ", "-"));
        let attempt = attempt(&gateway, &id, &receiver.url("http")).await;
        assert_eq!(came_to(&attempt), "200", "{attempt}");
        assert_eq!(attempt["response_body"], String::from_utf8_lossy(&bomb).as_ref(), "{encoding}");
        assert_eq!(attempt["response_headers"]["content-encoding"], encoding);
    }
    let receiver = Receiver::start().await;
    attempt(&gateway, "plain", &receiver.url()).await;
    assert_eq!(receiver.seen()[0].header("accept-encoding"), "", "nobody is asked for it either");
}
