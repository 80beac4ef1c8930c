//! Being one of many: joining, holding shards, hearing what others do.
//!
//! One task does all of it, so a node's view changes in one order: it polls,
//! renews its lease, takes out the dead, claims its share, hands over what is
//! more than that, and tells the lifecycle.
//!
//! The poll runs every 20 ms, or every 100 ms while the node is alone. It asks
//! what others accepted for this node's shards since the last one, by two
//! snapshots (`sql/poll.sql`), and which questions others have put to it.

use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::database_time::{ObservedTime, TimedReading};
use super::due::{log_uncounted, recount};
use super::endpoint::from_json;
use super::rows::at;
use super::snowflake::Snowflake;
use super::transaction::{PgTransaction, bind, bound, with_timeout};
use super::{PostgresState, due, partitions};
use crate::clock::boot_ms;
use crate::model::health::EndpointHealth;
use crate::model::id::EndpointId;
use crate::model::rate::roughly;
use crate::model::shard::{Epoch, Lease, SHARDS, Shard};
use crate::store::{ClusterEvent, Error, Result};

/// How often a node looks while others are there, and while it is alone.
const TOGETHER: Duration = Duration::from_millis(20);
const ALONE: Duration = Duration::from_millis(100);
/// How often it is counted anew how much waits, at most: counting takes no
/// more than a hundredth of the time.
const RECOUNT_EVERY: Duration = Duration::from_secs(5);
const RECOUNT_SHARE: u32 = 100;
/// How often partitions are looked after.
const PARTITIONS_EVERY: Duration = Duration::from_secs(1_800);
/// How long the lifecycle may take to answer a question.
const IN_FORCE: Duration = Duration::from_secs(2);
/// No transaction whose answer got lost is still under way after this.
const ENDED_WITHIN: Duration = Duration::from_secs(30);
/// How long it waits before it tries to reach the database again, at most.
const TROUBLE_MAX: Duration = Duration::from_secs(2);

/// Joins the cluster and takes what is free; then goes on in the background.
pub async fn join(shared: &Arc<PostgresState>) -> anyhow::Result<JoinHandle<()>> {
    let mut member = MembershipTask::join(shared.clone()).await?;
    member.step().await?;
    if let Some(counting) = member.counting.take() {
        let _ = counting.await;
    }
    Ok(tokio::spawn(async move { member.run().await }))
}

