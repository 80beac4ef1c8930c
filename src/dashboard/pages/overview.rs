//! The operator's first page: is it well, and if not, where?

use std::collections::{BTreeMap, BTreeSet};

use askama::Template;
use futures_util::StreamExt;
use futures_util::stream;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use super::attention_rows::AttentionRow;
use super::endpoint_facts::{EndpointSummary, deliveries, words_only};
use super::figure_steps::{FigureRun, FigureSum, known_until};
use super::figure_words;
use crate::dashboard::api_caller::{ApiCaller, api_path};
use crate::dashboard::chart::heat_map::{HeatRow, heat_map};
use crate::dashboard::chart::over_time::{OverTime, Series, Shape};
use crate::dashboard::chart::{ChartTone, Svg};
use crate::dashboard::commands;
use crate::dashboard::context::PageContext;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;
use crate::dashboard::words;
use crate::model::attention::AttentionKind;

/// Most rows of the list of what needs attention.
const ATTENTION_SHOWN: usize = 20;
/// Most rows of the outage map.
const MAPPED_MAX: usize = 30;
/// Look-ups of endpoints that run at once.
const AT_ONCE: usize = 8;

#[derive(Deserialize)]
struct AttentionList {
    data: Vec<AttentionRow>,
    more: u64,
    unanswered_nodes: Vec<String>,
}

#[derive(Deserialize)]
struct HealthTable {
    at: Timestamp,
    rows: Vec<TableRow>,
    slo: SloFacts,
    top_endpoints: Vec<FailingEndpoint>,
}

#[derive(Deserialize)]
struct TableRow {
    name: String,
    value: Option<f64>,
    unit: String,
    healthy: Option<f64>,
    alert: Option<f64>,
    state: String,
}

#[derive(Deserialize)]
struct SloFacts {
    target: f64,
    within: String,
    good: u64,
    total: u64,
    burn_5m: Option<f64>,
    burn_1h: Option<f64>,
    burn_6h: Option<f64>,
}

#[derive(Deserialize)]
struct FailingEndpoint {
    tenant: String,
    endpoint: String,
}

/// The tenant that is as old as the gateway.
#[derive(Deserialize)]
struct FirstTenant {
    created_at: Timestamp,
}

#[derive(Deserialize)]
struct CauseGroups {
    data: Vec<CauseGroup>,
    total: GroupTotal,
}

#[derive(Deserialize)]
struct CauseGroup {
    cause: Option<String>,
    count: u64,
    newest_at: Timestamp,
}

#[derive(Deserialize)]
struct GroupTotal {
    count: u64,
    oldest_at: Option<Timestamp>,
}

/// One figure at the top of the page.
struct Tile {
    value: String,
    label: &'static str,
    hint: String,
    /// Page below the root that shows more of it.
    page: &'static str,
}

/// One endpoint of the outage map, with the sum of its day.
struct MappedEndpoint {
    tenant: String,
    id: String,
    name: String,
    attempts: u64,
    failed: u64,
}

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    frame: Frame,
    verdict: String,
    is_well: bool,
    tiles: Vec<Tile>,
    attention: Vec<AttentionRow>,
    names: BTreeMap<String, String>,
    more_attention: u64,
    unanswered: Vec<String>,
    table: HealthTable,
    causes: CauseGroups,
    chart: Svg,
    hours: Vec<(Timestamp, FigureSum)>,
    known: String,
    map: Option<Svg>,
    mapped: Vec<MappedEndpoint>,
}

impl OverviewPage {
    fn name_of(&self, endpoint: &str) -> String {
        self.names.get(endpoint).cloned().unwrap_or_else(|| endpoint.to_owned())
    }
}

/// Shows the overview.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    let api = &page.api;
    let (attention, table, day, causes, first_tenant) = tokio::try_join!(
        api.get::<AttentionList>("/v1/attention"),
        api.get::<HealthTable>("/v1/health-table"),
        api.get_kept::<FigureRun>("/v1/figures?step=5m"),
        api.get::<CauseGroups>("/v1/dead-letters/groups?by=cause"),
        api.get::<FirstTenant>("/v1/tenants/default"),
    )?;
    let day = FigureRun::clone(&day).begun_at(first_tenant.created_at);
    let looked_at = read_endpoints_with_figures(api, worst(&attention.data, &table.top_endpoints)).await;
    let names = looked_at.iter().map(|(facts, _)| (facts.id.clone(), facts.name())).collect();
    let (map, mapped) = outage_map(&looked_at, page.now);
    let verdict = verdict(&attention.data, causes.total.count);
    let shown = OverviewPage {
        is_well: attention.data.is_empty(),
        tiles: tiles(&table, &day, &causes, page.now),
        more_attention: attention.data.len().saturating_sub(ATTENTION_SHOWN) as u64 + attention.more,
        attention: attention.data.into_iter().take(ATTENTION_SHOWN).collect(),
        unanswered: attention.unanswered_nodes,
        known: known_until(&day),
        chart: day_chart(&day, page.now),
        hours: hours(&day, page.now),
        frame: page.frame,
        verdict,
        names,
        table,
        causes,
        map,
        mapped,
    };
    PageContext::render(&shown)
}

