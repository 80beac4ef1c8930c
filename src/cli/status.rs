//! `posthaste status`: the health table and what needs attention, on one screen.

use std::io::IsTerminal;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::client::{Client, ClientArgs};
use super::find;
use super::output::{self, OutputFormat, clean, length, relative_time, text};
use super::screen::{Screen, Tone};
use super::table::Table;
use crate::clock::{Clock, SystemClock};
use crate::model::span::Span;

/// Most results and endpoints that are named.
const FAILURES_SHOWN: usize = 5;
/// Moves the cursor to the first line and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// How to show how the gateway is doing.
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    #[command(flatten)]
    access: ClientArgs,
    /// That of this endpoint alone.
    #[arg(long, value_name = "ID")]
    endpoint: Option<String>,
    /// Show it again and again, until it is interrupted.
    #[arg(long)]
    watch: bool,
    /// How often with --watch.
    #[arg(long, value_name = "SPAN", default_value = "5s")]
    every: Span,
    /// At most so many things that need attention.
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
}

/// Gets the health table and what needs attention, of the endpoint or the tenant that
/// was named or of everything, and prints both.
pub async fn run(args: StatusArgs) -> anyhow::Result<()> {
    let mut client = args.access.client().await?;
    if let Some(endpoint) = &args.endpoint {
        // It turns to the tenant that has the endpoint, if none was named.
        find::get(&mut client, "endpoint", &["endpoints", endpoint]).await?;
        client.is_tenant_named = true;
    }
    loop {
        let (table, attention) = ask(&mut client, args.endpoint.as_deref()).await?;
        match client.format {
            OutputFormat::Json => {
                let both = json!({"health_table": table, "attention": attention});
                output::print(&output::pretty(&both.to_string()))?;
            }
            OutputFormat::Table => {
                let (screen, now) = (Screen::of_stdout(), SystemClock.wall());
                let clear = if args.watch && std::io::stdout().is_terminal() { CLEAR } else { "" };
                output::print(&format!("{clear}{}", render(&table, &attention, args.limit, now, screen)))?;
            }
        }
        if !args.watch {
            return Ok(());
        }
        tokio::time::sleep(args.every.0.max(Duration::from_secs(1))).await;
    }
}

/// Gets the health table and what needs attention.
async fn ask(client: &mut Client, endpoint: Option<&str>) -> anyhow::Result<(Value, Value)> {
    let url = |client: &Client, path: &[&str]| {
        if client.is_tenant_named { client.tenant_url(path) } else { client.url(path) }
    };
    let table = match endpoint {
        Some(endpoint) => url(client, &["endpoints", endpoint, "health-table"])?,
        None => url(client, &["health-table"])?,
    };
    let table = output::parse(&client.get(table).await?)?;
    let mut attention = output::parse(&client.get(url(client, &["attention"])?).await?)?;
    if let Some(endpoint) = endpoint {
        let own = output::items(&attention).iter().filter(|item| item["endpoint"] == endpoint);
        attention["data"] = own.cloned().collect();
    }
    Ok((table, attention))
}

/// Renders the table, the goal, and what needs attention.
fn render(table: &Value, attention: &Value, limit: usize, now: Timestamp, screen: Screen) -> String {
    let rows: Vec<Vec<String>> = table["rows"].as_array().into_iter().flatten().map(row).collect();
    let titles = ["figure", "value", "healthy", "alert", "health", "of"];
    let mut parts = vec![Table::new(&titles, rows).render(screen), screen.fit(&goal(&table["slo"]))];
    if let Some(at) = table["at"].as_str().and_then(|at| at.parse().ok()) {
        parts[1].push_str(&format!(
            "\n{}",
            screen.fit(&format!("Rates are of the hour up to {}.", relative_time(at, now)))
        ));
    }
    parts.extend(failures(table).map(|text| screen.fit(&text)));
    parts.push(attention_text(attention, limit, now, screen));
    parts.join("\n\n")
}

