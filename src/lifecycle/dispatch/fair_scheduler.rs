//! Chooses the endpoint that gets the next send slot, fairly between tenants.
//!
//! Weighted round robin over tenants (each gets its weight's worth of starts
//! per round), then over a tenant's endpoints. Starts alone would not be
//! fair: a request that hangs holds its slot for long. So slots *held* are
//! counted too, and a tenant that holds more than its share never takes the
//! last quarter of them. While the processors are overloaded and a quiet tenant
//! is there, the starts of the others are limited by the [`super::cpu_throttle`].
//!
//! Pure bookkeeping, like [`super::queues`], which calls it.

use std::collections::{BTreeSet, VecDeque};

use jiff::Timestamp;

use super::queue::is_recent;
use super::quiet_tenants::{QuietTenants, StartCount};
use crate::model::id::{EndpointId, TenantId};
use crate::model::id_map::IdMap;
use crate::model::rate::{Gcra, Rate};
use crate::model::tenant::TenantQuota;

/// A rate so high that it limits nothing.
const UNTHROTTLED: Rate = Rate { per_second: 100_000.0, burst: 1_000 };

/// All tenants with endpoints in line or claims in flight.
pub struct FairScheduler {
    slots: usize,
    began_at: Timestamp,
    tenants: IdMap<TenantId, TenantShare>,
    /// Tenants that may start something, in the order of their turns.
    ring: VecDeque<TenantId>,
    /// Tenants above their share while slots are scarce; each at most once.
    over_share: VecDeque<TenantId>,
    /// Tenants that wait for a rate, and until when.
    paced: BTreeSet<(Timestamp, TenantId)>,
    /// Number of times a tenant had to wait for its share.
    waits: u64,
    /// Tenants for whose sake the CPU throttle is in force.
    quiet: QuietTenants,
}

struct TenantShare {
    weight: u32,
    rate: Option<Gcra>,
    /// Time at which the tenant last had to wait for its rate.
    rate_waited_at: Timestamp,
    /// State of the rate that the CPU throttle sets.
    throttled_rate: Gcra,
    /// Starts of this second and the one before.
    starts: StartCount,
    /// Number of send slots in use.
    slots_used: usize,
    /// Endpoints that can start something, each once, in the order of their turns.
    endpoints: VecDeque<EndpointId>,
    /// Starts left in this round.
    credit: u32,
    position: SchedulePosition,
    /// Whether the tenant is in the list `over_share`.
    is_listed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SchedulePosition {
    /// Nothing to start.
    Out,
    /// In the ring, waiting for its turn.
    Ring,
    /// Above its share while slots are scarce.
    OverShare,
    /// Waiting for a rate until this time.
    Paced(Timestamp),
}

impl FairScheduler {
    /// Creates a scheduler for this many slots. What was sent before `began_at`
    /// is not known.
    pub fn new(slots: usize, began_at: Timestamp) -> Self {
        Self {
            slots,
            began_at,
            tenants: IdMap::default(),
            ring: VecDeque::new(),
            over_share: VecDeque::new(),
            paced: BTreeSet::new(),
            waits: 0,
            quiet: QuietTenants::default(),
        }
    }

    /// Declares what was sent for tenants before this time as unknown.
    pub fn set_unknown_before(&mut self, at: Timestamp) {
        self.began_at = at;
    }

    /// Puts an endpoint that can start something into its tenant's line.
    pub fn offer(&mut self, tenant: &TenantId, quota: &TenantQuota, endpoint: EndpointId) {
        let share = match self.tenants.get_mut(tenant) {
            Some(share) => share,
            None => {
                let share = TenantShare {
                    weight: quota.weight,
                    rate: quota.rate.map(|rate| Gcra::unknown_before(rate, self.began_at)),
                    rate_waited_at: Timestamp::MIN,
                    throttled_rate: Gcra::full(UNTHROTTLED),
                    starts: StartCount::default(),
                    slots_used: 0,
                    endpoints: VecDeque::new(),
                    credit: 0,
                    position: SchedulePosition::Out,
                    is_listed: false,
                };
                self.tenants.entry(tenant.clone()).or_insert(share)
            }
        };
        share.endpoints.push_back(endpoint);
        if share.position == SchedulePosition::Out {
            share.position = SchedulePosition::Ring;
            self.ring.push_back(tenant.clone());
        }
    }

