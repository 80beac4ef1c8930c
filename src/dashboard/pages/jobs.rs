//! Jobs: what runs, what ran, and how far one has come.

use std::collections::BTreeMap;

use askama::Template;
use jiff::Timestamp;
use serde::Deserialize;

use super::authors::Authors;
use super::confirm_in_frame::{self, Question};
use super::dead_letter_filter::query;
use super::endpoint_labels::{EndpointLabel, labels_in};
use super::recovery_words::{self, counted, job_mark, kind_verb, pace};
use crate::dashboard::api_caller::api_path;
use crate::dashboard::commands;
use crate::dashboard::context::PageContext;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;
use crate::dashboard::words;
use crate::model::delivery::{DeliveryState, WaitingFor};
use crate::model::id::TenantId;
use crate::model::job::{JobFilter, JobKind, JobState, LeftOut};
use crate::model::named_enum::NamedEnum;

#[derive(Deserialize)]
struct JobsResponse {
    data: Vec<JobResponse>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct JobResponse {
    id: String,
    tenant: String,
    kind: JobKind,
    state: JobState,
    filter: JobFilter,
    matched: u64,
    is_exact: bool,
    done: u64,
    left_out: Vec<LeftOutResponse>,
    outcome: OutcomeResponse,
    endpoints: Vec<JobEndpointResponse>,
    per_second: Option<f64>,
    not_older_than: Option<String>,
    even_overtaken: bool,
    note: Option<String>,
    by: String,
    started_at: Timestamp,
    finished_at: Option<Timestamp>,
    eta_at: Option<Timestamp>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct LeftOutResponse {
    why: LeftOut,
    count: u64,
}

#[derive(Deserialize, Clone, Copy)]
struct OutcomeResponse {
    delivered: u64,
    dead: u64,
    waiting: u64,
}

#[derive(Deserialize)]
struct JobEndpointResponse {
    endpoint: String,
    matched: u64,
    done: u64,
    is_done: bool,
    held_by: Option<WaitingFor>,
    outcome: OutcomeResponse,
    left_out: Vec<LeftOutResponse>,
}

impl JobResponse {
    /// Leaves out what the readers of the page are not told of its author.
    fn for_readers(mut self, authors: &Authors) -> Self {
        self.note = self.note.filter(|_| authors.is_shown(&self.by));
        self.by = authors.words(&self.by);
        self
    }

    fn verb(&self) -> &'static str {
        kind_verb(self.kind)
    }

    fn mark(&self) -> &'static str {
        job_mark(self.state)
    }

    fn is_sending(&self) -> bool {
        self.kind.is_sending()
    }

    fn is_over(&self) -> bool {
        self.state.is_over()
    }

    fn is_paused(&self) -> bool {
        self.state == JobState::Paused
    }

    fn is_queued(&self) -> bool {
        self.state == JobState::Queued
    }

    fn is_of_all(&self) -> bool {
        self.tenant == TenantId::system().as_str()
    }

    fn left_out_count(&self) -> u64 {
        self.left_out.iter().map(|left_out| left_out.count).sum()
    }

    /// How many are through: sent ones once their delivery has ended.
    fn through(&self) -> u64 {
        through(self.done, &self.outcome) + self.left_out_count()
    }

    /// How many there are to come through. While the job still looks, more may come, and
    /// the bar is not full.
    fn whole(&self) -> u64 {
        self.matched.max(self.through() + u64::from(!self.is_exact)).max(1)
    }

    /// Says to how many endpoints nothing can be sent now.
    fn held(&self) -> Option<String> {
        let held = self.endpoints.iter().filter(|row| row.held_by.is_some()).count() as u64;
        (held > 0).then(|| {
            let endpoints = counted(held, "endpoint is held", "endpoints are held");
            format!("{endpoints}, and the job waits there until deliveries can be sent again.")
        })
    }

    /// Says how far the job has come.
    fn progress(&self) -> String {
        let of = if self.is_exact { "of" } else { "of at least" };
        let mut said = format!(
            "{} {of} {} {} through",
            words::count(self.through()),
            words::count(self.matched),
            if self.matched == 1 { "is" } else { "are" }
        );
        if self.is_sending() {
            said.push_str(&format!(
                ": {} delivered, {} dead again, {} waiting now",
                words::count(self.outcome.delivered),
                words::count(self.outcome.dead),
                words::count(self.outcome.waiting)
            ));
        }
        if self.left_out_count() > 0 {
            said.push_str(&format!(", {} left as they are", words::count(self.left_out_count())));
        }
        said.push('.');
        said
    }

    fn pace(&self) -> String {
        match self.per_second {
            Some(per_second) => format!("{} per second and endpoint", pace(per_second)),
            None => "a quarter of each endpoint's rate".to_owned(),
        }
    }

    /// Says in words what the job takes.
    fn taken(&self) -> String {
        taken(self.kind, &self.filter)
    }
}

