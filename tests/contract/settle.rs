//! Settle: an attempt and the state it led to, as one write of the owner.

use posthaste::model::audit::Initiator;
use posthaste::model::delivery::{DeadCause, DeadlineSource, Delivery, DeliveryState};
use posthaste::model::endpoint::{EndpointSettings, EndpointState};
use posthaste::model::next_state::NextState;
use posthaste::model::shard::{Epoch, Lease};
use posthaste::store::{ClaimOutcome, DeliveryChange, EndpointChange, EndpointUpdate, Error, Settlement};
use serde_json::json;

use crate::fixture::{StoreFixture, at, attempted, disabling, event, ours, settlement};

for_every_store! {
    an_attempt_and_its_state_are_there_together,
    a_first_success_is_written_like_any_other_and_once,
    a_retry_moves_the_due_time_and_keeps_the_budget,
    every_attempt_is_kept_in_order,
    a_delivered_head_passes_the_lane_to_the_next,
    a_retried_head_goes_on_holding_its_lane,
    a_dead_head_blocks_its_lane,
    a_dead_head_is_passed_where_the_lane_skips_its_dead,
    a_delivery_too_old_to_be_attempted_is_dead_without_an_attempt,
    gone_disables_the_endpoint_and_holds_its_backlog,
    a_stale_lease_settles_nothing,
    what_is_put_back_is_charged_nothing,
    a_delivery_cancelled_in_flight_is_delivered_when_it_arrived_all_the_same,
    a_delivery_cancelled_in_flight_stays_cancelled_when_it_did_not_arrive,
    settling_what_was_forgotten_or_never_was_changes_nothing,
    outcomes_survive_closing,
    a_receivers_wish_for_quiet_is_kept_and_never_shortened,
    another_url_has_asked_for_nothing,
    an_event_over_by_its_own_account_lets_its_lane_move_on,
    a_replay_in_flight_keeps_its_fresh_budget,
    what_was_decided_on_old_news_is_not_written,
    a_receiver_that_is_no_longer_the_endpoints_speaks_for_nobody,
}

async fn an_attempt_and_its_state_are_there_together(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    let settled = fixture.deliver(&claim, at(3)).await;
    assert!(settled.due_again_at.is_none() && settled.freed.is_empty() && settled.update.is_empty());
    let delivery = fixture.delivery(claim.id).await;
    assert_eq!((delivery.state, delivery.cause, delivery.finished_at), (DeliveryState::Delivered, None, Some(at(3))));
    assert_eq!(
        (delivery.progress.attempts, delivery.first_attempt_at, delivery.last_status),
        (1, Some(at(3)), Some(200))
    );
    let attempts = fixture.attempts(claim.id).await;
    let ClaimOutcome::Attempted { attempt, .. } = attempted(&claim, NextState::Delivered, at(3)) else {
        unreachable!()
    };
    assert_eq!(attempts, [(*attempt).clone()]);
    assert!(fixture.due_ids(&endpoint, at(100)).await.is_empty());
}

/// A delivery whose expiry is checked is settled by a plan, and one without goes the
/// short way.
async fn a_first_success_is_written_like_any_other_and_once(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let short = fixture.claim(event("a").to(&endpoint)).await;
    let planned = fixture.claim(event("b").expiring(at(100)).to(&endpoint)).await;
    // Nodes that share a database learn the count now and then.
    let waiting = || fixture.store.waiting(Some(endpoint.id)).filter(|_| !fixture.is_shared());
    let counted = |count: u64| (!fixture.is_shared()).then_some(count);
    assert_eq!(waiting(), counted(2));
    let mut written = Vec::new();
    for claim in [&short, &planned] {
        assert!(!fixture.deliver(claim, at(3)).await.is_repeat);
        let delivery = fixture.delivery(claim.id).await;
        let (id, event_id) = (short.id, short.event.id.clone());
        written.push(format!("{:?}", Delivery { id, event_id, expires_at: None, ..delivery }));
        written.push(format!("{:?}", fixture.attempts(claim.id).await));
    }
    assert_eq!(written[..2], written[2..]);
    assert_eq!(waiting(), counted(0));
    for claim in [&short, &planned] {
        assert!(fixture.deliver(claim, at(4)).await.is_repeat, "it was written before");
        assert_eq!(fixture.delivery(claim.id).await.finished_at, Some(at(3)));
    }
    assert_eq!(waiting(), counted(0));
}

