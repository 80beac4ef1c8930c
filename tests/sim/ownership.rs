//! Many nodes in simulated time: shards that come, go and come back, leases
//! that are not renewed, and nodes that are the last to learn of it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use posthaste::clock::{Clock, TokioClock};
use posthaste::lifecycle::Gateway;
use posthaste::lifecycle::accept::{Submission, accept};
use posthaste::lifecycle::change::{change_delivery, put_tenant};
use posthaste::lifecycle::cluster;
use posthaste::lifecycle::deliver::send::Sender;
use posthaste::lifecycle::deliver::sign::SignedRequest;
use posthaste::lifecycle::expire;
use posthaste::lifecycle::live_status::{LiveStatusQuery, live_statuses};
use posthaste::lifecycle::mail::MailQueue;
use posthaste::lifecycle::publish_status::StatusPublisher;
use posthaste::lifecycle::waiting::outlooks;
use posthaste::metrics::Gauges;
use posthaste::model::answer::{Answer, Response, Timings};
use posthaste::model::audit::Initiator;
use posthaste::model::blocker::Capacity;
use posthaste::model::delivery::{Delivery, DeliveryState, WaitingFor, time_after};
use posthaste::model::endpoint::{Endpoint, EndpointSettings};
use posthaste::model::id::{EndpointId, SecretId};
use posthaste::model::rate::Rate;
use posthaste::model::shard::Shard;
use posthaste::model::span::Span;
use posthaste::model::tenant::TenantQuota;
use posthaste::store::embedded::{Durability, EmbeddedStore};
use posthaste::store::{BatchMode, Catalog, ClusterEvent, DeliveryChange, Error, Store};
use serde_json::{Value, json};

use super::faulty_store::FaultyStore;
use super::node_views::{LEASE, SharedOwnership};
use super::world::{endpoint, gateway, limits, tenant, tenant_record};

pub const SECOND: Duration = Duration::from_secs(1);

/// One request: its event and node, its time, and whether it was answered or
/// dropped.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    id: String,
    node: usize,
    pub began: Duration,
    ended: Option<Duration>,
    is_answered: bool,
}

/// The receiver that all nodes call; it answers each event after its own time.
pub struct Receiver {
    clock: Arc<dyn Clock>,
    began: Timestamp,
    takes: fn(&str) -> Duration,
    calls: Mutex<Vec<Call>>,
}

/// The sender of one node.
struct NodeSender(usize, Arc<Receiver>);

/// An open request; dropping it records its end.
struct OpenCall<'a>(&'a Receiver, usize);

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        let since = self.0.since();
        self.0.calls.lock().unwrap()[self.1].ended = Some(since);
    }
}

impl Receiver {
    fn since(&self) -> Duration {
        self.clock.now().duration_since(self.began).unsigned_abs()
    }
}

#[async_trait]
impl Sender for NodeSender {
    async fn send(&self, request: SignedRequest) -> Answer {
        let Self(node, receiver) = self;
        let id = request.headers["webhook-id"].to_str().unwrap().to_owned();
        let place = {
            let mut calls = receiver.calls.lock().unwrap();
            calls.push(Call { id: id.clone(), node: *node, began: receiver.since(), ended: None, is_answered: false });
            calls.len() - 1
        };
        let _open = OpenCall(receiver, place);
        tokio::time::sleep((receiver.takes)(&id)).await;
        receiver.calls.lock().unwrap()[place].is_answered = true;
        Answer { result: Ok(Response { status: 200, ..Response::default() }), timings: Timings::default() }
    }
}

/// A few nodes that share a store.
pub struct Cluster {
    pub ownership: Arc<SharedOwnership>,
    nodes: Vec<Arc<Gateway>>,
    pub clock: Arc<dyn Clock>,
    pub began: Timestamp,
    pub endpoints: Vec<EndpointId>,
}

impl Cluster {
    pub async fn send(&self, node: usize, id: &str, key: Option<&str>) {
        self.send_to(node, id, key, None).await;
    }

