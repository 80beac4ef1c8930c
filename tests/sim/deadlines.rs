//! Policies, holds and ends in simulated time: days of waiting in a moment,
//! on the real lifecycle and the real store.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use posthaste::clock::{Clock, TokioClock};
use posthaste::lifecycle::accept::{Submission, accept};
use posthaste::lifecycle::change::{change_delivery, pause, resume};
use posthaste::lifecycle::deliver::send::Sender;
use posthaste::lifecycle::deliver::sign::SignedRequest;
use posthaste::lifecycle::expire;
use posthaste::lifecycle::explain::explain_delivery;
use posthaste::lifecycle::figure_series::{FigureRange, read};
use posthaste::lifecycle::jobs;
use posthaste::lifecycle::mail::MailQueue;
use posthaste::lifecycle::retention::{self, Retention};
use posthaste::lifecycle::waiting::outlook;
use posthaste::lifecycle::{Gateway, change};
use posthaste::model::answer::{Answer, Response, Timings};
use posthaste::model::attempt::Attempt;
use posthaste::model::audit::Initiator;
use posthaste::model::delivery::{DeadCause, Delivery, DeliveryState, WaitingFor, time_after, time_before};
use posthaste::model::endpoint::{Endpoint, EndpointSettings};
use posthaste::model::explain::ExplanationReader;
use posthaste::model::figure_time::FigureStep;
use posthaste::model::id::{DeliveryId, EndpointId, JobId};
use posthaste::model::job::{Job, JobFilter, JobKind, JobSpec, JobState, LeftOut};
use posthaste::model::preset::Preset;
use posthaste::model::rate::Rate;
use posthaste::model::span::Span;
use posthaste::store::embedded::{Durability, EmbeddedStore};
use posthaste::store::figures::FigureScope;
use posthaste::store::{AcceptResult, BatchMode, Catalog, DeliveryChange, EndpointChange, Store};
use serde_json::{Value, json};

use super::faulty_store::FaultyStore;
use super::world::{endpoint, gateway, limits, new_event, tenant, tenant_record};
use posthaste::model::named_enum::NamedEnum;
/// The reader of the explanations: somebody of the tenant.
const CUSTOMER: ExplanationReader = ExplanationReader { is_operator: false, sees_notes: true };

/// A sender with scripted answers, the last for ever, that records each request.
#[derive(Default)]
struct ScriptedSender {
    replies: Mutex<VecDeque<(u16, Option<String>)>>,
    asked: Mutex<Vec<(String, Timestamp)>>,
    clock: Mutex<Option<Arc<dyn Clock>>>,
}

#[async_trait]
impl Sender for ScriptedSender {
    async fn send(&self, request: SignedRequest) -> Answer {
        let now = self.clock.lock().unwrap().as_ref().unwrap().now();
        let id = request.headers["webhook-id"].to_str().unwrap().to_owned();
        self.asked.lock().unwrap().push((id, now));
        let mut replies = self.replies.lock().unwrap();
        let (status, retry_after) =
            if replies.len() > 1 { replies.pop_front() } else { replies.front().cloned() }.unwrap();
        let headers = retry_after.map(|value| ("retry-after".to_owned(), value)).into_iter().collect();
        Answer { result: Ok(Response { status, headers, ..Response::default() }), timings: Timings::default() }
    }
}

/// One endpoint, one scripted receiver, and a gateway that may be restarted.
struct DeadlineSimulation {
    folder: tempfile::TempDir,
    receiver: Arc<ScriptedSender>,
    hold_max: Span,
    now: Timestamp,
}

/// The running gateway of a simulation.
struct RunningGateway {
    gateway: Arc<Gateway>,
    clock: Arc<dyn Clock>,
    receiver: Arc<ScriptedSender>,
    endpoint: EndpointId,
    began: Timestamp,
}

impl DeadlineSimulation {
    fn answering(replies: &[(u16, Option<&str>)]) -> Self {
        let replies = replies.iter().map(|(status, header)| (*status, header.map(str::to_owned))).collect();
        let receiver = Arc::new(ScriptedSender { replies: Mutex::new(replies), ..ScriptedSender::default() });
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        Self { folder: tempfile::tempdir().unwrap(), receiver, hold_max: Span::secs(30 * 86_400), now }
    }

