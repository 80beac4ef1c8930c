//! Runs a gateway in a process of its own, which tests start, stop and kill.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};

use super::{Client, PATIENCE, eventually};
use crate::servers::guard::free_port;
use crate::servers::postgres::{Database, Server};

tokio::task_local! {
    /// Set while a test runs its gateways on PostgreSQL.
    static ON_POSTGRES: ();
}

/// Runs a test whose gateways are started on PostgreSQL.
pub async fn on_postgres(story: impl Future<Output = ()>) {
    ON_POSTGRES.scope((), story).await;
}

pub fn is_on_postgres() -> bool {
    ON_POSTGRES.try_with(|()| ()).is_ok()
}

/// Options for starting a gateway.
#[derive(Default, Clone)]
pub struct Options {
    /// Additional flags for `serve`.
    pub flags: Vec<String>,
    /// Address to serve on; a free port if absent.
    pub listen: Option<SocketAddr>,
    /// Additional environment variables.
    pub env: Vec<(String, String)>,
    /// Buffer that collects everything it prints and logs.
    pub output: Option<CapturedOutput>,
    /// File that its log goes to, instead of the test's stderr.
    pub log: Option<PathBuf>,
    /// Program with arguments that runs it, such as a tracer.
    pub runner: Vec<String>,
    /// A `posthaste` of another version, instead of this one.
    pub program: Option<PathBuf>,
}

/// Everything that a gateway has printed and logged until now.
#[derive(Default, Clone)]
pub struct CapturedOutput(Arc<Mutex<Vec<u8>>>);

impl CapturedOutput {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("nothing panics while it is held")).into_owned()
    }

    fn add(&self, bytes: &[u8]) {
        self.0.lock().expect("nothing panics while it is held").extend_from_slice(bytes);
    }

    /// Collects everything that comes from a stream until its end.
    pub fn listen(self, mut from: impl AsyncRead + Unpin + Send + 'static) {
        tokio::spawn(async move {
            let mut buffer = vec![0; 16 * 1_024];
            while let Ok(count @ 1..) = from.read(&mut buffer).await {
                self.add(&buffer[..count]);
            }
        });
    }
}

impl Options {
    pub fn flags(flags: &[&str]) -> Self {
        Self { flags: flags.iter().map(|flag| (*flag).to_owned()).collect(), ..Self::default() }
    }
}

/// A running gateway on a folder of its own.
pub struct Gateway {
    process: Child,
    pub address: SocketAddr,
    pub client: Client,
    folder: Arc<TempDir>,
    options: Options,
    token: String,
    process_id: u32,
    // Dropped when the last gateway on it is.
    database: Option<Arc<Database>>,
}

impl Gateway {
    /// Starts a gateway on an empty folder that may call receivers on this machine.
    pub async fn start() -> Self {
        Self::start_with(Options::default()).await
    }

    pub async fn start_with(options: Options) -> Self {
        let folder = Arc::new(tempfile::tempdir().expect("a folder"));
        if !is_on_postgres() {
            return Self::start_in(folder, options).await;
        }
        let database = Arc::new(Server::shared(&[]).await.database().await);
        // A machine that stalls for a moment takes no shard away. Whoever kills the gateway does not
        // wait for the end of the lease, either: see `end_lease`.
        let flags = ["--database-url", database.url(), "--lease", "15s"].map(str::to_owned);
        let options = Options { flags: options.flags.iter().cloned().chain(flags).collect(), ..options };
        Self { database: Some(database), ..Self::start_in(folder, options).await }
    }

    /// Starts a gateway in this folder, which it may share with others.
    pub async fn start_in(folder: Arc<TempDir>, options: Options) -> Self {
        let started = Self::try_start_in(folder, options).await;
        started.unwrap_or_else(|ended| panic!("the gateway ended before it served ({ended}); see its output above"))
    }

