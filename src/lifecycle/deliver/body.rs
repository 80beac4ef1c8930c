//! Builds the body of a delivery, the same on every attempt and every replay.
//!
//! Invariant: what a format sends never changes, since deliveries of older versions
//! are sent again with it. A body with another field or another order is a new
//! [`BodyFormat`], which new deliveries get in the place of the old one; the code
//! that is stored with a delivery is the version of its body. What else a body
//! depends on is stored with the event.

use bytes::Bytes;

use crate::lifecycle::links::{Links, NoPublicUrl};
use crate::model::chat_message;
use crate::model::delivery::BodyFormat;
use crate::model::event::EventKey;
use crate::store::Claim;

/// Builds the body of a delivery. The producer's data goes in byte for byte.
pub fn build_body(claim: &Claim, links: &Links) -> Result<Bytes, NoPublicUrl> {
    Ok(match claim.format {
        BodyFormat::Envelope => envelope_body(claim),
        BodyFormat::Raw => claim.event.data.clone(),
        BodyFormat::Thin => {
            let base = claim.event.link_base.as_deref();
            thin_body(claim, &links.url(base, &claim.event.tenant, claim.id)?)
        }
        BodyFormat::Cloudevents => cloud_event(claim),
        format @ (BodyFormat::Slack | BodyFormat::Teams | BodyFormat::Discord | BodyFormat::Mattermost) => {
            chat_message::message(format, &claim.event).to_string().into()
        }
    })
}

/// Returns the content type of a body format.
pub fn content_type(format: BodyFormat) -> &'static str {
    match format {
        BodyFormat::Envelope
        | BodyFormat::Raw
        | BodyFormat::Thin
        | BodyFormat::Slack
        | BodyFormat::Teams
        | BodyFormat::Discord
        | BodyFormat::Mattermost => "application/json",
        BodyFormat::Cloudevents => "application/cloudevents+json",
    }
}

/// Returns the whole event in the format `envelope`.
pub fn envelope_body(claim: &Claim) -> Bytes {
    let event = &claim.event;
    let mut object = JsonObjectWriter::with_room(event.data.len());
    object.text("id", event.id.as_str());
    object.text("type", event.event_type.as_str());
    object.text("timestamp", &event.timestamp_text());
    object.some_text("key", event.key.as_ref().map(EventKey::as_str));
    if let Some(seq) = claim.seq {
        object.json("seq", seq.to_string().as_bytes());
    }
    object.some_text("schema_version", event.schema_version.as_deref());
    object.text("tenant", event.tenant.as_str());
    object.json("data", &event.data);
    object.finish()
}

/// Returns a thin body: a link to the event's data instead of the data.
fn thin_body(claim: &Claim, data_url: &str) -> Bytes {
    let event = &claim.event;
    let mut object = JsonObjectWriter::with_room(0);
    object.text("id", event.id.as_str());
    object.text("type", event.event_type.as_str());
    object.text("timestamp", &event.timestamp_text());
    object.text("data_url", data_url);
    object.finish()
}

/// Returns the event as a structured CloudEvent 1.0. Key and place in a lane
/// are the extensions `partitionkey` and `sequence`; the latter is compared as
/// text, so it has a fixed length.
fn cloud_event(claim: &Claim) -> Bytes {
    let event = &claim.event;
    let mut object = JsonObjectWriter::with_room(event.data.len());
    object.text("specversion", "1.0");
    object.text("id", event.id.as_str());
    object.text("source", &format!("/tenants/{}", event.tenant));
    object.text("type", event.event_type.as_str());
    object.text("time", &event.timestamp_text());
    object.some_text("partitionkey", event.key.as_ref().map(EventKey::as_str));
    object.some_text("sequence", claim.seq.map(|seq| format!("{seq:020}")).as_deref());
    object.some_text("schemaversion", event.schema_version.as_deref());
    object.text("datacontenttype", "application/json");
    object.json("data", &event.data);
    object.finish()
}

/// Writes a JSON object field by field.
struct JsonObjectWriter(Vec<u8>);

