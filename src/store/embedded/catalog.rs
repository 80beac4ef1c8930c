//! Tenants and endpoints, durable in tables and readable from memory.
//!
//! Every event asks who wants it, so the answer must cost no I/O. The index
//! is changed by the writer alone, after the commit that made a change
//! durable and before the change's caller is answered.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::Embedded;
use super::rows::{at, id_bytes, millis, uuid_of};
use super::writer::Transaction;
use crate::model::endpoint::{Endpoint, EndpointState, OnDead, ParsedData, Secret};
use crate::model::event::Event;
use crate::model::id::{EndpointId, SecretId, TenantId};
use crate::model::tenant::Tenant;
use crate::store::{Catalog, EndpointChange, Error, Notice, Result};

/// What is known of tenants and endpoints, in memory.
#[derive(Default)]
pub struct Index {
    tenants: BTreeMap<TenantId, TenantEntry>,
    endpoints: HashMap<EndpointId, EndpointEntry>,
}

struct TenantEntry {
    no: i64,
    tenant: Arc<Tenant>,
    /// Endpoints that name their types exactly, by type.
    by_type: HashMap<String, Vec<EndpointId>>,
    /// Endpoints with at least one pattern; every event asks them.
    by_pattern: Vec<EndpointId>,
    endpoints: BTreeMap<EndpointId, Arc<Endpoint>>,
}

struct EndpointEntry {
    no: i64,
    endpoint: Arc<Endpoint>,
}

impl Index {
    /// Reads everything that is not deleted.
    pub fn load(db: &Connection) -> rusqlite::Result<Self> {
        let mut index = Self::default();
        let mut by_no = HashMap::new();
        let mut rows =
            db.prepare("SELECT no, id, name, defaults, created_at, quota FROM tenants WHERE deleted_at IS NULL")?;
        let mut rows = rows.query([])?;
        while let Some(row) = rows.next()? {
            let tenant = Tenant {
                id: row.get::<_, String>(1)?.parse().expect("stored tenant ids were checked"),
                name: row.get(2)?,
                defaults: from_json(&row.get::<_, String>(3)?),
                created_at: at(row.get(4)?),
                quota: from_json(&row.get::<_, String>(5)?),
            };
            by_no.insert(row.get::<_, i64>(0)?, tenant.id.clone());
            index.put_tenant(row.get(0)?, Arc::new(tenant));
        }
        let mut secrets = load_secrets(db)?;
        let mut rows = db.prepare(
            "SELECT no, id, tenant, settings, standing, created_at, updated_at, quiet_until
             FROM endpoints WHERE deleted_at IS NULL",
        )?;
        let mut rows = rows.query([])?;
        while let Some(row) = rows.next()? {
            let no: i64 = row.get(0)?;
            let Some(tenant) = by_no.get(&row.get(2)?) else { continue };
            let settings: crate::model::endpoint::Settings = from_json(&row.get::<_, String>(3)?);
            let endpoint = Endpoint {
                id: EndpointId(uuid_of(row.get(1)?)),
                tenant: tenant.clone(),
                policy: settings.retry.filled(),
                settings,
                standing: from_json(&row.get::<_, String>(4)?),
                secrets: secrets.remove(&no).unwrap_or_default(),
                created_at: at(row.get(5)?),
                updated_at: at(row.get(6)?),
                quiet_until: row.get::<_, Option<i64>>(7)?.map(at),
            };
            index.put_endpoint(no, Arc::new(endpoint));
        }
        Ok(index)
    }

    /// The number of a tenant's rows.
    pub fn tenant_no(&self, id: &TenantId) -> Option<i64> {
        self.tenants.get(id).map(|entry| entry.no)
    }

    /// The number of an endpoint's rows, and the endpoint.
    pub fn endpoint_entry(&self, id: EndpointId) -> Option<(i64, &Arc<Endpoint>)> {
        self.endpoints.get(&id).map(|entry| (entry.no, &entry.endpoint))
    }

    fn put_tenant(&mut self, no: i64, tenant: Arc<Tenant>) {
        self.tenants.entry(tenant.id.clone()).and_modify(|entry| entry.tenant = tenant.clone()).or_insert_with(|| {
            TenantEntry { no, tenant, by_type: HashMap::new(), by_pattern: Vec::new(), endpoints: BTreeMap::new() }
        });
    }

