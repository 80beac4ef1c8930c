//! A bad night: three receivers are down, one answers 400 to everything, and one that is
//! ordered by key refuses the first event of each key. It is the same for one gateway
//! and for many nodes.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::{Client, eager_retry, eventually, unlimited};

const TENANT: &str = "/v1/tenants/default";
/// Events for each endpoint that is not ordered.
const EVENTS: usize = 300;
/// Keys of the endpoint that is ordered, and events of each.
const KEYS: usize = 60;
const EVENTS_OF_KEY: usize = 8;
/// Dead letters of the night.
pub const DEAD: usize = 4 * EVENTS + KEYS;
/// Refusals after which an endpoint is paused: more than there are, since a paused one
/// has fewer dead letters.
pub const PAUSE_REFUSALS: &str = "100000";
/// Most open requests of each endpoint.
const CAP: usize = 5;
/// Endpoints of the night: three that are down, one that refuses, one that is ordered,
/// and one that is well.
pub const ENDPOINTS: [&str; 6] = ["e0", "e1", "e2", "e3", "e4", "e5"];
/// The endpoint that is ordered by key.
pub const ORDERED: &str = "e4";
const WELL: &str = "e5";

/// A request that the receiver has answered.
#[derive(Debug, Clone)]
pub struct LoggedRequest {
    pub endpoint: String,
    pub id: String,
    pub key: String,
    pub seq: u64,
    pub status: u16,
}

/// What the receivers answer, and have answered.
#[derive(Clone, Default)]
pub struct Night {
    is_over: Arc<AtomicBool>,
    log: Arc<Mutex<Vec<LoggedRequest>>>,
}

impl Night {
    /// Returns the answer to a request for an endpoint, and writes it down.
    pub fn answer(&self, endpoint: &str, id: &str, key: &str, seq: u64) -> u16 {
        let status = match endpoint {
            _ if self.is_over.load(Ordering::Relaxed) || endpoint == WELL => 200,
            "e0" | "e1" | "e2" => 503,
            _ => 400,
        };
        let (endpoint, id, key) = (endpoint.to_owned(), id.to_owned(), key.to_owned());
        let request = LoggedRequest { endpoint, id, key, seq, status };
        self.log.lock().expect("nothing panics while it is held").push(request);
        status
    }

    /// Returns the settings of an endpoint of the night.
    pub fn settings(name: &str, url: &str) -> Value {
        json!({"url": url, "event_types": [name], "max_in_flight": CAP, "rate": unlimited(),
            "retry": eager_retry(2), "breaker": {"enabled": false}})
    }

    /// Returns how many requests were answered with 200 at the endpoints that died.
    pub fn replayed(&self) -> usize {
        let log = self.log.lock().expect("nothing panics while it is held");
        log.iter().filter(|one| one.status == 200 && one.endpoint != WELL).count()
    }

    /// Hands in the events of the night, and waits until all have died that are to die.
    pub async fn begin(&self, client: &Client) {
        for name in ENDPOINTS {
            let count = if name == ORDERED { KEYS * EVENTS_OF_KEY } else { EVENTS };
            let key = |n: usize| (name == ORDERED).then(|| format!("key{}", n % KEYS));
            let events: Vec<Value> = (0..count)
                .map(|n| json!({"id": format!("{name}-{n}"), "type": name, "key": key(n), "data": n}))
                .collect();
            client.post_json(&format!("{TENANT}/events/batch"), &json!(events)).await.expect(202);
        }
        self.wait_for_dead(client, DEAD).await;
    }

    /// Waits for this number of dead letters, for as long as the number changes.
    async fn wait_for_dead(&self, client: &Client, count: usize) {
        let mut seen = Value::Null;
        while seen != count {
            seen = eventually("the number of dead letters to change", || async {
                let groups = client.get(&format!("{TENANT}/dead-letters/groups")).await.expect(200);
                let total = groups["total"]["count"].clone();
                if total != seen { Ok(total) } else { Err(format!("{total} of {count}")) }
            })
            .await;
        }
    }