/// Says in one sentence whether all is well, and if not, where.
fn verdict(attention: &[AttentionRow], dead_letters: u64) -> String {
    let mut said = Vec::new();
    if let Some(own) = attention.iter().find(|row| row.kind.is_of_gateway()) {
        said.push(format!("the gateway itself needs help ({})", own.reason));
    }
    // An endpoint may be named for several reasons.
    let mut failing: BTreeMap<&str, u64> = BTreeMap::new();
    for row in attention.iter().filter(|row| row.kind.is_of_failing_endpoint()) {
        let held = failing.entry(row.endpoint.as_deref().unwrap_or_default()).or_default();
        *held = (*held).max(row.waiting.unwrap_or(0));
    }
    let held: u64 = failing.values().sum();
    match failing.len() {
        0 => {}
        1 => said.push("1 endpoint is failing".to_owned()),
        count => said.push(format!("{} endpoints are failing", words::count(count as u64))),
    }
    if held > 0 {
        said.push(deliveries(held, "is held", "are held"));
    }
    let is_blocked = |row: &&AttentionRow| row.kind == AttentionKind::LaneBlocked;
    let blocked: BTreeSet<&str> =
        attention.iter().filter(is_blocked).filter_map(|row| row.endpoint.as_deref()).collect();
    match blocked.len() {
        0 => {}
        1 => said.push("a lane of 1 endpoint is blocked".to_owned()),
        count => said.push(format!("lanes of {} endpoints are blocked", words::count(count as u64))),
    }
    if said.is_empty() && !attention.is_empty() {
        let count = attention.len() as u64;
        let is_growing = |row: &AttentionRow| row.kind == AttentionKind::DeadGrowing && row.endpoint.is_some();
        said.push(match count {
            1 if attention.iter().all(is_growing) => "dead letters grow at 1 endpoint".into(),
            1 => "1 thing needs a look".into(),
            count if attention.iter().all(is_growing) => {
                format!("dead letters grow at {} endpoints", words::count(count))
            }
            count => format!("{} things need a look", words::count(count)),
        });
    }
    if said.is_empty() {
        return match dead_letters {
            0 => "Everything is well.".to_owned(),
            1 => "Everything is well. 1 dead letter waits for a decision.".to_owned(),
            count => format!("Everything is well. {} dead letters wait for a decision.", words::count(count)),
        };
    }
    let said = said.join(", ");
    let mut letters = said.chars();
    let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
    format!("{first}{}; nothing is lost.", letters.as_str())
}

/// Returns the endpoints that are worst off, each once.
fn worst(attention: &[AttentionRow], failing: &[FailingEndpoint]) -> Vec<(String, String)> {
    let named = attention.iter().filter_map(|row| Some((row.tenant.clone()?, row.endpoint.clone()?)));
    let counted = failing.iter().map(|row| (row.tenant.clone(), row.endpoint.clone()));
    let mut worst: Vec<(String, String)> = Vec::new();
    for endpoint in named.chain(counted) {
        if worst.len() < MAPPED_MAX && !worst.contains(&endpoint) {
            worst.push(endpoint);
        }
    }
    worst
}

/// Reads endpoints with the figures of their day, some at once. One that is gone
/// meanwhile is left out.
async fn read_endpoints_with_figures(
    api: &ApiCaller,
    endpoints: Vec<(String, String)>,
) -> Vec<(EndpointSummary, FigureRun)> {
    let looked = stream::iter(endpoints).map(|(tenant, id)| {
        let api = api.clone();
        async move {
            let path = api_path!("/v1/tenants/{}/endpoints/{}", tenant, id);
            let figures = format!("{path}/figures?step=1h");
            let (facts, run) =
                tokio::try_join!(api.get_kept::<EndpointSummary>(&path), api.get_kept::<FigureRun>(&figures)).ok()?;
            let run = FigureRun::clone(&run).begun_at(facts.created_at);
            Some((EndpointSummary::clone(&facts), run))
        }
    });
    looked.buffered(AT_ONCE).filter_map(|found| async { found }).collect().await
}

