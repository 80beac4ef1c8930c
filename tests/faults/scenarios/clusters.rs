//! Faults of many nodes and of their database, one at a time and several at
//! once.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rand::RngExt;
use rand::seq::SliceRandom;

use crate::audit::{Findings, Rules};
use crate::ledger::{Ledger, TIMEOUT, flaky};
use crate::load::AcknowledgedEvents;
use crate::nodes::{CAP, Cluster, ENDPOINTS, LEASE};
use crate::report::{Faults, Report};
use crate::run::Run;
use crate::servers::proxy::NetworkState;
use crate::support::eventually;

const NODES: usize = 3;
/// Time before and after the end of an outage in which pauses are requested.
const AROUND: Duration = Duration::from_millis(300);
/// Longest fault that never costs a node its lease, which is renewed six times
/// as often as it ends.
const SHORT: f64 = 0.4;

/// A fault that lasts for some time.
#[derive(Debug, Clone, Copy)]
enum ClusterFault {
    Frozen,
    Network(NetworkState),
}

const HARMS: [ClusterFault; 6] = [
    ClusterFault::Frozen,
    ClusterFault::Network(NetworkState::Silent),
    ClusterFault::Network(NetworkState::RequestsLost),
    ClusterFault::Network(NetworkState::AnswersLost),
    ClusterFault::Network(NetworkState::Reset),
    ClusterFault::Network(NetworkState::Slow(Duration::from_millis(30))),
];

fn begin(cluster: &Cluster, node: usize, fault: ClusterFault) {
    match fault {
        ClusterFault::Frozen => cluster.nodes[node].freeze(),
        ClusterFault::Network(weather) => cluster.nodes[node].proxy().set(weather),
    }
}

fn end(cluster: &Cluster, node: usize, fault: ClusterFault) {
    match fault {
        ClusterFault::Frozen => cluster.nodes[node].thaw(),
        ClusterFault::Network(_) => cluster.nodes[node].proxy().set(NetworkState::Working),
    }
}

/// Injects one fault into the cluster, and records it.
async fn fault(run: &mut Run, cluster: &mut Cluster, faults: &mut Faults) -> &'static str {
    let node = run.rng.random_range(0..cluster.nodes.len());
    let from = Instant::now();
    match run.rng.random_range(0..8) {
        0 => {
            cluster.kill(node).await;
            cluster.restart(node).await;
            faults.note_at(&cluster.nodes[node].name, "crash", from);
            "kill -9"
        }
        1 => {
            cluster.terminate(node).await;
            cluster.restart(node).await;
            "SIGTERM"
        }
        2 => {
            cluster.nodes[node].proxy().cut();
            "cut connections"
        }
        3 => {
            cluster.start_behind_proxies(1).await;
            cluster.leave(node).await;
            "churn"
        }
        4 => {
            if run.rng.random() {
                cluster.server().kill().await;
            } else {
                cluster.server().stop().await;
            }
            cluster.server().start_again().await;
            // A lease may have ended meanwhile.
            tokio::time::sleep(LEASE / 4).await;
            faults.note("database away", from);
            "database restarted"
        }
        _ => lasting(run, cluster, faults).await,
    }
}

/// Injects a lasting fault into one node or into several at once.
async fn lasting(run: &mut Run, cluster: &Cluster, faults: &mut Faults) -> &'static str {
    let mut nodes: Vec<usize> = (0..cluster.nodes.len()).collect();
    nodes.shuffle(&mut run.rng);
    let count = if run.rng.random_bool(0.6) { 1 } else { run.rng.random_range(2..=nodes.len()) };
    let harmed: Vec<(usize, ClusterFault)> =
        nodes[..count].iter().map(|node| (*node, HARMS[run.rng.random_range(0..HARMS.len())])).collect();
    let is_short = run.rng.random();
    let lasts = LEASE.mul_f64(if is_short { run.rng.random_range(0.1..SHORT) } else { run.rng.random_range(0.8..1.7) });
    let from = Instant::now();
    harmed.iter().for_each(|(node, fault)| begin(cluster, *node, *fault));
    tokio::time::sleep(lasts).await;
    harmed.iter().for_each(|(node, fault)| end(cluster, *node, *fault));
    if !is_short {
        // Until it has noticed, and joined anew.
        tokio::time::sleep(LEASE / 4).await;
        for (node, _) in &harmed {
            faults.note_at(&cluster.nodes[*node].name, "lease ended", from);
        }
    }
    match (is_short, count) {
        (true, 1) => "short fault",
        (false, 1) => "long fault",
        (true, _) => "short harms at once",
        (false, _) => "long harms at once",
    }
}

