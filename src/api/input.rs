//! Reads request bodies and paths. Every refusal is a problem that names the field.

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
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::SharedApiState;
use super::problem::{Problem, ProblemCode};
use super::request_schema::{SchemaFault, find_non_object, find_other_kind, find_out_of_range};
use crate::lifecycle::intake::{IntakePermit, Overload};
use crate::model::event::json_depth;
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId, TokenId};
use crate::model::parse_fault::{data_fault, is_time, json_fault_below, repeated_field, time_fault};
use crate::model::pointer::child;
use crate::store::MissingResource;

/// Timeout for a body to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for reading the rest of a body that is refused for overload.
const SHED_TIMEOUT: Duration = Duration::from_secs(1);
/// Most bytes of a refused body that are read and discarded.
const DRAINED_BYTES_MAX: usize = 16 * 1_024 * 1_024;
/// Largest body that carries no event, in bytes.
pub const DOCUMENT_BYTES_MAX: usize = 256 * 1_024;
/// Deepest nesting of JSON.
pub const DEPTH_MAX: usize = 64;

/// A request body that can carry events.
pub trait EventBody: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin + Send {}

impl<B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin + Send> EventBody for B {}

/// Reads a whole body, up to a limit.
pub async fn read_body(headers: &http::HeaderMap, body: Body, bytes_max: usize) -> Result<Bytes, Problem> {
    let body = check_head(headers, body, bytes_max).await?;
    match tokio::time::timeout(BODY_TIMEOUT, body.collect()).await {
        Err(_) => Err(body_timed_out()),
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(problem)) => Err(cannot_read(&problem, bytes_max)),
    }
}

/// Refuses a body by its headers alone, before it is read.
async fn check_head<B: EventBody>(headers: &http::HeaderMap, body: B, bytes_max: usize) -> Result<Limited<B>, Problem> {
    if let Some(encoding) = headers.get(CONTENT_ENCODING)
        && encoding != "identity"
    {
        let fault = "is compressed; send it as it is, without content-encoding";
        return Err(Problem::of_body(ProblemCode::UnsupportedMediaType, fault));
    }
    let content_length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if content_length.is_some_and(|length| length > bytes_max) {
        // A client that sent `Expect: 100-continue` waits with the body and reads the refusal at once.
        if !headers.contains_key(EXPECT) {
            drain_body(Limited::new(body, DRAINED_BYTES_MAX), BODY_TIMEOUT).await;
        }
        return Err(too_large(bytes_max));
    }
    Ok(Limited::new(body, bytes_max))
}

/// Reads a body with events. The permit accounts for the bytes as they arrive;
/// it is returned with the body, in the state of waiting for the commit.
pub async fn read_events<'a>(
    headers: &http::HeaderMap,
    body: impl EventBody,
    bytes_max: usize,
    mut permit: IntakePermit<'a>,
) -> Result<(Bytes, IntakePermit<'a>), Problem> {
    let mut body = check_head(headers, body, bytes_max).await?;
    match tokio::time::timeout(BODY_TIMEOUT, collect_body(&mut body, &mut permit)).await {
        Err(_) => Err(body_timed_out()),
        Ok(Ok(bytes)) => {
            permit.wait()?;
            Ok((bytes, permit))
        }
        Ok(Err(problem)) if problem.is::<Overload>() => {
            drop(permit);
            drain_body(body, SHED_TIMEOUT).await;
            Err(Overload.into())
        }
        Ok(Err(problem)) => Err(cannot_read(&problem, bytes_max)),
    }
}

/// Joins the frames of a body. Most bodies are one frame, which is not copied.
async fn collect_body<B: EventBody>(body: &mut Limited<B>, permit: &mut IntakePermit<'_>) -> Result<Bytes, BoxError> {
    let mut first = Bytes::new();
    let mut joined = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        permit.grow(data.len())?;
        if !HttpBody::is_end_stream(body) {
            permit.await_rest_of_body()?;
        }
        if first.is_empty() && joined.is_empty() {
            first = data;
            continue;
        }
        joined.extend_from_slice(&std::mem::take(&mut first));
        joined.extend_from_slice(&data);
    }
    Ok(if joined.is_empty() { first } else { joined.freeze() })
}

fn body_timed_out() -> Problem {
    Problem::of_body(ProblemCode::RequestTimeout, "did not arrive within 30s")
}

fn cannot_read(problem: &BoxError, bytes_max: usize) -> Problem {
    if problem.is::<LengthLimitError>() {
        too_large(bytes_max)
    } else {
        Problem::of_body(ProblemCode::InvalidJson, &format!("could not be read: {problem}"))
    }
}

/// Reads and discards the rest of a body, up to the timeout, so that the client
/// reads the response instead of a closed connection.
async fn drain_body<B: EventBody>(mut body: Limited<B>, timeout: Duration) {
    let reading = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = tokio::time::timeout(timeout, reading).await;
}

/// Returns the problem for a body larger than the limit.
pub fn too_large(bytes_max: usize) -> Problem {
    let fault = format!("is larger than {bytes_max} bytes; send less, or raise the limit where it is a setting");
    Problem::of_body(ProblemCode::PayloadTooLarge, &fault)
}