    async fn send_to(&self, node: usize, id: &str, key: Option<&str>, to: Option<EndpointId>) {
        let submission = Submission {
            id: Some(id.parse().unwrap()),
            event_type: "sim.event".parse().unwrap(),
            key: key.map(|key| key.parse().unwrap()),
            timestamp: None,
            schema_version: None,
            expires_at: None,
            endpoints: to.map(|to| vec![to]),
            is_test: false,
            trace: None,
            data: "{}".into(),
        };
        accept(&self.nodes[node], &tenant(), vec![submission], BatchMode::All).await.unwrap();
    }

    pub async fn until(&self, span: Duration) {
        self.clock.sleep_until(time_after(self.began, span)).await;
    }

    pub async fn delivery(&self, event: &str) -> Delivery {
        let id = event.parse().unwrap();
        self.nodes[0].store.event_deliveries(&tenant(), &id).await.unwrap().unwrap().remove(0)
    }

    async fn change(&self, node: usize, event: &str, change: DeliveryChange) -> Result<(), Error> {
        let id = self.delivery(event).await.id;
        change_delivery(&self.nodes[node], &Initiator::Gateway, &tenant(), id, change).await
    }

    /// Returns the shard of the first endpoint.
    pub fn shard(&self) -> [Shard; 1] {
        [Shard::of(&tenant(), self.endpoints[0])]
    }

    /// Hands shards over from one node to another, in the orderly way.
    pub async fn hand_over(&self, from: usize, to: usize, shards: &[Shard]) {
        self.ownership.want(from, shards).await.expect("they are given");
        self.ownership.take(from, shards);
        self.ownership.give(to, shards, true).await;
    }

    pub fn stale_writes(&self, node: usize) -> String {
        let text = self.nodes[node].metrics.encode(&Gauges::default());
        let line = text.lines().find(|line| line.starts_with("posthaste_stale_writes_total")).unwrap();
        line.rsplit(' ').next().unwrap().to_owned()
    }
}

fn start(store: FaultyStore, sender: Arc<dyn Sender>, clock: &Arc<dyn Clock>, seed: u64) -> Arc<Gateway> {
    let store: Arc<dyn Store> = Arc::new(store);
    let mail = MailQueue::new(None, clock.clone());
    let gateway = gateway(store, sender, clock, mail, Span::secs(30 * 86_400), limits(), seed);
    let (keeping_time, expiring, listening) = (gateway.clone(), gateway.clone(), gateway.clone());
    tokio::spawn(async move { keeping_time.dispatcher.run().await.unwrap() });
    tokio::spawn(expire::run(expiring));
    tokio::spawn(cluster::run(listening));
    gateway
}

/// Runs a test with this many nodes, and endpoints of these settings, each in a
/// shard of its own.
pub fn live(
    nodes: usize,
    settings: Vec<Value>,
    sender: impl Fn(usize, &Arc<dyn Clock>, Timestamp) -> Arc<dyn Sender>,
    story: impl AsyncFnOnce(&mut Cluster),
) {
    let folder = tempfile::tempdir().unwrap();
    let embedded = Arc::new(EmbeddedStore::open(folder.path(), Durability::Unsynced).unwrap());
    let began = Timestamp::from_second(1_800_000_000).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let ownership = SharedOwnership::new(embedded.clone(), nodes);
    let stores: Vec<_> =
        (0..nodes).map(|node| FaultyStore::for_node(embedded.clone(), ownership.node_view(node))).collect();
    runtime.block_on(async {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(began));
        stores[0].put_tenant(&Initiator::Gateway, tenant_record(began)).await.unwrap();
        let mut endpoints: Vec<EndpointId> = Vec::new();
        for settings in settings {
            let is_taken =
                |id: EndpointId| endpoints.iter().any(|known| Shard::of(&tenant(), *known) == Shard::of(&tenant(), id));
            let id = (0..).map(|n| EndpointId::mint(began, n)).find(|id| !is_taken(*id)).unwrap();
            let settings: EndpointSettings = serde_json::from_value(settings).unwrap();
            let mut made = Endpoint {
                id,
                urls: posthaste::model::url_versions::UrlVersions::first(&settings.url),
                policy: settings.check().unwrap(),
                settings,
                ..endpoint(0, began)
            };
            made.secrets[0].id = SecretId::mint(began, endpoints.len() as u128);
            stores[0].create_endpoint(&Initiator::Gateway, made).await.unwrap();
            endpoints.push(id);
        }
        let start = |(node, store): (usize, &FaultyStore)| {
            start(store.clone(), sender(node, &clock, began), &clock, 7 + node as u64)
        };
        let nodes = stores.iter().enumerate().map(start).collect();
        let mut cluster = Cluster { ownership: ownership.clone(), nodes, clock, began, endpoints };
        // An endpoint that was never called owes nobody anything a day later.
        cluster.began = time_after(began, Duration::from_secs(86_400));
        cluster.until(Duration::ZERO).await;
        story(&mut cluster).await;
    });
    stores.iter().for_each(FaultyStore::crash);
    drop(runtime);
    drop((stores, ownership));
    let store = Arc::try_unwrap(embedded).ok().expect("nothing of a dead process holds its store");
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(store.close());
}

