//! What one transaction does beside its rows: what it tells, and what the
//! index must learn once it is durable.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::PostgresState;
use super::accept_batch::{AcceptBatch, IdColumns};
use super::rows::{delivery_id, millis, stored_tenant};
use super::transaction::{PgTransaction, bind};
use crate::model::delivery::DeadCause;
use crate::model::endpoint::Endpoint;
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use crate::model::operational_event::{DeliverySubject, EndpointEvent, OperationalEvent};
use crate::model::shard::Shard;
use crate::store::catalog_index::CatalogIndex;
use crate::store::{AcceptResult, Claim, Result, RoutedEvent};

/// How many milestones of an endpoint are kept.
const MILESTONES_KEPT: i64 = 500;

type CommitHook = Box<dyn FnOnce(&mut CatalogIndex) + Send + Sync>;

/// A transaction under way.
pub struct UnitOfWork<'a> {
    /// The store.
    pub shared: &'a Arc<PostgresState>,
    /// The transaction.
    pub tx: &'a PgTransaction,
    /// The types of the operational events written in it.
    pub operational_events: Vec<&'static str>,
    due: Mutex<Vec<(i64, i64)>>,
    done: CommitEffects,
}

/// What follows from a transaction once it is durable.
#[derive(Default)]
pub struct CommitEffects {
    /// The catalog's version that it brought.
    pub version: Option<i64>,
    after: Vec<CommitHook>,
    counts: HashMap<(i64, Shard), i64>,
    /// What is due because of it: endpoints, and when.
    due: Vec<(i64, i64)>,
}

impl<'a> UnitOfWork<'a> {
    /// Nothing is done yet.
    pub fn new(shared: &'a Arc<PostgresState>, tx: &'a PgTransaction) -> Self {
        Self { shared, tx, operational_events: Vec::new(), due: Mutex::default(), done: CommitEffects::default() }
    }

    /// What follows once it is durable.
    pub fn end(self) -> CommitEffects {
        let due = self.due.into_inner();
        CommitEffects { due, ..self.done }
    }

    /// Something of this endpoint is due at this time, once it is durable.
    pub fn becomes_due(&self, endpoint: i64, due_at: i64) {
        self.due.lock().push((endpoint, due_at));
    }

    /// The index is to learn this.
    pub fn after_commit(&mut self, change: impl FnOnce(&mut CatalogIndex) + Send + Sync + 'static) {
        self.done.after.push(Box::new(change));
    }

    /// More deliveries wait for an endpoint, or fewer.
    pub fn count_waiting(&mut self, endpoint: i64, shard: Shard, more: i64) {
        *self.done.counts.entry((endpoint, shard)).or_insert(0) += more;
    }

    /// This transaction changes the catalog. The row stays locked until its
    /// end, so versions become visible in order.
    pub async fn bump_catalog_version(&mut self) -> Result<i64> {
        if let Some(version) = self.done.version {
            return Ok(version);
        }
        let sql = "UPDATE posthaste.catalogue SET version = version + 1 RETURNING version";
        let version = self.tx.query(sql, bind![]).await?[0].get(0);
        self.done.version = Some(version);
        Ok(version)
    }

