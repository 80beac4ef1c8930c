//! Attempts without a sound answer: told apart by name, in words a person
//! understands, and never taken for a delivery.

use std::time::Instant;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::support::{Gateway, PATIENCE, RawReceiver, RawStep, eventually};

/// What an odd answer expected to.
enum ExpectedOutcome {
    /// A failure of this kind, retried, with these words in its message.
    Failed(&'static str, &'static [&'static str]),
    /// An answer with this status, judged by this row of the table.
    Answered(u16, &'static str, &'static str),
}

use ExpectedOutcome::{Answered, Failed};

/// Makes one attempt at this URL; its record.
async fn attempt(gateway: &Gateway, id: &str, url: &str, timeout: Value) -> Value {
    let settings = json!({"url": url, "retry": {"max_attempts": 1}, "timeout": timeout});
    let endpoint = gateway.create_endpoint(settings).await;
    gateway.send(json!({"id": id, "type": "t", "endpoints": [endpoint["id"]], "data": 1})).await;
    let delivery = eventually(&format!("event {id} to end"), || async {
        let delivery = gateway.delivery_of(id).await;
        if delivery["state"] == "waiting" { Err(delivery.to_string()) } else { Ok(delivery) }
    })
    .await;
    let mut attempts = gateway.attempts_of(&delivery).await;
    assert_eq!(attempts.len(), 1, "{id}: {attempts:?}");
    let attempt = attempts.remove(0);
    let is_delivered = attempt["decision"]["verdict"] == "delivered";
    assert_eq!(delivery["state"] == "delivered", is_delivered, "{id}: {delivery}");
    attempt
}

/// What is wrong about an attempt, if it is not what was to come.
fn mismatch(attempt: &Value, expected: &ExpectedOutcome) -> Option<String> {
    let decision = (attempt["decision"]["verdict"].as_str()?, attempt["decision"]["rule"].as_str()?);
    let is_right = match expected {
        Failed(kind, words) => {
            let message = attempt["error"]["message"].as_str().unwrap_or_default();
            decision == ("retry", *kind)
                && attempt["error"]["kind"] == *kind
                && attempt["status"].is_null()
                && words.iter().all(|word| message.contains(word))
        }
        Answered(status, verdict, rule) => {
            decision == (*verdict, *rule) && attempt["status"] == *status && attempt["error"].is_null()
        }
    };
    (!is_right).then(|| format!("{decision:?} {} {}", attempt["status"], attempt["error"]))
}

/// Makes one attempt at each receiver and compares, all of them before it fails.
async fn expect(gateway: &Gateway, scheme: &str, timeout: Value, cases: Vec<(&str, RawReceiver, ExpectedOutcome)>) {
    let mut wrong = Vec::new();
    for (n, (name, receiver, expected)) in cases.iter().enumerate() {
        let began = Instant::now();
        let attempt = attempt(gateway, &format!("{scheme}-{n}"), &receiver.url(scheme), timeout.clone()).await;
        if let Some(what) = mismatch(&attempt, expected) {
            wrong.push(format!("{name}: {what}"));
        }
        assert!(began.elapsed() < PATIENCE, "{name} hangs");
    }
    assert!(wrong.is_empty(), "not as they should be:\n  {}", wrong.join("\n  "));
}

fn patient() -> Value {
    json!({"connect": "5s", "total": "10s"})
}

fn short_timeouts() -> Value {
    json!({"connect": "500ms", "total": "1s"})
}

async fn saying(answer: &[u8]) -> RawReceiver {
    RawReceiver::answering(Bytes::copy_from_slice(answer)).await
}

/// Hears a request, says this much of an answer and resets the connection.
async fn resetting(answer: &'static str) -> RawReceiver {
    RawReceiver::running(vec![RawStep::ReadRequest, RawStep::Write(answer.into()), RawStep::Reset]).await
}

const MALFORMED: &str = "malformed_answer";
const RESET: &str = "connection_reset";

#[tokio::test]
async fn an_answer_that_is_not_http_is_shown_and_tried_again() {
    let gateway = Gateway::start().await;
    let no_status: &[&str] = &["the status line", "malformed", "it needs a status from 100 to 999"];
    let huge = [b"HTTP/1.1 200 ", [b'x'; 100_000].as_slice(), b"\r\n\r\n"].concat();
    let cases = vec![
        (
            "two digits",
            saying(b"HTTP/1.1 99 X\r\n\r\n").await,
            Failed(MALFORMED, &["the status line", "\"HTTP/1.1 99 X\"", "100 to 999"]),
        ),
        ("four digits", saying(b"HTTP/1.1 1000 X\r\n\r\n").await, Failed(MALFORMED, no_status)),
        ("letters", saying(b"HTTP/1.1 abc\r\n\r\n").await, Failed(MALFORMED, no_status)),
        ("zeros", saying(b"HTTP/1.1 000 X\r\n\r\n").await, Failed(MALFORMED, no_status)),
        ("no status", saying(b"HTTP/1.1\r\n\r\n").await, Failed(MALFORMED, no_status)),
        ("nothing after the version", saying(b"HTTP/1.1").await, Failed(RESET, &["closed", "\"HTTP/1.1\""])),
        (
            "a bare body",
            saying(b"<html>fine</html>").await,
            Failed(MALFORMED, &["does not speak HTTP", "\"<html>fine</html>\""]),
        ),
        (
            "http 2",
            saying(b"HTTP/2.0 200 OK\r\n\r\n").await,
            Failed(MALFORMED, &["not in HTTP/1.1", "\"HTTP/2.0 200 OK\""]),
        ),
        (
            "http 1.2",
            saying(b"HTTP/1.2 200 OK\r\n\r\n").await,
            Failed(MALFORMED, &["not in HTTP/1.1", "\"HTTP/1.2 200 OK\""]),
        ),
        ("icecast", saying(b"ICY 200 OK\r\n\r\n").await, Failed(MALFORMED, &["does not speak HTTP", "\"ICY 200 OK\""])),
        ("garbage", saying(b"\xde\xad\xbe\xef\xde\xad\xbe\xef\xde\xad").await, Failed(MALFORMED, &[r"\xde\xad"])),
        ("nul bytes", saying(&[0; 32]).await, Failed(MALFORMED, &[r"\x00"])),
        (
            "nul in the reason",
            saying(b"HTTP/1.1 200 O\0K\r\n\r\n").await,
            Failed(MALFORMED, &["the status line", "malformed", r"O\x00K"]),
        ),
        ("lower case", saying(b"http/1.1 200 OK\r\n\r\n").await, Failed(MALFORMED, &["\"http/1.1 200 OK\""])),
        ("tls", saying(&[0x15, 3, 1, 0, 2, 2, 0x28, 0, 0]).await, Failed(MALFORMED, &["speaks TLS", "https"])),
        (
            "a header without a colon",
            saying(b"HTTP/1.1 200 OK\r\nbroken line\r\n\r\n").await,
            Failed(MALFORMED, &["malformed after \"HTTP/1.1 200 OK\"", "header"]),
        ),
        (
            "a header with a nul",
            saying(b"HTTP/1.1 200 OK\r\na: b\0c\r\n\r\n").await,
            Failed(MALFORMED, &["malformed after \"HTTP/1.1 200 OK\"", "header"]),
        ),
        (
            "conflicting lengths",
            saying(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab").await,
            Failed(MALFORMED, &["malformed after \"HTTP/1.1 200 OK\"", "content-length"]),
        ),
        (
            "a length that is no number",
            saying(b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\nab").await,
            Failed(MALFORMED, &["malformed after \"HTTP/1.1 200 OK\"", "content-length"]),
        ),
        ("a huge status line", saying(&huge).await, Failed("oversized_headers", &["32 KiB", "64 headers"])),
    ];
    expect(&gateway, "http", patient(), cases).await;
}

#[tokio::test]
async fn an_odd_answer_that_is_http_is_judged_by_its_status() {
    let gateway = Gateway::start().await;
    let cases = vec![
        ("no reason", saying(b"HTTP/1.1 200\r\n\r\n").await, Answered(200, "delivered", "2xx")),
        ("no reason", saying(b"HTTP/1.1 503\r\n\r\n").await, Answered(503, "retry", "5xx")),
        ("http 1.0", saying(b"HTTP/1.0 204 OK\n\n").await, Answered(204, "delivered", "2xx")),
        ("empty lines first", saying(b"\r\n\r\nHTTP/1.1 200 OK\r\n\r\n").await, Answered(200, "delivered", "2xx")),
        ("101", saying(b"HTTP/1.1 101 Switching Protocols\r\n\r\n").await, Answered(101, "retry", "1xx")),
        ("600", saying(b"HTTP/1.1 600 X\r\n\r\n").await, Answered(600, "retry", "600 and above")),
        ("999", saying(b"HTTP/1.1 999 Blocked\r\n\r\n").await, Answered(999, "retry", "600 and above")),
        (
            "two interim answers",
            saying(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 400 No\r\n\r\n")
                .await,
            Answered(400, "refused", "4xx"),
        ),
        (
            "a body that breaks off",
            resetting("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nbegin").await,
            Answered(200, "delivered", "2xx"),
        ),
        (
            "a failure whose body breaks off",
            resetting("HTTP/1.1 500 Sorry\r\ncontent-length: 1000\r\n\r\nbegin").await,
            Answered(500, "retry", "5xx"),
        ),
        (
            "chunks that make no sense",
            saying(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnot a chunk").await,
            Answered(200, "delivered", "2xx"),
        ),
    ];
    expect(&gateway, "http", patient(), cases).await;
}

#[tokio::test]
async fn interim_answers_without_end_are_cut_off_long_before_the_deadline() {
    let gateway = Gateway::start().await;
    let flood = Bytes::from("HTTP/1.1 102 Processing\r\n\r\n".repeat(40_000));
    let acts = vec![RawStep::ReadRequest, RawStep::Write(flood), RawStep::Hold];
    let cases = vec![(
        "a flood of 102s, and then silence",
        RawReceiver::running(acts).await,
        Failed(
            "malformed_answer",
            &["interim answers came without end (\"HTTP/1.1 102 Processing\"), and no final one"],
        ),
    )];
    expect(&gateway, "http", patient(), cases).await;
}

#[tokio::test]
async fn a_connection_that_breaks_says_how_far_the_answer_was() {
    let gateway = Gateway::start().await;
    let cases = vec![
        ("closed at once", RawReceiver::running(vec![]).await, Failed(RESET, &["the connection was"])),
        ("closed unanswered", saying(b"").await, Failed(RESET, &["the connection was closed before an answer came"])),
        ("reset unanswered", resetting("").await, Failed(RESET, &["the connection was reset before an answer came"])),
        (
            "closed after an interim answer",
            saying(b"HTTP/1.1 100 Continue\r\n\r\n").await,
            Failed(RESET, &["closed after an interim answer (\"HTTP/1.1 100 Continue\"), before a final one came"]),
        ),
        (
            "closed in the head",
            saying(b"HTTP/1.1 200 OK\r\nserver: x\r\nx-ha").await,
            Failed(RESET, &["closed before the head of the answer was complete", "\"HTTP/1.1 200 OK\""]),
        ),
        (
            "reset in the head",
            resetting("HTTP/1.1 200 OK\r\nserver: x\r\nx-ha").await,
            Failed(RESET, &["reset before the head of the answer was complete", "\"HTTP/1.1 200 OK\""]),
        ),
        (
            "a greeting",
            RawReceiver::running(vec![RawStep::Write("220 mail.example ESMTP\r\n".into()), RawStep::Hold]).await,
            Failed(MALFORMED, &["does not speak HTTP"]),
        ),
    ];
    expect(&gateway, "http", patient(), cases).await;

    let closed = { RawReceiver::running(vec![]).await.address };
    let closed = attempt(&gateway, "closed", &format!("http://{closed}/"), patient()).await;
    let port_refuses: &[&str] = &["nothing listens on port", "of 127.0.0.1", "refused"];
    assert_eq!(mismatch(&closed, &Failed("connection_refused", port_refuses)), None);
}

#[tokio::test]
async fn a_head_that_is_too_large_is_told_from_one_that_is_not_http() {
    let gateway = Gateway::start().await;
    let head = |fields: usize, bytes: usize| {
        let fields: String = (0..fields).map(|n| format!("x-{n}: {}\r\n", "v".repeat(bytes))).collect();
        format!("HTTP/1.1 200 OK\r\n{fields}\r\n").into_bytes()
    };
    // The client's limit in bytes is a soft one: 40 KB that came in one piece
    // were read, so these are far above it.
    let large: &[&str] = &["the head of the answer is too large", "32 KiB", "64 headers"];
    let cases = vec![
        ("as many as are read", saying(&head(64, 8)).await, Answered(200, "delivered", "2xx")),
        ("one too many", saying(&head(65, 8)).await, Failed("oversized_headers", large)),
        ("nearly as large as is read", saying(&head(30, 1_000)).await, Answered(200, "delivered", "2xx")),
        ("too large", saying(&head(60, 2_000)).await, Failed("oversized_headers", large)),
        ("one that is too large", saying(&head(1, 100_000)).await, Failed("oversized_headers", large)),
    ];
    expect(&gateway, "http", patient(), cases).await;
}

#[tokio::test]
async fn a_deadline_that_passes_says_in_which_phase() {
    let gateway = Gateway::start().await;
    let silent = || RawReceiver::running(vec![RawStep::Hold]);
    let stalling = |head: &'static str| {
        RawReceiver::running(vec![RawStep::ReadRequest, RawStep::Write(head.into()), RawStep::Hold])
    };
    let dripping = |head: &'static str, rest: &'static str| {
        RawReceiver::running(vec![RawStep::ReadRequest, RawStep::Write(head.into()), RawStep::Drip(rest.into())])
    };
    let opened: &[&str] = &["the connection was opened, but no answer came within 1s"];
    let begun: &[&str] = &["an answer began with \"HTTP/1.1 200 OK\"", "its head was not complete within 1s"];
    let cases = vec![
        ("silent", silent().await, Failed("timeout", opened)),
        ("half a head", stalling("HTTP/1.1 200 OK\r\ncontent-le").await, Failed("timeout", begun)),
        ("a head in drips", dripping("HTTP/1.1 200 OK\r\n", "x-y: z\r\n").await, Failed("timeout", begun)),
        (
            "a drip of interim answers",
            dripping("", "HTTP/1.1 100 Continue\r\n\r\n").await,
            Failed("timeout", &["within 1s"]),
        ),
    ];
    let began = Instant::now();
    expect(&gateway, "http", short_timeouts(), cases).await;
    assert!(began.elapsed() < PATIENCE / 2, "four deadlines of a second took {:?}", began.elapsed());

    let handshake: &[&str] = &["no secure connection within 500ms", "did not finish the TLS handshake"];
    expect(&gateway, "https", short_timeouts(), vec![("silent", silent().await, Failed("timeout", handshake))]).await;
}

#[tokio::test]
async fn a_handshake_that_the_server_ends_says_what_it_lacks() {
    let gateway = Gateway::start().await;
    let alert = |code: u8| {
        RawReceiver::running(vec![
            RawStep::Read,
            RawStep::Write(Bytes::copy_from_slice(&[0x15, 3, 1, 0, 2, 2, code])),
            RawStep::Hold,
        ])
    };
    let plain = || RawReceiver::running(vec![RawStep::Read, RawStep::Write("HTTP/1.1 400 Bad Request\r\n\r\n".into())]);
    let cases = vec![
        ("handshake_failure", alert(0x28).await, Failed("tls", &["the server shares no cipher suite"])),
        ("protocol_version", alert(0x46).await, Failed("tls", &["the server speaks neither TLS 1.2 nor TLS 1.3"])),
        ("unrecognized_name", alert(0x70).await, Failed("tls", &["does not know the name it was called by"])),
        ("internal_error", alert(0x50).await, Failed("tls", &["the server failed during the TLS handshake"])),
        ("unknown_ca, unasked", alert(0x30).await, Failed("tls", &["broke off the TLS handshake", "UnknownCA"])),
        ("plain http", plain().await, Failed("tls", &["what answered does not speak TLS; is it plain http?"])),
        (
            "closed",
            RawReceiver::running(vec![RawStep::Read]).await,
            Failed("tls", &["the server closed the connection during the TLS handshake"]),
        ),
        (
            "reset",
            RawReceiver::running(vec![RawStep::Read, RawStep::Reset]).await,
            Failed("tls", &["the server reset the connection during the TLS handshake"]),
        ),
    ];
    expect(&gateway, "https", patient(), cases).await;
}
