//! Counts what happens at endpoints, by window of five minutes.
//!
//! It is under the lock of the queues, so that counting needs none of its own.
//! An endpoint has counters only in windows in which something happened to it.
//!
//! Invariant: what is counted is in exactly one window, that of its time; a
//! window that is over is not changed any more.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::delivery::WaitingFor;
use crate::model::event::Event;
use crate::model::figure_time::{FigureGap, FigureSpan, WINDOW_MS, millis_later, span_beginning};
use crate::model::figures::{CountedEnd, CountedSettlement, HeldMs, WindowFigures};
use crate::model::id::{EndpointId, TenantId};
use crate::model::id_map::IdMap;
use crate::model::type_figures::{TypeCounts, TypeFigures};
use crate::store::figures::{FigureScope, StoredFigures};

/// Most windows that wait to be taken. Beyond it the oldest is dropped.
const CLOSED_MAX: usize = 3;

/// What holds the due deliveries of an endpoint back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldBy {
    /// The endpoint's breaker.
    Breaker,
    /// A pause, or its being disabled.
    Pause,
    /// The receiver, which asked for no requests for a while.
    Backpressure,
    /// The rate of the endpoint or of its tenant.
    Rate,
}

impl HeldBy {
    /// Returns what a blocker is counted as, if it is.
    pub fn of(blocker: WaitingFor) -> Option<Self> {
        match blocker {
            WaitingFor::Breaker => Some(Self::Breaker),
            WaitingFor::Pause | WaitingFor::Disabled => Some(Self::Pause),
            WaitingFor::Backpressure => Some(Self::Backpressure),
            WaitingFor::Rate => Some(Self::Rate),
            WaitingFor::Key | WaitingFor::Due | WaitingFor::Slot => None,
        }
    }

    fn add(self, held: &mut HeldMs, time: Duration) {
        let counter = match self {
            Self::Breaker => &mut held.breaker,
            Self::Pause => &mut held.pause,
            Self::Backpressure => &mut held.backpressure,
            Self::Rate => &mut held.rate,
        };
        *counter += u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    }
}

/// The counters of one endpoint.
#[derive(Debug, Default)]
pub struct EndpointCounters {
    /// Tenant of the endpoint.
    pub tenant: Option<TenantId>,
    /// Counts of the scope.
    pub figures: WindowFigures,
}

/// The counters of one tenant, beyond those of its endpoints.
#[derive(Debug, Default)]
pub struct TenantCounters {
    /// Events that were accepted.
    pub accepted: u64,
    /// Size of the data of these events.
    pub accepted_bytes: u64,
    /// What happened to deliveries by event type.
    pub types: TypeFigures,
}

/// Everything that was counted in one window.
#[derive(Debug)]
pub struct CountedWindow {
    /// Beginning of the window.
    pub at: Timestamp,
    /// Counters of the endpoints at which something happened.
    pub endpoints: IdMap<EndpointId, Box<EndpointCounters>>,
    /// Counters of the tenants to which something happened.
    pub tenants: IdMap<TenantId, Box<TenantCounters>>,
}

impl CountedWindow {
    fn beginning_at(at: Timestamp) -> Self {
        Self { at, endpoints: IdMap::default(), tenants: IdMap::default() }
    }

    fn endpoint(&mut self, endpoint: EndpointId, tenant: &TenantId) -> &mut WindowFigures {
        let counters = self.endpoints.entry(endpoint).or_default();
        if counters.tenant.is_none() {
            counters.tenant = Some(tenant.clone());
        }
        &mut counters.figures
    }

    fn tenant(&mut self, tenant: &TenantId) -> &mut TenantCounters {
        if !self.tenants.contains_key(tenant) {
            self.tenants.insert(tenant.clone(), Box::default());
        }
        self.tenants.get_mut(tenant).expect("a tenant that was just inserted")
    }
}

