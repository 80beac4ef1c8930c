//! The queue of one endpoint: what is about to go, and what keeps it.
//!
//! It knows what is ready and what is in flight, which lanes are busy, the
//! endpoint's rate and its breaker. What a receiver has just asked for holds
//! here until it is written down.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;

use super::gate::EndpointGate;
use super::lag::Blocker;
use crate::model::health::{BreakerState, CircuitBreaker};
use crate::model::id::DeliveryId;
use crate::model::rate::Gcra;
use crate::store::Claim;

/// For how long an endpoint counts as held by its rate after it met it.
const RATE_LATELY_MS: i64 = 1_000;

/// What is about to go to one endpoint.
pub struct EndpointQueue {
    /// What it allows.
    pub gate: EndpointGate,
    /// How it is doing.
    pub breaker: CircuitBreaker,
    /// How often it may be called.
    pub rate: Gcra,
    /// What may start next.
    pub ready: VecDeque<Claim>,
    /// Everything of this endpoint that is in memory.
    pub known: HashSet<DeliveryId>,
    /// What is on its way, or being settled.
    pub in_flight: HashSet<DeliveryId>,
    /// The hosts that its open requests went to, where that matters.
    pub hosts: HashMap<DeliveryId, Arc<str>>,
    /// Whether it stands in the list of the shy.
    pub is_listed: bool,
    /// Requests open right now; a claim outlives its request until settled.
    pub sending: usize,
    /// Requests begun since the endpoint last gave an answer.
    pub unanswered: usize,
    /// Lanes with a claim in flight, and who arrived for them meanwhile.
    pub busy_lanes: HashMap<Arc<str>, VecDeque<Claim>>,
    /// When the store has more that is due.
    pub stored_due: Option<Timestamp>,
    /// When the store may have something due that a person asked for.
    pub urgent_due: Option<Timestamp>,
    /// Whether the store is being read for it.
    pub is_reading: bool,
    /// When the first of what is being read was due, or of what could not be
    /// read. It decides nothing: it says how old what is not here is.
    pub reading_due: Option<Timestamp>,
    /// Whether somebody else than its rate held it back when last arranged.
    pub was_held: bool,
    /// When that ended.
    pub free_since: Timestamp,
    /// When it last had to wait for its rate.
    pub rate_met_at: Timestamp,
    /// Changed while a read was under way, so the read does not count for them.
    pub touched: HashSet<DeliveryId>,
    /// Where it stands in line.
    pub position: QueuePosition,
    /// When it is looked at next.
    pub wake: Option<Timestamp>,
    /// Whether there is no such endpoint any more.
    pub is_removed: bool,
    /// Whether it is another node's, or about to be: it is here only for what
    /// is still in flight.
    pub is_foreign: bool,
    /// What its receiver asked for that is not written down yet.
    pub pending_backpressure: PendingBackpressure,
}

/// Where a queue stands in line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueuePosition {
    /// Nowhere.
    Out,
    /// In its tenant's line.
    InLine,
    /// Slots are short, and it has not answered since its last request.
    AwaitingAnswer,
    /// Its host has as many open as it may.
    AtHost,
}

/// What is in force before it is durable, so that nothing starts in between.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PendingBackpressure {
    /// How many answers with such wishes are being written.
    pub pending: usize,
    /// The longest quiet asked for.
    pub quiet_until: Option<Timestamp>,
    /// Whether it is to be held.
    pub is_stopped: bool,
}

impl EndpointQueue {
    /// An empty queue. What was sent before the node began is not known,
    /// unless there was no such endpoint then.
    pub fn new(gate: EndpointGate, began_at: Timestamp) -> Self {
        Self {
            breaker: CircuitBreaker::of(gate.health.clone()),
            rate: initial_rate(&gate, began_at),
            gate,
            ready: VecDeque::new(),
            known: HashSet::new(),
            in_flight: HashSet::new(),
            hosts: HashMap::new(),
            is_listed: false,
            sending: 0,
            unanswered: 0,
            busy_lanes: HashMap::new(),
            stored_due: None,
            urgent_due: None,
            is_reading: false,
            reading_due: None,
            was_held: false,
            free_since: Timestamp::MIN,
            rate_met_at: Timestamp::MIN,
            touched: HashSet::new(),
            position: QueuePosition::Out,
            wake: None,
            is_removed: false,
            is_foreign: false,
            pending_backpressure: PendingBackpressure::default(),
        }
    }

