//! `posthaste usage`: what each tenant used on a day, for its bill.

use jiff::civil::Date;
use serde_json::Value;

use super::client::ClientArgs;
use super::output::{self, Column, OutputFormat, text_cell};
use super::request::add_filters;
use super::screen::Screen;
use crate::clock::{Clock, SystemClock};

/// Which day to show.
#[derive(Debug, clap::Args)]
pub struct UsageArgs {
    #[command(flatten)]
    access: ClientArgs,
    /// A UTC day, such as 2026-11-17.
    #[arg(long, value_name = "DATE", value_parser = parse_day)]
    day: Date,
}

const COLUMNS: &[Column] = &[
    ("tenant", |row, _| text_cell(row, "tenant")),
    ("events", |row, _| text_cell(row, "events")),
    ("deliveries", |row, _| text_cell(row, "deliveries")),
    ("bytes", |row, _| text_cell(row, "bytes")),
    ("attempts", |row, _| text_cell(row, "attempts")),
    ("final", |row, _| if row["is_final"] == true { "yes".to_owned() } else { "not yet".to_owned() }),
];

fn parse_day(text: &str) -> Result<Date, String> {
    text.parse().map_err(|_| "write a UTC day such as 2026-11-17".to_owned())
}

/// Gets the usage of all tenants, or of the one that was named, and prints a line for
/// each.
pub async fn run(args: UsageArgs) -> anyhow::Result<()> {
    let mut client = args.access.client().await?;
    let mut url = client.url(&["usage"])?;
    add_filters(&mut url, &[("day", Some(&args.day.to_string()))]);
    let body = client.get(url).await?;
    let mut lines = Vec::new();
    for line in body.lines() {
        let usage: Value = output::parse(line)?;
        if !client.is_tenant_named || usage["tenant"] == client.tenant.as_str() {
            lines.push((line, usage));
        }
    }
    match client.format {
        // One object on each line, as the gateway sends it.
        OutputFormat::Json => lines.iter().try_for_each(|(line, _)| output::print(line)),
        OutputFormat::Table if lines.is_empty() => output::print(&format!("nothing was used on {}", args.day)),
        OutputFormat::Table => {
            let rows: Vec<Value> = lines.into_iter().map(|(_, usage)| usage).collect();
            output::print(&output::table(&rows, COLUMNS, SystemClock.wall()).render(Screen::of_stdout()))
        }
    }
}
