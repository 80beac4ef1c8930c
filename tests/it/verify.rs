//! `posthaste verify` as people type it, with requests that a real gateway signed.

use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::cli::{failed, posthaste, succeeded};
use crate::support::{Gateway, ReceivedRequest, Receiver, path_of};

/// A request that was saved, and the endpoint that it was for.
struct Saved {
    folder: tempfile::TempDir,
    gateway: Gateway,
    endpoint: Value,
}

impl Saved {
    /// Saves the first request to an endpoint with these settings.
    async fn of(settings: Value) -> Self {
        let gateway = Gateway::start().await;
        let receiver = Receiver::start().await;
        let mut settings = settings;
        settings["url"] = json!(receiver.url());
        let endpoint = gateway.create_endpoint(settings).await;
        gateway.send(json!({"type": "order.paid", "data": {"cents": 4200}})).await;
        let seen = receiver.wait_for(1).await;
        let folder = tempfile::tempdir().expect("a folder");
        save(folder.path(), &seen[0]);
        Self { folder, gateway, endpoint }
    }

    fn secret(&self) -> &str {
        self.endpoint["secret"].as_str().expect("a secret")
    }

    /// The public key of the endpoint's secret.
    async fn public_key(&self) -> String {
        let secrets = self.gateway.client.get(&format!("{}/secrets", path_of(&self.endpoint))).await.expect(200);
        secrets["data"][0]["public_key"].as_str().expect("a public key").to_owned()
    }

    /// Runs `posthaste verify` on the request, with these words, in its folder.
    async fn verify(&self, words: &[&str]) -> Output {
        let args = [&["verify", "--headers", "headers.txt", "--body", "body.json"], words].concat();
        posthaste(&args).current_dir(self.folder.path()).output().await.expect("it runs")
    }
}

fn save(folder: &Path, request: &ReceivedRequest) {
    let line = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        format!("{name}: {}\n", value.to_str().expect("a text"))
    };
    let headers: String = request.headers.iter().map(line).collect();
    std::fs::write(folder.join("headers.txt"), headers).expect("headers");
    std::fs::write(folder.join("body.json"), &request.body).expect("a body");
}

#[tokio::test]
async fn a_public_key_needs_no_profile_and_secrets_keep_their_numbers() {
    let saved = Saved::of(json!({"signing": "ed25519"})).await;
    let public = saved.public_key().await;
    let said = succeeded(&["verify"], &saved.verify(&["--secret", &public]).await);
    assert!(said.starts_with("standard\n  signature  passed: secret 1 fits\n  time       passed: "), "{said}");
    let other = "whpk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let both = format!("{other},{public}");
    let said = succeeded(&["verify"], &saved.verify(&["--secret", &both]).await);
    assert!(said.contains("passed: secret 2 fits"), "{said}");
    let output = saved.verify(&["--secret", &public, "--profile", "stripe"]).await;
    let said = failed(&["verify"], &output);
    assert_eq!(output.status.code(), Some(2), "a profile that was asked for is not left out: {said}");
    assert!(said.contains("the profile stripe has shared secrets only"), "{said}");
}

#[tokio::test]
async fn every_profile_is_recognised_by_its_headers() {
    for profile in ["standard", "svix", "stripe", "github", "sha256", "timestamped"] {
        let saved = Saved::of(json!({"signatures": [profile]})).await;
        // A public key beside the secret is left out where it cannot fit.
        let secrets = format!("whpk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=,{}", saved.secret());
        let output = saved.verify(&["--secret", &secrets]).await;
        let said = succeeded(&["verify"], &output);
        assert!(said.contains(&format!("{profile}\n  signature  passed: secret 2 fits")), "{said}");
        std::fs::write(saved.folder.path().join("body.json"), "{}").expect("another body");
        let output = saved.verify(&["--secret", saved.secret()]).await;
        assert_eq!(output.status.code(), Some(4), "{profile}: {output:?}");
    }
}

#[tokio::test]
async fn one_file_at_most_comes_from_standard_input() {
    let saved = Saved::of(json!({})).await;
    let folder = saved.folder.path();
    for args in [
        ["verify", "--headers", "-", "--body", "-", "--secret", "whsec_AAAA"],
        ["verify", "--headers", "-", "--body", "body.json", "--secret-file", "-"],
        ["verify", "--headers", "headers.txt", "--body", "-", "--secret-file", "-"],
    ] {
        let output = posthaste(&args).current_dir(folder).output().await.expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = failed(&args, &output);
        assert!(said.contains("only one of --headers, --body and --secret-file can be standard input"), "{said}");
    }
    let args = ["verify", "--headers", "headers.txt", "--body", "body.json", "--secret-file", "-"];
    let mut command = posthaste(&args);
    command.current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().expect("it starts");
    let mut input = process.stdin.take().expect("an input");
    input.write_all(saved.secret().as_bytes()).await.expect("it reads");
    drop(input);
    succeeded(&args, &process.wait_with_output().await.expect("it ends"));
}