async fn a_retry_moves_the_due_time_and_keeps_the_budget(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    let settled = fixture.attempted(&claim, NextState::Waiting { due_at: at(60) }, at(1)).await;
    assert_eq!(settled.due_again_at, Some(at(60)));
    let page = fixture.due(&endpoint, at(59)).await;
    assert_eq!((page.claims.len(), page.next_due), (0, Some(at(60))));
    let again = fixture.due(&endpoint, at(60)).await.claims.remove(0);
    assert_eq!((again.id, again.due_at), (claim.id, at(60)));
    assert_eq!((again.progress.attempts, again.progress.age_from), (1, Some(at(1))));
    assert_eq!(fixture.state(claim.id).await, DeliveryState::Waiting);
}

async fn every_attempt_is_kept_in_order(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let mut claim = fixture.claim(event("a").to(&endpoint)).await;
    for n in 1..=5 {
        fixture.attempted(&claim, NextState::Waiting { due_at: at(n) }, at(n)).await;
        claim = fixture.due(&endpoint, at(n)).await.claims.remove(0);
    }
    fixture.die(&claim, DeadCause::Exhausted, at(6)).await;
    let numbers: Vec<_> = fixture.attempts(claim.id).await.iter().map(|attempt| attempt.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
    let delivery = fixture.delivery(claim.id).await;
    assert_eq!((delivery.state, delivery.cause), (DeliveryState::Dead, Some(DeadCause::Exhausted)));
    assert_eq!((delivery.first_attempt_at, delivery.last_status), (Some(at(1)), Some(503)));
}

async fn a_delivered_head_passes_the_lane_to_the_next(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let head = fixture.claim(event("a").key("k").to(&endpoint)).await;
    for id in ["b", "c"] {
        assert!(fixture.accept(event(id).key("k").saying(id).to(&endpoint)).await.is_empty());
    }
    let next = fixture.deliver(&head, at(1)).await.freed.pop().unwrap();
    assert_eq!((next.event.id.as_str(), next.seq, &next.event.data[..]), ("b", Some(2), &b"b"[..]));
    assert_eq!(fixture.due_ids(&endpoint, at(100)).await, ["b"]);
    let last = fixture.deliver(&next, at(2)).await.freed.pop().unwrap();
    assert_eq!(last.event.id.as_str(), "c");
    assert!(fixture.deliver(&last, at(3)).await.freed.is_empty());
    assert_eq!(fixture.claim(event("d").key("k").to(&endpoint)).await.seq, Some(4), "an empty lane has room");
}

async fn a_retried_head_goes_on_holding_its_lane(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let head = fixture.claim(event("a").key("k").to(&endpoint)).await;
    fixture.accept(event("b").key("k").to(&endpoint)).await;
    assert!(fixture.attempted(&head, NextState::Waiting { due_at: at(60) }, at(1)).await.freed.is_empty());
    assert!(fixture.due_ids(&endpoint, at(59)).await.is_empty());
    assert_eq!(fixture.due_ids(&endpoint, at(60)).await, ["a"]);
}

async fn a_dead_head_blocks_its_lane(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let head = fixture.claim(event("a").key("k").to(&endpoint)).await;
    fixture.accept(event("b").key("k").to(&endpoint)).await;
    assert!(fixture.die(&head, DeadCause::Refused, at(1)).await.freed.is_empty());
    assert!(fixture.due_ids(&endpoint, at(100)).await.is_empty());
    assert!(fixture.accept(event("c").key("k").to(&endpoint)).await.is_empty(), "new ones wait too");
    assert!(fixture.delivery(fixture.deliveries_of("b").await[0].id).await.is_behind);
}

async fn a_dead_head_is_passed_where_the_lane_skips_its_dead(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({"on_dead": "skip"})).await;
    let head = fixture.claim(event("a").key("k").to(&endpoint)).await;
    fixture.accept(event("b").key("k").to(&endpoint)).await;
    let next = fixture.die(&head, DeadCause::Refused, at(1)).await.freed.pop().unwrap();
    assert_eq!(next.event.id.as_str(), "b");
    assert_eq!(fixture.state(head.id).await, DeliveryState::Dead);
}

