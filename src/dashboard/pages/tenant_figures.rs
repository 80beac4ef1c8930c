//! The last day of a tenant as charts.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use crate::dashboard::chart::over_time::{OverTime, Series, Shape};
use crate::dashboard::chart::{ChartTone, Svg};
use crate::dashboard::context::PageContext;
use crate::dashboard::page_error::PageError;

const HOURS: i64 = 24;

#[derive(Deserialize)]
struct FiguresResponse {
    from: Timestamp,
    #[serde(default)]
    gaps: Vec<GapResponse>,
    data: Vec<PointResponse>,
}

/// A time of which nothing is known.
#[derive(Deserialize)]
struct GapResponse {
    from: Timestamp,
    to: Timestamp,
}

#[derive(Deserialize)]
struct PointResponse {
    at: Timestamp,
    accepted: u64,
    ended: EndsResponse,
    waiting: u64,
}

#[derive(Deserialize)]
struct EndsResponse {
    delivered: u64,
    cancelled: u64,
    dead: BTreeMap<String, u64>,
}

/// One hour of a tenant's figures, a row of the table.
pub struct TenantHour {
    /// When the hour begins.
    pub at: Timestamp,
    /// Events that were accepted.
    pub accepted: u64,
    /// Deliveries that arrived.
    pub delivered: u64,
    /// Deliveries that died.
    pub dead: u64,
    /// Deliveries that were cancelled.
    pub cancelled: u64,
    /// Deliveries that waited at its end.
    pub waiting: u64,
}

/// The charts of a tenant.
pub struct TenantCharts {
    /// How deliveries ended.
    pub ended: Svg,
    /// Events that were accepted, and what waits.
    pub accepted: Svg,
    /// The hours in which something happened.
    pub hours: Vec<TenantHour>,
}

/// Reads the last day of the page's tenant.
pub async fn tenant_charts(page: &PageContext) -> Result<TenantCharts, PageError> {
    let hour = 3_600;
    let to = Timestamp::from_second((page.now.as_second() / hour + 1) * hour).unwrap_or(page.now);
    let from = to - SignedDuration::from_hours(HOURS);
    let path = page.tenant_path(&format!("/figures?from={from}&to={to}&step=1h"));
    let found: FiguresResponse = page.api.get(&path).await?;
    Ok(charts(found))
}

/// Returns an hour; one without a point is one in which nothing happened.
fn hour_of(found: &FiguresResponse, at: Timestamp) -> TenantHour {
    let point = found.data.iter().find(|point| point.at == at);
    let count = |of: fn(&PointResponse) -> u64| point.map_or(0, of);
    TenantHour {
        at,
        accepted: count(|point| point.accepted),
        delivered: count(|point| point.ended.delivered),
        dead: count(|point| point.ended.dead.values().sum()),
        cancelled: count(|point| point.ended.cancelled),
        waiting: count(|point| point.waiting),
    }
}

fn charts(found: FiguresResponse) -> TenantCharts {
    let hours: Vec<TenantHour> =
        (0..HOURS).map(|hour| hour_of(&found, found.from + SignedDuration::from_hours(hour))).collect();
    let series = |name: &str, tone, value: fn(&TenantHour) -> u64| Series {
        name: name.to_owned(),
        tone,
        values: hours.iter().map(|hour| is_known(&found.gaps, hour.at).then(|| value(hour) as f64)).collect(),
    };
    let chart = |title: &str, unit: &str, shape, series| {
        let (title, unit, step) = (title.to_owned(), unit.to_owned(), SignedDuration::from_hours(1));
        OverTime { title, unit, from: found.from, step, series, shape, marks: Vec::new() }.draw()
    };
    let ended = vec![
        series("delivered", ChartTone::Good, |hour| hour.delivered),
        series("dead", ChartTone::Bad, |hour| hour.dead),
        series("cancelled", ChartTone::Off, |hour| hour.cancelled),
    ];
    let accepted = vec![
        series("accepted", ChartTone::Calm, |hour| hour.accepted),
        series("waiting", ChartTone::Watch, |hour| hour.waiting),
    ];
    TenantCharts {
        ended: chart("Ends of deliveries", "per hour", Shape::Stacked, ended),
        accepted: chart("Events accepted and deliveries waiting", "per hour", Shape::Lines, accepted),
        hours,
    }
}

/// Whether an hour is not wholly inside a gap.
fn is_known(gaps: &[GapResponse], at: Timestamp) -> bool {
    !gaps.iter().any(|gap| gap.from <= at && at + SignedDuration::from_hours(1) <= gap.to)
}

impl TenantCharts {
    /// Returns the hours in which something happened, the latest first.
    pub fn busy_hours(&self) -> Vec<&TenantHour> {
        let is_busy =
            |hour: &&TenantHour| hour.accepted + hour.delivered + hour.dead + hour.cancelled + hour.waiting > 0;
        self.hours.iter().filter(is_busy).rev().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_adds_the_causes_of_death() {
        let found = serde_json::json!({"from": "2026-11-18T09:00:00Z", "data": [
            {"at": "2026-11-18T09:00:00Z", "accepted": 0, "waiting": 0, "ended": {"delivered": 0, "cancelled": 0, "dead": {}}},
            {"at": "2026-11-18T10:00:00Z", "accepted": 5, "waiting": 1, "ended": {"delivered": 2, "cancelled": 0, "dead": {"refused": 1, "gone": 1}}},
        ]});
        let charts = charts(serde_json::from_value(found).unwrap());
        let hours = charts.busy_hours();
        assert_eq!((charts.hours.len(), hours.len(), hours[0].dead, hours[0].delivered), (24, 1, 2, 2));
        assert!(charts.ended.to_string().contains("10:00 delivered: 2, dead: 2"), "{}", charts.ended);
    }
}
