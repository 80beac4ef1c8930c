//! Measures how long the pages of the dashboard take on a large store while people look
//! at them, and what that costs the events that come in meanwhile.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use hdrhistogram::Histogram;
use http::Method;
use http::header::{CONTENT_TYPE, COOKIE, ETAG, HOST, IF_NONE_MATCH, ORIGIN, SET_COOKIE};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::gateway::{BenchFolder, BenchStore, GatewayGroup};
use super::load::{self, LoadCounters};
use super::receiver::BenchReceiver;
use super::result::Quantiles;
use super::scenario::{Routing, Scenario};
use super::seed;

/// How often a page that is seen asks for itself again.
const REFRESH: Duration = Duration::from_secs(5);
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
    /// How many deliveries wait.
    #[arg(long, default_value_t = 1_000_000, value_parser = super::count)]
    waiting: usize,
    /// How many people look at a page.
    #[arg(long, default_value_t = 50, value_parser = super::count)]
    viewers: usize,
    /// How long people look, in seconds.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3_600))]
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

/// What was measured of one page.
#[derive(Debug)]
struct PageTimes {
    micros: Histogram<u64>,
    bytes: usize,
    unchanged: u64,
}

/// Fills a store, looks at its pages, and prints how long they took.
pub async fn run(args: DashboardBenchArgs) -> anyhow::Result<()> {
    let mut folder = BenchFolder::new(args.store.clone())?;
    let receiver = BenchReceiver::start().await?;
    let group = filled(&mut folder, &receiver, &args).await?;
    let session = sign_in(&group).await?;
    let pages = pages(&group).await?;
    let alone = look(&group, &session, &pages, &args).await?;
    let mut ratios = Vec::new();
    for _ in 0..args.pairs {
        let without = cpu_micros(&group, &receiver).await?;
        let mut viewers = start_viewers(&group, &session, &pages, &args);
        let with = cpu_micros(&group, &receiver).await?;
        viewers.shutdown().await;
        ratios.push(with / without);
    }
    group.stop().await;
    ratios.sort_by(f64::total_cmp);
    print(&args, &alone, ratios.get(ratios.len() / 2).copied())
}

