//! How many wait, how much weight is in use, what is due first, and what
//! fails inside the gateway.

use posthaste::model::audit::Initiator;
use posthaste::model::delivery::{DeadCause, DeliveryState};
use posthaste::model::endpoint::Endpoint;
use posthaste::model::endpoint::EndpointDefaults;
use posthaste::model::next_state::NextState;
use posthaste::model::tenant::{Tenant, TenantQuota};
use posthaste::store::{AcceptResult, BatchMode, Claim, ClaimOutcome, DeliveryChange, SettleEffects};
use serde_json::json;

use crate::fixture::{StoreFixture, at, event, names, ours, settlement, tenant};

for_every_store! {
    what_waits_is_counted_through_its_whole_life,
    a_batch_that_is_refused_counts_nothing,
    what_is_told_waits_and_is_counted_like_all_else,
    a_deleted_endpoint_or_tenant_has_nothing_waiting,
    the_weight_in_use_is_that_of_tenants_with_endpoints,
    an_internal_error_charges_nothing_and_the_third_is_the_end,
    a_replay_starts_counting_internal_errors_again,
    a_poisoned_head_blocks_its_lane_alone,
    an_internal_error_of_what_was_cancelled_changes_nothing,
    the_oldest_due_is_the_first_that_may_go,
}

/// How many wait for these, as the store counts them and as it lists them.
async fn waiting(fixture: &StoreFixture, endpoints: &[&Endpoint]) -> Vec<u64> {
    let count = |endpoint: &&Endpoint| fixture.store.waiting(Some(endpoint.id)).expect("it is counted");
    let counts: Vec<u64> = endpoints.iter().map(count).collect();
    for (endpoint, count) in endpoints.iter().zip(&counts) {
        let ask = posthaste::model::delivery_filter::DeliveryFilter {
            state: Some(DeliveryState::Waiting),
            endpoint: Some(endpoint.id),
            ..Default::default()
        };
        assert_eq!(fixture.list(ask, 100).await.len() as u64, *count, "the count is that of the list");
    }
    assert_eq!(fixture.store.waiting(None), Some(counts.iter().sum::<u64>()), "all of them together");
    counts
}

async fn what_waits_is_counted_through_its_whole_life(fixture: StoreFixture) {
    let (one, two) = (fixture.endpoint(json!({})).await, fixture.endpoint(json!({})).await);
    assert_eq!(waiting(&fixture, &[&one, &two]).await, [0, 0]);
    let both = fixture.accept(event("both").to(&one).to(&two)).await;
    let a = fixture.claim(event("a").to(&one)).await;
    let b = fixture.claim(event("b").to(&one)).await;
    let c = fixture.claim(event("c").key("k").to(&one)).await;
    fixture.accept(event("d").key("k").to(&one)).await;
    assert_eq!(waiting(&fixture, &[&one, &two]).await, [5, 1], "those behind in a lane too");
    let repeat = fixture.accept_all(vec![event("a").to(&one)], BatchMode::All).await;
    assert!(matches!(repeat[0], AcceptResult::Duplicate { .. }));
    assert_eq!(waiting(&fixture, &[&one, &two]).await, [5, 1], "a repeat is nothing new");
    let fixture = fixture.reopened().await;
    assert_eq!(waiting(&fixture, &[&one, &two]).await, [5, 1], "over closing");

    fixture.attempted(&a, NextState::Waiting { due_at: at(60) }, at(1)).await;
    assert_eq!(waiting(&fixture, &[&one, &two]).await, [5, 1], "a retry waits");
    fixture.deliver(&a, at(2)).await;
    fixture.die(&b, DeadCause::Exhausted, at(2)).await;
    assert_eq!(waiting(&fixture, &[&one, &two]).await, [3, 1]);
    fixture.change(c.id, DeliveryChange::Cancel, at(3)).await.unwrap();
    fixture.deliver(&c, at(4)).await;
    assert_eq!(waiting(&fixture, &[&one, &two]).await, [2, 1], "cancelled, and delivered all the same: once");
    fixture.change(a.id, DeliveryChange::Replay, at(5)).await.unwrap();
    fixture.change(b.id, DeliveryChange::Replay, at(5)).await.unwrap();
    assert_eq!(waiting(&fixture, &[&one, &two]).await, [4, 1]);
    let b = fixture.due(&one, at(9)).await.claims.into_iter().find(|claim| claim.id == b.id).unwrap();
    fixture.die(&b, DeadCause::Refused, at(9)).await;
    fixture.change(b.id, DeliveryChange::Discard, at(9)).await.unwrap();
    assert_eq!(waiting(&fixture, &[&one, &two]).await, [3, 1], "a dead one was not waiting");
    fixture.change(a.id, DeliveryChange::RetryNow, at(9)).await.unwrap();
    for claim in &both {
        fixture.deliver(claim, at(10)).await;
    }
    assert_eq!(waiting(&fixture, &[&one, &two]).await, [2, 0]);
    let fixture = fixture.reopened().await;
    assert_eq!(waiting(&fixture, &[&one, &two]).await, [2, 0]);
}

