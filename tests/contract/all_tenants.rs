//! Lists over all tenants: each delivery once, in order, and a page that has
//! looked at its limit says how far back.

use posthaste::model::audit::Initiator;
use posthaste::model::delivery::{DeadCause, DeliveryState};
use posthaste::model::delivery_filter::DeliveryFilter;
use posthaste::store::{BatchMode, DeliveryChange, EventQuery, ListPage, PageRequest};
use serde_json::json;

use crate::fixture::{StoreFixture, at, event, ours};

for_every_store! {
    the_deliveries_of_all_tenants_are_listed_newest_first_and_each_once,
    the_dead_letters_of_all_tenants_are_found_by_the_time_of_their_death,
    what_belongs_to_a_deleted_tenant_is_not_listed,
    every_page_that_looked_at_its_limit_says_how_far_back,
}

async fn listed(fixture: &StoreFixture, filter: DeliveryFilter, limit: usize) -> Vec<String> {
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let page = fixture.store.all_deliveries(filter.clone(), PageRequest { cursor, limit }).await.unwrap();
        assert_eq!(page.looked_back_to, None, "so few are no limit");
        found.extend(page.data.iter().map(|delivery| delivery.event_id.to_string()));
        match page.next {
            Some(next) => cursor = Some(next),
            None => return found,
        }
    }
}

async fn the_deliveries_of_all_tenants_are_listed_newest_first_and_each_once(fixture: StoreFixture) {
    let other = fixture.put_tenant("other").await;
    let (one, two) = (fixture.endpoint(json!({})).await, fixture.endpoint_of(&other, json!({})).await);
    let mut claims = Vec::new();
    for n in 0..3 {
        claims.push(fixture.claim(event(&format!("a{n}")).at(at(10 * n)).to(&one)).await);
        claims.push(fixture.claim(event(&format!("b{n}")).at(at(10 * n + 5)).of(&other).to(&two)).await);
    }
    fixture.deliver(&claims[0], at(100)).await;
    fixture.die(&claims[1], DeadCause::Refused, at(101)).await;
    fixture.change(claims[2].id, DeliveryChange::Cancel, at(102)).await.unwrap();
    let of = |state| DeliveryFilter { state, ..Default::default() };
    for limit in [1, 2, 100] {
        assert_eq!(listed(&fixture, of(None), limit).await, ["b2", "a2", "b1", "a1", "b0", "a0"], "{limit}");
        assert_eq!(listed(&fixture, of(Some(DeliveryState::Waiting)), limit).await, ["b2", "a2", "b1"]);
        assert_eq!(listed(&fixture, of(Some(DeliveryState::Dead)), limit).await, ["b0"]);
        assert_eq!(listed(&fixture, of(Some(DeliveryState::Cancelled)), limit).await, ["a1"]);
        assert_eq!(listed(&fixture, of(Some(DeliveryState::Delivered)), limit).await, ["a0"]);
    }
    let later = DeliveryFilter { since: Some(at(15)), until: Some(at(25)), ..Default::default() };
    assert_eq!(listed(&fixture, later, 100).await, ["a2", "b1"]);
}

async fn the_dead_letters_of_all_tenants_are_found_by_the_time_of_their_death(fixture: StoreFixture) {
    let other = fixture.put_tenant("other").await;
    let (one, two) = (fixture.endpoint(json!({})).await, fixture.endpoint_of(&other, json!({})).await);
    let first = fixture.claim(event("first").at(at(1)).to(&one)).await;
    let second = fixture.claim(event("second").at(at(2)).of(&other).to(&two)).await;
    let third = fixture.claim(event("third").at(at(3)).to(&one)).await;
    fixture.die(&third, DeadCause::Refused, at(50)).await;
    fixture.die(&second, DeadCause::Exhausted, at(60)).await;
    fixture.die(&first, DeadCause::Refused, at(60)).await;
    let died = |since, until| DeliveryFilter {
        state: Some(DeliveryState::Dead),
        finished_since: Some(at(since)),
        finished_until: Some(at(until)),
        ..Default::default()
    };
    for limit in [1, 2, 100] {
        assert_eq!(listed(&fixture, died(0, 100), limit).await, ["second", "first", "third"], "{limit}");
        assert_eq!(listed(&fixture, died(55, 100), limit).await, ["second", "first"]);
        assert_eq!(listed(&fixture, died(0, 60), limit).await, ["third"]);
        let refused = DeliveryFilter { cause: Some(DeadCause::Refused), ..died(0, 100) };
        assert_eq!(listed(&fixture, refused, limit).await, ["first", "third"]);
    }
}

