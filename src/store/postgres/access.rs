//! Stores tokens and the audit log.
//!
//! A token is part of the catalog: creating or revoking one raises the
//! catalog's version, and the call answers once every live node has
//! acknowledged that version. A node whose lease has ended may have missed it
//! and must not trust its tokens in memory.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio_postgres::Row;

use super::PostgresStore;
use super::read_query::read_rows;
use super::rows::{millis, stored_tenant};
use super::stored_function::by_name;
use super::transaction::{PgTransaction, bind};
use super::unit_of_work::UnitOfWork;
use crate::model::audit::{AuditAction, AuditEntry, AuditedAction, Initiator};
use crate::model::id::{AuditId, TenantId, TokenId};
use crate::model::shard::Shard;
use crate::model::token::Token;
use crate::store::access::draw_id_bits;
use crate::store::catalog_columns::TokenColumns;
use crate::store::row::{PostgresColumns, row};
use crate::store::stored_json::{from_json, to_json};
use crate::store::{AccessStore, AuditQuery, Error, ListPage, MissingResource, PageRequest, Result, TokenScope};

/// The tables that a token is read from.
pub const TOKENS: &str = "FROM posthaste.tokens k LEFT JOIN posthaste.tenants t ON t.no = k.tenant";

row! {
    /// A token that was created or revoked.
    postgres struct ChangedToken {
        token: TokenColumns = TokenColumns::COLUMNS,
        is_revoked: bool = "k.deleted_at IS NOT NULL OR t.deleted_at IS NOT NULL",
    }
}

/// SQL condition that a token is in a [`TokenScope`]: it belongs to the tenant
/// `$2`, or to any tenant if that is NULL, or with `$3` to the gateway.
const IN_SCOPE: &str = "(t.id = coalesce($2, t.id) OR $3 AND k.tenant IS NULL)";

/// Selects the number of the system tenant, for what concerns the gateway itself.
const SYSTEM: &str = "SELECT no FROM posthaste.tenants WHERE id = $1 AND deleted_at IS NULL";

/// Returns tokens created or revoked after a version of the catalog, and
/// whether each was revoked.
pub async fn changed_after(tx: &PgTransaction, version: i64) -> Result<Vec<(Token, bool)>> {
    let sql = format!("SELECT {} {TOKENS} WHERE k.version > $1", ChangedToken::COLUMNS);
    let rows = tx.query(&sql, bind![version]).await?;
    Ok(rows.iter().map(ChangedToken::read).map(|row| (row.token.token(), row.is_revoked)).collect())
}

/// Records an action in the audit log, if a caller made it.
pub async fn record(tx: &PgTransaction, by: &Initiator, tenant: i64, audited: &AuditedAction) -> Result<()> {
    let Some(caller) = by.caller() else { return Ok(()) };
    let entry = AuditEntry::of(caller, audited, draw_id_bits());
    let sql = "INSERT INTO posthaste.audit (id, tenant, tenant_id, record) VALUES ($1, $2, $3, $4)";
    tx.execute(sql, bind![entry.id.0, tenant, audited.tenant.as_str(), to_json(&entry.record)]).await.map(|_| ())
}

/// Returns the tenant number that an action is recorded under: the tenant's
/// own, or that of the system tenant for what concerns the gateway itself.
pub async fn audit_tenant(tx: &PgTransaction, tenant: Option<i64>) -> Result<i64> {
    match tenant {
        Some(tenant) => Ok(tenant),
        None => Ok(tx.query_opt(SYSTEM, bind![TenantId::SYSTEM]).await?.map_or(0, |row| row.get(0))),
    }
}

impl UnitOfWork<'_> {
    /// Records an action on the endpoint with this number.
    pub async fn record_of_endpoint(&self, by: &Initiator, endpoint: i64, audited: &AuditedAction) -> Result<()> {
        if by.caller().is_none() {
            return Ok(());
        }
        let sql = "SELECT tenant FROM posthaste.endpoints WHERE no = $1";
        let tenant = self.tx.query(sql, bind![endpoint]).await?[0].get(0);
        record(self.tx, by, tenant, audited).await
    }
}

