//! Checks a tenant's limits inside the transaction that adds to its usage.

use super::transaction::bind;
use super::unit_of_work::UnitOfWork;
use crate::model::id::TenantId;
use crate::model::limits::{TenantLimits, TenantUsage};
use crate::store::stored_json::from_json;
use crate::store::{Error, MissingResource, Result};

impl UnitOfWork<'_> {
    /// Returns what a tenant uses, and its limits. The catalog is locked, so
    /// nobody else adds to it until this transaction ends.
    async fn usage(&mut self, tenant: &TenantId) -> Result<(TenantUsage, TenantLimits)> {
        let version = self.bump_catalog_version().await?;
        let (known, is_current) = {
            let index = self.shared.index();
            let known = index.usage(tenant).zip(index.tenant(tenant).map(|tenant| tenant.limits.clone()));
            (known, self.shared.catalog.version() == version - 1)
        };
        if let Some(known) = known.filter(|_| is_current) {
            return Ok(known);
        }
        // Another node has just changed the catalog, so ask the database. Sealed
        // settings are a little longer than what is counted in memory.
        let sql = "SELECT (SELECT count(*) FROM posthaste.endpoints p WHERE p.tenant = t.no AND p.deleted_at IS NULL)
                              AS endpoints,
                          (SELECT coalesce(sum(octet_length(p.settings)), 0)::bigint FROM posthaste.endpoints p
                           WHERE p.tenant = t.no AND p.deleted_at IS NULL) AS settings_bytes,
                          (SELECT count(*) FROM posthaste.tokens k
                           WHERE k.tenant = t.no AND k.kind = 0 AND k.deleted_at IS NULL) AS tokens,
                          t.limits
                   FROM posthaste.tenants t WHERE t.id = $1 AND t.deleted_at IS NULL";
        let row =
            self.tx.query_opt(sql, bind![tenant.as_str()]).await?.ok_or(Error::NotFound(MissingResource::Tenant))?;
        let count = |column: &str| row.get::<_, i64>(column).cast_unsigned();
        let usage = TenantUsage {
            endpoints: count("endpoints"),
            settings_bytes: count("settings_bytes"),
            tokens: count("tokens"),
            ..TenantUsage::default()
        };
        Ok((usage, from_json("tenants.limits", row.get("limits"))?))
    }

    /// Checks that the tenant's limits allow more endpoints and bytes of
    /// settings.
    pub async fn grow_settings(&mut self, tenant: &TenantId, endpoints: u64, bytes: i64) -> Result<()> {
        let (usage, limits) = self.usage(tenant).await?;
        usage.admits_settings(tenant, &limits, endpoints, bytes).map_err(Error::OverLimit)
    }

    /// Checks that the tenant's limits allow one more token.
    pub async fn grow_tokens(&mut self, tenant: &TenantId) -> Result<()> {
        let (usage, limits) = self.usage(tenant).await?;
        usage.admits_token(tenant, &limits).map_err(Error::OverLimit)
    }
}
