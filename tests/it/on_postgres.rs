//! Starting on PostgreSQL: the key, the token, who may start at once, and
//! what nobody may see.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

use crate::servers::guard::free_port;
use crate::servers::postgres::{Database, Server};
use crate::support::{CapturedOutput, Client, Gateway, Options, eventually};

fn folder() -> Arc<TempDir> {
    Arc::new(tempfile::tempdir().unwrap())
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

async fn database() -> Database {
    Server::shared(&[]).await.database().await
}

/// A start that is expected to fail: what it said.
async fn refused(folder: &Path, flags: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(folder).args(flags).kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_secs(60), command.output()).await.expect("it ends").unwrap();
    let said = said(&output);
    assert!(!output.status.success(), "{said}");
    said
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

#[tokio::test]
async fn five_nodes_that_start_at_once_agree_on_tables_key_token_and_tenants() {
    let database = database().await;
    let shared = folder();
    let flags = ["--database-url", database.url()];
    let start = || tokio::spawn(Gateway::start_in(shared.clone(), Options::flags(&flags)));
    let starting: Vec<_> = (0..5).map(|_| start()).collect();
    let mut nodes = Vec::new();
    for node in starting {
        nodes.push(node.await.unwrap());
    }
    assert_eq!(names(shared.path()), ["address", "admin-token", "master-key"]);
    for file in ["admin-token", "master-key"] {
        let mode = std::fs::metadata(shared.path().join(file)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{file}");
    }
    let token = std::fs::read_to_string(shared.path().join("admin-token")).unwrap();
    for node in &nodes {
        let client = Client::new(node.address, token.trim());
        let tenants = client.get("/v1/tenants").await.expect(200);
        assert_eq!(tenants["data"].as_array().unwrap().len(), 2, "{tenants}");
    }
    let last = database.number("SELECT max(version) FROM posthaste.migrations").await;
    assert_eq!(database.number("SELECT count(*) FROM posthaste.migrations").await, last, "each was applied once");
    assert_eq!(database.number("SELECT count(*) FROM posthaste.tenants").await, 2);
}

#[tokio::test]
async fn a_node_whose_key_does_not_fit_refuses_and_leaves_no_key_behind() {
    let database = database().await;
    let (first, second) = (folder(), folder());
    let flags = ["--database-url", database.url()];
    let node = Gateway::start_in(first.clone(), Options::flags(&flags)).await;
    let why = refused(second.path(), &flags).await;
    let file = second.path().join("master-key");
    assert!(why.contains("the master key is missing") && !why.contains("does not fit"), "{why}");
    assert!(why.contains(&file.display().to_string()) && why.contains("--master-key-file"), "{why}");
    assert!(names(second.path()).is_empty(), "{:?}", names(second.path()));
    // A wrong one that was there before stays.
    std::fs::write(&file, "ab".repeat(32)).unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let why = refused(second.path(), &flags).await;
    assert!(why.contains("does not fit") && file.exists(), "{why}");
    let missing = refused(second.path(), &[&flags[..], &["--master-key-file", "/no/such/key"]].concat()).await;
    assert!(missing.contains("/no/such/key") && missing.contains("openssl rand -hex 32"), "{missing}");
    // Given the key of the first, it starts.
    std::fs::copy(first.path().join("admin-token"), second.path().join("admin-token")).unwrap();
    let key = first.path().join("master-key").display().to_string();
    let flags = [&flags[..], &["--master-key-file", &key]].concat();
    let other = Gateway::start_in(second.clone(), Options::flags(&flags)).await;
    node.create_endpoint(json!({"url": "https://example.com/"})).await;
    let known = other.client.get("/v1/tenants/default/endpoints").await.expect(200);
    assert_eq!(known["data"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_new_token_counts_at_every_node() {
    let database = database().await;
    let shared = folder();
    let flags = ["--database-url", database.url()];
    let node = Gateway::start_in(shared.clone(), Options::flags(&flags)).await;
    let renewing = [&flags[..], &["--new-admin-token"]].concat();
    let other = Gateway::start_in(shared.clone(), Options::flags(&renewing)).await;
    assert_ne!(node.token(), other.token());
    other.client.get("/v1/tenants").await.expect(200);
    let at_first = Client::new(node.address, other.token());
    eventually("the new token to count", || async {
        let answer = at_first.get("/v1/tenants").await;
        if answer.status == 200 { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .await;
    // The waiting above may have used up what an address may guess.
    let old = node.client.get("/v1/tenants").await.status;
    assert!(matches!(old, 401 | 429), "{old}");
}

#[tokio::test]
async fn a_password_is_never_shown() {
    let hush = "postgres://ops:hu%73hhush@127.0.0.1:1/app";
    let here = folder();
    let why = refused(here.path(), &["--database-url", hush, "--database-wait", "0s"]).await;
    assert!(why.contains("127.0.0.1:1, database app, user ops") && !why.contains("hush"), "{why}");
    let why = refused(here.path(), &["--database-url", "postgres://ops:hush@hush:hush@db/app"]).await;
    assert!(why.contains("%40") && !why.contains("hush"), "{why}");
    for arguments in [&["config"][..], &["serve", "--help"], &["migrate-store", "--help"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
        command.args(arguments).env("POSTHASTE_DATABASE_URL", "postgres://ops:hush@db/app");
        let output = command.output().await.unwrap();
        let said = said(&output);
        assert!(output.status.success() && !said.contains("hush"), "{said}");
        assert!(said.contains("postgres://ops@db/app") || arguments.len() > 1, "{said}");
    }
}

#[tokio::test]
async fn a_database_from_a_newer_version_is_refused() {
    let database = database().await;
    let shared = folder();
    let flags = ["--database-url", database.url()];
    let mut node = Gateway::start_in(shared.clone(), Options::flags(&flags)).await;
    assert!(node.terminate().await.success());
    database.execute("INSERT INTO posthaste.migrations (version) VALUES (999)").await;
    let why = refused(shared.path(), &flags).await;
    assert!(why.contains("newer posthaste") && why.contains("999"), "{why}");
}

#[tokio::test]
async fn a_url_can_come_from_a_file() {
    let database = database().await;
    let shared = folder();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{}\n", database.url())).unwrap();
    let flags = ["--database-url-file", file.path().to_str().unwrap()];
    let node = Gateway::start_in(shared.clone(), Options::flags(&flags)).await;
    node.client.get("/readyz").await.expect(200);
}

#[tokio::test]
async fn a_server_that_may_lose_what_it_confirmed_is_warned_of() {
    let server = Server::start(&["fsync=off", "full_page_writes=off"]).await;
    let database = server.database().await;
    database.execute(&format!("ALTER DATABASE {} SET synchronous_commit = off", database.name())).await;
    let here = folder();
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--database-url", database.url(), "--data"]).arg(here.path());
    let output = log.reopen().unwrap();
    let _node = command.stdout(output.try_clone().unwrap()).stderr(output).kill_on_drop(true).spawn().unwrap();
    for warning in ["fsync=off", "full_page_writes=off", "synchronous_commit=off"] {
        eventually(warning, || async {
            let said = std::fs::read_to_string(log.path()).unwrap();
            if said.contains(warning) { Ok(()) } else { Err(said) }
        })
        .await;
    }
}

/// A certificate for a name, signed by an authority: its PEM, the
/// certificate's, and the key's.
fn certificates(authority: &str, name: &str) -> (String, String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, authority);
    let root = params.self_signed(&key).unwrap();
    let issuer = rcgen::Issuer::new(params, key);
    let leaf_key = rcgen::KeyPair::generate().unwrap();
    let leaf = rcgen::CertificateParams::new(vec![name.into()]).unwrap().signed_by(&leaf_key, &issuer).unwrap();
    (root.pem(), leaf.pem(), leaf_key.serialize_pem())
}

#[tokio::test]
async fn the_database_is_spoken_to_over_tls_as_sslmode_asks() {
    let (root, certificate, key) = certificates("ours", "localhost");
    let server = Server::start_with_tls(&certificate, &key).await;
    let database = server.database().await;
    let ca = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(ca.path(), root).unwrap();
    let other_ca = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(other_ca.path(), certificates("another", "localhost").0).unwrap();
    let url = |host: &str, query: &str| format!("{}?{query}", database.url().replace("127.0.0.1", host));
    let here = folder();
    let verify = |mode: &str, ca: &Path| format!("sslmode={mode}&sslrootcert={}", ca.display());
    for (host, query, wrong) in [
        ("localhost", verify("verify-full", other_ca.path()), "UnknownIssuer"),
        ("127.0.0.1", verify("verify-full", ca.path()), "not valid for name"),
        ("localhost", verify("require", other_ca.path()), "UnknownIssuer"),
        ("localhost", "sslmode=verify-ca".to_owned(), "sslrootcert=FILE"),
    ] {
        let why = refused(here.path(), &["--database-url", &url(host, &query)]).await;
        assert!(why.contains(wrong) && !why.contains(database.role_and_password().1), "{query}: {why}");
    }
    let over_tls = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                    WHERE ssl AND application_name = 'posthaste'";
    for (host, query, is_encrypted) in [
        ("localhost", verify("verify-full", ca.path()), true),
        ("127.0.0.1", verify("verify-ca", ca.path()), true),
        ("127.0.0.1", "sslmode=require".to_owned(), true),
        ("127.0.0.1", "sslmode=prefer".to_owned(), true),
        ("127.0.0.1", "sslmode=disable".to_owned(), false),
    ] {
        let flags = ["--database-url", &url(host, &query)];
        let mut node = Gateway::start_in(here.clone(), Options::flags(&flags)).await;
        node.client.get("/v1/tenants").await.expect(200);
        assert_eq!(database.number(over_tls).await > 0, is_encrypted, "{query}");
        assert!(node.terminate().await.success());
    }
}

/// A start on a database that is not there yet, in a process of its own.
pub struct PendingStart {
    pub client: Client,
    probes: Client,
    pub printed: CapturedOutput,
    process: tokio::process::Child,
}

impl PendingStart {
    pub fn new(folder: &Path, url: &str, wait: &str) -> Self {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
        let health = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
        command.args(["serve", "--listen", &address.to_string(), "--database-url", url, "--database-wait", wait]);
        command.args(["--health-listen", &health.to_string()]);
        command.arg("--data").arg(folder).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().expect("it runs");
        let printed = CapturedOutput::default();
        printed.clone().listen(process.stderr.take().expect("piped"));
        printed.clone().listen(process.stdout.take().expect("piped"));
        Self { client: Client::new(address, "none"), probes: Client::new(health, "none"), printed, process }
    }

    /// Waits until it answers that it is alive and not ready.
    pub async fn answers(&self) {
        eventually("it to say that it waits", || async {
            let answer = self.client.send("GET", "/readyz", &[], "").await?;
            if answer.status == 503 { Ok(()) } else { Err(answer.status.to_string()) }
        })
        .await;
        self.client.get("/healthz").await.expect(200);
        self.client.get("/v1/tenants").await.problem(503, "unavailable");
        // Probes at their own address are told the same.
        self.probes.get("/healthz").await.expect(200);
        let ready = self.probes.get("/readyz").await.expect(503);
        assert!(ready["status"].as_str().unwrap().starts_with("starting"), "{ready}");
        self.probes.get("/metrics").await.problem(503, "unavailable");
        self.probes.get("/v1/tenants").await.problem(404, "not_found");
    }
}

#[tokio::test]
async fn a_start_waits_for_a_database_that_is_away_and_says_so_once() {
    let server = Server::start(&[]).await;
    let (database, here) = (server.database().await, folder());
    server.stop().await;
    let start = PendingStart::new(here.path(), database.url(), "60s");
    start.answers().await;
    server.start_again().await;
    for client in [&start.client, &start.probes] {
        eventually("it to serve", || async {
            let answer = client.send("GET", "/readyz", &[], "").await?;
            if answer.status == 200 { Ok(()) } else { Err(answer.status.to_string()) }
        })
        .await;
    }
    assert_eq!(start.probes.get("/metrics").await.status, 200);
    let said = start.printed.text();
    assert_eq!(said.matches("cannot reach PostgreSQL").count(), 1, "{said}");
    assert_eq!(said.matches("connected to the database at").count(), 1, "{said}");
}

#[tokio::test]
async fn a_start_waits_for_a_database_that_takes_no_writes_and_gives_up_with_the_reason() {
    let (database, here) = (database().await, folder());
    database.execute(&format!("ALTER DATABASE {} SET default_transaction_read_only = on", database.name())).await;
    let mut start = PendingStart::new(here.path(), database.url(), "3s");
    start.answers().await;
    let ended =
        tokio::time::timeout(Duration::from_secs(30), start.process.wait()).await.expect("it gives up").unwrap();
    assert_eq!(ended.code(), Some(1));
    eventually("the reason", || async {
        let said = start.printed.text();
        let is_told = said.contains("gave up after waiting 3s (--database-wait): the database takes no writes");
        if is_told { Ok(()) } else { Err(said) }
    })
    .await;
}

#[tokio::test]
async fn a_start_that_waits_can_be_stopped_and_one_that_cannot_succeed_does_not_wait() {
    let here = folder();
    let url = format!("postgres://ops@127.0.0.1:{}/app", free_port());
    let mut start = PendingStart::new(here.path(), &url, "60s");
    start.answers().await;
    let id = rustix::process::Pid::from_raw(start.process.id().expect("it runs") as i32).expect("a process id");
    rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("it can be signalled");
    let ended = tokio::time::timeout(Duration::from_secs(20), start.process.wait()).await.expect("it ends").unwrap();
    assert!(ended.success(), "{ended}: {}", start.printed.text());

    let database = database().await;
    let nowhere = database.url().replace(database.name(), "no_such_database");
    let began = std::time::Instant::now();
    let why = refused(here.path(), &["--database-url", &nowhere, "--database-wait", "50s"]).await;
    assert!(began.elapsed() < Duration::from_secs(20), "it waited for what nobody makes: {why}");
}
