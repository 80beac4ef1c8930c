//! Master key and admin token are replaced while the gateway runs, under load, and
//! whenever it is killed.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::at_rest::rotate;
use crate::cli::{asked, posthaste, to_gateway};
use crate::crash::produce;
use crate::support::{Client, Gateway, Receiver, eventually, path_of, unlimited};

for_every_store! {
    the_master_key_is_replaced_under_load_and_nothing_fails,
    a_rotation_that_is_killed_at_any_moment_loses_nothing_and_is_finished_by_the_next,
    a_rotation_that_is_refused_is_not_in_the_audit_log,
    a_new_admin_token_is_in_force_at_once_and_the_old_one_is_not,
    a_new_admin_token_that_is_cut_off_under_load_leaves_one_that_works_and_refuses_no_event,
}

const ENDPOINTS: usize = 30;

/// A gateway with endpoints that have something to hide; each wants its own type.
async fn with_endpoints(receiver: &Receiver) -> (Gateway, Vec<Value>) {
    let gateway = Gateway::start().await;
    let mut endpoints = Vec::new();
    for n in 0..ENDPOINTS {
        let settings = json!({"url": receiver.url(), "event_types": [format!("t{n}")], "headers": {"X-Mine": "mine"}, "rate": unlimited()});
        endpoints.push(gateway.create_endpoint(settings).await);
    }
    (gateway, endpoints)
}

#[tokio::test]
async fn the_key_of_the_contexts_gateway_is_replaced_where_there_is_no_installation() {
    let gateway = Gateway::start().await;
    gateway.create_endpoint(json!({"url": "http://127.0.0.1:9/"})).await;
    let (home, empty, before) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), keys(&gateway));
    let token = gateway.folder().join("admin-token");
    let run = async |args: &[&str]| {
        let output =
            posthaste(args).env("XDG_CONFIG_HOME", home.path()).current_dir(empty.path()).output().await.unwrap();
        (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (is_done, told) = run(&["keys", "rotate"]).await;
    assert!(!is_done && told.contains("--server or `posthaste context`"), "{told}");
    let server = format!("http://{}", gateway.address);
    let (is_done, told) =
        run(&["context", "set", "here", "--server", &server, "--token-file", token.to_str().unwrap()]).await;
    assert!(is_done, "{told}");
    let (is_done, told) = run(&["keys", "rotate"]).await;
    assert!(is_done && told.contains("The running gateway encrypted"), "{told}");
    assert_ne!(keys(&gateway), before);
    // An installation that is named is meant, whatever the context says.
    let (is_done, told) = run(&["keys", "rotate", "--data", empty.path().to_str().unwrap()]).await;
    assert!(!is_done && told.contains("there is no master key file"), "{told}");
}

fn key_file(gateway: &Gateway) -> PathBuf {
    gateway.folder().join("master-key")
}

fn keys(gateway: &Gateway) -> Vec<String> {
    std::fs::read_to_string(key_file(gateway)).unwrap().lines().map(str::to_owned).collect()
}

/// Every endpoint's secret and header are what they were: a delivery says so.
async fn all_sign(gateway: &Gateway, receiver: &Receiver, endpoints: &[Value]) {
    let before = receiver.count();
    for n in 0..endpoints.len() {
        gateway.send(json!({"type": format!("t{n}"), "data": n})).await;
    }
    let seen = receiver.wait_for(before + endpoints.len()).await;
    for request in &seen[before..] {
        assert_eq!(request.header("x-mine"), "mine");
        let n: usize = request.json()["data"].as_u64().unwrap() as usize;
        let webhook = standardwebhooks::Webhook::new(endpoints[n]["secret"].as_str().unwrap()).unwrap();
        webhook.verify(&request.body, &request.headers).expect("the secret it was created with");
    }
}

/// Whether nothing in the store is sealed under another key than the newest.
async fn sealed_ids(gateway: &Gateway) -> Vec<Vec<u8>> {
    let mut ids: Vec<Vec<u8>> = match gateway.database() {
        Some(database) => {
            let sql = "SELECT string_agg(DISTINCT encode(substr(x, 1, 4), 'hex'), ',') FROM (
                           SELECT settings AS x FROM posthaste.endpoints UNION ALL
                           SELECT urls FROM posthaste.endpoints WHERE urls IS NOT NULL UNION ALL
                           SELECT sealed FROM posthaste.secrets) all_sealed";
            let rows = database.rows(sql).await;
            let text = rows[0][0].clone().expect("something is sealed");
            text.split(',').map(|id| hex::decode(id).unwrap()).collect()
        }
        None => {
            let db = rusqlite::Connection::open(gateway.folder().join("posthaste.db")).unwrap();
            let sql = "SELECT DISTINCT substr(x, 1, 4) FROM (SELECT settings AS x FROM endpoints UNION ALL
                       SELECT urls FROM endpoints WHERE urls IS NOT NULL UNION ALL SELECT sealed FROM secrets)";
            let mut statement = db.prepare(sql).unwrap();
            statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
        }
    };
    ids.sort();
    ids
}

