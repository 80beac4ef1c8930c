//! Expire: ends waiting deliveries whose time is over, whatever they wait for.
//!
//! No attempt starts after a delivery's time, because each looks before it
//! starts. This sees to those that cannot start: held back, paused, or behind
//! others in their lane. Idle, it sleeps until the next one's time.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::task::JoinSet;
use tracing::{error, warn};

use super::Gateway;
use super::deliver::attempt::log_expired;
use super::expiry_schedule::just_after;
use crate::model::delivery::after;
use crate::model::endpoint::{Endpoint, EndpointState};
use crate::model::rate::roughly;
use crate::store::{ClaimOutcome, Error, OverdueDelivery, Result, Settlement, UntriedQuery};

/// How many are looked at together.
const STEP: usize = 200;
/// How long to leave alone what is in flight: longer than any request.
const IN_FLIGHT: Duration = Duration::from_secs(70);
/// How long at least to leave alone what does not age at the moment.
const HELD: Duration = Duration::from_secs(60);
/// How long to wait after trouble with the store.
const TROUBLE: Duration = Duration::from_secs(10);

/// Looks whenever something may be over, for ever.
pub async fn run(gateway: Arc<Gateway>) {
    let (expiry, clock) = (gateway.expiry.clone(), gateway.clock.clone());
    let mut walk_at = clock.now();
    loop {
        expiry.begin_check();
        let earlier = expiry.earlier.notified();
        let now = clock.now();
        let next_at = match check_periodically(&gateway, walk_at <= now).await {
            Ok(next) => {
                if walk_at <= now {
                    walk_at = after(now, expiry.walk_every(rand::random()));
                }
                next.map_or(walk_at, |at| at.min(walk_at))
            }
            Err(problem) => {
                warn!("could not look for deliveries whose time is over: {problem}");
                after(now, roughly(TROUBLE, rand::random()))
            }
        };
        let until = expiry.sleep(next_at);
        tokio::select! {
            () = earlier => {}
            () = clock.sleep_until(until) => {}
        }
    }
}

async fn check_periodically(gateway: &Arc<Gateway>, is_walk_due: bool) -> Result<Option<Timestamp>> {
    let walked = match is_walk_due {
        true => walk(gateway).await,
        false => Ok(()),
    };
    // Trouble with the one must not keep the other from being done.
    let next = sweep(gateway).await?;
    walked.map(|()| next)
}

/// Looks at everything whose time may be over; returns when to look again.
pub async fn sweep(gateway: &Arc<Gateway>) -> Result<Option<Timestamp>> {
    loop {
        let now = gateway.clock.now();
        let page = gateway.store.read_overdue(now, STEP).await?;
        if page.found.is_empty() {
            return Ok(page.next_at);
        }
        check_all(gateway, page.found).await?;
    }
}

/// Looks at everything that has waited too long for its first attempt.
pub async fn walk(gateway: &Arc<Gateway>) -> Result<()> {
    let hold_max = i64::try_from(gateway.expiry.hold_max.as_millis()).unwrap_or(i64::MAX);
    let before = gateway.clock.now().as_millisecond().saturating_sub(hold_max);
    let before = Timestamp::from_millisecond(before).unwrap_or(Timestamp::MIN);
    for tenant in gateway.store.tenants() {
        let mut last = None;
        loop {
            let ask = UntriedQuery { before, after: last, limit: STEP };
            let page = gateway.store.read_untried(&tenant.id, ask).await?;
            check_all(gateway, page.found).await?;
            last = page.next;
            if last.is_none() {
                break;
            }
        }
    }
    Ok(())
}

/// Together, so that one commit takes many.
async fn check_all(gateway: &Arc<Gateway>, found: Vec<OverdueDelivery>) -> Result<()> {
    let mut looks = JoinSet::new();
    for overdue in found {
        let gateway = gateway.clone();
        looks.spawn(async move { check_delivery(&gateway, overdue).await });
    }
    let mut outcome = Ok(());
    while let Some(looked) = looks.join_next().await {
        match looked {
            Ok(looked) => outcome = outcome.and(looked),
            // One that cannot be looked at must not keep the others waiting,
            // nor be looked at again without a pause.
            Err(panic) => {
                error!("a look at a delivery's time ended inside the gateway: {panic}");
                outcome = Err(Error::Unavailable("a look ended inside the gateway".into()));
            }
        }
    }
    outcome
}

/// Ends a delivery if its time is over, or notes when to look again.
async fn check_delivery(gateway: &Gateway, overdue: OverdueDelivery) -> Result<()> {
    let Some(endpoint) = gateway.store.any_endpoint(overdue.endpoint) else { return Ok(()) };
    let now = gateway.clock.now();
    let outcome = judge(gateway, &endpoint, &overdue, now);
    let over = match &outcome {
        ClaimOutcome::Expired { by, .. } => Some(*by),
        _ => None,
    };
    let lease = gateway.store.lease(&endpoint.tenant, endpoint.id);
    let settlement = Settlement { id: overdue.id, endpoint: endpoint.id, now, outcome };
    let settled = match gateway.store.settle(lease, settlement.clone()).await {
        // It is for another node to look at.
        Err(Error::Stale(_)) => return Ok(()),
        settled => settled?,
    };
    if let Some(by) = over.filter(|_| !settled.is_void) {
        log_expired(overdue.id, endpoint.id, &endpoint.tenant, by);
        gateway.notifier.settled(endpoint.id, now, &settlement.outcome, &settled);
        gateway.dispatcher.delivery_changed(endpoint.id, overdue.id, None);
        gateway.dispatcher.admit(settled.freed);
    }
    Ok(())
}

fn judge(gateway: &Gateway, endpoint: &Endpoint, overdue: &OverdueDelivery, now: Timestamp) -> ClaimOutcome {
    let progress = overdue.progress;
    // Its answer decides, and settles when to look again.
    if gateway.dispatcher.is_in_flight(endpoint.id, overdue.id) {
        return ClaimOutcome::RecheckExpiry { at: after(now, IN_FLIGHT), progress };
    }
    let limits = gateway.expiry.limits(endpoint, overdue.expires_at, now);
    match progress.end(&limits) {
        Some(end) if now > end.at => ClaimOutcome::Expired { by: end.by, progress },
        Some(end) if endpoint.status.state == EndpointState::Active => {
            ClaimOutcome::RecheckExpiry { at: just_after(end.at), progress }
        }
        // While it is held its end moves with the time.
        Some(end) => ClaimOutcome::RecheckExpiry { at: just_after(end.at).max(after(now, HELD)), progress },
        None => ClaimOutcome::RecheckExpiry { at: after(now, HELD), progress },
    }
}
