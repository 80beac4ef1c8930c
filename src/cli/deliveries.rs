//! `posthaste deliveries`: lists and shows deliveries; retries, cancels and replays
//! one, or all that match.

use clap::Subcommand;
use jiff::Timestamp;
use serde_json::Value;

use super::client::{Client, ClientArgs};
use super::find;
use super::jobs::{JobChoice, JobRunArgs, NewJobArgs};
use super::output::{self, Column};
use super::request::{PageArgs, as_past_time, ask_filter, check_order, past_time};
use crate::model::delivery::DeliveryState;
use crate::model::delivery_filter::DeliveryFilter;
use crate::model::job::{JobFilter, JobKind};
use crate::model::named_enum::{NamedEnum, parser};

/// What to do with deliveries.
#[derive(Debug, clap::Args)]
pub struct DeliveriesArgs {
    #[command(flatten)]
    access: ClientArgs,
    #[command(subcommand)]
    action: DeliveriesAction,
}

#[derive(Debug, Subcommand)]
enum DeliveriesAction {
    /// List deliveries, newest first.
    List(Box<DeliveriesList>),
    /// Show one, and what it waits for.
    Get {
        /// The delivery's id.
        id: String,
    },
    /// List the attempts of one.
    Attempts {
        /// The delivery's id.
        id: String,
    },
    /// Make the next attempt of a waiting one now, or of all that match.
    Retry(Box<WaitingChange>),
    /// End a waiting one, or all that match.
    Cancel(Box<WaitingChange>),
    /// Put a finished one back to waiting, or all that match.
    Replay(Box<FinishedChange>),
}

#[derive(Debug, clap::Args)]
struct WaitingChange {
    /// The delivery's id; without it, those that match the options.
    #[arg(conflicts_with_all = ["NewJobArgs", "AcceptedJobArgs", "JobRunArgs"])]
    id: Option<String>,
    #[command(flatten)]
    many: NewJobArgs,
    #[command(flatten)]
    accepted: AcceptedJobArgs,
    #[command(flatten)]
    run: JobRunArgs,
}

#[derive(Debug, clap::Args)]
struct FinishedChange {
    /// The delivery's id; without it, those that match the options.
    #[arg(conflicts_with_all = ["NewJobArgs", "AcceptedJobArgs", "FinishedJobArgs", "JobRunArgs"])]
    id: Option<String>,
    #[command(flatten)]
    many: NewJobArgs,
    #[command(flatten)]
    accepted: AcceptedJobArgs,
    #[command(flatten)]
    finished: FinishedJobArgs,
    #[command(flatten)]
    run: JobRunArgs,
}

/// When the deliveries that a job takes were accepted.
#[derive(Debug, clap::Args)]
struct AcceptedJobArgs {
    /// Accepted from this time on: 2026-11-15T08:00:00Z, or 2h for two hours ago.
    #[arg(long, value_name = "TIME", value_parser = past_time)]
    since: Option<Timestamp>,
    /// Accepted before this time: 2026-11-15T08:00:00Z, or 2h for two hours ago.
    #[arg(long, value_name = "TIME", value_parser = past_time)]
    until: Option<Timestamp>,
}

/// Which finished deliveries a job takes.
#[derive(Debug, clap::Args)]
struct FinishedJobArgs {
    /// In this state: dead, which is meant when left out, delivered or cancelled.
    #[arg(long, value_parser = parser::<DeliveryState>())]
    state: Option<DeliveryState>,
    /// Delivered, dead or cancelled from this time on: 2026-11-15T08:00:00Z, or 2h for two hours ago.
    #[arg(long, value_name = "TIME", value_parser = past_time)]
    finished_since: Option<Timestamp>,
    /// Delivered, dead or cancelled before this time: 2026-11-15T08:00:00Z, or 2h for two hours ago.
    #[arg(long, value_name = "TIME", value_parser = past_time)]
    finished_until: Option<Timestamp>,
    /// Also those that their lane has passed, though receivers then get an older state after a newer one.
    #[arg(long)]
    even_overtaken: bool,
}

