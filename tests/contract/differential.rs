//! Every store means the same: random commands run on the embedded store, on
//! PostgreSQL and on the [model](crate::model), and after every step all three
//! must have answered alike and keep the same.
//!
//! A failing sequence is made as short as it goes and printed with its seed.
//! `POSTHASTE_DIFFERENTIAL_SEED=<seed>` runs that one alone, and
//! `POSTHASTE_DIFFERENTIAL_CASES=<number>` as many as you have time for, from
//! that seed on.

use std::collections::{BTreeSet, HashSet};

use jiff::Timestamp;
use posthaste::model::delivery::{DeadCause, DeadlineSource, DeliveryState};
use posthaste::model::endpoint_event::{DisableCause, EndpointEvent, EndpointEventKind, PauseCause};
use posthaste::model::health::EndpointHealth;
use posthaste::model::id::TenantId;
use posthaste::model::job::JobKind;
use posthaste::model::next_state::NextState;
use posthaste::store::{BatchMode, Claim, ClaimOutcome, DeliveryChange, EndpointUpdate};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use serde_json::json;

use crate::compared_store::{Answer, ComparedStore};
use crate::fixture::{StoreFixture, at, attempted, ours, tenant};
use crate::model::{EndpointStep, JobOrder, Model, Name, NewEvent, Snapshot};

/// How many sequences are run, from the seed 1 on.
const CASES: u64 = 32;
/// How many commands a sequence has at most.
const COMMANDS_MAX: usize = 50;

/// One thing that is done. Numbers choose among what is there, so that every
/// sequence makes sense, also a shortened one.
#[derive(Debug, Clone)]
enum Command {
    Accept {
        events: Vec<EventDraft>,
        together: BatchMode,
    },
    /// Claims what is due.
    Claim {
        endpoint: usize,
    },
    /// Settles a claim; where an answer can get lost, perhaps twice.
    Settle {
        claim: usize,
        ending: Ending,
        signal: EndpointSignal,
        is_repeated: bool,
    },
    /// Settles claims of several lanes at once, so that a store may write them
    /// in one transaction.
    SettleMany {
        settlements: Vec<(usize, Ending)>,
        /// Whether the first answer says how its endpoint is doing.
        is_health_heard: bool,
    },
    /// Changes a delivery: one that is in flight, or any.
    Change {
        delivery: usize,
        is_in_flight: bool,
        change: DeliveryChange,
    },
    /// Makes one step of a job over deliveries of an endpoint.
    Job {
        job: JobOrder,
        endpoint: usize,
        deliveries: Vec<usize>,
        /// Whether deliveries in another state are among them, too.
        is_any_state: bool,
    },
    /// Gives past events to an endpoint, in one step of a job.
    Backfill {
        endpoint: usize,
        events: Vec<usize>,
        expires_in: Option<i64>,
    },
    Endpoint {
        endpoint: usize,
        step: EndpointStep,
    },
    /// Looks at those whose time may be over.
    Expire {
        by: Option<DeadlineSource>,
    },
    Wait {
        seconds: i64,
    },
    Expunge {
        event: usize,
    },
    Forget {
        finished_ago: i64,
        dead_ago: i64,
    },
}

#[derive(Debug, Clone)]
struct EventDraft {
    tenant: usize,
    id: u8,
    data: u8,
    key: Option<&'static str>,
    targets: u8,
    due_in: Option<i64>,
    expires_in: Option<i64>,
}

/// How a claim ends; times are seconds from then.
#[derive(Debug, Clone, Copy)]
enum Ending {
    Delivered,
    Waiting(i64),
    Dead(DeadCause),
    ExpiredByProducer,
    PutBack(i64),
    InternalError(i64),
    Damaged,
    Expired(DeadlineSource),
    RecheckExpiry(i64),
}

/// What an answer says of its endpoint.
#[derive(Debug, Clone, Copy)]
enum EndpointSignal {
    Nothing,
    Health,
    Quiet(i64),
    Event(EndpointEventKind),
}

