//! Decides what an endpoint's answer means.
//!
//! Turns a status or a failure into a [`Judgement`] by a table of
//! [`super::status_rules`] and by what the receiver itself says in a header. It
//! schedules nothing; [`super::next_state::next_state`] does.
//!
//! Invariant: every status and every failure has exactly one verdict.

use serde::{Deserialize, Serialize};

use super::answer::{Answer, Response};
use super::endpoint_event::DisableCause;
use super::status_rules::{MatchedRule, RuleSource, ShortBudget, StatusAction, StatusRules};

/// What an attempt's answer means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Verdict {
    /// The receiver accepted it.
    Delivered,
    /// Another attempt may succeed.
    Retry,
    /// No attempt will succeed.
    Refused,
    /// The receiver asked never to be called again.
    Gone,
}

impl From<StatusAction> for Verdict {
    fn from(action: StatusAction) -> Self {
        match action {
            StatusAction::Deliver => Self::Delivered,
            StatusAction::Retry => Self::Retry,
            StatusAction::Refuse => Self::Refused,
            StatusAction::Disable => Self::Gone,
        }
    }
}

impl From<Verdict> for StatusAction {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Delivered => Self::Deliver,
            Verdict::Retry => Self::Retry,
            Verdict::Refused => Self::Refuse,
            Verdict::Gone => Self::Disable,
        }
    }
}

/// A verdict, and the rule it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// Meaning of the answer.
    pub verdict: Verdict,
    /// Rule that matched, such as `404`, `timeout` or `webhook-delivery: abort`.
    pub rule: String,
    /// Source of the rule.
    pub source: RuleSource,
    /// Short budget that this answer counts against, if any.
    pub short_budget: Option<ShortBudget>,
    /// Why the endpoint has to be disabled, if it has.
    pub disables: Option<DisableCause>,
}

/// What a receiver asks for in the response header `webhook-delivery`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReceiverDirective {
    /// The receiver asks to give up this delivery.
    Abort,
    /// The receiver asks never to be called again.
    Disable,
}

/// Judges an answer by an endpoint's rules. The header `webhook-delivery` takes
/// precedence over the status, but a delivery that arrived stays delivered.
pub fn judge(answer: &Answer, rules: &StatusRules) -> Judgement {
    let (rule, directive) = match &answer.result {
        Ok(response) => (rules.for_status(response.status), directive_of(response)),
        Err(failure) => (rules.for_failure(failure.kind), None),
    };
    let judgement = by_rule(rule, answer);
    let by_receiver = |directive: &str, verdict: Verdict| Judgement {
        verdict,
        rule: format!("webhook-delivery: {directive}"),
        source: RuleSource::Receiver,
        short_budget: None,
        disables: None,
    };
    let disables = Some(DisableCause::Directive);
    match (directive, judgement.verdict) {
        (None, _) | (Some(ReceiverDirective::Abort), Verdict::Delivered) => judgement,
        (Some(ReceiverDirective::Abort), _) => by_receiver("abort", Verdict::Refused),
        (Some(ReceiverDirective::Disable), Verdict::Delivered) => Judgement { disables, ..judgement },
        (Some(ReceiverDirective::Disable), _) => Judgement { disables, ..by_receiver("disable", Verdict::Gone) },
    }
}

fn by_rule(rule: MatchedRule, answer: &Answer) -> Judgement {
    let status = answer.result.as_ref().map_or(0, |response| response.status);
    let disables = (rule.action == StatusAction::Disable).then(|| match (status, rule.source) {
        (410, RuleSource::Default | RuleSource::Strict | RuleSource::Lenient) => DisableCause::Gone,
        (status, _) => DisableCause::Rule { status, rule: rule.rule.clone() },
    });
    Judgement {
        verdict: rule.action.into(),
        rule: rule.rule,
        source: rule.source,
        short_budget: rule.short_budget,
        disables,
    }
}

