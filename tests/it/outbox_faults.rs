//! Exactly one event per committed row, whatever dies in between: the gateway,
//! the relay, the database, the network.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::servers::pgbouncer::PgBouncer;
use crate::servers::postgres::Server;
use crate::servers::proxy::{NetworkState, Proxy};
use crate::support::outbox::{BusyProducer, Producer, RelayChild, event_ids, relaying_gateway, sorted};
use crate::support::{Gateway, Options, Receiver};

/// Waits until everything is relayed, and checks that rows and events are the
/// same.
async fn expect_exactly_once(producer: &Producer, gateway: &Gateway, committed: &[String]) {
    producer.wait_for_rows(0).await;
    let events = sorted(event_ids(gateway, "default").await);
    assert!(committed.len() > 50, "only {} rows were committed", committed.len());
    assert_eq!(events.len(), committed.len(), "as many events as committed rows");
    assert_eq!(events, committed);
    let told: serde_json::Value =
        serde_json::from_str(&producer.outbox_says(&["status", "-o", "json"]).await).expect("a status");
    assert_eq!(told["rows_relayed"], committed.len(), "what was killed has counted each of its rows: {told}");
}

/// Waits for a moment that no two rounds share.
async fn random_moment() {
    tokio::time::sleep(Duration::from_millis(rand::random_range(100..700))).await;
}

#[tokio::test]
async fn a_gateway_that_is_killed_again_and_again_accepts_each_row_once() {
    let producer = Producer::new().await;
    let mut gateway = relaying_gateway(&producer, &[]).await;
    let busy = BusyProducer::start(&producer).await;
    for _ in 0..6 {
        random_moment().await;
        gateway = gateway.killed_and_restarted().await;
    }
    let committed = sorted(busy.stop(&producer).await);
    expect_exactly_once(&producer, &gateway, &committed).await;
}

#[tokio::test]
async fn a_relay_that_is_killed_again_and_again_hands_each_row_in_once_and_in_order() {
    let producer = Producer::new().await;
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    gateway.create_endpoint(json!({"url": receiver.url()})).await;
    let mut relays =
        [RelayChild::start(producer.url(), &gateway, &[]), RelayChild::start(producer.url(), &gateway, &[])];
    let busy = BusyProducer::start(&producer).await;
    for n in 0..8 {
        random_moment().await;
        let next = RelayChild::start(producer.url(), &gateway, &[]);
        std::mem::replace(&mut relays[n % 2], next).kill().await;
    }
    let writers = busy.writers();
    let committed = sorted(busy.stop(&producer).await);
    expect_exactly_once(&producer, &gateway, &committed).await;
    // Each writer's keyed events come in the order in which it wrote them.
    let seen = receiver.wait_for(committed.len()).await;
    for writer in writers {
        let key = format!("w{writer}");
        let events = seen.iter().map(|request| request.json()).filter(|body| body["key"] == key);
        let numbers: Vec<(u64, u64)> =
            events.map(|body| (body["data"]["n"].as_u64().unwrap(), body["data"]["part"].as_u64().unwrap())).collect();
        assert!(numbers.is_sorted(), "{key}: {numbers:?}");
        assert!(numbers.len() > 10, "{key}: {numbers:?}");
    }
}

#[tokio::test]
async fn a_database_that_is_killed_and_restarted_loses_and_doubles_nothing() {
    let server = Server::start(&[]).await;
    let producer = Producer::on(&server).await;
    let gateway = relaying_gateway(&producer, &[]).await;
    let busy = BusyProducer::start(&producer).await;
    for round in 0..4 {
        random_moment().await;
        if round % 2 == 0 {
            server.kill().await
        } else {
            server.stop().await
        }
        server.start_again().await;
    }
    random_moment().await;
    let committed = sorted(busy.stop(&producer).await);
    expect_exactly_once(&producer, &gateway, &committed).await;
}

#[tokio::test]
async fn a_relay_behind_a_dead_network_is_replaced() {
    let producer = Producer::new().await;
    let proxy = Proxy::start(Server::shared(&[]).await.address()).await;
    let gateway = Gateway::start().await;
    let cut_off = RelayChild::start(&producer.database.url_through(proxy.address), &gateway, &[]);
    producer.send("a.b", None, "1").await;
    producer.wait_for_rows(0).await;
    let standby = RelayChild::start(producer.url(), &gateway, &[]);
    // Its session lives on at the server, and nothing of it arrives any more.
    proxy.set(NetworkState::Silent);
    let cut_at = Instant::now();
    producer.send("a.b", Some("k"), "2").await;
    producer.wait_for_rows(0).await;
    assert!(cut_at.elapsed() < Duration::from_secs(25), "it took {:?}", cut_at.elapsed());
    // What it claimed meanwhile it may hand in again: the event is known.
    proxy.set(NetworkState::Working);
    producer.send("a.b", Some("k"), "3").await;
    producer.wait_for_rows(0).await;
    assert_eq!(event_ids(&gateway, "default").await.len(), 3);
    drop((cut_off, standby));
}

