//! Decides when the owner of an endpoint is mailed about refused deliveries.
//!
//! A single refusal is between an event and its receiver, and mails nobody. Many
//! within a short time mean that something is broken on one side; they are told in
//! one mail. The counts are in memory: after a restart a burst is counted anew, and
//! the stored time of the last mail still keeps mails a day apart.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::id::EndpointId;

/// Refused deliveries that make a burst.
pub const BURST: u32 = 10;
/// Time within which they are counted.
pub const WITHIN: Duration = Duration::from_secs(3_600);
/// Endpoints that are counted at once. Beyond it, all counts begin anew.
const ENDPOINTS_MAX: usize = 10_000;

/// The refused deliveries of each endpoint that its owner was not mailed about.
#[derive(Debug, Default)]
pub struct RefusedBursts(HashMap<EndpointId, RefusedBurst>);

/// Refused deliveries of one endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedBurst {
    /// Time of the first.
    pub since: Timestamp,
    /// How many there are.
    pub count: u32,
}

impl RefusedBursts {
    /// Counts a refused delivery, and returns the burst that it belongs to, if it
    /// belongs to one.
    pub fn count_refused(&mut self, endpoint: EndpointId, now: Timestamp) -> Option<RefusedBurst> {
        if self.0.len() >= ENDPOINTS_MAX && !self.0.contains_key(&endpoint) {
            self.0.clear();
        }
        let burst = self.0.entry(endpoint).or_insert(RefusedBurst { since: now, count: 0 });
        let age = now.as_millisecond().saturating_sub(burst.since.as_millisecond());
        if burst.count < BURST && u128::try_from(age).is_ok_and(|age| age > WITHIN.as_millis()) {
            *burst = RefusedBurst { since: now, count: 0 };
        }
        burst.count = burst.count.saturating_add(1);
        Some(*burst).filter(|burst| burst.count >= BURST)
    }

    /// Forgets what was counted for an endpoint, because its owner is mailed.
    pub fn forget_mailed(&mut self, endpoint: EndpointId) {
        self.0.remove(&endpoint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    #[test]
    fn many_refusals_within_an_hour_are_a_burst_and_few_are_none() {
        let (one, two) = (EndpointId::mint(at(0), 1), EndpointId::mint(at(0), 2));
        let mut bursts = RefusedBursts::default();
        for n in 0..9 {
            assert_eq!(bursts.count_refused(one, at(n)), None);
            assert_eq!(bursts.count_refused(two, at(n * 1_000)), None);
        }
        assert_eq!(bursts.count_refused(one, at(9)), Some(RefusedBurst { since: at(0), count: 10 }));
        assert_eq!(bursts.count_refused(two, at(9_000)), None, "they came slowly");
    }

    #[test]
    fn a_burst_goes_on_being_counted_until_its_owner_is_mailed() {
        let one = EndpointId::mint(at(0), 1);
        let mut bursts = RefusedBursts::default();
        let counted: Vec<_> = (0..30).map(|n| bursts.count_refused(one, at(n))).collect();
        assert_eq!(counted[29], Some(RefusedBurst { since: at(0), count: 30 }));
        assert_eq!(bursts.count_refused(one, at(80_000)), Some(RefusedBurst { since: at(0), count: 31 }));
        bursts.forget_mailed(one);
        assert_eq!(bursts.count_refused(one, at(80_001)), None);
    }
}
