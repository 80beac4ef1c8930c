//! A line of writes: whatever waits is committed together.
//!
//! There is no window to wait for: the next batch forms while the last one
//! commits, so a quiet store answers at once and a busy one shares commits.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{Mutex, mpsc};

use super::PostgresState;

/// Something that can be written together with others of its kind.
pub trait BatchJob: Send + Sized + 'static {
    /// How many batches may be on their way at once.
    const ABREAST: usize;
    /// How large a batch may become.
    const MOST: usize;

    /// How much of a batch this takes.
    fn size(&self) -> usize;

    /// Writes these together; each is answered. Returns those that must wait
    /// for the next batch.
    fn write(shared: &Arc<PostgresState>, jobs: Vec<Self>) -> impl Future<Output = BatchResult<Self>> + Send;
}

/// What became of a batch.
pub struct BatchResult<J> {
    /// Whether it was written.
    pub is_written: bool,
    /// Those that wait for the next.
    pub later: Vec<J>,
}

/// A line of one kind of work. It ends when it is dropped.
pub struct GroupCommit<J> {
    jobs: mpsc::UnboundedSender<J>,
}

impl<J: BatchJob> GroupCommit<J> {
    /// Starts it.
    pub fn start(shared: Arc<PostgresState>) -> Self {
        let (jobs, waiting) = mpsc::unbounded_channel();
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..J::ABREAST {
            tokio::spawn(run(shared.clone(), waiting.clone()));
        }
        Self { jobs }
    }

    /// Stands in line.
    pub fn push(&self, job: J) {
        // A line that has ended drops what is handed to it, and with it the
        // way back to whoever waits for an answer.
        let _ = self.jobs.send(job);
    }
}

async fn run<J: BatchJob>(shared: Arc<PostgresState>, waiting: Arc<Mutex<mpsc::UnboundedReceiver<J>>>) {
    let mut later: Vec<J> = Vec::new();
    loop {
        let mut batch = std::mem::take(&mut later);
        // Whoever waits for the next job holds the line meanwhile; what was
        // set aside must not wait for that.
        let line = match batch.is_empty() {
            true => Some(waiting.lock().await),
            false => waiting.try_lock().ok(),
        };
        if let Some(mut waiting) = line {
            if batch.is_empty() {
                match waiting.recv().await {
                    Some(job) => batch.push(job),
                    None => return,
                }
            }
            let mut size: usize = batch.iter().map(J::size).sum();
            while size < J::MOST
                && let Ok(job) = waiting.try_recv()
            {
                size += job.size();
                batch.push(job);
            }
        }
        let (began, jobs) = (Instant::now(), batch.len());
        let written = J::write(&shared, batch).await;
        let jobs = jobs - written.later.len();
        match written.is_written {
            true => shared.options.commits.committed(jobs, began.elapsed()),
            false => shared.options.commits.failed(jobs),
        }
        later = written.later;
    }
}
