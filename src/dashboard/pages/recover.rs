//! Recovery: choose, see what it does to the receivers, start, watch.

use std::collections::BTreeMap;

use askama::Template;
use http::{Method, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;

use super::endpoint_labels::{EndpointLabel, labels_in};
use super::recover_form::RecoverForm;
use super::recovery_words::{self, counted, kind_verb, pace};
use crate::dashboard::api_caller::api_path;
use crate::dashboard::context::PageContext;
use crate::dashboard::forms::FormValues;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::{FieldFault, PageError};
use crate::dashboard::words;
use crate::model::delivery::WaitingFor;
use crate::model::job::{IDS_MAX, JobKind, LeftOut, MatchBound};
use crate::model::span::Span;

#[derive(Deserialize)]
struct PreviewResponse {
    matches: u64,
    endpoints: Vec<PreviewedEndpoint>,
    left_out: Vec<PreviewedLeftOut>,
    bound: MatchBound,
    looked_at: Option<u64>,
    unblocks: PreviewedUnblocked,
    done_at: Option<Timestamp>,
}

#[derive(Deserialize)]
struct PreviewedEndpoint {
    endpoint: String,
    matches: u64,
    bound: MatchBound,
    looked_at: Option<u64>,
    lanes: u64,
    per_second: Option<f64>,
    takes: Option<Span>,
    held_by: Option<WaitingFor>,
}

#[derive(Deserialize)]
struct PreviewedLeftOut {
    why: LeftOut,
    count: u64,
}

#[derive(Deserialize)]
struct PreviewedUnblocked {
    waiting: u64,
    lanes: u64,
    is_exact: bool,
}

/// What a job would do, as the page shows it.
struct ShownPreview {
    sentences: Vec<String>,
    endpoints: Vec<PreviewedEndpoint>,
    /// Endpoints that are not in the table.
    others: usize,
    labels: BTreeMap<String, EndpointLabel>,
    matches: u64,
    /// Whether more may match than were found.
    is_open: bool,
    button: String,
}

impl ShownPreview {
    fn label(&self, endpoint: &str) -> Option<&EndpointLabel> {
        self.labels.get(endpoint)
    }

    /// Says which part of the endpoint's rate the job takes.
    fn share(&self, row: &PreviewedEndpoint) -> String {
        let rate = self.labels.get(&row.endpoint).and_then(|label| label.per_second);
        match row.per_second.zip(rate) {
            Some((pace, rate)) if rate > 0.0 => format!("{} of its rate", words::percent((pace / rate).min(1.0))),
            _ => String::new(),
        }
    }
}

#[derive(Template)]
#[template(path = "recover.html")]
struct RecoverPage {
    frame: Frame,
    form: RecoverForm,
    verb: &'static str,
    preview: Option<ShownPreview>,
    problem: String,
    faults: Vec<FieldFault>,
    tenant: String,
}

impl RecoverPage {
    /// Returns what is wrong with a field, by the end of its pointer.
    fn fault(&self, name: &str) -> &str {
        let is_of = |fault: &&FieldFault| fault.pointer.split('/').any(|part| part == name);
        self.faults.iter().find(is_of).map_or("", |fault| fault.detail.as_str())
    }
}

/// Most endpoints that a preview lists.
const ENDPOINTS_MAX: usize = 50;

/// Shows the form, and if asked what the job would do.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    let mut form = read_form(&page.query)?;
    if page.frame.is_portal() {
        form.tenant.clear();
    }
    if !page.query.has("preview") {
        if form.is_unfiltered() {
            form.since = "24h".to_owned();
        }
        return render(page, form, Ok(None));
    }
    form.fix_times(page.now);
    let found = match form.document(page.now, true) {
        Ok(document) => page.api.send(Method::POST, &page.scoped_path("/jobs"), Some(document)).await,
        Err(faults) => Err(unfit(faults)),
    };
    let found = found.and_then(|found| {
        serde_json::from_value::<PreviewResponse>(found).map_err(|problem| PageError::unreadable("/jobs", &problem))
    });
    match found {
        Ok(found) => {
            let shown = shown_preview(&page, &form, found).await;
            render(page, form, Ok(Some(shown)))
        }
        Err(problem) => refused(page, form, problem),
    }
}

/// Starts the job that was previewed.
pub async fn start(page: PageContext) -> Result<PageAnswer, PageError> {
    let mut form = read_form(&page.form)?;
    if page.frame.is_portal() {
        form.tenant.clear();
    }
    let path = if page.frame.is_portal() {
        page.tenant_path("/jobs")
    } else if form.tenant.is_empty() {
        "/v1/jobs".to_owned()
    } else {
        api_path!("/v1/tenants/{}/jobs", form.tenant)
    };
    let started = match form.document(page.now, false) {
        Ok(document) => page.api.send(Method::POST, &path, Some(document)).await,
        Err(faults) => Err(unfit(faults)),
    };
    match started {
        Ok(job) => {
            let text = |name: &str| job[name].as_str().unwrap_or_default().to_owned();
            let link = page.frame.link("jobs", &text("tenant"), &text("id"));
            Ok(page.lead_to(link.trim_start_matches(&page.frame.root), "job_started"))
        }
        Err(problem) => refused(page, form, problem),
    }
}

