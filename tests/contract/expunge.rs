//! Forgetting what an event carried: nothing of it can be sent again, and
//! everything else stays.

use posthaste::model::delivery::DeadCause;
use posthaste::model::next_state::NextState;
use posthaste::store::{AcceptResult, BatchMode, DeliveryChange, Error};
use serde_json::json;

use crate::house::{House, at, event, ours};

for_every_store! {
    what_waits_keeps_its_data,
    an_expunged_event_has_no_data_and_no_answers_and_cannot_be_replayed,
    what_is_answered_after_an_expunge_is_not_kept,
    an_expunged_event_is_still_recognised,
    another_tenants_event_is_not_expunged,
}

async fn what_waits_keeps_its_data(house: House) {
    let endpoint = house.endpoint(json!({})).await;
    let first = house.claim(event("a").to(&endpoint)).await;
    let id = "a".parse().unwrap();
    assert!(!house.store.expunge(&ours(), &id).await.unwrap());
    assert_eq!(house.due(&endpoint, at(9)).await.claims[0].event.data, first.event.data);
    house.change(first.id, DeliveryChange::Cancel, at(1)).await.unwrap();
    assert!(house.store.expunge(&ours(), &id).await.unwrap());
    assert!(house.store.expunge(&ours(), &id).await.unwrap(), "once more changes nothing");
}

async fn an_expunged_event_has_no_data_and_no_answers_and_cannot_be_replayed(house: House) {
    let endpoint = house.endpoint(json!({})).await;
    let delivered = house.claim(event("delivered").to(&endpoint)).await;
    house.attempted(&delivered, NextState::Waiting { due_at: at(2) }, at(1)).await;
    let again = house.due(&endpoint, at(9)).await.claims.remove(0);
    house.deliver(&again, at(2)).await;
    let dead = house.claim(event("dead").to(&endpoint)).await;
    house.die(&dead, DeadCause::Refused, at(1)).await;
    let other = house.claim(event("other").to(&endpoint)).await;
    house.deliver(&other, at(1)).await;
    assert!(!house.attempts(other.id).await[0].response_body.is_empty(), "there is something to forget");
    for (name, claim) in [("delivered", &delivered), ("dead", &dead)] {
        let id = name.parse().unwrap();
        let before = house.delivery(claim.id).await;
        let attempts = house.attempts(claim.id).await;
        assert!(house.store.expunge(&ours(), &id).await.unwrap());
        let record = house.store.event(&ours(), &id).await.unwrap().unwrap();
        assert!(record.event.is_expunged(), "{name}");
        assert_eq!(record.event.event_type, claim.event.event_type);
        assert_eq!(format!("{:?}", house.delivery(claim.id).await), format!("{before:?}"));
        let left = house.attempts(claim.id).await;
        assert!(left.iter().all(|attempt| attempt.response_body.is_empty()), "{left:?}");
        assert_eq!(left.len(), attempts.len());
        assert_eq!(left[0].decision, attempts[0].decision, "how it was judged stays");
        let problem = house.change(claim.id, DeliveryChange::Replay, at(9)).await.unwrap_err();
        assert!(matches!(&problem, Error::Expunged(event) if event.as_str() == name), "{problem:?}");
    }
    house.change(dead.id, DeliveryChange::Discard, at(9)).await.unwrap();
    assert!(!house.store.event(&ours(), &"other".parse().unwrap()).await.unwrap().unwrap().event.is_expunged());
    house.change(other.id, DeliveryChange::Replay, at(9)).await.unwrap();
}

async fn what_is_answered_after_an_expunge_is_not_kept(house: House) {
    let endpoint = house.endpoint(json!({})).await;
    for (id, next) in [("refused", NextState::Dead(DeadCause::Refused)), ("arrived", NextState::Delivered)] {
        let on_its_way = house.claim(event(id).to(&endpoint)).await;
        house.change(on_its_way.id, DeliveryChange::Cancel, at(1)).await.unwrap();
        assert!(house.store.expunge(&ours(), &id.parse().unwrap()).await.unwrap());
        house.attempted(&on_its_way, next, at(2)).await;
        let attempts = house.attempts(on_its_way.id).await;
        assert_eq!(attempts.iter().map(|attempt| attempt.response_body.as_str()).collect::<Vec<_>>(), [""], "{id}");
    }
    let kept = house.claim(event("kept").to(&endpoint)).await;
    house.change(kept.id, DeliveryChange::Cancel, at(1)).await.unwrap();
    house.attempted(&kept, NextState::Delivered, at(2)).await;
    assert!(!house.attempts(kept.id).await[0].response_body.is_empty(), "a mere cancel forgets nothing");
}

async fn an_expunged_event_is_still_recognised(house: House) {
    let endpoint = house.endpoint(json!({})).await;
    let claim = house.claim(event("a").to(&endpoint)).await;
    house.deliver(&claim, at(1)).await;
    assert!(house.store.expunge(&ours(), &"a".parse().unwrap()).await.unwrap());
    let id = endpoint.id;
    let house = house.reopened().await;
    let endpoint = house.store.any_endpoint(id).unwrap();
    let again = house.accept_all(vec![event("a").to(&endpoint)], BatchMode::All).await;
    assert!(matches!(again[0], AcceptResult::Duplicate { .. }), "{again:?}");
    let other = house.accept_all(vec![event("a").to(&endpoint).saying("else")], BatchMode::Each).await;
    assert!(matches!(other[0], AcceptResult::Conflict { .. }), "{other:?}");
}

async fn another_tenants_event_is_not_expunged(house: House) {
    let endpoint = house.endpoint(json!({})).await;
    let claim = house.claim(event("a").to(&endpoint)).await;
    house.deliver(&claim, at(1)).await;
    let other = house.put_tenant("other").await;
    let refused = house.store.expunge(&other, &"a".parse().unwrap()).await.unwrap_err();
    assert!(matches!(refused, Error::NotFound("event")), "{refused:?}");
    let missing = house.store.expunge(&ours(), &"b".parse().unwrap()).await.unwrap_err();
    assert!(matches!(missing, Error::NotFound("event")), "{missing:?}");
    assert!(!house.store.event(&ours(), &"a".parse().unwrap()).await.unwrap().unwrap().event.is_expunged());
}
