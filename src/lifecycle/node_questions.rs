//! Questions that nodes ask each other, and their answers.
//!
//! The node that owns an endpoint knows some things that nobody has stored.
//! Other nodes ask it through the store. [`super::cluster`] answers.

use std::collections::HashMap;
use std::time::Duration;

use ipnet::IpNet;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use super::Gateway;
use super::dispatch::lag::Lag;
use super::live_status::{LiveStatus, LiveStatusQuery};
use crate::model::figure_time::FigureSpan;
use crate::model::health::EndpointHealth;
use crate::model::id::{DeliveryId, EndpointId, TenantId};
use crate::model::rate::vary_by_tenth;
use crate::model::shard::Shard;
use crate::store::figures::{FigureRow, FigureScope, StoredFigures};
use crate::store::plan::figures::{decode, encode};
use crate::store::{Error, Result};

/// Pause before an owner that could not be asked is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// How long somebody who looks at other nodes waits, also for the store.
const LOOK_PATIENCE: Duration = Duration::from_secs(2);
/// How long a caller waits until all nodes have confirmed.
const CONFIRM_PATIENCE: Duration = Duration::from_secs(10);
/// How long an owner is asked again and again, where leases set no limit.
const ASK_FOR: Duration = Duration::from_secs(5);

/// A question to another node. The names are what the nodes exchange, so they
/// stay as they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeQuestion {
    /// A person changed a delivery, so the owner must drop what it remembers
    /// of it.
    Changed {
        /// Endpoint of the delivery.
        endpoint: EndpointId,
        /// Id of the delivery.
        delivery: DeliveryId,
        /// Time at which a delivery of the endpoint is due because of the
        /// change.
        due_at: Option<Timestamp>,
        /// Whether the delivery's time limits begin anew.
        is_anew: bool,
    },
    /// Is a request for this delivery open?
    InFlight {
        /// Endpoint of the delivery.
        endpoint: EndpointId,
        /// Id of the delivery.
        delivery: DeliveryId,
    },
    /// Asks how far behind the node's shards are.
    Lag,
    /// Asks which addresses receivers see the node call from.
    Egress,
    /// Asks whether the node has the master key of a check text, which is about to be
    /// used.
    HoldKey {
        /// Check text of the key.
        check: String,
    },
    /// The master key was replaced: the old one goes out of the node's file.
    DropOldKey {
        /// Check text of the new key.
        check: String,
    },
    /// Asks what the node has counted of a scope and not written.
    Figures {
        /// What it is about.
        scope: FigureScope,
    },
    /// A new admin token is in force.
    AdminToken {
        /// Hash of the token, in hexadecimal digits.
        hash: String,
    },
    /// Asks for the live status of those of these endpoints that the node owns.
    LiveStatus {
        /// The endpoints, and what is asked about each.
        about: Vec<LiveStatusQuery>,
    },
}

/// The answer to a [`NodeQuestion`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeAnswer {
    /// The change is in force.
    Done,
    /// Whether a request is open.
    InFlight(bool),
    /// How far behind the node's shards are.
    Lag {
        /// The lag of each shard, with its number.
        shards: Vec<(u8, Lag)>,
    },
    /// The networks that receivers see the node call from.
    Egress {
        /// The networks; none if the node does not know them.
        networks: Vec<IpNet>,
    },
    /// What the node has counted and not written.
    Figures {
        /// The windows, oldest first.
        windows: Vec<UnwrittenWindow>,
    },
    /// The live status of the endpoints that the node owns.
    LiveStatus {
        /// The status of each endpoint.
        statuses: Vec<LiveStatus>,
    },
    /// The node's version does not understand the question.
    Unknown,
}

/// What a node has counted in one window and not written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnwrittenWindow {
    /// Beginning of the window.
    at: Timestamp,
    /// The figures as the store has them, in hexadecimal digits.
    counts: String,
    /// Event types and failing endpoints, if there are any.
    types: Option<String>,
}

impl UnwrittenWindow {
    /// Encodes the figures of a window.
    pub fn of(figures: StoredFigures) -> Self {
        let StoredFigures { at, figures, types, failing, .. } = figures;
        let row = FigureRow { scope: FigureScope::Gateway, figures, types, failing };
        let encoded = encode(&row, (0, 0));
        Self { at, counts: hex::encode(encoded.counts), types: encoded.types.map(hex::encode) }
    }

    /// Returns the figures, if this version can read them.
    fn figures(&self) -> Option<StoredFigures> {
        let types = self.types.as_ref().map(hex::decode).transpose().ok()?;
        decode(FigureSpan::Window, self.at, &hex::decode(&self.counts).ok()?, types.as_deref()).ok()
    }
}

/// Asks the node that owns an endpoint. Returns nothing if that is this node
/// or nobody. If the store is unavailable, it is asked again for a while: a
/// person's change is in force only once the owner has confirmed it.
pub async fn ask_owner(
    gateway: &Gateway,
    tenant: &TenantId,
    endpoint: EndpointId,
    question: &NodeQuestion,
) -> Result<Option<NodeAnswer>> {
    let until = tokio::time::Instant::now() + gateway.store.lease_length().unwrap_or(ASK_FOR);
    loop {
        match ask_once(gateway, tenant, endpoint, question).await {
            Err(Error::Unavailable(problem)) if tokio::time::Instant::now() < until => {
                debug!(endpoint.id = %endpoint, "the node that owns endpoint {endpoint} could not be asked yet: {problem}");
                tokio::time::sleep(vary_by_tenth(ASK_AGAIN, rand::random())).await;
            }
            asked => return asked,
        }
    }
}

