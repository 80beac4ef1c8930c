//! Stores tenants and endpoints in tables, and reads them from memory.
//!
//! Only the writer changes the index in memory.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::deleted_tenant::{delete_content, open_purge};
use super::endpoint::{current, insert_secret, seal_settings, seal_urls};
use super::rows::{id_bytes, millis};
use super::{EmbeddedStore, notes};
use crate::model::audit::{AuditAction, AuditedAction, Initiator, differing_fields};
use crate::model::endpoint::{Endpoint, OnDead, Secret};
use crate::model::event::Event;
use crate::model::id::{EndpointId, TenantId};
use crate::model::limits::{TenantUsage, settings_bytes};
use crate::model::tenant::Tenant;
use crate::store::catalog_columns::{EndpointColumns, SecretColumns, TenantColumns};
use crate::store::catalog_index::CatalogIndex;
use crate::store::jobs::still_purged;
use crate::store::row::{SqliteColumns, insert, row, update};
use crate::store::seal::Seal;
use crate::store::stored_json::to_json;
use crate::store::{Catalog, EndpointChange, EndpointChanged, Error, MissingResource, Result, UnreadableRecord};

insert! {
    /// A tenant to insert.
    struct TenantToInsert into "tenants" {
        id: String = "id",
        name: String = "name",
        defaults: String = "defaults",
        quota: String = "quota",
        limits: String = "limits",
        retention: String = "retention",
        created_at: i64 = "created_at",
    }
}

impl TenantToInsert {
    fn of(tenant: &Tenant) -> Self {
        Self {
            id: tenant.id.to_string(),
            name: tenant.name.clone(),
            defaults: to_json(&tenant.defaults),
            quota: to_json(&tenant.quota),
            limits: to_json(&tenant.limits),
            retention: to_json(&tenant.retention),
            created_at: millis(tenant.created_at),
        }
    }
}

update! {
    /// What may change of a tenant.
    struct TenantToSave of "tenants" by "no" {
        name: String = "name = ?",
        defaults: String = "defaults = ?",
        quota: String = "quota = ?",
        limits: String = "limits = ?",
        retention: String = "retention = ?",
    }
}

impl TenantToSave {
    fn of(tenant: &Tenant) -> Self {
        Self {
            name: tenant.name.clone(),
            defaults: to_json(&tenant.defaults),
            quota: to_json(&tenant.quota),
            limits: to_json(&tenant.limits),
            retention: to_json(&tenant.retention),
        }
    }
}

insert! {
    /// An endpoint to insert.
    struct EndpointToInsert into "endpoints" {
        id: [u8; 16] = "id",
        tenant: i64 = "tenant",
        settings: Vec<u8> = "settings",
        status: String = "status",
        created_at: i64 = "created_at",
        updated_at: i64 = "updated_at",
        skips_dead: bool = "skips_dead",
        urls: Vec<u8> = "urls",
    }
}

impl EndpointToInsert {
    fn of(endpoint: &Endpoint, tenant: i64, seal: &Seal) -> Self {
        Self {
            id: id_bytes(endpoint.id.0),
            tenant,
            settings: seal_settings(seal, endpoint),
            status: to_json(&endpoint.status),
            created_at: millis(endpoint.created_at),
            updated_at: millis(endpoint.updated_at),
            skips_dead: endpoint.settings.on_dead == OnDead::Skip,
            urls: seal_urls(seal, endpoint),
        }
    }
}

/// Loads everything that is not deleted into an index.
pub fn load(db: &Connection, seal: &Seal) -> rusqlite::Result<CatalogIndex> {
    let mut index = CatalogIndex::default();
    let tenants = load_tenants(db, &mut index)?;
    load_endpoints(db, seal, &tenants, &mut index)?;
    load_counts(db, &tenants, &mut index)?;
    super::access::load(db, &mut index)?;
    Ok(index)
}

/// Loads the tenants. Returns their ids by number.
fn load_tenants(db: &Connection, index: &mut CatalogIndex) -> rusqlite::Result<HashMap<i64, TenantId>> {
    let mut by_no = HashMap::new();
    let mut statement = db.prepare(EmbeddedTenantRow::SQL)?;
    for row in statement.query_map([], EmbeddedTenantRow::read)? {
        let EmbeddedTenantRow { tenant } = row?;
        by_no.insert(tenant.no, tenant.id.clone());
        index.put_tenant(tenant.no, Arc::new(tenant.tenant()?));
    }
    Ok(by_no)
}

