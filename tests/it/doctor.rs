//! An installation is examined: in order, and broken in many ways, running and stopped.
//! Probes ask with a command.

use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cli::posthaste;
use crate::servers::guard::free_port;
use crate::servers::postgres::Server;
use crate::support::{DnsAnswer, Gateway, NameServer, Options, path_of};
use crate::tls::Authority;

/// What the doctor says of an installation: its exit code and its report.
async fn examined(folder: &Path, flags: &[&str]) -> (i32, Value) {
    let data = folder.to_str().unwrap();
    let mut command = posthaste(&[&["doctor", "-o", "json", "--data", data][..], flags].concat());
    let output = command.current_dir("/").output().await.unwrap();
    let report = serde_json::from_slice(&output.stdout);
    let report = report.unwrap_or_else(|_| panic!("{flags:?}: {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code().unwrap(), report)
}

/// The finding of a check; the worst, if there are several.
fn finding<'a>(report: &'a Value, check: &str) -> &'a Value {
    let all = report["findings"].as_array().unwrap().iter().filter(|finding| finding["check"] == check);
    let rank = |finding: &&Value| ["ok", "warning", "problem"].iter().position(|state| finding["state"] == *state);
    all.max_by_key(rank).unwrap_or_else(|| panic!("no {check} in {report:#}"))
}

#[track_caller]
fn expect(report: &Value, check: &str, state: &str, words: &str) {
    let finding = finding(report, check);
    let told = format!("{} {}", finding["detail"], finding["way_out"]);
    assert!(finding["state"] == state && told.contains(words), "{check} is no {state} with {words:?}: {finding:#}");
}

/// A stopped installation with an endpoint on this machine and one with a name.
async fn stopped() -> (Arc<TempDir>, Vec<String>) {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let mut gateway = Gateway::start_in(folder.clone(), Options::default()).await;
    gateway.create_endpoint(json!({"url": "http://127.0.0.1:9/"})).await;
    gateway.terminate().await;
    (folder, ["--allow-egress", "127.0.0.0/8"].map(str::to_owned).to_vec())
}

fn store(folder: &TempDir) -> PathBuf {
    folder.path().join("posthaste.db")
}

fn set_version(folder: &TempDir, version: i64) {
    let db = rusqlite::Connection::open(store(folder)).unwrap();
    db.execute_batch(&format!("PRAGMA user_version = {version}")).unwrap();
}

#[tokio::test]
async fn a_stopped_installation_in_order_has_no_problems() {
    let (folder, flags) = stopped().await;
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let before = std::fs::read(store(&folder)).unwrap();
    let (code, report) = examined(folder.path(), &flags).await;
    assert_eq!((code, &report["problems"]), (0, &json!(0)), "{report:#}");
    assert!(report["running"] == false && report["examined"].as_str().unwrap().contains("stopped installation"));
    for check in [
        "settings",
        "permissions",
        "tls",
        "proxy_headers",
        "open_files",
        "memory",
        "file_system",
        "disk_space",
        "sync_latency",
        "clock",
        "schema",
        "master_key",
        "egress_rules",
        "dns",
        "client_certificates",
        "secrets",
        "tokens",
        "notifications",
        "mail",
    ] {
        finding(&report, check);
    }
    expect(&report, "notifications", "warning", "nobody is told");
    assert!(std::fs::read(store(&folder)).unwrap() == before, "nothing is changed");
    // For people it is lines, with the way out below.
    let text = posthaste(&[&["doctor", "--data", folder.path().to_str().unwrap()][..], &flags].concat());
    let text = { text }.current_dir("/").output().await.unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("ok       master key") && text.contains("-> make an endpoint"), "{text}");
    assert!(text.contains("0 problems"), "{text}");
}

