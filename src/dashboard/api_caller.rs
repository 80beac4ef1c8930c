//! Calls the API inside the process, as the person who is signed in.
//!
//! The call passes through the same router as one from outside: the same rights,
//! the same checks of input, the same audit log. Only the bearer token is replaced
//! by the session.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body_util::BodyExt;
use jiff::Timestamp;
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tower_service::Service;

use super::answer_cache::{AnswerCache, CachedAnswer};
use super::page_error::{ChangeOutcome, PageError};
use crate::api::auth::{InProcessCaller, Principal};
use crate::api::origin::{Peer, RequestId};

/// The characters of a path segment that need no escape.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// Ends of the paths that are posted to and change nothing.
const READING: [&str; 2] = ["/verify", "/preview"];
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Writes a path of the API, with every value escaped as one segment of it:
/// `api_path!("/v1/tenants/{}/endpoints", tenant)`.
macro_rules! api_path {
    ($path:literal $(, $value:expr)*) => {
        format!($path $(, $crate::dashboard::api_caller::segment(&$value.to_string()))*)
    };
}

pub(crate) use api_path;

/// Escapes a text as one segment of a path, or as one value of a query.
pub fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// Where answers that change slowly are kept for this person, and all others who may see the same.
#[derive(Clone)]
pub struct AnswerMemory {
    /// The answers that are kept.
    pub kept: Arc<AnswerCache>,
    /// Time of the request, by which they age.
    pub now: Timestamp,
    /// Stands for all who may see the same.
    pub reader: String,
}

/// Calls routes of the API as one person.
#[derive(Clone)]
pub struct ApiCaller {
    routes: Router,
    memory: AnswerMemory,
    principal: Principal,
    peer: Option<Peer>,
    /// Headers that say where the request came from, for the audit log.
    origin: HeaderMap,
    /// What came of the changes that it has asked for, for all its copies.
    outcome: Arc<Mutex<ChangeOutcome>>,
}

