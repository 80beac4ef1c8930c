//! Makes this process a node of the cluster: it joins, owns shards, and notices
//! what the other nodes do.
//!
//! One task does all of it, so that a node's view changes in one order: the
//! task polls, renews the lease, removes dead nodes, claims its share of the
//! shards, hands over what is more than that, and tells the lifecycle.
//!
//! The poll runs every 20 ms, or every 100 ms while the node is alone. A poll that took
//! long is followed by a longer pause. It reads what other nodes accepted for this
//! node's shards since the last poll, by comparing two snapshots (`sql/poll.sql`), and
//! the questions of other nodes.

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use tracing::{info, warn};

use super::database_time::{ObservedTime, TimedReading};
use super::due::{log_uncounted, recount};
use super::rows::{at, delivery_id};
use super::stored_function::{IN_ORDER, NamedSql, StoredFunction};
use super::transaction::{bind, bound, with_timeout};
use super::{PostgresState, due, partitions};
use crate::clock::boot_ms;
use crate::model::id::{EndpointId, TenantId};
use crate::model::rate::vary_by_tenth;
use crate::model::shard::Shard;
use crate::store::row::{PostgresColumns, joined, row};
use crate::store::{ArrivedDelivery, ClusterEvent, Error, Result};
use registration::{parse_snapshot, register};

mod catalog_changes;
mod registration;
mod shards;

/// Interval of the poll while there are other nodes, and while there are none.
const TOGETHER: Duration = Duration::from_millis(20);
const ALONE: Duration = Duration::from_millis(100);
/// How many times as long as a poll the pause after it is at least, up to
/// [`TOGETHER_MAX`]. All nodes read what each of them accepts, so under load polls would
/// take much of the database's processors.
const PAUSE_FACTOR: u32 = 10;
/// Longest interval of the poll while there are other nodes.
const TOGETHER_MAX: Duration = Duration::from_millis(50);
/// Shortest interval at which the waiting deliveries are counted anew. Counting
/// takes at most a hundredth of the time.
const RECOUNT_EVERY: Duration = Duration::from_secs(5);
const RECOUNT_SHARE: u32 = 100;
/// Interval at which missing partitions are created.
const PARTITIONS_EVERY: Duration = Duration::from_secs(1_800);
/// Most deliveries of an endpoint that a poll names. If more have arrived, pages bring
/// them, for which a single search is enough.
const NAMED_MAX: i64 = 10_000;
/// How long the lifecycle may take to answer a question.
const IN_FORCE: Duration = Duration::from_secs(2);
/// Time after which no transaction whose answer got lost is still open.
const ENDED_WITHIN: Duration = Duration::from_secs(30);
/// Longest pause before the database is tried again.
const TROUBLE_MAX: Duration = Duration::from_secs(2);

/// Joins the cluster and claims free shards, then goes on in the background.
pub async fn join(shared: &Arc<PostgresState>) -> anyhow::Result<JoinHandle<()>> {
    let mut member = MembershipTask::join(shared.clone()).await?;
    member.renew_and_balance().await?;
    if let Some(counting) = member.counting.take() {
        let _ = counting.await;
    }
    Ok(tokio::spawn(async move { member.run().await }))
}

struct MembershipTask {
    shared: Arc<PostgresState>,
    /// The last snapshot: its end, and the transactions that were open in it.
    seen: (String, Vec<String>),
    /// Arrivals that were read and not yet reported to the lifecycle.
    arrived: Vec<Arrival>,
    /// How long other nodes want accepts to be held.
    accept_delays: HashMap<TenantId, Duration>,
    /// Start time of the server that answered last.
    server: Option<String>,
    /// Times at which all due deliveries are looked for, earliest first.
    recoveries: Vec<Instant>,
    is_alone: bool,
    /// How long the last poll took.
    poll_took: Duration,
    renewed_at: Instant,
    /// Time at which the waiting deliveries are counted anew.
    recount_at: Arc<Mutex<Instant>>,
    partitioned_at: Instant,
    /// Task that counts the waiting deliveries of shards just gained.
    counting: Option<JoinHandle<()>>,
    /// Shards that are about to be handed over.
    leaving: HashSet<Shard>,
    handed_over: tokio::sync::mpsc::UnboundedReceiver<(Shard, bool)>,
    hand_over: tokio::sync::mpsc::UnboundedSender<(Shard, bool)>,
}

