//! Stores tenants and endpoints in tables, and reads them from memory.
//!
//! A change locks the catalog's one row and raises its version, so versions
//! become visible in order: a node that has version n knows everything up to
//! n. A change is answered once every live node has acknowledged its version.
//! A node that was frozen or cut off notices at its next accept that its
//! version is not the catalog's.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::oneshot;

use super::access::record;
use super::catalog_cache::VersionLock;
use super::changed_rows::CatalogChanges;
use super::deleted_tenant::{delete_content, open_purge};
use super::endpoint::{self, insert_secret, store_health};
use super::rows::{at, millis};
use super::stored_function::by_name;
use super::transaction::{bind, with_timeout};
use super::unit_of_work::{CommitEffects, UnitOfWork};
use super::{PostgresState, PostgresStore, stored_bytes};
use crate::model::audit::{AuditAction, AuditedAction, Initiator, differing_fields};
use crate::model::endpoint::Endpoint;
use crate::model::event::Event;
use crate::model::id::{EndpointId, TenantId};
use crate::model::limits::{TenantUsage, settings_bytes};
use crate::model::shard::Shard;
use crate::model::tenant::Tenant;
use crate::store::catalog_columns::TenantColumns;
use crate::store::catalog_index::CatalogIndex;
use crate::store::jobs::still_purged;
use crate::store::row::PostgresColumns;
use crate::store::stored_json::to_json;
use crate::store::{
    Catalog, ClusterEvent, EndpointChange, EndpointChanged, Error, MissingResource, Result, UnreadableRecord,
};

/// Interval between two checks whether every node has acknowledged a version.
const CHECK_EVERY: Duration = Duration::from_millis(5);

impl PostgresState {
    /// Reads what has changed since this node last read the catalog, and puts
    /// it into the index.
    pub async fn refresh_catalog(&self) -> Result<()> {
        self.load_changes(&self.catalog.lock_version().await).await
    }

    /// Tells the lifecycle what other nodes changed. Every way to learn of a
    /// change ends here, so nothing is announced twice.
    fn announce_changes(&self, changes: CatalogChanges) {
        if changes.endpoints.is_empty() && changes.tenants.is_empty() {
            return;
        }
        self.watermarks.clear();
        let (done, in_force) = oneshot::channel();
        self.notifier.send(ClusterEvent::Changed { endpoints: changes.endpoints, tenants: changes.tenants, done });
        // During the start nobody listens yet. Waiting for an answer then would
        // make the start wait for itself.
        if self.notifier.has_listener() {
            self.notifier.add_pending_change(in_force);
        }
    }

    /// Reads what has changed after the version of the index, puts it into the
    /// index and announces it.
    async fn load_changes(&self, lock: &VersionLock<'_>) -> Result<()> {
        let changed = self.read_after(lock.version()).await?;
        let version = changed.version;
        let changes = self.put_into_index(changed);
        lock.set_version(version);
        self.announce_changes(changes);
        Ok(())
    }

    /// Puts what a committed transaction of this node changed into the index.
    pub(super) async fn adopt_version(
        &self,
        version: i64,
        after: Vec<Box<dyn FnOnce(&mut CatalogIndex) + Send + Sync>>,
    ) {
        let lock = self.catalog.lock_version().await;
        let known = lock.version();
        if version == known + 1 {
            let mut index = self.index_mut();
            after.into_iter().for_each(|change| change(&mut index));
            lock.set_version(version);
        } else if version > known {
            // Other nodes made changes in between, so read everything.
            let _ = self.load_changes(&lock).await;
        }
    }

    /// Waits until every live node has acknowledged this version.
    pub async fn await_acknowledged(&self, version: i64) -> Result<()> {
        let client = self.connection().await?;
        let sql = "SELECT count(*) FROM posthaste.nodes
                   WHERE id <> $1 AND catalog_version < $2 AND lease_until > clock_timestamp()";
        loop {
            let rows = with_timeout(client.query_typed(sql, bind![self.shard_leases.node(), version])).await?;
            if rows[0].get::<_, i64>(0) == 0 {
                return Ok(());
            }
            tokio::time::sleep(CHECK_EVERY).await;
        }
    }
}

