//! Changes an endpoint's rows, for people and for what its receiver answers.

use std::sync::Arc;

use jiff::Timestamp;

use super::PostgresState;
use super::column_values::ColumnValues;
use super::lane::pass_dead_heads;
use super::rows::millis;
use super::transaction::{PgTransaction, bind};
use super::unit_of_work::UnitOfWork;
use crate::model::audit::{AuditedAction, Initiator, differing_fields};
use crate::model::endpoint::{Endpoint, OnDead, Secret};
use crate::model::id::{EndpointId, TenantId};
use crate::model::limits::settings_bytes;
use crate::model::shard::Shard;
use crate::store::catalog_columns::{EndpointColumns, SecretColumns};
use crate::store::plan::DeliveryReport;
use crate::store::plan::endpoint as plan;
use crate::store::row::{PostgresColumns, row};
use crate::store::seal::{Seal, about_secret, about_settings, about_urls};
use crate::store::stored_json::to_json;
use crate::store::{Claim, EndpointChange, EndpointChanged, EndpointUpdate, Result};

row! {
    /// An endpoint with its tenant and its health.
    pub postgres struct PostgresEndpointRow {
        /// Columns of the endpoint.
        endpoint: EndpointColumns = EndpointColumns::COLUMNS,
        /// Id of its tenant.
        tenant: TenantId = "t.id",
        /// Health of the endpoint, as JSON, once it has had an attempt.
        health: Option<String> = "h.health",
        /// Whether the endpoint or its tenant was deleted.
        is_deleted: bool = "p.deleted_at IS NOT NULL OR t.deleted_at IS NOT NULL",
    }
}

impl PostgresEndpointRow {
    /// Selects such rows by a condition.
    pub fn sql(condition: &str) -> String {
        format!(
            "SELECT {} FROM posthaste.endpoints p JOIN posthaste.tenants t ON t.no = p.tenant
             LEFT JOIN posthaste.health h ON h.endpoint = p.no WHERE {condition}",
            Self::COLUMNS
        )
    }

    /// Returns the endpoint without its secrets.
    pub fn endpoint(self, seal: &Seal) -> Result<Endpoint> {
        Ok(self.endpoint.endpoint(seal, self.tenant, self.health.as_deref())?)
    }
}

/// Seals an endpoint's settings for storage.
pub fn seal_settings(shared: &PostgresState, endpoint: &Endpoint) -> Vec<u8> {
    shared.options.seal.seal(&about_settings(endpoint.id), &to_json(&endpoint.settings))
}

/// Seals the URLs that an endpoint has had, for storage.
pub fn seal_urls(shared: &PostgresState, endpoint: &Endpoint) -> Vec<u8> {
    shared.options.seal.seal(&about_urls(endpoint.id), &to_json(&endpoint.urls))
}

/// Returns an endpoint as the transaction sees it, and locks its row.
pub async fn current(work: &UnitOfWork<'_>, id: EndpointId) -> Result<Option<(i64, Endpoint)>> {
    let row = work.tx.query_opt(&PostgresEndpointRow::sql("p.id = $1 FOR UPDATE OF p"), bind![id]).await?;
    let Some(row) = row.map(|row| PostgresEndpointRow::read(&row)).filter(|row| !row.is_deleted) else {
        return Ok(None);
    };
    let seal = &work.shared.options.seal;
    let (no, endpoint) = (row.endpoint.no, row.endpoint(seal)?);
    let tenant = work.shared.index().tenant(&endpoint.tenant);
    let mut endpoint = match tenant {
        Some(tenant) => endpoint.with_tenant_rules(tenant.limits.endpoint, &tenant.defaults),
        None => endpoint,
    };
    let sql = format!(
        "SELECT {} FROM posthaste.secrets s WHERE s.endpoint = $1 ORDER BY s.created_at DESC, s.id DESC",
        SecretColumns::COLUMNS
    );
    for row in work.tx.query(&sql, bind![no]).await? {
        endpoint.secrets.push(SecretColumns::read(&row).secret(seal, id)?);
    }
    Ok(Some((no, endpoint)))
}

/// Inserts the row of a new endpoint, and returns its number; none if it has no
/// tenant.
pub async fn insert(work: &UnitOfWork<'_>, endpoint: &Endpoint, version: i64) -> Result<Option<i64>> {
    work.follow_master_key().await?;
    let columns = changeable_columns(work.shared, endpoint, version)
        .set("id", endpoint.id)
        .set("shard", i16::from(Shard::of(&endpoint.tenant, endpoint.id).0))
        .set("created_at", millis(endpoint.created_at));
    let sql = format!(
        "INSERT INTO posthaste.endpoints (tenant, {}) SELECT t.no, {} FROM posthaste.tenants t
         WHERE t.id = {} AND t.deleted_at IS NULL RETURNING no",
        columns.names(),
        columns.marks(),
        columns.mark(1)
    );
    let row = work.tx.query_opt(&sql, &columns.parameters(bind![endpoint.tenant])).await?;
    Ok(row.map(|row| row.get("no")))
}

/// Returns the columns of an endpoint that a change may write.
fn changeable_columns(shared: &PostgresState, endpoint: &Endpoint, version: i64) -> ColumnValues {
    ColumnValues::default()
        .set("settings", seal_settings(shared, endpoint))
        .set("urls", seal_urls(shared, endpoint))
        .set("status", to_json(&endpoint.status))
        .set("skips_dead", endpoint.settings.on_dead == OnDead::Skip)
        .set("backpressure_until", endpoint.backpressure_until.map(millis))
        .set("mailed_at", endpoint.mailed_at.map(millis))
        .set("updated_at", millis(endpoint.updated_at))
        .set("version", version)
}

