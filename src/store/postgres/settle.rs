//! Settles deliveries: an attempt and the state it led to are one write.
//!
//! Deliveries that succeed, and those that are tried again later, are written
//! by two statements, many at a time. Settlements that need more (a death, a
//! pause, a delivery that a person changed meanwhile) are written one by one
//! in the same transaction: [`super::settle_one`].

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_postgres::Row;
use uuid::Uuid;

use super::PostgresState;
use super::claims::{self, ClaimKey};
use super::endpoint::store_health;
use super::group_commit::{BatchJob, BatchResult};
use super::rows::{delivery_no, millis};
use super::stored_functions::{HOLD_NODE, LOCK_LANES, SETTLE_DELIVERED, SETTLE_RETRY};
use super::transaction::{PgTransaction, bind, bound, with_timeout};
use super::unit_of_work::{CommitEffects, UnitOfWork};
use super::{lane, settle_one};
use crate::model::attempt::Attempt;
use crate::model::delivery::{DeliveryState, Progress};
use crate::model::health::EndpointHealth;
use crate::model::next_state::NextState;
use crate::model::shard::Lease;
use crate::store::plan::endpoint::is_only_health;
use crate::store::plan::lane::{HeadSearch, LaneMember, search_head};
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
                        shared.count_stale(1);
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

/// How a settlement is written.
enum SettlePath<'a> {
    Delivered(&'a Attempt, &'a Progress),
    Retry(&'a Attempt, &'a Progress),
    LookAgain(&'a Progress),
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
            ClaimOutcome::Attempted { attempt, next: NextState::Waiting { .. }, progress, update, .. }
                if is_only_health(update) =>
            {
                Self::Retry(attempt, progress)
            }
            ClaimOutcome::RecheckExpiry { progress, .. } => Self::LookAgain(progress),
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
    let tx = PgTransaction::open(&shared.pool).await?;
    let mut work = UnitOfWork::new(shared, &tx);
    let batch = SettleBatch::of(jobs, shared.shard_leases.node());
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
    let done: CommitEffects = work.end();
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
    async fn add_ended(&mut self, work: &mut UnitOfWork<'_>, ended: &[Row]) -> Result<()> {
        let mut free = free_next(work.tx, ended).await?;
        for row in ended {
            let (no, endpoint): (i64, i64) = (row.get(0), row.get(1));
            let place = self.places[&no];
            let job = &self.jobs[place];
            work.count_waiting(endpoint, job.lease.shard, -1);
            let mut settled = SettleEffects::default();
            match row.get::<_, Option<i64>>(3).zip(row.get::<_, Option<bool>>(4)) {
                None => {}
                Some((next, false)) => {
                    if let Some(claim) = free.remove(&next) {
                        work.becomes_due(endpoint, millis(claim.due_at));
                        settled.freed.push(claim);
                    }
                }
                Some((dead, true)) => {
                    let lane: String = row.get(2);
                    settled.freed = block_behind_dead(work, endpoint, &lane, dead, job).await?;
                }
            }
            settled.operational_events = std::mem::take(&mut work.operational_events);
            self.all[place] = Some(Ok(settled));
        }
        Ok(())
    }

    /// Answers the jobs whose deliveries wait again.
    fn add_waiting(&mut self, work: &UnitOfWork<'_>, waiting: &[Row]) {
        for row in waiting {
            let place = self.places[&row.get::<_, i64>(0)];
            let ClaimOutcome::Attempted { next: NextState::Waiting { due_at }, .. } =
                self.jobs[place].settlement.outcome
            else {
                continue;
            };
            work.becomes_due(row.get(1), millis(due_at));
            self.all[place] = Some(Ok(SettleEffects { due_again_at: Some(due_at), ..SettleEffects::default() }));
        }
    }
}

/// The jobs of one transaction, with their columns.
struct SettleBatch<'a> {
    jobs: &'a [SettleJob],
    node: i64,
    nos: Vec<i64>,
    /// Endpoints of the settlements that are written one by one.
    closely: Vec<Uuid>,
    delivered: SettleColumns,
    retried: SettleColumns,
}

impl<'a> SettleBatch<'a> {
    fn of(jobs: &'a [SettleJob], node: i64) -> Self {
        let delivered = SettleColumns::build_columns(jobs, |kind| match kind {
            SettlePath::Delivered(attempt, progress) => Some((attempt, progress)),
            _ => None,
        });
        let retried = SettleColumns::build_columns(jobs, |kind| match kind {
            SettlePath::Retry(attempt, progress) => Some((attempt, progress)),
            _ => None,
        });
        let closely = jobs.iter().filter(|job| matches!(SettlePath::of(&job.settlement), SettlePath::One));
        let closely = closely.map(|job| job.settlement.endpoint.0).collect();
        let nos = jobs.iter().map(|job| delivery_no(job.settlement.id)).collect();
        Self { jobs, node, nos, closely, delivered, retried }
    }

