//! Limits incoming requests, per tenant over time and for all tenants at once.
//!
//! Both limits are checked before anything is written. A tenant over its rate
//! gets 429 and the time to come back. The memory of all requests together,
//! from the first byte of a body to the commit, is bounded: when the store
//! cannot keep up, producers get a quick 503 and the gateway's memory does not
//! grow. Tests of endpoints have a rate of their own, so that they cannot be
//! used to scan a network. Fetches of thin events' data have one too, so that
//! a leaked link cannot be used to load the gateway.
//!
//! Invariant: dropping an [`IntakePermit`] returns all bytes and places that
//! its request held.

use parking_lot::{Mutex, MutexGuard};
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jiff::Timestamp;

use crate::model::id::{DeliveryId, TenantId};
use crate::model::id_map::IdMap;
use crate::model::rate::{Gcra, Rate};
use crate::model::span::words;

/// Number of rate states per kind below which idle ones are not removed.
const IDLE_RATES_KEPT: usize = 1_024;
/// Most events that one request can owe beyond a burst: a whole batch.
const OWED_MAX: f64 = 1_000.0;
/// Rate at which a tenant may test its endpoints: ten a minute, ten at once.
pub const TEST_RATE: Rate = Rate { per_second: 10.0 / 60.0, burst: 10 };
/// Rate at which the link of one delivery may be followed: once a second,
/// twenty times at once.
pub const FETCH_RATE: Rate = Rate { per_second: 1.0, burst: 20 };

/// Limits on incoming requests. Shared by all requests of this node.
#[derive(Debug)]
pub struct Intake {
    rates: Mutex<RateStates<TenantId>>,
    tests: Mutex<RateStates<TenantId>>,
    fetches: Mutex<RateStates<DeliveryId>>,
    calls: Mutex<RateStates<TenantId>>,
    /// Deliveries and bytes of limited tenants that are not committed yet.
    incoming: Mutex<IdMap<TenantId, (u64, u64)>>,
    bytes: AtomicUsize,
    bytes_max: usize,
    /// Bytes of unfinished bodies, per tenant.
    slow_bodies: Mutex<IdMap<TenantId, usize>>,
    waiting: AtomicUsize,
    waiting_max: usize,
}

/// Rate states of recent callers, by tenant or by delivery.
#[derive(Debug)]
struct RateStates<K> {
    by_key: IdMap<K, Gcra>,
    /// Number of states at which idle ones are removed.
    full_at: usize,
}

/// A tenant's rate and what it has left of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateStatus {
    /// Rate of the tenant on this node.
    pub rate: Rate,
    /// Events the tenant may submit right now.
    pub left: u32,
    /// Time until a whole burst is allowed again.
    pub full_in: Duration,
}

/// A tenant submits more events than its rate allows.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error(
    "tenant {tenant} may hand in {} events per second, {} at once, and {count} more are too many now; try again in {}, or have the tenant's ingest rate raised",
    .status.rate.per_second, .status.rate.burst, words(*.ready_in)
)]
pub struct RateLimited {
    /// Tenant that submitted the events.
    pub tenant: TenantId,
    /// Number of events submitted.
    pub count: usize,
    /// Time until that many events are allowed.
    pub ready_in: Duration,
    /// Rate of the tenant and what is left of it.
    pub status: RateStatus,
}

/// The gateway's memory for incoming requests is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the gateway is taking in as much as it can hold; try again in a moment, nothing of this was written")]
pub struct Overload;

impl Intake {
    /// Creates an intake with limits for all requests together: bytes of their
    /// bodies, and requests that wait for their commit.
    pub fn new(bytes_max: usize, waiting_max: usize) -> Self {
        Self {
            rates: Mutex::default(),
            tests: Mutex::default(),
            fetches: Mutex::default(),
            calls: Mutex::default(),
            incoming: Mutex::default(),
            bytes: AtomicUsize::new(0),
            slow_bodies: Mutex::default(),
            bytes_max,
            waiting: AtomicUsize::new(0),
            waiting_max,
        }
    }

    /// Creates an intake without a limit on memory; tenants' rates still apply.
    pub fn unlimited() -> Self {
        Self::new(usize::MAX, usize::MAX)
    }

