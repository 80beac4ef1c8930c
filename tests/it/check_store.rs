//! `posthaste check-store` finds each kind of broken invariant that is planted in a
//! store, and nothing in one that is in order.

use std::path::Path;

use serde_json::{Value, json};

use crate::cli::posthaste;
use crate::servers::postgres::Database;
use crate::support::{Gateway, Receiver, Reply, eager_retry, eventually, on_postgres, unlimited};

/// Runs the command; returns its exit code and what it printed as JSON.
async fn checked(args: &[&str]) -> (Option<i32>, Value) {
    let output = posthaste(&[&["check-store", "-o", "json"], args].concat()).output().await.expect("it runs");
    let printed = serde_json::from_slice(&output.stdout);
    (output.status.code(), printed.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr))))
}

/// The names of the parts that are broken.
fn broken(check: &Value) -> Vec<&str> {
    let parts = check["parts"].as_array().expect("parts").iter();
    parts.filter(|part| part["result"] == "broken").filter_map(|part| part["name"].as_str()).collect()
}

/// A gateway whose store has a bit of everything: lanes with a dead head, deliveries
/// in every state, attempts, a backfill job, an expunged event.
async fn with_a_bit_of_everything() -> (Gateway, Receiver) {
    let gateway = Gateway::start().await;
    let receiver = Receiver::answering(|seen| match seen.header("x-event-type") {
        "bad" => Reply::Status(400),
        "slow" => Reply::Status(503),
        _ => Reply::Status(200),
    })
    .await;
    let retry = json!({"schedule": ["10ms", "1h"], "max_attempts": 9});
    let settings = json!({"url": receiver.url(), "rate": unlimited(), "retry": retry, "breaker": {"enabled": false}});
    gateway.create_endpoint(settings).await;
    for (n, kind) in ["good", "bad", "good", "good", "slow", "good"].iter().enumerate() {
        gateway.send(json!({"id": format!("lane-{n}"), "type": kind, "key": format!("k{}", n / 3), "data": n})).await;
        gateway.send(json!({"id": format!("free-{n}"), "type": kind, "data": n})).await;
    }
    for (event, state) in [("lane-1", "dead"), ("free-1", "dead"), ("free-5", "delivered"), ("lane-3", "delivered")] {
        gateway.wait_for_state(event, state).await;
    }
    eventually("the slow one to be tried twice", || async {
        let delivery = gateway.delivery_of("lane-4").await;
        if delivery["attempts"] == 2 { Ok(()) } else { Err(delivery.to_string()) }
    })
    .await;
    let late = json!({"url": receiver.url(), "event_types": ["good"], "retry": eager_retry(2)});
    let late = gateway.create_endpoint(late).await;
    let job = json!({"kind": "backfill", "filter": {"endpoints": [late["id"]], "all": true}});
    let job = gateway.client.post_json("/v1/tenants/default/jobs", &job).await.expect(202);
    let path = format!("/v1/tenants/default/jobs/{}", job["id"].as_str().expect("an id"));
    eventually("the backfill to end", || async {
        let job = gateway.client.get(&path).await.expect(200);
        if job["state"] == "finished" { Ok(()) } else { Err(job.to_string()) }
    })
    .await;
    (gateway, receiver)
}

/// What is planted in an embedded store, and the part that shows it.
const PLANTED: &[(&str, &str)] = &[
    ("UPDATE events SET data = x'7b7d' WHERE id = 'free-0'", "checksums of events"),
    ("UPDATE deliveries SET format = 3 - format, created_at = created_at + 1 WHERE no = 1", "checksums of deliveries"),
    ("UPDATE notes SET value = value || ' ' WHERE name = 'clock'", "notes"),
    ("UPDATE notes SET value = 'x', checksum = NULL WHERE name = 'master_key_check'", "master key"),
    ("UPDATE endpoints SET settings = x'00' WHERE no = 1", "master key"),
    ("UPDATE secrets SET endpoint = 4711", "tenants and endpoints"),
    ("DELETE FROM events WHERE id = 'free-4'", "deliveries and events"),
    (
        "UPDATE deliveries SET event = (SELECT no FROM events WHERE id = 'free-0') WHERE state = 0",
        "deliveries and events",
    ),
    ("DELETE FROM backfilled", "deliveries and events"),
    ("UPDATE events SET first_delivery = 1 WHERE id = 'lane-5'", "deliveries and events"),
    ("UPDATE deliveries SET cause = NULL WHERE state = 2", "states"),
    ("UPDATE deliveries SET behind = 1 WHERE state = 0 AND lane IS NULL", "states"),
    ("UPDATE lanes SET head = NULL WHERE lane = 'k0'", "lanes"),
    ("UPDATE lanes SET last_seq = 0", "lanes"),
    ("UPDATE deliveries SET behind = 0 WHERE state = 0 AND lane = 'k0'", "lanes"),
    ("DELETE FROM lanes WHERE lane = 'k1'", "lanes"),
    ("UPDATE deliveries SET passed = 0 WHERE state = 1 AND lane IS NOT NULL", "lanes"),
    ("UPDATE deliveries SET state = 1, passed = 1 WHERE state = 2", "dead letters"),
    ("UPDATE dead_letters SET cause = cause + 1", "dead letters"),
    ("UPDATE dead_letter_counts SET count = count + 1", "counts of dead letters"),
    ("UPDATE stored_bytes SET bytes = bytes + 1", "stored bytes"),
    ("UPDATE deliveries SET attempts = 0 WHERE state = 2", "attempts"),
    ("INSERT INTO attempts (no, record) VALUES (99 << 20 | 1, '{}')", "attempts"),
    ("DELETE FROM jobs", "jobs"),
];

