//! How many wait, how much weight is in use, what is due first, and what
//! stumbles inside the gateway.

use posthaste::model::delivery::{DeadCause, DeliveryState};
use posthaste::model::endpoint::Endpoint;
use posthaste::model::next_state::NextState;
use posthaste::model::tenant::{EndpointDefaults, Tenant, TenantQuota};
use posthaste::store::{AcceptResult, BatchMode, Claim, ClaimOutcome, DeliveryChange, SettleEffects};
use serde_json::json;

use crate::house::{House, at, event, ours, settlement, tenant};

for_every_store! {
    what_waits_is_counted_through_its_whole_life,
    a_batch_that_is_refused_counts_nothing,
    what_is_told_waits_and_is_counted_like_all_else,
    a_deleted_endpoint_or_tenant_has_nothing_waiting,
    the_weight_in_use_is_that_of_tenants_with_endpoints,
    a_stumble_charges_nothing_and_the_third_is_the_end,
    a_replay_starts_counting_stumbles_anew,
    a_poisoned_head_blocks_its_lane_alone,
    a_stumble_of_what_was_cancelled_changes_nothing,
    the_oldest_due_is_the_first_that_may_go,
}

/// How many wait for these, as the store counts them and as it lists them.
async fn waiting(house: &House, endpoints: &[&Endpoint]) -> Vec<u64> {
    let count = |endpoint: &&Endpoint| house.store.waiting(Some(endpoint.id)).expect("it is counted");
    let counts: Vec<u64> = endpoints.iter().map(count).collect();
    for (endpoint, count) in endpoints.iter().zip(&counts) {
        let ask = posthaste::store::DeliveryQuery {
            state: Some(DeliveryState::Waiting),
            endpoint: Some(endpoint.id),
            ..Default::default()
        };
        assert_eq!(house.list(ask, 100).await.len() as u64, *count, "the count is that of the list");
    }
    assert_eq!(house.store.waiting(None), Some(counts.iter().sum::<u64>()), "all of them together");
    counts
}

async fn what_waits_is_counted_through_its_whole_life(house: House) {
    let (one, two) = (house.endpoint(json!({})).await, house.endpoint(json!({})).await);
    assert_eq!(waiting(&house, &[&one, &two]).await, [0, 0]);
    let both = house.accept(event("both").to(&one).to(&two)).await;
    let a = house.claim(event("a").to(&one)).await;
    let b = house.claim(event("b").to(&one)).await;
    let c = house.claim(event("c").key("k").to(&one)).await;
    house.accept(event("d").key("k").to(&one)).await;
    assert_eq!(waiting(&house, &[&one, &two]).await, [5, 1], "those behind in a lane too");
    let repeat = house.accept_all(vec![event("a").to(&one)], BatchMode::All).await;
    assert!(matches!(repeat[0], AcceptResult::Duplicate { .. }));
    assert_eq!(waiting(&house, &[&one, &two]).await, [5, 1], "a repeat is nothing new");
    let house = house.reopened().await;
    assert_eq!(waiting(&house, &[&one, &two]).await, [5, 1], "over closing");

    house.attempted(&a, NextState::Waiting { due_at: at(60) }, at(1)).await;
    assert_eq!(waiting(&house, &[&one, &two]).await, [5, 1], "a retry waits");
    house.deliver(&a, at(2)).await;
    house.die(&b, DeadCause::Exhausted, at(2)).await;
    assert_eq!(waiting(&house, &[&one, &two]).await, [3, 1]);
    house.change(c.id, DeliveryChange::Cancel, at(3)).await.unwrap();
    house.deliver(&c, at(4)).await;
    assert_eq!(waiting(&house, &[&one, &two]).await, [2, 1], "cancelled, and delivered all the same: once");
    house.change(a.id, DeliveryChange::Replay, at(5)).await.unwrap();
    house.change(b.id, DeliveryChange::Replay, at(5)).await.unwrap();
    assert_eq!(waiting(&house, &[&one, &two]).await, [4, 1]);
    let b = house.due(&one, at(9)).await.claims.into_iter().find(|claim| claim.id == b.id).unwrap();
    house.die(&b, DeadCause::Refused, at(9)).await;
    house.change(b.id, DeliveryChange::Discard, at(9)).await.unwrap();
    assert_eq!(waiting(&house, &[&one, &two]).await, [3, 1], "a dead one was not waiting");
    house.change(a.id, DeliveryChange::RetryNow, at(9)).await.unwrap();
    for claim in &both {
        house.deliver(claim, at(10)).await;
    }
    assert_eq!(waiting(&house, &[&one, &two]).await, [2, 0]);
    let house = house.reopened().await;
    assert_eq!(waiting(&house, &[&one, &two]).await, [2, 0]);
}

