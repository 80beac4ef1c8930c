//! What needs attention at an outbox.

use std::time::Duration;

use super::{AttentionItem, AttentionKind, Severity, span_words_by_minute};

/// Waiting time of an outbox row from which its relay counts as behind.
const OUTBOX_LAG_FROM: Duration = Duration::from_secs(60);
/// Waiting time of an outbox row that is critical.
const OUTBOX_LAG_CRITICAL: Duration = Duration::from_secs(300);

/// What is known of an outbox that this node relays, or would.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OutboxFacts {
    /// Database that the outbox is in, in words.
    pub description: String,
    /// How long the oldest row has waited that may be relayed.
    pub oldest: Duration,
    /// Rows that were refused and wait for a person.
    pub refused: u64,
    /// How long the outbox itself could not be read or changed.
    pub failing_for: Duration,
    /// Why it cannot be; none if it can.
    pub failure: Option<String>,
}

/// Returns what is not well about an outbox.
pub fn of_outbox(facts: &OutboxFacts) -> Vec<AttentionItem> {
    let (outbox, command) = (&facts.description, "posthaste outbox status");
    let mut items = Vec::new();
    let longest = facts.oldest.max(facts.failing_for);
    if longest > OUTBOX_LAG_FROM {
        let severity = if longest > OUTBOX_LAG_CRITICAL { Severity::Critical } else { Severity::Warning };
        let reason = match &facts.failure {
            Some(failure) if facts.failing_for > OUTBOX_LAG_FROM => {
                format!(
                    "the outbox at {outbox} could not be relayed for {}: {failure}",
                    span_words_by_minute(facts.failing_for)
                )
            }
            Some(_) | None => {
                format!(
                    "a row of the outbox at {outbox} has not been handed in for {}",
                    span_words_by_minute(facts.oldest)
                )
            }
        };
        items.push(AttentionItem::of_gateway(AttentionKind::OutboxLag, severity, reason, command));
    }
    if facts.refused > 0 {
        let rows = if facts.refused == 1 { "1 row".to_owned() } else { format!("{} rows", facts.refused) };
        let reason = format!(
            "{rows} of the outbox at {outbox} cannot be accepted as written; others of the same key wait behind"
        );
        items.push(AttentionItem::of_gateway(AttentionKind::OutboxRefused, Severity::Warning, reason, command));
    }
    items
}
