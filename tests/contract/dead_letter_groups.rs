//! The counts of dead letters are right whatever is done to the dead letters.

use std::collections::BTreeMap;

use jiff::Timestamp;
use posthaste::model::audit::Initiator;
use posthaste::model::dead_letter_group::{DAY_MS, DeadLetterGroup, DeadLetterSpan, GroupBy, GroupField, GroupFilter};
use posthaste::model::delivery::{DeadCause, Delivery, DeliveryState};
use posthaste::model::id::TenantId;
use posthaste::model::named_enum::NamedEnum;
use posthaste::model::next_state::NextState;
use posthaste::store::{ClaimOutcome, DeliveryChange, Store};
use serde_json::json;

use crate::fixture::{StoreFixture, at, attempted, event, ours, settlement};

for_every_store! {
    every_change_of_a_dead_letter_changes_the_counts_in_the_same_commit,
    groups_are_as_coarse_as_they_are_asked_for_and_the_sum_stays,
    dead_letters_of_a_group_are_counted_by_the_time_of_their_death,
    an_answer_that_comes_after_the_death_moves_it_to_another_group,
    a_success_that_comes_after_the_death_takes_it_out,
    what_is_forgotten_or_belongs_to_a_deleted_tenant_is_not_counted,
}

/// One group: endpoint, cause, answer and day.
type GroupKey = (String, Option<&'static str>, Option<String>, Option<String>);

/// Asserts that the counts of a tenant are those of these deliveries, which are all it has.
pub async fn assert_counts(store: &dyn Store, tenant: &TenantId, deliveries: &[Delivery]) {
    let mut counted: BTreeMap<GroupKey, (u64, Timestamp, Timestamp)> = BTreeMap::new();
    for delivery in deliveries.iter().filter(|delivery| delivery.state == DeliveryState::Dead) {
        let died_at = delivery.finished_at.expect("a dead letter has died");
        let answer = delivery.last_status.map(|status| status.to_string());
        let answer = answer.or_else(|| delivery.last_error.as_ref().map(|error| error.kind.as_str().to_owned()));
        let day = jiff::tz::Offset::UTC.to_datetime(died_at).date().to_string();
        let key = (delivery.endpoint_id.to_string(), delivery.cause.map(NamedEnum::as_str), answer, Some(day));
        let (count, oldest, newest) = counted.entry(key).or_insert((0, died_at, died_at));
        (*count, *oldest, *newest) = (*count + 1, died_at.min(*oldest), died_at.max(*newest));
    }
    let found = store.dead_letter_groups(Some(tenant), GroupFilter::default(), 1_000).await.expect("it is read");
    let sum: u64 = counted.values().map(|(count, ..)| count).sum();
    assert_eq!((found.count, found.groups), (sum, counted.len() as u64));
    assert_eq!(found.oldest_at, counted.values().map(|(_, oldest, _)| *oldest).min());
    let tallied: BTreeMap<GroupKey, (u64, Timestamp, Timestamp)> =
        found.data.into_iter().map(|group| (key(&group), (group.count, group.oldest_at, group.newest_at))).collect();
    assert_eq!(tallied, counted);
}

fn key(group: &DeadLetterGroup) -> GroupKey {
    let endpoint = group.endpoint.map(|id| id.to_string()).unwrap_or_default();
    let day = group.day.map(|day| day.to_string());
    (endpoint, group.cause.map(NamedEnum::as_str), group.answer.clone(), day)
}

async fn assert_ours(fixture: &StoreFixture) -> u64 {
    let all = fixture.list(Default::default(), 500).await;
    assert_counts(&*fixture.store, &ours(), &all).await;
    all.iter().filter(|delivery| delivery.state == DeliveryState::Dead).count() as u64
}

async fn every_change_of_a_dead_letter_changes_the_counts_in_the_same_commit(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let mut dead = Vec::new();
    for n in 0..4 {
        let claim = fixture.claim(event(&format!("e{n}")).to(&endpoint)).await;
        fixture.die(&claim, DeadCause::Refused, at(10 + n)).await;
        dead.push(claim.id);
        assert_eq!(assert_ours(&fixture).await, n as u64 + 1);
    }
    fixture.change(dead[0], DeliveryChange::Replay, at(20)).await.unwrap();
    assert_eq!(assert_ours(&fixture).await, 3);
    fixture.change(dead[1], DeliveryChange::Discard, at(21)).await.unwrap();
    assert_eq!(assert_ours(&fixture).await, 2);
    assert!(fixture.store.expunge(&Initiator::Gateway, &ours(), &"e2".parse().unwrap()).await.unwrap());
    assert_eq!(assert_ours(&fixture).await, 2, "without its data it is still a dead letter");
    fixture.change(dead[3], DeliveryChange::Cancel, at(22)).await.unwrap_err();
    assert_eq!(assert_ours(&fixture).await, 2);
    let again = fixture.due(&endpoint, at(20)).await.claims.remove(0);
    fixture.die(&again, DeadCause::Exhausted, at(DAY_MS / 1_000 + 5)).await;
    assert_eq!(assert_ours(&fixture).await, 3);
    let fixture = fixture.reopened().await;
    assert_eq!(assert_ours(&fixture).await, 3);
}

async fn dead_letters_of_a_group_are_counted_by_the_time_of_their_death(fixture: StoreFixture) {
    let (one, two) = (fixture.endpoint(json!({})).await, fixture.endpoint(json!({})).await);
    for n in 0..5 {
        let claim = fixture.claim(event(&format!("e{n}")).to(&one)).await;
        fixture.die(&claim, DeadCause::Refused, at(10 + n)).await;
    }
    let other = fixture.claim(event("other").to(&two)).await;
    fixture.die(&other, DeadCause::Refused, at(12)).await;
    let count = async |cause, answer: &str, (since, until), most| {
        let answer = Some(answer.to_owned());
        let (tenant, endpoint, since, until) = (ours(), one.id, at(since), at(until));
        let of = DeadLetterSpan { tenant, endpoint, cause, answer, since, until };
        fixture.store.count_dead_letters(of, most).await.unwrap()
    };
    assert_eq!(count(DeadCause::Refused, "400", (0, 100), 100).await, 5);
    assert_eq!(count(DeadCause::Refused, "400", (12, 14), 100).await, 2, "the end does not count");
    assert_eq!(count(DeadCause::Refused, "400", (0, 100), 3).await, 3, "no further than asked for");
    assert_eq!(count(DeadCause::Refused, "503", (0, 100), 100).await, 0);
    assert_eq!(count(DeadCause::Exhausted, "400", (0, 100), 100).await, 0);
}

async fn groups_are_as_coarse_as_they_are_asked_for_and_the_sum_stays(fixture: StoreFixture) {
    let (one, two) = (fixture.endpoint(json!({})).await, fixture.endpoint(json!({})).await);
    // Seconds from the beginning to the next midnight.
    let day = (DAY_MS - at(0).as_millisecond() % DAY_MS) / 1_000;
    for (n, (endpoint, cause, died_at)) in [
        (&one, DeadCause::Refused, 10),
        (&one, DeadCause::Refused, day + 10),
        (&one, DeadCause::Exhausted, day + 20),
        (&two, DeadCause::Refused, day + 30),
    ]
    .into_iter()
    .enumerate()
    {
        let claim = fixture.claim(event(&format!("e{n}")).to(endpoint)).await;
        fixture.die(&claim, cause, at(died_at)).await;
    }
    let groups = async |filter: GroupFilter| fixture.store.dead_letter_groups(Some(&ours()), filter, 10).await.unwrap();
    let by = |fields: &[GroupField]| Some(GroupBy::of(fields));
    let all = groups(GroupFilter { by: by(&[GroupField::Endpoint]), ..Default::default() }).await;
    let counts: Vec<_> = all.data.iter().map(|group| (group.endpoint, group.count, group.oldest_at)).collect();
    assert_eq!(counts, [(Some(one.id), 3, at(10)), (Some(two.id), 1, at(day + 30))]);
    assert_eq!(all.data[0].newest_at, at(day + 20));
    assert_eq!((all.count, all.groups, all.oldest_at), (4, 2, Some(at(10))));
    assert!(all.data.iter().all(|group| group.cause.is_none() && group.answer.is_none() && group.day.is_none()));
    let refused = GroupFilter { by: by(&[GroupField::Day]), cause: Some(DeadCause::Refused), ..Default::default() };
    let counts: Vec<_> = groups(refused).await.data.iter().map(|group| group.count).collect();
    assert_eq!(counts, [2, 1]);
    let second_day = GroupFilter { finished_since: Some(at(day + 25)), ..Default::default() };
    assert_eq!(groups(second_day).await.count, 3, "whole days count");
    let first_day = GroupFilter { finished_until: Some(at(day)), ..Default::default() };
    assert_eq!(groups(first_day).await.count, 1);
    assert_eq!(groups(GroupFilter { endpoint: Some(two.id), ..Default::default() }).await.count, 1);
    for (answer, count) in [("400", 3), ("503", 1), ("404", 0), ("4xx", 3), ("5xx", 1), ("3xx", 0), ("timeout", 0)] {
        let answer = Some(answer.parse().unwrap());
        assert_eq!(groups(GroupFilter { answer, ..Default::default() }).await.count, count, "{answer:?}");
    }
    let most =
        fixture.store.dead_letter_groups(None, GroupFilter { by: by(&[GroupField::Tenant]), ..Default::default() }, 1);
    assert_eq!(most.await.unwrap().data[0].tenant, Some(ours()));
}

async fn an_answer_that_comes_after_the_death_moves_it_to_another_group(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    let lease = fixture.lease(endpoint.id);
    let over = ClaimOutcome::Expired { by: posthaste::model::delivery::DeadlineSource::Hold, progress: claim.progress };
    fixture.store.settle(lease, settlement(&claim, over, at(5))).await.unwrap();
    assert_eq!(assert_ours(&fixture).await, 1);
    let late = attempted(&claim, NextState::Waiting { due_at: at(50) }, at(6));
    fixture.store.settle(lease, settlement(&claim, late, at(6))).await.unwrap();
    assert_eq!(assert_ours(&fixture).await, 1);
    let found = fixture.store.dead_letter_groups(None, GroupFilter::default(), 10).await.unwrap();
    assert!(found.data[0].answer.is_some(), "{found:?}");
}

async fn a_success_that_comes_after_the_death_takes_it_out(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    let lease = fixture.lease(endpoint.id);
    let over = ClaimOutcome::Expired { by: posthaste::model::delivery::DeadlineSource::Hold, progress: claim.progress };
    fixture.store.settle(lease, settlement(&claim, over, at(5))).await.unwrap();
    fixture.deliver(&claim, at(6)).await;
    assert_eq!(assert_ours(&fixture).await, 0);
}

async fn what_is_forgotten_or_belongs_to_a_deleted_tenant_is_not_counted(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    for n in 0..3 {
        let claim = fixture.claim(event(&format!("e{n}")).to(&endpoint)).await;
        fixture.die(&claim, DeadCause::Refused, at(10 * n)).await;
    }
    fixture.forget(at(0), at(15)).await;
    assert_eq!(assert_ours(&fixture).await, 1);
    let other = fixture.put_tenant("other").await;
    let theirs = fixture.endpoint_of(&other, json!({})).await;
    let claim = fixture.claim(event("x").of(&other).to(&theirs)).await;
    fixture.die(&claim, DeadCause::Refused, at(30)).await;
    let all = async || fixture.store.dead_letter_groups(None, GroupFilter::default(), 10).await.unwrap().count;
    assert_eq!(all().await, 2);
    fixture.store.delete_tenant(&Initiator::Gateway, &other, at(40)).await.unwrap();
    assert_eq!(all().await, 1);
}
