//! Tenants and endpoints: a change is durable and seen by all when it returns.

use std::time::Duration;

use posthaste::model::audit::Initiator;
use posthaste::model::delivery::DeliveryState;
use posthaste::model::endpoint::{Endpoint, EndpointDefaults, EndpointState};
use posthaste::model::event::Event;
use posthaste::model::id::{EventId, TenantId};
use posthaste::model::rate::Rate;
use posthaste::model::self_test::{SELF_TEST_TYPE, SELF_TEST_URL};
use posthaste::model::tenant::{Tenant, TenantQuota};
use posthaste::store::{DeliveryChange, EndpointChange, Error, MissingResource};
use serde_json::{Value, json};

use crate::fixture::{StoreFixture, at, event, ours, tenant};

for_every_store! {
    a_tenant_is_there_when_its_creation_returns_and_after_closing,
    putting_a_tenant_again_keeps_when_it_was_created,
    a_deleted_tenant_takes_its_endpoints_along_and_its_id_can_be_used_anew,
    endpoints_are_listed_newest_first,
    endpoints_that_may_need_attention_are_known_without_looking_at_all,
    an_endpoint_of_an_unknown_tenant_is_refused,
    who_wants_an_event_follows_types_filter_and_names,
    changed_settings_are_seen_at_once_and_survive_closing,
    a_change_based_on_an_old_reading_is_refused,
    of_two_changes_at_once_one_is_refused,
    a_pause_and_its_length_are_kept,
    a_rotated_secret_joins_the_old_one_until_the_overlap_ends,
    what_waits_for_a_deleted_endpoint_is_cancelled_at_once,
    what_was_finished_at_a_deleted_endpoint_stays_as_it_was,
    another_tenants_endpoint_is_not_there,
    a_note_is_kept,
    of_several_first_notes_one_stands,
    the_endpoint_of_a_self_test_is_in_no_list_and_takes_only_what_is_addressed_to_it,
    an_endpoint_follows_the_defaults_that_it_inherits_also_when_they_change,
}

async fn a_tenant_is_there_when_its_creation_returns_and_after_closing(fixture: StoreFixture) {
    assert!(fixture.store.tenant(&tenant("acme")).is_none());
    let defaults = EndpointDefaults { max_in_flight: Some(3), ..EndpointDefaults::default() };
    let ingest = Rate { per_second: 2.5, burst: 7 };
    let quota = TenantQuota { weight: 3, rate: Some(Rate { per_second: 1.0, burst: 1 }), ingest };
    let acme = Tenant {
        id: tenant("acme"),
        name: "Acme".into(),
        quota,
        limits: Default::default(),
        defaults,
        retention: Default::default(),
        created_at: at(7),
    };
    fixture.store.put_tenant(&Initiator::Gateway, acme.clone()).await.unwrap();
    assert_eq!(*fixture.store.tenant(&acme.id).unwrap(), acme);
    let fixture = fixture.reopened().await;
    assert_eq!(*fixture.store.tenant(&acme.id).unwrap(), acme);
    let ids: Vec<_> = fixture.store.tenants().iter().map(|tenant| tenant.id.to_string()).collect();
    assert_eq!(ids, ["acme", "default"]);
}

async fn putting_a_tenant_again_keeps_when_it_was_created(fixture: StoreFixture) {
    let renamed = Tenant {
        id: ours(),
        name: "another name".into(),
        quota: TenantQuota::default(),
        limits: Default::default(),
        defaults: EndpointDefaults::default(),
        retention: Default::default(),
        created_at: at(99),
    };
    let known = fixture.store.put_tenant(&Initiator::Gateway, renamed).await.unwrap();
    assert_eq!((known.name.as_str(), known.created_at), ("another name", at(0)));
    assert_eq!(fixture.store.tenant(&ours()).unwrap().name, "another name");
}

