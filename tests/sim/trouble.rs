//! Failures in simulated time: panics inside the gateway, receivers that fail
//! for days, and the notices about them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use posthaste::clock::{Clock, TokioClock};
use posthaste::lifecycle::Gateway;
use posthaste::lifecycle::accept::{Submission, accept};
use posthaste::lifecycle::deliver::send::Sender;
use posthaste::lifecycle::deliver::sign::SignedRequest;
use posthaste::lifecycle::dispatch::limits::NodeLimits;
use posthaste::lifecycle::expire;
use posthaste::lifecycle::mail::{Mail, MailError, MailQueue, Mailer};
use posthaste::model::answer::{Answer, Response, Timings};
use posthaste::model::audit::Initiator;
use posthaste::model::delivery::{DeadCause, Delivery, DeliveryState, time_after};
use posthaste::model::endpoint::{Endpoint, EndpointSettings, EndpointState};
use posthaste::model::endpoint_event::{Actor, EndpointEventKind, EndpointEventRecord};
use posthaste::model::health::{AutoPauseLimits, BreakerPhase};
use posthaste::model::id::{EndpointId, TenantId};
use posthaste::model::span::Span;
use posthaste::store::embedded::{Durability, EmbeddedStore};
use posthaste::store::{BatchMode, Catalog, EventQuery, PageRequest, Store};
use serde_json::{Value, json};

use super::faulty_store::FaultyStore;
use super::world::{endpoint, gateway, limits, tenant, tenant_record};

/// A sender that answers by id and time, and records every request.
struct AnsweringSender {
    clock: Arc<dyn Clock>,
    began: Timestamp,
    answer: fn(&str, Duration) -> u16,
    asked: Mutex<Vec<(String, Duration)>>,
}

#[async_trait]
impl Sender for AnsweringSender {
    async fn send(&self, request: SignedRequest) -> Answer {
        let id = request.headers["webhook-id"].to_str().unwrap().to_owned();
        let since = self.clock.now().duration_since(self.began).unsigned_abs();
        self.asked.lock().unwrap().push((id.clone(), since));
        let status = (self.answer)(&id, since);
        Answer { result: Ok(Response { status, ..Response::default() }), timings: Timings::default() }
    }
}

/// A mailer that keeps the mails it gets.
#[derive(Default)]
struct RecordingMailer(Mutex<Vec<Mail>>);

#[async_trait]
impl Mailer for RecordingMailer {
    async fn send(&self, letter: &Mail) -> Result<(), MailError> {
        self.0.lock().unwrap().push(letter.clone());
        Ok(())
    }
}

/// A gateway with one endpoint, operational events, and a mail server.
struct Simulation {
    gateway: Arc<Gateway>,
    clock: Arc<dyn Clock>,
    sender: Arc<AnsweringSender>,
    letters: Arc<RecordingMailer>,
    endpoint: EndpointId,
    began: Timestamp,
}

impl Simulation {
    async fn send(&self, id: &str, key: Option<&str>) {
        let submission = Submission {
            id: Some(id.parse().unwrap()),
            event_type: "sim.event".parse().unwrap(),
            key: key.map(|key| key.parse().unwrap()),
            timestamp: None,
            schema_version: None,
            expires_at: None,
            endpoints: None,
            is_test: false,
            trace: None,
            data: "{}".into(),
        };
        accept(&self.gateway, &tenant(), vec![submission], BatchMode::All).await.unwrap();
    }

    async fn until(&self, span: Duration) {
        self.clock.sleep_until(time_after(self.began, span)).await;
    }

    async fn delivery(&self, event: &str) -> Delivery {
        let id = event.parse().unwrap();
        self.gateway.store.event_deliveries(&tenant(), &id).await.unwrap().unwrap().remove(0)
    }

    fn endpoint(&self) -> Arc<Endpoint> {
        self.gateway.store.any_endpoint(self.endpoint).unwrap()
    }

    fn asked(&self) -> Vec<(String, Duration)> {
        self.sender.asked.lock().unwrap().clone()
    }