/// Runs a test with one receiver that takes its own time for each event.
pub fn live_calmly(
    nodes: usize,
    settings: Vec<Value>,
    takes: fn(&str) -> Duration,
    story: impl AsyncFnOnce(&mut Cluster, &Receiver),
) {
    let shared: Mutex<Option<Arc<Receiver>>> = Mutex::default();
    let sender = |node, clock: &Arc<dyn Clock>, began| -> Arc<dyn Sender> {
        let made = || {
            let began = time_after(began, Duration::from_secs(86_400));
            Arc::new(Receiver { clock: clock.clone(), began, takes, calls: Mutex::default() })
        };
        Arc::new(NodeSender(node, shared.lock().unwrap().get_or_insert_with(made).clone()))
    };
    live(nodes, settings, sender, async |cluster| {
        let receiver = shared.lock().unwrap().clone().unwrap();
        story(cluster, &receiver).await;
    });
}

pub fn calls(receiver: &Receiver) -> Vec<Call> {
    receiver.calls.lock().unwrap().clone()
}

pub fn ids(calls: &[Call]) -> Vec<(&str, usize)> {
    calls.iter().map(|call| (call.id.as_str(), call.node)).collect()
}

fn capped(max_in_flight: usize) -> Value {
    json!({"url": "https://receiver.example/", "max_in_flight": max_in_flight})
}

pub fn plain() -> Value {
    json!({"url": "https://receiver.example/"})
}

const AT_ONCE: fn(&str) -> Duration = |_| Duration::from_millis(5);

#[test]
fn only_the_owner_delivers_whoever_accepts() {
    live_calmly(2, vec![plain()], AT_ONCE, async |cluster, receiver| {
        cluster.send(0, "before", None).await;
        cluster.until(5 * SECOND).await;
        assert_eq!(calls(receiver), [], "it is nobody's");
        cluster.ownership.give(1, &cluster.shard(), false).await;
        cluster.until(6 * SECOND).await;
        cluster.send(0, "there", None).await;
        cluster.send(1, "here", None).await;
        cluster.until(7 * SECOND).await;
        let mut seen = calls(receiver);
        seen.sort_by(|a, b| a.id.cmp(&b.id));
        assert_eq!(ids(&seen), [("before", 1), ("here", 1), ("there", 1)]);
        for id in ["before", "there", "here"] {
            assert_eq!(cluster.delivery(id).await.state, DeliveryState::Delivered);
        }
    });
}

