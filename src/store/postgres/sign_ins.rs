//! Stores sign-ins among the tokens, and the look of portals in a table of its
//! own.
//!
//! A sign-in is part of the catalog, as every token: the call that makes or ends
//! one answers once every live node knows it. The look of a portal is not, and is
//! read when it is needed.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use super::PostgresStore;
use super::access::{TOKENS, audit_tenant, one_more, page_end, record};
use super::read_query::read_rows;
use super::rows::{at, millis, stored_tenant};
use super::stored_function::NamedSql;
use super::transaction::{PgTransaction, bind};
use super::unit_of_work::UnitOfWork;
use crate::model::audit::{AuditAction, AuditedAction, Initiator};
use crate::model::delivery::time_before;
use crate::model::id::{TenantId, TokenId};
use crate::model::portal_theme::PortalTheme;
use crate::model::shard::Shard;
use crate::model::sign_in::PORTAL_SESSION_MAX;
use crate::model::token::{Token, TokenHash, TokenKind};
use crate::store::catalog_columns::TokenColumns;
use crate::store::codes::token_kind_code;
use crate::store::row::{Batch, PostgresColumns, batch};
use crate::store::sign_ins::{created_action, sign_ins_max};
use crate::store::stored_json::{from_json, to_json};
use crate::store::{Error, ListPage, MissingResource, PageRequest, Result, SignInScope, SignInStore};

/// Time for which the row of an ended sign-in stays, so that every node learns of
/// its end. No session lasts that long, so what a node has missed is over there.
const ENDED_KEPT: Duration = Duration::from_secs(2 * PORTAL_SESSION_MAX.0.as_secs());

/// Refuses one more sign-in if the owner has as many as may be open. The catalog
/// is locked, so nobody else adds one until this transaction ends.
async fn check_sign_in_limit(tx: &PgTransaction, owner: Option<i64>, token: &Token) -> Result<()> {
    let sql = "SELECT count(*) FROM posthaste.tokens
               WHERE tenant IS NOT DISTINCT FROM $1 AND kind = $2 AND expires_at > $3 AND deleted_at IS NULL";
    let open: i64 = tx.query(sql, bind![owner, token_kind_code(token.kind), millis(token.created_at)]).await?[0].get(0);
    let most = sign_ins_max(token.kind);
    if open >= i64::from(most) { Err(Error::TooManySignIns { kind: token.kind, most }) } else { Ok(()) }
}

/// Returns the number of a sign-in's tenant; none if it belongs to the gateway.
async fn owner_of(tx: &PgTransaction, tenant: Option<&TenantId>) -> Result<Option<i64>> {
    match tenant {
        None => Ok(None),
        Some(tenant) => tenant_no(tx, tenant).await.map(Some),
    }
}

/// Returns the number of a tenant that is not deleted.
async fn tenant_no(tx: &PgTransaction, tenant: &TenantId) -> Result<i64> {
    let sql = "SELECT no FROM posthaste.tenants WHERE id = $1 AND deleted_at IS NULL";
    let row = tx.query_opt(sql, bind![tenant.as_str()]).await?;
    Ok(row.ok_or(Error::NotFound(MissingResource::Tenant))?.get(0))
}

batch! {
    /// Sign-ins to insert among the tokens, as columns.
    struct SignInBatch of new SignInRow {
        id: TokenId = "id",
        tenant: Option<i64> = "tenant",
        name: String = "name",
        rights: String = "rights",
        hash: Vec<u8> = "hash",
        created_at: i64 = "created_at",
        expires_at: Option<i64> = "expires_at",
        used_at: Option<i64> = "used_at",
        kind: i16 = "kind",
        sign_in: Option<String> = "sign_in",
        version: i64 = "version",
    }
}

static INSERT: LazyLock<String> = LazyLock::new(|| {
    let sql =
        "INSERT INTO posthaste.tokens ({new.columns}) SELECT {new.columns} FROM unnest({new}) AS k ({new.columns})";
    NamedSql::new(sql).batch::<SignInBatch>("new").text()
});

impl UnitOfWork<'_> {
    /// Records that a sign-in was made, and puts it in force after the commit.
    async fn sign_in_made(&mut self, by: &Initiator, owner: Option<i64>, token: Token) -> Result<()> {
        let audited = AuditedAction::new(created_action(token.kind), &token.recorded_with(), token.id);
        let rights = token.rights.iter().map(|right| right.to_string()).collect();
        record(self.tx, by, audit_tenant(self.tx, owner).await?, &audited.with_changed_fields(rights)).await?;
        self.after_commit(move |index| index.put_token(Arc::new(token)));
        Ok(())
    }
}

