//! An inbox in memory, for tests and for effects that may be repeated after a
//! restart.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use super::decide::{Decision, Head, Known, LaneView, Place, decide, due_at, place, retry_at, waited};
use super::{
    BoxFuture, Common, HandlerError, HeadOutcome, Inbox, InboxError, InboxSettings, LaneName, Received, Round,
    WaitingEvents, unless_panic,
};
use crate::clock::{at_millis, millis};
use crate::counters::Counters;
use crate::event::Event;

/// Applies events, without a transaction.
pub trait Handler: Send + Sync + 'static {
    /// Applies an event. If it fails, the event is released and comes again.
    fn apply(&self, event: &Event, place: &Place) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// An inbox that forgets everything when the process ends.
///
/// The id is recorded after the handler has succeeded, so a crash between the
/// two lets the event be applied again. Use a database where that matters.
pub struct MemoryInbox<H> {
    handler: H,
    common: Common,
    state: Mutex<State>,
}

/// Tenant and id of an event.
type EventName = (String, String);

#[derive(Default)]
struct State {
    events: HashMap<EventName, Entry>,
    lanes: HashMap<LaneName, Lane>,
    /// Lanes in which something waits.
    waiting: HashSet<LaneName>,
}

struct Entry {
    state: EntryState,
    at: i64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum EntryState {
    InProgress,
    /// It was applied, or is stored.
    Taken,
    /// It was stored, and then refused by the handler.
    Refused,
}

#[derive(Default)]
struct Lane {
    applied: u64,
    is_busy: bool,
    /// By place, and by the order of arrival where two have the same.
    waiting: BTreeMap<(u64, u64), Waiting>,
    arrivals: u64,
    at: i64,
}

#[derive(Clone)]
struct Waiting {
    event: Event,
    head: Head,
}

/// The claim on an event and its lane while the handler works. Dropping it
/// releases both, as when the handler fails or the request is abandoned.
struct WorkClaim<'a> {
    state: &'a Mutex<State>,
    /// Event that is new; none if it is a stored one.
    event: Option<EventName>,
    lane: Option<LaneName>,
}

impl<H: Handler> MemoryInbox<H> {
    /// Creates an empty inbox.
    pub fn new(handler: H, settings: InboxSettings) -> Self {
        Self { handler, common: Common::new(settings), state: Mutex::default() }
    }

    /// Returns the handler of this inbox.
    pub fn handler(&self) -> &H {
        &self.handler
    }

    async fn take(&self, event: Event, now: i64) -> Result<Received, InboxError> {
        let name = (event.signed_tenant.clone(), event.id.clone());
        let lane = self.common.settings.lane(&event);
        let decision = self.decide_and_claim(&event, &name, lane.as_ref(), now);
        let place = match decision {
            Decision::Duplicate => return Ok(Received::Duplicate),
            Decision::InProgress => return Err(InboxError::InProgress),
            Decision::Overloaded => return Err(InboxError::Overloaded),
            Decision::Store => return Ok(Received::Stored),
            Decision::Apply(place) => place,
        };
        let claim = WorkClaim { state: &self.state, event: Some(name.clone()), lane: lane.clone() };
        let started = Instant::now();
        self.handler.apply(&event, &place).await.map_err(InboxError::Handler)?;
        self.common.count_applied(&place, started.elapsed());
        claim.commit(name, event.seq, EntryState::Taken, now);
        Ok(Received::Applied(place))
    }

    /// Decides about an event, and marks or stores it under the same lock.
    fn decide_and_claim(&self, event: &Event, name: &EventName, lane: Option<&LaneName>, now: i64) -> Decision {
        let mut state = lock(&self.state);
        let known = match state.events.get(name) {
            None => Known::New,
            Some(entry) if entry.state == EntryState::InProgress => Known::InProgress,
            Some(_) => Known::Seen,
        };
        let view = match lane.map(|lane| state.lanes.get(lane)) {
            None => LaneView::None,
            Some(None) => LaneView::Free { applied: 0, waiting: 0 },
            Some(Some(lane)) if lane.is_busy => LaneView::Busy { waiting: lane.waiting.len() as u64 },
            Some(Some(lane)) => LaneView::Free { applied: lane.applied, waiting: lane.waiting.len() as u64 },
        };
        let decision = decide(event.seq, known, view, self.common.settings.waiting_max.into());
        match &decision {
            Decision::Apply(_) => {
                state.events.insert(name.clone(), Entry { state: EntryState::InProgress, at: now });
                if let Some(lane) = lane {
                    state.lanes.entry(lane.clone()).or_default().is_busy = true;
                }
            }
            Decision::Store => {
                state.events.insert(name.clone(), Entry { state: EntryState::Taken, at: now });
                if let (Some(lane), Some(seq)) = (lane, event.seq) {
                    state.store(
                        lane,
                        Waiting { event: event.clone(), head: Head { seq, arrived_at: now, retry_at: 0, attempts: 0 } },
                    );
                }
            }
            Decision::Duplicate | Decision::InProgress | Decision::Overloaded => {}
        }
        decision
    }

