//! Decides what goes next: a queue per endpoint, turns between them.
//!
//! Pure bookkeeping; it is told the time and starts nothing itself. Memory
//! holds what is about to go, and for each endpoint the time at which the
//! store has more. The backlog stays in the store.
//!
//! Invariant: every delivery that may go is either known here (ready, parked
//! or in flight) or due in the store at `stored_due` or later.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;

use super::gate::Gate;
use crate::model::id::{DeliveryId, EndpointId};
use crate::store::{AskDue, Claim, DuePage, Notice};

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

/// All queues of this node.
pub struct Queues {
    endpoints: HashMap<EndpointId, Queue>,
    /// Endpoints that can start something, each once, in turn.
    turns: VecDeque<EndpointId>,
    /// When to look into the store next, and for whom.
    wakes: BTreeSet<(Timestamp, EndpointId)>,
    /// When the timer goes off anyway.
    timer: Option<Timestamp>,
    slots_free: usize,
    slots: usize,
    ready_bytes: usize,
    flight_bytes: usize,
    is_stopped: bool,
}

struct Queue {
    gate: Gate,
    ready: VecDeque<Claim>,
    /// Everything of this endpoint that is in memory.
    known: HashSet<DeliveryId>,
    in_flight: HashSet<DeliveryId>,
    /// Requests open right now; a claim outlives its request until settled.
    sending: usize,
    /// Lanes with a claim in flight, and who arrived for them meanwhile.
    busy_lanes: HashMap<Arc<str>, VecDeque<Claim>>,
    stored_due: Option<Timestamp>,
    /// When the store may have something due that a person asked for.
    urgent_due: Option<Timestamp>,
    is_reading: bool,
    /// Changed while a read was under way, so the read does not count for them.
    touched: HashSet<DeliveryId>,
    has_turn: bool,
    wake: Option<Timestamp>,
}

impl Queue {
    fn new(gate: Gate) -> Self {
        Self {
            gate,
            ready: VecDeque::new(),
            known: HashSet::new(),
            in_flight: HashSet::new(),
            sending: 0,
            busy_lanes: HashMap::new(),
            stored_due: None,
            urgent_due: None,
            is_reading: false,
            touched: HashSet::new(),
            has_turn: false,
            wake: None,
        }
    }

    fn read_size(&self) -> usize {
        (self.gate.cap * 2).clamp(32, 512)
    }

    /// Reading ahead begins when this few are left.
    fn is_low(&self) -> bool {
        self.ready.len() < self.read_size() / 4
    }

    fn can_start(&self) -> bool {
        self.gate.is_open && self.sending < self.gate.cap && !self.ready.is_empty()
    }

    fn is_idle(&self) -> bool {
        let is_waiting = self.stored_due.is_some() || self.urgent_due.is_some();
        self.known.is_empty() && !is_waiting && !self.is_reading && !self.has_turn
    }

    /// When to look into the store: for all that is due, but not before the
    /// receiver wants to be called; for what a person asked for, at any time.
    fn wake_at(&self) -> Option<Timestamp> {
        if !self.gate.is_open || self.is_reading || !self.is_low() {
            return None;
        }
        let quiet_until = self.gate.quiet_until.unwrap_or(Timestamp::MIN);
        let all = self.stored_due.map(|due_at| due_at.max(quiet_until));
        all.into_iter().chain(self.urgent_due).min()
    }

    fn note_urgent(&mut self, due_at: Timestamp) {
        self.urgent_due = Some(self.urgent_due.map_or(due_at, |known| known.min(due_at)));
    }

    /// Puts a claim out of mind; it rests in the store.
    fn note_back(&mut self, claim: &Claim) {
        self.note_stored(claim.due_at);
        if claim.is_urgent {
            self.note_urgent(claim.due_at);
        }
    }

    fn note_stored(&mut self, due_at: Timestamp) {
        self.stored_due = Some(self.stored_due.map_or(due_at, |known| known.min(due_at)));
    }
}

impl Queues {
    /// Queues for a node that may hold this many claims in flight.
    pub fn new(slots: usize) -> Self {
        Self {
            endpoints: HashMap::new(),
            turns: VecDeque::new(),
            wakes: BTreeSet::new(),
            timer: None,
            slots_free: slots,
            slots,
            ready_bytes: 0,
            flight_bytes: 0,
            is_stopped: false,
        }
    }

    /// Takes in a delivery that may go: freshly accepted, or next of its lane.
    pub fn admit(&mut self, claim: Claim, gate: Gate, now: Timestamp) {
        let is_crowded = self.ready_bytes + cost(&claim) > READY_BYTES_MAX;
        let endpoint = claim.endpoint;
        let queue = self.endpoints.entry(endpoint).or_insert_with(|| Queue::new(gate));
        let waits_in_store = !queue.gate.passes(&claim, now)
            || is_crowded
            || queue.is_reading
            || queue.ready.len() >= READY_MAX
            || claim.due_at > now
            || queue.stored_due.is_some_and(|due_at| due_at <= now);
        if waits_in_store {
            queue.note_back(&claim);
        } else if queue.known.insert(claim.id) {
            self.ready_bytes += cost(&claim);
            queue.ready.push_back(claim);
        }
        self.arrange(endpoint);
    }