fn commands() -> impl Strategy<Value = Vec<Command>> {
    let draft = (0..2_usize, 0..12_u8, 0..8_u8, 0..4_usize, 1..8_u8, maybe(1..50), maybe(1..60)).prop_map(
        |(tenant, id, data, key, targets, due_in, expires_in)| EventDraft {
            tenant,
            id,
            // Mostly the same, so that an id that comes again is a repeat.
            data: data / 7,
            key: [None, Some("a"), Some("b"), Some("a")][key],
            targets,
            due_in,
            expires_in,
        },
    );
    let together = prop_oneof![Just(BatchMode::Each), Just(BatchMode::All)];
    let by = || prop_oneof![Just(DeadlineSource::Age), Just(DeadlineSource::Hold), Just(DeadlineSource::Expiry)];
    let cause = prop_oneof![
        Just(DeadCause::Exhausted),
        Just(DeadCause::Expired),
        Just(DeadCause::Refused),
        Just(DeadCause::Gone),
        Just(DeadCause::Poisoned),
        Just(DeadCause::Damaged),
    ];
    let ending = prop_oneof![
        4 => Just(Ending::Delivered),
        4 => (0..30_i64).prop_map(Ending::Waiting),
        4 => cause.prop_map(Ending::Dead),
        1 => Just(Ending::ExpiredByProducer),
        1 => (0..30_i64).prop_map(Ending::PutBack),
        3 => (0..3_i64).prop_map(Ending::InternalError),
        1 => Just(Ending::Damaged),
        2 => by().prop_map(Ending::Expired),
        1 => (0..30_i64).prop_map(Ending::RecheckExpiry),
    ];
    let ending_of_many = prop_oneof![
        6 => Just(Ending::Delivered),
        5 => (0..30_i64).prop_map(Ending::Waiting),
        2 => Just(Ending::Dead(DeadCause::Exhausted)),
        1 => Just(Ending::ExpiredByProducer),
        1 => (0..30_i64).prop_map(Ending::PutBack),
        2 => (0..30_i64).prop_map(Ending::RecheckExpiry),
    ];
    let signal = prop_oneof![
        6 => Just(EndpointSignal::Nothing),
        1 => Just(EndpointSignal::Health),
        1 => (0..60_i64).prop_map(EndpointSignal::Quiet),
        1 => prop_oneof![Just(EndpointEventKind::Paused), Just(EndpointEventKind::Disabled)].prop_map(EndpointSignal::Event),
        1 => prop_oneof![Just(EndpointEventKind::Recovered), Just(EndpointEventKind::ProbeFailed)]
            .prop_map(EndpointSignal::Event),
    ];
    let change = prop_oneof![
        1 => Just(DeliveryChange::RetryNow),
        2 => Just(DeliveryChange::Cancel),
        3 => Just(DeliveryChange::Replay),
        2 => Just(DeliveryChange::Discard),
    ];
    let step = prop_oneof![
        2 => Just(EndpointStep::Pause),
        1 => Just(EndpointStep::Disable),
        3 => Just(EndpointStep::Resume),
        6 => (any::<bool>(), 0..5).prop_map(|(skips, n)| EndpointStep::OnDead { skips, is_outdated: n == 4 }),
        1 => Just(EndpointStep::Move),
        1 => any::<bool>().prop_map(|is_open| EndpointStep::Breaker { is_open }),
        2 => Just(EndpointStep::Delete),
    ];
    let order = (0..6_usize, any::<bool>()).prop_map(|(n, even_overtaken)| {
        let (kind, state) = [
            (JobKind::Replay, DeliveryState::Dead),
            (JobKind::Replay, DeliveryState::Delivered),
            (JobKind::Replay, DeliveryState::Cancelled),
            (JobKind::Retry, DeliveryState::Waiting),
            (JobKind::Discard, DeliveryState::Dead),
            (JobKind::Cancel, DeliveryState::Waiting),
        ][n];
        JobOrder { kind, state, even_overtaken }
    });
    let any_number = || 0..1_000_usize;
    let command = prop_oneof![
        8 => (proptest::collection::vec(draft, 1..3), together)
            .prop_map(|(events, together)| Command::Accept { events, together }),
        5 => any_number().prop_map(|endpoint| Command::Claim { endpoint }),
        14 => (any_number(), ending, signal, any::<bool>()).prop_map(|(claim, ending, signal, is_repeated)| {
            Command::Settle { claim, ending, signal, is_repeated }
        }),
        8 => (proptest::collection::vec((any_number(), ending_of_many), 2..8), any::<bool>())
            .prop_map(|(settlements, is_health_heard)| Command::SettleMany { settlements, is_health_heard }),
        8 => (any_number(), any::<bool>(), change).prop_map(|(delivery, is_in_flight, change)| {
            Command::Change { delivery, is_in_flight, change }
        }),
        6 => (order, any_number(), proptest::collection::vec(any_number(), 1..6), any::<bool>()).prop_map(
            |(job, endpoint, deliveries, is_any_state)| Command::Job { job, endpoint, deliveries, is_any_state },
        ),
        4 => (any_number(), proptest::collection::vec(any_number(), 1..5), maybe(1..60)).prop_map(
            |(endpoint, events, expires_in)| Command::Backfill { endpoint, events, expires_in },
        ),
        4 => (any_number(), step).prop_map(|(endpoint, step)| Command::Endpoint { endpoint, step }),
        2 => proptest::option::of(by()).prop_map(|by| Command::Expire { by }),
        3 => (1..60_i64).prop_map(|seconds| Command::Wait { seconds }),
        2 => any_number().prop_map(|event| Command::Expunge { event }),
        2 => (0..120_i64, 0..120_i64)
            .prop_map(|(finished_ago, dead_ago)| Command::Forget { finished_ago, dead_ago }),
    ];
    proptest::collection::vec(command, 1..=COMMANDS_MAX)
}

