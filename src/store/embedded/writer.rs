//! The one writer: commits all waiting jobs as one transaction.
//!
//! Jobs queue up while a commit is being synced; the next transaction takes
//! all of them. There is no window to wait for: under load batches form by
//! themselves, and a lone job is committed at once. Before a transaction commits,
//! threads that are ready to run go first, for as long as they bring more jobs,
//! which join the transaction: on busy cores that halves the number of commits, and
//! on idle ones it takes a microsecond. Jobs are applied as they come, since
//! nobody has anything else to do once all of them wait for the commit. Jobs that
//! somebody waits for, such as accepting an event, go before jobs that nobody waits
//! for, such as settlements; a transaction takes up to the same number of each.
//!
//! Invariant: a job's caller is answered only after its commit is on
//! disk and the catalog in memory shows it.

use parking_lot::RwLock;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::backup::Backup;
use tokio::sync::{mpsc, oneshot};
use tracing::error;

use super::checkpoint::CheckpointTrigger;
use super::copy_steps::{self, CopyRequest, CopyStep};
pub use super::count_changes::AcceptedUsage;
use super::count_changes::{CountChange, day_of, update_stored};
use super::failure::failure_of;
use super::write_queue::{JobBudget, WritePriority, WriteQueue, WriterMessage};
use crate::metrics::CommitMetrics;
use crate::model::id::TenantId;
use crate::model::id_map::IdMap;
use crate::model::limits::TenantUsage;
use crate::model::operational_event::OperationalEventType;
use crate::model::tenant::Tenant;
use crate::store::catalog_index::CatalogIndex;
use crate::store::seal::Seal;
use crate::store::{Error, MissingResource, Result};

/// Number of jobs that may queue up before callers have to wait.
const JOBS_WAITING_MAX: usize = 4_096;

/// Largest number of times that the writer lets other threads run first.
const YIELDS_MAX: usize = 8;

type IndexUpdate = Box<dyn FnOnce(&mut CatalogIndex) + Send>;

/// A job for the writer.
trait WriteJob: Send {
    /// Writes inside the transaction.
    fn apply(&mut self, transaction: &mut WriteTransaction<'_>) -> rusqlite::Result<()>;
    /// Answers the caller after the commit or its failure.
    fn finish(self: Box<Self>, committed: Result<()>);
}

type JobMessage = WriterMessage<Box<dyn WriteJob>>;
type JobQueue = WriteQueue<Box<dyn WriteJob>>;

struct AnsweredJob<F, T> {
    job: Option<F>,
    value: Option<T>,
    answer: oneshot::Sender<Result<T>>,
}

impl<F, T> WriteJob for AnsweredJob<F, T>
where
    F: FnOnce(&mut WriteTransaction<'_>) -> rusqlite::Result<T> + Send,
    T: Send,
{
    fn apply(&mut self, transaction: &mut WriteTransaction<'_>) -> rusqlite::Result<()> {
        let job = self.job.take().expect("a job is applied once");
        self.value = Some(job(transaction)?);
        Ok(())
    }

    fn finish(self: Box<Self>, committed: Result<()>) {
        let Self { value, answer, .. } = *self;
        // The write counts even if the caller has gone away.
        let _ = answer.send(committed.map(|()| value.expect("a committed job was applied")));
    }
}

/// The open transaction, as a job sees it.
pub struct WriteTransaction<'a> {
    /// Connection inside the transaction.
    pub db: &'a Connection,
    /// Seal for secrets.
    pub seal: &'a Seal,
    /// The catalog as of the last commit.
    pub index: &'a Arc<RwLock<CatalogIndex>>,
    /// Number of the next delivery.
    pub next_delivery: &'a mut i64,
    after_commit: &'a mut Vec<IndexUpdate>,
    counts: &'a mut Vec<CountChange>,
    growth: &'a mut IdMap<TenantId, UsageGrowth>,
    /// Types of the operational events that this job wrote.
    pub operational_events: Vec<OperationalEventType>,
}

/// Usage that this transaction adds to what the catalog shows of a tenant.
#[derive(Clone, Copy, Default)]
struct UsageGrowth {
    endpoints: u64,
    settings_bytes: i64,
    tokens: u64,
}

impl WriteTransaction<'_> {
    /// Adds `more` to the waiting deliveries of an endpoint; it may be negative.
    pub fn count_waiting(&mut self, endpoint: i64, more: i64) {
        self.counts.push(CountChange::Waiting { endpoint, more });
    }

