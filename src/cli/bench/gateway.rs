//! Runs gateways as child processes, on a temporary data directory or a database.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use futures_util::future::try_join_all;
use http::Method;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::database::{BenchDatabase, DatabaseSizes};
use super::proc_stat::ProcStat;

/// The store that gateways of a benchmark run on.
#[derive(Debug, Clone, clap::Args)]
pub struct BenchStore {
    /// The PostgreSQL database to measure on; it must be empty, and what is written stays in it. Without it, each row gets
    /// an embedded store of its own, in the working directory.
    #[arg(long, env = "POSTHASTE_DATABASE_URL", hide_env_values = true)]
    pub database_url: Option<String>,
    /// How many gateways share the database.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub nodes: u8,
}

/// The folder of the gateways of one benchmark: their keys outlive a row, because
/// a database is read with the keys that it was written with.
pub struct BenchFolder {
    path: PathBuf,
    store: BenchStore,
    started: usize,
    /// Removes the folder at the end, unless it is to be kept.
    _temporary: Option<tempfile::TempDir>,
}

/// File of a folder that says that its store has been filled.
const FILLED: &str = "filled";

impl BenchFolder {
    /// Creates the folder in the working directory, so that the measurement uses its disk.
    pub fn new(store: BenchStore) -> anyhow::Result<Self> {
        if store.nodes > 1 && store.database_url.is_none() {
            bail!("--nodes {} needs --database-url: an embedded store has one node", store.nodes);
        }
        let here = std::env::current_dir()?;
        let folder = tempfile::tempdir_in(here).context("cannot create a folder for the measurement here")?;
        Ok(Self { path: folder.path().to_owned(), store, started: 0, _temporary: Some(folder) })
    }

    /// Opens a folder that stays, or creates it.
    pub fn kept(store: BenchStore, path: &Path) -> anyhow::Result<Self> {
        let made = std::fs::create_dir_all(path).and_then(|()| std::path::absolute(path));
        let path = made.with_context(|| format!("cannot create the folder {}", path.display()))?;
        Ok(Self { path, store, started: 0, _temporary: None })
    }

    /// Whether the store in it has been filled before.
    pub fn is_filled(&self) -> bool {
        self.path.join(FILLED).exists()
    }

    /// Notes that the store in it is filled now.
    pub fn note_filled(&self) -> anyhow::Result<()> {
        std::fs::write(self.path.join(FILLED), "").context("cannot note that the store is filled")
    }

    /// Starts the gateways of a row.
    pub async fn start(&mut self) -> anyhow::Result<GatewayGroup> {
        self.started += 1;
        let data = match self.store.database_url {
            Some(_) => self.path.join("nodes"),
            None => self.path.join(self.started.to_string()),
        };
        let nodes = self.start_nodes(&data).await?;
        let database = match &self.store.database_url {
            // A server that insists on TLS is measured without its sizes.
            Some(url) => BenchDatabase::connect(url).await.ok(),
            None => None,
        };
        let group = GatewayGroup { nodes, tenant: format!("bench-{}", self.started), data, database };
        let limits = r#"{"limits":{"endpoints":1000000,"settings_bytes":"4GiB"}}"#;
        group.call(Method::PUT, &format!("/v1/tenants/{}", group.tenant), limits).await?;
        Ok(group)
    }
}

impl BenchFolder {
    /// Stops the gateways of a row, lets a function change their store, and starts them
    /// on it again.
    pub async fn changed<Changing: Future<Output = anyhow::Result<()>>>(
        &self,
        group: GatewayGroup,
        change: impl FnOnce(PathBuf) -> Changing,
    ) -> anyhow::Result<GatewayGroup> {
        let GatewayGroup { nodes, tenant, data, database } = group;
        for mut node in nodes {
            node.process.kill().await?;
        }
        change(data.clone()).await?;
        let nodes = self.start_nodes(&data).await?;
        Ok(GatewayGroup { nodes, tenant, data, database })
    }

