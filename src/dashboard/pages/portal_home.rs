//! The customer's first page: am I receiving, and what can I do?

use std::collections::HashMap;

use askama::Template;
use jiff::{SignedDuration, Timestamp, ToSpan};
use serde::Deserialize;

use super::endpoint_facts::words_only;
use crate::dashboard::api_caller::segment;
use crate::dashboard::chart::ChartTone;
use crate::dashboard::chart::Svg;
use crate::dashboard::chart::over_time::{OverTime, Series, Shape};
use crate::dashboard::context::PageContext;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;
use crate::dashboard::words;
use crate::model::endpoint::EndpointState;

#[derive(Deserialize)]
struct CustomerAttention {
    data: Vec<CustomerTrouble>,
}

#[derive(Deserialize)]
struct CustomerTrouble {
    severity: String,
    endpoint: Option<String>,
    reason: String,
    since: Option<Timestamp>,
    next_at: Option<Timestamp>,
}

#[derive(Deserialize)]
struct DeadTotal {
    total: DeadCount,
}

#[derive(Deserialize)]
struct DeadCount {
    count: u64,
    oldest_at: Option<Timestamp>,
}

#[derive(Deserialize)]
struct TenantFigures {
    complete_until: Option<Timestamp>,
    data: Vec<FigurePoint>,
}

#[derive(Deserialize)]
struct FigurePoint {
    at: Timestamp,
    #[serde(default)]
    ended: EndedCounts,
    #[serde(default)]
    waiting: Option<u64>,
}

#[derive(Deserialize, Default)]
struct EndedCounts {
    #[serde(default)]
    delivered: u64,
    #[serde(default)]
    dead: std::collections::BTreeMap<String, u64>,
}

#[derive(Deserialize)]
struct CustomerEndpoints {
    data: Vec<CustomerEndpoint>,
}

#[derive(Deserialize)]
struct CustomerEndpoint {
    id: String,
    state: EndpointState,
    #[serde(default)]
    description: String,
}

#[derive(Template)]
#[template(path = "portal_home.html")]
struct PortalHomePage {
    frame: Frame,
    verdict: String,
    is_well: bool,
    attention: Vec<CustomerTrouble>,
    /// What endpoints are called, by id.
    names: HashMap<String, String>,
    endpoints: u64,
    delivered: u64,
    dead_today: u64,
    dead: DeadCount,
    waiting: Option<u64>,
    chart: Svg,
    complete_until: Option<Timestamp>,
}

/// Shows whether the customer's events arrive.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    let from = page.now - 24.hours();
    let figures_path =
        format!("/figures?from={}&to={}&step=1h", segment(&format!("{from:.0}")), segment(&format!("{:.0}", page.now)));
    let paths = ["/attention", "/dead-letters/groups?limit=1", &figures_path, "/endpoints?limit=500"]
        .map(|rest| page.tenant_path(rest));
    let (attention, dead, figures, endpoints) = tokio::try_join!(
        page.api.get::<CustomerAttention>(&paths[0]),
        page.api.get::<DeadTotal>(&paths[1]),
        page.api.get::<TenantFigures>(&paths[2]),
        page.api.get::<CustomerEndpoints>(&paths[3]),
    )?;
    let delivered = figures.data.iter().map(|point| point.ended.delivered).sum();
    let dead_today = figures.data.iter().map(|point| point.ended.dead.values().sum::<u64>()).sum();
    let held = endpoints.data.iter().filter(|endpoint| endpoint.state != EndpointState::Active).count();
    let verdict = verdict(endpoints.data.len(), held, &attention.data, delivered, dead_today);
    let is_well = attention.data.is_empty() && held == 0 && dead_today == 0;
    let chart = draw(&figures, from);
    let count = endpoints.data.len() as u64;
    let named = endpoints.data.into_iter().filter(|endpoint| !endpoint.description.is_empty());
    let names = named.map(|endpoint| (endpoint.id, words_only(&endpoint.description, 80))).collect();
    PageContext::render(&PortalHomePage {
        frame: page.frame,
        verdict,
        is_well,
        attention: attention.data,
        names,
        endpoints: count,
        delivered,
        dead_today,
        dead: dead.total,
        waiting: figures.data.last().and_then(|point| point.waiting),
        chart,
        complete_until: figures.complete_until,
    })
}

/// Says in one sentence whether events arrive.
fn verdict(endpoints: usize, held: usize, attention: &[CustomerTrouble], delivered: u64, dead: u64) -> String {
    let failing = attention.iter().filter(|row| row.endpoint.is_some()).count();
    match (endpoints, held, failing, dead) {
        (0, ..) => "No endpoint is set up yet, so nothing is sent to you.".to_owned(),
        (_, 0, 0, 0) if delivered == 0 => "All is well. No event has come in the last 24 hours.".to_owned(),
        (_, 0, 0, 0) => {
            format!("You are receiving: {} deliveries arrived in the last 24 hours.", words::count(delivered))
        }
        (_, 0, 0, dead) => format!(
            "{} deliveries arrived in the last 24 hours, and {} will not come by themselves.",
            words::count(delivered),
            words::count(dead)
        ),
        (_, held, 0, _) => {
            format!("{held} of {endpoints} endpoints do not get events now: what is for them is held, nothing is lost.")
        }
        (_, _, failing, _) => format!(
            "{} of {endpoints} endpoints need{} attention. What is for {} waits or can be sent again; nothing is lost.",
            failing,
            if failing == 1 { "s" } else { "" },
            if failing == 1 { "it" } else { "them" }
        ),
    }
}

fn draw(figures: &TenantFigures, from: Timestamp) -> Svg {
    let step = SignedDuration::from_hours(1);
    let first = figures.data.first().map_or(from, |point| point.at);
    let values = |count: fn(&FigurePoint) -> u64| figures.data.iter().map(|point| Some(count(point) as f64)).collect();
    OverTime {
        title: "Deliveries of the last 24 hours".into(),
        unit: "per hour".into(),
        from: first,
        step,
        series: vec![
            Series { name: "delivered".into(), tone: ChartTone::Good, values: values(|point| point.ended.delivered) },
            Series {
                name: "dead".into(),
                tone: ChartTone::Bad,
                values: values(|point| point.ended.dead.values().sum()),
            },
        ],
        shape: Shape::Stacked,
        marks: Vec::new(),
    }
    .draw()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(endpoint: Option<&str>) -> CustomerTrouble {
        let endpoint = endpoint.map(str::to_owned);
        CustomerTrouble { severity: "warning".into(), endpoint, reason: "x".into(), since: None, next_at: None }
    }

    #[test]
    fn the_first_sentence_says_whether_events_arrive() {
        assert!(verdict(0, 0, &[], 0, 0).starts_with("No endpoint is set up yet"));
        assert_eq!(verdict(2, 0, &[], 1_204, 0), "You are receiving: 1,204 deliveries arrived in the last 24 hours.");
        assert!(verdict(2, 0, &[], 0, 0).starts_with("All is well."));
        assert!(verdict(2, 0, &[], 5, 3).ends_with("and 3 will not come by themselves."));
        assert!(verdict(2, 1, &[], 5, 0).starts_with("1 of 2 endpoints do not get events now"));
        assert!(verdict(2, 0, &[row(Some("ep_1"))], 5, 0).starts_with("1 of 2 endpoints needs attention."));
    }
}