    /// Starts a gateway that may refuse to; returns its exit status then.
    pub async fn try_start_in(folder: Arc<TempDir>, options: Options) -> Result<Self, ExitStatus> {
        let mut process = command(folder.path(), &options).spawn().expect("the gateway starts");
        let process_id = process.id().expect("it was just started");
        let printed = options.output.clone().unwrap_or_default();
        if let Some(log) = process.stderr.take() {
            printed.clone().listen(log);
        }
        let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let address = loop {
            let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("the gateway serves in time");
            let Some(line) = line.expect("readable output") else {
                return Err(process.wait().await.expect("it ends"));
            };
            printed.add(line.as_bytes());
            let served = line.split("serves http").nth(1).map(|rest| rest.trim_start_matches('s'));
            if let Some(rest) = served.and_then(|rest| rest.strip_prefix("://")) {
                break rest.split(' ').next().expect("an address").parse().expect("an address");
            }
        };
        // Reads on and ignores it, because a full pipe would stop the gateway.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let token = written_token(&folder.path().join("admin-token")).await;
        let client = Client::new(address, &token);
        Ok(Self { process, address, client, folder, options, token, process_id, database: None })
    }

    pub fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// Returns a handle of the folder, which exists as long as a handle does.
    pub fn shared_folder(&self) -> Arc<TempDir> {
        self.folder.clone()
    }

    /// Returns its database, if it runs on PostgreSQL.
    pub fn database(&self) -> Option<&Database> {
        self.database.as_deref()
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    pub fn process_id(&self) -> u32 {
        self.process.id().expect("it runs")
    }

    /// Returns a client with another connection to the same gateway.
    pub fn another_client(&self) -> Client {
        Client::new(self.address, &self.token)
    }

    /// Kills it with SIGKILL.
    pub async fn kill(&mut self) {
        self.process.kill().await.expect("it can be killed");
    }

    /// Sends SIGTERM; returns its exit status.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.process.wait().await.expect("it ends")
    }

    /// Waits until it ends by itself; returns its exit status.
    pub async fn ended(&mut self) -> ExitStatus {
        let ending = tokio::time::timeout(PATIENCE, self.process.wait()).await;
        ending.expect("it ends in time").expect("it can be waited for")
    }

