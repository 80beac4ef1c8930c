//! How an endpoint is doing: kept with the attempt that showed it, and never
//! overwritten by older news.

use std::sync::Arc;

use jiff::Timestamp;
use posthaste::model::audit::Initiator;
use posthaste::model::endpoint::{Endpoint, EndpointSettings, EndpointState};
use posthaste::model::endpoint_event::{Actor, CloseCause, EndpointEvent, EndpointEventKind, OpenCause};
use posthaste::model::health::{BreakerPhase, EndpointHealth};
use posthaste::model::next_state::NextState;
use posthaste::store::{EndpointChange, EndpointChanged, EndpointUpdate, PageRequest, SettleEffects};
use serde_json::{Value, json};

use crate::fixture::{StoreFixture, at, event, ours};

for_every_store! {
    health_is_kept_over_closing,
    an_older_snapshot_never_overwrites_a_newer_one,
    what_a_person_does_to_the_breaker_begins_a_life_that_stale_health_cannot_undo,
    resuming_begins_a_new_life,
    another_url_and_a_breaker_switched_off_begin_a_new_life,
    a_failure_of_the_url_before_does_not_count_for_the_new_one,
    a_breaker_opened_by_a_person_stays_open_through_other_settings,
    the_time_of_an_open_breaker_is_held_where_it_pauses_age_and_never_twice,
    milestones_are_kept_newest_first_page_by_page,
    no_more_than_five_hundred_milestones_are_kept,
    milestones_go_with_their_endpoint,
}

fn failing(life: u32, serial: u64, failures: u32) -> EndpointHealth {
    EndpointHealth {
        generation: life,
        version: serial,
        failures,
        answers_without_success: failures,
        failing_since: Some(at(1)),
        ..EndpointHealth::default()
    }
}

fn open(life: u32, serial: u64, until: i64) -> EndpointHealth {
    let phase = BreakerPhase::Open { until: Some(at(until)) };
    EndpointHealth {
        phase,
        since: Some(at(5)),
        reason: Some("10 failures in a row".into()),
        ..failing(life, serial, 10)
    }
}

/// Settles a failed attempt with this health and these events of the endpoint.
pub async fn settle_with_health(
    fixture: &StoreFixture,
    endpoint: &Arc<Endpoint>,
    health: EndpointHealth,
    endpoint_events: Vec<EndpointEvent>,
) -> SettleEffects {
    settle_with_health_at(fixture, endpoint, health, endpoint_events, at(9)).await
}

async fn settle_with_health_at(
    fixture: &StoreFixture,
    endpoint: &Arc<Endpoint>,
    health: EndpointHealth,
    endpoint_events: Vec<EndpointEvent>,
    now: Timestamp,
) -> SettleEffects {
    let claim = fixture.claim(event(&format!("felt-{}", fixture.mint())).to(endpoint)).await;
    let update = EndpointUpdate { health: Some(Box::new(health)), endpoint_events, ..EndpointUpdate::default() };
    fixture.attempted_with_update(&claim, NextState::Waiting { due_at: at(1_000) }, update, now).await
}

/// Returns that a breaker opened until second 15.
pub fn opened() -> EndpointEvent {
    let cause = OpenCause::FailuresInARow { count: 10, answer: "answered 503".into() };
    EndpointEvent::BreakerOpened { until: Some(at(15)), cause }
}

/// Returns that a probe failed.
pub fn probe_failed() -> EndpointEvent {
    EndpointEvent::ProbeFailed { until: at(35), answer: "answered 503".into() }
}

/// Returns that a breaker closed because of a probe.
pub fn closed() -> EndpointEvent {
    EndpointEvent::BreakerClosed(CloseCause::Probe { answer: "answered 200".into() })
}

fn known(fixture: &StoreFixture, endpoint: &Endpoint) -> EndpointHealth {
    fixture.store.any_endpoint(endpoint.id).unwrap().health.clone()
}

async fn changed(fixture: &StoreFixture, endpoint: &Endpoint, change: EndpointChange, seconds: i64) -> EndpointChanged {
    fixture.store.change_endpoint(&Initiator::Gateway, &ours(), endpoint.id, change, at(seconds)).await.unwrap()
}

/// Other settings over those it has.
async fn resettled(fixture: &StoreFixture, endpoint: &Endpoint, changes: Value, seconds: i64) -> EndpointChanged {
    let current = fixture.store.any_endpoint(endpoint.id).unwrap();
    let mut settings = serde_json::to_value(&current.settings).unwrap();
    for (name, value) in changes.as_object().unwrap() {
        settings[name] = value.clone();
    }
    let settings: EndpointSettings = serde_json::from_value(settings).unwrap();
    let policy = settings.check().unwrap();
    let change = EndpointChange::Settings { settings: Box::new(settings), policy, if_updated_at: current.updated_at };
    changed(fixture, endpoint, change, seconds).await
}

