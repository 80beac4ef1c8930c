//! Live status: what the owner of an endpoint knows of it and nobody has
//! stored: how it is doing this moment, what is in flight, what keeps the
//! rest.
//!
//! Of another node's endpoints it is what that node published last, a second
//! ago at most; see [`super::publish_status`]. Where nothing is published, as
//! for a moment after a takeover, what is stored is shown. Nobody is asked,
//! so that looking at endpoints writes nothing.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use super::Gateway;
use super::cluster::{self, NodeAnswer, NodeQuestion};
use crate::model::blocker::Capacity;
use crate::model::endpoint::Endpoint;
use crate::model::health::EndpointHealth;
use crate::model::id::{DeliveryId, EndpointId, TenantId};
use crate::store::Result;

/// How long whoever looks waits for the store.
const PATIENCE: Duration = Duration::from_secs(2);

/// What somebody wants to know of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveStatusQuery {
    /// The endpoint's tenant.
    pub tenant: TenantId,
    /// The endpoint.
    pub endpoint: EndpointId,
    /// Deliveries that may be in flight.
    pub deliveries: Vec<DeliveryId>,
    /// Lanes whose one slot may be taken.
    pub lanes: Vec<String>,
}

/// What its owner knows of an endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LiveStatus {
    /// The endpoint.
    pub endpoint: EndpointId,
    /// How it is doing; nothing, if there is no such endpoint.
    pub health: Option<EndpointHealth>,
    /// What its owner could start for it.
    #[serde(rename = "blocker")]
    pub capacity: Capacity,
    /// How many wait for it, if that is known.
    pub waiting: Option<u64>,
    /// The deliveries in flight, at least of those asked about.
    pub in_flight: Vec<DeliveryId>,
    /// The lanes whose slot is taken, at least of those asked about.
    pub busy_lanes: Vec<String>,
}

impl LiveStatusQuery {
    /// The endpoint alone.
    pub fn endpoint(tenant: &TenantId, endpoint: EndpointId) -> Self {
        Self { tenant: tenant.clone(), endpoint, deliveries: Vec::new(), lanes: Vec::new() }
    }
}

impl LiveStatus {
    /// Nothing waits, and nothing is known of its health.
    fn idle(endpoint: EndpointId) -> Self {
        let (in_flight, busy_lanes) = (Vec::new(), Vec::new());
        Self { endpoint, health: None, capacity: Capacity::Free, waiting: Some(0), in_flight, busy_lanes }
    }

    /// Whether nothing waits and nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.waiting == Some(0) && self.in_flight.is_empty()
    }

    /// Whether an endpoint of which nothing is published stands like this.
    pub fn is_nothing_to_tell(&self) -> bool {
        let health = self.health.as_ref().is_none_or(|health| *health == EndpointHealth::default());
        health && *self == Self { health: self.health.clone(), ..Self::idle(self.endpoint) }
    }
}

/// The live status of these endpoints: this node's own as it is, others' as
/// it was published.
pub async fn live_statuses(gateway: &Gateway, about: Vec<LiveStatusQuery>) -> HashMap<EndpointId, LiveStatus> {
    let is_ours = |about: &LiveStatusQuery| gateway.store.lease(&about.tenant, about.endpoint).is_held();
    let theirs = about.iter().filter(|about| !is_ours(about)).map(|about| about.endpoint).collect();
    let mut found = published(gateway, theirs).await;
    for about in &about {
        found.entry(about.endpoint).or_insert_with(|| local_status(gateway, about));
    }
    found
}

/// What this node knows of an endpoint. Where it is not its own, that is what
/// is stored.
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

/// Everything that its owner, this node, knows of an endpoint.
pub fn owner_status(gateway: &Gateway, endpoint: &Endpoint) -> LiveStatus {
    let (in_flight, busy_lanes) = gateway.dispatcher.in_flight_of(endpoint.id);
    let alone = LiveStatusQuery::endpoint(&endpoint.tenant, endpoint.id);
    LiveStatus { in_flight, busy_lanes, ..local_status(gateway, &alone) }
}

/// Asks the owner of an endpoint how it is doing this very moment: for acts
/// that depend on it, not for lists. Nothing, if that is this node or nobody.
pub async fn ask_health(gateway: &Gateway, tenant: &TenantId, endpoint: EndpointId) -> Result<Option<EndpointHealth>> {
    let about = vec![LiveStatusQuery::endpoint(tenant, endpoint)];
    let answer = cluster::ask_once(gateway, tenant, endpoint, &NodeQuestion::Felt { about }).await?;
    Ok(match answer {
        Some(NodeAnswer::Felt { felt }) => felt.into_iter().find_map(|status| status.health),
        _ => None,
    })
}

/// What the owners of these have published.
async fn published(gateway: &Gateway, endpoints: Vec<EndpointId>) -> HashMap<EndpointId, LiveStatus> {
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
            Some(text) => understand(&text)?,
        };
        // What a person just changed may be newer than what was published.
        let live = status.health.take().filter(|live| !stored.health.is_after(live));
        status.health = Some(live.unwrap_or_else(|| stored.health.clone()));
        Some((endpoint, status))
    };
    found.into_iter().filter_map(shown).collect()
}

fn understand(text: &str) -> Option<LiveStatus> {
    serde_json::from_str(text).inspect_err(|problem| warn!("another node's live status makes no sense: {problem}")).ok()
}