    /// Goes on as this node's, from what is written down: nothing is known of
    /// what others did meanwhile. What is still in flight stays so.
    pub fn regain(&mut self, gate: EndpointGate, began_at: Timestamp) {
        self.is_foreign = false;
        self.breaker = CircuitBreaker::of(gate.health.clone());
        self.rate = initial_rate(&gate, began_at);
        self.gate = gate;
    }

    /// How many are read at once.
    pub fn read_size(&self) -> usize {
        (self.gate.cap * 2).clamp(32, 512)
    }

    /// Whether this claim may go at this moment.
    pub fn may_start(&self, claim: &Claim, now: Timestamp) -> bool {
        self.gate.is_open && (claim.is_urgent || !self.is_backing_off(now))
    }

    /// Until when nothing goes but what a person asks for.
    pub fn quiet_until(&self) -> Option<Timestamp> {
        self.gate.quiet_until.max(self.breaker.health.open_until())
    }

    /// Whether the receiver is left alone at this moment.
    pub fn is_backing_off(&self, now: Timestamp) -> bool {
        self.quiet_until().is_some_and(|until| until > now)
    }

    /// Whether there is something to start and a place for it, whatever the
    /// rate says.
    pub fn has_work(&self, now: Timestamp) -> bool {
        self.gate.is_open && !self.ready.is_empty() && !self.is_full(now)
    }

    /// Whether as many requests are open as may be.
    pub fn is_full(&self, now: Timestamp) -> bool {
        self.sending >= self.breaker.health.width(self.gate.cap, now)
    }

    /// Keeps to the rate that its health allows.
    pub fn adjust_rate(&mut self, now: Timestamp) {
        self.rate.change(self.breaker.health.rate(self.gate.rate, self.gate.cap, now), now);
    }

    /// Reading ahead begins when few are left.
    fn is_low(&self) -> bool {
        self.ready.len() < self.read_size() / 4
    }

    /// Whether there is nothing to do for it, and nothing to remember.
    pub fn is_idle(&self, now: Timestamp) -> bool {
        let is_waiting = self.stored_due.is_some() || self.urgent_due.is_some();
        let is_idle = self.known.is_empty() && !is_waiting && !self.is_reading && self.position == QueuePosition::Out;
        let is_idle = is_idle && self.hosts.is_empty() && !self.is_listed;
        // How it is doing, and what was sent, is for its new owner to know.
        is_idle && (self.is_foreign || self.is_untroubled(now))
    }

    fn is_untroubled(&self, now: Timestamp) -> bool {
        self.pending_backpressure.pending == 0 && self.rate.is_full(now) && self.breaker.is_untroubled(now)
    }

    /// When to look into the store: for all that is due, but not before the
    /// receiver wants to be called; for what a person asked for, at any time.
    pub fn read_at(&self) -> Option<Timestamp> {
        if !self.gate.is_open || self.is_foreign || self.is_reading || !self.is_low() {
            return None;
        }
        let quiet_until = self.quiet_until().unwrap_or(Timestamp::MIN);
        let all = self.stored_due.map(|due_at| due_at.max(quiet_until));
        all.into_iter().chain(self.urgent_due).min()
    }

    /// When there is something to do for it.
    pub fn wake_at(&self, now: Timestamp) -> Option<Timestamp> {
        let slot = self.waits_for_rate(now).then(|| self.rate.ready_at());
        self.read_at().into_iter().chain(slot).min()
    }

    /// When the first that is due and did not go was due, in memory or in the
    /// store. What is being read counts until it is here.
    fn oldest_due(&self, now: Timestamp) -> Option<Timestamp> {
        let ready = self.ready.front().map(|claim| claim.due_at);
        ready.into_iter().chain(self.stored_due).chain(self.reading_due).min().filter(|due_at| *due_at <= now)
    }

    /// Who but its rate holds its deliveries back at this moment.
    fn blocker(&self, now: Timestamp) -> Option<Blocker> {
        if self.gate.is_disabled {
            return Some(Blocker::Disabled);
        }
        if !self.gate.is_open {
            return Some(Blocker::Pause);
        }
        if self.gate.quiet_until.is_some_and(|until| until > now) {
            return Some(Blocker::Backpressure);
        }
        let is_held = match self.breaker.health.breaker(now) {
            BreakerState::Open | BreakerState::HalfOpen => true,
            BreakerState::Ramp => self.is_full(now) || !self.rate.is_ready(now),
            BreakerState::Closed => false,
        };
        is_held.then_some(Blocker::Breaker)
    }

