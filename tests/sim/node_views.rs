//! Simulates the shard ownership of several nodes on one embedded store. The
//! test moves the shards, not a clock.
//!
//! The true owner and what a node believes are kept apart: a node may be the
//! last to learn that its shards are gone.

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

/// Duration of a lease.
pub const LEASE: Duration = Duration::from_secs(15);
/// Time until a node learns what another has accepted for it.
const EVENT_DELAY: Duration = Duration::from_millis(20);

/// The true owners of the shards, and what each node believes.
pub struct SharedOwnership {
    inner: Arc<EmbeddedStore>,
    state: Mutex<State>,
    /// Whether outcomes cannot be written at the moment.
    is_away: AtomicBool,
    /// What owners have published of their endpoints, and under which epoch;
    /// and which shards are published completely.
    published: Mutex<PublishedStatuses>,
    /// Duration of a read.
    reads_take: Mutex<Duration>,
}

#[derive(Default)]
struct PublishedStatuses {
    statuses: HashMap<EndpointId, (Epoch, String)>,
    complete: HashMap<Shard, Epoch>,
}

struct State {
    owners: Vec<(Option<usize>, u64)>,
    nodes: Vec<Node>,
}

struct Node {
    believes: Vec<Lease>,
    /// End of its lease, if it is no longer renewed.
    ends: Option<Instant>,
    sender: mpsc::UnboundedSender<ClusterEvent>,
    events: Option<mpsc::UnboundedReceiver<ClusterEvent>>,
}

/// The store's view of one node.
#[derive(Clone)]
pub struct NodeView {
    ownership: Arc<SharedOwnership>,
    node: usize,
}

impl SharedOwnership {
    pub fn new(inner: Arc<EmbeddedStore>, nodes: usize) -> Arc<Self> {
        let node = |_| {
            let (sender, events) = mpsc::unbounded_channel();
            Node { believes: Shard::all().map(Lease::none).collect(), ends: None, sender, events: Some(events) }
        };
        let state = State { owners: vec![(None, 0); 256], nodes: (0..nodes).map(node).collect() };
        let (is_away, reads_take) = (AtomicBool::new(false), Mutex::default());
        Arc::new(Self { inner, state: Mutex::new(state), is_away, published: Mutex::default(), reads_take })
    }

    pub fn node_view(self: &Arc<Self>, node: usize) -> NodeView {
        NodeView { ownership: self.clone(), node }
    }

    /// Gives shards to a node, and tells it.
    pub async fn give(&self, node: usize, shards: &[Shard], were_owned: bool) {
        self.claim(node, shards);
        self.keep(node, shards, were_owned).await;
    }

