//! `posthaste figures`: how many of what happened, by time or by event type.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::client::{Client, ClientArgs};
use super::find;
use super::output::{self, Column, OutputFormat, render_length, text_cell};
use super::request::{ask_filter, check_order, past_time};
use super::screen::Screen;
use crate::clock::{Clock, SystemClock};
use crate::model::figure_time::FigureStep;

/// Whose figures to show, and of which time.
#[derive(Debug, clap::Args)]
pub struct FiguresArgs {
    #[command(flatten)]
    access: ClientArgs,
    /// Only the figures of this endpoint.
    #[arg(long, value_name = "ID", conflicts_with = "all")]
    endpoint: Option<String>,
    /// The figures of all tenants together; this needs the admin token.
    #[arg(long)]
    all: bool,
    /// From this time on: 2026-11-15T08:00:00Z, or 2h for two hours ago; 24 hours when left out.
    #[arg(long, value_name = "TIME", value_parser = past_time)]
    from: Option<Timestamp>,
    /// Before this time: 2026-11-15T08:00:00Z, or 2h for two hours ago.
    #[arg(long, value_name = "TIME", value_parser = past_time)]
    to: Option<Timestamp>,
    /// The distance of the points; windows of five minutes are kept for 48 hours.
    #[arg(long, value_enum, conflicts_with = "types", default_value = "1h")]
    step: FigureStep,
    /// By event type over the whole time, the busiest first.
    #[arg(long, conflicts_with = "endpoint")]
    types: bool,
}

/// What the API is asked for.
#[derive(Serialize)]
struct FiguresQuery {
    from: Option<Timestamp>,
    to: Option<Timestamp>,
    step: FigureStep,
}

const COLUMNS: &[Column] = &[
    ("from", |row, now| output::instant_cell(row, "at", now)),
    ("accepted", |row, _| text_cell(row, "accepted")),
    ("attempts", |row, _| attempt_count(row).to_string()),
    ("failed", |row, _| failed_count(row).to_string()),
    ("delivered", |row, _| text_cell(&row["ended"], "delivered")),
    ("dead", |row, _| sum_counts(&row["ended"]["dead"]).to_string()),
    ("cancelled", |row, _| text_cell(&row["ended"], "cancelled")),
    ("mean answer", |row, _| mean_latency(row)),
    ("waiting", |row, _| text_cell(row, "waiting")),
    ("oldest due", |row, _| render_seconds(&row["oldest_due_age_s"])),
    ("held", |row, _| held_cell(row)),
];

const TYPE_COLUMNS: &[Column] = &[
    ("event type", |row, _| text_cell(row, "type")),
    ("attempts", |row, _| text_cell(row, "attempts")),
    ("delivered", |row, _| text_cell(row, "delivered")),
    ("dead", |row, _| text_cell(row, "dead")),
];

/// Gets the figures and prints them, with their sum and what may be missing.
pub async fn run(args: FiguresArgs) -> anyhow::Result<()> {
    check_order("--from", args.from, "--to", args.to)?;
    let mut client = args.access.client().await?;
    let body = args.fetch(&mut client).await?;
    match client.format {
        OutputFormat::Json => output::print(&output::format_json(&body)),
        OutputFormat::Table => {
            let (figures, now, screen) = (output::parse(&body)?, SystemClock.wall(), Screen::of_stdout());
            let shown = if args.types { by_type(&figures, now, screen) } else { by_time(&figures, now, screen) };
            output::print(&shown)
        }
    }
}

impl FiguresArgs {
    async fn fetch(&self, client: &mut Client) -> anyhow::Result<String> {
        if let Some(endpoint) = &self.endpoint {
            // It turns to the tenant that has the endpoint, if none was named.
            find::get_of_tenant(client, "endpoint", &["endpoints", endpoint]).await?;
        }
        let path: &[&str] = match (&self.endpoint, self.types) {
            (Some(endpoint), _) => &["endpoints", endpoint, "figures"],
            (None, true) => &["figures", "types"],
            (None, false) => &["figures"],
        };
        let mut url = if self.all { client.url(path)? } else { client.tenant_url(path)? };
        ask_filter(&mut url, &FiguresQuery { from: self.from, to: self.to, step: self.step });
        client.get(url).await
    }
}

/// Renders a row for each point at which something was counted.
fn by_time(figures: &Value, now: Timestamp, screen: Screen) -> String {
    let points = output::items(figures);
    let total = |count: fn(&Value) -> u64| points.iter().map(count).sum::<u64>();
    let sums = format!(
        "{} accepted, {} attempts, {} of them failed, {} delivered, {} dead",
        total(|point| point["accepted"].as_u64().unwrap_or(0)),
        total(attempt_count),
        total(failed_count),
        total(|point| point["ended"]["delivered"].as_u64().unwrap_or(0)),
        total(|point| sum_counts(&point["ended"]["dead"])),
    );
    let rows = if points.is_empty() {
        "nothing was counted".to_owned()
    } else {
        output::table(points, COLUMNS, now).render(screen)
    };
    let sentence = format!("From {} to {}: {sums}.", text_cell(figures, "from"), text_cell(figures, "to"));
    [vec![rows, screen.break_lines(&sentence)], missing_sentences(figures, screen)].concat().join("\n")
}