    /// Ends the gateways of a row as an operator does, once they are at rest, and starts
    /// them on their store again. Returns what the end took.
    pub async fn restarted(&self, group: GatewayGroup) -> anyhow::Result<(StopCost, GatewayGroup)> {
        let GatewayGroup { nodes, tenant, data, database } = group;
        tokio::time::sleep(REST).await;
        let used: f64 = nodes.iter().map(GatewayProcess::cpu_seconds).sum();
        let (before, began) = ((ended_cpu_seconds(), database_cpu_seconds(database.as_ref()).await), Instant::now());
        for node in &nodes {
            node.terminate()?;
        }
        for mut node in nodes {
            let ended = tokio::time::timeout(STOP_MAX, node.process.wait()).await;
            ended.with_context(|| format!("a gateway did not end within {} s", STOP_MAX.as_secs()))??;
        }
        let seconds = began.elapsed().as_secs_f64();
        let database_after = database_cpu_seconds(database.as_ref()).await;
        let cost = StopCost {
            seconds,
            cpu_seconds: ended_cpu_seconds() - before.0 - used,
            database_cpu_seconds: database_after.zip(before.1).map(|(after, before)| after - before),
        };
        let nodes = self.start_nodes(&data).await?;
        Ok((cost, GatewayGroup { nodes, tenant, data, database }))
    }

    async fn start_nodes(&self, data: &Path) -> anyhow::Result<Vec<GatewayProcess>> {
        let mut nodes = Vec::new();
        for number in 0..self.store.nodes {
            let log = self.path.join(format!("{}-{number}.log", self.started));
            let node = GatewayProcess::start(data, &log, self.store.database_url.as_deref());
            nodes.push(node.await.with_context(|| format!("gateway {number} did not start"))?);
        }
        Ok(nodes)
    }
}

/// Interval at which memory is read while something is done.
const SAMPLED_EVERY: Duration = Duration::from_millis(100);
/// Time after which gateways do nothing any more for what came before.
const REST: Duration = Duration::from_millis(500);
/// Longest time that gateways may take to end.
const STOP_MAX: Duration = Duration::from_secs(120);

/// What the end of gateways took.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct StopCost {
    /// Time in seconds.
    pub seconds: f64,
    /// CPU time of the gateways.
    pub cpu_seconds: f64,
    /// CPU time of the database's server, if it is on this machine.
    pub database_cpu_seconds: Option<f64>,
}

/// Returns the CPU time of all gateways that have ended.
fn ended_cpu_seconds() -> f64 {
    ProcStat::own().map_or(0.0, |stat| stat.ended_children_cpu_seconds())
}

async fn database_cpu_seconds(database: Option<&BenchDatabase>) -> Option<f64> {
    database?.cpu_seconds().await
}

/// The gateways of one row, and the tenant that is measured.
pub struct GatewayGroup {
    nodes: Vec<GatewayProcess>,
    tenant: String,
    data: PathBuf,
    database: Option<BenchDatabase>,
}

impl GatewayGroup {
    /// Returns the tenant that is measured.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// Returns the gateway that the producer with this number hands its events to.
    pub fn node(&self, number: usize) -> &GatewayProcess {
        &self.nodes[number % self.nodes.len()]
    }

    /// Makes a call to the API of the first gateway.
    pub async fn call(&self, method: Method, path: &str, body: &str) -> anyhow::Result<String> {
        self.nodes[0].call(method, path, body).await
    }

