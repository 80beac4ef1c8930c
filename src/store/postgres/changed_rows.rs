//! Reads the rows of the catalog that other nodes changed, and puts them into the
//! index.
//!
//! During a rolling upgrade a newer version may write what this one cannot read.
//! That costs the tenant it belongs to, and nothing else.

use std::collections::HashMap;
use std::sync::Arc;

use tracing::warn;

use super::PostgresState;
use super::access;
use super::endpoint::PostgresEndpointRow;
use super::transaction::{PgTransaction, bind};
use crate::model::endpoint::{Endpoint, Secret};
use crate::model::id::{EndpointId, TenantId};
use crate::model::tenant::Tenant;
use crate::model::token::Token;
use crate::store::catalog_columns::{SecretColumns, TenantColumns};
use crate::store::row::{PostgresColumns, row};
use crate::store::seal::Seal;
use crate::store::{Error, Result, UnreadableRecord};

/// Ids of tenants and endpoints that other nodes changed or deleted.
#[derive(Debug, Default)]
pub struct CatalogChanges {
    /// Ids of the endpoints.
    pub endpoints: Vec<EndpointId>,
    /// Ids of the tenants.
    pub tenants: Vec<TenantId>,
}

/// Rows that changed after a version of the catalog.
pub struct ChangedRows {
    /// Version that these rows lead to.
    pub version: i64,
    /// Tenants with their numbers; `None` for one that was deleted.
    tenants: Vec<(TenantId, Option<(i64, ChangedTenant)>)>,
    /// Endpoints with their numbers.
    endpoints: Vec<(i64, EndpointId, ChangedEndpoint)>,
    /// Tokens, and whether each was revoked.
    tokens: Vec<(Token, bool)>,
}

/// A tenant that changed, and the first of its values that only a newer version
/// can read, if there is one. Until that version runs here, the tenant keeps
/// the value that is known here.
struct ChangedTenant {
    tenant: Tenant,
    unreadable: Option<UnreadableRecord>,
}

/// The present form of an endpoint that has changed.
enum ChangedEndpoint {
    Deleted,
    Read(Box<Endpoint>),
    /// Only a newer version can read it. Whose endpoint it is, and why.
    Unreadable(TenantId, UnreadableRecord),
}

row! {
    /// A tenant that changed after a version.
    postgres struct PostgresTenantRow from "FROM posthaste.tenants t WHERE t.version > $1 ORDER BY t.deleted_at IS NULL" {
        tenant: TenantColumns = TenantColumns::COLUMNS,
        is_deleted: bool = "t.deleted_at IS NOT NULL",
    }
}

row! {
    /// A secret of an endpoint that changed after a version.
    postgres struct PostgresSecretRow from "FROM posthaste.secrets s JOIN posthaste.endpoints p ON p.no = s.endpoint
         WHERE p.version > $1 ORDER BY s.created_at DESC, s.id DESC" {
        secret: SecretColumns = SecretColumns::COLUMNS,
        endpoint: EndpointId = "p.id",
    }
}

/// Reads the secrets of endpoints that changed after the version `known`, by the number of
/// the endpoint.
pub async fn secrets_after(tx: &PgTransaction, known: i64, seal: &Seal) -> Result<HashMap<i64, Vec<Secret>>> {
    let mut secrets: HashMap<i64, Vec<Secret>> = HashMap::new();
    for row in tx.query(PostgresSecretRow::SQL, bind![known]).await? {
        let PostgresSecretRow { secret, endpoint } = PostgresSecretRow::read(&row);
        secrets.entry(secret.endpoint).or_default().push(secret.secret(seal, endpoint)?);
    }
    Ok(secrets)
}

