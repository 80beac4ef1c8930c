//! Operational events: in the same commit as what they tell of, once, and
//! never about those who are told.

use std::sync::Arc;

use posthaste::model::audit::Initiator;
use posthaste::model::delivery::{BodyFormat, DeadCause, DeadlineSource, DeliveryState};
use posthaste::model::endpoint::{Endpoint, EndpointSettings, EndpointState};
use posthaste::model::endpoint_event::{DisableCause, EndpointEvent};
use posthaste::model::health::{BreakerPhase, EndpointHealth};
use posthaste::model::id::TenantId;
use posthaste::model::next_state::NextState;
use posthaste::model::shard::{Epoch, Lease};
use posthaste::store::{
    Claim, ClaimOutcome, DeliveryChange, EndpointChange, EndpointUpdate, Error, EventQuery, EventRecord, PageRequest,
};
use serde_json::{Value, json};

use crate::fixture::{StoreFixture, at, attempted, event, names, ours, settlement};
use crate::health::{closed, opened, probe_failed, settle_with_health};

for_every_store! {
    a_pause_is_told_in_the_commit_that_makes_it_true,
    only_those_who_subscribed_get_what_is_told,
    a_resume_and_a_probe_that_failed_are_not_told,
    a_receiver_that_is_gone_is_told_with_its_dead_letter,
    what_its_breaker_does_is_told,
    a_dead_letter_is_told_with_its_cause,
    a_delivery_that_ends_unattempted_is_told_too,
    a_lane_is_told_blocked_when_its_head_dies_and_unblocked_by_a_replay,
    discarding_a_dead_head_tells_that_the_lane_moves_on,
    a_dead_head_that_arrived_after_all_tells_that_the_lane_moves_on,
    a_lane_that_skips_from_now_on_is_told_unblocked,
    nothing_is_told_of_the_lanes_of_a_deleted_endpoint,
    a_dead_letter_that_nothing_stands_behind_tells_of_no_lane,
    a_void_or_stale_settlement_tells_nothing,
    nothing_is_told_about_those_who_are_told,
    without_the_tenant_that_is_told_nothing_is,
    a_tenant_that_listens_is_told_about_itself_alone,
    an_endpoint_that_listens_to_operations_gets_no_other_event_and_tells_no_listener,
}

fn system() -> TenantId {
    TenantId::system()
}

/// Creates an endpoint that wants operational events of these types.
async fn listener(fixture: &StoreFixture, types: &[&str]) -> Arc<Endpoint> {
    fixture.put_tenant("_system").await;
    fixture.endpoint_of(&system(), json!({"event_types": types})).await
}

/// Returns all operational events so far, oldest first.
async fn operational_events(fixture: &StoreFixture) -> Vec<EventRecord> {
    let ask = PageRequest { cursor: None, limit: 500 };
    let mut found = fixture.store.events(&system(), EventQuery::default(), ask).await.unwrap().data;
    found.reverse();
    found
}

async fn operational_event_types(fixture: &StoreFixture) -> Vec<String> {
    operational_events(fixture).await.iter().map(|record| record.event.event_type.to_string()).collect()
}

fn data(claim: &Claim) -> Value {
    serde_json::from_slice(&claim.event.data).unwrap()
}

fn types(claims: &[Claim]) -> Vec<&str> {
    claims.iter().map(|claim| claim.event.event_type.as_str()).collect()
}

fn state_change(state: EndpointState) -> EndpointChange {
    EndpointChange::State { state, note: Some("moving house".into()) }
}

