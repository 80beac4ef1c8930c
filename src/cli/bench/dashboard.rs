//! Measures how long the pages of the dashboard take on a large store while people look
//! at them, and what that costs the events that come in meanwhile.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, bail};
use http::Method;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::gateway::{BenchFolder, BenchStore, GatewayGroup};
use super::load::{self, LoadCounters};
use super::receiver::BenchReceiver;
use super::result::{Quantiles, median};
use super::scenario::{Routing, Scenario};
use super::seed::{self, StoreSeed};
use super::viewers::{self, PageTimes, TimesByPage};

/// Longest time that 99 of 100 answers of the overview may take, in milliseconds.
const OVERVIEW_P99_MS: f64 = 50.0;
/// Longest time that 99 of 100 answers of any other page may take, in milliseconds.
const PAGE_P99_MS: f64 = 150.0;
/// Largest page, in bytes.
const PAGE_BYTES_MAX: usize = 60_000;
/// Largest size of all assets, each compressed, in bytes.
const ASSETS_BYTES_MAX: usize = 40_000;
/// Most CPU time of an event with viewers, to that without.
const COST_MAX: f64 = 1.05;
/// How many pairs of loads it takes to say so.
const PAIRS_MIN: usize = 7;
/// How often it is looked whether the first dead letter is there.
const DEAD_POLL: Duration = Duration::from_millis(50);
/// How often it is looked at most.
const DEAD_POLLS: usize = 600;
/// Endpoints at which deliveries wait.
const WAITING_ENDPOINTS: usize = 100;
/// Description of the endpoint that the load goes to.
const LIVE: &str = "bench-live";
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
    /// A folder to keep the store in: filled if it is new, used as it is by later runs. With `--database-url` it has
    /// the keys of that database.
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Print all figures as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: BenchStore,
}

/// Fills a store, looks at its pages, and prints how long they took. A page that is
/// too slow or too large is a failure, and so is what they cost events.
pub async fn run(args: DashboardBenchArgs) -> anyhow::Result<()> {
    let mut folder = match &args.keep {
        Some(kept) => BenchFolder::kept(args.store.clone(), kept)?,
        None => BenchFolder::new(args.store.clone())?,
    };
    let receiver = BenchReceiver::start().await?;
    let group = filled(&mut folder, &receiver, &args).await?;
    let pages = viewers::pages(&group).await?;
    let duration = Duration::from_secs(args.seconds);
    let sessions = viewers::sign_in_all(&group, args.viewers).await?;
    let mut times = viewers::open_all(&group, &pages, &sessions[0]).await?;
    let start = || viewers::start(&group, &pages, &sessions, args.viewers, duration);
    viewers::view_pages(start(), &mut times).await?;
    let mut ratios = Vec::new();
    for _ in 0..args.pairs {
        let without = cpu_micros(&group, &receiver, args.load_seconds()).await?;
        let mut viewers = start();
        let with = cpu_micros(&group, &receiver, args.load_seconds()).await?;
        viewers.shutdown().await;
        ratios.push(with / without);
    }
    let common = CommonFigures { cost: median(ratios), assets_bytes: compressed_assets(&group).await? };
    match args.keep {
        Some(_) => group.stop_and_keep().await,
        None => group.stop().await,
    }
    let mut over = over_limits(&times);
    over.extend(common.over_limits(args.pairs));
    print(&args, &times, &over, &common)?;
    if !over.is_empty() {
        bail!("{} figures are over their limits: {}", over.len(), over.join("; "));
    }
    Ok(())
}

impl DashboardBenchArgs {
    /// Returns how long a load lasts, in seconds.
    fn load_seconds(&self) -> u64 {
        self.seconds.min(5)
    }
}

/// What was measured of all pages together.
struct CommonFigures {
    /// CPU time of an event with viewers, to that without.
    cost: Option<f64>,
    /// Size of the stylesheet, the script and the icon, each compressed; none without gzip.
    assets_bytes: Option<usize>,
}

impl CommonFigures {
    /// Returns what is over its limit, in words.
    fn over_limits(&self, pairs: usize) -> impl Iterator<Item = String> {
        // Fewer pairs tell more of the machine than of the pages.
        let cost = self.cost.filter(|cost| pairs >= PAIRS_MIN && *cost > COST_MAX);
        let cost = cost.map(|cost| format!("an event takes {cost:.3} of the CPU time, and may take {COST_MAX}"));
        let bytes = self.assets_bytes.filter(|bytes| *bytes >= ASSETS_BYTES_MAX);
        let bytes = bytes.map(|bytes| format!("the assets have {bytes} bytes, and may have {ASSETS_BYTES_MAX}"));
        cost.into_iter().chain(bytes)
    }
}