    /// Returns the events of the endpoint, oldest first.
    async fn endpoint_events(&self) -> Vec<EndpointEventRecord> {
        let page = PageRequest { cursor: None, limit: 500 };
        let mut events = self.gateway.store.endpoint_events(self.endpoint, page).await.unwrap().data;
        events.reverse();
        events
    }

    /// Returns the types of the operational events, oldest first.
    async fn operational_events(&self) -> Vec<String> {
        let page = PageRequest { cursor: None, limit: 500 };
        let events = self.gateway.store.events(&TenantId::system(), EventQuery::default(), page).await.unwrap();
        events.data.iter().rev().map(|record| record.event.event_type.to_string()).collect()
    }
}

/// Runs a test in simulated time with an endpoint of these settings.
fn live(settings: Value, limits: NodeLimits, answer: fn(&str, Duration) -> u16, story: impl AsyncFnOnce(&Simulation)) {
    let folder = tempfile::tempdir().unwrap();
    let embedded = Arc::new(EmbeddedStore::open(folder.path(), Durability::Unsynced).unwrap());
    let steady = FaultyStore::steady(embedded.clone());
    let began = Timestamp::from_second(1_800_000_000).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(began));
        steady.put_tenant(&Initiator::Gateway, tenant_record(began)).await.unwrap();
        let mut system = tenant_record(began);
        system.id = TenantId::system();
        steady.put_tenant(&Initiator::Gateway, system).await.unwrap();
        let mut whole = json!({"url": "https://receiver.example/", "owner_email": "owner@example.com"});
        whole.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        let settings: EndpointSettings = serde_json::from_value(whole).unwrap();
        let made = Endpoint {
            urls: posthaste::model::url_versions::UrlVersions::first(&settings.url),
            policy: settings.check().unwrap(),
            settings,
            ..endpoint(0, began)
        };
        let id = made.id;
        steady.create_endpoint(&Initiator::Gateway, made).await.unwrap();
        let store: Arc<dyn Store> = Arc::new(steady.clone());
        let sender = Arc::new(AnsweringSender { clock: clock.clone(), began, answer, asked: Mutex::default() });
        let letters = Arc::new(RecordingMailer::default());
        let mail = MailQueue::new(Some(letters.clone()), clock.clone());
        let hold_max = Span::secs(30 * 86_400);
        let gateway = gateway(store, sender.clone(), &clock, mail.clone(), hold_max, limits, 5);
        let (keeping_time, expiring) = (gateway.clone(), gateway.clone());
        tokio::spawn(async move { keeping_time.dispatcher.run().await });
        tokio::spawn(expire::run(expiring));
        tokio::spawn(async move { mail.run().await });
        story(&Simulation { gateway, clock, sender, letters, endpoint: id, began }).await;
    });
    steady.crash();
    drop(runtime);
    drop(steady);
    let store = Arc::try_unwrap(embedded).ok().expect("nothing of a dead process holds its store");
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(store.close());
}

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn a_delivery_that_makes_the_sender_panic_three_times_is_poisoned_and_delays_no_one_else() {
    let answer = |id: &str, _| match id {
        "poison" => panic!("no way to send {id}"),
        _ => 200,
    };
    live(json!({}), limits(), answer, async |sim| {
        sim.send("poison", Some("k")).await;
        sim.send("behind", Some("k")).await;
        for n in 0..20 {
            sim.send(&format!("other-{n}"), (n % 2 == 0).then_some("j")).await;
        }
        sim.until(Duration::from_millis(900)).await;
        for n in 0..20 {
            let delivery = sim.delivery(&format!("other-{n}")).await;
            assert_eq!(delivery.state, DeliveryState::Delivered, "before the poison comes again");
        }
        let delivery = sim.delivery("poison").await;
        assert_eq!(
            (delivery.state, delivery.internal_errors, delivery.progress.attempts),
            (DeliveryState::Waiting, 1, 0)
        );
        sim.until(2 * MINUTE).await;
        let delivery = sim.delivery("poison").await;
        assert_eq!((delivery.state, delivery.cause), (DeliveryState::Dead, Some(DeadCause::Poisoned)));
        assert_eq!(delivery.internal_error.as_deref(), Some("no way to send poison"), "in the panic's own words");
        assert_eq!(
            (delivery.internal_errors, delivery.progress.attempts),
            (3, 0),
            "no attempt of the receiver's is used"
        );
        let tries: Vec<Duration> = sim.asked().iter().filter(|(id, _)| id == "poison").map(|(_, at)| *at).collect();
        assert_eq!(tries.len(), 3);
        assert!(tries.windows(2).all(|pair| pair[1] - pair[0] >= Duration::from_secs(1)), "{tries:?}");
        assert_eq!(sim.delivery("behind").await.state, DeliveryState::Waiting, "its lane is blocked");
        sim.send("after", Some("j")).await;
        sim.until(3 * MINUTE).await;
        assert_eq!(sim.delivery("after").await.state, DeliveryState::Delivered, "other lanes go on");
        assert_eq!(sim.endpoint().health.failures, 0, "it says nothing about the receiver");
        assert_eq!(sim.gateway.dispatcher.in_flight(), 0, "and no slot is lost");
        assert_eq!(sim.operational_events().await, ["lane.blocked", "delivery.dead"]);
        let letters = sim.letters.0.lock().unwrap().clone();
        assert_eq!(letters.len(), 1, "its owner is told of the dead letter: {letters:?}");
    });
}

