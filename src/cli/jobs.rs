//! `posthaste jobs`: lists, shows, watches, pauses, resumes and cancels jobs; and
//! starts them for other commands.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use url::Url;

use super::advice;
use super::client::{Client, ClientArgs};
use super::confirm::count_with_noun;
use super::output::{self, Column, OutputFormat, text_cell};
use super::request::{JsonBody, PageArgs, check_order, past_time};
use crate::clock::{Clock, SystemClock};
use crate::model::answer_choice::AnswerChoice;
use crate::model::delivery::WaitingFor;
use crate::model::event::InvalidText;
use crate::model::filter::check_glob;
use crate::model::id::EndpointId;
use crate::model::job::{IDS_MAX, JobChange, JobFilter, JobKind, JobState, MatchBound};
use crate::model::named_enum::NamedEnum;
use crate::model::span::Span;

/// What to do with jobs.
#[derive(Debug, clap::Args)]
pub struct JobsArgs {
    #[command(flatten)]
    access: ClientArgs,
    #[command(subcommand)]
    action: JobsAction,
}

#[derive(Debug, Subcommand)]
enum JobsAction {
    /// List jobs, newest first.
    List {
        /// Show the jobs of every tenant; this needs the admin token.
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show how far one has come.
    Get(JobIdArg),
    /// Show the progress of one until it ends.
    Watch(JobIdArg),
    /// Release nothing more for now.
    Pause(JobIdArg),
    /// Go on with a paused one.
    Resume(JobIdArg),
    /// End one; what it has done stays done.
    Cancel(JobIdArg),
}

#[derive(Debug, clap::Args)]
struct JobIdArg {
    /// The job's id.
    id: String,
}

/// Columns of a list of jobs.
const COLUMNS: &[Column] = &[
    ("id", |row, _| text_cell(row, "id")),
    ("tenant", |row, _| text_cell(row, "tenant")),
    ("kind", |row, _| text_cell(row, "kind")),
    ("state", |row, _| text_cell(row, "state")),
    ("matched", |row, _| text_cell(row, "matched")),
    ("done", |row, _| text_cell(row, "done")),
    ("delivered", |row, _| text_cell(&row["outcome"], "delivered")),
    ("dead", |row, _| text_cell(&row["outcome"], "dead")),
    ("done about", |row, now| output::instant_cell(row, "eta_at", now)),
    ("started at", |row, now| output::instant_cell(row, "started_at", now)),
];

/// Runs the action and prints the gateway's answer.
pub async fn run(args: JobsArgs) -> anyhow::Result<()> {
    let mut client = args.access.client().await?;
    let (id, change) = match args.action {
        JobsAction::List { all, page } => {
            let mut url = if all { client.url(&["jobs"])? } else { client.tenant_url(&["jobs"])? };
            page.add_to_query(&mut url);
            return output::print_list(client.format, &client.get(url).await?, "jobs", COLUMNS);
        }
        JobsAction::Get(JobIdArg { id }) => {
            let url = client.tenant_url(&["jobs", &id])?;
            return output::print_record(client.format, &client.get(url).await?);
        }
        JobsAction::Watch(JobIdArg { id }) => return watch(&mut client, &id).await,
        JobsAction::Pause(JobIdArg { id }) => (id, JobChange::Pause),
        JobsAction::Resume(JobIdArg { id }) => (id, JobChange::Resume),
        JobsAction::Cancel(JobIdArg { id }) => (id, JobChange::Cancel),
    };
    let url = client.tenant_url(&["jobs", &id, change.as_str()])?;
    output::print_record(client.format, &client.post(url, None).await?)
}

/// Refuses a pattern that no event type could match.
fn type_pattern(text: &str) -> Result<String, InvalidText> {
    check_glob(text).map(|()| text.to_owned())
}

/// Which deliveries a job takes.
#[derive(Debug, clap::Args)]
pub struct NewJobArgs {
    /// To this endpoint; may be given several times.
    #[arg(long, value_name = "ID")]
    endpoint: Vec<EndpointId>,
    /// Only deliveries of this event type, with * for any text; may be given several times.
    #[arg(long, value_name = "TYPE", value_parser = type_pattern)]
    event_type: Vec<String>,
    /// With this key.
    #[arg(long)]
    key: Option<String>,
    /// With this last answer, such as 503, 4xx or timeout; may be given several times.
    #[arg(long)]
    answer: Vec<AnswerChoice>,
    /// With the ids in this file, one on each line; more than 5,000 make several jobs.
    #[arg(long, value_name = "FILE")]
    ids_from: Option<PathBuf>,
    /// Every one of the tenant.
    #[arg(long)]
    everything: bool,
    /// Change the deliveries of every tenant; this needs the admin token.
    #[arg(long)]
    all: bool,
}

/// How a job goes.
#[derive(Debug, clap::Args)]
pub struct JobRunArgs {
    /// Only say what would be done.
    #[arg(long)]
    dry_run: bool,
    /// Deliveries per second and endpoint; a quarter of the endpoint's rate when left out.
    #[arg(long, value_name = "N")]
    per_second: Option<f64>,
    /// Leave out what was created longer ago.
    #[arg(long, value_name = "SPAN")]
    not_older_than: Option<Span>,
    /// What others should know.
    #[arg(long)]
    note: Option<String>,
    /// Print the job and do not wait for its end.
    #[arg(long)]
    detach: bool,
}

impl JobRunArgs {
    /// Starts a job at this URL, or previews it, and shows its progress.
    async fn start(
        &self,
        client: &mut Client,
        url: Url,
        (kind, filter, even_overtaken): (JobKind, Value, bool),
    ) -> anyhow::Result<()> {
        let body = JsonBody::default()
            .field("kind", Some(&kind))
            .field("filter", Some(&filter))
            .field("per_second", self.per_second.as_ref())
            .field("not_older_than", self.not_older_than.as_ref())
            .field("even_overtaken", even_overtaken.then_some(&true))
            .field("dry_run", self.dry_run.then_some(&true))
            .field("note", self.note.as_ref());
        let answer = client.post(url, Some(body)).await?;
        if self.dry_run {
            return print_preview(client, &answer, kind);
        }
        follow(client, &answer, self.detach).await
    }
}

/// Which past events an endpoint gets, and how.
#[derive(Debug, clap::Args)]
pub struct BackfillArgs {
    /// The endpoint's id.
    id: EndpointId,
    /// Accepted from this time on: 2026-11-15T08:00:00Z, or 2h for two hours ago.
    #[arg(long, value_name = "TIME", value_parser = past_time)]
    since: Timestamp,
    /// Accepted before this time: 2026-11-15T08:00:00Z, or 2h for two hours ago.
    #[arg(long, value_name = "TIME", value_parser = past_time)]
    until: Option<Timestamp>,
    /// Only deliveries of this event type, with * for any text; may be given several times.
    #[arg(long, value_name = "TYPE", value_parser = type_pattern)]
    event_type: Vec<String>,
    /// With this key.
    #[arg(long)]
    key: Option<String>,
    #[command(flatten)]
    run: JobRunArgs,
}

impl BackfillArgs {
    /// Starts the backfill, or previews it, and shows its progress.
    pub async fn start(self, client: &mut Client) -> anyhow::Result<()> {
        check_order("--since", Some(self.since), "--until", self.until)?;
        let filter = JobFilter {
            endpoints: vec![self.id],
            accepted_since: Some(self.since),
            accepted_until: self.until,
            event_types: self.event_type,
            key: self.key,
            ..JobFilter::default()
        };
        let url = client.tenant_url(&["jobs"])?;
        self.run.start(client, url, (JobKind::Backfill, json!(filter), false)).await
    }
}

/// What a job does, and which deliveries it takes beyond what [`NewJobArgs`] choose.
#[derive(Debug)]
pub struct JobChoice {
    /// What is done to each delivery.
    pub kind: JobKind,
    /// The filter, as far as [`NewJobArgs`] does not say.
    pub filter: JobFilter,
    /// Whether deliveries that their lane has passed are replayed, too.
    pub even_overtaken: bool,
}

impl NewJobArgs {
    /// Starts the job, or previews it, and shows its progress. Many ids make several jobs.
    pub async fn start(self, client: &mut Client, choice: JobChoice, run: JobRunArgs) -> anyhow::Result<()> {
        let filter = json!(self.filter(choice.filter.clone()));
        let Some(file) = &self.ids_from else { return self.start_one(client, &choice, filter, &run).await };
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let ids: Vec<&str> = text.split_whitespace().collect();
        anyhow::ensure!(!ids.is_empty(), "{} has no ids", file.display());
        for some in ids.chunks(IDS_MAX) {
            let mut filter = filter.clone();
            filter["ids"] = json!(some);
            self.start_one(client, &choice, filter, &run).await?;
        }
        Ok(())
    }

