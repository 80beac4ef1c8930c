//! The event types that were seen lately, to choose from.
//!
//! They come from the figures, which count attempts by type, and from the newest
//! events, since nobody may have wanted those.

use std::collections::BTreeMap;

use askama::Template;
use jiff::{Timestamp, ToSpan};
use serde::Deserialize;

use crate::dashboard::api_caller::segment;
use crate::dashboard::commands;
use crate::dashboard::context::PageContext;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;
use crate::dashboard::words;

/// Days of figures that are looked at.
const DAYS: i64 = 7;
/// Newest events that are looked at.
const EVENTS: usize = 50;

#[derive(Deserialize)]
struct CountedTypes {
    data: Vec<CountedType>,
}

#[derive(Deserialize)]
struct CountedType {
    #[serde(rename = "type")]
    event_type: String,
    attempts: u64,
    delivered: u64,
    dead: u64,
}

#[derive(Deserialize)]
struct NewestEvents {
    data: Vec<NewestEvent>,
}

#[derive(Deserialize)]
struct NewestEvent {
    id: String,
    #[serde(rename = "type")]
    event_type: String,
    accepted_at: Timestamp,
}

/// An event type that was seen lately.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct SeenType {
    /// Name of the type.
    pub name: String,
    attempts: u64,
    delivered: u64,
    dead: u64,
    /// The newest event of the type, if it is among those looked at.
    newest: Option<(String, Timestamp)>,
}

#[derive(Template)]
#[template(path = "event_types.html")]
struct EventTypesPage {
    frame: Frame,
    tenant: String,
    types: Vec<SeenType>,
    curl: String,
}

/// Shows the event types.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    PageContext::render(&EventTypesPage {
        types: seen_types(&page).await?,
        tenant: page.tenant().to_owned(),
        curl: commands::api_curl(&page.scoped_path("/figures/types?step=1h")),
        frame: page.frame,
    })
}

/// Returns the types that were seen lately, by name.
pub async fn seen_types(page: &PageContext) -> Result<Vec<SeenType>, PageError> {
    let from = page.now - (24 * DAYS).hours();
    let range = format!("from={}&to={}&step=1h", segment(&format!("{from:.0}")), segment(&format!("{:.0}", page.now)));
    let counted = page.scoped_path(&format!("/figures/types?{range}"));
    // Events are listed by tenant alone.
    let newest = async {
        if page.tenant().is_empty() {
            return Ok(NewestEvents { data: Vec::new() });
        }
        page.api.get(&page.tenant_path(&format!("/events?limit={EVENTS}"))).await
    };
    let (counted, newest) = tokio::try_join!(page.api.get::<CountedTypes>(&counted), newest)?;
    Ok(merged(counted.data, newest.data))
}

fn merged(counted: Vec<CountedType>, newest_first: Vec<NewestEvent>) -> Vec<SeenType> {
    let mut types: BTreeMap<String, SeenType> = BTreeMap::new();
    for CountedType { event_type, attempts, delivered, dead } in counted {
        types.insert(event_type.clone(), SeenType { name: event_type, attempts, delivered, dead, newest: None });
    }
    for event in newest_first {
        let seen = types.entry(event.event_type.clone()).or_default();
        seen.name = event.event_type;
        seen.newest.get_or_insert((event.id, event.accepted_at));
    }
    types.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_seen_in_figures_or_in_events_or_in_both() {
        let counted = |name: &str| CountedType { event_type: name.into(), attempts: 5, delivered: 3, dead: 1 };
        let event = |id: &str, name: &str, second| NewestEvent {
            id: id.into(),
            event_type: name.into(),
            accepted_at: Timestamp::from_second(second).unwrap(),
        };
        let newest = vec![event("e3", "b", 30), event("e2", "c", 20), event("e1", "b", 10)];
        let seen = merged(vec![counted("b"), counted("a")], newest);
        let shown: Vec<_> = seen.iter().map(|seen| (seen.name.as_str(), seen.attempts)).collect();
        assert_eq!(shown, [("a", 5), ("b", 5), ("c", 0)]);
        let newest: Vec<_> = seen.iter().map(|seen| seen.newest.as_ref().map(|(id, _)| id.as_str())).collect();
        assert_eq!(newest, [None, Some("e3"), Some("e2")]);
    }
}
