//! The queue's verbs, each handed to the line or the read that does it.

use std::sync::atomic::Ordering;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::oneshot;

use super::transaction::{PATIENCE, timeout_error};
use super::{PostgresStore, accept, change, due, expunge, forget, overdue, scrub, settle};
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use crate::model::shard::{Lease, Shard};
use crate::store::{
    AcceptResult, BatchMode, DeliveryChange, DeliveryChanged, DeliveryQueue, DuePage, DueQuery, Error, ForgottenCounts,
    OverduePage, Result, RetentionHorizon, RoutedEvent, ScrubStep, Scrubbed, SettleEffects, Settlement, UntriedPage,
    UntriedQuery,
};

#[async_trait]
impl DeliveryQueue for PostgresStore {
    async fn accept(&self, events: Vec<RoutedEvent>, mode: BatchMode) -> Result<Vec<AcceptResult>> {
        // Whoever waits for a database that is not there gets no answer sooner.
        if !self.shared.is_answering.load(Ordering::Relaxed) {
            return Err(Error::Unavailable("the database does not answer at the moment".into()));
        }
        let (answer, answered) = oneshot::channel();
        self.accepting.push(accept::AcceptJob { events, mode, answer });
        // The batch before it may wait as long as its own, and a producer is
        // not to wait for both.
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

    async fn read_due(&self, lease: Lease, ask: DueQuery) -> Result<DuePage> {
        match self.shared.shard_leases.lease(lease.shard) == lease && lease.is_held() {
            true => due::read_due(&self.shared, &ask).await,
            false => Err(Error::Stale(lease.shard)),
        }
    }

    async fn settle(&self, lease: Lease, settlement: Settlement) -> Result<SettleEffects> {
        let (answer, answered) = oneshot::channel();
        self.settling.push(settle::SettleJob { lease, settlement, answer });
        answered.await.unwrap_or_else(|_| Err(closed()))
    }

    async fn read_overdue(&self, now: Timestamp, limit: usize) -> Result<OverduePage> {
        overdue::read_overdue(&self.shared, now, limit, self.shared.shard_leases.numbers()).await
    }

    async fn read_untried(&self, tenant: &TenantId, ask: UntriedQuery) -> Result<UntriedPage> {
        overdue::read_untried(&self.shared, tenant, ask, self.shared.shard_leases.numbers()).await
    }

    async fn change(
        &self,
        tenant: &TenantId,
        id: DeliveryId,
        change: DeliveryChange,
        now: Timestamp,
    ) -> Result<DeliveryChanged> {
        change::change(&self.shared, tenant, id, change, now).await
    }

    async fn expunge(&self, tenant: &TenantId, id: &EventId) -> Result<bool> {
        expunge::expunge(&self.shared, tenant, id).await
    }

    async fn scrub(&self, step: ScrubStep) -> Result<Scrubbed> {
        // One node at a time: whoever owns the first shard.
        match self.shared.shard_leases.holds(Shard(0)) {
            true => scrub::scrub(&self.shared, step).await,
            false => Ok(Scrubbed::default()),
        }
    }

    async fn forget(&self, horizon: RetentionHorizon) -> Result<ForgottenCounts> {
        // One node at a time: whoever owns the first shard.
        match self.shared.shard_leases.holds(Shard(0)) {
            true => forget::forget(&self.shared, horizon).await,
            false => Ok(ForgottenCounts::default()),
        }
    }
}

fn closed() -> Error {
    Error::Unavailable("the store has been closed".into())
}
