//! What needs attention in simulated time: a night's dead letters are still told in
//! the morning.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use posthaste::clock::{Clock, TokioClock};
use posthaste::lifecycle::Gateway;
use posthaste::lifecycle::accept::{Submission, accept};
use posthaste::lifecycle::attention::collect;
use posthaste::lifecycle::deliver::send::Sender;
use posthaste::lifecycle::deliver::sign::SignedRequest;
use posthaste::lifecycle::mail::MailQueue;
use posthaste::model::answer::{Answer, Response, Timings};
use posthaste::model::attention::{AttentionItem, AttentionKind, Severity};
use posthaste::model::audit::Initiator;
use posthaste::model::delivery::time_after;
use posthaste::model::span::Span;
use posthaste::store::embedded::{Durability, EmbeddedStore};
use posthaste::store::{BatchMode, Catalog};

use super::faulty_store::FaultyStore;
use super::world::{endpoint, gateway, limits, tenant, tenant_record};

/// A receiver that refuses everything.
struct RefusingReceiver;

#[async_trait::async_trait]
impl Sender for RefusingReceiver {
    async fn send(&self, _: SignedRequest) -> Answer {
        let response = Response { status: 400, ..Response::default() };
        Answer { result: Ok(response), timings: Timings { total: 10.0, ..Timings::default() } }
    }
}

async fn dead_letters_told(gateway: &Gateway) -> Option<AttentionItem> {
    let items = collect(gateway, Some(&tenant())).await.items;
    items.into_iter().find(|item| item.kind == AttentionKind::DeadGrowing)
}

#[test]
fn the_dead_letters_of_a_night_are_told_in_the_morning_and_for_two_days() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let began: Timestamp = "2027-01-15T22:00:00Z".parse().unwrap();
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(began));
        let store = FaultyStore::steady(Arc::new(EmbeddedStore::open(folder.path(), Durability::Unsynced).unwrap()));
        store.put_tenant(&Initiator::Gateway, tenant_record(began)).await.unwrap();
        store.create_endpoint(&Initiator::Gateway, endpoint(3, began)).await.unwrap();
        let mail = MailQueue::new(None, clock.clone());
        let keep = Span::secs(30 * 86_400);
        let gateway = gateway(Arc::new(store), Arc::new(RefusingReceiver), &clock, mail, keep, limits(), 7);
        let dispatcher = gateway.dispatcher.clone();
        let dispatching = tokio::spawn(async move { dispatcher.run().await });
        for _ in 0..12 {
            let submission = Submission::new("sim.event".parse().unwrap(), Bytes::from_static(b"{}"));
            accept(&gateway, &tenant(), vec![submission], BatchMode::All).await.unwrap();
        }
        let hours = |hours: u64| time_after(began, Duration::from_secs(hours * 3_600));

        clock.sleep_until(time_after(began, Duration::from_secs(600))).await;
        let growing = dead_letters_told(&gateway).await.expect("they are told while they grow");
        assert!(growing.reason.contains("they grow: the last died"), "{}", growing.reason);

        // 09:00, on the next UTC day and hours after the last death.
        clock.sleep_until(hours(11)).await;
        let morning = dead_letters_told(&gateway).await.expect("they are told in the morning");
        assert_eq!(morning.severity, Severity::Warning);
        let said = "12 dead letters since 2027-01-15 are neither replayed nor discarded; the last died 1";
        assert!(morning.reason.starts_with(said), "{}", morning.reason);
        assert!(morning.command.contains("dead-letters replay") && morning.command.contains("--dry-run"));

        clock.sleep_until(hours(49)).await;
        let old = dead_letters_told(&gateway).await.expect("old ones are told of their tenant");
        assert_eq!((old.severity, old.endpoint), (Severity::Warning, None));
        assert!(old.reason.starts_with("12 dead letters since 2027-01-15 are neither"), "{}", old.reason);
        assert!(old.command.starts_with("posthaste dead-letters groups"), "{}", old.command);
        // Days later the tally has them among the days before.
        clock.sleep_until(hours(100)).await;
        let later = dead_letters_told(&gateway).await.expect("they are told until somebody deals with them");
        assert_eq!(later.reason, old.reason);
        dispatching.abort();
    });
}
