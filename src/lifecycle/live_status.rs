//! The live status of endpoints: what only the owner of an endpoint knows, and
//! nobody has stored. It says how the endpoint is doing, which of its
//! deliveries are in flight, and what holds back the others.
//!
//! For an endpoint of another node it is what that node published last, at
//! most a second ago; see [`super::publish_status`]. Where nothing is
//! published, as for a moment after a takeover, the stored status is shown. No
//! node is asked, so that looking at endpoints writes nothing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use super::Gateway;
use crate::model::blocker::Capacity;
use crate::model::endpoint::Endpoint;
use crate::model::health::EndpointHealth;
use crate::model::id::{DeliveryId, EndpointId, TenantId};
use crate::model::shard::{SHARDS, Shard};

/// How long a reader waits for the store.
const PATIENCE: Duration = Duration::from_secs(2);

/// A question for the live status of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveStatusQuery {
    /// Tenant of the endpoint.
    pub tenant: TenantId,
    /// Id of the endpoint.
    pub endpoint: EndpointId,
    /// Deliveries that may be in flight.
    pub deliveries: Vec<DeliveryId>,
    /// Lanes whose one slot may be taken.
    pub lanes: Vec<String>,
}

/// The live status of an endpoint, as its owner knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LiveStatus {
    /// Id of the endpoint.
    pub endpoint: EndpointId,
    /// Health of the endpoint; nothing, if it does not exist.
    pub health: Option<EndpointHealth>,
    /// Capacity of the endpoint at its owner.
    #[serde(rename = "blocker")]
    pub capacity: Capacity,
    /// Number of deliveries that wait for it, if it is known.
    pub waiting: Option<u64>,
    /// The deliveries in flight, at least among those asked about.
    pub in_flight: Vec<DeliveryId>,
    /// The lanes whose one slot is taken, at least among those asked about.
    pub busy_lanes: Vec<String>,
}

impl LiveStatusQuery {
    /// Returns a question about the endpoint alone.
    pub fn endpoint(tenant: &TenantId, endpoint: EndpointId) -> Self {
        Self { tenant: tenant.clone(), endpoint, deliveries: Vec::new(), lanes: Vec::new() }
    }
}

impl LiveStatus {
    /// Returns the status of an endpoint for which nothing waits, and whose
    /// health is not known.
    fn idle(endpoint: EndpointId) -> Self {
        let (in_flight, busy_lanes) = (Vec::new(), Vec::new());
        Self { endpoint, health: None, capacity: Capacity::Free, waiting: Some(0), in_flight, busy_lanes }
    }

    /// Returns whether nothing waits and nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.waiting == Some(0) && self.in_flight.is_empty()
    }

    /// Returns whether this is the status that is assumed of an endpoint of
    /// which nothing is published.
    pub fn is_assumed(&self) -> bool {
        let health = self.health.as_ref().is_none_or(|health| *health == EndpointHealth::default());
        health && *self == Self { health: self.health.clone(), ..Self::idle(self.endpoint) }
    }
}

/// Returns the live status of these endpoints: of this node's own as it is now,
/// of the others as it was published.
pub async fn live_statuses(gateway: &Gateway, about: Vec<LiveStatusQuery>) -> HashMap<EndpointId, LiveStatus> {
    let is_ours = |about: &LiveStatusQuery| gateway.store.lease(&about.tenant, about.endpoint).is_held();
    let theirs = about.iter().filter(|about| !is_ours(about)).map(|about| about.endpoint).collect();
    let mut found = read_published(gateway, theirs).await;
    for about in &about {
        found.entry(about.endpoint).or_insert_with(|| local_status(gateway, about));
    }
    found
}

/// Returns the endpoints of a tenant, or of all tenants, that may need attention, newest
/// first: those of which what is stored says so, and all of other nodes, whose owners
/// may know more than is stored.
pub fn endpoints_to_look_at(gateway: &Gateway, tenant: Option<&TenantId>) -> Vec<Arc<Endpoint>> {
    let store = &gateway.store;
    let ours: HashSet<Shard> = store.leases().into_iter().map(|lease| lease.shard).collect();
    // A store of one node has no leases.
    if store.lease_length().is_none() || ours.len() == SHARDS {
        return store.notable_endpoints(tenant);
    }
    let is_ours = |endpoint: &Endpoint| ours.contains(&Shard::of(&endpoint.tenant, endpoint.id));
    let all = store.endpoint_ids(tenant).into_iter().filter_map(|id| store.any_endpoint(id));
    all.filter(|endpoint| endpoint.may_need_attention() || !is_ours(endpoint)).collect()
}

/// Returns what this node knows of an endpoint. If another node owns it, that
/// is the stored status.
pub fn local_status(gateway: &Gateway, about: &LiveStatusQuery) -> LiveStatus {
    let (dispatcher, endpoint) = (&gateway.dispatcher, about.endpoint);
    let is_in_flight = |id: &DeliveryId| dispatcher.is_in_flight(endpoint, *id);
    let is_busy = |lane: &String| dispatcher.is_lane_busy(endpoint, lane);
    LiveStatus {
        endpoint,
        health: gateway.store.any_endpoint(endpoint).map(|known| dispatcher.health(&known)),
        capacity: dispatcher.capacity(endpoint),
        waiting: gateway.store.waiting(Some(endpoint)),
        in_flight: about.deliveries.iter().copied().filter(is_in_flight).collect(),
        busy_lanes: about.lanes.iter().filter(|lane| is_busy(lane)).cloned().collect(),
    }
}

/// Returns everything that this node knows of an endpoint that it owns.
pub fn owner_status(gateway: &Gateway, endpoint: &Endpoint) -> LiveStatus {
    let (in_flight, busy_lanes) = gateway.dispatcher.in_flight_of(endpoint.id);
    let alone = LiveStatusQuery::endpoint(&endpoint.tenant, endpoint.id);
    LiveStatus { in_flight, busy_lanes, ..local_status(gateway, &alone) }
}

/// Reads what the owners of these endpoints have published.
async fn read_published(gateway: &Gateway, endpoints: Vec<EndpointId>) -> HashMap<EndpointId, LiveStatus> {
    if endpoints.is_empty() {
        return HashMap::new();
    }
    let read = tokio::time::timeout(PATIENCE, gateway.store.published_status(endpoints)).await;
    let found = match read {
        Ok(Ok(found)) => found,
        Ok(Err(problem)) => {
            debug!("the live status of other nodes' endpoints could not be read: {problem}");
            return HashMap::new();
        }
        Err(_) => {
            debug!("the live status of other nodes' endpoints could not be read in time");
            return HashMap::new();
        }
    };
    let shown = |(endpoint, text): (EndpointId, Option<String>)| {
        let stored = gateway.store.any_endpoint(endpoint)?;
        let mut status = match text {
            None => LiveStatus::idle(endpoint),
            Some(text) => parse(&text)?,
        };
        // What a person just changed may be newer than what was published.
        let live = status.health.take().filter(|live| !stored.health.is_after(live));
        status.health = Some(live.unwrap_or_else(|| stored.health.clone()));
        Some((endpoint, status))
    };
    found.into_iter().filter_map(shown).collect()
}

fn parse(text: &str) -> Option<LiveStatus> {
    serde_json::from_str(text)
        .inspect_err(|problem| warn!("the live status that another node published cannot be read: {problem}"))
        .ok()
}
