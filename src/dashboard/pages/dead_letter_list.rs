//! Dead letters one by one: to look at, to choose, and to keep as a file.

use std::collections::{BTreeMap, VecDeque};

use askama::Template;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::HeaderValue;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::dead_letter_filter::{DeadLetterFilter, LastFailure, NAMES, query};
use super::endpoint_labels::{EndpointLabel, endpoint_labels};
use super::recovery_words::answer_hint;
use crate::dashboard::api_caller::ApiCaller;
use crate::dashboard::commands;
use crate::dashboard::context::PageContext;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;
use crate::dashboard::words;

/// Most pages of the API that one page looks through for an answer.
const LOOKS_MAX: usize = 10;
/// Number of rows with which a page is full enough; the API's pages are not cut.
const ROWS_MIN: usize = 10;
/// Rows of a page of the API: with [`ROWS_MIN`] less one, what a page has at most.
const PAGE_ROWS: usize = 30;
/// Most rows of a file.
const EXPORT_MAX: usize = 100_000;

#[derive(Deserialize)]
struct PageResponse {
    data: Vec<DeliveryResponse>,
    next: Option<String>,
    looked_back_to: Option<Timestamp>,
}

#[derive(Deserialize)]
struct DeliveryResponse {
    id: String,
    tenant: String,
    event_id: String,
    event_type: String,
    endpoint_id: String,
    key: Option<String>,
    attempts: u32,
    finished_at: Option<Timestamp>,
    last_status: Option<u16>,
    last_error: Option<LastFailure>,
    cause: Option<String>,
}

impl DeliveryResponse {
    fn answer(&self) -> String {
        match (self.last_status, &self.last_error) {
            (Some(status), _) => status.to_string(),
            (None, Some(failure)) => failure.kind.clone(),
            (None, None) => String::new(),
        }
    }

    fn failure(&self) -> &str {
        self.last_error.as_ref().map_or("", |failure| failure.message.as_str())
    }

    fn cause(&self) -> &str {
        self.cause.as_deref().unwrap_or_default()
    }
}

#[derive(Template)]
#[template(path = "dead_letter_list.html")]
struct DeadLetterListPage {
    frame: Frame,
    filter: DeadLetterFilter,
    fault: String,
    rows: Vec<DeliveryResponse>,
    labels: BTreeMap<String, EndpointLabel>,
    hint: &'static str,
    next: String,
    looked_back_to: Option<Timestamp>,
    /// Whether a recovery can take all that match.
    has_job_filter: bool,
    filter_query: String,
    back: String,
}

impl DeadLetterListPage {
    fn label(&self, endpoint: &str) -> &str {
        self.labels.get(endpoint).map_or("", |label| label.text.as_str())
    }

    fn export_max(&self) -> String {
        words::count(EXPORT_MAX as u64)
    }
}

/// Shows dead letters.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    let filter = DeadLetterFilter::read(&page);
    let (found, fault) = match filter.list_query(page.now) {
        Err(fault) => (PageResponse { data: Vec::new(), next: None, looked_back_to: None }, fault),
        Ok(given) => match read_page(&page, &filter, &given).await {
            Ok(found) => (found, String::new()),
            Err(problem) if problem.status.is_client_error() && problem.status != http::StatusCode::NOT_FOUND => {
                (PageResponse { data: Vec::new(), next: None, looked_back_to: None }, problem.detail)
            }
            Err(problem) => return Err(problem),
        },
    };
    let named = found.data.iter().map(|row| (row.tenant.clone(), row.endpoint_id.clone()));
    let labels = endpoint_labels(&page.api, named).await;
    let next = found.next.map(|cursor| page.query.query_with(&NAMES, &[("cursor", &cursor)]));
    PageContext::render(&DeadLetterListPage {
        fault,
        labels,
        next: next.unwrap_or_default(),
        looked_back_to: found.looked_back_to,
        hint: answer_hint(&filter.answer).unwrap_or_default(),
        has_job_filter: filter.answer != "none",
        filter_query: filter_query(&page, &filter),
        back: page.query.query_with(&["tenant"], &[]),
        rows: found.data,
        filter,
        frame: page.frame,
    })
}