async fn a_batch_that_is_refused_counts_nothing(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    fixture.accept(event("old").saying("1").to(&endpoint)).await;
    let batch = || vec![event("x").to(&endpoint), event("y").to(&endpoint), event("old").saying("2").to(&endpoint)];
    fixture.accept_all(batch(), BatchMode::All).await;
    assert_eq!(waiting(&fixture, &[&endpoint]).await, [1]);
    fixture.accept_all(batch(), BatchMode::Each).await;
    assert_eq!(waiting(&fixture, &[&endpoint]).await, [3], "each on its own: two of them");
}

async fn what_is_told_waits_and_is_counted_like_all_else(fixture: StoreFixture) {
    let system = fixture.put_tenant("_system").await;
    let listener = fixture.endpoint_of(&system, json!({})).await;
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    let freed = fixture.die(&claim, DeadCause::Refused, at(1)).await.freed.pop().unwrap();
    assert_eq!((fixture.store.waiting(Some(listener.id)), fixture.store.waiting(None)), (Some(1), Some(1)));
    fixture.deliver(&freed, at(2)).await;
    assert_eq!((fixture.store.waiting(Some(listener.id)), fixture.store.waiting(None)), (Some(0), Some(0)));
}

async fn a_deleted_endpoint_or_tenant_has_nothing_waiting(fixture: StoreFixture) {
    let acme = fixture.put_tenant("acme").await;
    let (gone, kept) = (fixture.endpoint(json!({})).await, fixture.endpoint(json!({})).await);
    let theirs = fixture.endpoint_of(&acme, json!({})).await;
    for n in 0..3 {
        fixture.accept(event(&format!("o{n}")).to(&gone).to(&kept)).await;
        fixture.accept(event(&format!("t{n}")).of(&acme).to(&theirs)).await;
    }
    let on_its_way = fixture.claim(event("late").to(&gone)).await;
    let lease = fixture.lease(gone.id);
    assert_eq!(fixture.store.waiting(None), Some(10));
    fixture.store.delete_endpoint(&Initiator::Gateway, &ours(), gone.id, at(5)).await.unwrap();
    assert_eq!((fixture.store.waiting(Some(gone.id)), fixture.store.waiting(None)), (Some(0), Some(6)));
    fixture.store.delete_tenant(&Initiator::Gateway, &acme, at(5)).await.unwrap();
    assert_eq!((fixture.store.waiting(Some(theirs.id)), fixture.store.waiting(None)), (Some(0), Some(3)));
    // What was on its way to it arrives, and is not taken off twice.
    let arrived = crate::fixture::attempted(&on_its_way, NextState::Delivered, at(6));
    fixture.store.settle(lease, settlement(&on_its_way, arrived, at(6))).await.unwrap();
    assert_eq!(fixture.store.waiting(None), Some(3));
    let fixture = fixture.reopened().await;
    assert_eq!(waiting(&fixture, &[&kept]).await, [3]);
}

async fn the_weight_in_use_is_that_of_tenants_with_endpoints(fixture: StoreFixture) {
    let weigh = async |id: &str, weight| {
        let quota = TenantQuota { weight, ..TenantQuota::default() };
        let new = Tenant {
            id: tenant(id),
            name: id.into(),
            quota,
            limits: Default::default(),
            defaults: EndpointDefaults::default(),
            retention: Default::default(),
            created_at: at(0),
        };
        fixture.store.put_tenant(&Initiator::Gateway, new).await.unwrap();
    };
    weigh("heavy", 10).await;
    weigh("light", 2).await;
    assert_eq!(fixture.store.weight_in_use(), 0, "nobody has an endpoint");
    let first = fixture.endpoint_of(&tenant("heavy"), json!({})).await;
    let second = fixture.endpoint_of(&tenant("heavy"), json!({})).await;
    let light = fixture.endpoint_of(&tenant("light"), json!({})).await;
    assert_eq!(fixture.store.weight_in_use(), 12, "each tenant once");
    weigh("light", 5).await;
    assert_eq!(fixture.store.weight_in_use(), 15);
    fixture.store.delete_endpoint(&Initiator::Gateway, &tenant("heavy"), first.id, at(1)).await.unwrap();
    assert_eq!(fixture.store.weight_in_use(), 15);
    fixture.store.delete_endpoint(&Initiator::Gateway, &tenant("heavy"), second.id, at(1)).await.unwrap();
    assert_eq!(fixture.store.weight_in_use(), 5);
    let fixture = fixture.reopened().await;
    assert_eq!(fixture.store.weight_in_use(), 5);
    fixture.endpoint_of(&tenant("light"), json!({})).await;
    fixture.store.delete_endpoint(&Initiator::Gateway, &tenant("light"), light.id, at(2)).await.unwrap();
    assert_eq!(fixture.store.weight_in_use(), 5);
    fixture.store.delete_tenant(&Initiator::Gateway, &tenant("light"), at(3)).await.unwrap();
    assert_eq!(fixture.store.weight_in_use(), 0);
}