fn by_type(figures: &Value, now: Timestamp, screen: Screen) -> String {
    let types = output::items(figures);
    let rows = if types.is_empty() {
        "nothing was counted".to_owned()
    } else {
        output::table(types, TYPE_COLUMNS, now).render(screen)
    };
    let mut lines = vec![rows];
    let other = &figures["other"];
    if other["attempts"].as_u64().is_some_and(|attempts| attempts > 0) {
        let (attempts, delivered, dead) =
            (text_cell(other, "attempts"), text_cell(other, "delivered"), text_cell(other, "dead"));
        lines
            .push(screen.break_lines(&format!("All others: {attempts} attempts, {delivered} delivered, {dead} dead.")));
    }
    [lines, missing_sentences(figures, screen)].concat().join("\n")
}

/// Says up to when the figures are complete, and what is missing before that.
fn missing_sentences(figures: &Value, screen: Screen) -> Vec<String> {
    let complete = match figures["complete_until"].as_str() {
        Some(until) => format!("Complete until {}.", output::escape_control_characters(until)),
        None => "Nothing is written yet.".to_owned(),
    };
    let gaps = figures["gaps"].as_array().into_iter().flatten();
    let gap = |gap: &Value| {
        let (from, to) = (text_cell(gap, "from"), text_cell(gap, "to"));
        screen.break_lines(&format!(
            "Figures may be missing from {from} to {to}: a process ended or could not write them."
        ))
    };
    std::iter::once(complete).chain(gaps.map(gap)).collect()
}

fn sum_counts(counts: &Value) -> u64 {
    counts.as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum()
}

fn attempt_count(point: &Value) -> u64 {
    sum_counts(&point["attempts"]["by_verdict"])
}

fn failed_count(point: &Value) -> u64 {
    attempt_count(point).saturating_sub(point["attempts"]["by_verdict"]["delivered"].as_u64().unwrap_or(0))
}

/// Renders how long an attempt took on average.
fn mean_latency(point: &Value) -> String {
    let buckets = point["latency_ms"]["n"].as_array().into_iter().flatten();
    let count: u64 = buckets.filter_map(Value::as_u64).sum();
    match (point["latency_ms"]["sum"].as_f64(), count) {
        (_, 0) | (None, _) => "-".to_owned(),
        (Some(sum), count) => format!("{:.0} ms", sum / count as f64),
    }
}

fn render_seconds(value: &Value) -> String {
    value.as_f64().map_or("-".to_owned(), |seconds| render_length(seconds.round() as u64))
}

/// Renders what held deliveries back longest, and for how long.
fn held_cell(point: &Value) -> String {
    let held = point["held_s"].as_object().into_iter().flatten();
    let longest = held.filter_map(|(by, seconds)| Some((by, seconds.as_f64()?))).max_by(|a, b| a.1.total_cmp(&b.1));
    match longest.filter(|(_, seconds)| *seconds >= 1.0) {
        Some((by, seconds)) => {
            format!("{} ({})", render_length(seconds.round() as u64), output::escape_control_characters(by))
        }
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn figures_are_shown_with_their_sum_and_what_is_missing() {
        let now = "2026-11-17T12:00:00Z".parse().unwrap();
        let figures = json!({
            "from": "2026-11-17T10:00:00Z", "to": "2026-11-17T12:00:00Z", "step": "1h",
            "complete_until": "2026-11-17T11:55:00Z",
            "gaps": [{"from": "2026-11-17T10:05:00Z", "to": "2026-11-17T10:15:00Z"}],
            "data": [{
                "at": "2026-11-17T10:00:00Z", "accepted": 5,
                "attempts": {"by_verdict": {"delivered": 3, "retry": 4, "refused": 1, "gone": 0}, "by_result": {}},
                "ended": {"delivered": 3, "cancelled": 0, "dead": {"refused": 1, "exhausted": 1}},
                "latency_ms": {"le": [10.0], "n": [4, 4], "sum": 96.0},
                "waiting": 7, "oldest_due_age_s": 75.0,
                "held_s": {"breaker": 190.0, "pause": 0.0, "backpressure": 2.0, "rate": 0.0},
            }],
        });
        insta::assert_snapshot!(by_time(&figures, now, Screen::PLAIN), @r"
        FROM                           ACCEPTED  ATTEMPTS  FAILED  DELIVERED  DEAD  CANCELLED  MEAN ANSWER  WAITING  OLDEST DUE  HELD
        2026-11-17T10:00:00Z (2h ago)  5         8         5       3          2     0          12 ms        7        1m 15s      3m 10s (breaker)
        From 2026-11-17T10:00:00Z to 2026-11-17T12:00:00Z: 5 accepted, 8 attempts, 5 of them failed, 3 delivered, 2 dead.
        Complete until 2026-11-17T11:55:00Z.
        Figures may be missing from 2026-11-17T10:05:00Z to 2026-11-17T10:15:00Z: a process ended or could not write them.
        ");
        let none = json!({"from": "a", "to": "b", "complete_until": null, "gaps": [], "data": []});
        assert!(by_time(&none, now, Screen::PLAIN).starts_with("nothing was counted\n"));
    }

    #[test]
    fn types_are_shown_with_what_is_left_of_them() {
        let figures = json!({
            "complete_until": null,
            "data": [{"type": "order.paid", "attempts": 9, "delivered": 8, "dead": 1}],
            "other": {"attempts": 2, "delivered": 1, "dead": 0},
        });
        insta::assert_snapshot!(by_type(&figures, Timestamp::UNIX_EPOCH, Screen::PLAIN), @r"
        EVENT TYPE  ATTEMPTS  DELIVERED  DEAD
        order.paid  9         8          1
        All others: 2 attempts, 1 delivered, 0 dead.
        Nothing is written yet.
        ");
    }
}
