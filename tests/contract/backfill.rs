//! Backfills: an endpoint gets past events, each once, and never an older one behind
//! a later one of its lane.

use std::sync::Arc;

use posthaste::model::audit::Initiator;
use posthaste::model::backfill::BackfillCandidate;
use posthaste::model::delivery::{BodyFormat, DeadCause, DeliveryState};
use posthaste::model::endpoint::Endpoint;
use posthaste::model::id::{DeliveryId, JobId};
use posthaste::model::job::{Job, JobFilter, JobKind, JobPart, JobSpec, JobState, LeftOut};
use posthaste::store::plan::change::ChangeCondition;
use posthaste::store::{BackfillQuery, BackfillTake, DeliveryChange, JobStep, UntriedQuery};
use serde_json::json;

use crate::fixture::{StoreFixture, at, event, ours};

for_every_store! {
    an_endpoint_gets_a_past_event_once_and_lists_have_it,
    an_event_joins_a_lane_behind_what_is_in_it_unless_a_later_one_is,
    past_events_are_read_from_a_time_on_and_a_page_at_a_time,
    an_event_stays_as_long_as_a_backfilled_delivery_of_it,
    what_was_backfilled_is_expunged_with_its_event,
    a_backfilled_delivery_survives_that_the_store_is_closed,
    a_thin_endpoint_gets_a_link_that_is_fixed_with_the_event,
    what_waits_says_whether_its_time_began_with_its_event,
}

async fn candidates(fixture: &StoreFixture, endpoint: &Endpoint) -> Vec<BackfillCandidate> {
    let query = BackfillQuery { after: None, since: None, look: 100 };
    let page = fixture.store.backfill_candidates(endpoint.id, query).await.unwrap();
    assert!(page.is_end);
    page.events
}

/// Gives events to an endpoint in one step. Returns the deliveries, and what was left
/// out.
async fn backfill(fixture: &StoreFixture, endpoint: &Endpoint, events: &[&str]) -> (Vec<DeliveryId>, Vec<LeftOut>) {
    backfill_with_links(fixture, endpoint, events, None).await
}

/// Gives events to an endpoint in one step, while the gateway has this public URL.
async fn backfill_with_links(
    fixture: &StoreFixture,
    endpoint: &Endpoint,
    events: &[&str],
    base: Option<&str>,
) -> (Vec<DeliveryId>, Vec<LeftOut>) {
    let filter = JobFilter { endpoints: vec![endpoint.id], ..Default::default() };
    let (per_second, not_older_than, note) = (None, None, None);
    let kind = JobKind::Backfill;
    let spec = JobSpec { kind, filter, per_second, not_older_than, even_overtaken: false, note, by: "admin".into() };
    let job = Job {
        id: JobId::mint(at(100), fixture.mint()),
        tenant: ours(),
        spec,
        state: JobState::Running,
        created_at: at(100),
        finished_at: None,
        error: None,
        parts: vec![JobPart::new(ours(), endpoint.id)],
    };
    fixture.store.create_job(&Initiator::Gateway, job.clone(), 50).await.unwrap();
    let known = candidates(fixture, endpoint).await;
    let position = |id: &str| known.iter().find(|one| one.event.id.as_str() == id).expect("it is there").position;
    let take = |position| BackfillTake { position, expires_at: None, link_base: base.map(str::to_owned) };
    let step = JobStep {
        job: job.id,
        kind,
        condition: ChangeCondition::default(),
        before: job.parts[0].clone(),
        after: None,
        is_read: true,
        take: Vec::new(),
        backfill: events.iter().map(|id| take(position(id))).collect(),
        hold: Vec::new(),
        unhold: Vec::new(),
        left_out: Vec::new(),
        ended: Vec::new(),
        pace: None,
    };
    let advanced = fixture.store.advance_job(fixture.lease(endpoint.id), step, at(101)).await.unwrap();
    let counts = fixture.store.job(&ours(), job.id).await.unwrap().unwrap().counts();
    let left_out = counts.left_out.into_iter().flat_map(|(why, count)| vec![why; count as usize]);
    (advanced.changed.into_iter().map(|(id, _)| id).collect(), left_out.collect())
}

async fn sent_to(fixture: &StoreFixture, endpoint: &Arc<Endpoint>, id: &str, key: &str, second: i64) {
    let claims = fixture.accept(event(id).key(key).at(at(second)).to(endpoint)).await;
    for claim in claims {
        fixture.deliver(&claim, at(second + 1)).await;
    }
}

