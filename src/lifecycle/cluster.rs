//! Applies what the store reports about other nodes, and answers their questions.
//!
//! Each event is applied before the next. Nothing here waits: what takes long,
//! such as an open request in a shard that goes to another node, is waited for
//! elsewhere.

use std::sync::Arc;

use tracing::{debug, warn};

use super::Gateway;
use super::figure_series::not_written;
use super::live_status::local_status;
use super::node_questions::{NodeAnswer, NodeQuestion, UnwrittenWindow};
use crate::model::shard::Shard;
use crate::store::ClusterEvent;

/// Applies every cluster event, until the store sends no more.
pub async fn run(gateway: Arc<Gateway>) {
    let mut events = gateway.store.cluster_events();
    while let Some(event) = events.recv().await {
        apply_event(&gateway, event);
    }
}

/// Applies one cluster event.
pub fn apply_event(gateway: &Gateway, event: ClusterEvent) {
    let (dispatcher, now) = (&gateway.dispatcher, gateway.clock.now());
    match event {
        ClusterEvent::Gained { shards, due, were_owned } => {
            dispatcher.take_over_shards(&shards, due, were_owned);
            gateway.expiry.schedule_check(now);
            // Send the mails that the last owner could not send any more.
            gateway.notifier.mail_missed(|endpoint| shards.contains(&Shard::of(&endpoint.tenant, endpoint.id)));
        }
        ClusterEvent::HandOver { shards, done } => {
            debug!(shards = shards.len(), "handing {} shards over to another node", shards.len());
            dispatcher.hand_over_shards(shards, done);
        }
        ClusterEvent::Lost { shards } => {
            debug!(shards = shards.len(), "lost {} shards", shards.len());
            dispatcher.drop_lost_shards(&shards);
        }
        ClusterEvent::Arrived { endpoint, due_at, expiry_check_at, count, deliveries } => {
            dispatcher.arrived(endpoint, due_at, &deliveries);
            if let Some(endpoint) = gateway.store.any_endpoint(endpoint) {
                dispatcher.accepted_elsewhere(&endpoint.tenant, count);
            }
            if let Some(at) = expiry_check_at {
                gateway.expiry.schedule_check(at);
            }
        }
        ClusterEvent::AcceptsDelayed { delays } => dispatcher.delay_accepts(delays),
        ClusterEvent::Changed { endpoints, tenants, done } => {
            dispatcher.divide_rates();
            for endpoint in endpoints {
                dispatcher.endpoint_changed(endpoint);
            }
            for tenant in tenants {
                dispatcher.tenant_changed(&tenant);
                match gateway.store.tenant(&tenant) {
                    Some(known) => gateway.intake.change_rate(&tenant, gateway.ingest_rate(&known), now),
                    None => dispatcher.forget_figures(&tenant),
                }
            }
            let _ = done.send(());
        }
        ClusterEvent::Asked { question, answer } => {
            let reply = match serde_json::from_str(&question) {
                Ok(question) => answer_to(gateway, question),
                Err(problem) => {
                    warn!(
                        "a question of another node cannot be read, and is answered as unknown; does that node run another version? {problem}"
                    );
                    NodeAnswer::Unknown
                }
            };
            let _ = answer.send(serde_json::to_string(&reply).expect("an answer is plain data"));
        }
    }
}

fn confirmation(is_done: bool) -> NodeAnswer {
    if is_done { NodeAnswer::Done } else { NodeAnswer::Unknown }
}

/// Answers a question from memory. If the endpoint has another owner by now,
/// that owner has read it from the store since.
fn answer_to(gateway: &Gateway, question: NodeQuestion) -> NodeAnswer {
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
        NodeQuestion::HoldKey { check } => confirmation(gateway.store.holds_key(&check)),
        NodeQuestion::DropOldKey { check } => confirmation(gateway.store.drop_old_key(&check)),
        NodeQuestion::AdminToken { hash } => {
            let hash = hex::decode(hash).ok().and_then(|hash| hash.try_into().ok());
            confirmation(hash.map(|hash| gateway.admin.replace(hash)).is_some())
        }
        NodeQuestion::Figures { scope } => {
            let windows = not_written(gateway, &scope);
            NodeAnswer::Figures { windows: windows.into_iter().map(UnwrittenWindow::of).collect() }
        }
        NodeQuestion::Egress => NodeAnswer::Egress { networks: gateway.called_from.clone() },
        NodeQuestion::LiveStatus { about } => {
            let ours = about.iter().filter(|about| gateway.store.lease(&about.tenant, about.endpoint).is_held());
            NodeAnswer::LiveStatus { statuses: ours.map(|about| local_status(gateway, about)).collect() }
        }
    }
}
