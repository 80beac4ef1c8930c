//! Fairness: whose turn it is for the next send slot.
//!
//! Weighted round robin over tenants (each gets its weight's worth of starts
//! per round), then over a tenant's endpoints. Starts alone would not be
//! fair: a request that hangs holds its slot for long. So slots *held* are
//! counted too, and a tenant that holds more than its share never takes the
//! last quarter of them. And while the machine is under [`super::strain`],
//! each tenant's starts are paced, so that nobody waits behind one of them.
//!
//! Pure bookkeeping, like [`super::queues`], which asks it.

use std::collections::{BTreeSet, HashMap, VecDeque};

use jiff::Timestamp;

use super::queue::is_recent;
use crate::model::id::{EndpointId, TenantId};
use crate::model::rate::{Gcra, Rate};
use crate::model::tenant::TenantQuota;

/// For how long a tenant that started something counts as sharing the node.
const SHARED_MS: i64 = 60_000;
/// As good as no rate at all.
const UNSTRAINED: Rate = Rate { per_second: 100_000.0, burst: 1_000 };

/// All tenants with something to start or something in flight.
pub struct FairScheduler {
    slots: usize,
    began_at: Timestamp,
    tenants: HashMap<TenantId, TenantShare>,
    /// Those that may start something, in turn.
    ring: VecDeque<TenantId>,
    /// Those above their share, while slots are short; each at most once.
    over_share: VecDeque<TenantId>,
    /// Those whose rate makes them wait, and until when.
    paced: BTreeSet<(Timestamp, TenantId)>,
    /// How often one had to wait for its share.
    waits: u64,
    /// The two that started something last, and when.
    last: [Option<(TenantId, Timestamp)>; 2],
}

struct TenantShare {
    weight: u32,
    rate: Option<Gcra>,
    /// When it last had to wait for its rate.
    rate_met_at: Timestamp,
    /// Its pace while the machine is under strain.
    throttled_rate: Gcra,
    /// Slots held.
    held: usize,
    /// Endpoints that can start something, each once, in turn.
    endpoints: VecDeque<EndpointId>,
    /// Starts left in this round.
    credit: u32,
    position: SchedulePosition,
    /// Whether it stands in the list of the crowded.
    is_listed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SchedulePosition {
    /// Nothing to start.
    Out,
    Ring,
    Crowded,
    Paced(Timestamp),
}

impl FairScheduler {
    /// For a node with so many slots, which knows nothing of what was sent
    /// before it began.
    pub fn new(slots: usize, began_at: Timestamp) -> Self {
        Self {
            slots,
            began_at,
            tenants: HashMap::new(),
            ring: VecDeque::new(),
            over_share: VecDeque::new(),
            paced: BTreeSet::new(),
            waits: 0,
            last: [None, None],
        }
    }

    /// What others sent for their tenants before this time is not known.
    pub fn set_unknown_before(&mut self, at: Timestamp) {
        self.began_at = at;
    }

