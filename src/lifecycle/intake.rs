//! Intake: how much may come in, per tenant over time and over all at once.
//!
//! Two limits, asked before anything is written. A tenant's own rate is told
//! to it with 429 and the time to come back; what all requests hold together
//! in memory, between the first byte of a body and the commit, is bounded, so
//! that a store that cannot keep up is felt by producers as a quick 503 and
//! never as a gateway that swells. Tests of endpoints have a rate of their own,
//! so that nobody looks around with them; so have fetches of thin events' data,
//! so that a link that got about is nobody's lever.
//!
//! Invariant: whatever a request holds of the account is given back when its
//! [`IntakePermit`] is dropped, on every way out.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jiff::Timestamp;

use crate::model::id::{DeliveryId, TenantId};
use crate::model::rate::{Gcra, Rate};
use crate::model::span::words;

/// How many paces of a kind are kept before those that have rested are let go.
const PACES_LEAST: usize = 1_024;
/// The most that one request can owe beyond a burst: a whole batch.
const OWED_MAX: f64 = 1_000.0;
/// How often a tenant may test its endpoints: ten a minute, and ten at once.
pub const TEST_RATE: Rate = Rate { per_second: 10.0 / 60.0, burst: 10 };
/// How often the link of one delivery may be followed: once a second, and
/// twenty times at once.
pub const FETCH_RATE: Rate = Rate { per_second: 1.0, burst: 20 };

/// How much may come in.
#[derive(Debug)]
pub struct Intake {
    rates: Mutex<TenantRates<TenantId>>,
    tests: Mutex<TenantRates<TenantId>>,
    fetches: Mutex<TenantRates<DeliveryId>>,
    calls: Mutex<TenantRates<TenantId>>,
    /// What tenants with limits are being taken in: deliveries and bytes.
    incoming: Mutex<HashMap<TenantId, (u64, u64)>>,
    bytes: AtomicUsize,
    bytes_max: usize,
    /// What each tenant holds of bodies that are still coming in.
    slow_bodies: Mutex<HashMap<TenantId, usize>>,
    waiting: AtomicUsize,
    waiting_max: usize,
}

/// The paces of those that were here of late.
#[derive(Debug)]
struct TenantRates<K> {
    by_whom: HashMap<K, Gcra>,
    /// With this many, those that have rested are let go of.
    full_at: usize,
}

/// How a tenant stands with its rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateStatus {
    /// The rate.
    pub rate: Rate,
    /// How many more may come now.
    pub left: u32,
    /// How long until a whole burst may come again.
    pub full_in: Duration,
}

/// A tenant hands in more than its rate allows.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error(
    "tenant {tenant} may hand in {} events per second, {} at once, and {count} more are too many now; try again in {}, or have the tenant's ingest rate raised",
    .status.rate.per_second, .status.rate.burst, words(*.ready_in)
)]
pub struct RateLimited {
    /// Whose events they are.
    pub tenant: TenantId,
    /// How many came.
    pub count: usize,
    /// How long until as many may come.
    pub ready_in: Duration,
    /// How it stands.
    pub status: RateStatus,
}

/// So much is being taken in that this request would be too much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the gateway is taking in as much as it can hold; try again in a moment, nothing of this was written")]
pub struct Overload;

impl Intake {
    /// Bounds what requests hold together: bytes of their bodies, and how
    /// many wait for their commit.
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

    /// Never has too much; tenants keep to their rates all the same.
    pub fn unlimited() -> Self {
        Self::new(usize::MAX, usize::MAX)
    }

    /// Counts events against their tenant's rate, or says when they may come.
    /// More than a whole burst pass when the bucket is full, and are owed.
    pub fn charge(&self, tenant: &TenantId, rate: Rate, count: usize, now: Timestamp) -> Result<(), Box<RateLimited>> {
        let many = u32::try_from(count).unwrap_or(u32::MAX);
        let mut paces = self.rates();
        let pace = paces.of(tenant, rate, now);
        if pace.ready_for(many) <= now {
            pace.take_many(many, now);
            return Ok(());
        }
        // Nobody can owe as much as that: the clock has been set back.
        let longest = Duration::from_secs_f64((f64::from(rate.burst) + OWED_MAX) / rate.per_second + 1.0);
        if until(pace.ready_for(many), now) > longest {
            *pace = Gcra::at_ingest(rate);
            pace.take_many(rate.burst, now);
        }
        let (ready_in, standing) = (until(pace.ready_for(many), now), standing(pace, now));
        Err(Box::new(RateLimited { tenant: tenant.clone(), count, ready_in, status: standing }))
    }

