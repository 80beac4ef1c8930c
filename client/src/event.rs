//! Builds events to hand in, and reads what the gateway says of them.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::{Error, FieldProblem};

/// An event to hand in.
#[derive(Debug, Clone, Serialize)]
pub struct NewEvent {
    id: String,
    #[serde(rename = "type")]
    event_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    schema_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    endpoints: Vec<String>,
    data: Box<RawValue>,
}

impl NewEvent {
    /// Makes an event of this type with this data, and a random id.
    pub fn new(event_type: impl Into<String>, data: &(impl Serialize + ?Sized)) -> Result<Self, Error> {
        let data = serde_json::value::to_raw_value(data);
        let data =
            data.map_err(|problem| Error::InvalidArgument(format!("the data cannot be written as JSON: {problem}")))?;
        Ok(Self::with_raw(event_type.into(), data))
    }

    /// Makes an event whose data is JSON already. Receivers get it byte for byte.
    pub fn from_json(event_type: impl Into<String>, json: impl Into<String>) -> Result<Self, Error> {
        let data = RawValue::from_string(json.into());
        let data = data.map_err(|problem| Error::InvalidArgument(format!("the data is not JSON: {problem}")))?;
        Ok(Self::with_raw(event_type.into(), data))
    }

    fn with_raw(event_type: String, data: Box<RawValue>) -> Self {
        Self {
            id: format!("{:032x}", rand::random::<u128>()),
            event_type,
            key: None,
            timestamp: None,
            schema_version: None,
            expires_at: None,
            endpoints: Vec::new(),
            data,
        }
    }

    /// Sets the id: 1 to 128 of `A-Z a-z 0-9 _ -`. The same id with the same content is
    /// accepted once.
    #[must_use]
    pub fn id(self, id: impl Into<String>) -> Self {
        Self { id: id.into(), ..self }
    }

    /// Sets the key. Receivers get events with the same key in the order of acceptance.
    #[must_use]
    pub fn key(self, key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// Sets when it happened, RFC 3339; the time of acceptance otherwise.
    #[must_use]
    pub fn timestamp(self, timestamp: impl Into<String>) -> Self {
        Self { timestamp: Some(timestamp.into()), ..self }
    }

    /// Sets your name for the shape of the data.
    #[must_use]
    pub fn schema_version(self, version: impl Into<String>) -> Self {
        Self { schema_version: Some(version.into()), ..self }
    }

    /// Sets when it is over, RFC 3339: what is not delivered by then is not attempted
    /// any more.
    #[must_use]
    pub fn expires_at(self, expires_at: impl Into<String>) -> Self {
        Self { expires_at: Some(expires_at.into()), ..self }
    }

    /// Sends it to these endpoints alone, whatever they subscribe to.
    #[must_use]
    pub fn endpoints(self, ids: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { endpoints: ids.into_iter().map(Into::into).collect(), ..self }
    }

    /// Returns the id that it is handed in with.
    pub fn event_id(&self) -> &str {
        &self.id
    }
}

/// What the gateway says of an event that it accepted.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Receipt {
    /// Id of the event.
    pub id: String,
    /// Number of endpoints that it goes to.
    pub deliveries: u32,
    /// Whether it had been accepted before.
    pub duplicate: bool,
    /// What is unusual about it, though it was accepted.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// What became of one event of a batch.
#[derive(Debug, Clone, Deserialize)]
pub struct BatchItem {
    /// Place in the batch, from 0.
    pub index: usize,
    /// 202, or the status that it would have had alone.
    pub status: u16,
    /// Id of the event, when it was accepted.
    pub id: Option<String>,
    /// Number of endpoints that it goes to, when it was accepted.
    pub deliveries: Option<u32>,
    /// Whether it had been accepted before.
    pub duplicate: Option<bool>,
    /// What is unusual about it, though it was accepted.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Reason for which it was not accepted.
    pub error: Option<BatchRefusal>,
}

/// Why an event of a batch was not accepted.
#[derive(Debug, Clone, Deserialize)]
pub struct BatchRefusal {
    /// Stable name of the reason, such as `id_conflict`.
    pub code: String,
    /// Fields at fault, each with a sentence.
    pub errors: Vec<FieldProblem>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_leaves_byte_for_byte_and_every_event_has_an_id() {
        let data = "{ \"a\":12345678901234567890123450,\t\"a\" : 1.0e0 }";
        let event = NewEvent::from_json("a.b", data).unwrap().id("i").key("k");
        let sent = serde_json::to_string(&event).unwrap();
        assert_eq!(sent, format!(r#"{{"id":"i","type":"a.b","key":"k","data":{data}}}"#));
        let (one, two) = (NewEvent::new("a", &1).unwrap(), NewEvent::new("a", &1).unwrap());
        assert!(one.event_id().len() == 32 && one.event_id() != two.event_id());
        assert!(NewEvent::from_json("a", "{").is_err());
    }
}