/// Builds the counts of a scope.
impl CountedWindow {
    fn of_scope(&self, scope: &FigureScope) -> StoredFigures {
        let (figures, types, failing) = Default::default();
        let mut found = StoredFigures { span: FigureSpan::Window, at: self.at, figures, types, failing };
        let is_in_scope = |tenant: &TenantId| match scope {
            FigureScope::Gateway => !tenant.is_system(),
            FigureScope::Tenant(one) | FigureScope::Endpoint(one, _) => tenant == one,
        };
        if let FigureScope::Endpoint(_, endpoint) = scope {
            let counters = self.endpoints.get(endpoint);
            found.figures = counters.map(|counters| counters.figures.clone()).unwrap_or_default();
            return found;
        }
        for (endpoint, counters) in &self.endpoints {
            if counters.tenant.as_ref().is_some_and(is_in_scope) {
                found.figures = found.figures.merged_with(&counters.figures);
                found.failing.count(*endpoint, counters.figures.failed_attempts());
            }
        }
        // An event counts once for its tenant, however many endpoints get it.
        (found.figures.accepted, found.figures.accepted_bytes) = (0, 0);
        for (_, counters) in self.tenants.iter().filter(|(tenant, _)| is_in_scope(tenant)) {
            found.figures.accepted += counters.accepted;
            found.figures.accepted_bytes += counters.accepted_bytes;
            found.types.add(&counters.types);
        }
        found
    }
}

/// The counters of this node.
#[derive(Debug)]
pub struct FigureCounters {
    open: CountedWindow,
    closes_at: Timestamp,
    closed: VecDeque<CountedWindow>,
    dropped: Option<FigureGap>,
    /// Endpoints that something holds back, since when it was last counted.
    held: IdMap<EndpointId, (TenantId, HeldBy, Timestamp)>,
    /// Tenants that were forgotten since somebody asked.
    forgotten: Vec<TenantId>,
}

impl FigureCounters {
    /// Begins to count at this time.
    pub fn new(now: Timestamp) -> Self {
        let at = span_beginning(now, WINDOW_MS);
        Self {
            open: CountedWindow::beginning_at(at),
            closes_at: millis_later(at, WINDOW_MS),
            closed: VecDeque::new(),
            dropped: None,
            held: IdMap::default(),
            forgotten: Vec::new(),
        }
    }

    /// Forgets what was counted of a tenant that is gone and not taken yet. Another one may
    /// get its id.
    pub fn forget(&mut self, tenant: &TenantId) {
        for window in self.closed.iter_mut().chain([&mut self.open]) {
            window.tenants.remove(tenant);
            window.endpoints.retain(|_, counters| counters.tenant.as_ref() != Some(tenant));
        }
        self.held.retain(|_, (of, ..)| of != tenant);
        self.forgotten.push(tenant.clone());
    }

    /// Returns the tenants that were forgotten since the last call, for whoever has taken
    /// windows.
    pub fn take_forgotten(&mut self) -> Vec<TenantId> {
        std::mem::take(&mut self.forgotten)
    }

    /// Counts events that a producer handed over and that are durable. The
    /// endpoints are those that get the event.
    pub fn count_accepted(&mut self, event: &Event, endpoints: &[EndpointId], now: Timestamp) {
        let window = self.open_window(now);
        let bytes = event.data.len() as u64;
        let tenant = window.tenant(&event.tenant);
        tenant.accepted += 1;
        tenant.accepted_bytes += bytes;
        for endpoint in endpoints {
            let figures = window.endpoint(*endpoint, &event.tenant);
            figures.accepted += 1;
            figures.accepted_bytes += bytes;
        }
    }

    /// Counts what is settled of a delivery of this event.
    pub fn count_settled(&mut self, endpoint: EndpointId, event: &Event, counted: &CountedSettlement, now: Timestamp) {
        if counted.attempt.is_none() && counted.end.is_none() {
            return;
        }
        let window = self.open_window(now);
        let mut of_type = TypeCounts::default();
        let figures = window.endpoint(endpoint, &event.tenant);
        if let Some(attempt) = &counted.attempt {
            figures.count_attempt(attempt);
            of_type.attempts = 1;
        }
        if let Some(end) = &counted.end {
            figures.count_end(end);
            match end {
                CountedEnd::Delivered { .. } => of_type.delivered = 1,
                CountedEnd::Dead { .. } => of_type.dead = 1,
            }
        }
        window.tenant(&event.tenant).types.count(&event.event_type, of_type);
    }

