//! Time: whose may be over, who has waited too long for a first attempt, and
//! what a person asked for at once.

use posthaste::model::audit::Initiator;
use posthaste::model::delivery::{DeadCause, DeadlineSource, DeliveryState};
use posthaste::model::id::DeliveryId;
use posthaste::model::next_state::NextState;
use posthaste::model::span::Span;
use posthaste::store::{Claim, ClaimOutcome, DeliveryChange, DueQuery, UntriedQuery};
use serde_json::json;
use std::time::Duration;

use crate::fixture::{StoreFixture, at, attempted, event, ours, settlement};

for_every_store! {
    an_event_that_expires_is_looked_at_then_and_no_other_is,
    a_retried_delivery_is_looked_at_when_its_time_is_over,
    what_is_to_be_looked_at_later_is_not_found_before,
    what_is_over_or_deleted_is_not_looked_at,
    what_ends_an_attempt_is_not_looked_at_any_more,
    a_page_of_the_overdue_ends_and_says_when_the_next_is,
    those_without_an_attempt_are_found_oldest_first_and_page_by_page,
    a_replay_begins_to_wait_anew_and_goes_beyond_an_expiry,
    what_a_person_asked_for_can_be_read_alone,
    the_last_delay_is_kept_for_the_next_draw,
    what_has_been_in_retry_for_long_is_counted,
}

impl StoreFixture {
    async fn overdue(&self, now: i64) -> (Vec<DeliveryId>, Option<jiff::Timestamp>) {
        let page = self.store.read_overdue(at(now), 100).await.expect("it is read");
        (page.found.iter().map(|overdue| overdue.id).collect(), page.next_at)
    }

    async fn untried(&self, before: i64, after: Option<DeliveryId>, limit: usize) -> Vec<DeliveryId> {
        let ask = UntriedQuery { before: at(before), after, limit };
        let page = self.store.read_untried(&ours(), ask).await.expect("it is read");
        page.found.iter().map(|overdue| overdue.id).collect()
    }

    async fn retried(&self, claim: &Claim, expiry_check_at: i64) {
        let ClaimOutcome::Attempted { attempt, next, progress, update: notice, .. } =
            attempted(claim, NextState::Waiting { due_at: at(5) }, at(1))
        else {
            unreachable!()
        };
        let outcome = ClaimOutcome::Attempted {
            attempt,
            next,
            progress,
            expiry_check_at: Some(at(expiry_check_at)),
            update: notice,
        };
        self.store.settle(self.lease(claim.endpoint), settlement(claim, outcome, at(1))).await.expect("it is written");
    }
}

/// The first moment that is too late.
fn past(seconds: i64) -> jiff::Timestamp {
    at(seconds).checked_add(Duration::from_millis(1)).unwrap()
}

async fn an_event_that_expires_is_looked_at_then_and_no_other_is(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let first = fixture.claim(event("a").expiring(at(10)).to(&endpoint)).await;
    fixture.claim(event("b").to(&endpoint)).await;
    let fixture = fixture.reopened().await;
    assert_eq!(fixture.overdue(10).await, (vec![], Some(past(10))), "at that very moment it may still go");
    assert_eq!(fixture.overdue(11).await, (vec![first.id], None));
    let found = fixture.store.read_overdue(at(11), 100).await.unwrap().found.remove(0);
    assert_eq!((found.endpoint, found.expires_at), (endpoint.id, Some(at(10))));
    assert_eq!(found.progress, first.progress);
    assert_eq!(fixture.delivery(first.id).await.expires_at, Some(at(10)));
}

async fn a_retried_delivery_is_looked_at_when_its_time_is_over(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").expiring(at(500)).to(&endpoint)).await;
    fixture.retried(&claim, 40).await;
    assert_eq!(fixture.overdue(39).await, (vec![], Some(at(40))));
    assert_eq!(fixture.overdue(40).await, (vec![claim.id], None));
}

