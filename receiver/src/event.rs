//! Reads the event out of a verified request.
//!
//! Headers other than those of the signature are not signed. So id, tenant, key
//! and place come from the body wherever it has them, and from headers only
//! where it has not: in thin and raw bodies.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use http::HeaderMap;
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

/// Longest id, tenant or key; more than a gateway accepts.
const TEXT_BYTES_MAX: usize = 512;

/// The format of an endpoint's bodies, which is its `format` at the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// The envelope, or the link of a thin event.
    #[default]
    Envelope,
    /// A structured CloudEvent, or the link of a thin event.
    CloudEvents,
    /// The producer's data alone. Tenant, key and place are then not signed.
    Raw,
}

/// An event that a verified request brought.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Id of the event, the same on every attempt and every replay.
    pub id: String,
    /// Type of the event, such as `invoice.paid`.
    pub event_type: String,
    /// Tenant whose event it is; empty if the request does not say.
    pub tenant: String,
    /// Time of the event, as RFC 3339; empty where a raw body does not say.
    pub timestamp: String,
    /// Ordering key; none where the event has none, or the delivery is not ordered.
    pub key: Option<String>,
    /// Place in the lane, from 1; none where the delivery is not ordered.
    pub seq: Option<u64>,
    /// The producer's name for the shape of the data.
    pub schema_version: Option<String>,
    /// Link to the data of a thin event.
    pub data_url: Option<String>,
    /// Raw body of the request.
    #[serde(skip)]
    pub body: Bytes,
    /// Where the data is in the body; nowhere in that of a thin event.
    data: Option<Range<usize>>,
    /// Tenant as far as it is signed; ids are unique within it.
    pub(crate) signed_tenant: String,
}

/// Prints no data.
impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({} {} of {:?}, {} bytes)", self.event_type, self.id, self.tenant, self.body.len())
    }
}

/// The reason why a verified request is no event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MalformedEvent {
    /// The body is not JSON of the format.
    #[error("the body is not {expected}: {problem}; is the endpoint's format the one that the receiver expects?")]
    Body {
        /// What the body should be.
        expected: &'static str,
        /// What is wrong, and where.
        problem: String,
    },
    /// A part of the event has a value that cannot be used.
    #[error("{0} is not usable: it is {1}")]
    Part(&'static str, &'static str),
    /// The signed id and the one in the body differ.
    #[error("the signed id and the id in the body differ")]
    IdsDiffer,
    /// Nothing that is signed names the event.
    #[error(
        "nothing that is signed names the event: a raw body has no id, and this profile signs none; verify the profile standard, which every request has"
    )]
    NoSignedId,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    id: String,
    r#type: String,
    timestamp: String,
    key: Option<String>,
    seq: Option<u64>,
    schema_version: Option<String>,
    tenant: Option<String>,
    #[serde(borrow, default, deserialize_with = "read_data")]
    data: Option<&'a RawValue>,
    data_url: Option<String>,
}

#[derive(Deserialize)]
struct CloudEvent<'a> {
    id: String,
    r#type: String,
    source: String,
    time: String,
    partitionkey: Option<String>,
    sequence: Option<String>,
    schemaversion: Option<String>,
    #[serde(borrow, default, deserialize_with = "read_data")]
    data: Option<&'a RawValue>,
}

impl Event {
    /// Reads the event of a verified request. `signed_id` is what
    /// [`Verified`](crate::Verified) has.
    pub fn read(
        format: Format,
        headers: &HeaderMap,
        body: Bytes,
        signed_id: Option<&str>,
    ) -> Result<Self, MalformedEvent> {
        let event = match format {
            Format::Raw => Self::of_headers(headers, body, signed_id)?,
            Format::Envelope => Self::of_envelope(headers, body)?,
            Format::CloudEvents if is_thin(&body) => Self::of_envelope(headers, body)?,
            Format::CloudEvents => Self::of_cloud_event(body)?,
        };
        if signed_id.is_some_and(|signed| signed != event.id) {
            return Err(MalformedEvent::IdsDiffer);
        }
        event.check()?;
        Ok(event)
    }

    /// Returns the producer's data as it was sent; none where the event is thin.
    pub fn data(&self) -> Option<&str> {
        let data = self.body.get(self.data.clone()?)?;
        std::str::from_utf8(data).ok()
    }