fn maybe(seconds: std::ops::Range<i64>) -> impl Strategy<Value = Option<i64>> {
    prop_oneof![3 => Just(None), 1 => seconds.prop_map(Some)]
}

#[test]
fn both_stores_do_what_the_model_does() {
    let setting = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("it is a number"));
    let (seed, cases) = (setting("POSTHASTE_DIFFERENTIAL_SEED"), setting("POSTHASTE_DIFFERENTIAL_CASES"));
    let cases = cases.unwrap_or(if seed.is_some() { 1 } else { CASES });
    let first = seed.unwrap_or(1);
    for seed in first..first + cases {
        if let Err(problem) = run(seed) {
            panic!("seed {seed} (run it alone with POSTHASTE_DIFFERENTIAL_SEED={seed}): {problem}");
        }
    }
}

/// Runs the sequence of a seed; if it fails, the shortest that does.
fn run(seed: u64) -> Result<(), String> {
    let config = Config {
        cases: 1,
        failure_persistence: None,
        max_shrink_iters: 5_000,
        max_shrink_time: 180_000,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let outcome = runner.run(&commands(), |commands| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime").block_on(play(&commands)).map_err(TestCaseError::fail)
    });
    outcome.map_err(|problem| match problem {
        TestError::Abort(reason) => reason.to_string(),
        TestError::Fail(reason, commands) => {
            let lines: Vec<String> = commands.iter().map(|command| format!("    {command:?}\n")).collect();
            format!("{reason}\n  {} steps are enough:\n{}", lines.len(), lines.concat())
        }
    })
}

async fn play(commands: &[Command]) -> Result<(), String> {
    let mut comparison = Comparison::new().await;
    for (n, command) in commands.iter().enumerate() {
        let found = comparison.step(command).await;
        found.map_err(|problem| format!("after step {} ({command:?}):\n{problem}", n + 1))?;
    }
    // What no list shows has to be in order, too.
    for store in &comparison.stores {
        let findings = store.fixture.findings().await;
        if !findings.is_empty() {
            return Err(format!("at the end a check finds {findings:?}"));
        }
    }
    Ok(())
}

/// The model, both stores, and what is in flight.
struct Comparison {
    model: Model,
    stores: [ComparedStore; 2],
    now: Timestamp,
    in_flight: Vec<(Name, Claim)>,
    version: u64,
}

