//! Writes a row of an outbox as the JSON of an event.
//!
//! Invariant: the data goes in byte for byte. It is checked to be one JSON
//! value first, because pasted text could otherwise end the event early.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::store::outbox::claim::{OutboxRow, RefusedRow};

/// An event of the API, in the order of its fields there.
#[derive(Serialize)]
struct OutboxEvent<'a> {
    id: String,
    #[serde(rename = "type")]
    event_type: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    timestamp: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    schema_version: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoints: Option<&'a [String]>,
    data: &'a RawValue,
}

/// Returns the id of the event that a row becomes.
pub fn event_id(install_id: &str, row: i64) -> String {
    format!("obx_{install_id}_{row}")
}

/// Writes the event of a row, or says why no gateway would accept it.
pub fn event_json(install_id: &str, row: &OutboxRow) -> Result<Vec<u8>, RefusedRow> {
    let refused = |code: &str, reason: String| RefusedRow { id: row.id, code: code.to_owned(), reason };
    if let Some(fault) = &row.fault {
        return Err(refused("invalid_field", fault.clone()));
    }
    let Some(data) = &row.data else {
        return Err(refused("payload_too_large", "data is larger than 64 MiB, which no gateway accepts".into()));
    };
    let data: &RawValue = serde_json::from_str(data)
        .map_err(|problem| refused("invalid_json", format!("data is not one JSON value: {problem}")))?;
    let body = OutboxEvent {
        id: event_id(install_id, row.id),
        event_type: &row.event_type,
        key: row.key.as_deref(),
        timestamp: &row.timestamp,
        schema_version: row.schema_version.as_deref(),
        expires_at: row.expires_at.as_deref(),
        endpoints: row.endpoints.as_deref(),
        data,
    };
    Ok(serde_json::to_vec(&body).expect("an event is plain data"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(data: &str) -> OutboxRow {
        OutboxRow {
            id: 7,
            tenant: "t".into(),
            event_type: "a.b".into(),
            key: Some("Konto \"7\"".into()),
            schema_version: None,
            endpoints: None,
            timestamp: "2026-11-15T08:00:00.000000Z".into(),
            expires_at: None,
            data: Some(data.into()),
            fault: None,
        }
    }

    #[test]
    fn the_bytes_of_the_data_are_kept() {
        let data = "{ \"a\":12345678901234567890123450,\t\"a\" : \"\\u0000é\",\n\"b\":1.0e0 }";
        let written = String::from_utf8(event_json("0a", &row(data)).unwrap()).unwrap();
        let head =
            r#"{"id":"obx_0a_7","type":"a.b","key":"Konto \"7\"","timestamp":"2026-11-15T08:00:00.000000Z","data":"#;
        assert_eq!(written, format!("{head}{data}}}"));
    }

    #[test]
    fn what_is_not_one_value_is_refused_before_it_is_pasted() {
        for data in ["", "{", r#"1},{"id":"x""#, "{} {}"] {
            assert_eq!(event_json("0a", &row(data)).unwrap_err().code, "invalid_json", "{data}");
        }
        let none = OutboxRow { data: None, ..row("1") };
        assert_eq!(event_json("0a", &none).unwrap_err().code, "payload_too_large");
    }

    #[test]
    fn a_row_that_could_not_be_read_is_refused_with_the_reason() {
        let odd = OutboxRow { fault: Some("endpoints has an element that is NULL".into()), ..row("1") };
        let refused = event_json("0a", &odd).unwrap_err();
        assert_eq!((refused.code.as_str(), refused.reason), ("invalid_field", odd.fault.unwrap()));
    }
}
