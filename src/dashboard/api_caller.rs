//! Calls the API inside the process, as the person who is signed in.
//!
//! The call passes through the same router as one from outside: the same rights,
//! the same checks of input, the same audit log. Only the bearer token is replaced
//! by the session.

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body_util::BodyExt;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tower_service::Service;

use super::page_error::PageError;
use crate::api::auth::{InProcessCaller, Principal};
use crate::api::origin::{Peer, RequestId};

/// The characters of a path segment that need no escape.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
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

/// Calls routes of the API as one person.
#[derive(Clone)]
pub struct ApiCaller {
    routes: Router,
    principal: Principal,
    peer: Option<Peer>,
    /// Headers that say where the request came from, for the audit log.
    origin: HeaderMap,
}

impl ApiCaller {
    /// Builds a caller for the request of a page.
    pub fn new(routes: Router, principal: Principal, peer: Option<Peer>, headers: &HeaderMap, id: &RequestId) -> Self {
        let mut origin = HeaderMap::new();
        for value in headers.get_all("x-forwarded-for") {
            origin.append("x-forwarded-for", value.clone());
        }
        if let Ok(id) = HeaderValue::try_from(id.0.as_str()) {
            origin.insert(REQUEST_ID, id);
        }
        Self { routes, principal, peer, origin }
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
        let body = self.call(method, path, document.map(|document| document.to_string())).await?;
        if body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&body).map_err(|problem| PageError::unreadable(path, &problem))
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

    async fn call(&self, method: Method, path: &str, document: Option<String>) -> Result<Bytes, PageError> {
        let response = self.ask(method, path, document).await?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|_| PageError::cut_off(path))?.to_bytes();
        if status.is_success() { Ok(body) } else { Err(PageError::of_problem(status, &body)) }
    }

    async fn ask(&self, method: Method, path: &str, document: Option<String>) -> Result<Response, PageError> {
        let mut request = Request::new(document.clone().map_or_else(Body::empty, Body::from));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().map_err(|_| PageError::not_found())?;
        *request.headers_mut() = self.origin.clone();
        if document.is_some() {
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        request.extensions_mut().insert(InProcessCaller(self.principal.clone()));
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(peer);
        }
        match self.routes.clone().call(request).await {
            Ok(response) => Ok(response),
            Err(never) => match never {},
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_value_cannot_leave_its_segment() {
        let path = api_path!("/v1/tenants/{}/endpoints/{}", "a/../b", "x?y#z%2f");
        assert_eq!(path, "/v1/tenants/a%2F..%2Fb/endpoints/x%3Fy%23z%252f");
        assert_eq!(api_path!("/v1/cluster"), "/v1/cluster");
    }
}
