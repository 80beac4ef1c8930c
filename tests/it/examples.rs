//! The producers and receivers of `examples`, against a real gateway: an event that
//! comes again has no second effect, also after the receiver was killed.
//!
//! Part of the tests that need what `./check` installs: Python and Node with their
//! libraries, Go, Java and PHP.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;

use rusqlite::Connection;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::servers::guard::free_port;
use crate::signatures::installed;
use crate::support::{Client, Gateway, PATIENCE, Receiver, Reply, eager_retry, eventually};

/// The examples of a language.
#[derive(Clone, Copy)]
struct Language {
    producer: fn() -> Command,
    receiver: fn(port: u16, inbox: &Path) -> Command,
    /// The ids in the inbox, in its order.
    ids: fn(inbox: &Path) -> Vec<String>,
}

fn example(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(path)
}

fn program(name: &str, args: &[&str], file: &str) -> Command {
    let mut command = Command::new(name);
    command.args(args).arg(example(file));
    command
}

/// A receiver that takes its port and its inbox as arguments.
fn with_arguments(mut command: Command, port: u16, inbox: &Path) -> Command {
    command.arg(port.to_string()).arg(inbox);
    command
}

fn ids_in_table(inbox: &Path) -> Vec<String> {
    let database = Connection::open(inbox).expect("a database");
    let mut rows = database.prepare("SELECT id FROM inbox ORDER BY rowid").expect("the inbox");
    rows.query_map([], |row| row.get(0)).expect("rows").collect::<Result<_, _>>().expect("texts")
}

fn ids_in_lines(inbox: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(inbox).expect("an inbox");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.map(|line| line["id"].as_str().expect("an id").to_owned()).collect()
}

fn ids_in_columns(inbox: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(inbox).expect("an inbox");
    text.lines().map(|line| line.split('\t').nth(2).expect("an id").to_owned()).collect()
}

const PYTHON: Language = Language {
    producer: || program("python3", &[], "python/producer.py"),
    receiver: |port, inbox| {
        let mut command = program("python3", &[], "python/receiver.py");
        command.env("PYTHONPATH", installed("python", "requirements.txt"));
        with_arguments(command, port, inbox)
    },
    ids: ids_in_table,
};

const NODE: Language = Language {
    producer: || program("node", &[], "node/producer.mjs"),
    receiver: |port, inbox| {
        let mut command = program("node", &[], "node/receiver.mjs");
        command.env("NODE_PACKAGES", installed("node", "package.json"));
        with_arguments(command, port, inbox)
    },
    ids: ids_in_lines,
};

const GO: Language = Language {
    producer: || Command::new(built_by_go("producer")),
    receiver: |port, inbox| with_arguments(Command::new(built_by_go("receiver")), port, inbox),
    ids: ids_in_lines,
};

const JAVA: Language = Language {
    producer: || java("Producer"),
    receiver: |port, inbox| with_arguments(java("Receiver"), port, inbox),
    ids: ids_in_columns,
};

const PHP: Language = Language {
    producer: || program("php", &[], "php/producer.php"),
    receiver: |port, inbox| {
        let mut command = program("php", &["-S", &format!("127.0.0.1:{port}")], "php/receiver.php");
        command.env("INBOX", inbox).stderr(Stdio::null());
        command
    },
    ids: ids_in_table,
};

/// The receiver of Node where no file can grow beyond half a kilobyte: what does not fit
/// is written in part, and then refused.
const NODE_ON_A_FULL_DISK: Language = Language {
    receiver: |port, inbox| {
        let (node, mut limited) = ((NODE.receiver)(port, inbox), Command::new("sh"));
        let node = node.as_std();
        limited.args(["-c", "ulimit -f 1; exec \"$@\"", "sh"]).arg(node.get_program()).args(node.get_args());
        limited.envs(node.get_envs().filter_map(|(name, value)| Some((name, value?)))).stderr(Stdio::null());
        limited
    },
    ..NODE
};

