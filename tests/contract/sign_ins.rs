//! Sign-ins to the pages: a code is redeemed once, and a session is over as soon
//! as anything that it rests on is.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use posthaste::api::auth::{self, TokenUses, new_secret, new_token};
use posthaste::api::problem::ProblemCode;
use posthaste::api::sign_in::{NewSession, SignIns, Site};
use posthaste::api::sign_in_throttle::SignInThrottle;
use posthaste::lifecycle::admin_token::AdminToken;
use posthaste::model::audit::{AuditAction, Initiator};
use posthaste::model::id::{TenantId, TokenId};
use posthaste::model::portal_theme::PortalTheme;
use posthaste::model::sign_in::{SignIn, SignInMaker};
use posthaste::model::span::Span;
use posthaste::model::token::{CODE_PREFIX, PREFIX, Right, SESSION_PREFIX, Token, TokenKind};
use posthaste::store::{AuditQuery, Error, MissingResource, PageRequest, SignInScope, TokenScope};

use crate::access::caller;
use crate::fixture::{StoreFixture, at, ours};

for_every_store! {
    a_code_becomes_one_session_whoever_asks_at_once,
    a_session_is_found_after_closing_and_by_its_secret_alone,
    codes_and_sessions_are_no_tokens_of_the_api,
    a_session_is_over_when_what_it_rests_on_is,
    a_session_that_nobody_uses_is_over_unless_another_node_saw_it,
    a_session_that_watches_is_used_and_what_is_over_watches_no_more,
    a_session_has_no_more_than_its_maker,
    open_codes_are_limited_for_each_owner_alone,
    sign_ins_are_listed_and_ended_within_their_tenant,
    sign_ins_of_operators_are_listed_and_ended_apart_from_tenants,
    what_is_over_is_forgotten_without_a_record,
    signing_in_and_out_is_on_record,
    the_look_of_a_portal_is_kept_and_goes_with_its_tenant,
}

const ADMIN: &str = "pha_admin";

/// What a node has in memory.
struct Node {
    admin: AdminToken,
    uses: TokenUses,
    throttle: SignInThrottle,
}

impl Node {
    fn new() -> Self {
        Self { admin: AdminToken::new(auth::hash(ADMIN)), uses: TokenUses::default(), throttle: Default::default() }
    }

    fn at<'a>(&'a self, fixture: &'a StoreFixture, now: Timestamp) -> SignIns<'a> {
        let (admin, uses, throttle) = (&self.admin, &self.uses, &self.throttle);
        SignIns { store: fixture.store.as_ref(), admin, uses, throttle, now }
    }

    async fn finds(&self, fixture: &StoreFixture, secret: &str, now: Timestamp) -> bool {
        self.at(fixture, now).find_session(secret).await.unwrap().is_some()
    }
}

fn page(limit: usize) -> PageRequest {
    PageRequest { cursor: None, limit }
}

fn from() -> Option<IpAddr> {
    Some("192.0.2.7".parse().unwrap())
}

/// Creates a token of the API and returns it with its secret.
async fn api_token(fixture: &StoreFixture, tenant: Option<&TenantId>, rights: &[Right]) -> (Token, String) {
    let id = TokenId::mint(at(0), fixture.mint());
    let secret = new_token(id, [7; 32]);
    let token = Token {
        id,
        kind: TokenKind::Api,
        sign_in: None,
        tenant: tenant.cloned(),
        name: "the office".into(),
        rights: rights.to_vec(),
        hash: auth::hash(&secret),
        created_at: at(0),
        expires_at: None,
        used_at: None,
    };
    fixture.store.create_token(&Initiator::Gateway, token.clone()).await.unwrap();
    (token, secret)
}

