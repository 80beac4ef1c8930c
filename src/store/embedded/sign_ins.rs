//! Stores sign-ins among the tokens, and the look of portals in a table of its
//! own.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{OptionalExtension, params};

use super::EmbeddedStore;
use super::access::{TOKENS, TokenToInsert, one_more, page_end};
use super::rows::{at, id_bytes, millis, uuid_of};
use super::writer::WriteTransaction;
use crate::model::audit::{AuditAction, AuditedAction, Initiator};
use crate::model::id::{TenantId, TokenId};
use crate::model::portal_theme::PortalTheme;
use crate::model::token::{Token, TokenHash, TokenKind};
use crate::store::catalog_columns::TokenColumns;
use crate::store::codes::token_kind_code;
use crate::store::row::SqliteColumns;
use crate::store::sign_ins::{created_action, sign_ins_max};
use crate::store::stored_json::{from_json, to_json};
use crate::store::{Error, ListPage, MissingResource, PageRequest, Result, SignInScope, SignInStore};

/// Returns the refusal of one more sign-in, if the owner has as many as may be
/// open.
fn refusal(transaction: &WriteTransaction<'_>, owner: Option<i64>, token: &Token) -> rusqlite::Result<Option<Error>> {
    let sql = "SELECT count(*) FROM tokens WHERE tenant IS ? AND kind = ? AND expires_at > ?";
    let bound = params![owner, token_kind_code(token.kind), millis(token.created_at)];
    let open: u32 = transaction.db.query_row(sql, bound, |row| row.get(0))?;
    let most = sign_ins_max(token.kind);
    Ok((open >= most).then_some(Error::TooManySignIns { kind: token.kind, most }))
}

impl WriteTransaction<'_> {
    /// Records that a sign-in was made, and puts it in force after the commit.
    fn sign_in_made(&mut self, by: &Initiator, owner: Option<i64>, token: Token) -> rusqlite::Result<()> {
        let audited = AuditedAction::new(created_action(token.kind), &token.recorded_with(), token.id);
        let rights = token.rights.iter().map(|right| right.to_string()).collect();
        self.record(by, self.audit_tenant(owner)?, &audited.with_changed_fields(rights))?;
        self.after_commit(move |index| index.put_token(Arc::new(token)));
        Ok(())
    }
}

#[async_trait]
impl SignInStore for EmbeddedStore {
    async fn create_sign_in(&self, by: &Initiator, sign_in: Token) -> Result<()> {
        let by = by.clone();
        self.writer
            .write(move |transaction| {
                let owner = sign_in.tenant.as_ref().map(|tenant| transaction.tenant_no(tenant)).transpose()?;
                if owner == Some(None) {
                    return Ok(Err(Error::NotFound(MissingResource::Tenant)));
                }
                let owner = owner.flatten();
                if let Some(refused) = refusal(transaction, owner, &sign_in)? {
                    return Ok(Err(refused));
                }
                TokenToInsert::of(&sign_in, owner).insert(transaction.db)?;
                transaction.sign_in_made(&by, owner, sign_in)?;
                Ok(Ok(()))
            })
            .await?
    }

    async fn redeem_code(&self, by: &Initiator, code: TokenHash, session: Token) -> Result<()> {
        let by = by.clone();
        self.writer
            .write(move |transaction| {
                let sql = "SELECT tenant FROM tokens WHERE id = ? AND kind = 1 AND hash = ? AND expires_at > ?";
                let bound = params![id_bytes(session.id.0), code, millis(session.created_at)];
                let row = transaction.db.query_row(sql, bound, |row| row.get(0)).optional()?;
                let Some(owner): Option<Option<i64>> = row else {
                    return Ok(Err(Error::NotFound(MissingResource::Token)));
                };
                if let Some(refused) = refusal(transaction, owner, &session)? {
                    return Ok(Err(refused));
                }
                transaction.db.execute(
                    "UPDATE tokens SET kind = 2, hash = ?, created_at = ?, expires_at = ?, used_at = ? WHERE id = ?",
                    params![
                        session.hash,
                        millis(session.created_at),
                        session.expires_at.map(millis),
                        session.used_at.map(millis),
                        id_bytes(session.id.0),
                    ],
                )?;
                transaction.sign_in_made(&by, owner, session)?;
                Ok(Ok(()))
            })
            .await?
    }

