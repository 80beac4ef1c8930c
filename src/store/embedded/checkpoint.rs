//! Folds the log into the file while it grows, beside the writer.
//!
//! Left to the writer, that is done all at once by whichever commit makes the
//! log too long, and everyone waits for it: a tenth of a second and more.
//! Done here, a little at a time, only a remainder is left to the writer.
//! What was expunged may not stay in the log either, so that is emptied once
//! nobody reads it.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;
use tracing::warn;

use super::writer::failure_of;

/// After so many jobs there is something to fold.
const JOBS: usize = 1_000;
/// How long emptying the log waits for readers, and between two tries.
const WIPE_PATIENCE: Duration = Duration::from_millis(50);

/// Tells the folder that something was written.
#[derive(Clone, Default)]
pub struct CheckpointTrigger(Arc<CheckpointerShared>);

#[derive(Default)]
struct CheckpointerShared {
    state: Mutex<CheckpointerState>,
    more: Condvar,
}

#[derive(Default)]
struct CheckpointerState {
    written: usize,
    is_wiped: bool,
    is_over: bool,
}

/// The thread that folds. Dropped, it ends by itself.
pub struct Checkpointer {
    trigger: CheckpointTrigger,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    /// Starts folding on a connection of its own.
    pub fn start(folding: CheckpointTrigger, db: Connection) -> Self {
        let told = folding.clone();
        let thread = std::thread::Builder::new()
            .name("store-fold".into())
            .spawn(move || told.run(&db))
            .expect("a thread can be started");
        Self { trigger: folding, thread: Some(thread) }
    }

    /// Empties the log soon: it holds what was expunged.
    pub fn empty_log(&self) {
        self.trigger.state().is_wiped = true;
        self.trigger.0.more.notify_one();
    }

    /// Returns once its connection is closed.
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
    /// So many jobs were written.
    pub fn jobs_written(&self, jobs: usize) {
        let mut state = self.state();
        state.written += jobs;
        if state.written >= JOBS {
            self.0.more.notify_one();
        }
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
            let is_wiped = {
                let is_idle = |state: &mut CheckpointerState| state.written < JOBS && !state.is_wiped && !state.is_over;
                let mut state = self.state();
                self.0.more.wait_while(&mut state, is_idle);
                if state.is_over {
                    return;
                }
                state.written = 0;
                std::mem::take(&mut state.is_wiped)
            };
            // It waits for nobody: what a reader or the writer needs is left for later.
            let folded = match is_wiped {
                false => db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())),
                true => self.empty(db),
            };
            if let Err(problem) = folded {
                // A disk that fails ends the process here.
                let failure = failure_of(&problem);
                warn!("the log could not be folded into the store, and is tried again later: {failure}");
            }
        }
    }

    /// Folds the whole log and empties it, as soon as nobody reads it.
    fn empty(&self, db: &Connection) -> rusqlite::Result<()> {
        // Whoever waits for this one holds up the writer, so it never waits long.
        db.busy_timeout(WIPE_PATIENCE)?;
        let emptied = loop {
            match db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, bool>(0)) {
                Ok(true) if !self.state().is_over => std::thread::sleep(WIPE_PATIENCE),
                Ok(_) => break Ok(()),
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
        let folding = CheckpointTrigger::default();
        let folder = Checkpointer::start(folding.clone(), open());
        folding.jobs_written(JOBS - 1);
        let before = size();
        assert!(before < 100_000, "all of it is in the log");
        folding.jobs_written(1);
        let until = Instant::now() + Duration::from_secs(20);
        while size() < 400_000 {
            assert!(Instant::now() < until, "it is not folded");
            std::thread::yield_now();
        }
        folder.end();
    }
}