#[async_trait]
impl SignInStore for PostgresStore {
    async fn create_sign_in(&self, by: &Initiator, sign_in: Token) -> Result<()> {
        self.change_catalog(async move |work| {
            let version = work.bump_catalog_version().await?;
            let owner = owner_of(work.tx, sign_in.tenant.as_ref()).await?;
            check_sign_in_limit(work.tx, owner, &sign_in).await?;
            let row = SignInRow {
                id: sign_in.id,
                tenant: owner,
                name: sign_in.name.clone(),
                rights: to_json(&sign_in.rights),
                hash: sign_in.hash.to_vec(),
                created_at: millis(sign_in.created_at),
                expires_at: sign_in.expires_at.map(millis),
                used_at: sign_in.used_at.map(millis),
                kind: token_kind_code(sign_in.kind),
                sign_in: sign_in.sign_in.as_ref().map(to_json),
                version,
            };
            work.tx.execute(&INSERT, &SignInBatch::from_iter([row]).parameters()).await?;
            work.sign_in_made(by, owner, sign_in).await
        })
        .await
    }

    async fn redeem_code(&self, by: &Initiator, code: TokenHash, session: Token) -> Result<()> {
        self.change_catalog(async move |work| {
            let version = work.bump_catalog_version().await?;
            // A second node that asks meanwhile waits for the catalog, and finds a session here.
            let sql = "SELECT tenant FROM posthaste.tokens
                       WHERE id = $1 AND kind = 1 AND hash = $2 AND expires_at > $3 AND deleted_at IS NULL FOR UPDATE";
            let row = work
                .tx
                .query_opt(sql, bind![session.id.0, code.as_slice(), millis(session.created_at)])
                .await?
                .ok_or(Error::NotFound(MissingResource::Token))?;
            let owner: Option<i64> = row.get(0);
            check_sign_in_limit(work.tx, owner, &session).await?;
            let sql = "UPDATE posthaste.tokens
                       SET kind = 2, hash = $2, created_at = $3, expires_at = $4, used_at = $5, version = $6
                       WHERE id = $1";
            work.tx
                .execute(
                    sql,
                    bind![
                        session.id.0,
                        session.hash.as_slice(),
                        millis(session.created_at),
                        session.expires_at.map(millis),
                        session.used_at.map(millis),
                        version,
                    ],
                )
                .await?;
            work.sign_in_made(by, owner, session).await
        })
        .await
    }

    async fn end_sign_ins(
        &self,
        by: &Initiator,
        scope: SignInScope,
        action: AuditAction,
        now: Timestamp,
    ) -> Result<usize> {
        self.change_catalog(async move |work| {
            let version = work.bump_catalog_version().await?;
            let sql = "UPDATE posthaste.tokens u SET deleted_at = $3, version = $4
                       FROM posthaste.tokens k LEFT JOIN posthaste.tenants t ON t.no = k.tenant
                       WHERE u.id = k.id AND k.kind > 0 AND u.deleted_at IS NULL
                           AND ($1 IS NULL OR k.id = $1) AND ($2 IS NULL OR t.id = $2)
                           AND (NOT $5 OR k.tenant IS NULL)
                       RETURNING u.id, t.no, t.id";
            let (id, tenant, is_operators) = scope.columns();
            let rows = work.tx.query(sql, bind![id.map(|id| id.0), tenant, millis(now), version, is_operators]).await?;
            let Some(first) = rows.first() else {
                return match scope.one() {
                    Some(_) => Err(Error::NotFound(MissingResource::Token)),
                    None => Ok(0),
                };
            };
            let tenant = first.get::<_, Option<&str>>(2).map_or_else(TenantId::system, stored_tenant);
            let audited = match scope.one() {
                Some(id) => AuditedAction::new(action, &tenant, id),
                None => AuditedAction::new(action, &tenant, &tenant),
            };
            record(work.tx, by, audit_tenant(work.tx, first.get(1)).await?, &audited).await?;
            let ended: Vec<TokenId> = rows.iter().map(|row| TokenId(row.get(0))).collect();
            let count = ended.len();
            work.after_commit(move |index| ended.into_iter().for_each(|id| index.remove_token(id)));
            Ok(count)
        })
        .await
    }

