//! One event: its fields, its payload byte for byte, who got it, and who did not
//! and why.

use askama::Template;
use http::{Method, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::endpoint_facts::words_only;
use super::endpoint_labels::{NAME_CHARS_MAX, endpoint_labels, name_endpoints};
use crate::dashboard::api_caller;
use crate::dashboard::api_caller::api_path;
use crate::dashboard::commands;
use crate::dashboard::context::PageContext;
use crate::dashboard::frame::Frame;
use crate::dashboard::json_layout::{fitting, has_hidden, laid_out, with_hidden_named};
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;
use crate::dashboard::shown_delivery::{ListedPage, ShownDelivery};
use crate::dashboard::words;
use crate::model::suggested_command::suggested_command;

/// Most bytes of a payload on the page, escaped; all of it can be downloaded.
const DATA_BYTES_MAX: usize = 16 * 1024;
/// Most deliveries, and most endpoints, on the page.
const ROWS_MAX: usize = 20;

/// An event, as the API answers it.
#[derive(Deserialize)]
pub struct EventDetail {
    /// Id of the event.
    pub id: String,
    /// Type of the event.
    #[serde(rename = "type")]
    pub event_type: String,
    /// Key of the event.
    pub key: Option<String>,
    /// Time of the event, as it was given.
    pub timestamp: String,
    /// Producer's name for the shape of the data.
    pub schema_version: Option<String>,
    /// Time at which it is over.
    pub expires_at: Option<Timestamp>,
    /// Endpoints that its producer named.
    pub endpoints: Option<Vec<String>>,
    /// Time of its acceptance.
    pub accepted_at: Timestamp,
    /// Its data, byte for byte.
    pub data: Box<RawValue>,
    /// Why its data is not shown.
    pub data_withheld: Option<String>,
}

#[derive(Deserialize)]
struct ShownMatch {
    endpoint_id: String,
    matched: bool,
    reason: String,
    delivery_id: Option<String>,
    /// What the endpoint is called.
    #[serde(skip)]
    name: String,
}

/// One endpoint, and whether it got the event.
struct MatchRow {
    found: ShownMatch,
    /// State of its delivery; none without one.
    delivery: Option<ShownDelivery>,
}

impl MatchRow {
    /// Whether the event can be sent to it again.
    fn can_be_sent_again(&self) -> bool {
        self.delivery.as_ref().is_some_and(|delivery| !delivery.is_waiting())
    }
}

/// The payload as the page shows it.
struct ShownPayload {
    text: String,
    is_cut: bool,
    has_hidden: bool,
    size: String,
}

#[derive(Template)]
#[template(path = "event.html")]
struct EventPage {
    frame: Frame,
    tenant: String,
    id: String,
    /// The event; none once its data was expunged.
    event: Option<EventDetail>,
    payload: Option<ShownPayload>,
    is_pretty: bool,
    deliveries: Vec<ShownDelivery>,
    more_deliveries: usize,
    matches: Vec<MatchRow>,
    /// Whether there are more endpoints than are shown.
    has_more_matches: bool,
    are_matches_known: bool,
    command: String,
    curl: String,
}

/// Shows an event.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    let path = event_path(&page);
    let (deliveries_path, matches_path) =
        (format!("{path}/deliveries"), format!("{path}/matches?limit={}", ROWS_MAX + 1));
    let (event, deliveries, matches) = tokio::join!(
        page.api.get::<EventDetail>(&path),
        page.api.get::<ListedPage<ShownDelivery>>(&deliveries_path),
        page.api.get::<ListedPage<ShownMatch>>(&matches_path),
    );
    let (event, matches) = (unless_gone(event)?, unless_gone(matches)?);
    let mut deliveries = deliveries?.data;
    let is_pretty = page.query.get("view") == "pretty";
    let are_matches_known = matches.is_some();
    let mut matches = match_rows(matches.map(|matches| matches.data).unwrap_or_default(), &deliveries);
    let more_deliveries = deliveries.len().saturating_sub(ROWS_MAX);
    let has_more_matches = matches.len() > ROWS_MAX;
    deliveries.truncate(ROWS_MAX);
    matches.truncate(ROWS_MAX);
    name_rows(&page, &mut deliveries, &mut matches).await;
    PageContext::render(&EventPage {
        tenant: page.tenant().to_owned(),
        id: page.param("event").to_owned(),
        payload: event.as_ref().and_then(|event| payload(event, is_pretty)),
        event,
        is_pretty,
        deliveries,
        more_deliveries,
        matches,
        has_more_matches,
        are_matches_known,
        command: suggested_command(page.tenant(), "events get", page.param("event")),
        curl: commands::api_curl(&path),
        frame: page.frame,
    })
}

/// Gives rows the names of their endpoints.
async fn name_rows(page: &PageContext, deliveries: &mut [ShownDelivery], matches: &mut [MatchRow]) {
    let ids = matches.iter().map(|row| (page.tenant().to_owned(), row.found.endpoint_id.clone()));
    let (labels, ()) = tokio::join!(endpoint_labels(&page.api, ids), name_endpoints(&page.api, deliveries));
    for row in matches {
        let id = &row.found.endpoint_id;
        row.found.name = labels.get(id).map_or_else(|| id.clone(), |label| words_only(&label.text, NAME_CHARS_MAX));
    }
}