/// Reads the form. One that names more deliveries than a job takes is not even shown again:
/// each of them would be on the page twice.
fn read_form(values: &FormValues) -> Result<RecoverForm, PageError> {
    let form = RecoverForm::read(values);
    if form.ids.len() > IDS_MAX {
        let detail = format!("{} deliveries are chosen; choose at most 5,000, or use a filter", form.ids.len());
        return Err(PageError::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
    }
    Ok(form)
}

fn unfit(fields: Vec<FieldFault>) -> PageError {
    PageError { fields, ..PageError::new(StatusCode::UNPROCESSABLE_ENTITY, "something in this form cannot be read") }
}

/// Shows the form again with what is wrong, if a person can mend it here.
fn refused(page: PageContext, form: RecoverForm, problem: PageError) -> Result<PageAnswer, PageError> {
    if !problem.status.is_client_error() || problem.status == StatusCode::FORBIDDEN {
        return Err(problem);
    }
    render(page, form, Err(problem))
}

fn render(
    page: PageContext,
    form: RecoverForm,
    preview: Result<Option<ShownPreview>, PageError>,
) -> Result<PageAnswer, PageError> {
    let (preview, problem, faults) = match preview {
        Ok(preview) => (preview, String::new(), Vec::new()),
        Err(problem) if problem.fields.iter().any(|fault| fault.pointer == "/filter") && form.is_unfiltered() => {
            let said = "the filter is empty; narrow it down, or say that everything is meant";
            (None, said.to_owned(), Vec::new())
        }
        Err(problem) => (None, problem.detail, problem.fields),
    };
    let tenant = page.session.tenant().map_or_else(|| form.tenant.clone(), ToString::to_string);
    let verb = kind_verb(form.kind);
    PageContext::render(&RecoverPage { frame: page.frame, form, verb, preview, problem, faults, tenant })
}

async fn shown_preview(page: &PageContext, form: &RecoverForm, mut found: PreviewResponse) -> ShownPreview {
    let sentences = sentences(form.kind, &found, page.now);
    let others = found.endpoints.len().saturating_sub(ENDPOINTS_MAX);
    found.endpoints.truncate(ENDPOINTS_MAX);
    let named = found.endpoints.iter().map(|row| row.endpoint.clone());
    let labels = labels_in(&page.api, page.tenant(), named).await;
    let noun = if form.kind.creates_deliveries() { ("event", "events") } else { ("delivery", "deliveries") };
    let least = found.bound.words();
    let button = format!("{} {least}{}", kind_verb(form.kind), counted(found.matches, noun.0, noun.1));
    let is_open = found.bound.is_open();
    ShownPreview { sentences, endpoints: found.endpoints, others, labels, matches: found.matches, is_open, button }
}

/// Says what a job would do, to whom, how fast, and what stays out.
fn sentences(kind: JobKind, preview: &PreviewResponse, now: Timestamp) -> Vec<String> {
    let mut said = vec![first_sentence(kind, preview)];
    let lanes: u64 = preview.endpoints.iter().map(|endpoint| endpoint.lanes).sum();
    if lanes > 0 && kind.is_sending() && preview.matches > 0 {
        let least = if preview.looked_at.is_some() { "at least " } else { "" };
        said.push(format!("They are in {least}{}; each lane keeps its order.", counted(lanes, "lane", "lanes")));
    }
    let fastest = preview.endpoints.iter().filter_map(|endpoint| endpoint.per_second).fold(0.0, f64::max);
    if fastest > 0.0 && preview.matches > 0 {
        let took = preview.done_at.map(|at| format!(", and be done in about {}", words::between(now, at)));
        said.push(format!(
            "It would send at most {} per second to each endpoint{}. New events share the rate meanwhile.",
            pace(fastest),
            took.unwrap_or_default()
        ));
    }
    if preview.unblocks.waiting > 0 {
        said.push(format!(
            "{}{} behind them in {} would go on.",
            if preview.unblocks.is_exact { "" } else { "At least " },
            counted(preview.unblocks.waiting, "delivery that waits", "deliveries that wait"),
            counted(preview.unblocks.lanes, "lane", "lanes")
        ));
    }
    let reasons =
        [(WaitingFor::Pause, "paused"), (WaitingFor::Disabled, "disabled"), (WaitingFor::Breaker, "held by a breaker")];
    for (held_by, why) in reasons {
        let held = preview.endpoints.iter().filter(|row| row.held_by == Some(held_by)).count() as u64;
        if held > 0 {
            let endpoints = counted(held, "endpoint is", "endpoints are");
            said.push(format!("{endpoints} {why}: the job waits there until deliveries can be sent again."));
        }
    }
    for left_out in &preview.left_out {
        said.push(format!(
            "{}: {}.",
            counted(left_out.count, "delivery would stay as it is", "deliveries would stay as they are"),
            left_out.why.meaning()
        ));
    }
    if let Some(looked_at) = preview.looked_at.filter(|_| preview.bound != MatchBound::Exact) {
        said.push(format!(
            "{} were looked at one by one; among the others more may stay.",
            counted(looked_at, "delivery", "deliveries")
        ));
    }
    said
}

/// Says what a job would do, and to whom.
fn first_sentence(kind: JobKind, preview: &PreviewResponse) -> String {
    let least = match preview.bound.words() {
        "" => String::new(),
        words => format!("{}{}", words[..1].to_uppercase(), &words[1..]),
    };
    let deliveries = counted(preview.matches, "delivery", "deliveries");
    let endpoints = counted(preview.endpoints.len() as u64, "endpoint", "endpoints");
    match kind {
        _ if preview.matches == 0 && preview.bound == MatchBound::Exact => {
            "Nothing would be changed: no delivery matches that could be taken.".to_owned()
        }
        JobKind::Replay => format!("{least}{deliveries} would be sent again, to {endpoints}."),
        JobKind::Retry => format!("{least}{deliveries} that wait would be tried now, at {endpoints}."),
        JobKind::Backfill => {
            let events = counted(preview.matches, "past event", "past events");
            format!("{least}{events} would be sent, to {endpoints}.")
        }
        JobKind::Discard => format!(
            "{least}{deliveries} of {endpoints} would be given up for good. Nothing is sent, and the lanes that they block move on."
        ),
        JobKind::Cancel => format!(
            "{least}{deliveries} that wait for {endpoints} would be cancelled. No attempt is made for them any more."
        ),
        JobKind::Purge => "Nothing would be changed: a tenant is purged by a command of its own.".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(kind: JobKind, preview: serde_json::Value) -> Vec<String> {
        let now: Timestamp = "2026-11-18T10:00:00Z".parse().unwrap();
        sentences(kind, &serde_json::from_value(preview).unwrap(), now)
    }

    #[test]
    fn a_preview_says_what_a_replay_does_to_the_receivers() {
        let preview = json!({
            "matches": 1204, "bound": "exact", "looked_at": null, "done_at": "2026-11-18T10:00:25Z",
            "endpoints": [
                {"endpoint": "ep_1", "matches": 1200, "bound": "exact", "lanes": 30, "per_second": 125.0, "takes": "10s"},
                {"endpoint": "ep_2", "matches": 4, "bound": "exact", "lanes": 7, "per_second": 0.5, "takes": "8s",
                    "held_by": "pause"},
            ],
            "unblocks": {"waiting": 88, "lanes": 5, "is_exact": true}, "left_out": [{"why": "expunged", "count": 12}],
        });
        assert_eq!(
            said(JobKind::Replay, preview),
            [
                "1,204 deliveries would be sent again, to 2 endpoints.",
                "They are in 37 lanes; each lane keeps its order.",
                "It would send at most 125 per second to each endpoint, and be done in about 25 s. New events share the rate meanwhile.",
                "88 deliveries that wait behind them in 5 lanes would go on.",
                "1 endpoint is paused: the job waits there until deliveries can be sent again.",
                "12 deliveries would stay as they are: the event's data was expunged.",
            ]
        );
    }

    #[test]
    fn a_preview_that_is_not_exact_says_so() {
        let preview = json!({
            "matches": 9000, "bound": "at_least", "looked_at": 10000, "done_at": null, "left_out": [],
            "endpoints": [{"endpoint": "ep_1", "matches": 9000, "bound": "at_least", "looked_at": 10000, "lanes": 0}],
            "unblocks": {"waiting": 40000, "lanes": 10000, "is_exact": false},
        });
        let said = said(JobKind::Discard, preview);
        assert!(said[0].starts_with("At least 9,000 deliveries of 1 endpoint would be given up for good."), "{said:?}");
        let unblocked = "At least 40,000 deliveries that wait behind them in 10,000 lanes would go on.";
        assert_eq!(said[1], unblocked);
        assert!(said[2].starts_with("10,000 deliveries were looked at one by one"), "{said:?}");
    }

    #[test]
    fn a_preview_of_nothing_promises_nothing() {
        let preview = json!({
            "matches": 0, "bound": "exact", "endpoints": [], "unblocks": {"waiting": 0, "lanes": 0, "is_exact": true},
            "left_out": [{"why": "overtaken", "count": 1}],
        });
        let said = said(JobKind::Replay, preview);
        assert_eq!(said.len(), 2);
        assert!(
            said[0].starts_with("Nothing would be changed") && said[1].starts_with("1 delivery would stay as it is")
        );
    }
}
