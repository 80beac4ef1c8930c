//! One endpoint: how is it, what does it get, and what would change that?

use askama::Template;
use http::Method;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use super::authors::Authors;
use super::endpoint_charts::{ChartRange, DrawnChart, PastEvent, StepRow, charts, step_rows};
use super::endpoint_facts::{EndpointSummary, deliveries};
use super::figure_steps::{FigureRun, known_until};
use super::figure_words;
use super::recovery_words::counted;
use crate::dashboard::api_caller::{ApiCaller, api_path, segment};
use crate::dashboard::chart::schedule::{AttemptWindow, PlannedPolicy, ScheduleChart};
use crate::dashboard::chart::{ChartTone, Svg};
use crate::dashboard::commands;
use crate::dashboard::context::PageContext;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;
use crate::dashboard::shown_delivery::state_mark;
use crate::dashboard::words;
use crate::model::audit::AuditAction;
use crate::model::delivery::{DeliveryState, WaitingFor};
use crate::model::endpoint_event::{Actor, EndpointEventKind};
use crate::model::named_enum::NamedEnum;
use crate::model::span::Span;

/// Most attempts of the retry schedule that are drawn.
const ATTEMPTS_DRAWN: usize = 24;

/// Most time between an act in the history and its entry in the audit log.
const SAME_ACT: SignedDuration = SignedDuration::from_secs(2);

/// One page of a list of the API.
#[derive(Deserialize)]
struct Listed<T> {
    data: Vec<T>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct BlockedLane {
    key: Option<String>,
    head: String,
    since: Timestamp,
    waiting: u64,
}

/// How many dead letters an endpoint has.
#[derive(Deserialize)]
struct DeadOfEndpoint {
    total: CountOfDead,
}

#[derive(Deserialize)]
struct CountOfDead {
    count: u64,
}

#[derive(Deserialize)]
struct RecentDelivery {
    id: String,
    tenant: String,
    event_type: String,
    state: DeliveryState,
    waiting_for: Option<WaitingFor>,
    in_flight: bool,
    attempts: u64,
    created_at: Timestamp,
    last_status: Option<u64>,
    last_error: Option<LastError>,
}

#[derive(Deserialize)]
struct LastError {
    kind: String,
}

#[derive(Deserialize)]
struct EndpointAuditRow {
    at: Timestamp,
    action: AuditAction,
    by: String,
    fields: Vec<String>,
}

#[derive(Deserialize)]
struct PlannedRetries {
    policy: String,
    span: Span,
    attempts: Vec<ShownAttemptPlan>,
    survival: Vec<SurvivedOutage>,
}

#[derive(Deserialize)]
struct ShownAttemptPlan {
    number: u32,
    earliest: Span,
    expected: Span,
    latest: Span,
}

#[derive(Deserialize)]
struct SurvivedOutage {
    outage: Span,
    odds: f64,
}

/// The plan of the policy in force, drawn.
struct DrawnPlan {
    policy: String,
    span: String,
    drawing: Svg,
    drawn: u64,
    attempts: u64,
    /// Longest outage that nearly all deliveries get over.
    survives: Option<String>,
}

/// An action that was refused, with what was typed.
pub struct RefusedAction {
    /// Name of the action.
    pub action: &'static str,
    /// The problem's sentence.
    pub detail: String,
    /// What was typed.
    pub typed: String,
}

#[derive(Template)]
#[template(path = "endpoint.html")]
struct EndpointPage {
    frame: Frame,
    facts: EndpointSummary,
    path: String,
    range: ChartRange,
    charts: Vec<DrawnChart>,
    steps: Vec<StepRow>,
    known: String,
    history: Vec<PastEvent>,
    lanes: Listed<BlockedLane>,
    deliveries: Vec<RecentDelivery>,
    audit: Vec<EndpointAuditRow>,
    plan: Option<DrawnPlan>,
    refused: Option<RefusedAction>,
    tenant: String,
    /// Dead letters of the endpoint.
    dead: u64,
    /// Share of attempts that delivered of late, if it is poor.
    poor_success: Option<f64>,
}

/// Shows an endpoint.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    show_with(page, None).await
}

