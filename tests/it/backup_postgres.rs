//! PostgreSQL is backed up with its own tools, as docs/backup.md says: with
//! `pg_dump`, and with a base backup and the archive of its log.

use serde_json::json;

use crate::backup::{patient, said};
use crate::servers::postgres::{Database, Server, run_program};
use crate::support::{Gateway, Options, Receiver, Reply, eventually, unlimited};

/// A gateway on this database, in a folder of its own or in that of another.
async fn on(database: &Database, folder: std::sync::Arc<tempfile::TempDir>) -> Gateway {
    Gateway::start_in(folder, Options::flags(&["--database-url", database.url(), "--lease", "2s"])).await
}

/// Delivers some, and lets some wait.
async fn some_delivered_some_waiting(gateway: &Gateway, receiver: &Receiver) {
    let settings = json!({"url": receiver.url(), "rate": unlimited(), "retry": patient(),
                          "breaker": {"enabled": false}});
    gateway.create_endpoint(settings).await;
    gateway.send_many("done", "good", 40, |n| Some(format!("k{}", n % 4))).await;
    receiver.wait_for(40).await;
    eventually("those to be settled", || async {
        let waiting = gateway.list("/v1/tenants/default/deliveries?state=waiting").await;
        if waiting.is_empty() { Ok(()) } else { Err(format!("{} wait", waiting.len())) }
    })
    .await;
    gateway.send_many("open", "slow", 10, |_| None).await;
    receiver.wait_for(50).await;
}

fn failing_for_slow_events() -> impl FnMut(&crate::support::ReceivedRequest) -> Reply + Send + 'static {
    |seen| Reply::Status(if seen.header("x-event-type") == "slow" { 503 } else { 200 })
}

/// What has to hold of a gateway on a restored database.
async fn goes_on_from_there(restored: &Database, folder: std::sync::Arc<tempfile::TempDir>, receiver: &Receiver) {
    let key = folder.path().join("master-key");
    let location = ["--database-url", restored.url(), "--master-key-file", key.to_str().unwrap()];
    let prepared = eventually("the leases of the nodes of then to end", || async {
        let (is_done, words) = said(&[&["restore", "--prepare-database"], &location[..]].concat()).await;
        if is_done { Ok(words) } else { Err(words) }
    })
    .await;
    assert!(prepared.contains("10 deliveries wait in it"), "{prepared}");
    let (is_sound, found) = said(&[&["check-store"], &location[..]].concat()).await;
    assert!(is_sound, "{found}");
    let before = receiver.times_by_id();
    receiver.answer_with(|_| Reply::Status(200));
    let gateway = on(restored, folder).await;
    eventually("what waited to be delivered", || async {
        let times = receiver.times_by_id();
        let missing = (0..10).filter(|n| times[&format!("open-{n}")] <= before[&format!("open-{n}")]).count();
        if missing == 0 { Ok(()) } else { Err(format!("{missing} are missing")) }
    })
    .await;
    let times = receiver.times_by_id();
    assert!((0..40).all(|n| times[&format!("done-{n}")] == 1), "delivered before the backup, and again: {times:?}");
    let places = |id: &str| {
        let seen = receiver.seen();
        seen.iter().find(|seen| seen.id() == id).map(|seen| seen.header("x-seq").parse::<u64>().unwrap())
    };
    gateway.send(json!({"id": "fresh", "type": "good", "key": "k0", "data": 1})).await;
    let fresh = eventually("the new event", || async { places("fresh").ok_or_else(String::new) }).await;
    assert!(fresh > places("lost-0").unwrap(), "its number was not seen before: {fresh}");
}

#[tokio::test]
async fn a_dump_is_restored_into_another_server_and_goes_on_from_there() {
    let (first, second) = tokio::join!(Server::start(&[]), Server::start(&[]));
    let (database, restored) = (first.database().await, second.database().await);
    let receiver = Receiver::answering(failing_for_slow_events()).await;
    let gateway = on(&database, std::sync::Arc::new(tempfile::tempdir().unwrap())).await;
    some_delivered_some_waiting(&gateway, &receiver).await;
    let folder = tempfile::tempdir().unwrap();
    // The servers run as another user, and so do their programs.
    let dump = run_program("pg_dump", &["--format=custom", "--schema=posthaste", database.url()]).await;
    let file = folder.path().join("posthaste.dump");
    std::fs::write(&file, dump).unwrap();
    open_to_all(folder.path());
    gateway.send(json!({"id": "lost-0", "type": "good", "key": "k0", "data": 1})).await;
    gateway.wait_for_state("lost-0", "delivered").await;
    let data = gateway.shared_folder();
    drop(gateway);
    first.kill().await;
    run_program("pg_restore", &["--no-owner", "--exit-on-error", "-d", restored.url(), file.to_str().unwrap()]).await;
    goes_on_from_there(&restored, data, &receiver).await;
}

#[tokio::test]
async fn a_base_backup_and_the_archived_log_bring_a_point_in_time_back() {
    let archive = tempfile::tempdir().unwrap();
    open_to_all(archive.path());
    let server = Server::start_archiving(archive.path()).await;
    let database = server.database().await;
    let receiver = Receiver::answering(failing_for_slow_events()).await;
    let gateway = on(&database, std::sync::Arc::new(tempfile::tempdir().unwrap())).await;
    let base = server.base_backup().await;
    some_delivered_some_waiting(&gateway, &receiver).await;
    database.execute("SELECT pg_create_restore_point('before_the_mistake')").await;
    gateway.send(json!({"id": "lost-0", "type": "good", "key": "k0", "data": 1})).await;
    gateway.wait_for_state("lost-0", "delivered").await;
    let needed = database.rows("SELECT pg_walfile_name(pg_switch_wal())").await[0][0].clone().unwrap();
    eventually("the log to be archived", || async {
        let names = std::fs::read_dir(archive.path()).unwrap().flatten();
        let mut names = names.filter_map(|file| file.file_name().into_string().ok());
        if names.any(|name| name.len() == needed.len() && name >= needed) { Ok(()) } else { Err(needed.clone()) }
    })
    .await;
    let (data, name) = (gateway.shared_folder(), database.name().to_owned());
    drop(gateway);
    server.kill().await;
    let restored = server.restored_to("before_the_mistake", base, archive.path()).await;
    goes_on_from_there(&restored.existing(&name), data, &receiver).await;
}

/// Servers run as a user of their own where tests run as root.
fn open_to_all(folder: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777)).unwrap();
}
