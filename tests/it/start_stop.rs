//! Starting and stopping: the token, the lock, versions, and SIGTERM.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::json;

use crate::support::{CapturedOutput, Gateway, Options, PATIENCE, Receiver, Reply, eventually};

for_every_store! {
    sigterm_finishes_what_is_in_flight_and_nothing_is_lost_or_repeated,
}

#[tokio::test]
async fn the_first_start_writes_a_token_for_its_owner_alone() {
    let gateway = Gateway::start().await;
    for file in ["admin-token", "posthaste.db", "posthaste.db-wal", "lock"] {
        let mode = std::fs::metadata(gateway.folder().join(file)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{file}");
    }
    let old = gateway.token().to_owned();
    let gateway = {
        let mut gateway = gateway;
        gateway.terminate().await;
        gateway.restart().await
    };
    gateway.client.get("/v1/tenants").await.expect(200);
    assert_eq!(gateway.token(), old, "the token stays over a restart");
}

#[tokio::test]
async fn a_second_process_on_the_same_directory_is_refused_with_a_clear_word() {
    let gateway = Gateway::start().await;
    let second = gateway.start_second().await;
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("is in use by another posthaste") && said.contains("--data"), "{said}");
    gateway.client.get("/readyz").await.expect(200);
}

#[tokio::test]
async fn a_store_from_a_newer_version_is_refused() {
    let mut gateway = Gateway::start().await;
    assert!(gateway.terminate().await.success());
    let store = rusqlite::Connection::open(gateway.folder().join("posthaste.db")).unwrap();
    store.execute_batch("PRAGMA user_version = 999").unwrap();
    drop(store);
    let second = gateway.start_second().await;
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success() && said.contains("newer posthaste") && said.contains("999"), "{said}");
}

#[tokio::test]
async fn a_missing_master_key_is_said_to_be_missing_and_where_it_was_looked_for() {
    let mut gateway = Gateway::start().await;
    assert!(gateway.terminate().await.success());
    let key = gateway.folder().join("master-key");
    let kept = std::fs::read(&key).unwrap();
    std::fs::remove_file(&key).unwrap();
    let second = gateway.start_second().await;
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success() && said.contains("the master key is missing"), "{said}");
    assert!(said.contains(&key.display().to_string()) && said.contains("--master-key-file"), "{said}");
    assert!(!key.exists(), "no other key is put in its place");
    std::fs::write(&key, kept).unwrap();
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    gateway.restart().await.client.get("/v1/tenants").await.expect(200);
}

/// Gives a file or folder this mode.
fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn loose_modes_are_refused_with_the_command_that_mends_them() {
    let mut gateway = Gateway::start().await;
    assert!(gateway.terminate().await.success());
    let folder = gateway.folder();
    for (name, loose, right) in [
        ("master-key", 0o644, 0o600),
        ("admin-token", 0o640, 0o600),
        ("posthaste.db", 0o666, 0o600),
        ("", 0o777, 0o700),
    ] {
        let path = folder.join(name);
        chmod(&path, loose);
        let second = gateway.start_second().await;
        let said = String::from_utf8_lossy(&second.stderr);
        assert!(!second.status.success() && said.contains("mend it with `chmod "), "{said}");
        assert!(said.contains(name) && said.contains(&format!("{loose:04o}")), "{said}");
        chmod(&path, right);
    }
    chmod(&folder.join("posthaste.db"), 0o644);
    chmod(&folder, 0o755);
    let printed = CapturedOutput::default();
    let options = Options { output: Some(printed.clone()), ..Options::default() };
    let gateway = gateway.restart_with(options).await;
    gateway.client.get("/readyz").await.expect(200);
    eventually("one warning of both", || async {
        let said = printed.text();
        match said.matches("every user of this machine can read").count() {
            1 if said.contains("posthaste.db; mend it with `chmod o-rwx") => Ok(()),
            _ => Err(said),
        }
    })
    .await;
}