    /// Adds `more` bytes to what a tenant's events of the day of `accepted_ms`
    /// take up; it may be negative.
    pub fn count_stored(&mut self, tenant: i64, accepted_ms: i64, more: i64) {
        self.count_accepted(tenant, accepted_ms, more, AcceptedUsage::default());
    }

    /// Adds `more` bytes as [`WriteTransaction::count_stored`] does, and what
    /// producers handed over.
    pub fn count_accepted(&mut self, tenant: i64, accepted_ms: i64, more: i64, accepted: AcceptedUsage) {
        self.counts.push(CountChange::Stored { tenant, day: day_of(accepted_ms), more, accepted });
    }

    /// Reserves endpoints and bytes of settings, if the tenant's limits allow it.
    pub fn grow_settings(&mut self, tenant: &TenantId, endpoints: u64, bytes: i64) -> Result<()> {
        let Some((usage, known)) = self.usage(tenant) else { return Err(Error::NotFound(MissingResource::Tenant)) };
        usage.admits_settings(tenant, &known.limits, endpoints, bytes).map_err(Error::OverLimit)?;
        let growth = self.growth.entry(tenant.clone()).or_default();
        growth.endpoints += endpoints;
        growth.settings_bytes += bytes;
        Ok(())
    }

    /// Reserves one more token, if the tenant's limits allow it.
    pub fn grow_tokens(&mut self, tenant: &TenantId) -> Result<()> {
        let Some((usage, known)) = self.usage(tenant) else { return Err(Error::NotFound(MissingResource::Tenant)) };
        usage.admits_token(tenant, &known.limits).map_err(Error::OverLimit)?;
        self.growth.entry(tenant.clone()).or_default().tokens += 1;
        Ok(())
    }

    /// Returns what a tenant uses, with what this transaction adds. A tenant
    /// that this transaction created is not in the catalog yet.
    fn usage(&self, id: &TenantId) -> Option<(TenantUsage, Arc<Tenant>)> {
        let index = self.index.read();
        let (usage, tenant) = (index.usage(id)?, index.tenant(id)?);
        let growth = self.growth.get(id).copied().unwrap_or_default();
        let usage = TenantUsage {
            endpoints: usage.endpoints + growth.endpoints,
            settings_bytes: usage.settings_bytes.saturating_add_signed(growth.settings_bytes),
            tokens: usage.tokens + growth.tokens,
            ..usage
        };
        Some((usage, tenant))
    }

    /// Returns a mark for [`WriteTransaction::undo_counts`].
    pub fn count_mark(&self) -> usize {
        self.counts.len()
    }

    /// Drops the count changes since a mark, because they were rolled back.
    pub fn undo_counts(&mut self, mark: usize) {
        self.counts.truncate(mark);
    }

    /// Changes the catalog in memory once this transaction is durable.
    pub fn after_commit(&mut self, change: impl FnOnce(&mut CatalogIndex) + Send + 'static) {
        self.after_commit.push(Box::new(change));
    }
}

/// Handle that sends jobs to the writer's thread.
#[derive(Clone)]
pub struct Writer {
    jobs: mpsc::Sender<JobMessage>,
}

