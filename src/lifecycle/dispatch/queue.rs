//! Keeps the queue of one endpoint: its deliveries in memory and what holds
//! them back.
//!
//! A queue knows the ready claims and those in flight, the busy lanes, the
//! endpoint's rate and its breaker. A break that the receiver has just asked
//! for is in force here before it is stored.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::arrived_reads::ArrivedReads;
use super::figure_counters::HeldBy;
use super::gate::EndpointGate;
use super::receiver_speed::ReceiverSpeed;
use crate::model::blocker::{Capacity, DeliveryConditions, EndpointConditions};
use crate::model::delivery::WaitingFor;
use crate::model::health::CircuitBreaker;
use crate::model::id::DeliveryId;
use crate::model::id_map::{IdMap, IdSet};
use crate::model::rate::Gcra;
use crate::store::Claim;

/// Most deliveries that one read brings in. A page costs the store a search that does
/// not depend on its length.
const PAGE_MAX: usize = 512;
/// Milliseconds for which an endpoint counts as held by its rate after it had
/// to wait for it.
const RECENT_MS: i64 = 1_000;

/// Milliseconds after a start or a take-over within which an endpoint counts as
/// gained. What becomes due later did not wait for this node.
const GAINED_MS: i64 = 60_000;
/// An endpoint that is gained with more due than so many times its cap is ramped.
const GAINED_DUE_CAPS: usize = 4;

/// The queue of one endpoint.
pub struct EndpointQueue {
    /// Limits that the endpoint sets.
    pub gate: EndpointGate,
    /// Circuit breaker of the endpoint.
    pub breaker: CircuitBreaker,
    /// State of the endpoint's rate.
    pub rate: Gcra,
    /// Claims that may start next.
    pub ready: VecDeque<Claim>,
    /// Ids of all claims of this endpoint in memory: ready, parked or in flight.
    pub known: IdSet<DeliveryId>,
    /// Ids of claims whose request is open or whose outcome is being settled.
    pub in_flight: IdSet<DeliveryId>,
    /// Hosts that the open requests went to, if hosts have a limit.
    pub hosts: IdMap<DeliveryId, Arc<str>>,
    /// Whether the endpoint is in the list of those that await an answer.
    pub is_listed: bool,
    /// Number of open requests; a claim outlives its request until settled.
    pub sending: usize,
    /// Number of requests begun since the endpoint last gave an answer.
    pub unanswered: usize,
    /// Lanes with a claim in flight, and the claims parked behind it.
    pub busy_lanes: IdMap<Arc<str>, VecDeque<Claim>>,
    /// Earliest due time of deliveries that are in the store only.
    pub stored_due: Option<Timestamp>,
    /// Whether the delivery that is due then may have been changed meanwhile.
    pub is_stored_due_unsure: bool,
    /// Time at which the store may have a due delivery that a person asked for.
    pub urgent_due: Option<Timestamp>,
    /// Whether a read of the store for this endpoint is running.
    pub is_reading: bool,
    /// Time up to which the store was read last, or is being read.
    pub read_until: Timestamp,
    /// Whether the page before the one that was read last, or is being read, was
    /// used up within a moment.
    pub is_page_short_lived: bool,
    /// Whether much is due in the store and starts as fast as it is read, so that
    /// pages are large.
    pub is_draining: bool,
    /// Earliest due time of what is being read or could not be read. It is
    /// used only to report lag.
    pub reading_due: Option<Timestamp>,
    /// Whether a blocker other than the rate was in force at the last
    /// rescheduling.
    pub was_blocked: bool,
    /// Time at which the last such blocker ended.
    pub free_since: Timestamp,
    /// Time at which the endpoint last had to wait for its rate.
    pub rate_waited_at: Timestamp,
    /// What holds its due deliveries back, as far as it is counted.
    pub held_by: Option<HeldBy>,
    /// How fast the receiver answers at its best.
    pub speed: ReceiverSpeed,
    /// Deliveries changed during the running read; its result does not count
    /// for them.
    pub changed_during_read: IdSet<DeliveryId>,
    /// Reads of what other nodes accepted.
    pub arrived: ArrivedReads,
    /// Position of the queue in line.
    pub position: QueuePosition,
    /// Time at which the queue is rescheduled next.
    pub wake: Option<Timestamp>,
    /// Who owns the endpoint.
    pub owner: QueueOwner,
    /// Time at which this node began to call the endpoint, until its first page of
    /// due deliveries is read.
    pub gained_at: Option<Timestamp>,
    /// Backpressure of the receiver that is not stored yet.
    pub pending_backpressure: PendingBackpressure,
}

