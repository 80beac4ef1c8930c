//! Compares what a drill saw with what should have happened.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::scenario::{BREAK_ASKED_FOR, DrillScenario, TestedSettings};
use crate::model::span::Span;

/// How much earlier or later than planned a request may be seen, for the clocks'
/// rounding and a busy machine.
const SLACK_MS: i64 = 50;
const LATE_MS: f64 = 2_000.0;

/// What a drill has seen.
pub struct DrillRecord {
    /// Scenario that was run.
    pub scenario: DrillScenario,
    /// Settings of the endpoint.
    pub settings: TestedSettings,
    /// Time for which everything was waited for at the end.
    pub patience: Duration,
    /// Deliveries at the end, each with its attempts.
    pub deliveries: Vec<(Value, Vec<Value>)>,
    /// Times at which requests arrived at the receiver.
    pub arrivals: Vec<Timestamp>,
    /// What happened to the endpoint, oldest first.
    pub history: Vec<Value>,
    /// Whether the breaker was listed as needing attention while it was open.
    pub had_attention: Option<bool>,
    /// Types of the operational events that arrived.
    pub alerts: Vec<String>,
    /// Whether the owner was mailed; none where nobody can be.
    pub is_mailed: Option<bool>,
}

/// One comparison of a drill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Part of the gateway that it is about.
    pub part: &'static str,
    /// What should have happened.
    pub should: String,
    /// What did happen.
    pub did: String,
    /// Whether both agree; none where it cannot be said.
    pub is_right: Option<bool>,
}

impl Finding {
    fn new(part: &'static str, should: impl Into<String>, did: impl Into<String>, is_right: bool) -> Self {
        Self { part, should: should.into(), did: did.into(), is_right: Some(is_right) }
    }
}