    /// Returns the endpoint whose turn it is, while `free` slots are free.
    /// `throttle` is the rate of a tenant under CPU pressure,
    /// `weight_in_use` the sum of the weights of all tenants.
    pub fn next(
        &mut self,
        free: usize,
        throttle: Option<Rate>,
        now: Timestamp,
        weight_in_use: impl Fn() -> u64,
    ) -> Option<EndpointId> {
        let are_slots_scarce = free <= self.slots / 4;
        if !are_slots_scarce {
            self.readmit_one();
        }
        while let Some(tenant) = self.ring.front() {
            let Some(share) = self.tenants.get_mut(tenant) else {
                self.ring.pop_front();
                continue;
            };
            if let Some(gcra) = &mut share.rate {
                gcra.correct_clock_jump(now);
            }
            if share.endpoints.is_empty() {
                share.leave(SchedulePosition::Out);
            } else if let Some(at) = share.rate.filter(|gcra| !gcra.is_ready(now)).map(|gcra| gcra.ready_at()) {
                share.rate_waited_at = now;
                share.leave(SchedulePosition::Paced(at));
                self.paced.insert((at, tenant.clone()));
            } else if let Some(rate) = throttle
                && self.quiet.is_another_quiet_tenant_active(tenant, now)
                && !share.may_start_under_throttle(rate, now)
            {
                let at = share.throttled_rate.ready_at();
                share.leave(SchedulePosition::Paced(at));
                self.paced.insert((at, tenant.clone()));
            } else if are_slots_scarce && share.slots_used >= share_of(self.slots, share.weight, weight_in_use()) {
                share.leave(SchedulePosition::OverShare);
                self.waits += 1;
                if !std::mem::replace(&mut share.is_listed, true) {
                    self.over_share.push_back(tenant.clone());
                }
            } else {
                if share.credit == 0 {
                    share.credit = share.weight;
                }
                return share.endpoints.pop_front();
            }
            let tenant = self.ring.pop_front().expect("the tenant at the front of the ring");
            self.forget_if_idle(&tenant);
        }
        None
    }

    /// Records that the endpoint whose turn it was has started a claim.
    pub fn record_start(&mut self, tenant: &TenantId, now: Timestamp) {
        let Some(share) = self.tenants.get_mut(tenant) else { return };
        share.slots_used += 1;
        // While the throttle is not in force, starts create no debt.
        if share.throttled_rate.is_ready(now) {
            share.throttled_rate.take(now);
        }
        self.quiet.record_start(tenant, &mut share.starts, now);
        if let Some(gcra) = &mut share.rate {
            gcra.take(now);
        }
        share.credit = share.credit.saturating_sub(1);
        if share.credit == 0 && self.ring.front() == Some(tenant) {
            self.ring.rotate_left(1);
        }
    }

    /// Frees a slot of this tenant.
    pub fn slot_freed(&mut self, tenant: &TenantId) {
        let Some(share) = self.tenants.get_mut(tenant) else { return };
        share.slots_used = share.slots_used.saturating_sub(1);
        if share.position == SchedulePosition::OverShare {
            share.position = SchedulePosition::Ring;
            self.ring.push_back(tenant.clone());
        }
        self.forget_if_idle(tenant);
    }

    /// Changes a tenant's weight and rate.
    pub fn change_quota(&mut self, tenant: &TenantId, quota: &TenantQuota, now: Timestamp) {
        let Some(share) = self.tenants.get_mut(tenant) else { return };
        share.weight = quota.weight;
        share.rate = match (share.rate, quota.rate) {
            (Some(mut gcra), Some(rate)) => {
                gcra.change(rate, now);
                Some(gcra)
            }
            (None, Some(rate)) => Some(Gcra::unknown_before(rate, now)),
            (_, None) => None,
        };
        if let SchedulePosition::Paced(at) = share.position {
            self.paced.remove(&(at, tenant.clone()));
            share.position = SchedulePosition::Ring;
            self.ring.push_back(tenant.clone());
        }
    }

