//! Accepts events: an event and all its deliveries become durable together,
//! whichever nodes own the endpoints.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tokio::sync::oneshot;

use super::PostgresState;
use super::accept_batch::{AcceptBatch, LanePositions, ProducerId, remember_ids};
use super::group_commit::{BatchJob, BatchResult};
use super::history::PostgresEventRecordColumns;
use super::rows::{at, millis};
use super::snowflake::first_of;
use super::transaction::{PgTransaction, bind, is_known_id, is_taken, with_timeout};
use crate::store::row::{PostgresColumns, row};
use crate::store::stored_value::StoredBytes;
use crate::store::{AcceptResult, BatchMode, ContentComparison, Error, MissingResource, Result, RoutedEvent};

/// Events that wait to be accepted.
pub struct AcceptJob {
    /// The events to accept.
    pub events: Vec<RoutedEvent>,
    /// Whether they are accepted only together.
    pub mode: BatchMode,
    /// Channel for the answer to the caller.
    pub answer: oneshot::Sender<Result<Vec<AcceptResult>>>,
}

/// Number of tries to write a batch. A try fails if another node has used the
/// same numbers, and the next one takes new numbers.
const TRIES: usize = 3;
/// Number of accepted events that are read at a time, to compare them.
const FIRST_EVENTS_MAX: usize = 16;

impl BatchJob for AcceptJob {
    // One batch at a time, so that numbers are in the order in which lanes grow.
    const CONCURRENT_BATCHES: usize = 1;
    const BATCH_SIZE_MAX: usize = 1_024;

    fn size(&self) -> usize {
        // Large payloads count for more.
        self.events.iter().map(|new| 1 + new.targets.len() / 4 + new.event.data.len() / 16_384).sum()
    }

    async fn write(shared: &Arc<PostgresState>, mut jobs: Vec<Self>) -> BatchResult<Self> {
        // A producer that has gone away sends its events again.
        jobs.retain(|job| !job.answer.is_closed());
        let later = defer_repeated_ids(&mut jobs);
        if jobs.is_empty() {
            return BatchResult { is_written: true, later };
        }
        let mut outcome = Err(Error::Outdated);
        for _ in 0..TRIES {
            outcome = accept(shared, &jobs).await;
            if !outcome.as_ref().is_err_and(is_taken) {
                break;
            }
        }
        let is_written = outcome.is_ok();
        match outcome {
            Ok(answers) => {
                for (job, answer) in jobs.into_iter().zip(answers) {
                    let _ = job.answer.send(answer);
                }
            }
            Err(problem) => {
                if matches!(problem, Error::Outdated) {
                    // The next try is matched with the newer catalog.
                    let _ = shared.refresh_catalog().await;
                } else {
                    // The batch may be durable all the same, so look for it later.
                    shared.status.note_missed_events();
                }
                for job in jobs {
                    let _ = job.answer.send(Err(problem.clone()));
                }
            }
        }
        BatchResult { is_written, later }
    }
}

/// Takes out the jobs with an id that an earlier job of this batch has too. The
/// result of the earlier one must be known first.
fn defer_repeated_ids(jobs: &mut Vec<AcceptJob>) -> Vec<AcceptJob> {
    let mut seen = HashSet::new();
    let mut later = Vec::new();
    let mut now = Vec::with_capacity(jobs.len());
    for job in jobs.drain(..) {
        let ids = || job.events.iter().filter(|new| is_producer_id(new)).map(|new| &new.event);
        if ids().any(|event| seen.contains(&(event.tenant.clone(), event.id.clone()))) {
            later.push(job);
            continue;
        }
        seen.extend(ids().map(|event| (event.tenant.clone(), event.id.clone())));
        now.push(job);
    }
    *jobs = now;
    later
}

/// Returns whether an event's id has to be remembered in a table of its own. An
/// id that the gateway made holds its time, and is found by it.
fn is_producer_id(new: &RoutedEvent) -> bool {
    new.fingerprint.is_some() || new.event.id.minted_ms().is_none()
}

