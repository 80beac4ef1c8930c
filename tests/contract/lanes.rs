//! Lanes: numbered without gaps in the order of the commits, one at a time.

use std::collections::HashMap;
use std::sync::Arc;

use posthaste::model::audit::Initiator;
use posthaste::model::delivery::{DeadCause, DeadlineSource, DeliveryState};
use posthaste::model::endpoint::{EndpointSettings, OnDead};
use posthaste::store::{
    AcceptResult, BatchMode, Claim, ClaimOutcome, DeliveryChange, EndpointChange, Lane, PageRequest, Settlement,
};
use serde_json::json;

use crate::fixture::{Draft, StoreFixture, at, event, event_id, ours, tenant};

for_every_store! {
    a_lane_is_numbered_from_one_and_only_its_head_may_go,
    lanes_of_other_keys_and_endpoints_are_their_own,
    an_endpoint_can_be_one_lane_and_can_ignore_keys,
    concurrent_accepts_number_every_lane_without_gaps_in_commit_order,
    changing_to_skip_frees_the_lanes_that_stand_behind_a_dead_letter,
    a_change_to_skip_and_a_death_at_the_same_time_leave_no_lane_blocked,
    lanes_tell_their_head_and_who_waits,
    lanes_page_by_key,
    a_lane_that_keeps_others_waiting_is_found_among_those_that_do_not,
    a_lane_with_several_dead_waits_behind_each_and_skips_all_when_told,
    a_lane_whose_last_was_delivered_is_empty_and_goes_on_with_the_next,
    a_lane_is_idle_from_the_end_of_its_last_delivery_on,
}

fn keyed(id: &str, endpoint: &Arc<posthaste::model::endpoint::Endpoint>) -> Draft {
    event(id).key("k").to(endpoint)
}

async fn lanes(
    fixture: &StoreFixture,
    endpoint: &posthaste::model::endpoint::Endpoint,
    blocked_only: bool,
) -> Vec<Lane> {
    let page = PageRequest { cursor: None, limit: 100 };
    fixture.store.lanes(&ours(), endpoint.id, blocked_only, page).await.unwrap().data
}

async fn a_lane_is_numbered_from_one_and_only_its_head_may_go(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let batch = ["a", "b", "c"].map(|id| keyed(id, &endpoint)).into();
    fixture.accept_all(batch, BatchMode::All).await;
    for (n, id) in ["a", "b", "c"].iter().enumerate() {
        let delivery = &fixture.deliveries_of(id).await[0];
        assert_eq!((delivery.seq, delivery.is_behind), (Some(n as u64 + 1), n > 0), "{id}");
    }
    let due = fixture.due(&endpoint, at(100)).await;
    assert_eq!(
        due.claims.iter().map(|claim| (event_id(claim), claim.seq)).collect::<Vec<_>>(),
        [("a".into(), Some(1))]
    );
    assert_eq!(due.next_due, None, "what is behind is not due at any time");
}

async fn lanes_of_other_keys_and_endpoints_are_their_own(fixture: StoreFixture) {
    let (one, two) = (fixture.endpoint(json!({})).await, fixture.endpoint(json!({})).await);
    fixture.accept(event("a").key("k").to(&one)).await;
    let claims = fixture.accept(event("b").key("k").to(&one).to(&two)).await;
    assert_eq!(claims.iter().map(|claim| (claim.endpoint, claim.seq)).collect::<Vec<_>>(), [(two.id, Some(1))]);
    assert_eq!(fixture.claim(event("c").key("j").to(&one)).await.seq, Some(1));
    let unkeyed = fixture.claim(event("d").to(&one)).await;
    assert_eq!((unkeyed.seq, unkeyed.lane), (None, None));
}

async fn an_endpoint_can_be_one_lane_and_can_ignore_keys(fixture: StoreFixture) {
    let ordered = fixture.endpoint(json!({"ordering": "endpoint"})).await;
    let free = fixture.endpoint(json!({"ordering": "none"})).await;
    assert_eq!(fixture.accept(event("a").key("k").to(&ordered).to(&free)).await.len(), 2);
    let second = fixture.accept(event("b").to(&ordered).to(&free)).await;
    assert_eq!(second.iter().map(|claim| (claim.endpoint, claim.seq)).collect::<Vec<_>>(), [(free.id, None)]);
    assert_eq!(fixture.deliveries_of("b").await[0].seq, Some(2));
}

