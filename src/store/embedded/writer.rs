//! The one writer: commits all waiting jobs as one transaction.
//!
//! Jobs queue up while a commit is being synced; the next transaction takes
//! all of them. There is no window to wait for: under load batches form by
//! themselves, and a lone job is committed at once. Before a transaction begins,
//! threads that are ready to run go first, for as long as they bring more jobs:
//! on busy cores that halves the number of commits, and on idle ones it takes a
//! microsecond. Jobs that somebody waits
//! for, such as accepting an event, go before jobs that nobody waits for, such
//! as settlements; a transaction takes up to the same number of each.
//!
//! Invariant: a job's caller is told of success only after its commit is on
//! disk and the catalog in memory shows it.

use parking_lot::RwLock;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};
use tracing::error;

use super::checkpoint::CheckpointTrigger;
use super::failure::failure_of;
use crate::metrics::CommitMetrics;
use crate::model::id::TenantId;
use crate::model::limits::TenantUsage;
use crate::model::operational_event::OperationalEventType;
use crate::model::tenant::Tenant;
use crate::store::catalog_index::CatalogIndex;
use crate::store::seal::Seal;
use crate::store::{Error, Result};

/// Largest number of jobs in one transaction, so that the first of them does
/// not wait for a flood of others.
const JOBS_PER_COMMIT: usize = 1_024;
/// Largest number of low-priority jobs in one transaction. It is as large as
/// the number of the others: most are settlements, and if a transaction could
/// take fewer of them than events, deliveries would fall behind what is
/// accepted for as long as the load lasts.
const LATER_PER_COMMIT: usize = JOBS_PER_COMMIT;
/// Number of jobs that may queue up before callers have to wait.
const JOBS_WAITING_MAX: usize = 4_096;

/// Largest number of times that the writer lets other threads run first.
const YIELDS_MAX: usize = 8;

const DAY_MS: i64 = 86_400_000;

type IndexUpdate = Box<dyn FnOnce(&mut CatalogIndex) + Send>;

/// Whether a caller waits for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WritePriority {
    /// Somebody waits for the job.
    First,
    /// Nobody waits; the job only has to be written.
    Later,
}

/// A job for the writer.
trait WriteJob: Send {
    /// Writes inside the transaction.
    fn apply(&mut self, transaction: &mut WriteTransaction<'_>) -> rusqlite::Result<()>;
    /// Answers the caller after the commit or its failure.
    fn finish(self: Box<Self>, committed: Result<()>);
}

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
    growth: &'a mut HashMap<TenantId, UsageGrowth>,
    /// Types of the operational events that this job wrote.
    pub operational_events: Vec<OperationalEventType>,
}

/// A change of the counters in memory, applied once it is durable.
#[derive(Clone, Copy)]
enum CountChange {
    /// Change in the number of deliveries that wait for an endpoint.
    Waiting { endpoint: i64, more: i64 },
    /// Change in the bytes that a tenant's events of a day take up.
    Stored { tenant: i64, day: i64, more: i64 },
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
        self.counts.push(CountChange::Stored { tenant, day: accepted_ms.div_euclid(DAY_MS), more });
    }

    /// Reserves endpoints and bytes of settings, if the tenant's limits allow it.
    pub fn grow_settings(&mut self, tenant: &TenantId, endpoints: u64, bytes: i64) -> Result<()> {
        let Some((usage, known)) = self.usage(tenant) else { return Err(Error::NotFound("tenant")) };
        usage.admits_settings(tenant, &known.limits, endpoints, bytes).map_err(Error::OverLimit)?;
        let growth = self.growth.entry(tenant.clone()).or_default();
        growth.endpoints += endpoints;
        growth.settings_bytes += bytes;
        Ok(())
    }

    /// Reserves one more token, if the tenant's limits allow it.
    pub fn grow_tokens(&mut self, tenant: &TenantId) -> Result<()> {
        let Some((usage, known)) = self.usage(tenant) else { return Err(Error::NotFound("tenant")) };
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
    jobs: mpsc::Sender<(WritePriority, Box<dyn WriteJob>)>,
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
            .spawn(move || run(&db, &seal, &index, next_delivery, &commits, &checkpoint_trigger, waiting))
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
        let closed = || Error::Unavailable("it has been closed".into());
        let job = Box::new(AnsweredJob { job: Some(job), value: None, answer });
        self.jobs.send((priority, job)).await.map_err(|_| closed())?;
        answered.await.map_err(|_| closed())?
    }
}

/// Jobs that wait for the next transaction, by priority.
#[derive(Default)]
struct WriteQueue {
    first: VecDeque<Box<dyn WriteJob>>,
    later: VecDeque<Box<dyn WriteJob>>,
}

impl WriteQueue {
    /// Waits until there is a job. Returns false when there will be none.
    fn wait(&mut self, waiting: &mut mpsc::Receiver<(WritePriority, Box<dyn WriteJob>)>) -> bool {
        if self.first.is_empty() && self.later.is_empty() {
            match waiting.blocking_recv() {
                Some(job) => self.push(job),
                None => return false,
            }
        }
        self.drain(waiting);
        for _ in 0..YIELDS_MAX {
            let before = self.len();
            std::thread::yield_now();
            self.drain(waiting);
            if self.len() == before {
                break;
            }
        }
        true
    }

    /// Takes over the jobs that have arrived.
    fn drain(&mut self, waiting: &mut mpsc::Receiver<(WritePriority, Box<dyn WriteJob>)>) {
        while self.first.len() < JOBS_PER_COMMIT
            && let Ok(job) = waiting.try_recv()
        {
            self.push(job);
        }
    }

