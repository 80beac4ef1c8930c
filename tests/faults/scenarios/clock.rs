//! Wall clocks that jump and clocks that differ, with libfaketime. Only the wall
//! time moves; the monotonic clock goes on unchanged.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rand::RngExt;
use serde_json::json;
use tempfile::TempDir;

use crate::audit::beyond_rate;
use crate::ledger::{Entry, Ledger, Reply};
use crate::load::event_of;
use crate::nodes::{Cluster, ENDPOINTS};
use crate::report::Report;
use crate::restarting_gateway::RestartingGateway;
use crate::run::Run;
use crate::support::{CapturedOutput, Client, Options};

const EVENTS: &str = "/v1/tenants/default/events";
/// Duration of every retry, hold and cool-down here.
const DELAY: Duration = Duration::from_secs(2);
/// Longest delay of anything.
const LATE: Duration = Duration::from_secs(1);
/// Most by which a timer may be off.
const EARLY: Duration = Duration::from_millis(5);
const PER_SECOND: u32 = 20;
const BURST: u32 = 5;

/// The wall clock of a gateway.
struct FakeClock {
    folder: TempDir,
}

impl FakeClock {
    /// Creates a clock that is off by this many seconds.
    fn off_by(seconds: i64) -> Self {
        let clock = Self { folder: tempfile::tempdir().expect("a folder") };
        clock.set(seconds);
        clock
    }

    /// Changes by how much it is off, also for running gateways.
    fn set(&self, seconds: i64) {
        let (new, file) = (self.folder.path().join("new"), self.file());
        std::fs::write(&new, format!("{seconds:+}\n")).expect("a file");
        std::fs::rename(new, file).expect("a file");
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("offset")
    }