    fn remove_tenant(&mut self, id: &TenantId) {
        if let Some(entry) = self.tenants.remove(id) {
            for endpoint in entry.endpoints.keys() {
                self.endpoints.remove(endpoint);
            }
        }
    }

    pub(super) fn put_endpoint(&mut self, no: i64, endpoint: Arc<Endpoint>) {
        self.remove_endpoint(endpoint.id);
        let Some(entry) = self.tenants.get_mut(&endpoint.tenant) else { return };
        let types = &endpoint.settings.event_types;
        if types.iter().any(|pattern| pattern.contains('*')) {
            entry.by_pattern.push(endpoint.id);
        } else {
            for exact in types {
                entry.by_type.entry(exact.clone()).or_default().push(endpoint.id);
            }
        }
        entry.endpoints.insert(endpoint.id, endpoint.clone());
        self.endpoints.insert(endpoint.id, EndpointEntry { no, endpoint });
    }

    fn remove_endpoint(&mut self, id: EndpointId) {
        let Some(old) = self.endpoints.remove(&id) else { return };
        let Some(entry) = self.tenants.get_mut(&old.endpoint.tenant) else { return };
        entry.endpoints.remove(&id);
        entry.by_pattern.retain(|other| *other != id);
        for exact in &old.endpoint.settings.event_types {
            if let Some(ids) = entry.by_type.get_mut(exact) {
                ids.retain(|other| *other != id);
                if ids.is_empty() {
                    entry.by_type.remove(exact);
                }
            }
        }
    }

    fn matching(&self, event: &Event) -> Result<Vec<Arc<Endpoint>>> {
        let Some(entry) = self.tenants.get(&event.tenant) else {
            return Err(Error::NotFound("tenant"));
        };
        if let Some(named) = &event.endpoints {
            return named
                .iter()
                .map(|id| entry.endpoints.get(id).cloned().ok_or(Error::UnknownEndpoint(*id)))
                .collect();
        }
        let mut data = ParsedData::new(&event.data);
        let by_type = entry.by_type.get(event.event_type.as_str());
        let candidates = by_type.into_iter().flatten().chain(&entry.by_pattern);
        Ok(candidates
            .filter_map(|id| entry.endpoints.get(id))
            .filter(|endpoint| endpoint.wants(event, &mut data))
            .cloned()
            .collect())
    }
}

fn load_secrets(db: &Connection) -> rusqlite::Result<HashMap<i64, Vec<Secret>>> {
    let mut secrets: HashMap<i64, Vec<Secret>> = HashMap::new();
    let mut rows =
        db.prepare("SELECT endpoint, id, text, created_at, expires_at FROM secrets ORDER BY created_at DESC, id DESC")?;
    let mut rows = rows.query([])?;
    while let Some(row) = rows.next()? {
        secrets.entry(row.get(0)?).or_default().push(Secret {
            id: SecretId(uuid_of(row.get(1)?)),
            text: row.get(2)?,
            created_at: at(row.get(3)?),
            expires_at: row.get::<_, Option<i64>>(4)?.map(at),
        });
    }
    Ok(secrets)
}

#[async_trait]
impl Catalog for Embedded {
    fn tenant(&self, id: &TenantId) -> Option<Arc<Tenant>> {
        self.index().tenants.get(id).map(|entry| entry.tenant.clone())
    }

    fn tenants(&self) -> Vec<Arc<Tenant>> {
        self.index().tenants.values().map(|entry| entry.tenant.clone()).collect()
    }

    fn endpoint(&self, tenant: &TenantId, id: EndpointId) -> Option<Arc<Endpoint>> {
        self.any_endpoint(id).filter(|endpoint| endpoint.tenant == *tenant)
    }

    fn any_endpoint(&self, id: EndpointId) -> Option<Arc<Endpoint>> {
        self.index().endpoints.get(&id).map(|entry| entry.endpoint.clone())
    }

    fn endpoints(&self, tenant: &TenantId) -> Vec<Arc<Endpoint>> {
        let index = self.index();
        let Some(entry) = index.tenants.get(tenant) else { return Vec::new() };
        entry.endpoints.values().rev().cloned().collect()
    }

