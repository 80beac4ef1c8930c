//! Authenticates callers by bearer token and checks their rights.
//!
//! The store has only hashes of tokens. For a tenant's token, one rule comes
//! before any other: a path that names another tenant is answered 404. So the
//! answer is the same for another tenant's resource, for a resource that does
//! not exist and for a tenant that does not exist.

use std::sync::Arc;

use aws_lc_rs::{constant_time, digest};
use axum::RequestExt;
use axum::extract::{FromRequestParts, MatchedPath, Path, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{ALLOW, AUTHORIZATION};
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use jiff::Timestamp;
use tracing::info;

use super::auth_failures::{self, AuthFailure};
use super::connection_slots::ConnectionStatus;
use super::problem::{Problem, ProblemCode};
use super::rate_limit_headers::whole_seconds;
use super::route_rights::{RouteAccess, RouteRights};
use super::{SharedApiState, accept, origin, server, status, unread_input};
use crate::lifecycle::admin_token::AdminToken;
use crate::metrics::AuthFailureKind;
use crate::model::audit::{CallerIdentity, Initiator};
use crate::model::headers::MASK;
use crate::model::id::{TenantId, TokenId};
use crate::model::named_enum::NamedEnum;
use crate::model::span::words;
use crate::model::token::{CODE_PREFIX, PREFIX, RequiredRight, Right, SESSION_PREFIX, Token, TokenKind};
use crate::store::{MissingResource, Store};

pub use super::token_uses::{TokenUses, write_uses, write_uses_periodically};
pub use crate::model::token::TokenHash;

/// Prefix of every admin token, so that secret scanners find leaked ones.
const ADMIN_PREFIX: &str = "pha_";
/// Beginnings of everything that must not be logged.
const SECRET_PREFIXES: [&str; 4] = [ADMIN_PREFIX, PREFIX, CODE_PREFIX, SESSION_PREFIX];

/// Returns a new admin token.
pub fn new_admin_token(random: [u8; 32]) -> String {
    format!("{ADMIN_PREFIX}{}", URL_SAFE_NO_PAD.encode(random))
}

/// Returns a new token. It contains its id, by which the store finds its hash.
pub fn new_token(id: TokenId, random: [u8; 32]) -> String {
    new_secret(PREFIX, id, random)
}

/// Returns a new token, code or session with this prefix.
pub fn new_secret(prefix: &str, id: TokenId, random: [u8; 32]) -> String {
    let id = id.to_string();
    let id = id.strip_prefix(TokenId::PREFIX).expect("an id begins with its prefix");
    format!("{prefix}{id}_{}", URL_SAFE_NO_PAD.encode(random))
}

/// Returns the id that a token, code or session contains; nothing proves yet that
/// it is valid.
pub fn id_in_token(prefix: &str, secret: &str) -> Option<TokenId> {
    let (id, _) = secret.strip_prefix(prefix)?.split_once('_')?;
    format!("{}{id}", TokenId::PREFIX).parse().ok()
}

/// Returns the hash of a token to store. A token has 256 random bits, so a fast
/// hash is enough.
pub fn hash(token: &str) -> TokenHash {
    let hash = digest::digest(&digest::SHA256, token.as_bytes());
    hash.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

fn is_hash_of(expected: &TokenHash, token: &str) -> bool {
    constant_time::verify_slices_are_equal(&hash(token), expected).is_ok()
}

/// Returns the stored token that a secret with this prefix is of, and whether the
/// secret is right. An unknown id is compared with a dummy hash, so that both
/// cases take the same time. Reads memory only.
pub fn find_stored_token(store: &dyn Store, prefix: &str, kind: TokenKind, secret: &str) -> (Option<Arc<Token>>, bool) {
    let known = id_in_token(prefix, secret).and_then(|id| store.token(id)).filter(|known| known.kind == kind);
    let is_match = is_hash_of(&known.as_ref().map_or([0; 32], |known| known.hash), secret);
    (known, is_match)
}

/// The caller of a request that a page makes in this process, in the name of the
/// person who is signed in. Nothing that comes over the network can have it.
#[derive(Debug, Clone)]
pub struct InProcessCaller(pub Principal);

/// The caller of a request.
#[derive(Debug, Clone)]
pub enum Principal {
    /// The holder of the admin token.
    Admin,
    /// The holder of this token, of a tenant or of the gateway.
    Token(Arc<Token>),
}

impl Principal {
    /// Returns the one tenant that the caller may see; none for the admin token
    /// and tokens of the gateway, which see all.
    pub fn tenant(&self) -> Option<&TenantId> {
        match self {
            Self::Admin => None,
            Self::Token(token) => token.tenant.as_ref(),
        }
    }

    /// Whether the caller sees whole URLs of endpoints, which may contain
    /// credentials.
    pub fn sees_urls(&self) -> bool {
        self.may(RouteAccess { need: RequiredRight::Right(Right::Manage), is_reading: false }, None).is_ok()
    }

    /// Refuses a caller who may not administer the gateway, for routes where
    /// only some requests need that right.
    pub fn must_be_admin(&self) -> Result<(), Problem> {
        self.may(RouteAccess { need: RequiredRight::Admin, is_reading: false }, None).map_err(|failure| failure.problem)
    }

    /// Whether the caller is the operator, who may learn which addresses the
    /// gateway reaches.
    pub fn is_operator(&self) -> bool {
        self.may(RouteAccess { need: RequiredRight::Admin, is_reading: true }, None).is_ok()
    }

    /// Whether the caller reads what people noted in the sentences of the gateway. A tenant does
    /// not: the note may be the operator's.
    pub fn sees_notes(&self) -> bool {
        self.tenant().is_none()
    }

    /// Whether the caller has access to a route of this tenant.
    pub fn has_access(&self, access: RouteAccess, tenant: &str) -> bool {
        self.may(access, Some(tenant)).is_ok()
    }

    /// Returns the identity that the audit log names.
    pub fn identity(&self) -> CallerIdentity {
        match self {
            Self::Admin => CallerIdentity::Admin,
            Self::Token(token) => CallerIdentity::Token { id: token.id, name: token.name.clone() },
        }
    }

    /// Checks the caller's rights for a route and the tenant that its path names.
    fn may(&self, access: RouteAccess, named_tenant: Option<&str>) -> Result<(), AuthFailure> {
        let Self::Token(token) = self else { return Ok(()) };
        let failed = |kind, problem| AuthFailure { kind, problem, token: Some(token.clone()) };
        // This check comes first, so that the answer reveals nothing else about another tenant.
        let own = token.tenant.as_ref();
        if own.zip(named_tenant).is_some_and(|(own, named)| named != own.as_str()) {
            return Err(failed(AuthFailureKind::OtherTenant, Problem::not_found(MissingResource::Tenant)));
        }
        if token.may(access.need, access.is_reading) {
            Ok(())
        } else {
            Err(failed(AuthFailureKind::MissingRight, missing_right(token, access.need)))
        }
    }
}

fn missing_right(token: &Token, need: RequiredRight) -> Problem {
    let granted: Vec<&str> = token.rights.iter().map(|right| Right::as_str(*right)).collect();
    let way_out = match need {
        RequiredRight::Admin => "use the admin token".to_owned(),
        RequiredRight::Tenants => "use the admin token, or one with tenants".to_owned(),
        RequiredRight::Nothing | RequiredRight::Right(_) => format!("use a token with {}", need.as_str()),
    };
    let detail =
        format!("this needs the right {}, and token {} has {}; {way_out}", need.as_str(), token.id, granted.join(", "));
    Problem::new(ProblemCode::MissingRight, detail)
}

/// Extracts the caller that [`admit`] has identified.
impl<S: Send + Sync> FromRequestParts<S> for Principal {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get::<Self>().cloned().ok_or_else(unauthenticated_problem)
    }
}

/// Extracts who asks for a change: the caller that [`admit`] has identified.
impl<S: Send + Sync> FromRequestParts<S> for Initiator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get::<Self>().cloned().ok_or_else(unauthenticated_problem)
    }
}