#[test]
fn five_days_of_nothing_but_failure_pause_the_endpoint_and_its_owner_is_told() {
    let limits = NodeLimits { quarantine: AutoPauseLimits::default(), ..limits() };
    live(
        json!({"retry": {"max_attempts": 12}}),
        limits,
        |_, _| 503,
        async |sim| {
            for n in 0..30 {
                sim.until(n * 6 * HOUR).await;
                sim.send(&format!("e-{n}"), None).await;
                let expected = if n <= 20 { EndpointState::Active } else { EndpointState::Paused };
                assert_eq!(sim.endpoint().status.state, expected, "after {} hours", n * 6);
            }
            let status = sim.endpoint().status.clone();
            assert_eq!(status.by, Some(Actor::Gateway));
            let held_after = status.since.duration_since(sim.began).unsigned_abs();
            assert!((5 * DAY..5 * DAY + HOUR).contains(&held_after), "paused after {held_after:?}");
            let reason = status.reason.unwrap();
            assert!(
                reason.starts_with("nothing but failures for 5d") && reason.contains("was answered 503"),
                "{reason}"
            );
            let asked = sim.asked();
            let last = asked.last().unwrap().1;
            sim.until(10 * DAY).await;
            assert_eq!(sim.asked().len(), asked.len(), "and it is left alone");
            assert!(last <= held_after, "{last:?}");
            assert_eq!(sim.delivery("e-29").await.state, DeliveryState::Waiting, "what comes for it is held");
            let operational_events = sim.operational_events().await;
            let count = |kind: &str| operational_events.iter().filter(|event_type| *event_type == kind).count();
            assert_eq!(
                (count("breaker.opened"), count("endpoint.paused"), count("breaker.closed")),
                (1, 1, 0),
                "{operational_events:?}"
            );
            // One letter when it began, and one when it was stopped.
            let letters = sim.letters.0.lock().unwrap().clone();
            assert_eq!(letters.len(), 2, "{letters:#?}");
            assert!(letters[0].text.contains("keeps failing"), "{}", letters[0].text);
            assert!(letters[1].text.contains("We have paused your webhook endpoint"), "{}", letters[1].text);
            assert!(letters.iter().all(|letter| letter.to == "owner@example.com"));
        },
    );
}