    fn len(&self) -> usize {
        self.first.len() + self.later.len()
    }

    fn push(&mut self, (priority, job): (WritePriority, Box<dyn WriteJob>)) {
        match priority {
            WritePriority::First => self.first.push_back(job),
            WritePriority::Later => self.later.push_back(job),
        }
    }

    /// Takes the jobs of the next transaction.
    fn take(&mut self) -> Vec<Box<dyn WriteJob>> {
        let (first, later) = (self.first.len().min(JOBS_PER_COMMIT), self.later.len().min(LATER_PER_COMMIT));
        self.first.drain(..first).chain(self.later.drain(..later)).collect()
    }
}

fn run(
    db: &Connection,
    seal: &Seal,
    index: &Arc<RwLock<CatalogIndex>>,
    mut next_delivery: i64,
    commits: &CommitMetrics,
    checkpoint_trigger: &CheckpointTrigger,
    mut waiting: mpsc::Receiver<(WritePriority, Box<dyn WriteJob>)>,
) {
    let mut queue = WriteQueue::default();
    while queue.wait(&mut waiting) {
        let jobs = queue.take();
        let count = jobs.len();
        commit(db, seal, index, &mut next_delivery, commits, jobs);
        checkpoint_trigger.jobs_written(count);
    }
    // What stays in the log is made durable once more by the next start.
    if let Err(problem) = db.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)") {
        error!("checkpoint of the write-ahead log failed while closing the store: {}", failure_of(&problem));
    }
}

fn commit(
    db: &Connection,
    seal: &Seal,
    index: &Arc<RwLock<CatalogIndex>>,
    next_delivery: &mut i64,
    commits: &CommitMetrics,
    mut jobs: Vec<Box<dyn WriteJob>>,
) {
    let began = Instant::now();
    let (mut after_commit, mut count_changes, mut growth) = (Vec::new(), Vec::new(), HashMap::new());
    let attempt = catch_unwind(AssertUnwindSafe(|| -> rusqlite::Result<()> {
        db.execute_batch("BEGIN IMMEDIATE")?;
        for job in &mut jobs {
            let mut transaction = WriteTransaction {
                db,
                seal,
                index,
                next_delivery,
                after_commit: &mut after_commit,
                counts: &mut count_changes,
                growth: &mut growth,
                operational_events: Vec::new(),
            };
            job.apply(&mut transaction)?;
        }
        update_stored(db, &count_changes)?;
        db.execute_batch("COMMIT")
    }));
    let outcome = match attempt {
        Ok(Ok(())) => Ok(()),
        Ok(Err(problem)) => Err(failure_of(&problem)),
        Err(_) => Err(Error::Unavailable("a write panicked; see the log".into())),
    };
    match &outcome {
        Ok(()) => {
            commits.committed(jobs.len(), began.elapsed());
            let mut index = index.write();
            for count_change in count_changes {
                match count_change {
                    CountChange::Waiting { endpoint, more } => index.count_waiting(endpoint, more),
                    CountChange::Stored { tenant, more, .. } => index.count_stored(tenant, more),
                }
            }
            after_commit.into_iter().for_each(|change| change(&mut index));
        }
        Err(failure) => {
            commits.failed(jobs.len());
            error!("write batch rolled back: {failure}");
            // SQLite rolls back by itself after some errors; this then fails.
            let _ = db.execute_batch("ROLLBACK");
        }
    }
    for job in jobs {
        job.finish(outcome.clone());
    }
}

/// Adds up what events take up: one row for each tenant and day that this
/// transaction touched, however many events it holds.
fn update_stored(db: &Connection, count_changes: &[CountChange]) -> rusqlite::Result<()> {
    let mut days: BTreeMap<(i64, i64), i64> = BTreeMap::new();
    for count_change in count_changes {
        if let CountChange::Stored { tenant, day, more } = count_change {
            *days.entry((*tenant, *day)).or_insert(0) += more;
        }
    }
    for ((tenant, day), more) in days {
        let sql = "INSERT INTO stored (tenant, day, bytes) VALUES (?, ?, ?)
                   ON CONFLICT (tenant, day) DO UPDATE SET bytes = bytes + excluded.bytes RETURNING bytes";
        let left: i64 = db.prepare_cached(sql)?.query_row((tenant, day, more), |row| row.get(0))?;
        if left <= 0 && more < 0 {
            db.prepare_cached("DELETE FROM stored WHERE tenant = ? AND day = ?")?.execute((tenant, day))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl WriteJob for Nothing {
        fn apply(&mut self, _: &mut WriteTransaction<'_>) -> rusqlite::Result<()> {
            Ok(())
        }
        fn finish(self: Box<Self>, _: Result<()>) {}
    }

    #[test]
    fn what_somebody_waits_for_goes_before_what_only_has_to_be_kept() {
        let (jobs, mut waiting) = mpsc::channel(JOBS_WAITING_MAX);
        for n in 0..JOBS_WAITING_MAX {
            let priority = if n % 100 == 99 { WritePriority::First } else { WritePriority::Later };
            jobs.try_send((priority, Box::new(Nothing) as Box<dyn WriteJob>)).unwrap();
        }
        let mut queue = WriteQueue::default();
        assert!(queue.wait(&mut waiting));
        let first = JOBS_WAITING_MAX / 100;
        assert_eq!(queue.take().len(), first + LATER_PER_COMMIT, "all of the first, and as many others as fit");
        // No job is lost.
        drop(jobs);
        let mut left = 0;
        while queue.wait(&mut waiting) {
            left += queue.take().len();
        }
        assert_eq!(left, JOBS_WAITING_MAX - first - LATER_PER_COMMIT);
    }
}
