//! The simulation of one seed: a gateway that runs, crashes and runs again,
//! producers that never give up, and the final check.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use posthaste::clock::{Clock, TokioClock};
use posthaste::lifecycle::Gateway;
use posthaste::lifecycle::accept::{Submission, accept};
use posthaste::lifecycle::admin_token::AdminToken;
use posthaste::lifecycle::deliver::DeliveryContext;
use posthaste::lifecycle::deliver::send::Sender;
use posthaste::lifecycle::disk_space::DiskSpace;
use posthaste::lifecycle::dispatch::Dispatcher;
use posthaste::lifecycle::dispatch::limits::NodeLimits;
use posthaste::lifecycle::expire;
use posthaste::lifecycle::expiry_schedule::ExpirySchedule;
use posthaste::lifecycle::intake::Intake;
use posthaste::lifecycle::links::Links;
use posthaste::lifecycle::mail::MailQueue;
use posthaste::lifecycle::notifier::Notifier;
use posthaste::lifecycle::retention::Retention;
use posthaste::metrics::Metrics;
use posthaste::model::answer::{AttemptFailure, FailureKind};
use posthaste::model::audit::Initiator;
use posthaste::model::delivery::{Delivery, DeliveryState, time_after};
use posthaste::model::delivery_filter::DeliveryFilter;
use posthaste::model::endpoint::EndpointDefaults;
use posthaste::model::endpoint::{Endpoint, EndpointSettings, EndpointStatus, Secret};
use posthaste::model::event::Event;
use posthaste::model::health::{AutoPauseLimits, EndpointHealth};
use posthaste::model::id::{EndpointId, SecretId, TenantId};
use posthaste::model::span::Span;
use posthaste::model::tenant::{Tenant, TenantQuota};
use posthaste::store::embedded::{Durability, EmbeddedStore};
use posthaste::store::{BatchMode, Catalog, History, PageRequest, RoutedEvent};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use super::faulty_store::FaultyStore;
use super::flaky_receivers::{EXPIRING_KEY, FlakyReceivers, Ledger};

const DAYS: u64 = 3;
const ENDPOINTS: usize = 4;
const CAP: usize = 3;
const EVENTS: usize = 150;
const MAX_ATTEMPTS: u32 = 60;

/// The simulation of one seed.
pub struct World {
    seed: u64,
    chance: StdRng,
    folder: tempfile::TempDir,
    ledger: Arc<Mutex<Ledger>>,
    now: Timestamp,
    healed_at: Timestamp,
    ends_at: Timestamp,
    /// Events still to be submitted, with the time for it.
    to_come: Vec<(Timestamp, Submission)>,
    acknowledged: Vec<String>,
    crashes: u32,
}

/// The figures of one seed.
pub struct Summary {
    acknowledged: usize,
    requests: u64,
    cut_off: u64,
    crashes: u32,
    asked_for_quiet: u64,
    delivered: usize,
    dead: usize,
    lapsed: usize,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} events, {} crashes, {} requests ({} cut off, {} asked for quiet), {} delivered, {} dead ({} over by their own account), 0 lost",
            self.acknowledged,
            self.crashes,
            self.requests,
            self.cut_off,
            self.asked_for_quiet,
            self.delivered,
            self.dead,
            self.lapsed
        )
    }
}

/// Returns the id of the only tenant.
pub fn tenant() -> TenantId {
    "default".parse().unwrap()
}

/// Returns the limits of every simulated node.
pub fn limits() -> NodeLimits {
    NodeLimits {
        slots: 100,
        per_host: None,
        quarantine: AutoPauseLimits { failing_for: Span::secs(365 * 86_400), ..AutoPauseLimits::default() },
    }
}

/// Returns the only tenant, as it is created.
pub fn tenant_record(now: Timestamp) -> Tenant {
    Tenant {
        id: tenant(),
        name: String::new(),
        quota: TenantQuota::default(),
        limits: Default::default(),
        defaults: EndpointDefaults::default(),
        retention: Default::default(),
        created_at: now,
    }
}