    /// Returns the lanes whose heads may be applied now.
    fn due_lanes(&self, now: i64) -> Vec<LaneName> {
        let state = lock(&self.state);
        let is_due = |name: &&LaneName| state.lanes.get(*name).is_some_and(|lane| self.is_due(lane, now));
        state.waiting.iter().filter(is_due).cloned().collect()
    }

    fn is_due(&self, lane: &Lane, now: i64) -> bool {
        let head = lane.waiting.first_key_value().map(|(_, first)| first.head);
        let gap_timeout = self.common.settings.gap_timeout;
        !lane.is_busy && head.is_some_and(|head| due_at(lane.applied, &head, gap_timeout) <= now)
    }

    /// Claims a lane if its head may still be applied.
    fn claim_head(&self, name: &LaneName, now: i64) -> Option<(WorkClaim<'_>, Waiting, Place)> {
        let mut state = lock(&self.state);
        let lane = state.lanes.get_mut(name).filter(|lane| self.is_due(lane, now))?;
        let (_, first) = lane.waiting.first_key_value()?;
        lane.is_busy = true;
        let claim = WorkClaim { state: &self.state, event: None, lane: Some(name.clone()) };
        Some((claim, first.clone(), place(lane.applied, first.head.seq)))
    }

    async fn apply_head(
        &self,
        lane: &LaneName,
        claim: WorkClaim<'_>,
        waiting: Waiting,
        place: &Place,
        now: i64,
    ) -> HeadOutcome {
        let (started, Waiting { event, head }) = (Instant::now(), waiting);
        let state = match unless_panic(async { self.handler.apply(&event, place).await }).await {
            Ok(()) => {
                self.common.count_applied(place, waited(&head, now) + started.elapsed());
                EntryState::Taken
            }
            Err(HandlerError::Refuse(_)) => {
                Counters::add(&self.common.counters.refused, 1);
                EntryState::Refused
            }
            Err(HandlerError::Retry(_)) => {
                Counters::add(&self.common.counters.handler_failures, 1);
                lock(&self.state).postpone(lane, now);
                return HeadOutcome::Failed;
            }
        };
        lock(&self.state).take_first(lane);
        claim.commit((event.signed_tenant, event.id), Some(head.seq), state, now);
        HeadOutcome::Passed
    }

    fn next_at(&self) -> Option<SystemTime> {
        let state = lock(&self.state);
        let lanes = state.waiting.iter().filter_map(|name| state.lanes.get(name)).filter(|lane| !lane.is_busy);
        let heads = lanes.filter_map(|lane| Some((lane.applied, lane.waiting.first_key_value()?.1.head)));
        heads.map(|(applied, head)| due_at(applied, &head, self.common.settings.gap_timeout)).min().map(at_millis)
    }
}

impl State {
    fn store(&mut self, name: &LaneName, waiting: Waiting) {
        let lane = self.lanes.entry(name.clone()).or_default();
        lane.arrivals += 1;
        lane.at = lane.at.max(waiting.head.arrived_at);
        lane.waiting.insert((waiting.head.seq, lane.arrivals), waiting);
        self.waiting.insert(name.clone());
    }

    fn take_first(&mut self, name: &LaneName) {
        let Some(lane) = self.lanes.get_mut(name) else { return };
        lane.waiting.pop_first();
        if lane.waiting.is_empty() {
            self.waiting.remove(name);
        }
    }