    async fn end_sign_ins(
        &self,
        by: &Initiator,
        scope: SignInScope,
        action: AuditAction,
        _: Timestamp,
    ) -> Result<usize> {
        let by = by.clone();
        self.writer
            .write(move |transaction| {
                let (id, tenant, is_operators) = scope.columns();
                let sql = format!(
                    "SELECT k.id, k.tenant, t.id {TOKENS}
                     WHERE k.kind > 0 AND (?1 IS NULL OR k.id = ?1) AND (?2 IS NULL OR t.id = ?2)
                         AND (NOT ?3 OR k.tenant IS NULL)"
                );
                let mut statement = transaction.db.prepare_cached(&sql)?;
                let bound = params![id.map(|id| id_bytes(id.0)), tenant, is_operators];
                let rows = statement.query_map(bound, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
                let rows: Vec<([u8; 16], Option<i64>, Option<TenantId>)> = rows.collect::<rusqlite::Result<_>>()?;
                drop(statement);
                let Some((_, owner, tenant)) = rows.first().cloned() else {
                    return Ok(match scope.one() {
                        Some(_) => Err(Error::NotFound(MissingResource::Token)),
                        None => Ok(0),
                    });
                };
                for (id, _, _) in &rows {
                    transaction.db.prepare_cached("DELETE FROM tokens WHERE id = ?")?.execute([id])?;
                }
                let tenant = tenant.unwrap_or_else(TenantId::system);
                let audited = match scope.one() {
                    Some(id) => AuditedAction::new(action, &tenant, id),
                    None => AuditedAction::new(action, &tenant, &tenant),
                };
                transaction.record(&by, transaction.audit_tenant(owner)?, &audited)?;
                let ended: Vec<TokenId> = rows.into_iter().map(|(id, _, _)| TokenId(uuid_of(id))).collect();
                let count = ended.len();
                transaction.after_commit(move |index| ended.into_iter().for_each(|id| index.remove_token(id)));
                Ok(Ok(count))
            })
            .await?
    }

    async fn sign_ins(
        &self,
        tenant: Option<&TenantId>,
        kind: TokenKind,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<ListPage<Token>> {
        let (tenant, below) = (tenant.cloned(), page_end::<TokenId>(&page)?);
        // Without a tenant, `?1` is NULL.
        let owner = if tenant.is_some() { "t.id = ?1" } else { "k.tenant IS ?1" };
        self.read(move |db| {
            let sql = format!(
                "SELECT {} {TOKENS} WHERE t.deleted_at IS NULL AND {owner} AND k.kind = ?2 AND k.expires_at > ?3
                     AND k.id < ?4
                 ORDER BY k.id DESC LIMIT ?5",
                TokenColumns::COLUMNS
            );
            let below = below.map_or([0xff; 16], |below| id_bytes(below.0));
            let tenant = tenant.as_ref().map(TenantId::as_str);
            let bound = params![tenant, token_kind_code(kind), millis(now), below, one_more(&page)];
            let mut statement = db.prepare_cached(&sql)?;
            let tokens = statement.query_map(bound, |row| Ok(TokenColumns::read(row)?.token()))?;
            let tokens = tokens.collect::<rusqlite::Result<Vec<_>>>()?;
            Ok(ListPage::truncate(tokens, page.limit, |token| token.id.to_string()))
        })
        .await
    }

    async fn sign_in_used_at(&self, id: TokenId) -> Result<Option<Timestamp>> {
        self.read(move |db| {
            let sql = "SELECT used_at FROM tokens WHERE id = ?";
            let used_at = db.query_row(sql, [id_bytes(id.0)], |row| row.get::<_, Option<i64>>(0)).optional()?;
            Ok(used_at.flatten().map(at))
        })
        .await
    }

    async fn forget_sign_ins(&self, now: Timestamp, idle_before: Timestamp, limit: usize) -> Result<usize> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.writer
            .write_later(move |transaction| {
                let sql = "DELETE FROM tokens WHERE id IN (
                               SELECT id FROM tokens WHERE kind > 0 AND (
                                   expires_at <= ?1 OR kind = 2 AND max(created_at, coalesce(used_at, 0)) < ?2)
                               LIMIT ?3) RETURNING id";
                let mut statement = transaction.db.prepare_cached(sql)?;
                let ids = statement.query_map(params![millis(now), millis(idle_before), limit], |row| row.get(0))?;
                let ids: Vec<[u8; 16]> = ids.collect::<rusqlite::Result<_>>()?;
                drop(statement);
                let count = ids.len();
                transaction.after_commit(move |index| {
                    ids.into_iter().for_each(|id| index.remove_token(TokenId(uuid_of(id))));
                });
                Ok(count)
            })
            .await
    }

