//! Slows a tenant's accepts while they outrun its deliveries for want of this
//! node's own speed.
//!
//! Accepting an event costs less than delivering it. When producers send as
//! fast as they are answered, the backlog would grow for as long as they do,
//! though every receiver is well. So while deliveries start late, and more is
//! accepted than delivered, each accept is held for a moment before it is
//! written. The moment grows until accepts and deliveries are in step, and
//! shrinks again afterwards. Only the tenant whose deliveries are late is held, on
//! every node: the others are told (`lifecycle/share_accept_delays.rs`), and say how
//! much they accepted.
//!
//! Pure: it is given the time, and how late each start was.

use std::time::Duration;

use jiff::Timestamp;

/// Time over which accepts and deliveries are compared.
const WINDOW: Duration = Duration::from_millis(100);
/// Lag of deliveries above which accepts are held for longer.
const LAG_MAX: Duration = Duration::from_millis(250);
/// Lag of deliveries below which accepts are held for less.
const LAG_MIN: Duration = Duration::from_millis(125);
/// First time for which accepts are held.
const DELAY_FIRST: Duration = Duration::from_millis(4);
/// Shortest time for which an accept is held.
const DELAY_MIN: Duration = Duration::from_millis(1);
/// Longest time for which an accept is held; then it is refused.
pub const DELAY_MAX: Duration = Duration::from_secs(1);
/// Factor of the delay while accepts outrun deliveries: as much as they do,
/// within these bounds.
const LONGER: (f64, f64) = (1.1, 3.0);
/// Factor of the delay once deliveries start in time.
const SHORTER: f64 = 0.9;

/// How long the accepts of one tenant are held, and why.
#[derive(Debug, Clone, Copy)]
pub struct AcceptPacing {
    window_began_at: Timestamp,
    /// Deliveries that were accepted in this window.
    accepted: usize,
    /// Deliveries that ended or went back to wait in this window.
    settled: usize,
    /// Largest lag of a start in this window.
    lag: Duration,
    delay: Duration,
}

impl AcceptPacing {
    /// Creates a pacing that holds nothing.
    pub fn new(now: Timestamp) -> Self {
        Self { window_began_at: now, accepted: 0, settled: 0, lag: Duration::ZERO, delay: Duration::ZERO }
    }

    /// Counts accepted deliveries.
    pub fn count_accepted(&mut self, deliveries: usize, now: Timestamp) {
        self.pass_time(now);
        self.accepted = self.accepted.saturating_add(deliveries);
    }

    /// Counts a settled delivery.
    pub fn count_settled(&mut self, now: Timestamp) {
        self.pass_time(now);
        self.settled += 1;
    }

    /// Records a start that was this late for want of the node's own speed.
    pub fn record_start(&mut self, lag: Duration, now: Timestamp) {
        self.pass_time(now);
        self.lag = self.lag.max(lag);
    }

    /// Returns how long an accept is to be held now.
    pub fn delay(&mut self, now: Timestamp) -> Duration {
        self.pass_time(now);
        self.delay
    }

    /// Whether nothing happened for a while and nothing is held.
    pub fn is_idle(&self, now: Timestamp) -> bool {
        self.delay.is_zero() && now.duration_since(self.window_began_at).unsigned_abs() > WINDOW * 10
    }

    /// Closes the window if its time is over, and adapts the delay to it.
    fn pass_time(&mut self, now: Timestamp) {
        let passed = now.duration_since(self.window_began_at).unsigned_abs();
        if passed < WINDOW {
            return;
        }
        if self.lag <= LAG_MIN {
            // A window in which nothing happened counts as several.
            let windows = (passed.as_secs_f64() / WINDOW.as_secs_f64()).min(100.0);
            self.delay = self.delay.mul_f64(SHORTER.powf(windows));
        } else if self.lag > LAG_MAX && self.accepted > self.settled {
            let ahead = self.accepted as f64 / self.settled.max(1) as f64;
            let longer = self.delay.mul_f64(ahead.clamp(LONGER.0, LONGER.1));
            self.delay = longer.clamp(DELAY_FIRST, DELAY_MAX);
        }
        if self.delay < DELAY_MIN {
            self.delay = Duration::ZERO;
        }
        *self = Self { delay: self.delay, ..Self::new(now) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_700_000_000_000 + millis).unwrap()
    }

    /// Producers that send again as soon as they are answered, on a node that
    /// accepts and delivers so many per millisecond. Returns the backlog and
    /// the delay after each second.
    fn run(producers: f64, accepts: f64, delivers: f64, seconds: i64) -> Vec<(f64, Duration)> {
        let mut pacing = AcceptPacing::new(at(0));
        let (mut backlog, mut shown) = (0.0_f64, Vec::new());
        let (mut accepted, mut settled) = (0.0_f64, 0.0_f64);
        for millis in 0..seconds * 1_000 {
            let now = at(millis);
            let held = pacing.delay(now).as_secs_f64() * 1_000.0;
            accepted += accepts.min(producers / (held + producers / accepts));
            settled += delivers.min(backlog);
            while accepted >= 1.0 {
                accepted -= 1.0;
                backlog += 1.0;
                pacing.count_accepted(1, now);
            }
            while settled >= 1.0 && backlog >= 1.0 {
                settled -= 1.0;
                backlog -= 1.0;
                pacing.record_start(Duration::from_secs_f64(backlog / delivers / 1_000.0), now);
                pacing.count_settled(now);
            }
            if millis % 1_000 == 999 {
                shown.push((backlog, pacing.delay(now)));
            }
        }
        shown
    }

    #[test]
    fn accepts_that_outrun_deliveries_are_slowed_until_both_are_in_step() {
        for producers in [16.0, 256.0, 1_024.0] {
            let seconds = run(producers, 16.0, 6.0, 60);
            for (backlog, delay) in &seconds {
                assert!(*backlog < 6_000.0, "less than a second behind: {backlog} with {producers} producers");
                assert!(*delay < DELAY_MAX, "nobody is refused: {delay:?} with {producers} producers");
            }
        }
    }

    #[test]
    fn a_backlog_that_shrinks_holds_nobody() {
        let mut pacing = AcceptPacing::new(at(0));
        for millis in 0..10_000 {
            pacing.count_accepted(1, at(millis));
            (0..6).for_each(|_| pacing.count_settled(at(millis)));
            pacing.record_start(Duration::from_secs(90), at(millis));
        }
        assert_eq!(pacing.delay(at(10_000)), Duration::ZERO);
    }

    #[test]
    fn what_was_held_is_held_no_longer_once_the_load_has_ended() {
        let mut pacing = AcceptPacing::new(at(0));
        for millis in 0..10_000 {
            pacing.count_accepted(1, at(millis));
            pacing.record_start(Duration::from_secs(2), at(millis));
        }
        assert_eq!(pacing.delay(at(10_000)), DELAY_MAX, "more is accepted than delivered, whatever the delay");
        assert!(!pacing.is_idle(at(12_000)));
        assert_eq!(pacing.delay(at(20_000)), Duration::ZERO);
        assert!(pacing.is_idle(at(40_000)));
    }
}
