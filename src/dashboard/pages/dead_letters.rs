//! Dead letters in groups: what died of what, at which endpoint, with which answer.

use std::collections::BTreeMap;

use askama::Template;
use jiff::Timestamp;
use jiff::civil::Date;
use serde::Deserialize;

use super::dead_letter_filter::{DeadLetterFilter, NAMES};
use super::endpoint_labels::{EndpointLabel, endpoint_labels};
use super::past_moment::written_since;
use super::recovery_words::{answer_hint, counted};
use crate::dashboard::chart::over_time::{OverTime, Series, Shape};
use crate::dashboard::chart::{ChartTone, Svg};
use crate::dashboard::commands;
use crate::dashboard::context::PageContext;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;
use crate::dashboard::words;
use crate::model::delivery::DeadCause;
use crate::model::named_enum::NamedEnum;

#[derive(Deserialize)]
struct GroupsResponse {
    data: Vec<GroupResponse>,
    total: TotalResponse,
}

#[derive(Deserialize)]
struct GroupResponse {
    tenant: Option<String>,
    endpoint: Option<String>,
    cause: Option<DeadCause>,
    answer: Option<String>,
    day: Option<Date>,
    count: u64,
    oldest_at: Timestamp,
    newest_at: Timestamp,
}

#[derive(Deserialize)]
struct TotalResponse {
    count: u64,
    groups: u64,
    oldest_at: Option<Timestamp>,
}

/// A group as the page shows it.
struct GroupRow {
    tenant: String,
    endpoint: String,
    label: String,
    is_deleted: bool,
    cause: Option<DeadCause>,
    answer: String,
    hint: &'static str,
    day: String,
    count: u64,
    oldest_at: Timestamp,
    newest_at: Timestamp,
    /// Query of the list with just these.
    list: String,
    /// Query of a recovery of just these; empty if no filter can tell them apart.
    recover: String,
}

#[derive(Template)]
#[template(path = "dead_letters.html")]
struct DeadLettersPage {
    frame: Frame,
    filter: DeadLetterFilter,
    fault: String,
    is_by_day: bool,
    total: u64,
    groups: u64,
    summary: String,
    oldest_at: Option<Timestamp>,
    rows: Vec<GroupRow>,
    /// Query of a recovery of everything that the filter takes.
    recover_all: String,
    list_all: String,
    days: Vec<DeadDay>,
    chart: Svg,
    /// Dead before the first day of the chart.
    earlier: u64,
}

/// A day of the chart.
struct DeadDay {
    day: Date,
    count: u64,
}

/// Days that the chart shows.
const DAYS: i32 = 14;

impl DeadLettersPage {
    /// Whether there are more groups than the page shows.
    fn is_cut(&self) -> bool {
        self.groups > self.rows.len() as u64
    }
}

/// Shows the groups.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    let filter = DeadLetterFilter::read(&page);
    let is_by_day = page.query.has("by_day");
    let by = match (page.tenant().is_empty(), is_by_day) {
        (true, true) => "tenant,endpoint,cause,status,day",
        (true, false) => "tenant,endpoint,cause,status",
        (false, true) => "endpoint,cause,status,day",
        (false, false) => "endpoint,cause,status",
    };
    let (found, by_day, fault) = match filter.group_query(page.now) {
        Ok(query) => {
            let path = page.scoped_path("/dead-letters/groups");
            let (groups, days) = (format!("{path}?by={by}&limit=30{query}"), format!("{path}?by=day&limit=500{query}"));
            let read =
                futures_util::try_join!(page.api.get::<GroupsResponse>(&groups), page.api.get::<GroupsResponse>(&days));
            match read {
                Ok((found, by_day)) => (found, by_day, String::new()),
                Err(problem) if problem.status.is_client_error() => (nothing(), nothing(), problem.detail),
                Err(problem) => return Err(problem),
            }
        }
        Err(fault) => (nothing(), nothing(), fault),
    };
    let (days, earlier) = last_days(&by_day, page.now);
    let named = found.data.iter().filter_map(|group| Some((group.tenant.clone()?, group.endpoint.clone()?)));
    let labels = endpoint_labels(&page.api, named).await;
    let rows = found.data.into_iter().map(|group| row_of(&page, &labels, group)).collect();
    let summary = summary(&found.total);
    PageContext::render(&DeadLettersPage {
        recover_all: recover_all(&page, &filter, found.total.oldest_at),
        list_all: filter_query(&page, &[]),
        filter,
        fault,
        is_by_day,
        total: found.total.count,
        groups: found.total.groups,
        summary,
        oldest_at: found.total.oldest_at,
        chart: chart(&days),
        days,
        earlier,
        rows,
        frame: page.frame,
    })
}

/// Returns the last days, and how many died before them.
fn last_days(found: &GroupsResponse, now: Timestamp) -> (Vec<DeadDay>, u64) {
    let today = now.to_zoned(jiff::tz::TimeZone::UTC).date();
    let first = today.saturating_sub(jiff::Span::new().days(DAYS - 1));
    let count_of = |day: Date| found.data.iter().filter(|group| group.day == Some(day)).map(|group| group.count).sum();
    let days = first.series(jiff::Span::new().days(1)).take(DAYS as usize);
    let earlier = found.data.iter().filter(|group| group.day.is_some_and(|day| day < first));
    (days.map(|day| DeadDay { day, count: count_of(day) }).collect(), earlier.map(|group| group.count).sum())
}

