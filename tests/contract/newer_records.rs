//! Records that only a newer version can read, as during a rolling upgrade: each
//! is an error that names its place, and costs nothing but what it is about.

use posthaste::model::audit::Initiator;
use posthaste::model::endpoint::EndpointState;
use posthaste::model::id::TokenId;
use posthaste::model::token::{Right, Token, TokenKind};
use posthaste::store::{AuditQuery, EndpointChange, Error, PageRequest, TokenScope};
use serde_json::json;

use crate::access::caller;
use crate::fixture::{StoreFixture, at, event, ours};

for_every_store! {
    records_of_a_newer_version_are_errors_that_name_their_place,
    a_right_of_a_newer_version_is_left_out,
    an_endpoint_of_a_newer_version_costs_its_tenant_and_nobody_else,
    a_tenant_of_a_newer_version_keeps_what_is_known_of_it,
}

fn page() -> PageRequest {
    PageRequest { cursor: None, limit: 10 }
}

#[track_caller]
fn names(problem: &Error, place: &str) {
    assert!(matches!(problem, Error::Unreadable(_)), "{problem:?}");
    let words = problem.to_string();
    assert!(words.contains(place) && words.contains("newer version"), "{words}");
}

async fn records_of_a_newer_version_are_errors_that_name_their_place(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    let other = fixture.claim(event("b").to(&endpoint)).await;
    fixture.deliver(&claim, at(1)).await;
    let pause = EndpointChange::State { state: EndpointState::Paused, note: None };
    fixture.store.change_endpoint(&caller(at(2)), &ours(), endpoint.id, pause, at(2)).await.unwrap();
    let newer = |column: &str, table: &str, old: &str| {
        format!("UPDATE {table} SET {column} = replace({column}, '\"{old}\"', '\"newer\"')")
    };
    let attempts = if fixture.is_shared() { ("last_attempt", "finished") } else { ("record", "attempts") };
    fixture.execute(&newer(attempts.0, attempts.1, "delivered")).await;
    fixture.execute(&newer("record", "endpoint_events", "paused")).await;
    fixture.execute(&newer("record", "audit", "endpoint.paused")).await;

    let store = &fixture.store;
    names(&store.attempts(&ours(), claim.id).await.unwrap_err(), "attempts.record has something at decision.verdict");
    names(&store.delivery(&ours(), claim.id).await.unwrap_err(), "attempts.record");
    names(&store.endpoint_events(endpoint.id, page()).await.unwrap_err(), "endpoint_events.record");
    names(&store.audit(AuditQuery::default(), page()).await.unwrap_err(), "audit.record has something at action");
    assert!(store.delivery(&ours(), other.id).await.unwrap().is_some(), "nothing else is touched");
    if fixture.is_shared() {
        names(&store.expunge(&Initiator::Gateway, &ours(), &claim.event.id).await.unwrap_err(), "attempts.record");
    }
}

async fn a_right_of_a_newer_version_is_left_out(fixture: StoreFixture) {
    let token = Token {
        id: TokenId::mint(at(0), 1),
        kind: TokenKind::Api,
        sign_in: None,
        tenant: Some(ours()),
        name: "customers".into(),
        rights: vec![Right::Manage, Right::Read],
        hash: [1; 32],
        created_at: at(0),
        expires_at: None,
        used_at: None,
    };
    fixture.store.create_token(&Initiator::Gateway, token.clone()).await.unwrap();
    fixture.execute(r#"UPDATE tokens SET rights = replace(rights, '"manage"', '"archive"')"#).await;
    let fixture = fixture.reopened().await;
    assert_eq!(fixture.store.token(token.id).unwrap().rights, [Right::Read]);
    let listed = fixture.store.tokens(TokenScope::All, page()).await.unwrap();
    assert_eq!(listed.data.len(), 1);
}

/// Lets a node of a newer version change a row of the catalog, and this one hear of
/// it, with the next change that it makes itself.
async fn changed_by_a_newer_node(fixture: &StoreFixture, table: &str, change: &str) {
    let bump = "UPDATE catalog SET version = version + 1";
    let sql = format!("{bump}; UPDATE {table} SET version = (SELECT version FROM catalog), {change}");
    fixture.execute(&sql).await;
    fixture.put_tenant("bystander").await;
}

async fn an_endpoint_of_a_newer_version_costs_its_tenant_and_nobody_else(fixture: StoreFixture) {
    // One process alone reads its catalog at the start, and is the newest there is.
    if !fixture.is_shared() {
        return;
    }
    let other = fixture.put_tenant("other").await;
    let (endpoint, kept) = (fixture.endpoint(json!({})).await, fixture.endpoint(json!({})).await);
    let theirs = fixture.endpoint_of(&other, json!({})).await;
    let (event_here, event_there) = (event("a").event().clone(), event("b").of(&other).event().clone());
    let status = format!("WHERE id = '{}'", endpoint.id.0);
    let newer = format!("status = replace(status, '\"active\"', '\"asleep\"') {status}");
    changed_by_a_newer_node(&fixture, "endpoints", &newer).await;

    let place = "endpoints.status has something at state";
    names(&fixture.store.matching(&event_here).unwrap_err(), place);
    let reason = fixture.store.unreadable_endpoint(&ours(), endpoint.id).expect("it is there").to_string();
    assert!(fixture.store.any_endpoint(endpoint.id).is_none() && reason.contains(place), "{reason}");
    assert!(fixture.store.any_endpoint(kept.id).is_some());
    assert_eq!(fixture.store.matching(&event_there).unwrap(), std::slice::from_ref(&theirs));
    let fixture = fixture.reopened().await;
    names(&fixture.store.matching(&event_here).unwrap_err(), place);
    assert_eq!(fixture.store.matching(&event_there).unwrap().len(), 1, "a start is no different");

    let known = format!("status = replace(status, '\"asleep\"', '\"active\"') {status}");
    changed_by_a_newer_node(&fixture, "endpoints", &known).await;
    assert_eq!(fixture.store.matching(&event_here).unwrap().len(), 2, "once it can be read, all is as before");
    assert_eq!(fixture.store.unreadable_endpoint(&ours(), endpoint.id), None);
}

async fn a_tenant_of_a_newer_version_keeps_what_is_known_of_it(fixture: StoreFixture) {
    if !fixture.is_shared() {
        return;
    }
    let endpoint = fixture.endpoint(json!({})).await;
    let event = event("a").event().clone();
    let before = fixture.store.tenant(&ours()).unwrap();
    changed_by_a_newer_node(&fixture, "tenants", "limits = '{\"jobs_asleep\":2}' WHERE id = 'default'").await;
    names(&fixture.store.matching(&event).unwrap_err(), "tenants.limits has something at jobs_asleep");
    assert_eq!(fixture.store.tenant(&ours()).unwrap(), before);
    let change = posthaste::model::tenant::Tenant::clone(&before);
    names(&fixture.store.put_tenant(&Initiator::Gateway, change).await.unwrap_err(), "tenants.limits");
    let fixture = fixture.reopened().await;
    names(&fixture.store.matching(&event).unwrap_err(), "tenants.limits");

    changed_by_a_newer_node(&fixture, "tenants", "limits = '{}' WHERE id = 'default'").await;
    let wanted: Vec<_> = fixture.store.matching(&event).unwrap().iter().map(|wants| wants.id).collect();
    assert_eq!(wanted, [endpoint.id], "its endpoints were there all the time");
}
