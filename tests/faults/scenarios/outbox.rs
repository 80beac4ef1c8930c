//! Producers with an outbox, while everything between them and the receiver
//! fails: the gateway, the relays, the producer's database, its connections.

use std::collections::HashMap;
use std::time::Duration;

use rand::RngExt;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::nodes::EXCLUSIVE;
use crate::report::Report;
use crate::run::Run;
use crate::servers::postgres::Server;
use crate::servers::proxy::{NetworkState, Proxy};
use crate::support::outbox::{BusyProducer, Producer, RelayChild, event_ids, sorted};
use crate::support::{Gateway, Options, PATIENCE, ReceivedRequest, Receiver};

/// Everything that can fail.
struct OutboxWorld {
    server: Server,
    proxy: Proxy,
    producer: Producer,
    gateway: Option<Gateway>,
    /// Relays beside the gateway's own: one behind the proxy, one not.
    relays: Vec<RelayChild>,
    busy: Option<BusyProducer>,
    committed: Vec<String>,
}

impl OutboxWorld {
    /// Starts everything; producers begin when there is an endpoint.
    async fn start(receiver: &Receiver) -> Self {
        let server = Server::start(&[]).await;
        let proxy = Proxy::start(server.address()).await;
        let producer = Producer::on(&server).await;
        let gateway = Gateway::start_with(Options::flags(&["--outbox", producer.url()])).await;
        gateway.create_endpoint(json!({"url": receiver.url(), "max_in_flight": 16})).await;
        let busy = BusyProducer::start(&producer).await;
        let mut world = Self {
            server,
            proxy,
            producer,
            gateway: Some(gateway),
            relays: Vec::new(),
            busy: Some(busy),
            committed: Vec::new(),
        };
        world.relays = (0..2).map(|n| world.relay(n)).collect();
        world
    }

    fn gateway(&self) -> &Gateway {
        self.gateway.as_ref().unwrap()
    }

    fn relay(&self, n: usize) -> RelayChild {
        let through = self.producer.database.url_through(self.proxy.address);
        let url = if n == 0 { through.as_str() } else { self.producer.url() };
        RelayChild::start(url, self.gateway(), &[])
    }

    /// Injects one fault; returns its name.
    async fn fault(&mut self, run: &mut Run) -> &'static str {
        let lasts = Duration::from_millis(run.rng.random_range(50..1_500));
        match run.rng.random_range(0..7) {
            0 => {
                self.gateway = Some(self.gateway.take().unwrap().killed_and_restarted().await);
                "gateway killed"
            }
            1 => {
                let n = run.rng.random_range(0..2);
                let next = self.relay(n);
                std::mem::replace(&mut self.relays[n], next).kill().await;
                "relay killed"
            }
            2 => {
                if run.rng.random() {
                    self.server.kill().await
                } else {
                    self.server.stop().await
                }
                self.server.start_again().await;
                "database restarted"
            }
            3 => {
                let is_gateway: bool = run.rng.random();
                let relay = self.relays[run.rng.random_range(0..2)].process.id().unwrap();
                let frozen = if is_gateway { self.gateway().process_id() } else { relay };
                let frozen = Pid::from_raw(frozen as i32).unwrap();
                kill_process(frozen, Signal::STOP).unwrap();
                tokio::time::sleep(lasts).await;
                kill_process(frozen, Signal::CONT).unwrap();
                "freeze"
            }
            4 => {
                let states =
                    [NetworkState::Silent, NetworkState::AnswersLost, NetworkState::RequestsLost, NetworkState::Reset];
                self.proxy.set(states[run.rng.random_range(0..states.len())]);
                tokio::time::sleep(lasts).await;
                self.proxy.set(NetworkState::Working);
                "network of a relay broken"
            }
            5 => {
                // The producer dies wherever it is: between its commit and whatever would come next.
                self.committed.extend(self.busy.take().unwrap().kill(&self.producer).await);
                self.busy = Some(BusyProducer::start(&self.producer).await);
                "producer killed"
            }
            _ => {
                tokio::time::sleep(lasts).await;
                "nothing"
            }
        }
    }
}

/// Waits until this many events have arrived, or nothing comes any more;
/// returns how many have.
async fn arrived(receiver: &Receiver, count: usize) -> usize {
    let mut known = 0;
    loop {
        let more = |arrived: usize| arrived > known || arrived >= count;
        let waiting = tokio::time::timeout(PATIENCE, async {
            while !more(receiver.times_by_id().len()) {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        if waiting.await.is_err() || receiver.times_by_id().len() >= count {
            return receiver.times_by_id().len();
        }
        known = receiver.times_by_id().len();
    }
}

/// Checks that each writer's keyed events came in the order in which it wrote
/// them, each for the first time.
fn first_out_of_order(seen: &[ReceivedRequest]) -> Option<String> {
    let mut last: HashMap<String, (u64, u64)> = HashMap::new();
    let mut known = std::collections::HashSet::new();
    for request in seen.iter().filter(|request| known.insert(request.id().to_owned())) {
        let body = request.json();
        let Some(key) = body["key"].as_str() else { continue };
        let place = (body["data"]["n"].as_u64().unwrap(), body["data"]["part"].as_u64().unwrap());
        let before = last.insert(key.to_owned(), place);
        if before.is_some_and(|before| before >= place) {
            return Some(format!("{key}: {place:?} after {before:?}"));
        }
    }
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_committed_row_is_one_event_and_one_effect_in_order() {
    let mut run = Run::of("outbox");
    let mut report = Report::of(&run);
    let _turn = EXCLUSIVE.lock().await;
    let receiver = Receiver::start().await;
    let mut world = OutboxWorld::start(&receiver).await;
    let mut counts: HashMap<&str, usize> = HashMap::new();
    while run.goes_on() {
        tokio::time::sleep(Duration::from_millis(run.rng.random_range(0..300))).await;
        *counts.entry(world.fault(&mut run).await).or_default() += 1;
        report.cycles += 1;
    }
    world.committed.extend(world.busy.take().unwrap().stop(&world.producer).await);
    let committed = sorted(std::mem::take(&mut world.committed));
    world.producer.wait_for_rows(0).await;
    let accepted = sorted(event_ids(world.gateway(), "default").await);
    let effects = arrived(&receiver, accepted.len()).await;
    let waiting = world.gateway().client.get("/v1/tenants/default/deliveries?state=waiting&limit=3").await;
    report.expect(effects == accepted.len(), || String::from_utf8_lossy(&waiting.body).into_owned());
    report.expect(accepted == committed, || {
        format!("{} rows committed, {} events accepted", committed.len(), accepted.len())
    });
    report.expect(effects == committed.len(), || format!("{} rows committed, {effects} effects", committed.len()));
    report.expect(committed.len() > 20, || format!("only {} rows were committed", committed.len()));
    let wrong = first_out_of_order(&receiver.seen());
    report.expect(wrong.is_none(), || wrong.clone().unwrap_or_default());
    report.figure("rows committed", committed.len());
    report.figure("events accepted", accepted.len());
    report.figure("effects", effects);
    let mut faults: Vec<_> = counts.into_iter().collect();
    faults.sort();
    for (fault, count) in faults {
        report.figure(fault, count);
    }
    report.finish();
}