    /// Lets the head of a lane wait after its handler failed.
    fn postpone(&mut self, name: &LaneName, now: i64) {
        let first = self.lanes.get_mut(name).and_then(|lane| lane.waiting.first_entry());
        if let Some(mut first) = first {
            let head = &mut first.get_mut().head;
            head.attempts += 1;
            head.retry_at = retry_at(now, head.attempts);
        }
    }
}

impl WorkClaim<'_> {
    /// Records what became of the event, and moves its lane on.
    fn commit(mut self, event: EventName, seq: Option<u64>, became: EntryState, now: i64) {
        let mut state = lock(self.state);
        state.events.insert(event, Entry { state: became, at: now });
        if let (Some(lane), Some(seq)) = (self.lane.as_ref().and_then(|lane| state.lanes.get_mut(lane)), seq) {
            lane.applied = lane.applied.max(seq);
            lane.at = now;
        }
        // The event stays; only the lane is released.
        self.event = None;
    }
}

impl Drop for WorkClaim<'_> {
    fn drop(&mut self) {
        let mut state = lock(self.state);
        if let Some(event) = &self.event {
            state.events.remove(event);
        }
        if let Some(lane) = self.lane.as_ref().and_then(|lane| state.lanes.get_mut(lane)) {
            lane.is_busy = false;
        }
    }
}

/// Nothing panics while the lock is held, so what it guards is whole.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<H: Handler> Inbox for MemoryInbox<H> {
    fn receive(&self, event: Event, now: SystemTime) -> BoxFuture<'_, Result<Received, InboxError>> {
        Box::pin(async move {
            let result = self.take(event, millis(now)).await;
            self.common.count(&result);
            self.common.changed.notify_one();
            result
        })
    }

    fn apply_due(&self, now: SystemTime) -> BoxFuture<'_, Result<Round, InboxError>> {
        Box::pin(async move {
            let (mut round, now) = (Round::default(), millis(now));
            loop {
                let due = self.due_lanes(now);
                if due.is_empty() {
                    break;
                }
                for lane in due {
                    round.add(match self.claim_head(&lane, now) {
                        Some((claim, waiting, place)) => self.apply_head(&lane, claim, waiting, &place, now).await,
                        None => HeadOutcome::Elsewhere,
                    });
                }
            }
            round.next_at = self.next_at();
            Ok(round)
        })
    }

    fn forget(&self, now: SystemTime) -> BoxFuture<'_, Result<u64, InboxError>> {
        let oldest = self.common.oldest_kept(millis(now));
        let mut state = lock(&self.state);
        let before = state.events.len() + state.lanes.len();
        let State { events, lanes, .. } = &mut *state;
        let waiting: HashSet<(&str, &str)> = lanes
            .values()
            .flat_map(|lane| lane.waiting.values())
            .map(|waiting| (waiting.event.signed_tenant.as_str(), waiting.event.id.as_str()))
            .collect();
        events.retain(|(tenant, id), entry| {
            entry.state == EntryState::InProgress
                || entry.at >= oldest
                || waiting.contains(&(tenant.as_str(), id.as_str()))
        });
        lanes.retain(|_, lane| lane.is_busy || lane.at >= oldest || !lane.waiting.is_empty());
        let forgotten = before - state.events.len() - state.lanes.len();
        Box::pin(async move { Ok(forgotten as u64) })
    }

    fn waiting(&self, now: SystemTime) -> BoxFuture<'_, Result<WaitingEvents, InboxError>> {
        let state = lock(&self.state);
        let lanes = state.waiting.iter().filter_map(|name| state.lanes.get(name));
        let arrivals: Vec<i64> = lanes.flat_map(|lane| lane.waiting.values()).map(|one| one.head.arrived_at).collect();
        let waiting = WaitingEvents::since(arrivals.len() as u64, arrivals.iter().min().copied(), millis(now));
        Box::pin(async move { Ok(waiting) })
    }

    fn release<'a>(&'a self, tenant: &'a str, id: &'a str) -> BoxFuture<'a, Result<bool, InboxError>> {
        let (mut state, name) = (lock(&self.state), (tenant.to_owned(), id.to_owned()));
        let is_refused = state.events.get(&name).is_some_and(|entry| entry.state == EntryState::Refused);
        if is_refused {
            state.events.remove(&name);
        }
        Box::pin(async move { Ok(is_refused) })
    }

    fn counters(&self) -> &Counters {
        &self.common.counters
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.common.changed.notified())
    }
}
