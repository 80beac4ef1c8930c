//! An endpoint as pages show it: its name, its marks, how it is in words.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use crate::dashboard::words;
use crate::model::endpoint::EndpointState;
use crate::model::endpoint_event::Actor;
use crate::model::health::BreakerState;
use crate::model::named_enum::NamedEnum;

/// Longest name of an endpoint in a list, in characters.
const NAME_CHARS_MAX: usize = 80;

/// An endpoint, as far as pages show it.
#[derive(Debug, Clone, Deserialize)]
pub struct EndpointSummary {
    /// Id of the endpoint.
    pub id: String,
    /// Tenant that it belongs to.
    pub tenant: String,
    /// Where deliveries go; masked for those who may not see all of it.
    pub url: String,
    /// What people call it.
    pub description: String,
    /// Who is mailed about it.
    pub owner_email: Option<String>,
    /// Patterns of the types that it wants.
    pub event_types: Vec<String>,
    /// What is delivered in order.
    pub ordering: String,
    /// What a lane does behind a dead letter.
    pub on_dead: String,
    /// What the body looks like.
    pub format: String,
    /// Most requests that are open at once.
    pub max_in_flight: u64,
    /// How often it may be called.
    pub rate: CallRate,
    /// Deadlines of an attempt.
    pub timeout: CallTimeouts,
    /// When to try again, and when to stop.
    pub retry: Value,
    /// What answers mean.
    pub status_rules: BTreeMap<String, String>,
    /// Settings that follow the tenant's.
    pub inherits: Vec<String>,
    /// Settings above the tenant's ceiling, with what is in force instead.
    #[serde(default)]
    pub capped: BTreeMap<String, String>,
    /// Whether it is called.
    pub state: EndpointState,
    /// Why it is in this state.
    pub state_reason: Option<String>,
    /// Moment at which the state began.
    pub state_since: Timestamp,
    /// Who changed the state.
    pub state_by: Option<Actor>,
    /// Its breaker and its backlog.
    pub health: BreakerFacts,
    /// End of the break that its receiver asked for.
    pub backpressure_until: Option<Timestamp>,
    /// Moment at which it was created.
    pub created_at: Timestamp,
    /// Moment at which its settings last changed.
    pub updated_at: Timestamp,
}

/// A rate with its burst.
#[derive(Debug, Clone, Deserialize)]
pub struct CallRate {
    /// How often per second in the long run.
    pub per_second: f64,
    /// How many may come together.
    pub burst: Option<u64>,
}

/// The deadlines of an attempt.
#[derive(Debug, Clone, Deserialize)]
pub struct CallTimeouts {
    /// For the connection alone.
    pub connect: String,
    /// For everything together.
    pub total: String,
}

/// The breaker and the backlog of an endpoint.
#[derive(Debug, Clone, Deserialize)]
pub struct BreakerFacts {
    /// State of the breaker.
    pub breaker: BreakerState,
    /// Why it is open, or was.
    pub reason: Option<String>,
    /// Whose words the reason is.
    pub reason_by: Option<Actor>,
    /// Moment at which the state began.
    pub since: Option<Timestamp>,
    /// When the next probe may go.
    pub next_probe_at: Option<Timestamp>,
    /// How many requests may be open at once now.
    pub max_in_flight_now: u64,
    /// Failures in a row.
    pub consecutive_failures: u64,
    /// Permanent answers in a row.
    pub consecutive_refusals: u64,
    /// Since when there has been nothing but failure.
    pub failing_since: Option<Timestamp>,
    /// How many deliveries wait; none while that is not known.
    pub waiting: Option<u64>,
    /// When the oldest delivery that may start next is, or was, due.
    pub oldest_due_at: Option<Timestamp>,
}

impl BreakerFacts {
    /// Whether a person opened the breaker, and no probe will close it.
    pub fn is_opened_for_good(&self) -> bool {
        self.breaker == BreakerState::Open && self.next_probe_at.is_none()
    }
}

impl EndpointSummary {
    /// Returns the name for a list: what people call it, else where it is.
    pub fn name(&self) -> String {
        let named = if self.description.trim().is_empty() { self.place() } else { self.description.clone() };
        words_only(&named, NAME_CHARS_MAX)
    }

    /// Returns where it is, without the scheme.
    pub fn place(&self) -> String {
        let url = self.url.split_once("://").map_or(self.url.as_str(), |(_, rest)| rest);
        words_only(url, NAME_CHARS_MAX)
    }