async fn what_is_to_be_looked_at_later_is_not_found_before(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").expiring(at(10)).to(&endpoint)).await;
    let later = settlement(&claim, ClaimOutcome::RecheckExpiry { at: at(70), progress: claim.progress }, at(11));
    let settled = fixture.store.settle(fixture.lease(endpoint.id), later).await.unwrap();
    assert!(settled.due_again_at.is_none() && settled.freed.is_empty());
    assert_eq!(fixture.overdue(69).await, (vec![], Some(at(70))));
    let delivery = fixture.delivery(claim.id).await;
    assert_eq!((delivery.state, delivery.due_at, delivery.progress.attempts), (DeliveryState::Waiting, at(0), 0));
}

async fn what_is_over_or_deleted_is_not_looked_at(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let delivered = fixture.claim(event("a").expiring(at(10)).to(&endpoint)).await;
    fixture.deliver(&delivered, at(1)).await;
    let cancelled = fixture.claim(event("b").expiring(at(10)).to(&endpoint)).await;
    fixture.change(cancelled.id, DeliveryChange::Cancel, at(1)).await.unwrap();
    let over = fixture.claim(event("c").expiring(at(10)).to(&endpoint)).await;
    let outcome = ClaimOutcome::Expired { by: DeadlineSource::Expiry, progress: over.progress };
    fixture.store.settle(fixture.lease(endpoint.id), settlement(&over, outcome, at(11))).await.unwrap();
    assert_eq!(fixture.delivery(over.id).await.cause, Some(DeadCause::Expired));
    let deleted = fixture.endpoint(json!({})).await;
    fixture.claim(event("d").expiring(at(10)).to(&deleted)).await;
    fixture.claim(event("e").to(&deleted)).await;
    fixture.store.delete_endpoint(&Initiator::Gateway, &ours(), deleted.id, at(2)).await.unwrap();
    assert_eq!(fixture.overdue(100).await, (vec![], None));
    assert!(fixture.untried(100, None, 10).await.is_empty());
}

async fn what_ends_an_attempt_is_not_looked_at_any_more(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    for (id, next) in [("delivered", NextState::Delivered), ("dead", NextState::Dead(DeadCause::Refused))] {
        let claim = fixture.claim(event(id).to(&endpoint)).await;
        fixture.retried(&claim, 40).await;
        let claim = fixture.due(&endpoint, at(5)).await.claims.remove(0);
        let ClaimOutcome::Attempted { attempt, progress, update: notice, .. } = attempted(&claim, next, at(6)) else {
            unreachable!()
        };
        // As the lifecycle does it, with the time at which it would have ended.
        let outcome =
            ClaimOutcome::Attempted { attempt, next, progress, expiry_check_at: Some(at(40)), update: notice };
        fixture.store.settle(fixture.lease(endpoint.id), settlement(&claim, outcome, at(6))).await.unwrap();
        assert_eq!(fixture.overdue(100).await, (vec![], None), "{id}");
        // Replayed, it has an end of its own again, and not that one.
        fixture.change(claim.id, DeliveryChange::Replay, at(7)).await.unwrap();
        assert_eq!(fixture.overdue(100).await, (vec![], None), "{id}");
        fixture.change(claim.id, DeliveryChange::Cancel, at(8)).await.unwrap();
    }
}

async fn a_page_of_the_overdue_ends_and_says_when_the_next_is(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let mut ids = Vec::new();
    for n in [3, 1, 2] {
        ids.push((n, fixture.claim(event(&format!("e{n}")).expiring(at(n)).to(&endpoint)).await.id));
    }
    ids.sort();
    let page = fixture.store.read_overdue(at(100), 2).await.unwrap();
    let found: Vec<DeliveryId> = page.found.iter().map(|overdue| overdue.id).collect();
    assert_eq!((found, page.next_at), (vec![ids[0].1, ids[1].1], Some(past(3))));
}

