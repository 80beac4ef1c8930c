//! Reads query parameters. Every refusal is a problem that names the parameter.

use std::collections::HashMap;

use axum::extract::FromRequestParts;
use http::Uri;
use http::request::Parts;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use url::form_urlencoded;

use super::page::PageParams;
use super::problem::{Problem, ProblemCode};
use crate::model::parse_fault::{data_fault, is_time, repeated_field, time_fault};

/// Query parameters of a request. An unknown one is refused by name.
pub struct QueryParams<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        refuse_nul(parts)?;
        refuse_reversed_times(&parts.uri)?;
        from_query(&parts.uri).map(Self).map_err(|message| of_query_error(&message, &parts.uri))
    }
}

/// Query parameters of a list: a filter, and which page of what it finds. An
/// unknown one is refused by name.
pub struct ListParams<F> {
    /// Which items to list.
    pub filter: F,
    /// Which page of them to return.
    pub page: PageParams,
}

impl<F: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for ListParams<F> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        refuse_nul(parts)?;
        refuse_reversed_times(&parts.uri)?;
        let fields = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
        let (page, filter): (Vec<_>, Vec<_>) = fields.partition(|(name, _)| matches!(&**name, "limit" | "cursor"));
        let uri_of = |fields: Vec<_>| -> Uri {
            let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
            format!("/?{query}").parse().expect("an encoded query is part of a URI")
        };
        let page = from_query(&uri_of(page)).map_err(|message| of_query_error(&message, &parts.uri))?;
        let filter = from_query(&uri_of(filter)).map_err(|message| {
            let message = match message.strip_suffix(", there are no fields") {
                Some(unknown) => format!("{unknown}, expected one of `limit`, `cursor`"),
                None if message.contains("unknown field `") => message + ", `limit`, `cursor`",
                None => message,
            };
            of_query_error(&message, &parts.uri)
        })?;
        Ok(Self { filter, page })
    }
}

/// Refuses a parameter that contains NUL. No stored text contains it, and
/// PostgreSQL cannot compare with it.
fn refuse_nul(parts: &Parts) -> Result<(), Problem> {
    let mut fields = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
    match fields.find(|(_, value)| value.contains('\0')) {
        Some((name, _)) => {
            let detail = format!("{name} holds the character NUL, which nothing here does");
            Err(Problem::field(ProblemCode::InvalidField, format!("?{name}"), detail))
        }
        None => Ok(()),
    }
}

/// Parses the query of a URI. An error is the parser's message, `<parameter>: <error>`.
fn from_query<T: DeserializeOwned>(uri: &Uri) -> Result<T, String> {
    let parsed = axum::extract::Query::<T>::try_from_uri(uri);
    parsed.map(|query| query.0).map_err(|rejection| {
        let detail = rejection.body_text();
        detail.strip_prefix("Failed to deserialize query string: ").unwrap_or(&detail).to_owned()
    })
}

/// Refuses a range of times that ends before it begins: `since` and `until`, or
/// names that end like that. Such a range is empty.
fn refuse_reversed_times(uri: &Uri) -> Result<(), Problem> {
    let fields: HashMap<_, _> = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).collect();
    for (name, since) in &fields {
        let Some(prefix) = name.strip_suffix("since") else { continue };
        let until_name = format!("{prefix}until");
        let Some(until) = fields.get(until_name.as_str()) else { continue };
        let times = since.parse::<Timestamp>().ok().zip(until.parse::<Timestamp>().ok());
        if times.is_some_and(|(since, until)| since > until) {
            let detail = format!("{name} ({since}) is after {until_name} ({until}), so nothing can match; swap them");
            return Err(Problem::field(ProblemCode::InvalidField, format!("?{name}"), detail));
        }
    }
    Ok(())
}

/// Turns the parser's message, `<parameter>: <error>`, into a problem.
fn of_query_error(detail: &str, uri: &Uri) -> Problem {
    let (name, message) = detail.split_once(": ").unwrap_or(("", detail));
    let missing = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
    if let Some(name) = missing {
        let detail = format!("{name} is missing; add ?{name}= and its value to the path");
        return Problem::field(ProblemCode::InvalidField, format!("?{name}"), detail);
    }
    if let Some(name) = repeated_field(message) {
        return Problem::field(
            ProblemCode::InvalidField,
            format!("?{name}"),
            format!("{name} is given twice; keep one"),
        );
    }
    let (code, detail) = match message {
        message if message.starts_with("unknown field") => (ProblemCode::UnknownField, message.to_owned()),
        _ if is_time(name) => (ProblemCode::InvalidField, query_time_fault(name, uri)),
        _ if name == "limit" => (ProblemCode::InvalidField, "limit is not a whole number; use 1 to 500".to_owned()),
        message => (ProblemCode::InvalidField, format!("{name}: {}", data_fault(message))),
    };
    Problem::field(code, format!("?{name}"), detail)
}

/// Returns what is wrong with a query parameter that should be a time. In a query a
/// plus means a space.
fn query_time_fault(name: &str, uri: &Uri) -> String {
    let query = uri.query().unwrap_or_default().as_bytes();
    let value = form_urlencoded::parse(query).find(|(known, _)| known == name).map(|(_, value)| value);
    match value {
        Some(value) if value.contains(' ') => {
            format!("{}; write %2B for a + in a URL", time_fault(&format!("{name} {value:?}")))
        }
        Some(value) => time_fault(&format!("{name} {value:?}")),
        None => time_fault(name),
    }
}