#[test]
fn what_is_accepted_before_a_gain_is_heard_of_goes_with_it() {
    live_calmly(1, vec![plain()], AT_ONCE, async |cluster, receiver| {
        // Once when it is new, and once when the loss is not heard of either.
        for (n, id) in ["first", "second"].into_iter().enumerate() {
            let at = 10 * SECOND * (n as u32 + 1);
            let gained = cluster.ownership.give_silently(0, &cluster.shard()).await;
            cluster.send(0, id, None).await;
            cluster.until(at).await;
            assert_eq!(calls(receiver).len(), n, "it is not known to be ours");
            if n > 0 {
                cluster.ownership.send_event(0, ClusterEvent::Lost { shards: cluster.shard().to_vec() });
            }
            cluster.ownership.send_event(0, gained);
            cluster.until(at + SECOND).await;
            assert_eq!(calls(receiver).len(), n + 1, "{id}");
        }
    });
}

#[test]
fn a_wanted_shard_starts_nothing_more_and_goes_once_nothing_of_it_is_in_flight() {
    let takes = |id: &str| if id == "slow" { 9 * SECOND } else { SECOND / 10 };
    live_calmly(2, vec![capped(2)], takes, async |cluster, receiver| {
        cluster.ownership.give(0, &cluster.shard(), false).await;
        for (id, key) in [("slow", "k"), ("behind", "k"), ("a", "a"), ("b", "b"), ("c", "c")] {
            cluster.send(0, id, Some(key)).await;
        }
        let began = cluster.clock.now();
        cluster.hand_over(0, 1, &cluster.shard()).await;
        let took = cluster.clock.now().duration_since(began).unsigned_abs();
        assert!((8 * SECOND..10 * SECOND).contains(&took), "the slow one is waited for: {took:?}");
        cluster.until(20 * SECOND).await;
        let seen = calls(receiver);
        assert_eq!(ids(&seen)[..2], [("slow", 0), ("a", 0)], "what was open");
        let mut rest = ids(&seen[2..]);
        rest.sort_unstable();
        assert_eq!(rest, [("b", 1), ("behind", 1), ("c", 1)], "each once, and there");
        assert!(seen.iter().all(|call| call.is_answered));
    });
}

#[test]
fn a_shard_that_is_kept_after_all_goes_on() {
    let takes = |id: &str| if id == "slow" { 9 * SECOND } else { SECOND / 10 };
    live_calmly(1, vec![plain()], takes, async |cluster, receiver| {
        cluster.ownership.give(0, &cluster.shard(), false).await;
        cluster.send(0, "slow", None).await;
        let ownership = cluster.ownership.clone();
        let shard = cluster.shard();
        let wanting = tokio::spawn(async move { ownership.want(0, &shard).await });
        cluster.until(SECOND).await;
        cluster.send(0, "held", None).await;
        cluster.until(2 * SECOND).await;
        assert_eq!(ids(&calls(receiver)), [("slow", 0)]);
        cluster.ownership.keep(0, &cluster.shard(), false).await;
        cluster.until(3 * SECOND).await;
        assert_eq!(ids(&calls(receiver)), [("slow", 0), ("held", 0)]);
        cluster.until(20 * SECOND).await;
        assert!(wanting.await.unwrap().is_err(), "nothing is given that is ours again");
        assert_eq!(ids(&calls(receiver)).len(), 2);
        assert_eq!(cluster.delivery("slow").await.state, DeliveryState::Delivered);
    });
}

#[test]
fn what_is_in_flight_when_its_shard_goes_is_dropped_and_never_open_twice() {
    let takes = |_: &str| 3 * SECOND;
    live_calmly(2, vec![plain()], takes, async |cluster, receiver| {
        cluster.ownership.give(0, &cluster.shard(), false).await;
        cluster.send(0, "a", Some("k")).await;
        cluster.send(0, "b", Some("k")).await;
        cluster.until(SECOND).await;
        cluster.ownership.take(0, &cluster.shard());
        cluster.ownership.give(0, &cluster.shard(), true).await;
        cluster.until(20 * SECOND).await;
        let seen = calls(receiver);
        assert_eq!(ids(&seen), [("a", 0), ("a", 0), ("b", 0)]);
        assert!(!seen[0].is_answered && seen[1].is_answered && seen[2].is_answered);
        assert!(seen.windows(2).all(|pair| pair[1].began >= pair[0].ended.unwrap()), "one after the other: {seen:?}");
        assert_eq!(cluster.delivery("a").await.progress.attempts, 1, "the one that was dropped is not charged");
        assert_eq!(cluster.stale_writes(0), "0");
    });
}