/// The owner of an endpoint, as its queue knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueOwner {
    /// This node dispatches the endpoint.
    ThisNode,
    /// Another node does, or is about to: the queue exists only for what is
    /// still in flight.
    AnotherNode,
    /// The endpoint was deleted.
    Nobody,
}

/// The position of a queue in line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueuePosition {
    /// Not scheduled: nothing of the queue can go now.
    Out,
    /// Scheduled in the round of its tenant.
    InLine,
    /// Waiting because slots are scarce and the endpoint has not answered
    /// since its last request.
    AwaitingAnswer,
    /// Waiting because its host has reached its limit of open requests.
    AtHost,
}

/// Backpressure that is in force before it is durable, so that nothing starts
/// in between.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PendingBackpressure {
    /// Number of answers with backpressure that are being stored.
    pub pending: usize,
    /// Latest end of the breaks that were asked for.
    pub backpressure_until: Option<Timestamp>,
    /// Whether an answer pauses or disables the endpoint.
    pub is_stopped: bool,
}

impl EndpointQueue {
    /// Creates an empty queue. What was sent before `began_at` is not known,
    /// unless the endpoint was created later.
    pub fn new(gate: EndpointGate, began_at: Timestamp) -> Self {
        let gained_at = gained_at(&gate, began_at);
        Self {
            breaker: CircuitBreaker::of(gate.health.clone()),
            rate: initial_rate(&gate, began_at),
            gate,
            ready: VecDeque::new(),
            known: IdSet::default(),
            in_flight: IdSet::default(),
            hosts: IdMap::default(),
            is_listed: false,
            sending: 0,
            unanswered: 0,
            busy_lanes: IdMap::default(),
            stored_due: None,
            is_stored_due_unsure: false,
            urgent_due: None,
            is_reading: false,
            read_until: Timestamp::MIN,
            is_page_short_lived: false,
            is_draining: false,
            reading_due: None,
            was_blocked: false,
            free_since: Timestamp::MIN,
            rate_waited_at: Timestamp::MIN,
            held_by: None,
            speed: ReceiverSpeed::unknown(),
            changed_during_read: IdSet::default(),
            arrived: ArrivedReads::default(),
            position: QueuePosition::Out,
            wake: None,
            owner: QueueOwner::ThisNode,
            gained_at,
            pending_backpressure: PendingBackpressure::default(),
        }
    }

    /// Makes the queue this node's again, from what is stored: what other nodes
    /// sent meanwhile is not known. Claims in flight stay.
    pub fn regain(&mut self, gate: EndpointGate, began_at: Timestamp) {
        self.owner = QueueOwner::ThisNode;
        self.breaker = CircuitBreaker::of(gate.health.clone());
        self.rate = initial_rate(&gate, began_at);
        self.gained_at = gained_at(&gate, began_at);
        self.gate = gate;
    }

    /// Begins a ramp if this is the first page of a gained endpoint, and much more
    /// than it takes at once is due: all of it at once would be a stampede.
    pub fn ramp_if_gained(&mut self, due: usize, now: Timestamp) {
        let Some(gained_at) = self.gained_at.take() else { return };
        let is_fresh = now.as_millisecond().saturating_sub(gained_at.as_millisecond()) <= GAINED_MS;
        if is_fresh && due > GAINED_DUE_CAPS * self.gate.cap {
            self.breaker.health = self.breaker.health.after_take_over(now);
            self.adjust_rate(now);
        }
    }

    /// Returns the number of deliveries that one read brings in at most.
    pub fn read_size(&self) -> usize {
        if self.is_draining { PAGE_MAX } else { (self.gate.cap * 2).clamp(32, PAGE_MAX) }
    }

    /// Whether the gate and the breaker let this claim start now.
    pub fn may_start(&self, claim: &Claim, now: Timestamp) -> bool {
        self.lets_start(claim.is_urgent, now)
    }