    /// Runs a gateway until the test returns, and ends it without a clean
    /// shutdown. The first call creates an endpoint with these settings.
    fn live(&mut self, settings: Value, story: impl AsyncFnOnce(&RunningGateway)) {
        let embedded = Arc::new(EmbeddedStore::open(self.folder.path(), Durability::Unsynced).unwrap());
        let steady = FaultyStore::steady(embedded.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(self.now));
            *self.receiver.clock.lock().unwrap() = Some(clock.clone());
            if steady.tenants().is_empty() {
                steady.put_tenant(&Initiator::Gateway, tenant_record(self.now)).await.unwrap();
                steady.create_endpoint(&Initiator::Gateway, made(settings, self.now)).await.unwrap();
            }
            let endpoint = steady.endpoints(&tenant())[0].id;
            let store: Arc<dyn Store> = Arc::new(steady.clone());
            let sender = self.receiver.clone();
            let mail = MailQueue::new(None, clock.clone());
            let gateway = gateway(store, sender, &clock, mail, self.hold_max, limits(), 5);
            let (keeping_time, expiring) = (gateway.clone(), gateway.clone());
            tokio::spawn(async move { keeping_time.dispatcher.run().await });
            tokio::spawn(expire::run(expiring));
            let receiver = self.receiver.clone();
            story(&RunningGateway { gateway, clock: clock.clone(), receiver, endpoint, began: self.now }).await;
            self.now = clock.now();
        });
        steady.crash();
        *self.receiver.clock.lock().unwrap() = None;
        drop(runtime);
        drop(steady);
        let store = Arc::try_unwrap(embedded).ok().expect("nothing of a dead process holds its store");
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(store.close());
    }
}

fn made(changes: Value, now: Timestamp) -> Endpoint {
    let mut settings = json!({"url": "https://receiver.example/"});
    settings.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    let settings: EndpointSettings = serde_json::from_value(settings).unwrap();
    Endpoint {
        urls: posthaste::model::url_versions::UrlVersions::first(&settings.url),
        policy: settings.check().unwrap(),
        settings,
        ..endpoint(0, now)
    }
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

impl RunningGateway {
    async fn send(&self, id: &str, key: Option<&str>, expires_in: Option<u64>) {
        let submission = Submission {
            id: Some(id.parse().unwrap()),
            event_type: "sim.event".parse().unwrap(),
            key: key.map(|key| key.parse().unwrap()),
            timestamp: None,
            schema_version: None,
            expires_at: expires_in.map(|seconds| time_after(self.clock.now(), secs(seconds))),
            endpoints: None,
            is_test: false,
            trace: None,
            data: Bytes::from_static(b"{}"),
        };
        accept(&self.gateway, &tenant(), vec![submission], BatchMode::All).await.unwrap();
    }

    async fn wait(&self, seconds: u64) {
        self.clock.sleep_until(time_after(self.clock.now(), secs(seconds))).await;
    }

    async fn delivery(&self, id: &str) -> Delivery {
        let found = self.gateway.store.event_deliveries(&tenant(), &id.parse().unwrap()).await.unwrap().unwrap();
        found.into_iter().next().unwrap()
    }

    async fn attempts(&self, id: &str) -> Vec<Attempt> {
        let id = self.delivery(id).await.id;
        self.gateway.store.attempts(&tenant(), id).await.unwrap().unwrap()
    }

    async fn stands(&self, id: &str) -> (DeliveryState, Option<DeadCause>, u32) {
        let delivery = self.delivery(id).await;
        (delivery.state, delivery.cause, delivery.progress.attempts)
    }

    async fn waits_for(&self, id: &str) -> Option<WaitingFor> {
        outlook(&self.gateway, &self.delivery(id).await).await.waiting_for
    }

    /// Returns when the receiver was called, in seconds since the beginning.
    fn asked(&self) -> Vec<(String, f64)> {
        let seconds = |at: &Timestamp| (at.as_millisecond() - self.began.as_millisecond()) as f64 / 1_000.0;
        self.receiver.asked.lock().unwrap().iter().map(|(id, at)| (id.clone(), seconds(at))).collect()
    }

    async fn pause(&self) {
        pause(&self.gateway, &Initiator::Gateway, &tenant(), self.endpoint, None).await.unwrap();
    }

    async fn resume(&self) {
        resume(&self.gateway, &Initiator::Gateway, &tenant(), self.endpoint, None).await.unwrap();
    }

    async fn replay(&self, id: &str) {
        let id = self.delivery(id).await.id;
        change_delivery(&self.gateway, &Initiator::Gateway, &tenant(), id, DeliveryChange::Replay).await.unwrap();
    }

    /// Gives every event to a new endpoint.
    async fn backfill(&self) {
        let late = endpoint(1, self.clock.now());
        let filter = JobFilter { endpoints: vec![late.id], ..JobFilter::default() };
        self.gateway.store.create_endpoint(&Initiator::Gateway, late).await.unwrap();
        self.start_job(JobKind::Backfill, filter).await;
        tokio::spawn(jobs::run(self.gateway.clone()));
    }

    /// Starts a job, which goes on once jobs run.
    async fn start_job(&self, kind: JobKind, filter: JobFilter) -> JobId {
        let (per_second, not_older_than, note) = (None, None, None);
        let spec =
            JobSpec { kind, filter, per_second, not_older_than, even_overtaken: false, note, by: "admin".into() };
        let parts = jobs::parts_of(&self.gateway, Some(&tenant()), &spec).await.unwrap();
        let (now, finished_at, error) = (self.clock.now(), None, None);
        let (id, state) = (JobId::mint(now, 1), JobState::Running);
        let job = Job { id, tenant: tenant(), spec, state, created_at: now, finished_at, error, parts };
        self.gateway.store.create_job(&Initiator::Gateway, job, 1).await.unwrap();
        id
    }

    /// Accepts an event as of this time, whatever was accepted before.
    async fn accept_as_of(&self, id: &str, accepted_at: Timestamp) -> DeliveryId {
        let targets = self.gateway.store.endpoints(&tenant());
        let routed = new_event(id, None, accepted_at, targets);
        match self.gateway.store.accept(vec![routed], BatchMode::All).await.unwrap().remove(0) {
            AcceptResult::New { claims, .. } => self.gateway.dispatcher.admit(claims),
            other => panic!("not new: {other:?}"),
        }
        self.delivery(id).await.id
    }

    /// Returns how many deliveries met the service-level goal, how many it speaks of,
    /// and of how many the first delay and the time to deliver were counted: as the
    /// metrics and the figures both say.
    async fn goal(&self) -> [u64; 4] {
        let text = self.gateway.metrics.encode(&Default::default());
        let metric = |series: &str| -> u64 {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("posthaste_{series} "))).unwrap();
            line.parse().unwrap()
        };
        let met = metric("slo_deliveries_total{met=\"yes\"}");
        let metrics = [
            met,
            met + metric("slo_deliveries_total{met=\"no\"}"),
            metric("first_attempt_delay_seconds_count"),
            metric("time_to_deliver_seconds_count"),
        ];
        let range = FigureRange::covering(self.began, self.clock.now(), FigureStep::Day);
        let sum = read(&self.gateway, &FigureScope::Tenant(tenant()), range).await.unwrap().sum();
        let counted = |buckets: &[u64]| buckets.iter().sum();
        let figures = [sum.slo.good, sum.slo.total, counted(&sum.first_delay), counted(&sum.time_to_deliver)];
        assert_eq!(metrics, figures);
        metrics
    }

    async fn retry_policy(&self, retry: Value) {
        let current = self.gateway.store.any_endpoint(self.endpoint).unwrap();
        let settings = EndpointSettings { retry: serde_json::from_value(retry).unwrap(), ..current.settings.clone() };
        let policy = settings.check().unwrap();
        let if_updated_at = current.updated_at;
        let change = EndpointChange::Settings { settings: Box::new(settings), policy, if_updated_at };
        change::change_endpoint(&self.gateway, &Initiator::Gateway, &tenant(), self.endpoint, change).await.unwrap();
    }
}