    /// Creates endpoints over several connections; returns their ids.
    pub async fn create_endpoints(&self, settings: Vec<String>) -> anyhow::Result<Vec<String>> {
        const CONNECTIONS: usize = 16;
        let path = format!("/v1/tenants/{}/endpoints", self.tenant);
        let parts = settings.chunks(settings.len().div_ceil(CONNECTIONS).max(1));
        let created = parts.map(async |part| {
            let node = &self.nodes[0];
            let mut connection = node.connect().await?;
            let mut ids = Vec::new();
            for settings in part {
                let answer = node.exchange(&mut connection, Method::POST, &path, settings).await?;
                let answer: serde_json::Value = serde_json::from_str(&answer)?;
                ids.push(answer["id"].as_str().context("an endpoint has an id")?.to_owned());
            }
            anyhow::Ok(ids)
        });
        Ok(try_join_all(created).await?.concat())
    }

    /// Returns what the processes have used so far.
    pub async fn usage(&self) -> anyhow::Result<ProcessUsage> {
        let mut usage = ProcessUsage::default();
        for node in &self.nodes {
            usage.cpu_seconds += node.cpu_seconds();
            usage.resident_bytes += node.resident_bytes();
            usage.written_bytes += node.written_bytes();
        }
        usage.commits = self.metric("posthaste_store_commit_jobs_count").await?;
        usage.written_bytes += self.database_sizes().await.map_or(0, |sizes| sizes.logged_bytes);
        Ok(usage)
    }

    /// Returns the sum of a metric without labels over the processes.
    pub async fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let mut sum = 0.0;
        for node in &self.nodes {
            let metrics = node.call(Method::GET, "/metrics", "").await?;
            let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
            sum += value.unwrap_or(0.0);
        }
        Ok(sum)
    }

    /// Returns the resident memory of the processes and the size of the data directory.
    pub fn sizes(&self) -> (u64, u64) {
        (self.resident_bytes(), folder_bytes(&self.data))
    }

    /// Returns the resident memory of the processes.
    pub fn resident_bytes(&self) -> u64 {
        self.nodes.iter().map(GatewayProcess::resident_bytes).sum()
    }

    /// Waits for some work; returns what it returns, and the largest resident memory of
    /// the processes meanwhile.
    pub async fn peak_bytes<T>(&self, work: impl Future<Output = T>) -> (T, u64) {
        let mut peak = self.resident_bytes();
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return (done, peak.max(self.resident_bytes())),
                () = tokio::time::sleep(SAMPLED_EVERY) => peak = peak.max(self.resident_bytes()),
            }
        }
    }

    /// Returns the folder that they make backups in.
    pub fn backups(&self) -> PathBuf {
        backups_beside(&self.data)
    }

    /// Returns the sizes of the database, if there is one and it tells.
    pub async fn database_sizes(&self) -> Option<DatabaseSizes> {
        self.database.as_ref()?.sizes().await.ok()
    }

    /// Stops the processes and removes an embedded store.
    pub async fn stop(self) {
        let (is_embedded, data) = (!self.data.ends_with("nodes"), self.data.clone());
        self.stop_and_keep().await;
        if is_embedded {
            let _ = std::fs::remove_dir_all(&data);
        }
    }

    /// Stops the processes.
    pub async fn stop_and_keep(self) {
        for mut node in self.nodes {
            let _ = node.process.kill().await;
        }
    }
}

/// What gateway processes have used since they started.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessUsage {
    /// CPU time of all processes.
    pub cpu_seconds: f64,
    /// Resident memory of all processes.
    pub resident_bytes: u64,
    /// Bytes that the processes caused to be written to disk, and those of the
    /// database's write-ahead log.
    pub written_bytes: u64,
    /// Durable commits of all processes.
    pub commits: f64,
}

/// What was used since an earlier time; memory as it is now.
impl std::ops::Sub for ProcessUsage {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            cpu_seconds: self.cpu_seconds - before.cpu_seconds,
            resident_bytes: self.resident_bytes,
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
            commits: self.commits - before.commits,
        }
    }
}

fn backups_beside(data: &Path) -> PathBuf {
    data.with_file_name("backups")
}

fn folder_bytes(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}

/// A connection to a gateway's API.
pub type ApiConnection = SendRequest<Full<Bytes>>;

