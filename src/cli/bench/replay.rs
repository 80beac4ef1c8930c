//! Measures how much a replay of dead letters slows new events: the same load alone
//! and beside it, in alternating pairs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, bail};
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::gateway::{BenchFolder, BenchStore, GatewayGroup};
use super::load::{self, LoadCounters};
use super::receiver::BenchReceiver;
use super::result::median;
use super::scenario::{Routing, Scenario};
use crate::cli::{screen::Screen, table::Table};

/// Time without a new dead letter after which what is missing is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is measured beside what.
#[derive(Debug, clap::Args)]
pub struct ReplayArgs {
    /// How many dead letters there are.
    #[arg(long, default_value_t = 200_000, value_parser = super::count)]
    dead: usize,
    /// At how many endpoints.
    #[arg(long, default_value_t = 8, value_parser = super::count)]
    endpoints: usize,
    /// How many producers hand in new events.
    #[arg(long, default_value_t = 64, value_parser = super::count)]
    producers: usize,
    /// How many pairs are measured.
    #[arg(long, default_value_t = 3, value_parser = super::count)]
    pairs: usize,
    /// How long each half of a pair is measured, in seconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Print all figures as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: BenchStore,
}

/// What one half of a pair showed.
#[derive(Debug, Clone, Copy, serde::Serialize)]
struct ReplayHalf {
    accepted_per_second: f64,
    delivered_per_second: f64,
    replayed_per_second: f64,
    resident_bytes: u64,
}

/// Measures new events alone and beside the replay, and prints both and their ratio.
pub async fn run(args: ReplayArgs) -> anyhow::Result<()> {
    let mut folder = BenchFolder::new(args.store.clone())?;
    let group = folder.start().await?;
    let (fresh, replayed) = (BenchReceiver::start().await?, BenchReceiver::start().await?);
    bury(&group, &replayed, &args).await?;
    let duration = Duration::from_secs(args.seconds);
    let load = Scenario { routing: Routing::Every, ..Scenario::single(args.producers, duration, 500) };
    group.create_endpoints(vec![load.endpoint(0, &fresh.url()).to_string()]).await?;
    half(&group, &fresh, &replayed, &Scenario { duration: Duration::from_secs(1), ..load.clone() }).await?;
    let job = group
        .call(Method::POST, &jobs(&group), &json!({"kind": "replay", "filter": {"all": true}}).to_string())
        .await?;
    let job: Value = serde_json::from_str(&job)?;
    let job = job["id"].as_str().context("a job has an id")?.to_owned();
    let mut pairs = Vec::new();
    for _ in 0..args.pairs {
        switch(&group, &job, "pause").await?;
        // What it had released before is sent all the same.
        nothing_waits(&group).await?;
        let alone = half(&group, &fresh, &replayed, &load).await?;
        let before = replayed.arrived();
        switch(&group, &job, "resume").await?;
        replayed.wait_for(before + 1).await?;
        let beside = half(&group, &fresh, &replayed, &load).await?;
        if !is_running(&group, &job).await? {
            bail!("the replay ended beside new events; use more dead letters (--dead {})", args.dead);
        }
        pairs.push((alone, beside));
    }
    group.stop().await;
    let ratio = |of: fn(&ReplayHalf) -> f64| {
        median(pairs.iter().map(|(alone, beside)| of(beside) / of(alone))).expect("there is at least one pair")
    };
    let (accepted, delivered) = (ratio(|half| half.accepted_per_second), ratio(|half| half.delivered_per_second));
    if args.json {
        let pairs: Vec<_> = pairs.iter().map(|(alone, beside)| json!({"alone": alone, "beside": beside})).collect();
        let kept = json!({"accepted": accepted, "delivered": delivered});
        println!("{}", serde_json::to_string_pretty(&json!({"pairs": pairs, "kept": kept}))?);
        return Ok(());
    }
    println!("{} dead letters at {} endpoints, {} producers", args.dead, args.endpoints, args.producers);
    let named = pairs.iter().flat_map(|(alone, beside)| [("alone", alone), ("beside the replay", beside)]);
    let rows = named.map(|(name, half)| {
        let rate = |per_second: f64| format!("{per_second:.0}");
        vec![
            name.to_owned(),
            rate(half.accepted_per_second),
            rate(half.delivered_per_second),
            rate(half.replayed_per_second),
            (half.resident_bytes >> 20).to_string(),
        ]
    });
    let header = ["new events", "accepted/s", "delivered/s", "replayed/s", "memory MiB"];
    let table = Table::new(&header, rows.collect());
    println!("{}", table.render(Screen::of_stdout()));
    println!("new events kept {:.0} % accepted and {:.0} % delivered", 100.0 * accepted, 100.0 * delivered);
    Ok(())
}

