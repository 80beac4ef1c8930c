//! Compares events that share an id: the same content again, or other content.
//!
//! Content is every field as the producer sent it, except the id. White space
//! between the tokens of `data` does not count; nothing else is normalized.

use aws_lc_rs::digest;
use jiff::Timestamp;

use super::acceptance::{AcceptResult, RoutedEvent};
use crate::model::event::{Event, EventKey};
use crate::model::id::EndpointId;

/// The content of an event, as its producer sent it.
#[derive(Debug, Clone, Copy)]
pub struct EventContent<'a> {
    /// Type of the event.
    pub event_type: &'a str,
    /// Ordering key of the event.
    pub key: Option<&'a str>,
    /// Time of the event, as the producer wrote it.
    pub timestamp: Option<&'a str>,
    /// Producer's name for the shape of the data.
    pub schema_version: Option<&'a str>,
    /// Wall time after which no attempt starts.
    pub expires_at: Option<Timestamp>,
    /// Endpoints the event is addressed to.
    pub endpoints: Option<&'a [EndpointId]>,
    /// Data of the event, byte for byte.
    pub data: &'a [u8],
}

impl<'a> EventContent<'a> {
    /// Returns the content of an event with this fingerprint. A timestamp that
    /// the gateway added is left out: it is not part of the fingerprint.
    fn of(event: &'a Event, fingerprint: &[u8]) -> Self {
        // Every field has its name here, so that the compiler asks of a new one whether
        // it makes other content.
        let Event {
            id: _,
            tenant: _,
            event_type,
            key,
            timestamp,
            schema_version,
            expires_at,
            endpoints,
            link_base: _,
            trace: _,
            accepted_at: _,
            data,
        } = event;
        let sent = Self {
            event_type: event_type.as_str(),
            key: key.as_ref().map(EventKey::as_str),
            timestamp: timestamp.as_deref(),
            schema_version: schema_version.as_deref(),
            expires_at: *expires_at,
            endpoints: endpoints.as_deref(),
            data,
        };
        let without_timestamp = Self { timestamp: None, ..sent };
        if sent.timestamp.is_some() && without_timestamp.fingerprint() == fingerprint {
            without_timestamp
        } else {
            sent
        }
    }

    /// Hashes the content. Each part is preceded by its length, so that
    /// different contents never give the same input.
    ///
    /// Stores have such hashes of older versions, so it never changes.
    pub fn fingerprint(&self) -> [u8; 32] {
        let Self { event_type, key, timestamp, schema_version, expires_at, endpoints, data } = self;
        let endpoints = endpoints.map(|ids| ids.iter().map(EndpointId::to_string).collect::<Vec<_>>().join(","));
        let parts = [
            Some(event_type.as_bytes()),
            key.map(str::as_bytes),
            timestamp.map(str::as_bytes),
            schema_version.map(str::as_bytes),
            endpoints.as_deref().map(str::as_bytes),
            Some(*data),
        ];
        // `expires_at` was added later: where it is absent nothing is hashed for it,
        // so that stored fingerprints of older versions still match.
        let expires_at = expires_at.map(|at| format!("expires_at={}", at.as_millisecond()));
        let late = expires_at.as_deref().map(|text| Some(text.as_bytes()));
        let mut hash = digest::Context::new(&digest::SHA256);
        for part in parts.into_iter().chain(late) {
            // An absent part and an empty one must differ.
            let length = part.map_or(u64::MAX, |part| part.len() as u64);
            hash.update(&length.to_be_bytes());
            hash.update(part.unwrap_or_default());
        }
        hash.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    /// Returns the fields in which two contents differ.
    fn differing_fields(&self, other: &Self) -> Vec<&'static str> {
        let millis = |at: Option<Timestamp>| at.map(Timestamp::as_millisecond);
        let fields = [
            ("type", self.event_type != other.event_type),
            ("key", self.key != other.key),
            ("data", !is_same_json(self.data, other.data)),
            ("timestamp", self.timestamp != other.timestamp),
            ("schema_version", self.schema_version != other.schema_version),
            ("endpoints", self.endpoints != other.endpoints),
            ("expires_at", millis(self.expires_at) != millis(other.expires_at)),
        ];
        fields.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }
}

/// How an event compares with the one that has its id already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContentComparison {
    /// The content is the same.
    Same,
    /// The content differs in these fields; in none if that is not known.
    Differs(Vec<&'static str>),
}

