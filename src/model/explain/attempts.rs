//! Explains single attempts: the answer, the rule that judged it, and the wait.

use std::time::Duration;

use super::{ExplainedAttempt, ExplanationFacts, answer_words, secret_change, words_between};
use crate::model::attempt::{Attempt, Decision};
use crate::model::delivery::{DeliveryState, time_after};
use crate::model::named_enum::NamedEnum;
use crate::model::preset::Preset;
use crate::model::span::{Span, words};
use crate::model::status_rules::{RuleCondition, RuleSource, StatusAction, StatusTable};
use crate::model::verdict::Verdict;

/// Delay after its due time from which an attempt counts as held back.
const LATE: Duration = Duration::from_secs(2);

impl ExplanationFacts<'_> {
    pub(super) fn explain_attempt(&self, attempt: &Attempt) -> ExplainedAttempt {
        ExplainedAttempt {
            number: attempt.number,
            started_at: attempt.started_at,
            status: attempt.status,
            error: attempt.error.clone(),
            verdict: attempt.decision.verdict,
            sentences: self.attempt_sentences(attempt),
        }
    }

    /// Says what was answered, which rule judged it, and how the wait came about.
    pub(super) fn attempt_sentences(&self, attempt: &Attempt) -> Vec<String> {
        let decision = &attempt.decision;
        let mut sentences = vec![format!(
            "Attempt {} began at {:.0} and {} after {}.",
            attempt.number,
            attempt.started_at,
            answer_words(attempt),
            duration_words(attempt),
        )];
        let refused = attempt.refused_target.as_ref().filter(|_| self.reader.is_operator);
        sentences.extend(refused.map(|reason| format!("For the operator alone: {reason}.")));
        sentences.extend(self.lateness(attempt));
        sentences.push(judgement(attempt));
        let changed = self.endpoint.and_then(|p| secret_change(&p.secrets, p.created_at, attempt));
        sentences.extend(changed.map(|changed| {
            format!("{}, and a receiver that has another one refuses what it cannot verify.", capitalize(&changed))
        }));
        if let Some(policy) = self.new_policy(attempt) {
            sentences.push(format!("The endpoint's policy had been changed: it was now {policy}."));
        }
        sentences.extend(drawn_delay(decision));
        sentences.extend(decision.caps.iter().map(|cap| as_sentence(cap)));
        sentences.push(self.consequence(attempt));
        sentences
    }

    /// Says by how much an attempt was late, and what may have held it back.
    fn lateness(&self, attempt: &Attempt) -> Option<String> {
        // A replay starts when a person asks for it, so it is never late.
        let is_replay = attempt.number == self.delivery.progress.attempts_before + 1;
        let before = self.attempts.iter().find(|other| other.number + 1 == attempt.number && !is_replay)?;
        let planned_at = before.decision.next_attempt_at?;
        let is_late = time_after(planned_at, LATE) < attempt.started_at;
        is_late.then(|| {
            let late_by = words_between(planned_at, attempt.started_at);
            format!("That was {late_by} after it was due: its endpoint was held, left alone or full, its lane was taken, or the gateway was down.")
        })
    }

    /// Returns the policy an attempt was judged by, if it differs from the one before.
    fn new_policy<'a>(&self, attempt: &'a Attempt) -> Option<&'a str> {
        let policy = attempt.decision.policy.as_deref()?;
        let earlier = self.attempts.iter().rev().filter(|other| other.number < attempt.number);
        let before = earlier.filter_map(|other| other.decision.policy.as_deref()).next()?;
        (policy != before).then_some(policy)
    }

    fn consequence(&self, attempt: &Attempt) -> String {
        let is_last = self.last_of_budget().is_some_and(|last| last.number == attempt.number);
        // It may have been replayed or discarded since.
        let is_dead_by_it = is_last && self.delivery.state == DeliveryState::Dead;
        let is = if is_dead_by_it { "is" } else { "became" };
        match (attempt.decision.verdict, attempt.decision.next_attempt_at, self.delivery.cause) {
            (Verdict::Delivered, ..) => "So it is delivered.".to_owned(),
            (Verdict::Refused, ..) => format!("So it {is} a dead letter (refused)."),
            (Verdict::Gone, ..) if is_dead_by_it => {
                "So it is a dead letter (gone), and its endpoint is disabled.".to_owned()
            }
            (Verdict::Gone, ..) => "So it became a dead letter (gone), and its endpoint was disabled.".to_owned(),
            (Verdict::Retry, Some(at), _) => format!("So the next attempt was planned for {at:.0}."),
            (Verdict::Retry, None, Some(cause)) if is_last => format!("So it {is} a dead letter ({}).", cause.as_str()),
            (Verdict::Retry, None, _) => "So it became a dead letter.".to_owned(),
        }
    }

    /// Returns the last attempt since the delivery was accepted or replayed.
    pub(super) fn last_of_budget(&self) -> Option<&Attempt> {
        self.attempts.last().filter(|last| last.number > self.delivery.progress.attempts_before)
    }
}

/// Says which rule judged the answer, and how.
fn judgement(attempt: &Attempt) -> String {
    let decision = &attempt.decision;
    let action = StatusAction::from(decision.verdict).as_str();
    let rule = &decision.rule;
    let by_table = |table: StatusTable| {
        let row = RuleCondition::named(rule).and_then(|condition| table.find(condition));
        let note = row.map(|row| format!(": {}", row.note)).unwrap_or_default();
        format!("Rule {rule} of the {} table says {action}{note}.", table.as_str())
    };
    match decision.rule_of {
        RuleSource::Default => by_table(StatusTable::Default),
        RuleSource::Strict => by_table(StatusTable::Strict),
        RuleSource::Lenient => by_table(StatusTable::Lenient),
        RuleSource::Endpoint => format!("Rule {rule} of the endpoint's own status_rules says {action}."),
        RuleSource::Receiver => format!("The receiver asked for it in its answer ({rule}), which says {action}."),
    }
}

/// Returns how long an attempt took, in words.
fn duration_words(attempt: &Attempt) -> String {
    let total = Duration::from_secs_f64(attempt.timings.total.max(0.0) / 1_000.0);
    if total < Duration::from_millis(1) { "less than 1ms".to_owned() } else { words(total) }
}

/// Says which window the delay was drawn from, and what was drawn.
fn drawn_delay(decision: &Decision) -> Option<String> {
    let ([lo, hi], draw, budget) = (decision.window_ms?, decision.draw?, decision.budget?);
    let span = |millis: u64| Span::millis(millis).words();
    let policy = match decision.policy.as_deref().and_then(Preset::shown_in) {
        Some(preset) => format!("policy {}", preset.as_str()),
        None => "endpoint's own policy".to_owned(),
    };
    let waits = format!("After failure {} of this budget the {policy} waits", budget.used);
    if lo == hi {
        return Some(format!("{waits} {}.", span(lo)));
    }
    let drawn = decision.drawn_ms.map(|drawn| format!(" gave {}", span(drawn))).unwrap_or_default();
    Some(format!("{waits} between {} and {}; the draw of {draw:.3}{drawn}.", span(lo), span(hi)))
}

/// Returns the text with a capital letter and a full stop.
fn as_sentence(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{}.", capitalize(text)) }
}

/// Returns the text with a capital letter.
fn capitalize(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| format!("{}{}", first.to_uppercase(), letters.as_str()))
}
