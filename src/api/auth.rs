//! Who is asking, and may they? Bearer tokens, of which only hashes are kept.
//!
//! A token of a tenant meets one rule before any other: whatever names another
//! tenant is not there. So what it is told of another tenant's things, of
//! things that do not exist and of tenants that do not is the same.

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
use url::form_urlencoded;

use super::auth_failures::{self, AuthFailure};
use super::connection_slots::ConnectionStatus;
use super::origin::RequestId;
use super::problem::{Problem, ProblemCode};
use super::rate_limit_headers::whole_seconds;
use super::route_rights::{RouteAccess, RouteRights};
use super::{SharedApiState, accept, origin, server, status};
use crate::metrics::AuthFailureKind;
use crate::model::audit::{Caller, CallerIdentity};
use crate::model::headers::MASK;
use crate::model::id::{TenantId, TokenId};
use crate::model::span::words;
use crate::model::token::{PREFIX, RequiredRight, Right, Token};
use crate::store::with_caller;

pub use crate::model::token::TokenHash;

/// What every admin token begins with, so that scanners can find lost ones.
const ADMIN_PREFIX: &str = "pha_";
/// How often it is written down that a token was used.
const USES_KEPT_EVERY: Duration = Duration::from_secs(60);

/// The hash of the admin token in force. Another node may replace it.
#[derive(Debug)]
pub struct AdminToken(RwLock<TokenHash>);

impl AdminToken {
    /// With this hash.
    pub fn new(hash: TokenHash) -> Self {
        Self(RwLock::new(hash))
    }

    /// Puts another token in force, and the last one out of it. Tells whether
    /// that changed anything.
    pub fn replace(&self, hash: TokenHash) -> bool {
        let mut kept = self.0.write();
        std::mem::replace(&mut *kept, hash) != hash
    }

    fn matches(&self, token: &str) -> bool {
        let kept = *self.0.read();
        is_hash_of(&kept, token)
    }
}

/// A fresh admin token.
pub fn new_admin_token(random: [u8; 32]) -> String {
    format!("{ADMIN_PREFIX}{}", URL_SAFE_NO_PAD.encode(random))
}

/// A fresh token, which its id finds again.
pub fn new_token(id: TokenId, random: [u8; 32]) -> String {
    let id = id.to_string();
    let id = id.strip_prefix(TokenId::PREFIX).expect("an id begins with its prefix");
    format!("{PREFIX}{id}_{}", URL_SAFE_NO_PAD.encode(random))
}

/// The id of the token that this claims to be.
fn id_of(token: &str) -> Option<TokenId> {
    let (id, _) = token.strip_prefix(PREFIX)?.split_once('_')?;
    format!("{}{id}", TokenId::PREFIX).parse().ok()
}

/// The hash to keep of a token. It has 256 random bits, so a fast hash is enough.
pub fn hash(token: &str) -> TokenHash {
    let hash = digest::digest(&digest::SHA256, token.as_bytes());
    hash.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

fn is_hash_of(kept: &TokenHash, token: &str) -> bool {
    constant_time::verify_slices_are_equal(&hash(token), kept).is_ok()
}

/// Who is asking.
#[derive(Debug, Clone)]
pub enum Principal {
    /// Whoever has the admin token.
    Admin,
    /// Whoever has this token, of a tenant or of the gateway.
    Token(Arc<Token>),
}

impl Principal {
    /// The one tenant whose things it may see; tokens of the gateway see all.
    pub fn tenant(&self) -> Option<&TenantId> {
        match self {
            Self::Admin => None,
            Self::Token(token) => token.tenant.as_ref(),
        }
    }

    /// Whether it is shown the URLs of endpoints whole: they may be credentials.
    pub fn sees_urls(&self) -> bool {
        self.may(RouteAccess { need: RequiredRight::Right(Right::Manage), is_reading: false }, None).is_ok()
    }

    /// Refuses whoever may not administer the gateway: for what only part of
    /// a route asks for.
    pub fn must_be_admin(&self) -> Result<(), Problem> {
        self.may(RouteAccess { need: RequiredRight::Admin, is_reading: false }, None).map_err(|failure| failure.problem)
    }

    /// Whether it is the operator, who may know what the gateway reaches.
    pub fn is_operator(&self) -> bool {
        self.may(RouteAccess { need: RequiredRight::Admin, is_reading: true }, None).is_ok()
    }

    fn by(&self) -> CallerIdentity {
        match self {
            Self::Admin => CallerIdentity::Admin,
            Self::Token(token) => CallerIdentity::Token { id: token.id, name: token.name.clone() },
        }
    }

    /// Whether it may do this, there.
    fn may(&self, asked: RouteAccess, named: Option<&str>) -> Result<(), AuthFailure> {
        let Self::Token(token) = self else { return Ok(()) };
        let failed = |kind, problem| AuthFailure { kind, problem, token: Some(token.clone()) };
        // First of all, so that nothing else can be learnt.
        let own = token.tenant.as_ref();
        if own.zip(named).is_some_and(|(own, named)| named != own.as_str()) {
            return Err(failed(AuthFailureKind::OtherTenant, Problem::not_found("tenant")));
        }
        match token.may(asked.need, asked.is_reading) {
            true => Ok(()),
            false => Err(failed(AuthFailureKind::MissingRight, missing(token, asked.need))),
        }
    }
}

fn missing(token: &Token, need: RequiredRight) -> Problem {
    let has: Vec<&str> = token.rights.iter().map(|right| Right::as_str(*right)).collect();
    let way_out = match need {
        RequiredRight::Admin => "use the admin token".to_owned(),
        RequiredRight::Tenants => "use the admin token, or one with tenants".to_owned(),
        RequiredRight::Nothing | RequiredRight::Right(_) => format!("use a token with {}", need.as_str()),
    };
    let detail =
        format!("this needs the right {}, and token {} has {}; {way_out}", need.as_str(), token.id, has.join(", "));
    Problem::new(ProblemCode::MissingRight, detail)
}

/// As the layer that admits has found out.
impl<S: Send + Sync> FromRequestParts<S> for Principal {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get::<Self>().cloned().ok_or_else(unauthenticated)
    }
}

