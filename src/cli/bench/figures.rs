//! Measures what figures cost where they cost the most: every endpoint gets one event in
//! a window, and so a row of its own.
//!
//! A stop writes the window that is open. So a stop after one event for each endpoint is
//! compared with one before which nothing happened.

use std::time::Duration;

use anyhow::{Context, bail};
use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::gateway::{BenchFolder, BenchStore, GatewayGroup, StopCost};
use super::load;
use super::receiver::BenchReceiver;
use super::scenario::{Routing, Scenario};
use crate::cli::{screen::Screen, table::Table};
use crate::clock::{Clock, SystemClock};
use crate::model::figure_time::{WINDOW_MS, millis_later, span_beginning};

/// CPU time that figures may cost for each event, in microseconds.
const PROMISED_MICROS: f64 = 2.0;

/// What is measured.
#[derive(Debug, clap::Args)]
pub struct FiguresBenchArgs {
    /// How many endpoints there are, each of which gets one event.
    #[arg(long, default_value_t = 100_000, value_parser = super::count)]
    endpoints: usize,
    /// Print all figures as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: BenchStore,
}

/// CPU time that the row of an endpoint costs, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
struct RowCost {
    gateway_micros: f64,
    /// Nothing if the store is embedded, or the server is not on this machine.
    database_micros: Option<f64>,
}

impl RowCost {
    /// Returns the cost of a row, of which the second stop wrote so many and the first none.
    fn of(empty: StopCost, full: StopCost, rows: usize) -> Self {
        let each = |empty: f64, full: f64| ((full - empty) * 1e6 / rows as f64).max(0.0);
        let database = empty.database_cpu_seconds.zip(full.database_cpu_seconds);
        Self {
            gateway_micros: each(empty.cpu_seconds, full.cpu_seconds),
            database_micros: database.map(|(empty, full)| each(empty, full)),
        }
    }

    /// Returns how many events each endpoint needs in a window so that its row costs no
    /// more than was promised for each of them.
    fn events_within_promise(self) -> u64 {
        let micros = self.gateway_micros + self.database_micros.unwrap_or(0.0);
        ((micros / PROMISED_MICROS).ceil() as u64).max(1)
    }
}

/// Measures the two stops, and prints what a row costs.
pub async fn run(args: FiguresBenchArgs) -> anyhow::Result<()> {
    let count = args.endpoints;
    let mut folder = BenchFolder::new(args.store.clone())?;
    let (group, receiver) = (folder.start().await?, BenchReceiver::start().await?);
    let load = Scenario {
        endpoints: count,
        routing: Routing::InTurn,
        backlog: count,
        ..Scenario::single(1, Duration::ZERO, 500)
    };
    let endpoints = (0..count).map(|number| load.endpoint(number, &receiver.url()).to_string());
    group.create_endpoints(endpoints.collect()).await?;
    // The first stop is that of a gateway that has created them.
    let (_, group) = folder.restarted(group).await?;
    let (empty, group) = folder.restarted(group).await?;
    let idle_bytes = group.resident_bytes();
    await_long_window(count).await;
    let window = open_window();
    let (filled, active_bytes) = group
        .peak_bytes(async {
            load::fill(&group, &load).await?;
            receiver.wait_for(count as u64).await
        })
        .await;
    filled?;
    let (full, group) = folder.restarted(group).await?;
    let is_one_window = window == open_window();
    let delivered = delivered(&group).await?;
    group.stop().await;
    if delivered != count as u64 {
        bail!("{count} events were delivered, and the figures of the gateway that was stopped have {delivered}");
    }
    let row = RowCost::of(empty, full, count);
    if args.json {
        let report = json!({
            "endpoints": count, "delivered": delivered, "is_one_window": is_one_window, "idle_bytes": idle_bytes,
            "active_bytes": active_bytes, "stop_without": empty, "stop_with": full, "row": row,
        });
        println!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(());
    }
    println!("{count} endpoints, each of which got one event");
    println!("memory: {} MiB before, {} MiB at most with their counters", idle_bytes >> 20, active_bytes >> 20);
    let rows = [("0".to_owned(), empty), (count.to_string(), full)].map(|(rows, stop)| {
        let database = stop.database_cpu_seconds.map_or("-".to_owned(), |seconds| format!("{seconds:.2}"));
        vec![rows, format!("{:.2}", stop.seconds), format!("{:.2}", stop.cpu_seconds), database]
    });
    let header = ["rows that the stop wrote", "seconds", "CPU s of gateways", "CPU s of PostgreSQL"];
    println!("{}", Table::new(&header, rows.into()).render(Screen::of_stdout()));
    println!("{}", sentence(row));
    if !is_one_window {
        println!("a window of five minutes ended meanwhile, so that the stop wrote fewer or more rows: run it again");
    }
    Ok(())
}

/// Says what a row costs.
fn sentence(row: RowCost) -> String {
    let RowCost { gateway_micros, database_micros } = row;
    let database = database_micros.map_or(String::new(), |micros| format!(" and {micros:.1} µs in PostgreSQL"));
    let events = row.events_within_promise();
    format!(
        "a row costs {gateway_micros:.1} µs of CPU in the gateway{database}: no more than {PROMISED_MICROS:.0} µs for \
         each event, if an endpoint has {events} or more of them in five minutes"
    )
}

/// Waits for the next window if the open one may end before so many events are delivered.
async fn await_long_window(events: usize) {
    let now = SystemClock.now();
    let end = millis_later(span_beginning(now, WINDOW_MS), WINDOW_MS);
    let left = Duration::try_from(end.duration_since(now)).unwrap_or_default();
    if left < Duration::from_secs(5) + Duration::from_millis(events as u64) {
        tokio::time::sleep(left + Duration::from_millis(100)).await;
    }
}

/// Returns the beginning of the window that is open.
fn open_window() -> Timestamp {
    span_beginning(SystemClock.now(), WINDOW_MS)
}

/// Returns how many deliveries the figures of the measured tenant have.
async fn delivered(group: &GatewayGroup) -> anyhow::Result<u64> {
    let path = format!("/v1/tenants/{}/figures?step=1h", group.tenant());
    let figures: Value = serde_json::from_str(&group.call(Method::GET, &path, "").await?)?;
    let points = figures["data"].as_array().context("figures have points")?;
    Ok(points.iter().filter_map(|point| point["ended"]["delivered"].as_u64()).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stop(cpu_seconds: f64, database_cpu_seconds: Option<f64>) -> StopCost {
        StopCost { seconds: 1.0, cpu_seconds, database_cpu_seconds }
    }

    #[test]
    fn a_row_costs_what_a_stop_takes_beyond_one_without_rows() {
        let row = RowCost::of(stop(0.25, Some(0.5)), stop(0.75, Some(1.0)), 100_000);
        assert_eq!(row, RowCost { gateway_micros: 5.0, database_micros: Some(5.0) });
        assert_eq!(row.events_within_promise(), 5);
        assert_eq!(
            sentence(row),
            "a row costs 5.0 µs of CPU in the gateway and 5.0 µs in PostgreSQL: no more than 2 µs for each event, if an \
             endpoint has 5 or more of them in five minutes"
        );
        let embedded = RowCost::of(stop(0.5, None), stop(0.25, None), 100_000);
        assert_eq!(embedded, RowCost { gateway_micros: 0.0, database_micros: None }, "less than can be seen");
        assert_eq!(embedded.events_within_promise(), 1);
    }
}
