//! What every store promises.
//!
//! A store has eight traits of lifecycle verbs: [`DeliveryQueue`] moves
//! deliveries, [`Catalog`] knows tenants and endpoints, [`History`] answers
//! questions about the past, [`Cluster`] knows the other nodes,
//! [`AccessStore`] knows who may use the API, [`SignInStore`] who is signed in
//! to the pages, [`JobStore`] knows what is done to many deliveries, and
//! [`FigureStore`] knows how many of what happened. Each verb is atomic: whatever
//! one call changes becomes durable together, before the call returns, or not at
//! all. A verb that the audit log records takes the [`Initiator`] of the change,
//! and writes the entry in the same commit.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::model::attempt::Attempt;
use crate::model::audit::Initiator;
use crate::model::dead_letter_group::{DeadLetterGroups, DeadLetterSpan, GroupFilter};
use crate::model::delivery::Delivery;
use crate::model::delivery_filter::DeliveryFilter;
use crate::model::endpoint::Endpoint;
use crate::model::endpoint_event::EndpointEventRecord;
use crate::model::event::Event;
use crate::model::id::{AttemptId, DeliveryId, EndpointId, EventId, TenantId};
use crate::model::limits::TenantUsage;
use crate::model::shard::{Epoch, Lease};
use crate::model::tenant::Tenant;

mod acceptance;
mod access;
pub mod backup;
mod catalog_columns;
mod catalog_index;
mod changes;
mod claim;
mod cluster;
mod codes;
mod content;
mod dead_group_columns;
mod delivery_columns;
pub mod durable_file;
pub mod embedded;
mod error;
mod event_row;
mod figure_columns;
pub mod figures;
mod forgotten_row;
mod job_columns;
mod jobs;
pub mod migrations;
pub mod move_mark;
pub mod outbox;
mod overdue;
pub mod plan;
pub mod postgres;
mod progress_columns;
mod queries;
pub mod resealing;
mod retention;
mod row;
mod row_error;
mod scrub;
pub mod seal;
mod settlement;
mod sign_ins;
mod store_rule;
mod stored_json;
mod stored_value;
mod typed_parameter;

pub use acceptance::{AcceptResult, BatchMode, RoutedEvent};
pub use access::{ADMIN_TOKEN_NOTE, AccessStore, AuditQuery, TokenScope};
pub use changes::{DeliveryChange, DeliveryChanged, EndpointChange, EndpointChanged, EndpointUpdate};
pub use claim::{ArrivedDelivery, ArrivedQuery, Claim, DuePage, DueQuery, ReadClaims};
pub use cluster::{Cluster, ClusterEvent, ClusterState, NodeState, PublishedStatus, ShardState, StoreStatus};
pub use codes::{UnknownCode, delivery_no};
pub use content::{ContentComparison, EventContent};
pub use error::{DatabaseFault, Error, MissingResource, Result, UnavailableReason};
pub use figures::FigureStore;
pub use jobs::{
    BackfillPage, BackfillQuery, BackfillTake, CandidatePage, CandidateWalk, FollowedDeliveries, JobAdvanced,
    JobStarted, JobStep, JobStore, OpenJobCounts, OpenJobs, PurgeStep, WaitingInJob,
};
pub use overdue::{OverdueDelivery, OverduePage, UntriedPage, UntriedQuery};
pub use queries::{EventQuery, EventRecord, FinishPosition, Lane, ListPage, LongRetries, PageRequest};
pub use retention::{ForgottenCounts, ForgottenReport, RetentionHorizon, RetentionScope};
pub use scrub::{ScrubStep, Scrubbed};
pub use settlement::{ClaimOutcome, SettleEffects, Settlement};
pub use sign_ins::{SignInScope, SignInStore};
pub use stored_json::UnreadableRecord;

/// A store has all eight parts.
pub trait Store:
    DeliveryQueue + Catalog + History + Cluster + AccessStore + SignInStore + JobStore + FigureStore
{
}
impl<T: DeliveryQueue + Catalog + History + Cluster + AccessStore + SignInStore + JobStore + FigureStore> Store for T {}

