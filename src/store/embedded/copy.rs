//! Makes backups of a store: copies it, checks the copy, and writes its manifest.
//!
//! While the gateway runs, the pages are copied by the writer between its commits
//! ([`super::copy_steps`]). This module sets the pace: small steps that take a small
//! part of the writer's time while there is something to write, and checks that rest
//! while the gateway is busy.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::backup::{Backup, StepResult};

use super::backup_folder::{PartialBackup, check_copy, counts, hash_file, open_copy};
use super::checkpoint::CheckpointTrigger;
use super::copy_steps::{CopyEnd, CopyStep};
use super::writer::Writer;
use super::{Durability, EmbeddedStore, STORE_FILE, lock, recover};
use crate::clock::Clock;
use crate::model::backup::{BackupManifest, MANIFEST_FORMAT};
use crate::store::backup::{CopyProgress, StoreCopier};
use crate::store::seal::Seal;
use crate::store::{Result, move_mark};

const PAGE_BYTES: u64 = 4_096;
/// Shortest and longest time that a step should take on the writer's thread.
const STEP_TIME: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(3));
/// Fewest and most pages of a step.
const STEP_PAGES: (f64, f64) = (4.0, 1_024.0);
/// Part of the writer's time that steps take while there is something to write, at
/// first and at most.
const BUSY_SHARE: (f64, f64) = (0.03, 0.08);
/// Rest between two steps while there is something to write.
const BUSY_REST: Duration = Duration::from_millis(4);
/// Longest rest after a step that took longer than it should.
const BUSY_REST_MAX: Duration = Duration::from_millis(100);
/// Rest between two steps while there is nothing to write: the least that the timers
/// know.
const IDLE_REST: Duration = Duration::from_millis(1);
/// Interval at which the share is raised, if the store grows faster than it is copied.
const SHARE_INTERVAL: Duration = Duration::from_secs(5);
/// Bytes that are copied before they are synced: a large backlog of unwritten pages
/// would delay the syncs of commits.
const SYNC_BYTES: u64 = 4 * 1_024 * 1_024;

#[async_trait]
impl StoreCopier for EmbeddedStore {
    async fn size(&self) -> Result<u64> {
        let sql = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size";
        self.read(|db| db.query_row(sql, [], |row| row.get::<_, i64>(0))).await.map(i64::cast_unsigned)
    }

    async fn back_up(
        &self,
        folder: &Path,
        clock: Arc<dyn Clock>,
        progress: Arc<CopyProgress>,
    ) -> anyhow::Result<BackupManifest> {
        let began_at = clock.wall();
        let partial = PartialBackup::create(folder)?;
        self.writer.begin_copy(partial.open_target()?).await?;
        let copy = RunningCopy { writer: &self.writer };
        let end = copy.run(File::options().write(true).open(partial.file())?, &progress).await?;
        let taken_at = clock.wall();
        progress.check();
        let (seal, trigger) = (self.shared.seal.clone(), self.checkpointer.trigger().clone());
        let finish = move || {
            let mut pace = CheckPace::new(trigger);
            finish(partial, &seal, end, (began_at, taken_at), &clock, move || {
                pace.rest();
                !progress.is_given_up()
            })
        };
        tokio::task::spawn_blocking(finish).await.context("the check of the copy panicked; see the log")?
    }
}

/// A copy that the writer has begun. It is given up when this is dropped.
struct RunningCopy<'a> {
    writer: &'a Writer,
}

impl RunningCopy<'_> {
    /// Copies everything, step by step.
    async fn run(&self, file: File, progress: &CopyProgress) -> anyhow::Result<CopyEnd> {
        let file = Arc::new(file);
        let mut pace = CopyPace::new(Instant::now());
        let mut unsynced_bytes = 0;
        loop {
            let pages = pace.pages;
            let step = self.writer.step_copy(pages).await?;
            let total = step.page_count.max(0) as u64 * PAGE_BYTES;
            progress.copied(total.saturating_sub(step.remaining.max(0) as u64 * PAGE_BYTES), total);
            if let Some(end) = step.end {
                return Ok(end);
            }
            unsynced_bytes += pages as u64 * PAGE_BYTES;
            if unsynced_bytes >= SYNC_BYTES {
                unsynced_bytes = 0;
                let file = file.clone();
                tokio::task::spawn_blocking(move || file.sync_data()).await?.context("cannot sync the copy")?;
            }
            tokio::time::sleep(pace.rest_after(&step, Instant::now())).await;
        }
    }
}

impl Drop for RunningCopy<'_> {
    fn drop(&mut self) {
        self.writer.end_copy();
    }
}

