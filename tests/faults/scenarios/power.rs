//! Power cuts, by recorded writes: after a quiet run, after failed syncs and
//! writes, and as a control with a disk that ignores syncs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt;
use tempfile::TempDir;

use crate::audit::Findings;
use crate::ledger::{Entry, Ledger, flaky};
use crate::load::AcknowledgedEvents;
use crate::recording::{self, Disk, RecordedOperation, Syncs};
use crate::report::{Faults, Report};
use crate::restarting_gateway::{RULES, RestartingGateway, is_drained};
use crate::run::Run;
use crate::shim::Shim;
use crate::support::{CapturedOutput, Gateway, Options};

/// Number of cuts per reading of the recording.
const CUTS_AT_ONCE: usize = 4;
/// Longest time that a rebuilt store may take to deliver what it has.
const DRAINS_WITHIN: Duration = Duration::from_secs(15);

/// A gateway whose file operations are recorded.
struct Recorder {
    single: RestartingGateway,
    shim: Shim,
    /// Length of the recording when the endpoints had been created.
    base: u64,
}

/// A complete recording, with the ledger and the acknowledged events.
struct CompleteRecording {
    operations: Vec<RecordedOperation>,
    from: u64,
    acknowledged: AcknowledgedEvents,
    entries: Vec<Entry>,
    stopped: Instant,
}

impl Recorder {
    async fn start() -> Self {
        let folder = Arc::new(tempfile::tempdir().expect("a folder"));
        let shim = Shim::new(folder.path());
        let ledger = Ledger::marked(flaky, shim.mark()).await;
        let single =
            RestartingGateway::start_in(folder, ledger, shim.options(&[]), shim.mark()).await.with_endpoints().await;
        let base = (shim.mark())();
        Self { single, shim, base }
    }

    /// Ends the run; cuts may come after this point.
    async fn take(&mut self, acknowledged: AcknowledgedEvents, from: u64) -> CompleteRecording {
        self.single.gateway_mut().kill().await;
        let (stopped, entries) = (Instant::now(), self.single.ledger.entries());
        CompleteRecording { operations: recording::read(&self.shim.recording()), from, acknowledged, entries, stopped }
    }
}

impl CompleteRecording {
    fn end(&self) -> u64 {
        self.operations.last().map_or(0, |operation| operation.end)
    }

    /// Returns the requests that the receivers had got before the cut.
    fn seen_at(&self, point: u64) -> Vec<Entry> {
        let as_of_then = |entry: &Entry| {
            let mut entry = entry.clone();
            entry.ended = Some(entry.ended.unwrap_or(self.stopped));
            if entry.marks.1 > point {
                entry.status = None;
            }
            entry
        };
        self.entries.iter().filter(|entry| entry.marks.0 <= point).map(as_of_then).collect()
    }

    /// Returns the states of the disk at some points, each with its point.
    fn states(&self, run: &mut Run, syncs: Syncs) -> Vec<(u64, BTreeMap<String, Vec<u8>>)> {
        let mut points: Vec<u64> = (0..CUTS_AT_ONCE).map(|_| run.rng.random_range(self.from..=self.end())).collect();
        points.sort_unstable();
        let (mut disk, mut operations, mut states) = (Disk::default(), self.operations.iter().peekable(), Vec::new());
        for point in points {
            while let Some(operation) = operations.next_if(|operation| operation.end <= point) {
                disk.apply(operation, syncs);
            }
            states.push((point, disk.cut(&mut run.rng)));
        }
        states
    }
}

/// Starts a gateway on what a power cut left, lets it deliver what it has, and
/// audits everything the receivers have got before and after; or returns why
/// that store cannot be used.
async fn recover(
    single: &RestartingGateway,
    taken: &CompleteRecording,
    point: u64,
    files: &BTreeMap<String, Vec<u8>>,
) -> Result<Findings, String> {
    let folder = Arc::new(rebuilt(single.folder.path(), files));
    let printed = CapturedOutput::default();
    let options = Options { output: Some(printed.clone()), ..Options::default() };
    let before = single.ledger.count();
    let mut gateway = Gateway::try_start_in(folder.clone(), options)
        .await
        .map_err(|ended| format!("does not start ({ended}): {}", printed.text()))?;
    let until = Instant::now() + DRAINS_WITHIN;
    while !is_drained(&gateway.client).await.unwrap_or(false) {
        if let Some(ended) = gateway.has_ended() {
            return Err(format!("ended ({ended}): {}", printed.text()));
        }
        if Instant::now() > until {
            return Err(format!("does not drain: {}", printed.text()));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let ended = gateway.terminate().await;
    if !ended.success() {
        return Err(format!("stopped with {ended}: {}", printed.text()));
    }
    is_sound(&folder.path().join("posthaste.db"))?;
    let mut entries = taken.seen_at(point);
    entries.extend(single.ledger.entries().into_iter().skip(before));
    Ok(Findings::of(&entries, &taken.acknowledged.until(point), &RULES))
}

/// Creates a folder with these files, and the keys of the old one.
fn rebuilt(from: &Path, files: &BTreeMap<String, Vec<u8>>) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, bytes) in files.iter().filter(|(name, _)| name.starts_with("posthaste.db")) {
        std::fs::write(folder.path().join(name), bytes).expect("a file");
    }
    for key in ["admin-token", "master-key"] {
        std::fs::copy(from.join(key), folder.path().join(key)).expect("it is there");
    }
    folder
}

