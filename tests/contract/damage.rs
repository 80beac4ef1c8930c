//! Damage: what is stored is compared with its checksum, and what is no longer
//! what was accepted is never sent.

use posthaste::model::audit::Initiator;
use posthaste::model::delivery::{DeadCause, DeliveryState};
use posthaste::store::{ClaimOutcome, DeliveryChange, Error, ScrubStep, Scrubbed};
use serde_json::json;

use crate::fixture::{StoreFixture, at, event, ours, settlement};

for_every_store! {
    whatever_of_an_event_is_changed_in_the_store_is_noticed,
    a_damaged_delivery_is_dead_blocks_its_lane_and_cannot_be_replayed,
    events_of_older_versions_get_their_checksums_in_the_background,
    an_expunged_event_is_not_damaged,
}

async fn scrub(fixture: &StoreFixture) -> Scrubbed {
    let mut total = Scrubbed::default();
    let mut next = Some(0);
    while let Some(after) = next {
        let found = fixture.store.scrub(ScrubStep { after, limit: 2 }).await.unwrap();
        total.checked += found.checked;
        total.filled += found.filled;
        total.damaged.extend(found.damaged);
        next = found.next;
    }
    total
}

async fn whatever_of_an_event_is_changed_in_the_store_is_noticed(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    for (n, change) in [
        "data = substr(data, 2)",
        "type = 'another.type'",
        "key = 'another'",
        "timestamp = '2026-01-01T00:00:00Z'",
        "schema_version = '7'",
        "accepted_at = accepted_at + 1",
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("e{n}");
        fixture.accept(event(&id).saying("[\"some data\"]").to(&endpoint)).await;
        let is_damaged = async || {
            let due = fixture.due(&endpoint, at(9)).await.claims;
            let claim = due.into_iter().find(|claim| claim.event.id.as_str() == id).expect("it is due");
            let record = fixture.store.event(&ours(), &claim.event.id).await.unwrap().unwrap();
            assert_eq!(record.is_damaged, claim.is_damaged, "{change}");
            claim.is_damaged
        };
        assert!(!is_damaged().await);
        fixture.execute(&format!("UPDATE events SET {change} WHERE id = '{id}'")).await;
        assert!(is_damaged().await, "{change}");
    }
    let found = scrub(&fixture).await;
    assert_eq!((found.checked, found.filled, found.damaged.len()), (6, 0, 6));
}

async fn a_damaged_delivery_is_dead_blocks_its_lane_and_cannot_be_replayed(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let first = fixture.claim(event("first").key("k").to(&endpoint)).await;
    assert!(fixture.accept(event("second").key("k").to(&endpoint)).await.is_empty());
    let lease = fixture.lease(endpoint.id);
    let settled = fixture.store.settle(lease, settlement(&first, ClaimOutcome::Damaged, at(1))).await.unwrap();
    assert_eq!(settled.died, Some(DeadCause::Damaged));
    assert!(settled.freed.iter().all(|claim| claim.endpoint != endpoint.id), "the lane stands still");
    let dead = fixture.delivery(first.id).await;
    assert_eq!((dead.state, dead.cause, dead.progress.attempts), (DeliveryState::Dead, Some(DeadCause::Damaged), 0));
    let refused = fixture.change(first.id, DeliveryChange::Replay, at(2)).await.unwrap_err();
    assert!(matches!(&refused, Error::WrongState(why) if why.contains("damaged")), "{refused:?}");
    fixture.change(first.id, DeliveryChange::Discard, at(2)).await.unwrap();
    assert_eq!(fixture.due_ids(&endpoint, at(9)).await, ["second"]);
    assert!(fixture.change(first.id, DeliveryChange::Replay, at(3)).await.is_err(), "nor after it was given up");
}

async fn events_of_older_versions_get_their_checksums_in_the_background(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    for id in ["a", "b", "c"] {
        fixture.accept(event(id).to(&endpoint)).await;
    }
    fixture.execute("UPDATE events SET checksum = NULL").await;
    assert!(fixture.due(&endpoint, at(9)).await.claims.iter().all(|claim| !claim.is_damaged));
    let found = scrub(&fixture).await;
    assert_eq!((found.checked, found.filled, found.damaged.len()), (3, 3, 0));
    assert_eq!(scrub(&fixture).await.filled, 0);
    fixture.execute("UPDATE events SET type = 'another' WHERE id = 'b'").await;
    let damaged = scrub(&fixture).await.damaged;
    assert_eq!(damaged, [(ours(), "b".parse().unwrap())]);
    let claims = fixture.due(&endpoint, at(9)).await.claims;
    let damaged: Vec<&str> =
        claims.iter().filter(|claim| claim.is_damaged).map(|claim| claim.event.id.as_str()).collect();
    assert_eq!(damaged, ["b"]);
}

async fn an_expunged_event_is_not_damaged(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    fixture.deliver(&claim, at(1)).await;
    assert!(fixture.store.expunge(&Initiator::Gateway, &ours(), &claim.event.id).await.unwrap());
    assert!(!fixture.store.event(&ours(), &claim.event.id).await.unwrap().unwrap().is_damaged);
    assert_eq!(scrub(&fixture).await.damaged, []);
}

/// Where no server watches over its pages, a delivery's own row is compared,
/// too.
#[tokio::test]
async fn a_changed_row_of_a_delivery_is_noticed() {
    let fixture = StoreFixture::embedded().await;
    let endpoint = fixture.endpoint(json!({})).await;
    for (n, change) in ["seq = seq + 1", "format = 1", "checksum = checksum + 1"].into_iter().enumerate() {
        let id = format!("e{n}");
        fixture.accept(event(&id).key(&id).to(&endpoint)).await;
        fixture.execute(&format!("UPDATE deliveries SET {change} WHERE no = {}", n + 1)).await;
    }
    let claims = fixture.due(&endpoint, at(9)).await.claims;
    assert_eq!(claims.iter().map(|claim| claim.is_damaged).collect::<Vec<_>>(), [true; 3]);
    // A value of another kind than such a row holds.
    fixture.accept(event("odd").to(&endpoint)).await;
    fixture
        .execute("PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = replace(sql, ') STRICT', ')') WHERE name = 'deliveries'")
        .await;
    fixture.execute("UPDATE deliveries SET attempts = 'many' WHERE no = 4").await;
    let claims = fixture.due(&endpoint, at(9)).await.claims;
    assert_eq!(claims.len(), 4);
    assert!(claims.iter().all(|claim| claim.is_damaged));
}
