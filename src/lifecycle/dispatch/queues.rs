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
use crate::store::{AskDue, Claim, DuePage};

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
    /// Whether the store may have something that a person asked for.
    has_urgent: bool,
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
            // A restart does not know; looking once is cheap.
            has_urgent: gate.quiet_until.is_some(),
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
        self.known.is_empty() && self.stored_due.is_none() && !self.is_reading && !self.has_turn
    }

    /// When to look into the store.
    fn wake_at(&self) -> Option<Timestamp> {
        let may_read = self.gate.is_open && !self.is_reading && self.is_low();
        let due_at = self.stored_due.filter(|_| may_read)?;
        match self.gate.quiet_until {
            Some(until) if !self.has_urgent => Some(due_at.max(until)),
            _ => Some(due_at),
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
            queue.has_urgent |= claim.is_urgent;
            queue.note_stored(claim.due_at);
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
        }
        self.arrange(claim.endpoint);
    }

    /// A person changed a delivery: whatever is remembered of it is void, and
    /// something of its endpoint may be due at this time.
    pub fn changed(
        &mut self,
        endpoint: EndpointId,
        id: DeliveryId,
        due_at: Option<Timestamp>,
        is_urgent: bool,
        gate: Gate,
    ) {
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
        queue.has_urgent |= is_urgent;
        if let Some(due_at) = due_at {
            queue.note_stored(due_at);
        }
        self.arrange(endpoint);
    }

    /// The endpoint has something due in the store at this time.
    pub fn stored(&mut self, endpoint: EndpointId, due_at: Timestamp, gate: Gate) {
        let queue = self.endpoints.entry(endpoint).or_insert_with(|| Queue::new(gate));
        queue.note_stored(due_at);
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
                queue.has_urgent |= claim.is_urgent;
                queue.note_stored(claim.due_at);
            }
        }
        self.arrange(endpoint);
    }

    /// Forgets what an endpoint that is no more had waiting.
    pub fn remove(&mut self, endpoint: EndpointId) {
        self.regate(endpoint, Gate::of(None), Timestamp::MIN);
        if let Some(queue) = self.endpoints.get_mut(&endpoint) {
            queue.stored_due = None;
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
            queue.has_urgent = false;
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
        // What the failed read was for is not known any more.
        queue.has_urgent |= page.is_none();
        let page = page.unwrap_or_else(|| DuePage { claims: Vec::new(), next_due: Some(again_at) });
        for claim in page.claims {
            if !queue.gate.passes(&claim, now) {
                queue.has_urgent |= claim.is_urgent;
                queue.note_stored(claim.due_at);
            } else if !touched.contains(&claim.id) && queue.known.insert(claim.id) {
                self.ready_bytes += cost(&claim);
                queue.ready.push_back(claim);
            }
        }
        if let Some(due_at) = page.next_due {
            queue.note_stored(due_at);
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
mod tests {
    use super::*;
    use crate::lifecycle::deliver::tests::claim as any_claim;

    const OPEN: Gate = Gate { is_open: true, cap: 2, quiet_until: None };
    const CLOSED: Gate = Gate { is_open: false, cap: 2, quiet_until: None };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn endpoint(n: u128) -> EndpointId {
        EndpointId::mint(at(0), n)
    }

    fn claim(of: EndpointId, n: u128, lane: Option<&str>) -> Claim {
        let id = DeliveryId::mint(at(0), n);
        Claim { id, endpoint: of, lane: lane.map(Arc::from), due_at: at(0), ..any_claim(b"{}") }
    }

    fn page(claims: Vec<Claim>, next_due: Option<Timestamp>) -> Option<DuePage> {
        Some(DuePage { claims, next_due })
    }

    #[test]
    fn the_cap_holds_and_frees_with_the_answer() {
        let (mut queues, a) = (Queues::new(100), endpoint(1));
        for n in 0..3 {
            queues.admit(claim(a, n, None), OPEN, at(0));
        }
        let first = queues.take_next().unwrap();
        assert!(queues.take_next().is_some());
        assert!(queues.take_next().is_none(), "the cap is 2");
        queues.answered(a);
        assert!(queues.take_next().is_some());
        assert!(queues.is_in_flight(a, first.id), "answered, but not settled yet");
        queues.settled(&first, None);
        assert!(!queues.is_in_flight(a, first.id));
    }

    #[test]
    fn a_stuck_endpoint_is_in_nobodys_way() {
        let (mut queues, stuck, free) = (Queues::new(100), endpoint(1), endpoint(2));
        for n in 0..50 {
            queues.admit(claim(stuck, n, None), OPEN, at(0));
        }
        queues.admit(claim(free, 100, None), OPEN, at(0));
        let started: Vec<EndpointId> = std::iter::from_fn(|| queues.take_next()).map(|claim| claim.endpoint).collect();
        assert_eq!(started.iter().filter(|id| **id == stuck).count(), 2);
        assert!(started.contains(&free));
    }

    #[test]
    fn a_lane_has_one_in_flight_and_others_park_behind_it() {
        let (mut queues, a) = (Queues::new(100), endpoint(1));
        queues.admit(claim(a, 1, Some("k")), OPEN, at(0));
        queues.admit(claim(a, 2, Some("k")), OPEN, at(0));
        queues.admit(claim(a, 3, Some("j")), OPEN, at(0));
        let first = queues.take_next().unwrap();
        assert_eq!(queues.take_next().unwrap().lane.as_deref(), Some("j"));
        queues.answered(a);
        assert!(queues.take_next().is_none(), "answered is not settled: the lane is still taken");
        queues.settled(&first, None);
        assert_eq!(queues.take_next().unwrap().id, DeliveryId::mint(at(0), 2));
    }

    #[test]
    fn what_does_not_fit_in_memory_is_read_from_the_store_later() {
        let (mut queues, a) = (Queues::new(10_000), endpoint(1));
        for n in 0..READY_MAX as u128 + 10 {
            queues.admit(claim(a, n, None), OPEN, at(0));
        }
        assert!(queues.take_reads(at(0)).is_empty(), "there is enough in memory");
        let mut started = Vec::new();
        while let Some(claim) = queues.take_next() {
            queues.answered(a);
            queues.settled(&claim, None);
            started.push(claim.id);
        }
        assert_eq!(started.len(), READY_MAX);
        let asks = queues.take_reads(at(0));
        assert_eq!(asks.len(), 1);
        let rest = (0..10).map(|n| claim(a, READY_MAX as u128 + n, None)).collect();
        queues.read_done(a, page(rest, None), at(0), at(1));
        assert!(queues.take_next().is_some());
        assert!(queues.take_reads(at(0)).is_empty());
    }

    #[test]
    fn a_read_never_brings_back_what_was_settled_meanwhile() {
        let (mut queues, a) = (Queues::new(100), endpoint(1));
        queues.stored(a, at(0), OPEN);
        assert_eq!(queues.take_reads(at(0)).len(), 1);
        queues.read_done(a, page(vec![claim(a, 1, None)], Some(at(0))), at(0), at(1));
        let first = queues.take_next().unwrap();
        // A second read begins while the first claim is in flight, and its
        // answer was put together before that claim was settled.
        let asks = queues.take_reads(at(0));
        assert!(asks[0].except.contains(&first.id));
        queues.answered(a);
        queues.settled(&first, None);
        queues.read_done(a, page(vec![claim(a, 1, None)], None), at(0), at(1));
        assert!(queues.take_next().is_none());
    }

    #[test]
    fn a_cancelled_delivery_is_not_started() {
        let (mut queues, a) = (Queues::new(100), endpoint(1));
        let waiting = claim(a, 1, None);
        queues.admit(waiting.clone(), OPEN, at(0));
        queues.changed(a, waiting.id, None, false, OPEN);
        assert!(queues.take_next().is_none());
        assert!(queues.endpoints.is_empty(), "nothing is left behind");
        assert_eq!(queues.ready_bytes, 0);
    }

    #[test]
    fn a_pause_holds_and_a_resume_reads_again() {
        let (mut queues, a) = (Queues::new(100), endpoint(1));
        queues.admit(claim(a, 1, None), OPEN, at(0));
        queues.regate(a, CLOSED, at(0));
        queues.admit(claim(a, 2, None), CLOSED, at(0));
        assert!(queues.take_next().is_none());
        assert!(queues.take_reads(at(9)).is_empty());
        queues.regate(a, OPEN, at(9));
        assert_eq!(queues.take_reads(at(9)).len(), 1);
    }

    #[test]
    fn a_retry_wakes_at_its_time_and_not_before() {
        let (mut queues, a) = (Queues::new(100), endpoint(1));
        queues.admit(claim(a, 1, None), OPEN, at(0));
        let claim = queues.take_next().unwrap();
        queues.answered(a);
        queues.settled(&claim, Some(at(30)));
        assert_eq!(queues.next_wake(), Some(at(30)));
        assert!(queues.set_timer(), "the timer was not set at all");
        assert!(!queues.set_timer(), "nothing is earlier than what is waited for already");
        assert!(queues.take_reads(at(29)).is_empty());
        assert_eq!(queues.take_reads(at(30)).len(), 1);
    }

    #[test]
    fn once_stopped_nothing_starts_and_nothing_wakes() {
        let (mut queues, a) = (Queues::new(100), endpoint(1));
        queues.admit(claim(a, 1, None), OPEN, at(0));
        queues.stored(endpoint(2), at(0), OPEN);
        queues.stop();
        assert!(queues.take_next().is_none());
        assert!(queues.take_reads(at(9)).is_empty());
        assert_eq!(queues.next_wake(), None, "a wake in the past would be waited for in a circle");
    }

    #[test]
    fn slots_bound_everything_in_flight() {
        let mut queues = Queues::new(3);
        for n in 0..10 {
            queues.admit(claim(endpoint(n), n, None), OPEN, at(0));
        }
        let started: Vec<Claim> = std::iter::from_fn(|| queues.take_next()).collect();
        assert_eq!((started.len(), queues.in_flight()), (3, 3));
        queues.answered(started[0].endpoint);
        assert!(queues.take_next().is_none(), "a slot is held until the claim is settled");
        queues.settled(&started[0], None);
        assert!(queues.take_next().is_some());
    }
}
