//! Forgetting: what is finished and old goes, what waits never does.

use posthaste::model::audit::Initiator;
use posthaste::model::delivery::{DeadCause, DeliveryState};
use posthaste::model::id::{EventId, TenantId};
use posthaste::model::next_state::NextState;
use posthaste::model::operational_event::OperationalEventType;
use posthaste::store::{
    AcceptResult, BatchMode, DeliveryChange, EventQuery, ForgottenCounts, PageRequest, RetentionHorizon, RetentionScope,
};
use serde_json::json;

use crate::fixture::{StoreFixture, at, event, ours};

for_every_store! {
    what_finished_long_ago_goes_with_its_attempts_and_its_event,
    what_finished_lately_stays_and_so_does_its_event,
    what_waits_is_never_forgotten,
    a_dead_letter_stays_until_its_own_horizon,
    a_dead_letter_may_be_kept_for_a_shorter_time_than_the_rest,
    an_event_goes_with_the_last_of_its_deliveries,
    an_event_that_nobody_wanted_goes_too,
    a_dead_head_that_others_wait_behind_stays,
    an_idle_lane_is_forgotten_and_its_numbers_never_come_back,
    the_floor_of_sequence_numbers_never_falls,
    a_lane_in_use_is_not_forgotten,
    an_id_is_remembered_until_its_event_is_forgotten,
    one_step_looks_at_no_more_than_it_was_given,
    what_waited_for_deleted_endpoints_is_forgotten_in_its_time,
    what_is_accepted_after_forgetting_and_closing_belongs_to_its_own_event,
    the_store_does_not_grow_without_bound,
    forgotten_dead_letters_are_told_once_per_endpoint_with_their_number,
    forgotten_dead_letters_of_earlier_steps_are_told_after_a_restart,
    an_event_whose_deliveries_are_all_delivered_can_be_deleted_at_once,
}

async fn what_finished_long_ago_goes_with_its_attempts_and_its_event(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let delivered = fixture.claim(event("delivered").to(&endpoint)).await;
    fixture.attempted(&delivered, NextState::Waiting { due_at: at(1) }, at(1)).await;
    let again = fixture.due(&endpoint, at(1)).await.claims.remove(0);
    fixture.deliver(&again, at(2)).await;
    let cancelled = fixture.claim(event("cancelled").to(&endpoint)).await;
    fixture.change(cancelled.id, DeliveryChange::Cancel, at(2)).await.unwrap();
    let forgotten = fixture.forget(at(100), at(0)).await;
    assert_eq!((forgotten.events, forgotten.deliveries), (2, 2));
    for id in [delivered.id, cancelled.id] {
        assert!(fixture.store.delivery(&ours(), id).await.unwrap().is_none());
        assert!(fixture.store.attempts(&ours(), id).await.unwrap().is_none());
    }
    assert!(!fixture.is_known("delivered").await && !fixture.is_known("cancelled").await);
    assert!(fixture.list(Default::default(), 10).await.is_empty());
    assert_eq!(fixture.forget(at(100), at(0)).await, ForgottenCounts::default());
}

async fn an_event_whose_deliveries_are_all_delivered_can_be_deleted_at_once(fixture: StoreFixture) {
    let (one, two) = (fixture.endpoint(json!({})).await, fixture.endpoint(json!({})).await);
    let id = EventId::from_stored("a");
    let forgotten = async || fixture.store.forget_delivered(&ours(), &id).await.unwrap();
    let claims = fixture.accept(event("a").to(&one).to(&two)).await;
    let other = fixture.claim(event("b").to(&one)).await;
    fixture.deliver(&other, at(1)).await;
    let stored = fixture.store.usage(&[ours()]).await.unwrap()[0].stored_bytes;
    fixture.attempted(&claims[0], NextState::Waiting { due_at: at(1) }, at(1)).await;
    let again = fixture.due(&one, at(1)).await.claims.remove(0);
    fixture.deliver(&again, at(2)).await;
    assert!(!forgotten().await, "one of its deliveries still waits");
    assert_eq!(fixture.state(claims[0].id).await, DeliveryState::Delivered);
    fixture.deliver(&claims[1], at(2)).await;
    assert!(forgotten().await);
    for claim in &claims {
        assert!(fixture.store.delivery(&ours(), claim.id).await.unwrap().is_none());
        assert!(fixture.store.attempts(&ours(), claim.id).await.unwrap().is_none());
    }
    assert!(!fixture.is_known("a").await && fixture.is_known("b").await);
    assert_eq!(fixture.state(other.id).await, DeliveryState::Delivered);
    let left = fixture.store.usage(&[ours()]).await.unwrap()[0].stored_bytes;
    assert!(left < stored, "its bytes are free: {left} of {stored}");
    assert!(forgotten().await, "nothing is left of it");
    // Its numbers may be given again; nothing of the old is found under them.
    let next = fixture.claim(event("c").to(&one)).await;
    assert!(fixture.attempts(next.id).await.is_empty());
}