impl DrillRecord {
    /// Returns every comparison.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![self.delivered(), self.failures(), self.pauses_between()];
        findings.extend(self.cap());
        findings.extend(self.asked_break());
        findings.push(self.breaker());
        findings.extend(self.alert());
        findings.push(self.mail());
        findings
    }

    fn attempts(&self) -> impl Iterator<Item = &Value> {
        self.deliveries.iter().flat_map(|(_, attempts)| attempts)
    }

    fn delivered(&self) -> Finding {
        let count = |state: &str| self.deliveries.iter().filter(|(delivery, _)| delivery["state"] == state).count();
        let (all, delivered) = (self.deliveries.len(), count("delivered"));
        let mut did = format!("{delivered} delivered, {} dead, {} still waiting", count("dead"), count("waiting"));
        let when = if self.scenario.is_outage() { " after the repair" } else { "" };
        let later = self.planned_later();
        if later > 0 {
            did += &format!("; the policy may try {later} again later than --patience {} waits", Span(self.patience));
        }
        let is_right = Some(all > 0 && delivered == all).filter(|_| later == 0 || delivered + later < all);
        Finding { part: "delivery", should: format!("all {all} events arrive{when}"), did, is_right }
    }

    /// Returns the number of deliveries that wait for an attempt which the policy may
    /// plan for a time after the end of the drill.
    fn planned_later(&self) -> usize {
        let latest = |attempts: &[Value]| attempts.last()?["decision"]["window_ms"][1].as_f64();
        let is_later =
            |attempts: &[Value]| latest(attempts).is_some_and(|ms| ms > self.patience.as_secs_f64() * 1_000.0);
        let waiting = self.deliveries.iter().filter(|(delivery, _)| delivery["state"] == "waiting");
        waiting.filter(|(_, attempts)| is_later(attempts)).count()
    }

    /// Every failed attempt has failed in the way of the scenario, and is retried.
    fn failures(&self) -> Finding {
        let expected = self.scenario.failure();
        let failed: Vec<&Value> = self.attempts().filter(|attempt| attempt["verdict"] != "delivered").collect();
        let is_expected = |attempt: &Value| {
            let kind = attempt["error"]["kind"].as_str().map(str::to_owned);
            kind.or_else(|| attempt["status"].as_u64().map(|status| status.to_string())).as_deref() == Some(expected)
        };
        let odd = failed.iter().find(|attempt| !is_expected(attempt) || attempt["verdict"] != "retry");
        let did = match odd {
            Some(attempt) => format!(
                "attempt {} was {} ({})",
                attempt["number"],
                attempt["verdict"].as_str().unwrap_or_default(),
                attempt["error"]["message"].as_str().map_or_else(|| attempt["status"].to_string(), str::to_owned)
            ),
            None => format!("attempts that failed so, and were retried: {}", failed.len()),
        };
        if expected == "none" {
            let did = format!("{} of {} attempts failed", failed.len(), self.attempts().count());
            return Finding::new("policy", "no attempt fails: the answers come in time", did, failed.is_empty());
        }
        let limit = match self.scenario {
            DrillScenario::BlackHole => format!(", each after {}", Span(self.settings.timeout)),
            _ => String::new(),
        };
        let total = self.settings.timeout.as_secs_f64() * 1_000.0;
        let is_on_time = |attempt: &&Value| {
            let took = attempt["duration_ms"].as_f64().unwrap_or_default();
            self.scenario != DrillScenario::BlackHole || (took >= total - 50.0 && took <= total + LATE_MS)
        };
        let is_right = !failed.is_empty() && odd.is_none() && failed.iter().all(is_on_time);
        Finding::new("policy", format!("failures are {expected}{limit}, and retried"), did, is_right)
    }

    /// No attempt comes before the earliest time that the policy planned.
    fn pauses_between(&self) -> Finding {
        let mut compared = 0;
        let mut early = Vec::new();
        for (_, attempts) in &self.deliveries {
            for pair in attempts.windows(2) {
                let (Some(ended), Some(next)) = (ended_at(&pair[0]), time(&pair[1], "started_at")) else { continue };
                let Some(earliest) = pair[0]["decision"]["window_ms"][0].as_f64() else { continue };
                compared += 1;
                let waited = next.as_millisecond() - ended.as_millisecond();
                if waited + SLACK_MS < earliest as i64 {
                    early.push(format!("attempt {} came after {waited} ms, planned was {earliest}", pair[1]["number"]));
                }
            }
        }
        let did = early.first().cloned().unwrap_or_else(|| format!("none of {compared} was too early"));
        Finding::new("policy", "no retry comes before its planned time", did, early.is_empty())
    }

    fn cap(&self) -> Option<Finding> {
        if self.scenario != DrillScenario::Slow {
            return None;
        }
        let (delay, cap) = (self.scenario.delay(&self.settings), self.settings.max_in_flight);
        let is_open = |at: &Timestamp, other: &Timestamp| {
            other <= at && at.duration_since(*other).unsigned_abs() + std::time::Duration::from_millis(20) < delay
        };
        let open = |at: &Timestamp| self.arrivals.iter().filter(|other| is_open(at, other)).count() as u64;
        let most = self.arrivals.iter().map(open).max().unwrap_or(0);
        Some(Finding::new(
            "cap",
            format!("at most {cap} requests are open at once"),
            format!("{most} were"),
            most <= cap,
        ))
    }

    /// After a 429 nothing arrives for as long as it asked for. Only the receiver's own
    /// clock is asked: that of a node on another machine may differ.
    fn asked_break(&self) -> Option<Finding> {
        if self.scenario != DrillScenario::TooMany {
            return None;
        }
        let refused = self.attempts().find(|attempt| attempt["status"] == 429)?;
        let began = *self.arrivals.iter().min()?;
        // Requests that were open when the answer came are not called back.
        let took = refused["duration_ms"].as_f64().unwrap_or_default();
        let answered = began.as_millisecond() + took as i64 + SLACK_MS;
        let later = self.arrivals.iter().filter(|at| at.as_millisecond() > answered);
        let next = later.map(|at| at.duration_since(began).unsigned_abs()).min();
        let should = format!("nothing is sent for the {} that the 429 asks for", Span(BREAK_ASKED_FOR));
        let did = next.map_or_else(
            || "nothing came any more".to_owned(),
            |next| format!("the next came after {:.1} s", next.as_secs_f64()),
        );
        Some(Finding::new(
            "backpressure",
            should,
            did,
            next.is_some_and(|next| next + std::time::Duration::from_millis(60) >= BREAK_ASKED_FOR),
        ))
    }

    fn happened(&self, what: &str) -> Option<&Value> {
        self.history.iter().find(|event| event["what"] == what)
    }

    fn breaker(&self) -> Finding {
        let opened = self.happened("breaker_opened");
        let did = match (opened, self.happened("breaker_closed")) {
            (None, _) => "it stayed closed".to_owned(),
            (Some(opened), closed) => {
                let reason = opened["reason"].as_str().unwrap_or_default();
                let end = if closed.is_some() { "and closed again" } else { "and is still open" };
                format!("it opened ({reason}) {end}")
            }
        };
        let should = match (self.scenario.opens_breaker(&self.settings), self.settings.opens_after) {
            (Some(true), Some(failures)) => {
                format!("it opens after {failures} failures in a row, and closes after the repair")
            }
            (Some(_), None) => "it stays closed: it is switched off".to_owned(),
            (Some(_), Some(_)) => "it stays closed".to_owned(),
            (None, _) => "not said: it needs more failures than a drill makes, or depends on their order".to_owned(),
        };
        let is_closed_again = self.happened("breaker_closed").is_some();
        // It closes after an attempt that succeeds, for which the policy may take longer than the drill.
        let is_unfinished = opened.is_some() && !is_closed_again && self.planned_later() > 0;
        let opens = self.scenario.opens_breaker(&self.settings).filter(|opens| !opens || !is_unfinished);
        let is_right = opens.map(|opens| match opened {
            Some(_) => opens && is_closed_again,
            None => !opens,
        });
        Finding { part: "breaker", should, did, is_right }
    }

    /// Who listens is told of each turn of the breaker, once.
    fn alert(&self) -> Vec<Finding> {
        let count = |name: &str| self.alerts.iter().filter(|alert| *alert == name).count();
        let turns = |what: &str| self.history.iter().filter(|event| event["what"] == what).count();
        let (opened, closed) = (count("breaker.opened"), count("breaker.closed"));
        let (should_open, should_close) = (turns("breaker_opened"), turns("breaker_closed"));
        let mut findings = vec![Finding::new(
            "alerts",
            format!("breaker.opened × {should_open}, breaker.closed × {should_close}"),
            format!("breaker.opened × {opened}, breaker.closed × {closed}"),
            (opened, closed) == (should_open, should_close),
        )];
        if let Some(had_attention) = self.had_attention {
            let did = if had_attention { "it was" } else { "it was not" };
            findings.push(Finding::new(
                "attention",
                "the open breaker is listed in `posthaste status`",
                did,
                had_attention,
            ));
        }
        findings
    }

    fn mail(&self) -> Finding {
        let is_due = self.happened("breaker_opened").is_some();
        let should = if is_due { "the owner is mailed that the breaker opened" } else { "the owner is not mailed" };
        match self.is_mailed {
            Some(is_mailed) => {
                let did = if is_mailed { "a mail was sent" } else { "no mail was sent" };
                Finding::new("mail", should, did, is_mailed == is_due)
            }
            None => Finding {
                part: "mail",
                should: should.to_owned(),
                did: "not tried: it takes --mail-to, and a gateway with --smtp".to_owned(),
                is_right: None,
            },
        }
    }
}