    /// Counts a test of an endpoint, or says how long until there may be one.
    pub fn charge_test(&self, tenant: &TenantId, now: Timestamp) -> Result<(), Duration> {
        self.tests.lock().charge(tenant, TEST_RATE, now)
    }

    /// Counts a fetch of a delivery's data, or says how long until there may
    /// be one.
    pub fn charge_fetch(&self, delivery: DeliveryId, now: Timestamp) -> Result<(), Duration> {
        self.fetches.lock().charge(&delivery, FETCH_RATE, now)
    }

    /// Counts a call of a tenant's token that hands in no events, or says how
    /// long until there may be one.
    pub fn charge_call(&self, tenant: &TenantId, rate: Rate, now: Timestamp) -> Result<(), Duration> {
        self.calls.lock().charge(tenant, rate, now)
    }

    /// Deliveries and bytes of a tenant are being taken in, until what is
    /// returned is dropped. With it: what was being taken in before.
    pub fn admit_usage(&self, tenant: &TenantId, deliveries: u64, bytes: u64) -> (IncomingUsage<'_>, (u64, u64)) {
        let mut coming = self.incoming.lock();
        let theirs = coming.entry(tenant.clone()).or_default();
        let before = *theirs;
        *theirs = (before.0 + deliveries, before.1 + bytes);
        (IncomingUsage { intake: self, tenant: tenant.clone(), deliveries, bytes }, before)
    }

    /// A tenant's rate was changed; what is left in its bucket stays.
    pub fn change(&self, tenant: &TenantId, rate: Rate, now: Timestamp) {
        if let Some(pace) = self.rates().by_whom.get_mut(tenant) {
            pace.change(rate, now);
        }
    }

    /// How a tenant stands with its rate.
    pub fn rate_status(&self, tenant: &TenantId, rate: Rate, now: Timestamp) -> RateStatus {
        let mut pace = self.rates().by_whom.get(tenant).copied().unwrap_or(Gcra::at_ingest(rate));
        pace.change(rate, now);
        standing(&pace, now)
    }

    /// A request of a tenant's begins to come in.
    pub fn permit<'a>(&'a self, tenant: &'a TenantId) -> IntakePermit<'a> {
        IntakePermit { intake: self, tenant, bytes: 0, lingering: 0, is_waiting: false }
    }

    fn slow_bodies(&self) -> MutexGuard<'_, HashMap<TenantId, usize>> {
        self.slow_bodies.lock()
    }

    fn rates(&self) -> MutexGuard<'_, TenantRates<TenantId>> {
        self.rates.lock()
    }
}

fn standing(pace: &Gcra, now: Timestamp) -> RateStatus {
    let rate = pace.rate();
    RateStatus { rate, left: pace.left(now), full_in: until(pace.ready_for(rate.burst), now) }
}

fn until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::from_millis(u64::try_from(at.as_millisecond() - now.as_millisecond()).unwrap_or(0))
}

impl<K> Default for TenantRates<K> {
    fn default() -> Self {
        Self { by_whom: HashMap::new(), full_at: PACES_LEAST }
    }
}

impl<K: Clone + Eq + Hash> TenantRates<K> {
    /// Counts one, or says how long until there may be one.
    fn charge(&mut self, whom: &K, rate: Rate, now: Timestamp) -> Result<(), Duration> {
        let pace = self.of(whom, rate, now);
        pace.correct_clock_jump(now);
        if pace.is_ready(now) {
            pace.take(now);
            return Ok(());
        }
        Err(until(pace.ready_at(), now))
    }

    /// Someone's pace, at the rate it has now.
    fn of(&mut self, whom: &K, rate: Rate, now: Timestamp) -> &mut Gcra {
        if !self.by_whom.contains_key(whom) {
            self.forget_idle_rates(now);
            self.by_whom.insert(whom.clone(), Gcra::at_ingest(rate));
        }
        let pace = self.by_whom.get_mut(whom).expect("it was just put there");
        pace.change(rate, now);
        pace
    }

