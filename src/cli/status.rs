//! `posthaste status`: the health table and what needs attention, on one screen.

use std::io::IsTerminal;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::advice;
use super::client::{Client, ClientArgs};
use super::find;
use super::output::{self, OutputFormat, escape_control_characters, relative_time, render_length, text_cell};
use super::screen::{Screen, Tone};
use super::table::Table;
use crate::clock::{Clock, SystemClock};
use crate::model::span::Span;
use crate::model::suggested_command::quote;

/// Most results, endpoints and types that are named.
const FAILURES_SHOWN: usize = 5;
/// Moves the cursor to the first line and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// How to show how the gateway is doing.
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    #[command(flatten)]
    access: ClientArgs,
    /// Only the status of this endpoint.
    #[arg(long, value_name = "ID")]
    endpoint: Option<String>,
    /// Show it again and again, until it is interrupted.
    #[arg(long)]
    watch: bool,
    /// How often with --watch.
    #[arg(long, value_name = "SPAN", default_value = "5s")]
    every: Span,
    /// At most so many things that need attention; as many as fit on the screen, if left out.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
}

/// Most things that need attention, where neither an option nor a screen says how many.
const ITEMS_SHOWN: usize = 20;

/// How much of what needs attention is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ItemsShown {
    /// At most this many things.
    Items(usize),
    /// As many things as fit, while the whole output takes at most this many lines.
    Lines(usize),
}

impl StatusArgs {
    fn items_shown(&self) -> ItemsShown {
        let lines = Screen::lines_of_stdout().map(|lines| ItemsShown::Lines(lines.saturating_sub(1)));
        self.limit.map(ItemsShown::Items).or(lines).unwrap_or(ItemsShown::Items(ITEMS_SHOWN))
    }

    /// Returns the command that shows the same once, with this limit on the things that need attention.
    fn command(&self, client: &Client, limit: usize) -> String {
        let tenant =
            if client.is_tenant_named { format!(" --tenant {}", quote(&client.tenant)) } else { String::new() };
        let endpoint = self.endpoint.as_ref().map(|id| format!(" --endpoint {}", quote(id))).unwrap_or_default();
        advice::complete_commands(&format!("`posthaste status --limit {limit}{endpoint}{tenant}`"))
    }
}

/// Gets the health table and what needs attention, of the endpoint or the tenant that
/// was named or of everything, and prints both.
pub async fn run(args: StatusArgs) -> anyhow::Result<()> {
    let mut client = args.access.client().await?;
    if let Some(endpoint) = &args.endpoint {
        // It turns to the tenant that has the endpoint, if none was named.
        find::get_of_tenant(&mut client, "endpoint", &["endpoints", endpoint]).await?;
        client.is_tenant_named = true;
    }
    loop {
        let (table, attention) = fetch_health(&mut client, args.endpoint.as_deref()).await?;
        match client.format {
            OutputFormat::Json => {
                let both = json!({"health_table": table, "attention": attention});
                output::print(&output::format_json(&both.to_string()))?;
            }
            OutputFormat::Table => {
                let (screen, now) = (Screen::of_stdout(), SystemClock.wall());
                let clear = if args.watch && std::io::stdout().is_terminal() { CLEAR } else { "" };
                let all = args.command(&client, output::items(&attention).len());
                let shown = (args.items_shown(), all.as_str());
                output::print(&format!("{clear}{}", render(&table, &attention, shown, now, screen)))?;
            }
        }
        if !args.watch {
            return Ok(());
        }
        tokio::time::sleep(args.every.0.max(Duration::from_secs(1))).await;
    }
}

/// Gets the health table and what needs attention.
async fn fetch_health(client: &mut Client, endpoint: Option<&str>) -> anyhow::Result<(Value, Value)> {
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
        attention["more"] = json!(0);
    }
    Ok((table, attention))
}

/// Renders the table, the goal, and what needs attention: how much of it, and which
/// command shows all.
fn render(
    table: &Value,
    attention: &Value,
    (shown, all): (ItemsShown, &str),
    now: Timestamp,
    screen: Screen,
) -> String {
    let shown = match shown {
        ItemsShown::Items(_) => shown,
        // Between both is a blank line.
        ItemsShown::Lines(lines) => {
            let plain = Screen { has_colour: false, ..screen };
            ItemsShown::Lines(lines.saturating_sub(screen.lines_of(&table_text(table, now, plain)) + 1))
        }
    };
    let attention = attention_text(attention, (shown, all), now, screen);
    format!("{}\n\n{attention}", table_text(table, now, screen))
}

