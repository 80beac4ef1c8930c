//! Checkpoints SQLite's write-ahead log on a thread of its own.
//!
//! If it were left to the writer, the commit that makes the log too long would
//! checkpoint all of it while every caller waits, for a tenth of a second and
//! more. Here it is done a little at a time, and only a remainder is left to
//! the writer. Data that was expunged must not stay in the log either, so the
//! log is emptied as soon as nobody reads it.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;
use tracing::warn;

use super::failure::failure_of;

/// Amount that is written before the next checkpoint. A page that is changed again and
/// again, as the ends of indexes are, is written to the store once per checkpoint.
const AMOUNT_MAX: usize = 4_000;
/// What a commit adds to the amount besides its jobs: pages that each commit writes.
const AMOUNT_OF_COMMIT: usize = 3;
/// Bytes of events that add as much to the amount as a job.
const BYTES_OF_JOB: u64 = 8 * 1_024;
/// How long a try to empty the log waits for readers, and the pause between two
/// tries.
const WIPE_PATIENCE: Duration = Duration::from_millis(50);

/// Tells the checkpointer how much was written.
#[derive(Clone, Default)]
pub struct CheckpointTrigger(Arc<CheckpointerShared>);

#[derive(Default)]
struct CheckpointerShared {
    state: Mutex<CheckpointerState>,
    more: Condvar,
}

#[derive(Default)]
struct CheckpointerState {
    /// Amount written since the last checkpoint, in jobs of usual size.
    written: usize,
    /// Bytes of events that are in the log alone: a checkpoint writes them to the store.
    event_bytes: u64,
    /// Time that the writer's transactions took since the store was opened.
    time_writing: Duration,
    /// Number of the latest request to empty the log: it holds data that was expunged.
    asked: u64,
    /// Number of the latest request that was done.
    emptied: u64,
    /// Whether the store is being copied. Emptying the log would make the copy
    /// begin anew, so that it waits for the copy's end.
    is_copying: bool,
    is_over: bool,
}

impl CheckpointerState {
    fn may_empty(&self) -> bool {
        self.asked > self.emptied && !self.is_copying
    }
}

/// The checkpointing thread. It ends when this is dropped.
pub struct Checkpointer {
    trigger: CheckpointTrigger,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    /// Starts the thread on a connection of its own.
    pub fn start(trigger: CheckpointTrigger, db: Connection) -> Self {
        let waiting = trigger.clone();
        let thread = std::thread::Builder::new()
            .name("checkpointer".into())
            .spawn(move || waiting.run(&db))
            .expect("a thread can be started");
        Self { trigger, thread: Some(thread) }
    }

    /// Asks for the log to be emptied soon, because it holds expunged data. Returns
    /// the number of the request.
    pub fn empty_log(&self) -> u64 {
        let asked = {
            let mut state = self.trigger.state();
            state.asked += 1;
            state.asked
        };
        self.trigger.0.more.notify_one();
        asked
    }

    /// Whether the log was emptied since this request.
    pub fn is_emptied(&self, request: u64) -> bool {
        self.trigger.state().emptied >= request
    }

    /// Returns the trigger that counts what is written.
    pub fn trigger(&self) -> &CheckpointTrigger {
        &self.trigger
    }

    /// Stops the thread and returns once its connection is closed.
    pub fn stop(mut self) {
        self.trigger.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.trigger.stop();
    }
}

impl CheckpointTrigger {
    /// Counts a transaction: the jobs that it has written, the bytes of their events, and
    /// the time that it took.
    pub fn jobs_written(&self, jobs: usize, event_bytes: u64, took: Duration) {
        let large = usize::try_from(event_bytes / BYTES_OF_JOB).unwrap_or(AMOUNT_MAX);
        let mut state = self.state();
        state.written += jobs + large + AMOUNT_OF_COMMIT;
        state.event_bytes += event_bytes;
        state.time_writing += took;
        if state.written >= AMOUNT_MAX {
            self.0.more.notify_one();
        }
    }

    /// Returns the bytes of events that the store's file has yet to take from the log.
    pub fn event_bytes(&self) -> u64 {
        self.state().event_bytes
    }

