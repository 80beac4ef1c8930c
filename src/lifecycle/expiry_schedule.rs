//! Knows when to check next whether the time limit of a waiting delivery has
//! passed.

use std::time::Duration;

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::model::delivery::{DeliveryTimeLimits, time_after};
use crate::model::endpoint::Endpoint;
use crate::model::rate::vary_by_tenth;
use crate::model::span::Span;

/// The time of the next check for expired deliveries.
pub struct ExpirySchedule {
    /// Longest time that a delivery may wait for its first attempt.
    pub hold_max: Span,
    timer: Mutex<ExpiryTimer>,
    /// Notified when a check is needed earlier than the task wakes.
    pub earlier: Notify,
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
        DeliveryTimeLimits { policy: &endpoint.policy, held: endpoint.held(now), hold_max: self.hold_max, expires_at }
    }

    /// Marks the task as checking.
    pub fn begin_check(&self) {
        *self.timer() = ExpiryTimer::Checking(Timestamp::MAX);
    }

    /// Marks the task as sleeping. Returns when it wakes: `until`, or a time
    /// scheduled during the check if that is earlier.
    pub fn sleep(&self, until: Timestamp) -> Timestamp {
        let mut timer = self.timer();
        let until = match *timer {
            ExpiryTimer::Checking(earliest) => until.min(earliest),
            ExpiryTimer::Sleeping(_) => until,
        };
        *timer = ExpiryTimer::Sleeping(until);
        until
    }

    fn timer(&self) -> MutexGuard<'_, ExpiryTimer> {
        self.timer.lock()
    }

    /// Returns the time between two walks over deliveries without an attempt:
    /// a small part of `hold_max`, and less than ten minutes for every draw.
    pub fn walk_every(&self, draw: f64) -> Duration {
        vary_by_tenth((self.hold_max.0 / 24).clamp(Duration::from_secs(1), Duration::from_secs(545)), draw)
    }
}

/// Returns the first moment after a time limit.
pub fn just_after(at: Timestamp) -> Timestamp {
    time_after(at, Duration::from_millis(1))
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
