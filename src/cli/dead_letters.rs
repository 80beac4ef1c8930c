//! `posthaste dead-letters`: lists, shows, replays and discards dead letters.

use std::fmt::Write;

use clap::Subcommand;
use jiff::Timestamp;
use serde_json::Value;

use super::advice;
use super::client::{Client, ClientArgs};
use super::deliveries::{self, answer_cell};
use super::explain;
use super::failure::{CommandFailure, ExitReason};
use super::find;
use super::jobs::{JobChoice, JobRunArgs, NewJobArgs};
use super::output::{self, Column, OutputFormat, escape_control_characters, text_cell};
use super::request::{PageArgs, add_filters, as_past_time, ask_filter, check_order, past_time};
use super::screen::Screen;
use super::table::Table;
use crate::model::dead_letter_group::{GroupField, GroupFilter};
use crate::model::delivery::{DeadCause, DeliveryState};
use crate::model::delivery_filter::DeliveryFilter;
use crate::model::job::{JobFilter, JobKind};
use crate::model::named_enum::{NamedEnum, parser};

/// What to do with dead letters.
#[derive(Debug, clap::Args)]
pub struct DeadLettersArgs {
    #[command(flatten)]
    access: ClientArgs,
    #[command(subcommand)]
    action: DeadLettersAction,
}

#[derive(Debug, Subcommand)]
enum DeadLettersAction {
    /// List dead letters, newest first; --since and --until mean when they died, the latest first.
    List(Box<DeadLettersList>),
    /// Count them in groups, the largest first.
    Groups(Box<DeadLettersGroups>),
    /// Show why one died, with its attempts.
    Get {
        /// The delivery's id.
        id: String,
    },
    /// Deliver one again, or all that match; their lanes follow in order.
    Replay(Box<DeadLettersChange>),
    /// Discard one, or all that match; their lanes move on.
    Discard(Box<DeadLettersChange>),
}

#[derive(Debug, clap::Args)]
struct DeadLettersChange {
    /// The delivery's id; without it, those that match the options.
    #[arg(conflicts_with_all = ["NewJobArgs", "DeadJobArgs", "JobRunArgs"])]
    id: Option<String>,
    #[command(flatten)]
    many: NewJobArgs,
    #[command(flatten)]
    dead: DeadJobArgs,
    #[command(flatten)]
    run: JobRunArgs,
}

/// Which dead letters a job takes.
#[derive(Debug, clap::Args)]
struct DeadJobArgs {
    /// Dead for this cause.
    #[arg(long, value_parser = parser::<DeadCause>())]
    cause: Option<DeadCause>,
    /// Dead from this time on: 2026-11-15T08:00:00Z, or 2h for two hours ago.
    #[arg(long, value_name = "TIME", value_parser = past_time)]
    since: Option<Timestamp>,
    /// Dead before this time: 2026-11-15T08:00:00Z, or 2h for two hours ago.
    #[arg(long, value_name = "TIME", value_parser = past_time)]
    until: Option<Timestamp>,
    /// Also those that their lane has passed, though receivers then get an older state after a newer one.
    #[arg(long)]
    even_overtaken: bool,
}

#[derive(Debug, clap::Args)]
struct DeadLettersGroups {
    /// Show the dead letters of every tenant; this needs the admin token.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    filter: GroupFilter,
    /// Dead on the UTC day of this time, or later: 2026-11-15T08:00:00Z, or 2d for two days ago.
    #[arg(long, value_name = "TIME", value_parser = past_time)]
    since: Option<Timestamp>,
    /// Dead before this time, or on its UTC day: 2026-11-15T08:00:00Z, or 2d for two days ago.
    #[arg(long, value_name = "TIME", value_parser = past_time)]
    until: Option<Timestamp>,
    /// At most so many groups, 1 to 500.
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
}

// `--since` and `--until` are times of death here, and the state is known.
#[derive(Debug, clap::Args)]
#[command(mut_arg("state", |option| option.hide(true)))]
#[command(mut_arg("finished_since", |option| option.hide(true)), mut_arg("finished_until", |option| option.hide(true)))]
#[command(mut_arg("since", |option| as_past_time(option.help("Dead from this time on"))))]
#[command(mut_arg("until", |option| as_past_time(option.help("Dead before this time"))))]
struct DeadLettersList {
    /// Show the dead letters of every tenant; this needs the admin token.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    filter: DeliveryFilter,
    #[command(flatten)]
    page: PageArgs,
}

/// Runs the action and prints the gateway's answer.
pub async fn run(args: DeadLettersArgs) -> anyhow::Result<()> {
    let mut client = args.access.client().await?;
    let format = client.format;
    match args.action {
        DeadLettersAction::List(list) => {
            let path = ["dead-letters"];
            let mut url = if list.all { client.url(&path)? } else { client.tenant_url(&path)? };
            let columns = deliveries::columns(list.all);
            check_order("--since", list.filter.since, "--until", list.filter.until)?;
            list.add_to(&mut url);
            output::print_list(format, &client.get(url).await?, "dead letters", &columns)
        }
        DeadLettersAction::Groups(groups) => groups.print(&mut client).await,
        DeadLettersAction::Get { id } => print_dead_letter(&mut client, &id).await,
        DeadLettersAction::Replay(change) => change.run(&mut client, JobKind::Replay).await,
        DeadLettersAction::Discard(change) => change.run(&mut client, JobKind::Discard).await,
    }
}

