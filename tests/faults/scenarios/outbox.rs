//! Producers with an outbox and a receiver with an inbox, on SQLite and on PostgreSQL,
//! while everything fails: both of them, the gateway, the relays, the producer's database, the connections
//! of a relay and of the receiver; and while the gateway takes no more events.
//!
//! Producer and receiver are processes. After each round all is quiet, and what was
//! committed, accepted and applied in it is compared, so that the time a run takes
//! does not decide how much is remembered.

use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use rand::RngExt;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::nodes::EXCLUSIVE;
use crate::outbox_processes::{ChildProcess, Effect, EffectDatabase};
use crate::report::Report;
use crate::run::Run;
use crate::servers::guard::free_port;
use crate::servers::postgres::Server;
use crate::servers::proxy::{NetworkState, Proxy};
use crate::support::outbox::{Producer, RelayChild, create_table_of_sent, sorted, wait_for_writers_to_end};
use crate::support::{Gateway, Options, PATIENCE, eventually};

/// Longest time between two comparisons.
const ROUND: Duration = Duration::from_secs(30);

/// Everything that can fail, and what is known of the rounds before.
struct OutboxWorld {
    server: Server,
    /// Network between a relay and the producer's database.
    proxy: Proxy,
    /// Network between the gateway and the receiver.
    receiver_proxy: Proxy,
    producer: Producer,
    gateway: Option<Gateway>,
    /// Relays beside the gateway's own: one behind the proxy, one not.
    relays: Vec<RelayChild>,
    /// The producer's process, while it writes.
    writer: Option<ChildProcess>,
    receiver: Option<ChildProcess>,
    receiver_address: SocketAddr,
    receiver_secret: String,
    effects: EffectDatabase,
    _folder: tempfile::TempDir,
    /// Newest event of the rounds before.
    newest_event: Option<String>,
    /// Last row of the effects of the rounds before.
    last_effect: i64,
}

/// What a run has compared.
#[derive(Default)]
struct Totals {
    rounds: usize,
    committed: usize,
    accepted: usize,
    applied: usize,
}

impl OutboxWorld {
    /// Starts everything but the producer's process. An inbox on PostgreSQL is beside
    /// the producer's outbox, so that it is restarted with it.
    async fn start(is_inbox_on_postgres: bool) -> Self {
        let server = Server::start(&[]).await;
        let folder = tempfile::tempdir().unwrap();
        let effects = if is_inbox_on_postgres {
            EffectDatabase::Postgres(server.database().await)
        } else {
            EffectDatabase::Sqlite(folder.path().join("effects.db"))
        };
        effects.create_effects().await;
        let proxy = Proxy::start(server.address()).await;
        let producer = Producer::on(&server).await;
        create_table_of_sent(&producer).await;
        let gateway = Gateway::start_with(Options::flags(&["--outbox", producer.url()])).await;
        let receiver_address: SocketAddr = (Ipv4Addr::LOCALHOST, free_port()).into();
        let receiver_proxy = Proxy::start(receiver_address).await;
        let retry = json!({"schedule": ["100ms"], "jitter": "none", "max_attempts": 1_000});
        let url = format!("http://{}/hook", receiver_proxy.address);
        // A request that is never answered holds its key no longer than a moment.
        let timeout = json!({"connect": "1s", "total": "2s"});
        let breaker = json!({"cooldown": "300ms", "cooldown_max": "2s"});
        let endpoint = json!({"url": url, "max_in_flight": 16, "retry": retry, "timeout": timeout, "breaker": breaker});
        let endpoint = gateway.create_endpoint(endpoint).await;
        let mut world = Self {
            server,
            proxy,
            receiver_proxy,
            producer,
            gateway: Some(gateway),
            relays: Vec::new(),
            writer: None,
            receiver: None,
            receiver_address,
            receiver_secret: endpoint["secret"].as_str().unwrap().to_owned(),
            effects,
            _folder: folder,
            newest_event: None,
            last_effect: 0,
        };
        world.receiver = Some(world.new_receiver());
        world.relays = (0..2).map(|n| world.new_relay(n)).collect();
        world
    }

    fn gateway(&self) -> &Gateway {
        self.gateway.as_ref().unwrap()
    }

    fn new_receiver(&self) -> ChildProcess {
        ChildProcess::receiver(&self.effects, self.receiver_address, &self.receiver_secret)
    }

