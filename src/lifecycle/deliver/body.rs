//! The bytes a receiver gets: the same on every attempt and every replay.

use bytes::Bytes;

use crate::model::endpoint::Format;
use crate::store::Claim;

/// Builds the body of a delivery. The producer's data goes in byte for byte.
pub fn body(claim: &Claim) -> Bytes {
    match claim.format {
        Format::Raw => claim.event.data.clone(),
        Format::Envelope => envelope(claim),
    }
}

fn envelope(claim: &Claim) -> Bytes {
    let event = &claim.event;
    let mut out = Vec::with_capacity(event.data.len() + 256);
    let mut field = |name: &str, value: &str| {
        out.extend_from_slice(if out.is_empty() { b"{\"" } else { b",\"" });
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":");
        serde_json::to_writer(&mut out, value).expect("text can be written to memory");
    };
    field("id", event.id.as_str());
    field("type", event.event_type.as_str());
    field("timestamp", &event.timestamp_text());
    if let Some(key) = &event.key {
        field("key", key.as_str());
    }
    if let Some(seq) = claim.seq {
        out.extend_from_slice(format!(",\"seq\":{seq}").as_bytes());
    }
    let mut field = |name: &str, value: &str| {
        out.extend_from_slice(format!(",\"{name}\":").as_bytes());
        serde_json::to_writer(&mut out, value).expect("text can be written to memory");
    };
    if let Some(version) = &event.schema_version {
        field("schema_version", version);
    }
    field("tenant", event.tenant.as_str());
    out.extend_from_slice(b",\"data\":");
    out.extend_from_slice(&event.data);
    out.push(b'}');
    Bytes::from(out)
}

#[cfg(test)]
mod tests {
    use super::super::tests::claim;
    use super::*;

    #[test]
    fn the_envelope_carries_the_producers_bytes_unchanged() {
        let data = br#"{ "a":1,"a":2, "n":12345678901234567890123.10, "u":"\u0000\ud800 \u00e9"}"#;
        let mut claim = claim(data);
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
        claim.format = Format::Raw;
        assert_eq!(body(&claim), &data[..]);
    }
}