impl JsonObjectWriter {
    fn with_room(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes + 256))
    }

    /// Writes a field whose value is JSON already.
    fn json(&mut self, name: &str, value: &[u8]) {
        self.name(name);
        self.0.extend_from_slice(value);
    }

    fn text(&mut self, name: &str, value: &str) {
        self.name(name);
        serde_json::to_writer(&mut self.0, value).expect("text can be written to memory");
    }

    fn some_text(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.text(name, value);
        }
    }

    fn name(&mut self, name: &str) {
        self.0.extend_from_slice(if self.0.is_empty() { b"{\"" } else { b",\"" });
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    fn finish(mut self) -> Bytes {
        self.0.push(b'}');
        Bytes::from(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{claim, links};
    use super::*;

    #[test]
    fn the_envelope_carries_the_producers_bytes_unchanged() {
        let data = br#"{ "a":1,"a":2, "n":12345678901234567890123.10, "u":"\u0000\ud800 \u00e9"}"#;
        let mut claim = claim(data);
        let links = links(None);
        let body = |claim: &Claim| build_body(claim, &links).unwrap();
        assert_eq!(
            body(&claim),
            format!(
                r#"{{"id":"evt_1","type":"invoice.paid","timestamp":"2023-11-14T22:13:20.000Z","tenant":"default","data":{}}}"#,
                std::str::from_utf8(data).unwrap()
            )
        );
        claim.seq = Some(7);
        let event = std::sync::Arc::make_mut(&mut claim.event);
        event.key = Some("k \"1\"".parse().unwrap());
        event.schema_version = Some("2".into());
        let text = String::from_utf8(body(&claim).to_vec()).unwrap();
        assert!(
            text.contains(r#""key":"k \"1\"","seq":7,"schema_version":"2","tenant":"default","data":{ "a""#),
            "{text}"
        );
        claim.format = BodyFormat::Raw;
        assert_eq!(body(&claim), &data[..]);
    }

    #[test]
    fn a_thin_event_is_a_link_and_none_without_a_public_url() {
        let mut claim = claim(br#"{"secret":1}"#);
        claim.format = BodyFormat::Thin;
        assert_eq!(build_body(&claim, &links(None)), Err(NoPublicUrl));
        let links = links(Some("https://hooks.example.com"));
        let url = links.url(None, &claim.event.tenant, claim.id).unwrap();
        let thin = format!(
            r#"{{"id":"evt_1","type":"invoice.paid","timestamp":"2023-11-14T22:13:20.000Z","data_url":"{url}"}}"#
        );
        assert_eq!(build_body(&claim, &links).unwrap(), thin);
        claim.progress.attempts = 7;
        assert_eq!(build_body(&claim, &links).unwrap(), thin, "on every attempt");
    }

    #[test]
    fn another_public_url_changes_no_thin_body() {
        let mut claim = claim(b"{}");
        claim.format = BodyFormat::Thin;
        std::sync::Arc::make_mut(&mut claim.event).link_base = Some("https://hooks.example.com".into());
        let before = build_body(&claim, &links(Some("https://hooks.example.com"))).unwrap();
        assert_eq!(build_body(&claim, &links(Some("https://elsewhere.example.com"))).unwrap(), before);
        assert_eq!(build_body(&claim, &links(None)).unwrap(), before);
    }

    #[test]
    fn a_cloud_event_has_what_the_specification_asks_for() {
        let mut claim = claim(br#"{ "n":1.10}"#);
        claim.format = BodyFormat::Cloudevents;
        claim.seq = Some(7);
        let event = std::sync::Arc::make_mut(&mut claim.event);
        event.key = Some("k".parse().unwrap());
        event.schema_version = Some("2".into());
        let expected = r#"{"specversion":"1.0","id":"evt_1","source":"/tenants/default","type":"invoice.paid","time":"2023-11-14T22:13:20.000Z","partitionkey":"k","sequence":"00000000000000000007","schemaversion":"2","datacontenttype":"application/json","data":{ "n":1.10}}"#;
        assert_eq!(build_body(&claim, &links(None)).unwrap(), expected);
        assert_eq!(content_type(claim.format), "application/cloudevents+json");
    }
}