/// State of an event's id before the event is written.
enum IdOutcome {
    /// The id is new.
    New,
    /// An event with this id was accepted before.
    Known(AcceptResult),
    /// An earlier event of the same batch, at this position, has the same id.
    Repeats(usize),
}

/// Accepts the events of these jobs. At first it takes the ids that producers
/// chose to be new, which needs one round trip. If one is not new, it looks up
/// all of them.
async fn accept(shared: &Arc<PostgresState>, jobs: &[AcceptJob]) -> Result<Vec<Result<Vec<AcceptResult>>>> {
    let tenants: Vec<Option<i64>> = {
        let index = shared.index();
        jobs.iter().map(|job| job.events.first().and_then(|new| index.tenant_no(&new.event.tenant))).collect()
    };
    let given = ProducerIds::of(jobs, &tenants);
    if given.needs_no_lookup(jobs) {
        match accept_as(shared, jobs, &tenants, &given, IdMode::New).await {
            Err(problem) if is_known_id(&problem) => {}
            outcome => return outcome,
        }
    }
    accept_as(shared, jobs, &tenants, &given, IdMode::LookFirst).await
}

/// How ids that producers chose are treated.
#[derive(Clone, Copy, PartialEq)]
enum IdMode {
    /// All ids count as new; the write fails if one is not.
    New,
    /// Each id is looked up before anything is written.
    LookFirst,
}

async fn accept_as(
    shared: &Arc<PostgresState>,
    jobs: &[AcceptJob],
    tenants: &[Option<i64>],
    given: &ProducerIds,
    mode: IdMode,
) -> Result<Vec<Result<Vec<AcceptResult>>>> {
    let version = shared.catalog.version();
    let tx = shared.connections.open().await?;
    let mut outcomes: Vec<Vec<IdOutcome>> =
        jobs.iter().map(|job| job.events.iter().map(|_| IdOutcome::New).collect()).collect();
    let event_nos: Vec<Vec<i64>> = jobs
        .iter()
        .map(|job| job.events.iter().map(|new| shared.snowflake.take(millis(new.event.accepted_at), 1)).collect())
        .collect();
    let ids = given.ids(shared, jobs, tenants, &event_nos);
    if mode == IdMode::LookFirst {
        resolve_ids(&tx, shared, jobs, given, &ids, &mut outcomes).await?;
    }
    let (writing, mut answers) = build_batch(shared, jobs, tenants, &event_nos, &outcomes);
    let places = match mode {
        IdMode::New => write_new(shared, tx, &writing, &ids, version).await?,
        IdMode::LookFirst => write_resolved(shared, tx, &writing, version).await?,
    };
    // Claims that are not dispatched from memory are read later, so the watermark
    // must not be above their due times.
    writing.due().for_each(|(endpoint, due_at)| shared.watermarks.lower(endpoint, due_at));
    {
        let mut index = shared.index_mut();
        for (endpoint, more) in writing.counts() {
            if shared.shard_leases.holds(endpoint.1) {
                index.count_waiting(endpoint.0, more);
            }
        }
        for ((tenant, _), usage) in writing.stored() {
            index.count_stored(*tenant, usage.bytes);
        }
    }
    for accepted in answers.iter_mut().flatten().flatten() {
        if let AcceptResult::New { claims, .. } = accepted {
            places.fill(claims);
        }
    }
    Ok(answers)
}

/// Builds the batch to write, and the answers to give once it is durable.
fn build_batch(
    shared: &PostgresState,
    jobs: &[AcceptJob],
    tenants: &[Option<i64>],
    event_nos: &[Vec<i64>],
    outcomes: &[Vec<IdOutcome>],
) -> (AcceptBatch, Vec<Result<Vec<AcceptResult>>>) {
    let index = shared.index();
    let mut writing = AcceptBatch::default();
    let mut answers = Vec::with_capacity(jobs.len());
    for (n, job) in jobs.iter().enumerate() {
        let Some(tenant) = tenants[n] else {
            answers.push(if job.events.is_empty() {
                Ok(Vec::new())
            } else {
                Err(Error::NotFound(MissingResource::Tenant))
            });
            continue;
        };
        let is_undone = is_undone(job, &outcomes[n]);
        let mut accepted: Vec<AcceptResult> = Vec::with_capacity(job.events.len());
        for (k, new) in job.events.iter().enumerate() {
            let one = match &outcomes[n][k] {
                IdOutcome::New if is_undone => AcceptResult::New { deliveries: 0, claims: Vec::new() },
                IdOutcome::New => writing.add_counted(&index, &shared.snowflake, tenant, event_nos[n][k], new),
                IdOutcome::Known(known) => known.clone(),
                IdOutcome::Repeats(first) => repeat_of(&job.events[*first], new, &accepted[*first]),
            };
            accepted.push(one);
        }
        answers.push(Ok(accepted));
    }
    (writing, answers)
}