struct MembershipTask {
    shared: Arc<PostgresState>,
    /// The last snapshot: its end, and what was under way then.
    seen: (String, Vec<String>),
    /// What was seen to arrive, until it is told.
    arrived: Vec<NodeQuery>,
    /// Since when the server runs that was last asked.
    server: Option<String>,
    /// When everything that is due is looked for, the first of it first.
    recoveries: Vec<Instant>,
    is_alone: bool,
    renewed_at: Instant,
    /// When it is counted anew how much waits.
    recount_at: Arc<Mutex<Instant>>,
    partitioned_at: Instant,
    /// What counts what waits for shards just gained.
    counting: Option<JoinHandle<()>>,
    /// Shards that are being handed over.
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
            server: None,
            recoveries: Vec::new(),
            is_alone: true,
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
                Duration::ZERO => TOGETHER,
                trouble => roughly(trouble, rand::random()),
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                Some(first) = self.handed_over.recv() => {
                    let mut shards = Vec::new();
                    let rest = std::iter::from_fn(|| self.handed_over.try_recv().ok());
                    for (shard, is_free) in std::iter::once(first).chain(rest) {
                        match is_free {
                            true => shards.push(shard),
                            // It was lost meanwhile, and may have come back.
                            false => drop(self.leaving.remove(&shard)),
                        }
                    }
                    if let Err(problem) = self.release(shards).await {
                        warn!("shards could not be handed over yet: {problem}");
                    }
                }
            }
            match self.poll_once().await {
                Ok(()) => {
                    if !self.shared.is_answering.swap(true, Ordering::Relaxed) {
                        info!("the database answers again");
                    }
                    trouble = Duration::ZERO;
                }
                Err(problem) => {
                    if self.shared.is_answering.swap(false, Ordering::Relaxed) {
                        warn!("the database does not answer; nothing new is accepted or started meanwhile: {problem}");
                    }
                    trouble = (trouble * 2).clamp(Duration::from_millis(100), TROUBLE_MAX);
                }
            }
        }
    }

    /// Looks once, and does what that asks for.
    async fn poll_once(&mut self) -> Result<()> {
        // One that hangs would let the lease run out unseen. Only the poll can be
        // given up halfway: whatever follows it changes what is owned.
        let limit = (self.shared.options.lease / 3).max(Duration::from_secs(1));
        let polled = tokio::time::timeout(limit, self.poll()).await;
        let found = polled.unwrap_or_else(|_| Err(Error::Unavailable("it did not answer in time".into())))?;
        let is_renewal_due = self.renewed_at.elapsed() >= self.shared.options.lease / 6;
        let is_retiring = self.shared.is_retiring.load(Ordering::Acquire) && self.leaving.is_empty();
        if is_renewal_due || is_retiring || found.is_something_free || found.is_someone_dead || found.nodes_changed {
            self.step().await?;
        }
        self.publish_changes(found).await?;
        self.recover_missed_due().await?;
        self.recount_in_time();
        if self.partitioned_at.elapsed() >= PARTITIONS_EVERY {
            self.partitioned_at = Instant::now();
            // Beside the loop: it may have to wait for others.
            let shared = self.shared.clone();
            tokio::spawn(async move {
                if let Err(problem) = partitions::ensure(&shared).await {
                    warn!("the partitions of the coming days could not be made yet: {problem:#}");
                }
            });
        }
        Ok(())
    }

    async fn poll(&mut self) -> Result<MembershipChanges> {
        let shared = &self.shared;
        let mut tx = PgTransaction::open(&shared.pool).await?;
        let client = tx.client();
        let node = shared.shard_leases.node();
        let shards = shared.shard_leases.numbers();
        let (end, under_way) = &self.seen;
        let questions = "SELECT no, question FROM posthaste.calls WHERE node = $1 AND answer IS NULL ORDER BY no";
        let asked_ms = boot_ms();
        let (seen, me) = ([bound(end), bound(under_way), bound(&node), bound(&shards)], [bound(&node)]);
        let (rows, questions) = tokio::join!(
            biased;
            with_timeout(client.query_typed(include_str!("sql/poll.sql"), &seen)),
            with_timeout(client.query_typed(questions, &me)),
        );
        let (rows, questions) = (rows?, questions?);
        tx.return_connection();
        let mut found = MembershipChanges {
            questions: questions.iter().map(|row| (row.get(0), row.get(1))).collect(),
            ..MembershipChanges::default()
        };
        for row in &rows {
            found.version = row.get(1);
            found.is_something_free = row.get(2);
            found.is_someone_dead = row.get(3);
            let nodes = row.get::<_, i64>(4).max(1) as usize;
            found.nodes_changed |= shared.nodes.swap(nodes, Ordering::Relaxed) != nodes;
            self.is_alone = nodes == 1;
            let server = Some(row.get::<_, String>(10));
            if self.server != server && std::mem::replace(&mut self.server, server).is_some() {
                shared.is_unsure.store(true, Ordering::Release);
                shared.server_changes.fetch_add(1, Ordering::AcqRel);
            }
            if let Some(id) = row.get::<_, Option<uuid::Uuid>>(5) {
                self.arrived.push(NodeQuery {
                    endpoint: EndpointId(id),
                    no: row.get(6),
                    due_at: row.get(7),
                    expiry_check_at: row.get(8),
                    count: row.get(9),
                });
            }
        }
        if let Some(row) = rows.first() {
            self.seen = parse_snapshot(row.get(0));
            let reading = TimedReading { asked_ms, database_ms: row.get(11) };
            if shared.time.observe(reading) == ObservedTime::Step {
                shared.time.settle_step(shared).await?;
            }
        }
        Ok(found)
    }

    /// Tells the lifecycle what a look has found.
    async fn publish_changes(&mut self, found: MembershipChanges) -> Result<()> {
        let shared = &self.shared;
        if found.version > shared.version.load(Ordering::Acquire) {
            shared.refresh_catalog().await?;
        }
        // Not for long: a lease that is not renewed meanwhile would end.
        let is_in_force = tokio::time::timeout(shared.options.lease / 12, shared.await_changes_applied()).await.is_ok();
        if is_in_force && found.version > shared.acknowledged_version.load(Ordering::Acquire) {
            shared.acknowledge_catalog().await?;
        }
        // Kept until here: what was seen once is not seen again.
        for arrived in std::mem::take(&mut self.arrived) {
            shared.index_mut().count_waiting(arrived.no, arrived.count);
            if let Some(due_at) = arrived.due_at {
                shared.watermarks.lower(arrived.no, due_at);
                let (endpoint, due_at, expiry_check_at) =
                    (arrived.endpoint, at(due_at), arrived.expiry_check_at.map(at));
                let _ = shared.told.send(ClusterEvent::Arrived { endpoint, due_at, expiry_check_at });
            }
        }
        for (no, question) in found.questions {
            if shared.asked.lock().insert(no) {
                // Whatever is asked for may have changed what is due.
                shared.watermarks.clear();
                tokio::spawn(answer(shared.clone(), no, question));
            }
        }
        Ok(())
    }

    /// Looks for everything that is due, if something may be so without this
    /// node's knowing: a commit whose answer got lost, or a server that began
    /// anew. And once more when no transaction of before can be under way.
    async fn recover_missed_due(&mut self) -> Result<()> {
        let (shared, now) = (&self.shared, Instant::now());
        if shared.is_unsure.swap(false, Ordering::AcqRel) {
            self.recoveries = vec![now, now + ENDED_WITHIN];
        }
        if self.recoveries.first().is_none_or(|at| *at > now) {
            return Ok(());
        }
        shared.watermarks.clear();
        for (endpoint, due_at) in due::earliest_due(shared, shared.shard_leases.numbers()).await? {
            let _ = shared.told.send(ClusterEvent::Arrived { endpoint, due_at, expiry_check_at: Some(due_at) });
        }
        self.recoveries.remove(0);
        Ok(())
    }

    /// Renews the lease, takes out the dead, and claims or hands over shards.
    async fn step(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        let began = Instant::now();
        let node = shared.shard_leases.node();
        let lease = shared.options.lease;
        let leased_until = shared.shard_leases.leased_until();
        let tx = shared.begin().await?;
        if tx.query_opt(include_str!("sql/renew.sql"), bind![node, lease.as_secs_f64()]).await?.is_none() {
            tx.roll_back().await;
            return self.rejoin().await;
        }
        for row in tx.query(include_str!("sql/expel.sql"), bind![node]).await? {
            let (id, name): (i64, &str) = (row.get(0), row.get(1));
            warn!(node = id, "node {id} ({name}) was not heard of for the length of its lease; its shards are free");
        }
        let nodes = tx.query("SELECT id FROM posthaste.nodes ORDER BY id", bind![]).await?;
        let nodes: Vec<i64> = nodes.iter().map(|row| row.get(0)).collect();
        let held = tx.query("SELECT shard, epoch FROM posthaste.shards WHERE node = $1", bind![node]).await?;
        let share = match shared.is_retiring.load(Ordering::Acquire) {
            true => 0,
            false => shards_for_node(&nodes, node),
        };
        let mut gained = Vec::new();
        if held.len() < share {
            let most = (share - held.len()) as i64;
            let claimed = tx.query(include_str!("sql/claim_shards.sql"), bind![node, most]).await?;
            gained.extend(claimed.iter().map(lease_from));
        }
        tx.commit().await?;
        match leased_until {
            // Until the commit others saw the old lease, and it ended meanwhile:
            // they may have changed something without waiting for this node.
            Some(until) if until <= Instant::now() => return self.rejoin().await,
            Some(_) => {}
            // Joining was cut short before the catalog was read.
            None => shared.refresh_catalog().await?,
        }
        // Counted from before the renewal was sent, with a margin for clocks
        // that run at different speeds.
        shared.shard_leases.renew(began + lease - lease / 20);
        self.renewed_at = began;
        // A claim whose commit was not heard of is ours all the same.
        gained.extend(held.iter().map(lease_from).filter(|lease| shared.shard_leases.lease(lease.shard) != *lease));
        if !gained.is_empty() {
            self.take_over(gained).await?;
        }
        let surplus = shared.shard_leases.shards().len().saturating_sub(self.leaving.len()).saturating_sub(share);
        self.hand_over(surplus);
        Ok(())
    }

    /// These are this node's from now on.
    async fn take_over(&mut self, leases: Vec<Lease>) -> Result<()> {
        let shared = self.shared.clone();
        let shards: Vec<Shard> = leases.iter().map(|lease| lease.shard).collect();
        let numbers: Vec<i16> = shards.iter().map(|shard| i16::from(shard.0)).collect();
        let were_owned = leases.iter().any(|lease| lease.epoch > Epoch(1));
        // Owned first, read then: what is accepted here meanwhile is either
        // dispatched from memory or found by the read.
        shared.index_mut().uncount(&shards);
        leases.into_iter().for_each(|lease| shared.shard_leases.gain(lease));
        shared.watermarks.clear();
        // What their last owner changed a moment ago, too.
        let known = match shared.refresh_catalog().await {
            Ok(()) => shared.refresh_health(&numbers).await,
            Err(problem) => Err(problem),
        };
        if let Err(problem) = known {
            shards.iter().for_each(|shard| shared.shard_leases.lose(*shard));
            return Err(problem);
        }
        let due = match due::earliest_due(&shared, numbers.clone()).await {
            Ok(due) => due,
            Err(problem) => {
                // Not told of, so not owned: the next step tries again.
                shards.iter().for_each(|shard| shared.shard_leases.lose(*shard));
                return Err(problem);
            }
        };
        info!(
            shards = shards.len(),
            owned = shared.shard_leases.shards().len(),
            "{} shards are ours now",
            shards.len()
        );
        let _ = shared.told.send(ClusterEvent::Gained { shards, due, were_owned });
        shared.start_sweep();
        self.counting = Some(tokio::spawn(async move { log_uncounted(recount(&shared, numbers, None).await) }));
        Ok(())
    }

    /// Counts anew what waits, now and then.
    fn recount_in_time(&self) {
        let mut next = self.recount_at.lock();
        let began = Instant::now();
        if *next > began {
            return;
        }
        // The end of this one decides when the next is.
        *next = began + Duration::from_secs(3_600);
        let (shared, recount_at) = (self.shared.clone(), self.recount_at.clone());
        tokio::spawn(async move {
            let before = shared.index().counts();
            log_uncounted(recount(&shared, shared.shard_leases.numbers(), Some(before)).await);
            let rest = (began.elapsed() * RECOUNT_SHARE).max(RECOUNT_EVERY);
            *recount_at.lock() = Instant::now() + rest;
        });
    }

    /// Asks the lifecycle to let go of some shards.
    fn hand_over(&mut self, surplus: usize) {
        if surplus == 0 {
            return;
        }
        let shards = self.shared.shard_leases.shards().into_iter().filter(|shard| !self.leaving.contains(shard));
        // One by one: a request that hangs keeps no more than its own.
        for shard in shards.take(surplus).collect::<Vec<_>>() {
            self.leaving.insert(shard);
            let (done, is_done) = oneshot::channel();
            let _ = self.shared.told.send(ClusterEvent::Wanted { shards: vec![shard], done });
            let hand_over = self.hand_over.clone();
            let shared = self.shared.clone();
            tokio::spawn(async move {
                let is_done = is_done.await.is_ok();
                // Nobody to listen is nobody to have anything in flight.
                let listener = shared.listener.lock().is_some();
                let _ = hand_over.send((shard, is_done || listener));
            });
        }
    }

    /// Gives shards back, now that nothing of them is in flight.
    async fn release(&mut self, shards: Vec<Shard>) -> Result<()> {
        let numbers: Vec<i16> = shards.iter().map(|shard| i16::from(shard.0)).collect();
        for shard in &shards {
            self.shared.shard_leases.lose(*shard);
            self.leaving.remove(shard);
        }
        let _ = self.shared.told.send(ClusterEvent::Lost { shards });
        recount(&self.shared, Vec::new(), None).await?;
        let client = self.shared.connection().await?;
        let sql = "UPDATE posthaste.shards SET node = NULL WHERE shard = ANY($1) AND node = $2";
        with_timeout(client.execute_typed(sql, bind![numbers, self.shared.shard_leases.node()])).await?;
        Ok(())
    }

    /// The lease has ended, because nobody heard of this node for too long.
    /// Its shards are lost, and it comes back as another node.
    async fn rejoin(&mut self) -> Result<()> {
        let shards = self.shared.shard_leases.shards();
        warn!(
            shards = shards.len(),
            "this node was not heard of for the length of its lease and has lost its shards; it joins anew"
        );
        shards.iter().for_each(|shard| self.shared.shard_leases.lose(*shard));
        self.leaving.clear();
        let _ = self.shared.told.send(ClusterEvent::Lost { shards });
        self.shared.index_mut().recount(&[], None, |_| Some(false));
        self.seen = register(&self.shared).await?;
        self.renewed_at = Instant::now().checked_sub(self.shared.options.lease).unwrap_or_else(Instant::now);
        Ok(())
    }
}

