//! A gateway that does not run for a while, as under SIGSTOP, a debugger or a
//! suspended machine, while its receivers answer.

use std::time::{Duration, Instant};

use rand::RngExt;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::audit::{Findings, Rules};
use crate::ledger::{Ledger, Reply};
use crate::load::{AcknowledgedEvents, event_of};
use crate::nodes::Cluster;
use crate::report::{Faults, Report};
use crate::restarting_gateway::{RestartingGateway, drained};
use crate::run::Run;
use crate::support::{Gateway, Options, path_of};

const ENDPOINTS: usize = 12;
/// Number of requests, enough to open a breaker if they all fail.
const CAP: usize = 12;
/// Timeout of a request. All connections are opened at once, beside other scenarios,
/// and one that took longer would rightly be charged.
const TIMEOUT: Duration = Duration::from_secs(4);

/// Returns the additional settings of its endpoints: enough open requests, a
/// timeout that is shorter than the freeze, and a breaker.
fn changes() -> Value {
    json!({"max_in_flight": CAP, "timeout": {"connect": "4s", "total": "4s"}, "breaker": {"enabled": true}})
}

/// Freezes a gateway whose cap is full; the receivers answer meanwhile. Returns
/// the acknowledged events.
async fn freeze(run: &mut Run, cycle: usize, gateway: &Gateway, ledger: &Ledger) -> AcknowledgedEvents {
    ledger.hold_answers();
    let before = ledger.count();
    let id = |n: usize| (format!("f{cycle}-{n}"), format!("e{}", n % ENDPOINTS));
    let ids: Vec<(String, String)> = (0..ENDPOINTS * CAP).map(id).collect();
    let events: Vec<String> = ids.iter().map(|(id, endpoint)| event_of(id, endpoint, "")).collect();
    gateway.client.post("/v1/tenants/default/events/batch", format!("[{}]", events.join(","))).await.expect(202);
    ledger.wait_until("all to be open", |entries| entries.len() == before + ids.len()).await;
    gateway.signal(Signal::STOP);
    let frozen = Instant::now();
    ledger.release_answers();
    ledger.wait_until("all to be answered", |entries| entries.iter().all(|entry| entry.ended.is_some())).await;
    let lasts = TIMEOUT.mul_f64(run.rng.random_range(1.1..1.5));
    tokio::time::sleep(lasts.saturating_sub(frozen.elapsed())).await;
    gateway.signal(Signal::CONT);
    drained(&gateway.client).await;
    AcknowledgedEvents::of(&ids.iter().map(|(id, endpoint)| (&**id, &**endpoint, "")).collect::<Vec<_>>())
}

/// Freezes it again and again, and checks that no attempt was charged for it.
async fn freeze_again_and_again(run: &mut Run, gateway: &Gateway, ledger: &Ledger, endpoints: &[Value]) {
    let (mut report, mut acknowledged) = (Report::of(run), AcknowledgedEvents::default());
    while run.goes_on() {
        acknowledged = acknowledged.and(freeze(run, report.cycles, gateway, ledger).await);
        report.cycles += 1;
    }
    report.add(
        &Findings::of(&ledger.entries(), &acknowledged, &Rules { cap: CAP, timeout: TIMEOUT }),
        &Faults::default(),
    );
    let mut opened = 0;
    for endpoint in endpoints {
        let history = gateway.history(endpoint).await;
        opened += history.iter().filter(|entry| entry.to_string().contains("breaker_opened")).count();
    }
    report.figure("breakers opened", opened);
    report.expect(opened == 0, || format!("{opened} breakers of healthy receivers opened"));
    report.finish();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_came_during_a_freeze_count_on_the_embedded_store() {
    let mut run = Run::of("freeze");
    let ledger = Ledger::start(|_| Reply::Hold(200)).await;
    let mut single = RestartingGateway::start(ledger, Options::default()).await;
    single.create_endpoints(ENDPOINTS, &changes()).await;
    freeze_again_and_again(&mut run, single.gateway(), &single.ledger, &single.endpoints).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_came_during_a_freeze_shorter_than_the_lease_count_on_postgres() {
    let mut run = Run::of("freeze on PostgreSQL");
    let ledger = Ledger::start(|_| Reply::Hold(200)).await;
    ledger.stop_identifying_nodes();
    let mut cluster = Cluster::new().await;
    cluster.start_in(vec![Vec::new()], "15s").await;
    cluster.create_endpoints(&ledger, ENDPOINTS).await;
    for endpoint in &cluster.endpoints {
        cluster.nodes[0].client().patch_json(&path_of(endpoint), &changes()).await.expect(200);
    }
    freeze_again_and_again(&mut run, cluster.nodes[0].gateway(), &ledger, &cluster.endpoints).await;
}