impl PostgresState {
    /// Reads the rows that changed after the version `known`.
    pub async fn read_after(&self, known: i64) -> Result<ChangedRows> {
        let tx = self.connections.begin_reading().await?;
        let version: i64 = tx.query("SELECT version FROM posthaste.catalog", bind![]).await?[0].get(0);
        let tenants = tx.query(PostgresTenantRow::SQL, bind![known]).await?;
        let tenants = tenants.iter().map(|row| self.changed_tenant(PostgresTenantRow::read(row))).collect();
        let seal = &self.options.seal;
        let mut endpoints = Vec::new();
        for row in tx.query(&PostgresEndpointRow::sql("p.version > $1"), bind![known]).await? {
            let row = PostgresEndpointRow::read(&row);
            endpoints.push((row.endpoint.no, row.endpoint.id, self.changed_endpoint(row)?));
        }
        let mut secrets = secrets_after(&tx, known, seal).await?;
        for (no, _, changed) in &mut endpoints {
            if let ChangedEndpoint::Read(endpoint) = changed {
                endpoint.secrets = secrets.remove(no).unwrap_or_default();
            }
        }
        let tokens = access::changed_after(&tx, known).await?;
        tx.commit().await?;
        Ok(ChangedRows { version, tenants, endpoints, tokens })
    }

    /// Returns a tenant's id, and its number and the tenant unless it was deleted.
    fn changed_tenant(&self, row: PostgresTenantRow) -> (TenantId, Option<(i64, ChangedTenant)>) {
        let (no, id) = (row.tenant.no, row.tenant.id.clone());
        if row.is_deleted {
            return (id, None);
        }
        let known = self.index().tenant(&id);
        let (tenant, unreadable) = row.tenant.tenant_or(known.as_deref());
        (id, Some((no, ChangedTenant { tenant, unreadable })))
    }

    fn changed_endpoint(&self, row: PostgresEndpointRow) -> Result<ChangedEndpoint> {
        if row.is_deleted {
            return Ok(ChangedEndpoint::Deleted);
        }
        let tenant = row.tenant.clone();
        match row.endpoint(&self.options.seal) {
            Ok(endpoint) => Ok(ChangedEndpoint::Read(Box::new(endpoint))),
            Err(Error::Unreadable(problem)) => Ok(ChangedEndpoint::Unreadable(tenant, problem)),
            Err(problem) => Err(problem),
        }
    }

    /// Puts changed rows into the index, and returns what they are about.
    pub fn put_into_index(&self, changed: ChangedRows) -> CatalogChanges {
        let mut changes = CatalogChanges::default();
        let mut index = self.index_mut();
        for (id, tenant) in changed.tenants {
            match tenant {
                None => index.remove_tenant(&id),
                Some((no, changed)) => {
                    index.put_tenant(no, Arc::new(changed.tenant));
                    if let Some(problem) = changed.unreadable {
                        log_unreadable(&id, None, &problem);
                        index.set_unreadable(&id, None, problem);
                    }
                }
            }
            changes.tenants.push(id);
        }
        for (no, id, changed) in changed.endpoints {
            changes.endpoints.push(id);
            match changed {
                ChangedEndpoint::Deleted => {
                    index.remove_endpoint(id);
                    index.forget_waiting(no);
                }
                ChangedEndpoint::Read(endpoint) => index.put_endpoint(no, Arc::new(*endpoint)),
                ChangedEndpoint::Unreadable(tenant, problem) => {
                    log_unreadable(&tenant, Some(id), &problem);
                    index.set_unreadable(&tenant, Some(id), problem);
                }
            }
        }
        for (token, is_revoked) in changed.tokens {
            if is_revoked {
                index.remove_token(token.id);
            } else {
                index.put_token(Arc::new(token));
            }
        }
        changes
    }
}

/// Logs that something is out of reach on this node until it is upgraded.
fn log_unreadable(tenant: &TenantId, endpoint: Option<EndpointId>, problem: &UnreadableRecord) {
    let what = endpoint.map_or_else(|| "its own settings".to_owned(), |id| format!("endpoint {id}"));
    warn!(tenant = %tenant, "this node accepts no events of tenant {tenant} until it is upgraded, for {what}: {problem}");
}
