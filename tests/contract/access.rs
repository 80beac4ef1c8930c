//! Tokens and the audit log: what is revoked is gone at once, and what was
//! changed in somebody's name is on record with the change.

use std::sync::Arc;

use jiff::Timestamp;
use posthaste::model::audit::{AuditAction, AuditEntry, AuditedAction, Caller, CallerIdentity, Initiator};
use posthaste::model::id::{TenantId, TokenId};
use posthaste::model::named_enum::NamedEnum;
use posthaste::model::rate::Rate;
use posthaste::model::tenant::{Tenant, TenantQuota};
use posthaste::model::token::{Right, Token, TokenKind};
use posthaste::store::{AuditQuery, DeliveryChange, EndpointChange, Error, MissingResource, PageRequest, TokenScope};
use serde_json::json;

use crate::fixture::{StoreFixture, at, event, ours, tenant};

for_every_store! {
    a_token_is_there_when_its_creation_returns_and_after_closing,
    a_revoked_token_is_gone_at_once_and_after_closing,
    a_tenants_token_is_not_revoked_for_another,
    a_deleted_tenant_takes_its_tokens_along,
    a_token_for_no_tenant_is_refused,
    a_token_of_the_gateway_is_kept_listed_and_revoked_apart_from_those_of_tenants,
    what_is_done_to_a_token_of_the_gateway_is_on_record_with_the_system,
    tokens_are_listed_newest_first_page_by_page,
    the_latest_use_of_a_token_is_kept,
    what_somebody_changes_is_recorded_with_the_change,
    what_a_task_changes_for_a_caller_is_recorded_in_its_name,
    what_nobody_asked_for_is_not_recorded,
    what_is_refused_is_not_recorded,
    the_audit_log_is_listed_newest_first_by_time_and_tenant,
    a_tenant_that_has_the_id_of_another_does_not_see_its_past,
    old_entries_are_forgotten_a_step_at_a_time,
    the_audit_log_is_searched_for_a_resource,
}

fn token(fixture: &StoreFixture, of: &TenantId, seconds: i64) -> Token {
    Token {
        id: TokenId::mint(at(seconds), fixture.mint()),
        kind: TokenKind::Api,
        sign_in: None,
        tenant: Some(of.clone()),
        name: format!("made at {seconds}"),
        rights: vec![Right::Read, Right::Publish],
        hash: [seconds as u8; 32],
        created_at: at(seconds),
        expires_at: Some(at(1_000)),
        used_at: None,
    }
}

fn page(limit: usize, cursor: Option<String>) -> PageRequest {
    PageRequest { cursor, limit }
}

/// The address that callers send their requests from.
const ADDRESS: &str = "192.0.2.7";

/// A token of the gateway itself.
fn gateways_token(fixture: &StoreFixture, right: Right, seconds: i64) -> Token {
    Token { tenant: None, rights: vec![right], ..token(fixture, &ours(), seconds) }
}

fn of(tenant: &TenantId) -> TokenScope {
    TokenScope::Tenant(tenant.clone())
}

async fn tokens(fixture: &StoreFixture, whose: TokenScope) -> Vec<Token> {
    fixture.store.tokens(whose, page(100, None)).await.unwrap().data
}

async fn audit(fixture: &StoreFixture, ask: AuditQuery) -> Vec<AuditEntry> {
    fixture.store.audit(ask, page(100, None)).await.unwrap().data
}

pub fn caller(at: Timestamp) -> Initiator {
    caller_with(CallerIdentity::Admin, at)
}

fn caller_with(by: CallerIdentity, at: Timestamp) -> Initiator {
    let from = Some(ADDRESS.parse().unwrap());
    Initiator::Caller(Arc::new(Caller { by, from, request_id: "req_1".into(), at }))
}