impl DeadLettersChange {
    /// Changes one dead letter at once, or many by a job.
    async fn run(self, client: &mut Client, kind: JobKind) -> anyhow::Result<()> {
        let Some(id) = self.id else {
            let DeadJobArgs { cause, since, until, even_overtaken } = self.dead;
            check_order("--since", since, "--until", until)?;
            let filter = JobFilter { cause, finished_since: since, finished_until: until, ..JobFilter::default() };
            return self.many.start(client, JobChoice { kind, filter, even_overtaken }, self.run).await;
        };
        let url = client.tenant_url(&["dead-letters", &id, kind.as_str()])?;
        output::print_record(client.format, &client.post(url, None).await?)
    }
}

/// Columns of the groups, each with the field that they must be grouped by to be
/// shown.
const GROUP_COLUMNS: &[(GroupField, Column)] = &[
    (GroupField::Tenant, ("tenant", |row, _| output::text_cell(row, "tenant"))),
    (GroupField::Endpoint, ("endpoint", |row, _| output::text_cell(row, "endpoint"))),
    (GroupField::Cause, ("cause", |row, _| output::text_cell(row, "cause"))),
    (GroupField::Status, ("last answer", |row, _| output::text_cell(row, "answer"))),
    (GroupField::Day, ("day", |row, _| output::text_cell(row, "day"))),
];

const COUNT_COLUMNS: &[Column] = &[
    ("count", |row, _| output::text_cell(row, "count")),
    ("first died", |row, now| output::instant_cell(row, "oldest_at", now)),
    ("last died", |row, now| output::instant_cell(row, "newest_at", now)),
];

impl DeadLettersGroups {
    /// Gets the groups and prints them, with their sum.
    async fn print(self, client: &mut Client) -> anyhow::Result<()> {
        let path = ["dead-letters", "groups"];
        let mut url = if self.all { client.url(&path)? } else { client.tenant_url(&path)? };
        let by = self.filter.by.clone().unwrap_or_default();
        let by = if self.all && self.filter.by.is_none() { by.with_tenant() } else { by };
        ask_filter(&mut url, &GroupFilter { finished_since: self.since, finished_until: self.until, ..self.filter });
        add_filters(&mut url, &[("limit", self.limit.map(|limit| limit.to_string()).as_deref())]);
        let body = client.get(url).await?;
        let by_fields = GROUP_COLUMNS.iter().filter(|(field, _)| by.has(*field)).map(|(_, column)| *column);
        let columns: Vec<Column> = by_fields.chain(COUNT_COLUMNS.iter().copied()).collect();
        output::print_list(client.format, &body, "dead letters", &columns)?;
        match total_line(&output::parse(&body)?) {
            Some(line) => output::print_sentence(client.format, &line),
            None => Ok(()),
        }
    }
}

/// Renders the sum of all groups, if there are several.
fn total_line(groups: &Value) -> Option<String> {
    let (total, shown) = (&groups["total"], output::items(groups).len() as u64);
    let in_all = total["groups"].as_u64().filter(|groups| *groups > 1)?;
    let more = if in_all > shown { format!("; the {shown} largest are shown") } else { String::new() };
    Some(format!("{} dead letters in {in_all} groups{more}", text_cell(total, "count")))
}

impl DeadLettersList {
    /// Adds the filter and the page to a list's URL.
    fn add_to(self, url: &mut url::Url) {
        let DeliveryFilter { since, until, finished_since, finished_until, .. } = self.filter;
        let filter = DeliveryFilter {
            since: None,
            until: None,
            finished_since: since.or(finished_since),
            finished_until: until.or(finished_until),
            ..self.filter
        };
        ask_filter(url, &filter);
        self.page.add_to_query(url);
    }
}

async fn print_dead_letter(client: &mut Client, id: &str) -> anyhow::Result<()> {
    let delivery = find::get_of_tenant(client, "delivery", &["deliveries", id]).await?;
    let state = text_cell(&output::parse(&delivery)?, "state");
    if state != DeliveryState::Dead.as_str() {
        let explain = advice::tenant_command(&client.tenant, "explain", id);
        let sentence = format!("delivery {id} is {state} and not a dead letter; `{explain}` explains it");
        anyhow::bail!(CommandFailure::new(ExitReason::Refused, sentence));
    }
    let explanation = client.get(client.tenant_url(&["deliveries", id, "explain"])?).await?;
    let attempts = client.get(client.tenant_url(&["deliveries", id, "attempts"])?).await?;
    match client.format {
        OutputFormat::Json => output::print(&output::format_json(&format!(
            r#"{{"delivery":{delivery},"explanation":{explanation},"attempts":{attempts}}}"#
        ))),
        OutputFormat::Table => {
            let attempts = output::parse(&attempts)?;
            let all = advice::tenant_command(&client.tenant, "deliveries attempts", id);
            output::print(&dead_letter_lines(
                &output::parse(&explanation)?,
                output::items(&attempts),
                &all,
                Screen::of_stdout(),
            ))
        }
    }
}

