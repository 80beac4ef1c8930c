//! The list of deliveries, with its filters.

use std::sync::LazyLock;

use askama::Template;

use super::endpoint_labels::name_endpoints;
use crate::dashboard::api_caller;
use crate::dashboard::commands;
use crate::dashboard::context::PageContext;
use crate::dashboard::filter_times::instant;
use crate::dashboard::forms::FormValues;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;
use crate::dashboard::shown_delivery::{ListedPage, ShownDelivery};
use crate::dashboard::words;
use crate::model::delivery::{DeadCause, DeliveryState};
use crate::model::delivery_filter::DeliveryFilter;
use crate::model::named_enum::NamedEnum;
use crate::model::suggested_command::option;

/// Filters that are kept from page to page.
static FILTERS: LazyLock<Vec<&str>> = LazyLock::new(|| [&["tenant"], &DeliveryFilter::NAMES[..]].concat());

#[derive(Template)]
#[template(path = "deliveries.html")]
struct DeliveriesPage {
    frame: Frame,
    query: FormValues,
    deliveries: Vec<ShownDelivery>,
    looked_back_to: Option<jiff::Timestamp>,
    /// Query of the next page; empty for none.
    next: String,
    /// Whether an older page than the first is shown.
    is_later_page: bool,
    is_filtered: bool,
    problem: Option<PageError>,
    curl: String,
    command: String,
}

impl DeliveriesPage {
    fn has_tenant(&self) -> bool {
        !self.frame.is_portal() && !self.query.has("tenant")
    }

    fn first_page_query(&self) -> String {
        self.query.query_with(&FILTERS, &[])
    }
}

/// Lists the deliveries that a filter finds.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    let filter = filter_of(&page);
    let path = format!("{}{}", page.scoped_path("/deliveries"), commands::query_of(&filter));
    let mut asked = filter;
    asked.push(("limit", "40".to_owned()));
    asked.push(("cursor", page.query.get("cursor").to_owned()));
    let asked_path = format!("{}{}", page.scoped_path("/deliveries"), commands::query_of(&asked));
    let (mut listed, problem) = refusal_or(page.api.get(&asked_path).await)?;
    name_endpoints(&page.api, &mut listed.data).await;
    let next = listed.next.as_deref().map(|next| page.query.query_with(&FILTERS, &[("cursor", next)]));
    PageContext::render(&DeliveriesPage {
        looked_back_to: listed.looked_back_to,
        deliveries: listed.data,
        next: next.unwrap_or_default(),
        is_later_page: page.query.has("cursor"),
        is_filtered: FILTERS.iter().any(|name| page.query.has(name)),
        problem,
        curl: commands::api_curl(&path),
        command: command_of(&page),
        query: page.query,
        frame: page.frame,
    })
}

/// Returns the list, or an empty one and the problem if a filter was refused: the
/// form is shown again then, with the sentence beside it.
pub fn refusal_or<T>(
    answer: Result<ListedPage<T>, PageError>,
) -> Result<(ListedPage<T>, Option<PageError>), PageError> {
    match answer {
        Ok(listed) => Ok((listed, None)),
        Err(problem) if matches!(problem.status.as_u16(), 400 | 422) => {
            Ok((ListedPage { data: Vec::new(), next: None, looked_back_to: None }, Some(problem)))
        }
        Err(problem) => Err(problem),
    }
}

/// Returns the filter of the query as the API reads it.
fn filter_of(page: &PageContext) -> Vec<(&'static str, String)> {
    // The tenant is part of the path.
    DeliveryFilter::NAMES.into_iter().map(|name| (name, filter_value(name, page.query.get(name), page.now))).collect()
}

/// Returns the value of a filter as the API reads it.
pub fn filter_value(name: &str, typed: &str, now: jiff::Timestamp) -> String {
    if name.ends_with("since") || name.ends_with("until") { instant(typed, now) } else { typed.to_owned() }
}

/// Returns the command that lists the same.
fn command_of(page: &PageContext) -> String {
    let mut command = "posthaste deliveries list".to_owned();
    match page.tenant() {
        "" => command.push_str(" --all"),
        tenant => command.push_str(&format!(" {}", option("--tenant", tenant))),
    }
    for name in DeliveryFilter::NAMES.into_iter().filter(|name| page.query.has(name)) {
        command.push_str(&format!(" {}", option(&format!("--{}", name.replace('_', "-")), page.query.get(name))));
    }
    command
}