/// What each preset promises: its waits one by one, before jitter, the share
/// of them that jitter may take away or add, its attempts and its age.
fn promised(preset: Preset) -> (Vec<f64>, f64, f64, usize, f64) {
    const HOUR: f64 = 3_600.0;
    match preset {
        Preset::Standard => (vec![5.0, 30.0, 120.0, 300.0, 600.0, 1_200.0, 2_400.0, HOUR], 0.5, 1.0, 120, 72.0 * HOUR),
        Preset::Quick => (vec![1.0, 2.0, 4.0, 8.0], 0.0, 1.0, 5, HOUR),
        Preset::Hourly => (vec![60.0, 120.0, 240.0, 480.0, 960.0, 1_920.0, HOUR], 0.5, 1.0, 16, 72.0 * HOUR),
        Preset::Stepped => (vec![30.0, 120.0, 600.0, HOUR], 0.8, 1.2, 5, 24.0 * HOUR),
        Preset::Patient => (vec![2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0], 0.0, 1.0, 100, 72.0 * HOUR),
        Preset::Long => (
            [60, 120, 240, 480, 900, 1_800, 3_600, 7_200, 14_400, 28_800, 57_600, 86_400].map(f64::from).to_vec(),
            0.9,
            1.1,
            40,
            168.0 * HOUR,
        ),
    }
}

#[test]
fn every_preset_waits_as_it_promises_and_gives_up_as_it_promises() {
    for &preset in Preset::ALL {
        let (waits, least, most, attempts_max, age_max) = promised(preset);
        DeadlineSimulation::answering(&[(503, None)]).live(
            json!({"retry": {"preset": preset.as_str()}, "breaker": {"enabled": false}}),
            async |running| {
                running.send("e", None, None).await;
                running.wait(10 * 86_400).await;
                let asked: Vec<f64> = running.asked().iter().map(|(_, at)| *at).collect();
                for (n, pair) in asked.windows(2).enumerate() {
                    let (wait, plain) = (pair[1] - pair[0], waits.get(n).or(waits.last()).unwrap());
                    let window = plain * least..=plain * most + 0.002;
                    assert!(window.contains(&wait), "{}: wait {n} was {wait}, not in {window:?}", preset.as_str());
                }
                let span = asked.last().unwrap() - asked[0];
                assert!(
                    asked.len() <= attempts_max && span <= age_max,
                    "{}: {} in {span}",
                    preset.as_str(),
                    asked.len()
                );
                let (state, cause, attempts) = running.stands("e").await;
                // Whichever limit comes first ended it.
                let expected = if asked.len() == attempts_max { DeadCause::Exhausted } else { DeadCause::Expired };
                assert_eq!(
                    (state, cause, attempts),
                    (DeliveryState::Dead, Some(expected), asked.len() as u32),
                    "{}",
                    preset.as_str()
                );
                println!("{}: {} attempts in {span:.0}s, then {expected:?}", preset.as_str(), asked.len());
                if preset == Preset::Quick {
                    assert!(asked.len() == 5 && span <= 15.0, "five attempts, and at most 15s of waiting");
                }
            },
        );
    }
}