/// Decides how large the next step is, and how long to rest before it.
struct CopyPace {
    pages: i32,
    /// Time that one page takes, smoothed.
    page_time: f64,
    share: f64,
    /// When the last step ended.
    stepped_at: Instant,
    /// When the share was last looked at, and how many pages remained.
    looked: (Instant, i32),
}

impl CopyPace {
    fn new(now: Instant) -> Self {
        Self { pages: 16, page_time: 20e-6, share: BUSY_SHARE.0, stepped_at: now, looked: (now, i32::MAX) }
    }

    fn rest_after(&mut self, step: &CopyStep, now: Instant) -> Duration {
        let (looked_at, remained) = self.looked;
        if now - looked_at >= SHARE_INTERVAL {
            if step.remaining >= remained {
                self.share = (self.share * 1.5).min(BUSY_SHARE.1);
            }
            self.looked = (now, step.remaining);
        }
        // One step says little: the system may have had something else to do.
        let took = step.took.as_secs_f64() / f64::from(self.pages);
        self.page_time += (took.min(self.page_time * 4.0) - self.page_time) * 0.25;
        // There is one step between two commits at most. Where these take long, a step
        // may take longer.
        let interval = now - std::mem::replace(&mut self.stepped_at, now);
        let budget = interval.mul_f64(self.share).clamp(STEP_TIME.0, STEP_TIME.1);
        let fitting = budget.as_secs_f64() / self.page_time.max(1e-7);
        self.pages = fitting.clamp(STEP_PAGES.0, STEP_PAGES.1) as i32;
        match step.jobs {
            0 => IDLE_REST,
            _ => BUSY_REST.max(step.took.mul_f64(1.0 / self.share - 1.0).min(BUSY_REST_MAX)),
        }
    }
}

/// Jobs per second from which on the gateway counts as busy.
const BUSY_JOBS_PER_SECOND: f64 = 300.0;
/// Time that a check works before it may rest.
const CHECK_WORK: Duration = Duration::from_millis(5);
/// Rest of a check while the gateway is busy: it then takes a tenth of one processor.
const CHECK_REST: Duration = Duration::from_millis(45);

/// Lets the check of a copy rest while the gateway is busy.
#[derive(Clone)]
struct CheckPace {
    trigger: CheckpointTrigger,
    written: u64,
    since: Instant,
}

impl CheckPace {
    fn new(trigger: CheckpointTrigger) -> Self {
        Self { written: trigger.written_in_all(), trigger, since: Instant::now() }
    }

    /// Rests, if it is time and the gateway is busy.
    fn rest(&mut self) {
        let passed = self.since.elapsed();
        if passed < CHECK_WORK {
            return;
        }
        let written = self.trigger.written_in_all();
        let jobs = written - std::mem::replace(&mut self.written, written);
        if jobs as f64 > BUSY_JOBS_PER_SECOND * passed.as_secs_f64() {
            std::thread::sleep(CHECK_REST);
        }
        self.since = Instant::now();
    }
}

/// Number of SQLite's steps between two rests.
const OPERATIONS_PER_REST: i32 = 2_000;