/// Returns what the receiver asks for; of several directives `disable` wins.
fn directive_of(response: &Response) -> Option<ReceiverDirective> {
    let words = response.header("webhook-delivery").flat_map(|value| value.split(',')).map(str::trim);
    let mut directive = None;
    for word in words {
        let is = |name: &str| word.eq_ignore_ascii_case(name);
        if is("disable") {
            return Some(ReceiverDirective::Disable);
        }
        // Some other gateways call it abort-message.
        if is("abort") || is("abort-message") {
            directive = Some(ReceiverDirective::Abort);
        }
    }
    directive
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::answer::{AttemptFailure, FailureKind, Timings};
    use crate::model::endpoint_event::EndpointEvent;
    use crate::model::named_enum::NamedEnum;

    fn answered(status: u16, word: Option<&str>) -> Answer {
        let headers = word.map(|word| ("webhook-delivery".to_owned(), word.to_owned()));
        let response = Response { status, headers: headers.into_iter().collect(), ..Response::default() };
        Answer { result: Ok(response), timings: Timings::default() }
    }

    fn failed(kind: FailureKind) -> Answer {
        Answer { result: Err(AttemptFailure::new(kind, "")), timings: Timings::default() }
    }

    fn rules(json: &str) -> StatusRules {
        serde_json::from_str(json).unwrap()
    }

    fn verdict(status: u16, rules: &StatusRules) -> Verdict {
        judge(&answered(status, None), rules).verdict
    }

    /// The published tables, written a second time from the documentation.
    fn published(preset: &str, status: u16) -> Verdict {
        match (preset, status) {
            (_, 200..=299) => Verdict::Delivered,
            ("lenient", _) => Verdict::Retry,
            (_, 410) => Verdict::Gone,
            (_, 408 | 429) | ("default", 404 | 409 | 425) => Verdict::Retry,
            ("default", 501) => Verdict::Refused,
            (_, 500..=599) => Verdict::Retry,
            (_, 300..=499) => Verdict::Refused,
            _ => Verdict::Retry,
        }
    }

    #[test]
    fn every_status_has_the_published_verdict_in_every_preset() {
        for preset in ["default", "strict", "lenient"] {
            let rules = rules(&format!(r#"{{"preset":"{preset}"}}"#));
            for status in 100..=999 {
                assert_eq!(verdict(status, &rules), published(preset, status), "{preset} {status}");
            }
        }
    }

    #[test]
    fn every_status_can_be_overridden_and_an_exact_code_beats_its_class() {
        let actions = [
            ("deliver", Verdict::Delivered),
            ("retry", Verdict::Retry),
            ("refuse", Verdict::Refused),
            ("disable", Verdict::Gone),
        ];
        for status in 100..=599u16 {
            for (action, expected) in actions {
                let class = status / 100;
                let other = if action == "deliver" { "retry" } else { "deliver" };
                let rules = rules(&format!(r#"{{"{status}":"{action}","{class}xx":"{other}"}}"#));
                let judged = judge(&answered(status, None), &rules);
                assert_eq!((judged.verdict, judged.rule), (expected, status.to_string()));
                assert_eq!((judged.source, judged.short_budget), (RuleSource::Endpoint, None));
                assert_eq!(judged.disables.is_some(), expected == Verdict::Gone);
                let sibling = if status % 100 == 0 { status + 1 } else { status - 1 };
                let by_class = judge(&answered(sibling, None), &rules);
                assert_eq!(by_class.verdict, if other == "retry" { Verdict::Retry } else { Verdict::Delivered });
                assert_eq!(by_class.rule, format!("{class}xx"));
            }
        }
    }

    #[test]
    fn what_is_not_overridden_keeps_the_verdict_of_its_preset() {
        let rules = rules(r#"{"preset":"strict","404":"retry","5xx":"refuse","418":"deliver"}"#);
        for status in 100..=999 {
            let expected = match status {
                404 => Verdict::Retry,
                418 => Verdict::Delivered,
                500..=599 => Verdict::Refused,
                other => published("strict", other),
            };
            assert_eq!(verdict(status, &rules), expected, "{status}");
        }
    }

    #[test]
    fn only_ambiguous_answers_have_a_short_budget_and_an_override_lifts_it() {
        let budget = |answer: &Answer, json: &str| judge(answer, &rules(json)).short_budget;
        let not_found = answered(404, None);
        assert_eq!(budget(&not_found, "{}"), Some(ShortBudget::NotFound));
        assert_eq!(budget(&not_found, r#"{"404":"retry"}"#), None);
        assert_eq!(budget(&not_found, r#"{"preset":"lenient"}"#), None);
        let no_name = failed(FailureKind::NoSuchName);
        assert_eq!(budget(&no_name, "{}"), Some(ShortBudget::NoSuchName));
        assert_eq!(budget(&no_name, r#"{"preset":"strict"}"#), Some(ShortBudget::NoSuchName));
        assert_eq!(budget(&no_name, r#"{"preset":"lenient"}"#), None);
        for preset in ["default", "strict", "lenient"] {
            let rules = format!(r#"{{"preset":"{preset}"}}"#);
            let forbidden = failed(FailureKind::TargetForbidden);
            assert_eq!(budget(&forbidden, &rules), Some(ShortBudget::ForbiddenTarget), "{preset}");
            assert_eq!(budget(&failed(FailureKind::Timeout), &rules), None, "{preset}");
            assert_eq!(budget(&answered(500, None), &rules), None, "{preset}");
        }
    }

    #[test]
    fn every_failure_is_tried_again() {
        for &kind in FailureKind::ALL {
            let judged = judge(&failed(kind), &StatusRules::default());
            assert_eq!((judged.verdict, judged.rule.as_str()), (Verdict::Retry, kind.as_str()));
        }
    }

    #[test]
    fn the_receiver_has_the_first_word() {
        let lenient = rules(r#"{"preset":"lenient","503":"deliver"}"#);
        for (status, word, rules, verdict, disables) in [
            (503, "abort", &StatusRules::default(), Verdict::Refused, false),
            (503, "Abort-Message", &StatusRules::default(), Verdict::Refused, false),
            (400, " disable ", &StatusRules::default(), Verdict::Gone, true),
            (404, "abort", &lenient, Verdict::Refused, false),
            (500, "DISABLE", &lenient, Verdict::Gone, true),
            (503, "later", &StatusRules::default(), Verdict::Retry, false),
            (503, "later, abort", &StatusRules::default(), Verdict::Refused, false),
            (503, "abort,disable", &StatusRules::default(), Verdict::Gone, true),
            (503, "", &StatusRules::default(), Verdict::Retry, false),
            (410, "abort", &StatusRules::default(), Verdict::Refused, false),
            // It has arrived: there is nothing left to abort.
            (200, "abort", &StatusRules::default(), Verdict::Delivered, false),
            (503, "abort", &lenient, Verdict::Delivered, false),
            (200, "disable", &StatusRules::default(), Verdict::Delivered, true),
        ] {
            let judged = judge(&answered(status, Some(word)), rules);
            assert_eq!((judged.verdict, judged.disables.is_some()), (verdict, disables), "{status} {word:?}");
        }
        let judged = judge(&answered(503, Some("abort")), &StatusRules::default());
        assert_eq!((judged.rule.as_str(), judged.source), ("webhook-delivery: abort", RuleSource::Receiver));
    }

    #[test]
    fn a_disabled_endpoint_is_told_which_answer_did_it() {
        let reason = |status: u16, json: &str| {
            let cause = judge(&answered(status, None), &rules(json)).disables.unwrap();
            EndpointEvent::Disabled(cause).reason().unwrap()
        };
        assert_eq!(reason(410, "{}"), "the receiver answered 410 Gone");
        assert_eq!(reason(403, r#"{"403":"disable"}"#), "the receiver answered 403, and rule 403 says disable");
        assert_eq!(reason(451, r#"{"4xx":"disable"}"#), "the receiver answered 451, and rule 4xx says disable");
    }
}