impl Writer {
    /// Starts the writer's thread on its connection.
    pub fn start(
        db: Connection,
        seal: Seal,
        index: Arc<RwLock<CatalogIndex>>,
        next_delivery: i64,
        commits: Arc<CommitMetrics>,
        checkpoint_trigger: CheckpointTrigger,
    ) -> (Self, JoinHandle<()>) {
        let (jobs, waiting) = mpsc::channel(JOBS_WAITING_MAX);
        let thread = std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || {
                WriterThread { db: Rc::new(db), seal, index, next_delivery, commits }.run(waiting, &checkpoint_trigger);
            })
            .expect("a thread can be started");
        (Self { jobs }, thread)
    }

    /// Runs a job inside the next transaction and returns once it is durable.
    ///
    /// A job either leaves nothing half done or returns an SQL error, which
    /// rolls back the whole transaction.
    pub async fn write<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut WriteTransaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        self.send(WritePriority::First, job).await
    }

    /// Runs a job that nobody waits for: jobs of [`Writer::write`] go first.
    pub async fn write_later<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut WriteTransaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        self.send(WritePriority::Later, job).await
    }

    async fn send<T: Send + 'static>(
        &self,
        priority: WritePriority,
        job: impl FnOnce(&mut WriteTransaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let job = Box::new(AnsweredJob { job: Some(job), value: None, answer });
        self.jobs.send(WriterMessage::Job(priority, job)).await.map_err(|_| closed_error())?;
        answered.await.map_err(|_| closed_error())?
    }

    /// Begins a copy of the store into this empty database, and gives up one that
    /// is under way.
    pub async fn begin_copy(&self, to: Connection) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        self.jobs.send(WriterMessage::Copy(CopyRequest::Begin { to, answer })).await.map_err(|_| closed_error())?;
        answered.await.map_err(|_| closed_error())?
    }

    /// Copies some more pages, after the jobs that wait.
    pub async fn step_copy(&self, pages: i32) -> Result<CopyStep> {
        let (answer, answered) = oneshot::channel();
        self.jobs.send(WriterMessage::Copy(CopyRequest::Step { pages, answer })).await.map_err(|_| closed_error())?;
        answered.await.map_err(|_| closed_error())?
    }

    /// Gives up the copy that is under way, if the writer can be told without waiting:
    /// otherwise the next copy ends it, or the end of the store.
    pub fn end_copy(&self) {
        let _ = self.jobs.try_send(WriterMessage::Copy(CopyRequest::End));
    }
}

fn closed_error() -> Error {
    Error::Unavailable("it has been closed".into())
}

/// What the writer's thread works with.
struct WriterThread {
    // Shared with the copy that is under way, on the same thread.
    db: Rc<Connection>,
    seal: Seal,
    index: Arc<RwLock<CatalogIndex>>,
    next_delivery: i64,
    commits: Arc<CommitMetrics>,
}

/// The jobs of one transaction, and what follows from its commit.
struct WriteBatch {
    jobs: Vec<Box<dyn WriteJob>>,
    after_commit: Vec<IndexUpdate>,
    counts: Vec<CountChange>,
    growth: IdMap<TenantId, UsageGrowth>,
    /// Time that the transaction took so far, without that of other threads.
    took: Duration,
    outcome: Result<()>,
}

impl WriteBatch {
    /// Returns the size of the data of the events that are accepted.
    fn event_bytes(&self) -> u64 {
        let accepted = self.counts.iter().map(|change| match change {
            CountChange::Stored { accepted, .. } => accepted.data_bytes.unsigned_abs(),
            CountChange::Waiting { .. } => 0,
        });
        accepted.sum()
    }
}

