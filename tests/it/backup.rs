//! Backups of a gateway under load: what was acknowledged before is in them, what
//! was delivered before does not come again, and what is broken is noticed.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::cli::{posthaste, to_gateway};
use crate::support::{CapturedOutput, Client, Gateway, Options, Receiver, Reply, eventually, unlimited};

/// What a command printed, on either stream, and whether it succeeded.
pub async fn said(args: &[&str]) -> (bool, String) {
    let output = posthaste(args).output().await.expect("it runs");
    (output.status.success(), String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

/// A policy that goes on for longer than a story.
pub fn patient() -> Value {
    json!({"schedule": ["100ms"], "jitter": "none", "max_attempts": 1_000})
}

/// A gateway with a folder for backups.
async fn with_backups() -> (Gateway, PathBuf, tempfile::TempDir) {
    let backups = tempfile::tempdir().expect("a folder");
    let folder = backups.path().join("backups");
    let gateway = Gateway::start_with(Options::flags(&["--backup-dir", text(&folder)])).await;
    (gateway, folder, backups)
}

/// Begins a backup and waits for its end.
async fn backed_up(gateway: &Gateway, name: &str) -> Value {
    gateway.client.post_json("/v1/backups", &json!({"name": name})).await.expect(202);
    let backup = eventually("the backup to end", || async {
        let backup = gateway.client.get(&format!("/v1/backups/{name}")).await.expect(200);
        match backup["state"].as_str() {
            Some("copying" | "checking") => Err(backup.to_string()),
            _ => Ok(backup),
        }
    })
    .await;
    assert_eq!(backup["state"], "finished", "{backup}");
    backup
}

/// Hands in keyed events until told to stop; returns the ids, each with whether it was
/// acknowledged before `mark` was set.
async fn produce(client: Client, producer: usize, mark: Arc<AtomicBool>, stop: Arc<AtomicBool>) -> Vec<(String, bool)> {
    let mut acknowledged = Vec::new();
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let id = format!("p{producer}-{n}");
        let body = json!({"id": id, "type": "load", "key": format!("k{}", n % 5), "data": "x".repeat(700)});
        client.post_json("/v1/tenants/default/events", &body).await.expect(202);
        acknowledged.push((id, !mark.load(Ordering::SeqCst)));
    }
    acknowledged
}

async fn drained(gateway: &Gateway) {
    eventually("the backlog to drain", || async {
        let page = gateway.client.get("/v1/tenants/default/deliveries?state=waiting&limit=1").await.expect(200);
        if page["data"].as_array().unwrap().is_empty() { Ok(()) } else { Err(page.to_string()) }
    })
    .await;
}

/// The highest place of each key that a receiver has seen.
fn highest(receiver: &Receiver) -> HashMap<String, u64> {
    let mut highest = HashMap::new();
    for seen in receiver.seen() {
        let known = highest.entry(seen.header("x-key").to_owned()).or_insert(0);
        *known = (*known).max(seen.header("x-seq").parse().unwrap_or(0));
    }
    highest
}

#[tokio::test]
async fn a_store_that_was_destroyed_is_restored_and_nothing_acknowledged_before_its_backup_is_lost() {
    let (mut gateway, backups, _folder) = with_backups().await;
    let receiver = Receiver::start().await;
    let slow = Receiver::answering(|_| Reply::Status(503)).await;
    let settings = |url: String, kind: &str| {
        json!({"url": url, "event_types": [kind], "rate": unlimited(), "max_in_flight": 20,
               "retry": patient(), "breaker": {"enabled": false}})
    };
    gateway.create_endpoint(settings(receiver.url(), "load")).await;
    gateway.create_endpoint(settings(slow.url(), "later")).await;
    gateway.send_many("old", "load", 300, |n| Some(format!("k{}", n % 5))).await;
    receiver.wait_for(300).await;
    drained(&gateway).await;
    gateway.send_many("later", "later", 20, |_| None).await;

    let (mark, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let producers: Vec<_> = (0..6)
        .map(|producer| tokio::spawn(produce(gateway.another_client(), producer, mark.clone(), stop.clone())))
        .collect();
    receiver.wait_for(600).await;
    mark.store(true, Ordering::SeqCst);
    let backup = backed_up(&gateway, "monday").await;
    assert!(backup["master_key"].as_str().unwrap().contains("is NOT in this backup"), "{backup}");
    receiver.wait_for(receiver.count() + 200).await;
    stop.store(true, Ordering::Relaxed);
    let mut acknowledged = Vec::new();
    for producer in producers {
        acknowledged.extend(producer.await.unwrap());
    }
    // What waits in the backup is delivered after it, and will come again.
    slow.answer_with(|_| Reply::Status(200));
    drained(&gateway).await;
    let (before, slow_before, places) = (receiver.times_by_id(), slow.count(), highest(&receiver));

    gateway.kill().await;
    let store = gateway.folder().join("posthaste.db");
    std::fs::write(&store, b"this is no database any more").unwrap();
    let _ = std::fs::remove_file(gateway.folder().join("posthaste.db-wal"));
    let (folder, data) = (backups.join("monday"), gateway.folder());
    let (is_done, report) = said(&["restore", text(&folder), "--data", text(&data)]).await;
    assert!(is_done, "{report}");
    assert!(report.contains("Delivered twice: of the ") && report.contains("is kept in "), "{report}");

    let gateway = gateway.restart().await;
    drained(&gateway).await;
    let after = receiver.times_by_id();
    let lost: Vec<_> = acknowledged.iter().filter(|(id, early)| *early && !after.contains_key(id)).collect();
    assert!(lost.is_empty(), "{lost:?}");
    let repeated: HashSet<&String> =
        after.keys().filter(|id| after[*id] > before.get(*id).copied().unwrap_or(0)).collect();
    let old: Vec<_> = repeated.iter().filter(|id| id.starts_with("old-")).collect();
    assert!(old.is_empty(), "delivered before the backup, and again: {old:?}");
    assert_eq!(slow.count(), slow_before + 20, "what waited in the backup comes again");

    // Receivers that keep the highest place take a new event for a new one.
    gateway.send(json!({"id": "fresh", "type": "load", "key": "k1", "data": 1})).await;
    eventually("the new event", || async {
        receiver
            .seen()
            .into_iter()
            .find(|seen| seen.id() == "fresh")
            .map(|seen| seen.header("x-seq").to_owned())
            .ok_or_else(String::new)
    })
    .await;
    let seen = receiver.seen();
    let fresh = seen.iter().find(|seen| seen.id() == "fresh").unwrap();
    assert!(fresh.header("x-seq").parse::<u64>().unwrap() > places["k1"], "{}", fresh.header("x-seq"));
    println!(
        "{} acknowledged, {} of them before the backup",
        acknowledged.len(),
        acknowledged.iter().filter(|(_, early)| *early).count()
    );
}

#[tokio::test]
async fn a_restore_tells_exactly_what_comes_twice_and_what_is_lost_if_the_replaced_store_can_be_read() {
    let (mut gateway, backups, _folder) = with_backups().await;
    let receiver = Receiver::answering(|_| Reply::Status(503)).await;
    gateway.create_endpoint(json!({"url": receiver.url(), "retry": patient(), "breaker": {"enabled": false}})).await;
    gateway.send_many("e", "a.b", 7, |_| None).await;
    receiver.wait_for(7).await;
    backed_up(&gateway, "tuesday").await;
    receiver.answer_with(|_| Reply::Status(200));
    drained(&gateway).await;
    gateway.send_many("f", "a.b", 3, |_| None).await;
    drained(&gateway).await;
    let (folder, data) = (backups.join("tuesday"), gateway.folder());
    let restore = ["restore", text(&folder), "--data", text(&data), "-o", "json"];
    let (is_done, refused) = said(&restore).await;
    assert!(!is_done && refused.contains("the gateway must be stopped"), "{refused}");
    // A killed one leaves its log, which belongs to the store that is replaced.
    gateway.kill().await;
    let (is_done, report) = said(&restore).await;
    assert!(is_done, "{report}");
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(
        (&report["waiting"], &report["delivered_since"], &report["events_accepted_since"]),
        (&json!(7), &json!(7), &json!(3))
    );
    let aside = PathBuf::from(report["kept_aside"].as_str().unwrap());
    assert!(aside.join("posthaste.db").exists() && !data.join("posthaste.db-wal").exists());
    let (is_sound, found) = said(&["check-store", "--data", text(&data)]).await;
    assert!(is_sound, "{found}");
    let gateway = gateway.restart().await;
    drained(&gateway).await;
    let times = receiver.times_by_id();
    assert!((0..7).all(|n| times[&format!("e-{n}")] >= 2), "{times:?}");
    assert!(gateway.list("/v1/tenants/default/events").await.len() == 7, "the store is as it was");
}

#[tokio::test]
async fn a_backup_that_is_killed_leaves_nothing_that_looks_complete() {
    let (mut gateway, backups, _folder) = with_backups().await;
    // Large enough that a kill comes before its end.
    let data = "x".repeat(16_000);
    for batch in 0..20 {
        let events: Vec<Value> =
            (0..50).map(|n| json!({"id": format!("b{batch}-{n}"), "type": "a.b", "data": data})).collect();
        gateway.client.post_json("/v1/tenants/default/events/batch", &json!(events)).await.expect(202);
    }
    // As a kill leaves it that comes before anything is in it, and just before the folder has its name.
    std::fs::create_dir_all(backups.join("early.partial")).unwrap();
    backed_up(&gateway, "late").await;
    std::fs::rename(backups.join("late"), backups.join("late.partial")).unwrap();
    // What somebody else keeps under such a name stays.
    std::fs::create_dir_all(backups.join("of-others.partial")).unwrap();
    std::fs::write(backups.join("of-others.partial").join("notes.txt"), "kept").unwrap();
    let mut was_cut_off = false;
    for n in 0..20 {
        gateway.client.post_json("/v1/backups", &json!({"name": format!("cut-{n}")})).await.expect(202);
        gateway.kill().await;
        for entry in std::fs::read_dir(&backups).unwrap() {
            let path = entry.unwrap().path();
            if text(&path).ends_with(".partial") {
                was_cut_off |= text(&path).contains("cut-") && path.join("posthaste.db").exists();
                let (is_done, refused) = said(&["restore", text(&path), "--data", text(&gateway.folder())]).await;
                assert!(!is_done && refused.contains("is not a complete backup"), "{refused}");
            } else {
                let (is_sound, found) = said(&["check-store", text(&path)]).await;
                assert!(is_sound, "{found}");
            }
        }
        gateway = gateway.restart().await;
        if was_cut_off {
            break;
        }
    }
    assert!(was_cut_off, "no kill came in time");
    backed_up(&gateway, "whole").await;
    let left = std::fs::read_dir(&backups).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let left: Vec<String> = left.filter(|name| name.ends_with(".partial")).collect();
    assert_eq!(left, ["of-others.partial"], "what was cut off is removed");
    let listed = gateway.client.get("/v1/backups").await.expect(200);
    assert_eq!(listed["data"][0]["name"], "whole");
    assert!(gateway.terminate().await.success());
}

#[tokio::test]
async fn a_stop_gives_up_a_backup_and_waits_for_nothing() {
    let (mut gateway, backups, _folder) = with_backups().await;
    let data = "x".repeat(16_000);
    let events: Vec<Value> = (0..100).map(|n| json!({"id": format!("b{n}"), "type": "a.b", "data": data})).collect();
    gateway.client.post_json("/v1/tenants/default/events/batch", &json!(events)).await.expect(202);
    gateway.client.post_json("/v1/backups", &json!({"name": "late"})).await.expect(202);
    assert!(gateway.terminate().await.success());
    for entry in std::fs::read_dir(&backups).unwrap() {
        let path = entry.unwrap().path();
        let (is_sound, found) = said(&["check-store", text(&path)]).await;
        assert!(is_sound || found.contains("is not a complete backup"), "{found}");
    }
}

#[tokio::test]
async fn a_flipped_byte_in_a_copy_is_found_and_nothing_is_replaced_by_it() {
    let (mut gateway, _, folder) = with_backups().await;
    gateway.send_many("e", "a.b", 50, |n| Some(n.to_string())).await;
    assert!(gateway.terminate().await.success());
    let (copy, data) = (folder.path().join("copy"), gateway.folder());
    let (is_done, made) = said(&["backup", text(&copy), "--data", text(&data)]).await;
    assert!(is_done && made.contains("50 events") && made.contains("The master key is not in it"), "{made}");
    let (file, store) = (copy.join("posthaste.db"), data.join("posthaste.db"));
    let (whole, before) = (std::fs::read(&file).unwrap(), std::fs::read(&store).unwrap());
    for at in [100, whole.len() / 3, whole.len() / 2, whole.len() - 1] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        std::fs::write(&file, &bytes).unwrap();
        let (is_sound, found) = said(&["check-store", text(&copy), "--data", text(&data)]).await;
        assert!(!is_sound && found.contains("BROKEN       manifest"), "byte {at}: {found}");
        let (is_done, refused) = said(&["restore", text(&copy), "--data", text(&data)]).await;
        assert!(!is_done && refused.contains("differs from its manifest"), "byte {at}: {refused}");
    }
    std::fs::write(&file, &whole[..whole.len() - 4_096]).unwrap();
    let (is_done, refused) = said(&["restore", text(&copy), "--data", text(&data)]).await;
    assert!(!is_done && refused.contains("differs from its manifest"), "{refused}");
    std::fs::write(&file, &whole).unwrap();

    // Another key than the one that it is sealed under opens nothing in it.
    let key = folder.path().join("another-key");
    std::fs::write(&key, format!("{}\n", "ab".repeat(32))).unwrap();
    let (is_done, refused) =
        said(&["restore", text(&copy), "--data", text(&data), "--master-key-file", text(&key)]).await;
    assert!(!is_done && refused.contains("sealed under another master key"), "{refused}");
    let empty = tempfile::tempdir().unwrap();
    let (is_done, refused) = said(&["restore", text(&copy), "--data", text(empty.path())]).await;
    assert!(!is_done && refused.contains("the master key is missing"), "{refused}");
    assert_eq!(std::fs::read(&store).unwrap(), before, "nothing was replaced");
    let names = std::fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: Vec<String> = names.filter(|name| name.contains("restor") || name.contains("replaced")).collect();
    assert!(names.is_empty(), "{names:?}");
}

#[tokio::test]
async fn a_restore_says_that_the_admin_token_and_the_master_key_are_those_of_the_backup() {
    let (data, elsewhere) = (Arc::new(tempfile::tempdir().unwrap()), tempfile::tempdir().unwrap());
    let (backups, old_key) = (elsewhere.path().join("backups"), elsewhere.path().join("old-key"));
    let options = Options::flags(&["--backup-dir", text(&backups)]);
    let mut gateway = Gateway::start_in(data.clone(), options).await;
    gateway.send_many("e", "a.b", 5, |_| None).await;
    backed_up(&gateway, "one").await;
    std::fs::copy(data.path().join("master-key"), &old_key).unwrap();
    let restored =
        ["restore", text(&backups.join("one")), "--data", text(data.path()), "--master-key-file", text(&old_key)]
            .map(str::to_owned);
    let restored: Vec<&str> = restored.iter().map(String::as_str).collect();
    assert!(gateway.terminate().await.success());
    let (is_done, told) = said(&restored).await;
    assert!(is_done && !told.contains("Before the start"), "the token and the key are those of the backup: {told}");

    let mut gateway = gateway.restart().await;
    let renewed = gateway.client.post("/v1/admin-token", "").await.expect(201);
    let admin = Client::new(gateway.address, renewed["token"].as_str().unwrap());
    admin.post("/v1/master-key/rotate", "").await.expect(200);
    assert!(gateway.terminate().await.success());
    let (is_done, told) = said(&restored).await;
    assert!(is_done, "{told}");
    for words in ["is not valid: the store knows another", "--new-admin-token", "the start needs that file, too"] {
        assert!(told.contains(words), "{words}: {told}");
    }
    let output = CapturedOutput::default();
    let flags = ["--master-key-file", text(&old_key)];
    let options = Options { output: Some(output.clone()), ..Options::flags(&flags) };
    let mut gateway = Gateway::start_in(data.clone(), options).await;
    eventually("the start to say so", || async {
        if output.text().contains("start once with --new-admin-token") { Ok(()) } else { Err(output.text()) }
    })
    .await;
    gateway.client.get("/v1/tenants/default/events").await.expect(401);
    assert!(gateway.terminate().await.success());
    let gateway = Gateway::start_in(data, Options::flags(&[&flags[..], &["--new-admin-token"][..]].concat())).await;
    assert_eq!(gateway.list("/v1/tenants/default/events").await.len(), 5);
}

#[tokio::test]
async fn what_a_killed_restore_leaves_of_its_copy_is_removed_by_the_next_start_and_the_next_restore() {
    let (mut gateway, backups, _folder) = with_backups().await;
    gateway.send_many("e", "a.b", 5, |_| None).await;
    backed_up(&gateway, "one").await;
    assert!(gateway.terminate().await.success());
    let (data, copy) = (gateway.folder(), backups.join("one"));
    // As a kill leaves it while the copy is checked: a whole store, its log, and the mark to come.
    let left = [".restoring-a1B2c3.db", ".restoring-a1B2c3.db-wal", ".restoring-a1B2c3.db-shm", ".restoring-x9Y8z7"];
    let leave = || left.iter().for_each(|name| std::fs::write(data.join(name), "a customer's data").unwrap());
    let found = || left.iter().filter(|name| data.join(name).exists()).collect::<Vec<_>>();
    leave();
    let mut gateway = gateway.restart().await;
    assert!(found().is_empty(), "after a start: {:?}", found());
    // A restore that cannot get the lock leaves alone what may be another's.
    leave();
    let (is_done, refused) = said(&["restore", text(&copy), "--data", text(&data)]).await;
    assert!(!is_done && found().len() == left.len(), "{refused}");
    assert!(gateway.terminate().await.success());
    let (is_done, report) = said(&["restore", text(&copy), "--data", text(&data)]).await;
    assert!(is_done && found().is_empty(), "after a restore: {:?} {report}", found());
}

#[tokio::test]
async fn a_restore_that_was_interrupted_is_finished_before_anything_else_opens_the_store() {
    let (mut gateway, backups, _folder) = with_backups().await;
    gateway.send_many("e", "a.b", 5, |_| None).await;
    backed_up(&gateway, "one").await;
    assert!(gateway.terminate().await.success());
    // As a kill leaves it between the two renames.
    let data = gateway.folder();
    std::fs::write(data.join("restoring"), "").unwrap();
    std::fs::rename(data.join("posthaste.db"), data.join("aside")).unwrap();
    let output = gateway.start_second().await;
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && why.contains("was interrupted"), "{why}");
    let (is_done, report) = said(&["restore", text(&backups.join("one")), "--data", text(&data)]).await;
    assert!(is_done, "{report}");
    let gateway = gateway.restart().await;
    assert_eq!(gateway.list("/v1/tenants/default/events").await.len(), 5);
}

