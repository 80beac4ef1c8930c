//! Producers that submit events through all nodes and record what was
//! acknowledged.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use rand::RngExt;
use serde_json::json;
use tokio::task::JoinHandle;

use crate::support::{Client, PATIENCE};

const PRODUCERS: usize = 6;
/// Number of keys per endpoint.
const KEYS: usize = 4;

/// Addresses of the nodes that accept events.
pub type NodeAddresses = Arc<RwLock<Vec<SocketAddr>>>;

/// Returns how far a recording has come; stored with each entry and receipt.
pub type RecordingPosition = Arc<dyn Fn() -> u64 + Send + Sync>;

/// One acknowledged event.
#[derive(Debug, Clone)]
struct Receipt {
    id: String,
    endpoint: String,
    key: String,
    /// RecordingPosition at the time the receipt arrived.
    mark: u64,
}

/// Returns the data of the event with this id: long enough to be damaged, and
/// different for each id.
pub fn data_of(id: &str) -> String {
    let words: Vec<String> = (0..16).map(|n| format!("{:016x}", hash((id, n)))).collect();
    json!({"of": id, "words": words}).to_string()
}

/// Returns the request body of the event with this id and that data.
pub fn event_of(id: &str, endpoint: &str, key: &str) -> String {
    let key = (!key.is_empty()).then_some(key);
    let rest = json!({"id": id, "type": endpoint, "key": key}).to_string();
    format!(r#"{},"data":{}}}"#, &rest[..rest.len() - 1], data_of(id))
}

/// Returns a hash that is the same in every run.
pub fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The acknowledged events, by producer, in order.
#[derive(Debug, Default)]
pub struct AcknowledgedEvents {
    by_producer: Vec<Vec<Receipt>>,
}

impl AcknowledgedEvents {
    /// Creates the events of one producer from id, endpoint and key.
    pub fn of(events: &[(&str, &str, &str)]) -> Self {
        let receipt = |&(id, endpoint, key): &(&str, &str, &str)| Receipt {
            id: id.into(),
            endpoint: endpoint.into(),
            key: key.into(),
            mark: 0,
        };
        Self { by_producer: vec![events.iter().map(receipt).collect()] }
    }

    pub fn len(&self) -> usize {
        self.by_producer.iter().map(Vec::len).sum()
    }

    /// Returns the events that were acknowledged when the mark was at most this.
    pub fn until(&self, mark: u64) -> Self {
        let early = |receipts: &Vec<Receipt>| receipts.iter().filter(|one| one.mark <= mark).cloned().collect();
        Self { by_producer: self.by_producer.iter().map(early).collect() }
    }

    /// Adds the events of another load.
    pub fn and(mut self, other: Self) -> Self {
        self.by_producer.extend(other.by_producer);
        self
    }

    /// Returns the id of each event, its endpoint, and a hash of its data.
    pub fn contents(&self) -> impl Iterator<Item = (&str, &str, u64)> {
        self.by_producer.iter().flatten().map(|one| (&*one.id, &*one.endpoint, hash(&*data_of(&one.id))))
    }

    /// Returns the id of each event, and its endpoint.
    pub fn ids(&self) -> impl Iterator<Item = (&String, &str)> {
        self.by_producer.iter().flatten().map(|receipt| (&receipt.id, &*receipt.endpoint))
    }

    /// Returns the events of each producer and lane, in order: id and endpoint.
    pub fn runs(&self) -> BTreeMap<(usize, String, String), Vec<(String, String)>> {
        let mut runs: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (producer, receipts) in self.by_producer.iter().enumerate() {
            for Receipt { id, endpoint, key, .. } in receipts.iter().filter(|receipt| !receipt.key.is_empty()) {
                let run = runs.entry((producer, endpoint.clone(), key.clone())).or_default();
                run.push((id.clone(), endpoint.clone()));
            }
        }
        runs
    }
}

/// Running producers. Each waits for a receipt before it submits its next
/// event; an event that was refused or not answered is submitted again.
pub struct Load {
    stop: Arc<AtomicBool>,
    refused: Arc<AtomicU64>,
    acknowledged: Arc<AtomicU64>,
    producers: Vec<JoinHandle<Vec<Receipt>>>,
}

impl Load {
    /// Starts producers of events for endpoints `e0` to `e{endpoints - 1}`, most
    /// of them with a key. Ids begin with `name`, which must be unique per load.
    pub fn start(name: &str, addresses: &NodeAddresses, token: &str, endpoints: usize) -> Self {
        Self::marked(name, addresses, token, endpoints, Arc::new(|| 0))
    }

    /// Starts producers that record a mark with each receipt.
    pub fn marked(
        name: &str,
        addresses: &NodeAddresses,
        token: &str,
        endpoints: usize,
        mark: RecordingPosition,
    ) -> Self {
        let (stop, refused, acknowledged) = (Arc::default(), Arc::default(), Arc::default());
        let producers = (0..PRODUCERS)
            .map(|producer| {
                let producer = Producer {
                    name: format!("{name}{producer}"),
                    addresses: addresses.clone(),
                    token: token.to_owned(),
                    endpoints,
                    clients: HashMap::new(),
                    stop: Arc::clone(&stop),
                    refused: Arc::clone(&refused),
                    acknowledged: Arc::clone(&acknowledged),
                    mark: mark.clone(),
                };
                tokio::spawn(producer.work())
            })
            .collect();
        Self { stop, refused, acknowledged, producers }
    }

    /// Returns how often an event was refused with 503 or 507.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns the number of acknowledged events.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Stops the producers after their current event; returns what was
    /// acknowledged.
    pub async fn finish(self) -> AcknowledgedEvents {
        self.stop.store(true, Ordering::Relaxed);
        let mut by_producer = Vec::new();
        for producer in self.producers {
            by_producer.push(producer.await.expect("a producer does not fail"));
        }
        AcknowledgedEvents { by_producer }
    }
}

struct Producer {
    name: String,
    addresses: NodeAddresses,
    token: String,
    endpoints: usize,
    clients: HashMap<SocketAddr, Client>,
    stop: Arc<AtomicBool>,
    refused: Arc<AtomicU64>,
    acknowledged: Arc<AtomicU64>,
    mark: RecordingPosition,
}

impl Producer {
    async fn work(mut self) -> Vec<Receipt> {
        let mut receipts = Vec::new();
        for n in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let (endpoint, key) = {
                let mut rng = rand::rng();
                let key = rng.random_range(0..=KEYS);
                let key = if key == KEYS { String::new() } else { format!("k{key}") };
                (format!("e{}", rng.random_range(0..self.endpoints)), key)
            };
            let mut receipt = Receipt { id: format!("{}-{n}", self.name), endpoint, key, mark: 0 };
            self.submit(&receipt).await;
            receipt.mark = (self.mark)();
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
            receipts.push(receipt);
            // Limits the load of each producer.
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        receipts
    }

    async fn submit(&mut self, receipt: &Receipt) {
        let Receipt { id, endpoint, key, .. } = receipt;
        let body = event_of(id, endpoint, key);
        let until = Instant::now() + PATIENCE;
        loop {
            let last = match self.node_address() {
                Some(node_address) => match self.try_at(node_address, body.clone()).await {
                    Ok(()) => return,
                    Err(last) => last,
                },
                None => "no node is there".to_owned(),
            };
            assert!(Instant::now() < until, "{id} could not be handed in: {last}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn node_address(&self) -> Option<SocketAddr> {
        let addresses = self.addresses.read().expect("nothing panics while it is held");
        (!addresses.is_empty()).then(|| addresses[rand::rng().random_range(0..addresses.len())])
    }

    async fn try_at(&mut self, node_address: SocketAddr, body: String) -> Result<(), String> {
        let client = self.clients.entry(node_address).or_insert_with(|| Client::new(node_address, &self.token));
        // A frozen node does not answer at all.
        let sending = client.send("POST", "/v1/tenants/default/events", &[], body);
        let Ok(answer) = tokio::time::timeout(Duration::from_secs(1), sending).await else {
            self.clients.remove(&node_address);
            return Err("no answer".into());
        };
        let answer = answer?;
        match answer.status {
            202 => Ok(()),
            // The disk is full; 507 has no Retry-After.
            507 => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                Err(String::from_utf8_lossy(&answer.body).into_owned())
            }
            503 => {
                let wait = answer.headers.get("retry-after").and_then(|wait| wait.to_str().ok());
                assert!(wait.is_some_and(|wait| wait.parse::<u32>().is_ok()), "no Retry-After in {answer:?}");
                self.refused.fetch_add(1, Ordering::Relaxed);
                Err(String::from_utf8_lossy(&answer.body).into_owned())
            }
            _ => panic!("{answer:?}"),
        }
    }
}