/// Middleware that authenticates and authorizes a request, then runs it with
/// its caller attached.
pub async fn admit(
    State((api, rights)): State<(SharedApiState, Arc<RouteRights>)>,
    mut request: Request,
    next: Next,
) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map(MatchedPath::as_str);
    let is_v1 = route.unwrap_or(request.uri().path()).starts_with("/v1/");
    let access = match route {
        Some(route) => rights.access_of(route, request.method()),
        None => Some(ANY_TOKEN),
    };
    if !is_v1 && access.is_none_or(|access| access.need == RequiredRight::Nothing) {
        if let Some(refusal) = refuse_public(&api, &rights, route, access, &request) {
            return refusal;
        }
        return next.run(request).await;
    }
    let principal = match caller_of(&api, &request) {
        Ok(principal) => principal,
        Err(AuthError::Failed(failure)) => return auth_failures::refuse(&api, &request, *failure).into_response(),
        Err(AuthError::StaleCatalog) => return refuse_stale_catalog().into_response(),
    };
    let connection = request.extensions().get::<ConnectionStatus>();
    if connection.is_some_and(|connection| !connection.mark_authenticated()) {
        return server::connections_full_problem().into_response();
    }
    let tenant = match &principal {
        Principal::Admin => None,
        Principal::Token(_) => named_tenant(route, &mut request).await,
    };
    if let Err(failure) = principal.may(access.unwrap_or(ANY_TOKEN), tenant.as_deref()) {
        return auth_failures::refuse(&api, &request, failure).into_response();
    }
    if access.is_none() {
        return wrong_method(&rights, route, &request);
    }
    if let Some(route) = route
        && let Some(problem) = unread_input::refuse(&rights, route, &mut request).await
    {
        return problem.into_response();
    }
    // Accepting an event writes no audit entry and has a rate of its own, so nothing below applies.
    if route.is_some_and(|route| accept::takes_events(request.method(), route)) {
        return next.run(request).await;
    }
    // The command line asks whose its token is before every command, also to send events. What a
    // page asks for is charged with the page.
    let is_free = route == Some("/v1/token") || request.extensions().get::<InProcessCaller>().is_some();
    if !is_free && let Err(problem) = charge_call(&api, &principal) {
        return problem.into_response();
    }
    run_as(&api, principal, request, next).await
}

