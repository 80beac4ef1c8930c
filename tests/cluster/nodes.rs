//! Runs gateway nodes on one database, and starts, stops and kills them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use posthaste::model::id::{EndpointId, TenantId};
use posthaste::model::shard::Shard;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};

use crate::audit::Findings;
use crate::ledger::{Entry, Ledger, SECRET};
use crate::load::{AcknowledgedEvents, Load, NodeAddresses};
use crate::servers::postgres::{Database, Server};
use crate::servers::proxy::Proxy;
use crate::sockets;
use crate::support::{Client, Gateway, Options, eager_retry, eventually, path_of, unlimited};

/// Lease of every node: the time that a silent node keeps its shards.
pub const LEASE: Duration = Duration::from_secs(2);
/// Most open requests of each endpoint.
pub const CAP: usize = 3;
/// Number of endpoints, enough for each of a few nodes to own several.
pub const ENDPOINTS: usize = 24;

/// Lock that gives a test the machine to itself, because tests that measure
/// seconds must not run beside others.
pub static EXCLUSIVE: Mutex<()> = Mutex::const_new(());

/// Nodes that share a database and a folder, as on one machine.
pub struct Cluster {
    pub nodes: Vec<Node>,
    pub addresses: NodeAddresses,
    pub endpoints: Vec<Value>,
    // Number of nodes started so far.
    started: usize,
    folder: Arc<TempDir>,
    database: Arc<Database>,
    // Set in tests that kill the database.
    server: Option<Server>,
    _turn: MutexGuard<'static, ()>,
}

/// One node of a cluster.
pub struct Node {
    pub name: String,
    /// Proxy between the node and the database, if there is one.
    pub proxy: Option<Proxy>,
    gateway: Option<Gateway>,
}

impl Node {
    pub fn client(&self) -> &Client {
        &self.gateway().client
    }

    pub fn gateway(&self) -> &Gateway {
        self.gateway.as_ref().expect("it was started")
    }

    /// Freezes the node with SIGSTOP.
    pub fn freeze(&self) {
        self.gateway().signal(Signal::STOP);
    }

    /// Lets the node go on with SIGCONT.
    pub fn thaw(&self) {
        self.gateway().signal(Signal::CONT);
    }

    /// Returns the proxy between the node and the database.
    pub fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("it was started behind a proxy")
    }
}

impl Cluster {
    /// Creates a cluster without nodes on an empty database.
    pub async fn new() -> Self {
        let turn = EXCLUSIVE.lock().await;
        let database = Server::shared(&[]).await.database().await;
        Self::on(turn, database, None)
    }

    /// Creates a cluster on a separate database server, which may be killed.
    pub async fn on_server_of_its_own() -> Self {
        Self::on_server(Server::start(&[]).await).await
    }

    /// Creates a cluster on this database server.
    pub async fn on_server(server: Server) -> Self {
        let turn = EXCLUSIVE.lock().await;
        let database = server.database().await;
        Self::on(turn, database, Some(server))
    }

    /// Starts this many nodes, with endpoints that call this receiver.
    pub async fn started(nodes: usize, ledger: &Ledger) -> Self {
        let mut cluster = Self::new().await;
        cluster.start(nodes).await;
        cluster.create_endpoints(ledger, ENDPOINTS).await;
        cluster.settled().await;
        cluster
    }

    fn on(turn: MutexGuard<'static, ()>, database: Database, server: Option<Server>) -> Self {
        let folder = Arc::new(tempfile::tempdir().expect("a folder"));
        let (nodes, addresses, endpoints) = (Vec::new(), NodeAddresses::default(), Vec::new());
        Self { nodes, addresses, endpoints, started: 0, folder, database: Arc::new(database), server, _turn: turn }
    }

    pub fn server(&self) -> &Server {
        self.server.as_ref().expect("it has a server of its own")
    }

    pub fn database(&self) -> &Database {
        &self.database
    }

    pub fn folder(&self) -> &Arc<TempDir> {
        &self.folder
    }

    /// Starts this many nodes at once.
    pub async fn start(&mut self, count: usize) {
        let url = self.database.url().to_owned();
        self.start_through(&url, count).await;
    }

    /// Starts this many nodes of another version.
    pub async fn start_version(&mut self, program: &Path, count: usize) {
        let options = || Options { program: Some(program.to_owned()), ..default_options(self.database.url()) };
        self.start_all((0..count).map(|_| (options(), None)).collect()).await;
    }

    /// Starts a node for each of these environments, with this lease.
    pub async fn start_in(&mut self, environments: Vec<Vec<(String, String)>>, lease: &str) {
        let options = |env| Options { env, ..options(self.database.url(), lease) };
        self.start_all(environments.into_iter().map(|env| (options(env), None)).collect()).await;
    }

    /// Starts this many nodes, each behind a proxy of its own.
    pub async fn start_behind_proxies(&mut self, count: usize) {
        let address = match &self.server {
            Some(server) => server.address(),
            None => Server::shared(&[]).await.address(),
        };
        let proxies = join_all((0..count).map(|_| Proxy::start(address))).await;
        let through = |proxy: Proxy| (default_options(&self.database.url_through(proxy.address)), Some(proxy));
        self.start_all(proxies.into_iter().map(through).collect()).await;
    }