async fn a_deleted_tenant_takes_its_endpoints_along_and_its_id_can_be_used_anew(fixture: StoreFixture) {
    let acme = fixture.put_tenant("acme").await;
    let endpoint = fixture.endpoint_of(&acme, json!({})).await;
    let claim = fixture.claim(event("a").of(&acme).to(&endpoint)).await;
    fixture.store.delete_tenant(&Initiator::Gateway, &acme, at(5)).await.unwrap();
    assert!(fixture.store.tenant(&acme).is_none() && fixture.store.any_endpoint(endpoint.id).is_none());
    assert!(fixture.store.delivery(&acme, claim.id).await.unwrap().is_none());
    assert!(fixture.store.event(&acme, &"a".parse().unwrap()).await.unwrap().is_none());
    assert!(matches!(
        fixture.store.delete_tenant(&Initiator::Gateway, &acme, at(6)).await,
        Err(Error::NotFound(MissingResource::Tenant))
    ));

    fixture.put_tenant("acme").await;
    assert!(fixture.store.endpoints(&acme).is_empty());
    assert!(fixture.store.event(&acme, &"a".parse().unwrap()).await.unwrap().is_none(), "nothing of the old one shows");
    fixture.accept(event("a").of(&acme).saying("2")).await;
    let fixture = fixture.reopened().await;
    assert!(fixture.store.tenant(&acme).is_some() && fixture.store.endpoints(&acme).is_empty());
    assert!(fixture.store.earliest_due().await.unwrap().is_empty(), "nothing of the old one is sent");
}

async fn endpoints_are_listed_newest_first(fixture: StoreFixture) {
    let ids = [fixture.endpoint(json!({})).await.id, fixture.endpoint(json!({})).await.id];
    let listed: Vec<_> = fixture.store.endpoints(&ours()).iter().map(|endpoint| endpoint.id).collect();
    assert_eq!(listed, [ids[1], ids[0]]);
}

async fn endpoints_that_may_need_attention_are_known_without_looking_at_all(fixture: StoreFixture) {
    let acme = fixture.put_tenant("acme").await;
    let one = fixture.endpoint(json!({})).await.id;
    let two = fixture.endpoint_of(&acme, json!({})).await.id;
    let three = fixture.endpoint(json!({})).await.id;
    let ids = |fixture: &StoreFixture, tenant: Option<&TenantId>| fixture.store.endpoint_ids(tenant);
    assert_eq!(ids(&fixture, None), [three, two, one], "newest first, over all tenants");
    assert_eq!((ids(&fixture, Some(&ours())), ids(&fixture, Some(&acme))), (vec![three, one], vec![two]));
    let notable = |fixture: &StoreFixture, tenant: Option<&TenantId>| -> Vec<_> {
        fixture.store.notable_endpoints(tenant).iter().map(|endpoint| endpoint.id).collect()
    };
    assert!(notable(&fixture, None).is_empty());
    let change = async |fixture: &StoreFixture, tenant: &TenantId, id, change, seconds| {
        fixture.store.change_endpoint(&Initiator::Gateway, tenant, id, change, at(seconds)).await.unwrap();
    };
    let state = |state| EndpointChange::State { state, note: None };
    change(&fixture, &ours(), one, state(EndpointState::Paused), 10).await;
    let open = EndpointChange::Breaker { is_open: true, until: Some(at(500)), note: None };
    change(&fixture, &acme, two, open, 11).await;
    let rotate =
        EndpointChange::Rotate { secret: fixture.secret("whsec_BBBB", at(12)), overlap: Duration::from_secs(9) };
    change(&fixture, &ours(), three, rotate, 12).await;
    assert_eq!(notable(&fixture, None), [three, two, one]);
    assert_eq!((notable(&fixture, Some(&ours())), notable(&fixture, Some(&acme))), (vec![three, one], vec![two]));
    let fixture = fixture.reopened().await;
    assert_eq!(notable(&fixture, None), [three, two, one], "also after a start");
    // One that was resumed ramps, and is notable for that.
    change(&fixture, &ours(), one, state(EndpointState::Active), 20).await;
    assert_eq!(notable(&fixture, Some(&ours())), [three, one]);
    fixture.store.delete_endpoint(&Initiator::Gateway, &ours(), one, at(21)).await.unwrap();
    fixture.store.delete_tenant(&Initiator::Gateway, &acme, at(22)).await.unwrap();
    assert_eq!((notable(&fixture, None), ids(&fixture, None)), (vec![three], vec![three]));
}