async fn a_batch_that_is_refused_counts_nothing(house: House) {
    let endpoint = house.endpoint(json!({})).await;
    house.accept(event("old").saying("1").to(&endpoint)).await;
    let batch = || vec![event("x").to(&endpoint), event("y").to(&endpoint), event("old").saying("2").to(&endpoint)];
    house.accept_all(batch(), BatchMode::All).await;
    assert_eq!(waiting(&house, &[&endpoint]).await, [1]);
    house.accept_all(batch(), BatchMode::Each).await;
    assert_eq!(waiting(&house, &[&endpoint]).await, [3], "each on its own: two of them");
}

async fn what_is_told_waits_and_is_counted_like_all_else(house: House) {
    let system = house.put_tenant("_system").await;
    let listener = house.endpoint_of(&system, json!({})).await;
    let endpoint = house.endpoint(json!({})).await;
    let claim = house.claim(event("a").to(&endpoint)).await;
    let told = house.die(&claim, DeadCause::Refused, at(1)).await.freed.pop().unwrap();
    assert_eq!((house.store.waiting(Some(listener.id)), house.store.waiting(None)), (Some(1), Some(1)));
    house.deliver(&told, at(2)).await;
    assert_eq!((house.store.waiting(Some(listener.id)), house.store.waiting(None)), (Some(0), Some(0)));
}

async fn a_deleted_endpoint_or_tenant_has_nothing_waiting(house: House) {
    let acme = house.put_tenant("acme").await;
    let (gone, kept) = (house.endpoint(json!({})).await, house.endpoint(json!({})).await);
    let theirs = house.endpoint_of(&acme, json!({})).await;
    for n in 0..3 {
        house.accept(event(&format!("o{n}")).to(&gone).to(&kept)).await;
        house.accept(event(&format!("t{n}")).of(&acme).to(&theirs)).await;
    }
    let on_its_way = house.claim(event("late").to(&gone)).await;
    let lease = house.lease(gone.id);
    assert_eq!(house.store.waiting(None), Some(10));
    house.store.delete_endpoint(&ours(), gone.id, at(5)).await.unwrap();
    assert_eq!((house.store.waiting(Some(gone.id)), house.store.waiting(None)), (Some(0), Some(6)));
    house.store.delete_tenant(&acme, at(5)).await.unwrap();
    assert_eq!((house.store.waiting(Some(theirs.id)), house.store.waiting(None)), (Some(0), Some(3)));
    // What was on its way to it arrives, and is not taken off twice.
    let arrived = crate::house::attempted(&on_its_way, NextState::Delivered, at(6));
    house.store.settle(lease, settlement(&on_its_way, arrived, at(6))).await.unwrap();
    assert_eq!(house.store.waiting(None), Some(3));
    let house = house.reopened().await;
    assert_eq!(waiting(&house, &[&kept]).await, [3]);
}

async fn the_weight_in_use_is_that_of_tenants_with_endpoints(house: House) {
    let weigh = async |id: &str, weight| {
        let quota = TenantQuota { weight, ..TenantQuota::default() };
        let new = Tenant {
            id: tenant(id),
            name: id.into(),
            quota,
            limits: Default::default(),
            defaults: EndpointDefaults::default(),
            created_at: at(0),
        };
        house.store.put_tenant(new).await.unwrap();
    };
    weigh("heavy", 10).await;
    weigh("light", 2).await;
    assert_eq!(house.store.weight_in_use(), 0, "nobody has an endpoint");
    let first = house.endpoint_of(&tenant("heavy"), json!({})).await;
    let second = house.endpoint_of(&tenant("heavy"), json!({})).await;
    let light = house.endpoint_of(&tenant("light"), json!({})).await;
    assert_eq!(house.store.weight_in_use(), 12, "each tenant once");
    weigh("light", 5).await;
    assert_eq!(house.store.weight_in_use(), 15);
    house.store.delete_endpoint(&tenant("heavy"), first.id, at(1)).await.unwrap();
    assert_eq!(house.store.weight_in_use(), 15);
    house.store.delete_endpoint(&tenant("heavy"), second.id, at(1)).await.unwrap();
    assert_eq!(house.store.weight_in_use(), 5);
    let house = house.reopened().await;
    assert_eq!(house.store.weight_in_use(), 5);
    house.endpoint_of(&tenant("light"), json!({})).await;
    house.store.delete_endpoint(&tenant("light"), light.id, at(2)).await.unwrap();
    assert_eq!(house.store.weight_in_use(), 5);
    house.store.delete_tenant(&tenant("light"), at(3)).await.unwrap();
    assert_eq!(house.store.weight_in_use(), 0);
}

async fn stumbled(house: &House, claim: &Claim, seconds: i64) -> SettleEffects {
    let outcome = ClaimOutcome::Stumbled { due_at: at(seconds + 10), error: format!("it fell at {seconds}") };
    house.store.settle(house.lease(claim.endpoint), settlement(claim, outcome, at(seconds))).await.unwrap()
}

