//! Reads requests: bodies, parameters and paths, each refusal a problem that
//! names the field.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{FromRequestParts, Path};
use axum::{BoxError, RequestPartsExt};
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, EXPECT};
use http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use url::form_urlencoded;

use super::SharedApiState;
use super::accept::DEPTH_MAX;
use super::problem::{Problem, ProblemCode};
use crate::lifecycle::intake::{IntakePermit, Overload};
use crate::model::event::json_depth;
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId, TokenId};
use crate::model::pointer::child;

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the rest of a body may take that is turned away.
const SHED_TIMEOUT: Duration = Duration::from_secs(1);
/// How much of a body is read only to be thrown away.
const DRAINED_BYTES_MAX: usize = 16 * 1_024 * 1_024;
/// How large a body may be that carries no event.
pub const DOCUMENT_BYTES_MAX: usize = 256 * 1_024;

/// Reads a whole body, up to a limit.
pub async fn read_body(headers: &http::HeaderMap, body: Body, bytes_max: usize) -> Result<Bytes, Problem> {
    let body = check_head(headers, body, bytes_max).await?;
    match tokio::time::timeout(BODY_TIMEOUT, body.collect()).await {
        Err(_) => Err(body_timed_out()),
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(problem)) => Err(cannot_read(&problem, bytes_max)),
    }
}

/// Refuses what need not be read to be refused.
async fn check_head(headers: &http::HeaderMap, body: Body, bytes_max: usize) -> Result<Limited<Body>, Problem> {
    if let Some(encoding) = headers.get(CONTENT_ENCODING)
        && encoding != "identity"
    {
        return Err(Problem::new(
            ProblemCode::UnsupportedMediaType,
            "the body is compressed; send it as it is, without content-encoding",
        ));
    }
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > bytes_max) {
        // Whoever waits for leave to send it hears the answer instead of a leave.
        if !headers.contains_key(EXPECT) {
            drain(Limited::new(body, DRAINED_BYTES_MAX), BODY_TIMEOUT).await;
        }
        return Err(too_large(bytes_max));
    }
    Ok(Limited::new(body, bytes_max))
}

/// Reads a body with events. What has come of it is held by the share, which
/// is given back with it, waiting for its commit.
pub async fn read_events<'a>(
    headers: &http::HeaderMap,
    body: Body,
    bytes_max: usize,
    mut share: IntakePermit<'a>,
) -> Result<(Bytes, IntakePermit<'a>), Problem> {
    let mut body = check_head(headers, body, bytes_max).await?;
    match tokio::time::timeout(BODY_TIMEOUT, collect_body(&mut body, &mut share)).await {
        Err(_) => Err(body_timed_out()),
        Ok(Ok(bytes)) => {
            share.wait()?;
            Ok((bytes, share))
        }
        Ok(Err(problem)) if problem.is::<Overload>() => {
            drop(share);
            drain(body, SHED_TIMEOUT).await;
            Err(Overload.into())
        }
        Ok(Err(problem)) => Err(cannot_read(&problem, bytes_max)),
    }
}

/// Puts a body together from its parts; mostly it comes as one.
async fn collect_body(body: &mut Limited<Body>, share: &mut IntakePermit<'_>) -> Result<Bytes, BoxError> {
    let mut whole = Bytes::new();
    let mut parts = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        share.grow(data.len())?;
        if !HttpBody::is_end_stream(body) {
            share.await_rest_of_body()?;
        }
        if whole.is_empty() && parts.is_empty() {
            whole = data;
            continue;
        }
        parts.extend_from_slice(&std::mem::take(&mut whole));
        parts.extend_from_slice(&data);
    }
    Ok(if parts.is_empty() { whole } else { parts.freeze() })
}

fn body_timed_out() -> Problem {
    Problem::new(ProblemCode::RequestTimeout, "the body did not arrive within 30s")
}

fn cannot_read(problem: &BoxError, bytes_max: usize) -> Problem {
    match problem.is::<LengthLimitError>() {
        true => too_large(bytes_max),
        false => Problem::new(ProblemCode::InvalidJson, format!("the body could not be read: {problem}")),
    }
}

