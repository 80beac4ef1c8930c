//! Writes spans as a request of OTLP/HTTP in its JSON form.
//!
//! Ids are hex, 64-bit numbers are texts and enums are numbers, as the
//! specification of OTLP wants it. The text is written piece by piece: with a
//! serializer each of the many short texts cost more than its bytes, and a span
//! took four times as many instructions.

use std::fmt::{Display, Write};

use super::{FinishedSpan, SpanFacts};
use crate::model::delivery::DeliveryState;
use crate::model::named_enum::NamedEnum;
use crate::model::plain_head::decimal;
use crate::model::verdict::Verdict;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Bytes that a span takes, so that the text hardly grows.
const SPAN_BYTES: usize = 1_024;

// Kinds of spans, as OTLP numbers them.
const INTERNAL: u64 = 1;
const SERVER: u64 = 2;
const CLIENT: u64 = 3;

/// The node that exports the spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportingNode {
    /// Name that tells this node from the others.
    pub instance: String,
}

/// Returns the body of a request with these spans.
pub fn encode(node: &ExportingNode, spans: &[FinishedSpan]) -> Vec<u8> {
    let mut json = JsonText(String::with_capacity((1 + spans.len()) * SPAN_BYTES));
    json.raw(r#"{"resourceSpans":[{"resource":{"attributes":["#);
    json.text("service.name", "posthaste");
    json.text("service.version", VERSION);
    json.text("service.instance.id", &node.instance);
    json.raw(r#"]},"scopeSpans":[{"scope":{"name":"posthaste","version":"#);
    json.quoted(VERSION);
    json.raw(r#"},"spans":["#);
    spans.iter().for_each(|span| json.span(span));
    json.raw("]}]}]}");
    json.0.into_bytes()
}

/// A JSON text that is being written.
struct JsonText(String);

impl JsonText {
    fn span(&mut self, span: &FinishedSpan) {
        let (name, kind) = match &span.facts {
            SpanFacts::Accept { .. } => ("accept", SERVER),
            SpanFacts::Dispatch => ("dispatch", INTERNAL),
            SpanFacts::Attempt { .. } => ("attempt", CLIENT),
            SpanFacts::Settle { .. } => ("settle", INTERNAL),
        };
        self.separate();
        self.raw(r#"{"traceId":""#);
        self.hex(&span.trace.0.to_be_bytes());
        self.raw(r#"","spanId":""#);
        self.hex(&span.id.0.to_be_bytes());
        if let Some(parent) = span.parent {
            self.raw(r#"","parentSpanId":""#);
            self.hex(&parent.0.to_be_bytes());
        }
        self.raw(r#"","name":""#);
        self.raw(name);
        self.raw(r#"","kind":"#);
        self.digits(kind);
        self.raw(r#","startTimeUnixNano":""#);
        self.digits(span.began_ns);
        self.raw(r#"","endTimeUnixNano":""#);
        self.digits(span.ended_ns);
        self.raw(r#"","attributes":["#);
        let is_failed = self.attributes(span);
        self.raw("]");
        if let Some(previous) = span.previous {
            self.raw(r#","links":[{"traceId":""#);
            self.hex(&span.trace.0.to_be_bytes());
            self.raw(r#"","spanId":""#);
            self.hex(&previous.0.to_be_bytes());
            self.raw(r#""}]"#);
        }
        self.raw(if is_failed { r#","status":{"code":2}}"# } else { r#","status":{"code":0}}"# });
    }

    /// Writes what happened in a span. Returns whether it failed.
    fn attributes(&mut self, span: &FinishedSpan) -> bool {
        self.text("posthaste.tenant.id", span.tenant.as_str());
        self.text("posthaste.event.id", span.event.as_str());
        self.text("posthaste.event.type", span.event_type.as_str());
        if let Some((delivery, endpoint, attempt)) = span.attempt {
            self.id("posthaste.delivery.id", delivery);
            self.id("posthaste.endpoint.id", endpoint);
            self.number("posthaste.attempt", attempt);
        }
        match &span.facts {
            SpanFacts::Accept { deliveries } => {
                self.number("posthaste.deliveries", *deliveries);
                false
            }
            SpanFacts::Dispatch => false,
            SpanFacts::Attempt { server, status, error, verdict } => {
                self.text("http.request.method", "POST");
                if let Some((host, port)) = server {
                    self.text("server.address", host);
                    self.number("server.port", *port);
                }
                if let Some(status) = status {
                    self.number("http.response.status_code", *status);
                }
                let is_failed = *verdict != Verdict::Delivered;
                match (error, status) {
                    _ if !is_failed => {}
                    (Some(kind), _) => self.text("error.type", kind.as_str()),
                    (None, Some(status)) => self.id("error.type", status),
                    (None, None) => {}
                }
                self.text("posthaste.verdict", verdict.as_str());
                is_failed
            }
            SpanFacts::Settle { state, cause } => {
                self.text("posthaste.state", state.as_str());
                if let Some(cause) = cause {
                    self.text("posthaste.cause", cause.as_str());
                }
                *state == DeliveryState::Dead
            }
        }
    }

    /// Writes an attribute whose value is a text.
    fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        self.raw(r#""stringValue":"#);
        self.quoted(value);
        self.raw("}}");
    }

    /// Writes an attribute whose value needs no escapes.
    fn id(&mut self, key: &str, value: impl Display) {
        self.key(key);
        self.raw(r#""stringValue":""#);
        write!(self.0, "{value}").expect("a text takes everything");
        self.raw(r#""}}"#);
    }

    /// Writes an attribute whose value is a number.
    fn number(&mut self, key: &str, value: impl Into<u64>) {
        self.key(key);
        self.raw(r#""intValue":""#);
        self.digits(value.into());
        self.raw(r#""}}"#);
    }

    fn key(&mut self, key: &str) {
        self.separate();
        self.raw(r#"{"key":""#);
        self.raw(key);
        self.raw(r#"","value":{"#);
    }

    /// Writes a comma, unless a list begins here.
    fn separate(&mut self) {
        if !self.0.ends_with('[') {
            self.0.push(',');
        }
    }

    fn raw(&mut self, text: &str) {
        self.0.push_str(text);
    }

    fn quoted(&mut self, text: &str) {
        if text.bytes().any(|byte| byte < b' ' || byte == b'"' || byte == b'\\') {
            self.0 += &serde_json::to_string(text).expect("a text is plain data");
        } else {
            self.0.push('"');
            self.0.push_str(text);
            self.0.push('"');
        }
    }

    fn hex(&mut self, bytes: &[u8]) {
        let mut digits = [0; 32];
        let digits = &mut digits[..2 * bytes.len()];
        hex::encode_to_slice(bytes, digits).expect("an id has at most 16 bytes");
        self.0.push_str(str::from_utf8(digits).expect("digits are ASCII"));
    }

    fn digits(&mut self, number: u64) {
        let mut digits = [0; 20];
        let digits = decimal(usize::try_from(number).unwrap_or(usize::MAX), &mut digits);
        self.0.push_str(str::from_utf8(digits).expect("digits are ASCII"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::event::EventType;
    use crate::model::id::EventId;
    use crate::model::trace_context::{SpanId, TraceId};

    #[test]
    fn whatever_a_name_is_the_text_stays_json() {
        let instance = "a\"b\\c\n\u{7f}ü";
        let facts = SpanFacts::Attempt {
            server: Some(("\"".into(), 1)),
            status: Some(503),
            error: None,
            verdict: Verdict::Retry,
        };
        let span = FinishedSpan {
            trace: TraceId(0xab),
            id: SpanId(1),
            parent: None,
            previous: Some(SpanId(2)),
            began_ns: 1,
            ended_ns: u64::MAX,
            tenant: "default".parse().unwrap(),
            event: EventId::from_stored("e"),
            event_type: EventType::from_stored("a.b"),
            attempt: None,
            facts,
        };
        let text = encode(&ExportingNode { instance: instance.into() }, &[span.clone(), span]);
        let read: Value = serde_json::from_slice(&text).unwrap();
        let resource = &read["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][2]["value"]["stringValue"], instance);
        let spans = resource["scopeSpans"][0]["spans"].as_array().unwrap();
        assert_eq!(spans.len(), 2);
        let mut span = spans[1].clone();
        let attributes = span.as_object_mut().unwrap().remove("attributes").unwrap();
        let expected = json!({
            "traceId": "000000000000000000000000000000ab", "spanId": "0000000000000001", "name": "attempt", "kind": 3,
            "startTimeUnixNano": "1", "endTimeUnixNano": u64::MAX.to_string(), "status": {"code": 2},
            "links": [{"traceId": "000000000000000000000000000000ab", "spanId": "0000000000000002"}],
        });
        assert_eq!(span, expected);
        let of =
            |key: &str| attributes.as_array().unwrap().iter().find(|one| one["key"] == key).unwrap()["value"].clone();
        assert_eq!(of("server.address"), json!({"stringValue": "\""}));
        assert_eq!((of("server.port"), of("error.type")), (json!({"intValue": "1"}), json!({"stringValue": "503"})));
    }
}