/// Renders the table, the goal, and where attempts failed.
fn table_text(table: &Value, now: Timestamp, screen: Screen) -> String {
    let rows: Vec<Vec<String>> = table["rows"].as_array().into_iter().flatten().map(row_cells).collect();
    let titles = ["figure", "value", "healthy", "alert", "health", "of"];
    let mut parts = vec![Table::new(&titles, rows).render(screen), screen.break_lines(&render_goal(&table["slo"]))];
    if let Some(at) = table["at"].as_str().and_then(|at| at.parse().ok()) {
        parts[1].push_str(&format!(
            "\n{}",
            screen.break_lines(&format!(
                "Rates are of the hour up to {}, and of what is known since.",
                relative_time(at, now)
            ))
        ));
    }
    parts.extend(render_failures(table).into_iter().chain(render_types(table)).map(|text| screen.break_lines(&text)));
    parts.join("\n\n")
}

/// Renders what attempts failed with most, and where; nothing if none failed.
fn render_failures(table: &Value) -> Option<String> {
    let listed = |field: &str, name: fn(&Value) -> String| -> Vec<String> {
        let found = table[field].as_array().into_iter().flatten().take(FAILURES_SHOWN);
        found.map(name).collect()
    };
    let results =
        listed("top_failures", |one| format!("{} ({})", text_cell(one, "result"), text_cell(one, "attempts")));
    let endpoints = listed("top_endpoints", |one| {
        format!(
            "{} of {} ({})",
            text_cell(one, "endpoint"),
            text_cell(one, "tenant"),
            text_cell(one, "failed_attempts")
        )
    });
    let sentence = |start: &str, found: Vec<String>| {
        if found.is_empty() {
            String::new()
        } else {
            format!("{start} {}.", escape_control_characters(&found.join(", ")))
        }
    };
    let both = [sentence("Attempts failed most with", results), sentence("They failed most at", endpoints)];
    let text = both.join(" ").trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// Renders which part of the deliveries of the busiest types was delivered; nothing if
/// none was finished.
fn render_types(table: &Value) -> Option<String> {
    let finished = table["top_types"].as_array()?.iter().filter_map(|one| {
        let rate = render_value(one["success_rate"].as_f64()?, &json!("ratio"));
        Some(format!("{} {rate} of {}", text_cell(one, "type"), one["delivered"].as_u64()? + one["dead"].as_u64()?))
    });
    let found: Vec<String> = finished.take(FAILURES_SHOWN).collect();
    (!found.is_empty())
        .then(|| format!("Delivered of the busiest types: {}.", escape_control_characters(&found.join(", "))))
}

fn row_cells(row: &Value) -> Vec<String> {
    let threshold = |field: &str| row[field].as_f64().map_or("-".to_owned(), |value| render_value(value, &row["unit"]));
    let bounds = match (row["healthy"].as_f64(), row["alert"].as_f64()) {
        (Some(healthy), Some(alert)) if healthy > alert => ("≥ ", "< "),
        (Some(_), Some(_)) => ("≤ ", "> "),
        _ => ("", ""),
    };
    vec![
        escape_control_characters(&text_cell(row, "name").replace('_', " ")),
        threshold("value"),
        format!("{}{}", bounds.0, threshold("healthy")),
        format!("{}{}", bounds.1, threshold("alert")),
        text_cell(row, "state"),
        text_cell(row, "n"),
    ]
}

/// Renders a value in its unit.
fn render_value(value: f64, unit: &Value) -> String {
    match unit.as_str() {
        Some("ratio") => format!("{} %", format_two_decimals(value * 100.0)),
        Some("seconds") if value >= 10.0 => render_length(value as u64),
        Some("seconds") => format!("{}s", format_two_decimals(value)),
        _ => format_two_decimals(value),
    }
}

/// Renders a number with at most two digits behind the point.
fn format_two_decimals(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn render_goal(slo: &Value) -> String {
    let target = render_value(slo["target"].as_f64().unwrap_or_default(), &json!("ratio"));
    let burn = |field: &str| slo[field].as_f64().map_or("-".to_owned(), format_two_decimals);
    format!(
        "Goal: {target} delivered within {}. In the last hour {} of {} were; burn {} in 5m, {} in 1h, {} in 6h (1 is what the goal allows).",
        text_cell(slo, "within"),
        text_cell(slo, "good"),
        text_cell(slo, "total"),
        burn("burn_5m"),
        burn("burn_1h"),
        burn("burn_6h"),
    )
}

fn attention_text(attention: &Value, (shown, all): (ItemsShown, &str), now: Timestamp, screen: Screen) -> String {
    let items = output::items(attention);
    let mut parts = Vec::new();
    if items.is_empty() {
        parts.push(screen.paint(Some(Tone::Good), "Nothing needs attention."));
    }
    let unanswered: Vec<String> = attention["unanswered_nodes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(escape_control_characters)
        .collect();
    let unanswered = (!unanswered.is_empty())
        .then(|| format!("Not heard in time, so that something may be missing: {}.", unanswered.join(", ")));
    let untold = attention["more"].as_u64().filter(|more| *more > 0);
    let untold = untold.map(|more| {
        format!("{more} more are not told one by one: `posthaste dead-letters groups` has those of every endpoint.")
    });
    let notes: Vec<String> = untold.into_iter().chain(unanswered).map(|note| screen.break_lines(&note)).collect();
    let more = |left: usize| screen.break_lines(&format!("{left} more: {all} shows them."));
    let limit = match shown {
        ItemsShown::Items(limit) => limit,
        ItemsShown::Lines(lines) => {
            let below: usize = notes.iter().map(|note| screen.lines_of(note)).sum();
            let plain = Screen { has_colour: false, ..screen };
            let sizes = items.iter().map(|item| screen.lines_of(&item_text(item, now, plain)));
            count_fitting(sizes.collect(), lines.saturating_sub(below), screen.lines_of(&more(items.len())))
        }
    };
    parts.extend(items.iter().take(limit).map(|item| item_text(item, now, screen)));
    if items.len() > limit {
        parts.push(more(items.len() - limit));
    }
    parts.extend(notes);
    parts.join("\n")
}

/// Returns how many things of these sizes fit into this number of lines, at least one. If
/// not all fit, the line about the others must fit as well.
fn count_fitting(sizes: Vec<usize>, lines: usize, line_about_more: usize) -> usize {
    if sizes.iter().sum::<usize>() <= lines {
        return sizes.len();
    }
    let mut used = line_about_more;
    let fits = |size: &&usize| {
        used += **size;
        used <= lines
    };
    sizes.iter().take_while(fits).count().max(1)
}

/// Renders one thing that needs attention: what and where, why, and what to do.
fn item_text(item: &Value, now: Timestamp, screen: Screen) -> String {
    let is_critical = item["severity"] == "critical";
    let tone = if is_critical { Tone::Bad } else { Tone::Watch };
    let mut head = screen.paint(Some(tone), &text_cell(item, "kind").replace('_', " "));
    for field in ["tenant", "endpoint"] {
        if let Some(id) = item[field].as_str() {
            head.push_str(&format!(" {}", escape_control_characters(id)));
        }
    }
    let time = |field: &str| item[field].as_str().and_then(|at| at.parse::<Timestamp>().ok());
    let mut reason = text_cell(item, "reason");
    if let Some(since) = time("since") {
        reason.push_str(&format!(" (since {})", relative_time(since, now)));
    }
    if let Some(waiting) = item["waiting"].as_u64().filter(|waiting| *waiting > 0) {
        reason.push_str(&format!("; {waiting} wait"));
    }
    if let Some(next) = time("next_at").filter(|next| *next > now) {
        reason.push_str(&format!("; next {}", relative_time(next, now)));
    }
    format!("{head}: {}\n  {}", screen.break_lines(&reason), text_cell(item, "command"))
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
            "top_types": [{"type": "invoice.paid", "attempts": 5090, "delivered": 4910, "dead": 90, "success_rate": 0.982},
                          {"type": "invoice.sent", "attempts": 3, "delivered": 0, "dead": 0, "success_rate": null}],
        });
        let attention = json!({
            "data": [
                {"kind": "breaker_open", "severity": "critical", "tenant": "acme", "endpoint": "ep_1", "since": "2026-11-17T10:00:00Z",
                 "reason": "5 failures in a row", "waiting": 40, "oldest_due_age_s": null, "next_at": "2026-11-17T12:05:00Z",
                 "command": "posthaste endpoints history ep_1 --tenant acme"},
                {"kind": "disk_low", "severity": "warning", "tenant": null, "endpoint": null, "since": null, "reason": "1GiB are free",
                 "waiting": null, "oldest_due_age_s": null, "next_at": null, "command": "posthaste config"},
            ],
            "more": 7,
            "unanswered_nodes": ["b:18"],
        });
        let all = "`posthaste status --limit 2`";
        let text = render(&table, &attention, (ItemsShown::Items(1), all), now, Screen::PLAIN);
        for line in [
            "success rate            98.12 %  ≥ 99 %   < 95 %  watch    5000",
            "Attempts failed most with 503 (90), timeout (4). They failed most at ep_1 of acme (94).",
            "Delivered of the busiest types: invoice.paid 98.2 % of 5000.",
            "oldest due              1m 15s   ≤ 10s    > 1m    alert    -",
            "second attempt success  -        ≥ 80 %   < 60 %  unknown  0",
            "Goal: 99.9 % delivered within 10m. In the last hour 4990 of 5000 were; burn - in 5m, 2 in 1h, 0.5 in 6h (1 is what the goal allows).",
            "Rates are of the hour up to 5m ago, and of what is known since.",
            "breaker open acme ep_1: 5 failures in a row (since 2h ago); 40 wait; next in 5m",
            "  posthaste endpoints history ep_1 --tenant acme",
            "1 more: `posthaste status --limit 2` shows them.",
            "7 more are not told one by one: `posthaste dead-letters groups` has those of every endpoint.",
            "Not heard in time, so that something may be missing: b:18.",
        ] {
            assert!(text.contains(line), "{line}\nis not in\n{text}");
        }
        let nothing = json!({"data": [], "unanswered_nodes": []});
        let well = render(&table, &nothing, (ItemsShown::Items(20), all), now, Screen::PLAIN);
        assert!(well.ends_with("Nothing needs attention."), "{well}");
    }

    #[test]
    fn what_needs_attention_ends_where_the_screen_does() {
        let now: Timestamp = "2026-11-17T12:00:00Z".parse().unwrap();
        let table = json!({"rows": [], "slo": {"target": 0.999, "within": "10m", "good": 1, "total": 1}});
        let item = |n: usize| {
            json!({"kind": "dead_growing", "severity": "warning", "tenant": "acme", "endpoint": format!("ep_{n}"),
                "reason": "9 dead letters since 2026-11-16 are neither replayed nor discarded; the last died 7h ago",
                "command": format!("posthaste dead-letters replay --endpoint ep_{n} --dry-run --tenant acme")})
        };
        let items = |count: usize| json!({"data": (0..count).map(item).collect::<Vec<_>>(), "unanswered_nodes": ["b"]});
        let all = "`posthaste status --limit 60`";
        for has_colour in [false, true] {
            let screen = Screen { width: Some(60), has_colour };
            for lines in [24, 40, 200] {
                let text = render(&table, &items(60), (ItemsShown::Lines(lines), all), now, screen);
                let plain = text.replace("\x1b[33m", "").replace("\x1b[0m", "");
                let shown = plain.matches("dead growing").count();
                assert!(screen.lines_of(&plain) <= lines && shown >= 2, "{lines}: {plain}");
                assert!(plain.contains(&format!("{} more: {all} shows them.", 60 - shown)), "{plain}");
                assert!(lines - screen.lines_of(&plain) < 6, "another one would have fitted: {plain}");
            }
        }
        let screen = Screen { width: Some(60), has_colour: false };
        let text = render(&table, &items(3), (ItemsShown::Lines(40), all), now, screen);
        assert!(text.contains("ep_2") && !text.contains(" more"), "{text}");
        let text = render(&table, &items(60), (ItemsShown::Lines(2), all), now, screen);
        assert!(text.contains("ep_0") && text.contains("59 more"), "the worst is shown on any screen: {text}");
    }
}