/// Parses a document: a JSON object without duplicate keys, and with an object
/// wherever the schema of `T` has one.
pub fn document_from_json<'a, T: Deserialize<'a> + ToSchema>(bytes: &'a [u8]) -> Result<T, Problem> {
    checked_document::<T>(bytes)?;
    from_json(bytes).map_err(|problem| explained_by_schema::<T>(problem, bytes))
}

/// Parses a document like [`document_from_json`], by the schema of `T`, and
/// returns its fields as they are.
pub fn fields_from_json<T: ToSchema>(bytes: &[u8]) -> Result<Map<String, Value>, Problem> {
    checked_document::<T>(bytes)?;
    from_json(bytes)
}

fn checked_document<T: ToSchema>(bytes: &[u8]) -> Result<(), Problem> {
    let depth = json_depth(bytes);
    if depth > DEPTH_MAX {
        let fault = format!("is {depth} levels deep; use at most {DEPTH_MAX}");
        return Err(Problem::of_whole_document(ProblemCode::InvalidField, &fault));
    }
    from_json::<UniqueKeysJson>(bytes)?;
    refuse_non_objects::<T>(&from_json(bytes)?)
}

/// Replaces the parser's words with those of the schema, where a value is of another
/// kind than expected.
fn explained_by_schema<T: ToSchema>(problem: Problem, bytes: &[u8]) -> Problem {
    match serde_json::from_slice(bytes) {
        Ok(document) => explained_by_kind::<T>(problem, &document),
        Err(_) => problem,
    }
}

fn explained_by_kind<T: ToSchema>(problem: Problem, document: &Value) -> Problem {
    let is_same = |error: &SchemaFault| problem.pointer() == Some(error.pointer.as_str());
    // The message already shows the format of a time.
    let is_plain = |error: &SchemaFault| !error.pointer.rsplit('/').next().is_some_and(is_time);
    let other_kind = find_other_kind::<T>(document).filter(is_same).filter(is_plain);
    match other_kind.or_else(|| find_out_of_range::<T>(document).filter(is_same)) {
        Some(fault) => fault.problem(),
        None => problem,
    }
}

fn refuse_non_objects<T: ToSchema>(document: &Value) -> Result<(), Problem> {
    match find_non_object::<T>(document) {
        Some(fault) => Err(fault.problem()),
        None => Ok(()),
    }
}

/// JSON in which no object has a key twice. Serde would silently take the last
/// value.
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
                let pointer = child("", &name);
                return Err(serde::de::Error::custom(format!("at {pointer}: {name} is given twice; keep one")));
            }
            map.next_value::<Self>()?;
            names.insert(name);
        }
        Ok(self)
    }
}

/// Parses an event, whose schema has no object but the event itself and its data,
/// which may be anything.
pub fn event_from_json<'a, T: Deserialize<'a> + ToSchema>(bytes: &'a [u8]) -> Result<T, Problem> {
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        from_json::<serde::de::IgnoredAny>(bytes)?;
        refuse_non_objects::<T>(&Value::Array(Vec::new()))?;
    }
    from_json(bytes).map_err(|problem| explained_by_schema::<T>(problem, bytes))
}

/// Returns the problem of an event of a batch that is not JSON, with the line of the
/// body that it is in; none if it is JSON.
pub fn line_fault(line: &[u8], lines_before: usize) -> Option<Problem> {
    let problem = serde_json::from_slice::<serde::de::IgnoredAny>(line).err()?;
    Some(not_json(line, &problem, lines_before))
}

fn not_json(bytes: &[u8], problem: &serde_json::Error, lines_before: usize) -> Problem {
    let fault = json_fault_below(bytes, problem, lines_before);
    let fault = format!("is not JSON: {fault}; write it like {{\"name\": \"value\"}}");
    Problem::of_body(ProblemCode::InvalidJson, &fault)
}

/// Parses JSON; the problem points to the faulty field.
pub fn from_json<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Problem> {
    if let Err(problem) = std::str::from_utf8(bytes) {
        let fault = format!("is not UTF-8 from byte {} on", problem.valid_up_to());
        return Err(Problem::of_body(ProblemCode::InvalidJson, &fault));
    }
    if bytes.starts_with(b"\xef\xbb\xbf") {
        let fault = "begins with a byte order mark, the bytes EF BB BF; send it without them";
        return Err(Problem::of_body(ProblemCode::InvalidJson, fault));
    }
    // Tracking the path costs time, so a second parse finds it only after an error.
    serde_json::from_slice(bytes).map_err(|problem| explain_parse_failure::<T>(bytes, &problem))
}