/// Returns the n-th endpoint, each with another kind of order.
pub fn endpoint(n: usize, now: Timestamp) -> Endpoint {
    let (ordering, path) = [("key", ""), ("key", "skips"), ("endpoint", "in-order"), ("none", "")][n];
    let (on_dead, max_attempts) = if path == "skips" { ("skip", 4) } else { ("block", MAX_ATTEMPTS) };
    let settings: EndpointSettings = serde_json::from_value(json!({
        "url": format!("https://receiver-{n}.example/{path}"),
        "max_in_flight": CAP,
        "ordering": ordering,
        "on_dead": on_dead,
        "retry": {"max_attempts": max_attempts, "max_age": "72h"},
    }))
    .unwrap();
    let secret = Secret {
        id: SecretId::mint(now, n as u128),
        text: posthaste::lifecycle::deliver::keys::new_secret([n as u8; 24]),
        key: posthaste::lifecycle::deliver::keys::new_key([n as u8; 32]),
        created_at: now,
        expires_at: None,
    };
    Endpoint {
        id: EndpointId::mint(now, n as u128),
        tenant: tenant(),
        urls: posthaste::model::url_versions::UrlVersions::first(&settings.url),
        ceiling: Default::default(),
        policy: settings.retry.resolve().unwrap(),
        settings,
        status: EndpointStatus::active(now),
        backpressure_until: None,
        health: EndpointHealth::default(),
        mailed_at: None,
        secrets: vec![secret],
        created_at: now,
        updated_at: now,
    }
}