#[test]
fn a_merchant_that_recovers_is_delivered_on_the_fourth_attempt() {
    let replies = [(503, None), (503, None), (429, None), (200, None)];
    DeadlineSimulation::answering(&replies).live(json!({}), async |running| {
        running.send("pay-1", None, None).await;
        running.wait(3_600).await;
        assert_eq!(running.stands("pay-1").await, (DeliveryState::Delivered, None, 4));
        let asked = running.asked();
        assert!(asked.iter().all(|(id, _)| id == "pay-1"), "{asked:?}");
        let wait = asked[3].1 - asked[2].1;
        assert!((120.0..=240.0).contains(&wait), "a 429 without Retry-After doubles 60s to 120s: {wait}");
    });
}

#[test]
fn retry_after_holds_back_the_whole_endpoint_over_a_restart() {
    let mut sim = DeadlineSimulation::answering(&[(503, Some("7200")), (200, None)]);
    sim.live(json!({}), async |running| {
        running.send("first", None, None).await;
        running.wait(10).await;
        running.send("second", None, None).await;
        running.wait(10).await;
        assert_eq!(running.asked().len(), 1);
        assert_eq!(running.waits_for("first").await, Some(WaitingFor::Due));
        assert_eq!(running.waits_for("second").await, Some(WaitingFor::Backpressure));
        let next = outlook(&running.gateway, &running.delivery("second").await).await.next_attempt_at.unwrap();
        assert_eq!(next, time_after(running.began, secs(7_200)));
    });
    sim.live(json!({}), async |running| {
        running.send("third", None, None).await;
        running.wait(7_000).await;
        assert_eq!(running.asked().len(), 1, "nothing is sent while it is in force");
        assert_eq!(running.waits_for("third").await, Some(WaitingFor::Backpressure));
        // A person goes through it, and only with the one they name.
        let third = running.delivery("third").await.id;
        change_delivery(&running.gateway, &Initiator::Gateway, &tenant(), third, DeliveryChange::RetryNow)
            .await
            .unwrap();
        running.wait(5).await;
        assert_eq!(running.stands("third").await, (DeliveryState::Delivered, None, 1));
        assert_eq!(running.waits_for("second").await, Some(WaitingFor::Backpressure));
        running.wait(300).await;
        for id in ["first", "second"] {
            assert_eq!(running.stands(id).await.0, DeliveryState::Delivered, "{id}");
        }
        let early = running.asked().iter().filter(|(id, _)| id != "third").skip(1).any(|(_, at)| *at < 7_180.0 - 20.0);
        assert!(!early, "{:?}", running.asked());
    });
}

#[test]
fn what_a_person_asked_for_goes_out_after_a_crash_too() {
    let mut sim = DeadlineSimulation::answering(&[(503, Some("7200")), (200, None)]);
    sim.live(json!({"max_in_flight": 1}), async |running| {
        running.send("first", None, None).await;
        running.wait(10).await;
        running.send("second", None, None).await;
        // Changed in the store, and the gateway ends before it hears of it.
        let second = running.delivery("second").await.id;
        running
            .gateway
            .store
            .change(&Initiator::Gateway, &tenant(), second, DeliveryChange::RetryNow, running.clock.now())
            .await
            .unwrap();
    });
    sim.live(json!({}), async |running| {
        running.wait(5).await;
        assert_eq!(running.stands("second").await, (DeliveryState::Delivered, None, 1));
        assert_eq!(running.stands("first").await, (DeliveryState::Waiting, None, 1));
    });
}

