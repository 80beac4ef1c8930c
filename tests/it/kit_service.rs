//! The receiver kit's example service behind a real gateway: payments are booked once and
//! in order, though answers get lost and events are replayed.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use rusqlite::Connection;
use serde_json::json;

use crate::listen::Listener;
use crate::support::{Gateway, eager_retry};

#[path = "../../receiver/examples/service.rs"]
#[allow(dead_code, reason = "its main is for people")]
mod service;

/// Starts the example on a free port; its address, and what it has counted.
async fn start(database: &Path, secret: &str) -> (SocketAddr, posthaste_receiver::Receiver) {
    let database = Connection::open(database).expect("a database");
    database.pragma_update(None, "journal_mode", "wal").expect("a mode");
    let (router, receiver) = service::service(database, &[secret]).expect("a service");
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let background = receiver.clone();
    tokio::spawn(async move { background.run().await });
    tokio::spawn(async move { axum::serve(listener, router).await });
    (address, receiver)
}

/// The amounts that were booked for an account, in their order.
fn bookings(database: &Path, account: &str) -> Vec<i64> {
    let database = Connection::open(database).expect("a database");
    let mut rows = database.prepare("SELECT cents FROM booking WHERE account = ?1 ORDER BY rowid").expect("bookings");
    rows.query_map([account], |row| row.get(0)).expect("rows").collect::<Result<_, _>>().expect("numbers")
}

#[tokio::test]
async fn payments_are_booked_once_and_in_order_though_answers_get_lost() {
    let gateway = Gateway::start().await;
    let endpoint = gateway.create_endpoint(json!({"url": "http://127.0.0.1:1/", "retry": eager_retry(20)})).await;
    let secret = endpoint["secret"].as_str().expect("a secret");
    let folder = tempfile::tempdir().expect("a folder");
    let database = folder.path().join("bookings.db");
    let (address, kit) = start(&database, secret).await;

    // In between: every request reaches the service, and every other answer gets lost.
    let hook = format!("http://{address}/hook");
    let between = Listener::start(&["--quiet", "--forward", &hook, "--respond", "drop,pass,repeat"]).await;
    let path = format!("/v1/tenants/default/endpoints/{}", endpoint["id"].as_str().expect("an id"));
    let patch = json!({"url": between.url}).to_string();
    gateway.client.send("PATCH", &path, &[], patch).await.expect("an answer").expect(200);

    for n in 1..=10 {
        for account in ["alice", "bob"] {
            let event = json!({"id": format!("{account}-{n}"), "type": "payment.received", "key": account, "data": {"cents": n}});
            gateway.send(event).await;
        }
    }
    for account in ["alice", "bob"] {
        gateway.wait_for_state(&format!("{account}-10"), "delivered").await;
    }
    let replayed = gateway.wait_for_state("alice-3", "delivered").await;
    gateway.post_to_delivery(&replayed, "replay").await.expect(202);
    gateway.wait_for_state("alice-3", "delivered").await;

    let counted = kit.counters();
    assert_eq!((counted.applied, counted.duplicates), (20, 21), "each answer got lost once: {counted:?}");
    for account in ["alice", "bob"] {
        assert_eq!(bookings(&database, account), (1..=10).collect::<Vec<_>>(), "{account}: {counted:?}");
    }
    assert!(between.stop().await.contains("20 distinct events, 20 applied, 20 repeats, 1 duplicate"));
}

/// What follows the comment at the top of a program.
fn code(program: &str) -> &str {
    let at = program.find("\nuse ").expect("a program that uses something");
    program[at..].trim()
}

#[test]
fn the_page_for_rust_has_this_service_and_the_versions_that_it_is_built_with() {
    let page = include_str!("../../docs/rust.md");
    let service = code(include_str!("../../receiver/examples/service.rs"));
    assert!(page.contains(service), "copy receiver/examples/service.rs into docs/rust.md");
    let manifest = include_str!("../../receiver/Cargo.toml");
    let block = page.split("```toml").find(|block| block.contains("[package]")).expect("a whole Cargo.toml");
    let (block, _) = block.split_once("```").expect("its end");
    for (name, version) in [("axum", "0.8"), ("serde", "1"), ("tokio", "1")] {
        assert!(block.contains(&format!("{name} = {{ version = \"{version}\"")), "{name} in {block}");
        let used = format!("\n{name} = {{ version = \"{version}");
        assert!(manifest.contains(&used), "{name} {version} is not what the kit is built with");
    }
    assert!(block.contains("features = [\"axum\", \"sqlite\"]"), "{block}");
}