async fn what_finished_lately_stays_and_so_does_its_event(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    fixture.deliver(&claim, at(150)).await;
    assert_eq!(fixture.forget(at(100), at(100)).await, ForgottenCounts::default());
    assert_eq!(fixture.attempts(claim.id).await.len(), 1);
    assert!(fixture.is_known("a").await);
}

async fn what_waits_is_never_forgotten(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("head").key("k").to(&endpoint)).await;
    fixture.attempted(&claim, NextState::Waiting { due_at: at(500) }, at(1)).await;
    fixture.accept(event("behind").key("k").to(&endpoint)).await;
    fixture.accept(event("free").to(&endpoint)).await;
    assert_eq!(fixture.forget(at(1_000_000), at(1_000_000)).await, ForgottenCounts::default());
    assert_eq!(fixture.due_ids(&endpoint, at(1_000_000)).await, ["free", "head"]);
    assert_eq!(fixture.attempts(claim.id).await.len(), 1);
    let claim = fixture.due(&endpoint, at(500)).await.claims.pop().unwrap();
    assert_eq!(fixture.deliver(&claim, at(501)).await.freed.pop().unwrap().event.id.as_str(), "behind");
}

async fn a_dead_letter_stays_until_its_own_horizon(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").key("k").to(&endpoint)).await;
    fixture.die(&claim, DeadCause::Refused, at(50)).await;
    assert_eq!(fixture.forget(at(100), at(50)).await, ForgottenCounts::default());
    assert_eq!((fixture.state(claim.id).await, fixture.attempts(claim.id).await.len()), (DeliveryState::Dead, 1));
    let forgotten = fixture.forget(at(100), at(51)).await;
    assert_eq!((forgotten.events, forgotten.deliveries), (1, 1));
    // Its lane is not left standing behind something that is gone.
    assert_eq!(fixture.accept(event("b").key("k").at(at(200)).to(&endpoint)).await.len(), 1);
}

async fn a_dead_letter_may_be_kept_for_a_shorter_time_than_the_rest(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let dead = fixture.claim(event("dead").at(at(10)).to(&endpoint)).await;
    fixture.die(&dead, DeadCause::Refused, at(20)).await;
    let delivered = fixture.claim(event("delivered").at(at(10)).to(&endpoint)).await;
    fixture.deliver(&delivered, at(20)).await;
    let forgotten = fixture.forget(at(5), at(100)).await;
    assert_eq!((forgotten.events, forgotten.deliveries), (0, 1));
    assert!(fixture.store.delivery(&ours(), dead.id).await.unwrap().is_none());
    assert_eq!(fixture.state(delivered.id).await, DeliveryState::Delivered);
}

async fn an_event_goes_with_the_last_of_its_deliveries(fixture: StoreFixture) {
    let (one, two) = (fixture.endpoint(json!({})).await, fixture.endpoint(json!({})).await);
    let claims = fixture.accept(event("a").saying("[1]").to(&one).to(&two)).await;
    fixture.deliver(&claims[0], at(1)).await;
    let forgotten = fixture.forget(at(100), at(100)).await;
    assert_eq!((forgotten.events, forgotten.deliveries), (0, 1));
    assert!(fixture.is_known("a").await);
    let due = fixture.due(&two, at(100)).await.claims;
    assert_eq!(&due[0].event.data[..], b"[1]", "what still waits has its data");
    fixture.deliver(&due[0], at(101)).await;
    let forgotten = fixture.forget(at(200), at(200)).await;
    assert_eq!((forgotten.events, forgotten.deliveries), (1, 1));
}

