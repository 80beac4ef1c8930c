//! Takes in what other nodes changed in the catalog, and confirms it to them.

use tracing::warn;

use crate::model::health::EndpointHealth;
use crate::model::id::EndpointId;
use crate::store::Result;
use crate::store::postgres::PostgresState;
use crate::store::postgres::transaction::{bind, with_timeout};
use crate::store::stored_json::from_json;

impl PostgresState {
    /// Tells the other nodes which version of the catalog is in force here.
    pub(super) async fn acknowledge_catalog(&self) -> Result<()> {
        let version = self.catalog.version();
        let client = self.connection().await?;
        let sql = "UPDATE posthaste.nodes SET catalog_version = $2 WHERE id = $1";
        with_timeout(client.execute_typed(sql, bind![self.shard_leases.node(), version])).await?;
        self.catalog.set_acknowledged(version);
        Ok(())
    }

    /// Reads the health of the endpoints of these shards, as their last owners
    /// stored it.
    pub(super) async fn refresh_health(&self, shards: &[i16]) -> Result<()> {
        let client = self.connection().await?;
        let sql = "SELECT p.id, h.health FROM posthaste.endpoints p JOIN posthaste.health h ON h.endpoint = p.no
                   WHERE p.deleted_at IS NULL AND p.shard = ANY($1)";
        let rows = with_timeout(client.query_typed(sql, bind![shards.to_vec()])).await?;
        let mut index = self.index_mut();
        for row in rows {
            let id = EndpointId(row.get(0));
            let health: EndpointHealth = match from_json("endpoints.health", row.get(1)) {
                Ok(health) => health,
                Err(problem) => {
                    // The endpoint keeps the health that is known here.
                    warn!(endpoint.id = %id, "the breaker of endpoint {id} is not known here: {problem}");
                    continue;
                }
            };
            if index.endpoint_entry(id).is_some_and(|(_, known)| health.is_after(&known.health)) {
                index.show_health(id, health);
            }
        }
        Ok(())
    }
}