async fn a_pause_is_told_in_the_commit_that_makes_it_true(fixture: StoreFixture) {
    let listener = listener(&fixture, &["*"]).await;
    let endpoint =
        fixture.endpoint(json!({"url": "https://me:pw@a.example/hook?token=1", "description": "theirs"})).await;
    let change = state_change(EndpointState::Paused);
    let changed =
        fixture.store.change_endpoint(&Initiator::Gateway, &ours(), endpoint.id, change, at(7)).await.unwrap();
    assert_eq!(names(&changed.operational_events), ["endpoint.paused"]);
    let [claim] = &changed.freed[..] else { panic!("{:?}", changed.freed) };
    assert_eq!((claim.endpoint, claim.event.tenant.as_str()), (listener.id, "_system"));
    assert_eq!((claim.event.accepted_at, claim.due_at), (at(7), at(7)));
    let data_sent = data(claim);
    assert_eq!((&data_sent["tenant"], &data_sent["endpoint"]), (&json!("default"), &json!(endpoint.id)));
    assert_eq!(
        (&data_sent["reason"], &data_sent["by"], &data_sent["at"]),
        (&json!("moving house"), &json!("person"), &json!(at(7)))
    );
    assert_eq!(data_sent["url"], "https://a.example/hook", "without what may be secret in it");
    // It is an event like any other, and as durable as what it tells of.
    let fixture = fixture.reopened().await;
    assert_eq!(fixture.store.any_endpoint(endpoint.id).unwrap().status.state, EndpointState::Paused);
    assert_eq!(operational_event_types(&fixture).await, ["endpoint.paused"]);
    let due = fixture.due(&listener, at(7)).await.claims;
    assert_eq!((due.len(), &due[0].event.id), (1, &claim.event.id));
}

async fn only_those_who_subscribed_get_what_is_told(fixture: StoreFixture) {
    let deaths = listener(&fixture, &["delivery.dead"]).await;
    let lanes = listener(&fixture, &["lane.*"]).await;
    let ours_alone = fixture.endpoint(json!({})).await;
    let head = fixture.claim(event("a").key("k").to(&ours_alone)).await;
    fixture.accept(event("b").key("k").to(&ours_alone)).await;
    let settled = fixture.die(&head, DeadCause::Refused, at(1)).await;
    let mut got: Vec<_> = settled.freed.iter().map(|claim| (claim.endpoint, claim.event.event_type.as_str())).collect();
    got.sort();
    let mut expected = vec![(deaths.id, "delivery.dead"), (lanes.id, "lane.blocked")];
    expected.sort();
    assert_eq!(got, expected, "and no tenant of its own is told");
    // What nobody wants is kept all the same.
    fixture
        .store
        .change_endpoint(&Initiator::Gateway, &ours(), ours_alone.id, state_change(EndpointState::Paused), at(2))
        .await
        .unwrap();
    let last = operational_events(&fixture).await.pop().unwrap();
    assert_eq!((last.event.event_type.as_str(), last.deliveries), ("endpoint.paused", 0));
}

async fn a_resume_and_a_probe_that_failed_are_not_told(fixture: StoreFixture) {
    listener(&fixture, &["*"]).await;
    let endpoint = fixture.endpoint(json!({})).await;
    fixture
        .store
        .change_endpoint(&Initiator::Gateway, &ours(), endpoint.id, state_change(EndpointState::Paused), at(1))
        .await
        .unwrap();
    let resumed = fixture
        .store
        .change_endpoint(&Initiator::Gateway, &ours(), endpoint.id, state_change(EndpointState::Active), at(2))
        .await
        .unwrap();
    assert!(resumed.operational_events.is_empty() && resumed.freed.is_empty());
    let health = EndpointHealth { generation: 1, version: 1, ..EndpointHealth::default() };
    let settled = settle_with_health(&fixture, &endpoint, health, vec![probe_failed()]).await;
    assert!(settled.operational_events.is_empty() && settled.freed.is_empty());
    assert_eq!(operational_event_types(&fixture).await, ["endpoint.paused"]);
}

async fn a_receiver_that_is_gone_is_told_with_its_dead_letter(fixture: StoreFixture) {
    listener(&fixture, &["*"]).await;
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    let second = fixture.claim(event("b").to(&endpoint)).await;
    let settled = fixture.die(&claim, DeadCause::Gone, at(3)).await;
    assert_eq!(names(&settled.operational_events), ["delivery.dead", "endpoint.disabled"]);
    assert_eq!(types(&settled.freed), names(&settled.operational_events));
    assert_eq!(data(&settled.freed[0])["cause"], "gone");
    assert_eq!(data(&settled.freed[1])["by"], "receiver");
    assert_eq!(
        names(&fixture.die(&second, DeadCause::Gone, at(4)).await.operational_events),
        ["delivery.dead"],
        "it is disabled once"
    );
}