    async fn start_one(
        &self,
        client: &mut Client,
        choice: &JobChoice,
        filter: Value,
        run: &JobRunArgs,
    ) -> anyhow::Result<()> {
        let url = if self.all { client.url(&["jobs"])? } else { client.tenant_url(&["jobs"])? };
        run.start(client, url, (choice.kind, filter, choice.even_overtaken)).await
    }

    /// Adds what the options choose. The ids of a file are added as they are written there.
    fn filter(&self, chosen: JobFilter) -> JobFilter {
        JobFilter {
            endpoints: self.endpoint.clone(),
            event_types: self.event_type.clone(),
            answers: self.answer.iter().map(ToString::to_string).collect(),
            key: self.key.clone(),
            all: self.everything,
            ..chosen
        }
    }
}

/// Shows the progress of a job that was started, or only the job.
async fn follow(client: &mut Client, answer: &str, is_detached: bool) -> anyhow::Result<()> {
    let job = output::parse(answer)?;
    // A job over all tenants is one of the gateway's own tenant.
    client.tenant = text_cell(&job, "tenant");
    if is_detached || client.format == OutputFormat::Json {
        return output::print_record(client.format, answer);
    }
    let id = text_cell(&job, "id");
    let command = advice::tenant_command(&client.tenant, "jobs watch", &id);
    eprintln!("job {id} goes on by itself; `{command}` comes back to it");
    watch(client, &id).await
}

const PREVIEW_COLUMNS: &[Column] = &[
    ("endpoint", |row, _| text_cell(row, "endpoint")),
    ("deliveries", |row, _| format!("{}{}", bound_words(row), text_cell(row, "matches"))),
    ("lanes", |row, _| {
        if row["looked_at"].is_null() { text_cell(row, "lanes") } else { render_least(&text_cell(row, "lanes")) }
    }),
    ("per second", |row, _| text_cell(row, "per_second")),
    ("takes", |row, _| text_cell(row, "takes")),
    ("held by", |row, _| text_cell(row, "held_by")),
];

/// Returns the words before a number of deliveries that is not exact.
fn bound_words(preview: &Value) -> &'static str {
    MatchBound::deserialize(&preview["bound"]).unwrap_or_default().words()
}