/// Lets a request through that may do what it asks for, in its caller's name.
pub async fn admit(
    State((api, rights)): State<(SharedApiState, Arc<RouteRights>)>,
    mut request: Request,
    next: Next,
) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map(MatchedPath::as_str);
    let is_v1 = route.unwrap_or(request.uri().path()).starts_with("/v1/");
    // That nothing is here, or no such method, is told to whoever may ask at all.
    let nothing = RouteAccess { need: RequiredRight::Nothing, is_reading: true };
    let asked = match route {
        Some(route) => rights.access_of(route, request.method()),
        None => Some(nothing),
    };
    let standing = request.extensions().get::<ConnectionStatus>().cloned();
    if !is_v1 && asked.is_none_or(|asked| asked.need == RequiredRight::Nothing) {
        if let Some(standing) = &standing {
            standing.mark_unauthenticated(origin::of(&request, &api.trusted_proxies).map(origin::network));
        }
        return match asked {
            _ if standing.is_some_and(|standing| standing.is_spare())
                && !server::is_health_check(request.uri().path()) =>
            {
                server::full().into_response()
            }
            None => wrong_method(&rights, route, &request),
            Some(_) => next.run(request).await,
        };
    }
    let principal = match identify(&api, request.headers()) {
        Ok(principal) => principal,
        Err(AuthError::Failed(failure)) => return auth_failures::refuse(&api, &request, *failure).into_response(),
        Err(AuthError::OutOfTouch) => return refuse_stale_catalog().into_response(),
    };
    if standing.is_some_and(|standing| !standing.mark_authenticated()) {
        return server::full().into_response();
    }
    let named = match &principal {
        Principal::Admin => None,
        Principal::Token(_) => named_tenant(route, &mut request).await,
    };
    if let Err(failure) = principal.may(asked.unwrap_or(nothing), named.as_deref()) {
        return auth_failures::refuse(&api, &request, failure).into_response();
    }
    if asked.is_none() {
        return wrong_method(&rights, route, &request);
    }
    if let Some(problem) = route.and_then(|route| refuse_unread_query(&rights, route, &request)) {
        return problem.into_response();
    }
    // The way of every event: it records nothing.
    if route.is_some_and(|route| accept::takes_events(request.method(), route)) {
        return next.run(request).await;
    }
    if let Err(problem) = charge(&api, &principal) {
        return problem.into_response();
    }
    let caller = Caller {
        by: principal.by(),
        from: origin::of(&request, &api.trusted_proxies),
        request_id: request.extensions().get::<RequestId>().map(|id| id.0.clone()).unwrap_or_default(),
        at: api.gateway.clock.wall(),
    };
    let by = caller.by.clone();
    request.extensions_mut().insert(principal);
    let (method, path) = (request.method().clone(), logged(request.uri().path()));
    let response = with_caller(Arc::new(caller), next.run(request)).await;
    if !method.is_safe() {
        let status = response.status().as_u16();
        info!(by = %by, status, "{method} {path} was answered {status}");
    }
    response
}

/// Counts a call of a tenant's token against the tenant's rate of such calls.
/// Tokens of the gateway have none.
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

/// Which tenant a request names in its path. One that cannot be read is
/// nobody's.
async fn named_tenant(route: Option<&str>, request: &mut Request) -> Option<String> {
    if !route?.contains("{tenant}") {
        return None;
    }
    let parts = request.extract_parts::<Path<Vec<(String, String)>>>().await;
    let parts = parts.map(|Path(parts)| parts).unwrap_or_default();
    Some(parts.into_iter().find(|(name, _)| name == "tenant").map(|(_, tenant)| tenant).unwrap_or_default())
}

/// A query where none is read is more likely a mistake than an ornament.
fn refuse_unread_query(rights: &RouteRights, route: &str, request: &Request) -> Option<Problem> {
    if rights.takes_query(route, request.method()) {
        return None;
    }
    let (name, _) = form_urlencoded::parse(request.uri().query()?.as_bytes()).next()?;
    let detail = format!("unknown field `{name}`, there are no query parameters here");
    Some(Problem::field(ProblemCode::UnknownField, format!("?{name}"), detail))
}

