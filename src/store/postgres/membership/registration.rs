//! Registers the node in the list of nodes.

use std::time::Instant;

use tracing::info;

use crate::store::Result;
use crate::store::postgres::PostgresState;
use crate::store::postgres::transaction::bind;

/// Adds the node to the list under a new id, and removes the one it had.
/// Returns the snapshot after which it reads what other nodes accept.
pub(super) async fn register(shared: &PostgresState) -> Result<(String, Vec<String>)> {
    let began = Instant::now();
    let old = shared.shard_leases.node();
    let tx = shared.begin().await?;
    tx.execute("UPDATE posthaste.shards SET node = NULL WHERE node = $1", bind![old]).await?;
    tx.execute("DELETE FROM posthaste.nodes WHERE id = $1", bind![old]).await?;
    let sql = "INSERT INTO posthaste.nodes (id, name, catalog_version, joined_at, lease_until)
               VALUES (nextval('posthaste.node_ids'), $1, 0, clock_timestamp(),
                       clock_timestamp() + make_interval(secs => $2))
               RETURNING id, pg_current_snapshot()::text";
    let lease = shared.options.lease;
    let row = &tx.query(sql, bind![shared.options.name, lease.as_secs_f64()]).await?[0];
    let (node, snapshot): (i64, String) = (row.get(0), row.get(1));
    tx.commit().await?;
    // The new row says that this node knows no version of the catalog yet.
    shared.catalog.set_acknowledged(0);
    shared.shard_leases.join(node);
    shared.snowflake.join(node);
    // Read the catalog only when the node is in the list, so that no change is
    // made without it.
    shared.refresh_catalog().await?;
    shared.acknowledge_catalog().await?;
    // Set the lease last: under a lease the node acts on the catalog it knows.
    shared.shard_leases.renew(began + lease - lease / 20);
    info!(node, "joined the cluster as node {node}");
    Ok(parse_snapshot(&snapshot))
}

/// Returns the end of a snapshot, and the transactions that were open in it.
pub(super) fn parse_snapshot(text: &str) -> (String, Vec<String>) {
    let mut parts = text.splitn(3, ':').skip(1);
    let end = parts.next().unwrap_or("0").to_owned();
    let under_way = parts.next().unwrap_or("").split(',').filter(|xid| !xid.is_empty()).map(str::to_owned).collect();
    (end, under_way)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_tells_its_end_and_what_was_under_way() {
        assert_eq!(parse_snapshot("10:20:12,15"), ("20".into(), vec!["12".into(), "15".into()]));
        assert_eq!(parse_snapshot("10:10:"), ("10".into(), vec![]));
    }
}
