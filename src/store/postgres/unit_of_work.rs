//! Collects what follows from a transaction: operational events in the same
//! transaction, and changes of the index once it is durable.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::PostgresState;
use super::accept_batch::AcceptBatch;
use super::rows::millis;
use super::transaction::{PgTransaction, bind};
use crate::model::endpoint::Endpoint;
use crate::model::endpoint_event::{EndpointEvent, EndpointEventRecord};
use crate::model::operational_event::{OperationalEvent, OperationalEventType};
use crate::model::shard::Shard;
use crate::store::catalog_index::CatalogIndex;
use crate::store::delivery_columns::SubjectColumns;
use crate::store::plan::lane::LaneEffects;
use crate::store::plan::{DeliveryReport, ENDPOINT_EVENTS_KEPT, EventSubject};
use crate::store::row::{PostgresColumns, row};
use crate::store::{AcceptResult, Claim, Result};

type CommitHook = Box<dyn FnOnce(&mut CatalogIndex) + Send + Sync>;

/// An open transaction and its effects.
pub struct UnitOfWork<'a> {
    /// State of the store.
    pub shared: &'a Arc<PostgresState>,
    /// The open transaction.
    pub tx: &'a PgTransaction,
    /// Types of the operational events written in the transaction.
    pub operational_events: Vec<OperationalEventType>,
    due: Mutex<Vec<(i64, i64)>>,
    done: CommitEffects,
}

/// The effects of a transaction once it is durable.
#[derive(Default)]
pub struct CommitEffects {
    /// The new version of the catalog, if the transaction changed it.
    pub version: Option<i64>,
    after: Vec<CommitHook>,
    counts: HashMap<(i64, Shard), i64>,
    /// Endpoints with new due deliveries, and the due times.
    due: Vec<(i64, i64)>,
}

impl<'a> UnitOfWork<'a> {
    /// Returns a unit of work without effects.
    pub fn new(shared: &'a Arc<PostgresState>, tx: &'a PgTransaction) -> Self {
        Self { shared, tx, operational_events: Vec::new(), due: Mutex::default(), done: CommitEffects::default() }
    }

    /// Returns the effects to apply once the transaction is durable.
    pub fn into_effects(self) -> CommitEffects {
        let due = self.due.into_inner();
        CommitEffects { due, ..self.done }
    }

    /// Notes that a delivery of this endpoint is due at this time.
    pub fn becomes_due(&self, endpoint: i64, due_at: i64) {
        self.due.lock().push((endpoint, due_at));
    }

    /// Changes the index once the transaction is durable.
    pub fn after_commit(&mut self, change: impl FnOnce(&mut CatalogIndex) + Send + Sync + 'static) {
        self.done.after.push(Box::new(change));
    }

    /// Adds `more` to the waiting deliveries of an endpoint; it may be negative.
    pub fn count_waiting(&mut self, endpoint: i64, shard: Shard, more: i64) {
        *self.done.counts.entry((endpoint, shard)).or_insert(0) += more;
    }

    /// Raises the version of the catalog, because this transaction changes it.
    /// The version's row stays locked until the end, so versions become visible
    /// in order.
    pub async fn bump_catalog_version(&mut self) -> Result<i64> {
        if let Some(version) = self.done.version {
            return Ok(version);
        }
        let sql = "UPDATE posthaste.catalog SET version = version + 1 RETURNING version";
        let version = self.tx.query(sql, bind![]).await?[0].get(0);
        self.done.version = Some(version);
        Ok(version)
    }