    /// Puts tenants whose rate allows a start again back into the ring.
    pub fn wake_ready_tenants(&mut self, now: Timestamp) {
        while let Some((at, _)) = self.paced.first()
            && *at <= now
        {
            let (_, tenant) = self.paced.pop_first().expect("the first paced tenant");
            if let Some(share) = self.tenants.get_mut(&tenant) {
                share.position = SchedulePosition::Ring;
                self.ring.push_back(tenant);
            }
        }
    }

    /// Returns when [`Self::wake_ready_tenants`] has something to do.
    pub fn next_wake(&self) -> Option<Timestamp> {
        self.paced.first().map(|(at, _)| *at)
    }

    /// Returns the number of tenants with something in line or in flight.
    pub fn tenant_count(&self) -> usize {
        self.tenants.len()
    }

    /// Returns how often a tenant had to wait for its share, since the last call.
    pub fn take_waits(&mut self) -> u64 {
        std::mem::take(&mut self.waits)
    }

    /// Returns when a tenant's rate allows the next start, if it does not now.
    pub fn rate_ready_at(&self, tenant: &TenantId, now: Timestamp) -> Option<Timestamp> {
        let gcra = self.tenants.get(tenant)?.rate?;
        (!gcra.is_ready(now)).then(|| gcra.ready_at())
    }

    /// Whether a tenant's rate holds it back, now or a moment ago.
    pub fn is_at_rate(&self, tenant: &TenantId, now: Timestamp) -> bool {
        let share = self.tenants.get(tenant).filter(|share| share.rate.is_some());
        share.is_some_and(|share| is_recent(share.rate_waited_at, now)) || self.rate_ready_at(tenant, now).is_some()
    }

    /// Whether a tenant has to wait because it holds more than its share.
    pub fn is_over_share(&self, tenant: &TenantId) -> bool {
        self.tenants.get(tenant).is_some_and(|share| share.position == SchedulePosition::OverShare)
    }

    /// Puts one tenant that waited for its share back into the ring; slots are
    /// no longer scarce.
    fn readmit_one(&mut self) {
        while let Some(tenant) = self.over_share.pop_front() {
            let Some(share) = self.tenants.get_mut(&tenant) else { continue };
            share.is_listed = false;
            // A tenant that freed a slot meanwhile is in the ring already.
            if share.position == SchedulePosition::OverShare {
                share.position = SchedulePosition::Ring;
                self.ring.push_back(tenant);
                return;
            }
        }
    }

    /// Removes a tenant that has nothing in line, in flight or owed.
    fn forget_if_idle(&mut self, tenant: &TenantId) {
        let is_idle = |share: &TenantShare| {
            share.slots_used == 0 && share.position == SchedulePosition::Out && share.rate.is_none() && !share.is_listed
        };
        if self.tenants.get(tenant).is_some_and(is_idle) {
            self.tenants.remove(tenant);
        }
    }
}

impl TenantShare {
    /// Whether the CPU throttle allows the tenant one more start.
    fn may_start_under_throttle(&mut self, rate: Rate, now: Timestamp) -> bool {
        self.throttled_rate.change(rate, now);
        self.throttled_rate.is_ready(now)
    }

