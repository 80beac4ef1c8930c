//! Deliveries that are shuffled, repeated, dropped, abandoned and answered in
//! vain, with handlers that fail and machines that stop: each event has one
//! effect, in order per key.

use std::collections::{BTreeMap, BTreeSet};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use posthaste_receiver::BoxFuture;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::inboxes::{Effect, Kind, Outcome, TestInbox, event};
use crate::signed::at;

/// One request, and what happens around it.
#[derive(Debug, Clone)]
struct Request {
    event: usize,
    /// Time that passes before it.
    pause_ms: u32,
    is_round_before: bool,
    outcome: Outcome,
    /// The answer does not come back, so the event is sent again.
    is_answer_lost: bool,
    /// The request is abandoned after so many steps.
    abandoned_after: Option<u8>,
}

/// Events of a few lanes, by lane and place; no lane for those without a key.
#[derive(Debug, Clone)]
struct Story {
    events: Vec<Option<(usize, u64)>>,
    requests: Vec<Request>,
}

fn story(can_time_pass: bool) -> impl Strategy<Value = Story> {
    let lanes = proptest::collection::vec(1_u64..7, 1..4);
    (lanes, 0_usize..3).prop_flat_map(move |(lanes, unordered)| {
        let ordered = lanes.iter().enumerate().flat_map(|(lane, last)| (1..=*last).map(move |seq| Some((lane, seq))));
        let events: Vec<_> = ordered.chain(std::iter::repeat_n(None, unordered)).collect();
        let count = events.len();
        let repeats = proptest::collection::vec(0_usize..4, count);
        repeats
            .prop_flat_map(move |repeats| {
                let sent: Vec<usize> = repeats.iter().enumerate().flat_map(|(n, times)| vec![n; *times]).collect();
                Just(sent).prop_shuffle().prop_flat_map(move |sent| {
                    sent.into_iter().map(|event| request(event, can_time_pass)).collect::<Vec<_>>()
                })
            })
            .prop_map(move |requests| Story { events: events.clone(), requests })
    })
}

fn request(event: usize, can_time_pass: bool) -> impl Strategy<Value = Request> {
    let pause_ms =
        if can_time_pass { prop_oneof![Just(0), 0..5_000_u32, 20_000..40_000_u32].boxed() } else { Just(0).boxed() };
    let outcome = prop_oneof![6 => Just(Outcome::Apply), 2 => Just(Outcome::Fail), 1 => Just(Outcome::Crash)];
    let abandoned = prop_oneof![3 => Just(None), 1 => (0_u8..12).prop_map(Some)];
    (pause_ms, any::<bool>(), outcome, proptest::bool::weighted(0.2), abandoned).prop_map(
        move |(pause_ms, is_round_before, outcome, is_answer_lost, abandoned_after)| Request {
            event,
            pause_ms,
            is_round_before,
            outcome,
            is_answer_lost,
            abandoned_after,
        },
    )
}

