//! The outbox: what a producer commits is handed in once, whole and in order,
//! and what cannot be accepted stops nothing but its key.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use posthaste::lifecycle::outbox::relay::OutboxRelay;
use posthaste::lifecycle::outbox::{EventRoute, EventSink, SinkResponse};
use posthaste::metrics::OutboxFigures;
use posthaste::model::id::TenantId;
use posthaste::store::outbox::OutboxDatabase;
use posthaste::store::outbox::claim::OutboxClaim;
use posthaste::store::outbox::install::{self, OutboxRoles, STEPS};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::cli::cli_output;
use crate::servers::postgres::Server;
use crate::support::outbox::{
    Producer, RelayChild, connect, event_ids, posthaste_outbox, relaying_gateway, said, send, sorted,
};
use crate::support::{Client, Gateway, Options, Receiver, eventually, path_of};

#[tokio::test]
async fn installing_twice_changes_nothing_and_the_sql_can_be_read_first() {
    let database = Server::shared(&[]).await.database().await;
    let printed = posthaste_outbox(&["install", "--print"], "").await;
    let sql = String::from_utf8(printed.stdout).unwrap();
    assert!(sql.contains("CREATE SCHEMA posthaste_outbox") && sql.contains("FUNCTION posthaste_outbox.send"), "{sql}");
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'posthaste_outbox'";
    let whole = posthaste_outbox(&["install", "--print"], database.url()).await;
    assert_eq!(String::from_utf8(whole.stdout).unwrap(), sql, "nothing is there yet");
    assert_eq!(database.number(schemas).await, 0, "printing runs nothing");

    // What is printed is what is run.
    connect(database.url()).await.batch_execute(&sql).await.unwrap();
    let producer = Producer { database };
    let id = producer.send("a.b", None, "1").await;
    let before = producer.database.rows("SELECT install_id FROM posthaste_outbox.installation").await;
    let again = producer.outbox_says(&["install"]).await;
    assert!(again.contains("The outbox was there already") && again.contains("GRANT EXECUTE"), "{again}");
    assert_eq!(producer.database.rows("SELECT install_id FROM posthaste_outbox.installation").await, before);
    assert_eq!(id, format!("obx_{}_1", before[0][0].as_ref().unwrap()));
    assert_eq!(producer.rows().await, 1);
    let missing = producer.outbox_says(&["install", "--print"]).await;
    assert!(!missing.contains("CREATE SCHEMA") && missing.contains("CREATE OR REPLACE FUNCTION"), "{missing}");
    let nowhere = posthaste_outbox(&["install"], "").await;
    assert!(!nowhere.status.success() && said(&nowhere).contains("--database-url"), "{}", said(&nowhere));
}

#[tokio::test]
async fn what_is_committed_is_an_event_byte_for_byte_and_what_is_rolled_back_is_none() {
    let producer = Producer::new().await;
    let gateway = relaying_gateway(&producer, &[]).await;
    let receiver = Receiver::start().await;
    gateway.create_endpoint(json!({"url": receiver.url(), "format": "raw"})).await;
    let mut client = producer.connect().await;
    let rolled_back = client.transaction().await.unwrap();
    send(rolled_back.client(), "never.sent", None, "1").await.unwrap();
    rolled_back.rollback().await.unwrap();
    let mut expected = Vec::new();
    for data in crate::bytes::ODD {
        expected.push((send(&client, "odd.bytes", None, data).await.unwrap(), (*data).to_owned()));
    }
    let seen = receiver.wait_for(expected.len()).await;
    for (id, data) in &expected {
        let request = seen.iter().find(|request| request.id() == id).unwrap_or_else(|| panic!("{id} is missing"));
        assert_eq!(request.body, data.as_bytes(), "{id}");
    }
    producer.wait_for_rows(0).await;
    let metrics = String::from_utf8(gateway.client.get("/metrics").await.body.to_vec()).unwrap();
    let accepted = format!("posthaste_events_accepted_total {}\n", expected.len());
    assert!(metrics.contains(&accepted), "each row is one event, and nothing else is: {metrics}");
}

#[tokio::test]
async fn every_field_of_a_row_is_a_field_of_the_event() {
    let producer = Producer::new().await;
    let gateway = relaying_gateway(&producer, &[]).await;
    gateway.client.send("PUT", "/v1/tenants/acme", &[], r#"{"name":"Acme"}"#).await.unwrap().expect(201);
    let client = producer.connect().await;
    let sql = "SELECT posthaste_outbox.send('a.b', '{}', key => 'k', tenant => 'acme', schema_version => '2',
               occurred_at => '2026-01-02 03:04:05.678+01', expires_at => '2099-01-01 00:00+00')";
    let id: String = client.query_one(sql, &[]).await.unwrap().get(0);
    // A row may also be inserted, as an ORM does.
    let sql = "INSERT INTO posthaste_outbox.outbox (tenant, type, data) VALUES ('acme', 'c.d', 'null') RETURNING id";
    producer.connect().await.query_one(sql, &[]).await.unwrap();
    producer.wait_for_rows(0).await;
    let event = gateway.client.get(&format!("/v1/tenants/acme/events/{id}")).await.expect(200);
    assert_eq!((&event["type"], &event["key"], &event["schema_version"]), (&json!("a.b"), &json!("k"), &json!("2")));
    assert_eq!(event["timestamp"], "2026-01-02T02:04:05.678000Z");
    assert_eq!(event["expires_at"], "2099-01-01T00:00:00Z");
    assert_eq!(event_ids(&gateway, "acme").await.len(), 2);
}

