//! Retention in simulated time: finished deliveries are deleted in time, and
//! waiting ones never are.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use posthaste::clock::{Clock, TokioClock};
use posthaste::lifecycle::Gateway;
use posthaste::lifecycle::deliver::send::Sender;
use posthaste::lifecycle::deliver::sign::SignedRequest;
use posthaste::lifecycle::linked_data::{LinkRefusal, follow};
use posthaste::lifecycle::mail::MailQueue;
use posthaste::lifecycle::retention::{Retention, run};
use posthaste::model::answer::{Answer, Timings};
use posthaste::model::attempt::{Attempt, Decision};
use posthaste::model::audit::Initiator;
use posthaste::model::delivery::{DeadCause, Progress, time_after};
use posthaste::model::delivery_filter::DeliveryFilter;
use posthaste::model::id::TenantId;
use posthaste::model::next_state::NextState;
use posthaste::model::span::Span;
use posthaste::model::verdict::Verdict;
use posthaste::store::embedded::{Durability, EmbeddedStore};
use posthaste::store::{
    AcceptResult, Catalog, Claim, ClaimOutcome, DeliveryQueue, EndpointUpdate, EventQuery, History, PageRequest,
    Settlement,
};

use super::faulty_store::FaultyStore;
use super::world::{endpoint, gateway, limits, new_event, tenant, tenant_record};

fn attempted(claim: &Claim, next: NextState, now: Timestamp) -> Settlement {
    let decision = Decision::of(Verdict::Delivered, "2xx");
    let attempt = Attempt {
        number: 1,
        started_at: now,
        timings: Timings::default(),
        url: String::new(),
        url_version: 1,
        status: Some(200),
        error: None,
        refused_target: None,
        custom_headers: Vec::new(),
        signatures: Vec::new(),
        secret_id: None,
        traceparent: None,
        response_headers: Vec::new(),
        response_body: String::new(),
        truncated: false,
        body_sha256: String::new(),
        decision,
    };
    let progress = Progress { attempts: 1, age_from: Some(now), ..claim.progress };
    let outcome = ClaimOutcome::Attempted {
        attempt: attempt.into(),
        next,
        progress,
        expiry_check_at: None,
        update: EndpointUpdate::default(),
    };
    Settlement { id: claim.id, endpoint: claim.endpoint, now, outcome }
}

async fn left(store: &FaultyStore) -> Vec<String> {
    let page = || PageRequest { cursor: None, limit: 500 };
    let deliveries = store.deliveries(&tenant(), DeliveryFilter::default(), page()).await.unwrap().data;
    let events = store.events(&tenant(), EventQuery::default(), page()).await.unwrap().data;
    let mut names: Vec<String> = deliveries.iter().map(|delivery| delivery.event_id.to_string()).collect();
    let mut kept: Vec<String> = events.iter().map(|record| record.event.id.to_string()).collect();
    names.sort();
    kept.sort();
    assert_eq!(names, kept, "an event goes with its last delivery, and not before");
    names
}

#[test]
fn a_process_that_starts_sweeps_within_its_first_minute_but_not_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = FaultyStore::steady(Arc::new(EmbeddedStore::open(folder.path(), Durability::Unsynced).unwrap()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let began = Timestamp::from_second(1_800_000_000).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(began));
        let long_ago = time_after(Timestamp::UNIX_EPOCH, Duration::from_secs(1_700_000_000));
        store.put_tenant(&Initiator::Gateway, tenant_record(long_ago)).await.unwrap();
        let old = new_event("old", None, long_ago, Vec::new());
        store.accept(vec![old], posthaste::store::BatchMode::All).await.unwrap();
        let retention = Retention {
            finished: Span::secs(86_400),
            dead: Span::secs(86_400),
            unmatched: Span::secs(86_400),
            audit: Span::secs(86_400),
        };
        let chore = tokio::spawn(run(sweeping(&store, &clock), retention));
        clock.sleep_until(time_after(began, Duration::from_secs(9))).await;
        assert_eq!(left_events(&store).await, ["old"]);
        clock.sleep_until(time_after(began, Duration::from_secs(61))).await;
        assert!(left_events(&store).await.is_empty());
        chore.abort();
    });
}

async fn left_events(store: &FaultyStore) -> Vec<String> {
    let page = PageRequest { cursor: None, limit: 500 };
    let events = store.events(&tenant(), EventQuery::default(), page).await.unwrap().data;
    events.iter().map(|record| record.event.id.to_string()).collect()
}

/// A gateway that sends nothing.
fn sweeping(store: &FaultyStore, clock: &Arc<dyn Clock>) -> Arc<Gateway> {
    let (mail, day) = (MailQueue::new(None, clock.clone()), Span::secs(86_400));
    gateway(Arc::new(store.clone()), Arc::new(UnusedSender), clock, mail, day, limits(), 1)
}

/// A sender that must not be called.
struct UnusedSender;

#[async_trait::async_trait]
impl Sender for UnusedSender {
    async fn send(&self, request: SignedRequest) -> Answer {
        panic!("{request:?} is not to be sent")
    }
}