/// Returns an event for these endpoints, as the store accepts it.
pub fn new_event(id: &str, key: Option<&str>, now: Timestamp, targets: Vec<Arc<Endpoint>>) -> RoutedEvent {
    let event = Event {
        id: id.parse().unwrap(),
        tenant: tenant(),
        event_type: "sim.event".parse().unwrap(),
        key: key.map(|key| key.parse().unwrap()),
        timestamp: None,
        schema_version: None,
        expires_at: None,
        endpoints: None,
        link_base: None,
        trace: None,
        accepted_at: now,
        data: Bytes::from_static(b"{}"),
    };
    RoutedEvent { event: Arc::new(event), fingerprint: Some([0; 32]), targets, due_at: None, expires_at: None }
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut chance = StdRng::seed_from_u64(seed);
        let began = Timestamp::from_second(1_800_000_000).unwrap();
        let span = Duration::from_secs(DAYS * 86_400);
        let mut to_come: Vec<_> = (0..EVENTS)
            .map(|n| {
                let at = time_after(began, span.mul_f64(chance.random::<f64>() * 0.8));
                let key = (chance.random::<f64>() < 0.7).then(|| format!("k{}", chance.random_range(0..6)));
                let expires_at = (chance.random::<f64>() < 0.1)
                    .then(|| time_after(at, Duration::from_secs(chance.random_range(60..12 * 3_600))));
                // One lane of its own, so that the others must be without a gap.
                let key = if expires_at.is_some() { Some(EXPIRING_KEY.to_owned()) } else { key };
                let submission = Submission {
                    id: Some(format!("e{n}").parse().unwrap()),
                    event_type: "sim.event".parse().unwrap(),
                    key: key.map(|key| key.parse().unwrap()),
                    timestamp: None,
                    schema_version: None,
                    expires_at,
                    endpoints: None,
                    is_test: false,
                    trace: None,
                    data: Bytes::from(format!("{{\"n\":{n}}}")),
                };
                (at, submission)
            })
            .collect();
        to_come.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        Self {
            seed,
            chance,
            folder: tempfile::tempdir().unwrap(),
            ledger: Arc::default(),
            now: began,
            healed_at: time_after(began, span.mul_f64(0.9)),
            ends_at: time_after(began, span + Duration::from_secs(2 * 86_400)),
            to_come,
            acknowledged: Vec::new(),
            crashes: 0,
        }
    }

    /// Runs the whole simulation, and checks the result.
    pub fn live(mut self) -> Summary {
        let folder = self.folder.path().to_owned();
        self.run_process(&folder, async |world, store, clock| world.create_endpoints(&store, clock.as_ref()).await);
        while self.now < self.healed_at {
            self.crashes += 1;
            let until = self.next_crash().min(self.healed_at);
            self.run_process(&folder, async |world, store, clock| world.run_gateway(store, clock, until, false).await);
        }
        let until = self.ends_at;
        self.run_process(&folder, async |world, store, clock| world.run_gateway(store, clock, until, true).await);
        let mut summary = None;
        self.run_process(&folder, async |world, store, _| summary = Some(world.check(&store).await));
        summary.expect("the reckoning was made")
    }

    /// Draws the time of the next crash: some hours from now; or, as often, just
    /// after an event was accepted, while its requests are open.
    fn next_crash(&mut self) -> Timestamp {
        let anywhere = time_after(self.now, Duration::from_secs(self.chance.random_range(600..12 * 3_600)));
        let next_event = self.to_come.iter().rev().map(|(at, _)| *at).find(|at| *at > self.now);
        match next_event {
            Some(at) if self.chance.random() => {
                time_after(at, Duration::from_millis(self.chance.random_range(0..9_000)))
            }
            _ => anywhere,
        }
    }

    /// Runs one process: opens the store, runs `life` with a clock that jumps,
    /// and ends without a clean shutdown.
    fn run_process(&mut self, folder: &Path, life: impl AsyncFnOnce(&mut Self, FaultyStore, Arc<dyn Clock>)) {
        let store =
            Arc::new(EmbeddedStore::open(folder, Durability::Unsynced).expect("the store opens after every crash"));
        let faulty_store = FaultyStore::new(store.clone(), self.chance.random());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(self.now));
            life(self, faulty_store.clone(), clock.clone()).await;
            self.now = clock.now();
        });
        faulty_store.crash();
        drop(runtime);
        drop(faulty_store);
        let store = Arc::try_unwrap(store).ok().expect("nothing of a dead process holds its store");
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(store.close());
    }

    async fn create_endpoints(&mut self, store: &FaultyStore, clock: &dyn Clock) {
        let now = clock.now();
        store.put_tenant(&Initiator::Gateway, tenant_record(now)).await.unwrap();
        for n in 0..ENDPOINTS {
            store.create_endpoint(&Initiator::Gateway, endpoint(n, now)).await.unwrap();
        }
    }

    /// Accepts and delivers events until the given time.
    async fn run_gateway(&mut self, store: FaultyStore, clock: Arc<dyn Clock>, until: Timestamp, is_last: bool) {
        let store: Arc<dyn posthaste::store::Store> = Arc::new(store);
        let flaky_receivers =
            FlakyReceivers::new(self.ledger.clone(), clock.clone(), self.chance.random(), CAP, self.healed_at);
        let seed = self.chance.random();
        let mail = MailQueue::new(None, clock.clone());
        let gateway = gateway(store, Arc::new(flaky_receivers), &clock, mail, Span::secs(30 * 86_400), limits(), seed);
        let dispatcher = gateway.dispatcher.clone();
        let keeping_time = tokio::spawn(async move { dispatcher.run().await });
        let expiring = tokio::spawn(expire::run(gateway.clone()));
        while let Some((at, submission)) = self.to_come.pop() {
            if at > until {
                self.to_come.push((at, submission));
                break;
            }
            clock.sleep_until(at).await;
            if let Some(expires_at) = submission.expires_at {
                self.ledger.lock().unwrap().expires.insert(format!("{}", submission.id.as_ref().unwrap()), expires_at);
            }
            let id = submission.id.clone().expect("it was given one").to_string();
            match accept(&gateway, &tenant(), vec![submission.clone()], BatchMode::All).await {
                Ok(_) => self.acknowledged.push(id),
                // Without an answer the outcome is unknown, so the event is sent again.
                Err(_) => self.to_come.push((time_after(clock.now(), Duration::from_secs(1)), submission)),
            }
        }
        clock.sleep_until(until).await;
        if is_last {
            keeping_time.abort();
            expiring.abort();
        }
        self.ledger.lock().unwrap().crash(clock.now());
    }

    /// Checks that every acknowledged event has ended and the records are right.
    async fn check(&self, store: &FaultyStore) -> Summary {
        let deliveries = all_deliveries(store).await;
        let mut by_event: HashMap<String, usize> = HashMap::new();
        let urls: HashMap<EndpointId, String> =
            store.endpoints(&tenant()).iter().map(|endpoint| (endpoint.id, endpoint.settings.url.clone())).collect();
        assert!(self.to_come.is_empty(), "every event was handed in");
        for delivery in &deliveries {
            *by_event.entry(delivery.event_id.to_string()).or_default() += 1;
            self.check_delivery(store, delivery, &urls[&delivery.endpoint_id]).await;
        }
        for id in &self.acknowledged {
            assert_eq!(by_event.get(id), Some(&ENDPOINTS), "event {id} was acknowledged and has lost deliveries");
        }
        let count = |state: DeliveryState| deliveries.iter().filter(|delivery| delivery.state == state).count();
        let ledger = self.ledger.lock().unwrap();
        assert!(ledger.violations.is_empty(), "seed {}: {:#?}", self.seed, ledger.violations);
        Summary {
            acknowledged: self.acknowledged.len(),
            requests: ledger.requests,
            cut_off: ledger.cut_off,
            crashes: self.crashes,
            delivered: count(DeliveryState::Delivered),
            dead: count(DeliveryState::Dead),
            asked_for_quiet: ledger.asked_for_quiet,
            lapsed: deliveries.iter().filter(|delivery| is_lapsed(delivery)).count(),
        }
    }

    async fn check_delivery(&self, store: &FaultyStore, delivery: &Delivery, url: &str) {
        let seed = self.seed;
        let attempts = store.attempts(&tenant(), delivery.id).await.unwrap().expect("it is there");
        let numbers: Vec<u32> = attempts.iter().map(|attempt| attempt.number).collect();
        let expected: Vec<u32> = (1..=delivery.progress.attempts).collect();
        assert_eq!(numbers, expected, "seed {seed}: attempts of {} are numbered without a gap", delivery.id);
        assert!(numbers.len() as u32 <= MAX_ATTEMPTS, "seed {seed}: {} was tried too often", delivery.id);
        let is_ours = |failure: &AttemptFailure| failure.kind == FailureKind::Ours;
        let charged = attempts.iter().filter(|attempt| attempt.error.as_ref().is_some_and(is_ours)).count();
        assert_eq!(charged, 0, "seed {seed}: {} was charged for our own trouble", delivery.id);
        for pair in attempts.windows(2) {
            let planned = pair[0].decision.next_attempt_at.expect("a further attempt was planned");
            assert!(pair[1].started_at >= planned, "seed {seed}: {} was tried early", delivery.id);
        }
        let has_arrived =
            self.ledger.lock().unwrap().received.contains(&(url.to_owned(), delivery.event_id.to_string()));
        match delivery.state {
            DeliveryState::Delivered => {
                assert!(has_arrived, "seed {seed}: {} is delivered and never arrived", delivery.id)
            }
            DeliveryState::Dead => {
                assert!(delivery.cause.is_some(), "seed {seed}: {} died without a cause", delivery.id)
            }
            DeliveryState::Waiting if delivery.is_behind => {}
            DeliveryState::Waiting | DeliveryState::Cancelled => panic!("seed {seed}: {delivery:?} has not ended"),
        }
    }
}