row! {
    /// A tenant that is not deleted.
    sqlite struct EmbeddedTenantRow from "FROM tenants t WHERE t.deleted_at IS NULL" {
        tenant: TenantColumns = TenantColumns::COLUMNS,
    }
}

row! {
    /// An endpoint that is not deleted.
    sqlite struct EmbeddedEndpointRow from "FROM endpoints p WHERE p.deleted_at IS NULL" {
        endpoint: EndpointColumns = EndpointColumns::COLUMNS,
        tenant: i64 = "p.tenant",
        health: String = "p.health",
    }
}

/// Loads the endpoints of these tenants, with their secrets.
fn load_endpoints(
    db: &Connection,
    seal: &Seal,
    tenants: &HashMap<i64, TenantId>,
    index: &mut CatalogIndex,
) -> rusqlite::Result<()> {
    let mut secrets = load_secrets(db, seal)?;
    let mut statement = db.prepare(EmbeddedEndpointRow::SQL)?;
    for row in statement.query_map([], EmbeddedEndpointRow::read)? {
        let row = row?;
        let Some(tenant) = tenants.get(&row.tenant) else { continue };
        let no = row.endpoint.no;
        let mut endpoint = row.endpoint.endpoint(seal, tenant.clone(), Some(&row.health))?;
        endpoint.secrets = secrets.remove(&no).unwrap_or_default();
        index.put_endpoint(no, Arc::new(endpoint));
    }
    Ok(())
}

/// Counts the waiting deliveries of each endpoint and the stored bytes of each
/// tenant.
fn load_counts(db: &Connection, tenants: &HashMap<i64, TenantId>, index: &mut CatalogIndex) -> rusqlite::Result<()> {
    let mut statement = db.prepare(
        "SELECT endpoint, count(*) FROM deliveries INDEXED BY deliveries_due WHERE state = 0 GROUP BY endpoint",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        index.count_waiting(row.get(0)?, row.get(1)?);
    }
    let mut statement = db.prepare("SELECT tenant, sum(bytes) FROM stored_bytes GROUP BY tenant")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        if tenants.contains_key(&row.get(0)?) {
            index.count_stored(row.get(0)?, row.get(1)?);
        }
    }
    Ok(())
}

row! {
    /// A secret with the id of its endpoint.
    sqlite struct EmbeddedSecretRow from "FROM secrets s JOIN endpoints p ON p.no = s.endpoint
         ORDER BY s.created_at DESC, s.id DESC" {
        secret: SecretColumns = SecretColumns::COLUMNS,
        endpoint: EndpointId = "p.id",
    }
}

fn load_secrets(db: &Connection, seal: &Seal) -> rusqlite::Result<HashMap<i64, Vec<Secret>>> {
    let mut secrets: HashMap<i64, Vec<Secret>> = HashMap::new();
    let mut statement = db.prepare(EmbeddedSecretRow::SQL)?;
    for row in statement.query_map([], EmbeddedSecretRow::read)? {
        let EmbeddedSecretRow { secret, endpoint } = row?;
        secrets.entry(secret.endpoint).or_default().push(secret.secret(seal, endpoint)?);
    }
    Ok(secrets)
}

#[async_trait]
impl Catalog for EmbeddedStore {
    fn tenant(&self, id: &TenantId) -> Option<Arc<Tenant>> {
        self.index().tenant(id)
    }

    fn tenants(&self) -> Vec<Arc<Tenant>> {
        self.index().tenants()
    }

    fn endpoint(&self, tenant: &TenantId, id: EndpointId) -> Option<Arc<Endpoint>> {
        self.any_endpoint(id).filter(|endpoint| endpoint.tenant == *tenant)
    }

    fn any_endpoint(&self, id: EndpointId) -> Option<Arc<Endpoint>> {
        self.index().endpoint(id)
    }

    fn self_test_endpoints(&self) -> Vec<Arc<Endpoint>> {
        self.index().self_test_endpoints()
    }

