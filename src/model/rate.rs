//! Limits how often something may happen, with a token bucket.
//!
//! The bucket is a GCRA: its only state is one time, and the next free slot is
//! known at once, so a waiter sleeps exactly until then and nothing is polled.
//!
//! Invariant: any window of `w` seconds has at most `burst + per_second × w`.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Highest rate that can be set.
const PER_SECOND_MAX: f64 = 1_000_000.0;
/// Lowest rate that can be set; to stop an endpoint, pause it.
const PER_SECOND_MIN: f64 = 0.001;
const BURST_MAX: u32 = 100_000;
/// Resolution of the clock in nanoseconds: something may happen this much later
/// than the clock says.
const TICK: i64 = 1_000_000;
/// Part of a burst, in nanoseconds, that is not used, because requests may catch
/// up with each other between the decision and the wire. At most half a burst.
const SLACK: i64 = 10 * TICK;

/// How often something may happen.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(from = "RateText")]
pub struct Rate {
    /// How often per second, in the long run: 0.001 to 1,000,000.
    #[serde(serialize_with = "plain_number")]
    #[schema(minimum = 0.001, maximum = 1_000_000, example = 500)]
    pub per_second: f64,
    /// How many may come together after a rest: 1 to 100,000. Left out or null, a tenth of a second's worth, at least 1.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 100_000, example = 50, required = false)]
    pub burst: u32,
}

/// A rate as it is written in JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RateText {
    per_second: f64,
    burst: Option<u32>,
}

impl From<RateText> for Rate {
    fn from(written: RateText) -> Self {
        let tenth = ((written.per_second / 10.0) as u32).clamp(1, BURST_MAX);
        Self { per_second: written.per_second, burst: written.burst.unwrap_or(tenth) }
    }
}

/// Writes whole numbers without a decimal point: 500, not 500.0.
fn plain_number<S: serde::Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if number.fract() == 0.0 && number.abs() < 1e15 {
        serializer.serialize_i64(*number as i64)
    } else {
        serializer.serialize_f64(*number)
    }
}

impl Rate {
    /// Refuses values out of range; the refusal names the field and what to use.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if !(PER_SECOND_MIN..=PER_SECOND_MAX).contains(&self.per_second) {
            return Err(("/per_second", format!("per_second is {}; use 0.001 to 1,000,000", self.per_second)));
        }
        if !(1..=BURST_MAX).contains(&self.burst) {
            return Err(("/burst", format!("burst is {}; use 1 to 100,000", self.burst)));
        }
        Ok(())
    }

    /// Returns the time between two in the long run, in nanoseconds.
    fn interval(&self) -> i64 {
        (1e9 / self.per_second).ceil() as i64
    }
}

/// A token bucket that enforces a rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gcra {
    rate: Rate,
    /// Time at which the bucket is full again, in nanoseconds since 1970.
    full_at: i64,
    /// Part of a burst that is not used, in nanoseconds.
    slack: i64,
}

impl Gcra {
    /// Returns a full bucket: nothing has happened yet.
    pub fn full(rate: Rate) -> Self {
        Self { rate, full_at: i64::MIN / 2, slack: SLACK }
    }

    /// Returns a full bucket for requests that are counted as they come in. There is
    /// no delay between decision and action, so a whole burst may come within one
    /// tick.
    pub fn at_ingest(rate: Rate) -> Self {
        Self { slack: -TICK, ..Self::full(rate) }
    }

    /// Returns a bucket that was empty at this time, because what happened before is
    /// not known.
    pub fn unknown_before(rate: Rate, at: Timestamp) -> Self {
        let full = Self::full(rate);
        Self { full_at: nanos(at) + full.burst_depth() + rate.interval(), ..full }
    }

    /// Returns the rate it enforces.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns the time at which one more may happen; a time in the past means now.
    pub fn ready_at(&self) -> Timestamp {
        to_timestamp(self.full_at.saturating_sub(self.burst_depth()))
    }

    /// Caps the debt at what single takes can cause. A larger one means that the
    /// clock was set back, and the bucket would wait until it has caught up.
    pub fn correct_clock_jump(&mut self, now: Timestamp) {
        let most = self.rate.interval().saturating_mul(i64::from(self.rate.burst) + 1).saturating_add(TICK);
        self.full_at = self.full_at.min(nanos(now).saturating_add(most));
    }

    /// Whether one more may happen at this time.
    pub fn is_ready(&self, now: Timestamp) -> bool {
        self.full_at.saturating_sub(self.burst_depth()) <= nanos(now)
    }

    /// Takes one token, which was ready.
    pub fn take(&mut self, now: Timestamp) {
        self.take_many(1, now);
    }

    /// Takes several tokens at once; missing ones become debt.
    pub fn take_many(&mut self, count: u32, now: Timestamp) {
        let span = self.rate.interval().saturating_mul(i64::from(count));
        self.full_at = self.full_at.max(nanos(now) + TICK).saturating_add(span);
    }