async fn what_its_breaker_does_is_told(fixture: StoreFixture) {
    listener(&fixture, &["*"]).await;
    let endpoint = fixture.endpoint(json!({})).await;
    let phase = BreakerPhase::Open { until: Some(at(15)) };
    let health = EndpointHealth { version: 1, phase, ..EndpointHealth::default() };
    let settled = settle_with_health(&fixture, &endpoint, health, vec![opened()]).await;
    assert_eq!(
        (names(&settled.operational_events), types(&settled.freed)),
        (vec!["breaker.opened"], vec!["breaker.opened"])
    );
    let data_sent = data(&settled.freed[0]);
    assert_eq!((&data_sent["by"], &data_sent["next_probe_at"]), (&json!("gateway"), &json!(at(15))));
    assert_eq!(data_sent["reason"], "10 failures in a row; the last answered 503");
    let turned = vec![closed(), EndpointEvent::Recovered];
    let settled =
        settle_with_health(&fixture, &endpoint, EndpointHealth { version: 2, ..EndpointHealth::default() }, turned)
            .await;
    assert_eq!(names(&settled.operational_events), ["breaker.closed", "endpoint.recovered"]);
    assert_eq!(types(&settled.freed), names(&settled.operational_events));
    // By a person's word likewise.
    for (is_open, expected) in [(true, "breaker.opened"), (false, "breaker.closed")] {
        let change = EndpointChange::Breaker { is_open, until: None, note: None };
        let changed =
            fixture.store.change_endpoint(&Initiator::Gateway, &ours(), endpoint.id, change, at(20)).await.unwrap();
        assert_eq!((names(&changed.operational_events), types(&changed.freed)), (vec![expected], vec![expected]));
        assert_eq!(data(&changed.freed[0])["by"], "person");
    }
}

async fn a_dead_letter_is_told_with_its_cause(fixture: StoreFixture) {
    listener(&fixture, &["*"]).await;
    let endpoint = fixture.endpoint(json!({})).await;
    for (cause, name) in
        [(DeadCause::Exhausted, "exhausted"), (DeadCause::Refused, "refused"), (DeadCause::Expired, "expired")]
    {
        let claim = fixture.claim(event(name).kind("invoice.paid").to(&endpoint)).await;
        let settled = fixture.die(&claim, cause, at(3)).await;
        assert_eq!((settled.died, names(&settled.operational_events)), (Some(cause), vec!["delivery.dead"]));
        let data_sent = data(&settled.freed[0]);
        assert_eq!(
            (&data_sent["cause"], &data_sent["event"], &data_sent["event_type"]),
            (&json!(name), &json!(name), &json!("invoice.paid"))
        );
        assert_eq!((&data_sent["delivery"], &data_sent["attempts"]), (&json!(claim.id), &json!(1)));
    }
    let claim = fixture.claim(event("fine").to(&endpoint)).await;
    let settled = fixture.deliver(&claim, at(4)).await;
    assert!(settled.operational_events.is_empty() && settled.died.is_none() && settled.freed.is_empty());
}

async fn a_delivery_that_ends_unattempted_is_told_too(fixture: StoreFixture) {
    listener(&fixture, &["*"]).await;
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("late").to(&endpoint)).await;
    let over = ClaimOutcome::Expired { by: DeadlineSource::Hold, progress: claim.progress };
    let settled = fixture.store.settle(fixture.lease(endpoint.id), settlement(&claim, over, at(9))).await.unwrap();
    assert_eq!((settled.died, names(&settled.operational_events)), (Some(DeadCause::Expired), vec!["delivery.dead"]));
    assert_eq!(data(&settled.freed[0])["attempts"], 0);
}

