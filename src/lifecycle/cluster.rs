//! Listens to what the store tells of other nodes, and answers them.
//!
//! Each event is dealt with before the next. Nothing here waits: what takes
//! long, such as a request that is still open in a shard that is to go, is
//! waited for apart.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use super::Gateway;
use super::dispatch::lag::Lag;
use super::live_status::{LiveStatus, LiveStatusQuery, local_status};
use crate::model::id::{DeliveryId, EndpointId, TenantId};
use crate::model::rate::roughly;
use crate::model::shard::Shard;
use crate::store::{ClusterEvent, Error, Result};

/// How long to wait before an owner that could not be asked is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// How long whoever wants to know how far behind all are waits for it.
const LAG_PATIENCE: Duration = Duration::from_secs(2);
/// For how long, where leases do not say.
const ASK_FOR: Duration = Duration::from_secs(5);

/// What one node asks another that owns an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeQuestion {
    /// A person changed a delivery: whatever you remember of it is void.
    Changed {
        /// Where it goes.
        endpoint: EndpointId,
        /// Which.
        delivery: DeliveryId,
        /// When something there is due because of it.
        due_at: Option<Timestamp>,
        /// Whether its time begins anew.
        is_anew: bool,
    },
    /// Is a request for this delivery open?
    InFlight {
        /// Where it goes.
        endpoint: EndpointId,
        /// Which.
        delivery: DeliveryId,
    },
    /// How far behind are your shards?
    Lag,
    /// How are these doing, as far as they are yours?
    Felt {
        /// Which, and what of them.
        about: Vec<LiveStatusQuery>,
    },
}

/// What it answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeAnswer {
    /// It is in force.
    Done,
    /// Whether one is.
    InFlight(bool),
    /// How far behind its shards are.
    Lag {
        /// Each of them, by its number.
        shards: Vec<(u8, Lag)>,
    },
    /// How those are doing that are its own.
    Felt {
        /// Each of them.
        felt: Vec<LiveStatus>,
    },
    /// The question makes no sense to this version.
    Unknown,
}

/// Deals with whatever the store tells, for as long as it tells anything.
pub async fn run(gateway: Arc<Gateway>) {
    let mut events = gateway.store.cluster_events();
    while let Some(event) = events.recv().await {
        apply_event(&gateway, event);
    }
}

/// Deals with one event.
pub fn apply_event(gateway: &Gateway, event: ClusterEvent) {
    let (dispatcher, now) = (&gateway.dispatcher, gateway.clock.now());
    match event {
        ClusterEvent::Gained { shards, due, were_owned } => {
            debug!(shards = shards.len(), endpoints_due = due.len(), "{} shards are this node's now", shards.len());
            dispatcher.shards_gained(&shards, due, were_owned);
            gateway.expiry.schedule_check(now);
            // A letter that their last owner could not send any more.
            gateway.notifier.mail_missed(|endpoint| shards.contains(&Shard::of(&endpoint.tenant, endpoint.id)));
        }
        ClusterEvent::Wanted { shards, done } => {
            debug!(shards = shards.len(), "{} shards are to go to another node", shards.len());
            dispatcher.shards_leaving(shards, done);
        }
        ClusterEvent::Lost { shards } => {
            debug!(shards = shards.len(), "{} shards are no longer this node's", shards.len());
            dispatcher.shards_lost(&shards);
        }
        ClusterEvent::Arrived { endpoint, due_at, expiry_check_at } => {
            dispatcher.due_in_store(endpoint, due_at);
            if let Some(at) = expiry_check_at {
                gateway.expiry.schedule_check(at);
            }
        }
        ClusterEvent::Changed { endpoints, tenants, done } => {
            dispatcher.recount();
            for endpoint in endpoints {
                dispatcher.endpoint_changed(endpoint);
            }
            for tenant in tenants {
                dispatcher.tenant_changed(&tenant);
                if let Some(known) = gateway.store.tenant(&tenant) {
                    gateway.intake.change(&tenant, gateway.ingest_rate(&known), now);
                }
            }
            let _ = done.send(());
        }
        ClusterEvent::Asked { question, answer } => {
            let told = match serde_json::from_str(&question) {
                Ok(question) => reply(gateway, question),
                Err(problem) => {
                    warn!("another node asks what this one does not understand: {problem}");
                    NodeAnswer::Unknown
                }
            };
            let _ = answer.send(serde_json::to_string(&told).expect("an answer is plain data"));
        }
    }
}

