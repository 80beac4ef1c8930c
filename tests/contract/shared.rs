//! What the shared store alone promises: days that go whole, numbers that
//! were moved over, and forgetting beside people who replay.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use jiff::Timestamp;
use posthaste::model::audit::Initiator;
use posthaste::model::delivery::{DeadCause, DeliveryState};
use posthaste::model::delivery_filter::DeliveryFilter;
use posthaste::model::id::EventId;
use posthaste::store::postgres::{PostgresOptions, PostgresStore};
use posthaste::store::seal::Seal;
use posthaste::store::{AcceptResult, BatchMode, DeliveryChange, EventQuery, ForgottenCounts, PageRequest};
use serde_json::json;

use crate::fixture::{StoreFixture, at, event, ours};
use crate::servers::postgres::Database;

/// The day of second 0 ends then.
const DAY_END: i64 = 6_400;
const HOUR: i64 = 3_600;
const TABLES: [&str; 3] = ["events", "finished", "attempts"];

/// The lowest number of this second.
fn number(seconds: i64) -> i64 {
    (at(seconds).as_millisecond() - 1_577_836_800_000) << 21
}

/// Gives the day of second 0 partitions of its own.
async fn make_day(database: &Database) {
    let owner = database.rows("SELECT tableowner FROM pg_tables WHERE schemaname = 'posthaste' LIMIT 1").await;
    let owner = owner[0][0].as_deref().expect("somebody owns it");
    for table in TABLES {
        let (from, to) = (number(DAY_END - 86_400), number(DAY_END));
        let name = format!("posthaste.{table}_20231114");
        let sql = format!("CREATE TABLE {name} PARTITION OF posthaste.{table} FOR VALUES FROM ({from}) TO ({to})");
        database.execute(&sql).await;
        database.execute(&format!("ALTER TABLE {name} OWNER TO {owner}")).await;
    }
}

async fn days_left(database: &Database) -> i64 {
    database.number("SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname LIKE '%20231114'").await
}

