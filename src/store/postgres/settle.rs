//! Settles deliveries: an attempt and the state it led to are one write.
//!
//! Deliveries that succeed, and those that are tried again later, are written
//! by two statements, many at a time. Settlements that need more (a death, a
//! pause, a delivery that a person changed meanwhile) are written one by one
//! in the same transaction: [`super::settle_one`].

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::PostgresState;
use super::claims::{self, ClaimKey};
use super::endpoint::store_health;
use super::group_commit::{BatchJob, BatchResult};
use super::rows::{delivery_no, millis};
use super::settle_batch::{
    EndedRow, HOLD_NODE, LOCK_LANES, RecheckRow, RetryBatch, RetryRow, SettleBatch, SettleRow, WaitingRow,
    write_delivered, write_rechecks, write_retried,
};
use super::transaction::{PgTransaction, bound, with_timeout};
use super::unit_of_work::{CommitEffects, UnitOfWork};
use super::{lane, settle_one};
use crate::model::attempt::Attempt;
use crate::model::delivery::{DeliveryState, Progress};
use crate::model::health::EndpointHealth;
use crate::model::next_state::NextState;
use crate::model::shard::Lease;
use crate::store::plan::endpoint::is_only_health;
use crate::store::plan::lane::{HeadSearch, LaneEffects, LaneMember, search_head};
use crate::store::progress_columns::ProgressColumns;
use crate::store::{Claim, ClaimOutcome, Error, Result, SettleEffects, Settlement};

/// A settlement that waits to be written.
pub struct SettleJob {
    /// Lease under which it is written.
    pub lease: Lease,
    /// The settlement to write.
    pub settlement: Settlement,
    /// Channel for the answer to the caller.
    pub answer: oneshot::Sender<Result<SettleEffects>>,
}

impl SettleJob {
    /// The epoch of its lease, as the tables hold it.
    fn epoch(&self) -> i64 {
        self.lease.epoch.0 as i64
    }
}

/// Largest number of settlements written one by one in a transaction.
const ONE_BY_ONE: usize = 64;

impl BatchJob for SettleJob {
    const CONCURRENT_BATCHES: usize = 2;
    const BATCH_SIZE_MAX: usize = 512;

    fn size(&self) -> usize {
        1
    }

    async fn write(shared: &Arc<PostgresState>, mut jobs: Vec<Self>) -> BatchResult<Self> {
        let later = defer_repeated(&mut jobs);
        let outcome = settle(shared, &jobs).await;
        let is_written = outcome.is_ok();
        match outcome {
            Ok(answers) => {
                for (job, answer) in jobs.into_iter().zip(answers) {
                    if matches!(answer, Err(Error::Stale(_))) {
                        shared.status.count_stale_write();
                    }
                    let _ = job.answer.send(answer);
                }
            }
            Err(problem) => {
                for job in jobs {
                    let _ = job.answer.send(Err(problem.clone()));
                }
            }
        }
        BatchResult { is_written, later }
    }
}

/// Takes out the jobs that have to wait for a later transaction: one
/// transaction settles a delivery once, and holds only a few slow settlements.
fn defer_repeated(jobs: &mut Vec<SettleJob>) -> Vec<SettleJob> {
    let mut seen = HashSet::new();
    let mut slow = 0;
    let mut later = Vec::new();
    let mut now = Vec::with_capacity(jobs.len());
    for job in jobs.drain(..) {
        slow += usize::from(matches!(SettlePath::of(&job.settlement), SettlePath::One));
        if seen.insert(job.settlement.id) && slow <= ONE_BY_ONE {
            now.push(job);
        } else {
            later.push(job);
        }
    }
    *jobs = now;
    later
}

/// The way a settlement is written: with others of its kind, or alone.
enum SettlePath<'a> {
    /// With others that were delivered.
    Delivered(&'a Attempt, &'a Progress),
    /// With others that wait again.
    Retry { attempt: &'a Attempt, progress: &'a Progress, due_at: Timestamp, expiry_check_at: Option<Timestamp> },
    /// With others whose expiry is checked again.
    RecheckExpiry,
    /// By its plan, alone.
    One,
}

