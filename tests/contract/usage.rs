//! What a tenant may use, and what it uses.

use std::sync::Arc;

use posthaste::model::audit::{Caller, CallerIdentity, Initiator};
use posthaste::model::endpoint::EndpointCeiling;
use posthaste::model::event::DataRemoval;
use posthaste::model::limits::{TenantLimits, TenantUsage, stored_bytes};
use posthaste::model::size::Size;
use posthaste::model::span::Span;
use posthaste::model::tenant::Tenant;
use posthaste::model::token::{Right, Token, TokenKind};
use posthaste::store::{AcceptResult, BatchMode, EndpointChange, Error, TokenScope};
use serde_json::json;

use crate::fixture::{StoreFixture, at, event, ours, tenant};

for_every_store! {
    endpoints_beyond_the_limit_are_refused_also_when_they_come_together,
    settings_may_not_grow_beyond_the_limit_and_may_shrink,
    tokens_beyond_the_limit_are_refused,
    what_events_take_up_is_counted_until_they_are_forgotten,
    what_waits_is_counted_by_tenant,
    data_that_nobody_wanted_is_forgotten_before_its_id,
    a_ceiling_is_in_force_for_the_endpoints_that_are_there,
    limits_survive_a_restart,
}

async fn limit(fixture: &StoreFixture, limits: TenantLimits) {
    limit_as(&Initiator::Gateway, fixture, limits).await;
}

async fn limit_as(by: &Initiator, fixture: &StoreFixture, limits: TenantLimits) {
    let known = fixture.store.tenant(&ours()).unwrap();
    fixture.store.put_tenant(by, Tenant { limits, ..Tenant::clone(&known) }).await.unwrap();
}

async fn usage(fixture: &StoreFixture) -> TenantUsage {
    fixture.store.usage(&[ours()]).await.unwrap()[0]
}

async fn endpoints_beyond_the_limit_are_refused_also_when_they_come_together(fixture: StoreFixture) {
    limit(&fixture, TenantLimits { endpoints: 5, ..TenantLimits::default() }).await;
    let created =
        (0..12).map(|_| fixture.store.create_endpoint(&Initiator::Gateway, fixture.new_endpoint(&ours(), json!({}))));
    let created = futures_util::future::join_all(created).await;
    let refused: Vec<&Error> = created.iter().filter_map(|created| created.as_ref().err()).collect();
    assert_eq!(refused.len(), 7);
    assert!(refused.iter().all(|refused| matches!(refused, Error::OverLimit(over) if over.limit == "endpoints")));
    assert_eq!((fixture.store.endpoints(&ours()).len(), usage(&fixture).await.endpoints), (5, 5));
    let one = fixture.store.endpoints(&ours())[0].id;
    fixture.store.delete_endpoint(&Initiator::Gateway, &ours(), one, at(1)).await.unwrap();
    fixture.endpoint(json!({})).await;
    assert!(
        fixture.store.create_endpoint(&Initiator::Gateway, fixture.new_endpoint(&ours(), json!({}))).await.is_err()
    );
}

async fn settings_may_not_grow_beyond_the_limit_and_may_shrink(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({"description": "x".repeat(500)})).await;
    let used = usage(&fixture).await.settings_bytes;
    assert!(used > 500);
    limit(&fixture, TenantLimits { settings_bytes: Size(used + 10), ..TenantLimits::default() }).await;
    let describe = async |text: &str| {
        let current = fixture.store.any_endpoint(endpoint.id).unwrap();
        let settings =
            posthaste::model::endpoint::EndpointSettings { description: text.into(), ..current.settings.clone() };
        let (policy, if_updated_at) = (current.policy.clone(), current.updated_at);
        let change = EndpointChange::Settings { settings: Box::new(settings), policy, if_updated_at };
        fixture.store.change_endpoint(&Initiator::Gateway, &ours(), endpoint.id, change, at(1)).await
    };
    let refused = describe(&"x".repeat(511)).await.unwrap_err();
    assert!(matches!(&refused, Error::OverLimit(over) if over.limit == "settings_bytes"), "{refused:?}");
    assert_eq!(fixture.store.any_endpoint(endpoint.id).unwrap().settings.description.len(), 500, "nothing was changed");
    describe(&"x".repeat(510)).await.unwrap();
    assert_eq!(usage(&fixture).await.settings_bytes, used + 10);
    let refused =
        fixture.store.create_endpoint(&Initiator::Gateway, fixture.new_endpoint(&ours(), json!({}))).await.unwrap_err();
    assert!(matches!(&refused, Error::OverLimit(over) if over.limit == "settings_bytes"), "{refused:?}");
    limit(&fixture, TenantLimits { settings_bytes: Size(10), ..TenantLimits::default() }).await;
    describe("").await.unwrap();
}

