//! Accept: durable together, once per id, in the order given.

use posthaste::model::audit::Initiator;
use posthaste::store::{AcceptResult, BatchMode};
use serde_json::json;

use crate::fixture::{StoreFixture, at, event, event_id, ours, tenant};

for_every_store! {
    an_event_and_all_its_deliveries_are_there_when_accept_returns,
    an_event_that_nobody_wants_is_kept,
    a_repeat_is_told_what_was_answered_before_and_changes_nothing,
    the_same_id_with_other_content_is_a_conflict_and_changes_nothing,
    a_conflict_names_the_fields_that_differ,
    white_space_between_tokens_is_no_other_content_and_the_first_bytes_stay,
    a_timestamp_that_the_gateway_added_is_not_compared,
    an_id_of_our_own_minting_is_nobody_elses_to_repeat,
    an_id_belongs_to_its_tenant,
    a_repeat_inside_one_batch_is_a_duplicate,
    white_space_between_tokens_is_no_other_content_inside_one_batch,
    what_repeats_an_id_inside_one_batch_is_compared_with_what_is_known,
    one_conflict_leaves_nothing_of_a_whole_batch,
    a_batch_that_stands_each_on_its_own_keeps_what_is_good,
    an_endpoint_deleted_since_it_was_matched_gets_nothing,
    ids_and_events_survive_closing,
    a_delivery_with_a_time_of_its_own_waits_for_it_unless_it_is_in_a_lane,
    a_repeat_moves_no_due_time,
}