/// What one look found.
#[derive(Default)]
struct MembershipChanges {
    version: i64,
    is_something_free: bool,
    is_someone_dead: bool,
    nodes_changed: bool,
    questions: Vec<(i64, String)>,
}

struct NodeQuery {
    endpoint: EndpointId,
    no: i64,
    due_at: Option<i64>,
    expiry_check_at: Option<i64>,
    count: i64,
}

fn lease_from(row: &tokio_postgres::Row) -> Lease {
    Lease { shard: Shard(row.get::<_, i16>(0) as u8), epoch: Epoch(row.get::<_, i64>(1).max(0) as u64) }
}

/// How many shards a node should have: all have the same, but for one more
/// with the first of them.
fn shards_for_node(nodes: &[i64], node: i64) -> usize {
    let Some(rank) = nodes.iter().position(|id| *id == node) else { return 0 };
    SHARDS / nodes.len() + usize::from(rank < SHARDS % nodes.len())
}

/// The end of a snapshot, and what was under way in it.
fn parse_snapshot(text: &str) -> (String, Vec<String>) {
    let mut parts = text.splitn(3, ':').skip(1);
    let end = parts.next().unwrap_or("0").to_owned();
    let under_way = parts.next().unwrap_or("").split(',').filter(|xid| !xid.is_empty()).map(str::to_owned).collect();
    (end, under_way)
}