/// Renders what attempts failed with most, and where; nothing if none failed.
fn failures(table: &Value) -> Option<String> {
    let listed = |field: &str, name: fn(&Value) -> String| -> Vec<String> {
        let found = table[field].as_array().into_iter().flatten().take(FAILURES_SHOWN);
        found.map(name).collect()
    };
    let results = listed("top_failures", |one| format!("{} ({})", text(one, "result"), text(one, "attempts")));
    let endpoints = listed("top_endpoints", |one| {
        format!("{} of {} ({})", text(one, "endpoint"), text(one, "tenant"), text(one, "failed_attempts"))
    });
    let sentence = |start: &str, found: Vec<String>| {
        if found.is_empty() { String::new() } else { format!("{start} {}.", clean(&found.join(", "))) }
    };
    let both = [sentence("Attempts failed most with", results), sentence("They failed most at", endpoints)];
    let text = both.join(" ").trim().to_owned();
    (!text.is_empty()).then_some(text)
}

fn row(row: &Value) -> Vec<String> {
    let threshold = |field: &str| row[field].as_f64().map_or("-".to_owned(), |value| shown(value, &row["unit"]));
    let bounds = match (row["healthy"].as_f64(), row["alert"].as_f64()) {
        (Some(healthy), Some(alert)) if healthy > alert => ("≥ ", "< "),
        (Some(_), Some(_)) => ("≤ ", "> "),
        _ => ("", ""),
    };
    vec![
        clean(&text(row, "name").replace('_', " ")),
        threshold("value"),
        format!("{}{}", bounds.0, threshold("healthy")),
        format!("{}{}", bounds.1, threshold("alert")),
        text(row, "state"),
        text(row, "n"),
    ]
}

/// Renders a value in its unit.
fn shown(value: f64, unit: &Value) -> String {
    match unit.as_str() {
        Some("ratio") => format!("{} %", trimmed(value * 100.0)),
        Some("seconds") if value >= 10.0 => length(value as u64),
        Some("seconds") => format!("{}s", trimmed(value)),
        _ => trimmed(value),
    }
}

