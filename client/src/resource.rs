//! Reads events, deliveries and endpoints as the gateway shows them. Times are RFC 3339.

use serde::Deserialize;
use serde_json::value::RawValue;

/// A page of a list, newest first.
#[derive(Debug, Clone, Deserialize)]
pub struct Page<T> {
    /// Items of this page.
    pub data: Vec<T>,
    /// Cursor of the page after this one; none after the last.
    pub next: Option<String>,
}

/// Which part of a list to ask for.
#[derive(Debug, Clone, Default)]
pub struct ListQuery {
    pairs: Vec<(String, String)>,
}

impl ListQuery {
    /// Asks for the newest 50 items.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks only for items with this value, such as `state` and `dead`. The API's
    /// description names the filters of each list.
    #[must_use]
    pub fn filter(mut self, name: &str, value: &str) -> Self {
        self.pairs.retain(|(known, _)| known != name);
        self.pairs.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Asks for at most this many items, 1 to 500.
    #[must_use]
    pub fn limit(self, limit: u32) -> Self {
        self.filter("limit", &limit.to_string())
    }

    /// Asks for the page that the [`next`](Page::next) of another one names.
    #[must_use]
    pub fn cursor(self, next: &str) -> Self {
        self.filter("cursor", next)
    }

    pub(crate) fn pairs(&self) -> &[(String, String)] {
        &self.pairs
    }
}

/// An event as the gateway shows it.
#[derive(Debug, Clone, Deserialize)]
pub struct Event {
    /// Id of the event.
    pub id: String,
    /// Type of the event.
    #[serde(rename = "type")]
    pub event_type: String,
    /// Key of the event, if it has one.
    pub key: Option<String>,
    /// When it happened.
    pub timestamp: String,
    /// When it was accepted.
    pub accepted_at: String,
    /// Number of deliveries that were made for it.
    pub deliveries: u32,
    /// The producer's data, byte for byte; `null` where it is withheld.
    #[serde(default)]
    pub data: Option<Box<RawValue>>,
}

/// A delivery: one event on its way to one endpoint.
#[derive(Debug, Clone, Deserialize)]
pub struct Delivery {
    /// Id of the delivery.
    pub id: String,
    /// Id of its event.
    pub event_id: String,
    /// Type of its event.
    pub event_type: String,
    /// Id of its endpoint.
    pub endpoint_id: String,
    /// Key of its event, if it has one.
    pub key: Option<String>,
    /// Place in its lane, if it has one.
    pub seq: Option<u64>,
    /// State: `waiting`, `delivered`, `dead` or `cancelled`.
    pub state: String,
    /// What holds it up, such as `due`, `key` or `breaker`.
    pub waiting_for: Option<String>,
    /// Number of attempts that were made.
    pub attempts: u32,
    /// When the next attempt is planned.
    pub next_attempt_at: Option<String>,
    /// When it was delivered, died or was cancelled.
    pub finished_at: Option<String>,
    /// Status of the last answer, if there was one.
    pub last_status: Option<u16>,
    /// Why it is dead, such as `refused` or `exhausted`.
    pub cause: Option<String>,
}

/// An endpoint: a URL that wants events.
#[derive(Debug, Clone, Deserialize)]
pub struct Endpoint {
    /// Id of the endpoint.
    pub id: String,
    /// URL that is called.
    pub url: String,
    /// State: `active`, `paused` or `disabled`.
    pub state: String,
    /// Secret that requests are signed with; shown when it is created.
    pub secret: Option<String>,
}