    /// Whether the gate and the breaker let a due delivery start now.
    fn lets_start(&self, is_urgent: bool, now: Timestamp) -> bool {
        self.blocker(is_urgent, Capacity::Free, now).is_none()
    }

    /// Whether a ready claim may start now, as far as the endpoint itself decides it.
    /// Ready claims count as urgent: [`Self::take_blocked`] leaves to the store what
    /// backpressure or a cool-down holds back.
    pub fn can_start(&self, now: Timestamp) -> bool {
        !self.ready.is_empty() && self.blocker(true, self.own_capacity(now), now).is_none()
    }

    /// Returns what holds back a delivery that is due now, with this room for one
    /// more request.
    fn blocker(&self, is_urgent: bool, capacity: Capacity, now: Timestamp) -> Option<WaitingFor> {
        let delivery = DeliveryConditions { due_at: now, is_urgent, is_behind: false };
        self.conditions(capacity).blocker(delivery, now)
    }

    /// Returns what decides whether the endpoint can be called, with this room
    /// for one more request.
    fn conditions(&self, capacity: Capacity) -> EndpointConditions<'_> {
        EndpointConditions {
            state: self.gate.state,
            backpressure_until: self.gate.backpressure_until,
            health: &self.breaker.health,
            capacity,
        }
    }

    /// Returns the room for one more request that the endpoint's own rate and
    /// cap leave.
    pub fn own_capacity(&self, now: Timestamp) -> Capacity {
        if self.rate.is_ready(now) { self.capacity_under_cap(now) } else { Capacity::Rate(self.rate.ready_at()) }
    }

    /// Returns the room for one more request that the endpoint's cap leaves, as the
    /// breaker narrows it.
    fn capacity_under_cap(&self, now: Timestamp) -> Capacity {
        let limit = self.breaker.health.open_requests_limit(self.gate.cap, now);
        if self.sending >= limit { Capacity::Slot } else { Capacity::Free }
    }

    /// Returns the time before which only urgent deliveries start.
    pub fn only_urgent_until(&self) -> Option<Timestamp> {
        self.conditions(Capacity::Free).only_urgent_until()
    }

    /// Whether only urgent deliveries may start now.
    pub fn is_backing_off(&self, now: Timestamp) -> bool {
        self.only_urgent_until().is_some_and(|until| until > now)
    }

    /// Sets the rate that the endpoint's health allows now.
    pub fn adjust_rate(&mut self, now: Timestamp) {
        self.rate.change(self.breaker.health.rate(self.gate.rate, self.gate.cap, now), now);
    }

    /// Whether so few claims are ready that the next read is due. While the queue
    /// drains, the rest of a page lasts as long as a read takes.
    fn is_low(&self) -> bool {
        self.ready.len() < self.read_size() / if self.is_draining { 2 } else { 4 }
    }

    /// Whether the queue has nothing to do and no state worth keeping.
    pub fn is_idle(&self, now: Timestamp) -> bool {
        let is_waiting = self.stored_due.is_some() || self.urgent_due.is_some();
        let is_idle = self.known.is_empty() && !is_waiting && !self.is_reading && self.position == QueuePosition::Out;
        let is_idle = is_idle && self.hosts.is_empty() && !self.is_listed && self.arrived.due.is_none();
        // The state of rate and breaker matters only to the owner.
        is_idle && (self.owner == QueueOwner::AnotherNode || self.is_untroubled(now))
    }

    fn is_untroubled(&self, now: Timestamp) -> bool {
        self.pending_backpressure.pending == 0 && self.rate.is_full(now) && self.breaker.is_untroubled(now)
    }

    /// Returns when to read from the store: for due deliveries not before the
    /// end of the receiver's break; for urgent ones at any time. While nothing is sent,
    /// it is read only to learn whether the pause still holds anything back.
    pub fn read_at(&self, now: Timestamp) -> Option<Timestamp> {
        if self.owner == QueueOwner::AnotherNode || self.is_reading {
            return None;
        }
        // Only a pause, or that it is disabled, holds back urgent ones, too.
        if !self.lets_start(true, now) {
            return self.stored_due.filter(|_| self.is_stored_due_unsure);
        }
        if !self.is_low() {
            return None;
        }
        let only_urgent_until = self.only_urgent_until().unwrap_or(Timestamp::MIN);
        let all = self.stored_due.map(|due_at| due_at.max(only_urgent_until));
        all.into_iter().chain(self.urgent_due).min()
    }

    /// Returns when the queue is to be rescheduled: for a read, for its rate, or for
    /// the end of its ramp.
    pub fn wake_at(&self, now: Timestamp) -> Option<Timestamp> {
        let slot = self.waits_for_rate(now).then(|| self.rate.ready_at());
        let ramp = self.breaker.health.ramp_until.filter(|until| *until > now && !self.ready.is_empty());
        self.read_at(now).into_iter().chain(slot).chain(ramp).min()
    }

    /// Returns the due time of the oldest due delivery that has not started, in
    /// memory, in the store or being read.
    fn oldest_due(&self, now: Timestamp) -> Option<Timestamp> {
        let ready = self.ready.front().map(|claim| claim.due_at).into_iter();
        let read = [self.stored_due, self.reading_due, self.arrived.due].into_iter().flatten();
        ready.chain(read).min().filter(|due_at| *due_at <= now)
    }

    /// Returns since when its oldest delivery has waited, and what holds it
    /// back. After a blocker has ended, the wait counts from its end.
    pub fn oldest(&self, now: Timestamp, is_tenant_at_rate: bool) -> Option<(Timestamp, Option<WaitingFor>)> {
        let due_at = self.oldest_due(now).filter(|_| self.owner == QueueOwner::ThisNode)?;
        let is_at_rate = is_tenant_at_rate || !self.rate.is_ready(now) || is_recent(self.rate_waited_at, now);
        let blocker = self.conditions(self.own_capacity(now)).blocker_of_lag(is_at_rate, now);
        if blocker.is_some() {
            return Some((due_at, blocker));
        }
        let backpressure_until = self.gate.backpressure_until.unwrap_or(due_at);
        Some((due_at.max(self.free_since).max(backpressure_until), None))
    }

    /// Returns how late a claim starts for want of this node's own speed. What
    /// waits for its lane, its rate or the receiver is not late in this sense.
    pub fn own_lag(&self, claim: &Claim, now: Timestamp) -> Duration {
        let is_held = claim.lane.is_some() || self.was_blocked || is_recent(self.rate_waited_at, now);
        if is_held || !self.speed.could_take_more(self.gate.cap) {
            return Duration::ZERO;
        }
        Duration::try_from(now.duration_since(claim.due_at.max(self.free_since))).unwrap_or_default()
    }

    /// Records whether a blocker other than the rate is in force now, when the
    /// last one ended, and whether the queue waits for its rate. Returns whether
    /// something else than before holds due deliveries back.
    pub fn record_blocker(&mut self, now: Timestamp) -> bool {
        let blocker = self.conditions(self.own_capacity(now)).blocker_of_lag(false, now);
        let is_blocked = blocker.is_some();
        if self.was_blocked && !is_blocked {
            self.free_since = now;
        }
        self.was_blocked = is_blocked;
        let waits_for_rate = self.waits_for_rate(now);
        if waits_for_rate {
            self.rate_waited_at = now;
        }
        let held_by = blocker.and_then(HeldBy::of).or(waits_for_rate.then_some(HeldBy::Rate));
        let is_own = self.owner == QueueOwner::ThisNode;
        let held_by = held_by.filter(|_| is_own && self.oldest_due(now).is_some());
        std::mem::replace(&mut self.held_by, held_by) != held_by
    }

    /// Begins a read of what is due in the store now.
    pub fn begin_read(&mut self, now: Timestamp) {
        self.is_reading = true;
        self.is_page_short_lived = is_recent(self.read_until, now);
        self.read_until = now;
        self.reading_due = self.reading_due.into_iter().chain(self.stored_due.take()).min();
        self.is_stored_due_unsure = false;
        self.urgent_due = None;
    }

    /// Notes that a delivery was settled or changed: what a running read brings of it
    /// does not count.
    pub fn note_change(&mut self, id: DeliveryId) {
        if self.is_reading {
            self.changed_during_read.insert(id);
        }
        self.arrived.note_change(id);
    }

    /// Whether what other nodes accepted is read by its number: it may start, and
    /// nothing that has waited for longer is in the store.
    pub fn takes_arrived(&self, now: Timestamp) -> bool {
        self.stored_due.is_none_or(|due_at| due_at > now) && self.lets_start(false, now)
    }

    /// Whether only its rate holds the queue back.
    pub fn waits_for_rate(&self, now: Timestamp) -> bool {
        let is_waiting = self.position == QueuePosition::Out && !self.ready.is_empty() && !self.rate.is_ready(now);
        is_waiting && self.blocker(true, self.capacity_under_cap(now), now).is_none()
    }

    /// Notes that the store may have an urgent delivery due at this time.
    pub fn urgent_due_at(&mut self, due_at: Timestamp) {
        self.urgent_due = Some(self.urgent_due.map_or(due_at, |earliest| earliest.min(due_at)));
    }

    /// Leaves a claim to the store, and notes when it is due there.
    pub fn put_back(&mut self, claim: &Claim) {
        self.stored_due_at(claim.due_at);
        if claim.is_urgent {
            self.urgent_due_at(claim.due_at);
        }
    }

    /// Notes that the store has a delivery due at this time.
    pub fn stored_due_at(&mut self, due_at: Timestamp) {
        self.stored_due = Some(self.stored_due.map_or(due_at, |earliest| earliest.min(due_at)));
    }

    /// Starts the first claim whose lane is free. Claims before it are parked
    /// behind their busy lanes.
    pub fn start(&mut self) -> Option<Claim> {
        while let Some(claim) = self.ready.pop_front() {
            if let Some(lane) = &claim.lane {
                if let Some(parked) = self.busy_lanes.get_mut(lane) {
                    parked.push_back(claim);
                    continue;
                }
                self.busy_lanes.insert(lane.clone(), VecDeque::new());
            }
            self.sending += 1;
            self.unanswered += 1;
            self.in_flight.insert(claim.id);
            return Some(claim);
        }
        None
    }

    /// Removes and returns the claims that may not start now; the store has
    /// them anyway.
    pub fn take_blocked(&mut self, now: Timestamp) -> Vec<Claim> {
        if self.lets_start(false, now) {
            return Vec::new();
        }
        let lets_urgent = self.lets_start(true, now);
        let mut blocked = Vec::new();
        for list in self.busy_lanes.values_mut().chain([&mut self.ready]) {
            let (urgent, rest): (VecDeque<_>, VecDeque<_>) =
                list.drain(..).partition(|claim| lets_urgent && claim.is_urgent);
            *list = urgent;
            blocked.extend(rest);
        }
        for claim in &blocked {
            self.known.remove(&claim.id);
            self.put_back(claim);
        }
        // From now on urgent deliveries are read on their own.
        self.urgent_due_at(now);
        blocked
    }

    /// Removes a delivery that has not started; returns its claim if it was in
    /// memory.
    pub fn take_out(&mut self, id: DeliveryId) -> Option<Claim> {
        self.is_stored_due_unsure = true;
        if self.in_flight.contains(&id) || !self.known.remove(&id) {
            return None;
        }
        let mut lists = self.busy_lanes.values_mut().chain([&mut self.ready]);
        lists.find_map(|list| {
            let index = list.iter().position(|claim| claim.id == id)?;
            list.remove(index)
        })
    }
}

/// Whether a moment is at most [`RECENT_MS`] ago: the time between two starts at
/// a slow rate.
pub fn is_recent(at: Timestamp, now: Timestamp) -> bool {
    now.as_millisecond().saturating_sub(at.as_millisecond()) < RECENT_MS
}

/// Returns when this node began to call the endpoint, if others, or it before a
/// restart, may have called it before.
fn gained_at(gate: &EndpointGate, began_at: Timestamp) -> Option<Timestamp> {
    let gained_at = gate.lease_terms.since.map_or(began_at, |since| since.max(began_at));
    (gate.created_at < gained_at).then_some(gained_at)
}

/// Returns the state of an endpoint's rate at first. What was sent before the
/// node began, or before it owned the endpoint, is not known.
fn initial_rate(gate: &EndpointGate, began_at: Timestamp) -> Gcra {
    let known_from = gate.lease_terms.since.map_or(began_at, |since| since.max(began_at));
    if gate.created_at >= known_from { Gcra::full(gate.rate) } else { Gcra::unknown_before(gate.rate, known_from) }
}
