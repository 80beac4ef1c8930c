//! Follows the link of a thin event to its data.
//!
//! Invariant: nothing is looked up for a link that is not ours.

use std::time::Duration;

use bytes::Bytes;

use super::Gateway;
use super::deliver::body::envelope;
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use crate::model::span::words;
use crate::store::{Claim, Error};

/// What a link led to.
#[derive(Debug)]
pub struct LinkedData {
    /// The event, as the format `envelope` has it.
    pub body: Bytes,
    /// Its id.
    pub event: EventId,
    /// Whose link it was.
    pub endpoint: EndpointId,
}

/// Why a link leads nowhere.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LinkRefusal {
    /// It was not made here, or was changed on its way.
    #[error("the signature of this link is not ours; use the data_url as it was sent, without a change")]
    Foreign,
    /// What it led to is no longer kept.
    #[error("this link has expired: what it led to is no longer kept")]
    Over,
    /// It is followed too often.
    #[error("this link is followed too often; try again in {}", words(*.0))]
    TooOften(Duration),
    /// The data is not there, or cannot be read now.
    #[error(transparent)]
    Store(#[from] Error),
}

/// Follows a link.
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
    // It was there once: the signature says so.
    let found = gateway.store.delivery(tenant, delivery).await?.ok_or(LinkRefusal::Over)?;
    let is_live = gateway.store.endpoint(tenant, found.endpoint_id).is_some();
    if !is_live || gateway.links.is_expired(&found, now) {
        return Err(LinkRefusal::Over);
    }
    let record = gateway.store.event(tenant, &found.event_id).await?.ok_or(LinkRefusal::Over)?;
    if record.event.is_expunged() {
        return Err(Error::Expunged(found.event_id).into());
    }
    if record.is_damaged {
        return Err(Error::Damaged(found.event_id).into());
    }
    let claim = Claim::of(found, record.event);
    Ok(LinkedData { body: envelope(&claim), event: claim.event.id.clone(), endpoint: claim.endpoint })
}