/// Shows an endpoint, and the action that was refused.
pub async fn show_with(page: PageContext, refused: Option<RefusedAction>) -> Result<PageAnswer, PageError> {
    let path = endpoint_path(&page);
    let range = ChartRange::named(page.query.get("range"));
    let id = segment(page.param("endpoint"));
    let since = segment(&format!("{:.0}", page.now - range.covers()));
    let figures_path = format!("{path}/figures?step={}&from={since}", range.api_step());
    let history_path = format!("{path}/history?limit=50");
    let lanes_path = format!("{path}/lanes?blocked=true&limit=10");
    let deliveries_path = page.tenant_path(&format!("/deliveries?endpoint={id}&limit=10"));
    let audit_path = page.tenant_path(&format!("/audit?resource={id}&limit=10"));
    let dead_path = page.tenant_path(&format!("/dead-letters/groups?endpoint={id}&limit=1"));
    let api = &page.api;
    let (facts, run, history, lanes, deliveries, audit, dead) = tokio::try_join!(
        api.get::<EndpointSummary>(&path),
        api.get::<FigureRun>(&figures_path),
        api.get::<Listed<PastEvent>>(&history_path),
        api.get::<Listed<BlockedLane>>(&lanes_path),
        api.get::<Listed<RecentDelivery>>(&deliveries_path),
        api.get::<Listed<EndpointAuditRow>>(&audit_path),
        api.get::<DeadOfEndpoint>(&dead_path),
    )?;
    let (mut facts, mut history, mut audit) = (facts, history.data, audit.data);
    tell_of(&Authors::of(&page).await, &mut facts, &mut history, &mut audit);
    let run = run.begun_at(facts.created_at);
    let plan = plan(api, &facts).await;
    let link = page.frame.link("endpoints", page.tenant(), page.param("endpoint"));
    let latest = if range == ChartRange::Week { SignedDuration::from_hours(1) } else { SignedDuration::from_mins(5) };
    let shown = EndpointPage {
        poor_success: run.poor_success(latest, page.now),
        charts: charts(&run, range, &history, page.now),
        steps: step_rows(&run, range, page.now),
        known: known_until(&run),
        tenant: page.tenant().to_owned(),
        frame: page.frame,
        history: history.into_iter().take(12).collect(),
        deliveries: deliveries.data,
        audit,
        dead: dead.total.count,
        path: link,
        range,
        facts,
        lanes,
        plan,
        refused,
    };
    PageContext::render(&shown)
}

/// Leaves out what the readers of the page are not told of who did it: names, and
/// notes of people. A note is its author's whom the audit log names for the same act.
fn tell_of(authors: &Authors, facts: &mut EndpointSummary, history: &mut [PastEvent], audit: &mut [EndpointAuditRow]) {
    // Operators are told everything, also of acts whose entries are older than those read here.
    if authors.is_shown("admin") {
        return;
    }
    let is_note_shown = |event: &PastEvent| {
        let action = recorded_as(event.what);
        let is_it =
            |row: &&EndpointAuditRow| Some(row.action) == action && row.at.duration_since(event.at).abs() <= SAME_ACT;
        let mut rows = audit.iter().filter(is_it).peekable();
        rows.peek().is_some() && rows.all(|row| authors.is_shown(&row.by))
    };
    let mut hidden = Vec::new();
    for event in history.iter_mut().filter(|event| event.by == Actor::Person) {
        if !is_note_shown(event) {
            hidden.extend(event.reason.take());
        }
    }
    let is_told = |reason: &String| history.iter().any(|event| event.reason.as_ref() == Some(reason));
    let is_persons = (facts.state_by == Some(Actor::Person), facts.health.reason_by == Some(Actor::Person));
    facts.state_reason =
        facts.state_reason.take().filter(|reason| !hidden.contains(reason) && (!is_persons.0 || is_told(reason)));
    facts.health.reason =
        facts.health.reason.take().filter(|reason| !hidden.contains(reason) && (!is_persons.1 || is_told(reason)));
    for row in audit {
        row.by = authors.words(&row.by);
    }
}

/// Returns what the audit log calls an act of a person that has this effect.
fn recorded_as(what: EndpointEventKind) -> Option<AuditAction> {
    match what {
        EndpointEventKind::Paused => Some(AuditAction::EndpointPaused),
        EndpointEventKind::Resumed => Some(AuditAction::EndpointResumed),
        EndpointEventKind::Disabled => Some(AuditAction::EndpointDisabled),
        EndpointEventKind::BreakerOpened => Some(AuditAction::BreakerOpened),
        EndpointEventKind::BreakerClosed => Some(AuditAction::BreakerClosed),
        EndpointEventKind::ProbeFailed | EndpointEventKind::Recovered => None,
    }
}

/// Returns the path of the API of the page's endpoint.
pub fn endpoint_path(page: &PageContext) -> String {
    api_path!("/v1/tenants/{}/endpoints/{}", page.tenant(), page.param("endpoint"))
}