impl MembershipTask {
    async fn join(shared: Arc<PostgresState>) -> Result<Self> {
        let seen = register(&shared).await?;
        let (hand_over, handed_over) = tokio::sync::mpsc::unbounded_channel();
        let now = Instant::now();
        Ok(Self {
            shared,
            seen,
            arrived: Vec::new(),
            accept_delays: HashMap::new(),
            server: None,
            recoveries: Vec::new(),
            is_alone: true,
            poll_took: Duration::ZERO,
            renewed_at: now,
            recount_at: Arc::new(Mutex::new(now + RECOUNT_EVERY)),
            partitioned_at: now,
            counting: None,
            leaving: HashSet::new(),
            handed_over,
            hand_over,
        })
    }

    async fn run(mut self) {
        let mut trouble = Duration::ZERO;
        loop {
            let pause = match trouble {
                Duration::ZERO if self.is_alone => ALONE,
                Duration::ZERO => (self.poll_took * PAUSE_FACTOR).clamp(TOGETHER, TOGETHER_MAX),
                trouble => vary_by_tenth(trouble, rand::random()),
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                Some(first) = self.handed_over.recv() => {
                    let mut shards = Vec::new();
                    let rest = std::iter::from_fn(|| self.handed_over.try_recv().ok());
                    for (shard, is_free) in std::iter::once(first).chain(rest) {
                        if is_free {
                            shards.push(shard);
                        } else {
                            // The shard was lost meanwhile, and may have come back.
                            self.leaving.remove(&shard);
                        }
                    }
                    if let Err(problem) = self.finish_hand_over(shards).await {
                        warn!("shards could not be handed over to other nodes yet: {problem}");
                    }
                }
            }
            match self.poll_once().await {
                Ok(()) => {
                    if !self.shared.status.set_answering(true) {
                        info!("the database answers again");
                    }
                    trouble = Duration::ZERO;
                }
                Err(problem) => {
                    if self.shared.status.set_answering(false) {
                        warn!(
                            "the database does not answer; until it does, no events are accepted and no deliveries started: {problem}"
                        );
                    }
                    trouble = (trouble * 2).clamp(Duration::from_millis(100), TROUBLE_MAX);
                }
            }
        }
    }

    /// Polls once, and does what the result asks for.
    async fn poll_once(&mut self) -> Result<()> {
        // A poll that hangs would let the lease end unnoticed. Only the poll can
        // be given up halfway: what follows it changes what is owned.
        let limit = (self.shared.options.lease / 3).max(Duration::from_secs(1));
        let began = Instant::now();
        let polled = tokio::time::timeout(limit, self.poll()).await;
        self.poll_took = began.elapsed();
        let found = polled.unwrap_or_else(|_| Err(Error::Unavailable("it did not answer in time".into())))?;
        let is_renewal_due = self.renewed_at.elapsed() >= self.shared.options.lease / 6;
        let is_retiring = self.shared.status.is_retiring() && self.leaving.is_empty();
        if is_renewal_due || is_retiring || found.is_something_free || found.is_someone_dead || found.nodes_changed {
            self.renew_and_balance().await?;
        }
        self.publish_changes(found).await?;
        self.recover_missed_due().await?;
        self.recount_in_time();
        if self.partitioned_at.elapsed() >= PARTITIONS_EVERY {
            self.partitioned_at = Instant::now();
            // In a task of its own: it may have to wait for other nodes.
            let shared = self.shared.clone();
            tokio::spawn(async move {
                if let Err(problem) = partitions::ensure(&shared).await {
                    warn!("the partitions of the coming days could not be created yet: {problem:#}");
                }
            });
        }
        Ok(())
    }

    async fn poll(&mut self) -> Result<MembershipChanges> {
        let shared = &self.shared;
        let mut tx = shared.connections.open().await?;
        let client = tx.client();
        let node = shared.shard_leases.node();
        let shards = shared.shard_leases.numbers();
        let (end, under_way) = &self.seen;
        let asked_ms = boot_ms();
        let seen = [bound(end), bound(under_way), bound(&node), bound(&shards)];
        let rows = with_timeout(client.query_typed(POLL.call(), &seen)).await?;
        let poll = rows.first().map(PollRow::read);
        let mut found = MembershipChanges::default();
        if poll.as_ref().is_some_and(|poll| poll.is_asked) {
            let sql =
                "SELECT no, question FROM posthaste.node_questions WHERE node = $1 AND answer IS NULL ORDER BY no";
            let questions = with_timeout(client.query_typed(sql, &[bound(&node)])).await?;
            found.questions = questions.iter().map(|row| (row.get(0), row.get(1))).collect();
        }
        tx.return_connection();
        let Some(poll) = poll else { return Ok(found) };
        found.version = poll.version;
        found.is_something_free = poll.is_something_free;
        found.is_someone_dead = poll.is_someone_dead;
        let nodes = poll.nodes.max(1) as usize;
        found.nodes_changed = shared.status.set_nodes(nodes);
        self.is_alone = nodes == 1;
        let server = Some(poll.server);
        if self.server != server && std::mem::replace(&mut self.server, server).is_some() {
            shared.status.note_server_change();
        }
        let delays = accept_delays(shared, &poll.delayed_tenants, &poll.delays_ms);
        if delays != self.accept_delays {
            shared.notifier.send(ClusterEvent::AcceptsDelayed { delays: delays.clone() });
            self.accept_delays = delays;
        }
        self.arrived.extend(rows.iter().filter_map(arrival));
        self.seen = parse_snapshot(&poll.snapshot);
        let reading = TimedReading { asked_ms, database_ms: poll.database_ms };
        if shared.time.observe(reading) == ObservedTime::Step {
            shared.time.agree_on_clock_step(shared).await?;
        }
        Ok(found)
    }