#[derive(Debug, clap::Args)]
#[command(mut_args(past_times))]
struct DeliveriesList {
    /// Show the deliveries of every tenant; this needs the admin token.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    filter: DeliveryFilter,
    #[command(flatten)]
    page: PageArgs,
}

/// Lets the times of a list be spans before now.
fn past_times(option: clap::Arg) -> clap::Arg {
    match option.get_id().as_str() {
        "since" | "until" | "finished_since" | "finished_until" => as_past_time(option),
        _ => option,
    }
}

/// Columns of a list of deliveries.
pub const COLUMNS: &[Column] = &[
    ("id", |row, _| output::text_cell(row, "id")),
    ("event type", |row, _| output::text_cell(row, "event_type")),
    ("endpoint", |row, _| output::text_cell(row, "endpoint_id")),
    ("lane", |row, _| lane_cell(row)),
    ("state", |row, _| state_cell(row)),
    ("attempts", |row, _| output::text_cell(row, "attempts")),
    ("last answer", |row, _| last_answer(row)),
    ("next or finished", next_or_finished),
];

/// Returns the columns of a list, with the tenant where it is of all tenants.
pub fn columns(is_of_all: bool) -> Vec<Column> {
    let tenant: Column = ("tenant", |row, _| output::text_cell(row, "tenant"));
    is_of_all.then_some(tenant).into_iter().chain(COLUMNS.iter().copied()).collect()
}

const ATTEMPT_COLUMNS: &[Column] = &[
    ("no", |row, _| output::text_cell(row, "number")),
    ("started at", |row, now| output::instant_cell(row, "started_at", now)),
    ("took", |row, _| format!("{} ms", output::text_cell(row, "duration_ms"))),
    ("answer", |row, _| answer_cell(row)),
    ("verdict", |row, _| output::text_cell(row, "verdict")),
    ("rule", |row, _| output::text_cell(&row["decision"], "rule")),
    ("next attempt", |row, now| output::instant_cell(&row["decision"], "next_attempt_at", now)),
];

/// Runs the action and prints the gateway's answer.
pub async fn run(args: DeliveriesArgs) -> anyhow::Result<()> {
    let mut client = args.access.client().await?;
    let format = client.format;
    match args.action {
        DeliveriesAction::List(list) => {
            let mut url = if list.all { client.url(&["deliveries"])? } else { client.tenant_url(&["deliveries"])? };
            let columns = columns(list.all);
            list.add_to(&mut url)?;
            output::print_list(format, &client.get(url).await?, "deliveries", &columns)
        }
        DeliveriesAction::Get { id } => {
            let body = find::get_of_tenant(&mut client, "delivery", &["deliveries", &id]).await?;
            output::print_record(format, &body)
        }
        DeliveriesAction::Attempts { id } => {
            let body = find::get_of_tenant(&mut client, "delivery", &["deliveries", &id, "attempts"]).await?;
            output::print_list(format, &body, "attempts", ATTEMPT_COLUMNS)
        }
        DeliveriesAction::Retry(change) => change.run(&mut client, JobKind::Retry).await,
        DeliveriesAction::Cancel(change) => change.run(&mut client, JobKind::Cancel).await,
        DeliveriesAction::Replay(change) => change.run(&mut client).await,
    }
}

/// Changes one delivery at once.
async fn change_one(client: &mut Client, id: &str, kind: JobKind) -> anyhow::Result<()> {
    let url = client.tenant_url(&["deliveries", id, kind.as_str()])?;
    output::print_record(client.format, &client.post(url, None).await?)
}

impl WaitingChange {
    /// Changes one waiting delivery at once, or many by a job.
    async fn run(self, client: &mut Client, kind: JobKind) -> anyhow::Result<()> {
        let Some(id) = self.id else {
            let choice = JobChoice { kind, filter: self.accepted.filter()?, even_overtaken: false };
            return self.many.start(client, choice, self.run).await;
        };
        change_one(client, &id, kind).await
    }
}

