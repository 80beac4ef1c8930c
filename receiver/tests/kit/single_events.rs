//! What each inbox does with one or a few events.

use std::time::{Duration, SystemTime};

use posthaste_receiver::{HandlerError, InboxError, InboxSettings, Lanes, Place, Received, WaitingEvents};
use tokio::time::timeout;

use crate::inboxes::{GAP_TIMEOUT, KINDS, Kind, Outcome, TestInbox, event};
use crate::signed::at;

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn start() -> SystemTime {
    at(1_700_000_000)
}

#[tokio::test]
async fn a_repeat_is_recognised_and_has_no_effect() {
    for kind in KINDS {
        let test = TestInbox::open(kind).await;
        let first = test.inbox.receive(event("a", None), start()).await.unwrap();
        let again = test.inbox.receive(event("a", None), start()).await.unwrap();
        assert_eq!((first, again), (Received::Applied(Place::Unordered), Received::Duplicate), "{kind:?}");
        assert_eq!(test.shown_effects().await, ["a unordered"], "{kind:?}");
        let counted = test.inbox.counters().read();
        assert_eq!((counted.applied, counted.duplicates), (1, 1), "{kind:?}");
    }
}

#[tokio::test]
async fn an_event_whose_handler_failed_is_released_with_all_it_did() {
    for kind in KINDS {
        let test = TestInbox::open(kind).await;
        test.script.push(Outcome::Fail);
        test.script.push(Outcome::Refuse);
        let failed = test.inbox.receive(event("a", Some(("k", 1))), start()).await;
        assert!(matches!(failed, Err(InboxError::Handler(HandlerError::Retry(_)))), "{kind:?}");
        let refused = test.inbox.receive(event("a", Some(("k", 1))), start()).await;
        assert!(matches!(refused, Err(InboxError::Handler(HandlerError::Refuse(_)))), "{kind:?}");
        assert!(test.effects().await.is_empty(), "{kind:?}");
        let applied = test.inbox.receive(event("a", Some(("k", 1))), start()).await.unwrap();
        assert_eq!(applied, Received::Applied(Place::Next), "{kind:?}");
        let counted = test.inbox.counters().read();
        assert_eq!((counted.handler_failures, counted.refused, counted.applied), (1, 1, 1), "{kind:?}");
    }
}

#[tokio::test]
async fn a_handler_that_panics_leaves_nothing_behind() {
    for kind in KINDS {
        let test = TestInbox::open(kind).await;
        test.script.push(Outcome::Panic);
        let inbox = test.inbox.clone();
        let panicked =
            tokio::spawn(async move { inbox.receive(event("a", Some(("k", 1))), start()).await.is_err() }).await;
        assert!(panicked.is_err() || panicked.unwrap(), "{kind:?}");
        let applied = test.inbox.receive(event("a", Some(("k", 1))), start()).await.unwrap();
        assert_eq!(applied, Received::Applied(Place::Next), "{kind:?}");
        assert_eq!(test.shown_effects().await, ["a next"], "{kind:?}");
    }
}

#[tokio::test]
async fn an_early_event_is_stored_and_applied_after_its_predecessors() {
    for kind in KINDS {
        let test = TestInbox::open(kind).await;
        for early in ["c", "b"] {
            let seq = if early == "b" { 2 } else { 3 };
            let stored = test.inbox.receive(event(early, Some(("k", seq))), start()).await.unwrap();
            assert_eq!(stored, Received::Stored, "{kind:?}");
            let again = test.inbox.receive(event(early, Some(("k", seq))), start()).await.unwrap();
            assert_eq!(again, Received::Duplicate, "{kind:?}");
        }
        let round = test.inbox.apply_due(start()).await.unwrap();
        assert_eq!((round.applied, round.next_at), (0, Some(start() + GAP_TIMEOUT)), "{kind:?}");
        // Another key, and the same key of no lane, do not wait.
        test.inbox.receive(event("x", Some(("other", 1))), start()).await.unwrap();
        test.inbox.receive(event("a", Some(("k", 1))), start()).await.unwrap();
        let round = test.inbox.apply_due(start()).await.unwrap();
        assert_eq!((round.applied, round.next_at), (2, None), "{kind:?}");
        assert_eq!(test.shown_effects().await, ["x next", "a next", "b next", "c next"], "{kind:?}");
    }
}