fn explain_parse_failure<'a, T: Deserialize<'a>>(bytes: &'a [u8], problem: &serde_json::Error) -> Problem {
    // serde_json calls a number in place of an enum's name a syntax error, but the body is valid JSON.
    let is_json = problem.is_data() || serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok();
    if !is_json {
        return not_json(bytes, problem, 0);
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let pointer = match serde_path_to_error::deserialize::<_, T>(&mut reader) {
        Err(located) => pointer_of(located.path()),
        Ok(_) => String::new(),
    };
    of_data_error(pointer, problem)
}

/// Deserializes a JSON value; the problem points to the faulty field.
pub fn from_value<T: DeserializeOwned + ToSchema>(value: &Value) -> Result<T, Problem> {
    serde_path_to_error::deserialize(value).map_err(|located| {
        let pointer = pointer_of(located.path());
        explained_by_kind::<T>(of_data_error(pointer, located.inner()), value)
    })
}

fn of_data_error(pointer: String, problem: &serde_json::Error) -> Problem {
    let message = problem.to_string();
    let detail = data_fault(&message);
    // The parser names a missing or unknown field only in its message.
    let named = |prefix: &str| detail.strip_prefix(prefix)?.split('`').next().map(str::to_owned);
    // An unknown field may have any name, with backticks and slashes in it.
    let unknown = detail.strip_prefix("unknown field `");
    if let Some(name) = unknown.and_then(|rest| rest.split("`, expected ").next()?.split("`, there are no ").next()) {
        let segment = child("", name);
        let pointer = if pointer.ends_with(&segment) { pointer } else { pointer + &segment };
        return Problem::field(ProblemCode::UnknownField, pointer, detail);
    }
    // An error inside a filter begins with its own pointer.
    if let Some((inner, message)) = detail.strip_prefix("at ").and_then(|rest| rest.split_once(": ")) {
        return Problem::field(ProblemCode::InvalidField, format!("{pointer}{inner}"), message);
    }
    let field = pointer.rsplit('/').next().unwrap_or_default();
    let repeated = || repeated_field(&message).map(str::to_owned);
    match named("missing field `").or_else(repeated) {
        Some(name) => Problem::field(ProblemCode::InvalidField, format!("{pointer}/{name}"), detail),
        None if is_time(field) => {
            let detail = time_fault(field);
            Problem::field(ProblemCode::InvalidField, pointer, detail)
        }
        None => {
            // Whoever reads the sentence alone learns which field it is about.
            let named = detail.strip_prefix("it is ").filter(|_| !pointer.is_empty());
            let detail = named.map(|rest| format!("{} is {rest}", pointer[1..].replace('/', "."))).unwrap_or(detail);
            Problem::field(ProblemCode::InvalidField, pointer, detail)
        }
    }
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

/// The tenant of a route, which must exist.
pub struct TenantPath(pub TenantId);

impl FromRequestParts<SharedApiState> for TenantPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &SharedApiState) -> Result<Self, Problem> {
        let id: TenantId = path_part(parts, MissingResource::Tenant).await?;
        let known = api.gateway.store.tenant(&id);
        known.map(|_| Self(id)).ok_or_else(|| Problem::not_found(MissingResource::Tenant))
    }
}

/// The tenant whose events are handed in, which must exist.
pub struct ProducerTenant(pub Arc<crate::model::tenant::Tenant>);

impl FromRequestParts<SharedApiState> for ProducerTenant {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &SharedApiState) -> Result<Self, Problem> {
        let id: TenantId = path_part(parts, MissingResource::Tenant).await?;
        api.gateway.store.tenant(&id).map(Self).ok_or_else(|| Problem::not_found(MissingResource::Tenant))
    }
}

macro_rules! path_id {
    ($(#[$doc:meta])* $name:ident, $id:ty, $part:ident) => {
        $(#[$doc])*
        pub struct $name(pub $id);

        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = Problem;
            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
                path_part(parts, MissingResource::$part).await.map(Self)
            }
        }
    };
}
path_id!(
    /// The tenant a route names, whether it exists or not.
    NamedTenant, TenantId, Tenant
);
path_id!(
    /// The token a route names.
    NamedToken, TokenId, Token
);
path_id!(
    /// The endpoint a route names.
    NamedEndpoint, EndpointId, Endpoint
);
path_id!(
    /// The event a route names.
    NamedEvent, EventId, Event
);
path_id!(
    /// The delivery a route names.
    NamedDelivery, DeliveryId, Delivery
);
path_id!(
    /// The portal link a route names.
    NamedLink, TokenId, Link
);
path_id!(
    /// The portal session a route names.
    NamedSession, TokenId, Session
);

/// Reads the id of a resource from the path. A text that is no id is answered 404.
pub(super) async fn path_part<T: std::str::FromStr>(
    parts: &mut Parts,
    resource: MissingResource,
) -> Result<T, Problem> {
    let name: &str = resource.into();
    let params = parts.extract::<Path<Vec<(String, String)>>>().await;
    let Path(params) = params.map_err(|_| Problem::not_found(resource))?;
    let text = params.into_iter().find(|(part, _)| part == name).map(|(_, text)| text);
    text.and_then(|text| text.parse().ok()).ok_or_else(|| Problem::not_found(resource))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;

    /// Returns a body that arrives one byte at a time.
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
        let read = |depth| fields_from_json::<Value>(nested(depth).as_bytes()).map_err(|why| why.code());
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
