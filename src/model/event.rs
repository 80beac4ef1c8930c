//! An event: something that happened, accepted once and never changed.
//!
//! Invariant: `data` is the producer's bytes. No code re-serializes them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::checksum::Checksum;
use super::id::{EndpointId, EventId, TenantId};
use super::trace_context::TraceContext;

/// An event as accepted.
#[derive(Clone)]
pub struct Event {
    /// Id of the event, unique within its tenant.
    pub id: EventId,
    /// Tenant the event belongs to.
    pub tenant: TenantId,
    /// Type of the event, such as `invoice.paid`.
    pub event_type: EventType,
    /// Ordering key: events that share a key are delivered in order.
    pub key: Option<EventKey>,
    /// Time at which it happened, as text from the producer, if it gave one.
    pub timestamp: Option<String>,
    /// Producer's name for the schema of `data`.
    pub schema_version: Option<String>,
    /// Time after which no attempt for it starts, if its producer set one.
    pub expires_at: Option<Timestamp>,
    /// Endpoints it is addressed to, if it names some.
    pub endpoints: Option<Vec<EndpointId>>,
    /// Public URL with which the links to its data begin, if a delivery of it is thin.
    pub link_base: Option<String>,
    /// Trace it belongs to, if its producer gave one. It is no part of the content.
    pub trace: Option<TraceContext>,
    /// Time at which it was accepted.
    pub accepted_at: Timestamp,
    /// Producer's bytes: one JSON value, or empty once they were expunged.
    pub data: Bytes,
}

/// Prints the size of the data instead of the data.
impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({} of {}, {}, {} bytes)", self.id, self.tenant, self.event_type, self.data.len())
    }
}

impl Event {
    /// Returns an event without data and without what a producer may leave out.
    pub fn empty(tenant: TenantId, id: EventId, event_type: EventType, accepted_at: Timestamp) -> Self {
        Self {
            id,
            tenant,
            event_type,
            key: None,
            timestamp: None,
            schema_version: None,
            expires_at: None,
            endpoints: None,
            link_base: None,
            trace: None,
            accepted_at,
            data: Bytes::new(),
        }
    }

    /// Whether its data is no longer stored: no JSON value is empty.
    pub fn is_expunged(&self) -> bool {
        self.data.is_empty()
    }

    /// Returns the checksum over everything that is sent to receivers.
    pub fn checksum(&self) -> i64 {
        // Every field has its name here, so that the compiler asks of a new one whether
        // receivers get it.
        let Self {
            id,
            tenant,
            event_type,
            key,
            timestamp,
            schema_version,
            expires_at: _,
            endpoints: _,
            link_base,
            trace: _,
            accepted_at,
            data,
        } = self;
        let sum = Checksum::default()
            .text(Some(id.as_str()))
            .text(Some(tenant.as_str()))
            .text(Some(event_type.as_str()))
            .text(key.as_ref().map(EventKey::as_str))
            .text(timestamp.as_deref())
            .number(accepted_at.as_millisecond().cast_unsigned())
            .text(schema_version.as_deref())
            .bytes(data);
        // Sums of events without one are as in older versions.
        if link_base.is_some() { sum.text(link_base.as_deref()).finish() } else { sum.finish() }
    }

    /// Whether it no longer matches its stored checksum. Rows of older versions
    /// have none, and expunged data is not compared.
    pub fn is_damaged(&self, stored: Option<i64>) -> bool {
        !self.is_expunged() && stored.is_some_and(|stored| stored != self.checksum())
    }

    /// Returns the producer's timestamp, or else the time of acceptance.
    pub fn timestamp_text(&self) -> String {
        self.timestamp.clone().unwrap_or_else(|| format!("{:.3}", self.accepted_at))
    }
}

/// Why an event's data is no longer stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataRemoval {
    /// The data was expunged on request.
    Expunged,
    /// No endpoint wanted the event, and its retention time passed.
    Unmatched,
}

/// An event type: a dotted name such as `invoice.paid`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventType(Arc<str>);

/// An ordering key: events that share one are delivered in order.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventKey(Arc<str>);

/// The reason why a text is not a valid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidText(pub String);

impl EventType {
    /// Longest type, in bytes.
    pub const BYTES_MAX: usize = 256;
}