/// Enters the node under a new id, and takes it out under the one it had;
/// returns the snapshot from which it hears what others accept.
async fn register(shared: &PostgresState) -> Result<(String, Vec<String>)> {
    let began = Instant::now();
    let old = shared.shard_leases.node();
    let tx = shared.begin().await?;
    tx.execute("UPDATE posthaste.shards SET node = NULL WHERE node = $1", bind![old]).await?;
    tx.execute("DELETE FROM posthaste.nodes WHERE id = $1", bind![old]).await?;
    let sql = "INSERT INTO posthaste.nodes (id, name, version, joined_at, lease_until)
               VALUES (nextval('posthaste.node_ids'), $1, 0, clock_timestamp(),
                       clock_timestamp() + make_interval(secs => $2))
               RETURNING id, pg_current_snapshot()::text";
    let lease = shared.options.lease;
    let row = &tx.query(sql, bind![shared.options.name, lease.as_secs_f64()]).await?[0];
    let (node, snapshot): (i64, String) = (row.get(0), row.get(1));
    tx.commit().await?;
    // Of nothing yet, as far as this node's row says.
    shared.acknowledged_version.store(0, Ordering::Release);
    shared.shard_leases.join(node);
    *shared.snowflake.write() = Arc::new(Snowflake::of(node));
    // In the list of nodes first, so that no change is made without it.
    shared.refresh_catalog().await?;
    shared.acknowledge_catalog().await?;
    // Not before: under a lease what is known of the catalog is acted on.
    shared.shard_leases.renew(began + lease - lease / 20);
    info!(node, "joined the cluster as node {node}");
    Ok(parse_snapshot(&snapshot))
}