fn outage_map(looked_at: &[(EndpointSummary, FigureRun)], now: Timestamp) -> (Option<Svg>, Vec<MappedEndpoint>) {
    let hour = SignedDuration::from_hours(1);
    let Some((_, first)) = looked_at.first() else { return (None, Vec::new()) };
    let row = |(facts, run): &(EndpointSummary, FigureRun)| HeatRow {
        name: format!("{} · {}", words_only(&facts.tenant, 12), facts.name()),
        steps: run
            .steps(hour, now)
            .iter()
            .map(|step| step.as_ref().map(|sum| (sum.attempts() as f64, sum.failed() as f64)))
            .collect(),
    };
    let rows: Vec<HeatRow> = looked_at.iter().map(row).collect();
    let map = heat_map("Failed attempts of the worst endpoints, by hour", first.from, hour, &rows);
    let mapped = looked_at.iter().map(|(facts, run)| {
        let sum = run.sum();
        let (tenant, id) = (facts.tenant.clone(), facts.id.clone());
        MappedEndpoint { tenant, id, name: facts.name(), attempts: sum.attempts(), failed: sum.failed() }
    });
    (Some(map), mapped.collect())
}

fn tiles(table: &HealthTable, day: &FigureRun, causes: &CauseGroups, now: Timestamp) -> Vec<Tile> {
    let latest = day.latest(SignedDuration::from_mins(5), now);
    let until = latest.as_ref().map_or("no figures yet".to_owned(), |_| known_until(day));
    let per_second = |count: fn(&FigureSum) -> u64| match &latest {
        Some(sum) => rate(sum.per_minute(count(sum)) / 60.0),
        None => "–".to_owned(),
    };
    let row = |name: &str| table.rows.iter().find(|row| row.name == name);
    let value = |name: &str| row(name).map_or("–".to_owned(), TableRow::value_words);
    let waiting = row("backlog").and_then(|row| row.value);
    vec![
        Tile {
            value: per_second(|sum| sum.accepted),
            label: "events accepted a second",
            hint: until.clone(),
            page: "events",
        },
        Tile {
            value: per_second(|sum| sum.delivered),
            label: "deliveries made a second",
            hint: until,
            page: "deliveries?state=delivered",
        },
        Tile {
            value: value("success_rate"),
            label: "delivered of what finished",
            hint: "last hour".into(),
            page: "#health",
        },
        Tile {
            value: waiting.map_or("–".into(), |count| words::count(count as u64)),
            label: "deliveries wait",
            hint: "now".into(),
            page: "deliveries?state=waiting",
        },
        Tile {
            value: value("oldest_due"),
            label: "oldest that could go",
            hint: "now".into(),
            page: "endpoints?sort=waiting",
        },
        Tile {
            value: words::count(causes.total.count),
            label: "dead letters",
            hint: "in all".into(),
            page: "dead-letters",
        },
    ]
}

/// Writes a rate per second with as many digits as tell something.
fn rate(per_second: f64) -> String {
    match per_second {
        0.0 => "0".to_owned(),
        rate if rate < 1.0 => format!("{rate:.2}"),
        rate if rate < 100.0 => format!("{rate:.1}"),
        rate => words::count(rate.round() as u64),
    }
}

fn day_chart(day: &FigureRun, now: Timestamp) -> Svg {
    let step = SignedDuration::from_mins(15);
    let steps = day.steps(step, now);
    let line = |name: &str, tone: ChartTone, count: fn(&FigureSum) -> u64| Series {
        name: name.to_owned(),
        tone,
        values: steps.iter().map(|sum| sum.as_ref().map(|sum| sum.per_minute(count(sum)))).collect(),
    };
    let series = vec![
        line("accepted", ChartTone::Calm, |sum| sum.accepted),
        line("delivered", ChartTone::Good, |sum| sum.delivered),
        line("retried", ChartTone::Watch, |sum| sum.retried),
        line("dead", ChartTone::Bad, |sum| sum.dead),
    ];
    let (title, unit) = ("The last 24 hours".to_owned(), "per minute".to_owned());
    OverTime { title, unit, from: day.from, step, series, shape: Shape::Lines, marks: Vec::new() }.draw()
}

