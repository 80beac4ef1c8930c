//! Starts attempts when they are due, within every limit.
//!
//! The deciding is in [`queues`]; this holds the lock, reads the store when
//! the queues ask for it, and runs each attempt as a task of its own. Idle,
//! it sleeps until the next due time.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::Notify;
use tracing::{error, info, warn};

use self::gate::Gate;
use self::queues::Queues;
use super::deliver::send::Sender;
use super::deliver::{Desk, deliver};
use super::expire::Expiry;
use crate::clock::Clock;
use crate::model::delivery::after;
use crate::model::id::{DeliveryId, EndpointId};
use crate::store::{AskDue, Claim, Notice, Settled, Store};

pub mod gate;
pub mod queues;

/// How long a failed read or a put-back waits: long enough to be calm, and
/// never the same for all.
const PUT_BACK_SECONDS: Range<f64> = 1.0..30.0;

/// Starts attempts when they are due. Cheap to clone.
#[derive(Clone)]
pub struct Dispatcher {
    shared: Arc<Shared>,
}

struct Shared {
    queues: Mutex<Queues>,
    desk: Desk,
    /// Something is due earlier than the timer thinks, or it is time to stop.
    earlier: Notify,
    /// A claim was settled.
    fewer: Notify,
}

impl Dispatcher {
    /// A dispatcher that has not looked into the store yet.
    pub fn new(
        store: Arc<dyn Store>,
        sender: Arc<dyn Sender>,
        expiry: Arc<Expiry>,
        clock: Arc<dyn Clock>,
        slots: usize,
        seed: u64,
    ) -> Self {
        let chance = Mutex::new(StdRng::seed_from_u64(seed));
        let shared = Shared {
            queues: Mutex::new(Queues::new(slots)),
            desk: Desk { store, sender, expiry, clock, chance },
            earlier: Notify::new(),
            fewer: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Learns from the store what is waiting, then keeps time until stopped.
    pub async fn run(&self) -> crate::store::Result<()> {
        for (endpoint, due_at) in self.shared.desk.store.earliest_due().await? {
            let mut queues = self.queues();
            queues.stored(endpoint, due_at, self.gate(endpoint));
        }
        loop {
            let earlier = self.shared.earlier.notified();
            self.pump();
            let next = self.queues().next_wake();
            match next {
                Some(at) => tokio::select! {
                    () = earlier => {}
                    () = self.shared.desk.clock.sleep_until(at) => {}
                },
                None => earlier.await,
            }
        }
    }

    /// Takes in deliveries that may go at once.
    pub fn admit(&self, claims: Vec<Claim>) {
        if claims.is_empty() {
            return;
        }
        let now = self.now();
        for claim in claims {
            let mut queues = self.queues();
            let gate = self.gate(claim.endpoint);
            queues.admit(claim, gate, now);
        }
        self.pump();
    }

    /// A delivery was changed by other hands than an attempt's.
    pub fn changed(&self, endpoint: EndpointId, id: DeliveryId, due_at: Option<Timestamp>) {
        {
            let mut queues = self.queues();
            queues.changed(endpoint, id, due_at, self.gate(endpoint));
        }
        self.pump();
    }

    /// An endpoint was changed, paused, resumed or deleted.
    pub fn endpoint_changed(&self, endpoint: EndpointId) {
        {
            let mut queues = self.queues();
            match self.shared.desk.store.any_endpoint(endpoint) {
                Some(known) => {
                    let gate = Gate::of(Some(&known));
                    queues.regate(endpoint, gate, self.now());
                    // A change may have freed something, such as a blocked lane.
                    queues.stored(endpoint, self.now(), gate);
                }
                None => queues.remove(endpoint),
            }
        }
        self.pump();
    }

    /// Whether a request for this delivery is open.
    pub fn is_in_flight(&self, endpoint: EndpointId, id: DeliveryId) -> bool {
        self.queues().is_in_flight(endpoint, id)
    }

    /// Whether whatever is due at an endpoint has to wait for a slot.
    pub fn is_full(&self, endpoint: EndpointId) -> bool {
        self.queues().is_full(endpoint)
    }

    /// How many claims are in flight.
    pub fn in_flight(&self) -> usize {
        self.queues().in_flight()
    }

    /// How many claims may be in flight.
    pub fn slots(&self) -> usize {
        self.queues().slots()
    }

    /// Whether a lane's one slot is taken.
    pub fn is_lane_busy(&self, endpoint: EndpointId, lane: &str) -> bool {
        self.queues().is_lane_busy(endpoint, lane)
    }

    /// Starts nothing more, and waits for what is in flight. Returns how many
    /// were still in flight at the deadline.
    pub async fn stop(&self, deadline: Duration) -> usize {
        self.queues().stop();
        let settled = async {
            loop {
                let fewer = self.shared.fewer.notified();
                if self.queues().in_flight() == 0 {
                    return;
                }
                fewer.await;
            }
        };
        let _ = tokio::time::timeout(deadline, settled).await;
        self.queues().in_flight()
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.shared.queues.lock().expect("the queues' bookkeeping does not panic")
    }

    fn now(&self) -> Timestamp {
        self.shared.desk.clock.now()
    }

    /// What an endpoint allows. Asked with the queues locked: a change that
    /// comes in between would otherwise be overwritten by what was before it,
    /// and a resumed endpoint could be left with a closed queue.
    fn gate(&self, endpoint: EndpointId) -> Gate {
        Gate::of(self.shared.desk.store.any_endpoint(endpoint).as_deref())
    }

    /// Starts whatever can start and reads whatever should be read.
    fn pump(&self) {
        let now = self.now();
        let (claims, asks) = {
            let mut queues = self.queues();
            let claims: Vec<Claim> = std::iter::from_fn(|| queues.take_next()).collect();
            let asks = queues.take_reads(now);
            if queues.set_timer() {
                self.shared.earlier.notify_one();
            }
            (claims, asks)
        };
        for claim in claims {
            tokio::spawn(self.clone().attempt(claim));
        }
        for ask in asks {
            tokio::spawn(self.clone().read(ask));
        }
    }

    async fn attempt(self, claim: Claim) {
        let mut held = Held { dispatcher: self.clone(), claim: Some(claim), is_sending: true, is_hushed: false };
        let claim = held.claim.clone().expect("it was just put there");
        let settled = deliver(&self.shared.desk, &claim, |notice| held.answered(notice)).await;
        held.settled(settled);
    }

    async fn read(self, ask: AskDue) {
        let endpoint = ask.endpoint;
        let store = &self.shared.desk.store;
        let page = match store.any_endpoint(endpoint) {
            None => Ok(Default::default()),
            Some(known) => store.read_due(store.lease(&known.tenant, endpoint), ask).await,
        };
        let page =
            page.inspect_err(|problem| warn!(endpoint.id = %endpoint, "could not read what is due: {problem}")).ok();
        let again_at = self.put_back_at();
        let now = self.now();
        self.queues().read_done(endpoint, page, now, again_at);
        self.pump();
    }

    fn put_back_at(&self) -> Timestamp {
        after(self.now(), self.shared.desk.put_back_delay())
    }
}

/// A claim in flight. One that is dropped by a panic goes back as it was.
struct Held {
    dispatcher: Dispatcher,
    claim: Option<Claim>,
    is_sending: bool,
    /// The receiver asked for something about itself.
    is_hushed: bool,
}

impl Held {
    /// The receiver is no longer being asked anything, and may have asked for
    /// something itself.
    fn answered(&mut self, notice: Option<&Notice>) {
        if std::mem::take(&mut self.is_sending)
            && let Some(claim) = &self.claim
        {
            let now = self.dispatcher.now();
            let mut queues = self.dispatcher.queues();
            if let Some(notice) = notice {
                queues.hush(claim.endpoint, notice, now);
                self.is_hushed = true;
            }
            queues.answered(claim.endpoint);
            drop(queues);
            self.dispatcher.pump();
        }
    }

    fn settled(&mut self, settled: Settled) {
        self.answered(None);
        let Some(claim) = self.claim.take() else { return };
        let dispatcher = &self.dispatcher;
        dispatcher.queues().settled(&claim, settled.due_again_at);
        // What was written is in force from here on. Where nothing was, the
        // queue may not know how its endpoint stands.
        if self.is_hushed || settled.is_void {
            dispatcher.endpoint_changed(claim.endpoint);
        }
        if let Some(notice) = &settled.notice {
            tell(&claim, notice);
        }
        dispatcher.shared.fewer.notify_waiters();
        match settled.promoted {
            Some(promoted) => dispatcher.admit(vec![promoted]),
            None => dispatcher.pump(),
        }
    }
}

fn tell(claim: &Claim, notice: &Notice) {
    let (endpoint, tenant) = (claim.endpoint, &claim.event.tenant);
    match notice {
        Notice::Disable(reason) => {
            warn!(endpoint.id = %endpoint, tenant.id = %tenant, "endpoint disabled: {reason}; what comes for it is held until it is resumed");
        }
        Notice::QuietUntil(at) => {
            info!(endpoint.id = %endpoint, tenant.id = %tenant, "endpoint left alone until {at}, because the receiver asked for it with Retry-After");
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(claim) = &self.claim else { return };
        // Dropped without a panic, it is the whole process that ends.
        if !std::thread::panicking() {
            return;
        }
        error!(delivery.id = %claim.id, endpoint.id = %claim.endpoint, "an attempt ended inside the gateway; it is put back and not counted");
        let settled = Settled { due_again_at: Some(self.dispatcher.put_back_at()), ..Settled::default() };
        self.settled(settled);
    }
}

impl Desk {
    /// A random number in `[0, 1)`.
    pub fn draw(&self) -> f64 {
        self.chance.lock().expect("drawing does not panic").random()
    }

    /// How long something waits that failed through no fault of the receiver.
    pub fn put_back_delay(&self) -> Duration {
        let Range { start, end } = PUT_BACK_SECONDS;
        Duration::from_secs_f64(start + (end - start) * self.draw())
    }
}