    /// Reads the producer's data. The data of a thin event is null.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.data().unwrap_or("null"))
    }

    /// Returns everything but the body as JSON, to be stored beside it.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn head_json(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers can be written")
    }

    /// Reads an event that was stored.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn restore(head_json: &str, body: Vec<u8>) -> Result<Self, serde_json::Error> {
        let event: Self = serde_json::from_str(head_json)?;
        Ok(Self { body: body.into(), ..event })
    }

    fn of_envelope(headers: &HeaderMap, body: Bytes) -> Result<Self, MalformedEvent> {
        let envelope: Envelope<'_> = parse(&body, "an envelope")?;
        let data = envelope.data.map(|data| range(&body, data.get()));
        let mut event = Self {
            id: envelope.id,
            event_type: envelope.r#type,
            timestamp: envelope.timestamp,
            key: envelope.key,
            seq: envelope.seq,
            schema_version: envelope.schema_version,
            signed_tenant: envelope.tenant.clone().unwrap_or_default(),
            tenant: envelope.tenant.unwrap_or_default(),
            data_url: envelope.data_url,
            data,
            body: body.clone(),
        };
        if event.data.is_none() && event.data_url.is_some() {
            event.add_headers(headers)?;
        } else if event.data.is_none() || event.tenant.is_empty() {
            let problem = "it has no data or no tenant".to_owned();
            return Err(MalformedEvent::Body { expected: "an envelope", problem });
        }
        Ok(event)
    }

    fn of_cloud_event(body: Bytes) -> Result<Self, MalformedEvent> {
        let cloud: CloudEvent<'_> = parse(&body, "a structured CloudEvent")?;
        let tenant = cloud.source.strip_prefix("/tenants/").unwrap_or(&cloud.source).to_owned();
        let seq = cloud.sequence.as_deref().map(read_seq).transpose()?;
        Ok(Self {
            id: cloud.id,
            event_type: cloud.r#type,
            timestamp: cloud.time,
            key: cloud.partitionkey,
            seq,
            schema_version: cloud.schemaversion,
            signed_tenant: tenant.clone(),
            tenant,
            data_url: None,
            data: cloud.data.map(|data| range(&body, data.get())),
            body: body.clone(),
        })
    }

    fn of_headers(headers: &HeaderMap, body: Bytes, signed_id: Option<&str>) -> Result<Self, MalformedEvent> {
        let mut event = Self {
            id: signed_id.ok_or(MalformedEvent::NoSignedId)?.to_owned(),
            event_type: text(headers, "x-event-type").unwrap_or_default(),
            tenant: String::new(),
            signed_tenant: String::new(),
            timestamp: String::new(),
            key: None,
            seq: None,
            schema_version: None,
            data_url: None,
            data: Some(0..body.len()),
            body,
        };
        event.add_headers(headers)?;
        Ok(event)
    }

    /// Adds what the body does not have. The tenant of a header is shown, but
    /// it does not tell events apart: whoever repeats a request can change it.
    fn add_headers(&mut self, headers: &HeaderMap) -> Result<(), MalformedEvent> {
        self.tenant = text(headers, "x-tenant").unwrap_or_default();
        self.schema_version = text(headers, "x-schema-version");
        self.seq = text(headers, "x-seq").as_deref().map(read_seq).transpose()?;
        let key = text(headers, "x-key");
        let key = key.as_deref().map(|key| percent_decode_str(key).decode_utf8().map(|key| key.into_owned()));
        self.key = key.transpose().map_err(|_| MalformedEvent::Part("x-key", "not UTF-8"))?;
        Ok(())
    }

    /// Checks what is stored as text or number.
    fn check(&self) -> Result<(), MalformedEvent> {
        let texts = [("id", Some(&self.id)), ("tenant", Some(&self.tenant)), ("key", self.key.as_ref())];
        for (name, text) in texts {
            if text.is_some_and(|text| text.chars().any(char::is_control)) {
                return Err(MalformedEvent::Part(name, "text with control characters"));
            }
            if text.is_some_and(|text| text.len() > TEXT_BYTES_MAX) {
                return Err(MalformedEvent::Part(name, "longer than 512 bytes"));
            }
        }
        if self.id.is_empty() {
            return Err(MalformedEvent::Part("id", "empty"));
        }
        if self.seq.is_some_and(|seq| seq == 0 || i64::try_from(seq).is_err()) {
            return Err(MalformedEvent::Part("seq", "not between 1 and 2^63 - 1"));
        }
        Ok(())
    }
}

/// Reads data that is there. `null` is data, too, and would be none as an option.
fn read_data<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

fn is_thin(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Link {
        #[serde(rename = "data_url")]
        _data_url: String,
    }
    serde_json::from_slice::<Link>(body).is_ok()
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8], expected: &'static str) -> Result<T, MalformedEvent> {
    let text = std::str::from_utf8(body);
    let text = text.map_err(|_| MalformedEvent::Body { expected, problem: "it is not UTF-8".to_owned() })?;
    serde_json::from_str(text).map_err(|problem| MalformedEvent::Body { expected, problem: problem.to_string() })
}

