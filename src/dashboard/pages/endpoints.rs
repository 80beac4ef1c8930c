//! The list of endpoints: which one?

use askama::Template;
use futures_util::StreamExt;
use futures_util::stream;
use jiff::SignedDuration;
use serde::Deserialize;

use super::endpoint_facts::EndpointSummary;
use super::figure_steps::{FigureRun, FigureSum};
use super::figure_words;
use crate::dashboard::api_caller::{ApiCaller, api_path, segment};
use crate::dashboard::chart::Svg;
use crate::dashboard::chart::sparkline::sparkline;
use crate::dashboard::commands;
use crate::dashboard::context::PageContext;
use crate::dashboard::forms::FormValues;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;
use crate::dashboard::words;
use crate::model::figure_time::{WINDOW_MS, span_beginning};

/// Names of the query that choose endpoints; the cursor is not one of them.
const FILTERS: [&str; 6] = ["q", "tenant", "state", "breaker", "failing", "sort"];
/// Endpoints whose figures are read at once.
const AT_ONCE: usize = 8;

#[derive(Deserialize)]
struct ListedEndpoints {
    data: Vec<EndpointSummary>,
    next: Option<String>,
}

/// One row of the list.
struct ListedEndpoint {
    facts: EndpointSummary,
    hour: Option<f64>,
    day: Option<f64>,
    attempts: u64,
    sparkline: Svg,
}

#[derive(Template)]
#[template(path = "endpoints.html")]
struct EndpointsPage {
    frame: Frame,
    rows: Vec<ListedEndpoint>,
    tenant: String,
    query: FormValues,
    sort: String,
    next: Option<String>,
    first: Option<String>,
    is_filtered: bool,
    api_query: String,
}

/// Shows the endpoints, those that need attention first.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    let api_query = list_query(&page.query);
    let found: ListedEndpoints = page.api.get(&format!("{}{api_query}", page.scoped_path("/endpoints"))).await?;
    // Figures are counted in windows, so that the question stays the same for the length of one.
    let hour_ago = span_beginning(page.now - SignedDuration::from_hours(1), WINDOW_MS);
    let since = segment(&format!("{hour_ago:.0}"));
    let rows = stream::iter(found.data).map(|facts| look_up(page.api.clone(), facts, since.clone()));
    let rows: Vec<ListedEndpoint> = rows.buffered(AT_ONCE).collect().await;
    let next = found.next.map(|cursor| page.query.query_with(&FILTERS, &[("cursor", &cursor)]));
    let first = page.query.has("cursor").then(|| format!("endpoints{}", page.query.query_with(&FILTERS, &[])));
    let shown = EndpointsPage {
        rows,
        tenant: page.tenant().to_owned(),
        sort: sort(&page.query).to_owned(),
        is_filtered: ["q", "state", "breaker", "failing", "tenant"].iter().any(|name| page.query.has(name)),
        query: page.query.clone(),
        frame: page.frame,
        next,
        first,
        api_query,
    };
    PageContext::render(&shown)
}

/// Returns the order that is asked for.
fn sort(query: &FormValues) -> &str {
    query.given("sort").unwrap_or("attention")
}

/// Returns the query of the API's list for the query of the page.
fn list_query(query: &FormValues) -> String {
    let failing = if query.has("failing") { "true" } else { "" };
    query.query_with(
        &["q", "state", "breaker"],
        &[("failing", failing), ("sort", sort(query)), ("cursor", query.get("cursor")), ("limit", "50")],
    )
}

/// The figures of an endpoint, as far as a row shows them. Thousands of them are kept.
#[derive(Default, Deserialize)]
#[serde(from = "FigureRun")]
struct RowFigures {
    /// Attempts that delivered and that did not, by hour.
    bars: Vec<(f64, f64)>,
    success: Option<f64>,
    attempts: u64,
}

impl From<FigureRun> for RowFigures {
    fn from(run: FigureRun) -> Self {
        let sum = run.sum();
        let steps = run.steps(SignedDuration::from_hours(1), run.to);
        let bar = |sum: &Option<FigureSum>| {
            sum.as_ref().map_or((0.0, 0.0), |sum| (sum.succeeded as f64, sum.failed() as f64))
        };
        Self { bars: steps.iter().map(bar).collect(), success: sum.success(), attempts: sum.attempts() }
    }
}

/// Reads the figures of one row. Without them the row is shown all the same.
async fn look_up(api: ApiCaller, facts: EndpointSummary, since: String) -> ListedEndpoint {
    let path = api_path!("/v1/tenants/{}/endpoints/{}/figures", facts.tenant, facts.id);
    let (day, hour) = (format!("{path}?step=1h"), format!("{path}?step=5m&from={since}"));
    let (day, hour) = tokio::join!(api.get_kept::<RowFigures>(&day), api.get_kept::<RowFigures>(&hour));
    let day = day.unwrap_or_default();
    ListedEndpoint {
        facts,
        hour: hour.ok().and_then(|hour| hour.success),
        day: day.success,
        attempts: day.attempts,
        sparkline: sparkline(&day.bars),
    }
}

impl ListedEndpoint {
    /// Says how it went: `98.2 %`, or that there was no attempt.
    fn share(&self, share: &Option<f64>) -> String {
        share.map_or("–".to_owned(), words::percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_begins_with_what_needs_attention_and_keeps_its_filters() {
        assert_eq!(list_query(&FormValues::parse(b"")), "?sort=attention&limit=50");
        let query = FormValues::parse(b"q=a%26b&state=paused&failing=on&tenant=acme&sort=waiting&cursor=x&done=saved");
        assert_eq!(list_query(&query), "?q=a%26b&state=paused&failing=true&sort=waiting&cursor=x&limit=50");
    }
}