/// Moves deliveries from acceptance to their end.
#[async_trait]
pub trait DeliveryQueue: Send + Sync {
    /// Makes events and all their deliveries durable in one commit, in the
    /// order given, and numbers the members of lanes in that commit. Ids are
    /// remembered: an event that was accepted before changes nothing.
    ///
    /// With [`BatchMode::All`] one conflict leaves nothing written and nothing
    /// to dispatch.
    async fn accept(&self, events: Vec<RoutedEvent>, together: BatchMode) -> Result<Vec<AcceptResult>>;

    /// Returns the lease under which this node dispatches an endpoint. If
    /// another node dispatches it, the lease is one that every write refuses.
    fn lease(&self, tenant: &TenantId, endpoint: EndpointId) -> Lease;

    /// Returns the earliest due time of every endpoint of this node that has
    /// waiting deliveries.
    async fn earliest_due(&self) -> Result<Vec<(EndpointId, Timestamp)>>;

    /// Reads an endpoint's due deliveries, oldest first. A member of a lane
    /// appears only when no predecessor holds it back.
    async fn read_due(&self, lease: Lease, ask: DueQuery) -> Result<DuePage>;

    /// Reads deliveries that other nodes accepted, as far as they wait and no
    /// predecessor holds them back. A store of one process has none.
    async fn read_arrived(&self, _lease: Lease, _ask: &ArrivedQuery) -> Result<ReadClaims> {
        Ok(ReadClaims::default())
    }

    /// Records an attempt and the state it led to in one write. With a stale
    /// lease nothing is written.
    async fn settle(&self, lease: Lease, settlement: Settlement) -> Result<SettleEffects>;

    /// Reads this node's waiting deliveries whose time may be over, whatever
    /// they wait for, and returns when to check again.
    async fn read_overdue(&self, now: Timestamp, limit: usize) -> Result<OverduePage>;

    /// Reads a tenant's waiting deliveries on this node that have had no
    /// attempt since their budget began, oldest first.
    async fn read_untried(&self, tenant: &TenantId, ask: UntriedQuery) -> Result<UntriedPage>;

    /// Makes a change that a person asked for, if the delivery's state allows
    /// it.
    async fn change(
        &self,
        by: &Initiator,
        tenant: &TenantId,
        id: DeliveryId,
        change: DeliveryChange,
        now: Timestamp,
    ) -> Result<DeliveryChanged>;

    /// Removes an event's data and the answers of its receivers, unless one of
    /// its deliveries still waits; returns whether it did. Everything else
    /// about the event stays, but none of its deliveries can be replayed.
    async fn expunge(&self, by: &Initiator, tenant: &TenantId, id: &EventId) -> Result<bool>;

    /// Deletes an event with its deliveries and attempts if all of them are
    /// delivered, whatever the retention. Returns whether nothing is left of it.
    async fn forget_delivered(&self, tenant: &TenantId, id: &EventId) -> Result<bool>;

    /// Compares some events with their checksums, in the order of their
    /// numbers, and adds checksums to events of older versions. One node does
    /// this for all.
    async fn scrub(&self, step: ScrubStep) -> Result<Scrubbed>;

    /// Forgets some of the records that have been kept long enough, and
    /// returns where to go on.
    async fn forget(&self, horizon: RetentionHorizon) -> Result<ForgottenCounts>;

    /// Writes one operational event for each endpoint of which dead letters
    /// were forgotten since the last one, for some endpoints at a time. An event
    /// and the mark that it is written are one commit.
    async fn report_forgotten(&self, now: Timestamp) -> Result<ForgottenReport>;
}