/// Access to an unknown route or method: any valid token may learn that it is
/// not there.
const ANY_TOKEN: RouteAccess = RouteAccess { need: RequiredRight::Nothing, is_reading: true };

/// Refuses a request to a route that needs no token, if there is no such method
/// or the connection has a spare slot, where only health checks are answered.
fn refuse_public(
    api: &SharedApiState,
    rights: &RouteRights,
    route: Option<&str>,
    access: Option<RouteAccess>,
    request: &Request,
) -> Option<Response> {
    let connection = request.extensions().get::<ConnectionStatus>();
    if let Some(connection) = connection {
        connection.mark_unauthenticated(origin::of(request, &api.trusted_proxies).map(origin::network));
    }
    let is_spare = connection.is_some_and(ConnectionStatus::is_spare);
    if is_spare && !server::is_health_check(request.uri().path()) {
        return Some(server::connections_full_problem().into_response());
    }
    access.is_none().then(|| wrong_method(rights, route, request))
}

/// Runs a request with its caller attached, and logs it if it may change
/// something.
async fn run_as(api: &SharedApiState, principal: Principal, mut request: Request, next: Next) -> Response {
    let by = principal.identity();
    let caller = origin::caller(&request, &api.trusted_proxies, by.clone(), api.gateway.clock.wall());
    request.extensions_mut().insert(Initiator::Caller(Arc::new(caller)));
    request.extensions_mut().insert(principal);
    let (method, path) = (request.method().clone(), path_for_log(request.uri().path()));
    let response = next.run(request).await;
    if !method.is_safe() {
        let status = response.status().as_u16();
        info!(by = %by, status, "{method} {path} was answered {status}");
    }
    response
}