/// Writes the batch with its ids in one round trip. If a statement fails, the
/// commit writes nothing.
async fn write_new(
    shared: &PostgresState,
    mut tx: PgTransaction,
    writing: &AcceptBatch,
    ids: &[ProducerId],
    version: i64,
) -> Result<LanePositions> {
    let (begun, places, committed) = tokio::join!(
        biased;
        with_timeout(tx.client().batch_execute(shared.connections.begin_sql())),
        writing.write(&tx, ids, Some(version), shared.shard_leases.node()),
        with_timeout(tx.client().batch_execute("COMMIT")),
    );
    if committed.is_ok() {
        tx.return_connection();
    }
    begun?;
    let places = places?;
    committed?;
    Ok(places)
}

/// Writes the batch in the transaction in which its ids were looked up and
/// remembered.
async fn write_resolved(
    shared: &PostgresState,
    tx: PgTransaction,
    writing: &AcceptBatch,
    version: i64,
) -> Result<LanePositions> {
    match writing.write(&tx, &[], Some(version), shared.shard_leases.node()).await {
        Ok(places) => tx.commit().await.map(|()| places),
        Err(problem) => {
            tx.roll_back().await;
            Err(problem)
        }
    }
}

/// The positions of events whose ids producers chose, and of those that repeat
/// an id of their own batch.
struct ProducerIds {
    first: Vec<(usize, usize)>,
    repeats: Vec<(usize, usize, usize)>,
}

impl ProducerIds {
    /// Finds the events with such ids, of tenants that exist.
    fn of(jobs: &[AcceptJob], tenants: &[Option<i64>]) -> Self {
        let mut given = Self { first: Vec::new(), repeats: Vec::new() };
        for (n, job) in jobs.iter().enumerate().filter(|(n, _)| tenants[*n].is_some()) {
            let mut seen: HashMap<&str, usize> = HashMap::new();
            for (k, new) in job.events.iter().enumerate().filter(|(_, new)| is_producer_id(new)) {
                match seen.get(new.event.id.as_str()) {
                    Some(first) => given.repeats.push((n, k, *first)),
                    None => {
                        seen.insert(new.event.id.as_str(), k);
                        given.first.push((n, k));
                    }
                }
            }
        }
        given
    }

    /// Returns whether the table of ids alone can tell that an id is known. An
    /// id that looks as if the gateway had made it may belong to an event whose
    /// id is not in that table.
    fn needs_no_lookup(&self, jobs: &[AcceptJob]) -> bool {
        let is_ours = |(n, k): &(usize, usize)| jobs[*n].events[*k].event.id.minted_ms().is_some();
        self.repeats.is_empty() && !self.first.iter().any(is_ours)
    }

    fn ids(
        &self,
        shared: &PostgresState,
        jobs: &[AcceptJob],
        tenants: &[Option<i64>],
        event_nos: &[Vec<i64>],
    ) -> Vec<ProducerId> {
        let index = shared.index();
        let id = |(n, k): &(usize, usize)| {
            let new = &jobs[*n].events[*k];
            let targets = new.targets.iter().filter(|p| index.endpoint_entry(p.id).is_some()).count();
            ProducerId {
                tenant: tenants[*n].expect("events without a tenant were left out"),
                id: new.event.id.clone(),
                event: event_nos[*n][*k],
                fingerprint: new.fingerprint.map_or_else(StoredBytes::default, |print| StoredBytes::copied(&print)),
                accepted_at: millis(new.event.accepted_at),
                deliveries: i32::try_from(targets).expect("fan-out is limited"),
            }
        };
        self.first.iter().map(id).collect()
    }
}

