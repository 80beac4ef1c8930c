//! The list of a tenant's events. The operator chooses the tenant first.

use askama::Template;
use jiff::Timestamp;
use serde::Deserialize;

use super::deliveries::{filter_value, refusal_or};
use super::tenant_choice;
use crate::dashboard::api_caller;
use crate::dashboard::commands;
use crate::dashboard::context::PageContext;
use crate::dashboard::forms::FormValues;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;
use crate::dashboard::words;
use crate::model::suggested_command::option;

const FILTERS: [&str; 5] = ["tenant", "type", "key", "since", "until"];

/// An event in a list. Its data is left out.
#[derive(Deserialize)]
struct ListedEvent {
    id: String,
    #[serde(rename = "type")]
    event_type: String,
    key: Option<String>,
    accepted_at: Timestamp,
    deliveries: u32,
    data_withheld: Option<String>,
}

#[derive(Template)]
#[template(path = "events.html")]
struct EventsPage {
    frame: Frame,
    query: FormValues,
    tenant: String,
    events: Vec<ListedEvent>,
    looked_back_to: Option<Timestamp>,
    next: String,
    is_later_page: bool,
    is_filtered: bool,
    problem: Option<PageError>,
    curl: String,
    command: String,
}

impl EventsPage {
    fn first_page_query(&self) -> String {
        self.query.query_with(&FILTERS, &[])
    }
}

/// Lists the events of a tenant, or the tenants to choose from.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    if page.tenant().is_empty() {
        return tenant_choice::show(page).await;
    }
    let filters = FILTERS.into_iter().filter(|name| *name != "tenant");
    let mut asked: Vec<(&str, String)> =
        filters.map(|name| (name, filter_value(name, page.query.get(name), page.now))).collect();
    let path = page.tenant_path(&format!("/events{}", commands::query_of(&asked)));
    asked.push(("limit", "50".to_owned()));
    asked.push(("cursor", page.query.get("cursor").to_owned()));
    let asked_path = page.tenant_path(&format!("/events{}", commands::query_of(&asked)));
    let (listed, problem) = refusal_or(page.api.get(&asked_path).await)?;
    let next = listed.next.as_deref().map(|next| page.query.query_with(&FILTERS, &[("cursor", next)]));
    PageContext::render(&EventsPage {
        looked_back_to: listed.looked_back_to,
        events: listed.data,
        next: next.unwrap_or_default(),
        is_later_page: page.query.has("cursor"),
        is_filtered: FILTERS[1..].iter().any(|name| page.query.has(name)),
        problem,
        curl: commands::api_curl(&path),
        command: format!("posthaste events list {}", option("--tenant", page.tenant())),
        tenant: page.tenant().to_owned(),
        query: page.query,
        frame: page.frame,
    })
}