    fn matching(&self, event: &Event) -> Result<Vec<Arc<Endpoint>>> {
        self.index().matching(event)
    }

    async fn put_tenant(&self, tenant: Tenant) -> Result<Arc<Tenant>> {
        self.writer
            .write(move |transaction| {
                let (defaults, quota) = (to_json(&tenant.defaults), to_json(&tenant.quota));
                let db = transaction.db;
                let known: Option<(i64, i64)> = db
                    .query_row(
                        "SELECT no, created_at FROM tenants WHERE id = ? AND deleted_at IS NULL",
                        [tenant.id.as_str()],
                        |row| Ok((row.get(0)?, row.get(1)?)),
                    )
                    .optional()?;
                let (no, created_at) = match known {
                    Some((no, created_at)) => {
                        let sql = "UPDATE tenants SET name = ?, defaults = ?, quota = ? WHERE no = ?";
                        db.execute(sql, params![tenant.name, defaults, quota, no])?;
                        (no, at(created_at))
                    }
                    None => {
                        let sql = "INSERT INTO tenants (id, name, defaults, quota, created_at) VALUES (?, ?, ?, ?, ?)";
                        let created_at = millis(tenant.created_at);
                        db.execute(sql, params![tenant.id.as_str(), tenant.name, defaults, quota, created_at])?;
                        (db.last_insert_rowid(), tenant.created_at)
                    }
                };
                let tenant = Arc::new(Tenant { created_at, ..tenant });
                let known = tenant.clone();
                transaction.after_commit(move |index| index.put_tenant(no, known));
                Ok(tenant)
            })
            .await
    }

    async fn delete_tenant(&self, id: &TenantId, now: Timestamp) -> Result<()> {
        let id = id.clone();
        self.writer
            .write(move |transaction| {
                let db = transaction.db;
                let sql = "UPDATE tenants SET deleted_at = ? WHERE id = ? AND deleted_at IS NULL RETURNING no";
                let no: Option<i64> =
                    db.query_row(sql, params![millis(now), id.as_str()], |row| row.get(0)).optional()?;
                let Some(no) = no else { return Ok(Err(Error::NotFound("tenant"))) };
                let sql = "DELETE FROM secrets WHERE endpoint IN (SELECT no FROM endpoints WHERE tenant = ?)";
                db.execute(sql, [no])?;
                let sql = "UPDATE endpoints SET deleted_at = ? WHERE tenant = ? AND deleted_at IS NULL";
                db.execute(sql, params![millis(now), no])?;
                transaction.after_commit(move |index| index.remove_tenant(&id));
                Ok(Ok(()))
            })
            .await??;
        self.sweep_soon();
        Ok(())
    }