    fn new_relay(&self, n: usize) -> RelayChild {
        let through = self.producer.database.url_through(self.proxy.address);
        let url = if n == 0 { through.as_str() } else { self.producer.url() };
        RelayChild::start(url, self.gateway(), &[])
    }

    /// Injects one fault; returns its name.
    async fn fault(&mut self, run: &mut Run) -> &'static str {
        let lasts = Duration::from_millis(run.rng.random_range(50..1_500));
        match run.rng.random_range(0..14) {
            0 | 1 => {
                // It dies wherever it is: before, in and after its commits.
                self.writer.take().unwrap().kill().await;
                self.writer = Some(ChildProcess::producer(self.producer.url()));
                "producer killed"
            }
            2 | 3 => {
                self.receiver.take().unwrap().kill().await;
                self.receiver = Some(self.new_receiver());
                "receiver killed"
            }
            4 => {
                self.gateway = Some(self.gateway.take().unwrap().killed_and_restarted().await);
                "gateway killed"
            }
            5 => {
                let n = run.rng.random_range(0..2);
                let next = self.new_relay(n);
                std::mem::replace(&mut self.relays[n], next).kill().await;
                "relay killed"
            }
            6 => {
                if run.rng.random() {
                    self.server.kill().await
                } else {
                    self.server.stop().await
                }
                self.server.start_again().await;
                "database restarted"
            }
            7 => {
                self.freeze(run, lasts).await;
                "freeze"
            }
            8 => {
                break_network(&self.proxy, run, lasts).await;
                "network of a relay broken"
            }
            9 | 10 => {
                break_network(&self.receiver_proxy, run, lasts).await;
                "network of the receiver broken"
            }
            11 | 12 => {
                // Relays rest as long as they are told to, also when it is over: seconds for a whole batch.
                self.limit(json!({"per_second": 100, "burst": 1})).await;
                tokio::time::sleep(lasts).await;
                self.limit(Value::Null).await;
                "gateway full"
            }
            _ => {
                tokio::time::sleep(lasts).await;
                "nothing"
            }
        }
    }

    /// Sets how many events of the tenant the gateway takes.
    async fn limit(&self, ingest: Value) {
        self.gateway().client.patch_json("/v1/tenants/default", &json!({"ingest": ingest})).await.expect(200);
    }

    /// Freezes the gateway, a relay or the receiver.
    async fn freeze(&self, run: &mut Run, lasts: Duration) {
        let frozen = match run.rng.random_range(0..3) {
            0 => self.gateway().process_id(),
            1 => self.relays[run.rng.random_range(0..2)].process.id().unwrap(),
            _ => self.receiver.as_ref().unwrap().id(),
        };
        let frozen = Pid::from_raw(frozen as i32).unwrap();
        kill_process(frozen, Signal::STOP).unwrap();
        tokio::time::sleep(lasts).await;
        kill_process(frozen, Signal::CONT).unwrap();
    }

    /// Kills the producer, waits until all is quiet, and compares what was
    /// committed, accepted and applied since the last time.
    async fn compare(&mut self, report: &mut Report, totals: &mut Totals) {
        self.writer.take().unwrap().kill().await;
        wait_for_writers_to_end(&self.producer).await;
        let sent = self.producer.database.rows("SELECT id FROM public.sent").await;
        let committed = sorted(sent.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect());
        self.producer.wait_for_rows(0).await;
        let accepted = events_after(self.gateway(), self.newest_event.as_deref()).await;
        self.newest_event = accepted.first().cloned().or(self.newest_event.take());
        let accepted = sorted(accepted);
        self.wait_for_effects(accepted.len()).await;
        let (effects, last) = self.effects.effects_after(self.last_effect).await;
        self.last_effect = last;
        let wrong = first_out_of_order(&effects);
        report.expect(wrong.is_none(), || wrong.clone().unwrap_or_default());
        let applied = sorted(effects.into_iter().map(|effect| effect.id).collect());
        let difference = || {
            let (committed, accepted, applied) = (committed.len(), accepted.len(), applied.len());
            format!("{committed} rows committed, {accepted} events accepted, {applied} effects applied")
        };
        report.expect(accepted == committed, difference);
        report.expect(applied == committed, difference);
        totals.rounds += 1;
        totals.committed += committed.len();
        totals.accepted += accepted.len();
        totals.applied += applied.len();
        self.producer.database.execute("TRUNCATE public.sent").await;
    }

    /// Waits until this many effects of the round are there, or nothing comes
    /// any more, and then until the gateway has nothing left to send.
    async fn wait_for_effects(&self, count: usize) {
        let found = async || self.effects.effects_after(self.last_effect).await.0.len();
        let (mut known, mut since) = (found().await, Instant::now());
        while known < count && since.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let now = found().await;
            if now > known {
                (known, since) = (now, Instant::now());
            }
        }
        eventually("the gateway to have nothing left to send", || async {
            let waiting = self.gateway().client.get("/v1/tenants/default/deliveries?state=waiting&limit=1").await;
            let waiting = waiting.expect(200);
            if waiting["data"].as_array().is_some_and(Vec::is_empty) { Ok(()) } else { Err(waiting.to_string()) }
        })
        .await;
    }

    /// Returns how much memory the gateway has, in MiB.
    fn gateway_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.gateway().process_id())).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        resident.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1_024
    }
}