    /// Checks that what happened is found, grouped and previewed. The endpoints are those
    /// of [`ENDPOINTS`].
    pub async fn check_found(&self, client: &Client, endpoints: &[Value]) {
        let id = |name: &str| &endpoints[ENDPOINTS.iter().position(|known| *known == name).expect("a name")]["id"];
        let groups = client.get(&format!("{TENANT}/dead-letters/groups?by=endpoint,cause,status")).await.expect(200);
        let found: HashSet<String> = groups["data"]
            .as_array()
            .expect("groups")
            .iter()
            .map(|one| format!("{} {} {} {}", one["endpoint"], one["cause"], one["answer"], one["count"]))
            .collect();
        let group = |name: &str, cause: &str, answer: u16, count: usize| {
            format!("{} \"{cause}\" \"{answer}\" {count}", id(name))
        };
        let down = ["e0", "e1", "e2"].map(|name| group(name, "exhausted", 503, EVENTS));
        let refused = [group("e3", "refused", 400, EVENTS), group(ORDERED, "refused", 400, KEYS)];
        assert_eq!(found, down.into_iter().chain(refused).collect());
        eventually("all that needs attention to be told", || async {
            let attention = client.get("/v1/attention").await.expect(200);
            let told: Vec<(&str, &Value)> = attention["data"]
                .as_array()
                .expect("a list")
                .iter()
                .filter_map(|one| Some((one["kind"].as_str()?, &one["endpoint"])))
                .collect();
            let dead = ["e0", "e1", "e2", "e3"].iter().all(|name| told.contains(&("dead_growing", id(name))));
            let is_all = dead && told.contains(&("lane_blocked", id(ORDERED)));
            let is_well = !told.iter().any(|(_, endpoint)| *endpoint == id(WELL));
            if is_all && is_well { Ok(()) } else { Err(attention.to_string()) }
        })
        .await;
        let preview = json!({"kind": "replay", "filter": {"all": true}, "dry_run": true});
        let preview = client.post_json(&format!("{TENANT}/jobs"), &preview).await.expect(200);
        assert_eq!((&preview["matches"], &preview["is_exact"]), (&json!(DEAD), &json!(true)), "{preview}");
        let behind = KEYS * (EVENTS_OF_KEY - 1);
        assert_eq!(preview["unblocks"], json!({"waiting": behind, "lanes": KEYS, "is_exact": true}));
        assert!(preview["done_at"].is_string() && preview["left_out"] == json!([]), "{preview}");
    }

    /// Repairs the receivers, and begins to send again what died. Returns the path of the
    /// job.
    pub async fn replay(&self, client: &Client, per_second: u32) -> String {
        self.is_over.store(true, Ordering::Relaxed);
        let job = json!({"kind": "replay", "filter": {"all": true}, "per_second": per_second, "note": "the night"});
        let job = client.post_json(&format!("{TENANT}/jobs"), &job).await.expect(202);
        format!("{TENANT}/jobs/{}", job["id"].as_str().expect("an id"))
    }

    /// Waits until so many were sent again, and sees that the job is not done.
    pub async fn wait_for_replayed(&self, client: &Client, job: &str, count: usize) {
        eventually("so many to be sent again", || async {
            let replayed = self.replayed();
            if replayed >= count { Ok(()) } else { Err(format!("{replayed} were")) }
        })
        .await;
        assert_eq!(client.get(job).await.expect(200)["state"], "running");
    }

    /// Waits until the job is finished, and counts what the receivers have had: nothing is
    /// lost, every lane is in order, and only what was open when one of `kills` processes
    /// was killed may have come once more.
    pub async fn check_recovered(&self, client: &Client, job: &str, kills: usize) {
        let mut seen = Value::Null;
        let finished = loop {
            let shown = eventually("the job to go on", || async {
                let job = client.get(job).await.expect(200);
                if job["state"] == "finished" || job["done"] != seen { Ok(job) } else { Err(job.to_string()) }
            })
            .await;
            if shown["state"] == "finished" {
                break shown;
            }
            seen = shown["done"].clone();
        };
        let outcome = json!({"delivered": DEAD, "dead": 0, "waiting": 0});
        assert_eq!((&finished["matched"], &finished["done"]), (&json!(DEAD), &json!(DEAD)), "{finished}");
        assert_eq!((&finished["outcome"], &finished["left_out"]), (&outcome, &json!([])), "{finished}");
        self.wait_for_dead(client, 0).await;
        eventually("what waited behind dead heads to arrive", || async {
            let waiting = client.get(&format!("{TENANT}/deliveries?state=waiting&limit=1")).await.expect(200);
            if waiting["data"] == json!([]) { Ok(()) } else { Err(waiting.to_string()) }
        })
        .await;
        let audit = client.get(&format!("{TENANT}/audit?limit=500")).await.expect(200);
        let actions: Vec<&Value> =
            audit["data"].as_array().expect("entries").iter().map(|one| &one["action"]).collect();
        assert_eq!(actions.iter().filter(|action| **action == "job.started").count(), 1, "{actions:?}");
        assert!(!actions.iter().any(|action| **action == "delivery.replayed"), "one entry is enough: {actions:?}");
        self.check_log(kills);
    }

    fn check_log(&self, kills: usize) {
        let log = self.log.lock().expect("nothing panics while it is held").clone();
        let mut delivered: HashMap<(&str, &str), usize> = HashMap::new();
        let mut highest: HashMap<&str, u64> = HashMap::new();
        for one in log.iter().filter(|one| one.status == 200) {
            *delivered.entry((&one.endpoint, &one.id)).or_default() += 1;
            if one.endpoint == ORDERED {
                let highest = highest.entry(&one.key).or_default();
                // The same once more is not an older one after a newer one.
                assert!([*highest, *highest + 1].contains(&one.seq), "{one:?} came after {highest}");
                *highest = one.seq;
            }
        }
        assert_eq!(delivered.len(), 5 * EVENTS + KEYS * EVENTS_OF_KEY, "every event arrived");
        assert!(highest.len() == KEYS && highest.values().all(|seq| *seq == EVENTS_OF_KEY as u64), "{highest:?}");
        let repeats: usize = delivered.values().map(|times| times - 1).sum();
        assert!(repeats <= kills * CAP * ENDPOINTS.len(), "{repeats} came more than once");
        println!("{} requests, {repeats} repeats after {kills} kills", log.len());
    }
}