#[test]
fn a_lease_that_is_not_renewed_ends_what_is_open_and_begins_nothing() {
    let takes = |id: &str| if id == "long" { 40 * SECOND } else { SECOND / 10 };
    let long = json!({"url": "https://receiver.example/", "timeout": {"total": "60s"}, "max_in_flight": 50});
    live_calmly(1, vec![long], takes, async |cluster, receiver| {
        cluster.ownership.give(0, &cluster.shard(), false).await;
        cluster.send(0, "long", None).await;
        cluster.until(SECOND).await;
        cluster.ownership.cut_off(0);
        cluster.until(8 * SECOND).await;
        cluster.send(0, "early", None).await;
        cluster.until(9 * SECOND).await;
        assert_eq!(ids(&calls(receiver)), [("long", 0), ("early", 0)], "half of the lease is ahead of it");
        cluster.send(0, "late", None).await;
        cluster.until(30 * SECOND).await;
        let seen = calls(receiver);
        assert_eq!(ids(&seen), [("long", 0), ("early", 0)], "less than half is not enough for one that may take long");
        assert!(!seen[0].is_answered);
        assert_eq!(seen[0].ended, Some(SECOND + LEASE), "at the very end of the lease");
        cluster.ownership.renew(0);
        cluster.until(31 * SECOND).await;
        assert_eq!(ids(&calls(receiver)).len(), 4, "{:?}", calls(receiver));
        cluster.until(80 * SECOND).await;
        for id in ["long", "early", "late"] {
            let delivery = cluster.delivery(id).await;
            assert_eq!(
                (delivery.state, delivery.progress.attempts),
                (DeliveryState::Delivered, 1),
                "{id}: nothing is charged"
            );
        }
    });
}

#[test]
fn a_short_deadline_needs_no_more_of_the_lease_than_it_has() {
    let short = json!({"url": "https://receiver.example/", "timeout": {"connect": "1s", "total": "2s"}});
    live_calmly(1, vec![short], AT_ONCE, async |cluster, receiver| {
        cluster.ownership.give(0, &cluster.shard(), false).await;
        cluster.ownership.cut_off(0);
        cluster.until(LEASE - 3 * SECOND).await;
        cluster.send(0, "fits", None).await;
        cluster.until(LEASE - SECOND).await;
        cluster.send(0, "does-not", None).await;
        cluster.until(4 * LEASE).await;
        assert_eq!(ids(&calls(receiver)), [("fits", 0)]);
    });
}

#[test]
fn one_that_is_the_last_to_hear_settles_nothing_and_forgets() {
    let takes = |_: &str| 2 * SECOND;
    live_calmly(2, vec![plain()], takes, async |cluster, receiver| {
        cluster.ownership.give(0, &cluster.shard(), false).await;
        cluster.send(0, "a", Some("k")).await;
        cluster.send(0, "b", Some("k")).await;
        cluster.until(SECOND).await;
        cluster.ownership.steal(&cluster.shard());
        cluster.until(3 * SECOND).await;
        assert_eq!(cluster.stale_writes(0), "1", "its outcome was refused");
        assert_eq!(cluster.delivery("a").await.state, DeliveryState::Waiting);
        assert_eq!(cluster.nodes[0].dispatcher.in_flight(), 0);
        cluster.until(60 * SECOND).await;
        assert_eq!(ids(&calls(receiver)), [("a", 0)], "and it starts nothing more of it");
        cluster.ownership.give(1, &cluster.shard(), true).await;
        cluster.until(70 * SECOND).await;
        assert_eq!(ids(&calls(receiver)), [("a", 0), ("a", 1), ("b", 1)]);
    });
}

