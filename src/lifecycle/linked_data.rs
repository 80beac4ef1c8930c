//! Follows the link of a thin event to its data.
//!
//! Invariant: nothing is looked up for a link that is not ours.

use std::time::Duration;

use bytes::Bytes;

use super::Gateway;
use super::deliver::body::envelope_body;
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use crate::model::span::words;
use crate::store::{Claim, Error};

/// The data that a link leads to.
#[derive(Debug)]
pub struct LinkedData {
    /// Event in the format `envelope`.
    pub body: Bytes,
    /// Id of the event.
    pub event: EventId,
    /// Endpoint that the link was sent to.
    pub endpoint: EndpointId,
}

/// The reason why a link is not followed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LinkRefusal {
    /// The signature does not match: the link was not made here, or was changed.
    #[error("the signature of this link is not ours; use the data_url as it was sent, without a change")]
    Foreign,
    /// The delivery or its event is no longer kept.
    #[error("this link has expired: what it led to is no longer kept")]
    Over,
    /// The link is followed too often; it may be followed again after this time.
    #[error("this link is followed too often; try again in {}", words(*.0))]
    TooOften(Duration),
    /// The store does not have the data, or cannot be read now.
    #[error(transparent)]
    Store(#[from] Error),
}

/// Follows a link: verifies it and returns the data of its event.
pub async fn follow(
    gateway: &Gateway,
    tenant: &TenantId,
    delivery: DeliveryId,
    signature: &str,
) -> Result<LinkedData, LinkRefusal> {
    let now = gateway.clock.now();
    if !gateway.links.is_ours(tenant, delivery, signature) {
        return Err(LinkRefusal::Foreign);
    }
    gateway.intake.charge_fetch(delivery, now).map_err(LinkRefusal::TooOften)?;
    // The signature proves that the delivery existed; if it is missing, it was deleted.
    let delivery = gateway.store.delivery(tenant, delivery).await?.ok_or(LinkRefusal::Over)?;
    let is_live = gateway.store.endpoint(tenant, delivery.endpoint_id).is_some();
    if !is_live || gateway.links.is_expired(&delivery, now) {
        return Err(LinkRefusal::Over);
    }
    let record = gateway.store.event(tenant, &delivery.event_id).await?.ok_or(LinkRefusal::Over)?;
    if record.event.is_expunged() {
        return Err(Error::Expunged(delivery.event_id).into());
    }
    if record.is_damaged {
        return Err(Error::Damaged(delivery.event_id).into());
    }
    let claim = Claim::of(delivery, record.event);
    Ok(LinkedData { body: envelope_body(&claim), event: claim.event.id.clone(), endpoint: claim.endpoint })
}