    /// Counts the end of a delivery of which no claim was held, so that its
    /// event is not known.
    pub fn count_ended(&mut self, endpoint: EndpointId, tenant: &TenantId, end: &CountedEnd, now: Timestamp) {
        self.open_window(now).endpoint(endpoint, tenant).count_end(end);
    }

    /// Counts deliveries of an endpoint that a person cancelled.
    pub fn count_cancelled(&mut self, endpoint: EndpointId, tenant: &TenantId, deliveries: u64, now: Timestamp) {
        self.open_window(now).endpoint(endpoint, tenant).cancelled += deliveries;
    }

    /// Notes what holds an endpoint back from now on, if anything.
    pub fn held_by(&mut self, endpoint: EndpointId, tenant: &TenantId, by: Option<HeldBy>, now: Timestamp) {
        // Closes the window first, so that the time before its end is in it.
        self.open_window(now);
        if let Some((tenant, by, since)) = self.held.remove(&endpoint) {
            let time = Duration::try_from(now.duration_since(since)).unwrap_or_default();
            by.add(&mut self.open.endpoint(endpoint, &tenant).held_ms, time);
        }
        if let Some(by) = by {
            self.held.insert(endpoint, (tenant.clone(), by, now));
        }
    }

    /// Returns the windows that are over, oldest first, and what was dropped.
    pub fn take_closed(&mut self, now: Timestamp) -> (Vec<CountedWindow>, Option<FigureGap>) {
        self.open_window(now);
        (std::mem::take(&mut self.closed).into(), self.dropped.take())
    }

    /// Returns what was counted in the open window so far, and counts anew.
    pub fn take_open(&mut self, now: Timestamp) -> CountedWindow {
        self.open_window(now);
        self.count_held_until(now);
        let next = CountedWindow::beginning_at(self.open.at);
        std::mem::replace(&mut self.open, next)
    }

    /// Returns what was counted of a scope and not taken yet, oldest window first.
    /// The last is the open window.
    pub fn not_taken(&mut self, scope: &FigureScope, now: Timestamp) -> Vec<StoredFigures> {
        self.open_window(now);
        self.count_held_until(now);
        self.closed.iter().chain([&self.open]).map(|window| window.of_scope(scope)).collect()
    }

    /// Returns the counters of the open window. A window that is over is closed
    /// first.
    fn open_window(&mut self, now: Timestamp) -> &mut CountedWindow {
        if now >= self.closes_at {
            self.close_window(now);
        }
        &mut self.open
    }

    fn close_window(&mut self, now: Timestamp) {
        // What is held is held over all windows in between; there is more than
        // one only after this process did not run for a while.
        self.count_held_until(self.closes_at);
        let at = span_beginning(now, WINDOW_MS);
        let closed = std::mem::replace(&mut self.open, CountedWindow::beginning_at(at));
        self.closes_at = millis_later(at, WINDOW_MS);
        self.closed.push_back(closed);
        for since in self.held.values_mut() {
            since.2 = at;
        }
        if self.closed.len() > CLOSED_MAX
            && let Some(lost) = self.closed.pop_front()
        {
            let gap = FigureGap { from: lost.at, to: millis_later(lost.at, WINDOW_MS) };
            self.dropped = Some(self.dropped.map_or(gap, |before| FigureGap { from: before.from, to: gap.to }));
        }
    }