fn chart(days: &[DeadDay]) -> Svg {
    let midnight = |day: Date| day.to_zoned(jiff::tz::TimeZone::UTC).map(|at| at.timestamp()).unwrap_or_default();
    let values = days.iter().map(|day| Some(day.count as f64)).collect();
    let chart = OverTime {
        title: "Dead letters by the day of their death".to_owned(),
        unit: "per day".to_owned(),
        from: days.first().map(|day| midnight(day.day)).unwrap_or_default(),
        step: jiff::SignedDuration::from_hours(24),
        series: vec![Series { name: "dead".to_owned(), tone: ChartTone::Bad, values }],
        shape: Shape::Stacked,
        marks: Vec::new(),
    };
    chart.draw()
}

fn nothing() -> GroupsResponse {
    GroupsResponse { data: Vec::new(), total: TotalResponse { count: 0, groups: 0, oldest_at: None } }
}

/// Returns the query of a recovery of everything that the filter takes; without a
/// filter, of everything since the oldest, which is previewed at once.
fn recover_all(page: &PageContext, filter: &DeadLetterFilter, oldest_at: Option<Timestamp>) -> String {
    match oldest_at.filter(|_| filter.is_empty()) {
        Some(at) => filter_query(page, &[("since", &written_since(at)), ("kind", "replay"), ("preview", "yes")]),
        None => filter_query(page, &[("kind", "replay")]),
    }
}

fn filter_query(page: &PageContext, changed: &[(&str, &str)]) -> String {
    page.query.query_with(&NAMES, changed)
}

fn row_of(page: &PageContext, labels: &BTreeMap<String, EndpointLabel>, group: GroupResponse) -> GroupRow {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let endpoint = text(&group.endpoint);
    let label = labels.get(&endpoint);
    let (since, until) = day_bounds(group.day)
        .unwrap_or_else(|| (page.query.get("since").to_owned(), page.query.get("until").to_owned()));
    let tenant = text(&group.tenant);
    let answer = text(&group.answer);
    let shown_tenant = if page.frame.is_portal() { "" } else { tenant.as_str() };
    let narrowed = |answer: &str, more: &[(&str, &str)]| {
        let mut changed = vec![
            ("tenant", shown_tenant),
            ("endpoint", endpoint.as_str()),
            ("cause", group.cause.map_or("", NamedEnum::as_str)),
            ("answer", answer),
            ("since", since.as_str()),
            ("until", until.as_str()),
        ];
        changed.extend_from_slice(more);
        page.query.query_with(&NAMES, &changed)
    };
    GroupRow {
        list: narrowed(if answer.is_empty() { "none" } else { &answer }, &[]),
        recover: if answer.is_empty() { String::new() } else { narrowed(&answer, &[("preview", "yes")]) },
        hint: answer_hint(&answer).unwrap_or_default(),
        label: label.map(|label| label.text.clone()).unwrap_or_default(),
        is_deleted: label.is_none(),
        day: group.day.map(|day| day.to_string()).unwrap_or_default(),
        count: group.count,
        oldest_at: group.oldest_at,
        newest_at: group.newest_at,
        tenant,
        endpoint,
        cause: group.cause,
        answer,
    }
}

/// Returns the bounds of a UTC day, as filters have them.
fn day_bounds(day: Option<Date>) -> Option<(String, String)> {
    let day = day?;
    Some((day.to_string(), day.tomorrow().ok()?.to_string()))
}

fn summary(total: &TotalResponse) -> String {
    if total.count == 0 {
        return "Nothing is dead.".to_owned();
    }
    format!(
        "{} in {}. Each stays until somebody replays or discards it.",
        counted(total.count, "delivery is dead", "deliveries are dead"),
        counted(total.groups, "group", "groups")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_goes_from_midnight_to_midnight() {
        let bounds = day_bounds("2026-12-31".parse().ok()).unwrap();
        assert_eq!(bounds, ("2026-12-31".to_owned(), "2027-01-01".to_owned()));
    }

    #[test]
    fn the_chart_has_fourteen_days_and_says_what_is_older() {
        let group = |day: &str, count| serde_json::json!({"day": day, "count": count, "oldest_at": "2026-11-01T00:00:00Z", "newest_at": "2026-11-01T00:00:00Z"});
        let found = serde_json::json!({
            "data": [group("2026-11-18", 3), group("2026-11-05", 2), group("2026-11-04", 7)],
            "total": {"count": 12, "groups": 3},
        });
        let now = "2026-11-18T10:00:00Z".parse().unwrap();
        let (days, earlier) = last_days(&serde_json::from_value(found).unwrap(), now);
        let counts: Vec<u64> = days.iter().map(|day| day.count).collect();
        assert_eq!((counts.len(), counts[0], counts[13], earlier), (14, 2, 3, 7));
        assert!(chart(&days).to_string().contains("Nov 18 00:00 dead: 3"), "{}", chart(&days));
    }

    #[test]
    fn the_summary_counts_what_is_dead() {
        let total = |count, groups| summary(&TotalResponse { count, groups, oldest_at: None });
        assert_eq!(total(0, 0), "Nothing is dead.");
        assert_eq!(total(1, 1), "1 delivery is dead in 1 group. Each stays until somebody replays or discards it.");
        assert!(total(1_204, 3).starts_with("1,204 deliveries are dead in 3 groups."));
    }
}
