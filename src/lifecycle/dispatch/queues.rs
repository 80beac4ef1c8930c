//! Decides which claim starts next: a queue per endpoint, fair turns between
//! them.
//!
//! Pure bookkeeping: it is given the time and makes no request itself. Memory
//! holds the claims that are about to start, and for each endpoint the time at
//! which the store has more. The backlog stays in the store.
//!
//! Invariant: every delivery that may start is either known here (ready, parked
//! or in flight), being read by its number, or due in the store at `stored_due` or
//! later.
//!
//! An endpoint is in at most one line at a time. Whatever may change that (an
//! answer, a free place of its rate, a resume, a read) ends in `reschedule`,
//! which offers the endpoint to its tenant's line again or plans when to look
//! at it next.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use self::hosts::HostLoad;
use super::accept_pacing::AcceptPacing;
use super::cpu_pressure::CpuPressure;
use super::cpu_throttle::CpuThrottle;
use super::fair_scheduler::FairScheduler;
use super::figure_counters::FigureCounters;
use super::gate::{EndpointGate, LeaseTerms};
use super::lag::OldestDue;
use super::limits::{LimitWaits, NodeLimits};
use super::observe::{is_backpressure, observe};
use super::queue::{EndpointQueue, PendingBackpressure, QueueOwner, QueuePosition};
use crate::lifecycle::deliver::attempt::AttemptResult;
use crate::model::delivery::WaitingFor;
use crate::model::endpoint::EndpointState;
use crate::model::id::{DeliveryId, EndpointId, TenantId};
use crate::model::id_map::IdMap;
use crate::model::tenant::TenantQuota;
use crate::store::{Claim, EndpointUpdate};

/// Most fresh deliveries that one endpoint keeps in memory. Reading one from
/// the store costs more than keeping it, and all endpoints together are bounded
/// by bytes.
const READY_MAX: usize = 32_768;
/// Most bytes that ready claims of all endpoints together take.
const READY_BYTES_MAX: usize = 32 * 1_024 * 1_024;
/// Bytes that a claim takes besides its data.
const CLAIM_BYTES: usize = 512;
/// Number of queues above which idle ones are removed.
const TIDY_AT: usize = 1_024;

/// All queues of this node.
pub struct EndpointQueues {
    limits: NodeLimits,
    began_at: Timestamp,
    /// Time of the last read of any endpoint, whose queue may be gone by now.
    read_until: Timestamp,
    endpoints: IdMap<EndpointId, EndpointQueue>,
    /// Order in which endpoints have their turns.
    scheduler: FairScheduler,
    /// Throttle of starts under CPU pressure.
    cpu_throttle: CpuThrottle,
    /// How long the accepts of each busy tenant are held.
    accept_pacing: IdMap<TenantId, AcceptPacing>,
    /// How long other nodes want accepts to be held.
    delays_elsewhere: HashMap<TenantId, Duration>,
    /// Whether the processors are overloaded.
    is_short_of_cpu: bool,
    /// Endpoints that wait until slots are not scarce any more; see
    /// [`QueuePosition::AwaitingAnswer`].
    awaiting_answer: VecDeque<EndpointId>,
    hosts: IdMap<Arc<str>, HostLoad>,
    /// Times at which endpoints are rescheduled: to read from the store, or
    /// because the rate allows another start.
    wakes: BTreeSet<(Timestamp, EndpointId)>,
    /// Time to which the dispatcher's timer is set.
    timer: Option<Timestamp>,
    slots_free: usize,
    ready_bytes: usize,
    flight_bytes: usize,
    tidy_at: usize,
    rate_waits: u64,
    /// Endpoints whose live status may have changed since it was last asked
    /// for; nothing, while nobody asks.
    touched: Option<HashSet<EndpointId>>,
    /// What happens at endpoints, by window.
    pub figures: FigureCounters,
    /// Whether a claim was not started because the lease is too short.
    waits_for_lease: bool,
    is_stopped: bool,
}