/// A running gateway process. Dropping it kills the process.
pub struct GatewayProcess {
    process: tokio::process::Child,
    address: SocketAddr,
    token: String,
}

impl GatewayProcess {
    /// Starts this program as a gateway with its default settings and a folder for backups,
    /// logging to a file.
    /// Neither variables nor a `posthaste.toml` of the working directory change them.
    async fn start(data: &Path, log: &Path, database: Option<&str>) -> anyhow::Result<Self> {
        let log = std::fs::File::create(log)?;
        let mut command = tokio::process::Command::new(std::env::current_exe()?);
        command.args(["serve", "--listen", "127.0.0.1:0", "--allow-egress", "127.0.0.0/8", "--data"]).arg(data);
        command.arg("--backup-dir").arg(backups_beside(data));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"POSTHASTE_")) {
            command.env_remove(name);
        }
        command.current_dir(data.parent().context("the data directory is in the folder of the measurement")?);
        if let Some(url) = database {
            command.env("POSTHASTE_DATABASE_URL", url);
        }
        let mut process = command.stdout(Stdio::piped()).stderr(log).kill_on_drop(true).spawn()?;
        let mut lines = BufReader::new(process.stdout.take().context("the gateway has no output")?).lines();
        let address = loop {
            let Some(line) = lines.next_line().await? else { bail!("it ended before it served") };
            let address = line.split("http://").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
            if let Some(address) = address {
                break address;
            }
        };
        // Whatever else it prints is read, so that it never waits for a reader.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let file = data.join("admin-token");
        let token =
            std::fs::read_to_string(&file).with_context(|| format!("it wrote no token to {}", file.display()))?;
        Ok(Self { process, address, token: token.trim().to_owned() })
    }

    /// Returns the address that it serves on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the admin token.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Opens a connection to the API.
    pub async fn connect(&self) -> anyhow::Result<ApiConnection> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }

    /// Makes a call to the API on a connection of its own; returns the body of the answer.
    pub async fn call(&self, method: Method, path: &str, body: &str) -> anyhow::Result<String> {
        self.exchange(&mut self.connect().await?, method, path, body).await
    }

    /// Makes a call to the API on this connection; returns the body of the answer.
    async fn exchange(
        &self,
        connection: &mut ApiConnection,
        method: Method,
        path: &str,
        body: &str,
    ) -> anyhow::Result<String> {
        connection.ready().await?;
        let request = hyper::Request::builder()
            .method(method.clone())
            .uri(path)
            .header("host", self.address.to_string())
            .header("authorization", format!("Bearer {}", self.token))
            .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))?;
        let answer = tokio::time::timeout(Duration::from_secs(60), connection.send_request(request));
        let response = answer.await.with_context(|| format!("{method} {path} was not answered within a minute"))??;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        let body = String::from_utf8_lossy(&body).into_owned();
        if !status.is_success() {
            bail!("{method} {path} was answered {status}: {body}");
        }
        Ok(body)
    }

    fn proc_file(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(format!("/proc/{}/{name}", self.process.id()?)).ok()
    }

    /// Returns the CPU time that the process has used, in seconds.
    fn cpu_seconds(&self) -> f64 {
        self.process.id().and_then(ProcStat::of).map_or(0.0, |stat| stat.cpu_seconds())
    }

    /// Asks the process to end.
    fn terminate(&self) -> anyhow::Result<()> {
        let pid = self.process.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        kill_process(pid.context("a gateway has ended already")?, Signal::TERM)?;
        Ok(())
    }

    fn resident_bytes(&self) -> u64 {
        let status = self.proc_file("status").unwrap_or_default();
        let kilobytes =
            status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
        kilobytes.map_or(0, |kilobytes: u64| kilobytes * 1_024)
    }

    fn written_bytes(&self) -> u64 {
        let counters = self.proc_file("io").unwrap_or_default();
        counters.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok()).unwrap_or(0)
    }
}
