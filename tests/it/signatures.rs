//! The published verifier libraries accept what arrives, unmodified, and
//! nothing else.
//!
//! Requests are recorded here and handed to `tests/conformance/verify.py` and
//! `verify.mjs`; `tests/conformance/install` fetches the libraries they use.

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::support::{Gateway, Receiver, Reply, Seen, eager_retry};

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

/// Requests, and whether they are to be believed.
#[derive(Default)]
struct Recorded {
    lines: Vec<Value>,
}

impl Recorded {
    fn add(&mut self, what: &str, seen: &Seen, secret: &str, expect: bool) {
        let headers: serde_json::Map<String, Value> = seen
            .headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().expect("plain headers").into()))
            .collect();
        let what = format!("{what} ({} attempt {})", seen.id(), seen.header("webhook-attempt"));
        let body = STANDARD.encode(&seen.body);
        self.lines
            .push(json!({"what": what, "headers": headers, "body_base64": body, "secret": secret, "expect": expect}));
    }

    /// The same request with one thing changed, which nobody may believe.
    fn add_forged(&mut self, seen: &Seen, secret: &str) {
        let mut body = seen.clone();
        body.body = [&seen.body[..], b" "].concat().into();
        self.add("another body", &body, secret, false);
        let later = seen.header("webhook-timestamp").parse::<i64>().expect("seconds") + 1;
        for (name, value) in [
            ("webhook-id", "another-id".to_owned()),
            ("webhook-timestamp", later.to_string()),
            ("webhook-signature", format!("v1,{}", STANDARD.encode([7; 32]))),
        ] {
            let mut forged = seen.clone();
            forged.headers.insert(name, value.parse().expect("a header's value"));
            self.add(&format!("another {name}"), &forged, secret, false);
        }
        self.add("another secret", seen, &format!("whsec_{}", STANDARD.encode([1; 24])), false);
    }

    /// Asks every library; each must agree with every expectation.
    async fn check(&self) {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        for line in &self.lines {
            writeln!(file, "{line}").expect("room for a line");
        }
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
        let (python, node) = (installed("python", "requirements.txt"), installed("node", "package.json"));
        let expected = format!("{0} of {0} checks held", 2 * self.lines.len());
        for (interpreter, script, variable, folder) in
            [("python3", "verify.py", "PYTHONPATH", python), ("node", "verify.mjs", "CONFORMANCE_NODE", node)]
        {
            let output = tokio::process::Command::new(interpreter)
                .arg(tests.join(script))
                .arg(file.path())
                .env(variable, folder)
                .output()
                .await
                .unwrap_or_else(|problem| {
                    panic!("{interpreter} does not start ({problem}); install it, then run tests/conformance/install")
                });
            let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success() && said.trim() == expected, "{script}: {said}{complained}");
        }
    }
}

/// The folder with the libraries a manifest asks for.
fn installed(language: &str, manifest: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let folder = target.join("conformance").join(language);
    let wanted = std::fs::read(root.join("tests/conformance").join(manifest)).expect("the manifest");
    let found = std::fs::read(folder.join("installed")).unwrap_or_default();
    assert!(found == wanted, "the {language} verifier libraries are not installed; run tests/conformance/install");
    folder
}

/// Refuses the first attempt of every event, so that all are retried.
fn refuse_once() -> impl FnMut(&Seen) -> Reply + Send {
    let mut known = HashSet::new();
    move |seen| Reply::Status(if known.insert(seen.id().to_owned()) { 503 } else { 200 })
}

#[tokio::test]
async fn the_published_libraries_verify_first_attempts_and_retries_of_odd_bodies_in_both_formats() {
    let gateway = Gateway::start().await;
    let mut recorded = Recorded::default();
    let mut receivers = Vec::new();
    for format in ["envelope", "raw"] {
        let receiver = Receiver::answering(refuse_once()).await;
        let settings = json!({"url": receiver.url(), "format": format, "retry": eager_retry(5)});
        let endpoint = gateway.create_endpoint(settings).await;
        receivers.push((receiver, endpoint["secret"].as_str().unwrap().to_owned()));
    }
    for (n, data) in ODD.iter().enumerate() {
        let body = format!(r#"{{"data":{data},"id":"odd-{n}","type":"odd.bytes","key":"Schlüssel 漢"}}"#);
        gateway.client.post("/v1/tenants/default/events", body).await.expect(202);
    }
    for (receiver, secret) in &receivers {
        let seen = receiver.wait_for(2 * ODD.len()).await;
        assert!(seen.iter().any(|seen| seen.header("webhook-attempt") == "2"));
        seen.iter().for_each(|seen| recorded.add("what arrived", seen, secret, true));
        recorded.add_forged(&seen[0], secret);
    }
    recorded.check().await;
}

#[tokio::test]
async fn the_published_libraries_verify_replays_and_either_secret_during_a_rotation() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::answering(|_| Reply::Status(200)).await;
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url()})).await;
    let first = endpoint["secret"].as_str().unwrap().to_owned();
    let rotate = format!("/v1/tenants/default/endpoints/{}/secrets/rotate", endpoint["id"].as_str().unwrap());
    let rotated = async |overlap: &str| {
        let answer = gateway.client.post_json(&rotate, &json!({"overlap": overlap})).await.expect(201);
        answer["secret"].as_str().unwrap().to_owned()
    };
    let replayed = async |count: usize| {
        let delivery = gateway.wait_for_state("again", "delivered").await;
        gateway.act(&delivery, "replay").await.expect(202);
        receiver.wait_for(count).await.pop().unwrap()
    };
    gateway.send(json!({"id": "again", "type": "t", "data": {"é": "漢"}})).await;
    let mut recorded = Recorded::default();
    recorded.add("before", &receiver.wait_for(1).await[0], &first, true);
    recorded.add("a replay", &replayed(2).await, &first, true);

    let second = rotated("1h").await;
    let during = replayed(3).await;
    assert_eq!(during.header("webhook-signature").split(' ').count(), 2, "one token per active secret");
    recorded.add("the old secret during a rotation", &during, &first, true);
    recorded.add("the new secret during a rotation", &during, &second, true);
    recorded.add_forged(&during, &second);

    let third = rotated("0s").await;
    let after = replayed(4).await;
    recorded.add("the new secret after a rotation", &after, &third, true);
    recorded.add("a secret that has expired", &after, &first, false);
    recorded.add("a secret that has just expired", &after, &second, false);
    recorded.check().await;
}