/// Runs SQLite's integrity check.
pub fn is_sound(store: &Path) -> Result<(), String> {
    let db = rusqlite::Connection::open(store).map_err(|problem| problem.to_string())?;
    let check: rusqlite::Result<String> = db.query_row("PRAGMA integrity_check", [], |row| row.get(0));
    match check {
        Ok(word) if word == "ok" => Ok(()),
        other => Err(format!("the store is damaged: {other:?}")),
    }
}

/// Simulates power cuts until the time is over, at least a few.
async fn cut(run: &mut Run, report: &mut Report, recorder: &Recorder, taken: &CompleteRecording) {
    loop {
        for (point, files) in taken.states(run, Syncs::Honoured) {
            let mut faults = Faults::default();
            let went = taken.seen_at(point).iter().map(|entry| entry.began).max();
            faults.note("power cut", went.unwrap_or(taken.stopped));
            match recover(&recorder.single, taken, point, &files).await {
                Ok(findings) => report.add(&findings, &faults),
                Err(why) => report.expect(false, || format!("after a cut at {point} of {}: {why}", taken.end())),
            }
            report.cycles += 1;
        }
        if !run.goes_on() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_loses_nothing_that_was_acknowledged() {
    let mut run = Run::of("power cut");
    let mut report = Report::of(&run);
    let mut recorder = Recorder::start().await;
    let until = run.part(0.25);
    let load = recorder.single.load("a");
    while Instant::now() < until {
        recorder.single.ledger.wait_for_more(100).await;
    }
    let acknowledged = load.finish().await;
    let taken = recorder.take(acknowledged, recorder.base).await;
    cut(&mut run, &mut report, &recorder, &taken).await;

    // The same recording on a disk that ignores syncs must lose something, or
    // this harness sees nothing.
    let (mut lost, mut damaged) = (0, 0);
    for (point, files) in taken.states(&mut run, Syncs::IgnoredAfter(recorder.base)) {
        match recover(&recorder.single, &taken, point, &files).await {
            Ok(findings) => lost += findings.lost.len(),
            Err(_) => damaged += 1,
        }
    }
    report.figure("recorded bytes", taken.end());
    report.figure("control: lost", lost);
    report.figure("control: damaged", damaged);
    report.expect(lost + damaged > 0, || "the control without syncs lost nothing: the harness is blind".into());
    report.finish();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_after_failed_syncs_loses_nothing_that_was_acknowledged() {
    let mut run = Run::of("failed sync, restart, power cut");
    let mut report = Report::of(&run);
    let mut recorder = Recorder::start().await;
    let load = recorder.single.load("a");
    let mut from = None;
    for round in 0..2 {
        recorder.single.ledger.wait_for_more(run.rng.random_range(100..300)).await;
        let after = run.rng.random_range(0..30);
        match round {
            0 => recorder.shim.fail_syncs(1, after),
            _ => recorder.shim.fail_writes(1, after),
        }
        let ended = recorder.single.gateway_mut().ended().await;
        report.expect(ended.code() == Some(74), || format!("it ended in {ended} when a sync or a write had failed"));
        recorder.shim.heal();
        from.get_or_insert((recorder.shim.mark())());
        recorder.single.restart().await;
    }
    recorder.single.ledger.wait_for_more(run.rng.random_range(100..300)).await;
    let acknowledged = load.finish().await;
    report.figure("failed acts", recorder.shim.failed());
    let taken = recorder.take(acknowledged, from.expect("two rounds")).await;
    cut(&mut run, &mut report, &recorder, &taken).await;
    report.finish();
}