    /// Charges events to their tenant's rate, or returns when they are allowed.
    /// When the bucket is full, more than a burst may pass; the excess is owed.
    pub fn charge(&self, tenant: &TenantId, rate: Rate, count: usize, now: Timestamp) -> Result<(), Box<RateLimited>> {
        let tokens = u32::try_from(count).unwrap_or(u32::MAX);
        let mut rates = self.lock_rates();
        let gcra = rates.rate_of(tenant, rate, now);
        if gcra.ready_for(tokens) <= now {
            gcra.take_many(tokens, now);
            return Ok(());
        }
        // A longer wait than the largest debt means that the clock was set back.
        let longest = Duration::from_secs_f64((f64::from(rate.burst) + OWED_MAX) / rate.per_second + 1.0);
        if time_until(gcra.ready_for(tokens), now) > longest {
            *gcra = Gcra::at_ingest(rate);
            gcra.take_many(rate.burst, now);
        }
        let (ready_in, status) = (time_until(gcra.ready_for(tokens), now), status_of(gcra, now));
        Err(Box::new(RateLimited { tenant: tenant.clone(), count, ready_in, status }))
    }

    /// Charges a test of an endpoint, or returns the time until one is allowed.
    pub fn charge_test(&self, tenant: &TenantId, now: Timestamp) -> Result<(), Duration> {
        self.tests.lock().charge(tenant, TEST_RATE, now)
    }

    /// Charges a fetch of a delivery's data, or returns the time until one is
    /// allowed.
    pub fn charge_fetch(&self, delivery: DeliveryId, now: Timestamp) -> Result<(), Duration> {
        self.fetches.lock().charge(&delivery, FETCH_RATE, now)
    }

    /// Charges a call of a tenant's token that submits no events, or returns
    /// the time until one is allowed.
    pub fn charge_call(&self, tenant: &TenantId, rate: Rate, now: Timestamp) -> Result<(), Duration> {
        self.calls.lock().charge(tenant, rate, now)
    }

    /// Counts deliveries and bytes of a tenant as incoming until the returned
    /// guard is dropped. Also returns what was incoming before.
    pub fn admit_usage(&self, tenant: &TenantId, deliveries: u64, bytes: u64) -> (IncomingUsage<'_>, (u64, u64)) {
        let mut incoming = self.incoming.lock();
        let usage = incoming.entry(tenant.clone()).or_default();
        let before = *usage;
        *usage = (before.0 + deliveries, before.1 + bytes);
        (IncomingUsage { intake: self, tenant: tenant.clone(), deliveries, bytes }, before)
    }

    /// Gives back what [`Intake::charge`] has charged for events that were not stored for
    /// want of room, so that fewer of them can be handed in at once.
    pub fn give_back(&self, tenant: &TenantId, rate: Rate, count: usize, now: Timestamp) {
        self.lock_rates().rate_of(tenant, rate, now).give_back(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// Changes a tenant's rate; what is left in its bucket stays.
    pub fn change_rate(&self, tenant: &TenantId, rate: Rate, now: Timestamp) {
        if let Some(gcra) = self.lock_rates().by_key.get_mut(tenant) {
            gcra.change(rate, now);
        }
    }

    /// Returns a tenant's rate and what is left of it.
    pub fn rate_status(&self, tenant: &TenantId, rate: Rate, now: Timestamp) -> RateStatus {
        let mut gcra = self.lock_rates().by_key.get(tenant).copied().unwrap_or(Gcra::at_ingest(rate));
        gcra.change(rate, now);
        status_of(&gcra, now)
    }

    /// Returns the permit of a tenant's new request; it holds nothing yet.
    pub fn permit<'a>(&'a self, tenant: &'a TenantId) -> IntakePermit<'a> {
        IntakePermit { intake: self, tenant, bytes: 0, slow_bytes: 0, is_waiting: false }
    }

    fn slow_bodies(&self) -> MutexGuard<'_, IdMap<TenantId, usize>> {
        self.slow_bodies.lock()
    }

    fn lock_rates(&self) -> MutexGuard<'_, RateStates<TenantId>> {
        self.rates.lock()
    }
}