    async fn create_endpoint(&self, endpoint: Endpoint) -> Result<Arc<Endpoint>> {
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
                let Some(tenant) = tenant else { return Ok(Err(Error::NotFound("tenant"))) };
                db.execute(
                    "INSERT INTO endpoints (id, tenant, settings, standing, created_at, updated_at)
                     VALUES (?, ?, ?, ?, ?, ?)",
                    params![
                        id_bytes(endpoint.id.0),
                        tenant,
                        to_json(&endpoint.settings),
                        to_json(&endpoint.standing),
                        millis(endpoint.created_at),
                        millis(endpoint.updated_at),
                    ],
                )?;
                let no = db.last_insert_rowid();
                for secret in &endpoint.secrets {
                    insert_secret(db, no, secret)?;
                }
                let endpoint = Arc::new(endpoint);
                let known = endpoint.clone();
                transaction.after_commit(move |index| index.put_endpoint(no, known));
                Ok(Ok(endpoint))
            })
            .await?
    }

    async fn change_endpoint(
        &self,
        tenant: &TenantId,
        id: EndpointId,
        change: EndpointChange,
        now: Timestamp,
    ) -> Result<Arc<Endpoint>> {
        let tenant = tenant.clone();
        self.writer
            .write(move |transaction| {
                let Some((no, mut endpoint)) = current(transaction, id)? else {
                    return Ok(Err(Error::NotFound("endpoint")));
                };
                if endpoint.tenant != tenant {
                    return Ok(Err(Error::NotFound("endpoint")));
                }
                let mut unblocks = false;
                match change {
                    EndpointChange::Settings { settings, policy, if_updated_at } => {
                        if endpoint.updated_at != if_updated_at {
                            return Ok(Err(Error::Changed));
                        }
                        // Another receiver has asked for nothing yet.
                        if endpoint.settings.url != settings.url {
                            endpoint.quiet_until = None;
                        }
                        unblocks = endpoint.settings.on_dead == OnDead::Block && settings.on_dead == OnDead::Skip;
                        endpoint.settings = *settings;
                        endpoint.policy = policy;
                        // Strictly later, so that the next change can tell.
                        let least = millis(endpoint.updated_at) + 1;
                        endpoint.updated_at = at(millis(now).max(least));
                    }
                    EndpointChange::Standing { state, reason } => {
                        // Whoever resumes what is not held means the quiet
                        // that its receiver asked for.
                        let is_active = |state| state == EndpointState::Active;
                        if is_active(state) && is_active(endpoint.standing.state) {
                            endpoint.quiet_until = None;
                        }
                        endpoint.standing = endpoint.standing.moved(state, reason, now);
                    }
                    EndpointChange::Rotate { secret, overlap } => {
                        rotate(transaction.db, no, &mut endpoint, secret, overlap, now)?;
                    }
                }
                let endpoint = save(transaction, no, endpoint)?;
                if unblocks {
                    super::lane::pass_dead_heads(transaction.db, no, now)?;
                }
                Ok(Ok(endpoint))
            })
            .await?
    }

    async fn delete_endpoint(&self, tenant: &TenantId, id: EndpointId, now: Timestamp) -> Result<()> {
        let tenant = tenant.clone();
        self.writer
            .write(move |transaction| {
                let Some((no, endpoint)) = current(transaction, id)? else {
                    return Ok(Err(Error::NotFound("endpoint")));
                };
                if endpoint.tenant != tenant {
                    return Ok(Err(Error::NotFound("endpoint")));
                }
                // Its secrets are of no more use to anyone.
                transaction.db.execute("DELETE FROM secrets WHERE endpoint = ?", [no])?;
                let sql = "UPDATE endpoints SET deleted_at = ? WHERE no = ?";
                transaction.db.execute(sql, params![millis(now), no])?;
                transaction.after_commit(move |index| index.remove_endpoint(id));
                Ok(Ok(()))
            })
            .await??;
        self.sweep_soon();
        Ok(())
    }

    async fn note(&self, name: &'static str) -> Result<Option<String>> {
        self.read(move |db| db.query_row("SELECT value FROM notes WHERE name = ?", [name], |row| row.get(0)).optional())
            .await
    }

    async fn set_note(&self, name: &'static str, value: String) -> Result<()> {
        self.writer
            .write(move |transaction| {
                let sql = "INSERT INTO notes (name, value) VALUES (?, ?)
                           ON CONFLICT (name) DO UPDATE SET value = excluded.value";
                transaction.db.execute(sql, params![name, value]).map(|_| ())
            })
            .await
    }
}

