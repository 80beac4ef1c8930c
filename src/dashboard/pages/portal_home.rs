//! The customer's first page: am I receiving, and what can I do?

use std::collections::{BTreeSet, HashMap};

use askama::Template;
use jiff::{SignedDuration, Timestamp, ToSpan};
use serde::Deserialize;

use super::endpoint_facts::words_only;
use super::figure_steps::{FigureRun, FigureSum, known_until};
use super::past_moment::written_since;
use super::recovery_words::counted;
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

const HOUR: SignedDuration = SignedDuration::from_hours(1);

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
    /// What else is not well about the same endpoint.
    #[serde(skip)]
    others: Vec<String>,
}

/// Joins the rows of each endpoint: the worst stays, the others say what else there is.
fn by_endpoint(rows: Vec<CustomerTrouble>) -> Vec<CustomerTrouble> {
    let mut joined: Vec<CustomerTrouble> = Vec::new();
    for row in rows {
        match joined.iter_mut().find(|first| first.endpoint.is_some() && first.endpoint == row.endpoint) {
            Some(first) => {
                first.since = first.since.min(row.since).or(first.since).or(row.since);
                first.next_at = first.next_at.or(row.next_at);
                first.others.push(row.reason);
            }
            None => joined.push(row),
        }
    }
    joined
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
struct CustomerEndpoints {
    data: Vec<CustomerEndpoint>,
    next: Option<String>,
}

/// Most endpoints that are looked at, those that need attention first.
const ENDPOINTS_MAX: usize = 100;

#[derive(Deserialize)]
struct CustomerEndpoint {
    id: String,
    state: EndpointState,
    #[serde(default)]
    description: String,
    created_at: Timestamp,
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
    endpoints: String,
    delivered: u64,
    dead_today: u64,
    dead: DeadCount,
    waiting: Option<u64>,
    chart: Svg,
    known: String,
    recover: Option<String>,
}

/// Shows whether the customer's events arrive.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    let from = page.now - 24.hours();
    let figures_path =
        format!("/figures?from={}&to={}&step=1h", segment(&format!("{from:.0}")), segment(&format!("{:.0}", page.now)));
    let paths = ["/attention", "/dead-letters/groups?limit=1", &figures_path, "/endpoints?sort=attention&limit=100"]
        .map(|rest| page.tenant_path(rest));
    let (attention, dead, day, endpoints) = tokio::try_join!(
        page.api.get::<CustomerAttention>(&paths[0]),
        page.api.get::<DeadTotal>(&paths[1]),
        page.api.get::<FigureRun>(&paths[2]),
        page.api.get::<CustomerEndpoints>(&paths[3]),
    )?;
    // One more stands for all that were not looked at.
    let count = endpoints.data.len() + usize::from(endpoints.next.is_some());
    let oldest = endpoints.data.iter().filter(|_| count <= ENDPOINTS_MAX).map(|endpoint| endpoint.created_at).min();
    let day = oldest.map_or(day.clone(), |oldest| day.begun_at(oldest));
    let hours = day.steps(HOUR, page.now);
    let sum = day.sum();
    let held = endpoints.data.iter().filter(|endpoint| endpoint.state != EndpointState::Active).count();
    let verdict = verdict(count, held, &attention.data, sum.delivered, sum.dead);
    let is_well = attention.data.is_empty() && held == 0 && sum.dead == 0;
    let named = endpoints.data.into_iter().filter(|endpoint| !endpoint.description.is_empty());
    let names = named.map(|endpoint| (endpoint.id, words_only(&endpoint.description, 80))).collect();
    PageContext::render(&PortalHomePage {
        recover: dead.total.oldest_at.filter(|_| page.frame.may_manage).map(recover_query),
        frame: page.frame,
        verdict,
        is_well,
        attention: by_endpoint(attention.data),
        names,
        endpoints: many(count),
        delivered: sum.delivered,
        dead_today: sum.dead,
        dead: dead.total,
        waiting: hours.iter().flatten().next_back().map(|hour| hour.waiting),
        chart: draw(&hours, day.from),
        known: known_until(&day),
    })
}

/// Returns the query that previews a replay of everything that died since the
/// oldest dead letter.
fn recover_query(oldest: Timestamp) -> String {
    format!("?since={}&kind=replay&preview=yes", segment(&written_since(oldest)))
}