#[tokio::test]
async fn a_gap_is_reported_after_the_timeout_and_what_comes_then_is_late() {
    for kind in KINDS {
        let test = TestInbox::open(kind).await;
        test.inbox.receive(event("a", Some(("k", 1))), start()).await.unwrap();
        test.inbox.receive(event("d", Some(("k", 4))), start()).await.unwrap();
        test.inbox.receive(event("e", Some(("k", 5))), start() + GAP_TIMEOUT / 2).await.unwrap();
        let just_before = start() + GAP_TIMEOUT - Duration::from_millis(1);
        assert_eq!(test.inbox.apply_due(just_before).await.unwrap().applied, 0, "{kind:?}");
        assert_eq!(test.inbox.apply_due(start() + GAP_TIMEOUT).await.unwrap().applied, 2, "{kind:?}");
        let late = test.inbox.receive(event("b", Some(("k", 2))), start() + MINUTE).await.unwrap();
        assert_eq!(late, Received::Applied(Place::Late { applied: 5 }), "{kind:?}");
        assert_eq!(test.shown_effects().await, ["a next", "d after 2-3", "e next", "b late 5"], "{kind:?}");
        let counted = test.inbox.counters().read();
        assert_eq!((counted.gaps, counted.missing, counted.late), (1, 2, 1), "{kind:?}");
        assert!(counted.lag_max_ms >= 30_000, "{kind:?}: {counted:?}");
    }
}

#[tokio::test]
async fn a_stored_event_that_fails_holds_its_lane_and_is_tried_again() {
    for kind in KINDS {
        let test = TestInbox::open(kind).await;
        for (id, seq) in [("c", 3), ("b", 2), ("a", 1)] {
            test.inbox.receive(event(id, Some(("k", seq))), start()).await.unwrap();
        }
        test.script.push(Outcome::Fail);
        let round = test.inbox.apply_due(start()).await.unwrap();
        let again_at = start() + Duration::from_secs(1);
        assert_eq!((round.applied, round.failed, round.next_at), (0, 1, Some(again_at)), "{kind:?}");
        assert_eq!(
            test.inbox.receive(event("d", Some(("k", 4))), start()).await.unwrap(),
            Received::Stored,
            "{kind:?}"
        );
        test.script.push(Outcome::Refuse);
        let round = test.inbox.apply_due(again_at).await.unwrap();
        assert_eq!((round.applied, round.failed), (3, 0), "{kind:?}");
        assert_eq!(test.shown_effects().await, ["a next", "c next", "d next"], "{kind:?}: b was refused for good");
        let repeat = test.inbox.receive(event("b", Some(("k", 2))), again_at).await.unwrap();
        assert_eq!(repeat, Received::Duplicate, "{kind:?}");
    }
}

#[tokio::test]
async fn a_refused_event_that_was_released_is_applied_when_it_is_replayed() {
    for kind in KINDS {
        let test = TestInbox::open(kind).await;
        for (id, seq) in [("d", 4), ("b", 2), ("a", 1)] {
            test.inbox.receive(event(id, Some(("k", seq))), start()).await.unwrap();
        }
        test.script.push(Outcome::Refuse);
        assert_eq!(test.inbox.apply_due(start()).await.unwrap().applied, 1, "{kind:?}");
        for (tenant, id) in [("t", "a"), ("t", "d"), ("t", "nobody"), ("other", "b")] {
            assert!(!test.inbox.release(tenant, id).await.unwrap(), "{kind:?}: {tenant} {id} was not refused");
        }
        assert!(test.inbox.release("t", "b").await.unwrap(), "{kind:?}");
        assert!(!test.inbox.release("t", "b").await.unwrap(), "{kind:?}: it is gone");
        let replayed = test.inbox.receive(event("b", Some(("k", 2))), start()).await.unwrap();
        assert_eq!(replayed, Received::Applied(Place::Late { applied: 2 }), "{kind:?}");
        assert_eq!(test.shown_effects().await, ["a next", "b late 2"], "{kind:?}");
    }
}

