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

/// Number of jobs written before the next checkpoint.
const JOBS: usize = 1_000;
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
    /// Jobs written since the last checkpoint.
    written: usize,
    /// Jobs written since the store was opened.
    written_in_all: u64,
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

    /// Ends the thread and returns once its connection is closed.
    pub fn end(mut self) {
        self.trigger.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.trigger.end();
    }
}

impl CheckpointTrigger {
    /// Counts jobs that were written.
    pub fn jobs_written(&self, jobs: usize) {
        let mut state = self.state();
        state.written += jobs;
        state.written_in_all += jobs as u64;
        if state.written >= JOBS {
            self.0.more.notify_one();
        }
    }

    /// Returns how many jobs were written since the store was opened.
    pub fn written_in_all(&self) -> u64 {
        self.state().written_in_all
    }

    /// Notes that a copy of the store begins or ends.
    pub fn set_copying(&self, is_copying: bool) {
        self.state().is_copying = is_copying;
        self.0.more.notify_one();
    }

    fn end(&self) {
        self.state().is_over = true;
        self.0.more.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, CheckpointerState> {
        self.0.state.lock()
    }

    fn run(&self, db: &Connection) {
        loop {
            let request = {
                let is_idle =
                    |state: &mut CheckpointerState| state.written < JOBS && !state.may_empty() && !state.is_over;
                let mut state = self.state();
                self.0.more.wait_while(&mut state, is_idle);
                if state.is_over {
                    return;
                }
                state.written = 0;
                state.may_empty().then_some(state.asked)
            };
            let checkpointed = if let Some(request) = request {
                let emptied = self.empty(db);
                // One that failed is not tried at once again, but counts for nothing.
                match &emptied {
                    Ok(true) => self.state().emptied = request,
                    Ok(false) => {}
                    Err(_) => std::thread::sleep(WIPE_PATIENCE),
                }
                emptied.map(drop)
            } else {
                // PASSIVE waits for nobody: frames that a reader or the writer
                // needs are left for later.
                db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
            };
            if let Err(problem) = checkpointed {
                // `failure_of` ends the process if the disk failed.
                let failure = failure_of(&problem);
                warn!("checkpoint of the write-ahead log failed; it is tried again later: {failure}");
            }
        }
    }

    /// Checkpoints the whole log and empties it, as soon as nobody reads it. Returns
    /// whether it did so before the store was closed.
    fn empty(&self, db: &Connection) -> rusqlite::Result<bool> {
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
        trigger.jobs_written(JOBS - 1);
        let before = size();
        assert!(before < 100_000, "all of it is in the log");
        trigger.jobs_written(1);
        let until = Instant::now() + Duration::from_secs(20);
        while size() < 400_000 {
            assert!(Instant::now() < until, "there was no checkpoint");
            std::thread::yield_now();
        }
        checkpointer.end();
    }
}
