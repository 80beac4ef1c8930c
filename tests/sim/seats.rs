//! Several nodes at one table: the embedded store, shared as a store of many
//! nodes is. Who owns what is moved by the story, not by a clock.
//!
//! What a node believes and what is true are two things: a node may be the
//! last to hear that its shards have gone.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use posthaste::model::id::{EndpointId, TenantId};
use posthaste::model::shard::{Epoch, Lease, Shard};
use posthaste::store::embedded::EmbeddedStore;
use posthaste::store::*;
use tokio::sync::{mpsc, oneshot};

/// How long a lease lasts.
pub const LEASE: Duration = Duration::from_secs(15);
/// How long it takes until a node hears what another has accepted for it.
const NEWS: Duration = Duration::from_millis(20);

/// What is true, and what each node believes.
pub struct Table {
    inner: Arc<EmbeddedStore>,
    state: Mutex<State>,
    /// Whether outcomes can be written at the moment.
    is_away: AtomicBool,
    /// What owners have published of their endpoints, and under which epoch;
    /// and which shards are published completely.
    published: Mutex<Published>,
    /// How long a read takes until its answer is here.
    reads_take: Mutex<Duration>,
}

#[derive(Default)]
struct Published {
    statuses: HashMap<EndpointId, (Epoch, String)>,
    complete: HashMap<Shard, Epoch>,
}

struct State {
    owners: Vec<(Option<usize>, u64)>,
    nodes: Vec<Node>,
}

struct Node {
    believes: Vec<Lease>,
    /// When its lease ends, if it is no longer renewed.
    ends: Option<Instant>,
    tell: mpsc::UnboundedSender<ClusterEvent>,
    tidings: Option<mpsc::UnboundedReceiver<ClusterEvent>>,
}

/// One node's place.
#[derive(Clone)]
pub struct Seat {
    table: Arc<Table>,
    node: usize,
}

impl Table {
    pub fn new(inner: Arc<EmbeddedStore>, nodes: usize) -> Arc<Self> {
        let node = |_| {
            let (tell, tidings) = mpsc::unbounded_channel();
            Node { believes: Shard::all().map(Lease::none).collect(), ends: None, tell, tidings: Some(tidings) }
        };
        let state = State { owners: vec![(None, 0); 256], nodes: (0..nodes).map(node).collect() };
        let (is_away, reads_take) = (AtomicBool::new(false), Mutex::default());
        Arc::new(Self { inner, state: Mutex::new(state), is_away, published: Mutex::default(), reads_take })
    }

    pub fn seat(self: &Arc<Self>, node: usize) -> Seat {
        Seat { table: self.clone(), node }
    }

    /// These shards are a node's from now on, and it is told so.
    pub async fn give(&self, node: usize, shards: &[Shard], were_owned: bool) {
        self.claim(node, shards);
        self.keep(node, shards, were_owned).await;
    }

    /// These shards are a node's from now on. Returns what is to be told.
    pub async fn give_untold(&self, node: usize, shards: &[Shard]) -> ClusterEvent {
        self.claim(node, shards);
        let due = self.due(shards).await;
        ClusterEvent::Gained { shards: shards.to_vec(), due, were_owned: true }
    }

    fn claim(&self, node: usize, shards: &[Shard]) {
        for shard in shards {
            let mut state = self.state.lock().unwrap();
            let (owner, epoch) = &mut state.owners[usize::from(shard.0)];
            (*owner, *epoch) = (Some(node), *epoch + 1);
            let lease = Lease { shard: *shard, epoch: Epoch(*epoch) };
            state.nodes[node].believes[usize::from(shard.0)] = lease;
        }
    }

    /// These shards stay a node's after all, and it is told so.
    pub async fn keep(&self, node: usize, shards: &[Shard], were_owned: bool) {
        let due = self.due(shards).await;
        self.tell(node, ClusterEvent::Gained { shards: shards.to_vec(), due, were_owned });
    }

    async fn due(&self, shards: &[Shard]) -> Vec<(EndpointId, Timestamp)> {
        let inner = self.inner.clone();
        let runtime = tokio::runtime::Handle::current();
        let due = tokio::task::spawn_blocking(move || runtime.block_on(inner.earliest_due())).await.unwrap().unwrap();
        due.into_iter().filter(|(endpoint, _)| shards.contains(&self.shard(*endpoint))).collect()
    }

    /// These shards are to go; returns once the node says that they may.
    pub async fn want(&self, node: usize, shards: &[Shard]) -> std::result::Result<(), oneshot::error::RecvError> {
        let (done, told) = oneshot::channel();
        self.tell(node, ClusterEvent::Wanted { shards: shards.to_vec(), done });
        told.await
    }

    /// These shards are nobody's any more, whatever their node believes.
    pub fn steal(&self, shards: &[Shard]) {
        let mut state = self.state.lock().unwrap();
        for shard in shards {
            state.owners[usize::from(shard.0)].0 = None;
        }
    }

    /// These shards are no longer a node's, and it is told so.
    pub fn take(&self, node: usize, shards: &[Shard]) {
        let mut state = self.state.lock().unwrap();
        for shard in shards {
            if state.owners[usize::from(shard.0)].0 == Some(node) {
                state.owners[usize::from(shard.0)].0 = None;
            }
            state.nodes[node].believes[usize::from(shard.0)] = Lease::none(*shard);
        }
        drop(state);
        self.tell(node, ClusterEvent::Lost { shards: shards.to_vec() });
    }