#[tokio::test]
async fn transactions_that_lock_a_key_are_relayed_in_the_order_of_their_commits() {
    let producer = Producer::new().await;
    producer.database.execute("CREATE SEQUENCE public.numbers; GRANT ALL ON SEQUENCE public.numbers TO PUBLIC").await;
    let gateway = relaying_gateway(&producer, &[]).await;
    let receiver = Receiver::start().await;
    gateway.create_endpoint(json!({"url": receiver.url()})).await;
    let writers = (0..6).map(|_| {
        let url = producer.url().to_owned();
        tokio::spawn(async move {
            let mut client = connect(&url).await;
            for _ in 0..20 {
                let transaction = client.transaction().await.unwrap();
                // The number is drawn under the lock of the key, and nothing else orders the transactions.
                let sql = "SELECT posthaste_outbox.lock_key('default', 'order')";
                transaction.execute(sql, &[]).await.unwrap();
                let sql = "SELECT nextval('public.numbers')::text FROM pg_sleep(random() / 500)";
                let n: String = transaction.query_one(sql, &[]).await.unwrap().get(0);
                transaction.execute("SELECT pg_sleep(random() / 500)", &[]).await.unwrap();
                send(transaction.client(), "n", Some("order"), &n).await.unwrap();
                transaction.commit().await.unwrap();
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let seen = receiver.wait_for(120).await;
    let numbers: Vec<i64> = seen.iter().map(|request| request.json()["data"].as_i64().unwrap()).collect();
    assert_eq!(numbers, (1..=120).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_row_with_a_locked_key_waits_for_the_transaction_that_has_it() {
    let producer = Producer::new().await;
    let mut first = producer.connect().await;
    let first = first.transaction().await.unwrap();
    let row = |key: &str| format!("SELECT posthaste_outbox.send('a.b', '1', key => '{key}', lock_key => true)");
    first.execute(&row("k"), &[]).await.unwrap();
    let second = producer.connect().await;
    second.execute(&row("other"), &[]).await.unwrap();
    let sql = row("k");
    let waiting = tokio::spawn(async move { second.query_one(&sql, &[]).await.unwrap().get::<_, String>(0) });
    eventually("the second to wait", || async {
        let sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        let count = producer.database.number(sql).await;
        if count == 1 && !waiting.is_finished() { Ok(()) } else { Err(count.to_string()) }
    })
    .await;
    first.commit().await.unwrap();
    assert!(waiting.await.unwrap().ends_with("_3"), "its number is drawn under the lock");
}

#[tokio::test]
async fn a_row_that_becomes_visible_late_is_not_skipped() {
    let producer = Producer::new().await;
    let gateway = relaying_gateway(&producer, &[]).await;
    let mut slow = producer.connect().await;
    let slow = slow.transaction().await.unwrap();
    let late = send(slow.client(), "a.b", Some("k"), "1").await.unwrap();
    // Hundreds of later rows are relayed and deleted meanwhile.
    let sql = "SELECT posthaste_outbox.send('a.b', '2', key => 'other') FROM generate_series(1, 700)";
    producer.connect().await.execute(sql, &[]).await.unwrap();
    eventually("the later rows to be relayed", || async {
        let count = event_ids(&gateway, "default").await.len();
        if count == 700 { Ok(()) } else { Err(count.to_string()) }
    })
    .await;
    assert_eq!(producer.rows().await, 0, "the slow transaction is not visible");
    slow.commit().await.unwrap();
    producer.wait_for_rows(0).await;
    eventually("the late row to be an event", || async {
        let found = gateway.client.get(&format!("/v1/tenants/default/events/{late}")).await;
        if found.status == 200 { Ok(()) } else { Err(found.status.to_string()) }
    })
    .await;
}

#[tokio::test]
async fn a_row_that_can_never_be_accepted_is_set_aside_and_stops_nothing_but_its_key() {
    let producer = Producer::new().await;
    let log = crate::support::CapturedOutput::default();
    let options = Options { output: Some(log.clone()), ..Options::flags(&["--outbox", producer.url()]) };
    let client = producer.connect().await;
    // All in one transaction, so that they are claimed together.
    let large = format!("\"{}\"", "x".repeat(1_100_000));
    client.batch_execute("BEGIN").await.unwrap();
    let first = send(&client, "a.b", Some("k"), "1").await.unwrap();
    let bad_type = send(&client, "no type", Some("k"), "2").await.unwrap();
    let behind = send(&client, "a.b", Some("k"), "3").await.unwrap();
    let too_large = send(&client, "a.b", Some("large"), &large).await.unwrap();
    let sql = "SELECT posthaste_outbox.send('a.b', '5', tenant => 'nobody', key => 'k')";
    let no_tenant: String = client.query_one(sql, &[]).await.unwrap().get(0);
    let other = send(&client, "a.b", Some("other"), "6").await.unwrap();
    let keyless = send(&client, "a.b", None, "7").await.unwrap();
    client.batch_execute("COMMIT").await.unwrap();
    let gateway = Gateway::start_with(options).await;
    producer.wait_for_rows(4).await;
    let ids = event_ids(&gateway, "default").await;
    assert_eq!(ids, [first.clone(), other.clone(), keyless.clone()], "in the order of the rows");
    let number = |id: &str| id.rsplit('_').next().unwrap().parse::<i64>().unwrap();
    eventually("all to be set aside", || async {
        let found: Vec<(i64, String)> = producer.refusals().await.into_iter().map(|(id, code, _)| (id, code)).collect();
        let expected = [(&bad_type, "invalid_field"), (&too_large, "payload_too_large"), (&no_tenant, "not_found")];
        let expected: Vec<(i64, String)> = expected.iter().map(|(id, code)| (number(id), (*code).to_owned())).collect();
        if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    // A later row of the key waits, too, and so does one that comes now.
    let later = send(&client, "a.b", Some("k"), "8").await.unwrap();
    let after_all = send(&client, "a.b", None, "9").await.unwrap();
    producer.wait_for_rows(5).await;
    assert_eq!(event_ids(&gateway, "default").await.last(), Some(&after_all));
    eventually("it to be told", || async {
        let said = log.text();
        if said.contains("is set aside") && said.contains("no type") { Ok(()) } else { Err(said) }
    })
    .await;
    let status = producer.outbox_says(&["status"]).await;
    assert!(status.contains("3 rows, and 2 rows behind them") && status.contains("payload_too_large"), "{status}");
    let json: Value = serde_json::from_str(&producer.outbox_says(&["status", "-o", "json"]).await).unwrap();
    assert_eq!((&json["refused"], &json["held"], &json["waiting"]), (&json!(3), &json!(2), &json!(0)), "{json}");
    assert_eq!(json["refused_rows"][0]["held"], 2);

    // The cause is fixed, and the row goes.
    gateway.client.send("PUT", "/v1/tenants/nobody", &[], r#"{"name":"N"}"#).await.unwrap().expect(201);
    producer.outbox_says(&["retry", &number(&no_tenant).to_string()]).await;
    producer.wait_for_rows(4).await;
    assert_eq!(event_ids(&gateway, "nobody").await, [no_tenant]);
    // A retry without a cause fixed sets it aside again, and what is behind it.
    producer.outbox_says(&["retry", "--all"]).await;
    eventually("it to be refused again", || async {
        let held = "SELECT count(*) FROM posthaste_outbox.outbox WHERE set_aside_at IS NOT NULL";
        let (held, refused) = (producer.database.number(held).await, producer.refusals().await.len());
        if (held, refused) == (4, 2) { Ok(()) } else { Err(format!("{held} {refused}")) }
    })
    .await;
    // The row is dropped, and its key goes on in order.
    producer.outbox_says(&["discard", &number(&bad_type).to_string()]).await;
    producer.wait_for_rows(1).await;
    let ids = event_ids(&gateway, "default").await;
    assert_eq!(ids[ids.len() - 2..], [behind, later]);
    let wrong = producer.outbox(&["discard", "1"]).await;
    assert!(!wrong.status.success() && said(&wrong).contains("only 0 of the 1 rows"), "{}", said(&wrong));
}

#[tokio::test]
async fn rows_that_no_event_can_be_made_of_are_refused_and_the_others_go() {
    let producer = Producer::new().await;
    let gateway = relaying_gateway(&producer, &[]).await;
    let client = producer.connect().await;
    let with = async |arguments: &str| {
        let sql = format!("SELECT posthaste_outbox.send('a.b', '1', {arguments})");
        client.query_one(&sql, &[]).await.unwrap().get::<_, String>(0)
    };
    let odd = [
        with("endpoints => ARRAY['ep_1', NULL]").await,
        with("endpoints => ARRAY[ARRAY['ep_1'], ARRAY['ep_2']]").await,
        with("key => 'k', occurred_at => 'infinity'").await,
        with("occurred_at => '-infinity'").await,
        with("tenant => ''").await,
    ];
    let behind = with("key => 'k'").await;
    let fine = [with("key => 'other'").await, with("expires_at => 'infinity'").await];
    let over = with("expires_at => '-infinity'").await;
    eventually("the odd rows to be refused", || async {
        let refused = producer.refusals().await;
        if refused.len() == odd.len() { Ok(()) } else { Err(format!("{refused:?}")) }
    })
    .await;
    producer.wait_for_rows(odd.len() as i64 + 1).await;
    let number = |id: &str| id.rsplit('_').next().unwrap().parse::<i64>().unwrap();
    let (refused, ids) = (producer.refusals().await, event_ids(&gateway, "default").await);
    for ((id, code, reason), (odd, words)) in refused.iter().zip(odd.iter().zip([
        "endpoints has an element that is NULL",
        "endpoints cannot be read: array contains too many dimensions",
        "occurred_at is infinite",
        "occurred_at is infinite",
        "is not the id of a tenant",
    ])) {
        let expected = if words.contains("tenant") { "not_found" } else { "invalid_field" };
        assert!(*id == number(odd) && code == expected && reason.contains(words), "{id} {code} {reason}");
    }
    assert_eq!(sorted(ids), sorted(vec![fine[0].clone(), fine[1].clone(), over.clone()]));
    let event = gateway.client.get(&format!("/v1/tenants/default/events/{over}")).await.expect(200);
    assert!(event["expires_at"].as_str().is_some_and(|end| end.starts_with("20")), "{event}");
    // The owner corrects the row, and its key goes on.
    let correct = format!("UPDATE posthaste_outbox.outbox SET occurred_at = NULL WHERE id = {}", number(&odd[2]));
    producer.database.execute(&correct).await;
    producer.outbox_says(&["retry", &number(&odd[2]).to_string()]).await;
    producer.wait_for_rows(odd.len() as i64 - 1).await;
    let ids = event_ids(&gateway, "default").await;
    assert_eq!(ids[ids.len() - 2..], [odd[2].clone(), behind]);
}

/// A gateway that panics at its first request.
#[derive(Default)]
struct PanickingSink(AtomicUsize);

#[async_trait]
impl EventSink for PanickingSink {
    async fn post(&self, _: &TenantId, _: EventRoute, _: Bytes) -> Result<SinkResponse, String> {
        assert!(self.0.fetch_add(1, Ordering::Relaxed) > 0, "it panics, as the test wants");
        Ok(SinkResponse { status: 202, ..SinkResponse::default() })
    }
}

#[tokio::test]
async fn a_relay_that_panics_begins_again_and_tells_it() {
    let producer = Producer::new().await;
    producer.send("a.b", Some("k"), "1").await;
    let (sink, stop) = (Arc::new(PanickingSink::default()), watch::Sender::new(false));
    let outbox = OutboxDatabase::new(&producer.address()).unwrap();
    let relay = OutboxRelay::new(outbox, sink.clone(), Arc::new(OutboxFigures::default()), "test".into());
    let relaying = tokio::spawn(relay.run(stop.subscribe()));
    producer.wait_for_rows(0).await;
    assert_eq!(sink.0.load(Ordering::Relaxed), 2);
    eventually("the panic to be told", || async {
        let status: Value = serde_json::from_str(&producer.outbox_says(&["status", "-o", "json"]).await).unwrap();
        let error = status["last_error"].as_str().unwrap_or_default();
        let is_told = error.contains("it panics, as the test wants") && status["errors"] == 1;
        if is_told { Ok(()) } else { Err(status.to_string()) }
    })
    .await;
    stop.send(true).unwrap();
    relaying.await.unwrap();
}

#[tokio::test]
async fn what_waits_behind_a_row_whose_key_or_tenant_was_corrected_goes_on() {
    let producer = Producer::new().await;
    let gateway = relaying_gateway(&producer, &[]).await;
    let client = producer.connect().await;
    client.batch_execute("BEGIN").await.unwrap();
    let sql = "SELECT posthaste_outbox.send('a.b', '1', tenant => 'nobody', key => 'k') FROM generate_series(1, 2)";
    client.execute(sql, &[]).await.unwrap();
    let wrong = send(&client, "no type", Some("wrong"), "3").await.unwrap();
    let behind = send(&client, "a.b", Some("wrong"), "4").await.unwrap();
    let still = send(&client, "no type", Some("still"), "5").await.unwrap();
    send(&client, "a.b", Some("still"), "6").await.unwrap();
    client.batch_execute("COMMIT").await.unwrap();
    let set_aside = async |expected: i64| {
        eventually(&format!("{expected} rows set aside"), || async {
            let count = "SELECT count(*) FROM posthaste_outbox.outbox WHERE set_aside_at IS NOT NULL";
            let count = producer.database.number(count).await;
            if count == expected { Ok(()) } else { Err(count.to_string()) }
        })
        .await;
    };
    set_aside(6).await;
    let correct = "UPDATE posthaste_outbox.outbox SET type = 'c.d', key = 'right' WHERE id = 3;
                   UPDATE posthaste_outbox.outbox SET tenant = 'default', key = NULL WHERE id IN (1, 2)";
    producer.database.execute(correct).await;
    let says = producer.outbox_says(&["retry", "3"]).await;
    assert!(says.contains("1 row relayed again, and 1 row behind them"), "{says}");
    producer.wait_for_rows(4).await;
    let ids = sorted(event_ids(&gateway, "default").await);
    assert_eq!(ids, sorted(vec![wrong, behind]), "and nothing that waits behind a row that is still refused");
    // A row that is discarded under another key leaves none behind, either.
    producer.database.execute("UPDATE posthaste_outbox.outbox SET key = 'elsewhere' WHERE id = 5").await;
    producer.outbox_says(&["discard", still.rsplit('_').next().unwrap()]).await;
    producer.wait_for_rows(2).await;
    producer.outbox_says(&["retry", "--all"]).await;
    producer.wait_for_rows(0).await;
    assert_eq!(event_ids(&gateway, "default").await.len(), 5);
}

#[tokio::test]
async fn a_relay_with_a_wrong_path_refuses_no_row() {
    let producer = Producer::new().await;
    let gateway = Gateway::start().await;
    producer.send("a.b", Some("k"), "1").await;
    let server = format!("http://{}/elsewhere", gateway.address);
    let relay = RelayChild::start_to(&server, producer.url(), &gateway, &[]);
    eventually("it to be told", || async {
        let said = relay.printed.text();
        if said.contains("check the path of --server") { Ok(()) } else { Err(said) }
    })
    .await;
    assert_eq!((producer.rows().await, producer.refusals().await), (1, vec![]));
}

#[tokio::test]
async fn an_outbox_that_cannot_be_reached_is_told_by_doctor() {
    let nobody = "127.0.0.1:1";
    let url = format!("postgres://shop:secret@{nobody}/shop");
    let gateway = Gateway::start_with(Options::flags(&["--outbox", &url])).await;
    let finding = eventually("the finding", || async {
        let examined = gateway.client.get("/v1/doctor").await.expect(200);
        let found = examined["findings"].as_array().unwrap().iter().find(|one| one["check"] == "outboxes").cloned();
        found.ok_or_else(|| examined.to_string())
    })
    .await;
    assert_eq!((&finding["state"], &finding["way_out"]), (&json!("warning"), &json!("posthaste outbox status")));
    let detail = finding["detail"].as_str().unwrap();
    assert!(detail.contains(&format!("the outbox at {nobody}")) && !detail.contains("secret"), "{detail}");
}

#[tokio::test]
async fn a_full_gateway_delays_rows_and_loses_none() {
    let producer = Producer::new().await;
    let gateway = Gateway::start().await;
    let slow = r#"{"name":"S","ingest":{"per_second":400,"burst":10}}"#;
    gateway.client.send("PUT", "/v1/tenants/slow", &[], slow).await.unwrap().expect(201);
    let relay = RelayChild::start(producer.url(), &gateway, &["--health-listen", "127.0.0.1:0"]);
    let sql =
        "SELECT posthaste_outbox.send('a.b', to_json(n), tenant => CASE WHEN n > 600 THEN 'default' ELSE 'slow' END)
               FROM generate_series(1, 650) n";
    producer.connect().await.execute(sql, &[]).await.unwrap();
    producer.wait_for_rows(0).await;
    assert_eq!((event_ids(&gateway, "slow").await.len(), event_ids(&gateway, "default").await.len()), (600, 50));
    assert_eq!(producer.refusals().await, []);
    assert!(relay.printed.text().contains("rate_limited"), "{}", relay.printed.text());
    // The figures are at the address that the log names.
    let said = relay.printed.text();
    let address = said.split("http://127.0.0.1:").find_map(|rest| {
        let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
        port.parse::<u16>().ok().filter(|port| *port != gateway.address.port())
    });
    let probes = Client::new(([127, 0, 0, 1], address.unwrap()).into(), "none");
    let text = String::from_utf8(probes.get("/metrics").await.body.to_vec()).unwrap();
    assert!(text.contains("posthaste_outbox_rows_relayed_total{outbox=\"1\"} 650"), "{text}");
    assert!(!text.contains("posthaste_outbox_errors_total{outbox=\"1\"} 0"), "{text}");
}

#[tokio::test]
async fn a_gateway_that_has_no_space_gets_the_rows_when_it_has() {
    let producer = Producer::new().await;
    let full = ["--outbox", producer.url(), "--disk-reserve", "100000GiB"];
    let gateway = Gateway::start_with(Options::flags(&full)).await;
    let sql = "SELECT posthaste_outbox.send('a.b', '1') FROM generate_series(1, 30)";
    producer.connect().await.execute(sql, &[]).await.unwrap();
    eventually("the gateway to have refused them", || async {
        let metrics = gateway.client.get("/metrics").await;
        let text = String::from_utf8(metrics.body.to_vec()).unwrap();
        let line = text.lines().find(|line| line.starts_with("posthaste_outbox_errors_total")).unwrap_or_default();
        if !line.is_empty() && !line.ends_with(" 0") { Ok(()) } else { Err(line.to_owned()) }
    })
    .await;
    assert_eq!((producer.rows().await, producer.refusals().await), (30, vec![]));
    let gateway = gateway.restart_with(Options::flags(&["--outbox", producer.url()])).await;
    producer.wait_for_rows(0).await;
    assert_eq!(event_ids(&gateway, "default").await.len(), 30);
}

#[tokio::test]
async fn a_tenant_with_room_for_some_rows_gets_these_and_the_others_when_there_is_more() {
    let producer = Producer::new().await;
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url()})).await;
    gateway.client.post(&format!("{}/pause", path_of(&endpoint)), "{}").await.expect(200);
    // Its rate has room for all of them once, and for no refused ones besides.
    let tenant = json!({"limits": {"waiting": 100}, "ingest": {"per_second": 1, "burst": 101}});
    gateway.client.patch_json("/v1/tenants/default", &tenant).await.expect(200);
    let sql = "SELECT posthaste_outbox.send('a.b', to_json(n), key => 'k') FROM generate_series(1, 101) n";
    producer.connect().await.execute(sql, &[]).await.unwrap();
    let relay = RelayChild::start(producer.url(), &gateway, &[]);
    producer.wait_for_rows(1).await;
    eventually("it to be told", || async {
        let said = relay.printed.text();
        if said.contains("backlog_full") { Ok(()) } else { Err(said) }
    })
    .await;
    assert_eq!(event_ids(&gateway, "default").await.len(), 100);
    gateway.client.post(&format!("{}/resume", path_of(&endpoint)), "{}").await.expect(200);
    producer.wait_for_rows(0).await;
    let seen = receiver.wait_for(101).await;
    let numbers: Vec<i64> = seen.iter().map(|request| request.json()["data"].as_i64().unwrap()).collect();
    assert_eq!((numbers, producer.refusals().await), ((1..=101).collect(), vec![]));
}

#[tokio::test]
async fn a_row_that_was_accepted_and_not_deleted_is_the_same_event_again() {
    let producer = Producer::new().await;
    let keep = "CREATE FUNCTION public.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''not now''; END';
                CREATE TRIGGER keep BEFORE DELETE ON posthaste_outbox.outbox EXECUTE FUNCTION public.keep()";
    producer.database.execute(keep).await;
    let gateway = relaying_gateway(&producer, &[]).await;
    let id = producer.send("a.b", Some("k"), "{ }").await;
    eventually("it to be handed in again", || async {
        let text = String::from_utf8(gateway.client.get("/metrics").await.body.to_vec()).unwrap();
        let line = text.lines().find(|line| line.starts_with("posthaste_events_duplicate_total")).unwrap().to_owned();
        if line.ends_with(" 0") { Err(line) } else { Ok(()) }
    })
    .await;
    assert_eq!(producer.rows().await, 1);
    producer.database.execute("DROP TRIGGER keep ON posthaste_outbox.outbox").await;
    producer.wait_for_rows(0).await;
    assert_eq!(event_ids(&gateway, "default").await, [id]);
}

#[tokio::test]
async fn a_number_that_was_used_before_is_a_conflict_and_no_other_event() {
    let producer = Producer::new().await;
    let gateway = relaying_gateway(&producer, &[]).await;
    let first = producer.send("a.b", None, "1").await;
    producer.wait_for_rows(0).await;
    // As after the restore of a backup from before the first row.
    producer.database.execute("ALTER SEQUENCE posthaste_outbox.outbox_id_seq RESTART").await;
    assert_eq!(producer.send("a.b", None, "2").await, first);
    eventually("it to be set aside", || async {
        let codes: Vec<String> = producer.refusals().await.into_iter().map(|(_, code, _)| code).collect();
        if codes == ["id_conflict"] { Ok(()) } else { Err(format!("{codes:?}")) }
    })
    .await;
    // The way out that docs/producing.md names.
    let docs = include_str!("../../docs/producing.md");
    let sql = docs
        .lines()
        .find_map(|line| line.trim().strip_prefix('`')?.split('`').next().filter(|sql| sql.contains("setval")));
    producer.database.execute(sql.unwrap()).await;
    let next = producer.send("a.b", None, "3").await;
    producer.wait_for_rows(1).await;
    assert_eq!(event_ids(&gateway, "default").await, [first, next]);
}

#[tokio::test]
async fn a_gateway_whose_store_is_away_gets_the_rows_when_it_is_back() {
    let (producer, server) = (Producer::new().await, Server::start(&[]).await);
    let database = server.database().await;
    let flags = ["--outbox", producer.url(), "--database-url", database.url(), "--lease", "2s"];
    let gateway = Gateway::start_with(Options::flags(&flags)).await;
    producer.send("a.b", None, "0").await;
    producer.wait_for_rows(0).await;
    server.stop().await;
    let sql = "SELECT posthaste_outbox.send('a.b', '1', key => 'k') FROM generate_series(1, 30)";
    producer.connect().await.execute(sql, &[]).await.unwrap();
    eventually("the gateway to answer 503", || async {
        let sql = "SELECT last_error FROM posthaste_outbox.relay";
        let error = producer.database.rows(sql).await[0][0].clone().unwrap_or_default();
        if error.contains("answered 503 (unavailable)") { Ok(()) } else { Err(error) }
    })
    .await;
    assert_eq!((producer.rows().await, producer.refusals().await), (30, vec![]));
    server.start_again().await;
    producer.wait_for_rows(0).await;
    assert_eq!(event_ids(&gateway, "default").await.len(), 31);
}

#[tokio::test]
async fn nodes_with_the_same_outbox_share_one_relay() {
    let producer = Producer::new().await;
    let database = Server::shared(&[]).await.database().await;
    let folder = std::sync::Arc::new(tempfile::tempdir().unwrap());
    let flags = ["--outbox", producer.url(), "--database-url", database.url(), "--lease", "2s"];
    let mut nodes = Vec::new();
    for _ in 0..2 {
        nodes.push(Gateway::start_in(folder.clone(), Options::flags(&flags)).await);
    }
    let relaying = async |nodes: &[Gateway]| {
        let mut relaying = Vec::new();
        for (n, node) in nodes.iter().enumerate() {
            let text = String::from_utf8(node.client.get("/metrics").await.body.to_vec()).unwrap();
            relaying.extend(text.contains("posthaste_outbox_lag_seconds{outbox=\"1\"}").then_some(n));
        }
        relaying
    };
    producer.send("a.b", Some("k"), "1").await;
    producer.wait_for_rows(0).await;
    let holders = relaying(&nodes).await;
    assert_eq!(holders.len(), 1, "{holders:?}");
    nodes.remove(holders[0]).kill().await;
    producer.send("a.b", Some("k"), "2").await;
    producer.wait_for_rows(0).await;
    assert_eq!(relaying(&nodes).await, [0]);
    assert_eq!(event_ids(&nodes[0], "default").await.len(), 2);
}

/// Claims rows as a relay does, whoever has the lease.
async fn claim(producer: &Producer) -> OutboxClaim {
    OutboxDatabase::new(&producer.address()).unwrap().claim(&[], "").await.unwrap()
}

fn numbers(claim: &OutboxClaim) -> Vec<i64> {
    claim.rows.iter().map(|row| row.id).collect()
}

#[tokio::test]
async fn a_claim_of_rows_that_are_small_on_disk_alone_is_bounded_and_keeps_their_order() {
    let producer = Producer::new().await;
    // Some ten kilobytes each, where they are stored.
    let sql = "SELECT posthaste_outbox.send('a.b', to_json(repeat('x', 900000)), key => 'k' || n % 3) FROM generate_series(1, 80) n";
    producer.connect().await.execute(sql, &[]).await.unwrap();
    let mut claimed = Vec::new();
    while claimed.len() < 80 {
        let claim = claim(&producer).await;
        let bytes: usize = claim.rows.iter().flat_map(|row| &row.data).map(String::len).sum();
        assert!((900_000..36_000_000).contains(&bytes), "{} rows of {bytes} bytes", claim.rows.len());
        let rows = numbers(&claim);
        claim.settle(rows.clone(), vec![]).await.unwrap();
        claimed.extend(rows);
    }
    assert_eq!(claimed, (1..=80).collect::<Vec<_>>());
}

#[tokio::test]
async fn two_relays_at_once_share_no_row_and_no_key() {
    let producer = Producer::new().await;
    producer.send("a.b", Some("k"), "1").await;
    producer.send("a.b", None, "2").await;
    let first = claim(&producer).await;
    assert_eq!(numbers(&first), [1, 2]);
    producer.send("a.b", Some("k"), "3").await;
    producer.send("a.b", Some("other"), "4").await;
    let second = claim(&producer).await;
    assert_eq!(numbers(&second), [4], "row 3 waits for row 1, which the first relay holds");
    // The second relay dies; its rows are free again.
    drop(second);
    eventually("the row to be free", || async {
        let third = claim(&producer).await;
        let found = numbers(&third);
        third.give_back().await;
        if found == [4] { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    first.settle(vec![1, 2], vec![]).await.unwrap();
    assert_eq!(numbers(&claim(&producer).await), [3, 4]);
}

#[tokio::test]
async fn one_of_several_relays_is_at_work_and_another_takes_over() {
    let producer = Producer::new().await;
    let gateway = relaying_gateway(&producer, &[]).await;
    let name = || async {
        let json: Value = serde_json::from_str(&producer.outbox_says(&["status", "-o", "json"]).await).unwrap();
        let name = json["relay"].as_str().unwrap_or_default().to_owned();
        if name.is_empty() { Err(json.to_string()) } else { Ok((name, json["epoch"].as_i64().unwrap())) }
    };
    let (first, epoch) = eventually("a relay", name).await;
    assert!(first.contains("posthaste serve"), "{first}");
    let standby = RelayChild::start(producer.url(), &gateway, &[]);
    let id = producer.send("a.b", None, "1").await;
    producer.wait_for_rows(0).await;
    assert_eq!(event_ids(&gateway, "default").await, [id]);
    assert_eq!(name().await.unwrap(), (first, epoch), "the second stands by");
    // Started again without the outbox; the other one relays to it.
    let gateway = gateway.restart_with(Options::default()).await;
    let next = producer.send("a.b", None, "2").await;
    producer.wait_for_rows(0).await;
    assert!(event_ids(&gateway, "default").await.contains(&next));
    let (second, later) = name().await.unwrap();
    assert!(second.contains("outbox relay") && later == epoch + 1, "{second} {later}");
    drop(standby);
}

#[tokio::test]
async fn producers_and_relays_can_do_what_they_must_and_nothing_else() {
    let server = Server::start(&[]).await;
    let producer = Producer::on(&server).await;
    let password = producer.database.role_and_password().1.to_owned();
    for role in ["shop", "relay", "nobody"] {
        producer.database.execute(&format!("CREATE ROLE {role} LOGIN PASSWORD '{password}'")).await;
    }
    producer.outbox_says(&["install", "--producer-role", "shop", "--relay-role", "relay"]).await;
    let of_role = |role: &str| producer.url().replace("//posthaste:", &format!("//{role}:"));
    let shop = connect(&of_role("shop")).await;
    let relay = connect(&of_role("relay")).await;
    send(&shop, "a.b", Some("k"), "1").await.unwrap();
    shop.execute("SELECT posthaste_outbox.lock_key('default', 'k')", &[]).await.unwrap();
    shop.execute("INSERT INTO posthaste_outbox.outbox (type, data) VALUES ('a.b', '2')", &[]).await.unwrap();
    for (client, forbidden) in [
        (&shop, "SELECT * FROM posthaste_outbox.outbox"),
        (&shop, "DELETE FROM posthaste_outbox.outbox"),
        (&shop, "UPDATE posthaste_outbox.outbox SET type = 'x'"),
        (&shop, "INSERT INTO posthaste_outbox.outbox (type, data, refusal_code) VALUES ('a', '1', 'x')"),
        (&shop, "SELECT * FROM posthaste_outbox.relay"),
        (&shop, "UPDATE posthaste_outbox.installation SET install_id = 'x'"),
        (&relay, "SELECT posthaste_outbox.send('a.b', '1')"),
        (&relay, "INSERT INTO posthaste_outbox.outbox (type, data) VALUES ('a.b', '1')"),
        (&relay, "UPDATE posthaste_outbox.outbox SET data = '3'"),
        (&relay, "UPDATE posthaste_outbox.outbox SET tenant = 'x'"),
        (&relay, "UPDATE posthaste_outbox.installation SET install_id = 'x'"),
        (&relay, "DROP TABLE posthaste_outbox.outbox"),
    ] {
        let refused = client.batch_execute(forbidden).await.expect_err(forbidden);
        assert_eq!(refused.code().map(|code| code.code()), Some("42501"), "{forbidden}");
    }
    // Who has no rights is told how to get them, and an ordinary relay works.
    let refused =
        posthaste_outbox(&["relay", "--server", "http://127.0.0.1:1", "--token", "x"], &of_role("nobody")).await;
    assert!(!refused.status.success() && said(&refused).contains("--relay-role"), "{}", said(&refused));
    let refused =
        posthaste_outbox(&["relay", "--server", "http://127.0.0.1:1", "--token", "x"], &of_role("shop")).await;
    assert!(!refused.status.success() && said(&refused).contains("--relay-role"), "{}", said(&refused));
    let gateway = Gateway::start_with(Options::flags(&["--outbox", &of_role("relay")])).await;
    producer.wait_for_rows(0).await;
    send(&shop, "no type", Some("k"), "3").await.unwrap();
    eventually("it to be set aside", || async {
        let refused = producer.refusals().await;
        if refused.len() == 1 { Ok(()) } else { Err(format!("{refused:?}")) }
    })
    .await;
    let discarded = posthaste_outbox(&["discard", "3"], &of_role("relay")).await;
    assert!(discarded.status.success(), "{}", said(&discarded));
    assert_eq!(event_ids(&gateway, "default").await.len(), 2);
}

#[tokio::test]
async fn an_upgrade_keeps_every_row_and_relays_of_another_version_stop() {
    let producer = Producer::new().await;
    let log = crate::support::CapturedOutput::default();
    let options = Options { output: Some(log.clone()), ..Options::flags(&["--outbox", producer.url()]) };
    let gateway = Gateway::start_with(options).await;
    let before = producer.send("a.b", None, "1").await;
    producer.wait_for_rows(0).await;
    let next: Vec<&str> =
        STEPS.iter().copied().chain(["ALTER TABLE posthaste_outbox.outbox ADD COLUMN colour text;"]).collect();
    let done = install::install_steps(&producer.address(), &next, &OutboxRoles::default()).await.unwrap();
    assert_eq!((done.from, done.to), (STEPS.len(), STEPS.len() + 1));
    let after = producer.send("a.b", None, "2").await;
    eventually("the relay to stop", || async {
        let said = log.text();
        if said.contains("run the posthaste that upgraded it") { Ok(()) } else { Err(said) }
    })
    .await;
    for words in [&["install"][..], &["install", "--print"]] {
        let refused = producer.outbox(words).await;
        let is_refused = !refused.status.success() && said(&refused).contains("run the posthaste that upgraded it");
        assert!(is_refused && refused.stdout.is_empty(), "{}", said(&refused));
    }
    // An outbox that is too old is upgraded by the same command, and keeps its rows and its id.
    let back = format!("UPDATE posthaste_outbox.installation SET schema_version = {}", STEPS.len());
    producer.database.execute(&back).await;
    let says = producer.outbox_says(&["install"]).await;
    assert!(says.contains(&done.install_id), "{says}");
    let late = producer.send("a.b", None, "3").await;
    eventually("all to be relayed", || async {
        let ids = sorted(event_ids(&gateway, "default").await);
        let all = sorted(vec![before.clone(), after.clone(), late.clone()]);
        // A row that was relayed before the version was noticed is fine, too.
        if ids == all { Ok(()) } else { Err(format!("{ids:?}")) }
    })
    .await;
    let missing = Server::shared(&[]).await.database().await;
    let words = ["relay", "--server", "http://127.0.0.1:1", "--token", "x"];
    let refused = posthaste_outbox(&words, missing.url()).await;
    assert!(said(&refused).contains("create it with `posthaste outbox install`"), "{}", said(&refused));
}

#[tokio::test]
async fn figures_are_shown_per_outbox_and_no_password_ever() {
    let (first, second) = (Producer::new().await, Producer::new().await);
    let log = crate::support::CapturedOutput::default();
    let flags = ["--outbox", first.url(), "--outbox", second.url(), "--log", "debug"];
    let gateway = Gateway::start_with(Options { output: Some(log.clone()), ..Options::flags(&flags) }).await;
    first.send("a.b", None, "1").await;
    second.send("no type", None, "1").await;
    let expected = [
        "posthaste_outbox_rows_relayed_total{outbox=\"1\"} 1",
        "posthaste_outbox_rows_relayed_total{outbox=\"2\"} 0",
        "posthaste_outbox_refused_rows{outbox=\"1\"} 0",
        "posthaste_outbox_refused_rows{outbox=\"2\"} 1",
        "posthaste_outbox_lag_seconds{outbox=\"1\"} 0",
    ];
    let text = eventually("the figures", || async {
        let text = String::from_utf8(gateway.client.get("/metrics").await.body.to_vec()).unwrap();
        let missing = expected.iter().find(|line| !text.contains(&format!("{line}\n")));
        missing.map_or(Ok(text.clone()), |line| Err(format!("{line} is missing in {text}")))
    })
    .await;
    let settings = gateway.client.get("/v1/settings").await.expect(200).to_string();
    assert!(settings.contains("--outbox") || settings.contains("\"outbox\""), "{settings}");
    let status = first.outbox_says(&["status", "-o", "json"]).await;
    for password in [&first, &second].map(|producer| producer.database.role_and_password().1.to_owned()) {
        for shown in [&text, &settings, &status, &log.text()] {
            assert!(!shown.contains(&password), "{shown}");
        }
    }
}

#[tokio::test]
async fn a_gateway_relays_as_many_outboxes_as_it_is_told_of() {
    const COUNT: usize = 17;
    let mut producers = Vec::new();
    for _ in 0..COUNT {
        producers.push(Producer::new().await);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let urls: Vec<&str> = producers[1..].iter().map(Producer::url).collect();
    std::fs::write(file.path(), urls.join("\n")).unwrap();
    let flags = ["--outbox", producers[0].url(), "--outbox-file", file.path().to_str().unwrap()];
    let gateway = Gateway::start_with(Options::flags(&flags)).await;
    let mut sent = Vec::new();
    for producer in &producers {
        sent.push(producer.send("a.b", Some("k"), "1").await);
    }
    for producer in &producers {
        producer.wait_for_rows(0).await;
    }
    assert_eq!(sorted(event_ids(&gateway, "default").await), sorted(sent));
    eventually("the figures of each outbox", || async {
        let text = String::from_utf8(gateway.client.get("/metrics").await.body.to_vec()).unwrap();
        let line = |n: &usize| format!("posthaste_outbox_rows_relayed_total{{outbox=\"{n}\"}} 1\n");
        let missing = (1..=COUNT).find(|n| !text.contains(&line(n)));
        missing.map_or(Ok(()), |n| Err(format!("those of outbox {n} are missing in {text}")))
    })
    .await;
}

#[tokio::test]
async fn rows_that_wait_and_rows_that_were_refused_need_attention() {
    let producer = Producer::new().await;
    // A row that its producer holds a lock on for long, as a relay sees it.
    let insert = "INSERT INTO posthaste_outbox.outbox (tenant, type, data, created_at)
                  VALUES ('default', 'a.b', '1', now() - interval '10 minutes')";
    producer.database.execute(insert).await;
    let mut locking = producer.connect().await;
    let lock = locking.transaction().await.unwrap();
    lock.execute("SELECT 1 FROM posthaste_outbox.outbox FOR UPDATE", &[]).await.unwrap();
    let gateway = relaying_gateway(&producer, &[]).await;
    let attention = async |kind: &str| {
        let found = gateway.client.get("/v1/attention").await.expect(200);
        let item = found["data"].as_array().unwrap().iter().find(|item| item["kind"] == kind).cloned();
        item.ok_or_else(|| found.to_string())
    };
    let waiting = eventually("the lag to be told", || async { attention("outbox_lag").await }).await;
    assert_eq!((&waiting["severity"], &waiting["command"]), (&json!("critical"), &json!("posthaste outbox status")));
    let reason = waiting["reason"].as_str().unwrap();
    assert!(reason.contains("has not been handed in for 10m"), "{reason}");
    lock.rollback().await.unwrap();
    producer.wait_for_rows(0).await;

    producer.send("no type", None, "1").await;
    let refused = eventually("the refusal to be told", || async { attention("outbox_refused").await }).await;
    assert_eq!(refused["severity"], "warning");
    assert!(refused["reason"].as_str().unwrap().starts_with("1 row of the outbox at "), "{refused}");
    assert!(attention("outbox_lag").await.is_err(), "it is handed in");
    let shown = cli_output(&gateway, &["status"]).await;
    assert!(shown.contains("posthaste outbox status"), "{shown}");
    let examined = gateway.client.get("/v1/doctor").await.expect(200);
    let finding = examined["findings"].as_array().unwrap().iter().find(|finding| finding["check"] == "outboxes");
    let finding = finding.unwrap_or_else(|| panic!("no finding about outboxes in {examined}"));
    assert_eq!((&finding["state"], &finding["way_out"]), (&json!("warning"), &json!("posthaste outbox status")));
    let row = producer.refusals().await[0].0.to_string();
    producer.outbox_says(&["discard", &row]).await;
    eventually("all to be well", || async {
        let found = gateway.client.get("/v1/attention").await.expect(200);
        if found["data"].as_array().unwrap().is_empty() { Ok(()) } else { Err(found.to_string()) }
    })
    .await;
}