    /// Returns the class of the mark of its state.
    pub fn state_class(&self) -> &'static str {
        match (self.state, self.state_by) {
            (EndpointState::Active, _) => "mark-good",
            (EndpointState::Paused, Some(Actor::Person)) => "mark-off",
            (EndpointState::Paused | EndpointState::Disabled, _) => "mark-bad",
        }
    }

    /// Returns its state in words.
    pub fn state_words(&self) -> String {
        match (self.state, self.state_by) {
            (EndpointState::Paused, Some(Actor::Gateway)) => "paused by the gateway".into(),
            (EndpointState::Disabled, Some(Actor::Receiver)) => "disabled by its receiver".into(),
            (state, _) => state.as_str().to_owned(),
        }
    }

    /// Returns the class of the mark of its breaker.
    pub fn breaker_class(&self) -> &'static str {
        match self.health.breaker {
            BreakerState::Closed => "mark-off",
            BreakerState::Open => "mark-bad",
            BreakerState::HalfOpen | BreakerState::Ramp => "mark-watch",
        }
    }

    /// Returns the state of its breaker in words.
    pub fn breaker_words(&self) -> &'static str {
        match self.health.breaker {
            BreakerState::Closed => "closed",
            BreakerState::Open => "open",
            BreakerState::HalfOpen => "probing",
            BreakerState::Ramp => "recovering",
        }
    }

    /// Whether its breaker lets every request through.
    pub fn is_breaker_closed(&self) -> bool {
        self.health.breaker == BreakerState::Closed
    }

    /// Whether a person may close its breaker.
    pub fn is_breaker_open(&self) -> bool {
        matches!(self.health.breaker, BreakerState::Open | BreakerState::HalfOpen)
    }

    /// Whether it is neither paused nor disabled.
    pub fn is_active(&self) -> bool {
        self.state == EndpointState::Active
    }

    /// Whether it is in trouble, in whatever way.
    pub fn is_troubled(&self) -> bool {
        let is_held = !self.is_active() || !self.is_breaker_closed();
        is_held || self.health.failing_since.is_some()
    }

    /// Says how it is, in a sentence for its page.
    pub fn health_words(&self) -> String {
        let held = match self.health.waiting {
            Some(0) => "nothing waits".to_owned(),
            Some(1) => "1 delivery is held, and not lost".to_owned(),
            Some(count) => format!("{} deliveries are held, and not lost", words::count(count)),
            None => "how many deliveries wait is not known at the moment".to_owned(),
        };
        let reason = |reason: &Option<String>| reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
        match (self.state, self.health.breaker) {
            (EndpointState::Disabled, _) => {
                format!("Disabled{}. Nothing is sent until it is resumed; {held}.", reason(&self.state_reason))
            }
            (EndpointState::Paused, _) => {
                let by = if self.state_by == Some(Actor::Gateway) { " by the gateway" } else { "" };
                format!("Paused{by}{}. Nothing is sent until it is resumed; {held}.", reason(&self.state_reason))
            }
            // As in `waiting_for`, this comes before the breaker.
            _ if self.backpressure_until.is_some() => format!("Its receiver asked for a break; {held}."),
            (_, BreakerState::Open) if self.health.is_opened_for_good() => {
                format!(
                    "A person opened its breaker{}. It stays open until it is closed; {held}.",
                    reason(&self.health.reason)
                )
            }
            (_, BreakerState::Open) => {
                format!("Its breaker is open{}. One delivery at a time is tried; {held}.", reason(&self.health.reason))
            }
            (_, BreakerState::HalfOpen) => format!("A probe is under way{}; {held}.", reason(&self.health.reason)),
            (_, BreakerState::Ramp) => format!(
                "It recovers: at most {} of {} requests are open at once for now, and the number doubles as they succeed.",
                words::count(self.health.max_in_flight_now),
                words::count(self.max_in_flight)
            ),
            _ if self.health.failing_since.is_some() => format!(
                "It fails: {}; {held}.",
                in_a_row(self.health.consecutive_failures.max(self.health.consecutive_refusals))
            ),
            _ => match self.health.waiting {
                Some(0) => "It is well. Nothing waits.".to_owned(),
                Some(count) => format!("It is well. {} on the way.", deliveries(count, "is", "are")),
                None => "It is well, as far as is known.".to_owned(),
            },
        }
    }

    /// Says what is cancelled if it is deleted.
    pub fn cancelled_words(&self) -> String {
        match self.health.waiting {
            Some(0) => "Nothing waits for it.".to_owned(),
            Some(count) => format!("{}.", deliveries(count, "that waits is cancelled", "that wait are cancelled")),
            None => "What waits for it is cancelled.".to_owned(),
        }
    }

    /// Says what its last answers were, for a list. What a person noted who opened its
    /// breaker may be the operator's own, and is no word of the portal.
    pub fn last_answers(&self, is_portal: bool) -> String {
        match (&self.health.failing_since, &self.health.reason) {
            (_, Some(_)) if is_portal && self.health.reason_by == Some(Actor::Person) && !self.is_breaker_closed() => {
                "a person opened its breaker".to_owned()
            }
            (_, Some(reason)) if !self.is_breaker_closed() => words_only(reason, 120),
            (Some(_), _) => in_a_row(self.health.consecutive_failures.max(self.health.consecutive_refusals)),
            (None, _) => "well".to_owned(),
        }
    }

    /// Returns the rules about answers that differ from their table.
    pub fn rules_that_differ(&self) -> Vec<(&str, &str)> {
        let rules = self.status_rules.iter().filter(|(status, _)| *status != "preset");
        rules.map(|(status, action)| (status.as_str(), action.as_str())).collect()
    }

    /// Returns the name of the table of answers that it follows.
    pub fn status_table(&self) -> &str {
        self.status_rules.get("preset").map_or("default", String::as_str)
    }
}

