//! Signs people in to the pages, and out.
//!
//! A sign-in is a row among the tokens: first a one-time code, if it began with a
//! link, then a session under the same id. A session has at most the rights of the
//! token that made it, and is over when that token is, when the admin token that
//! made it was replaced, when its tenant is deleted, when it was revoked, at its
//! end, and after 30 minutes without use.
//!
//! A secret is checked against memory alone, in constant time, so that a wrong one
//! costs no reading of the store.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use tracing::info;

use super::SharedApiState;
use super::auth::{self, Principal, TokenCheck, TokenUses};
use super::problem::{Problem, ProblemCode};
use super::rate_limit_headers::whole_seconds;
use super::sign_in_throttle::SignInThrottle;
use crate::lifecycle::admin_token::AdminToken;
use crate::metrics::AuthFailureKind;
use crate::model::audit::{AuditAction, Caller, CallerIdentity, Initiator};
use crate::model::delivery::{time_after, time_before};
use crate::model::id::{TenantId, TokenId};
use crate::model::named_enum::NamedEnum;
use crate::model::portal_theme::PortalTheme;
use crate::model::sign_in::{OPERATOR_SESSION, PORTAL_SESSION, SESSION_IDLE_MAX, SignIn, SignInMaker};
use crate::model::token::{CODE_PREFIX, RequiredRight, Right, SESSION_PREFIX, Token, TokenKind};
use crate::store::{Error, SignInScope, Store};

pub use crate::model::sign_in::Site;

/// A person who is signed in to the pages.
#[derive(Debug, Clone)]
pub struct PageSession {
    token: Arc<Token>,
    sign_in: Arc<SignIn>,
}

impl PageSession {
    /// Returns the session of this token, if it is one.
    pub fn of(token: Arc<Token>) -> Option<Self> {
        let sign_in = token.sign_in.clone().filter(|_| token.kind == TokenKind::Session)?;
        Some(Self { token, sign_in: Arc::new(sign_in) })
    }

    /// Returns the caller that the person is, with the rights of the session.
    pub fn principal(&self) -> Principal {
        Principal::Token(self.token.clone())
    }

    /// Returns the id of the session, by which it is listed and revoked.
    pub fn id(&self) -> TokenId {
        self.token.id
    }

    /// Returns the name of the session, for people.
    pub fn name(&self) -> String {
        self.token.name.clone()
    }

    /// Returns the pages that the person is signed in to.
    pub fn site(&self) -> Site {
        self.sign_in.site
    }

    /// Returns the one tenant that the person may see, which a session of the
    /// portal always has.
    pub fn tenant(&self) -> Option<&TenantId> {
        self.token.tenant.as_ref()
    }

    /// Returns the rights of the session.
    pub fn rights(&self) -> &[Right] {
        &self.token.rights
    }

    /// Returns when the session is over, whether it is used or not.
    pub fn ends_at(&self) -> Timestamp {
        self.token.expires_at.unwrap_or(self.token.created_at)
    }

    /// Returns the address of the host's page to return to at the end.
    pub fn return_url(&self) -> Option<&str> {
        self.sign_in.return_url.as_deref()
    }

    /// Returns the look of the portal in this session.
    pub fn theme(&self) -> Option<&PortalTheme> {
        self.sign_in.theme.as_ref()
    }
}

/// A session that has just begun, with its secret, which is shown this once.
pub struct NewSession {
    /// Secret for the cookie.
    pub secret: String,
    /// The session itself.
    pub session: PageSession,
}

/// Finds the session that a cookie's secret belongs to, if it is still in force, and records its use.
pub async fn find_session(api: &SharedApiState, secret: &str) -> Result<Option<PageSession>, Problem> {
    SignIns::of(api).find_session(secret).await
}

/// Begins a session for the holder of an API token: of the operator for the admin token and the
/// gateway's tokens (12 h), of the portal for a tenant's token (1 h).
pub async fn sign_in_with_token(
    api: &SharedApiState,
    token: &str,
    from: Option<IpAddr>,
    request_id: &str,
) -> Result<NewSession, Problem> {
    let begun = SignIns::of(api).sign_in_with_token(token, from, request_id).await;
    record_sign_in(api, begun)
}