    /// From now on a node's lease is not renewed.
    pub fn cut_off(&self, node: usize) {
        self.state.lock().unwrap().nodes[node].ends = Some(now() + LEASE);
    }

    /// It is renewed again.
    pub fn renew(&self, node: usize) {
        self.state.lock().unwrap().nodes[node].ends = None;
    }

    /// From now on outcomes cannot be written, or can be again.
    pub fn be_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::SeqCst);
    }

    /// From now on the answer to a read takes so long.
    pub fn let_reads_take(&self, span: Duration) {
        *self.reads_take.lock().unwrap() = span;
    }

    pub fn owner(&self, shard: Shard) -> Option<usize> {
        self.state.lock().unwrap().owners[usize::from(shard.0)].0
    }

    pub fn tell(&self, node: usize, tiding: ClusterEvent) {
        let _ = self.state.lock().unwrap().nodes[node].tell.send(tiding);
    }

    fn shard(&self, endpoint: EndpointId) -> Shard {
        let known = self.inner.any_endpoint(endpoint).expect("nothing is deleted here");
        Shard::of(&known.tenant, endpoint)
    }
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl Seat {
    pub fn lease(&self, tenant: &TenantId, endpoint: EndpointId) -> Lease {
        let shard = Shard::of(tenant, endpoint);
        self.table.state.lock().unwrap().nodes[self.node].believes[usize::from(shard.0)]
    }

    /// Refuses what is not written under the present ownership.
    pub fn check(&self, lease: Lease) -> Result<()> {
        let (owner, epoch) = self.table.state.lock().unwrap().owners[usize::from(lease.shard.0)];
        match owner == Some(self.node) && Epoch(epoch) == lease.epoch {
            true => Ok(()),
            false => Err(Error::Stale(lease.shard)),
        }
    }

    /// Fails while outcomes cannot be written.
    pub fn reach(&self) -> Result<()> {
        match self.table.is_away.load(Ordering::SeqCst) {
            true => Err(Error::Unavailable("it is away".into())),
            false => Ok(()),
        }
    }

    /// Waits as long as the answer to a read is on its way.
    pub async fn linger(&self) {
        let span = *self.table.reads_take.lock().unwrap();
        tokio::time::sleep(span).await;
    }

    /// Whether an endpoint is this node's, by what it believes.
    pub fn owns(&self, endpoint: EndpointId) -> bool {
        self.table.inner.any_endpoint(endpoint).is_some_and(|known| self.lease(&known.tenant, endpoint).is_held())
    }

    /// Keeps this node's claims; the owners of the others hear of theirs.
    pub fn keep(&self, claims: Vec<Claim>) -> Vec<Claim> {
        let (ours, others): (Vec<Claim>, Vec<Claim>) = claims.into_iter().partition(|claim| self.owns(claim.endpoint));
        for claim in others {
            let table = self.table.clone();
            tokio::spawn(async move {
                tokio::time::sleep(NEWS).await;
                if let Some(owner) = table.owner(table.shard(claim.endpoint)) {
                    let (endpoint, due_at) = (claim.endpoint, claim.due_at);
                    table.tell(owner, ClusterEvent::Arrived { endpoint, due_at, expiry_check_at: claim.expires_at });
                }
            });
        }
        ours
    }

    pub fn tidings(&self) -> mpsc::UnboundedReceiver<ClusterEvent> {
        let tidings = self.table.state.lock().unwrap().nodes[self.node].tidings.take();
        tidings.expect("there is one listener")
    }

    pub fn leased_until(&self) -> Instant {
        self.table.state.lock().unwrap().nodes[self.node].ends.unwrap_or_else(|| now() + LEASE)
    }

    pub fn leases(&self) -> Vec<Lease> {
        let state = self.table.state.lock().unwrap();
        state.nodes[self.node].believes.iter().copied().filter(|lease| lease.is_held()).collect()
    }

    pub fn publish(&self, statuses: Vec<PublishedStatus>, complete: Vec<Lease>) {
        let mut published = self.table.published.lock().unwrap();
        published.statuses.extend(statuses.into_iter().map(|one| (one.endpoint, (one.lease.epoch, one.status))));
        published.complete.extend(complete.into_iter().map(|lease| (lease.shard, lease.epoch)));
    }

    pub fn published(&self, endpoints: &[EndpointId]) -> HashMap<EndpointId, Option<String>> {
        let published = self.table.published.lock().unwrap();
        let told = |id: &EndpointId| {
            let shard = self.table.shard(*id);
            let (owner, epoch) = self.table.state.lock().unwrap().owners[usize::from(shard.0)];
            owner.filter(|_| published.complete.get(&shard) == Some(&Epoch(epoch)))?;
            let status = published.statuses.get(id).filter(|(under, _)| *under == Epoch(epoch));
            Some((*id, status.map(|(_, status)| status.clone())))
        };
        endpoints.iter().filter_map(told).collect()
    }

    pub async fn ask_owner(&self, endpoint: EndpointId, question: String) -> Result<Option<String>> {
        let Some(owner) = self.table.owner(self.table.shard(endpoint)) else { return Ok(None) };
        let (answer, told) = oneshot::channel();
        self.table.tell(owner, ClusterEvent::Asked { question, answer });
        Ok(told.await.ok())
    }
}