async fn tokens_beyond_the_limit_are_refused(fixture: StoreFixture) {
    limit(&fixture, TenantLimits { tokens: 2, ..TenantLimits::default() }).await;
    let token = |n: u8| Token {
        id: posthaste::model::id::TokenId::mint(at(0), n.into()),
        kind: TokenKind::Api,
        sign_in: None,
        tenant: Some(ours()),
        name: String::new(),
        rights: vec![Right::Read],
        hash: [n; 32],
        created_at: at(0),
        expires_at: None,
        used_at: None,
    };
    let made =
        futures_util::future::join_all((0..5).map(|n| fixture.store.create_token(&Initiator::Gateway, token(n)))).await;
    let refused: Vec<_> = made.iter().filter_map(|made| made.as_ref().err()).collect();
    assert_eq!(refused.len(), 3);
    assert!(refused.iter().all(|refused| matches!(refused, Error::OverLimit(over) if over.limit == "tokens")));
    let kept = (0..5).map(token).find(|token| fixture.store.token(token.id).is_some()).unwrap();
    fixture.store.revoke_token(&Initiator::Gateway, kept.id, TokenScope::All, at(1)).await.unwrap();
    assert_eq!(usage(&fixture).await.tokens, 1);
    fixture.store.create_token(&Initiator::Gateway, token(9)).await.unwrap();
}

async fn what_events_take_up_is_counted_until_they_are_forgotten(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let one = fixture.claim(event("one").to(&endpoint)).await;
    let alone = event("alone");
    fixture.accept(alone).await;
    let data = one.event.data.len();
    let expected = stored_bytes(data, 1) + stored_bytes(data, 0);
    assert_eq!(usage(&fixture).await.stored_bytes, expected);
    // What is refused or repeated takes up nothing.
    fixture.accept_all(vec![event("one").to(&endpoint)], BatchMode::Each).await;
    let undone = fixture.accept_all(vec![event("new"), event("one").saying("[2]")], BatchMode::All).await;
    assert!(undone.iter().any(|one| matches!(one, AcceptResult::Conflict { .. })), "{undone:?}");
    assert_eq!(usage(&fixture).await.stored_bytes, expected);
    assert_eq!(fixture.store.usage(&[tenant("nobody")]).await.unwrap()[0], TenantUsage::default());
    fixture.deliver(&one, at(1)).await;
    assert!(fixture.store.expunge(&Initiator::Gateway, &ours(), &"one".parse().unwrap()).await.unwrap());
    assert!(fixture.store.expunge(&Initiator::Gateway, &ours(), &"one".parse().unwrap()).await.unwrap());
    let expected = expected - data as u64;
    assert_eq!(usage(&fixture).await.stored_bytes, expected);
    let fixture = fixture.reopened().await;
    assert_eq!(usage(&fixture).await.stored_bytes, expected, "it is kept");
    fixture.forget(at(1_000_000), at(1_000_000)).await;
    assert_eq!(usage(&fixture).await.stored_bytes, 0);
}

async fn what_waits_is_counted_by_tenant(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let other = fixture.endpoint(json!({})).await;
    fixture.put_tenant("other").await;
    let first = fixture.claim(event("a").to(&endpoint)).await;
    fixture.accept(event("b").to(&endpoint).to(&other)).await;
    assert_eq!(usage(&fixture).await.waiting, Some(3));
    assert_eq!(fixture.store.usage_here(&ours()).unwrap().waiting, Some(3));
    assert_eq!(fixture.store.usage(&[tenant("other")]).await.unwrap()[0].waiting, Some(0));
    fixture.deliver(&first, at(1)).await;
    assert_eq!(usage(&fixture).await.waiting, Some(2));
    fixture.store.delete_endpoint(&Initiator::Gateway, &ours(), other.id, at(2)).await.unwrap();
    assert_eq!(usage(&fixture).await.waiting, Some(1));
    let fixture = fixture.reopened().await;
    assert_eq!(usage(&fixture).await.waiting, Some(1));
}

