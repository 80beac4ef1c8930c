//! Writes what came of a claim, and keeps at it until the store takes it.

use std::time::Duration;

use jiff::Timestamp;
use tracing::{error, info, warn};

use super::DeliveryContext;
use super::attempt::log_expired;
use crate::model::delivery::after;
use crate::model::next_state::NextState;
use crate::model::rate::roughly;
use crate::model::shard::Lease;
use crate::store::{Claim, ClaimOutcome, Error, SettleEffects, Settlement};

/// How the work on a claim ended.
#[derive(Debug)]
pub enum ClaimEnd {
    /// Its outcome is written, or there is none to write.
    Settled(SettleEffects),
    /// Its outcome was written before, by a call whose answer got lost.
    Repeated(SettleEffects),
    /// No request was made, or none whose answer counts. The delivery stays as
    /// it is, and may be tried again then.
    Unsent {
        /// Time at which it may be tried again.
        due_at: Timestamp,
    },
    /// Its endpoint is dispatched by another node.
    Stale,
}

/// Writes the outcome of a claim. The outcome is known now, so a store in
/// trouble is asked again until it takes it: repeating the request instead
/// would be a duplicate. It is written under the lease that the attempt was
/// made under, so once another node has taken over, the store says so.
pub async fn settle(context: &DeliveryContext, claim: &Claim, lease: Lease, outcome: ClaimOutcome) -> ClaimEnd {
    let settlement = Settlement { id: claim.id, endpoint: claim.endpoint, now: context.clock.now(), outcome };
    loop {
        match context.store.settle(lease, settlement.clone()).await {
            Ok(effects) => return settled(context, claim, &settlement, effects),
            Err(Error::Stale(shard)) => {
                info!(delivery.id = %claim.id, endpoint.id = %claim.endpoint,
                      "the outcome of an attempt is not recorded, because shard {} has another owner", shard.0);
                context.notifier.metrics().stale_write();
                return ClaimEnd::Stale;
            }
            Err(problem) => {
                warn!(delivery.id = %claim.id, endpoint.id = %claim.endpoint,
                      "the outcome of an attempt could not be recorded yet, and is written again: {problem}");
                // Never all in step, or the store would be asked by all at once.
                let pause = roughly(Duration::from_secs(1), context.draw());
                context.clock.sleep_until(after(context.clock.now(), pause)).await;
            }
        }
    }
}

/// Counts and reports what was written.
fn settled(context: &DeliveryContext, claim: &Claim, settlement: &Settlement, effects: SettleEffects) -> ClaimEnd {
    let outcome = &settlement.outcome;
    if let ClaimOutcome::Attempted { next: NextState::Waiting { .. }, expiry_check_at: Some(at), .. } = outcome {
        context.expiry.schedule_check(*at);
    }
    if !effects.is_void {
        context.notifier.settled(settlement, claim.event.accepted_at, &effects);
        if let ClaimOutcome::Expired { by, .. } = outcome {
            log_expired(claim.id, claim.endpoint, &claim.event.tenant, *by);
        }
    }
    if effects.is_repeat { ClaimEnd::Repeated(effects) } else { ClaimEnd::Settled(effects) }
}

/// Puts back a claim whose processing failed inside the gateway. One that
/// fails so again and again is dead, and delays no one outside its lane.
pub async fn put_back_after_internal_error(
    context: &DeliveryContext,
    claim: &Claim,
    lease: Lease,
    problem: String,
) -> ClaimEnd {
    error!(event.id = %claim.event.id, delivery.id = %claim.id, endpoint.id = %claim.endpoint,
           "an attempt failed inside the gateway; it is put back and not counted: {problem}");
    if context.store.any_endpoint(claim.endpoint).is_none() {
        return ClaimEnd::Settled(SettleEffects::default());
    }
    let due_at = after(context.clock.now(), context.put_back_delay());
    settle(context, claim, lease, ClaimOutcome::InternalError { due_at, error: problem }).await
}
