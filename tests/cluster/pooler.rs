//! PgBouncer in transaction mode between the nodes and the database.

use crate::ledger::{Ledger, flaky};
use crate::nodes::{Cluster, ENDPOINTS};
use crate::servers::pgbouncer::PgBouncer;
use crate::servers::postgres::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_that_lends_connections_by_the_transaction_changes_nothing() {
    let ledger = Ledger::start(flaky).await;
    let mut cluster = Cluster::new().await;
    // Fewer connections than the nodes have: each is somebody else's a moment later.
    let pooler = PgBouncer::start(Server::shared(&[]).await, cluster.database(), 6).await;
    let url = cluster.database().url_through(pooler.address);
    cluster.start_through(&url, 2).await;
    cluster.create_endpoints(&ledger, ENDPOINTS).await;
    cluster.settled().await;
    let load = cluster.load("a");
    ledger.wait_for_more(500).await;
    cluster.terminate(1).await;
    ledger.wait_for_more(200).await;
    cluster.restart(1).await;
    ledger.wait_for_more(200).await;
    let acknowledged = load.finish().await;
    cluster.check(&ledger, &acknowledged, |_| false).await;
}