    /// Returns how long the writer's transactions took since the store was opened.
    pub fn time_writing(&self) -> Duration {
        self.state().time_writing
    }

    /// Notes that a copy of the store begins or ends.
    pub fn set_copying(&self, is_copying: bool) {
        self.state().is_copying = is_copying;
        self.0.more.notify_one();
    }

    fn stop(&self) {
        self.state().is_over = true;
        self.0.more.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, CheckpointerState> {
        self.0.state.lock()
    }

    fn run(&self, db: &Connection) {
        loop {
            let (request, event_bytes) = {
                let is_idle =
                    |state: &mut CheckpointerState| state.written < AMOUNT_MAX && !state.may_empty() && !state.is_over;
                let mut state = self.state();
                self.0.more.wait_while(&mut state, is_idle);
                if state.is_over {
                    return;
                }
                state.written = 0;
                (state.may_empty().then_some(state.asked), state.event_bytes)
            };
            // The part of the log that is in the store then.
            let checkpointed = if let Some(request) = request {
                let emptied = self.empty_whole_log(db);
                // One that failed is not tried at once again, but counts for nothing.
                match &emptied {
                    Ok(true) => self.state().emptied = request,
                    Ok(false) => {}
                    Err(_) => std::thread::sleep(WIPE_PATIENCE),
                }
                emptied.map(|is_emptied| if is_emptied { 1.0 } else { 0.0 })
            } else {
                // PASSIVE waits for nobody: frames that a reader or the writer
                // needs are left for later.
                db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
                    let (frames, copied): (f64, f64) = (row.get::<_, i64>(1)? as f64, row.get::<_, i64>(2)? as f64);
                    Ok(if frames > 0.0 { copied / frames } else { 1.0 })
                })
            };
            match checkpointed {
                Ok(part) => self.state().event_bytes -= (event_bytes as f64 * part.clamp(0.0, 1.0)) as u64,
                Err(problem) => {
                    // `failure_of` ends the process if the disk failed.
                    let failure = failure_of(&problem);
                    warn!("checkpoint of the write-ahead log failed; it is tried again later: {failure}");
                }
            }
        }
    }

    /// Checkpoints the whole log and empties it, as soon as nobody reads it. Returns
    /// whether it did so before the store was closed.
    fn empty_whole_log(&self, db: &Connection) -> rusqlite::Result<bool> {
        // The writer waits while this checkpoint waits, so it never waits long.
        db.busy_timeout(WIPE_PATIENCE)?;
        let emptied = loop {
            match db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, bool>(0)) {
                Ok(true) if !self.state().is_over => std::thread::sleep(WIPE_PATIENCE),
                Ok(is_busy) => break Ok(!is_busy),
                Err(problem) => break Err(problem),
            }
        };
        db.busy_timeout(Duration::from_secs(5))?;
        emptied
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_log_is_folded_once_enough_was_written_and_nobody_is_told_to_wait() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let open = || {
            let db = Connection::open(&path).unwrap();
            db.execute_batch("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0;").unwrap();
            db
        };
        let db = open();
        db.execute_batch("CREATE TABLE t (text TEXT)").unwrap();
        for _ in 0..100 {
            db.execute("INSERT INTO t VALUES (?)", ["x".repeat(4_000)]).unwrap();
        }
        let size = || std::fs::metadata(&path).unwrap().len();
        let trigger = CheckpointTrigger::default();
        let checkpointer = Checkpointer::start(trigger.clone(), open());
        trigger.jobs_written(AMOUNT_MAX - AMOUNT_OF_COMMIT - 9, 8 * BYTES_OF_JOB, Duration::ZERO);
        let before = size();
        assert!(before < 100_000, "all of it is in the log");
        assert_eq!(trigger.event_bytes(), 8 * BYTES_OF_JOB, "and nothing of it in the store");
        trigger.jobs_written(1, 0, Duration::ZERO);
        let until = Instant::now() + Duration::from_secs(90);
        while size() < 400_000 {
            assert!(Instant::now() < until, "there was no checkpoint");
            std::thread::yield_now();
        }
        checkpointer.stop();
        assert_eq!(trigger.event_bytes(), 0);
    }
}
