//! What must stay secret: sealed where it rests, and in nothing that is
//! printed, logged, counted or answered.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use posthaste::lifecycle::deliver::keys::new_key;
use serde_json::{Value, json};

use crate::cli::{posthaste, to_gateway};
use crate::support::{
    CapturedOutput, Gateway, Options, PATIENCE, RawReceiver, RawStep, Receiver, Reply, eager_retry, eventually, path_of,
};

for_every_store! {
    no_secret_is_printed_logged_counted_answered_or_stored_in_the_open,
    the_master_key_can_be_replaced_and_the_old_one_opens_nothing,
    a_replacement_of_the_key_that_was_cut_off_harms_nothing_and_can_be_finished,
    payloads_stay_out_of_answers_where_they_are_redacted,
    expunged_data_is_gone_and_what_waits_of_it_is_cancelled,
}

/// What is looked for afterwards, by its name.
struct Canary {
    name: &'static str,
    text: String,
}

/// Texts that nobody writes by chance: secrets of every kind, and a payload.
struct Canaries {
    secret: String,
    replaced: String,
    key: String,
    header: String,
    payload: String,
    /// A certificate, and the private key that belongs to it.
    certificate: (String, String),
}

impl Canaries {
    fn new() -> Self {
        let certified = rcgen::generate_simple_self_signed(vec!["posthaste.example".into()]).expect("a certificate");
        Self {
            secret: format!("whsec_{}", STANDARD.encode(b"canary of a shared secret...")),
            replaced: format!("whsec_{}", STANDARD.encode(b"canary of a replaced secret.")),
            key: new_key(*b"canary of a private key........."),
            header: "Bearer canary-of-a-header".to_owned(),
            payload: "canary-of-a-payload".to_owned(),
            certificate: (certified.cert.pem(), certified.signing_key.serialize_pem()),
        }
    }

    /// What may be nowhere in the open.
    fn secrets(&self) -> Vec<Canary> {
        let canary = |name, text: &str| Canary { name, text: text.to_owned() };
        vec![
            canary("the secret", &self.secret[6..]),
            canary("the secret's bytes", "canary of a shared secret"),
            canary("the replaced secret", &self.replaced[6..]),
            canary("the private key", &self.key[5..40]),
            canary("the private key's bytes", "canary of a private key"),
            canary("the header", "canary-of-a-header"),
            canary("the client key", self.certificate.1.lines().nth(1).expect("a line of the key")),
        ]
    }

    /// The same, and what may be in no log.
    fn all(&self) -> Vec<Canary> {
        let payload = Canary { name: "the payload", text: self.payload.clone() };
        self.secrets().into_iter().chain([payload]).collect()
    }
}

#[track_caller]
fn refuse(canaries: &[Canary], place: &str, text: &str) {
    let text = text.to_lowercase();
    for canary in canaries {
        let plain = canary.text.to_lowercase();
        let hex: String = canary.text.bytes().map(|byte| format!("{byte:02x}")).collect();
        for form in [plain, hex] {
            if let Some(at) = text.find(&form) {
                let around: String = text[..at].chars().rev().take(200).collect();
                panic!("{} is in {place}, after {:?}", canary.name, around.chars().rev().collect::<String>());
            }
        }
    }
}