async fn an_event_that_nobody_wanted_goes_too(fixture: StoreFixture) {
    fixture.accept(event("old")).await;
    fixture.accept(event("new").at(at(100))).await;
    let forgotten = fixture.forget(at(100), at(0)).await;
    assert_eq!((forgotten.events, forgotten.deliveries), (1, 0));
    assert!(!fixture.is_known("old").await && fixture.is_known("new").await);
}

async fn a_dead_head_that_others_wait_behind_stays(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let head = fixture.claim(event("a").key("k").to(&endpoint)).await;
    fixture.accept(event("b").key("k").to(&endpoint)).await;
    fixture.die(&head, DeadCause::Refused, at(1)).await;
    assert_eq!(fixture.forget(at(1_000), at(1_000)).await, ForgottenCounts::default());
    assert_eq!(fixture.state(head.id).await, DeliveryState::Dead);
    fixture.change(head.id, DeliveryChange::Replay, at(1_001)).await.unwrap();
    let head = fixture.due(&endpoint, at(1_001)).await.claims.remove(0);
    assert_eq!(fixture.deliver(&head, at(1_002)).await.freed.pop().unwrap().event.id.as_str(), "b");
}

async fn an_idle_lane_is_forgotten_and_its_numbers_never_come_back(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    for n in 1..=3 {
        let claim = fixture.claim(event(&format!("a{n}")).key("k").to(&endpoint)).await;
        assert_eq!(claim.seq, Some(n));
        fixture.deliver(&claim, at(n as i64)).await;
    }
    fixture.forget(at(100), at(100)).await;
    let fixture = fixture.reopened().await;
    let other = fixture.endpoint(json!({})).await;
    let draft = |id: &str, key: &str| event(id).key(key).at(at(200));
    assert_eq!(fixture.claim(draft("b", "k").to(&endpoint)).await.seq, Some(4));
    fixture.accept(draft("c", "k").to(&endpoint)).await;
    assert_eq!(fixture.deliveries_of("c").await[0].seq, Some(5));
    assert_eq!(fixture.claim(draft("d", "new").to(&endpoint)).await.seq, Some(4), "any new lane, in a batch or not");
    let batch = ["e", "f"].map(|id| draft(id, "batch").to(&endpoint));
    fixture.accept_all(batch.into(), BatchMode::All).await;
    assert_eq!(fixture.deliveries_of("e").await[0].seq, Some(4));
    assert_eq!(fixture.deliveries_of("f").await[0].seq, Some(5));
    assert_eq!(fixture.claim(draft("g", "k").to(&other)).await.seq, Some(1), "another endpoint has its own floor");
}

async fn the_floor_of_sequence_numbers_never_falls(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let deliver = async |id: &str, key: &str, now: i64| {
        let claim = fixture.claim(event(id).key(key).at(at(now)).to(&endpoint)).await;
        fixture.deliver(&claim, at(now)).await;
        claim.seq.unwrap()
    };
    assert_eq!(deliver("a", "short", 0).await, 1);
    assert_eq!(deliver("b", "long", 1).await, 1);
    assert_eq!(deliver("c", "long", 2).await, 2);
    assert_eq!(deliver("d", "short", 150).await, 2);
    fixture.forget(at(100), at(100)).await;
    // The lane that is still known goes on as it was.
    assert_eq!(deliver("e", "short", 160).await, 3);
    assert_eq!(deliver("f", "other", 161).await, 3);
    fixture.forget(at(161), at(161)).await;
    assert_eq!(deliver("g", "other", 170).await, 4);
    fixture.forget(at(300), at(300)).await;
    fixture.forget(at(300), at(300)).await;
    assert_eq!(deliver("h", "last", 400).await, 5);
}

async fn a_lane_in_use_is_not_forgotten(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let old = fixture.claim(event("a").key("k").to(&endpoint)).await;
    fixture.deliver(&old, at(1)).await;
    let late = fixture.claim(event("b").key("k").at(at(150)).to(&endpoint)).await;
    fixture.deliver(&late, at(151)).await;
    fixture.accept(event("waits").key("j").to(&endpoint)).await;
    fixture.forget(at(100), at(100)).await;
    assert_eq!(fixture.claim(event("c").key("k").at(at(200)).to(&endpoint)).await.seq, Some(3));
    fixture.accept(event("d").key("j").at(at(200)).to(&endpoint)).await;
    assert_eq!(fixture.deliveries_of("d").await[0].seq, Some(2));
}