async fn an_endpoint_of_an_unknown_tenant_is_refused(fixture: StoreFixture) {
    let homeless = fixture.new_endpoint(&tenant("nobody"), json!({}));
    let problem = fixture.store.create_endpoint(&Initiator::Gateway, homeless).await.unwrap_err();
    assert!(matches!(problem, Error::NotFound(MissingResource::Tenant)), "{problem:?}");
}

async fn who_wants_an_event_follows_types_filter_and_names(fixture: StoreFixture) {
    let every = fixture.endpoint(json!({})).await.id;
    let exact = fixture.endpoint(json!({"event_types": ["invoice.paid"]})).await.id;
    let glob = fixture.endpoint(json!({"event_types": ["invoice.*", "x"]})).await.id;
    let filtered = fixture.endpoint(json!({"filter": {"all": [{"path": "/n", "gt": 5}]}})).await.id;
    let matching = |kind: &str, data: &str, named: Option<Vec<_>>| {
        let mut event = event("a").kind(kind).saying(data).event().clone();
        event.endpoints = named;
        fixture.store.matching(&event).map(|found| {
            let mut ids: Vec<_> = found.iter().map(|endpoint| endpoint.id).collect();
            ids.sort();
            ids
        })
    };
    assert_eq!(matching("invoice.paid", r#"{"n":1}"#, None).unwrap(), [every, exact, glob]);
    assert_eq!(matching("invoice.sent", r#"{"n":9}"#, None).unwrap(), [every, glob, filtered]);
    assert_eq!(matching("other", "[]", None).unwrap(), [every]);
    assert_eq!(matching("other", "[]", Some(vec![exact])).unwrap(), [exact]);
    let unknown = fixture.new_endpoint(&ours(), json!({})).id;
    let problem = matching("other", "[]", Some(vec![exact, unknown])).unwrap_err();
    assert!(matches!(problem, Error::UnknownEndpoint(id) if id == unknown), "{problem:?}");
    fixture.store.delete_endpoint(&Initiator::Gateway, &ours(), every, at(1)).await.unwrap();
    assert_eq!(matching("other", "[]", None).unwrap(), []);
}

fn settings(endpoint: &Endpoint, field: &str, value: Value) -> EndpointChange {
    let mut settings = serde_json::to_value(&endpoint.settings).unwrap();
    settings[field] = value;
    let settings: posthaste::model::endpoint::EndpointSettings = serde_json::from_value(settings).unwrap();
    EndpointChange::Settings {
        policy: settings.check().unwrap(),
        settings: Box::new(settings),
        if_updated_at: endpoint.updated_at,
    }
}

async fn changed_settings_are_seen_at_once_and_survive_closing(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({"event_types": ["a"]})).await;
    let change = settings(&endpoint, "event_types", json!(["b"]));
    let changed =
        fixture.store.change_endpoint(&Initiator::Gateway, &ours(), endpoint.id, change, at(9)).await.unwrap().endpoint;
    assert_eq!((changed.updated_at, changed.created_at), (at(9), at(0)));
    let change = settings(&changed, "retry", json!({"max_attempts": 2}));
    let changed =
        fixture.store.change_endpoint(&Initiator::Gateway, &ours(), endpoint.id, change, at(9)).await.unwrap().endpoint;
    assert!(changed.updated_at > at(9), "two changes in one instant can be told apart");
    assert_eq!(*fixture.store.endpoint(&ours(), endpoint.id).unwrap(), *changed);
    assert!(fixture.store.matching(event("x").kind("a").event()).unwrap().is_empty());
    assert_eq!(fixture.store.matching(event("x").kind("b").event()).unwrap().len(), 1);
    let fixture = fixture.reopened().await;
    assert_eq!(*fixture.store.endpoint(&ours(), endpoint.id).unwrap(), *changed);
    assert_eq!(changed.policy.max_attempts, 2);
}

async fn a_change_based_on_an_old_reading_is_refused(fixture: StoreFixture) {
    let old = fixture.endpoint(json!({})).await;
    let change = settings(&old, "max_in_flight", json!(2));
    fixture.store.change_endpoint(&Initiator::Gateway, &ours(), old.id, change, at(1)).await.unwrap();
    let change = settings(&old, "max_in_flight", json!(3));
    let problem = fixture.store.change_endpoint(&Initiator::Gateway, &ours(), old.id, change, at(2)).await.unwrap_err();
    assert!(matches!(problem, Error::Changed), "{problem:?}");
    assert_eq!(fixture.store.endpoint(&ours(), old.id).unwrap().settings.max_in_flight, 2);
}

async fn of_two_changes_at_once_one_is_refused(fixture: StoreFixture) {
    for n in 0..20 {
        let endpoint = fixture.endpoint(json!({})).await;
        let (one, two) =
            (settings(&endpoint, "max_in_flight", json!(2)), settings(&endpoint, "max_in_flight", json!(3)));
        let tenant = ours();
        let (one, two) = tokio::join!(
            fixture.store.change_endpoint(&Initiator::Gateway, &tenant, endpoint.id, one, at(1)),
            fixture.store.change_endpoint(&Initiator::Gateway, &tenant, endpoint.id, two, at(1)),
        );
        let (kept, refused) = if one.is_ok() { (one, two) } else { (two, one) };
        assert!(matches!(refused, Err(Error::Changed)), "round {n}: {refused:?}");
        assert_eq!(*fixture.store.endpoint(&ours(), endpoint.id).unwrap(), *kept.unwrap().endpoint);
    }
}

async fn a_pause_and_its_length_are_kept(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let stand = |state, note: Option<&str>| EndpointChange::State { state, note: note.map(str::to_owned) };
    let pause = stand(EndpointState::Paused, Some("moving house"));
    fixture.store.change_endpoint(&Initiator::Gateway, &ours(), endpoint.id, pause, at(10)).await.unwrap();
    let fixture = fixture.reopened().await;
    let paused = fixture.store.endpoint(&ours(), endpoint.id).unwrap();
    assert_eq!((paused.status.state, paused.status.reason.as_deref()), (EndpointState::Paused, Some("moving house")));
    assert_eq!(paused.updated_at, endpoint.updated_at, "a pause is no change of settings");
    fixture.accept(event("a").to(&paused)).await;
    assert_eq!(fixture.due_ids(&paused, at(20)).await, ["a"], "the backlog is held, not dropped");

    let resume = stand(EndpointState::Active, None);
    let active = fixture
        .store
        .change_endpoint(&Initiator::Gateway, &ours(), endpoint.id, resume, at(70))
        .await
        .unwrap()
        .endpoint;
    assert_eq!(active.status.held(at(500)), Duration::from_secs(60));
}

async fn a_rotated_secret_joins_the_old_one_until_the_overlap_ends(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let rotate = |text: &str, now| EndpointChange::Rotate {
        secret: fixture.secret(text, now),
        overlap: Duration::from_secs(100),
    };
    fixture
        .store
        .change_endpoint(&Initiator::Gateway, &ours(), endpoint.id, rotate("whsec_BBBB", at(10)), at(10))
        .await
        .unwrap();
    let texts = |fixture: &StoreFixture| {
        let secrets = fixture.store.endpoint(&ours(), endpoint.id).unwrap().secrets.clone();
        secrets.into_iter().map(|secret| (secret.text, secret.expires_at)).collect::<Vec<_>>()
    };
    let both = [("whsec_BBBB".to_owned(), None), ("whsec_AAAA".to_owned(), Some(at(110)))];
    assert_eq!(texts(&fixture), both);
    // A second rotation does not give the first secret a longer life.
    fixture
        .store
        .change_endpoint(&Initiator::Gateway, &ours(), endpoint.id, rotate("whsec_CCCC", at(50)), at(50))
        .await
        .unwrap();
    let three = [
        ("whsec_CCCC".to_owned(), None),
        ("whsec_BBBB".to_owned(), Some(at(150))),
        ("whsec_AAAA".to_owned(), Some(at(110))),
    ];
    assert_eq!(texts(&fixture), three);
    fixture
        .store
        .change_endpoint(&Initiator::Gateway, &ours(), endpoint.id, rotate("whsec_DDDD", at(120)), at(120))
        .await
        .unwrap();
    let after = texts(&fixture);
    let names: Vec<_> = after.iter().map(|(text, _)| text.as_str()).collect();
    assert_eq!(names, ["whsec_DDDD", "whsec_CCCC", "whsec_BBBB"], "what expired is gone");
    let fixture = fixture.reopened().await;
    assert_eq!(texts(&fixture), after);
}

async fn what_waits_for_a_deleted_endpoint_is_cancelled_at_once(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let ids: Vec<_> = (0..5).map(|n| format!("e{n}")).collect();
    for id in &ids {
        fixture.accept(event(id).key("k").to(&endpoint)).await;
    }
    fixture.store.delete_endpoint(&Initiator::Gateway, &ours(), endpoint.id, at(9)).await.unwrap();
    for id in &ids {
        let delivery = &fixture.deliveries_of(id).await[0];
        assert_eq!((delivery.state, delivery.finished_at), (DeliveryState::Cancelled, Some(at(9))), "{id}");
        let problem = fixture.change(delivery.id, DeliveryChange::RetryNow, at(10)).await.unwrap_err();
        assert!(matches!(problem, Error::WrongState(_)), "{problem:?}");
        let problem = fixture.change(delivery.id, DeliveryChange::Replay, at(10)).await.unwrap_err();
        assert!(matches!(problem, Error::WrongState(_)), "there is nowhere to send it: {problem:?}");
    }
    let waiting =
        posthaste::model::delivery_filter::DeliveryFilter { state: Some(DeliveryState::Waiting), ..Default::default() };
    assert!(fixture.list(waiting, 10).await.is_empty());
    assert!(fixture.store.earliest_due().await.unwrap().is_empty());
    assert!(matches!(
        fixture.store.delete_endpoint(&Initiator::Gateway, &ours(), endpoint.id, at(10)).await,
        Err(Error::NotFound(MissingResource::Endpoint))
    ));
    let fixture = fixture.reopened().await;
    assert_eq!(fixture.deliveries_of("e4").await[0].state, DeliveryState::Cancelled);
}

async fn what_was_finished_at_a_deleted_endpoint_stays_as_it_was(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let delivered = fixture.claim(event("delivered").to(&endpoint)).await;
    fixture.deliver(&delivered, at(1)).await;
    let dead = fixture.claim(event("dead").to(&endpoint)).await;
    fixture.die(&dead, posthaste::model::delivery::DeadCause::Refused, at(1)).await;
    fixture.store.delete_endpoint(&Initiator::Gateway, &ours(), endpoint.id, at(9)).await.unwrap();
    assert_eq!(fixture.state(delivered.id).await, DeliveryState::Delivered);
    assert_eq!((fixture.state(dead.id).await, fixture.attempts(dead.id).await.len()), (DeliveryState::Dead, 1));
}

async fn another_tenants_endpoint_is_not_there(fixture: StoreFixture) {
    let other = fixture.put_tenant("other").await;
    let endpoint = fixture.endpoint(json!({})).await;
    assert!(fixture.store.endpoint(&other, endpoint.id).is_none());
    assert!(fixture.store.endpoints(&other).is_empty());
    let pause = EndpointChange::State { state: EndpointState::Paused, note: None };
    let problem =
        fixture.store.change_endpoint(&Initiator::Gateway, &other, endpoint.id, pause, at(1)).await.unwrap_err();
    assert!(matches!(problem, Error::NotFound(MissingResource::Endpoint)), "{problem:?}");
    let problem = fixture.store.delete_endpoint(&Initiator::Gateway, &other, endpoint.id, at(1)).await.unwrap_err();
    assert!(matches!(problem, Error::NotFound(MissingResource::Endpoint)), "{problem:?}");
    assert_eq!(fixture.store.endpoint(&ours(), endpoint.id).unwrap().status.state, EndpointState::Active);
}

async fn of_several_first_notes_one_stands(fixture: StoreFixture) {
    let write = |value: String| {
        let store = fixture.store.clone();
        tokio::spawn(async move { store.put_setting_once("first", value).await.unwrap() })
    };
    let writers: Vec<_> = (0..5).map(|n| write(n.to_string())).collect();
    let mut received = Vec::new();
    for writer in writers {
        received.push(writer.await.unwrap());
    }
    assert!(received.iter().all(|value| *value == received[0]), "{received:?}");
    assert_eq!(fixture.store.setting("first").await.unwrap().as_deref(), Some(received[0].as_str()));
    fixture.store.put_setting("first", "other".into()).await.unwrap();
    assert_eq!(fixture.store.put_setting_once("first", "late".into()).await.unwrap(), "other");
}

async fn a_note_is_kept(fixture: StoreFixture) {
    assert_eq!(fixture.store.setting("colour").await.unwrap(), None);
    fixture.store.put_setting("colour", "red".into()).await.unwrap();
    fixture.store.put_setting("colour", "blue".into()).await.unwrap();
    let fixture = fixture.reopened().await;
    assert_eq!(fixture.store.setting("colour").await.unwrap().as_deref(), Some("blue"));
}

async fn the_endpoint_of_a_self_test_is_in_no_list_and_takes_only_what_is_addressed_to_it(fixture: StoreFixture) {
    let system = fixture.put_tenant(TenantId::SYSTEM).await;
    let weight = fixture.store.weight_in_use();
    let hidden = fixture.endpoint_of(&system, json!({"url": SELF_TEST_URL, "event_types": ["*"]})).await;
    let fixture = fixture.reopened().await;
    let store = &fixture.store;
    assert!(hidden.is_self_test());
    assert_eq!(store.self_test_endpoints().iter().map(|one| one.id).collect::<Vec<_>>(), [hidden.id]);
    assert!(store.endpoints(&system).is_empty());
    let usage = store.usage(std::slice::from_ref(&system)).await.unwrap().remove(0);
    assert_eq!((usage.endpoints, usage.settings_bytes, store.weight_in_use()), (0, 0, weight));

    let event = |kind: &str, endpoints| {
        let event_type = kind.parse().unwrap();
        Event { endpoints, ..Event::empty(system.clone(), EventId::from_stored("a"), event_type, at(0)) }
    };
    let matching = |event: Event| Ok::<_, Error>(store.matching(&event)?.iter().map(|one| one.id).collect::<Vec<_>>());
    assert_eq!(matching(event(SELF_TEST_TYPE, Some(vec![hidden.id]))).unwrap(), [hidden.id]);
    assert!(matching(event(SELF_TEST_TYPE, None)).unwrap().is_empty());
    assert!(matching(event("endpoint.paused", None)).unwrap().is_empty());
    assert!(matching(event("endpoint.paused", Some(vec![hidden.id]))).is_err(), "no other event is sent there");

    store.delete_endpoint(&Initiator::Gateway, &system, hidden.id, at(1)).await.unwrap();
    assert!(store.self_test_endpoints().is_empty());
    assert_eq!(store.weight_in_use(), weight);
}

async fn an_endpoint_follows_the_defaults_that_it_inherits_also_when_they_change(fixture: StoreFixture) {
    let put = async |fixture: &StoreFixture, defaults: serde_json::Value| {
        let known = fixture.store.tenant(&ours()).unwrap();
        let defaults = serde_json::from_value(defaults).unwrap();
        let changed = Tenant { defaults, ..Tenant::clone(&known) };
        fixture.store.put_tenant(&Initiator::Gateway, changed).await.unwrap();
    };
    let follower = fixture.endpoint(json!({"inherits": ["retry", "max_in_flight"], "max_in_flight": 7})).await;
    let own = fixture.endpoint(json!({"max_in_flight": 7})).await;
    put(&fixture, json!({"max_in_flight": 3, "retry": {"max_attempts": 4}})).await;
    let read = |fixture: &StoreFixture, id| {
        let endpoint = fixture.store.endpoint(&ours(), id).unwrap();
        (endpoint.max_in_flight(), endpoint.policy.max_attempts)
    };
    assert_eq!(read(&fixture, follower.id), (3, 4));
    assert_eq!(read(&fixture, own.id).0, 7);
    let state = EndpointChange::State { state: EndpointState::Paused, note: None };
    let changed = fixture.store.change_endpoint(&Initiator::Gateway, &ours(), follower.id, state, at(5)).await.unwrap();
    assert_eq!(changed.endpoint.max_in_flight(), 3, "a change of something else leaves it so");
    let fixture = fixture.reopened().await;
    assert_eq!(read(&fixture, follower.id), (3, 4));
    put(&fixture, json!({})).await;
    assert_eq!(read(&fixture, follower.id).0, 10);
    assert_eq!(read(&fixture, own.id).0, 7);
}
