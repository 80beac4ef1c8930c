//! Starts attempts when they are due, within every limit.
//!
//! The deciding is in [`queues`]; this holds the lock, reads the store when
//! the queues ask for it, and runs each attempt as a task of its own. Idle,
//! it sleeps until the next due time.

use parking_lot::{Mutex, MutexGuard};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Notify;
use tracing::warn;

use self::cpu_pressure::{CpuPressure, CpuPressureGauge};
use self::gate::{EndpointGate, LeaseTerms};
use self::limits::NodeLimits;
use self::observe::{is_backpressure, log_endpoint_update};
use self::queues::EndpointQueues;
use self::shard_ownership::ShardOwnership;
use super::catch_panic::catch_panic;
use super::deliver::attempt::{AttemptResult, ClaimResult, attempt};
use super::deliver::lease_guard::{time_left, time_needed};
use super::deliver::settle::{ClaimEnd, put_back_after_internal_error, settle};
use super::deliver::{DeliveryContext, PUT_BACK_SECONDS};
use crate::metrics::WaitReason;
use crate::model::delivery::time_after;
use crate::model::event::Event;
use crate::model::id::{DeliveryId, EndpointId, TenantId};
use crate::model::shard::Lease;
use crate::store::{Claim, ClaimOutcome, DueQuery, EndpointUpdate, Error, SettleEffects};

pub mod accept_pacing;
mod arrivals;
pub mod arrived_reads;
pub mod cpu_pressure;
pub mod cpu_throttle;
pub mod fair_scheduler;
pub mod figure_counters;
mod figures;
pub mod gate;
pub mod lag;
pub mod limits;
pub mod observe;
pub mod queue;
pub mod queues;
pub mod quiet_tenants;
pub mod receiver_speed;
mod shard_moves;
pub mod shard_ownership;
mod state;

/// Time that aborted attempts have to end.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);
/// Seconds after which a failed read of a shared store is repeated. The store
/// is away now and then, and due deliveries should not wait for long once it is
/// back.
const READ_AGAIN_SECONDS: Range<f64> = 0.5..5.0;

/// Starts attempts when they are due. Cheap to clone.
#[derive(Clone)]
pub struct Dispatcher {
    shared: Arc<DispatcherState>,
}

struct DispatcherState {
    queues: Mutex<EndpointQueues>,
    /// Shards of this node. Locked after the queues, never before.
    ownership: Mutex<ShardOwnership>,
    /// Whether there are no other nodes, and never will be.
    is_alone: bool,
    limits: NodeLimits,
    context: Arc<DeliveryContext>,
    /// Something is due earlier than the timer thinks, or it is time to stop.
    wake: Notify,
    /// Measures how much the machine's processors are in demand.
    pressure_gauge: Mutex<CpuPressureGauge>,
    /// A claim was settled.
    claim_ended: Notify,
}