/// Breaks a network in one of the ways there are, for this time.
async fn break_network(proxy: &Proxy, run: &mut Run, lasts: Duration) {
    let states = [NetworkState::Silent, NetworkState::AnswersLost, NetworkState::RequestsLost, NetworkState::Reset];
    proxy.set(states[run.rng.random_range(0..states.len())]);
    tokio::time::sleep(lasts).await;
    proxy.set(NetworkState::Working);
}

/// Returns the ids of the events that were accepted after this one, newest first.
async fn events_after(gateway: &Gateway, known: Option<&str>) -> Vec<String> {
    let (mut ids, mut cursor) = (Vec::new(), String::new());
    loop {
        let page: Value =
            gateway.client.get(&format!("/v1/tenants/default/events?limit=500{cursor}")).await.expect(200);
        for event in page["data"].as_array().unwrap() {
            let id = event["id"].as_str().unwrap();
            if Some(id) == known {
                return ids;
            }
            ids.push(id.to_owned());
        }
        let Some(next) = page["next"].as_str() else { return ids };
        cursor = format!("&cursor={next}");
    }
}

/// Checks that each writer's keyed events were applied in the order in which it
/// wrote them. A writer that was killed is followed by others with other keys.
fn first_out_of_order(effects: &[Effect]) -> Option<String> {
    let mut last: HashMap<&str, (u64, u64)> = HashMap::new();
    for effect in effects {
        let Some(key) = effect.key.as_deref() else { continue };
        let before = last.insert(key, effect.place);
        if before.is_some_and(|before| before >= effect.place) {
            return Some(format!("{key}: {:?} after {before:?}", effect.place));
        }
    }
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_committed_row_is_one_event_and_one_effect_in_order() {
    compare_rounds(Run::of("outbox"), false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_committed_row_is_one_effect_in_order_on_postgres_too() {
    compare_rounds(Run::of("outbox, inbox on PostgreSQL"), true).await;
}

/// Injects faults, round after round, and compares after each.
async fn compare_rounds(mut run: Run, is_inbox_on_postgres: bool) {
    let mut report = Report::of(&run);
    let _turn = EXCLUSIVE.lock().await;
    let mut world = OutboxWorld::start(is_inbox_on_postgres).await;
    let mut totals = Totals::default();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    while run.goes_on() {
        world.writer = Some(ChildProcess::producer(world.producer.url()));
        let round = Instant::now();
        while run.goes_on() && round.elapsed() < ROUND {
            tokio::time::sleep(Duration::from_millis(run.rng.random_range(0..300))).await;
            *counts.entry(world.fault(&mut run).await).or_default() += 1;
            report.cycles += 1;
        }
        world.compare(&mut report, &mut totals).await;
    }
    report.expect(totals.committed > 20, || format!("only {} rows were committed", totals.committed));
    report.figure("rounds", totals.rounds);
    report.figure("rows committed", totals.committed);
    report.figure("events accepted", totals.accepted);
    report.figure("effects applied", totals.applied);
    report.figure("MiB of the gateway", world.gateway_memory());
    for (fault, count) in counts {
        report.figure(fault, count);
    }
    report.finish();
}
