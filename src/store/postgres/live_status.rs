//! What owners publish of their endpoints, for other nodes to show.

use std::collections::HashMap;

use uuid::Uuid;

use super::PostgresState;
use super::read_query::read_rows;
use super::transaction::{bind, with_timeout};
use crate::model::id::EndpointId;
use crate::model::shard::Lease;
use crate::store::{PublishedStatus, Result};

/// Number of statuses that one statement writes.
const BATCH: usize = 1_000;

/// Publishes the statuses, and then that the shards are published completely.
/// An endpoint that was deleted meanwhile is left out.
pub async fn publish(shared: &PostgresState, statuses: Vec<PublishedStatus>, complete: Vec<Lease>) -> Result<()> {
    let mut rows: Vec<(Lease, i64, String)> = {
        let index = shared.index();
        let numbered = statuses.into_iter().filter_map(|status| {
            let (no, _) = index.endpoint_entry(status.endpoint)?;
            Some((status.lease, no, status.status))
        });
        numbered.collect()
    };
    // Last, so that nobody takes a shard for published before it is.
    rows.extend(complete.into_iter().map(|lease| (lease, 0, String::new())));
    let client = shared.connection().await?;
    for batch in rows.chunks(BATCH) {
        let shards: Vec<i16> = batch.iter().map(|(lease, ..)| i16::from(lease.shard.0)).collect();
        let endpoints: Vec<i64> = batch.iter().map(|(_, no, _)| *no).collect();
        let epochs: Vec<i64> = batch.iter().map(|(lease, ..)| lease.epoch.0.cast_signed()).collect();
        let texts: Vec<&str> = batch.iter().map(|(.., text)| text.as_str()).collect();
        let sql = include_str!("sql/publish_status.sql");
        with_timeout(client.execute_typed(sql, bind![shards, endpoints, epochs, texts])).await?;
    }
    Ok(())
}

/// Returns what the present owners of these endpoints have published: nothing
/// for one that is idle. An endpoint whose shard is not published yet is left
/// out.
pub async fn read_published(
    shared: &PostgresState,
    endpoints: &[EndpointId],
) -> Result<HashMap<EndpointId, Option<String>>> {
    let ids: Vec<Uuid> = endpoints.iter().map(|id| id.0).collect();
    let rows = read_rows(shared, include_str!("sql/published_status.sql"), bind![ids]).await?;
    Ok(rows.iter().map(|row| (EndpointId(row.get(0)), row.get(1))).collect())
}

/// Takes back everything that is published: nobody is left to read it.
pub async fn withdraw(shared: &PostgresState) -> Result<()> {
    let client = shared.connection().await?;
    with_timeout(client.execute_typed("DELETE FROM posthaste.live_status", bind![])).await.map(|_| ())
}