async fn concurrent_accepts_number_every_lane_without_gaps_in_commit_order(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let fixture = Arc::new(fixture);
    let (producers, each, keys) = (8_u64, 30_u64, 3_u64);
    let mut tasks = tokio::task::JoinSet::new();
    for producer in 0..producers {
        let (fixture, endpoint) = (fixture.clone(), endpoint.clone());
        tasks.spawn(async move {
            for n in 0..each {
                let key = format!("k{}", n % keys);
                fixture.accept(event(&format!("{producer}-{n}")).key(&key).to(&endpoint)).await;
            }
        });
    }
    tasks.join_all().await;
    // Newest first is commit order backwards, so the places count down.
    let mut places: HashMap<String, Vec<u64>> = HashMap::new();
    let mut last_of: HashMap<(String, String), u64> = HashMap::new();
    for delivery in fixture.list(Default::default(), 50).await.iter().rev() {
        let (key, seq) = (delivery.key.clone().unwrap(), delivery.seq.unwrap());
        let producer = delivery.event_id.as_str().split('-').next().unwrap().to_owned();
        let before = last_of.insert((producer, key.clone()), seq);
        assert!(before.is_none_or(|before| before < seq), "what was accepted earlier stands before");
        places.entry(key).or_default().push(seq);
    }
    assert_eq!(places.len() as u64, keys);
    for (key, places) in places {
        assert_eq!(places, (1..=producers * each / keys).collect::<Vec<_>>(), "{key}");
    }
    assert_eq!(fixture.due(&endpoint, at(0)).await.claims.len() as u64, keys, "one head per lane");
}

async fn changing_to_skip_frees_the_lanes_that_stand_behind_a_dead_letter(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let head = fixture.claim(keyed("a", &endpoint)).await;
    fixture.accept(keyed("b", &endpoint)).await;
    fixture.die(&head, DeadCause::Refused, at(1)).await;
    assert!(fixture.due_ids(&endpoint, at(100)).await.is_empty());
    skip_dead(&fixture, &endpoint).await;
    assert_eq!(fixture.due_ids(&endpoint, at(100)).await, ["b"]);
    assert_eq!(fixture.state(head.id).await, DeliveryState::Dead);
}

async fn skip_dead(fixture: &StoreFixture, endpoint: &posthaste::model::endpoint::Endpoint) {
    let mut settings = endpoint.settings.clone();
    settings.on_dead = posthaste::model::endpoint::OnDead::Skip;
    let change = EndpointChange::Settings {
        policy: settings.check().unwrap(),
        settings: Box::new(settings),
        if_updated_at: endpoint.updated_at,
    };
    fixture.store.change_endpoint(&Initiator::Gateway, &ours(), endpoint.id, change, at(2)).await.unwrap();
}

async fn a_change_to_skip_and_a_death_at_the_same_time_leave_no_lane_blocked(fixture: StoreFixture) {
    for n in 0..50 {
        let endpoint = fixture.endpoint(json!({})).await;
        let head = fixture.claim(keyed(&format!("a{n}"), &endpoint)).await;
        let next = format!("b{n}");
        fixture.accept(keyed(&next, &endpoint)).await;
        tokio::join!(skip_dead(&fixture, &endpoint), fixture.die(&head, DeadCause::Refused, at(1)));
        assert_eq!(fixture.due_ids(&endpoint, at(100)).await, [next], "round {n}");
    }
}