impl<'a> SettlePath<'a> {
    fn of(settlement: &'a Settlement) -> Self {
        match &settlement.outcome {
            ClaimOutcome::Attempted { attempt, next: NextState::Delivered, progress, update, .. }
                if is_only_health(update) =>
            {
                Self::Delivered(attempt, progress)
            }
            ClaimOutcome::Attempted {
                attempt,
                next: NextState::Waiting { due_at },
                progress,
                update,
                expiry_check_at,
                ..
            } if is_only_health(update) => {
                Self::Retry { attempt, progress, due_at: *due_at, expiry_check_at: *expiry_check_at }
            }
            ClaimOutcome::RecheckExpiry { .. } => Self::RecheckExpiry,
            _ => Self::One,
        }
    }
}

/// Returns whether an answer changes its endpoint in the catalog.
fn changes_endpoint(settlement: &Settlement) -> bool {
    matches!(&settlement.outcome, ClaimOutcome::Attempted { update, .. } if !is_only_health(update))
}

/// Settles all jobs in one transaction; returns their answers in order.
async fn settle(shared: &Arc<PostgresState>, jobs: &[SettleJob]) -> Result<Vec<Result<SettleEffects>>> {
    let tx = shared.connections.open().await?;
    let mut work = UnitOfWork::new(shared, &tx);
    let batch = SettleTransaction::of(jobs, shared.shard_leases.node());
    let Some((ended, waiting)) = batch.write(&mut work).await? else {
        drop(work);
        tx.roll_back().await;
        return Ok(jobs.iter().map(|job| Err(Error::Stale(job.lease.shard))).collect());
    };
    let mut answers = SettleAnswers::of(jobs, &batch.nos);
    answers.add_ended(&mut work, &ended).await?;
    answers.add_waiting(&work, &waiting);
    set_expiry_checks(&tx, batch.node, &mut answers).await?;
    for (place, job) in jobs.iter().enumerate() {
        if answers.all[place].is_none() {
            answers.all[place] = Some(settle_one::settle(&mut work, job.lease, &job.settlement).await?);
        }
    }
    let health = write_health(shared, &tx, jobs, &answers.all).await?;
    let done: CommitEffects = work.into_effects();
    tx.commit().await?;
    show_health(shared, health);
    shared.adopt(done).await;
    Ok(answers.all.into_iter().map(|answer| answer.expect("every job was settled")).collect())
}

/// The answers to the jobs of one transaction, as far as they are known.
struct SettleAnswers<'a> {
    jobs: &'a [SettleJob],
    /// Places of the jobs, by the numbers of their deliveries.
    places: HashMap<i64, usize>,
    all: Vec<Option<Result<SettleEffects>>>,
}

impl<'a> SettleAnswers<'a> {
    fn of(jobs: &'a [SettleJob], nos: &[i64]) -> Self {
        let places = nos.iter().enumerate().map(|(place, no)| (*no, place)).collect();
        Self { jobs, places, all: jobs.iter().map(|_| None).collect() }
    }

    /// Answers the jobs whose deliveries left the queue, and lets their lanes
    /// go on.
    async fn add_ended(&mut self, work: &mut UnitOfWork<'_>, ended: &[EndedRow]) -> Result<()> {
        let mut free = free_next(work.tx, ended).await?;
        for row in ended {
            let (place, endpoint) = (self.places[&row.no], row.endpoint);
            let job = &self.jobs[place];
            work.count_waiting(endpoint, job.lease.shard, -1);
            let mut settled = SettleEffects::default();
            match row.next.zip(row.is_next_dead) {
                None => {}
                Some((next, false)) => {
                    if let Some(claim) = free.remove(&next) {
                        work.becomes_due(endpoint, millis(claim.due_at));
                        settled.freed.push(claim);
                    }
                }
                Some((dead, true)) => {
                    let lane = row.lane.as_deref().expect("only a lane has a next member");
                    settled.freed = block_behind_dead(work, endpoint, lane, dead, job).await?;
                }
            }
            settled.operational_events = std::mem::take(&mut work.operational_events);
            self.all[place] = Some(Ok(settled));
        }
        Ok(())
    }