async fn a_token_is_there_when_its_creation_returns_and_after_closing(fixture: StoreFixture) {
    let made = token(&fixture, &ours(), 1);
    assert!(fixture.store.token(made.id).is_none());
    fixture.store.create_token(&Initiator::Gateway, made.clone()).await.unwrap();
    assert_eq!(*fixture.store.token(made.id).unwrap(), made);
    assert_eq!(tokens(&fixture, TokenScope::All).await, std::slice::from_ref(&made));
    let fixture = fixture.reopened().await;
    assert_eq!(*fixture.store.token(made.id).unwrap(), made);
}

async fn a_revoked_token_is_gone_at_once_and_after_closing(fixture: StoreFixture) {
    let (made, kept) = (token(&fixture, &ours(), 1), token(&fixture, &ours(), 2));
    fixture.store.create_token(&Initiator::Gateway, made.clone()).await.unwrap();
    fixture.store.create_token(&Initiator::Gateway, kept.clone()).await.unwrap();
    fixture.store.revoke_token(&Initiator::Gateway, made.id, TokenScope::All, at(3)).await.unwrap();
    assert!(fixture.store.token(made.id).is_none());
    assert!(matches!(
        fixture.store.revoke_token(&Initiator::Gateway, made.id, TokenScope::All, at(4)).await,
        Err(Error::NotFound(MissingResource::Token))
    ));
    let fixture = fixture.reopened().await;
    assert!(fixture.store.token(made.id).is_none());
    assert_eq!(tokens(&fixture, of(&ours())).await, [kept]);
}

async fn a_tenants_token_is_not_revoked_for_another(fixture: StoreFixture) {
    let acme = fixture.put_tenant("acme").await;
    let made = token(&fixture, &ours(), 1);
    fixture.store.create_token(&Initiator::Gateway, made.clone()).await.unwrap();
    let refused = fixture.store.revoke_token(&Initiator::Gateway, made.id, of(&acme), at(2)).await;
    assert!(matches!(refused, Err(Error::NotFound(MissingResource::Token))));
    assert!(fixture.store.token(made.id).is_some());
    fixture.store.revoke_token(&Initiator::Gateway, made.id, of(&ours()), at(2)).await.unwrap();
    assert!(fixture.store.token(made.id).is_none());
}

async fn a_deleted_tenant_takes_its_tokens_along(fixture: StoreFixture) {
    let acme = fixture.put_tenant("acme").await;
    let (made, kept) = (token(&fixture, &acme, 1), token(&fixture, &ours(), 1));
    fixture.store.create_token(&Initiator::Gateway, made.clone()).await.unwrap();
    fixture.store.create_token(&Initiator::Gateway, kept.clone()).await.unwrap();
    fixture.store.delete_tenant(&Initiator::Gateway, &acme, at(2)).await.unwrap();
    assert!(fixture.store.token(made.id).is_none() && fixture.store.token(kept.id).is_some());
    fixture.put_tenant("acme").await;
    let fixture = fixture.reopened().await;
    assert!(fixture.store.token(made.id).is_none(), "also not for another tenant of that name");
    assert_eq!(tokens(&fixture, TokenScope::All).await, [kept]);
}

async fn a_token_for_no_tenant_is_refused(fixture: StoreFixture) {
    let refused = fixture.store.create_token(&Initiator::Gateway, token(&fixture, &tenant("nobody"), 1)).await;
    assert!(matches!(refused, Err(Error::NotFound(MissingResource::Tenant))));
}