/// Counts a call by a tenant's token, or a page that is made for its session, against
/// the tenant's management rate. Tokens of the gateway have no such rate.
pub fn charge_call(api: &SharedApiState, principal: &Principal) -> Result<(), Problem> {
    let Some(tenant) = principal.tenant().and_then(|tenant| api.gateway.store.tenant(tenant)) else { return Ok(()) };
    let rate = api.gateway.management_rate(&tenant);
    api.gateway.intake.charge_call(&tenant.id, rate, api.gateway.clock.now()).map_err(|wait| {
        let detail = format!(
            "tenant {} may make {} calls per second besides events, {} at once (limits.management); try again in {}",
            tenant.id,
            rate.per_second,
            rate.burst,
            words(wait)
        );
        Problem::new(ProblemCode::RateLimited, detail)
            .retry_after(whole_seconds(wait).max(1))
            .naming_limit("management")
    })
}

/// Returns the tenant that the path names; an empty text if it cannot be read,
/// which is no tenant's id.
async fn named_tenant(route: Option<&str>, request: &mut Request) -> Option<String> {
    if !route?.contains("{tenant}") {
        return None;
    }
    let params = request.extract_parts::<Path<Vec<(String, String)>>>().await;
    let params = params.map(|Path(params)| params).unwrap_or_default();
    Some(params.into_iter().find(|(name, _)| name == "tenant").map(|(_, tenant)| tenant).unwrap_or_default())
}

/// Returns a path for the log, with tokens in it masked.
fn path_for_log(path: &str) -> String {
    let masked = |segment: &str| match SECRET_PREFIXES.into_iter().find(|prefix| segment.starts_with(prefix)) {
        Some(prefix) => format!("{prefix}{MASK}"),
        None => segment.to_owned(),
    };
    path.split('/').map(masked).collect::<Vec<_>>().join("/")
}

fn wrong_method(rights: &RouteRights, route: Option<&str>, request: &Request) -> Response {
    let allow = HeaderValue::try_from(rights.allowed_methods(route.unwrap_or_default()));
    let problem = status::unknown_method(request.method(), request.uri());
    problem.with_headers(allow.ok().map(|methods| (ALLOW, methods))).into_response()
}

/// How a program sends its token: the end of a sentence about a missing one.
pub const HOW_TO_SEND: &str =
    ": send `Authorization: Bearer <token>`; the first start wrote one to admin-token in the data directory";

fn unauthenticated_problem() -> Problem {
    Problem::new(ProblemCode::Unauthenticated, format!("a valid token is needed{HOW_TO_SEND}"))
}

/// Reason why a caller could not be identified.
enum AuthError {
    /// The request has no token, or an invalid one.
    Failed(Box<AuthFailure>),
    /// This node may have missed that the token was revoked.
    StaleCatalog,
}

/// Returns the refusal of a node that may have missed a revocation.
pub fn refuse_stale_catalog() -> Problem {
    Problem::new(
        ProblemCode::Unavailable,
        "this node has lost contact with the others, and cannot know which tokens are still valid; use another node",
    )
}

/// Identifies the caller: the one that a page of this process names, or else the
/// holder of the bearer token. Cookies are for the pages, and not looked at.
fn caller_of(api: &SharedApiState, request: &Request) -> Result<Principal, AuthError> {
    match request.extensions().get::<InProcessCaller>() {
        Some(InProcessCaller(principal)) => Ok(principal.clone()),
        None => identify(api, request.headers()),
    }
}

/// Returns the caller, if the token of the request is in order.
pub fn known_caller(api: &SharedApiState, headers: &HeaderMap) -> Option<Principal> {
    identify(api, headers).ok()
}

/// Identifies the caller by the token of the request.
fn identify(api: &SharedApiState, headers: &HeaderMap) -> Result<Principal, AuthError> {
    let failed = |kind, problem, token| AuthError::Failed(Box::new(AuthFailure { kind, problem, token }));
    let Some(token) = bearer_token(headers) else {
        let kind = if headers.contains_key(AUTHORIZATION) { AuthFailureKind::Wrong } else { AuthFailureKind::Missing };
        return Err(failed(kind, unauthenticated_problem(), None));
    };
    let (store, now) = (api.gateway.store.as_ref(), api.gateway.clock.wall());
    match check_token(store, &api.gateway.admin, token, now) {
        TokenCheck::Admin => Ok(Principal::Admin),
        TokenCheck::Valid(known) => {
            api.uses.record_use(known.id, now);
            Ok(Principal::Token(known))
        }
        TokenCheck::Wrong(known) => Err(failed(AuthFailureKind::Wrong, unauthenticated_problem(), known)),
        TokenCheck::Expired(known) => {
            let detail = format!("token {} has expired; ask for a new one", known.id);
            let problem = Problem::new(ProblemCode::Unauthenticated, detail);
            Err(failed(AuthFailureKind::Expired, problem, Some(known)))
        }
        TokenCheck::StaleCatalog => Err(AuthError::StaleCatalog),
    }
}

