//! The self-test in simulated time: its age stays low while deliveries are made,
//! and rises when they are not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use posthaste::clock::{Clock, TokioClock};
use posthaste::lifecycle::deliver::self_test_receiver::SelfTestReceiver;
use posthaste::lifecycle::deliver::send::Sender;
use posthaste::lifecycle::deliver::sign::SignedRequest;
use posthaste::lifecycle::mail::MailQueue;
use posthaste::lifecycle::self_test;
use posthaste::model::answer::{Answer, AttemptFailure, FailureKind, Timings};
use posthaste::model::audit::Initiator;
use posthaste::model::delivery::time_after;
use posthaste::model::id::TenantId;
use posthaste::model::span::Span;
use posthaste::model::tenant::Tenant;
use posthaste::store::embedded::{Durability, EmbeddedStore};
use posthaste::store::{Catalog, EventQuery, PageRequest, Store};

use super::faulty_store::FaultyStore;
use super::world::{gateway, limits, tenant_record};

/// Sends to the receiver inside the process, unless sending is broken.
struct PipeSender {
    receiver: SelfTestReceiver,
    is_broken: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
}

#[async_trait]
impl Sender for PipeSender {
    async fn send(&self, request: SignedRequest) -> Answer {
        self.sent.fetch_add(1, Ordering::SeqCst);
        if self.is_broken.load(Ordering::SeqCst) {
            let failure = AttemptFailure::new(FailureKind::Unreachable, "nothing is sent");
            return Answer { result: Err(failure), timings: Timings::default() };
        }
        self.receiver.exchange(request).await
    }
}

#[test]
fn its_age_rises_where_nothing_is_accepted_from_the_start_on() {
    let folder = tempfile::tempdir().unwrap();
    let store = FaultyStore::steady(Arc::new(EmbeddedStore::open(folder.path(), Durability::Unsynced).unwrap()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let began = Timestamp::from_second(1_800_000_000).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(began));
        let store: Arc<dyn Store> = Arc::new(store);
        let receiver = SelfTestReceiver::new(store.clone(), clock.clone());
        let sender = PipeSender { receiver, is_broken: Default::default(), sent: Default::default() };
        let mail = MailQueue::new(None, clock.clone());
        let gateway = gateway(store.clone(), Arc::new(sender), &clock, mail, Span::secs(86_400), limits(), 1);
        let dispatcher = gateway.dispatcher.clone();
        let dispatching = tokio::spawn(async move { dispatcher.run().await });
        let testing = tokio::spawn(self_test::run(gateway.clone()));
        // The tenant that its events belong to is missing.
        clock.sleep_until(time_after(began, Duration::from_secs(600))).await;
        let age = || gateway.metrics.self_test_age(clock.now());
        assert_eq!(age(), Some(Duration::from_secs(600)));
        let system = Tenant { id: TenantId::system(), ..tenant_record(began) };
        store.put_tenant(&Initiator::Gateway, system).await.unwrap();
        clock.sleep_until(time_after(began, Duration::from_secs(690))).await;
        assert!(age().is_some_and(|age| age <= Duration::from_secs(61)), "{:?}", age());
        testing.abort();
        dispatching.abort();
    });
}

#[test]
fn its_age_is_below_a_minute_while_deliveries_are_made_and_rises_while_they_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let store = FaultyStore::steady(Arc::new(EmbeddedStore::open(folder.path(), Durability::Unsynced).unwrap()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let began = Timestamp::from_second(1_800_000_000).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(began));
        let system = Tenant { id: TenantId::system(), ..tenant_record(began) };
        store.put_tenant(&Initiator::Gateway, system).await.unwrap();
        let (is_broken, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let store: Arc<dyn Store> = Arc::new(store);
        let receiver = SelfTestReceiver::new(store.clone(), clock.clone());
        let sender = PipeSender { receiver, is_broken: is_broken.clone(), sent: sent.clone() };
        let mail = MailQueue::new(None, clock.clone());
        let gateway = gateway(store.clone(), Arc::new(sender), &clock, mail, Span::secs(86_400), limits(), 1);
        let dispatcher = gateway.dispatcher.clone();
        let dispatching = tokio::spawn(async move { dispatcher.run().await });
        let testing = tokio::spawn(self_test::run(gateway.clone()));
        let age = || gateway.metrics.self_test_age(clock.now()).unwrap();
        let events = async || {
            let page = PageRequest { cursor: None, limit: 500 };
            store.events(&TenantId::system(), EventQuery::default(), page).await.unwrap().data.len()
        };
        let pass = async |minutes: u64| {
            let now = clock.now();
            clock.sleep_until(time_after(now, Duration::from_secs(60 * minutes + 30))).await;
        };

        pass(60).await;
        assert!(age() <= Duration::from_secs(61), "{:?}", age());
        assert_eq!((sent.load(Ordering::SeqCst), events().await), (61, 0), "once a minute, and nothing is left");
        assert_eq!(store.self_test_endpoints().len(), 1);

        is_broken.store(true, Ordering::SeqCst);
        pass(10).await;
        assert!(age() >= Duration::from_secs(10 * 60), "{:?}", age());
        assert_eq!(events().await, 1, "no second one is sent before the first has arrived");

        is_broken.store(false, Ordering::SeqCst);
        pass(60).await;
        assert!(age() <= Duration::from_secs(61), "{:?}", age());
        assert_eq!(events().await, 0);
        testing.abort();
        dispatching.abort();
    });
}
