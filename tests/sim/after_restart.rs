//! A start with a backlog in simulated time: an endpoint with much due is called
//! gently at first, and in full within seconds.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use posthaste::clock::{Clock, TokioClock};
use posthaste::lifecycle::deliver::send::Sender;
use posthaste::lifecycle::deliver::sign::SignedRequest;
use posthaste::lifecycle::mail::MailQueue;
use posthaste::model::answer::{Answer, Response, Timings};
use posthaste::model::audit::Initiator;
use posthaste::model::delivery::time_after;
use posthaste::model::span::Span;
use posthaste::store::embedded::{Durability, EmbeddedStore};
use posthaste::store::{BatchMode, Catalog, DeliveryQueue};

use super::faulty_store::FaultyStore;
use super::world::{endpoint, gateway, limits, new_event, tenant_record};

const CAP: usize = 32;
const TAKES: Duration = Duration::from_millis(100);

/// A receiver that answers after a while, and knows when each request began.
struct SlowReceiver {
    clock: Arc<dyn Clock>,
    began: Mutex<Vec<Timestamp>>,
}

#[async_trait::async_trait]
impl Sender for SlowReceiver {
    async fn send(&self, _: SignedRequest) -> Answer {
        let now = self.clock.now();
        self.began.lock().unwrap().push(now);
        self.clock.sleep_until(time_after(now, TAKES)).await;
        let response = Response { status: 200, ..Response::default() };
        Answer { result: Ok(response), timings: Timings { total: 100.0, ..Timings::default() } }
    }
}

/// Runs a gateway for ten seconds on a store with this many deliveries due. Returns
/// how long after its start each request began.
fn started_with(due: usize) -> Vec<Duration> {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let created = Timestamp::from_second(1_800_000_000).unwrap();
        let store = FaultyStore::steady(Arc::new(EmbeddedStore::open(folder.path(), Durability::Unsynced).unwrap()));
        store.put_tenant(&Initiator::Gateway, tenant_record(created)).await.unwrap();
        let mut endpoint = endpoint(3, created);
        endpoint.settings.max_in_flight = CAP as u32;
        store.create_endpoint(&Initiator::Gateway, endpoint.clone()).await.unwrap();
        let target = Arc::new(endpoint);
        let events = (0..due).map(|n| new_event(&format!("e{n}"), None, created, vec![target.clone()]));
        store.accept(events.collect(), BatchMode::All).await.unwrap();

        // An hour later: the node that accepted them is gone, and nothing was called.
        let start = time_after(created, Duration::from_secs(3_600));
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(start));
        let receiver = Arc::new(SlowReceiver { clock: clock.clone(), began: Mutex::default() });
        let mail = MailQueue::new(None, clock.clone());
        let keep = Span::secs(30 * 86_400);
        let gateway = gateway(Arc::new(store), receiver.clone(), &clock, mail, keep, limits(), 7);
        let dispatcher = gateway.dispatcher.clone();
        let dispatching = tokio::spawn(async move { dispatcher.run().await });
        clock.sleep_until(time_after(start, Duration::from_secs(10))).await;
        dispatching.abort();
        let began = receiver.began.lock().unwrap();
        began.iter().map(|at| at.duration_since(start).unsigned_abs()).collect()
    })
}

fn begun_within(began: &[Duration], from: Duration, to: Duration) -> usize {
    began.iter().filter(|at| (from..to).contains(*at)).count()
}

#[test]
fn an_endpoint_with_much_due_at_a_start_is_ramped_and_called_in_full_within_five_seconds() {
    let began = started_with(4_000);
    let at_once = begun_within(&began, Duration::ZERO, TAKES);
    assert!(at_once <= 2, "{at_once} requests began at once");
    let first_second = begun_within(&began, Duration::ZERO, Duration::from_secs(1));
    assert!(first_second < 10 * CAP / 2, "{first_second} began in the first second");
    let full = begun_within(&began, Duration::from_secs(5), Duration::from_secs(6));
    assert!(full >= 9 * CAP, "{full} began in a second after the ramp, of {} that the cap allows", 10 * CAP);
}

#[test]
fn an_endpoint_with_little_due_at_a_start_is_not_held_up() {
    let began = started_with(4 * CAP);
    let at_once = begun_within(&began, Duration::ZERO, TAKES);
    assert_eq!(at_once, CAP, "the cap is used at once");
}