    /// Returns its exit status, if it has ended.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().expect("it can be asked")
    }

    pub fn signal(&self, signal: Signal) {
        let id = Pid::from_raw(self.process_id() as i32).expect("a process id");
        kill_process(id, signal).expect("it can be signalled");
    }

    /// Kills it and starts it again on the same folder and address.
    pub async fn restart(self) -> Self {
        let options = self.options.clone();
        self.restart_with(options).await
    }

    /// Kills it and starts it again with another value of this flag.
    pub async fn restart_with_flag(self, flag: &str, value: &str) -> Self {
        let mut options = self.options.clone();
        let at = options.flags.iter().position(|known| known == flag).expect("it was started with the flag");
        options.flags[at + 1] = value.to_owned();
        self.restart_with(options).await
    }

    /// Restarts it with other options.
    pub async fn restart_with(mut self, options: Options) -> Self {
        let _ = self.process.start_kill();
        let _ = self.process.wait().await;
        let options = Options { listen: Some(self.address), ..options };
        let (folder, database) = (self.folder.clone(), self.database.clone());
        if let Some(database) = &database {
            end_lease(database, self.process_id).await;
        }
        drop(self);
        let restarted = Self { database, ..Self::start_in(folder, options).await };
        if restarted.database.is_some() {
            restarted.owns_everything().await;
        }
        restarted
    }

    /// Waits until it owns all shards, as it does soon after the lease of a killed one has ended.
    async fn owns_everything(&self) {
        eventually("it to own everything", || async {
            let cluster = self.client.get("/v1/cluster").await.expect(200);
            let owned = cluster["nodes"].as_array().expect("nodes").iter().map(|node| node["shards"].as_u64());
            if owned.eq([Some(256)]) { Ok(()) } else { Err(cluster["nodes"].to_string()) }
        })
        .await;
    }

    /// Starts a second process on the same folder; returns its output.
    pub async fn start_second(&self) -> std::process::Output {
        let mut second = command(self.folder.path(), &Options::default());
        second.stderr(Stdio::piped());
        tokio::time::timeout(PATIENCE, second.output()).await.expect("it does not serve").expect("it runs")
    }

    pub async fn create_endpoint(&self, settings: Value) -> Value {
        self.client.post_json("/v1/tenants/default/endpoints", &settings).await.expect(201)
    }

    /// Submits an event; returns its receipt.
    pub async fn send(&self, event: Value) -> Value {
        self.client.post_json("/v1/tenants/default/events", &event).await.expect(202)
    }

    /// Submits `count` events with ids of this prefix and this type, in batches.
    pub async fn send_many(&self, prefix: &str, kind: &str, count: usize, key: impl Fn(usize) -> Option<String>) {
        let event = |n: usize| json!({"id": format!("{prefix}-{n}"), "type": kind, "key": key(n), "data": n});
        let events: Vec<Value> = (0..count).map(event).collect();
        for batch in events.chunks(500) {
            self.client.post_json("/v1/tenants/default/events/batch", &json!(batch)).await.expect(202);
        }
    }

    /// Reads an endpoint.
    pub async fn endpoint(&self, endpoint: &Value) -> Value {
        self.client.get(&path_of(endpoint)).await.expect(200)
    }

    /// Changes an endpoint's settings.
    pub async fn patch(&self, endpoint: &Value, changes: Value) -> Value {
        self.client.patch_json(&path_of(endpoint), &changes).await.expect(200)
    }

    /// Posts an action to an endpoint: pause, resume, breaker/open.
    pub async fn post_to_endpoint(&self, endpoint: &Value, verb: &str, body: &str) -> Value {
        self.client.post(&format!("{}/{verb}", path_of(endpoint)), body.to_owned()).await.expect(200)
    }

    /// Returns the history of an endpoint, newest first.
    pub async fn history(&self, endpoint: &Value) -> Vec<Value> {
        self.list(&format!("{}/history", path_of(endpoint))).await
    }

    /// Waits until a condition holds for an endpoint.
    pub async fn wait_for_endpoint(&self, endpoint: &Value, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        eventually(what, || async {
            let endpoint = self.endpoint(endpoint).await;
            if is_so(&endpoint) { Ok(endpoint) } else { Err(endpoint.to_string()) }
        })
        .await
    }

    /// Waits until an endpoint's breaker is in this state.
    pub async fn wait_for_breaker(&self, endpoint: &Value, state: &str) -> Value {
        self.wait_for_endpoint(endpoint, &format!("a breaker that is {state}"), |endpoint| {
            endpoint["health"]["breaker"] == state
        })
        .await
    }

    /// Waits until no delivery waits for an endpoint.
    pub async fn drained(&self, endpoint: &Value) -> Value {
        self.wait_for_endpoint(endpoint, "its backlog to drain", |endpoint| endpoint["health"]["waiting"] == 0).await
    }

    /// Kills it with SIGKILL and starts it on the same folder and address.
    pub async fn killed_and_restarted(mut self) -> Self {
        self.kill().await;
        self.restart().await
    }

    /// Returns the only delivery of an event.
    pub async fn delivery_of(&self, event: &str) -> Value {
        let page = self.client.get(&format!("/v1/tenants/default/events/{event}/deliveries")).await.expect(200);
        assert_eq!(page["data"].as_array().map(Vec::len), Some(1), "{page}");
        page["data"][0].clone()
    }

    /// Waits until the event's only delivery is in this state.
    pub async fn wait_for_state(&self, event: &str, state: &str) -> Value {
        eventually(&format!("event {event} to be {state}"), || async {
            let delivery = self.delivery_of(event).await;
            if delivery["state"] == state { Ok(delivery) } else { Err(delivery.to_string()) }
        })
        .await
    }

    pub async fn attempts_of(&self, delivery: &Value) -> Vec<Value> {
        let id = delivery["id"].as_str().expect("an id");
        let page = self.client.get(&format!("/v1/tenants/default/deliveries/{id}/attempts")).await.expect(200);
        page["data"].as_array().expect("a list").clone()
    }

    /// Posts an action to a delivery: retry, cancel, replay.
    pub async fn post_to_delivery(&self, delivery: &Value, verb: &str) -> super::Answer {
        let id = delivery["id"].as_str().expect("an id");
        self.client.post(&format!("/v1/tenants/default/deliveries/{id}/{verb}"), "").await
    }

    /// Reads a whole list, page by page.
    pub async fn list(&self, path: &str) -> Vec<Value> {
        let mut all = Vec::new();
        let mut cursor = String::new();
        loop {
            let joint = if path.contains('?') { '&' } else { '?' };
            let page = self.client.get(&format!("{path}{joint}limit=500{cursor}")).await.expect(200);
            all.extend(page["data"].as_array().expect("a list").clone());
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return all,
            }
        }
    }
}