    /// Gives shards to a node without telling it; returns the event to send.
    pub async fn give_silently(&self, node: usize, shards: &[Shard]) -> ClusterEvent {
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

    /// Tells a node that these shards are its own, or stay so after all.
    pub async fn keep(&self, node: usize, shards: &[Shard], were_owned: bool) {
        let due = self.due(shards).await;
        self.send_event(node, ClusterEvent::Gained { shards: shards.to_vec(), due, were_owned });
    }

    async fn due(&self, shards: &[Shard]) -> Vec<(EndpointId, Timestamp)> {
        let inner = self.inner.clone();
        let runtime = tokio::runtime::Handle::current();
        let due = tokio::task::spawn_blocking(move || runtime.block_on(inner.earliest_due())).await.unwrap().unwrap();
        due.into_iter().filter(|(endpoint, _)| shards.contains(&self.shard(*endpoint))).collect()
    }

    /// Asks a node to give shards away; returns once it agrees.
    pub async fn want(&self, node: usize, shards: &[Shard]) -> std::result::Result<(), oneshot::error::RecvError> {
        let (done, agreed) = oneshot::channel();
        self.send_event(node, ClusterEvent::HandOver { shards: shards.to_vec(), done });
        agreed.await
    }

    /// Takes shards from their owner without telling it.
    pub fn steal(&self, shards: &[Shard]) {
        let mut state = self.state.lock().unwrap();
        for shard in shards {
            state.owners[usize::from(shard.0)].0 = None;
        }
    }

    /// Takes shards from a node, and tells it.
    pub fn take(&self, node: usize, shards: &[Shard]) {
        let mut state = self.state.lock().unwrap();
        for shard in shards {
            if state.owners[usize::from(shard.0)].0 == Some(node) {
                state.owners[usize::from(shard.0)].0 = None;
            }
            state.nodes[node].believes[usize::from(shard.0)] = Lease::none(*shard);
        }
        drop(state);
        self.send_event(node, ClusterEvent::Lost { shards: shards.to_vec() });
    }

    /// Stops renewing a node's lease.
    pub fn cut_off(&self, node: usize) {
        self.state.lock().unwrap().nodes[node].ends = Some(now() + LEASE);
    }

    /// Renews a node's lease again.
    pub fn renew(&self, node: usize) {
        self.state.lock().unwrap().nodes[node].ends = None;
    }

    /// Sets whether outcomes cannot be written.
    pub fn be_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::SeqCst);
    }

    /// Sets how long reads take from now on.
    pub fn let_reads_take(&self, span: Duration) {
        *self.reads_take.lock().unwrap() = span;
    }

    pub fn owner(&self, shard: Shard) -> Option<usize> {
        self.state.lock().unwrap().owners[usize::from(shard.0)].0
    }

    pub fn send_event(&self, node: usize, event: ClusterEvent) {
        let _ = self.state.lock().unwrap().nodes[node].sender.send(event);
    }

    fn shard(&self, endpoint: EndpointId) -> Shard {
        let endpoint_record = self.inner.any_endpoint(endpoint).expect("nothing is deleted here");
        Shard::of(&endpoint_record.tenant, endpoint)
    }
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl NodeView {
    pub fn lease(&self, tenant: &TenantId, endpoint: EndpointId) -> Lease {
        let shard = Shard::of(tenant, endpoint);
        self.ownership.state.lock().unwrap().nodes[self.node].believes[usize::from(shard.0)]
    }

    /// Refuses a write that is not under the present ownership.
    pub fn check(&self, lease: Lease) -> Result<()> {
        let (owner, epoch) = self.ownership.state.lock().unwrap().owners[usize::from(lease.shard.0)];
        let is_current = owner == Some(self.node) && Epoch(epoch) == lease.epoch;
        if is_current { Ok(()) } else { Err(Error::Stale(lease.shard)) }
    }

    /// Fails while outcomes cannot be written.
    pub fn reach(&self) -> Result<()> {
        let is_away = self.ownership.is_away.load(Ordering::SeqCst);
        if is_away { Err(Error::Unavailable("it is away".into())) } else { Ok(()) }
    }

    /// Waits for the duration of a read.
    pub async fn linger(&self) {
        let span = *self.ownership.reads_take.lock().unwrap();
        tokio::time::sleep(span).await;
    }

    /// Whether this node believes that it owns an endpoint.
    pub fn owns(&self, endpoint: EndpointId) -> bool {
        self.ownership
            .inner
            .any_endpoint(endpoint)
            .is_some_and(|endpoint_record| self.lease(&endpoint_record.tenant, endpoint).is_held())
    }

    /// Returns this node's claims; tells the owners of the others about theirs.
    pub fn keep(&self, claims: Vec<Claim>) -> Vec<Claim> {
        let (ours, others): (Vec<Claim>, Vec<Claim>) = claims.into_iter().partition(|claim| self.owns(claim.endpoint));
        for claim in others {
            let ownership = self.ownership.clone();
            tokio::spawn(async move {
                tokio::time::sleep(EVENT_DELAY).await;
                if let Some(owner) = ownership.owner(ownership.shard(claim.endpoint)) {
                    let (endpoint, due_at, expiry_check_at) = (claim.endpoint, claim.due_at, claim.expires_at);
                    let deliveries = vec![ArrivedDelivery { id: claim.id, event: 0, due_at }];
                    ownership.send_event(
                        owner,
                        ClusterEvent::Arrived { endpoint, due_at, expiry_check_at, count: 1, deliveries },
                    );
                }
            });
        }
        ours
    }

    pub fn events(&self) -> mpsc::UnboundedReceiver<ClusterEvent> {
        let events = self.ownership.state.lock().unwrap().nodes[self.node].events.take();
        events.expect("there is one listener")
    }

    pub fn leased_until(&self) -> Instant {
        self.ownership.state.lock().unwrap().nodes[self.node].ends.unwrap_or_else(|| now() + LEASE)
    }

    pub fn leases(&self) -> Vec<Lease> {
        let state = self.ownership.state.lock().unwrap();
        state.nodes[self.node].believes.iter().copied().filter(|lease| lease.is_held()).collect()
    }

    pub fn publish(&self, statuses: Vec<PublishedStatus>, complete: Vec<Lease>) {
        let mut published = self.ownership.published.lock().unwrap();
        published.statuses.extend(statuses.into_iter().map(|one| (one.endpoint, (one.lease.epoch, one.status))));
        published.complete.extend(complete.into_iter().map(|lease| (lease.shard, lease.epoch)));
    }

    pub fn published(&self, endpoints: &[EndpointId]) -> HashMap<EndpointId, Option<String>> {
        let published = self.ownership.published.lock().unwrap();
        let told = |id: &EndpointId| {
            let shard = self.ownership.shard(*id);
            let (owner, epoch) = self.ownership.state.lock().unwrap().owners[usize::from(shard.0)];
            owner.filter(|_| published.complete.get(&shard) == Some(&Epoch(epoch)))?;
            let status = published.statuses.get(id).filter(|(under, _)| *under == Epoch(epoch));
            Some((*id, status.map(|(_, status)| status.clone())))
        };
        endpoints.iter().filter_map(told).collect()
    }

    pub async fn ask_owner(&self, endpoint: EndpointId, question: String) -> Result<Option<String>> {
        let Some(owner) = self.ownership.owner(self.ownership.shard(endpoint)) else { return Ok(None) };
        let (answer, answered) = oneshot::channel();
        self.ownership.send_event(owner, ClusterEvent::Asked { question, answer });
        Ok(answered.await.ok())
    }
}