    fn count_held_until(&mut self, until: Timestamp) {
        for (endpoint, (tenant, by, since)) in &mut self.held {
            let time = Duration::try_from(until.duration_since(*since)).unwrap_or_default();
            by.add(&mut self.open.endpoint(*endpoint, tenant).held_ms, time);
            *since = until.max(*since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::deliver::tests::claim;
    use crate::model::delivery::DeadCause;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_100 + seconds).unwrap()
    }

    fn ended(cause: DeadCause) -> CountedSettlement {
        CountedSettlement { attempt: None, end: Some(CountedEnd::Dead { cause, is_in_slo: true }) }
    }

    #[test]
    fn what_happens_at_the_boundary_is_in_the_window_of_its_time() {
        let (mut counters, claim) = (FigureCounters::new(at(0)), claim(b"{}"));
        for second in [0, 299, 300, 900] {
            counters.count_settled(claim.endpoint, &claim.event, &ended(DeadCause::Expired), at(second));
        }
        let (closed, dropped) = counters.take_closed(at(1_200));
        let dead = |window: &CountedWindow| window.endpoints[&claim.endpoint].figures.dead.iter().sum::<u64>();
        let found: Vec<_> = closed.iter().map(|window| (window.at, dead(window))).collect();
        assert_eq!((found, dropped), (vec![(at(0), 2), (at(300), 1), (at(900), 1)], None));
        assert!(counters.take_closed(at(1_200)).0.is_empty(), "each is taken once");
    }

    #[test]
    fn what_is_not_taken_is_shown_by_scope_and_stays_counted() {
        let (mut counters, claim) = (FigureCounters::new(at(0)), claim(b"{}"));
        let (tenant, other) = (&claim.event.tenant, EndpointId::mint(at(0), 99));
        counters.count_accepted(&claim.event, &[claim.endpoint, other], at(0));
        counters.count_settled(claim.endpoint, &claim.event, &ended(DeadCause::Expired), at(310));
        counters.held_by(other, tenant, Some(HeldBy::Pause), at(320));
        let scopes = [
            FigureScope::Gateway,
            FigureScope::Tenant(tenant.clone()),
            FigureScope::Endpoint(tenant.clone(), claim.endpoint),
            FigureScope::Tenant("another".parse().unwrap()),
        ];
        for _ in 0..2 {
            let found = scopes.each_ref().map(|scope| {
                let windows = counters.not_taken(scope, at(330));
                let of = |window: &StoredFigures| {
                    (window.figures.accepted, window.figures.dead.iter().sum(), window.figures.held_ms.pause)
                };
                windows.iter().map(of).collect::<Vec<(u64, u64, u64)>>()
            });
            let all = vec![(1, 0, 0), (0, 1, 10_000)];
            assert_eq!(found, [all.clone(), all, vec![(1, 0, 0), (0, 1, 0)], vec![(0, 0, 0), (0, 0, 0)]]);
        }
    }

    #[test]
    fn windows_that_nobody_takes_are_dropped_and_the_gap_is_told() {
        let (mut counters, claim) = (FigureCounters::new(at(0)), claim(b"{}"));
        for window in 0..6 {
            counters.count_accepted(&claim.event, &[claim.endpoint], at(300 * window));
        }
        let (closed, dropped) = counters.take_closed(at(1_800));
        assert_eq!(closed.iter().map(|window| window.at).collect::<Vec<_>>(), [at(900), at(1_200), at(1_500)]);
        assert_eq!(dropped, Some(FigureGap { from: at(0), to: at(900) }));
    }

    #[test]
    fn time_held_is_counted_in_each_window_that_it_lasts_through() {
        let (mut counters, claim) = (FigureCounters::new(at(0)), claim(b"{}"));
        let tenant = &claim.event.tenant;
        counters.held_by(claim.endpoint, tenant, Some(HeldBy::Breaker), at(100));
        counters.held_by(claim.endpoint, tenant, Some(HeldBy::Pause), at(310));
        let (closed, _) = counters.take_closed(at(320));
        assert_eq!(closed[0].endpoints[&claim.endpoint].figures.held_ms.breaker, 200_000);
        counters.held_by(claim.endpoint, tenant, None, at(330));
        let open = counters.take_open(at(340));
        let held = open.endpoints[&claim.endpoint].figures.held_ms;
        assert_eq!((held.breaker, held.pause), (10_000, 20_000));
        assert!(counters.take_open(at(350)).endpoints.is_empty(), "nothing holds it any more");
    }
}
