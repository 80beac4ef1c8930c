//! Flipped bits in the store and in its log.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::audit::Findings;
use crate::ledger::{Ledger, Reply};
use crate::load::{AcknowledgedEvents, event_of};
use crate::report::{Faults, Report};
use crate::restarting_gateway::{RULES, RestartingGateway, is_drained};
use crate::run::Run;
use crate::support::{CapturedOutput, Gateway, Options, path_of};

const ENDPOINTS: usize = 6;
const EVENTS: usize = 150;
/// Longest time that a gateway may take to deliver what it can.
const DRAINS_WITHIN: Duration = Duration::from_secs(4);
/// Words that a log line about damage contains.
const WORDS: [&str; 3] = ["damage", "corrupt", "malformed"];

/// The outcome of a damaged store.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// Everything arrived unchanged.
    Harmless,
    /// Something did not arrive, and the gateway reported it.
    Told,
    /// Something did not arrive, and the gateway did not report it.
    Silent(Vec<String>),
}

/// Creates two folders of a gateway that ended while everything waited: one with
/// all in the log, one with all in the store.
struct StoreImages {
    with_log: TempDir,
    checkpointed: TempDir,
    acknowledged: AcknowledgedEvents,
    endpoints: Vec<Value>,
}

async fn images(single: &mut RestartingGateway) -> StoreImages {
    single.create_endpoints(ENDPOINTS, &json!({})).await;
    for endpoint in &single.endpoints {
        single.gateway().post_to_endpoint(endpoint, "pause", "").await;
    }
    let ids: Vec<(String, String)> = (0..EVENTS).map(|n| (format!("b-{n}"), format!("e{}", n % ENDPOINTS))).collect();
    for some in ids.chunks(10) {
        let events: Vec<String> = some.iter().map(|(id, endpoint)| event_of(id, endpoint, "")).collect();
        let body = format!("[{}]", events.join(","));
        single.client().post("/v1/tenants/default/events/batch", body).await.expect(202);
    }
    let acknowledged: Vec<(&str, &str, &str)> = ids.iter().map(|(id, endpoint)| (&**id, &**endpoint, "")).collect();
    let acknowledged = AcknowledgedEvents::of(&acknowledged);
    single.gateway_mut().kill().await;
    let with_log = copy_of(single.folder.path());
    single.restart().await;
    assert!(single.gateway_mut().terminate().await.success());
    let checkpointed = copy_of(single.folder.path());
    StoreImages { with_log, checkpointed, acknowledged, endpoints: single.endpoints.clone() }
}

fn copy_of(folder: &Path) -> TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("a file");
    }
    copy
}

/// Flips this many bits of a file; returns where, with the bytes around them.
fn flip(file: &Path, count: usize, rng: &mut StdRng) -> Vec<String> {
    let mut bytes = std::fs::read(file).expect("it is there");
    let mut places = Vec::new();
    for _ in 0..count {
        let (place, bit) = (rng.random_range(0..bytes.len()), rng.random_range(0..8));
        let around = &bytes[place.saturating_sub(40)..bytes.len().min(place + 40)];
        places.push(format!("bit {bit} of byte {place} amid {}", around.escape_ascii()));
        bytes[place] ^= 1 << bit;
    }
    std::fs::write(file, bytes).expect("it can be written");
    places
}