fn render_least(number: &str) -> String {
    format!("at least {number}")
}

/// Says which endpoints nothing can be sent to, and how to change that.
fn held_lines(endpoints: &Value) -> Vec<String> {
    let held: Vec<&Value> =
        endpoints.as_array().into_iter().flatten().filter(|one| !one["held_by"].is_null()).collect();
    let line = |one: &&Value| {
        let id = text_cell(one, "endpoint");
        let command = advice::tenant_command(&text_cell(one, "tenant"), "endpoints resume", &id);
        let (why, until) = match WaitingFor::deserialize(&one["held_by"]) {
            Ok(WaitingFor::Pause) => ("is paused", "nothing is sent to it until it is resumed"),
            Ok(WaitingFor::Disabled) => ("is disabled", "nothing is sent to it until it is resumed"),
            Ok(
                WaitingFor::Breaker
                | WaitingFor::Backpressure
                | WaitingFor::Rate
                | WaitingFor::Slot
                | WaitingFor::Key
                | WaitingFor::Due,
            )
            | Err(_) => ("is held by its breaker", "only probes are sent to it until one succeeds"),
        };
        format!("endpoint {id} {why}: {until}; `{command}` lets it go on")
    };
    let mut lines: Vec<String> = held.iter().take(HELD_SHOWN).map(line).collect();
    if held.len() > HELD_SHOWN {
        lines.push(format!("{} more endpoints are held, too", held.len() - HELD_SHOWN));
    }
    lines
}

/// Most held endpoints that are named.
const HELD_SHOWN: usize = 5;

fn print_preview(client: &Client, answer: &str, kind: JobKind) -> anyhow::Result<()> {
    if client.format == OutputFormat::Json {
        return output::print(&output::format_json(answer));
    }
    let preview = output::parse(answer)?;
    let endpoints = json!({ "data": preview["endpoints"], "next": null });
    output::print_list(client.format, &endpoints.to_string(), "deliveries", PREVIEW_COLUMNS)?;
    output::print(&preview_line(&preview, kind, SystemClock.now()))?;
    held_lines(&preview["endpoints"]).iter().try_for_each(|line| output::print(line))
}

