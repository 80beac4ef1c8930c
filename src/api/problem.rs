//! Renders errors as RFC 9457 problems: a stable code for programs, a sentence
//! for people, pointers to the fields at fault.

use std::ops::RangeInclusive;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::Serialize;
use tracing::{info, warn};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use super::origin::RequestId;
use super::{REQUEST_ID, rate_limit_headers};
use crate::lifecycle::accept::{AcceptRefusal, differing_sentence};
use crate::lifecycle::intake::Overload;
use crate::lifecycle::linked_data::LinkRefusal;
use crate::lifecycle::storage_admission::StorageRefusal;
use crate::metrics::LimitOwner;
use crate::model::id::TenantId;
use crate::model::named_enum::NamedEnum;
use crate::store;
use crate::store::MissingResource;

mod groups;

pub use groups::{
    AcceptProblems, GoneProblems, InputProblems, LimitProblems, LinkProblems, OverloadProblems, Problems,
    PublicKeyProblems, PublicProblems, SpaceProblems, StateProblems, TargetProblems,
};

/// A problem to be rendered as the response.
#[derive(Debug, Clone)]
pub struct Problem {
    code: ProblemCode,
    detail: String,
    errors: Vec<FieldError>,
    headers: Vec<(HeaderName, HeaderValue)>,
    limit: Option<LimitOwner>,
    limit_name: Option<&'static str>,
    /// What is missing, if something is.
    missing: Option<MissingResource>,
    /// Whether its sentences begin with [`THE_BODY`].
    is_about_body: bool,
}

/// What sentences about a whole body begin with.
const THE_BODY: &str = "the body";
/// What they begin with where it is one event of several.
const THE_EVENT: &str = "the event";

/// One field at fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FieldError {
    /// Where, as a JSON pointer into the request body, or `?name` for a query parameter.
    #[schema(example = "/type")]
    pub pointer: String,
    /// What is wrong and what would be accepted.
    pub detail: String,
}

macro_rules! codes {
    ($(#[doc = $means:literal] $name:ident = $text:literal, $status:ident, $title:literal;)*) => {
        /// Stable code of a problem, for programs. A code never changes its meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::IntoStaticStr, strum::VariantArray)]
        pub enum ProblemCode { $(#[doc = $means] #[serde(rename = $text)] #[strum(serialize = $text)] $name,)* }

        impl ProblemCode {
            /// Returns the HTTP status of the code.
            pub fn status(self) -> StatusCode { match self { $(ProblemCode::$name => StatusCode::$status,)* } }
            /// Returns the code's meaning in a few words.
            pub fn title(self) -> &'static str { match self { $(ProblemCode::$name => $title,)* } }
            /// Returns the sentences that explain the code, with links to sections of `docs/api.md`.
            pub fn explanation(self) -> &'static str { match self { $(ProblemCode::$name => $means.trim_ascii(),)* } }
        }
    };
}

impl PartialSchema for ProblemCode {
    fn schema() -> RefOr<Schema> {
        let names = Self::ALL.iter().map(|code| code.as_str());
        let described = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names));
        described.description(Some("What went wrong, for programs. A code never changes its meaning.")).into()
    }
}

impl ToSchema for ProblemCode {
    fn name() -> std::borrow::Cow<'static, str> {
        "ProblemCode".into()
    }
}