    /// The next claim to start, or nothing while none can.
    pub fn take_next(&mut self) -> Option<Claim> {
        if self.is_stopped || !self.has_room() {
            return None;
        }
        while let Some(endpoint) = self.turns.pop_front() {
            let Some(queue) = self.endpoints.get_mut(&endpoint) else { continue };
            queue.has_turn = false;
            let started = if queue.can_start() { start(queue) } else { None };
            if let Some(claim) = &started {
                self.ready_bytes -= cost(claim);
                self.flight_bytes += cost(claim);
                self.slots_free -= 1;
            }
            self.arrange(endpoint);
            if started.is_some() {
                return started;
            }
        }
        None
    }

    /// A request has been answered: its place under the cap is free.
    pub fn answered(&mut self, endpoint: EndpointId) {
        if let Some(queue) = self.endpoints.get_mut(&endpoint) {
            queue.sending = queue.sending.saturating_sub(1);
        }
        self.arrange(endpoint);
    }

    /// A claim is settled: its lane is free, and it may be due again.
    pub fn settled(&mut self, claim: &Claim, due_again_at: Option<Timestamp>) {
        self.slots_free += 1;
        self.flight_bytes -= cost(claim);
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
        if let Some(due_at) = due_again_at {
            queue.note_stored(due_at);
            // Put back, it is still what a person asked for, or what they asked
            // for while it was on its way.
            if claim.is_urgent || queue.gate.quiet_until.is_some() {
                queue.note_urgent(due_at);
            }
        }
        self.arrange(claim.endpoint);
    }

    /// A person changed a delivery: whatever is remembered of it is void, and
    /// something of its endpoint may be due at this time.
    pub fn changed(&mut self, endpoint: EndpointId, id: DeliveryId, due_at: Option<Timestamp>, gate: Gate) {
        let queue = self.endpoints.entry(endpoint).or_insert_with(|| Queue::new(gate));
        if !queue.in_flight.contains(&id) && queue.known.remove(&id) {
            let parked = queue.busy_lanes.values_mut();
            for list in parked.chain([&mut queue.ready]) {
                if let Some(at) = list.iter().position(|claim| claim.id == id) {
                    let claim = list.remove(at).expect("it was found there");
                    self.ready_bytes -= cost(&claim);
                }
            }
        }
        if queue.is_reading {
            queue.touched.insert(id);
        }
        if let Some(due_at) = due_at {
            queue.note_stored(due_at);
            queue.note_urgent(due_at);
        }
        self.arrange(endpoint);
    }

    /// The endpoint has something due in the store at this time.
    pub fn stored(&mut self, endpoint: EndpointId, due_at: Timestamp, gate: Gate) {
        let queue = self.endpoints.entry(endpoint).or_insert_with(|| Queue::new(gate));
        queue.note_stored(due_at);
        // Whether any of it is urgent is for the store to say.
        queue.note_urgent(due_at);
        self.arrange(endpoint);
    }

    /// The endpoint was paused, resumed, disabled, deleted or given another
    /// cap, or asked to be left alone.
    pub fn regate(&mut self, endpoint: EndpointId, gate: Gate, now: Timestamp) {
        let Some(queue) = self.endpoints.get_mut(&endpoint) else { return };
        queue.gate = gate;
        if !gate.is_open || gate.is_quiet(now) {
            // What has not started goes back to where it rests anyway.
            let mut dropped = Vec::new();
            for list in queue.busy_lanes.values_mut().chain([&mut queue.ready]) {
                let (kept, back): (VecDeque<_>, VecDeque<_>) =
                    list.drain(..).partition(|claim| gate.passes(claim, now));
                *list = kept;
                dropped.extend(back);
            }
            for claim in dropped {
                self.ready_bytes -= cost(&claim);
                queue.known.remove(&claim.id);
                queue.note_back(&claim);
            }
            // From now on these are looked for apart.
            queue.note_urgent(now);
        }
        self.arrange(endpoint);
    }

    /// The receiver asked for something about itself. It is in force before
    /// it is durable, so that nothing starts in between; [`Self::regate`]
    /// follows with what was written.
    pub fn hush(&mut self, endpoint: EndpointId, notice: &Notice, now: Timestamp) {
        let Some(queue) = self.endpoints.get(&endpoint) else { return };
        let gate = match notice {
            Notice::Disable(_) => Gate { is_open: false, ..queue.gate },
            Notice::QuietUntil(until) => Gate { quiet_until: queue.gate.quiet_until.max(Some(*until)), ..queue.gate },
        };
        self.regate(endpoint, gate, now);
    }

    /// Forgets what an endpoint that is no more had waiting.
    pub fn remove(&mut self, endpoint: EndpointId) {
        self.regate(endpoint, Gate::of(None), Timestamp::MIN);
        if let Some(queue) = self.endpoints.get_mut(&endpoint) {
            queue.stored_due = None;
            queue.urgent_due = None;
        }
        self.arrange(endpoint);
    }