    /// An endpoint of this tenant can start something.
    pub fn offer(&mut self, tenant: &TenantId, quota: &TenantQuota, endpoint: EndpointId) {
        let share = match self.tenants.get_mut(tenant) {
            Some(share) => share,
            None => {
                let share = TenantShare {
                    weight: quota.weight,
                    rate: quota.rate.map(|rate| Gcra::unknown_before(rate, self.began_at)),
                    rate_met_at: Timestamp::MIN,
                    throttled_rate: Gcra::full(UNSTRAINED),
                    held: 0,
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

    /// Whose turn it is, while so many slots are free. `weight_in_use` is
    /// what the weights of all tenants add up to, `strain` what each may start.
    pub fn next(
        &mut self,
        free: usize,
        strain: Option<Rate>,
        now: Timestamp,
        weight_in_use: impl Fn() -> u64,
    ) -> Option<EndpointId> {
        let is_short = free <= self.slots / 4;
        if !is_short {
            self.readmit_one();
        }
        while let Some(tenant) = self.ring.front() {
            let Some(share) = self.tenants.get_mut(tenant) else {
                self.ring.pop_front();
                continue;
            };
            if let Some(pace) = &mut share.rate {
                pace.correct_clock_jump(now);
            }
            if share.endpoints.is_empty() {
                share.leave(SchedulePosition::Out);
            } else if let Some(at) = share.rate.filter(|pace| !pace.is_ready(now)).map(|pace| pace.ready_at()) {
                share.rate_met_at = now;
                share.leave(SchedulePosition::Paced(at));
                self.paced.insert((at, tenant.clone()));
            } else if let Some(rate) = strain
                && is_shared(&self.last, tenant, now)
                && !share.may_start_under_throttle(rate, now)
            {
                let at = share.throttled_rate.ready_at();
                share.leave(SchedulePosition::Paced(at));
                self.paced.insert((at, tenant.clone()));
            } else if is_short && share.held >= share_of(self.slots, share.weight, weight_in_use()) {
                share.leave(SchedulePosition::Crowded);
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
            let left = self.ring.pop_front().expect("it is in front");
            self.forget_if_idle(&left);
        }
        None
    }

    /// The endpoint whose turn it was has started something.
    pub fn started(&mut self, tenant: &TenantId, now: Timestamp) {
        let Some(share) = self.tenants.get_mut(tenant) else { return };
        share.held += 1;
        // While nobody asks for it, nothing is owed.
        if share.throttled_rate.is_ready(now) {
            share.throttled_rate.take(now);
        }
        note_last(&mut self.last, tenant, now);
        if let Some(pace) = &mut share.rate {
            pace.take(now);
        }
        share.credit = share.credit.saturating_sub(1);
        if share.credit == 0 && self.ring.front() == Some(tenant) {
            self.ring.rotate_left(1);
        }
    }

    /// A slot of this tenant is free again.
    pub fn slot_freed(&mut self, tenant: &TenantId) {
        let Some(share) = self.tenants.get_mut(tenant) else { return };
        share.held = share.held.saturating_sub(1);
        if share.position == SchedulePosition::Crowded {
            share.position = SchedulePosition::Ring;
            self.ring.push_back(tenant.clone());
        }
        self.forget_if_idle(tenant);
    }

    /// The tenant may use another part of the gateway from now on.
    pub fn change(&mut self, tenant: &TenantId, quota: &TenantQuota, now: Timestamp) {
        let Some(share) = self.tenants.get_mut(tenant) else { return };
        share.weight = quota.weight;
        share.rate = match (share.rate, quota.rate) {
            (Some(mut pace), Some(rate)) => {
                pace.change(rate, now);
                Some(pace)
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

    /// Lets those go on whose rate allows it again.
    pub fn wake(&mut self, now: Timestamp) {
        while let Some((at, _)) = self.paced.first()
            && *at <= now
        {
            let (_, tenant) = self.paced.pop_first().expect("it is the first");
            if let Some(share) = self.tenants.get_mut(&tenant) {
                share.position = SchedulePosition::Ring;
                self.ring.push_back(tenant);
            }
        }
    }

    /// When [`Self::wake`] has something to do.
    pub fn next_wake(&self) -> Option<Timestamp> {
        self.paced.first().map(|(at, _)| *at)
    }

    /// How often one had to wait for its share, since this was last asked.
    pub fn take_waits(&mut self) -> u64 {
        std::mem::take(&mut self.waits)
    }

    /// When a tenant's rate allows the next start, if it does not now.
    pub fn rate_until(&self, tenant: &TenantId, now: Timestamp) -> Option<Timestamp> {
        let pace = self.tenants.get(tenant)?.rate?;
        (!pace.is_ready(now)).then(|| pace.ready_at())
    }

    /// Whether a tenant's rate holds it back, now or a moment ago.
    pub fn is_at_rate(&self, tenant: &TenantId, now: Timestamp) -> bool {
        let share = self.tenants.get(tenant).filter(|share| share.rate.is_some());
        share.is_some_and(|share| is_recent(share.rate_met_at, now)) || self.rate_until(tenant, now).is_some()
    }

    /// Whether a tenant has to wait because it holds more than its share.
    pub fn is_over_share(&self, tenant: &TenantId) -> bool {
        self.tenants.get(tenant).is_some_and(|share| share.position == SchedulePosition::Crowded)
    }

    /// Slots are no longer short: one that had to wait is in turn again.
    fn readmit_one(&mut self) {
        while let Some(tenant) = self.over_share.pop_front() {
            let Some(share) = self.tenants.get_mut(&tenant) else { continue };
            share.is_listed = false;
            // Freed ones are in the ring already.
            if share.position == SchedulePosition::Crowded {
                share.position = SchedulePosition::Ring;
                self.ring.push_back(tenant);
                return;
            }
        }
    }

    /// Forgets a tenant of which nothing has to be remembered.
    fn forget_if_idle(&mut self, tenant: &TenantId) {
        let is_over = |share: &TenantShare| {
            share.held == 0 && share.position == SchedulePosition::Out && share.rate.is_none() && !share.is_listed
        };
        if self.tenants.get(tenant).is_some_and(is_over) {
            self.tenants.remove(tenant);
        }
    }
}

/// Whether another tenant has started something lately.
fn is_shared(last: &[Option<(TenantId, Timestamp)>; 2], tenant: &TenantId, now: Timestamp) -> bool {
    let is_recent = |at: Timestamp| now.as_millisecond() - at.as_millisecond() < SHARED_MS;
    last.iter().flatten().any(|(other, at)| other != tenant && is_recent(*at))
}

fn note_last(last: &mut [Option<(TenantId, Timestamp)>; 2], tenant: &TenantId, now: Timestamp) {
    match last {
        [Some((known, at)), _] | [_, Some((known, at))] if known == tenant => *at = now,
        _ => {
            last.swap(0, 1);
            last[0] = Some((tenant.clone(), now));
        }
    }
}

impl TenantShare {
    /// Whether its pace under strain allows one more start.
    fn may_start_under_throttle(&mut self, rate: Rate, now: Timestamp) -> bool {
        self.throttled_rate.change(rate, now);
        self.throttled_rate.is_ready(now)
    }

    fn leave(&mut self, place: SchedulePosition) {
        self.position = place;
        self.credit = 0;
    }
}

/// How many slots a weight stands for; one at the least.
fn share_of(slots: usize, weight: u32, weight_in_use: u64) -> usize {
    let share = slots as u64 * u64::from(weight) / weight_in_use.max(u64::from(weight));
    usize::try_from(share).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
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

    /// A node whose tenants always have something to start, at as many
    /// endpoints as asked for.
    struct Node {
        shares: FairScheduler,
        free: usize,
        quotas: HashMap<TenantId, TenantQuota>,
        owners: HashMap<EndpointId, TenantId>,
    }

    impl Node {
        fn new(slots: usize, tenants: &[(&str, u32, u128)]) -> Self {
            let mut node = Self {
                shares: FairScheduler::new(slots, at(0)),
                free: slots,
                quotas: HashMap::new(),
                owners: HashMap::new(),
            };
            for (n, (name, weight, endpoints)) in tenants.iter().enumerate() {
                node.quotas.insert(tenant(name), TenantQuota { weight: *weight, ..TenantQuota::default() });
                for m in 0..*endpoints {
                    let id = endpoint(1_000 * n as u128 + m);
                    node.owners.insert(id, tenant(name));
                    node.shares.offer(&tenant(name), &node.quotas[&tenant(name)], id);
                }
            }
            node
        }

        /// Starts one; whose it is.
        fn start(&mut self) -> Option<(TenantId, EndpointId)> {
            if self.free == 0 {
                return None;
            }
            let weights = self.quotas.values().map(|quota| u64::from(quota.weight)).sum();
            let endpoint = self.shares.next(self.free, None, at(0), || weights)?;
            let owner = self.owners[&endpoint].clone();
            self.free -= 1;
            self.shares.started(&owner, at(0));
            self.shares.offer(&owner, &self.quotas[&owner], endpoint);
            Some((owner, endpoint))
        }

        fn end(&mut self, name: &str) {
            self.free += 1;
            self.shares.slot_freed(&tenant(name));
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
        let held = std::iter::from_fn(|| node.start()).count();
        assert_eq!(held, 75, "all of it hangs");
        // The quiet one finds slots at once, up to its share.
        let id = endpoint(9_000);
        node.owners.insert(id, tenant("quiet"));
        node.shares.offer(&tenant("quiet"), &TenantQuota::default(), id);
        let started: Vec<TenantId> = std::iter::from_fn(|| node.start()).map(|(owner, _)| owner).collect();
        assert_eq!(started.len(), 25);
        assert!(started.iter().all(|owner| owner.as_str() == "quiet"));
        // What the loud one frees while slots are short, it may not take back.
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
        node.shares.change(&tenant("slow"), &slow, at(0));
        let mut starts = HashMap::new();
        for _ in 0..100 {
            let (owner, _) = node.start().unwrap();
            *starts.entry(owner.to_string()).or_insert(0) += 1;
        }
        assert_eq!(starts.get("slow"), None, "what was before the change is not known");
        assert_eq!(node.shares.next_wake(), Some(at(100)));
        assert_eq!(node.shares.rate_until(&tenant("slow"), at(0)), Some(at(100)));
        node.shares.wake(at(100));
        assert!(node.shares.next(900, None, at(100), || 2).is_some());
        // Without a rate it goes at once.
        node.shares.change(&tenant("slow"), &TenantQuota::default(), at(0));
        assert_eq!(node.shares.rate_until(&tenant("slow"), at(0)), None);
    }

    #[test]
    fn under_strain_those_who_share_the_node_are_paced_and_one_alone_is_not() {
        let strain = Some(Rate { per_second: 1_000.0, burst: 10 });
        let (a, b) = (tenant("a"), tenant("b"));
        let mut shares = FairScheduler::new(10_000, at(0));
        let starts = |shares: &mut FairScheduler, owner: &TenantId, n: u128, now: i64| {
            let mut count = 0;
            shares.wake(at(now));
            shares.offer(owner, &TenantQuota::default(), endpoint(n));
            while count < 100 && shares.next(9_000, strain, at(now), || 2).is_some() {
                shares.started(owner, at(now));
                shares.offer(owner, &TenantQuota::default(), endpoint(n));
                count += 1;
            }
            count
        };
        assert_eq!(starts(&mut shares, &a, 1, 0), 100, "alone");
        let mut shares = FairScheduler::new(10_000, at(0));
        shares.offer(&b, &TenantQuota::default(), endpoint(2));
        assert!(shares.next(9_000, strain, at(0), || 2).is_some());
        shares.started(&b, at(0));
        let first = starts(&mut shares, &a, 1, 0);
        assert!((1..=10).contains(&first), "a burst at most: {first}");
        let later: usize = (1..=1_000).map(|now| starts(&mut shares, &a, 1, now)).sum();
        assert!((900..=1_010).contains(&later), "{later} in a second");
        // The other one has not been there for long, and what is done
        // meanwhile is not owed when it comes back.
        for now in 70_000..70_100 {
            assert_eq!(starts(&mut shares, &a, 1, now), 100);
        }
        shares.offer(&b, &TenantQuota::default(), endpoint(2));
        while shares.next(9_000, strain, at(70_100), || 2) != Some(endpoint(2)) {}
        shares.started(&b, at(70_100));
        let again: usize = (70_101..70_201).map(|now| starts(&mut shares, &a, 1, now)).sum();
        assert!(again >= 80, "{again} in a tenth of a second");
    }

    #[test]
    fn nothing_is_left_of_a_tenant_that_is_done() {
        let mut shares = FairScheduler::new(10, at(0));
        let a = tenant("a");
        shares.offer(&a, &TenantQuota::default(), endpoint(1));
        assert!(shares.next(10, None, at(0), || 1).is_some());
        shares.started(&a, at(0));
        assert!(shares.next(9, None, at(0), || 1).is_none());
        shares.slot_freed(&a);
        assert!(shares.tenants.is_empty() && shares.ring.is_empty());
    }
}