/// Says in one sentence whether events arrive.
fn verdict(endpoints: usize, held: usize, attention: &[CustomerTrouble], delivered: u64, dead: u64) -> String {
    // An endpoint may be named for several reasons.
    let failing: BTreeSet<&str> = attention.iter().filter_map(|row| row.endpoint.as_deref()).collect();
    let of_all = |count: usize| format!("{count} of {}", endpoint_words(endpoints));
    match (endpoints, held, failing.len(), dead) {
        (0, ..) => "No endpoint is set up yet, so nothing is sent to you.".to_owned(),
        (_, 0, 0, 0) if delivered == 0 => "All is well. No event has come in the last 24 hours.".to_owned(),
        (_, 0, 0, 0) => format!("You are receiving: {} arrived in the last 24 hours.", deliveries(delivered)),
        (_, 0, 0, 1) => {
            format!("{} arrived in the last 24 hours, and 1 will not come by itself.", deliveries(delivered))
        }
        (_, 0, 0, dead) => format!(
            "{} arrived in the last 24 hours, and {} will not come by themselves.",
            deliveries(delivered),
            words::count(dead)
        ),
        (_, 1, 0, _) => format!("{} gets no events now. They are held until it does; nothing is lost.", of_all(1)),
        (_, held, 0, _) => {
            format!("{} get no events now. They are held until they do; nothing is lost.", of_all(held))
        }
        (_, _, 1, _) => {
            format!("{} needs attention. Its events are held, or can be sent again; nothing is lost.", of_all(1))
        }
        (_, _, failing, _) => {
            format!("{} need attention. Their events are held, or can be sent again; nothing is lost.", of_all(failing))
        }
    }
}

/// Writes a number of endpoints, of which not all may have been looked at.
fn many(count: usize) -> String {
    if count > ENDPOINTS_MAX { format!("over {ENDPOINTS_MAX}") } else { count.to_string() }
}

fn endpoint_words(count: usize) -> String {
    if count > ENDPOINTS_MAX {
        format!("{} endpoints", many(count))
    } else {
        counted(count as u64, "endpoint", "endpoints")
    }
}

fn deliveries(count: u64) -> String {
    counted(count, "delivery", "deliveries")
}

fn draw(hours: &[Option<FigureSum>], from: Timestamp) -> Svg {
    let series = |name: &str, tone, count: fn(&FigureSum) -> u64| Series {
        name: name.to_owned(),
        tone,
        values: hours.iter().map(|hour| hour.as_ref().map(|hour| count(hour) as f64)).collect(),
    };
    OverTime {
        title: "Deliveries of the last 24 hours".into(),
        unit: "per hour".into(),
        from,
        step: HOUR,
        series: vec![
            series("delivered", ChartTone::Good, |hour| hour.delivered),
            series("dead", ChartTone::Bad, |hour| hour.dead),
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
        CustomerTrouble {
            severity: "warning".into(),
            endpoint,
            reason: "x".into(),
            since: None,
            next_at: None,
            others: Vec::new(),
        }
    }

    #[test]
    fn the_first_sentence_says_whether_events_arrive() {
        assert!(verdict(0, 0, &[], 0, 0).starts_with("No endpoint is set up yet"));
        assert_eq!(verdict(2, 0, &[], 1_204, 0), "You are receiving: 1,204 deliveries arrived in the last 24 hours.");
        assert!(verdict(2, 0, &[], 0, 0).starts_with("All is well."));
        assert!(verdict(2, 0, &[], 5, 3).ends_with("and 3 will not come by themselves."));
        assert!(verdict(2, 0, &[], 5, 1).ends_with("and 1 will not come by itself."));
        assert!(verdict(2, 0, &[], 1, 3).starts_with("1 delivery arrived"));
        assert!(verdict(2, 1, &[], 5, 0).starts_with("1 of 2 endpoints gets no events now."));
        assert!(verdict(101, 1, &[], 5, 0).starts_with("1 of over 100 endpoints gets no events now."));
        assert!(verdict(1, 1, &[], 5, 0).starts_with("1 of 1 endpoint gets no events now."));
        assert!(verdict(2, 0, &[row(Some("ep_1"))], 5, 0).starts_with("1 of 2 endpoints needs attention."));
    }

    #[test]
    fn an_endpoint_that_needs_attention_for_several_reasons_is_one() {
        let rows = [row(Some("ep_1")), row(Some("ep_2")), row(Some("ep_1")), row(None)];
        assert!(verdict(2, 0, &rows, 5, 0).starts_with("2 of 2 endpoints need attention."));
        let joined = by_endpoint(rows.into());
        let shown: Vec<_> = joined.iter().map(|row| (row.endpoint.as_deref(), row.others.len())).collect();
        assert_eq!(shown, [(Some("ep_1"), 1), (Some("ep_2"), 0), (None, 0)]);
    }

    #[test]
    fn an_hour_without_deliveries_keeps_its_place() {
        let hour = |delivered| {
            let mut sum = FigureSum::default();
            sum.delivered = delivered;
            Some(sum)
        };
        let from: Timestamp = "2026-11-18T08:00:00Z".parse().unwrap();
        let drawn = draw(&[hour(2), hour(0), hour(3)], from).to_string();
        assert!(drawn.contains("10:00 delivered: 3") && !drawn.contains("09:00 delivered"), "{drawn}");
    }

    #[test]
    fn the_way_to_recovery_takes_everything_since_the_oldest() {
        let oldest: Timestamp = "2026-11-18T08:00:00.7Z".parse().unwrap();
        assert_eq!(recover_query(oldest), "?since=2026-11-18T08%3A00%3A00Z&kind=replay&preview=yes");
    }
}