    /// Starts this many nodes on this database URL, such as a pooler's.
    pub async fn start_through(&mut self, url: &str, count: usize) {
        self.start_all((0..count).map(|_| (default_options(url), None)).collect()).await;
    }

    async fn start_all(&mut self, nodes: Vec<(Options, Option<Proxy>)>) {
        let starting = nodes.into_iter().map(|(options, proxy)| {
            let folder = self.folder.clone();
            async move { (Gateway::start_in(folder, options).await, proxy) }
        });
        for (gateway, proxy) in join_all(starting).await {
            let name = format!("n{}", self.started);
            self.started += 1;
            sockets::register(gateway.process_id(), &name);
            self.addresses.write().expect("nothing panics while it is held").push(gateway.address);
            self.nodes.push(Node { name, proxy, gateway: Some(gateway) });
        }
    }

    /// Starts a node in this folder that is expected to refuse; returns its output.
    pub async fn refused(&self, folder: &TempDir) -> Output {
        self.refused_version(Path::new(env!("CARGO_BIN_EXE_posthaste")), folder).await
    }

    /// Returns the version of the database's schema.
    pub async fn schema(&self) -> i64 {
        let rows = self.database.rows("SELECT max(version) FROM posthaste.migrations").await;
        rows[0][0].as_deref().and_then(|version| version.parse().ok()).expect("a version")
    }

    /// Starts a node of another version that is expected to refuse; returns its output.
    pub async fn refused_version(&self, program: &Path, folder: &TempDir) -> Output {
        let mut command = tokio::process::Command::new(program);
        command.args(["serve", "--listen", "127.0.0.1:0", "--database-url", self.database.url(), "--data"]);
        command.arg(folder.path()).args(["--self-test", "off"]).stdin(Stdio::null()).kill_on_drop(true);
        let ending = tokio::time::timeout(crate::support::PATIENCE, command.output());
        ending.await.expect("it does not serve").expect("it runs")
    }

    /// Kills a node with SIGKILL.
    pub async fn kill(&mut self, node: usize) {
        self.nodes[node].gateway.as_mut().expect("it runs").kill().await;
    }

    /// Sends SIGTERM to a node and waits for its end.
    pub async fn terminate(&mut self, node: usize) {
        let ended = self.nodes[node].gateway.as_mut().expect("it runs").terminate().await;
        assert!(ended.success(), "{ended}");
    }

    /// Restarts a node that has ended, at the same address.
    pub async fn restart(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        let gateway = node.gateway.take().expect("it was started").restart().await;
        sockets::register(gateway.process_id(), &node.name);
        node.gateway = Some(gateway);
    }

    /// Ends a node with SIGTERM and removes it from the cluster.
    pub async fn leave(&mut self, node: usize) {
        let address = self.nodes[node].gateway().address;
        self.addresses
            .write()
            .expect("nothing panics while it is held")
            .retain(|node_address| *node_address != address);
        self.terminate(node).await;
        self.nodes.remove(node);
    }