/// Lets a client finish what it is sending, up to a point, so that it can
/// read the answer instead of meeting a closed connection.
async fn drain(mut body: Limited<Body>, timeout: Duration) {
    let reading = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = tokio::time::timeout(timeout, reading).await;
}

/// The body is larger than the limit.
pub fn too_large(bytes_max: usize) -> Problem {
    Problem::new(
        ProblemCode::PayloadTooLarge,
        format!("the body is larger than {bytes_max} bytes; send less, or raise the limit where it is a setting"),
    )
}

/// Places in documents where an object is meant. A list there would be read
/// as its fields in order, which nobody means.
const OBJECTS: &[&str] = &[
    "",
    "/retry",
    "/retry/backoff",
    "/status_rules",
    "/timeout",
    "/headers",
    "/metadata",
    "/tls",
    "/defaults",
    "/defaults/retry",
    "/defaults/retry/backoff",
    "/defaults/status_rules",
    "/defaults/timeout",
];

/// Reads a document: a JSON object with nothing but objects where it nests.
pub fn document_from_json<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Problem> {
    let depth = json_depth(bytes);
    if depth > DEPTH_MAX {
        let detail = format!("the body is {depth} levels deep; use at most {DEPTH_MAX}");
        return Err(Problem::field(ProblemCode::InvalidField, "", detail));
    }
    from_json::<UniqueKeysJson>(bytes)?;
    let document: serde_json::Value = from_json(bytes)?;
    for place in OBJECTS {
        if document.pointer(place).is_some_and(|value| !value.is_object() && !value.is_null()) {
            let name = place.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("the body");
            return Err(Problem::field(
                ProblemCode::InvalidField,
                *place,
                format!("{name} is not an object; write it in braces"),
            ));
        }
    }
    object_from_json(bytes)
}

/// JSON in which no object has a name twice. Elsewhere the last would count,
/// without a word.
struct UniqueKeysJson;

impl<'de> Deserialize<'de> for UniqueKeysJson {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueKeysJson)
    }
}

impl<'de> serde::de::Visitor<'de> for UniqueKeysJson {
    type Value = Self;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }
    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }
    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }
    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }
    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }
    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }
    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }
    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<Self>()?.is_some() {}
        Ok(self)
    }
    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        let mut names = std::collections::HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if names.contains(&name) {
                let place = child("", &name);
                return Err(serde::de::Error::custom(format!("at {place}: {name} is given twice; keep one")));
            }
            map.next_value::<Self>()?;
            names.insert(name);
        }
        Ok(self)
    }
}

/// Reads a JSON object.
pub fn object_from_json<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Problem> {
    match bytes.trim_ascii_start().first() {
        Some(b'[') => {
            from_json::<serde::de::IgnoredAny>(bytes)?;
            Err(Problem::field(ProblemCode::InvalidField, "", "the body is a list; write one object in braces"))
        }
        _ => from_json(bytes),
    }
}

/// Reads JSON; the problem says where it is wrong.
pub fn from_json<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Problem> {
    if let Err(problem) = std::str::from_utf8(bytes) {
        let detail = format!("the body is not UTF-8 from byte {} on", problem.valid_up_to());
        return Err(Problem::new(ProblemCode::InvalidJson, detail));
    }
    // The path is only looked for when there is something to say about it.
    serde_json::from_slice(bytes).map_err(|problem| explain::<T>(bytes, &problem))
}