    /// Gives back tokens that were taken for what did not happen.
    pub fn give_back(&mut self, count: u32) {
        self.full_at = self.full_at.saturating_sub(self.rate.interval().saturating_mul(i64::from(count)));
    }

    /// Returns how many may happen at this time.
    pub fn tokens_left(&self, now: Timestamp) -> u32 {
        let room = nanos(now).saturating_sub(self.full_at.saturating_sub(self.burst_depth()));
        if room < 0 {
            return 0;
        }
        u32::try_from(room / self.rate.interval() + 1).unwrap_or(u32::MAX).min(self.rate.burst)
    }

    /// Returns the time at which this many may happen together, at most a burst.
    pub fn ready_for(&self, count: u32) -> Timestamp {
        let missing = self.rate.interval().saturating_mul(i64::from(count.clamp(1, self.rate.burst)) - 1);
        to_timestamp(self.full_at.saturating_sub(self.burst_depth()).saturating_add(missing.min(self.burst_depth())))
    }

    /// Whether the bucket is full, so that dropping it loses nothing.
    pub fn is_full(&self, now: Timestamp) -> bool {
        self.full_at <= nanos(now)
    }

    /// Changes the rate and keeps the tokens that are left, so that a change gives no
    /// fresh burst.
    pub fn change(&mut self, rate: Rate, now: Timestamp) {
        if rate == self.rate {
            return;
        }
        let now = nanos(now);
        let old = *self;
        self.rate = rate;
        let missing_tokens = (old.full_at.saturating_sub(now)).max(0) as f64 / old.rate.interval() as f64;
        let left = (f64::from(old.rate.burst) - missing_tokens).min(f64::from(rate.burst));
        let missing_tokens = f64::from(rate.burst) - left;
        self.full_at = now.saturating_add((missing_tokens * rate.interval() as f64) as i64);
    }

    /// Returns how far a burst may run ahead of the steady flow, in nanoseconds.
    fn burst_depth(&self) -> i64 {
        let whole = self.rate.interval().saturating_mul(i64::from(self.rate.burst - 1));
        whole - self.slack.min(whole / 2)
    }
}

