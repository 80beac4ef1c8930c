//! Attempts as they are settled: a table that the script adds to, and without
//! script the last deliveries.

use askama::Template;
use axum::body::Body;
use axum::response::IntoResponse;
use futures_util::StreamExt;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};

use crate::dashboard::commands;
use crate::dashboard::context::PageContext;
use crate::dashboard::forms::FormValues;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;
use crate::dashboard::shown_delivery::{ListedPage, ShownDelivery};
use crate::dashboard::tail_rows::PageTailRows;
use crate::dashboard::words;
use crate::model::named_enum::NamedEnum;
use crate::model::verdict::Verdict;

const FILTERS: [&str; 4] = ["tenant", "endpoint", "event_type", "verdict"];

#[derive(Template)]
#[template(path = "live.html")]
struct LivePage {
    frame: Frame,
    query: FormValues,
    /// The last deliveries, which are shown until attempts come.
    deliveries: Vec<ShownDelivery>,
    /// Query of the stream, and of the page itself.
    filter: String,
    curl: String,
}

/// Shows the live page.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    // Lists take whole types alone.
    let event_type = Some(page.query.get("event_type")).filter(|kind| !kind.contains('*')).unwrap_or_default();
    let asked = [
        ("endpoint", page.query.get("endpoint").to_owned()),
        ("event_type", event_type.to_owned()),
        ("limit", "20".to_owned()),
    ];
    let path = format!("{}{}", page.scoped_path("/deliveries"), commands::query_of(&asked));
    let listed: ListedPage<ShownDelivery> = page.api.get(&path).await?;
    PageContext::render(&LivePage {
        deliveries: listed.data,
        filter: page.query.query_with(&FILTERS, &[]),
        curl: commands::api_curl(&tail_path(&page)).replacen("curl ", "curl -N ", 1),
        query: page.query,
        frame: page.frame,
    })
}

/// Streams attempts as rows of the table. The API ends its stream when the gateway
/// stops and when the session ends, and with it this one.
pub async fn stream(page: PageContext) -> Result<PageAnswer, PageError> {
    let attempts = page.api.stream(&tail_path(&page)).await?;
    let mut rows = PageTailRows::of(page.site());
    let parts = attempts.into_body().into_data_stream();
    let translated = parts.map(move |part| part.map(|part| rows.translate(&part)));
    let mut response = Body::from_stream(translated).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // A proxy that collects answers would show nothing.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(PageAnswer::Stream(response))
}

fn tail_path(page: &PageContext) -> String {
    let filters = FILTERS.into_iter().filter(|name| *name != "tenant");
    let filter: Vec<(&str, String)> = filters.map(|name| (name, page.query.get(name).to_owned())).collect();
    format!("{}{}", page.scoped_path("/tail"), commands::query_of(&filter))
}
