//! A disk that fills up: down to the reserve, and to the last byte.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt;
use rustix::fs::FallocateFlags;
use serde_json::json;
use tempfile::TempDir;

use crate::ledger::{Entry, Ledger, Reply, flaky};
use crate::load::event_of;
use crate::report::{Faults, Report};
use crate::restarting_gateway::RestartingGateway;
use crate::run::Run;
use crate::shim::Shim;
use crate::support::{CapturedOutput, Client, Gateway, Options, eventually};

const MIB: u64 = 1 << 20;
/// Default reserve of the disk, in bytes.
const RESERVE: u64 = 256 * MIB;

/// A disk that can be filled down to the reserve: a small one where mounting is
/// allowed, otherwise the machine's, with a reserve that is nearly all of it.
struct SmallDisk {
    folder: Arc<TempDir>,
    /// Folder of the data: on its own disk, or on the machine's.
    above: PathBuf,
    is_mounted: bool,
    reserve: u64,
}

impl SmallDisk {
    fn new() -> Self {
        let above = tempfile::tempdir().expect("a folder").keep();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=512m", "posthaste-faults"]).arg(&above);
        let is_mounted = mount.output().is_ok_and(|output| output.status.success());
        let folder = Arc::new(TempDir::new_in(&above).expect("a folder"));
        let reserve = if is_mounted {
            RESERVE
        } else {
            free(&above).checked_sub(1_024 * MIB).expect("more than a gibibyte is free")
        };
        Self { folder, above, is_mounted, reserve }
    }

    fn kind(&self) -> &'static str {
        if self.is_mounted { "its own" } else { "shared" }
    }

    /// Fills the disk until less than the reserve is left.
    fn fill(&self) {
        self.leave(self.reserve - RESERVE / 8);
    }

    /// Fills the disk until this many bytes are left.
    fn leave(&self, left: u64) {
        let bytes = free(self.folder.path()).checked_sub(left).expect("it is not yet filled");
        let file = std::fs::File::create(self.filler_file()).expect("a file");
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes).expect("there is room");
    }

    fn make_room(&self) {
        std::fs::remove_file(self.filler_file()).expect("it is there");
    }

    fn filler_file(&self) -> PathBuf {
        self.above.join("filler_file")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if self.is_mounted {
            // The gateway may hold its files for a moment longer.
            let _ = Command::new("umount").arg("--lazy").arg(&self.above).status();
        }
        let _ = std::fs::remove_dir_all(&self.above);
    }
}

fn free(folder: &Path) -> u64 {
    let disk = rustix::fs::statvfs(folder).expect("a disk");
    disk.f_bavail * disk.f_frsize
}

/// Returns the error lines about the disk in a log.
fn errors(printed: &CapturedOutput) -> usize {
    let is_one = |line: &&str| line.contains("\"ERROR\"") && line.contains("disk");
    printed.text().lines().filter(is_one).count()
}