async fn a_delivery_too_old_to_be_attempted_is_dead_without_an_attempt(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    let settlement =
        settlement(&claim, ClaimOutcome::Expired { by: DeadlineSource::Age, progress: claim.progress }, at(9));
    fixture.store.settle(fixture.lease(endpoint.id), settlement).await.unwrap();
    let delivery = fixture.delivery(claim.id).await;
    assert_eq!((delivery.state, delivery.cause), (DeliveryState::Dead, Some(DeadCause::Expired)));
    assert_eq!((delivery.progress.attempts, delivery.finished_at), (0, Some(at(9))));
    assert!(fixture.attempts(claim.id).await.is_empty());
}

async fn gone_disables_the_endpoint_and_holds_its_backlog(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    let other = fixture.claim(event("b").to(&endpoint)).await;
    assert_eq!(fixture.die(&claim, DeadCause::Gone, at(4)).await.update, disabling());
    let status = &fixture.store.endpoint(&ours(), endpoint.id).unwrap().status;
    assert_eq!((status.state, status.since), (EndpointState::Disabled, at(4)));
    assert!(status.reason.as_deref().unwrap().contains("410"));
    assert_eq!(fixture.state(other.id).await, DeliveryState::Waiting);
    assert_eq!(
        fixture.die(&other, DeadCause::Gone, at(5)).await.update,
        EndpointUpdate::default(),
        "it was disabled already"
    );
    let fixture = fixture.reopened().await;
    assert_eq!(fixture.store.endpoint(&ours(), endpoint.id).unwrap().status.since, at(4));
}

async fn a_stale_lease_settles_nothing(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").key("k").to(&endpoint)).await;
    fixture.accept(event("b").key("k").to(&endpoint)).await;
    let lease = fixture.lease(endpoint.id);
    let stale = Lease { epoch: Epoch(lease.epoch.0 - 1), ..lease };
    for outcome in [
        attempted(&claim, NextState::Delivered, at(1)),
        attempted(&claim, NextState::Dead(DeadCause::Gone), at(1)),
        ClaimOutcome::PutBack { due_at: at(50) },
        ClaimOutcome::Expired { by: DeadlineSource::Age, progress: claim.progress },
    ] {
        let refused = fixture.store.settle(stale, settlement(&claim, outcome, at(1))).await.unwrap_err();
        assert!(matches!(refused, Error::Stale(shard) if shard == lease.shard), "{refused:?}");
    }
    let delivery = fixture.delivery(claim.id).await;
    assert_eq!((delivery.state, delivery.due_at, delivery.progress.attempts), (DeliveryState::Waiting, at(0), 0));
    assert!(fixture.attempts(claim.id).await.is_empty());
    assert_eq!(fixture.due_ids(&endpoint, at(100)).await, ["a"]);
    assert_eq!(fixture.store.any_endpoint(endpoint.id).unwrap().status.state, EndpointState::Active);
}

async fn what_is_put_back_is_charged_nothing(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    fixture.attempted(&claim, NextState::Waiting { due_at: at(5) }, at(1)).await;
    let claim = fixture.due(&endpoint, at(5)).await.claims.remove(0);
    let put_back = settlement(&claim, ClaimOutcome::PutBack { due_at: at(30) }, at(6));
    let settled = fixture.store.settle(fixture.lease(endpoint.id), put_back).await.unwrap();
    assert_eq!(settled.due_again_at, Some(at(30)));
    let again = fixture.due(&endpoint, at(30)).await.claims.remove(0);
    assert_eq!((again.progress, again.due_at), (claim.progress, at(30)));
    assert_eq!(fixture.attempts(claim.id).await.len(), 1);
}