/// Returns the query that stands for everything that matches.
fn filter_query(page: &PageContext, filter: &DeadLetterFilter) -> String {
    let all = if filter.is_empty() { "yes" } else { "" };
    page.query.query_with(&NAMES, &[("all", all), ("preview", "yes")])
}

/// Reads pages of the API until enough rows have the filter's answer.
async fn read_page(page: &PageContext, filter: &DeadLetterFilter, given: &str) -> Result<PageResponse, PageError> {
    let path = page.scoped_path("/dead-letters");
    let mut cursor = page.query.get("cursor").to_owned();
    let mut rows = Vec::new();
    for look in 1.. {
        let asked = format!("{path}?limit={PAGE_ROWS}{given}{}", query(&[("cursor", &cursor)]));
        let found: PageResponse = page.api.get(&asked).await?;
        let last = found.data.last().and_then(|row| row.finished_at);
        rows.extend(found.data.into_iter().filter(|row| filter.has_answer(row.last_status, row.last_error.as_ref())));
        let is_enough = rows.len() >= ROWS_MIN || look == LOOKS_MAX;
        match found.next {
            Some(next) if !is_enough && found.looked_back_to.is_none() => cursor = next,
            next => {
                let has_given_up = next.is_some() && rows.len() < ROWS_MIN;
                let looked_back_to = found.looked_back_to.or(if has_given_up { last } else { None });
                return Ok(PageResponse { data: rows, next, looked_back_to });
            }
        }
    }
    unreachable!("the loop returns")
}

/// Sends dead letters as a file, read page by page while it is sent.
pub async fn export(page: PageContext) -> Result<PageAnswer, PageError> {
    let filter = DeadLetterFilter::read(&page);
    let unfit = |fault: String| PageError::new(http::StatusCode::UNPROCESSABLE_ENTITY, fault);
    let path =
        format!("{}?limit=500{}", page.scoped_path("/dead-letters"), filter.list_query(page.now).map_err(unfit)?);
    let format = if page.query.get("format") == "csv" { FileFormat::Csv } else { FileFormat::Ndjson };
    let mut file = FileSource {
        api: page.api.clone(),
        path,
        filter,
        format,
        cursor: None,
        is_over: false,
        rows: 0,
        ready: VecDeque::new(),
    };
    // The first page is read before the answer begins, so that a refusal is one.
    file.read().await?;
    let body = Body::from_stream(stream::unfold(file, |mut file| async move {
        let chunk = file.next().await?;
        Some((chunk, file))
    }));
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    response.headers_mut().insert(CONTENT_DISPOSITION, HeaderValue::from_static(format.disposition()));
    Ok(PageAnswer::Stream(response))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileFormat {
    Csv,
    Ndjson,
}

impl FileFormat {
    fn content_type(self) -> &'static str {
        match self {
            Self::Csv => "text/csv; charset=utf-8",
            Self::Ndjson => "application/x-ndjson",
        }
    }

    fn disposition(self) -> &'static str {
        match self {
            Self::Csv => "attachment; filename=\"dead-letters.csv\"",
            Self::Ndjson => "attachment; filename=\"dead-letters.ndjson\"",
        }
    }
}

/// A file that is written while pages of the API are read.
struct FileSource {
    api: ApiCaller,
    path: String,
    filter: DeadLetterFilter,
    format: FileFormat,
    cursor: Option<String>,
    is_over: bool,
    rows: usize,
    ready: VecDeque<Bytes>,
}