fn breaker(is_open: bool, until: Option<i64>) -> EndpointChange {
    EndpointChange::Breaker { is_open, until: until.map(at), note: Some("maintenance".into()) }
}

fn state_change(state: EndpointState) -> EndpointChange {
    EndpointChange::State { state, note: None }
}

async fn health_is_kept_over_closing(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    settle_with_health(&fixture, &endpoint, failing(0, 1, 1), Vec::new()).await;
    assert_eq!(known(&fixture, &endpoint), failing(0, 1, 1));
    assert_eq!(fixture.store.notable_endpoints(None).len(), 1, "what fails is found without looking at all");
    let fixture = fixture.reopened().await;
    assert_eq!(known(&fixture, &endpoint), failing(0, 1, 1));
    settle_with_health(&fixture, &endpoint, open(0, 2, 15), vec![opened()]).await;
    let fixture = fixture.reopened().await;
    assert_eq!(known(&fixture, &endpoint), open(0, 2, 15), "with its time and its reason");
    assert_eq!(fixture.store.endpoints(&ours())[0].health, open(0, 2, 15), "however it is read");
}

async fn an_older_snapshot_never_overwrites_a_newer_one(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    settle_with_health(&fixture, &endpoint, failing(3, 7, 7), Vec::new()).await;
    for stale in [failing(3, 6, 1), failing(3, 7, 1), failing(2, 99, 1)] {
        settle_with_health(&fixture, &endpoint, stale.clone(), Vec::new()).await;
        assert_eq!(known(&fixture, &endpoint), failing(3, 7, 7), "{stale:?}");
        // What events with it in this life happened all the same; what turned
        // in an earlier one is over.
        let events = usize::from(stale.generation == 3);
        let settled = settle_with_health(&fixture, &endpoint, stale, vec![closed()]).await;
        assert_eq!(settled.update.endpoint_events.len(), events, "{settled:?}");
        assert_eq!(known(&fixture, &endpoint), failing(3, 7, 7));
    }
    assert_eq!(fixture.endpoint_events(&endpoint, 9).await.len(), 2);
    settle_with_health(&fixture, &endpoint, failing(3, 8, 8), Vec::new()).await;
    settle_with_health(&fixture, &endpoint, failing(4, 0, 0), Vec::new()).await;
    let fixture = fixture.reopened().await;
    assert_eq!(known(&fixture, &endpoint), failing(4, 0, 0));
}

/// What was felt in the life before changes nothing any more.
async fn stale_health_changes_nothing(fixture: StoreFixture, endpoint: &Arc<Endpoint>) -> StoreFixture {
    let new = known(&fixture, endpoint);
    assert!(new.generation > 0, "it is a new life: {new:?}");
    settle_with_health(&fixture, endpoint, failing(new.generation - 1, 1_000, 9), Vec::new()).await;
    let events = vec![opened(), EndpointEvent::Recovered];
    settle_with_health(&fixture, endpoint, open(new.generation - 1, 1_000, 99), events).await;
    assert_eq!(known(&fixture, endpoint), new);
    let fixture = fixture.reopened().await;
    assert_eq!(known(&fixture, endpoint), new, "nor after closing");
    fixture
}

async fn what_a_person_does_to_the_breaker_begins_a_life_that_stale_health_cannot_undo(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    settle_with_health(&fixture, &endpoint, failing(0, 4, 4), Vec::new()).await;
    for (until, life) in [(Some(600), 1), (None, 2)] {
        let opened = changed(&fixture, &endpoint, breaker(true, until), 20).await;
        let health = &opened.endpoint.health;
        assert_eq!(
            (health.generation, health.phase, health.since),
            (life, BreakerPhase::Open { until: until.map(at) }, Some(at(20)))
        );
        assert_eq!(health.reason.as_deref(), Some("maintenance"));
        let [opened_event] = &opened.endpoint_events[..] else { panic!("{opened:?}") };
        assert_eq!(
            (opened_event.kind(), opened_event.by(), opened_event.until()),
            (EndpointEventKind::BreakerOpened, Actor::Person, until.map(at))
        );
    }
    let fixture = stale_health_changes_nothing(fixture, &endpoint).await;
    let closed = changed(&fixture, &endpoint, breaker(false, None), 30).await;
    assert_eq!((closed.endpoint.health.generation, closed.endpoint.health.phase), (3, BreakerPhase::Ramp { width: 1 }));
    assert_eq!(closed.endpoint.health.failures, 0, "what was counted is forgotten");
    stale_health_changes_nothing(fixture, &endpoint).await;
}