fn explain<'a, T: Deserialize<'a>>(bytes: &'a [u8], problem: &serde_json::Error) -> Problem {
    // A number where a word is wanted is called bad syntax, and is not.
    let is_json = problem.is_data() || serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok();
    if !is_json {
        return Problem::new(ProblemCode::InvalidJson, format!("the body is not JSON: {problem}"));
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let pointer = match serde_path_to_error::deserialize::<_, T>(&mut reader) {
        Err(located) => pointer_of(located.path()),
        Ok(_) => String::new(),
    };
    of_data_error(pointer, problem)
}

/// Reads a value that is JSON already.
pub fn from_value<T: DeserializeOwned>(value: serde_json::Value) -> Result<T, Problem> {
    serde_path_to_error::deserialize(value).map_err(|located| {
        let pointer = pointer_of(located.path());
        of_data_error(pointer, located.inner())
    })
}

fn of_data_error(pointer: String, problem: &serde_json::Error) -> Problem {
    let text = problem.to_string();
    let detail = text.split(" at line ").next().unwrap_or_default().to_owned();
    let detail = in_plain_words(detail);
    // The parser names what is missing or unknown only in its sentence.
    let named = |prefix: &str| detail.strip_prefix(prefix)?.split('`').next().map(str::to_owned);
    // What is unknown may have any name, ticks and slashes in it.
    let unknown = detail.strip_prefix("unknown field `");
    if let Some(name) = unknown.and_then(|rest| rest.split("`, expected ").next()?.split("`, there are no ").next()) {
        let last = child("", name);
        let pointer = if pointer.ends_with(&last) { pointer } else { pointer + &last };
        return Problem::field(ProblemCode::UnknownField, pointer, detail);
    }
    // A rule inside a filter says where it stands.
    if let Some((place, wrong)) = detail.strip_prefix("at ").and_then(|rest| rest.split_once(": ")) {
        return Problem::field(ProblemCode::InvalidField, format!("{pointer}{place}"), wrong);
    }
    match named("missing field `").or_else(|| named("duplicate field `")) {
        Some(name) => Problem::field(ProblemCode::InvalidField, format!("{pointer}/{name}"), detail),
        None => Problem::field(ProblemCode::InvalidField, pointer, detail),
    }
}

/// The parser speaks of Rust's types; a caller need not know them.
fn in_plain_words(detail: String) -> String {
    if detail == "expected value" {
        return "the value is of a wrong type or shape".to_owned();
    }
    if let Some((name, known)) = detail.strip_prefix("unknown variant ").and_then(|rest| rest.split_once(", expected "))
    {
        return format!("{name} is not known here; use {known}");
    }
    let Some((wrong, expected)) = detail.split_once(", expected ") else { return detail };
    let expected = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number",
        "f64" => "a number",
        "a string" => "a text",
        "a sequence" => "a list",
        "a map" => "an object",
        object if object.starts_with("struct ") => "an object",
        word if word.starts_with("enum ") || word == "string or map" => "a text",
        other => other,
    };
    format!("{wrong}, expected {expected}")
}

fn pointer_of(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    path.iter()
        .filter_map(|segment| match segment {
            Segment::Seq { index } => Some(format!("/{index}")),
            Segment::Map { key } => Some(child("", key)),
            Segment::Enum { variant } => Some(format!("/{variant}")),
            Segment::Unknown => None,
        })
        .collect()
}

/// Query parameters, with unknown ones refused by name.
pub struct QueryParams<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        // No text here has one, and not every store can even ask for it.
        let fields = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
        if let Some((name, _)) = fields.into_iter().find(|(_, value)| value.contains('\0')) {
            let detail = format!("{name} holds the character NUL, which nothing here does");
            return Err(Problem::field(ProblemCode::InvalidField, format!("?{name}"), detail));
        }
        let parsed = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        parsed.map(|query| Self(query.0)).map_err(|rejection| {
            let detail = rejection.body_text();
            of_query_error(detail.strip_prefix("Failed to deserialize query string: ").unwrap_or(&detail))
        })
    }
}

/// The parser names the parameter first, then what is wrong with it.
fn of_query_error(detail: &str) -> Problem {
    let (name, wrong) = detail.split_once(": ").unwrap_or(("", detail));
    let repeated = wrong.strip_prefix("duplicate field `").and_then(|rest| rest.strip_suffix('`'));
    if let Some(name) = repeated {
        return Problem::field(
            ProblemCode::InvalidField,
            format!("?{name}"),
            format!("{name} is given twice; keep one"),
        );
    }
    let (code, wrong) = match wrong {
        wrong if wrong.starts_with("unknown field") => (ProblemCode::UnknownField, wrong.to_owned()),
        wrong if matches!(name, "since" | "until") => (
            ProblemCode::InvalidField,
            format!("{name} is not RFC 3339 with an offset, such as 2026-01-31T12:00:00Z ({wrong})"),
        ),
        _ if name == "limit" => (ProblemCode::InvalidField, "limit is not a whole number; use 1 to 500".to_owned()),
        wrong => (ProblemCode::InvalidField, format!("{name}: {}", in_plain_words(wrong.to_owned()))),
    };
    Problem::field(code, format!("?{name}"), wrong)
}