    fn endpoints(&self, tenant: &TenantId) -> Vec<Arc<Endpoint>> {
        self.index().endpoints(tenant)
    }

    fn endpoint_ids(&self, tenant: Option<&TenantId>) -> Vec<EndpointId> {
        self.index().endpoint_ids(tenant)
    }

    fn notable_endpoints(&self, tenant: Option<&TenantId>) -> Vec<Arc<Endpoint>> {
        self.index().notable_endpoints(tenant)
    }

    fn waiting(&self, endpoint: Option<EndpointId>) -> Option<u64> {
        self.index().waiting(endpoint)
    }

    fn weight_in_use(&self) -> u64 {
        self.index().weight_in_use()
    }

    fn usage_here(&self, tenant: &TenantId) -> Option<TenantUsage> {
        self.index().usage(tenant)
    }

    async fn usage(&self, tenants: &[TenantId]) -> Result<Vec<TenantUsage>> {
        let running = self.read(super::jobs::count_running).await?;
        let index = self.index();
        let of = |tenant: &TenantId| TenantUsage {
            jobs_running: running.get(tenant).copied().unwrap_or(0),
            ..index.usage(tenant).unwrap_or_default()
        };
        Ok(tenants.iter().map(of).collect())
    }

    fn stored_in_all(&self) -> u64 {
        self.index().stored_in_all()
    }

    fn storing_tenants(&self) -> u64 {
        self.index().storing_tenants()
    }

    fn is_only_tenant(&self, tenant: &TenantId) -> bool {
        self.index().is_only_tenant(tenant)
    }

    fn unreadable_endpoint(&self, tenant: &TenantId, id: EndpointId) -> Option<UnreadableRecord> {
        self.index().unreadable(tenant, id).cloned()
    }

    fn matching(&self, event: &Event) -> Result<Vec<Arc<Endpoint>>> {
        self.index().matching(event)
    }

    async fn put_tenant(&self, by: &Initiator, tenant: Tenant) -> Result<Arc<Tenant>> {
        let by = by.clone();
        self.writer
            .write(move |transaction| {
                let db = transaction.db;
                if let Some(job) = open_purge(db, &tenant.id)? {
                    return Ok(Err(still_purged(&tenant.id, job)));
                }
                let sql =
                    format!("SELECT {} FROM tenants t WHERE t.id = ? AND t.deleted_at IS NULL", TenantColumns::COLUMNS);
                let known = db.query_row(&sql, [tenant.id.as_str()], TenantColumns::read).optional()?;
                let known = known.map(|row| (row.no, row.tenant()));
                let known = known.map(|(no, tenant)| tenant.map(|tenant| (no, tenant))).transpose()?;
                let audited = match &known {
                    Some((_, before)) => AuditedAction::new(AuditAction::TenantChanged, &tenant.id, &tenant.id)
                        .with_changed_fields(differing_fields(&before.fields(), &tenant.fields())),
                    None => AuditedAction::new(AuditAction::TenantCreated, &tenant.id, &tenant.id),
                };
                let (no, created_at) = match known {
                    Some((no, before)) => {
                        TenantToSave::of(&tenant).update(db, no)?;
                        (no, before.created_at)
                    }
                    None => {
                        TenantToInsert::of(&tenant).insert(db)?;
                        (db.last_insert_rowid(), tenant.created_at)
                    }
                };
                transaction.record(&by, no, &audited)?;
                let tenant = Arc::new(Tenant { created_at, ..tenant });
                let known = tenant.clone();
                transaction.after_commit(move |index| index.put_tenant(no, known));
                Ok(Ok(tenant))
            })
            .await?
    }

    async fn delete_tenant(&self, by: &Initiator, id: &TenantId, now: Timestamp) -> Result<()> {
        let (by, id) = (by.clone(), id.clone());
        self.writer
            .write(move |transaction| {
                let db = transaction.db;
                let sql = "UPDATE tenants SET deleted_at = ? WHERE id = ? AND deleted_at IS NULL RETURNING no";
                let no: Option<i64> =
                    db.query_row(sql, params![millis(now), id.as_str()], |row| row.get(0)).optional()?;
                let Some(no) = no else { return Ok(Err(Error::NotFound(MissingResource::Tenant))) };
                delete_content(db, no, now)?;
                transaction.record(&by, no, &AuditedAction::new(AuditAction::TenantDeleted, &id, &id))?;
                transaction.after_commit(move |index| index.remove_tenant(&id));
                Ok(Ok(()))
            })
            .await??;
        self.start_sweep();
        Ok(())
    }