/// Returns the id at which the last page of a list ended.
pub fn page_end<T: std::str::FromStr>(page: &PageRequest) -> Result<Option<T>> {
    page.cursor.as_deref().map(|text| text.parse().map_err(|_| Error::InvalidCursor)).transpose()
}

/// Returns how many rows to read, so that it shows whether a next page exists.
pub fn one_more(page: &PageRequest) -> i64 {
    i64::try_from(page.limit).unwrap_or(i64::MAX).saturating_add(1)
}

#[async_trait]
impl AccessStore for PostgresStore {
    fn token(&self, id: TokenId) -> Option<Arc<Token>> {
        self.shared.index().token(id)
    }

    /// A change waits for this node's acknowledgement while its lease lasts, so
    /// within its lease a node that has read the catalog has missed nothing.
    fn is_current(&self) -> bool {
        let is_leased = self.shared.shard_leases.leased_until().is_some_and(|until| until > Instant::now());
        is_leased && self.shared.catalog.acknowledged() > 0
    }

    async fn create_token(&self, by: &Initiator, token: Token) -> Result<()> {
        self.change_catalog(async move |work| {
            let version = work.bump_catalog_version().await?;
            if let Some(tenant) = &token.tenant {
                work.grow_tokens(tenant).await?;
            }
            let sql = "INSERT INTO posthaste.tokens (id, tenant, name, rights, hash, created_at, expires_at, version)
                       SELECT {id}, t.no, {name}, {rights}, {hash}, {created_at}, {expires_at}, {version}
                       FROM (SELECT 1) one LEFT JOIN posthaste.tenants t ON t.id = {tenant} AND t.deleted_at IS NULL
                       WHERE {tenant} IS NULL OR t.no IS NOT NULL RETURNING tenant";
            let tenant = token.tenant.as_ref().map(|tenant| tenant.as_str().to_owned());
            let (rights, hash) = (to_json(&token.rights), token.hash.as_slice());
            let (created_at, expires_at) = (millis(token.created_at), token.expires_at.map(millis));
            let (sql, bound) = by_name![sql;
                id = token.id.0,
                tenant = tenant,
                name = token.name,
                rights = rights,
                hash = hash,
                created_at = created_at,
                expires_at = expires_at,
                version = version,
            ];
            let row = work.tx.query_opt(&sql, &bound).await?;
            let tenant = row.ok_or(Error::NotFound(MissingResource::Tenant))?.get(0);
            let audited = AuditedAction::new(AuditAction::TokenCreated, &token.recorded_with(), token.id);
            let rights = token.rights.iter().map(|right| right.to_string()).collect();
            record(work.tx, by, audit_tenant(work.tx, tenant).await?, &audited.with_changed_fields(rights)).await?;
            work.after_commit(move |index| index.put_token(Arc::new(token)));
            Ok(())
        })
        .await
    }

    async fn revoke_token(&self, by: &Initiator, id: TokenId, scope: TokenScope, now: Timestamp) -> Result<()> {
        self.change_catalog(async move |work| {
            let version = work.bump_catalog_version().await?;
            let sql = format!(
                "UPDATE posthaste.tokens u SET deleted_at = $4, version = $5
                 FROM posthaste.tokens k LEFT JOIN posthaste.tenants t ON t.no = k.tenant
                 WHERE u.id = $1 AND k.id = $1 AND k.kind = 0 AND {IN_SCOPE} AND u.deleted_at IS NULL
                 RETURNING t.no, t.id"
            );
            let (tenant, with_gateways) = scope.columns();
            let row = work.tx.query_opt(&sql, bind![id.0, tenant, with_gateways, millis(now), version]).await?;
            let row = row.ok_or(Error::NotFound(MissingResource::Token))?;
            let tenant = row.get::<_, Option<&str>>(1).map_or_else(TenantId::system, stored_tenant);
            let audited = AuditedAction::new(AuditAction::TokenRevoked, &tenant, id);
            record(work.tx, by, audit_tenant(work.tx, row.get(0)).await?, &audited).await?;
            work.after_commit(move |index| index.remove_token(id));
            Ok(())
        })
        .await
    }