impl FileSource {
    /// Reads the next page of the API.
    async fn read(&mut self) -> Result<(), PageError> {
        let cursor = self.cursor.take().unwrap_or_default();
        let found: Value = self.api.get(&format!("{}{}", self.path, query(&[("cursor", &cursor)]))).await?;
        if cursor.is_empty() && self.format == FileFormat::Csv {
            self.ready.push_back(Bytes::from(csv_line(COLUMNS.iter().map(|(name, _)| (*name).to_owned()))));
        }
        let mut chunk = String::new();
        for row in found["data"].as_array().into_iter().flatten() {
            let failure = serde_json::from_value::<LastFailure>(row["last_error"].clone()).ok();
            let status = row["last_status"].as_u64().and_then(|status| u16::try_from(status).ok());
            if self.rows < EXPORT_MAX && self.filter.has_answer(status, failure.as_ref()) {
                self.rows += 1;
                match self.format {
                    FileFormat::Csv => chunk.push_str(&csv_row(row)),
                    FileFormat::Ndjson => {
                        chunk.push_str(&row.to_string());
                        chunk.push('\n');
                    }
                }
            }
        }
        self.ready.push_back(Bytes::from(chunk));
        self.cursor = found["next"].as_str().map(str::to_owned);
        self.is_over = self.cursor.is_none() || self.rows >= EXPORT_MAX;
        Ok(())
    }

    /// Returns the next part of the file; none at its end. A part that cannot be
    /// read breaks the answer off, so that nobody takes the file for whole.
    async fn next(&mut self) -> Option<Result<Bytes, std::io::Error>> {
        loop {
            if let Some(chunk) = self.ready.pop_front() {
                return Some(Ok(chunk));
            }
            if self.is_over {
                return None;
            }
            if let Err(problem) = self.read().await {
                self.is_over = true;
                return Some(Err(std::io::Error::other(problem.detail)));
            }
        }
    }
}

/// The columns of a CSV file, with where each is in a delivery.
const COLUMNS: [(&str, &str); 15] = [
    ("id", "/id"),
    ("tenant", "/tenant"),
    ("event_id", "/event_id"),
    ("event_type", "/event_type"),
    ("endpoint_id", "/endpoint_id"),
    ("key", "/key"),
    ("seq", "/seq"),
    ("cause", "/cause"),
    ("attempts", "/attempts"),
    ("created_at", "/created_at"),
    ("first_attempt_at", "/first_attempt_at"),
    ("finished_at", "/finished_at"),
    ("last_status", "/last_status"),
    ("last_error", "/last_error/kind"),
    ("last_error_message", "/last_error/message"),
];

fn csv_row(row: &Value) -> String {
    csv_line(COLUMNS.iter().map(|(_, pointer)| match row.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }))
}

/// Writes a line of CSV. A text that a spreadsheet would take for a formula gets an
/// apostrophe in front.
fn csv_line(cells: impl Iterator<Item = String>) -> String {
    let quoted = cells.map(|cell| {
        let is_formula = cell.starts_with(['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠']);
        format!("\"{}{}\"", if is_formula { "'" } else { "" }, cell.replace('"', "\"\""))
    });
    quoted.collect::<Vec<_>>().join(",") + "\r\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cell_of_a_file_is_a_formula() {
        let line = csv_line(["=1+1", "+1", "-1", "@x", "\tx", "a=b", "a\"b,c\nd", ""].map(str::to_owned).into_iter());
        assert_eq!(line, "\"'=1+1\",\"'+1\",\"'-1\",\"'@x\",\"'\tx\",\"a=b\",\"a\"\"b,c\nd\",\"\"\r\n");
    }

    #[test]
    fn a_row_has_every_column() {
        let row = serde_json::json!({"id": "dlv_1", "attempts": 3, "key": null, "last_error": {"kind": "timeout", "message": "no answer"}});
        assert_eq!(
            csv_row(&row),
            "\"dlv_1\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"3\",\"\",\"\",\"\",\"\",\"timeout\",\"no answer\"\r\n"
        );
    }
}
