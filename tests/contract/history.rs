//! Lists: newest first, filtered, and paged without gaps or repeats.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use posthaste::model::audit::Initiator;
use posthaste::model::delivery::{DeadCause, DeliveryState};
use posthaste::model::delivery_filter::DeliveryFilter;
use posthaste::model::id::{AttemptId, DeliveryId, EventId};
use posthaste::store::{BatchMode, DeliveryChange, Error, EventQuery, PageRequest};
use serde_json::json;

use crate::fixture::{StoreFixture, at, event, ours, tenant};

for_every_store! {
    deliveries_page_newest_first_and_each_is_seen_once,
    events_page_newest_first_and_each_is_seen_once,
    paging_neither_repeats_nor_misses_while_others_insert,
    deliveries_are_found_by_state,
    dead_letters_are_found_by_cause,
    deliveries_are_found_by_endpoint_type_and_key,
    deliveries_and_events_are_found_by_time,
    deliveries_are_found_by_the_time_of_their_finish,
    a_list_by_finish_shows_each_of_many_that_finished_at_once,
    a_list_by_finish_passes_what_does_not_match,
    events_are_found_by_type_and_key,
    filters_hold_together,
    another_tenant_sees_none_of_it,
    events_and_deliveries_are_found_by_their_id_in_every_tenant,
    a_cursor_of_somebody_elses_making_is_refused,
}

async fn event_ids(fixture: &StoreFixture, ask: EventQuery, limit: usize) -> Vec<String> {
    let (mut ids, mut cursor) = (Vec::new(), None);
    loop {
        let page = fixture.store.events(&ours(), ask.clone(), PageRequest { cursor, limit }).await.unwrap();
        assert!(page.data.len() <= limit);
        ids.extend(page.data.into_iter().map(|record| record.event.id.to_string()));
        cursor = page.next;
        if cursor.is_none() {
            return ids;
        }
    }
}

async fn found(fixture: &StoreFixture, ask: DeliveryFilter) -> Vec<String> {
    fixture.list(ask, 2).await.iter().map(|delivery| delivery.event_id.to_string()).collect()
}

fn count_down(from: usize) -> Vec<String> {
    (0..from).rev().map(|n| format!("e{n}")).collect()
}

/// Events `e0`, `e1`, …, one a second.
async fn fill(fixture: &StoreFixture, count: usize) {
    let endpoint = fixture.endpoint(json!({})).await;
    let batch = (0..count).map(|n| event(&format!("e{n}")).at(at(n as i64)).to(&endpoint)).collect();
    fixture.accept_all(batch, BatchMode::All).await;
}

async fn deliveries_page_newest_first_and_each_is_seen_once(fixture: StoreFixture) {
    fill(&fixture, 23).await;
    for limit in [1, 5, 23, 100] {
        let ids: Vec<_> = fixture
            .list(Default::default(), limit)
            .await
            .iter()
            .map(|delivery| delivery.event_id.to_string())
            .collect();
        assert_eq!(ids, count_down(23), "by {limit}");
    }
}

async fn events_page_newest_first_and_each_is_seen_once(fixture: StoreFixture) {
    fill(&fixture, 23).await;
    for limit in [1, 5, 23, 100] {
        assert_eq!(event_ids(&fixture, Default::default(), limit).await, count_down(23), "by {limit}");
    }
    let page = PageRequest { cursor: None, limit: 1 };
    let newest = fixture.store.events(&ours(), Default::default(), page).await.unwrap();
    assert_eq!((newest.data[0].deliveries, &newest.data[0].event.data[..]), (1, &b"{}"[..]));
}

async fn paging_neither_repeats_nor_misses_while_others_insert(fixture: StoreFixture) {
    let before = 200;
    fill(&fixture, before).await;
    let fixture = Arc::new(fixture);
    let endpoint = fixture.endpoint(json!({})).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut producers = tokio::task::JoinSet::new();
    for producer in 0..4 {
        let (fixture, endpoint, stop) = (fixture.clone(), endpoint.clone(), stop.clone());
        producers.spawn(async move {
            let mut n = 0;
            // Not without end: each list is as long as what was inserted before it.
            while !stop.load(Ordering::Relaxed) && n < 200 {
                fixture.accept(event(&format!("new-{producer}-{n}")).at(at(1_000)).to(&endpoint)).await;
                n += 1;
            }
            n
        });
    }
    for _ in 0..10 {
        let seen: Vec<_> =
            fixture.list(Default::default(), 7).await.iter().map(|delivery| delivery.event_id.to_string()).collect();
        let distinct: HashSet<_> = seen.iter().collect();
        assert_eq!(distinct.len(), seen.len(), "nothing twice");
        let old: Vec<_> = seen.iter().filter(|id| id.starts_with('e')).cloned().collect();
        assert_eq!(old, count_down(before), "nothing missed");
        let new: Vec<_> = seen.iter().skip_while(|id| id.starts_with("new")).collect();
        assert!(new.iter().all(|id| id.starts_with('e')), "newest first");
    }
    stop.store(true, Ordering::Relaxed);
    let inserted: usize = producers.join_all().await.iter().sum();
    assert!(inserted > 0, "others did insert meanwhile");
    assert_eq!(fixture.list(Default::default(), 500).await.len(), before + inserted);
}