    async fn create_endpoint(&self, by: &Initiator, endpoint: Endpoint) -> Result<Arc<Endpoint>> {
        let by = by.clone();
        self.writer
            .write(move |transaction| {
                let db = transaction.db;
                let tenant: Option<i64> = db
                    .query_row(
                        "SELECT no FROM tenants WHERE id = ? AND deleted_at IS NULL",
                        [endpoint.tenant.as_str()],
                        |row| row.get(0),
                    )
                    .optional()?;
                let Some(tenant) = tenant else { return Ok(Err(Error::NotFound(MissingResource::Tenant))) };
                let bytes = settings_bytes(&endpoint.settings).cast_signed();
                if let Err(refused) = transaction.grow_settings(&endpoint.tenant, 1, bytes) {
                    return Ok(Err(refused));
                }
                EndpointToInsert::of(&endpoint, tenant, transaction.seal).insert(db)?;
                let no = db.last_insert_rowid();
                for secret in &endpoint.secrets {
                    insert_secret(transaction, no, endpoint.id, secret)?;
                }
                transaction.record(
                    &by,
                    tenant,
                    &AuditedAction::new(AuditAction::EndpointCreated, &endpoint.tenant, endpoint.id),
                )?;
                let endpoint = Arc::new(endpoint);
                let known = endpoint.clone();
                transaction.after_commit(move |index| index.put_endpoint(no, known));
                Ok(Ok(endpoint))
            })
            .await?
    }

    async fn change_endpoint(
        &self,
        by: &Initiator,
        tenant: &TenantId,
        id: EndpointId,
        change: EndpointChange,
        now: Timestamp,
    ) -> Result<EndpointChanged> {
        let (by, tenant) = (by.clone(), tenant.clone());
        self.writer
            .write(move |transaction| {
                let Some((no, endpoint)) = current(transaction, id)? else {
                    return Ok(Err(Error::NotFound(MissingResource::Endpoint)));
                };
                if endpoint.tenant != tenant {
                    return Ok(Err(Error::NotFound(MissingResource::Endpoint)));
                }
                super::endpoint::change(transaction, &by, no, endpoint, change, now)
            })
            .await?
    }

    async fn delete_endpoint(&self, by: &Initiator, tenant: &TenantId, id: EndpointId, now: Timestamp) -> Result<()> {
        let (by, tenant) = (by.clone(), tenant.clone());
        self.writer
            .write(move |transaction| {
                let Some((no, endpoint)) = current(transaction, id)? else {
                    return Ok(Err(Error::NotFound(MissingResource::Endpoint)));
                };
                if endpoint.tenant != tenant {
                    return Ok(Err(Error::NotFound(MissingResource::Endpoint)));
                }
                // A deleted endpoint needs its secrets no more.
                transaction.db.execute("DELETE FROM secrets WHERE endpoint = ?", [no])?;
                let sql = "UPDATE endpoints SET deleted_at = ? WHERE no = ?";
                transaction.db.execute(sql, params![millis(now), no])?;
                transaction.db.execute("DELETE FROM endpoint_events WHERE endpoint = ?", [no])?;
                transaction.record_of_endpoint(
                    &by,
                    no,
                    &AuditedAction::new(AuditAction::EndpointDeleted, &tenant, id),
                )?;
                transaction.after_commit(move |index| {
                    index.remove_endpoint(id);
                    index.forget_waiting(no);
                });
                Ok(Ok(()))
            })
            .await??;
        self.start_sweep();
        Ok(())
    }

    async fn setting(&self, name: &'static str) -> Result<Option<String>> {
        self.read(move |db| notes::read(db, name)).await
    }

    async fn put_setting(&self, name: &'static str, value: String) -> Result<()> {
        self.writer.write(move |transaction| notes::write(transaction.db, name, &value)).await
    }

    async fn put_setting_once(&self, name: &'static str, value: String) -> Result<String> {
        self.writer.write(move |transaction| notes::write_once(transaction.db, name, &value)).await
    }
}