codes! {
    /// The request's [head](#heads) is ambiguous.
    MalformedRequest = "malformed_request", BAD_REQUEST, "The request is not written as HTTP wants it";
    /// The body is not JSON, or not UTF-8.
    InvalidJson = "invalid_json", BAD_REQUEST, "The body is not JSON";
    /// A field or query parameter that does not exist. The sentence lists those that do.
    UnknownField = "unknown_field", UNPROCESSABLE_ENTITY, "There is no such field";
    /// A field or query parameter is missing or has a value that cannot be accepted.
    InvalidField = "invalid_field", UNPROCESSABLE_ENTITY, "A field has a value that cannot be accepted";
    /// The link of a thin event was not made here, or was changed on its way.
    LinkInvalid = "link_invalid", FORBIDDEN, "The link is not valid";
    /// What the link of a thin event led to is no longer kept.
    LinkExpired = "link_expired", GONE, "The link has expired";
    /// The event's data was [forgotten](#what-an-event-carried) on request, or is no longer kept because no endpoint wanted it.
    DataExpunged = "data_expunged", GONE, "The event's data was expunged";
    /// The stored event differs from what was accepted; it is neither sent nor served.
    DataDamaged = "data_damaged", GONE, "The event's data is damaged";
    /// The event id was used before, for other content. Use another id.
    IdConflict = "id_conflict", CONFLICT, "The id belongs to other content";
    /// There is no such tenant, event, endpoint, delivery, token, link, session or route, or none that the token may see.
    NotFound = "not_found", NOT_FOUND, "There is no such thing";
    /// No token, or one that is not valid, was revoked or has expired.
    Unauthenticated = "unauthenticated", UNAUTHORIZED, "A valid token is needed";
    /// The token is valid and the tenant its own, but it does not have the right that the sentence names.
    MissingRight = "missing_right", FORBIDDEN, "The token does not have the right to do this";
    /// It is there, but its state does not allow this: for instance, cancelling what was delivered, or handing an event in to the tenant `_system`, which is fed by the gateway itself.
    WrongState = "wrong_state", CONFLICT, "Its state does not allow this";
    /// The body is larger than the limit, which the sentence names.
    PayloadTooLarge = "payload_too_large", PAYLOAD_TOO_LARGE, "The body is too large";
    /// The event, or the request as a whole, would make too many deliveries.
    FanoutLimit = "fanout_limit", UNPROCESSABLE_ENTITY, "Too many deliveries would be made";
    /// The URL points where the gateway may not call: an address that is not public, a name for this machine or network, or a port of another service. It reads the same for every address; only a closed port and the gateway itself are named. The gateway's log says why, and [`--allow-egress`](settings.md) opens networks.
    TargetForbidden = "target_forbidden", UNPROCESSABLE_ENTITY, "The target may not be called";
    /// The cursor does not belong to this list. Start again without it.
    InvalidCursor = "invalid_cursor", BAD_REQUEST, "The cursor is not valid";
    /// The route exists, but not for this method.
    MethodNotAllowed = "method_not_allowed", METHOD_NOT_ALLOWED, "The method is not known here";
    /// The body is compressed. Send it as it is.
    UnsupportedMediaType = "unsupported_media_type", UNSUPPORTED_MEDIA_TYPE, "The encoding is not read";
    /// The body did not arrive within 30 seconds.
    RequestTimeout = "request_timeout", REQUEST_TIMEOUT, "The body did not arrive in time";
    /// More events than the tenant's `ingest` allows, more calls of its tokens than `limits.management` allows, more than ten tests of its endpoints in a minute, more fetches than the link of a thin event may be used for, or too many [requests without a valid token](#requests-without-a-valid-token) from one address. `Retry-After` says when they may come; nothing was written.
    RateLimited = "rate_limited", TOO_MANY_REQUESTS, "Too many at once";
    /// The tenant has as many waiting deliveries as it may (`limits.waiting`). `Retry-After` says when to try again.
    BacklogFull = "backlog_full", TOO_MANY_REQUESTS, "Too many deliveries of the tenant wait";
    /// A count or a ceiling of the tenant's [limits](#tenants) would be passed; `limit` names it.
    LimitExceeded = "limit_exceeded", UNPROCESSABLE_ENTITY, "A limit of the tenant would be passed";
    /// The tenant's events take up as much as they may (`limits.stored_bytes`), or more than those of other tenants while the disk runs short. Other tenants are not affected.
    QuotaFull = "quota_full", INSUFFICIENT_STORAGE, "The tenant's events take up as much as they may";
    /// Not now: the store does not answer, or too much comes in at once. Trying again is safe; `Retry-After` says when.
    Unavailable = "unavailable", SERVICE_UNAVAILABLE, "Not available at the moment";
    /// The disk is nearly full and no new events are accepted, while deliveries go on.
    StorageFull = "storage_full", INSUFFICIENT_STORAGE, "No space is left";
}

