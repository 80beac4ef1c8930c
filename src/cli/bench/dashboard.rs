//! Measures how long the pages of the dashboard take on a large store while people look
//! at them, and what that costs the events that come in meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, bail};
use http::Method;
use serde_json::{Value, json};

use super::gateway::{BenchFolder, BenchStore, GatewayGroup};
use super::load::{self, LoadCounters};
use super::receiver::BenchReceiver;
use super::result::Quantiles;
use super::scenario::{Routing, Scenario};
use super::seed::{self, StoreSeed};
use super::viewers::{self, PageTimes, TimesByPage};

/// Longest time that 99 of 100 answers of the overview may take, in milliseconds.
const OVERVIEW_P99_MS: f64 = 50.0;
/// Longest time that 99 of 100 answers of any other page may take, in milliseconds.
const PAGE_P99_MS: f64 = 150.0;
/// Largest page, in bytes.
const PAGE_BYTES_MAX: usize = 60_000;
/// How often it is looked whether the first dead letter is there.
const DEAD_POLL: Duration = Duration::from_millis(50);
/// How often it is looked at most.
const DEAD_POLLS: usize = 600;
/// Endpoints at which deliveries wait.
const WAITING_ENDPOINTS: usize = 100;
/// Producers of the load beside which pages are looked at.
const PRODUCERS: usize = 64;

/// How large the store is, and how many look at it.
#[derive(Debug, clap::Args)]
pub struct DashboardBenchArgs {
    /// How many endpoints there are.
    #[arg(long, default_value_t = 100_000, value_parser = super::count)]
    endpoints: usize,
    /// How many finished deliveries are in the store, written to it by SQL.
    #[arg(long, default_value_t = 10_000_000, value_parser = super::count)]
    finished: usize,
    /// How many dead letters there are, written to the store by SQL.
    #[arg(long, default_value_t = 100_000, value_parser = super::count)]
    dead: usize,
    /// How many deliveries wait.
    #[arg(long, default_value_t = 1_000_000, value_parser = super::count)]
    waiting: usize,
    /// How many people look at a page.
    #[arg(long, default_value_t = 50, value_parser = super::count)]
    viewers: usize,
    /// How long people look, in seconds.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// How many times the load is measured without and with viewers, to compare both.
    #[arg(long, default_value_t = 7)]
    pairs: usize,
    /// Print all figures as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: BenchStore,
}

/// Fills a store, looks at its pages, and prints how long they took. A page that is
/// too slow or too large is a failure.
pub async fn run(args: DashboardBenchArgs) -> anyhow::Result<()> {
    let mut folder = BenchFolder::new(args.store.clone())?;
    let receiver = BenchReceiver::start().await?;
    let group = filled(&mut folder, &receiver, &args).await?;
    let pages = viewers::pages(&group).await?;
    let duration = Duration::from_secs(args.seconds);
    let mut times = viewers::open_all(&group, &pages).await?;
    viewers::view_pages(viewers::start(&group, &pages, args.viewers, duration), &mut times).await?;
    let mut ratios = Vec::new();
    for _ in 0..args.pairs {
        let without = cpu_micros(&group, &receiver, args.load_seconds()).await?;
        let mut viewers = viewers::start(&group, &pages, args.viewers, duration);
        let with = cpu_micros(&group, &receiver, args.load_seconds()).await?;
        viewers.shutdown().await;
        ratios.push(with / without);
    }
    group.stop().await;
    ratios.sort_by(f64::total_cmp);
    let over = over_limits(&times);
    print(&args, &times, &over, ratios.get(ratios.len() / 2).copied())?;
    if !over.is_empty() {
        bail!("{} of {} pages are over their limits: {}", over.len(), times.len(), over.join("; "));
    }
    Ok(())
}

impl DashboardBenchArgs {
    /// Returns how long a load lasts, in seconds.
    fn load_seconds(&self) -> u64 {
        self.seconds.min(5)
    }
}

/// Returns which pages are too slow or too large, in words.
fn over_limits(pages: &TimesByPage) -> Vec<String> {
    let over = |(name, times): (&String, &PageTimes)| {
        let limit = if name == "/" { OVERVIEW_P99_MS } else { PAGE_P99_MS };
        let p99 = Quantiles::of(&times.micros).map_or(0.0, |quantiles| quantiles.p99);
        let is_slow = (p99 >= limit).then(|| format!("{name} took {p99:.1} ms, and may take {limit:.0}"));
        let bytes = times.bytes;
        let is_large = bytes >= PAGE_BYTES_MAX;
        let is_large = is_large.then(|| format!("{name} has {bytes} bytes, and may have {PAGE_BYTES_MAX}"));
        is_slow.into_iter().chain(is_large)
    };
    pages.iter().flat_map(over).collect()
}