#[tokio::test]
async fn a_stopped_installation_broken_in_many_ways_is_told_each_with_the_way_out() {
    let (folder, flags) = stopped().await;
    let open: Vec<&str> = flags.iter().map(String::as_str).collect();
    let with = |more: &[&'static str]| [&open[..], more].concat();
    let broken = async |flags: &[&str], check: &str, words: &str| {
        let (code, report) = examined(folder.path(), flags).await;
        assert_eq!(code, 1, "{report:#}");
        expect(&report, check, "problem", words);
    };
    broken(&[], "egress_rules", "--allow-egress 127.0.0.0/8").await;
    broken(&with(&["--disk-reserve", "900000GiB"]), "disk_space", "lower --retention").await;
    broken(&with(&["--smtp", "smtp://127.0.0.1:1"]), "mail", "mend --smtp").await;
    broken(&with(&["--trusted-proxies", "0.0.0.0/0"]), "proxy_headers", "claim any address").await;
    broken(&with(&["--lease", "1s"]), "settings", "use 2s to 5m").await;
    broken(&with(&["--egress-proxy", "http://127.0.0.1:1"]), "egress_proxy", "start the proxy").await;
    broken(&with(&["--egress-bind", "203.0.113.9"]), "egress_rules", "no address of this machine").await;
    broken(&with(&["--database-url", "postgres://x@127.0.0.1:1/x"]), "database", "start the database").await;

    let key = folder.path().join("master-key");
    let text = std::fs::read_to_string(&key).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    broken(&open, "permissions", "chmod go-rwx").await;
    std::fs::write(&key, "00".repeat(32)).unwrap();
    broken(&open, "master_key", "does not fit").await;
    std::fs::write(&key, "short").unwrap();
    broken(&open, "master_key", "64 hexadecimal digits").await;
    std::fs::remove_file(&key).unwrap();
    broken(&open, "master_key", "restore the master-key file").await;
    std::fs::write(&key, &text).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();

    let file = std::fs::File::options().write(true).open(store(&folder)).unwrap();
    let (written, day) = (file.metadata().unwrap().modified().unwrap(), Duration::from_secs(86_400));
    file.set_modified(written + day).unwrap();
    broken(&open, "clock", "was set back").await;
    file.set_modified(written).unwrap();

    let known: i64 = rusqlite::Connection::open(store(&folder))
        .unwrap()
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .unwrap();
    set_version(&folder, 99);
    broken(&open, "schema", "run the newer posthaste").await;
    set_version(&folder, known - 1);
    expect(&examined(folder.path(), &open).await.1, "schema", "warning", "make a backup before that");
    // The key of an older store is compared, too.
    std::fs::write(&key, "00".repeat(32)).unwrap();
    broken(&open, "master_key", "does not fit").await;
    std::fs::remove_file(&key).unwrap();
    broken(&open, "master_key", "restore the master-key file").await;
    std::fs::write(&key, &text).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    set_version(&folder, known);

    let few = format!(
        "ulimit -n 512 && exec {} doctor -o json --data {}",
        env!("CARGO_BIN_EXE_posthaste"),
        folder.path().display()
    );
    let few = tokio::process::Command::new("sh").args(["-c", &few]).current_dir("/").output().await.unwrap();
    expect(&serde_json::from_slice(&few.stdout).unwrap(), "open_files", "problem", "LimitNOFILE");

    std::fs::write(store(&folder), "this is no database, and never was one".repeat(200)).unwrap();
    broken(&open, "store", "restore a backup").await;
}

#[tokio::test]
async fn a_store_that_no_start_would_open_is_a_problem_with_the_way_out() {
    let (folder, flags) = stopped().await;
    let open: Vec<&str> = flags.iter().map(String::as_str).collect();
    let broken = async |words: &[&str]| {
        let (code, report) = examined(folder.path(), &open).await;
        assert_eq!(code, 1, "{report:#}");
        words.iter().for_each(|words| expect(&report, "store", "problem", words));
    };
    let (aside, mark) = (folder.path().join("aside"), |name: &str| folder.path().join(name));
    std::fs::rename(store(&folder), &aside).unwrap();
    broken(&["is missing or empty", "--new-store"]).await;
    std::fs::write(store(&folder), "").unwrap();
    broken(&["is missing or empty", "--new-store"]).await;
    std::fs::write(mark("restoring"), "").unwrap();
    broken(&["was interrupted", "run `posthaste restore` again"]).await;
    std::fs::remove_file(mark("restoring")).unwrap();
    std::fs::rename(&aside, store(&folder)).unwrap();
    std::fs::write(mark("moved"), "PostgreSQL at db:5432\n7\ndone\n").unwrap();
    broken(&["was moved to PostgreSQL at db:5432", "start with --database-url"]).await;
    std::fs::remove_file(mark("moved")).unwrap();
    assert_eq!(examined(folder.path(), &open).await.0, 0);
    // Where nothing was yet, nothing is missing.
    let empty = tempfile::tempdir().unwrap();
    expect(&examined(empty.path(), &open).await.1, "store", "ok", "there is none");
}

#[tokio::test]
async fn a_name_that_leads_to_an_address_that_is_not_called_is_told_with_the_address() {
    let is_moved = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let moved = is_moved.clone();
    let names = NameServer::answering(move |_| {
        let is_moved = moved.load(std::sync::atomic::Ordering::Relaxed);
        DnsAnswer::addresses(&[if is_moved { "10.1.2.3" } else { "127.0.0.2" }])
    })
    .await;
    let (folder, dns) = (Arc::new(tempfile::tempdir().unwrap()), names.address.to_string());
    let flags = ["--dns", &dns, "--allow-egress", "127.0.0.0/8"];
    let mut gateway = Gateway::start_in(folder.clone(), Options::flags(&flags)).await;
    let endpoint = gateway.create_endpoint(json!({"url": "http://hooks.example.com/"})).await;
    gateway.create_endpoint(json!({"url": "http://127.0.0.1:9/"})).await;
    assert!(gateway.terminate().await.success());
    let (code, report) = examined(folder.path(), &flags).await;
    assert_eq!(code, 0, "{report:#}");
    expect(&report, "egress_rules", "ok", "2 endpoints");
    is_moved.store(true, std::sync::atomic::Ordering::Relaxed);
    let (code, report) = examined(folder.path(), &flags).await;
    assert_eq!(code, 1, "{report:#}");
    let id = endpoint["id"].as_str().unwrap();
    for words in ["1 of 2 endpoints", id, "hooks.example.com", "10.1.2.3", "--allow-egress 10."] {
        expect(&report, "egress_rules", "problem", words);
    }
    expect(&report, "dns", "ok", "are found");
}

#[tokio::test]
async fn name_servers_are_asked_also_where_no_endpoint_has_a_name() {
    let names = NameServer::answering(|_| DnsAnswer::Nothing).await;
    let (folder, flags) = stopped().await;
    let asked = async |server: &str| {
        let flags: Vec<&str> = flags.iter().map(String::as_str).chain(["--dns", server]).collect();
        examined(folder.path(), &flags).await
    };
    let (code, report) = asked(&names.address.to_string()).await;
    assert_eq!(code, 0, "{report:#}");
    expect(&report, "dns", "ok", "a name server answers");
    let (code, report) = asked("127.0.0.1:1").await;
    assert_eq!(code, 0, "nothing needs it yet: {report:#}");
    expect(&report, "dns", "warning", "restart the gateway");
}

#[tokio::test]
async fn what_ends_and_what_cannot_be_found_is_told_by_the_running_gateway() {
    let authority = Authority::named("ours");
    let files = tempfile::tempdir().unwrap();
    let (certificate, key) = authority.identity_until(&["127.0.0.1"], 2027, 1, 1);
    let file = |name: &str| files.path().join(name).display().to_string();
    std::fs::write(files.path().join("tls.pem"), &certificate).unwrap();
    std::fs::write(files.path().join("tls.key"), &key).unwrap();
    std::fs::set_permissions(files.path().join("tls.key"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let gateway = Gateway::start_with(Options::flags(&["--dns", "127.0.0.1:1"])).await;
    let endpoint = gateway.create_endpoint(json!({"url": "https://hooks.example.com/"})).await;
    gateway.client.post(&format!("{}/secrets/rotate", path_of(&endpoint)), r#"{"overlap":"1h"}"#).await.expect(201);
    let end = jiff::Timestamp::from_second(jiff_now() + 86_400).unwrap().to_string();
    let token = json!({"tenant": "default", "rights": ["read"], "expires_at": end});
    gateway.client.post_json("/v1/tokens", &token).await.expect(201);
    let (code, report) = examined(&gateway.folder(), &[]).await;
    assert_eq!((code, &report["running"]), (1, &json!(true)), "{report:#}");
    assert!(report["examined"].as_str().unwrap().contains(&gateway.address.to_string()), "{report:#}");
    expect(&report, "dns", "problem", "--dns");
    expect(&report, "tokens", "warning", "tokens create");
    expect(&report, "secrets", "warning", "has the new one");
    expect(&report, "attention", "warning", "posthaste status");

    let forwarded = gateway.client.send("GET", "/v1/doctor", &[("x-forwarded-for", "198.51.100.1")], "").await.unwrap();
    expect(&forwarded.expect(200), "proxy_headers", "warning", "--trusted-proxies 127.0.0.1/32");
    // It is the operator's alone.
    let made =
        gateway.client.post_json("/v1/tokens", &json!({"tenant": "default", "rights": ["manage"]})).await.expect(201);
    let tenant = crate::support::Client::new(gateway.address, made["token"].as_str().unwrap());
    tenant.get("/v1/doctor").await.problem(403, "missing_right");

    // A certificate that has ended, and one whose file is gone.
    let (ended, key) = authority.identity_until(&["127.0.0.1"], 2020, 1, 1);
    std::fs::write(files.path().join("tls.pem"), ended).unwrap();
    std::fs::write(files.path().join("tls.key"), key).unwrap();
    let empty = tempfile::tempdir().unwrap();
    let flags = ["--tls-certificate", &file("tls.pem"), "--tls-key", &file("tls.key")];
    expect(&examined(empty.path(), &flags).await.1, "tls", "problem", "has ended");
    std::fs::remove_file(files.path().join("tls.pem")).unwrap();
    expect(&examined(empty.path(), &flags).await.1, "tls", "problem", "cannot read tls-certificate");
    expect(&examined(empty.path(), &["--listen", "0.0.0.0:8400"]).await.1, "tls", "warning", "unencrypted");
}

/// Seconds of the wall clock, from the last change of a file that was just written.
fn jiff_now() -> i64 {
    let file = tempfile::NamedTempFile::new().unwrap();
    let modified = file.as_file().metadata().unwrap().modified().unwrap();
    modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64
}

#[tokio::test]
async fn a_running_gateway_examines_itself_and_one_that_cannot_be_asked_is_found() {
    let gateway = Gateway::start().await;
    gateway.client.post_json("/v1/tenants/_system/endpoints", &json!({"url": "http://127.0.0.1:9/"})).await.expect(201);
    let (code, report) = examined(&gateway.folder(), &[]).await;
    assert_eq!((code, &report["running"]), (0, &json!(true)), "{report:#}");
    expect(&report, "notifications", "ok", "operational events");
    let token = gateway.folder().join("none");
    let (code, report) = examined(&gateway.folder(), &["--token-file", token.to_str().unwrap()]).await;
    assert_eq!((code, &report["running"]), (1, &json!(false)), "{report:#}");
    expect(&report, "store", "problem", "could not be asked");
}

#[tokio::test]
async fn a_folder_for_backups_that_cannot_be_used_is_told_with_the_way_out() {
    let (folder, flags) = stopped().await;
    let open: Vec<&str> = flags.iter().map(String::as_str).collect();
    let backups = tempfile::tempdir().unwrap();
    let (there, missing) = (backups.path().to_str().unwrap(), backups.path().join("new/er"));
    let told = async |more: &[&str]| examined(folder.path(), &[&open[..], more].concat()).await.1;
    expect(&told(&[]).await, "backup_dir", "warning", "set --backup-dir");
    expect(&told(&["--backup-dir", there]).await, "backup_dir", "ok", "can be written");
    expect(&told(&["--backup-dir", missing.to_str().unwrap()]).await, "backup_dir", "ok", "can be written");
    assert!(!missing.exists(), "nothing is changed");
    let file = store(&folder);
    let below_a_file = file.join("x");
    let report = told(&["--backup-dir", below_a_file.to_str().unwrap()]).await;
    expect(&report, "backup_dir", "problem", "choose another --backup-dir");
    if rustix::process::geteuid().is_root() {
        let full = ["--backup-dir", there, "--disk-reserve", "900000GiB"];
        expect(&told(&full).await, "backup_dir", "problem", "remove old backups");
        // Root may write everywhere; the gateway's user is the owner of the data directory.
        std::os::unix::fs::chown(folder.path(), Some(65_534), Some(65_534)).unwrap();
        let report = told(&["--backup-dir", there]).await;
        expect(&report, "backup_dir", "problem", "ReadWritePaths=");
        expect(&report, "permissions", "problem", "chown -R --reference=");
    }
}

#[tokio::test]
async fn a_gateway_that_was_killed_and_a_token_that_has_ended_are_told() {
    let mut gateway = Gateway::start().await;
    // Long enough that the token is made before.
    let end = jiff::Timestamp::from_second(jiff_now() + 5).unwrap().to_string();
    let token = json!({"tenant": "default", "rights": ["read"], "expires_at": end});
    gateway.client.post_json("/v1/tokens", &token).await.expect(201);
    let report = crate::support::eventually("the token to end", || async {
        let (_, report) = examined(&gateway.folder(), &[]).await;
        let told = finding(&report, "tokens")["detail"].as_str().unwrap().to_owned();
        if told.contains("1 tokens have ended") { Ok(report) } else { Err(told) }
    });
    expect(&report.await, "tokens", "warning", "tokens revoke");
    gateway.kill().await;
    let (_, report) = examined(&gateway.folder(), &["--allow-egress", "127.0.0.0/8"]).await;
    expect(&report, "gateway", "warning", "start it, if it should run");
    expect(&report, "tokens", "warning", "have ended");
    let disk = finding(&report, "disk_space")["detail"].as_str().unwrap();
    assert!(disk.contains("GB of ") || disk.contains("MB of ") || disk.contains("TB of "), "{disk}");
}

#[tokio::test]
async fn a_database_is_examined_with_its_settings() {
    crate::support::on_postgres(async {
        let gateway = Gateway::start().await;
        let (_, report) = examined(&gateway.folder(), &[]).await;
        for check in ["database", "clock", "schema", "master_key"] {
            assert_eq!(finding(&report, check)["state"], "ok", "{report:#}");
        }
        // On a busy machine it takes long.
        assert_ne!(finding(&report, "database_latency")["state"], "problem", "{report:#}");
        assert_eq!(finding(&report, "database_settings")["state"], "ok", "{report:#}");
        let stopped = tempfile::tempdir().unwrap();
        let url = gateway.database().unwrap().url();
        let (code, report) = examined(stopped.path(), &["--database-url", url]).await;
        assert_eq!((code, &report["running"]), (1, &json!(false)), "{report:#}");
        expect(&report, "master_key", "problem", "restore the master-key file");
        expect(&report, "endpoints", "warning", "cannot be read");
        let key = gateway.folder().join("master-key");
        gateway.create_endpoint(json!({"url": "http://127.0.0.1:9/"})).await;
        let flags = ["--database-url", url, "--master-key-file", key.to_str().unwrap()];
        let report = examined(stopped.path(), &flags).await.1;
        expect(&report, "egress_rules", "problem", "1 of 1 endpoints");
        for check in ["dns", "client_certificates", "secrets", "tokens", "notifications"] {
            finding(&report, check);
        }
    })
    .await;
    let careless = Server::start(&["fsync=off", "full_page_writes=off"]).await;
    let database = careless.database().await;
    let (code, report) = examined(tempfile::tempdir().unwrap().path(), &["--database-url", database.url()]).await;
    assert_eq!(code, 1);
    expect(&report, "database_settings", "problem", "=on");
    expect(&report, "schema", "ok", "none yet");
}

#[tokio::test]
async fn a_probe_asks_by_a_command_wherever_the_gateway_listens() {
    let authority = Authority::named("ours");
    let files = tempfile::tempdir().unwrap();
    let (certificate, key) = authority.identity_for(&["hooks.example.com"]);
    let (pem, key_file) = (files.path().join("tls.pem"), files.path().join("tls.key"));
    std::fs::write(&pem, certificate).unwrap();
    std::fs::write(&key_file, key).unwrap();
    std::fs::set_permissions(&key_file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let health = format!("{}:{}", Ipv4Addr::LOCALHOST, free_port());
    let tls = ["--tls-certificate", pem.to_str().unwrap(), "--tls-key", key_file.to_str().unwrap()];
    let code = async |args: &[&str], env: &[(&str, &str)]| {
        let mut command = posthaste(&[&["health"][..], args].concat());
        let output = command.envs(env.iter().copied()).current_dir("/").output().await.unwrap();
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let mut plain = Gateway::start_with(Options::flags(&["--health-listen", &health])).await;
    assert_eq!(code(&["--health-listen", &health], &[]).await.0, 0);
    assert_eq!(code(&["--ready"], &[("POSTHASTE_HEALTH_LISTEN", &health)]).await.0, 0);
    assert_eq!(code(&["--data", plain.folder().to_str().unwrap(), "--ready"], &[]).await.0, 0);
    plain.kill().await;
    let (dead, said) = code(&["--health-listen", &health], &[]).await;
    assert!(dead == 1 && said.contains("cannot be reached"), "{said}");

    let mut encrypted = Gateway::start_with(Options::flags(&tls)).await;
    let listen = encrypted.address.to_string();
    let data = encrypted.folder();
    assert_eq!(code(&["--data", data.to_str().unwrap()], &[]).await.0, 0);
    let from_environment =
        [("POSTHASTE_LISTEN", listen.as_str()), ("POSTHASTE_TLS_CERTIFICATE", tls[1]), ("POSTHASTE_TLS_KEY", tls[3])];
    assert_eq!(code(&["--ready"], &from_environment).await.0, 0, "as in a container");
    let (plain, said) = code(&["--listen", &listen, "--data", "/nonexistent"], &[]).await;
    assert!(plain == 1 && said.contains("400"), "{said}");
    encrypted.kill().await;
    assert_eq!(code(&["--ready"], &from_environment).await.0, 1);
}