/// Renders why the delivery died and what can be done, then its attempts in short and
/// the last answer of the receiver. `all` is the command that shows all attempts.
fn dead_letter_lines(explanation: &Value, attempts: &[Value], all: &str, screen: Screen) -> String {
    let mut out = explain::render(explanation, false, screen);
    out.push('\n');
    attempt_lines(&mut out, attempts, all, screen);
    out.truncate(out.trim_end().len());
    out
}

/// Most attempts that are all shown; of more, only the first and the last are.
const SHOWN_MAX: usize = 12;
const FIRST_SHOWN: usize = 3;
const LAST_SHOWN: usize = 5;

fn attempt_lines(out: &mut String, attempts: &[Value], all: &str, screen: Screen) {
    let rows: Vec<Vec<String>> = attempts.iter().map(attempt_row).collect();
    if rows.is_empty() {
        return;
    }
    out.push('\n');
    let shown = Table::new(&[], rows).rendered_rows(screen.indented(2));
    let left_out = match shown.len() {
        n if n > SHOWN_MAX => FIRST_SHOWN..n - LAST_SHOWN,
        _ => 0..0,
    };
    for (n, attempt) in shown.iter().enumerate() {
        if n == left_out.start && !left_out.is_empty() {
            let _ = writeln!(out, "  … {} more: `{all}`", left_out.len());
        }
        if !left_out.contains(&n) {
            let _ = writeln!(out, "  {}", attempt.replace('\n', "\n  "));
        }
    }
    last_answer_lines(out, &attempts[attempts.len() - 1]);
}

fn attempt_row(attempt: &Value) -> Vec<String> {
    let started = attempt["started_at"].as_str().and_then(|at| at.parse::<Timestamp>().ok());
    vec![
        format!("attempt {}", text_cell(attempt, "number")),
        started.map_or_else(|| "-".to_owned(), |at| format!("{at:.0}")),
        format!("{} after {} ms", answer_cell(attempt), text_cell(attempt, "duration_ms")),
        format!("{} by rule {}", text_cell(attempt, "verdict"), text_cell(&attempt["decision"], "rule")),
    ]
}

/// Adds the body of the last answer.
fn last_answer_lines(out: &mut String, last: &Value) {
    if let Some(body) = last["response_body"].as_str().map(str::trim_end).filter(|body| !body.is_empty()) {
        let more = if last["truncated"] == true { " …" } else { "" };
        let _ = writeln!(out, "\nThe last answer said: {}{more}", escape_control_characters(body));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(number: usize, status: u16, verdict: &str) -> Value {
        serde_json::json!({
            "number": number, "started_at": "2023-11-14T22:13:20.5Z", "duration_ms": 12.5, "status": status, "error": null,
            "response_body": "no\u{1b}pe", "truncated": false, "verdict": verdict, "decision": { "rule": "4xx" }
        })
    }

    fn dead() -> Value {
        serde_json::json!({
            "summary": "Dead (refused) since 2023-11-14T22:13:21Z, after 2 attempts; the last was answered 400 Bad Request.",
            "sentences": ["Event evt_1 (invoice.paid) was accepted.", "So it is a dead letter (refused)."],
            "attempts": []
        })
    }

    #[test]
    fn a_dead_letter_tells_why_it_died_what_was_tried_and_what_was_said() {
        let shown =
            dead_letter_lines(&dead(), &[attempt(1, 503, "retry"), attempt(2, 400, "refused")], "all", Screen::PLAIN);
        assert_eq!(
            shown,
            "Dead (refused) since 2023-11-14T22:13:21Z, after 2 attempts; the last was
answered 400 Bad Request.
  Event evt_1 (invoice.paid) was accepted.
  So it is a dead letter (refused).

  attempt 1  2023-11-14T22:13:20Z  503 after 12.5 ms  retry by rule 4xx
  attempt 2  2023-11-14T22:13:20Z  400 after 12.5 ms  refused by rule 4xx

The last answer said: no\\u{1b}pe"
        );
    }

    #[test]
    fn a_long_story_leaves_out_its_middle() {
        let attempts: Vec<Value> = (1..=120).map(|n| attempt(n, 503, "retry")).collect();
        let shown = dead_letter_lines(&dead(), &attempts, "posthaste x", Screen::PLAIN);
        assert!(shown.contains("  … 112 more: `posthaste x`\n  attempt 116"), "{shown}");
    }
}