fn print(args: &DashboardBenchArgs, pages: &BTreeMap<String, PageTimes>, cost: Option<f64>) -> anyhow::Result<()> {
    if args.json {
        let page = |(path, times): (&String, &PageTimes)| {
            json!({"page": path, "ms": Quantiles::of(&times.micros), "bytes": times.bytes, "unchanged": times.unchanged,
                "asked": times.micros.len()})
        };
        let pages: Vec<Value> = pages.iter().map(page).collect();
        println!("{}", serde_json::to_string_pretty(&json!({"pages": pages, "cpu_per_event_ratio": cost}))?);
        return Ok(());
    }
    println!(
        "{} endpoints, {} finished and {} waiting deliveries, {} viewers",
        args.endpoints, args.finished, args.waiting, args.viewers
    );
    for (path, times) in pages {
        let Some(Quantiles { p50, p99, .. }) = Quantiles::of(&times.micros) else { continue };
        println!("  {path:<28} p50 {p50:>7.1} ms  p99 {p99:>7.1} ms  {:>7} bytes", times.bytes);
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
    cpu_micros(&group, receiver).await.context("nothing was delivered")?;
    let (finished, database) = (args.finished, args.store.database_url.clone());
    let seed = async move |data: std::path::PathBuf| match database {
        Some(url) => seed::postgres(&url, finished).await,
        None => tokio::task::spawn_blocking(move || seed::embedded(&data, finished)).await?,
    };
    folder.changed(group, seed).await.context("finished deliveries could not be written")
}

fn single(seconds: u64) -> Scenario {
    Scenario::single(PRODUCERS, Duration::from_secs(seconds), 500)
}

/// Returns how much CPU time an event takes at saturation, in microseconds.
async fn cpu_micros(group: &GatewayGroup, receiver: &BenchReceiver) -> anyhow::Result<f64> {
    let (counters, before, arrived) = (Arc::new(LoadCounters::default()), group.usage().await?, receiver.arrived());
    load::saturating(group, receiver, &single(5), &counters).await?;
    let accepted = counters.accepted.load(Ordering::Relaxed);
    receiver.wait_for(arrived + accepted).await?;
    Ok((group.usage().await? - before).cpu_seconds * 1e6 / accepted.max(1) as f64)
}

/// Signs in with the admin token; returns the cookie.
async fn sign_in(group: &GatewayGroup) -> anyhow::Result<Arc<str>> {
    let node = group.node(0);
    let request = hyper::Request::post("/sign-in")
        .header(HOST, node.address().to_string())
        .header(ORIGIN, format!("http://{}", node.address()))
        .header("sec-fetch-site", "same-origin")
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(Full::new(Bytes::from(format!("token={}", node.token()))))?;
    let response = node.connect().await?.send_request(request).await?;
    let cookie = response.headers().get(SET_COOKIE).and_then(|cookie| cookie.to_str().ok()?.split(';').next());
    Ok(cookie.with_context(|| format!("signing in was answered {}", response.status()))?.into())
}

/// Returns the pages that are looked at, one of each kind.
async fn pages(group: &GatewayGroup) -> anyhow::Result<Vec<(String, String)>> {
    let tenant = group.tenant();
    let first = async |list: &str| {
        let answer = group.call(Method::GET, &format!("/v1/tenants/{tenant}/{list}"), "").await?;
        let answer: Value = serde_json::from_str(&answer)?;
        let id = answer["data"][0]["id"].as_str().with_context(|| format!("there is nothing in {list}"))?;
        anyhow::Ok(id.to_owned())
    };
    let (endpoint, event) = (first("endpoints?limit=1").await?, first("events?limit=1").await?);
    let (finished, waiting) =
        (first("deliveries?state=delivered&limit=1").await?, first("deliveries?state=waiting&limit=1").await?);
    let lists = ["/", "/endpoints", "/deliveries", "/deliveries?state=waiting", "/dead-letters", "/jobs", "/tenants"];
    let more = ["/endpoints?sort=attention", "/cluster", "/audit", "/tokens", "/settings", "/live"];
    let mut pages: Vec<(String, String)> =
        lists.iter().chain(&more).map(|path| ((*path).into(), (*path).into())).collect();
    pages.push(("/events".into(), format!("/events?tenant={tenant}")));
    pages.push(("/endpoints/{endpoint}".into(), format!("/endpoints/{tenant}/{endpoint}")));
    pages.push(("/events/{event}".into(), format!("/events/{tenant}/{event}")));
    pages.push(("/deliveries/{delivered}".into(), format!("/deliveries/{tenant}/{finished}")));
    pages.push(("/deliveries/{waiting}".into(), format!("/deliveries/{tenant}/{waiting}")));
    pages.push(("/tenants/{tenant}".into(), format!("/tenants/{tenant}")));
    Ok(pages)
}

type Viewers = JoinSet<anyhow::Result<BTreeMap<String, PageTimes>>>;

/// Lets people look for a while; returns how long each page took.
async fn look(
    group: &GatewayGroup,
    session: &Arc<str>,
    pages: &[(String, String)],
    args: &DashboardBenchArgs,
) -> anyhow::Result<BTreeMap<String, PageTimes>> {
    let mut viewers = start_viewers(group, session, pages, args);
    let mut all: BTreeMap<String, PageTimes> = BTreeMap::new();
    while let Some(seen) = viewers.join_next().await {
        for (path, times) in seen?? {
            match all.get_mut(&path) {
                None => drop(all.insert(path, times)),
                Some(sum) => {
                    sum.micros.add(&times.micros)?;
                    sum.bytes = sum.bytes.max(times.bytes);
                    sum.unchanged += times.unchanged;
                }
            }
        }
    }
    Ok(all)
}

/// Starts people who each look at one page after the other, and stay at each for two
/// refreshes.
fn start_viewers(
    group: &GatewayGroup,
    session: &Arc<str>,
    pages: &[(String, String)],
    args: &DashboardBenchArgs,
) -> Viewers {
    let mut viewers = JoinSet::new();
    let until = Instant::now() + Duration::from_secs(args.seconds);
    for number in 0..args.viewers {
        let (address, session, pages) = (group.node(number).address(), session.clone(), pages.to_vec());
        viewers.spawn(async move { Viewer { address, session }.look(&pages, number, until).await });
    }
    viewers
}

struct Viewer {
    address: SocketAddr,
    session: Arc<str>,
}

impl Viewer {
    async fn look(
        self,
        pages: &[(String, String)],
        number: usize,
        until: Instant,
    ) -> anyhow::Result<BTreeMap<String, PageTimes>> {
        let mut connection = load::connect(self.address).await?;
        let mut seen: BTreeMap<String, PageTimes> = BTreeMap::new();
        // Not all in the same moment.
        tokio::time::sleep(REFRESH.mul_f64((number as f64 / 50.0).fract())).await;
        for visit in number.. {
            // Every other page that is opened is the overview.
            let (name, path) = if visit % 2 == 0 { &pages[0] } else { &pages[visit / 2 % pages.len()] };
            let mut etag = None;
            for _ in 0..2 {
                let began = Instant::now();
                if began >= until {
                    return Ok(seen);
                }
                let mut request = hyper::Request::get(path.as_str())
                    .header(HOST, self.address.to_string())
                    .header(COOKIE, &*self.session)
                    .header("sec-fetch-site", "same-origin");
                if let Some(etag) = etag.take() {
                    request = request.header(IF_NONE_MATCH, etag);
                }
                connection.ready().await?;
                let response = connection.send_request(request.body(Full::new(Bytes::new()))?).await?;
                let status = response.status();
                etag = response.headers().get(ETAG).cloned();
                let body = response.into_body().collect().await?.to_bytes();
                if !(status.is_success() || status == http::StatusCode::NOT_MODIFIED) {
                    bail!("{path} was answered {status}: {}", String::from_utf8_lossy(&body));
                }
                let times = match seen.get_mut(name) {
                    Some(times) => times,
                    None => seen.entry(name.clone()).or_insert(PageTimes {
                        micros: Histogram::new(3)?,
                        bytes: 0,
                        unchanged: 0,
                    }),
                };
                times.micros.record(u64::try_from(began.elapsed().as_micros())?)?;
                times.bytes = times.bytes.max(body.len());
                times.unchanged += u64::from(status == http::StatusCode::NOT_MODIFIED);
                tokio::time::sleep_until(began + REFRESH).await;
            }
        }
        Ok(seen)
    }
}