    /// Records an event of an endpoint's life, and accepts the operational event
    /// about it.
    pub async fn record_endpoint_event(
        &mut self,
        no: i64,
        endpoint: &Endpoint,
        endpoint_event: &EndpointEvent,
        now: Timestamp,
    ) -> Result<Vec<Claim>> {
        let record =
            serde_json::to_string(&EndpointEventRecord::of(endpoint_event, now)).expect("a record is plain data");
        let sql = "INSERT INTO posthaste.endpoint_events (endpoint, at, record) VALUES ($1, $2, $3)";
        self.tx.execute(sql, bind![no, millis(now), record]).await?;
        let sql = "DELETE FROM posthaste.endpoint_events WHERE endpoint = $1 AND no <= (
                       SELECT no FROM posthaste.endpoint_events WHERE endpoint = $1 ORDER BY no DESC LIMIT 1 OFFSET $2)";
        self.tx.execute(sql, bind![no, ENDPOINT_EVENTS_KEPT]).await?;
        match OperationalEvent::of_endpoint_event(endpoint, endpoint_event, now) {
            Some(operational_event) => self.accept_operational_event(operational_event, now).await,
            None => Ok(Vec::new()),
        }
    }

    /// Accepts an operational event; returns the claims that may be dispatched.
    pub async fn accept_operational_event(
        &mut self,
        operational_event: OperationalEvent,
        now: Timestamp,
    ) -> Result<Vec<Claim>> {
        let mut writing = AcceptBatch::default();
        let mut claims = Vec::new();
        {
            let index = self.shared.index();
            let snowflake = &self.shared.snowflake;
            for (tenant, new) in index.route_operational(&operational_event, now, rand::random) {
                let accepted = writing.add(&index, snowflake, tenant, snowflake.take(millis(now), 1), &new);
                if let AcceptResult::New { claims: more, .. } = accepted {
                    claims.extend(more);
                }
            }
        }
        if writing.is_empty() {
            return Ok(Vec::new());
        }
        self.operational_events.push(operational_event.event_type);
        let places = writing.write(self.tx, &[], None, self.shared.shard_leases.node()).await?;
        for ((endpoint, shard), more) in writing.counts() {
            self.count_waiting(endpoint, shard, more);
        }
        writing.due().for_each(|(endpoint, due_at)| self.becomes_due(endpoint, due_at));
        places.fill(&mut claims);
        Ok(claims)
    }

    /// Accepts the operational event that tells this about a delivery.
    pub async fn report(&mut self, no: i64, report: DeliveryReport, now: Timestamp) -> Result<Vec<Claim>> {
        match find_subject(self.tx, no).await? {
            Some(subject) => self.accept_operational_event(subject.operational_event(report, now), now).await,
            None => Ok(Vec::new()),
        }
    }

    /// Accepts the events that tell behind which dead letters a lane waits after
    /// a step, and behind which it no longer does.
    pub async fn report_lane(&mut self, effects: LaneEffects, now: Timestamp) -> Result<Vec<Claim>> {
        let mut freed = Vec::new();
        for (no, report) in effects.reports() {
            freed.extend(self.report(no, report, now).await?);
        }
        Ok(freed)
    }
}

/// Runs a transaction, and applies its effects once it is durable.
pub async fn in_transaction<T>(
    shared: &Arc<PostgresState>,
    write: impl AsyncFnOnce(&mut UnitOfWork<'_>) -> Result<T>,
) -> Result<T> {
    let tx = shared.begin().await?;
    let mut work = UnitOfWork::new(shared, &tx);
    let written = write(&mut work).await;
    let effects: CommitEffects = work.into_effects();
    match written {
        Ok(value) => {
            tx.commit().await?;
            shared.adopt(effects).await;
            Ok(value)
        }
        Err(refused) => {
            tx.roll_back().await;
            Err(refused)
        }
    }
}

impl PostgresState {
    /// Applies the effects of a transaction that is durable now.
    pub async fn adopt(&self, done: CommitEffects) {
        // Not earlier: a read that cannot see the rows yet would raise the
        // watermark above them.
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

row! {
    /// A delivery, as operational events describe it.
    postgres struct PostgresSubjectRow from "FROM posthaste.deliveries d JOIN posthaste.events e ON e.no = d.event
             JOIN posthaste.endpoints p ON p.no = d.endpoint JOIN posthaste.tenants t ON t.no = d.tenant
         WHERE d.no = $1" {
        subject: SubjectColumns = SubjectColumns::COLUMNS,
    }
}

/// Reads what operational events say of a delivery. Returns nothing for the
/// system tenant, about whose deliveries there are no operational events.
async fn find_subject(tx: &PgTransaction, no: i64) -> Result<Option<EventSubject>> {
    let found = tx.query_opt(PostgresSubjectRow::SQL, bind![no]).await?;
    Ok(found.and_then(|row| PostgresSubjectRow::read(&row).subject.subject(no)))
}
