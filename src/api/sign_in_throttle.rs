//! Limits how often sign-ins to the pages may fail, and how often they may succeed.
//!
//! Each node counts for itself, in memory, by IPv4 address or IPv6 /64. Only what
//! fails is counted by address: a code or a token has 256 random bits, so whoever
//! has a right one did not guess it, and must not be locked out by strangers who
//! share the address or who flood the gateway. A sign-in that succeeds is a change
//! that all nodes wait for, so these have a rate of their own.
//!
//! Invariant: memory is bounded, from however many addresses failures come.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;

use super::origin::{self, Network};
use crate::model::rate::{Gcra, Rate};

/// Rate of failures of one address: ten at once, then one every six seconds.
const PER_ADDRESS: Rate = Rate { per_second: 10.0 / 60.0, burst: 10 };
/// Rate of failures of all addresses: a hundred at once, then a hundred a minute.
const IN_ALL: Rate = Rate { per_second: 100.0 / 60.0, burst: 100 };
/// Rate of sign-ins that succeed.
const SUCCEEDING: Rate = Rate { per_second: 20.0, burst: 200 };
/// Size of one generation of addresses; at most two generations are in memory.
const ADDRESSES_MAX: usize = 8_192;
/// Time after which an address has all its tries again.
const PERIOD: Duration = Duration::from_secs(60);

/// Recent sign-ins of all addresses.
#[derive(Debug)]
pub struct SignInThrottle(Mutex<SignInRates>);

#[derive(Debug)]
struct SignInRates {
    in_all: Gcra,
    succeeding: Gcra,
    /// Addresses of the present generation.
    recent: HashMap<Network, Gcra>,
    /// Addresses of the generation before.
    earlier: HashMap<Network, Gcra>,
    period_began_at: Timestamp,
}

impl Default for SignInThrottle {
    fn default() -> Self {
        Self(Mutex::new(SignInRates {
            in_all: Gcra::at_ingest(IN_ALL),
            succeeding: Gcra::at_ingest(SUCCEEDING),
            recent: HashMap::new(),
            earlier: HashMap::new(),
            period_began_at: Timestamp::UNIX_EPOCH,
        }))
    }
}

impl SignInThrottle {
    /// Counts a sign-in that failed. Returns how long the address must wait, if
    /// there were too many.
    pub fn count_failure(&self, from: Option<IpAddr>, now: Timestamp) -> Result<(), Duration> {
        let network = origin::network(from.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
        let mut rates = self.0.lock();
        let mut own = rates.rate_of(network, now);
        let counted = take_from_rate(&mut own, now).and_then(|()| take_from_rate(&mut rates.in_all, now));
        rates.recent.insert(network, own);
        counted
    }

    /// Counts a sign-in that is about to succeed. Returns how long to wait, if
    /// there were too many.
    pub fn count_success(&self, now: Timestamp) -> Result<(), Duration> {
        take_from_rate(&mut self.0.lock().succeeding, now)
    }
}

impl SignInRates {
    fn rate_of(&mut self, from: Network, now: Timestamp) -> Gcra {
        let age = now.duration_since(self.period_began_at).unsigned_abs();
        if self.recent.len() >= ADDRESSES_MAX || age >= PERIOD {
            self.earlier = std::mem::take(&mut self.recent);
            self.period_began_at = now;
        }
        let known = self.recent.get(&from).copied().or_else(|| self.earlier.remove(&from));
        known.unwrap_or_else(|| Gcra::at_ingest(PER_ADDRESS))
    }
}

/// Takes one from a rate if it allows that now, or returns how long to wait.
fn take_from_rate(rate: &mut Gcra, now: Timestamp) -> Result<(), Duration> {
    rate.correct_clock_jump(now);
    if rate.is_ready(now) {
        rate.take(now);
        return Ok(());
    }
    Err(rate.ready_at().duration_since(now).unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn from(n: u32) -> Option<IpAddr> {
        Some(Ipv4Addr::from(n).into())
    }

    #[test]
    fn an_address_fails_ten_times_and_then_waits() {
        let throttle = SignInThrottle::default();
        let tries: Vec<bool> = (0..15).map(|_| throttle.count_failure(from(7), at(0)).is_ok()).collect();
        assert_eq!(tries, [[true; 10].as_slice(), &[false; 5]].concat());
        let wait = throttle.count_failure(from(7), at(0)).unwrap_err();
        assert!(wait <= Duration::from_secs(6), "{wait:?}");
        assert_eq!(throttle.count_failure(from(8), at(0)), Ok(()), "another address has its own tries");
        assert_eq!(throttle.count_failure(from(7), at(6)), Ok(()));
        assert_eq!(throttle.count_success(at(0)), Ok(()), "who has a right token need not wait");
    }

    #[test]
    fn all_addresses_together_fail_a_hundred_times_and_then_wait() {
        let throttle = SignInThrottle::default();
        let counted = (0..300).filter(|n| throttle.count_failure(from(*n), at(0)).is_ok()).count();
        assert_eq!(counted, 100);
        assert_eq!(throttle.count_failure(from(301), at(1)), Ok(()));
    }

    #[test]
    fn many_addresses_take_up_no_more_memory_than_some() {
        let throttle = SignInThrottle::default();
        for n in 0..40_000 {
            let _ = throttle.count_failure(from(n), at(0));
        }
        let rates = throttle.0.lock();
        assert!(rates.recent.len() <= ADDRESSES_MAX && rates.earlier.len() <= ADDRESSES_MAX);
    }

    #[test]
    fn sign_ins_that_succeed_have_a_rate_of_their_own() {
        let throttle = SignInThrottle::default();
        assert_eq!((0..1_000).filter(|_| throttle.count_success(at(0)).is_ok()).count(), 200);
        assert_eq!(throttle.count_success(at(1)), Ok(()));
    }
}