fn jobs(group: &GatewayGroup) -> String {
    format!("/v1/tenants/{}/jobs", group.tenant())
}

async fn switch(group: &GatewayGroup, job: &str, verb: &str) -> anyhow::Result<()> {
    let switched = group.call(Method::POST, &format!("{}/{job}/{verb}", jobs(group)), "").await;
    switched.map(drop).with_context(|| format!("the replay ended before its {verb}; use more dead letters (--dead)"))
}

async fn is_running(group: &GatewayGroup, job: &str) -> anyhow::Result<bool> {
    let job: Value = serde_json::from_str(&group.call(Method::GET, &format!("{}/{job}", jobs(group)), "").await?)?;
    Ok(job["state"] == "running")
}

/// Waits until no delivery waits any more.
async fn nothing_waits(group: &GatewayGroup) -> anyhow::Result<()> {
    let (path, began) = (format!("/v1/tenants/{}/deliveries?state=waiting&limit=1", group.tenant()), Instant::now());
    loop {
        let page: Value = serde_json::from_str(&group.call(Method::GET, &path, "").await?)?;
        if page["data"] == json!([]) {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            bail!("deliveries still wait a minute after the replay was paused");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Creates endpoints whose every delivery dies at its first attempt, and dead letters there.
async fn bury(group: &GatewayGroup, receiver: &BenchReceiver, args: &ReplayArgs) -> anyhow::Result<()> {
    let dying = Scenario {
        endpoints: args.endpoints,
        routing: Routing::InTurn,
        backlog: args.dead,
        failing_percent: 100,
        ..Scenario::single(1, Duration::ZERO, 500)
    };
    let endpoints = (0..args.endpoints).map(|number| {
        let mut settings = dying.endpoint(number, &receiver.url());
        settings["retry"] = json!({"max_attempts": 1});
        settings.to_string()
    });
    group.create_endpoints(endpoints.collect()).await?;
    receiver.fail(100);
    load::fill(group, &dying).await?;
    let (mut failed, mut last_at) = (0, Instant::now());
    while failed < args.dead as u64 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let more = receiver.take_failed();
        if more > 0 {
            (failed, last_at) = (failed + more, Instant::now());
        } else if last_at.elapsed() > PATIENCE {
            bail!("{} dead letters were not made: nothing came for a minute", args.dead as u64 - failed);
        }
    }
    receiver.fail(0);
    Ok(())
}

/// Measures new events for the time of the load, until all of them have arrived.
async fn half(
    group: &GatewayGroup,
    fresh: &BenchReceiver,
    replayed: &BenchReceiver,
    load: &Scenario,
) -> anyhow::Result<ReplayHalf> {
    let counters = Arc::new(LoadCounters::default());
    let (before, replayed_before, began) = (fresh.arrived(), replayed.arrived(), Instant::now());
    load::saturating(group, fresh, load, &counters).await?;
    let accepted = counters.accepted.load(Ordering::Relaxed);
    let accepted_per_second = accepted as f64 / began.elapsed().as_secs_f64();
    fresh.wait_for(before + accepted).await?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(ReplayHalf {
        accepted_per_second,
        delivered_per_second: accepted as f64 / seconds,
        replayed_per_second: (replayed.arrived() - replayed_before) as f64 / seconds,
        resident_bytes: group.sizes().0,
    })
}