/// Redeems a one-time code: exactly one caller over all nodes gets a session.
pub async fn redeem_code(
    api: &SharedApiState,
    code: &str,
    from: Option<IpAddr>,
    request_id: &str,
) -> Result<NewSession, Problem> {
    let begun = SignIns::of(api).redeem_code(code, from, request_id).await;
    record_sign_in(api, begun)
}

/// Ends a session on every node.
pub async fn end_session(
    api: &SharedApiState,
    session: &PageSession,
    from: Option<IpAddr>,
    request_id: &str,
) -> Result<(), Problem> {
    SignIns::of(api).end_session(session, from, request_id).await
}

/// Logs a sign-in, or counts that it failed.
fn record_sign_in(api: &SharedApiState, begun: Result<NewSession, Problem>) -> Result<NewSession, Problem> {
    match &begun {
        Ok(NewSession { session, .. }) => {
            let by = session.principal().identity();
            info!(by = %by, "{by} signed in to the {} pages", session.site().as_str());
        }
        Err(problem) if problem.code() == ProblemCode::Unauthenticated => {
            api.gateway.metrics.count_auth_failure(AuthFailureKind::Wrong);
        }
        Err(_) => {}
    }
    begun
}

/// The sign-ins of this node, at one time.
pub struct SignIns<'a> {
    /// Store that has the sign-ins.
    pub store: &'a dyn Store,
    /// The admin token in force.
    pub admin: &'a AdminToken,
    /// Last use of each session on this node.
    pub uses: &'a TokenUses,
    /// Rates of sign-ins.
    pub throttle: &'a SignInThrottle,
    /// The present wall time.
    pub now: Timestamp,
}

impl<'a> SignIns<'a> {
    /// Returns the sign-ins as they are now.
    pub fn of(api: &'a SharedApiState) -> Self {
        Self {
            store: api.gateway.store.as_ref(),
            admin: &api.gateway.admin,
            uses: &api.uses,
            throttle: &api.sign_ins,
            now: api.gateway.clock.wall(),
        }
    }

    /// Finds a session; see [`find_session`].
    pub async fn find_session(&self, secret: &str) -> Result<Option<PageSession>, Problem> {
        let (Some(token), true) = auth::find_stored_token(self.store, SESSION_PREFIX, TokenKind::Session, secret)
        else {
            return Ok(None);
        };
        if !self.is_in_force(&token) {
            return Ok(None);
        }
        if !self.store.is_current() {
            return Err(auth::refuse_stale_catalog());
        }
        if self.is_idle(&token).await? {
            return Ok(None);
        }
        self.uses.record_use(token.id, self.now);
        Ok(PageSession::of(token))
    }

    /// Whether a code or session is not over, and neither is its maker.
    pub fn is_in_force(&self, token: &Token) -> bool {
        !token.is_over(self.now)
            && token.sign_in.as_ref().is_some_and(|sign_in| self.maker_end(&sign_in.maker).is_some())
    }

    /// Whether nobody has used a session for so long that it is over. Another node
    /// may have seen it, so the store is asked before it is given up.
    async fn is_idle(&self, token: &Token) -> Result<bool, Problem> {
        let idle_before = time_before(self.now, SESSION_IDLE_MAX.0);
        let known = token.used_at.max(self.uses.last_used_at(token.id)).unwrap_or(token.created_at);
        if known.max(token.created_at) > idle_before {
            return Ok(false);
        }
        let stored = self.store.sign_in_used_at(token.id).await?;
        Ok(stored.is_none_or(|used_at| used_at <= idle_before))
    }

    /// Returns the end of a maker that is still valid; [`Timestamp::MAX`] if it
    /// has none.
    pub fn maker_end(&self, maker: &SignInMaker) -> Option<Timestamp> {
        match maker {
            SignInMaker::Admin(fingerprint) => (*fingerprint == self.admin.fingerprint()).then_some(Timestamp::MAX),
            SignInMaker::Token(id) => {
                let maker = self.store.token(*id).filter(|maker| maker.kind == TokenKind::Api)?;
                (!maker.is_over(self.now)).then(|| maker.expires_at.unwrap_or(Timestamp::MAX))
            }
        }
    }

