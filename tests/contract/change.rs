//! What a person does to a delivery: retry now, cancel, replay, discard.

use posthaste::model::audit::Initiator;
use posthaste::model::delivery::{DeadCause, DeliveryState};
use posthaste::model::next_state::NextState;
use posthaste::store::{Claim, DeliveryChange, Error};
use serde_json::json;

use crate::fixture::{StoreFixture, at, event, ours, tenant};

for_every_store! {
    only_the_right_states_can_be_changed,
    retrying_now_cuts_the_wait_and_nothing_else,
    a_replay_has_a_fresh_budget_and_its_attempts_go_on_counting,
    cancelling_a_head_lets_the_lane_move_on,
    cancelling_a_member_in_the_middle_leaves_the_head_alone,
    discarding_a_dead_head_keeps_its_cause_and_frees_the_lane,
    a_replayed_dead_head_is_head_again_and_the_lane_drains_in_order,
    a_replayed_passed_member_keeps_its_place_and_holds_no_one_up,
    another_tenants_delivery_is_not_there,
    changes_survive_closing,
}

/// A delivery in each state: waiting, delivered, dead, cancelled.
async fn one_of_each(fixture: &StoreFixture) -> [(DeliveryState, Claim); 4] {
    let endpoint = fixture.endpoint(json!({})).await;
    let waiting = fixture.claim(event("waiting").to(&endpoint)).await;
    let delivered = fixture.claim(event("delivered").to(&endpoint)).await;
    fixture.deliver(&delivered, at(1)).await;
    let dead = fixture.claim(event("dead").to(&endpoint)).await;
    fixture.die(&dead, DeadCause::Refused, at(1)).await;
    let cancelled = fixture.claim(event("cancelled").to(&endpoint)).await;
    fixture.change(cancelled.id, DeliveryChange::Cancel, at(1)).await.unwrap();
    [
        (DeliveryState::Waiting, waiting),
        (DeliveryState::Delivered, delivered),
        (DeliveryState::Dead, dead),
        (DeliveryState::Cancelled, cancelled),
    ]
}

async fn only_the_right_states_can_be_changed(fixture: StoreFixture) {
    for (state, claim) in one_of_each(&fixture).await {
        let refused: &[DeliveryChange] = match state {
            DeliveryState::Waiting => &[DeliveryChange::Replay, DeliveryChange::Discard],
            DeliveryState::Delivered | DeliveryState::Cancelled => {
                &[DeliveryChange::RetryNow, DeliveryChange::Cancel, DeliveryChange::Discard]
            }
            DeliveryState::Dead => &[DeliveryChange::RetryNow, DeliveryChange::Cancel],
        };
        let before = format!("{:?}", fixture.delivery(claim.id).await);
        for change in refused {
            let problem = fixture.change(claim.id, *change, at(9)).await.unwrap_err();
            assert!(matches!(problem, Error::WrongState(_)), "{change:?} of {state:?}: {problem:?}");
            assert_eq!(format!("{:?}", fixture.delivery(claim.id).await), before, "nothing changed");
        }
    }
    for (state, claim) in one_of_each_again(&fixture).await {
        let allowed = match state {
            DeliveryState::Waiting => DeliveryChange::Cancel,
            DeliveryState::Delivered | DeliveryState::Dead | DeliveryState::Cancelled => DeliveryChange::Replay,
        };
        fixture.change(claim.id, allowed, at(9)).await.unwrap();
        let expected =
            if allowed == DeliveryChange::Cancel { DeliveryState::Cancelled } else { DeliveryState::Waiting };
        assert_eq!(fixture.state(claim.id).await, expected);
    }
}

/// The deliveries that [`one_of_each`] made, as they stand now.
async fn one_of_each_again(fixture: &StoreFixture) -> Vec<(DeliveryState, Claim)> {
    let mut found = Vec::new();
    for id in ["waiting", "delivered", "dead", "cancelled"] {
        let delivery = fixture.deliveries_of(id).await.remove(0);
        let event = fixture.store.event(&ours(), &delivery.event_id).await.unwrap().unwrap().event;
        let claim = Claim {
            id: delivery.id,
            endpoint: delivery.endpoint_id,
            event: event.into(),
            format: Default::default(),
            lane: None,
            seq: delivery.seq,
            due_at: delivery.due_at,
            is_urgent: false,
            expires_at: None,
            progress: delivery.progress,
            is_damaged: false,
        };
        found.push((delivery.state, claim));
    }
    found
}