async fn a_stumble_charges_nothing_and_the_third_is_the_end(house: House) {
    house.put_tenant("_system").await;
    let endpoint = house.endpoint(json!({})).await;
    let claim = house.claim(event("a").to(&endpoint)).await;
    for n in 1..=2 {
        let settled = stumbled(&house, &claim, n).await;
        assert_eq!((settled.due_again_at, settled.died), (Some(at(n + 10)), None));
        let delivery = house.delivery(claim.id).await;
        assert_eq!((delivery.state, delivery.progress.attempts), (DeliveryState::Waiting, 0));
        assert_eq!((delivery.internal_errors, delivery.internal_error), (n as u32, Some(format!("it fell at {n}"))));
        assert_eq!(house.due_ids(&endpoint, at(n + 10)).await, ["a"]);
    }
    let house = house.reopened().await;
    let settled = stumbled(&house, &claim, 3).await;
    assert_eq!((settled.due_again_at, settled.died), (None, Some(DeadCause::Poisoned)));
    assert_eq!(settled.operational_events, ["delivery.dead"]);
    let delivery = house.delivery(claim.id).await;
    assert_eq!((delivery.state, delivery.cause), (DeliveryState::Dead, Some(DeadCause::Poisoned)));
    assert_eq!(delivery.internal_error.as_deref(), Some("it fell at 3"), "with what went wrong");
    assert_eq!((delivery.progress.attempts, house.attempts(claim.id).await.len()), (0, 0));
    assert_eq!(waiting(&house, &[&endpoint]).await, [0]);
}

async fn a_replay_starts_counting_stumbles_anew(house: House) {
    let endpoint = house.endpoint(json!({})).await;
    let claim = house.claim(event("a").to(&endpoint)).await;
    for n in 1..=3 {
        stumbled(&house, &claim, n).await;
    }
    house.change(claim.id, DeliveryChange::Replay, at(20)).await.unwrap();
    let delivery = house.delivery(claim.id).await;
    assert_eq!((delivery.state, delivery.internal_errors, delivery.internal_error), (DeliveryState::Waiting, 0, None));
    for n in 21..=22 {
        assert_eq!(stumbled(&house, &claim, n).await.died, None);
    }
    assert_eq!(stumbled(&house, &claim, 23).await.died, Some(DeadCause::Poisoned));
}

async fn a_poisoned_head_blocks_its_lane_alone(house: House) {
    house.put_tenant("_system").await;
    let endpoint = house.endpoint(json!({})).await;
    let head = house.claim(event("a").key("k").to(&endpoint)).await;
    house.accept(event("b").key("k").to(&endpoint)).await;
    house.claim(event("c").key("other").to(&endpoint)).await;
    for n in 1..=2 {
        assert!(stumbled(&house, &head, n).await.freed.is_empty(), "it holds its lane");
    }
    assert_eq!(stumbled(&house, &head, 3).await.operational_events, ["lane.blocked", "delivery.dead"]);
    assert_eq!(house.due_ids(&endpoint, at(100)).await, ["c"]);
}

async fn a_stumble_of_what_was_cancelled_changes_nothing(house: House) {
    let endpoint = house.endpoint(json!({})).await;
    let claim = house.claim(event("a").to(&endpoint)).await;
    house.change(claim.id, DeliveryChange::Cancel, at(1)).await.unwrap();
    for n in 1..=4 {
        let settled = stumbled(&house, &claim, n).await;
        assert_eq!((settled.due_again_at, settled.died), (None, None));
    }
    let delivery = house.delivery(claim.id).await;
    assert_eq!((delivery.state, delivery.internal_errors), (DeliveryState::Cancelled, 0));
    assert_eq!(waiting(&house, &[&endpoint]).await, [0]);
}

async fn the_oldest_due_is_the_first_that_may_go(house: House) {
    let (one, two) = (house.endpoint(json!({})).await, house.endpoint(json!({})).await);
    let oldest = async || house.store.oldest_due(vec![one.id, two.id]).await.unwrap();
    assert_eq!(oldest().await, [None, None]);
    let a = house.claim(event("a").at(at(10)).to(&one)).await;
    house.claim(event("b").at(at(20)).to(&one)).await;
    let head = house.claim(event("c").at(at(5)).key("k").to(&two)).await;
    house.accept(event("d").at(at(6)).key("k").to(&two)).await;
    assert_eq!(oldest().await, [Some(at(10)), Some(at(5))]);
    house.attempted(&a, NextState::Waiting { due_at: at(90) }, at(11)).await;
    house.die(&head, DeadCause::Refused, at(12)).await;
    assert_eq!(oldest().await, [Some(at(20)), None], "what stands behind a dead letter is not due");
    house.store.delete_endpoint(&ours(), one.id, at(50)).await.unwrap();
}
