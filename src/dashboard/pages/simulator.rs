//! The policy simulator: what a retry policy would do, beside the one in force, and
//! in the outages that an endpoint has had.

use askama::Template;
use http::{Method, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::dashboard::api_caller::segment;
use crate::dashboard::chart::schedule::{AttemptWindow, PlannedPolicy, ScheduleChart};
use crate::dashboard::chart::{ChartTone, Svg};
use crate::dashboard::context::PageContext;
use crate::dashboard::forms::FormValues;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;
use crate::dashboard::words;
use crate::model::span::Span;

/// Most outages of an endpoint that are tried.
const OUTAGES_MAX: usize = 5;

#[derive(Deserialize)]
struct PreviewAnswer {
    policy: String,
    span: String,
    age: String,
    attempts: Vec<PreviewAttempt>,
    survival: Vec<PreviewSurvival>,
    recovery: PreviewRecovery,
}

#[derive(Deserialize)]
struct PreviewAttempt {
    number: u32,
    earliest: Span,
    expected: Span,
    latest: Span,
    odds: f64,
}

#[derive(Deserialize)]
struct PreviewSurvival {
    outage: String,
    odds: f64,
}

#[derive(Deserialize)]
struct PreviewRecovery {
    outage: String,
    first_minute: u32,
}

#[derive(Deserialize)]
struct HistoryPage {
    data: Vec<HistoryRow>,
}

#[derive(Deserialize)]
struct HistoryRow {
    at: Timestamp,
    what: String,
}

/// An outage that an endpoint has had, and what the policies would have done.
struct PastOutage {
    from: Timestamp,
    lasted: String,
    tried: Vec<TriedOutage>,
}

struct TriedOutage {
    name: String,
    odds: f64,
    first_minute: u32,
}

struct ShownPolicy {
    name: String,
    preview: PreviewAnswer,
}

#[derive(Template)]
#[template(path = "simulator.html")]
struct SimulatorPage {
    frame: Frame,
    query: FormValues,
    presets: [&'static str; 6],
    policies: Vec<ShownPolicy>,
    drawing: Svg,
    outages: Vec<PastOutage>,
    problem: Option<PageError>,
}

/// Shows what a policy would do.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    let spec = spec_of(&page.query);
    let mut wanted: Vec<(String, Value)> = Vec::new();
    let mut problem = None;
    let endpoint = page.query.get("endpoint").to_owned();
    if !endpoint.is_empty() && !page.tenant().is_empty() {
        let path = page.tenant_path(&format!("/endpoints/{}", segment(&endpoint)));
        match page.api.get::<Value>(&path).await {
            Ok(found) => wanted.push(("in force".to_owned(), found["retry"].clone())),
            Err(refused) => problem = Some(refused),
        }
    }
    match spec {
        Ok(spec) => wanted.push(("tried".to_owned(), spec)),
        Err(refused) => problem = Some(refused),
    }
    let mut policies = Vec::new();
    for (name, spec) in &wanted {
        match preview(&page, spec, None).await {
            Ok(preview) => policies.push(ShownPolicy { name: name.clone(), preview }),
            Err(refused) => problem = Some(refused),
        }
    }
    let outages = match problem {
        None if !endpoint.is_empty() => past_outages(&page, &endpoint, &wanted).await?,
        _ => Vec::new(),
    };
    let drawing = draw(&policies);
    let presets = ["standard", "quick", "hourly", "stepped", "patient", "long"];
    PageContext::render(&SimulatorPage {
        frame: page.frame,
        query: page.query,
        presets,
        policies,
        drawing,
        outages,
        problem,
    })
}

async fn preview(page: &PageContext, spec: &Value, outage: Option<&str>) -> Result<PreviewAnswer, PageError> {
    let query = outage.map(|outage| format!("?outage={}", segment(outage))).unwrap_or_default();
    let answer = page.api.send(Method::POST, &format!("/v1/policies/preview{query}"), Some(spec.clone())).await?;
    serde_json::from_value(answer).map_err(|problem| PageError::unreadable("/v1/policies/preview", &problem))
}

/// Builds the policy from the form: the whole as JSON if that is given, else a
/// preset with the fields that differ.
fn spec_of(query: &FormValues) -> Result<Value, PageError> {
    if let Some(text) = query.given("json") {
        return serde_json::from_str(text).map_err(|problem| {
            PageError::new(StatusCode::UNPROCESSABLE_ENTITY, format!("the policy is not JSON: {problem}"))
        });
    }
    let mut spec = json!({"preset": query.given("preset").unwrap_or("standard")});
    for name in ["max_age", "retry_after_max"] {
        if let Some(value) = query.given(name) {
            spec[name] = json!(value);
        }
    }
    if let Some(most) = query.given("max_attempts") {
        spec["max_attempts"] = most.parse::<u32>().map_or_else(|_| json!(most), |most| json!(most));
    }
    if let Some(schedule) = query.given("schedule") {
        let steps: Vec<&str> = schedule.split([',', ' ']).filter(|step| !step.is_empty()).collect();
        spec["schedule"] = json!(steps);
    }
    Ok(spec)
}

/// Returns the last outages of an endpoint, as its breaker has seen them, with what
/// each policy would have done.
async fn past_outages(
    page: &PageContext,
    endpoint: &str,
    wanted: &[(String, Value)],
) -> Result<Vec<PastOutage>, PageError> {
    let path = page.tenant_path(&format!("/endpoints/{}/history?limit=200", segment(endpoint)));
    let history: HistoryPage = page.api.get(&path).await?;
    let mut outages = Vec::new();
    for (from, to) in outages_in(&history.data, page.now) {
        let lasted = format!("{}s", to.duration_since(from).as_secs().max(1));
        let mut tried = Vec::new();
        for (name, spec) in wanted {
            let preview = preview(page, spec, Some(&lasted)).await?;
            let odds = preview.survival.first().map_or(0.0, |survival| survival.odds);
            tried.push(TriedOutage { name: name.clone(), odds, first_minute: preview.recovery.first_minute });
        }
        outages.push(PastOutage { from, lasted: words::between(from, to), tried });
    }
    Ok(outages)
}

/// Pairs openings of the breaker with the closing after them, newest first. An
/// outage that lasts ends now.
fn outages_in(newest_first: &[HistoryRow], now: Timestamp) -> Vec<(Timestamp, Timestamp)> {
    let (mut outages, mut opened) = (Vec::new(), None);
    for row in newest_first.iter().rev() {
        match row.what.as_str() {
            "breaker_opened" if opened.is_none() => opened = Some(row.at),
            "breaker_closed" | "recovered" => outages.extend(opened.take().map(|from| (from, row.at))),
            _ => {}
        }
    }
    outages.extend(opened.map(|from| (from, now)));
    outages.reverse();
    outages.truncate(OUTAGES_MAX);
    outages
}

fn draw(policies: &[ShownPolicy]) -> Svg {
    let seconds = |span: Span| span.0.as_secs_f64();
    let planned: Vec<PlannedPolicy> = policies
        .iter()
        .map(|shown| PlannedPolicy {
            name: format!("{}: {}", shown.name, shown.preview.policy),
            tone: if shown.name == "in force" { ChartTone::Off } else { ChartTone::Calm },
            attempts: shown
                .preview
                .attempts
                .iter()
                .zip(1..)
                .map(|(attempt, number)| AttemptWindow {
                    number,
                    earliest: seconds(attempt.earliest),
                    expected: seconds(attempt.expected),
                    latest: seconds(attempt.latest),
                })
                .collect(),
        })
        .collect();
    let title = "When each attempt is made, counted from the first";
    ScheduleChart { title, width: 900.0, attempts_max: 40, policies: &planned }.draw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_becomes_a_policy() {
        let spec = |query: &str| spec_of(&FormValues::parse(query.as_bytes()));
        assert_eq!(spec("").unwrap(), json!({"preset": "standard"}));
        let written = spec("preset=quick&max_attempts=7&max_age=2h&schedule=30s%2C+2m").unwrap();
        assert_eq!(written, json!({"preset": "quick", "max_attempts": 7, "max_age": "2h", "schedule": ["30s", "2m"]}));
        assert_eq!(spec("max_attempts=many").unwrap()["max_attempts"], json!("many"), "the API says what is wrong");
        assert_eq!(spec("json=%7B%22preset%22%3A%22long%22%7D").unwrap(), json!({"preset": "long"}));
        assert!(spec("json=%7B").unwrap_err().detail.starts_with("the policy is not JSON"));
    }

    #[test]
    fn an_outage_lasts_from_the_opening_to_the_closing() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let row = |second, what: &str| HistoryRow { at: at(second), what: what.to_owned() };
        let history = [
            row(900, "breaker_opened"),
            row(400, "breaker_closed"),
            row(300, "probe_failed"),
            row(200, "breaker_opened"),
            row(100, "resumed"),
        ];
        assert_eq!(outages_in(&history, at(1_000)), [(at(900), at(1_000)), (at(200), at(400))]);
        assert!(outages_in(&[], at(0)).is_empty());
    }
}
