//! Publishes the live status of this node's endpoints, once a second, so that
//! other nodes can show it without asking.
//!
//! Only what changed is written: the dispatcher says which endpoints it has
//! touched, and their status is compared with what was published last. What
//! changes without a touch, such as a count that was corrected, is found by
//! looking at everything that is not idle now and then.
//!
//! Invariant: a shard is published as complete only once each of its endpoints
//! was checked under the present lease. Until then, and after a takeover, other
//! nodes show what is stored.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use super::Gateway;
use super::live_status::{LiveStatus, owner_status};
use crate::model::id::EndpointId;
use crate::model::shard::{Epoch, Lease, Shard};
use crate::store::{PublishedStatus, Result};

/// Interval at which changes are published.
const EVERY: Duration = Duration::from_secs(1);
/// Number of publications after which every endpoint that is not idle is
/// checked.
const CHECK_ALL_EVERY: u32 = 10;

/// Publishes for as long as there are other nodes to read it.
pub async fn run(gateway: Arc<Gateway>) {
    let mut publisher = StatusPublisher::default();
    loop {
        tokio::time::sleep(EVERY).await;
        let done = match gateway.store.nodes() {
            0 | 1 => publisher.withdraw(&gateway).await,
            _ => publisher.publish(&gateway).await,
        };
        if let Err(problem) = done {
            debug!("the live status of endpoints could not be published yet: {problem}");
        }
    }
}

/// The live status that other nodes can read of this node's endpoints.
#[derive(Default)]
pub struct StatusPublisher {
    published: HashMap<EndpointId, LiveStatus>,
    /// Endpoints to check: touched, just gained, or not written yet.
    unchecked: HashSet<EndpointId>,
    /// The shards that are followed, under which lease, and whether all of
    /// each is published.
    shards: HashMap<Shard, (Epoch, bool)>,
    /// Number of the store's publication that this one continues.
    publication: u64,
    times: u32,
}

impl StatusPublisher {
    /// Publishes what has changed since the last time.
    pub async fn publish(&mut self, gateway: &Gateway) -> Result<()> {
        self.follow_leases(gateway);
        self.unchecked.extend(gateway.dispatcher.take_touched());
        self.times += 1;
        if self.times.is_multiple_of(CHECK_ALL_EVERY) {
            self.unchecked.extend(self.published.values().filter(|status| !status.is_idle()).map(|one| one.endpoint));
        }
        let (changed, uncounted) = self.changed_statuses(gateway);
        let complete = self.newly_complete(gateway, &uncounted);
        if !changed.is_empty() || !complete.is_empty() {
            let statuses = changed.iter().map(|(lease, status)| PublishedStatus {
                endpoint: status.endpoint,
                lease: *lease,
                status: serde_json::to_string(status).expect("a status is plain data"),
            });
            gateway.store.publish_status(statuses.collect(), complete.clone()).await?;
        }
        self.published.extend(changed.into_iter().map(|(_, status)| (status.endpoint, status)));
        self.shards.extend(complete.into_iter().map(|lease| (lease.shard, (lease.epoch, true))));
        self.unchecked = uncounted;
        Ok(())
    }

    /// Takes back what was published, now that nobody reads it.
    async fn withdraw(&mut self, gateway: &Gateway) -> Result<()> {
        if !self.shards.is_empty() {
            gateway.store.withdraw_status().await?;
            *self = Self::default();
        }
        Ok(())
    }

    /// Forgets endpoints that are no longer this node's, and has those checked
    /// that it has gained, or that the store may have lost.
    fn follow_leases(&mut self, gateway: &Gateway) {
        let publication = gateway.store.publication();
        if publication != self.publication {
            *self = Self { publication, ..Self::default() };
        }
        let held: HashMap<Shard, Epoch> =
            gateway.store.leases().into_iter().map(|lease| (lease.shard, lease.epoch)).collect();
        let before = self.shards.len();
        self.shards.retain(|shard, (epoch, _)| held.get(shard) == Some(epoch));
        let gained: HashSet<Shard> = held.keys().copied().filter(|shard| !self.shards.contains_key(shard)).collect();
        if gained.is_empty() && before == self.shards.len() {
            return;
        }
        let endpoints: Vec<(EndpointId, Shard)> = gateway
            .store
            .tenants()
            .iter()
            .flat_map(|tenant| gateway.store.endpoints(&tenant.id))
            .map(|endpoint| (endpoint.id, Shard::of(&endpoint.tenant, endpoint.id)))
            .collect();
        let kept: HashSet<EndpointId> =
            endpoints.iter().filter(|(_, shard)| self.shards.contains_key(shard)).map(|(id, _)| *id).collect();
        self.published.retain(|id, _| kept.contains(id));
        self.unchecked.extend(endpoints.iter().filter(|(_, shard)| gained.contains(shard)).map(|(id, _)| *id));
        self.shards.extend(gained.into_iter().map(|shard| (shard, (held[&shard], false))));
    }

    /// Returns the statuses that differ from what is published, and the endpoints
    /// whose waiting deliveries are not counted yet.
    fn changed_statuses(&self, gateway: &Gateway) -> (Vec<(Lease, LiveStatus)>, HashSet<EndpointId>) {
        let (mut changed, mut uncounted) = (Vec::new(), HashSet::new());
        for id in &self.unchecked {
            let endpoint = gateway.store.any_endpoint(*id).filter(|endpoint| !endpoint.is_self_test());
            let Some(endpoint) = endpoint else { continue };
            let lease = gateway.store.lease(&endpoint.tenant, *id);
            if self.shards.get(&lease.shard).is_none_or(|(epoch, _)| *epoch != lease.epoch) {
                continue;
            }
            let status = owner_status(gateway, &endpoint);
            if status.waiting.is_none() {
                uncounted.insert(*id);
                continue;
            }
            let is_published = match self.published.get(id) {
                Some(published) => *published == status,
                None => status.is_assumed(),
            };
            if !is_published {
                changed.push((lease, status));
            }
        }
        (changed, uncounted)
    }

    /// Returns the shards that are completely published with this publication.
    fn newly_complete(&self, gateway: &Gateway, uncounted: &HashSet<EndpointId>) -> Vec<Lease> {
        let shard_of =
            |id: &EndpointId| gateway.store.any_endpoint(*id).map(|endpoint| Shard::of(&endpoint.tenant, endpoint.id));
        let waiting: HashSet<Shard> = uncounted.iter().filter_map(shard_of).collect();
        let complete = self.shards.iter().filter(|(shard, (_, is_complete))| !is_complete && !waiting.contains(shard));
        complete.map(|(shard, (epoch, _))| Lease { shard: *shard, epoch: *epoch }).collect()
    }
}