/// A lane of three, its head dead; and what that told.
async fn blocked(fixture: &StoreFixture, changes: Value) -> (Arc<Endpoint>, Claim, Vec<&'static str>) {
    let endpoint = fixture.endpoint(changes).await;
    let head = fixture.claim(event("a").key("k").to(&endpoint)).await;
    for id in ["b", "c"] {
        fixture.accept(event(id).key("k").to(&endpoint)).await;
    }
    let told = names(&fixture.die(&head, DeadCause::Refused, at(1)).await.operational_events);
    (endpoint, head, told)
}

async fn a_lane_is_told_blocked_when_its_head_dies_and_unblocked_by_a_replay(fixture: StoreFixture) {
    listener(&fixture, &["lane.*"]).await;
    let (endpoint, head, operational_events) = blocked(&fixture, json!({})).await;
    assert_eq!(operational_events, ["lane.blocked", "delivery.dead"]);
    let replayed = fixture.change(head.id, DeliveryChange::Replay, at(5)).await.unwrap();
    assert_eq!(
        (names(&replayed.operational_events), types(&replayed.freed)),
        (vec!["lane.unblocked"], vec!["lane.unblocked"])
    );
    let data_sent = data(&replayed.freed[0]);
    assert_eq!(
        (&data_sent["key"], &data_sent["delivery"], &data_sent["endpoint"]),
        (&json!("k"), &json!(head.id), &json!(endpoint.id))
    );
    // Dying again blocks it again.
    let again = fixture.due(&endpoint, at(9)).await.claims.remove(0);
    assert_eq!(
        names(&fixture.die(&again, DeadCause::Refused, at(9)).await.operational_events),
        ["lane.blocked", "delivery.dead"]
    );
}

async fn discarding_a_dead_head_tells_that_the_lane_moves_on(fixture: StoreFixture) {
    listener(&fixture, &["lane.*"]).await;
    let (endpoint, head, _) = blocked(&fixture, json!({})).await;
    assert_eq!(
        names(&fixture.change(head.id, DeliveryChange::Discard, at(5)).await.unwrap().operational_events),
        ["lane.unblocked"]
    );
    // The next one in the lane is no news.
    let next = fixture.due(&endpoint, at(9)).await.claims.remove(0);
    let settled = fixture.deliver(&next, at(9)).await;
    assert!(settled.operational_events.is_empty() && types(&settled.freed) == ["thing.happened"], "{settled:?}");
}

async fn a_dead_head_that_arrived_after_all_tells_that_the_lane_moves_on(fixture: StoreFixture) {
    listener(&fixture, &["lane.*"]).await;
    let endpoint = fixture.endpoint(json!({})).await;
    let head = fixture.claim(event("a").key("k").to(&endpoint)).await;
    fixture.accept(event("b").key("k").to(&endpoint)).await;
    // Its time is over while a request is open, which then succeeds.
    let over = ClaimOutcome::Expired { by: DeadlineSource::Age, progress: head.progress };
    let expired = fixture.store.settle(fixture.lease(endpoint.id), settlement(&head, over, at(3))).await.unwrap();
    assert_eq!(names(&expired.operational_events), ["lane.blocked", "delivery.dead"]);
    let arrived = fixture.deliver(&head, at(5)).await;
    assert_eq!(fixture.state(head.id).await, DeliveryState::Delivered);
    assert_eq!(names(&arrived.operational_events), ["lane.unblocked"]);
    assert_eq!(types(&arrived.freed), ["lane.unblocked", "thing.happened"]);
    assert_eq!(data(&arrived.freed[0])["delivery"], json!(head.id));
}

async fn a_lane_that_skips_from_now_on_is_told_unblocked(fixture: StoreFixture) {
    listener(&fixture, &["lane.*"]).await;
    let (endpoint, head, _) = blocked(&fixture, json!({})).await;
    let current = fixture.store.any_endpoint(endpoint.id).unwrap();
    let mut settings = serde_json::to_value(&current.settings).unwrap();
    settings["on_dead"] = json!("skip");
    let settings: EndpointSettings = serde_json::from_value(settings).unwrap();
    let policy = settings.check().unwrap();
    let change = EndpointChange::Settings { settings: Box::new(settings), policy, if_updated_at: current.updated_at };
    let changed =
        fixture.store.change_endpoint(&Initiator::Gateway, &ours(), endpoint.id, change, at(5)).await.unwrap();
    assert_eq!(names(&changed.operational_events), ["lane.unblocked"]);
    assert_eq!(data(&changed.freed[0])["delivery"], json!(head.id));
    // From now on a dead head holds nobody up, and that is no news.
    let next = fixture.due(&endpoint, at(9)).await.claims.remove(0);
    assert_eq!(names(&fixture.die(&next, DeadCause::Refused, at(9)).await.operational_events), ["delivery.dead"]);
}