    /// The endpoints whose stored deliveries should be read now.
    pub fn take_reads(&mut self, now: Timestamp) -> Vec<AskDue> {
        let mut asks = Vec::new();
        while let Some(&(at, endpoint)) = self.wakes.first() {
            if at > now || self.is_stopped {
                break;
            }
            self.wakes.pop_first();
            let Some(queue) = self.endpoints.get_mut(&endpoint) else { continue };
            queue.wake = None;
            queue.is_reading = true;
            let urgent_only = queue.gate.is_quiet(now);
            queue.urgent_due = None;
            queue.stored_due = None;
            asks.push(AskDue {
                endpoint,
                until: now,
                limit: queue.read_size(),
                bytes_max: READ_BYTES_MAX,
                except: queue.known.clone(),
                urgent_only,
            });
        }
        asks
    }

    /// A read has come back. Without a page it failed, and is tried again at
    /// the time given.
    pub fn read_done(&mut self, endpoint: EndpointId, page: Option<DuePage>, now: Timestamp, again_at: Timestamp) {
        let Some(queue) = self.endpoints.get_mut(&endpoint) else { return };
        queue.is_reading = false;
        let touched = std::mem::take(&mut queue.touched);
        let failed = || DuePage { next_due: Some(again_at), next_urgent: Some(again_at), ..DuePage::default() };
        let page = page.unwrap_or_else(failed);
        for claim in page.claims {
            if !queue.gate.passes(&claim, now) {
                queue.note_back(&claim);
            } else if !touched.contains(&claim.id) && queue.known.insert(claim.id) {
                self.ready_bytes += cost(&claim);
                queue.ready.push_back(claim);
            }
        }
        if let Some(due_at) = page.next_due {
            queue.note_stored(due_at);
        }
        if let Some(due_at) = page.next_urgent {
            queue.note_urgent(due_at);
        }
        self.arrange(endpoint);
    }

    /// When the store should be looked into next; never, once stopped.
    pub fn next_wake(&self) -> Option<Timestamp> {
        self.wakes.first().filter(|_| !self.is_stopped).map(|(at, _)| *at)
    }

    /// Sets the timer to the next wake; returns whether that is earlier than
    /// it was set to, so that whoever sleeps on it must be told.
    pub fn set_timer(&mut self) -> bool {
        let next = self.next_wake();
        let is_earlier = next.is_some_and(|at| self.timer.is_none_or(|set| at < set));
        self.timer = next;
        is_earlier
    }

    /// Whether a request for this delivery is open or being settled.
    pub fn is_in_flight(&self, endpoint: EndpointId, id: DeliveryId) -> bool {
        self.endpoints.get(&endpoint).is_some_and(|queue| queue.in_flight.contains(&id))
    }

    /// Whether whatever is due at an endpoint has to wait for a slot: its own
    /// cap is reached, others stand before it, or the node has no slot left.
    pub fn is_full(&self, endpoint: EndpointId) -> bool {
        let has_queue = |queue: &Queue| queue.sending >= queue.gate.cap || !queue.ready.is_empty();
        !self.has_room() || self.endpoints.get(&endpoint).is_some_and(has_queue)
    }

    /// Whether a lane's one slot is taken.
    pub fn is_lane_busy(&self, endpoint: EndpointId, lane: &str) -> bool {
        self.endpoints.get(&endpoint).is_some_and(|queue| queue.busy_lanes.contains_key(lane))
    }

    /// Starts nothing more.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// How many claims may be in flight.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// How many claims are in flight.
    pub fn in_flight(&self) -> usize {
        self.slots - self.slots_free
    }

    /// Whether the node may start one more.
    fn has_room(&self) -> bool {
        self.slots_free > 0 && self.flight_bytes < FLIGHT_BYTES_MAX
    }

    /// Gives the endpoint a turn if it can start something, plans its next
    /// read, and lets go of a queue with nothing left to do.
    fn arrange(&mut self, endpoint: EndpointId) {
        let Some(queue) = self.endpoints.get_mut(&endpoint) else { return };
        if queue.can_start() && !queue.has_turn {
            queue.has_turn = true;
            self.turns.push_back(endpoint);
        }
        let wake = queue.wake_at();
        if wake != queue.wake {
            if let Some(old) = queue.wake {
                self.wakes.remove(&(old, endpoint));
            }
            self.wakes.extend(wake.map(|at| (at, endpoint)));
            queue.wake = wake;
        }
        if queue.is_idle() {
            self.endpoints.remove(&endpoint);
        }
    }
}

/// Starts the first claim whose lane is free; the others park behind theirs.
fn start(queue: &mut Queue) -> Option<Claim> {
    while let Some(claim) = queue.ready.pop_front() {
        if let Some(lane) = &claim.lane {
            if let Some(parked) = queue.busy_lanes.get_mut(lane) {
                parked.push_back(claim);
                continue;
            }
            queue.busy_lanes.insert(lane.clone(), VecDeque::new());
        }
        queue.sending += 1;
        queue.in_flight.insert(claim.id);
        return Some(claim);
    }
    None
}

fn cost(claim: &Claim) -> usize {
    claim.event.data.len() + CLAIM_BYTES
}

#[cfg(test)]
mod tests;
