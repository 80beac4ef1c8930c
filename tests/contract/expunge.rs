//! Forgetting what an event carried: nothing of it can be sent again, and
//! everything else stays.

use posthaste::model::audit::Initiator;
use posthaste::model::delivery::DeadCause;
use posthaste::model::next_state::NextState;
use posthaste::store::{AcceptResult, BatchMode, DeliveryChange, Error, MissingResource};
use serde_json::json;

use crate::fixture::{StoreFixture, at, event, ours};

for_every_store! {
    what_waits_keeps_its_data,
    an_expunged_event_has_no_data_and_no_answers_and_cannot_be_replayed,
    what_is_answered_after_an_expunge_is_not_kept,
    an_expunged_event_is_still_recognised,
    an_expunged_event_is_recognised_by_a_repeat_with_white_space,
    another_tenants_event_is_not_expunged,
}

async fn what_waits_keeps_its_data(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let first = fixture.claim(event("a").to(&endpoint)).await;
    let id = "a".parse().unwrap();
    assert!(!fixture.store.expunge(&Initiator::Gateway, &ours(), &id).await.unwrap());
    assert_eq!(fixture.due(&endpoint, at(9)).await.claims[0].event.data, first.event.data);
    fixture.change(first.id, DeliveryChange::Cancel, at(1)).await.unwrap();
    assert!(fixture.store.expunge(&Initiator::Gateway, &ours(), &id).await.unwrap());
    assert!(fixture.store.expunge(&Initiator::Gateway, &ours(), &id).await.unwrap(), "once more changes nothing");
}

async fn an_expunged_event_has_no_data_and_no_answers_and_cannot_be_replayed(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let delivered = fixture.claim(event("delivered").to(&endpoint)).await;
    fixture.attempted(&delivered, NextState::Waiting { due_at: at(2) }, at(1)).await;
    let again = fixture.due(&endpoint, at(9)).await.claims.remove(0);
    fixture.deliver(&again, at(2)).await;
    let dead = fixture.claim(event("dead").to(&endpoint)).await;
    fixture.die(&dead, DeadCause::Refused, at(1)).await;
    let other = fixture.claim(event("other").to(&endpoint)).await;
    fixture.deliver(&other, at(1)).await;
    assert!(!fixture.attempts(other.id).await[0].response_body.is_empty(), "there is something to forget");
    for (name, claim) in [("delivered", &delivered), ("dead", &dead)] {
        let id = name.parse().unwrap();
        let before = fixture.delivery(claim.id).await;
        let attempts = fixture.attempts(claim.id).await;
        assert!(fixture.store.expunge(&Initiator::Gateway, &ours(), &id).await.unwrap());
        let record = fixture.store.event(&ours(), &id).await.unwrap().unwrap();
        assert!(record.event.is_expunged(), "{name}");
        assert_eq!(record.event.event_type, claim.event.event_type);
        assert_eq!(format!("{:?}", fixture.delivery(claim.id).await), format!("{before:?}"));
        let left = fixture.attempts(claim.id).await;
        assert!(left.iter().all(|attempt| attempt.response_body.is_empty()), "{left:?}");
        assert_eq!(left.len(), attempts.len());
        assert_eq!(left[0].decision, attempts[0].decision, "how it was judged stays");
        let problem = fixture.change(claim.id, DeliveryChange::Replay, at(9)).await.unwrap_err();
        assert!(matches!(&problem, Error::Expunged(event) if event.as_str() == name), "{problem:?}");
    }
    fixture.change(dead.id, DeliveryChange::Discard, at(9)).await.unwrap();
    assert!(!fixture.store.event(&ours(), &"other".parse().unwrap()).await.unwrap().unwrap().event.is_expunged());
    fixture.change(other.id, DeliveryChange::Replay, at(9)).await.unwrap();
}

async fn what_is_answered_after_an_expunge_is_not_kept(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    for (id, next) in [("refused", NextState::Dead(DeadCause::Refused)), ("arrived", NextState::Delivered)] {
        let on_its_way = fixture.claim(event(id).to(&endpoint)).await;
        fixture.change(on_its_way.id, DeliveryChange::Cancel, at(1)).await.unwrap();
        assert!(fixture.store.expunge(&Initiator::Gateway, &ours(), &id.parse().unwrap()).await.unwrap());
        fixture.attempted(&on_its_way, next, at(2)).await;
        let attempts = fixture.attempts(on_its_way.id).await;
        assert_eq!(attempts.iter().map(|attempt| attempt.response_body.as_str()).collect::<Vec<_>>(), [""], "{id}");
    }
    let kept = fixture.claim(event("kept").to(&endpoint)).await;
    fixture.change(kept.id, DeliveryChange::Cancel, at(1)).await.unwrap();
    fixture.attempted(&kept, NextState::Delivered, at(2)).await;
    assert!(!fixture.attempts(kept.id).await[0].response_body.is_empty(), "a mere cancel forgets nothing");
}

async fn an_expunged_event_is_still_recognised(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    fixture.deliver(&claim, at(1)).await;
    assert!(fixture.store.expunge(&Initiator::Gateway, &ours(), &"a".parse().unwrap()).await.unwrap());
    let id = endpoint.id;
    let fixture = fixture.reopened().await;
    let endpoint = fixture.store.any_endpoint(id).unwrap();
    let again = fixture.accept_all(vec![event("a").to(&endpoint)], BatchMode::All).await;
    assert!(matches!(again[0], AcceptResult::Duplicate { .. }), "{again:?}");
    let other = fixture.accept_all(vec![event("a").to(&endpoint).saying("else")], BatchMode::Each).await;
    assert!(matches!(other[0], AcceptResult::Conflict { .. }), "{other:?}");
}

async fn an_expunged_event_is_recognised_by_a_repeat_with_white_space(fixture: StoreFixture) {
    const ADDED: &str = "2026-01-01T00:00:00.000Z";
    fixture.accept(event("a").saying("[1,2]").stamped(ADDED, None)).await;
    assert!(fixture.store.expunge(&Initiator::Gateway, &ours(), &"a".parse().unwrap()).await.unwrap());
    let repeats = vec![event("a").saying("[1, 2]").stamped(ADDED, None), event("a").saying("3").stamped(ADDED, None)];
    let answer = fixture.accept_all(repeats, BatchMode::Each).await;
    assert!(matches!(answer[0], AcceptResult::Duplicate { .. }), "{answer:?}");
    assert!(matches!(&answer[1], AcceptResult::Conflict { differs, .. } if *differs == ["data"]), "{answer:?}");
}

async fn another_tenants_event_is_not_expunged(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    fixture.deliver(&claim, at(1)).await;
    let other = fixture.put_tenant("other").await;
    let refused = fixture.store.expunge(&Initiator::Gateway, &other, &"a".parse().unwrap()).await.unwrap_err();
    assert!(matches!(refused, Error::NotFound(MissingResource::Event)), "{refused:?}");
    let missing = fixture.store.expunge(&Initiator::Gateway, &ours(), &"b".parse().unwrap()).await.unwrap_err();
    assert!(matches!(missing, Error::NotFound(MissingResource::Event)), "{missing:?}");
    assert!(!fixture.store.event(&ours(), &"a".parse().unwrap()).await.unwrap().unwrap().event.is_expunged());
}