fn time(row: &Value, field: &str) -> Option<Timestamp> {
    row[field].as_str()?.parse().ok()
}

fn ended_at(attempt: &Value) -> Option<Timestamp> {
    let took = attempt["duration_ms"].as_f64()?;
    time(attempt, "started_at")?.checked_add(std::time::Duration::from_secs_f64(took / 1_000.0)).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(scenario: DrillScenario) -> DrillRecord {
        let settings = TestedSettings {
            timeout: Duration::from_secs(10),
            max_in_flight: 2,
            opens_after: Some(3),
            failure_ratio: 0.8,
        };
        DrillRecord {
            scenario,
            settings,
            patience: Duration::from_secs(180),
            deliveries: Vec::new(),
            arrivals: Vec::new(),
            history: Vec::new(),
            had_attention: None,
            alerts: Vec::new(),
            is_mailed: None,
        }
    }

    fn attempt(number: u32, second: u32, status: u32, verdict: &str) -> Value {
        json!({"number": number, "started_at": format!("2026-11-15T08:00:{second:02}Z"), "duration_ms": 1_000.0, "status": status,
            "verdict": verdict, "error": null, "decision": {"window_ms": [5_000, 10_000]}})
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_794_000_000 + second).unwrap()
    }

    #[test]
    fn a_retry_before_its_time_is_wrong() {
        let mut record = record(DrillScenario::Flaky);
        let delivery = json!({"state": "delivered"});
        let attempts = |second| vec![attempt(1, 0, 503, "retry"), attempt(2, second, 200, "delivered")];
        record.deliveries = vec![(delivery.clone(), attempts(6))];
        assert_eq!(record.pauses_between().is_right, Some(true));
        record.deliveries = vec![(delivery, attempts(5))];
        let finding = record.pauses_between();
        assert_eq!(finding.is_right, Some(false), "{finding:?}");
        assert_eq!(finding.did, "attempt 2 came after 4000 ms, planned was 5000");
    }

    #[test]
    fn what_does_not_arrive_or_fails_in_another_way_is_wrong() {
        let mut record = record(DrillScenario::Flaky);
        record.deliveries = vec![(json!({"state": "dead"}), vec![attempt(1, 0, 503, "refused")])];
        assert_eq!((record.delivered().is_right, record.failures().is_right), (Some(false), Some(false)));
        record.deliveries = vec![(json!({"state": "delivered"}), vec![attempt(1, 0, 500, "retry")])];
        assert_eq!((record.delivered().is_right, record.failures().is_right), (Some(true), Some(false)));
    }

    #[test]
    fn what_the_policy_plans_for_later_than_the_drill_waits_is_not_compared() {
        let mut record = record(DrillScenario::Tls);
        let waiting = || (json!({"state": "waiting"}), vec![attempt(1, 0, 503, "retry")]);
        record.deliveries = vec![waiting(), (json!({"state": "delivered"}), vec![])];
        record.history = vec![json!({"what": "breaker_opened", "reason": "3 failures in a row"})];
        assert_eq!((record.delivered().is_right, record.breaker().is_right), (Some(false), Some(false)));
        // The policy waits for up to ten seconds.
        record.patience = Duration::from_secs(9);
        assert_eq!((record.delivered().is_right, record.breaker().is_right), (None, None));
        let did = record.delivered().did;
        assert!(did.ends_with("1 still waiting; the policy may try 1 again later than --patience 9s waits"), "{did}");
        record.deliveries.push((json!({"state": "dead"}), vec![attempt(1, 0, 503, "refused")]));
        assert_eq!(record.delivered().is_right, Some(false), "a dead one does not wait");
        let quiet = DrillRecord { scenario: DrillScenario::TooMany, ..record };
        assert_eq!(quiet.breaker().is_right, Some(false), "a 429 must not open it, however long a retry takes");
    }

    #[test]
    fn more_open_requests_than_the_cap_are_wrong() {
        let mut record = record(DrillScenario::Slow);
        record.arrivals = vec![at(0), at(1), at(6)];
        assert_eq!(record.cap().unwrap().is_right, Some(true), "the first two are over after five seconds");
        record.arrivals.push(at(2));
        assert_eq!(record.cap().unwrap().is_right, Some(false));
    }

    #[test]
    fn a_breaker_that_does_not_open_or_close_is_wrong_and_so_are_lost_alerts() {
        let mut record = record(DrillScenario::Tls);
        assert_eq!(record.breaker().is_right, Some(false));
        record.history = vec![json!({"what": "breaker_opened", "reason": "3 failures in a row"})];
        assert_eq!(record.breaker().is_right, Some(false), "it is still open");
        record.history.push(json!({"what": "breaker_closed"}));
        assert_eq!(record.breaker().is_right, Some(true));
        assert_eq!(record.alert()[0].is_right, Some(false));
        record.alerts = vec!["breaker.opened".into(), "breaker.closed".into()];
        assert_eq!(record.alert()[0].is_right, Some(true));
        assert_eq!(record.mail().is_right, None);
        record.is_mailed = Some(false);
        assert_eq!(record.mail().is_right, Some(false));
        let quiet = DrillRecord { scenario: DrillScenario::TooMany, ..record };
        assert_eq!(quiet.breaker().is_right, Some(false), "a 429 must not open it");
    }

    #[test]
    fn a_request_within_the_break_that_was_asked_for_is_wrong() {
        let mut record = record(DrillScenario::TooMany);
        let refused = json!({"number": 1, "started_at": at(-900).to_string(), "duration_ms": 0.0, "status": 429, "verdict": "retry"});
        // The node's clock is a quarter of an hour behind, and nobody asks it.
        record.deliveries = vec![(json!({}), vec![refused])];
        record.arrivals = vec![at(0), at(5)];
        assert_eq!(record.asked_break().unwrap().is_right, Some(true));
        record.arrivals.push(at(4));
        assert_eq!(record.asked_break().unwrap().is_right, Some(false));
    }
}