/// Writes a number of deliveries with its verb: `1 delivery is`, `2 deliveries are`.
pub fn deliveries(count: u64, one: &str, many: &str) -> String {
    if count == 1 { format!("1 delivery {one}") } else { format!("{} deliveries {many}", words::count(count)) }
}

fn in_a_row(count: u64) -> String {
    match count {
        0 | 1 => "the last answer was a failure".to_owned(),
        count => format!("the last {} answers were failures", words::count(count)),
    }
}

/// Returns a text of strangers as one line of a drawing or list: characters that
/// control the line or its direction are replaced, and the rest is cut.
pub fn words_only(text: &str, chars_max: usize) -> String {
    let is_control = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    let mut shown: String = text.chars().take(chars_max).map(|c| if is_control(c) { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(chars_max).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    pub fn facts(changed: &Value) -> EndpointSummary {
        let mut endpoint = json!({"id": "ep_1", "tenant": "acme", "url": "https://a.example/hooks", "description": "",
            "owner_email": null, "event_types": ["*"], "ordering": "key", "on_dead": "block", "format": "envelope",
            "max_in_flight": 10, "rate": {"per_second": 500.0, "burst": 50}, "timeout": {"connect": "5s", "total": "10s"},
            "retry": {"preset": "standard"}, "status_rules": {"preset": "default"}, "inherits": [], "state": "active",
            "state_reason": null, "state_since": "2026-01-01T00:00:00Z", "state_by": null,
            "health": {"breaker": "closed", "reason": null, "reason_by": null, "since": null, "next_probe_at": null, "max_in_flight_now": 10,
                "consecutive_failures": 0, "consecutive_refusals": 0, "failing_since": null, "waiting": 0, "oldest_due_at": null},
            "backpressure_until": null, "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z"});
        for (pointer, value) in changed.as_object().unwrap() {
            *endpoint.pointer_mut(pointer).unwrap() = value.clone();
        }
        serde_json::from_value(endpoint).unwrap()
    }

    #[test]
    fn an_endpoint_says_how_it_is_and_what_is_held() {
        for (changed, said) in [
            (json!({}), "It is well. Nothing waits."),
            (json!({"/health/waiting": 1}), "It is well. 1 delivery is on the way."),
            (
                json!({"/state": "paused", "/state_by": "gateway", "/state_reason": "only 400", "/health/waiting": 1204}),
                "Paused by the gateway: only 400. Nothing is sent until it is resumed; 1,204 deliveries are held, and not lost.",
            ),
            (
                json!({"/health/breaker": "open", "/backpressure_until": "2026-01-01T00:00:00Z", "/health/waiting": 2}),
                "Its receiver asked for a break; 2 deliveries are held, and not lost.",
            ),
            (
                json!({"/health/breaker": "open", "/health/reason": "a note", "/health/waiting": 2}),
                "A person opened its breaker: a note. It stays open until it is closed; 2 deliveries are held, and not lost.",
            ),
            (
                json!({"/health/breaker": "open", "/health/next_probe_at": "2026-01-01T00:00:00Z", "/health/reason": "10 failures"}),
                "Its breaker is open: 10 failures. One delivery at a time is tried; nothing waits.",
            ),
            (
                json!({"/health/failing_since": "2026-01-01T00:00:00Z", "/health/consecutive_failures": 3}),
                "It fails: the last 3 answers were failures; nothing waits.",
            ),
        ] {
            assert_eq!(facts(&changed).health_words(), said);
        }
    }

    #[test]
    fn a_list_of_the_portal_does_not_show_what_a_person_noted() {
        let opened = |by: &str| {
            facts(&json!({"/health/breaker": "open", "/health/reason": "unpaid invoice", "/health/reason_by": by}))
        };
        assert_eq!(opened("person").last_answers(false), "unpaid invoice");
        assert_eq!(opened("person").last_answers(true), "a person opened its breaker");
        assert_eq!(opened("gateway").last_answers(true), "unpaid invoice");
    }

    #[test]
    fn a_name_is_one_line_without_control_characters() {
        let named = facts(&json!({"/description": "a\u{202e}b\nc"}));
        assert_eq!(named.name(), "a\u{fffd}b\u{fffd}c");
        assert_eq!(facts(&json!({})).name(), "a.example/hooks");
        assert_eq!(words_only("abcdef", 3), "abc…");
    }
}