async fn an_endpoint_gets_a_past_event_once_and_lists_have_it(fixture: StoreFixture) {
    let first = fixture.endpoint(json!({})).await;
    sent_to(&fixture, &first, "e1", "k", 1).await;
    let second = fixture.endpoint(json!({"ordering": "none"})).await;
    let is_got = async |endpoint: &Endpoint| candidates(&fixture, endpoint).await[0].is_got;
    assert!(is_got(&first).await && !is_got(&second).await);
    let (made, left_out) = backfill(&fixture, &second, &["e1"]).await;
    assert_eq!((made.len(), left_out), (1, Vec::new()));
    assert!(is_got(&second).await);
    let delivery = fixture.delivery(made[0]).await;
    assert_eq!(
        (delivery.endpoint_id, delivery.state, delivery.created_at),
        (second.id, DeliveryState::Waiting, at(101))
    );
    assert_eq!(fixture.store.waiting(Some(second.id)), Some(1));
    let all = fixture.deliveries_of("e1").await;
    assert_eq!(all.iter().map(|one| one.endpoint_id).collect::<Vec<_>>(), [first.id, second.id]);
    let claims = fixture.due(&second, at(101)).await.claims;
    assert_eq!((claims.len(), claims[0].event.accepted_at, claims[0].is_damaged), (1, at(1), false));
    fixture.deliver(&claims[0], at(102)).await;
    assert_eq!(fixture.state(made[0]).await, DeliveryState::Delivered);
    assert_eq!(backfill(&fixture, &second, &["e1"]).await, (Vec::new(), vec![LeftOut::AlreadyGot]));
    assert_eq!(backfill(&fixture, &first, &["e1"]).await, (Vec::new(), vec![LeftOut::AlreadyGot]));
}

async fn an_event_joins_a_lane_behind_what_is_in_it_unless_a_later_one_is(fixture: StoreFixture) {
    let first = fixture.endpoint(json!({})).await;
    for (id, second) in [("e1", 1), ("e2", 1), ("e3", 3)] {
        sent_to(&fixture, &first, id, "k", second).await;
    }
    let second = fixture.endpoint(json!({})).await;
    let (made, left_out) = backfill(&fixture, &second, &["e1", "e2"]).await;
    assert!(left_out.is_empty());
    let places: Vec<_> = [fixture.delivery(made[0]).await, fixture.delivery(made[1]).await]
        .iter()
        .map(|delivery| (delivery.seq, delivery.is_behind))
        .collect();
    assert_eq!(places, [(Some(1), false), (Some(2), true)]);
    // The first is delivered, and the next event of the lane still comes in order.
    let claims = fixture.due(&second, at(101)).await.claims;
    assert_eq!(claims.len(), 1);
    fixture.deliver(&claims[0], at(102)).await;
    assert_eq!(fixture.due_ids(&second, at(103)).await, ["e2"]);
    let overtaken = async |endpoint: &Endpoint| -> Vec<bool> {
        candidates(&fixture, endpoint).await.iter().map(|one| one.is_overtaken).collect()
    };
    assert_eq!(overtaken(&second).await, [true, true, false]);
    fixture.accept(event("e4").key("k").at(at(104)).to(&second)).await;
    assert!(overtaken(&second).await[2], "a later event has joined");
    assert_eq!(backfill(&fixture, &second, &["e3"]).await, (Vec::new(), vec![LeftOut::Overtaken]));
    let seqs: Vec<_> = fixture.deliveries_of("e4").await.iter().map(|one| one.seq).collect();
    assert_eq!(seqs, [Some(3)]);
}

async fn past_events_are_read_from_a_time_on_and_a_page_at_a_time(fixture: StoreFixture) {
    let first = fixture.endpoint(json!({"ordering": "none"})).await;
    for n in 0..5 {
        sent_to(&fixture, &first, &format!("e{n}"), "k", n * 1_000).await;
    }
    let read = async |after, since, look| {
        let page = fixture.store.backfill_candidates(first.id, BackfillQuery { after, since, look }).await.unwrap();
        let ids: Vec<String> = page.events.iter().map(|one| one.event.id.to_string()).collect();
        (ids, page.events.last().map(|one| one.position), page.is_end)
    };
    let (ids, last, is_end) = read(None, None, 2).await;
    assert_eq!((ids, is_end), (vec!["e0".to_owned(), "e1".to_owned()], false));
    let (ids, _, is_end) = read(last, None, 10).await;
    assert_eq!((ids, is_end), (vec!["e2".to_owned(), "e3".to_owned(), "e4".to_owned()], true));
    let (ids, _, _) = read(None, Some(at(2_900)), 10).await;
    assert_eq!(ids, ["e3", "e4"]);
}

async fn an_event_stays_as_long_as_a_backfilled_delivery_of_it(fixture: StoreFixture) {
    let first = fixture.endpoint(json!({"ordering": "none"})).await;
    sent_to(&fixture, &first, "e1", "k", 1).await;
    fixture.accept(event("nobody").at(at(1))).await;
    let second = fixture.endpoint(json!({"ordering": "none"})).await;
    let (made, _) = backfill(&fixture, &second, &["e1", "nobody"]).await;
    // The data of an event that nobody wanted goes early, but not if somebody got it since.
    fixture.forget_unmatched(at(50)).await;
    assert_eq!(fixture.due(&second, at(101)).await.claims.len(), 2);
    let forgotten = fixture.forget(at(50), at(50)).await;
    assert_eq!((forgotten.events, forgotten.deliveries), (0, 1), "the first endpoint's delivery alone");
    assert!(fixture.is_known("e1").await && fixture.is_known("nobody").await);
    for claim in fixture.due(&second, at(101)).await.claims {
        fixture.deliver(&claim, at(102)).await;
    }
    assert_eq!(fixture.deliveries_of("e1").await.iter().map(|one| one.id).collect::<Vec<_>>(), made[..1]);
    let forgotten = fixture.forget(at(200), at(200)).await;
    assert_eq!((forgotten.events, forgotten.deliveries), (2, 2));
    assert!(!fixture.is_known("e1").await && !fixture.is_known("nobody").await);
}