async fn resuming_begins_a_new_life(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    settle_with_health(&fixture, &endpoint, failing(0, 4, 4), Vec::new()).await;
    let paused = changed(&fixture, &endpoint, state_change(EndpointState::Paused), 20).await;
    assert_eq!(paused.endpoint.health, failing(0, 4, 4), "a pause says nothing about its health");
    let resumed = changed(&fixture, &endpoint, state_change(EndpointState::Active), 30).await;
    assert_eq!(
        (resumed.endpoint.health.generation, resumed.endpoint.health.phase),
        (1, BreakerPhase::Ramp { width: 1 })
    );
    let fixture = stale_health_changes_nothing(fixture, &endpoint).await;
    // An active one that is left alone: its breaker closes with it.
    settle_with_health(&fixture, &endpoint, open(1, 1, 99), vec![opened()]).await;
    let resumed = changed(&fixture, &endpoint, state_change(EndpointState::Active), 40).await;
    assert_eq!(
        (resumed.endpoint.health.generation, resumed.endpoint_events[0].kind()),
        (2, EndpointEventKind::BreakerClosed)
    );
    stale_health_changes_nothing(fixture, &endpoint).await;
}

async fn another_url_and_a_breaker_switched_off_begin_a_new_life(fixture: StoreFixture) {
    for changes in [json!({"url": "https://elsewhere.example/"}), json!({"breaker": {"enabled": false}})] {
        let endpoint = fixture.endpoint(json!({})).await;
        settle_with_health(&fixture, &endpoint, open(0, 5, 99), vec![opened()]).await;
        let same = resettled(&fixture, &endpoint, json!({"max_in_flight": 3}), 20).await;
        assert_eq!(same.endpoint.health, open(0, 5, 99), "other settings leave it alone");
        let moved = resettled(&fixture, &endpoint, changes, 30).await;
        assert_eq!(
            (moved.endpoint.health.generation, moved.endpoint.health.phase),
            (1, BreakerPhase::Ramp { width: 1 })
        );
        assert_eq!(
            (moved.endpoint_events[0].kind(), moved.endpoint_events[0].by()),
            (EndpointEventKind::BreakerClosed, Actor::Person)
        );
        let new = known(&fixture, &endpoint);
        settle_with_health(&fixture, &endpoint, failing(0, 1_000, 9), Vec::new()).await;
        settle_with_health(&fixture, &endpoint, open(0, 1_001, 99), vec![opened()]).await;
        assert_eq!(known(&fixture, &endpoint), new, "what was heard before says nothing after it");
    }
}

async fn a_failure_of_the_url_before_does_not_count_for_the_new_one(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let moved = resettled(&fixture, &endpoint, json!({"url": "https://elsewhere.example/"}), 20).await;
    assert_eq!(moved.endpoint.health.phase, BreakerPhase::Closed, "a new receiver needs no ramp: {moved:?}");
    // Decided while the old URL was in force, and written now.
    settle_with_health(&fixture, &endpoint, failing(0, 1, 1), Vec::new()).await;
    assert_eq!(known(&fixture, &endpoint), moved.endpoint.health);
    let fixture = stale_health_changes_nothing(fixture, &endpoint).await;
    settle_with_health(&fixture, &endpoint, failing(1, 1, 1), Vec::new()).await;
    assert_eq!(known(&fixture, &endpoint).failures, 1, "its own failures count");
}

async fn a_breaker_opened_by_a_person_stays_open_through_other_settings(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    changed(&fixture, &endpoint, breaker(true, None), 10).await;
    for changes in [json!({"url": "https://elsewhere.example/"}), json!({"breaker": {"enabled": false}})] {
        let moved = resettled(&fixture, &endpoint, changes, 30).await;
        assert!(moved.endpoint.health.is_forced() && moved.endpoint_events.is_empty(), "{moved:?}");
    }
}