impl Comparison {
    async fn new() -> Self {
        let (embedded, postgres) = tokio::join!(StoreFixture::embedded(), StoreFixture::postgres());
        let told = json!(["delivery.*", "lane.*", "endpoint.*"]);
        let endpoints = [
            embedded.new_endpoint(&ours(), json!({})),
            embedded.new_endpoint(&ours(), json!({"ordering": "none"})),
            embedded.new_endpoint(&ours(), json!({"ordering": "endpoint", "on_dead": "skip"})),
            embedded.new_endpoint(&tenant("other"), json!({})),
            embedded.new_endpoint(&TenantId::system(), json!({"ordering": "endpoint", "event_types": told})),
        ];
        let model = Model::new(&endpoints);
        let (embedded, postgres) =
            tokio::join!(ComparedStore::new(embedded, &endpoints), ComparedStore::new(postgres, &endpoints));
        Self { model, stores: [embedded, postgres], now: at(0), in_flight: Vec::new(), version: 0 }
    }

    /// Does one thing everywhere, and compares.
    async fn step(&mut self, command: &Command) -> Result<(), String> {
        self.now = self.later(1);
        match command {
            Command::Accept { events, together } => self.accept(events, *together).await?,
            Command::Claim { endpoint } => self.claim(endpoint % self.model.endpoints.len()).await?,
            Command::Settle { claim, ending, signal, is_repeated } => {
                if self.in_flight.is_empty() {
                    self.claim(claim % self.model.endpoints.len()).await?;
                }
                if !self.in_flight.is_empty() {
                    let place = claim % self.in_flight.len();
                    let (name, claim) = match ending {
                        // Its time is over while its request goes on.
                        Ending::Expired(_) => self.in_flight[place].clone(),
                        _ => self.in_flight.remove(place),
                    };
                    let outcome = self.outcome(&claim, *ending, *signal);
                    self.settle(name, &outcome, *is_repeated).await?;
                }
            }
            Command::SettleMany { settlements, is_health_heard } => {
                self.settle_many(settlements, *is_health_heard).await?;
            }
            Command::Change { delivery, is_in_flight, change } => {
                let in_flight: Vec<Name> = self.in_flight.iter().map(|(name, _)| *name).collect();
                let any: Vec<Name> = self.model.deliveries.keys().copied().collect();
                let among = if *is_in_flight && !in_flight.is_empty() { in_flight } else { any };
                if let Some(name) = among.get(delivery % among.len().max(1)) {
                    self.change(*name, *change).await?;
                }
            }
            Command::Job { job, endpoint, deliveries, is_any_state } => {
                self.job(*job, endpoint % self.model.endpoints.len(), deliveries, *is_any_state).await?;
            }
            Command::Backfill { endpoint, events, expires_in } => {
                self.backfill(endpoint % self.model.endpoints.len(), events, *expires_in).await?;
            }
            Command::Endpoint { endpoint, step } => {
                let (n, now) = (endpoint % self.model.endpoints.len(), self.now);
                let expected = self.model.change_endpoint(n, *step, now);
                let [embedded, postgres] = &mut self.stores;
                let (first, second) = tokio::join!(
                    embedded.change_endpoint(n, *step, now, &self.model),
                    postgres.change_endpoint(n, *step, now, &self.model)
                );
                agree(&expected, &first, &second)?;
            }
            Command::Expire { by } => self.expire(*by).await?,
            Command::Wait { seconds } => self.now = self.later(*seconds),
            Command::Expunge { event } => {
                let Some(event) = self.model.events.values().nth(event % self.model.events.len().max(1)) else {
                    return Ok(());
                };
                // Operational events have other ids in each store.
                if event.tells.is_none() {
                    let (tenant, id) = (event.tenant.clone(), event.id.clone());
                    let expected = self.model.expunge(&tenant, &id);
                    let [embedded, postgres] = &self.stores;
                    let found = tokio::join!(embedded.expunge(&tenant, &id), postgres.expunge(&tenant, &id));
                    agree_on(&expected, &found.0, &found.1)?;
                }
            }
            Command::Forget { finished_ago, dead_ago } => {
                let (finished, dead) = (self.later(-finished_ago), self.later(-dead_ago));
                let expected = self.model.forget(finished, dead);
                let [embedded, postgres] = &self.stores;
                let found = tokio::join!(embedded.forget(finished, dead), postgres.forget(finished, dead));
                agree_on(&expected, &found.0, &found.1)?;
            }
        }
        self.compare().await
    }

    fn later(&self, seconds: i64) -> Timestamp {
        Timestamp::from_second(self.now.as_second() + seconds).expect("in range")
    }