    /// What its oldest has waited since, and what holds it back. What was held
    /// and is not any more could go from then on. One that has just met its rate,
    /// or whose tenant has, is held by that: there is always a moment between
    /// two starts in which the rate would allow one.
    pub fn oldest(&self, now: Timestamp, is_tenant_at_rate: bool) -> Option<(Timestamp, Option<Blocker>)> {
        let due_at = self.oldest_due(now).filter(|_| !self.is_foreign && !self.is_removed)?;
        let is_at_rate = || !self.rate.is_ready(now) || is_recent(self.rate_met_at, now);
        Some(match self.blocker(now) {
            Some(blocker) => (due_at, Some(blocker)),
            None if is_tenant_at_rate || is_at_rate() => (due_at, Some(Blocker::Rate)),
            None => {
                let quiet_until = self.gate.quiet_until.unwrap_or(due_at);
                (due_at.max(self.free_since).max(quiet_until), None)
            }
        })
    }

    /// Remembers what holds it back at this moment, and that it no longer does.
    pub fn record_blocker(&mut self, now: Timestamp) {
        let is_held = self.blocker(now).is_some();
        if self.was_held && !is_held {
            self.free_since = now;
        }
        self.was_held = is_held;
        if self.waits_for_rate(now) {
            self.rate_met_at = now;
        }
    }

    /// A read begins: what was due in the store is on its way here.
    pub fn begin_read(&mut self) {
        self.is_reading = true;
        self.reading_due = self.reading_due.into_iter().chain(self.stored_due.take()).min();
        self.urgent_due = None;
    }

    /// Whether only its rate keeps it.
    pub fn waits_for_rate(&self, now: Timestamp) -> bool {
        self.position == QueuePosition::Out && self.has_work(now) && !self.rate.is_ready(now)
    }

    /// Something a person asked for may be due in the store at this time.
    pub fn urgent_due_at(&mut self, due_at: Timestamp) {
        self.urgent_due = Some(self.urgent_due.map_or(due_at, |known| known.min(due_at)));
    }

    /// Puts a claim out of mind; it rests in the store.
    pub fn put_back(&mut self, claim: &Claim) {
        self.stored_due_at(claim.due_at);
        if claim.is_urgent {
            self.urgent_due_at(claim.due_at);
        }
    }

    /// Something is due in the store at this time.
    pub fn stored_due_at(&mut self, due_at: Timestamp) {
        self.stored_due = Some(self.stored_due.map_or(due_at, |known| known.min(due_at)));
    }

    /// Starts the first claim whose lane is free; the others park behind
    /// theirs.
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

    /// Takes out what may not go at this moment; it rests in the store anyway.
    pub fn take_blocked(&mut self, now: Timestamp) -> Vec<Claim> {
        let (is_open, is_quiet) = (self.gate.is_open, self.is_backing_off(now));
        if is_open && !is_quiet {
            return Vec::new();
        }
        let mut held = Vec::new();
        for list in self.busy_lanes.values_mut().chain([&mut self.ready]) {
            let (kept, back): (VecDeque<_>, VecDeque<_>) = list.drain(..).partition(|claim| is_open && claim.is_urgent);
            *list = kept;
            held.extend(back);
        }
        for claim in &held {
            self.known.remove(&claim.id);
            self.put_back(claim);
        }
        // From now on these are looked for apart.
        self.urgent_due_at(now);
        held
    }

    /// Takes out one delivery that has not started; its claim, if it was here.
    pub fn take_out(&mut self, id: DeliveryId) -> Option<Claim> {
        if self.in_flight.contains(&id) || !self.known.remove(&id) {
            return None;
        }
        let mut lists = self.busy_lanes.values_mut().chain([&mut self.ready]);
        lists.find_map(|list| {
            let place = list.iter().position(|claim| claim.id == id)?;
            list.remove(place)
        })
    }
}

/// Whether something that happened then is no longer ago than the time between
/// two starts of a slow rate.
pub fn is_recent(at: Timestamp, now: Timestamp) -> bool {
    now.as_millisecond().saturating_sub(at.as_millisecond()) < RATE_LATELY_MS
}

/// The pace of an endpoint of which this node knows nothing before this time,
/// or before it became this node's.
fn initial_rate(gate: &EndpointGate, began_at: Timestamp) -> Gcra {
    let known_from = gate.lease_terms.since.map_or(began_at, |since| since.max(began_at));
    match gate.created_at >= known_from {
        true => Gcra::full(gate.rate),
        false => Gcra::unknown_before(gate.rate, known_from),
    }
}