/// Builds an example beside the tests' other files, once. `go run` would leave the program
/// behind when it is killed.
fn built_by_go(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go");
        for name in ["producer", "receiver"] {
            let mut command = std::process::Command::new("go");
            command.args(["build", "-o"]).arg(folder.join(name)).arg(example(&format!("go/{name}.go")));
            command.env("GOCACHE", folder.join("cache")).env("GOFLAGS", "-mod=mod").env("GO111MODULE", "off");
            let status = command.status().expect("go is installed: Debian's package golang-go");
            assert!(status.success(), "{name}.go is not built");
        }
        folder
    });
    folder.join(name)
}

/// Runs an example of Java. Both are compiled once: `java Receiver.java` compiles at every
/// start, which takes long on a busy machine.
fn java(class: &str) -> Command {
    static CLASSES: OnceLock<PathBuf> = OnceLock::new();
    let classes = CLASSES.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("java");
        let mut command = std::process::Command::new("javac");
        command.arg("-d").arg(&folder).args(["Producer", "Receiver"].map(|name| example(&format!("java/{name}.java"))));
        let status = command.status().expect("javac is installed: Debian's package default-jdk-headless");
        assert!(status.success(), "the examples of Java are not compiled");
        folder
    });
    let mut command = Command::new("java");
    command.args(["-XX:TieredStopAtLevel=1", "-cp"]).arg(classes).arg(class);
    command
}

/// A receiver of the examples, which can be killed and started again.
struct ExampleReceiver {
    language: Language,
    process: Child,
    port: u16,
    secret: String,
    folder: TempDir,
}

impl ExampleReceiver {
    async fn start(language: Language, secret: &str) -> Self {
        let (port, folder) = (free_port(), tempfile::tempdir().expect("a folder"));
        let process = Self::run(language, port, &folder.path().join("inbox"), secret).await;
        Self { language, process, port, secret: secret.to_owned(), folder }
    }

    async fn run(language: Language, port: u16, inbox: &Path, secret: &str) -> Child {
        let mut command = (language.receiver)(port, inbox);
        // An old secret beside the present one, as during a rotation.
        let secrets = format!("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw,{secret}");
        command.env("WEBHOOK_SECRET", secrets).stdin(Stdio::null()).kill_on_drop(true);
        let process = command.spawn().unwrap_or_else(|problem| panic!("{command:?} does not start: {problem}"));
        eventually("the receiver to listen", || async {
            TcpStream::connect(("127.0.0.1", port)).map(drop).map_err(|problem| problem.to_string())
        })
        .await;
        process
    }

    async fn kill_and_start_again(&mut self) {
        self.process.kill().await.expect("it can be killed");
        self.process = Self::run(self.language, self.port, &self.inbox(), &self.secret).await;
    }

    /// Sends a body under an id, signed as the gateway signs; the answer's status.
    async fn receive(&self, id: &str, body: &str) -> u16 {
        let now = present_second();
        let signer = standardwebhooks::Webhook::new(&self.secret).expect("a secret");
        let signature = signer.sign(id, now, body.as_bytes()).expect("a signature");
        self.send(id, now, body, &signature).await
    }

    /// Sends a body under an id, with this signature and the present time.
    async fn receive_signed(&self, id: &str, body: &str, signature: &str) -> u16 {
        self.send(id, present_second(), body, signature).await
    }

    async fn send(&self, id: &str, second: i64, body: &str, signature: &str) -> u16 {
        let second = second.to_string();
        let client = Client::new(([127, 0, 0, 1], self.port).into(), "");
        let headers = [
            ("content-type", "application/json"),
            ("webhook-id", id),
            ("webhook-timestamp", &second),
            ("webhook-signature", signature),
        ];
        client.send("POST", "/", &headers, body.to_owned()).await.expect("an answer").status
    }