/// A problem as it is written, `application/problem+json`.
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemBody<'a> {
    /// Always `about:blank`: the code says what kind it is.
    #[serde(rename = "type")]
    #[schema(example = "about:blank")]
    kind: &'static str,
    /// What the code means.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// What went wrong, for programs.
    code: ProblemCode,
    /// What went wrong here, and the way out.
    detail: &'a str,
    /// The fields at fault.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    errors: &'a [FieldError],
    /// The limit that stands in the way, by its name in the tenant's `limits`.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'static str>,
    /// What does not exist, such as `tenant`, with the code `not_found`.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<&'static str>,
    /// Names this request in the gateway's log.
    request_id: &'a str,
}

/// Range of the default `Retry-After`, in seconds. It is drawn at random, so that
/// clients refused together do not come back together.
const RETRY_AFTER_SECONDS: RangeInclusive<u64> = 3..=7;
/// Range of `Retry-After` after a short overload, in seconds.
const OVERLOAD_SECONDS: RangeInclusive<u64> = 1..=3;

impl Problem {
    /// Returns a problem with a sentence for people.
    pub fn new(code: ProblemCode, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
            errors: Vec::new(),
            headers: Vec::new(),
            limit: None,
            limit_name: None,
            missing: None,
            is_about_body: false,
        }
    }

    /// Returns a problem of the body, from what is wrong with it.
    pub fn of_body(code: ProblemCode, fault: &str) -> Self {
        Self { is_about_body: true, ..Self::new(code, format!("{THE_BODY} {fault}")) }
    }

    /// Returns a problem of the whole document in the body, as its one field at fault.
    pub fn of_whole_document(code: ProblemCode, fault: &str) -> Self {
        Self { is_about_body: true, ..Self::field(code, "", format!("{THE_BODY} {fault}")) }
    }

    /// Returns whose limit caused the refusal, if a limit did.
    pub fn limit_owner(&self) -> Option<LimitOwner> {
        self.limit
    }

    fn of_limit(self, limit: LimitOwner) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// Adds the name of the limit that caused the refusal.
    pub fn naming_limit(self, name: &'static str) -> Self {
        Self { limit_name: Some(name), ..self }
    }

    /// Returns the sentence for people.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Returns the problem's code.
    pub fn code(&self) -> ProblemCode {
        self.code
    }

    /// Returns a problem with one field.
    pub fn field(code: ProblemCode, pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        let error = FieldError { pointer: pointer.into(), detail: detail.clone() };
        Self { errors: vec![error], ..Self::new(code, detail) }
    }

    /// Returns a problem with several fields; its sentence joins theirs.
    pub fn fields(code: ProblemCode, errors: Vec<FieldError>) -> Self {
        let mut details: Vec<&str> = Vec::new();
        for error in &errors {
            // Many items of a batch may have the same fault.
            if !details.contains(&error.detail.as_str()) {
                details.push(&error.detail);
            }
        }
        let detail = details.join("; ");
        Self { errors, ..Self::new(code, detail) }
    }

    /// Adds `Retry-After` with this number of seconds.
    pub fn retry_after(self, seconds: u64) -> Self {
        self.with_headers([(RETRY_AFTER, HeaderValue::from(seconds))])
    }

    /// Adds headers to the response.
    pub fn with_headers(mut self, headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>) -> Self {
        self.headers.extend(headers);
        self
    }

    /// Returns the problem that a resource does not exist.
    pub fn not_found(missing: MissingResource) -> Self {
        let problem = Self::new(ProblemCode::NotFound, format!("there is no such {missing}"));
        Self { missing: Some(missing), ..problem }
    }

    /// Names the tenant that was looked for, or in which something else was.
    pub fn naming_tenant(mut self, tenant: &TenantId) -> Self {
        match self.missing {
            Some(MissingResource::Tenant) => self.detail = format!("there is no tenant {tenant}"),
            Some(
                MissingResource::Endpoint
                | MissingResource::Event
                | MissingResource::Delivery
                | MissingResource::Token
                | MissingResource::Job
                | MissingResource::Link
                | MissingResource::Session
                | MissingResource::Logo,
            ) => self.detail.push_str(&format!(" in tenant {tenant}")),
            None => {}
        }
        self
    }

    /// Calls what is at fault the event, where it is one of several in the body.
    pub fn about_event(mut self) -> Self {
        if std::mem::take(&mut self.is_about_body) {
            let details = self.errors.iter_mut().map(|error| &mut error.detail);
            details.chain([&mut self.detail]).for_each(|detail| detail.replace_range(..THE_BODY.len(), THE_EVENT));
        }
        self
    }

    /// Lists further fields of a document, if it is refused for an unknown one.
    pub fn with_known_fields(mut self, names: &[&str]) -> Self {
        let is_of_document = self.pointer().is_some_and(|pointer| pointer.matches('/').count() == 1);
        if self.code == ProblemCode::UnknownField && is_of_document {
            let names: String = names.iter().map(|name| format!(", `{name}`")).collect();
            self.detail.push_str(&names);
            self.errors.iter_mut().for_each(|error| error.detail.push_str(&names));
        }
        self
    }

    /// Returns the pointer to the first field at fault.
    pub fn pointer(&self) -> Option<&str> {
        self.errors.first().map(|error| error.pointer.as_str())
    }

    /// Returns the code and the fields at fault, their pointers prefixed with the
    /// pointer of the place in a larger document.
    pub fn errors_below(self, parent: &str) -> (ProblemCode, Vec<FieldError>) {
        let errors = if self.errors.is_empty() {
            vec![FieldError { pointer: String::new(), detail: self.detail }]
        } else {
            self.errors
        };
        let moved =
            errors.into_iter().map(|error| FieldError { pointer: format!("{parent}{}", error.pointer), ..error });
        (self.code, moved.collect())
    }

    /// Returns the whole response to a request with these headers, for servers
    /// without the layer that renders problems.
    pub fn answer(&self, headers: &HeaderMap) -> Response {
        let RequestId(id) = RequestId::of(headers, rand::random());
        let mut response = self.code.status().into_response();
        self.render(&mut response, &id);
        response.headers_mut().insert(REQUEST_ID, HeaderValue::try_from(id).expect("a sane id is a header value"));
        response
    }

    /// Writes the problem into a response, with the id of the request.
    pub fn render(&self, response: &mut Response, request_id: &str) {
        let status = self.code.status();
        let body = ProblemBody {
            kind: "about:blank",
            title: self.code.title(),
            status: status.as_u16(),
            code: self.code,
            detail: &self.detail,
            errors: &self.errors,
            limit: self.limit_name,
            missing: self.missing.map(MissingResource::into),
            request_id,
        };
        *response.status_mut() = status;
        *response.body_mut() = Body::from(serde_json::to_vec(&body).expect("a problem is plain data"));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match self.code {
            ProblemCode::Unauthenticated => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            ProblemCode::Unavailable | ProblemCode::StorageFull | ProblemCode::BacklogFull | ProblemCode::QuotaFull => {
                headers.insert(RETRY_AFTER, HeaderValue::from(rand::random_range(RETRY_AFTER_SECONDS)));
            }
            _ => {}
        }
        for (name, value) in &self.headers {
            headers.insert(name, value.clone());
        }
    }
}

