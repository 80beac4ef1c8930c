//! `posthaste listen` as a real process: a receiver that verifies,
//! deduplicates and misbehaves on request.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;

use posthaste::clock::{Clock, SystemClock};
use posthaste_receiver::{Profile, Verifier};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::servers::guard::free_port;
use crate::support::{Gateway, Options, PATIENCE, Receiver, Reply, eager_retry};

/// A listener in its own process, and what it prints.
pub struct Listener {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    pub url: String,
}

impl Listener {
    pub async fn start(args: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_posthaste"))
            .args(["listen", "--listen", "127.0.0.1:0"])
            .args(args)
            .env_remove("POSTHASTE_SECRET")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the listener starts");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let mut listener = Self { process, lines, url: String::new() };
        let first = listener.line_with("listening on ").await;
        let address = first.split("listening on ").nth(1).and_then(|rest| rest.split(',').next());
        listener.url = format!("{}/", address.expect("an address"));
        listener
    }

    /// The next line that says this.
    async fn line_with(&mut self, words: &str) -> String {
        let reading = async {
            loop {
                match self.lines.next_line().await.expect("readable output") {
                    Some(line) if line.contains(words) => return line,
                    Some(_) => {}
                    None => panic!("the listener ended without saying {words:?}"),
                }
            }
        };
        tokio::time::timeout(PATIENCE, reading).await.unwrap_or_else(|_| panic!("it never said {words:?}"))
    }

    /// SIGTERM; the line with the totals.
    pub async fn stop(mut self) -> String {
        let id = self.process.id().expect("it runs");
        let id = rustix::process::Pid::from_raw(id as i32).expect("a process id");
        rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("it can be signalled");
        let totals = self.line_with("distinct event").await;
        assert!(self.process.wait().await.expect("it ends").success());
        totals
    }
}

/// An endpoint whose URL is set once the listener that knows its secret runs.
async fn endpoint(gateway: &Gateway) -> (String, String) {
    let settings = json!({"url": "http://127.0.0.1:1/", "retry": eager_retry(9)});
    let endpoint = gateway.create_endpoint(settings).await;
    let text = |field: &str| endpoint[field].as_str().expect("a text").to_owned();
    (format!("/v1/tenants/default/endpoints/{}", text("id")), text("secret"))
}

async fn point_at(gateway: &Gateway, endpoint: &str, url: &str) {
    let patch = json!({ "url": url }).to_string();
    gateway.client.send("PATCH", endpoint, &[], patch).await.expect("an answer").expect(200);
}