    /// Sends the start of a body, and goes away.
    fn receive_half(&self) {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        connection.write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{").expect("it is taken");
    }

    fn inbox(&self) -> PathBuf {
        self.folder.path().join("inbox")
    }

    fn ids(&self) -> Vec<String> {
        (self.language.ids)(&self.inbox())
    }
}

/// Returns the present time, in seconds.
fn present_second() -> i64 {
    posthaste::clock::Clock::now(&posthaste::clock::SystemClock).as_second()
}

/// Runs a producer to its end; what it says of each event.
async fn produce(language: Language, gateway: &Gateway, count: u32) -> BTreeMap<String, String> {
    produce_to(language, gateway.address, gateway.token(), count).await
}

async fn produce_to(language: Language, address: SocketAddr, token: &str, count: u32) -> BTreeMap<String, String> {
    let mut command = (language.producer)();
    command.args([&format!("http://{address}/"), "default", &count.to_string()]);
    command.env("POSTHASTE_TOKEN", token).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await.expect("it ends").expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let pair = |line: &str| line.split_once(' ').map(|(id, outcome)| (id.to_owned(), outcome.to_owned()));
    said.lines().map(|line| pair(line).expect("an id and what became of it")).collect()
}

/// Hands in events with the language's producer, delivers them to its receiver, and
/// again after a replay and after a crash: each is in the inbox once, in order.
async fn each_event_is_kept_once_and_in_order(language: Language) {
    let gateway = Gateway::start().await;
    let endpoint = gateway.create_endpoint(json!({"url": "http://127.0.0.1:1/", "retry": eager_retry(9)})).await;
    let secret = endpoint["secret"].as_str().expect("a secret").to_owned();
    let mut receiver = ExampleReceiver::start(language, &secret).await;
    let path = format!("/v1/tenants/default/endpoints/{}", endpoint["id"].as_str().expect("an id"));
    let patch = json!({"url": format!("http://127.0.0.1:{}/", receiver.port)}).to_string();
    gateway.client.send("PATCH", &path, &[], patch).await.expect("an answer").expect(200);

    let outcomes = produce(language, &gateway, 3).await;
    assert_eq!(outcomes.values().collect::<Vec<_>>(), ["accepted"; 3], "{outcomes:?}");
    let again = produce(language, &gateway, 4).await;
    assert_eq!(again.values().collect::<Vec<_>>(), ["duplicate", "duplicate", "duplicate", "accepted"], "{again:?}");
    let expected = ["order-7-1", "order-7-2", "order-7-3", "order-7-4"];
    let mut deliveries = Vec::new();
    for id in expected {
        deliveries.push(gateway.wait_for_state(id, "delivered").await);
    }
    assert_eq!(receiver.ids(), expected);

    gateway.post_to_delivery(&deliveries[0], "replay").await.expect(202);
    let replayed = gateway.wait_for_state(expected[0], "delivered").await;
    assert_eq!((&replayed["attempts"], &replayed["last_status"]), (&json!(2), &json!(200)), "a duplicate is 200");
    receiver.kill_and_start_again().await;
    for delivery in &deliveries {
        gateway.post_to_delivery(delivery, "replay").await.expect(202);
        gateway.wait_for_state(delivery["event_id"].as_str().expect("an id"), "delivered").await;
    }
    assert_eq!(receiver.ids(), expected, "nothing twice, though the receiver was killed");

    assert_eq!(receiver.receive_signed("forged", &event("forged", "default", "1"), "v1,AAAA").await, 400);
    assert_eq!(receiver.receive("no-event", "[1]").await, 422, "it is signed, and no event");
    assert_eq!(receiver.ids(), expected);
}

/// An envelope of the gateway.
fn event(id: &str, tenant: &str, data: &str) -> String {
    let time = "2026-11-15T09:08:39Z";
    format!(r#"{{"id":"{id}","type":"t","timestamp":"{time}","key":"a\"}},\\","tenant":"{tenant}","data":{data}}}"#)
}

#[tokio::test]
async fn what_is_garbled_too_large_or_breaks_off_stops_no_receiver() {
    for language in [PYTHON, NODE, GO, JAVA, PHP] {
        let mut receiver = ExampleReceiver::start(language, "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD").await;
        for signature in ["xyz", "v1,a,b", "v1,A", "v1", ","] {
            assert_eq!(receiver.receive_signed("a", &event("a", "t", "1"), signature).await, 400, "{signature}");
        }
        let too_large = event("a", "t", &"1".repeat(16 * 1_024 * 1_024));
        assert_eq!(receiver.receive("a", &too_large).await, 413);
        // Twice: it has surely read of the first end when it has answered behind the second.
        for id in ["a", "b"] {
            receiver.receive_half();
            assert_eq!(receiver.receive(id, &event(id, "t", "1")).await, 202);
        }
        assert_eq!(receiver.process.try_wait().expect("a process"), None, "it runs");
        // Larger than what is read of an inbox at once, and of two tenants with the same ids.
        let large = format!("\"{}\"", "x".repeat(3_000_000));
        let events = [event("a", "u", &large), event("a", "t", "1"), event("b", "u", "1")];
        for (event, status) in events.iter().zip([202, 200, 202]) {
            assert_eq!(receiver.receive("x", event).await, status);
        }
        receiver.kill_and_start_again().await;
        for event in &events {
            assert_eq!(receiver.receive("x", event).await, 200);
        }
        assert_eq!(receiver.ids(), ["a", "b", "a", "b"]);
    }
}

#[tokio::test]
async fn what_was_acknowledged_on_a_disk_that_was_filling_up_is_whole() {
    let receiver = ExampleReceiver::start(NODE_ON_A_FULL_DISK, "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD").await;
    let mut kept = Vec::new();
    for id in ["a", "b", "c", "d", "e", "f"] {
        match receiver.receive(id, &event(id, "t", "1")).await {
            202 => kept.push(id),
            status => assert_eq!(status, 503),
        }
    }
    assert!(!kept.is_empty() && kept.len() < 6, "{kept:?}");
    assert_eq!(receiver.ids(), kept);
}

/// Events of two tenants with the same key are in two lanes.
#[tokio::test]
async fn an_event_is_late_only_behind_its_own_tenant() {
    for language in [NODE, GO] {
        let receiver = ExampleReceiver::start(language, "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD").await;
        for (id, tenant, seq) in [("a-5", "a", 5), ("b-1", "b", 1), ("a-4", "a", 4)] {
            let body = json!({"id": id, "type": "t", "key": "k", "seq": seq, "tenant": tenant, "data": 1});
            assert_eq!(receiver.receive(id, &body.to_string()).await, 202);
        }
        let text = std::fs::read_to_string(receiver.inbox()).expect("an inbox");
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let late: Vec<bool> = lines.map(|line| line["late"] == true).collect();
        assert_eq!(late, [false, false, true], "{text}");
    }
}

/// A gateway whose disk is full says when to come again, and the event is not given up.
#[tokio::test]
async fn every_producer_waits_for_a_gateway_that_is_full() {
    const RECEIPT: &str =
        r#"{"id":"order-7-1","type":"t","accepted_at":"2026-11-15T08:00:00Z","deliveries":1,"duplicate":false}"#;
    for language in [PYTHON, NODE, GO, JAVA, PHP] {
        let full = Reply::With(507, "retry-after", "0".to_owned());
        let gateway = Receiver::scripted(vec![full, Reply::Body(202, RECEIPT.into())]).await;
        let outcomes = produce_to(language, gateway.address, "token", 1).await;
        assert_eq!(outcomes["order-7-1"], "accepted");
        assert_eq!(gateway.count(), 2);
    }
}

#[tokio::test]
async fn the_python_examples_keep_each_event_once() {
    each_event_is_kept_once_and_in_order(PYTHON).await;
}

#[tokio::test]
async fn the_node_examples_keep_each_event_once() {
    each_event_is_kept_once_and_in_order(NODE).await;
}

#[tokio::test]
async fn the_go_examples_keep_each_event_once() {
    each_event_is_kept_once_and_in_order(GO).await;
}

#[tokio::test]
async fn the_java_examples_keep_each_event_once() {
    each_event_is_kept_once_and_in_order(JAVA).await;
}

#[tokio::test]
async fn the_php_examples_keep_each_event_once() {
    each_event_is_kept_once_and_in_order(PHP).await;
}
