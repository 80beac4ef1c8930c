//! Where facts rest: what every store promises.
//!
//! Five traits of lifecycle verbs: [`DeliveryQueue`] moves deliveries, [`Catalog`]
//! knows tenants and endpoints, [`History`] answers questions, [`Cluster`]
//! knows the other nodes, [`Access`] who may use the API. A store is all five. Verbs keep atomicity inside the store: whatever one call changes
//! becomes durable together, before the call returns, or not at all.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::model::attempt::Attempt;
use crate::model::delivery::{BodyFormat, DeadCause, DeadlineSource, Delivery, Progress};
use crate::model::endpoint::Endpoint;
use crate::model::endpoint_event::EndpointEvent;
use crate::model::event::Event;
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use crate::model::limits::{OverLimit, TenantUsage};
use crate::model::next_state::NextState;
use crate::model::shard::{Epoch, Lease, Shard};
use crate::model::tenant::Tenant;

mod access;
mod catalog_index;
mod changes;
mod cluster;
mod codes;
pub mod durable_file;
pub mod embedded;
pub mod move_mark;
pub mod plan;
pub mod postgres;
mod progress_columns;
mod queries;
mod row;
mod scrub;
pub mod seal;

pub use access::{AccessStore, AuditQuery, TokenScope, caller, with_caller};
pub use changes::{DeliveryChange, DeliveryChanged, EndpointChange, EndpointChanged, EndpointStop, EndpointUpdate};
pub use cluster::{Cluster, ClusterEvent, ClusterState, NodeState, PublishedStatus, ShardState, StoreStatus};
pub use codes::UnknownCode;
pub use queries::{DeliveryQuery, EventQuery, EventRecord, Lane, ListPage, PageRequest};
pub use scrub::{ScrubStep, Scrubbed};

/// What can go wrong, by what the caller can do about it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Nothing was written; trying again later may work.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// Nothing was written; space must be freed first.
    #[error("the store has no space left: {0}")]
    Full(String),
    /// The shard has another owner now; drop what you hold of it.
    #[error("the lease on shard {} has ended", .0.0)]
    Stale(Shard),
    /// There is no such thing.
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// It exists, but not in a state that allows this.
    #[error("{0}")]
    WrongState(String),
    /// It was changed meanwhile; read it again.
    #[error("it was changed by someone else meanwhile")]
    Changed,
    /// The catalog is newer than what this was based on; match again.
    #[error("the endpoints have changed again and again meanwhile; nothing was stored, so try again in a few seconds")]
    Outdated,
    /// The event is there, and its data no longer is.
    #[error("the data of event {0} was expunged")]
    Expunged(EventId),
    /// The event is there, and its data no longer is: no endpoint wanted it.
    #[error("the data of event {0} is no longer kept, because no endpoint wanted it")]
    Unmatched(EventId),
    /// The event is there, and its data is no longer what was accepted.
    #[error("what is stored of event {0} is damaged; it is not the data that was accepted")]
    Damaged(EventId),
    /// A row holds a code that only a newer version knows. Nothing was
    /// changed; a node of that version can.
    #[error(transparent)]
    UnknownCode(#[from] UnknownCode),
    /// The tenant's limits do not allow it.
    #[error(transparent)]
    OverLimit(OverLimit),
    /// The event names endpoints that do not exist.
    #[error("there is no endpoint {0}")]
    UnknownEndpoint(EndpointId),
}

/// A store's answer.
pub type Result<T> = std::result::Result<T, Error>;

/// A store: all five parts.
pub trait Store: DeliveryQueue + Catalog + History + Cluster + AccessStore {}
impl<T: DeliveryQueue + Catalog + History + Cluster + AccessStore> Store for T {}

/// Moves deliveries from acceptance to their end.
#[async_trait]
pub trait DeliveryQueue: Send + Sync {
    /// Makes events and all their deliveries durable in one commit, in the
    /// order given, and numbers their lanes inside it. Ids are remembered:
    /// an event that was accepted before changes nothing.
    ///
    /// With [`BatchMode::All`] one conflict leaves nothing written, and
    /// nothing to be dispatched either.
    async fn accept(&self, events: Vec<RoutedEvent>, together: BatchMode) -> Result<Vec<AcceptResult>>;