    /// Nothing is lost with a pace that has rested: it would begin the same.
    fn forget_idle_rates(&mut self, now: Timestamp) {
        if self.by_whom.len() >= self.full_at {
            self.by_whom.retain(|_, pace| !pace.is_full(now));
            self.full_at = PACES_LEAST.max(2 * self.by_whom.len());
        }
    }
}

/// What one request brings to its tenant's limits, until it is written.
#[derive(Debug)]
pub struct IncomingUsage<'a> {
    intake: &'a Intake,
    tenant: TenantId,
    deliveries: u64,
    bytes: u64,
}

impl Drop for IncomingUsage<'_> {
    fn drop(&mut self) {
        let mut coming = self.intake.incoming.lock();
        if let Some(theirs) = coming.get_mut(&self.tenant) {
            *theirs = (theirs.0 - self.deliveries, theirs.1 - self.bytes);
            if *theirs == (0, 0) {
                coming.remove(&self.tenant);
            }
        }
    }
}

/// What one request holds of the account; given back when it is dropped.
#[derive(Debug)]
pub struct IntakePermit<'a> {
    intake: &'a Intake,
    tenant: &'a TenantId,
    bytes: usize,
    /// How much of that is counted with its tenant, because more is to come.
    lingering: usize,
    is_waiting: bool,
}

impl IntakePermit<'_> {
    /// More of the body has come. A request that is alone may hold any
    /// amount, so that one is always possible.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Overload> {
        let Intake { bytes: held, bytes_max, .. } = self.intake;
        let more = |held: usize| {
            let growth = held.saturating_add(bytes);
            (growth <= *bytes_max || held == self.bytes).then_some(growth)
        };
        held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map_err(|_| Overload)?;
        self.bytes += bytes;
        Ok(())
    }

    /// The rest of the body is still to come. Of such bodies a tenant may hold
    /// three times what is left: so however many send slowly on purpose, there
    /// is something left for whoever comes next.
    pub fn await_rest_of_body(&mut self) -> Result<(), Overload> {
        let held = self.intake.bytes.load(Ordering::Relaxed);
        let left = self.intake.bytes_max.saturating_sub(held);
        let mut lingering = self.intake.slow_bodies();
        let theirs = lingering.get(self.tenant).copied().unwrap_or(0) - self.lingering + self.bytes;
        if theirs > left.saturating_mul(3) && held != self.bytes {
            return Err(Overload);
        }
        lingering.insert(self.tenant.clone(), theirs);
        self.lingering = self.bytes;
        Ok(())
    }

    /// The whole body is here, and waits for its commit from now on.
    pub fn wait(&mut self) -> Result<(), Overload> {
        let Intake { waiting, waiting_max, .. } = self.intake;
        let more = |waiting: usize| (waiting < *waiting_max).then_some(waiting + 1);
        waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map_err(|_| Overload)?;
        self.is_waiting = true;
        Ok(())
    }
}

impl Drop for IntakePermit<'_> {
    fn drop(&mut self) {
        self.intake.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        if self.lingering > 0 {
            let mut lingering = self.intake.slow_bodies();
            match lingering.get(self.tenant).copied().unwrap_or(0) - self.lingering {
                0 => lingering.remove(self.tenant),
                theirs => lingering.insert(self.tenant.clone(), theirs),
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
        intake.change(&tenant("a"), fast, at(1_000));
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
        let kept = intake.rates().by_whom.len();
        assert!(kept <= PACES_LEAST, "{kept} are kept");
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
        let mut shares = Vec::new();
        for greedy in &tenants {
            let before = shares.len();
            loop {
                let mut share = intake.permit(greedy);
                if share.grow(1_000).and_then(|()| share.await_rest_of_body()).is_err() {
                    break;
                }
                shares.push(share);
            }
            assert!(shares.len() > before, "there was something left for {greedy}");
        }
        assert_eq!(intake.permit(&tenant("next")).grow(1_000), Ok(()));
        // One that grows is counted once.
        let mut last = shares.pop().unwrap();
        shares.clear();
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