    /// Runs `posthaste keys rotate` at a node; returns whether it succeeded, and what it
    /// said.
    pub async fn rotate_key(&self, node: usize) -> (bool, String) {
        let gateway = self.nodes[node].gateway();
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_posthaste"));
        command.args([
            "keys",
            "rotate",
            "--server",
            &format!("http://{}", gateway.address),
            "--token",
            gateway.token(),
        ]);
        let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
        let output = tokio::time::timeout(crate::support::PATIENCE, output).await.expect("it ends").expect("it runs");
        (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    }

    /// Creates endpoints `e0`, `e1` and so on, through one node after the other.
    /// Each wants the event type of its name.
    pub async fn create_endpoints(&mut self, ledger: &Ledger, count: usize) {
        for n in 0..count {
            let settings = settings(&format!("e{n}"), ledger);
            let client = self.nodes[n % self.nodes.len()].client();
            let created = client.post_json("/v1/tenants/default/endpoints", &settings).await.expect(201);
            self.endpoints.push(created);
        }
    }

    /// Starts producers that submit events through all nodes.
    pub fn load(&self, name: &str) -> Load {
        Load::start(name, &self.addresses, self.nodes[0].gateway().token(), self.endpoints.len())
    }

    /// Reads from the database which shards each process owns.
    pub async fn view(&self) -> Result<BTreeMap<u32, Vec<u8>>, String> {
        let process_of = |name: &str| name.rsplit(|c: char| !c.is_ascii_digit()).next().and_then(|id| id.parse().ok());
        let mut owned = BTreeMap::new();
        let question = "SELECT n.name, s.shard FROM posthaste.nodes n FULL JOIN posthaste.shards s ON s.node = n.id";
        for row in self.database.rows(question).await {
            let [name, shard] = &row[..] else { panic!("{row:?}") };
            let Some(name) = name else { return Err(format!("nobody owns {shard:?}")) };
            let process: u32 = process_of(name).unwrap_or_else(|| panic!("there is no process in {name}"));
            let shards: &mut Vec<u8> = owned.entry(process).or_default();
            shards.extend(shard.iter().map(|shard| shard.parse::<u8>().expect("a shard")));
        }
        Ok(owned)
    }

    /// Waits until every running node owns its share of the shards, and nobody
    /// else owns any.
    pub async fn settled(&self) {
        let mut wanted: Vec<u32> = self.nodes.iter().map(|node| node.gateway().process_id()).collect();
        wanted.sort_unstable();
        eventually("every node to own its share", || async {
            let owned = self.view().await?;
            let counts: Vec<usize> = owned.values().map(Vec::len).collect();
            let is_fair = counts.iter().max() <= counts.iter().min().map(|least| least + 1).as_ref();
            if owned.keys().eq(&wanted) && is_fair { Ok(()) } else { Err(format!("{counts:?}")) }
        })
        .await;
    }

    /// Returns the names of the endpoints that a node owns.
    pub async fn owned_by(&self, node: usize) -> Vec<String> {
        let process = self.nodes[node].gateway().process_id();
        let owned = eventually("the cluster to be whole", || self.view()).await;
        let shards = &owned[&process];
        let is_owned = |n: &usize| shards.contains(&shard_of(&self.endpoints[*n]));
        (0..self.endpoints.len()).filter(is_owned).map(|n| format!("e{n}")).collect()
    }

    /// Returns an endpoint by its name.
    pub fn endpoint(&self, name: &str) -> &Value {
        &self.endpoints[name[1..].parse::<usize>().expect("a number")]
    }

    pub fn path(&self, name: &str) -> String {
        path_of(self.endpoint(name))
    }

    /// Waits until no delivery waits, and checks that none is dead.
    pub async fn drained(&self) {
        let client = self.nodes[0].client();
        eventually("everything to arrive", || async {
            let page = client.send("GET", "/v1/tenants/default/deliveries?state=waiting&limit=1", &[], "").await?;
            if page.status == 200 && page.json()["data"] == json!([]) {
                return Ok(());
            }
            Err(String::from_utf8_lossy(&page.body).into_owned())
        })
        .await;
        let dead = client.get("/v1/tenants/default/dead-letters").await.expect(200);
        assert_eq!(dead["data"], json!([]), "no trouble of ours kills anything");
    }

    /// Waits until everything has arrived, and checks the ledger.
    pub async fn check(
        &self,
        ledger: &Ledger,
        acknowledged: &AcknowledgedEvents,
        may_be_lost: impl Fn(&Entry) -> bool,
    ) -> Findings {
        self.drained().await;
        let findings = ledger.check(acknowledged, CAP, may_be_lost);
        let mut stale = 0.0;
        for node in 0..self.nodes.len() {
            stale += self.metric(node, "posthaste_stale_writes_total").await;
        }
        let (requests, acknowledged, repeats) = (findings.requests, findings.acknowledged, findings.repeats.len());
        println!("{requests} requests, {acknowledged} acknowledged, {repeats} repeats, {stale} stale writes refused");
        findings
    }

    /// Returns the value of one series of a node's metrics.
    pub async fn metric(&self, node: usize, series: &str) -> f64 {
        let scraped = self.nodes[node].client().get("/metrics").await;
        let text = String::from_utf8_lossy(&scraped.body).into_owned();
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("there is no {series} in {text}"))
    }
}

/// Returns how long it took after a moment until each of these endpoints was
/// called again.
pub fn called_again(entries: &[Entry], endpoints: &[String], since: Instant) -> Option<Duration> {
    let first_after = |name: &String| {
        let first = entries.iter().find(|entry| entry.began > since && entry.endpoint == *name);
        first.map(|entry| entry.began - since)
    };
    let times: Option<Vec<Duration>> = endpoints.iter().map(first_after).collect();
    times.map(|times| times.into_iter().max().unwrap_or_default())
}

/// Returns the usual options of a node.
fn default_options(url: &str) -> Options {
    options(url, &format!("{}s", LEASE.as_secs()))
}

fn options(url: &str, lease: &str) -> Options {
    Options::flags(&["--database-url", url, "--lease", lease])
}

/// Returns the settings of the endpoint with this name.
pub fn settings(name: &str, ledger: &Ledger) -> Value {
    json!({"url": ledger.url(name), "secret": SECRET, "event_types": [name], "max_in_flight": CAP, "retry": eager_retry(1_000),
           "rate": unlimited(), "timeout": {"connect": "1s", "total": "1s"}, "breaker": {"enabled": false}})
}

fn shard_of(endpoint: &Value) -> u8 {
    let part = |name: &str| endpoint[name].as_str().expect("an endpoint");
    let tenant: TenantId = part("tenant").parse().expect("a tenant");
    let id: EndpointId = part("id").parse().expect("an id");
    Shard::of(&tenant, id).0
}
