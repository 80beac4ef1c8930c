//! Knows when to look next whether the time of a waiting delivery is over.

use std::time::Duration;

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::model::delivery::{DeliveryTimeLimits, after};
use crate::model::endpoint::Endpoint;
use crate::model::rate::roughly;
use crate::model::span::Span;

/// Knows when a delivery's time should be looked at next.
pub struct ExpirySchedule {
    /// How long a delivery may wait for its first attempt.
    pub hold_max: Span,
    timer: Mutex<ExpiryTimer>,
    /// Notified when a check is needed earlier than the timer is set to.
    pub earlier: Notify,
}

/// What the expirer is doing.
#[derive(Debug, Clone, Copy)]
enum ExpiryTimer {
    /// It looks, and may miss what is noted meanwhile: the earliest of it.
    Looking(Timestamp),
    /// It sleeps until then.
    Sleeping(Timestamp),
}

impl ExpirySchedule {
    /// Nothing is known yet.
    pub fn new(hold_max: Span) -> Self {
        Self { hold_max, timer: Mutex::new(ExpiryTimer::Looking(Timestamp::MAX)), earlier: Notify::new() }
    }

    /// A delivery's time should be looked at then.
    pub fn schedule_check(&self, at: Timestamp) {
        match &mut *self.timer() {
            ExpiryTimer::Looking(noted) => *noted = at.min(*noted),
            ExpiryTimer::Sleeping(until) if at < *until => self.earlier.notify_one(),
            ExpiryTimer::Sleeping(_) => {}
        }
    }

    /// What limits a delivery to this endpoint at this moment.
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

    /// A check begins: what is scheduled meanwhile may be missed by it.
    pub fn begin_check(&self) {
        *self.timer() = ExpiryTimer::Looking(Timestamp::MAX);
    }

    /// Returns until when to sleep: what was noted meanwhile may be earlier.
    pub fn sleep(&self, until: Timestamp) -> Timestamp {
        let mut timer = self.timer();
        let until = match *timer {
            ExpiryTimer::Looking(noted) => until.min(noted),
            ExpiryTimer::Sleeping(_) => until,
        };
        *timer = ExpiryTimer::Sleeping(until);
        until
    }

    fn timer(&self) -> MutexGuard<'_, ExpiryTimer> {
        self.timer.lock()
    }

    /// What waits for its first attempt is walked through now and then:
    /// often enough that it is never much older than it may be.
    /// Never ten minutes apart, whatever is drawn.
    pub fn walk_every(&self, draw: f64) -> Duration {
        roughly((self.hold_max.0 / 24).clamp(Duration::from_secs(1), Duration::from_secs(545)), draw)
    }
}

/// The first moment that is too late.
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
