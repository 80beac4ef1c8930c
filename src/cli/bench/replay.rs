//! Measures how much a replay of dead letters slows new events: the same load alone
//! and beside it, in alternating pairs. Before, it measures the replay without new events.

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

/// Time without a new dead letter, or without one that was replayed, after which what is
/// missing is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval at which it is looked whether the replay is done.
const POLL: Duration = Duration::from_millis(500);
/// Percentage of their speed that new events were promised to keep.
const PROMISED_PERCENT: u64 = 80;

/// What is measured beside what.
#[derive(Debug, clap::Args)]
pub struct ReplayArgs {
    /// How many dead letters there are.
    #[arg(long, default_value_t = 200_000, value_parser = super::count)]
    dead: usize,
    /// At how many endpoints.
    #[arg(long, default_value_t = 8, value_parser = super::count)]
    endpoints: usize,
    /// How many requests may be open at each of them.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    max_in_flight: u32,
    /// How many producers hand in new events.
    #[arg(long, default_value_t = 64, value_parser = super::count)]
    producers: usize,
    /// How many pairs are measured.
    #[arg(long, default_value_t = 3, value_parser = super::count)]
    pairs: usize,
    /// How long each half of a pair is measured, in seconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Let the replay come to its end then, without new events.
    #[arg(long)]
    to_end: bool,
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
    /// Largest resident memory of the gateways.
    resident_bytes: u64,
}

/// What a replay did without new events.
#[derive(Debug, Clone, Copy, serde::Serialize)]
struct ReplayAlone {
    replayed: u64,
    seconds: f64,
    /// Largest resident memory of the gateways.
    resident_bytes: u64,
}

impl ReplayAlone {
    fn per_second(self) -> f64 {
        self.replayed as f64 / self.seconds
    }
}

/// What was measured.
#[derive(Debug, serde::Serialize)]
struct ReplayReport {
    /// Time that the dry run took, in milliseconds.
    previewed_ms: f64,
    /// Resident memory of the gateways before the replay.
    resident_bytes: u64,
    /// The replay without new events, at its beginning.
    alone: ReplayAlone,
    pairs: Vec<ReplayPair>,
    /// Parts of their speed that new events kept: the medians of the pairs.
    kept: KeptParts,
    /// The rest of the replay, without new events.
    rest: Option<ReplayAlone>,
}

/// New events without and with the replay beside them.
#[derive(Debug, serde::Serialize)]
struct ReplayPair {
    alone: ReplayHalf,
    beside: ReplayHalf,
}

#[derive(Debug, Clone, Copy, serde::Serialize)]
struct KeptParts {
    accepted: f64,
    delivered: f64,
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
    let replay = json!({"kind": "replay", "filter": {"all": true}});
    let (resident_bytes, began) = (group.resident_bytes(), Instant::now());
    let mut preview = replay.clone();
    preview["dry_run"] = json!(true);
    group.call(Method::POST, &jobs(&group), &preview.to_string()).await?;
    let previewed_ms = began.elapsed().as_secs_f64() * 1e3;
    let job: Value = serde_json::from_str(&group.call(Method::POST, &jobs(&group), &replay.to_string()).await?)?;
    let job = job["id"].as_str().context("a job has an id")?.to_owned();
    let time_over = async {
        tokio::time::sleep(duration).await;
        Ok(())
    };
    let alone = replay_alone(&group, &replayed, time_over).await?;
    let pairs = measure_pairs(&group, &job, &fresh, &replayed, &load, &args).await?;
    let rest = if args.to_end {
        Some(replay_alone(&group, &replayed, await_end(&group, &job, &replayed)).await?)
    } else {
        None
    };
    group.stop().await;
    let ratio = |of: fn(&ReplayHalf) -> f64| {
        median(pairs.iter().map(|pair| of(&pair.beside) / of(&pair.alone))).expect("there is at least one pair")
    };
    let kept = KeptParts {
        accepted: ratio(|half| half.accepted_per_second),
        delivered: ratio(|half| half.delivered_per_second),
    };
    let report = ReplayReport { previewed_ms, resident_bytes, alone, pairs, kept, rest };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(());
    }
    println!(
        "{} dead letters at {} endpoints with max_in_flight {}, {} producers",
        args.dead, args.endpoints, args.max_in_flight, args.producers
    );
    println!("{}", report.table().render(Screen::of_stdout()));
    report.sentences().iter().for_each(|line| println!("{line}"));
    Ok(())
}

/// Measures new events without and beside the replay, in turn.
async fn measure_pairs(
    group: &GatewayGroup,
    job: &str,
    fresh: &BenchReceiver,
    replayed: &BenchReceiver,
    load: &Scenario,
    args: &ReplayArgs,
) -> anyhow::Result<Vec<ReplayPair>> {
    let mut pairs = Vec::new();
    for _ in 0..args.pairs {
        switch(group, job, "pause").await?;
        // What it had released before is sent all the same.
        nothing_waits(group).await?;
        let alone = half(group, fresh, replayed, load).await?;
        let before = replayed.arrived();
        switch(group, job, "resume").await?;
        replayed.wait_for(before + 1).await?;
        let beside = half(group, fresh, replayed, load).await?;
        if !is_running(group, job).await? {
            bail!("the replay ended beside new events; use more dead letters (--dead {})", args.dead);
        }
        pairs.push(ReplayPair { alone, beside });
    }
    Ok(pairs)
}

