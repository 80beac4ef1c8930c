//! Codes that this version does not know, because a newer one wrote them:
//! they are an error that names them, and what holds them stays as it is.

use posthaste::model::delivery::{DeadCause, DeliveryState};
use posthaste::model::delivery_filter::DeliveryFilter;
use posthaste::model::id::DeliveryId;
use posthaste::store::{DeliveryChange, Error, PageRequest, UntriedQuery};
use serde_json::json;

use crate::fixture::{StoreFixture, at, event, ours};

for_every_store! {
    what_has_an_unknown_format_is_neither_sent_nor_ended_nor_shown_as_another,
    what_has_an_unknown_state_is_neither_changed_nor_shown_as_another,
    what_died_of_an_unknown_cause_is_neither_changed_nor_shown_with_another,
    data_that_is_withheld_for_an_unknown_reason_is_not_shown_with_another,
}

/// A code of a version to come.
const NEWER: i64 = 99;

impl StoreFixture {
    /// Writes a code into a delivery's row, as a newer version does. Where
    /// such a row is: all in one table, or in this one of the shared store.
    async fn write_code(&self, table: &str, id: DeliveryId, column: &str, code: i64) {
        let no = id.0.as_u128() & 0x3fff_ffff_ffff_ffff;
        // A newer version would know the right checksum; there is no damage here.
        let (table, also) = if self.is_shared() { (table, "") } else { ("deliveries", ", checksum = NULL") };
        self.execute(&format!("UPDATE {table} SET {column} = {code}{also} WHERE no = {no}")).await;
    }

    async fn try_list(&self, ask: DeliveryFilter) -> Result<Vec<DeliveryId>, Error> {
        let page = self.store.deliveries(&ours(), ask, PageRequest { cursor: None, limit: 100 }).await?;
        Ok(page.data.iter().map(|delivery| delivery.id).collect())
    }

    /// Checks that whoever asks for this delivery, alone or among others, or
    /// would change it is told of the code.
    async fn expect_unknown(&self, id: DeliveryId, column: &str) {
        names(&self.store.delivery(&ours(), id).await.unwrap_err(), column);
        names(&self.try_list(DeliveryFilter::default()).await.unwrap_err(), column);
        for change in
            [DeliveryChange::RetryNow, DeliveryChange::Cancel, DeliveryChange::Replay, DeliveryChange::Discard]
        {
            names(&self.change(id, change, at(50)).await.unwrap_err(), column);
        }
    }
}

#[track_caller]
fn names(problem: &Error, column: &str) {
    let words = problem.to_string();
    assert!(matches!(problem, Error::UnknownCode(_)), "{problem:?}");
    assert!(words.contains(&format!(".{column} is {NEWER}")) && words.contains("newer version"), "{words}");
}

async fn what_has_an_unknown_format_is_neither_sent_nor_ended_nor_shown_as_another(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("newer").key("k").expiring(at(10)).to(&endpoint)).await;
    fixture.accept(event("behind").key("k").to(&endpoint)).await;
    let other = fixture.claim(event("other").to(&endpoint)).await;
    let before = format!("{:?}", fixture.delivery(claim.id).await);
    fixture.write_code("queue", claim.id, "format", NEWER).await;

    assert_eq!(fixture.due_ids(&endpoint, at(100)).await, ["other"], "it and its lane are left alone");
    assert!(fixture.store.read_overdue(at(100), 100).await.unwrap().found.is_empty());
    let ask = UntriedQuery { before: at(100), after: None, limit: 100 };
    let untried = fixture.store.read_untried(&ours(), ask).await.unwrap();
    assert!(untried.found.iter().all(|untried| untried.id != claim.id));
    fixture.expect_unknown(claim.id, "format").await;
    fixture.deliver(&other, at(20)).await;
    let delivered = DeliveryFilter { state: Some(DeliveryState::Delivered), ..DeliveryFilter::default() };
    assert_eq!(fixture.try_list(delivered).await.unwrap(), [other.id], "what does not meet it is told");

    fixture.write_code("queue", claim.id, "format", 0).await;
    assert_eq!(format!("{:?}", fixture.delivery(claim.id).await), before);
    assert_eq!(fixture.due_ids(&endpoint, at(100)).await, ["newer"], "whoever knows it goes on with it");
}

async fn what_has_an_unknown_state_is_neither_changed_nor_shown_as_another(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    fixture.deliver(&claim, at(1)).await;
    let before = format!("{:?}", fixture.delivery(claim.id).await);
    if fixture.is_shared() {
        fixture.execute("ALTER TABLE finished DROP CONSTRAINT finished_state_check").await;
    }
    fixture.write_code("finished", claim.id, "state", NEWER).await;
    fixture.expect_unknown(claim.id, "state").await;
    for state in [DeliveryState::Waiting, DeliveryState::Delivered, DeliveryState::Dead, DeliveryState::Cancelled] {
        let ask = DeliveryFilter { state: Some(state), ..DeliveryFilter::default() };
        assert!(fixture.try_list(ask).await.unwrap().is_empty(), "{state:?}");
    }
    fixture.write_code("finished", claim.id, "state", 1).await;
    assert_eq!(format!("{:?}", fixture.delivery(claim.id).await), before);
}

async fn what_died_of_an_unknown_cause_is_neither_changed_nor_shown_with_another(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    fixture.die(&claim, DeadCause::Refused, at(1)).await;
    let before = format!("{:?}", fixture.delivery(claim.id).await);
    fixture.write_code("dead", claim.id, "cause", NEWER).await;
    fixture.expect_unknown(claim.id, "cause").await;
    for cause in [DeadCause::Refused, DeadCause::Poisoned] {
        let ask = DeliveryFilter { cause: Some(cause), ..DeliveryFilter::default() };
        assert!(fixture.try_list(ask).await.unwrap().is_empty(), "{cause:?}");
    }
    fixture.write_code("dead", claim.id, "cause", 2).await;
    assert_eq!(format!("{:?}", fixture.delivery(claim.id).await), before);
}

async fn data_that_is_withheld_for_an_unknown_reason_is_not_shown_with_another(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let claim = fixture.claim(event("a").to(&endpoint)).await;
    fixture.deliver(&claim, at(1)).await;
    fixture.execute(&format!("UPDATE events SET data_withheld = {NEWER}")).await;
    names(&fixture.store.event(&ours(), &claim.event.id).await.unwrap_err(), "data_withheld");
    let page = PageRequest { cursor: None, limit: 10 };
    names(&fixture.store.events(&ours(), Default::default(), page).await.unwrap_err(), "data_withheld");
}
