//! The published verifier libraries accept what arrives, unmodified, and
//! nothing else.
//!
//! Receivers in Python and JavaScript, `tests/conformance/receive.py` and
//! `receive.mjs`, verify with the libraries that `tests/conformance/install`
//! fetches, and refuse what those do not believe.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::support::{Client, Gateway, PATIENCE, ReceivedRequest, Receiver, Reply, eager_retry, eventually, path_of};

const ODD: &[&str] = &[
    r#"{"a":1,"a":2}"#,
    "1234567890123456789012345",
    "{ \"lines\" :\r\n\t[ 1 ,2 ] }",
    r#""\u0000\u001f\u00e9\ud83d\ude00""#,
    "\"é 漢字 😀 \u{2028} \u{feff}\"",
    "-0.0",
    "null",
    r#"{"":{"":[]}}"#,
];

/// Every way to sign, as many as go together.
const EVERY_WAY: [&str; 5] = ["standard", "svix", "stripe", "github", "timestamped"];

/// The receivers of one language, in a process of their own.
struct Libraries {
    _process: Child,
    address: SocketAddr,
    names: &'static [&'static str],
}

impl Libraries {
    /// Starts the libraries of both languages.
    async fn start() -> [Self; 2] {
        let python = installed("python", "requirements.txt");
        let node = installed("node", "package.json");
        [
            Self::run("python3", "receive.py", "PYTHONPATH", &python, &["standardwebhooks", "svix", "stripe"]).await,
            Self::run("node", "receive.mjs", "CONFORMANCE_NODE", &node, &["standardwebhooks", "svix", "octokit"]).await,
        ]
    }

    async fn run(
        interpreter: &str,
        script: &str,
        variable: &str,
        folder: &Path,
        names: &'static [&'static str],
    ) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance").join(script);
        let mut command = Command::new(interpreter);
        command.arg(script).env(variable, folder).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().unwrap_or_else(|problem| {
            panic!("{interpreter} does not start ({problem}); install it, then run tests/conformance/install")
        });
        let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let port = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("it listens in time");
        let port: u16 = port.expect("readable").expect("a port; see its output above").parse().expect("a number");
        Self { _process: process, address: ([127, 0, 0, 1], port).into(), names }
    }

    fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.address)
    }

    /// Tells a receiver what to verify with.
    async fn give(&self, name: &str, secret: &str) {
        let answer = Client::new(self.address, "").send("PUT", &format!("/{name}"), &[], secret.to_owned()).await;
        answer.expect("it listens").expect(200);
    }

    /// Hands a receiver what another one has seen; whether it believes it.
    async fn believes(&self, name: &str, seen: &ReceivedRequest) -> bool {
        let headers: Vec<(&str, &str)> = seen
            .headers
            .iter()
            .filter(|(name, _)| !["host", "content-length", "transfer-encoding"].contains(&name.as_str()))
            .map(|(name, value)| (name.as_str(), value.to_str().expect("plain headers")))
            .collect();
        let client = Client::new(self.address, "");
        let answer = client.send("POST", &format!("/{name}?at-once"), &headers, seen.body.clone()).await;
        match answer.expect("it answers").status {
            200 => true,
            400 => false,
            other => panic!("{name} answered {other}"),
        }
    }
}

/// The folder with the packages a manifest asks for.
pub fn installed(language: &str, manifest: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let folder = target.join("conformance").join(language);
    let wanted = std::fs::read(root.join("tests/conformance").join(manifest)).expect("the manifest");
    let found = std::fs::read(folder.join("installed")).unwrap_or_default();
    assert!(found == wanted, "the {language} packages are not installed; run tests/conformance/install");
    folder
}

fn own_secret(n: u8) -> String {
    format!("whsec_{}", STANDARD.encode([n; 24]))
}

/// Waits until all deliveries of an event are over.
async fn over(gateway: &Gateway, event: &str) -> Vec<Value> {
    eventually(&format!("event {event} to be over"), || async {
        let found = gateway.client.get(&format!("/v1/tenants/default/events/{event}/deliveries")).await.expect(200);
        let all = found["data"].as_array().expect("a list").clone();
        if all.iter().all(|delivery| delivery["state"] != "waiting") { Ok(all) } else { Err(found.to_string()) }
    })
    .await
}