/// The tenant of a route, which must exist.
pub struct TenantPath(pub TenantId);

impl FromRequestParts<SharedApiState> for TenantPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &SharedApiState) -> Result<Self, Problem> {
        let id: TenantId = path_part(parts, "tenant").await?;
        match api.gateway.store.tenant(&id) {
            Some(_) => Ok(Self(id)),
            None => Err(Problem::not_found("tenant")),
        }
    }
}

/// The tenant whose events are handed in, which must exist.
pub struct ProducerTenant(pub Arc<crate::model::tenant::Tenant>);

impl FromRequestParts<SharedApiState> for ProducerTenant {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &SharedApiState) -> Result<Self, Problem> {
        let id: TenantId = path_part(parts, "tenant").await?;
        api.gateway.store.tenant(&id).map(Self).ok_or_else(|| Problem::not_found("tenant"))
    }
}

macro_rules! path_id {
    ($(#[$doc:meta])* $name:ident, $id:ty, $part:literal) => {
        $(#[$doc])*
        pub struct $name(pub $id);

        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = Problem;
            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
                path_part(parts, $part).await.map(Self)
            }
        }
    };
}
path_id!(
    /// The tenant a route names, whether it exists or not.
    NamedTenant, TenantId, "tenant"
);
path_id!(
    /// The token a route names.
    NamedToken, TokenId, "token"
);
path_id!(
    /// The endpoint a route names.
    NamedEndpoint, EndpointId, "endpoint"
);
path_id!(
    /// The event a route names.
    NamedEvent, EventId, "event"
);
path_id!(
    /// The delivery a route names.
    NamedDelivery, DeliveryId, "delivery"
);

/// An id in the path. One that cannot be an id names nothing.
async fn path_part<T: std::str::FromStr>(parts: &mut Parts, name: &str) -> Result<T, Problem> {
    let found = parts.extract::<Path<Vec<(String, String)>>>().await;
    let Path(found) = found.map_err(|_| Problem::not_found(name))?;
    let text = found.into_iter().find(|(part, _)| part == name).map(|(_, text)| text);
    text.and_then(|text| text.parse().ok()).ok_or_else(|| Problem::not_found(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;

    /// A body that drips in, a byte every few seconds.
    fn dripping(every: Duration) -> Body {
        let drip = futures_util::stream::unfold((), move |()| async move {
            tokio::time::sleep(every).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b" ")), ()))
        });
        Body::from_stream(drip)
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_drips_in_is_given_up_in_time() {
        let began = tokio::time::Instant::now();
        let body = dripping(Duration::from_secs(2));
        let problem = read_body(&HeaderMap::new(), body, DOCUMENT_BYTES_MAX).await.unwrap_err();
        assert_eq!((problem.code(), began.elapsed().as_secs()), (ProblemCode::RequestTimeout, 30));
    }

    #[test]
    fn a_document_is_not_deeper_than_what_may_be_read() {
        let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1));
        let read = |depth| document_from_json::<serde_json::Value>(nested(depth).as_bytes()).map_err(|why| why.code());
        assert!(read(DEPTH_MAX).is_ok());
        assert_eq!(read(DEPTH_MAX + 1), Err(ProblemCode::InvalidField));
        assert_eq!(read(100_000), Err(ProblemCode::InvalidField), "and it costs no stack");
    }

    #[test]
    fn an_unknown_field_is_pointed_to_whatever_its_name() {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Known {
            #[serde(rename = "known")]
            _known: Option<u8>,
        }
        for (name, pointer) in [("a", "/a"), ("a/b", "/a~1b"), ("~", "/~0"), ("a`b", "/a`b"), ("", "/")] {
            let (code, errors) = from_json::<Known>(format!("{{{name:?}:1}}").as_bytes()).unwrap_err().errors_below("");
            assert_eq!((code, errors[0].pointer.as_str()), (ProblemCode::UnknownField, pointer), "{name:?}");
        }
    }
}