    /// Tells the lifecycle what a poll has found.
    async fn publish_changes(&mut self, found: MembershipChanges) -> Result<()> {
        let shared = &self.shared;
        if found.version > shared.catalog.version() {
            shared.refresh_catalog().await?;
        }
        // Do not wait long: the lease is not renewed meanwhile, and would end.
        let is_in_force =
            tokio::time::timeout(shared.options.lease / 12, shared.notifier.await_changes_applied()).await.is_ok();
        if is_in_force && found.version > shared.catalog.acknowledged() {
            shared.acknowledge_catalog().await?;
        }
        // Arrivals are kept until here, because no later poll returns them again.
        for arrived in std::mem::take(&mut self.arrived) {
            shared.index_mut().count_waiting(arrived.no, arrived.count);
            if let Some(due_at) = arrived.due_at {
                shared.watermarks.lower(arrived.no, due_at);
                let (endpoint, due_at, expiry_check_at) =
                    (arrived.endpoint, at(due_at), arrived.expiry_check_at.map(at));
                let (count, deliveries) = (arrived.ready.unsigned_abs(), arrived.deliveries());
                let event = ClusterEvent::Arrived { endpoint, due_at, expiry_check_at, count, deliveries };
                shared.notifier.send(event);
            }
        }
        for (no, question) in found.questions {
            if shared.notifier.begin_answer(no) {
                // The question may be about a change of what is due.
                shared.watermarks.clear();
                tokio::spawn(answer(shared.clone(), no, question));
            }
        }
        Ok(())
    }

    /// Looks for all due deliveries if this node may have missed one: the answer
    /// to a commit got lost, or the server was restarted. Looks once more when
    /// no earlier transaction can still be open.
    async fn recover_missed_due(&mut self) -> Result<()> {
        let (shared, now) = (&self.shared, Instant::now());
        if shared.status.take_missed_events() {
            self.recoveries = vec![now, now + ENDED_WITHIN];
        }
        if self.recoveries.first().is_none_or(|at| *at > now) {
            return Ok(());
        }
        shared.watermarks.clear();
        for (endpoint, due_at) in due::earliest_due(shared, shared.shard_leases.numbers()).await? {
            let (expiry_check_at, deliveries) = (Some(due_at), Vec::new());
            let event = ClusterEvent::Arrived { endpoint, due_at, expiry_check_at, count: 0, deliveries };
            shared.notifier.send(event);
        }
        self.recoveries.remove(0);
        Ok(())
    }

    /// Counts the waiting deliveries anew, if it is time to.
    fn recount_in_time(&self) {
        let mut next = self.recount_at.lock();
        let began = Instant::now();
        if *next > began {
            return;
        }
        // The end of this count sets the time of the next.
        *next = began + Duration::from_secs(3_600);
        let (shared, recount_at) = (self.shared.clone(), self.recount_at.clone());
        tokio::spawn(async move {
            let before = shared.index().waiting_counts();
            log_uncounted(recount(&shared, shared.shard_leases.numbers(), Some(before)).await);
            let rest = (began.elapsed() * RECOUNT_SHARE).max(RECOUNT_EVERY);
            *recount_at.lock() = Instant::now() + rest;
        });
    }
}

/// What one poll found.
#[derive(Default)]
struct MembershipChanges {
    version: i64,
    is_something_free: bool,
    is_someone_dead: bool,
    nodes_changed: bool,
    questions: Vec<(i64, String)>,
}

