//! A database that is lost for good, and its synchronous standby.

use std::time::Instant;

use rand::RngExt;

use crate::audit::{Findings, Rules};
use crate::ledger::{Ledger, TIMEOUT, flaky};
use crate::nodes::{CAP, Cluster, ENDPOINTS};
use crate::report::{Faults, Report};
use crate::run::Run;
use crate::servers::postgres::Server;
use crate::support::eventually;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_to_a_synchronous_standby_loses_nothing() {
    let mut run = Run::of("failover");
    let mut report = Report::of(&run);
    while run.goes_on() {
        let mut faults = Faults::default();
        let ledger = Ledger::start(flaky).await;
        let primary = Server::start(&[]).await;
        let standby = primary.synchronous_standby().await;
        let mut cluster = Cluster::on_server(primary).await;
        cluster.start_behind_proxies(2).await;
        cluster.create_endpoints(&ledger, ENDPOINTS).await;
        cluster.settled().await;
        let load = cluster.load("a");
        ledger.wait_for_more(run.rng.random_range(200..600)).await;
        let killed = Instant::now();
        cluster.server().kill().await;
        standby.promote().await;
        cluster.nodes.iter().for_each(|node| node.proxy().lead_to(standby.address()));
        let acknowledged = load.acknowledged();
        eventually("events to be taken again", || async {
            if load.acknowledged() > acknowledged + 100 { Ok(()) } else { Err(load.acknowledged().to_string()) }
        })
        .await;
        report.figure("away for", format!("{:?}", killed.elapsed()));
        faults.note("failover", killed);
        let acknowledged = load.finish().await;
        cluster.drained().await;
        report.add(&Findings::of(&ledger.entries(), &acknowledged, &Rules { cap: CAP, timeout: TIMEOUT }), &faults);
        report.cycles += 1;
    }
    report.finish();
}
