//! Listens to what the store tells of other nodes, and answers them.
//!
//! Each tiding is dealt with before the next. Nothing here waits: what takes
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
use super::felt::{About, Felt, feel};
use crate::model::id::{DeliveryId, EndpointId, TenantId};
use crate::model::pace::about;
use crate::model::shard::Shard;
use crate::store::{Error, Result, Tiding};

/// How long to wait before an owner that could not be asked is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// How long whoever wants to know how far behind all are waits for it.
const LAG_PATIENCE: Duration = Duration::from_secs(2);
/// For how long, where leases do not say.
const ASK_FOR: Duration = Duration::from_secs(5);

/// What one node asks another that owns an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
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
        about: Vec<About>,
    },
}

/// What it answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
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
        felt: Vec<Felt>,
    },
    /// The question makes no sense to this version.
    Unknown,
}

/// Deals with whatever the store tells, for as long as it tells anything.
pub async fn listen(gateway: Arc<Gateway>) {
    let mut tidings = gateway.store.tidings();
    while let Some(tiding) = tidings.recv().await {
        hear(&gateway, tiding);
    }
}

/// Deals with one tiding.
pub fn hear(gateway: &Gateway, tiding: Tiding) {
    let (dispatcher, now) = (&gateway.dispatcher, gateway.clock.now());
    match tiding {
        Tiding::Gained { shards, due, were_owned } => {
            debug!(shards = shards.len(), endpoints_due = due.len(), "{} shards are this node's now", shards.len());
            dispatcher.gained(&shards, due, were_owned);
            gateway.expiry.note(now);
            // A letter that their last owner could not send any more.
            gateway.teller.catch_up(|endpoint| shards.contains(&Shard::of(&endpoint.tenant, endpoint.id)));
        }
        Tiding::Wanted { shards, done } => {
            debug!(shards = shards.len(), "{} shards are to go to another node", shards.len());
            dispatcher.wanted(shards, done);
        }
        Tiding::Lost { shards } => {
            debug!(shards = shards.len(), "{} shards are no longer this node's", shards.len());
            dispatcher.lost(&shards);
        }
        Tiding::Arrived { endpoint, due_at, look_at } => {
            dispatcher.stored(endpoint, due_at);
            if let Some(at) = look_at {
                gateway.expiry.note(at);
            }
        }
        Tiding::Changed { endpoints, tenants, done } => {
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
        Tiding::Asked { question, answer } => {
            let told = match serde_json::from_str(&question) {
                Ok(question) => reply(gateway, question),
                Err(problem) => {
                    warn!("another node asks what this one does not understand: {problem}");
                    Answer::Unknown
                }
            };
            let _ = answer.send(serde_json::to_string(&told).expect("an answer is plain data"));
        }
    }
}

/// Answers from memory. Whatever has moved on since the question was asked
/// has been read from the store since, by whoever owns it now.
fn reply(gateway: &Gateway, question: Question) -> Answer {
    match question {
        Question::Changed { endpoint, delivery, due_at, is_anew } => {
            gateway.dispatcher.changed(endpoint, delivery, due_at);
            if is_anew {
                gateway.expiry.note(gateway.clock.now());
            }
            Answer::Done
        }
        Question::InFlight { endpoint, delivery } => {
            Answer::InFlight(gateway.dispatcher.is_in_flight(endpoint, delivery))
        }
        Question::Lag => {
            let shards = gateway.dispatcher.lag_by_shard();
            Answer::Lag { shards: shards.into_iter().map(|(shard, lag)| (shard.0, lag)).collect() }
        }
        Question::Felt { about } => {
            let ours = about.iter().filter(|about| gateway.store.lease(&about.tenant, about.endpoint).is_held());
            Answer::Felt { felt: ours.map(|about| feel(gateway, about)).collect() }
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
    question: &Question,
) -> Result<Option<Answer>> {
    let until = tokio::time::Instant::now() + gateway.store.lease_length().unwrap_or(ASK_FOR);
    loop {
        match ask_once(gateway, tenant, endpoint, question).await {
            Err(Error::Unavailable(problem)) if tokio::time::Instant::now() < until => {
                debug!(endpoint.id = %endpoint, "its owner could not be asked yet: {problem}");
                tokio::time::sleep(about(ASK_AGAIN, rand::random())).await;
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
    question: &Question,
) -> Result<Option<Answer>> {
    if gateway.store.lease(tenant, endpoint).is_held() {
        return Ok(None);
    }
    let text = serde_json::to_string(question).expect("a question is plain data");
    let answer = gateway.store.ask_owner(tenant, endpoint, text).await?;
    Ok(answer.and_then(|answer| understand(&answer)))
}

/// How far behind every shard is, as its owner says. A node that does not
/// answer in time is left out.
pub async fn lags(gateway: &Gateway) -> HashMap<Shard, Lag> {
    let question = serde_json::to_string(&Question::Lag).expect("a question is plain data");
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
        if let Some(Answer::Lag { shards }) = understand(&answer) {
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
    let there = ask(gateway, tenant, endpoint, &Question::InFlight { endpoint, delivery }).await?;
    Ok(here || there == Some(Answer::InFlight(true)))
}

fn understand(text: &str) -> Option<Answer> {
    serde_json::from_str(text).inspect_err(|problem| warn!("another node's answer makes no sense: {problem}")).ok()
}
