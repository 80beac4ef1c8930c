//! What a gateway asks of the machine, seen by strace: it connects to nobody but its
//! receivers, its store and the servers it was told of, and it makes no system call
//! that the unit of `deploy` forbids.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use tempfile::TempDir;

use crate::servers::postgres::{Database, Server};
use crate::support::{
    Collector, DnsAnswer, Gateway, MailServer, MailServerBehaviour, NameServer, Options, Receiver, Reply, eager_retry,
    eventually,
};

/// A gateway that strace watches from its first instruction to its last.
struct Traced {
    gateway: Gateway,
    file: PathBuf,
    _folder: TempDir,
}

impl Traced {
    /// Starts one with these flags; `calls` are the system calls to record.
    async fn start(calls: &str, flags: &[&str]) -> Self {
        let found = Command::new("strace").arg("--version").output();
        found.expect("there is no strace: install Debian's package strace, or run ./check, which does");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("calls");
        // The gateway stays the child of the test, and strace watches it from aside.
        let mut runner = vec!["strace", "-D", "-f", "-q", "-s", "0"];
        if calls != "all" {
            // The kernel stops the process at these calls alone.
            runner.push("--seccomp-bpf");
        }
        let (calls, file_name) = (format!("trace={calls}"), file.display().to_string());
        runner.extend(["-e", &calls, "-o", &file_name]);
        let runner = runner.into_iter().map(str::to_owned).collect();
        let gateway = Gateway::start_with(Options { runner, ..Options::flags(flags) }).await;
        Self { gateway, file, _folder: folder }
    }

    /// Stops it; returns what strace recorded, a line for each call.
    async fn stop(mut self) -> String {
        let pid = self.gateway.process_id();
        assert!(self.gateway.terminate().await.success());
        eventually("strace to write its last line", || async {
            let recorded = std::fs::read_to_string(&self.file).unwrap_or_default();
            let is_over = recorded.lines().any(|line| {
                let line = line.trim_start();
                line.starts_with(&format!("{pid} ")) && line.contains("+++ exited with 0 +++")
            });
            if is_over { Ok(recorded) } else { Err(format!("{} bytes", recorded.len())) }
        })
        .await
    }
}