fn files_below(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// Looks into everything that the store has written.
async fn search_store(gateway: &Gateway, canaries: &[Canary]) {
    for file in files_below(&gateway.folder()) {
        let bytes = std::fs::read(&file).unwrap();
        refuse(canaries, &file.display().to_string(), &String::from_utf8_lossy(&bytes));
    }
    let Some(database) = gateway.database() else { return };
    let tables = "SELECT quote_ident(table_name) FROM information_schema.tables WHERE table_schema = 'posthaste'";
    for table in database.rows(tables).await {
        let table = table[0].clone().unwrap();
        for row in database.rows(&format!("SELECT t::text FROM posthaste.{table} t")).await {
            refuse(canaries, &table, &row[0].clone().unwrap_or_default());
        }
    }
}

/// Bad requests that hold what is secret.
async fn fail_internally(gateway: &Gateway, canaries: &Canaries) {
    let Canaries { secret, key, header, payload, certificate, .. } = canaries;
    let url = "https://example.com/";
    let endpoints = "/v1/tenants/default/endpoints";
    for body in [
        json!({"url": url, "secret": format!("{secret}!")}).to_string(),
        json!({"url": url, "secret": [secret], "private_key": key}).to_string(),
        json!({"url": url, "private_key": &key[..60]}).to_string(),
        json!({"url": url, "headers": {"Authorization": format!("{header}\r\n")}}).to_string(),
        json!({"url": url, "headers": {"Authorization": [header]}}).to_string(),
        json!({"url": url, "headers": header}).to_string(),
        json!({"url": url, "tls": {"client_key": certificate.1}}).to_string(),
        json!({"url": url, "tls": certificate.1}).to_string(),
        json!({"url": url, "tls": {"ca": certificate.1, "client_key": [certificate.1]}}).to_string(),
        json!({"url": url, "headers": {"Host": header}}).to_string(),
        json!({"url": "ftp://example.com/", "secret": secret, "headers": {"Authorization": header}}).to_string(),
        format!(r#"{{"url":"{url}","secret":"{secret}","secret":"{secret}"}}"#),
        format!(r#"{{"url":"{url}","secret":"{secret}""#),
    ] {
        let answer = gateway.client.post(endpoints, body).await;
        assert!((400..500).contains(&answer.status), "{}", String::from_utf8_lossy(&answer.body));
        refuse(&canaries.secrets(), "an error", &String::from_utf8_lossy(&answer.body));
    }
    let events = "/v1/tenants/default/events";
    for body in [
        json!({"type": "a b", "data": payload}).to_string(),
        json!({"type": "a", "data": payload, "expires_at": "soon"}).to_string(),
        format!(r#"{{"type":"a","data":"{payload}"#),
        format!("{}\"{payload}\"{}", r#"{"type":"a","data":"#.to_owned() + &"[".repeat(80), "]".repeat(80) + "}"),
    ] {
        let answer = gateway.client.post(events, body.clone()).await;
        assert!((400..500).contains(&answer.status), "{}", String::from_utf8_lossy(&answer.body));
        refuse(&canaries.all(), "an error", &String::from_utf8_lossy(&answer.body));
        gateway.client.post(&format!("{events}/batch"), format!("[{body}]")).await;
    }
}

/// Reads everything there is to read of a tenant.
async fn look_around(gateway: &Gateway) -> String {
    let mut seen = String::new();
    let mut paths: Vec<String> = ["tenants", "cluster", "tenants/default/endpoints", "tenants/default/deliveries"]
        .map(|path| format!("/v1/{path}"))
        .to_vec();
    paths.extend(["/metrics", "/readyz", "/openapi.json", "/v1/tenants/default/dead-letters"].map(str::to_owned));
    for endpoint in gateway.list("/v1/tenants/default/endpoints").await {
        paths.extend(["", "/history", "/lanes"].map(|more| format!("{}{more}", path_of(&endpoint))));
    }
    for delivery in gateway.list("/v1/tenants/default/deliveries").await {
        let path = format!("/v1/tenants/default/deliveries/{}", delivery["id"].as_str().unwrap());
        paths.extend(["", "/attempts", "/explain"].map(|more| format!("{path}{more}")));
    }
    for path in paths {
        seen += &String::from_utf8_lossy(&gateway.client.get(&path).await.body);
    }
    for args in [
        &["endpoints", "list"][..],
        &["endpoints", "list", "-o", "json"],
        &["deliveries", "list"],
        &["dead-letters", "list"],
        &["events", "list"],
        &["tenants", "list"],
        &["cluster"],
    ] {
        let output = to_gateway(gateway, args).output().await.unwrap();
        seen += &String::from_utf8_lossy(&[output.stdout, output.stderr].concat());
    }
    seen
}

async fn no_secret_is_printed_logged_counted_answered_or_stored_in_the_open() {
    let canaries = Canaries::new();
    let printed = CapturedOutput::default();
    let options = Options { output: Some(printed.clone()), ..Options::flags(&["--log", "trace"]) };
    let gateway = Gateway::start_with(options).await;
    fail_internally(&gateway, &canaries).await;
    let echo = Receiver::answering(|seen| match seen.path.as_str() {
        "/ok" => Reply::Status(200),
        "/refuse" => Reply::Status(400),
        _ => Reply::Status(503),
    })
    .await;
    let reset = RawReceiver::running(vec![RawStep::ReadRequest, RawStep::Reset]).await;
    let noise = RawReceiver::answering(&b"what is this?\r\n\r\n"[..]).await;
    let at = |path: &str| format!("http://{}/{path}", echo.address);
    let urls = [at("ok"), at("refuse"), at("fail"), reset.url("http"), noise.url("http"), noise.url("https")];
    let mut first = Value::Null;
    for url in urls {
        let settings = json!({"url": url, "secret": canaries.replaced, "private_key": canaries.key,
            "signing": "ed25519", "signatures": ["svix", "stripe", "github", "sha256"],
            "headers": {"Authorization": canaries.header},
            "tls": {"client_certificate": canaries.certificate.0, "client_key": canaries.certificate.1}, "retry": eager_retry(2)});
        let endpoint = gateway.create_endpoint(settings).await;
        let rotate = format!("{}/secrets/rotate", path_of(&endpoint));
        let body = json!({"secret": canaries.secret, "private_key": canaries.key});
        gateway.client.post_json(&rotate, &body).await.expect(201);
        let refused = json!({"headers": {"Authorization": format!("{}\n", canaries.header)}});
        gateway.client.patch_json(&path_of(&endpoint), &refused).await.problem(422, "invalid_field");
        first = if first.is_null() { endpoint } else { first };
    }
    let event = json!({"id": "one", "type": "t", "key": "k", "data": {"note": canaries.payload}});
    gateway.send(event.clone()).await;
    gateway.send(event).await;
    let other = json!({"id": "one", "type": "t", "data": [canaries.payload]});
    gateway.client.post_json("/v1/tenants/default/events", &other).await.problem(409, "id_conflict");
    let seen = echo.wait_for(2).await;
    assert!(seen.iter().all(|seen| seen.header("authorization") == canaries.header), "they do arrive");
    eventually("everything to be over", || async {
        let waiting = gateway.list("/v1/tenants/default/deliveries?state=waiting").await;
        if waiting.is_empty() { Ok(()) } else { Err(json!(waiting).to_string()) }
    })
    .await;
    for delivery in gateway.list("/v1/tenants/default/deliveries").await {
        gateway.post_to_delivery(&delivery, "replay").await.expect(202);
    }
    refuse(&canaries.secrets(), "an answer or what a command printed", &look_around(&gateway).await);
    let listed = gateway.client.get(&format!("{}/secrets", path_of(&first))).await.expect(200).to_string();
    assert!(listed.contains(&canaries.secret), "where they may be seen, they are");
    refuse(&[Canary { name: "the private key", text: canaries.key[5..].into() }], "the list of secrets", &listed);

    // Whatever a crash and a stop leave behind, and the log.
    let mut gateway = gateway.killed_and_restarted().await;
    refuse(&canaries.secrets(), "an answer after a crash", &look_around(&gateway).await);
    gateway.client.send("DELETE", &path_of(&first), &[], "").await.unwrap().expect(204);
    search_store(&gateway, &canaries.secrets()).await;
    assert!(gateway.terminate().await.success());
    search_store(&gateway, &canaries.secrets()).await;
    let log = eventually("the log to be whole", || async {
        let log = printed.text();
        if log.contains("\"stopped\"") { Ok(log) } else { Err(format!("{} bytes", log.len())) }
    })
    .await;
    assert!(log.contains("DEBUG") || log.contains("TRACE"), "it logs all there is");
    refuse(&canaries.all(), "the log", &log);
    let token = [Canary { name: "the admin token", text: gateway.token().to_owned() }];
    refuse(&token, "the log", log.split("for you alone").last().unwrap());
}

/// Runs `posthaste keys rotate` on a gateway's installation: whether it
/// succeeded, and what it said.
pub async fn rotate(gateway: &Gateway) -> (bool, String) {
    let folder = gateway.folder().display().to_string();
    let mut args = vec!["keys", "rotate", "--data", &folder];
    if let Some(database) = gateway.database() {
        args.extend(["--database-url", database.url()]);
    }
    let output = posthaste(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).output();
    let output = tokio::time::timeout(PATIENCE, output).await.expect("it ends").unwrap();
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// A gateway with an endpoint that has something to hide, and its key's file.
async fn with_secrets(receiver: &Receiver) -> (Gateway, Value, std::path::PathBuf) {
    let printed = CapturedOutput::default();
    let gateway = Gateway::start_with(Options { output: Some(printed.clone()), ..Options::default() }).await;
    let file = gateway.folder().join("master-key");
    assert!(printed.text().contains(&file.display().to_string()), "it is said aloud: {}", printed.text());
    let settings = json!({"url": receiver.url(), "headers": {"X-Mine": "mine"}});
    let endpoint = gateway.create_endpoint(settings).await;
    (gateway, endpoint, file)
}

/// Secret and header are what they were: a delivery says so.
async fn still_signs(gateway: &Gateway, receiver: &Receiver, endpoint: &Value) {
    let before = receiver.count();
    gateway.send(json!({"type": "t", "data": before})).await;
    let seen = receiver.wait_for(before + 1).await.pop().unwrap();
    assert_eq!(seen.header("x-mine"), "mine");
    let webhook = standardwebhooks::Webhook::new(endpoint["secret"].as_str().unwrap()).unwrap();
    webhook.verify(&seen.body, &seen.headers).expect("the secret it was created with");
}

/// Stops a gateway, and starts it on the same installation.
async fn stopped_and_started(mut gateway: Gateway) -> Gateway {
    assert!(gateway.terminate().await.success());
    gateway.restart().await
}

async fn the_master_key_can_be_replaced_and_the_old_one_opens_nothing() {
    let receiver = Receiver::start().await;
    let (mut gateway, endpoint, file) = with_secrets(&receiver).await;
    let old = std::fs::read_to_string(&file).unwrap();
    assert!(gateway.terminate().await.success());
    let (is_done, said) = rotate(&gateway).await;
    assert!(is_done && said.contains(&file.display().to_string()), "{said}");
    let new = std::fs::read_to_string(&file).unwrap();
    assert!(new != old && new.lines().count() == 1 && !said.contains(new.trim()), "{said}");
    let gateway = gateway.restart().await;
    still_signs(&gateway, &receiver, &endpoint).await;

    // The old key no longer fits, and nothing that is left tells what it sealed.
    let mut gateway = gateway;
    assert!(gateway.terminate().await.success());
    std::fs::write(&file, &old).unwrap();
    let (is_done, said) = rotate(&gateway).await;
    assert!(!is_done && said.contains("does not fit") && said.contains("--master-key-file"), "{said}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), old, "a key that does not fit is left as it is");
    std::fs::remove_file(&file).unwrap();
    let (is_done, said) = rotate(&gateway).await;
    assert!(!is_done && said.contains("no master key file"), "{said}");
    std::fs::write(&file, &new).unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let gateway = gateway.restart().await;
    still_signs(&gateway, &receiver, &endpoint).await;
}

async fn a_replacement_of_the_key_that_was_cut_off_harms_nothing_and_can_be_finished() {
    let receiver = Receiver::start().await;
    let (mut gateway, endpoint, file) = with_secrets(&receiver).await;
    let old = std::fs::read_to_string(&file).unwrap();

    // Cut off before anything was sealed anew: the new key stands before the old one.
    let new = format!("{}\n", "5a".repeat(32));
    assert!(gateway.terminate().await.success());
    std::fs::write(&file, format!("{new}{old}")).unwrap();
    let gateway = gateway.restart().await;
    still_signs(&gateway, &receiver, &endpoint).await;
    let later = gateway.create_endpoint(json!({"url": receiver.url(), "event_types": ["never"]})).await;
    // Another node has the old key alone, and reads what was written meanwhile.
    let mut gateway = gateway;
    assert!(gateway.terminate().await.success());
    std::fs::write(&file, &old).unwrap();
    let mut gateway = gateway.restart().await;
    gateway.endpoint(&later).await;

    // Cut off after everything was: both keys are still there.
    assert!(gateway.terminate().await.success());
    std::fs::write(&file, format!("{new}{old}")).unwrap();
    assert!(rotate(&gateway).await.0);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), new, "it went on with the key that was made before");
    std::fs::write(&file, format!("{new}{old}")).unwrap();
    let gateway = stopped_and_started(gateway.restart().await).await;
    still_signs(&gateway, &receiver, &endpoint).await;
    gateway.endpoint(&later).await;
    let mut gateway = gateway;
    assert!(gateway.terminate().await.success());
    assert!(rotate(&gateway).await.0);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), new);
    still_signs(&gateway.restart().await, &receiver, &endpoint).await;
}

async fn payloads_stay_out_of_answers_where_they_are_redacted() {
    let gateway = Gateway::start_with(Options::flags(&["--redact-payloads"])).await;
    let payload = "canary-of-a-payload";
    let receiver = Receiver::answering(|seen| Reply::Body(200, seen.body.clone())).await;
    let filter = json!({"path": "/note", "prefix": "canary"});
    gateway.create_endpoint(json!({"url": receiver.url(), "filter": filter})).await;
    gateway.send(json!({"id": "one", "type": "t", "data": {"note": payload}})).await;
    let delivery = gateway.wait_for_state("one", "delivered").await;
    assert_eq!(receiver.wait_for(1).await[0].json()["data"]["note"], payload, "it is delivered all the same");
    let event = gateway.client.get("/v1/tenants/default/events/one").await.expect(200);
    assert_eq!((&event["data"], &event["data_withheld"]), (&Value::Null, &json!("redacted")));
    assert_eq!(gateway.attempts_of(&delivery).await[0]["response_body"], Value::Null);
    let matches = gateway.client.get("/v1/tenants/default/events/one/matches").await.expect(200);
    assert_eq!(matches["data"][0]["matched"], true);
    let listed = json!(gateway.list("/v1/tenants/default/events").await);
    assert_eq!(listed[0]["data_withheld"], "redacted");
    let seen = format!("{event}{matches}{listed}{}", look_around(&gateway).await);
    refuse(
        &[Canary { name: "the payload", text: payload.into() }],
        "an answer",
        &seen.replace(&json!("canary").to_string(), ""),
    );

    let open = Gateway::start().await;
    open.create_endpoint(json!({"url": receiver.url()})).await;
    open.send(json!({"id": "one", "type": "t", "data": {"note": payload}})).await;
    let event = open.client.get("/v1/tenants/default/events/one").await.expect(200);
    assert_eq!((&event["data"]["note"], &event["data_withheld"]), (&json!(payload), &Value::Null));
}

async fn expunged_data_is_gone_and_what_waits_of_it_is_cancelled() {
    let gateway = Gateway::start().await;
    let payload = "canary-of-a-payload";
    let receiver = Receiver::answering(|seen| match seen.path.as_str() {
        "/ok" => Reply::Body(200, seen.body.clone()),
        _ => Reply::Body(503, seen.body.clone()),
    })
    .await;
    for path in ["ok", "fail"] {
        let hourly = json!({"schedule": ["1h"], "max_attempts": 9});
        let url = format!("http://{}/{path}", receiver.address);
        gateway.create_endpoint(json!({"url": url, "retry": hourly})).await;
    }
    let event = json!({"id": "one", "type": "t", "data": {"note": payload}});
    gateway.send(event.clone()).await;
    let deliveries = eventually("one to arrive and one to fail", || async {
        let all = gateway.client.get("/v1/tenants/default/events/one/deliveries").await.expect(200);
        let tried = |delivery: &Value| delivery["attempts"] == 1 && delivery["in_flight"] == false;
        if all["data"].as_array().unwrap().iter().all(tried) {
            Ok(all["data"].as_array().unwrap().clone())
        } else {
            Err(all.to_string())
        }
    })
    .await;
    let data = "/v1/tenants/default/events/one/data";
    for _ in 0..2 {
        gateway.client.send("DELETE", data, &[], "").await.unwrap().expect(204);
    }
    let other = "/v1/tenants/default/events/another/data";
    gateway.client.send("DELETE", other, &[], "").await.unwrap().problem(404, "not_found");
    gateway.client.get("/v1/tenants/default/events/one").await.problem(410, "data_expunged");
    gateway.client.get("/v1/tenants/default/events/one/matches").await.problem(410, "data_expunged");
    let mut states = Vec::new();
    for delivery in &deliveries {
        gateway.post_to_delivery(delivery, "replay").await.problem(410, "data_expunged");
        let path = format!("/v1/tenants/default/deliveries/{}", delivery["id"].as_str().unwrap());
        states.push(gateway.client.get(&path).await.expect(200)["state"].as_str().unwrap().to_owned());
    }
    states.sort();
    assert_eq!(states, ["cancelled", "delivered"]);
    let listed = gateway.list("/v1/tenants/default/events").await;
    assert_eq!((&listed[0]["data"], &listed[0]["data_withheld"]), (&Value::Null, &json!("expunged")));
    assert_eq!(gateway.send(event).await["duplicate"], true, "it is still recognised");
    let conflict = json!({"id": "one", "type": "t", "data": 2});
    gateway.client.post_json("/v1/tenants/default/events", &conflict).await.problem(409, "id_conflict");
    assert_eq!(receiver.count(), 2, "nothing further was sent");
    let canary = [Canary { name: "the payload", text: payload.into() }];
    refuse(&canary, "an answer", &look_around(&gateway).await);
    if gateway.database().is_some() {
        search_store(&gateway, &canary).await;
        return;
    }
    // The log is emptied once nobody reads it.
    eventually("the files to forget it", || async {
        let holds = |file: &std::path::PathBuf| {
            std::fs::read(file).unwrap().windows(payload.len()).any(|part| part == payload.as_bytes())
        };
        match files_below(&gateway.folder()).iter().find(|file| holds(file)) {
            None => Ok(()),
            Some(file) => Err(file.display().to_string()),
        }
    })
    .await;
}