    async fn accept(&mut self, drafts: &[EventDraft], together: BatchMode) -> Result<(), String> {
        let tenants = [ours(), tenant("other")];
        // A batch is one tenant's.
        let of = &tenants[drafts[0].tenant];
        let new = |draft: &EventDraft| {
            let endpoints = self.model.endpoints.iter().enumerate();
            let wanted = endpoints.filter(|(_, endpoint)| endpoint.tenant == *of && !endpoint.is_deleted);
            NewEvent {
                tenant: of.clone(),
                id: format!("e{}", draft.id),
                data: format!("[{}]", draft.data),
                key: draft.key,
                targets: wanted.map(|(n, _)| n).filter(|n| draft.targets & 1 << (n % 3) != 0).collect(),
                due_at: draft.due_in.map(|seconds| self.later(seconds)),
                expires_at: draft.expires_in.map(|seconds| self.later(seconds)),
            }
        };
        let (events, now): (Vec<NewEvent>, _) = (drafts.iter().map(new).collect(), self.now);
        let expected = self.model.accept(&events, together, now);
        let [embedded, postgres] = &mut self.stores;
        let (first, second) = tokio::join!(
            embedded.accept(&events, together, now, &self.model),
            postgres.accept(&events, together, now, &self.model)
        );
        agree(&expected, &first, &second)
    }

    async fn claim(&mut self, n: usize) -> Result<(), String> {
        let held: Vec<Name> = self.in_flight.iter().map(|(name, _)| *name).collect();
        let expected: Vec<Name> = self.model.due(n, self.now).into_iter().filter(|name| !held.contains(name)).collect();
        let [embedded, postgres] = &self.stores;
        let (first, second) = tokio::join!(embedded.due(n, &held, self.now), postgres.due(n, &held, self.now));
        agree_on(&expected, &embedded.claimed(&first.answer), &postgres.claimed(&second.answer))?;
        agree_on(&first.details, &first.details, &second.details)?;
        self.in_flight.extend(expected.into_iter().zip(first.answer));
        Ok(())
    }

    fn outcome(&mut self, claim: &Claim, ending: Ending, signal: EndpointSignal) -> ClaimOutcome {
        let next = match ending {
            Ending::Delivered => NextState::Delivered,
            Ending::Waiting(seconds) => NextState::Waiting { due_at: self.later(seconds) },
            Ending::Dead(cause) => NextState::Dead(cause),
            Ending::ExpiredByProducer => NextState::ExpiredByProducer,
            Ending::PutBack(seconds) => return ClaimOutcome::PutBack { due_at: self.later(seconds) },
            Ending::InternalError(seconds) => {
                return ClaimOutcome::InternalError { due_at: self.later(seconds), error: "it failed".into() };
            }
            Ending::Damaged => return ClaimOutcome::Damaged,
            Ending::Expired(by) => return ClaimOutcome::Expired { by, progress: claim.progress },
            Ending::RecheckExpiry(seconds) => {
                return ClaimOutcome::RecheckExpiry { at: self.later(seconds), progress: claim.progress };
            }
        };
        self.version += 1;
        let (now, version) = (self.now, self.version);
        let mut outcome = attempted(claim, next, now);
        if let ClaimOutcome::Attempted { update, expiry_check_at, .. } = &mut outcome {
            *expiry_check_at = claim.expires_at;
            match signal {
                EndpointSignal::Nothing => {}
                EndpointSignal::Health => {
                    update.health = Some(Box::new(EndpointHealth { version, ..EndpointHealth::default() }));
                }
                EndpointSignal::Quiet(seconds) => update.backpressure_until = Some(self.later(seconds)),
                EndpointSignal::Event(what) => {
                    let endpoint_events = vec![endpoint_event(what, now)];
                    *update = EndpointUpdate { endpoint_events, ..update.clone() };
                }
            }
        }
        outcome
    }

    async fn settle(&mut self, name: Name, outcome: &ClaimOutcome, is_repeated: bool) -> Result<(), String> {
        let now = self.now;
        let expected = self.model.settle(name, outcome, now);
        let [embedded, postgres] = &mut self.stores;
        let (first, second) = tokio::join!(
            embedded.settle(name, outcome, now, &self.model),
            postgres.settle(name, outcome, now, &self.model)
        );
        agree(&expected, &first, &second)?;
        // Only a server's answer can get lost. The embedded store has no
        // answer that its caller does not get, and is not asked twice.
        if is_repeated && matches!(outcome, ClaimOutcome::Attempted { .. }) {
            let again = self.stores[1].settle_raw(name, outcome, now).await;
            if again.died.is_some() || !again.freed.is_empty() || !again.operational_events.is_empty() {
                return Err(format!("once more is not nothing on PostgreSQL: {again:?}"));
            }
        }
        Ok(())
    }