/// Renders what a job would do in a sentence.
fn preview_line(preview: &Value, kind: JobKind, now: Timestamp) -> String {
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let taken = count_with_noun(number(&preview["matches"]), "delivery", "deliveries");
    let mut line = format!("{} would take {}{taken}", kind.as_str(), bound_words(preview));
    let lanes: u64 = preview["endpoints"].as_array().into_iter().flatten().map(|one| number(&one["lanes"])).sum();
    if lanes > 0 {
        let lanes = count_with_noun(lanes, "lane", "lanes");
        // Those that were not looked at may be in others.
        line.push_str(&format!(" in {}", if preview["looked_at"].is_null() { lanes } else { render_least(&lanes) }));
    }
    let waiting = number(&preview["unblocks"]["waiting"]);
    if waiting > 0 {
        let lanes = count_with_noun(number(&preview["unblocks"]["lanes"]), "lane", "lanes");
        let bound = if preview["unblocks"]["is_exact"] == false { "at least " } else { "" };
        line.push_str(&format!("; {bound}{waiting} that wait behind them in {lanes} go on"));
    }
    if let Some(done_at) = preview["done_at"].as_str() {
        let done_at: Option<Timestamp> = done_at.parse().ok();
        let seconds = done_at.map_or(0, |at| (at.as_second() - now.as_second()).max(1));
        line.push_str(&format!("; done in about {}; new events share the rate meanwhile", Span::secs(seconds as u64)));
    }
    for one in preview["left_out"].as_array().into_iter().flatten() {
        line.push_str(&format!("; {} stay, {}", text_cell(one, "count"), text_cell(one, "why").replace('_', " ")));
    }
    if let Some(looked_at) = preview["looked_at"].as_u64().filter(|_| preview["is_exact"] == false) {
        line.push_str(&format!("; {looked_at} were looked at, and of the others more may stay"));
    }
    line.push_str("; nothing was done");
    line
}

/// Shows the progress of a job until it ends: a bar on a terminal, else a line at
/// every change.
async fn watch(client: &mut Client, id: &str) -> anyhow::Result<()> {
    let url = client.tenant_url(&["jobs", id])?;
    watch_at(client, url).await
}

