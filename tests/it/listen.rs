//! `posthaste listen` as a real process: a receiver that verifies,
//! deduplicates and misbehaves on request.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::servers::guard::free_port;
use crate::support::{Gateway, Options, PATIENCE, eager_retry};

/// A listener in its own process, and what it prints.
struct Listener {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    url: String,
}

impl Listener {
    async fn start(args: &[&str]) -> Self {
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
    async fn stop(mut self) -> String {
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