#[test]
fn an_age_that_runs_out_under_backpressure_ends_without_an_attempt() {
    let retry = json!({"schedule": ["10m"], "jitter": "none", "max_age": "1h"});
    // The second delivery's answer keeps everyone away past the first one's age.
    let replies = [(500, None), (503, Some("5400")), (200, None)];
    DeadlineSimulation::answering(&replies).live(json!({"retry": retry}), async |running| {
        running.send("old", None, None).await;
        running.wait(300).await;
        running.send("loud", None, None).await;
        running.wait(10).await;
        assert_eq!(
            running.stands("loud").await,
            (DeliveryState::Dead, Some(DeadCause::Expired), 1),
            "5400s is past its own age"
        );
        running.wait(3_000).await;
        assert_eq!(running.waits_for("old").await, Some(WaitingFor::Backpressure));
        running.wait(400).await;
        assert_eq!(running.stands("old").await, (DeliveryState::Dead, Some(DeadCause::Expired), 1));
        let finished = running.delivery("old").await.finished_at.unwrap();
        let age = finished.as_second() - running.began.as_second();
        assert!((3_600..=3_602).contains(&age), "it ended when its age did, at {age}");
        let told =
            explain_delivery(&running.gateway, &tenant(), running.delivery("old").await.id, CUSTOMER).await.unwrap();
        assert!(told.sentences.iter().any(|told| told.contains("max_age passed while it was held back")), "{told:?}");
        running.wait(86_400).await;
        assert_eq!(running.asked().len(), 2);
    });
}

#[test]
fn a_shorter_age_counts_from_the_next_verdict_and_a_longer_one_at_once() {
    let hourly = |max_age: &str| json!({"schedule": ["1h"], "jitter": "none", "max_age": max_age});
    DeadlineSimulation::answering(&[(500, None)]).live(json!({"retry": hourly("5h")}), async |running| {
        running.send("e", None, None).await;
        running.wait(10).await;
        let planned = outlook(&running.gateway, &running.delivery("e").await).await;
        running.retry_policy(hourly("1h")).await;
        running.wait(10).await;
        let now = outlook(&running.gateway, &running.delivery("e").await).await;
        assert_eq!((now.end, now.next_attempt_at), (planned.end, planned.next_attempt_at), "what was decided stands");
        running.wait(3_700).await;
        assert_eq!(
            running.stands("e").await,
            (DeliveryState::Dead, Some(DeadCause::Expired), 2),
            "and the second verdict is the last"
        );
    });
    // Under backpressure past its age, a delivery is saved by a longer one.
    let replies = [(500, None), (503, Some("7200")), (500, None)];
    DeadlineSimulation::answering(&replies).live(json!({"retry": hourly("90m")}), async |running| {
        running.send("saved", None, None).await;
        running.wait(60).await;
        running.send("loud", None, None).await;
        running.wait(60).await;
        assert_eq!(running.waits_for("saved").await, Some(WaitingFor::Due));
        let late = outlook(&running.gateway, &running.delivery("saved").await).await;
        assert_eq!(late.next_attempt_at, None, "it would come too late, so it does not come");
        let told =
            explain_delivery(&running.gateway, &tenant(), running.delivery("saved").await.id, CUSTOMER).await.unwrap();
        assert!(told.summary.contains("it is given up before that"), "{told:?}");
        running.retry_policy(hourly("5h")).await;
        running.wait(7_200).await;
        assert_eq!(running.stands("saved").await, (DeliveryState::Waiting, None, 2));
    });
}

#[test]
fn an_age_shorter_than_any_walk_ends_in_time_too() {
    // Nothing but the note of this very delivery wakes the expirer in time.
    let retry = json!({"schedule": ["10s"], "jitter": "none", "max_age": "2m"});
    DeadlineSimulation::answering(&[(500, None), (503, Some("200")), (200, None)]).live(
        json!({"retry": retry}),
        async |running| {
            running.wait(5).await;
            running.send("old", None, None).await;
            running.wait(5).await;
            running.send("loud", None, None).await;
            running.wait(120).await;
            let delivery = running.delivery("old").await;
            assert_eq!((delivery.cause, delivery.progress.attempts), (Some(DeadCause::Expired), 1));
            let age = delivery.finished_at.unwrap().as_second() - running.began.as_second() - 5;
            assert!((120..=121).contains(&age), "{age}");
        },
    );
}

#[test]
fn time_paused_by_a_person_does_not_count() {
    let retry = json!({"schedule": ["10m"], "jitter": "none", "max_age": "1h"});
    DeadlineSimulation::answering(&[(500, None)]).live(json!({"retry": retry}), async |running| {
        running.send("e", None, None).await;
        running.wait(60).await;
        running.pause().await;
        running.wait(5 * 86_400).await;
        assert_eq!(running.stands("e").await, (DeliveryState::Waiting, None, 1), "five days of pause are no age");
        running.resume().await;
        running.wait(2 * 86_400).await;
        let (state, cause, attempts) = running.stands("e").await;
        assert_eq!((state, cause), (DeliveryState::Dead, Some(DeadCause::Expired)));
        // At 0, when it was resumed, and from then on every ten minutes.
        assert_eq!(attempts, 7, "{:?}", running.asked());
    });
}

