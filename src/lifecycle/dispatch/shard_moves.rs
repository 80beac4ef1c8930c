//! What moves of shards between nodes mean for the dispatcher.
//!
//! It acts only on what it was told, in order: a shard is its own from the
//! tiding of its gain to that of its being wanted or lost, whatever the store
//! knows by then. What falls in between is remembered by [`ShardOwnership`].

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use super::shard_ownership::{OwnedFraction, ShardRole};
use super::*;

impl Dispatcher {
    /// These shards are this node's, with what is due in them. With
    /// `were_owned`, others may have called their endpoints a moment ago.
    pub fn shards_gained(&self, shards: &[Shard], due: Vec<(EndpointId, Timestamp)>, were_owned: bool) {
        {
            let now = self.now();
            let mut queues = self.queues();
            let early = self.ownership().shards_gained(shards, were_owned, now);
            queues.shards_gained(shards, now, |endpoint| self.gate(endpoint));
            self.count_owned_fractions(&mut queues);
            for (endpoint, due_at) in due.into_iter().chain(early) {
                if self.is_own_endpoint(endpoint, due_at) {
                    queues.due_in_store(endpoint, due_at, now, || self.gate(endpoint));
                }
            }
        }
        self.pump();
    }

    /// These shards are to go: nothing more of them is started, and `done` is
    /// told once nothing of them is in flight.
    pub fn shards_leaving(&self, shards: Vec<Shard>, done: oneshot::Sender<()>) {
        let mut in_flight = {
            let mut queues = self.queues();
            self.ownership().shards_leaving(&shards);
            let in_flight = queues.forget_shards(&shards, self.now());
            self.count_owned_fractions(&mut queues);
            in_flight
        };
        let dispatcher = self.clone();
        // A request that hangs may take a while; others are listened to.
        tokio::spawn(async move {
            loop {
                let fewer = dispatcher.shared.fewer.notified();
                in_flight.retain(|endpoint| dispatcher.queues().has_in_flight(*endpoint));
                if in_flight.is_empty() {
                    break;
                }
                fewer.await;
            }
            // If they were kept or taken meanwhile, there is nothing to give.
            let is_leaving = |shard: &Shard| dispatcher.ownership().role_at(*shard) == ShardRole::Leaving;
            if shards.iter().all(is_leaving) {
                let _ = done.send(());
            }
        });
        self.pump();
    }

    /// These shards are another's. What is in flight is dropped, and known
    /// until then.
    pub fn shards_lost(&self, shards: &[Shard]) {
        {
            let mut queues = self.queues();
            self.ownership().shards_lost(shards);
            queues.forget_shards(shards, self.now());
            self.count_owned_fractions(&mut queues);
        }
        self.shared.context.moved.notify_waiters();
        self.pump();
    }

    /// Endpoints came or went: tenants' rates are divided anew over the nodes.
    pub fn recount(&self) {
        if !self.shared.is_alone {
            self.count_owned_fractions(&mut self.queues());
            self.pump();
        }
    }

    /// How far behind each of this node's shards is.
    pub fn lag_by_shard(&self) -> HashMap<Shard, Lag> {
        let (now, queues) = (self.now(), self.queues());
        let (oldest, ownership) = (queues.oldest_by_shard(now), self.ownership());
        let lag = |shard: Shard| oldest.get(&shard).map_or(Lag::default(), |oldest| oldest.lag(now));
        Shard::all().filter(|shard| ownership.is_ours(*shard)).map(|shard| (shard, lag(shard))).collect()
    }

    /// Drops what is in flight: nothing is recorded of it, and nothing charged.
    pub(super) fn drop_in_flight(&self) {
        self.shared.context.is_cut.store(true, Ordering::SeqCst);
        self.shared.context.moved.notify_waiters();
    }

    /// Whether this node may do something for an endpoint. If the store says
    /// that it soon may, what is due there is looked at then. Asked with the
    /// queues locked.
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

    /// The same for an endpoint of whatever tenant. One that is no more is
    /// nobody's.
    pub(super) fn is_own_endpoint(&self, endpoint: EndpointId, due_at: Timestamp) -> bool {
        let known = || self.shared.context.store.any_endpoint(endpoint);
        self.shared.is_alone || known().is_some_and(|known| self.is_ours(&known.tenant, endpoint, due_at))
    }

    /// Starts what can be started. What the lease is too short for has its
    /// turn again after a short while, the same for no two nodes.
    pub(super) fn try_lease(&self, lease_at: &mut Option<Timestamp>) {
        let now = self.now();
        let waited = lease_at.is_some();
        if lease_at.is_some_and(|at| at <= now) {
            self.queues().try_lease(now);
            *lease_at = None;
        }
        self.pump();
        if !self.queues().waits_for_lease() {
            *lease_at = None;
        } else if lease_at.is_none() {
            *lease_at = Some(after(now, self.shared.context.lease_delay()));
        }
        match (waited, lease_at.is_some()) {
            (false, true) => {
                warn!("nothing is started, because the lease on this node's shards has not been renewed for long");
            }
            (true, false) => info!("attempts no longer wait for the lease on this node's shards"),
            _ => {}
        }
    }

    pub(super) fn ownership(&self) -> MutexGuard<'_, ShardOwnership> {
        self.shared.ownership.lock()
    }

    /// What a tenant may use of this node: its rate is for all nodes together.
    pub(super) fn quota_here(&self, tenant: &TenantId, quota: TenantQuota) -> TenantQuota {
        let Some(rate) = quota.rate.filter(|_| !self.shared.is_alone) else { return quota };
        let counted = self.ownership().owned_fraction(tenant);
        if counted.is_none() {
            self.count_owned_fraction(tenant);
        }
        let part = self.ownership().owned_fraction(tenant).unwrap_or_default();
        TenantQuota { rate: part.of(rate), ..quota }
    }

    /// Counts how much of a tenant is this node's; returns whether that is news.
    pub(super) fn count_owned_fraction(&self, tenant: &TenantId) -> bool {
        if self.shared.is_alone {
            return false;
        }
        let endpoints = self.shared.context.store.endpoints(tenant);
        let mut ownership = self.ownership();
        let owned = endpoints.iter().filter(|endpoint| ownership.is_ours(Shard::of(tenant, endpoint.id))).count();
        ownership.set_owned_fraction(tenant, OwnedFraction { owned, all: endpoints.len() })
    }

    /// Puts in force how much of each tenant is this node's.
    pub(super) fn count_owned_fractions(&self, queues: &mut EndpointQueues) {
        let limited = self.shared.context.store.tenants().into_iter().filter(|tenant| tenant.quota.rate.is_some());
        for tenant in limited {
            if self.count_owned_fraction(&tenant.id) {
                queues.change_quota(&tenant.id, self.quota_here(&tenant.id, tenant.quota), self.now());
            }
        }
    }
}