impl EndpointQueues {
    /// Creates the queues of a node with these limits that begins at this time.
    pub fn new(limits: NodeLimits, began_at: Timestamp) -> Self {
        Self {
            limits,
            began_at,
            read_until: Timestamp::MIN,
            endpoints: IdMap::default(),
            scheduler: FairScheduler::new(limits.slots, began_at),
            cpu_throttle: CpuThrottle::none(),
            accept_pacing: IdMap::default(),
            delays_elsewhere: HashMap::new(),
            is_short_of_cpu: false,
            awaiting_answer: VecDeque::new(),
            hosts: IdMap::default(),
            wakes: BTreeSet::new(),
            timer: None,
            slots_free: limits.slots,
            ready_bytes: 0,
            flight_bytes: 0,
            tidy_at: TIDY_AT,
            rate_waits: 0,
            touched: None,
            figures: FigureCounters::new(began_at),
            waits_for_lease: false,
            is_stopped: false,
        }
    }

    fn queue(
        &mut self,
        endpoint: EndpointId,
        now: Timestamp,
        gate: impl FnOnce() -> Option<EndpointGate>,
    ) -> Option<&mut EndpointQueue> {
        use std::collections::hash_map::Entry;
        match self.endpoints.entry(endpoint) {
            Entry::Occupied(entry) => Some(entry.into_mut()),
            Entry::Vacant(entry) => {
                let mut queue = EndpointQueue::new(gate()?, self.began_at);
                queue.read_until = self.read_until;
                queue.adjust_rate(now);
                Some(entry.insert(queue))
            }
        }
    }

    /// Admits a delivery that may start: newly accepted, or next of its lane. It can be
    /// read from the store since `since`: a read that began later may have brought it
    /// already, and it may even be delivered by now, so that only the store knows.
    /// `gate` is called if the endpoint has no queue yet.
    pub fn admit(
        &mut self,
        claim: Claim,
        since: Timestamp,
        now: Timestamp,
        gate: impl FnOnce() -> Option<EndpointGate>,
    ) {
        let is_crowded = self.ready_bytes + cost(&claim) > READY_BYTES_MAX;
        let endpoint = claim.endpoint;
        if claim.progress.attempts == 0 {
            self.pacing(&claim.event.tenant, now).count_accepted(1, now);
        }
        let Some(queue) = self.queue(endpoint, now, gate) else { return };
        let waits_in_store = !queue.may_start(&claim, now)
            || is_crowded
            || queue.is_reading
            || queue.read_until >= since
            || queue.ready.len() >= READY_MAX
            || claim.due_at > now
            || queue.stored_due.is_some_and(|due_at| due_at <= now);
        if waits_in_store {
            queue.put_back(&claim);
        } else if queue.known.insert(claim.id) {
            let bytes = cost(&claim);
            queue.ready.push_back(claim);
            self.ready_bytes += bytes;
        }
        self.reschedule(endpoint, now);
    }

    /// Applies the end of a request: its place under the cap is free, and what
    /// the result says about the endpoint is in force before it is durable.
    /// Returns what is to be stored of it.
    pub fn apply_attempt_result(
        &mut self,
        endpoint: EndpointId,
        id: DeliveryId,
        result: Option<AttemptResult>,
        now: Timestamp,
    ) -> EndpointUpdate {
        let quarantine = self.limits.quarantine;
        let Some(queue) = self.endpoints.get_mut(&endpoint) else { return EndpointUpdate::default() };
        queue.sending = queue.sending.saturating_sub(1);
        // The host that the request went to; the endpoint's URL may have
        // changed since.
        let host = queue.hosts.remove(&id);
        let mut update = EndpointUpdate::default();
        if let Some(result) = result {
            if result.is_answer {
                queue.unanswered = 0;
                queue.speed.record_answer(result.breaker_input.started_at, now);
            }
            update = observe(queue, result, quarantine, now);
        }
        if queue.sending == 0 {
            queue.unanswered = 0;
        }
        // The endpoint has answered, so it waits for this no longer.
        if queue.position == QueuePosition::AwaitingAnswer && queue.unanswered == 0 {
            queue.position = QueuePosition::Out;
        }
        if is_backpressure(&update) {
            queue.pending_backpressure.pending += 1;
            queue.pending_backpressure.backpressure_until =
                queue.pending_backpressure.backpressure_until.max(update.backpressure_until);
            queue.pending_backpressure.is_stopped |= update.is_stop();
        }
        if !update.is_empty() {
            self.apply_gate(endpoint, now);
        }
        self.leave_host(host, now);
        self.reschedule(endpoint, now);
        update
    }

