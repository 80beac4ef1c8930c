//! What a person does to a delivery: retry now, cancel, replay, discard.

use posthaste::model::delivery::{DeadCause, DeliveryState};
use posthaste::model::next_state::NextState;
use posthaste::store::{Claim, DeliveryChange, Error};
use serde_json::json;

use crate::house::{House, at, event, ours, tenant};

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
async fn one_of_each(house: &House) -> [(DeliveryState, Claim); 4] {
    let endpoint = house.endpoint(json!({})).await;
    let waiting = house.claim(event("waiting").to(&endpoint)).await;
    let delivered = house.claim(event("delivered").to(&endpoint)).await;
    house.deliver(&delivered, at(1)).await;
    let dead = house.claim(event("dead").to(&endpoint)).await;
    house.die(&dead, DeadCause::Refused, at(1)).await;
    let cancelled = house.claim(event("cancelled").to(&endpoint)).await;
    house.change(cancelled.id, DeliveryChange::Cancel, at(1)).await.unwrap();
    [
        (DeliveryState::Waiting, waiting),
        (DeliveryState::Delivered, delivered),
        (DeliveryState::Dead, dead),
        (DeliveryState::Cancelled, cancelled),
    ]
}

async fn only_the_right_states_can_be_changed(house: House) {
    for (state, claim) in one_of_each(&house).await {
        let refused: &[DeliveryChange] = match state {
            DeliveryState::Waiting => &[DeliveryChange::Replay, DeliveryChange::Discard],
            DeliveryState::Delivered | DeliveryState::Cancelled => {
                &[DeliveryChange::RetryNow, DeliveryChange::Cancel, DeliveryChange::Discard]
            }
            DeliveryState::Dead => &[DeliveryChange::RetryNow, DeliveryChange::Cancel],
        };
        let before = format!("{:?}", house.delivery(claim.id).await);
        for change in refused {
            let problem = house.change(claim.id, *change, at(9)).await.unwrap_err();
            assert!(matches!(problem, Error::WrongState(_)), "{change:?} of {state:?}: {problem:?}");
            assert_eq!(format!("{:?}", house.delivery(claim.id).await), before, "nothing changed");
        }
    }
    for (state, claim) in one_of_each_again(&house).await {
        let allowed = match state {
            DeliveryState::Waiting => DeliveryChange::Cancel,
            DeliveryState::Delivered | DeliveryState::Dead | DeliveryState::Cancelled => DeliveryChange::Replay,
        };
        house.change(claim.id, allowed, at(9)).await.unwrap();
        let expected =
            if allowed == DeliveryChange::Cancel { DeliveryState::Cancelled } else { DeliveryState::Waiting };
        assert_eq!(house.state(claim.id).await, expected);
    }
}