/// Knows tenants and endpoints. Reads are answered from memory and never wait;
/// a change is durable and visible to every reader before its call returns.
#[async_trait]
pub trait Catalog: Send + Sync {
    /// Returns the tenant with this id.
    fn tenant(&self, id: &TenantId) -> Option<Arc<Tenant>>;
    /// Returns all tenants, by id.
    fn tenants(&self) -> Vec<Arc<Tenant>>;
    /// Returns an endpoint of a tenant.
    fn endpoint(&self, tenant: &TenantId, id: EndpointId) -> Option<Arc<Endpoint>>;
    /// Returns an endpoint, whichever tenant it belongs to.
    fn any_endpoint(&self, id: EndpointId) -> Option<Arc<Endpoint>>;
    /// Returns how many deliveries wait for an endpoint, or for all endpoints
    /// of this node. Returns nothing if this node does not know: another node
    /// owns the endpoint, or it was gained a moment ago and is being counted.
    fn waiting(&self, endpoint: Option<EndpointId>) -> Option<u64>;
    /// Returns the sum of the weights of all tenants that have an endpoint.
    fn weight_in_use(&self) -> u64;
    /// Returns what a tenant uses, as far as this node knows. On many nodes the
    /// stored bytes are known only of tenants that have a limit on them.
    fn usage_here(&self, tenant: &TenantId) -> Option<TenantUsage>;
    /// Returns what tenants use, and reads it if this node does not know it.
    async fn usage(&self, tenants: &[TenantId]) -> Result<Vec<TenantUsage>>;
    /// Returns the bytes of all tenants' events, as far as this node knows.
    fn stored_in_all(&self) -> u64;
    /// Returns the number of tenants that have stored events, as far as this
    /// node knows.
    fn storing_tenants(&self) -> u64;
    /// Returns whether no other tenant has endpoints, tokens or events.
    fn is_only_tenant(&self, tenant: &TenantId) -> bool;
    /// Returns the endpoints of self-tests, which no list has.
    fn self_test_endpoints(&self) -> Vec<Arc<Endpoint>>;
    /// Returns a tenant's endpoints, newest first.
    fn endpoints(&self, tenant: &TenantId) -> Vec<Arc<Endpoint>>;
    /// Returns the ids of the endpoints of a tenant, or of all tenants, newest first.
    fn endpoint_ids(&self, tenant: Option<&TenantId>) -> Vec<EndpointId>;
    /// Returns the endpoints of a tenant, or of all tenants, of which what is stored says
    /// that they may need attention, newest first. They are few, however many there are.
    fn notable_endpoints(&self, tenant: Option<&TenantId>) -> Vec<Arc<Endpoint>>;
    /// Returns why an endpoint that is there is not shown: only a newer version
    /// can read it.
    fn unreadable_endpoint(&self, tenant: &TenantId, id: EndpointId) -> Option<UnreadableRecord>;
    /// Returns the endpoints that want an event.
    fn matching(&self, event: &Event) -> Result<Vec<Arc<Endpoint>>>;

    /// Creates a tenant or replaces its settings.
    async fn put_tenant(&self, by: &Initiator, tenant: Tenant) -> Result<Arc<Tenant>>;
    /// Deletes a tenant and its endpoints.
    async fn delete_tenant(&self, by: &Initiator, id: &TenantId, now: Timestamp) -> Result<()>;
    /// Creates an endpoint.
    async fn create_endpoint(&self, by: &Initiator, endpoint: Endpoint) -> Result<Arc<Endpoint>>;
    /// Changes an endpoint and returns the effects.
    async fn change_endpoint(
        &self,
        by: &Initiator,
        tenant: &TenantId,
        id: EndpointId,
        change: EndpointChange,
        now: Timestamp,
    ) -> Result<EndpointChanged>;
    /// Deletes an endpoint; the deliveries that wait for it are cancelled by the
    /// same call.
    async fn delete_endpoint(&self, by: &Initiator, tenant: &TenantId, id: EndpointId, now: Timestamp) -> Result<()>;