/// Returns the hours of the day in which something happened, the latest first.
fn hours(day: &FigureRun, now: Timestamp) -> Vec<(Timestamp, FigureSum)> {
    let hour = SignedDuration::from_hours(1);
    let steps = day.steps(hour, now).into_iter().enumerate();
    let happened = steps.filter_map(|(number, sum)| {
        let sum = sum.filter(|sum| sum.accepted + sum.attempts() + sum.delivered + sum.dead > 0)?;
        Some((day.from + hour * (number as i32), sum))
    });
    let mut hours: Vec<(Timestamp, FigureSum)> = happened.collect();
    hours.reverse();
    hours
}

impl TableRow {
    fn label(&self) -> &str {
        match self.name.as_str() {
            "success_rate" => "Delivered, of what finished",
            "retry_rate" => "Needed more than one attempt",
            "dead_letter_rate" => "Died, of what finished",
            "attempts_to_success" => "Attempts to deliver, on average",
            "second_attempt_success" => "Second attempts that deliver",
            "in_retry_over_24h" => "In retry for more than a day",
            "first_attempt_delay_p50" => "First attempt after acceptance, median",
            "first_attempt_delay_p99" => "First attempt after acceptance, 99 of 100",
            "time_to_deliver_p50" => "Accepted to delivered, median",
            "time_to_deliver_p99" => "Accepted to delivered, 99 of 100",
            "backlog" => "Deliveries that wait",
            "oldest_due" => "Oldest that could go and did not",
            "dead_letters" => "Dead letters",
            "dead_letter_growth" => "New dead letters in the hour",
            "oldest_dead_letter" => "Oldest dead letter",
            other => other,
        }
    }

    fn written(&self, value: f64) -> String {
        match self.unit.as_str() {
            "ratio" => words::percent(value),
            "seconds" if self.name == "oldest_due" => coarse_age(value),
            "seconds" => words::span(value),
            _ if value.fract() == 0.0 => words::count(value as i64),
            _ => format!("{value:.2}"),
        }
    }

    fn value_words(&self) -> String {
        self.value.map_or("–".to_owned(), |value| self.written(value))
    }

    fn mark(&self) -> (&'static str, &'static str) {
        match (self.state.as_str(), self.healthy) {
            ("ok", Some(_)) => ("mark-good", "healthy"),
            ("watch", _) => ("mark-watch", "watch"),
            ("alert", _) => ("mark-bad", "alert"),
            ("unknown", _) => ("mark-off", "nothing to measure"),
            _ => ("", ""),
        }
    }

    fn thresholds(&self) -> String {
        let (Some(healthy), Some(alert)) = (self.healthy, self.alert) else { return String::new() };
        let (good, bad) = if alert < healthy { ("≥", "<") } else { ("<", ">") };
        let plain = |value: f64| match self.unit.as_str() {
            "ratio" => format!("{} %", (value * 1000.0).round() / 10.0),
            "seconds" => words::span(value),
            _ => format!("{value}"),
        };
        format!("healthy {good} {}, alert {bad} {}", plain(healthy), plain(alert))
    }
}

/// Writes an age that grows every second so that a page changes seldom.
fn coarse_age(seconds: f64) -> String {
    match seconds {
        age if age < 1.0 => "0 s".to_owned(),
        age if age < 10.0 => "under 10 s".to_owned(),
        age if age < 120.0 => format!("over {}", words::span((age / 10.0).floor() * 10.0)),
        age => format!("over {}", words::span((age / 60.0).floor() * 60.0)),
    }
}