#[tokio::test]
async fn an_inbox_says_how_many_events_wait_and_for_how_long() {
    for kind in KINDS {
        let test = TestInbox::open(kind).await;
        assert_eq!(test.inbox.waiting(start()).await.unwrap(), WaitingEvents::default(), "{kind:?}");
        for (id, place, later) in [("c", ("k", 3), 0), ("b", ("k", 2), 1), ("y", ("other", 2), 2)] {
            test.inbox.receive(event(id, Some(place)), start() + Duration::from_secs(later)).await.unwrap();
        }
        let waiting = test.inbox.waiting(start() + MINUTE).await.unwrap();
        assert_eq!(waiting, WaitingEvents { count: 3, oldest: Some(MINUTE) }, "{kind:?}");
        test.inbox.receive(event("a", Some(("k", 1))), start()).await.unwrap();
        test.inbox.apply_due(start() + Duration::from_secs(3)).await.unwrap();
        let waiting = test.inbox.waiting(start() + MINUTE).await.unwrap();
        assert_eq!(waiting, WaitingEvents { count: 1, oldest: Some(Duration::from_secs(58)) }, "{kind:?}");
    }
}

/// Stores `b` of the lane `bad`, which is due first, and `y` of the lane `good`,
/// and applies the events before them.
async fn store_two_lanes(test: &TestInbox) {
    for (id, lane, later) in [("b", "bad", 0), ("y", "good", 1)] {
        let at = start() + Duration::from_secs(later);
        assert_eq!(test.inbox.receive(event(id, Some((lane, 2))), at).await.unwrap(), Received::Stored);
    }
    for (id, lane) in [("a", "bad"), ("x", "good")] {
        test.inbox.receive(event(id, Some((lane, 1))), start()).await.unwrap();
    }
}

#[tokio::test]
async fn a_stored_event_that_panics_or_cannot_be_committed_holds_no_other_lane() {
    for (kind, outcome) in KINDS.into_iter().flat_map(|kind| [(kind, Outcome::Panic), (kind, Outcome::Uncommittable)]) {
        let test = TestInbox::open(kind).await;
        store_two_lanes(&test).await;
        let now = start() + Duration::from_secs(1);
        test.script.push(outcome);
        let round = test.inbox.apply_due(now).await.unwrap();
        let again_at = now + Duration::from_secs(1);
        assert_eq!((round.applied, round.failed, round.next_at), (1, 1, Some(again_at)), "{kind:?} {outcome:?}");
        assert_eq!(test.inbox.apply_due(again_at).await.unwrap().applied, 1, "{kind:?} {outcome:?}");
        let mut effects = test.shown_effects().await;
        // In memory the lanes have no order among them.
        if kind == Kind::Memory {
            effects[2..].sort_by(|one, other| other.cmp(one));
        }
        assert_eq!(effects, ["a next", "x next", "y next", "b next"], "{kind:?} {outcome:?}");
        assert_eq!(test.inbox.counters().read().handler_failures, 1, "{kind:?} {outcome:?}");
    }
}

#[tokio::test]
async fn a_lane_whose_database_fails_is_reported_after_the_others_had_their_turn() {
    for kind in KINDS {
        let test = TestInbox::open(kind).await;
        store_two_lanes(&test).await;
        if !test.spoil("b").await {
            continue;
        }
        let round = test.inbox.apply_due(start() + MINUTE).await;
        assert!(matches!(round, Err(InboxError::Store(_))), "{kind:?}: {round:?}");
        assert_eq!(test.shown_effects().await, ["a next", "x next", "y next"], "{kind:?}");
    }
}