#[tokio::test]
async fn an_outbox_is_relayed_through_a_pooler_that_lends_connections() {
    let server = Server::shared(&[]).await;
    let producer = Producer::new().await;
    let pooler = PgBouncer::start(server, &producer.database, 3).await;
    let through = producer.database.url_through(pooler.address);
    let gateway = Gateway::start_with(Options::flags(&["--outbox", &through])).await;
    let _standby = RelayChild::start(&through, &gateway, &[]);
    let sql = "SELECT posthaste_outbox.send('a.b', to_json(n), key => 'k' || n % 7) FROM generate_series(1, 2000) n";
    producer.connect().await.execute(sql, &[]).await.unwrap();
    producer.wait_for_rows(0).await;
    assert_eq!(event_ids(&gateway, "default").await.len(), 2_000);
}

/// Measures how many rows are relayed per second, and what a row costs the
/// producer's transaction. Run by command: see docs/producing.md.
#[tokio::test]
#[ignore = "it measures for minutes; docs/producing.md says how to run it"]
async fn measure_the_outbox() {
    let server = Server::start(&["shared_buffers=256MB"]).await;
    let producer = Producer::on(&server).await;
    let orders = "CREATE TABLE public.orders (id bigserial PRIMARY KEY, body text);
                  GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO PUBLIC";
    producer.database.execute(orders).await;
    let body = format!("{{\"order\": \"{}\"}}", "x".repeat(500));
    measure_transactions(&producer, &body).await;
    for (name, key, tenants) in
        [("no key", "NULL", 1), ("1,000 keys", "'k' || n % 1000", 1), ("one key", "'k'", 1), ("20 tenants", "NULL", 20)]
    {
        for is_over_http in [false, true] {
            let gateway = Gateway::start().await;
            for n in 0..tenants {
                let path = format!("/v1/tenants/t{n}");
                gateway.client.send("PUT", &path, &[], r#"{"name":"T"}"#).await.unwrap().expect(201);
            }
            let sql = format!(
                "SELECT posthaste_outbox.send('order.paid', $1::text::json, key => {key}, tenant => 't' || n % {tenants})
                 FROM generate_series(1, 20000) n"
            );
            let client = producer.connect().await;
            client.execute(&sql, &[&body]).await.unwrap();
            let (_gateway, _relay) = if is_over_http {
                let relay = RelayChild::start(producer.url(), &gateway, &[]);
                (gateway, Some(relay))
            } else {
                (gateway.restart_with(Options::flags(&["--outbox", producer.url()])).await, None)
            };
            let rows = || async {
                client.query_one("SELECT count(*) FROM posthaste_outbox.outbox", &[]).await.unwrap().get::<_, i64>(0)
            };
            let (mut began, mut from) = (Instant::now(), 20_000);
            // From the first claim that was settled, without the start of the process.
            while from == 20_000 {
                (began, from) = (Instant::now(), rows().await);
            }
            while rows().await > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let how = if is_over_http { "outbox relay" } else { "serve --outbox" };
            println!("{how}, {name}: {:.0} rows/s", from as f64 / began.elapsed().as_secs_f64());
        }
    }
}

/// Measures a transaction that inserts an order, alone and with what else it may do, as
/// the table of docs/producing.md has it: eight producers at once, in turns of a second.
async fn measure_transactions(producer: &Producer, body: &str) {
    const TURNS: usize = 5;
    let row = "SELECT posthaste_outbox.send('order.paid', $1::text::json, key => 'order_' || $2::text";
    let besides = [
        ("nothing else", None),
        ("a second order", Some("INSERT INTO public.orders (body) SELECT $1::text WHERE $2::text <> ''".to_owned())),
        ("send with a key", Some(format!("{row})"))),
        ("send with lock_key", Some(format!("{row}, lock_key => true)"))),
    ];
    for turn in 1..=TURNS {
        let mut alone = 0;
        for (name, statement) in &besides {
            let count = count_transactions(producer, body, statement.as_deref()).await;
            if statement.is_none() {
                alone = count;
            }
            println!("turn {turn}, {name}: {count} transactions, {:.2} times as long", alone as f64 / count as f64);
        }
        producer.database.execute("TRUNCATE posthaste_outbox.outbox, public.orders").await;
    }
}

/// Returns how many transactions eight producers commit in a second.
async fn count_transactions(producer: &Producer, body: &str, statement: Option<&str>) -> usize {
    const PRODUCERS: usize = 8;
    let order = "INSERT INTO public.orders (body) VALUES ($1)";
    let produce = |name: usize| async move {
        let (client, name) = (producer.connect().await, name.to_string());
        let order = client.prepare(order).await.unwrap();
        let statement = match statement {
            Some(statement) => Some(client.prepare(statement).await.unwrap()),
            None => None,
        };
        let (began, mut count) = (Instant::now(), 0);
        while began.elapsed() < Duration::from_secs(1) {
            client.batch_execute("BEGIN").await.unwrap();
            client.execute(&order, &[&body]).await.unwrap();
            if let Some(statement) = &statement {
                client.execute(statement, &[&body, &name]).await.unwrap();
            }
            client.batch_execute("COMMIT").await.unwrap();
            count += 1;
        }
        count
    };
    futures_util::future::join_all((0..PRODUCERS).map(produce)).await.into_iter().sum()
}