impl PostgresStore {
    /// Runs a change of the catalog in one transaction, and answers once every
    /// live node has acknowledged it.
    pub(super) async fn change_catalog<T: Send>(
        &self,
        change: impl AsyncFnOnce(&mut UnitOfWork<'_>) -> Result<T> + Send,
    ) -> Result<T> {
        let tx = self.shared.begin().await?;
        let mut work = UnitOfWork::new(&self.shared, &tx);
        // The catalog's row is locked first, so that two changes wait for each
        // other here and cannot deadlock later.
        work.bump_catalog_version().await?;
        let outcome = change(&mut work).await;
        let done: CommitEffects = work.into_effects();
        match outcome {
            Ok(value) => {
                tx.commit().await?;
                let version = done.version;
                self.shared.adopt(done).await;
                if let Some(version) = version {
                    self.shared.await_acknowledged(version).await?;
                }
                Ok(value)
            }
            Err(refused) => {
                tx.roll_back().await;
                Err(refused)
            }
        }
    }
}

#[async_trait]
impl Catalog for PostgresStore {
    fn tenant(&self, id: &TenantId) -> Option<Arc<Tenant>> {
        self.shared.index().tenant(id)
    }

    fn tenants(&self) -> Vec<Arc<Tenant>> {
        self.shared.index().tenants()
    }

    fn endpoint(&self, tenant: &TenantId, id: EndpointId) -> Option<Arc<Endpoint>> {
        self.any_endpoint(id).filter(|endpoint| endpoint.tenant == *tenant)
    }

    fn any_endpoint(&self, id: EndpointId) -> Option<Arc<Endpoint>> {
        self.shared.index().endpoint(id)
    }

    fn self_test_endpoints(&self) -> Vec<Arc<Endpoint>> {
        self.shared.index().self_test_endpoints()
    }

    fn endpoints(&self, tenant: &TenantId) -> Vec<Arc<Endpoint>> {
        self.shared.index().endpoints(tenant)
    }

    fn endpoint_ids(&self, tenant: Option<&TenantId>) -> Vec<EndpointId> {
        self.shared.index().endpoint_ids(tenant)
    }

    fn notable_endpoints(&self, tenant: Option<&TenantId>) -> Vec<Arc<Endpoint>> {
        self.shared.index().notable_endpoints(tenant)
    }

    fn waiting(&self, endpoint: Option<EndpointId>) -> Option<u64> {
        let index = self.shared.index();
        let known = endpoint.and_then(|id| index.endpoint(id));
        let shard = known.map(|endpoint| Shard::of(&endpoint.tenant, endpoint.id));
        match shard {
            Some(shard) if !self.shared.shard_leases.holds(shard) => None,
            Some(_) | None => index.waiting(endpoint),
        }
    }

    fn weight_in_use(&self) -> u64 {
        self.shared.index().weight_in_use()
    }

    fn usage_here(&self, tenant: &TenantId) -> Option<TenantUsage> {
        self.shared.index().usage(tenant)
    }

    async fn usage(&self, tenants: &[TenantId]) -> Result<Vec<TenantUsage>> {
        let known: Vec<(Option<i64>, TenantUsage)> = {
            let index = self.shared.index();
            tenants.iter().map(|id| (index.tenant_no(id), index.usage(id).unwrap_or_default())).collect()
        };
        let stored = stored_bytes::bytes_of(&self.shared, known.iter().filter_map(|(no, _)| *no).collect()).await?;
        let running = super::jobs::count_running(&self.shared).await?;
        let of = |counts: &HashMap<i64, u64>, no: Option<i64>| no.and_then(|no| counts.get(&no).copied()).unwrap_or(0);
        let usage = |(no, usage): (Option<i64>, TenantUsage)| TenantUsage {
            stored_bytes: of(&stored, no),
            jobs_running: of(&running, no),
            ..usage
        };
        Ok(known.into_iter().map(usage).collect())
    }