fn store_in(from: &Path) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for file in ["posthaste.db", "master-key"] {
        std::fs::copy(from.join(file), folder.path().join(file)).expect("a copy");
    }
    folder
}

#[tokio::test]
async fn each_broken_invariant_of_an_embedded_store_is_found() {
    let (mut gateway, _receiver) = with_a_bit_of_everything().await;
    assert!(gateway.terminate().await.success());
    let data = gateway.folder();
    let (code, check) = checked(&["--data", data.to_str().unwrap()]).await;
    assert_eq!((code, broken(&check)), (Some(0), vec![]), "{check:#}");
    for (sql, part) in PLANTED {
        let folder = store_in(&data);
        let db = rusqlite::Connection::open(folder.path().join("posthaste.db")).unwrap();
        let changed = db.execute(sql, []).unwrap_or_else(|problem| panic!("{sql}: {problem}"));
        assert!(changed > 0, "{sql} changes nothing");
        drop(db);
        let (code, check) = checked(&["--data", folder.path().to_str().unwrap()]).await;
        assert_eq!(code, Some(1), "{sql}: {check:#}");
        assert!(broken(&check).contains(part), "{sql} breaks {:?}", broken(&check));
    }
    // An index that has another row than its table, and a page of noise.
    let folder = store_in(&data);
    let path = folder.path().join("posthaste.db");
    let db = rusqlite::Connection::open(&path).unwrap();
    let root: u64 = db
        .query_row("SELECT rootpage FROM sqlite_schema WHERE name = 'deliveries_by_tenant'", [], |row| {
            row.get::<_, i64>(0)
        })
        .unwrap()
        .cast_unsigned();
    drop(db);
    let mut bytes = std::fs::read(&path).unwrap();
    let page = (root as usize - 1) * 4_096;
    bytes[page + 4_000..page + 4_096].fill(0x55);
    std::fs::write(&path, bytes).unwrap();
    let (code, check) = checked(&["--data", folder.path().to_str().unwrap()]).await;
    assert!(code == Some(1) && broken(&check).contains(&"pages and indexes"), "{check:#}");
}

/// The same in a database.
const PLANTED_IN_DATABASE: &[(&str, &str)] = &[
    ("UPDATE posthaste.events SET data = '\\x7b7d' WHERE id = 'free-0'", "checksums of events"),
    ("UPDATE posthaste.endpoints SET settings = '\\x00'", "master key"),
    ("UPDATE posthaste.secrets SET endpoint = 4711", "tenants and endpoints"),
    ("DELETE FROM posthaste.events WHERE id = 'free-4'", "queue and events"),
    (
        "INSERT INTO posthaste.queue (no, tenant, endpoint, shard, event, created_at, format, due_at, behind, accepting_node)
      SELECT no, tenant, endpoint, shard, event, created_at, format, due_at, false, 0 FROM posthaste.dead LIMIT 1",
        "queue and events",
    ),
    ("UPDATE posthaste.queue SET shard = (shard + 1) % 256", "queue and events"),
    ("UPDATE posthaste.lanes SET head = NULL WHERE lane = 'k0'", "lanes"),
    ("UPDATE posthaste.lanes SET last_seq = 0", "lanes"),
    ("UPDATE posthaste.queue SET behind = false WHERE lane = 'k0'", "lanes"),
    ("DELETE FROM posthaste.lanes WHERE lane = 'k1'", "lanes"),
    (
        "UPDATE posthaste.dead_letter_counts SET count = count + 1;
      UPDATE posthaste.dead_letter_count_changes SET count = count + 1",
        "counts of dead letters",
    ),
    ("UPDATE posthaste.queue SET attempts = 0", "attempts"),
    ("DELETE FROM posthaste.jobs WHERE true", "jobs"),
];

