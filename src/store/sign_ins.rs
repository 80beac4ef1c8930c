//! Sign-ins to the pages, and the look of portals, as every store keeps them.
//!
//! One-time codes and sessions are rows among the tokens, so every node knows
//! them, and a revocation is answered when every node knows it.

use async_trait::async_trait;
use jiff::Timestamp;

use super::{ListPage, PageRequest, Result};
use crate::model::audit::{AuditAction, Initiator};
use crate::model::id::{TenantId, TokenId};
use crate::model::portal_theme::PortalTheme;
use crate::model::sign_in::{OPEN_CODES_MAX, SESSIONS_MAX};
use crate::model::token::{Token, TokenHash, TokenKind};

/// Stores sign-ins of people, and how the portals look that they see.
#[async_trait]
pub trait SignInStore: Send + Sync {
    /// Adds a code or a session, unless its owner has as many as may be open.
    /// Every node knows it when the call returns.
    async fn create_sign_in(&self, by: &Initiator, sign_in: Token) -> Result<()>;
    /// Puts a session in the place of the open code that has its id and this
    /// hash. Of several callers on all nodes one succeeds; for the others the code
    /// does not exist any more.
    async fn redeem_code(&self, by: &Initiator, code: TokenHash, session: Token) -> Result<()>;
    /// Ends sign-ins, and returns how many. No node accepts them any more when
    /// the call returns. A single one that is not there is not found.
    async fn end_sign_ins(
        &self,
        by: &Initiator,
        scope: SignInScope,
        action: AuditAction,
        now: Timestamp,
    ) -> Result<usize>;
    /// Lists the codes or the sessions of a tenant, or without one those of
    /// operators, that are not past their end, newest first.
    async fn sign_ins(
        &self,
        tenant: Option<&TenantId>,
        kind: TokenKind,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<ListPage<Token>>;
    /// Returns when a sign-in was last used, as the store has it from all nodes.
    async fn sign_in_used_at(&self, id: TokenId) -> Result<Option<Timestamp>>;
    /// Deletes codes and sessions past their end, and sessions that were last
    /// used before `idle_before`; nothing of that is recorded. Returns how many,
    /// which is at most `limit`.
    async fn forget_sign_ins(&self, now: Timestamp, idle_before: Timestamp, limit: usize) -> Result<usize>;

    /// Returns how a tenant wants its portal to look.
    async fn portal_theme(&self, tenant: &TenantId) -> Result<PortalTheme>;
    /// Sets how a tenant's portal looks.
    async fn put_portal_theme(&self, by: &Initiator, tenant: &TenantId, theme: PortalTheme) -> Result<()>;
    /// Returns the logo of a tenant's portal, a PNG.
    async fn portal_logo(&self, tenant: &TenantId) -> Result<Option<Vec<u8>>>;
    /// Sets or removes the logo of a tenant's portal. Returns whether there was
    /// one before.
    async fn put_portal_logo(&self, by: &Initiator, tenant: &TenantId, logo: Option<Vec<u8>>) -> Result<bool>;
}

/// The sign-ins that a call ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignInScope {
    /// One code or session.
    One {
        /// Id of the code or session.
        id: TokenId,
        /// Tenant that it must belong to; whoever's it is, if left out.
        tenant: Option<TenantId>,
    },
    /// All codes and sessions of a tenant.
    AllOf(TenantId),
    /// One session of an operator.
    OneOfOperators(TokenId),
    /// All codes and sessions of operators.
    AllOfOperators,
}

impl SignInScope {
    /// Returns the one that is meant; none if all are.
    pub(super) fn one(&self) -> Option<TokenId> {
        self.columns().0
    }

    /// Returns the parameters of the stores' SQL: the id, the tenant's id, and
    /// whether only operators' are meant.
    pub(super) fn columns(&self) -> (Option<TokenId>, Option<String>, bool) {
        match self {
            Self::One { id, tenant } => (Some(*id), tenant.as_ref().map(|tenant| tenant.as_str().to_owned()), false),
            Self::AllOf(tenant) => (None, Some(tenant.as_str().to_owned()), false),
            Self::OneOfOperators(id) => (Some(*id), None, true),
            Self::AllOfOperators => (None, None, true),
        }
    }
}

/// Returns how many sign-ins of a kind an owner may have.
pub(super) fn sign_ins_max(kind: TokenKind) -> u32 {
    match kind {
        TokenKind::Code => OPEN_CODES_MAX,
        TokenKind::Session => SESSIONS_MAX,
        TokenKind::Api | TokenKind::Unknown => 0,
    }
}

/// Returns the action that creating a sign-in is recorded as.
pub(super) fn created_action(kind: TokenKind) -> AuditAction {
    match kind {
        TokenKind::Code => AuditAction::LinkCreated,
        TokenKind::Session => AuditAction::SessionStarted,
        TokenKind::Api | TokenKind::Unknown => AuditAction::TokenCreated,
    }
}