async fn those_without_an_attempt_are_found_oldest_first_and_page_by_page(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let mut ids = Vec::new();
    for n in 0..5 {
        let key = if n % 2 == 0 { "even" } else { "odd" };
        fixture.accept(event(&format!("e{n}")).key(key).at(at(n)).to(&endpoint)).await;
        ids.push(fixture.deliveries_of(&format!("e{n}")).await[0].id);
    }
    let tried = fixture.due(&endpoint, at(100)).await.claims.into_iter().find(|claim| claim.id == ids[1]).unwrap();
    fixture.attempted(&tried, NextState::Waiting { due_at: at(9) }, at(6)).await;
    assert_eq!(fixture.untried(4, None, 10).await, [ids[0], ids[2], ids[3]]);
    assert_eq!(fixture.untried(4, None, 2).await, [ids[0], ids[2]]);
    assert_eq!(fixture.untried(4, Some(ids[2]), 2).await, [ids[3]]);
    assert!(fixture.untried(4, Some(ids[3]), 2).await.is_empty());
    let page =
        fixture.store.read_untried(&ours(), UntriedQuery { before: at(4), after: None, limit: 2 }).await.unwrap();
    assert_eq!(page.next, Some(ids[2]), "there may be more");
    let rest = UntriedQuery { before: at(4), after: page.next, limit: 2 };
    assert_eq!(fixture.store.read_untried(&ours(), rest).await.unwrap().next, None);
    let other = fixture.put_tenant("other").await;
    let ask = UntriedQuery { before: at(100), after: None, limit: 10 };
    assert!(fixture.store.read_untried(&other, ask).await.unwrap().found.is_empty());
}

async fn a_replay_begins_to_wait_anew_and_goes_beyond_an_expiry(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let soon = fixture.claim(event("soon").expiring(at(10)).to(&endpoint)).await;
    let late = fixture.claim(event("late").expiring(at(1_000)).to(&endpoint)).await;
    for claim in [&soon, &late] {
        fixture.die(claim, DeadCause::Refused, at(2)).await;
        fixture.change(claim.id, DeliveryChange::Replay, at(50)).await.unwrap();
        assert_eq!(fixture.delivery(claim.id).await.progress.begun_at, Some(at(50)));
    }
    assert!(fixture.untried(50, None, 10).await.is_empty(), "they have waited since 50 and not since 0");
    assert_eq!(fixture.untried(51, None, 10).await, [soon.id, late.id]);
    assert_eq!(fixture.delivery(soon.id).await.expires_at, None, "a person asked for it after its time");
    assert_eq!(fixture.delivery(late.id).await.expires_at, Some(at(1_000)));
    assert_eq!(fixture.overdue(2_000).await, (vec![late.id], None));
}

async fn what_a_person_asked_for_can_be_read_alone(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let plain = fixture.claim(event("a").to(&endpoint)).await;
    let urgent = fixture.claim(event("b").to(&endpoint)).await;
    let blocked = fixture.accept(event("c").key("k").to(&endpoint)).await.remove(0);
    fixture.accept(event("d").key("k").to(&endpoint)).await;
    for claim in [&plain, &urgent, &blocked] {
        fixture.attempted(claim, NextState::Waiting { due_at: at(600) }, at(1)).await;
    }
    let behind = fixture.deliveries_of("d").await[0].id;
    fixture.change(urgent.id, DeliveryChange::RetryNow, at(20)).await.unwrap();
    fixture.change(behind, DeliveryChange::RetryNow, at(20)).await.unwrap();
    assert!(fixture.delivery(urgent.id).await.is_urgent);
    let fixture = fixture.reopened().await;
    let ask = || DueQuery {
        endpoint: endpoint.id,
        until: at(20),
        limit: 10,
        bytes_max: usize::MAX,
        except: Default::default(),
        urgent_only: true,
    };
    let page = fixture.store.read_due(fixture.lease(endpoint.id), ask()).await.unwrap();
    let found: Vec<_> = page.claims.iter().map(|claim| (claim.id, claim.is_urgent)).collect();
    assert_eq!(found, [(urgent.id, true)], "not what nobody asked for, and not what has a predecessor");
    assert!(page.next_due.is_some_and(|at_most| at_most <= at(600)));
    assert_eq!(page.next_urgent, None);
    let short = DueQuery { limit: 0, ..ask() };
    let page_of_none = fixture.store.read_due(fixture.lease(endpoint.id), short).await.unwrap();
    assert_eq!(page_of_none.next_urgent, Some(at(20)), "there is more than fits");
    // It was for this one attempt.
    fixture.attempted(&page.claims[0], NextState::Waiting { due_at: at(700) }, at(21)).await;
    assert!(!fixture.delivery(urgent.id).await.is_urgent);
    assert!(fixture.store.read_due(fixture.lease(endpoint.id), ask()).await.unwrap().claims.is_empty());
}