impl FromStr for EventType {
    type Err = InvalidText;
    fn from_str(text: &str) -> Result<Self, InvalidText> {
        if text.len() > Self::BYTES_MAX {
            return Err(InvalidText(format!("type is {} bytes long; use at most {}", text.len(), Self::BYTES_MAX)));
        }
        let is_word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !text.split('.').all(is_word) {
            return Err(InvalidText(format!(
                "type {text:?} is not words of A-Z a-z 0-9 _ joined by dots, such as invoice.paid"
            )));
        }
        Ok(Self(text.into()))
    }
}

impl EventKey {
    /// Longest key, in bytes.
    pub const BYTES_MAX: usize = 256;
}

impl FromStr for EventKey {
    type Err = InvalidText;
    fn from_str(text: &str) -> Result<Self, InvalidText> {
        if text.is_empty() {
            return Err(InvalidText("key is empty; leave it out for an event without order".into()));
        }
        if text.len() > Self::BYTES_MAX {
            return Err(InvalidText(format!("key is {} bytes long; use at most {}", text.len(), Self::BYTES_MAX)));
        }
        match text.chars().find(|c| c.is_control()) {
            Some(odd) => Err(InvalidText(format!("key contains the control character {odd:?}; use printable text"))),
            None => Ok(Self(text.into())),
        }
    }
}

macro_rules! checked_text {
    ($name:ident) => {
        impl $name {
            /// Returns the text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
            /// Wraps a text from the store, which was checked before it was stored.
            pub fn from_stored(text: &str) -> Self {
                Self(text.into())
            }
            /// Returns the text as a shared pointer.
            pub fn shared(&self) -> Arc<str> {
                self.0.clone()
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
checked_text!(EventType);
checked_text!(EventKey);

/// Returns how deep a JSON text nests, if that is deeper than `most`. Few texts have
/// more brackets than that, and those are counted many bytes at a time.
pub fn deeper_than(json: &[u8], most: usize) -> Option<usize> {
    let brackets_of = |part: &[u8]| part.iter().fold(0u8, |sum, byte| sum.wrapping_add(u8::from(byte | 0x20 == b'{')));
    // So many bytes have no more brackets than a byte can count.
    let brackets: usize = json.chunks(255).map(|part| usize::from(brackets_of(part))).sum();
    (brackets > most).then(|| json_depth(json)).filter(|depth| *depth > most)
}

/// Returns how deep the arrays and objects of a JSON text nest. The bytes must be
/// well-formed JSON; brackets inside strings are skipped.
pub fn json_depth(json: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0usize, 0usize);
    let mut bytes = json.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                while let Some(inside) = bytes.next() {
                    match inside {
                        b'\\' => {
                            bytes.next();
                        }
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_deeper_than_a_limit_by_its_nesting_and_not_by_its_brackets() {
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(deeper_than(nested(64).as_bytes(), 64), None);
        assert_eq!(deeper_than(nested(65).as_bytes(), 64), Some(65));
        assert_eq!(deeper_than(nested(1_000).as_bytes(), 64), Some(1_000));
        let wide = format!("[{}]", vec![r#"{"a":"[[{{"}"#; 500].join(","));
        assert_eq!(deeper_than(wide.as_bytes(), 64), None);
        assert_eq!(deeper_than(wide.as_bytes(), 1), Some(2));
    }

    #[test]
    fn types_are_dotted_words() {
        for good in ["a", "invoice.paid", "A_1.b.C"] {
            assert!(good.parse::<EventType>().is_ok(), "{good}");
        }
        for bad in ["", ".", "a.", ".a", "a..b", "a b", "a-b", "é", "a\0b", &"x".repeat(257)] {
            assert!(bad.parse::<EventType>().is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_are_printable_text_of_any_script() {
        for good in ["k", "Ключ 7", "a/b?c=d", &"x".repeat(256)] {
            assert!(good.parse::<EventKey>().is_ok(), "{good}");
        }
        for bad in ["", "a\nb", "\u{0}", "a\u{85}b", &"é".repeat(129)] {
            assert!(bad.parse::<EventKey>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn depth_counts_nesting_and_not_what_stands_in_strings() {
        for (json, depth) in [
            ("1", 0),
            ("{}", 1),
            (r#"{"a":[1,{"b":2}]}"#, 3),
            (r#""[[[[""#, 0),
            (r#"["\"[[",[]]"#, 2),
            (r#"["\\",[]]"#, 2),
        ] {
            assert_eq!(json_depth(json.as_bytes()), depth, "{json}");
        }
    }
}