    /// Records that an answer's backpressure is stored, or never will be.
    pub fn backpressure_written(&mut self, endpoint: EndpointId) {
        if let Some(queue) = self.endpoints.get_mut(&endpoint) {
            queue.pending_backpressure.pending = queue.pending_backpressure.pending.saturating_sub(1);
            if queue.pending_backpressure.pending == 0 {
                queue.pending_backpressure = PendingBackpressure::default();
            }
        }
    }

    /// Records that a claim is settled: its lane is free, and it may be due again.
    pub fn settled(&mut self, claim: &Claim, due_again_at: Option<Timestamp>, now: Timestamp) {
        self.slots_free += 1;
        self.flight_bytes -= cost(claim);
        self.scheduler.slot_freed(&claim.event.tenant);
        self.pacing(&claim.event.tenant, now).count_settled(now);
        let Some(queue) = self.endpoints.get_mut(&claim.endpoint) else { return };
        queue.known.remove(&claim.id);
        queue.in_flight.remove(&claim.id);
        queue.note_change(claim.id);
        if let Some(lane) = &claim.lane
            && let Some(parked) = queue.busy_lanes.remove(lane)
        {
            for waiting in parked.into_iter().rev() {
                queue.ready.push_front(waiting);
            }
        }
        if let Some(due_at) = due_again_at.filter(|_| queue.owner == QueueOwner::ThisNode) {
            queue.stored_due_at(due_at);
            // The delivery may be urgent: it was when it started, or a person
            // asked for it while it was in flight.
            if claim.is_urgent || queue.only_urgent_until().is_some() {
                queue.urgent_due_at(due_at);
            }
        }
        self.reschedule(claim.endpoint, now);
    }

    /// Records that a person changed a delivery: what is in memory of it is
    /// void, and its endpoint may have a delivery due at this time.
    pub fn changed(
        &mut self,
        endpoint: EndpointId,
        id: DeliveryId,
        due_at: Option<Timestamp>,
        now: Timestamp,
        gate: impl FnOnce() -> Option<EndpointGate>,
    ) {
        let Some(queue) = self.queue(endpoint, now, gate) else { return };
        let removed = queue.take_out(id);
        queue.note_change(id);
        if let Some(due_at) = due_at {
            queue.stored_due_at(due_at);
            queue.urgent_due_at(due_at);
        }
        self.ready_bytes -= removed.as_ref().map_or(0, cost);
        self.reschedule(endpoint, now);
    }

    /// Records that the store has a delivery of the endpoint due at this time.
    pub fn due_in_store(
        &mut self,
        endpoint: EndpointId,
        due_at: Timestamp,
        now: Timestamp,
        gate: impl FnOnce() -> Option<EndpointGate>,
    ) {
        let Some(queue) = self.queue(endpoint, now, gate) else { return };
        queue.stored_due_at(due_at);
        // Only the store knows whether it is urgent.
        queue.urgent_due_at(due_at);
        self.reschedule(endpoint, now);
    }

    /// Applies a stored change of the endpoint: paused, resumed, disabled, other
    /// settings, or backpressure of its receiver.
    pub fn update_gate(&mut self, endpoint: EndpointId, gate: EndpointGate, now: Timestamp) {
        let Some(queue) = self.endpoints.get_mut(&endpoint) else { return };
        queue.breaker.adopt(&gate.health);
        // The claims in memory were read under the present lease, so it stays.
        let lease_terms = LeaseTerms { needed: gate.lease_terms.needed, ..queue.gate.lease_terms };
        queue.gate = EndpointGate { lease_terms, ..gate };
        self.apply_gate(endpoint, now);
        self.reschedule(endpoint, now);
    }

