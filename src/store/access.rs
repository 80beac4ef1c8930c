//! Who may use the API, and what was done with it: tokens and the audit log.
//!
//! Who asks travels with the task that asks, as its request id does: whatever
//! a store changes inside [`with_caller`] it records in the same commit. What
//! the gateway does of its own accord has no asker, and is no part of the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use jiff::Timestamp;

use super::{ListPage, PageRequest, Result};
use crate::model::audit::{AuditEntry, AuditedAction, Caller};
use crate::model::id::{AuditId, TenantId, TokenId};
use crate::model::token::Token;

tokio::task_local! {
    static ASKER: Arc<Caller>;
}

/// Does something in somebody's name.
pub async fn with_caller<T>(caller: Arc<Caller>, audited: impl Future<Output = T>) -> T {
    ASKER.scope(caller, audited).await
}

/// In whose name this task acts, if in anybody's.
pub fn caller() -> Option<Arc<Caller>> {
    ASKER.try_with(Arc::clone).ok()
}

/// What tells entries of the same millisecond apart: this process's own count
/// first, so that they are listed in the order they were made in.
pub(super) fn draw() -> u128 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed) & 0xff_ffff;
    (u128::from(count) << 50) | u128::from(rand::random::<u64>() >> 14)
}

/// Knows tokens, and keeps the audit log.
#[async_trait]
pub trait AccessStore: Send + Sync {
    /// A token that has not been revoked. From memory; it never waits.
    fn token(&self, id: TokenId) -> Option<Arc<Token>>;

    /// Whether a token that was revoked elsewhere would not be among them.
    fn is_current(&self) -> bool;

    /// Adds a token. It is good everywhere when the call returns.
    async fn create_token(&self, token: Token) -> Result<()>;
    /// Revokes a token, if it is one of these. It is good nowhere any more
    /// when the call returns.
    async fn revoke_token(&self, id: TokenId, whose: TokenScope, now: Timestamp) -> Result<()>;
    /// Keeps when tokens were last used; what is known to be later stays.
    async fn use_tokens(&self, used: Vec<(TokenId, Timestamp)>) -> Result<()>;
    /// Those of these tokens that have not been revoked, newest first.
    async fn tokens(&self, whose: TokenScope, page: PageRequest) -> Result<ListPage<Token>>;

    /// Records something that changes nothing in the store, in the name of
    /// whoever asks for it.
    async fn record(&self, audited: AuditedAction) -> Result<()>;
    /// The audit log, newest first.
    async fn audit(&self, ask: AuditQuery, page: PageRequest) -> Result<ListPage<AuditEntry>>;
    /// Forgets entries of before this time, and of revoked tokens what is
    /// left. Returns how many entries, at most so many.
    async fn forget_audit(&self, before: Timestamp, most: usize) -> Result<usize>;
}

/// Whose tokens are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenScope {
    /// Those of this tenant.
    Tenant(TenantId),
    /// Those of all tenants.
    Tenants,
    /// Those of all tenants and of the gateway itself.
    All,
}

impl TokenScope {
    /// As stores ask: the one tenant, if it is one, and whether the gateway's
    /// own are meant, too.
    pub(super) fn columns(&self) -> (Option<String>, bool) {
        match self {
            Self::Tenant(tenant) => (Some(tenant.as_str().to_owned()), false),
            Self::Tenants => (None, false),
            Self::All => (None, true),
        }
    }
}

/// Which entries of the audit log to list.
#[derive(Debug, Clone, Default)]
pub struct AuditQuery {
    /// Of the tenant that has this id, or of all who ever had one.
    pub tenant: Option<TenantId>,
    /// Only of the one that has the id now: what happened to a deleted tenant
    /// of the same name is none of its business.
    pub is_present_only: bool,
    /// Recorded at this time or later.
    pub since: Option<Timestamp>,
    /// Recorded before this time.
    pub until: Option<Timestamp>,
}

impl AuditQuery {
    /// Between which ids it asks, the first one included: an id begins with
    /// its time.
    pub(super) fn bounds(&self, below: Option<AuditId>) -> (AuditId, AuditId) {
        let at = |time: Timestamp| AuditId(crate::model::id::uuid_v7(time, 0));
        let first = self.since.map_or(AuditId(uuid::Uuid::nil()), at);
        let until = self.until.map_or(AuditId(uuid::Uuid::max()), at);
        (first, below.map_or(until, |below| below.min(until)))
    }
}
