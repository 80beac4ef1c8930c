//! Authenticates callers by bearer token and checks their rights.
//!
//! The store has only hashes of tokens. For a tenant's token, one rule comes
//! before any other: a path that names another tenant is answered 404. So the
//! answer is the same for another tenant's resource, for a resource that does
//! not exist and for a tenant that does not exist.

use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

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
use tracing::{info, warn};

use super::auth_failures::{self, AuthFailure};
use super::connection_slots::ConnectionStatus;
use super::problem::{Problem, ProblemCode};
use super::rate_limit_headers::whole_seconds;
use super::route_rights::{RouteAccess, RouteRights};
use super::{SharedApiState, accept, origin, server, status, unread_input};
use crate::metrics::AuthFailureKind;
use crate::model::audit::{CallerIdentity, Initiator};
use crate::model::headers::MASK;
use crate::model::id::{TenantId, TokenId};
use crate::model::named_enum::NamedEnum;
use crate::model::span::words;
use crate::model::token::{PREFIX, RequiredRight, Right, Token};
use crate::store::MissingResource;

pub use crate::model::token::TokenHash;

/// Prefix of every admin token, so that secret scanners find leaked ones.
const ADMIN_PREFIX: &str = "pha_";
/// Interval at which the last use of tokens is written to the store.
const USES_WRITE_INTERVAL: Duration = Duration::from_secs(60);

/// The hash of the admin token in force. Another node may replace it.
#[derive(Debug)]
pub struct AdminToken(RwLock<TokenHash>);

impl AdminToken {
    /// Makes the token with this hash the admin token.
    pub fn new(hash: TokenHash) -> Self {
        Self(RwLock::new(hash))
    }

    /// Replaces the admin token. Returns whether that changed anything.
    pub fn replace(&self, hash: TokenHash) -> bool {
        let mut current = self.0.write();
        std::mem::replace(&mut *current, hash) != hash
    }

    fn matches(&self, token: &str) -> bool {
        let current = *self.0.read();
        is_hash_of(&current, token)
    }
}

/// Returns a new admin token.
pub fn new_admin_token(random: [u8; 32]) -> String {
    format!("{ADMIN_PREFIX}{}", URL_SAFE_NO_PAD.encode(random))
}

/// Returns a new token. It contains its id, by which the store finds its hash.
pub fn new_token(id: TokenId, random: [u8; 32]) -> String {
    let id = id.to_string();
    let id = id.strip_prefix(TokenId::PREFIX).expect("an id begins with its prefix");
    format!("{PREFIX}{id}_{}", URL_SAFE_NO_PAD.encode(random))
}

/// Returns the id that a token contains; nothing proves yet that the token is valid.
fn id_of(token: &str) -> Option<TokenId> {
    let (id, _) = token.strip_prefix(PREFIX)?.split_once('_')?;
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

    fn identity(&self) -> CallerIdentity {
        match self {
            Self::Admin => CallerIdentity::Admin,
            Self::Token(token) => CallerIdentity::Token { id: token.id, name: token.name.clone() },
        }
    }

    /// Checks the caller's rights for a route and the tenant that its path names.
    fn may(&self, access: RouteAccess, named_tenant: Option<&str>) -> Result<(), AuthFailure> {
        let Self::Token(token) = self else { return Ok(()) };
        let failed = |kind, problem| AuthFailure { kind, problem, token: Some(token.clone()) };
        // This check comes first, so that the answer tells nothing else about another tenant.
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
        parts.extensions.get::<Self>().cloned().ok_or_else(unauthenticated)
    }
}

