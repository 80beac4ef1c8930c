//! Decides what goes next: a queue per endpoint, fair turns between them.
//!
//! Pure bookkeeping; it is told the time and starts nothing itself. Memory
//! holds what is about to go, and for each endpoint the time at which the
//! store has more. The backlog stays in the store.
//!
//! Invariant: every delivery that may go is either known here (ready, parked
//! or in flight) or due in the store at `stored_due` or later.
//!
//! An endpoint is in at most one line at a time. Whatever may change that (an
//! answer, a free place of its rate, a resume, a read) ends in `arrange`, which
//! offers it to its tenant's line again or plans when to look next.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use self::hosts::HostLoad;
use super::cpu_pressure::CpuPressure;
use super::cpu_throttle::CpuThrottle;
use super::fair_scheduler::FairScheduler;
use super::gate::{EndpointGate, LeaseTerms};
use super::lag::{Blocker, OldestDue};
use super::limits::{LimitWaits, NodeLimits};
use super::observe::{AttemptResult, is_backpressure, observe};
use super::queue::{EndpointQueue, PendingBackpressure, QueuePosition};
use crate::model::id::{DeliveryId, EndpointId, TenantId};
use crate::model::shard::Lease;
use crate::model::tenant::TenantQuota;
use crate::store::{Claim, DuePage, DueQuery, EndpointUpdate};

/// How many fresh deliveries one endpoint keeps in memory.
const READY_MAX: usize = 1_024;
/// How many bytes of data all endpoints together keep in memory.
const READY_BYTES_MAX: usize = 32 * 1_024 * 1_024;
/// What a claim costs besides its data.
const CLAIM_BYTES: usize = 512;
/// How many bytes of data may be in flight; one delivery always may.
const FLIGHT_BYTES_MAX: usize = 64 * 1_024 * 1_024;
/// How many bytes of data one read brings in.
const READ_BYTES_MAX: usize = 1_024 * 1_024;
/// A node with fewer slots than this has none to keep free for others.
const SPARE_SLOTS: usize = 64;
/// Queues with nothing to do are looked through once there are so many.
const TIDY_AT: usize = 1_024;

/// All queues of this node.
pub struct EndpointQueues {
    limits: NodeLimits,
    began_at: Timestamp,
    endpoints: HashMap<EndpointId, EndpointQueue>,
    /// Whose turn it is.
    scheduler: FairScheduler,
    /// How strained the machine is.
    cpu_throttle: CpuThrottle,
    /// Those that wait for slots to be less short; see [`Turn::AwaitingAnswer`].
    awaiting_answer: VecDeque<EndpointId>,
    hosts: HashMap<Arc<str>, HostLoad>,
    /// When to look at an endpoint next: to read from the store, or because
    /// its rate allows another start.
    wakes: BTreeSet<(Timestamp, EndpointId)>,
    /// When the timer goes off anyway.
    timer: Option<Timestamp>,
    slots_free: usize,
    ready_bytes: usize,
    flight_bytes: usize,
    tidy_at: usize,
    rate_waits: u64,
    /// Endpoints whose live status may have changed since it was last asked
    /// for; nothing, while nobody asks.
    touched: Option<HashSet<EndpointId>>,
    /// Whether something was not started because the lease is too short.
    waits_for_lease: bool,
    is_stopped: bool,
}

