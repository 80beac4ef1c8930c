//! The policy simulator: what a retry policy would do, beside the one in force, and
//! in the outages that an endpoint has had.

use askama::Template;
use http::{Method, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::past_outages::{Outage, past_outages};
use crate::dashboard::api_caller::{api_path, segment};
use crate::dashboard::chart::schedule::{AttemptWindow, PlannedPolicy, ScheduleChart};
use crate::dashboard::chart::{ChartTone, Svg};
use crate::dashboard::commands;
use crate::dashboard::context::PageContext;
use crate::dashboard::forms::FormValues;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;
use crate::dashboard::words;
use crate::model::span::Span;

#[derive(Deserialize)]
struct PreviewAnswer {
    policy: String,
    span: Span,
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

impl PreviewAnswer {
    /// Returns for how long a delivery is tried, in words.
    fn span_words(&self) -> String {
        words::span(self.span.0.as_secs_f64())
    }
}

/// An outage that an endpoint has had, and what the policies would have done.
struct PastOutage {
    from: Timestamp,
    lasted: String,
    /// Attempts that failed in it, if they tell of it.
    failed: Option<u64>,
    tried: Vec<TriedOutage>,
}

struct TriedOutage {
    name: PolicyRole,
    odds: f64,
    first_minute: u32,
}

/// Which policy is simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
enum PolicyRole {
    /// That of the endpoint.
    #[strum(to_string = "in force")]
    InForce,
    /// That of the form.
    #[strum(to_string = "tried")]
    Tried,
}

impl PolicyRole {
    fn tone(self) -> ChartTone {
        match self {
            Self::InForce => ChartTone::Off,
            Self::Tried => ChartTone::Calm,
        }
    }
}

struct ShownPolicy {
    name: PolicyRole,
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
    let mut wanted: Vec<(PolicyRole, Value)> = Vec::new();
    let mut problem = None;
    let endpoint = page.query.get("endpoint").to_owned();
    let tenant = if page.tenant().is_empty() { "default" } else { page.tenant() }.to_owned();
    if !endpoint.is_empty() {
        let path = api_path!("/v1/tenants/{}/endpoints/{}", tenant, endpoint);
        match page.api.get::<Value>(&path).await {
            Ok(found) => wanted.push((PolicyRole::InForce, found["retry"].clone())),
            Err(refused) => problem = Some(refused),
        }
    }
    match spec {
        Ok(spec) => wanted.push((PolicyRole::Tried, spec)),
        Err(refused) => problem = Some(refused),
    }
    let mut policies = Vec::new();
    for (name, spec) in &wanted {
        match preview(&page, spec, None).await {
            Ok(preview) => policies.push(ShownPolicy { name: *name, preview }),
            Err(refused) => problem = Some(refused),
        }
    }
    let outages = match problem {
        None if !endpoint.is_empty() => tried_outages(&page, &tenant, &endpoint, &wanted).await?,
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

/// Returns the last outages of an endpoint, with what each policy would have done.
async fn tried_outages(
    page: &PageContext,
    tenant: &str,
    endpoint: &str,
    wanted: &[(PolicyRole, Value)],
) -> Result<Vec<PastOutage>, PageError> {
    let mut outages = Vec::new();
    for Outage { from, to, failed } in past_outages(page, tenant, endpoint).await? {
        let lasted = format!("{}s", to.duration_since(from).as_secs().max(1));
        let mut tried = Vec::new();
        for (name, spec) in wanted {
            let preview = preview(page, spec, Some(&lasted)).await?;
            let odds = preview.survival.first().map_or(0.0, |survival| survival.odds);
            tried.push(TriedOutage { name: *name, odds, first_minute: preview.recovery.first_minute });
        }
        outages.push(PastOutage { from, lasted: words::between(from, to), failed, tried });
    }
    Ok(outages)
}

fn draw(policies: &[ShownPolicy]) -> Svg {
    let seconds = |span: Span| span.0.as_secs_f64();
    let planned: Vec<PlannedPolicy> = policies
        .iter()
        .map(|shown| PlannedPolicy {
            name: format!("{}: {}", shown.name, shown.preview.policy),
            tone: shown.name.tone(),
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
    fn the_time_of_a_policy_is_told_in_words() {
        let answer = json!({"policy": "patient", "span": "27810s", "age": "", "survival": [], "attempts": [],
            "recovery": {"outage": "3h", "first_minute": 365}});
        let preview: PreviewAnswer = serde_json::from_value(answer).unwrap();
        assert_eq!(preview.span_words(), "7 h 43 min");
    }

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
}