impl WriterThread {
    fn run(mut self, mut waiting: mpsc::Receiver<JobMessage>, checkpoint_trigger: &CheckpointTrigger) {
        let mut queue = JobQueue::default();
        while queue.wait(&mut waiting) {
            if queue.has_jobs() {
                self.commit_waiting(&mut queue, &mut waiting, checkpoint_trigger);
            }
            match queue.take_copy() {
                Some(CopyRequest::Begin { to, answer }) => {
                    checkpoint_trigger.set_copying(true);
                    self.copy(to, answer, &mut queue, &mut waiting, checkpoint_trigger);
                    checkpoint_trigger.set_copying(false);
                }
                Some(CopyRequest::Step { answer, .. }) => {
                    let _ = answer.send(Err(Error::Unavailable("no copy of the store is under way".into())));
                }
                Some(CopyRequest::End) | None => {}
            }
        }
        // What stays in the log is made durable once more by the next start.
        if let Err(problem) = self.db.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)") {
            error!("checkpoint of the write-ahead log failed while closing the store: {}", failure_of(&problem));
        }
    }

    /// Commits the jobs that wait, and those that come meanwhile. Returns how many.
    fn commit_waiting(
        &mut self,
        queue: &mut JobQueue,
        waiting: &mut mpsc::Receiver<JobMessage>,
        checkpoint_trigger: &CheckpointTrigger,
    ) -> usize {
        let mut budget = JobBudget::of_transaction();
        let mut batch = self.begin(queue.take(&mut budget));
        for _ in 0..YIELDS_MAX {
            std::thread::yield_now();
            queue.drain(waiting);
            let more = queue.take(&mut budget);
            if more.is_empty() {
                break;
            }
            self.apply(&mut batch, more);
        }
        let (count, event_bytes) = (batch.jobs.len(), batch.event_bytes());
        let took = self.commit(batch);
        checkpoint_trigger.jobs_written(count, event_bytes, took);
        count
    }

    /// Copies the store between commits, a step for each request. Returns when the
    /// copy is complete, has failed or is given up.
    fn copy(
        &mut self,
        mut to: Connection,
        answer: oneshot::Sender<Result<()>>,
        queue: &mut JobQueue,
        waiting: &mut mpsc::Receiver<JobMessage>,
        checkpoint_trigger: &CheckpointTrigger,
    ) {
        let from = self.db.clone();
        let copy = match Backup::new(&from, &mut to) {
            Ok(copy) => copy,
            Err(problem) => return drop(answer.send(Err(copy_steps::copy_failure(&problem)))),
        };
        let _ = answer.send(Ok(()));
        let mut jobs = 0;
        while queue.wait(waiting) {
            if queue.has_jobs() {
                jobs += self.commit_waiting(queue, waiting, checkpoint_trigger);
            }
            match queue.take_copy() {
                None => {}
                Some(CopyRequest::Step { pages, answer }) => {
                    let step = copy_steps::step(&from, &copy, pages, std::mem::take(&mut jobs));
                    let is_over = step.as_ref().map_or(true, |step| step.end.is_some());
                    if is_over {
                        // The copy's file is closed before anyone is told.
                        drop(copy);
                        drop(to);
                        return drop(answer.send(step));
                    }
                    let _ = answer.send(step);
                }
                Some(CopyRequest::End) => return,
                Some(begin @ CopyRequest::Begin { .. }) => return queue.put_back_copy(begin),
            }
        }
    }

    /// Begins a transaction with its first jobs.
    fn begin(&mut self, jobs: Vec<Box<dyn WriteJob>>) -> WriteBatch {
        let began = Instant::now();
        let outcome = outcome_of(|| execute(&self.db, "BEGIN IMMEDIATE"));
        let mut batch = WriteBatch {
            jobs: Vec::new(),
            after_commit: Vec::new(),
            counts: Vec::new(),
            growth: IdMap::default(),
            took: began.elapsed(),
            outcome,
        };
        self.apply(&mut batch, jobs);
        batch
    }

    /// Applies more jobs inside the transaction. Once one has failed, the others
    /// only wait for the outcome.
    fn apply(&mut self, batch: &mut WriteBatch, more: Vec<Box<dyn WriteJob>>) {
        let began = Instant::now();
        let WriteBatch { jobs, after_commit, counts, growth, took, outcome } = batch;
        let applied = jobs.len();
        jobs.extend(more);
        if outcome.is_ok() {
            *outcome = outcome_of(|| {
                for job in &mut jobs[applied..] {
                    let mut transaction = WriteTransaction {
                        db: &self.db,
                        seal: &self.seal,
                        index: &self.index,
                        next_delivery: &mut self.next_delivery,
                        after_commit: &mut *after_commit,
                        counts: &mut *counts,
                        growth: &mut *growth,
                        operational_events: Vec::new(),
                    };
                    job.apply(&mut transaction)?;
                }
                Ok(())
            });
        }
        *took += began.elapsed();
    }

    /// Commits the transaction, or rolls it back if a job failed, and tells the
    /// callers of its jobs. Returns how long the whole transaction took.
    fn commit(&mut self, batch: WriteBatch) -> Duration {
        let began = Instant::now();
        let WriteBatch { jobs, after_commit, counts, took, outcome, .. } = batch;
        let outcome = outcome.and_then(|()| {
            outcome_of(|| {
                update_stored(&self.db, &counts)?;
                execute(&self.db, "COMMIT")
            })
        });
        let took = took + began.elapsed();
        match &outcome {
            Ok(()) => {
                self.commits.record_commit(jobs.len(), took);
                let mut index = self.index.write();
                for count_change in counts {
                    match count_change {
                        CountChange::Waiting { endpoint, more } => index.count_waiting(endpoint, more),
                        CountChange::Stored { tenant, more, .. } => index.count_stored(tenant, more),
                    }
                }
                after_commit.into_iter().for_each(|change| change(&mut index));
            }
            Err(failure) => {
                self.commits.count_rolled_back(jobs.len());
                error!("write batch rolled back: {failure}");
                // SQLite rolls back by itself after some errors; this then fails.
                let _ = self.db.execute_batch("ROLLBACK");
            }
        }
        for job in jobs {
            job.finish(outcome.clone());
        }
        took
    }
}