async fn retrying_now_cuts_the_wait_and_nothing_else(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    fixture.attempted(&claim, NextState::Waiting { due_at: at(600) }, at(1)).await;
    let before = fixture.delivery(claim.id).await.progress;
    let changed = fixture.change(claim.id, DeliveryChange::RetryNow, at(30)).await.unwrap();
    assert_eq!((changed.endpoint, changed.due_at), (endpoint.id, Some(at(30))));
    let due = fixture.due(&endpoint, at(30)).await.claims;
    assert_eq!((due[0].id, due[0].progress), (claim.id, before));
    // What is overdue does not lose its turn by it.
    fixture.change(claim.id, DeliveryChange::RetryNow, at(40)).await.unwrap();
    assert_eq!(fixture.delivery(claim.id).await.due_at, at(30));
}

async fn a_replay_has_a_fresh_budget_and_its_attempts_go_on_counting(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    fixture.attempted(&claim, NextState::Waiting { due_at: at(1) }, at(1)).await;
    let claim = fixture.due(&endpoint, at(1)).await.claims.remove(0);
    fixture.die(&claim, DeadCause::Exhausted, at(2)).await;
    let changed = fixture.change(claim.id, DeliveryChange::Replay, at(50)).await.unwrap();
    assert_eq!(changed.due_at, Some(at(50)));
    let delivery = fixture.delivery(claim.id).await;
    assert_eq!((delivery.state, delivery.cause, delivery.finished_at), (DeliveryState::Waiting, None, None));
    let again = fixture.due(&endpoint, at(50)).await.claims.remove(0);
    assert_eq!((again.progress.attempts, again.progress.attempts_before, again.progress.age_from), (2, 2, None));
    fixture.deliver(&again, at(51)).await;
    let numbers: Vec<_> = fixture.attempts(claim.id).await.iter().map(|attempt| attempt.number).collect();
    assert_eq!(numbers, [1, 2, 3]);
    assert_eq!(fixture.delivery(claim.id).await.first_attempt_at, Some(at(1)));
}

/// A lane of four, `l1` to `l4`, and its head.
async fn lane_of_four(fixture: &StoreFixture) -> (std::sync::Arc<posthaste::model::endpoint::Endpoint>, Claim) {
    let endpoint = fixture.endpoint(json!({})).await;
    let head = fixture.claim(event("l1").key("k").to(&endpoint)).await;
    for id in ["l2", "l3", "l4"] {
        fixture.accept(event(id).key("k").to(&endpoint)).await;
    }
    (endpoint, head)
}

/// Delivers what is due in a lane until nothing is, and tells the order.
async fn drain(fixture: &StoreFixture, endpoint: &posthaste::model::endpoint::Endpoint) -> Vec<String> {
    let mut order = Vec::new();
    loop {
        let due = fixture.due(endpoint, at(1_000)).await.claims;
        let Some(claim) = due.first() else { return order };
        assert_eq!(due.len(), 1, "one of a lane at a time");
        order.push(claim.event.id.to_string());
        fixture.deliver(claim, at(1_000)).await;
    }
}

async fn cancelling_a_head_lets_the_lane_move_on(fixture: StoreFixture) {
    let (endpoint, head) = lane_of_four(&fixture).await;
    let changed = fixture.change(head.id, DeliveryChange::Cancel, at(5)).await.unwrap();
    assert_eq!(
        (changed.endpoint, changed.due_at),
        (endpoint.id, Some(at(0))),
        "the next is due, and the caller is told"
    );
    assert_eq!(drain(&fixture, &endpoint).await, ["l2", "l3", "l4"]);
}

async fn cancelling_a_member_in_the_middle_leaves_the_head_alone(fixture: StoreFixture) {
    let (endpoint, _) = lane_of_four(&fixture).await;
    let middle = fixture.deliveries_of("l2").await[0].id;
    assert_eq!(fixture.change(middle, DeliveryChange::Cancel, at(5)).await.unwrap().due_at, None);
    let delivery = fixture.delivery(middle).await;
    assert_eq!((delivery.state, delivery.cause, delivery.finished_at), (DeliveryState::Cancelled, None, Some(at(5))));
    assert_eq!(drain(&fixture, &endpoint).await, ["l1", "l3", "l4"]);
}