impl PostgresState {
    /// Tells the others how much of the catalog this node has heard of.
    async fn acknowledge_catalog(&self) -> Result<()> {
        let version = self.version.load(Ordering::Acquire);
        let client = self.connection().await?;
        let sql = "UPDATE posthaste.nodes SET version = $2 WHERE id = $1";
        with_timeout(client.execute_typed(sql, bind![self.shard_leases.node(), version])).await?;
        self.acknowledged_version.store(version, Ordering::Release);
        Ok(())
    }

    /// Waits until what others changed is in force here. What it has not
    /// waited for when it is given up is waited for the next time.
    async fn await_changes_applied(&self) {
        loop {
            let next = self.in_force.lock().pop();
            let Some(next) = next else { return };
            let mut waiting = ChangeWaiter { shared: self, next: Some(next) };
            if let Some(next) = &mut waiting.next {
                let _ = next.await;
            }
            waiting.next = None;
        }
    }

    /// Reads how the endpoints of these shards are doing: others have written
    /// it down.
    async fn refresh_health(&self, shards: &[i16]) -> Result<()> {
        let client = self.connection().await?;
        let sql = "SELECT p.id, h.health FROM posthaste.endpoints p JOIN posthaste.health h ON h.endpoint = p.no
                   WHERE p.deleted_at IS NULL AND p.shard = ANY($1)";
        let rows = with_timeout(client.query_typed(sql, bind![shards.to_vec()])).await?;
        let mut index = self.index_mut();
        for row in rows {
            let health: EndpointHealth = from_json(row.get(1));
            let id = EndpointId(row.get(0));
            if index.endpoint_entry(id).is_some_and(|(_, known)| health.is_after(&known.health)) {
                index.show_health(id, health);
            }
        }
        Ok(())
    }
}