row! {
    /// What a poll reads, in each of its rows.
    postgres struct PollRow {
        snapshot: String = "pg_current_snapshot()::text",
        version: i64 = "c.version",
        is_something_free: bool = "EXISTS (SELECT FROM posthaste.shards WHERE node IS NULL)",
        is_someone_dead: bool = "EXISTS (SELECT FROM posthaste.nodes WHERE lease_until < clock_timestamp())",
        nodes: i64 = "(SELECT count(*) FROM posthaste.nodes)",
        /// Whether other nodes have asked something.
        is_asked: bool = "o.is_asked",
        /// Start time of the server.
        server: String = "extract(epoch FROM pg_postmaster_start_time())::text",
        database_ms: i64 = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
        /// Tenants whose accepts other nodes want to be held, and for how long.
        delayed_tenants: Vec<i64> = "h.tenants",
        delays_ms: Vec<i64> = "h.delays_ms",
        /// Endpoint of the arrival of this row, if it holds one.
        arrived: Option<i64> = "p.no",
    }
}

row! {
    /// Deliveries that another node accepted for an endpoint of this node.
    postgres struct Arrival {
        endpoint: EndpointId = "p.id",
        no: i64 = "p.no",
        due_at: Option<i64> = "a.due_at",
        expiry_check_at: Option<i64> = "a.expiry_check_at",
        count: i64 = "a.arrived",
        /// Those that may start: the others are counted when they may.
        ready: i64 = "a.ready",
        /// Numbers of those, unless they are too many; when they were created, their
        /// events, and when they are due.
        nos: Vec<i64> = "a.nos",
        created: Vec<i64> = "a.created",
        events: Vec<i64> = "a.events",
        due: Vec<i64> = "a.due",
    }
}

impl Arrival {
    /// Returns those that may start, unless they are too many.
    fn deliveries(&self) -> Vec<ArrivedDelivery> {
        let named = self.nos.iter().zip(&self.created).zip(self.events.iter().zip(&self.due));
        let delivery = |((no, created_at), (event, due_at)): ((&i64, &i64), (&i64, &i64))| ArrivedDelivery {
            id: delivery_id(*no, *created_at),
            event: *event,
            due_at: at(*due_at),
        };
        named.map(delivery).collect()
    }
}

/// Reads all that a node polls for: `sql/poll.sql`.
pub static POLL: LazyLock<StoredFunction> = LazyLock::new(|| {
    let sql = NamedSql::new(include_str!("sql/poll.sql")).parameter("end", Type::TEXT);
    let sql = sql.parameter("running", Type::TEXT_ARRAY).parameter("node", Type::INT8);
    let sql = sql.parameter("shards", Type::INT2_ARRAY).replace("named_max", &NAMED_MAX.to_string());
    let columns = joined!(", "; PollRow::COLUMNS, Arrival::COLUMNS);
    StoredFunction::query::<(PollRow, Arrival)>("poll", IN_ORDER, sql.replace("columns", columns))
});

/// Returns for how long accepts are to be held: of each tenant the longest delay that
/// a node has published.
fn accept_delays(shared: &PostgresState, tenants: &[i64], delays_ms: &[i64]) -> HashMap<TenantId, Duration> {
    let mut delays = HashMap::new();
    if tenants.is_empty() {
        return delays;
    }
    let ids = shared.index().tenants_by_no();
    for (no, delay_ms) in tenants.iter().zip(delays_ms) {
        let Some(id) = ids.get(no) else { continue };
        let longest: &mut Duration = delays.entry(id.clone()).or_default();
        *longest = Duration::from_millis(delay_ms.unsigned_abs()).max(*longest);
    }
    delays
}

/// Returns the arrival of a row, if it holds one.
fn arrival(row: &Row) -> Option<Arrival> {
    let mut column = 0;
    PollRow::read_next(row, &mut column).arrived?;
    Some(Arrival::read_next(row, &mut column))
}

/// Lets the lifecycle answer a question of another node.
async fn answer(shared: Arc<PostgresState>, no: i64, question: String) {
    let (answer, answered) = oneshot::channel();
    shared.notifier.send(ClusterEvent::Asked { question, answer });
    if let Ok(Ok(answer)) = tokio::time::timeout(IN_FORCE, answered).await
        && let Ok(client) = shared.connection().await
    {
        let sql = "UPDATE posthaste.node_questions SET answer = $2 WHERE no = $1";
        if let Err(problem) = with_timeout(client.execute_typed(sql, bind![no, answer])).await {
            warn!("the answer to a question of another node could not be written: {problem}");
        }
    }
    shared.notifier.end_answer(no);
}