/// Shows the progress of the job at this URL until it ends.
pub async fn watch_at(client: &mut Client, url: Url) -> anyhow::Result<()> {
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len} {msg}").expect("the template is well formed");
    let bar = ProgressBar::new(0).with_style(style);
    let is_terminal = std::io::stderr().is_terminal();
    let (mut last, mut held) = (String::new(), Vec::new());
    loop {
        let answer = client.get(url.clone()).await?;
        let job = output::parse(&answer)?;
        let line = progress_line(&job);
        let held_now = held_lines(&job["endpoints"]);
        if held_now != held {
            held_now.iter().for_each(|line| if is_terminal { bar.println(line) } else { eprintln!("{line}") });
            held = held_now;
        }
        if is_terminal {
            let (through, whole) = progress(&job);
            bar.set_length(whole);
            bar.set_position(through);
            bar.set_message(line.clone());
        } else if line != last {
            eprintln!("{line}");
        }
        last = line;
        if JobState::deserialize(&job["state"]).is_ok_and(JobState::is_over) {
            bar.finish_and_clear();
            output::print_record(client.format, &answer)?;
            return check_end(&job);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Fails for a job that ended before it had done all.
fn check_end(job: &Value) -> anyhow::Result<()> {
    let id = text_cell(job, "id");
    match JobState::deserialize(&job["state"])? {
        JobState::Failed => bail!("job {id} has failed: {}", text_cell(job, "error")),
        JobState::Cancelled => bail!("job {id} was cancelled before it had done all"),
        JobState::Finished | JobState::Running | JobState::Paused | JobState::Queued => Ok(()),
    }
}

/// Returns how many deliveries a job is through with, and of how many. A job that still
/// looks is never through.
fn progress(job: &Value) -> (u64, u64) {
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let left_out: u64 = job["left_out"].as_array().into_iter().flatten().map(|one| number(&one["count"])).sum();
    let through = number(&job["done"]).saturating_sub(number(&job["outcome"]["waiting"])) + left_out;
    let rest = u64::from(job["is_exact"] == false);
    (through, number(&job["matched"]).max(through + rest).max(1))
}

fn progress_line(job: &Value) -> String {
    if let Some(stage) = job["purge"]["stage"].as_str() {
        let (state, tenant) = (text_cell(job, "state"), text_cell(&job["purge"], "tenant"));
        return format!("purge of {tenant} {state}: {} rows deleted, now at {stage}", text_cell(job, "done"));
    }
    let outcome = &job["outcome"];
    let of = if job["is_exact"] == false { "of at least" } else { "of" };
    format!(
        "{} {}: {} {of} {} done, {} delivered, {} dead again, {} waiting",
        text_cell(job, "kind"),
        text_cell(job, "state"),
        text_cell(job, "done"),
        text_cell(job, "matched"),
        text_cell(outcome, "delivered"),
        text_cell(outcome, "dead"),
        text_cell(outcome, "waiting"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preview_says_what_goes_what_stays_and_when_it_is_done() {
        let now: Timestamp = "2026-11-17T10:00:00Z".parse().unwrap();
        let preview = json!({
            "matches": 1204, "is_exact": true, "bound": "exact", "endpoints": [{"lanes": 30}, {"lanes": 7}],
            "unblocks": {"waiting": 88, "lanes": 5, "is_exact": true}, "done_at": "2026-11-17T10:00:25Z", "looked_at": null,
            "left_out": [{"why": "expunged", "count": 12}, {"why": "endpoint_deleted", "count": 1}],
        });
        assert_eq!(
            preview_line(&preview, JobKind::Replay, now),
            "replay would take 1204 deliveries in 37 lanes; 88 that wait behind them in 5 lanes go on; \
             done in about 25s; new events share the rate meanwhile; 12 stay, expunged; 1 stay, endpoint deleted; \
             nothing was done"
        );
        let many = json!({
            "matches": 9000, "is_exact": false, "bound": "at_least", "left_out": [], "looked_at": 10000,
            "endpoints": [{"lanes": 5}],
        });
        let line = preview_line(&many, JobKind::Discard, now);
        assert!(
            line.starts_with("discard would take at least 9000 deliveries in at least 5 lanes; 10000 were looked at"),
            "{line}"
        );
        let unblocks = json!({"waiting": 40000, "lanes": 10000, "is_exact": false});
        let line = preview_line(&json!({"matches": 1, "unblocks": unblocks}), JobKind::Replay, now);
        assert!(line.contains("; at least 40000 that wait behind them in 10000 lanes go on;"), "{line}");
        let some_may_stay = json!({ "matches": 2000, "is_exact": false, "bound": "at_most", "looked_at": 10000 });
        let line = preview_line(&some_may_stay, JobKind::Replay, now);
        assert!(line.starts_with("replay would take at most 2000 deliveries;"), "{line}");
    }

    #[test]
    fn a_held_endpoint_comes_with_the_command_that_resumes_it() {
        let endpoints = json!([
            {"endpoint": "ep_1", "tenant": "acme", "held_by": "pause"},
            {"endpoint": "ep_2", "tenant": "acme", "held_by": null},
            {"endpoint": "ep_3", "tenant": "acme", "held_by": "breaker"},
        ]);
        let lines = held_lines(&endpoints);
        assert_eq!(lines.len(), 2);
        assert!(
            lines[0].starts_with("endpoint ep_1 is paused: nothing is sent to it until it is resumed; `"),
            "{lines:?}"
        );
        assert!(lines[0].contains("endpoints resume ep_1 --tenant acme`"), "{lines:?}");
        assert!(lines[1].starts_with("endpoint ep_3 is held by its breaker"), "{lines:?}");
        let many: Vec<Value> =
            (0..9).map(|n| json!({"endpoint": format!("ep_{n}"), "tenant": "acme", "held_by": "pause"})).collect();
        assert_eq!(held_lines(&json!(many)).last().unwrap(), "4 more endpoints are held, too");
    }

    #[test]
    fn a_job_that_ended_before_its_work_is_no_success() {
        let ended = |state: &str| check_end(&json!({"id": "job_1", "state": state, "error": "a row is newer"}));
        assert!(ended("finished").is_ok());
        assert_eq!(ended("failed").unwrap_err().to_string(), "job job_1 has failed: a row is newer");
        assert_eq!(ended("cancelled").unwrap_err().to_string(), "job job_1 was cancelled before it had done all");
    }

    #[test]
    fn a_bar_is_full_when_the_job_has_done_all_that_matches() {
        let job = |matched: u64, is_exact: bool, done: u64, waiting: u64| {
            json!({"matched": matched, "is_exact": is_exact, "done": done, "outcome": {"waiting": waiting},
                "left_out": [{"why": "expunged", "count": 2}]})
        };
        assert_eq!(progress(&job(100, false, 10, 4)), (8, 100));
        assert_eq!(progress(&job(12, false, 10, 0)), (12, 13), "it still looks");
        assert_eq!(progress(&job(12, true, 10, 0)), (12, 12));
        assert_eq!(progress(&json!({"matched": 0, "is_exact": true, "done": 0})), (0, 1));
    }
}