/// Returns an open code for the portal of a tenant, and its secret.
fn new_code(fixture: &StoreFixture, tenant: &TenantId, maker: SignInMaker, now: Timestamp) -> (Token, String) {
    let id = TokenId::mint(now, fixture.mint());
    let secret = new_secret(CODE_PREFIX, id, [9; 32]);
    let theme = Some(PortalTheme { name: Some("Acme".into()), ..PortalTheme::default() });
    let sign_in = SignIn {
        site: Site::Portal,
        maker,
        session_for: Span::secs(3_600),
        return_url: Some("https://app.example/".into()),
        theme,
    };
    let code = Token {
        id,
        kind: TokenKind::Code,
        sign_in: Some(sign_in),
        tenant: Some(tenant.clone()),
        name: "portal link of the office".into(),
        rights: vec![Right::Read],
        hash: auth::hash(&secret),
        created_at: now,
        expires_at: Some(now + Duration::from_secs(120)),
        used_at: None,
    };
    (code, secret)
}

async fn open_code(fixture: &StoreFixture, tenant: &TenantId, maker: SignInMaker, now: Timestamp) -> (Token, String) {
    let (code, secret) = new_code(fixture, tenant, maker, now);
    fixture.store.create_sign_in(&Initiator::Gateway, code.clone()).await.unwrap();
    (code, secret)
}

fn admin(node: &Node) -> SignInMaker {
    SignInMaker::Admin(node.admin.fingerprint())
}

async fn a_code_becomes_one_session_whoever_asks_at_once(fixture: StoreFixture) {
    let node = Node::new();
    let (code, secret) = open_code(&fixture, &ours(), admin(&node), at(10)).await;
    let sign_ins = node.at(&fixture, at(20));
    let tries = (0..8).map(|_| sign_ins.redeem_code(&secret, from(), "req_1"));
    let tries = futures_util::future::join_all(tries).await;
    let mut begun: Vec<NewSession> = tries.into_iter().filter_map(Result::ok).collect();
    assert_eq!(begun.len(), 1, "one of eight got it");
    let NewSession { secret, session } = begun.remove(0);
    assert!(secret.starts_with(SESSION_PREFIX), "{secret}");
    assert_eq!((session.id(), session.tenant(), session.site()), (code.id, Some(&ours()), Site::Portal));
    assert_eq!(session.ends_at(), at(20 + 3_600));
    assert_eq!(session.return_url(), Some("https://app.example/"));
    assert_eq!(session.theme().and_then(|theme| theme.name.as_deref()), Some("Acme"));
    assert!(node.finds(&fixture, &secret, at(30)).await);
    // The store itself lets nobody through who has read the code before it was used.
    let again = Token { kind: TokenKind::Session, hash: [1; 32], created_at: at(21), ..code.clone() };
    let refused = fixture.store.redeem_code(&Initiator::Gateway, code.hash, again).await;
    assert!(matches!(refused, Err(Error::NotFound(MissingResource::Token))), "{refused:?}");

    let (_, late) = open_code(&fixture, &ours(), admin(&node), at(40)).await;
    let refused = node.at(&fixture, at(160)).redeem_code(&late, from(), "req_1").await.map(|_| ()).unwrap_err();
    assert_eq!(refused.code(), ProblemCode::Unauthenticated, "its two minutes are over");
}

async fn a_session_is_found_after_closing_and_by_its_secret_alone(fixture: StoreFixture) {
    let node = Node::new();
    let begun = node.at(&fixture, at(10)).sign_in_with_token(ADMIN, from(), "req_1").await.unwrap();
    assert_eq!((begun.session.site(), begun.session.tenant()), (Site::Operator, None));
    assert_eq!((begun.session.rights(), begun.session.ends_at()), ([Right::Admin].as_slice(), at(10 + 12 * 3_600)));
    let fixture = fixture.reopened().await;
    assert!(node.finds(&fixture, &begun.secret, at(20)).await);
    let id = begun.session.id();
    let others = [
        new_secret(SESSION_PREFIX, id, [0; 32]),
        begun.secret.replace(SESSION_PREFIX, PREFIX),
        begun.secret.replace(SESSION_PREFIX, CODE_PREFIX),
        format!("{}x", begun.secret),
        begun.secret[..begun.secret.len() - 1].to_owned(),
        SESSION_PREFIX.to_owned(),
        String::new(),
        "\0".repeat(300),
    ];
    for other in others {
        assert!(!node.finds(&fixture, &other, at(20)).await, "{other:?}");
    }
}