fn through(done: u64, outcome: &OutcomeResponse) -> u64 {
    done.saturating_sub(outcome.waiting)
}

impl JobEndpointResponse {
    fn through(&self) -> u64 {
        through(self.done, &self.outcome) + self.left_out_count()
    }

    fn left_out_count(&self) -> u64 {
        self.left_out.iter().map(|left_out| left_out.count).sum()
    }

    /// Says why some are left as they are.
    fn left_out_words(&self) -> String {
        let why = self.left_out.iter().map(|one| format!("{} {}", words::count(one.count), one.why.as_str()));
        why.collect::<Vec<_>>().join(", ").replace('_', " ")
    }

    fn whole(&self) -> u64 {
        self.matched.max(self.done).max(1)
    }
}

/// Says in words which deliveries a filter takes.
fn taken(kind: JobKind, filter: &JobFilter) -> String {
    let state = filter.state.unwrap_or(kind.delivery_state());
    let mut words = match state {
        _ if kind.creates_deliveries() => vec!["past events".to_owned()],
        DeliveryState::Dead => vec!["dead letters".to_owned()],
        DeliveryState::Waiting | DeliveryState::Delivered | DeliveryState::Cancelled => {
            vec![format!("{} deliveries", state.as_str())]
        }
    };
    if !filter.ids.is_empty() {
        words.insert(0, counted(filter.ids.len() as u64, "chosen one:", "chosen ones:"));
    } else if filter.all {
        words.insert(0, "all".to_owned());
    }
    let list = |values: &[String]| values.join(", ");
    let endpoints: Vec<String> = filter.endpoints.iter().map(ToString::to_string).collect();
    let time = |at: Option<Timestamp>| at.map(|at| format!("{at:.0}")).unwrap_or_default();
    for (joint, value) in [
        ("of endpoint", list(&endpoints)),
        ("with cause", filter.cause.map(|cause| cause.as_str().to_owned()).unwrap_or_default()),
        ("with last answer", list(&filter.answers)),
        ("of type", list(&filter.event_types)),
        ("with key", filter.key.clone().unwrap_or_default()),
        ("finished since", time(filter.finished_since)),
        ("finished before", time(filter.finished_until)),
        ("accepted since", time(filter.accepted_since)),
        ("accepted before", time(filter.accepted_until)),
    ] {
        if !value.is_empty() {
            words.push(format!("{joint} {value}"));
        }
    }
    words.join(" ")
}

#[derive(Template)]
#[template(path = "jobs.html")]
struct JobsPage {
    frame: Frame,
    tenant: String,
    title: &'static str,
    jobs: Vec<JobResponse>,
    next: String,
}

#[derive(Template)]
#[template(path = "job.html")]
struct JobPage {
    frame: Frame,
    title: &'static str,
    job: JobResponse,
    labels: BTreeMap<String, EndpointLabel>,
    again: String,
}

impl JobPage {
    fn label(&self, endpoint: &str) -> Option<&EndpointLabel> {
        self.labels.get(endpoint)
    }
}

fn title(page: &PageContext) -> &'static str {
    if page.frame.is_portal() { "Recovery" } else { "Jobs" }
}

/// Lists jobs, newest first.
pub async fn list(page: PageContext) -> Result<PageAnswer, PageError> {
    let cursor = query(&[("cursor", page.query.get("cursor"))]);
    let found: JobsResponse = page.api.get(&format!("{}?limit=50{cursor}", page.scoped_path("/jobs"))).await?;
    let next = found.next.map(|cursor| page.query.query_with(&["tenant"], &[("cursor", &cursor)]));
    let authors = Authors::of(&page).await;
    let jobs = found.data.into_iter().map(|job| job.for_readers(&authors)).collect();
    PageContext::render(&JobsPage {
        title: title(&page),
        tenant: if page.frame.is_portal() { String::new() } else { page.tenant().to_owned() },
        jobs,
        next: next.unwrap_or_default(),
        frame: page.frame,
    })
}

/// Shows one job.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    let job: JobResponse = page.api.get(&path_of(&page)).await?;
    let job = job.for_readers(&Authors::of(&page).await);
    let named = job.endpoints.iter().map(|row| row.endpoint.clone());
    let labels = labels_in(&page.api, &job.tenant, named).await;
    let since = job.started_at.to_string();
    let tenant = if page.frame.is_portal() || job.is_of_all() { "" } else { job.tenant.as_str() };
    let again = page.query.query_with(&[], &[("tenant", tenant), ("since", &since)]);
    PageContext::render(&JobPage { title: title(&page), job, labels, again, frame: page.frame })
}