    /// Changes the quota of a tenant.
    pub fn change_quota(&mut self, tenant: &TenantId, quota: TenantQuota, now: Timestamp) {
        self.scheduler.change_quota(tenant, &quota, now);
        for queue in self.endpoints.values_mut().filter(|queue| queue.gate.tenant == *tenant) {
            queue.gate.quota = quota;
        }
    }

    /// Returns the endpoints of a tenant that have a queue and are not deleted.
    pub fn endpoints_of_tenant(&self, tenant: &TenantId) -> Vec<EndpointId> {
        let endpoints = self
            .endpoints
            .iter()
            .filter(|(_, queue)| queue.gate.tenant == *tenant && queue.owner != QueueOwner::Nobody);
        endpoints.map(|(id, _)| *id).collect()
    }

    /// Removes the waiting claims of a deleted endpoint.
    pub fn remove(&mut self, endpoint: EndpointId, now: Timestamp) {
        let Some(queue) = self.endpoints.get_mut(&endpoint) else { return };
        queue.gate.state = EndpointState::Disabled;
        self.apply_gate(endpoint, now);
        if let Some(queue) = self.endpoints.get_mut(&endpoint) {
            queue.owner = QueueOwner::Nobody;
            queue.stored_due = None;
            queue.urgent_due = None;
        }
        self.reschedule(endpoint, now);
    }

    /// Reports the CPU pressure of the last seconds to the throttle.
    pub fn cpu_pressure(&mut self, pressure: CpuPressure, seconds: f64) {
        self.is_short_of_cpu = pressure.is_scarcity();
        self.cpu_throttle.observe(pressure, seconds, self.scheduler.tenant_count());
    }

    /// Returns how many deliveries all jobs may release per second, if the processors are
    /// overloaded.
    pub fn jobs_per_second(&self) -> Option<f64> {
        self.cpu_throttle.jobs_per_second()
    }

    /// Returns how long an accept of a tenant is to be held, because its
    /// deliveries lag for want of speed of this node or another one.
    pub fn accept_delay(&mut self, tenant: &TenantId, now: Timestamp) -> Duration {
        let here = self.accept_pacing.get_mut(tenant).map_or(Duration::ZERO, |pacing| pacing.delay(now));
        let elsewhere = self.delays_elsewhere.get(tenant).copied().unwrap_or_default();
        here.max(elsewhere)
    }

    /// Returns for how long this node holds accepts, by tenant.
    pub fn accept_delays(&mut self, now: Timestamp) -> Vec<(TenantId, Duration)> {
        let delays = self.accept_pacing.iter_mut().map(|(tenant, pacing)| (tenant.clone(), pacing.delay(now)));
        delays.filter(|(_, delay)| !delay.is_zero()).collect()
    }

    /// Holds accepts for as long as other nodes do.
    pub fn delay_accepts(&mut self, delays: HashMap<TenantId, Duration>) {
        self.delays_elsewhere = delays;
    }

    /// Counts deliveries that other nodes accepted for endpoints of this one.
    pub fn accepted_elsewhere(&mut self, tenant: &TenantId, count: u64, now: Timestamp) {
        self.pacing(tenant, now).count_accepted(usize::try_from(count).unwrap_or(usize::MAX), now);
    }

    fn pacing(&mut self, tenant: &TenantId, now: Timestamp) -> &mut AcceptPacing {
        if !self.accept_pacing.contains_key(tenant) {
            self.accept_pacing.retain(|_, pacing| !pacing.is_idle(now));
            self.accept_pacing.insert(tenant.clone(), AcceptPacing::new(now));
        }
        self.accept_pacing.get_mut(tenant).expect("a tenant that was just inserted")
    }

    /// Returns when something is due next; nothing once stopped.
    pub fn next_wake(&self) -> Option<Timestamp> {
        let endpoints = self.wakes.first().map(|(at, _)| *at);
        endpoints.into_iter().chain(self.scheduler.next_wake()).min().filter(|_| !self.is_stopped)
    }

