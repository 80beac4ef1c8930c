//! Measures how fast a receiver answers at its best, to tell whether it or this
//! node limits how much is delivered to it.

use std::time::Duration;

use jiff::Timestamp;

/// Time over which answers are measured.
const WINDOW: Duration = Duration::from_millis(500);
/// A receiver that could take this many times what it gets is not the limit.
const SPARE: f64 = 1.5;

/// The recent speed of a receiver.
#[derive(Debug, Clone, Copy)]
pub struct ReceiverSpeed {
    window_began_at: Timestamp,
    answers: u32,
    fastest: Duration,
    /// Answers per second, and the time of the fastest, in the last full window.
    last: Option<(f64, Duration)>,
}

impl ReceiverSpeed {
    /// Creates a measurement of which nothing is known yet.
    pub fn unknown() -> Self {
        Self { window_began_at: Timestamp::MIN, answers: 0, fastest: Duration::MAX, last: None }
    }

    /// Records an answer to a request that was started at this time.
    pub fn record_answer(&mut self, started_at: Timestamp, now: Timestamp) {
        let passed = now.duration_since(self.window_began_at).unsigned_abs();
        if passed >= WINDOW {
            let is_known = self.answers > 0 && passed < WINDOW * 2;
            self.last = is_known.then(|| (f64::from(self.answers) / passed.as_secs_f64(), self.fastest));
            *self = Self { window_began_at: now, last: self.last, ..Self::unknown() };
        }
        self.answers += 1;
        self.fastest = self.fastest.min(now.duration_since(started_at).unsigned_abs());
    }

    /// Whether the receiver could take more than it gets with so many requests
    /// at once, so that this node is the limit.
    pub fn could_take_more(&self, cap: usize) -> bool {
        self.last.is_some_and(|(per_second, fastest)| cap as f64 / fastest.as_secs_f64() > SPARE * per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_700_000_000_000 + millis).unwrap()
    }

    /// A receiver that takes `answer` milliseconds, gets `per_ms` requests each
    /// millisecond, and is seen to answer after `seen` milliseconds at most.
    fn speed(fastest: i64, per_ms: u32) -> ReceiverSpeed {
        let mut speed = ReceiverSpeed::unknown();
        for millis in 0..1_200 {
            (0..per_ms).for_each(|n| speed.record_answer(at(millis - fastest - i64::from(n % 4)), at(millis)));
        }
        speed
    }

    #[test]
    fn a_slow_receiver_is_the_limit_and_a_fast_one_is_not() {
        assert!(!ReceiverSpeed::unknown().could_take_more(64), "nothing is known yet");
        assert!(!speed(64, 1).could_take_more(64), "64 at once, 64 ms each: it gets what it can take");
        assert!(speed(2, 10).could_take_more(64), "64 at once, 2 ms each: it could take 32 per millisecond");
        assert!(!speed(2, 10).could_take_more(16), "16 at once: it gets what the cap allows");
    }

    #[test]
    fn what_was_measured_long_ago_does_not_count() {
        let mut speed = speed(2, 10);
        speed.record_answer(at(60_000), at(60_002));
        assert!(!speed.could_take_more(64));
    }
}
