//! Gathers all that is known about a delivery, and explains its state.

use std::sync::Arc;

use super::Gateway;
use super::live_status::{LiveStatusQuery, live_statuses};
use super::waiting::outlook;
use crate::model::attempt::Attempt;
use crate::model::delivery::Delivery;
use crate::model::explain::{Explanation, ExplanationFacts, ExplanationReader, explain};
use crate::model::id::{DeliveryId, TenantId};
use crate::store::{Error, MissingResource, Result, Store};

/// Tells a reader why a delivery stands where it stands.
pub async fn explain_delivery(
    gateway: &Gateway,
    tenant: &TenantId,
    id: DeliveryId,
    reader: ExplanationReader,
) -> Result<Explanation> {
    let store = &gateway.store;
    let (delivery, attempts) = read_together(store.as_ref(), tenant, id).await?;
    let head = match &delivery.lane {
        Some(lane) => store.lane_head(delivery.endpoint_id, lane).await?,
        None => None,
    };
    let mut endpoint = store.any_endpoint(delivery.endpoint_id);
    if let Some(endpoint) = &mut endpoint {
        let about = LiveStatusQuery::endpoint(tenant, endpoint.id);
        if let Some(health) =
            live_statuses(gateway, vec![about]).await.remove(&endpoint.id).and_then(|status| status.health)
        {
            Arc::make_mut(endpoint).health = health;
        }
    }
    // Told in wall time, as attempts are recorded.
    let offset = gateway.clock.wall_offset();
    let outlook = outlook(gateway, &delivery).await.to_wall_time(offset);
    let delivery = delivery.to_wall_time(offset);
    let endpoint = endpoint.map(|endpoint| Arc::unwrap_or_clone(endpoint).to_wall_time(offset));
    Ok(explain(&ExplanationFacts {
        delivery: &delivery,
        attempts: &attempts,
        endpoint: endpoint.as_ref(),
        head: head.filter(|(head, _)| *head != id),
        outlook,
        hold_max: gateway.expiry.hold_max,
        now: gateway.clock.wall(),
        reader,
    }))
}

/// Reads a delivery and its attempts as they were at one moment. An attempt that ends
/// between the two reads would be told of a delivery that has not had it.
async fn read_together(store: &dyn Store, tenant: &TenantId, id: DeliveryId) -> Result<(Delivery, Vec<Attempt>)> {
    let missing = || Error::NotFound(MissingResource::Delivery);
    let mut delivery = store.delivery(tenant, id).await?.ok_or_else(missing)?;
    loop {
        let attempts = store.attempts(tenant, id).await?.ok_or_else(missing)?;
        let now = store.delivery(tenant, id).await?.ok_or_else(missing)?;
        if now.progress.attempts == delivery.progress.attempts {
            return Ok((now, attempts));
        }
        delivery = now;
    }
}