/// Answers from memory. Whatever has moved on since the question was asked
/// has been read from the store since, by whoever owns it now.
fn reply(gateway: &Gateway, question: NodeQuestion) -> NodeAnswer {
    match question {
        NodeQuestion::Changed { endpoint, delivery, due_at, is_anew } => {
            gateway.dispatcher.delivery_changed(endpoint, delivery, due_at);
            if is_anew {
                gateway.expiry.schedule_check(gateway.clock.now());
            }
            NodeAnswer::Done
        }
        NodeQuestion::InFlight { endpoint, delivery } => {
            NodeAnswer::InFlight(gateway.dispatcher.is_in_flight(endpoint, delivery))
        }
        NodeQuestion::Lag => {
            let shards = gateway.dispatcher.lag_by_shard();
            NodeAnswer::Lag { shards: shards.into_iter().map(|(shard, lag)| (shard.0, lag)).collect() }
        }
        NodeQuestion::Felt { about } => {
            let ours = about.iter().filter(|about| gateway.store.lease(&about.tenant, about.endpoint).is_held());
            NodeAnswer::Felt { felt: ours.map(|about| local_status(gateway, about)).collect() }
        }
    }
}

/// Asks the node that owns an endpoint, if that is another one. Nothing, if it
/// is this node or nobody. A store in trouble is asked again for a while: what
/// a person did is in force only once its owner has said so.
pub async fn ask(
    gateway: &Gateway,
    tenant: &TenantId,
    endpoint: EndpointId,
    question: &NodeQuestion,
) -> Result<Option<NodeAnswer>> {
    let until = tokio::time::Instant::now() + gateway.store.lease_length().unwrap_or(ASK_FOR);
    loop {
        match ask_once(gateway, tenant, endpoint, question).await {
            Err(Error::Unavailable(problem)) if tokio::time::Instant::now() < until => {
                debug!(endpoint.id = %endpoint, "its owner could not be asked yet: {problem}");
                tokio::time::sleep(roughly(ASK_AGAIN, rand::random())).await;
            }
            asked => return asked,
        }
    }
}

/// The same, without asking again.
pub async fn ask_once(
    gateway: &Gateway,
    tenant: &TenantId,
    endpoint: EndpointId,
    question: &NodeQuestion,
) -> Result<Option<NodeAnswer>> {
    if gateway.store.lease(tenant, endpoint).is_held() {
        return Ok(None);
    }
    let text = serde_json::to_string(question).expect("a question is plain data");
    let answer = gateway.store.ask_owner(tenant, endpoint, text).await?;
    Ok(answer.and_then(|answer| parse(&answer)))
}

/// How far behind every shard is, as its owner says. A node that does not
/// answer in time is left out.
pub async fn lags(gateway: &Gateway) -> HashMap<Shard, Lag> {
    let question = serde_json::to_string(&NodeQuestion::Lag).expect("a question is plain data");
    let asked = tokio::time::timeout(LAG_PATIENCE, gateway.store.ask_nodes(question, LAG_PATIENCE / 2)).await;
    let answers = match asked {
        Ok(Ok(answers)) => answers,
        Ok(Err(problem)) => {
            debug!("other nodes could not be asked how far behind they are: {problem}");
            Vec::new()
        }
        Err(_) => Vec::new(),
    };
    let mut lags = HashMap::new();
    for answer in answers {
        if let Some(NodeAnswer::Lag { shards }) = parse(&answer) {
            lags.extend(shards.into_iter().map(|(shard, lag)| (Shard(shard), lag)));
        }
    }
    lags.extend(gateway.dispatcher.lag_by_shard());
    lags
}

/// Whether a request for a delivery is open, at whatever node.
pub async fn is_in_flight(
    gateway: &Gateway,
    tenant: &TenantId,
    endpoint: EndpointId,
    delivery: DeliveryId,
) -> Result<bool> {
    let here = gateway.dispatcher.is_in_flight(endpoint, delivery);
    let there = ask(gateway, tenant, endpoint, &NodeQuestion::InFlight { endpoint, delivery }).await?;
    Ok(here || there == Some(NodeAnswer::InFlight(true)))
}

fn parse(text: &str) -> Option<NodeAnswer> {
    serde_json::from_str(text).inspect_err(|problem| warn!("another node's answer makes no sense: {problem}")).ok()
}