    /// Whether a caller may go on to watch what is streamed, and what it rests on is
    /// valid. Watching is a use: a session is not over while somebody watches.
    pub fn may_watch(&self, principal: &Principal, maker: &SignInMaker) -> bool {
        let is_maker_valid = self.maker_end(maker).is_some();
        let Principal::Token(token) = principal else { return is_maker_valid };
        let known = self.store.token(token.id).filter(|known| known.kind == token.kind);
        let is_valid = known.is_some_and(|known| match known.kind {
            TokenKind::Session => self.is_in_force(&known),
            TokenKind::Api | TokenKind::Code | TokenKind::Unknown => !known.is_over(self.now),
        });
        if is_valid && is_maker_valid {
            self.uses.record_use(token.id, self.now);
        }
        is_valid && is_maker_valid
    }

    /// Begins a session with a token; see [`sign_in_with_token`].
    pub async fn sign_in_with_token(
        &self,
        token: &str,
        from: Option<IpAddr>,
        request_id: &str,
    ) -> Result<NewSession, Problem> {
        let principal = match auth::check_token(self.store, self.admin, token.trim(), self.now) {
            TokenCheck::Admin => Principal::Admin,
            TokenCheck::Valid(known) => {
                self.uses.record_use(known.id, self.now);
                Principal::Token(known)
            }
            TokenCheck::StaleCatalog => return Err(auth::refuse_stale_catalog()),
            TokenCheck::Wrong(_) | TokenCheck::Expired(_) => return Err(self.refuse(from, WRONG_TOKEN)),
        };
        let maker = self.maker_of(&principal);
        let tenant = principal.tenant().cloned();
        let (site, session_for) = match &tenant {
            None => (Site::Operator, OPERATOR_SESSION),
            Some(_) => (Site::Portal, PORTAL_SESSION),
        };
        let rights = session_rights(&principal)?;
        let theme = match &tenant {
            None => None,
            Some(tenant) => Some(self.store.portal_theme(tenant).await?),
        };
        self.throttle.count_success(self.now).map_err(too_many)?;
        let id = TokenId::mint(self.now, rand::random());
        let secret = auth::new_secret(SESSION_PREFIX, id, rand::random());
        let session = Token {
            id,
            kind: TokenKind::Session,
            tenant,
            name: format!("session of {}", maker_name(&principal)),
            rights,
            hash: auth::hash(&secret),
            created_at: self.now,
            expires_at: Some(self.session_end(&maker, session_for.0)),
            used_at: Some(self.now),
            sign_in: Some(SignIn { site, maker, session_for, return_url: None, theme }),
        };
        let by = self.initiator(principal.identity(), from, request_id);
        self.store.create_sign_in(&by, session.clone()).await?;
        Ok(self.new_session(secret, session))
    }

    /// Redeems a code; see [`redeem_code`].
    pub async fn redeem_code(&self, code: &str, from: Option<IpAddr>, request_id: &str) -> Result<NewSession, Problem> {
        let code = code.trim();
        let found = match auth::find_stored_token(self.store, CODE_PREFIX, TokenKind::Code, code) {
            (Some(found), true) if self.is_in_force(&found) => found,
            _ => return Err(self.refuse(from, WRONG_CODE)),
        };
        if !self.store.is_current() {
            return Err(auth::refuse_stale_catalog());
        }
        let Some(sign_in) = &found.sign_in else { return Err(self.refuse(from, WRONG_CODE)) };
        self.throttle.count_success(self.now).map_err(too_many)?;
        let secret = auth::new_secret(SESSION_PREFIX, found.id, rand::random());
        let session = Token {
            kind: TokenKind::Session,
            hash: auth::hash(&secret),
            created_at: self.now,
            expires_at: Some(self.session_end(&sign_in.maker, sign_in.session_for.0)),
            used_at: Some(self.now),
            ..Token::clone(&found)
        };
        let by = self.initiator(identity(&found), from, request_id);
        match self.store.redeem_code(&by, found.hash, session.clone()).await {
            // Somebody else was faster, here or on another node.
            Err(Error::NotFound(_)) => Err(self.refuse(from, WRONG_CODE)),
            redeemed => redeemed.map(|()| self.new_session(secret, session)).map_err(Problem::from),
        }
    }