/// One delivery in each state, named after it; two causes of death.
async fn one_of_each(fixture: &StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    fixture.accept(event("waiting").to(&endpoint)).await;
    let claim = fixture.claim(event("delivered").to(&endpoint)).await;
    fixture.deliver(&claim, at(1)).await;
    for (id, cause) in
        [("refused", DeadCause::Refused), ("exhausted", DeadCause::Exhausted), ("discarded", DeadCause::Refused)]
    {
        let claim = fixture.claim(event(id).to(&endpoint)).await;
        fixture.die(&claim, cause, at(1)).await;
        if id == "discarded" {
            fixture.change(claim.id, DeliveryChange::Discard, at(2)).await.unwrap();
        }
    }
    let claim = fixture.claim(event("cancelled").to(&endpoint)).await;
    fixture.change(claim.id, DeliveryChange::Cancel, at(2)).await.unwrap();
}

async fn deliveries_are_found_by_state(fixture: StoreFixture) {
    one_of_each(&fixture).await;
    for (state, expected) in [
        (DeliveryState::Waiting, &["waiting"][..]),
        (DeliveryState::Delivered, &["delivered"]),
        (DeliveryState::Dead, &["exhausted", "refused"]),
        (DeliveryState::Cancelled, &["cancelled", "discarded"]),
    ] {
        assert_eq!(found(&fixture, DeliveryFilter { state: Some(state), ..Default::default() }).await, expected);
    }
}

async fn dead_letters_are_found_by_cause(fixture: StoreFixture) {
    one_of_each(&fixture).await;
    let dead = |cause| DeliveryFilter { state: Some(DeliveryState::Dead), cause: Some(cause), ..Default::default() };
    assert_eq!(found(&fixture, dead(DeadCause::Refused)).await, ["refused"]);
    assert_eq!(found(&fixture, dead(DeadCause::Exhausted)).await, ["exhausted"]);
    assert!(found(&fixture, dead(DeadCause::Gone)).await.is_empty());
    let refused = DeliveryFilter { cause: Some(DeadCause::Refused), ..Default::default() };
    assert_eq!(found(&fixture, refused).await, ["discarded", "refused"], "what was discarded keeps its cause");
}

async fn deliveries_are_found_by_endpoint_type_and_key(fixture: StoreFixture) {
    let (one, two) = (fixture.endpoint(json!({})).await, fixture.endpoint(json!({})).await);
    fixture.accept(event("a").kind("invoice.paid").key("k").to(&one).to(&two)).await;
    fixture.accept(event("b").kind("invoice.sent").key("K").to(&one)).await;
    fixture.accept(event("c").kind("invoice.paid").to(&two)).await;
    let all = DeliveryFilter::default;
    assert_eq!(found(&fixture, DeliveryFilter { endpoint: Some(one.id), ..all() }).await, ["b", "a"]);
    assert_eq!(found(&fixture, DeliveryFilter { endpoint: Some(two.id), ..all() }).await, ["c", "a"]);
    let paid = DeliveryFilter { event_type: Some("invoice.paid".into()), ..all() };
    assert_eq!(found(&fixture, paid).await, ["c", "a", "a"]);
    assert!(found(&fixture, DeliveryFilter { event_type: Some("invoice".into()), ..all() }).await.is_empty());
    assert_eq!(found(&fixture, DeliveryFilter { key: Some("k".into()), ..all() }).await, ["a", "a"]);
    let unknown = fixture.new_endpoint(&ours(), json!({})).id;
    assert!(found(&fixture, DeliveryFilter { endpoint: Some(unknown), ..all() }).await.is_empty());
    for state in [DeliveryState::Waiting, DeliveryState::Delivered] {
        let ask = DeliveryFilter { endpoint: Some(one.id), state: Some(state), ..all() };
        let expected: &[&str] = if state == DeliveryState::Waiting { &["b", "a"] } else { &[] };
        assert_eq!(found(&fixture, ask).await, expected);
    }
}