async fn what_belongs_to_a_deleted_tenant_is_not_listed(fixture: StoreFixture) {
    let other = fixture.put_tenant("other").await;
    let (one, two) = (fixture.endpoint(json!({})).await, fixture.endpoint_of(&other, json!({})).await);
    for (id, tenant, endpoint) in [("a", &ours(), &one), ("b", &other, &two)] {
        let claim = fixture.claim(event(id).of(tenant).to(endpoint)).await;
        fixture.die(&claim, DeadCause::Refused, at(5)).await;
    }
    fixture.store.delete_tenant(&Initiator::Gateway, &other, at(9)).await.unwrap();
    let dead = DeliveryFilter { state: Some(DeliveryState::Dead), ..Default::default() };
    let by_finish = DeliveryFilter { finished_since: Some(at(0)), ..dead.clone() };
    for filter in [DeliveryFilter::default(), dead, by_finish] {
        assert_eq!(listed(&fixture, filter, 10).await, ["a"]);
    }
}

/// More events than one page looks at, and none of the kind that is asked for
/// but the oldest.
const MANY: i64 = 10_500;

async fn every_page_that_looked_at_its_limit_says_how_far_back(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    fixture.accept(event("rare").key("rare").at(at(0)).to(&endpoint)).await;
    for first in (0..MANY).step_by(500) {
        let batch = (first..first + 500).map(|n| event(&format!("e{n}")).key("usual").at(at(n + 1)).to(&endpoint));
        fixture.accept_all(batch.collect(), BatchMode::All).await;
    }
    let key = Some("rare".to_owned());
    let deliveries = DeliveryFilter { key: key.clone(), ..Default::default() };
    let of_endpoint = DeliveryFilter { endpoint: Some(endpoint.id), ..deliveries.clone() };
    let events = EventQuery { key, ..Default::default() };
    let store = &fixture.store;
    looks_back("one tenant", async |page| store.deliveries(&ours(), deliveries.clone(), page).await.unwrap()).await;
    looks_back("an endpoint", async |page| store.deliveries(&ours(), of_endpoint.clone(), page).await.unwrap()).await;
    looks_back("all tenants", async |page| store.all_deliveries(deliveries.clone(), page).await.unwrap()).await;
    looks_back("events", async |page| store.events(&ours(), events.clone(), page).await.unwrap()).await;
}

/// Checks that the list finds the oldest alone, on its last page, and that each
/// page before it says how far back it has looked, ever further.
async fn looks_back<T>(list: &str, read: impl AsyncFn(PageRequest) -> ListPage<T>) {
    let (mut cursor, mut looked_back_to) = (None, at(MANY + 1));
    for pages in 1.. {
        let page = read(PageRequest { cursor, limit: 10 }).await;
        let Some(next) = page.next else {
            assert_eq!((page.data.len(), page.looked_back_to), (1, None), "{list}");
            assert!(pages > 1, "{list}: one page looked at everything");
            return;
        };
        assert!(page.data.is_empty(), "{list}");
        let so_far = page.looked_back_to.unwrap_or_else(|| panic!("{list}: it does not say how far back"));
        assert!(at(0) < so_far && so_far < looked_back_to, "{list}: {so_far}");
        (cursor, looked_back_to) = (Some(next), so_far);
    }
}