/// A path as it may be logged: a token in it, by mistake or not, is none of
/// the log's business.
fn logged(path: &str) -> String {
    let shown = |segment: &str| match [ADMIN_PREFIX, PREFIX].into_iter().find(|prefix| segment.starts_with(prefix)) {
        Some(prefix) => format!("{prefix}{MASK}"),
        None => segment.to_owned(),
    };
    path.split('/').map(shown).collect::<Vec<_>>().join("/")
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

/// Why it is not known who asks.
enum AuthError {
    /// There is no token, or none that is valid.
    Failed(Box<AuthFailure>),
    /// It may have been revoked without this node's having heard.
    OutOfTouch,
}

fn refuse_stale_catalog() -> Problem {
    Problem::new(
        ProblemCode::Unavailable,
        "this node has lost touch with the others, and cannot tell which tokens are still good; ask another one",
    )
}

/// Whose token a request carries.
fn identify(api: &SharedApiState, headers: &HeaderMap) -> Result<Principal, AuthError> {
    let failed = |kind, problem, token| AuthError::Failed(Box::new(AuthFailure { kind, problem, token }));
    let Some(token) = bearer(headers) else {
        let kind = if headers.contains_key(AUTHORIZATION) { AuthFailureKind::Wrong } else { AuthFailureKind::Missing };
        return Err(failed(kind, unauthenticated(), None));
    };
    if !token.starts_with(PREFIX) {
        return match api.admin.matches(token) {
            true => Ok(Principal::Admin),
            false => Err(failed(AuthFailureKind::Wrong, unauthenticated(), None)),
        };
    }
    let store = &api.gateway.store;
    let known = id_of(token).and_then(|id| store.token(id));
    // Compared with something in any case, which takes the same time.
    let is_it = is_hash_of(&known.as_ref().map_or([0; 32], |known| known.hash), token);
    let Some(known) = known.clone().filter(|_| is_it) else {
        return Err(failed(AuthFailureKind::Wrong, unauthenticated(), known));
    };
    let now = api.gateway.clock.wall();
    if known.is_over(now) {
        let detail = format!("token {} has expired; ask for a new one", known.id);
        return Err(failed(AuthFailureKind::Expired, Problem::new(ProblemCode::Unauthenticated, detail), Some(known)));
    }
    if !store.is_current() {
        return Err(AuthError::OutOfTouch);
    }
    api.uses.record_use(known.id, now);
    Ok(Principal::Token(known))
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let (Some(one), None) = (given.next(), given.next()) else { return None };
    let (scheme, token) = one.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// When tokens were last used here, as far as that is not written down yet.
/// A request only takes a note; the store hears of it later.
#[derive(Debug, Default)]
pub struct TokenUses(Mutex<HashMap<TokenId, TokenUse>>);

#[derive(Debug, Clone, Copy)]
struct TokenUse {
    at: Timestamp,
    is_kept: bool,
}

impl TokenUses {
    /// A token is used. Once a minute is often enough to know.
    fn record_use(&self, id: TokenId, now: Timestamp) {
        let mut uses = self.0.lock();
        let is_news = uses.get(&id).is_none_or(|known| now.duration_since(known.at).unsigned_abs() >= USES_KEPT_EVERY);
        if is_news {
            uses.insert(id, TokenUse { at: now, is_kept: false });
        }
    }

    /// When a token was last used here.
    pub fn last(&self, id: TokenId) -> Option<Timestamp> {
        self.0.lock().get(&id).map(|known| known.at)
    }

    fn unwritten(&self) -> Vec<(TokenId, Timestamp)> {
        let uses = self.0.lock();
        uses.iter().filter(|(_, known)| !known.is_kept).map(|(id, known)| (*id, known.at)).collect()
    }

    fn mark_written(&self, kept: &[(TokenId, Timestamp)]) {
        let mut uses = self.0.lock();
        for (id, at) in kept {
            if let Some(known) = uses.get_mut(id).filter(|known| known.at == *at) {
                known.is_kept = true;
            }
        }
    }
}

/// Writes down now and then when tokens were used, for ever.
pub async fn write_uses_periodically(api: SharedApiState) {
    loop {
        tokio::time::sleep(USES_KEPT_EVERY).await;
        write_uses(&api).await;
    }
}

/// Writes down when tokens were used, as far as that is not written yet.
pub async fn write_uses(api: &SharedApiState) {
    let unkept = api.uses.unwritten();
    if unkept.is_empty() {
        return;
    }
    match api.gateway.store.use_tokens(unkept.clone()).await {
        Ok(()) => api.uses.mark_written(&unkept),
        Err(problem) => warn!("when tokens were last used could not be written down yet: {problem}"),
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
        assert_eq!(logged(&format!("/v1/tokens/{theirs}")), "/v1/tokens/pht_***");
        assert_eq!(logged(&format!("/v1/{admins}/x")), "/v1/pha_***/x");
        assert_eq!(logged(&format!("/v1/tokens/{id}")), format!("/v1/tokens/{id}"));
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