#[tokio::test]
async fn a_listener_refuses_as_told_then_applies_once_and_knows_the_replay() {
    let gateway = Gateway::start().await;
    let (path, secret) = endpoint(&gateway).await;
    let mut listener = Listener::start(&["--respond", "503x2,200", "--secret", &secret]).await;
    point_at(&gateway, &path, &listener.url).await;
    gateway.send(json!({"id": "order-7", "type": "order.paid", "key": "7", "data": {"n": 1}})).await;
    let delivery = gateway.wait_for_state("order-7", "delivered").await;
    assert_eq!(delivery["attempts"], 3, "{delivery}");
    let statuses: Vec<Value> =
        gateway.attempts_of(&delivery).await.iter().map(|attempt| attempt["status"].clone()).collect();
    assert_eq!(statuses, [503, 503, 200]);
    for (attempt, told) in [("1", "answered 503"), ("2", "repeat, answered 503"), ("3", "repeat, answered 200")] {
        let line = listener.line_with("order-7").await;
        for part in ["order.paid", &format!("attempt {attempt}"), "key 7", "seq 1", "verified", told] {
            assert!(line.contains(part), "{line} does not say {part}");
        }
        let body = listener.line_with("order-7").await;
        assert!(body.contains(r#""data":{"n": 1}"#) || body.contains(r#""data":{"n":1}"#), "{body}");
    }

    gateway.post_to_delivery(&delivery, "replay").await.expect(202);
    let line = listener.line_with("attempt 4").await;
    assert!(line.contains("verified") && line.contains("duplicate, answered 200"), "{line}");
    gateway.wait_for_state("order-7", "delivered").await;
    let totals = listener.stop().await;
    assert_eq!(
        totals,
        "4 requests, 1 distinct event, 1 applied, 2 repeats, 1 duplicate, 0 refused signatures, 0 dropped"
    );
}

#[tokio::test]
async fn a_listener_with_another_secret_refuses_what_comes() {
    let gateway = Gateway::start().await;
    let (path, _) = endpoint(&gateway).await;
    let mut listener = Listener::start(&["--secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]).await;
    point_at(&gateway, &path, &listener.url).await;
    gateway.send(json!({"id": "forged", "type": "t", "data": 1})).await;
    let line = listener.line_with("forged").await;
    assert!(line.contains("refused: ") && line.contains("answered 400"), "{line}");
    let dead = gateway.wait_for_state("forged", "dead").await;
    assert_eq!((&dead["cause"], &dead["last_status"]), (&json!("refused"), &json!(400)));
    let totals = listener.stop().await;
    assert!(totals.contains("0 applied") && totals.contains("1 refused signature"), "{totals}");
}

#[tokio::test]
async fn a_listener_that_drops_everything_answers_nothing() {
    let gateway = Gateway::start().await;
    let (path, _) = endpoint(&gateway).await;
    let mut listener = Listener::start(&["--drop", "100%"]).await;
    point_at(&gateway, &path, &listener.url).await;
    gateway.send(json!({"id": "lost", "type": "t", "data": 1})).await;
    let line = listener.line_with("lost").await;
    assert!(line.contains("not verified") && line.contains("dropped"), "{line}");
    let dead = gateway.wait_for_state("lost", "dead").await;
    assert_eq!((&dead["cause"], &dead["attempts"]), (&json!("exhausted"), &json!(9)));
}

#[tokio::test]
async fn a_listener_fetches_the_data_of_thin_events_when_asked() {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let flags = ["--public-url", &format!("http://{listen}/")].map(str::to_owned).to_vec();
    let gateway = Gateway::start_with(Options { flags, listen: Some(listen), ..Options::default() }).await;
    let mut listener = Listener::start(&["--fetch"]).await;
    gateway.create_endpoint(json!({"url": listener.url, "format": "thin"})).await;
    gateway.send(json!({"id": "thin-1", "type": "t", "data": {"n": "fetched"}})).await;
    let line = listener.line_with("data of thin-1").await;
    assert!(line.starts_with("    data of thin-1: {") && line.contains("fetched"), "{line}");
}

#[tokio::test]
async fn a_listener_forwards_byte_for_byte_and_passes_the_answer_back() {
    let gateway = Gateway::start().await;
    let (path, secret) = endpoint(&gateway).await;
    let replies = [(503, "busy"), (201, "done")].map(|(status, body)| Reply::Body(status, body.into()));
    let service = Receiver::scripted(replies.to_vec()).await;
    let mut listener = Listener::start(&["--forward", &service.url(), "--secret", &secret]).await;
    point_at(&gateway, &path, &listener.url).await;
    gateway.send(json!({"id": "handed-on", "type": "t", "key": "k", "data": {"n": 1}})).await;
    let delivery = gateway.wait_for_state("handed-on", "delivered").await;

    let attempts = gateway.attempts_of(&delivery).await;
    let answers: Vec<_> = attempts.iter().map(|one| (one["status"].clone(), one["response_body"].clone())).collect();
    assert_eq!(answers, [(json!(503), json!("busy")), (json!(201), json!("done"))], "the service's own answers");
    let line = listener.line_with("handed-on").await;
    assert!(line.contains("verified  answered 503"), "{line}");
    let line = listener.line_with("the service answered").await;
    assert!(line.contains("503 after ") && line.ends_with(": busy"), "{line}");
    let line = listener.line_with("attempt 2").await;
    assert!(line.contains("repeat, answered 201"), "{line}");

    let seen = service.seen();
    assert_eq!(seen.len(), 2);
    let verifier = Verifier::new(Profile::Standard, [&secret]).expect("a secret");
    for seen in &seen {
        verifier.verify(&seen.headers, &seen.body, SystemClock.now().into()).expect("byte for byte what was signed");
        assert_eq!((seen.path.as_str(), seen.header("host")), ("/hook", service.address.to_string().as_str()));
        for name in ["x-event-type", "x-key", "x-seq", "idempotency-key", "user-agent", "content-type"] {
            assert!(seen.headers.contains_key(name), "{name} is missing");
        }
    }
    assert!(listener.stop().await.contains("2 requests, 1 distinct event, 1 applied"));
}

#[tokio::test]
async fn a_listener_can_lose_the_answer_of_the_service() {
    let gateway = Gateway::start().await;
    let (path, _) = endpoint(&gateway).await;
    let service = Receiver::start().await;
    let listener = Listener::start(&["--forward", &service.url(), "--respond", "drop,pass"]).await;
    point_at(&gateway, &path, &listener.url).await;
    gateway.send(json!({"id": "twice", "type": "t", "data": 1})).await;
    let delivery = gateway.wait_for_state("twice", "delivered").await;
    assert_eq!(delivery["attempts"], 2);
    assert_eq!(service.times_by_id()["twice"], 2, "the service got it both times, which is what its inbox is for");
    assert!(listener.stop().await.ends_with("1 dropped"));
}

#[tokio::test]
async fn a_service_that_is_not_there_is_answered_502() {
    let gateway = Gateway::start().await;
    let (path, _) = endpoint(&gateway).await;
    let nobody = format!("http://127.0.0.1:{}/", free_port());
    let mut listener = Listener::start(&["--forward", &nobody]).await;
    point_at(&gateway, &path, &listener.url).await;
    gateway.send(json!({"id": "nobody", "type": "t", "data": 1})).await;
    let line = listener.line_with("nobody").await;
    assert!(line.contains("answered 502"), "{line}");
    let line = listener.line_with("did not answer").await;
    assert!(line.contains(&nobody) && line.contains("refused"), "{line}");
}

#[tokio::test]
async fn a_listener_that_hangs_is_timed_out() {
    let gateway = Gateway::start().await;
    let (path, _) = endpoint(&gateway).await;
    let patch = json!({"timeout": {"connect": "2s", "total": "2s"}}).to_string();
    gateway.client.send("PATCH", &path, &[], patch).await.expect("an answer").expect(200);
    let listener = Listener::start(&["--respond", "hang,200"]).await;
    point_at(&gateway, &path, &listener.url).await;
    gateway.send(json!({"id": "hung", "type": "t", "data": 1})).await;
    let delivery = gateway.wait_for_state("hung", "delivered").await;
    let attempts = gateway.attempts_of(&delivery).await;
    let ends: Vec<_> = attempts.iter().map(|one| (one["status"].clone(), one["error"]["kind"].clone())).collect();
    assert_eq!(ends, [(Value::Null, json!("timeout")), (json!(200), Value::Null)]);
    assert!(listener.stop().await.contains("1 applied, 1 repeat"));
}

#[tokio::test]
async fn a_recording_is_replayed_to_a_service_signed_anew() {
    let gateway = Gateway::start().await;
    let (path, secret) = endpoint(&gateway).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("recording.ndjson");
    let file = file.to_str().expect("a path of text");
    let listener = Listener::start(&["--record", file, "--respond", "503,200", "--secret", &secret]).await;
    point_at(&gateway, &path, &listener.url).await;
    for id in ["one", "two"] {
        gateway.send(json!({"id": id, "type": "t", "key": "k", "data": {"n": "é"}})).await;
    }
    gateway.wait_for_state("two", "delivered").await;
    listener.stop().await;

    // An hour later the signatures are too old for anybody who checks the time.
    let text = std::fs::read_to_string(file).expect("a recording");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let hour_ago = |mut line: Value| {
        for header in line["headers"].as_array_mut().expect("headers") {
            if header[0] == "webhook-timestamp" {
                let seconds: i64 = header[1].as_str().and_then(|text| text.parse().ok()).expect("seconds");
                header[1] = json!((seconds - 3_600).to_string());
            }
        }
        format!("{line}\n")
    };
    std::fs::write(file, lines.into_iter().map(hour_ago).collect::<String>()).expect("written");

    let service = Receiver::start().await;
    let (code, printed) = replay(&["--replay", file, "--forward", &service.url(), "--secret", &secret]).await;
    let ids: Vec<_> = service.seen().iter().map(|seen| seen.id().to_owned()).collect();
    assert_eq!((code, ids.join(" ").as_str()), (0, "one one two"), "{printed}");
    assert!(printed.contains("3 requests, 2 distinct events, 2 applied, 0 repeats, 1 duplicate"), "{printed}");
    let verifier = Verifier::new(Profile::Standard, [&secret]).expect("a secret");
    for seen in service.seen() {
        verifier.verify(&seen.headers, &seen.body, SystemClock.now().into()).expect("signed anew");
    }

    service.answer_with(|_| Reply::Status(500));
    let (code, printed) = replay(&["--replay", file, "--forward", &service.url()]).await;
    assert!(code == 4 && printed.contains("3 of 3 requests were not answered with 2xx"), "{code}: {printed}");
    let (code, printed) = replay(&["--replay", file]).await;
    assert!(code == 0 && printed.contains("attempt 2  key k  seq 1"), "{code}: {printed}");
}

/// Runs `listen` to its end; the exit code, and all that it printed.
async fn replay(args: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
    command.arg("listen").args(args).env_remove("POSTHASTE_SECRET").kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await.expect("it ends").expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().expect("a code"), text(&output.stdout) + &text(&output.stderr))
}
