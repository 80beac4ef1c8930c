//! Felt: what the owner of an endpoint knows of it and nobody has written
//! down: how it is doing this moment, what is on the wire, what keeps the
//! rest.
//!
//! Where that is another node, it is asked: one question to each, about
//! everything of its own. Whoever looks waits for a moment at most; without
//! an answer, what is written down is shown.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::debug;

use super::Gateway;
use super::cluster::{self, NodeAnswer, NodeQuestion};
use super::dispatch::limits::NodeBlocker;
use crate::model::health::EndpointHealth;
use crate::model::id::{DeliveryId, EndpointId, TenantId};

/// How long whoever looks waits for other nodes.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many nodes are asked for one look.
const NODES_MAX: usize = 32;

/// What somebody wants to know of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveStatusQuery {
    /// Whose it is.
    pub tenant: TenantId,
    /// Which.
    pub endpoint: EndpointId,
    /// Whether these are on the wire.
    pub deliveries: Vec<DeliveryId>,
    /// Whether the one slot of these lanes is taken.
    pub lanes: Vec<String>,
}

/// What its owner feels of an endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LiveStatus {
    /// Which.
    pub endpoint: EndpointId,
    /// How it is doing; nothing, if there is no such endpoint.
    pub health: Option<EndpointHealth>,
    /// What keeps its due deliveries.
    pub blocker: NodeBlocker,
    /// How many wait for it, if that is known.
    pub waiting: Option<u64>,
    /// Of those asked about, which are on the wire.
    pub in_flight: Vec<DeliveryId>,
    /// Of the lanes asked about, which are taken.
    pub busy_lanes: Vec<String>,
}

impl LiveStatusQuery {
    /// The endpoint alone.
    pub fn endpoint(tenant: &TenantId, endpoint: EndpointId) -> Self {
        Self { tenant: tenant.clone(), endpoint, deliveries: Vec::new(), lanes: Vec::new() }
    }
}

/// What is felt of these endpoints, by whoever owns them. Each is asked about
/// once.
pub async fn live_statuses(gateway: &Gateway, about: Vec<LiveStatusQuery>) -> HashMap<EndpointId, LiveStatus> {
    let is_ours = |about: &LiveStatusQuery| gateway.store.lease(&about.tenant, about.endpoint).is_held();
    let (ours, theirs): (Vec<LiveStatusQuery>, Vec<LiveStatusQuery>) = about.into_iter().partition(is_ours);
    let mut found: HashMap<EndpointId, LiveStatus> = HashMap::new();
    if !theirs.is_empty() {
        let asking = ask_owners(gateway, theirs.clone(), &mut found);
        if tokio::time::timeout(PATIENCE, asking).await.is_err() {
            debug!("other nodes did not say in time how their endpoints are doing");
        }
    }
    for about in ours.iter().chain(&theirs) {
        found.entry(about.endpoint).or_insert_with(|| local_status(gateway, about));
    }
    found
}

/// What this node feels of an endpoint. Where it is not its own, that is what
/// is written down.
pub fn local_status(gateway: &Gateway, about: &LiveStatusQuery) -> LiveStatus {
    let (dispatcher, endpoint) = (&gateway.dispatcher, about.endpoint);
    let is_in_flight = |id: &DeliveryId| dispatcher.is_in_flight(endpoint, *id);
    let is_busy = |lane: &String| dispatcher.is_lane_busy(endpoint, lane);
    LiveStatus {
        endpoint,
        health: gateway.store.any_endpoint(endpoint).map(|known| dispatcher.health(&known)),
        blocker: dispatcher.blocker(endpoint),
        waiting: gateway.store.waiting(Some(endpoint)),
        in_flight: about.deliveries.iter().copied().filter(is_in_flight).collect(),
        busy_lanes: about.lanes.iter().filter(|lane| is_busy(lane)).cloned().collect(),
    }
}

/// Asks the owner of the first about all of them, then the owner of the first
/// that is still open, and so on.
async fn ask_owners(gateway: &Gateway, mut open: Vec<LiveStatusQuery>, found: &mut HashMap<EndpointId, LiveStatus>) {
    for _ in 0..NODES_MAX {
        let Some(first) = open.first() else { return };
        let (tenant, endpoint) = (first.tenant.clone(), first.endpoint);
        match cluster::ask_once(gateway, &tenant, endpoint, &NodeQuestion::Felt { about: open.clone() }).await {
            Ok(Some(NodeAnswer::Felt { felt })) => {
                found.extend(felt.into_iter().map(|status| (status.endpoint, status)))
            }
            Ok(_) => {}
            // A store in trouble carries no other question either.
            Err(problem) => return debug!(endpoint.id = %endpoint, "its owner could not be asked: {problem}"),
        }
        open.retain(|about| about.endpoint != endpoint && !found.contains_key(&about.endpoint));
    }
}