/// Runs a part of a transaction; a panic in it is a failure like any other.
fn outcome_of(part: impl FnOnce() -> rusqlite::Result<()>) -> Result<()> {
    match catch_unwind(AssertUnwindSafe(part)) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(problem)) => Err(failure_of(&problem)),
        Err(_) => Err(Error::Unavailable("a write panicked; see the log".into())),
    }
}

fn execute(db: &Connection, sql: &str) -> rusqlite::Result<()> {
    db.prepare_cached(sql)?.execute([]).map(drop)
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// Notes when it is applied and finished, and sends another job meanwhile.
    struct NotingJob {
        notes: Arc<Mutex<Vec<&'static str>>>,
        next: Option<(mpsc::Sender<JobMessage>, Box<dyn WriteJob>)>,
    }

    impl WriteJob for NotingJob {
        fn apply(&mut self, _: &mut WriteTransaction<'_>) -> rusqlite::Result<()> {
            self.notes.lock().push("applied");
            if let Some((jobs, next)) = self.next.take() {
                assert!(jobs.try_send(WriterMessage::Job(WritePriority::Later, next)).is_ok());
            }
            Ok(())
        }
        fn finish(self: Box<Self>, committed: Result<()>) {
            self.notes.lock().push(if committed.is_ok() { "committed" } else { "rolled back" });
        }
    }

    #[test]
    fn a_job_that_comes_while_others_are_applied_is_part_of_their_commit() {
        let notes = Arc::new(Mutex::new(Vec::new()));
        let (jobs, waiting) = mpsc::channel(JOBS_WAITING_MAX);
        let second = NotingJob { notes: notes.clone(), next: None };
        let first = NotingJob { notes: notes.clone(), next: Some((jobs.clone(), Box::new(second))) };
        jobs.try_send(WriterMessage::Job(WritePriority::First, Box::new(first))).ok().unwrap();
        drop(jobs);
        let thread = WriterThread {
            db: Rc::new(Connection::open_in_memory().unwrap()),
            seal: Seal::from_key([1; 32]),
            index: Arc::default(),
            next_delivery: 1,
            commits: Arc::default(),
        };
        thread.run(waiting, &CheckpointTrigger::default());
        assert_eq!(*notes.lock(), ["applied", "applied", "committed", "committed"]);
    }
}
