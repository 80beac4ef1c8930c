//! API tokens and the audit log, as every store keeps them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use jiff::Timestamp;

use super::{ListPage, PageRequest, Result};
use crate::model::audit::{AuditEntry, AuditedAction, Initiator};
use crate::model::id::{AuditId, TenantId, TokenId};
use crate::model::named_enum::NamedEnum;
use crate::model::token::{Right, Token};

/// Name of the note with the hash of the admin token, in hexadecimal digits.
pub const ADMIN_TOKEN_NOTE: &str = "admin_token_sha256";

/// Returns the low bits of an audit entry's id. A counter of this process
/// comes first, so that entries of the same millisecond are listed in the
/// order in which they were made.
pub(super) fn draw_id_bits() -> u128 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed) & 0xff_ffff;
    (u128::from(count) << 50) | u128::from(rand::random::<u64>() >> 14)
}

/// Reads the rights of a stored token. Without those that only a newer version
/// knows, it may do less here, and never more.
pub(super) fn known_rights(text: &str) -> Vec<Right> {
    let names: Vec<serde_json::Value> = serde_json::from_str(text).unwrap_or_default();
    let known = names.iter().filter_map(|name| Right::ALL.iter().find(|right| name == right.as_str()));
    known.copied().collect()
}

/// Stores tokens and the audit log.
#[async_trait]
pub trait AccessStore: Send + Sync {
    /// Returns a token that has not been revoked. Reads memory only.
    fn token(&self, id: TokenId) -> Option<Arc<Token>>;

    /// Whether the tokens in memory are up to date: a revocation on another
    /// node would have been seen here.
    fn is_current(&self) -> bool;

    /// Adds a token. Every node accepts it when the call returns.
    async fn create_token(&self, by: &Initiator, token: Token) -> Result<()>;
    /// Revokes a token, if it belongs to this scope. No node accepts it any
    /// more when the call returns.
    async fn revoke_token(&self, by: &Initiator, id: TokenId, scope: TokenScope, now: Timestamp) -> Result<()>;
    /// Records when tokens were last used. A stored time that is later stays.
    async fn use_tokens(&self, used: Vec<(TokenId, Timestamp)>) -> Result<()>;
    /// Lists the unrevoked tokens of a scope, newest first.
    async fn tokens(&self, scope: TokenScope, page: PageRequest) -> Result<ListPage<Token>>;

    /// Records an action that changes nothing else in the store.
    async fn record(&self, by: &Initiator, audited: AuditedAction) -> Result<()>;
    /// Lists entries of the audit log, newest first.
    async fn audit(&self, query: AuditQuery, page: PageRequest) -> Result<ListPage<AuditEntry>>;
    /// Deletes entries from before this time, and rows of tokens that were
    /// revoked before it. Returns the number of entries deleted, which is at
    /// most `limit`.
    async fn forget_audit(&self, before: Timestamp, limit: usize) -> Result<usize>;
}

/// The owners whose tokens a call is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenScope {
    /// The tokens of this tenant.
    Tenant(TenantId),
    /// The tokens of all tenants.
    Tenants,
    /// The tokens of all tenants and of the gateway itself.
    All,
}

impl TokenScope {
    /// Returns the parameters of the stores' SQL: the tenant's id if the scope
    /// is one tenant, and whether the gateway's own tokens are included.
    pub(super) fn columns(&self) -> (Option<String>, bool) {
        match self {
            Self::Tenant(tenant) => (Some(tenant.as_str().to_owned()), false),
            Self::Tenants => (None, false),
            Self::All => (None, true),
        }
    }
}

/// Filter for listing the audit log.
#[derive(Debug, Clone, Default)]
pub struct AuditQuery {
    /// Id of the tenant; `None` lists the entries of all tenants.
    pub tenant: Option<TenantId>,
    /// Whether to list only the tenant that has the id now. A tenant must not
    /// see what happened to a deleted tenant that had the same id.
    pub is_present_only: bool,
    /// Only entries about what has this id.
    pub resource: Option<String>,
    /// Only entries recorded at this time or later.
    pub since: Option<Timestamp>,
    /// Only entries recorded before this time.
    pub until: Option<Timestamp>,
}

/// Most entries that one page reads where it looks for those of a resource.
const ENTRIES_PER_PAGE_MAX: usize = 10_000;

impl AuditQuery {
    /// Returns how many entries to read for a page.
    pub(super) fn entries_to_read(&self, page: &PageRequest) -> i64 {
        let count = if self.resource.is_some() { ENTRIES_PER_PAGE_MAX } else { page.limit.saturating_add(1) };
        i64::try_from(count).unwrap_or(i64::MAX)
    }

    /// Makes a page of the entries that were read. Where none of them is about the
    /// resource, the page is empty and may still have a next one.
    pub(super) fn page_of(&self, mut entries: Vec<AuditEntry>, limit: usize) -> ListPage<AuditEntry> {
        let Some(resource) = &self.resource else {
            return ListPage::truncate(entries, limit, |entry| entry.id.to_string());
        };
        let last_read = entries.last().map(|entry| (entry.id.to_string(), entry.record.at));
        let read_on = last_read.filter(|_| entries.len() == ENTRIES_PER_PAGE_MAX);
        entries.retain(|entry| entry.record.resource == *resource);
        let page = ListPage::truncate(entries, limit, |entry| entry.id.to_string());
        let Some((last_id, last_at)) = read_on.filter(|_| page.next.is_none()) else { return page };
        ListPage { next: Some(last_id), looked_back_to: Some(last_at), ..page }
    }

    /// Returns the range of ids to read, its start included. An id begins with
    /// its time, so a time range is an id range.
    pub(super) fn id_range(&self, below: Option<AuditId>) -> (AuditId, AuditId) {
        let at = |time: Timestamp| AuditId(crate::model::id::uuid_v7(time, 0));
        let first = self.since.map_or(AuditId(uuid::Uuid::nil()), at);
        let until = self.until.map_or(AuditId(uuid::Uuid::max()), at);
        (first, below.map_or(until, |below| below.min(until)))
    }
}