    async fn use_tokens(&self, used: Vec<(TokenId, Timestamp)>) -> Result<()> {
        // Rows are locked in one order, so that two nodes cannot deadlock.
        let mut used = used;
        used.sort();
        let (ids, times): (Vec<uuid::Uuid>, Vec<i64>) = used.into_iter().map(|(id, at)| (id.0, millis(at))).unzip();
        let sql = "WITH used AS (
                       SELECT k.id, u.at FROM unnest($1, $2) AS u (id, at)
                       JOIN posthaste.tokens k ON k.id = u.id ORDER BY k.id FOR UPDATE OF k)
                   UPDATE posthaste.tokens k SET used_at = greatest(k.used_at, used.at) FROM used WHERE k.id = used.id";
        let tx = self.shared.begin().await?;
        tx.execute(sql, bind![ids, times]).await?;
        tx.commit().await
    }

    async fn tokens(&self, scope: TokenScope, page: PageRequest) -> Result<ListPage<Token>> {
        let below = page_end::<TokenId>(&page)?.map_or(uuid::Uuid::max(), |below| below.0);
        let sql = format!(
            "SELECT {} {TOKENS} WHERE k.id < $1 AND k.kind = 0 AND {IN_SCOPE} AND k.deleted_at IS NULL AND t.deleted_at IS NULL
             ORDER BY k.id DESC LIMIT $4",
            TokenColumns::COLUMNS
        );
        let (tenant, with_gateways) = scope.columns();
        let rows = read_rows(&self.shared, &sql, bind![below, tenant, with_gateways, one_more(&page)]).await?;
        let tokens = rows.iter().map(|row| TokenColumns::read(row).token());
        Ok(ListPage::truncate(tokens.collect(), page.limit, |token| token.id.to_string()))
    }

    async fn record(&self, by: &Initiator, audited: AuditedAction) -> Result<()> {
        let Some(tenant) = self.shared.index().tenant_no(&audited.tenant) else { return Ok(()) };
        let tx = self.shared.begin().await?;
        record(&tx, by, tenant, &audited).await?;
        tx.commit().await
    }

    async fn audit(&self, query: AuditQuery, page: PageRequest) -> Result<ListPage<AuditEntry>> {
        let (first, end) = query.id_range(page_end::<AuditId>(&page)?);
        // Three separate conditions, so that each is one index scan.
        let is_of = match (&query.tenant, query.is_present_only) {
            (None, _) => "$4::text IS NULL",
            (Some(_), false) => "tenant_id = $4",
            (Some(_), true) => {
                "tenant_id = $4 AND tenant = (SELECT no FROM posthaste.tenants WHERE id = $4 AND deleted_at IS NULL)"
            }
        };
        let sql = format!(
            "SELECT id, record FROM posthaste.audit WHERE id >= $1 AND id < $2 AND {is_of} ORDER BY id DESC LIMIT $3"
        );
        let of = query.tenant.as_ref().map(|tenant| tenant.as_str().to_owned());
        let rows = read_rows(&self.shared, &sql, bind![first.0, end.0, query.entries_to_read(&page), of]).await?;
        let entry =
            |row: &Row| Ok(AuditEntry { id: AuditId(row.get(0)), record: from_json("audit.record", row.get(1))? });
        Ok(query.page_of(rows.iter().map(entry).collect::<Result<_>>()?, page.limit))
    }

    async fn forget_audit(&self, before: Timestamp, limit: usize) -> Result<usize> {
        // Only the node that owns the first shard does this.
        if !self.shared.shard_leases.holds(Shard(0)) {
            return Ok(0);
        }
        let (_, end) = AuditQuery { until: Some(before), ..AuditQuery::default() }.id_range(None);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let tx = self.shared.begin().await?;
        let sql = "DELETE FROM posthaste.audit WHERE id IN (
                       SELECT id FROM posthaste.audit WHERE id < $1 ORDER BY id LIMIT $2)";
        let deleted = tx.execute(sql, bind![end.0, limit]).await?;
        // Every node has acknowledged these revocations long ago.
        let sql = "DELETE FROM posthaste.tokens WHERE deleted_at < $1";
        tx.execute(sql, bind![millis(before)]).await?;
        tx.commit().await?;
        Ok(usize::try_from(deleted).unwrap_or(usize::MAX))
    }
}