async fn what_was_backfilled_is_expunged_with_its_event(fixture: StoreFixture) {
    let first = fixture.endpoint(json!({"ordering": "none"})).await;
    sent_to(&fixture, &first, "e1", "k", 1).await;
    let second = fixture.endpoint(json!({"ordering": "none"})).await;
    let (made, _) = backfill(&fixture, &second, &["e1"]).await;
    let expunge = async || fixture.store.expunge(&Initiator::Gateway, &ours(), &"e1".parse().unwrap()).await.unwrap();
    assert!(!expunge().await, "a delivery of it waits");
    let claim = fixture.due(&second, at(101)).await.claims.remove(0);
    fixture.deliver(&claim, at(102)).await;
    assert!(expunge().await);
    assert_eq!(fixture.attempts(made[0]).await[0].response_body, "");
    let third = fixture.endpoint(json!({"ordering": "none"})).await;
    assert_eq!(backfill(&fixture, &third, &["e1"]).await, (Vec::new(), vec![LeftOut::Expunged]));
}

async fn a_backfilled_delivery_survives_that_the_store_is_closed(fixture: StoreFixture) {
    let first = fixture.endpoint(json!({})).await;
    sent_to(&fixture, &first, "e1", "k", 1).await;
    let second = fixture.endpoint(json!({})).await;
    let (made, _) = backfill(&fixture, &second, &["e1"]).await;
    let fixture = fixture.reopened().await;
    let later = fixture.claim(event("e2").at(at(105)).to(&first)).await;
    assert_ne!(later.id, made[0]);
    assert_eq!(fixture.due_ids(&second, at(106)).await, ["e1"]);
    assert_eq!(backfill(&fixture, &second, &["e1"]).await, (Vec::new(), vec![LeftOut::AlreadyGot]));
}

async fn a_thin_endpoint_gets_a_link_that_is_fixed_with_the_event(fixture: StoreFixture) {
    let first = fixture.endpoint(json!({"ordering": "none"})).await;
    fixture.accept(event("e1").at(at(1)).to(&first)).await;
    let thin = json!({"format": "thin", "ordering": "none"});
    let (second, third) = (fixture.endpoint(thin.clone()).await, fixture.endpoint(thin).await);
    let (one, other) = ("https://hooks.example.com", "https://elsewhere.example.com");
    assert_eq!(backfill_with_links(&fixture, &second, &["e1"], Some(one)).await.0.len(), 1);
    assert_eq!(backfill_with_links(&fixture, &third, &["e1"], Some(other)).await.0.len(), 1);
    let fixture = fixture.reopened().await;
    for (endpoint, format) in [(&first, BodyFormat::Envelope), (&second, BodyFormat::Thin), (&third, BodyFormat::Thin)]
    {
        let claim = fixture.due(endpoint, at(200)).await.claims.remove(0);
        assert_eq!((claim.format, claim.is_damaged), (format, false), "what was there before is not damaged by it");
        assert_eq!(claim.event.link_base.as_deref(), Some(one), "the first one stays");
    }
    assert!(candidates(&fixture, &first).await.iter().all(|one| !one.is_damaged));
}

async fn what_waits_says_whether_its_time_began_with_its_event(fixture: StoreFixture) {
    let first = fixture.endpoint(json!({})).await;
    sent_to(&fixture, &first, "past", "k", 1).await;
    let second = fixture.endpoint(json!({"ordering": "none"})).await;
    let replayed = fixture.claim(event("replayed").expiring(at(2_000)).to(&second)).await;
    fixture.die(&replayed, DeadCause::Expired, at(50)).await;
    fixture.change(replayed.id, DeliveryChange::Replay, at(60)).await.unwrap();
    let fresh = fixture.claim(event("fresh").expiring(at(1_000)).to(&second)).await;
    let (made, _) = backfill(&fixture, &second, &["past"]).await;
    let ask = UntriedQuery { before: at(500), after: None, limit: 10 };
    let untried = fixture.store.read_untried(&ours(), ask).await.unwrap().found;
    let mut untried: Vec<_> = untried.iter().map(|one| (one.id, one.is_replay_or_backfill)).collect();
    untried.sort();
    let mut expected = vec![(replayed.id, true), (fresh.id, false), (made[0], true)];
    expected.sort();
    assert_eq!(untried, expected);
    let overdue = fixture.store.read_overdue(at(5_000), 10).await.unwrap().found;
    let overdue: Vec<_> = overdue.iter().map(|one| (one.id, one.is_replay_or_backfill)).collect();
    assert_eq!(overdue, [(fresh.id, false), (replayed.id, true)]);
}