async fn nothing_is_told_of_the_lanes_of_a_deleted_endpoint(fixture: StoreFixture) {
    listener(&fixture, &["lane.*"]).await;
    let (endpoint, head, _) = blocked(&fixture, json!({})).await;
    fixture.store.delete_endpoint(&Initiator::Gateway, &ours(), endpoint.id, at(5)).await.unwrap();
    let discarded = fixture.change(head.id, DeliveryChange::Discard, at(6)).await.unwrap();
    assert!(discarded.operational_events.is_empty() && discarded.freed.is_empty(), "{discarded:?}");
    assert_eq!(fixture.state(head.id).await, DeliveryState::Cancelled);
}

async fn a_dead_letter_that_nothing_stands_behind_tells_of_no_lane(fixture: StoreFixture) {
    listener(&fixture, &["lane.*"]).await;
    let endpoint = fixture.endpoint(json!({})).await;
    let free = fixture.claim(event("free").to(&endpoint)).await;
    assert_eq!(names(&fixture.die(&free, DeadCause::Refused, at(1)).await.operational_events), ["delivery.dead"]);
    assert!(fixture.change(free.id, DeliveryChange::Replay, at(2)).await.unwrap().operational_events.is_empty());
    let waiting = fixture.claim(event("waiting").key("k").to(&endpoint)).await;
    assert!(fixture.change(waiting.id, DeliveryChange::Cancel, at(3)).await.unwrap().operational_events.is_empty());
}

async fn a_void_or_stale_settlement_tells_nothing(fixture: StoreFixture) {
    listener(&fixture, &["*"]).await;
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").key("k").to(&endpoint)).await;
    let Lease { shard, epoch } = fixture.lease(endpoint.id);
    let stale = Lease { shard, epoch: Epoch(epoch.0 + 1) };
    let died = attempted(&claim, NextState::Dead(DeadCause::Gone), at(1));
    let refused = fixture.store.settle(stale, settlement(&claim, died, at(1))).await;
    assert!(matches!(refused, Err(Error::Stale(_))), "{refused:?}");
    fixture.attempted(&claim, NextState::Waiting { due_at: at(60) }, at(1)).await;
    // Decided on what was true before that attempt.
    let over = ClaimOutcome::Expired { by: DeadlineSource::Hold, progress: claim.progress };
    let void = fixture.store.settle(fixture.lease(endpoint.id), settlement(&claim, over, at(2))).await.unwrap();
    assert!(void.is_void && void.operational_events.is_empty() && void.freed.is_empty() && void.died.is_none());
    // Cancelled meanwhile: it does not die any more.
    fixture.change(claim.id, DeliveryChange::Cancel, at(3)).await.unwrap();
    let settled = fixture.die(&claim, DeadCause::Exhausted, at(4)).await;
    assert!(settled.operational_events.is_empty() && settled.died.is_none(), "{settled:?}");
    assert_eq!(fixture.state(claim.id).await, DeliveryState::Cancelled);
    assert!(operational_event_types(&fixture).await.is_empty());
}