/// A user that a service may run as, and that owns nothing else.
const SERVICE: u32 = 65_534;

/// Everything in a folder that belongs to somebody else than the service.
fn not_the_services(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let file = path.symlink_metadata().unwrap();
        if file.is_dir() {
            found.extend(not_the_services(&path));
        }
        if (file.uid(), file.gid()) != (SERVICE, SERVICE) {
            found.push(path);
        }
    }
    found
}

#[tokio::test]
async fn what_root_backs_up_restores_and_rotates_stays_the_services_own() {
    if !rustix::process::geteuid().is_root() {
        println!("only root can run a gateway as another user");
        return;
    }
    let (data, elsewhere) = (Arc::new(tempfile::tempdir().unwrap()), tempfile::tempdir().unwrap());
    std::fs::set_permissions(elsewhere.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // The folder of the binary under test may be root's alone.
    let (program, built) = (elsewhere.path().join("posthaste"), env!("CARGO_BIN_EXE_posthaste"));
    std::fs::hard_link(built, &program).or_else(|_| std::fs::copy(built, &program).map(|_| ())).unwrap();
    let backups = elsewhere.path().join("backups");
    std::fs::create_dir(&backups).unwrap();
    for folder in [data.path(), &backups] {
        chown(folder, Some(SERVICE), Some(SERVICE)).unwrap();
    }
    let ids = [format!("--reuid={SERVICE}"), format!("--regid={SERVICE}")];
    let runner = ["setpriv", "--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"];
    let runner = runner.map(str::to_owned).into_iter().chain(ids).collect();
    let options = Options { program: Some(program), runner, ..Options::default() };
    let mut gateway = Gateway::start_in(data.clone(), options).await;
    let receiver = Receiver::start().await;
    gateway.create_endpoint(json!({"url": receiver.url()})).await;
    gateway.send_many("e", "a.b", 5, |_| None).await;
    receiver.wait_for(5).await;
    assert!(gateway.terminate().await.success());

    let (copy, data) = (backups.join("copy"), data.path());
    for command in [
        vec!["backup", text(&copy), "--data", text(data)],
        vec!["restore", text(&copy), "--data", text(data)],
        vec!["keys", "rotate", "--data", text(data)],
        vec!["check-store", "--data", text(data)],
        vec!["doctor", "--data", text(data), "--allow-egress", "127.0.0.0/8"],
    ] {
        let (is_done, told) = said(&command).await;
        assert!(is_done, "{command:?}: {told}");
    }
    assert_eq!((not_the_services(data), not_the_services(&backups)), (Vec::new(), Vec::new()));
    let gateway = gateway.restart().await;
    gateway.send(json!({"id": "after", "type": "a.b", "data": 1})).await;
    receiver.wait_for(6).await;
    assert_eq!(gateway.list("/v1/tenants/default/events").await.len(), 6);
}

#[tokio::test]
async fn a_backup_is_made_by_name_by_the_command_and_by_who_may() {
    let (gateway, backups, _folder) = with_backups().await;
    gateway.send_many("e", "a.b", 5, |_| None).await;
    let path = backups.join("by-path");
    for (args, name) in [(vec!["backup", "by-name"], "by-name"), (vec!["backup", text(&path)], "by-path")] {
        let output = to_gateway(&gateway, &args).output().await.unwrap();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(told.contains(&format!("to {}", text(&backups.join(name)))) && told.contains("5 events"), "{told}");
    }
    let output = to_gateway(&gateway, &["backup", "/elsewhere/x"]).output().await.unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    let output = to_gateway(&gateway, &["backup", "-o", "json"]).output().await.unwrap();
    let backup: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&backup["state"], &backup["counts"]["events"]), (&json!("finished"), &json!(5)));
    assert!(backup["name"].as_str().unwrap().starts_with("posthaste-"), "{backup}");

    let again = gateway.client.post_json("/v1/backups", &json!({"name": "by-name"})).await.expect(409);
    assert_eq!(again["code"], "wrong_state");
    let wrong = gateway.client.post_json("/v1/backups", &json!({"name": "../up"})).await.expect(422);
    assert_eq!(wrong["errors"][0]["pointer"], "/name", "{wrong}");
    gateway.client.get("/v1/backups/..").await.expect(404);
    let audit = gateway.client.get("/v1/audit?resource=by-name").await.expect(200);
    assert_eq!(audit["data"][0]["action"], "backup.started", "{audit}");
    let token = json!({"tenant": "default", "rights": ["manage", "read", "publish"]});
    let token = gateway.client.post_json("/v1/tokens", &token).await.expect(201);
    let tenant = Client::new(gateway.address, token["token"].as_str().unwrap());
    let refused = tenant.post_json("/v1/backups", &json!({})).await;
    assert!([403, 404].contains(&refused.status), "{refused:?}");
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_is_named_with_the_way_out() {
    let folder = tempfile::tempdir().unwrap();
    // Root is refused below a file, too.
    let (file, to) = (folder.path().join("file"), folder.path().join("file/backups"));
    std::fs::write(&file, "").unwrap();
    let mut gateway = Gateway::start_with(Options::flags(&["--backup-dir", text(&to)])).await;
    let refused = gateway.client.post_json("/v1/backups", &json!({"name": "x"})).await.expect(409);
    let detail = refused["detail"].as_str().unwrap();
    for words in ["wrong_state", text(&to), "ReadWritePaths=", "choose another --backup-dir"] {
        assert!(refused.to_string().contains(words), "{words}: {refused}");
    }
    let output = to_gateway(&gateway, &["backup", "x"]).output().await.unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(4) && words.contains(detail), "{words}");
    assert!(gateway.terminate().await.success());
    let (is_done, words) = said(&["backup", text(&to.join("x")), "--data", text(&gateway.folder())]).await;
    assert!(!is_done && words.contains(text(&to)) && words.contains("choose a folder"), "{words}");
}

#[tokio::test]
async fn a_gateway_that_cannot_make_backups_says_what_to_do_instead() {
    let gateway = Gateway::start().await;
    let refused = gateway.client.post_json("/v1/backups", &json!({})).await.expect(409);
    assert!(refused["detail"].as_str().unwrap().contains("--backup-dir"), "{refused}");
    gateway.client.get("/v1/backups").await.expect(409);
    crate::support::on_postgres(async {
        let folder = tempfile::tempdir().unwrap();
        let gateway = Gateway::start_with(Options::flags(&["--backup-dir", text(folder.path())])).await;
        let refused = gateway.client.post_json("/v1/backups", &json!({})).await.expect(409);
        let words = refused["detail"].as_str().unwrap();
        assert!(words.contains("pg_dump") && words.contains("docs/backup.md"), "{refused}");
        let output = to_gateway(&gateway, &["backup", "x"]).output().await.unwrap();
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(4) && words.contains("pg_dump"), "{words}");
        let database = gateway.database().unwrap().url().to_owned();
        let (is_done, words) = said(&["restore", "x", "--database-url", &database]).await;
        assert!(!is_done && words.contains("pg_dump"), "{words}");
    })
    .await;
}
