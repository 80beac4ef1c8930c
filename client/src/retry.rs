//! Decides when a call is repeated.

use std::time::Duration;

/// How often a call is repeated that may succeed later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Tries in all, the first included.
    pub tries_max: u32,
    /// Time after the first try from which on none is begun.
    pub give_up_after: Duration,
    /// Longest delay before the second try; it doubles with each further one.
    pub delay_first: Duration,
    /// Longest delay before any try.
    pub delay_max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            tries_max: 10,
            give_up_after: Duration::from_secs(60),
            delay_first: Duration::from_millis(100),
            delay_max: Duration::from_secs(10),
        }
    }
}

impl RetryPolicy {
    /// A policy that tries everything once.
    pub const NEVER: Self =
        Self { tries_max: 1, give_up_after: Duration::ZERO, delay_first: Duration::ZERO, delay_max: Duration::ZERO };

    /// Returns the delay before the next try, after `tries` that took `elapsed`; none
    /// when it is given up. `draw` is from 0 to 1. `Retry-After` is never undercut.
    pub(crate) fn delay(
        &self,
        tries: u32,
        elapsed: Duration,
        retry_after: Option<Duration>,
        draw: f64,
    ) -> Option<Duration> {
        if tries >= self.tries_max {
            return None;
        }
        let doubled =
            2_u32.checked_pow(tries.saturating_sub(1)).and_then(|factor| self.delay_first.checked_mul(factor));
        let longest = doubled.unwrap_or(self.delay_max).min(self.delay_max);
        // Half of it is drawn, so that many producers do not come back at once.
        let delay = longest.mul_f64(0.5 + draw / 2.0) + retry_after.unwrap_or_default();
        Some(delay).filter(|delay| elapsed + *delay <= self.give_up_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn delays_double_up_to_their_maximum_and_end() {
        let policy = RetryPolicy::default();
        let delays: Vec<_> = (1..10).map(|tries| policy.delay(tries, ms(0), None, 1.0).unwrap()).collect();
        assert_eq!(delays[..3], [ms(100), ms(200), ms(400)]);
        assert_eq!(delays[7..], [ms(10_000), ms(10_000)]);
        assert_eq!(policy.delay(1, ms(0), None, 0.0), Some(ms(50)));
        assert_eq!(policy.delay(10, ms(0), None, 0.0), None, "ten tries are enough");
        assert_eq!(policy.delay(1, ms(59_990), None, 0.0), None, "a minute is enough");
        assert_eq!(RetryPolicy::NEVER.delay(1, ms(0), None, 0.0), None);
    }

    #[test]
    fn retry_after_is_never_undercut() {
        let policy = RetryPolicy::default();
        assert_eq!(policy.delay(1, ms(0), Some(ms(5_000)), 0.0), Some(ms(5_050)));
        assert_eq!(policy.delay(1, ms(0), Some(ms(61_000)), 0.0), None, "what is asked for is longer than the end");
    }
}