/// Syncs and checks a copy, writes its manifest, and gives its folder its name.
/// `go_on` is called now and then, rests if it has to, and tells whether to go on.
fn finish(
    partial: PartialBackup,
    seal: &Seal,
    end: CopyEnd,
    (began_at, taken_at): (Timestamp, Timestamp),
    clock: &Arc<dyn Clock>,
    go_on: impl FnMut() -> bool + Clone + Send + 'static,
) -> anyhow::Result<BackupManifest> {
    let file = partial.file();
    File::open(&file)?.sync_all().context("cannot sync the copy")?;
    let mut db = open_copy(&file)?;
    let (mut go_on_querying, mut is_wanted) = (go_on.clone(), go_on.clone());
    db.progress_handler(OPERATIONS_PER_REST, Some(move || !go_on_querying()))?;
    let copied = CopyEnd::of(&db)?;
    if copied != end {
        bail!("the copy is not complete: it should end with {end:?}, and ends with {copied:?}");
    }
    let (parts, problems) = check_copy(&db, seal)?;
    if !is_wanted() {
        bail!("the gateway was stopped while the copy was being checked");
    }
    let counts = counts(&db)?;
    let schema = db.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    drop(db);
    let (sha256, bytes) = hash_file(&file, go_on)?;
    let manifest = BackupManifest {
        format: MANIFEST_FORMAT,
        content: BackupManifest::content_sentence(),
        master_key: BackupManifest::master_key_sentence(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        schema,
        began_at,
        taken_at,
        finished_at: clock.wall(),
        file: STORE_FILE.to_owned(),
        bytes,
        sha256,
        counts,
        checked: parts.iter().map(|part| part.name.to_owned()).collect(),
        problems,
    };
    partial.complete(&manifest)?;
    Ok(manifest)
}

/// Makes a backup of a data directory that no gateway uses.
pub fn back_up_stopped(
    data: &Path,
    folder: &Path,
    seal: &Seal,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<BackupManifest> {
    let path = data.join(STORE_FILE);
    if !path.exists() {
        bail!("there is no store in {}; name the data directory that holds {STORE_FILE}", data.display());
    }
    move_mark::refuse_if_moved(data)?;
    let began_at = clock.wall();
    let _lock = lock(data).context(
        "a running gateway makes its backup itself: leave out --data, so that it is asked (it needs --backup-dir)",
    )?;
    let db = recover::open(&path, Durability::Synced)?;
    let partial = PartialBackup::create(folder)?;
    let mut to = partial.open_target()?;
    let copy = Backup::new(&db, &mut to)?;
    while copy.step(10_000)? != StepResult::Done {}
    drop(copy);
    drop(to);
    let end = CopyEnd::of(&db)?;
    finish(partial, seal, end, (began_at, clock.wall()), clock, || true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Catalog;
    use crate::store::embedded::notes;

    fn step(took: Duration, jobs: usize, remaining: i32) -> CopyStep {
        CopyStep { end: None, remaining, page_count: 100_000, took, jobs }
    }

    /// Copies pages for a while, and returns which part of the time the steps took.
    fn share_of_steps(page_time: Duration, commit: Duration, remaining: impl Fn(i32) -> i32) -> f64 {
        let began = Instant::now();
        let (mut pace, mut now, mut worked) = (CopyPace::new(began), began, Duration::ZERO);
        for n in 0..5_000 {
            let took = page_time * pace.pages.unsigned_abs();
            worked += took;
            now += commit + took;
            now += pace.rest_after(&step(took, 7, remaining(n)), now);
        }
        worked.as_secs_f64() / (now - began).as_secs_f64()
    }

    #[test]
    fn steps_take_a_small_part_of_the_writers_time_while_there_is_something_to_write() {
        for commit in [1, 10, 100].map(Duration::from_millis) {
            for page_time in [2, 20, 40].map(Duration::from_micros) {
                let shrinking = share_of_steps(page_time, commit, |n| 5_000 - n);
                assert!(shrinking < BUSY_SHARE.0 * 1.1, "{shrinking} with commits of {commit:?}, {page_time:?} a page");
                let growing = share_of_steps(page_time, commit, |n| 5_000 + n);
                assert!(growing < BUSY_SHARE.1 * 1.1, "{growing} with commits of {commit:?}, {page_time:?} a page");
                assert!(growing > shrinking, "it gets a larger share where it would never end");
            }
        }
        let now = Instant::now();
        let idle = CopyPace::new(now).rest_after(&step(Duration::from_micros(200), 0, 1), now);
        assert_eq!(idle, IDLE_REST, "nobody waits for the writer");
    }

    #[tokio::test]
    async fn commits_and_emptying_the_log_do_not_make_a_copy_begin_anew() {
        let folder = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(&folder.path().join("data"), Durability::Unsynced).unwrap();
        let fill = |transaction: &mut super::super::writer::WriteTransaction<'_>| {
            let text = "x".repeat(3_000);
            (0..400).try_for_each(|n| notes::write(transaction.db, &format!("note {n}"), &text))
        };
        store.writer.write(fill).await.unwrap();
        let partial = PartialBackup::create(&folder.path().join("copy")).unwrap();
        store.writer.begin_copy(partial.open_target().unwrap()).await.unwrap();
        let (mut last, mut steps) = (i32::MAX, 0);
        loop {
            let step = store.writer.step_copy(20).await.unwrap();
            if step.end.is_some() {
                break;
            }
            // Pages that are copied already are written again, and so are new ones.
            store.put_setting("written_meanwhile", format!("{steps}")).await.unwrap();
            store.checkpointer.empty_log();
            assert!(step.remaining < last, "{} pages remain after {last}", step.remaining);
            (last, steps) = (step.remaining, steps + 1);
        }
        assert!(steps > 10, "only {steps} steps");
        let copy = open_copy(&partial.file()).unwrap();
        assert_eq!(notes::read(&copy, "written_meanwhile").unwrap(), Some(format!("{}", steps - 1)));
        assert!(crate::store::embedded::check::check(&copy, None).iter().all(|part| part.findings.is_empty()));
        drop(copy);
        store.close().await;
    }
}