    /// Answers the jobs whose deliveries wait again.
    fn add_waiting(&mut self, work: &UnitOfWork<'_>, waiting: &[WaitingRow]) {
        for row in waiting {
            let place = self.places[&row.no];
            let ClaimOutcome::Attempted { next: NextState::Waiting { due_at }, .. } =
                self.jobs[place].settlement.outcome
            else {
                continue;
            };
            work.becomes_due(row.endpoint, millis(due_at));
            self.all[place] = Some(Ok(SettleEffects { due_again_at: Some(due_at), ..SettleEffects::default() }));
        }
    }
}

/// The jobs of one transaction, with their columns.
struct SettleTransaction<'a> {
    jobs: &'a [SettleJob],
    node: i64,
    nos: Vec<i64>,
    /// Endpoints of the settlements that are written one by one.
    one_by_one: Vec<Uuid>,
    delivered: SettleBatch,
    retried: SettleBatch,
    retries: RetryBatch,
}

impl<'a> SettleTransaction<'a> {
    fn of(jobs: &'a [SettleJob], node: i64) -> Self {
        let nos = jobs.iter().map(|job| delivery_no(job.settlement.id)).collect();
        let mut batch = Self {
            jobs,
            node,
            nos,
            one_by_one: Vec::new(),
            delivered: SettleBatch::default(),
            retried: SettleBatch::default(),
            retries: RetryBatch::default(),
        };
        jobs.iter().for_each(|job| batch.add(job));
        batch
    }

    fn add(&mut self, job: &SettleJob) {
        let settlement = &job.settlement;
        let row = |at, attempt, progress: &ProgressColumns| {
            SettleRow::of(delivery_no(settlement.id), job.epoch(), millis(at), attempt, progress)
        };
        match SettlePath::of(settlement) {
            SettlePath::Delivered(attempt, progress) => {
                self.delivered.push(row(settlement.now, attempt, &progress.into()));
            }
            SettlePath::Retry { attempt, progress, due_at, expiry_check_at } => {
                let progress = ProgressColumns::from(progress);
                self.retried.push(row(due_at, attempt, &progress));
                let ProgressColumns { last_delay, max_age, .. } = progress;
                self.retries.push(RetryRow { last_delay, max_age, expiry_check_at: expiry_check_at.map(millis) });
            }
            SettlePath::RecheckExpiry => {}
            SettlePath::One => self.one_by_one.push(settlement.endpoint.0),
        }
    }

    /// Begins the transaction, and writes the settlements that need no closer
    /// look. Returns the deliveries that left the queue and those that wait
    /// again, or nothing if this node was removed from the cluster.
    async fn write(&self, work: &mut UnitOfWork<'_>) -> Result<Option<(Vec<EndedRow>, Vec<WaitingRow>)>> {
        let (tx, begin) = (work.tx, work.shared.connections.begin_sql());
        let (me, all, these) = ([bound(&self.node)], [bound(&self.nos)], [bound(&self.one_by_one)]);
        let opening = async {
            tokio::join!(biased; with_timeout(tx.client().batch_execute(begin)), tx.query(HOLD_NODE.call(), &me))
        };
        let writing = async {
            tokio::join!(
                biased;
                tx.query(LOCK_LANES.call(), &all),
                write_delivered(tx, self.node, &self.delivered),
                write_retried(tx, self.node, &self.retried, &self.retries),
            )
        };
        tokio::pin!(writing);
        let changes_any = self.jobs.iter().any(|job| changes_endpoint(&job.settlement));
        let ((begun, held), written) = if changes_any || !self.one_by_one.is_empty() {
            (opening.await, None)
        } else {
            // One round trip is enough: a node that was removed owns no shard, so
            // nothing is written for it.
            let (opened, written) = tokio::join!(biased; opening, &mut writing);
            (opened, Some(written))
        };
        begun?;
        if held?.is_empty() {
            return Ok(None);
        }
        let (lanes, ended, waiting) = match written {
            Some(written) => written,
            // Lock in the order in which every change of an endpoint locks: the
            // catalog, endpoints, lanes.
            None => {
                if changes_any {
                    work.bump_catalog_version().await?;
                }
                if !self.one_by_one.is_empty() {
                    tx.query(include_str!("sql/lock_endpoints.sql"), &these).await?;
                }
                writing.await
            }
        };
        lanes?;
        Ok(Some((ended?, waiting?)))
    }
}