async fn codes_and_sessions_are_no_tokens_of_the_api(fixture: StoreFixture) {
    let node = Node::new();
    let (code, code_secret) = open_code(&fixture, &ours(), admin(&node), at(10)).await;
    let NewSession { secret, session } =
        node.at(&fixture, at(10)).sign_in_with_token(ADMIN, from(), "req_1").await.unwrap();
    for text in [&code_secret, &secret] {
        let as_token = format!("{PREFIX}{}", &text[PREFIX.len()..]);
        for text in [text, &as_token] {
            let checked = auth::check_token(fixture.store.as_ref(), &node.admin, text, at(11));
            assert!(matches!(checked, auth::TokenCheck::Wrong(None)), "{text}");
            let refused = node.at(&fixture, at(11)).sign_in_with_token(text, from(), "req_1").await;
            assert!(refused.is_err(), "{text}");
        }
    }
    assert_eq!(fixture.store.tokens(TokenScope::All, page(10)).await.unwrap().data, []);
    assert_eq!(fixture.store.usage_here(&ours()).unwrap().tokens, 0);
    for id in [code.id, session.id()] {
        let refused = fixture.store.revoke_token(&Initiator::Gateway, id, TokenScope::All, at(12)).await;
        assert!(matches!(refused, Err(Error::NotFound(MissingResource::Token))), "{refused:?}");
    }
    let fixture = fixture.reopened().await;
    assert_eq!(fixture.store.usage_here(&ours()).unwrap().tokens, 0);
    let refused = node.at(&fixture, at(11)).redeem_code(&secret, from(), "req_1").await;
    assert!(refused.is_err(), "a session is no code");
}

async fn a_session_is_over_when_what_it_rests_on_is(fixture: StoreFixture) {
    let node = Node::new();
    let acme = fixture.put_tenant("acme").await;
    let (maker, token) = api_token(&fixture, Some(&acme), &[Right::Read]).await;
    let begin = async |token: &str| node.at(&fixture, at(10)).sign_in_with_token(token, from(), "req_1").await.unwrap();

    // Its maker is revoked.
    let first = begin(&token).await;
    assert!(node.finds(&fixture, &first.secret, at(11)).await);
    let (_, code) = open_code(&fixture, &acme, SignInMaker::Token(maker.id), at(10)).await;
    fixture.store.revoke_token(&Initiator::Gateway, maker.id, TokenScope::All, at(11)).await.unwrap();
    assert!(!node.finds(&fixture, &first.secret, at(12)).await);
    assert!(node.at(&fixture, at(12)).redeem_code(&code, from(), "req_1").await.is_err());

    // The admin token is replaced.
    let second = begin(ADMIN).await;
    assert!(node.finds(&fixture, &second.secret, at(11)).await);
    let other = Node { admin: AdminToken::new(auth::hash("pha_new")), ..Node::new() };
    assert!(!other.finds(&fixture, &second.secret, at(11)).await);

    // It is revoked, or its person signs out.
    node.at(&fixture, at(12)).end_session(&second.session, from(), "req_1").await.unwrap();
    assert!(!node.finds(&fixture, &second.secret, at(13)).await);
    node.at(&fixture, at(12)).end_session(&second.session, from(), "req_1").await.unwrap();

    // Its tenant is deleted, and another of that name is no heir.
    let (_, token) = api_token(&fixture, Some(&acme), &[Right::Read]).await;
    let third = begin(&token).await;
    fixture.store.delete_tenant(&Initiator::Gateway, &acme, at(14)).await.unwrap();
    fixture.put_tenant("acme").await;
    assert!(!node.finds(&fixture, &third.secret, at(15)).await);

    // Its end has come.
    let fourth = begin(ADMIN).await;
    for minutes in (20..12 * 60).step_by(20) {
        assert!(node.finds(&fixture, &fourth.secret, at(minutes * 60)).await, "{minutes}");
    }
    assert!(!node.finds(&fixture, &fourth.secret, at(10 + 12 * 3_600)).await);
}