/// Whether an id is remembered.
async fn is_remembered(fixture: &StoreFixture, id: &str) -> bool {
    let answer = fixture.accept_all(vec![event(id).at(at(9 * DAY_END))], BatchMode::All).await;
    !matches!(answer[0], AcceptResult::New { .. })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delays_of_accepts_replace_those_published_before_and_hold_for_a_moment() {
    let fixture = StoreFixture::postgres().await;
    for delays_ms in [vec![40], vec![90], Vec::new()] {
        let before = fixture.database().rows("SELECT clock_timestamp()").await[0][0].clone().unwrap();
        let published = format!(
            "SELECT t.id, d.delay_ms,
                    d.held_until > '{before}' AND d.held_until <= clock_timestamp() + interval '1 s'
             FROM posthaste.accept_delays d JOIN posthaste.tenants t ON t.no = d.tenant ORDER BY t.id"
        );
        let delays = delays_ms.iter().map(|millis| (ours(), Duration::from_millis(*millis)));
        fixture.store.publish_accept_delays(delays.collect()).await.unwrap();
        let row = |millis: &u64| vec![Some(ours().to_string()), Some(millis.to_string()), Some("t".into())];
        let expected: Vec<_> = delays_ms.iter().map(row).collect();
        assert_eq!(fixture.database().rows(&published).await, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_goes_whole_and_what_is_needed_outlives_it() {
    let fixture = StoreFixture::postgres().await;
    make_day(fixture.database()).await;
    let (one, two) = (fixture.endpoint(json!({})).await, fixture.endpoint(json!({})).await);
    let delivered = fixture.claim(event("delivered").to(&one)).await;
    fixture.deliver(&delivered, at(1)).await;
    fixture.accept(event("unwanted")).await;
    let claims = fixture.accept(event("waits").saying("[1]").to(&one).to(&two)).await;
    fixture.deliver(&claims[0], at(1)).await;
    let dead = fixture.claim(event("dead").to(&one)).await;
    fixture.die(&dead, DeadCause::Refused, at(1)).await;
    let late = fixture.claim(event("late").to(&one)).await;
    fixture.deliver(&late, at(DAY_END + 2 * HOUR)).await;
    let retried = fixture.claim(event("retried").to(&one)).await;
    fixture.attempted(&retried, posthaste::model::next_state::NextState::Waiting { due_at: at(5) }, at(1)).await;

    assert_eq!(
        fixture.forget(at(DAY_END + HOUR - 1), at(0)).await,
        ForgottenCounts::default(),
        "the day is not over long enough"
    );
    let forgotten = fixture.forget(at(DAY_END + HOUR), at(0)).await;
    assert_eq!((forgotten.events, forgotten.deliveries), (2, 2));
    assert_eq!(days_left(fixture.database()).await, 0, "its tables are gone");

    assert!(!fixture.is_known("delivered").await && !fixture.is_known("unwanted").await);
    assert!(fixture.store.delivery(&ours(), delivered.id).await.unwrap().is_none());
    let due = fixture.due(&two, at(9)).await.claims;
    assert_eq!((due.len(), &due[0].event.data[..]), (1, &b"[1]"[..]), "what waits has its data");
    assert_eq!((fixture.state(dead.id).await, fixture.attempts(dead.id).await.len()), (DeliveryState::Dead, 1));
    assert_eq!((fixture.state(late.id).await, fixture.attempts(late.id).await.len()), (DeliveryState::Delivered, 1));
    assert_eq!(fixture.attempts(retried.id).await.len(), 1);
    for (id, expected) in [("delivered", false), ("unwanted", false), ("waits", true), ("dead", true), ("late", true)] {
        assert_eq!(is_remembered(&fixture, id).await, expected, "{id}");
    }

    // What outlived its day ends like all else, and goes in its time.
    fixture.deliver(&due[0], at(DAY_END + 3 * HOUR)).await;
    let forgotten = fixture.forget(at(DAY_END + 4 * HOUR), at(2)).await;
    assert_eq!((forgotten.events, forgotten.deliveries), (3, 3), "but for what was retried");
    assert_eq!(fixture.database().number("SELECT count(*) FROM posthaste.attempts").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_of_which_much_is_kept_shrinks() {
    let fixture = StoreFixture::postgres().await;
    make_day(fixture.database()).await;
    let endpoint = fixture.endpoint(json!({})).await;
    for batch in 0..6 {
        let drafts = (0..1_000).map(|n| {
            if n < 450 { event(&format!("w{batch}-{n}")).to(&endpoint) } else { event(&format!("u{batch}-{n}")) }
        });
        fixture.accept_all(drafts.collect(), BatchMode::All).await;
    }
    let forgotten = fixture.forget(at(2 * DAY_END + HOUR), at(0)).await;
    assert_eq!((forgotten.events, forgotten.deliveries), (6 * 550, 0));
    assert_eq!(fixture.database().number("SELECT count(*) FROM posthaste.events_20231114").await, 6 * 450);
    assert_eq!(fixture.forget(at(2 * DAY_END + HOUR), at(0)).await, ForgottenCounts::default(), "nothing more can go");
    assert_eq!(fixture.due(&endpoint, at(0)).await.claims.len(), 1_000);
    fixture.store.delete_endpoint(&Initiator::Gateway, &ours(), endpoint.id, at(9)).await.unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    // A day that goes before the last delivery is cancelled puts back what still waits.
    while days_left(fixture.database()).await > 0 || !fixture.list(Default::default(), 500).await.is_empty() {
        assert!(Instant::now() < until, "the day goes once nothing waits, and nothing is left of it");
        fixture.forget(at(2 * DAY_END + HOUR), at(0)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_that_is_in_use_is_left_and_nobody_waits_behind_it_for_long() {
    let fixture = StoreFixture::postgres().await;
    make_day(fixture.database()).await;
    fixture.accept(event("a")).await;
    let (reader, connection) = tokio_postgres::connect(fixture.database().url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    reader.batch_execute("BEGIN; SELECT no FROM posthaste.events").await.unwrap();
    let begun = Instant::now();
    let (forgotten, ()) = tokio::join!(fixture.forget(at(2 * DAY_END), at(0)), async {
        for n in 0..20 {
            fixture.accept(event(&format!("b{n}")).at(at(3 * DAY_END))).await;
        }
    });
    assert_eq!(forgotten, ForgottenCounts::default());
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(days_left(fixture.database()).await, 3);
    reader.batch_execute("COMMIT").await.unwrap();
    assert_eq!(fixture.forget(at(2 * DAY_END), at(0)).await.events, 1);
    assert_eq!(days_left(fixture.database()).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn days_are_made_once_by_many_and_take_what_stood_in_the_rest() {
    let fixture = StoreFixture::postgres().await;
    let database = fixture.database();
    let today = database.rows("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')").await;
    let today = today[0][0].clone().unwrap();
    for table in TABLES {
        database.execute(&format!("DROP TABLE posthaste.{table}_{today}")).await;
    }
    let now = database.number("SELECT (extract(epoch FROM now()) * 1000)::bigint").await;
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("early").at(Timestamp::from_millisecond(now).unwrap()).to(&endpoint)).await;
    assert_eq!(database.number("SELECT count(*) FROM posthaste.events_rest").await, 1);
    let open = || PostgresStore::open(PostgresOptions::new(database.url(), Seal::from_key([7; 32])));
    for opened in join_all((0..5).map(|_| open())).await {
        opened.unwrap().close().await;
    }
    let parts = "SELECT count(*) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhparent WHERE c.relkind = 'p'";
    assert_eq!(database.number(parts).await, 3 * (4 + 1), "four days and the rest, of three tables");
    assert_eq!(database.number("SELECT count(*) FROM posthaste.events_rest").await, 0);
    assert_eq!(database.number(&format!("SELECT count(*) FROM posthaste.events_{today}")).await, 1);
    assert!(fixture.is_known("early").await);
    assert_eq!(fixture.state(claim.id).await, DeliveryState::Waiting);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_moved_over_is_listed_last_and_found_by_its_time() {
    let fixture = StoreFixture::postgres().await;
    let endpoint = fixture.endpoint(json!({})).await;
    for n in 0..3 {
        fixture.accept(event(&format!("new{n}")).at(at(1_000 + n)).to(&endpoint)).await;
    }
    // As an embedded store numbered them.
    for n in 1..=3 {
        let ms = at(n).as_millisecond();
        let sql = format!(
            "INSERT INTO posthaste.events (no, tenant, id, type, accepted_at, first_delivery, deliveries, data)
                 SELECT {n}, no, 'old{n}', 'a.b', {ms}, 10 + {n}, 1, '{{}}' FROM posthaste.tenants WHERE id = 'default';
             INSERT INTO posthaste.producer_ids (tenant, id, event, fingerprint, accepted_at, deliveries)
                 SELECT no, 'old{n}', {n}, '', {ms}, 1 FROM posthaste.tenants WHERE id = 'default';
             INSERT INTO posthaste.queue (no, tenant, endpoint, shard, event, created_at, format, due_at, behind, accepting_node)
                 SELECT 10 + {n}, tenant, no, shard, {n}, {ms}, 0, {ms}, false, 0 FROM posthaste.endpoints",
        );
        fixture.database().execute(&sql).await;
    }
    let all = ["new2", "new1", "new0", "old3", "old2", "old1"];
    for (since, until, expected) in [
        (None, None, &all[..]),
        (Some(2), None, &all[..5]),
        (None, Some(1_001), &all[2..]),
        (Some(2), Some(1_001), &all[2..5]),
        (Some(1_001), Some(1_002), &all[1..2]),
        (Some(1), Some(3), &all[4..]),
        (Some(5_000), None, &[]),
    ] {
        let (since, until) = (since.map(at), until.map(at));
        for limit in [1, 2, 100] {
            let found = fixture.list(DeliveryFilter { since, until, ..Default::default() }, limit).await;
            let ids: Vec<_> = found.iter().map(|delivery| delivery.event_id.to_string()).collect();
            assert_eq!(ids, expected, "{since:?} {until:?} by {limit}");
            let (mut ids, mut cursor) = (Vec::new(), None);
            loop {
                let ask = EventQuery { since, until, ..Default::default() };
                let page = fixture.store.events(&ours(), ask, PageRequest { cursor, limit }).await.unwrap();
                ids.extend(page.data.iter().map(|record| record.event.id.to_string()));
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
            assert_eq!(ids, expected, "{since:?} {until:?} by {limit}");
        }
    }
    assert!(fixture.is_known("old2").await);
    assert_eq!(fixture.deliveries_of("old2").await.len(), 1);
    assert!(fixture.store.delivery(&ours(), fixture.deliveries_of("old2").await[0].id).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_of_our_own_finds_its_event_and_so_does_one_that_looks_like_it() {
    let fixture = StoreFixture::postgres().await;
    let minted = EventId::mint(at(5), 1).to_string();
    for batch in 0..9 {
        let minted = (0..1_000).map(|n| EventId::mint(at(5), 100 + batch * 1_000 + n).to_string());
        let drafts = minted.map(|id| event(&id).at(at(5)).with_minted_id()).collect();
        fixture.accept_all(drafts, BatchMode::All).await;
    }
    // The millisecond's numbers are used up: this one lends from a later.
    fixture.accept(event(&minted).at(at(5)).with_minted_id().saying("[1]")).await;
    let found = fixture.store.event(&ours(), &minted.parse().unwrap()).await.unwrap().expect("it is there");
    assert_eq!(&found.event.data[..], b"[1]");
    // A producer's own, which says another time.
    let chosen = EventId::mint(at(900), 2).to_string();
    fixture.accept(event(&chosen).at(at(7)).saying("[2]")).await;
    let found = fixture.store.event(&ours(), &chosen.parse().unwrap()).await.unwrap().expect("it is there");
    assert_eq!(&found.event.data[..], b"[2]");
    assert!(!fixture.is_known(&EventId::mint(at(5), 3).to_string()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waited_for_a_deleted_endpoint_is_listed_as_cancelled_at_every_moment() {
    let fixture = StoreFixture::postgres().await;
    let (gone, stays) = (fixture.endpoint(json!({})).await, fixture.endpoint(json!({})).await);
    let batch = (0..500).map(|n| event(&format!("e{n}")).to(&gone).to(&stays)).collect();
    fixture.accept_all(batch, BatchMode::All).await;
    fixture.store.delete_endpoint(&Initiator::Gateway, &ours(), gone.id, at(9)).await.unwrap();
    let of = |state, endpoint| DeliveryFilter { state: Some(state), endpoint, ..Default::default() };
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let left = fixture.database().number("SELECT count(*) FROM posthaste.queue").await;
        assert_eq!(fixture.list(of(DeliveryState::Cancelled, None), 333).await.len(), 500);
        assert_eq!(fixture.list(of(DeliveryState::Cancelled, Some(gone.id)), 333).await.len(), 500);
        assert_eq!(fixture.list(of(DeliveryState::Cancelled, Some(stays.id)), 333).await.len(), 0);
        assert_eq!(fixture.list(of(DeliveryState::Waiting, None), 333).await.len(), 500);
        assert_eq!(fixture.list(Default::default(), 333).await.len(), 1_000);
        if left == 500 {
            break;
        }
        assert!(Instant::now() < until, "it is swept");
    }
    let swept = &fixture.list(of(DeliveryState::Cancelled, None), 1).await[0];
    assert_eq!((swept.endpoint_id, swept.finished_at), (gone.id, Some(at(9))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_replayed_while_it_is_forgotten_keeps_its_event_or_is_gone() {
    let fixture = StoreFixture::postgres().await;
    let endpoint = fixture.endpoint(json!({})).await;
    let batch = (0..300).map(|n| event(&format!("e{n}")).to(&endpoint)).collect();
    fixture.accept_all(batch, BatchMode::All).await;
    let claims = fixture.due(&endpoint, at(0)).await.claims;
    join_all(claims.iter().map(|claim| fixture.deliver(claim, at(1)))).await;
    let replaying = claims.iter().map(|claim| fixture.change(claim.id, DeliveryChange::Replay, at(50)));
    let (replayed, forgotten) = tokio::join!(join_all(replaying), fixture.forget(at(100), at(100)));
    let replayed = replayed.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!((replayed + forgotten.deliveries, replayed + forgotten.events), (300, 300));
    let waiting = fixture.due(&endpoint, at(100)).await.claims;
    assert_eq!(waiting.len(), replayed, "all that was replayed can go");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_whose_dead_head_is_forgotten_while_others_join_is_never_stuck() {
    let fixture = StoreFixture::postgres().await;
    for round in 0..10 {
        let endpoint = fixture.endpoint(json!({})).await;
        for lane in 0..5 {
            let head = fixture.claim(event(&format!("h{round}-{lane}")).key(&format!("k{lane}")).to(&endpoint)).await;
            fixture.die(&head, DeadCause::Refused, at(1)).await;
        }
        let joining = (0..5).map(|lane| {
            fixture.accept(event(&format!("j{round}-{lane}")).key(&format!("k{lane}")).at(at(500)).to(&endpoint))
        });
        let _ = tokio::join!(join_all(joining), fixture.forget(at(100), at(100)));
        for lane in 0..5 {
            let joined = &fixture.deliveries_of(&format!("j{round}-{lane}")).await[0];
            let head = fixture.store.lane_head(endpoint.id, &format!("k{lane}")).await.unwrap().expect("it has a head");
            if joined.is_behind {
                let state = fixture.state(head.0).await;
                assert_eq!(state, DeliveryState::Dead, "it stands behind a letter that is there");
            } else {
                assert_eq!(head, (joined.id, false));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_has_ended_is_over_and_its_node_joins_anew() {
    let fixture = StoreFixture::postgres().await;
    let before = fixture.store.view().await.unwrap();
    let epochs = before.shards.iter().map(|shard| shard.epoch).max().unwrap();
    // As after an outage longer than the lease, in which nobody else was there to take the node out.
    fixture.database().execute("UPDATE posthaste.nodes SET lease_until = clock_timestamp() - interval '1 ms'").await;
    let until = Instant::now() + Duration::from_secs(20);
    let after = loop {
        let after = fixture.store.view().await.unwrap();
        let is_back = after.nodes.len() == 1 && after.nodes[0].shards == 256 && after.nodes[0].lease_ms > Some(0);
        if is_back && after.shards.iter().all(|shard| shard.epoch > epochs) {
            break after;
        }
        assert!(Instant::now() < until, "the node was {:?} and is {:?}", before.nodes, after.nodes);
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_ne!(before.nodes[0].id, after.nodes[0].id, "an ended lease is not renewed");
}

/// An accept that waits for a lane while it is forgotten has read the floor before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_that_is_forgotten_while_an_event_waits_for_it_starts_above_its_numbers() {
    let fixture = StoreFixture::postgres().await;
    let endpoint = fixture.endpoint(json!({})).await;
    for (id, now) in [("a", 1), ("b", 2)] {
        let claim = fixture.claim(event(id).key("k").to(&endpoint)).await;
        fixture.deliver(&claim, at(now)).await;
    }
    let database = fixture.database();
    let forgetting = "BEGIN; DELETE FROM posthaste.lanes;
         INSERT INTO posthaste.seq_floors SELECT no, 2 FROM posthaste.endpoints;
         SELECT pg_sleep(1); COMMIT";
    let accepting = async {
        let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        while database.number(sleeping).await == 0 {
            tokio::task::yield_now().await;
        }
        fixture.store.accept(vec![event("c").key("k").at(at(9)).to(&endpoint).into()], BatchMode::All).await
    };
    let ((), accepted) = tokio::join!(database.execute(forgetting), accepting);
    assert!(matches!(accepted, Err(posthaste::store::Error::Outdated)), "{accepted:?}");
    assert_eq!(fixture.claim(event("c").key("k").at(at(9)).to(&endpoint)).await.seq, Some(3));
}
