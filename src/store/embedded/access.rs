//! Stores tokens and the audit log in tables of their own.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::EmbeddedStore;
use super::rows::{id_bytes, millis, uuid_of};
use super::writer::WriteTransaction;
use crate::model::audit::{AuditAction, AuditEntry, AuditedAction, Initiator};
use crate::model::id::{AuditId, TenantId, TokenId};
use crate::model::token::{Token, TokenHash};
use crate::store::access::draw_id_bits;
use crate::store::catalog_columns::TokenColumns;
use crate::store::catalog_index::CatalogIndex;
use crate::store::codes::token_kind_code;
use crate::store::row::{SqliteColumns, insert};
use crate::store::stored_json::{from_json, to_json};
use crate::store::{AccessStore, AuditQuery, Error, ListPage, MissingResource, PageRequest, Result, TokenScope};

/// The tables that a token is read from.
pub const TOKENS: &str = "FROM tokens k LEFT JOIN tenants t ON t.no = k.tenant";

/// SQL condition that a token is in a [`TokenScope`]: it belongs to the tenant
/// `?2`, or to any tenant if that is NULL, or with `?3` to the gateway.
const IN_SCOPE: &str = "(t.id = coalesce(?2, t.id) OR ?3 AND k.tenant IS NULL)";

insert! {
    /// A token to insert. Links to sign in with, and sessions, are tokens, too.
    pub struct TokenToInsert into "tokens" {
        id: [u8; 16] = "id",
        tenant: Option<i64> = "tenant",
        name: String = "name",
        rights: String = "rights",
        hash: TokenHash = "hash",
        created_at: i64 = "created_at",
        expires_at: Option<i64> = "expires_at",
        used_at: Option<i64> = "used_at",
        kind: i16 = "kind",
        sign_in: Option<String> = "sign_in",
    }
}

impl TokenToInsert {
    /// Returns the row of a token whose tenant has this number.
    pub fn of(token: &Token, tenant: Option<i64>) -> Self {
        Self {
            id: id_bytes(token.id.0),
            tenant,
            name: token.name.clone(),
            rights: to_json(&token.rights),
            hash: token.hash,
            created_at: millis(token.created_at),
            expires_at: token.expires_at.map(millis),
            used_at: token.used_at.map(millis),
            kind: token_kind_code(token.kind),
            sign_in: token.sign_in.as_ref().map(to_json),
        }
    }
}

/// Loads every token into the index.
pub fn load(db: &Connection, index: &mut CatalogIndex) -> rusqlite::Result<()> {
    let sql = format!("SELECT {} {TOKENS} WHERE t.deleted_at IS NULL", TokenColumns::COLUMNS);
    let mut statement = db.prepare(&sql)?;
    for token in statement.query_map([], TokenColumns::read)? {
        index.put_token(Arc::new(token?.token()));
    }
    Ok(())
}

impl WriteTransaction<'_> {
    /// Records an action in the audit log, if a caller made it.
    pub fn record(&self, by: &Initiator, tenant: i64, audited: &AuditedAction) -> rusqlite::Result<()> {
        let Some(caller) = by.caller() else { return Ok(()) };
        let entry = AuditEntry::of(caller, audited, draw_id_bits());
        let sql = "INSERT INTO audit (id, tenant, tenant_id, record) VALUES (?, ?, ?, ?)";
        let bound = params![id_bytes(entry.id.0), tenant, audited.tenant.as_str(), to_json(&entry.record)];
        self.db.prepare_cached(sql)?.execute(bound).map(|_| ())
    }

    /// Records an action on the endpoint with this number.
    pub fn record_of_endpoint(&self, by: &Initiator, endpoint: i64, audited: &AuditedAction) -> rusqlite::Result<()> {
        if by.caller().is_none() {
            return Ok(());
        }
        let sql = "SELECT tenant FROM endpoints WHERE no = ?";
        let tenant = self.db.prepare_cached(sql)?.query_row([endpoint], |row| row.get(0))?;
        self.record(by, tenant, audited)
    }

    /// Returns the tenant number that an action is recorded under: the tenant's
    /// own, or that of the system tenant for what concerns the gateway itself.
    pub fn audit_tenant(&self, tenant: Option<i64>) -> rusqlite::Result<i64> {
        match tenant {
            Some(tenant) => Ok(tenant),
            None => Ok(self.tenant_no(&TenantId::system())?.unwrap_or(0)),
        }
    }

    /// Returns the number of a tenant that is not deleted.
    pub fn tenant_no(&self, id: &TenantId) -> rusqlite::Result<Option<i64>> {
        let sql = "SELECT no FROM tenants WHERE id = ? AND deleted_at IS NULL";
        self.db.query_row(sql, [id.as_str()], |row| row.get(0)).optional()
    }
}

/// Returns the id at which the last page of a list ended.
pub fn page_end<T: std::str::FromStr>(page: &PageRequest) -> Result<Option<T>> {
    page.cursor.as_deref().map(|text| text.parse().map_err(|_| Error::InvalidCursor)).transpose()
}

#[async_trait]
impl AccessStore for EmbeddedStore {
    fn token(&self, id: TokenId) -> Option<Arc<Token>> {
        self.index().token(id)
    }

    fn is_current(&self) -> bool {
        true
    }