/// A link expires with its delivery's retention, even before the next sweep.
#[test]
fn a_link_is_good_as_long_as_its_delivery_is_to_be_kept() {
    let folder = tempfile::tempdir().unwrap();
    let embedded = EmbeddedStore::open(folder.path(), Durability::Unsynced).unwrap();
    let store = FaultyStore::steady(Arc::new(embedded));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let began = Timestamp::from_second(1_800_000_000).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(began));
        store.put_tenant(&Initiator::Gateway, tenant_record(began)).await.unwrap();
        let endpoint = store.create_endpoint(&Initiator::Gateway, endpoint(0, began)).await.unwrap();
        let (gateway, day) = (sweeping(&store, &clock), Span::secs(86_400));
        let lease = store.lease(&tenant(), endpoint.id);
        let mut deliveries = Vec::new();
        for (id, next) in [
            ("delivered", Some(NextState::Delivered)),
            ("dead", Some(NextState::Dead(DeadCause::Refused))),
            ("waiting", None),
        ] {
            let new = new_event(id, None, began, vec![endpoint.clone()]);
            let accepted = store.accept(vec![new], posthaste::store::BatchMode::All).await.unwrap();
            let [AcceptResult::New { claims, .. }] = &accepted[..] else { panic!("it is new") };
            if let Some(next) = next {
                store.settle(lease, attempted(&claims[0], next, began)).await.unwrap();
            }
            deliveries.push((id, claims[0].id));
        }
        let good = async || {
            let mut good = Vec::new();
            for (id, delivery) in &deliveries {
                let url = gateway.links.url(None, &tenant(), *delivery).unwrap();
                let signature = url.split_once("?signature=").unwrap().1;
                match follow(&gateway, &tenant(), *delivery, signature).await {
                    Ok(found) => good.push(found.event.to_string()),
                    Err(why) => assert!(matches!(why, LinkRefusal::Over), "{id}: {why}"),
                }
            }
            good
        };
        assert_eq!(good().await, ["delivered", "dead", "waiting"]);
        clock.sleep_until(time_after(began, day.0)).await;
        assert_eq!(good().await, ["delivered", "dead", "waiting"]);
        clock.sleep_until(time_after(began, day.0 + Duration::from_secs(1))).await;
        assert_eq!(good().await, ["dead", "waiting"]);
        clock.sleep_until(time_after(began, 3 * day.0 + Duration::from_secs(1))).await;
        assert_eq!(good().await, ["waiting"]);
    });
}

#[test]
fn finished_deliveries_go_after_their_retention_and_waiting_ones_never() {
    let folder = tempfile::tempdir().unwrap();
    let embedded = Arc::new(EmbeddedStore::open(folder.path(), Durability::Unsynced).unwrap());
    let store = FaultyStore::steady(embedded);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let began = Timestamp::from_second(1_800_000_000).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(began));
        store.put_tenant(&Initiator::Gateway, tenant_record(began)).await.unwrap();
        let mut system = tenant_record(began);
        system.id = TenantId::system();
        store.put_tenant(&Initiator::Gateway, system).await.unwrap();
        let endpoint = store.create_endpoint(&Initiator::Gateway, endpoint(0, began)).await.unwrap();
        let lease = store.lease(&tenant(), endpoint.id);
        for (id, next) in [
            ("delivered", Some(NextState::Delivered)),
            ("dead", Some(NextState::Dead(DeadCause::Refused))),
            ("waiting", None),
        ] {
            let new = new_event(id, None, began, vec![endpoint.clone()]);
            let accepted = store.accept(vec![new], posthaste::store::BatchMode::All).await.unwrap();
            let [AcceptResult::New { claims, .. }] = &accepted[..] else { panic!("it is new") };
            if let Some(next) = next {
                store.settle(lease, attempted(&claims[0], next, began)).await.unwrap();
            }
        }
        let retention = Retention {
            finished: Span::secs(30 * 86_400),
            dead: Span::secs(90 * 86_400),
            unmatched: Span::secs(30 * 86_400),
            audit: Span::secs(90 * 86_400),
        };
        let chore = tokio::spawn(run(sweeping(&store, &clock), retention));
        let day = |n: u64| time_after(began, Duration::from_secs(n * 86_400));
        clock.sleep_until(day(29)).await;
        assert_eq!(left(&store).await, ["dead", "delivered", "waiting"]);
        clock.sleep_until(day(31)).await;
        assert_eq!(left(&store).await, ["dead", "waiting"]);
        clock.sleep_until(day(91)).await;
        assert_eq!(left(&store).await, ["waiting"]);
        let page = PageRequest { cursor: None, limit: 10 };
        let told = store.events(&TenantId::system(), EventQuery::default(), page).await.unwrap().data;
        assert_eq!(told[0].event.event_type.as_str(), "delivery.forgotten", "a dead letter does not go in silence");
        clock.sleep_until(day(400)).await;
        assert_eq!(left(&store).await, ["waiting"]);
        chore.abort();
    });
}