    async fn portal_theme(&self, tenant: &TenantId) -> Result<PortalTheme> {
        let tenant = tenant.clone();
        let stored: Option<String> = self
            .read(move |db| {
                let sql = "SELECT o.theme FROM portals o JOIN tenants t ON t.no = o.tenant
                           WHERE t.id = ? AND t.deleted_at IS NULL";
                db.query_row(sql, [tenant.as_str()], |row| row.get(0)).optional()
            })
            .await?;
        stored.map_or_else(|| Ok(PortalTheme::default()), |text| Ok(from_json("portals.theme", &text)?))
    }

    async fn put_portal_theme(&self, by: &Initiator, tenant: &TenantId, theme: PortalTheme) -> Result<()> {
        let (by, tenant) = (by.clone(), tenant.clone());
        self.writer
            .write(move |transaction| {
                let Some(no) = transaction.tenant_no(&tenant)? else {
                    return Ok(Err(Error::NotFound(MissingResource::Tenant)));
                };
                let sql = "INSERT INTO portals (tenant, theme) VALUES (?, ?)
                           ON CONFLICT (tenant) DO UPDATE SET theme = excluded.theme";
                transaction.db.execute(sql, params![no, to_json(&theme)])?;
                let audited = AuditedAction::new(AuditAction::TenantChanged, &tenant, &tenant);
                transaction.record(&by, no, &audited.with_changed_fields(vec!["portal".to_owned()]))?;
                Ok(Ok(()))
            })
            .await?
    }

    async fn portal_logo(&self, tenant: &TenantId) -> Result<Option<Vec<u8>>> {
        let tenant = tenant.clone();
        self.read(move |db| {
            let sql = "SELECT o.logo FROM portals o JOIN tenants t ON t.no = o.tenant
                       WHERE t.id = ? AND t.deleted_at IS NULL";
            Ok(db.query_row(sql, [tenant.as_str()], |row| row.get::<_, Option<Vec<u8>>>(0)).optional()?.flatten())
        })
        .await
    }

    async fn put_portal_logo(&self, by: &Initiator, tenant: &TenantId, logo: Option<Vec<u8>>) -> Result<bool> {
        let (by, tenant) = (by.clone(), tenant.clone());
        self.writer
            .write(move |transaction| {
                let Some(no) = transaction.tenant_no(&tenant)? else {
                    return Ok(Err(Error::NotFound(MissingResource::Tenant)));
                };
                let sql = "SELECT logo IS NOT NULL FROM portals WHERE tenant = ?";
                let before: Option<bool> = transaction.db.query_row(sql, [no], |row| row.get(0)).optional()?;
                let was_there = before.unwrap_or(false);
                if logo.is_none() && !was_there {
                    return Ok(Ok(false));
                }
                let sql = "INSERT INTO portals (tenant, theme, logo) VALUES (?, '{}', ?)
                           ON CONFLICT (tenant) DO UPDATE SET logo = excluded.logo";
                transaction.db.execute(sql, params![no, logo])?;
                let audited = AuditedAction::new(AuditAction::TenantChanged, &tenant, &tenant);
                transaction.record(&by, no, &audited.with_changed_fields(vec!["portal_logo".to_owned()]))?;
                Ok(Ok(was_there))
            })
            .await?
    }
}
