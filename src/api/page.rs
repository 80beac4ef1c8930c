//! Reads and writes pages of lists: `?limit=&cursor=` in, `{"data":[…],"next":…}` out.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::problem::{Problem, ProblemCode};
use crate::store::{self, PageRequest};

const LIMIT_DEFAULT: usize = 50;
const LIMIT_MAX: usize = 500;

/// Which page of a list to return.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PageParams {
    /// Page size, 1 to 500; 50 by default.
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<usize>,
    /// The `next` of the page before.
    pub cursor: Option<String>,
}

/// How many items to return of what has no pages.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct LimitParams {
    /// Page size, 1 to 500; 50 by default.
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<usize>,
}

/// One page of a list. It may be short and still have a next one.
#[derive(Debug, Serialize, ToSchema)]
pub struct Page<T> {
    /// What was found, in the order that the route names.
    pub data: Vec<T>,
    /// Give this as `cursor` for the next page; null on the last.
    #[schema(required = true)]
    pub next: Option<String>,
    /// The time back to which this page looked, if it is short because it has looked at as many as a page may; absent otherwise. The next page goes on from there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub looked_back_to: Option<Timestamp>,
}

impl<T> Page<T> {
    /// Returns a list that always fits on one page.
    pub fn whole(data: Vec<T>) -> Self {
        Self { data, next: None, looked_back_to: None }
    }

    /// Converts a store's page, each item by `show`. The page has wall time.
    pub fn of<S>(list: &'static str, page: store::ListPage<S>, show: impl FnMut(S) -> T) -> Self {
        let next = page.next.map(|cursor| URL_SAFE_NO_PAD.encode(format!("{list}:{cursor}")));
        Self { data: page.data.into_iter().map(show).collect(), next, looked_back_to: page.looked_back_to }
    }
}

/// Reads `limit` of what has no pages.
pub fn limit_of(page: &PageParams) -> Result<usize, Problem> {
    if page.cursor.is_some() {
        let detail =
            "cursor is no parameter of groups: there are no further pages; raise limit, or group by fewer fields";
        return Err(Problem::field(ProblemCode::UnknownField, "?cursor", detail));
    }
    page_request("", page.limit, None).map(|page| page.limit)
}

/// Reads `limit` and `cursor`. A cursor is valid only for the list it came from.
pub fn page_request(list: &'static str, limit: Option<usize>, cursor: Option<&str>) -> Result<PageRequest, Problem> {
    let limit = limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        let detail = format!("limit is {limit}; use 1 to {LIMIT_MAX}");
        return Err(Problem::field(ProblemCode::InvalidField, "?limit", detail));
    }
    let cursor = match cursor {
        None => None,
        Some(text) => {
            let decoded = URL_SAFE_NO_PAD.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            let position = decoded.and_then(|text| Some(text.strip_prefix(list)?.strip_prefix(':')?.to_owned()));
            let position = position.filter(|text| !text.contains('\0'));
            let refused = || {
                Problem::field(
                    ProblemCode::InvalidCursor,
                    "?cursor",
                    "the cursor is not one of this list; start again without it",
                )
            };
            Some(position.ok_or_else(refused)?)
        }
    };
    Ok(PageRequest { cursor, limit })
}