async fn an_event_and_all_its_deliveries_are_there_when_accept_returns(fixture: StoreFixture) {
    let (one, two) = (fixture.endpoint(json!({})).await, fixture.endpoint(json!({"format": "raw"})).await);
    let claims = fixture.accept(event("a").key("k").saying(r#"{"n": 1}"#).at(at(5)).to(&one).to(&two)).await;
    assert_eq!(claims.iter().map(|claim| claim.endpoint).collect::<Vec<_>>(), [one.id, two.id]);
    assert!(claims.iter().all(|claim| claim.due_at == at(5) && claim.progress.attempts == 0));

    let record = fixture.store.event(&ours(), &"a".parse().unwrap()).await.unwrap().unwrap();
    assert_eq!((record.deliveries, &record.event.data[..]), (2, &br#"{"n": 1}"#[..]));
    assert_eq!((record.event.accepted_at, record.event.key.unwrap().as_str()), (at(5), "k"));
    let found = fixture.deliveries_of("a").await;
    assert_eq!(found.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), [claims[0].id, claims[1].id]);
    for (endpoint, claim) in [(&one, &claims[0]), (&two, &claims[1])] {
        let due = fixture.due(endpoint, at(5)).await.claims;
        assert_eq!((due.len(), due[0].id, due[0].format), (1, claim.id, endpoint.settings.format));
        assert_eq!(due[0].event.data, claim.event.data);
    }
}

async fn an_event_that_nobody_wants_is_kept(fixture: StoreFixture) {
    assert!(fixture.accept(event("a")).await.is_empty());
    assert!(fixture.is_known("a").await);
    assert!(fixture.deliveries_of("a").await.is_empty());
}

async fn a_repeat_is_told_what_was_answered_before_and_changes_nothing(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    fixture.accept(event("a").key("k").to(&endpoint)).await;
    let later = fixture.endpoint(json!({})).await;
    let repeat = event("a").key("k").at(at(99)).to(&endpoint).to(&later);
    let answer = fixture.accept_all(vec![repeat], BatchMode::All).await;
    let AcceptResult::Duplicate { accepted_at, deliveries } = answer[0] else { panic!("{answer:?}") };
    assert_eq!((accepted_at, deliveries), (at(0), 1));
    assert_eq!(fixture.deliveries_of("a").await.len(), 1);
    assert!(fixture.due(&later, at(100)).await.claims.is_empty());
    assert!(fixture.accept(event("b").key("k").to(&endpoint)).await.is_empty(), "the lane's second waits");
    assert_eq!(fixture.deliveries_of("b").await[0].seq, Some(2), "the repeat took no place");
}

async fn the_same_id_with_other_content_is_a_conflict_and_changes_nothing(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    fixture.accept(event("a").saying("1").to(&endpoint)).await;
    let answer = fixture.accept_all(vec![event("a").saying("2").at(at(9)).to(&endpoint)], BatchMode::All).await;
    let AcceptResult::Conflict { accepted_at, .. } = answer[0] else { panic!("{answer:?}") };
    assert_eq!(accepted_at, at(0));
    let record = fixture.store.event(&ours(), &"a".parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(&record.event.data[..], b"1");
    assert_eq!(fixture.due_ids(&endpoint, at(100)).await, ["a"]);
}

async fn a_conflict_names_the_fields_that_differ(fixture: StoreFixture) {
    fixture.accept(event("a").saying("1")).await;
    let others = vec![
        event("a").saying("2"),
        event("a").saying("2").key("k").kind("other.thing").expiring(at(60)),
        event("a").key("k").with_minted_id(),
    ];
    let answer = fixture.accept_all(others, BatchMode::Each).await;
    let differs = |n: usize| match &answer[n] {
        AcceptResult::Conflict { differs, .. } => differs.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(differs(0), ["data"]);
    assert_eq!(differs(1), ["type", "key", "data", "expires_at"]);
    assert!(differs(2).is_empty(), "nobody's content to compare");
}

async fn white_space_between_tokens_is_no_other_content_and_the_first_bytes_stay(fixture: StoreFixture) {
    fixture.accept(event("a").saying(r#"{"n": [1, 2]}"#)).await;
    let fixture = fixture.reopened().await;
    let repeats = vec![event("a").saying(r#"{"n":[1,2]}"#), event("a").saying("{\n\t\"n\" : [1,2 ]\r\n}")];
    for answer in fixture.accept_all(repeats, BatchMode::All).await {
        assert!(matches!(answer, AcceptResult::Duplicate { .. }), "{answer:?}");
    }
    let record = fixture.store.event(&ours(), &"a".parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(&record.event.data[..], br#"{"n": [1, 2]}"#);
}

async fn white_space_between_tokens_is_no_other_content_inside_one_batch(fixture: StoreFixture) {
    let batch = vec![event("a").saying("[1]"), event("a").saying("[ 1 ]"), event("b").saying("2")];
    let answer = fixture.accept_all(batch, BatchMode::All).await;
    use AcceptResult::{Duplicate, New};
    assert!(matches!(answer[..], [New { .. }, Duplicate { .. }, New { .. }]), "{answer:?}");
}

async fn a_timestamp_that_the_gateway_added_is_not_compared(fixture: StoreFixture) {
    const ADDED: [&str; 2] = ["2026-01-01T00:00:00.000Z", "2026-01-01T00:00:09.000Z"];
    fixture.accept(event("a").saying("[1]").stamped(ADDED[0], None)).await;
    let repeats = vec![
        event("a").saying("[ 1]").stamped(ADDED[1], None),
        event("a").saying("[1 ]").stamped(ADDED[0], Some(ADDED[0])),
    ];
    let answer = fixture.accept_all(repeats, BatchMode::Each).await;
    assert!(matches!(answer[0], AcceptResult::Duplicate { .. }), "{answer:?}");
    assert!(matches!(&answer[1], AcceptResult::Conflict { differs, .. } if *differs == ["timestamp"]), "{answer:?}");
}

async fn an_id_of_our_own_minting_is_nobody_elses_to_repeat(fixture: StoreFixture) {
    fixture.accept(event("a").with_minted_id()).await;
    for repeat in [event("a"), event("a").with_minted_id()] {
        let answer = fixture.accept_all(vec![repeat], BatchMode::All).await;
        assert!(matches!(answer[0], AcceptResult::Conflict { .. }), "{answer:?}");
    }
}

async fn an_id_belongs_to_its_tenant(fixture: StoreFixture) {
    let other = fixture.put_tenant("other").await;
    fixture.accept(event("a").saying("1")).await;
    fixture.accept(event("a").saying("2").of(&other)).await;
    let record = fixture.store.event(&tenant("other"), &"a".parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(&record.event.data[..], b"2");
}

async fn a_repeat_inside_one_batch_is_a_duplicate(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let answer = fixture.accept_all(vec![event("a").to(&endpoint), event("a").to(&endpoint)], BatchMode::All).await;
    assert!(matches!(answer[..], [AcceptResult::New { .. }, AcceptResult::Duplicate { .. }]), "{answer:?}");
    assert_eq!(fixture.due_ids(&endpoint, at(0)).await, ["a"]);
}

async fn what_repeats_an_id_inside_one_batch_is_compared_with_what_is_known(fixture: StoreFixture) {
    fixture.accept(event("a").saying("1")).await;
    let batch = vec![event("a").saying("2"), event("a").saying("1"), event("a").saying("2")];
    let answer = fixture.accept_all(batch, BatchMode::Each).await;
    assert!(matches!(answer[0], AcceptResult::Conflict { .. }), "{answer:?}");
    assert!(matches!(answer[1], AcceptResult::Duplicate { .. }), "{answer:?}");
    assert!(matches!(answer[2], AcceptResult::Conflict { .. }), "{answer:?}");
}

async fn one_conflict_leaves_nothing_of_a_whole_batch(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    fixture.accept(event("taken").saying("1")).await;
    let batch = vec![
        event("a").key("k").to(&endpoint),
        event("b").key("k").to(&endpoint),
        event("taken").saying("2").to(&endpoint),
        event("c").to(&endpoint),
    ];
    let answer = fixture.accept_all(batch, BatchMode::All).await;
    assert!(matches!(answer[2], AcceptResult::Conflict { .. }), "{answer:?}");
    for id in ["a", "b", "c"] {
        assert!(!fixture.is_known(id).await, "{id}");
    }
    assert!(fixture.due(&endpoint, at(100)).await.claims.is_empty());
    assert!(fixture.store.earliest_due().await.unwrap().is_empty());
    let claim = fixture.claim(event("d").key("k").to(&endpoint)).await;
    assert_eq!(claim.seq, Some(1), "no place in the lane was used up");
    // What was not written can be handed in again, and is new.
    fixture.accept(event("a").key("k").to(&endpoint)).await;
    assert_eq!(fixture.deliveries_of("a").await[0].seq, Some(2));
    assert_eq!(fixture.deliveries_of("d").await.len(), 1);
}

async fn a_batch_that_stands_each_on_its_own_keeps_what_is_good(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    fixture.accept(event("taken").saying("1")).await;
    let batch = vec![
        event("a").key("k").to(&endpoint),
        event("taken").saying("2").key("k").to(&endpoint),
        event("b").key("k").to(&endpoint),
        event("c").to(&endpoint),
    ];
    let answer = fixture.accept_all(batch, BatchMode::Each).await;
    assert!(matches!(answer[1], AcceptResult::Conflict { .. }), "{answer:?}");
    let free = |n: usize| match &answer[n] {
        AcceptResult::New { deliveries: 1, claims } => claims.iter().map(event_id).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!((free(0), free(2), free(3)), (vec!["a".into()], vec![], vec!["c".into()]));
    assert_eq!(fixture.deliveries_of("b").await[0].seq, Some(2));
}

async fn an_endpoint_deleted_since_it_was_matched_gets_nothing(fixture: StoreFixture) {
    let (kept, gone) = (fixture.endpoint(json!({})).await, fixture.endpoint(json!({})).await);
    fixture.store.delete_endpoint(&Initiator::Gateway, &ours(), gone.id, at(1)).await.unwrap();
    let claims = fixture.accept(event("a").to(&gone).to(&kept)).await;
    assert_eq!(claims.iter().map(|claim| claim.endpoint).collect::<Vec<_>>(), [kept.id]);
    assert_eq!(fixture.deliveries_of("a").await.len(), 1);
}

async fn a_delivery_with_a_time_of_its_own_waits_for_it_unless_it_is_in_a_lane(fixture: StoreFixture) {
    let (plain, whole) = (fixture.endpoint(json!({})).await, fixture.endpoint(json!({"ordering": "endpoint"})).await);
    let unordered = fixture.endpoint(json!({"ordering": "none"})).await;
    let all = |draft: crate::fixture::Draft| draft.to(&plain).to(&whole).to(&unordered);
    let claims = fixture.accept(all(event("a").at(at(5)).due(at(65)))).await;
    let due: Vec<_> = claims.iter().map(|claim| (claim.endpoint, claim.due_at)).collect();
    assert_eq!(due, [(plain.id, at(65)), (whole.id, at(5)), (unordered.id, at(65))]);
    let claims = fixture.accept(all(event("b").key("k").at(at(6)).due(at(66)))).await;
    let due: Vec<_> = claims.iter().map(|claim| (claim.endpoint, claim.due_at)).collect();
    assert_eq!(due, [(plain.id, at(6)), (unordered.id, at(66))], "the first in its lane, and one without a lane");

    let fixture = fixture.reopened().await;
    assert_eq!(fixture.due_ids(&plain, at(64)).await, ["b"]);
    assert_eq!(fixture.due_ids(&plain, at(65)).await, ["b", "a"]);
    assert_eq!(fixture.due_ids(&whole, at(5)).await, ["a"]);
    let page = fixture.due(&unordered, at(64)).await;
    assert!(page.claims.is_empty());
    assert_eq!(page.next_due, Some(at(65)));
    let delivery = &fixture.deliveries_of("a").await[0];
    assert_eq!((delivery.created_at, delivery.due_at), (at(5), at(65)));
}

async fn a_repeat_moves_no_due_time(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    fixture.accept(event("a").due(at(60)).to(&endpoint)).await;
    for repeat in [event("a"), event("a").due(at(30))] {
        let answer = fixture.accept_all(vec![repeat.at(at(9)).to(&endpoint)], BatchMode::All).await;
        assert!(matches!(answer[0], AcceptResult::Duplicate { .. }), "{answer:?}");
    }
    assert!(fixture.due_ids(&endpoint, at(59)).await.is_empty());
    assert_eq!(fixture.due_ids(&endpoint, at(60)).await, ["a"]);
}

async fn ids_and_events_survive_closing(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    fixture.accept(event("a").saying("[1,  2]").key("k").to(&endpoint)).await;
    fixture.accept(event("b").key("k").to(&endpoint)).await;
    let fixture = fixture.reopened().await;
    let answer = fixture.accept_all(vec![event("a").saying("[1,  2]"), event("a").saying("3")], BatchMode::Each).await;
    assert!(matches!(answer[..], [AcceptResult::Duplicate { .. }, AcceptResult::Conflict { .. }]), "{answer:?}");
    let due = fixture.due(&endpoint, at(0)).await.claims;
    assert_eq!((due.len(), &due[0].event.data[..]), (1, &b"[1,  2]"[..]));
    fixture.accept(event("c").key("k").to(&endpoint)).await;
    assert_eq!(fixture.deliveries_of("c").await[0].seq, Some(3), "the lane goes on counting");
}