async fn a_delivery_cancelled_in_flight_is_delivered_when_it_arrived_all_the_same(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").key("k").to(&endpoint)).await;
    fixture.accept(event("b").key("k").to(&endpoint)).await;
    fixture.change(claim.id, DeliveryChange::Cancel, at(1)).await.unwrap();
    let settled = fixture.deliver(&claim, at(2)).await;
    assert!(settled.freed.is_empty(), "the lane moved on when it was cancelled");
    let delivery = fixture.delivery(claim.id).await;
    assert_eq!(
        (delivery.state, delivery.finished_at, delivery.progress.attempts),
        (DeliveryState::Delivered, Some(at(2)), 1)
    );
    assert_eq!(fixture.due_ids(&endpoint, at(100)).await, ["b"]);
}

async fn a_delivery_cancelled_in_flight_stays_cancelled_when_it_did_not_arrive(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    for (id, outcome) in [
        ("retry", NextState::Waiting { due_at: at(5) }),
        ("refused", NextState::Dead(DeadCause::Refused)),
        ("exhausted", NextState::Dead(DeadCause::Exhausted)),
    ] {
        let claim = fixture.claim(event(id).to(&endpoint)).await;
        fixture.change(claim.id, DeliveryChange::Cancel, at(1)).await.unwrap();
        let settled = fixture.attempted(&claim, outcome, at(2)).await;
        assert_eq!(settled.due_again_at, None, "{id}");
        let delivery = fixture.delivery(claim.id).await;
        assert_eq!(
            (delivery.state, delivery.cause, delivery.finished_at),
            (DeliveryState::Cancelled, None, Some(at(1))),
            "{id}"
        );
        assert_eq!(fixture.attempts(claim.id).await.len(), 1, "the request was made, so it is told");
    }
    let claim = fixture.claim(event("put-back").to(&endpoint)).await;
    fixture.change(claim.id, DeliveryChange::Cancel, at(1)).await.unwrap();
    for outcome in [
        ClaimOutcome::PutBack { due_at: at(9) },
        ClaimOutcome::Expired { by: DeadlineSource::Age, progress: claim.progress },
    ] {
        fixture.store.settle(fixture.lease(endpoint.id), settlement(&claim, outcome, at(2))).await.unwrap();
        assert_eq!(fixture.state(claim.id).await, DeliveryState::Cancelled);
    }
    assert!(fixture.due_ids(&endpoint, at(100)).await.is_empty());
}

async fn settling_what_was_forgotten_or_never_was_changes_nothing(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    fixture.change(claim.id, DeliveryChange::Cancel, at(1)).await.unwrap();
    fixture.forget(at(50), at(50)).await;
    fixture.deliver(&claim, at(60)).await;
    assert!(fixture.store.delivery(&ours(), claim.id).await.unwrap().is_none());
    assert!(!fixture.is_known("a").await);
}

async fn outcomes_survive_closing(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let retried = fixture.claim(event("retried").key("k").to(&endpoint)).await;
    fixture.attempted(&retried, NextState::Waiting { due_at: at(60) }, at(1)).await;
    fixture.accept(event("behind").key("k").to(&endpoint)).await;
    let dead = fixture.claim(event("dead").to(&endpoint)).await;
    fixture.die(&dead, DeadCause::Refused, at(2)).await;
    let delivered = fixture.claim(event("delivered").to(&endpoint)).await;
    fixture.deliver(&delivered, at(3)).await;
    let before =
        [fixture.delivery(retried.id).await, fixture.delivery(dead.id).await, fixture.delivery(delivered.id).await];

    let fixture = fixture.reopened().await;
    for delivery in before {
        let after = fixture.delivery(delivery.id).await;
        assert_eq!(format!("{after:?}"), format!("{delivery:?}"));
        assert_eq!(fixture.attempts(delivery.id).await.len(), 1);
    }
    let due = fixture.due(&endpoint, at(100)).await.claims;
    assert_eq!(due.iter().map(|claim| claim.id).collect::<Vec<_>>(), [retried.id]);
    let next = fixture.deliver(&due[0], at(61)).await.freed.pop().unwrap();
    assert_eq!((next.event.id.as_str(), next.seq), ("behind", Some(2)));
}