async fn deliveries_and_events_are_found_by_time(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let hour = 3_600;
    for n in 0..6 {
        fixture.accept(event(&format!("e{n}")).at(at(n * hour)).to(&endpoint)).await;
    }
    for (since, until, expected) in [
        (None, Some(2 * hour), &["e1", "e0"][..]),
        (Some(4 * hour), None, &["e5", "e4"]),
        (Some(2 * hour), Some(4 * hour), &["e3", "e2"]),
        (Some(2 * hour + 1), Some(4 * hour + 1), &["e4", "e3"]),
        (Some(99 * hour), None, &[]),
        (None, Some(-1), &[]),
    ] {
        let (since, until) = (since.map(at), until.map(at));
        let by_delivery = found(&fixture, DeliveryFilter { since, until, ..Default::default() }).await;
        assert_eq!(by_delivery, expected, "{since:?} {until:?}");
        let by_event = event_ids(&fixture, EventQuery { since, until, ..Default::default() }, 2).await;
        assert_eq!(by_event, expected, "{since:?} {until:?}");
    }
}

/// Deliveries that were accepted in the order a to f, and finished in another.
async fn finish_out_of_order(fixture: &StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let mut claims = Vec::new();
    for (n, id) in (0..).zip(["a", "b", "c", "d", "e", "f"]) {
        let kind = if id == "b" { "invoice.paid" } else { "thing.happened" };
        claims.push(fixture.claim(event(id).kind(kind).at(at(n)).to(&endpoint)).await);
    }
    let [a, b, c, d, _, f] = &claims[..] else { unreachable!("six were accepted") };
    fixture.die(d, DeadCause::Exhausted, at(20)).await;
    fixture.change(c.id, DeliveryChange::Cancel, at(30)).await.unwrap();
    fixture.die(b, DeadCause::Refused, at(40)).await;
    fixture.die(f, DeadCause::Refused, at(45)).await;
    fixture.deliver(a, at(50)).await;
    fixture.change(f.id, DeliveryChange::Discard, at(60)).await.unwrap();
}

async fn deliveries_are_found_by_the_time_of_their_finish(fixture: StoreFixture) {
    finish_out_of_order(&fixture).await;
    let within = |since: Option<i64>, until: Option<i64>| DeliveryFilter {
        finished_since: since.map(at),
        finished_until: until.map(at),
        ..Default::default()
    };
    let all = || within(Some(0), None);
    let state = |state| DeliveryFilter { state: Some(state), ..all() };
    for (ask, expected) in [
        (all(), &["f", "a", "b", "c", "d"][..]),
        (within(None, Some(1_000)), &["f", "a", "b", "c", "d"]),
        (within(None, Some(50)), &["b", "c", "d"]),
        (within(Some(30), Some(50)), &["b", "c"]),
        (within(Some(61), None), &[]),
        (within(Some(50), Some(30)), &[]),
        (state(DeliveryState::Dead), &["b", "d"]),
        (state(DeliveryState::Cancelled), &["f", "c"]),
        (state(DeliveryState::Delivered), &["a"]),
        (state(DeliveryState::Waiting), &[]),
        (DeliveryFilter { cause: Some(DeadCause::Refused), ..all() }, &["f", "b"]),
        (DeliveryFilter { event_type: Some("invoice.paid".into()), ..all() }, &["b"]),
        (DeliveryFilter { since: Some(at(1)), until: Some(at(3)), ..all() }, &["b", "c"]),
    ] {
        for limit in [1, 2, 100] {
            let found = fixture.list(ask.clone(), limit).await;
            let ids: Vec<_> = found.iter().map(|delivery| delivery.event_id.as_str()).collect();
            assert_eq!(ids, expected, "{ask:?} by {limit}");
        }
    }
    let dead = fixture.list(state(DeliveryState::Dead), 1).await.remove(0);
    fixture.change(dead.id, DeliveryChange::Replay, at(70)).await.unwrap();
    assert_eq!(found(&fixture, state(DeliveryState::Dead)).await, ["d"], "what was replayed has not finished");
}