/// What a token proves about its holder.
pub enum TokenCheck {
    /// The token is the admin token.
    Admin,
    /// It is this token, and in force.
    Valid(Arc<Token>),
    /// It is not valid, and may name a token that exists.
    Wrong(Option<Arc<Token>>),
    /// The token was valid once.
    Expired(Arc<Token>),
    /// This node may have missed that it was revoked.
    StaleCatalog,
}

/// Checks a token of the API. Codes and sessions are none.
pub fn check_token(store: &dyn Store, admin: &AdminToken, token: &str, now: Timestamp) -> TokenCheck {
    if !token.starts_with(PREFIX) {
        return if is_hash_of(&admin.hash(), token) { TokenCheck::Admin } else { TokenCheck::Wrong(None) };
    }
    match find_stored_token(store, PREFIX, TokenKind::Api, token) {
        (Some(known), true) if known.is_over(now) => TokenCheck::Expired(known),
        (Some(_), true) if !store.is_current() => TokenCheck::StaleCatalog,
        (Some(known), true) => TokenCheck::Valid(known),
        (known, _) => TokenCheck::Wrong(known),
    }
}

fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::admin_token::AdminToken;

    #[test]
    fn one_token_is_in_force_at_a_time() {
        let admin = AdminToken::new(hash("old"));
        let is_valid = |token: &str| is_hash_of(&admin.hash(), token);
        assert!(is_valid("old") && !is_valid("new"));
        assert!(admin.replace(hash("new")) && !admin.replace(hash("new")));
        assert!(is_valid("new") && !is_valid("old"));
    }

    #[test]
    fn a_token_is_found_by_its_id_and_shows_nothing_else() {
        let id = TokenId::mint(Timestamp::from_second(1_700_000_000).unwrap(), 7);
        let token = new_token(id, [0xfb; 32]);
        assert!(token.starts_with("pht_") && token.len() == 4 + 26 + 1 + 43, "{token}");
        assert_eq!(id_in_token(PREFIX, &token), Some(id));
        for other in ["pht_", "pht_x_y", "pha_abc", &token[..30], &token.replace("pht_", "pht__")] {
            assert_eq!(id_in_token(PREFIX, other), None, "{other}");
        }
    }

    #[test]
    fn a_token_in_a_path_is_not_logged() {
        let id = TokenId::mint(Timestamp::from_second(1_700_000_000).unwrap(), 7);
        let (theirs, admins) = (new_token(id, [0xfb; 32]), new_admin_token([0xfb; 32]));
        assert_eq!(path_for_log(&format!("/v1/tokens/{theirs}")), "/v1/tokens/pht_***");
        assert_eq!(path_for_log(&format!("/v1/{admins}/x")), "/v1/pha_***/x");
        for prefix in [CODE_PREFIX, SESSION_PREFIX] {
            assert_eq!(path_for_log(&format!("/{}", new_secret(prefix, id, [1; 32]))), format!("/{prefix}***"));
        }
        assert_eq!(path_for_log(&format!("/v1/tokens/{id}")), format!("/v1/tokens/{id}"));
    }

    #[test]
    fn a_request_with_two_tokens_has_none() {
        let mut headers = HeaderMap::new();
        headers.append(AUTHORIZATION, HeaderValue::from_static("bearer a"));
        assert_eq!(bearer_token(&headers), Some("a"));
        headers.append(AUTHORIZATION, HeaderValue::from_static("Bearer b"));
        assert_eq!(bearer_token(&headers), None);
    }
}