async fn data_that_nobody_wanted_is_forgotten_before_its_id(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    fixture.accept(event("unwanted")).await;
    fixture.accept(event("old")).await;
    fixture.execute("UPDATE events SET data = substr(data, 1, 0) WHERE id = 'old'").await;
    let wanted = fixture.claim(event("wanted").to(&endpoint)).await;
    fixture.deliver(&wanted, at(1)).await;
    let bytes = usage(&fixture).await.stored_bytes;
    fixture.forget_unmatched(at(0)).await;
    assert_eq!(usage(&fixture).await.stored_bytes, bytes, "it was not kept long enough");
    fixture.forget_unmatched(at(1_000)).await;
    let record = fixture.store.event(&ours(), &"unwanted".parse().unwrap()).await.unwrap().unwrap();
    assert_eq!((record.withheld, record.event.data.len(), record.is_damaged), (Some(DataRemoval::Unmatched), 0, false));
    let record = fixture.store.event(&ours(), &"wanted".parse().unwrap()).await.unwrap().unwrap();
    assert_eq!((record.withheld, record.event.data.is_empty()), (None, false));
    assert_eq!(usage(&fixture).await.stored_bytes, bytes - record.event.data.len() as u64);
    let record = fixture.store.event(&ours(), &"old".parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(record.withheld, Some(DataRemoval::Expunged), "an older version expunged it, and wrote no code");
    let again = fixture.accept_all(vec![event("unwanted")], BatchMode::Each).await;
    assert!(matches!(again[..], [AcceptResult::Duplicate { .. }]), "{again:?}");
    fixture.store.expunge(&Initiator::Gateway, &ours(), &"wanted".parse().unwrap()).await.unwrap();
    let record = fixture.store.event(&ours(), &"wanted".parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(record.withheld, Some(DataRemoval::Expunged));
}

async fn a_ceiling_is_in_force_for_the_endpoints_that_are_there(fixture: StoreFixture) {
    let settings = json!({"max_in_flight": 100, "timeout": {"total": "30s"}, "retry": {"max_attempts": 20}});
    let endpoint = fixture.endpoint(settings).await;
    let ceiling = EndpointCeiling {
        max_in_flight: 7,
        per_second: Some(2.0),
        timeout: Span::secs(1),
        max_attempts: Some(3),
        max_age: Some(Span::secs(60)),
    };
    limit(&fixture, TenantLimits { endpoint: ceiling, ..TenantLimits::default() }).await;
    let check = |fixture: &StoreFixture| {
        let known = fixture.store.any_endpoint(endpoint.id).unwrap();
        assert_eq!((known.max_in_flight(), known.rate().per_second, known.timeout().total), (7, 2.0, Span::secs(1)));
        assert_eq!((known.policy.max_attempts, known.policy.max_age), (3, Span::secs(60)));
        assert_eq!(known.settings.max_in_flight, 100, "what was set stays");
        assert_eq!(fixture.store.endpoints(&ours())[0].max_in_flight(), 7);
    };
    check(&fixture);
    let fixture = fixture.reopened().await;
    check(&fixture);
    // A change of something else leaves the ceiling in force.
    fixture
        .store
        .change_endpoint(&Initiator::Gateway, &ours(), endpoint.id, EndpointChange::Mailed, at(3))
        .await
        .unwrap();
    check(&fixture);
    limit(&fixture, TenantLimits::default()).await;
    let known = fixture.store.any_endpoint(endpoint.id).unwrap();
    assert_eq!((known.max_in_flight(), known.policy.max_attempts), (100, 20), "it is lifted as it was set");
}

async fn limits_survive_a_restart(fixture: StoreFixture) {
    let limits = TenantLimits { waiting: Some(9), stored_bytes: Some(Size(1 << 30)), ..TenantLimits::default() };
    let caller = Caller { by: CallerIdentity::Admin, from: None, request_id: String::new(), at: at(0) };
    limit_as(&Initiator::Caller(Arc::new(caller)), &fixture, limits.clone()).await;
    let fixture = fixture.reopened().await;
    assert_eq!(fixture.store.tenant(&ours()).unwrap().limits, limits);
    let page = posthaste::store::PageRequest { cursor: None, limit: 10 };
    let entries = fixture.store.audit(Default::default(), page).await.unwrap();
    assert!(serde_json::to_string(&entries.data[0].record).unwrap().contains("limits"), "{entries:?}");
}