impl Dispatcher {
    /// Makes a dispatcher that has not looked into the store yet.
    pub fn new(context: Arc<DeliveryContext>, limits: NodeLimits) -> Self {
        let is_alone = context.store.lease_length().is_none();
        let ownership = if is_alone { ShardOwnership::all() } else { ShardOwnership::none() };
        let shared = DispatcherState {
            queues: Mutex::new(EndpointQueues::new(limits, context.clock.now())),
            ownership: Mutex::new(ownership),
            is_alone,
            limits,
            context,
            wake: Notify::new(),
            pressure_gauge: Mutex::new(CpuPressureGauge::new()),
            claim_ended: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Learns from the store what is waiting, then pumps whenever something may start,
    /// until stopped.
    /// One of many nodes learns what is waiting with every shard it gains.
    pub async fn run(&self) -> crate::store::Result<()> {
        if self.shared.is_alone {
            for (endpoint, due_at) in self.shared.context.store.earliest_due().await? {
                self.queues().due_in_store(endpoint, due_at, self.now(), || self.gate(endpoint));
            }
        }
        let mut lease_at = None;
        loop {
            let woken = self.shared.wake.notified();
            let now = self.now();
            self.retry_lease(lease_at, now);
            self.pump();
            lease_at = self.next_lease_retry(lease_at, now);
            let next = self.queues().next_wake();
            match next.into_iter().chain(lease_at).min() {
                Some(at) => tokio::select! {
                    () = woken => {}
                    () = self.shared.context.clock.sleep_until(at) => {}
                },
                None => woken.await,
            }
        }
    }

    /// Counts an event that is durable, for the endpoints that get it, and takes
    /// in its deliveries that may go at once.
    pub fn admit_new(&self, event: &Event, endpoints: &[EndpointId], claims: Vec<Claim>) {
        let has_claims = !claims.is_empty();
        {
            let (now, mut queues) = (self.now(), self.queues());
            queues.figures.count_accepted(event, endpoints, now);
            self.enqueue_owned(&mut queues, claims, event.accepted_at, now);
        }
        if has_claims {
            self.pump();
        }
    }

    /// Takes in deliveries that may go at once, and were written at some time: they are
    /// read from the store, in case a read has brought them already.
    pub fn admit(&self, claims: Vec<Claim>) {
        self.admit_since(claims, Timestamp::MIN);
    }

    /// Takes in deliveries that may go at once, and were written after `since`.
    pub fn admit_since(&self, claims: Vec<Claim>, since: Timestamp) {
        if claims.is_empty() {
            return;
        }
        self.enqueue_owned(&mut self.queues(), claims, since, self.now());
        self.pump();
    }

    fn enqueue_owned(&self, queues: &mut EndpointQueues, claims: Vec<Claim>, since: Timestamp, now: Timestamp) {
        for claim in claims {
            let endpoint = claim.endpoint;
            if self.is_ours(&claim.event.tenant, endpoint, claim.due_at) {
                queues.admit(claim, since, now, || self.gate(endpoint));
            }
        }
    }

    /// Records that the store has something due for an endpoint at this time.
    pub fn due_in_store(&self, endpoint: EndpointId, due_at: Timestamp) {
        {
            let mut queues = self.queues();
            if self.is_own_endpoint(endpoint, due_at) {
                queues.due_in_store(endpoint, due_at, self.now(), || self.gate(endpoint));
            }
        }
        self.pump();
    }

    /// A delivery was changed by other hands than an attempt's.
    pub fn delivery_changed(&self, endpoint: EndpointId, id: DeliveryId, due_at: Option<Timestamp>) {
        self.deliveries_changed(endpoint, &[(id, due_at)]);
    }

    /// Deliveries of an endpoint were changed so: their ids, and when each is due.
    pub fn deliveries_changed(&self, endpoint: EndpointId, changed: &[(DeliveryId, Option<Timestamp>)]) {
        {
            let (now, mut queues) = (self.now(), self.queues());
            for (id, due_at) in changed {
                if self.is_own_endpoint(endpoint, due_at.unwrap_or(now)) {
                    queues.changed(endpoint, *id, *due_at, now, || self.gate(endpoint));
                }
            }
        }
        self.pump();
    }

    /// An endpoint was changed, paused, resumed or deleted.
    pub fn endpoint_changed(&self, endpoint: EndpointId) {
        {
            let now = self.now();
            let mut queues = self.queues();
            let is_known = self.shared.context.store.any_endpoint(endpoint).is_some();
            let is_ours = is_known && self.is_own_endpoint(endpoint, now);
            match self.gate(endpoint) {
                Some(_) if !is_ours => {}
                Some(gate) => {
                    queues.update_gate(endpoint, gate.clone(), now);
                    // A change may have freed something, such as a blocked lane.
                    queues.due_in_store(endpoint, now, now, || Some(gate));
                }
                None => queues.remove(endpoint, now),
            }
        }
        self.pump();
    }

    /// A tenant's weight, rate or ceiling was changed.
    pub fn tenant_changed(&self, tenant: &TenantId) {
        if let Some(known) = self.shared.context.store.tenant(tenant) {
            let mut queues = self.queues();
            self.count_owned_fraction(tenant);
            queues.change_quota(tenant, self.quota_here(tenant, known.quota), self.now());
            for endpoint in queues.endpoints_of_tenant(tenant) {
                if let Some(gate) = self.gate(endpoint) {
                    queues.update_gate(endpoint, gate, self.now());
                }
            }
            drop(queues);
            self.pump();
        }
    }

    /// Starts nothing more, and waits for what is in flight. Returns how many
    /// were still in flight at the deadline.
    pub async fn stop(&self, deadline: Duration) -> usize {
        self.queues().stop();
        let _ = tokio::time::timeout(deadline, self.all_settled()).await;
        let left = self.queues().in_flight();
        if left > 0 && !self.shared.is_alone {
            // Others begin with them as soon as they may, so they end here.
            self.drop_in_flight();
            let _ = tokio::time::timeout(ABORT_TIMEOUT, self.all_settled()).await;
        }
        left
    }

    async fn all_settled(&self) {
        loop {
            let claim_ended = self.shared.claim_ended.notified();
            if self.queues().in_flight() == 0 {
                return;
            }
            claim_ended.await;
        }
    }

    fn queues(&self) -> MutexGuard<'_, EndpointQueues> {
        self.shared.queues.lock()
    }

    fn now(&self) -> Timestamp {
        self.shared.context.clock.now()
    }

    /// Returns what an endpoint allows. Called with the queues locked: a change that
    /// comes in between would otherwise be overwritten by what was before it,
    /// and a resumed endpoint could be left with a closed queue.
    fn gate(&self, endpoint: EndpointId) -> Option<EndpointGate> {
        let store = &self.shared.context.store;
        let endpoint = store.any_endpoint(endpoint)?;
        let quota = self.quota_here(&endpoint.tenant, store.tenant(&endpoint.tenant)?.quota);
        let host = self.shared.limits.per_host.and_then(|_| host_of(&endpoint.settings.url));
        let lease = store.lease(&endpoint.tenant, endpoint.id);
        let since = self.ownership().gained_at(lease.shard);
        let needed = time_needed(endpoint.timeout().total.0, store.lease_length());
        Some(EndpointGate::of(&endpoint, quota, host, LeaseTerms { lease, since, needed }))
    }

    /// Starts whatever can start and reads whatever should be read.
    fn pump(&self) {
        let now = self.now();
        let (claims, asks) = {
            let store = &self.shared.context.store;
            let lease_left = time_left(store.leased_until());
            let mut queues = self.queues();
            if let Some((pressure, seconds)) = self.pressure() {
                queues.cpu_pressure(pressure, seconds);
            }
            let mut asks = queues.poll_due(now);
            let waited_for_lease = queues.waits_for_lease();
            let take_next = || queues.take_next(now, lease_left, || store.weight_in_use());
            let claims: Vec<(Claim, Lease)> = std::iter::from_fn(take_next).collect();
            asks.extend(queues.poll_due(now));
            let asks: Vec<_> = asks.into_iter().filter_map(|ask| Some((queues.lease(ask.endpoint)?, ask))).collect();
            let waits = queues.take_waits();
            let metrics = self.shared.context.notifier.metrics();
            metrics.count_waits(WaitReason::Rate, waits.rate);
            metrics.count_waits(WaitReason::Share, waits.share);
            let waits_for_lease = queues.waits_for_lease() && !waited_for_lease;
            if queues.set_timer() || waits_for_lease {
                self.shared.wake.notify_one();
            }
            (claims, asks)
        };
        for (claim, lease) in claims {
            // In a box: the runtime moves a new task several times, and this one is large.
            tokio::spawn(Box::pin(self.clone().run_claim(claim, lease)));
        }
        for (lease, ask) in asks {
            tokio::spawn(self.clone().read_due(lease, ask));
        }
    }

    /// Returns the processor pressure since the last reading and the seconds
    /// since then, if a while has passed.
    fn pressure(&self) -> Option<(CpuPressure, f64)> {
        self.shared.pressure_gauge.try_lock()?.read()
    }

    /// Makes an attempt as a task of its own, and settles it.
    async fn run_claim(self, claim: Claim, lease: Lease) {
        let mut in_flight = InFlightGuard::new(self.clone(), claim.clone());
        let end = match catch_panic(self.attempt_and_settle(&mut in_flight, &claim, lease)).await {
            Ok(end) => end,
            // The receiver is not charged for a panic, nor asked again at once.
            Err(panic) => put_back_after_internal_error(&self.shared.context, &claim, lease, panic).await,
        };
        in_flight.end_claim(end);
    }

    async fn attempt_and_settle(&self, in_flight: &mut InFlightGuard, claim: &Claim, lease: Lease) -> ClaimEnd {
        let context = &self.shared.context;
        let (mut outcome, result) = match attempt(context, claim, lease).await {
            ClaimResult::Outcome(outcome, result) => (outcome, result),
            ClaimResult::Deleted => return ClaimEnd::nothing(),
            ClaimResult::Closed => {
                let due_again_at = Some(claim.due_at);
                let effects = SettleEffects { due_again_at, is_void: true, ..SettleEffects::default() };
                return ClaimEnd::without_outcome(effects);
            }
            ClaimResult::Unsent { due_at } => return ClaimEnd::Unsent { due_at },
            ClaimResult::Stale => return ClaimEnd::Stale,
        };
        // What the answer means for the endpoint is in force from here on, and
        // is written with the attempt.
        let change = in_flight.apply_attempt_result(result);
        if let ClaimOutcome::Attempted { update, .. } = &mut outcome {
            *update = change;
        }
        settle(context, claim, lease, outcome).await
    }

    async fn read_due(self, lease: Lease, ask: DueQuery) {
        let endpoint = ask.endpoint;
        let store = &self.shared.context.store;
        let page = match store.any_endpoint(endpoint) {
            None => Ok(Default::default()),
            Some(_) => store.read_due(lease, ask).await,
        };
        let delay = if self.shared.is_alone { PUT_BACK_SECONDS } else { READ_AGAIN_SECONDS };
        let again_at = time_after(self.now(), self.shared.context.drawn_from(delay));
        let now = self.now();
        {
            let mut queues = self.queues();
            match page {
                _ if queues.lease(endpoint) != Some(lease) => queues.discard_read(endpoint, now),
                Ok(page) => {
                    let has_more = page.next_due.is_some_and(|due_at| due_at <= now);
                    let waiting = store.waiting(Some(endpoint)).filter(|_| has_more).unwrap_or(0);
                    queues.due_at_gain(endpoint, page.claims.len().max(waiting as usize), now);
                    queues.read_done(endpoint, Some(page), now, again_at);
                }
                Err(Error::Stale(_)) => {
                    // The shard is lost, and perhaps already ours again; neither was reported here yet.
                    self.is_own_endpoint(endpoint, now);
                    queues.read_done(endpoint, Some(Default::default()), now, again_at);
                }
                Err(problem) => {
                    warn!(endpoint.id = %endpoint, "due deliveries of the endpoint could not be read, and are read again soon: {problem}");
                    queues.read_done(endpoint, None, now, again_at);
                }
            }
        }
        self.pump();
    }

    fn put_back_at(&self) -> Timestamp {
        time_after(self.now(), self.shared.context.put_back_delay())
    }
}

/// A claim in flight. Every way out ends in [`InFlightGuard::end_claim`].
struct InFlightGuard {
    dispatcher: Dispatcher,
    claim: Option<Claim>,
    is_sending: bool,
    /// The receiver asked for something that is in force before it is durable.
    is_backpressure_pending: bool,
    /// Time before which nothing of the outcome was written.
    answered_at: Timestamp,
}

impl InFlightGuard {
    fn new(dispatcher: Dispatcher, claim: Claim) -> Self {
        let (is_sending, is_backpressure_pending) = (true, false);
        Self { dispatcher, claim: Some(claim), is_sending, is_backpressure_pending, answered_at: Timestamp::MIN }
    }