    /// Returns a setting of the installation itself.
    async fn setting(&self, name: &'static str) -> Result<Option<String>>;
    /// Writes a setting of the installation.
    async fn put_setting(&self, name: &'static str, value: String) -> Result<()>;
    /// Writes a setting of the installation if it has no value yet, and returns
    /// the value it has now: of several callers at once, one wins.
    async fn put_setting_once(&self, name: &'static str, value: String) -> Result<String>;
}

/// Answers questions about events, deliveries and attempts.
#[async_trait]
pub trait History: Send + Sync {
    /// Returns the event with this id.
    async fn event(&self, tenant: &TenantId, id: &EventId) -> Result<Option<EventRecord>>;
    /// Returns a page of a tenant's events, newest first.
    async fn events(&self, tenant: &TenantId, ask: EventQuery, page: PageRequest) -> Result<ListPage<EventRecord>>;
    /// Returns the deliveries of one event.
    async fn event_deliveries(&self, tenant: &TenantId, id: &EventId) -> Result<Option<Vec<Delivery>>>;
    /// Returns the delivery with this id.
    async fn delivery(&self, tenant: &TenantId, id: DeliveryId) -> Result<Option<Delivery>>;
    /// Returns the tenant of the delivery with this id.
    async fn tenant_of_delivery(&self, id: DeliveryId) -> Result<Option<TenantId>>;
    /// Returns the delivery that the id of an attempt names, and its tenant. The
    /// delivery may have no such attempt.
    async fn delivery_of_attempt(&self, id: AttemptId) -> Result<Option<(TenantId, DeliveryId)>>;
    /// Returns whose endpoint it was, and when it was deleted, as long as
    /// something is kept of it.
    async fn deleted_endpoint(&self, id: EndpointId) -> Result<Option<(TenantId, Timestamp)>>;
    /// Returns the tenants that have an event with this id, by their ids and at
    /// most `limit` of them.
    async fn tenants_of_event(&self, id: &EventId, limit: usize) -> Result<Vec<TenantId>>;
    /// Returns a page of a tenant's deliveries: newest first, or with bounds on
    /// their finish the latest finished first.
    async fn deliveries(&self, tenant: &TenantId, ask: DeliveryFilter, page: PageRequest)
    -> Result<ListPage<Delivery>>;
    /// Returns a page of the deliveries of all tenants, ordered as those of one
    /// tenant. A filter has no endpoint here, and bounds on the finish only
    /// with dead letters.
    async fn all_deliveries(&self, ask: DeliveryFilter, page: PageRequest) -> Result<ListPage<Delivery>>;
    /// Returns the dead letters of a tenant, or of all, in groups, the largest
    /// groups first and at most `limit` of them. It reads counts that
    /// every change of a dead letter updates in its own commit, and counts nothing.
    async fn dead_letter_groups(
        &self,
        tenant: Option<&TenantId>,
        ask: GroupFilter,
        limit: usize,
    ) -> Result<DeadLetterGroups>;
    /// Returns how many dead letters of one endpoint, cause and answer died in a
    /// time. It counts no further than `most`.
    async fn count_dead_letters(&self, of: DeadLetterSpan, most: usize) -> Result<u64>;
    /// Returns how many deliveries of an endpoint, a tenant or all still wait
    /// though their first attempt began before this time. It looks at a bounded
    /// number of those that wait.
    async fn long_retries(
        &self,
        tenant: Option<&TenantId>,
        endpoint: Option<EndpointId>,
        began_before: Timestamp,
    ) -> Result<LongRetries>;
    /// Returns a page of the events of an endpoint's life, newest first.
    async fn endpoint_events(&self, endpoint: EndpointId, page: PageRequest) -> Result<ListPage<EndpointEventRecord>>;
    /// Returns the earliest due time, past or future, of the deliveries that
    /// wait for each of these endpoints.
    async fn oldest_due(&self, endpoints: Vec<EndpointId>) -> Result<Vec<Option<Timestamp>>>;
    /// Returns the attempts of a delivery, oldest first.
    async fn attempts(&self, tenant: &TenantId, id: DeliveryId) -> Result<Option<Vec<Attempt>>>;
    /// Returns the head of a lane and whether it is dead, if the lane has
    /// undelivered members.
    async fn lane_head(&self, endpoint: EndpointId, lane: &str) -> Result<Option<(DeliveryId, bool)>>;
    /// Returns for each of these endpoints the first lane that stands behind a dead
    /// letter while others wait in it, if it has one. It looks at a bounded number of
    /// lanes of each, about `look`.
    async fn blocked_lanes(&self, endpoints: Vec<EndpointId>, look: usize) -> Result<Vec<(EndpointId, Lane)>>;
    /// Returns a page of an endpoint's lanes that have undelivered members.
    async fn lanes(
        &self,
        tenant: &TenantId,
        endpoint: EndpointId,
        blocked_only: bool,
        page: PageRequest,
    ) -> Result<ListPage<Lane>>;
}

/// The only epoch of a store that always has the same owner.
pub const ONLY_EPOCH: Epoch = Epoch(1);