/// The deliveries that [`one_of_each`] made, as they stand now.
async fn one_of_each_again(house: &House) -> Vec<(DeliveryState, Claim)> {
    let mut found = Vec::new();
    for id in ["waiting", "delivered", "dead", "cancelled"] {
        let delivery = house.deliveries_of(id).await.remove(0);
        let event = house.store.event(&ours(), &delivery.event_id).await.unwrap().unwrap().event;
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

async fn retrying_now_cuts_the_wait_and_nothing_else(house: House) {
    let endpoint = house.endpoint(json!({})).await;
    let claim = house.claim(event("a").to(&endpoint)).await;
    house.attempted(&claim, NextState::Waiting { due_at: at(600) }, at(1)).await;
    let before = house.delivery(claim.id).await.progress;
    let changed = house.change(claim.id, DeliveryChange::RetryNow, at(30)).await.unwrap();
    assert_eq!((changed.endpoint, changed.due_at), (endpoint.id, Some(at(30))));
    let due = house.due(&endpoint, at(30)).await.claims;
    assert_eq!((due[0].id, due[0].progress), (claim.id, before));
    // What is overdue does not lose its turn by it.
    house.change(claim.id, DeliveryChange::RetryNow, at(40)).await.unwrap();
    assert_eq!(house.delivery(claim.id).await.due_at, at(30));
}

async fn a_replay_has_a_fresh_budget_and_its_attempts_go_on_counting(house: House) {
    let endpoint = house.endpoint(json!({})).await;
    let claim = house.claim(event("a").to(&endpoint)).await;
    house.attempted(&claim, NextState::Waiting { due_at: at(1) }, at(1)).await;
    let claim = house.due(&endpoint, at(1)).await.claims.remove(0);
    house.die(&claim, DeadCause::Exhausted, at(2)).await;
    let changed = house.change(claim.id, DeliveryChange::Replay, at(50)).await.unwrap();
    assert_eq!(changed.due_at, Some(at(50)));
    let delivery = house.delivery(claim.id).await;
    assert_eq!((delivery.state, delivery.cause, delivery.finished_at), (DeliveryState::Waiting, None, None));
    let again = house.due(&endpoint, at(50)).await.claims.remove(0);
    assert_eq!((again.progress.attempts, again.progress.attempts_before, again.progress.age_from), (2, 2, None));
    house.deliver(&again, at(51)).await;
    let numbers: Vec<_> = house.attempts(claim.id).await.iter().map(|attempt| attempt.number).collect();
    assert_eq!(numbers, [1, 2, 3]);
    assert_eq!(house.delivery(claim.id).await.first_attempt_at, Some(at(1)));
}

/// A lane of four, `l1` to `l4`, and its head.
async fn lane_of_four(house: &House) -> (std::sync::Arc<posthaste::model::endpoint::Endpoint>, Claim) {
    let endpoint = house.endpoint(json!({})).await;
    let head = house.claim(event("l1").key("k").to(&endpoint)).await;
    for id in ["l2", "l3", "l4"] {
        house.accept(event(id).key("k").to(&endpoint)).await;
    }
    (endpoint, head)
}

/// Delivers what is due in a lane until nothing is, and tells the order.
async fn drain(house: &House, endpoint: &posthaste::model::endpoint::Endpoint) -> Vec<String> {
    let mut order = Vec::new();
    loop {
        let due = house.due(endpoint, at(1_000)).await.claims;
        let Some(claim) = due.first() else { return order };
        assert_eq!(due.len(), 1, "one of a lane at a time");
        order.push(claim.event.id.to_string());
        house.deliver(claim, at(1_000)).await;
    }
}

async fn cancelling_a_head_lets_the_lane_move_on(house: House) {
    let (endpoint, head) = lane_of_four(&house).await;
    let changed = house.change(head.id, DeliveryChange::Cancel, at(5)).await.unwrap();
    assert_eq!(
        (changed.endpoint, changed.due_at),
        (endpoint.id, Some(at(0))),
        "the next is due, and the caller is told"
    );
    assert_eq!(drain(&house, &endpoint).await, ["l2", "l3", "l4"]);
}

async fn cancelling_a_member_in_the_middle_leaves_the_head_alone(house: House) {
    let (endpoint, _) = lane_of_four(&house).await;
    let middle = house.deliveries_of("l2").await[0].id;
    assert_eq!(house.change(middle, DeliveryChange::Cancel, at(5)).await.unwrap().due_at, None);
    let delivery = house.delivery(middle).await;
    assert_eq!((delivery.state, delivery.cause, delivery.finished_at), (DeliveryState::Cancelled, None, Some(at(5))));
    assert_eq!(drain(&house, &endpoint).await, ["l1", "l3", "l4"]);
}

async fn discarding_a_dead_head_keeps_its_cause_and_frees_the_lane(house: House) {
    let (endpoint, head) = lane_of_four(&house).await;
    house.die(&head, DeadCause::Refused, at(1)).await;
    let changed = house.change(head.id, DeliveryChange::Discard, at(5)).await.unwrap();
    assert_eq!(changed.due_at, Some(at(0)));
    let delivery = house.delivery(head.id).await;
    assert_eq!((delivery.state, delivery.cause), (DeliveryState::Cancelled, Some(DeadCause::Refused)));
    assert_eq!(drain(&house, &endpoint).await, ["l2", "l3", "l4"]);
}

async fn a_replayed_dead_head_is_head_again_and_the_lane_drains_in_order(house: House) {
    let (endpoint, head) = lane_of_four(&house).await;
    house.die(&head, DeadCause::Refused, at(1)).await;
    house.change(head.id, DeliveryChange::Replay, at(5)).await.unwrap();
    assert_eq!(house.due_ids(&endpoint, at(100)).await, ["l1"]);
    assert_eq!(drain(&house, &endpoint).await, ["l1", "l2", "l3", "l4"]);
}

async fn a_replayed_passed_member_keeps_its_place_and_holds_no_one_up(house: House) {
    let (endpoint, head) = lane_of_four(&house).await;
    let second = house.deliver(&head, at(1)).await.freed.pop().unwrap();
    house.change(head.id, DeliveryChange::Replay, at(5)).await.unwrap();
    let due = house.due(&endpoint, at(100)).await.claims;
    let places: Vec<_> = due.iter().map(|claim| (claim.event.id.as_str(), claim.seq)).collect();
    assert_eq!(places, [("l2", Some(2)), ("l1", Some(1))], "it waits beside the head, not before it");
    let third = house.deliver(&second, at(6)).await.freed.pop().unwrap();
    assert_eq!(third.event.id.as_str(), "l3");

    // Dying again, it blocks no one; delivered, it promotes no one.
    house.die(&due[1], DeadCause::Refused, at(7)).await;
    assert_eq!(house.due_ids(&endpoint, at(100)).await, ["l3"]);
    house.change(head.id, DeliveryChange::Replay, at(8)).await.unwrap();
    let again = house.due(&endpoint, at(100)).await.claims.into_iter().find(|claim| claim.id == head.id).unwrap();
    assert!(house.deliver(&again, at(9)).await.freed.is_empty());
    assert_eq!(drain(&house, &endpoint).await, ["l3", "l4"]);
    assert_eq!(house.claim(event("l5").key("k").to(&endpoint)).await.seq, Some(5));
}

async fn another_tenants_delivery_is_not_there(house: House) {
    house.put_tenant("other").await;
    let endpoint = house.endpoint(json!({})).await;
    let claim = house.claim(event("a").to(&endpoint)).await;
    let other = tenant("other");
    for change in [DeliveryChange::RetryNow, DeliveryChange::Cancel, DeliveryChange::Replay, DeliveryChange::Discard] {
        let problem = house.store.change(&other, claim.id, change, at(1)).await.unwrap_err();
        assert!(matches!(problem, Error::NotFound(_)), "{problem:?}");
    }
    assert!(house.store.delivery(&other, claim.id).await.unwrap().is_none());
    assert!(house.store.attempts(&other, claim.id).await.unwrap().is_none());
    assert!(house.store.event(&other, &"a".parse().unwrap()).await.unwrap().is_none());
    assert!(house.store.event_deliveries(&other, &"a".parse().unwrap()).await.unwrap().is_none());
    assert_eq!(house.state(claim.id).await, DeliveryState::Waiting);
}

async fn changes_survive_closing(house: House) {
    let (endpoint, head) = lane_of_four(&house).await;
    house.die(&head, DeadCause::Refused, at(1)).await;
    house.change(head.id, DeliveryChange::Discard, at(5)).await.unwrap();
    house.change(house.deliveries_of("l3").await[0].id, DeliveryChange::Cancel, at(5)).await.unwrap();
    let house = house.reopened().await;
    assert_eq!(house.delivery(head.id).await.cause, Some(DeadCause::Refused));
    assert_eq!(drain(&house, &endpoint).await, ["l2", "l4"]);
}