async fn discarding_a_dead_head_keeps_its_cause_and_frees_the_lane(fixture: StoreFixture) {
    let (endpoint, head) = lane_of_four(&fixture).await;
    fixture.die(&head, DeadCause::Refused, at(1)).await;
    let changed = fixture.change(head.id, DeliveryChange::Discard, at(5)).await.unwrap();
    assert_eq!(changed.due_at, Some(at(0)));
    let delivery = fixture.delivery(head.id).await;
    assert_eq!((delivery.state, delivery.cause), (DeliveryState::Cancelled, Some(DeadCause::Refused)));
    assert_eq!(drain(&fixture, &endpoint).await, ["l2", "l3", "l4"]);
}

async fn a_replayed_dead_head_is_head_again_and_the_lane_drains_in_order(fixture: StoreFixture) {
    let (endpoint, head) = lane_of_four(&fixture).await;
    fixture.die(&head, DeadCause::Refused, at(1)).await;
    fixture.change(head.id, DeliveryChange::Replay, at(5)).await.unwrap();
    assert_eq!(fixture.due_ids(&endpoint, at(100)).await, ["l1"]);
    assert_eq!(drain(&fixture, &endpoint).await, ["l1", "l2", "l3", "l4"]);
}

async fn a_replayed_passed_member_keeps_its_place_and_holds_no_one_up(fixture: StoreFixture) {
    let (endpoint, head) = lane_of_four(&fixture).await;
    let second = fixture.deliver(&head, at(1)).await.freed.pop().unwrap();
    fixture.change(head.id, DeliveryChange::Replay, at(5)).await.unwrap();
    let due = fixture.due(&endpoint, at(100)).await.claims;
    let places: Vec<_> = due.iter().map(|claim| (claim.event.id.as_str(), claim.seq)).collect();
    assert_eq!(places, [("l2", Some(2)), ("l1", Some(1))], "it waits beside the head, not before it");
    let third = fixture.deliver(&second, at(6)).await.freed.pop().unwrap();
    assert_eq!(third.event.id.as_str(), "l3");

    // Dying again, it blocks no one; delivered, it promotes no one.
    fixture.die(&due[1], DeadCause::Refused, at(7)).await;
    assert_eq!(fixture.due_ids(&endpoint, at(100)).await, ["l3"]);
    fixture.change(head.id, DeliveryChange::Replay, at(8)).await.unwrap();
    let again = fixture.due(&endpoint, at(100)).await.claims.into_iter().find(|claim| claim.id == head.id).unwrap();
    assert!(fixture.deliver(&again, at(9)).await.freed.is_empty());
    assert_eq!(drain(&fixture, &endpoint).await, ["l3", "l4"]);
    assert_eq!(fixture.claim(event("l5").key("k").to(&endpoint)).await.seq, Some(5));
}

async fn another_tenants_delivery_is_not_there(fixture: StoreFixture) {
    fixture.put_tenant("other").await;
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    let other = tenant("other");
    for change in [DeliveryChange::RetryNow, DeliveryChange::Cancel, DeliveryChange::Replay, DeliveryChange::Discard] {
        let problem = fixture.store.change(&Initiator::Gateway, &other, claim.id, change, at(1)).await.unwrap_err();
        assert!(matches!(problem, Error::NotFound(_)), "{problem:?}");
    }
    assert!(fixture.store.delivery(&other, claim.id).await.unwrap().is_none());
    assert!(fixture.store.attempts(&other, claim.id).await.unwrap().is_none());
    assert!(fixture.store.event(&other, &"a".parse().unwrap()).await.unwrap().is_none());
    assert!(fixture.store.event_deliveries(&other, &"a".parse().unwrap()).await.unwrap().is_none());
    assert_eq!(fixture.state(claim.id).await, DeliveryState::Waiting);
}

async fn changes_survive_closing(fixture: StoreFixture) {
    let (endpoint, head) = lane_of_four(&fixture).await;
    fixture.die(&head, DeadCause::Refused, at(1)).await;
    fixture.change(head.id, DeliveryChange::Discard, at(5)).await.unwrap();
    fixture.change(fixture.deliveries_of("l3").await[0].id, DeliveryChange::Cancel, at(5)).await.unwrap();
    let fixture = fixture.reopened().await;
    assert_eq!(fixture.delivery(head.id).await.cause, Some(DeadCause::Refused));
    assert_eq!(drain(&fixture, &endpoint).await, ["l2", "l4"]);
}