/// Polls a future so many times, then drops it.
async fn abandon<T>(mut future: BoxFuture<'_, T>, mut polls: u8) -> Option<T> {
    std::future::poll_fn(|context| {
        if polls == 0 {
            return Poll::Ready(None);
        }
        polls -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

struct Run {
    test: TestInbox,
    story: Story,
    now: SystemTime,
    /// Events that the sender knows to have arrived.
    acknowledged: BTreeSet<usize>,
}

impl Run {
    fn event(&self, n: usize) -> posthaste_receiver::Event {
        let lane = self.story.events[n].map(|(lane, seq)| (format!("k{lane}"), seq));
        event(&format!("e{n}"), lane.as_ref().map(|(key, seq)| (key.as_str(), *seq)))
    }

    async fn send(&mut self, request: &Request, is_sqlite: bool) {
        self.now += Duration::from_millis(request.pause_ms.into());
        if request.is_round_before {
            self.test.inbox.apply_due(self.now).await.unwrap();
        }
        self.test.script.clear();
        self.test.script.push(request.outcome);
        if request.outcome == Outcome::Crash {
            self.test.prepare_crash();
        }
        let receiving = self.test.inbox.receive(self.event(request.event), self.now);
        let result = match request.abandoned_after {
            // A thread that has begun goes on to its end.
            Some(polls) if !is_sqlite => abandon(receiving, polls).await,
            Some(_) | None => Some(receiving.await),
        };
        let is_acknowledged = matches!(result, Some(Ok(_))) && !request.is_answer_lost;
        if is_acknowledged {
            self.acknowledged.insert(request.event);
        }
        self.test.restart_after_crash();
    }

    /// Sends what was never acknowledged until it is, and lets time pass until
    /// nothing waits.
    async fn finish(&mut self) {
        self.test.script.clear();
        let sent: BTreeSet<usize> = self.story.requests.iter().map(|request| request.event).collect();
        for n in sent {
            let mut tries = 0;
            while !self.acknowledged.contains(&n) {
                tries += 1;
                assert!(tries < 10_000, "e{n} is never taken");
                // An abandoned request may still hold the event for a moment.
                if self.test.inbox.receive(self.event(n), self.now).await.is_ok() {
                    self.acknowledged.insert(n);
                }
            }
        }
        let mut rounds = 0;
        while let Some(next_at) = self.test.inbox.apply_due(self.now).await.unwrap().next_at {
            self.now = self.now.max(next_at);
            rounds += 1;
            assert!(rounds < 10_000, "something waits for ever");
        }
    }
}

/// What must be true of the effects of any story.
fn check(story: &Story, effects: &[Effect]) {
    let number = |effect: &Effect| effect.id[1..].parse::<usize>().unwrap();
    let mut applied: BTreeSet<usize> = BTreeSet::new();
    let mut highest: BTreeMap<usize, u64> = BTreeMap::new();
    for effect in effects {
        assert!(applied.insert(number(effect)), "{} has two effects: {effects:?}", effect.id);
        let Some((lane, seq)) = story.events[number(effect)] else {
            assert_eq!(effect.place, "unordered");
            continue;
        };
        let before = highest.get(&lane).copied().unwrap_or(0);
        let expected = if seq <= before {
            format!("late {before}")
        } else if seq == before + 1 {
            "next".to_owned()
        } else {
            format!("after {}-{}", before + 1, seq - 1)
        };
        assert_eq!(effect.place, expected, "{} of lane {lane}: {effects:?}", effect.id);
        highest.insert(lane, before.max(seq));
    }
    let sent: BTreeSet<usize> = story.requests.iter().map(|request| request.event).collect();
    assert_eq!(applied, sent, "every event that was sent has an effect");
}

fn run(kind: Kind, cases: u32, can_time_pass: bool, check: impl Fn(&Story, &[Effect])) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&story(can_time_pass), |story| {
        runtime.block_on(async {
            let test = TestInbox::open(kind).await;
            let mut run = Run { test, story: story.clone(), now: at(1_700_000_000), acknowledged: BTreeSet::new() };
            for request in story.requests.clone() {
                run.send(&request, kind == Kind::Sqlite).await;
            }
            run.finish().await;
            check(&story, &run.test.effects().await);
        });
        Ok(())
    });
    result.unwrap_or_else(|problem| panic!("{kind:?}: {problem}"));
}

/// Without a timeout nothing is late, and gaps are only what was never sent.
fn check_in_order(story: &Story, effects: &[Effect]) {
    check(story, effects);
    assert!(effects.iter().all(|effect| !effect.place.starts_with("late")), "{effects:?}");
}

#[test]
fn in_memory_each_event_has_one_effect_in_order_per_key() {
    run(Kind::Memory, 400, true, check);
    run(Kind::Memory, 400, false, check_in_order);
}

#[test]
fn in_sqlite_each_event_has_one_effect_in_order_per_key() {
    run(Kind::Sqlite, 100, true, check);
    run(Kind::Sqlite, 100, false, check_in_order);
}

#[test]
fn in_postgres_each_event_has_one_effect_in_order_per_key() {
    run(Kind::Postgres, 40, true, check);
    run(Kind::Postgres, 40, false, check_in_order);
}