    async fn sign_ins(
        &self,
        tenant: Option<&TenantId>,
        kind: TokenKind,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<ListPage<Token>> {
        let below = page_end::<TokenId>(&page)?.map_or(uuid::Uuid::max(), |below| below.0);
        let owner = if tenant.is_some() { "t.id = $1" } else { "k.tenant IS NULL AND $1::text IS NULL" };
        let sql = format!(
            "SELECT {} {TOKENS} WHERE {owner} AND t.deleted_at IS NULL AND k.deleted_at IS NULL AND k.kind = $2
                 AND k.expires_at > $3 AND k.id < $4
             ORDER BY k.id DESC LIMIT $5",
            TokenColumns::COLUMNS
        );
        let rows = read_rows(
            &self.shared,
            &sql,
            bind![tenant.map(TenantId::as_str), token_kind_code(kind), millis(now), below, one_more(&page)],
        )
        .await?;
        let tokens = rows.iter().map(|row| TokenColumns::read(row).token());
        Ok(ListPage::truncate(tokens.collect(), page.limit, |token| token.id.to_string()))
    }

    async fn sign_in_used_at(&self, id: TokenId) -> Result<Option<Timestamp>> {
        let sql = "SELECT used_at FROM posthaste.tokens WHERE id = $1 AND deleted_at IS NULL";
        let rows = read_rows(&self.shared, sql, bind![id.0]).await?;
        Ok(rows.first().and_then(|row| row.get::<_, Option<i64>>(0)).map(at))
    }

    async fn forget_sign_ins(&self, now: Timestamp, idle_before: Timestamp, limit: usize) -> Result<usize> {
        // Only the node that owns the first shard does this.
        if !self.shared.shard_leases.holds(Shard(0)) {
            return Ok(0);
        }
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let over = "kind > 0 AND deleted_at IS NULL AND (
                        expires_at <= $1 OR kind = 2 AND greatest(created_at, used_at) < $2)";
        let tx = self.shared.begin().await?;
        tx.execute(
            "DELETE FROM posthaste.tokens WHERE kind > 0 AND deleted_at < $1",
            bind![millis(time_before(now, ENDED_KEPT))],
        )
        .await?;
        let sql = format!("SELECT EXISTS (SELECT FROM posthaste.tokens WHERE {over})");
        let has_some: bool = tx.query(&sql, bind![millis(now), millis(idle_before)]).await?[0].get(0);
        tx.commit().await?;
        // A change of the catalog is one that all nodes wait for.
        if !has_some {
            return Ok(0);
        }
        self.change_catalog(async move |work| {
            let version = work.bump_catalog_version().await?;
            let sql = format!(
                "UPDATE posthaste.tokens SET deleted_at = $1, version = $3 WHERE id IN (
                     SELECT id FROM posthaste.tokens WHERE {over} LIMIT $4) RETURNING id"
            );
            let rows = work.tx.query(&sql, bind![millis(now), millis(idle_before), version, limit]).await?;
            let ended: Vec<TokenId> = rows.iter().map(|row| TokenId(row.get(0))).collect();
            let count = ended.len();
            work.after_commit(move |index| ended.into_iter().for_each(|id| index.remove_token(id)));
            Ok(count)
        })
        .await
    }

    async fn portal_theme(&self, tenant: &TenantId) -> Result<PortalTheme> {
        let sql = "SELECT o.theme FROM posthaste.portals o JOIN posthaste.tenants t ON t.no = o.tenant
                   WHERE t.id = $1 AND t.deleted_at IS NULL";
        match read_rows(&self.shared, sql, bind![tenant.as_str()]).await?.first() {
            Some(row) => Ok(from_json("portals.theme", row.get(0))?),
            None => Ok(PortalTheme::default()),
        }
    }

    async fn put_portal_theme(&self, by: &Initiator, tenant: &TenantId, theme: PortalTheme) -> Result<()> {
        let tx = self.shared.begin().await?;
        let no = tenant_no(&tx, tenant).await?;
        let sql = "INSERT INTO posthaste.portals (tenant, theme) VALUES ($1, $2)
                   ON CONFLICT (tenant) DO UPDATE SET theme = excluded.theme";
        tx.execute(sql, bind![no, to_json(&theme)]).await?;
        let audited = AuditedAction::new(AuditAction::TenantChanged, tenant, tenant);
        record(&tx, by, no, &audited.with_changed_fields(vec!["portal".to_owned()])).await?;
        tx.commit().await
    }

    async fn portal_logo(&self, tenant: &TenantId) -> Result<Option<Vec<u8>>> {
        let sql = "SELECT o.logo FROM posthaste.portals o JOIN posthaste.tenants t ON t.no = o.tenant
                   WHERE t.id = $1 AND t.deleted_at IS NULL";
        let rows = read_rows(&self.shared, sql, bind![tenant.as_str()]).await?;
        Ok(rows.first().and_then(|row| row.get(0)))
    }

    async fn put_portal_logo(&self, by: &Initiator, tenant: &TenantId, logo: Option<Vec<u8>>) -> Result<bool> {
        let tx = self.shared.begin().await?;
        let no = tenant_no(&tx, tenant).await?;
        let sql = "SELECT logo IS NOT NULL FROM posthaste.portals WHERE tenant = $1 FOR UPDATE";
        let was_there = tx.query_opt(sql, bind![no]).await?.is_some_and(|row| row.get(0));
        if logo.is_none() && !was_there {
            tx.roll_back().await;
            return Ok(false);
        }
        let sql = "INSERT INTO posthaste.portals (tenant, theme, logo) VALUES ($1, '{}', $2)
                   ON CONFLICT (tenant) DO UPDATE SET logo = excluded.logo";
        tx.execute(sql, bind![no, logo]).await?;
        let audited = AuditedAction::new(AuditAction::TenantChanged, tenant, tenant);
        record(&tx, by, no, &audited.with_changed_fields(vec!["portal_logo".to_owned()])).await?;
        tx.commit().await?;
        Ok(was_there)
    }
}