/// Waits until an event has arrived everywhere, believed.
async fn believed(gateway: &Gateway, event: &str, attempts: u32) {
    for delivery in over(gateway, event).await {
        assert_eq!(delivery["state"], "delivered", "{delivery}");
        assert_eq!(delivery["attempts"], attempts, "{delivery}");
    }
}

#[tokio::test]
async fn the_published_libraries_believe_first_attempts_retries_and_replays_of_odd_bodies_in_both_formats() {
    let gateway = Gateway::start().await;
    let both = Libraries::start().await;
    let secret = own_secret(1);
    for (n, format) in ["envelope", "raw"].iter().enumerate() {
        for libraries in &both {
            for name in libraries.names {
                libraries.give(name, &secret).await;
                let settings = json!({"url": format!("{}?{n}", libraries.url(name)), "format": format,
                    "signatures": EVERY_WAY, "secret": secret, "retry": eager_retry(3), "event_types": [format!("{format}.*")]});
                gateway.create_endpoint(settings).await;
            }
        }
        for (n, data) in ODD.iter().enumerate() {
            let body = format!(r#"{{"data":{data},"id":"{format}-{n}","type":"{format}.odd","key":"Schlüssel 漢"}}"#);
            gateway.client.post("/v1/tenants/default/events", body).await.expect(202);
        }
        for n in 0..ODD.len() {
            believed(&gateway, &format!("{format}-{n}"), 2).await;
        }
        for delivery in over(&gateway, &format!("{format}-4")).await {
            gateway.post_to_delivery(&delivery, "replay").await.expect(202);
        }
        believed(&gateway, &format!("{format}-4"), 3).await;
    }
}

#[tokio::test]
async fn the_published_libraries_believe_either_secret_during_a_rotation_and_single_ones_the_old() {
    let gateway = Gateway::start().await;
    let both = Libraries::start().await;
    let receiver = Receiver::answering(|_| Reply::Status(200)).await;
    let settings = json!({"url": receiver.url(), "signatures": EVERY_WAY, "secret": own_secret(1)});
    let endpoint = gateway.create_endpoint(settings).await;
    assert_eq!(endpoint["secret"], own_secret(1));
    let rotate = async |n: u8, overlap: &str| {
        let path = format!("{}/secrets/rotate", path_of(&endpoint));
        let body = json!({"overlap": overlap, "secret": own_secret(n)});
        assert_eq!(gateway.client.post_json(&path, &body).await.expect(201)["secret"], own_secret(n));
    };
    let mut sent = 0;
    let mut next = async || {
        sent += 1;
        gateway.send(json!({"id": format!("n-{sent}"), "type": "t", "data": {"é": "漢"}})).await;
        receiver.wait_for(sent).await.pop().unwrap()
    };
    let believe = async |seen: &ReceivedRequest, n: u8| {
        let mut who = Vec::new();
        for libraries in &both {
            for name in libraries.names {
                libraries.give(name, &own_secret(n)).await;
                if libraries.believes(name, seen).await {
                    who.push(*name);
                }
            }
        }
        who
    };
    const ALL: &[&str] = &["standardwebhooks", "svix", "stripe", "standardwebhooks", "svix", "octokit"];
    const SEVERAL: &[&str] = &["standardwebhooks", "svix", "stripe", "standardwebhooks", "svix"];
    let before = next().await;
    assert_eq!(believe(&before, 1).await, ALL);
    assert_eq!(believe(&before, 2).await, [""; 0], "nobody believes what another secret signed");

    rotate(2, "1h").await;
    let during = next().await;
    assert_eq!(during.header("webhook-signature").split(' ').count(), 2, "one token per active secret");
    assert_eq!(believe(&during, 1).await, ALL, "whoever has not changed over");
    assert_eq!(believe(&during, 2).await, SEVERAL, "whoever has, where there is room for two");

    rotate(3, "0s").await;
    let after = next().await;
    assert_eq!(after.header("webhook-signature").split(' ').count(), 1);
    assert_eq!(believe(&after, 3).await, ALL);
    assert_eq!(believe(&after, 1).await, [""; 0], "what has ended");
    assert_eq!(believe(&after, 2).await, [""; 0], "what has just ended");

    // Whoever changes one thing on the way is believed by nobody.
    let tampered = tampered(&after);
    for (what, forged, those) in &tampered {
        let fooled: Vec<&str> = believe(forged, 3).await.into_iter().filter(|name| those.contains(name)).collect();
        assert_eq!(fooled, [""; 0], "{what}");
    }
}

/// The same request with one thing changed, and who has to notice.
fn tampered(seen: &ReceivedRequest) -> Vec<(String, ReceivedRequest, Vec<&'static str>)> {
    let everyone = vec!["standardwebhooks", "svix", "stripe", "octokit"];
    let mut all = Vec::new();
    for body in [[&seen.body[..], b" "].concat(), seen.body[1..].to_vec(), b"{}".to_vec()] {
        let what = format!("another body of {} bytes", body.len());
        all.push((what, ReceivedRequest { body: body.into(), ..seen.clone() }, everyone.clone()));
    }
    let later = seen.header("webhook-timestamp").parse::<i64>().expect("seconds") + 1;
    let stripe = seen.header("stripe-signature").replace("t=", "t=1");
    let no_tag = "0".repeat(64);
    for (name, value, who) in [
        ("webhook-id", "another-id".to_owned(), vec!["standardwebhooks"]),
        ("webhook-timestamp", later.to_string(), vec!["standardwebhooks"]),
        ("webhook-signature", format!("v1,{}", STANDARD.encode([7; 32])), vec!["standardwebhooks"]),
        ("svix-id", "another-id".to_owned(), vec!["svix"]),
        ("svix-timestamp", later.to_string(), vec!["svix"]),
        ("svix-signature", format!("v1,{}", STANDARD.encode([7; 32])), vec!["svix"]),
        ("stripe-signature", stripe, vec!["stripe"]),
        ("stripe-signature", format!("t={},v1={no_tag}", later - 1), vec!["stripe"]),
        ("x-hub-signature-256", format!("sha256={no_tag}"), vec!["octokit"]),
    ] {
        let mut forged = seen.clone();
        forged.headers.insert(name, value.parse().expect("a header's value"));
        all.push((format!("another {name}"), forged, who));
    }
    all
}

#[tokio::test]
async fn a_public_key_is_enough_to_verify_what_ed25519_signs() {
    let gateway = Gateway::start().await;
    let [_, node] = Libraries::start().await;
    let endpoint = gateway
        .create_endpoint(json!({"url": node.url("platform"), "signing": "ed25519", "retry": eager_retry(3)}))
        .await;
    let key = endpoint["public_key"].as_str().unwrap().to_owned();
    assert!(key.starts_with("whpk_"), "{endpoint}");
    assert!(!endpoint.to_string().contains("whsk_"), "the private half is shown to nobody: {endpoint}");
    node.give("platform", &key).await;
    gateway.send(json!({"id": "one", "type": "t", "data": {"é": "漢"}})).await;
    believed(&gateway, "one", 2).await;

    let rotate = format!("{}/secrets/rotate", path_of(&endpoint));
    let own = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==";
    let rotated = gateway.client.post_json(&rotate, &json!({"private_key": own})).await.expect(201);
    assert!(!rotated.to_string().contains("whsk_"), "{rotated}");
    let listed = gateway.client.get(&format!("{}/secrets", path_of(&endpoint))).await.expect(200);
    let keys: Vec<&Value> = listed["data"].as_array().unwrap().iter().map(|secret| &secret["public_key"]).collect();
    assert_eq!(keys, [&rotated["public_key"], &json!(key)], "both verify for a day");
    assert_eq!(gateway.endpoint(&endpoint).await["public_key"], rotated["public_key"]);
    for (n, public) in [key.as_str(), rotated["public_key"].as_str().unwrap()].into_iter().enumerate() {
        node.give("platform", public).await;
        gateway.send(json!({"id": format!("during-{n}"), "type": "t", "data": n})).await;
        believed(&gateway, &format!("during-{n}"), 2).await;
    }
    // A key of somebody else's believes nothing.
    node.give("platform", &format!("whpk_{}", STANDARD.encode([9; 32]))).await;
    gateway.send(json!({"id": "not-theirs", "type": "t", "data": 1})).await;
    assert_eq!(over(&gateway, "not-theirs").await[0]["state"], "dead");
}