#[test]
fn a_delivery_held_before_its_first_attempt_ends_after_hold_max_and_its_age_begins_with_the_first() {
    let mut sim = DeadlineSimulation::answering(&[(500, None)]);
    sim.hold_max = Span::secs(10 * 86_400);
    let retry = json!({"schedule": ["10m"], "jitter": "none", "max_age": "1h"});
    sim.live(json!({"retry": retry}), async |running| {
        running.pause().await;
        running.send("never", None, None).await;
        running.wait(5 * 86_400).await;
        running.send("late", None, None).await;
        running.wait(5 * 86_400 + 700).await;
        assert_eq!(running.stands("never").await, (DeliveryState::Dead, Some(DeadCause::Expired), 0));
        assert_eq!(running.stands("late").await, (DeliveryState::Waiting, None, 0));
        running.resume().await;
        running.wait(2_000).await;
        assert_eq!(running.stands("late").await, (DeliveryState::Waiting, None, 4), "five days of waiting are no age");
        running.wait(3_600).await;
        assert_eq!(running.stands("late").await, (DeliveryState::Dead, Some(DeadCause::Expired), 7));
        // A replay begins to wait anew.
        running.pause().await;
        let never = running.delivery("never").await.id;
        change_delivery(&running.gateway, &Initiator::Gateway, &tenant(), never, DeliveryChange::Replay).await.unwrap();
        running.wait(9 * 86_400).await;
        assert_eq!(running.stands("never").await, (DeliveryState::Waiting, None, 0));
        running.wait(86_400 + 700).await;
        assert_eq!(running.stands("never").await, (DeliveryState::Dead, Some(DeadCause::Expired), 0));
    });
}

#[test]
fn the_goal_speaks_neither_of_replays_nor_of_backfills_however_they_end() {
    let mut sim = DeadlineSimulation::answering(&[(200, None)]);
    sim.hold_max = Span::secs(600);
    sim.live(json!({}), async |running| {
        running.send("prompt", None, None).await;
        running.wait(10).await;
        assert_eq!(running.goal().await, [1, 1, 1, 1]);
        running.pause().await;
        running.send("held", None, None).await;
        running.wait(700).await;
        assert_eq!(running.stands("held").await, (DeliveryState::Dead, Some(DeadCause::Expired), 0));
        assert_eq!(running.goal().await, [1, 2, 1, 1], "it was never tried");
        running.replay("held").await;
        running.wait(700).await;
        assert_eq!(running.stands("held").await, (DeliveryState::Dead, Some(DeadCause::Expired), 0));
        assert_eq!(running.goal().await, [1, 2, 1, 1], "a replay that is never tried");
        running.replay("held").await;
        running.resume().await;
        running.wait(10).await;
        assert_eq!(running.stands("held").await, (DeliveryState::Delivered, None, 1));
        assert_eq!(running.goal().await, [1, 2, 1, 1], "a replay whose first attempt delivers");
        // The others are as old as retention, and are given to nobody.
        running.send("recent", None, None).await;
        running.wait(10).await;
        running.backfill().await;
        running.wait(60).await;
        let asked: Vec<String> = running.asked().into_iter().map(|(id, _)| id).collect();
        assert_eq!(asked, ["prompt", "held", "recent", "recent"]);
        assert_eq!(running.goal().await, [2, 3, 2, 2], "a backfill");
    });
}

#[test]
fn a_small_cap_does_not_slow_a_replay_to_a_receiver_that_answers_at_once() {
    let mut replies = vec![(400, None); 60];
    replies.push((200, None));
    DeadlineSimulation::answering(&replies).live(json!({"max_in_flight": 2}), async |running| {
        for n in 0..60 {
            running.send(&format!("e{n}"), None, None).await;
        }
        running.wait(60).await;
        let job = running.start_job(JobKind::Replay, JobFilter { all: true, ..JobFilter::default() }).await;
        tokio::spawn(jobs::run(running.gateway.clone()));
        running.wait(60).await;
        let job = running.gateway.store.job(&tenant(), job).await.unwrap().unwrap();
        assert_eq!((job.state, job.counts().delivered), (JobState::Finished, 60));
        let took = job.finished_at.unwrap().as_millisecond() - job.created_at.as_millisecond();
        // Two every tenth of a second would take three seconds; the rate allows 125 a second.
        assert!(took < 2_000, "{took} ms");
    });
}

#[test]
fn what_fails_again_keeps_nothing_else_from_being_replayed() {
    // All die; of those that are sent again three fail until their next attempt.
    let replies = [vec![(400, None); 12], vec![(503, None); 3], vec![(200, None)]].concat();
    let settings = json!({"max_in_flight": 2, "retry": {"schedule": ["1h"], "jitter": "none"}});
    DeadlineSimulation::answering(&replies).live(settings, async |running| {
        for n in 0..12 {
            running.send(&format!("e{n}"), None, None).await;
        }
        running.wait(60).await;
        let job = running.start_job(JobKind::Replay, JobFilter { all: true, ..JobFilter::default() }).await;
        tokio::spawn(jobs::run(running.gateway.clone()));
        running.wait(60).await;
        let shown = async || running.gateway.store.job(&tenant(), job).await.unwrap().unwrap();
        let counts = shown().await.counts();
        assert_eq!((counts.done, counts.delivered, counts.waiting), (12, 9, 3));
        running.wait(3_600).await;
        let job = shown().await;
        assert_eq!((job.state, job.counts().delivered), (JobState::Finished, 12));
    });
}