    /// Begins the transaction, and writes the settlements that need no closer
    /// look. Returns the deliveries that left the queue and those that wait
    /// again, or nothing if this node was removed from the cluster.
    async fn write(&self, work: &mut UnitOfWork<'_>) -> Result<Option<(Vec<Row>, Vec<Row>)>> {
        let (tx, begin) = (work.tx, &work.shared.begin);
        let (me, all, these) = ([bound(&self.node)], [bound(&self.nos)], [bound(&self.closely)]);
        let opening = async {
            tokio::join!(biased; with_timeout(tx.client().batch_execute(begin)), tx.query(HOLD_NODE.call(), &me))
        };
        let writing = async {
            tokio::join!(
                biased;
                tx.query(LOCK_LANES.call(), &all),
                self.delivered.write_delivered(tx, self.node),
                self.retried.write_retried(tx, self.node),
            )
        };
        tokio::pin!(writing);
        let changes_any = self.jobs.iter().any(|job| changes_endpoint(&job.settlement));
        let ((begun, held), written) = if changes_any || !self.closely.is_empty() {
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
                if !self.closely.is_empty() {
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
async fn free_next(tx: &PgTransaction, ended: &[Row]) -> Result<HashMap<i64, Claim>> {
    let free = ended.iter().filter(|row| row.get::<_, Option<bool>>(4) == Some(false));
    let wanted: Vec<ClaimKey> = free.map(|row| ClaimKey { no: row.get(3), event: row.get(5) }).collect();
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
    settle_one::lane_moved(work, head, now).await
}

/// Writes the new times of expiry checks, and answers the jobs that asked for
/// them.
async fn set_expiry_checks(tx: &PgTransaction, node: i64, answers: &mut SettleAnswers<'_>) -> Result<()> {
    let asked: Vec<(&SettleJob, &Progress)> = answers
        .jobs
        .iter()
        .filter_map(|job| match SettlePath::of(&job.settlement) {
            SettlePath::LookAgain(progress) => Some((job, progress)),
            _ => None,
        })
        .collect();
    if asked.is_empty() {
        return Ok(());
    }
    let nos: Vec<i64> = asked.iter().map(|(job, _)| delivery_no(job.settlement.id)).collect();
    let epochs: Vec<i64> = asked.iter().map(|(job, _)| job.lease.epoch.0 as i64).collect();
    let begun: Vec<i64> = asked.iter().map(|(_, progress)| progress.begun_at.map_or(0, millis)).collect();
    let attempts: Vec<i32> = asked.iter().map(|(_, progress)| progress.attempts as i32).collect();
    let times: Vec<i64> = asked
        .iter()
        .map(|(job, _)| match &job.settlement.outcome {
            ClaimOutcome::RecheckExpiry { at, .. } => millis(*at),
            _ => 0,
        })
        .collect();
    for row in tx.query(include_str!("sql/look_again.sql"), bind![node, nos, epochs, begun, attempts, times]).await? {
        let place = answers.places[&row.get::<_, i64>(0)];
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

/// Settlements of one kind as columns.
#[derive(Default)]
struct SettleColumns {
    no: Vec<i64>,
    epoch: Vec<i64>,
    begun_at: Vec<i64>,
    /// Time at which it finished, or is due again.
    at: Vec<i64>,
    record: Vec<String>,
    attempts: Vec<i32>,
    attempts_before: Vec<i32>,
    age_from: Vec<Option<i64>>,
    held_before: Vec<i64>,
    not_found: Vec<i32>,
    no_such_name: Vec<i32>,
    forbidden_target: Vec<i32>,
    started_at: Vec<i64>,
    last_delay: Vec<Option<i64>>,
    max_age: Vec<Option<i64>>,
    expiry_check_at: Vec<Option<i64>>,
}

impl SettleColumns {
    fn build_columns<'a>(
        jobs: &'a [SettleJob],
        pick: impl Fn(SettlePath<'a>) -> Option<(&'a Attempt, &'a Progress)>,
    ) -> Self {
        let mut rows = Self::default();
        for job in jobs {
            let Some((attempt, progress)) = pick(SettlePath::of(&job.settlement)) else { continue };
            let (at, expiry_check_at) = match &job.settlement.outcome {
                ClaimOutcome::Attempted { next: NextState::Waiting { due_at }, expiry_check_at, .. } => {
                    (*due_at, *expiry_check_at)
                }
                _ => (job.settlement.now, None),
            };
            rows.no.push(delivery_no(job.settlement.id));
            rows.epoch.push(job.lease.epoch.0 as i64);
            rows.at.push(millis(at));
            rows.record.push(serde_json::to_string(attempt).expect("an attempt is plain data"));
            rows.started_at.push(millis(attempt.started_at));
            let budget = ProgressColumns::from(progress);
            rows.begun_at.push(budget.begun_at);
            rows.attempts.push(budget.attempts);
            rows.attempts_before.push(budget.attempts_before);
            rows.age_from.push(budget.age_from);
            rows.held_before.push(budget.held_before);
            rows.not_found.push(budget.not_found);
            rows.no_such_name.push(budget.no_such_name);
            rows.forbidden_target.push(budget.forbidden_target);
            rows.last_delay.push(budget.last_delay);
            rows.max_age.push(budget.max_age);
            rows.expiry_check_at.push(expiry_check_at.map(millis));
        }
        rows
    }

    async fn write_delivered(&self, tx: &PgTransaction, node: i64) -> Result<Vec<Row>> {
        if self.no.is_empty() {
            return Ok(Vec::new());
        }
        tx.query(
            SETTLE_DELIVERED.call(),
            bind![
                node,
                self.no,
                self.epoch,
                self.begun_at,
                self.at,
                self.record,
                self.attempts,
                self.attempts_before,
                self.age_from,
                self.held_before,
                self.not_found,
                self.no_such_name,
                self.forbidden_target,
                self.started_at,
            ],
        )
        .await
    }

    async fn write_retried(&self, tx: &PgTransaction, node: i64) -> Result<Vec<Row>> {
        if self.no.is_empty() {
            return Ok(Vec::new());
        }
        tx.query(
            SETTLE_RETRY.call(),
            bind![
                node,
                self.no,
                self.epoch,
                self.begun_at,
                self.at,
                self.record,
                self.attempts,
                self.attempts_before,
                self.age_from,
                self.held_before,
                self.not_found,
                self.no_such_name,
                self.forbidden_target,
                self.started_at,
                self.last_delay,
                self.max_age,
                self.expiry_check_at,
            ],
        )
        .await
    }
}
