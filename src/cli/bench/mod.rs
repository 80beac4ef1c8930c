//! `posthaste bench`: measures this machine's limit, then the gateway on it.
//!
//! Load generator, receiver and gateway share this machine's cores. So the figure
//! without a gateway is the physical limit, and the others are a share of it, measured
//! within the same minute.

use std::time::Duration;

use anyhow::Context;
use clap::Subcommand;

mod gateway;
mod load;
mod neighbour;
mod receiver;
mod ticker;

use super::screen::Screen;
use super::table::Table;
use gateway::GatewayProcess;
use load::Measurement;
use receiver::BenchReceiver;

/// Measure how fast this machine delivers
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: Option<Benchmark>,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// One event per request: a bare signing client against a bare receiver, then producers through the gateway.
    Single(SingleArgs),
    /// A quiet tenant alone, then beside a loud one: how much of it is felt.
    Neighbour(neighbour::NeighbourArgs),
}

#[derive(Debug, clap::Args)]
struct SingleArgs {
    /// How long each row is measured, in seconds.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// How many producers send at once, one row each.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 256])]
    producers: Vec<usize>,
    /// How many bytes of data each event carries.
    #[arg(long, default_value_t = 500)]
    bytes: usize,
}

/// One row of the table.
struct BenchRow {
    what: String,
    measured: Measurement,
    cpu_micros: Option<f64>,
}

/// Runs the benchmark and prints its table.
pub async fn run(args: BenchArgs) -> anyhow::Result<()> {
    let single = match args.what {
        Some(Benchmark::Neighbour(args)) => return neighbour::run(args).await,
        Some(Benchmark::Single(single)) => single,
        None => SingleArgs { seconds: 5, producers: vec![64, 256], bytes: 500 },
    };
    let duration = Duration::from_secs(single.seconds.clamp(1, 600));
    let receiver = BenchReceiver::start().await?;
    let bare = load::without_gateway(&receiver, 64, single.bytes, duration).await?;
    let mut rows = vec![BenchRow { what: "bare client, 64 connections".into(), measured: bare, cpu_micros: None }];
    for producers in single.producers {
        rows.push(through_gateway(&receiver, producers, single.bytes, duration).await?);
    }
    println!("{}", table(&rows).render(Screen::of_stdout()));
    Ok(())
}

async fn through_gateway(
    receiver: &BenchReceiver,
    producers: usize,
    bytes: usize,
    duration: Duration,
) -> anyhow::Result<BenchRow> {
    let child = GatewayProcess::start().await.context("the gateway did not start")?;
    child.create_endpoint(&receiver.url()).await?;
    // A short run comes first, so that connections are open and caches are warm.
    load::through(&child, receiver, producers, bytes, Duration::from_millis(500)).await?;
    let before = child.cpu_seconds();
    let measured = load::through(&child, receiver, producers, bytes, duration).await?;
    let spent = child.cpu_seconds() - before;
    child.stop().await;
    let cpu_micros = Some(spent * 1e6 / measured.events as f64);
    Ok(BenchRow { what: format!("through the gateway, {producers} producers"), measured, cpu_micros })
}

fn table(rows: &[BenchRow]) -> Table {
    let bare = rows[0].measured.per_second();
    let millis = |micros: Option<u64>| micros.map_or(String::new(), |micros| format!("{:.1} ms", micros as f64 / 1e3));
    let cells = |row: &BenchRow| {
        let measured = &row.measured;
        vec![
            row.what.clone(),
            format!("{:.0}", measured.per_second()),
            format!("{:.1} %", 100.0 * measured.per_second() / bare),
            millis(measured.answered.map(|p| p.0)),
            millis(measured.answered.map(|p| p.1)),
            millis(measured.arrived.map(|p| p.0)),
            millis(measured.arrived.map(|p| p.1)),
            row.cpu_micros.map_or(String::new(), |micros| format!("{micros:.0} µs")),
        ]
    };
    let titles = ["", "events/s", "of bare", "accept p50", "accept p99", "arrival p50", "arrival p99", "CPU/event"];
    Table::new(&titles, rows.iter().map(cells).collect())
}