#[test]
fn a_job_ends_though_all_that_it_sends_waits_behind_a_dead_letter_that_it_does_not_take() {
    let mut sim = DeadlineSimulation::answering(&[(200, None)]);
    sim.hold_max = Span::secs(600);
    sim.live(json!({}), async |running| {
        running.pause().await;
        let mut ids = Vec::new();
        for id in ["head", "second", "third"] {
            running.send(id, Some("k"), None).await;
            ids.push(running.delivery(id).await.id);
        }
        running.wait(700).await;
        for id in ["head", "second", "third"] {
            assert_eq!(running.stands(id).await, (DeliveryState::Dead, Some(DeadCause::Expired), 0), "{id}");
        }
        let job = running.start_job(JobKind::Replay, JobFilter { ids: ids.split_off(1), ..JobFilter::default() }).await;
        tokio::spawn(jobs::run(running.gateway.clone()));
        running.wait(60).await;
        let job = running.gateway.store.job(&tenant(), job).await.unwrap().unwrap();
        let counts = job.counts();
        assert_eq!((job.state, counts.done, counts.waiting), (JobState::Finished, 2, 2));
    });
}

#[test]
fn a_backfill_sends_nothing_again_that_was_forgotten_for_the_tenants_own_retention() {
    DeadlineSimulation::answering(&[(200, None)]).live(json!({}), async |running| {
        let now = running.clock.now();
        let mut brief = tenant_record(now);
        brief.retention.finished = Some(Span::secs(3_600));
        change::put_tenant(&running.gateway, &Initiator::Gateway, brief).await.unwrap();
        // Another endpoint keeps the event, since it waits there.
        let other = running.gateway.store.create_endpoint(&Initiator::Gateway, endpoint(1, now)).await.unwrap();
        pause(&running.gateway, &Initiator::Gateway, &tenant(), other.id, None).await.unwrap();
        running.send("e", None, None).await;
        running.wait(10).await;
        let span = Span::secs(30 * 86_400);
        let kept = Retention { finished: span, dead: span, unmatched: span, audit: span };
        tokio::spawn(retention::run(running.gateway.clone(), kept));
        running.wait(4 * 3_600).await;
        let left = running.gateway.store.event_deliveries(&tenant(), &"e".parse().unwrap()).await.unwrap().unwrap();
        let left: Vec<EndpointId> = left.iter().map(|one| one.endpoint_id).collect();
        assert_eq!(left, [other.id], "the delivery that arrived is forgotten");
        let filter = JobFilter { endpoints: vec![running.endpoint], ..JobFilter::default() };
        let job = running.start_job(JobKind::Backfill, filter).await;
        tokio::spawn(jobs::run(running.gateway.clone()));
        running.wait(60).await;
        let job = running.gateway.store.job(&tenant(), job).await.unwrap().unwrap();
        assert_eq!((job.state, job.counts().left_out[&LeftOut::TooOld]), (JobState::Finished, 1));
        assert_eq!(running.asked().len(), 1, "it has had the event");
    });
}

#[test]
fn a_job_takes_each_delivery_that_it_names_whatever_the_order_of_their_times() {
    let replies = [(400, None), (400, None), (400, None), (200, None)];
    DeadlineSimulation::answering(&replies).live(json!({"max_in_flight": 1}), async |running| {
        running.wait(60).await;
        let (mut ids, arrived) = (Vec::new(), running.clock.now());
        // Producers who send at once: whose time is taken first is not always committed first.
        for (n, id) in ["first", "second", "third"].into_iter().enumerate() {
            let accepted_at = time_before(arrived, Duration::from_millis(n as u64));
            ids.push(running.accept_as_of(id, accepted_at).await);
            running.wait(1).await;
            assert_eq!(running.stands(id).await.0, DeliveryState::Dead);
        }
        running.wait(60).await;
        let job = running.start_job(JobKind::Replay, JobFilter { ids, ..JobFilter::default() }).await;
        tokio::spawn(jobs::run(running.gateway.clone()));
        running.wait(60).await;
        let job = running.gateway.store.job(&tenant(), job).await.unwrap().unwrap();
        assert_eq!((job.state, job.counts().done, job.counts().delivered), (JobState::Finished, 3, 3));
    });
}