/// Lets a job rest.
pub async fn pause(page: PageContext) -> Result<PageAnswer, PageError> {
    let question = Question {
        title: "Pause this job?",
        meaning: "It takes no further deliveries until it is resumed. What it has already sent again goes on.",
        button: "Pause it",
    };
    if let Some(asked) = confirm_in_frame::question(&page, question, job_page(&page)) {
        return asked;
    }
    change(page, "pause", "job_paused").await
}

/// Lets a job go on.
pub async fn resume(page: PageContext) -> Result<PageAnswer, PageError> {
    change(page, "resume", "job_resumed").await
}

/// Ends a job.
pub async fn cancel(page: PageContext) -> Result<PageAnswer, PageError> {
    let question = Question {
        title: "Cancel this job?",
        meaning: "It ends here. What it has already changed stays changed, and the rest stays as it is.",
        button: "Cancel the job",
    };
    if let Some(asked) = confirm_in_frame::question(&page, question, job_page(&page)) {
        return asked;
    }
    change(page, "cancel", "job_cancelled").await
}

async fn change(page: PageContext, verb: &str, done: &str) -> Result<PageAnswer, PageError> {
    page.api.post(&format!("{}/{verb}", path_of(&page))).await?;
    Ok(page.lead_to(&job_page(&page), done))
}

/// Returns the path of the job's page below the root.
fn job_page(page: &PageContext) -> String {
    let link = page.frame.link("jobs", page.tenant(), page.param("job"));
    link.trim_start_matches(page.frame.root.as_str()).to_owned()
}

fn path_of(page: &PageContext) -> String {
    api_path!("/v1/tenants/{}/jobs/{}", page.tenant(), page.param("job"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn job(change: serde_json::Value) -> JobResponse {
        let mut job = json!({
            "id": "job_1", "tenant": "default", "kind": "replay", "state": "running", "filter": {"all": true},
            "matched": 1204, "is_exact": true, "done": 417, "left_out": [{"why": "expunged", "count": 12}],
            "outcome": {"delivered": 400, "dead": 12, "waiting": 5}, "endpoints": [], "even_overtaken": false,
            "by": "admin", "started_at": "2026-11-18T10:00:00Z",
        });
        job.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        serde_json::from_value(job).unwrap()
    }

    #[test]
    fn progress_counts_what_has_ended() {
        let running = job(json!({}));
        assert_eq!(
            running.progress(),
            "424 of 1,204 are through: 400 delivered, 12 dead again, 5 waiting now, 12 left as they are."
        );
        assert_eq!((running.through(), running.whole()), (424, 1_204));
        let discard = job(json!({"kind": "discard", "is_exact": false, "left_out": [],
            "outcome": {"delivered": 0, "dead": 0, "waiting": 0}}));
        assert_eq!(discard.progress(), "417 of at least 1,204 are through.");
        assert_eq!(job(json!({"matched": 0, "done": 0, "left_out": []})).whole(), 1, "a bar has a length");
        let looking = job(json!({"is_exact": false, "matched": 424}));
        assert_eq!((looking.through(), looking.whole()), (424, 425), "it still looks, so the bar is not full");
    }

    #[test]
    fn a_job_says_that_endpoints_are_held() {
        assert_eq!(job(json!({})).held(), None);
        let row = |held_by: Option<&str>| {
            json!({"endpoint": "ep_1", "matched": 9, "done": 1, "is_done": false, "held_by": held_by,
                "outcome": {"delivered": 0, "dead": 0, "waiting": 1}, "left_out": []})
        };
        let said = job(json!({"endpoints": [row(Some("pause")), row(None)]})).held().unwrap();
        assert!(said.starts_with("1 endpoint is held, and the job waits there"), "{said}");
    }

    #[test]
    fn an_endpoint_is_through_with_what_stays_and_says_why() {
        let row: JobEndpointResponse = serde_json::from_value(json!({
            "endpoint": "ep_1", "matched": 9, "done": 6, "is_done": false, "held_by": null,
            "outcome": {"delivered": 5, "dead": 0, "waiting": 1},
            "left_out": [{"why": "overtaken", "count": 2}, {"why": "already_got", "count": 1}],
        }))
        .unwrap();
        assert_eq!((row.through(), row.whole()), (8, 9));
        assert_eq!(row.left_out_words(), "2 overtaken, 1 already got");
    }

    #[test]
    fn a_filter_is_said_in_words() {
        let filter = |value| serde_json::from_value::<JobFilter>(value).unwrap();
        assert_eq!(taken(JobKind::Replay, &filter(json!({"all": true}))), "all dead letters");
        assert_eq!(
            taken(
                JobKind::Discard,
                &filter(json!({"answers": ["503", "timeout"], "finished_since": "2026-11-18T08:00:00.123Z"}))
            ),
            "dead letters with last answer 503, timeout finished since 2026-11-18T08:00:00Z"
        );
        assert_eq!(taken(JobKind::Retry, &filter(json!({"key": "k"}))), "waiting deliveries with key k");
    }
}