/// Converts nanoseconds since 1970, rounded up to the millisecond so that nothing is
/// early.
fn to_timestamp(nanos: i64) -> Timestamp {
    let millis = nanos.div_euclid(TICK) + i64::from(nanos.rem_euclid(TICK) > 0);
    Timestamp::from_millisecond(millis).unwrap_or(if millis < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

fn nanos(at: Timestamp) -> i64 {
    i64::try_from(at.as_nanosecond()).unwrap_or(i64::MAX / 2)
}

/// Returns the period give or take a tenth, so that periodic tasks of several nodes
/// do not run in step. `draw` is in `[0, 1)`.
pub fn vary_by_tenth(period: Duration, draw: f64) -> Duration {
    period.mul_f64(0.9 + 0.2 * draw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_700_000_000_000 + millis).unwrap()
    }

    /// Takes whatever is ready at each of these times; returns the times taken.
    fn run(bucket: &mut Gcra, steps: impl IntoIterator<Item = i64>) -> Vec<i64> {
        let mut taken = Vec::new();
        for now in steps {
            while bucket.is_ready(at(now)) {
                bucket.take(at(now));
                taken.push(now);
            }
        }
        taken
    }

    /// The most that ever came above what the rate allows, over all windows.
    /// What is taken in a millisecond may happen at its very end.
    fn excess(taken: &[i64], rate: Rate) -> f64 {
        let mut worst = f64::MIN;
        for (n, first) in taken.iter().enumerate() {
            for (m, last) in taken.iter().enumerate().skip(n) {
                let window = (last - first) as f64 / 1_000.0 - 0.001;
                let allowed = f64::from(rate.burst) + rate.per_second * window.max(0.0);
                worst = worst.max((m - n + 1) as f64 - allowed);
            }
        }
        worst
    }

    #[test]
    fn no_window_holds_more_than_burst_and_rate_allow_and_little_less() {
        for (per_second, burst) in [(500.0, 50), (100.0, 5), (3.0, 1), (1_000.0, 10), (20.0, 20)] {
            let rate = Rate { per_second, burst };
            let taken = run(&mut Gcra::full(rate), 0..4_000);
            assert!(excess(&taken, rate) <= 1e-6, "{rate:?}: {}", excess(&taken, rate));
            let least = per_second * 4.0 * 0.98 - 1.0;
            assert!(taken.len() as f64 >= least, "{rate:?}: {} in 4 s", taken.len());
        }
    }

    #[test]
    fn it_paces_smoothly_and_knows_the_next_slot() {
        let rate = Rate { per_second: 100.0, burst: 2 };
        let mut bucket = Gcra::full(rate);
        assert_eq!(run(&mut bucket, [0]).len(), 1, "half of a small burst is kept for the way");
        let mut slots = Vec::new();
        for _ in 0..5 {
            let ready = bucket.ready_at();
            slots.push(ready.as_millisecond() - at(0).as_millisecond());
            bucket.take(ready);
        }
        let gaps: Vec<i64> = slots.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|gap| *gap == 10), "{slots:?}");
    }

    #[test]
    fn what_was_before_a_restart_is_taken_for_an_empty_bucket() {
        let rate = Rate { per_second: 10.0, burst: 10 };
        let bucket = Gcra::unknown_before(rate, at(0));
        assert!(!bucket.is_ready(at(0)));
        assert!(bucket.is_ready(at(100)));
        assert_eq!(bucket.tokens_left(at(10_000)), Gcra::full(rate).tokens_left(at(0)));
    }

    #[test]
    fn several_at_once_are_owed() {
        let mut bucket = Gcra::full(Rate { per_second: 10.0, burst: 10 });
        bucket.take_many(30, at(0));
        assert!(!bucket.is_ready(at(1_900)), "20 are owed");
        assert!(bucket.is_ready(at(2_120)));
        assert!(bucket.ready_for(1_000) <= at(3_002), "more than ever fit together wait for a full bucket");
        assert_eq!(bucket.tokens_left(at(0)), 0);
    }

    #[test]
    fn a_clock_that_is_set_back_is_not_waited_for() {
        let mut bucket = Gcra::full(Rate { per_second: 10.0, burst: 3 });
        let taken = run(&mut bucket, [3_600_000]).len();
        bucket.correct_clock_jump(at(3_600_000));
        assert!(taken > 0 && !bucket.is_ready(at(3_600_000)), "it changes nothing otherwise");
        bucket.correct_clock_jump(at(0));
        assert!(bucket.is_ready(at(500)));
    }

    #[test]
    fn about_stays_within_a_tenth() {
        let hour = Duration::from_secs(3_600);
        assert_eq!(vary_by_tenth(hour, 0.0), hour.mul_f64(0.9));
        assert!(vary_by_tenth(hour, 0.999_999) < hour.mul_f64(1.1));
    }

    #[test]
    fn a_rate_is_written_as_it_is_read() {
        let read = |text: &str| serde_json::from_str::<Rate>(text);
        assert_eq!(read(r#"{"per_second":500}"#).unwrap(), Rate { per_second: 500.0, burst: 50 });
        assert_eq!(read(r#"{"per_second":500,"burst":null}"#).unwrap(), Rate { per_second: 500.0, burst: 50 });
        assert_eq!(read(r#"{"per_second":0.5}"#).unwrap(), Rate { per_second: 0.5, burst: 1 });
        assert!(read(r#"{"per_second":5,"bursts":1}"#).is_err());
        let written = |rate| serde_json::to_string(&rate).unwrap();
        assert_eq!(written(Rate { per_second: 500.0, burst: 50 }), r#"{"per_second":500,"burst":50}"#);
        assert_eq!(written(Rate { per_second: 0.5, burst: 1 }), r#"{"per_second":0.5,"burst":1}"#);
        for (per_second, burst, place) in [
            (0.0, 1, "/per_second"),
            (2e6, 1, "/per_second"),
            (f64::NAN, 1, "/per_second"),
            (1.0, 0, "/burst"),
            (1.0, 100_001, "/burst"),
        ] {
            assert_eq!(Rate { per_second, burst }.check().unwrap_err().0, place);
        }
        assert_eq!(Rate { per_second: 1e6, burst: 100_000 }.check(), Ok(()));
    }

    proptest! {
        #[test]
        fn however_it_is_asked_and_changed_no_window_is_exceeded(
            per_second in 1u32..400, burst in 1u32..40, gaps in prop::collection::vec(0i64..60, 1..400),
        ) {
            let rate = Rate { per_second: f64::from(per_second), burst };
            let mut bucket = Gcra::full(rate);
            let mut now = 0;
            let steps: Vec<i64> = gaps.iter().map(|gap| { now += gap; now }).collect();
            let taken = run(&mut bucket, steps);
            prop_assert!(excess(&taken, rate) <= 1e-6);
        }

        #[test]
        fn a_change_is_no_fresh_burst(
            first in 1u32..400, then in 1u32..400, burst in 1u32..40, changes in 1usize..20,
        ) {
            let slow = Rate { per_second: f64::from(first), burst };
            let fast = Rate { per_second: f64::from(then), burst };
            let mut bucket = Gcra::full(slow);
            let mut taken = run(&mut bucket, 0..50);
            for n in 0..changes as i64 {
                bucket.change(if n % 2 == 0 { fast } else { slow }, at(50 + n));
                taken.extend(run(&mut bucket, [50 + n]));
            }
            let most = Rate { per_second: slow.per_second.max(fast.per_second), burst };
            prop_assert!(excess(&taken, most) <= 1.0, "{}", excess(&taken, most));
        }
    }
}