/// An endpoint as the transaction sees it. Changes of the same transaction
/// are in the tables already, but not yet in the index, so the tables decide.
pub(super) fn current(transaction: &Transaction<'_>, id: EndpointId) -> rusqlite::Result<Option<(i64, Endpoint)>> {
    let known = {
        let index = transaction.index.read().expect("no writer of the catalogue panics");
        index.endpoint_entry(id).map(|(no, endpoint)| (no, Endpoint::clone(endpoint)))
    };
    let Some((no, mut endpoint)) = known else { return Ok(None) };
    let row: Option<(String, String, i64, Option<i64>)> = transaction
        .db
        .prepare_cached(
            "SELECT settings, standing, updated_at, quiet_until FROM endpoints WHERE no = ? AND deleted_at IS NULL",
        )?
        .query_row([no], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        .optional()?;
    let Some((settings, standing, updated_at, quiet_until)) = row else { return Ok(None) };
    endpoint.settings = from_json(&settings);
    endpoint.policy = endpoint.settings.retry.filled();
    endpoint.standing = from_json(&standing);
    endpoint.updated_at = at(updated_at);
    endpoint.quiet_until = quiet_until.map(at);
    endpoint.secrets = {
        let sql = "SELECT id, text, created_at, expires_at FROM secrets
                   WHERE endpoint = ? ORDER BY created_at DESC, id DESC";
        let mut statement = transaction.db.prepare_cached(sql)?;
        let secrets = statement.query_map([no], |row| {
            Ok(Secret {
                id: SecretId(uuid_of(row.get(0)?)),
                text: row.get(1)?,
                created_at: at(row.get(2)?),
                expires_at: row.get::<_, Option<i64>>(3)?.map(at),
            })
        })?;
        secrets.collect::<rusqlite::Result<_>>()?
    };
    Ok(Some((no, endpoint)))
}

/// Writes an endpoint back, and shows it once that is durable.
pub(super) fn save(transaction: &mut Transaction<'_>, no: i64, endpoint: Endpoint) -> rusqlite::Result<Arc<Endpoint>> {
    transaction.db.execute(
        "UPDATE endpoints SET settings = ?, standing = ?, updated_at = ?, quiet_until = ? WHERE no = ?",
        params![
            to_json(&endpoint.settings),
            to_json(&endpoint.standing),
            millis(endpoint.updated_at),
            endpoint.quiet_until.map(millis),
            no
        ],
    )?;
    let endpoint = Arc::new(endpoint);
    let known = endpoint.clone();
    transaction.after_commit(move |index| index.put_endpoint(no, known));
    Ok(endpoint)
}

/// Does what the receiver at this URL asked for itself; returns whether that
/// changed anything.
pub(super) fn heed(
    transaction: &mut Transaction<'_>,
    id: EndpointId,
    url: &str,
    notice: &Notice,
    now: Timestamp,
) -> rusqlite::Result<bool> {
    let Some((no, mut endpoint)) = current(transaction, id)? else { return Ok(false) };
    // Another receiver has said nothing yet.
    if endpoint.settings.url != url {
        return Ok(false);
    }
    match notice {
        Notice::Disable(_) if endpoint.standing.state == EndpointState::Disabled => return Ok(false),
        Notice::Disable(reason) => {
            endpoint.standing = endpoint.standing.moved(EndpointState::Disabled, Some(reason.clone()), now);
        }
        // What was asked for once is not taken back by asking for less.
        Notice::QuietUntil(at) if endpoint.quiet_until.is_some_and(|known| known >= *at) => return Ok(false),
        Notice::QuietUntil(at) => endpoint.quiet_until = Some(*at),
    }
    save(transaction, no, endpoint)?;
    Ok(true)
}

fn insert_secret(db: &Connection, endpoint: i64, secret: &Secret) -> rusqlite::Result<()> {
    db.execute(
        "INSERT INTO secrets (id, endpoint, text, created_at, expires_at) VALUES (?, ?, ?, ?, ?)",
        params![
            id_bytes(secret.id.0),
            endpoint,
            secret.text,
            millis(secret.created_at),
            secret.expires_at.map(millis),
        ],
    )?;
    Ok(())
}

fn rotate(
    db: &Connection,
    no: i64,
    endpoint: &mut Endpoint,
    secret: Secret,
    overlap: Duration,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let ends_at = crate::model::delivery::after(now, overlap);
    db.execute("DELETE FROM secrets WHERE endpoint = ? AND expires_at <= ?", params![no, millis(now)])?;
    db.execute(
        "UPDATE secrets SET expires_at = ? WHERE endpoint = ? AND (expires_at IS NULL OR expires_at > ?)",
        params![millis(ends_at), no, millis(ends_at)],
    )?;
    insert_secret(db, no, &secret)?;
    endpoint.secrets.retain(|old| old.is_active(now));
    for old in &mut endpoint.secrets {
        old.expires_at = Some(old.expires_at.map_or(ends_at, |earlier| earlier.min(ends_at)));
    }
    endpoint.secrets.insert(0, secret);
    Ok(())
}

fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("the catalogue's values are plain data")
}

fn from_json<T: serde::de::DeserializeOwned>(text: &str) -> T {
    serde_json::from_str(text).expect("the catalogue holds what was written into it")
}