/// Attaches the problem to the response. The outermost layer renders it, because
/// it knows the request's id.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.code.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<store::Error> for Problem {
    fn from(problem: store::Error) -> Self {
        let detail = problem.to_string();
        match problem {
            // The database's message goes to the log alone: it is for the operator, not for callers.
            store::Error::Unavailable(_) => {
                info!("request answered 503: {detail}");
                Self::new(
                    ProblemCode::Unavailable,
                    "the store is unavailable at the moment; try again in a few seconds",
                )
            }
            store::Error::Full(_) => {
                info!("request answered 507: {detail}");
                Self::new(
                    ProblemCode::StorageFull,
                    "the store has no space left; try again when its operator has made some",
                )
            }
            store::Error::Stale(_) | store::Error::Changed | store::Error::Outdated => {
                Self::new(ProblemCode::Unavailable, detail)
            }
            // A node of the version that wrote it may be asked next.
            store::Error::UnknownCode(_) | store::Error::Unreadable(_) => {
                warn!("answered 503: {detail}");
                Self::new(ProblemCode::Unavailable, detail)
            }
            store::Error::InvalidCursor => Self::new(ProblemCode::InvalidCursor, detail),
            store::Error::NotFound(what) => Self::not_found(what),
            store::Error::WrongState(_) => Self::new(ProblemCode::WrongState, detail),
            store::Error::OverLimit(over) => Self::new(ProblemCode::LimitExceeded, detail).naming_limit(over.limit),
            store::Error::TooManySignIns { .. } => Self::new(ProblemCode::LimitExceeded, detail),
            store::Error::Expunged(_) | store::Error::Unmatched(_) => Self::new(ProblemCode::DataExpunged, detail),
            store::Error::Damaged(_) => Self::new(ProblemCode::DataDamaged, detail),
            store::Error::UnknownEndpoint(_) => Self::field(ProblemCode::InvalidField, "/endpoints", detail),
        }
    }
}