    /// Sets the timer to the next wake. Returns whether that is earlier than
    /// before, so that the task that sleeps on it must be woken.
    pub fn set_timer(&mut self) -> bool {
        let next = self.next_wake();
        let is_earlier = next.is_some_and(|at| self.timer.is_none_or(|set| at < set));
        self.timer = next;
        is_earlier
    }

    /// Returns the oldest waits of all endpoints, by blocker. Takes time in
    /// proportion to the number of queues.
    pub fn oldest(&self, now: Timestamp) -> OldestDue {
        let mut oldest = OldestDue::default();
        for queue in self.endpoints.values() {
            if let Some((since, blocker)) = self.oldest_of(queue, now) {
                oldest.record(since, blocker);
            }
        }
        oldest
    }

    /// Returns the oldest waits of one endpoint, by blocker.
    pub fn oldest_of_endpoint(&self, endpoint: EndpointId, now: Timestamp) -> OldestDue {
        let mut oldest = OldestDue::default();
        if let Some((since, blocker)) = self.endpoints.get(&endpoint).and_then(|queue| self.oldest_of(queue, now)) {
            oldest.record(since, blocker);
        }
        oldest
    }

    fn oldest_of(&self, queue: &EndpointQueue, now: Timestamp) -> Option<(Timestamp, Option<WaitingFor>)> {
        queue.oldest(now, self.scheduler.is_at_rate(&queue.gate.tenant, now))
    }

    /// Returns the number of waits for limits since the last call.
    pub fn take_waits(&mut self) -> LimitWaits {
        LimitWaits { rate: std::mem::take(&mut self.rate_waits), share: self.scheduler.take_waits() }
    }

    /// Stops the queues: nothing more starts.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Returns the number of claims in flight.
    pub fn in_flight(&self) -> usize {
        self.limits.slots - self.slots_free
    }

    /// Applies the gate and the backpressure that is not stored yet.
    fn apply_gate(&mut self, endpoint: EndpointId, now: Timestamp) {
        let Some(queue) = self.endpoints.get_mut(&endpoint) else { return };
        queue.gate.backpressure_until =
            queue.gate.backpressure_until.max(queue.pending_backpressure.backpressure_until);
        if queue.pending_backpressure.is_stopped && queue.gate.state == EndpointState::Active {
            queue.gate.state = EndpointState::Paused;
        }
        queue.adjust_rate(now);
        for claim in queue.take_blocked(now) {
            self.ready_bytes -= cost(&claim);
        }
    }

    /// Offers the endpoint to the scheduler if it can start something, plans
    /// when to look at it next, and removes its queue if it is idle.
    fn reschedule(&mut self, endpoint: EndpointId, now: Timestamp) {
        if let Some(touched) = &mut self.touched {
            touched.insert(endpoint);
        }
        let Some(queue) = self.endpoints.get_mut(&endpoint) else { return };
        queue.rate.correct_clock_jump(now);
        if queue.record_blocker(now) {
            self.figures.held_by(endpoint, &queue.gate.tenant, queue.held_by, now);
        }
        if queue.position == QueuePosition::Out && queue.can_start(now) {
            queue.position = QueuePosition::InLine;
            self.scheduler.offer(&queue.gate.tenant, &queue.gate.quota, endpoint);
        }
        let wake = queue.wake_at(now);
        if wake != queue.wake {
            self.rate_waits += u64::from(queue.waits_for_rate(now));
            if let Some(old) = queue.wake {
                self.wakes.remove(&(old, endpoint));
            }
            self.wakes.extend(wake.map(|at| (at, endpoint)));
            queue.wake = wake;
        }
        if queue.is_idle(now) {
            self.endpoints.remove(&endpoint);
        } else if self.endpoints.len() > self.tidy_at {
            // Queues that existed only for the state of their rate may be idle now.
            self.endpoints.retain(|_, queue| !queue.is_idle(now));
            self.tidy_at = (2 * self.endpoints.len()).max(TIDY_AT);
        }
    }
}

fn cost(claim: &Claim) -> usize {
    claim.event.data.len() + CLAIM_BYTES
}

mod arrived;
mod hosts;
#[cfg(test)]
mod lag_tests;
mod read;
mod shards;
mod start;
mod status;
#[cfg(test)]
mod tests;