/// Extracts who asks for a change: the caller that [`admit`] has identified.
impl<S: Send + Sync> FromRequestParts<S> for Initiator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get::<Self>().cloned().ok_or_else(unauthenticated)
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
    let principal = match identify(&api, request.headers()) {
        Ok(principal) => principal,
        Err(AuthError::Failed(failure)) => return auth_failures::refuse(&api, &request, *failure).into_response(),
        Err(AuthError::StaleCatalog) => return refuse_stale_catalog().into_response(),
    };
    let connection = request.extensions().get::<ConnectionStatus>();
    if connection.is_some_and(|connection| !connection.mark_authenticated()) {
        return server::full().into_response();
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
    // The command line asks whose its token is before every command, also to send events.
    if route != Some("/v1/token")
        && let Err(problem) = charge(&api, &principal)
    {
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
        return Some(server::full().into_response());
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

/// Counts a call by a tenant's token against the tenant's management rate.
/// Tokens of the gateway have no such rate.
fn charge(api: &SharedApiState, principal: &Principal) -> Result<(), Problem> {
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
    let masked = |segment: &str| match [ADMIN_PREFIX, PREFIX].into_iter().find(|prefix| segment.starts_with(prefix)) {
        Some(prefix) => format!("{prefix}{MASK}"),
        None => segment.to_owned(),
    };
    path.split('/').map(masked).collect::<Vec<_>>().join("/")
}

fn wrong_method(rights: &RouteRights, route: Option<&str>, request: &Request) -> Response {
    let allow = HeaderValue::try_from(rights.allowed(route.unwrap_or_default()));
    let problem = status::unknown_method(request.method(), request.uri());
    problem.with_headers(allow.ok().map(|methods| (ALLOW, methods))).into_response()
}

fn unauthenticated() -> Problem {
    Problem::new(
        ProblemCode::Unauthenticated,
        "a valid token is needed: send `Authorization: Bearer <token>`; the first start wrote one to admin-token in the data directory",
    )
}

/// Reason why a caller could not be identified.
enum AuthError {
    /// The request has no token, or an invalid one.
    Failed(Box<AuthFailure>),
    /// This node may have missed that the token was revoked.
    StaleCatalog,
}

fn refuse_stale_catalog() -> Problem {
    Problem::new(
        ProblemCode::Unavailable,
        "this node has lost touch with the others, and cannot tell which tokens are still good; ask another one",
    )
}

/// Identifies the caller by the token of the request.
fn identify(api: &SharedApiState, headers: &HeaderMap) -> Result<Principal, AuthError> {
    let failed = |kind, problem, token| AuthError::Failed(Box::new(AuthFailure { kind, problem, token }));
    let Some(token) = bearer(headers) else {
        let kind = if headers.contains_key(AUTHORIZATION) { AuthFailureKind::Wrong } else { AuthFailureKind::Missing };
        return Err(failed(kind, unauthenticated(), None));
    };
    if !token.starts_with(PREFIX) {
        return if api.admin.matches(token) {
            Ok(Principal::Admin)
        } else {
            Err(failed(AuthFailureKind::Wrong, unauthenticated(), None))
        };
    }
    let store = &api.gateway.store;
    let known = id_of(token).and_then(|id| store.token(id));
    // An unknown id is compared with a dummy hash, so that both cases take the same time.
    let is_match = is_hash_of(&known.as_ref().map_or([0; 32], |known| known.hash), token);
    let Some(known) = known.clone().filter(|_| is_match) else {
        return Err(failed(AuthFailureKind::Wrong, unauthenticated(), known));
    };
    let now = api.gateway.clock.wall();
    if known.is_over(now) {
        let detail = format!("token {} has expired; ask for a new one", known.id);
        return Err(failed(AuthFailureKind::Expired, Problem::new(ProblemCode::Unauthenticated, detail), Some(known)));
    }
    if !store.is_current() {
        return Err(AuthError::StaleCatalog);
    }
    api.uses.record_use(known.id, now);
    Ok(Principal::Token(known))
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The last use of each token on this node. A request only updates memory; a
/// background task writes to the store.
#[derive(Debug, Default)]
pub struct TokenUses(Mutex<HashMap<TokenId, TokenUse>>);

#[derive(Debug, Clone, Copy)]
struct TokenUse {
    at: Timestamp,
    is_written: bool,
}

impl TokenUses {
    /// Records the use of a token, at most once a minute.
    fn record_use(&self, id: TokenId, now: Timestamp) {
        let mut uses = self.0.lock();
        let is_due = uses.get(&id).is_none_or(|last| now.duration_since(last.at).unsigned_abs() >= USES_WRITE_INTERVAL);
        if is_due {
            uses.insert(id, TokenUse { at: now, is_written: false });
        }
    }

    /// Returns when a token was last used on this node.
    pub fn last(&self, id: TokenId) -> Option<Timestamp> {
        self.0.lock().get(&id).map(|last| last.at)
    }

    fn unwritten(&self) -> Vec<(TokenId, Timestamp)> {
        let uses = self.0.lock();
        uses.iter().filter(|(_, last)| !last.is_written).map(|(id, last)| (*id, last.at)).collect()
    }

    fn mark_written(&self, written: &[(TokenId, Timestamp)]) {
        let mut uses = self.0.lock();
        for (id, at) in written {
            if let Some(last) = uses.get_mut(id).filter(|last| last.at == *at) {
                last.is_written = true;
            }
        }
    }
}

/// Writes the last use of tokens to the store once a minute, for ever.
pub async fn write_uses_periodically(api: SharedApiState) {
    loop {
        tokio::time::sleep(USES_WRITE_INTERVAL).await;
        write_uses(&api).await;
    }
}

/// Writes the last uses of tokens that the store does not have yet.
pub async fn write_uses(api: &SharedApiState) {
    let unwritten = api.uses.unwritten();
    if unwritten.is_empty() {
        return;
    }
    match api.gateway.store.use_tokens(unwritten.clone()).await {
        Ok(()) => api.uses.mark_written(&unwritten),
        Err(problem) => warn!(
            "the last use of tokens could not be written to the store, and is written again in a minute: {problem}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_is_in_force_at_a_time() {
        let admin = AdminToken::new(hash("old"));
        assert!(admin.matches("old") && !admin.matches("new"));
        assert!(admin.replace(hash("new")) && !admin.replace(hash("new")));
        assert!(admin.matches("new") && !admin.matches("old"));
    }

    #[test]
    fn a_token_is_found_by_its_id_and_shows_nothing_else() {
        let id = TokenId::mint(Timestamp::from_second(1_700_000_000).unwrap(), 7);
        let token = new_token(id, [0xfb; 32]);
        assert!(token.starts_with("pht_") && token.len() == 4 + 26 + 1 + 43, "{token}");
        assert_eq!(id_of(&token), Some(id));
        for other in ["pht_", "pht_x_y", "pha_abc", &token[..30], &token.replace("pht_", "pht__")] {
            assert_eq!(id_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_token_in_a_path_is_not_logged() {
        let id = TokenId::mint(Timestamp::from_second(1_700_000_000).unwrap(), 7);
        let (theirs, admins) = (new_token(id, [0xfb; 32]), new_admin_token([0xfb; 32]));
        assert_eq!(path_for_log(&format!("/v1/tokens/{theirs}")), "/v1/tokens/pht_***");
        assert_eq!(path_for_log(&format!("/v1/{admins}/x")), "/v1/pha_***/x");
        assert_eq!(path_for_log(&format!("/v1/tokens/{id}")), format!("/v1/tokens/{id}"));
    }

    #[test]
    fn a_request_with_two_tokens_has_none() {
        let mut headers = HeaderMap::new();
        headers.append(AUTHORIZATION, HeaderValue::from_static("bearer a"));
        assert_eq!(bearer(&headers), Some("a"));
        headers.append(AUTHORIZATION, HeaderValue::from_static("Bearer b"));
        assert_eq!(bearer(&headers), None);
    }

    #[test]
    fn a_use_is_noted_once_a_minute_and_written_once() {
        let (uses, id) = (TokenUses::default(), TokenId::mint(Timestamp::UNIX_EPOCH, 1));
        let at = |second| Timestamp::from_second(second).unwrap();
        uses.record_use(id, at(0));
        uses.record_use(id, at(59));
        assert_eq!(uses.unwritten(), [(id, at(0))]);
        uses.mark_written(&[(id, at(0))]);
        assert!(uses.unwritten().is_empty());
        uses.record_use(id, at(60));
        assert_eq!((uses.unwritten(), uses.last(id)), (vec![(id, at(60))], Some(at(60))));
        uses.mark_written(&[(id, at(0))]);
        assert_eq!(uses.unwritten(), [(id, at(60))], "what came meanwhile is not lost");
    }
}
