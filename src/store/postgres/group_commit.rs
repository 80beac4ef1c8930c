//! Group commit: all waiting jobs are committed together.
//!
//! There is no window to wait for: the next batch forms while the last one
//! commits, so a quiet store answers at once and a busy one shares commits.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{Mutex, mpsc};

use super::PostgresState;

/// A job that can be written together with others of its kind.
pub trait BatchJob: Send + Sized + 'static {
    /// Largest number of batches that are written at the same time.
    const CONCURRENT_BATCHES: usize;
    /// Largest size of a batch, as [`BatchJob::size`] counts.
    const BATCH_SIZE_MAX: usize;

    /// Returns how much of a batch this job takes.
    fn size(&self) -> usize;

    /// Writes these jobs together and answers each of them. Returns the jobs
    /// that must wait for the next batch.
    fn write(shared: &Arc<PostgresState>, jobs: Vec<Self>) -> impl Future<Output = BatchResult<Self>> + Send;
}

/// Result of writing a batch.
pub struct BatchResult<J> {
    /// Whether the batch was written.
    pub is_written: bool,
    /// Jobs that wait for the next batch.
    pub later: Vec<J>,
}

/// The queue of one kind of job. Its tasks end when it is dropped.
pub struct GroupCommit<J> {
    jobs: mpsc::UnboundedSender<J>,
}

impl<J: BatchJob> GroupCommit<J> {
    /// Starts the tasks that write batches.
    pub fn start(shared: Arc<PostgresState>) -> Self {
        let (jobs, waiting) = mpsc::unbounded_channel();
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..J::CONCURRENT_BATCHES {
            tokio::spawn(run(shared.clone(), waiting.clone()));
        }
        Self { jobs }
    }

    /// Adds a job to the queue.
    pub fn push(&self, job: J) {
        // After the end the job is dropped, and with it the channel for its
        // answer, so its caller gets an error.
        let _ = self.jobs.send(job);
    }
}

async fn run<J: BatchJob>(shared: Arc<PostgresState>, waiting: Arc<Mutex<mpsc::UnboundedReceiver<J>>>) {
    let mut later: Vec<J> = Vec::new();
    loop {
        let mut batch = std::mem::take(&mut later);
        // A task that waits for the next job holds the lock meanwhile; jobs
        // that were put off must not wait for that.
        let queue = if batch.is_empty() { Some(waiting.lock().await) } else { waiting.try_lock().ok() };
        if let Some(mut waiting) = queue {
            if batch.is_empty() {
                match waiting.recv().await {
                    Some(job) => batch.push(job),
                    None => return,
                }
            }
            let mut size: usize = batch.iter().map(J::size).sum();
            while size < J::BATCH_SIZE_MAX
                && let Ok(job) = waiting.try_recv()
            {
                size += job.size();
                batch.push(job);
            }
        }
        let (began, jobs) = (Instant::now(), batch.len());
        let result = J::write(&shared, batch).await;
        let jobs = jobs - result.later.len();
        if result.is_written {
            shared.options.commits.record_commit(jobs, began.elapsed());
        } else {
            shared.options.commits.count_rolled_back(jobs);
        }
        later = result.later;
    }
}