fn status_of(gcra: &Gcra, now: Timestamp) -> RateStatus {
    let rate = gcra.rate();
    RateStatus { rate, left: gcra.tokens_left(now), full_in: time_until(gcra.ready_for(rate.burst), now) }
}

fn time_until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::from_millis(u64::try_from(at.as_millisecond() - now.as_millisecond()).unwrap_or(0))
}

impl<K> Default for RateStates<K> {
    fn default() -> Self {
        Self { by_key: IdMap::default(), full_at: IDLE_RATES_KEPT }
    }
}

impl<K: Clone + Eq + Hash> RateStates<K> {
    /// Charges one call, or returns the time until one is allowed.
    fn charge(&mut self, key: &K, rate: Rate, now: Timestamp) -> Result<(), Duration> {
        let gcra = self.rate_of(key, rate, now);
        gcra.correct_clock_jump(now);
        if gcra.is_ready(now) {
            gcra.take(now);
            return Ok(());
        }
        Err(time_until(gcra.ready_at(), now))
    }

    /// Returns the state of a key, set to its present rate.
    fn rate_of(&mut self, key: &K, rate: Rate, now: Timestamp) -> &mut Gcra {
        if !self.by_key.contains_key(key) {
            self.forget_idle_rates(now);
            self.by_key.insert(key.clone(), Gcra::at_ingest(rate));
        }
        let gcra = self.by_key.get_mut(key).expect("a key that was just inserted");
        gcra.change(rate, now);
        gcra
    }

    /// Removes states whose bucket is full: a new state would be the same.
    fn forget_idle_rates(&mut self, now: Timestamp) {
        if self.by_key.len() >= self.full_at {
            self.by_key.retain(|_, gcra| !gcra.is_full(now));
            self.full_at = IDLE_RATES_KEPT.max(2 * self.by_key.len());
        }
    }
}

/// One request's deliveries and bytes, counted against its tenant's limits
/// until they are committed.
#[derive(Debug)]
pub struct IncomingUsage<'a> {
    intake: &'a Intake,
    tenant: TenantId,
    deliveries: u64,
    bytes: u64,
}

impl Drop for IncomingUsage<'_> {
    fn drop(&mut self) {
        let mut incoming = self.intake.incoming.lock();
        if let Some(usage) = incoming.get_mut(&self.tenant) {
            *usage = (usage.0 - self.deliveries, usage.1 - self.bytes);
            if *usage == (0, 0) {
                incoming.remove(&self.tenant);
            }
        }
    }
}

/// Memory and place in the queue that one request holds until this is dropped.
#[derive(Debug)]
pub struct IntakePermit<'a> {
    intake: &'a Intake,
    tenant: &'a TenantId,
    bytes: usize,
    /// Bytes counted in [`Intake::slow_bodies`], because the body is unfinished.
    slow_bytes: usize,
    is_waiting: bool,
}

impl IntakePermit<'_> {
    /// Takes memory for more bytes of the body. A request that is alone may
    /// take any amount, so that one request is always possible.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Overload> {
        let Intake { bytes: used_bytes, bytes_max, .. } = self.intake;
        let grown = |used: usize| {
            let grown = used.saturating_add(bytes);
            (grown <= *bytes_max || used == self.bytes).then_some(grown)
        };
        used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).map_err(|_| Overload)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Counts this body as slow: its rest is still to come. A tenant's slow
    /// bodies may use three times the memory that is left, so however many
    /// clients send slowly on purpose, the next request finds some.
    pub fn await_rest_of_body(&mut self) -> Result<(), Overload> {
        let used = self.intake.bytes.load(Ordering::Relaxed);
        let left = self.intake.bytes_max.saturating_sub(used);
        let mut slow_bodies = self.intake.slow_bodies();
        let slow_bytes = slow_bodies.get(self.tenant).copied().unwrap_or(0) - self.slow_bytes + self.bytes;
        if slow_bytes > left.saturating_mul(3) && used != self.bytes {
            return Err(Overload);
        }
        slow_bodies.insert(self.tenant.clone(), slow_bytes);
        self.slow_bytes = self.bytes;
        Ok(())
    }

    /// Takes a place among the requests that wait for their commit; the whole
    /// body has arrived.
    pub fn wait(&mut self) -> Result<(), Overload> {
        let Intake { waiting, waiting_max, .. } = self.intake;
        let one_more = |waiting: usize| (waiting < *waiting_max).then_some(waiting + 1);
        waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).map_err(|_| Overload)?;
        self.is_waiting = true;
        Ok(())
    }
}