    /// Settles claims of different lanes at once. In which order they are
    /// written is not promised, so of those that cause operational events, which
    /// are numbered, there is one at most.
    async fn settle_many(&mut self, settlements: &[(usize, Ending)], is_health_heard: bool) -> Result<(), String> {
        for n in 0..self.model.endpoints.len() {
            self.claim(n).await?;
        }
        let mut lanes = HashSet::new();
        let (mut has_told, mut chosen, mut expected) = (false, Vec::new(), Vec::new());
        for (n, (claim, ending)) in settlements.iter().enumerate() {
            let Some((name, claim)) = self.in_flight.get(claim % self.in_flight.len().max(1)).cloned() else { break };
            let is_taken = chosen.iter().any(|(other, _)| *other == name);
            let lane = claim.lane.as_ref().map(|lane| (name.endpoint, lane.clone()));
            if is_taken || lane.as_ref().is_some_and(|lane| lanes.contains(lane)) {
                continue;
            }
            let is_system = self.model.endpoints[name.endpoint].tenant.is_system();
            let signal = if is_health_heard && n == 0 { EndpointSignal::Health } else { EndpointSignal::Nothing };
            let outcome = self.outcome(&claim, *ending, signal);
            let before = self.model.clone();
            let effects = self.model.settle(name, &outcome, self.now);
            // What is told goes into the one lane of those who are told.
            if has_told && (is_system || !effects.told.is_empty()) {
                self.model = before;
                continue;
            }
            has_told |= is_system || !effects.told.is_empty();
            self.in_flight.retain(|(other, _)| *other != name);
            lanes.extend(lane);
            chosen.push((name, outcome));
            expected.push(effects);
        }
        let (now, [embedded, postgres]) = (self.now, &mut self.stores);
        let (first, second) = tokio::join!(
            embedded.settle_many(&chosen, now, &self.model),
            postgres.settle_many(&chosen, now, &self.model)
        );
        agree(&expected, &first, &second)
    }

    async fn change(&mut self, name: Name, change: DeliveryChange) -> Result<(), String> {
        let now = self.now;
        let expected = self.model.change(name, change, now);
        let [embedded, postgres] = &mut self.stores;
        let (first, second) = tokio::join!(
            embedded.change(name, change, now, &self.model),
            postgres.change(name, change, now, &self.model)
        );
        agree(&expected, &first, &second)
    }

    /// Makes one step of a job over deliveries of an endpoint, oldest first as jobs do.
    async fn job(&mut self, job: JobOrder, n: usize, picks: &[usize], is_any_state: bool) -> Result<(), String> {
        let of_endpoint = self
            .model
            .deliveries
            .iter()
            .filter(|(name, delivery)| name.endpoint == n && (is_any_state || delivery.state == job.state));
        let among: Vec<Name> = of_endpoint.map(|(name, _)| *name).collect();
        if among.is_empty() || self.model.endpoints[n].is_deleted {
            return Ok(());
        }
        let chosen: BTreeSet<Name> = picks.iter().map(|pick| among[pick % among.len()]).collect();
        let (chosen, now): (Vec<Name>, _) = (chosen.into_iter().collect(), self.now);
        let expected = self.model.make_job_step(job, &chosen, now);
        let [embedded, postgres] = &mut self.stores;
        let (first, second) = tokio::join!(
            embedded.make_job_step(job, n, &chosen, now, &self.model),
            postgres.make_job_step(job, n, &chosen, now, &self.model)
        );
        agree(&expected, &first, &second)
    }