async fn the_master_key_is_replaced_under_load_and_nothing_fails() {
    let receiver = Receiver::start().await;
    let (gateway, endpoints) = with_endpoints(&receiver).await;
    let gateway = Arc::new(gateway);
    let (before, old) = (sealed_ids(&gateway).await, keys(&gateway));
    assert_eq!((before.len(), old.len()), (1, 1));
    let (is_over, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let load = (0..4).map(|worker| {
        let (gateway, is_over, sent) = (gateway.clone(), is_over.clone(), sent.clone());
        tokio::spawn(async move {
            let client = gateway.another_client();
            for n in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let event = json!({"type": format!("t{}", n % ENDPOINTS), "data": n % ENDPOINTS, "id": format!("{worker}-{n}")});
                client.post_json("/v1/tenants/default/events", &event).await.expect(202);
                sent.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    let load: Vec<_> = load.collect();
    // People change endpoints meanwhile, and make new ones.
    let changing = {
        let (gateway, is_over, endpoints) = (gateway.clone(), is_over.clone(), endpoints.clone());
        tokio::spawn(async move {
            let mut made = Vec::new();
            for n in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    return made;
                }
                gateway.patch(&endpoints[n % ENDPOINTS], json!({"description": format!("change {n}")})).await;
                made.push(
                    gateway.create_endpoint(json!({"url": "http://127.0.0.1:9/", "event_types": ["never"]})).await,
                );
                gateway.client.post(&format!("{}/secrets/rotate", path_of(&made[n])), "{}").await.expect(201);
            }
            made
        })
    };
    eventually("some load", async || match sent.load(Ordering::Relaxed) {
        0..20 => Err("too little".to_owned()),
        _ => Ok(()),
    })
    .await;
    for round in 0..3 {
        let (is_done, said) = rotate(&gateway).await;
        assert!(is_done && said.contains("running gateway"), "{round}: {said}");
    }
    is_over.store(true, Ordering::Relaxed);
    for worker in load {
        worker.await.expect("no event is refused");
    }
    let made = changing.await.expect("no change is refused");
    let (after, new) = (sealed_ids(&gateway).await, keys(&gateway));
    assert!(after.len() == 1 && after != before, "everything is sealed under one key, and another one");
    assert!(new.len() == 1 && new != old);
    receiver.wait_for(sent.load(Ordering::Relaxed)).await;
    all_sign(&gateway, &receiver, &endpoints).await;
    let entries = asked(&gateway, &["audit", "--all"]).await;
    let rotations = entries["data"].as_array().unwrap().iter().filter(|entry| entry["action"] == "master_key.rotated");
    assert_eq!(rotations.count(), 3);
    let gateway = Arc::into_inner(gateway).expect("nobody else has it").restart().await;
    all_sign(&gateway, &receiver, &endpoints).await;
    for endpoint in &made {
        gateway.endpoint(endpoint).await;
    }
}

async fn a_rotation_that_is_refused_is_not_in_the_audit_log() {
    let gateway = Gateway::start().await;
    let rotations = async || {
        let entries = asked(&gateway, &["audit", "--all"]).await;
        let entries = entries["data"].as_array().unwrap().clone();
        entries.iter().filter(|entry| entry["action"] == "master_key.rotated").count()
    };
    let key = std::fs::read(key_file(&gateway)).unwrap();
    std::fs::write(key_file(&gateway), "no key at all").unwrap();
    gateway.client.post("/v1/master-key/rotate", "").await.problem(409, "wrong_state");
    assert_eq!(rotations().await, 0, "nothing was rotated");
    std::fs::write(key_file(&gateway), key).unwrap();
    gateway.client.post("/v1/master-key/rotate", "").await.expect(200);
    assert_eq!(rotations().await, 1);
}

async fn a_rotation_that_is_killed_at_any_moment_loses_nothing_and_is_finished_by_the_next() {
    let (receiver, loaded) = (Receiver::start().await, Receiver::start().await);
    let (mut gateway, endpoints) = with_endpoints(&receiver).await;
    let load = EventLoad::start(&gateway, &loaded, gateway.token()).await;
    for round in 0..6_u64 {
        loaded.wait_for(loaded.count() + 20).await;
        let before = keys(&gateway);
        let mut rotating = to_gateway(&gateway, &["keys", "rotate"]).stderr(Stdio::null()).spawn().unwrap();
        // It has begun when the file changes; each round the gateway is killed at another moment after that.
        while keys(&gateway) == before && rotating.try_wait().unwrap().is_none() {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        tokio::time::sleep(Duration::from_millis(4 * round)).await;
        gateway = gateway.killed_and_restarted().await;
        let _ = rotating.wait().await;
        all_sign(&gateway, &receiver, &endpoints).await;
    }
    let (is_done, said) = rotate(&gateway).await;
    assert!(is_done, "{said}");
    assert_eq!((sealed_ids(&gateway).await.len(), keys(&gateway).len()), (1, 1));
    let gateway = gateway.killed_and_restarted().await;
    all_sign(&gateway, &receiver, &endpoints).await;
    load.arrives(&loaded).await;
}

/// Producers that hand in events of the type `load`, and again what was not answered.
struct EventLoad {
    producers: Vec<tokio::task::JoinHandle<Vec<String>>>,
    is_over: Arc<AtomicBool>,
}

impl EventLoad {
    async fn start(gateway: &Gateway, receiver: &Receiver, token: &str) -> Self {
        let settings =
            json!({"url": receiver.url(), "event_types": ["load"], "rate": unlimited(), "max_in_flight": 64});
        gateway.create_endpoint(settings).await;
        let is_over = Arc::new(AtomicBool::new(false));
        let start = |n| tokio::spawn(produce(Client::new(gateway.address, token), n, is_over.clone()));
        Self { producers: (0..4).map(start).collect(), is_over }
    }

    /// Ends the load, and waits until all that was acknowledged has arrived.
    async fn arrives(self, receiver: &Receiver) {
        self.is_over.store(true, Ordering::Relaxed);
        let mut acknowledged = Vec::new();
        for producer in self.producers {
            acknowledged.extend(producer.await.expect("no event is refused"));
        }
        assert!(acknowledged.len() > 50, "only {} events", acknowledged.len());
        let missing = || {
            let arrived = receiver.times_by_id();
            acknowledged.iter().filter(|id| !arrived.contains_key(*id)).count()
        };
        // For as long as some arrive: there may be thousands.
        let mut left = missing();
        while left > 0 {
            left = eventually("more of what was acknowledged to arrive", || async {
                let now = missing();
                if now < left { Ok(now) } else { Err(format!("{now} of {} are missing", acknowledged.len())) }
            })
            .await;
        }
    }
}

async fn a_new_admin_token_is_in_force_at_once_and_the_old_one_is_not() {
    let gateway = Gateway::start().await;
    let file = gateway.folder().join("admin-token");
    let made = asked(&gateway, &["keys", "new-admin-token"]).await;
    let token = made["token"].as_str().unwrap();
    assert_eq!((std::fs::read_to_string(&file).unwrap().trim(), &made["unconfirmed_nodes"]), (token, &json!(0)));
    gateway.client.get("/v1/tenants").await.problem(401, "unauthenticated");
    Client::new(gateway.address, token).get("/v1/tenants").await.expect(200);
    assert!(!gateway.folder().join("admin-token.next").exists());

    // Killed after the hash was stored and before the file got its place.
    let next = gateway.folder().join("admin-token.next");
    std::fs::write(&next, format!("{token}\n")).unwrap();
    std::fs::set_permissions(&next, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&file, "pha_old\n").unwrap();
    let gateway = gateway.killed_and_restarted().await;
    assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), token);
    gateway.client.get("/v1/tenants").await.expect(200);
    // A tenant's token may do neither.
    let made = json!({"tenant": "default", "rights": ["manage"]});
    let made = gateway.client.post_json("/v1/tokens", &made).await.expect(201);
    let tenant = Client::new(gateway.address, made["token"].as_str().unwrap());
    for path in ["/v1/admin-token", "/v1/master-key/rotate"] {
        tenant.post(path, "").await.problem(403, "missing_right");
    }
    let nobody = posthaste(&["keys", "new-admin-token", "--data", "/nonexistent"]).output().await.unwrap();
    assert!(!nobody.status.success());
}

async fn a_new_admin_token_that_is_cut_off_under_load_leaves_one_that_works_and_refuses_no_event() {
    let loaded = Receiver::start().await;
    let mut gateway = Gateway::start().await;
    let made = json!({"tenant": "default", "rights": ["publish"]});
    let made = gateway.client.post_json("/v1/tokens", &made).await.expect(201);
    let load = EventLoad::start(&gateway, &loaded, made["token"].as_str().unwrap()).await;
    let (file, next) = (gateway.folder().join("admin-token"), gateway.folder().join("admin-token.next"));
    let in_file = || std::fs::read_to_string(&file).unwrap().trim().to_owned();
    let mut renewed = 0;
    for round in 0..6_u32 {
        loaded.wait_for(loaded.count() + 20).await;
        let (before, is_last) = (in_file(), round == 5);
        let client = gateway.another_client();
        let renewing = tokio::spawn(async move { client.send("POST", "/v1/admin-token", &[], "").await });
        // It has begun when the file with the new token is there; each round it is killed at another moment after that,
        // and in the last one when the new token has its place.
        while in_file() == before && (is_last || !next.exists()) && !renewing.is_finished() {
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
        tokio::time::sleep(Duration::from_millis(u64::from(round))).await;
        gateway = gateway.killed_and_restarted().await;
        let token = in_file();
        Client::new(gateway.address, &token).get("/v1/tenants").await.expect(200);
        if token != before {
            renewed += 1;
            Client::new(gateway.address, &before).get("/v1/tenants").await.problem(401, "unauthenticated");
        }
        if let Ok(answer) = renewing.await.unwrap() {
            assert_eq!(answer.expect(201)["token"], token, "what was told is in force");
        }
    }
    assert!(renewed > 0, "every kill came before the new token was stored");
    load.arrives(&loaded).await;
}