async fn milestones_are_kept_newest_first_page_by_page(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let other = fixture.endpoint(json!({})).await;
    changed(&fixture, &other, state_change(EndpointState::Paused), 1).await;
    settle_with_health_at(&fixture, &endpoint, open(0, 1, 15), vec![opened()], at(5)).await;
    settle_with_health_at(&fixture, &endpoint, open(0, 2, 35), vec![probe_failed()], at(15)).await;
    let well = EndpointHealth { generation: 0, version: 3, ..EndpointHealth::default() };
    settle_with_health_at(&fixture, &endpoint, well, vec![closed(), EndpointEvent::Recovered], at(35)).await;
    changed(&fixture, &endpoint, state_change(EndpointState::Paused), 40).await;
    changed(&fixture, &endpoint, state_change(EndpointState::Active), 50).await;
    let fixture = fixture.reopened().await;
    let expected = [
        (EndpointEventKind::Resumed, at(50), Actor::Person),
        (EndpointEventKind::Paused, at(40), Actor::Person),
        (EndpointEventKind::Recovered, at(35), Actor::Receiver),
        (EndpointEventKind::BreakerClosed, at(35), Actor::Gateway),
        (EndpointEventKind::ProbeFailed, at(15), Actor::Gateway),
        (EndpointEventKind::BreakerOpened, at(5), Actor::Gateway),
    ];
    for limit in [1, 2, 4, 6, 100] {
        let found = fixture.endpoint_events(&endpoint, limit).await;
        let found: Vec<_> =
            found.iter().map(|endpoint_event| (endpoint_event.what, endpoint_event.at, endpoint_event.by)).collect();
        assert_eq!(found, expected, "{limit} at a time");
    }
    assert_eq!(fixture.endpoint_events(&other, 9).await.len(), 1, "each endpoint has its own");
}

async fn no_more_than_five_hundred_milestones_are_kept(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let other = fixture.endpoint(json!({})).await;
    changed(&fixture, &other, state_change(EndpointState::Paused), 1).await;
    for n in 0..510 {
        changed(&fixture, &endpoint, state_change(EndpointState::Paused), n).await;
    }
    let found = fixture.endpoint_events(&endpoint, 500).await;
    assert_eq!((found.len(), found[0].at, found[499].at), (500, at(509), at(10)), "the oldest go first");
    assert_eq!(fixture.endpoint_events(&other, 9).await.len(), 1, "and only its own");
}

async fn milestones_go_with_their_endpoint(fixture: StoreFixture) {
    let acme = fixture.put_tenant("acme").await;
    let endpoint = fixture.endpoint(json!({})).await;
    let theirs = fixture.endpoint_of(&acme, json!({})).await;
    changed(&fixture, &endpoint, state_change(EndpointState::Paused), 1).await;
    fixture
        .store
        .change_endpoint(&Initiator::Gateway, &acme, theirs.id, state_change(EndpointState::Paused), at(1))
        .await
        .unwrap();
    fixture.store.delete_endpoint(&Initiator::Gateway, &ours(), endpoint.id, at(2)).await.unwrap();
    fixture.store.delete_tenant(&Initiator::Gateway, &acme, at(2)).await.unwrap();
    for gone in [&endpoint, &theirs] {
        let page = fixture.store.endpoint_events(gone.id, PageRequest { cursor: None, limit: 9 }).await.unwrap();
        assert!(page.data.is_empty() && page.next.is_none());
    }
}

async fn the_time_of_an_open_breaker_is_held_where_it_pauses_age_and_never_twice(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({"breaker": {"pauses_age": true}})).await;
    let held = |fixture: &StoreFixture, seconds: i64| {
        fixture.store.any_endpoint(endpoint.id).unwrap().held(at(seconds)).as_secs()
    };
    changed(&fixture, &endpoint, breaker(true, None), 100).await;
    assert_eq!(held(&fixture, 150), 50, "while it is open");
    changed(&fixture, &endpoint, state_change(EndpointState::Paused), 200).await;
    assert_eq!(held(&fixture, 260), 160, "a pause on top of it counts once");
    let fixture = fixture.reopened().await;
    changed(&fixture, &endpoint, state_change(EndpointState::Active), 300).await;
    assert_eq!(held(&fixture, 1_000), 200, "nothing after both have ended");
    let opened_again = EndpointHealth {
        since: Some(at(1_000)),
        unaged_ms: 100_000,
        ..open(known(&fixture, &endpoint).generation, 9, 1_010)
    };
    settle_with_health(&fixture, &endpoint, opened_again, vec![opened()]).await;
    assert_eq!(held(&fixture, 1_050), 250);
    // No change of a setting ends waiting deliveries.
    resettled(&fixture, &endpoint, json!({"breaker": {"pauses_age": false}}), 1_060).await;
    assert_eq!(held(&fixture, 1_100), 260, "switched off, what was held stays held");
    let fixture = fixture.reopened().await;
    assert_eq!(held(&fixture, 2_000), 260);
}
