//! Endpoints that change again and again while an event is accepted.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use posthaste::clock::{Clock, TokioClock};
use posthaste::lifecycle::accept::{AcceptRefusal, Submission, accept};
use posthaste::lifecycle::deliver::send::Sender;
use posthaste::lifecycle::deliver::sign::SignedRequest;
use posthaste::lifecycle::mail::MailQueue;
use posthaste::model::answer::{Answer, Response, Timings};
use posthaste::model::audit::Initiator;
use posthaste::model::span::Span;
use posthaste::store::embedded::{Durability, EmbeddedStore};
use posthaste::store::{BatchMode, Catalog, Error, Store};

use super::faulty_store::FaultyStore;
use super::world::{endpoint, gateway, limits, tenant, tenant_record};

struct AcceptingSender;

#[async_trait]
impl Sender for AcceptingSender {
    async fn send(&self, _: SignedRequest) -> Answer {
        Answer { result: Ok(Response { status: 200, ..Response::default() }), timings: Timings::default() }
    }
}

fn submission(id: &str) -> Submission {
    Submission {
        id: Some(id.parse().unwrap()),
        event_type: "sim.event".parse().unwrap(),
        key: None,
        timestamp: None,
        schema_version: None,
        expires_at: None,
        endpoints: None,
        is_test: false,
        trace: None,
        data: Bytes::from_static(b"{}"),
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_is_matched_again_a_few_times_and_then_its_producer_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let store = FaultyStore::steady(Arc::new(EmbeddedStore::open(folder.path(), Durability::Unsynced).unwrap()));
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(now));
    store.put_tenant(&Initiator::Gateway, tenant_record(now)).await.unwrap();
    store.create_endpoint(&Initiator::Gateway, endpoint(0, now)).await.unwrap();
    let shared: Arc<dyn Store> = Arc::new(store.clone());
    let mail = MailQueue::new(None, clock.clone());
    let gateway = gateway(shared, Arc::new(AcceptingSender), &clock, mail, Span::secs(86_400), limits(), 1);

    store.outdate(3);
    let accepted = accept(&gateway, &tenant(), vec![submission("soon")], BatchMode::All).await.unwrap();
    assert_eq!(accepted[0].as_ref().unwrap().deliveries, 1, "it goes to the endpoints of now");

    store.outdate(1_000_000);
    let refused = accept(&gateway, &tenant(), vec![submission("never")], BatchMode::All).await;
    assert!(matches!(refused, Err(AcceptRefusal::Store(Error::Outdated))), "{refused:?}");
    let tries = 1_000_000 - store.left_outdated();
    assert!((2..=100).contains(&tries), "it was tried {tries} times");
    store.outdate(0);
    let again = accept(&gateway, &tenant(), vec![submission("never")], BatchMode::All).await.unwrap();
    assert!(!again[0].as_ref().unwrap().is_duplicate, "nothing of it was stored");
}
