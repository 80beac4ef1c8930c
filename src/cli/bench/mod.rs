//! `posthaste bench`: measures this machine's limit, then the gateway on it.
//!
//! Load generator, receiver, gateway and database share this machine's cores. So the
//! figure without a gateway is the physical limit, and the others are a share of it,
//! measured within the same minutes. Gateways run with their default settings.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

mod backup;
mod chart;
mod dashboard;
mod database;
mod figures;
mod gateway;
mod load;
mod neighbour;
mod proc_stat;
mod receiver;
mod replay;
mod report;
mod result;
mod run;
mod sampler;
mod scenario;
mod seed;
mod seed_figures;
mod ticker;
mod viewers;

use super::screen::Screen;
use gateway::{BenchFolder, BenchStore};
use receiver::BenchReceiver;
use report::BenchReport;
use scenario::{Routing, Scenario};

/// Reads a number of things of which there must be at least one.
fn count(text: &str) -> Result<usize, String> {
    const MOST: usize = 10_000_000;
    let number = text.parse().ok().filter(|number| (1..=MOST).contains(number));
    number.ok_or_else(|| format!("use a whole number from 1 to {MOST}"))
}

/// Measure how fast this machine delivers
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: Option<Benchmark>,
    #[command(flatten)]
    single: ProducerArgs,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// One event per request.
    Single(ProducerArgs),
    /// A hundred events per request.
    Batch(BatchArgs),
    /// Every event goes to several endpoints.
    Fanout(FanoutArgs),
    /// Every event has one of many keys, each delivered in order; every key has had an event before.
    Lanes(LanesArgs),
    /// Events for many endpoints, in turn.
    Endpoints(ManyEndpointsArgs),
    /// How fast what waits drains.
    Backlog(BacklogArgs),
    /// Some first attempts fail and are made again.
    Flaky(FlakyArgs),
    /// A steady pace: how long acceptance and arrival take.
    Paced(PacedArgs),
    /// As much as the producers can send, for minutes, with a chart over time.
    Saturate(SaturateArgs),
    /// A quiet tenant alone, then beside a loud one: how much the loud one delays it.
    Neighbour(neighbour::NeighbourArgs),
    /// New events alone, then beside a replay of many dead letters: how much of their speed they keep.
    Replay(replay::ReplayArgs),
    /// One event for each of many endpoints: what the row of figures costs that each of them gets.
    Figures(figures::FiguresBenchArgs),
    /// Events on their way in without, and with a backup being made: how much of their speed they keep.
    Backup(backup::BackupBenchArgs),
    /// People who look at the dashboard of a large store: how long pages take, and what they cost.
    Dashboard(dashboard::DashboardBenchArgs),
}

/// Options of every benchmark.
#[derive(Debug, Clone, clap::Args)]
struct CommonArgs {
    /// How long each row is measured, in seconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// How many bytes of data each event carries.
    #[arg(long, default_value_t = 500, value_parser = count)]
    bytes: usize,
    /// Print all figures as JSON.
    #[arg(long)]
    json: bool,
    /// Give events ids in no order, as those of producers who draw them, instead of ascending ones.
    #[arg(long)]
    random_ids: bool,
    /// Compare with what an earlier run printed with --json.
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    #[command(flatten)]
    store: BenchStore,
}

impl CommonArgs {
    fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    fn single(&self, producers: usize) -> Scenario {
        let single = Scenario::single(producers, self.duration(), self.bytes);
        Scenario { has_random_ids: self.random_ids, ..single }
    }
}

#[derive(Debug, clap::Args)]
struct ProducerArgs {
    /// How many producers send at once, one row each.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 256], value_parser = count)]
    producers: Vec<usize>,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, clap::Args)]
struct BatchArgs {
    /// How many producers send at once.
    #[arg(long, default_value_t = 16, value_parser = count)]
    producers: usize,
    /// How many events each request carries.
    #[arg(long, default_value_t = 100, value_parser = count)]
    batch: usize,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, clap::Args)]
struct FanoutArgs {
    /// How many endpoints every event goes to.
    #[arg(long, default_value_t = 10, value_parser = count)]
    endpoints: usize,
    /// How many producers send at once.
    #[arg(long, default_value_t = 64, value_parser = count)]
    producers: usize,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, clap::Args)]
struct LanesArgs {
    /// How many keys there are.
    #[arg(long, default_value_t = 1_000_000, value_parser = count)]
    lanes: usize,
    /// How many producers send at once.
    #[arg(long, default_value_t = 64, value_parser = count)]
    producers: usize,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, clap::Args)]
struct ManyEndpointsArgs {
    /// How many endpoints there are.
    #[arg(long, default_value_t = 10_000, value_parser = count)]
    endpoints: usize,
    /// How many producers send at once.
    #[arg(long, default_value_t = 64, value_parser = count)]
    producers: usize,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, clap::Args)]