async fn a_token_of_the_gateway_is_kept_listed_and_revoked_apart_from_those_of_tenants(fixture: StoreFixture) {
    let acme = fixture.put_tenant("acme").await;
    let theirs = token(&fixture, &acme, 1);
    let (first, second) = (gateways_token(&fixture, Right::Admin, 2), gateways_token(&fixture, Right::AdminRead, 3));
    for token in [&theirs, &first, &second] {
        fixture.store.create_token(&Initiator::Gateway, token.clone()).await.unwrap();
    }
    assert_eq!(*fixture.store.token(first.id).unwrap(), first);
    let fixture = fixture.reopened().await;
    assert_eq!(*fixture.store.token(first.id).unwrap(), first, "it is there after closing");
    assert_eq!(tokens(&fixture, TokenScope::All).await, [second.clone(), first.clone(), theirs.clone()]);
    assert_eq!(tokens(&fixture, TokenScope::Tenants).await, std::slice::from_ref(&theirs));
    assert_eq!(tokens(&fixture, of(&acme)).await, std::slice::from_ref(&theirs));
    for whose in [of(&acme), of(&ours()), TokenScope::Tenants] {
        let refused = fixture.store.revoke_token(&Initiator::Gateway, first.id, whose, at(4)).await;
        assert!(matches!(refused, Err(Error::NotFound(MissingResource::Token))), "it is not one of a tenant's");
    }
    fixture.store.use_tokens(vec![(second.id, at(9))]).await.unwrap();
    fixture.store.revoke_token(&Initiator::Gateway, first.id, TokenScope::All, at(4)).await.unwrap();
    fixture.store.revoke_token(&Initiator::Gateway, theirs.id, TokenScope::Tenants, at(4)).await.unwrap();
    fixture.store.delete_tenant(&Initiator::Gateway, &acme, at(5)).await.unwrap();
    let fixture = fixture.reopened().await;
    assert!(fixture.store.token(first.id).is_none() && fixture.store.token(theirs.id).is_none());
    let kept = tokens(&fixture, TokenScope::All).await;
    assert_eq!(kept, [Token { used_at: Some(at(9)), ..second }], "a tenant takes only its own along");
}

async fn what_is_done_to_a_token_of_the_gateway_is_on_record_with_the_system(fixture: StoreFixture) {
    let made = gateways_token(&fixture, Right::Tenants, 1);
    fixture.store.create_token(&caller(at(2)), made.clone()).await.unwrap();
    fixture.store.revoke_token(&caller(at(3)), made.id, TokenScope::All, at(3)).await.unwrap();
    let log = audit(&fixture, AuditQuery::default()).await;
    let logged: Vec<_> = log.iter().map(|entry| (entry.record.action, entry.record.resource.clone())).collect();
    assert_eq!(
        logged,
        [AuditAction::TokenRevoked, AuditAction::TokenCreated].map(|action| (action, made.id.to_string()))
    );
    assert!(log.iter().all(|entry| entry.record.tenant.is_system()), "{log:?}");
    assert_eq!(log[1].record.fields, ["tenants"]);
}

async fn tokens_are_listed_newest_first_page_by_page(fixture: StoreFixture) {
    let acme = fixture.put_tenant("acme").await;
    let ours = ours();
    let made: Vec<Token> = (1..=5).map(|n| token(&fixture, if n == 3 { &acme } else { &ours }, n)).collect();
    for token in &made {
        fixture.store.create_token(&Initiator::Gateway, token.clone()).await.unwrap();
    }
    let names = |tokens: &[Token]| tokens.iter().map(|token| token.created_at).collect::<Vec<_>>();
    let first = fixture.store.tokens(of(&ours), page(3, None)).await.unwrap();
    assert_eq!(names(&first.data), [at(5), at(4), at(2)]);
    let last = fixture.store.tokens(of(&ours), page(3, first.next)).await.unwrap();
    assert_eq!((names(&last.data), last.next), (vec![at(1)], None));
    assert_eq!(names(&tokens(&fixture, TokenScope::All).await), [at(5), at(4), at(3), at(2), at(1)]);
    assert_eq!(names(&tokens(&fixture, of(&acme)).await), [at(3)]);
    let wrong = fixture.store.tokens(TokenScope::All, page(3, Some("nonsense".into()))).await;
    assert!(matches!(wrong, Err(Error::InvalidCursor)));
}