async fn failed_internally(fixture: &StoreFixture, claim: &Claim, seconds: i64) -> SettleEffects {
    let outcome = ClaimOutcome::InternalError { due_at: at(seconds + 10), error: format!("it fell at {seconds}") };
    fixture.store.settle(fixture.lease(claim.endpoint), settlement(claim, outcome, at(seconds))).await.unwrap()
}

async fn an_internal_error_charges_nothing_and_the_third_is_the_end(fixture: StoreFixture) {
    fixture.put_tenant("_system").await;
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    for n in 1..=2 {
        let settled = failed_internally(&fixture, &claim, n).await;
        assert_eq!((settled.due_again_at, settled.died), (Some(at(n + 10)), None));
        let delivery = fixture.delivery(claim.id).await;
        assert_eq!((delivery.state, delivery.progress.attempts), (DeliveryState::Waiting, 0));
        assert_eq!((delivery.internal_errors, delivery.internal_error), (n as u32, Some(format!("it fell at {n}"))));
        assert_eq!(fixture.due_ids(&endpoint, at(n + 10)).await, ["a"]);
    }
    let fixture = fixture.reopened().await;
    let settled = failed_internally(&fixture, &claim, 3).await;
    assert_eq!((settled.due_again_at, settled.died), (None, Some(DeadCause::Poisoned)));
    assert_eq!(names(&settled.operational_events), ["delivery.dead"]);
    let delivery = fixture.delivery(claim.id).await;
    assert_eq!((delivery.state, delivery.cause), (DeliveryState::Dead, Some(DeadCause::Poisoned)));
    assert_eq!(delivery.internal_error.as_deref(), Some("it fell at 3"), "with what went wrong");
    assert_eq!((delivery.progress.attempts, fixture.attempts(claim.id).await.len()), (0, 0));
    assert_eq!(waiting(&fixture, &[&endpoint]).await, [0]);
}

async fn a_replay_starts_counting_internal_errors_again(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    for n in 1..=3 {
        failed_internally(&fixture, &claim, n).await;
    }
    fixture.change(claim.id, DeliveryChange::Replay, at(20)).await.unwrap();
    let delivery = fixture.delivery(claim.id).await;
    assert_eq!((delivery.state, delivery.internal_errors, delivery.internal_error), (DeliveryState::Waiting, 0, None));
    for n in 21..=22 {
        assert_eq!(failed_internally(&fixture, &claim, n).await.died, None);
    }
    assert_eq!(failed_internally(&fixture, &claim, 23).await.died, Some(DeadCause::Poisoned));
}

async fn a_poisoned_head_blocks_its_lane_alone(fixture: StoreFixture) {
    fixture.put_tenant("_system").await;
    let endpoint = fixture.endpoint(json!({})).await;
    let head = fixture.claim(event("a").key("k").to(&endpoint)).await;
    fixture.accept(event("b").key("k").to(&endpoint)).await;
    fixture.claim(event("c").key("other").to(&endpoint)).await;
    for n in 1..=2 {
        assert!(failed_internally(&fixture, &head, n).await.freed.is_empty(), "it holds its lane");
    }
    assert_eq!(
        names(&failed_internally(&fixture, &head, 3).await.operational_events),
        ["lane.blocked", "delivery.dead"]
    );
    assert_eq!(fixture.due_ids(&endpoint, at(100)).await, ["c"]);
}

async fn an_internal_error_of_what_was_cancelled_changes_nothing(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    fixture.change(claim.id, DeliveryChange::Cancel, at(1)).await.unwrap();
    for n in 1..=4 {
        let settled = failed_internally(&fixture, &claim, n).await;
        assert_eq!((settled.due_again_at, settled.died), (None, None));
    }
    let delivery = fixture.delivery(claim.id).await;
    assert_eq!((delivery.state, delivery.internal_errors), (DeliveryState::Cancelled, 0));
    assert_eq!(waiting(&fixture, &[&endpoint]).await, [0]);
}

async fn the_oldest_due_is_the_first_that_may_go(fixture: StoreFixture) {
    let (one, two) = (fixture.endpoint(json!({})).await, fixture.endpoint(json!({})).await);
    let oldest = async || fixture.store.oldest_due(vec![one.id, two.id]).await.unwrap();
    assert_eq!(oldest().await, [None, None]);
    let a = fixture.claim(event("a").at(at(10)).to(&one)).await;
    fixture.claim(event("b").at(at(20)).to(&one)).await;
    let head = fixture.claim(event("c").at(at(5)).key("k").to(&two)).await;
    fixture.accept(event("d").at(at(6)).key("k").to(&two)).await;
    assert_eq!(oldest().await, [Some(at(10)), Some(at(5))]);
    fixture.attempted(&a, NextState::Waiting { due_at: at(90) }, at(11)).await;
    fixture.die(&head, DeadCause::Refused, at(12)).await;
    assert_eq!(oldest().await, [Some(at(20)), None], "what stands behind a dead letter is not due");
    fixture.store.delete_endpoint(&Initiator::Gateway, &ours(), one.id, at(50)).await.unwrap();
}