async fn lanes_tell_their_head_and_who_waits(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let head = fixture.claim(keyed("a", &endpoint)).await;
    for id in ["b", "c"] {
        fixture.accept(keyed(id, &endpoint)).await;
    }
    fixture.claim(event("lone").key("j").to(&endpoint)).await;
    let all = lanes(&fixture, &endpoint, false).await;
    let listed: Vec<_> = all.iter().map(|lane| (lane.key.as_deref().unwrap(), lane.waiting, lane.is_blocked)).collect();
    assert_eq!(listed, [("j", 0, false), ("k", 2, false)]);
    assert!(lanes(&fixture, &endpoint, true).await.is_empty());

    fixture.die(&head, DeadCause::Refused, at(5)).await;
    let blocked = lanes(&fixture, &endpoint, true).await;
    assert_eq!((blocked.len(), blocked[0].head, blocked[0].waiting), (1, head.id, 2));
    fixture.change(head.id, DeliveryChange::Discard, at(9)).await.unwrap();
    let moved = &lanes(&fixture, &endpoint, false).await[1];
    assert_eq!((moved.head, moved.since, moved.waiting), (fixture.deliveries_of("b").await[0].id, at(9), 1));

    let claims: Vec<Claim> = fixture.due(&endpoint, at(100)).await.claims;
    for claim in claims {
        let mut next = Some(claim);
        while let Some(claim) = next {
            next = fixture.deliver(&claim, at(10)).await.freed.pop();
        }
    }
    assert!(lanes(&fixture, &endpoint, false).await.is_empty(), "a lane with nothing to deliver is not listed");
    let page = PageRequest { cursor: None, limit: 100 };
    assert!(fixture.store.lanes(&tenant("other"), endpoint.id, false, page).await.unwrap().data.is_empty());
}