async fn the_latest_use_of_a_token_is_kept(fixture: StoreFixture) {
    let (made, other) = (token(&fixture, &ours(), 1), token(&fixture, &ours(), 2));
    fixture.store.create_token(&Initiator::Gateway, made.clone()).await.unwrap();
    fixture.store.create_token(&Initiator::Gateway, other.clone()).await.unwrap();
    let gone = TokenId::mint(at(3), 9);
    fixture.store.use_tokens(vec![(made.id, at(20)), (gone, at(20))]).await.unwrap();
    fixture.store.use_tokens(vec![(made.id, at(10))]).await.unwrap();
    let fixture = fixture.reopened().await;
    let uses: Vec<_> = tokens(&fixture, TokenScope::All).await.iter().map(|token| token.used_at).collect();
    assert_eq!(uses, [None, Some(at(20))]);
}

async fn what_somebody_changes_is_recorded_with_the_change(fixture: StoreFixture) {
    let acme = tenant("acme");
    let named = |name: &str, quota| Tenant {
        id: acme.clone(),
        name: name.into(),
        quota,
        limits: Default::default(),
        defaults: Default::default(),
        retention: Default::default(),
        created_at: at(0),
    };
    let quota = TenantQuota { rate: Some(Rate { per_second: 1.0, burst: 1 }), ..TenantQuota::default() };
    let new = fixture.new_endpoint(&acme, json!({}));
    let id = new.id;
    let made = token(&fixture, &acme, 1);
    let by = CallerIdentity::Token { id: made.id, name: "the office".into() };
    let store = fixture.store.clone();
    // Everything that can be asked for, each at a second of its own.
    let mut second = 10;
    macro_rules! ask {
        ($verb:ident($($argument:expr),*)) => {{
            second += 1;
            store.$verb(&caller_with(by.clone(), at(second)), $($argument),*).await.unwrap()
        }};
    }
    ask!(put_tenant(named("Acme", TenantQuota::default())));
    ask!(put_tenant(named("Acme Inc", quota)));
    ask!(create_token(made.clone()));
    ask!(create_endpoint(new));
    let current = store.endpoint(&acme, id).unwrap();
    let mut settings = current.settings.clone();
    settings.description = "another".into();
    settings.headers.insert("x-key".into(), "hush".into());
    let (policy, if_updated_at) = (current.policy.clone(), current.updated_at);
    let change = EndpointChange::Settings { settings: Box::new(settings), policy, if_updated_at };
    ask!(change_endpoint(&acme, id, change, at(30)));
    ask!(change_endpoint(&acme, id, EndpointChange::Breaker { is_open: true, until: None, note: None }, at(31)));
    ask!(change_endpoint(&acme, id, EndpointChange::Mailed, at(32)));
    let endpoint = store.endpoint(&acme, id).unwrap();
    let claim = fixture.claim(event("a").of(&acme).to(&endpoint)).await;
    ask!(change(&acme, claim.id, DeliveryChange::Cancel, at(33)));
    ask!(change(&acme, claim.id, DeliveryChange::Replay, at(34)));
    ask!(change(&acme, claim.id, DeliveryChange::Cancel, at(34)));
    assert!(ask!(expunge(&acme, &claim.event.id)));
    ask!(record(AuditedAction::new(AuditAction::SecretsShown, &acme, id)));
    ask!(delete_endpoint(&acme, id, at(35)));
    ask!(revoke_token(made.id, TokenScope::All, at(36)));
    ask!(delete_tenant(&acme, at(37)));
    drop(store);
    let fixture = fixture.reopened().await;
    let log = audit(&fixture, AuditQuery { tenant: Some(acme.clone()), ..AuditQuery::default() }).await;
    let logged: Vec<String> = log
        .iter()
        .rev()
        .map(|entry| {
            let record = &entry.record;
            assert_eq!((&record.by, &record.tenant), (&format!("{} (the office)", made.id), &acme));
            assert_eq!((record.request_id.as_str(), record.from), ("req_1", ADDRESS.parse().ok()));
            format!("{} {} {}", record.action.as_str(), record.resource, record.fields.join(","))
        })
        .collect();
    let (delivery, token) = (claim.id, made.id);
    assert_eq!(
        logged,
        [
            "tenant.created acme ".to_owned(),
            "tenant.changed acme name,rate".to_owned(),
            format!("token.created {token} read,publish"),
            format!("endpoint.created {id} "),
            format!("endpoint.changed {id} description,headers"),
            format!("breaker.opened {id} "),
            format!("delivery.cancelled {delivery} "),
            format!("delivery.replayed {delivery} "),
            format!("delivery.cancelled {delivery} "),
            format!("event.expunged {} ", claim.event.id),
            format!("secrets.shown {id} "),
            format!("endpoint.deleted {id} "),
            format!("token.revoked {token} "),
            "tenant.deleted acme ".to_owned(),
        ]
    );
}