    /// Ends a session; see [`end_session`].
    pub async fn end_session(
        &self,
        session: &PageSession,
        from: Option<IpAddr>,
        request_id: &str,
    ) -> Result<(), Problem> {
        let by = self.initiator(identity(&session.token), from, request_id);
        let scope = SignInScope::One { id: session.id(), tenant: None };
        match self.store.end_sign_ins(&by, scope, AuditAction::SessionEnded, self.now).await {
            // It was revoked meanwhile, which is as good.
            Ok(_) | Err(Error::NotFound(_)) => Ok(()),
            Err(problem) => Err(problem.into()),
        }
    }

    /// Returns who makes what a caller makes: for a session, whoever made it.
    pub fn maker_of(&self, principal: &Principal) -> SignInMaker {
        match principal {
            Principal::Admin => SignInMaker::Admin(self.admin.fingerprint()),
            Principal::Token(token) => match &token.sign_in {
                Some(sign_in) => sign_in.maker.clone(),
                None => SignInMaker::Token(token.id),
            },
        }
    }

    /// Returns when a session ends that begins now.
    fn session_end(&self, maker: &SignInMaker, session_for: std::time::Duration) -> Timestamp {
        let end = time_after(self.now, session_for);
        self.maker_end(maker).map_or(self.now, |makers| makers.min(end))
    }

    fn new_session(&self, secret: String, session: Token) -> NewSession {
        self.uses.record_use(session.id, self.now);
        let session = PageSession::of(Arc::new(session)).expect("what was just made is a session");
        NewSession { secret, session }
    }

    fn initiator(&self, by: CallerIdentity, from: Option<IpAddr>, request_id: &str) -> Initiator {
        Initiator::Caller(Arc::new(Caller { by, from, request_id: request_id.to_owned(), at: self.now }))
    }

    /// Counts a sign-in that failed, and returns what to answer.
    fn refuse(&self, from: Option<IpAddr>, sentence: &str) -> Problem {
        match self.throttle.count_failure(from, self.now) {
            Ok(()) => Problem::new(ProblemCode::Unauthenticated, sentence),
            Err(wait) => {
                let seconds = whole_seconds(wait).max(1);
                let detail = format!("too many sign-ins failed; try again in {seconds}s");
                Problem::new(ProblemCode::RateLimited, detail).retry_after(seconds)
            }
        }
    }
}

const WRONG_TOKEN: &str = "this token is not valid, was revoked or has expired; use another one";
const WRONG_CODE: &str = "this link was used before, was revoked, or is older than 2 minutes; ask for a new one";

fn too_many(wait: std::time::Duration) -> Problem {
    let seconds = whole_seconds(wait).max(1);
    Problem::new(ProblemCode::RateLimited, format!("many people sign in at once; try again in {seconds}s"))
        .retry_after(seconds)
}

fn identity(token: &Token) -> CallerIdentity {
    CallerIdentity::Token { id: token.id, name: token.name.clone() }
}

/// Returns what a maker is called in the names of what it makes.
pub fn maker_name(principal: &Principal) -> String {
    match principal {
        Principal::Admin => "admin".to_owned(),
        Principal::Token(token) if token.name.is_empty() => token.id.to_string(),
        Principal::Token(token) => token.name.clone(),
    }
}

/// Returns the rights of a session that a caller begins: its own, without that to
/// make links, which stays with tokens. Whoever may read nothing has no use for
/// the pages.
fn session_rights(principal: &Principal) -> Result<Vec<Right>, Problem> {
    let Principal::Token(token) = principal else { return Ok(vec![Right::Admin]) };
    let rights: Vec<Right> = token.rights.iter().copied().filter(|right| *right != Right::Portal).collect();
    if rights.iter().any(|right| right.holds(RequiredRight::Right(Right::Read), true)) {
        return Ok(rights);
    }
    let detail = format!("token {} may read nothing; sign in with a token that has read or manage", token.id);
    Err(Problem::new(ProblemCode::MissingRight, detail))
}