/// Returns the path of the page's endpoint below the root of the site.
pub fn page_path(page: &PageContext) -> String {
    let link = page.frame.link("endpoints", page.tenant(), page.param("endpoint"));
    link.trim_start_matches(page.frame.root.as_str()).to_owned()
}

/// Asks for the plan of the policy in force; none if it cannot be told.
async fn plan(api: &ApiCaller, facts: &EndpointSummary) -> Option<DrawnPlan> {
    let planned = api.send(Method::POST, "/v1/policies/preview", Some(facts.retry.clone())).await.ok()?;
    let planned: PlannedRetries = serde_json::from_value(planned).ok()?;
    let seconds = |span: Span| span.as_millis() as f64 / 1000.0;
    let windows: Vec<AttemptWindow> = planned
        .attempts
        .iter()
        .map(|attempt| AttemptWindow {
            number: attempt.number,
            earliest: seconds(attempt.earliest),
            expected: seconds(attempt.expected),
            latest: seconds(attempt.latest),
        })
        .collect();
    let survives =
        planned.survival.iter().rev().find(|row| row.odds >= 0.99).map(|row| words::span(seconds(row.outage)));
    let attempts = windows.len();
    let policies = [PlannedPolicy { name: String::new(), tone: ChartTone::Calm, attempts: windows }];
    let title = "When each attempt is made, after the first";
    Some(DrawnPlan {
        drawing: ScheduleChart { title, width: 460.0, attempts_max: ATTEMPTS_DRAWN, policies: &policies }.draw(),
        drawn: attempts.min(ATTEMPTS_DRAWN) as u64,
        attempts: attempts as u64,
        policy: planned.policy,
        span: words::span(seconds(planned.span)),
        survives,
    })
}

impl EndpointPage {
    /// Whether somebody should look at it.
    fn is_troubled(&self) -> bool {
        self.facts.is_troubled() || !self.lanes.data.is_empty() || self.poor_success.is_some()
    }

    /// Says how it is; lanes that stand and failures among successes are said where nothing worse is.
    fn headline(&self) -> String {
        let blocked = self.lanes.data.len();
        let waiting = self
            .facts
            .health
            .waiting
            .map_or(String::new(), |count| format!("; {}", deliveries(count, "waits", "wait")));
        match self.poor_success {
            _ if self.facts.is_troubled() => return self.facts.health_words(),
            Some(share) if blocked == 0 => {
                return format!(
                    "It answers, but only {} of its latest attempts delivered{waiting}.",
                    words::percent(share)
                );
            }
            None if blocked == 0 => return self.facts.health_words(),
            _ => {}
        }
        let lanes = match (blocked, &self.lanes.next) {
            (count, Some(_)) => format!("more than {count} lanes stand behind dead letters"),
            (1, None) => "1 lane stands behind a dead letter".to_owned(),
            (count, None) => format!("{count} lanes stand behind dead letters"),
        };
        format!("It answers, but {lanes}{waiting}.")
    }

    /// Returns what was typed into the form of an action that was refused.
    fn typed(&self, action: &str) -> &str {
        self.refused.as_ref().filter(|refused| refused.action == action).map_or("", |refused| &refused.typed)
    }

    /// Returns why an action was refused; empty if it was not.
    fn refusal(&self, action: &str) -> &str {
        self.refused.as_ref().filter(|refused| refused.action == action).map_or("", |refused| &refused.detail)
    }

    /// Says how much of the cap is open to requests now.
    fn cap_words(&self) -> String {
        let (now, cap) = (self.facts.health.max_in_flight_now, self.facts.max_in_flight);
        if now == cap {
            format!("{} at once", counted(cap, "request", "requests"))
        } else {
            format!("{} at once for now, of {}", counted(now, "request", "requests"), words::count(cap))
        }
    }

    fn rate_words(&self) -> String {
        let rate = &self.facts.rate;
        let burst =
            rate.burst.map_or(String::new(), |burst| format!(", {} together after a rest", words::count(burst)));
        format!("{} a second{burst}", rate.per_second)
    }
}

impl RecentDelivery {
    fn class(&self) -> &'static str {
        state_mark(self.state)
    }

    fn state_words(&self) -> String {
        match &self.waiting_for {
            _ if self.in_flight => "in flight".to_owned(),
            Some(held) => format!("waiting for {}", held.as_str()),
            None => self.state.as_str().to_owned(),
        }
    }

    fn answer(&self) -> String {
        match (&self.last_status, &self.last_error) {
            (Some(status), _) => status.to_string(),
            (None, Some(error)) => error.kind.replace('_', " "),
            (None, None) => "–".to_owned(),
        }
    }
}