fn print(args: &DashboardBenchArgs, pages: &TimesByPage, over: &[String], cost: Option<f64>) -> anyhow::Result<()> {
    if args.json {
        let page = |(path, times): (&String, &PageTimes)| {
            json!({"page": path, "ms": Quantiles::of(&times.micros), "bytes": times.bytes, "unchanged": times.unchanged,
                "asked": times.micros.len()})
        };
        let pages: Vec<Value> = pages.iter().map(page).collect();
        let report = json!({"pages": pages, "over_limits": over, "cpu_per_event_ratio": cost});
        println!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(());
    }
    println!(
        "{} endpoints, {} finished, {} dead and {} waiting deliveries, {} viewers",
        args.endpoints, args.finished, args.dead, args.waiting, args.viewers
    );
    for (path, times) in pages {
        let Some(Quantiles { p50, p99, .. }) = Quantiles::of(&times.micros) else { continue };
        println!("  {path:<46} p50 {p50:>7.1} ms  p99 {p99:>7.1} ms  {:>6} bytes", times.bytes);
    }
    if let Some(cost) = cost {
        println!("  CPU per event with viewers, to that without: {cost:.3} (median of {})", args.pairs);
    }
    Ok(())
}

/// Starts a gateway on a store of the size that was asked for.
async fn filled(
    folder: &mut BenchFolder,
    receiver: &BenchReceiver,
    args: &DashboardBenchArgs,
) -> anyhow::Result<GatewayGroup> {
    let group = folder.start().await?;
    let many = Scenario { endpoints: args.endpoints, routing: Routing::InTurn, ..single(1) };
    let settings = (0..args.endpoints).map(|number| many.endpoint(number, &receiver.url()).to_string());
    let ids = group.create_endpoints(settings.collect()).await.context("the endpoints could not be made")?;
    let live = json!({"url": receiver.url(), "format": "raw", "event_types": ["bench.event"], "max_in_flight": 64,
        "rate": {"per_second": 1_000_000, "burst": 100_000}});
    group.create_endpoints(vec![live.to_string()]).await?;
    let waiting = args.endpoints.min(WAITING_ENDPOINTS);
    for id in &ids[..waiting] {
        group.call(Method::POST, &format!("/v1/tenants/{}/endpoints/{id}/pause", group.tenant()), "").await?;
    }
    let backlog = Scenario { endpoints: waiting, backlog: args.waiting, bytes: 200, ..many };
    load::fill(&group, &backlog).await.context("the backlog could not be filled")?;
    cpu_micros(&group, receiver, args.load_seconds()).await.context("nothing was delivered")?;
    let away = json!({"url": "http://127.0.0.1:9/", "format": "raw", "event_types": ["bench.dead"],
        "retry": {"schedule": ["50ms"], "max_attempts": 1}});
    group.create_endpoints(vec![away.to_string()]).await?;
    first_dead_letter(&group).await?;
    let content = StoreSeed { tenant: group.tenant().to_owned(), finished: args.finished, dead: args.dead };
    let database = args.store.database_url.clone();
    let seed = async move |data: std::path::PathBuf| match database {
        Some(url) => seed::postgres(&url, &content).await,
        None => tokio::task::spawn_blocking(move || seed::embedded(&data, &content)).await?,
    };
    folder.changed(group, seed).await.context("finished deliveries could not be written")
}

/// Makes a dead letter, for others to be copies of.
async fn first_dead_letter(group: &GatewayGroup) -> anyhow::Result<()> {
    let event = r#"{"id":"bench-dead","type":"bench.dead","data":{}}"#;
    group.call(Method::POST, &format!("/v1/tenants/{}/events", group.tenant()), event).await?;
    for _ in 0..DEAD_POLLS {
        let list = group.call(Method::GET, &format!("/v1/tenants/{}/dead-letters?limit=1", group.tenant()), "").await?;
        if serde_json::from_str::<Value>(&list)?["data"][0]["id"].is_string() {
            return Ok(());
        }
        tokio::time::sleep(DEAD_POLL).await;
    }
    bail!("a delivery to an address where nobody listens did not die")
}

fn single(seconds: u64) -> Scenario {
    Scenario::single(PRODUCERS, Duration::from_secs(seconds), 500)
}

/// Returns how much CPU time an event takes at saturation, in microseconds.
async fn cpu_micros(group: &GatewayGroup, receiver: &BenchReceiver, seconds: u64) -> anyhow::Result<f64> {
    let (counters, before, arrived) = (Arc::new(LoadCounters::default()), group.usage().await?, receiver.arrived());
    load::saturating(group, receiver, &single(seconds), &counters).await?;
    let accepted = counters.accepted.load(Ordering::Relaxed);
    receiver.wait_for(arrived + accepted).await?;
    Ok((group.usage().await? - before).cpu_seconds * 1e6 / accepted.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_slow_or_large_is_named() {
        let page = |millis: u64, bytes: usize| {
            let mut times = PageTimes { bytes, ..PageTimes::new().unwrap() };
            times.micros.record(millis * 1_000).unwrap();
            times
        };
        let pages = [
            ("/", page(60, 100)),
            ("/endpoints", page(60, 100)),
            ("/jobs", page(160, 100)),
            ("/live", page(1, 61_000)),
            ("/tokens", PageTimes::new().unwrap()),
        ];
        let pages: TimesByPage = pages.into_iter().map(|(name, times)| (name.to_owned(), times)).collect();
        let over = over_limits(&pages);
        assert_eq!(over.len(), 3, "{over:?}");
        assert!(over[0].starts_with("/ took 60.") && over[0].ends_with("may take 50"), "{over:?}");
        assert!(over[1].starts_with("/jobs took 16"), "{over:?}");
        assert_eq!(over[2], "/live has 61000 bytes, and may have 60000");
    }
}