impl ReplayReport {
    fn table(&self) -> Table {
        let rate = |per_second: f64| format!("{per_second:.0}");
        let memory = |bytes: u64| (bytes >> 20).to_string();
        let without = |alone: &ReplayAlone| {
            let nothing = || "-".to_owned();
            vec!["none".to_owned(), nothing(), nothing(), rate(alone.per_second()), memory(alone.resident_bytes)]
        };
        let half = |name: &str, half: &ReplayHalf| {
            vec![
                name.to_owned(),
                rate(half.accepted_per_second),
                rate(half.delivered_per_second),
                rate(half.replayed_per_second),
                memory(half.resident_bytes),
            ]
        };
        let of_pairs = self
            .pairs
            .iter()
            .flat_map(|pair| [half("without the replay", &pair.alone), half("beside the replay", &pair.beside)]);
        let rows = [without(&self.alone)].into_iter().chain(of_pairs).chain(self.rest.as_ref().map(without));
        Table::new(&["new events", "accepted/s", "delivered/s", "replayed/s", "memory MiB"], rows.collect())
    }

    /// Says what was promised, and what came of it.
    fn sentences(&self) -> Vec<String> {
        let percent = |part: f64| format!("{:.0} %", 100.0 * part);
        let halves = self.pairs.iter().flat_map(|pair| [&pair.alone, &pair.beside]).map(|half| half.resident_bytes);
        let others = self.rest.iter().chain([&self.alone]).map(|alone| alone.resident_bytes);
        let most = halves.chain(others).max().unwrap_or(0);
        let mut lines = vec![
            format!(
                "new events kept {} accepted and {} delivered; {PROMISED_PERCENT} % are promised",
                percent(self.kept.accepted),
                percent(self.kept.delivered)
            ),
            format!("memory was {} MiB before the replay, and {} MiB at most", self.resident_bytes >> 20, most >> 20),
            format!("the preview took {:.0} ms", self.previewed_ms),
        ];
        lines.extend(self.rest.map(|rest| {
            format!("the last {} were replayed in {:.0} s, and no dead letter is left", rest.replayed, rest.seconds)
        }));
        lines
    }
}

/// Measures the replay while something is waited for and no new event comes.
async fn replay_alone(
    group: &GatewayGroup,
    replayed: &BenchReceiver,
    until: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<ReplayAlone> {
    let (before, began) = (replayed.arrived(), Instant::now());
    let (done, resident_bytes) = group.peak_bytes(until).await;
    done?;
    Ok(ReplayAlone { replayed: replayed.arrived() - before, seconds: began.elapsed().as_secs_f64(), resident_bytes })
}

/// Waits until the replay is finished, for as long as it goes on, and sees that no dead
/// letter is left.
async fn await_end(group: &GatewayGroup, job: &str, replayed: &BenchReceiver) -> anyhow::Result<()> {
    let read = async |path: String| -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&group.call(Method::GET, &path, "").await?)?)
    };
    let (mut seen, mut seen_at) = (replayed.arrived(), Instant::now());
    loop {
        let shown = read(format!("{}/{job}", jobs(group))).await?;
        match shown["state"].as_str() {
            Some("running") => {}
            Some("finished") => break,
            _ => bail!("the replay ended as {shown}"),
        }
        let arrived = replayed.arrived();
        if arrived > seen {
            (seen, seen_at) = (arrived, Instant::now());
        } else if seen_at.elapsed() > PATIENCE {
            bail!("nothing was replayed for a minute: {shown}");
        }
        tokio::time::sleep(POLL).await;
    }
    let groups = read(format!("/v1/tenants/{}/dead-letters/groups", group.tenant())).await?;
    match groups["total"]["count"].as_u64() {
        Some(0) => Ok(()),
        _ => bail!("the replay is finished, and dead letters are left: {}", groups["total"]),
    }
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
        settings["max_in_flight"] = json!(args.max_in_flight);
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
    let measured = group.peak_bytes(async {
        load::saturating(group, fresh, load, &counters).await?;
        let accepted = counters.accepted.load(Ordering::Relaxed);
        let accepted_per_second = accepted as f64 / began.elapsed().as_secs_f64();
        fresh.wait_for(before + accepted).await?;
        anyhow::Ok((accepted, accepted_per_second))
    });
    let (measured, resident_bytes) = measured.await;
    let (accepted, accepted_per_second) = measured?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(ReplayHalf {
        accepted_per_second,
        delivered_per_second: accepted as f64 / seconds,
        replayed_per_second: (replayed.arrived() - replayed_before) as f64 / seconds,
        resident_bytes,
    })
}
