//! Applies moves of shards between nodes to the dispatcher.
//!
//! The dispatcher acts only on cluster events, in their order: a shard is its
//! own from the event of its gain to that of its being wanted or lost, even if
//! the store knows more by then. [`ShardOwnership`] remembers what comes in
//! between.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use jiff::Timestamp;
use parking_lot::MutexGuard;
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::Dispatcher;
use super::lag::Lag;
use super::queues::EndpointQueues;
use super::shard_ownership::{OwnedFraction, ShardOwnership, ShardRole};
use crate::model::delivery::time_after;
use crate::model::id::{EndpointId, TenantId};
use crate::model::shard::Shard;
use crate::model::tenant::TenantQuota;

impl Dispatcher {
    /// Takes over shards, with the due times of their endpoints. With
    /// `were_owned`, other nodes may have called the endpoints a moment ago.
    pub fn take_over_shards(&self, shards: &[Shard], due: Vec<(EndpointId, Timestamp)>, were_owned: bool) {
        {
            let now = self.now();
            let mut queues = self.queues();
            let early = self.ownership().record_gain(shards, were_owned, now);
            queues.regain_queues(shards, now, |endpoint| self.gate(endpoint));
            self.count_owned_fractions(&mut queues);
            for (endpoint, due_at) in due.into_iter().chain(early) {
                if self.is_own_endpoint(endpoint, due_at) {
                    queues.due_in_store(endpoint, due_at, now, || self.gate(endpoint));
                }
            }
        }
        self.pump();
    }

    /// Prepares to give shards away: nothing more of them starts, and `done`
    /// is sent once nothing of them is in flight.
    pub fn hand_over_shards(&self, shards: Vec<Shard>, done: oneshot::Sender<()>) {
        let mut in_flight = {
            let mut queues = self.queues();
            self.ownership().record_hand_over(&shards);
            let in_flight = queues.forget_shards(&shards, self.now());
            self.count_owned_fractions(&mut queues);
            in_flight
        };
        let dispatcher = self.clone();
        // In a task of its own, because a request that hangs may take long and
        // other cluster events must not wait for it.
        tokio::spawn(async move {
            loop {
                let claim_ended = dispatcher.shared.claim_ended.notified();
                in_flight.retain(|endpoint| dispatcher.queues().has_in_flight(*endpoint));
                if in_flight.is_empty() {
                    break;
                }
                claim_ended.await;
            }
            // If a shard was gained again or lost meanwhile, there is nothing to give.
            let is_leaving = |shard: &Shard| dispatcher.ownership().role_at(*shard) == ShardRole::Leaving;
            if shards.iter().all(is_leaving) {
                let _ = done.send(());
            }
        });
        self.pump();
    }

    /// Gives up shards that another node owns now. Requests in flight are
    /// aborted; each stays known until its task has ended.
    pub fn drop_lost_shards(&self, shards: &[Shard]) {
        {
            let mut queues = self.queues();
            self.ownership().record_loss(shards);
            queues.forget_shards(shards, self.now());
            self.count_owned_fractions(&mut queues);
        }
        self.shared.context.leases_changed.notify_waiters();
        self.pump();
    }

    /// Divides the tenants' rates over the nodes again, after endpoints were
    /// created or deleted.
    pub fn divide_rates(&self) {
        if !self.shared.is_alone {
            self.count_owned_fractions(&mut self.queues());
            self.pump();
        }
    }

    /// Returns the lag of each of this node's shards.
    pub fn lag_by_shard(&self) -> HashMap<Shard, Lag> {
        let (now, queues) = (self.now(), self.queues());
        let (oldest, ownership) = (queues.oldest_by_shard(now), self.ownership());
        let lag = |shard: Shard| oldest.get(&shard).map_or(Lag::default(), |oldest| oldest.lag(now));
        Shard::all().filter(|shard| ownership.is_ours(*shard)).map(|shard| (shard, lag(shard))).collect()
    }

    /// Aborts the requests in flight; nothing of them is recorded or charged.
    pub(super) fn drop_in_flight(&self) {
        self.shared.context.is_aborting.store(true, Ordering::SeqCst);
        self.shared.context.leases_changed.notify_waiters();
    }