    /// Writes down what happened to an endpoint, and tells of it.
    pub async fn record_endpoint_event(
        &mut self,
        no: i64,
        endpoint: &Endpoint,
        endpoint_event: &EndpointEvent,
    ) -> Result<Vec<Claim>> {
        let record = serde_json::to_string(endpoint_event).expect("a milestone is plain data");
        let sql = "INSERT INTO posthaste.milestones (endpoint, at, record) VALUES ($1, $2, $3)";
        self.tx.execute(sql, bind![no, millis(endpoint_event.at), record]).await?;
        let sql = "DELETE FROM posthaste.milestones WHERE endpoint = $1 AND no <= (
                       SELECT no FROM posthaste.milestones WHERE endpoint = $1 ORDER BY no DESC LIMIT 1 OFFSET $2)";
        self.tx.execute(sql, bind![no, MILESTONES_KEPT]).await?;
        match OperationalEvent::of_milestone(endpoint, endpoint_event) {
            Some(operational_event) => self.accept_operational_event(operational_event, endpoint_event.at).await,
            None => Ok(Vec::new()),
        }
    }

    /// Accepts an operational event; returns what may be dispatched of it.
    pub async fn accept_operational_event(
        &mut self,
        operational_event: OperationalEvent,
        now: Timestamp,
    ) -> Result<Vec<Claim>> {
        let news_type = operational_event.event_type;
        let Some(event) = operational_event.event(now, rand::random()) else { return Ok(Vec::new()) };
        let mut writing = AcceptBatch::default();
        let accepted = {
            let index = self.shared.index();
            let Some((tenant, targets)) = index.tenant_no(&event.tenant).zip(index.matching(&event).ok()) else {
                return Ok(Vec::new());
            };
            let new =
                RoutedEvent { event: Arc::new(event), fingerprint: None, targets, due_at: None, expires_at: None };
            let numbers = self.shared.numbers();
            writing.add(&index, &numbers, tenant, numbers.take(millis(now), 1), &new)
        };
        self.operational_events.push(news_type);
        let places = writing.write(self.tx, &IdColumns::default(), None, self.shared.shard_leases.node()).await?;
        for ((endpoint, shard), more) in writing.counts() {
            self.count_waiting(endpoint, shard, more);
        }
        writing.due().for_each(|(endpoint, due_at)| self.becomes_due(endpoint, due_at));
        let AcceptResult::New { mut claims, .. } = accepted else { return Ok(Vec::new()) };
        places.fill(&mut claims);
        Ok(claims)
    }

    /// A lane stands behind this dead letter now, or no longer does.
    pub async fn lane_event(&mut self, no: i64, is_blocked: bool, now: Timestamp) -> Result<Vec<Claim>> {
        let Some(told) = PgEventSubjectRow::find(self.tx, no).await? else { return Ok(Vec::new()) };
        let operational_event = match is_blocked {
            true => OperationalEvent::of_blocked_lane(told.subject(), now),
            false => OperationalEvent::of_unblocked_lane(told.subject(), now),
        };
        self.accept_operational_event(operational_event, now).await
    }
}

impl PostgresState {
    /// Takes in what follows from a transaction that is durable now.
    pub async fn adopt(&self, done: CommitEffects) {
        // Now, and not before: a read that cannot see it yet must not pass it.
        done.due.iter().for_each(|(endpoint, due_at)| self.watermarks.lower(*endpoint, *due_at));
        if !done.counts.is_empty() {
            let mut index = self.index_mut();
            for ((endpoint, shard), more) in done.counts {
                if self.shard_leases.holds(shard) {
                    index.count_waiting(endpoint, more);
                }
            }
        }
        let Some(version) = done.version else {
            let mut index = self.index_mut();
            done.after.into_iter().for_each(|change| change(&mut index));
            return;
        };
        self.adopt_version(version, done.after).await;
    }
}

/// A delivery, with what news of it say.
pub struct PgEventSubjectRow {
    tenant: TenantId,
    endpoint: EndpointId,
    delivery: DeliveryId,
    key: Option<String>,
    event: EventId,
    event_type: String,
    attempts: u32,
}

impl PgEventSubjectRow {
    /// Reads what is told of a delivery; nothing, where nothing is.
    pub async fn find(tx: &PgTransaction, no: i64) -> Result<Option<Self>> {
        let sql = "SELECT t.id, p.id, d.created_at, e.key, e.id, e.type, d.attempts
                   FROM posthaste.deliveries d JOIN posthaste.events e ON e.no = d.event
                        JOIN posthaste.endpoints p ON p.no = d.endpoint JOIN posthaste.tenants t ON t.no = d.tenant
                   WHERE d.no = $1";
        let told = tx.query_opt(sql, bind![no]).await?.map(|row| Self {
            tenant: stored_tenant(row.get(0)),
            endpoint: EndpointId(row.get(1)),
            delivery: delivery_id(no, row.get(2)),
            key: row.get(3),
            event: EventId::from_stored(row.get(4)),
            event_type: row.get(5),
            attempts: super::rows::count(&row, 6),
        });
        Ok(told.filter(|told| !told.tenant.is_system()))
    }

    fn subject(&self) -> DeliverySubject<'_> {
        DeliverySubject {
            tenant: &self.tenant,
            endpoint: self.endpoint,
            delivery: self.delivery,
            key: self.key.as_deref(),
        }
    }

    /// It died.
    pub fn dead_event(&self, cause: DeadCause, now: Timestamp) -> OperationalEvent {
        OperationalEvent::of_death(self.subject(), &self.event, &self.event_type, cause, self.attempts, now)
    }
}