/// Returns by how much a rate was exceeded at most, over all windows.
fn excess(calls: &[Call], rate: Rate) -> f64 {
    let at: Vec<f64> = calls.iter().map(|call| call.began.as_secs_f64()).collect();
    let mut worst = f64::MIN;
    for first in 0..at.len() {
        for last in first..at.len() {
            let allowed = f64::from(rate.burst) + rate.per_second * (at[last] - at[first]);
            worst = worst.max((last - first + 1) as f64 - allowed);
        }
    }
    worst
}

#[test]
fn an_endpoints_rate_holds_over_its_moves() {
    let rate = Rate { per_second: 10.0, burst: 20 };
    let settings = json!({"url": "https://receiver.example/", "rate": rate, "max_in_flight": 100});
    live_calmly(3, vec![settings], AT_ONCE, async |cluster, receiver| {
        cluster.ownership.give(0, &cluster.shard(), false).await;
        for n in 0..200 {
            cluster.send(0, &format!("e-{n}"), None).await;
        }
        for n in 0..12usize {
            cluster.until(SECOND * (n as u32 + 1)).await;
            cluster.hand_over(n % 3, (n + 1) % 3, &cluster.shard()).await;
        }
        cluster.until(60 * SECOND).await;
        let seen = calls(receiver);
        assert_eq!(seen.len(), 200, "each once");
        assert!((0..3).all(|node| seen.iter().any(|call| call.node == node)), "all have had it");
        assert!(excess(&seen, rate) <= 1e-6, "{} too many", excess(&seen, rate));
        let last = seen.last().unwrap().began;
        assert!(last < 30 * SECOND, "and it is not much slower: {last:?}");
    });
}

#[test]
fn a_tenants_rate_is_one_over_all_nodes() {
    let rate = Rate { per_second: 20.0, burst: 8 };
    let settings = (0..8).map(|n| json!({"url": format!("https://r{n}.example/"), "max_in_flight": 100})).collect();
    live_calmly(2, settings, AT_ONCE, async |cluster, receiver| {
        let mut limited = tenant_record(cluster.began);
        limited.quota = TenantQuota { rate: Some(rate), ..TenantQuota::default() };
        put_tenant(&cluster.nodes[0], &Initiator::Gateway, limited).await.unwrap();
        let (done, _heard) = tokio::sync::oneshot::channel();
        cluster.ownership.send_event(1, ClusterEvent::Changed { endpoints: Vec::new(), tenants: vec![tenant()], done });
        let shards: Vec<Shard> = cluster.endpoints.iter().map(|id| Shard::of(&tenant(), *id)).collect();
        cluster.ownership.give(0, &shards, false).await;
        // Both have rested, as far as they know.
        cluster.until(60 * SECOND).await;
        for n in 0..100 {
            cluster.send(0, &format!("e-{n}"), None).await;
        }
        for n in 0..12 {
            cluster.until((60 + n) * SECOND).await;
            // All there, half there, all back: again and again.
            match n % 3 {
                0 => cluster.hand_over(0, 1, &shards).await,
                1 => cluster.hand_over(1, 0, &shards[..4]).await,
                _ => cluster.hand_over(1, 0, &shards[4..]).await,
            }
        }
        cluster.until(120 * SECOND).await;
        let seen = calls(receiver);
        assert_eq!(seen.len(), 800, "each once");
        assert!((0..2).all(|node| seen.iter().filter(|call| call.node == node).count() > 50));
        assert!(excess(&seen, rate) <= 1e-6, "{} too many", excess(&seen, rate));
        let last = seen.last().unwrap().began;
        assert!(last < 110 * SECOND, "and it is not much slower: {last:?}");
    });
}

