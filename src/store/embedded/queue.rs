//! Implements the delivery queue: each verb goes to the writer or to a reader.

use async_trait::async_trait;
use jiff::Timestamp;

use super::forget::ScopeNumbers;
use super::rows::{at, uuid_of};
use super::{EmbeddedStore, accept, change, claim, expunge, forget, overdue, scrub, settle};
use crate::model::audit::Initiator;
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use crate::model::shard::{Lease, Shard};
use crate::store::plan::change::ChangeCondition;
use crate::store::{
    AcceptResult, BatchMode, DeliveryChange, DeliveryChanged, DeliveryQueue, DuePage, DueQuery, Error, ForgottenCounts,
    ForgottenReport, ONLY_EPOCH, OverduePage, Result, RetentionHorizon, RetentionScope, RoutedEvent, ScrubStep,
    Scrubbed, SettleEffects, Settlement, UntriedPage, UntriedQuery,
};

#[async_trait]
impl DeliveryQueue for EmbeddedStore {
    async fn accept(&self, events: Vec<RoutedEvent>, mode: BatchMode) -> Result<Vec<AcceptResult>> {
        self.writer.write(move |transaction| accept::accept(transaction, &events, mode)).await?
    }

    fn lease(&self, tenant: &TenantId, endpoint: EndpointId) -> Lease {
        Lease { shard: Shard::of(tenant, endpoint), epoch: ONLY_EPOCH }
    }

    async fn earliest_due(&self) -> Result<Vec<(EndpointId, Timestamp)>> {
        self.start_sweep();
        self.read(|db| {
            // One seek per endpoint, however many deliveries wait for it.
            let sql = "SELECT id, (SELECT min(due_at) FROM deliveries INDEXED BY deliveries_due
                                   WHERE endpoint = p.no AND state = 0 AND behind = 0) AS due_at
                       FROM endpoints p WHERE deleted_at IS NULL AND due_at IS NOT NULL";
            db.prepare(sql)?.query_map([], |row| Ok((EndpointId(uuid_of(row.get(0)?)), at(row.get(1)?))))?.collect()
        })
        .await
    }

    async fn read_due(&self, lease: Lease, query: DueQuery) -> Result<DuePage> {
        check_epoch(lease)?;
        self.read(move |db| claim::read_due(db, &query)).await
    }

    async fn settle(&self, lease: Lease, settlement: Settlement) -> Result<SettleEffects> {
        check_epoch(lease)?;
        self.writer.write_later(move |transaction| settle::settle(transaction, &settlement)).await
    }

    async fn read_overdue(&self, now: Timestamp, limit: usize) -> Result<OverduePage> {
        self.read(move |db| overdue::read(db, now, limit)).await
    }

    async fn read_untried(&self, tenant: &TenantId, query: UntriedQuery) -> Result<UntriedPage> {
        let tenant = tenant.clone();
        self.read(move |db| overdue::read_untried(db, &tenant, &query)).await
    }

    async fn change(
        &self,
        by: &Initiator,
        tenant: &TenantId,
        id: DeliveryId,
        change: DeliveryChange,
        now: Timestamp,
    ) -> Result<DeliveryChanged> {
        let (by, tenant) = (by.clone(), tenant.clone());
        self.writer
            .write(move |transaction| {
                change::change(transaction, &by, &tenant, id, (change, ChangeCondition::default()), now)
            })
            .await?
    }

    async fn expunge(&self, by: &Initiator, tenant: &TenantId, id: &EventId) -> Result<bool> {
        let (by, tenant, id) = (by.clone(), tenant.clone(), id.clone());
        let is_done = self.writer.write(move |transaction| expunge::expunge(transaction, &by, &tenant, &id)).await??;
        if is_done {
            self.checkpointer.empty_log();
        }
        Ok(is_done)
    }

    async fn forget_delivered(&self, tenant: &TenantId, id: &EventId) -> Result<bool> {
        let (tenant, id) = (tenant.clone(), id.clone());
        self.writer.write(move |transaction| forget::forget_delivered(transaction, &tenant, &id)).await
    }

    async fn scrub(&self, step: ScrubStep) -> Result<Scrubbed> {
        let comparison = self.read(move |db| scrub::compare(db, step)).await?;
        if !comparison.unfilled.is_empty() {
            let unfilled = comparison.unfilled;
            self.writer.write_later(move |transaction| scrub::fill(transaction.db, &unfilled)).await?;
        }
        Ok(comparison.scrubbed)
    }

    async fn forget(&self, horizon: RetentionHorizon) -> Result<ForgottenCounts> {
        let scope = self.scope_numbers(&horizon.scope);
        let find = horizon.clone();
        let candidates = self.read(move |db| forget::find_candidates(db, &find, &scope)).await?;
        let delete = horizon.clone();
        let forgotten = self.writer.write(move |transaction| forget::forget(transaction, &candidates, &delete)).await?;
        if forgotten.next.is_none() && matches!(horizon.scope, RetentionScope::All { .. }) {
            self.forget_unreferenced(horizon).await?;
        }
        Ok(forgotten)
    }

    async fn report_forgotten(&self, now: Timestamp) -> Result<ForgottenReport> {
        self.writer.write(move |transaction| forget::report(transaction, now)).await
    }
}

impl EmbeddedStore {
    fn scope_numbers(&self, scope: &RetentionScope) -> ScopeNumbers {
        let index = self.index();
        match scope {
            RetentionScope::All { except, .. } => {
                ScopeNumbers::Except(except.iter().filter_map(|tenant| index.tenant_no(tenant)).collect())
            }
            RetentionScope::Only(tenant) => ScopeNumbers::Only(index.tenant_no(tenant)),
        }
    }

    /// Deletes the data of unmatched events, idle lanes, and the rows of
    /// endpoints and tenants that were deleted long ago.
    async fn forget_unreferenced(&self, horizon: RetentionHorizon) -> Result<()> {
        let mut after = 0;
        loop {
            let of = horizon.clone();
            let unmatched = self.read(move |db| forget::find_unmatched(db, &of, after)).await?;
            let Some(last) = unmatched.last() else { break };
            after = *last;
            self.writer.write_later(move |transaction| forget::forget_unmatched(transaction, &unmatched)).await?;
        }
        let mut after = None;
        loop {
            let from = after.take();
            let of = horizon.clone();
            let lanes = self.read(move |db| forget::find_idle_lanes(db, &of, from)).await?;
            after = lanes.last().cloned();
            if after.is_none() {
                break;
            }
            let of = horizon.clone();
            self.writer.write(move |transaction| forget::forget_lanes(transaction.db, &lanes, &of)).await?;
        }
        let deleted = self.read(move |db| forget::find_deleted(db, &horizon)).await?;
        self.writer.write(move |transaction| forget::forget_deleted(transaction.db, &deleted)).await
    }
}

/// Refuses a lease of another epoch: this store has one owner for ever, so
/// such a lease is a mistake.
fn check_epoch(lease: Lease) -> Result<()> {
    if lease.epoch == ONLY_EPOCH { Ok(()) } else { Err(Error::Stale(lease.shard)) }
}
