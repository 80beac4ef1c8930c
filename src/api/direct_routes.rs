//! Routes that are served without the router, and their answers as bytes.

use std::convert::Infallible;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONNECTION, CONTENT_LENGTH};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::connection_slots::ConnectionStatus;
use crate::clock::http_date;
use crate::model::plain_head::{add_field, decimal};

/// Bytes that a usual answer takes, so that the buffer for it does not grow.
const ANSWER_BYTES: usize = 512;

/// Serves some requests without the router.
pub trait DirectRoutes: Clone + Send + Sync + 'static {
    /// A request that is served so.
    type Taken: Send;

    /// Decides whether a `POST` to this path, which has no query, is served without
    /// the router.
    fn take(&self, path: &str, headers: &HeaderMap, connection: &ConnectionStatus) -> Option<Self::Taken>;

    /// Answers a request that was taken.
    fn answer(taken: Self::Taken, request: hyper::Request<Incoming>) -> impl Future<Output = Response> + Send;

    /// Answers a plain request that was taken.
    fn answer_plain(taken: Self::Taken, headers: HeaderMap, body: Bytes) -> impl Future<Output = PlainAnswer> + Send;
}

/// Leaves every request to the router.
impl DirectRoutes for () {
    type Taken = Infallible;

    fn take(&self, _: &str, _: &HeaderMap, _: &ConnectionStatus) -> Option<Infallible> {
        None
    }

    async fn answer(taken: Infallible, _: hyper::Request<Incoming>) -> Response {
        match taken {}
    }

    async fn answer_plain(taken: Infallible, _: HeaderMap, _: Bytes) -> PlainAnswer {
        match taken {}
    }
}

/// An answer, as it is written to a connection.
pub struct PlainAnswer {
    /// Status line and headers but those of the connection and the body.
    pub head: Vec<u8>,
    /// Body of the answer.
    pub body: Bytes,
    /// Whether it is the last answer of the connection.
    pub is_last: bool,
}

impl PlainAnswer {
    /// Returns an answer with this status and these headers.
    pub async fn of(response: Response<Body>) -> Self {
        let (parts, body) = response.into_parts();
        let mut head = Vec::with_capacity(ANSWER_BYTES);
        head.extend_from_slice(b"HTTP/1.1 ");
        head.extend_from_slice(parts.status.as_str().as_bytes());
        head.push(b' ');
        head.extend_from_slice(parts.status.canonical_reason().unwrap_or_default().as_bytes());
        head.extend_from_slice(b"\r\n");
        for (name, value) in parts.headers.iter().filter(|(name, _)| **name != CONNECTION && **name != CONTENT_LENGTH) {
            add_field(&mut head, name.as_str(), value.as_bytes());
        }
        let is_last = parts.headers.get(CONNECTION).is_some_and(|value| value == "close");
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        Self { head, body, is_last }
    }

    /// Returns the whole answer as bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        let mut bytes = self.head;
        if self.is_last {
            add_field(&mut bytes, "connection", b"close");
        }
        let mut digits = [0; 20];
        add_field(&mut bytes, "content-length", decimal(self.body.len(), &mut digits));
        http_date(|date| add_field(&mut bytes, "date", date.as_bytes()));
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&self.body);
        bytes
    }
}