async fn a_list_by_finish_shows_each_of_many_that_finished_at_once(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    for n in 0..9 {
        let claim = fixture.claim(event(&format!("e{n}")).at(at(n)).to(&endpoint)).await;
        match n % 3 {
            0 => fixture.deliver(&claim, at(100)).await,
            1 => fixture.die(&claim, DeadCause::Refused, at(100)).await,
            _ => fixture.die(&claim, DeadCause::Gone, at(99)).await,
        };
    }
    let ask = DeliveryFilter { finished_until: Some(at(101)), ..Default::default() };
    let expected = ["e7", "e6", "e4", "e3", "e1", "e0", "e8", "e5", "e2"];
    for limit in 1..10 {
        let found = fixture.list(ask.clone(), limit).await;
        let ids: Vec<_> = found.iter().map(|delivery| delivery.event_id.as_str()).collect();
        assert_eq!(ids, expected, "by {limit}");
    }
}

async fn a_list_by_finish_passes_what_does_not_match(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let count = 1_200;
    let draft = |n: i64| event(&format!("e{n}")).kind(if n % 400 == 0 { "rare" } else { "usual" }).to(&endpoint);
    let accepted = fixture.accept_all((0..count).map(draft).collect(), BatchMode::All).await;
    assert_eq!(accepted.len(), count as usize);
    let kind = "UPDATE deliveries SET state = 1, finished_at = created_at + no";
    let moved = "WITH taken AS (DELETE FROM posthaste.queue RETURNING *) INSERT INTO posthaste.finished
        (no, tenant, endpoint, shard, event, created_at, format, attempts, attempts_before, held_before, not_found,
         no_such_name, forbidden_target, internal_errors, state, due_at, finished_at)
        SELECT no, tenant, endpoint, shard, event, created_at, format, 0, 0, 0, 0, 0, 0, 0, 1, due_at,
               created_at + row_number() OVER (ORDER BY no) FROM taken";
    fixture.execute(if fixture.is_shared() { moved } else { kind }).await;
    let ask = |kind: &str| DeliveryFilter {
        event_type: Some(kind.into()),
        finished_since: Some(at(-10)),
        ..Default::default()
    };
    assert_eq!(found(&fixture, ask("rare")).await, ["e800", "e400", "e0"]);
    assert_eq!(found(&fixture, ask("unknown")).await, Vec::<String>::new());
    assert_eq!(fixture.list(ask("usual"), 500).await.len(), 1_197);
}

async fn events_are_found_by_type_and_key(fixture: StoreFixture) {
    fixture.accept(event("a").kind("x.y").key("k")).await;
    fixture.accept(event("b").kind("x.y")).await;
    fixture.accept(event("c").kind("x.z").key("k")).await;
    let kind = |kind: &str| EventQuery { event_type: Some(kind.into()), ..Default::default() };
    assert_eq!(event_ids(&fixture, kind("x.y"), 1).await, ["b", "a"]);
    assert_eq!(event_ids(&fixture, EventQuery { key: Some("k".into()), ..Default::default() }, 1).await, ["c", "a"]);
    assert_eq!(event_ids(&fixture, EventQuery { key: Some("k".into()), ..kind("x.y") }, 1).await, ["a"]);
}

async fn filters_hold_together(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    for (id, key, second) in [("a", "k", 0), ("b", "k", 10), ("c", "j", 10), ("d", "k", 20)] {
        fixture.accept(event(id).key(key).at(at(second)).to(&endpoint)).await;
    }
    let head = fixture.due(&endpoint, at(0)).await.claims.remove(0);
    fixture.deliver(&head, at(1)).await;
    let ask = DeliveryFilter {
        state: Some(DeliveryState::Waiting),
        endpoint: Some(endpoint.id),
        event_type: Some("thing.happened".into()),
        key: Some("k".into()),
        since: Some(at(10)),
        until: Some(at(20)),
        cause: None,
        finished_since: None,
        finished_until: None,
    };
    assert_eq!(found(&fixture, ask).await, ["b"]);
}

async fn another_tenant_sees_none_of_it(fixture: StoreFixture) {
    fill(&fixture, 3).await;
    let other = fixture.put_tenant("other").await;
    let endpoint = fixture.endpoint_of(&other, json!({})).await;
    fixture.accept(event("theirs").of(&other).to(&endpoint)).await;
    let page = || PageRequest { cursor: None, limit: 100 };
    let theirs = fixture.store.deliveries(&other, Default::default(), page()).await.unwrap();
    assert_eq!(theirs.data.iter().map(|delivery| delivery.event_id.as_str()).collect::<Vec<_>>(), ["theirs"]);
    assert_eq!(fixture.store.events(&other, Default::default(), page()).await.unwrap().data.len(), 1);
    assert_eq!(fixture.list(Default::default(), 100).await.len(), 3);
    let ask = DeliveryFilter { endpoint: Some(endpoint.id), ..Default::default() };
    assert!(fixture.list(ask, 100).await.is_empty(), "another's endpoint finds nothing");
    let nobody = tenant("nobody");
    assert!(fixture.store.deliveries(&nobody, Default::default(), page()).await.unwrap().data.is_empty());
    assert!(fixture.store.events(&nobody, Default::default(), page()).await.unwrap().data.is_empty());
}