/// Returns the size of all assets as gzip compresses them; none on a machine without it.
async fn compressed_assets(group: &GatewayGroup) -> anyhow::Result<Option<usize>> {
    let page = group.call(Method::GET, "/sign-in", "").await?;
    let mut sum = 0;
    for path in page.split('"').filter_map(|part| part.strip_prefix("./assets/")) {
        let content = group.call(Method::GET, &format!("/assets/{path}"), "").await?;
        let mut command = Command::new("gzip");
        command.args(["-9", "-c"]).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let Ok(mut gzip) = command.spawn() else { return Ok(None) };
        let mut input = gzip.stdin.take().context("gzip has an input")?;
        let (written, output) = tokio::join!(
            async move {
                input.write_all(content.as_bytes()).await?;
                input.shutdown().await
            },
            gzip.wait_with_output()
        );
        written.context("gzip took no input")?;
        sum += output.context("gzip gave no output")?.stdout.len();
    }
    Ok(Some(sum))
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

fn print(
    args: &DashboardBenchArgs,
    pages: &TimesByPage,
    over: &[String],
    common: &CommonFigures,
) -> anyhow::Result<()> {
    let CommonFigures { cost, assets_bytes } = common;
    if args.json {
        let page = |(path, times): (&String, &PageTimes)| {
            json!({"page": path, "ms": Quantiles::of(&times.micros), "bytes": times.bytes, "unchanged": times.unchanged,
                "asked": times.micros.len()})
        };
        let pages: Vec<Value> = pages.iter().map(page).collect();
        let report = json!({"pages": pages, "over_limits": over, "cpu_per_event_ratio": cost,
            "assets_compressed_bytes": assets_bytes});
        println!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(());
    }
    println!(
        "{} endpoints, {} finished, {} dead and {} waiting deliveries, {} viewers",
        args.endpoints, args.finished, args.dead, args.waiting, args.viewers
    );
    for (path, times) in pages {
        let bytes = times.bytes;
        match Quantiles::of(&times.micros) {
            Some(Quantiles { p50, p99, .. }) => {
                println!("  {path:<46} p50 {p50:>7.1} ms  p99 {p99:>7.1} ms  {bytes:>6} bytes");
            }
            None => println!("  {path:<46} {:<30}  {bytes:>6} bytes", "opened once, and not measured"),
        }
    }
    if let Some(cost) = cost {
        println!("  CPU per event with viewers, to that without: {cost:.3} (median of {})", args.pairs);
    }
    if let Some(bytes) = assets_bytes {
        println!("  stylesheet, script and icon, compressed: {bytes} bytes");
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
    if folder.is_filled() {
        lead_live_endpoint_to(&group, receiver).await?;
        return Ok(group);
    }
    let many = Scenario { endpoints: args.endpoints, routing: Routing::InTurn, ..single(1) };
    let settings = (0..args.endpoints).map(|number| many.endpoint(number, &receiver.url()).to_string());
    let ids = group.create_endpoints(settings.collect()).await.context("the endpoints could not be made")?;
    let live = json!({"url": receiver.url(), "format": "raw", "event_types": ["bench.event"], "description": LIVE,
        "max_in_flight": 64, "rate": {"per_second": 1_000_000, "burst": 100_000}});
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
    let group = folder.changed(group, seed).await.context("finished deliveries could not be written")?;
    folder.note_filled()?;
    Ok(group)
}

/// Lets the endpoint of the load call this receiver: the one of the run before is gone.
async fn lead_live_endpoint_to(group: &GatewayGroup, receiver: &BenchReceiver) -> anyhow::Result<()> {
    let endpoints = format!("/v1/tenants/{}/endpoints", group.tenant());
    let found = group.call(Method::GET, &format!("{endpoints}?q={LIVE}&limit=1"), "").await?;
    let found: Value = serde_json::from_str(&found)?;
    let id = found["data"][0]["id"].as_str().context("the store was filled by another version: use a new folder")?;
    let url = json!({"url": receiver.url()}).to_string();
    group.call(Method::PATCH, &format!("{endpoints}/{id}"), &url).await?;
    Ok(())
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

    #[test]
    fn what_pages_cost_events_is_named_if_it_was_measured_often_enough() {
        let over = |cost: f64, pairs: usize, bytes: usize| {
            let common = CommonFigures { cost: Some(cost), assets_bytes: Some(bytes) };
            common.over_limits(pairs).collect::<Vec<_>>()
        };
        assert_eq!(over(1.06, 7, 100), ["an event takes 1.060 of the CPU time, and may take 1.05"]);
        assert_eq!(over(1.2, 6, 40_000), ["the assets have 40000 bytes, and may have 40000"]);
        assert!(over(1.05, 7, 39_999).is_empty());
    }
}