async fn audit(
    cluster: &Cluster,
    ledger: &Ledger,
    acknowledged: &AcknowledgedEvents,
    faults: &Faults,
    report: &mut Report,
) {
    cluster.drained().await;
    let rules = Rules { cap: CAP, timeout: TIMEOUT };
    report.add(&Findings::of(&ledger.entries(), acknowledged, &rules), faults);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_nothing_is_lost_and_lanes_and_caps_are_kept() {
    let mut run = Run::of("cluster");
    let (mut report, mut faults) = (Report::of(&run), Faults::default());
    let ledger = Ledger::start(flaky).await;
    let mut cluster = Cluster::on_server_of_its_own().await;
    cluster.start_behind_proxies(NODES).await;
    cluster.create_endpoints(&ledger, ENDPOINTS).await;
    cluster.settled().await;
    let load = cluster.load("a");
    let mut happened = std::collections::BTreeMap::new();
    while run.goes_on() {
        let what = fault(&mut run, &mut cluster, &mut faults).await;
        *happened.entry(what).or_insert(0) += 1;
        ledger.wait_for_more(run.rng.random_range(0..200)).await;
        report.cycles += 1;
    }
    cluster.settled().await;
    let acknowledged = load.finish().await;
    audit(&cluster, &ledger, &acknowledged, &faults, &mut report).await;
    for (what, count) in happened {
        report.figure(what, count);
    }
    report.finish();
}

/// Pauses an endpoint through the first node, as soon as that can; returns when
/// it was answered.
async fn pause(cluster: &Cluster, name: &str) -> Instant {
    let client = cluster.nodes[0].gateway().another_client();
    let path = format!("{}/pause", cluster.path(name));
    eventually("a pause", || async {
        let asked = tokio::time::timeout(Duration::from_secs(3), client.send("POST", &path, &[], "")).await;
        match asked {
            Ok(Ok(answer)) if answer.status == 200 => Ok(Instant::now()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_attempt_follows_a_pause_that_was_answered_after_a_long_outage() {
    let mut run = Run::of("pause after an outage");
    let (mut report, mut faults) = (Report::of(&run), Faults::default());
    let ledger = Ledger::start(flaky).await;
    let mut cluster = Cluster::new().await;
    cluster.start_behind_proxies(NODES).await;
    cluster.create_endpoints(&ledger, ENDPOINTS).await;
    cluster.settled().await;
    let load = cluster.load("a");
    let names: Vec<String> = (0..ENDPOINTS).map(|n| format!("e{n}")).collect();
    let mut late = 0;
    while run.goes_on() || report.cycles < 2 {
        ledger.wait_for_more(100).await;
        let from = Instant::now();
        cluster.nodes.iter().for_each(|node| node.proxy().set(NetworkState::Silent));
        tokio::time::sleep(LEASE.mul_f64(run.rng.random_range(1.0..1.5))).await;
        // The others come back first, but are far from the database: they
        // are about to renew their leases when the pauses are answered.
        let far = Duration::from_millis(run.rng.random_range(10..40));
        let later = AROUND.mul_f64(run.rng.random_range(0.2..1.0));
        let heal = async {
            tokio::time::sleep(AROUND).await;
            cluster.nodes[1..].iter().for_each(|node| node.proxy().set(NetworkState::Slow(far)));
            tokio::time::sleep(later).await;
            cluster.nodes[0].proxy().set(NetworkState::Working);
        };
        // Some pauses are asked for while nothing answers yet.
        let waits: Vec<Duration> = names.iter().map(|_| AROUND.mul_f64(run.rng.random_range(0.0..1.5))).collect();
        let pauses = join_all(names.iter().zip(waits).map(async |(name, wait)| {
            tokio::time::sleep(wait).await;
            pause(&cluster, name).await
        }));
        let ((), answered) = tokio::join!(heal, pauses);
        // Long enough for whoever has not heard of it.
        tokio::time::sleep(LEASE / 2).await;
        let entries = ledger.entries();
        for (name, answered) in names.iter().zip(answered) {
            // What was sent before may be read a moment later.
            let moment = Duration::from_millis(30);
            let begun = entries.iter().filter(|entry| entry.endpoint == *name && entry.began > answered + moment);
            for entry in begun {
                late += 1;
                let after = entry.began - answered;
                report.expect(false, || format!("an attempt began {after:?} after the pause was answered: {entry:?}"));
            }
        }
        cluster.nodes.iter().for_each(|node| node.proxy().set(NetworkState::Working));
        join_all(names.iter().map(async |name| {
            let client = cluster.nodes[0].gateway().another_client();
            client.post(&format!("{}/resume", cluster.path(name)), "").await.expect(200)
        }))
        .await;
        faults.note("lease ended", from);
        report.cycles += 1;
    }
    report.figure("attempts after a pause", late);
    let acknowledged = load.finish().await;
    audit(&cluster, &ledger, &acknowledged, &faults, &mut report).await;
    report.finish();
}