/// A change that is being waited for; given up, it goes back.
struct ChangeWaiter<'a> {
    shared: &'a PostgresState,
    next: Option<oneshot::Receiver<()>>,
}

impl Drop for ChangeWaiter<'_> {
    fn drop(&mut self) {
        let mut all = self.shared.in_force.lock();
        all.extend(self.next.take());
    }
}

/// Has a question answered by the lifecycle.
async fn answer(shared: Arc<PostgresState>, no: i64, question: String) {
    let (answer, answered) = oneshot::channel();
    let _ = shared.told.send(ClusterEvent::Asked { question, answer });
    if let Ok(Ok(answer)) = tokio::time::timeout(IN_FORCE, answered).await
        && let Ok(client) = shared.connection().await
    {
        let sql = "UPDATE posthaste.calls SET answer = $2 WHERE no = $1";
        if let Err(problem) = with_timeout(client.execute_typed(sql, bind![no, answer])).await {
            warn!("a question of another node could not be answered: {problem}");
        }
    }
    shared.asked.lock().remove(&no);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shard_is_in_somebodys_share_and_shares_differ_by_one_at_most() {
        for count in 1..=300 {
            let nodes: Vec<i64> = (0..count).map(|n| n * 7).collect();
            let shares: Vec<usize> = nodes.iter().map(|node| shards_for_node(&nodes, *node)).collect();
            assert_eq!(shares.iter().sum::<usize>(), SHARDS);
            let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
            assert!(most - least <= 1, "{shares:?}");
        }
        assert_eq!(shards_for_node(&[1, 2], 3), 0, "whoever is not in the list has none");
    }

    #[test]
    fn a_snapshot_tells_its_end_and_what_was_under_way() {
        assert_eq!(parse_snapshot("10:20:12,15"), ("20".into(), vec!["12".into(), "15".into()]));
        assert_eq!(parse_snapshot("10:10:"), ("10".into(), vec![]));
    }
}