#[tokio::test]
async fn each_broken_invariant_of_a_shared_store_is_found() {
    on_postgres(async {
        let (mut gateway, _receiver) = with_a_bit_of_everything().await;
        let database = gateway.database().unwrap();
        database.execute("CREATE EXTENSION amcheck").await;
        // The role of the nodes may not run the extension's functions until it is let.
        database.execute("GRANT EXECUTE ON FUNCTION bt_index_check(regclass, boolean) TO PUBLIC").await;
        let (url, key) = (database.url().to_owned(), gateway.folder().join("master-key"));
        let (code, check) = checked(&["--database-url", &url, "--master-key-file", key.to_str().unwrap()]).await;
        let tables = check["parts"].as_array().unwrap().iter().find(|part| part["name"] == "tables").unwrap();
        assert_eq!((code, &tables["result"]), (Some(0), &json!("not_checked")), "{tables}");
        assert!(tables["note"].as_str().unwrap().contains("GRANT EXECUTE ON FUNCTION"), "{tables}");
        let verify = "verify_heapam(regclass, boolean, boolean, text, bigint, bigint)";
        database.execute(&format!("GRANT EXECUTE ON FUNCTION {verify} TO PUBLIC")).await;
        let args = ["--database-url", &url, "--master-key-file", key.to_str().unwrap()];
        // Nodes may go on meanwhile.
        let (code, check) = checked(&args).await;
        assert_eq!((code, broken(&check)), (Some(0), vec![]), "{check:#}");
        assert!(check["parts"].as_array().unwrap().iter().all(|part| part["result"] == "ok"), "{check:#}");
        assert!(gateway.terminate().await.success());
        let database = gateway.database().unwrap();
        for (sql, part) in PLANTED_IN_DATABASE {
            let undo = TableCopies::of(database, sql).await;
            database.execute(sql).await;
            let (code, check) = checked(&args).await;
            assert_eq!(code, Some(1), "{sql}: {check:#}");
            assert!(broken(&check).contains(part), "{sql} breaks {:?}", broken(&check));
            undo.put_back(database).await;
        }
        // A page whose rows are older than its table may have is as good as a damaged one.
        let frozen = "SELECT relfrozenxid::text FROM pg_class WHERE oid = 'posthaste.endpoints'::regclass";
        let before = database.rows(frozen).await[0][0].clone().unwrap();
        let set =
            |xid: &str| format!("UPDATE pg_class SET relfrozenxid = {xid} WHERE oid = 'posthaste.endpoints'::regclass");
        database.execute(&set("pg_current_xact_id()::xid")).await;
        let (code, check) = checked(&args).await;
        assert!(code == Some(1) && broken(&check).contains(&"tables"), "{check:#}");
        database.execute(&set(&format!("'{before}'"))).await;
        let (code, check) = checked(&args).await;
        assert_eq!(code, Some(0), "everything was undone: {check:#}");
    })
    .await;
}

/// Copies of the tables that a statement changes.
struct TableCopies(Vec<&'static str>);

const CHANGED: &[&str] =
    &["events", "endpoints", "secrets", "queue", "lanes", "dead_letter_counts", "dead_letter_count_changes", "jobs"];

impl TableCopies {
    async fn of(database: &Database, sql: &str) -> Self {
        let changes = |table: &&&str| {
            ["UPDATE", "INTO", "DELETE FROM"].iter().any(|verb| sql.contains(&format!("{verb} posthaste.{table} ")))
        };
        let tables: Vec<&str> = CHANGED.iter().filter(changes).copied().collect();
        assert!(!tables.is_empty(), "{sql} changes no table that is copied");
        for table in &tables {
            database.execute(&format!("CREATE TABLE public.copy_of_{table} AS TABLE posthaste.{table}")).await;
        }
        Self(tables)
    }

    async fn put_back(self, database: &Database) {
        for table in self.0 {
            database
                .execute(&format!(
                    "DELETE FROM posthaste.{table};
                     INSERT INTO posthaste.{table} OVERRIDING SYSTEM VALUE SELECT * FROM public.copy_of_{table};
                     DROP TABLE public.copy_of_{table}"
                ))
                .await;
        }
    }
}
