//! Passes received requests on to a service of the developer's own.
//!
//! Invariant: the service gets the body byte for byte, and every header but those that
//! belong to the connection.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Full;
use posthaste_client::transport::exchange;
use tokio::time::Instant;
use url::Url;

use super::record::ReceivedRequest;
use super::shown_body::shown_body;
use crate::cli::client::describe_error;
use crate::cli::output::escape_control_characters;
use crate::model::span::Span;

/// Longest time that the service may take. The gateway waits for at most a minute.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(60);

/// A service that requests are passed on to.
#[derive(Debug, Clone)]
pub struct Forwarder {
    url: Url,
}

/// What came of a request that was passed on.
#[derive(Debug)]
pub struct ForwardedRequest {
    /// Answer of the service, or why there is none.
    pub answer: Result<Response<Bytes>, String>,
    /// Time that it took.
    pub took: Duration,
}

impl Forwarder {
    /// Returns a forwarder to this URL.
    pub fn new(url: Url) -> Self {
        Self { url }
    }

    /// Passes a request on, whatever path it came to.
    pub async fn forward(&self, received: &ReceivedRequest) -> ForwardedRequest {
        let mut request = Request::new(Full::from(received.body.clone()));
        *request.method_mut() = received.method.clone();
        *request.headers_mut() = end_to_end(&received.headers);
        let began = Instant::now();
        let answer = exchange(&self.url, request, FORWARD_TIMEOUT).await;
        let answer = answer.map_err(|problem| format!("{} did not answer: {}", self.url, describe_error(&problem)));
        ForwardedRequest { answer, took: began.elapsed() }
    }
}

impl fmt::Display for Forwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.url)
    }
}

impl ForwardedRequest {
    /// Returns the status that the service answered, if it did.
    pub fn status(&self) -> Option<StatusCode> {
        self.answer.as_ref().ok().map(Response::status)
    }

    /// Returns the service's answer for the sender; 502 with the reason if there is none.
    pub fn response(&self) -> Response<Full<Bytes>> {
        match &self.answer {
            Ok(answer) => {
                let mut response = Response::new(Full::from(answer.body().clone()));
                *response.status_mut() = answer.status();
                *response.headers_mut() = end_to_end(answer.headers());
                response
            }
            Err(problem) => {
                let mut response = Response::new(Full::from(format!("{problem}\n")));
                *response.status_mut() = StatusCode::BAD_GATEWAY;
                response
            }
        }
    }

    /// Renders the line to print.
    pub fn render(&self) -> String {
        let took = Span(Duration::from_millis(u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX)));
        match &self.answer {
            Ok(answer) => {
                let body = shown_body(answer.body());
                format!("    the service answered {} after {took}: {body}\n", answer.status().as_u16())
            }
            Err(problem) => format!("    {}\n", escape_control_characters(problem)),
        }
    }
}

/// Returns the headers without those of the connection, which the next one sets anew.
fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    let named: Vec<String> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    for name in named {
        headers.remove(name.as_str());
    }
    for name in [CONNECTION, CONTENT_LENGTH, TE, TRAILER, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
    for name in ["keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"] {
        headers.remove(name);
    }
    headers
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn headers_of_the_connection_are_left_out_and_all_others_pass() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("connection", "close, X-Hop"), ("x-hop", "1"), ("transfer-encoding", "chunked")] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers.append("x-a", HeaderValue::from_static("1"));
        headers.append("x-a", HeaderValue::from_static("2"));
        let passed = end_to_end(&headers);
        assert_eq!((passed.len(), passed.get_all("x-a").iter().count()), (2, 2), "{passed:?}");
    }
}
