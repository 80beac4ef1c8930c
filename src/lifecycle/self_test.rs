//! Sends an event the whole way once a minute, so that a gateway that looks
//! healthy and sends nothing is found out.
//!
//! The event is one of the tenant `_system`, addressed to an endpoint of its own
//! in a shard of this node. It is accepted, committed, dispatched, signed, sent
//! to a receiver inside the process, judged and settled like any other, and then
//! deleted, so that nothing of it is left. While one has not arrived, no second
//! one is sent.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::json;
use tracing::{debug, info, warn};

use super::Gateway;
use super::accept::{Submission, accept};
use super::change::create_endpoint;
use super::deliver::keys::{new_key, new_secret};
use crate::model::audit::Initiator;
use crate::model::delivery::time_after;
use crate::model::endpoint::{Endpoint, EndpointSettings, EndpointStatus, Secret};
use crate::model::event::EventType;
use crate::model::health::EndpointHealth;
use crate::model::id::{EndpointId, EventId, SecretId, TenantId};
use crate::model::self_test::{SELF_TEST_TYPE, SELF_TEST_URL};
use crate::model::url_versions::UrlVersions;
use crate::store::BatchMode;

/// Interval between two self-tests.
const EVERY: Duration = Duration::from_secs(60);
/// Number of ids that are tried to find one in a shard of this node. A node of
/// ten owns a tenth of the shards, so that one of these fits almost surely.
const IDS_TRIED: usize = 1_000;

/// A self-test that has not arrived yet.
struct UnsettledTest {
    event: EventId,
    endpoint: EndpointId,
    accepted_at: Timestamp,
}

/// Sends a self-test once a minute; never returns.
pub async fn run(gateway: Arc<Gateway>) {
    let (mut unsettled, mut is_failing) = (None, false);
    loop {
        let next_at = time_after(gateway.clock.now(), EVERY);
        let passed = tokio::select! {
            passed = test_once(&gateway, &mut unsettled) => passed,
            () = gateway.clock.sleep_until(next_at) => Err("it has not arrived within a minute".to_owned()),
        };
        match &passed {
            Err(problem) if !is_failing => {
                warn!("the self-test fails: {problem}; look at posthaste_self_test_age_seconds");
            }
            Ok(()) if is_failing => info!("the self-test passes again"),
            Ok(()) | Err(_) => {}
        }
        is_failing = passed.is_err();
        gateway.clock.sleep_until(next_at).await;
    }
}

/// Sends a self-test, or goes on with the one that has not arrived, and waits
/// until it has.
async fn test_once(gateway: &Arc<Gateway>, unsettled: &mut Option<UnsettledTest>) -> Result<(), String> {
    // What another node has taken over is not waited for.
    let is_ours = |test: &UnsettledTest| gateway.store.lease(&TenantId::system(), test.endpoint).is_held();
    *unsettled = unsettled.take().filter(is_ours);
    let test = match unsettled {
        Some(test) => test,
        None => match own_endpoint(gateway) {
            Some(endpoint) => {
                // Before anything is asked of the store: it may accept nothing at all.
                gateway.metrics.record_self_test_begin(gateway.clock.now());
                unsettled.insert(send(gateway, endpoint).await?)
            }
            // A node without shards sends nothing that could be tested.
            None => {
                gateway.metrics.set_self_test_since(None);
                return Ok(());
            }
        },
    };
    let tenant = TenantId::system();
    while !gateway.store.forget_delivered(&tenant, &test.event).await.map_err(|problem| problem.to_string())? {
        gateway.notifier.self_test_settled().await;
    }
    gateway.metrics.set_self_test_since(Some(test.accepted_at));
    debug!("the self-test passed");
    *unsettled = None;
    Ok(())
}

/// Accepts a self-test for this endpoint, which is created if it is not there.
async fn send(gateway: &Gateway, endpoint: EndpointId) -> Result<UnsettledTest, String> {
    if gateway.store.any_endpoint(endpoint).is_none() {
        let new = new_endpoint(endpoint, gateway.clock.now(), gateway.clock.wall());
        create_endpoint(gateway, &Initiator::Gateway, new).await.map_err(|problem| problem.to_string())?;
    }
    let data = Bytes::from_static(b"{}");
    let event_type = EventType::from_stored(SELF_TEST_TYPE);
    let submission = Submission { endpoints: Some(vec![endpoint]), ..Submission::new(event_type, data) };
    let accepted_at = gateway.clock.now();
    let accepted = accept(gateway, &TenantId::system(), vec![submission], BatchMode::All).await;
    let outcome = accepted.map(|outcomes| outcomes.into_iter().next());
    match outcome {
        Ok(Some(Ok(receipt))) => Ok(UnsettledTest { event: receipt.id, endpoint, accepted_at }),
        Ok(Some(Err(refusal))) | Err(refusal) => Err(refusal.to_string()),
        Ok(None) => Err("its event was not accepted".into()),
    }
}

/// Returns the endpoint of the self-test in a shard of this node, or the id of one
/// to create. There is at most one per shard, since one that is there is used
/// again. A node without shards has none.
fn own_endpoint(gateway: &Gateway) -> Option<EndpointId> {
    let (tenant, now) = (TenantId::system(), gateway.clock.now());
    let known = gateway.store.self_test_endpoints();
    let new = std::iter::repeat_with(|| EndpointId::mint(now, rand::random())).take(IDS_TRIED);
    let mut ids = known.iter().map(|known| known.id).chain(new);
    ids.find(|id| gateway.store.lease(&tenant, *id).is_held())
}

fn new_endpoint(id: EndpointId, now: Timestamp, wall: Timestamp) -> Endpoint {
    let settings = json!({"url": SELF_TEST_URL, "event_types": [SELF_TEST_TYPE], "description": "self-test"});
    let settings: EndpointSettings = serde_json::from_value(settings).expect("settings of its own");
    let secret = Secret {
        id: SecretId::mint(wall, rand::random()),
        text: new_secret(rand::random()),
        key: new_key(rand::random()),
        created_at: wall,
        expires_at: None,
    };
    Endpoint {
        id,
        tenant: TenantId::system(),
        urls: UrlVersions::first(&settings.url),
        policy: settings.retry.fill_defaults(),
        settings,
        ceiling: Default::default(),
        status: EndpointStatus::active(now),
        backpressure_until: None,
        health: EndpointHealth::default(),
        mailed_at: None,
        secrets: vec![secret],
        created_at: now,
        updated_at: now,
    }
}