/// The addresses that calls of these lines lead to, and the paths of sockets of this machine.
fn targets(recorded: &str) -> (BTreeSet<SocketAddr>, BTreeSet<String>) {
    let between = |line: &str, before: &str, after: char| {
        line.split_once(before).and_then(|(_, rest)| rest.split_once(after)).map(|(found, _)| found.to_owned())
    };
    let (mut addresses, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for line in recorded.lines() {
        let port =
            || between(line, "_port=htons(", ')').and_then(|port| port.parse().ok()).expect("an address has a port");
        if let Some(ip) = between(line, "inet_addr(\"", '"').or_else(|| between(line, "inet_pton(AF_INET6, \"", '"')) {
            addresses.insert(SocketAddr::new(ip.parse().expect("an address"), port()));
        }
        paths.extend(between(line, "sun_path=", '}'));
    }
    (addresses, paths)
}

#[test]
fn a_recorded_call_is_read() {
    let recorded = r#"
17 connect(9, {sa_family=AF_INET, sin_port=htons(443), sin_addr=inet_addr("192.0.2.7")}, 16) = -1 EINPROGRESS
17 connect(9, {sa_family=AF_INET6, sin6_port=htons(53), sin6_flowinfo=htonl(0), inet_pton(AF_INET6, "2001:db8::1", &sin6_addr), sin6_scope_id=0}, 28) = 0
18 sendto(4, ""..., 30, 0, {sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("192.0.2.1")}, 16) = 30
18 connect(4, {sa_family=AF_UNIX, sun_path="/run/x"}, 110) = 0
18 sendto(4, ""..., 30, 0, NULL, 0) = 30"#;
    let (addresses, paths) = targets(recorded);
    let expected = ["192.0.2.7:443", "[2001:db8::1]:53", "192.0.2.1:53"].map(|text| text.parse().unwrap());
    assert_eq!((addresses, paths), (expected.into(), [r#""/run/x""#.to_owned()].into()));
}

/// Runs a gateway over a start, deliveries that succeed, fail and are retried, a name
/// that is looked up, a mail, its own test and a stop; returns where it connected to,
/// and what it was told of.
async fn contacted(database: Option<&Database>) -> (BTreeSet<SocketAddr>, BTreeSet<String>, Vec<SocketAddr>) {
    let receiver = Receiver::scripted(vec![Reply::Status(503), Reply::Status(200)]).await;
    let gone = Receiver::scripted(vec![Reply::Status(410)]).await;
    let names = NameServer::answering(|_| DnsAnswer::addresses(&["127.0.0.1"])).await;
    let mails = MailServer::start(MailServerBehaviour::default()).await;
    let collector = Collector::start().await;
    let (dns, smtp, otlp) = (names.address.to_string(), mails.url(""), collector.url());
    let mut flags = vec!["--dns", &dns, "--smtp", &smtp, "--self-test", "on"];
    flags.extend(["--otlp-endpoint", &otlp, "--trace-sampling", "100%"]);
    flags.extend(database.iter().flat_map(|database| ["--database-url", database.url()]));
    let traced = Traced::start("connect,sendto,sendmsg,sendmmsg", &flags).await;
    let gateway = &traced.gateway;
    let named = format!("http://receiver.example:{}/", receiver.address.port());
    gateway.create_endpoint(json!({"url": named, "retry": eager_retry(5)})).await;
    let owned = json!({"url": gone.url(), "owner_email": "owner@example.com", "event_types": ["gone"]});
    gateway.create_endpoint(owned).await;
    gateway.send(json!({"id": "one", "type": "t", "data": 1})).await;
    gateway.wait_for_state("one", "delivered").await;
    gateway.send(json!({"id": "two", "type": "gone", "data": 2})).await;
    gone.wait_for(1).await;
    eventually("a mail to the owner", || async {
        if mails.mails().is_empty() { Err("there is none".to_owned()) } else { Ok(()) }
    })
    .await;
    eventually("its own test", || async {
        let metrics = gateway.client.get("/metrics").await;
        let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
        let is_tested = metrics.lines().any(|line| line.starts_with("posthaste_self_test_age_seconds"));
        if is_tested { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
    let mut told = vec![receiver.address, gone.address, names.address, mails.address, collector.address()];
    told.extend(database.map(|database| database_address(database.url())));
    let recorded = traced.stop().await;
    let (addresses, paths) = targets(&recorded);
    (addresses, paths, told)
}

/// The address in the URL of a database on this machine.
fn database_address(url: &str) -> SocketAddr {
    let url: url::Url = url.parse().unwrap();
    let host = url.host_str().unwrap().replace("localhost", "127.0.0.1");
    format!("{host}:{}", url.port().unwrap()).parse().unwrap()
}

/// There is no telemetry: all that a gateway ever connects to is what it was told of.
async fn connects_to_nothing_but_what_it_was_told_of(database: Option<&Database>) {
    let (addresses, paths, told) = contacted(database).await;
    for address in &told {
        assert!(addresses.contains(address), "the record shows what it was told of: {address} is not in {addresses:?}");
    }
    let others: Vec<_> = addresses.iter().filter(|address| !told.contains(address)).collect();
    assert!(others.is_empty(), "it connects to {others:?}, and was told of {told:?} alone");
    assert!(paths.is_empty(), "it connects to {paths:?} on this machine");
}

#[tokio::test]
async fn a_gateway_on_the_embedded_store_connects_to_nothing_but_what_it_was_told_of() {
    connects_to_nothing_but_what_it_was_told_of(None).await;
}

#[tokio::test]
async fn a_gateway_on_postgresql_connects_to_nothing_but_what_it_was_told_of() {
    let database = Server::shared(&[]).await.database().await;
    connects_to_nothing_but_what_it_was_told_of(Some(&database)).await;
}

/// The groups of system calls that systemd knows, each with its calls and groups.
fn groups() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new("systemd-analyze").args(["--no-pager", "syscall-filter"]).output();
    let output = output.expect("there is no systemd-analyze: install Debian's package systemd");
    let text = String::from_utf8(output.stdout).unwrap();
    let (mut groups, mut name) = (BTreeMap::<String, BTreeSet<String>>::new(), String::new());
    for line in text.lines().map(str::trim_end).filter(|line| !line.trim_start().starts_with('#')) {
        if line.starts_with('@') {
            line.clone_into(&mut name);
        } else if !line.is_empty() {
            groups.entry(name.clone()).or_default().insert(line.trim().to_owned());
        }
    }
    groups
}

/// The calls of a group and of the groups in it.
fn calls_of(group: &str, groups: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let entries = groups.get(group).unwrap_or_else(|| panic!("systemd knows no group {group}"));
    let (inner, mut calls): (BTreeSet<String>, BTreeSet<String>) =
        entries.iter().cloned().partition(|entry| entry.starts_with('@'));
    for group in inner {
        calls.extend(calls_of(&group, groups));
    }
    calls
}

/// The calls that the unit allows.
fn allowed_calls(unit: &str) -> BTreeSet<String> {
    let groups = groups();
    let mut allowed = calls_of("@default", &groups);
    for line in unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")) {
        let is_denied = line.starts_with('~');
        for word in line.trim_start_matches('~').split(' ') {
            let calls = calls_of(word, &groups);
            if is_denied {
                allowed.retain(|call| !calls.contains(call));
            } else {
                allowed.extend(calls);
            }
        }
    }
    allowed
}

#[tokio::test]
async fn a_gateway_makes_no_system_call_that_its_unit_forbids() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/systemd/posthaste.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    let allowed = allowed_calls(&unit);
    assert!(allowed.contains("epoll_wait") && !allowed.contains("chroot") && !allowed.contains("setpriority"));

    let receiver = Receiver::scripted(vec![Reply::Status(503), Reply::Status(200)]).await;
    let traced = Traced::start("all", &["--dns", "system", "--self-test", "on"]).await;
    let named = format!("http://localhost:{}/", receiver.address.port());
    traced.gateway.create_endpoint(json!({"url": named, "retry": eager_retry(5)})).await;
    traced.gateway.send(json!({"id": "one", "type": "t", "data": 1})).await;
    traced.gateway.wait_for_state("one", "delivered").await;
    let recorded = traced.stop().await;

    let families = unit.lines().find_map(|line| line.strip_prefix("RestrictAddressFamilies=")).unwrap();
    let mut wrong = BTreeSet::new();
    let mut used = BTreeSet::new();
    for line in recorded.lines() {
        let call = line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
        let Some((name, arguments)) = call.split_once('(') else { continue };
        if !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_') {
            continue;
        }
        used.insert(name.to_owned());
        let family = arguments.split([',', '|']).next().unwrap_or_default();
        // Without an answer from the kernel about its addresses, the C library takes both families as usable.
        if name == "socket" && !families.contains(family) && family != "AF_NETLINK" {
            wrong.insert(format!("socket({family})"));
        }
    }
    assert!(used.len() > 40 && used.contains("fdatasync"), "strace saw the gateway work: {used:?}");
    // SQLite gives files to the owner of the store when it runs as root, and so not under the unit.
    let as_root = if rustix::process::geteuid().is_root() { "fchown" } else { "" };
    wrong.extend(used.difference(&allowed).filter(|call| *call != as_root).cloned());
    assert!(wrong.is_empty(), "the unit forbids {wrong:?}, and the gateway does them");
}