/// Ends the lease of a process that has ended, as time would: nothing of it can be under way.
async fn end_lease(database: &Database, process_id: u32) {
    let ended = "UPDATE posthaste.nodes SET lease_until = clock_timestamp() - interval '1 ms'";
    database.execute(&format!("{ended} WHERE name LIKE '%/{process_id}'")).await;
}

fn command(folder: &Path, options: &Options) -> Command {
    let program = options.program.as_deref().unwrap_or(Path::new(env!("CARGO_BIN_EXE_posthaste")));
    let program = program.to_str().expect("a path of words");
    let words: Vec<&str> = options.runner.iter().map(String::as_str).chain([program]).collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    let listen = options.listen.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, free_port()).into()).to_string();
    command
        .args(["serve", "--listen", &listen, "--data"])
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    // Settings of the fault tests are not for the gateway.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("POSTHASTE_FAULTS_")) {
        command.env_remove(name);
    }
    if options.output.is_some() {
        command.stderr(Stdio::piped());
    }
    if !options.flags.iter().any(|flag| flag == "--log") {
        command.args(["--log", "warn"]);
    }
    if !options.flags.iter().any(|flag| flag == "--allow-egress") {
        command.args(["--allow-egress", "127.0.0.0/8"]);
    }
    // Its commits and its log lines are its own story's.
    if !options.flags.iter().any(|flag| flag == "--self-test") {
        command.args(["--self-test", "off"]);
    }
    command.args(&options.flags).envs(options.env.iter().map(|(name, value)| (name, value)));
    if let Some(log) = &options.log {
        command.stderr(std::fs::File::options().create(true).append(true).open(log).expect("a file"));
    }
    command
}

/// Returns the API path of an endpoint.
pub fn path_of(endpoint: &Value) -> String {
    let part = |name: &str| endpoint[name].as_str().expect("an endpoint").to_owned();
    format!("/v1/tenants/{}/endpoints/{}", part("tenant"), part("id"))
}

/// Returns a rate that no test reaches.
pub fn unlimited() -> Value {
    json!({"per_second": 1_000_000, "burst": 100_000})
}

/// Returns a retry policy that retries at once, so that tests need not wait.
pub fn eager_retry(max_attempts: u32) -> Value {
    json!({"schedule": ["10ms"], "jitter": "none", "max_attempts": max_attempts})
}

/// Reads the admin token once it is written. Of several nodes that start
/// together in one folder, another may have made it and not written it yet.
async fn written_token(file: &std::path::Path) -> String {
    let until = std::time::Instant::now() + PATIENCE;
    loop {
        match std::fs::read_to_string(file) {
            Ok(token) if token.ends_with('\n') => return token.trim().to_owned(),
            _ if std::time::Instant::now() < until => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
            other => panic!("no token in {}: {other:?}", file.display()),
        }
    }
}
