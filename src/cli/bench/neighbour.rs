//! Measures how much a loud tenant delays a quiet one: the same paced load alone and
//! beside it, in one run.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use http::Method;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::gateway::{BenchFolder, BenchStore, GatewayGroup};
use super::load::{self, LoadCounters};
use super::receiver::BenchReceiver;
use super::result::Quantiles;
use super::scenario::Scenario;
use crate::model::parse_fault::json_fault;

/// How to be loud.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NoiseKind {
    /// A large backlog falls due at once.
    Backlog,
    /// Receivers take a request and never answer.
    Hanging,
    /// Receivers answer with 5 MB.
    Large,
}

/// What is measured beside what.
#[derive(Debug, clap::Args)]
pub struct NeighbourArgs {
    /// How the other tenant is loud.
    #[arg(long, value_enum, default_value = "backlog")]
    noise: NoiseKind,
    /// How many deliveries the loud tenant has waiting.
    #[arg(long, default_value_t = 100_000, value_parser = super::count)]
    waiting: usize,
    /// At how many endpoints.
    #[arg(long, default_value_t = 20, value_parser = super::count)]
    endpoints: usize,
    /// How many events the quiet tenant hands in per second.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    per_second: u64,
    /// How long each of the two is measured, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Settings of the loud endpoints, as JSON.
    #[arg(long, default_value = "{}")]
    settings: String,
    /// Print all figures as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: BenchStore,
}

/// Measures the quiet tenant alone and beside the loud one, and prints both and their
/// ratio.
pub async fn run(args: NeighbourArgs) -> anyhow::Result<()> {
    let mut folder = BenchFolder::new(args.store.clone())?;
    let group = folder.start().await?;
    let receiver = BenchReceiver::start().await?;
    group.call(Method::PUT, "/v1/tenants/quiet", "{}").await?;
    let limits = r#"{"limits":{"endpoints":1000000,"settings_bytes":"4GiB"}}"#;
    group.call(Method::PUT, "/v1/tenants/loud", limits).await?;
    let body = format!(r#"{{"url":"{}"}}"#, receiver.url());
    group.call(Method::POST, "/v1/tenants/quiet/endpoints", &body).await?;
    let quiet =
        Scenario { per_second: Some(args.per_second), ..Scenario::single(1, Duration::from_secs(args.seconds), 20) };
    let warm_up = Scenario { duration: Duration::from_secs(1), ..quiet.clone() };
    arrival(&group, &receiver, &warm_up).await?;
    let url = noisy_receiver(args.noise).await?;
    let endpoints = prepare(&group, &args, &url).await?;
    let alone = arrival(&group, &receiver, &quiet).await?;
    for endpoint in &endpoints {
        group.call(Method::POST, &format!("/v1/tenants/loud/endpoints/{endpoint}/resume"), "").await?;
    }
    let beside = arrival(&group, &receiver, &quiet).await?;
    let metrics = group.call(Method::GET, "/metrics", "").await?;
    group.stop().await;
    if args.json {
        let ratio = serde_json::json!({"p50": beside.p50 / alone.p50, "p99": beside.p99 / alone.p99});
        let figures = serde_json::json!({"alone_ms": alone, "beside_ms": beside, "ratio": ratio});
        println!("{}", serde_json::to_string_pretty(&figures)?);
        return Ok(());
    }
    let waiting = metrics.lines().find_map(|line| line.strip_prefix("posthaste_deliveries_waiting "));
    println!(
        "{:?}: {} due at {} endpoints beside {} events/s",
        args.noise, args.waiting, args.endpoints, args.per_second
    );
    for (name, times) in [("alone", alone), ("beside", beside)] {
        println!("  {name:<8} hand-in to arrival p50 {:.2} ms, p99 {:.2} ms", times.p50, times.p99);
    }
    println!("  ratio    p50 {:.2}, p99 {:.2}", beside.p50 / alone.p50, beside.p99 / alone.p99);
    println!("  waiting at the end: {}", waiting.unwrap_or("unknown"));
    Ok(())
}

/// Measures the quiet tenant's events from hand-in to arrival.
async fn arrival(group: &GatewayGroup, receiver: &BenchReceiver, quiet: &Scenario) -> anyhow::Result<Quantiles> {
    let (before, counters) = (receiver.arrived(), Arc::new(LoadCounters::default()));
    receiver.take_latency();
    load::paced(group, "quiet", receiver, quiet, &counters).await?;
    receiver.wait_for(before + counters.accepted.load(Ordering::Relaxed)).await?;
    Quantiles::of(&receiver.take_latency()).context("nothing arrived")
}

/// Creates paused endpoints of the loud tenant with waiting deliveries; returns their
/// ids.
async fn prepare(group: &GatewayGroup, args: &NeighbourArgs, url: &str) -> anyhow::Result<Vec<String>> {
    let mut ids = Vec::new();
    for n in 0..args.endpoints {
        let mut settings: serde_json::Value = serde_json::from_str(&args.settings).map_err(|problem| {
            anyhow::anyhow!("--settings is not JSON: {}", json_fault(args.settings.as_bytes(), &problem))
        })?;
        settings["url"] = format!("{url}{n}").into();
        settings["event_types"] = serde_json::json!([format!("loud.e{n}")]);
        let created = group.call(Method::POST, "/v1/tenants/loud/endpoints", &settings.to_string()).await?;
        let created: serde_json::Value = serde_json::from_str(&created)?;
        let id = created["id"].as_str().context("an endpoint has an id")?.to_owned();
        group.call(Method::POST, &format!("/v1/tenants/loud/endpoints/{id}/pause"), "").await?;
        ids.push(id);
    }
    let mut sent = 0;
    while sent < args.waiting {
        let count = (args.waiting - sent).min(1_000);
        let events: Vec<String> = (sent..sent + count)
            .map(|n| format!(r#"{{"type":"loud.e{}","data":{{"n":{n}}}}}"#, n % ids.len()))
            .collect();
        let body = format!("[{}]", events.join(","));
        group.call(Method::POST, "/v1/tenants/loud/events/batch", &body).await?;
        sent += count;
    }
    Ok(ids)
}

/// Starts the receiver of the loud tenant; returns its URL.
async fn noisy_receiver(noise: NoiseKind) -> anyhow::Result<String> {
    if noise == NoiseKind::Backlog {
        let receiver = BenchReceiver::start().await?;
        return Ok(receiver.url());
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    let body: Arc<[u8]> = vec![b'x'; 5 * 1_024 * 1_024].into();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let body = body.clone();
            tokio::spawn(async move {
                let mut buffer = vec![0; 16 * 1_024];
                while let Ok(1..) = stream.read(&mut buffer).await {
                    if noise == NoiseKind::Hanging {
                        continue;
                    }
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                    if stream.write_all(head.as_bytes()).await.is_err() || stream.write_all(&body).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    Ok(url)
}