async fn nothing_is_told_about_those_who_are_told(fixture: StoreFixture) {
    let listener = listener(&fixture, &["*"]).await;
    let draft = || event(&format!("e-{}", fixture.mint())).of(&system()).key("k").to(&listener);
    let claim = fixture.claim(draft()).await;
    let notice = EndpointUpdate {
        health: Some(Box::new(EndpointHealth { version: 1, ..EndpointHealth::default() })),
        endpoint_events: vec![opened(), EndpointEvent::Recovered, EndpointEvent::Disabled(DisableCause::Gone)],
        ..EndpointUpdate::default()
    };
    let settled = fixture.attempted_with_update(&claim, NextState::Dead(DeadCause::Gone), notice, at(5)).await;
    assert_eq!(settled.died, Some(DeadCause::Gone));
    assert!(settled.operational_events.is_empty() && settled.freed.is_empty(), "{settled:?}");
    let replayed =
        fixture.store.change(&Initiator::Gateway, &system(), claim.id, DeliveryChange::Replay, at(6)).await.unwrap();
    assert!(replayed.operational_events.is_empty() && replayed.freed.is_empty());
    let change = state_change(EndpointState::Paused);
    let changed =
        fixture.store.change_endpoint(&Initiator::Gateway, &system(), listener.id, change, at(7)).await.unwrap();
    assert!(changed.operational_events.is_empty() && changed.freed.is_empty());
    assert_eq!(operational_events(&fixture).await.len(), 1, "only what was handed in here");
    assert_eq!(fixture.endpoint_events(&listener, 9).await.len(), 4, "but it is kept what happened to it");
}

async fn without_the_tenant_that_is_told_nothing_is(fixture: StoreFixture) {
    let (_, head, operational_events) = blocked(&fixture, json!({})).await;
    assert!(operational_events.is_empty());
    assert!(fixture.change(head.id, DeliveryChange::Discard, at(5)).await.unwrap().operational_events.is_empty());
}

async fn a_tenant_that_listens_is_told_about_itself_alone(fixture: StoreFixture) {
    let told = listener(&fixture, &["*"]).await;
    let other = fixture.put_tenant("other").await;
    let wants = json!({"listens_to": "operations", "format": "slack", "event_types": ["delivery.*"]});
    let own = fixture.endpoint(wants.clone()).await;
    let others = fixture.endpoint_of(&other, wants).await;
    let ordinary = fixture.endpoint(json!({"event_types": ["*"]})).await;
    let claim = fixture.claim(event("a").to(&ordinary)).await;
    let settled = fixture.die(&claim, DeadCause::Refused, at(1)).await;
    let mut got: Vec<_> = settled.freed.iter().map(|claim| (claim.endpoint, claim.event.tenant.clone())).collect();
    got.sort();
    let mut expected = vec![(told.id, system()), (own.id, ours())];
    expected.sort();
    assert_eq!(got, expected, "never {} or {}", others.id, ordinary.id);
    let of_own = settled.freed.iter().find(|claim| claim.endpoint == own.id).unwrap();
    assert_eq!((of_own.event.event_type.as_str(), of_own.format), ("delivery.dead", BodyFormat::Slack));
    assert_eq!(settled.operational_events.len(), 1, "it is one operational event");
    let due = fixture.due(&own, at(2)).await.claims;
    assert_eq!((due.len(), due[0].format, &due[0].event.data), (1, BodyFormat::Slack, &of_own.event.data));
}

async fn an_endpoint_that_listens_to_operations_gets_no_other_event_and_tells_no_listener(fixture: StoreFixture) {
    let told = listener(&fixture, &["*"]).await;
    let one = fixture.endpoint(json!({"listens_to": "operations"})).await;
    let two = fixture.endpoint(json!({"listens_to": "operations"})).await;
    let matched = fixture.store.matching(event("a").event()).unwrap();
    assert!(matched.is_empty(), "{matched:?}");
    let ordinary = fixture.endpoint(json!({})).await;
    let matched = fixture.store.matching(event("a").event()).unwrap();
    assert_eq!(matched.iter().map(|endpoint| endpoint.id).collect::<Vec<_>>(), [ordinary.id]);
    let claim = fixture.claim(event("b").to(&ordinary)).await;
    let freed = fixture.die(&claim, DeadCause::Refused, at(1)).await.freed;
    let of_one = freed.iter().find(|claim| claim.endpoint == one.id).unwrap();
    assert!(freed.iter().any(|claim| claim.endpoint == two.id));
    let died = fixture.die(of_one, DeadCause::Refused, at(2)).await;
    assert_eq!(died.freed.iter().map(|claim| claim.endpoint).collect::<Vec<_>>(), [told.id]);
}
