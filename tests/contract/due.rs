//! Due reads: oldest first, bounded, and honest about what comes next.

use std::sync::Arc;

use posthaste::model::endpoint::Endpoint;
use posthaste::model::next_state::NextState;
use posthaste::model::shard::{Epoch, Lease};
use posthaste::store::{ArrivedDelivery, ArrivedQuery, DuePage, DueQuery, Error};
use serde_json::json;

use crate::fixture::{StoreFixture, at, event, event_id};

for_every_store! {
    what_is_due_comes_oldest_first_by_its_due_time,
    no_more_is_read_than_asked_for_and_the_next_due_time_is_told,
    what_the_asker_has_is_left_out,
    what_is_due_later_is_not_read_but_announced,
    bytes_bound_a_read_but_one_always_fits,
    each_endpoint_with_something_to_do_is_named_with_its_first_due_time,
    a_stale_lease_reads_nothing,
}

fn ask(endpoint: &Endpoint, until: i64, limit: usize) -> DueQuery {
    DueQuery {
        endpoint: endpoint.id,
        until: at(until),
        limit,
        bytes_max: usize::MAX,
        except: Default::default(),
        urgent_only: false,
    }
}

async fn read(fixture: &StoreFixture, ask: DueQuery) -> DuePage {
    fixture.store.read_due(fixture.lease(ask.endpoint), ask).await.unwrap()
}

fn ids(page: &DuePage) -> Vec<String> {
    page.claims.iter().map(event_id).collect()
}

/// Events `e1`, `e2`, … that are due at these seconds.
async fn due_at(fixture: &StoreFixture, seconds: &[i64]) -> Arc<Endpoint> {
    let endpoint = fixture.endpoint(json!({})).await;
    for (n, second) in seconds.iter().enumerate() {
        fixture.accept(event(&format!("e{}", n + 1)).at(at(*second)).to(&endpoint)).await;
    }
    endpoint
}

async fn what_is_due_comes_oldest_first_by_its_due_time(fixture: StoreFixture) {
    let endpoint = due_at(&fixture, &[1, 2, 3]).await;
    let first = fixture.due(&endpoint, at(1)).await.claims.remove(0);
    fixture.attempted(&first, NextState::Waiting { due_at: at(50) }, at(4)).await;
    let page = fixture.due(&endpoint, at(100)).await;
    assert_eq!(ids(&page), ["e2", "e3", "e1"]);
    assert_eq!(page.claims.iter().map(|claim| claim.due_at).collect::<Vec<_>>(), [at(2), at(3), at(50)]);
    assert_eq!(page.claims[2].progress.attempts, 1);
}

async fn no_more_is_read_than_asked_for_and_the_next_due_time_is_told(fixture: StoreFixture) {
    let endpoint = due_at(&fixture, &[1, 2, 3]).await;
    let page = read(&fixture, ask(&endpoint, 100, 2)).await;
    assert_eq!((ids(&page), page.next_due), (vec!["e1".into(), "e2".into()], Some(at(3))));
    let page = read(&fixture, ask(&endpoint, 100, 3)).await;
    assert_eq!((page.claims.len(), page.next_due), (3, None));
}

async fn what_the_asker_has_is_left_out(fixture: StoreFixture) {
    let endpoint = due_at(&fixture, &[1, 2, 3]).await;
    let held = fixture.due(&endpoint, at(100)).await.claims;
    let except = [held[0].id, held[2].id].into_iter().collect();
    let page = read(&fixture, DueQuery { except, ..ask(&endpoint, 100, 10) }).await;
    assert_eq!((ids(&page), page.next_due), (vec!["e2".into()], None));
}

async fn what_is_due_later_is_not_read_but_announced(fixture: StoreFixture) {
    let endpoint = due_at(&fixture, &[1, 20, 30]).await;
    let page = fixture.due(&endpoint, at(19)).await;
    assert_eq!((ids(&page), page.next_due), (vec!["e1".into()], Some(at(20))));
    assert_eq!(fixture.due_ids(&endpoint, at(20)).await, ["e1", "e2"], "due at a time means from it on");
}

async fn bytes_bound_a_read_but_one_always_fits(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let large = format!("\"{}\"", "x".repeat(1_000));
    for n in 1..=3 {
        fixture.accept(event(&format!("e{n}")).saying(&large).at(at(n)).to(&endpoint)).await;
    }
    let page = read(&fixture, DueQuery { bytes_max: 1, ..ask(&endpoint, 100, 10) }).await;
    assert_eq!((ids(&page), page.next_due), (vec!["e1".into()], Some(at(2))));
    let page = read(&fixture, DueQuery { bytes_max: 1_500, ..ask(&endpoint, 100, 10) }).await;
    assert_eq!(page.claims.len(), 2);
}

async fn each_endpoint_with_something_to_do_is_named_with_its_first_due_time(fixture: StoreFixture) {
    let busy = due_at(&fixture, &[7, 5]).await;
    let _idle = fixture.endpoint(json!({})).await;
    let done = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("done").to(&done)).await;
    fixture.deliver(&claim, at(1)).await;
    assert_eq!(fixture.store.earliest_due().await.unwrap(), [(busy.id, at(5))]);
    let fixture = fixture.reopened().await;
    assert_eq!(fixture.store.earliest_due().await.unwrap(), [(busy.id, at(5))]);
}

async fn a_stale_lease_reads_nothing(fixture: StoreFixture) {
    let endpoint = due_at(&fixture, &[1]).await;
    let lease = fixture.lease(endpoint.id);
    let stale = Lease { epoch: Epoch(lease.epoch.0 - 1), ..lease };
    let refused = fixture.store.read_due(stale, ask(&endpoint, 100, 10)).await.unwrap_err();
    assert!(matches!(refused, Error::Stale(shard) if shard == lease.shard), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_node_accepted_is_read_by_its_number_as_far_as_it_waits() {
    let fixture = StoreFixture::postgres().await;
    let endpoint = fixture.endpoint(json!({})).await;
    let large = format!("\"{}\"", "x".repeat(1_000));
    let mut deliveries = Vec::new();
    for n in 1..=4 {
        let claim = fixture.claim(event(&format!("e{n}")).saying(&large).at(at(n)).to(&endpoint)).await;
        let event = fixture.number(&format!("SELECT no FROM posthaste.events WHERE id = 'e{n}'")).await;
        deliveries.push(ArrivedDelivery { id: claim.id, event, due_at: claim.due_at });
        if n == 2 {
            fixture.deliver(&claim, at(5)).await;
        }
    }
    let lease = fixture.lease(endpoint.id);
    for (bytes_max, expected, reached) in
        [(usize::MAX, vec!["e1", "e3", "e4"], 4), (1_500, vec!["e1"], 2), (1, vec!["e1"], 1)]
    {
        let ask = ArrivedQuery { endpoint: endpoint.id, deliveries: deliveries.clone(), bytes_max };
        let read = fixture.store.read_arrived(lease, &ask).await.unwrap();
        let ids: Vec<String> = read.claims.iter().map(event_id).collect();
        assert_eq!(ids, expected);
        assert_eq!(read.reached, reached);
        let stale = Lease { epoch: Epoch(lease.epoch.0 - 1), ..lease };
        assert!(matches!(fixture.store.read_arrived(stale, &ask).await, Err(Error::Stale(_))));
    }
}