    /// Leaves the ring for another position.
    fn leave(&mut self, position: SchedulePosition) {
        self.position = position;
        self.credit = 0;
    }
}

/// Returns the number of slots that a weight stands for, at least one.
fn share_of(slots: usize, weight: u32, weight_in_use: u64) -> usize {
    let share = slots as u64 * u64::from(weight) / weight_in_use.max(u64::from(weight));
    usize::try_from(share).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_700_000_000_000 + millis).unwrap()
    }

    fn tenant(name: &str) -> TenantId {
        name.parse().unwrap()
    }

    fn endpoint(n: u128) -> EndpointId {
        EndpointId::mint(at(0), n)
    }

    /// A node whose tenants always have something to start at each of their
    /// endpoints.
    struct Node {
        scheduler: FairScheduler,
        free: usize,
        quotas: HashMap<TenantId, TenantQuota>,
        owners: HashMap<EndpointId, TenantId>,
    }

    impl Node {
        fn new(slots: usize, tenants: &[(&str, u32, u128)]) -> Self {
            let mut node = Self {
                scheduler: FairScheduler::new(slots, at(0)),
                free: slots,
                quotas: HashMap::new(),
                owners: HashMap::new(),
            };
            for (n, (name, weight, endpoints)) in tenants.iter().enumerate() {
                node.quotas.insert(tenant(name), TenantQuota { weight: *weight, ..TenantQuota::default() });
                for m in 0..*endpoints {
                    let id = endpoint(1_000 * n as u128 + m);
                    node.owners.insert(id, tenant(name));
                    node.scheduler.offer(&tenant(name), &node.quotas[&tenant(name)], id);
                }
            }
            node
        }

        /// Starts a claim; returns its tenant and endpoint.
        fn start(&mut self) -> Option<(TenantId, EndpointId)> {
            if self.free == 0 {
                return None;
            }
            let weights = self.quotas.values().map(|quota| u64::from(quota.weight)).sum();
            let endpoint = self.scheduler.next(self.free, None, at(0), || weights)?;
            let owner = self.owners[&endpoint].clone();
            self.free -= 1;
            self.scheduler.record_start(&owner, at(0));
            self.scheduler.offer(&owner, &self.quotas[&owner], endpoint);
            Some((owner, endpoint))
        }

        fn end(&mut self, name: &str) {
            self.free += 1;
            self.scheduler.slot_freed(&tenant(name));
        }
    }

    #[test]
    fn starts_go_by_weight_and_evenly_over_endpoints() {
        let mut node = Node::new(10_000, &[("a", 1, 1), ("b", 3, 2), ("c", 1, 1)]);
        let mut starts: HashMap<EndpointId, usize> = HashMap::new();
        for _ in 0..1_000 {
            let (owner, endpoint) = node.start().unwrap();
            *starts.entry(endpoint).or_default() += 1;
            node.end(owner.as_str());
        }
        assert_eq!((starts[&endpoint(0)], starts[&endpoint(2_000)]), (200, 200));
        assert_eq!((starts[&endpoint(1_000)], starts[&endpoint(1_001)]), (300, 300));
    }

    #[test]
    fn one_that_holds_more_than_its_share_never_takes_the_last_quarter() {
        let mut node = Node::new(100, &[("loud", 1, 5)]);
        node.quotas.insert(tenant("quiet"), TenantQuota::default());
        let started = std::iter::from_fn(|| node.start()).count();
        assert_eq!(started, 75, "all of it hangs");
        // The quiet tenant finds slots at once, up to its share.
        let id = endpoint(9_000);
        node.owners.insert(id, tenant("quiet"));
        node.scheduler.offer(&tenant("quiet"), &TenantQuota::default(), id);
        let started: Vec<TenantId> = std::iter::from_fn(|| node.start()).map(|(owner, _)| owner).collect();
        assert_eq!(started.len(), 25);
        assert!(started.iter().all(|owner| owner.as_str() == "quiet"));
        // The loud tenant may not take back a slot it frees while slots are scarce.
        node.end("loud");
        assert_eq!(node.start().unwrap().0.as_str(), "quiet");
    }

    #[test]
    fn one_that_is_alone_may_take_every_slot() {
        let mut node = Node::new(100, &[("only", 1, 3)]);
        assert_eq!(std::iter::from_fn(|| node.start()).count(), 100);
    }

    #[test]
    fn those_who_had_to_wait_go_on_once_slots_are_no_longer_short() {
        let mut node = Node::new(8, &[("a", 1, 1), ("b", 1, 1), ("c", 1, 1), ("d", 1, 1)]);
        assert_eq!(std::iter::from_fn(|| node.start()).count(), 8, "two each are their shares");
        for name in ["a", "a", "b", "b"] {
            node.end(name);
        }
        let started: Vec<String> = std::iter::from_fn(|| node.start()).map(|(owner, _)| owner.to_string()).collect();
        assert_eq!(started.len(), 4);
        assert!(started.iter().filter(|name| *name == "a" || *name == "b").count() >= 2, "{started:?}");
    }

    #[test]
    fn a_tenants_rate_makes_it_wait_and_nobody_else() {
        let mut node = Node::new(1_000, &[("slow", 1, 2), ("fast", 1, 1)]);
        let slow = TenantQuota { rate: Some(Rate { per_second: 10.0, burst: 1 }), ..TenantQuota::default() };
        node.scheduler.change_quota(&tenant("slow"), &slow, at(0));
        let mut starts = HashMap::new();
        for _ in 0..100 {
            let (owner, _) = node.start().unwrap();
            *starts.entry(owner.to_string()).or_insert(0) += 1;
        }
        assert_eq!(starts.get("slow"), None, "what was before the change is not known");
        assert_eq!(node.scheduler.next_wake(), Some(at(100)));
        assert_eq!(node.scheduler.rate_ready_at(&tenant("slow"), at(0)), Some(at(100)));
        node.scheduler.wake_ready_tenants(at(100));
        assert!(node.scheduler.next(900, None, at(100), || 2).is_some());
        // Without a rate the tenant starts at once.
        node.scheduler.change_quota(&tenant("slow"), &TenantQuota::default(), at(0));
        assert_eq!(node.scheduler.rate_ready_at(&tenant("slow"), at(0)), None);
    }

    #[test]
    fn under_strain_those_who_share_the_node_are_paced_and_one_alone_is_not() {
        let throttle = Some(Rate { per_second: 1_000.0, burst: 10 });
        let (a, b) = (tenant("a"), tenant("b"));
        let mut scheduler = FairScheduler::new(10_000, at(0));
        let starts = |scheduler: &mut FairScheduler, owner: &TenantId, n: u128, now: i64| {
            let mut count = 0;
            scheduler.wake_ready_tenants(at(now));
            scheduler.offer(owner, &TenantQuota::default(), endpoint(n));
            while count < 100 && scheduler.next(9_000, throttle, at(now), || 2).is_some() {
                scheduler.record_start(owner, at(now));
                scheduler.offer(owner, &TenantQuota::default(), endpoint(n));
                count += 1;
            }
            count
        };
        assert_eq!(starts(&mut scheduler, &a, 1, 0), 100, "alone");
        let system = TenantId::system();
        scheduler.offer(&system, &TenantQuota::default(), endpoint(3));
        while scheduler.next(9_000, throttle, at(0), || 2) != Some(endpoint(3)) {}
        scheduler.record_start(&system, at(0));
        assert_eq!(starts(&mut scheduler, &a, 1, 0), 100, "alone with the gateway's own self-test");
        let mut scheduler = FairScheduler::new(10_000, at(0));
        scheduler.offer(&b, &TenantQuota::default(), endpoint(2));
        assert!(scheduler.next(9_000, throttle, at(0), || 2).is_some());
        scheduler.record_start(&b, at(0));
        let first = starts(&mut scheduler, &a, 1, 0);
        assert!((1..=10).contains(&first), "a burst at most: {first}");
        let later: usize = (1..=1_000).map(|now| starts(&mut scheduler, &a, 1, now)).sum();
        assert!((900..=1_010).contains(&later), "{later} in a second");
        // The other tenant has been idle for long, so starts in the meantime
        // are not owed when it comes back.
        for now in 70_000..70_100 {
            assert_eq!(starts(&mut scheduler, &a, 1, now), 100);
        }
        scheduler.offer(&b, &TenantQuota::default(), endpoint(2));
        while scheduler.next(9_000, throttle, at(70_100), || 2) != Some(endpoint(2)) {}
        scheduler.record_start(&b, at(70_100));
        let again: usize = (70_101..70_201).map(|now| starts(&mut scheduler, &a, 1, now)).sum();
        assert!(again >= 80, "{again} in a tenth of a second");
    }

    #[test]
    fn nothing_is_left_of_a_tenant_that_is_done() {
        let mut scheduler = FairScheduler::new(10, at(0));
        let a = tenant("a");
        scheduler.offer(&a, &TenantQuota::default(), endpoint(1));
        assert!(scheduler.next(10, None, at(0), || 1).is_some());
        scheduler.record_start(&a, at(0));
        assert!(scheduler.next(9, None, at(0), || 1).is_none());
        scheduler.slot_freed(&a);
        assert!(scheduler.tenants.is_empty() && scheduler.ring.is_empty());
    }
}
