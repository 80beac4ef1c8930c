//! Ends waiting deliveries whose time limit has passed, whatever they wait for.
//!
//! No attempt starts after its delivery's time limit, because each attempt
//! checks it first. This module ends the deliveries that cannot start: held
//! back, paused, or behind others in their lane. It sleeps until the next time
//! limit.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tracing::{error, warn};

use super::Gateway;
use super::deliver::log_expired;
use crate::model::delivery::{DeliveryTimeLimits, after};
use crate::model::endpoint::{Endpoint, EndpointState};
use crate::model::rate::roughly;
use crate::model::span::Span;
use crate::store::{ClaimOutcome, Error, OverdueDelivery, Result, Settlement, UntriedQuery};

/// Deliveries that one step checks together.
const STEP: usize = 200;
/// Time until a delivery in flight is checked again: longer than any request.
const IN_FLIGHT_RECHECK: Duration = Duration::from_secs(70);
/// Shortest time until a held delivery, which does not age, is checked again.
const HELD_RECHECK: Duration = Duration::from_secs(60);
/// Time to wait after an error of the store.
const ERROR_PAUSE: Duration = Duration::from_secs(10);

/// The time of the next check for expired deliveries.
pub struct ExpirySchedule {
    /// Longest time that a delivery may wait for its first attempt.
    pub hold_max: Span,
    timer: Mutex<ExpiryTimer>,
    earlier: Notify,
}

/// State of the expiry task.
#[derive(Debug, Clone, Copy)]
enum ExpiryTimer {
    /// A check is running and may miss what is scheduled meanwhile: the
    /// earliest such time.
    Checking(Timestamp),
    /// The task sleeps until this time.
    Sleeping(Timestamp),
}

impl ExpirySchedule {
    /// Creates a schedule with no check planned.
    pub fn new(hold_max: Span) -> Self {
        Self { hold_max, timer: Mutex::new(ExpiryTimer::Checking(Timestamp::MAX)), earlier: Notify::new() }
    }

    /// Schedules a check for expired deliveries at this time.
    pub fn schedule_check(&self, at: Timestamp) {
        match &mut *self.timer() {
            ExpiryTimer::Checking(earliest) => *earliest = at.min(*earliest),
            ExpiryTimer::Sleeping(until) if at < *until => self.earlier.notify_one(),
            ExpiryTimer::Sleeping(_) => {}
        }
    }

    /// Returns the time limits of a delivery to this endpoint at this moment.
    pub fn limits<'a>(
        &self,
        endpoint: &'a Endpoint,
        expires_at: Option<Timestamp>,
        now: Timestamp,
    ) -> DeliveryTimeLimits<'a> {
        DeliveryTimeLimits {
            policy: &endpoint.policy,
            held: endpoint.status.held(now),
            hold_max: self.hold_max,
            expires_at,
        }
    }

    fn begin_check(&self) {
        *self.timer() = ExpiryTimer::Checking(Timestamp::MAX);
    }

    /// Marks the task as sleeping. Returns when it wakes: `until`, or a time
    /// scheduled during the check if that is earlier.
    fn sleep(&self, until: Timestamp) -> Timestamp {
        let mut timer = self.timer();
        let until = match *timer {
            ExpiryTimer::Checking(earliest) => until.min(earliest),
            ExpiryTimer::Sleeping(_) => until,
        };
        *timer = ExpiryTimer::Sleeping(until);
        until
    }

    fn timer(&self) -> parking_lot::MutexGuard<'_, ExpiryTimer> {
        self.timer.lock()
    }

    /// Returns the time between two walks over deliveries without an attempt:
    /// a small part of `hold_max`, and less than ten minutes for every draw.
    fn walk_every(&self, draw: f64) -> Duration {
        roughly((self.hold_max.0 / 24).clamp(Duration::from_secs(1), Duration::from_secs(545)), draw)
    }
}

/// Ends expired deliveries whenever one may have expired; never returns.
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
                warn!("checking for expired deliveries failed and is tried again in about 10 seconds: {problem}");
                after(now, roughly(ERROR_PAUSE, rand::random()))
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
    let walked = if is_walk_due { walk(gateway).await } else { Ok(()) };
    // The sweep runs even if the walk failed.
    let next = sweep(gateway).await?;
    walked.map(|()| next)
}

/// Checks all deliveries that may have expired; returns when the next one may.
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

/// Checks all deliveries that have waited longer than `hold_max` for their
/// first attempt.
pub async fn walk(gateway: &Arc<Gateway>) -> Result<()> {
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
        ClaimOutcome::Over { by, .. } => Some(*by),
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
        log_expired(overdue.id, &endpoint, by);
        gateway.notifier.settled(endpoint.id, now, &settlement.outcome, &settled);
        gateway.dispatcher.delivery_changed(endpoint.id, overdue.id, None);
        gateway.dispatcher.admit(settled.freed);
    }
    Ok(())
}

fn judge(gateway: &Gateway, endpoint: &Endpoint, overdue: &OverdueDelivery, now: Timestamp) -> ClaimOutcome {
    let progress = overdue.progress;
    // The answer to the running attempt decides what follows.
    if gateway.dispatcher.is_in_flight(endpoint.id, overdue.id) {
        return ClaimOutcome::LookAgain { at: after(now, IN_FLIGHT_RECHECK), progress };
    }
    let limits = gateway.expiry.limits(endpoint, overdue.expires_at, now);
    match progress.end(&limits) {
        Some(end) if now > end.at => ClaimOutcome::Over { by: end.by, progress },
        Some(end) if endpoint.status.state == EndpointState::Active => {
            ClaimOutcome::LookAgain { at: just_after(end.at), progress }
        }
        // While the delivery is held, its end moves with the time.
        Some(end) => ClaimOutcome::LookAgain { at: just_after(end.at).max(after(now, HELD_RECHECK)), progress },
        None => ClaimOutcome::LookAgain { at: after(now, HELD_RECHECK), progress },
    }
}

/// Returns the first moment after a time limit.
pub fn just_after(at: Timestamp) -> Timestamp {
    after(at, Duration::from_millis(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_are_not_in_step_and_never_ten_minutes_apart() {
        let (month, minute) = (ExpirySchedule::new(Span::secs(30 * 86_400)), ExpirySchedule::new(Span::secs(60)));
        assert!(month.walk_every(0.1) < month.walk_every(0.9));
        assert!(month.walk_every(0.999_999) < Duration::from_secs(600));
        assert_eq!(minute.walk_every(0.5), Duration::from_millis(2_500));
        assert_eq!(ExpirySchedule::new(Span::secs(1)).walk_every(0.5), Duration::from_secs(1));
    }
}
