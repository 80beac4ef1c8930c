//! Says an operational event in one sentence, in the shape that a chat takes.
//!
//! Invariant: what is returned for an event never changes, since deliveries of
//! older versions are sent again with it (see [`BodyFormat`]).

use serde_json::{Value, json};

use super::delivery::BodyFormat;
use super::event::Event;
use super::named_enum::NamedEnum;
use super::operational_event::OperationalEventType;

/// Longest text of a data field, and of the data of an unknown event.
const TEXT_CHARS_MAX: usize = 500;

/// Returns the message for a chat. Nothing in it calls people: texts of tenants and
/// receivers are in it.
pub fn message(format: BodyFormat, event: &Event) -> Value {
    let text = sentence(event);
    match format {
        BodyFormat::Slack => json!({"text": text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")}),
        BodyFormat::Discord => json!({"content": text, "allowed_mentions": {"parse": []}}),
        BodyFormat::Teams => {
            let card = json!({
                "type": "AdaptiveCard", "version": "1.4",
                "body": [{"type": "TextBlock", "text": text, "wrap": true}],
            });
            let content_type = "application/vnd.microsoft.card.adaptive";
            json!({"type": "message", "attachments": [{"contentType": content_type, "content": card}]})
        }
        // A space without width after the sign: nobody is mentioned.
        BodyFormat::Mattermost
        | BodyFormat::Envelope
        | BodyFormat::Raw
        | BodyFormat::Thin
        | BodyFormat::Cloudevents => json!({"text": text.replace('@', "@\u{200b}")}),
    }
}

/// Returns what an operational event reports, with its facts.
fn sentence(event: &Event) -> String {
    let data: Value = serde_json::from_slice(&event.data).unwrap_or_default();
    let known = OperationalEventType::ALL.iter().find(|known| known.as_str() == event.event_type.as_str());
    let said = match known {
        Some(known) => known_sentence(*known, &data),
        None => {
            let (event_type, data) = (&event.event_type, shorten(&plain_text(&data)));
            format!("event {} ({event_type}) of tenant {}: {data}", event.id, event.tenant)
        }
    };
    format!("Posthaste: {said}")
}

/// Says what happened, for an event of one of these types.
fn known_sentence(event_type: OperationalEventType, data: &Value) -> String {
    let (fact, endpoint) = (|name: &str| fact_text(data, name), endpoint_words(data));
    let delivery = fact("delivery");
    let because = match fact("reason") {
        reason if reason.is_empty() => String::new(),
        reason => format!(": {reason}"),
    };
    let lane = match fact("key") {
        key if key.is_empty() => "the lane".to_owned(),
        key => format!("the lane {key:?}"),
    };
    match event_type {
        OperationalEventType::EndpointPaused => format!("{endpoint} is paused{because}. What is due waits."),
        OperationalEventType::EndpointDisabled => format!("{endpoint} is disabled{because}. What is due waits."),
        OperationalEventType::EndpointRecovered => format!("{endpoint} delivers again."),
        OperationalEventType::BreakerClosed => format!("the breaker of {endpoint} closed{because}."),
        OperationalEventType::BreakerOpened => match fact("next_probe_at") {
            probe if probe.is_empty() => format!("the breaker of {endpoint} opened{because}."),
            probe => format!("the breaker of {endpoint} opened{because}. The next probe is at {probe}."),
        },
        OperationalEventType::DeliveryDead => {
            let (event, event_type, cause) = (fact("event"), fact("event_type"), fact("cause"));
            let attempts = counted_words(&fact("attempts"), "attempt");
            format!(
                "delivery {delivery} of event {event} ({event_type}) to {endpoint} is dead ({cause}) after {attempts}."
            )
        }
        OperationalEventType::DeliveryForgotten => {
            let (oldest_at, newest_at) = (fact("oldest_at"), fact("newest_at"));
            let dead = counted_words(&fact("count"), "dead letter");
            format!("{dead} of {endpoint} deleted after the retention; died between {oldest_at} and {newest_at}.")
        }
        OperationalEventType::JobFinished => {
            let (job, kind, tenant) = (fact("job"), fact("kind"), fact("tenant"));
            let (done, matched, delivered, dead) = (fact("done"), fact("matched"), fact("delivered"), fact("dead"));
            let (ended, error) = match (fact("state").as_str(), fact("error")) {
                ("failed", error) => ("has failed", format!(" The error: {error}.")),
                _ => ("is finished", String::new()),
            };
            format!(
                "job {job} ({kind}) of tenant {tenant} {ended}: {done} of {matched} deliveries done, {delivered} \
                 delivered, {dead} dead.{error}"
            )
        }
        OperationalEventType::LaneBlocked => format!("{lane} of {endpoint} waits behind dead letter {delivery}."),
        OperationalEventType::LaneUnblocked => {
            format!("{lane} of {endpoint} no longer waits behind delivery {delivery}.")
        }
    }
}

fn endpoint_words(data: &Value) -> String {
    let (id, tenant) = (fact_text(data, "endpoint"), fact_text(data, "tenant"));
    match fact_text(data, "url") {
        url if url.is_empty() => format!("endpoint {id} of tenant {tenant}"),
        url => format!("endpoint {id} of tenant {tenant} ({url})"),
    }
}

/// A field of the data, as people write it.
fn fact_text(data: &Value, name: &str) -> String {
    shorten(&plain_text(&data[name]))
}

/// A value as people write it: a text without quotes, nothing for null.
fn plain_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A number with the name of what is counted.
fn counted_words(number: &str, name: &str) -> String {
    if number == "1" { format!("1 {name}") } else { format!("{number} {name}s") }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::EventType;
    use crate::model::id::{EventId, TenantId};
    use jiff::Timestamp;

    fn event(event_type: &str, data: Value) -> Event {
        let at = Timestamp::from_second(1_700_000_000).unwrap();
        let (id, event_type) = (EventId::from_stored("evt_1"), EventType::from_stored(event_type));
        Event { data: data.to_string().into(), ..Event::empty(TenantId::system(), id, event_type, at) }
    }

    fn dead() -> Event {
        event(
            "delivery.dead",
            json!({"tenant": "acme", "endpoint": "ep_1", "delivery": "dlv_1", "key": null, "event": "<!channel> @all",
                   "event_type": "a.b", "cause": "refused", "attempts": 3}),
        )
    }

    #[test]
    fn each_chat_gets_the_facts_in_its_shape_and_nobody_is_called() {
        let facts = "to endpoint ep_1 of tenant acme is dead (refused) after 3 attempts.";
        let slack = message(BodyFormat::Slack, &dead())["text"].as_str().unwrap().to_owned();
        assert_eq!(slack, format!("Posthaste: delivery dlv_1 of event &lt;!channel&gt; @all (a.b) {facts}"));
        let mattermost = message(BodyFormat::Mattermost, &dead())["text"].as_str().unwrap().to_owned();
        assert_eq!(mattermost, format!("Posthaste: delivery dlv_1 of event <!channel> @\u{200b}all (a.b) {facts}"));
        let discord = message(BodyFormat::Discord, &dead());
        assert!(discord["content"].as_str().unwrap().ends_with(facts), "{discord}");
        assert_eq!(discord["allowed_mentions"], json!({"parse": []}));
        let teams = message(BodyFormat::Teams, &dead());
        let card = &teams["attachments"][0]["content"];
        assert!(card["body"][0]["text"].as_str().unwrap().ends_with(facts), "{teams}");
    }

    #[test]
    fn a_job_that_has_failed_is_not_told_as_finished() {
        let facts = json!({"job": "job_1", "kind": "replay", "tenant": "acme", "matched": 9, "done": 4, "delivered": 3,
            "dead": 1, "state": "failed", "error": "at endpoint ep_1: a row is newer"});
        assert_eq!(
            sentence(&event("job.finished", facts.clone())),
            "Posthaste: job job_1 (replay) of tenant acme has failed: 4 of 9 deliveries done, 3 delivered, 1 dead. \
             The error: at endpoint ep_1: a row is newer."
        );
        for state in [json!("finished"), json!(null)] {
            let mut finished = facts.clone();
            (finished["state"], finished["error"]) = (state, json!(null));
            let said = sentence(&event("job.finished", finished));
            assert!(said.ends_with("is finished: 4 of 9 deliveries done, 3 delivered, 1 dead."), "{said}");
        }
    }

    #[test]
    fn every_operational_event_is_said_in_a_sentence_of_its_own() {
        use crate::model::named_enum::NamedEnum;
        use crate::model::operational_event::OperationalEventType;
        for event_type in OperationalEventType::ALL {
            let said = sentence(&event(event_type.as_str(), json!({"tenant": "acme", "reason": "503"})));
            assert!(said.starts_with("Posthaste: ") && !said.contains("evt_1"), "{said}");
        }
        let other = sentence(&event("test.sent", json!({"n": 1})));
        assert_eq!(other, "Posthaste: event evt_1 (test.sent) of tenant _system: {\"n\":1}");
        let long = sentence(&event("test.sent", json!("ä".repeat(5_000))));
        assert!(long.chars().count() < 600 && long.ends_with('…'));
    }
}