    async fn create_token(&self, by: &Initiator, token: Token) -> Result<()> {
        let by = by.clone();
        self.writer
            .write(move |transaction| {
                let tenant = token.tenant.as_ref().map(|tenant| transaction.tenant_no(tenant)).transpose()?;
                if tenant == Some(None) {
                    return Ok(Err(Error::NotFound(MissingResource::Tenant)));
                }
                if let Some(tenant) = &token.tenant
                    && let Err(refused) = transaction.grow_tokens(tenant)
                {
                    return Ok(Err(refused));
                }
                TokenToInsert::of(&token, tenant.flatten()).insert(transaction.db)?;
                let audited = AuditedAction::new(AuditAction::TokenCreated, &token.recorded_with(), token.id);
                let rights = token.rights.iter().map(|right| right.to_string()).collect();
                transaction.record(
                    &by,
                    transaction.audit_tenant(tenant.flatten())?,
                    &audited.with_changed_fields(rights),
                )?;
                transaction.after_commit(move |index| index.put_token(Arc::new(token)));
                Ok(Ok(()))
            })
            .await?
    }

    async fn revoke_token(&self, by: &Initiator, id: TokenId, scope: TokenScope, _: Timestamp) -> Result<()> {
        let by = by.clone();
        self.writer
            .write(move |transaction| {
                let sql = format!("SELECT k.tenant, t.id {TOKENS} WHERE k.id = ?1 AND k.kind = 0 AND {IN_SCOPE}");
                let (tenant, with_gateways) = scope.columns();
                let bound = params![id_bytes(id.0), tenant, with_gateways];
                let row = transaction.db.query_row(&sql, bound, |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
                let Some((no, tenant)): Option<(Option<i64>, Option<TenantId>)> = row else {
                    return Ok(Err(Error::NotFound(MissingResource::Token)));
                };
                transaction.db.execute("DELETE FROM tokens WHERE id = ?", [id_bytes(id.0)])?;
                let audited =
                    AuditedAction::new(AuditAction::TokenRevoked, &tenant.unwrap_or_else(TenantId::system), id);
                transaction.record(&by, transaction.audit_tenant(no)?, &audited)?;
                transaction.after_commit(move |index| index.remove_token(id));
                Ok(Ok(()))
            })
            .await?
    }

    async fn use_tokens(&self, used: Vec<(TokenId, Timestamp)>) -> Result<()> {
        self.writer
            .write_later(move |transaction| {
                let sql = "UPDATE tokens SET used_at = max(coalesce(used_at, 0), ?) WHERE id = ?";
                let mut statement = transaction.db.prepare_cached(sql)?;
                for (id, used_at) in &used {
                    statement.execute(params![millis(*used_at), id_bytes(id.0)])?;
                }
                Ok(())
            })
            .await
    }

    async fn tokens(&self, scope: TokenScope, page: PageRequest) -> Result<ListPage<Token>> {
        let below = page_end::<TokenId>(&page)?;
        self.read(move |db| {
            let sql = format!(
                "SELECT {} {TOKENS} WHERE t.deleted_at IS NULL AND k.id < ?1 AND k.kind = 0 AND {IN_SCOPE}
                 ORDER BY k.id DESC LIMIT ?4",
                TokenColumns::COLUMNS
            );
            let below = below.map_or([0xff; 16], |below| id_bytes(below.0));
            let (tenant, with_gateways) = scope.columns();
            let bound = params![below, tenant, with_gateways, one_more(&page)];
            let mut statement = db.prepare_cached(&sql)?;
            let tokens = statement.query_map(bound, |row| Ok(TokenColumns::read(row)?.token()))?;
            let tokens = tokens.collect::<rusqlite::Result<Vec<_>>>()?;
            Ok(ListPage::truncate(tokens, page.limit, |token| token.id.to_string()))
        })
        .await
    }

    async fn record(&self, by: &Initiator, audited: AuditedAction) -> Result<()> {
        let by = by.clone();
        self.writer
            .write(move |transaction| match transaction.tenant_no(&audited.tenant)? {
                Some(tenant) => transaction.record(&by, tenant, &audited),
                None => Ok(()),
            })
            .await
    }

    async fn audit(&self, query: AuditQuery, page: PageRequest) -> Result<ListPage<AuditEntry>> {
        let (first, end) = query.id_range(page_end::<AuditId>(&page)?);
        self.read(move |db| {
            let is_of = match (&query.tenant, query.is_present_only) {
                (None, _) => "?4 IS NULL",
                (Some(_), false) => "tenant_id = ?4",
                (Some(_), true) => {
                    "tenant_id = ?4 AND tenant = (SELECT no FROM tenants WHERE id = ?4 AND deleted_at IS NULL)"
                }
            };
            let sql = format!(
                "SELECT id, record FROM audit WHERE id >= ?1 AND id < ?2 AND {is_of} ORDER BY id DESC LIMIT ?3"
            );
            let tenant = query.tenant.as_ref().map(TenantId::as_str);
            let bound = params![id_bytes(first.0), id_bytes(end.0), query.entries_to_read(&page), tenant];
            let mut statement = db.prepare_cached(&sql)?;
            let entries = statement.query_map(bound, |row| {
                let record = from_json("audit.record", &row.get::<_, String>(1)?)?;
                Ok(AuditEntry { id: AuditId(uuid_of(row.get(0)?)), record })
            })?;
            Ok(query.page_of(entries.collect::<rusqlite::Result<Vec<_>>>()?, page.limit))
        })
        .await
    }

    async fn forget_audit(&self, before: Timestamp, limit: usize) -> Result<usize> {
        let (_, end) = AuditQuery { until: Some(before), ..AuditQuery::default() }.id_range(None);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.writer
            .write_later(move |transaction| {
                let sql = "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE id < ? ORDER BY id LIMIT ?)";
                transaction.db.execute(sql, params![id_bytes(end.0), limit])
            })
            .await
    }
}

/// Returns how many rows to read, so that it shows whether a next page exists.
pub fn one_more(page: &PageRequest) -> i64 {
    i64::try_from(page.limit).unwrap_or(i64::MAX).saturating_add(1)
}
