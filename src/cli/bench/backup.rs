//! Measures how much a backup slows events on their way in: the same load without and
//! with one, in alternating pairs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::gateway::{BenchFolder, BenchStore, GatewayGroup};
use super::load::{self, LoadCounters};
use super::receiver::BenchReceiver;
use super::result::{Quantiles, median};
use super::scenario::Scenario;
use crate::cli::{screen::Screen, table::Table};

/// Interval at which it is looked how far a backup is.
const POLL: Duration = Duration::from_millis(100);

/// What is measured beside what.
#[derive(Debug, clap::Args)]
pub struct BackupBenchArgs {
    /// How many producers send at once.
    #[arg(long, default_value_t = 64, value_parser = super::count)]
    producers: usize,
    /// How many events are handed in per second, instead of as many as the producers can send.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    per_second: Option<u64>,
    /// How long the store is filled by the producers before, in seconds.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    fill_seconds: u64,
    /// How many pairs are measured.
    #[arg(long, default_value_t = 5, value_parser = super::count)]
    pairs: usize,
    /// How long each half of a pair is measured, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Print all figures as JSON.
    #[arg(long)]
    json: bool,
}

/// What one half of a pair showed.
#[derive(Debug, Clone, serde::Serialize)]
struct LoadHalf {
    accepted_per_second: f64,
    accept_ms: Quantiles,
    /// Bytes of the store's files at the end.
    store_bytes: u64,
}

/// A backup that was made beside the load.
#[derive(Debug, Clone, Default, serde::Serialize)]
struct MeasuredBackup {
    /// Seconds until everything was copied.
    copied_s: f64,
    /// Seconds until it was finished.
    finished_s: f64,
    bytes: u64,
    /// Whether it was copied, and finished, while the load went on.
    was_copied_under_load: bool,
    was_finished_under_load: bool,
}

/// The half without backups, the one with backups, and these.
type MeasuredPair = (LoadHalf, LoadHalf, Vec<MeasuredBackup>);

/// Measures the load without and with backups, and prints both and their ratio.
pub async fn run(args: BackupBenchArgs) -> anyhow::Result<()> {
    let mut folder = BenchFolder::new(BenchStore { database_url: None, nodes: 1 })?;
    let group = folder.start().await?;
    let receiver = BenchReceiver::start().await?;
    let duration = Duration::from_secs(args.seconds);
    let load = Scenario { per_second: args.per_second, ..Scenario::single(args.producers, duration, 500) };
    group.create_endpoints(vec![load.endpoint(0, &receiver.url()).to_string()]).await?;
    let fill = Scenario { per_second: None, duration: Duration::from_secs(args.fill_seconds), ..load.clone() };
    half(&group, &receiver, &fill).await?;
    let mut pairs = Vec::new();
    for number in 0..args.pairs {
        let (without, with, backups);
        if begins_without(number) {
            without = half(&group, &receiver, &load).await?;
            (with, backups) = half_with_backups(&group, &receiver, &load, number).await?;
        } else {
            (with, backups) = half_with_backups(&group, &receiver, &load, number).await?;
            without = half(&group, &receiver, &load).await?;
        }
        pairs.push((without, with, backups));
    }
    group.stop().await;
    print(&pairs, args.json)
}

/// Whether the half without backups is the first of a pair. It is in every other one:
/// the store grows from half to half, and whatever is measured later has the larger one.
fn begins_without(pair: usize) -> bool {
    pair.is_multiple_of(2)
}

/// Measures events while one backup after the other is made.
async fn half_with_backups(
    group: &GatewayGroup,
    receiver: &BenchReceiver,
    load: &Scenario,
    pair: usize,
) -> anyhow::Result<(LoadHalf, Vec<MeasuredBackup>)> {
    let is_loaded = AtomicBool::new(true);
    let loading = async {
        let with = half(group, receiver, load).await;
        is_loaded.store(false, Ordering::Relaxed);
        with
    };
    tokio::try_join!(loading, back_up_again(group, pair, &is_loaded))
}

