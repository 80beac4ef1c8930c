//! Implements the delivery queue: each verb goes to a group commit or to a read.

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::oneshot;

use super::claims::{self, ClaimKey};
use super::rows::delivery_no;
use super::transaction::{PATIENCE, timeout_error};
use super::{PostgresStore, accept, change, due, expunge, forget, overdue, scrub, settle};
use crate::model::audit::Initiator;
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use crate::model::shard::{Lease, Shard};
use crate::store::{
    AcceptResult, ArrivedDelivery, ArrivedQuery, BatchMode, DeliveryChange, DeliveryChanged, DeliveryQueue, DuePage,
    DueQuery, Error, ForgottenCounts, ForgottenReport, OverduePage, ReadClaims, Result, RetentionHorizon, RoutedEvent,
    ScrubStep, Scrubbed, SettleEffects, Settlement, UntriedPage, UntriedQuery,
};

#[async_trait]
impl DeliveryQueue for PostgresStore {
    async fn accept(&self, events: Vec<RoutedEvent>, mode: BatchMode) -> Result<Vec<AcceptResult>> {
        // Fail at once: waiting for a database that is away helps nobody.
        if !self.shared.status.is_answering() {
            return Err(Error::Unavailable("the database does not answer at the moment".into()));
        }
        let (answer, answered) = oneshot::channel();
        self.accepting.push(accept::AcceptJob { events, mode, answer });
        // The batch before this one may take as long as its own, and a producer
        // should not wait for both.
        match tokio::time::timeout(PATIENCE, answered).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(closed())),
            Err(_) => Err(timeout_error()),
        }
    }

    fn lease(&self, tenant: &TenantId, endpoint: EndpointId) -> Lease {
        self.shared.shard_leases.lease(Shard::of(tenant, endpoint))
    }

    async fn earliest_due(&self) -> Result<Vec<(EndpointId, Timestamp)>> {
        self.shared.start_sweep();
        due::earliest_due(&self.shared, self.shared.shard_leases.numbers()).await
    }

    async fn read_due(&self, lease: Lease, query: DueQuery) -> Result<DuePage> {
        self.check(lease)?;
        due::read_due(&self.shared, &query).await
    }

    async fn read_arrived(&self, lease: Lease, query: &ArrivedQuery) -> Result<ReadClaims> {
        self.check(lease)?;
        let key = |one: &ArrivedDelivery| ClaimKey { no: delivery_no(one.id), event: one.event };
        let keys: Vec<ClaimKey> = query.deliveries.iter().map(key).collect();
        let client = self.shared.connection().await?;
        claims::read(&client, &keys, query.bytes_max).await
    }

    async fn settle(&self, lease: Lease, settlement: Settlement) -> Result<SettleEffects> {
        let (answer, answered) = oneshot::channel();
        self.settling.push(settle::SettleJob { lease, settlement, answer });
        answered.await.unwrap_or_else(|_| Err(closed()))
    }

    async fn read_overdue(&self, now: Timestamp, limit: usize) -> Result<OverduePage> {
        overdue::read_overdue(&self.shared, now, limit, self.shared.shard_leases.numbers()).await
    }

    async fn read_untried(&self, tenant: &TenantId, query: UntriedQuery) -> Result<UntriedPage> {
        overdue::read_untried(&self.shared, tenant, query, self.shared.shard_leases.numbers()).await
    }

    async fn change(
        &self,
        by: &Initiator,
        tenant: &TenantId,
        id: DeliveryId,
        change: DeliveryChange,
        now: Timestamp,
    ) -> Result<DeliveryChanged> {
        change::change(&self.shared, by, tenant, id, change, now).await
    }

    async fn expunge(&self, by: &Initiator, tenant: &TenantId, id: &EventId) -> Result<bool> {
        expunge::expunge(&self.shared, by, tenant, id).await
    }

    async fn forget_delivered(&self, tenant: &TenantId, id: &EventId) -> Result<bool> {
        forget::forget_delivered(&self.shared, tenant, id).await
    }

    async fn scrub(&self, step: ScrubStep) -> Result<Scrubbed> {
        // Only the node that owns the first shard does this.
        if self.shared.shard_leases.holds(Shard(0)) {
            scrub::scrub(&self.shared, step).await
        } else {
            Ok(Scrubbed::default())
        }
    }

    async fn forget(&self, horizon: RetentionHorizon) -> Result<ForgottenCounts> {
        // Only the node that owns the first shard does this.
        if self.shared.shard_leases.holds(Shard(0)) {
            forget::forget(&self.shared, horizon).await
        } else {
            Ok(ForgottenCounts::default())
        }
    }

    async fn report_forgotten(&self, now: Timestamp) -> Result<ForgottenReport> {
        // As forgetting: one node does this for all.
        if self.shared.shard_leases.holds(Shard(0)) {
            forget::report(&self.shared, now).await
        } else {
            Ok(ForgottenReport { is_complete: true, ..ForgottenReport::default() })
        }
    }
}

impl PostgresStore {
    /// Refuses a read under a lease that this node does not hold.
    fn check(&self, lease: Lease) -> Result<()> {
        let is_ours = self.shared.shard_leases.lease(lease.shard) == lease && lease.is_held();
        if is_ours { Ok(()) } else { Err(Error::Stale(lease.shard)) }
    }
}

fn closed() -> Error {
    Error::Unavailable("the store has been closed".into())
}
