//! Makes the changes that people ask for: retry, cancel, replay or discard a
//! delivery; expunge an event; change, pause, resume or delete an endpoint.
//!
//! Invariant: a change is durable before the dispatcher applies it.

use std::sync::Arc;

use super::Gateway;
use super::node_questions::{self, NodeQuestion, ask_health};
use crate::model::audit::Initiator;
use crate::model::delivery::{DeliveryState, time_after};
use crate::model::endpoint::{Endpoint, EndpointState};
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use crate::model::span::Span;
use crate::model::tenant::Tenant;
use crate::store::{DeliveryChange, EndpointChange, Error, MissingResource, Result};

/// Changes one delivery as a person asked.
pub async fn change_delivery(
    gateway: &Gateway,
    by: &Initiator,
    tenant: &TenantId,
    id: DeliveryId,
    change: DeliveryChange,
) -> Result<()> {
    match change {
        DeliveryChange::RetryNow => refuse_in_flight(gateway, tenant, id).await?,
        DeliveryChange::Cancel | DeliveryChange::Replay | DeliveryChange::Discard => {}
    }
    let now = gateway.clock.now();
    let changed = gateway.store.change(by, tenant, id, change, now).await?;
    gateway.dispatcher.delivery_changed(changed.endpoint, id, changed.due_at);
    gateway.dispatcher.admit(changed.freed);
    gateway.notifier.operational_events_written(&changed.operational_events);
    let (endpoint, due_at) = (changed.endpoint, changed.due_at);
    let is_anew = match change {
        DeliveryChange::Cancel => {
            gateway.metrics.count_cancelled(1);
            gateway.dispatcher.count_cancelled(tenant, endpoint, 1);
            false
        }
        DeliveryChange::Replay => {
            // Its time limit starts again, and may be short.
            gateway.expiry.schedule_check(now);
            true
        }
        DeliveryChange::RetryNow | DeliveryChange::Discard => false,
    };
    let question = NodeQuestion::Changed { endpoint, delivery: id, due_at, is_anew };
    // If the shard changed owner meanwhile, the new owner has read the change
    // from the store.
    node_questions::ask_owner(gateway, tenant, endpoint, &question).await.map(|_| ())
}

/// Erases an event's data, after cancelling its waiting deliveries. The event
/// cannot be sent again. A second call changes nothing.
pub async fn expunge_event(gateway: &Gateway, by: &Initiator, tenant: &TenantId, id: &EventId) -> Result<()> {
    loop {
        let deliveries =
            gateway.store.event_deliveries(tenant, id).await?.ok_or(Error::NotFound(MissingResource::Event))?;
        for delivery in deliveries.iter().filter(|delivery| delivery.state == DeliveryState::Waiting) {
            match change_delivery(gateway, by, tenant, delivery.id, DeliveryChange::Cancel).await {
                // `WrongState`: the delivery ended by itself meanwhile.
                Ok(()) | Err(Error::WrongState(_)) => {}
                Err(problem) => return Err(problem),
            }
        }
        // The store refuses if a delivery was replayed in between; then cancel again.
        if gateway.store.expunge(by, tenant, id).await? {
            return Ok(());
        }
    }
}

/// Refuses to retry a delivery whose attempt is running now.
async fn refuse_in_flight(gateway: &Gateway, tenant: &TenantId, id: DeliveryId) -> Result<()> {
    let Some(delivery) = gateway.store.delivery(tenant, id).await? else {
        return Err(Error::NotFound(MissingResource::Delivery));
    };
    if node_questions::is_in_flight(gateway, tenant, delivery.endpoint_id, id).await? {
        return Err(Error::WrongState(format!("delivery {id} is in flight already; wait for its answer")));
    }
    Ok(())
}

/// Adds an endpoint.
pub async fn create_endpoint(gateway: &Gateway, by: &Initiator, endpoint: Endpoint) -> Result<Arc<Endpoint>> {
    let endpoint = gateway.store.create_endpoint(by, endpoint).await?;
    gateway.dispatcher.divide_rates();
    Ok(endpoint)
}