/// Returns whether the job's events are accepted only together and one of them
/// is a conflict.
fn is_undone(job: &AcceptJob, outcomes: &[IdOutcome]) -> bool {
    job.mode == BatchMode::All
        && outcomes.iter().zip(&job.events).any(|(outcome, new)| match outcome {
            IdOutcome::Known(AcceptResult::Conflict { .. }) => true,
            IdOutcome::Repeats(first) => new.compare_with(&job.events[*first]) != ContentComparison::Same,
            _ => false,
        })
}

fn repeat_of(first: &RoutedEvent, again: &RoutedEvent, became: &AcceptResult) -> AcceptResult {
    let (accepted_at, deliveries) = match became {
        AcceptResult::New { deliveries, .. } => (first.event.accepted_at, *deliveries),
        AcceptResult::Duplicate { accepted_at, deliveries } => (*accepted_at, *deliveries),
        AcceptResult::Conflict { .. } => return became.clone(),
    };
    AcceptResult::of_known(again.compare_with(first), accepted_at, deliveries)
}

/// Returns what an event is whose id is known: a repeat of the event that has
/// the id, or in conflict with it. That event is read only if the fingerprints
/// differ.
fn known_result(known: &KnownId, firsts: &HashMap<i64, PostgresEventRecordColumns>, new: &RoutedEvent) -> AcceptResult {
    let fingerprint: &[u8] = &known.fingerprint;
    let comparison = match new.compare_fingerprint(Some(fingerprint)) {
        Some(comparison) => comparison,
        None => match firsts.get(&known.event).and_then(|row| row.clone().record(new.event.tenant.clone()).ok()) {
            Some(first) => new.compare_content(&first.event, fingerprint),
            None => ContentComparison::Differs(Vec::new()),
        },
    };
    AcceptResult::of_known(comparison, at(known.accepted_at), known.deliveries.max(0) as u32)
}

row! {
    /// An id that is known, at its position among those that were asked for.
    postgres struct KnownId from "FROM unnest($1::int8[], $2::text[]) WITH ORDINALITY AS w (tenant, id, position)
             JOIN posthaste.producer_ids i ON i.tenant = w.tenant AND i.id = w.id" {
        position: i64 = "w.position",
        event: i64 = "i.event",
        fingerprint: Vec<u8> = "i.fingerprint",
        accepted_at: i64 = "i.accepted_at",
        deliveries: i32 = "i.deliveries",
    }
}

row! {
    /// An event that has a known id.
    postgres struct FirstEvent from "FROM posthaste.events e WHERE e.no = ANY($1)" {
        no: i64 = "e.no",
        event: PostgresEventRecordColumns = PostgresEventRecordColumns::COLUMNS,
    }
}

/// Compares the events whose ids are known with what was accepted under these ids. Each
/// comes with its position: its job, and its event in there.
async fn compare_known(
    tx: &PgTransaction,
    jobs: &[AcceptJob],
    known: &[(&KnownId, usize, usize)],
    outcomes: &mut [Vec<IdOutcome>],
) -> Result<()> {
    for known in known.chunks(FIRST_EVENTS_MAX) {
        let firsts = first_events(tx, known.iter().map(|(row, n, k)| (*row, &jobs[*n].events[*k]))).await?;
        for (row, n, k) in known {
            outcomes[*n][*k] = IdOutcome::Known(known_result(row, &firsts, &jobs[*n].events[*k]));
        }
    }
    Ok(())
}

/// Reads the events that have known ids, by their numbers, where fingerprints
/// alone do not decide.
async fn first_events<'a>(
    tx: &PgTransaction,
    known: impl Iterator<Item = (&'a KnownId, &'a RoutedEvent)>,
) -> Result<HashMap<i64, PostgresEventRecordColumns>> {
    let undecided = known.filter(|(row, new)| new.compare_fingerprint(Some(&row.fingerprint)).is_none());
    let nos: Vec<i64> = undecided.map(|(row, _)| row.event).collect();
    if nos.is_empty() {
        return Ok(HashMap::new());
    }
    let rows = tx.query(FirstEvent::SQL, bind![nos]).await?;
    Ok(rows.iter().map(FirstEvent::read).map(|row| (row.no, row.event)).collect())
}

