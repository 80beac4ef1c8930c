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
use super::{Durability, EmbeddedStore, STORE_FILE, check, lock, recover};
use crate::clock::Clock;
use crate::model::backup::{BackupManifest, MANIFEST_FORMAT};
use crate::model::size::RoundedSize;
use crate::model::store_check::{CheckResult, CheckedPart};
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
/// How long there counts as something to write after a commit. Large batches are written
/// with pauses between them, in which the next one is being read.
const BUSY_LINGERS: Duration = Duration::from_millis(100);
/// Rest between two steps while there is nothing to write: the least that the timers
/// know.
const IDLE_REST: Duration = Duration::from_millis(1);
/// Interval at which the share is raised, if the store grows faster than it is copied.
const SHARE_INTERVAL: Duration = Duration::from_secs(5);
/// Bytes that are copied before they are synced: a large backlog of unwritten pages
/// would delay the syncs of commits.
const SYNC_BYTES: u64 = 4 * 1_024 * 1_024;
/// Interval at which a copy must have come closer to its end.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(600);
/// Least part of what remains that is to be copied in that time: about what lets the copy
/// end within a week.
const PROGRESS_PART: i32 = 1_000;

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
        let mut watch = ProgressWatch::new(Instant::now());
        let mut unsynced_bytes = 0;
        loop {
            let pages = pace.pages;
            let step = self.writer.step_copy(pages).await?;
            let total = step.page_count.max(0) as u64 * PAGE_BYTES;
            progress.copied(total.saturating_sub(step.remaining.max(0) as u64 * PAGE_BYTES), total);
            if let Some(end) = step.end {
                return Ok(end);
            }
            if watch.is_stalled(step.remaining, Instant::now()) {
                bail!(
                    "the store grows as fast as it is copied: {} remain, as many as {} minutes before; make the backup \
                     at a quieter hour",
                    RoundedSize(step.remaining.max(0) as u64 * PAGE_BYTES),
                    PROGRESS_INTERVAL.as_secs() / 60
                );
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

/// Notices that a copy does not come closer to its end.
struct ProgressWatch {
    /// When it was last looked, and how many pages remained.
    looked: (Instant, i32),
}

impl ProgressWatch {
    fn new(now: Instant) -> Self {
        Self { looked: (now, i32::MAX) }
    }

    fn is_stalled(&mut self, remaining: i32, now: Instant) -> bool {
        let (looked_at, remained) = self.looked;
        if now - looked_at < PROGRESS_INTERVAL {
            return false;
        }
        self.looked = (now, remaining);
        remaining > remained.saturating_sub(remaining / PROGRESS_PART)
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
    /// When a step last came after a commit, if any has.
    committed_at: Option<Instant>,
    /// When the share was last looked at, and how many pages remained.
    looked: (Instant, i32),
}

impl CopyPace {
    fn new(now: Instant) -> Self {
        Self {
            pages: 16,
            page_time: 20e-6,
            share: BUSY_SHARE.0,
            stepped_at: now,
            committed_at: None,
            looked: (now, i32::MAX),
        }
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
        if step.jobs > 0 {
            self.committed_at = Some(now);
        }
        let is_busy = self.committed_at.is_some_and(|committed_at| now - committed_at <= BUSY_LINGERS);
        // There is one step between two commits at most. Where these take long, a step
        // may take longer.
        let interval = now - std::mem::replace(&mut self.stepped_at, now);
        let budget = if is_busy { interval.mul_f64(self.share) } else { STEP_TIME.1 };
        let fitting = budget.clamp(STEP_TIME.0, STEP_TIME.1).as_secs_f64() / self.page_time.max(1e-7);
        self.pages = fitting.clamp(STEP_PAGES.0, STEP_PAGES.1) as i32;
        if !is_busy {
            return IDLE_REST;
        }
        BUSY_REST.max(step.took.mul_f64(1.0 / self.share - 1.0).min(BUSY_REST_MAX))
    }
}

/// Part of the writer's time from which on the gateway counts as busy.
const BUSY_WRITER: f64 = 0.02;
/// Shortest time over which that part is measured: several commits, also on a slow disk.
const WRITER_WINDOW: Duration = Duration::from_millis(250);
/// Time that a check works before it may rest.
const CHECK_WORK: Duration = Duration::from_millis(2);
/// Rest of a check while the gateway is busy, as a multiple of the time it has worked:
/// it then takes a tenth of one processor.
const CHECK_REST: u32 = 9;
/// Longest rest of a check.
const CHECK_REST_MAX: Duration = Duration::from_millis(500);

/// Lets the check of a copy rest while the gateway is busy.
///
/// The writer's time says how busy it is, and not its jobs: one job may be an event or
/// a batch of a thousand.
#[derive(Clone)]
struct CheckPace {
    trigger: CheckpointTrigger,
    is_busy: bool,
    /// When the writer's time was last looked at, and what it was.
    looked: (Instant, Duration),
    /// When the last rest ended.
    working_since: Instant,
}

impl CheckPace {
    fn new(trigger: CheckpointTrigger) -> Self {
        let now = Instant::now();
        // Nothing is known yet, so it begins gently.
        Self { is_busy: true, looked: (now, trigger.time_writing()), trigger, working_since: now }
    }

    /// Rests, if it is time and the gateway is busy.
    fn rest(&mut self) {
        let rest = self.rest_after_work(Instant::now());
        if !rest.is_zero() {
            std::thread::sleep(rest);
            self.working_since = Instant::now();
        }
    }

    /// Returns how long to rest now.
    fn rest_after_work(&mut self, now: Instant) -> Duration {
        let (looked_at, wrote) = self.looked;
        if now - looked_at >= WRITER_WINDOW {
            let writing = self.trigger.time_writing();
            let was_busy =
                std::mem::replace(&mut self.is_busy, writing - wrote >= (now - looked_at).mul_f64(BUSY_WRITER));
            if !was_busy {
                // What was done while nobody was in a hurry needs no rest.
                self.working_since = now;
            }
            self.looked = (now, writing);
        }
        let worked = now - self.working_since;
        if self.is_busy && worked >= CHECK_WORK {
            return (worked * CHECK_REST).min(CHECK_REST_MAX);
        }
        Duration::ZERO
    }
}

/// Number of SQLite's steps between two rests. The check of a page is one step, so more
/// would be work of many milliseconds.
const OPERATIONS_PER_REST: i32 = 200;

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
    if !check::is_under_one_key(&db, seal)? {
        bail!(
            "the master key was being replaced when the copy ended, so two keys would be needed to open it; make \
             another backup when `posthaste keys rotate` is done"
        );
    }
    if !is_wanted() {
        bail!("the gateway was stopped while the copy was being checked");
    }
    let counts = counts(&db)?;
    let schema = db.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let was_checked = |part: &&CheckedPart| part.result != CheckResult::NotChecked;
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
        checked: parts.iter().filter(was_checked).map(|part| part.name.to_owned()).collect(),
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
    use crate::clock::SystemClock;
    use crate::store::Catalog;
    use crate::store::embedded::notes;
    use crate::store::resealing::ResealingStore;
    use crate::store::seal::LINK_KEY_NOTE;

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
        let mut pace = CopyPace::new(now);
        for _ in 0..100 {
            let took = Duration::from_micros(5) * pace.pages.unsigned_abs();
            assert_eq!(pace.rest_after(&step(took, 0, 1), now), IDLE_REST, "nobody waits for the writer");
        }
        let took = Duration::from_micros(5) * pace.pages.unsigned_abs();
        assert!(took > STEP_TIME.1 / 2 && took < STEP_TIME.1 * 2, "long steps, so that it is quick: {took:?}");
    }

    #[test]
    fn a_copy_that_comes_no_closer_to_its_end_is_given_up() {
        let began = Instant::now();
        let minute = |n: u32| began + Duration::from_secs(60) * n;
        let mut watch = ProgressWatch::new(began);
        let given_up_at = |watch: &mut ProgressWatch, remaining: &dyn Fn(u32) -> i32| {
            (0..1_000).find(|n| watch.is_stalled(remaining(*n), minute(*n)))
        };
        assert_eq!(given_up_at(&mut watch, &|n| 1_000_000 + n as i32), Some(20), "it grows");
        let mut watch = ProgressWatch::new(began);
        assert_eq!(given_up_at(&mut watch, &|n| 1_000_000 - n as i32), Some(20), "it would take years");
        let mut watch = ProgressWatch::new(began);
        assert_eq!(given_up_at(&mut watch, &|n| 1_000_000 - 1_000 * n as i32), None);
        // What was written meanwhile may be much for a while.
        let mut watch = ProgressWatch::new(began);
        assert_eq!(given_up_at(&mut watch, &|n| 1_000_000 - 1_000 * n as i32 + 5_000 * i32::from(n % 10 > 5)), None);
    }

    #[test]
    fn pauses_between_large_batches_are_not_taken_for_idleness() {
        let began = Instant::now();
        let (mut pace, mut now, mut worked) = (CopyPace::new(began), began, Duration::ZERO);
        let (mut due_at, mut jobs) = (now, 0);
        for n in 0..5_000 {
            let took = Duration::from_micros(20) * pace.pages.unsigned_abs();
            (worked, now) = (worked + took, now + took);
            now += pace.rest_after(&step(took, std::mem::take(&mut jobs), 5_000 - n), now);
            // A batch takes 6 ms, and the next one comes 30 ms after it.
            if now >= due_at {
                now += Duration::from_millis(6);
                (due_at, jobs) = (now + Duration::from_millis(30), 1);
            }
        }
        let share = worked.as_secs_f64() / (now - began).as_secs_f64();
        assert!(share < BUSY_SHARE.0 * 1.5, "{share}");
        let later = now + BUSY_LINGERS * 2;
        assert_eq!(
            pace.rest_after(&step(Duration::from_micros(200), 0, 1), later),
            IDLE_REST,
            "nothing comes any more"
        );
    }

    /// Part of the time that a check works while one commit comes each `interval`.
    fn share_of_check(commit: Duration, interval: Duration) -> f64 {
        let trigger = CheckpointTrigger::default();
        let mut pace = CheckPace::new(trigger.clone());
        let began = pace.working_since;
        let (mut now, mut worked, mut committed_at) = (began, Duration::ZERO, began);
        while now - began < Duration::from_secs(60) {
            let work = Duration::from_micros(700);
            (now, worked) = (now + work, worked + work);
            let rest = pace.rest_after_work(now);
            if !rest.is_zero() {
                now += rest;
                pace.working_since = now;
            }
            while now - committed_at >= interval {
                committed_at += interval;
                trigger.jobs_written(1, 0, commit);
            }
        }
        worked.as_secs_f64() / (now - began).as_secs_f64()
    }

    #[test]
    fn a_check_takes_a_tenth_of_a_processor_while_the_gateway_writes_and_all_of_one_otherwise() {
        // Single events, batches of a hundred, and a slow disk.
        for (commit, interval) in [(1, 2), (6, 20), (60, 200)] {
            let share = share_of_check(Duration::from_millis(commit), Duration::from_millis(interval));
            assert!(share < 0.11, "{share} with a commit of {commit} ms each {interval} ms");
        }
        let idle = share_of_check(Duration::from_millis(1), Duration::from_millis(500));
        assert!(idle > 0.95, "{idle}");
    }

    #[tokio::test]
    async fn a_copy_that_two_keys_would_be_needed_for_is_no_backup() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("master-key");
        let (seal, _) = Seal::load_or_create(&file).unwrap();
        let data = folder.path().join("data");
        let store = EmbeddedStore::open_with(&data, Durability::Unsynced, seal, Arc::default()).unwrap();
        // The store's own: it is another one after the key was compared with the store.
        let seal = store.seal().clone();
        store.put_setting(LINK_KEY_NOTE, seal.new_link_key()).await.unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let back_up = async |name: &str| {
            store
                .back_up(&folder.path().join(name), clock.clone(), Arc::default())
                .await
                .map_err(|why| format!("{why:#}"))
        };
        back_up("before").await.unwrap();
        let check = Seal::begin_rotation(&file).unwrap().check_text();
        assert!(seal.learn(&check));
        back_up("before_it_is_used").await.unwrap();
        store.use_master_key(check).await.unwrap();
        let refused = back_up("meanwhile").await.unwrap_err();
        assert!(refused.contains("make another backup when `posthaste keys rotate` is done"), "{refused}");
        assert!(!folder.path().join("meanwhile").exists(), "nothing of it is left");
        let links = store.setting(LINK_KEY_NOTE).await.unwrap().unwrap();
        store.put_setting(LINK_KEY_NOTE, seal.reseal_link_key(&links).unwrap()).await.unwrap();
        Seal::end_rotation(&file).unwrap();
        back_up("after").await.unwrap();
        let copy = open_copy(&folder.path().join("after").join(STORE_FILE)).unwrap();
        check_copy(&copy, &Seal::read(&file).unwrap()).expect("the new key alone opens it");
        drop(copy);
        store.close().await;
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
