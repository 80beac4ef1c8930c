//! Measures how much a loud tenant delays a quiet one: the same paced load alone and
//! beside it, in one run.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::ValueEnum;
use http::Method;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::gateway::{BenchFolder, BenchStore, GatewayGroup};
use super::load::{self, LoadCounters};
use super::receiver::BenchReceiver;
use super::result::{Quantiles, median};
use super::scenario::{Routing, Scenario, event_type};
use crate::model::parse_fault::json_fault;

/// Metric with the number of deliveries that wait.
const WAITING: &str = "posthaste_deliveries_waiting";
/// Time that open requests of the loud tenant have to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// How to be loud.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NoiseKind {
    /// A large backlog falls due at once.
    Backlog,
    /// Receivers take a request and never answer.
    Hanging,
    /// Receivers answer with 5 MB.
    Large,
    /// Producers hand in events as fast as they are answered.
    Flooding,
}

/// What is measured beside what.
#[derive(Debug, clap::Args)]
pub struct NeighbourArgs {
    /// How the other tenant is loud.
    #[arg(long, value_enum, default_value = "backlog")]
    noise: NoiseKind,
    /// How many deliveries the loud tenant has waiting, unless it floods.
    #[arg(long, default_value_t = 100_000, value_parser = super::count)]
    waiting: usize,
    /// At how many endpoints.
    #[arg(long, default_value_t = 20, value_parser = super::count)]
    endpoints: usize,
    /// How many producers the loud tenant has, if it floods.
    #[arg(long, default_value_t = 64, value_parser = super::count)]
    producers: usize,
    /// How many events the quiet tenant hands in per second.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    per_second: u64,
    /// How many pairs are measured, alone and beside the loud tenant in turn.
    #[arg(long, default_value_t = 1, value_parser = super::count)]
    pairs: usize,
    /// How long each half of a pair is measured, in seconds.
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

/// Hand-in to arrival of the quiet tenant's events, alone and beside the loud one.
#[derive(Debug, Clone, Copy, serde::Serialize)]
struct NeighbourPair {
    alone_ms: Quantiles,
    beside_ms: Quantiles,
}

/// Measures the quiet tenant alone and beside the loud one, in turn, and prints both
/// and their ratio.
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
    let endpoints = create_endpoints(&group, &args, &url).await?;
    let mut pairs = Vec::new();
    for _ in 0..args.pairs {
        if args.noise != NoiseKind::Flooding {
            fill(&group, &args).await?;
        }
        let alone_ms = arrival(&group, &receiver, &quiet).await?;
        switch(&group, &endpoints, "resume").await?;
        let (beside_ms, ()) = tokio::try_join!(arrival(&group, &receiver, &quiet), flood(&group, &receiver, &args))?;
        pairs.push(NeighbourPair { alone_ms, beside_ms });
        if pairs.len() < args.pairs {
            switch(&group, &endpoints, "pause").await?;
            await_end(&group).await?;
        }
    }
    let waiting = group.metric(WAITING).await?;
    group.stop().await;
    print(&args, &pairs, waiting)
}

/// Prints the pairs, and the medians of their ratios.
fn print(args: &NeighbourArgs, pairs: &[NeighbourPair], waiting: f64) -> anyhow::Result<()> {
    let ratio = |of: fn(&Quantiles) -> f64| {
        median(pairs.iter().map(|pair| of(&pair.beside_ms) / of(&pair.alone_ms))).expect("there is at least one pair")
    };
    let (p50, p99) = (ratio(|times| times.p50), ratio(|times| times.p99));
    if args.json {
        let figures = serde_json::json!({"pairs": pairs, "ratio": {"p50": p50, "p99": p99}});
        println!("{}", serde_json::to_string_pretty(&figures)?);
        return Ok(());
    }
    let noise = match args.noise {
        NoiseKind::Flooding => format!("{} producers for", args.producers),
        _ => format!("{} due at", args.waiting),
    };
    println!("{:?}: {noise} {} endpoints beside {} events/s", args.noise, args.endpoints, args.per_second);
    for (name, times) in pairs.iter().flat_map(|pair| [("alone", pair.alone_ms), ("beside", pair.beside_ms)]) {
        println!("  {name:<8} hand-in to arrival p50 {:.2} ms, p99 {:.2} ms", times.p50, times.p99);
    }
    println!("  ratio    p50 {p50:.2}, p99 {p99:.2}, median of {}", pairs.len());
    println!("  waiting at the end: {waiting:.0}");
    Ok(())
}

/// Hands in events of the loud tenant for as long as half a pair takes, if it floods.
async fn flood(group: &GatewayGroup, receiver: &BenchReceiver, args: &NeighbourArgs) -> anyhow::Result<()> {
    if args.noise == NoiseKind::Flooding {
        let load = Scenario {
            endpoints: args.endpoints,
            routing: Routing::InTurn,
            ..Scenario::single(args.producers, Duration::from_secs(args.seconds), 500)
        };
        load::saturating_by(group, "loud", receiver, &load, &Arc::default()).await?;
    }
    Ok(())
}

async fn switch(group: &GatewayGroup, endpoints: &[String], verb: &str) -> anyhow::Result<()> {
    for endpoint in endpoints {
        group.call(Method::POST, &format!("/v1/tenants/loud/endpoints/{endpoint}/{verb}"), "").await?;
    }
    Ok(())
}

/// Waits until no request is open any more.
async fn await_end(group: &GatewayGroup) -> anyhow::Result<()> {
    let until = Instant::now() + PATIENCE;
    while group.metric("posthaste_in_flight").await? > 0.0 {
        if Instant::now() > until {
            bail!("requests of the loud tenant are open a minute after its endpoints were paused");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
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

/// Creates paused endpoints of the loud tenant; returns their ids.
async fn create_endpoints(group: &GatewayGroup, args: &NeighbourArgs, url: &str) -> anyhow::Result<Vec<String>> {
    let mut ids = Vec::new();
    for n in 0..args.endpoints {
        let mut settings: serde_json::Value = serde_json::from_str(&args.settings).map_err(|problem| {
            anyhow::anyhow!("--settings is not JSON: {}", json_fault(args.settings.as_bytes(), &problem))
        })?;
        settings["url"] = format!("{url}{n}").into();
        settings["event_types"] = serde_json::json!([event_type(n)]);
        let created = group.call(Method::POST, "/v1/tenants/loud/endpoints", &settings.to_string()).await?;
        let created: serde_json::Value = serde_json::from_str(&created)?;
        ids.push(created["id"].as_str().context("an endpoint has an id")?.to_owned());
    }
    switch(group, &ids, "pause").await?;
    Ok(ids)
}

/// Hands in events of the loud tenant until as many wait as are to.
async fn fill(group: &GatewayGroup, args: &NeighbourArgs) -> anyhow::Result<()> {
    let mut waiting = group.metric(WAITING).await? as usize;
    while waiting < args.waiting {
        let count = (args.waiting - waiting).min(1_000);
        let events: Vec<String> = (waiting..waiting + count)
            .map(|n| format!(r#"{{"type":"{}","data":{{"n":{n}}}}}"#, event_type(n % args.endpoints)))
            .collect();
        let body = format!("[{}]", events.join(","));
        group.call(Method::POST, "/v1/tenants/loud/events/batch", &body).await?;
        waiting += count;
    }
    Ok(())
}

/// Starts the receiver of the loud tenant; returns its URL.
async fn noisy_receiver(noise: NoiseKind) -> anyhow::Result<String> {
    if matches!(noise, NoiseKind::Backlog | NoiseKind::Flooding) {
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