/// Asks the node that owns an endpoint once. Returns nothing if that is this
/// node or nobody.
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
    Ok(answer.and_then(|answer| parse(&answer, &format!("the owner of endpoint {endpoint}"))))
}

/// Returns how far behind every shard is, as its owner said within the last second. Shards
/// of a node that does not answer in time are left out.
pub async fn shard_lags(gateway: &Gateway) -> HashMap<Shard, Lag> {
    let ask = async { Ok(lags_of_others(gateway).await) };
    let of_others = gateway.answers.lags.get(|_| true, ask).await;
    let mut lags: HashMap<Shard, Lag> = of_others.map(|lags| lags.iter().cloned().collect()).unwrap_or_default();
    lags.extend(gateway.dispatcher.lag_by_shard());
    lags
}

async fn lags_of_others(gateway: &Gateway) -> Vec<(Shard, Lag)> {
    let shards = |answer: String| match parse(&answer, "a node that was asked for its lag") {
        Some(NodeAnswer::Lag { shards }) => shards,
        _ => Vec::new(),
    };
    let answers = answers_of_others(gateway, &NodeQuestion::Lag).await;
    answers.into_iter().flat_map(shards).map(|(shard, lag)| (Shard(shard), lag)).collect()
}

/// Returns the networks that receivers see each other node call from, as far as
/// nodes answer in time; none for a node that does not know them, or is of an older
/// version.
pub async fn egress_of_others(gateway: &Gateway) -> Vec<Vec<IpNet>> {
    let networks = |answer: String| match parse(&answer, "a node that was asked where it calls from") {
        Some(NodeAnswer::Egress { networks }) => networks,
        _ => Vec::new(),
    };
    answers_of_others(gateway, &NodeQuestion::Egress).await.into_iter().map(networks).collect()
}

/// Returns what the other nodes have counted of a scope and not written, as far as they
/// answer in time.
pub async fn figures_of_others(gateway: &Gateway, scope: &FigureScope) -> Vec<StoredFigures> {
    let windows = |answer: String| match parse(&answer, "a node that was asked for its figures") {
        Some(NodeAnswer::Figures { windows }) => windows,
        _ => Vec::new(),
    };
    let answers = answers_of_others(gateway, &NodeQuestion::Figures { scope: scope.clone() }).await;
    answers.into_iter().flat_map(windows).filter_map(|window| window.figures()).collect()
}

/// Asks all other nodes. Returns the answers that came in time.
async fn answers_of_others(gateway: &Gateway, question: &NodeQuestion) -> Vec<String> {
    let text = serde_json::to_string(question).expect("a question is plain data");
    let patience = gateway.answers.wait_limit();
    match tokio::time::timeout(LOOK_PATIENCE, gateway.store.ask_nodes(text, patience)).await {
        Ok(Ok(answers)) => {
            gateway.answers.note_silence(answers.len() + 1 < gateway.store.nodes());
            answers
        }
        Ok(Err(problem)) => {
            debug!("other nodes could not be asked: {problem}");
            Vec::new()
        }
        Err(_) => Vec::new(),
    }
}

/// Sends a question to all other nodes. Returns how many of them confirmed it, and
/// how many there are.
pub async fn confirmed_by_others(gateway: &Gateway, question: &NodeQuestion) -> Result<(usize, usize)> {
    let others = gateway.store.nodes().saturating_sub(1);
    if others == 0 {
        return Ok((0, 0));
    }
    let text = serde_json::to_string(question).expect("a question is plain data");
    let answers = gateway.store.ask_nodes(text, CONFIRM_PATIENCE).await?;
    let done = answers
        .iter()
        .filter(|answer| matches!(parse(answer, "a node that was told about a key"), Some(NodeAnswer::Done)));
    Ok((done.count(), others.max(answers.len())))
}

/// Returns whether a request for a delivery is open, on any node.
pub async fn is_in_flight(
    gateway: &Gateway,
    tenant: &TenantId,
    endpoint: EndpointId,
    delivery: DeliveryId,
) -> Result<bool> {
    let here = gateway.dispatcher.is_in_flight(endpoint, delivery);
    let there = ask_owner(gateway, tenant, endpoint, &NodeQuestion::InFlight { endpoint, delivery }).await?;
    Ok(here || there == Some(NodeAnswer::InFlight(true)))
}

/// Asks the owner of an endpoint for its health at this moment. This is for
/// actions that depend on it, not for lists. Returns nothing if the owner is
/// this node or nobody.
pub async fn ask_health(gateway: &Gateway, tenant: &TenantId, endpoint: EndpointId) -> Result<Option<EndpointHealth>> {
    let about = vec![LiveStatusQuery::endpoint(tenant, endpoint)];
    let answer = ask_once(gateway, tenant, endpoint, &NodeQuestion::LiveStatus { about }).await?;
    Ok(match answer {
        Some(NodeAnswer::LiveStatus { statuses }) => statuses.into_iter().find_map(|status| status.health),
        _ => None,
    })
}

fn parse(text: &str, from: &str) -> Option<NodeAnswer> {
    let unread = |problem: &serde_json::Error| warn!("the answer of {from} cannot be read: {problem}");
    serde_json::from_str(text).inspect_err(unread).ok()
}