/// Begins the transaction, remembers the ids that producers chose, and finds
/// out which of them were known.
async fn resolve_ids(
    tx: &PgTransaction,
    shared: &PostgresState,
    jobs: &[AcceptJob],
    given: &ProducerIds,
    ids: &[ProducerId],
    outcomes: &mut [Vec<IdOutcome>],
) -> Result<()> {
    for (n, k, first) in &given.repeats {
        outcomes[*n][*k] = IdOutcome::Repeats(*first);
    }
    let (begun, fresh) = tokio::join!(
        biased;
        with_timeout(tx.client().batch_execute(shared.connections.begin_sql())),
        remember_ids(tx, ids),
    );
    begun?;
    let fresh = fresh?;
    let (given, repeats) = (&given.first, &given.repeats);
    resolve_minted_ids(tx, given, ids, &fresh, outcomes).await?;
    if fresh.len() < given.len() {
        let missing: Vec<usize> = (0..given.len()).filter(|i| !fresh.contains(&ids[*i].event)).collect();
        let tenants: Vec<i64> = missing.iter().map(|i| ids[*i].tenant).collect();
        let texts: Vec<&str> = missing.iter().map(|i| ids[*i].id.as_str()).collect();
        let rows = tx.query(KnownId::SQL, bind![tenants, texts]).await?;
        let rows: Vec<KnownId> = rows.iter().map(KnownId::read).collect();
        // What repeats the id in its batch is compared with what is known, too.
        let known = rows.iter().flat_map(|row| {
            let (n, k) = given[missing[row.position as usize - 1]];
            let again =
                repeats.iter().filter(move |(of, _, first)| (*of, *first) == (n, k)).map(|(_, again, _)| *again);
            std::iter::once(k).chain(again).map(move |k| (row, n, k))
        });
        let known: Vec<(&KnownId, usize, usize)> = known.collect();
        compare_known(tx, jobs, &known, outcomes).await?;
    }
    // Forget the new ids of jobs that are refused as a whole.
    let refused = given.iter().zip(ids).filter(|((n, k), id)| {
        fresh.contains(&id.event) && matches!(outcomes[*n][*k], IdOutcome::New) && is_undone(&jobs[*n], &outcomes[*n])
    });
    let refused: Vec<i64> = refused.map(|(_, id)| id.event).collect();
    if !refused.is_empty() {
        tx.execute("DELETE FROM posthaste.producer_ids WHERE event = ANY($1)", bind![refused]).await?;
    }
    Ok(())
}

/// Finds ids that the gateway made itself, which are not in the table of ids. A
/// producer that sends such an id as its own gets a conflict.
async fn resolve_minted_ids(
    tx: &PgTransaction,
    given: &[(usize, usize)],
    ids: &[ProducerId],
    fresh: &HashSet<i64>,
    outcomes: &mut [Vec<IdOutcome>],
) -> Result<()> {
    for ((n, k), new) in given.iter().zip(ids).filter(|(_, new)| fresh.contains(&new.event)) {
        let Some(ms) = new.id.minted_ms() else { continue };
        let sql = "SELECT accepted_at FROM posthaste.events
                   WHERE no >= $1 AND no < $2 AND tenant = $3 AND id = $4 AND no <> $5";
        let known = tx.query_opt(sql, bind![first_of(ms), first_of(ms + 8), new.tenant, new.id, new.event]).await?;
        if let Some(row) = known {
            outcomes[*n][*k] =
                IdOutcome::Known(AcceptResult::Conflict { accepted_at: at(row.get(0)), differs: Vec::new() });
            tx.execute("DELETE FROM posthaste.producer_ids WHERE event = $1", bind![new.event]).await?;
        }
    }
    Ok(())
}