    /// The lease under which this node dispatches an endpoint. Where another
    /// node does, it is one that every write refuses.
    fn lease(&self, tenant: &TenantId, endpoint: EndpointId) -> Lease;

    /// For each endpoint of this node's with something to do, when the first
    /// of it is due.
    async fn earliest_due(&self) -> Result<Vec<(EndpointId, Timestamp)>>;

    /// Reads what is due at an endpoint, oldest first. Lane members appear
    /// only when no predecessor holds them back.
    async fn read_due(&self, lease: Lease, ask: DueQuery) -> Result<DuePage>;

    /// Records an attempt and the state it led to, as one write. A stale
    /// lease changes nothing.
    async fn settle(&self, lease: Lease, settlement: Settlement) -> Result<SettleEffects>;

    /// Reads waiting deliveries of this node's whose time may be over,
    /// whatever they wait for, and when to look again.
    async fn read_overdue(&self, now: Timestamp, limit: usize) -> Result<OverduePage>;

    /// Reads waiting deliveries of a tenant, this node's, that have had no attempt since
    /// their budget began, before the time given. Oldest first, after the one
    /// the last page ended with.
    async fn read_untried(&self, tenant: &TenantId, ask: UntriedQuery) -> Result<UntriedPage>;

    /// Does what a person asked for, if the delivery's state allows it.
    async fn change(
        &self,
        tenant: &TenantId,
        id: DeliveryId,
        change: DeliveryChange,
        now: Timestamp,
    ) -> Result<DeliveryChanged>;

    /// Forgets an event's data, and what receivers answered to it, if nothing
    /// of the event waits any more; tells whether it did. All else that is
    /// known of the event stays, and none of it can be replayed.
    async fn expunge(&self, tenant: &TenantId, id: &EventId) -> Result<bool>;

    /// Compares some events with their checksums, in the order of their
    /// numbers, and gives those of older versions one. One node does it for all.
    async fn scrub(&self, step: ScrubStep) -> Result<Scrubbed>;

    /// Forgets a little of what has been kept long enough. Returns whether
    /// there may be more.
    async fn forget(&self, horizon: RetentionHorizon) -> Result<ForgottenCounts>;
}

/// Whether a batch stands or falls as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchMode {
    /// One conflict refuses all.
    All,
    /// Each event on its own.
    Each,
}

/// An event to be accepted, with the endpoints that want it.
#[derive(Debug, Clone)]
pub struct RoutedEvent {
    /// The event.
    pub event: Arc<Event>,
    /// A hash of everything the producer sent, when it chose the id: tells a
    /// repeat from a conflict.
    pub fingerprint: Option<[u8; 32]>,
    /// Who gets it.
    pub targets: Vec<Arc<Endpoint>>,
    /// When deliveries outside any lane are due, if not at once. Those in a
    /// lane never wait for it: they would hold others up.
    pub due_at: Option<Timestamp>,
    /// When the event is over for its deliveries, in engine time.
    pub expires_at: Option<Timestamp>,
}

impl RoutedEvent {
    /// The same before it is known who gets it.
    pub fn unmatched(&self) -> Self {
        Self {
            event: self.event.clone(),
            fingerprint: self.fingerprint,
            targets: Vec::new(),
            due_at: self.due_at,
            expires_at: self.expires_at,
        }
    }
}

/// What became of an event handed in.
#[derive(Debug, Clone)]
pub enum AcceptResult {
    /// It is durable; these may be dispatched at once.
    New {
        /// How many deliveries there are.
        deliveries: u32,
        /// Those that nothing in their lane holds back.
        claims: Vec<Claim>,
    },
    /// It was accepted before, with the same content.
    Duplicate {
        /// When.
        accepted_at: Timestamp,
        /// How many deliveries it had then.
        deliveries: u32,
    },
    /// The id belongs to other content.
    Conflict {
        /// When that was accepted.
        accepted_at: Timestamp,
    },
}