impl EndpointQueues {
    /// Queues for a node with these limits that begins at this time.
    pub fn new(limits: NodeLimits, began_at: Timestamp) -> Self {
        Self {
            limits,
            began_at,
            endpoints: HashMap::new(),
            scheduler: FairScheduler::new(limits.slots, began_at),
            cpu_throttle: CpuThrottle::none(),
            awaiting_answer: VecDeque::new(),
            hosts: HashMap::new(),
            wakes: BTreeSet::new(),
            timer: None,
            slots_free: limits.slots,
            ready_bytes: 0,
            flight_bytes: 0,
            tidy_at: TIDY_AT,
            rate_waits: 0,
            touched: None,
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
                queue.adjust_rate(now);
                Some(entry.insert(queue))
            }
        }
    }

    /// Takes in a delivery that may go: freshly accepted, or next of its lane.
    /// `gate` is asked when nothing is known of the endpoint.
    pub fn admit(&mut self, claim: Claim, now: Timestamp, gate: impl FnOnce() -> Option<EndpointGate>) {
        let is_crowded = self.ready_bytes + cost(&claim) > READY_BYTES_MAX;
        let endpoint = claim.endpoint;
        let Some(queue) = self.queue(endpoint, now, gate) else { return };
        let waits_in_store = !queue.may_start(&claim, now)
            || is_crowded
            || queue.is_reading
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

    /// The next claim to start, or nothing while none can, and the lease to
    /// start it under. `left` is how long that lasts, if it ends; `weight_in_use`
    /// what the weights of all tenants add up to.
    pub fn take_next(
        &mut self,
        now: Timestamp,
        left: Option<Duration>,
        weight_in_use: impl Fn() -> u64,
    ) -> Option<(Claim, Lease)> {
        while !self.is_stopped && self.has_room() {
            let Some(endpoint) = self.scheduler.next(self.slots_free, self.cpu_throttle.rate(), now, &weight_in_use)
            else {
                match self.are_slots_scarce() {
                    false if self.start_one_awaiting_answer(now) => continue,
                    _ => return None,
                }
            };
            let is_short = self.are_slots_scarce();
            let Some(queue) = self.endpoints.get_mut(&endpoint) else { continue };
            queue.position = QueuePosition::Out;
            if !queue.has_work(now) || !queue.rate.is_ready(now) {
                let host = queue.gate.host.clone();
                self.reschedule(endpoint, now);
                self.start_next_at_host(host, now);
                continue;
            }
            if left.is_some_and(|left| queue.gate.lease_terms.needed > left) {
                let host = queue.gate.host.clone();
                self.waits_for_lease = true;
                self.start_next_at_host(host, now);
                continue;
            }
            if is_short && queue.unanswered > 0 {
                queue.position = QueuePosition::AwaitingAnswer;
                if !std::mem::replace(&mut queue.is_listed, true) {
                    self.awaiting_answer.push_back(endpoint);
                }
                let host = queue.gate.host.clone();
                self.start_next_at_host(host, now);
                continue;
            }
            let host = queue.gate.host.clone().filter(|_| self.limits.per_host.is_some());
            if let (Some(most), Some(host)) = (self.limits.per_host, host.clone()) {
                let at_host = self.hosts.entry(host).or_default();
                if at_host.open >= most {
                    queue.position = QueuePosition::AtHost;
                    at_host.parked.push_back(endpoint);
                    continue;
                }
                at_host.open += 1;
            }
            let lease = queue.gate.lease_terms.lease;
            let started = queue.start();
            match &started {
                Some(claim) => {
                    queue.hosts.extend(host.map(|host| (claim.id, host)));
                    queue.rate.take(now);
                    self.ready_bytes -= cost(claim);
                    self.flight_bytes += cost(claim);
                    self.slots_free -= 1;
                    self.cpu_throttle.started();
                    let tenant = queue.gate.tenant.clone();
                    self.scheduler.started(&tenant, now);
                }
                // All that was there stands behind others in its lane.
                None => self.leave_host(host, now),
            }
            self.reschedule(endpoint, now);
            if let Some(claim) = started {
                return Some((claim, lease));
            }
        }
        None
    }

    /// A request is over: its place under the cap is free. What the answer
    /// says about the endpoint is in force from here on, before it is durable;
    /// returns what is to be written of it.
    pub fn apply_attempt_result(
        &mut self,
        endpoint: EndpointId,
        id: DeliveryId,
        answer: Option<AttemptResult>,
        now: Timestamp,
    ) -> EndpointUpdate {
        let quarantine = self.limits.quarantine;
        let Some(queue) = self.endpoints.get_mut(&endpoint) else { return EndpointUpdate::default() };
        queue.sending = queue.sending.saturating_sub(1);
        // Where it went, wherever its endpoint stands by now.
        let host = queue.hosts.remove(&id);
        let mut update = EndpointUpdate::default();
        if let Some(answer) = answer {
            if answer.is_answer {
                queue.unanswered = 0;
            }
            update = observe(queue, answer, quarantine, now);
        }
        if queue.sending == 0 {
            queue.unanswered = 0;
        }
        // It waits no longer for its own answer.
        if queue.position == QueuePosition::AwaitingAnswer && queue.unanswered == 0 {
            queue.position = QueuePosition::Out;
        }
        if is_backpressure(&update) {
            queue.pending_backpressure.pending += 1;
            queue.pending_backpressure.quiet_until = queue.pending_backpressure.quiet_until.max(update.quiet_until);
            queue.pending_backpressure.is_stopped |= update.stop.is_some();
        }
        if !update.is_empty() {
            self.apply_gate(endpoint, now);
        }
        self.leave_host(host, now);
        self.reschedule(endpoint, now);
        update
    }

    /// What an answer asked for is written down, or never will be.
    pub fn backpressure_written(&mut self, endpoint: EndpointId) {
        if let Some(queue) = self.endpoints.get_mut(&endpoint) {
            queue.pending_backpressure.pending = queue.pending_backpressure.pending.saturating_sub(1);
            if queue.pending_backpressure.pending == 0 {
                queue.pending_backpressure = PendingBackpressure::default();
            }
        }
    }

    /// A claim is settled: its lane is free, and it may be due again.
    pub fn settled(&mut self, claim: &Claim, due_again_at: Option<Timestamp>, now: Timestamp) {
        self.slots_free += 1;
        self.flight_bytes -= cost(claim);
        self.scheduler.slot_freed(&claim.event.tenant);
        let Some(queue) = self.endpoints.get_mut(&claim.endpoint) else { return };
        queue.known.remove(&claim.id);
        queue.in_flight.remove(&claim.id);
        if queue.is_reading {
            queue.touched.insert(claim.id);
        }
        if let Some(lane) = &claim.lane
            && let Some(parked) = queue.busy_lanes.remove(lane)
        {
            for waiting in parked.into_iter().rev() {
                queue.ready.push_front(waiting);
            }
        }
        if let Some(due_at) = due_again_at.filter(|_| !queue.is_removed && !queue.is_foreign) {
            queue.stored_due_at(due_at);
            // Put back, it is still what a person asked for, or what they asked
            // for while it was on its way.
            if claim.is_urgent || queue.quiet_until().is_some() {
                queue.urgent_due_at(due_at);
            }
        }
        self.reschedule(claim.endpoint, now);
    }

    /// A person changed a delivery: whatever is remembered of it is void, and
    /// something of its endpoint may be due at this time.
    pub fn changed(
        &mut self,
        endpoint: EndpointId,
        id: DeliveryId,
        due_at: Option<Timestamp>,
        now: Timestamp,
        gate: impl FnOnce() -> Option<EndpointGate>,
    ) {
        let Some(queue) = self.queue(endpoint, now, gate) else { return };
        let taken = queue.take_out(id);
        if queue.is_reading {
            queue.touched.insert(id);
        }
        if let Some(due_at) = due_at {
            queue.stored_due_at(due_at);
            queue.urgent_due_at(due_at);
        }
        self.ready_bytes -= taken.as_ref().map_or(0, cost);
        self.reschedule(endpoint, now);
    }

    /// The endpoint has something due in the store at this time.
    pub fn due_in_store(
        &mut self,
        endpoint: EndpointId,
        due_at: Timestamp,
        now: Timestamp,
        gate: impl FnOnce() -> Option<EndpointGate>,
    ) {
        let Some(queue) = self.queue(endpoint, now, gate) else { return };
        queue.stored_due_at(due_at);
        // Whether any of it is urgent is for the store to say.
        queue.urgent_due_at(due_at);
        self.reschedule(endpoint, now);
    }

    /// The endpoint was paused, resumed, disabled, deleted or given other
    /// settings, or its receiver asked for something: this is written down.
    pub fn update_gate(&mut self, endpoint: EndpointId, gate: EndpointGate, now: Timestamp) {
        let Some(queue) = self.endpoints.get_mut(&endpoint) else { return };
        queue.breaker.adopt(&gate.health);
        // What is held of it was read under the lease it has.
        let lease_terms = LeaseTerms { needed: gate.lease_terms.needed, ..queue.gate.lease_terms };
        queue.gate = EndpointGate { lease_terms, ..gate };
        self.apply_gate(endpoint, now);
        self.reschedule(endpoint, now);
    }

    /// A tenant may use another part of the gateway from now on.
    pub fn change_quota(&mut self, tenant: &TenantId, quota: TenantQuota, now: Timestamp) {
        self.scheduler.change(tenant, &quota, now);
        for queue in self.endpoints.values_mut().filter(|queue| queue.gate.tenant == *tenant) {
            queue.gate.quota = quota;
        }
    }

    /// The endpoints of a tenant that are open.
    pub fn endpoints_of_tenant(&self, tenant: &TenantId) -> Vec<EndpointId> {
        let theirs = self.endpoints.iter().filter(|(_, queue)| queue.gate.tenant == *tenant && !queue.is_removed);
        theirs.map(|(id, _)| *id).collect()
    }

    /// Forgets what an endpoint that is no more had waiting.
    pub fn remove(&mut self, endpoint: EndpointId, now: Timestamp) {
        let Some(queue) = self.endpoints.get_mut(&endpoint) else { return };
        queue.gate.is_open = false;
        self.apply_gate(endpoint, now);
        if let Some(queue) = self.endpoints.get_mut(&endpoint) {
            queue.is_removed = true;
            queue.stored_due = None;
            queue.urgent_due = None;
        }
        self.reschedule(endpoint, now);
    }

    /// The machine was under this much pressure for so many seconds.
    pub fn cpu_pressure(&mut self, pressure: CpuPressure, seconds: f64) {
        self.cpu_throttle.observe(pressure, seconds);
    }

    /// Does what time has brought: returns what should be read from the store
    /// now.
    pub fn poll_due(&mut self, now: Timestamp) -> Vec<DueQuery> {
        let mut asks = Vec::new();
        if self.is_stopped {
            return asks;
        }
        self.scheduler.wake(now);
        while let Some(&(at, endpoint)) = self.wakes.first()
            && at <= now
        {
            self.wakes.pop_first();
            let Some(queue) = self.endpoints.get_mut(&endpoint) else { continue };
            queue.wake = None;
            if queue.read_at().is_some_and(|at| at <= now) {
                queue.begin_read();
                asks.push(DueQuery {
                    endpoint,
                    until: now,
                    limit: queue.read_size(),
                    bytes_max: READ_BYTES_MAX,
                    except: queue.known.clone(),
                    urgent_only: queue.is_backing_off(now),
                });
            }
            self.reschedule(endpoint, now);
        }
        asks
    }

    /// A read has come back. Without a page it failed, and is tried again at
    /// the time given.
    pub fn read_done(&mut self, endpoint: EndpointId, page: Option<DuePage>, now: Timestamp, again_at: Timestamp) {
        let Some(queue) = self.endpoints.get_mut(&endpoint) else { return };
        queue.is_reading = false;
        let touched = std::mem::take(&mut queue.touched);
        if page.is_some() {
            queue.reading_due = None;
        }
        let failed = || DuePage { next_due: Some(again_at), next_urgent: Some(again_at), ..DuePage::default() };
        let page = page.unwrap_or_else(failed);
        for claim in page.claims {
            if !queue.may_start(&claim, now) {
                queue.put_back(&claim);
            } else if !touched.contains(&claim.id) && queue.known.insert(claim.id) {
                self.ready_bytes += cost(&claim);
                queue.ready.push_back(claim);
            }
        }
        if let Some(due_at) = page.next_due {
            queue.stored_due_at(due_at);
        }
        if let Some(due_at) = page.next_urgent {
            queue.urgent_due_at(due_at);
        }
        self.reschedule(endpoint, now);
    }

    /// When there is something to do; never, once stopped.
    pub fn next_wake(&self) -> Option<Timestamp> {
        let endpoints = self.wakes.first().map(|(at, _)| *at);
        endpoints.into_iter().chain(self.scheduler.next_wake()).min().filter(|_| !self.is_stopped)
    }

    /// Sets the timer to the next wake; returns whether that is earlier than
    /// it was set to, so that whoever sleeps on it must be told.
    pub fn set_timer(&mut self) -> bool {
        let next = self.next_wake();
        let is_earlier = next.is_some_and(|at| self.timer.is_none_or(|set| at < set));
        self.timer = next;
        is_earlier
    }

    /// The oldest of all that waits, by what holds it back. Looks at every
    /// endpoint that something waits for.
    pub fn oldest(&self, now: Timestamp) -> OldestDue {
        let mut oldest = OldestDue::default();
        for queue in self.endpoints.values() {
            if let Some((since, blocker)) = self.oldest_of(queue, now) {
                oldest.record(since, blocker);
            }
        }
        oldest
    }

    fn oldest_of(&self, queue: &EndpointQueue, now: Timestamp) -> Option<(Timestamp, Option<Blocker>)> {
        queue.oldest(now, self.scheduler.is_at_rate(&queue.gate.tenant, now))
    }

    /// How often something had to wait, since this was last asked.
    pub fn take_waits(&mut self) -> LimitWaits {
        LimitWaits { rate: std::mem::take(&mut self.rate_waits), share: self.scheduler.take_waits() }
    }

    /// Starts nothing more.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// How many claims are in flight.
    pub fn in_flight(&self) -> usize {
        self.limits.slots - self.slots_free
    }

    /// Whether the node may start one more.
    fn has_room(&self) -> bool {
        self.slots_free > 0 && self.flight_bytes < FLIGHT_BYTES_MAX
    }

    /// Whether fewer than half of the slots are free: then an endpoint gets
    /// another only once it has answered since its last request, so that many
    /// that hang cannot take them all.
    fn are_slots_scarce(&self) -> bool {
        self.limits.slots >= SPARE_SLOTS && self.slots_free < self.limits.slots / 2
    }

    /// Lets one go on that had to wait while slots were short.
    fn start_one_awaiting_answer(&mut self, now: Timestamp) -> bool {
        while let Some(endpoint) = self.awaiting_answer.pop_front() {
            let Some(queue) = self.endpoints.get_mut(&endpoint) else { continue };
            queue.is_listed = false;
            // Those that answered meanwhile wait no longer.
            let is_shy = queue.position == QueuePosition::AwaitingAnswer;
            if is_shy {
                queue.position = QueuePosition::Out;
            }
            self.reschedule(endpoint, now);
            if is_shy {
                return true;
            }
        }
        false
    }

    /// Puts in force what the gate says, and what is not written down yet.
    fn apply_gate(&mut self, endpoint: EndpointId, now: Timestamp) {
        let Some(queue) = self.endpoints.get_mut(&endpoint) else { return };
        queue.gate.quiet_until = queue.gate.quiet_until.max(queue.pending_backpressure.quiet_until);
        queue.gate.is_open &= !queue.pending_backpressure.is_stopped;
        queue.adjust_rate(now);
        for claim in queue.take_blocked(now) {
            self.ready_bytes -= cost(&claim);
        }
    }

    /// Gives the endpoint a turn if it can start something, plans when to look
    /// at it next, and lets go of a queue with nothing left to do.
    fn reschedule(&mut self, endpoint: EndpointId, now: Timestamp) {
        if let Some(touched) = &mut self.touched {
            touched.insert(endpoint);
        }
        let Some(queue) = self.endpoints.get_mut(&endpoint) else { return };
        queue.rate.correct_clock_jump(now);
        queue.record_blocker(now);
        if queue.position == QueuePosition::Out && queue.has_work(now) && queue.rate.is_ready(now) {
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
            // Some had only their rate to remember, and that is over too.
            self.endpoints.retain(|_, queue| !queue.is_idle(now));
            self.tidy_at = (2 * self.endpoints.len()).max(TIDY_AT);
        }
    }
}

fn cost(claim: &Claim) -> usize {
    claim.event.data.len() + CLAIM_BYTES
}

mod hosts;
#[cfg(test)]
mod lag_tests;
mod shard_moves;
mod status;
#[cfg(test)]
mod tests;