/// Returns where a part of the body is. The part borrows from the body.
fn range(body: &[u8], part: &str) -> Range<usize> {
    let start = part.as_ptr() as usize - body.as_ptr() as usize;
    start..start + part.len()
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

fn read_seq(text: &str) -> Result<u64, MalformedEvent> {
    text.parse().map_err(|_| MalformedEvent::Part("the place in the lane", "not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENVELOPE: &str = r#"{"id":"e1","type":"invoice.paid","timestamp":"2026-11-15T09:08:39.417Z","key":"k","seq":3,"tenant":"t","new_field":1,"data":{"n": 12345678901234567890.10}}"#;
    const THIN: &str = r#"{"id":"e1","type":"a.b","timestamp":"2026-11-15T09:08:39.417Z","data_url":"https://x"}"#;
    const CLOUD: &str = r#"{"specversion":"1.0","id":"e1","source":"/tenants/t","type":"a.b","time":"2026-11-15T09:08:39Z","partitionkey":"k","sequence":"00000000000000000003","data":[1]}"#;

    fn headers() -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in
            [("x-seq", "9"), ("x-key", "Konto%207%2F%C3%A9"), ("x-tenant", "h"), ("x-event-type", "r.t")]
        {
            headers.insert(name, value.parse().unwrap());
        }
        headers
    }

    fn read(format: Format, body: &'static str, signed_id: Option<&str>) -> Result<Event, MalformedEvent> {
        Event::read(format, &headers(), Bytes::from_static(body.as_bytes()), signed_id)
    }

    #[test]
    fn what_the_body_says_counts_and_headers_do_not() {
        for (format, body) in [(Format::Envelope, ENVELOPE), (Format::CloudEvents, CLOUD)] {
            let event = read(format, body, Some("e1")).unwrap();
            assert_eq!((event.id.as_str(), event.tenant.as_str(), event.seq), ("e1", "t", Some(3)), "{format:?}");
            assert_eq!((event.key.as_deref(), event.signed_tenant.as_str()), (Some("k"), "t"), "{format:?}");
        }
        let without_key = r#"{"id":"e1","type":"a.b","timestamp":"2026","tenant":"t","data":1}"#;
        let event = read(Format::Envelope, without_key, None).unwrap();
        assert_eq!((event.seq, event.key), (None, None), "a header cannot put an event into a lane");
    }

    #[test]
    fn the_data_is_what_the_producer_sent() {
        let event = read(Format::Envelope, ENVELOPE, None).unwrap();
        assert_eq!(event.data(), Some(r#"{"n": 12345678901234567890.10}"#));
        assert_eq!(read(Format::CloudEvents, CLOUD, None).unwrap().json::<Vec<u8>>().unwrap(), [1]);
        assert_eq!(read(Format::Raw, " [1] ", Some("e1")).unwrap().data(), Some(" [1] "));
    }

    #[test]
    fn data_that_is_null_is_data() {
        for (format, body) in [(Format::Envelope, ENVELOPE), (Format::CloudEvents, CLOUD)] {
            let (head, _) = body.split_once(r#""data":"#).unwrap();
            let body = format!(r#"{head}"data": null}}"#);
            let event = Event::read(format, &headers(), body.into(), Some("e1")).unwrap();
            assert_eq!((event.data(), event.json::<Option<u8>>().unwrap()), (Some("null"), None), "{format:?}");
        }
    }

    #[test]
    fn headers_fill_what_thin_and_raw_bodies_do_not_have() {
        for (format, body) in [(Format::Envelope, THIN), (Format::CloudEvents, THIN), (Format::Raw, ENVELOPE)] {
            let event = read(format, body, Some("e1")).unwrap();
            assert_eq!((event.key.as_deref(), event.seq), (Some("Konto 7/é"), Some(9)), "{format:?}");
            assert_eq!((event.tenant.as_str(), event.signed_tenant.as_str()), ("h", ""), "{format:?}");
        }
    }

    #[test]
    fn an_event_that_nothing_signed_names_is_refused() {
        assert_eq!(read(Format::Raw, "{}", None), Err(MalformedEvent::NoSignedId));
        assert_eq!(read(Format::Envelope, ENVELOPE, Some("e2")), Err(MalformedEvent::IdsDiffer));
    }

    #[test]
    fn what_cannot_be_stored_is_refused() {
        for bad in [
            "{",
            "[]",
            r#"{"id":"e1","type":"a.b","timestamp":"2026","tenant":"t"}"#,
            r#"{"id":"e1","type":"a.b","timestamp":"2026","data":1}"#,
            r#"{"id":"","type":"a.b","timestamp":"2026","tenant":"t","data":1}"#,
            r#"{"id":"e1","id":"e2","type":"a.b","timestamp":"2026","tenant":"t","data":1}"#,
            r#"{"id":"e\u0000","type":"a.b","timestamp":"2026","tenant":"t","data":1}"#,
            r#"{"id":"e1","type":"a.b","timestamp":"2026","tenant":"t","seq":0,"data":1}"#,
            r#"{"id":"e1","type":"a.b","timestamp":"2026","tenant":"t","seq":9223372036854775808,"data":1}"#,
        ] {
            assert!(read(Format::Envelope, bad, None).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_printed_event_shows_no_data() {
        let event = read(Format::Envelope, ENVELOPE, None).unwrap();
        assert_eq!(format!("{event:?}"), format!("Event(invoice.paid e1 of \"t\", {} bytes)", ENVELOPE.len()));
    }
}