fn print(pairs: &[MeasuredPair], is_json: bool) -> anyhow::Result<()> {
    let ratios = |of: fn(&LoadHalf) -> f64| pairs.iter().map(move |(without, with, _)| of(with) / of(without));
    let ratio = |of: fn(&LoadHalf) -> f64| median(ratios(of)).expect("there is at least one pair");
    let (accepted, p50, p99) =
        (ratio(|half| half.accepted_per_second), ratio(|half| half.accept_ms.p50), ratio(|half| half.accept_ms.p99));
    if is_json {
        let shown = |(number, (without, with, backups)): (usize, &MeasuredPair)| {
            let first = if begins_without(number) { "without" } else { "with" };
            json!({"first": first, "without": without, "with": with, "backups": backups})
        };
        let pairs: Vec<Value> = pairs.iter().enumerate().map(shown).collect();
        let ratios = json!({"accepted": accepted, "accept_p50": p50, "accept_p99": p99});
        println!("{}", serde_json::to_string_pretty(&json!({"pairs": pairs, "ratios": ratios}))?);
        return Ok(());
    }
    let named = pairs.iter().flat_map(|(without, with, _)| [("without", without), ("with a backup", with)]);
    let rows = named.map(|(name, half)| {
        let rate = format!("{:.0}", half.accepted_per_second);
        let (p50, p99) = (format!("{:.1}", half.accept_ms.p50), format!("{:.1}", half.accept_ms.p99));
        vec![name.to_owned(), rate, p50, p99, (half.store_bytes >> 20).to_string()]
    });
    let table = Table::new(&["events", "accepted/s", "accept p50 ms", "p99 ms", "store MiB"], rows.collect());
    println!("{}", table.render(Screen::of_stdout()));
    for backup in pairs.iter().flat_map(|(.., backups)| backups) {
        let when = match (backup.was_copied_under_load, backup.was_finished_under_load) {
            (true, true) => "under load",
            (true, false) => "its check ended after the load",
            (false, _) => "its copy ended after the load",
        };
        let MeasuredBackup { copied_s, finished_s, bytes, .. } = backup;
        println!("{} MiB copied after {copied_s:.1} s, finished after {finished_s:.1} s ({when})", bytes >> 20);
    }
    let each: Vec<String> = ratios(|half| half.accepted_per_second).map(|ratio| format!("{ratio:.3}")).collect();
    println!("with a backup: {accepted:.3} of the events, {p50:.3} of the p50 and {p99:.3} of the p99 (medians)");
    println!("of the events in each pair: {}", each.join(", "));
    Ok(())
}

/// Measures events for the time of the load, and waits until all of them have arrived.
async fn half(group: &GatewayGroup, receiver: &BenchReceiver, load: &Scenario) -> anyhow::Result<LoadHalf> {
    let counters = Arc::new(LoadCounters::default());
    let (before, began) = (receiver.arrived(), Instant::now());
    let times = match load.per_second {
        Some(_) => load::paced(group, group.tenant(), receiver, load, &counters).await?,
        None => load::saturating(group, receiver, load, &counters).await?,
    };
    let accepted = counters.accepted.load(Ordering::Relaxed);
    let accepted_per_second = accepted as f64 / began.elapsed().as_secs_f64();
    receiver.wait_for(before + accepted).await?;
    let accept_ms = Quantiles::of(&times).context("nothing was accepted")?;
    Ok(LoadHalf { accepted_per_second, accept_ms, store_bytes: group.sizes().1 })
}

/// Makes one backup after the other while there is load.
async fn back_up_again(
    group: &GatewayGroup,
    pair: usize,
    is_loaded: &AtomicBool,
) -> anyhow::Result<Vec<MeasuredBackup>> {
    let mut backups = Vec::new();
    while is_loaded.load(Ordering::Relaxed) {
        backups.push(back_up(group, &format!("bench-{pair}-{}", backups.len()), is_loaded).await?);
    }
    Ok(backups)
}

async fn back_up(group: &GatewayGroup, name: &str, is_loaded: &AtomicBool) -> anyhow::Result<MeasuredBackup> {
    let (began, path) = (Instant::now(), format!("/v1/backups/{name}"));
    group.call(Method::POST, "/v1/backups", &json!({"name": name}).to_string()).await?;
    let mut measured = MeasuredBackup::default();
    loop {
        tokio::time::sleep(POLL).await;
        let backup: Value = serde_json::from_str(&group.call(Method::GET, &path, "").await?)?;
        let (seconds, is_loaded) = (began.elapsed().as_secs_f64(), is_loaded.load(Ordering::Relaxed));
        let state = backup["state"].as_str().context("a backup has a state")?;
        if state != "copying" && measured.copied_s == 0.0 {
            (measured.copied_s, measured.was_copied_under_load) = (seconds, is_loaded);
        }
        match state {
            "copying" | "checking" => {}
            "finished" => {
                (measured.finished_s, measured.was_finished_under_load) = (seconds, is_loaded);
                measured.bytes = backup["total_bytes"].as_u64().unwrap_or(0);
                std::fs::remove_dir_all(group.backups().join(name)).context("the backup cannot be removed")?;
                return Ok(measured);
            }
            _ => bail!("the backup ended otherwise: {backup}"),
        }
    }
}