async fn what_a_task_changes_for_a_caller_is_recorded_in_its_name(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let (tenant, id) = (ours(), endpoint.id);
    let token = TokenId::mint(at(0), fixture.mint());
    let name = |n: i64| CallerIdentity::Token { id: token, name: format!("job {n}") };
    // Tasks of many callers at once, and one of the gateway's own beside each.
    let tasks = (1..=8).flat_map(|n| [caller_with(name(n), at(n)), Initiator::Gateway]).map(|by| {
        let (store, tenant) = (fixture.store.clone(), tenant.clone());
        tokio::spawn(async move {
            let change = EndpointChange::Breaker { is_open: true, until: None, note: None };
            store.change_endpoint(&by, &tenant, id, change, at(9)).await.unwrap();
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let log = audit(&fixture, AuditQuery::default()).await;
    let logged: Vec<_> = log.iter().rev().map(|entry| (entry.record.at, entry.record.by.clone())).collect();
    assert_eq!(logged, (1..=8).map(|n| (at(n), name(n).to_string())).collect::<Vec<_>>());
}

async fn what_nobody_asked_for_is_not_recorded(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let change = EndpointChange::Breaker { is_open: true, until: None, note: None };
    fixture.store.change_endpoint(&Initiator::Gateway, &ours(), endpoint.id, change, at(3)).await.unwrap();
    fixture
        .store
        .record(&Initiator::Gateway, AuditedAction::new(AuditAction::EndpointTested, &ours(), endpoint.id))
        .await
        .unwrap();
    assert!(audit(&fixture, AuditQuery::default()).await.is_empty());
}

async fn what_is_refused_is_not_recorded(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    let store = &fixture.store;
    let refused = store.change(&caller(at(1)), &ours(), claim.id, DeliveryChange::Replay, at(1)).await;
    assert!(matches!(refused, Err(Error::WrongState(_))));
    let refused = store.delete_endpoint(&caller(at(1)), &tenant("other"), endpoint.id, at(1)).await;
    assert!(matches!(refused, Err(Error::NotFound(MissingResource::Endpoint))));
    assert!(audit(&fixture, AuditQuery::default()).await.is_empty());
}

async fn the_audit_log_is_listed_newest_first_by_time_and_tenant(fixture: StoreFixture) {
    let acme = fixture.put_tenant("acme").await;
    for n in 1..=6 {
        let of = if n % 2 == 0 { &acme } else { &ours() };
        let action = AuditedAction::new(AuditAction::EndpointTested, of, n);
        fixture.store.record(&caller(at(n)), action).await.unwrap();
    }
    let logged = |entries: &[AuditEntry]| entries.iter().map(|entry| entry.record.resource.clone()).collect::<Vec<_>>();
    // Those of one moment stay in the order they were made in.
    for n in 1..=50 {
        let action = AuditedAction::new(AuditAction::EndpointTested, &ours(), n);
        fixture.store.record(&caller(at(-9)), action).await.unwrap();
    }
    let moment = audit(&fixture, AuditQuery { until: Some(at(-8)), ..AuditQuery::default() }).await;
    assert_eq!(logged(&moment), (1..=50).rev().map(|n| n.to_string()).collect::<Vec<_>>());
    fixture.store.forget_audit(at(0), 100).await.unwrap();
    let first = fixture.store.audit(AuditQuery::default(), page(4, None)).await.unwrap();
    assert_eq!(logged(&first.data), ["6", "5", "4", "3"]);
    let last = fixture.store.audit(AuditQuery::default(), page(4, first.next)).await.unwrap();
    assert_eq!((logged(&last.data), last.next), (vec!["2".to_owned(), "1".to_owned()], None));
    let between = AuditQuery { since: Some(at(2)), until: Some(at(5)), ..AuditQuery::default() };
    assert_eq!(logged(&audit(&fixture, between.clone()).await), ["4", "3", "2"], "the end itself is not in it");
    let of = AuditQuery { tenant: Some(acme.clone()), is_present_only: true, ..between };
    let first = fixture.store.audit(of.clone(), page(1, None)).await.unwrap();
    assert_eq!(logged(&first.data), ["4"]);
    let last = fixture.store.audit(of, page(1, first.next)).await.unwrap();
    assert_eq!((logged(&last.data), last.next), (vec!["2".to_owned()], None));
}

async fn a_tenant_that_has_the_id_of_another_does_not_see_its_past(fixture: StoreFixture) {
    let acme = fixture.put_tenant("acme").await;
    fixture.store.record(&caller(at(1)), AuditedAction::new(AuditAction::EndpointTested, &acme, "old")).await.unwrap();
    fixture.store.delete_tenant(&Initiator::Gateway, &acme, at(2)).await.unwrap();
    let present = AuditQuery { tenant: Some(acme.clone()), is_present_only: true, ..AuditQuery::default() };
    assert!(audit(&fixture, present.clone()).await.is_empty());
    // Long enough that nothing else is left of it.
    fixture.forget(at(1_000), at(1_000)).await;
    fixture.put_tenant("acme").await;
    assert!(audit(&fixture, present.clone()).await.is_empty());
    fixture.store.record(&caller(at(3)), AuditedAction::new(AuditAction::EndpointTested, &acme, "new")).await.unwrap();
    assert_eq!(audit(&fixture, present.clone()).await.len(), 1);
    let all = AuditQuery { is_present_only: false, ..present };
    assert_eq!(audit(&fixture, all).await.len(), 2, "the operator sees both");
}

async fn old_entries_are_forgotten_a_step_at_a_time(fixture: StoreFixture) {
    for n in 1..=5 {
        let action = AuditedAction::new(AuditAction::EndpointTested, &ours(), n);
        fixture.store.record(&caller(at(n)), action).await.unwrap();
    }
    assert_eq!(fixture.store.forget_audit(at(4), 2).await.unwrap(), 2);
    assert_eq!(fixture.store.forget_audit(at(4), 2).await.unwrap(), 1);
    assert_eq!(fixture.store.forget_audit(at(4), 2).await.unwrap(), 0);
    let left = audit(&fixture, AuditQuery::default()).await;
    assert_eq!(left.iter().map(|entry| entry.record.at).collect::<Vec<_>>(), [at(5), at(4)]);
}

async fn the_audit_log_is_searched_for_a_resource(fixture: StoreFixture) {
    let store = &fixture.store;
    let record = async |resource: &str, second| {
        let audited = AuditedAction::new(AuditAction::SecretsShown, &ours(), resource);
        store.record(&caller(at(second)), audited).await.unwrap();
    };
    for second in 0..3 {
        record("ep_one", second).await;
        record("ep_other", second).await;
    }
    let ask = || AuditQuery { resource: Some("ep_one".into()), ..AuditQuery::default() };
    let first = store.audit(ask(), page(2, None)).await.unwrap();
    let rest = store.audit(ask(), page(2, first.next.clone())).await.unwrap();
    assert_eq!((first.data.len(), rest.data.len(), rest.next), (2, 1, None));
    assert!(first.data.iter().chain(&rest.data).all(|entry| entry.record.resource == "ep_one"));
    assert!(audit(&fixture, AuditQuery { resource: Some("ep".into()), ..AuditQuery::default() }).await.is_empty());
}