/// Everything one attempt needs. Holding it is what "in flight" means.
#[derive(Debug, Clone)]
pub struct Claim {
    /// Which delivery.
    pub id: DeliveryId,
    /// Where it goes.
    pub endpoint: EndpointId,
    /// What it carries.
    pub event: Arc<Event>,
    /// How its body looks.
    pub format: BodyFormat,
    /// The lane it is in: one in flight at a time.
    pub lane: Option<Arc<str>>,
    /// Its place there.
    pub seq: Option<u64>,
    /// When it came due.
    pub due_at: Timestamp,
    /// Whether a person asked for this attempt: it waits for no backpressure.
    pub is_urgent: bool,
    /// When the event is over for this delivery, in engine time.
    pub expires_at: Option<Timestamp>,
    /// How much of its budget is used.
    pub progress: Progress,
    /// Whether what is stored of it is no longer what was accepted: it must
    /// never be sent.
    pub is_damaged: bool,
}

impl Claim {
    /// What an attempt at this delivery would need.
    pub fn of(delivery: Delivery, event: Event) -> Self {
        Self {
            id: delivery.id,
            endpoint: delivery.endpoint_id,
            event: Arc::new(event),
            format: delivery.format,
            lane: delivery.lane.map(Arc::from),
            seq: delivery.seq,
            due_at: delivery.due_at,
            is_urgent: delivery.is_urgent,
            expires_at: delivery.expires_at,
            progress: delivery.progress,
            is_damaged: false,
        }
    }
}

/// A question for due deliveries.
#[derive(Debug, Clone)]
pub struct DueQuery {
    /// Of which endpoint.
    pub endpoint: EndpointId,
    /// Due at this time or before.
    pub until: Timestamp,
    /// At most so many.
    pub limit: usize,
    /// Stop once this many bytes of data are read.
    pub bytes_max: usize,
    /// Leave these out; the asker has them already.
    pub except: HashSet<DeliveryId>,
    /// Only what a person asked for.
    pub urgent_only: bool,
}

/// Due deliveries, and when to ask again.
#[derive(Debug, Clone, Default)]
pub struct DuePage {
    /// What is due, oldest first.
    pub claims: Vec<Claim>,
    /// When the first one that is not among them is due, or a moment before.
    pub next_due: Option<Timestamp>,
    /// When the first urgent one that is not among them is due; told when only
    /// urgent ones were asked for.
    pub next_urgent: Option<Timestamp>,
}

/// A waiting delivery whose time may be over.
#[derive(Debug, Clone)]
pub struct OverdueDelivery {
    /// Which delivery.
    pub id: DeliveryId,
    /// Where it goes.
    pub endpoint: EndpointId,
    /// When the event is over for it.
    pub expires_at: Option<Timestamp>,
    /// How much of its budget is used.
    pub progress: Progress,
}

/// Deliveries whose time may be over, and when to look again.
#[derive(Debug, Clone, Default)]
pub struct OverduePage {
    /// Those to look at.
    pub found: Vec<OverdueDelivery>,
    /// When the first one that is not among them should be looked at.
    pub next_at: Option<Timestamp>,
}

/// Deliveries without an attempt. It may hold fewer than asked for and still
/// have a next: a bounded number of rows is looked at.
#[derive(Debug, Clone, Default)]
pub struct UntriedPage {
    /// What was found.
    pub found: Vec<OverdueDelivery>,
    /// Where to go on, if there may be more.
    pub next: Option<DeliveryId>,
}

/// A question for deliveries without an attempt.
#[derive(Debug, Clone, Copy)]
pub struct UntriedQuery {
    /// Their budget began before this.
    pub before: Timestamp,
    /// After this delivery; all, without one.
    pub after: Option<DeliveryId>,
    /// At most so many.
    pub limit: usize,
}

/// What became of a claim.
#[derive(Debug, Clone)]
pub struct Settlement {
    /// Which delivery.
    pub id: DeliveryId,
    /// Where it went.
    pub endpoint: EndpointId,
    /// When this was decided.
    pub now: Timestamp,
    /// What happened.
    pub outcome: ClaimOutcome,
}