struct BacklogArgs {
    /// How many deliveries wait.
    #[arg(long, default_value_t = 100_000, value_parser = count)]
    waiting: usize,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, clap::Args)]
struct FlakyArgs {
    /// Percentage of deliveries whose first attempt is answered 503.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=50))]
    failing: u64,
    /// How many producers send at once.
    #[arg(long, default_value_t = 64, value_parser = count)]
    producers: usize,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, clap::Args)]
struct PacedArgs {
    /// How many events are handed in per second, one row each.
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1_000],
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    per_second: Vec<u64>,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, clap::Args)]
struct SaturateArgs {
    /// How many producers send at once.
    #[arg(long, default_value_t = 256, value_parser = count)]
    producers: usize,
    #[command(flatten)]
    common: CommonArgs,
}

impl Benchmark {
    /// Returns the options of every benchmark, and the rows of this one.
    fn rows(self) -> (CommonArgs, Vec<Scenario>) {
        match self {
            Self::Single(ProducerArgs { producers, common }) => {
                let rows = producers.iter().map(|producers| common.single(*producers)).collect();
                (common, rows)
            }
            Self::Batch(BatchArgs { producers, batch, common }) => {
                let name = format!("batches of {batch}, {producers} producers");
                let row = Scenario { name, batch, ..common.single(producers) };
                (common, vec![row])
            }
            Self::Fanout(FanoutArgs { endpoints, producers, common }) => {
                let name = format!("fan-out to {endpoints}, {producers} producers");
                let row = Scenario { name, endpoints, ..common.single(producers) };
                (common, vec![row])
            }
            Self::Lanes(LanesArgs { lanes, producers, common }) => {
                let name = format!("{lanes} lanes, {producers} producers");
                let row = Scenario { name, lanes, ..common.single(producers) };
                (common, vec![row])
            }
            Self::Endpoints(ManyEndpointsArgs { endpoints, producers, common }) => {
                let name = format!("{endpoints} endpoints, {producers} producers");
                let row = Scenario { name, endpoints, routing: Routing::InTurn, ..common.single(producers) };
                (common, vec![row])
            }
            Self::Backlog(BacklogArgs { waiting, common }) => {
                let name = format!("{waiting} waiting");
                let row = Scenario { name, backlog: waiting, ..common.single(1) };
                (common, vec![row])
            }
            Self::Flaky(FlakyArgs { failing, producers, common }) => {
                let name = format!("{failing} % fail first, {producers} producers");
                let row = Scenario { name, failing_percent: failing, ..common.single(producers) };
                (common, vec![row])
            }
            Self::Paced(PacedArgs { per_second, common }) => {
                let row = |pace: &u64| {
                    let name = format!("{pace} events/s");
                    Scenario { name, per_second: Some(*pace), ..common.single(1) }
                };
                let rows = per_second.iter().map(row).collect();
                (common, rows)
            }
            Self::Saturate(SaturateArgs { producers, common }) => {
                let name = format!("saturated by {producers} producers");
                let row = Scenario { name, ..common.single(producers) };
                (common, vec![row])
            }
            Self::Neighbour(_) | Self::Replay(_) | Self::Figures(_) | Self::Backup(_) | Self::Dashboard(_) => {
                unreachable!("it has no rows")
            }
        }
    }
}

/// Runs the benchmark and prints its figures.
pub async fn run(args: BenchArgs) -> anyhow::Result<()> {
    let (common, rows) = match args.what {
        Some(Benchmark::Neighbour(args)) => return neighbour::run(args).await,
        Some(Benchmark::Replay(args)) => return replay::run(args).await,
        Some(Benchmark::Figures(args)) => return figures::run(args).await,
        Some(Benchmark::Backup(args)) => return backup::run(args).await,
        Some(Benchmark::Dashboard(args)) => return dashboard::run(args).await,
        Some(benchmark) => benchmark.rows(),
        None => Benchmark::Single(args.single).rows(),
    };
    let other = common.compare.as_deref().map(BenchReport::read).transpose()?;
    let mut folder = BenchFolder::new(common.store.clone())?;
    let receiver = BenchReceiver::start().await?;
    let bare_for = common.duration().min(Duration::from_secs(5));
    let bare_per_second = load::without_gateway(&receiver, 64, common.bytes, bare_for).await?;
    let mut results = Vec::new();
    for row in &rows {
        results.push(run::measure(&mut folder, &receiver, row, bare_per_second).await?);
    }
    let report = BenchReport { version: env!("CARGO_PKG_VERSION").into(), bare_per_second, results };
    if common.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(());
    }
    println!("{}", report.table().render(Screen::of_stdout()));
    for result in report.results.iter().filter(|result| result.seconds.len() > 1) {
        println!("\n{}", chart::chart(result));
    }
    if let Some(other) = other {
        println!("\ncompared with version {}, {:.0} bare/s:", other.version, other.bare_per_second);
        for table in report.comparison(&other) {
            println!("\n{}", table.render(Screen::of_stdout()));
        }
    }
    Ok(())
}