    /// The receiver is no longer being asked anything. Returns what its answer
    /// means for the whole endpoint.
    fn apply_attempt_result(&mut self, answer: Option<AttemptResult>) -> EndpointUpdate {
        let mut update = EndpointUpdate::default();
        if std::mem::take(&mut self.is_sending)
            && let Some(claim) = &self.claim
        {
            let now = self.dispatcher.now();
            self.answered_at = now;
            update = self.dispatcher.queues().apply_attempt_result(claim.endpoint, claim.id, answer, now);
            self.is_backpressure_pending = is_backpressure(&update);
            self.dispatcher.pump();
        }
        update
    }

    fn end_claim(&mut self, ended: ClaimEnd) {
        self.apply_attempt_result(None);
        let Some(claim) = self.claim.take() else { return };
        let dispatcher = &self.dispatcher;
        // What a write of others, or a lost answer, led to is for the store to say.
        let (settled, is_unknown, counted) = match ended {
            ClaimEnd::Settled(settled, counted) => (settled, false, counted),
            ClaimEnd::Repeated(settled, counted) => (settled, true, counted),
            ClaimEnd::Unsent { due_at } => {
                (SettleEffects { due_again_at: Some(due_at), ..SettleEffects::default() }, false, Default::default())
            }
            ClaimEnd::Stale => (SettleEffects::default(), true, Default::default()),
        };
        {
            let now = dispatcher.now();
            let mut queues = dispatcher.queues();
            queues.figures.count_settled(claim.endpoint, &claim.event, &counted, now);
            queues.settled(&claim, settled.due_again_at, now);
            if self.is_backpressure_pending {
                queues.backpressure_written(claim.endpoint);
            }
            if is_unknown && dispatcher.is_own_endpoint(claim.endpoint, now) {
                queues.due_in_store(claim.endpoint, now, now, || dispatcher.gate(claim.endpoint));
            }
        }
        // What was written is in force from here on. Where nothing was, the
        // queue may not know how its endpoint stands.
        if self.is_backpressure_pending || settled.is_void {
            dispatcher.endpoint_changed(claim.endpoint);
        }
        log_endpoint_update(&claim, &settled.update);
        dispatcher.shared.claim_ended.notify_waiters();
        if settled.freed.is_empty() {
            dispatcher.pump();
        } else {
            dispatcher.admit_since(settled.freed, self.answered_at);
        }
    }
}

impl Drop for InFlightGuard {
    /// A panic on the way to being settled: it goes back as it was. Dropped
    /// without one, it is the whole process that ends.
    fn drop(&mut self) {
        if self.claim.is_some() && std::thread::panicking() {
            let due_again_at = Some(self.dispatcher.put_back_at());
            self.end_claim(ClaimEnd::without_outcome(SettleEffects { due_again_at, ..SettleEffects::default() }));
        }
    }
}

/// Returns the host and port of a URL; endpoints that share them share a limit.
fn host_of(url: &str) -> Option<Arc<str>> {
    let url = url::Url::parse(url).ok()?;
    Some(format!("{}:{}", url.host_str()?, url.port_or_known_default()?).into())
}