fn is_lapsed(delivery: &Delivery) -> bool {
    delivery.state == DeliveryState::Dead && delivery.expires_at.is_some_and(|at| delivery.finished_at >= Some(at))
}

async fn all_deliveries(store: &FaultyStore) -> Vec<Delivery> {
    let mut all = Vec::new();
    let mut cursor = None;
    loop {
        let ask = PageRequest { cursor, limit: 500 };
        let page = store.deliveries(&tenant(), DeliveryFilter::default(), ask).await.unwrap();
        all.extend(page.data);
        cursor = page.next;
        if cursor.is_none() {
            return all;
        }
    }
}

/// Creates a gateway from these parts and defaults. It keeps finished deliveries
/// for `hold_max`, and dead letters three times as long.
pub fn gateway(
    store: Arc<dyn posthaste::store::Store>,
    sender: Arc<dyn Sender>,
    clock: &Arc<dyn Clock>,
    mail: MailQueue,
    hold_max: Span,
    limits: NodeLimits,
    seed: u64,
) -> Arc<Gateway> {
    let expiry = Arc::new(ExpirySchedule::new(hold_max));
    let metrics = Arc::new(Metrics::new(clock.now()));
    let notifier = Notifier::new(store.clone(), mail.clone(), metrics.clone(), clock.clone());
    let kept = Retention { finished: hold_max, dead: Span(3 * hold_max.0), unmatched: hold_max, audit: hold_max };
    let links = Links::new(Some("https://hooks.example.com".into()), &[7; 32], kept);
    let context = Arc::new(DeliveryContext::new(store, sender, links, expiry, notifier, clock.clone(), seed));
    let dispatcher = Dispatcher::new(context.clone(), limits);
    Arc::new(Gateway {
        context,
        dispatcher,
        space: DiskSpace::endless(),
        intake: Intake::unlimited(),
        mail,
        admin: AdminToken::new([0; 32]),
        called_from: Vec::new(),
        answers: Default::default(),
        metrics,
    })
}