async fn metric(client: &Client, name: &str) -> Option<f64> {
    let scraped = client.get("/metrics").await;
    let text = String::from_utf8_lossy(&scraped.body).into_owned();
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

async fn readyz(client: &Client) -> String {
    let answer = client.get("/readyz").await;
    format!("{} {}", answer.status, String::from_utf8_lossy(&answer.body))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_at_its_reserve_is_told_and_what_is_open_is_finished() {
    let run = Run::of("disk at its reserve");
    let mut report = Report::of(&run);
    let choose = |entry: &Entry| if entry.id.starts_with("held") { Reply::Hold(200) } else { flaky(entry) };
    let ledger = Ledger::start(choose).await;
    let (disk, printed) = (SmallDisk::new(), CapturedOutput::default());
    let flags = Options::flags(&["--disk-reserve", &disk.reserve.to_string()]);
    let options = Options { output: Some(printed.clone()), ..flags };
    let mut single =
        RestartingGateway::start_in(disk.folder.clone(), ledger, options, Arc::new(|| 0)).await.with_endpoints().await;
    single.create_endpoints(1, &json!({"timeout": {"connect": "1s", "total": "30s"}})).await;
    let load = single.load("a");
    while run.goes_on() {
        single.ledger.hold_answers();
        let held = event_of(&format!("held-{}", report.cycles), "e8", "");
        single.client().post("/v1/tenants/default/events", held).await.expect(202);
        let id = format!("held-{}", report.cycles);
        single.ledger.wait_until("one to be held", |entries| entries.iter().any(|entry| entry.id == id)).await;
        let (refused, told) = (load.refused(), errors(&printed));
        disk.fill();
        eventually("producers to be refused", || async {
            if load.refused() > refused + 10 { Ok(()) } else { Err(load.refused().to_string()) }
        })
        .await;
        judge_full(&single, &disk, &mut report).await;
        // What was open is finished, and that is written down.
        single.ledger.release_answers();
        single.drained().await;
        report.expect(errors(&printed) == told + 1, || {
            format!("{} error lines tell of the full disk, not one", errors(&printed) - told)
        });
        disk.make_room();
        let acknowledged = load.acknowledged();
        eventually("producers to be served again", || async {
            if load.acknowledged() > acknowledged + 20 { Ok(()) } else { Err(load.acknowledged().to_string()) }
        })
        .await;
        let ready = readyz(single.client()).await;
        report.expect(ready.starts_with("200") && !ready.contains("disk"), || {
            format!("readyz goes on about it: {ready}")
        });
        report.cycles += 1;
    }
    let acknowledged = load.finish().await;
    single.check(&acknowledged, &Faults::default(), &mut report).await;
    report.figure("disk", disk.kind());
    report.finish();
}

/// The tenant that has stored the most is refused first; no other is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_fills_the_disk_is_refused_before_the_others() {
    let disk = SmallDisk::new();
    let flags = Options::flags(&["--disk-reserve", &disk.reserve.to_string()]);
    let gateway = Gateway::start_in(disk.folder.clone(), flags).await;
    gateway.client.send("PUT", "/v1/tenants/loud", &[], "{}").await.expect("an answer").expect(201);
    gateway.create_endpoint(json!({"url": "http://127.0.0.1:9/"})).await;
    disk.leave(disk.reserve + 48 * MIB);
    let one = json!({"type": "t", "data": "x".repeat(30_000)});
    let batch = json!(vec![one; 100]);
    let mut refused = 0;
    for n in 0..200 {
        let answer = gateway.client.post_json("/v1/tenants/loud/events/batch", &batch).await;
        let small = gateway.client.post_json("/v1/tenants/default/events", &json!({"type": "t", "data": n})).await;
        small.expect(202);
        if answer.status != 202 {
            let problem = answer.problem(507, "quota_full");
            assert_eq!(problem["limit"], "stored_bytes");
            refused += 1;
        }
        if refused == 20 {
            break;
        }
    }
    assert_eq!(refused, 20, "it was stopped");
    let ready = readyz(&gateway.client).await;
    assert!(ready.starts_with("200"), "{ready}");
}

/// Checks what must be visible of a full disk.
async fn judge_full(single: &RestartingGateway, disk: &SmallDisk, report: &mut Report) {
    let answer = single.client().post("/v1/tenants/default/events", event_of("late", "e0", "")).await;
    answer.problem(507, "storage_full");
    let ready = readyz(single.client()).await;
    report.expect(ready.contains("disk"), || format!("readyz does not tell of the full disk: {ready}"));
    let free = metric(single.client(), "posthaste_disk_free_bytes").await;
    report.expect(free.is_some_and(|free| free < disk.reserve as f64), || format!("disk_free_bytes is {free:?}"));
    let reserve = metric(single.client(), "posthaste_disk_reserve_bytes").await;
    report.expect(reserve == Some(disk.reserve as f64), || format!("disk_reserve_bytes is {reserve:?}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reserve_that_does_not_cover_what_finishing_needs_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_posthaste"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--disk-reserve", "1MiB", "--data"]).arg(folder.path());
    let ending = tokio::time::timeout(Duration::from_secs(5), command.kill_on_drop(true).output());
    let output = ending.await.expect("a reserve of 1 MiB is refused at start").expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("disk-reserve") && said.contains("MiB"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_is_full_to_the_last_byte_loses_nothing_and_goes_on_when_there_is_room() {
    let mut run = Run::of("full disk");
    let (mut report, mut faults) = (Report::of(&run), Faults::default());
    let folder = Arc::new(tempfile::tempdir().expect("a folder"));
    let shim = Shim::new(folder.path());
    let ledger = Ledger::start(flaky).await;
    let mut single =
        RestartingGateway::start_in(folder, ledger, shim.options(&[]), Arc::new(|| 0)).await.with_endpoints().await;
    let load = single.load("a");
    while run.goes_on() {
        single.ledger.wait_for_more(run.rng.random_range(0..200)).await;
        let (full, refused, failed) = (Instant::now(), load.refused(), shim.failed());
        shim.limit_room(Some(run.rng.random_range(0..200_000)));
        eventually("producers to be refused", || async {
            if load.refused() > refused { Ok(()) } else { Err(format!("{} writes failed", shim.failed() - failed)) }
        })
        .await;
        tokio::time::sleep(Duration::from_millis(run.rng.random_range(0..500))).await;
        shim.heal();
        let acknowledged = load.acknowledged();
        eventually("producers to be served again", || async {
            if load.acknowledged() > acknowledged + 20 { Ok(()) } else { Err(load.acknowledged().to_string()) }
        })
        .await;
        faults.note("disk full", full);
        if let Some(ended) = single.gateway_mut().has_ended() {
            report.expect(false, || format!("it ended in {ended} when the disk was full"));
            single.restart().await;
        }
        report.cycles += 1;
    }
    let acknowledged = load.finish().await;
    report.figure("failed writes", shim.failed());
    single.check(&acknowledged, &faults, &mut report).await;
    report.finish();
}