#[tokio::test]
async fn a_data_directory_that_lost_its_store_is_refused_unless_a_new_one_is_meant() {
    let mut gateway = Gateway::start().await;
    assert!(gateway.terminate().await.success());
    let store = gateway.folder().join("posthaste.db");
    for is_there in [false, true] {
        if is_there {
            std::fs::write(&store, "").unwrap()
        } else {
            std::fs::remove_file(&store).unwrap()
        }
        let second = gateway.start_second().await;
        let said = String::from_utf8_lossy(&second.stderr);
        assert!(!second.status.success() && said.contains("--new-store"), "{said}");
        assert!(said.contains(&store.display().to_string()) && said.lines().count() == 1, "{said}");
        assert_eq!(std::fs::metadata(&store).map_or(0, |file| file.len()), 0, "nothing was made");
    }
    let old = gateway.token().to_owned();
    let options = Options::flags(&["--new-store"]);
    let anew = Gateway::start_in(gateway.shared_folder(), options).await;
    assert_ne!(anew.token(), old, "a new store has a new token");
    anew.client.get("/v1/tenants").await.expect(200);
}

#[tokio::test]
async fn a_wrong_setting_is_refused_by_name() {
    for (flags, needle) in [
        (vec!["--retention", "soon"], "such as 30s"),
        (vec!["--allow-egress", "everything"], "127.0.0.0/8"),
        (vec!["--max-in-flight", "0"], "max-in-flight is 0"),
        (vec!["--config", "/nonexistent/posthaste.toml"], "/nonexistent/posthaste.toml"),
        (vec!["--log", "loud"], "off, error, warn, info, debug or trace"),
    ] {
        let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_posthaste"))
            .arg("serve")
            .args(&flags)
            .output()
            .await
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(needle), "{flags:?}: {said}");
    }
}

#[tokio::test]
async fn a_setting_that_is_misspelt_in_the_environment_is_refused_with_the_nearest() {
    let folder = tempfile::tempdir().unwrap();
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_posthaste"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(folder.path())
        .env("POSTHASTE_RETENTON", "1d")
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PATIENCE, output).await.expect("it does not serve").unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("POSTHASTE_RETENTION"), "{said}");
}

#[tokio::test]
async fn a_taken_address_is_refused_with_the_way_out() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_posthaste"))
        .args(["serve", "--listen", &taken.local_addr().unwrap().to_string(), "--data"])
        .arg(folder.path())
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("--listen"), "{said}");
}

async fn sigterm_finishes_what_is_in_flight_and_nothing_is_lost_or_repeated() {
    let gateway = Gateway::start_with(Options::flags(&["--stop-timeout", "20s"])).await;
    let receiver = Receiver::answering(|_| Reply::Hold(200)).await;
    gateway.create_endpoint(json!({"url": receiver.url(), "max_in_flight": 5})).await;
    for n in 0..20 {
        gateway.send(json!({"id": format!("t-{n}"), "type":"a","data":n})).await;
    }
    receiver.wait_for(5).await;
    let prober = gateway.another_client();
    let mut gateway = gateway;
    let stopping = tokio::spawn(async move {
        let status = gateway.terminate().await;
        (gateway, status)
    });
    crate::support::eventually("readyz to say so", || async {
        match prober.send("GET", "/readyz", &[], "").await {
            Ok(answer) if answer.status == 503 => Ok(()),
            Ok(answer) => Err(answer.status.to_string()),
            Err(problem) => Err(problem),
        }
    })
    .await;
    receiver.release();
    let (gateway, status) = stopping.await.unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(receiver.count(), 5, "no new attempts once it was told to stop");
    let gateway = gateway.restart().await;
    receiver.wait_for(20).await;
    gateway.wait_for_state("t-19", "delivered").await;
    assert!(receiver.times_by_id().values().all(|times| *times == 1));
}