async fn a_session_that_nobody_uses_is_over_unless_another_node_saw_it(fixture: StoreFixture) {
    let node = Node::new();
    let begun = node.at(&fixture, at(0)).sign_in_with_token(ADMIN, from(), "req_1").await.unwrap();
    assert!(node.finds(&fixture, &begun.secret, at(1_799)).await, "within half an hour");
    assert!(node.finds(&fixture, &begun.secret, at(1_799 + 1_799)).await, "counted from its last use");
    assert!(!node.finds(&fixture, &begun.secret, at(1_799 + 1_799 + 1_800)).await);
    assert!(!node.finds(&fixture, &begun.secret, at(1_799 + 1_799 + 1_801)).await, "looking for it is no use of it");
    // Another node has seen it meanwhile, and told the store.
    fixture.store.use_tokens(vec![(begun.session.id(), at(4_000))]).await.unwrap();
    assert!(node.finds(&fixture, &begun.secret, at(5_500)).await);
    assert!(Node::new().finds(&fixture, &begun.secret, at(5_799)).await, "a node that never saw it asks the store");
    assert!(!Node::new().finds(&fixture, &begun.secret, at(5_800)).await);
}

async fn a_session_that_watches_is_used_and_what_is_over_watches_no_more(fixture: StoreFixture) {
    let node = Node::new();
    let begun = node.at(&fixture, at(0)).sign_in_with_token(ADMIN, from(), "req_1").await.unwrap();
    let watcher = begun.session.principal();
    let maker = node.at(&fixture, at(0)).maker_of(&watcher);
    assert!(node.at(&fixture, at(1_799)).may_watch(&watcher, &maker));
    assert!(node.finds(&fixture, &begun.secret, at(1_799 + 1_799)).await, "counted from when it watched last");
    let scope = SignInScope::One { id: begun.session.id(), tenant: None };
    fixture.store.end_sign_ins(&Initiator::Gateway, scope, AuditAction::SessionRevoked, at(3_600)).await.unwrap();
    assert!(!node.at(&fixture, at(3_600)).may_watch(&watcher, &maker), "it was revoked");
    let begun = node.at(&fixture, at(3_600)).sign_in_with_token(ADMIN, from(), "req_1").await.unwrap();
    let watcher = begun.session.principal();
    assert!(!node.at(&fixture, begun.session.ends_at()).may_watch(&watcher, &maker), "it has ended");
}

async fn a_session_has_no_more_than_its_maker(fixture: StoreFixture) {
    let node = Node::new();
    let (_, token) = api_token(&fixture, Some(&ours()), &[Right::Manage, Right::Portal]).await;
    let begun = node.at(&fixture, at(10)).sign_in_with_token(&token, from(), "req_1").await.unwrap();
    assert_eq!((begun.session.site(), begun.session.tenant()), (Site::Portal, Some(&ours())));
    assert_eq!(begun.session.rights(), [Right::Manage], "links are made by tokens");
    assert_eq!(begun.session.ends_at(), at(10 + 3_600));
    let (_, token) = api_token(&fixture, None, &[Right::AdminRead]).await;
    let begun = node.at(&fixture, at(10)).sign_in_with_token(&token, from(), "req_1").await.unwrap();
    assert_eq!((begun.session.site(), begun.session.rights()), (Site::Operator, [Right::AdminRead].as_slice()));
    let (_, token) = api_token(&fixture, Some(&ours()), &[Right::Publish]).await;
    let refused = node.at(&fixture, at(10)).sign_in_with_token(&token, from(), "req_1").await.map(|_| ()).unwrap_err();
    assert_eq!(refused.code(), ProblemCode::MissingRight, "there is nothing to see with it");
    // A maker that ends soon takes what it made along.
    let id = TokenId::mint(at(0), fixture.mint());
    let secret = new_token(id, [3; 32]);
    let (known, _) = new_code(&fixture, &ours(), admin(&node), at(0));
    let short = Token {
        id,
        kind: TokenKind::Api,
        sign_in: None,
        hash: auth::hash(&secret),
        expires_at: Some(at(100)),
        ..known
    };
    fixture.store.create_token(&Initiator::Gateway, short).await.unwrap();
    let begun = node.at(&fixture, at(10)).sign_in_with_token(&secret, from(), "req_1").await.unwrap();
    assert_eq!(begun.session.ends_at(), at(100));
}