    /// Returns the environment of a gateway that uses this clock.
    fn env(&self) -> Vec<(String, String)> {
        let text = |path: &Path| path.to_str().expect("a path").to_owned();
        let set = [
            ("LD_PRELOAD", text(&library())),
            ("FAKETIME_TIMESTAMP_FILE", text(&self.file())),
            ("FAKETIME_NO_CACHE", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
            ("NO_FAKE_STAT", "1".into()),
        ];
        set.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

fn library() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let found = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1")).find(|path| path.exists());
    found.expect("libfaketime is missing: install Debian's package libfaketime, or run ./check, which does")
}

/// Answers by endpoint: `e0` fails at first, `e1` to `e3` ask for a break, `e4`
/// has a rate, `e5` a breaker that opens at the third failure.
fn choose(entry: &Entry) -> Reply {
    match (&*entry.endpoint, entry.attempt) {
        ("e0" | "e5", 1) => Reply::Status(503),
        ("e1" | "e2" | "e3", 1) => Reply::RetryAfter(503, DELAY.as_secs()),
        _ => Reply::Status(200),
    }
}

async fn start(clock: &FakeClock, printed: &CapturedOutput) -> RestartingGateway {
    let options = Options { env: clock.env(), output: Some(printed.clone()), ..Options::default() };
    let mut single = RestartingGateway::start(Ledger::start(choose).await, options).await;
    let slow = json!({"schedule": ["2s"], "jitter": "none", "max_attempts": 100});
    single.create_endpoints(1, &json!({"retry": slow, "max_in_flight": 20})).await;
    single.create_endpoints(3, &json!({})).await;
    let rate = json!({"per_second": PER_SECOND, "burst": BURST});
    single.create_endpoints(1, &json!({"rate": rate, "max_in_flight": 20})).await;
    let breaker = json!({"enabled": true, "consecutive_failures": 3, "cooldown": "2s", "cooldown_max": "2s"});
    // All three have failed before the first is tried again.
    let soon = json!({"schedule": ["300ms"], "jitter": "none", "max_attempts": 100});
    single.create_endpoints(1, &json!({"breaker": breaker, "retry": soon})).await;
    single
}

async fn send_event(client: &Client, cycle: usize) -> usize {
    let mut events = Vec::new();
    for (endpoint, count) in [("e0", 20), ("e1", 1), ("e2", 1), ("e3", 1), ("e4", 70), ("e5", 3)] {
        events.extend((0..count).map(|n| event_of(&format!("{endpoint}-{cycle}-{n}"), endpoint, "")));
    }
    client.post(&format!("{EVENTS}/batch"), format!("[{}]", events.join(","))).await.expect(202);
    events.len()
}

/// Returns the requests of one cycle to one endpoint, in order.
fn requests(entries: &[Entry], endpoint: &str, cycle: usize) -> Vec<Entry> {
    let prefix = format!("{endpoint}-{cycle}-");
    entries.iter().filter(|entry| entry.id.starts_with(&prefix)).cloned().collect()
}

/// Waits until everything of a cycle has arrived, for the longest time it may take.
async fn arrived(ledger: &Ledger, cycle: usize, count: usize) -> bool {
    let mark = format!("-{cycle}-");
    let until = Instant::now() + Duration::from_secs(8);
    while Instant::now() < until {
        let entries = ledger.entries();
        let delivered = entries.iter().filter(|entry| entry.id.contains(&mark) && entry.is_delivered()).count();
        if delivered >= count {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    false
}

/// A delivery's wait: from one moment until its request began.
struct MeasuredWait {
    what: &'static str,
    from: Instant,
    until: Instant,
    /// Most time that jitter may add.
    spread: Duration,
}

/// Returns all waits of a cycle.
fn waits(entries: &[Entry], cycle: usize) -> Vec<MeasuredWait> {
    let mut found = Vec::new();
    for (endpoint, what) in [("e0", "retry"), ("e1", "hold"), ("e2", "hold"), ("e3", "hold")] {
        let requests = requests(entries, endpoint, cycle);
        for second in requests.iter().filter(|entry| entry.attempt == 2) {
            // The last, should a kill have made it be repeated.
            let first = requests.iter().rfind(|entry| entry.id == second.id && entry.attempt == 1);
            let from = first.and_then(|first| first.ended);
            found.extend(from.map(|from| MeasuredWait { what, from, until: second.began, spread: Duration::ZERO }));
        }
    }
    let probed = requests(entries, "e5", cycle);
    let third = probed.iter().rfind(|entry| entry.attempt == 1).and_then(|third| third.ended);
    let probe = probed.iter().find(|entry| entry.attempt > 1).map(|probe| probe.began);
    found.extend(third.zip(probe).map(|(from, until)| {
        let spread = DELAY / 10;
        MeasuredWait { what: "cool-down", from, until, spread }
    }));
    found
}

/// Checks that nothing is early or late. While the gateway was not ready,
/// nothing counts as late.
fn judge(report: &mut Report, entries: &[Entry], cycle: usize, ready: Instant, jump: i64) -> Duration {
    let mut latest = Duration::ZERO;
    for MeasuredWait { what, from, until, spread } in waits(entries, cycle) {
        let took = until - from;
        report.expect(took + EARLY >= DELAY, || format!("a {what} was over after {took:?} (jump of {jump} s)"));
        let due = (from + DELAY + spread).max(ready);
        let late = until.saturating_duration_since(due);
        latest = latest.max(late);
        report.expect(late <= LATE, || format!("a {what} was {late:?} late (jump of {jump} s)"));
    }
    let began: Vec<Instant> = requests(entries, "e4", cycle).iter().map(|entry| entry.began).collect();
    // What starts evenly may arrive a little closer together.
    for found in beyond_rate(&began, PER_SECOND.into(), BURST.into(), 1.5).into_iter().take(1) {
        report.expect(false, || format!("the rate was exceeded (jump of {jump} s): {found}"));
    }
    latest
}

/// What happens to the gateway while its clock jumps.
#[derive(Clone, Copy)]
enum Stop {
    Nothing,
    Kill,
    Terminate,
}

async fn jump_again_and_again(name: &'static str, stops: &[Stop]) {
    let mut run = Run::of(name);
    let mut report = Report::of(&run);
    let (clock, printed) = (FakeClock::off_by(0), CapturedOutput::default());
    let mut single = start(&clock, &printed).await;
    let (mut offset, mut latest) = (0, Duration::ZERO);
    while run.goes_on() || report.cycles < 2 {
        let cycle = report.cycles;
        let count = send_event(single.client(), cycle).await;
        // Forward and back in turn, up to two hours.
        let length = run.rng.random_range(600..7_200);
        let jump = if offset > 0 { -offset - length } else { length - offset };
        single.ledger.wait_for_more(40).await;
        let stop = stops[run.rng.random_range(0..stops.len())];
        match stop {
            Stop::Nothing => {}
            Stop::Kill => single.gateway_mut().kill().await,
            Stop::Terminate => drop(single.gateway_mut().terminate().await),
        }
        offset += jump;
        clock.set(offset);
        let mut ready = Instant::now();
        if !matches!(stop, Stop::Nothing) {
            single.restart().await;
            ready = Instant::now();
        }
        let is_there = arrived(&single.ledger, cycle, count).await;
        report.expect(is_there, || format!("not everything arrived within 8 s of a jump of {jump} s"));
        latest = latest.max(judge(&mut report, &single.ledger.entries(), cycle, ready, jump));
        report.cycles += 1;
        if !is_there {
            break;
        }
    }
    let said = printed.text().to_lowercase();
    report.expect(said.contains("clock"), || "the log does not tell of the jumps".into());
    report.figure("latest", format!("{latest:?}"));
    report.finish();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_makes_nothing_early_and_nothing_late() {
    jump_again_and_again("clock jumps", &[Stop::Nothing]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_over_a_restart_makes_nothing_early_and_nothing_late() {
    jump_again_and_again("clock jumps over restarts", &[Stop::Kill, Stop::Terminate]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_that_differ_between_nodes_delay_nothing() {
    let mut run = Run::of("clock skew");
    let mut report = Report::of(&run);
    let ledger = Ledger::start(|_| Reply::Status(200)).await;
    let mut cluster = Cluster::new().await;
    let far = if run.rng.random() { 60 } else { -60 };
    let clocks = [0, 8, far].map(FakeClock::off_by);
    cluster.start_in(clocks.iter().map(FakeClock::env).collect(), "2s").await;
    cluster.create_endpoints(&ledger, ENDPOINTS).await;
    cluster.settled().await;
    let mut acknowledged = Vec::new();
    while run.goes_on() {
        for node in &cluster.nodes {
            let endpoint = run.rng.random_range(0..ENDPOINTS);
            let id = format!("s-{}", acknowledged.len());
            let event = event_of(&id, &format!("e{endpoint}"), "");
            let began = Instant::now();
            node.client().post(EVENTS, event).await.expect(202);
            acknowledged.push((id, began, node.name.clone()));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(LATE).await;
    let entries = ledger.entries();
    let (mut took, mut missing) = (Vec::new(), 0);
    for (id, began, _) in &acknowledged {
        match entries.iter().find(|entry| entry.id == *id) {
            Some(entry) => took.push(entry.began - *began),
            None => missing += 1,
        }
    }
    took.sort_unstable();
    let (median, most) = (took.get(took.len() / 2).copied(), took.last().copied());
    report.cycles = acknowledged.len();
    report.figure("median", format!("{median:?}"));
    report.figure("longest", format!("{most:?}"));
    report.figure("not there after a second", missing);
    report.expect(missing == 0, || {
        format!("{missing} of {} fresh events did not arrive within a second", acknowledged.len())
    });
    report.expect(most.is_some_and(|most| most < LATE), || format!("a fresh event took {most:?} to arrive"));
    report.finish();
}