impl SloFacts {
    fn burns(&self) -> [(&'static str, String); 3] {
        let said = |burn: Option<f64>| match burn {
            Some(burn) => format!("{burn:.1} times what is allowed"),
            None => "nothing to measure".to_owned(),
        };
        [("5 minutes", said(self.burn_5m)), ("1 hour", said(self.burn_1h)), ("6 hours", said(self.burn_6h))]
    }

    fn mark(&self) -> (&'static str, &'static str) {
        // As in the shipped alert rules: 14.4 times for an hour is two percent of a month.
        match (self.burn_1h, self.burn_6h) {
            (None, _) => ("mark-off", "nothing to measure"),
            (Some(hour), _) if hour > 14.4 => ("mark-bad", "alert"),
            (Some(hour), six) if hour > 1.0 || six.is_some_and(|six| six > 6.0) => ("mark-watch", "watch"),
            _ => ("mark-good", "healthy"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::attention::Severity;
    use serde_json::json;

    fn row(kind: AttentionKind, endpoint: Option<&str>, waiting: Option<u64>) -> AttentionRow {
        AttentionRow {
            kind,
            severity: Severity::Warning,
            tenant: endpoint.map(|_| "acme".into()),
            endpoint: endpoint.map(str::to_owned),
            since: None,
            reason: "the disk is full".into(),
            waiting,
            next_at: None,
            command: String::new(),
        }
    }

    #[test]
    fn the_verdict_counts_each_endpoint_once_and_says_what_is_held() {
        assert_eq!(verdict(&[], 0), "Everything is well.");
        assert_eq!(verdict(&[], 2), "Everything is well. 2 dead letters wait for a decision.");
        let rows = [
            row(AttentionKind::BreakerOpen, Some("ep_1"), Some(1_200)),
            row(AttentionKind::DeadGrowing, Some("ep_1"), None),
            row(AttentionKind::Failing, Some("ep_1"), Some(1_200)),
            row(AttentionKind::Disabled, Some("ep_2"), Some(4)),
        ];
        assert_eq!(verdict(&rows, 9), "2 endpoints are failing, 1,204 deliveries are held; nothing is lost.");
        assert_eq!(verdict(&rows[1..2], 9), "Dead letters grow at 1 endpoint; nothing is lost.");
        let secret = [row(AttentionKind::SecretEnds, Some("ep_1"), None)];
        assert_eq!(verdict(&secret, 9), "1 thing needs a look; nothing is lost.");
        let open = row(AttentionKind::BreakerOpen, Some("ep_1"), Some(1_200));
        let blocked = [open, row(AttentionKind::LaneBlocked, Some("ep_3"), Some(7))];
        assert_eq!(
            verdict(&blocked, 9),
            "1 endpoint is failing, 1,200 deliveries are held, a lane of 1 endpoint is blocked; nothing is lost."
        );
        let own = [row(AttentionKind::DiskLow, None, None)];
        assert_eq!(verdict(&own, 0), "The gateway itself needs help (the disk is full); nothing is lost.");
    }

    #[test]
    fn the_worst_are_named_once() {
        let rows = [
            row(AttentionKind::BreakerOpen, Some("ep_1"), None),
            row(AttentionKind::Failing, Some("ep_1"), None),
            row(AttentionKind::DiskLow, None, None),
        ];
        let counted = [FailingEndpoint { tenant: "acme".into(), endpoint: "ep_2".into() }];
        let pair = |id: &str| ("acme".to_owned(), id.to_owned());
        assert_eq!(worst(&rows, &counted), [pair("ep_1"), pair("ep_2")]);
    }

    #[test]
    fn an_age_that_grows_is_written_coarsely() {
        assert_eq!(
            [0.3, 7.0, 59.0, 61.0, 125.0, 3_700.0].map(coarse_age),
            ["0 s", "under 10 s", "over 50 s", "over 1 min", "over 2 min", "over 1 h 1 min"]
        );
        assert_eq!([0.0, 0.25, 3.04, 1204.4].map(rate), ["0", "0.25", "3.0", "1,204"]);
    }

    #[tokio::test]
    async fn what_concerns_a_tenant_leads_to_that_tenant() {
        let now = "2026-11-18T10:00:00Z";
        let quota = json!({"kind": "over_quota", "severity": "warning", "tenant": "acme", "reason": "it is full", "command": ""});
        let slo = json!({"target": 0.999, "within": "10m", "good": 0, "total": 0});
        let step = json!({"from": now, "to": now, "complete_until": null, "step": "5m", "gaps": [], "data": []});
        let mut routes = axum::Router::new();
        for (path, answer) in [
            ("/v1/attention", json!({"data": [quota], "more": 0, "unanswered_nodes": []})),
            ("/v1/health-table", json!({"at": now, "rows": [], "slo": slo, "top_endpoints": []})),
            ("/v1/figures", step),
            ("/v1/dead-letters/groups", json!({"data": [], "total": {"count": 0, "oldest_at": null}})),
            ("/v1/tenants/default", json!({"created_at": now})),
        ] {
            routes = routes.route(path, axum::routing::get(async move || answer.to_string()));
        }
        let page = PageContext { now: now.parse().unwrap(), ..PageContext::of_routes(routes, &[], b"") };
        let shown = show(page).await.map_err(|problem| problem.detail);
        let Ok(PageAnswer::Html(html)) = shown else { panic!("no page") };
        assert!(html.contains("<a href=\"./tenants/acme\"><bdi>acme</bdi></a>:"), "{html}");
    }
}