#[test]
fn an_event_that_expires_ends_wherever_it_waits_and_its_lane_goes_on() {
    DeadlineSimulation::answering(&[(200, None)]).live(json!({}), async |running| {
        running.pause().await;
        running.send("head", Some("k"), Some(600)).await;
        running.send("middle", Some("k"), Some(60)).await;
        running.send("last", Some("k"), None).await;
        running.send("unkeyed", None, Some(60)).await;
        running.wait(61).await;
        for id in ["middle", "unkeyed"] {
            assert_eq!(running.stands(id).await, (DeliveryState::Dead, Some(DeadCause::Expired), 0), "{id}");
        }
        assert_eq!(running.stands("head").await.0, DeliveryState::Waiting);
        running.wait(600).await;
        assert_eq!(running.stands("head").await, (DeliveryState::Dead, Some(DeadCause::Expired), 0));
        running.resume().await;
        running.wait(1).await;
        assert_eq!(running.stands("last").await, (DeliveryState::Delivered, None, 1), "its lane has moved on");
        assert_eq!(running.asked().len(), 1, "nothing that was over was sent");
        // A person may send it all the same.
        let head = running.delivery("head").await.id;
        change_delivery(&running.gateway, &Initiator::Gateway, &tenant(), head, DeliveryChange::Replay).await.unwrap();
        running.wait(1).await;
        assert_eq!(running.stands("head").await, (DeliveryState::Delivered, None, 1));
    });
}

#[test]
fn an_event_that_expires_between_two_attempts_is_not_planned_past_it() {
    let retry = json!({"schedule": ["10m"], "jitter": "none"});
    DeadlineSimulation::answering(&[(500, None)]).live(json!({"retry": retry}), async |running| {
        running.send("e", Some("k"), Some(900)).await;
        running.send("next", Some("k"), None).await;
        running.wait(601).await;
        // The attempt at 1200 would come too late, so it is over at 600 already.
        assert_eq!(running.stands("e").await, (DeliveryState::Dead, Some(DeadCause::Expired), 2));
        assert_eq!(running.stands("next").await.2, 1, "its lane went on at once");
    });
}

#[test]
fn an_event_that_is_over_when_it_comes_is_kept_and_not_sent() {
    DeadlineSimulation::answering(&[(200, None)]).live(json!({}), async |running| {
        running.wait(100).await;
        let submission = Submission {
            id: Some("past".parse().unwrap()),
            event_type: "sim.event".parse().unwrap(),
            key: None,
            timestamp: None,
            schema_version: None,
            expires_at: Some(running.began),
            endpoints: None,
            is_test: false,
            trace: None,
            data: Bytes::from_static(b"{}"),
        };
        accept(&running.gateway, &tenant(), vec![submission], BatchMode::All).await.unwrap();
        running.wait(1).await;
        assert_eq!(running.stands("past").await, (DeliveryState::Dead, Some(DeadCause::Expired), 0));
        assert!(running.asked().is_empty());
    });
}

#[test]
fn a_changed_policy_takes_effect_with_the_next_verdict() {
    let slow = json!({"schedule": ["1h"], "jitter": "none"});
    DeadlineSimulation::answering(&[(500, None)]).live(json!({"retry": slow}), async |running| {
        running.send("e", None, None).await;
        running.wait(10).await;
        running.retry_policy(json!({"schedule": ["10s"], "jitter": "none", "max_attempts": 4})).await;
        running.wait(3_000).await;
        assert_eq!(running.asked().len(), 1, "what was decided stands");
        let told =
            explain_delivery(&running.gateway, &tenant(), running.delivery("e").await.id, CUSTOMER).await.unwrap();
        assert!(told.sentences.iter().any(|told| told.contains("has been changed since")), "{told:?}");
        running.wait(700).await;
        let asked: Vec<f64> = running.asked().iter().map(|(_, at)| at.round()).collect();
        assert_eq!(asked, [0.0, 3_600.0, 3_610.0, 3_620.0]);
        assert_eq!(running.stands("e").await, (DeliveryState::Dead, Some(DeadCause::Exhausted), 4));
        let told =
            explain_delivery(&running.gateway, &tenant(), running.delivery("e").await.id, CUSTOMER).await.unwrap();
        let second = &told.attempts[1].sentences;
        assert!(second.iter().any(|told| told.contains("policy had been changed: it was now 10s")), "{second:?}");
        assert_eq!(running.attempts("e").await.len(), 4);
    });
}

#[test]
fn another_ingest_rate_counts_from_the_moment_it_is_changed() {
    DeadlineSimulation::answering(&[(200, None)]).live(json!({}), async |running| {
        let limit_to = async |per_second| {
            let mut limited = tenant_record(running.clock.now());
            limited.quota.ingest = Rate { per_second, burst: 1 };
            change::put_tenant(&running.gateway, &Initiator::Gateway, limited).await.unwrap();
        };
        let is_taken = || {
            let rate = running.gateway.store.tenant(&tenant()).unwrap().quota.ingest;
            running.gateway.intake.charge(&tenant(), rate, 1, running.clock.now()).is_ok()
        };
        limit_to(0.001).await;
        assert!(is_taken() && !is_taken());
        limit_to(0.1).await;
        running.wait(10).await;
        assert!(is_taken(), "ten seconds at one in ten");
        running.wait(9).await;
        assert!(!is_taken());
    });
}