async fn lanes_page_by_key(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let batch = (0..25).map(|n| event(&format!("e{n}")).key(&format!("k{n:02}")).to(&endpoint)).collect();
    let answers = fixture.accept_all(batch, BatchMode::All).await;
    assert!(answers.iter().all(|answer| matches!(answer, AcceptResult::New { .. })));
    let (mut keys, mut cursor) = (Vec::new(), None);
    loop {
        let page = fixture.store.lanes(&ours(), endpoint.id, false, PageRequest { cursor, limit: 10 }).await.unwrap();
        assert!(page.data.len() <= 10);
        keys.extend(page.data.into_iter().map(|lane| lane.key.unwrap()));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(keys, (0..25).map(|n| format!("k{n:02}")).collect::<Vec<_>>());
}

async fn a_lane_with_several_dead_waits_behind_each_and_skips_all_when_told(fixture: StoreFixture) {
    // Held too long, a whole lane may die before its turn comes.
    let over = |progress| ClaimOutcome::Expired { by: DeadlineSource::Hold, progress };
    for (lane, skips) in [("waits", false), ("skips", true)] {
        let endpoint = fixture.endpoint(json!({})).await;
        let mut ids = Vec::new();
        for n in 0..4 {
            let id = format!("{lane}-{n}");
            fixture.accept(event(&id).key("k").to(&endpoint)).await;
            ids.push(fixture.deliveries_of(&id).await[0].id);
        }
        for id in &ids[..3] {
            let outcome = over(fixture.delivery(*id).await.progress);
            let settlement = Settlement { id: *id, endpoint: endpoint.id, now: at(9), outcome };
            let settled = fixture.store.settle(fixture.lease(endpoint.id), settlement).await.unwrap();
            assert!(settled.freed.is_empty(), "a dead letter blocks");
        }
        if skips {
            let current = fixture.store.any_endpoint(endpoint.id).unwrap();
            let settings = EndpointSettings { on_dead: OnDead::Skip, ..current.settings.clone() };
            let (policy, if_updated_at) = (settings.check().unwrap(), current.updated_at);
            let change = EndpointChange::Settings { settings: Box::new(settings), policy, if_updated_at };
            fixture.store.change_endpoint(&Initiator::Gateway, &ours(), endpoint.id, change, at(10)).await.unwrap();
        } else {
            // The head is replayed and arrives; the next dead one is head now.
            fixture.change(ids[0], DeliveryChange::Replay, at(10)).await.unwrap();
            let head = fixture.due(&endpoint, at(10)).await.claims.remove(0);
            assert!(fixture.deliver(&head, at(11)).await.freed.is_empty(), "nobody replayed the second");
            assert!(fixture.due_ids(&endpoint, at(100)).await.is_empty());
            assert_eq!(fixture.store.lane_head(endpoint.id, "k").await.unwrap(), Some((ids[1], true)));
            for id in &ids[1..3] {
                fixture.change(*id, DeliveryChange::Discard, at(12)).await.unwrap();
            }
        }
        assert_eq!(fixture.due_ids(&endpoint, at(100)).await, [format!("{lane}-3")]);
        assert_eq!(fixture.store.lane_head(endpoint.id, "k").await.unwrap(), Some((ids[3], false)));
    }
}

async fn a_lane_that_keeps_others_waiting_is_found_among_those_that_do_not(fixture: StoreFixture) {
    let quiet = fixture.endpoint(json!({})).await;
    let blocked = fixture.endpoint(json!({})).await;
    let one_lane = fixture.endpoint(json!({"ordering": "endpoint"})).await;
    // Dead heads with nobody behind them, at both endpoints.
    for (n, endpoint) in [&quiet, &quiet, &blocked, &blocked].into_iter().enumerate() {
        let claim = fixture.claim(event(&format!("d{n}")).key(&format!("a{n}")).to(endpoint)).await;
        fixture.die(&claim, DeadCause::Refused, at(5)).await;
    }
    // A head that is under way, with one behind it.
    for id in ["busy", "behind"] {
        fixture.accept(event(id).key("b").to(&blocked)).await;
    }
    let found = async || {
        let endpoints = vec![quiet.id, blocked.id, one_lane.id];
        let mut found = fixture.store.blocked_lanes(endpoints, 100).await.unwrap();
        found.sort_by_key(|(id, _)| *id != blocked.id);
        found
    };
    assert!(found().await.is_empty(), "nobody waits behind a dead letter");

    let head = fixture.claim(event("head").key("k").to(&blocked)).await;
    for id in ["w1", "w2"] {
        fixture.accept(event(id).key("k").to(&blocked)).await;
    }
    let first = fixture.claim(event("first").to(&one_lane)).await;
    fixture.accept(event("second").to(&one_lane)).await;
    fixture.die(&head, DeadCause::Refused, at(7)).await;
    fixture.die(&first, DeadCause::Refused, at(7)).await;
    let lanes = found().await;
    let told: Vec<_> = lanes.iter().map(|(id, lane)| (*id, lane.key.as_deref(), lane.head, lane.waiting)).collect();
    assert_eq!(told, [(blocked.id, Some("k"), head.id, 2), (one_lane.id, None, first.id, 1)]);
    assert!(lanes.iter().all(|(_, lane)| lane.is_blocked));
    fixture.change(head.id, DeliveryChange::Discard, at(9)).await.unwrap();
    fixture.change(first.id, DeliveryChange::Discard, at(9)).await.unwrap();
    assert!(found().await.is_empty(), "they go on");
}

async fn a_lane_whose_last_was_delivered_is_empty_and_goes_on_with_the_next(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let first = fixture.claim(keyed("a", &endpoint).at(at(1))).await;
    fixture.deliver(&first, at(50)).await;
    assert!(lanes(&fixture, &endpoint, false).await.is_empty());
    assert_eq!(fixture.store.lane_head(endpoint.id, "k").await.unwrap(), None);
    let second = fixture.claim(keyed("b", &endpoint).at(at(60))).await;
    let head = async || lanes(&fixture, &endpoint, false).await.first().map(|lane| (lane.head, lane.since));
    assert_eq!((second.seq, head().await), (Some(2), Some((second.id, at(60)))));
    // What has passed and is replayed holds up nobody, before others and after them.
    fixture.change(first.id, DeliveryChange::Replay, at(70)).await.unwrap();
    assert_eq!(head().await, Some((second.id, at(60))));
    assert!(fixture.deliver(&second, at(80)).await.freed.is_empty());
    fixture.change(second.id, DeliveryChange::Replay, at(90)).await.unwrap();
    assert_eq!(head().await, None);
    let third = fixture.claim(keyed("c", &endpoint).at(at(95))).await;
    assert_eq!((third.seq, head().await), (Some(3), Some((third.id, at(95)))));
    assert_eq!(fixture.due_ids(&endpoint, at(100)).await, ["a", "b", "c"]);
    assert_eq!(fixture.findings().await, [""; 0]);
}

async fn a_lane_is_idle_from_the_end_of_its_last_delivery_on(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(keyed("a", &endpoint).at(at(10))).await;
    fixture.deliver(&claim, at(150)).await;
    fixture.change(claim.id, DeliveryChange::Replay, at(200)).await.unwrap();
    // A lane that is forgotten leaves its numbers to all later ones of its endpoint.
    let first_of = async |key: &str, now| fixture.claim(event(key).key(key).at(now).to(&endpoint)).await.seq.unwrap();
    fixture.forget(at(150), at(150)).await;
    assert_eq!(first_of("x", at(210)).await, 1, "the lane was used at that very time");
    fixture.forget(at(151), at(151)).await;
    assert_eq!(first_of("y", at(220)).await, 2, "it was used before");
}