impl Drop for IntakePermit<'_> {
    fn drop(&mut self) {
        self.intake.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        if self.slow_bytes > 0 {
            let mut slow_bodies = self.intake.slow_bodies();
            match slow_bodies.get(self.tenant).copied().unwrap_or(0) - self.slow_bytes {
                0 => slow_bodies.remove(self.tenant),
                left => slow_bodies.insert(self.tenant.clone(), left),
            };
        }
        self.intake.waiting.fetch_sub(usize::from(self.is_waiting), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Rate = Rate { per_second: 10.0, burst: 5 };

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_700_000_000_000 + millis).unwrap()
    }

    fn tenant(id: &str) -> TenantId {
        id.parse().unwrap()
    }

    #[test]
    fn tests_of_endpoints_are_counted_apart_and_per_tenant() {
        let intake = Intake::unlimited();
        for n in 0..TEST_RATE.burst {
            assert_eq!(intake.charge_test(&tenant("a"), at(0)), Ok(()), "{n}");
        }
        let wait = intake.charge_test(&tenant("a"), at(0)).unwrap_err();
        assert!((Duration::from_secs(5)..=Duration::from_secs(7)).contains(&wait), "{wait:?}");
        assert_eq!(intake.charge_test(&tenant("b"), at(0)), Ok(()));
        intake.charge(&tenant("a"), SLOW, 1, at(0)).unwrap();
        assert_eq!(intake.charge_test(&tenant("a"), at(7_000)), Ok(()));
    }

    #[test]
    fn a_whole_burst_passes_and_the_next_one_is_told_when() {
        let intake = Intake::unlimited();
        for n in (0..5).rev() {
            intake.charge(&tenant("a"), SLOW, 1, at(0)).unwrap();
            assert_eq!(intake.rate_status(&tenant("a"), SLOW, at(0)).left, n);
        }
        let limited = intake.charge(&tenant("a"), SLOW, 1, at(0)).unwrap_err();
        assert_eq!((limited.ready_in, limited.status.left), (Duration::from_millis(100), 0));
        assert_eq!(limited.status.full_in, Duration::from_millis(500));
        let sentence = limited.to_string();
        assert!(sentence.contains("tenant a may hand in 10 events per second, 5 at once"), "{sentence}");
        intake.charge(&tenant("b"), SLOW, 5, at(0)).unwrap();
        assert!(intake.charge(&tenant("a"), SLOW, 1, at(99)).is_err(), "what was refused is not counted");
        intake.charge(&tenant("a"), SLOW, 1, at(100)).unwrap();
        assert!(intake.charge(&tenant("a"), SLOW, 1, at(101)).is_err());
    }

    #[test]
    fn a_batch_over_the_burst_passes_when_the_bucket_is_full_and_is_owed() {
        let intake = Intake::unlimited();
        intake.charge(&tenant("a"), SLOW, 1, at(0)).unwrap();
        let limited = intake.charge(&tenant("a"), SLOW, 20, at(0)).unwrap_err();
        assert_eq!((limited.ready_in, limited.status.left), (Duration::from_millis(100), 4));
        intake.charge(&tenant("a"), SLOW, 20, at(200)).unwrap();
        assert!(intake.charge(&tenant("a"), SLOW, 1, at(1_799)).is_err(), "15 are owed, and then one is wanted");
        intake.charge(&tenant("a"), SLOW, 1, at(1_801)).unwrap();
    }

    #[test]
    fn another_rate_counts_at_once_and_is_no_fresh_burst() {
        let intake = Intake::unlimited();
        let hourly = Rate { per_second: 0.001, burst: 1 };
        let fast = Rate { per_second: 1_000.0, burst: 100 };
        intake.charge(&tenant("a"), hourly, 1, at(0)).unwrap();
        assert!(intake.charge(&tenant("a"), hourly, 1, at(1_000)).is_err());
        intake.change_rate(&tenant("a"), fast, at(1_000));
        assert!(intake.charge(&tenant("a"), fast, 100, at(1_000)).is_err(), "the bucket was empty");
        intake.charge(&tenant("a"), fast, 50, at(1_050)).unwrap();
        assert!(intake.charge(&tenant("a"), hourly, 50, at(1_050)).is_err());
    }

    #[test]
    fn a_clock_that_was_set_back_limits_nobody_for_long() {
        let intake = Intake::unlimited();
        intake.charge(&tenant("a"), SLOW, 5, at(0)).unwrap();
        let limited = intake.charge(&tenant("a"), SLOW, 1, at(-3_600_000)).unwrap_err();
        assert!(limited.ready_in <= Duration::from_millis(101), "{:?}", limited.ready_in);
        intake.charge(&tenant("a"), SLOW, 1, at(-3_599_000)).unwrap();
    }

    #[test]
    fn rested_paces_are_let_go_of_and_others_stay() {
        let intake = Intake::unlimited();
        let daily = Rate { per_second: 0.001, burst: 1 };
        intake.charge(&tenant("debtor"), daily, 1, at(0)).unwrap();
        for n in 0..100_000 {
            intake.charge(&tenant(&format!("t{n}")), SLOW, 1, at(n)).unwrap();
        }
        let count = intake.lock_rates().by_key.len();
        assert!(count <= IDLE_RATES_KEPT, "{count} are kept");
        assert!(intake.charge(&tenant("debtor"), daily, 1, at(100_000)).is_err(), "a debt is not forgotten");
    }

    #[test]
    fn bytes_are_held_until_the_share_is_dropped() {
        let (intake, a) = (Intake::new(100, 10), tenant("a"));
        let (mut slow, mut other) = (intake.permit(&a), intake.permit(&a));
        slow.grow(60).unwrap();
        other.grow(40).unwrap();
        assert_eq!(other.grow(1), Err(Overload), "the account is full");
        assert_eq!(slow.grow(1), Err(Overload));
        drop(other);
        slow.grow(40).unwrap();
        assert_eq!(intake.permit(&a).grow(1), Err(Overload));
        drop(slow);
        assert_eq!(intake.bytes.load(Ordering::Relaxed), 0);
        intake.permit(&a).grow(100).unwrap();
    }

    #[test]
    fn however_much_some_tenants_hold_there_is_something_left_for_the_next() {
        let intake = Intake::new(1_000_000, 10);
        let tenants: Vec<TenantId> = (0..4).map(|n| tenant(&format!("greedy{n}"))).collect();
        let mut permits = Vec::new();
        for greedy in &tenants {
            let before = permits.len();
            loop {
                let mut permit = intake.permit(greedy);
                if permit.grow(1_000).and_then(|()| permit.await_rest_of_body()).is_err() {
                    break;
                }
                permits.push(permit);
            }
            assert!(permits.len() > before, "there was something left for {greedy}");
        }
        assert_eq!(intake.permit(&tenant("next")).grow(1_000), Ok(()));
        // A body that grows is counted once.
        let mut last = permits.pop().unwrap();
        permits.clear();
        last.grow(10).unwrap();
        last.await_rest_of_body().unwrap();
        assert_eq!(intake.slow_bodies().values().sum::<usize>(), 1_010);
        drop(last);
        assert!(intake.slow_bodies().is_empty() && intake.bytes.load(Ordering::Relaxed) == 0);
    }

    #[test]
    fn one_request_is_always_possible_however_large() {
        let (intake, a, b) = (Intake::new(10, 1), tenant("a"), tenant("b"));
        let mut only = intake.permit(&a);
        only.grow(8).unwrap();
        only.grow(1_000).unwrap();
        only.await_rest_of_body().unwrap();
        only.wait().unwrap();
        let mut other = intake.permit(&b);
        assert_eq!((other.grow(1), other.wait()), (Err(Overload), Err(Overload)));
        drop((only, other));
        let mut next = intake.permit(&b);
        next.grow(11).unwrap();
        next.wait().unwrap();
    }
}