#[test]
fn what_a_person_does_elsewhere_is_in_force_at_the_owner_before_it_is_answered() {
    let takes = |_: &str| 2 * SECOND;
    live_calmly(2, vec![capped(1)], takes, async |cluster, receiver| {
        cluster.ownership.give(1, &cluster.shard(), false).await;
        for id in ["open", "cancelled", "last"] {
            cluster.send(1, id, None).await;
        }
        cluster.until(SECOND).await;
        cluster.change(0, "cancelled", DeliveryChange::Cancel).await.unwrap();
        let refused = cluster.change(0, "open", DeliveryChange::RetryNow).await;
        assert!(matches!(&refused, Err(Error::WrongState(words)) if words.contains("in flight")), "{refused:?}");
        cluster.until(10 * SECOND).await;
        assert_eq!(ids(&calls(receiver)), [("open", 1), ("last", 1)]);
        cluster.change(0, "cancelled", DeliveryChange::Replay).await.unwrap();
        cluster.until(13 * SECOND).await;
        assert_eq!(ids(&calls(receiver))[2..], [("cancelled", 1)], "at once");
        // Nobody owns it: that is for whoever comes next.
        cluster.ownership.take(1, &cluster.shard());
        cluster.change(0, "cancelled", DeliveryChange::Replay).await.unwrap();
        cluster.ownership.give(0, &cluster.shard(), true).await;
        cluster.until(20 * SECOND).await;
        assert_eq!(ids(&calls(receiver))[3..], [("cancelled", 0)]);
    });
}

#[test]
fn any_node_shows_what_the_owner_feels() {
    let takes = |_: &str| 2 * SECOND;
    live_calmly(3, vec![capped(1), capped(1)], takes, async |cluster, _| {
        let shards = cluster.endpoints.iter().map(|id| Shard::of(&tenant(), *id)).collect::<Vec<_>>();
        cluster.ownership.give(1, &shards[..1], false).await;
        cluster.ownership.give(2, &shards[1..], false).await;
        for id in ["open", "waits"] {
            cluster.send(0, id, Some("k")).await;
        }
        cluster.until(SECOND).await;
        for gateway in &cluster.nodes {
            StatusPublisher::default().publish(gateway).await.unwrap();
        }
        for node in 0..3 {
            let gateway = &cluster.nodes[node];
            for (event, is_in_flight, waiting_for) in [("open", true, None), ("waits", false, Some(WaitingFor::Key))] {
                let id = event.parse().unwrap();
                let deliveries = gateway.store.event_deliveries(&tenant(), &id).await.unwrap().unwrap();
                assert_eq!(deliveries.len(), 2);
                for seen in outlooks(gateway, &deliveries).await {
                    assert_eq!((seen.is_in_flight, seen.waiting_for), (is_in_flight, waiting_for), "{event}, {node}");
                }
            }
            let about = cluster.endpoints.iter().map(|id| LiveStatusQuery::endpoint(&tenant(), *id)).collect();
            let felt = live_statuses(gateway, about).await;
            assert_eq!(felt.len(), 2);
            assert!(
                felt.values().all(|felt| felt.waiting == Some(2) && felt.capacity == Capacity::Slot),
                "{node}: {felt:?}"
            );
        }
        // Without an owner there is only what is written down.
        cluster.ownership.take(2, &shards[1..]);
        let felt =
            live_statuses(&cluster.nodes[0], vec![LiveStatusQuery::endpoint(&tenant(), cluster.endpoints[1])]).await;
        assert_eq!(felt[&cluster.endpoints[1]].capacity, Capacity::Free);
    });
}

#[test]
fn a_node_that_stops_leaves_nothing_open_behind() {
    let takes = |_: &str| 9 * SECOND;
    live_calmly(1, vec![plain()], takes, async |cluster, receiver| {
        cluster.ownership.give(0, &cluster.shard(), false).await;
        cluster.send(0, "slow", None).await;
        cluster.until(SECOND).await;
        assert_eq!(cluster.nodes[0].dispatcher.stop(SECOND).await, 1);
        let seen = calls(receiver);
        assert_eq!(seen[0].ended, Some(2 * SECOND), "it is cut off before others may begin with it");
        assert_eq!(cluster.delivery("slow").await.progress.attempts, 0);
    });
}