async fn a_receivers_wish_for_quiet_is_kept_and_never_shortened(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    for (until, is_news) in [(60, true), (30, false), (60, false), (90, true)] {
        let ClaimOutcome::Attempted { attempt, next, progress, expiry_check_at, .. } =
            attempted(&claim, NextState::Waiting { due_at: at(until) }, at(1))
        else {
            unreachable!()
        };
        let notice = EndpointUpdate { backpressure_until: Some(at(until)), ..EndpointUpdate::default() };
        let outcome = ClaimOutcome::Attempted { attempt, next, progress, expiry_check_at, update: notice.clone() };
        let settled =
            fixture.store.settle(fixture.lease(endpoint.id), settlement(&claim, outcome, at(1))).await.unwrap();
        assert_eq!(settled.update, Some(notice).filter(|_| is_news).unwrap_or_default(), "until {until}");
    }
    let fixture = fixture.reopened().await;
    assert_eq!(fixture.store.any_endpoint(endpoint.id).unwrap().backpressure_until, Some(at(90)));
    let state_change = EndpointChange::State { state: EndpointState::Paused, note: None };
    fixture.store.change_endpoint(&Initiator::Gateway, &ours(), endpoint.id, state_change, at(2)).await.unwrap();
    assert_eq!(
        fixture.store.any_endpoint(endpoint.id).unwrap().backpressure_until,
        Some(at(90)),
        "a pause changes nothing"
    );
    for (n, backpressure_until) in [(1, Some(at(90))), (2, None)] {
        let state_change = EndpointChange::State { state: EndpointState::Active, note: None };
        fixture.store.change_endpoint(&Initiator::Gateway, &ours(), endpoint.id, state_change, at(2)).await.unwrap();
        let known = fixture.store.any_endpoint(endpoint.id).unwrap();
        assert_eq!(
            known.backpressure_until, backpressure_until,
            "resume {n}: the first ends the pause, the second the quiet"
        );
    }
}

async fn another_url_has_asked_for_nothing(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    let ClaimOutcome::Attempted { attempt, next, progress, expiry_check_at, .. } =
        attempted(&claim, NextState::Waiting { due_at: at(5) }, at(1))
    else {
        unreachable!()
    };
    let notice = EndpointUpdate { backpressure_until: Some(at(90)), ..EndpointUpdate::default() };
    let outcome = ClaimOutcome::Attempted { attempt, next, progress, expiry_check_at, update: notice };
    fixture.store.settle(fixture.lease(endpoint.id), settlement(&claim, outcome, at(1))).await.unwrap();
    for (url, backpressure_until) in [("https://example.com/", Some(at(90))), ("https://example.com/new", None)] {
        let current = fixture.store.any_endpoint(endpoint.id).unwrap();
        let settings = EndpointSettings { url: url.into(), description: "new".into(), ..current.settings.clone() };
        let policy = settings.check().unwrap();
        let if_updated_at = current.updated_at;
        let change = EndpointChange::Settings { settings: Box::new(settings), policy, if_updated_at };
        fixture.store.change_endpoint(&Initiator::Gateway, &ours(), endpoint.id, change, at(3)).await.unwrap();
        assert_eq!(fixture.store.any_endpoint(endpoint.id).unwrap().backpressure_until, backpressure_until, "{url}");
    }
}

async fn an_event_over_by_its_own_account_lets_its_lane_move_on(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let head = fixture.claim(event("a").key("k").expiring(at(10)).to(&endpoint)).await;
    assert_eq!(head.expires_at, Some(at(10)));
    fixture.accept(event("b").key("k").expiring(at(20)).to(&endpoint)).await;
    fixture.accept(event("c").key("k").to(&endpoint)).await;
    fixture.accept(event("d").key("k").to(&endpoint)).await;
    // One behind the head ends first; the lane does not move for it.
    let behind = fixture.deliveries_of("b").await[0].id;
    let over = |progress| ClaimOutcome::Expired { by: DeadlineSource::Expiry, progress };
    let settlement_of = |id, outcome| Settlement { id, endpoint: endpoint.id, now: at(21), outcome };
    let progress = fixture.delivery(behind).await.progress;
    let settled =
        fixture.store.settle(fixture.lease(endpoint.id), settlement_of(behind, over(progress))).await.unwrap();
    assert!(settled.freed.is_empty());
    assert_eq!(fixture.due_ids(&endpoint, at(100)).await, ["a"]);
    let settled =
        fixture.store.settle(fixture.lease(endpoint.id), settlement_of(head.id, over(head.progress))).await.unwrap();
    assert_eq!(settled.freed.first().map(|claim| claim.event.id.to_string()), Some("c".into()));
    for id in [head.id, behind] {
        let delivery = fixture.delivery(id).await;
        assert_eq!((delivery.state, delivery.cause), (DeliveryState::Dead, Some(DeadCause::Expired)));
    }
    // Any other death blocks, an old age included.
    let third = fixture.due(&endpoint, at(100)).await.claims.remove(0);
    let old = settlement(&third, ClaimOutcome::Expired { by: DeadlineSource::Age, progress: third.progress }, at(30));
    assert!(fixture.store.settle(fixture.lease(endpoint.id), old).await.unwrap().freed.is_empty());
    assert!(fixture.due_ids(&endpoint, at(100)).await.is_empty());
}