/// Starts a gateway on a damaged folder and lets it deliver what it can.
async fn trial(images: &StoreImages, ledger: &Ledger, folder: TempDir) -> (Outcome, Findings) {
    let printed = CapturedOutput::default();
    let options = Options { output: Some(printed.clone()), ..Options::default() };
    let before = ledger.count();
    let mut causes = HashSet::new();
    let mut has_failed = false;
    match Gateway::try_start_in(Arc::new(folder), options).await {
        Err(_) => has_failed = true,
        Ok(mut gateway) => {
            deliver_what_it_can(images, &mut gateway).await;
            causes = damaged_events(&gateway).await;
            has_failed |= gateway.has_ended().is_some_and(|ended| !ended.success());
            if gateway.has_ended().is_none() {
                gateway.terminate().await;
            }
        }
    }
    let entries: Vec<_> = ledger.entries().into_iter().skip(before).collect();
    let mut findings = Findings::of(&entries, &images.acknowledged, &RULES);
    let known: HashSet<&str> = images.acknowledged.ids().map(|(id, _)| &**id).collect();
    let strange = entries.iter().filter(|entry| !known.contains(&*entry.id));
    findings.altered.extend(strange.map(|entry| format!("nobody handed in {entry:?}")));
    let said = printed.text().to_lowercase();
    let is_told = has_failed && !said.is_empty() || WORDS.iter().any(|word| said.contains(word));
    let missing = std::mem::take(&mut findings.lost);
    let silent: Vec<String> =
        missing.iter().filter(|one| !causes.contains(one.split(' ').next().unwrap_or_default())).cloned().collect();
    let outcome = match (missing.is_empty(), silent.is_empty()) {
        (true, _) => Outcome::Harmless,
        (false, true) => Outcome::Told,
        (false, false) if is_told => Outcome::Told,
        (false, false) => Outcome::Silent(silent),
    };
    (outcome, findings)
}

async fn deliver_what_it_can(images: &StoreImages, gateway: &mut Gateway) {
    let resuming = async {
        for endpoint in &images.endpoints {
            let _ = gateway.client.send("POST", &format!("{}/resume", path_of(endpoint)), &[], "").await;
        }
    };
    let _ = tokio::time::timeout(DRAINS_WITHIN, resuming).await;
    let until = Instant::now() + DRAINS_WITHIN;
    while Instant::now() < until && gateway.has_ended().is_none() {
        if is_drained(&gateway.client).await.unwrap_or(false) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns the events whose deliveries are dead because they are damaged.
async fn damaged_events(gateway: &Gateway) -> HashSet<String> {
    let mut events = HashSet::new();
    let Ok(page) = gateway.client.send("GET", "/v1/tenants/default/dead-letters?limit=500", &[], "").await else {
        return events;
    };
    if page.status == 200 {
        let dead = page.json()["data"].as_array().cloned().unwrap_or_default();
        let damaged = dead.iter().filter(|letter| letter["cause"] == "damaged");
        events.extend(damaged.filter_map(|letter| letter["event_id"].as_str().map(str::to_owned)));
    }
    events
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_is_never_sent_and_never_costs_an_event_in_silence() {
    let mut run = Run::of("flipped bits");
    let mut report = Report::of(&run);
    let ledger = Ledger::start(|_| Reply::Status(200)).await;
    let mut single = RestartingGateway::start(ledger, Options::default()).await;
    let images = images(&mut single).await;
    let (mut harmless, mut told, mut silent, mut miscounted) = (0, 0, 0, 0);
    while run.goes_on() {
        let (base, file) = match run.rng.random_range(0..3) {
            0 => (&images.with_log, "posthaste.db-wal"),
            1 => (&images.checkpointed, "posthaste.db"),
            _ => (&images.with_log, "posthaste.db"),
        };
        let folder = copy_of(base.path());
        let bits = if run.rng.random_bool(0.7) { 1 } else { run.rng.random_range(2..5) };
        let places = flip(&folder.path().join(file), bits, &mut run.rng);
        let (outcome, mut findings) = trial(&images, &single.ledger, folder).await;
        // The counters of a delivery have no checksum: docs/guarantees.md says so.
        miscounted += std::mem::take(&mut findings.miscounted).len();
        report.add(&findings, &Faults::default());
        report.cycles += 1;
        match outcome {
            Outcome::Harmless => harmless += 1,
            Outcome::Told => told += 1,
            Outcome::Silent(lost) => {
                silent += 1;
                report.expect(false, || {
                    let some = &lost[..lost.len().min(3)];
                    format!("{} lost in silence, bits in {file}: {places:#?}: {some:?}", lost.len())
                });
            }
        }
    }
    report.figure("harmless", harmless);
    report.figure("told", told);
    report.figure("silent", silent);
    report.figure("attempts miscounted", miscounted);
    report.finish();
}