    fn stored_in_all(&self) -> u64 {
        self.shared.index().stored_in_all()
    }

    fn storing_tenants(&self) -> u64 {
        self.shared.index().storing_tenants()
    }

    fn is_only_tenant(&self, tenant: &TenantId) -> bool {
        self.shared.index().is_only_tenant(tenant)
    }

    fn unreadable_endpoint(&self, tenant: &TenantId, id: EndpointId) -> Option<UnreadableRecord> {
        self.shared.index().unreadable(tenant, id).cloned()
    }

    fn matching(&self, event: &Event) -> Result<Vec<Arc<Endpoint>>> {
        self.shared.index().matching(event)
    }

    async fn put_tenant(&self, by: &Initiator, tenant: Tenant) -> Result<Arc<Tenant>> {
        self.change_catalog(async move |work| {
            let (defaults, quota, limits) =
                (to_json(&tenant.defaults), to_json(&tenant.quota), to_json(&tenant.limits));
            let retention = to_json(&tenant.retention);
            let version = work.bump_catalog_version().await?;
            if let Some(job) = open_purge(work.tx, &tenant.id).await? {
                return Err(still_purged(&tenant.id, job));
            }
            let columns = TenantColumns::COLUMNS;
            let sql = format!("SELECT {columns} FROM posthaste.tenants t WHERE t.id = $1 AND t.deleted_at IS NULL");
            let before = work.tx.query_opt(&sql, bind![tenant.id.as_str()]).await?;
            let audited = match before {
                None => AuditedAction::new(AuditAction::TenantCreated, &tenant.id, &tenant.id),
                Some(row) => {
                    let before = TenantColumns::read(&row).tenant()?;
                    AuditedAction::new(AuditAction::TenantChanged, &tenant.id, &tenant.id)
                        .with_changed_fields(differing_fields(&before.fields(), &tenant.fields()))
                }
            };
            let sql =
                "INSERT INTO posthaste.tenants (id, name, defaults, quota, limits, created_at, version, retention)
                       VALUES ({id}, {name}, {defaults}, {quota}, {limits}, {created_at}, {version}, {retention})
                       ON CONFLICT (id) WHERE deleted_at IS NULL DO UPDATE SET
                           name = excluded.name, defaults = excluded.defaults, quota = excluded.quota,
                           limits = excluded.limits, version = excluded.version, retention = excluded.retention
                       RETURNING no, created_at";
            let (id, created_at) = (tenant.id.as_str(), millis(tenant.created_at));
            let (sql, bound) = by_name![sql;
                id = id,
                name = tenant.name,
                defaults = defaults,
                quota = quota,
                limits = limits,
                retention = retention,
                created_at = created_at,
                version = version,
            ];
            let row = &work.tx.query(&sql, &bound).await?[0];
            let (no, created_at): (i64, i64) = (row.get(0), row.get(1));
            record(work.tx, by, no, &audited).await?;
            let tenant = Arc::new(Tenant { created_at: at(created_at), ..tenant });
            let known = tenant.clone();
            work.after_commit(move |index| index.put_tenant(no, known));
            Ok(tenant)
        })
        .await
    }

    async fn delete_tenant(&self, by: &Initiator, id: &TenantId, now: Timestamp) -> Result<()> {
        let id = id.clone();
        self.change_catalog(async move |work| {
            let version = work.bump_catalog_version().await?;
            let sql = "UPDATE posthaste.tenants SET deleted_at = $2, version = $3
                       WHERE id = $1 AND deleted_at IS NULL RETURNING no";
            let row = work.tx.query_opt(sql, bind![id.as_str(), millis(now), version]).await?;
            let no: i64 = row.ok_or(Error::NotFound(MissingResource::Tenant))?.get(0);
            delete_content(work.tx, no, millis(now), version).await?;
            record(work.tx, by, no, &AuditedAction::new(AuditAction::TenantDeleted, &id, &id)).await?;
            work.after_commit(move |index| index.remove_tenant(&id));
            Ok(())
        })
        .await?;
        self.shared.start_sweep();
        Ok(())
    }

