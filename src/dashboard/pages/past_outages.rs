//! Finds the outages that an endpoint has had: as its breaker has seen them, and as its
//! failed attempts tell where the breaker saw none or is switched off.

use jiff::{SignedDuration, Timestamp};

use super::attempt_card::ShownAttempt;
use super::endpoint_charts::PastEvent;
use super::figure_steps::FigureRun;
use crate::dashboard::api_caller::{api_path, segment};
use crate::dashboard::context::PageContext;
use crate::dashboard::page_error::PageError;
use crate::dashboard::shown_delivery::{ListedPage, ShownDelivery};
use crate::model::endpoint_event::EndpointEventKind;
use crate::model::verdict::Verdict;

/// Most outages of an endpoint that are shown.
const OUTAGES_MAX: usize = 5;
/// Length of a window of the figures.
const WINDOW: SignedDuration = SignedDuration::from_mins(5);
/// How far back figures are read; windows are kept for 48 hours.
const LOOKS_BACK: SignedDuration = SignedDuration::from_hours(47);
/// Fewest failed attempts that make an outage.
const FAILED_MIN: u64 = 2;
/// Deliveries whose attempts are read to find when an outage began and ended.
const DELIVERIES_READ: usize = 3;

/// A time in which an endpoint did not work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outage {
    /// When it began.
    pub from: Timestamp,
    /// When it ended; now, if it lasts.
    pub to: Timestamp,
    /// Number of attempts that failed in it; none if its breaker told of it.
    pub failed: Option<u64>,
}

impl Outage {
    fn overlaps(&self, other: &Self) -> bool {
        self.from < other.to && other.from < self.to
    }
}

/// Returns the last outages of an endpoint, the newest first.
pub async fn past_outages(page: &PageContext, tenant: &str, endpoint: &str) -> Result<Vec<Outage>, PageError> {
    let path = api_path!("/v1/tenants/{}/endpoints/{}", tenant, endpoint);
    let since = page.now.checked_sub(LOOKS_BACK).unwrap_or(Timestamp::MIN);
    let (history_path, figures_path) =
        (format!("{path}/history?limit=200"), format!("{path}/figures?step=5m&from={since}"));
    let (history, figures) =
        tokio::join!(page.api.get::<ListedPage<PastEvent>>(&history_path), page.api.get::<FigureRun>(&figures_path));
    let mut outages = of_breaker(&history?.data, page.now);
    for failing in of_figures(&figures?, page.now) {
        if !outages.iter().any(|known| known.overlaps(&failing)) {
            outages.push(failing);
        }
    }
    outages.sort_by_key(|outage| std::cmp::Reverse(outage.from));
    outages.truncate(OUTAGES_MAX);
    for outage in outages.iter_mut().filter(|outage| outage.failed.is_some()) {
        let attempts = attempts_around(page, tenant, endpoint, outage).await;
        snap_to_attempts(outage, &attempts, page.now);
    }
    Ok(outages)
}

/// Pairs openings of the breaker with the closing after them. An outage that lasts ends
/// now.
fn of_breaker(newest_first: &[PastEvent], now: Timestamp) -> Vec<Outage> {
    let (mut outages, mut opened) = (Vec::new(), None);
    let outage = |from, to| Outage { from, to, failed: None };
    for event in newest_first.iter().rev() {
        match event.what {
            EndpointEventKind::BreakerOpened => opened = opened.or(Some(event.at)),
            EndpointEventKind::BreakerClosed | EndpointEventKind::Recovered => {
                outages.extend(opened.take().map(|from| outage(from, event.at)));
            }
            EndpointEventKind::Paused
            | EndpointEventKind::Resumed
            | EndpointEventKind::Disabled
            | EndpointEventKind::ProbeFailed => {}
        }
    }
    outages.extend(opened.map(|from| outage(from, now)));
    outages.reverse();
    outages
}

/// Returns the times in which more attempts failed than delivered. Windows without an
/// attempt belong to the outage around them.
fn of_figures(run: &FigureRun, now: Timestamp) -> Vec<Outage> {
    let (mut outages, mut open): (Vec<Outage>, Option<Outage>) = (Vec::new(), None);
    let mut from = run.from;
    for step in run.steps(WINDOW, now) {
        let to = from.checked_add(WINDOW).unwrap_or(Timestamp::MAX);
        let (failed, succeeded) = step.map_or((0, 0), |sum| (sum.failed(), sum.succeeded));
        if failed > succeeded {
            let outage = open.get_or_insert(Outage { from, to, failed: Some(0) });
            outage.to = to.min(now);
            outage.failed = outage.failed.map(|before| before + failed);
        } else if succeeded > 0 {
            outages.extend(open.take());
        }
        from = to;
    }
    outages.extend(open);
    outages.retain(|outage| outage.failed >= Some(FAILED_MIN));
    outages
}

