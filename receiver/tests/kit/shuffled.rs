//! Deliveries that are shuffled, repeated, dropped, abandoned and answered in
//! vain, with handlers that fail, panic and refuse, transactions that cannot be
//! committed and machines that stop, for requests and for what was stored: each
//! event has one effect, in order per key, unless it was refused.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
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
    /// What happens before it to the stored events that are due.
    round: Option<StoredRound>,
    outcome: Outcome,
    /// The answer does not come back, so the event is sent again.
    is_answer_lost: bool,
    /// The request is abandoned after so many steps.
    abandoned_after: Option<u8>,
}

/// A round over the stored events, and how it ends.
#[derive(Debug, Clone)]
struct StoredRound {
    outcome: Outcome,
    /// The process ends after so many steps.
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
    let outcome = || {
        prop_oneof![
            8 => Just(Outcome::Apply),
            2 => Just(Outcome::Fail),
            1 => Just(Outcome::Panic),
            1 => Just(Outcome::Uncommittable),
            1 => Just(Outcome::Refuse),
            1 => Just(Outcome::Crash)
        ]
    };
    let abandoned = || prop_oneof![3 => Just(None), 1 => (0_u8..12).prop_map(Some)];
    let round =
        (outcome(), abandoned()).prop_map(|(outcome, abandoned_after)| StoredRound { outcome, abandoned_after });
    (pause_ms, proptest::option::of(round), outcome(), proptest::bool::weighted(0.2), abandoned()).prop_map(
        move |(pause_ms, round, outcome, is_answer_lost, abandoned_after)| Request {
            event,
            pause_ms,
            round,
            outcome,
            is_answer_lost,
            abandoned_after,
        },
    )
}

/// Polls a future so many times, then drops it; also when it panics, as the task of
/// a request does.
async fn abandon<T>(mut future: BoxFuture<'_, T>, polls: Option<u8>) -> Option<T> {
    let mut left = polls;
    std::future::poll_fn(|context| {
        if left == Some(0) {
            return Poll::Ready(None);
        }
        left = left.map(|left| left - 1);
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
        polled.map_or(Poll::Ready(None), |polled| polled.map(Some))
    })
    .await
}

struct Run {
    test: TestInbox,
    story: Story,
    now: SystemTime,
    /// Events that the sender knows to have arrived.
    acknowledged: BTreeSet<usize>,
    has_crashed: bool,
}

impl Run {
    fn event(&self, n: usize) -> posthaste_receiver::Event {
        let lane = self.story.events[n].map(|(lane, seq)| (format!("k{lane}"), seq));
        event(&format!("e{n}"), lane.as_ref().map(|(key, seq)| (key.as_str(), *seq)))
    }

    /// Lets the handler do this with the next event.
    fn prepare(&mut self, outcome: Outcome) {
        self.test.script.clear();
        self.test.script.push(outcome);
        if outcome == Outcome::Crash {
            self.test.prepare_crash();
        }
    }

    async fn run_round(&mut self, round: &StoredRound, is_sqlite: bool) {
        self.prepare(round.outcome);
        let applying = self.test.inbox.apply_due(self.now);
        match round.abandoned_after {
            Some(_) if !is_sqlite => drop(abandon(applying, round.abandoned_after).await),
            Some(_) | None => {
                let result = applying.await;
                assert!(result.is_ok() || self.has_crashed, "{result:?}");
            }
        }
        self.test.restart_after_crash();
    }

    /// Applies what is due; returns when the next is. A session that has ended with a
    /// crash is told once more to whoever gets it.
    async fn apply_due(&self) -> Option<SystemTime> {
        for _ in 0..100 {
            match self.test.inbox.apply_due(self.now).await {
                Ok(round) => return round.next_at,
                Err(problem) => assert!(self.has_crashed, "{problem}"),
            }
        }
        panic!("the database does not come back");
    }

    async fn send(&mut self, request: &Request, is_sqlite: bool) {
        self.now += Duration::from_millis(request.pause_ms.into());
        if let Some(round) = &request.round {
            self.has_crashed |= round.outcome == Outcome::Crash;
            self.run_round(round, is_sqlite).await;
        }
        self.has_crashed |= request.outcome == Outcome::Crash;
        self.prepare(request.outcome);
        let receiving = self.test.inbox.receive(self.event(request.event), self.now);
        // A thread that has begun goes on to its end.
        let result = abandon(receiving, request.abandoned_after.filter(|_| !is_sqlite)).await;
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
        while let Some(next_at) = self.apply_due().await {
            self.now = self.now.max(next_at);
            rounds += 1;
            assert!(rounds < 10_000, "something waits for ever");
        }
    }
}

/// Returns the place that the lane had reached before an effect.
fn place_before(effect: &Effect, seq: u64) -> u64 {
    let first = |range: &str| range.split('-').next().unwrap().parse::<u64>().unwrap();
    match effect.place.split_once(' ') {
        Some(("late", applied)) => first(applied),
        Some(("after", missing)) => first(missing) - 1,
        None | Some(_) => seq - 1,
    }
}

/// What must be true of the effects of any story. Events that were refused while they
/// were stored have none, and their lane goes on behind them.
fn check(story: &Story, effects: &[Effect], refused: &BTreeSet<usize>) {
    let number = |effect: &Effect| effect.id[1..].parse::<usize>().unwrap();
    let with_effect: BTreeSet<usize> = effects.iter().map(number).collect();
    let given_up: BTreeSet<usize> = refused.difference(&with_effect).copied().collect();
    let is_given_up = |lane: usize, seq: u64| given_up.iter().any(|n| story.events[*n] == Some((lane, seq)));
    let mut applied: BTreeSet<usize> = BTreeSet::new();
    let mut highest: BTreeMap<usize, u64> = BTreeMap::new();
    for effect in effects {
        assert!(applied.insert(number(effect)), "{} has two effects: {effects:?}", effect.id);
        let Some((lane, seq)) = story.events[number(effect)] else {
            assert_eq!(effect.place, "unordered");
            continue;
        };
        let mut before = highest.get(&lane).copied().unwrap_or(0);
        let told = place_before(effect, seq);
        if told > before && is_given_up(lane, told) {
            before = told;
        }
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
    assert!(given_up.iter().all(|n| story.events[*n].is_some()), "only stored events are given up: {given_up:?}");
    applied.extend(given_up);
    assert_eq!(applied, sent, "every event that was sent has an effect");
}

fn run(kind: Kind, cases: u32, can_time_pass: bool, check: impl Fn(&Story, &[Effect], &BTreeSet<usize>)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&story(can_time_pass), |story| {
        runtime.block_on(async {
            let test = TestInbox::open(kind).await;
            let (now, acknowledged) = (at(1_700_000_000), BTreeSet::new());
            let mut run = Run { test, story: story.clone(), now, acknowledged, has_crashed: false };
            for request in story.requests.clone() {
                run.send(&request, kind == Kind::Sqlite).await;
            }
            run.finish().await;
            let refused = run.test.script.refused().iter().map(|id| id[1..].parse().unwrap()).collect();
            check(&story, &run.test.effects().await, &refused);
        });
        Ok(())
    });
    result.unwrap_or_else(|problem| panic!("{kind:?}: {problem}"));
}

/// Without a timeout nothing is late, and gaps are only what was never sent.
fn check_in_order(story: &Story, effects: &[Effect], refused: &BTreeSet<usize>) {
    check(story, effects, refused);
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