    /// Whether this node may dispatch an endpoint. If the store has the lease
    /// already but the gain is not applied yet, remembers the due time for
    /// then. Called with the queues locked.
    pub(super) fn is_ours(&self, tenant: &TenantId, endpoint: EndpointId, due_at: Timestamp) -> bool {
        if self.shared.is_alone {
            return true;
        }
        let lease = self.shared.context.store.lease(tenant, endpoint);
        let mut ownership = self.ownership();
        let is_ours = lease.is_held() && ownership.is_ours_under(lease.shard, lease.epoch);
        if lease.is_held() && !is_ours {
            ownership.remember_early_due(lease.shard, endpoint, due_at);
        }
        is_ours
    }

    /// Whether this node may dispatch an endpoint of any tenant, as
    /// [`Self::is_ours`]. A deleted endpoint belongs to no node.
    pub(super) fn is_own_endpoint(&self, id: EndpointId, due_at: Timestamp) -> bool {
        let endpoint = || self.shared.context.store.any_endpoint(id);
        self.shared.is_alone || endpoint().is_some_and(|endpoint| self.is_ours(&endpoint.tenant, id, due_at))
    }

    /// Offers what waits for the lease again, if it is time to.
    pub(super) fn retry_lease(&self, lease_at: Option<Timestamp>, now: Timestamp) {
        if lease_at.is_some_and(|at| at <= now) {
            self.queues().offer_waiting_for_lease(now);
        }
    }

    /// Returns when to offer what waits for the lease again, if anything does: after a
    /// short time, which differs between nodes.
    pub(super) fn next_lease_retry(&self, lease_at: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
        let waits = self.queues().waits_for_lease();
        match (lease_at.is_some(), waits) {
            (false, true) => {
                warn!("attempts wait: the lease on this node's shards ends too soon and has not been renewed");
            }
            (true, false) => info!("attempts no longer wait for the lease on this node's shards"),
            _ => {}
        }
        let planned = lease_at.filter(|at| *at > now);
        waits.then(|| planned.unwrap_or_else(|| time_after(now, self.shared.context.lease_delay())))
    }

    pub(super) fn ownership(&self) -> MutexGuard<'_, ShardOwnership> {
        self.shared.ownership.lock()
    }

    /// Returns a tenant's quota on this node: its part of the rate, which is
    /// for all nodes together.
    pub(super) fn quota_here(&self, tenant: &TenantId, quota: TenantQuota) -> TenantQuota {
        let Some(rate) = quota.rate.filter(|_| !self.shared.is_alone) else { return quota };
        let fraction = self.ownership().owned_fraction(tenant);
        if fraction.is_none() {
            self.count_owned_fraction(tenant);
        }
        let fraction = self.ownership().owned_fraction(tenant).unwrap_or_default();
        TenantQuota { rate: fraction.part_of(rate), ..quota }
    }

    /// Counts the endpoints of a tenant that this node owns; returns whether
    /// the fraction changed.
    pub(super) fn count_owned_fraction(&self, tenant: &TenantId) -> bool {
        if self.shared.is_alone {
            return false;
        }
        let endpoints = self.shared.context.store.endpoints(tenant);
        let mut ownership = self.ownership();
        let owned = endpoints.iter().filter(|endpoint| ownership.is_ours(Shard::of(tenant, endpoint.id))).count();
        ownership.set_owned_fraction(tenant, OwnedFraction { owned, all: endpoints.len() })
    }

    /// Counts the owned endpoints of all tenants with a rate, and applies the
    /// changed quotas.
    pub(super) fn count_owned_fractions(&self, queues: &mut EndpointQueues) {
        let limited = self.shared.context.store.tenants().into_iter().filter(|tenant| tenant.quota.rate.is_some());
        for tenant in limited {
            if self.count_owned_fraction(&tenant.id) {
                queues.change_quota(&tenant.id, self.quota_here(&tenant.id, tenant.quota), self.now());
            }
        }
    }
}