async fn events_and_deliveries_are_found_by_their_id_in_every_tenant(fixture: StoreFixture) {
    let (acme, zeta) = (fixture.put_tenant("acme").await, fixture.put_tenant("zeta").await);
    let (at_acme, at_zeta) = (fixture.endpoint_of(&acme, json!({})).await, fixture.endpoint_of(&zeta, json!({})).await);
    let twice = fixture.claim(event("twice").of(&zeta).to(&at_zeta)).await;
    fixture.claim(event("twice").of(&acme).to(&at_acme)).await;
    let minted = event("minted").of(&acme).with_minted_id().to(&at_acme);
    let minted_id = minted.event().id.clone();
    let made = fixture.claim(minted).await;
    let store = &fixture.store;
    let tenants_of = async |id: &str, limit| store.tenants_of_event(&EventId::from_stored(id), limit).await.unwrap();
    assert_eq!(tenants_of("twice", 10).await, [acme.clone(), zeta.clone()]);
    assert_eq!(tenants_of("twice", 1).await, std::slice::from_ref(&acme), "the first by id");
    assert_eq!(tenants_of(minted_id.as_str(), 10).await, std::slice::from_ref(&acme));
    assert!(tenants_of("nothing", 10).await.is_empty());
    assert_eq!(store.tenant_of_delivery(twice.id).await.unwrap(), Some(zeta.clone()));
    assert_eq!(store.tenant_of_delivery(made.id).await.unwrap(), Some(acme.clone()));
    let other_time = DeliveryId(uuid::Uuid::from_u128(made.id.0.as_u128() ^ (1 << 90)));
    assert_eq!(store.tenant_of_delivery(other_time).await.unwrap(), None, "the number alone is no id");
    fixture.deliver(&twice, at(9)).await;
    assert_eq!(store.tenant_of_delivery(twice.id).await.unwrap(), Some(zeta.clone()), "also what is finished");
    let attempt = AttemptId::of(made.id, 3, at(7));
    assert_eq!(store.delivery_of_attempt(attempt).await.unwrap(), Some((acme.clone(), made.id)));
    assert_eq!(store.deleted_endpoint(at_acme.id).await.unwrap(), None, "it is there");
    store.delete_endpoint(&Initiator::Gateway, &acme, at_acme.id, at(9)).await.unwrap();
    assert_eq!(store.deleted_endpoint(at_acme.id).await.unwrap(), Some((acme.clone(), at(9))));
    store.delete_tenant(&Initiator::Gateway, &zeta, at(10)).await.unwrap();
    assert_eq!(store.deleted_endpoint(at_zeta.id).await.unwrap(), Some((zeta.clone(), at(10))));
    assert_eq!(tenants_of("twice", 10).await, [acme], "not of a deleted tenant");
    assert_eq!(store.tenant_of_delivery(twice.id).await.unwrap(), None);
}

async fn a_cursor_of_somebody_elses_making_is_refused(fixture: StoreFixture) {
    fill(&fixture, 3).await;
    let page = || PageRequest { cursor: Some("nonsense".into()), limit: 10 };
    let problem = fixture.store.deliveries(&ours(), Default::default(), page()).await.unwrap_err();
    assert!(matches!(problem, Error::InvalidCursor), "{problem:?}");
    let by_finish = || DeliveryFilter { finished_since: Some(at(0)), ..Default::default() };
    let of_other_order = [(by_finish(), "3"), (by_finish(), "3.x"), (DeliveryFilter::default(), "3.3")];
    for (ask, cursor) in of_other_order {
        let page = PageRequest { cursor: Some(cursor.into()), limit: 10 };
        let problem = fixture.store.deliveries(&ours(), ask, page).await.unwrap_err();
        assert!(matches!(problem, Error::InvalidCursor), "{cursor}: {problem:?}");
    }
    let problem = fixture.store.events(&ours(), Default::default(), page()).await.unwrap_err();
    assert!(matches!(problem, Error::InvalidCursor), "{problem:?}");
}