async fn open_codes_are_limited_for_each_owner_alone(fixture: StoreFixture) {
    let node = Node::new();
    let acme = fixture.put_tenant("acme").await;
    let (first, _) = open_code(&fixture, &ours(), admin(&node), at(10)).await;
    // As many as may be open, without a thousand changes of the catalog.
    let columns = "tenant, name, rights, hash, created_at, expires_at, kind, sign_in";
    let copy = if fixture.is_shared() {
        format!(
            "INSERT INTO posthaste.tokens (id, {columns}, version)
             SELECT gen_random_uuid(), {columns}, version FROM posthaste.tokens, generate_series(1, 999)"
        )
    } else {
        format!(
            "INSERT INTO tokens (id, {columns})
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 999)
             SELECT randomblob(16), {columns} FROM tokens, n"
        )
    };
    fixture.execute(&copy).await;
    let (another, _) = new_code(&fixture, &ours(), admin(&node), at(11));
    let refused = fixture.store.create_sign_in(&Initiator::Gateway, another.clone()).await;
    assert!(matches!(refused, Err(Error::TooManySignIns { kind: TokenKind::Code, most: 1_000 })), "{refused:?}");
    open_code(&fixture, &acme, admin(&node), at(11)).await;
    // Room comes with what is revoked, and with what is over.
    let scope = SignInScope::One { id: first.id, tenant: Some(ours()) };
    fixture.store.end_sign_ins(&Initiator::Gateway, scope, AuditAction::LinkRevoked, at(12)).await.unwrap();
    open_code(&fixture, &ours(), admin(&node), at(12)).await;
    let refused = fixture.store.create_sign_in(&Initiator::Gateway, another).await;
    assert!(matches!(refused, Err(Error::TooManySignIns { .. })), "{refused:?}");
    open_code(&fixture, &ours(), admin(&node), at(131)).await;
}

async fn sign_ins_are_listed_and_ended_within_their_tenant(fixture: StoreFixture) {
    let node = Node::new();
    let acme = fixture.put_tenant("acme").await;
    let (theirs, _) = open_code(&fixture, &acme, admin(&node), at(10)).await;
    let (first, secret) = open_code(&fixture, &ours(), admin(&node), at(11)).await;
    let (second, _) = open_code(&fixture, &ours(), admin(&node), at(12)).await;
    let list = async |tenant: &TenantId, kind, now| {
        let tokens = fixture.store.sign_ins(Some(tenant), kind, now, page(10)).await.unwrap().data;
        tokens.into_iter().map(|token| token.id).collect::<Vec<_>>()
    };
    assert_eq!(list(&ours(), TokenKind::Code, at(20)).await, [second.id, first.id]);
    let begun = node.at(&fixture, at(20)).redeem_code(&secret, from(), "req_1").await.unwrap();
    assert_eq!(list(&ours(), TokenKind::Code, at(21)).await, [second.id]);
    assert_eq!(list(&ours(), TokenKind::Session, at(21)).await, [first.id]);
    assert_eq!(list(&acme, TokenKind::Session, at(21)).await, []);
    assert_eq!(list(&ours(), TokenKind::Code, at(132)).await, [], "what is over is not listed");

    let end =
        async |scope| fixture.store.end_sign_ins(&Initiator::Gateway, scope, AuditAction::SessionRevoked, at(30)).await;
    let foreign = end(SignInScope::One { id: first.id, tenant: Some(acme.clone()) }).await;
    assert!(matches!(foreign, Err(Error::NotFound(MissingResource::Token))), "{foreign:?}");
    assert!(node.finds(&fixture, &begun.secret, at(31)).await);
    assert_eq!(end(SignInScope::AllOf(ours())).await.unwrap(), 2, "sessions and open links");
    assert!(!node.finds(&fixture, &begun.secret, at(31)).await);
    assert_eq!(end(SignInScope::AllOf(ours())).await.unwrap(), 0);
    assert_eq!(list(&acme, TokenKind::Code, at(31)).await, [theirs.id]);
    let fixture = fixture.reopened().await;
    assert!(!node.finds(&fixture, &begun.secret, at(31)).await, "also after closing");
}