#[tokio::test]
async fn a_lane_takes_no_more_than_it_may() {
    for kind in KINDS {
        let settings = InboxSettings { waiting_max: 2, ..InboxSettings::default() };
        let test = TestInbox::open_with(kind, settings).await;
        for seq in [5, 4] {
            test.inbox.receive(event(&format!("e{seq}"), Some(("k", seq))), start()).await.unwrap();
        }
        let full = test.inbox.receive(event("e3", Some(("k", 3))), start()).await;
        assert!(matches!(full, Err(InboxError::Overloaded)), "{kind:?}");
        let next = test.inbox.receive(event("e1", Some(("k", 1))), start()).await.unwrap();
        assert_eq!(next, Received::Applied(Place::Next), "{kind:?}");
    }
}

#[tokio::test]
async fn lanes_are_what_the_endpoint_says() {
    for kind in KINDS {
        for (lanes, second) in [(Lanes::Endpoint, Received::Stored), (Lanes::None, Received::Applied(Place::Unordered))]
        {
            let settings = InboxSettings { lanes, ..InboxSettings::default() };
            let test = TestInbox::open_with(kind, settings).await;
            let received = test.inbox.receive(event("b", Some(("other", 2))), start()).await.unwrap();
            assert_eq!(received, second, "{kind:?} {lanes:?}");
            test.inbox.receive(event("a", Some(("k", 1))), start()).await.unwrap();
            test.inbox.apply_due(start()).await.unwrap();
            let order = if lanes == Lanes::Endpoint { ["a", "b"] } else { ["b", "a"] };
            let ids: Vec<String> = test.effects().await.into_iter().map(|effect| effect.id).collect();
            assert_eq!(ids, order, "{kind:?} {lanes:?}");
        }
    }
}

#[tokio::test]
async fn ids_and_lanes_are_forgotten_after_the_retention_and_what_waits_is_not() {
    for kind in KINDS {
        let test = TestInbox::open(kind).await;
        test.inbox.receive(event("a", Some(("k", 1))), start()).await.unwrap();
        test.inbox.receive(event("w", Some(("waiting", 9))), start()).await.unwrap();
        assert_eq!(test.inbox.forget(start() + 14 * DAY).await.unwrap(), 0, "{kind:?}");
        let repeat = test.inbox.receive(event("a", Some(("k", 1))), start() + 14 * DAY).await.unwrap();
        assert_eq!(repeat, Received::Duplicate, "{kind:?}");
        let later = start() + 14 * DAY + MINUTE;
        assert_eq!(test.inbox.forget(later).await.unwrap(), 2, "{kind:?}: an id and a lane");
        assert_eq!(test.inbox.apply_due(later).await.unwrap().applied, 1, "{kind:?}");
        assert_eq!(test.shown_effects().await, ["a next", "w after 1-8"], "{kind:?}");
    }
}