/// How a claim ended.
#[derive(Debug, Clone)]
pub enum ClaimOutcome {
    /// A request was made.
    Attempted {
        /// Its record.
        attempt: Box<Attempt>,
        /// Where the delivery goes.
        next: NextState,
        /// Its budget after this attempt.
        progress: Progress,
        /// When its time should be looked at, should it still wait then.
        expiry_check_at: Option<Timestamp>,
        /// What it means for the whole endpoint.
        update: EndpointUpdate,
    },
    /// No request was made and none is charged; it is due again at this time.
    PutBack {
        /// When.
        due_at: Timestamp,
    },
    /// Its processing failed inside the gateway, before any answer. Nothing is
    /// charged; it is due again at this time, unless it has failed so too often.
    InternalError {
        /// When.
        due_at: Timestamp,
        /// What went wrong.
        error: String,
    },
    /// What is stored of it is damaged, so it was not sent.
    Damaged,
    /// Its time was over before an attempt could be made.
    Expired {
        /// What ended it.
        by: DeadlineSource,
        /// What this was decided on. If it has changed, nothing is written.
        progress: Progress,
    },
    /// Its time is not over yet after all; it should be looked at again.
    RecheckExpiry {
        /// When.
        at: Timestamp,
        /// What this was decided on. If it has changed, nothing is written.
        progress: Progress,
    },
}

/// What a settlement led to.
#[derive(Debug, Clone, Default)]
pub struct SettleEffects {
    /// When this delivery is due again, if it is.
    pub due_again_at: Option<Timestamp>,
    /// What may go now because of it: the next of its lane, and operational
    /// events that tell of it.
    pub freed: Vec<Claim>,
    /// What the answer changed about the endpoint.
    pub update: EndpointUpdate,
    /// The types of those operational events.
    pub operational_events: Vec<&'static str>,
    /// Why the delivery died with it, if it did.
    pub died: Option<DeadCause>,
    /// Whether nothing was written, because the delivery had moved on.
    pub is_void: bool,
    /// Whether it was written before, by a call whose answer got lost: what
    /// it freed then is for the asker to look up.
    pub is_repeat: bool,
}

/// What may be forgotten.
#[derive(Debug, Clone, Copy)]
pub struct RetentionHorizon {
    /// Delivered and cancelled deliveries finished before this, events
    /// accepted before it, lanes idle since before it.
    pub finished_before: Timestamp,
    /// Dead letters that died before this.
    pub dead_before: Timestamp,
    /// The data of events that no endpoint wanted, accepted before this.
    pub unmatched_before: Timestamp,
    /// Where the last step stopped looking.
    pub after: u64,
    /// How many events to look at.
    pub step: usize,
}

/// What one step forgot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ForgottenCounts {
    /// Events forgotten.
    pub events: usize,
    /// Deliveries forgotten, with their attempts.
    pub deliveries: usize,
    /// Where to go on, or nothing when all was seen.
    pub next: Option<u64>,
}

/// Knows tenants and endpoints. Reading is from memory and never waits;
/// a change is durable and visible to every reader before its call returns.
#[async_trait]
pub trait Catalog: Send + Sync {
    /// One tenant.
    fn tenant(&self, id: &TenantId) -> Option<Arc<Tenant>>;
    /// All tenants, by id.
    fn tenants(&self) -> Vec<Arc<Tenant>>;
    /// One endpoint of a tenant.
    fn endpoint(&self, tenant: &TenantId, id: EndpointId) -> Option<Arc<Endpoint>>;
    /// An endpoint, whoever owns it.
    fn any_endpoint(&self, id: EndpointId) -> Option<Arc<Endpoint>>;
    /// How many deliveries wait for an endpoint, or for all of this node's
    /// together. Nothing where this node does not know: another owns the
    /// endpoint, or it was gained a moment ago and is being counted.
    fn waiting(&self, endpoint: Option<EndpointId>) -> Option<u64>;
    /// The weights of all tenants that have an endpoint, added up.
    fn weight_in_use(&self) -> u64;
    /// What a tenant uses, as far as this node knows: on many nodes, what is
    /// stored is told only of tenants that have a limit of it.
    fn usage_here(&self, tenant: &TenantId) -> Option<TenantUsage>;
    /// What tenants use, read where this node does not know it.
    async fn usage(&self, tenants: &[TenantId]) -> Result<Vec<TenantUsage>>;
    /// What the events of all tenants take up, where this node knows.
    fn stored_in_all(&self) -> u64;
    /// How many tenants have events that take up something, where this node
    /// knows.
    fn storing_tenants(&self) -> u64;
    /// Whether no other tenant has endpoints, tokens or events.
    fn is_only_tenant(&self, tenant: &TenantId) -> bool;
    /// A tenant's endpoints, newest first.
    fn endpoints(&self, tenant: &TenantId) -> Vec<Arc<Endpoint>>;
    /// The endpoints that want an event.
    fn matching(&self, event: &Event) -> Result<Vec<Arc<Endpoint>>>;