    async fn create_endpoint(&self, by: &Initiator, endpoint: Endpoint) -> Result<Arc<Endpoint>> {
        self.change_catalog(async move |work| {
            let version = work.bump_catalog_version().await?;
            work.grow_settings(&endpoint.tenant, 1, settings_bytes(&endpoint.settings).cast_signed()).await?;
            let no =
                endpoint::insert(work, &endpoint, version).await?.ok_or(Error::NotFound(MissingResource::Tenant))?;
            store_health(work.tx, &[(no, &endpoint.health)]).await?;
            for secret in &endpoint.secrets {
                insert_secret(work, no, endpoint.id, secret).await?;
            }
            let audited = AuditedAction::new(AuditAction::EndpointCreated, &endpoint.tenant, endpoint.id);
            work.record_of_endpoint(by, no, &audited).await?;
            let endpoint = Arc::new(endpoint);
            let known = endpoint.clone();
            work.after_commit(move |index| index.put_endpoint(no, known));
            Ok(endpoint)
        })
        .await
    }

    async fn change_endpoint(
        &self,
        by: &Initiator,
        tenant: &TenantId,
        id: EndpointId,
        change: EndpointChange,
        now: Timestamp,
    ) -> Result<EndpointChanged> {
        let tenant = tenant.clone();
        self.change_catalog(async move |work| {
            let known = endpoint::current(work, id).await?.filter(|(_, endpoint)| endpoint.tenant == tenant);
            let (no, endpoint) = known.ok_or(Error::NotFound(MissingResource::Endpoint))?;
            endpoint::change(work, by, no, endpoint, change, now).await
        })
        .await
    }

    async fn delete_endpoint(&self, by: &Initiator, tenant: &TenantId, id: EndpointId, now: Timestamp) -> Result<()> {
        let tenant = tenant.clone();
        self.change_catalog(async move |work| {
            let known = endpoint::current(work, id).await?.filter(|(_, endpoint)| endpoint.tenant == tenant);
            let (no, _) = known.ok_or(Error::NotFound(MissingResource::Endpoint))?;
            let version = work.bump_catalog_version().await?;
            // A deleted endpoint needs its secrets no more.
            for table in ["secrets", "endpoint_events", "health"] {
                let sql = format!("DELETE FROM posthaste.{table} WHERE endpoint = $1");
                work.tx.execute(&sql, bind![no]).await?;
            }
            let sql = "UPDATE posthaste.endpoints SET deleted_at = $2, version = $3 WHERE no = $1";
            work.tx.execute(sql, bind![no, millis(now), version]).await?;
            work.record_of_endpoint(by, no, &AuditedAction::new(AuditAction::EndpointDeleted, &tenant, id)).await?;
            work.after_commit(move |index| {
                index.remove_endpoint(id);
                index.forget_waiting(no);
            });
            Ok(())
        })
        .await?;
        self.shared.start_sweep();
        Ok(())
    }

    async fn setting(&self, name: &'static str) -> Result<Option<String>> {
        let client = self.shared.connection().await?;
        let sql = "SELECT value FROM posthaste.notes WHERE name = $1";
        Ok(with_timeout(client.query_typed_opt(sql, bind![name])).await?.map(|row| row.get(0)))
    }

    async fn put_setting(&self, name: &'static str, value: String) -> Result<()> {
        let client = self.shared.connection().await?;
        let sql = "INSERT INTO posthaste.notes (name, value) VALUES ($1, $2)
                   ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        with_timeout(client.execute_typed(sql, bind![name, value])).await.map(|_| ())
    }

    async fn put_setting_once(&self, name: &'static str, value: String) -> Result<String> {
        let client = self.shared.connection().await?;
        let sql = "INSERT INTO posthaste.notes (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING";
        with_timeout(client.execute_typed(sql, bind![name, value])).await?;
        let sql = "SELECT value FROM posthaste.notes WHERE name = $1";
        Ok(with_timeout(client.query_typed(sql, bind![name])).await?[0].get(0))
    }
}