#[tokio::test]
async fn the_same_id_of_two_tenants_is_two_events() {
    let body = |tenant: &str| format!(r#"{{"id":"a","type":"t","timestamp":"2026","tenant":"{tenant}","data":1}}"#);
    let of = |tenant: &str| {
        let body = body(tenant).into();
        posthaste_receiver::Event::read(Default::default(), &http::HeaderMap::new(), body, None).unwrap()
    };
    for kind in KINDS {
        let test = TestInbox::open(kind).await;
        for tenant in ["one", "two"] {
            let received = test.inbox.receive(of(tenant), start()).await.unwrap();
            assert_eq!(received, Received::Applied(Place::Unordered), "{kind:?}");
        }
    }
}

#[tokio::test]
async fn a_stored_event_is_handed_over_as_it_came() {
    use std::sync::{Arc, Mutex};
    let seen: Arc<Mutex<Vec<posthaste_receiver::Event>>> = Arc::default();
    let keep = seen.clone();
    let handler = move |_: &rusqlite::Transaction<'_>, event: &posthaste_receiver::Event, _: &Place| {
        keep.lock().unwrap().push(event.clone());
        Ok(())
    };
    let connection = rusqlite::Connection::open_in_memory().unwrap();
    let inbox = posthaste_receiver::SqliteInbox::open(connection, handler, InboxSettings::default()).unwrap();
    let early = event("b", Some(("k", 2)));
    inbox.receive_blocking(&early, start()).unwrap();
    inbox.apply_due_blocking(start() + MINUTE).unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(*seen, [early]);
    assert_eq!(seen[0].data(), Some(r#"{"n": 1}"#));
}

#[tokio::test]
async fn while_an_event_is_applied_its_repeats_and_successors_do_not_wait() {
    for kind in [Kind::Memory, Kind::Postgres] {
        let test = TestInbox::open(kind).await;
        test.script.push(Outcome::Hold);
        let inbox = test.inbox.clone();
        let first = tokio::spawn(async move { inbox.receive(event("a", Some(("k", 1))), start()).await.unwrap() });
        test.script.is_held.notified().await;
        let repeat = timeout(MINUTE, test.inbox.receive(event("a", Some(("k", 1))), start())).await.unwrap();
        assert!(matches!(repeat, Err(InboxError::InProgress)), "{kind:?}");
        let successor = timeout(MINUTE, test.inbox.receive(event("b", Some(("k", 2))), start())).await.unwrap();
        assert_eq!(successor.unwrap(), Received::Stored, "{kind:?}");
        let round = timeout(MINUTE, test.inbox.apply_due(start() + MINUTE)).await.unwrap().unwrap();
        assert_eq!(round.applied, 0, "{kind:?}: the lane is busy");
        test.script.go_on.notify_one();
        assert_eq!(first.await.unwrap(), Received::Applied(Place::Next), "{kind:?}");
        assert_eq!(test.inbox.apply_due(start()).await.unwrap().applied, 1, "{kind:?}");
        assert_eq!(test.shown_effects().await, ["a next", "b next"], "{kind:?}");
    }
}

#[tokio::test]
async fn an_abandoned_request_releases_its_event_and_its_lane() {
    let test = TestInbox::open(Kind::Memory).await;
    let mut first = test.inbox.receive(event("a", Some(("k", 1))), start());
    assert!(std::future::poll_fn(|context| std::task::Poll::Ready(first.as_mut().poll(context))).await.is_pending());
    drop(first);
    assert!(test.effects().await.is_empty());
    let again = test.inbox.receive(event("a", Some(("k", 1))), start()).await.unwrap();
    assert_eq!(again, Received::Applied(Place::Next));
}

/// The one who stores and the one who moves the lane on meet at the lane's row,
/// which a third one holds until both are there.
#[tokio::test]
async fn what_is_stored_while_its_lane_moves_on_is_found() {
    let (database, pool, test) = TestInbox::open_alone().await;
    test.inbox.receive(event("a", Some(("k", 1))), start()).await.unwrap();
    test.script.push(Outcome::Hold);
    let inbox = test.inbox.clone();
    let applied = tokio::spawn(async move { inbox.receive(event("b", Some(("k", 2))), start()).await.unwrap() });
    test.script.is_held.notified().await;

    let mut holder = pool.get().await.unwrap();
    let holder = holder.transaction().await.unwrap();
    holder.batch_execute("SELECT 1 FROM posthaste_inbox_lane FOR UPDATE").await.unwrap();
    let waiting = async |n: i64| {
        let question =
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        while database.number(question).await < n {
            tokio::task::yield_now().await;
        }
    };
    let inbox = test.inbox.clone();
    let stored = tokio::spawn(async move { inbox.receive(event("c", Some(("k", 3))), start()).await.unwrap() });
    timeout(MINUTE, waiting(1)).await.unwrap();
    test.script.go_on.notify_one();
    timeout(MINUTE, waiting(2)).await.unwrap();
    holder.rollback().await.unwrap();

    assert_eq!(stored.await.unwrap(), Received::Stored);
    assert_eq!(applied.await.unwrap(), Received::Applied(Place::Next));
    assert_eq!(test.inbox.apply_due(start()).await.unwrap().applied, 1);
    assert_eq!(test.shown_effects().await, ["a next", "b next", "c next"]);
}