#[test]
fn an_open_breaker_lets_nothing_through_but_probes_ever_further_apart() {
    let answer = |_: &str, since| if since < DAY { 503 } else { 200 };
    let retry = json!({"schedule": ["10s"], "jitter": "none", "max_attempts": 1_000, "max_age": "72h"});
    live(json!({"retry": retry, "max_in_flight": 10}), limits(), answer, async |sim| {
        for n in 0..50 {
            sim.send(&format!("e-{n}"), Some(&format!("k{}", n % 5))).await;
        }
        sim.until(DAY - MINUTE).await;
        let opened = sim.endpoint_events().await;
        assert_eq!(opened[0].what, EndpointEventKind::BreakerOpened);
        assert!(
            opened[1..].iter().all(|endpoint_event| endpoint_event.what == EndpointEventKind::ProbeFailed),
            "{opened:?}"
        );
        let open_at = opened[0].at.duration_since(sim.began).unsigned_abs();
        let probes: Vec<Duration> = sim.asked().into_iter().map(|(_, at)| at).filter(|at| *at > open_at).collect();
        assert_eq!(probes.len(), opened.len() - 1, "every request is a probe");
        let mut last = open_at;
        for (n, probe) in probes.iter().enumerate() {
            let cooldown = (Duration::from_secs(10) * (1 << n.min(10))).min(10 * MINUTE);
            let gap = *probe - last;
            let most = cooldown.mul_f64(1.1) + Duration::from_secs(1);
            assert!((cooldown..=most).contains(&gap), "probe {n} came after {gap:?}, cool-down {cooldown:?}");
            last = *probe;
        }
        assert!((130..160).contains(&probes.len()), "{} probes a day", probes.len());
        let mut attempts = 0;
        for n in 0..50 {
            attempts += sim.delivery(&format!("e-{n}")).await.progress.attempts as usize;
        }
        assert_eq!(attempts, sim.asked().len(), "no attempt is used by waiting");
        sim.until(DAY + HOUR).await;
        for n in 0..50 {
            assert_eq!(sim.delivery(&format!("e-{n}")).await.state, DeliveryState::Delivered);
        }
        let health = sim.endpoint().health.clone();
        assert_eq!((health.failures, health.trouble_since), (0, None));
        assert!(matches!(health.phase, BreakerPhase::Closed | BreakerPhase::Ramp { .. }));
        assert_eq!(sim.letters.0.lock().unwrap().len(), 1, "one outage is one letter");
        let operational_events = sim.operational_events().await;
        assert_eq!(operational_events, ["breaker.opened", "endpoint.recovered", "breaker.closed"]);
    });
}

/// An outage of four days: ten events before it, ten in its middle.
fn outage_of_four_days(pauses_age: bool, check: impl AsyncFnOnce(&Simulation)) {
    let answer = |_: &str, since| if since < 4 * DAY { 503 } else { 200 };
    let breaker = json!({"pauses_age": pauses_age});
    live(json!({"retry": {"preset": "standard"}, "breaker": breaker}), limits(), answer, async |sim| {
        for n in 0..10 {
            sim.send(&format!("before-{n}"), None).await;
        }
        sim.until(2 * DAY).await;
        for n in 0..10 {
            sim.send(&format!("during-{n}"), None).await;
        }
        sim.until(4 * DAY + 2 * HOUR).await;
        check(sim).await;
    });
}

#[test]
fn in_an_outage_longer_than_max_age_what_was_tried_dies_unless_the_breaker_pauses_age() {
    for pauses_age in [false, true] {
        outage_of_four_days(pauses_age, async |sim| {
            for n in 0..10 {
                let (before, during) = (format!("before-{n}"), format!("during-{n}"));
                let expected = if pauses_age {
                    (DeliveryState::Delivered, None)
                } else {
                    (DeliveryState::Dead, Some(DeadCause::Expired))
                };
                let delivery = sim.delivery(&before).await;
                assert_eq!((delivery.state, delivery.cause), expected, "{before}, pauses_age {pauses_age}");
                assert_eq!(sim.delivery(&during).await.state, DeliveryState::Delivered, "{during}");
            }
            let time_excluded_from_age = Duration::from_millis(sim.endpoint().health.unaged_ms);
            let outage = if pauses_age { 4 * DAY - MINUTE..4 * DAY + 11 * MINUTE } else { Duration::ZERO..MINUTE };
            assert!(outage.contains(&time_excluded_from_age), "{time_excluded_from_age:?}");
        });
    }
}