impl RoutedEvent {
    /// Compares the event with the first one of its id, by fingerprints alone.
    /// Returns none if the first event has to be read for that.
    pub fn compare_fingerprint(&self, first: Option<&[u8]>) -> Option<ContentComparison> {
        // An id that the gateway made has no fingerprint. A producer that sends
        // such an id is not repeating its own request.
        match (first.filter(|print| !print.is_empty()), &self.fingerprint) {
            (Some(first), Some(again)) if first == again => Some(ContentComparison::Same),
            (Some(_), Some(_)) => None,
            _ => Some(ContentComparison::Differs(Vec::new())),
        }
    }

    /// Compares the event with the first one of its id, which has another
    /// fingerprint.
    pub fn compare_content(&self, first: &Event, fingerprint: &[u8]) -> ContentComparison {
        let again = EventContent::of(&self.event, self.fingerprint.as_ref().map_or(&[], |print| &print[..]));
        let mut first_content = EventContent::of(first, fingerprint);
        if first.is_expunged() {
            let without_spaces: Vec<u8> = json_tokens(again.data).collect();
            if (EventContent { data: &without_spaces, ..again }).fingerprint() == fingerprint {
                return ContentComparison::Same;
            }
            // Without its data, the timestamp that the gateway added cannot be told from a producer's.
            first_content.timestamp = again.timestamp.and(first_content.timestamp);
        }
        match first_content.differing_fields(&again) {
            none if none.is_empty() => ContentComparison::Same,
            fields => ContentComparison::Differs(fields),
        }
    }

    /// Compares the event with an earlier one of the same batch.
    pub fn compare_with(&self, earlier: &RoutedEvent) -> ContentComparison {
        let print = earlier.fingerprint.as_ref().map(|print| &print[..]);
        self.compare_fingerprint(print)
            .unwrap_or_else(|| self.compare_content(&earlier.event, print.unwrap_or_default()))
    }
}

impl AcceptResult {
    /// Returns the result for an event whose id is known, from the comparison
    /// with the first event of that id.
    pub(super) fn of_known(comparison: ContentComparison, accepted_at: Timestamp, deliveries: u32) -> Self {
        match comparison {
            ContentComparison::Same => Self::Duplicate { accepted_at, deliveries },
            ContentComparison::Differs(differs) => Self::Conflict { accepted_at, differs },
        }
    }
}

/// Whether two JSON texts differ in nothing but white space between tokens.
fn is_same_json(one: &[u8], other: &[u8]) -> bool {
    one == other || json_tokens(one).eq(json_tokens(other))
}

/// Returns the bytes of a JSON text without the white space between its tokens.
fn json_tokens(json: &[u8]) -> impl Iterator<Item = u8> {
    let (mut is_text, mut is_escaped) = (false, false);
    json.iter().copied().filter(move |byte| {
        if is_text {
            let is_end = *byte == b'"' && !is_escaped;
            is_escaped = *byte == b'\\' && !is_escaped;
            is_text = !is_end;
            return true;
        }
        is_text = *byte == b'"';
        !matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content<'a>(data: &'a str) -> EventContent<'a> {
        EventContent {
            event_type: "a.b",
            key: None,
            timestamp: None,
            schema_version: None,
            expires_at: None,
            endpoints: None,
            data: data.as_bytes(),
        }
    }

    #[test]
    fn white_space_between_tokens_is_no_other_content() {
        for (one, other) in [
            (r#"{"a":[1,2]}"#, "{ \"a\" :\t[1,\r\n2] }"),
            (r#"{"a":" \" b"}"#, r#"{"a": " \" b" }"#),
            (r#"["\\",1]"#, r#"["\\", 1]"#),
        ] {
            assert!(content(one).differing_fields(&content(other)).is_empty(), "{one} {other}");
        }
    }

    #[test]
    fn white_space_in_texts_order_and_notation_are_other_content() {
        for (one, other) in [
            (r#"{"a":"b c"}"#, r#"{"a":"bc"}"#),
            (r#"["\" "]"#, r#"["\""]"#),
            (r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#),
            ("1.0", "1"),
            (r#""A""#, r#""\u0041""#),
        ] {
            assert_eq!(content(one).differing_fields(&content(other)), ["data"], "{one} {other}");
        }
    }

    #[test]
    fn every_field_that_differs_is_named() {
        let first = content("1");
        let endpoint: EndpointId = crate::model::id::EndpointId(uuid::Uuid::nil());
        let other = EventContent {
            event_type: "a.c",
            key: Some("k"),
            timestamp: Some("2026-01-31T12:00:00Z"),
            schema_version: Some("2"),
            expires_at: Some(Timestamp::UNIX_EPOCH),
            endpoints: Some(&[endpoint]),
            data: b"2",
        };
        assert_eq!(
            first.differing_fields(&other),
            ["type", "key", "data", "timestamp", "schema_version", "endpoints", "expires_at"]
        );
        assert!(other.differing_fields(&other).is_empty());
    }
}