impl From<LinkRefusal> for Problem {
    fn from(refusal: LinkRefusal) -> Self {
        let detail = refusal.to_string();
        match refusal {
            LinkRefusal::Foreign => Self::new(ProblemCode::LinkInvalid, detail),
            LinkRefusal::Over => Self::new(ProblemCode::LinkExpired, detail),
            LinkRefusal::TooOften(wait) => {
                Self::new(ProblemCode::RateLimited, detail).retry_after(rate_limit_headers::whole_seconds(wait).max(1))
            }
            LinkRefusal::Store(problem) => problem.into(),
        }
    }
}

impl From<AcceptRefusal> for Problem {
    fn from(refusal: AcceptRefusal) -> Self {
        let detail = refusal.to_string();
        match refusal {
            AcceptRefusal::Conflict { differs, .. } | AcceptRefusal::ConflictInBatch { differs, .. } => {
                let mut problem = Self::field(ProblemCode::IdConflict, "/id", detail);
                problem.errors.extend(differs.into_iter().map(|field| FieldError {
                    pointer: format!("/{field}"),
                    detail: format!("{} from the other event's", differing_sentence(field)),
                }));
                problem
            }
            AcceptRefusal::UnknownEndpoint(_) | AcceptRefusal::NotForEvents(_) => {
                Self::field(ProblemCode::InvalidField, "/endpoints", detail)
            }
            AcceptRefusal::Fanout(_) => Self::new(ProblemCode::FanoutLimit, detail),
            AcceptRefusal::NoRoom(StorageRefusal::Backlog { .. }) => {
                Self::new(ProblemCode::BacklogFull, detail).naming_limit("waiting").of_limit(LimitOwner::Tenant)
            }
            AcceptRefusal::NoRoom(StorageRefusal::Stored { .. } | StorageRefusal::Disk { .. }) => {
                Self::new(ProblemCode::QuotaFull, detail).naming_limit("stored_bytes").of_limit(LimitOwner::Tenant)
            }
            AcceptRefusal::StorageFull => Self::new(ProblemCode::StorageFull, detail),
            AcceptRefusal::Limited(limited) => {
                let seconds = rate_limit_headers::whole_seconds(limited.ready_in).max(1);
                let headers = rate_limit_headers::headers(&limited.status);
                Self::new(ProblemCode::RateLimited, detail)
                    .retry_after(seconds)
                    .with_headers(headers)
                    .of_limit(LimitOwner::Tenant)
            }
            AcceptRefusal::Overload(overload) => overload.into(),
            AcceptRefusal::Store(problem) => problem.into(),
        }
    }
}

impl From<Overload> for Problem {
    fn from(overload: Overload) -> Self {
        let seconds = rand::random_range(OVERLOAD_SECONDS);
        Self::new(ProblemCode::Unavailable, overload.to_string()).retry_after(seconds).of_limit(LimitOwner::Gateway)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_one_name_in_json_and_elsewhere() {
        for code in ProblemCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
    }

    #[test]
    fn a_problem_of_one_event_of_several_names_the_event() {
        let problem = Problem::of_whole_document(ProblemCode::InvalidField, "is 9 levels deep").about_event();
        assert_eq!(
            (problem.detail(), problem.errors[0].detail.as_str()),
            ("the event is 9 levels deep", problem.detail())
        );
        assert_eq!(
            Problem::of_body(ProblemCode::InvalidJson, "is no JSON").about_event().detail(),
            "the event is no JSON"
        );
        let other = Problem::new(ProblemCode::InvalidField, "the body of it is wrong").about_event();
        assert_eq!(other.detail(), "the body of it is wrong", "words alone decide nothing");
    }
}