/// Changes an endpoint. Its deliveries follow the change when this returns.
pub async fn change_endpoint(
    gateway: &Gateway,
    by: &Initiator,
    tenant: &TenantId,
    id: EndpointId,
    change: EndpointChange,
) -> Result<Arc<Endpoint>> {
    let now = gateway.clock.now();
    let changed = gateway.store.change_endpoint(by, tenant, id, change, now).await?;
    gateway.dispatcher.endpoint_changed(id);
    gateway.dispatcher.admit(changed.freed);
    gateway.notifier.operational_events_written(&changed.operational_events);
    gateway.notifier.endpoint_events(id, &changed.endpoint_events, now);
    Ok(changed.endpoint)
}

/// Pauses an endpoint; its deliveries, new ones included, are held.
pub async fn pause(
    gateway: &Gateway,
    by: &Initiator,
    tenant: &TenantId,
    id: EndpointId,
    note: Option<String>,
) -> Result<Arc<Endpoint>> {
    let change = EndpointChange::State { state: EndpointState::Paused, note };
    change_endpoint(gateway, by, tenant, id, change).await
}

/// Resumes an endpoint, whether a person or the gateway stopped it.
pub async fn resume(
    gateway: &Gateway,
    by: &Initiator,
    tenant: &TenantId,
    id: EndpointId,
    note: Option<String>,
) -> Result<Arc<Endpoint>> {
    let change = EndpointChange::State { state: EndpointState::Active, note };
    change_endpoint(gateway, by, tenant, id, change).await
}

/// Opens an endpoint's breaker, for a span or until a person closes it.
pub async fn open_breaker(
    gateway: &Gateway,
    by: &Initiator,
    tenant: &TenantId,
    id: EndpointId,
    span: Option<Span>,
    note: Option<String>,
) -> Result<Arc<Endpoint>> {
    let until = span.map(|span| time_after(gateway.clock.now(), span.0));
    change_endpoint(gateway, by, tenant, id, EndpointChange::Breaker { is_open: true, until, note }).await
}

/// Closes an endpoint's breaker; its load then ramps up.
pub async fn close_breaker(
    gateway: &Gateway,
    by: &Initiator,
    tenant: &TenantId,
    id: EndpointId,
    note: Option<String>,
) -> Result<Arc<Endpoint>> {
    let Some(endpoint) = gateway.store.endpoint(tenant, id) else {
        return Err(Error::NotFound(MissingResource::Endpoint));
    };
    // What its owner just observed may neither be stored nor published yet.
    let live = ask_health(gateway, tenant, id).await?;
    if live.unwrap_or_else(|| gateway.dispatcher.health(&endpoint)).open_until().is_none() {
        return Ok(endpoint);
    }
    change_endpoint(gateway, by, tenant, id, EndpointChange::Breaker { is_open: false, until: None, note }).await
}

/// Deletes an endpoint and cancels its waiting deliveries.
pub async fn delete_endpoint(gateway: &Gateway, by: &Initiator, tenant: &TenantId, id: EndpointId) -> Result<()> {
    gateway.store.delete_endpoint(by, tenant, id, gateway.clock.now()).await?;
    gateway.dispatcher.endpoint_changed(id);
    gateway.dispatcher.divide_rates();
    Ok(())
}

/// Creates a tenant or replaces its settings. Its shares and limits are in
/// force when this returns.
pub async fn put_tenant(gateway: &Gateway, by: &Initiator, tenant: Tenant) -> Result<Arc<Tenant>> {
    let tenant = gateway.store.put_tenant(by, tenant).await?;
    gateway.dispatcher.tenant_changed(&tenant.id);
    gateway.intake.change_rate(&tenant.id, gateway.ingest_rate(&tenant), gateway.clock.now());
    Ok(tenant)
}

/// Deletes a tenant with its endpoints and cancels their waiting deliveries.
pub async fn delete_tenant(gateway: &Gateway, by: &Initiator, id: &TenantId) -> Result<()> {
    if id.as_str() == TenantId::DEFAULT || id.is_system() {
        return Err(Error::WrongState(format!("tenant {id} always exists; delete its endpoints instead")));
    }
    let endpoints = gateway.store.endpoints(id);
    gateway.store.delete_tenant(by, id, gateway.clock.now()).await?;
    for endpoint in endpoints {
        gateway.dispatcher.endpoint_changed(endpoint.id);
    }
    Ok(())
}