async fn sign_ins_of_operators_are_listed_and_ended_apart_from_tenants(fixture: StoreFixture) {
    let node = Node::new();
    let (theirs, _) = open_code(&fixture, &ours(), admin(&node), at(10)).await;
    let first = node.at(&fixture, at(11)).sign_in_with_token(ADMIN, from(), "req_1").await.unwrap();
    let second = node.at(&fixture, at(12)).sign_in_with_token(ADMIN, from(), "req_2").await.unwrap();
    let list = async |kind| {
        let tokens = fixture.store.sign_ins(None, kind, at(20), page(10)).await.unwrap().data;
        tokens.into_iter().map(|token| token.id).collect::<Vec<_>>()
    };
    assert_eq!(list(TokenKind::Session).await, [second.session.id(), first.session.id()]);
    assert_eq!(list(TokenKind::Code).await, [], "those of tenants are not listed");
    let end =
        async |scope| fixture.store.end_sign_ins(&Initiator::Gateway, scope, AuditAction::SessionRevoked, at(30)).await;
    let foreign = end(SignInScope::OneOfOperators(theirs.id)).await;
    assert!(matches!(foreign, Err(Error::NotFound(MissingResource::Token))), "{foreign:?}");
    assert_eq!(end(SignInScope::OneOfOperators(first.session.id())).await.unwrap(), 1);
    assert!(!node.finds(&fixture, &first.secret, at(31)).await);
    assert!(node.finds(&fixture, &second.secret, at(31)).await);
    assert_eq!(end(SignInScope::AllOfOperators).await.unwrap(), 1);
    assert!(!node.finds(&fixture, &second.secret, at(31)).await);
    assert_eq!(end(SignInScope::AllOfOperators).await.unwrap(), 0);
    assert!(fixture.store.token(theirs.id).is_some(), "the tenant's stays");
}

async fn what_is_over_is_forgotten_without_a_record(fixture: StoreFixture) {
    let node = Node::new();
    open_code(&fixture, &ours(), admin(&node), at(10)).await;
    let begun = node.at(&fixture, at(10)).sign_in_with_token(ADMIN, from(), "req_1").await.unwrap();
    let used = node.at(&fixture, at(10)).sign_in_with_token(ADMIN, from(), "req_1").await.unwrap();
    let (kept, _) = api_token(&fixture, Some(&ours()), &[Right::Read]).await;
    let recorded = fixture.store.audit(AuditQuery::default(), page(100)).await.unwrap().data.len();
    let forget = async |now, idle_before| fixture.store.forget_sign_ins(now, idle_before, 100).await.unwrap();
    assert_eq!(forget(at(100), at(5)).await, 0);
    assert_eq!(forget(at(130), at(5)).await, 1, "the code");
    fixture.store.use_tokens(vec![(used.session.id(), at(5_000))]).await.unwrap();
    assert_eq!(forget(at(7_000), at(4_000)).await, 1, "the session that nobody used");
    assert!(fixture.store.token(begun.session.id()).is_none() && fixture.store.token(used.session.id()).is_some());
    assert_eq!(forget(at(10 + 12 * 3_600), at(4_000)).await, 1, "the other one, at its end");
    assert_eq!(forget(at(10 + 12 * 3_600), at(4_000)).await, 0);
    assert_eq!(fixture.store.audit(AuditQuery::default(), page(100)).await.unwrap().data.len(), recorded);
    let fixture = fixture.reopened().await;
    assert!(fixture.store.token(used.session.id()).is_none() && fixture.store.token(kept.id).is_some());
}