async fn an_id_is_remembered_until_its_event_is_forgotten(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    fixture.deliver(&claim, at(150)).await;
    fixture.forget(at(100), at(100)).await;
    let answer = fixture.accept_all(vec![event("a").at(at(160)).to(&endpoint)], BatchMode::All).await;
    assert!(matches!(answer[0], AcceptResult::Duplicate { .. }), "{answer:?}");
    fixture.forget(at(200), at(200)).await;
    let answer = fixture.accept_all(vec![event("a").at(at(210)).to(&endpoint)], BatchMode::All).await;
    assert!(matches!(answer[0], AcceptResult::New { deliveries: 1, .. }), "{answer:?}");
}

async fn one_step_looks_at_no_more_than_it_was_given(fixture: StoreFixture) {
    fixture.accept_all((0..10).map(|n| event(&format!("e{n}"))).collect(), BatchMode::All).await;
    let (mut after, mut steps) = (0, Vec::new());
    loop {
        let horizon = RetentionHorizon {
            scope: RetentionScope::All { except: Vec::new(), days_before: at(100) },
            finished_before: at(100),
            dead_before: at(100),
            unmatched_before: at(100),
            after,
            step: 4,
        };
        let step = fixture.store.forget(horizon).await.unwrap();
        steps.push(step.events);
        match step.next {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(steps, [4, 4, 2]);
}

async fn what_waited_for_deleted_endpoints_is_forgotten_in_its_time(fixture: StoreFixture) {
    // Deleted all at once, so that the store's own tidying meets itself.
    let mut endpoints = Vec::new();
    for _ in 0..8 {
        endpoints.push(fixture.endpoint(json!({})).await);
    }
    let batch =
        (0..40).map(|n| endpoints.iter().fold(event(&format!("e{n}")).key("k"), |draft, endpoint| draft.to(endpoint)));
    fixture.accept_all(batch.collect(), BatchMode::All).await;
    let tenant = ours();
    let deletions = endpoints
        .iter()
        .map(|endpoint| fixture.store.delete_endpoint(&Initiator::Gateway, &tenant, endpoint.id, at(9)));
    futures_util::future::join_all(deletions).await.into_iter().for_each(|deleted| deleted.unwrap());
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    let mut forgotten = 0;
    while forgotten < 40 && std::time::Instant::now() < until {
        forgotten += fixture.forget(at(100), at(100)).await.events;
    }
    assert_eq!(forgotten, 40, "every event goes once its deliveries are cancelled");
    assert!(fixture.list(Default::default(), 100).await.is_empty());
}

async fn what_is_accepted_after_forgetting_and_closing_belongs_to_its_own_event(fixture: StoreFixture) {
    let (slow, quick) = (fixture.endpoint(json!({})).await, fixture.endpoint(json!({})).await);
    let claims = fixture.accept(event("old").to(&slow).to(&quick)).await;
    fixture.deliver(&claims[1], at(1)).await;
    fixture.forget(at(100), at(100)).await;
    let fixture = fixture.reopened().await;
    let new = fixture.claim(event("new").at(at(200)).to(&quick)).await;
    assert_ne!(new.id, claims[1].id);
    let of = |deliveries: Vec<posthaste::model::delivery::Delivery>| {
        deliveries.into_iter().map(|delivery| (delivery.event_id.to_string(), delivery.id)).collect::<Vec<_>>()
    };
    assert_eq!(of(fixture.deliveries_of("old").await), [("old".to_owned(), claims[0].id)]);
    assert_eq!(of(fixture.deliveries_of("new").await), [("new".to_owned(), new.id)]);
}

async fn the_store_does_not_grow_without_bound(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let body = format!("\"{}\"", "x".repeat(2_000));
    let mut sizes = Vec::new();
    for round in 0..6_i64 {
        let start = round * 1_000;
        let batch = (0..300)
            .map(|n| event(&format!("r{round}-{n}")).saying(&body).key(&format!("k{n}")).at(at(start)).to(&endpoint))
            .collect();
        fixture.accept_all(batch, BatchMode::All).await;
        for claim in fixture.due(&endpoint, at(start)).await.claims {
            fixture.attempted(&claim, NextState::Waiting { due_at: at(start + 1) }, at(start)).await;
        }
        for claim in fixture.due(&endpoint, at(start + 1)).await.claims {
            fixture.deliver(&claim, at(start + 2)).await;
        }
        sizes.push(fixture.size().await);
        let forgotten = fixture.forget(at(start + 500), at(start + 500)).await;
        assert_eq!((forgotten.events, forgotten.deliveries), (300, 300));
    }
    // A server that has just not swept is larger for a moment; one that grows does not come back.
    let least = *sizes[3..].iter().min().expect("three rounds");
    assert!(least <= sizes[1] + sizes[1] / 20, "it goes on growing: {sizes:?}");
}

/// The data of the operational events about forgotten dead letters, oldest first.
async fn told_forgotten(fixture: &StoreFixture) -> Vec<serde_json::Value> {
    let page = PageRequest { cursor: None, limit: 100 };
    let found = fixture.store.events(&TenantId::system(), EventQuery::default(), page).await.unwrap().data;
    let forgotten = found.into_iter().rev().filter(|record| record.event.event_type.as_str() == "delivery.forgotten");
    forgotten.map(|record| serde_json::from_slice(&record.event.data).unwrap()).collect()
}

async fn forgotten_dead_letters_are_told_once_per_endpoint_with_their_number(fixture: StoreFixture) {
    fixture.put_tenant("_system").await;
    let (one, two) = (fixture.endpoint(json!({})).await, fixture.endpoint(json!({})).await);
    for n in 0..20 {
        let claim = fixture.claim(event(&format!("a{n}")).at(at(n)).to(&one)).await;
        let cause = if n % 4 == 0 { DeadCause::Refused } else { DeadCause::Exhausted };
        fixture.die(&claim, cause, at(30 + n)).await;
    }
    let claim = fixture.claim(event("b").to(&two)).await;
    fixture.die(&claim, DeadCause::Gone, at(7)).await;
    let delivered = fixture.claim(event("c").to(&two)).await;
    fixture.deliver(&delivered, at(7)).await;
    let forgotten = fixture.forget(at(100), at(100)).await;
    assert_eq!((forgotten.deliveries, forgotten.dead), (22, 21));
    assert!(told_forgotten(&fixture).await.is_empty(), "they are told at the end");
    let report = fixture.store.report_forgotten(at(200)).await.unwrap();
    assert_eq!(report.operational_events, [OperationalEventType::DeliveryForgotten; 2]);
    assert!(!report.is_complete && fixture.store.report_forgotten(at(201)).await.unwrap().is_complete);
    let told = told_forgotten(&fixture).await;
    assert_eq!(told.len(), 2, "{told:?}");
    let expected = json!({
        "tenant": ours(), "endpoint": one.id, "count": 20, "causes": {"exhausted": 15, "refused": 5},
        "oldest_at": at(30), "newest_at": at(49), "at": at(200),
    });
    assert_eq!(told[0], expected);
    assert_eq!((&told[1]["endpoint"], &told[1]["count"]), (&json!(two.id), &json!(1)));
}

async fn forgotten_dead_letters_of_earlier_steps_are_told_after_a_restart(fixture: StoreFixture) {
    fixture.put_tenant("_system").await;
    let endpoint = fixture.endpoint(json!({})).await;
    let first = fixture.claim(event("a").to(&endpoint)).await;
    fixture.die(&first, DeadCause::Refused, at(1)).await;
    fixture.forget(at(100), at(100)).await;
    let fixture = fixture.reopened().await;
    let second = fixture.claim(event("b").at(at(150)).to(&endpoint)).await;
    fixture.die(&second, DeadCause::Refused, at(151)).await;
    fixture.forget(at(200), at(200)).await;
    fixture.store.report_forgotten(at(201)).await.unwrap();
    let told = told_forgotten(&fixture).await;
    assert_eq!((told.len(), &told[0]["count"]), (1, &json!(2)));
}