    /// Creates a tenant or replaces what is known of it.
    async fn put_tenant(&self, tenant: Tenant) -> Result<Arc<Tenant>>;
    /// Ends a tenant: its endpoints are deleted with it.
    async fn delete_tenant(&self, id: &TenantId, now: Timestamp) -> Result<()>;
    /// Adds an endpoint.
    async fn create_endpoint(&self, endpoint: Endpoint) -> Result<Arc<Endpoint>>;
    /// Changes an endpoint.
    async fn change_endpoint(
        &self,
        tenant: &TenantId,
        id: EndpointId,
        change: EndpointChange,
        now: Timestamp,
    ) -> Result<EndpointChanged>;
    /// Ends an endpoint: what waits for it is cancelled with the same call.
    async fn delete_endpoint(&self, tenant: &TenantId, id: EndpointId, now: Timestamp) -> Result<()>;

    /// A small fact about the installation itself, by name.
    async fn setting(&self, name: &'static str) -> Result<Option<String>>;
    /// Writes such a fact.
    async fn put_setting(&self, name: &'static str, value: String) -> Result<()>;
    /// Writes such a fact if there is none of that name, and returns the one
    /// that stands there now: of several that write at once, one is first.
    async fn put_setting_once(&self, name: &'static str, value: String) -> Result<String>;
}

/// Answers questions about what was.
#[async_trait]
pub trait History: Send + Sync {
    /// One event.
    async fn event(&self, tenant: &TenantId, id: &EventId) -> Result<Option<EventRecord>>;
    /// A tenant's events, newest first.
    async fn events(&self, tenant: &TenantId, ask: EventQuery, page: PageRequest) -> Result<ListPage<EventRecord>>;
    /// The deliveries of one event.
    async fn event_deliveries(&self, tenant: &TenantId, id: &EventId) -> Result<Option<Vec<Delivery>>>;
    /// One delivery.
    async fn delivery(&self, tenant: &TenantId, id: DeliveryId) -> Result<Option<Delivery>>;
    /// A tenant's deliveries, newest first.
    async fn deliveries(&self, tenant: &TenantId, ask: DeliveryQuery, page: PageRequest) -> Result<ListPage<Delivery>>;
    /// What has happened to an endpoint, newest first.
    async fn endpoint_events(&self, endpoint: EndpointId, page: PageRequest) -> Result<ListPage<EndpointEvent>>;
    /// When the first of what waits for each of these endpoints is, or was, due.
    async fn oldest_due(&self, endpoints: Vec<EndpointId>) -> Result<Vec<Option<Timestamp>>>;
    /// The attempts of a delivery, oldest first.
    async fn attempts(&self, tenant: &TenantId, id: DeliveryId) -> Result<Option<Vec<Attempt>>>;
    /// The head of a lane, and whether it is dead, if the lane has members to
    /// deliver.
    async fn lane_head(&self, endpoint: EndpointId, lane: &str) -> Result<Option<(DeliveryId, bool)>>;
    /// The lanes of an endpoint that have members to deliver.
    async fn lanes(
        &self,
        tenant: &TenantId,
        endpoint: EndpointId,
        blocked_only: bool,
        page: PageRequest,
    ) -> Result<ListPage<Lane>>;
}

/// The one epoch of a store that has a single owner for ever.
pub const ONLY_EPOCH: Epoch = Epoch(1);
