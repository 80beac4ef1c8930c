//! Ends waiting deliveries whose time limit has passed, whatever they wait for.
//!
//! No attempt starts after its delivery's time limit, because each attempt
//! checks it first. This module ends the deliveries that cannot start: held
//! back, paused, or behind others in their lane. It sleeps until the next time
//! limit.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::task::JoinSet;
use tracing::{error, warn};

use super::Gateway;
use super::deliver::attempt::log_expired;
use super::expiry_schedule::just_after;
use crate::model::delivery::time_after;
use crate::model::endpoint::Endpoint;
use crate::model::figures::CountedEnd;
use crate::model::rate::vary_by_tenth;
use crate::store::{ClaimOutcome, Error, OverdueDelivery, Result, Settlement, UntriedQuery};

/// Deliveries that one step checks together.
const STEP: usize = 200;
/// Time until a delivery in flight is checked again: longer than any request.
const IN_FLIGHT_RECHECK: Duration = Duration::from_secs(70);
/// Shortest time until a held delivery, which does not age, is checked again.
const HELD_RECHECK: Duration = Duration::from_secs(60);
/// Time to wait after an error of the store.
const ERROR_PAUSE: Duration = Duration::from_secs(10);

/// Ends expired deliveries whenever one may have expired; never returns.
pub async fn run(gateway: Arc<Gateway>) {
    let (expiry, clock) = (gateway.expiry.clone(), gateway.clock.clone());
    let mut walk_at = clock.now();
    loop {
        expiry.begin_check();
        let earlier = expiry.earlier.notified();
        let now = clock.now();
        let next_at = match check_once(&gateway, walk_at <= now).await {
            Ok(next) => {
                if walk_at <= now {
                    walk_at = time_after(now, expiry.walk_every(rand::random()));
                }
                next.map_or(walk_at, |at| at.min(walk_at))
            }
            Err(problem) => {
                warn!("checking for expired deliveries failed and is tried again in about 10 seconds: {problem}");
                time_after(now, vary_by_tenth(ERROR_PAUSE, rand::random()))
            }
        };
        let until = expiry.sleep(next_at);
        tokio::select! {
            () = earlier => {}
            () = clock.sleep_until(until) => {}
        }
    }
}

async fn check_once(gateway: &Arc<Gateway>, is_walk_due: bool) -> Result<Option<Timestamp>> {
    let walked = if is_walk_due { check_held_too_long(gateway).await } else { Ok(()) };
    // The sweep runs even if the walk failed.
    let next = check_expired(gateway).await?;
    walked.map(|()| next)
}

/// Checks all deliveries that may have expired; returns when the next one may.
pub async fn check_expired(gateway: &Arc<Gateway>) -> Result<Option<Timestamp>> {
    loop {
        let now = gateway.clock.now();
        let page = gateway.store.read_overdue(now, STEP).await?;
        if page.found.is_empty() {
            return Ok(page.next_at);
        }
        check_all(gateway, page.found).await?;
    }
}

/// Checks all deliveries that have waited longer than `hold_max` for their
/// first attempt.
pub async fn check_held_too_long(gateway: &Arc<Gateway>) -> Result<()> {
    let hold_max = i64::try_from(gateway.expiry.hold_max.as_millis()).unwrap_or(i64::MAX);
    let before = gateway.clock.now().as_millisecond().saturating_sub(hold_max);
    let before = Timestamp::from_millisecond(before).unwrap_or(Timestamp::MIN);
    for tenant in gateway.store.tenants() {
        let mut last = None;
        loop {
            let query = UntriedQuery { before, after: last, limit: STEP };
            let page = gateway.store.read_untried(&tenant.id, query).await?;
            check_all(gateway, page.found).await?;
            last = page.next;
            if last.is_none() {
                break;
            }
        }
    }
    Ok(())
}

/// Checks deliveries concurrently, so that one commit takes many.
async fn check_all(gateway: &Arc<Gateway>, deliveries: Vec<OverdueDelivery>) -> Result<()> {
    let mut checks = JoinSet::new();
    for overdue in deliveries {
        let gateway = gateway.clone();
        checks.spawn(async move { check_delivery(&gateway, overdue).await });
    }
    let mut outcome = Ok(());
    while let Some(checked) = checks.join_next().await {
        match checked {
            Ok(checked) => outcome = outcome.and(checked),
            // A check that panics must not stop the others, nor be repeated
            // without a pause.
            Err(panic) => {
                error!("checking whether a delivery has expired failed inside Posthaste: {panic}");
                outcome = Err(Error::Unavailable("a check panicked".into()));
            }
        }
    }
    outcome
}

/// Ends a delivery if its time limit has passed, or stores when to check again.
async fn check_delivery(gateway: &Gateway, overdue: OverdueDelivery) -> Result<()> {
    let Some(endpoint) = gateway.store.any_endpoint(overdue.endpoint) else { return Ok(()) };
    let now = gateway.clock.now();
    let outcome = judge(gateway, &endpoint, &overdue, now);
    let expired_by = match &outcome {
        ClaimOutcome::Expired { by, .. } => Some(*by),
        _ => None,
    };
    let lease = gateway.store.lease(&endpoint.tenant, endpoint.id);
    let settlement = Settlement { id: overdue.id, endpoint: endpoint.id, now, outcome };
    let settled = match gateway.store.settle(lease, settlement.clone()).await {
        // Another node owns the endpoint's shard now, and checks it.
        Err(Error::Stale(_)) => return Ok(()),
        settled => settled?,
    };
    if let Some(by) = expired_by.filter(|_| !settled.is_void) {
        log_expired(overdue.id, endpoint.id, &endpoint.tenant, by);
        let is_in_slo = !overdue.is_replay_or_backfill;
        gateway.notifier.report_settled(&settlement, is_in_slo.then_some(now), &settled);
        if let Some(cause) = settled.died {
            gateway.dispatcher.count_end(&endpoint.tenant, endpoint.id, &CountedEnd::Dead { cause, is_in_slo });
        }
        gateway.dispatcher.delivery_changed(endpoint.id, overdue.id, None);
        gateway.dispatcher.admit(settled.freed);
    }
    Ok(())
}

fn judge(gateway: &Gateway, endpoint: &Endpoint, overdue: &OverdueDelivery, now: Timestamp) -> ClaimOutcome {
    let progress = overdue.progress;
    // The answer to the running attempt decides what follows.
    if gateway.dispatcher.is_in_flight(endpoint.id, overdue.id) {
        return ClaimOutcome::RecheckExpiry { at: time_after(now, IN_FLIGHT_RECHECK), progress };
    }
    let limits = gateway.expiry.limits(endpoint, overdue.expires_at, now);
    match progress.deadline(&limits) {
        Some(end) if now > end.at => ClaimOutcome::Expired { by: end.by, progress },
        Some(end) if endpoint.is_aging() => ClaimOutcome::RecheckExpiry { at: just_after(end.at), progress },
        // While the delivery is held, its end moves with the time.
        Some(end) => {
            ClaimOutcome::RecheckExpiry { at: just_after(end.at).max(time_after(now, HELD_RECHECK)), progress }
        }
        None => ClaimOutcome::RecheckExpiry { at: time_after(now, HELD_RECHECK), progress },
    }
}