/// What a request carries: its media type and its bytes.
type Content = (&'static str, Bytes);

impl ApiCaller {
    /// Builds a caller for the request of a page.
    pub fn new(
        routes: Router,
        principal: Principal,
        peer: Option<Peer>,
        headers: &HeaderMap,
        id: &RequestId,
        memory: AnswerMemory,
    ) -> Self {
        let mut origin = HeaderMap::new();
        for value in headers.get_all("x-forwarded-for") {
            origin.append("x-forwarded-for", value.clone());
        }
        if let Ok(id) = HeaderValue::try_from(id.0.as_str()) {
            origin.insert(REQUEST_ID, id);
        }
        Self { routes, memory, principal, peer, origin, outcome: Arc::default() }
    }

    /// Returns the caller with the host that a browser has asked for over plain HTTP: links
    /// that the API makes begin with it, unless it has a public URL.
    pub fn on_host(mut self, host: Option<&HeaderValue>) -> Self {
        self.origin.extend(host.map(|host| (HOST, host.clone())));
        self
    }

    /// Returns what came of the changes that were asked for until now.
    pub fn outcome(&self) -> ChangeOutcome {
        *self.outcome.lock()
    }

    /// Returns the person as the API knows them.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Reads a route, for example `/v1/cluster`.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, PageError> {
        let body = self.call(Method::GET, path, None).await?;
        serde_json::from_slice(&body).map_err(|problem| PageError::unreadable(path, &problem))
    }

    /// Reads a route whose answer changes slowly; it may be some seconds old.
    pub async fn get_kept<T>(&self, path: &str) -> Result<Arc<T>, PageError>
    where
        T: DeserializeOwned + Send + Sync + 'static,
    {
        let AnswerMemory { kept, now, reader } = &self.memory;
        // Two pages may read different parts of the same answer.
        let key = format!("{path} {}", std::any::type_name::<T>());
        match kept.find::<T>(reader, &key, *now) {
            CachedAnswer::Fresh(answer) => Ok(answer),
            CachedAnswer::Aging(answer) => {
                let (caller, path) = (self.clone(), path.to_owned());
                tokio::spawn(async move { caller.read_to_keep::<T>(&path, key).await });
                Ok(answer)
            }
            CachedAnswer::Missing => self.read_to_keep(path, key).await,
        }
    }

    async fn read_to_keep<T>(&self, path: &str, key: String) -> Result<Arc<T>, PageError>
    where
        T: DeserializeOwned + Send + Sync + 'static,
    {
        let answer = Arc::new(self.get::<T>(path).await?);
        self.memory.kept.put(&self.memory.reader, key, answer.clone(), self.memory.now);
        Ok(answer)
    }

    /// Reads a route that may have nothing to show: none if it is not found.
    pub async fn find<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, PageError> {
        match self.get(path).await {
            Ok(found) => Ok(Some(found)),
            Err(problem) if problem.status == StatusCode::NOT_FOUND => Ok(None),
            Err(problem) => Err(problem),
        }
    }

    /// Reads a route as the bytes that it answers.
    pub async fn bytes(&self, path: &str) -> Result<Bytes, PageError> {
        self.call(Method::GET, path, None).await
    }

    /// Sends a document to a route, and reads its answer; null if it has none.
    pub async fn send(&self, method: Method, path: &str, document: Option<Value>) -> Result<Value, PageError> {
        let document = document.map(|document| ("application/json", Bytes::from(document.to_string())));
        let body = self.call(method, path, document).await?;
        if body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&body).map_err(|problem| PageError::unreadable(path, &problem))
    }

    /// Sends bytes of a media type to a route that answers nothing.
    pub async fn send_bytes(
        &self,
        method: Method,
        path: &str,
        media_type: &'static str,
        bytes: Vec<u8>,
    ) -> Result<(), PageError> {
        self.call(method, path, Some((media_type, bytes.into()))).await.map(|_| ())
    }

    /// Posts to a route that takes no document.
    pub async fn post(&self, path: &str) -> Result<Value, PageError> {
        self.send(Method::POST, path, None).await
    }

    /// Opens a route that streams its answer.
    pub async fn stream(&self, path: &str) -> Result<Response, PageError> {
        let response = self.ask(Method::GET, path, None).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|_| PageError::cut_off(path))?.to_bytes();
        Err(PageError::of_problem(status, &body))
    }

    async fn call(&self, method: Method, path: &str, content: Option<Content>) -> Result<Bytes, PageError> {
        let response = self.ask(method, path, content).await?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|_| PageError::cut_off(path))?.to_bytes();
        if status.is_success() { Ok(body) } else { Err(PageError::of_problem(status, &body)) }
    }

    async fn ask(&self, method: Method, path: &str, content: Option<Content>) -> Result<Response, PageError> {
        let media_type = content.as_ref().map(|(media_type, _)| HeaderValue::from_static(media_type));
        let mut request = Request::new(content.map_or_else(Body::empty, |(_, bytes)| Body::from(bytes)));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().map_err(|_| PageError::not_found())?;
        *request.headers_mut() = self.origin.clone();
        if let Some(media_type) = media_type {
            request.headers_mut().insert(CONTENT_TYPE, media_type);
        }
        request.extensions_mut().insert(InProcessCaller(self.principal.clone()));
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(peer);
        }
        let may_change = !request.method().is_safe() && !READING.iter().any(|end| request.uri().path().ends_with(end));
        let response = match self.routes.clone().call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        if may_change {
            let mut outcome = self.outcome.lock();
            *outcome = outcome_of(response.status()).max(*outcome);
        }
        Ok(response)
    }
}

/// Returns what an answer says of the change that was asked for.
fn outcome_of(status: StatusCode) -> ChangeOutcome {
    if status.is_success() {
        ChangeOutcome::Changed
    } else if status.is_server_error() && status != StatusCode::INSUFFICIENT_STORAGE {
        ChangeOutcome::Unclear
    } else {
        ChangeOutcome::NothingChanged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_answered_in_the_positive_is_known_to_be_done() {
        let outcome = |status: u16| outcome_of(StatusCode::from_u16(status).unwrap());
        assert_eq!([200, 201, 204].map(outcome), [ChangeOutcome::Changed; 3]);
        assert_eq!([403, 422, 429, 507].map(outcome), [ChangeOutcome::NothingChanged; 4]);
        assert_eq!([500, 503].map(outcome), [ChangeOutcome::Unclear; 2]);
    }

    #[test]
    fn a_value_cannot_leave_its_segment() {
        let path = api_path!("/v1/tenants/{}/endpoints/{}", "a/../b", "x?y#z%2f");
        assert_eq!(path, "/v1/tenants/a%2F..%2Fb/endpoints/x%3Fy%23z%252f");
        assert_eq!(api_path!("/v1/cluster"), "/v1/cluster");
    }
}