async fn signing_in_and_out_is_on_record(fixture: StoreFixture) {
    let node = Node::new();
    let (code, _) = new_code(&fixture, &ours(), admin(&node), at(10));
    fixture.store.create_sign_in(&caller(at(10)), code.clone()).await.unwrap();
    let secret = new_secret(CODE_PREFIX, code.id, [9; 32]);
    let begun = node.at(&fixture, at(11)).redeem_code(&secret, from(), "req_2").await.unwrap();
    node.at(&fixture, at(12)).end_session(&begun.session, from(), "req_3").await.unwrap();
    let (link, _) = new_code(&fixture, &ours(), admin(&node), at(13));
    fixture.store.create_sign_in(&Initiator::Gateway, link.clone()).await.unwrap();
    let scope = SignInScope::One { id: link.id, tenant: Some(ours()) };
    fixture.store.end_sign_ins(&caller(at(13)), scope, AuditAction::LinkRevoked, at(13)).await.unwrap();
    open_code(&fixture, &ours(), admin(&node), at(13)).await;
    let scope = SignInScope::AllOf(ours());
    fixture.store.end_sign_ins(&caller(at(14)), scope, AuditAction::SessionRevoked, at(14)).await.unwrap();
    let query = AuditQuery { tenant: Some(ours()), ..AuditQuery::default() };
    let mut entries = fixture.store.audit(query, page(100)).await.unwrap().data;
    entries.reverse();
    let told: Vec<(AuditAction, &str, &str)> = entries
        .iter()
        .map(|entry| (entry.record.action, entry.record.resource.as_str(), entry.record.by.as_str()))
        .collect();
    let (id, other) = (code.id.to_string(), link.id.to_string());
    let person = format!("{id} (portal link of the office)");
    assert_eq!(
        told,
        [
            (AuditAction::LinkCreated, id.as_str(), "admin"),
            (AuditAction::SessionStarted, id.as_str(), person.as_str()),
            (AuditAction::SessionEnded, id.as_str(), person.as_str()),
            (AuditAction::LinkRevoked, other.as_str(), "admin"),
            (AuditAction::SessionRevoked, ours().as_str(), "admin"),
        ]
    );
    assert_eq!(entries[1].record.fields, ["read"]);
    assert_eq!((entries[1].record.from, entries[1].record.request_id.as_str()), (from(), "req_2"));
}

async fn the_look_of_a_portal_is_kept_and_goes_with_its_tenant(fixture: StoreFixture) {
    let acme = fixture.put_tenant("acme").await;
    let store = Arc::clone(&fixture.store);
    assert_eq!(store.portal_theme(&acme).await.unwrap(), PortalTheme::default());
    assert_eq!(store.portal_logo(&acme).await.unwrap(), None);
    assert!(!store.put_portal_logo(&caller(at(1)), &acme, None).await.unwrap(), "there was none");
    assert!(!store.put_portal_logo(&caller(at(1)), &acme, Some(vec![1, 2])).await.unwrap());
    let theme = PortalTheme { name: Some("Acme".into()), ..PortalTheme::default() };
    store.put_portal_theme(&caller(at(2)), &acme, theme.clone()).await.unwrap();
    assert!(store.put_portal_logo(&caller(at(3)), &acme, Some(vec![3])).await.unwrap());
    drop(store);
    let fixture = fixture.reopened().await;
    let store = &fixture.store;
    assert_eq!(store.portal_theme(&acme).await.unwrap(), theme);
    assert_eq!(store.portal_logo(&acme).await.unwrap(), Some(vec![3]));
    assert_eq!(store.portal_logo(&ours()).await.unwrap(), None);
    let query = AuditQuery { tenant: Some(acme.clone()), ..AuditQuery::default() };
    let entries = store.audit(query, page(100)).await.unwrap().data;
    let fields: Vec<&[String]> = entries.iter().map(|entry| entry.record.fields.as_slice()).collect();
    assert_eq!(fields, [["portal_logo"], ["portal"], ["portal_logo"]]);
    store.delete_tenant(&Initiator::Gateway, &acme, at(4)).await.unwrap();
    fixture.put_tenant("acme").await;
    assert_eq!(store.portal_theme(&acme).await.unwrap(), PortalTheme::default());
    let nobody: TenantId = "nobody".parse().unwrap();
    let refused = store.put_portal_theme(&Initiator::Gateway, &nobody, theme).await;
    assert!(matches!(refused, Err(Error::NotFound(MissingResource::Tenant))), "{refused:?}");
}