    /// Gives past events to an endpoint, oldest first as jobs do. Operational events have
    /// other ids in each store, and are left out.
    async fn backfill(&mut self, n: usize, picks: &[usize], expires_in: Option<i64>) -> Result<(), String> {
        let endpoint = &self.model.endpoints[n];
        let among = self.model.past_events(n);
        if among.is_empty() || endpoint.is_deleted || endpoint.tenant.is_system() {
            return Ok(());
        }
        let chosen: BTreeSet<u32> = picks.iter().map(|pick| among[pick % among.len()]).collect();
        let (chosen, now): (Vec<u32>, _) = (chosen.into_iter().collect(), self.now);
        let expires_at = expires_in.map(|seconds| self.later(seconds));
        let expected = self.model.backfill(n, &chosen, expires_at, now);
        let [embedded, postgres] = &mut self.stores;
        let (first, second) = tokio::join!(
            embedded.backfill(n, &chosen, expires_at, now, &self.model),
            postgres.backfill(n, &chosen, expires_at, now, &self.model)
        );
        agree(&expected, &first, &second)
    }

    /// Ends those whose time is over, or looks again later. Requests that are
    /// open go on, and are settled too late.
    async fn expire(&mut self, by: Option<DeadlineSource>) -> Result<(), String> {
        let [embedded, postgres] = &self.stores;
        let untried = self.model.untried();
        let found = tokio::join!(embedded.untried(self.now), postgres.untried(self.now));
        agree_on(&untried, &found.0, &found.1)?;
        let overdue = self.model.overdue(self.now);
        let found = tokio::join!(embedded.overdue(self.now), postgres.overdue(self.now));
        agree_on(&overdue, &found.0, &found.1)?;
        for name in overdue {
            let progress = self.stores[0].progress(name).await;
            let outcome = match by {
                Some(by) => ClaimOutcome::Expired { by, progress },
                None => ClaimOutcome::RecheckExpiry { at: self.later(30), progress },
            };
            self.settle(name, &outcome, false).await?;
        }
        Ok(())
    }

    async fn compare(&mut self) -> Result<(), String> {
        let expected = self.model.snapshot();
        let [embedded, postgres] = &mut self.stores;
        let ((first, first_own), (second, second_own)) = tokio::join!(embedded.snapshot(), postgres.snapshot());
        let found = [
            ("the model and the embedded store", differing(&expected, &first)),
            ("the model and PostgreSQL", differing(&expected, &second)),
            ("the stores", differing(&first_own, &second_own)),
        ];
        let found = found.into_iter().filter(|(_, lines)| !lines.is_empty());
        let found: Vec<String> = found.map(|(who, lines)| format!("{who} keep other things:\n{lines}")).collect();
        if found.is_empty() { Ok(()) } else { Err(found.join("\n")) }
    }
}

/// What an answer can do to its endpoint.
fn endpoint_event(what: EndpointEventKind, now: Timestamp) -> EndpointEvent {
    let answer = "answered 503".to_owned();
    match what {
        EndpointEventKind::Paused => EndpointEvent::Paused(PauseCause::Refusals { count: 101, answer }),
        EndpointEventKind::Disabled => EndpointEvent::Disabled(DisableCause::Gone),
        EndpointEventKind::ProbeFailed => EndpointEvent::ProbeFailed { until: now, answer },
        EndpointEventKind::Recovered => EndpointEvent::Recovered,
        other => unreachable!("{other:?} is not signal"),
    }
}

/// The lines that are not the same, in pairs.
fn differing(expected: &Snapshot, found: &Snapshot) -> String {
    let keys: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    let differ = keys.into_iter().filter(|key| expected.get(*key) != found.get(*key));
    let line = |line: Option<&String>| line.cloned().unwrap_or_else(|| "nothing".into());
    let pair = |key: &String| format!("  {key}:\n    {}\n    {}\n", line(expected.get(key)), line(found.get(key)));
    differ.map(pair).collect()
}

fn agree<T: PartialEq + std::fmt::Debug>(expected: &T, first: &Answer<T>, second: &Answer<T>) -> Result<(), String> {
    agree_on(expected, &first.answer, &second.answer)?;
    agree_on(&first.details, &first.details, &second.details)
}

fn agree_on<T: PartialEq + std::fmt::Debug>(expected: &T, first: &T, second: &T) -> Result<(), String> {
    if expected == first && expected == second {
        return Ok(());
    }
    Err(format!("the answers differ:\n  model    {expected:?}\n  embedded {first:?}\n  postgres {second:?}"))
}