/// Renders a number with at most two digits behind the point.
fn trimmed(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn goal(slo: &Value) -> String {
    let target = shown(slo["target"].as_f64().unwrap_or_default(), &json!("ratio"));
    let burn = |field: &str| slo[field].as_f64().map_or("-".to_owned(), trimmed);
    format!(
        "Goal: {target} delivered within {}. In the last hour {} of {} were; burn {} in 5m, {} in 1h, {} in 6h (1 is what the goal allows).",
        text(slo, "within"),
        text(slo, "good"),
        text(slo, "total"),
        burn("burn_5m"),
        burn("burn_1h"),
        burn("burn_6h"),
    )
}

fn attention_text(attention: &Value, limit: usize, now: Timestamp, screen: Screen) -> String {
    let items = output::items(attention);
    let mut parts = Vec::new();
    if items.is_empty() {
        parts.push(screen.paint(Some(Tone::Good), "Nothing needs attention."));
    }
    parts.extend(items.iter().take(limit).map(|item| item_text(item, now, screen)));
    if items.len() > limit {
        parts.push(format!("{} more; --limit shows them.", items.len() - limit));
    }
    let unanswered: Vec<String> =
        attention["unanswered_nodes"].as_array().into_iter().flatten().filter_map(Value::as_str).map(clean).collect();
    if !unanswered.is_empty() {
        parts.push(
            screen.fit(&format!("Not heard in time, so that something may be missing: {}.", unanswered.join(", "))),
        );
    }
    parts.join("\n")
}

/// Renders one thing that needs attention: what and where, why, and what to do.
fn item_text(item: &Value, now: Timestamp, screen: Screen) -> String {
    let is_critical = item["severity"] == "critical";
    let tone = if is_critical { Tone::Bad } else { Tone::Watch };
    let mut head = screen.paint(Some(tone), &text(item, "kind").replace('_', " "));
    for field in ["tenant", "endpoint"] {
        if let Some(id) = item[field].as_str() {
            head.push_str(&format!(" {}", clean(id)));
        }
    }
    let time = |field: &str| item[field].as_str().and_then(|at| at.parse::<Timestamp>().ok());
    let mut reason = text(item, "reason");
    if let Some(since) = time("since") {
        reason.push_str(&format!(" (since {})", relative_time(since, now)));
    }
    if let Some(waiting) = item["waiting"].as_u64().filter(|waiting| *waiting > 0) {
        reason.push_str(&format!("; {waiting} wait"));
    }
    if let Some(next) = time("next_at").filter(|next| *next > now) {
        reason.push_str(&format!("; next {}", relative_time(next, now)));
    }
    format!("{head}: {}\n  {}", screen.fit(&reason), text(item, "command"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_screen_has_the_figures_the_goal_and_what_to_do() {
        let now: Timestamp = "2026-11-17T12:00:00Z".parse().unwrap();
        let table = json!({
            "at": "2026-11-17T11:55:00Z",
            "rows": [
                {"name": "success_rate", "value": 0.9812, "unit": "ratio", "healthy": 0.99, "alert": 0.95, "state": "watch", "n": 5000},
                {"name": "oldest_due", "value": 75.0, "unit": "seconds", "healthy": 10.0, "alert": 60.0, "state": "alert", "n": null},
                {"name": "backlog", "value": 12.0, "unit": "count", "healthy": null, "alert": null, "state": "ok", "n": null},
                {"name": "second_attempt_success", "value": null, "unit": "ratio", "healthy": 0.8, "alert": 0.6, "state": "unknown", "n": 0},
            ],
            "slo": {"target": 0.999, "within": "10m", "good": 4990, "total": 5000, "burn_5m": null, "burn_1h": 2.0, "burn_6h": 0.5},
            "top_failures": [{"result": "503", "attempts": 90}, {"result": "timeout", "attempts": 4}],
            "top_endpoints": [{"tenant": "acme", "endpoint": "ep_1", "failed_attempts": 94}],
        });
        let attention = json!({
            "data": [
                {"kind": "breaker_open", "severity": "critical", "tenant": "acme", "endpoint": "ep_1", "since": "2026-11-17T10:00:00Z",
                 "reason": "5 failures in a row", "waiting": 40, "oldest_due_age_s": null, "next_at": "2026-11-17T12:05:00Z",
                 "command": "posthaste endpoints history ep_1 --tenant acme"},
                {"kind": "disk_low", "severity": "warning", "tenant": null, "endpoint": null, "since": null, "reason": "1GiB are free",
                 "waiting": null, "oldest_due_age_s": null, "next_at": null, "command": "posthaste config"},
            ],
            "unanswered_nodes": ["b:18"],
        });
        let text = render(&table, &attention, 1, now, Screen::PLAIN);
        for line in [
            "success rate            98.12 %  ≥ 99 %   < 95 %  watch    5000",
            "Attempts failed most with 503 (90), timeout (4). They failed most at ep_1 of acme (94).",
            "oldest due              1m 15s   ≤ 10s    > 1m    alert    -",
            "second attempt success  -        ≥ 80 %   < 60 %  unknown  0",
            "Goal: 99.9 % delivered within 10m. In the last hour 4990 of 5000 were; burn - in 5m, 2 in 1h, 0.5 in 6h (1 is what the goal allows).",
            "Rates are of the hour up to 5m ago.",
            "breaker open acme ep_1: 5 failures in a row (since 2h ago); 40 wait; next in 5m",
            "  posthaste endpoints history ep_1 --tenant acme",
            "1 more; --limit shows them.",
            "Not heard in time, so that something may be missing: b:18.",
        ] {
            assert!(text.contains(line), "{line}\nis not in\n{text}");
        }
        let well = render(&table, &json!({"data": [], "unanswered_nodes": []}), 20, now, Screen::PLAIN);
        assert!(well.ends_with("Nothing needs attention."), "{well}");
    }
}