/// Returns nothing in place of the problem that the data is gone.
fn unless_gone<T>(answer: Result<T, PageError>) -> Result<Option<T>, PageError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(problem) if problem.status == StatusCode::GONE => Ok(None),
        Err(problem) => Err(problem),
    }
}

fn payload(event: &EventDetail, is_pretty: bool) -> Option<ShownPayload> {
    if event.data_withheld.is_some() {
        return None;
    }
    let data = event.data.get();
    let (text, is_cut) = fitting(data, DATA_BYTES_MAX);
    // The beginning alone is laid out, however large the whole is.
    let (text, is_longer) =
        if is_pretty { fitting(&with_hidden_named(&laid_out(&text)), DATA_BYTES_MAX) } else { (text, false) };
    Some(ShownPayload {
        has_hidden: has_hidden(data),
        size: words::bytes(data.len() as u64),
        text,
        is_cut: is_cut || is_longer,
    })
}

/// Joins endpoints with their deliveries; those that got the event come first.
fn match_rows(found: Vec<ShownMatch>, deliveries: &[ShownDelivery]) -> Vec<MatchRow> {
    let delivery_of = |found: &ShownMatch| {
        let id = found.delivery_id.as_deref()?;
        deliveries.iter().find(|delivery| delivery.id == id).cloned()
    };
    let mut rows: Vec<MatchRow> =
        found.into_iter().map(|found| MatchRow { delivery: delivery_of(&found), found }).collect();
    rows.sort_by_key(|row| (row.found.delivery_id.is_none(), !row.found.matched));
    rows
}

/// Sends the payload of an event as a file.
pub async fn download_data(page: PageContext) -> Result<PageAnswer, PageError> {
    let event: EventDetail = page.api.get(&event_path(&page)).await?;
    if let Some(why) = event.data_withheld {
        return Err(PageError::new(StatusCode::GONE, format!("the data of this event is not shown: {why}")));
    }
    let data: Box<str> = event.data.into();
    Ok(PageAnswer::Download { name: format!("{}.json", event.id), content: String::from(data).into() })
}

#[derive(Template)]
#[template(path = "event_expunge.html")]
struct ExpungePage {
    frame: Frame,
    tenant: String,
    id: String,
    waiting: usize,
    others: usize,
}

/// Asks whether the data of an event is to be forgotten.
pub async fn confirm_expunge(page: PageContext) -> Result<PageAnswer, PageError> {
    let path = format!("{}/deliveries", event_path(&page));
    let deliveries: ListedPage<ShownDelivery> = page.api.get(&path).await?;
    let waiting = deliveries.data.iter().filter(|delivery| delivery.is_waiting()).count();
    PageContext::render(&ExpungePage {
        tenant: page.tenant().to_owned(),
        id: page.param("event").to_owned(),
        others: deliveries.data.len() - waiting,
        waiting,
        frame: page.frame,
    })
}

/// Forgets the data of an event.
pub async fn expunge(page: PageContext) -> Result<PageAnswer, PageError> {
    page.api.send(Method::DELETE, &format!("{}/data", event_path(&page)), None).await?;
    let path = page.frame.link("events", page.tenant(), page.param("event"));
    let path = path.strip_prefix(&page.frame.root).unwrap_or(&path).to_owned();
    Ok(page.lead_to(&path, "expunged"))
}

fn event_path(page: &PageContext) -> String {
    api_path!("/v1/tenants/{}/events/{}", page.tenant(), page.param("event"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(data: &str, more: &str) -> EventDetail {
        let event = format!(
            r#"{{"id":"e","type":"a","timestamp":"t","accepted_at":"2026-11-15T10:00:00Z","deliveries":0,"data":{data}{more}}}"#
        );
        serde_json::from_str(&event).unwrap()
    }

    #[test]
    fn a_payload_is_shown_byte_for_byte_and_pretty_on_request() {
        let data = r#"{"a":1.00, "a":12345678901234567890123}"#;
        assert_eq!(payload(&event(data, ""), false).unwrap().text, data);
        let pretty = payload(&event(data, ""), true).unwrap().text;
        assert_eq!(pretty, "{\n  \"a\": 1.00,\n  \"a\": 12345678901234567890123\n}");
        assert_eq!(payload(&event("null", ""), false).unwrap().text, "null", "null is data, too");
        assert!(payload(&event("null", r#","data_withheld":"redacted""#), false).is_none());
    }

    #[test]
    fn a_large_payload_is_cut_and_says_so() {
        let data = format!("\"{}\"", "é".repeat(16 * 1024));
        let payload = payload(&event(&data, ""), false).unwrap();
        assert!(payload.is_cut && payload.text.len() <= DATA_BYTES_MAX);
        assert_eq!(payload.size, "32.0 KiB");
    }
}