/// Reads the claims that their lanes set free, by their numbers.
async fn free_next(tx: &PgTransaction, ended: &[EndedRow]) -> Result<HashMap<i64, Claim>> {
    let free = ended.iter().filter(|row| row.is_next_dead == Some(false));
    let wanted: Vec<ClaimKey> =
        free.filter_map(|row| Some(ClaimKey { no: row.next?, event: row.next_event? })).collect();
    let found = claims::read(tx.client(), &wanted, usize::MAX).await?;
    Ok(found.claims.into_iter().map(|claim| (delivery_no(claim.id), claim)).collect())
}

/// Decides about a lane whose next member is dead: the lane waits behind it,
/// or moves past it.
async fn block_behind_dead(
    work: &mut UnitOfWork<'_>,
    endpoint: i64,
    lane: &str,
    dead: i64,
    job: &SettleJob,
) -> Result<Vec<Claim>> {
    let now = job.settlement.now;
    let skips_dead = lane::skips_dead(work.tx, endpoint).await?;
    let head = match search_head(Some((dead, Some(DeliveryState::Dead))), skips_dead) {
        HeadSearch::PassDead(no) => lane::pass(work, LaneMember { endpoint, lane, no }, now).await?,
        HeadSearch::Found(head) => head,
    };
    settle_one::lane_moved(work, LaneEffects::of_head(head), now).await
}

/// Writes the new times of expiry checks, and answers the jobs that asked for
/// them.
async fn set_expiry_checks(tx: &PgTransaction, node: i64, answers: &mut SettleAnswers<'_>) -> Result<()> {
    let row = |job: &SettleJob| match &job.settlement.outcome {
        ClaimOutcome::RecheckExpiry { progress, at } => {
            Some(RecheckRow::of(delivery_no(job.settlement.id), job.epoch(), progress, millis(*at)))
        }
        _ => None,
    };
    let rows = answers.jobs.iter().filter_map(row).collect();
    for no in write_rechecks(tx, node, &rows).await? {
        let place = answers.places[&no];
        answers.all[place] = Some(Ok(SettleEffects::default()));
    }
    Ok(())
}

/// Stores the health of the endpoints whose answers changed it.
async fn write_health<'a>(
    shared: &PostgresState,
    tx: &PgTransaction,
    jobs: &'a [SettleJob],
    answers: &[Option<Result<SettleEffects>>],
) -> Result<Vec<(crate::model::id::EndpointId, &'a EndpointHealth)>> {
    let mut all = Vec::new();
    let mut nos = Vec::new();
    {
        let index = shared.index();
        for (job, answer) in jobs.iter().zip(answers) {
            if let (ClaimOutcome::Attempted { update, .. }, Some(Ok(_))) = (&job.settlement.outcome, answer)
                && is_only_health(update)
                && let Some(health) = update.health.as_deref()
                && let Some((no, _)) = index.endpoint_entry(job.settlement.endpoint)
            {
                nos.push((no, health));
                all.push((job.settlement.endpoint, health));
            }
        }
    }
    if !nos.is_empty() {
        store_health(tx, &nos).await?;
    }
    Ok(all)
}

fn show_health(shared: &PostgresState, all: Vec<(crate::model::id::EndpointId, &EndpointHealth)>) {
    let mut index = shared.index_mut();
    for (id, health) in all {
        if index.endpoint_entry(id).is_some_and(|(_, known)| health.is_after(&known.health)) {
            index.show_health(id, health.clone());
        }
    }
}