/// Writes an endpoint back, and puts it into the index after the commit.
async fn save(work: &mut UnitOfWork<'_>, no: i64, endpoint: Endpoint) -> Result<Arc<Endpoint>> {
    let version = work.bump_catalog_version().await?;
    work.follow_master_key().await?;
    let columns = changeable_columns(work.shared, &endpoint, version);
    let sql = format!("UPDATE posthaste.endpoints SET {} WHERE no = {}", columns.assignments(), columns.mark(1));
    work.tx.execute(&sql, &columns.parameters(bind![no])).await?;
    store_health(work.tx, &[(no, &endpoint.health)]).await?;
    let endpoint = Arc::new(endpoint);
    let known = endpoint.clone();
    work.after_commit(move |index| index.put_endpoint(no, known));
    Ok(endpoint)
}

/// Stores the health of endpoints, where it is newer than the stored one.
pub async fn store_health(tx: &PgTransaction, all: &[(i64, &crate::model::health::EndpointHealth)]) -> Result<()> {
    let nos: Vec<i64> = all.iter().map(|(no, _)| *no).collect();
    let generations: Vec<i64> = all.iter().map(|(_, health)| i64::from(health.generation)).collect();
    let versions: Vec<i64> = all.iter().map(|(_, health)| health.version as i64).collect();
    let texts: Vec<String> = all.iter().map(|(_, health)| to_json(health)).collect();
    tx.execute(include_str!("sql/store_health.sql"), bind![nos, generations, versions, texts]).await?;
    Ok(())
}

/// Makes a change that a person asked for.
pub async fn change(
    work: &mut UnitOfWork<'_>,
    by: &Initiator,
    no: i64,
    mut endpoint: Endpoint,
    change: EndpointChange,
    now: Timestamp,
) -> Result<EndpointChanged> {
    let (action, before) = (change.action(), endpoint.settings.clone());
    let is_settings = matches!(change, EndpointChange::Settings { .. });
    let effects = plan::change_endpoint(&mut endpoint, change, now)?;
    if is_settings {
        let more = settings_bytes(&endpoint.settings).cast_signed() - settings_bytes(&before).cast_signed();
        work.grow_settings(&endpoint.tenant, 0, more).await?;
    }
    if let Some(action) = action {
        let audited = AuditedAction::new(action, &endpoint.tenant, endpoint.id)
            .with_changed_fields(differing_fields(&before, &endpoint.settings));
        work.record_of_endpoint(by, no, &audited).await?;
    }
    if let Some((secret, ends_at)) = &effects.rotated {
        let sql = "DELETE FROM posthaste.secrets WHERE endpoint = $1 AND expires_at <= $2";
        work.tx.execute(sql, bind![no, millis(secret.created_at)]).await?;
        let sql = "UPDATE posthaste.secrets SET expires_at = $2
                   WHERE endpoint = $1 AND (expires_at IS NULL OR expires_at > $2)";
        work.tx.execute(sql, bind![no, millis(*ends_at)]).await?;
        insert_secret(work, no, endpoint.id, secret).await?;
    }
    let endpoint = save(work, no, endpoint).await?;
    let mut freed = Vec::new();
    for endpoint_event in &effects.endpoint_events {
        freed.extend(work.record_endpoint_event(no, &endpoint, endpoint_event, now).await?);
    }
    if effects.unblocks {
        for dead in pass_dead_heads(work, no, now).await? {
            freed.extend(work.report(dead, DeliveryReport::LaneUnblocked, now).await?);
        }
    }
    let operational_events = std::mem::take(&mut work.operational_events);
    Ok(EndpointChanged { endpoint, endpoint_events: effects.endpoint_events, freed, operational_events })
}

/// Seals a secret and inserts it.
pub async fn insert_secret(work: &UnitOfWork<'_>, no: i64, endpoint: EndpointId, secret: &Secret) -> Result<()> {
    work.follow_master_key().await?;
    let sealed = work.shared.options.seal.seal(&about_secret(endpoint), &secret.to_stored());
    let sql =
        "INSERT INTO posthaste.secrets (id, endpoint, sealed, created_at, expires_at) VALUES ($1, $2, $3, $4, $5)";
    work.tx
        .execute(sql, bind![secret.id.0, no, sealed, millis(secret.created_at), secret.expires_at.map(millis)])
        .await?;
    Ok(())
}

/// Applies to an endpoint what its receiver's answer means for it. The answer
/// came from the URL of this version. Returns the part of the update that
/// changed something, and the claims of the operational events about it.
pub async fn apply_endpoint_update(
    work: &mut UnitOfWork<'_>,
    id: EndpointId,
    url_version: u32,
    update: &EndpointUpdate,
    now: Timestamp,
) -> Result<(EndpointUpdate, Vec<Claim>)> {
    // The catalog is locked first, as in every change of an endpoint.
    work.bump_catalog_version().await?;
    let Some((no, mut endpoint)) = current(work, id).await? else { return Ok(Default::default()) };
    let applied = plan::apply_endpoint_update(&mut endpoint, url_version, update, now);
    if applied.is_empty() {
        return Ok(Default::default());
    }
    let endpoint = save(work, no, endpoint).await?;
    let mut freed = Vec::new();
    for endpoint_event in &applied.endpoint_events {
        freed.extend(work.record_endpoint_event(no, &endpoint, endpoint_event, now).await?);
    }
    Ok((applied, freed))
}