async fn the_last_delay_is_kept_for_the_next_draw(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    let ClaimOutcome::Attempted { attempt, next, mut progress, expiry_check_at, update: notice } =
        attempted(&claim, NextState::Waiting { due_at: at(5) }, at(1))
    else {
        unreachable!()
    };
    progress.last_delay = Some(Duration::from_micros(3_000_001));
    progress.max_age = Some(Span::secs(77));
    let outcome = ClaimOutcome::Attempted { attempt, next, progress, expiry_check_at, update: notice };
    fixture.store.settle(fixture.lease(endpoint.id), settlement(&claim, outcome, at(1))).await.unwrap();
    assert_eq!(fixture.due(&endpoint, at(5)).await.claims[0].progress, progress);
    fixture.change(claim.id, DeliveryChange::Cancel, at(2)).await.unwrap();
    fixture.change(claim.id, DeliveryChange::Replay, at(3)).await.unwrap();
    let progress = fixture.delivery(claim.id).await.progress;
    assert_eq!((progress.last_delay, progress.max_age), (None, None));
}

async fn what_has_been_in_retry_for_long_is_counted(fixture: StoreFixture) {
    let (one, two) = (fixture.endpoint(json!({})).await, fixture.endpoint(json!({})).await);
    let other = fixture.put_tenant("other").await;
    let theirs = fixture.endpoint_of(&other, json!({})).await;
    // First tried at 1, first tried at 50, never tried, delivered.
    let old = fixture.claim(event("old").to(&one)).await;
    fixture.retried(&old, 1_000).await;
    let young = fixture.claim(event("young").at(at(50)).to(&two)).await;
    let ClaimOutcome::Attempted { attempt, next, progress, update, .. } =
        attempted(&young, NextState::Waiting { due_at: at(60) }, at(50))
    else {
        unreachable!()
    };
    let outcome = ClaimOutcome::Attempted { attempt, next, progress, expiry_check_at: Some(at(1_050)), update };
    fixture.store.settle(fixture.lease(two.id), settlement(&young, outcome, at(50))).await.unwrap();
    fixture.accept(event("untried").to(&one)).await;
    let delivered = fixture.claim(event("delivered").to(&one)).await;
    fixture.deliver(&delivered, at(2)).await;

    let count = async |tenant, endpoint, before| {
        let found = fixture.store.long_retries(tenant, endpoint, at(before)).await.unwrap();
        assert!(found.is_exact);
        found.count
    };
    assert_eq!((count(None, None, 100).await, count(None, None, 50).await, count(None, None, 1).await), (2, 1, 0));
    let ours = ours();
    assert_eq!((count(Some(&ours), None, 100).await, count(Some(&other), None, 100).await), (2, 0));
    assert_eq!(count(Some(&ours), Some(one.id), 100).await, 1);
    assert_eq!(count(Some(&other), Some(theirs.id), 100).await, 0);
    let fixture = fixture.reopened().await;
    assert_eq!(fixture.store.long_retries(None, None, at(100)).await.unwrap().count, 2);
}