async fn a_replay_in_flight_keeps_its_fresh_budget(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    fixture.change(claim.id, DeliveryChange::Cancel, at(1)).await.unwrap();
    fixture.change(claim.id, DeliveryChange::Replay, at(2)).await.unwrap();
    // The request that was open all the while ends now.
    let settled = fixture.attempted(&claim, NextState::Dead(DeadCause::Refused), at(3)).await;
    assert_eq!(settled.due_again_at, Some(at(2)));
    let again = fixture.due(&endpoint, at(3)).await.claims.remove(0);
    let progress = again.progress;
    assert_eq!((progress.attempts, progress.attempts_before), (1, 1), "it is counted, but not in the new budget");
    assert_eq!((progress.age_from, progress.begun_at), (None, Some(at(2))));
    assert_eq!(fixture.attempts(claim.id).await.len(), 1);
    fixture.attempted(&again, NextState::Delivered, at(4)).await;
    let numbers: Vec<u32> = fixture.attempts(claim.id).await.iter().map(|attempt| attempt.number).collect();
    assert_eq!(numbers, [1, 2]);
}

async fn what_was_decided_on_old_news_is_not_written(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let over = |progress| ClaimOutcome::Expired { by: DeadlineSource::Age, progress };
    let look = |progress| ClaimOutcome::RecheckExpiry { at: at(99), progress };
    // An attempt was faster.
    let tried = fixture.claim(event("tried").to(&endpoint)).await;
    fixture.attempted(&tried, NextState::Waiting { due_at: at(60) }, at(1)).await;
    // A person was faster.
    let replayed = fixture.claim(event("replayed").to(&endpoint)).await;
    fixture.change(replayed.id, DeliveryChange::Cancel, at(1)).await.unwrap();
    fixture.change(replayed.id, DeliveryChange::Replay, at(2)).await.unwrap();
    let delivered = fixture.claim(event("delivered").to(&endpoint)).await;
    fixture.deliver(&delivered, at(1)).await;
    for (claim, due_at) in [(&tried, Some(at(60))), (&replayed, Some(at(2))), (&delivered, None)] {
        for outcome in [over(claim.progress), look(claim.progress)] {
            let settled =
                fixture.store.settle(fixture.lease(endpoint.id), settlement(claim, outcome, at(50))).await.unwrap();
            assert!(settled.is_void);
            assert_eq!(settled.due_again_at, due_at);
        }
        assert_ne!(fixture.state(claim.id).await, DeliveryState::Dead);
    }
    assert!(fixture.store.read_overdue(at(100), 10).await.unwrap().found.is_empty());
}

async fn a_receiver_that_is_no_longer_the_endpoints_speaks_for_nobody(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    let settings = EndpointSettings { url: "https://example.com/new".into(), ..endpoint.settings.clone() };
    let (policy, if_updated_at) = (endpoint.policy.clone(), endpoint.updated_at);
    let change = EndpointChange::Settings { settings: Box::new(settings), policy, if_updated_at };
    fixture.store.change_endpoint(&Initiator::Gateway, &ours(), endpoint.id, change, at(3)).await.unwrap();
    // The house's attempts go to the first version of the URL.
    assert_eq!(fixture.die(&claim, DeadCause::Gone, at(4)).await.update, EndpointUpdate::default());
    assert_eq!(fixture.store.any_endpoint(endpoint.id).unwrap().status.state, EndpointState::Active);
}