impl FinishedChange {
    /// Replays one finished delivery at once, or many by a job.
    async fn run(self, client: &mut Client) -> anyhow::Result<()> {
        let Some(id) = self.id else {
            let FinishedJobArgs { state, finished_since, finished_until, even_overtaken } = self.finished;
            check_order("--finished-since", finished_since, "--finished-until", finished_until)?;
            let filter = JobFilter { state, finished_since, finished_until, ..self.accepted.filter()? };
            let choice = JobChoice { kind: JobKind::Replay, filter, even_overtaken };
            return self.many.start(client, choice, self.run).await;
        };
        change_one(client, &id, JobKind::Replay).await
    }
}

impl AcceptedJobArgs {
    fn filter(&self) -> anyhow::Result<JobFilter> {
        check_order("--since", self.since, "--until", self.until)?;
        Ok(JobFilter { accepted_since: self.since, accepted_until: self.until, ..JobFilter::default() })
    }
}

impl DeliveriesList {
    /// Adds the filter and the page to a list's URL.
    fn add_to(self, url: &mut url::Url) -> anyhow::Result<()> {
        let DeliveryFilter { since, until, finished_since, finished_until, .. } = self.filter;
        check_order("--since", since, "--until", until)?;
        check_order("--finished-since", finished_since, "--finished-until", finished_until)?;
        ask_filter(url, &self.filter);
        self.page.add_to_query(url);
        Ok(())
    }
}

fn lane_cell(delivery: &Value) -> String {
    match (&delivery["key"], &delivery["seq"]) {
        (Value::Null, Value::Null) => "-".to_owned(),
        (Value::Null, seq) => format!("#{seq}"),
        (_, Value::Null) => output::text_cell(delivery, "key"),
        (_, seq) => format!("{} #{seq}", output::text_cell(delivery, "key")),
    }
}

fn state_cell(delivery: &Value) -> String {
    let state = output::text_cell(delivery, "state");
    match (&delivery["in_flight"], &delivery["waiting_for"], &delivery["cause"]) {
        (Value::Bool(true), _, _) => "in flight".to_owned(),
        (_, Value::String(what), _) | (_, _, Value::String(what)) => {
            format!("{state} ({})", output::escape_control_characters(what))
        }
        _ => state,
    }
}

fn last_answer(delivery: &Value) -> String {
    match &delivery["last_status"] {
        Value::Null => output::text_cell(&delivery["last_error"], "kind"),
        status => status.to_string(),
    }
}

fn next_or_finished(delivery: &Value, now: Timestamp) -> String {
    match &delivery["finished_at"] {
        Value::Null => output::instant_cell(delivery, "next_attempt_at", now),
        _ => output::instant_cell(delivery, "finished_at", now),
    }
}

/// Returns the status of an attempt, or the kind of its failure.
pub fn answer_cell(attempt: &Value) -> String {
    match &attempt["status"] {
        Value::Null => output::text_cell(&attempt["error"], "kind"),
        status => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_why_a_delivery_stands_where_it_does() {
        let shown = |json: &str| state_cell(&serde_json::from_str(json).unwrap());
        assert_eq!(shown(r#"{"state":"waiting","waiting_for":"key","in_flight":false,"cause":null}"#), "waiting (key)");
        assert_eq!(shown(r#"{"state":"waiting","waiting_for":null,"in_flight":true,"cause":null}"#), "in flight");
        assert_eq!(
            shown(r#"{"state":"dead","waiting_for":null,"in_flight":false,"cause":"refused"}"#),
            "dead (refused)"
        );
        assert_eq!(shown(r#"{"state":"delivered","waiting_for":null,"in_flight":false}"#), "delivered");
    }

    #[test]
    fn a_lane_is_its_key_and_the_place_in_it() {
        let shown = |json: &str| lane_cell(&serde_json::from_str(json).unwrap());
        assert_eq!(shown(r#"{"key":"acct 7","seq":3}"#), "acct 7 #3");
        assert_eq!(shown(r#"{"key":null,"seq":3}"#), "#3");
        assert_eq!(shown(r#"{"key":"acct","seq":null}"#), "acct");
        assert_eq!(shown(r#"{"key":null,"seq":null}"#), "-");
    }
}