/// Reads attempts of some deliveries that were made around an outage, in order of time.
async fn attempts_around(page: &PageContext, tenant: &str, endpoint: &str, outage: &Outage) -> Vec<ShownAttempt> {
    let since = outage.from.checked_sub(WINDOW).unwrap_or(Timestamp::MIN);
    let until = outage.to.checked_add(WINDOW).unwrap_or(Timestamp::MAX);
    let list = api_path!("/v1/tenants/{}/deliveries", tenant);
    let list = format!("{list}?endpoint={}&since={since}&until={until}&limit={DELIVERIES_READ}", segment(endpoint));
    let mut attempts = Vec::new();
    let Ok(deliveries) = page.api.get::<ListedPage<ShownDelivery>>(&list).await else { return attempts };
    for delivery in deliveries.data {
        let path = api_path!("/v1/tenants/{}/deliveries/{}/attempts", tenant, delivery.id);
        if let Ok(page) = page.api.get::<ListedPage<ShownAttempt>>(&path).await {
            attempts.extend(page.data);
        }
    }
    attempts.sort_by_key(|attempt| attempt.started_at);
    attempts
}

/// Moves the edges of an outage, which are those of windows, to the attempts next to
/// them: from the first that failed to the first that was delivered.
fn snap_to_attempts(outage: &mut Outage, attempts: &[ShownAttempt], now: Timestamp) {
    let is_near = |edge: Timestamp, at: Timestamp| at.duration_since(edge).abs() <= WINDOW;
    let rough = outage.clone();
    let is_delivered = |attempt: &&ShownAttempt| attempt.verdict == Verdict::Delivered;
    let failed = || attempts.iter().filter(|attempt| attempt.verdict != Verdict::Delivered);
    let last_well = attempts.iter().filter(is_delivered).rfind(|well| well.started_at < rough.from);
    let mut first = failed().filter(|failed| last_well.is_none_or(|well| well.started_at < failed.started_at));
    if let Some(first) = first.find(|failed| is_near(rough.from, failed.started_at)) {
        outage.from = first.started_at;
    }
    let last = failed().rfind(|failed| is_near(rough.to, failed.ended_at()));
    if let Some(last) = last {
        let next_well = attempts.iter().filter(is_delivered).find(|well| well.started_at >= last.ended_at());
        outage.to = next_well.map_or_else(|| last.ended_at(), |well| well.started_at);
    }
    outage.to = outage.to.min(now).max(outage.from);
}

#[cfg(test)]
mod tests {
    use super::super::attempt_card::tests::attempt;
    use super::*;
    use serde_json::{Value, json};

    /// A second of the time of the shared attempts, which windows begin at.
    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn event(second: i64, what: &str) -> PastEvent {
        let event = json!({"at": at(second), "what": what, "reason": null, "by": "gateway"});
        serde_json::from_value(event).unwrap()
    }

    fn figures(windows: &[(i64, u64, u64)]) -> FigureRun {
        let point = |(place, failed, delivered): &(i64, u64, u64)| -> Value {
            json!({"at": at(place * 300), "accepted": 0, "latency_ms": {"le": [], "n": []}, "waiting": 0,
                "attempts": {"by_verdict": {"retry": failed, "delivered": delivered}, "by_result": {}},
                "ended": {"delivered": 0, "dead": {}}, "oldest_due_age_s": 0.0,
                "held_s": {"breaker": 0.0, "pause": 0.0, "backpressure": 0.0, "rate": 0.0}})
        };
        let data: Vec<Value> = windows.iter().map(point).collect();
        let run = json!({"from": at(0), "to": at(3_600), "complete_until": at(3_600), "gaps": [], "step": "5m", "data": data});
        serde_json::from_value(run).unwrap()
    }

    #[test]
    fn an_outage_lasts_from_the_opening_to_the_closing() {
        let history = [
            event(900, "breaker_opened"),
            event(400, "breaker_closed"),
            event(300, "probe_failed"),
            event(200, "breaker_opened"),
            event(100, "resumed"),
        ];
        let found: Vec<_> =
            of_breaker(&history, at(1_000)).into_iter().map(|outage| (outage.from, outage.to)).collect();
        assert_eq!(found, [(at(900), at(1_000)), (at(200), at(400))]);
        assert!(of_breaker(&[], at(0)).is_empty());
    }

    #[test]
    fn windows_of_failures_are_an_outage_until_something_is_delivered() {
        let run = figures(&[(0, 0, 5), (1, 9, 1), (2, 4, 0), (4, 3, 0), (5, 1, 7), (8, 1, 0), (9, 0, 2)]);
        let found = of_figures(&run, at(3_600));
        assert_eq!(found, [Outage { from: at(300), to: at(1_500), failed: Some(16) }], "one failure is no outage");
        let lasting = of_figures(&figures(&[(11, 4, 0)]), at(3_400));
        assert_eq!(lasting, [Outage { from: at(3_300), to: at(3_400), failed: Some(4) }]);
    }

    #[test]
    fn the_attempts_say_when_it_began_and_ended() {
        let mut outage = Outage { from: at(300), to: at(1_500), failed: Some(16) };
        let delivered = json!({"verdict": "delivered", "status": 200});
        let attempts = [
            attempt(1, 290, delivered.clone()),
            attempt(1, 320, json!({})),
            attempt(2, 1_450, json!({})),
            attempt(3, 1_520, delivered),
        ];
        snap_to_attempts(&mut outage, &attempts, at(3_600));
        assert_eq!((outage.from, outage.to), (at(320), at(1_520)));
        let mut outage = Outage { from: at(300), to: at(900), failed: Some(2) };
        snap_to_attempts(&mut outage, &[], at(700));
        assert_eq!((outage.from, outage.to), (at(300), at(700)), "without attempts the windows count");
    }
}
