//! kill -9 and SIGTERM under load.

use std::time::Instant;

use rand::RngExt;

use crate::ledger::{Ledger, flaky};
use crate::report::{Faults, Report};
use crate::restarting_gateway::RestartingGateway;
use crate::run::Run;
use crate::support::Options;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gateway_loses_nothing_and_repeats_only_what_was_open() {
    let mut run = Run::of("kill -9");
    let mut single =
        RestartingGateway::start(Ledger::start(flaky).await, Options::default()).await.with_endpoints().await;
    let (mut report, mut faults) = (Report::of(&run), Faults::default());
    let load = single.load("a");
    while run.goes_on() {
        single.ledger.wait_for_more(run.rng.random_range(0..300)).await;
        let killed = Instant::now();
        single.gateway_mut().kill().await;
        single.restart().await;
        faults.note("crash", killed);
        report.cycles += 1;
    }
    let acknowledged = load.finish().await;
    single.check(&acknowledged, &faults, &mut report).await;
    report.finish();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_is_told_to_stop_loses_nothing_and_repeats_nothing() {
    let mut run = Run::of("SIGTERM");
    let mut single =
        RestartingGateway::start(Ledger::start(flaky).await, Options::default()).await.with_endpoints().await;
    let mut report = Report::of(&run);
    let load = single.load("a");
    while run.goes_on() {
        single.ledger.wait_for_more(run.rng.random_range(0..300)).await;
        let ended = single.gateway_mut().terminate().await;
        report.expect(ended.success(), || format!("SIGTERM ended in {ended}"));
        single.restart().await;
        report.cycles += 1;
    }
    let acknowledged = load.finish().await;
    single.check(&acknowledged, &Faults::default(), &mut report).await;
    report.finish();
}
